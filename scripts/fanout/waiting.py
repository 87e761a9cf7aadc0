"""Wait for jobs by their events, without reading a screen and at next to no cost."""

from __future__ import annotations

import contextlib
import os
import time

from fanout import git, jobs, proctree, records, steering
from fanout import workers as life
from fanout.errors import ExitCode, SkillError
from fanout.fields import NamedTuple
from fanout.jobs import Job
from fanout.workers import State, Worker

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


def wait(
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
    rows = look(common, every)
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
        rows.update(look(common, stale))


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


def look(common_dir: str, names: list[str]) -> dict[str, Waited]:
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
        job = jobs.current(common_dir, worker, state, logs)
        rows[worker.name] = Waited(worker.name, state.word, job)
    return {name: rows[name] for name in names}
