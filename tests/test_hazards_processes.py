"""Processes, records and output that go wrong (hazards C..), as they meet the verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from world import FAKE_AGENT, SCRIPTS, World, kill, wait_for

QUICK = ["--prompt-mode", "none", "--settle", "0"]


def spawn(world: World, name: str, mode: str, *words: str) -> None:
    """A worker with a fake agent and no prompt to wait for."""
    ran = world.run("spawn", name, "--prompt", "hello", *world.fake(mode, *words), *QUICK, "--json")
    assert ran.code == 0, ran


def agents(world: World, words: str) -> list[int]:
    """The processes of this world whose command line holds these words, launchers left out."""
    return [
        pid for pid, line in world.processes().items() if words in line and "launch.sh" not in line
    ]


def damage(world: World, name: str, content: bytes) -> Path:
    """Put something else into a worker's record."""
    path = world.record(name) / "worker.json"
    path.write_bytes(content)
    return path


# --- Ending ---------------------------------------------------------------------------------


def test_stop_ends_what_a_wrapper_started(world: World) -> None:
    """C04: the agent is the child of a script, and the script goes on after it."""
    wrapper = world.root / "bin" / "wrap"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} {FAKE_AGENT} bp "$@"\nsleep 611\n')
    wrapper.chmod(0o755)
    world.ok("spawn", "w1", "--prompt", "x", "--agent-cli", str(wrapper), *QUICK)
    wait_for(lambda: agents(world, "fake_agent.py bp"), "the inner agent")
    world.ok("stop", "w1")
    assert not agents(world, "fake_agent.py")
    assert not agents(world, "sleep 611")
    assert not agents(world, "wrap")
    assert world.status("w1")["state"] == "stopped"


def test_stop_finds_orphans_in_a_session_of_their_own(world: World) -> None:
    """C10: `setsid` and `nohup` children whose parent is gone are found by their mark."""
    script = world.root / "bin" / "leaver"
    script.write_text(
        "#!/bin/sh\nsetsid sleep 612 </dev/null >/dev/null 2>&1 &\n"
        "nohup sleep 613 </dev/null >/dev/null 2>&1 &\nexec sleep 614\n"
    )
    script.chmod(0o755)
    world.ok("spawn", "w1", "--prompt", "x", "--agent-cli", str(script), *QUICK)
    (main,) = wait_for(lambda: agents(world, "sleep 614"), "the agent")
    kill(main)
    world.wait_state("w1", "exited")
    assert agents(world, "sleep 612")
    assert agents(world, "sleep 613")
    refused = world.run("cleanup", "w1", "--json")
    assert refused.code == 3
    (reason,) = [r for r in refused.data["refused"][0]["reasons"] if r["code"] == "running"]
    assert len(reason["paths"]) == 2
    assert world.tree("w1").is_dir()
    world.ok("stop", "w1")
    assert not agents(world, "sleep 61")
    world.ok("cleanup", "w1")
    assert not world.tree("w1").exists()


def test_an_agent_that_ignores_every_polite_signal_is_killed_and_gone(world: World) -> None:
    """C26: "stopped" only when it is true."""
    spawn(world, "w1", "stubborn")
    (agent,) = wait_for(lambda: agents(world, "fake_agent.py stubborn"), "the agent")
    wait_for(lambda: "READY" in world.ok("capture", "w1")["text"], "its handlers")
    world.ok("stop", "w1")
    assert not Path(f"/proc/{agent}").exists() or not agents(world, "stubborn")
    assert world.status("w1")["state"] == "stopped"
    assert world.tree("w1").is_dir(), "stop takes nothing but the agent"
    assert world.branches() == {"main", "w1"}


def test_cleanup_of_a_running_worker_is_refused_and_kills_nothing(world: World) -> None:
    """C26."""
    spawn(world, "w1", "stubborn")
    (agent,) = wait_for(lambda: agents(world, "fake_agent.py stubborn"), "the agent")
    before = world.snapshot()
    ran = world.run("cleanup", "w1", "--discard", "--branch-delete", "--json")
    assert ran.code == 3
    assert "running" in [reason["code"] for reason in ran.data["refused"][0]["reasons"]]
    assert world.snapshot() == before
    assert agents(world, "fake_agent.py stubborn") == [agent]


def test_stop_leaves_every_other_process_alone(world: World) -> None:
    """Killing by name would reach the neighbour and this bystander."""
    spawn(world, "w1", "bp")
    spawn(world, "w2", "bp")
    bystander = subprocess.Popen(["sleep", "615"], env=world.env, cwd=world.tree("w1"))
    wait_for(lambda: len(agents(world, "fake_agent.py bp")) == 2, "both agents")
    world.ok("stop", "w1")
    assert len(agents(world, "fake_agent.py bp")) == 1
    world.wait_state("w2", "running")
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait(10)


def test_stop_twice_says_so(world: World) -> None:
    spawn(world, "w1", "bp")
    assert world.ok("stop", "w1")["workers"][0]["result"] == "stopped"
    assert world.ok("stop", "w1")["workers"][0]["result"] == "not running"


