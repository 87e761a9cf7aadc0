"""Give a worker its next prompt: send it to a running agent, or start the agent again with it.

A prompt is typed once, and proved, also after an interruption. An agent that is started again has
its worktree and branch, and its conversation where that is possible.
"""

from __future__ import annotations

import os
from collections.abc import Generator

from fanout import delivery, git, harness, proctree, records, starting, steering
from fanout import workers as life
from fanout.delivery import Look, Outcome
from fanout.edition import HELPER
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.output import next_action, plain_text
from fanout.starting import target_of, terminal_log, undelivered
from fanout.workers import Sending, State, Worker

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
    life.require_prompt(prompt)
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
        earlier = life.read_sending(common, worker)
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
    if earlier.drawn is not None:
        if not was_shown(earlier, text):
            # It never showed. An agent that shows nothing may be typed to again.
            return False
        rows, drawn = screen.split("\n"), earlier.drawn.split("\n")
        same = [row < len(rows) and rows[row] == drawn[row] for row in earlier.echo]
        foot = delivery.foot_of(earlier.before, earlier.drawn, text)
        if len(foot) > 1:
            # Where something stands below the input line, it tells the text from its echo.
            return all(same) or delivery.stands(foot, screen)
        return all(same) or shows_tail(text, screen)
    if screen == earlier.before:
        return False
    # What was there before may repeat the text: the same prompt, or an answer.
    return True if shows_tail(text, screen, earlier.before) else None


def was_shown(earlier: Sending, text: str) -> bool:
    """Whether the text of an earlier send was seen on the screen before Enter."""
    if earlier.drawn is None or not earlier.echo:
        return False
    return delivery.shows_paste(earlier.before, earlier.drawn, text)


def shows_tail(text: str, screen: str, before: str = "") -> bool:
    """Whether the end of a text is on the lower part of a screen, in rows that `before` had not."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    tail = lines[-1][-60:] if lines else ""
    old = delivery.filled_rows(before)
    lower = "".join(row for row in delivery.filled_rows(screen)[-6:] if row not in old)
    return len(tail) >= 3 and tail in lower


def settle_earlier(
    common_dir: str, worker: Worker, earlier: Sending, prompt: str, screen: str
) -> Sent | None:
    """Decide what became of an earlier send; returns what it brought if that is this prompt."""
    text = life.read_prompt(common_dir, worker.name, earlier.prompt)
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
        outcome = drive(worker, submit_standing(common_dir, worker, earlier, text, screen))
        return record_outcome(common_dir, worker, earlier, outcome)._replace(again=True)
    if not was_shown(earlier, text):
        return None
    # The rows that showed it have changed after Enter: it was taken.
    sent = record_outcome(
        common_dir, worker, earlier, Outcome(True, "screen", None, screen, typed=True)
    )
    return sent._replace(again=True) if prompt == text else None


def submit_standing(
    common_dir: str, worker: Worker, earlier: Sending, text: str, screen: str
) -> delivery.Delivery:
    """Press Enter for a text that stands in the input line already."""
    target = target_of(common_dir, worker, worker.harness, earlier)
    echo = set(earlier.echo) or delivery.changed_rows(earlier.before, screen)
    size = delivery.size_of(target.events)
    life.write_sending(common_dir, worker, earlier._replace(drawn=screen, echo=sorted(echo)))
    look = yield
    at_cursor = look.pane is not None and look.pane.cursor_y in echo
    typed = delivery.cursor_row(look) if at_cursor else None
    foot = delivery.foot_of(earlier.before, screen, text)
    return (
        yield from delivery.press_enter(
            target, look, look.text, echo, set(), size, typed, foot=foot
        )
    )


# --- Sending --------------------------------------------------------------------------------


def begin(
    common_dir: str, worker: Worker, prompt: str, screen: str, earlier: Sending | None
) -> Sending:
    """Record what is about to be typed, before it is."""
    events = life.read_events(common_dir, worker)
    job = life.open_job(events)
    if earlier is not None and life.read_prompt(common_dir, worker.name, earlier.prompt) == prompt:
        # The same call again after one that typed nothing: the same prompt of the same job.
        number = earlier.prompt
    else:
        number = life.new_prompt(common_dir, worker.name, prompt)
    opens = job is None
    sending = Sending(worker.launch, job or number, number, opens, screen, None, [])
    # First of all: where it cannot be written, nothing is begun.
    life.write_card(worker, sending.job)
    life.write_sending(common_dir, worker, sending)
    if opens:
        life.record_event(
            common_dir, worker.name, "delivered",
            job=number, prompt=number, delivered=False, opens=True, before=life.snapshot(worker),
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
        life.clear_sending(common_dir, name)
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


# --- Agents started again -------------------------------------------------------------------


# So many bytes of what an agent printed are looked through for its conversation's id.
LOG_PART = 2_000_000
GO_ON = "Your session was interrupted and has been started again. Go on with your task.\n"
NEW_SESSION = """This is a new session: an earlier one worked in this worktree and ended. You know
nothing of it but what is here. First look at `git log` and `git status`, then go on.

