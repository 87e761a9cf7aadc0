"""Readiness, pasting and the rules of evidence, against simulated agents and a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout import delivery
from fanout.delivery import Answering, Outcome, Shown, Target, changed_rows, is_taken
from fanout.errors import ExitCode, SkillError
from fanout.harness import Harness, Rules, parse_mapping
from fanout.tmux import Pane, Server

PANE = "%7"


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Agent:
    """A simulated full-screen agent, and the tmux server in front of it.

    A transcript grows from the top; below it stand the input box and a status row.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.born = clock.now
        self.transcript: list[str] = ["Agent 1.0"]
        self.input = ""
        self.status = "ok"
        self.title = "agent"
        self.dialog = ""
        self.dead = False
        self.gone = False
        self.lost_enters = 0
        self.deaf = False
        self.absorbs = False
        self.draw_delay = 0.0
        self.inline = False
        self.hides_input = False
        self.placeholder = "Pasted"
        self.pasted: list[str] = []
        self.pressed: list[tuple[float, str]] = []
        self.submitted: list[str] = []
        self.typed_at = -1e9
        self.on_submit: Callable[[], None] = lambda: None
        self.tick: Callable[[float], None] = lambda _age: None

    # What the product calls.

    def look(self, wanted: list[str]) -> tuple[dict[str, Pane], dict[str, str]]:
        self.tick(self.clock.now - self.born)
        if self.gone:
            return {}, {}
        text, cursor = self.screen()
        pane = Pane(PANE, "m", "s", 1, self.dead, None, False, 1, cursor, 0, 1, self.title)
        return {PANE: pane}, {PANE: text}

    def paste(self, pane: str, text: bytes) -> None:
        assert pane == PANE
        self.pasted.append(text.decode())
        self.typed_at = self.clock.now
        if not self.deaf:
            self.input += text.decode()

    def press(self, pane: str, *keys: str) -> None:
        assert pane == PANE
        for key in keys:
            self.pressed.append((self.clock.now, key))
        if self.deaf:
            return
        if self.dialog:
            self.dialog = ""
            self.submitted.append("<answered the dialog>")
        elif self.lost_enters > 0:
            self.lost_enters -= 1
        elif self.absorbs or self.clock.now - self.typed_at < self.draw_delay:
            self.input += "\n"
        elif self.input:
            self.submitted.append(self.input)
            self.transcript += [f"you: {row}" for row in self.input.split("\n")]
            self.input = ""
            self.on_submit()

    # What it shows.

    def screen(self) -> tuple[str, int]:
        if self.dialog:
            return f"{self.dialog}\n> 1. No, exit\n  2. Yes\n", 1
        shown = self.input if self.clock.now - self.typed_at >= self.draw_delay else ""
        if self.hides_input:
            shown = ""
        elif shown.count("\n") > 3:
            shown = f"[{self.placeholder} +{shown.count(chr(10))} lines]"
        box = ("> " + shown).split("\n")
        room = 30 - len(box) - 3
        above = self.transcript[-room:] if self.inline else self.transcript[-15:]
        if not self.inline:
            above = [*above, *[""] * (room - len(above))]
        rows = [*above, "----", *box, "----", self.status]
        return "\n".join(rows) + "\n", len(above) + len(box)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(delivery, "time", made)
    return made


@pytest.fixture
def agent(clock: Clock) -> Agent:
    return Agent(clock)


def mapping(**interactive: Any) -> Harness:
    value = {"name": "x", "executable": "/bin/x", "interactive": interactive}
    return parse_mapping(value, "test")


@pytest.fixture
def target(agent: Agent, tmp_path: Path) -> Target:
    log = tmp_path / "terminal.log"
    log.write_bytes(b"\x1b[?2004h")
    events = str(tmp_path / "events.jsonl")

    def note(_before: str, _drawn: str | None, _echo: list[int]) -> None:
        pass

    return Target(cast("Server", agent), PANE, mapping(), str(log), events, note)


def run(target: Target, task: delivery.Delivery, deadline: float | None = None) -> Outcome:
    """Drive one delivery to its end; raises its error."""
    outcome = delivery.drive(target.server, {PANE: task}, deadline)[PANE]
    if isinstance(outcome, SkillError):
        raise outcome
    return outcome


