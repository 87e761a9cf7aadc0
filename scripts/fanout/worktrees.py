"""Linked worktrees: make one, say what removing one would lose, take one away."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from functools import partial

from fanout import git
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.process import Completed, run, side_by_side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NULL_ID = "0" * 40
# In a tree's administrative folder: the folders that were made for it to stand in.
PARENTS = "agent-worker-parents"
# What a repository's configuration says where `git worktree add` does more than `lay_out`.
LAYOUTS = (b"[extensions", b"[include", b"sparsecheckout", b"sharedrepository")

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
        with open(f"{worktree}/.git", "rb", buffering=0) as file:
            content = os.fsdecode(file.read()).removesuffix("\n")
    except OSError:
        return None
    if not content.startswith("gitdir: "):
        return None
    return os.path.normpath(os.path.join(worktree, content.removeprefix("gitdir: ")))


def registered_path(admin_dir: str) -> str | None:
    """The worktree that an administrative folder names in its `gitdir` file, or None."""
    content = git.small_file(f"{admin_dir}/gitdir")
    if content is None:
        return None
    return os.path.dirname(os.path.normpath(os.path.join(admin_dir, content.removesuffix("\n"))))


def registered(common_dir: str) -> dict[str, str]:
    """All linked worktrees of a repository: administrative folder -> path of the tree.

    Read from the files themselves: a path may hold any byte, and no process is needed.
    """
    folder = os.path.join(common_dir, "worktrees")
    try:
        entries = sorted(os.listdir(folder))
    except FileNotFoundError:
        return {}
    found = {admin: registered_path(admin) for admin in (f"{folder}/{e}" for e in entries)}
    return {admin: path for admin, path in found.items() if path is not None}


def holder_of(common_dir: str, main_root: str, branch_ref: str) -> str | None:
    """A checkout that has a branch checked out, as far as its files tell, or None."""
    return next(iter(holders_of(common_dir, main_root, branch_ref)), None)


def holders_of(common_dir: str, main_root: str, branch_ref: str) -> list[str]:
    """All checkouts that have a branch checked out, are rebasing it, or bisect from it."""
    return holders(common_dir, main_root).get(branch_ref, [])


def holders(common_dir: str, main_root: str) -> dict[str, list[str]]:
    """By branch, the checkouts that have it checked out, are rebasing it, or bisect from it."""
    folder = os.path.join(common_dir, "worktrees")
    entries = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    found: dict[str, list[str]] = {}
    for admin in (common_dir, *(f"{folder}/{entry}" for entry in entries)):
        path = main_root if admin == common_dir else registered_path(admin)
        head = resolved(common_dir, first_line(f"{admin}/HEAD") or "")
        start = first_line(f"{admin}/BISECT_START")
        held = {
            head.removeprefix("ref: ") if head.startswith("ref: ") else None,
            first_line(f"{admin}/rebase-merge/head-name"),
            first_line(f"{admin}/rebase-apply/head-name"),
            f"refs/heads/{start}" if start else None,
        }
        for ref in held:
            if ref is not None and path is not None:
                found.setdefault(ref, []).append(path)
    return found


def resolved(common_dir: str, head: str) -> str:
    """What HEAD says, with a branch that stands for another one followed to that one."""
    for _ in range(5):
        further = first_line(f"{common_dir}/{head.removeprefix('ref: ')}") or ""
        if not head.startswith("ref: ") or not further.startswith("ref: "):
            break
        head = further
    return head


def first_line(path: str) -> str | None:
    """The only line of a small file of git's, or None when it cannot be read."""
    content = git.small_file(path)
    return None if content is None else content.strip()


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
    done = git.require_git(worktree, *status_arguments(ignored=ignored), env=at(worktree))
    return parse_status(done)


