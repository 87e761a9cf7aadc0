"""What a program's help says, whatever made it: its options, sub-commands and arguments."""

from __future__ import annotations

import re

from fanout.fields import NamedTuple
from fanout.output import plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LINE_LIMIT = 2_000
LINES_LIMIT = 5_000
TEXT_LIMIT = 2_000
# More than any program has; some questions are asked of each entry for each other one.
ENTRIES_LIMIT = 600

# Frames of boxes; their corners and rulers make a heading of what stands between them.
FRAME = r"[\u2500-\u257f]"
HEADING_FRAME = r"\s*[\u2500\u2501\u250c-\u2517\u2550-\u255a\u255e\u2561\u256d-\u2570]"

NAME = r"--?(?:\[no-\]|\(no-\))?[A-Za-z0-9?](?:[\w-]|\.(?=\w))*(?:\[no-\])?"
# Between the names of one option: a comma, a bar, a slash or `or`; in a table only spaces.
BETWEEN = r"(?:\s*[,|/]\s*|\s+or\s+|\s+)(?=--?[A-Za-z0-9\[(?])"
BRACKETS = r"<[^<>]{1,120}>|\[[^\[\]]{1,300}\]|\{[^{}]{1,400}\}"
# After one space or `=`: a placeholder in brackets or capitals, or a word that ends its column.
VALUE = (
    r"\[=(?P<maybe>[^\]\[]{1,80})\]"
    r"|(?P<equals>=)(?P<joined>" + BRACKETS + r"|[^\s,=]{1,120})"
    r"|\ (?P<apart>(?:" + BRACKETS + r")(?:,?\.\.\.)?"
    r"|[A-Z][A-Z0-9_:|/.-]*(?:\.\.\.)?(?=\s|,|$)"
    r"|['\"]?[a-z][\w|/:.-]{0,60}['\"]?(?:\.\.\.)?(?=\s{2}|\s*$|,\s*-))"
)
# In a table the type has a column of its own.
COLUMN_VALUE = (
    r"\s{2,}(?P<apart><[^<>]{1,80}>|[A-Z][A-Z_]{2,}(?: RANGE)?|\[[\w.-]+(?:\|[\w.-]+)+\])"
    r"(?=\s{2}|\s*$)"
)
NO_VALUE = ("<bool>", "BOOLEAN", "bool", "boolean")
TYPED = r"\[(string|array|number|count|boolean|choices)\b"
COMMAND = (
    r"(?P<name>[a-z][\w:.-]*(?:\s?[|/,]\s?[a-z][\w:-]*)*(?: [a-z][\w-]*){0,2})\*?"
    r"(?P<args>(?: (?:\[[^\[\]]{0,120}\]|<[^<>]{0,120}>|[A-Z][A-Z0-9_.]+)(?:\.\.\.)?)*)"
    r"(?:\s{2,}|\s+[\u2013\u2014:-]\s+|:\s+|\s*$)(?P<text>.*)"
)
ARGUMENT = (
    r"\*?\s*[\[<{(]?(?P<name>[A-Za-z@][\w@-]*)(?:\.{2,3}|\u2026)?[\])}>]?(?:\.{2,3})?"
    r"(?:\s{2,}|\s*$|\s+[\u2013\u2014:-]\s+|:\s+)(?P<text>.*)"
)
KNOWN_HEADINGS = frozenset(
    ["options", "flags", "commands", "arguments", "usage", "examples", "subcommands", "topics"]
)
KINDS = (
    ("examples", r"example"),
    ("exit codes", r"exit (code|status)"),
    ("commands", r"\b(sub-?)?commands?\b|\btopics?\b"),
    ("arguments", r"\bargument|\bpositional|\bparameters?$"),
    ("usage", r"^usage(?! of)"),
    ("options", r"\boption|\bflag|\bswitch|^usage of"),
)
# What stands for other things in a usage line, not for an argument of the user's.
NOT_ARGUMENTS = frozenset(
    ["options", "option", "flags", "command", "commands", "subcommand", "args", "cmd", "arguments"]
)


