"""Save what a removal would lose, byte for byte, under a ref of our own."""

from __future__ import annotations

import os
import stat
import time

from fanout import git, records, worktrees
from fanout.errors import SkillError

IDENTITY = {
    "GIT_AUTHOR_NAME": "agent-workers",
    "GIT_AUTHOR_EMAIL": "agent-workers@localhost",
    "GIT_COMMITTER_NAME": "agent-workers",
    "GIT_COMMITTER_EMAIL": "agent-workers@localhost",
}
PREFIX = "refs/agent-workers"


def new_ref(kind: str, name: str) -> str:
    """A ref that does not exist yet, below `refs/agent-workers/<kind>/<name>/`."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{PREFIX}/{kind}/{name}/{stamp}-{records.new_id()[:6]}"


def save_tree(common_dir: str, root: str, name: str, commits: list[str]) -> tuple[str, list[str]]:
    """Save all files of a tree, its index and some commits; returns the ref and what is left out.

    Files are stored as they are, without filters or line-end conversion, tracked or not, ignored
    or not; only caches stay out and are returned. Raises SkillError `rescue-failed` when anything
    cannot be saved: then nothing may be removed.
    """
    nested = nested_repositories(root)
    if nested:
        raise SkillError(
            "rescue-failed",
            f"{', '.join(nested[:5])} in {root!r} is a repository of its own, not files to save",
            "move it away, or push what it holds, then run the same command again",
        )
    files, left_out = files_to_save(root)
    scratch = os.path.join(records.home(common_dir), f"rescue-{records.new_id()}.index")
    try:
        tree = write_tree(root, files, scratch)
        index = save_index(root)
    finally:
        worktrees.remove_file(scratch)
    parents = [*dict.fromkeys(commits), *([index] if index else [])]
    message = f"Files of the worker {name} before its removal"
    commit = commit_tree(common_dir, tree, parents, message)
    ref = new_ref("rescue", name)
    git.require_git(common_dir, "update-ref", "--create-reflog", ref, commit, "")
    if git.ref_commit(common_dir, ref) != commit:
        raise SkillError(
            "rescue-failed", f"{ref} does not hold what was saved; nothing was removed"
        )
    return ref, left_out


def files_to_save(root: str) -> tuple[list[str], list[str]]:
    """Every file and link of a tree; and the caches that are left out.

    A folder counts as a cache only where git ignores it. `.worker-runs/` is kept elsewhere.
    """
    status = worktrees.read_status(root, ignored=True)
    caches = {path for path in status.ignored if worktrees.is_cache(root, path)}
    folders = tuple(path for path in caches if path.endswith("/"))
    files = [
        path
        for path in worktrees.walk_files(root)
        if path != ".git"
        and path not in caches
        and not path.startswith((*folders, ".worker-runs/"))
    ]
    return sorted(files), sorted(caches)


def nested_repositories(root: str) -> list[str]:
    """The folders below a tree that hold a repository or worktree of their own."""
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        if folder != root and ".git" in (*folders, *files):
            found.append(os.path.relpath(folder, root))
            folders.clear()
    return found


def write_tree(root: str, files: list[str], scratch: str) -> str:
    """Write the files as a tree object, without filters; returns its id."""
    plain: list[str] = []
    lines: list[bytes] = []
    for path in files:
        full = os.path.join(root, path)
        mode = os.lstat(full).st_mode
        if stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(full))
            blob = git.require_git(root, "hash-object", "-w", "--stdin", stdin=target).text.strip()
            lines.append(f"120000 {blob} 0\t".encode() + os.fsencode(path))
        elif stat.S_ISREG(mode) and "\n" in path:
            blob = git.require_git(
                root, "hash-object", "-w", "--no-filters", "--", path
            ).text.strip()
            lines.append(entry(mode, blob, path))
        elif stat.S_ISREG(mode):
            plain.append(path)
        # Sockets, pipes and devices hold no bytes.
    done = git.require_git(
        root,
        "hash-object",
        "-w",
        "--no-filters",
        "--stdin-paths",
        stdin=b"".join(os.fsencode(path) + b"\n" for path in plain),
    )
    blobs = done.text.split()
    if len(blobs) != len(plain):
        raise SkillError("rescue-failed", "git did not store every file; nothing was removed")
    for path, blob in zip(plain, blobs, strict=True):
        lines.append(entry(os.lstat(os.path.join(root, path)).st_mode, blob, path))
    git.require_git(root, "read-tree", "--empty", env={"GIT_INDEX_FILE": scratch})
    git.require_git(
        root,
        "update-index",
        "-z",
        "--index-info",
        stdin=b"\0".join(lines),
        env={"GIT_INDEX_FILE": scratch},
    )
    return git.require_git(root, "write-tree", env={"GIT_INDEX_FILE": scratch}).text.strip()


def entry(mode: int, blob: str, path: str) -> bytes:
    """One line for `update-index --index-info`."""
    kind = "100755" if mode & stat.S_IXUSR else "100644"
    return f"{kind} {blob} 0\t".encode() + os.fsencode(path)


def save_index(root: str) -> str | None:
    """Commit the index as it stands, also what is staged only; None when it cannot be one tree.

    An index with conflicts is no tree; its stages are the commits being merged, and the files
    with the conflict are saved as they are.
    """
    done = git.git(root, "write-tree")
    if done.code != 0:
        return None
    return commit_tree(root, done.text.strip(), [], "Index of the worker before its removal")


def commit_tree(directory: str, tree: str, parents: list[str], message: str) -> str:
    """Make a commit object of our own making; returns its id."""
    options = [word for parent in parents for word in ("-p", parent)]
    done = git.require_git(directory, "commit-tree", tree, *options, "-m", message, env=IDENTITY)
    return done.text.strip()


def keep_commits(common_dir: str, name: str, commits: list[str]) -> str | None:
    """Put commits that no ref reaches any more under a ref of ours; None when all are reached.

    They stand only in the reflog that goes with a worktree: amended, reset away, or made while
    detached.
    """
    if not commits:
        return None
    ids = "\n".join(dict.fromkeys(commits)) + "\n"
    known = git.require_git(common_dir, "cat-file", "--batch-check", stdin=ids.encode())
    present = [
        line.split()[0] for line in known.text.splitlines() if line.endswith(tuple("0123456789"))
    ]
    if not present:
        return None
    # `--not --all` after `--stdin`: options inside of stdin need git 2.42.
    done = git.require_git(
        common_dir, "rev-list", "--stdin", "--not", "--all", stdin="\n".join(present).encode()
    )
    loose = set(done.text.split())
    tips = [commit for commit in present if commit in loose]
    if not tips:
        return None
    tree = git.require_git(common_dir, "rev-parse", f"{tips[0]}^{{tree}}").text.strip()
    commit = commit_tree(common_dir, tree, tips, f"Commits that only the worker {name} had reached")
    ref = new_ref("archive", name)
    git.require_git(common_dir, "update-ref", ref, commit, "")
    return ref


def reflog_commits(path: str) -> list[str]:
    """The commits that a reflog file names."""
    try:
        with open(path, "rb") as file:
            rows = [line.split(b" ", 2)[:2] for line in file if line.count(b" ") >= 2]
    except OSError:
        return []
    ids = {word.decode("ascii", "replace") for row in rows for word in row}
    return sorted(commit for commit in ids if commit.strip("0"))