def at(worktree: str) -> dict[str, str]:
    """What makes git look at this very tree, whatever `core.worktree` says."""
    return {"GIT_WORK_TREE": worktree}


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
    worktree: str, admin_dir: str, branch_ref: str, base: str, ours: Callable[[str], bool]
) -> list[Stake]:
    """Everything that would be lost with this tree; empty when nothing would.

    `ours(path)` says whether a path is a copy that we made ourselves and that is unchanged.
    `base` is the commit that the tree started from: what it pins is known elsewhere. Raises
    SkillError `git-failed` or `unreadable` when the tree cannot be read: unknown is not clean.
    """
    found = file_stakes(worktree, admin_dir, base, ours, at(worktree))
    current, commit = git.current_ref(worktree)
    if current != branch_ref:
        if current is not None:
            found.append(Stake("branch-switched", [current]))
        elif loose_commits(worktree, commit):
            found.append(Stake("detached-commits", [commit]))
    busy = [name for name in OPERATIONS if os.path.lexists(os.path.join(admin_dir, name))]
    if busy:
        found.append(Stake("operation-in-progress", busy))
    locks = sorted(name for name in os.listdir(admin_dir) if name.endswith(".lock"))
    if locks:
        found.append(Stake("index-locked", [aged(os.path.join(admin_dir, n)) for n in locks]))
    return found


def aged(path: str) -> str:
    """A lock file with its age, for a person who has to decide whether it is in use."""
    import time

    try:
        return f"{path} ({max(0, time.time() - os.lstat(path).st_mtime):.0f} s old)"
    except FileNotFoundError:
        return path


def file_stakes(
    root: str, git_dir: str, pinning: str, ours: Callable[[str], bool], env: dict[str, str]
) -> list[Stake]:
    """The files that would be lost with a tree, and its submodules with all that they hold.

    `pinning` is a commit whose submodule commits were there before; `env` adds to git's.
    """
    # Submodules are looked at one by one below: git itself would look in the wrong place.
    words = [w for w in status_arguments(ignored=True) if not w.startswith("--ignore-submodules")]
    done = git.require_git(root, *words, "--ignore-submodules=dirty", env=env)
    if done.stderr:
        require_readable(root)
    status = parse_status(done)
    hidden, links = hidden_changes(root, env)
    groups = {
        "conflicted": status.conflicted,
        "staged": [p for p in status.staged if p not in status.submodules],
        "modified": [p for p in status.modified if p not in status.submodules and not ours(p)],
        "submodule-changes": status.submodules,
        "hidden-changes": [p for p in hidden if not ours(p)],
        "untracked": [p for p in status.untracked if not ours(p)],
        "ignored": [p for p in status.ignored if not is_pure_cache(root, p) and not ours(p)],
    }
    found = [Stake(code, sorted(paths)) for code, paths in groups.items() if paths]
    modules = submodule_dirs(root, git_dir, links)
    pins = pinned_commits(root, pinning, env) if modules else []
    for module, link in modules.items():
        if link:
            folder = os.path.join(root, link)
            # It names its folder by `core.worktree`: wrong while the tree stands aside.
            where = {"GIT_WORK_TREE": folder}
            inner = file_stakes(folder, module, "HEAD", lambda _: False, where)
            found += [Stake(s.code, [f"{link}/{path}" for path in s.paths]) for s in inner]
        nested = [] if link else all_module_dirs(module)
        if any(unshared_commits(m, pins, "--all") for m in (module, *nested)):
            found.append(Stake("submodule-commits", [link or os.path.relpath(module, git_dir)]))
    return found


def hidden_changes(root: str, env: dict[str, str]) -> tuple[list[str], list[str]]:
    """Changed files that `git status` was told not to look at, and the submodule paths.

    Files marked skip-worktree or assume-unchanged are hashed against the index.
    """
    done = git.require_git(root, "ls-files", "-v", "-s", "-z", env=env)
    marked: dict[str, str] = {}
    links: list[str] = []
    hidden: list[str] = []
    for entry in done.text.split("\0"):
        if not entry:
            continue
        info, _, path = entry.partition("\t")
        tag, mode, blob, _ = info.split(" ")
        if mode == "160000":
            links.append(path)
        elif tag in "Ss" or tag.islower():
            kind = kind_of(os.path.join(root, path))
            if kind == ("link" if mode == "120000" else "file"):
                marked[path] = blob
            elif kind != "nothing":
                # A sparse checkout leaves files out, and a deletion holds no bytes.
                hidden.append(path)
    if not marked:
        return hidden, links
    plain = [path for path in marked if kind_of(os.path.join(root, path)) == "file"]
    names = b"".join(quoted(path) + b"\n" for path in plain)
    now = git.require_git(root, "hash-object", "--stdin-paths", stdin=names, env=env).text.split()
    found = dict(zip(plain, now, strict=True))
    for path in marked.keys() - found.keys():
        target = os.fsencode(os.readlink(os.path.join(root, path)))
        found[path] = git.require_git(root, "hash-object", "--stdin", stdin=target).text.strip()
    return hidden + [path for path, blob in marked.items() if found[path] != blob], links