class Option(NamedTuple):
    """One option. `value` is its placeholder, empty when the help shows none."""

    names: tuple[str, ...]
    value: str
    optional: bool
    choices: tuple[str, ...]
    text: str
    line: str

    @property
    def name(self) -> str:
        """The name that tells most: the first long one."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def words(self) -> frozenset[str]:
        """Its names without dashes, in small letters."""
        return frozenset(name.lstrip("-").casefold() for name in self.names)


class Entry(NamedTuple):
    """A sub-command or an argument: its name, what the help says of it, and the line."""

    name: str
    text: str
    line: str
    aliases: tuple[str, ...] = ()
    takes: str = ""


class Help(NamedTuple):
    """What one help text says."""

    options: tuple[Option, ...]
    commands: tuple[Entry, ...]
    arguments: tuple[Entry, ...]
    usage: tuple[str, ...]
    exit_codes: tuple[Entry, ...]
    lines: tuple[str, ...]

    @property
    def flags(self) -> frozenset[str]:
        """All names of all options."""
        return frozenset(name for option in self.options for name in option.names)

    @property
    def is_help(self) -> bool:
        """Whether this is a help at all and not an answer of some other kind."""
        return bool(self.options or self.commands or self.usage)


def read_help(text: str, names: Iterable[str] = ()) -> Help:
    """Read a help text. `names` are what the program may be called in it."""
    reader = Reader(frozenset(names))
    lines = plain_lines(text)
    for line in lines:
        reader.take(line)
    return reader.result(lines)


def plain_lines(text: str) -> list[str]:
    """The lines of a text without control sequences, overstriking and the frames of boxes."""
    if "\b" in text:
        text = re.sub(r"[^\n]\x08", "", text)
    rows = plain_text(text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
    lines: list[str] = []
    for row in rows[:LINES_LIMIT]:
        line = row[:LINE_LIMIT].expandtabs(8).rstrip()
        if not line.isprintable():
            # Other spaces are spaces; what turns the direction of a text is not shown to anybody.
            line = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in line)
        if re.search(FRAME, line) is not None:
            heading = re.match(HEADING_FRAME, line) is not None
            line = re.sub(FRAME, " ", line).rstrip()
            if heading and line:
                line = line.strip() + ":"
        lines.append(line)
    return lines


class Reader:
    """Takes the lines of a help one by one and keeps what they describe."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = set(names)
        self.kind = ""
        self.usage: list[str] = []
        self.found: list[tuple[str, dict[str, Any]]] = []
        # Where the entry that is being read begins, and where its text does (-1: not known yet).
        self.indent = -1
        self.column = -1
        self.in_usage = False
        # The sub-commands that the next one may stand below, with how far each is indented.
        self.above: list[tuple[int, str]] = []

    def take(self, line: str) -> None:
        """One more line."""
        words = line.strip()
        if not words:
            # A usage that begins on its heading's own line ends here.
            self.in_usage = self.in_usage and self.kind == "usage"
            return
        indent = len(line) - len(line.lstrip())
        if self.continues(words, indent):
            self.add_text(line, indent)
            return
        usage = re.match(r"(?i)usage\s*:\s*(\S.*)", words)
        if usage is not None:
            self.leave("")
            self.in_usage = True
            self.add_usage(usage[1])
        elif self.is_heading(words, indent):
            self.leave(kind_of(words))
            self.in_usage = self.kind == "usage"
        elif self.in_usage and (indent or self.kind == "usage") and not self.has_text(words):
            self.add_usage(words)
        elif self.kind != "examples" and not self.add_entry(line, words, indent):
            self.indent = -1

    def leave(self, kind: str) -> None:
        """Another part of the help begins."""
        self.kind = kind
        self.indent = self.column = -1
        self.in_usage = False
        self.above = []

    def continues(self, words: str, indent: int) -> bool:
        """Whether a line goes on with the text of the entry before it."""
        if self.indent < 0 or indent <= self.indent:
            return False
        if self.column > self.indent and indent >= self.column - 1:
            return True
        if self.kind == "commands" and self.column > self.indent and self.found:
            # Sub-commands of the one above, each with its text in the same column.
            return self.found[-1][0] != "commands" or re.match(COMMAND, words) is None
        return not self.is_option(words)

    def is_option(self, words: str) -> bool:
        """Whether a line begins with the name of an option."""
        return words.startswith("-") and re.match(NAME + r"(?=[\s,=|/\[:]|$)", words) is not None

    def has_text(self, words: str) -> bool:
        """Whether a line is an option with its text and not a usage that goes on."""
        return self.is_option(words) and re.search(r"\S\s{2,}\S", words) is not None

    def is_heading(self, words: str, indent: int) -> bool:
        """Whether a line stands above a part of the help."""
        if words.startswith(("-", "$", "#")) or indent > 4:
            return False
        if words.rstrip(":").casefold() in KNOWN_HEADINGS:
            return True
        if words.endswith(":"):
            return len(words.split()) <= 6
        letters = re.sub(r"[^A-Za-z]", "", words)
        return indent == 0 and len(letters) > 3 and letters.isupper() and len(words.split()) <= 4

    def add_usage(self, words: str) -> None:
        """One line of the usage; what stands first in it is the program's name."""
        words = words.removeprefix("$ ").removeprefix("or:").strip()
        first = words.split()[0] if words else ""
        if re.fullmatch(r"[\w./-]+", first) and not first.startswith("-"):
            self.names.add(first.rpartition("/")[2])
            self.usage.append(words)
        elif self.usage:
            self.usage[-1] = f"{self.usage[-1]} {words}"[:LINE_LIMIT]

    def add_text(self, line: str, indent: int) -> None:
        """More text of the entry that is being read."""
        entry = self.found[-1][1]
        if self.column < 0 or not entry["text"]:
            self.column = indent
        if len(entry["text"]) < TEXT_LIMIT:
            entry["text"] += "\n" + line.strip()

    def add_entry(self, line: str, words: str, indent: int) -> bool:
        """Begin an option, a sub-command, an argument or an exit code; whether it was one."""
        if self.is_option(words):
            entry, length = parse_option(words)
            self.begin("options", entry, line, indent, length)
            return True
        if self.kind == "exit codes":
            found = re.match(r"(?P<name>\d{1,3})\s*[:=\u2013\u2014-]?\s+(?P<text>\S.*)", words)
            return self.begin_match("exit codes", found, line, indent)
        bare = words.removeprefix("$ ").strip()
        first = bare.partition(" ")[0]
        if first in self.names and " " in bare and self.kind not in ("arguments", "other"):
            return self.add_command(line, bare.partition(" ")[2].strip(), indent, named=True)
        if self.kind == "commands":
            return self.add_command(line, bare, indent, named=False)
        if self.kind == "options" and re.match(r"[a-z][\w-]{1,20}\s{2,}\S", words):
            # A help written by hand may list a sub-command among the options.
            return self.add_command(line, bare, indent, named=False)
        if self.kind == "arguments":
            braces = re.match(r"\{([\w,:-]+)\}", words)
            if braces is not None:
                # argparse lists sub-commands among the positional arguments.
                self.kind = "commands"
                return True
            found = re.match(ARGUMENT, words)
            return self.begin_match("arguments", found, line, indent)
        return False

    def add_command(self, line: str, words: str, indent: int, *, named: bool) -> bool:
        """Begin a sub-command; `named` when the program's own name stood before it."""
        braces = re.match(r"\{([\w,:-]+)\}", words)
        if braces is not None:
            return True
        found = re.match(COMMAND, words)
        if found is None:
            default = re.match(r"(?P<name>[\[<][^\[\]<>]{1,80}[\]>])\s{2,}(?P<text>.*)", words)
            if named and default is not None and self.kind == "commands":
                return self.begin_match("default", default, line, indent)
            return False
        if named and self.kind != "commands" and not found["text"]:
            return False
        while self.above and self.above[-1][0] >= indent:
            self.above.pop()
        path = self.above[-1][1] + " " if self.above else ""
        entry = {"name": found["name"], "text": found["text"], "takes": found["args"] or ""}
        entry["path"] = path
        length = len(line) - indent - len(found["text"]) if found["text"] else 0
        self.begin("commands", entry, line, indent, length)
        self.above.append((indent, path + re.split(r"\s?[|/,]", entry["name"])[0]))
        return True

    def begin_match(self, kind: str, found: re.Match[str] | None, line: str, indent: int) -> bool:
        """Begin an entry from a match; whether there was one."""
        if found is None:
            return False
        parts = found.groupdict()
        entry = {"name": parts["name"], "text": parts["text"], "takes": parts.get("args") or ""}
        text = parts["text"]
        length = len(line) - indent - len(text) if text else 0
        self.begin(kind, entry, line, indent, length)
        return True

    def begin(self, kind: str, entry: dict[str, Any], line: str, indent: int, length: int) -> None:
        """Begin an entry whose text stands `length` columns after its beginning (0: no text)."""
        if len(self.found) >= ENTRIES_LIMIT:
            self.indent = -1
            return
        entry["line"] = re.sub(r"\s+", " ", line).strip()
        self.found.append((kind, entry))
        self.indent = indent
        self.column = indent + length if length else -1

    def result(self, lines: list[str]) -> Help:
        """What was read."""
        parts: dict[str, list[Entry]] = {}
        options: list[Option] = []
        for kind, entry in self.found:
            text = entry["text"].strip()
            flat = re.sub(r"\s+", " ", text)
            if kind == "options":
                options.append(finish_option(entry, text, flat))
                continue
            for found in entries_of(kind, entry, flat):
                parts.setdefault(kind, []).append(found)
        arguments = parts.get("arguments", []) + parts.get("default", [])
        commands = parts.get("commands", [])
        known = {entry.name.casefold() for entry in arguments}
        for line in self.usage:
            for name in usage_arguments(line, {entry.name for entry in commands}):
                if name.casefold() not in known:
                    known.add(name.casefold())
                    arguments.append(Entry(name, "", f"usage: {line}"))
        return Help(
            tuple(options),
            tuple(commands),
            tuple(arguments),
            tuple(self.usage),
            tuple(parts.get("exit codes", [])),
            tuple(lines),
        )


