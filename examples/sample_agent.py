#!/usr/bin/env python3
"""Sample agent: an offline stand-in for an agent CLI, with no model and no network behind it.

It exists so that demonstrations and tests need no account. What it does follows from directive
lines in its prompt (``--help`` lists them); all other lines are ignored. On a terminal it is a
full-screen program as real agents are: raw mode, bracketed paste, an input box, busy and idle
looks, an optional trust dialog. What is typed before it is ready is lost, as it is with them.

It reads top to bottom: records, directives, what is kept on disk, the non-interactive mode, keys,
the screen, the interactive agent, the command line. Costly modules are imported where they are
used, and records are named tuples, because its start has to be quick.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import subprocess
    from typing import IO

HEADER = "Sample agent (offline stand-in, no model)"
TRUST_QUESTION = "Do you trust the files in this folder?"
TRUST_OPTIONS = ("1. No, exit", "2. Yes, continue")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_SECONDS = 0.2
MOMENT_SECONDS = 0.1  # every job looks busy for at least so long
COMMAND_POLL_SECONDS = 0.02
ESCAPE_SECONDS = 0.1  # a lone ESC byte is the key only when nothing follows it for so long
LEAVE_SECONDS = 2.0
FOREVER_SECONDS = 10.0**8
KEPT_LINES = 2000
KEPT_LINE_CHARACTERS = 2000
BOX_ROWS = 6
ABRIDGED_LINES = 4
READS_PER_TURN = 64
STEPS_PER_TURN = 100
GIT = (
    *("git", "-c", "user.name=Sample Agent", "-c", "user.email=sample-agent@example.invalid"),
    *("-c", "commit.gpgsign=false"),
)


# Records: what a job asks of whoever drives it


class Say(NamedTuple):
    """A step that shows text."""

    text: str


class Pause(NamedTuple):
    """A step that waits; it can be interrupted."""

    seconds: float


class Run(NamedTuple):
    """A step that runs a program; the reply is its Outcome."""

    argv: tuple[str, ...]


class Ask(NamedTuple):
    """A step that asks a yes-or-no question; the reply is a bool."""

    question: str


class Leave(NamedTuple):
    """A step that ends the agent."""

    code: int
    message: str


class Outcome(NamedTuple):
    """How a program ended, and what it printed on both streams."""

    code: int
    output: str


class Prompt(NamedTuple):
    """A prompt, and the way it came in: paste, typed, argument, file or stdin."""

    text: str
    via: str


Step = Say | Pause | Run | Ask | Leave
Reply = Outcome | bool | None
Steps = Generator[Step, Reply, None]


class DeclinedError(Exception):
    """A question was answered with no; the rest of the job is skipped."""


# Directives


def seconds_in(text: str) -> float:
    """A number of seconds between 0 and about three years."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= FOREVER_SECONDS:
        raise ValueError(f"expected a number of seconds, not {text!r}")
    return seconds


def code_in(text: str, default: int) -> int:
    """An exit code between 0 and 255; the default where the text is empty."""
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text[:4]) > 255:
        raise ValueError(f"expected an exit code from 0 to 255, not {text!r}")
    return int(text)


def put(path: str, text: str, mode: str) -> int:
    """Writes or appends the text, and makes the folders; gives the number of characters."""
    if not path:
        raise ValueError("expected PATH TEXT")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, mode, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.write(text.replace("\\n", "\n"))


def start_orphan(seconds: float) -> int:
    """Starts a process that outlives the agent, in a session of its own; gives its id."""
    from subprocess import DEVNULL, Popen

    argv = ["sleep", str(seconds)]
    return Popen(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True).pid


def report_argv(kind: str, message: str) -> tuple[str, ...]:
    """The reporting command: what the environment names, then the kind and the message."""
    import shlex

    prefix = shlex.split(os.environ.get("AGENT_WORKER_EVENT", ""))
    if not kind or not prefix:
        raise ValueError("expected a KIND" if prefix else "AGENT_WORKER_EVENT is not set")
    return (*prefix, kind, *(("--message", message) if message else ()))


