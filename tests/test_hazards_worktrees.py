"""The hazards of worktrees and branches end to end: what spawn, status and clean-up do."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from world import Ran, World, wait_for

SPAWN = ["--prompt", "x", "--prompt-mode", "none", "--agent-cli", "/bin/true", "--settle", "0"]


def at_once(world: World, calls: list[list[str]]) -> list[Ran]:
    """Run calls in parallel; the answers in their order."""
    answers: dict[int, Ran] = {}

    def call(number: int) -> None:
        answers[number] = world.run(*calls[number], "--json", seconds=110)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[number] for number in range(len(calls))]


def test_twenty_spawns_at_once_all_succeed(world: World) -> None:
    """W19: no lock of git's is met, no upstream and no configuration is written."""
    world.git("remote", "add", "origin", str(world.make_repo("origin")))
    world.git("fetch", "-q", "origin")
    world.git("config", "branch.autoSetupMerge", "always")
    world.git("config", "branch.autoSetupRebase", "always")
    before = (world.repo / ".git" / "config").read_bytes()
    names = [f"w{number}" for number in range(20)]
    answers = at_once(world, [["spawn", n, *SPAWN, "--base", "origin/main"] for n in names])
    assert [answer.code for answer in answers] == [0] * 20, [a.err for a in answers if a.code]
    assert world.branches() == {"main", *names}
    assert (world.repo / ".git" / "config").read_bytes() == before
    assert len(world.sessions()) == 20
    exclude = (world.repo / ".git" / "info" / "exclude").read_text()
    assert exclude.splitlines().count("/.worker-runs/") == 1
    rows = world.ok("status")["workers"]
    assert {row["base"] for row in rows} == {world.git("rev-parse", "origin/main")}
    assert sorted(world.ok("cleanup", *names, "--branch-delete")["removed"]) == sorted(names)
    assert world.worktrees() == [str(world.repo)]
    assert world.sessions() == []


def test_of_two_spawns_of_one_name_exactly_one_wins(world: World) -> None:
    """W61: the loser takes nothing of the winner's away."""
    names = ["fix-login", "Fix-Login", "fix-login", "fix-login"]
    answers = at_once(world, [["spawn", name, *SPAWN, "--branch", f"b{number}"]
                              for number, name in enumerate(names)])  # fmt: skip
    won = [number for number, answer in enumerate(answers) if answer.code == 0]
    assert len(won) == 1, [answer.err for answer in answers]
    assert {a.code for n, a in enumerate(answers) if n not in won} <= {3, 11}
    assert world.branches() == {"main", f"b{won[0]}"}
    assert len(world.worktrees()) == 2
    assert len(world.sessions()) == 1
    assert Path(answers[won[0]].data["worker"]["worktree"], "README.md").exists()


def test_of_two_spawns_of_one_branch_or_place_exactly_one_wins(world: World) -> None:
    for option, value in (("--branch", "same"), ("--worktree", str(world.root / "same"))):
        calls = [["spawn", f"{option[2]}{n}", *SPAWN, option, value] for n in range(3)]
        codes = sorted(answer.code for answer in at_once(world, calls))
        assert codes == [0, 3, 3]
    assert len(world.worktrees()) == 3


@pytest.mark.parametrize(
    ("there", "name"),
    [("api/v2", "api"), ("w1", "w1"), ("W1", "w1"), ("team/a", "Team/b"), ("api", "api/v2")],
)
def test_a_branch_in_the_way_is_named_and_nothing_is_left(
    world: World, there: str, name: str
) -> None:
    """W21, W55."""
    world.git("branch", there)
    before = world.snapshot()
    error = world.refused(3, "spawn", "worker", *SPAWN, "--branch", name)
    assert error["code"] == "branch-taken"
    assert there in error["message"]
    assert world.snapshot() == before
    assert not world.tree("worker").parent.exists()


