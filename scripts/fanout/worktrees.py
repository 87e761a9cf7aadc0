"""Linked worktrees: make one, say what removing one would lose, take one away."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import TYPE_CHECKING, NamedTuple

from fanout import git
from fanout.errors import SkillError, refused, usage
from fanout.process import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NULL_ID = "0" * 40

# Folders and files that any build makes again; a name stands here only when nobody keeps work
# under it. They count as caches only where git ignores them.
CACHE_NAMES = frozenset(
    {
        "__pycache__",
        "node_modules",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
        ".nox",
        ".eggs",
        ".gradle",
        ".parcel-cache",
        ".turbo",
        ".sass-cache",
        ".DS_Store",
    }
)
CACHE_SUFFIXES = (".pyc", ".pyo", ".egg-info")
# https://bford.info/cachedir/ : a folder that holds this file is a cache, whatever its name.
CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"

OPERATIONS = (
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "BISECT_LOG",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
)


class Stake(NamedTuple):
    """One reason not to remove a tree: a stable code, and the paths or commits concerned."""

    code: str
    paths: list[str]


class Status(NamedTuple):
    """What `git status` says of a worktree; paths are relative to its top."""

    head: str
    branch: str | None
    staged: list[str]
    modified: list[str]
    conflicted: list[str]
    untracked: list[str]
    ignored: list[str]
    submodules: list[str]

    @property
    def dirty(self) -> int:
        """How many files are modified, staged or untracked; each counts once."""
        return len({*self.staged, *self.modified, *self.conflicted, *self.untracked})


# --- Reading --------------------------------------------------------------------------------


def admin_dir_of(worktree: str) -> str | None:
    """The administrative folder that a linked worktree's `.git` file names, or None."""
    try:
        with open(os.path.join(worktree, ".git"), encoding="utf-8", errors="surrogateescape") as f:
            content = f.read().rstrip("\n")
    except OSError:
        return None
    if not content.startswith("gitdir: "):
        return None
    return os.path.normpath(os.path.join(worktree, content.removeprefix("gitdir: ")))


def registered_path(admin_dir: str) -> str | None:
    """The worktree that an administrative folder names in its `gitdir` file, or None."""
    try:
        with open(
            os.path.join(admin_dir, "gitdir"), encoding="utf-8", errors="surrogateescape"
        ) as file:
            content = file.read().rstrip("\n")
    except OSError:
        return None
    return os.path.dirname(os.path.normpath(os.path.join(admin_dir, content)))


def registered(common_dir: str) -> dict[str, str]:
    """All linked worktrees of a repository: administrative folder -> path of the tree.

    Read from the files themselves: a path may hold any byte, and no process is needed.
    """
    folder = os.path.join(common_dir, "worktrees")
    try:
        entries = sorted(os.listdir(folder))
    except FileNotFoundError:
        return {}
    found = {
        os.path.join(folder, entry): registered_path(os.path.join(folder, entry))
        for entry in entries
    }
    return {admin: path for admin, path in found.items() if path is not None}


def holder_of(common_dir: str, main_root: str, branch_ref: str) -> str | None:
    """The checkout that has a branch checked out, as far as HEAD files tell, or None."""
    heads = {common_dir: main_root, **registered(common_dir)}
    for admin, path in heads.items():
        with contextlib.suppress(OSError), open(os.path.join(admin, "HEAD"), encoding="utf-8") as f:
            if f.read().strip() == f"ref: {branch_ref}":
                return path
    return None


def status_arguments(*, ignored: bool) -> list[str]:
    """The `git status` call whose output `parse_status` reads; no user setting changes it."""
    return [
        "status",
        "--porcelain=v2",
        "-z",
        "--branch",
        "--untracked-files=all",
        "--ignore-submodules=none",
        "--no-renames",
        *(["--ignored=matching"] if ignored else []),
    ]


def read_status(worktree: str, *, ignored: bool = False) -> Status:
    """What is changed in a worktree. Raises SkillError `git-failed`."""
    return parse_status(git.require_git(worktree, *status_arguments(ignored=ignored)))


