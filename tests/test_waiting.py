"""`wait` and `events`: jobs judged by what is reported."""

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

from world import AGENT_WORKERS, World, wait_for

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
    os.kill(record["pane_pid"], signal.SIGKILL)
    code, answer = ended(waiting)
    assert code == 1
    assert answer["data"]["workers"][0]["job"]["state"] == "failed"


def test_a_dead_tmux_server_makes_a_worker_gone_and_its_job_failed(world: World) -> None:
    spawn_idle(world, "a")
    waiting = world.start("wait", "a", "--json")
    assert still_waits(waiting)
    # HUP is what the panes get; a launcher that outlived it would record the exit.
    for pid, command in world.processes().items():
        if "tmux" in command and "new-session" in command:
            os.kill(pid, signal.SIGKILL)
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