def test_one_unknown_name_stops_nothing(world: World) -> None:
    spawn(world, "w1", "bp")
    assert world.refused(2, "stop", "w1", "nobody")["code"] == "unknown-worker"
    assert world.status("w1")["state"] in ("starting", "running")


# --- Output ---------------------------------------------------------------------------------


def test_output_that_is_no_utf8_is_shown_without_a_fault(world: World) -> None:
    """C16: on the screen, in the log and as a file name."""
    script = world.root / "bin" / "latin1"
    script.write_text(
        "#!/bin/sh\nprintf 'caf\\351 end\\n'; : >\"$(printf 'f\\351')\"; exec sleep 616\n"
    )
    script.chmod(0o755)
    world.ok("spawn", "w1", "--prompt", "x", "--agent-cli", str(script), *QUICK)
    wait_for(lambda: "end" in world.ok("capture", "w1")["text"], "the output")
    assert world.ok("capture", "w1", "--log")["text"].startswith("caf\ufffd end")
    assert world.run("capture", "w1").code == 0
    wait_for(lambda: world.status("w1")["dirty"] == 1, "the file")
    world.ok("stop", "w1")
    ran = world.run("cleanup", "w1", "--json")
    assert ran.code == 3
    assert ran.data["refused"][0]["reasons"][0]["paths"] == ["f\udce9"]
    assert world.run("cleanup", "w1").code == 3


# --- Records --------------------------------------------------------------------------------


def test_a_damaged_record_is_named_and_left_while_the_others_work(world: World) -> None:
    """C20, C22: every verb; what damage is told apart stands in test_records.py."""
    spawn(world, "w1", "bp")
    spawn(world, "w2", "bp")
    for content, words in (
        (b"", "at byte 0"),
        (b'{"schema": 1}{"name": "old"}', "at byte 13"),
        (b'{"schema": 1, "name": "w1"}', "worker.json"),
        (b'{"schema": 1, "name": "w', "at byte"),
    ):
        path = damage(world, "w1", content)
        ran = world.run("status", "--no-files", "--json")
        assert ran.code == 1
        assert [row["name"] for row in ran.data["workers"]] == ["w2"]
        (told,) = ran.data["damaged"]
        assert str(path) in told["message"]
        assert words in told["message"]
        assert path.read_bytes() == content
    for verb in (["capture", "w1"], ["send", "w1", "--prompt", "x"], ["attach", "w1", "--print"]):
        assert world.refused(1, *verb)["code"] == "record-damaged"
    stopped = world.run("stop", "w1", "w2", "--json")
    assert stopped.code == 1
    assert [row["ok"] for row in stopped.data["workers"]] == [False, True]
    cleaned = world.run("cleanup", "w1", "w2", "--json")
    assert cleaned.code == 3
    assert cleaned.data["removed"] == ["w2"]
    assert cleaned.data["refused"][0]["name"] == "w1"
    assert world.run("spawn", "w1", "--prompt", "x", *world.fake("bp"), *QUICK).code != 0
    assert path.read_bytes() == content
    assert world.tree("w1").is_dir()


def test_torn_events_are_skipped(world: World) -> None:
    spawn(world, "w1", "bp")
    with (world.record("w1") / "events.jsonl").open("ab") as file:
        file.write(b'{"schema": 1, "event": "exi')
    runs = world.tree("w1") / ".worker-runs"
    (runs / "events.jsonl").write_bytes(b"\xff\xfe\n[]\n" + b"{" * 1000)
    assert world.status("w1")["state"] in ("starting", "running")
    world.ok("stop", "w1")
    assert world.status("w1")["state"] == "stopped"


def test_a_pipe_that_an_agent_puts_in_its_logs_place_blocks_nothing(world: World) -> None:
    spawn(world, "w1", "bp")
    os.mkfifo(world.tree("w1") / ".worker-runs" / "events.jsonl")
    ran = world.run("status", "--json", seconds=30)
    assert ran.data["workers"][0]["name"] == "w1"


# --- Locks ----------------------------------------------------------------------------------


def test_a_worker_that_another_command_holds_is_busy(world: World) -> None:
    spawn(world, "w1", "bp")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fanout.workers import lock\nimport time\n"
        "with lock(sys.argv[2], 'w1'):\n    print(flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(SCRIPTS), str(world.repo / ".git")],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    before = world.snapshot()
    ran = world.run("cleanup", "w1", "--json")
    assert ran.code in (3, 11)
    assert "another command is working on" in json.dumps(ran.json)
    error = world.refused(11, "spawn", "w1", "--prompt", "x", *world.fake("bp"), *QUICK)
    assert error["code"] == "busy"
    assert "'w1'" in error["message"]
    assert world.snapshot() == before
    assert world.status("w1")["name"] == "w1", "looking needs no lock"
    holder.kill()
    holder.wait(10)
    holder.stdout.close()
    world.ok("stop", "w1")
