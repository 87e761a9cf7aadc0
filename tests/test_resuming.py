"""`resume`: the same tree and branch, and the same conversation where the mapping knows how."""

from __future__ import annotations

import json
import shutil
from typing import Any

from world import SAMPLE_AGENT, World, kill, wait_for

IDLE = ("--prompt-mode", "none", "--settle", "0")


def mapping(world: World) -> str:
    """A mapping of the sample agent that can take up a conversation again."""
    path = world.root / "mapping.json"
    value: dict[str, Any] = {
        "name": "sample",
        "executable": str(SAMPLE_AGENT),
        "interactive": {
            "prompt_mode": "paste",
            "ready": "idle  \\? for help",
            "busy": "working",
            "leave_keys": ["C-c", "C-c"],
        },
        "session": {
            "new_args": ["--session", "{session_id}"],
            "resume_args": ["--resume", "{session_id}"],
        },
    }
    path.write_text(json.dumps(value))
    return str(path)


def kill_server(world: World) -> None:
    """What a crash of tmux or of the machine leaves: no server, no agents."""
    world.kill()
    wait_for(lambda: not world.sessions(), "the server is gone")


def test_stop_then_resume_goes_on_in_the_same_tree_and_opens_a_job(world: World) -> None:
    world.spawn("w1", "First task.", *IDLE)
    (world.tree("w1") / "half.txt").write_text("half\n")
    world.ok("stop", "w1")
    assert world.status("w1")["job"]["state"] == "cancelled"
    done = world.ok("resume", "w1", "--prompt", "@write more.txt x\n@report completed ok")["worker"]
    assert done["conversation"] == "new"
    assert done["worktree"] == str(world.tree("w1"))
    assert (world.tree("w1") / "half.txt").read_text() == "half\n"
    row = world.wait_state("w1", "running")
    assert (row["branch"], row["job"]["id"]) == ("w1", "0002")
    assert world.sessions() == ["agent-worker-w1"]


def test_a_new_session_is_told_so_and_gets_the_first_task_again(world: World) -> None:
    world.spawn("w1", "Paint it blue.\n@sleep 600", "--settle", "0")
    world.ok("stop", "w1")
    world.ok("resume", "w1")
    told = wait_for(lambda: world.prompts()[1:], "the resumed agent has a prompt")[0]["prompt"]
    assert told.startswith("This is a new session")
    assert "Paint it blue." in told
    assert "Working agreement" in told


def test_the_same_conversation_is_taken_up_where_the_mapping_knows_how(world: World) -> None:
    world.ok("spawn", "w1", "--prompt", "Remember 42.", "--harness", mapping(world))
    record = json.loads((world.record("w1") / "worker.json").read_text())
    assert record["session_id"]
    world.ok("stop", "w1")
    done = world.ok("resume", "w1", "--prompt", "What was it?")["worker"]
    assert (done["conversation"], done["delivered"]) == ("same", True)
    screen = world.ok("capture", "w1", "--lines", "60")["text"]
    assert f"resumed {record['session_id']} with 1 earlier prompt" in screen
    assert world.prompts()[-1]["prompt"] == "What was it?"


def test_a_dead_tmux_server_is_gone_and_resume_brings_it_back(world: World) -> None:
    world.spawn("w1", "Task.", *IDLE)
    kill_server(world)
    row = world.status("w1")
    assert row["state"] == "gone"
    assert row["job"]["state"] == "failed"
    world.ok("resume", "w1", "--prompt", "Go on.")
    world.wait_state("w1", "running")


