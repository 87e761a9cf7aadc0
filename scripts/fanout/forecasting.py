"""Foresee what merging candidates would come to, without touching tree, index or object store."""

from __future__ import annotations

import os

from fanout import candidates as offers
from fanout import git, merging
from fanout.candidates import Candidate
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.merging import Merged
from fanout.process import finish, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# So many candidates are tried in every order; for more, one is made step by step.
EVERY_ORDER = 6
# More merges than this are shared out over two processes.
SHARED = 24
READERS = 2


class Changes(NamedTuple):
    """The paths that a commit changes from its base. `renames` says that it may have moved one."""

    paths: frozenset[str]
    renames: bool


class Forecast(NamedTuple):
    """What was foreseen.

    `targets` is what each candidate alone comes to on the integration branch, `pairs` what each
    two come to on one another, `asked` what the order asked for comes to, with the names that
    were merged before it stopped. `order` is an order that is clean, or None; `all_tried` says
    whether every order was tried. `shared` are the files that several candidates change,
    `outside` those that a candidate changes outside of what it owns.
    """

    target: str
    tip: str
    targets: dict[str, Merged]
    pairs: dict[tuple[str, str], Merged]
    asked: Merged
    reached: list[str]
    order: list[str] | None
    all_tried: bool
    shared: dict[str, list[str]]
    outside: dict[str, list[str]]
    uncommitted: dict[str, list[str]]


def forecast(repo: git.Repository, found: list[Candidate], target: str, tip: str) -> Forecast:
    """Foresee each candidate, every pair and the order in which they are given."""
    dirty = uncommitted(repo, found)
    bases = {c.head: c.base for c in found if c.head}
    changes = read_changes(repo.common_dir, bases)
    with merging.scratch(repo.common_dir) as env:
        present = [c for c in found if c.head]
        alone = merge_apart(repo.common_dir, [(tip, c.head) for c in present], env)
        targets = dict(zip([c.name for c in present], alone, strict=True))
        pairs = foresee_pairs(repo.common_dir, present, changes, env)
        apart = all(p.outcome == "clean" for p in pairs.values()) and all(
            is_apart(changes[a.head], changes[b.head]) and a.base == b.base == tip
            for number, a in enumerate(present)
            for b in present[:number]
        )
        if apart:
            # What changes different files of one commit merges in every order.
            asked, reached = Merged("clean"), [c.name for c in present]
            order, all_tried = (reached, True) if present else (None, True)
        else:
            tries = Orders(repo.common_dir, tip, {c.name: c.head for c in present}, env)
            names = [c.name for c in present]
            asked, reached = tries.follow(names)
            order, all_tried = (names, True) if asked.outcome == "clean" else tries.search(names)
    for candidate in found:
        if not candidate.head:
            targets[candidate.name] = Merged("unknown", why="its branch is not there")
    names = {name for name, paths in dirty.items() if paths}
    targets = {name: in_doubt(merged, {name} & names) for name, merged in targets.items()}
    pairs = {pair: in_doubt(merged, set(pair) & names) for pair, merged in pairs.items()}
    return Forecast(
        target=target,
        tip=tip,
        targets={c.name: targets[c.name] for c in found},
        pairs=pairs,
        asked=in_doubt(asked, names),
        reached=reached,
        order=order,
        all_tried=all_tried,
        shared=shared_files(present, changes),
        outside=out_of_scope(repo.common_dir, present),
        uncommitted={name: paths for name, paths in dirty.items() if paths},
    )


def in_doubt(merged: Merged, names: set[str]) -> Merged:
    """A clean merge is not foreseen as long as there is work that is not committed."""
    if merged.outcome != "clean" or not names:
        return merged
    return Merged("unknown", why=f"not everything is committed: {', '.join(sorted(names))}")


def uncommitted(repo: git.Repository, found: list[Candidate]) -> dict[str, list[str]]:
    """By name the files that are not committed; two trees are read at a time."""
    from concurrent.futures import ThreadPoolExecutor

    trees = [c for c in found if c.worktree]
    if not trees:
        return {}
    with ThreadPoolExecutor(READERS) as pool:
        rows = pool.map(lambda candidate: unsaved(repo, candidate), trees)
        return dict(zip([c.name for c in trees], rows, strict=True))