def kind_of(words: str) -> str:
    """What the part of the help below a heading describes."""
    folded = words.rstrip(":").casefold()
    return next((kind for kind, pattern in KINDS if re.search(pattern, folded)), "other")


def parse_option(words: str) -> tuple[dict[str, Any], int]:
    """An option's names, value and text; and where its text begins (0: it has none yet)."""
    names: list[str] = []
    value, optional, place = "", False, 0
    while len(names) < 12:
        name = re.compile(NAME).match(words, place)
        if name is None:
            break
        names += spelled_out(name.group())
        place = name.end()
        for _ in range(4):
            found = re.compile(VALUE).match(words, place)
            if found is None and not value:
                found = re.compile(COLUMN_VALUE).match(words, place)
            if found is None:
                break
            word = next(v for key, v in found.groupdict().items() if v and key != "equals")
            flag = word.startswith("[") and "|" not in word and not found.groupdict().get("joined")
            optional = optional or (flag and not value) or "maybe" in word
            optional = optional or bool(found.groupdict().get("maybe"))
            value = value or word
            place = found.end()
        between = re.compile(BETWEEN).match(words, place)
        if between is None:
            break
        place = between.end()
    rest = words[place:]
    text = rest.lstrip(" :\u2013\u2014*-") if not rest.startswith("  -") else rest.strip()
    length = len(words) - len(text) if text else 0
    if value in NO_VALUE:
        value = ""
    return {"names": names, "value": value, "optional": optional, "text": text}, length