def run_aloud(*argv: str, what: str) -> Generator[Step, Reply, bool]:
    """Runs a program and says how it went; whether it went well."""
    reply = yield Run(argv)
    code, output = reply if isinstance(reply, Outcome) else Outcome(1, "no answer")
    if code:
        yield Say(f"{what} failed ({code}): {output.strip()}")
    elif output.strip():
        yield Say(output.strip().split("\n")[0])
    return code == 0


DIRECTIVES = {
    "@write PATH TEXT": "replace a file, make its folders; \\n is a newline",
    "@append PATH TEXT": "add to the end of a file, in the same way",
    "@commit MESSAGE": "git add -A, then git commit",
    "@sleep SECONDS": "stay busy; can be interrupted",
    "@print TEXT": "show the text",
    "@ask QUESTION": "wait for y or n; n skips the rest of the prompt",
    "@report KIND [MESSAGE]": "run $AGENT_WORKER_EVENT KIND --message MESSAGE",
    "@fail [CODE]": "show 'failed' and leave with the code (1)",
    "@exit [CODE]": "leave with the code (0)",
    "@orphan SECONDS": "start a detached process that outlives the agent",
}


def directive_steps(word: str, rest: str) -> Steps:
    """The steps of one directive."""
    first, _, more = rest.partition(" ")
    match word:
        case "@write":
            yield Say(f"wrote {first} ({put(first, more, 'w')} characters)")
        case "@append":
            yield Say(f"appended to {first} ({put(first, more, 'a')} characters)")
        case "@commit":
            if (yield from run_aloud(*GIT, "add", "-A", what="commit")):
                yield from run_aloud(*GIT, "commit", "-m", rest or "Sample commit", what="commit")
        case "@sleep":
            yield Pause(seconds_in(rest))
        case "@print":
            yield Say(rest)
        case "@ask":
            if (yield Ask(rest or "Go on?")) is not True:
                raise DeclinedError
        case "@report":
            if (yield from run_aloud(*report_argv(first, more), what="report")):
                yield Say(f"reported {first}")
        case "@fail":
            yield Leave(code_in(rest, 1), "failed")
        case "@exit":
            yield Leave(code_in(rest, 0), "")
        case "@orphan":
            yield Say(f"started orphan {start_orphan(seconds_in(rest))}")
        case _:
            yield Say(f"unknown directive: {word} {rest}"[:200])


def job_steps(text: str) -> Steps:
    """The steps of one prompt: its directive lines in order, all other lines ignored."""
    lines = [line.rstrip("\r") for line in text.split("\n") if re.match("@[A-Za-z]", line)]
    if not lines:
        yield Say("Nothing to do.")
    for line in lines:
        word, _, rest = line.partition(" ")
        try:
            yield from directive_steps(word, rest)
        except (OSError, ValueError) as error:
            yield Say(f"{word} failed: {error}")
        except DeclinedError:
            yield Say("The answer was no: skipped the rest.")
            return


class Command:
    """A program that runs with its input closed and its output kept aside."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        import subprocess
        import tempfile

        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by outcome)
        self.process: subprocess.Popen[bytes] | None = None
        self.problem = ""
        try:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.STDOUT
            )
        except (OSError, ValueError) as error:
            self.problem = str(error)

    def outcome(self, *, wait: bool = False) -> Outcome | None:
        """How it ended; None while it runs."""
        if self.process is None:
            return Outcome(127, self.problem)
        code = self.process.wait() if wait else self.process.poll()
        if code is None:
            return None
        self.file.seek(0)
        with self.file:
            return Outcome(code, self.file.read().decode("utf-8", "replace"))

    def end(self) -> None:
        """Ends it early."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()


# What is kept on disk


class UsageError(Exception):
    """Something on the command line that cannot be used; exit code 2."""


def log_prompt(prompt: Prompt) -> None:
    """Appends the prompt to the file that SAMPLE_AGENT_LOG names, in a single write."""
    path = os.environ.get("SAMPLE_AGENT_LOG")
    if not path:
        return
    import json

    record = {**prompt._asdict(), "pid": os.getpid(), "cwd": os.getcwd()}
    line = {"prompt": record.pop("text"), **record}
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


