"""Take workers away: prove that nothing is lost, set the tree aside, look again, drop.

Each worker is decided alone; the steps that cost a process are done once for all of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, NamedTuple

from fanout import git, proctree, records, rescue, steering, worktrees
from fanout import workers as life
from fanout.copies import is_our_copy
from fanout.errors import SkillError
from fanout.output import progress
from fanout.takeback import LOCK_WAIT, find_admin_dir
from fanout.tmux import Pane
from fanout.workers import Worker
from fanout.worktrees import Stake

# What --discard cannot save, so it does not overrule it.
ALWAYS = frozenset(
    [
        "busy",
        "running",
        "live-process",
        "state-unknown",
        "record-damaged",
        "spawn-unfinished",
        "worktree-replaced",
        "worktree-moved",
        "worktree-locked",
        "repository-moved",
        "index-locked",
        "submodule-commits",
        "rescue-failed",
        "unreadable",
    ]
)


class Choice(NamedTuple):
    """What the caller allows."""

    merged_only: bool
    branch_delete: bool
    discard: bool
    dry_run: bool


class Result(NamedTuple):
    """How one worker ended. `removed` and `reasons` exclude each other."""

    name: str
    removed: bool
    reasons: list[Stake]
    branch_deleted: bool = False
    rescue: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The row of `data.workers`."""
        return {**self._asdict(), "reasons": reasons_json(self.reasons), "notes": list(self.notes)}


def reasons_json(reasons: list[Stake]) -> list[dict[str, Any]]:
    """Reasons as `data.refused` shows them; long lists are cut and say so."""
    return [
        {"code": reason.code, "paths": reason.paths[:100], "count": len(reason.paths)}
        for reason in reasons
    ]


class Case(NamedTuple):
    """One worker on its way out. `root` is where its tree stands now."""

    worker: Worker
    root: str
    tip: str | None
    merged: bool
    gone: bool
    panes: dict[str, Pane]


def clean(repo: git.Repository, names: list[str], choice: Choice) -> list[Result]:
    """Clean up workers, by name or all that are proved integrated.

    Raises SkillError `unknown-worker` before anything is changed.
    """
    results: list[Result] = []
    common = repo.common_dir
    with contextlib.ExitStack() as locks:
        able: list[Worker] = []
        for name in dict.fromkeys(names):
            try:
                locks.enter_context(life.lock(common, name))
                able.append(life.load(common, name))
            except SkillError as error:
                if error.code in ("unknown-worker", "invalid-name"):
                    raise
                results.append(Result(name, False, [Stake(error.code, [error.message])]))
        what = "this repository's worktrees"
        with records.lock(common, "repository", wait=LOCK_WAIT, what=what):
            cases, refusals = examine(repo, able, choice)
            results += refusals
            if choice.dry_run:
                results += [foresee(repo, case, choice) for case in cases]
            else:
                results += remove_all(repo, cases, choice)
    order = {name: number for number, name in enumerate(names)}
    return sorted(results, key=lambda result: order[result.name])


# --- Looking --------------------------------------------------------------------------------


def examine(
    repo: git.Repository, workers: list[Worker], choice: Choice
) -> tuple[list[Case], list[Result]]:
    """Divide workers into those that may go and those that may not.

    Changes nothing but this: a tree that a killed clean-up had set aside is put back first.
    """
    seen = steering.look(workers)
    heads = git.branch_heads(repo.common_dir) if workers else {}
    working = proctree.working_directories()
    cases: list[Case] = []
    refusals: list[Result] = []
    for worker in workers:
        progress(f"{worker.name}: looking")
        panes, _ = seen[worker.name]
        try:
            case, reasons = examine_one(repo, worker, panes, heads, working, choice)
        except SkillError as error:
            case, reasons = None, [Stake("unreadable", [error.message])]
        if reasons and not (choice.discard and not any(r.code in ALWAYS for r in reasons)):
            refusals.append(Result(worker.name, False, reasons))
        elif case is not None:
            cases.append(case)
    return cases, refusals


