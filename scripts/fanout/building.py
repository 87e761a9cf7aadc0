"""Build the result of merging candidates, or foresee it, without a working tree."""

from __future__ import annotations

import os
from functools import partial

from fanout import approvals, changelog, git, integrations, records, worktrees
from fanout import candidates as offers
from fanout.approvals import Approval
from fanout.book import reconcile
from fanout.candidates import Candidate
from fanout.changelog import Entry
from fanout.conventions import BOOK_NAME, Convention, Tree, convention_of, is_book
from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple
from fanout.integrations import Commit, Merged, Signing
from fanout.output import plain_text
from fanout.process import side_by_side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How the names of the indexes begin that are made for one commit.
INDEX = "index-"
STRATEGIES = ("merge", "squash", "rebase", "cherry-pick")


class Part(NamedTuple):
    """One candidate to take in, with its approval and the changelog entries to fold.

    `late` says that the entries were written after the approval.
    """

    candidate: Candidate
    approval: Approval
    entries: list[Entry]
    late: bool = False


class Recipe(NamedTuple):
    """How to build: the strategy, the user's message (or nothing), and whether to sign.

    `convention` is how the integration branch keeps its changelog; `fragments` are those that its
    own tool has made, path and content.
    """

    strategy: str
    message: bytes
    signing: Signing
    convention: Convention = Convention("book", BOOK_NAME, "", {})
    fragments: dict[Entry, tuple[str, bytes]] | None = None


class Built(NamedTuple):
    """What was built: the last commit, and by name the commits made for each part.

    `stopped` is the part that could not be merged, with `conflict` saying why; then `commit` is
    what was built before it. `added` and `duplicates` are changelog entries.
    """

    commit: str
    commits: dict[str, list[str]]
    stopped: Part | None = None
    conflict: Merged | None = None
    added: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    book_commit: str = ""
    book_files: tuple[str, ...] = ()


def build(
    common_dir: str, tip: str, parts: list[Part], recipe: Recipe, env: dict[str, str] | None = None
) -> Built:
    """Merge the parts onto a commit in their order, then fold their changelog entries.

    With the environment of `merging.scratch` nothing is left in the repository. Raises SkillError
    `signing-failed`, `git-failed`.
    """
    current = tip
    made: dict[str, list[str]] = {}
    for part in parts:
        commits, conflict = take_in(common_dir, current, part, recipe, env or {})
        if conflict is not None:
            return Built(current, made, part, conflict)
        made[part.candidate.name] = commits
        current = commits[-1] if commits else current
    return with_changelog(common_dir, Built(current, made), parts, recipe, env or {})


def take_in(
    common_dir: str, onto: str, part: Part, recipe: Recipe, env: dict[str, str]
) -> tuple[list[str], Merged | None]:
    """Take one part in; the commits made, or what keeps it from being merged."""
    head = part.candidate.head
    if recipe.strategy in ("merge", "squash"):
        merged = integrations.merge(common_dir, onto, head, env)
        merged = with_book_of(common_dir, merged, onto, head, recipe.convention, env)
        if merged.outcome != "clean":
            return [], merged
        parents = [onto, head] if recipe.strategy == "merge" else [onto]
        message = message_of(common_dir, part, recipe)
        return [integrations.write_commit(common_dir, merged.tree, parents, message, recipe.signing,
                                     env=env)], None  # fmt: skip
    made: list[str] = []
    current = onto
    for commit in integrations.commits_between(common_dir, part.candidate.base, head):
        if not commit.parents:
            return [], Merged("unknown", why=f"{commit.id[:12]} starts a history of its own")
        merged = integrations.apply_change(common_dir, current, commit.parents[0], commit.id, env)
        sides = (commit.parents[0], current, commit.id)
        merged = with_book(common_dir, merged, sides, recipe.convention, env)
        if merged.outcome != "clean":
            return [], merged
        if merged.tree == git.tree_of(common_dir, current, env):
            # The integration branch has this change already.
            continue
        message = picked_message(commit, recipe.strategy)
        current = integrations.write_commit(
            common_dir, merged.tree, [current], message, recipe.signing, commit.author, env=env
        )
        made.append(current)
    return made, None


# --- Messages -------------------------------------------------------------------------------


