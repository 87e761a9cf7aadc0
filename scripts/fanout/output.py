"""The answer on stdout, text or JSON, and narration on stderr. The only module that prints."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, NamedTuple

from fanout.errors import ExitCode, SkillError

# CSI, OSC (ended by BEL or ST), other string controls, and two-byte escapes.
ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[PX^_][^\x1b]*\x1b\\|\x1b[ -/]*[0-~]"
)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
    return CONTROLS.sub("", ESCAPES.sub("", text.replace("\r\n", "\n")))


def shorten(text: str, limit: int) -> str:
    """The text, or its first `limit` characters and a mark that says how many were left out."""
    return (
        text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"
    )


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the answer; a reader that went away is not an error."""
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


def write_out(text: str) -> None:
    """Write to stdout as UTF-8; on a closed pipe point stdout elsewhere and go on."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Narrate on stderr."""
    try:
        sys.stderr.buffer.write((text + "\n").encode("utf-8", "backslashreplace"))
        sys.stderr.flush()
    except OSError:
        pass


def progress(text: str) -> None:
    """Narrate something that takes long, only to a person at a terminal."""
    if sys.stderr.isatty():
        say(text)