"""


class Resumed(NamedTuple):
    """How a resume ended. `conversation` is `same` or `new`."""

    worker: Worker
    job: str
    conversation: str
    delivered: bool
    error: SkillError | None


def resume(repo: git.Repository, name: str, prompt: str | None, settle: float) -> Resumed:
    """Start a worker's agent again and give it a prompt, which opens a job.

    It is watched for `settle` seconds.

    Raises SkillError: `still-running`, `worktree-unfit` (exit 3), `agent-missing` (exit 4).
    """
    common = repo.common_dir
    if prompt is not None:
        life.require_prompt(prompt)
    life.load(common, name)
    with life.lock(common, name):
        worker = life.load(common, name)
        panes, screens = steering.reach([worker])[worker.name]
        require_ended(common, worker, life.state_of(common, worker, panes, screens))
        mapping = worker.harness
        harness.require_executable(worker.executable)
        harness.require_variables(mapping, os.environ)
        steering.require_alone(common, mapping, name)
        worker = worker._replace(session_id=conversation_of(common, worker))
        same = knows_conversation(worker)
        text = prompt_text(common, worker, prompt, same=same)
        if worker.prompt_mode == "paste":
            delivery.require_pasteable(text)
        if worker.prompt_mode == "argument":
            harness.require_argument(text, worker.prompt_arg)
        before = life.snapshot(worker)
        job = life.new_prompt(common, name, text)
        worker = fresh_start(common, worker, mapping, text, job, same=same)
        old = [p.session for p in (panes or {}).values() if p.session == worker.session]
        worker.server.end_sessions(old)
        life.save(common, worker)
        life.write_card(worker, job)
        life.record_event(
            common, name, "resumed", job=job, launch=worker.launch, opens=True, before=before,
            conversation="same" if same else "new",
        )  # fmt: skip
        start = starting.Start(
            worker, mapping, text, job, settle, worker.ready_timeout, None, redraws=same
        )
        started = starting.start_agents(repo, [start], {})[name]
        return conclude(common, started, job, same=same)


def require_ended(common_dir: str, worker: Worker, state: life.State) -> None:
    """Demand a worker whose agent has ended and whose tree is in its place."""
    if state.word in ("running", "waiting", "starting"):
        sending = life.read_sending(common_dir, worker)
        error = refused(
            "still-running",
            f"the agent of {worker.name!r} is {state.word}",
            "send it a prompt, or stop it first",
        )
        if sending is not None:
            # A killed resume: the prompt is kept, and `send` knows whether it was typed.
            words = [HELPER, "send", worker.name, "--prompt-file"]
            path = life.prompt_file(common_dir, worker.name, sending.prompt)
            command = " ".join(map(life.quote, [*words, path]))
            error.hint = f"its prompt is still on the way; finish that: {command}"
            error.next_actions = [
                next_action("send", command, "bring the prompt that is on its way")
            ]
        raise error
    if state.word == "unknown":
        raise SkillError(
            "state-unknown", f"the state of {worker.name!r} is unknown: {state.detail}"
        )
    trouble = steering.tree_trouble(common_dir, worker)
    if trouble or worker.phase != "live":
        raise refused(
            "worktree-unfit",
            f"{worker.name!r} cannot go on: {trouble or 'its clean-up was begun'}",
            "see status; nothing was started",
        )
    left = proctree.tree([], worker.mark)
    if left:
        listed = ", ".join(f"{process.pid} {process.command}" for process in left)
        raise refused(
            "still-running",
            f"processes of the agent of {worker.name!r} are still alive: {listed}",
            f"end them first: {HELPER} stop {worker.name}",
        )


def conversation_of(common_dir: str, worker: Worker) -> str:
    """The id of a worker's conversation: what its agent printed last, else what it was given."""
    if not worker.harness.id_source.startswith(harness.LOG):
        return worker.session_id
    try:
        with open(starting.terminal_log(common_dir, worker.name), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_PART))
            text = plain_text(file.read().decode("utf-8", "replace"))
    except OSError:
        return worker.session_id
    return harness.printed_id(worker.harness, text) or worker.session_id