def message_of(common_dir: str, part: Part, recipe: Recipe) -> bytes:
    """The message of a merge or squash commit: the user's or ours, then what it stands on."""
    candidate, approval = part.candidate, part.approval
    if recipe.message.strip():
        text = recipe.message.rstrip(b"\n")
    else:
        commits = integrations.commits_between(common_dir, candidate.base, candidate.head)
        verb = "Squash" if recipe.strategy == "squash" else "Merge"
        subjects = [subject_of(commit) for commit in commits]
        title = f"{verb} {candidate.name}".encode()
        if len(subjects) == 1:
            text = title + b": " + subjects[0]
        else:
            text = title + b"\n\n" + b"\n".join(b"* " + subject for subject in subjects)
    trailers = [
        f"{'Task' if candidate.kind == 'task' else 'Worker'}: {candidate.name}",
        f"Branch: {candidate.branch}",
        f"Base: {candidate.base}",
        f"Head: {candidate.head}",
        f"Approved-by: {' '.join(approval.by.split())} at {approval.at}",
    ]
    return text + b"\n\n" + "\n".join(trailers).encode("utf-8", "surrogateescape") + b"\n"


def subject_of(commit: Commit) -> bytes:
    """The first line of a commit's message, without what would steer a terminal."""
    line = commit.message.split(b"\n", 1)[0].decode("utf-8", "surrogateescape")
    return plain_text(line).encode("utf-8", "surrogateescape")


def picked_message(commit: Commit, strategy: str) -> bytes:
    """The message of a commit that is applied again."""
    text = commit.message.rstrip(b"\n") + b"\n"
    if strategy == "cherry-pick":
        text += f"\n(cherry picked from commit {commit.id})\n".encode()
    return text


# --- Changelog ------------------------------------------------------------------------------


def with_book_of(
    common_dir: str,
    merged: Merged,
    ours: str,
    theirs: str,
    convention: Convention,
    env: dict[str, str],
) -> Merged:
    """`with_book` for two commits whose base git finds; where there are several, none is right."""
    bases = git.git(common_dir, "merge-base", "--all", ours, theirs, env=env).text.split()
    if len(bases) != 1:
        return merged
    return with_book(common_dir, merged, (bases[0], ours, theirs), convention, env)


def with_book(
    common_dir: str,
    merged: Merged,
    sides: tuple[str, str, str],
    convention: Convention,
    env: dict[str, str],
) -> Merged:
    """A merge in which what both sides wrote into the changelog file stands one by one.

    `sides` are the base, our commit and theirs. Anything but new entries is left to the merge line
    by line; so is a file that does not conflict alone.
    """
    path = convention.path
    alone = merged.outcome == "clean" or (merged.outcome == "conflict" and merged.paths == (path,))
    if convention.fragments or not alone:
        return merged
    names = [f"{side}:{path}" for side in sides]
    found = git.read_objects(common_dir, names, env)
    base, ours, theirs = (found[name] for name in names)
    if base is None or ours is None or theirs is None or base in (ours, theirs):
        return merged
    mode, book = read_file(common_dir, sides[1], path, env)
    made = reconcile(base, ours, theirs, path) if book is not None else None
    if made is None:
        return merged
    return Merged("clean", tree_with(common_dir, merged.tree, {path: made}, mode, env))


def with_changelog(
    common_dir: str, built: Built, parts: list[Part], recipe: Recipe, env: dict[str, str]
) -> Built:
    """Put the entries of all parts where the repository keeps them, in one commit of its own.

    Raises SkillError `changelog-unusable` (exit 3) where something else stands in their place.
    """
    entries = [entry for part in parts for entry in part.entries]
    if not entries:
        return built
    convention = recipe.convention
    mode, book = "100644", None
    if not convention.fragments:
        mode, book = read_file(common_dir, built.commit, convention.path, env)
    changed = changed_files(common_dir, parts)
    made = changelog.written(convention, entries, book, changed, recipe.fragments)
    files = made.files
    if convention.fragments:
        files = new_files(common_dir, built.commit, convention, files, env)
    found = built._replace(added=tuple(made.added), duplicates=tuple(made.duplicates))
    if not files:
        return found
    tree = tree_with(common_dir, built.commit, files, mode, env)
    names = ", ".join(part.candidate.name for part in parts if part.entries)
    message = f"Changelog: entries of {names}\n".encode()
    commit = integrations.write_commit(
        common_dir, tree, [built.commit], message, recipe.signing, env=env
    )
    return found._replace(commit=commit, book_commit=commit, book_files=tuple(files))


