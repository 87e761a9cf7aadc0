"""A spawn that fails leaves nothing behind but what somebody else has made meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from fanout import takeback
from fanout import workers as life
from world import World, wait_for

SPAWN = ["--prompt", "x", "--prompt-mode", "none", "--agent-cli", "/bin/true", "--settle", "0"]


def hook(world: World, text: str) -> Path:
    path = world.repo / ".git" / "hooks" / "post-checkout"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def agent(world: World, text: str) -> list[str]:
    """The options that make a shell script the agent."""
    path = world.root / "bin" / "agent"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return ["--prompt", "x", "--prompt-mode", "none", "--agent-cli", str(path), "--settle", "10"]


@pytest.mark.parametrize(
    ("options", "code", "exit_code"),
    [
        (["--setup", "echo made > made.txt; echo why; exit 3"], "setup-failed", 1),
        (["--setup", "git checkout -q --detach; exit 0"], "worktree-moved", 1),
        (["--setup", "sleep 600", "--timeout", "1"], None, 124),
        (["--setup", "mkdir -p a/b; echo x > a/b/c; chmod 500 a/b; false"], "setup-failed", 1),
        (["--copy", "README.md/nothing"], "copy-missing", 2),
        (["--agent-cli", "/nowhere/agent"], None, 4),
        (["--worktree", "../deep/er/w1", "--setup", "false"], "setup-failed", 1),
    ],
)
def test_whatever_fails_nothing_is_left_and_the_next_run_succeeds(
    world: World, options: list[str], code: str | None, exit_code: int
) -> None:
    before = world.snapshot()
    error = world.refused(exit_code, "spawn", "w1", *SPAWN, *options)
    assert code is None or error["code"] == code
    assert world.snapshot() == before
    assert not (world.root / "deep").exists()
    assert not world.tree("w1").parent.exists()
    assert not (world.repo / ".git" / "worktrees").exists() or not os.listdir(
        world.repo / ".git" / "worktrees"
    )
    world.ok("spawn", "w1", *SPAWN)


def test_the_error_of_a_failed_set_up_shows_what_it_printed(world: World) -> None:
    error = world.refused(1, "spawn", "w1", *SPAWN, "--setup", "echo 'no such compiler'; exit 9")
    assert "exit code 9" in error["message"]
    assert "no such compiler" in error["hint"]
    (kept,) = (world.repo / ".git" / "agent-workers" / "archive").glob("w1-*")
    assert "no such compiler" in (kept / "setup.log").read_text()


def test_what_a_set_up_started_ends_with_its_time(world: World) -> None:
    world.refused(124, "spawn", "w1", *SPAWN, "--setup", "setsid sleep 600 & sleep 600",
                  "--timeout", "1")  # fmt: skip
    assert not [line for line in world.processes().values() if line.startswith("sleep 600")]


def test_a_failing_hook_takes_everything_back(world: World) -> None:
    """W29: git itself leaves a whole worktree behind."""
    script = hook(world, "echo 'guard says no'; exit 3")
    before = world.snapshot()
    for _ in range(2):
        error = world.refused(1, "spawn", "w1", *SPAWN)
        assert error["code"] == "hook-failed"
        assert "guard says no" in error["hint"]
        assert world.snapshot() == before
    script.unlink()
    world.ok("spawn", "w1", *SPAWN)


def test_a_hook_that_checks_out_main_does_not_move_the_main_checkout(world: World) -> None:
    """W31."""
    hook(world, "git checkout main")
    before = world.snapshot()
    error = world.refused(1, "spawn", "w1", *SPAWN)
    assert "main" in error["hint"]
    assert world.snapshot() == before
    assert world.git("symbolic-ref", "HEAD") == "refs/heads/main"


def test_what_a_set_up_committed_is_taken_back_and_kept_under_a_ref(world: World) -> None:
    before = world.snapshot()
    setup = "echo x > x; git add x; git commit -qm 'by set-up'"
    error = world.refused(1, "spawn", "w1", *SPAWN, "--setup", setup)
    assert error["code"] == "worktree-moved"
    after = world.snapshot()
    ref = world.git("for-each-ref", "--format=%(refname)", "refs/agent-workers")
    assert world.git("log", "--format=%s", ref).splitlines()[1] == "by set-up"
    assert {**after, "refs": ""} == {**before, "refs": ""}
    world.ok("spawn", "w1", *SPAWN)


def test_an_agent_that_fails_at_once_is_taken_back_with_all_that_spawn_made(world: World) -> None:
    """T30: also a changed tracked file that was copied, and what set-up made."""
    (world.repo / ".git" / "info" / "exclude").write_text(".env\nbuilt/\n")
    (world.repo / ".env").write_text("A=1\n")
    (world.repo / "README.md").write_text("edited\n")
    before = world.snapshot()
    for _ in range(2):
        error = world.refused(
            1, "spawn", "w1", *agent(world, "exit 3"), "--copy", ".env", "--copy", "README.md",
            "--setup", "mkdir built; echo x > built/x; echo y > new.txt",
        )  # fmt: skip
        assert error["code"] == "agent-ended"
        assert world.snapshot() == before


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("echo mine > new.txt", "new.txt"),
        ("echo mine >> made.txt", "made.txt"),
        ("echo mine > built/late", "built/late"),
        ("echo mine >> .env", ".env"),
        ("echo mine > README.md; touch -d 2001-01-01 README.md", "README.md"),
        ("git commit -q --allow-empty -m mine", ""),
        ("git stash -q -u; echo mine > a.ign", "a.ign"),
    ],
)
def test_what_an_agent_changed_before_it_failed_is_kept(world: World, text: str, path: str) -> None:
    (world.repo / ".git" / "info" / "exclude").write_text(".env\nbuilt/\n*.ign\n")
    (world.repo / ".env").write_text("A=1\n")
    options = ["--copy", ".env", "--setup", "echo x > made.txt; mkdir built; echo x > built/x"]
    worker = world.ok("spawn", "w1", *agent(world, f"{text}; exit 3"), *options)["worker"]
    assert "already ended" in worker["note"]
    row = world.status("w1")
    assert (row["state"], row["exit_code"]) == ("exited", 3)
    if path:
        assert (world.tree("w1") / path).read_text().endswith("mine\n")
    else:
        assert row["ahead"] == 1


def test_an_agent_that_ends_well_is_kept(world: World) -> None:
    world.ok("spawn", "w1", *agent(world, "exit 0"))
    assert world.status("w1")["state"] == "exited"


def test_a_killed_spawn_is_taken_back_by_the_next_one(world: World) -> None:
    process = world.start("spawn", "w1", *SPAWN, "--setup", "touch started; sleep 600")
    wait_for(lambda: (world.tree("w1") / "started").exists(), "the set-up")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert world.status("w1")["state"] == "unknown"
    for pid, line in world.processes().items():
        if "sleep 600" in line:
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "sleep 600" not in " ".join(world.processes().values()), "the end of set-up")
    assert "spawn-unfinished" in world.refusals("w1", "--discard")
    world.ok("spawn", "w1", *SPAWN)
    assert not (world.tree("w1") / "started").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_spawn_takes_itself_back(world: World, number: signal.Signals) -> None:
    before = world.snapshot()
    process = world.start("spawn", "w1", *SPAWN, "--setup", "touch started; sleep 600")
    wait_for(lambda: (world.tree("w1") / "started").exists(), "the set-up")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert world.snapshot() == before
    assert not [line for line in world.processes().values() if "sleep 600" in line]


def test_a_spawn_killed_at_its_very_beginning(world: World) -> None:
    """A record without a file in it, and one without a tree."""
    world.record("w1").mkdir(parents=True)
    world.ok("spawn", "w1", *SPAWN)
    tree = world.quick("w2", phase="spawning", admin_dir="", argv=[])
    world.git("worktree", "remove", str(tree))
    world.git("branch", "-D", "w2")
    world.ok("spawn", "w2", *SPAWN)


# --- The second look --------------------------------------------------------------------------


def started(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, life.Worker, Path]:
    """A worker whose spawn was killed after its agent had started."""
    tree = world.quick("w1", phase="spawning")
    (world.record("w1") / "launch.sh").write_text("")
    repo = world.adopt(monkeypatch)
    return repo, life.load(repo.common_dir, "w1"), tree


def test_an_untouched_worker_is_taken_back_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.snapshot()
    repo, worker, tree = started(world, monkeypatch)
    (tree / ".worker-runs" / "changelog").mkdir(parents=True)
    (tree / ".worker-runs" / "changelog" / "w1.md").write_text("- new\n")
    assert takeback.take_back(repo, [worker]) == {}
    assert world.snapshot() == before
    (kept,) = (world.repo / ".git" / "agent-workers" / "archive").glob("w1-*")
    assert (kept / "worktree-runs" / "changelog" / "w1.md").read_text() == "- new\n"


def test_a_file_that_appears_while_the_tree_is_taken_back_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, worker, tree = started(world, monkeypatch)
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        real(source, target)
        if str(target).endswith(".removing"):
            Path(target, "late.txt").write_text("mine\n")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        kept = takeback.take_back(repo, [worker])
    assert "was kept" in kept["w1"]
    assert (tree / "late.txt").read_text() == "mine\n"
    assert world.worktrees() == [str(world.repo), str(tree)]
    assert json.loads((world.record("w1") / "worker.json").read_text())["phase"] == "live"
    assert world.branches() == {"main", "w1"}


def test_the_branch_stays_when_somebody_has_checked_it_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, worker, _ = started(world, monkeypatch)
    other = world.root / "other"
    world.git("worktree", "add", "-q", "--force", str(other), "w1")
    assert takeback.take_back(repo, [worker]) == {}
    assert "w1" in world.branches()
    assert world.git("status", "--porcelain", cwd=other) == ""


def test_a_tree_that_is_gone_already_takes_only_its_entry_along(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.snapshot()
    repo, worker, tree = started(world, monkeypatch)
    shutil.rmtree(tree)
    assert takeback.take_back(repo, [worker]) == {}
    assert world.snapshot() == {**before, "trees": []}


@pytest.mark.parametrize("changed", [False, True])
def test_a_take_back_that_was_killed_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    before = world.snapshot()
    repo, worker, tree = started(world, monkeypatch)
    aside = tree.with_name(".w1.removing")
    if changed:
        (tree / "mine.txt").write_text("mine\n")
    else:
        shutil.rmtree(world.repo / ".git" / "worktrees" / "w1")
    tree.rename(aside)
    assert bool(takeback.take_back(repo, [worker])) is changed
    assert not aside.exists()
    if changed:
        assert (tree / "mine.txt").read_text() == "mine\n"
    else:
        assert world.snapshot() == before