def examine_one(
    repo: git.Repository,
    worker: Worker,
    panes: dict[str, Pane] | None,
    heads: dict[str, str],
    working: list[tuple[proctree.Process, str]],
    choice: Choice,
) -> tuple[Case, list[Stake]]:
    """One worker's case, and every reason why it may not go."""
    common = repo.common_dir
    if panes is None:
        return Case(worker, "", None, False, False, {}), [Stake("state-unknown", [worker.session])]
    tip = heads.get(worker.branch_ref)
    merged, reasons = integration_reasons(common, worker, tip, heads, choice)
    if worker.phase == "spawning":
        reasons.append(
            Stake("spawn-unfinished", [f"run spawn {worker.name} again to take it back"])
        )
    aside = worktrees.aside_path(worker.worktree)
    if (
        worker.phase == "removing"
        and os.path.lexists(aside)
        and not os.path.lexists(worker.worktree)
    ):
        os.rename(aside, worker.worktree)
    root = aside if worker.phase == "dropping" else worker.worktree
    gone = not os.path.lexists(root)
    case = Case(worker, root, tip, merged, gone, panes)
    if worker.phase == "dropping":
        # It was looked at twice before the last call was interrupted.
        return case, []
    if gone:
        return case, reasons + gone_reasons(worker)
    reasons += place_reasons(worker)
    if any(reason.code in ALWAYS for reason in reasons):
        return case, reasons
    alive = life.processes_of(worker, panes)
    if alive:
        reasons.append(Stake("running", [f"{p.pid} {p.command}" for p in alive]))
    reasons += process_reasons(root, working, {p.pid for p in alive})
    reasons += tree_stakes(worker, root)
    return case, reasons


def integration_reasons(
    common_dir: str, worker: Worker, tip: str | None, heads: dict[str, str], choice: Choice
) -> tuple[bool, list[Stake]]:
    """Whether a branch's own commits are in the integration branch, and what follows from that."""
    if tip is None:
        return False, []
    if tip == worker.base:
        reasons = [Stake("no-commits", [worker.branch])] if choice.merged_only else []
        return False, reasons
    target = heads.get(worker.integration_branch or "")
    if target is not None and git.is_ancestor(common_dir, tip, target):
        return True, []
    done = git.require_git(
        common_dir,
        "rev-list",
        "-n",
        "100",
        "--format=%h %s",
        "--no-commit-header",
        tip,
        "--not",
        worker.base,
    )
    into = worker.integration_branch or "no recorded integration branch"
    return False, [
        Stake("unmerged-commits", [f"{line} (not in {into})" for line in done.text.splitlines()])
    ]


def place_reasons(worker: Worker) -> list[Stake]:
    """Why the tree at the recorded place is not the one that was made for this worker."""
    if os.path.islink(worker.worktree) or os.path.realpath(worker.worktree) != worker.worktree:
        return [Stake("worktree-replaced", [worker.worktree, os.path.realpath(worker.worktree)])]
    if os.path.lexists(os.path.join(worker.admin_dir, "locked")):
        return [Stake("worktree-locked", [worker.worktree])]
    admin = worktrees.admin_dir_of(worker.worktree)
    if admin is None or not os.path.isdir(os.path.join(worker.worktree)):
        return [Stake("worktree-replaced", [worker.worktree])]
    if os.path.realpath(admin) != worker.admin_dir:
        moved = not os.path.lexists(worker.admin_dir) or not os.path.lexists(admin)
        code = "repository-moved" if moved else "worktree-replaced"
        return [
            Stake(code, [worker.worktree, admin, "run `git worktree repair` in the repository"])
        ]
    path = worktrees.registered_path(worker.admin_dir)
    if path is None or os.path.realpath(path) != worker.worktree:
        return [Stake("worktree-moved", [worker.worktree, path or ""])]
    return []


def gone_reasons(worker: Worker) -> list[Stake]:
    """Why a worker whose folder is missing may not be forgotten: it may only be elsewhere."""
    if os.path.lexists(os.path.join(worker.admin_dir, "locked")):
        return [Stake("worktree-locked", [f"{worker.worktree} (directory missing)"])]
    if not os.path.isdir(os.path.dirname(worker.worktree)):
        return [
            Stake("worktree-moved", [f"{os.path.dirname(worker.worktree)} is not there either"])
        ]
    path = worktrees.registered_path(worker.admin_dir)
    if path is not None and path != worker.worktree and os.path.lexists(path):
        return [Stake("worktree-moved", [worker.worktree, path])]
    for entry in os.scandir(os.path.dirname(worker.worktree)):
        admin = worktrees.admin_dir_of(entry.path) if entry.is_dir() else None
        if admin is not None and os.path.realpath(admin) == worker.admin_dir:
            return [Stake("worktree-moved", [worker.worktree, entry.path])]
    return []