def test_a_branch_that_another_tree_holds_is_named_with_that_tree(world: World) -> None:
    """W45."""
    other = world.root / "hidden"
    world.git("worktree", "add", "-q", "-b", "w1", str(other))
    before = world.snapshot()
    assert str(other) in world.refused(3, "spawn", "w1", *SPAWN)["message"]
    assert world.snapshot() == before


def test_equal_names_in_two_repositories_do_not_meet(world: World) -> None:
    """W23."""
    other = world.make_repo("other")
    one = world.idle("docs")
    two = Path(world.ok("spawn", "docs", *SPAWN, cwd=other)["worker"]["worktree"])
    assert one != two
    assert len(world.sockets()) == 2
    world.ok("cleanup", "docs", "--branch-delete")
    assert (two / "README.md").exists()
    assert world.ok("status", "docs", cwd=other)["workers"][0]["name"] == "docs"


def test_a_folder_made_by_hand_is_in_nobodys_way(world: World) -> None:
    """W25: it is not taken for a worktree, and not touched."""
    place = world.tree("w1")
    place.mkdir(parents=True)
    (place / "mine.txt").write_text("mine\n")
    before = world.snapshot()
    assert world.refused(3, "spawn", "w1", *SPAWN)["code"] == "worktree-exists"
    assert world.refused(2, "status", "w1")["code"] == "unknown-worker"
    assert world.snapshot() == before
    assert (place / "mine.txt").read_text() == "mine\n"


def test_a_tree_of_the_users_is_not_taken_over(world: World) -> None:
    """W49."""
    world.git("worktree", "add", "-q", "-b", "mine", str(world.tree("w1")))
    before = world.snapshot()
    assert world.refused(3, "spawn", "w1", *SPAWN)["code"] == "worktree-exists"
    assert world.snapshot() == before


def test_the_default_base_is_the_callers_own_head(world: World) -> None:
    """W57: in a linked worktree that is ahead; detached there, too."""
    one = world.idle("w1")
    tip = world.commit("ahead", one)
    worker = world.ok("spawn", "w2", *SPAWN, cwd=one)["worker"]
    assert worker["base"] == tip
    assert worker["integration_branch"] == "refs/heads/w1"
    assert Path(worker["worktree"]) == world.tree("w2")
    assert world.git("rev-parse", "HEAD", cwd=world.tree("w2")) == tip
    other = world.root / "other"
    world.git("worktree", "add", "-q", "--detach", str(other), "main")
    worker = world.ok("spawn", "w3", *SPAWN, cwd=other)["worker"]
    assert worker["base"] == world.git("rev-parse", "main")
    assert worker["integration_branch"] is None


def test_a_worktree_inside_of_another_one_is_refused(world: World) -> None:
    """W33."""
    one = world.idle("w1")
    for place in (one / "w2", one / "deep" / "w2", world.repo / "w2", world.repo / ".git" / "w2"):
        before = world.snapshot()
        error = world.refused(3, "spawn", "w2", *SPAWN, "--worktree", str(place))
        assert error["code"] == "worktree-nested"
        assert world.snapshot() == before
        assert not place.exists()


def test_inside_a_submodule_and_from_a_tree_of_a_bare_repository(world: World) -> None:
    """W33: a clear refusal there, the right root here."""
    lib = world.make_repo("lib")
    world.git("submodule", "--quiet", "add", str(lib), "lib")
    world.commit("lib")
    error = world.refused(2, "spawn", "w1", *SPAWN, cwd=world.repo / "lib")
    assert error["code"] == "inside-submodule"
    bare = world.root / "store.git"
    world.git("clone", "-q", "--bare", str(world.repo), str(bare))
    world.git("worktree", "add", "-q", str(world.root / "checkout"), "main", cwd=bare)
    assert world.refused(4, "spawn", "w1", *SPAWN, cwd=bare)["code"] == "bare-repository"
    worker = world.ok("spawn", "w1", *SPAWN, cwd=world.root / "checkout")["worker"]
    assert worker["worktree"] == f"{bare}.worktrees/w1"
    data = world.ok("cleanup", "w1", "--branch-delete", cwd=world.root / "checkout")
    assert data["removed"] == ["w1"]
    assert not (world.root / "store.git.worktrees").exists()


