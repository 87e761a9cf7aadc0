"""Look at workers that are there: their states, their trees, their screens."""

from __future__ import annotations

import contextlib
import os
import time

from fanout import git
from fanout import workers as life
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.process import Running, end, finish, has_ended, start
from fanout.tmux import Pane, Server
from fanout.workers import State, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.harness import Harness

# How long a tmux server may take to make its lost socket again.
SOCKET_WAIT = 2.0
Seen = dict[str, tuple[dict[str, Pane] | None, dict[str, str]]]


class View(NamedTuple):
    """One worker as `status` shows it.

    `dirty` says how many of its files are changed, None when its tree was not looked at.
    """

    worker: Worker
    state: State
    head: str | None
    ahead: int | None
    dirty: int | None
    job: life.Job

    def to_json(self) -> dict[str, Any]:
        """The row of `data.workers`."""
        worker = self.worker
        return {
            "name": worker.name,
            "state": self.state.word,
            "detail": self.state.detail,
            "exit_code": self.state.exit_code,
            "branch": worker.branch,
            "worktree": worker.worktree,
            "base": worker.base,
            "head": self.head,
            "ahead": self.ahead,
            "dirty": self.dirty,
            "job": self.job.to_json(),
            "session": worker.session,
            "pane": worker.pane,
            "attach": worker.attach_command,
        }


class Looks:
    """One look at each worker's server; they run from the start on, beside other work."""

    def __init__(self, workers: list[Worker]) -> None:
        self.members: dict[Server, list[Worker]] = {}
        for worker in workers:
            self.members.setdefault(worker.server, []).append(worker)
        self.clients = {
            server: server.start_look(panes_of(members)) for server, members in self.members.items()
        }

    def finish(self) -> Seen:
        """The panes and screens of each worker's server, by worker name.

        The panes are None where a server gives no proper answer: unknown is not dead.
        """
        found: Seen = {}
        for server, members in self.members.items():
            panes: dict[str, Pane] | None = None
            screens: dict[str, str] = {}
            try:
                panes, screens = server.finish_look(self.clients[server], panes_of(members))
            except SkillError as error:
                if error.exit_code == ExitCode.MISSING:
                    raise
            found.update({worker.name: (panes, screens) for worker in members})
        return found

    def close(self) -> None:
        """End those that still run."""
        for client in self.clients.values():
            client.close()


def panes_of(workers: list[Worker]) -> list[str]:
    """The panes that records name."""
    return [worker.pane for worker in workers if worker.pane]


def look(workers: list[Worker]) -> Seen:
    """The panes and screens of each worker's server (see `Looks.finish`)."""
    looks = Looks(workers)
    try:
        return looks.finish()
    finally:
        looks.close()