class Conversation:
    """The prompts of one conversation, kept in a file where it has a name."""

    def __init__(self, name: str | None, *, resume: bool) -> None:
        self.prompts: list[str] = []
        self.path = ""
        if name is None:
            return
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
            raise UsageError(f"not a conversation name: {name!r}")
        home = os.environ.get("SAMPLE_AGENT_HOME") or os.path.expanduser("~/.sample-agent")
        self.path = os.path.join(home, "sessions", f"{name}.json")
        if resume != os.path.exists(self.path):
            raise UsageError(
                f"no conversation {name!r} to resume"
                if resume
                else f"conversation {name!r} exists already: continue it with --resume {name}"
            )
        if resume:
            import json

            try:
                with open(self.path, encoding="utf-8") as file:
                    self.prompts = list(map(str, json.load(file)["prompts"]))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UsageError(f"cannot read {self.path}: {error!r}") from error
        else:
            self.save()

    def add(self, prompt: Prompt) -> None:
        """Logs the prompt and keeps it in the conversation."""
        log_prompt(prompt)
        self.prompts.append(prompt.text)
        self.save()

    def save(self) -> None:
        """Replaces the conversation's file."""
        if not self.path:
            return
        import json

        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        fresh = f"{self.path}.{os.getpid()}"
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "prompts": self.prompts}, file)
        os.replace(fresh, self.path)


# Non-interactive mode


def run_and_print(prompt: Prompt, conversation: Conversation) -> int:
    """Runs one prompt and prints what it says; gives the exit code."""
    conversation.add(prompt)
    steps = job_steps(prompt.text)
    reply: Reply = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return 0
        reply = None
        match step:
            case Say(text):
                emit(text)
            case Pause(seconds):
                time.sleep(seconds)
            case Run(argv):
                reply = Command(argv).outcome(wait=True)
            case Ask(question):  # nobody can answer here, and a real agent hangs just so
                emit(f"{question} (y/n)")
                time.sleep(FOREVER_SECONDS)
            case Leave(code, message):
                if message:
                    emit(message)
                return code


def emit(text: str) -> None:
    """Prints a line at once, with the bytes that were not UTF-8 as they came."""
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")
    sys.stdout.buffer.flush()


# Keys

PASTE_START, PASTE_END = b"\x1b[200~", b"\x1b[201~"
TOKEN = re.compile(
    rb"(?P<text>[^\x00-\x08\x0a-\x1f\x7f]+)"
    rb"|(?P<sequence>\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|O[@-~]))"
    rb"|(?P<partial>\x1b(?:\[[0-?]{0,32}[ -/]{0,4}|O)?\Z)"
    rb"|(?P<control>[\x00-\x1f\x7f])"
)
KEY_NAMES = {
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x15": "clear",
    b"\x03": "interrupt",
    b"\x04": "leave",
    b"\x1b": "escape",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
}


class Key(NamedTuple):
    """A key by its name, or a run of text or a paste with its bytes."""

    name: str
    data: bytes = b""


class Decoder:
    """Turns what the terminal sends into keys; nothing is lost where a read cuts a sequence."""

    def __init__(self, *, brackets: bool) -> None:
        self.brackets = brackets
        self.pending = b""
        self.pasted: list[bytes] | None = None  # the pieces of a paste that has not ended

    def feed(self, data: bytes) -> list[Key]:
        """The keys that the bytes complete. Work is linear in the length of a paste."""
        keys: list[Key] = []
        data, self.pending, position = self.pending + data, b"", 0
        while position < len(data):
            if self.pasted is not None:
                position = self.paste(data, position, self.pasted, keys)
                continue
            token = TOKEN.match(data, position)
            if token is None:
                break
            position, found = token.end(), token.group()
            if token.lastgroup == "partial":
                self.pending = found
            elif token.lastgroup == "text":
                keys.append(Key("text", found))
            elif found == PASTE_START and self.brackets:
                self.pasted = []
            elif found in KEY_NAMES:
                keys.append(Key(KEY_NAMES[found]))
        return keys

    def paste(self, data: bytes, position: int, pieces: list[bytes], keys: list[Key]) -> int:
        """Takes what belongs to the open paste; gives the position after it."""
        end = data.find(PASTE_END, position)
        if end >= 0:
            pieces.append(data[position:end])
            keys.append(Key("paste", b"".join(pieces).replace(b"\r", b"\n")))
            self.pasted = None
            return end + len(PASTE_END)
        rest = data[position:]
        cut = next((n for n in range(5, 0, -1) if rest.endswith(PASTE_END[:n])), 0)
        pieces.append(rest[: len(rest) - cut])
        self.pending = rest[len(rest) - cut :]
        return len(data)

    def lone_escape(self) -> bool:
        """Whether an ESC byte waits to be told from the start of a sequence."""
        return self.pending == b"\x1b" and self.pasted is None