def test_after_a_reboot_reused_ids_do_not_look_like_the_old_agent(world: World) -> None:
    """Pane %0 and the socket exist again, and the pid is somebody's: it is gone all the same."""
    world.spawn("w1", "Task.", *IDLE)
    kill_server(world)
    path = world.record("w1") / "worker.json"
    record = json.loads(path.read_text())
    world.spawn("w2", "Other.", *IDLE)
    other = json.loads((world.record("w2") / "worker.json").read_text())
    record["boot_id"] = "an earlier boot"
    record["pane_pid"] = other["pane_pid"]
    path.write_text(json.dumps(record))
    assert record["pane"] == other["pane"]
    assert world.status("w1")["state"] == "gone"
    assert world.run("wait", "w1").code == 1
    assert world.run("send", "w1", "--prompt", "x").code == 3
    world.wait_state("w2", "running")
    # Stopping the dead one must not touch the living one that has its pid and pane.
    world.ok("stop", "w1")
    world.wait_state("w2", "running")


def test_a_running_worker_is_not_resumed(world: World) -> None:
    world.spawn("w1", "Task.", *IDLE)
    before = world.snapshot()
    assert world.refused(3, "resume", "w1")["code"] == "still-running"
    assert world.snapshot() == before


def test_orphans_of_the_earlier_start_must_be_ended_first(world: World) -> None:
    world.run(
        "spawn", "w1", "--prompt", "x", *world.fake("orphan", "600"), "--prompt-mode", "none",
        "--settle", "0",
    )  # fmt: skip
    wait_for(lambda: any("sleep 600" in c for c in world.processes().values()), "the orphan")
    record = json.loads((world.record("w1") / "worker.json").read_text())
    kill(record["pane_pid"])
    world.kill("fake_agent")
    wait_for(lambda: world.status("w1")["state"] in ("exited", "gone"), "the agent is dead")
    assert world.refused(3, "resume", "w1")["code"] == "still-running"
    world.ok("stop", "w1")
    assert not any("sleep 600" in command for command in world.processes().values())


def test_without_its_tree_a_worker_cannot_go_on(world: World) -> None:
    world.spawn("w1", "Task.", *IDLE)
    world.ok("stop", "w1")
    shutil.rmtree(world.tree("w1"))
    assert world.refused(3, "resume", "w1")["code"] == "worktree-unfit"


def test_a_missing_agent_is_4_and_starts_nothing(world: World) -> None:
    agent = world.root / "bin" / "my-agent"
    agent.symlink_to(SAMPLE_AGENT)
    world.ok("spawn", "w1", "--prompt", "x", "--agent-cli", "my-agent", *IDLE)
    world.ok("stop", "w1")
    agent.unlink()
    before = world.snapshot()
    assert world.refused(4, "resume", "w1")["code"] == "agent-missing"
    assert world.snapshot() == before


def test_an_agent_that_ends_at_once_fails_the_resume_and_keeps_the_work(world: World) -> None:
    agent = world.root / "bin" / "my-agent"
    agent.write_text(f"#!/bin/sh\nexec {SAMPLE_AGENT}\n")
    agent.chmod(0o755)
    world.ok("spawn", "w1", "--prompt", "x", "--agent-cli", "my-agent", *IDLE)
    world.ok("stop", "w1")
    (world.tree("w1") / "work.txt").write_text("work\n")
    agent.write_text("#!/bin/sh\necho broken; exit 7\n")
    error = world.refused(1, "resume", "w1")
    assert error["code"] == "agent-ended"
    assert "7" in error["message"]
    assert (world.tree("w1") / "work.txt").exists()
    assert world.status("w1")["exit_code"] == 7


def test_resume_after_resume_keeps_every_log_and_prompt(world: World) -> None:
    world.spawn("w1", "One.", "--settle", "0")
    for text in ("Two.", "Three."):
        world.ok("stop", "w1")
        world.ok("resume", "w1", "--prompt", text)
    names = {path.name for path in world.record("w1").iterdir()}
    assert {"terminal.log", "terminal.1.log", "terminal.2.log"} <= names
    prompts = sorted(path.name for path in (world.record("w1") / "prompts").iterdir())
    assert prompts == ["0001.md", "0002.md", "0003.md"]
    kinds = [row["event"] for row in world.ok("events", "w1")["events"]]
    assert (kinds.count("resumed"), kinds.count("stopped")) == (2, 2)
