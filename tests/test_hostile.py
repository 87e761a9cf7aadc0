"""What an agent or a person can do to git and to the records, and what must hold all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fanout import proctree
from world import AGENT_WORKERS, World, wait_for

IDLE = ("--prompt-mode", "none", "--settle", "0")


def test_a_branch_that_stands_for_another_is_never_deleted(world: World) -> None:
    """`update-ref -d` on a symbolic ref deletes what it stands for."""
    tree = world.quick("w1")
    main = world.git("rev-parse", "main")
    world.git("checkout", "-q", "--detach", cwd=tree)
    world.git("symbolic-ref", "refs/heads/w1", "refs/heads/main")
    assert "branch-replaced" in world.refusals("w1", "--branch-delete")
    assert "branch-replaced" in world.refusals("w1", "--discard", "--branch-delete")
    assert world.git("rev-parse", "main") == main


def test_a_tree_that_git_is_told_to_look_for_elsewhere_is_looked_at_here(world: World) -> None:
    tree = world.quick("w1")
    elsewhere = world.root / "elsewhere"
    world.git("clone", "-q", str(world.repo), str(elsewhere))
    world.git("config", "extensions.worktreeConfig", "true", cwd=tree)
    world.git("config", "--worktree", "core.worktree", str(elsewhere), cwd=tree)
    (tree / "precious.txt").write_text("precious\n")
    (tree / "README.md").write_text("changed\n")
    assert world.status("w1")["dirty"] == 2
    reasons = world.refusals("w1", "--branch-delete")
    assert reasons["untracked"] == ["precious.txt"]
    assert reasons["modified"] == ["README.md"]
    world.ok("cleanup", "w1", "--discard")
    refs = world.git("for-each-ref", "--format=%(refname)", "refs/agent-workers/rescue").split()
    assert world.git("show", f"{refs[-1]}:precious.txt") == "precious"
    assert world.git("show", f"{refs[-1]}:README.md") == "changed"


def test_files_that_differ_only_by_case_are_two_files(world: World) -> None:
    tree = world.quick("w1")
    world.git("config", "core.ignoreCase", "true")
    (tree / "readme.MD").write_text("precious\n")
    assert world.refusals("w1")["untracked"] == ["readme.MD"]


def test_a_grafted_history_proves_nothing(world: World) -> None:
    tree = world.quick("w1", integration_branch="refs/heads/main")
    world.commit("work", tree)
    world.git("replace", "--graft", "main", "w1")
    assert "unmerged-commits" in world.refusals("w1", "--branch-delete")
    world.git("replace", "-d", world.git("rev-parse", "main"))
    grafts = world.repo / ".git" / "info" / "grafts"
    grafts.write_text(f"{world.git('rev-parse', 'main')} {world.git('rev-parse', 'w1')}\n")
    assert "unmerged-commits" in world.refusals("w1", "--branch-delete")


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_nothing_is_written_where_an_agent_has_put_something_else(world: World, kind: str) -> None:
    world.spawn("w1", "x", *IDLE)
    wait_for(lambda: "idle" in world.ok("capture", "w1")["text"], "the agent is idle")
    runs = world.tree("w1") / ".worker-runs"
    for path in runs.iterdir():
        path.unlink()
    runs.rmdir()
    outside = world.root / "outside"
    outside.mkdir()
    (outside / "worker.json").write_text("precious\n")
    if kind == "link":
        runs.symlink_to(outside)
    elif kind == "file":
        runs.write_text("not a folder\n")
    else:
        (runs / "worker.json").mkdir(parents=True)
    assert world.refused(3, "send", "w1", "--prompt", "hello")["code"] == "runs-replaced"
    assert (outside / "worker.json").read_text() == "precious\n"
    assert world.prompts() == []
    assert not (world.record("w1") / "sending.json").exists()


def test_an_agent_that_lives_without_its_socket_is_unknown_and_not_gone(world: World) -> None:
    world.spawn("w1", "x", *IDLE)
    (socket,) = world.sockets()
    os.unlink(socket)
    row = world.status("w1")
    assert (row["state"], row["job"]["state"]) == ("unknown", "open")
    assert world.run("wait", "w1", "--timeout", "0.5").code == 124
    world.ok("stop", "w1")
    assert "sample_agent" not in str(world.processes())


def test_a_launcher_that_has_not_come_to_its_agent_is_unknown_and_not_gone(world: World) -> None:
    """Until then nothing carries the worker's mark."""
    launcher = subprocess.Popen(["sleep", "600"])
    try:
        facts = {"pane_pid": launcher.pid, "pane_started": proctree.start_time(launcher.pid)}
        world.quick("w1", **facts, boot_id=proctree.boot_id())
        world.quick("w2", **facts, boot_id="another")
        assert (world.status("w1")["state"], world.status("w2")["state"]) == ("unknown", "gone")
    finally:
        launcher.kill()
        launcher.wait(10)
    assert world.status("w1")["state"] == "gone"


