"""End agents with all their processes: any number of workers together, each decided alone."""

from __future__ import annotations

import contextlib
import time

from fanout import git, jobs, proctree, steering
from fanout import workers as life
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.tmux import Pane, Server
from fanout.workers import Worker

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
        job = jobs.open_job(life.read_events(common_dir, worker))
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