def changed_files(common_dir: str, parts: list[Part]) -> dict[str, tuple[str, ...]]:
    """The files that each part's worker changed, by its name."""
    return {
        part.candidate.name: tuple(changelog.changed_files(common_dir, part.candidate))
        for part in parts
    }


def with_tool(
    repo: git.Repository,
    tip: str,
    parts: list[Part],
    recipe: Recipe,
    tool: str,
    *,
    place: str,
    mark: str,
) -> tuple[Recipe, list[str]]:
    """A recipe with the fragments that the repository's own tool makes; and what went wrong.

    `place` is a folder for its work, which is gone afterwards but for the logs of failures. An
    entry of which the tool makes nothing is written without it.
    """
    convention = recipe.convention
    entries = [entry for part in parts for entry in part.entries]
    made: dict[Entry, tuple[str, bytes]] = {}
    notes: list[str] = []
    tree = Tree(repo.common_dir, tip, None)
    changed = changed_files(repo.common_dir, parts)
    # What the branches bring stands in the same folder.
    taken = {path for paths in changed.values() for path in paths}
    for number, entry in enumerate(entries):
        path, content = changelog.fragment_for(convention, entry, changed[entry.name])
        inside = f"{place}/{number}"
        try:
            chosen = changelog.made_by_tool(
                tool, tree, convention, (path, content), place=inside, mark=mark
            )
            worktrees.remove_file(f"{inside}.log")
        except (SkillError, OSError) as error:
            notes.append(f"the fragment of {entry.name} was written without its tool: {error}")
            continue
        finally:
            worktrees.remove_tree(inside)
        # A tool that names by the minute names two of them alike.
        made[entry] = (path if chosen in taken else chosen, content)
        taken.add(made[entry][0])
    worktrees.remove_empty([place])
    return recipe._replace(fragments=made), notes


def new_files(
    repo_dir: str,
    commit: str,
    convention: Convention,
    files: dict[str, bytes],
    env: dict[str, str],
) -> dict[str, bytes]:
    """The fragments that a commit does not have yet, under whatever name.

    Raises SkillError `changelog-unusable`.
    """
    tree = Tree(repo_dir, commit, env)
    names = tree.names(convention.path) or {}
    there = tree.files(convention.path)
    for path in files:
        if os.path.basename(path) in names and there.get(path) != files[path]:
            raise unusable(path, "something else stands there")
    return {path: files[path] for path in files if files[path] not in there.values()}


def read_file(
    repo_dir: str, commit: str, path: str, env: dict[str, str]
) -> tuple[str, bytes | None]:
    """The mode and content of a file in a commit; content None when it has none.

    Raises SkillError `changelog-unusable` (exit 3) for a link or a folder.
    """
    done = git.require_git(repo_dir, "ls-tree", "-z", "--full-tree", commit, "--", path, env=env)
    if not done.stdout:
        return "100644", None
    mode, kind, blob = done.text.partition("\t")[0].split(" ")
    if kind != "blob" or mode == "120000":
        raise unusable(path, "it is no file")
    return mode, git.require_git(repo_dir, "cat-file", "blob", blob, env=env).stdout


def unusable(path: str, why: str) -> SkillError:
    """A changelog entry cannot be put where it belongs."""
    return refused(
        "changelog-unusable", f"{path!r} cannot take a changelog entry: {why}", "look at that file"
    )


def tree_with(
    repo_dir: str, tree: str, files: dict[str, bytes], mode: str, env: dict[str, str]
) -> str:
    """A tree with some files in it added or replaced; the user's index is not touched."""
    index = os.path.join(records.home(repo_dir), f"{INDEX}{records.new_id()}")
    records.make_dir(records.home(repo_dir))
    inside = {**env, "GIT_INDEX_FILE": index}
    lines: list[bytes] = []
    for path, content in files.items():
        words = ["hash-object", "-w", "--stdin", "--no-filters"]
        blob = git.require_git(repo_dir, *words, stdin=content, env=env).text.strip()
        lines.append(os.fsencode(f"{mode} {blob}\t{path}\0"))
    try:
        git.require_git(repo_dir, "read-tree", tree, env=inside)
        words = ["update-index", "--add", "-z", "--index-info"]
        git.require_git(repo_dir, *words, stdin=b"".join(lines), env=inside)
        return git.require_git(repo_dir, "write-tree", env=inside).text.strip()
    finally:
        worktrees.remove_file(index)


