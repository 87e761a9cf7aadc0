"""Clean-up: what blocks it, what it takes along, and that it goes on after an interruption."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout import cleaning, proctree, records, worktrees
from fanout import workers as life
from fanout.cleaning import Choice, Result
from fanout.errors import Interrupted, SkillError
from fanout.git import Repository
from world import World

PLAIN = Choice(merged_only=False, branch_delete=False, discard=False, dry_run=False)
DELETE = PLAIN._replace(branch_delete=True)
DISCARD = PLAIN._replace(discard=True)
numbers = iter(range(10_000))


def see_no_processes(patch: pytest.MonkeyPatch) -> None:
    """Leave out the look at all processes of the machine, where they are not the point."""

    def none(*_: object) -> list[Any]:
        return []

    patch.setattr(proctree, "working_directories", none)
    patch.setattr(life, "processes_of", none)


def codes(result: Result) -> set[str]:
    return {reason.code for reason in result.reasons}


def clean_one(repo: Repository, name: str, choice: Choice = PLAIN) -> Result:
    (result,) = cleaning.clean(repo, [name], choice)
    return result


def phase(world: World, name: str) -> str:
    return json.loads((world.record(name) / "worker.json").read_text())["phase"]


def archived(world: World, name: str) -> Path:
    """The archived record of a worker."""
    folder = world.repo / ".git" / "agent-workers" / "archive"
    (found,) = folder.glob(f"{name}-*")
    return found


def set_phase(world: World, name: str, word: str) -> None:
    path = world.record(name) / "worker.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "phase": word}))


def refs_under(world: World, kind: str) -> list[str]:
    return world.git(
        "for-each-ref", "--format=%(refname)", f"refs/agent-workers/{kind}"
    ).splitlines()


# --- What blocks ------------------------------------------------------------------------------


def test_a_clean_worker_without_commits_goes_when_it_is_named(world: World) -> None:
    tree = world.idle("w1")
    ran = world.run("cleanup", "w1", "--json")
    assert ran.code == 0
    assert ran.data["removed"] == ["w1"]
    assert ran.data["refused"] == []
    assert not tree.exists()
    assert not tree.parent.exists(), "the parent was made for it"
    assert world.worktrees() == [str(world.repo)]
    assert world.branches() == {"main", "w1"}
    assert world.sessions() == []
    assert not world.record("w1").exists()
    assert (archived(world, "w1") / "worker.json").exists()


def write(path: str, text: str = "mine\n") -> Callable[[World, Path], None]:
    def act(world: World, tree: Path) -> None:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)

    return act


def staged(world: World, tree: Path) -> None:
    (tree / "new.txt").write_text("mine\n")
    world.git("add", "new.txt", cwd=tree)


def staged_only(world: World, tree: Path) -> None:
    """The index holds what the file no longer does."""
    (tree / "README.md").write_text("mine\n")
    world.git("add", "README.md", cwd=tree)
    (tree / "README.md").write_text("hello\n")


def deleted(world: World, tree: Path) -> None:
    (tree / "README.md").unlink()


def hidden(flag: str) -> Callable[[World, Path], None]:
    def act(world: World, tree: Path) -> None:
        world.git("update-index", flag, "README.md", cwd=tree)
        (tree / "README.md").write_text("mine\n")

    return act


def hidden_folder(world: World, tree: Path) -> None:
    world.git("update-index", "--skip-worktree", "README.md", cwd=tree)
    (tree / "README.md").unlink()
    (tree / "README.md").mkdir()
    (tree / "README.md" / "inner").write_text("mine\n")


def hidden_link(world: World, tree: Path) -> None:
    world.git("update-index", "--assume-unchanged", "README.md", cwd=tree)
    (tree / "README.md").unlink()
    (tree / "README.md").symlink_to("elsewhere")


def ignored(path: str) -> Callable[[World, Path], None]:
    def act(world: World, tree: Path) -> None:
        with (world.repo / ".git" / "info" / "exclude").open("a") as file:
            file.write(f"/{path.split('/')[0]}\n")
        write(path)(world, tree)

    return act


def conflict(world: World, tree: Path) -> None:
    world.git("checkout", "-q", "-b", "other", "w1", cwd=tree)
    (tree / "README.md").write_text("theirs\n")
    world.commit("theirs", tree)
    world.git("checkout", "-q", "w1", cwd=tree)
    (tree / "README.md").write_text("ours\n")
    world.git("commit", "-qam", "ours", cwd=tree)
    world.git("merge", "-q", "other", cwd=tree, check=False)


def detached(world: World, tree: Path) -> None:
    world.git("checkout", "-q", "--detach", cwd=tree)
    world.commit("loose", tree)


def switched(world: World, tree: Path) -> None:
    world.git("checkout", "-q", "-b", "elsewhere", cwd=tree)


def orphaned(world: World, tree: Path) -> None:
    world.git("checkout", "-q", "--orphan", "unborn", cwd=tree)


def bisecting(world: World, tree: Path) -> None:
    world.git("bisect", "start", cwd=tree)


def index_lock(world: World, tree: Path) -> None:
    (world.repo / ".git" / "worktrees" / "w1" / "index.lock").touch()


def head_lock(world: World, tree: Path) -> None:
    (world.repo / ".git" / "worktrees" / "w1" / "HEAD.lock").touch()


def locked(world: World, tree: Path) -> None:
    world.git("worktree", "lock", str(tree))


def commit(world: World, tree: Path) -> None:
    world.commit("mine", tree)


def nested(world: World, tree: Path) -> None:
    world.make_repo("repo.worktrees/w1/inner")


def nested_in_cache(world: World, tree: Path) -> None:
    ignored("node_modules/lib/index.js")(world, tree)
    world.git("init", "-q", cwd=tree / "node_modules" / "lib")


@pytest.mark.parametrize(
    ("act", "code", "paths"),
    [
        (write("README.md"), "modified", ["README.md"]),
        (deleted, "modified", ["README.md"]),
        (write("a/b/new.txt"), "untracked", ["a/b/new.txt"]),
        (staged, "staged", ["new.txt"]),
        (staged_only, "staged", ["README.md"]),
        (ignored(".env"), "ignored", [".env"]),
        (ignored("data/notes.db"), "ignored", ["data/"]),
        (hidden("--skip-worktree"), "hidden-changes", ["README.md"]),
        (hidden("--assume-unchanged"), "hidden-changes", ["README.md"]),
        (hidden_folder, "hidden-changes", ["README.md"]),
        (hidden_link, "hidden-changes", ["README.md"]),
        (conflict, "conflicted", ["README.md"]),
        (conflict, "operation-in-progress", ["MERGE_HEAD"]),
        (bisecting, "operation-in-progress", ["BISECT_LOG"]),
        (detached, "detached-commits", None),
        (switched, "branch-switched", ["refs/heads/elsewhere"]),
        (orphaned, "git-failed", None),
        (index_lock, "index-locked", None),
        (head_lock, "index-locked", None),
        (locked, "worktree-locked", None),
        (commit, "unmerged-commits", None),
        (nested, "untracked", ["inner/"]),
        (nested_in_cache, "ignored", ["node_modules/"]),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_whatever_is_at_stake_is_named_and_nothing_is_changed(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[World, Path], None],
    code: str,
    paths: list[str] | None,
) -> None:
    """W03, W09: nothing is forced, and ignored files count."""
    tree = world.quick("w1")
    act(world, tree)
    repo = world.adopt(monkeypatch)
    see_no_processes(monkeypatch)
    before = (world.snapshot(), world.bytes_of(tree), world.record("w1").stat().st_ino)
    result = clean_one(repo, "w1")
    assert result.removed is False
    assert code in codes(result), result
    if paths is not None:
        assert next(r.paths for r in result.reasons if r.code == code) == paths
    after = (world.snapshot(), world.bytes_of(tree), world.record("w1").stat().st_ino)
    assert after == before


def test_refusal_has_exit_code_3_and_the_others_go(world: World) -> None:
    """W03: each name is decided alone."""
    one, two = world.quick("w1"), world.quick("w2")
    (one / "precious.txt").write_text("mine\n")
    ran = world.run("cleanup", "w1", "w2", "--json")
    assert ran.code == 3
    assert ran.json["ok"] is False
    assert ran.data["removed"] == ["w2"]
    assert ran.data["refused"][0]["name"] == "w1"
    reasons = ran.data["refused"][0]["reasons"]
    assert [(r["code"], r["paths"]) for r in reasons] == [("untracked", ["precious.txt"])]
    assert (one / "precious.txt").read_text() == "mine\n"
    assert not two.exists()


def test_user_settings_hide_nothing(world: World) -> None:
    """W11: `status.showUntrackedFiles=no` and its like are overruled."""
    for key, value in {
        "status.showUntrackedFiles": "no",
        "status.relativePaths": "true",
        "status.branch": "false",
        "core.untrackedCache": "true",
        "core.quotePath": "true",
        "diff.ignoreSubmodules": "all",
    }.items():
        world.git("config", "--global", key, value)
    tree = world.quick("w1")
    (tree / "précieux.txt").write_text("mine\n")
    assert world.refusals("w1") == {"untracked": ["précieux.txt"]}


def test_a_lock_is_named_with_its_age_and_never_deleted(world: World) -> None:
    """W59."""
    world.quick("w1")
    lock = world.repo / ".git" / "worktrees" / "w1" / "index.lock"
    lock.touch()
    os.utime(lock, (1, 1))
    for more in ([], ["--discard"]):
        (shown,) = world.refusals("w1", *more)["index-locked"]
        assert str(lock) in shown
        assert shown.endswith(" s old)")
        assert lock.exists()


CACHES = ["__pycache__/a.pyc", "node_modules/lib/x.js", ".pytest_cache/v", ".DS_Store", "a.pyc"]


def test_caches_do_not_block(world: World) -> None:
    tree = world.quick("w1")
    with (world.repo / ".git" / "info" / "exclude").open("a") as file:
        file.write("__pycache__/\nnode_modules/\n.pytest_cache/\n.DS_Store\n*.pyc\nbuild/\n")
    for path in CACHES:
        write(path)(world, tree)
    write("build/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n# x\n")(world, tree)
    write("build/deep/out.o")(world, tree)
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]


def test_a_cache_that_git_does_not_ignore_blocks(world: World) -> None:
    tree = world.quick("w1")
    write("__pycache__/a.py")(world, tree)
    write("build/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n")(world, tree)
    assert world.refusals("w1")["untracked"] == ["__pycache__/a.py", "build/CACHEDIR.TAG"]


def test_a_damaged_tag_makes_no_cache(world: World) -> None:
    tree = world.quick("w1")
    ignored("build/notes.txt")(world, tree)
    write("build/CACHEDIR.TAG", "Signature: nonsense\n")(world, tree)
    assert world.refusals("w1") == {"ignored": ["build/"]}


def test_names_of_any_bytes_are_told(world: World) -> None:
    """W37: names with newlines, quotes and bytes that are not UTF-8."""
    tree = world.quick("w1")
    names = ['a\nb "c"', "tab\tx", "-dash", os.fsdecode(b"latin-\xe9")]
    for name in names:
        (tree / name).write_text("mine\n")
    assert sorted(world.refusals("w1")["untracked"]) == sorted(names)


def test_a_folder_that_cannot_be_listed_blocks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git warns about such a folder and calls the tree clean."""
    tree = world.quick("w1")
    repo = world.adopt(monkeypatch)
    (tree / "secret").mkdir()
    real = worktrees.git.require_git

    def warning(cwd: str, *words: str, **options: Any) -> Any:
        done = real(cwd, *words, **options)
        return done._replace(stderr=b"warning: could not open") if "status" in words else done

    scandir = os.scandir

    def denied(path: Any = ".") -> Any:
        if str(path).endswith("/secret"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(worktrees.git, "require_git", warning)
    monkeypatch.setattr(os, "scandir", denied)
    for choice in (PLAIN, DISCARD):
        assert codes(clean_one(repo, "w1", choice)) == {"unreadable"}
        assert (tree / "secret").is_dir()


# --- Processes --------------------------------------------------------------------------------


def test_a_running_agent_is_refused_also_with_discard(world: World) -> None:
    assert world.spawn_fake("w1", "bp", "--prompt-mode", "none", "--settle", "0").code == 0
    for more in ([], ["--discard"], ["--branch-delete", "--discard"]):
        assert "running" in world.refusals("w1", *more)
    world.ok("stop", "w1")
    world.ok("cleanup", "w1")


@pytest.fixture
def visitor(world: World) -> Iterator[Callable[[Path], int]]:
    """Start a process whose working directory is a folder; ended at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> int:
        started.append(subprocess.Popen(["sleep", "600"], cwd=folder, env=world.env))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_that_works_in_the_tree_is_refused(
    world: World, visitor: Callable[[Path], int]
) -> None:
    """I38: a sibling has its working directory in the tree."""
    tree = world.quick("w1")
    (tree / "deep").mkdir()
    pid = visitor(tree / "deep")
    for more in ([], ["--discard"]):
        assert world.refusals("w1", *more) == {"live-process": [f"{pid} sleep"]}


def test_a_process_beside_a_tree_with_the_same_beginning_does_not_block(
    world: World, visitor: Callable[[Path], int]
) -> None:
    world.quick("w1")
    visitor(world.quick("w1-b"))
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]


# --- The tree is not the one that was made ------------------------------------------------------


def test_a_link_in_place_of_the_tree_leads_nowhere(world: World) -> None:
    """W13."""
    one, two = world.quick("w1"), world.quick("w2")
    one.rename(world.root / "kept")
    one.symlink_to(two)
    for more in ([], ["--discard", "--branch-delete"]):
        assert "worktree-replaced" in world.refusals("w1", *more)
    assert (two / "README.md").exists()


def test_another_repository_in_place_of_the_tree(world: World) -> None:
    """W25: the folder is there, but not registered as ours."""
    tree = world.quick("w1")
    shutil.rmtree(tree)
    world.make_repo("repo.worktrees/w1")
    (tree / "x").write_text("mine\n")
    for more in ([], ["--discard"]):
        assert "worktree-replaced" in world.refusals("w1", *more)


def test_a_plain_folder_in_place_of_the_tree(world: World) -> None:
    """W25."""
    tree = world.quick("w1")
    shutil.rmtree(tree)
    tree.mkdir()
    (tree / "x").write_text("mine\n")
    for more in ([], ["--discard"]):
        assert "worktree-replaced" in world.refusals("w1", *more)


@pytest.mark.parametrize("how", ["mv beside", "mv far", "git worktree move"])
def test_a_moved_tree_is_not_forgotten(
    world: World, how: str, visitor: Callable[[Path], int]
) -> None:
    tree = world.quick("w1")
    target = world.root / "far" if "far" in how else tree.with_name("other")
    if how.startswith("git"):
        world.git("worktree", "move", str(tree), str(target))
    else:
        tree.rename(target)
    if "far" in how:
        visitor(target)
    for more in ([], ["--discard"]):
        assert "worktree-moved" in world.refusals("w1", *more)
    assert world.git("status", "--porcelain", cwd=target) == ""


def test_a_whole_folder_that_is_away_may_be_unmounted(world: World) -> None:
    tree = world.quick("w1")
    tree.parent.rename(world.root / "away")
    assert "worktree-moved" in world.refusals("w1", "--discard")


def test_a_moved_repository_says_repair_and_works_after_it(world: World) -> None:
    """W53."""
    tree = world.quick("w1")
    moved = world.root / "moved"
    world.repo.rename(moved)
    ran = world.run("cleanup", "w1", "--json", cwd=moved)
    assert ran.code == 3
    (reason,) = ran.data["refused"][0]["reasons"]
    assert reason["code"] == "repository-moved"
    assert "git worktree repair" in reason["paths"][-1]
    assert (moved / ".git" / "worktrees" / "w1").is_dir(), "never pruned"
    world.git("worktree", "repair", str(tree), cwd=moved)
    assert world.ok("cleanup", "w1", cwd=moved)["removed"] == ["w1"]
    assert not tree.exists()
    assert world.git("worktree", "list", cwd=moved).count("\n") == 0


def test_a_copy_of_the_repository_has_no_power_over_the_tree(world: World) -> None:
    tree = world.quick("w1")
    shutil.copytree(world.repo, world.root / "copy")
    ran = world.run("cleanup", "w1", "--discard", "--json", cwd=world.root / "copy")
    assert ran.code == 3
    assert ran.data["refused"][0]["reasons"][0]["code"] == "worktree-replaced"
    assert (tree / "README.md").exists()
    assert (world.repo / ".git" / "worktrees" / "w1").is_dir()


def test_a_locked_tree_whose_folder_is_gone_stays(world: World) -> None:
    """W41."""
    tree = world.quick("w1")
    world.git("worktree", "lock", str(tree))
    shutil.rmtree(tree)
    (shown,) = world.refusals("w1", "--discard")["worktree-locked"]
    assert "directory missing" in shown
    assert (world.repo / ".git" / "worktrees" / "w1" / "locked").exists()


def test_a_worker_whose_folder_is_gone_is_cleaned_and_its_branch_kept(world: World) -> None:
    """W43: session, record and entry go; another tree that is away is not pruned."""
    away = world.root / "away"
    world.git("worktree", "add", "-q", "-b", "mine", str(away))
    away.rename(world.root / "unmounted")
    spawned = world.spawn_fake("w1", "bp", "--prompt-mode", "none", "--settle", "0")
    assert spawned.code == 0
    shutil.rmtree(world.tree("w1"))
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]
    assert world.sessions() == []
    assert world.branches() == {"main", "mine", "w1"}
    assert world.worktrees() == [str(world.repo), str(away)]
    assert not world.record("w1").exists()
    assert world.spawn_fake("w2", "bp", "--prompt-mode", "none", "--settle", "0").code == 0


def test_gone_folder_with_discard_and_branch_delete_keeps_the_commits(world: World) -> None:
    tree = world.quick("w1")
    tip = world.commit("mine", tree)
    shutil.rmtree(tree)
    assert "unmerged-commits" in world.refusals("w1", "--branch-delete")
    data = world.ok("cleanup", "w1", "--discard", "--branch-delete")
    assert data["removed"] == ["w1"]
    assert world.branches() == {"main"}
    (ref,) = refs_under(world, "rescue")
    assert data["workers"][0]["rescue"] == ref
    world.git("merge-base", "--is-ancestor", tip, ref)


def test_gone_folder_keeps_the_commits_of_a_detached_head(world: World) -> None:
    tree = world.quick("w1")
    world.git("checkout", "-q", "--detach", cwd=tree)
    tip = world.commit("loose", tree)
    shutil.rmtree(tree)
    world.ok("cleanup", "w1")
    (ref,) = refs_under(world, "archive")
    world.git("merge-base", "--is-ancestor", tip, ref)


@pytest.mark.parametrize("name", [".", "..", "repo", "main", "/", "../repo", "refs/heads/w1"])
def test_only_workers_can_be_cleaned(world: World, name: str) -> None:
    """W01, W49: neither the main checkout nor a tree of the user's is ever taken."""
    before = world.snapshot()
    assert world.refused(2, "cleanup", name)["code"] in ("invalid-name", "unknown-worker")
    assert world.snapshot() == before


def test_a_worker_named_like_the_repository(world: World) -> None:
    """W01: the main checkout is on a branch of the worker's, which has the repository's name."""
    tree = world.quick("repo")
    world.git("checkout", "-q", "--ignore-other-worktrees", "repo")
    ran = world.run("cleanup", "repo", "--branch-delete", "--json")
    assert ran.code == 0
    assert not tree.exists()
    assert (world.repo / "README.md").exists()
    assert "repo" in world.branches()
    assert str(world.repo) in ran.data["workers"][0]["notes"][0]


def test_trees_of_the_user_are_never_taken(world: World) -> None:
    """W49, W39: `--merged` through a linked path sees workers only."""
    world.git("worktree", "add", "-q", "-b", "mine", str(world.root / "mine"))
    (world.root / "link").symlink_to(world.repo)
    before = world.snapshot()
    data = world.ok("cleanup", "--merged", "--branch-delete", cwd=world.root / "link")
    assert data["removed"] == data["refused"] == []
    assert world.snapshot() == before


# --- Branches -----------------------------------------------------------------------------------


def test_unmerged_commits_are_refused_with_and_without_branch_delete(world: World) -> None:
    """W07."""
    commit(world, world.quick("w1"))
    for more in ([], ["--branch-delete"]):
        ((line,),) = world.refusals("w1", *more).values()
        assert "mine (not in refs/heads/main)" in line


def test_a_merged_branch_is_deleted_only_on_request(world: World) -> None:
    """W47: remove, then delete; both are reported."""
    for name in ("w1", "w2"):
        commit(world, world.quick(name))
        world.git("merge", "-q", "--no-edit", name)
    assert world.ok("cleanup", "w1")["workers"][0]["branch_deleted"] is False
    assert world.branches() == {"main", "w1", "w2"}
    assert world.ok("cleanup", "w2", "--branch-delete")["workers"][0]["branch_deleted"] is True
    assert world.branches() == {"main", "w1"}


def test_a_squashed_branch_is_not_proved_integrated(world: World) -> None:
    """I26: without a recorded integration only ancestry counts."""
    tree = world.quick("w1")
    (tree / "a.txt").write_text("a\n")
    world.commit("a", tree)
    world.git("merge", "-q", "--squash", "w1")
    world.commit("squashed")
    assert "unmerged-commits" in world.refusals("w1", "--branch-delete")
    assert world.ok("cleanup", "--merged")["removed"] == []


def test_a_zero_commit_branch_goes_where_another_ref_holds_its_commit(world: World) -> None:
    world.quick("w1")
    assert world.ok("cleanup", "w1", "--branch-delete")["workers"][0]["branch_deleted"] is True
    assert world.branches() == {"main"}


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_branch_that_alone_holds_its_commit_stays(world: World, dry: list[str]) -> None:
    """The base itself was reset away from everywhere else."""
    commit(world, world.repo)
    world.quick("w1")
    world.git("reset", "-q", "--hard", "HEAD~1")
    data = world.ok("cleanup", "w1", "--branch-delete", *dry)
    assert data["workers"][0]["branch_deleted"] is False
    assert world.branches() == {"main", "w1"}
    assert dry or "no other branch or tag holds its commit" in data["workers"][0]["notes"][0]


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_branch_that_is_checked_out_elsewhere_stays(world: World, dry: list[str]) -> None:
    tree = world.quick("w1")
    other = world.root / "other"
    world.git("worktree", "add", "-q", "--force", str(other), "w1")
    data = world.ok("cleanup", "w1", "--branch-delete", *dry)
    assert data["workers"][0]["branch_deleted"] is False
    assert "w1" in world.branches()
    assert tree.exists() == bool(dry)
    assert world.git("symbolic-ref", "HEAD", cwd=other) == "refs/heads/w1"


def test_a_branch_that_is_being_rebased_elsewhere_stays(world: World) -> None:
    world.quick("w1")
    other = world.root / "other"
    world.git("worktree", "add", "-q", "--force", str(other), "w1")
    (other / "README.md").write_text("x\n")
    world.git("commit", "-qam", "x", cwd=other)
    world.git("-c", "sequence.editor=sed -i 1s/pick/edit/", "rebase", "-q", "-i", "HEAD~1",
              cwd=other)  # fmt: skip
    world.git("merge", "-q", "w1")
    data = world.ok("cleanup", "w1", "--branch-delete", "--discard")
    assert data["workers"][0]["branch_deleted"] is False
    assert "w1" in world.branches()


def test_a_tag_with_the_name_of_the_branch_changes_nothing(world: World) -> None:
    """I30: the tag is on main, the branch is ahead of it."""
    tree = world.quick("w1")
    world.git("tag", "w1", "main")
    tip = world.commit("mine", tree)
    assert "unmerged-commits" in world.refusals("w1", "--branch-delete")
    world.git("merge", "-q", "refs/heads/w1")
    assert world.ok("cleanup", "w1", "--branch-delete")["workers"][0]["branch_deleted"] is True
    assert world.git("rev-parse", "refs/tags/w1") != tip
    assert world.branches() == {"main"}


def test_only_the_recorded_branch_is_deleted(world: World) -> None:
    """I34: the worker's branch is not the one with its name."""
    world.git("branch", "w1")
    world.idle("w1", "--branch", "w1-2")
    world.ok("cleanup", "w1", "--branch-delete")
    assert world.branches() == {"main", "w1"}


def test_merged_takes_what_is_proved_and_lists_the_rest(world: World) -> None:
    """W51: no commits is not merged; exit 0 all the same."""
    commit(world, world.quick("merged"))
    world.git("merge", "-q", "merged")
    world.quick("empty")
    (world.quick("edited") / "new.txt").write_text("mine\n")
    commit(world, world.quick("ahead"))
    behind = world.quick("behind")
    world.git("reset", "-q", "--hard", "HEAD~1", cwd=behind)
    branchless = world.quick("branchless")
    world.git("checkout", "-q", "--detach", cwd=branchless)
    world.git("update-ref", "-d", "refs/heads/branchless")
    (world.record("torn")).mkdir()
    ran = world.run("cleanup", "--merged", "--branch-delete", "--json")
    assert ran.code == 0
    assert ran.data["removed"] == ["merged"]
    reasons = {
        row["name"]: {reason["code"] for reason in row["reasons"]}
        for row in ran.data["refused"]
        if row["name"] != "torn"
    }
    assert reasons == {
        "empty": {"no-commits"},
        "edited": {"no-commits", "untracked"},
        "ahead": {"unmerged-commits"},
        "behind": {"no-commits"},
        "branchless": {"branch-missing"},
    }
    assert world.branches() == {"main", "empty", "edited", "ahead", "behind"}


def test_merged_also_needs_a_clean_tree(world: World) -> None:
    """I24: merged by ancestry, but there is uncommitted work."""
    tree = world.quick("w1")
    commit(world, tree)
    world.git("merge", "-q", "w1")
    (tree / "more.txt").write_text("mine\n")
    assert world.ok("cleanup", "--merged")["removed"] == []
    assert (tree / "more.txt").exists()


def test_a_locked_branch_is_kept_and_the_rest_is_done(world: World) -> None:
    """A lock on the branch's ref is found after the tree is gone."""
    world.quick("w1")
    (world.repo / ".git" / "refs" / "heads" / "w1.lock").touch()
    data = world.ok("cleanup", "w1", "--branch-delete")
    assert data["removed"] == ["w1"]
    assert data["workers"][0]["branch_deleted"] is False
    assert "w1.lock" in data["workers"][0]["notes"][0]
    assert not world.record("w1").exists()


@pytest.mark.parametrize("more", [[], ["--discard"], ["--branch-delete"], ["--merged"]])
def test_a_dry_run_changes_nothing(world: World, more: list[str]) -> None:
    tree = world.quick("w1")
    commit(world, tree)
    if "--discard" not in more:
        world.git("merge", "-q", "w1")
    before = (world.snapshot(), world.bytes_of(tree), world.bytes_of(world.record("w1")))
    names = [] if "--merged" in more else ["w1"]
    data = world.ok("cleanup", *names, *more, "--dry-run")
    assert data["removed"] == ["w1"]
    assert data["dry_run"] is True
    assert data["workers"][0]["branch_deleted"] is ("--branch-delete" in more)
    after = (world.snapshot(), world.bytes_of(tree), world.bytes_of(world.record("w1")))
    assert after == before


# --- Between the two looks ----------------------------------------------------------------------


def after_rename(monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]) -> None:
    """Do something right after a tree was set aside."""
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        real(source, target)
        if str(target).endswith(".removing"):
            act(Path(target))

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("choice", [PLAIN, DELETE], ids=["plain", "delete"])
@pytest.mark.parametrize("what", ["file", "commit", "ignored", "lock"])
def test_what_appears_after_the_first_look_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str, choice: Choice
) -> None:
    """W05."""
    tree = world.quick("w1")
    admin = world.repo / ".git" / "worktrees" / "w1"
    repo = world.adopt(monkeypatch)
    ignored("late.txt")(world, tree) if what == "ignored" else None
    (tree / "late.txt").unlink(missing_ok=True)

    def act(aside: Path) -> None:
        # Some versions of git write a tree's new place into its entry when they are used there.
        (admin / "gitdir").write_text(f"{aside}/.git\n")
        if what == "lock":
            (admin / "index.lock").touch()
            return
        (aside / "late.txt").write_text("mine\n")
        if what == "commit":
            world.commit("late", aside)

    with monkeypatch.context() as patch:
        after_rename(patch, act)
        result = clean_one(repo, "w1", choice)
    expected = {
        "file": "untracked",
        "commit": "unmerged-commits",
        "ignored": "ignored",
        "lock": "index-locked",
    }
    assert codes(result) == {expected[what]}
    assert result.removed is False
    assert what == "lock" or (tree / "late.txt").read_text() == "mine\n"
    assert phase(world, "w1") == "live"
    assert world.worktrees() == [str(world.repo), str(tree)]
    assert os.listdir(tree.parent) == ["w1"]
    # The tree is whole again: the next call decides as if nothing had been.
    (tree / "late.txt").unlink(missing_ok=True)
    (admin / "index.lock").unlink(missing_ok=True)
    if what == "commit":
        world.git("reset", "-q", "--hard", "HEAD~1", cwd=tree)
    assert clean_one(repo, "w1").removed is True


