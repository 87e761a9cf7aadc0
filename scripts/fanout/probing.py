"""Asks an installed agent CLI for its help and version: drafts a mapping, or checks one.

Nothing else is run: `--help`, `--version` and the help of sub-commands that the help lists, each in
a clean environment and a folder of its own that is removed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from datetime import UTC, datetime

from fanout.errors import ExitCode, SkillError
from fanout.fields import NamedTuple
from fanout.harness import (
    ASSIGNED,
    UNTRIED,
    blank,
    is_untried,
    require_executable,
    value_at,
)
from fanout.output import plain_text, shorten
from fanout.process import Running, end, start_logged, wait
from fanout.proctree import end_tree, start_time
from fanout.reading_help import (
    ADD_DIR,
    ALONE,
    ALONE_BY_DEFAULT,
    CONTINUE,
    LOGS,
    MODEL,
    NEW_SESSION,
    OFFLINE,
    RESUME,
    SANDBOX,
    SHOWS_LOGIN,
    TALKS,
    WORK_DIR,
    Entry,
    Help,
    Option,
    Wanted,
    Way,
    approval_modes,
    asks_and_talks,
    bypass_words,
    command_ways,
    find,
    likely_commands,
    login_rank,
    names_of,
    output_words,
    prompt_argument,
    prompt_option,
    read_help,
    shown_way,
    talk_command,
    ways_in,
    works_alone,
)
from fanout.worktrees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = "AGENT_WORKERS_PROBE"
# Seconds that one look may take: Python and node programs take some on a busy machine.
LOOK_WAIT = 90.0
PAGE_LIMIT = 400_000
WIDTH = 3
END_GRACE = 1.0
LOOKS_LIMIT = 9
NOTE_LIMIT = 400
FLAGS_NOTE = "the help named these options: "
FLAGS_LIMIT = 8_000
NUMBER = r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)*(?:[-+][\w.-]*\w)?)"

# A secret's variable; which of them are needed no help says.
SECRET = r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+){0,6}_(?:API_KEY|ACCESS_KEY|TOKEN)\b"
SKILLS = r"(?<![\w/.~-])(?:~/)?(?:[\w-]+/){0,4}\.[\w-]+(?:/[\w.-]+){0,4}/skills\b"
SAFE_WORD = r"[a-z][a-z0-9_-]{0,40}"
DEFAULT = r"[\[(]default:? \"?([\w-]+)\"?[\])]|\bdefault (\([^()]{1,60}\))"
TITLE = (
    r"\s*(?:Welcome to |The )?([A-Z][\w.]*(?: [A-Z][\w.]*){1,3})(?:\s+[-\u2013\u2014:]\s|[,.]|$)"
)
# An option, or a comment in an example that does not say what is started.
NO_SENTENCE = r"-|#(?! ?(?:Start|Run|Launch|Open)\b)"
LOGIN_COMMANDS = ("auth", "login", "account", "providers", "credentials")
LOGIN_TEXT = r"(?i)\bauth|log(?:ged)?[ -]?in|signed in|credential"
HELP_WORDS = frozenset(["--help", "-h"])
VERSION_WORDS = frozenset(["--version", "-version", "-V", "-v", "version"])


class Page(NamedTuple):
    """What one look at a program printed. `code` is None where it had to be ended."""

    words: tuple[str, ...]
    code: int | None
    text: str
    trouble: str


class Draft(NamedTuple):
    """A mapping drafted from what an installed program says of itself."""

    mapping: dict[str, Any]
    looked_at: list[str]
    trouble: list[str]

    def to_json(self) -> dict[str, Any]:
        """The fields of the answer."""
        return self._asdict()


class Fit(NamedTuple):
    """How an installed program fits a mapping."""

    found: str | None
    verified: str | None
    gone: list[tuple[str, str]]
    new: list[str]
    matters: bool
    lines: list[str]

    def to_json(self) -> dict[str, Any]:
        """The fields of the answer."""
        gone = [{"path": path, "flag": flag} for path, flag in self.gone]
        return {**self._asdict(), "gone": gone}


# --- Looking ------------------------------------------------------------------------------------


class Look:
    """One call that was started, and what it has printed."""

    def __init__(self, words: tuple[str, ...], process: Running, reads: int) -> None:
        self.words = words
        self.process = process
        self.reads = reads
        self.parts: list[bytes] = []
        self.size = 0
        self.trouble = ""
        self.open = True

    def read(self) -> bool:
        """Take what is there to be read; False when nothing is, or nothing more will come."""
        try:
            part = os.read(self.reads, 65_536)
        except BlockingIOError:
            return False
        if not part:
            self.open = False
            return False
        self.parts.append(part[: PAGE_LIMIT - self.size])
        self.size += len(part)
        if self.size > PAGE_LIMIT:
            self.trouble = f"printed more than {PAGE_LIMIT} bytes"
        return not self.trouble

    def ended(self) -> bool:
        """Whether the program has ended. It is not collected yet, so nobody else has its pid."""
        return start_time(self.process.pid) is None


class Prober:
    """Looks at one program. Its folder and all that can be found of it are gone when it is left.

    What clears its environment, leaves its session and loses its parent cannot be found.
    """

    def __init__(self, executable: str, deadline: float) -> None:
        self.program = require_executable(executable)
        self.deadline = deadline
        self.shown = os.path.basename(executable)
        self.pages: dict[tuple[str, ...], Page] = {}
        self.folder = ""
        self.count = 0

    def __enter__(self) -> Prober:
        from tempfile import mkdtemp

        self.folder = os.path.realpath(mkdtemp(prefix="agent-probe-"))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            remove_tree(self.folder)

    def look(self, *calls: tuple[str, ...]) -> list[Page]:
        """What the program prints for each of these; what was asked before is not asked again."""
        wanted = [call for call in dict.fromkeys(calls) if call not in self.pages]
        for begin in range(0, len(wanted), WIDTH):
            for page in self.look_at_once(wanted[begin : begin + WIDTH]):
                self.pages[page.words] = page
        return [self.pages[call] for call in calls]

    def look_at_once(self, calls: list[tuple[str, ...]]) -> list[Page]:
        """The same for a few calls side by side; whatever they started is ended."""
        mark = os.path.basename(self.folder)
        looks: list[Look] = []
        try:
            for words in calls:
                looks.append(self.start(words, mark))
            limit = min(self.deadline, time.monotonic() + LOOK_WAIT)
            watch(looks, limit)
        finally:
            roots = [look.process.pid for look in looks]
            left = end_tree(roots, f"{MARK}={mark}", grace=END_GRACE) if roots else []
            pages = [collect(look) for look in looks]
        if left:
            raise SkillError(
                "probe-left-over",
                f"{self.shown!r} left processes that do not end: "
                + ", ".join(str(process.pid) for process in left),
                "end them by hand",
            )
        return pages

    def start(self, words: tuple[str, ...], mark: str) -> Look:
        """Start one call in a home and a working directory of its own."""
        self.count += 1
        place = os.path.join(self.folder, str(self.count))
        for name in ("home", "work", "tmp"):
            os.makedirs(os.path.join(place, name), mode=0o700)
        reads, writes = os.pipe()
        try:
            os.set_blocking(reads, False)
            process = start_logged(
                [self.program, *words],
                cwd=os.path.join(place, "work"),
                env=environment(place, mark),
                log=f"/dev/fd/{writes}",
            )
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        return Look(words, process, reads)

    def say(self, words: tuple[str, ...]) -> str:
        """A call as a person would type it."""
        return " ".join([self.shown, *words])

    def help_of(self, *command: str) -> tuple[Help, Page]:
        """The help of the program or of a sub-command."""
        page = self.look((*command, "--help"))[0]
        return self.read(page), page

    def read(self, page: Page) -> Help:
        """A page as help."""
        return read_help(page.text, [self.shown, os.path.basename(self.program)])


def environment(place: str, mark: str) -> dict[str, str]:
    """An environment made from nothing: no token, no proxy, no configuration of the caller's."""
    home = os.path.join(place, "home")
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        # Wide enough that tables are not cut.
        "COLUMNS": "200",
        "LINES": "50",
        "HOME": home,
        "XDG_CONFIG_HOME": os.path.join(home, ".config"),
        "XDG_CACHE_HOME": os.path.join(home, ".cache"),
        "XDG_DATA_HOME": os.path.join(home, ".local", "share"),
        "XDG_STATE_HOME": os.path.join(home, ".local", "state"),
        "XDG_RUNTIME_DIR": os.path.join(place, "tmp"),
        "TMPDIR": os.path.join(place, "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
        MARK: mark,
    }