def parse_status(done: Completed) -> Status:
    """Read the output of `git status --porcelain=v2 -z --branch` (git-status(1))."""
    head, branch = "", None
    staged: list[str] = []
    modified: list[str] = []
    conflicted: list[str] = []
    untracked: list[str] = []
    ignored: list[str] = []
    submodules: list[str] = []
    for entry in done.text.split("\0"):
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            key, _, value = rest.partition(" ")
            if key == "branch.oid":
                head = value
            elif key == "branch.head" and value != "(detached)":
                branch = "refs/heads/" + value
        elif kind == "1":
            codes, sub, *_, path = rest.split(" ", 7)
            if codes[0] != ".":
                staged.append(path)
            if codes[1] != ".":
                modified.append(path)
            if sub[0] == "S":
                submodules.append(path)
        elif kind == "u":
            conflicted.append(rest.split(" ", 9)[9])
        elif kind == "?":
            untracked.append(rest)
        elif kind == "!":
            ignored.append(rest)
    return Status(head, branch, staged, modified, conflicted, untracked, ignored, submodules)


def is_cache(worktree: str, path: str) -> bool:
    """Whether an ignored path is plainly a cache: by a well-known name or a CACHEDIR.TAG."""
    parts = path.rstrip("/").split("/")
    if any(part in CACHE_NAMES or part.endswith(CACHE_SUFFIXES) for part in parts):
        return True
    if not path.endswith("/"):
        parts = parts[:-1]
    for depth in range(1, len(parts) + 1):
        folder = os.path.join(worktree, *parts[:depth])
        if os.path.islink(folder):
            return False
        with contextlib.suppress(OSError), open(os.path.join(folder, "CACHEDIR.TAG"), "rb") as tag:
            if tag.read(len(CACHE_TAG)) == CACHE_TAG:
                return True
    return False


# --- What removing it would lose -----------------------------------------------------------


def stakes(
    worktree: str, admin_dir: str, branch_ref: str, ours: Callable[[str], bool]
) -> list[Stake]:
    """Everything that would be lost with this tree; empty when nothing would.

    `ours(path)` says whether an untracked or ignored path is a copy that we made ourselves and
    that is unchanged. `.worker-runs/` never counts: clean-up keeps it. Raises SkillError
    `git-failed` when the tree cannot be read: unknown is not clean.
    """
    found = file_stakes(worktree, ours)
    current, commit = git.current_ref(worktree)
    if current != branch_ref:
        if current is not None:
            found.append(Stake("branch-switched", [current]))
        elif loose_commits(worktree, commit):
            found.append(Stake("detached-commits", [commit]))
    busy = [name for name in OPERATIONS if os.path.lexists(os.path.join(admin_dir, name))]
    if busy:
        found.append(Stake("operation-in-progress", busy))
    if os.path.lexists(os.path.join(admin_dir, "index.lock")):
        found.append(Stake("index-locked", [os.path.join(admin_dir, "index.lock")]))
    return found


def file_stakes(worktree: str, ours: Callable[[str], bool]) -> list[Stake]:
    """The files that would be lost with a tree, its submodules included."""
    status = read_status(worktree, ignored=True)
    hidden, links = hidden_changes(worktree)
    groups = {
        "conflicted": status.conflicted,
        "staged": status.staged,
        "modified": [p for p in status.modified if p not in status.submodules],
        "submodule-changes": status.submodules,
        "hidden-changes": hidden,
        "untracked": [p for p in status.untracked if not ours(p)],
        "ignored": [p for p in status.ignored if not is_cache(worktree, p) and not ours(p)],
    }
    found = [Stake(code, sorted(paths)) for code, paths in groups.items() if paths]
    for link in links:
        folder = os.path.join(worktree, link)
        if not os.path.lexists(os.path.join(folder, ".git")):
            continue
        inner = file_stakes(folder, lambda _: False)
        found += [Stake(s.code, [f"{link}/{path}" for path in s.paths]) for s in inner]
        if loose_submodule_commits(folder):
            found.append(Stake("submodule-commits", [link]))
    return found


