"""Give a running agent a follow-up prompt: typed once, proved, also after an interruption."""

from __future__ import annotations

from collections.abc import Generator

from fanout import delivery, git, jobs, steering
from fanout import workers as life
from fanout.delivery import Look, Outcome
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.jobs import Sending
from fanout.starting import target_of, terminal_log, undelivered
from fanout.workers import State, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK_WAIT = 120.0


class Sent(NamedTuple):
    """A prompt that an agent has taken; `again` is set when an earlier send had brought it."""

    worker: Worker
    job: str
    evidence: str
    again: bool


def send(repo: git.Repository, worker_name: str, prompt: str, *, anew: bool = False) -> Sent:
    """Bring a prompt to a running agent. While a job is open it steers that, else it opens one.

    `anew` forgets an earlier send whose fate is unknown.

    Raises SkillError: `not-running`, `input-not-empty`, `delivery-unknown` (exit 3), `agent-asks`,
    `agent-not-ready` (exit 10), `delivery-unproved` (exit 1), `prompt-unfit` (exit 2), `busy`.
    """
    common = repo.common_dir
    jobs.require_prompt(prompt)
    delivery.require_pasteable(prompt)
    life.load(common, worker_name)
    with life.lock(common, worker_name, wait=LOCK_WAIT):
        worker = life.load(common, worker_name)
        panes, screens = steering.reach([worker])[worker.name]
        state = life.state_of(common, worker, panes, screens)
        screen = screens.get(worker.pane, "")
        require_input(worker, state, screen)
        if state.word == "running":
            delivery.pasteable(prompt, terminal_log(common, worker.name))
        earlier = jobs.read_sending(common, worker)
        if earlier is not None and anew:
            earlier = None
        if earlier is not None:
            taken = settle_earlier(common, worker, earlier, prompt, screen)
            if taken is not None:
                return taken
        sending = begin(common, worker, prompt, screen, earlier)
        return deliver(common, worker, prompt, sending, state)


def require_input(worker: Worker, state: State, screen: str) -> None:
    """Demand an agent that can take input."""
    if state.word == "waiting":
        raise undelivered(worker, Outcome(False, "", state.detail, screen))
    if state.word not in ("running", "starting"):
        code = f" ({state.exit_code})" if state.exit_code is not None else ""
        raise refused(
            "not-running",
            f"the agent of {worker.name!r} is {state.word}{code}, so it takes no input",
            "nothing was typed; see status; `resume` starts it again",
        )


# --- What an earlier send left --------------------------------------------------------------


def standing(earlier: Sending, text: str, screen: str) -> bool | None:
    """Whether the text of an earlier send still stands in the input line; None: cannot be told."""
    rows = screen.split("\n")
    if earlier.drawn is not None:
        if not was_shown(earlier, text):
            # It never showed. An agent that shows nothing may be typed to again.
            return False
        drawn = earlier.drawn.split("\n")
        same = [row < len(rows) and rows[row] == drawn[row] for row in earlier.echo]
        return all(same) or shows_tail(text, rows)
    if screen == earlier.before:
        return False
    return True if shows_tail(text, rows) else None


def was_shown(earlier: Sending, text: str) -> bool:
    """Whether the text of an earlier send was seen on the screen before Enter."""
    if earlier.drawn is None or not earlier.echo:
        return False
    return delivery.shows_paste(earlier.before, earlier.drawn, text)


