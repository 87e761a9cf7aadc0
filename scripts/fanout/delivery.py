"""Bring a prompt to an agent's screen, and prove that it was taken.

Each delivery is a generator: it is sent the pane's next look and yields for another one. So one
loop drives any number of panes with one tmux call a round.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from fanout.errors import ExitCode, SkillError, usage
from fanout.harness import Harness, dialog_on_screen
from fanout.output import plain_text
from fanout.tmux import Pane, Server

ROUND = 0.05
STILL = 0.5
DIALOG_STILL = 1.0
# Some programs swallow an Enter that follows a paste too closely (gemini: at once; 0.5 s is safe).
PASTE_PAUSE = 0.5
PASTE_LIMIT = 15.0
EVIDENCE = 1.5
ENTERS = 3

PRIVATE_MODE = re.compile(rb"\x1b\[\?([0-9;]*)([hl])")


class Look(NamedTuple):
    """What a pane shows at one moment; `pane` is None when it is gone."""

    pane: Pane | None
    text: str


class Target(NamedTuple):
    """A pane to deliver to. `events` is the file that its agent reports into."""

    server: Server
    pane: str
    harness: Harness
    log: str
    events: str


class Outcome(NamedTuple):
    """How a delivery ended. `dialog` names the question that stands in the way."""

    delivered: bool
    evidence: str
    dialog: str | None
    screen: str
    ended: bool = False
    typed: bool = False


Delivery = Generator[None, Look, Outcome]


def drive(
    server: Server, deliveries: dict[str, Delivery], deadline: float | None
) -> dict[str, Outcome | SkillError]:
    """Run deliveries by pane id to their ends; one that fails is answered with its error.

    At `deadline` (of time.monotonic) those that are left are answered with `deadline-passed`.
    """
    outcomes: dict[str, Outcome | SkillError] = {}
    waiting = dict(deliveries)
    for delivery in waiting.values():
        next(delivery)
    while waiting:
        panes, screens = server.look(list(waiting))
        for pane, delivery in list(waiting.items()):
            try:
                delivery.send(Look(panes.get(pane), screens.get(pane, "")))
            except StopIteration as stop:
                outcomes[pane] = stop.value
                del waiting[pane]
            except SkillError as error:
                outcomes[pane] = error
                del waiting[pane]
        if waiting and deadline is not None and time.monotonic() >= deadline:
            late = deadline_passed("deliver the prompt")
            return {**outcomes, **dict.fromkeys(waiting, late)}
        if waiting:
            time.sleep(ROUND)
    return outcomes


def deadline_passed(what: str) -> SkillError:
    """The command's own deadline came first."""
    return SkillError(
        "deadline-passed",
        f"the deadline passed before this could be done: {what}",
        "give a longer --timeout",
        exit_code=ExitCode.TIMED_OUT,
    )


def deliver(target: Target, prompt: str, *, ready_timeout: float) -> Delivery:
    """Wait until the agent takes input, paste the prompt, press Enter, look for evidence."""
    outcome = yield from wait_ready(target.harness, ready_timeout)
    if outcome is not None:
        return outcome
    return (yield from submit(target, prompt))


def wait_ready(harness: Harness, timeout: float) -> Generator[None, Look, Outcome | None]:
    """Wait for the input prompt itself; the outcome says what else came first.

    With `ready` patterns: one matches and none of `waiting` does. Without: something was printed
    and the screen has been still for half a second.
    """
    deadline = time.monotonic() + timeout
    seen = ""
    dialog: str | None = None
    since = dialog_since = time.monotonic()
    while True:
        look = yield
        moment = time.monotonic()
        if look.pane is None or look.pane.dead:
            return Outcome(False, "", None, look.text, ended=True)
        if look.text != seen:
            seen, since = look.text, moment
        found = dialog_on_screen(harness, look.text, look.pane.title)
        if found != dialog:
            dialog, dialog_since = found, moment
        if dialog is not None:
            # A dialog that stands still will not go away by itself.
            if moment - dialog_since >= DIALOG_STILL or moment >= deadline:
                return Outcome(False, "", dialog, look.text)
        elif harness.ready.patterns:
            if harness.ready.match(look.text, look.pane.title) is not None:
                return None
        elif look.text.strip() and moment - since >= STILL:
            return None
        if moment >= deadline:
            return Outcome(False, "", None, look.text)