def reach(workers: list[Worker]) -> Seen:
    """`look`; a server that lives, but whose socket was deleted, is asked to make it again first.

    It does so on SIGUSR1 (tmux(1)). It is known for certain: it is the parent of a launcher that
    is the very process which the record names.
    """
    seen = look(workers)
    lost = [w for w in workers if is_lost(w, seen[w.name][0])]
    asked: dict[int, str] = {}
    if lost:
        import signal

        from fanout import proctree

        by_pid = {process.pid: process for process in proctree.processes()}
        for worker in lost:
            launcher = by_pid.get(worker.pane_pid)
            if launcher is None or not life.has_launcher(worker):
                continue
            server = by_pid.get(launcher.parent)
            if server is None or server.command != "tmux: server" or server.pid in asked:
                continue
            proctree.send_signal(server, signal.SIGUSR1)
            asked[server.pid] = worker.socket_path
    deadline = time.monotonic() + SOCKET_WAIT
    while not all(map(os.path.lexists, asked.values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return look(workers) if asked else seen


def require_alone(common_dir: str, harness: Harness, name: str) -> None:
    """Demand that no other agent of a harness lives, where two of it disturb each other.

    Raises SkillError `not-parallel` (exit 3). One of which the state is unknown counts as alive.
    """
    if harness.parallel:
        return
    workers, _ = life.load_all(common_dir, [])
    others = [w for w in workers if w.name != name and w.mapping.get("name") == harness.name]
    seen = reach(others)
    for other in others:
        state = life.state_of(common_dir, other, *seen[other.name])
        if state.word not in ("exited", "stopped", "gone"):
            raise refused(
                "not-parallel",
                f"the agent of {other.name!r} is {state.word}, and two of {harness.name!r} disturb"
                " each other (parallel.safe in the mapping)",
                f"wait for it or stop it first: agent_workers.py stop {other.name}",
            )


def is_lost(worker: Worker, panes: dict[str, Pane] | None) -> bool:
    """Whether a worker's pane is not seen, and nothing stands in the place of its socket."""
    return (
        panes is not None
        and bool(worker.socket_path)
        and life.own_pane(worker, panes) is None
        and not os.path.lexists(worker.socket_path)
    )


def survivors(workers: list[Worker], seen: Seen) -> set[str]:
    """The names of those whose pane is gone, while something that carries their mark lives on."""
    lost: list[tuple[Worker, list[int]]] = []
    for worker in workers:
        panes, _ = seen[worker.name]
        if panes is not None and life.own_pane(worker, panes) is None:
            lost.append((worker, life.live_roots(worker, panes)))
    if not lost:
        return set()
    from fanout import proctree

    alive = proctree.trees([(roots, worker.mark) for worker, roots in lost])
    return {worker.name for (worker, _), tree in zip(lost, alive, strict=True) if tree}


def is_over(worker: Worker, panes: dict[str, Pane]) -> bool:
    """Whether a worker's pane is dead or gone."""
    pane = life.own_pane(worker, panes)
    return pane is None or pane.dead


def view_all(repo: git.Repository, workers: list[Worker], *, files: bool) -> list[View]:
    """The state of each worker, of its branch and, unless told otherwise, of its files."""
    if not workers:
        return []
    common = repo.common_dir
    looks = Looks(workers)
    trees = Trees()
    try:
        troubles: dict[str, str] = {}
        for worker in workers:
            troubles[worker.name] = tree_trouble(common, worker)
            if files and not troubles[worker.name]:
                trees.add(worker)
        heads = git.heads_of(common, [worker.branch_ref for worker in workers])
        logs: dict[str, life.Logs] = {}
        for worker in workers:
            logs[worker.name] = life.read_logs(common, worker)
            trees.advance()
        learn_dialogs(workers)
        seen = looks.finish()
        ahead = count_ahead(
            common, [(w.base, heads[w.branch_ref]) for w in workers if w.branch_ref in heads]
        )
        dirty = trees.finish()
    finally:
        looks.close()
        trees.close()
    alive = survivors(workers, seen)
    views: list[View] = []
    for worker in workers:
        panes, screens = seen[worker.name]
        mine = logs[worker.name]
        if panes is None or is_over(worker, panes):
            # How it ended may have been written after its logs were read.
            mine = life.read_logs(common, worker)
        state = life.state_of(common, worker, panes, screens, mine, worker.name in alive)
        trouble = troubles[worker.name]
        if trouble:
            state = state._replace(detail=f"{state.detail}; {trouble}".strip("; "))
        head = heads.get(worker.branch_ref)
        job = life.current(common, worker, state, mine)
        count = ahead.get((worker.base, head)) if head else None
        views.append(View(worker, state, head, count, dirty.get(worker.name), job))
    return views


def learn_dialogs(workers: list[Worker]) -> None:
    """Check the mappings and compile their patterns while tmux is still at work.

    What is wrong with one is told where it is needed.
    """
    from fanout.harness import dialog_on_screen

    for worker in {id(worker.mapping): worker for worker in workers}.values():
        with contextlib.suppress(SkillError):
            dialog_on_screen(worker.harness, "-", "")


def tree_trouble(common_dir: str, worker: Worker) -> str:
    """What is wrong with a worker's tree as such, in words; empty when it is in its place."""
    expected = f"{common_dir}/worktrees/{os.path.basename(worker.admin_dir)}"
    if git.small_file(f"{worker.worktree}/.git") == f"gitdir: {expected}\n":
        return ""
    from fanout import worktrees

    admin = worktrees.admin_dir_of(worker.worktree)
    if admin == expected:
        return ""
    if not os.path.isdir(worker.worktree):
        return "its worktree is not there"
    if admin is not None and os.path.realpath(admin) == expected:
        return ""
    if admin is not None and not os.path.isdir(admin):
        return "the repository was moved; run `git worktree repair` in it"
    return "its worktree is not the one that was made for it; `git worktree repair` may help"


class Trees:
    """How many files are changed in workers' trees, some at a time, beside other work."""

    def __init__(self) -> None:
        self.queue: list[Worker] = []
        self.running: list[tuple[Worker, list[str], Running]] = []
        self.found: dict[str, int] = {}
        self.at_once = max(2, os.cpu_count() or 2)
        self.environment = git.git_environment()

    def add(self, worker: Worker) -> None:
        """Look at one more tree, as soon as that may be."""
        self.queue.append(worker)
        self.advance()

    def advance(self) -> None:
        """Collect what has ended and start what may, without waiting."""
        if self.running or self.queue:
            for entry in [entry for entry in self.running if has_ended(entry[2])]:
                self.collect(entry)
            while self.queue and len(self.running) < self.at_once:
                self.start(self.queue.pop(0))

    def start(self, worker: Worker) -> None:
        """Start to look at a tree."""
        from fanout import worktrees

        # The branch is read from its own file.
        arguments = [w for w in worktrees.status_arguments(ignored=False) if w != "--branch"]
        environment = {**self.environment, **worktrees.at(worker.worktree)}
        if needs_refresh(worker):
            environment["GIT_OPTIONAL_LOCKS"] = "1"
        argv = git.git_command(worker.worktree, *arguments)
        running = start(argv, env=environment, says_why=False)
        self.running.append((worker, argv, running))

    def collect(self, entry: tuple[Worker, list[str], Running]) -> None:
        """Wait for one; a tree that cannot be read is left out."""
        from fanout import worktrees

        worker, argv, running = entry
        done = finish(running, argv)
        self.running.remove(entry)
        if done.code == 0:
            self.found[worker.name] = worktrees.parse_status(done).dirty

    def finish(self) -> dict[str, int]:
        """How many files are changed in each tree, by worker name."""
        while self.running:
            self.collect(self.running[0])
            self.advance()
        return self.found

    def close(self) -> None:
        """End those that still run."""
        for _, _, running in self.running:
            end(running)


def needs_refresh(worker: Worker) -> bool:
    """Whether the index is still the one of the check-out, and at least a second old.

    Git re-hashes every file whose time is that of the index. One `status` that may write the index
    ends this; all later ones take no lock, so that they never stand in an agent's way.
    """
    try:
        index = os.stat(os.path.join(worker.admin_dir, "index")).st_mtime
        head = os.stat(os.path.join(worker.admin_dir, "HEAD")).st_mtime
    except OSError:
        return False
    return index - head < 2.0 and time.time() - index > 1.0


def count_ahead(common_dir: str, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How many commits each head has that its base has not; one process for all of one base."""
    counts = dict.fromkeys(pairs, 0)
    by_base: dict[str, list[str]] = {}
    for base, head in counts:
        if base != head:
            by_base.setdefault(base, []).append(head)
    for base, heads in by_base.items():
        done = git.git(common_dir, "rev-list", "--parents", *heads, "--not", base)
        if done.code != 0:
            continue
        parents = {words[0]: words[1:] for words in map(str.split, done.text.splitlines())}
        for head in heads:
            seen: set[str] = set()
            queue = [head]
            while queue:
                commit = queue.pop()
                if commit in parents and commit not in seen:
                    seen.add(commit)
                    queue += parents[commit]
            counts[base, head] = len(seen)
    return counts
