"""Commit what an agent left in its worktree, on its branch: for agents that may not commit."""

from __future__ import annotations

import os

from fanout import approvals, git, records, steering
from fanout import candidates as work
from fanout import workers as life
from fanout.approvals import listing, refusal
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.integrations import require_identity, signing_of, write_commit
from fanout.workers import is_our_copy
from fanout.worktrees import (
    OPERATIONS,
    Status,
    admin_dir_of,
    aged,
    at,
    parse_status,
    remove_file,
    status_arguments,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fanout.candidates import Candidate, Choice
    from fanout.process import Completed

# A hook may run an agent's code, and has nothing to say about what a person collects.
NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
LISTED = ("--pathspec-from-file=-", "--pathspec-file-nul")


class Collected(NamedTuple):
    """What was committed, or would be: `commit` is empty then.

    `left` maps the paths that stay as they are to a code that says why: `out-of-scope`,
    `not-chosen`, `ignored`, `submodule`, `repository`, `hidden`.
    """

    candidate: Candidate
    before: str
    commit: str
    paths: list[str]
    left: dict[str, str]
    message: str

    def to_json(self) -> dict[str, Any]:
        """The fields of `data`."""
        return {
            "worker": self.candidate.to_json(),
            "before": self.before,
            "commit": self.commit or None,
            "paths": self.paths,
            "left": list(self.left),
            "left_because": self.left,
            "message": self.message,
        }


class Wish(NamedTuple):
    """What to commit: what these globs match (all that is owned without any), and how to say it.

    `announce` is told every path before anything is written.
    """

    only: list[str]
    body: str
    dry_run: bool
    announce: Callable[[list[str]], None]


def collect(repo: git.Repository, choice: Choice, candidate: Candidate, wish: Wish) -> Collected:
    """Commit what is left in a candidate's tree; everything else there stays as it is.

    A kill at any moment loses nothing: the branch moves last, from the commit that was seen to
    the new one alone.

    Raises SkillError `branch-missing`, `no-worktree`, `worktree-mismatch`, `still-working`,
    `operation-in-progress`, `index-locked`, `conflicted`, `nothing-to-collect` (exit 3),
    `no-identity` (exit 4), `busy`, `signing-failed`, `git-failed`, `usage` for a bad glob.
    """
    with approvals.hold(repo, candidate):
        (candidate,) = work.find(repo, choice)
        require_still(repo, choice, candidate)
        status = work.leftovers(repo, candidate)
        require_plain(candidate, status)
        paths, left = sort_out(repo, candidate, status, wish.only)
        who = require_identity(candidate.worktree)
        message = message_of(candidate, wish.body, who, agent_of(repo, candidate))
        if paths and not wish.dry_run:
            wish.announce(paths)
        if not paths:
            raise nothing(candidate, left)
        if wish.dry_run:
            return Collected(candidate, candidate.head, "", paths, left, message)
        commit, paths = write(repo, candidate, status, paths, message)
        if not paths:
            raise nothing(candidate, left)
        publish(candidate, commit, paths)
    now = candidate._replace(head=commit)
    return Collected(now, candidate.head, commit, paths, left, message)


def nothing(candidate: Candidate, left: dict[str, str]) -> SkillError:
    """There is nothing to commit."""
    there = f"; {len(left)} files stay: {listing(list(left))}" if left else ""
    return refusal(
        "nothing-to-collect",
        f"nothing is left to commit in {candidate.worktree!r}{there}",
        "choose what is outside of what it owns with --only GLOB" if left else "",
        worker=candidate.to_json(),
        paths=[],
        left=list(left),
        left_because=left,
    )


# --- Demands --------------------------------------------------------------------------------


def require_still(repo: git.Repository, choice: Choice, candidate: Candidate) -> None:
    """Demand a tree that nobody is known to be working in.

    Raises SkillError `branch-missing`, `no-worktree`, `still-working` (exit 3).
    """
    approvals.require_branch(candidate)
    if not candidate.worktree:
        raise refusal(
            "no-worktree",
            f"no checkout has the branch {candidate.branch!r}",
            "there is nothing to collect from",
        )
    if candidate.kind == "worker":
        worker = life.load(repo.common_dir, candidate.name)
        (view,) = steering.view_all(repo, [worker], files=False)
        word, job = view.state.word, view.job
        lives = word in ("starting", "running", "waiting")
        if word == "unknown" or (lives and job.is_open):
            why = f" ({view.state.detail})" if view.state.detail else ""
            at_work = f", and its job {job.id} is open" if job.is_open else ""
            raise refusal(
                "still-working",
                f"the agent of {candidate.name!r} is {word}{why}{at_work}",
                "wait until it has ended its job, or stop it",
                state=word,
            )
    elif candidate.kind == "task":
        tasks = work.read_run(choice.run, "manifest.json")["tasks"]
        status = next(task["status"] for task in tasks if task["name"] == candidate.name)
        if status in ("running", "not-started"):
            raise refusal(
                "still-working",
                f"the run says that its task {candidate.name!r} is {status}",
                "let the run end; take one up that was killed with RESUME=1",
                state=status,
            )


def require_plain(candidate: Candidate, status: Status) -> None:
    """Demand a tree in which no operation of git's is under way, and nobody holds the index."""
    admin = admin_dir_of(candidate.worktree) or os.path.join(candidate.worktree, ".git")
    busy = [name for name in OPERATIONS if os.path.lexists(os.path.join(admin, name))]
    if busy:
        raise refusal(
            "operation-in-progress",
            f"an operation is under way in {candidate.worktree!r}: {', '.join(busy)}",
            "end it there first (`git status` in it says how)",
            paths=busy,
        )
    if status.conflicted:
        raise refusal(
            "conflicted",
            f"conflicts are left in {candidate.worktree!r}: {listing(status.conflicted)}",
            "resolve them there first",
            paths=status.conflicted,
        )
    lock = os.path.join(admin, "index.lock")
    if os.path.lexists(lock):
        raise refusal(
            "index-locked",
            f"a git command holds the index: {aged(lock)}",
            "wait for it to end; if none runs any more, look at that file yourself",
            paths=[lock],
        )
    if status.head != candidate.head:
        raise refusal(
            "branch-moved",
            f"{candidate.branch!r} moved from {candidate.head} to {status.head} just now",
            "wait until nobody works there, then run this again",
        )


# --- What is committed ----------------------------------------------------------------------


def sort_out(
    repo: git.Repository, candidate: Candidate, status: Status, only: list[str]
) -> tuple[list[str], dict[str, str]]:
    """The paths to commit, sorted, and those that stay with a code that says why."""
    worker = life.load(repo.common_dir, candidate.name) if candidate.kind == "worker" else None
    changed = {*status.staged, *status.modified, *status.untracked}
    hidden = set(approvals.dirty_files(candidate, status)) - changed
    outside = work.outside_tree(repo, candidate) if not only else set[str]()
    chosen = matched(candidate, only) if only else changed
    ignored = forced(repo, candidate, status.staged)
    paths: list[str] = []
    left = dict.fromkeys(sorted(hidden), "hidden")
    for path in sorted(changed):
        if path.split("/")[0] == life.RUNS:
            continue
        if worker is not None and is_our_copy(worker, candidate.worktree, path):
            continue
        if path in status.submodules:
            left[path] = "submodule"
        elif path.endswith("/"):
            left[path] = "repository"
        elif path in ignored:
            left[path] = "ignored"
        elif path not in chosen:
            left[path] = "not-chosen"
        elif path in outside:
            left[path] = "out-of-scope"
        else:
            paths.append(path)
    return paths, left


def matched(candidate: Candidate, globs: list[str]) -> set[str]:
    """The changed paths of a candidate's tree that one of these globs matches."""
    wanted = [f":(top,glob){pattern}" for pattern in globs]
    words = [*status_arguments(ignored=False), "--", *wanted]
    done = git.require_git(candidate.worktree, *words, env=at(candidate.worktree))
    status = parse_status(done)
    return {*status.staged, *status.modified, *status.untracked}


def forced(repo: git.Repository, candidate: Candidate, staged: list[str]) -> set[str]:
    """The new files that are ignored, but were added by force."""
    if not staged:
        return set()
    names = "".join(f"{path}\0" for path in staged).encode("utf-8", "surrogateescape")
    words = ["check-ignore", "-z", "--stdin", "--no-index"]
    done = git.git(candidate.worktree, *words, stdin=names, env=at(candidate.worktree))
    if done.code not in (0, 1):
        raise SkillError("git-failed", f"git check-ignore failed: {done.error_text}")
    found = {path for path in done.text.split("\0") if path}
    return found - set(git.paths_of(repo.top, candidate.head)) if found else found


def agent_of(repo: git.Repository, candidate: Candidate) -> str:
    """What made the work, in words."""
    if candidate.kind != "worker":
        return {"task": "the agent of a task", "branch": "whoever works on it"}[candidate.kind]
    worker = life.load(repo.common_dir, candidate.name)
    return os.path.basename(worker.executable or (worker.argv or ["an agent"])[0])


def message_of(candidate: Candidate, body: str, who: str, agent: str) -> str:
    """The message of the commit: who made it, and who committed it."""
    committer = who.rpartition(">")[0] + ">" if ">" in who else who
    parts = [f"{candidate.name}: work that was left uncommitted"]
    if body.strip():
        parts.append(body.strip("\n"))
    parts.append(f"Made-by: {candidate.kind} {candidate.name} ({agent})\nCommitted-by: {committer}")
    return "\n\n".join(parts) + "\n"


# --- Committing -----------------------------------------------------------------------------


def write(
    repo: git.Repository, candidate: Candidate, status: Status, paths: list[str], message: str
) -> tuple[str, list[str]]:
    """Make a commit of exactly these paths; no branch and no index is changed.

    Returns its id and the paths that really differ. Raises SkillError `git-failed`,
    `tree-changed` when anything else would be in it.
    """
    folder = candidate.record
    records.make_dir(folder)
    index = os.path.join(folder, "collecting.index")
    env = {**at(candidate.worktree), "GIT_INDEX_FILE": index}
    clear_index(index)
    try:
        plainly(candidate, "read-tree", candidate.head, env=env)
        keep_modes(candidate, status, paths, env)
        plainly(candidate, "add", "--all", "--sparse", *LISTED, stdin=joined(paths), env=env)
        tree = plainly(candidate, "write-tree", env=env).text.strip()
    finally:
        clear_index(index)
    found = [c.path for c in git.changes(repo.top, candidate.head, tree)]
    others = sorted(set(found) - set(paths))
    if others:
        raise refusal(
            "tree-changed",
            f"other files than those that were listed would be committed: {listing(others)}",
            "run this again",
        )
    if not found:
        return "", []
    signing = signing_of(candidate.worktree)
    text = message.encode("utf-8", "surrogateescape")
    return write_commit(candidate.worktree, tree, [candidate.head], text, signing), found


def clear_index(index: str) -> None:
    """Remove an index of ours, and the lock that a killed command of ours left on it."""
    for path in (index, f"{index}.lock"):
        remove_file(path)


def keep_modes(candidate: Candidate, status: Status, paths: list[str], env: dict[str, str]) -> None:
    """Take over the modes that were staged: not every file system tells what may be run."""
    wanted = set(status.staged) & set(paths)
    if not wanted:
        return
    words = ["diff", "--cached", "--raw", "-z", "--no-abbrev", "--no-renames", *git.PLAIN]
    done = git.require_git(candidate.worktree, *words, candidate.head, env=at(candidate.worktree))
    parts = done.text.split("\0")
    rows: list[str] = []
    for info, path in zip(parts[::2], parts[1::2], strict=False):
        change = git.raw_row(info, path)
        if path in wanted and change.mode_after is not None and change.blob_after is not None:
            rows.append(f"{change.mode_after} {change.blob_after}\t{path}\0")
    content = "".join(rows).encode("utf-8", "surrogateescape")
    plainly(candidate, "update-index", "-z", "--index-info", stdin=content, env=env)


def publish(candidate: Candidate, commit: str, paths: list[str]) -> None:
    """Move the branch to the new commit, if it still is where it was; the index follows first.

    Killed in between, the paths are staged, and can be collected as before.
    """
    plainly(candidate, "reset", "--quiet", *LISTED, commit, stdin=joined(paths))
    why = ("-m", "collect: what was left uncommitted")
    plainly(candidate, "update-ref", "--no-deref", *why, candidate.ref, commit, candidate.head)


def plainly(
    candidate: Candidate,
    *words: str,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
) -> Completed:
    """Run git in a candidate's tree without any hook, and take paths as they are."""
    options = ("--literal-pathspecs", *NO_HOOKS)
    env = env or at(candidate.worktree)
    return git.require_git(candidate.worktree, *options, *words, stdin=stdin, env=env)


def joined(paths: list[str]) -> bytes:
    """Paths as git reads them from stdin."""
    return "\0".join(paths).encode("utf-8", "surrogateescape")