def submit(
    target: Target, prompt: str, drawn_as: Callable[[str, set[int]], None] | None = None
) -> Delivery:
    """Paste once, press Enter alone, and look for evidence; only Enter may be repeated.

    `drawn_as` is told the screen with the text on it, and the rows that show it, before Enter.
    """
    before = yield
    if before.pane is None or before.pane.dead:
        return Outcome(False, "", None, before.text, ended=True)
    events_size = size_of(target.events)
    text = pasteable(prompt, target.log)
    target.server.paste(target.pane, text.encode())

    # Wait for the paste to be drawn. Rows that go on moving by themselves (a spinner) are noise.
    pasted = still_since = time.monotonic()
    moved: list[int] = []
    noise: set[int] = set()
    drawn = before.text
    while True:
        look = yield
        moment = time.monotonic()
        if look.pane is None or look.pane.dead:
            return Outcome(False, "", None, look.text, ended=True, typed=True)
        changed = changed_rows(drawn, look.text) - noise
        if changed:
            if moment - pasted > PASTE_PAUSE:
                noise |= changed.intersection(moved)
                moved += changed
            still_since = moment
            drawn = look.text
        quiet = moment - still_since >= STILL / 2
        if moment - pasted >= PASTE_PAUSE and (quiet or moment - pasted >= PASTE_LIMIT):
            break
    echo = changed_rows(before.text, drawn) - noise
    if drawn_as is not None:
        drawn_as(drawn, echo)
    return (yield from press_enter(target, look, drawn, echo, noise, events_size))


def press_enter(
    target: Target,
    look: Look,
    drawn: str,
    echo: set[int],
    noise: set[int],
    events_size: int,
) -> Delivery:
    """Press Enter until something shows that the text which stands on the screen was taken."""
    harness = target.harness
    if look.pane is None:
        return Outcome(False, "", None, look.text, ended=True, typed=True)
    cursor = look.pane.cursor_y
    was_busy = harness.busy.match(look.text, look.pane.title) is not None
    for _ in range(ENTERS):
        dialog = dialog_on_screen(harness, look.text, look.pane.title)
        if dialog is not None:
            # The Enter would answer the dialog.
            return Outcome(False, "", dialog, look.text, typed=True)
        target.server.press(target.pane, "Enter")
        pressed = time.monotonic()
        while time.monotonic() - pressed < EVIDENCE:
            look = yield
            if size_of(target.events) > events_size:
                return Outcome(True, "event", None, look.text, typed=True)
            if look.pane is None or look.pane.dead:
                return Outcome(False, "", None, look.text, ended=True, typed=True)
            if not was_busy and harness.busy.match(look.text, look.pane.title) is not None:
                return Outcome(True, "busy", None, look.text, typed=True)
            # Taking the prompt clears the rows that showed it, or moves on below them; a change
            # elsewhere proves something only where the prompt was not shown at all.
            answer = changed_rows(drawn, look.text) - noise
            if answer & echo or (answer and (not echo or look.pane.cursor_y != cursor)):
                return Outcome(True, "screen", None, look.text, typed=True)
    return Outcome(False, "", None, look.text, typed=True)


def changed_rows(before: str, after: str) -> set[int]:
    """The numbers of the rows that differ between two screens."""
    old, new = before.split("\n"), after.split("\n")
    length = max(len(old), len(new))
    old += [""] * (length - len(old))
    new += [""] * (length - len(new))
    return {number for number in range(length) if old[number] != new[number]}


def size_of(path: str) -> int:
    """The size of a file in bytes; 0 when it is not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def takes_bracketed_paste(log: str) -> bool:
    """Whether a pane's program has asked for bracketed paste (mode 2004), by its output.

    The newest switch decides; the log is read backwards in pieces.
    """
    overlap = 32
    try:
        with open(log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - 1_000_000)
                file.seek(start)
                for found in reversed(
                    list(PRIVATE_MODE.finditer(file.read(end - start + overlap)))
                ):
                    if b"2004" in found.group(1).split(b";"):
                        return found.group(2) == b"h"
                end = start
    except OSError:
        return False
    return False


def pasteable(prompt: str, log: str) -> str:
    """The text to paste, if it can arrive whole. Raises SkillError `prompt-unfit` (exit 2)."""
    require_pasteable(prompt)
    if takes_bracketed_paste(log):
        return prompt
    # Without brackets each line end is an Enter; a last one only stands for the Enter to come.
    line = prompt.rstrip("\n")
    if "\n" in line:
        raise usage(
            "prompt-unfit",
            "the agent has not asked for bracketed paste: each line would be submitted by itself",
            "send a single line, or start the agent with --prompt-mode file or argument",
        )
    return line


def require_pasteable(prompt: str) -> None:
    """Demand text that a terminal can take. Raises SkillError `prompt-unfit` (exit 2)."""
    for number, character in enumerate(prompt):
        point = ord(character)
        if (point < 32 and character not in "\n\t") or 127 <= point < 160:
            raise usage(
                "prompt-unfit",
                f"the prompt holds the control character U+{point:04X} at position {number}; "
                "a paste cannot carry it",
                "remove it (`tr -d '\\r'` for line ends of Windows), or use --prompt-mode file",
            )


def screen_excerpt(text: str, lines: int = 15) -> str:
    """The last lines of a screen that hold something, safe to show."""
    rows = [row.rstrip() for row in plain_text(text).split("\n") if row.strip()]
    return "\n".join(row[:200] for row in rows[-lines:])