# The screen


def clean(text: str) -> str:
    """The text with nothing in it that a terminal would act on."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = text.replace("\t", "    ")
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def cells(text: str) -> int:
    """How many columns the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def wrap(text: str, width: int) -> list[str]:
    """The rows that the text takes; at least one."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    rows, used = [""], 0
    for character in text:
        wide = cells(character)
        if used + wide > width:
            rows.append("")
            used = 0
        rows[-1] += character
        used += wide
    return rows


def abridged(label: str, text: str) -> list[str]:
    """The first lines of a prompt under a label, and how many more there are."""
    lines = text.split("\n")
    rest = len(lines) - ABRIDGED_LINES
    shown = [line[:160] + ("..." if len(line) > 160 else "") for line in lines[:ABRIDGED_LINES]]
    shown = [(" " * len(label) if at else label) + line for at, line in enumerate(shown)]
    return shown + ([f"[+{rest} lines]"] if rest > 0 else [])


class View(NamedTuple):
    """The rows at the foot of the screen, and where the cursor is in them."""

    rows: list[str]
    row: int
    column: int


class Box:
    """The input box: pieces of typed and pasted text."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytearray]] = []  # number of the paste (0: typed), bytes
        self.pastes = 0

    def add(self, data: bytes, *, pasted: bool) -> None:
        """Adds at the end."""
        self.pastes += pasted
        if pasted or not self.pieces or self.pieces[-1][0]:
            self.pieces.append((self.pastes if pasted else 0, bytearray()))
        self.pieces[-1][1].extend(data)

    def backspace(self) -> None:
        """Removes the last character, or the last paste where it is shown folded."""
        if not self.pieces:
            return
        number, data = self.pieces[-1]
        if number and self.shown(number, data).startswith("[Pasted text #"):
            data.clear()
        while data and 0x80 <= data.pop() < 0xC0:  # the later bytes of one UTF-8 character
            pass
        if not data:
            self.pieces.pop()

    def take(self) -> Prompt | None:
        """The input as a prompt, and the box empty; None where it was empty before."""
        data = b"".join(piece for _, piece in self.pieces)
        via = "paste" if any(number for number, _ in self.pieces) else "typed"
        self.pieces.clear()
        return Prompt(data.decode("utf-8", "surrogateescape"), via) if data else None

    @staticmethod
    def shown(number: int, data: bytearray) -> str:
        """A piece as the box shows it."""
        newlines = data.count(b"\n")
        if number and (newlines >= 3 or len(data) > 400):
            return f"[Pasted text #{number} +{newlines + 1} lines]"
        return data[-4000:].decode("utf-8", "replace")

    def view(self, width: int) -> View:
        """The box between its two rules, with the cursor at the end of the input."""
        text = "> " + "".join(self.shown(*piece) for piece in self.pieces[-50:])
        lines = text.split("\n")[-BOX_ROWS:]
        rows = [row for line in lines for row in wrap(clean(line), width)][-BOX_ROWS:]
        column = min(cells(rows[-1]), width)
        return View(["─" * width, *rows, "─" * width], len(rows), column)


