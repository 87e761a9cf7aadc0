"""Build the result of merging candidates, commit by commit, without a working tree."""

from __future__ import annotations

import os

from fanout import changelog, git, merging, records, worktrees
from fanout.approvals import Approval
from fanout.book import reconcile
from fanout.candidates import Candidate
from fanout.changelog import Entry
from fanout.conventions import BOOK_NAME, Convention, Tree
from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple
from fanout.merging import Commit, Merged, Signing
from fanout.output import plain_text

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
        merged = merging.merge(common_dir, onto, head, env)
        merged = with_book_of(common_dir, merged, onto, head, recipe.convention, env)
        if merged.outcome != "clean":
            return [], merged
        parents = [onto, head] if recipe.strategy == "merge" else [onto]
        message = message_of(common_dir, part, recipe)
        return [merging.write_commit(common_dir, merged.tree, parents, message, recipe.signing,
                                     env=env)], None  # fmt: skip
    made: list[str] = []
    current = onto
    for commit in merging.commits_between(common_dir, part.candidate.base, head):
        if not commit.parents:
            return [], Merged("unknown", why=f"{commit.id[:12]} starts a history of its own")
        merged = merging.apply_change(common_dir, current, commit.parents[0], commit.id, env)
        sides = (commit.parents[0], current, commit.id)
        merged = with_book(common_dir, merged, sides, recipe.convention, env)
        if merged.outcome != "clean":
            return [], merged
        if merged.tree == git.tree_of(common_dir, current, env):
            # The integration branch has this change already.
            continue
        message = picked_message(commit, recipe.strategy)
        current = merging.write_commit(
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
        commits = merging.commits_between(common_dir, candidate.base, candidate.head)
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
    commit = merging.write_commit(
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