def hidden_changes(worktree: str) -> tuple[list[str], list[str]]:
    """Changed files that `git status` was told not to look at, and the submodule paths.

    Files marked skip-worktree or assume-unchanged are hashed against the index.
    """
    done = git.require_git(worktree, "ls-files", "-v", "-s", "-z")
    marked: dict[str, str] = {}
    links: list[str] = []
    for entry in done.text.split("\0"):
        if not entry:
            continue
        info, _, path = entry.partition("\t")
        tag, mode, blob, _ = info.split(" ")
        if mode == "160000":
            links.append(path)
        elif tag in "Ss" or tag.islower():
            marked[path] = blob
    hidden: list[str] = []
    for path, blob in marked.items():
        full = os.path.join(worktree, path)
        if not os.path.lexists(full):
            # A sparse checkout leaves these out; a deletion holds no bytes.
            continue
        if os.path.islink(full):
            target = os.fsencode(os.readlink(full))
            done = git.require_git(worktree, "hash-object", "--stdin", stdin=target)
        else:
            done = git.require_git(worktree, "hash-object", "--", path)
        if done.text.strip() != blob:
            hidden.append(path)
    return hidden, links


def loose_commits(worktree: str, commit: str) -> bool:
    """Whether no branch, tag or remote branch contains the commit."""
    done = git.require_git(
        worktree, "rev-list", "-n", "1", commit, "--not", "--branches", "--tags", "--remotes"
    )
    return bool(done.text.strip())


def loose_submodule_commits(folder: str) -> bool:
    """Whether a submodule's own repository holds commits that no remote branch of it has."""
    if git.git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").code != 0:
        return False
    done = git.require_git(folder, "rev-list", "-n", "1", "HEAD", "--all", "--not", "--remotes")
    return bool(done.text.strip())


# --- Making ---------------------------------------------------------------------------------


def require_free_place(repo: git.Repository, path: str) -> None:
    """Demand that a worktree can be made at a path: nothing there, and not inside another tree."""
    if os.path.lexists(path):
        raise refused(
            "worktree-exists",
            f"{path!r} is already there and was not made by this call",
            "choose another place with --worktree DIR, or move that folder away",
        )
    # The nearest folder that exists decides where the new one would really lie.
    parent = os.path.dirname(path)
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    real = os.path.join(os.path.realpath(parent), os.path.relpath(path, parent))
    for tree in (*registered(repo.common_dir).values(), repo.common_dir):
        if real.startswith(os.path.realpath(tree) + "/"):
            raise refused(
                "worktree-nested",
                f"{path!r} would lie inside {tree!r}",
                "choose a place outside of every other worktree with --worktree DIR",
            )
    inside_checkout = real.startswith(os.path.realpath(repo.top) + "/")
    if inside_checkout and git.git(repo.top, "check-ignore", "-q", "--", real).code != 0:
        raise refused(
            "worktree-nested",
            f"{path!r} lies in the checkout {repo.top!r} and git does not ignore it",
            "choose a place beside the checkout, or add that folder to .gitignore",
        )


def require_free_branch(repo: git.Repository, branch: str) -> None:
    """Demand that a branch can be made. Raises SkillError `branch-taken` (exit 3)."""
    wanted = "refs/heads/" + branch
    for ref in git.branch_heads(repo.common_dir):
        if ref == wanted:
            holder = holder_of(repo.common_dir, repo.main_root, ref)
            where = f", checked out in {holder!r}" if holder else ""
            raise refused(
                "branch-taken",
                f"the branch {branch!r} is already there{where}",
                "choose another name with --branch B",
            )
        same = ref.casefold()
        mine = wanted.casefold()
        if same == mine or same.startswith(mine + "/") or mine.startswith(same + "/"):
            raise refused(
                "branch-taken",
                f"the branch {branch!r} cannot be beside {ref.removeprefix('refs/heads/')!r}",
                "choose another name with --branch B",
            )
        if case_clash(same, mine, ref, wanted):
            raise refused(
                "branch-taken",
                f"the branch {branch!r} differs only by case from a folder of {ref!r}",
                "choose another name with --branch B; some file systems cannot tell them apart",
            )