def spelled_out(name: str) -> list[str]:
    """The names that `--[no-]x` stands for."""
    for mark in ("[no-]", "(no-)"):
        if mark in name:
            return [name.replace(mark, ""), name.replace(mark, "no-")]
    return [name]


def finish_option(entry: dict[str, Any], text: str, flat: str) -> Option:
    """An option with all its text."""
    value = entry["value"]
    typed = re.search(TYPED, flat)
    if not value and typed is not None and typed[1] != "boolean":
        value = typed[1]
    return Option(
        tuple(dict.fromkeys(entry["names"])),
        value,
        entry["optional"],
        choices_of(value, text, flat),
        flat,
        entry["line"],
    )


def choices_of(value: str, text: str, flat: str) -> tuple[str, ...]:
    """The words that an option's value may be, as far as the help lists them."""
    listed = re.search(
        r"(?i)[\[(<](?:choices|possible values|options|values|one of)\s*:\s*([^\])>]{1,600})",
        flat,
    )
    if listed is not None:
        return cleaned(re.split(r"[,|]", re.split(r", (?:default|preset):", listed[1])[0]))
    bars = value.strip("<>[]{}()=.")
    if re.fullmatch(r"[\w.-]+(?:[|,][\w.-]+)+", bars):
        return cleaned(re.split(r"[|,]", bars))
    bullets = re.findall(r"(?m)^[-*\u2022] ([\w.-]+)(?::|\s+[-\u2013\u2014]|\s*$)", text)
    if len(bullets) > 1:
        return cleaned(bullets)
    inner = re.search(r"[(\[]([\w.-]{1,40}(?:\|[\w.-]{1,40}){1,20})[)\]]", flat)
    if inner is not None:
        return cleaned(inner[1].split("|"))
    return prose_choices(flat)


def prose_choices(flat: str) -> tuple[str, ...]:
    """The choices in words such as `Mode: text (default), json, or rpc`."""
    for found in re.finditer(r"(?i)(?::|\bone of|\() ?(?=[\"'`]?\w)", flat[:TEXT_LIMIT]):
        words = flat[found.end() : found.end() + 400]
        if found.group().startswith("("):
            words = words.partition(")")[0]
        names: list[str] = []
        place = 0
        item = re.compile(
            r"[\"'`]?([A-Za-z][\w-]{0,40})[\"'`]?(?: ?\([^()]{0,80}\))?"
            r"(,? or |, ?|\.(?:\s|$)|\s*$|;)"
        )
        while len(names) < 20:
            one = item.match(words, place)
            if one is None:
                # The words after the last choice are not separated from it.
                last = re.match(r"[\"'`]([\w-]{1,40})[\"'`]|([\w-]{1,40})(?= \()", words[place:])
                if last is not None and len(names) > 0:
                    names.append(last[1] or last[2])
                break
            names.append(one[1])
            place = one.end()
            if not one[2].strip(" ,") and "," not in one[2] and "or" not in one[2]:
                break
            if one[2][:1] in ".;":
                break
        if len(names) > 1:
            return cleaned(names)
    return ()


def cleaned(words: Iterable[str]) -> tuple[str, ...]:
    """Choices without quotes and spaces; those that hold anything else are none."""
    stripped = [re.sub(r"[\"'`\s]", "", word) for word in words]
    return tuple(dict.fromkeys(w for w in stripped if re.fullmatch(r"[A-Za-z0-9][\w.-]*", w)))


def entries_of(kind: str, entry: dict[str, Any], flat: str) -> list[Entry]:
    """What a line under commands, arguments or exit codes describes."""
    if kind == "default":
        return [Entry(name, flat, entry["line"]) for name in usage_arguments("x " + entry["name"])]
    if kind != "commands":
        return [Entry(entry["name"], flat, entry["line"])]
    names = re.split(r"\s?[|/,]\s?", entry["name"])
    names[0] = entry.get("path", "") + names[0]
    told = re.search(r"[\[(]alias(?:es)?: ([\w, -]+)[\])]", flat)
    others = [*names[1:], *(re.split(r",\s*", told[1]) if told else [])]
    return [Entry(names[0], flat, entry["line"], tuple(others), entry["takes"].strip())]


