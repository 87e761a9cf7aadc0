"""Move a branch to a tested commit, and let the user's checkout follow without losing an edit."""

from __future__ import annotations

import os

from fanout import git, worktrees
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.process import Talk
from fanout.worktrees import Stake

# How long git may take to answer within a transaction; a hook of the user's may be at work.
ANSWER_LIMIT = 120.0


class Checkout(NamedTuple):
    """The worktree that has a branch checked out: its top and its administrative folder."""

    path: str
    admin_dir: str


def checkout_of(repo: git.Repository, ref: str) -> Checkout | None:
    """The checkout that has to follow when a branch moves, or None where nothing has it.

    Raises SkillError `checked-out-twice`, `operation-in-progress`, `checkout-missing` (exit 3).
    """
    holders = worktrees.holders_of(repo.common_dir, repo.main_root, ref)
    if not holders:
        return None
    if len(holders) > 1:
        raise refused(
            "checked-out-twice",
            f"{ref} is checked out in {', '.join(map(repr, holders))}",
            "switch all but one of them to another branch",
        )
    path = os.path.realpath(holders[0])
    if path == repo.common_dir:
        # A bare repository's HEAD names a branch without having any files of it.
        return None
    if not os.path.isdir(path):
        raise refused(
            "checkout-missing",
            f"{ref} is checked out in {path!r}, which is not there",
            "bring that folder back, or remove the worktree with git",
        )
    done = git.require_git(path, "rev-parse", "--path-format=absolute", "--git-dir")
    admin = os.path.realpath(done.text.removesuffix("\n"))
    busy = [name for name in worktrees.OPERATIONS if os.path.lexists(os.path.join(admin, name))]
    if busy:
        raise refused(
            "operation-in-progress",
            f"{path!r} is in the middle of something: {', '.join(busy)}",
            "finish or abort it first; `git status` there says how",
        )
    return Checkout(path, admin)


def changed_paths(repo_dir: str, before: str, after: str) -> list[str]:
    """The paths that differ between two commits."""
    done = git.require_git(
        repo_dir, "diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after
    )
    return [path for path in done.text.split("\0") if path]


def related_edits(checkout: Checkout, paths: list[str]) -> list[Stake]:
    """The user's own changes that stand in the way of paths that are about to change.

    Others stay as they are. Ignored files count: writing over one would lose it.
    """
    status = worktrees.read_status(checkout.path, ignored=True)
    env = worktrees.at(checkout.path)
    hidden, _ = worktrees.hidden_changes(checkout.path, env)
    groups = {
        "conflicted": status.conflicted,
        "staged": status.staged,
        "modified": [*status.modified, *status.submodules],
        "hidden-changes": hidden,
        "untracked": status.untracked,
        "ignored": status.ignored,
    }
    wanted = frozenset(paths)
    folders = {"/".join(p.split("/")[:n]) for p in paths for n in range(1, p.count("/") + 1)}
    found = [
        Stake(code, sorted({path for path in members if meets(path, wanted, folders)}))
        for code, members in groups.items()
    ]
    locks = [f"{checkout.admin_dir}/index.lock"]
    found.append(Stake("index-locked", [worktrees.aged(p) for p in locks if os.path.lexists(p)]))
    return [stake for stake in found if stake.paths]


def meets(path: str, wanted: frozenset[str], folders: set[str]) -> bool:
    """Whether a local path is one that changes, lies below one, or stands where one has to go."""
    bare = path.rstrip("/")
    parts = bare.split("/")
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    if above & wanted:
        return True
    # A folder that is ignored as a whole may hold one of them; a file may stand in its place.
    return bare in folders


def require_free(checkout: Checkout | None, paths: list[str]) -> None:
    """Demand that no local edit is in the way. Raises SkillError `local-edits` (exit 3)."""
    stakes = related_edits(checkout, paths) if checkout is not None else []
    if checkout is not None and stakes:
        listed = [path for stake in stakes for path in stake.paths]
        raise SkillError(
            "local-edits",
            f"{checkout.path!r} has changes in the way: {', '.join(listed[:10])}"
            + (f" and {len(listed) - 10} more" if len(listed) > 10 else ""),
            "commit them or move them away; changes in other files may stay",
            exit_code=ExitCode.REFUSED,
            data={
                "local_edits": [{"code": s.code, "paths": s.paths} for s in stakes],
                "checkout": checkout.path,
            },
        )


def publish(
    repo: git.Repository, ref: str, before: str, after: str, checkout: Checkout | None, why: str
) -> bool:
    """Move a branch from one commit to another; False when it is no longer at the first.

    The branch is locked by git first; then the checkout follows; then the branch moves. So nobody
    can commit in between, and whatever fails leaves both as they were. Raises SkillError
    `local-edits` (exit 3), `checkout-failed`, `git-failed`.
    """
    place = checkout.path if checkout is not None else repo.common_dir
    if checkout is not None:
        require_free(checkout, changed_paths(repo.common_dir, before, after))
        # Files that were only touched would count as changed.
        git.git(place, "update-index", "-q", "--refresh", env=worktrees.at(place))
    # In the checkout, so that its HEAD has an entry in its reflog too.
    transaction = Transaction(place, why)
    try:
        if not transaction.prepare(ref, before, after):
            if git.ref_commit(repo.common_dir, ref) != before:
                return False
            raise SkillError(
                "git-failed",
                f"{ref} cannot be locked: {transaction.trouble}",
                "see whether another git command is at work there, or was killed",
            )
        try:
            if checkout is not None:
                follow(checkout, before, after)
            transaction.commit()
        except BaseException:
            # A signal may have met git in the middle of it.
            if checkout is not None and git.ref_commit(repo.common_dir, ref) == before:
                put_back(repo, checkout, before, after)
            raise
    finally:
        transaction.close()
    return True


