"""Bring a prompt to an agent's screen, and prove that it was taken.

Each delivery is a generator: it is sent the pane's next look and yields for another one. So one
loop drives any number of panes with one tmux call a round.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator

from fanout import records
from fanout.errors import ExitCode, SkillError, usage
from fanout.fields import NamedTuple
from fanout.harness import Harness, dialog_on_screen, known_dialog, live_part
from fanout.output import plain_text
from fanout.tmux import Pane, Server

ROUND = 0.05
STILL = 0.5
DIALOG_STILL = 1.0
# How long a dialog may stand on after its keys were pressed.
ANSWER_WAIT = 5.0
# How long the input prompt must stay where a conversation is to be drawn and none is seen: in
# seconds, and as a part of the start.
REDRAW = 3.0
REDRAW_PART = 0.5
# The same where a mapping knows questions of the start: one may be drawn over the input prompt.
QUESTION_PART = 0.5
# How still the screen of a program without bracketed paste, or without a sign that it is known to
# give, must be before it is typed to.
PATIENCE = 3.0
# So long a row or two may move beside a screen that stands still: a clock, not a start.
CLOCK_PATIENCE = 10.0
CLOCK_ROWS = 2
# Some programs swallow an Enter that follows a paste too closely (gemini: at once; 0.5 s is safe).
PASTE_PAUSE = 0.5
PASTE_LIMIT = 15.0
# Bytes of a prompt that give each of these waits one more second.
SLOW_BYTES = 10_000
# An agent that is slow to draw a paste would take an Enter in the same read for a part of it.
ECHO_WAIT = 3.0
# What an agent asks of its terminal reaches the screen and the log at different moments.
BRACKET_WAIT = 2.0
EVIDENCE = 1.5
# How long a change must last that may be no more than a screen which is drawn anew.
DOUBT = 1.0
# Nothing is pressed after the last Enter: a program on a busy machine may still come to it.
LAST_EVIDENCE = 3.5
ENTERS = 3
# A terminal in line mode drops what is longer (macOS 1024, Linux 4096 bytes).
LINE_LIMIT = 1000

# The lines of prompts that are looked for on a screen, and how many letters make one telling.
LAST_LINES = 400
TELLING = 8
# What stands in the input line in place of a long text.
PASTED = r"(?i)pasted|\[paste\b"
# What boxes and rules are drawn with: it says nothing in an excerpt.
FRAME = "[\u2500-\u259f]+"
# A switch of private modes, or the full reset that turns them all off.
PRIVATE_MODE = rb"\x1b\[\?([0-9;]{0,100})([hl])|\x1bc"


class Look(NamedTuple):
    """What a pane shows at one moment; `pane` is None when it is gone."""

    pane: Pane | None
    text: str


class Target(NamedTuple):
    """A pane to deliver to. `events` is the file that its agent reports into.

    `note` is told the screen before anything is typed, and then, before Enter, the screen with the
    text on it and the rows that show it: what must outlive a kill. `said` are the prompts that the
    agent was given before: its screen may repeat them. `answering` is there while it starts.
    `redraws` says that it takes up an earlier conversation, and will draw that.
    """

    server: Server
    pane: str
    harness: Harness
    log: str
    events: str
    note: Callable[[str, str | None, list[int]], None]
    said: str = ""
    answering: Answering | None = None
    redraws: bool = False


class Answering:
    """Answers the dialogs of one start by the keys that its mapping names, each dialog once.

    `press` presses keys, `tell` is told of each answer.
    """

    def __init__(
        self,
        harness: Harness,
        press: Callable[[tuple[str, ...]], None],
        tell: Callable[[str, tuple[str, ...]], None],
    ) -> None:
        self.harness = harness
        self.press = press
        self.tell = tell
        self.standing = -1
        self.since = 0.0
        self.pressed: dict[int, float] = {}

    def look(self, text: str, title: str, said: str, moment: float) -> str | None:
        """What one look shows: the name of a dialog that is left to a person, or None.

        It is empty while an answer is on its way.
        """
        live = live_part(self.harness, text)[1]
        found = known_dialog(self.harness, live, title, said)
        if found is None:
            self.standing = -1
            return None
        number, name = found
        keys = self.harness.dialogs[number].keys
        if not keys:
            return name
        if number in self.pressed:
            over = moment - self.pressed[number] >= ANSWER_WAIT
            return f"{name}: its keys were pressed, and it is still there" if over else ""
        if number != self.standing:
            self.standing, self.since = number, moment
        elif moment - self.since >= STILL:
            # One that was only just drawn might not read keys yet.
            self.press(keys)
            self.pressed[number] = moment
            self.tell(name, keys)
        return ""


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
            late = {pane: deadline_passed("deliver the prompt") for pane in waiting}
            return {**outcomes, **late}
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
    outcome = yield from wait_ready(target, ready_timeout)
    if outcome is not None:
        return outcome
    return (yield from submit(target, prompt))


def wait_ready(target: Target, timeout: float) -> Generator[None, Look, Outcome | None]:
    """Wait for the input prompt itself; the outcome says what else came first.

    With `ready` patterns, or else `idle` ones: one matches and none of `waiting` does. Instead of
    an `idle` one a screen will do that is still for long and does not look busy. Without both:
    something was printed, nothing looks busy, and the screen has been still for half a second, or
    all of it but a clock for long. A program that has not asked for bracketed paste may only have
    printed a warning on its way up, and what is typed before it reads keys is lost; so it gets more
    time. One that takes up a conversation may show its input prompt, then clear the screen for the
    history, and lose what came in between (gemini): there an earlier prompt must be seen, or the
    input prompt must stay, the longer the slower the start was. It must stay also where the mapping
    knows questions of the start.
    """
    harness = target.harness
    ready = harness.ready if harness.ready.patterns else harness.idle
    # An earlier prompt may be long, and there are many looks.
    history = lines_of(target.said) if target.redraws else []
    begun = time.monotonic()
    deadline = begun + timeout
    seen = ""
    dialog: str | None = None
    ready_since: float | None = None
    since = dialog_since = begun
    moved: dict[int, float] = {}
    while True:
        look = yield
        moment = time.monotonic()
        if look.pane is None or look.pane.dead:
            return Outcome(False, "", None, look.text, ended=True)
        if look.text != seen:
            moved.update(dict.fromkeys(changed_rows(seen, look.text), moment))
            seen, since = look.text, moment
        found = None
        if target.answering is not None:
            found = target.answering.look(look.text, look.pane.title, target.said, moment)
        if found == "" and moment < deadline:
            since = dialog_since = moment
            ready_since = None
            continue
        found = found or dialog_on_screen(harness, look.text, look.pane.title)
        if found != dialog:
            dialog, dialog_since = found, moment
        if dialog is not None:
            ready_since = None
            # A dialog that stands still will not go away by itself.
            if moment - dialog_since >= DIALOG_STILL or moment >= deadline:
                return Outcome(False, "", dialog, look.text)
        elif ready.patterns:
            if look.text.strip() and ready.match(look.text, look.pane.title) is not None:
                ready_since = ready_since or moment
                if moment - ready_since >= staying(target, history, look.text, ready_since - begun):
                    return None
            else:
                ready_since = None
                quiet = harness.busy.match(look.text, look.pane.title) is None
                quiet = quiet and look.text.strip() and moment - since >= PATIENCE
                if quiet and not harness.ready.patterns:
                    # Its sign of idleness may come only after the first prompt (claude, resumed).
                    return None
        elif harness.busy.match(look.text, look.pane.title) is not None:
            since = moment
        elif look.text.strip() and moment - since >= STILL:
            patient = moment - since >= PATIENCE or moment >= deadline
            if patient or takes_bracketed_paste(target.log):
                return None
        elif look.text.strip() and moment - begun >= CLOCK_PATIENCE:
            rows = [row for row, at in moved.items() if moment - at < CLOCK_PATIENCE]
            clock = len(rows) <= CLOCK_ROWS and look.pane.cursor_y not in rows
            if clock and takes_bracketed_paste(target.log):
                return None
        if moment >= deadline:
            return Outcome(False, "", None, look.text)


def staying(target: Target, history: list[str], text: str, start: float) -> float:
    """For how many seconds an input prompt must stay that came `start` seconds after the start.

    `history` are lines of the earlier conversation.
    """
    if not target.redraws:
        # An Enter would answer a question that comes a moment later (codex).
        return 0.0 if target.answering is None else max(STILL, QUESTION_PART * start)
    if shows_line_of(history, text):
        return STILL
    return max(REDRAW, REDRAW_PART * start)


def submit(target: Target, prompt: str) -> Delivery:
    """Paste once, press Enter alone, and look for evidence; only Enter may be repeated."""
    before = yield
    asked = time.monotonic()
    while (
        is_alive(before)
        and why_brackets(prompt)
        and not takes_bracketed_paste(target.log)
        and time.monotonic() - asked < BRACKET_WAIT
    ):
        before = yield
    if not is_alive(before):
        return Outcome(False, "", None, before.text, ended=True)
    events_size = size_of(target.events)
    own = own_lines(prompt, target.said) if target.redraws else []
    text = pasteable(prompt, target.log)
    slow = len(text) / SLOW_BYTES
    target = target._replace(said=f"{target.said}\n{prompt}")
    target.note(before.text, None, [])
    target.server.paste(target.pane, text.encode())

    # Wait for the paste to be drawn. Rows that go on moving by themselves (a spinner) are noise.
    pasted = still_since = row_since = time.monotonic()
    row = cursor_row(before)
    moved: list[int] = []
    noise: set[int] = set()
    drawn = before.text
    shown, lag = False, 0.0
    while True:
        look = yield
        moment = time.monotonic()
        if not is_alive(look):
            return Outcome(False, "", None, look.text, ended=True, typed=True)
        changed = changed_rows(drawn, look.text) - noise
        if changed:
            if moment - pasted > PASTE_PAUSE:
                noise |= changed.intersection(moved)
                moved += changed
            still_since = moment
            drawn = look.text
        if cursor_row(look) != row:
            row, row_since = cursor_row(look), moment
        shown = shows_paste(before.text, drawn, text)
        if shown and lag == 0.0:
            # As long as it took to draw the text, so long may it take to act on an Enter.
            lag = moment - pasted
        patience = STILL / 2 if shown else ECHO_WAIT + slow
        quiet = moment - still_since >= patience
        if moment - pasted >= PASTE_PAUSE and (quiet or moment - pasted >= PASTE_LIMIT + slow):
            break
    echo = changed_rows(before.text, drawn) - noise
    target.note(before.text, drawn, sorted(echo))
    # A row that does not stand still is no input line.
    shows_text = row != cursor_row(before) and time.monotonic() - row_since >= STILL / 2
    typed = row if shows_text else None
    foot = foot_of(before.text, drawn, text)
    return (
        yield from press_enter(
            target,
            look,
            drawn,
            echo,
            noise,
            events_size,
            typed,
            slow + lag,
            foot=foot,
            own=own,
            shown=shown,
        )
    )


def press_enter(
    target: Target,
    look: Look,
    drawn: str,
    echo: set[int],
    noise: set[int],
    events_size: int,
    typed: str | None = None,
    slow: float = 0.0,
    *,
    foot: list[str],
    own: list[str] | None = None,
    shown: bool = True,
) -> Delivery:
    """Press Enter until something shows that the text which stands on the screen was taken.

    `typed` is the row with the cursor, where the text shows on it, and `foot` what the text ends
    the screen with (see `foot_of`). Where the text was not `shown`
    the program may be slow to draw it, or have come up only since then and lost it: then what
    changes on the screen proves nothing, and its signs of work and its reports alone count. Where
    a program draws an earlier conversation anew, a text may be lost with the input line: then one
    of its `own` lines must be seen in the conversation, or what stands for a long text there.
    """
    harness = target.harness
    if look.pane is None:
        return Outcome(False, "", None, look.text, ended=True, typed=True)
    text = Shown(drawn, echo, noise, look.pane.cursor_y, typed, foot)
    prompted = live_part(harness, look.text)[0]
    # Only a look that begins after the Enter proves something: the text itself may hold the words.
    was_busy = harness.busy.match(look.text, look.pane.title) is not None
    was_idle = harness.idle.match(look.text, look.pane.title) is not None
    for presses in range(1, ENTERS + 1):
        dialog = dialog_on_screen(harness, look.text, look.pane.title, target.said)
        if dialog is not None:
            # The Enter would answer the dialog.
            return Outcome(False, "", dialog, look.text, typed=True)
        target.server.press(target.pane, *harness.submit_keys)
        pressed = time.monotonic()
        changed_since: float | None = None
        patience = slow + (LAST_EVIDENCE if presses == ENTERS else EVIDENCE)
        while time.monotonic() - pressed < patience:
            look = yield
            if reports_start(target.events, events_size):
                return Outcome(True, "event", None, look.text, typed=True)
            if look.pane is None or look.pane.dead:
                return Outcome(False, "", None, look.text, ended=True, typed=True)
            prompted_again, live = live_part(harness, look.text)
            known = known_dialog(harness, live, look.pane.title, target.said)
            if known is not None:
                # A question of the start, drawn over an input line that was shown too early: what
                # changed on the screen is no sign that the prompt was taken (codex).
                return Outcome(False, "", known[1], look.text, typed=True)
            if not was_busy and harness.busy.match(look.text, look.pane.title) is not None:
                return Outcome(True, "busy", None, look.text, typed=True)
            if was_idle and harness.idle.match(look.text, look.pane.title) is None:
                return Outcome(True, "idle", None, look.text, typed=True)
            if not shown:
                continue
            # Two looks in a row, since one may catch the screen half drawn; more of them where the
            # input prompt is not there again, or the cursor alone has left the text: the program
            # may be drawing the screen anew, text and all.
            moment = time.monotonic()
            whole = (prompted_again or not prompted) and not stands(foot, look.text)
            if not is_taken(text, look.text, look.pane.cursor_y, presses):
                changed_since = None
            elif changed_since is None:
                changed_since = moment
            elif own and not shows_line_of(own, look.text) and not re.search(PASTED, look.text):
                continue
            elif whole or moment - changed_since >= DOUBT:
                return Outcome(True, "screen", None, look.text, typed=True)
    return Outcome(False, "", None, look.text, typed=True)


class Shown(NamedTuple):
    """A text on the screen before Enter.

    `echo` are the rows that show it, `noise` those that move by themselves, `cursor` the row with
    the cursor, `typed` what that one holds, where the text shows on it, and `foot` the rows that
    hold something from the text's last one down (see `foot_of`).
    """

    screen: str
    echo: set[int]
    noise: set[int]
    cursor: int
    typed: str | None
    foot: list[str]


def is_taken(shown: Shown, screen: str, cursor: int, presses: int = 1) -> bool:
    """Whether a later screen shows that a text has left the input line."""
    if not screen.strip():
        return False
    if shown.typed is not None:
        rows = screen.split("\n")
        return row_at(rows, cursor) != shown.typed and not is_in_box(
            shown.typed, rows, cursor, presses
        )
    if stands(shown.foot, screen):
        return False
    # Taking the text clears the rows that showed it, or moves on below them; a change elsewhere
    # proves something only where it was not shown at all.
    answer = changed_rows(shown.screen, screen) - shown.noise
    moved_on = not shown.echo or cursor != shown.cursor
    return bool(answer & shown.echo) or (bool(answer) and moved_on)


def is_in_box(typed: str, rows: list[str], cursor: int, presses: int) -> bool:
    """Whether a text stands above the cursor in its input box, since Enters became new lines."""
    above = [row_at(rows, cursor - number) for number in range(1, presses + 1)]
    below = any(row.strip() for row in rows[cursor + 1 :])
    return below and bool(typed.strip()) and typed in above


def is_alive(look: Look) -> bool:
    """Whether the pane's program runs."""
    return look.pane is not None and not look.pane.dead