def usage_arguments(line: str, commands: Iterable[str] = ()) -> list[str]:
    """The names of the arguments in a usage line, in order; options and sub-commands left out."""
    names: list[str] = []
    skip = False
    for number, item in enumerate(usage_items(line)):
        inner = re.sub(r"(?:\.{2,3}|\u2026)", "", item).strip("[]<>{}()* ")
        if item.startswith("-") or inner.startswith("-"):
            # The value of an option that must be given stands after it.
            skip = item.startswith("-") and "=" not in item
            continue
        word = inner.split(" ")[0].strip("[]<>{}()@")
        placeholder = item[:1] in "[<" or re.fullmatch(r"[A-Z][A-Z0-9_-]*s?", word) is not None
        if number == 0 or skip or not placeholder:
            skip = False
            continue
        if not re.fullmatch(r"\w[\w -]*", word) or word.casefold() in NOT_ARGUMENTS:
            continue
        if word not in commands and " -" not in inner:
            names.append(word)
    return list(dict.fromkeys(names))


def usage_items(line: str) -> list[str]:
    """The words of a usage line; what stands in brackets is one."""
    items: list[str] = []
    word, depth = "", 0
    for letter in line[:LINE_LIMIT]:
        if letter in "[<{(":
            depth += 1
        elif letter in "]>})":
            depth = max(0, depth - 1)
        if letter == " " and depth == 0:
            items += [word] if word else []
            word = ""
        else:
            word += letter
    return [*items, word] if word else items


# --- What the options of agent CLIs are for ------------------------------------------------------

# How agent CLIs say that they work without a person, in flags, sub-commands and their texts.
ALONE = (
    r"(?:non-?\s?interactiv|head-?less|one-?\s?(?:shot|off)|programmatic|print mode|print result"
    r"|execute mode|useful for pipes|unattended|skips? (?:the )?interactive"
    r"|(?:response|answer|result|output|reply)s?\b[^.]{0,40}\bexit"
    r"|(?:single|one) (?:user )?(?:prompt|message|task|query|instruction|turn)"
    r"|(?:then|and) exits?\b|exits? (?:immediately )?(?:when|after)"
    r"|(?:without|no) (?:the |a )?(?:tui|interactive (?:ui|mode|session)))"
)
BEGINS_ALONE = (
    r"(?i)(?:(?:run|start|launch|execute|use|enable|work|switch|print|process|send)s?\b[^.;]{0,40}?)?\b"
    + ALONE
)
ALONE_BY_DEFAULT = (
    r"(?i)defaults? to (?:one-?shot|non-?interactive|headless)"
    r"|(?:one-?shot|headless|non-?interactive) by default"
)
ALONE_NAMES = frozenset(
    ["print", "exec", "execute", "headless", "non-interactive", "noninteractive", "one-shot",
     "oneshot", "batch", "no-interactive", "single"]
)  # fmt: skip
RUN_COMMANDS = ("exec", "run", "prompt", "ask", "headless", "print", "execute", "query", "task")
PROMPT_NAMES = frozenset(
    ["prompt", "prompts", "message", "messages", "msg", "query", "task", "instruction",
     "instructions", "input", "text", "question", "request", "goal", "initial_prompt",
     "initial-prompt", "user-prompt", "command", "print", "exec", "execute", "headless", "ask"]
)  # fmt: skip
PROMPT_TEXT = r"(?i)\b(?:prompt|message|instruction|query|task|question|problem)s?\b"
NO_PROMPT = r"(?i)system|append|template|interactiv|\bfiles?\b|commit|suggest|path to"
TALKS = r"(?i)(?<!non-)(?<!non)(?<!non )\binteractive(?:ly)?\b"
READS_STDIN = (
    r"(?i)\b(?:read|taken|accepted|provided|given|passed|argument,? or|or) (?:from|via|on|through) "
    r"(?:the )?(?:stdin|standard input)"
)
PROMPT_FILE = r"(?:prompt|message|instruction|task)s?-?file|file"
DASH = r"[`'\"(]-[`'\")]"
TALK_TEXT = r"(?i)\binteractiv|\bchat\b|\btui\b|\brepl\b|\bstarts? (?:a|an|the|new)\b"
TALK_COMMANDS = ("chat", "tui", "interactive", "session", "start", "repl", "go", "talk", "code")
OLD = r"(?i)deprecated"
JSON = ("json", "stream-json", "jsonl", "json-stream", "stream_json", "ndjson", "streaming-json")
BYPASS_NAMES = (
    r"dangerously.*(?:bypass|skip|allow).*|yolo|(?:skip|bypass)-(?:permissions|approvals?|confirm\w*)"
    r"|allow-all(?:-tools|-permissions)?|auto-(?:approve|accept)(?:-all)?|yes-(?:always|to-all)"
    r"|no-(?:confirm\w*|approvals?)|always-(?:approve|allow|yes)|trust-all(?:-tools)?|full-auto"
    r"|approve-all|unrestricted"
)
BYPASS_MAYBE = r"yes|auto|force|y|full-access|autopilot|afk|unsafe|auto-?run"
BYPASS_TEXT = (
    r"(?i)(?:bypass|skip|disable|without|no) (?:all )?(?:\w+ ){0,2}"
    r"(?:permission|approval|confirm|prompting)"
    r"|auto(?:matically)?[- ]?(?:approve|accept|allow)|(?:approve|accept|allow|enable|grant)s? all"
    r"|all (?:tools?|permissions|actions?|tool calls) (?:are )?(?:allowed|approved|to run)"
    r"|never (?:ask|interrupt|prompt)|without (?:asking|confirm|prompt)|yolo|always (?:say )?yes"
)
BYPASS_NOT = r"(?i)as an option|still ask|hook trust|read-only|deprecated|prompt(?:ing)? only for"
APPROVAL_NAMES = r"approval-?(?:mode|policy)|permission-?mode|ask-for-approval|approvals?|auto|mode"
BYPASS_CHOICES = (
    "bypassPermissions", "bypass", "yolo", "full-auto", "never", "auto-approve", "allow-all",
    "full", "unrestricted", "bypass_permissions",
)  # fmt: skip
SHOWS_LOGIN = ("status", "whoami", "show", "list", "ls", "check")