def watch(looks: list[Look], limit: float) -> None:
    """Read what programs print until each has ended, printed too much or taken too long."""
    waiting = list(looks)
    while waiting:
        poll = select.poll()
        for look in waiting:
            if look.open:
                poll.register(look.reads, select.POLLIN)
        left = limit - time.monotonic()
        poll.poll(max(0.0, min(50.0, 1000 * left)))
        for look in list(waiting):
            over = look.ended()
            more = look.open and look.read()
            if left <= 0:
                look.trouble = look.trouble or "did not end in time"
            if look.trouble or (over and not more):
                waiting.remove(look)
        if not any(look.open for look in waiting):
            time.sleep(0.01)


def collect(look: Look) -> Page:
    """What a call printed and how it ended; it has been ended by now."""
    try:
        with contextlib.suppress(TimeoutError):
            wait(look.process, time.monotonic() + END_GRACE)
        end(look.process)
    finally:
        os.close(look.reads)
    text = plain_text(b"".join(look.parts).decode("utf-8", "replace"))
    return Page(look.words, None if look.trouble else look.process.code, text, look.trouble)


# --- Probing ------------------------------------------------------------------------------------


def probe(executable: str, *, deadline: float) -> Draft:
    """A mapping drafted from the help and version of a program; null where they support nothing.

    `deadline` is an instant of `time.monotonic`. Raises SkillError: `agent-missing` (exit 4),
    `no-help` (exit 1, or 124 when the deadline passed), `probe-left-over`.
    """
    with Prober(executable, deadline) as prober:
        drafting = Drafting(prober, executable)
        mapping = drafting.draft()
        looked = [prober.say(words) for words in prober.pages]
        trouble = [
            f"`{prober.say(words)}` {page.trouble}; what it printed was read"
            for words, page in prober.pages.items()
            if page.trouble
        ]
        # The folder is gone when anybody reads this.
        return Draft(hide_folder(mapping, prober.folder), looked, trouble)