def test_a_bad_line_in_the_log_of_exits_spoils_nothing(world: World) -> None:
    world.idle("w1")
    world.idle("w2")
    record = json.loads((world.record("w1") / "worker.json").read_text())
    with open(world.record("w1") / "exits.jsonl", "a", encoding="utf-8") as file:
        for code in ('"x"', "null", "true", "{}"):
            data = f'{{"launch": "{record["launch"]}", "exit_code": {code}}}'
            file.write(f'{{"event": "exited", "at": "x", "data": {data}}}\n')
        file.write(
            f'{{"event": "exited", "at": "x", "data": {{"launch": "{record["launch"]}"}}}}\n'
        )
    assert world.status("w1")["exit_code"] == 0
    assert world.status("w2")["exit_code"] == 0


def test_an_agents_own_log_cannot_open_or_redefine_a_job(world: World) -> None:
    world.spawn("w1", "x", *IDLE)
    later = "2999-01-01T00:00:00Z"
    lines: list[tuple[str, str, str, dict[str, Any]]] = [
        ("progress", "9999", "0009", {"opens": True}),
        ("progress", later, "0001", {"opens": True, "before": "z"}),
        ("cancelled", later, "0001", {}),
        ("stopped", later, "0001", {}),
        ("delivered", later, "\ud800", {"opens": True}),
        ("spawned", later, "0777", {"opens": True}),
    ]
    with open(world.tree("w1") / ".worker-runs" / "events.jsonl", "a", encoding="utf-8") as file:
        for kind, at, job, data in lines:
            line = {"event": kind, "at": at, "job": job, "data": data}
            file.write(json.dumps(line) + "\n")
    row = world.status("w1")["job"]
    assert (row["id"], row["state"]) == ("0001", "open")
    subprocess.run(
        [sys.executable, str(AGENT_WORKERS), "event", "completed", "--data", '{"opens": true}'],
        cwd=world.tree("w1"), env=world.env, check=True, capture_output=True,
    )  # fmt: skip
    row = world.status("w1")["job"]
    assert (row["id"], row["state"]) == ("0001", "completed")


def test_variables_of_any_name_reach_the_agent(world: World) -> None:
    agent = world.root / "bin" / "env-agent"
    agent.write_text('#!/bin/sh\nenv >"$WORLD/env.txt"\nexec sleep 600\n')
    agent.chmod(0o755)
    names = ("record", "worktree", "launch", "keep", "name", "at", "status")
    own = {name: f"mine-{name}" for name in names}
    call = ["spawn", "w1", "--prompt", "x", "--agent-cli", "env-agent", *IDLE]
    world.ok(*call, "--env", "worktree=/given", env=own)
    wait_for(lambda: "AGENT_WORKER_EVENT" in (world.root / "env.txt").read_text()
             if (world.root / "env.txt").exists() else False, "the agent ran")  # fmt: skip
    seen = set((world.root / "env.txt").read_text().splitlines())
    assert {f"{name}=mine-{name}" for name in names if name != "worktree"} <= seen
    assert "worktree=/given" in seen
    error = world.refused(2, *call, "--env", "AGENT_WORKER_ID=evil")
    assert error["code"] == "invalid-env"


def test_every_folder_of_the_records_is_private_whatever_the_umask(world: World) -> None:
    before = os.umask(0)
    try:
        world.spawn("w1", "x", *IDLE)
    finally:
        os.umask(before)
    home = world.repo / ".git" / "agent-workers"
    for path in (home, *home.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode & 0o077 == 0, (path, oct(mode))


def test_resume_does_not_repeat_a_task_that_is_done(world: World) -> None:
    world.spawn("w1", "Do it once.\n@report completed done", "--settle", "0")
    wait_for(lambda: world.status("w1")["job"]["state"] == "completed", "the job is done")
    world.ok("stop", "w1")
    world.ok("resume", "w1", "--settle", "0")
    told = wait_for(lambda: world.prompts()[1:], "the resumed agent has a prompt")[0]["prompt"]
    assert "Do it once." not in told
    assert "Go on with your task" in told
