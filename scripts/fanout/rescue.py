"""Save what a removal would lose, byte for byte, under a ref of our own."""

from __future__ import annotations

import os
import re
import stat
import time

from fanout import git, records, worktrees
from fanout.errors import SkillError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECT_ID = rb"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b"
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
    nested = worktrees.nested_repositories(root)
    if nested:
        raise SkillError(
            "rescue-failed",
            f"{', '.join(nested[:5])} in {root!r} is a repository of its own, not files to save: "
            "push what it holds and move it away (a submodule: `git submodule deinit`)",
        )
    files, left_out = files_to_save(root)
    before = look_of(root, files)
    scratch = os.path.join(records.home(common_dir), f"rescue-{records.new_id()}.index")
    try:
        tree = write_tree(root, files, scratch)
        index = save_index(root, scratch)
    finally:
        worktrees.remove_file(scratch)
    parents = list(dict.fromkeys([*commits, index]))
    message = f"Files of the worker {name} before its removal"
    ref = make_ref(common_dir, "rescue", name, commit_tree(common_dir, tree, parents, message))
    if files_to_save(root)[0] != files or look_of(root, files) != before:
        raise SkillError(
            "rescue-failed", f"files in {root!r} changed while they were saved under {ref}"
        )
    return ref, left_out


def save_commits(common_dir: str, name: str, commits: list[str]) -> str:
    """Keep commits whose branch is deleted; returns the ref."""
    tree = git.require_git(common_dir, "rev-parse", f"{commits[0]}^{{tree}}").text.strip()
    message = f"Commits of the worker {name} before its removal"
    return make_ref(common_dir, "rescue", name, commit_tree(common_dir, tree, commits, message))


def make_ref(common_dir: str, kind: str, name: str, commit: str) -> str:
    """Put a commit under a new ref of ours, and read it back; returns the ref."""
    ref = new_ref(kind, name)
    git.require_git(common_dir, "update-ref", "--create-reflog", ref, commit, "")
    if git.ref_commit(common_dir, ref) != commit:
        raise SkillError(
            "rescue-failed", f"{ref} does not hold what was saved; nothing was removed"
        )
    return ref


def look_of(root: str, files: list[str]) -> list[tuple[int, ...]]:
    """What changes with any change of these files."""
    looks = (os.lstat(os.path.join(root, path)) for path in files)
    return [(s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in looks]


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


def write_tree(root: str, files: list[str], scratch: str) -> str:
    """Write the files as a tree object, without filters; returns its id."""
    plain: list[str] = []
    lines: list[bytes] = []
    for path in files:
        full = os.path.join(root, path)
        mode = os.lstat(full).st_mode
        if stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(full))
            blob = git.require_git(
                root, "hash-object", "-w", "--stdin", stdin=target, env=worktrees.at(root)
            ).text.strip()
            lines.append(f"120000 {blob} 0\t".encode() + os.fsencode(path))
        elif stat.S_ISREG(mode):
            plain.append(path)
        # Sockets, pipes and devices hold no bytes.
    done = git.require_git(
        root,
        "hash-object",
        "-w",
        "--no-filters",
        "--stdin-paths",
        stdin=b"".join(worktrees.quoted(path) + b"\n" for path in plain),
        env=worktrees.at(root),
    )
    blobs = done.text.split()
    if len(blobs) != len(plain):
        raise SkillError("rescue-failed", "git did not store every file; nothing was removed")
    for path, blob in zip(plain, blobs, strict=True):
        lines.append(entry(os.lstat(os.path.join(root, path)).st_mode, blob, path))
    return tree_of(root, lines, scratch)


def tree_of(root: str, lines: list[bytes], scratch: str) -> str:
    """Write lines for `update-index --index-info` as a tree object; returns its id."""
    env = {**worktrees.at(root), "GIT_INDEX_FILE": scratch}
    git.require_git(root, "read-tree", "--empty", env=env)
    git.require_git(root, "update-index", "-z", "--index-info", stdin=b"\0".join(lines), env=env)
    return git.require_git(root, "write-tree", env=env).text.strip()


def entry(mode: int, blob: str, path: str) -> bytes:
    """One line for `update-index --index-info`."""
    kind = "100755" if mode & stat.S_IXUSR else "100644"
    return f"{kind} {blob} 0\t".encode() + os.fsencode(path)


def save_index(root: str, scratch: str) -> str:
    """Commit the index as it stands, also what is staged only; returns the commit.

    An index with conflicts is no tree: then each stage of it is a folder, `0` to `3`.
    """
    if not git.require_git(root, "ls-files", "-u", "-z", env=worktrees.at(root)).stdout:
        tree = git.require_git(root, "write-tree", env=worktrees.at(root)).text.strip()
        return commit_tree(root, tree, [], "Index of the worker before its removal")
    lines: list[bytes] = []
    for row in git.require_git(root, "ls-files", "-s", "-z", env=worktrees.at(root)).stdout.split(
        b"\0"
    ):
        if row:
            info, _, path = row.partition(b"\t")
            mode, blob, stage = info.split(b" ")
            lines.append(mode + b" " + blob + b" 0\t" + stage + b"/" + path)
    tree = tree_of(root, lines, scratch)
    return commit_tree(root, tree, [], "Index of the worker, a folder for each stage")


def commit_tree(directory: str, tree: str, parents: list[str], message: str) -> str:
    """Make a commit object of our own making; returns its id."""
    options = [word for parent in parents for word in ("-p", parent)]
    done = git.require_git(directory, "commit-tree", tree, *options, "-m", message, env=IDENTITY)
    return done.text.strip()


def keep_commits(common_dir: str, name: str, ids: list[str]) -> str | None:
    """Put commits that no ref reaches any more under a ref of ours; None when all are reached.

    They stand only in files that go with a worktree: amended, reset away, made while detached, or
    set aside by an operation in progress. Ids of anything but commits are passed over.
    """
    if not ids:
        return None
    lines = "\n".join(dict.fromkeys(ids)) + "\n"
    known = git.require_git(common_dir, "cat-file", "--batch-check", stdin=lines.encode())
    rows = [line.split(" ") for line in known.text.split("\n")]
    commits = [row[0] for row in rows if row[1:2] == ["commit"]]
    if not commits:
        return None
    # Not `--all`: that counts the HEAD of the very worktree that goes. It follows `--stdin`,
    # because options inside of stdin need git 2.42.
    done = git.require_git(
        common_dir, "rev-list", "--stdin", "--not", "--glob=refs/*",
        stdin="\n".join(commits).encode(),
    )  # fmt: skip
    loose = set(done.text.split())
    tips = [commit for commit in dict.fromkeys(commits) if commit in loose]
    if not tips:
        return None
    tree = git.require_git(common_dir, "rev-parse", f"{tips[0]}^{{tree}}").text.strip()
    message = f"Commits that only the worker {name} had reached"
    return make_ref(common_dir, "archive", name, commit_tree(common_dir, tree, tips, message))


def naming_files(admin_dir: str) -> Iterator[str]:
    """The files of a worktree's own that name commits: HEAD, reflogs, refs, operations."""
    if not os.path.isdir(admin_dir):
        return
    for path in worktrees.walk_files(admin_dir):
        if path.split("/")[0] != "modules" and not path.startswith("index"):
            yield os.path.join(admin_dir, path)


def ids_in(path: str) -> list[str]:
    """Everything in a file that looks like the id of an object."""
    try:
        with open(path, "rb") as file:
            found = re.findall(OBJECT_ID, file.read())
    except OSError:
        return []
    return sorted({word.decode() for word in found if word.strip(b"0")})