class Terminal:
    """The terminal in raw mode, and what was last painted on it."""

    def __init__(self, *, inline: bool, brackets: bool) -> None:
        self.inline = inline
        self.lost = False
        self.painted: list[str] = []
        self.below = 0  # inline: rows between the top of the footer and the cursor
        self.title = ""
        self.before = termios.tcgetattr(0)
        tty.setraw(0, termios.TCSAFLUSH)  # throws away what was typed until now
        self.write(("" if inline else "\x1b[?1049h\x1b[2J") + ("\x1b[?2004h" if brackets else ""))

    def restore(self) -> None:
        """Gives the terminal back as it was."""
        down = "\r\n" * (len(self.painted) - self.below) if self.inline and self.painted else ""
        self.write(f"\x1b[?2004l{down}" + ("" if self.inline else "\x1b[?1049l"))
        try:
            termios.tcsetattr(0, termios.TCSANOW, self.before)
        except termios.error:  # the terminal is gone
            self.lost = True

    def write(self, text: str) -> None:
        """Writes all of the text, or notes that the terminal is gone."""
        data = memoryview(text.encode("utf-8", "replace"))
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            self.lost = True

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(1)
        except OSError:
            columns, rows = 80, 24
        return max(columns, 10), max(rows, 4)

    def paint(self, agent: Agent, now: float) -> None:
        """Brings the screen up to date in one write; only what changed is written."""
        title, view = agent.title(), agent.view(self.size()[0] - 1, now)
        out = f"\x1b]2;{title}\x07" if title != self.title else ""
        self.title = title
        out += self.inline_rows(agent.fresh, view) if self.inline else self.rows(agent.lines, view)
        agent.fresh.clear()
        self.write(out)

    def inline_rows(self, fresh: list[str], view: View) -> str:
        """The new lines go above the footer and scroll away; the footer is painted below them."""
        width = self.size()[0] - 1
        if not fresh and self.painted == view.rows and self.below == view.row:
            return f"\r\x1b[{view.column}C" if view.column else "\r"
        above = [row for line in fresh for row in wrap(line, width)]
        out = "\r" + (f"\x1b[{self.below}A" if self.below else "") + "\x1b[J"
        out += "\r\n".join([*above, *view.rows])
        up = len(view.rows) - 1 - view.row
        self.painted, self.below = list(view.rows), view.row
        out += f"\x1b[{up}A" if up else ""
        return out + "\r" + (f"\x1b[{view.column}C" if view.column else "")

    def rows(self, lines: deque[str], view: View) -> str:
        """The whole screen: the header, the last lines that fit, the footer at the bottom."""
        columns, height = self.size()
        room = max(height - 1 - len(view.rows), 0)
        body: list[str] = []
        for line in reversed(lines):
            if len(body) >= room:
                break
            body[:0] = wrap(line, columns - 1)
        body = body[-room:] if room else []
        rows = [HEADER[: columns - 1], *body, *[""] * (room - len(body)), *view.rows][-height:]
        old = self.painted if len(self.painted) == len(rows) else [None] * len(rows)
        out = "".join(
            f"\x1b[{at};1H\x1b[2K{row}"
            for at, (row, was) in enumerate(zip(rows, old, strict=True), 1)
            if row != was
        )
        self.painted = rows
        return f"{out}\x1b[{max(height - len(view.rows), 0) + view.row + 1};{view.column + 1}H"


# The interactive agent