def cursor_row(look: Look) -> str:
    """The text of the row with the cursor."""
    return "" if look.pane is None else row_at(look.text.split("\n"), look.pane.cursor_y)


def row_at(rows: list[str], number: int) -> str:
    """One row of a screen; empty outside of it."""
    return rows[number] if 0 <= number < len(rows) else ""


def reports_start(events: str, after: int) -> bool:
    """Whether the agent has reported `started` after this place in its events.

    The other kinds may still come from an earlier prompt.
    """
    if size_of(events) <= after:
        return False
    try:
        with open(events, "rb") as file:
            file.seek(after)
            lines = file.read(1_000_000).splitlines()
    except OSError:
        return False
    found = [records.parse_event(line) for line in lines]
    return any(event is not None and event.event == "started" for event in found)


def shows_paste(before: str, after: str, text: str) -> bool:
    """Whether a screen shows a text that was pasted: its first or last line, or a placeholder."""
    return bool(paste_rows(before, after, text))


def paste_rows(before: str, after: str, text: str) -> list[int]:
    """The rows of a screen that show a text which was pasted, from the top."""
    lines = [line[:40] for line in map(squeezed, text.split("\n")) if line]
    rows = after.split("\n")
    new = sorted(number for number in changed_rows(before, after) if number < len(rows))
    if not lines:
        return new
    return [
        number for number in new
        if re.search(PASTED, rows[number])
        or any(end in squeezed(rows[number]) for end in (lines[0], lines[-1]))
    ]  # fmt: skip


