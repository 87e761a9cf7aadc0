"""Run checks on a commit, in a throw-away worktree of its own."""

from __future__ import annotations

import contextlib
import os
import time

from fanout import git, proctree, records, worktrees
from fanout.errors import ExitCode, SkillError
from fanout.fields import NamedTuple
from fanout.output import path_list, progress, say
from fanout.tmux import environment_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

LOCK_WAIT = 60.0
ORPHAN_WAIT = 10.0
MARK = "AGENT_WORKERS_INTEGRATION"


class Check(NamedTuple):
    """How one check ended. `exit_code` is None when it did not end in time or did not start.

    `reason` says why it counts as failed where the exit code alone does not; `log` is absolute.
    """

    command: str
    exit_code: int | None
    log: str
    seconds: float
    reason: str

    @property
    def passed(self) -> bool:
        """Whether the check says that all is well."""
        return self.exit_code == 0 and not self.reason

    def to_json(self) -> dict[str, Any]:
        """The row of `data.checks`."""
        return {**self._asdict(), "passed": self.passed}


def tree_path(repo: git.Repository, integration_id: str, number: int) -> str:
    """Where a throw-away tree stands: beside the workers' trees, outside of every checkout."""
    return f"{repo.main_root}.worktrees/integration-{integration_id}-{number}"


def run_checks(
    repo: git.Repository,
    commit: str,
    commands: list[str],
    *,
    tree: str,
    logs: str,
    timeout: float,
) -> list[Check]:
    """Run commands on a commit one after the other, up to the first that fails.

    The tree is made for this and removed afterwards, with all that the commands left in it and
    all processes that they started.
    """
    if not commands:
        return []
    records.make_dir(logs)
    mark = f"{MARK}={os.path.basename(tree)}"
    admin = add_tree(repo, tree, commit)
    found: list[Check] = []
    try:
        worktrees.fill_worktree(tree)
        for command in commands:
            progress(f"checking: {command}")
            log = f"{logs}/{len(os.listdir(logs)) + 1:02d}.log"
            shared = read_shared(repo.common_dir, commit)
            check = run_check(command, commit, tree=tree, log=log, timeout=timeout, mark=mark)
            left = what_is_left(repo.common_dir, commit, shared)
            if left:
                check = check._replace(reason="; ".join(filter(None, (check.reason, left))))
            found.append(check)
            if not found[-1].passed:
                break
    finally:
        remove_tree(repo, tree, admin, mark)
    return found


def run_check(
    command: str, commit: str, *, tree: str, log: str, timeout: float, mark: str
) -> Check:
    """Run one command. A check that could not run, or that changes what it checks, has failed."""
    name, _, value = mark.partition("=")
    env = environment_with({name: value})
    others = {process.identity for process in proctree.processes()}
    started = time.monotonic()
    code: int | None = None
    reason = ""
    try:
        code = proctree.run_logged(
            ["bash", "-c", command], cwd=tree, env=env, log=log, timeout=timeout, mark=mark
        )
        reason = f"did not end in {timeout:g} s" if code is None else ""
    except SkillError as error:
        reason = error.message
    seconds = round(time.monotonic() - started, 3)
    proctree.end_tree([], mark, grace=2.0)
    end_inside(tree, others)
    if code == 0:
        reason = edited(tree, commit)
    return Check(command, code, log, seconds, reason)


def edited(tree: str, commit: str) -> str:
    """How a tree differs from the commit that it was made for; empty when it does not.

    What is published is the commit: a check of anything else says nothing about it.
    """
    try:
        status = worktrees.read_status(tree)
        hidden, _ = worktrees.hidden_changes(tree, worktrees.at(tree))
    except SkillError as error:
        return f"the tree could not be read afterwards: {error.message}"
    if status.head != commit:
        return f"it moved HEAD to {status.head[:12]}"
    paths = sorted({*status.staged, *status.modified, *status.conflicted, *hidden})
    return f"it changed files that are checked in: {path_list(paths, 10)}" if paths else ""


def end_inside(tree: str, others: set[tuple[int, str]]) -> None:
    """End what still works in a tree, but for those processes that were there before the check.

    One that emptied its environment carries no mark.
    """
    root = os.path.realpath(tree)
    inside = [
        process.pid
        for process, place in proctree.working_directories()
        if (place == root or place.startswith(f"{root}/")) and process.identity not in others
    ]
    if inside:
        proctree.end_tree(inside, f"{MARK}={os.path.basename(tree)}", grace=2.0)


