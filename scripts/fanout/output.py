"""The answer on stdout, text or JSON, and narration on stderr. The only module that prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys

from fanout.errors import ExitCode, SkillError
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# CSI, OSC (ended by BEL or ST), other string controls, and two-byte escapes. Patterns are compiled
# when they are needed: that costs more than the rest of an import.
ESCAPES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[ -/]*[0-~]"
)
LETTERS = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"


class Answer(NamedTuple):
    """What a command has to say: `text` for a person, `data` for a program."""

    command: str
    text: str
    data: dict[str, Any]
    exit_code: ExitCode = ExitCode.DONE
    error: SkillError | None = None
    next_actions: tuple[dict[str, Any], ...] = ()


def next_action(action: str, command: str | None, why: str) -> dict[str, Any]:
    """One row of `next_actions`; `command` is one line to paste, None where words are needed."""
    return {"action": action, "command": command, "why": why}


def plain_text(text: str) -> str:
    """The text without terminal control sequences; newlines and tabs stay."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    if "\x1b" in text:
        text = re.sub(ESCAPES, "", text)
    return re.sub(CONTROLS, "", text)


def path_text(path: str) -> str:
    """A path on one line: quoted as git does where it holds what a terminal would not show."""
    # What is no UTF-8 does not count as printable either.
    if path.isprintable() and '"' not in path:
        return path
    return '"' + "".join(letter_text(letter) for letter in path) + '"'


def letter_text(letter: str) -> str:
    """One letter of a quoted path."""
    if letter in LETTERS:
        return LETTERS[letter]
    if letter.isprintable():
        return letter
    return "".join(f"\\{byte:03o}" for byte in letter.encode("utf-8", "surrogateescape"))


def path_list(paths: Iterable[str], limit: int | None = None) -> str:
    """Paths in a line; how many more there are where a limit leaves some out."""
    rows = list(paths)
    shown = ", ".join(map(path_text, rows[:limit]))
    left = len(rows) - len(rows[:limit])
    return f"{shown} and {left} more" if left else shown


def shorten(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a mark that says how many were left out."""
    return (
        text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"
    )


def print_answer(answer: Answer, as_json: bool) -> int:
    """Print the answer; returns the exit code. A reader that went away is not an error."""
    try:
        print_parts(answer, as_json)
    except SkillError as error:
        say(f"error: {error.message}")
        return int(answer.exit_code or error.exit_code)
    return int(answer.exit_code)


def print_parts(answer: Answer, as_json: bool) -> None:
    """The answer on stdout, for a person also its error and what to do next on stderr."""
    if as_json:
        body: dict[str, Any] = {
            "schema": 1,
            "command": answer.command,
            "ok": answer.exit_code == ExitCode.DONE,
            "data": answer.data,
            "next_actions": list(answer.next_actions),
        }
        if answer.error is not None:
            body["error"] = answer.error.to_json()
        write_out(json.dumps(body, indent=2, ensure_ascii=True) + "\n")
        return
    if answer.text:
        write_out(answer.text.rstrip("\n") + "\n")
    if answer.error is not None:
        say(f"error: {answer.error.message}")
        if answer.error.hint:
            say(f"hint: {answer.error.hint}")
    for row in answer.next_actions:
        say(f"next: {row['why']}" + (f"\n      {row['command']}" if row["command"] else ""))


def open_standard_streams() -> None:
    """Put the null device where stdin, stdout or stderr is closed; keep all else to this process.

    The next file that is opened would take such a number, and a child's output would go there. A
    tmux server with the caller's end of a pipe would keep its reader waiting.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number in open_descriptors():
        if number > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(number, False)


def open_descriptors() -> list[int]:
    """The descriptors that may be open."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return list(range(256))


def write_out(text: str) -> bool:
    """Write to stdout as UTF-8; False when its reader has gone, so that more is of no use.

    Raises SkillError `output-failed` when the text cannot be written.
    """
    if sys.stdout is None:
        return False
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return False
        raise SkillError("output-failed", f"cannot write the answer: {error}") from error
    return True


def reader_gone() -> bool:
    """Whether whoever read stdout has gone, so that more is of no use."""
    import select

    if sys.stdout is None:
        return True
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def say(text: str) -> None:
    """Narrate on stderr; nobody may be there to read it.

    What others wrote may be a part of it: control sequences are left out.
    """
    text = plain_text(text)
    if sys.stderr is None:
        return
    try:
        sys.stderr.buffer.write((text + "\n").encode("utf-8", "backslashreplace"))
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def progress(text: str) -> None:
    """Narrate something that takes long, only to a person at a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        say(text)