def test_an_empty_repository_without_an_identity_gets_no_commit(world: World) -> None:
    """W35."""
    (world.root / "gitconfig").write_text("[init]\n\tdefaultBranch = main\n")
    empty = world.root / "empty"
    world.git("init", "-q", str(empty))
    error = world.refused(4, "spawn", "w1", *SPAWN, cwd=empty)
    assert error["code"] == "empty-repository"
    assert world.git("for-each-ref", cwd=empty) == ""
    assert not (empty / ".git" / "agent-workers").exists()


def test_the_stash_of_the_user_is_never_touched(world: World) -> None:
    """W15."""
    (world.repo / "README.md").write_text("mine\n")
    world.git("stash", "--quiet")
    before = world.git("stash", "list", "--format=%H %gd")
    tree = world.idle("w1", "--setup", "true")
    world.refused(1, "spawn", "w2", *SPAWN, "--setup", "false")
    (tree / "new.txt").write_text("x\n")
    world.run("cleanup", "w1")
    world.ok("cleanup", "w1", "--discard", "--branch-delete")
    assert world.git("stash", "list", "--format=%H %gd") == before


def test_inside_a_hook_of_another_repository_only_the_directory_counts(world: World) -> None:
    """W17: a hook exports where its own repository is."""
    other = world.make_repo("other")
    before = [world.git("for-each-ref", cwd=other), world.git("status", "--porcelain", cwd=other)]
    index = (other / ".git" / "index").read_bytes()
    env = {
        "GIT_DIR": str(other / ".git"),
        "GIT_INDEX_FILE": str(other / ".git" / "index"),
        "GIT_WORK_TREE": str(other),
        "GIT_PREFIX": "",
        "GIT_COMMON_DIR": str(other / ".git"),
    }
    call = ["spawn", "w1", *SPAWN, "--setup", "git commit -q --allow-empty --dry-run || true"]
    worker = world.ok(*call, env=env)["worker"]
    assert worker["worktree"] == str(world.tree("w1"))
    (world.tree("w1") / "new.txt").write_text("x\n")
    assert world.ok("status", env=env)["workers"][0]["dirty"] == 1
    assert world.run("cleanup", "w1", env=env).code == 3
    world.ok("cleanup", "w1", "--discard", "--branch-delete", env=env)
    assert (other / ".git" / "index").read_bytes() == index
    assert before == [
        world.git("for-each-ref", cwd=other), world.git("status", "--porcelain", cwd=other)
    ]  # fmt: skip
    assert not (other / ".git" / "agent-workers").exists()


def test_through_a_linked_path_everything_is_the_same(world: World) -> None:
    """W39."""
    link = world.root / "link"
    link.symlink_to(world.repo)
    worker = world.ok("spawn", "w1", *SPAWN, cwd=link)["worker"]
    assert worker["worktree"] == str(world.tree("w1"))
    assert world.ok("cleanup", "w1", cwd=link)["removed"] == ["w1"]
    assert (world.repo / "README.md").exists()


def test_a_worktree_below_a_linked_folder_is_spawned_and_cleaned(world: World) -> None:
    (world.root / "real").mkdir()
    (world.root / "trees").symlink_to(world.root / "real")
    worker = world.ok("spawn", "w1", *SPAWN, "--worktree", str(world.root / "trees" / "w1"))
    assert worker["worker"]["worktree"] == str(world.root / "real" / "w1")
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]
    assert (world.root / "real").is_dir(), "a folder of the user's, though empty"