def deliver(target: Target, prompt: str = "the task", ready_timeout: float = 30.0) -> Outcome:
    return run(target, delivery.deliver(target, prompt, ready_timeout=ready_timeout))


def submit(target: Target, prompt: str = "the task") -> Outcome:
    return run(target, delivery.submit(target, prompt))


# --- Readiness ------------------------------------------------------------------------------


def test_the_generic_rule_waits_until_the_screen_is_still(agent: Agent, target: Target) -> None:
    def tick(age: float) -> None:
        agent.transcript[0] = f"loading {min(int(age / 0.2), 10)}"

    agent.tick = tick
    began = agent.clock.now
    assert deliver(target).delivered
    assert agent.submitted == ["the task"]
    assert agent.pressed[0][0] - began > 2.0 + 0.5


def test_the_generic_rule_does_not_wait_for_a_clock_to_stand_still(
    agent: Agent, target: Target
) -> None:
    def tick(age: float) -> None:
        agent.status = f"spin {int(age / 0.1)}"
        agent.transcript = [f"loading {min(int(age / 0.2), 10)}"] * 3

    agent.tick = tick
    assert deliver(target).delivered
    assert agent.submitted == ["the task"]
    assert 12 <= agent.typed_at - agent.born < 13


@pytest.mark.parametrize("rows", ["prompt", "many"])
def test_a_screen_that_moves_where_the_text_goes_or_in_many_rows_is_not_ready(
    rows: str, agent: Agent, target: Target
) -> None:
    def tick(age: float) -> None:
        spin = f"spin {int(age / 0.1)}"
        if rows == "prompt":
            agent.input = spin
        else:
            agent.transcript = [f"{spin} {number}" for number in range(3)]

    agent.tick = tick
    outcome = deliver(target)
    assert (outcome.delivered, outcome.typed, agent.pasted) == (False, False, [])


def test_the_generic_rule_needs_something_printed(agent: Agent, target: Target) -> None:
    agent.screen = lambda: ("\n" * 30, 0)
    outcome = deliver(target, ready_timeout=5.0)
    assert outcome == Outcome(False, "", None, "\n" * 30)
    assert agent.pasted == agent.pressed == []


def test_the_generic_rule_waits_while_the_agent_looks_busy(agent: Agent, target: Target) -> None:
    def tick(age: float) -> None:
        agent.status = "loading" if age < 4 else "ok"

    agent.tick = tick
    assert deliver(target._replace(harness=mapping(busy="loading"))).delivered
    assert agent.typed_at - agent.born > 4


@pytest.mark.parametrize("rule", ["ready", "idle"])
def test_a_ready_pattern_decides_alone(rule: str, agent: Agent, target: Target) -> None:
    def tick(age: float) -> None:
        agent.status = f"spin {age}" if age < 3 else f"type here {age}"

    agent.tick = tick
    assert deliver(target._replace(harness=mapping(**{rule: "^type here"}))).delivered
    assert 3 <= agent.typed_at - agent.born < 3.2


@pytest.mark.parametrize("busy", [False, True])
def test_where_no_sign_of_idleness_comes_a_still_screen_is_enough(
    busy: bool, agent: Agent, target: Target
) -> None:
    """Resumed, Claude Code sets its title only with the first prompt."""
    agent.status = "working" if busy else "ok"
    target = target._replace(harness=mapping(idle="title:^idle$", busy="^working$"))
    assert deliver(target, ready_timeout=10.0).delivered is not busy
    if not busy:
        stayed = agent.typed_at - agent.born
        assert stayed == pytest.approx(delivery.PATIENCE, abs=0.2)
    target = target._replace(harness=mapping(ready="title:^idle$"))
    assert not deliver(target, ready_timeout=10.0).delivered


def test_a_title_pattern_decides_too(agent: Agent, target: Target) -> None:
    def tick(age: float) -> None:
        agent.title = "Ready" if age > 2 else "Loading"

    agent.tick = tick
    assert deliver(target._replace(harness=mapping(ready="title:^Ready$"))).delivered
    assert agent.typed_at - agent.born > 2