def kind_of(path: str) -> str:
    """What stands at a path: `nothing`, `file`, `link` or `other`. Links are not followed."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as error:
        # A commit may hold a name that no file can have here.
        if error.errno == errno.ENAMETOOLONG:
            return "nothing"
        raise
    return "link" if stat.S_ISLNK(mode) else "file" if stat.S_ISREG(mode) else "other"


def quoted(path: str) -> bytes:
    """A path as `--stdin-paths` takes it whatever bytes it holds (quotes, line breaks, CR)."""
    return b'"' + b"".join(b"\\%03o" % byte for byte in os.fsencode(path)) + b'"'


def require_readable(root: str) -> None:
    """Demand that every folder of a tree can be listed; git only warns about those that cannot."""
    for _ in walk_files(root):
        pass


def is_pure_cache(root: str, path: str) -> bool:
    """Whether an ignored path is a cache, and nobody keeps a repository inside of it."""
    return is_cache(root, path) and not (path.endswith("/") and nested_repositories(root, path))


def nested_repositories(root: str, below: str = "") -> list[str]:
    """The folders below a tree that hold a repository or worktree of their own."""
    found: list[str] = []
    for folder, folders, files in os.walk(os.path.join(root, below), onerror=fail):
        if os.path.normpath(folder) != root and ".git" in (*folders, *files):
            found.append(os.path.relpath(folder, root))
            folders.clear()
    return found


def loose_commits(worktree: str, commit: str) -> bool:
    """Whether no branch, tag or remote branch contains the commit."""
    done = git.require_git(
        worktree, "rev-list", "-n", "1", commit, "--not", "--branches", "--tags", "--remotes"
    )
    return bool(done.text.strip())


# --- Submodules: their repositories go with the worktree --------------------------------------


def submodule_dirs(root: str, git_dir: str, links: list[str]) -> dict[str, str]:
    """The repositories of submodules: git folder -> path in the tree, empty when it has none."""
    found = {os.path.realpath(module): "" for module in module_dirs(git_dir)}
    for link in links:
        folder = os.path.join(root, link)
        if os.path.lexists(os.path.join(folder, ".git")) and not os.path.islink(folder):
            found[os.path.realpath(admin_dir_of(folder) or os.path.join(folder, ".git"))] = link
    return found


def module_dirs(git_dir: str) -> list[str]:
    """The git folders below `modules/`, also of submodules that are no longer in the index."""
    found: list[str] = []
    for folder, folders, files in os.walk(os.path.join(git_dir, "modules")):
        if "HEAD" in files and "objects" in folders:
            found.append(folder)
            folders.clear()
    return found


def all_module_dirs(git_dir: str) -> list[str]:
    """`module_dirs`, and theirs in turn."""
    return [d for m in module_dirs(git_dir) for d in (m, *all_module_dirs(m))]


def pinned_commits(root: str, commit: str, env: dict[str, str]) -> list[str]:
    """The submodule commits that a commit names."""
    done = git.require_git(root, "ls-tree", "-r", "-z", commit, env=env)
    return [e.split(" ")[2].split("\t")[0] for e in done.text.split("\0") if e[:6] == "160000"]


def unshared_commits(module: str, pins: list[str], *what: str) -> bool:
    """Whether a submodule's repository holds commits that neither its remotes nor pins reach.

    Tags do not count: a clone fetches those of its remote, also where no branch holds them.
    """
    done = git.require_git(
        module, "rev-list", "-n", "1", "--ignore-missing", "--exclude=refs/remotes/*",
        "--exclude=refs/tags/*", *what, "--not", "--remotes", *pins,
        env={"GIT_DIR": module, "GIT_WORK_TREE": module},
    )  # fmt: skip
    return bool(done.text.strip())


# --- Making ---------------------------------------------------------------------------------


def require_free_place(repo: git.Repository, path: str) -> None:
    """Demand that a worktree can be made at a path: nothing there, and not inside another tree.

    Raises SkillError `invalid-place` (exit 2), `worktree-exists`, `worktree-nested` (exit 3).
    """
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
    if "\n" in real:
        raise usage(
            "invalid-place", f"{real!r} holds a line break", "choose another --worktree DIR"
        )
    linked = registered(repo.common_dir).values()
    if real in linked:
        raise refused(
            "worktree-exists",
            f"git still knows a worktree at {path!r}, though nothing is there now",
            "if it was only moved, `git worktree repair` in its new place; if it was deleted, "
            "`git worktree remove` it; or choose another place with --worktree DIR",
        )
    above = folders_above(real)
    for tree in (*linked, repo.common_dir):
        if holds_place(tree, real, above):
            raise refused(
                "worktree-nested",
                f"{path!r} would lie inside {tree!r}",
                "choose a place outside of every other worktree with --worktree DIR",
            )
    for top in dict.fromkeys((repo.top, repo.main_root)):
        if not real.startswith(os.path.realpath(top) + "/"):
            continue
        if git.git(top, "check-ignore", "-q", "--", real).code != 0:
            raise refused(
                "worktree-nested",
                f"{path!r} lies in the checkout {top!r} and git does not ignore it",
                "choose a place beside the checkout, or add that folder to .gitignore",
            )


def folders_above(path: str) -> set[tuple[int, int]]:
    """What tells the folders above a real path, as far as they are there."""
    found: set[tuple[int, int]] = set()
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        with contextlib.suppress(OSError):
            folder = os.stat(path)
            found.add((folder.st_dev, folder.st_ino))
    return found


def holds_place(tree: str, real: str, above: set[tuple[int, int]]) -> bool:
    """Whether a tree is one of the folders above a real path, or was one while it was there."""
    try:
        folder = os.stat(tree)
    except OSError:
        return real.startswith(os.path.realpath(tree) + "/")
    # To follow the links in the paths of many trees takes long, and the lock is held meanwhile.
    return (folder.st_dev, folder.st_ino) in above


def taken_refs(common_dir: str) -> set[str]:
    """All branches, and those without a commit yet that a checkout is on."""
    folder = os.path.join(common_dir, "worktrees")
    entries = os.listdir(folder) if os.path.isdir(folder) else []
    heads = [first_line(f"{a}/HEAD") for a in (common_dir, *(f"{folder}/{e}" for e in entries))]
    held = {head.removeprefix("ref: ") for head in heads if head and head[:5] == "ref: "}
    return held.union(git.branch_heads(common_dir))


def require_free_branch(repo: git.Repository, branch: str, taken: set[str]) -> None:
    """Demand that a branch can be made beside others. Raises SkillError `branch-taken` (exit 3)."""
    wanted = "refs/heads/" + branch
    for ref in sorted(taken):
        if ref == wanted:
            holders = holders_of(repo.common_dir, repo.main_root, ref)
            where = f", checked out in {holders[0]!r}" if holders else ""
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


def make_branches(repo: git.Repository, branches: list[str], base: str) -> None:
    """Make branches at a commit, all or none of them, without an upstream.

    Raises SkillError `git-failed`, also for a branch that is there.
    """
    lines = "".join(f"create refs/heads/{branch} {base}\n" for branch in branches)
    words = ["update-ref", "-m", f"branch: Created from {base}", "--stdin"]
    git.require_git(repo.common_dir, *words, stdin=os.fsencode(lines))


def add_worktree(repo: git.Repository, path: str, branch: str, record: str) -> str:
    """Make an empty worktree on a branch; returns its administrative folder.

    Call it under the repository's lock. `record` is a folder on the same file system, where the
    entry is made. Raises SkillError `git-failed`.
    """
    return add_empty(repo, path, f"ref: refs/heads/{branch}", record, "--", path, branch)


def add_detached(repo: git.Repository, path: str, commit: str, record: str) -> str:
    """`add_worktree` at a commit, without a branch."""
    return add_empty(repo, path, commit, record, "--detach", "--", path, commit)


def add_empty(repo: git.Repository, path: str, head: str, record: str, *words: str) -> str:
    """Make an empty worktree with this HEAD, or by `git worktree add` and these words."""
    parent = os.path.dirname(path)
    made = missing_folders(parent)
    try:
        os.makedirs(parent, exist_ok=True)
        if is_plain(repo.common_dir):
            return lay_out(repo.common_dir, path, head, record, made)
        git.require_git(repo.common_dir, "worktree", "add", "-q", "--no-checkout", *words)
        admin = admin_dir_of(path)
        if admin is None:
            raise SkillError("git-failed", f"git made no worktree at {path!r}")
        write_parents(admin, made)
    except BaseException:
        remove_empty(made)
        raise
    return os.path.realpath(admin)


def is_plain(common_dir: str) -> bool:
    """Whether a worktree is laid out here as gitrepository-layout(5) has it, and no other way."""
    try:
        with open(f"{common_dir}/config", "rb") as file:
            config = file.read().lower()
    except OSError:
        return False
    return not any(word in config for word in LAYOUTS)


def lay_out(common_dir: str, path: str, head: str, record: str, parents: list[str]) -> str:
    """Make a worktree without files; returns its administrative folder.

    Its entry appears whole, and after the tree: no other process reads half of one, or prunes it.
    `git worktree add` takes three processes for this, and reads all other entries.
    """
    os.mkdir(path)
    made = new_entry(record)
    remove_tree(made)
    try:
        os.mkdir(made)
        os.makedirs(f"{common_dir}/worktrees", exist_ok=True)
        files = {"HEAD": head, "commondir": "../..", "gitdir": f"{os.path.realpath(path)}/.git"}
        for name, text in files.items():
            write_line(f"{made}/{name}", text)
        write_parents(made, parents)
        wanted = re.sub("[^A-Za-z0-9_-]", "-", os.path.basename(path))
        for number in range(10_000):
            admin = f"{common_dir}/worktrees/{wanted}{number or ''}"
            if os.path.lexists(admin):
                continue
            write_line(f"{path}/.git", f"gitdir: {admin}")
            try:
                os.rename(made, admin)
                return admin
            except OSError:
                # A runner holds no lock, and may have taken the name.
                if not os.path.lexists(admin):
                    raise
        raise SkillError("git-failed", f"{common_dir!r} is full of worktrees named {wanted!r}")
    except BaseException:
        remove_unlinked(path)
        raise


def write_line(path: str, text: str) -> None:
    """Write a small file as git does, with the caller's umask."""
    with open(path, "wb", buffering=0) as file:
        file.write(os.fsencode(text) + b"\n")


