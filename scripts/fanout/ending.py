"""How work ends: wait until jobs have ended, or end agents with all their processes."""

from __future__ import annotations

import contextlib
import os
import time

from fanout import git, proctree, records, steering
from fanout import workers as life
from fanout.errors import ExitCode, SkillError
from fanout.fields import NamedTuple
from fanout.tmux import Pane, Server
from fanout.workers import Job, State, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROUND = 0.2
# Whatever files and processes say, tmux is asked so often.
ASK_TMUX = 5.0


class Waited(NamedTuple):
    """One worker at the end of a wait."""

    name: str
    state: str
    job: Job

    def to_json(self) -> dict[str, Any]:
        """The row of `data.workers`."""
        return {"name": self.name, "state": self.state, "job": self.job.to_json()}


def wait_for_jobs(
    repo: git.Repository, names: list[str], *, first: bool, until: str, deadline: float | None
) -> tuple[list[Waited], ExitCode]:
    """Wait until all jobs (with `first`, any) have ended, or with `until` "started" have begun.

    Without names: all open jobs. DONE when all completed, FAILED when one did not, TIMED_OUT when
    `deadline` (of time.monotonic) came first and none had failed.
    """
    common = repo.common_dir
    chosen, errors = life.load_all(common, names)
    if errors and names:
        raise errors[0]
    every = [worker.name for worker in chosen]
    # Before the look: what happens during it makes another one.
    marks = marks_of(common, every)
    rows = look_at_jobs(common, every)
    if not names:
        rows = {name: row for name, row in rows.items() if row.job.is_open}
    asked = time.monotonic()
    while True:
        over = [row for row in rows.values() if is_over(row, until)]
        if len(over) == len(rows) or (first and over):
            return list(rows.values()), verdict(over if first else list(rows.values()), until)
        if deadline is not None and time.monotonic() >= deadline:
            failed = verdict(over, until) == ExitCode.FAILED
            return list(rows.values()), ExitCode.FAILED if failed else ExitCode.TIMED_OUT
        time.sleep(ROUND)
        waiting = [name for name, row in rows.items() if not is_over(row, until)]
        now = marks_of(common, waiting)
        if time.monotonic() - asked >= ASK_TMUX:
            stale, asked = waiting, time.monotonic()
        else:
            stale = [name for name in waiting if now[name] != marks[name]]
        marks.update(now)
        rows.update(look_at_jobs(common, stale))


def is_over(row: Waited, until: str) -> bool:
    """Whether a wait for this worker is over."""
    return not row.job.is_open or (until == "started" and row.job.started)


def verdict(rows: list[Waited], until: str) -> ExitCode:
    """DONE when every job completed, or has begun where that was asked."""
    good = all(
        row.job.state == "completed" or (row.job.is_open and until == "started" and row.job.started)
        for row in rows
    )
    return ExitCode.DONE if good else ExitCode.FAILED


def marks_of(common_dir: str, names: list[str]) -> dict[str, tuple[Any, ...]]:
    """What changes when something happens to a worker: its logs, its record, its process."""
    marks: dict[str, tuple[Any, ...]] = dict.fromkeys(names, ("gone",))
    present: list[Worker] = []
    for name in names:
        with contextlib.suppress(SkillError):
            present.append(life.load(common_dir, name))
    started = proctree.start_times({worker.pane_pid for worker in present if worker.pane_pid})
    for worker in present:
        folder = records.worker_dir(common_dir, worker.name)
        files = (f"{folder}/events.jsonl", f"{folder}/exits.jsonl", worker.events_file)
        alive = started.get(worker.pane_pid) == worker.pane_started
        marks[worker.name] = (*map(stamp, files), worker.launch, alive)
    return marks


def stamp(path: str) -> tuple[int, int]:
    """A file's size and time; zeros when it is not there."""
    try:
        facts = os.stat(path)
    except OSError:
        return (0, 0)
    return (facts.st_size, facts.st_mtime_ns)


def look_at_jobs(common_dir: str, names: list[str]) -> dict[str, Waited]:
    """The jobs of workers as they are now; a worker without a record is gone."""
    rows: dict[str, Waited] = {}
    present: list[Worker] = []
    for name in names:
        try:
            present.append(life.load(common_dir, name))
        except SkillError as error:
            gone = Job(None, "failed", None, error.message, "", None, False, {})
            rows[name] = Waited(name, "gone", gone)
    seen = steering.look(present)
    alive = steering.survivors(present, seen)
    for worker in present:
        logs = life.read_logs(common_dir, worker)
        panes, screens = seen[worker.name]
        state: State = life.state_of(common_dir, worker, panes, screens, logs, worker.name in alive)
        job = life.current(common_dir, worker, state, logs)
        rows[worker.name] = Waited(worker.name, state.word, job)
    return {name: rows[name] for name in names}


# --- Stopping: any number of workers together, each decided alone ---------------------------


LOCK_WAIT = 30.0
LOCK_ROUND = 0.05
LEAVE_WAIT = 3.0
TERM_WAIT = 3.0
# How long a launcher may take to record the end of its agent.
RECORD_WAIT = 1.0

Outcomes = dict[str, "str | SkillError"]