def process_reasons(
    root: str, working: list[tuple[proctree.Process, str]], known: set[int]
) -> list[Stake]:
    """Processes that work inside a tree."""
    inside = [
        process
        for process, folder in working
        if (folder == root or folder.startswith(root + "/")) and process.pid not in known
    ]
    return [Stake("live-process", [f"{p.pid} {p.command}" for p in inside])] if inside else []


def tree_stakes(worker: Worker, root: str) -> list[Stake]:
    """What would be lost with the tree at `root`."""

    def ours(path: str) -> bool:
        return path.startswith(f"{life.RUNS}/") or is_our_copy(worker, root, path)

    return worktrees.stakes(root, worker.admin_dir, worker.branch_ref, ours)


def foresee(repo: git.Repository, case: Case, choice: Choice) -> Result:
    """What would become of a worker that may go."""
    deleted = choice.branch_delete and branch_reason(repo, case, choice) is None
    return Result(case.worker.name, True, [], branch_deleted=deleted)


# --- Removing -------------------------------------------------------------------------------


def remove_all(repo: git.Repository, cases: list[Case], choice: Choice) -> list[Result]:
    """Set the trees aside, look once more at each, drop those that are still as they were."""
    results: list[Result] = []
    aside: list[Case] = []
    for case in cases:
        if case.gone or case.worker.phase == "dropping":
            aside.append(case)
            continue
        place = worktrees.aside_path(case.worker.worktree)
        if os.path.lexists(place):
            results.append(Result(case.worker.name, False, [Stake("worktree-replaced", [place])]))
            continue
        life.save(repo.common_dir, case.worker._replace(phase="removing"))
        os.rename(case.worker.worktree, place)
        aside.append(case._replace(root=place))
    working = proctree.working_directories()
    for case in aside:
        progress(f"{case.worker.name}: removing")
        try:
            results.append(remove_one(repo, case, choice, working))
        except (SkillError, OSError) as error:
            put_back(repo, case)
            message = error.message if isinstance(error, SkillError) else str(error)
            code = error.code if isinstance(error, SkillError) else "unreadable"
            results.append(Result(case.worker.name, False, [Stake(code, [message])]))
    return results


def remove_one(
    repo: git.Repository,
    case: Case,
    choice: Choice,
    working: list[tuple[proctree.Process, str]],
) -> Result:
    """The second look at a tree that stands aside, and then its end."""
    common, worker = repo.common_dir, case.worker
    saved: str | None = None
    notes: list[str] = []
    if not case.gone and worker.phase != "dropping":
        reasons = process_reasons(case.root, working, set())
        stakes = tree_stakes(worker, case.root)
        if reasons or (stakes and not choice.discard):
            put_back(repo, case)
            return Result(worker.name, False, reasons + stakes)
        if choice.discard and (stakes or (case.tip not in (None, worker.base) and not case.merged)):
            _, head = git.current_ref(case.root)
            commits = [commit for commit in (head, case.tip) if commit is not None]
            saved, left_out = rescue.save_tree(common, case.root, worker.name, commits)
            notes.append(f"restore with: {restore_command(repo, worker, saved)}")
            if left_out:
                notes.append(f"caches were not saved: {', '.join(left_out[:10])}")
        life.save(common, worker._replace(phase="dropping"))
    if case.gone:
        left = proctree.end_tree(live_roots(case), worker.mark, grace=3.0)
        if left:
            raise SkillError(
                "running", f"processes do not end: {', '.join(str(p.pid) for p in left)}"
            )
        notes.append(
            "its folder was gone; the branch was kept"
            if not choice.branch_delete
            else "its folder was gone"
        )
    kept = keep_loose_commits(repo, worker, choice)
    if kept:
        notes.append(f"commits that only the reflog held are kept under {kept}")
    keep_runs(common, worker, case.root)
    drop(common, case)
    deleted = False
    if choice.branch_delete:
        why = branch_reason(repo, case._replace(merged=case.merged or saved is not None), choice)
        if why is None and case.tip is not None:
            git.delete_branch(common, worker.branch, case.tip)
            deleted = True
        elif why is not None:
            notes.append(f"the branch {worker.branch!r} was kept: {why}")
    worker.server.end_sessions(
        [pane.session for pane in [life.own_pane(worker, case.panes)] if pane]
    )
    life.record_event(common, worker.name, "cleaned", branch_deleted=deleted, rescue=saved)
    records.archive(common, worker.name, "cleaned")
    return Result(worker.name, True, [], deleted, saved, tuple(notes))