def follow(checkout: Checkout, before: str, after: str) -> None:
    """Bring files and index of a checkout from one commit to another; local changes stay.

    `git read-tree -m -u` refuses as a whole, before it writes, where one is in the way.
    """
    done = git.git(
        checkout.path, "-c", "submodule.recurse=false", "read-tree", "-m", "-u", before, after,
        env=worktrees.at(checkout.path),
    )  # fmt: skip
    if done.code != 0:
        raise SkillError(
            "checkout-failed",
            f"{checkout.path!r} cannot follow: {git.reason(done)}",
            "clear what is named; the branch was not moved",
            exit_code=ExitCode.REFUSED,
        )


class Transaction:
    """One `git update-ref --stdin` that holds a branch's lock between prepare and commit.

    Without a commit git lets go of the lock, also when this process is killed.
    """

    def __init__(self, cwd: str, why: str) -> None:
        argv = ["git", *git.SAFE_CONFIG, "update-ref", "--create-reflog", "-m", why, "--stdin"]
        self.talk = Talk(argv, cwd=cwd, env=git.git_environment())

    @property
    def trouble(self) -> str:
        """What git said when it would not go on."""
        return git.advice_removed(self.talk.trouble)

    def prepare(self, ref: str, before: str, after: str) -> bool:
        """Lock the branch if it is where it is believed to be."""
        words = f"start\noption no-deref\nupdate {ref} {after} {before}\nprepare\n"
        return self.talk.ask(words, "prepare: ok\n", ANSWER_LIMIT)

    def commit(self) -> None:
        """Move the branch. Raises SkillError `git-failed`."""
        if not self.talk.ask("commit\n", "commit: ok\n", ANSWER_LIMIT):
            raise SkillError("git-failed", f"git update-ref failed: {self.trouble}")

    def close(self) -> None:
        """Let go of the lock, if it is still held."""
        self.talk.close()


# --- After a crash --------------------------------------------------------------------------


def put_back(repo: git.Repository, checkout: Checkout, before: str, after: str) -> list[str]:
    """Bring a checkout back that had begun to follow when its command was killed.

    A file is touched only where it holds exactly what `after` has there, or is missing; returns
    the paths that hold something else, which stay as they are. Raises SkillError `index-locked`
    (exit 3), `git-failed`.
    """
    env = worktrees.at(checkout.path)
    lock = f"{checkout.admin_dir}/index.lock"
    if os.path.lexists(lock):
        raise refused(
            "index-locked",
            f"a git command holds, or left, {worktrees.aged(lock)}",
            "wait for it; if none is at work, delete that file yourself, then run this again",
        )
    paths = changed_paths(repo.common_dir, before, after)
    staged = git.require_git(
        checkout.path, "diff-index", "--cached", "-z", "--name-only", "--no-renames", before,
        "--", env=env,
    )  # fmt: skip
    moved = set(paths) & set(staged.text.split("\0"))
    if moved:
        # The index had followed already, and the files with it: the way back is the same.
        follow(checkout, after, before)
        return []
    old, new = entries(repo.common_dir, before, paths), entries(repo.common_dir, after, paths)
    kept: list[str] = []
    restored: list[str] = []
    for path in paths:
        place = os.path.join(checkout.path, path)
        kind = worktrees.kind_of(place)
        if kind == "nothing":
            if path in old:
                restored.append(path)
            continue
        found = blob_of(checkout.path, path, kind)
        if path in old and found == old[path]:
            continue
        if found is not None and found == new.get(path):
            if path in old:
                restored.append(path)
            else:
                worktrees.remove_file(place)
        else:
            kept.append(path)
    if restored:
        words = b"".join(os.fsencode(path) + b"\0" for path in restored)
        git.require_git(
            checkout.path, "checkout-index", "-f", "-u", "-z", "--stdin", stdin=words, env=env
        )
    return kept


def entries(repo_dir: str, commit: str, paths: list[str]) -> dict[str, str]:
    """The blobs of a commit at these paths."""
    wanted = set(paths)
    done = git.require_git(repo_dir, "ls-tree", "-r", "-z", "--full-tree", commit)
    rows = (entry.partition("\t") for entry in done.text.split("\0") if entry)
    return {path: info.split(" ")[2] for info, _, path in rows if path in wanted}


def blob_of(top: str, path: str, kind: str) -> str | None:
    """The blob that a file or link in a checkout would be stored as; None for anything else."""
    env = worktrees.at(top)
    if kind == "link":
        target = os.fsencode(os.readlink(os.path.join(top, path)))
        return git.require_git(top, "hash-object", "--stdin", stdin=target).text.strip()
    if kind != "file":
        return None
    names = worktrees.quoted(path) + b"\n"
    return git.require_git(top, "hash-object", "--stdin-paths", stdin=names, env=env).text.strip()