class Target(NamedTuple):
    """A worker whose agent is to end.

    `pane` is its own, as long as the launcher in it lives; its process tree begins at `roots`.
    """

    worker: Worker
    pane: Pane | None
    roots: list[int]


def stop_all(repo: git.Repository, names: list[str]) -> Outcomes:
    """End the agents of workers with their whole process trees, checked.

    By name: "stopped" or "not running", or the error: `could-not-stop`, `state-unknown`, `busy` and
    what reading a record raises. Worktree, branch, record and the dead pane stay.
    """
    done: Outcomes = {}
    deadline = time.monotonic() + LOCK_WAIT
    # Nobody waits here while holding a lock; sorted all the same, as two calls may meet.
    left = sorted(set(names))
    while left:
        busy: list[str] = []
        with contextlib.ExitStack() as locks:
            free: list[Worker] = []
            for name in left:
                try:
                    locks.enter_context(life.lock(repo.common_dir, name, wait=0.0))
                    free.append(life.load(repo.common_dir, name))
                except SkillError as error:
                    done[name] = error
                    busy += [name] * (error.code == "busy")
            stop_held(repo.common_dir, free, done)
        # One that is busy gets its turn when the others are done.
        left = busy if time.monotonic() < deadline else []
        if left:
            time.sleep(LOCK_ROUND)
    return done


def stop_held(common_dir: str, workers: list[Worker], done: Outcomes) -> None:
    """End the agents of workers whose locks are held."""
    targets = [t for t in living(workers, done) if record_stop(common_dir, t.worker, done)]
    press_leave_keys(targets)
    # The launcher is spared at first: it ends by itself and records the agent's status.
    left = end(targets, TERM_WAIT, spare=True)
    ended = [t for t, alive in zip(targets, left, strict=True) if t.pane is not None and not alive]
    await_end(ended, RECORD_WAIT)
    for target, alive in zip(targets, end(targets, 0.5), strict=True):
        name = target.worker.name
        listed = ", ".join(f"{p.pid} {p.command}" for p in alive)
        done[name] = "stopped"
        if alive:
            done[name] = SkillError(
                "could-not-stop",
                f"processes of {name!r} are still alive: {listed}",
                "end them by hand, then run stop again; nothing was removed",
            )


def living(workers: list[Worker], done: Outcomes) -> list[Target]:
    """Those whose agents live; `done` is told of the others."""
    try:
        seen = steering.reach(workers)
    except SkillError as error:
        done.update({worker.name: error for worker in workers})
        return []
    targets: list[Target] = []
    for worker in workers:
        panes, _ = seen[worker.name]
        if panes is None:
            done[worker.name] = SkillError(
                "state-unknown", "tmux gives no answer; nothing was ended", "run `doctor`"
            )
            continue
        pane = life.own_pane(worker, panes)
        pane = pane if pane is not None and not pane.dead else None
        targets.append(Target(worker, pane, life.live_roots(worker, panes)))
    alive = proctree.trees([(t.roots, t.worker.mark) for t in targets])
    done.update({t.worker.name: "not running" for t in targets})
    return [t for t, tree in zip(targets, alive, strict=True) if tree]


def record_stop(common_dir: str, worker: Worker, done: Outcomes) -> bool:
    """Record that an agent is stopped and its job cancelled; False where that cannot be written."""
    try:
        job = life.open_job(life.read_events(common_dir, worker))
        life.record_event(common_dir, worker.name, "stopped", launch=worker.launch)
        if job is not None:
            life.record_event(common_dir, worker.name, "cancelled", job=job, message="stopped")
    except OSError as error:
        message = f"the record of {worker.name!r} cannot be written: {error}"
        done[worker.name] = SkillError("file-failed", message, "nothing of it was ended")
        return False
    return True


def press_leave_keys(targets: list[Target]) -> None:
    """Press the keys with which agents are asked to leave, and give them time to do it."""
    asked: list[Target] = []
    by_server: dict[Server, list[tuple[str, str, tuple[str, ...]]]] = {}
    for target in targets:
        worker, keys = target.worker, target.worker.harness.leave_keys
        if target.pane is not None and keys:
            asked.append(target)
            press = (target.pane.pane, worker.launch, keys)
            by_server.setdefault(worker.server, []).append(press)
    for server, presses in by_server.items():
        # Where tmux does not answer any more, signals do what the keys would have done.
        with contextlib.suppress(SkillError):
            server.press_all(presses)
    await_end(asked, LEAVE_WAIT)


def await_end(targets: list[Target], seconds: float) -> None:
    """Wait for all processes of agents to end by themselves, at most so long."""
    deadline = time.monotonic() + seconds
    wanted = [(target.roots, target.worker.mark) for target in targets]
    while wanted and time.monotonic() < deadline and any(proctree.trees(wanted)):
        time.sleep(0.05)


def end(
    targets: list[Target], grace: float, *, spare: bool = False
) -> list[list[proctree.Process]]:
    """End the process trees of agents; for each, what is still alive."""
    trees = [
        proctree.Ending(t.roots, t.worker.mark, frozenset(t.roots if spare else []))
        for t in targets
    ]
    return proctree.end_trees(trees, grace=grace)