def case_clash(same: str, mine: str, ref: str, wanted: str) -> bool:
    """Whether two refs share a folder by letters but not by case (`Team/a` beside `team/b`)."""
    pairs = zip(same.split("/"), mine.split("/"), strict=False)
    depth = next((number for number, (a, b) in enumerate(pairs) if a != b), 0)
    return ref.split("/")[:depth] != wanted.split("/")[:depth]


def add_worktree(repo: git.Repository, path: str, branch: str, base: str) -> str:
    """Make a branch at a commit and an empty worktree on it; returns its administrative folder.

    Call it under the repository's lock: git's own book-keeping is not safe at once with itself.
    The start is a commit id, so no upstream is configured. Raises SkillError `git-failed`.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    git.require_git(
        repo.common_dir, "worktree", "add", "-q", "--no-checkout", "-b", branch, "--", path, base
    )
    admin = admin_dir_of(path)
    if admin is None:
        raise SkillError("git-failed", f"git made no worktree at {path!r}")
    return os.path.realpath(admin)


def fill_worktree(path: str) -> None:
    """Write the files of a new, empty worktree. Safe at once with other trees."""
    git.require_git(path, "-c", "submodule.recurse=false", "reset", "--hard", "--quiet")


def checkout_hook(repo: git.Repository, base: str) -> list[str] | None:
    """The command that runs the post-checkout hook as `git worktree add` does; None without one."""
    if not os.access(os.path.join(repo.hooks_dir, "post-checkout"), os.X_OK):
        return None
    return ["git", "hook", "run", "--ignore-missing", "post-checkout", "--", NULL_ID, base, "1"]


# --- Taking away ----------------------------------------------------------------------------


def aside_path(worktree: str) -> str:
    """Where a tree stands while it is being removed; beside it, so that a rename suffices."""
    folder, name = os.path.split(worktree)
    return os.path.join(folder, f".{name}.removing")


def drop_admin_dir(common_dir: str, admin_dir: str, worktree: str) -> None:
    """Remove exactly the administrative entry of one tree, matched by its `gitdir`.

    Raises SkillError `worktree-mismatch` when the entry belongs to another tree by now.
    """
    if not os.path.lexists(admin_dir):
        return
    path = registered_path(admin_dir)
    # Git itself writes the new place into `gitdir` when it is used from a tree set aside.
    if path not in (worktree, aside_path(worktree)):
        raise SkillError(
            "worktree-mismatch", f"{admin_dir!r} belongs to {path!r}, not to {worktree!r}"
        )
    if os.path.dirname(admin_dir) != os.path.join(common_dir, "worktrees"):
        raise SkillError(
            "worktree-mismatch", f"{admin_dir!r} is not a worktree entry of this repository"
        )
    trash = os.path.join(common_dir, "agent-workers", f"dropped-{os.path.basename(admin_dir)}")
    remove_tree(trash)
    os.rename(admin_dir, trash)
    remove_tree(trash)


def remove_tree(path: str) -> None:
    """Remove a folder and all in it, read-only folders too; links are not followed."""

    def make_writable(function: Callable[[str], object], name: str, _: object) -> None:
        for folder in (os.path.dirname(name), name):
            with contextlib.suppress(OSError):
                if not os.path.islink(folder):
                    os.chmod(folder, stat.S_IRWXU)
        function(name)

    if os.path.lexists(path):
        shutil.rmtree(path, onerror=make_writable)


def remove_file(path: str) -> None:
    """Remove a file; it is fine when there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def walk_files(directory: str) -> Iterator[str]:
    """Every file and link below a folder, as relative paths; links are not followed."""
    for folder, folders, files in os.walk(directory):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(folder, name), directory)


def require_relative(path: str) -> str:
    """A path that stays inside the tree it is relative to. Raises SkillError `path-outside`."""
    normal = os.path.normpath(path)
    outside = os.path.isabs(path) or normal == ".." or normal.startswith("../") or "\0" in path
    if outside or normal in (".", "") or normal.split("/")[0] == ".git":
        raise usage(
            "path-outside",
            f"{path[:200]!r} is not a path inside the checkout",
            "give a path relative to the top of the repository",
        )
    return normal