def write_parents(admin_dir: str, folders: list[str]) -> None:
    """Note the folders that were made for a tree to stand in."""
    with open(os.path.join(admin_dir, PARENTS), "wb", buffering=0) as file:
        file.write(b"\0".join(map(os.fsencode, folders)))


def remove_unlinked(path: str) -> None:
    """Remove what is left of a worktree that never got its entry; anything else stays."""
    link = os.path.join(path, ".git")
    admin = admin_dir_of(path)
    cut_off = os.path.isfile(link) and os.path.getsize(link) == 0
    if cut_off or (admin is not None and not os.path.lexists(admin)):
        if os.listdir(path) != [".git"]:
            return
        remove_file(link)
    remove_empty([path])


def missing_folders(path: str) -> list[str]:
    """The folders that `makedirs` would have to make for a path, the innermost first."""
    found: list[str] = []
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def made_folders(admin_dir: str) -> list[str]:
    """The folders that were made for a tree to stand in, the innermost first."""
    try:
        with open(os.path.join(admin_dir, PARENTS), "rb") as file:
            return [os.fsdecode(path) for path in file.read().split(b"\0") if path]
    except OSError:
        return []


def remove_empty(folders: list[str]) -> None:
    """Remove folders, the innermost first, as long as they are empty."""
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            return