class Agent:
    """The state of an interactive agent: keys and finished steps change it, a view shows it."""

    def __init__(self, conversation: Conversation, first: Prompt | None, *, trust: bool) -> None:
        self.conversation = conversation
        self.first = first  # submitted as soon as the input box is there
        self.choice: int | None = 0 if trust else None  # the option selected in the trust dialog
        self.box = Box()
        self.queue: deque[Prompt] = deque()
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.fresh: list[str] = []
        self.steps: Steps | None = None
        self.reply: Reply = None
        self.resume_at = 0.0
        self.command: Command | None = None
        self.question: str | None = None
        self.leave_until = 0.0  # until then a second C-c leaves
        self.exit_code: int | None = None
        self.farewell = ""

    def say(self, *texts: str) -> None:
        """Adds lines to the transcript."""
        for line in "\n".join(texts).split("\n"):
            line = clean(line[:KEPT_LINE_CHARACTERS])
            self.lines.append(line)
            self.fresh.append(line)

    def busy(self) -> bool:
        """Whether a job runs."""
        return self.steps is not None

    def leave(self, code: int, farewell: str = "") -> None:
        """Ends the agent after this turn."""
        self.exit_code, self.farewell = code, farewell

    def submit(self, prompt: Prompt) -> None:
        """Takes a prompt: it runs now, or after those before it."""
        self.conversation.add(prompt)
        if self.busy() or self.queue:
            self.say(*abridged("queued: ", prompt.text))
        self.queue.append(prompt)

    # Keys

    def press(self, key: Key, now: float) -> None:
        """Acts on one key, by what is on the screen."""
        if self.choice is not None:
            self.press_in_dialog(key, self.choice)
        elif self.question is not None and key.name in ("text", "paste", "enter"):
            self.press_in_question(key, now)
        else:
            self.press_in_box(key, now)

    def press_in_dialog(self, key: Key, choice: int) -> None:
        """The trust dialog: a paste is lost on it, Enter takes what is selected."""
        if key.name in ("up", "down"):
            self.choice = 1 - choice
        elif key.name == "text":
            numbers = [byte for byte in key.data if byte in b"12"]
            self.choice = numbers[-1] - ord("1") if numbers else choice
        elif key.name in ("interrupt", "escape") or (key.name == "enter" and choice == 0):
            self.leave(1)
        elif key.name == "enter":
            self.choice = None

    def press_in_question(self, key: Key, now: float) -> None:
        """A question: the first y or n that is typed answers it, all else is lost on it."""
        answer = re.search(b"[yYnN]", key.data) if key.name == "text" else None
        if answer is None:
            return
        self.reply = answer.group() in b"yY"
        self.say(f"{self.question} -> {'yes' if self.reply else 'no'}")
        self.question = None
        if rest := key.data[answer.end() :]:
            self.press(Key("text", rest), now)

    def press_in_box(self, key: Key, now: float) -> None:
        """The input box, and the keys that interrupt and leave."""
        leave_until, self.leave_until = self.leave_until, 0.0
        match key.name:
            case "text" | "paste":
                self.box.add(key.data, pasted=key.name == "paste")
            case "enter":
                self.enter()
            case "backspace":
                self.box.backspace()
            case "clear":
                self.box.take()
            case "leave" if not self.box.pieces:
                self.leave(0)
            case "interrupt" | "escape" if self.busy():
                self.interrupt()
            case "interrupt" if now < leave_until:
                self.leave(0)
            case "interrupt":
                self.box.take()
                self.leave_until = now + LEAVE_SECONDS
            case _:
                pass

    def enter(self) -> None:
        """Submits what is in the box."""
        prompt = self.box.take()
        if prompt is None:
            return
        if prompt.text == "/exit":
            self.leave(0)
        elif prompt == Prompt("?", "typed"):
            self.say("Enter submits, C-u clears, esc interrupts, /exit or C-c C-c leaves.")
        else:
            self.submit(prompt)

    # The job

    def interrupt(self) -> None:
        """Drops the job that runs; the prompts behind it follow."""
        self.end_job()
        self.say("Interrupted.")

    def end_job(self) -> None:
        """Forgets the job, and ends its program where one runs."""
        if self.command is not None:
            self.command.end()
        self.steps = self.command = self.question = self.reply = None
        self.resume_at = 0.0

    def advance(self, now: float) -> None:
        """Takes the job as far as it goes without waiting."""
        if self.first is not None and self.choice is None:
            self.submit(self.first)
            self.first = None
        for _ in range(STEPS_PER_TURN):
            if self.steps is None and self.queue:
                prompt = self.queue.popleft()
                self.say(*abridged("you: ", prompt.text))
                self.steps = job_steps(prompt.text)
                self.resume_at = now + MOMENT_SECONDS
            if self.command is not None:
                self.reply = self.command.outcome()
                if self.reply is None:
                    return
                self.command = None
            if self.steps is None or self.question is not None or now < self.resume_at:
                return
            self.step(self.steps, now)

    def step(self, steps: Steps, now: float) -> None:
        """Takes one step of the job."""
        reply, self.reply = self.reply, None
        try:
            step = steps.send(reply)
        except StopIteration:
            self.end_job()
            self.say("Done.")
            return
        match step:
            case Say(text):
                self.say(text)
            case Pause(seconds):
                self.resume_at = now + seconds
            case Run(argv):
                self.command = Command(argv)
            case Ask(question):
                self.question = clean(question)
            case Leave(code, message):
                self.leave(code, message)
                self.resume_at = now + FOREVER_SECONDS

    def patience(self, now: float) -> float | None:
        """How long the agent may wait for input; None: as long as it takes."""
        if self.command is not None:
            return COMMAND_POLL_SECONDS
        if self.busy() and self.question is None:
            return max(min(self.resume_at - now, FRAME_SECONDS), 0.0)
        return FRAME_SECONDS if self.leave_until > now else None

    # What is shown

    def title(self) -> str:
        """The window title."""
        if self.choice is not None or self.question is not None:
            return "sample: action required"
        return "sample: working" if self.busy() else "sample: ready"

    def view(self, width: int, now: float) -> View:
        """The foot of the screen: a dialog, a question, or the input box and the status."""
        if self.choice is not None:
            options = [f"  {option}" for option in TRUST_OPTIONS]
            options[self.choice] = f"> {TRUST_OPTIONS[self.choice]}"
            rows = [clean(os.getcwd()), TRUST_QUESTION, *options, "Enter to confirm"]
            return View([row[:width] for row in rows], 2 + self.choice, 0)
        rule = "─" * width
        if self.question is not None:
            asked = wrap(f"{self.question} (y/n)", width)[-BOX_ROWS:]
            rows = [rule, *asked, rule, "Waiting for your answer"]
            return View(rows, len(asked), cells(asked[-1]))
        box = self.box.view(width)
        status = "idle  ? for help"
        if self.busy():
            frame = SPINNER[int(now / FRAME_SECONDS) % len(SPINNER)]
            status = f"{frame} working (esc to interrupt)"
        elif now < self.leave_until:
            status = "press C-c again to leave"
        return box._replace(rows=[*box.rows, status[:width]])