def live_roots(case: Case) -> list[int]:
    """The launcher of an agent that still runs."""
    pane = life.own_pane(case.worker, case.panes)
    return [pane.pid] if pane is not None and not pane.dead else []


def put_back(repo: git.Repository, case: Case) -> None:
    """Bring a tree that was set aside back to its place."""
    if case.root != case.worker.worktree and not os.path.lexists(case.worker.worktree):
        os.rename(case.root, case.worker.worktree)
    life.save(repo.common_dir, case.worker._replace(phase="live"))


def branch_reason(repo: git.Repository, case: Case, choice: Choice) -> str | None:
    """Why the branch may not be deleted, or None."""
    worker, tip = case.worker, case.tip
    if tip is None:
        return "it is no longer there"
    holder = worktrees.holder_of(repo.common_dir, repo.main_root, worker.branch_ref)
    if holder is not None and holder not in (worker.worktree, case.root):
        return f"it is checked out in {holder!r}"
    if case.merged:
        return None
    if tip != worker.base:
        return None if choice.discard else "its commits are not in the integration branch"
    done = git.require_git(
        repo.common_dir, "rev-list", "-n", "1", tip, "--not",
        f"--exclude={worker.branch_ref}", "--all",
    )  # fmt: skip
    return "no other branch or tag holds its commit" if done.text.strip() else None


def keep_loose_commits(repo: git.Repository, worker: Worker, choice: Choice) -> str | None:
    """Keep the commits that only the reflogs that go with a worker name."""
    logs = [os.path.join(worker.admin_dir, "logs", "HEAD")]
    if choice.branch_delete:
        logs.append(os.path.join(repo.common_dir, "logs", worker.branch_ref))
    commits = [commit for log in logs for commit in rescue.reflog_commits(log)]
    return rescue.keep_commits(repo.common_dir, worker.name, commits)


def keep_runs(common_dir: str, worker: Worker, root: str) -> None:
    """Move the worker's own records out of the tree into its record, which is archived."""
    source = os.path.join(root, life.RUNS)
    target = os.path.join(records.worker_dir(common_dir, worker.name), "worktree-runs")
    if os.path.isdir(source) and not os.path.islink(source) and not os.path.lexists(target):
        shutil.move(source, target)


def drop(common_dir: str, case: Case) -> None:
    """Remove a tree that stands aside, and exactly its administrative entry."""
    worker = case.worker
    if case.gone and worker.phase != "dropping":
        # The tree may have been moved out of sight: its entry is kept with the record.
        admin = worker.admin_dir if os.path.isdir(worker.admin_dir) else ""
        admin = admin or find_admin_dir(common_dir, worker.worktree)
        if admin and worktrees.registered_path(admin) in (
            worker.worktree,
            worktrees.aside_path(worker.worktree),
        ):
            os.rename(
                admin, os.path.join(records.worker_dir(common_dir, worker.name), "git-worktree")
            )
        return
    worktrees.drop_admin_dir(common_dir, worker.admin_dir, worker.worktree)
    worktrees.remove_tree(case.root)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(worker.worktree))


def restore_command(repo: git.Repository, worker: Worker, ref: str) -> str:
    """A command that brings the saved files back, into a folder that is free."""
    words = ["git", "-C", repo.main_root, "worktree", "add", "--detach"]
    return " ".join(map(life.quote, [*words, f"{worker.worktree}-rescued", ref]))