class Wanted(NamedTuple):
    """What an option is known by: its names, and the words of its text."""

    names: str
    text: str = ""
    sure: str = "$^"
    not_names: str = "$^"
    not_text: str = "$^"
    value: bool | None = True


MODEL = Wanted("model|model-name|model-id|llm|llm-model", not_text=r"(?i)fallback", value=None)


WORK_DIR = Wanted(
    r"cd|cwd|work-?dir|working-?dir(?:ectory)?|workspace(?:-root|-dir)?|dir(?:ectory)?|chdir|root"
    r"|project(?:-dir|-root)?|repo(?:-path|-dir)?|path|c|w|d",
    r"(?i)working (?:root|directory)|directory (?:to|for) (?:run|work)|workspace (?:root|directory)"
    r"|change (?:to (?:this|the) )?directory|project (?:root|directory)|run in\b",
    sure=r"cd|cwd|work-?dir|working-?dir(?:ectory)?|chdir",
    not_names=r"add|skill|plugin|session|config|log|include",
    not_text=r"(?i)additional",
)


SANDBOX = Wanted("sandbox|sandbox-mode|sandbox-policy", value=None)


ADD_DIR = Wanted(
    r"add-dirs?|include-directories|add-directory|additional-dirs?|allow-dir|add-dir-path"
)


LOGS = Wanted(
    r"log-?(?:file|dir|path)|logs-?(?:dir|path)|debug-?file|log|sessions?-dir|transcript(?:-file)?"
    r"|chat-history-file|trajectory|output-dir"
)


OFFLINE = Wanted("offline|no-network", value=False)


RESUME = Wanted(
    r"resume|session|session-id|continue|conversation|conversation-id|thread|chat|name|restore",
    r"(?i)resum|continu|existing|specific session|load",
    sure=r"resume|restore",
    not_text=r"(?i)\bdelete|\bfork|list (?:all|avail)|agent by name|new session with|for the new",
)


CONTINUE = Wanted(
    "continue|resume|last|resume-last|continue-last",
    r"(?i)last|most recent|previous|latest",
    not_text=r"(?i)select|pick",
    value=False,
)


NEW_SESSION = Wanted(
    r"session-id|session|conversation-id|conversation|thread-id|chat-id|id|name",
    r"(?i)\bnew (?:session|conversation|thread)|specific (?:session |conversation )?(?:id|uuid)"
    r"|specify (?:a|the) (?:session|conversation) id|random name|creates? (?:it|one)",
    not_text=r"(?i)^set a (?:display )?name|display name|set a name",
)


def find(options: Iterable[Option], wanted: Wanted) -> Option | None:
    """The option that fits best, or None."""
    best: tuple[int, Option] | None = None
    for option in options:
        if wanted.value is not None and wanted.value != bool(option.value):
            continue
        if any(re.search(wanted.not_names, word) for word in option.words):
            continue
        if re.search(wanted.not_text, option.text) or re.search(OLD, option.text):
            continue
        named = any(re.fullmatch(wanted.names, word) for word in option.words)
        sure = any(re.fullmatch(wanted.sure, word) for word in option.words)
        told = bool(wanted.text and re.search(wanted.text, option.text))
        if not named or not (sure or told or not wanted.text):
            continue
        score = 2 * sure + told
        if best is None or score > best[0]:
            best = (score, option)
    return best[1] if best else None


