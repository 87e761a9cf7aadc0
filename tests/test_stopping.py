"""`stop` of any number of workers together, each decided alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from fanout import proctree, steering, stopping
from fanout import workers as life
from fanout.errors import SkillError
from world import SCRIPTS, World, wait_for

NONE = ["--prompt-mode", "none", "--settle", "0"]


def spawn(world: World, names: list[str], text: str, **interactive: Any) -> None:
    """Workers in one call, whose agent is a shell script."""
    # A name of its own: one that is being started cannot be written.
    agent = world.root / "bin" / f"script-agent-{len(list((world.root / 'bin').iterdir()))}"
    agent.write_text(f"#!/bin/sh\n{text}\n")
    agent.chmod(0o755)
    mapping = world.root / "mapping.json"
    value = {"name": "ours", "executable": str(agent), "interactive": interactive}
    mapping.write_text(json.dumps(value))
    folder = world.root / f"prompts-{names[0]}"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.md").write_text("Do it.\n")
    world.ok("spawn", "--prompts-dir", str(folder), "--harness", str(mapping), *NONE)


def states(world: World) -> dict[str, tuple[str, int | None]]:
    """State and exit code of all workers."""
    rows = world.ok("status", "--no-files")["workers"]
    return {row["name"]: (row["state"], row["exit_code"]) for row in rows}


def ready(world: World, names: list[str]) -> None:
    """Wait until each agent has printed READY."""
    for name in names:
        wait_for(lambda name=name: "READY" in world.ok("capture", name)["text"], f"{name} is ready")


def hold(world: World, name: str) -> subprocess.Popen[bytes]:
    """A process that holds the lock of a worker."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fanout.workers import lock\nimport time\n"
        "with lock(sys.argv[2], sys.argv[3]):\n    print(flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(SCRIPTS), str(world.repo / ".git"), name],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.stdout.close()
    return holder


def test_many_that_ignore_every_polite_signal_take_as_long_as_one(world: World) -> None:
    names = [f"w{number}" for number in range(6)]
    spawn(world, names, "trap '' TERM HUP INT\necho READY\nwhile :; do sleep 0.2; done")
    ready(world, names)
    began = time.monotonic()
    rows = world.ok("stop", *names)["workers"]
    assert time.monotonic() - began < 3 * stopping.TERM_WAIT
    assert [(row["name"], row["result"]) for row in rows] == [(name, "stopped") for name in names]
    assert {word for word, _ in states(world).values()} == {"stopped"}
    assert "script-agent" not in str(world.processes())


def test_the_rows_stand_in_the_order_of_the_names_each_once(world: World) -> None:
    spawn(world, ["b", "a", "c"], "exec sleep 600")
    world.ok("stop", "c")
    rows = world.ok("stop", "b", "c", "a", "b")["workers"]
    assert [(row["name"], row["result"]) for row in rows] == [
        ("b", "stopped"),
        ("c", "not running"),
        ("a", "stopped"),
    ]


def test_all_are_asked_to_leave_by_their_keys_also_beside_one_that_is_gone(world: World) -> None:
    """TERM would have given 143."""
    names = ["w1", "w2", "w3", "w4"]
    text = "trap 'exit 7' INT\necho READY\nwhile :; do sleep 0.1; done"
    spawn(world, names, text, leave_keys=["C-c"])
    ready(world, names)
    pane = world.status("w2")["pane"]
    world.tmux("kill-pane", "-t", pane)
    world.tmux("copy-mode", "-t", world.status("w3")["pane"])
    world.ok("stop", *names)
    found = states(world)
    assert [found[name] for name in ("w1", "w3", "w4")] == [("stopped", 7)] * 3
    assert "script-agent" not in str(world.processes())


def test_what_leaves_by_its_keys_is_not_kept_waiting(world: World) -> None:
    names = ["w1", "w2"]
    spawn(world, names, "trap 'exit 7' INT\necho READY\nwhile :; do sleep 0.1; done",
          leave_keys=["C-c"])  # fmt: skip
    ready(world, names)
    began = time.monotonic()
    world.ok("stop", *names)
    assert time.monotonic() - began < stopping.LEAVE_WAIT


def test_a_busy_worker_does_not_hinder_the_others_and_gets_its_turn(world: World) -> None:
    spawn(world, ["w1", "w2"], "exec sleep 600")
    holder = hold(world, "w1")
    stopping_them = world.start("stop", "w1", "w2", "--json")
    wait_for(lambda: states(world)["w2"][0] == "stopped", "w2 is stopped")
    assert states(world)["w1"][0] in ("running", "starting")
    holder.kill()
    holder.wait(10)
    out, _ = stopping_them.communicate(timeout=30)
    assert [row["result"] for row in json.loads(out)["data"]["workers"]] == ["stopped", "stopped"]