def fill_worktree(path: str) -> None:
    """Write the files of a new, empty worktree. Safe at once with other trees."""
    git.require_git(path, "reset", "--hard", "--quiet", "--no-recurse-submodules")


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


def move_back(aside: str, worktree: str, admin_dir: str) -> None:
    """Bring a tree that was set aside back to its place, in git's book-keeping too.

    Some versions of git write a tree's new place into `gitdir` when they are used there.
    """
    os.rename(aside, worktree)
    if registered_path(admin_dir) == aside:
        with open(os.path.join(admin_dir, "gitdir"), "wb") as file:
            file.write(os.fsencode(os.path.join(worktree, ".git")) + b"\n")


def owns_admin_dir(admin_dir: str, worktree: str) -> bool:
    """Whether an administrative entry is that of a tree which stands aside now.

    Once the entry was removed, git may give its name to another tree.
    """
    other = admin_dir_of(worktree)
    if other is not None and os.path.realpath(other) == admin_dir:
        return False
    return registered_path(admin_dir) in (worktree, aside_path(worktree))


def drop_admin_dir(common_dir: str, admin_dir: str, record: str) -> None:
    """Remove exactly one administrative entry, by way of a worker's record."""
    take_admin_dir(common_dir, admin_dir, record)
    remove_tree(taken_entry(record))