def unsaved(repo: git.Repository, candidate: Candidate) -> list[str]:
    """The files of one tree that are not committed; what keeps it from being read, otherwise."""
    try:
        status = offers.leftovers(repo, candidate)
    except SkillError as error:
        return [error.message]
    groups = (status.staged, status.modified, status.conflicted, status.untracked)
    return sorted({path for group in groups for path in group} | set(status.submodules))


# --- Pairs ----------------------------------------------------------------------------------


def read_changes(repo_dir: str, bases: dict[str, str]) -> dict[str, Changes]:
    """By head what it changes from its base, all in one process."""
    if not bases:
        return {}
    words = "".join(f"{head} {base}\n" for head, base in bases.items())
    done = git.require_git(
        repo_dir, "diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff",
        "--always", stdin=words.encode(),
    )  # fmt: skip
    paths: dict[str, set[str]] = {head: set() for head in bases}
    letters: dict[str, set[str]] = {head: set() for head in bases}
    head = ""
    fields = iter(done.text.split("\0"))
    for field in fields:
        if field.startswith(":"):
            letters[head].add(field.rsplit(" ", 1)[1][:1])
            paths[head].add(next(fields))
        elif field:
            head = field.strip("\n")
    return {head: Changes(frozenset(paths[head]), {"A", "D"} <= letters[head]) for head in bases}


def is_apart(one: Changes, other: Changes) -> bool:
    """Whether two changes of one commit cannot meet: other files, and nothing that was moved."""
    if one.renames or other.renames or one.paths & other.paths:
        return False
    folders = {folder for path in one.paths for folder in parents(path)}
    return not (folders & other.paths) and not any(
        folder in one.paths for path in other.paths for folder in parents(path)
    )