def names_of(entry: Entry) -> tuple[str, ...]:
    """The names that a sub-command is called by."""
    return (entry.name, *entry.aliases)


def login_rank(entry: Entry) -> int:
    """How near a sub-command is to telling whether somebody is logged in."""
    named = names_of(entry)
    ranks = [SHOWS_LOGIN.index(name) for name in named if name in SHOWS_LOGIN]
    return min(ranks, default=len(SHOWS_LOGIN))


def prompt_argument(found: Help) -> Entry | None:
    """The argument that is the prompt, or None."""
    for entry in found.arguments:
        name = entry.name.casefold().strip("@.")
        if name in PROMPT_NAMES - {"command", "print", "exec", "text", "input"}:
            return entry
        if re.search(PROMPT_TEXT, entry.text) and name not in ("command", "session_id", "file"):
            return entry
    return None


def prompt_option(found: Help) -> Option | None:
    """The option whose value is the prompt, or None."""
    for option in found.options:
        if not option.value or not option.words & PROMPT_NAMES:
            continue
        about = re.sub(r"(?i)default: prompt interactively", "", option.text)
        other = re.search(NO_PROMPT, f"{option.name} {about}") or re.search(OLD, about)
        if re.search(PROMPT_TEXT, about) and not other:
            return option
    return None


def asks_and_talks(option: Option) -> bool:
    """Whether an option takes a prompt and then stays interactive."""
    named = any(
        re.fullmatch(r"(?:prompt-)?interactive|interactive-prompt|initial-prompt", word)
        for word in option.words
    )
    talks = re.search(TALKS, option.text) is not None
    return named and bool(option.value) and talks and bool(re.search(PROMPT_TEXT, option.text))


def output_words(found: Help) -> tuple[Option | None, list[str]]:
    """The option for an output that programs read, and its words."""
    for option in found.options:
        if re.search(r"(?i)input|schema", f"{option.name} {option.text[:30]}"):
            continue
        about = re.search(r"(?i)format|output|mode", f"{option.name} {option.text}")
        choice = next((c for c in JSON if c in option.choices), None)
        if choice is None and option.words & {"output-format", "format"}:
            choice = "json" if re.search(r"(?i)\bjson\b", option.text) else None
        if about and option.value and choice is not None:
            return option, [option.name, choice]
    for option in found.options:
        named = option.words & {"json", "stream-json", "jsonl", "json-output", "output-json"}
        if named and not option.value and not re.search(OLD, option.text):
            return option, [option.name]
    return None, []


def bypass_words(found: Help) -> tuple[Option | None, list[str]]:
    """The option that lets an agent work without asking, and its words."""
    best: tuple[int, Option] | None = None
    for option in found.options:
        if re.search(BYPASS_NOT, option.text) or (option.value and not option.optional):
            continue
        sure = any(re.fullmatch(BYPASS_NAMES, word) for word in option.words)
        maybe = any(re.fullmatch(BYPASS_MAYBE, word) for word in option.words)
        told = re.search(BYPASS_TEXT, option.text) is not None
        score = 6 * sure + 3 * maybe + 3 * told
        if (sure or (maybe and told)) and (best is None or score > best[0]):
            best = (score, option)
    if best is not None:
        return best[1], [best[1].name]
    for option in found.options:
        if any(re.fullmatch(APPROVAL_NAMES, word) for word in option.words):
            choice = next((c for c in BYPASS_CHOICES if c in option.choices), None)
            if choice is not None:
                return option, [option.name, choice]
    return None, []


def approval_modes(found: Help) -> Option | None:
    """The option that tells what an agent may do without asking."""
    for option in found.options:
        named = any(re.fullmatch(APPROVAL_NAMES, word) for word in option.words)
        about = f"{option.name} {option.text}"
        if option.choices and named and re.search(r"(?i)approv|permission|confirm", about):
            return option
    return None


# --- How a prompt is given ------------------------------------------------------------------------


class Way(NamedTuple):
    """One way to give a prompt to a program that works alone.

    `evidence` are the options, sub-commands and arguments that it follows from, each with the
    sub-command whose help lists it.
    """

    score: int
    args: list[str]
    mode: str
    prompt_arg: str
    evidence: list[tuple[Option | Entry, tuple[str, ...]]]
    command: tuple[str, ...]


def ways_in(command: tuple[str, ...], found: Help) -> list[Way]:
    """The ways that the options and arguments of a help offer."""
    ways = [way for o in found.options if (way := option_way(command, found, o)) is not None]
    prompt = prompt_argument(found)
    if prompt is not None and re.search(ALONE_BY_DEFAULT, prompt.text):
        ways.append(Way(7, list(command), "argument", "", [(prompt, command)], command))
    return ways


def works_alone(text: str) -> bool:
    """Whether a text says that there is a mode without a person."""
    return re.search("(?i)" + ALONE, text) is not None