class Signals:
    """The signals that came, and a pipe that makes a waiting select() notice them."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self.wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGWINCH):
            signal.signal(number, lambda received, _: self.caught.append(received))

    def take(self) -> list[int]:
        """The signals since the last time."""
        taken, self.caught = self.caught, []
        return taken


def read_keys(decoder: Decoder) -> list[Key] | None:
    """The keys that have arrived; None where the terminal is gone."""
    keys: list[Key] = []
    for _ in range(READS_PER_TURN):
        try:
            data = os.read(0, 65536)
        except OSError:
            data = b""
        if not data:
            return None
        keys += decoder.feed(data)
        if not select.select([0], [], [], 0)[0]:
            break
    return keys


def interact(agent: Agent, terminal: Terminal, decoder: Decoder, signals: Signals) -> int:
    """Drives the agent until it leaves; gives the exit code."""
    while True:
        now = time.monotonic()
        agent.advance(now)
        terminal.paint(agent, now)
        if agent.exit_code is not None:
            return agent.exit_code
        patience = ESCAPE_SECONDS if decoder.lone_escape() else agent.patience(now)
        ready = select.select([0, signals.wake], [], [], patience)[0]
        keys: list[Key] | None = []
        if signals.wake in ready:
            os.read(signals.wake, 512)
        if 0 in ready:
            keys = read_keys(decoder)
        elif not ready and decoder.lone_escape():
            decoder.pending = b""
            keys = [Key("escape")]
        for number in signals.take():
            if number != signal.SIGWINCH:
                return 128 + number
            terminal.painted = []
        if keys is None or terminal.lost:
            return 128 + signal.SIGHUP
        for key in keys:
            agent.press(key, time.monotonic())


def run_on_terminal(options: argparse.Namespace, first: Prompt | None, talk: Conversation) -> int:
    """Runs the interactive agent and gives the terminal back as it was."""
    if options.delay and not options.silent_start:
        print("Starting...", flush=True)
    time.sleep(options.delay)
    signals = Signals()
    agent = Agent(talk, first, trust=options.trust)
    terminal = Terminal(inline=options.inline, brackets=options.bracketed_paste)
    try:
        if options.inline:
            agent.say(HEADER)
        if options.resume:
            agent.say(f"resumed {options.resume} with {len(talk.prompts)} earlier prompts")
        return interact(agent, terminal, Decoder(brackets=options.bracketed_paste), signals)
    finally:
        agent.end_job()
        terminal.restore()
        if agent.farewell:
            terminal.write(f"{agent.farewell}\n")


# The command line


def build_parser() -> argparse.ArgumentParser:
    """The options, with the directives in the help."""
    rows = [f"  {usage:26}{purpose}" for usage, purpose in DIRECTIVES.items()]
    parser = argparse.ArgumentParser(
        prog="sample_agent.py",
        description="Sample agent: an offline stand-in for an agent CLI; no model, no network.",
        epilog="directives (lines of the prompt; other lines are ignored):\n"
        + "\n".join(rows)
        + """