@pytest.mark.parametrize("remembers", [False, True])
def test_a_conversation_that_is_drawn_after_the_input_prompt_is_waited_for(
    remembers: bool, agent: Agent, target: Target
) -> None:
    """What is pasted while the history is drawn is lost (gemini)."""
    whole = agent.screen

    def screen() -> tuple[str, int]:
        age = agent.clock.now - agent.born
        if age < 8.0:
            shown = [row for row in whole()[0].split("\n") if row not in agent.transcript]
            return ("\n".join(shown) if 5.0 < age < 6.0 else "\n" * 30), 0
        return ("\n" * 30, 0) if age < 8.5 else whole()

    agent.screen = screen
    target = target._replace(harness=mapping(ready=["^> $"]), redraws=True, said="an earlier one")
    if remembers:
        agent.transcript = ["> an earlier one", "done"]
    assert deliver(target, "a new prompt").delivered
    # For 1.0 s it was there, and that was not enough.
    stayed = delivery.STILL if remembers else delivery.REDRAW_PART * 8.5
    assert agent.typed_at - agent.born == pytest.approx(8.5 + stayed, abs=0.2)


@pytest.mark.parametrize("lost", [False, True])
def test_a_text_that_is_lost_with_its_input_line_is_not_called_taken(
    lost: bool, agent: Agent, target: Target
) -> None:
    """It was typed before the history was drawn, and that came with an empty line (gemini)."""
    press = agent.press

    def swallow(pane: str, *keys: str) -> None:
        press(pane, *keys)
        agent.transcript = ["> an earlier one", "done", *([] if lost else agent.transcript[1:])]
        agent.input = ""

    agent.press = swallow
    agent.lost_enters = delivery.ENTERS if lost else 0
    target = target._replace(harness=mapping(ready=["^> $"]), redraws=True)
    target = target._replace(said="an earlier one\na prompt of now")
    assert submit(target, "a prompt of now").delivered is not lost


@pytest.mark.parametrize("slow", [1.0, 4.0])
def test_a_question_of_the_start_over_an_input_prompt_that_was_there_is_not_typed_into(
    slow: float, agent: Agent, target: Target
) -> None:
    """Codex draws its input line, and a moment later the question whether to trust the folder."""
    whole = agent.screen

    def screen() -> tuple[str, int]:
        age = agent.clock.now - agent.born
        if age > slow * 1.35:
            agent.dialog = "Trust this?"
        return whole() if age > slow else ("\n" * 30, 0)

    agent.screen = screen
    harness = mapping(dialogs=[{"match": "Trust this\\?", "ask": "trust"}], ready=["^> $"])
    answering = Answering(harness, lambda _keys: None, lambda _name, _keys: None)
    outcome = deliver(target._replace(harness=harness, answering=answering))
    assert (outcome.delivered, outcome.dialog) == (False, "trust")
    assert (agent.pasted, agent.pressed) == ([], [])


def test_an_agent_that_is_never_ready_is_not_typed_to(agent: Agent, target: Target) -> None:
    outcome = deliver(target._replace(harness=mapping(ready="^never")), ready_timeout=5.0)
    assert not outcome.delivered
    assert outcome.dialog is None
    assert not outcome.typed
    assert "Agent 1.0" in outcome.screen
    assert agent.pasted == agent.pressed == []
    assert 5.0 <= agent.clock.now - agent.born < 5.2


def test_a_dialog_stops_the_delivery_before_anything_is_typed(agent: Agent, target: Target) -> None:
    """P23, P25."""
    agent.dialog = "Do you trust this folder?"
    outcome = deliver(target)
    assert outcome.dialog == "trust dialog"
    assert not outcome.delivered
    assert agent.pasted == agent.pressed == agent.submitted == []
    assert agent.clock.now - agent.born < 3


def test_a_dialog_that_goes_away_by_itself_is_waited_out(agent: Agent, target: Target) -> None:
    def tick(age: float) -> None:
        agent.dialog = "Trust this folder?" if age < 0.7 else ""

    agent.tick = tick
    assert deliver(target).delivered


def test_a_second_dialog_counts_like_the_first(agent: Agent, target: Target) -> None:
    """P31: the first one's going away does not make the agent ready."""

    def tick(age: float) -> None:
        agent.dialog = "Do you trust this folder?" if age < 0.6 else "Allow this server? (y/n)"

    agent.tick = tick
    assert deliver(target).dialog == "permission dialog"
    assert agent.pasted == []