def knows_conversation(worker: Worker) -> bool:
    """Whether the mapping can take up the same conversation again."""
    words = worker.harness.resume_args
    return bool(words) and (bool(worker.session_id) or "{session_id}" not in " ".join(words))


def prompt_text(common_dir: str, worker: Worker, prompt: str | None, *, same: bool) -> str:
    """What the agent is told: the caller's prompt, and what it must know of its situation."""
    if same:
        return prompt if prompt is not None else GO_ON
    if prompt is not None:
        return NEW_SESSION + prompt
    job = life.job_of(life.read_events(common_dir, worker), life.State("exited"))
    if job.state == "completed":
        # To give a task that is done once more would have it done twice.
        return NEW_SESSION + GO_ON
    return NEW_SESSION + (life.read_prompt(common_dir, worker.name, "0001") or GO_ON)


def fresh_start(
    common_dir: str, worker: Worker, mapping: harness.Harness, text: str, job: str, *, same: bool
) -> Worker:
    """The record of a new start, its launcher, and an empty log for it."""
    folder = records.worker_dir(common_dir, worker.name)
    log = starting.terminal_log(common_dir, worker.name)
    if os.path.exists(log):
        number = sum(entry.startswith("terminal.") for entry in os.listdir(folder))
        os.rename(log, os.path.join(folder, f"terminal.{number}.log"))
    # Reports of the earlier start stay; what the new one prints and reports is told apart by time.
    worker = worker._replace(
        launch=records.new_id(),
        session_id=worker.session_id
        if same or not harness.takes_our_id(mapping)
        else starting.new_session_id(),
        pane="",
        pane_pid=0,
        pane_started="",
        socket_path="",
        boot_id=proctree.boot_id(),
    )
    arguments = mapping.resume_args if same else mapping.new_args
    return starting.write_start(common_dir, worker, mapping, text, job, arguments, {})


def conclude(common_dir: str, started: starting.Started, job: str, *, same: bool) -> Resumed:
    """Record how a resume went. Nothing is taken back: the tree holds work."""
    worker, outcome = started.worker, started.outcome
    delivered = outcome.delivered and outcome.dialog is None and started.error is None
    life.record_event(
        common_dir, worker.name, "delivered",
        job=job, prompt=job, delivered=delivered, evidence=outcome.evidence,
    )  # fmt: skip
    error = started.error
    if error is None and outcome.ended:
        code = life.exit_record(common_dir, worker)
        if code != 0:
            error = SkillError(
                "agent-ended",
                f"the agent of {worker.name!r} ended with exit code {code}",
                "its screen ended with:\n" + delivery.screen_excerpt(outcome.screen),
            )
    elif error is None and not delivered and worker.prompt_mode != "none":
        error = starting.undelivered(worker, outcome)
    return Resumed(worker, job, "same" if same else "new", delivered, error)