# --- What all worktrees share ----------------------------------------------------------------


class Shared(NamedTuple):
    """What a check can change for all worktrees: the stashes, and the refs at its commit."""

    stashes: list[str]
    refs: list[str]


def read_shared(common_dir: str, commit: str) -> Shared:
    """The ids of all stashes, and the refs that stand at a commit."""
    # Without any stash there is no such ref.
    done = git.git(common_dir, "reflog", "show", "--format=%H", "refs/stash")
    stashes = done.text.split() if done.code == 0 else []
    words = ["for-each-ref", f"--points-at={commit}", "--format=%(refname)"]
    return Shared(stashes, git.require_git(common_dir, *words).text.split())


def what_is_left(common_dir: str, commit: str, before: Shared) -> str:
    """What a check has left in, or taken from, the repository that it shares; empty for nothing.

    Others may stash and make branches meanwhile: only what starts from its commit is its own.
    """
    after = read_shared(common_dir, commit)
    words: list[str] = []
    lost = [stash for stash in before.stashes if stash not in after.stashes]
    if lost:
        how = "`git stash store ID` brings one back"
        words.append(f"stashes were taken away meanwhile: {', '.join(lost)} ({how})")
    made = [stash for stash in after.stashes if stash not in before.stashes]
    mine = [stash for stash in made if git.ref_commit(common_dir, f"{stash}^1") == commit]
    if mine:
        words.append(f"it left a stash, which all worktrees share: {', '.join(mine)}")
    # A commit that others know may get a branch of theirs.
    if after.refs and not before.refs:
        words.append(f"it made {', '.join(after.refs)}")
    return "; ".join(words)


# --- What a killed call leaves ---------------------------------------------------------------


@contextlib.contextmanager
def marked(integration_id: str) -> Generator[None, None, None]:
    """Mark whatever this process starts as a part of one integration.

    Git goes on when only the command that waits for it is killed.
    """
    outer = os.environ.get(MARK)
    os.environ[MARK] = integration_id
    try:
        yield
    finally:
        if outer is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = outer


def await_end(integration_id: str) -> None:
    """Wait until the git commands of a killed call have ended. Raises SkillError `busy` (exit 11).

    What a hook or a filter has left running is none of them.
    """
    deadline = time.monotonic() + ORPHAN_WAIT
    while True:
        found = proctree.tree([], f"{MARK}={integration_id}")
        alive = [p for p in found if os.path.basename(p.command.split(" ")[0]) == "git"]
        if not alive:
            return
        if time.monotonic() >= deadline:
            pids = ", ".join(str(process.pid) for process in alive)
            raise SkillError(
                "busy",
                f"git is still at work for the interrupted integration {integration_id}: {pids}",
                "wait for it to end, then run this again",
                exit_code=ExitCode.BUSY,
            )
        time.sleep(0.02)


# --- Throw-away trees ------------------------------------------------------------------------


def add_tree(repo: git.Repository, path: str, commit: str) -> str:
    """Make an empty worktree at a commit without any branch; returns its administrative folder."""
    with records.lock(repo.common_dir, "repository", wait=LOCK_WAIT, what="the worktrees"):
        return worktrees.add_detached(repo, path, commit)


def remove_tree(repo: git.Repository, path: str, admin_dir: str, mark: str = "") -> None:
    """Remove a throw-away tree that this command, or one that was killed, has made."""
    if mark:
        proctree.end_tree([], mark, grace=1.0)
    with records.lock(repo.common_dir, "repository", wait=LOCK_WAIT, what="the worktrees"):
        parents = worktrees.made_folders(admin_dir)
        trash = f"{records.home(repo.common_dir)}/integrations"
        records.make_dir(trash)
        worktrees.remove_tree(path)
        moved = worktrees.registered_path(admin_dir) if admin_dir else None
        if moved not in (None, path) and os.path.isdir(str(moved)):
            say(f"note: the tree for checks {path!r} was moved to {moved!r}; it is left there")
        if os.path.isdir(admin_dir) and worktrees.owns_admin_dir(admin_dir, path):
            worktrees.drop_admin_dir(repo.common_dir, admin_dir, trash)
        worktrees.remove_empty(parents)