def test_a_dialog_that_comes_with_the_paste_gets_no_enter(agent: Agent, target: Target) -> None:
    """P25: Enter would answer it."""

    def tick(_age: float) -> None:
        if agent.pasted:
            agent.dialog = "Do you trust this folder?"

    agent.tick = tick
    outcome = submit(target)
    assert outcome.dialog == "trust dialog"
    assert outcome.typed
    assert not outcome.delivered
    assert agent.pressed == []


def test_a_dialog_that_comes_after_a_lost_enter_gets_no_second_one(
    agent: Agent, target: Target
) -> None:
    agent.lost_enters = 1

    def tick(_age: float) -> None:
        if agent.pressed and agent.clock.now - agent.pressed[0][0] > 1.0:
            agent.dialog = "Do you trust this folder?"

    agent.tick = tick
    agent.hides_input = True
    outcome = submit(target)
    assert not outcome.delivered or outcome.evidence == "screen"
    assert len(agent.pressed) == 1
    assert agent.submitted == []


@pytest.mark.parametrize("prompt", ["Do you trust this folder?", "Sign in to the shop", "Go (y/n)"])
def test_a_prompt_that_reads_like_a_dialog_is_submitted(
    prompt: str, agent: Agent, target: Target
) -> None:
    assert submit(target, prompt).delivered
    assert agent.submitted == [prompt]


def test_an_earlier_prompt_that_reads_like_a_dialog_is_no_dialog(
    agent: Agent, target: Target
) -> None:
    agent.transcript.append("> Do you trust this folder?")
    assert submit(target).dialog == "trust dialog"
    agent.input = ""
    said = target._replace(said="Do you trust this folder?")
    assert submit(said).delivered


# --- An agent that ends ---------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["dead", "gone"])
@pytest.mark.parametrize("moment", ["start", "paste", "enter"])
def test_an_agent_that_ends_is_no_delivery(
    attribute: str, moment: str, agent: Agent, target: Target
) -> None:
    def tick(_age: float) -> None:
        seen = {"start": True, "paste": bool(agent.pasted), "enter": bool(agent.pressed)}
        if seen[moment]:
            setattr(agent, attribute, True)

    agent.tick = tick
    outcome = deliver(target)
    assert not outcome.delivered
    assert outcome.ended
    assert outcome.typed is (moment != "start")


# --- Evidence -------------------------------------------------------------------------------


def test_the_text_is_pasted_once_and_entered_once(agent: Agent, target: Target) -> None:
    """P01, P03."""
    outcome = submit(target, "one\ntwo\nthree")
    assert outcome.evidence == "screen"
    assert agent.pasted == ["one\ntwo\nthree"]
    assert [key for _, key in agent.pressed] == ["Enter"]
    assert agent.submitted == ["one\ntwo\nthree"]
    assert agent.pressed[0][0] - agent.typed_at >= delivery.PASTE_PAUSE


def test_what_must_outlive_a_kill_is_noted_before_enter(agent: Agent, target: Target) -> None:
    seen: list[tuple[str, str | None, list[int], int]] = []

    def note(before: str, drawn: str | None, echo: list[int]) -> None:
        seen.append((before, drawn, echo, len(agent.pressed)))

    submit(target._replace(note=note))
    before, drawn, echo, pressed = seen[-1]
    assert pressed == 0
    assert drawn is not None
    assert "> the task" in drawn
    assert "the task" not in before
    assert [drawn.split("\n")[row] for row in echo] == ["> the task"]


@pytest.mark.parametrize("placeholder", ["Pasted", "paste #1", "Pasted text #2"])
def test_a_long_text_may_be_shown_by_a_placeholder(
    placeholder: str, agent: Agent, target: Target
) -> None:
    agent.placeholder = placeholder
    prompt = "\n".join(f"line {number}" for number in range(9))
    assert submit(target, prompt).delivered
    assert agent.submitted == [prompt]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_enter_is_repeated_and_the_text_never(
    lost: int, agent: Agent, target: Target
) -> None:
    """P07."""
    agent.lost_enters = lost
    assert submit(target).delivered
    assert agent.pasted == ["the task"]
    assert len(agent.pressed) == lost + 1
    assert agent.submitted == ["the task"]


def test_enters_that_are_all_lost_are_no_delivery(agent: Agent, target: Target) -> None:
    agent.lost_enters = 99
    outcome = submit(target)
    assert not outcome.delivered
    assert outcome.typed
    assert not outcome.ended
    assert len(agent.pressed) == delivery.ENTERS
    assert agent.pasted == ["the task"]
    assert "> the task" in outcome.screen


