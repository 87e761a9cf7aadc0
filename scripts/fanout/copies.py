"""Files that a fresh worktree gets from the caller's, and what it lacks compared with it."""

from __future__ import annotations

import contextlib
import os

from fanout import git, process, worktrees
from fanout import workers as life
from fanout.errors import usage
from fanout.workers import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def copy_files(top: str, worktree: str, paths: list[str]) -> dict[str, str]:
    """Copy these paths and what `.worktreeinclude` names; returns path -> fingerprint of a copy."""
    wanted = [worktrees.require_relative(path) for path in paths]
    wanted += included_files(top)
    copied: dict[str, str] = {}
    for path in dict.fromkeys(wanted):
        source = os.path.join(top, path)
        if os.path.isdir(source) and not os.path.islink(source):
            inner = [os.path.join(path, name) for name in worktrees.walk_files(source)]
        else:
            inner = [path]
        for name in inner:
            require_inside(worktree, name)
            copied[name] = copy_one(os.path.join(top, name), os.path.join(worktree, name))
    return copied


def require_inside(worktree: str, path: str) -> None:
    """Demand that a path of a new tree lies in it: a link in the commit may lead out of it."""
    folder = os.path.realpath(os.path.dirname(os.path.join(worktree, path)))
    if folder != worktree and not folder.startswith(worktree + "/"):
        raise usage(
            "path-outside",
            f"{path!r} would be copied to {folder!r}, outside of the new worktree",
            "a folder on its way is a link there; copy it by a --setup command",
        )


def copy_one(source: str, target: str) -> str:
    """Copy one file or link with its mode and times; returns its fingerprint."""
    import shutil
    import stat

    mode = os.lstat(source).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise usage(
            "copy-unfit", f"{source!r} is neither a file, a folder nor a link", "leave it out"
        )
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.lexists(target):
        os.unlink(target)
    shutil.copy2(source, target, follow_symlinks=False)
    return fingerprint(target)


def fingerprint(path: str) -> str:
    """What tells whether a copy is still as it was made."""
    if os.path.islink(path):
        return "link:" + os.readlink(path)
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_our_copy(worker: Worker, root: str, path: str) -> bool:
    """Whether a path below `root` holds nothing but unchanged copies that spawn made."""
    full = os.path.join(root, path)
    if path.endswith("/"):
        inner = [path + name for name in worktrees.walk_files(full)]
        return bool(inner) and all(is_our_copy(worker, root, name) for name in inner)
    # Only what may be a copy is read: the rest may be large, or a pipe that never ends.
    if path not in worker.copied or worktrees.kind_of(full) not in ("file", "link"):
        return False
    try:
        return worker.copied[path] == fingerprint(full)
    except OSError:
        return False


def included_files(top: str) -> list[str]:
    """The ignored files of the caller's tree that its `.worktreeinclude` asks for."""
    if not os.path.isfile(os.path.join(top, ".worktreeinclude")):
        return []
    matching = git.require_git(
        top, "ls-files", "-z", "--others", "--ignored", "--exclude-from=.worktreeinclude"
    )
    if not matching.stdout:
        return []
    # Exit code 1 says that none of them is ignored.
    done = git.git(top, "check-ignore", "-z", "--stdin", stdin=matching.stdout)
    found = [path for path in done.text.split("\0") if path]
    return [path for path in found if path.split("/")[0] != life.RUNS]


def start_caller_status(repo: git.Repository) -> tuple[process.Running, list[str]]:
    """Start to look at the caller's checkout, beside the work on the new trees."""
    argv = git.git_command(repo.top, *worktrees.status_arguments(ignored=True))
    return process.start(argv, env=git.git_environment()), argv


def finish_caller_status(started: tuple[process.Running, list[str]]) -> worktrees.Status:
    """What the caller's checkout holds beyond its commit."""
    return worktrees.parse_status(process.finish(*started))


def lacking(status: worktrees.Status, top: str, worktree: str) -> dict[str, Any]:
    """What a new tree lacks compared with the caller's: counts and first paths by kind."""
    ignored = [path for path in status.ignored if not worktrees.is_cache(top, path)]
    here = [path for path in ignored if not os.path.lexists(os.path.join(worktree, path))]
    groups = {
        "uncommitted": sorted(
            {*status.staged, *status.modified, *status.conflicted, *status.untracked}
        ),
        "ignored": [path for path in here if not path.startswith(life.RUNS)],
        "submodules": missing_submodules(worktree),
        "lfs_pointers": lfs_pointers(worktree),
    }
    return {
        key: {"count": len(paths), "paths": paths[:20]} for key, paths in groups.items() if paths
    }


def missing_submodules(worktree: str) -> list[str]:
    """The submodules of a new tree: git leaves them empty."""
    if not os.path.isfile(os.path.join(worktree, ".gitmodules")):
        return []
    done = git.require_git(worktree, "ls-files", "-s", "-z")
    rows = [entry.partition("\t") for entry in done.text.split("\0") if entry.startswith("160000 ")]
    return [
        path for _, _, path in rows if not os.path.lexists(os.path.join(worktree, path, ".git"))
    ]


def lfs_pointers(worktree: str) -> list[str]:
    """The files of a new tree that hold a Git LFS pointer instead of their content."""
    done = git.require_git(worktree, "ls-files", "-z", "--", ":(attr:filter=lfs)")
    found: list[str] = []
    for path in filter(None, done.text.split("\0")):
        with contextlib.suppress(OSError), open(os.path.join(worktree, path), "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs.github.com/spec"):
                found.append(path)
    return found