def shows_tail(text: str, rows: list[str]) -> bool:
    """Whether the end of a text is on the lower part of a screen."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    tail = lines[-1][-60:] if lines else ""
    lower = "".join(row.rstrip() for row in [row for row in rows if row.strip()][-6:])
    return len(tail) >= 3 and tail in lower


def settle_earlier(
    common_dir: str, worker: Worker, earlier: Sending, prompt: str, screen: str
) -> Sent | None:
    """Decide what became of an earlier send; returns what it brought if that is this prompt."""
    text = jobs.read_prompt(common_dir, worker.name, earlier.prompt)
    stands = standing(earlier, text, screen)
    if stands is None:
        raise refused(
            "delivery-unknown",
            f"an earlier send to {worker.name!r} was interrupted, and the screen has changed since",
            f"nothing was typed; look whether its text arrived: {worker.attach_command}\n"
            "if it did not, send again with --anew",
        )
    if stands:
        if prompt != text:
            raise refused(
                "input-not-empty",
                f"the text of an earlier send still stands in the input line of {worker.name!r}",
                "nothing was typed; send that text again to submit it, or clear it there: "
                + worker.attach_command,
            )
        outcome = drive(worker, submit_standing(common_dir, worker, earlier, screen))
        return record_outcome(common_dir, worker, earlier, outcome)._replace(again=True)
    if not was_shown(earlier, text):
        return None
    # The rows that showed it have changed after Enter: it was taken.
    sent = record_outcome(
        common_dir, worker, earlier, Outcome(True, "screen", None, screen, typed=True)
    )
    return sent._replace(again=True) if prompt == text else None


def submit_standing(
    common_dir: str, worker: Worker, earlier: Sending, screen: str
) -> delivery.Delivery:
    """Press Enter for a text that stands in the input line already."""
    target = target_of(common_dir, worker, worker.harness, earlier)
    echo = set(earlier.echo) or delivery.changed_rows(earlier.before, screen)
    size = delivery.size_of(target.events)
    jobs.write_sending(common_dir, worker, earlier._replace(drawn=screen, echo=sorted(echo)))
    look = yield
    at_cursor = look.pane is not None and look.pane.cursor_y in echo
    typed = delivery.cursor_row(look) if at_cursor else None
    return (yield from delivery.press_enter(target, look, look.text, echo, set(), size, typed))


# --- Sending --------------------------------------------------------------------------------


def begin(
    common_dir: str, worker: Worker, prompt: str, screen: str, earlier: Sending | None
) -> Sending:
    """Record what is about to be typed, before it is."""
    events = life.read_events(common_dir, worker)
    job = jobs.open_job(events)
    if earlier is not None and jobs.read_prompt(common_dir, worker.name, earlier.prompt) == prompt:
        # The same call again after one that typed nothing: the same prompt of the same job.
        number = earlier.prompt
    else:
        number = jobs.new_prompt(common_dir, worker.name, prompt)
    opens = job is None
    sending = Sending(worker.launch, job or number, number, opens, screen, None, [])
    # First of all: where it cannot be written, nothing is begun.
    life.write_card(worker, sending.job)
    jobs.write_sending(common_dir, worker, sending)
    if opens:
        life.record_event(
            common_dir, worker.name, "delivered",
            job=number, prompt=number, delivered=False, opens=True, before=jobs.snapshot(worker),
        )  # fmt: skip
    return sending


def deliver(common_dir: str, worker: Worker, prompt: str, sending: Sending, state: State) -> Sent:
    """Type the prompt and record how it went."""
    target = target_of(common_dir, worker, worker.harness, sending)

    def task() -> Generator[None, Look, Outcome]:
        if state.word == "starting":
            blocked = yield from delivery.wait_ready(target, worker.ready_timeout)
            if blocked is not None:
                return blocked
        return (yield from delivery.submit(target, prompt))

    return record_outcome(common_dir, worker, sending, drive(worker, task()))


def drive(worker: Worker, task: delivery.Delivery) -> Outcome:
    """Run one delivery to its end."""
    outcome = delivery.drive(worker.server, {worker.pane: task}, None)[worker.pane]
    if isinstance(outcome, SkillError):
        raise outcome
    return outcome


def record_outcome(common_dir: str, worker: Worker, sending: Sending, outcome: Outcome) -> Sent:
    """Record how a send ended; raise what the caller must know."""
    name = worker.name
    if outcome.delivered or outcome.typed:
        facts: dict[str, Any] = {"delivered": outcome.delivered, "evidence": outcome.evidence}
        life.record_event(
            common_dir, name, "delivered", job=sending.job, prompt=sending.prompt, **facts
        )
    elif sending.opens:
        life.record_event(
            common_dir, name, "cancelled", job=sending.job, message="its prompt was never typed"
        )
    if outcome.delivered or not outcome.typed or outcome.ended:
        jobs.clear_sending(common_dir, name)
    if outcome.delivered:
        return Sent(worker, sending.job, outcome.evidence, False)
    if outcome.ended:
        raise SkillError(
            "agent-ended",
            f"the agent of {name!r} ended while the prompt was on its way",
            "its screen ended with:\n" + delivery.screen_excerpt(outcome.screen),
        )
    error = undelivered(worker, outcome)
    if error.code == "delivery-unproved":
        error.exit_code = ExitCode.FAILED
    raise error
