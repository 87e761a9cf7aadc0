"""Foresee what merging candidates would come to, without touching tree, index or object store."""

from __future__ import annotations

import os
from functools import partial

from fanout import approvals, git, merging
from fanout import candidates as offers
from fanout.building import with_book_of
from fanout.candidates import Candidate
from fanout.conventions import convention_of, is_book
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.merging import Merged
from fanout.process import side_by_side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# So many candidates are tried in every order; for more, one is made step by step.
EVERY_ORDER = 6


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
    present = [c for c in found if c.head]
    names = [c.name for c in present]
    # The integration branch has changes of its own since each base.
    wanted = {(head, c.base) for c in present for head in (c.head, tip)}
    changes = read_changes(repo.common_dir, sorted(wanted))
    alone = [(Side(tip, c.base), Side(c.head, c.base)) for c in present]
    pairs = [(a, b) for number, b in enumerate(present) for a in present[:number]]
    each = [(Side(a.head, a.base), Side(b.head, b.base)) for a, b in pairs]
    own = own_commits(repo.common_dir, list(changes))
    asked = [two for two in (*alone, *each) if may_meet(*two, changes, own)]
    seen: dict[tuple[Side, Side], Merged] = {}
    # What changes other files of one commit merges in every order.
    chain, reached, order, all_tried = Merged("clean"), names, names, True
    if asked:
        with merging.scratch(repo.common_dir) as env:
            orders = Orders(repo.common_dir, tip, {c.name: c.head for c in present}, env)
            heads = [(one.head, other.head) for one, other in asked]
            merges, (chain, reached) = side_by_side(
                [
                    partial(merge_pairs, repo.common_dir, tip, heads, env),
                    partial(orders.follow, names),
                ]
            )
            seen = dict(zip(asked, merges, strict=True))
            if chain.outcome != "clean":
                order, all_tried = orders.search(names)
    targets = {
        c.name: seen.get(two, Merged("clean")) for c, two in zip(present, alone, strict=True)
    }
    two_by_two = {
        (a.name, b.name): seen.get(two, Merged("clean"))
        for (a, b), two in zip(pairs, each, strict=True)
    }
    for candidate in found:
        if not candidate.head:
            targets[candidate.name] = Merged("unknown", why="its branch is not there")
    unsure = {name for name, paths in dirty.items() if paths}
    return Forecast(
        target=target,
        tip=tip,
        targets={c.name: in_doubt(targets[c.name], {c.name} & unsure) for c in found},
        pairs={pair: in_doubt(merged, set(pair) & unsure) for pair, merged in two_by_two.items()},
        asked=in_doubt(chain, unsure),
        reached=reached,
        order=None if unsure else order or None,
        all_tried=all_tried,
        shared=shared_files(present, changes),
        outside=out_of_scope(repo, present),
        uncommitted={name: paths for name, paths in dirty.items() if paths},
    )


def in_doubt(merged: Merged, names: set[str]) -> Merged:
    """A clean merge is not foreseen as long as there is work that is not committed."""
    if merged.outcome != "clean" or not names:
        return merged
    return Merged("unknown", why=f"not everything is committed: {', '.join(sorted(names))}")


def uncommitted(repo: git.Repository, found: list[Candidate]) -> dict[str, list[str]]:
    """By name the files that are not committed; two trees are read at a time."""
    trees = [c for c in found if c.worktree]
    rows = side_by_side([partial(unsaved, repo, candidate) for candidate in trees])
    return dict(zip([c.name for c in trees], rows, strict=True))


def unsaved(repo: git.Repository, candidate: Candidate) -> list[str]:
    """The files of one tree that are not committed; what keeps it from being read, otherwise."""
    try:
        status = offers.leftovers(repo, candidate)
    except SkillError as error:
        return [error.message]
    return approvals.dirty_files(candidate, status)


# --- Pairs ----------------------------------------------------------------------------------


class Side(NamedTuple):
    """One side of a merge: a commit, and the commit that its changes are counted from."""

    head: str
    base: str


def may_meet(
    one: Side, other: Side, changes: dict[Side, Changes], own: dict[Side, set[str] | None]
) -> bool:
    """Whether a merge of two sides needs git to decide it; otherwise it is clean."""
    return not start_together(one, other, own) or not is_apart(changes[one], changes[other])


def start_together(one: Side, other: Side, own: dict[Side, set[str] | None]) -> bool:
    """Whether the base of two sides is the newest commit that they have in common."""
    mine, theirs = own[one], own[other]
    if one.base != other.base or mine is None or theirs is None:
        return False
    return mine.isdisjoint(theirs)