def hide_folder(value: Any, folder: str) -> Any:
    """The same without the temporary folder's name: what stood for the home is `~` again."""
    if isinstance(value, str):
        return re.sub(re.escape(folder) + r"/\d+/home", "~", value)
    if isinstance(value, list):
        return [hide_folder(one, folder) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {key: hide_folder(one, folder) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def require_help(prober: Prober) -> tuple[Help, Page]:
    """The program's own help, by `--help` or `-h`. Raises SkillError `no-help`."""
    page, _ = prober.look(("--help",), ("--version",))
    found = prober.read(page)
    if not found.options and not found.commands and not page.trouble:
        other = prober.look(("-h",))[0]
        if prober.read(other).is_help:
            page, found = other, prober.read(other)
    if found.is_help:
        return found, page
    late = time.monotonic() >= prober.deadline
    last = next((line for line in reversed(found.lines) if line.strip()), "nothing")
    ending = page.trouble or f"ended with exit code {page.code}"
    raise SkillError(
        "no-help",
        f"`{prober.say(page.words)}` printed no help: it {ending}; its last line was: "
        + shorten(last.strip(), 200),
        "see whether the program runs at all, or write the mapping by hand",
        exit_code=ExitCode.TIMED_OUT if late else ExitCode.FAILED,
    )


class Drafting:
    """Fills a blank mapping from what a program prints, with the line that supports each value."""

    def __init__(self, prober: Prober, executable: str) -> None:
        self.prober = prober
        self.mapping = blank()
        self.executable = executable
        self.top, self.page = require_help(prober)
        self.helps: dict[tuple[str, ...], Help] = {(): self.top}
        self.commands = {name: entry for entry in self.top.commands for name in names_of(entry)}

    def put(self, path: str, value: Any, why: str) -> None:
        """Set a value that the help supports."""
        section, _, key = path.partition(".")
        if key:
            self.mapping[section][key] = value
        else:
            self.mapping[section] = value
        self.mapping["notes"][path] = shorten(why, FLAGS_LIMIT)

    def why(self, found: Option | Entry | str, command: tuple[str, ...] = ()) -> str:
        """The line that supports a value, and what printed it."""
        words = command + (self.page.words if not command else ("--help",))
        line = found if isinstance(found, str) else described(found)
        return f"`{self.prober.say(words)}`: {shorten(line, NOTE_LIMIT)}"

    def help_of(self, *command: str) -> Help | None:
        """The help of a sub-command; None when there is none of its own or no look is left."""
        if command in self.helps:
            return self.helps[command]
        safe = all(re.fullmatch(SAFE_WORD, word) for word in command)
        if not safe or len(self.prober.pages) >= LOOKS_LIMIT:
            return None
        if time.monotonic() >= self.prober.deadline:
            return None
        found, page = self.prober.help_of(*command)
        if not found.is_help or page.text == self.page.text:
            return None
        prefix = " ".join(command) + " "
        commands = [e._replace(name=e.name.removeprefix(prefix)) for e in found.commands]
        self.helps[command] = found._replace(commands=tuple(commands))
        return self.helps[command]

    def draft(self) -> dict[str, Any]:
        """The mapping."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.prober.shown).strip("-_")[:64]
        self.mapping["name"] = name.lower() or "agent"
        # A path must be right from every folder.
        path = "/" in self.executable
        self.mapping["executable"] = os.path.abspath(self.executable) if path else self.executable
        self.find_title()
        self.find_version()
        run = self.find_run()
        self.find_talk(run)
        places: list[tuple[str, ...]] = [()]
        if run is not None and run.command:
            places.insert(0, run.command)
        self.find_options(places)
        self.find_sessions(places)
        self.find_login()
        self.find_places()
        return self.mapping

    def find_title(self) -> None:
        """The name that the program gives itself."""
        for line in self.top.lines[:12]:
            found = re.match(
                TITLE,
                line,
            )
            if (
                found is not None
                and not line.strip().endswith(":")
                and found[1].upper() != found[1]
            ):
                self.put("display_name", found[1], self.why(line.strip()))
                return

    def find_version(self) -> None:
        """The version, and how to ask for it."""
        calls: list[tuple[str, ...]] = [("--version",)]
        told = find(self.top.options, Wanted("version", value=None))
        if told is not None:
            calls += [(name,) for name in told.names if name in VERSION_WORDS]
        if "version" in self.commands:
            calls.append(("version",))
        # Some say it above their help only.
        calls.append(self.page.words)
        for words in calls:
            page = self.prober.look(words)[0]
            found = version_in(page, self.prober.shown)
            if found is not None:
                why = f"`{self.prober.say(words)}`: {shorten(found[1], NOTE_LIMIT)}"
                self.put("version.args", list(words), why)
                known = " ".join(sorted(self.top.flags))
                note = f"{why}; {FLAGS_NOTE}{known}; {UNTRIED}"
                self.put("version.verified", found[0], note)
                today = datetime.now(tz=UTC).strftime("%Y-%m-%d")
                self.put("version.on", today, "the day on which the help was read")
                return

    # --- The prompt ---

    def look_ahead(self) -> None:
        """Ask for the helps that will be needed, side by side."""
        names = [*likely_commands(self.top), *self.login_commands()]
        calls = [(*name.split(" "), "--help") for name in names[: LOOKS_LIMIT - 4]]
        safe = [c for c in calls if all(re.fullmatch(SAFE_WORD, word) for word in c[:-1])]
        self.prober.look(*safe)

    def find_run(self) -> Way | None:
        """The way to run one prompt without a person."""
        ways = ways_in((), self.top)
        self.look_ahead()
        for command in likely_commands(self.top):
            entry = self.commands[command]
            words = tuple(command.split(" "))
            found = self.help_of(*words)
            if found is not None:
                ways += command_ways(words, entry, found)
            elif (way := shown_way(words, entry, self.top)) is not None:
                ways.append(way)
        best = max(ways, key=lambda way: way.score, default=None)
        if best is None or best.score < 3:
            return None
        note = "; ".join(self.why(*one) for one in best.evidence)
        self.put("noninteractive.args", best.args, note)
        self.put("noninteractive.prompt_mode", best.mode, note)
        if best.mode in ("argument", "file"):
            self.put("noninteractive.prompt_arg", best.prompt_arg, note)
        return best

    def find_talk(self, run: Way | None) -> None:
        """The way to talk to the program at a terminal, and how it takes a first prompt there."""
        command: tuple[str, ...] = ()
        found = self.top
        line = self.talk_line(run)
        if line is None:
            entry = talk_command(self.commands)
            if entry is None:
                return
            command = tuple(entry.name.split(" "))
            line = self.why(entry)
            found = self.help_of(*command) or Help((), (), (), (), (), ())
        self.put("interactive.args", list(command), line)
        option = next((o for o in found.options if asks_and_talks(o)), None)
        prompt = prompt_argument(found)
        alone = prompt is not None and re.search(ALONE_BY_DEFAULT, prompt.text) is not None
        if option is None and (prompt is None or alone):
            option = prompt_option(found)
            if option is not None and re.search("(?i)" + ALONE, option.text):
                option = None
        if option is not None:
            self.put("interactive.prompt_mode", "argument", self.why(option, command))
            self.put("interactive.prompt_arg", option.name, self.why(option, command))
        elif prompt is not None and not alone:
            self.put("interactive.prompt_mode", "argument", self.why(prompt, command))
            self.put("interactive.prompt_arg", "", self.why(prompt, command))

    def talk_line(self, run: Way | None) -> str | None:
        """The line by which the bare program is interactive, or None."""
        described = {option.line for option in self.top.options}
        listed = {entry.line for entry in self.top.commands}
        for line in self.top.lines:
            words = re.sub(r"\s+", " ", line).strip()
            if words in listed or words in described or re.match(NO_SENTENCE, words):
                continue
            if "--help" in words:
                continue
            if re.search(TALKS, words) or re.search(r"(?i)\bstart\w* .{0,20}\btui\b", words):
                return self.why(words)
        option = run.evidence[0][0] if run is not None and not run.command else None
        if isinstance(option, Option) and works_alone(option.text):
            return self.why(option) + " (so without it the program is interactive)"
        return None

    # --- Options ---

    def find_options(self, places: list[tuple[str, ...]]) -> None:
        """What single options tell; those of the sub-command that runs a prompt come first."""
        self.find_flag("model.flag", MODEL, places)
        self.find_flag("interactive.work_dir_arg", WORK_DIR, [()])
        self.find_flag("noninteractive.work_dir_arg", WORK_DIR, places)
        self.find_words("noninteractive.output_args", output_words, places)
        self.find_words("approval.bypass_args", bypass_words, places)
        for where in places:
            self.find_approval(where)
            self.find_sandbox(where)
            for path, wanted in (("logs", LOGS), ("network", OFFLINE)):
                option = find(self.helps[where].options, wanted)
                if option is not None and self.mapping[path] is None:
                    told = shorten(described(option), NOTE_LIMIT)
                    self.put(path, told, self.why(option, where))

    def find_flag(self, path: str, wanted: Wanted, places: list[tuple[str, ...]]) -> None:
        """Put the name of an option, from the first help that has it."""
        for where in places:
            option = find(self.helps[where].options, wanted)
            if option is not None:
                self.put(path, option.name, self.why(option, where))
                return

    def find_words(
        self,
        path: str,
        choose: Callable[[Help], tuple[Option | None, list[str]]],
        places: list[tuple[str, ...]],
    ) -> None:
        """Put an option with its value, from the first help that has it."""
        for where in places:
            option, words = choose(self.helps[where])
            if option is not None:
                self.put(path, words, self.why(option, where))
                return

    def find_approval(self, where: tuple[str, ...]) -> None:
        """What is asked by default, and which modes there are."""
        option = approval_modes(self.helps[where])
        if option is None or self.mapping["approval"]["note"] is not None:
            return
        why = self.why(option, where)
        self.put("approval.note", f"{option.name}: {', '.join(option.choices)}", why)
        told = re.search(DEFAULT, option.text)
        if told is not None:
            self.put("approval.default", told[1] or f"default {told[2]}", why)

    def find_sandbox(self, where: tuple[str, ...]) -> None:
        """The sandbox that lets an agent write in its tree, and what else may be opened."""
        if self.mapping["sandbox"]["note"] is not None:
            return
        options = self.helps[where].options
        told = [o for o in (find(options, SANDBOX), find(options, ADD_DIR)) if o is not None]
        if not told:
            return
        why = "; ".join(self.why(option, where) for option in told)
        self.put("sandbox.note", "; ".join(shorten(described(o), NOTE_LIMIT) for o in told), why)
        box = find(options, SANDBOX)
        if box is None:
            return
        writes = next((c for c in box.choices if re.search("workspace|write", c)), None)
        if writes is not None:
            self.put("sandbox.args", [box.name, writes], why)
        elif not box.value:
            self.put("sandbox.args", [box.name], why)

    def find_sessions(self, places: list[tuple[str, ...]]) -> None:
        """How a conversation gets its id, and how it is taken up again."""
        for where in places:
            new = find(self.helps[where].options, NEW_SESSION)
            if new is not None:
                why = self.why(new, where)
                self.put("session.new_args", [new.name, "{session_id}"], why)
                self.put("session.id_source", ASSIGNED, why)
                break
        for where in places:
            if self.resume_by_option(where) or self.resume_by_command(where):
                return
        for where in places:
            option = find(self.helps[where].options, CONTINUE)
            if option is not None:
                self.put("session.resume_args", [option.name], self.why(option, where))
                return

    def resume_by_option(self, where: tuple[str, ...]) -> bool:
        """Whether an option takes up a conversation by its id, or the latest one by a word."""
        option = find(self.helps[where].options, RESUME)
        if option is None:
            return False
        about = f"{option.value} {option.text}"
        if re.search(r"(?i)\b(?:session|conversation|thread)?_?ids?\b|uuid", about):
            words = [option.name, "{session_id}"]
        else:
            latest = re.search(r"[\"'`](latest|last)[\"'`]", option.text)
            if latest is None and not re.fullmatch(
                r"[<\[]?(?:session|conversation|thread)[>\]]?", option.value
            ):
                return False
            words = [option.name, latest[1] if latest else "{session_id}"]
        self.put("session.resume_args", words, self.why(option, where))
        return True

    def resume_by_command(self, where: tuple[str, ...]) -> bool:
        """Whether a sub-command takes up a conversation by its id."""
        for entry in self.helps[where].commands:
            if entry.name.split(" ")[-1] not in ("resume", "continue"):
                continue
            words = entry.name.split(" ")
            found = self.help_of(*where, *words)
            arguments = [*(found.arguments if found else ()), Entry(entry.takes, entry.text, "")]
            if any(re.search(r"(?i)session|conversation|thread|\bid\b", a.name) for a in arguments):
                self.put("session.resume_args", [*words, "{session_id}"], self.why(entry, where))
                return True
        return False

    def find_login(self) -> None:
        """The call that only tells whether somebody is logged in."""
        for entry in self.top.commands:
            if entry.name in ("whoami", "auth status", "login status"):
                self.put("auth.check_args", entry.name.split(" "), self.why(entry))
                return
        for name in self.login_commands():
            found = self.help_of(name)
            for entry in sorted(found.commands if found else (), key=login_rank):
                sure = name in ("auth", "login") or re.search(LOGIN_TEXT, entry.text)
                if login_rank(entry) < len(SHOWS_LOGIN) and sure:
                    words = [name, *entry.name.split(" ")]
                    self.put("auth.check_args", words, self.why(entry, (name,)))
                    return

    def login_commands(self) -> list[str]:
        """The sub-commands that are about the login, each by one of its names."""
        found: dict[str, str] = {}
        for name in LOGIN_COMMANDS:
            if name in self.commands:
                found.setdefault(self.commands[name].name, name)
        return list(found.values())

    def find_places(self) -> None:
        """Exit codes, skills folders and secrets that the help names."""
        for command, found in self.helps.items():
            if found.exit_codes and self.mapping["noninteractive"]["exit_codes"] is None:
                codes = {str(int(entry.name)): entry.text for entry in found.exit_codes}
                why = self.why("; ".join(entry.line for entry in found.exit_codes), command)
                self.put("noninteractive.exit_codes", codes, why)
            for line in found.lines:
                for place in re.findall(SKILLS, line):
                    path = "skills.user" if place.startswith("~") else "skills.project"
                    if self.mapping["skills"][path.partition(".")[2]] is None:
                        self.put(path, place, self.why(line.strip(), command))
        secrets = dict.fromkeys(re.findall(SECRET, self.page.text[:PAGE_LIMIT]))
        if secrets:
            told = ", ".join(list(secrets)[:12])
            self.mapping["notes"]["environment.needs"] = (
                f"`{self.prober.say(self.page.words)}` names {told}; which of them are needed it "
                "does not say"
            )


def described(found: Option | Entry) -> str:
    """An option's or an entry's own line, with all of its text."""
    begins = found.line.find(found.text[:20]) if found.text else -1
    return f"{found.line[:begins] if begins >= 0 else found.line + ' '}{found.text}".strip()


def version_in(page: Page, shown: str) -> tuple[str, str] | None:
    """The version that a page tells, and the line."""
    if page.code != 0:
        return None
    asked = page.words[-1] in VERSION_WORDS
    found: list[tuple[int, str, str]] = []
    for line in page.text.split("\n")[: 50 if asked else 5]:
        if not asked and re.search(r"(?i)\bversion\b", line) is None:
            continue
        number = re.search(NUMBER, line[:500])
        if number is None:
            continue
        folded = line.casefold()
        score = ("version" in folded) + (shown.casefold() in folded)
        score -= 3 * any(word in folded for word in ("warn", "deprecat", "node", "python"))
        score += (line.strip() == number.group()) + (len(line.split()) <= 5)
        found.append((score, number[1], line.strip()))
    best = max(found, key=lambda one: one[0], default=None)
    return (best[1], best[2]) if best else None


# --- Checking -----------------------------------------------------------------------------------


def check(mapping: dict[str, Any], *, deadline: float) -> Fit:
    """Compare an installed program with what a mapping says of it.

    `deadline` is an instant of `time.monotonic`. Raises SkillError as `probe` does.
    """
    executable = str(value_at(mapping, "executable") or "")
    verified = value_at(mapping, "version.verified")
    with Prober(executable, deadline) as prober:
        top, page = require_help(prober)
        found = installed(prober, mapping)
        checking = Checking(prober, top)
        for path in FLAG_PATHS:
            checking.compare(path, words_at(mapping, path), words_at(mapping, base_of(path)))
        new = new_flags(mapping, top)
        lines = version_lines(prober.shown, found, verified, tried=not is_untried(mapping))
        lines += [f"{path}: {flag!r} is not in the help" for path, flag in checking.gone]
        lines += [f"{path}: {why}" for path, why in checking.unseen]
        if new is None:
            lines.append(
                "which options are new is not known: the mapping does not list the old ones"
            )
        elif new:
            lines.append("new options: " + ", ".join(new))
        if page.trouble:
            lines.append(f"`{prober.say(page.words)}` {page.trouble}; what it printed was read")
        if not checking.gone and not checking.unseen:
            lines.append("every option that the mapping uses is in the help")
        return Fit(
            found,
            verified,
            checking.gone,
            new or [],
            bool(checking.gone),
            hide_folder(lines, prober.folder),
        )


FLAG_PATHS = (
    "interactive.args",
    "interactive.prompt_arg",
    "interactive.work_dir_arg",
    "noninteractive.args",
    "noninteractive.prompt_arg",
    "noninteractive.work_dir_arg",
    "noninteractive.output_args",
    "session.new_args",
    "session.resume_args",
    "approval.bypass_args",
    "sandbox.args",
    "model.flag",
    "auth.check_args",
)


# The program itself, behind no sub-command.
NOWHERE: list[tuple[str, ...]] = [()]


def base_of(path: str) -> str:
    """The arguments behind which a path's own stand: those with the sub-command."""
    section = path.partition(".")[0]
    if path in ("auth.check_args", "noninteractive.args", "interactive.args"):
        return path
    return "interactive.args" if section == "interactive" else "noninteractive.args"


def words_at(mapping: dict[str, Any], path: str) -> list[str]:
    """The words of a mapping's value, which may be one word or none."""
    value: Any = value_at(mapping, path)
    words: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
    return [word for word in words if isinstance(word, str) and word]


def leading_words(words: list[str]) -> list[str]:
    """The words before the first option or placeholder: a sub-command, if there is one."""
    for number, word in enumerate(words):
        if not re.fullmatch(SAFE_WORD, word):
            return words[:number]
    return words


class Checking:
    """Looks for each word of a mapping in the helps of the program and its sub-commands."""

    def __init__(self, prober: Prober, top: Help) -> None:
        self.prober = prober
        self.helps: dict[tuple[str, ...], Help | None] = {(): top}
        self.gone: list[tuple[str, str]] = []
        self.unseen: list[tuple[str, str]] = []

    def compare(self, path: str, words: list[str], base: list[str]) -> None:
        """Note the options and sub-commands of one path that the helps do not have."""
        behind = tuple(leading_words(base))
        own = tuple(leading_words(words))
        places = [self.helps[()]]
        for command, starts in ((behind, NOWHERE), (own, [behind, *NOWHERE])):
            if not command or (command == own == behind and len(places) > 1):
                continue
            found, lost = self.command_help(command, starts)
            if lost is not None and command == own:
                self.gone.append((path, lost))
                return
            places.append(found)
        known = [place for place in places if place is not None]
        for number, word in enumerate(words):
            flag, _, joined = word.partition("=")
            if not word.startswith("-") or not word.strip("-"):
                continue
            value = joined or (words[number + 1] if number + 1 < len(words) else "")
            if not any(mentions(place, flag) for place in known):
                if None in places:
                    self.unseen.append((path, f"{flag} stands behind a help that cannot be read"))
                else:
                    self.gone.append((path, flag))
            elif not any(mentions(p, flag) and takes(p, flag, value) for p in known):
                self.gone.append((path, f"{flag} {value}"))

    def command_help(
        self, command: tuple[str, ...], starts: list[tuple[str, ...]]
    ) -> tuple[Help | None, str | None]:
        """The help of a sub-command, or the first word of it that no help lists.

        Only what a help lists is run: a word of the mapping's alone could start anything.
        """
        missed: str | None = None
        unread = False
        for behind in dict.fromkeys(starts):
            place, path, lost = self.helps.get(behind), behind, None
            if place is not None and any(" ".join(command) in names_of(e) for e in place.commands):
                return self.read((*behind, *command)), None
            for word in command:
                if place is None or not any(word in names_of(entry) for entry in place.commands):
                    lost = word
                    break
                path = (*path, word)
                place = self.read(path)
            if lost is None:
                return place, None
            # What is below a help that cannot be read may be there.
            unread = unread or (place is None and path != behind)
            missed = missed or (lost if place is not None else None)
        return None, None if unread else missed

    def read(self, path: tuple[str, ...]) -> Help | None:
        """The help of a sub-command whose words the helps above it list."""
        if path not in self.helps:
            if len(self.prober.pages) >= 2 * LOOKS_LIMIT:
                return None
            found, page = self.prober.help_of(*path)
            own = found.is_help and not page.trouble
            self.helps[path] = found if own else None
        return self.helps[path]


def mentions(found: Help, flag: str) -> bool:
    """Whether a help knows an option; one that stands only in a sentence is known too."""
    if flag in found.flags:
        return True
    whole = r"(?<![\w-])" + re.escape(flag) + r"(?![\w-])"
    return len(flag) > 2 and any(re.search(whole, line) for line in found.lines)


def takes(found: Help, flag: str, value: str) -> bool:
    """Whether an option may have this value, as far as the help lists its values."""
    option = next((o for o in found.options if flag in o.names), None)
    if option is None or not option.value or not option.choices or value.startswith(("-", "{")):
        return True
    listed = re.search(r"(?i)choices|possible values|options:", f"{option.text} {option.value}")
    return listed is None or value in option.choices


def installed(prober: Prober, mapping: dict[str, Any]) -> str | None:
    """The version that the program tells. A mapping cannot make this run anything else."""
    words = tuple(words_at(mapping, "version.args")) or ("--version",)
    if not set(words) <= VERSION_WORDS | HELP_WORDS:
        words = ("--version",)
    told = version_in(prober.look(words)[0], prober.shown)
    return told[0] if told else None


def version_lines(shown: str, found: str | None, verified: str | None, *, tried: bool) -> list[str]:
    """What is to be said of the versions."""
    if found is None:
        return [f"{shown} does not tell its version"]
    if verified is None:
        return [f"{shown} {found} is installed; the mapping was verified with no version"]
    if not tried:
        told = f"{shown} {found} is installed; the mapping was drafted from the help of {verified}"
        return [f"{told}, nothing was tried"]
    if found == verified:
        return [f"{shown} {found} is installed, as it was verified"]
    return [f"{shown} {found} is installed; the mapping was verified with {verified}"]


def new_flags(mapping: dict[str, Any], top: Help) -> list[str] | None:
    """The options that were not there when the mapping was drafted; None when that is not known."""
    notes: dict[str, str] = mapping.get("notes") or {}
    note = notes.get("version.verified", "")
    _, told, rest = note.partition(FLAGS_NOTE)
    if not told:
        return None
    old = set(rest.partition(";")[0].split())
    return sorted(top.flags - old)