def parents(path: str) -> list[str]:
    """All folders that a path lies in."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def foresee_pairs(
    repo_dir: str, found: list[Candidate], changes: dict[str, Changes], env: dict[str, str]
) -> dict[tuple[str, str], Merged]:
    """What each two candidates come to. Those that cannot meet need no merge."""
    pairs = [(a, b) for number, b in enumerate(found) for a in found[:number]]
    open_pairs = [
        (a, b)
        for a, b in pairs
        if a.base != b.base or not is_apart(changes[a.head], changes[b.head])
    ]
    merged = merge_apart(repo_dir, [(a.head, b.head) for a, b in open_pairs], env)
    known = dict(zip(open_pairs, merged, strict=True))
    return {(a.name, b.name): known.get((a, b), Merged("clean")) for a, b in pairs}


def merge_apart(repo_dir: str, pairs: list[tuple[str, str]], env: dict[str, str]) -> list[Merged]:
    """`merge_all`, by two processes where there are many."""
    if len(pairs) <= SHARED:
        return merging.merge_all(repo_dir, pairs, env)
    from concurrent.futures import ThreadPoolExecutor

    half = len(pairs) // 2
    with ThreadPoolExecutor(READERS) as pool:
        parts = pool.map(
            lambda part: merging.merge_all(repo_dir, part, env), [pairs[:half], pairs[half:]]
        )
        return [merged for part in parts for merged in part]


# --- Orders ---------------------------------------------------------------------------------


class Orders:
    """Merges one after the other, each order once, in a scratch object folder."""

    def __init__(self, repo_dir: str, tip: str, heads: dict[str, str], env: dict[str, str]) -> None:
        self.repo_dir = repo_dir
        self.heads = heads
        self.env = env
        self.results: dict[tuple[str, ...], tuple[Merged, str]] = {(): (Merged("clean"), tip)}

    def extend(self, orders: list[tuple[str, ...]]) -> None:
        """Merge the last name of each order onto the rest, which merged cleanly before."""
        orders = [order for order in orders if order not in self.results]
        pairs = [(self.results[order[:-1]][1], self.heads[order[-1]]) for order in orders]
        merges = merge_apart(self.repo_dir, pairs, self.env)
        for order, pair, merged in zip(orders, pairs, merges, strict=True):
            commit = ""
            if merged.outcome == "clean":
                commit = self.commit(merged.tree, list(pair))
            self.results[order] = (merged, commit)

    def commit(self, tree: str, parents_: list[str]) -> str:
        """A merge commit in the scratch folder, written without a process."""
        return write_loose_commit(self.env["GIT_OBJECT_DIRECTORY"], tree, parents_)

    def follow(self, names: list[str]) -> tuple[Merged, list[str]]:
        """What an order comes to, and the names that merged before it stopped."""
        for count in range(1, len(names) + 1):
            order = tuple(names[:count])
            self.extend([order])
            merged = self.results[order][0]
            if merged.outcome != "clean":
                return merged, names[: count - 1]
        return Merged("clean"), names

    def search(self, names: list[str]) -> tuple[list[str] | None, bool]:
        """An order that is clean, and whether all were tried.

        Up to EVERY_ORDER names all orders are tried, those of one length together. For more, the
        next in line that merges is taken each time.
        """
        if len(names) > EVERY_ORDER:
            return self.search_greedily(names), False
        level: list[tuple[str, ...]] = [()]
        for _ in names:
            level = [(*order, name) for order in level for name in names if name not in order]
            self.extend(level)
            level = [order for order in level if self.results[order][0].outcome == "clean"]
        return (list(level[0]) if level else None), True

    def search_greedily(self, names: list[str]) -> list[str] | None:
        """An order made step by step, or None when it comes to a halt."""
        order: tuple[str, ...] = ()
        while len(order) < len(names):
            left = [name for name in names if name not in order]
            self.extend([(*order, name) for name in left])
            clean = [n for n in left if self.results[(*order, n)][0].outcome == "clean"]
            if not clean:
                return None
            order = (*order, clean[0])
        return list(order)


def write_loose_commit(folder: str, tree: str, parents_: list[str]) -> str:
    """Write a commit object that says nothing into an object folder; returns its id."""
    import hashlib
    import zlib

    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents_)]
    lines += ["author - <-> 1 +0000", "committer - <-> 1 +0000", "", "-", ""]
    body = "\n".join(lines).encode()
    content = b"commit %d\0" % len(body) + body
    # git(1): SHA-256 repositories have ids of 64 digits.
    kind = hashlib.sha256 if len(tree) == 64 else hashlib.sha1
    oid = kind(content).hexdigest()
    place = os.path.join(folder, oid[:2])
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, oid[2:]), "wb") as file:
        file.write(zlib.compress(content, 1))
    return oid


# --- Files ----------------------------------------------------------------------------------


def shared_files(found: list[Candidate], changes: dict[str, Changes]) -> dict[str, list[str]]:
    """The files that several candidates change, with their names."""
    by_path: dict[str, list[str]] = {}
    for candidate in found:
        for path in changes[candidate.head].paths:
            by_path.setdefault(path, []).append(candidate.name)
    return {path: names for path, names in sorted(by_path.items()) if len(names) > 1}


def out_of_scope(repo_dir: str, found: list[Candidate]) -> dict[str, list[str]]:
    """By name the files that a candidate changes outside of what it owns, two at a time."""
    owners = [c for c in found if c.owns]
    outside: dict[str, list[str]] = {}
    for first in range(0, len(owners), READERS):
        group = owners[first : first + READERS]
        commands = [scope_command(c) for c in group]
        started = [start(argv, cwd=repo_dir, env=git.git_environment()) for argv in commands]
        for candidate, argv, process in zip(group, commands, started, strict=True):
            done = finish(process, argv)
            if done.code != 0:
                raise SkillError("git-failed", f"git diff-tree failed: {git.reason(done)}")
            paths = [path for path in done.text.split("\0") if path]
            if paths:
                outside[candidate.name] = sorted(paths)
    return outside


def scope_command(candidate: Candidate) -> list[str]:
    """The git call that lists what a candidate changes outside of what it owns.

    Git itself matches the patterns, so that they mean here what they mean in a run.
    """
    return [
        "git", *git.SAFE_CONFIG, "diff-tree", "-r", "-z", "--name-only", "--no-renames",
        candidate.base, candidate.head, "--", ":(top)",
        *(f":(top,exclude,glob){pattern}" for pattern in candidate.owns),
    ]  # fmt: skip


def to_json(seen: Forecast) -> dict[str, Any]:
    """The `data` of a forecast."""
    return {
        "target": seen.target,
        "tip": seen.tip,
        "targets": [{"name": name, **merged.to_json()} for name, merged in seen.targets.items()],
        "pairs": [{"a": a, "b": b, **merged.to_json()} for (a, b), merged in seen.pairs.items()],
        "order": seen.order,
        "asked": {**seen.asked.to_json(), "merged_before": seen.reached},
        "every_order_tried": seen.all_tried,
        "shared_files": [{"path": path, "names": names} for path, names in seen.shared.items()],
        "out_of_scope": [{"name": n, "paths": paths} for n, paths in seen.outside.items()],
        "uncommitted": [{"name": n, "paths": paths} for n, paths in seen.uncommitted.items()],
    }
