"""`stop` of any number of workers together, each decided alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fanout import ending, proctree, steering
from fanout import workers as life
from fanout.errors import SkillError
from world import AGENT_WORKERS, SCRIPTS, World, kill, wait_for

ARGUMENT = ("--prompt-mode", "argument", "--prompt-arg=--prompt=", "--settle", "0")


def report(world: World, name: str, *words: str) -> None:
    """Report as the agent of a worker does."""
    subprocess.run(
        [sys.executable, str(AGENT_WORKERS), "event", *words],
        cwd=world.tree(name), env=world.env, check=True, capture_output=True,
    )  # fmt: skip


def spawn_idle(world: World, *names: str) -> None:
    """Workers whose agents do nothing by themselves."""
    for name in names:
        world.spawn(name, "Wait.", "--prompt-mode", "none", "--settle", "0")


def ended(process: subprocess.Popen[bytes], seconds: float = 20.0) -> tuple[int, dict[str, Any]]:
    """The exit code and answer of a wait that must come to its end."""
    out, _ = process.communicate(timeout=seconds)
    return process.returncode, json.loads(out)


def still_waits(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has not ended after two of its own rounds."""
    try:
        process.wait(0.6)
    except subprocess.TimeoutExpired:
        return True
    return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (proc(5): SigCgt, a mask)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [line.split()[1] for line in lines if line.startswith("SigCgt")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_without_names_all_open_jobs_are_waited_for(world: World) -> None:
    spawn_idle(world, "a", "b", "c")
    report(world, "c", "error")
    ran = world.run("wait", "--timeout", "0.1", "--json")
    assert {row["name"] for row in ran.data["workers"]} == {"a", "b"}
    assert ran.code == 124


def test_no_open_job_is_0(world: World) -> None:
    assert world.ok("wait") == {"workers": []}


def test_wait_ends_when_all_have_completed(world: World) -> None:
    spawn_idle(world, "a", "b")
    waiting = world.start("wait", "a", "b", "--json")
    report(world, "a", "completed", "--message", "done a")
    assert still_waits(waiting)
    report(world, "b", "completed")
    code, answer = ended(waiting)
    assert code == 0
    rows = {row["name"]: row["job"] for row in answer["data"]["workers"]}
    assert (rows["a"]["state"], rows["a"]["message"]) == ("completed", "done a")
    assert rows["b"]["state"] == "completed"


def test_wait_waits_for_all_and_then_says_that_one_failed(world: World) -> None:
    spawn_idle(world, "a", "b")
    waiting = world.start("wait", "a", "b", "--json")
    report(world, "a", "error", "--message", "no network")
    assert still_waits(waiting)
    report(world, "b", "completed")
    code, answer = ended(waiting)
    assert code == 1
    assert answer["error"]["code"] == "job-failed"
    rows = {row["name"]: row["job"] for row in answer["data"]["workers"]}
    assert (rows["a"]["state"], rows["a"]["error"]) == ("failed", "no network")


def test_any_is_decided_by_the_first_to_end(world: World) -> None:
    spawn_idle(world, "a", "b")
    waiting = world.start("wait", "a", "b", "--any", "--json")
    report(world, "b", "completed")
    assert ended(waiting)[0] == 0
    assert world.run("wait", "a", "b", "--any").code == 0
    waiting = world.start("wait", "a", "--any", "--json")
    report(world, "a", "error")
    assert ended(waiting)[0] == 1


def test_until_started_ends_with_the_first_report(world: World) -> None:
    spawn_idle(world, "a")
    waiting = world.start("wait", "a", "--until", "started", "--json")
    assert still_waits(waiting)
    report(world, "a", "started")
    code, answer = ended(waiting)
    assert (code, answer["data"]["workers"][0]["job"]["state"]) == (0, "open")


def test_the_deadline_is_124_but_1_when_a_job_had_failed(world: World) -> None:
    spawn_idle(world, "a", "b")
    ran = world.run("wait", "--timeout", "0.3", "--json")
    assert (ran.code, ran.error["code"]) == (124, "deadline-passed")
    assert {row["job"]["state"] for row in ran.data["workers"]} == {"open"}
    report(world, "a", "error")
    assert world.run("wait", "a", "b", "--timeout", "0.3").code == 1


def test_a_named_job_that_has_ended_is_judged_at_once(world: World) -> None:
    spawn_idle(world, "a")
    report(world, "a", "completed")
    assert world.run("wait", "a").code == 0
    world.ok("stop", "a")
    assert world.run("wait", "a").code == 0


def test_stop_cancels_and_wait_says_so(world: World) -> None:
    spawn_idle(world, "a")
    waiting = world.start("wait", "a", "--json")
    world.ok("stop", "a")
    code, answer = ended(waiting)
    assert code == 1
    assert answer["data"]["workers"][0]["job"]["state"] == "cancelled"


def test_an_agent_that_dies_without_a_word_is_noticed(world: World) -> None:
    """A launcher that is killed writes no record; the process itself is watched."""
    spawn_idle(world, "a")
    record = json.loads((world.record("a") / "worker.json").read_text())
    waiting = world.start("wait", "a", "--json")
    assert still_waits(waiting)
    kill(record["pane_pid"])
    code, answer = ended(waiting)
    assert code == 1
    assert answer["data"]["workers"][0]["job"]["state"] == "failed"


def test_a_dead_tmux_server_makes_a_worker_gone_and_its_job_failed(world: World) -> None:
    spawn_idle(world, "a")
    waiting = world.start("wait", "a", "--json")
    assert still_waits(waiting)
    # HUP is what the panes get; a launcher that outlived it would record the exit.
    world.kill("new-session")
    code, answer = ended(waiting)
    assert code == 1
    assert answer["data"]["workers"][0]["job"]["state"] == "failed"
    assert world.status("a")["state"] in ("gone", "exited")


def test_wait_may_be_killed_and_started_again(world: World) -> None:
    spawn_idle(world, "a")
    first = world.start("wait", "a", "--json")
    assert still_waits(first)
    first.kill()
    first.communicate()
    report(world, "a", "completed")
    assert world.run("wait", "a").code == 0


def test_wait_is_interrupted_with_130(world: World) -> None:
    spawn_idle(world, "a")
    waiting = world.start("wait", "a", "--json")
    wait_for(lambda: catches(waiting.pid, signal.SIGTERM), "it to be ready for signals")
    assert still_waits(waiting)
    waiting.send_signal(signal.SIGINT)
    assert ended(waiting)[0] == 130


def test_wait_costs_next_to_nothing_while_it_waits(world: World) -> None:
    """Processor time over ten rounds stays a small part of what starting it costs."""
    spawn_idle(world, "a")

    def processor_time(seconds: str) -> float:
        before = os.times()
        world.start("wait", "--timeout", seconds).communicate(timeout=60)
        after = os.times()
        return (
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )

    short, long = processor_time("0"), processor_time("3")
    assert long - short < 0.15 * 3


def test_events_rise_by_one_and_tell_the_story(world: World) -> None:
    spawn_idle(world, "a")
    report(world, "a", "started")
    report(world, "a", "progress", "--message", "half", "--data", '{"tests": 3}')
    world.ok("stop", "a")
    rows = world.ok("events", "a")["events"]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    kinds = [row["event"] for row in rows]
    assert kinds[:3] == ["spawned", "started", "progress"]
    assert {"stopped", "cancelled", "exited"} <= set(kinds[3:])
    assert rows[2]["data"] == {"tests": 3, "message": "half"}
    assert all(row["worker"] == "a" for row in rows)
    last = world.ok("events", "a", "--limit", "2")["events"]
    assert [row["seq"] for row in last] == [len(rows) - 1, len(rows)]


def test_events_follow_shows_each_once_and_ends_with_the_record(world: World) -> None:
    spawn_idle(world, "a")
    following = world.start("events", "a", "--follow", "--json")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["event"] == "spawned"
    report(world, "a", "progress", "--message", "one")
    assert json.loads(following.stdout.readline())["data"]["message"] == "one"
    world.ok("stop", "a")
    world.ok("cleanup", "a")
    rest = [
        json.loads(line)
        for line in following.communicate(timeout=20)[0].splitlines()[:-1]
        if line.startswith(b'{"seq"')
    ]
    seen = [(row["event"], row["at"]) for row in rest]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("words", [["events", "a", "--follow"], ["status", "--watch"]])
def test_what_follows_ends_with_its_reader_though_nothing_happens(
    world: World, words: list[str]
) -> None:
    spawn_idle(world, "a")
    following = world.start(*words, "--json")
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline()
    following.stdout.close()
    closed = time.monotonic()
    assert following.wait(20) == 0
    # A second of the product's own, and what a busy machine adds.
    assert time.monotonic() - closed < 1.0 + 4.0
    assert following.stderr.read() == b""
    following.stderr.close()


@pytest.mark.parametrize("kind", ["started", "progress", "heartbeat", "completed", "error"])
def test_a_report_is_an_event_of_the_current_job(world: World, kind: str) -> None:
    spawn_idle(world, "a")
    report(world, "a", kind)
    row = world.ok("events", "a")["events"][-1]
    assert (row["event"], row["job"]) == (kind, "0001")


def test_a_worker_that_is_cleaned_up_while_it_is_waited_for_is_gone(world: World) -> None:
    spawn_idle(world, "a")
    world.ok("stop", "a")
    spawn_idle(world, "b")
    waiting = world.start("wait", "b", "--json")
    assert still_waits(waiting)
    world.ok("stop", "b")
    world.ok("cleanup", "b")
    code, answer = ended(waiting)
    assert code == 1
    assert answer["data"]["workers"][0]["job"]["state"] in ("cancelled", "failed")


def test_a_report_is_noticed_within_half_a_second(world: World) -> None:
    spawn_idle(world, "a")
    waiting = world.start("wait", "a", "--json")
    assert still_waits(waiting)
    report(world, "a", "completed")
    reported = time.monotonic()
    wait_for(lambda: waiting.poll() is not None, "wait ends")
    # Half a second of the product's own, and what a busy machine adds to ending a process.
    assert time.monotonic() - reported < 0.5 + 4.0
    waiting.communicate()


# --- Stopping -------------------------------------------------------------------------------


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
    assert time.monotonic() - began < 3 * ending.TERM_WAIT
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
    assert time.monotonic() - began < ending.LEAVE_WAIT


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
    monkeypatch.setattr(ending, "LOCK_WAIT", 0.2)
    done = ending.stop_all(repo, ["w1", "w2"])
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
    done = ending.stop_all(repo, ["w1", "w2"])
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
    world.wait_state("w1", "running")


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
