"""Move a branch to a tested commit, and let the user's checkout follow without losing an edit."""

from __future__ import annotations

import contextlib
import os
import stat

from fanout import git, records, worktrees
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.output import say
from fanout.process import Talk
from fanout.worktrees import Stake

# How long git may take to answer within a transaction; a hook of the user's may be at work.
ANSWER_LIMIT = 120.0
# The mode of a submodule.
MODULE = "160000"


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


def changed_paths(
    repo_dir: str, before: str, after: str, env: dict[str, str] | None = None
) -> list[str]:
    """The paths that differ between two commits."""
    done = git.require_git(
        repo_dir, "diff-tree", "-r", "-z", "--name-only", "--no-renames",
        "--ignore-submodules=none", before, after, env=env,
    )  # fmt: skip
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
        paths = changed_paths(repo.common_dir, before, after)
        require_free(checkout, paths)
        require_filters(repo, checkout, after, paths)
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
                kept = put_back(repo, checkout, before, after)
                if kept:
                    say(f"note: these files were left as they are: {', '.join(kept[:10])}")
            raise
    finally:
        transaction.close()
    return True


def require_filters(repo: git.Repository, checkout: Checkout, after: str, paths: list[str]) -> None:
    """Demand that the files of a commit can be written, where a filter has to work for that.

    Git would notice one that fails (that of LFS may be missing) when it had written half of them.
    So they are written to a folder aside first. Raises SkillError `checkout-failed` (exit 3).
    """
    words = ["config", "--type=bool", "--get-regexp", r"^filter\..*\.required$"]
    if " true" not in git.git(checkout.path, *words).text:
        return
    written = b"".join(os.fsencode(p) + b"\0" for p in entries(repo.common_dir, after, paths))
    aside = f"{records.home(repo.common_dir)}/aside-{records.new_id()}"
    records.make_dir(aside)
    env = {"GIT_INDEX_FILE": f"{aside}/index", "GIT_WORK_TREE": f"{aside}/files"}
    os.mkdir(env["GIT_WORK_TREE"])
    try:
        git.require_git(checkout.path, "read-tree", after, env=env)
        words = ["checkout-index", "-q", "-z", "--stdin"]
        # Below the other tree: it takes paths from where it is called.
        done = git.git(
            env["GIT_WORK_TREE"], *words, stdin=written, env={**env, "GIT_DIR": checkout.admin_dir}
        )
    finally:
        worktrees.remove_tree(aside)
    if done.code != 0:
        raise SkillError(
            "checkout-failed",
            f"files that are to come into {checkout.path!r} cannot be written: {git.reason(done)}",
            "see that the programs of `git config --get-regexp ^filter` work; nothing was changed",
            exit_code=ExitCode.REFUSED,
        )


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
    the paths that hold something else, which stay as they are, and those that git cannot write.
    Raises SkillError `index-locked` (exit 3), `git-failed`.
    """
    top = checkout.path
    env = worktrees.at(top)
    lock = f"{checkout.admin_dir}/index.lock"
    if os.path.lexists(lock):
        raise refused(
            "index-locked",
            f"a git command holds, or left, {worktrees.aged(lock)}",
            "wait for it; if none is at work, delete that file yourself, then run this again",
        )
    paths = changed_paths(repo.common_dir, before, after)
    staged = git.require_git(
        top, "diff-index", "--cached", "-z", "--name-only", "--no-renames",
        "--ignore-submodules=none", before, "--", env=env,
    )  # fmt: skip
    moved = set(paths) & set(staged.text.split("\0"))
    if moved:
        # The index had followed already, and the files with it: the way back is the same.
        follow(checkout, after, before)
        return []
    old, new = entries(repo.common_dir, before, paths), entries(repo.common_dir, after, paths)
    # The innermost first: a folder may have come where a file was.
    kept = [p for p in sorted(new.keys() - old.keys(), reverse=True) if not take_away(top, p, new)]
    restored: list[str] = []
    for path in sorted(old):
        place = os.path.join(top, path)
        blocked = is_blocked(top, path)
        kind = "other" if blocked else worktrees.kind_of(place)
        if kind == "other" and old[path].mode == MODULE:
            continue
        if kind == "other" and not blocked:
            with contextlib.suppress(OSError):
                os.rmdir(place)
                kind = "nothing"
        found = found_at(top, path, kind)
        if found is not None and found == old[path]:
            continue
        if kind == "nothing" or (found is not None and found == new.get(path)):
            restored.append(path)
        else:
            kept.append(path)
    words = b"".join(os.fsencode(path) + b"\0" for path in restored)
    git.git(top, "checkout-index", "-q", "-f", "-u", "-z", "--stdin", stdin=words, env=env)
    return kept + [p for p in restored if worktrees.kind_of(os.path.join(top, p)) == "nothing"]


class File(NamedTuple):
    """A file, link or submodule: its mode as git has it, and its blob or commit."""

    mode: str
    blob: str


def take_away(top: str, path: str, new: dict[str, File]) -> bool:
    """Remove a file that only the new commit has, and folders that are empty then.

    False when something else stands there.
    """
    place = os.path.join(top, path)
    kind = "nothing" if is_blocked(top, path) else worktrees.kind_of(place)
    if kind == "nothing":
        return True
    if kind == "other":
        # A submodule's folder that git has made; any other one was there before.
        if new[path].mode == MODULE:
            worktrees.remove_empty([place])
        return True
    if found_at(top, path, kind) != new[path]:
        return False
    worktrees.remove_file(place)
    folders = path.split("/")[:-1]
    depths = range(len(folders), 0, -1)
    worktrees.remove_empty([os.path.join(top, *folders[:depth]) for depth in depths])
    return True


def is_blocked(top: str, path: str) -> bool:
    """Whether something that is no folder stands above a path: what lies beyond is not ours."""
    parts = path.split("/")[:-1]
    above = [os.path.join(top, *parts[: n + 1]) for n in range(len(parts))]
    return any(os.path.lexists(p) and (os.path.islink(p) or not os.path.isdir(p)) for p in above)


def entries(repo_dir: str, commit: str, paths: list[str]) -> dict[str, File]:
    """What a commit has at these paths."""
    wanted = set(paths)
    done = git.require_git(repo_dir, "ls-tree", "-r", "-z", "--full-tree", commit)
    rows = (entry.partition("\t") for entry in done.text.split("\0") if entry)
    return {
        path: File(info.split(" ")[0], info.split(" ")[2])
        for info, _, path in rows
        if path in wanted
    }


def found_at(top: str, path: str, kind: str) -> File | None:
    """The file or link in a checkout as it would be stored; None for anything else."""
    env = worktrees.at(top)
    place = os.path.join(top, path)
    if kind == "link":
        target = os.fsencode(os.readlink(place))
        done = git.git(top, "hash-object", "--stdin", stdin=target)
        mode = "120000"
    elif kind == "file":
        names = worktrees.quoted(path) + b"\n"
        done = git.git(top, "hash-object", "--stdin-paths", stdin=names, env=env)
        mode = "100755" if os.lstat(place).st_mode & stat.S_IXUSR else "100644"
    else:
        return None
    # A filter that fails says nothing about what is there.
    return File(mode, done.text.strip()) if done.code == 0 else None