examples:
  sample_agent.py                                   full-screen on this terminal
  sample_agent.py --prompt-file task.md             the same, with a first prompt
  sample_agent.py -p "@print hello"                 print the answer and leave
  printf '@write a.txt A\\n@commit Add a' | sample_agent.py -p

environment:
  SAMPLE_AGENT_LOG   each submitted prompt is appended to this file as one JSON line
  SAMPLE_AGENT_HOME  where conversations are kept (default ~/.sample-agent)

exit codes: 0 done; 1 the trust dialog was declined; 2 usage; 129, 130, 143 ended by HUP, INT,
TERM; @fail and @exit give their own.
""",
        # With a width given, argparse need not import shutil to find one.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100),
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("words", metavar="PROMPT", nargs="?", help="the first prompt, or @PATH of a file with it")
    add("--prompt", metavar="TEXT", help="the first prompt; --prompt=TEXT may begin with a dash")
    add("--prompt-file", metavar="PATH", help="a file with the first prompt")
    add("-p", "--print", action="store_true", dest="plain", help="answer on stdout and leave")
    add("--session", metavar="ID", help="name a new conversation")
    add("--resume", metavar="ID", help="continue a conversation")
    add("--delay", metavar="S", type=seconds_in, default=0.0, help="seconds before it is ready")
    add("--silent-start", action="store_true", help="show nothing during the delay")
    add("--trust", action="store_true", help="ask first whether the folder is trusted")
    add("--inline", action="store_true", help="stay on the main screen, so that history scrolls")
    add(
        "--no-bracketed-paste",
        action="store_false",
        dest="bracketed_paste",
        help="do not ask the terminal to mark pastes",
    )
    return parser


def read_file(path: str) -> Prompt:
    """The prompt in a file, exactly as it stands."""
    try:
        with open(path, "rb") as file:
            return Prompt(file.read().decode("utf-8", "surrogateescape"), "file")
    except OSError as error:
        raise UsageError(f"cannot read the prompt file: {error}") from error


def prompt_from(options: argparse.Namespace) -> Prompt | None:
    """The prompt that the command line gives, if it gives one."""
    given = (options.words, options.prompt, options.prompt_file)
    if sum(value is not None for value in given) > 1:
        raise UsageError("give one of PROMPT, --prompt and --prompt-file")
    if options.prompt_file is not None:
        return read_file(options.prompt_file)
    if options.words is not None and options.words[:1] == "@" and os.path.isfile(options.words[1:]):
        return read_file(options.words[1:])
    text = options.prompt if options.words is None else options.words
    return Prompt(text, "argument") if text else None


def main() -> int:
    """Runs the command; gives the exit code."""
    options = build_parser().parse_args()
    try:
        if options.session is not None and options.resume is not None:
            raise UsageError("give --session for a new conversation, --resume for an earlier one")
        prompt = prompt_from(options)
        on_terminal = not options.plain and os.isatty(0) and os.isatty(1)
        if prompt is None and not on_terminal and not os.isatty(0):
            text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
            prompt = Prompt(text, "stdin") if text else None
        if prompt is None and not on_terminal:
            raise UsageError("no prompt: give it as PROMPT, in a file, or on stdin")
        name = options.session if options.resume is None else options.resume
        talk = Conversation(name, resume=options.resume is not None)
        if prompt is not None and not on_terminal:
            return run_and_print(prompt, talk)
        return run_on_terminal(options, prompt, talk)
    except UsageError as error:
        print(f"sample_agent.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at the end fails once more
        return 1
    except OSError as error:
        print(f"sample_agent.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