def test_one_that_stays_busy_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn(world, ["w1", "w2"], "exec sleep 600")
    holder = hold(world, "w1")
    repo = world.adopt(monkeypatch)
    monkeypatch.setattr(stopping, "LOCK_WAIT", 0.2)
    done = stopping.stop_all(repo, ["w1", "w2"])
    assert isinstance(done["w1"], SkillError)
    assert (done["w1"].code, done["w2"]) == ("busy", "stopped")
    holder.kill()
    holder.wait(10)


def test_one_whose_record_cannot_be_written_is_left_alone(world: World) -> None:
    spawn(world, ["w1", "w2"], "exec sleep 600")
    log = world.record("w1") / "events.jsonl"
    log.rename(log.with_name("kept"))
    log.mkdir()
    ran = world.run("stop", "w1", "w2", "--json")
    assert (ran.code, ran.error["code"]) == (1, "file-failed")
    assert [row["result"] for row in ran.data["workers"]] == [None, "stopped"]
    assert states(world)["w1"][0] in ("running", "starting")


def test_a_server_that_gives_no_answer_keeps_its_workers_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn(world, ["w1"], "exec sleep 600")
    spawn(world, ["w2"], "exec sleep 600")
    repo = world.adopt(monkeypatch)
    path = world.record("w1") / "worker.json"
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "socket_path": str(world.repo / "README.md" / "s")}))
    done = stopping.stop_all(repo, ["w1", "w2"])
    assert isinstance(done["w1"], SkillError)
    assert (done["w1"].code, done["w2"]) == ("state-unknown", "stopped")
    path.write_text(json.dumps(value))
    assert states(world)["w1"][0] in ("running", "starting")


# --- A socket that was deleted --------------------------------------------------------------


def servers(world: World) -> list[int]:
    """The tmux servers of this world."""
    found: list[int] = []
    for pid in world.processes():
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                found += [pid] * (file.read() == "tmux: server\n")
        except OSError:
            continue
    return found


def test_a_server_whose_socket_was_deleted_ends_with_its_last_worker(world: World) -> None:
    spawn(world, ["w1", "w2"], "exec sleep 600")
    (server,) = servers(world)
    world.sockets()[0].unlink()
    assert states(world)["w1"][0] == "unknown"
    assert servers(world) == [server]
    world.ok("stop", "w1")
    assert states(world)["w2"][0] in ("running", "starting")
    world.ok("stop", "w2")
    world.ok("cleanup", "w1", "w2", "--branch-delete")
    wait_for(lambda: servers(world) == [], "the end of the server")


@pytest.mark.parametrize("verb", ["resume", "send"])
def test_a_verb_that_changes_something_reaches_a_worker_without_a_socket(
    world: World, verb: str
) -> None:
    world.spawn_fake("w1", "echo", *NONE)
    wait_for(lambda: "READY" in world.ok("capture", "w1")["text"], "the agent")
    world.sockets()[0].unlink()
    ran = world.run(verb, "w1", "--prompt", "more", "--json")
    assert ran.code == 0 if verb == "send" else ran.error["code"] == "still-running", ran
    assert world.status("w1")["state"] == "running"


def test_only_the_parent_of_the_very_launcher_is_asked_for_a_socket(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR1 ends most programs, and a server that took the place keeps it."""
    spawn(world, ["w1"], "exec sleep 600")
    repo = world.adopt(monkeypatch)
    worker = life.load(repo.common_dir, "w1")
    (server,) = servers(world)
    (socket,) = world.sockets()
    asked: list[tuple[int, int]] = []

    def ask(process: proctree.Process, number: signal.Signals) -> None:
        asked.append((process.pid, number))

    monkeypatch.setattr(steering, "SOCKET_WAIT", 0.1)
    monkeypatch.setattr(proctree, "send_signal", ask)
    steering.reach([worker])
    assert asked == []
    socket.unlink()
    steering.reach([worker._replace(pane_started="another time")])
    steering.reach([worker._replace(boot_id="an earlier boot")])
    steering.reach([worker._replace(pane_pid=os.getpid())])
    other = subprocess.Popen(["sleep", "600"], env=world.env)
    started = proctree.start_time(other.pid) or ""
    steering.reach([worker._replace(pane_pid=other.pid, pane_started=started)])
    other.kill()
    other.wait(10)
    world.tmux("new-session", "-d", "-s", "other", "sleep 600", socket=socket)
    steering.reach([worker])
    assert asked == []
    world.tmux("kill-server", socket=socket)
    socket.unlink(missing_ok=True)
    steering.reach([worker, worker])
    assert asked == [(server, signal.SIGUSR1)]
    os.kill(server, signal.SIGUSR1)
    wait_for(socket.exists, "the socket")