def foot_of(before: str, drawn: str, text: str) -> list[str]:
    """What a screen ends with from the lowest row that shows a pasted text, without empty rows."""
    shown = paste_rows(before, drawn, text)
    return filled_rows("\n".join(drawn.split("\n")[shown[-1] :])) if shown else []


def stands(foot: list[str], screen: str) -> bool:
    """Whether a text stands in its input box yet, wherever a program that redraws put the box.

    It does while the text's last row is as far from the end as before. Without anything below it
    that cannot be told.
    """
    rows = filled_rows(screen)
    return 1 < len(foot) <= len(rows) and rows[-len(foot)] == foot[0]


def filled_rows(screen: str) -> list[str]:
    """The rows of a screen that hold something."""
    return [row.rstrip() for row in screen.split("\n") if row.strip()]


def lines_of(text: str) -> list[str]:
    """The lines of a text by which it is known on a screen: the newest ones, cut and squeezed."""
    lines = [squeezed(line)[:40] for line in text.split("\n")[-LAST_LINES:]]
    return [line for line in lines if len(line) >= TELLING]


def own_lines(prompt: str, said: str) -> list[str]:
    """The lines of a prompt that no other of the prompts has which an agent was `said`.

    It may be among those already, once.
    """
    mine, known = lines_of(prompt), lines_of(said)
    return [line for line in mine if known.count(line) <= mine.count(line)]


