"""Take back a spawn that failed or was killed: only what it made, and only as it left it."""

from __future__ import annotations

import contextlib
import os

from fanout import delivery, git, proctree, records, worktrees
from fanout import workers as life
from fanout.copies import is_our_copy
from fanout.errors import SkillError
from fanout.output import say
from fanout.workers import Worker

LOCK_WAIT = 60.0


def is_untouched(worker: Worker) -> bool:
    """Whether the agent changed nothing: tip at base, and no file beyond what spawn left there."""
    if git.ref_commit(worker.worktree, worker.branch_ref) != worker.base:
        return False
    return not agent_left(worker)


def agent_left(worker: Worker) -> list[worktrees.Stake]:
    """What an agent left in its tree, apart from what hooks, set-up and copies put there."""
    root = worker.worktree

    def ours(path: str) -> bool:
        return is_our_copy(worker, root, path) or path.startswith(f"{life.RUNS}/")

    found = worktrees.stakes(root, worker.admin_dir, worker.branch_ref, ours)
    made = set(worker.made)
    left = [s._replace(paths=[path for path in s.paths if path not in made]) for s in found]
    return [stake for stake in left if stake.paths]


def taken_back(repo: git.Repository, worker: Worker, error: SkillError) -> SkillError:
    """Take back what a failed spawn made; the error tells where that was not possible."""
    kept = take_back(repo, worker)
    if kept is not None:
        error.hint = f"{kept}\n{error.hint}".strip()
    return error


def take_back(repo: git.Repository, worker: Worker) -> str | None:
    """Undo one spawn: agent, session, worktree, branch, record; each only as spawn left it.

    Returns None, or a sentence that says what was kept because it has changed meanwhile.
    """
    what = "this repository's worktrees"
    with records.lock(repo.common_dir, "repository", wait=LOCK_WAIT, what=what):
        return take_back_locked(repo, worker)


def take_back_locked(repo: git.Repository, worker: Worker) -> str | None:
    """`take_back` for a caller that holds the repository's lock."""
    common = repo.common_dir
    end_agent(worker)
    admin = worker.admin_dir or find_admin_dir(common, worker.worktree)
    tip = git.ref_commit(common, worker.branch_ref)
    changed = tip not in (None, worker.base)
    if admin and os.path.isdir(worker.worktree):
        worker = worker._replace(admin_dir=admin)
        # Before the agent was started, all that is in the tree was made by this call.
        changed = changed or (bool(worker.argv) and bool(agent_left(worker)))
    if changed:
        life.save(common, worker._replace(phase="live"))
        return (
            f"{worker.worktree!r} has changed meanwhile and was kept, with the worker's record; "
            f"see: agent_workers.py status {worker.name}"
        )
    if admin:
        discard_tree(common, worker, admin)
    if tip is not None and worktrees.holder_of(common, repo.main_root, worker.branch_ref) is None:
        git.delete_branch(common, worker.branch, worker.base)
    retire_failed(common, worker.name)
    return None


def end_agent(worker: Worker) -> None:
    """End the processes and the session of a worker that is taken back."""
    if not worker.argv:
        return
    server = worker.server
    panes = [pane for pane in server.panes().values() if pane.mark == worker.launch]
    left = proctree.end_tree([pane.pid for pane in panes if not pane.dead], worker.mark, grace=2.0)
    server.end_sessions([pane.session for pane in panes])
    if left:
        raise SkillError(
            "could-not-stop",
            f"the agent of {worker.name!r} does not end: {', '.join(str(p.pid) for p in left)}",
            "end them, then run the same command again",
        )


def discard_tree(common_dir: str, worker: Worker, admin: str) -> None:
    """Remove a worktree that this call made and nobody has changed since."""
    aside = worktrees.aside_path(worker.worktree)
    if os.path.lexists(worker.worktree):
        os.rename(worker.worktree, aside)
    worktrees.drop_admin_dir(common_dir, admin, worker.worktree)
    worktrees.remove_tree(aside)
    with contextlib.suppress(OSError):
        # Only an empty parent goes: it may be the one that this call made.
        os.rmdir(os.path.dirname(worker.worktree))


def find_admin_dir(common_dir: str, worktree: str) -> str:
    """The administrative folder that names this tree, or an empty string."""
    wanted = os.path.realpath(worktree)
    found = worktrees.registered(common_dir)
    return next((admin for admin, path in found.items() if os.path.realpath(path) == wanted), "")


def retire_failed(common_dir: str, name: str) -> None:
    """Drop the record of a failed spawn; one that holds a log is kept in the archive."""
    folder = records.worker_dir(common_dir, name)
    logs = ("setup.log", "terminal.log")
    if any(delivery.size_of(os.path.join(folder, log)) for log in logs):
        records.archive(common_dir, name, "failed")
    else:
        worktrees.remove_tree(folder)


def recover(repo: git.Repository, name: str) -> None:
    """Take back what a spawn of this name left when it was killed."""
    try:
        worker = life.load(repo.common_dir, name)
    except SkillError as error:
        if error.code == "unknown-worker":
            folder = records.worker_dir(repo.common_dir, name)
            if os.path.isdir(folder) and not os.path.lexists(os.path.join(folder, "worker.json")):
                worktrees.remove_tree(folder)
            return
        raise
    if worker.phase == "spawning":
        say(f"taking back the spawn of {name!r} that did not finish")
        take_back_locked(repo, worker)
