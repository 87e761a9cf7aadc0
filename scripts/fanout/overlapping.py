"""What live workers have changed so far: files that several did, and trees that conflict."""

from __future__ import annotations

import itertools
import os
import shutil

from fanout import git, integrations, partition, worktrees
from fanout import workers as life
from fanout.errors import SkillError
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=none")
# Two states of a tree that is being written to may differ between two questions about it.
TRIES = 3


class Changed(NamedTuple):
    """What one worker has changed: the kinds of change by path, and a commit of all of it.

    `commit` is empty where the tree could not be taken as it is, and `why` says why.
    """

    name: str
    base: str
    owns: list[str]
    paths: dict[str, list[str]]
    commit: str
    why: str


def look(repo: git.Repository, names: list[str]) -> tuple[dict[str, Any], list[SkillError]]:
    """The answer about live workers, and the records that cannot be read."""
    workers, errors = life.load_all(repo.common_dir, names)
    with integrations.scratch(repo.common_dir) as env:
        found = [changed(worker, env) for worker in workers]
        conflicts = conflicts_of(repo, [each for each in found if each.paths], env)
    owners = partition.Machine([each.owns for each in found])
    shared: list[dict[str, Any]] = []
    for path in sorted({path for each in found for path in each.paths}):
        who = [each for each in found if path in each.paths]
        if len(who) > 1:
            shared.append({
                "path": path,
                "workers": [{"name": each.name, "changes": each.paths[path]} for each in who],
                "owners": owners_of(owners, found, path),
            })  # fmt: skip
    strays = [
        {"path": path, "worker": each.name, "owners": owners_of(owners, found, path)}
        for each in found for path in sorted(each.paths)
        if each.owns and each.name not in owners_of(owners, found, path)
    ]  # fmt: skip
    data = {
        "workers": [
            {
                "name": each.name, "base": each.base, "owns": each.owns,
                "changes": {path: each.paths[path] for path in sorted(each.paths)},
                "unknown": each.why or None,
            }
            for each in found
        ],
        "shared": shared,
        "not_owned": strays,
        "conflicts": conflicts,
        "damaged": [error.to_json() for error in errors],
    }  # fmt: skip
    return data, errors


def owners_of(machine: partition.Machine, found: list[Changed], path: str) -> list[str]:
    """The names of the workers that own a path."""
    state = machine.walk(machine.start, path.encode("utf-8", "surrogateescape"))
    return [found[number].name for number in sorted(machine.owners(state))]


def changed(worker: life.Worker, env: dict[str, str]) -> Changed:
    """What a worker has changed against its base, committed or not.

    Its index stays as it is: git works on a copy, and writes objects where `env` says.
    """
    tree = worker.worktree
    here = worktrees.at(tree)
    owns = [partition.normal(text) for text in worker.owns]
    if not os.path.isdir(tree):
        return Changed(worker.name, worker.base, owns, {}, "", f"its worktree {tree} is gone")
    try:
        status = worktrees.read_status(tree)
        done = git.require_git(tree, *NAMES, worker.base, "HEAD", env=here)
    except SkillError as error:
        return Changed(worker.name, worker.base, owns, {}, "", error.message)
    paths: dict[str, list[str]] = {}
    groups = {
        "committed": [path for path in done.text.split("\0") if path],
        "staged": status.staged,
        "unstaged": [*status.modified, *status.conflicted],
        "untracked": status.untracked,
    }
    for kind, members in groups.items():
        for path in members:
            kinds = paths.setdefault(path, [])
            if kind not in kinds:
                kinds.append(kind)
    commit, why = "", ""
    try:
        commit = commit_of(worker, {**here, **env})
    except (SkillError, OSError) as error:
        why = f"its tree could not be read as it is: {error}"
    return Changed(worker.name, worker.base, owns, paths, commit, why)


def commit_of(worker: life.Worker, env: dict[str, str]) -> str:
    """A commit of all that is in a worker's tree, uncommitted files included."""
    tree = worker.worktree
    head = git.require_git(tree, "rev-parse", "HEAD^{commit}", env=env).text.strip()
    index = os.path.join(env["GIT_OBJECT_DIRECTORY"], f"index-{worker.name}")
    with_index = {**env, "GIT_INDEX_FILE": index}
    own = os.path.join(worker.admin_dir, "index")
    if os.path.exists(own):
        shutil.copyfile(own, index)
    last: SkillError | None = None
    for _ in range(TRIES):
        try:
            git.require_git(tree, "add", "--all", "--ignore-errors", env=with_index)
            made = git.require_git(tree, "write-tree", env=with_index).text.strip()
            return integrations.bare_commit(tree, made, head, env)
        except SkillError as error:
            # A file went while it was read.
            last = error
    assert last is not None
    raise last


def conflicts_of(
    repo: git.Repository, found: list[Changed], env: dict[str, str]
) -> list[dict[str, Any]]:
    """The pairs of workers whose trees conflict as they are now."""
    pairs = [
        (a, b) for a, b in itertools.combinations(found, 2) if a.commit and b.commit
    ]  # fmt: skip
    merges = integrations.merge_all(repo.common_dir, [(a.commit, b.commit) for a, b in pairs], env)
    return [
        {"a": a.name, "b": b.name, **merged.to_json()}
        for (a, b), merged in zip(pairs, merges, strict=True) if merged.outcome != "clean"
    ]  # fmt: skip


def lines(data: dict[str, Any]) -> list[str]:
    """What an answer says, a line for each fact."""
    rows: list[str] = []
    for row in data["shared"]:
        who = ", ".join(f"{w['name']} ({', '.join(w['changes'])})" for w in row["workers"])
        owners = ", ".join(row["owners"]) or "nobody"
        rows.append(f"{row['path']}: changed by {who}; owned by {owners}")
    for row in data["not_owned"]:
        owners = ", ".join(row["owners"]) or "nobody"
        rows.append(f"{row['path']}: changed by {row['worker']}, owned by {owners}")
    for row in data["conflicts"]:
        paths = ", ".join(row["paths"][:5]) or row.get("why", "")
        rows.append(f"{row['a']} and {row['b']}: {row['outcome']}: {paths}")
    rows += [f"{w['name']}: {w['unknown']}" for w in data["workers"] if w["unknown"]]
    return rows