def test_a_deaf_agent_is_no_delivery_within_a_bound(agent: Agent, target: Target) -> None:
    """P09."""
    agent.deaf = True
    began = agent.clock.now
    outcome = submit(target)
    assert not outcome.delivered
    assert agent.clock.now - began < 10


def test_a_text_that_is_drawn_at_last_is_submitted(agent: Agent, target: Target) -> None:
    """A busy machine: the first Enter comes before the text is on the screen (qwen)."""
    target = target._replace(harness=target.harness._replace(busy=Rules(("title:^working",))))
    agent.draw_delay = delivery.ECHO_WAIT + 1.0
    agent.on_submit = lambda: setattr(agent, "title", "working")
    outcome = submit(target)
    assert (outcome.delivered, outcome.evidence) == (True, "busy")
    assert [text.strip() for text in agent.submitted] == ["the task"]
    assert agent.pasted == ["the task"]


def test_a_text_that_is_drawn_at_last_is_not_proved_by_the_screen(
    agent: Agent, target: Target
) -> None:
    """What is drawn beside it may be a conversation that is taken up (gemini)."""
    agent.draw_delay = delivery.ECHO_WAIT + 1.0
    assert not submit(target).delivered
    assert len(agent.pressed) == delivery.ENTERS


def test_what_changes_before_a_text_is_drawn_proves_nothing(agent: Agent, target: Target) -> None:
    agent.draw_delay = 1e9
    agent.tick = lambda age: agent.transcript.append("news") if 3.4 < age < 3.5 else None
    outcome = submit(target)
    assert not outcome.delivered
    assert len(agent.pressed) == delivery.ENTERS


def test_an_enter_waits_until_a_slow_agent_has_drawn_the_text(agent: Agent, target: Target) -> None:
    """P05: an Enter in the same read as the text would become a part of it."""
    agent.draw_delay = 1.6
    assert submit(target).delivered
    assert agent.submitted == ["the task"]
    assert len(agent.pressed) == 1


def test_an_enter_that_became_a_new_line_is_no_evidence(agent: Agent, target: Target) -> None:
    agent.absorbs = True
    outcome = submit(target)
    assert not outcome.delivered
    assert agent.submitted == []


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 99])
def test_output_that_streams_meanwhile_is_no_evidence(
    lost: int, inline: bool, agent: Agent, target: Target
) -> None:
    """A busy agent's screen changes and its input box moves, whether or not it took the text."""
    agent.inline = inline
    agent.lost_enters = lost

    def tick(age: float) -> None:
        agent.transcript = [f"output {n}" for n in range(int(age / 0.3))] + [
            f"you: {text}" for text in agent.submitted
        ]

    agent.tick = tick
    outcome = submit(target)
    assert outcome.delivered is (lost < 99)
    assert agent.submitted == (["the task"] if lost < 99 else [])
    assert len(agent.pressed) == min(lost + 1, delivery.ENTERS)


@pytest.mark.parametrize("lost", [0, 1, 99])
def test_a_clock_or_a_spinner_is_no_evidence(lost: int, agent: Agent, target: Target) -> None:
    agent.lost_enters = lost

    def tick(age: float) -> None:
        agent.status = f"spin {int(age / 0.1)}"

    agent.tick = tick
    outcome = submit(target)
    assert outcome.delivered is (lost < 99)
    assert len(agent.pressed) == min(lost + 1, delivery.ENTERS)
    assert agent.submitted == (["the task"] if lost < 99 else [])


def test_a_half_drawn_screen_is_no_evidence(agent: Agent, target: Target) -> None:
    agent.lost_enters = 99
    whole = agent.screen
    looks = 0

    def screen() -> tuple[str, int]:
        nonlocal looks
        looks += 1
        # One look in five catches the screen between two writes.
        return ("\n" * 30, 0) if agent.pressed and looks % 5 == 0 else whole()

    agent.screen = screen
    assert not submit(target).delivered