def test_a_process_that_enters_after_the_first_look_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, visitor: Callable[[Path], int]
) -> None:
    tree = world.quick("w1")
    repo = world.adopt(monkeypatch)

    def enter(aside: Path) -> None:
        visitor(aside)

    after_rename(monkeypatch, enter)
    for choice in (PLAIN, DISCARD):
        assert codes(clean_one(repo, "w1", choice)) == {"live-process"}
    assert (tree / "README.md").exists()


def test_a_folder_that_appears_in_the_old_place_is_not_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process writes by absolute path after the tree was set aside."""
    tree = world.quick("w1")
    repo = world.adopt(monkeypatch)
    after_rename(monkeypatch, lambda _: write("log.txt")(world, tree))
    assert clean_one(repo, "w1").removed is True
    assert (tree / "log.txt").read_text() == "mine\n"
    assert world.worktrees() == [str(world.repo)]


def test_a_tree_whose_place_was_taken_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once: something new in the tree, and something in its place."""
    tree = world.quick("w1")
    aside = tree.with_name(".w1.removing")
    repo = world.adopt(monkeypatch)

    def both(path: Path) -> None:
        (path / "late.txt").write_text("mine\n")
        write("log.txt")(world, tree)

    with monkeypatch.context() as patch:
        after_rename(patch, both)
        result = clean_one(repo, "w1")
    assert codes(result) == {"untracked", "worktree-replaced"}
    assert str(aside) in str(result.reasons)
    for choice in (PLAIN, DISCARD):
        result = clean_one(repo, "w1", choice)
        assert codes(result) == {"worktree-replaced"}
        assert str(aside) in str(result.reasons)
    shutil.rmtree(tree)
    assert codes(clean_one(repo, "w1")) == {"untracked"}
    assert (tree / "late.txt").read_text() == "mine\n"


