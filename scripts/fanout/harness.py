"""A mapping says how to drive one agent CLI: load it, check it, build an argument list."""

from __future__ import annotations

import json
import os
import re

from fanout.edition import AGENT
from fanout.errors import SkillError, missing, usage
from fanout.fields import NamedTuple
from fanout.process import find_program, run
from fanout.records import is_name, is_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeGuard

SKILL_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_MAPPING = os.path.join(SKILL_ROOT, "examples", f"harness-{AGENT}.json")

TEMPLATE = "harness-template.json"
PROMPT_MODES = ("argument", "paste", "file", "none")
RUN_PROMPT_MODES = ("argument", "stdin", "file", "none")
# What may stand in braces in a mapping's arguments. A run takes up no conversation.
PLACEHOLDERS = (
    "worktree",
    "git_common_dir",
    "prompt_file",
    "session_id",
    "name",
    "record_dir",
)
RUN_PLACEHOLDERS = tuple(name for name in PLACEHOLDERS if name != "session_id")
# One argument may hold 32 pages, the closing NUL included (Linux: MAX_ARG_STRLEN).
ARGUMENT_LIMIT = 131_071
SIZE_LIMIT = 1_000_000
PATTERN_LIMIT = 500
KEY_LIMIT = 100
SESSION_ID = r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,199}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# The pieces of a pattern that matter for `repeats_a_repeat`: what is escaped or in brackets is one.
PIECE = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|(?P<repeat>[*+]|\{\d*,?\d*\})|."
# Comments and the flag for them: what stands in one is no piece.
HIDING = r"\(\?(?:#|[aiLmsu]*x)"
TITLE = "title:"
# What agents put before and after a line that they repeat.
MARKERS = " >|\u2502\u2503\u276f\u203a\u2026.*-+"

# The whole form of a mapping: each path, in order, with the kind of value that stands there. Which
# keys are known, what is missing, the blank mapping and the schema's test all follow from it.
FORM = {
    "name": "name",
    "display_name": "text",
    "executable": "program",
    "version.args": "words",
    "version.verified": "text",
    "version.on": "date",
    "interactive.args": "words",
    "interactive.prompt_mode": "prompt mode",
    "interactive.prompt_arg": "text",
    "interactive.work_dir_arg": "text",
    "interactive.ready": "patterns",
    "interactive.busy": "patterns",
    "interactive.idle": "patterns",
    "interactive.waiting": "patterns",
    "interactive.dialogs": "dialogs",
    "interactive.submit_keys": "keys",
    "interactive.leave_keys": "keys",
    "noninteractive.args": "words",
    "noninteractive.prompt_mode": "run prompt mode",
    "noninteractive.prompt_arg": "text",
    "noninteractive.work_dir_arg": "text",
    "noninteractive.output_args": "words",
    "noninteractive.exit_codes": "exit codes",
    "noninteractive.zero_without_work": "yes/no",
    "session.id_source": "id source",
    "session.new_args": "words",
    "session.resume_args": "words",
    "approval.default": "text",
    "approval.bypass_args": "words",
    "approval.note": "text",
    "sandbox.args": "words",
    "sandbox.note": "text",
    "model.flag": "text",
    "network": "text",
    "auth.check_args": "words",
    "environment.needs": "variables",
    "environment.hide": "variables",
    "parallel.safe": "yes/no",
    "parallel.note": "text",
    "logs": "text",
    "cleanup.survivors": "patterns",
    "cleanup.leftovers": "words",
    "skills.project": "text",
    "skills.user": "text",
    "skills.invoke": "text",
    "notes": "notes",
}
REQUIRED = ("name", "executable")
SECTIONS = {
    section: tuple(path.partition(".")[2] for path in FORM if path.startswith(f"{section}."))
    for section in dict.fromkeys(path.partition(".")[0] for path in FORM if "." in path)
}
TOP_LEVEL = tuple(dict.fromkeys(path.partition(".")[0] for path in FORM))
DIALOG = ("match", "keys", "ask", "note")
# A conversation whose id we choose, or the prefix of a pattern that finds the id in what the agent
# printed.
ASSIGNED = "assigned"
LOG = "log:"
# What the note of `version.verified` says until somebody has tried what a help claims.
UNTRIED = "drafted from the help, nothing was tried"
# How long a program may take to say its version, in seconds; Python CLIs take some.
VERSION_WAIT = 10.0