def rows(parts: list[Part], built: Built) -> list[dict[str, Any]]:
    """What was taken in, as records and answers show it."""
    return [
        {
            "name": part.candidate.name,
            "kind": part.candidate.kind,
            "branch": part.candidate.branch,
            "base": part.candidate.base,
            "head": part.candidate.head,
            "commits": built.commits.get(part.candidate.name, []),
            "approved_by": part.approval.by,
        }
        for part in parts
    ]


# --- Forecast: without touching tree, index or object store ---------------------------------


# So many candidates are tried in every order; for more, one is made step by step.
EVERY_ORDER = 6


class Changes(NamedTuple):
    """The paths that a commit changes from its base. `renames` says that it may have moved one."""

    paths: frozenset[str]
    renames: bool


class Meetings(NamedTuple):
    """What merges come to.

    `targets` is what each candidate alone comes to on the integration branch, `pairs` what each
    two come to on one another, `asked` what the order asked for comes to, with the names that
    were merged before it stopped. `order` is an order that is clean, or None; `all_tried` says
    whether every order was tried. `changes` are the files that were read for it, by head and base.
    """

    targets: dict[str, Merged]
    pairs: dict[tuple[str, str], Merged]
    asked: Merged
    reached: list[str]
    order: list[str] | None
    all_tried: bool
    changes: dict[Side, Changes]


class Forecast(NamedTuple):
    """What was foreseen.

    `merges` are in doubt where not all work is committed. `shared` are the files that several
    candidates change, `outside` those that a candidate changes outside of what it owns. What is
    `empty` has no commit.
    """

    target: str
    tip: str
    merges: Meetings
    shared: dict[str, list[str]]
    outside: dict[str, list[str]]
    uncommitted: dict[str, list[str]]
    empty: list[str]


def meet(repo: git.Repository, present: list[Candidate], tip: str) -> Meetings:
    """Merge each candidate with the integration branch, every pair, and all in their order."""
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
        with integrations.scratch(repo.common_dir) as env:
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
    return Meetings(targets, two_by_two, chain, reached, order, all_tried, changes)


def forecast(repo: git.Repository, found: list[Candidate], target: str, tip: str) -> Forecast:
    """Foresee each candidate, every pair and the order in which they are given."""
    dirty = uncommitted(repo, found)
    present = [c for c in found if c.head]
    seen = meet(repo, present, tip)
    gone = Merged("unknown", why="its branch is not there")
    unsure = {name for name, paths in dirty.items() if paths}
    asked = in_doubt(seen.asked, unsure)
    absent = [c.name for c in found if not c.head]
    if asked.outcome == "clean" and absent:
        asked = Merged("unknown", why=f"the branch is not there: {', '.join(absent)}")
    merges = seen._replace(
        targets={
            c.name: in_doubt(seen.targets[c.name] if c.head else gone, {c.name} & unsure)
            for c in found
        },
        pairs={pair: in_doubt(one, set(pair) & unsure) for pair, one in seen.pairs.items()},
        asked=asked,
        order=None if unsure or absent else seen.order or None,
    )
    return Forecast(
        target=target,
        tip=tip,
        merges=merges,
        shared=shared_files(present, seen.changes),
        outside=out_of_scope(repo, present),
        uncommitted={name: paths for name, paths in dirty.items() if paths},
        empty=[c.name for c in present if c.head == c.base],
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
    merges = integrations.merge_all(repo_dir, pairs, env)
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
    met = seen.merges
    return {
        "target": seen.target,
        "tip": seen.tip,
        "targets": [{"name": name, **merged.to_json()} for name, merged in met.targets.items()],
        "pairs": [{"a": a, "b": b, **merged.to_json()} for (a, b), merged in met.pairs.items()],
        "order": met.order,
        "asked": {**met.asked.to_json(), "merged_before": met.reached},
        "every_order_tried": met.all_tried,
        "shared_files": [{"path": path, "names": names} for path, names in seen.shared.items()],
        "out_of_scope": [{"name": n, "paths": paths} for n, paths in seen.outside.items()],
        "uncommitted": [{"name": n, "paths": paths} for n, paths in seen.uncommitted.items()],
        "without_commits": seen.empty,
    }
