"""Take workers away: prove that nothing is lost, set the tree aside, look again, drop.

Each worker is decided alone; the steps that cost a process are done once for all of them.
"""

from __future__ import annotations

import contextlib
import os

from fanout import git, integrations, proctree, records, steering, takeback, worktrees
from fanout import workers as life
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.output import progress
from fanout.takeback import LOCK_WAIT, folders_around, free_path, keep_runs
from fanout.tmux import Pane, Server
from fanout.workers import Worker, is_our_copy
from fanout.worktrees import Stake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What --discard cannot save, so it does not overrule it.
ALWAYS = frozenset(
    [
        "branch-replaced",
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
        "removal-unfinished",
        "git-failed",
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
    """One worker on its way out. `root` is where its tree stands now.

    `target` is the commit of its integration branch, `unmerged` what followed from that and `tip`.
    """

    worker: Worker
    root: str
    tip: str | None
    merged: bool
    gone: bool
    panes: dict[str, Pane]
    target: str | None = None
    unmerged: tuple[Stake, ...] = ()

    @property
    def dropping(self) -> bool:
        """Whether an earlier call had proved already that the tree may be deleted."""
        return self.worker.phase == "dropping"


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
                if error.code in ("unknown-worker", "invalid-name") and not choice.merged_only:
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
    wanted = [(life.live_roots(w, seen[w.name][0] or {}), w.mark) for w in workers]
    alive = dict(zip([w.name for w in workers], proctree.trees(wanted), strict=True))
    cases: list[Case] = []
    refusals: list[Result] = []
    for worker in workers:
        progress(f"{worker.name}: looking")
        panes, _ = seen[worker.name]
        case = Case(at_home(repo, worker), worker.worktree, None, False, False, panes or {})
        try:
            if panes is None:
                reasons = [Stake("state-unknown", [worker.session])]
            else:
                case, reasons = examine_one(repo, case, heads, working, alive[worker.name], choice)
        except (SkillError, OSError) as error:
            reasons = [trouble(error)]
        if stops(reasons, choice):
            refusals.append(Result(worker.name, False, reasons))
        else:
            cases.append(case)
    return cases, refusals


def stops(reasons: list[Stake], choice: Choice) -> bool:
    """Whether reasons keep a worker: all do, but --discard overrules what it can save."""
    return bool(reasons) and not (
        choice.discard and not any(reason.code in ALWAYS for reason in reasons)
    )


def trouble(error: SkillError | OSError) -> Stake:
    """A failure as a reason."""
    if isinstance(error, SkillError):
        code = error.code if error.code in ALWAYS else "unreadable"
        return Stake(code, [error.message])
    return Stake("unreadable", [str(error)])


def at_home(repo: git.Repository, worker: Worker) -> Worker:
    """A worker whose administrative folder is looked for in this repository, wherever it is now."""
    name = os.path.basename(worker.admin_dir)
    place = os.path.join(repo.common_dir, "worktrees", name) if name else ""
    return worker._replace(admin_dir=place)


def examine_one(
    repo: git.Repository,
    case: Case,
    heads: dict[str, str],
    working: list[tuple[proctree.Process, str]],
    alive: list[proctree.Process],
    choice: Choice,
) -> tuple[Case, list[Stake]]:
    """One worker's case, and every reason why it may not go."""
    worker = case.worker
    tip = heads.get(worker.branch_ref)
    target = heads.get(worker.integration_branch or "")
    merged, reasons = integration_reasons(repo.common_dir, worker, tip, target, choice)
    case = case._replace(tip=tip, merged=merged, target=target, unmerged=tuple(reasons))
    other = git.symbolic_target(repo.common_dir, worker.branch_ref)
    if other is not None:
        # Whatever is done to this branch would be done to another one.
        reasons.append(Stake("branch-replaced", [f"{worker.branch_ref} stands for {other}"]))
    if worker.phase == "spawning":
        reasons.append(
            Stake("spawn-unfinished", [f"run spawn {worker.name} again to take it back"])
        )
    aside = worktrees.aside_path(worker.worktree)
    root = worker.worktree
    if worker.phase == "removing" and os.path.lexists(aside):
        # A clean-up was killed between setting the tree aside and deciding about it.
        if os.path.lexists(worker.worktree):
            return case, [Stake("worktree-replaced", [worker.worktree, f"its tree is {aside}"])]
        root = aside
        if not choice.dry_run:
            worktrees.move_back(aside, worker.worktree, worker.admin_dir)
            root = worker.worktree
    if case.dropping:
        root = aside
    case = case._replace(root=root, gone=not os.path.lexists(root))
    if case.dropping:
        # It was looked at twice before the last call was interrupted.
        return case, []
    if case.gone:
        return case, reasons + gone_reasons(worker, working)
    place = place_reasons(worker, root)
    if place:
        return case, reasons + place
    if alive:
        reasons.append(Stake("running", [f"{p.pid} {p.command}" for p in alive]))
    reasons += process_reasons(root, working, {p.pid for p in alive})
    reasons += tree_stakes(worker, root)
    if reasons and choice.discard:
        try:
            takeback.require_savable(root)
        except SkillError as error:
            reasons.append(trouble(error))
    return case, reasons


def integration_reasons(
    common_dir: str, worker: Worker, tip: str | None, target: str | None, choice: Choice
) -> tuple[bool, list[Stake]]:
    """Whether a branch's own commits are in the integration branch, and what follows from that."""
    if tip is None:
        reasons = [Stake("branch-missing", [worker.branch])] if choice.merged_only else []
        return False, reasons
    if tip == worker.base or git.is_ancestor(common_dir, tip, worker.base):
        reasons = [Stake("no-commits", [worker.branch])] if choice.merged_only else []
        return False, reasons
    if target is not None and is_integrated(common_dir, worker, tip, target):
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
    lines = done.text.rstrip("\n").split("\n")
    return False, [Stake("unmerged-commits", [f"{line} (not in {into})" for line in lines])]


def is_integrated(common_dir: str, worker: Worker, tip: str, target: str) -> bool:
    """Whether a branch is in its integration branch: as it was recorded, or by ancestry."""
    into = worker.integration_branch or ""
    recorded = integrations.verdict(common_dir, into, target, worker.branch, tip)
    return git.is_ancestor(common_dir, tip, target) if recorded is None else recorded


def place_reasons(worker: Worker, root: str) -> list[Stake]:
    """Why the tree at `root` is not the one that was made for this worker."""
    if os.path.islink(root) or os.path.realpath(root) != root:
        return [Stake("worktree-replaced", [root, os.path.realpath(root)])]
    if os.path.lexists(os.path.join(worker.admin_dir, "locked")):
        return [Stake("worktree-locked", [root])]
    admin = worktrees.admin_dir_of(root)
    if admin is None or not os.path.isdir(root):
        return [Stake("worktree-replaced", [root])]
    if os.path.realpath(admin) != worker.admin_dir:
        code = "worktree-replaced" if os.path.lexists(admin) else "repository-moved"
        return [Stake(code, [root, admin, "run `git worktree repair` in the repository"])]
    path = worktrees.registered_path(worker.admin_dir) or ""
    if os.path.realpath(path) not in (worker.worktree, worktrees.aside_path(worker.worktree)):
        return [Stake("worktree-moved", [root, path])]
    return []


def gone_reasons(worker: Worker, working: list[tuple[proctree.Process, str]]) -> list[Stake]:
    """Why a worker whose folder is missing may not be forgotten: it may only be elsewhere."""
    if os.path.lexists(os.path.join(worker.admin_dir, "locked")):
        return [Stake("worktree-locked", [f"{worker.worktree} (directory missing)"])]
    parent = os.path.dirname(worker.worktree)
    if not os.path.isdir(parent):
        return [Stake("worktree-moved", [f"{parent} is not there either"])]
    path = worktrees.registered_path(worker.admin_dir)
    if path is not None and path != worker.worktree and os.path.lexists(path):
        return [Stake("worktree-moved", [worker.worktree, path])]
    beside = [entry.path for entry in os.scandir(parent) if entry.is_dir()]
    for folder in (*beside, *above({folder for _, folder in working})):
        admin = worktrees.admin_dir_of(folder)
        if admin is not None and os.path.realpath(admin) == worker.admin_dir:
            return [Stake("worktree-moved", [worker.worktree, folder])]
    return []


def above(folders: set[str]) -> set[str]:
    """Folders and all that they lie in: a process keeps the tree that moved away under it."""
    found: set[str] = set()
    for folder in folders:
        while folder not in found and folder != os.path.dirname(folder):
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


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

    return worktrees.stakes(root, worker.admin_dir, worker.branch_ref, worker.base, ours)


def foresee(repo: git.Repository, case: Case, choice: Choice) -> Result:
    """What would become of a worker that may go."""
    safe = case.merged or choice.discard
    deleted = choice.branch_delete and branch_reason(repo, case, safe) is None
    return Result(case.worker.name, True, [], branch_deleted=deleted)


# --- Removing -------------------------------------------------------------------------------


def remove_all(repo: git.Repository, cases: list[Case], choice: Choice) -> list[Result]:
    """Set the trees aside, look once more at each, drop those that are still as they were."""
    results: list[Result] = []
    aside: list[Case] = []
    gone: list[Gone] = []
    try:
        for case in cases:
            reasons = set_aside(repo, case)
            if reasons:
                results.append(Result(case.worker.name, False, reasons))
            else:
                aside.append(at_aside(case))
        unended = end_stray_agents(aside)
        working = proctree.working_directories()
        while aside:
            progress(f"{aside[0].worker.name}: removing")
            left = unended.get(aside[0].worker.name, [])
            outcome = remove_one(repo, aside[0], choice, working, left)
            if isinstance(outcome, Gone):
                gone.append(outcome)
            else:
                results.append(outcome)
            del aside[0]
        results += conclude(repo, gone)
        gone = []
    finally:
        # After a signal or a fault: what was not decided goes back to its place.
        for case in aside:
            put_back(repo, case)
        conclude(repo, gone)
    return results


def set_aside(repo: git.Repository, case: Case) -> list[Stake]:
    """Rename a tree, so that whatever finds it by its name finds it no more."""
    if case.gone or case.dropping:
        return []
    place = worktrees.aside_path(case.worker.worktree)
    if os.path.lexists(place):
        return [Stake("worktree-replaced", [place])]
    try:
        life.save(repo.common_dir, case.worker._replace(phase="removing"))
        os.rename(case.worker.worktree, place)
    except OSError as error:
        with contextlib.suppress(OSError):
            life.save(repo.common_dir, case.worker._replace(phase="live"))
        return [trouble(error)]
    return []


def end_stray_agents(cases: list[Case]) -> dict[str, list[proctree.Process]]:
    """End the agents whose folder is gone, all together; by name, the processes that still live."""
    stray = [case for case in cases if case.gone and not case.dropping]
    endings = [
        proctree.Ending(life.live_roots(case.worker, case.panes), case.worker.mark)
        for case in stray
    ]
    left = proctree.end_trees(endings, grace=3.0) if stray else []
    return {case.worker.name: alive for case, alive in zip(stray, left, strict=True)}


def at_aside(case: Case) -> Case:
    """The same case, with its tree set aside."""
    return case._replace(root=worktrees.aside_path(case.worker.worktree))


def put_back(repo: git.Repository, case: Case) -> list[Stake]:
    """Bring a tree that was set aside back to its place; where that is taken, say so."""
    worker = case.worker
    if case.gone or case.dropping:
        return []
    if os.path.lexists(case.root):
        if os.path.lexists(worker.worktree):
            return [Stake("worktree-replaced", [worker.worktree, f"its tree is {case.root}"])]
        worktrees.move_back(case.root, worker.worktree, worker.admin_dir)
    with contextlib.suppress(SkillError):
        if life.load(repo.common_dir, worker.name).phase == "removing":
            life.save(repo.common_dir, worker._replace(phase="live"))
    return []


class Proof(NamedTuple):
    """What was found and saved at the second look."""

    case: Case
    saved: str | None
    notes: list[str]


def remove_one(
    repo: git.Repository,
    case: Case,
    choice: Choice,
    working: list[tuple[proctree.Process, str]],
    unended: list[proctree.Process],
) -> Result | Gone:
    """The second look at a tree that stands aside, and then its end.

    `unended` is what would not end of an agent whose folder is gone.
    """
    name = case.worker.name
    try:
        if unended:
            return Result(
                name, False, [Stake("running", [f"{p.pid} {p.command}" for p in unended])]
            )
        proof = prove(repo, case, choice, working)
    except (SkillError, OSError) as error:
        proof = [trouble(error)]
    if isinstance(proof, list):
        return Result(name, False, proof + put_back(repo, case))
    try:
        if not case.gone:
            life.save(repo.common_dir, case.worker._replace(phase="dropping"))
        return finish(repo, proof, choice)
    except (SkillError, OSError) as error:
        # Half a tree is never put back: the next call goes on from here.
        message = error.message if isinstance(error, SkillError) else str(error)
        return Result(name, False, [Stake("removal-unfinished", [message])], rescue=proof.saved)


def prove(
    repo: git.Repository, case: Case, choice: Choice, working: list[tuple[proctree.Process, str]]
) -> Proof | list[Stake]:
    """Look again, and save what is to be saved; or the reasons that have appeared meanwhile."""
    common, worker = repo.common_dir, case.worker
    into = worker.integration_branch
    heads = git.heads_of(common, [worker.branch_ref, *([into] if into else [])])
    tip, target = heads.get(worker.branch_ref), heads.get(into or "")
    merged, reasons = case.merged, list(case.unmerged)
    if (tip, target) != (case.tip, case.target):
        merged, reasons = integration_reasons(common, worker, tip, target, choice)
    case = case._replace(tip=tip, merged=merged)
    saved: str | None = None
    notes: list[str] = []
    commits = [] if tip is None or merged or tip == worker.base else [tip]
    if case.gone or case.dropping:
        if commits and choice.discard and choice.branch_delete:
            saved = takeback.save_commits(common, worker.name, commits)
            notes.append(f"its commits are kept under {saved}")
        if case.gone and not case.dropping:
            notes.append("its folder was gone")
    else:
        reasons += place_reasons(worker, case.root) + process_reasons(case.root, working, set())
        reasons += tree_stakes(worker, case.root)
        if stops(reasons, choice):
            return reasons
        if reasons:
            _, head = git.current_ref(case.root)
            saved, left_out = takeback.save_tree(common, case.root, worker.name, [head, *commits])
            notes.append(f"restore with: {restore_command(repo, worker, saved)}")
            if left_out:
                notes.append(f"caches were not saved: {', '.join(left_out[:10])}")
    kept = keep_loose_commits(repo, worker, choice)
    if kept:
        notes.append(f"commits that only the reflog held are kept under {kept}")
    return Proof(case, saved, notes)


class Gone(NamedTuple):
    """A worker whose tree stands aside without its entry; its session and record still are.

    `wanted` says that its branch is still to be deleted; `parents` may go with the tree, and so
    does what stood in its entry, which `entry` is now.
    """

    case: Case
    wanted: bool
    deleted: bool
    saved: str | None
    notes: list[str]
    parents: list[str]
    entry: str


def finish(repo: git.Repository, proof: Proof, choice: Choice) -> Gone:
    """Remove the tree's entry, and the branch where that is asked and allowed."""
    common, case, notes = repo.common_dir, proof.case, list(proof.notes)
    worker = case.worker
    keep_runs(common, worker, case.root)
    parents = folders_around(repo, worker)
    entry = drop_entry(common, case)
    safe = case.merged or proof.saved is not None
    # Who holds it is looked at once for all.
    wanted = choice.branch_delete and safe and case.tip is not None
    deleted = False
    if choice.branch_delete and not wanted:
        why = branch_reason(repo, case, safe)
        if why is None:
            # One that only other branches hold goes at once: the next is decided without it.
            deleted = delete_branch(common, case, notes)
        else:
            notes.append(kept_branch(worker, why))
    return Gone(case, wanted, deleted, proof.saved, notes, parents, entry)


def kept_branch(worker: Worker, why: str) -> str:
    """The note that a branch was not deleted."""
    return f"the branch {worker.branch!r} was kept: {why}"


def delete_branch(common_dir: str, case: Case, notes: list[str]) -> bool:
    """Delete a branch if it still is where it was found; else a note says why not."""
    try:
        git.delete_branch(common_dir, case.worker.branch, case.tip or "")
    except SkillError as error:
        notes.append(kept_branch(case.worker, error.message))
        return False
    return True


def delete_trees(gone: list[Gone]) -> dict[str, str]:
    """Delete the trees that stand aside; returns by name why one is still there."""
    worktrees.remove_quickly([path for each in gone for path in (each.case.root, each.entry)])
    left: dict[str, str] = {}
    for each in gone:
        try:
            worktrees.remove_tree(each.entry)
            worktrees.remove_tree(each.case.root)
            worktrees.remove_empty(each.parents)
        except OSError as error:
            left[each.case.worker.name] = str(error)
    return left


def delete_branches(repo: git.Repository, gone: list[Gone]) -> list[Gone]:
    """Delete the branches that may go, in one process if all still are where they were found."""
    common_dir = repo.common_dir
    if not any(each.wanted for each in gone):
        return gone
    holders = worktrees.holders(common_dir, repo.main_root)
    for number, each in enumerate(gone):
        why = held_elsewhere(each.case, holders.get(each.case.worker.branch_ref, []))
        if each.wanted and why is not None:
            each.notes.append(kept_branch(each.case.worker, why))
            gone[number] = each._replace(wanted=False)
    wanted = [each for each in gone if each.wanted]
    if not wanted:
        return gone
    lines = [f"option no-deref\ndelete {e.case.worker.branch_ref} {e.case.tip}\n" for e in wanted]
    done = git.git(common_dir, "update-ref", "--stdin", stdin="".join(lines).encode())
    return [
        each._replace(
            wanted=False,
            deleted=done.code == 0 or delete_branch(common_dir, each.case, each.notes),
        )
        if each.wanted
        else each
        for each in gone
    ]


def conclude(repo: git.Repository, gone: list[Gone]) -> list[Result]:
    """Delete trees and branches and end sessions, all together, and put the records away."""
    left = delete_trees(gone)
    gone = delete_branches(repo, gone)
    sessions: dict[Server, list[str]] = {}
    for case in (each.case for each in gone):
        pane = life.own_pane(case.worker, case.panes)
        if pane is not None:
            sessions.setdefault(case.worker.server, []).append(pane.session)
    failed: dict[Server, str] = {}
    for server, names in sessions.items():
        try:
            server.end_sessions(names)
        except SkillError as error:
            failed[server] = error.message
    results: list[Result] = []
    for case, _, deleted, saved, notes, _, _ in gone:
        worker = case.worker
        if worker.name in left:
            # Half a tree is never put back: the next call goes on from here.
            stake = Stake("removal-unfinished", [left[worker.name]])
            results.append(Result(worker.name, False, [stake], deleted, saved))
            continue
        if worker.server in failed:
            why = failed[worker.server]
            notes.append(f"the tmux session {worker.session!r} was not ended: {why}")
        facts: dict[str, Any] = {"branch_deleted": deleted, "rescue": saved}
        try:
            life.record_event(repo.common_dir, worker.name, "cleaned", **facts)
            records.archive(repo.common_dir, worker.name, "cleaned")
        except OSError as error:
            stake = Stake("removal-unfinished", [str(error)])
            results.append(Result(worker.name, False, [stake], rescue=saved))
        else:
            results.append(Result(worker.name, True, [], deleted, saved, tuple(notes)))
    return results


def branch_reason(repo: git.Repository, case: Case, safe: bool) -> str | None:
    """Why the branch may not be deleted, or None. `safe` says that its commits are elsewhere."""
    worker, tip = case.worker, case.tip
    if tip is None:
        return "it is no longer there"
    holders = worktrees.holders(repo.common_dir, repo.main_root)
    why = held_elsewhere(case, holders.get(worker.branch_ref, []))
    if why is not None:
        return why
    if safe:
        return None
    if tip != worker.base and not git.is_ancestor(repo.common_dir, tip, worker.base):
        return "its commits are not in the integration branch"
    done = git.require_git(
        repo.common_dir, "rev-list", "-n", "1", tip, "--not", f"--exclude={worker.branch}",
        "--branches", "--tags", "--remotes", "--glob=refs/agent-workers",
    )  # fmt: skip
    return "no other branch or tag holds its commit" if done.text.strip() else None


def held_elsewhere(case: Case, holders: list[str]) -> str | None:
    """Which other checkout has the branch, or None."""
    others = [path for path in holders if path not in (case.worker.worktree, case.root)]
    return f"it is checked out in {others[0]!r}" if others else None


def keep_loose_commits(repo: git.Repository, worker: Worker, choice: Choice) -> str | None:
    """Keep the commits that only the files which go with a worker name: reflogs and the like."""
    files = list(takeback.naming_files(worker.admin_dir))
    if choice.branch_delete:
        files.append(os.path.join(repo.common_dir, "logs", worker.branch_ref))
    commits = [commit for file in files for commit in takeback.ids_in(file)]
    return takeback.keep_commits(repo.common_dir, worker.name, commits)


def drop_entry(common_dir: str, case: Case) -> str:
    """Take exactly the administrative entry of a tree that stands aside out of git's sight.

    Returns where it is now, to be deleted.
    """
    worker = case.worker
    admin = worker.admin_dir
    record = records.worker_dir(common_dir, worker.name)
    if os.path.isdir(admin) and worktrees.owns_admin_dir(admin, worker.worktree):
        if case.gone:
            # The tree may have been moved out of sight: its entry is kept with the record.
            os.rename(admin, free_path(record, "git-worktree"))
        else:
            keep_modules(common_dir, worker)
            worktrees.take_admin_dir(common_dir, admin, record)
    return worktrees.taken_entry(record)


def keep_modules(common_dir: str, worker: Worker) -> None:
    """Keep submodule repositories whose reflogs hold commits that nothing else has."""
    if not os.path.isdir(os.path.join(worker.admin_dir, "modules")):
        return
    pins = worktrees.pinned_commits(common_dir, worker.base, {})
    modules = worktrees.all_module_dirs(worker.admin_dir)
    if any(worktrees.unshared_commits(module, pins, "--reflog") for module in modules):
        place = free_path(records.worker_dir(common_dir, worker.name), "submodules")
        os.rename(os.path.join(worker.admin_dir, "modules"), place)
        for folder, _, files in os.walk(place):
            if "config" in files:
                # The folder that it names is gone; with it git would refuse to work there.
                config = os.path.join(folder, "config")
                git.git(common_dir, "config", "--file", config, "--unset", "core.worktree")


def restore_command(repo: git.Repository, worker: Worker, ref: str) -> str:
    """A command that brings the saved files back, byte for byte, into a folder that is free.

    A clone has attributes of its own, which stand above those in the tree: no line ends are
    converted and no filters run.
    """
    place = f"{worker.worktree}-rescued"
    attributes = os.path.join(place, ".git", "info", "attributes")
    commit = git.ref_commit(repo.common_dir, ref) or ref
    clone = ["git", "clone", "-q", "--shared", "--no-checkout", repo.common_dir, place]
    rule = ["printf", "* -text -ident -filter -working-tree-encoding\\n"]
    checkout = ["git", "-C", place, "-c", "core.hooksPath=/dev/null", "checkout", "-q", "--detach"]
    words = [" ".join(map(life.quote, part)) for part in (clone, rule, [*checkout, commit])]
    return f"{words[0]} && {words[1]} >{life.quote(attributes)} && {words[2]}"