def option_way(command: tuple[str, ...], found: Help, option: Option) -> Way | None:
    """The way that one option offers, or None."""
    alone = works_alone(option.text)
    named = bool(option.words & ALONE_NAMES)
    prompts = bool(option.words & PROMPT_NAMES)
    begins = re.match(BEGINS_ALONE, option.text) is not None
    if any(re.fullmatch(PROMPT_FILE, word) for word in option.words):
        fits = alone and option.value and re.search(PROMPT_TEXT, option.text)
        way = Way(4, list(command), "file", option.name, [(option, command)], command)
        return way if fits and not re.search(OLD, option.text) else None
    if not (named or prompts or begins):
        return None
    about_prompt = re.search(PROMPT_TEXT, option.text) is not None
    score = 5 * alone + 3 * named - 6 * bool(re.search(OLD, option.text))
    score += 2 * (prompts and about_prompt and (bool(option.value) or alone))
    if score < 3:
        return None
    evidence: list[tuple[Option | Entry, tuple[str, ...]]] = [(option, command)]
    if not option.value and (named or not prompts):
        return switch_way(command, found, option, score)
    if re.search(READS_STDIN, option.text) and (option.optional or not option.value):
        return Way(score, [*command, option.name], "stdin", "", evidence, command)
    if not prompts and not about_prompt:
        return None
    return Way(score, list(command), "argument", option.name, evidence, command)


def switch_way(command: tuple[str, ...], found: Help, option: Option, score: int) -> Way | None:
    """The way by an option without a value: where the prompt goes beside it."""
    args = [*command, option.name]
    prompt = prompt_argument(found)
    other = prompt_option(found)
    evidence: list[tuple[Option | Entry, tuple[str, ...]]] = [(option, command)]
    if prompt is not None:
        evidence.append((prompt, command))
        return argument_way(score, args, prompt, option.text, evidence, command)
    if other is not None:
        evidence.append((other, command))
        return Way(score, args, "argument", other.name, evidence, command)
    if re.search(READS_STDIN, option.text):
        return Way(score, args, "stdin", "", evidence, command)
    return None


def argument_way(
    score: int,
    args: list[str],
    prompt: Entry,
    text: str,
    evidence: list[tuple[Option | Entry, tuple[str, ...]]],
    command: tuple[str, ...],
) -> Way:
    """The way where the prompt is an argument, or is read from stdin where the texts say so."""
    if re.search(READS_STDIN, f"{text} {prompt.text}"):
        dash = ["-"] if re.search(DASH, prompt.text) else []
        return Way(score, [*args, *dash], "stdin", "", evidence, command)
    return Way(score, args, "argument", "", evidence, command)


def command_ways(command: tuple[str, ...], entry: Entry, found: Help) -> list[Way]:
    """The ways of a sub-command: by its arguments, or by its own options."""
    score = 5 * works_alone(entry.text) + 3 * (command[-1] in RUN_COMMANDS)
    listed: list[tuple[Option | Entry, tuple[str, ...]]] = [(entry, command[:-1])]
    prompt = prompt_argument(found)
    ways = [
        way._replace(evidence=[*listed, *way.evidence], score=max(way.score, score + 1))
        for way in ways_in(command, found)
        if way.score >= 5 or prompt is None
    ]
    if prompt is not None and score:
        evidence = [*listed, (prompt, command)]
        ways.append(argument_way(score + 2, list(command), prompt, "", evidence, command))
    return ways


def shown_way(command: tuple[str, ...], entry: Entry, found: Help) -> Way | None:
    """The way of a sub-command without a help of its own, where an example gives it a prompt."""
    if not works_alone(entry.text):
        return None
    words = r"(?<![\w-])" + re.escape(" ".join(command)) + r"\b[^|#]*[\"'][^\"']+[\"']\s*$"
    for line in found.lines:
        if re.search(words, line):
            example = Entry(entry.name, "", line.strip())
            return Way(7, list(command), "argument", "", [(entry, ()), (example, ())], ())
    return None


def talk_command(commands: dict[str, Entry]) -> Entry | None:
    """The sub-command that talks with a person, or None."""
    listed = [commands[name] for name in TALK_COMMANDS if name in commands]
    return next((entry for entry in listed if re.search(TALK_TEXT, entry.text)), None)


def likely_commands(found: Help) -> list[str]:
    """Sub-commands that may run one prompt, the likeliest first."""
    ranked: list[tuple[int, str]] = []
    for entry in found.commands:
        if re.search(OLD, entry.text) or entry.name in ("help", "version"):
            continue
        score = 4 if entry.name in RUN_COMMANDS else 0
        score += 2 * (works_alone(entry.text) and not re.match(r"(?i)manage|starts? a", entry.text))
        score += entry.name in TALK_COMMANDS and bool(re.search(r"(?i)agent|prompt", entry.text))
        if score:
            ranked.append((-score, entry.name))
    return [name for _, name in sorted(ranked)[:3]]