def test_a_rename_that_fails_leaves_the_others_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = [world.quick(name) for name in ("w1", "w2", "w3")]
    repo = world.adopt(monkeypatch)
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if str(target).endswith(".w2.removing"):
            raise PermissionError(13, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    results = cleaning.clean(repo, ["w1", "w2", "w3"], PLAIN)
    assert [result.removed for result in results] == [True, False, True]
    assert [tree.exists() for tree in trees] == [False, True, False]
    assert phase(world, "w2") == "live"


def test_an_interruption_puts_back_what_is_not_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = [world.quick(name) for name in ("w1", "w2")]
    repo = world.adopt(monkeypatch)

    def interrupt() -> list[Any]:
        if not trees[1].exists():
            raise Interrupted(cleaning.records.ExitCode.TERMINATED)
        return []

    monkeypatch.setattr(proctree, "working_directories", interrupt)
    with pytest.raises(Interrupted):
        cleaning.clean(repo, ["w1", "w2"], PLAIN)
    assert all((tree / "README.md").exists() for tree in trees)
    assert {phase(world, "w1"), phase(world, "w2")} == {"live"}


# --- After a crash ------------------------------------------------------------------------------


@pytest.mark.parametrize("dirty", [False, True])
def test_a_tree_that_a_killed_call_had_set_aside_is_judged_anew(world: World, dirty: bool) -> None:
    tree = world.quick("w1")
    aside = tree.with_name(".w1.removing")
    set_phase(world, "w1", "removing")
    tree.rename(aside)
    if dirty:
        (aside / "late.txt").write_text("mine\n")
    dry = world.run("cleanup", "w1", "--dry-run", "--json")
    assert dry.code == (3 if dirty else 0)
    assert aside.exists()
    assert not tree.exists()
    ran = world.run("cleanup", "w1", "--json")
    assert ran.code == (3 if dirty else 0)
    assert tree.exists() == dirty
    assert not aside.exists()
    if dirty:
        assert (tree / "late.txt").read_text() == "mine\n"
        assert world.git("status", "--porcelain", cwd=tree) == "?? late.txt"


@pytest.mark.parametrize("stage", ["whole", "half tree", "no entry", "nothing left"])
def test_a_removal_that_was_killed_is_finished(world: World, stage: str) -> None:
    """The tree was looked at twice, so half of it may go."""
    tree = world.quick("w1")
    (tree / ".worker-runs" / "changelog").mkdir(parents=True)
    (tree / ".worker-runs" / "changelog" / "w1.md").write_text("- new\n")
    aside = tree.with_name(".w1.removing")
    set_phase(world, "w1", "dropping")
    tree.rename(aside)
    if stage != "whole":
        (aside / "README.md").unlink()
    if stage in ("no entry", "nothing left"):
        shutil.rmtree(world.repo / ".git" / "worktrees" / "w1")
    if stage == "nothing left":
        shutil.rmtree(aside)
    data = world.ok("cleanup", "w1", "--branch-delete")
    assert data["removed"] == ["w1"]
    assert data["workers"][0]["branch_deleted"] is True
    assert not aside.exists()
    assert world.worktrees() == [str(world.repo)]
    assert world.sessions() == []
    if stage != "nothing left":
        kept = archived(world, "w1") / "worktree-runs" / "changelog" / "w1.md"
        assert kept.read_text() == "- new\n"


def test_a_killed_removal_does_not_take_a_new_tree_with_the_same_names(world: World) -> None:
    """The user has made a worktree in the old place meanwhile, with the old entry's name."""
    tree = world.quick("w1")
    set_phase(world, "w1", "dropping")
    tree.rename(tree.with_name(".w1.removing"))
    shutil.rmtree(world.repo / ".git" / "worktrees" / "w1")
    world.git("worktree", "add", "-q", "-b", "mine", str(tree))
    (tree / "new.txt").write_text("mine\n")
    world.ok("cleanup", "w1")
    assert world.worktrees() == [str(world.repo), str(tree)]
    assert world.git("status", "--porcelain", cwd=tree) == "?? new.txt"


def test_a_killed_removal_never_deletes_commits_made_since(world: World) -> None:
    tree = world.quick("w1")
    set_phase(world, "w1", "dropping")
    tree.rename(tree.with_name(".w1.removing"))
    tip = world.git("commit-tree", "-m", "since", "-p", "w1", "w1^{tree}")
    world.git("update-ref", "refs/heads/w1", tip)
    data = world.ok("cleanup", "w1", "--branch-delete", "--discard")
    assert data["workers"][0]["branch_deleted"] is True
    world.git("merge-base", "--is-ancestor", tip, data["workers"][0]["rescue"])


def test_a_tree_that_cannot_be_removed_whole_is_continued(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a tree is never put back as if it were whole."""
    tree = world.quick("w1")
    repo = world.adopt(monkeypatch)

    def fail(path: str) -> None:
        if path.endswith(".removing"):
            raise PermissionError(1, "Operation not permitted", path)
        shutil.rmtree(path, ignore_errors=True)

    with monkeypatch.context() as patch:
        patch.setattr(worktrees, "remove_tree", fail)
        assert codes(clean_one(repo, "w1")) == {"removal-unfinished"}
    assert phase(world, "w1") == "dropping"
    assert not tree.exists()
    assert clean_one(repo, "w1").removed is True
    assert not tree.parent.exists()


def test_read_only_folders_and_links_out_of_the_tree(world: World) -> None:
    """What a link points at stays; a folder without write permission goes."""
    outside = world.root / "outside"
    outside.mkdir()
    (outside / "keep.txt").write_text("keep\n")
    tree = world.quick("w1")
    ignored("node_modules/a/b.js")(world, tree)
    (tree / "node_modules" / "out").symlink_to(outside)
    (tree / "node_modules" / "a").chmod(0o500)
    world.ok("cleanup", "w1")
    assert (outside / "keep.txt").read_text() == "keep\n"


# --- What is kept -------------------------------------------------------------------------------


def test_commits_that_only_the_reflog_holds_are_kept(world: World) -> None:
    """Amended, reset away, made while detached: reachable from nowhere else."""
    tree = world.quick("w1")
    amended = world.commit("amended", tree)
    world.git("commit", "-q", "--amend", "--allow-empty", "-m", "again", cwd=tree)
    again = world.git("rev-parse", "HEAD", cwd=tree)
    world.git("checkout", "-q", "--detach", cwd=tree)
    loose = world.commit("loose", tree)
    world.git("checkout", "-q", "w1", cwd=tree)
    world.git("reset", "-q", "--hard", "main", cwd=tree)
    data = world.ok("cleanup", "w1", "--branch-delete")
    (ref,) = refs_under(world, "archive")
    assert ref in str(data["workers"][0]["notes"])
    for lost in (amended, again, loose):
        world.git("merge-base", "--is-ancestor", lost, ref)
    world.git("reflog", "expire", "--expire=now", "--all")
    world.git("gc", "-q", "--prune=now")
    assert world.git("log", "-1", "--format=%s", loose) == "loose"


def test_a_ref_of_the_tree_alone_is_kept(world: World) -> None:
    """`refs/worktree/*` go with the worktree."""
    tree = world.quick("w1")
    loose = world.git("commit-tree", "-m", "loose", "HEAD^{tree}", cwd=tree)
    world.git("update-ref", "refs/worktree/mark", loose, cwd=tree)
    world.ok("cleanup", "w1")
    (ref,) = refs_under(world, "archive")
    world.git("merge-base", "--is-ancestor", loose, ref)


def test_nothing_is_archived_where_nothing_is_loose(world: World) -> None:
    tree = world.quick("w1")
    commit(world, tree)
    world.git("merge", "-q", "w1")
    world.ok("cleanup", "w1", "--branch-delete")
    assert refs_under(world, "archive") == refs_under(world, "rescue") == []


def test_the_workers_own_files_move_into_the_archive(world: World) -> None:
    tree = world.quick("w1")
    (tree / ".worker-runs" / "changelog").mkdir(parents=True, exist_ok=True)
    (tree / ".worker-runs" / "changelog" / "w1.md").write_text("- new\n")
    world.ok("cleanup", "w1")
    kept = archived(world, "w1") / "worktree-runs" / "changelog" / "w1.md"
    assert kept.read_text() == "- new\n"


def test_a_link_named_like_the_workers_folder_is_not_followed(world: World) -> None:
    outside = world.root / "outside"
    outside.mkdir()
    tree = world.quick("w1")
    shutil.rmtree(tree / ".worker-runs", ignore_errors=True)
    (tree / ".worker-runs").symlink_to(outside)
    assert "untracked" in world.refusals("w1")
    assert outside.is_dir()


def test_an_unchanged_copy_does_not_block_and_a_changed_one_does(world: World) -> None:
    (world.repo / ".git" / "info" / "exclude").write_text(".env\nconf/\n")
    (world.repo / ".env").write_text("A=1\n")
    (world.repo / "conf").mkdir()
    (world.repo / "conf" / "a").write_text("a\n")
    (world.repo / "README.md").write_text("edited\n")
    copies = ["--copy", ".env", "--copy", "conf", "--copy", "README.md"]
    one, two = world.idle("w1", *copies), world.idle("w2", *copies)
    assert (one / "README.md").read_text() == "edited\n"
    (two / ".env").write_text("A=2\n")
    (two / "conf" / "b").write_text("b\n")
    (two / "README.md").write_text("edited again\n")
    assert world.refusals("w2") == {"ignored": [".env", "conf/"], "modified": ["README.md"]}
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]


def test_a_pipe_in_an_ignored_folder_does_not_hang(world: World) -> None:
    tree = world.quick("w1")
    ignored("run/x")(world, tree)
    os.mkfifo(tree / "run" / "pipe")
    ran = world.run("cleanup", "w1", "--json", seconds=20)
    assert ran.code == 3
    assert ran.data["refused"][0]["reasons"][0]["code"] == "ignored"


# --- Submodules ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def submodule_world() -> Iterator[World]:
    """A repository with a submodule `lib`, which has one of its own, `deep`."""
    world = World()
    try:
        deep, lib = world.make_repo("deep-origin"), world.make_repo("lib-origin")
        world.git("submodule", "--quiet", "add", str(deep), "deep", cwd=lib)
        world.commit("deep", lib)
        # A clone fetches such a tag, and no branch of the remote holds its commit.
        world.git("checkout", "-q", "--detach", cwd=lib)
        world.commit("tagged", lib)
        world.git("tag", "v1", cwd=lib)
        world.git("checkout", "-q", "main", cwd=lib)
        world.git("submodule", "--quiet", "add", str(lib), "lib")
        world.commit("lib")
        yield world
    finally:
        world.close()


@pytest.fixture
def with_submodule(submodule_world: World) -> Iterator[Path]:
    """The tree of a new worker of that world with its submodule."""
    world = submodule_world
    start = world.git("rev-parse", "main")
    tree = world.quick(f"w{next(numbers)}")
    world.git("submodule", "--quiet", "update", "--init", cwd=tree)
    yield tree
    world.git("reset", "-q", "--hard", start)


def in_lib(words: str) -> Callable[[World, Path], None]:
    def act(world: World, tree: Path) -> None:
        for line in words.split("; "):
            world.git(*line.split(" "), cwd=tree / "lib")

    return act


def in_deep(world: World, tree: Path) -> None:
    world.git("submodule", "--quiet", "update", "--init", cwd=tree / "lib")
    write("lib/deep/new.txt")(world, tree)


def stash_in_lib(world: World, tree: Path) -> None:
    (tree / "lib" / "README.md").write_text("mine\n")
    world.git("stash", "--quiet", cwd=tree / "lib")


def ignored_in_lib(world: World, tree: Path) -> None:
    exclude = Path(world.git("rev-parse", "--git-path", "info/exclude", cwd=tree / "lib"))
    (tree / "lib" / exclude).write_text(".env\n")
    (tree / "lib" / ".env").write_text("mine\n")


def removed_lib_with_commits(world: World, tree: Path) -> None:
    """Its repository stays among git's own files, where nothing in the tree shows it."""
    in_lib("checkout -q -b mine; commit -q --allow-empty -m mine; checkout -q --detach main")(
        world, tree
    )
    world.git("submodule", "--quiet", "deinit", "lib", cwd=tree)


@pytest.mark.parametrize(
    ("act", "code", "paths"),
    [
        (write("lib/README.md"), "modified", ["lib/README.md"]),
        (write("lib/new.txt"), "untracked", ["lib/new.txt"]),
        (in_deep, "untracked", ["lib/deep/new.txt"]),
        (ignored_in_lib, "ignored", ["lib/.env"]),
        (in_lib("commit -q --allow-empty -m mine"), "submodule-commits", ["lib"]),
        (
            in_lib("commit -q --allow-empty -m mine; branch mine; checkout -q --detach HEAD~1"),
            "submodule-commits",
            ["lib"],
        ),
        (in_lib("checkout -q v1"), "submodule-changes", ["lib"]),
        (stash_in_lib, "submodule-commits", ["lib"]),
        (removed_lib_with_commits, "submodule-commits", ["modules/lib"]),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_what_a_submodule_holds_is_at_stake(
    submodule_world: World,
    with_submodule: Path,
    act: Callable[[World, Path], None],
    code: str,
    paths: list[str],
) -> None:
    """W27."""
    world, name = submodule_world, with_submodule.name
    act(world, with_submodule)
    assert world.refusals(name)[code] == paths
    ran = world.run("cleanup", name, "--discard", "--json")
    assert ran.code == 3, "what is not files cannot be saved"
    assert (with_submodule / "lib").is_dir()


def test_a_submodule_whose_content_is_elsewhere_does_not_block(
    submodule_world: World, with_submodule: Path
) -> None:
    """W27: also while the tree stands aside, where `core.worktree` of the submodule is wrong."""
    world, name = submodule_world, with_submodule.name
    world.git("submodule", "--quiet", "update", "--init", cwd=with_submodule / "lib")
    assert world.ok("cleanup", name, "--branch-delete")["removed"] == [name]
    assert not with_submodule.exists()
    assert str(with_submodule) not in world.worktrees()


def test_a_submodule_pinned_at_a_tag_of_its_remote_does_not_block(
    submodule_world: World, with_submodule: Path
) -> None:
    world, name = submodule_world, with_submodule.name
    world.git("checkout", "-q", "v1", cwd=with_submodule / "lib")
    world.git("commit", "-qam", "pin", cwd=with_submodule)
    world.git("merge", "-q", name)
    tree = world.quick("pinned")
    world.git("submodule", "--quiet", "update", "--init", cwd=tree)
    assert world.git("rev-parse", "HEAD", cwd=tree / "lib") == world.git(
        "rev-parse", "v1", cwd=world.root / "lib-origin"
    )
    assert world.ok("cleanup", "pinned")["removed"] == ["pinned"]


def test_a_pinned_commit_of_the_workers_own_is_at_stake(
    submodule_world: World, with_submodule: Path
) -> None:
    """The superproject's commit is merged, but the submodule's commit exists only here."""
    world, name = submodule_world, with_submodule.name
    world.git("commit", "-q", "--allow-empty", "-m", "mine", cwd=with_submodule / "lib")
    world.git("commit", "-qam", "pin", cwd=with_submodule)
    world.git("merge", "-q", name)
    assert world.refusals(name) == {"submodule-commits": ["lib"]}


def test_what_only_a_submodules_reflog_holds_is_kept(
    submodule_world: World, with_submodule: Path
) -> None:
    world, name = submodule_world, with_submodule.name
    lib = with_submodule / "lib"
    world.git("commit", "-q", "--allow-empty", "-m", "mine", cwd=lib)
    loose = world.git("rev-parse", "HEAD", cwd=lib)
    world.git("reset", "-q", "--hard", "HEAD~1", cwd=lib)
    world.ok("cleanup", name)
    module = archived(world, name) / "submodules" / "lib"
    assert world.git("--git-dir", str(module), "cat-file", "-t", loose, cwd=module) == "commit"


# --- The whole, against a model -------------------------------------------------------------------

KINDS = {
    "untouched": None,
    "modified": "modified",
    "deleted": "modified",
    "staged": "staged",
    "untracked": "untracked",
    "untracked in a folder": "untracked",
    "ignored": "ignored",
    "ignored folder": "ignored",
    "cache": None,
    "copied": None,
    "copied and changed": "ignored",
    "skip-worktree": "hidden-changes",
    "assume-unchanged": "hidden-changes",
    "skip-worktree, untouched": None,
    "skip-worktree, deleted": None,
    "runs": None,
}
NAMES = ["a", "ü b", "-x", 'quo"te', '"', "new\nline", "cr\r", os.fsdecode(b"\xe9")]


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[World, Repository]]:
    """A world whose repository has a tracked file for each name, and one worker as a pattern."""
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        try:
            for name in NAMES:
                (world.repo / f"{name}.txt").write_text("base\n")
            (world.repo / ".gitignore").write_text("*.ign\nignored-*/\n__pycache__/\n")
            world.commit("base")
            world.quick("pattern")
            see_no_processes(patch)
            yield world, world.adopt(patch)
        finally:
            world.close()


def make_worker(repo: Repository, number: int) -> life.Worker:
    """A worker as spawn leaves it, without a process."""
    pattern = life.load(repo.common_dir, "pattern")
    name = f"p{number}"
    tree = os.path.join(os.path.dirname(pattern.worktree), name)
    record = records.worker_dir(repo.common_dir, name)
    records.make_dir(record)
    worktrees.make_branches(repo, [name], pattern.base)
    admin = worktrees.add_worktree(repo, tree, name, record)
    worktrees.fill_worktree(tree)
    return pattern._replace(
        name=name, worktree=tree, admin_dir=admin, branch=name, launch=records.new_id(), pane="%99"
    )


def put(world: World, worker: life.Worker, kind: str, name: str) -> life.Worker:
    """Bring one file into a state."""
    from fanout.workers import fingerprint

    tree = Path(worker.worktree)
    file = tree / f"{name}.txt"
    if kind == "modified":
        file.write_text("mine\n")
    elif kind == "deleted":
        file.unlink()
    elif kind == "staged":
        file.write_text("mine\n")
        world.git("add", "--", file.name, cwd=tree)
    elif kind == "untracked":
        (tree / f"{name}.new").write_bytes(b"mine\r\n\x00\xff")
    elif kind == "untracked in a folder":
        (tree / f"dir-{name}").mkdir()
        (tree / f"dir-{name}" / name).write_text("mine\n")
    elif kind == "ignored":
        (tree / f"{name}.ign").write_text("mine\n")
    elif kind == "ignored folder":
        (tree / f"ignored-{name}").mkdir()
        (tree / f"ignored-{name}" / name).write_text("mine\n")
    elif kind == "cache":
        (tree / "__pycache__").mkdir(exist_ok=True)
        (tree / "__pycache__" / name).write_text("cache\n")
    elif kind.startswith("copied"):
        copy = tree / f"{name}.copy.ign"
        copy.write_text("copy\n")
        copied = {**worker.copied, copy.name: fingerprint(str(copy))}
        worker = worker._replace(copied=copied)
        if kind == "copied and changed":
            copy.write_text("mine\n")
    elif kind.startswith(("skip-worktree", "assume-unchanged")):
        flag = "--" + kind.partition(",")[0]
        world.git("update-index", flag, "--", file.name, cwd=tree)
        if kind.endswith("deleted"):
            file.unlink()
        elif not kind.endswith("untouched"):
            file.write_text("mine\n")
    elif kind == "runs":
        (tree / ".worker-runs").mkdir(exist_ok=True)
        (tree / ".worker-runs" / name).write_text("report\n")
    return worker


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mix=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(KINDS)), max_size=6))
def test_any_mix_of_files_blocks_or_not_and_is_saved_whole(
    stage: tuple[World, Repository], mix: dict[str, str]
) -> None:
    world, repo = stage
    worker = make_worker(repo, next(numbers))
    for name, kind in mix.items():
        worker = put(world, worker, kind, name)
    life.save(repo.common_dir, worker)
    tree = Path(worker.worktree)
    before = world.bytes_of(tree)
    expected = {code for kind in mix.values() if (code := KINDS[kind]) is not None}
    dry = clean_one(repo, worker.name, PLAIN._replace(dry_run=True))
    assert codes(dry) == expected
    result = clean_one(repo, worker.name, PLAIN)
    assert codes(result) == expected
    assert result.removed is (not expected)
    if not expected:
        assert not tree.exists()
        return
    assert world.bytes_of(tree) == before
    result = clean_one(repo, worker.name, DISCARD)
    assert result.removed is True
    assert not tree.exists()
    restored = restore(world, result)
    saved = {
        path: what
        for path, what in before.items()
        if path != ".git" and path.split("/")[0] not in ("__pycache__", ".worker-runs")
    }
    assert {p: w for p, w in world.bytes_of(restored).items() if p[:5] != ".git/"} == saved
    shutil.rmtree(restored)


def restore(world: World, result: Result) -> Path:
    """Run the printed command; the folder that it made."""
    note = next(note for note in result.notes if note.startswith("restore with: "))
    command = note.removeprefix("restore with: ")
    done = subprocess.run(
        ["bash", "-c", command], env=world.env, cwd=world.root, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return world.tree(f"{result.name}-rescued")


def test_a_socket_holds_no_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = world.quick("w1")
    (tree / "x.txt").write_text("mine\n")
    monkeypatch.chdir(tree)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
    monkeypatch.chdir(world.root)
    repo = world.adopt(monkeypatch)
    result = clean_one(repo, "w1", DISCARD)
    assert result.removed is True
    assert (restore(world, result) / "x.txt").read_text() == "mine\n"


def test_unknown_names_stop_everything_before_it_begins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = world.quick("w1")
    repo = world.adopt(monkeypatch)
    with pytest.raises(SkillError, match="no worker 'w2'"):
        cleaning.clean(repo, ["w1", "w2"], PLAIN)
    assert tree.exists()