@pytest.mark.parametrize("prompt", ["the task", "a task\nof\nfive\nlines\n"])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("follows", [False, True])
def test_a_conversation_that_is_drawn_anew_is_no_evidence(
    follows: bool, halves: bool, prompt: str, agent: Agent, target: Target
) -> None:
    """After a resume it swallows an Enter, then draws the history and the box below it (gemini)."""
    agent.lost_enters = 1
    agent.inline = True
    whole = agent.screen

    def screen() -> tuple[str, int]:
        since = agent.clock.now - agent.pressed[0][0] if agent.pressed else 0.0
        if since < 0.3:
            return whole() if follows else (whole()[0], 0)
        agent.transcript = [f"history {n}" for n in range(12)] + [*agent.submitted]
        if since < 0.6:
            return "\n".join(agent.transcript[:8] if halves else [""] * 30), 0
        # The cursor comes to its place at last.
        return whole() if follows and since >= 0.9 else (whole()[0], 0)

    agent.screen = screen
    outcome = submit(target._replace(harness=mapping(ready=["^ok$"])), prompt)
    assert (outcome.delivered, outcome.evidence) == (True, "screen")
    assert agent.submitted == [prompt]
    assert len(agent.pressed) == 2


def test_a_text_that_ends_in_a_blank_row_is_seen_to_leave() -> None:
    shown = Shown("\n\n> one\n\nok", {2, 3}, set(), 3, "", [])
    assert not is_taken(shown, "\n\n> one\n\nok", 3)
    assert not is_taken(shown, "\n\n> one\n\n\nok", 4)
    assert is_taken(shown, "\n\n> \nok", 2)


def test_a_text_that_was_never_seen_is_not_proved_by_a_change(agent: Agent, target: Target) -> None:
    """A program that comes up only now, and lost the text, changes its screen too."""
    agent.hides_input = True
    outcome = submit(target)
    assert (outcome.delivered, outcome.evidence) == (False, "")
    assert agent.submitted == ["the task"]


def test_looking_busy_after_enter_is_evidence(agent: Agent, target: Target) -> None:
    agent.on_submit = lambda: setattr(agent, "status", "esc to interrupt")
    outcome = submit(target._replace(harness=mapping(busy="esc to interrupt")))
    assert outcome.evidence == "busy"


def test_a_busy_title_is_evidence(agent: Agent, target: Target) -> None:
    agent.hides_input = True
    agent.on_submit = lambda: (agent.transcript.clear(), setattr(agent, "title", "working"))[0]
    assert submit(target._replace(harness=mapping(busy="title:working"))).evidence == "busy"


def test_an_idle_look_that_ends_is_evidence(agent: Agent, target: Target) -> None:
    agent.on_submit = lambda: setattr(agent, "title", "my task")
    assert submit(target._replace(harness=mapping(idle="title:^agent$"))).evidence == "idle"


@pytest.mark.parametrize("rules", [{"busy": "🌑"}, {"idle": "ready"}])
def test_the_text_itself_is_no_evidence(
    rules: dict[str, str], agent: Agent, target: Target
) -> None:
    """A prompt may hold the words of a busy look, or cover those of an idle one."""
    agent.lost_enters = 99
    agent.status = "ready" if not agent.pasted else ""

    def tick(_age: float) -> None:
        agent.status = "" if agent.pasted else "ready"

    agent.tick = tick
    assert not submit(target._replace(harness=mapping(**rules)), "draw 🌑 on it").delivered


def test_an_agent_that_was_busy_before_proves_nothing_by_it(agent: Agent, target: Target) -> None:
    agent.status = "esc to interrupt"
    agent.lost_enters = 99
    assert not submit(target._replace(harness=mapping(busy="esc to interrupt"))).delivered