def test_a_folder_of_the_users_stays_when_the_last_tree_in_it_goes(world: World) -> None:
    mine = world.root / "mine"
    mine.mkdir()
    world.ok("spawn", "w1", *SPAWN, "--worktree", str(mine / "ours" / "w1"))
    world.ok("cleanup", "w1")
    assert mine.is_dir()
    assert not (mine / "ours").exists()


@pytest.mark.parametrize("content", [None, b"", b"*.log", b"*.log\n", b"/.worker-runs/\n*.log\n"])
def test_the_exclude_file_keeps_what_was_there(world: World, content: bytes | None) -> None:
    path = world.repo / ".git" / "info" / "exclude"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    for name in ("w1", "w2"):
        world.ok("spawn", name, *SPAWN)
    lines = path.read_bytes().split(b"\n")
    assert lines.count(b"/.worker-runs/") == 1
    assert content is None or (b"*.log" in lines) == (b"*.log" in content)
    assert world.git("status", "--porcelain") == ""


def test_git_list_shows_a_worker_as_an_ordinary_worktree(world: World) -> None:
    tree = world.idle("w1")
    assert world.worktrees() == [str(world.repo), str(tree)]
    assert world.git("config", "--get-regexp", r"^branch\.", check=False) == ""
    assert world.git("fsck", "--no-dangling") == ""
    assert world.git("status", "--porcelain", "--ignored", cwd=tree) in ("", "!! .worker-runs/")


def test_a_repository_with_sparse_checkout_gives_a_whole_record(world: World) -> None:
    """A tree where files are left out by plan holds no changes."""
    for name in ("a", "b"):
        (world.repo / name).mkdir()
        (world.repo / name / "x").write_text("x\n")
    world.commit("folders")
    world.git("sparse-checkout", "set", "--cone", "a")
    before = (world.repo / ".git" / "config").read_bytes()
    tree = world.idle("w1")
    assert (tree / "a" / "x").exists()
    assert world.ok("status")["workers"][0]["dirty"] == 0
    assert (world.repo / ".git" / "config").read_bytes() == before
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]


def test_a_commit_waits_in_an_editor_during_cleanup(world: World) -> None:
    """W59: its lock is younger than any rule, and stays."""
    tree = world.quick("w1")
    (tree / "README.md").write_text("mine\n")
    editor = world.root / "bin" / "editor"
    editor.write_text(
        '#!/bin/sh\ntouch "$WORLD/editing"\n'
        'while [ ! -e "$WORLD/go" ]; do sleep .05; done\necho done > "$1"\n'
    )
    editor.chmod(0o755)
    committing = subprocess.Popen(
        ["git", "commit", "-qa"], cwd=tree, env={**world.env, "GIT_EDITOR": str(editor)}
    )
    wait_for(lambda: (world.root / "editing").exists(), "the editor")
    lock = world.repo / ".git" / "worktrees" / "w1" / "index.lock"
    assert lock.exists()
    for more in ([], ["--discard"]):
        reasons = world.refusals("w1", *more)
        assert {"index-locked", "live-process"} <= set(reasons)
        assert lock.exists()
    (world.root / "go").touch()
    assert committing.wait(30) == 0
    assert "unmerged-commits" in world.refusals("w1")


def worker_json(world: World, name: str) -> dict[str, Any]:
    return json.loads((world.record(name) / "worker.json").read_text())


def test_the_record_names_exactly_what_was_made(world: World) -> None:
    world.git("branch", "w1-2")
    tree = world.idle("w1", "--branch", "task/w1", "--base", "main~0")
    record = worker_json(world, "w1")
    assert record["phase"] == "live"
    assert record["worktree"] == str(tree)
    assert record["admin_dir"] == str(world.repo / ".git" / "worktrees" / "w1")
    assert record["branch"] == "task/w1"
    assert record["base"] == world.git("rev-parse", "main")
    assert record["integration_branch"] == "refs/heads/main"
    assert os.stat(world.record("w1")).st_mode & 0o777 == 0o700
    assert os.stat(world.record("w1") / "worker.json").st_mode & 0o777 == 0o600