def own_commits(repo_dir: str, sides: list[Side]) -> dict[Side, set[str] | None]:
    """The commits that each side has beyond its base; None for one that is not built on it."""
    bases = sorted({side.base for side in sides})
    known = bases[:1]
    if len(bases) > 1:
        known = git.git(repo_dir, "merge-base", "--octopus", *bases).text.split()
    words = sorted({commit for side in sides for commit in side}) + [f"^{c}" for c in known]
    asked = "".join(f"{word}\n" for word in words).encode()
    done = git.require_git(repo_dir, "rev-list", "--parents", "--stdin", stdin=asked)
    parents = {line.split()[0]: line.split()[1:] for line in done.text.splitlines()}
    reached = {commit: closure(commit, parents) for side in sides for commit in side}
    return {
        side: reached[side.head] - reached[side.base] if side.base in reached[side.head] else None
        for side in sides
    }


def closure(commit: str, parents: dict[str, list[str]]) -> set[str]:
    """A commit and its ancestors, as far as they are listed, with the next ones after those."""
    found: set[str] = set()
    todo = [commit]
    while todo:
        current = todo.pop()
        if current not in found:
            found.add(current)
            todo += parents.get(current, [])
    return found


def merge_pairs(
    repo_dir: str, tip: str, pairs: list[tuple[str, str]], env: dict[str, str]
) -> list[Merged]:
    """Merge each pair as `merge` would: entries of both in the changelog file are no conflict."""
    merges = merging.merge_all(repo_dir, pairs, env)
    if not any(
        merged.outcome == "conflict" and len(merged.paths) == 1 and is_book(merged.paths[0])
        for merged in merges
    ):
        return merges
    convention = convention_of(repo_dir, tip)
    return [
        with_book_of(repo_dir, merged, *pair, convention, env)
        if merged.outcome == "conflict" and merged.paths == (convention.path,)
        else merged
        for merged, pair in zip(merges, pairs, strict=True)
    ]


def read_changes(repo_dir: str, sides: list[tuple[str, str]]) -> dict[Side, Changes]:
    """What each commit changes from its base, all in one process."""
    if not sides:
        return {}
    words = "".join(f"{head} {base}\n" for head, base in sides)
    done = git.require_git(
        repo_dir, "diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff",
        "--ignore-submodules=none", "--always", stdin=words.encode(),
    )  # fmt: skip
    rows: list[tuple[set[str], set[str]]] = []
    fields = iter(done.text.split("\0"))
    for field in fields:
        if field.startswith(":"):
            rows[-1][0].add(next(fields))
            rows[-1][1].add(field.rsplit(" ", 1)[1][:1])
        elif field:
            rows.append((set(), set()))
    return {
        Side(*side): Changes(frozenset(paths), {"A", "D"} <= letters)
        for side, (paths, letters) in zip(sides, rows, strict=True)
    }


def is_apart(one: Changes, other: Changes) -> bool:
    """Whether two changes of one commit cannot meet: other files, and nothing that was moved."""
    if one.renames or other.renames or one.paths & other.paths:
        return False
    return not (folders_of(one.paths) & other.paths or folders_of(other.paths) & one.paths)


def folders_of(paths: frozenset[str]) -> set[str]:
    """All folders that some paths lie in."""
    parts = [path.split("/") for path in paths]
    return {"/".join(words[:depth]) for words in parts for depth in range(1, len(words))}


# --- Orders ---------------------------------------------------------------------------------


class Orders:
    """Merges one after the other, each order once, in a scratch object folder."""

    def __init__(self, repo_dir: str, tip: str, heads: dict[str, str], env: dict[str, str]) -> None:
        self.repo_dir = repo_dir
        self.tip = tip
        self.heads = heads
        self.env = env
        self.results: dict[tuple[str, ...], tuple[Merged, str]] = {(): (Merged("clean"), tip)}

    def extend(self, orders: list[tuple[str, ...]]) -> None:
        """Merge the last name of each order onto the rest, which merged cleanly before."""
        orders = [order for order in orders if order not in self.results]
        pairs = [(self.results[order[:-1]][1], self.heads[order[-1]]) for order in orders]
        merges = merge_pairs(self.repo_dir, self.tip, pairs, self.env)
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


def shared_files(found: list[Candidate], changes: dict[Side, Changes]) -> dict[str, list[str]]:
    """The files that several candidates change, with their names."""
    by_path: dict[str, list[str]] = {}
    for candidate in found:
        for path in changes[Side(candidate.head, candidate.base)].paths:
            by_path.setdefault(path, []).append(candidate.name)
    return {path: names for path, names in sorted(by_path.items()) if len(names) > 1}


def out_of_scope(repo: git.Repository, found: list[Candidate]) -> dict[str, list[str]]:
    """By name the files that a candidate changes outside of what it owns, two at a time."""
    owners = [c for c in found if c.owns]
    rows = side_by_side([partial(offers.outside_commits, repo, c, c.base) for c in owners])
    return {c.name: paths for c, paths in zip(owners, rows, strict=True) if paths}


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