# What a program asks before it takes a task, in the words that agent CLIs use. A mapping's own
# `waiting` patterns come first; these catch a dialog that its author did not meet. The words begin
# a row, after a frame, a marker or a number: within a sentence they are somebody's prose. A pattern
# is looked for only where one of the words before it stands: most screens show none of them.
ROW_START = r"(?i)^[^\w\n]*(?:\d{1,2}[.)\]] *)?"
COMMON_DIALOGS = (
    (
        "trust dialog",
        ("trust",),
        ROW_START
        + r"(?:do you trust\b"
        + r"|(?:yes, )?(?:i )?trust (?:this|the) (?:folder|files|directory|workspace))",
    ),
    (
        "login dialog",
        ("log", "sign", "api key"),
        ROW_START
        + r"(?:(?:please )?(?:log|sign) ?in (?:to|with) |(?:please )?(?:enter|paste) your api key)",
    ),
    (
        "permission dialog",
        ("allow", "would you like", "do you want"),
        ROW_START
        + r"(?:(?:yes, )?allow (?:this|command|once)\b|allow execution of\b|would you like to run\b"
        + r"|do you want to (?:proceed|create|run|allow)\b)",
    ),
)
# A question may end any row, so only the last rows count: those above them were answered.
YES_NO = r"(?i)[\[(](?:y/n|yes/no)[\])]\W*$"
YES_NO_ROWS = 6
# So many of the last rows that hold something show what a program asks now (see `live_part`).
LIVE_ROWS = 20
# A piece of a row ends where a frame or another column begins.
COLUMN_END = r"\s{2,}|[\u2500-\u259f]|\n|$"