def take_admin_dir(common_dir: str, admin_dir: str, record: str) -> None:
    """Move exactly one administrative entry into a worker's record.

    What a kill leaves there goes with the record.
    """
    if os.path.dirname(admin_dir) != os.path.join(common_dir, "worktrees"):
        raise SkillError(
            "worktree-mismatch", f"{admin_dir!r} is not a worktree entry of this repository"
        )
    remove_tree(taken_entry(record))
    os.rename(admin_dir, taken_entry(record))


def new_entry(record: str) -> str:
    """Where `lay_out` makes an entry; what a kill leaves there goes with the record."""
    return os.path.join(record, "new-entry")


def taken_entry(record: str) -> str:
    """Where `take_admin_dir` puts an entry."""
    return os.path.join(record, "dropped-entry")


def remove_quickly(paths: list[str]) -> None:
    """Remove folders and all in them, by two processes for many; read-only folders stay."""
    present = [path for path in paths if os.path.lexists(path)]
    # A command line holds only so many.
    size = max(1, min(100, (len(present) + 1) // 2))

    def remove(first: int) -> None:
        with contextlib.suppress(SkillError):
            run(["rm", "-rf", "--", *present[first : first + size]])

    side_by_side([partial(remove, first) for first in range(0, len(present), size)])


def remove_tree(path: str) -> None:
    """Remove a folder and all in it, read-only folders too; links are not followed."""

    def make_writable(function: Callable[[str], object], name: str, _: object) -> None:
        for folder in (os.path.dirname(name), name):
            with contextlib.suppress(OSError):
                if not os.path.islink(folder):
                    os.chmod(folder, stat.S_IRWXU)
        function(name)

    if os.path.lexists(path):
        import shutil

        shutil.rmtree(path, onerror=make_writable)


def remove_file(path: str) -> None:
    """Remove a file; it is fine when there is none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def walk_files(directory: str) -> Iterator[str]:
    """Every file and link below a folder, as relative paths; links are not followed.

    Raises SkillError `unreadable` for a folder that cannot be listed.
    """
    for folder, folders, files in os.walk(directory, onerror=fail):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(folder, name), directory)


def fail(error: OSError) -> None:
    """Stop a walk: what cannot be listed may hold anything."""
    raise SkillError("unreadable", f"cannot list {error.filename!r}: {error.strerror}") from error


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