def shows_line_of(lines: list[str], screen: str) -> bool:
    """Whether a screen shows one of these lines."""
    text = "\n".join(map(squeezed, screen.split("\n")))
    return any(line in text for line in lines)


def squeezed(line: str) -> str:
    """The letters and digits of a line: programs draw the rest each in their own way."""
    return "".join(character for character in line if character.isalnum())


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
    overlap = 128
    try:
        with open(log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - 1_000_000)
                file.seek(start)
                for found in reversed(
                    list(re.finditer(PRIVATE_MODE, file.read(end - start + overlap)))
                ):
                    if found.group(1) is None:
                        return False
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
    why = why_brackets(prompt)
    if why:
        raise usage(
            "prompt-unfit",
            f"the agent has not asked for bracketed paste: {why}",
            "send one short line, or start the agent with --prompt-mode file or argument",
        )
    return prompt.removesuffix("\n")


def why_brackets(prompt: str) -> str:
    """Why a prompt needs bracketed paste; empty for a line that can be typed as it is.

    A line end at its end only stands for the Enter to come.
    """
    line = prompt.removesuffix("\n")
    if "\n" in line:
        return "each line would be submitted by itself"
    if "\t" in line:
        return "a tab would be taken as a key"
    if len(line.encode()) > LINE_LIMIT:
        return f"more than {LINE_LIMIT} bytes may be cut, or submitted in pieces"
    return ""


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
    rows = [re.sub(FRAME, "", row).strip() for row in plain_text(text).split("\n")]
    return "\n".join(row[:200] for row in [row for row in rows if row][-lines:])