class Rules(NamedTuple):
    """Patterns for one look of the screen.

    Each is a regular expression, searched in the visible text; with the prefix `title:`, in the
    pane's title.
    """

    patterns: tuple[str, ...]

    def match(self, text: str, title: str, said: str = "") -> str | None:
        """What matched, or None. Text that repeats `said` (see `is_echo`) does not count."""
        for pattern in self.patterns:
            if pattern.startswith(TITLE):
                found = compiled(pattern).search(title)
            else:
                # No pattern matches an empty text, and to compile one costs more than to search.
                found = search(pattern, text, said) if text else None
            if found is not None:
                return found.group().strip() or pattern
        return None

    def lowest(self, text: str) -> int:
        """Where the lowest match on a screen begins; -1 without one."""
        patterns = [pattern for pattern in self.patterns if not pattern.startswith(TITLE)]
        found = [m.start() for p in patterns for m in compiled(p).finditer(text)]
        return max(found, default=-1)


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern as it is searched; a title is one line.

    Raises SkillError `invalid-mapping` (exit 2): one from a record was checked long ago.
    """
    try:
        return re.compile(pattern.removeprefix(TITLE), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise usage("invalid-mapping", f"{pattern!r} is no regular expression: {error}") from error


def search(pattern: str, text: str, said: str) -> re.Match[str] | None:
    """The first place on a screen that matches and does not only repeat what the agent was told."""
    found = compiled(pattern).finditer(text)
    return next((place for place in found if not is_echo(place, said)), None)


def is_echo(place: re.Match[str], said: str) -> bool:
    """Whether a piece of the screen repeats a prompt: an input line or a transcript shows it.

    It does when the prompt holds the matched words with the rest of their row; marks alone, such as
    an input line's, repeat nothing.
    """
    if not said:
        return False
    rest = place.string[place.end() :]
    end = re.search(COLUMN_END, rest)
    row = place.group() + (rest[: end.start()] if end else rest)
    words = re.sub(r"\s+", " ", row).strip(MARKERS)
    return words != "" and words in re.sub(r"\s+", " ", said)


class Dialog(NamedTuple):
    """A question that an agent is known to ask as it starts.

    Either `keys` answer it, or it is left to a person, who is told `ask`.
    """

    match: Rules
    keys: tuple[str, ...]
    ask: str


class Harness(NamedTuple):
    """How to drive one agent CLI interactively. `mapping` is what it was loaded from."""

    name: str
    executable: str
    args: tuple[str, ...]
    prompt_mode: str
    prompt_arg: str
    work_dir_arg: str
    ready: Rules
    busy: Rules
    idle: Rules
    waiting: Rules
    dialogs: tuple[Dialog, ...]
    submit_keys: tuple[str, ...]
    leave_keys: tuple[str, ...]
    id_source: str
    new_args: tuple[str, ...]
    resume_args: tuple[str, ...]
    needs: tuple[str, ...]
    hide: tuple[str, ...]
    parallel: bool
    mapping: dict[str, Any]


def load_harness(mapping_file: str | None, agent_cli: str | None) -> Harness:
    """The harness that the options name.

    A mapping file wins; else an example whose executable has the base name of `agent_cli`; else
    a generic one. Without both it is the default mapping.
    """
    if mapping_file is not None:
        harness = read_mapping(mapping_file)
        return harness if agent_cli is None else harness._replace(executable=agent_cli)
    if agent_cli is None:
        return example_for(AGENT) or read_mapping(DEFAULT_MAPPING)
    found = example_for(agent_cli)
    if found is not None:
        return found._replace(executable=agent_cli)
    name = os.path.basename(agent_cli)
    return parse_mapping(
        {"name": name if is_name(name) else "agent", "executable": agent_cli}, "--agent-cli"
    )


def example_for(agent_cli: str) -> Harness | None:
    """The bundled mapping for a program, by its base name.

    It stands in `harness-BASE.json`. Where others begin with `harness-BASE-` and are of the same
    program, the one is taken that was verified with the installed program's major version.
    """
    folder, wanted = os.path.dirname(DEFAULT_MAPPING), os.path.basename(agent_cli)
    first = f"harness-{wanted}.json"
    entries = os.listdir(folder) if os.path.isdir(folder) else []
    if first not in entries or first == TEMPLATE:
        return None
    others = sorted(
        name for name in entries if name.startswith(f"harness-{wanted}-") and name.endswith(".json")
    )
    paths = [os.path.join(folder, name) for name in (first, *others)]
    values = {path: read_value(path) for path in paths}
    same = [path for path in paths if program_of(values[path]) == wanted]
    if not same:
        return None
    usual = parse_mapping(values[same[0]], same[0])
    version = installed_version(usual, agent_cli) if len(same) > 1 else ""
    fits = [path for path in same if version and verified_major(values[path]) == version]
    if not fits or fits[0] == same[0]:
        return usual
    return parse_mapping(values[fits[0]], fits[0])


def program_of(value: Any) -> str:
    """The base name of a mapping's program, as far as the value is a mapping."""
    return os.path.basename(str(value.get("executable"))) if isinstance(value, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def installed_version(harness: Harness, agent_cli: str) -> str:
    """The major version that a program says it has; empty when it says none."""
    program = find_program(agent_cli)
    asked: Any = value_at(harness.mapping, "version.args") or []
    if program is None or not asked:
        return ""
    try:
        done = run([program, *([asked] if isinstance(asked, str) else asked)], timeout=VERSION_WAIT)
    except SkillError:
        return ""
    number = re.search(r"(\d+)\.\d+", done.text)
    return number[1] if done.code == 0 and number else ""


def verified_major(value: Any) -> str:
    """The major version that a mapping was verified with."""
    return str(value_at(value, "version.verified") or "").partition(".")[0]


def read_mapping(path: str) -> Harness:
    """Read a mapping file. Raises SkillError `invalid-mapping` (exit 2) with the JSON path."""
    return parse_mapping(read_value(path), path)


def read_value(path: str) -> Any:
    """What a mapping file holds, not looked at yet. Raises SkillError `invalid-mapping`."""
    try:
        with open(path, "rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise usage("invalid-mapping", f"cannot read the mapping {path!r}: {error}") from error
    if len(content) > SIZE_LIMIT:
        raise usage("invalid-mapping", f"the mapping {path!r} is larger than {SIZE_LIMIT} bytes")
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise usage(
            "invalid-mapping", f"the mapping {path!r} is not valid JSON: {error}"
        ) from error


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


# --- The form -----------------------------------------------------------------------------


class UnfitError(Exception):
    """A value that cannot stand where it stands: its JSON path, and what was expected."""

    def __init__(self, where: str, expected: str) -> None:
        super().__init__(f"{where} must be {expected}")


def blank() -> dict[str, Any]:
    """A mapping with every path of the form, each null, and no notes."""
    made: dict[str, Any] = {}
    for path in FORM:
        top, _, key = path.partition(".")
        if key:
            made.setdefault(top, {})[key] = None
        else:
            made[top] = None
    return {**made, "notes": {}}


def is_untried(mapping: dict[str, Any]) -> bool:
    """Whether a mapping is still what a probe has drafted, by its own word."""
    notes = mapping.get("notes")
    return is_object(notes) and UNTRIED in str(notes.get("version.verified"))


def unknown_paths(mapping: dict[str, Any]) -> list[str]:
    """The paths at which nothing is known, in the form's order."""
    return [path for path in FORM if path != "notes" and value_at(mapping, path) is None]


def value_at(mapping: dict[str, Any], path: str) -> Any:
    """What stands at a path; None where nothing does."""
    top, _, key = path.partition(".")
    found: Any = mapping.get(top)
    return found.get(key) if key and isinstance(found, dict) else None if key else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def parse_mapping(value: Any, source: str, *, recorded: bool = False) -> Harness:
    """Check a mapping's value. Raises SkillError `invalid-mapping` (exit 2).

    The keys and patterns of one that was recorded were looked at before: compiling takes long, and
    an agent that was started by an earlier version must not be out of reach.
    """
    try:
        known = known_values(value, recorded=recorded)
        if not recorded:
            require_session(known)
    except UnfitError as error:
        fields: dict[str, Any] = value if is_object(value) else dict.fromkeys(REQUIRED, "")
        unfilled = [name for name in REQUIRED if fields.get(name) is None]
        hint = f"fill in {' and '.join(unfilled)}: that much every mapping says" if unfilled else ""
        raise usage("invalid-mapping", f"the mapping {source!r}: {error}", hint) from None

    def rules(path: str) -> Rules:
        return Rules(known.get(path) or ())

    return Harness(
        name=known["name"],
        executable=known["executable"],
        args=known.get("interactive.args") or (),
        prompt_mode=known.get("interactive.prompt_mode") or "paste",
        prompt_arg=known.get("interactive.prompt_arg") or "",
        work_dir_arg=known.get("interactive.work_dir_arg") or "",
        ready=rules("interactive.ready"),
        busy=rules("interactive.busy"),
        idle=rules("interactive.idle"),
        waiting=rules("interactive.waiting"),
        dialogs=known.get("interactive.dialogs") or (),
        submit_keys=known.get("interactive.submit_keys") or ("Enter",),
        leave_keys=known.get("interactive.leave_keys") or (),
        id_source=known.get("session.id_source") or "",
        new_args=known.get("session.new_args") or (),
        resume_args=known.get("session.resume_args") or (),
        needs=known.get("environment.needs") or (),
        hide=known.get("environment.hide") or (),
        parallel=known.get("parallel.safe") is not False,
        mapping=value,
    )


def known_values(value: Any, *, recorded: bool) -> dict[str, Any]:
    """The checked values of a mapping by their paths; what is null or left out is not among them.

    Raises UnfitError.
    """
    fields = members(value, "the whole")
    if not recorded:
        require_keys(fields, "", TOP_LEVEL)
    for section, keys in SECTIONS.items():
        if fields.get(section) is not None:
            inner = members(fields[section], section)
            if not recorded:
                require_keys(inner, f"{section}.", keys)
    known: dict[str, Any] = {}
    for path, kind in FORM.items():
        found = value_at(fields, path)
        if found is not None or path in REQUIRED:
            try:
                known[path] = checked(found, path, kind, recorded=recorded)
            except UnfitError:
                # An earlier version took anything for what had no meaning then.
                if not recorded or kind not in ("dialogs", "id source"):
                    raise
    return known


def checked(value: Any, where: str, kind: str, *, recorded: bool) -> Any:
    """A value of a kind. Raises UnfitError."""
    if kind in ("text", "name", "program", "date", "id source"):
        return checked_text(value, where, kind, recorded=recorded)
    if kind in ("prompt mode", "run prompt mode"):
        modes = PROMPT_MODES if kind == "prompt mode" else RUN_PROMPT_MODES
        if value not in modes:
            raise UnfitError(where, f"one of {', '.join(modes)}")
        return value
    if kind == "yes/no":
        if not isinstance(value, bool):
            raise UnfitError(where, "true or false")
        return value
    if kind == "exit codes":
        return checked_codes(value, where)
    if kind == "dialogs":
        return checked_dialogs(value, where, recorded=recorded)
    if kind == "notes":
        return checked_notes(value, where)
    return checked_list(value, where, kind, recorded=recorded)


def checked_text(value: Any, where: str, kind: str, *, recorded: bool) -> str:
    """One text. Raises UnfitError."""
    if not is_text(value):
        raise UnfitError(where, "a string without NUL that is valid Unicode")
    if kind == "name" and not is_name(value) and not recorded:
        raise UnfitError(where, "a name: 1 to 64 letters, digits, '-' and '_'")
    if kind == "program" and not value:
        raise UnfitError(where, "a non-empty string")
    if kind == "date" and not is_date(value):
        raise UnfitError(where, "a date such as 2026-01-31")
    if kind == "id source" and value != ASSIGNED:
        if not value.startswith(LOG):
            raise UnfitError(where, f'"{ASSIGNED}", or "{LOG}" and a pattern')
        require_pattern(value.removeprefix(LOG), where)
        if re.compile(value.removeprefix(LOG)).groups != 1:
            raise UnfitError(where, "a pattern with one group, which holds the id")
    return value


def checked_list(value: Any, where: str, kind: str, *, recorded: bool) -> tuple[str, ...]:
    """A list of texts, or one text that stands for a list of one. Raises UnfitError."""
    single = isinstance(value, str)
    words: list[Any] = [value] if single else value
    if not isinstance(words, list):
        raise UnfitError(where, "a string or a list of strings")
    for number, word in enumerate(words):
        place = where if single else f"{where}[{number}]"
        if not is_text(word):
            raise UnfitError(place, "a string without NUL that is valid Unicode")
        if recorded:
            continue
        if kind == "patterns":
            require_pattern(word, place)
        elif kind == "keys" and not (word and len(word) <= KEY_LIMIT and word.isprintable()):
            raise UnfitError(place, "a key by tmux's name, such as Enter, Down or C-c")
        elif kind == "variables" and (
            re.fullmatch(VARIABLE, word) is None or word.startswith("AGENT_WORKER")
        ):
            raise UnfitError(place, "the name of an environment variable that is not ours")
    if kind == "keys" and not words and where != "interactive.leave_keys" and not recorded:
        raise UnfitError(where, "at least one key, or null")
    return tuple(words)


def checked_codes(value: Any, where: str) -> dict[str, str]:
    """What exit codes mean. Raises UnfitError."""
    codes = members(value, where)
    for code, meaning in codes.items():
        place = f"{where}[{shown(code)}]"
        if not is_exit_code(code):
            raise UnfitError(place, "an exit code from 0 to 255 as a string")
        if not is_text(meaning) or not meaning.isprintable() or not 0 < len(meaning) <= 200:
            raise UnfitError(place, "one printable line of at most 200 characters")
    return codes


def checked_dialogs(value: Any, where: str, *, recorded: bool) -> tuple[Dialog, ...]:
    """The dialogs of a start. Raises UnfitError."""
    if not isinstance(value, list):
        raise UnfitError(where, "a list of objects")
    made: list[Dialog] = []
    rows: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
    for number, row in enumerate(rows):
        place = f"{where}[{number}]"
        fields = members(row, place)
        require_keys(fields, f"{place}.", DIALOG)
        given = {key: fields[key] for key in DIALOG if fields.get(key) is not None}
        if "match" not in given or ("keys" in given) == ("ask" in given):
            raise UnfitError(place, "an object with `match`, and either `keys` or `ask`")
        match = checked_list(given["match"], f"{place}.match", "patterns", recorded=recorded)
        if not match:
            raise UnfitError(f"{place}.match", "at least one pattern")
        for key in ("ask", "note"):
            if key in given and not (is_text(given[key]) and given[key].strip()):
                raise UnfitError(f"{place}.{key}", "a text")
        keys = checked_list(given.get("keys", "-"), f"{place}.keys", "keys", recorded=recorded)
        asked = "ask" in given
        made.append(Dialog(Rules(match), () if asked else keys, given.get("ask", "")))
    return tuple(made)


def checked_notes(value: Any, where: str) -> dict[str, str]:
    """The notes, by the paths that they are about. Raises UnfitError."""
    notes = members(value, where)
    for path, note in notes.items():
        place = f"{where}[{shown(path)}]"
        if path not in FORM or path == "notes":
            raise UnfitError(place, "about a path of the form, such as interactive.ready")
        if not is_text(note):
            raise UnfitError(place, "a text")
    return notes


def is_date(text: str) -> bool:
    """Whether a text has the form of a day; a pattern would have to be compiled at each start."""
    year, month, day = text[:4], text[5:7], text[8:]
    digits = year + month + day
    whole = len(digits) == 8 and len(text) == 10 and text[4] == text[7] == "-"
    known = digits.isascii() and digits.isdigit()
    return whole and known and "01" <= month <= "12" and "01" <= day <= "31"


def is_exit_code(text: str) -> bool:
    """Whether a text is a number from 0 to 255 in its only form."""
    return text.isascii() and text.isdigit() and len(text) < 4 and str(min(int(text), 255)) == text


def require_pattern(pattern: str, where: str) -> None:
    """Demand a pattern that can be searched on a screen. Raises UnfitError."""
    if len(pattern) > PATTERN_LIMIT:
        raise UnfitError(where, f"a pattern of at most {PATTERN_LIMIT} characters")
    if re.search(HIDING, pattern) is not None:
        raise UnfitError(where, f"a pattern without comments and flag x, unlike {shown(pattern)}")
    if repeats_a_repeat(pattern):
        raise UnfitError(
            where,
            f"a pattern that repeats no repeat, unlike {shown(pattern)}: a search may not end",
        )
    try:
        found = compiled(pattern).search("")
    except SkillError as error:
        raise UnfitError(where, f"a regular expression; {error.message}") from None
    if found is not None:
        raise UnfitError(where, f"a pattern that needs some text to match, unlike {shown(pattern)}")


def repeats_a_repeat(pattern: str) -> bool:
    """Whether a pattern repeats a group that holds a repeat or a choice; a `?` is one.

    To search such a one may take for ever: each piece of the text can be divided in many ways.
    """
    if not any(end in pattern for end in (")*", ")+", "){")):
        return False
    holds = [False]
    closed = False
    before = ""
    for piece in re.finditer(PIECE, pattern.removeprefix(TITLE), re.DOTALL):
        word = piece[0]
        repeat = piece.lastgroup == "repeat"
        if repeat and closed:
            return True
        if word == "(":
            holds.append(False)
        elif word == ")" and len(holds) > 1:
            inner = holds.pop()
            holds[-1] = holds[-1] or inner
            closed, before = inner, word
            continue
        elif repeat or word == "|" or (word == "?" and before != "("):
            holds[-1] = True
        closed = False
        before = word
    return False


def require_session(known: dict[str, Any]) -> None:
    """Demand that an id of our choice reaches the agent. Raises UnfitError."""
    given = " ".join(known.get("session.new_args", ()))
    if known.get("session.id_source") == ASSIGNED and "{session_id}" not in given:
        raise UnfitError("session.new_args", "words that hold {session_id}, as its id is assigned")


def is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is text that can be an argument or a file's content."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def members(value: Any, where: str) -> dict[str, Any]:
    """An object. Raises UnfitError."""
    if not isinstance(value, dict):
        raise UnfitError(where, "an object")
    return value  # pyright: ignore[reportUnknownVariableType]


def require_keys(fields: dict[str, Any], where: str, known: tuple[str, ...]) -> None:
    """Demand that an object has no other keys. Raises UnfitError."""
    for key in fields:
        if key not in known:
            raise UnfitError(where + shown(key), f"one of {', '.join(known)}")


def shown(value: Any) -> str:
    """A value as a message repeats it: short, and harmless on a terminal."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", value):
        return value
    text = ascii(value)
    return text if len(text) <= 90 else text[:80] + "..." + text[-1]


# --- The screen ---------------------------------------------------------------------------


def dialog_on_screen(harness: Harness, text: str, title: str, said: str = "") -> str | None:
    """The name of the question that the screen asks, or None.

    `said` are the prompts that the agent was given: where the screen only repeats them, it asks
    nothing.
    """
    below, live = live_part(harness, text)
    known = known_dialog(harness, live, title, said)
    if known is not None:
        return known[1]
    found = harness.waiting.match(live, title, said)
    if found is not None:
        return common_dialog(live, said) or found
    if below or harness.ready.match("", title) is not None:
        return None
    return common_dialog(live, said)


def live_part(harness: Harness, text: str) -> tuple[bool, str]:
    """What a program shows now, without what was answered; and whether its input prompt is there.

    A dialog is looked for below the input prompt, else in the last rows that hold something: one
    that was answered may stay on the screen above what the program draws below it.
    """
    if not text.strip():
        return False, ""
    below = harness.ready.lowest(text)
    if below >= 0:
        return True, text[below:]
    return False, "\n".join([row for row in text.split("\n") if row.strip()][-LIVE_ROWS:])


def known_dialog(harness: Harness, live: str, title: str, said: str) -> tuple[int, str] | None:
    """The number and the name of the mapping's dialog that a screen shows, or None.

    Where it shows several, one that is left to a person goes before those that keys answer.
    """
    shown = [
        (not dialog.ask, number, dialog.ask or found)
        for number, dialog in enumerate(harness.dialogs)
        if (found := dialog.match.match(live, title, said)) is not None
    ]
    return min(shown)[1:] if shown else None


def common_dialog(text: str, said: str = "") -> str | None:
    """The name of a dialog that many agent CLIs show, or None."""
    folded = text.casefold()
    for name, words, pattern in COMMON_DIALOGS:
        if any(word in folded for word in words) and search(pattern, text, said) is not None:
            return name
    if "y/n" not in folded and "yes/no" not in folded:
        return None
    last = [row.rstrip() for row in text.split("\n") if row.strip()][-YES_NO_ROWS:]
    flat = re.sub(r"\s+", " ", said)
    for row in last:
        words = re.sub(r"\s+", " ", row).strip(MARKERS)
        if re.search(YES_NO, row) is not None and words not in flat:
            return "yes/no question"
    return None


def require_executable(executable: str) -> str:
    """The absolute path of an agent's program. Raises SkillError `agent-missing` (exit 4)."""
    found = find_program(executable) if executable and "\0" not in executable else None
    if found is None:
        raise missing(
            "agent-missing",
            f"the agent program {executable[:200]!r} is not on PATH or cannot be run",
            "install it, or name another with --agent-cli EXE or --harness MAPPING",
        )
    return os.path.abspath(found)


def agent_argv(
    harness: Harness,
    executable: str,
    extra: list[str],
    *,
    mode: str,
    prompt_arg: str,
    prompt: str,
    prompt_file: str,
    session_args: tuple[str, ...],
    placeholders: dict[str, str],
) -> list[str]:
    """The agent's argument list.

    The prompt stands before the user's own arguments, where an option that takes any number of
    values cannot swallow it; after `--` it stands last. Raises SkillError `prompt-unfit` (exit 2)
    for a prompt that cannot be one argument.
    """
    fixed = [fill(word, placeholders) for word in harness.args]
    if harness.work_dir_arg.endswith("="):
        fixed.append(harness.work_dir_arg + placeholders["worktree"])
    elif harness.work_dir_arg:
        fixed += [harness.work_dir_arg, placeholders["worktree"]]
    fixed += [fill(word, placeholders) for word in session_args]
    if mode == "argument":
        value = require_argument(prompt, prompt_arg)
    elif mode == "file":
        value = prompt_file
    else:
        return [executable, *fixed, *extra]
    if prompt_arg == "--":
        return [executable, *fixed, *extra, "--", value]
    if prompt_arg.endswith("="):
        return [executable, *fixed, prompt_arg + value, *extra]
    return [executable, *fixed, *([prompt_arg] if prompt_arg else []), value, *extra]


def require_argument(prompt: str, prompt_arg: str) -> str:
    """A prompt that reaches the program whole as one argument."""
    if len(os.fsencode(prompt)) + len(os.fsencode(prompt_arg)) > ARGUMENT_LIMIT:
        raise usage(
            "prompt-unfit",
            f"the prompt is longer than one argument may be ({ARGUMENT_LIMIT} bytes)",
            "use --prompt-mode file or paste",
        )
    if prompt.startswith("-") and prompt_arg != "--" and not prompt_arg.endswith("="):
        raise usage(
            "prompt-unfit",
            "the prompt begins with '-' and would be read as an option",
            "use --prompt-arg -- or --FLAG= if the agent knows them, or another --prompt-mode",
        )
    return prompt


def fill(word: str, placeholders: dict[str, str]) -> str:
    """A mapping's word with its placeholders replaced, each once, in one pass."""
    if "{" not in word:
        return word
    names = "|".join(placeholders)
    return re.sub(r"\{(" + names + r")\}", lambda found: placeholders[found.group(1)], word)


def takes_our_id(harness: Harness) -> bool:
    """Whether a new conversation gets an id of our choice."""
    return any("{session_id}" in word for word in harness.new_args)


def printed_id(harness: Harness, text: str) -> str:
    """The newest id of a conversation in what an agent printed; empty without one.

    It becomes an argument, so it must look like an id.
    """
    if not harness.id_source.startswith(LOG):
        return ""
    found = re.findall(harness.id_source.removeprefix(LOG), text, re.MULTILINE)
    fit = [word for word in found if re.fullmatch(SESSION_ID, word)]
    return fit[-1] if fit else ""


def require_variables(harness: Harness, env: Mapping[str, str]) -> None:
    """Demand what an agent needs in its environment.

    Raises SkillError `environment-missing` (exit 4).
    """
    lacking = [name for name in harness.needs if not env.get(name)]
    if lacking:
        raise missing(
            "environment-missing",
            f"the agent {harness.name!r} needs {', '.join(lacking)} in its environment",
            f"export {lacking[0]}, or give it with --env",
        )