def report(target: Target, kind: str) -> None:
    """What an agent's report appends to its events."""
    line: dict[str, Any] = {
        "schema": 1,
        "event": kind,
        "at": "2026-01-01T00:00:00Z",
        "job": "0001",
        "data": {},
    }
    with open(target.events, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def test_a_reported_start_is_evidence(agent: Agent, target: Target) -> None:
    agent.hides_input = True
    frozen = agent.screen()
    agent.screen = lambda: frozen
    agent.on_submit = lambda: report(target, "started")
    assert submit(target).evidence == "event"


@pytest.mark.parametrize("kind", ["progress", "heartbeat", "completed", "error"])
def test_a_report_on_earlier_work_is_no_evidence(kind: str, agent: Agent, target: Target) -> None:
    agent.lost_enters = 99

    def tick(_age: float) -> None:
        if agent.pressed:
            report(target, kind)

    agent.tick = tick
    assert not submit(target).delivered


def test_a_start_that_was_reported_before_is_no_evidence(agent: Agent, target: Target) -> None:
    report(target, "started")
    agent.lost_enters = 99
    assert not submit(target).delivered


def test_a_torn_or_foreign_event_is_no_evidence_and_no_fault(agent: Agent, target: Target) -> None:
    agent.lost_enters = 99

    def tick(_age: float) -> None:
        if agent.pressed:
            with open(target.events, "ab") as file:
                file.write(b'{"event": "started"\n\xff\n[]\n"started"\n')

    agent.tick = tick
    assert not submit(target).delivered


def test_the_mapping_may_name_other_keys_to_submit(agent: Agent, target: Target) -> None:
    submit(target._replace(harness=mapping(submit_keys=["C-j"])))
    assert {key for _, key in agent.pressed} == {"C-j"}


# --- Many at once, and the deadline ---------------------------------------------------------


def test_the_deadline_ends_every_delivery(agent: Agent, target: Target) -> None:
    task = delivery.deliver(target._replace(harness=mapping(ready="^no")), "x", ready_timeout=60)
    outcomes = delivery.drive(target.server, {PANE: task}, agent.clock.now + 2)
    error = outcomes[PANE]
    assert isinstance(error, SkillError)
    assert error.exit_code == ExitCode.TIMED_OUT
    assert agent.clock.now - agent.born < 2.2


def test_an_unfit_prompt_fails_alone(agent: Agent, target: Target, tmp_path: Path) -> None:
    outcomes = delivery.drive(
        target.server,
        {
            PANE: delivery.submit(target, "fits"),
            "%8": delivery.submit(target._replace(pane="%8"), "one\x07"),
        },
        None,
    )
    assert isinstance(outcomes[PANE], Outcome)
    # No such pane: it has ended.
    assert cast("Outcome", outcomes["%8"]).ended


# --- What can be pasted ---------------------------------------------------------------------


@pytest.mark.parametrize("character", [*map(chr, range(32)), "\x7f", *map(chr, range(128, 160))])
def test_a_control_character_is_refused_with_its_place(character: str) -> None:
    if character in "\n\t":
        delivery.require_pasteable("ab" + character)
        return
    with pytest.raises(SkillError) as caught:
        delivery.require_pasteable("ab" + character)
    assert caught.value.code == "prompt-unfit"
    assert caught.value.exit_code == ExitCode.USAGE
    assert f"U+{ord(character):04X} at position 2" in caught.value.message


@pytest.mark.parametrize("prompt", ["one\ntwo", "x\n\n", "a\tb", "x" * 1001, "é" * 501, "\nx"])
def test_without_bracketed_paste_a_text_that_would_break_is_refused(
    prompt: str, agent: Agent, target: Target, tmp_path: Path
) -> None:
    """P01, P05, P21: lines would be submitted one by one, long ones cut."""
    Path(target.log).write_bytes(b"\x1b[?2004h\x1b[?2004l")
    with pytest.raises(SkillError) as caught:
        submit(target, prompt)
    assert caught.value.code == "prompt-unfit"
    assert "bracketed paste" in caught.value.message
    assert agent.pasted == agent.pressed == []


@pytest.mark.parametrize("prompt", ["one", "one\n", "- x;", "x" * 1000 + "\n", "é" * 500])
def test_without_bracketed_paste_one_short_line_goes(
    prompt: str, agent: Agent, target: Target
) -> None:
    Path(target.log).write_bytes(b"")
    assert submit(target, prompt).delivered
    assert agent.pasted == [prompt.removesuffix("\n")]


def test_a_request_for_brackets_that_comes_late_is_waited_for(agent: Agent, target: Target) -> None:
    """The screen shows READY before the log holds what was asked of the terminal."""
    log = Path(target.log)
    log.write_bytes(b"READY")

    def tick(age: float) -> None:
        if age > 1:
            log.write_bytes(b"READY\x1b[?2004h")

    agent.tick = tick
    assert submit(target, "one\ntwo").delivered
    assert agent.pasted == ["one\ntwo"]


# --- Bracketed paste in the log -------------------------------------------------------------

SWITCHES = [
    (b"", False),
    (b"plain", False),
    (b"\x1b[?2004h", True),
    (b"\x1b[?2004h text \x1b[?2004l", False),
    (b"\x1b[?2004l\x1b[?2004h", True),
    (b"\x1b[?25l\x1b[?1049;2004h\x1b[?25h", True),
    (b"\x1b[?2004;25l", False),
    (b"\x1b[?12004h", False),
    (b"\x1b[2004h", False),
    (b"[?2004h", False),
    (b"\x1b[?2004h\x1bc", False),
    (b"\x1bc\x1b[?2004h", True),
    (b"\x1b[?2004h\x1b[?2004", True),
    (b"\x1b[?2004h\x1b", True),
]


@pytest.mark.parametrize(("log", "expected"), SWITCHES)
def test_the_newest_switch_in_the_log_decides(log: bytes, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "terminal.log"
    path.write_bytes(log)
    assert delivery.takes_bracketed_paste(str(path)) is expected


def test_without_a_log_there_is_no_bracketed_paste(tmp_path: Path) -> None:
    assert delivery.takes_bracketed_paste(str(tmp_path / "none")) is False


@given(
    before=st.integers(0, 40),
    after=st.integers(0, 40),
    first=st.sampled_from([b"", b"\x1b[?2004h", b"\x1b[?2004l", b"\x1bc"]),
    last=st.sampled_from([b"\x1b[?2004h", b"\x1b[?25;2004l", b"\x1b[?1;2;3;4;5;6;7;8;9;2004h"]),
)
def test_a_switch_across_the_border_of_two_reads_is_seen(
    before: int, after: int, first: bytes, last: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "terminal.log"
    # The border lies a million bytes from the end; the newest switch lies about there.
    tail = b"x" * (1_000_000 - after)
    path.write_bytes(first + b"y" * before + last + tail)
    assert delivery.takes_bracketed_paste(str(path)) is last.endswith(b"h")


# --- Screens --------------------------------------------------------------------------------

screens = st.lists(st.text(alphabet="ab ", max_size=3), max_size=6).map("\n".join)


@given(screens, screens)
def test_changed_rows_are_those_that_differ(before: str, after: str) -> None:
    changed = changed_rows(before, after)
    assert changed == changed_rows(after, before)
    old, new = before.split("\n"), after.split("\n")
    for number in range(max(len(old), len(new))):
        pair = [rows[number] if number < len(rows) else "" for rows in (old, new)]
        assert (number in changed) is (pair[0] != pair[1])


@given(screens)
def test_a_screen_does_not_differ_from_itself(screen: str) -> None:
    assert changed_rows(screen, screen) == set()
    assert changed_rows(screen, screen + "\n\n") == set()


@given(screens, st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)), st.integers(0, 6))
def test_an_unchanged_screen_is_never_evidence(
    screen: str, echo: set[int], noise: set[int], cursor: int
) -> None:
    rows = screen.split("\n")
    typed = rows[cursor] if cursor < len(rows) else ""
    for row in (typed, None):
        assert not is_taken(Shown(screen, echo, noise, cursor, row, []), screen, cursor)


@given(screens, screens, st.integers(0, 6), st.integers(0, 6))
def test_rows_that_move_by_themselves_are_never_evidence(
    before: str, after: str, old: int, new: int
) -> None:
    noise = changed_rows(before, after)
    assert not is_taken(Shown(before, {1, 2}, noise, old, None, []), after, new)


def test_an_excerpt_is_bounded_and_plain() -> None:
    text = "\n".join(["\x1b[31mred\x1b[0m" + "x" * 500, "", "  "] * 40)
    excerpt = delivery.screen_excerpt(text)
    rows = excerpt.split("\n")
    assert len(rows) == 15
    assert all(len(row) == 200 and row.startswith("redx") for row in rows)


@pytest.mark.parametrize("rules", [{}, {"idle": "^ok$"}, {"ready": "^> "}])
def test_a_dialog_of_the_start_that_comes_late_proves_nothing(
    agent: Agent, target: Target, rules: dict[str, str]
) -> None:
    """Some programs show their input line for a moment before they ask."""

    def ask() -> None:
        agent.dialog = "Trust this folder?"

    agent.on_submit = ask
    dialogs = [{"match": "^Trust this folder", "ask": "trust in it"}]
    harness = mapping(dialogs=dialogs, **{**rules, "ready": "^ok$"})
    outcome = deliver(target._replace(harness=harness))
    assert (outcome.delivered, outcome.dialog, outcome.typed) == (False, "trust in it", True)
