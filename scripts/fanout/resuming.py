"""Start a worker's agent again: same worktree and branch, same conversation where possible."""

from __future__ import annotations

import os

from fanout import delivery, git, harness, jobs, proctree, records, starting, steering
from fanout import workers as life
from fanout.edition import HELPER
from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple
from fanout.output import next_action, plain_text
from fanout.workers import Worker

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
        jobs.require_prompt(prompt)
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
        before = jobs.snapshot(worker)
        job = jobs.new_prompt(common, name, text)
        worker = fresh_start(common, worker, mapping, text, job, same=same)
        old = [p.session for p in (panes or {}).values() if p.session == worker.session]
        worker.server.end_sessions(old)
        life.save(common, worker)
        life.write_card(worker, job)
        life.record_event(
            common, name, "resumed", job=job, launch=worker.launch, opens=True, before=before,
            conversation="same" if same else "new",
        )  # fmt: skip
        start = starting.Start(worker, mapping, text, job, settle, worker.ready_timeout, None)
        started = starting.start_agents(repo, [start], {})[name]
        return conclude(common, started, job, same=same)


def require_ended(common_dir: str, worker: Worker, state: life.State) -> None:
    """Demand a worker whose agent has ended and whose tree is in its place."""
    if state.word in ("running", "waiting", "starting"):
        sending = jobs.read_sending(common_dir, worker)
        error = refused(
            "still-running",
            f"the agent of {worker.name!r} is {state.word}",
            "send it a prompt, or stop it first",
        )
        if sending is not None:
            # A killed resume: the prompt is kept, and `send` knows whether it was typed.
            words = [HELPER, "send", worker.name, "--prompt-file"]
            path = jobs.prompt_file(common_dir, worker.name, sending.prompt)
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
    job = jobs.job_of(life.read_events(common_dir, worker), life.State("exited"))
    if job.state == "completed":
        # To give a task that is done once more would have it done twice.
        return NEW_SESSION + GO_ON
    return NEW_SESSION + (jobs.read_prompt(common_dir, worker.name, "0001") or GO_ON)


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
