"""What a job is, read from events."""

from __future__ import annotations

import os
from typing import Any

from fanout import git
from fanout import workers as life
from fanout.records import Event
from fanout.workers import State
from world import World

RUNNING = State("running")


def event(kind: str, job: str | None = "0001", **data: Any) -> Event:
    return Event(kind, "2026-01-01T00:00:00Z", job, data)


OPENED = event("spawned", opens=True, before={"head": "abc", "files": ""})


def test_without_an_opening_event_there_is_no_job() -> None:
    assert life.job_of([], RUNNING).id is None
    assert life.job_of([event("started")], RUNNING).is_open is False


def test_a_job_is_open_until_an_ending_event_of_the_same_job() -> None:
    assert life.job_of([OPENED, event("progress")], RUNNING).is_open
    assert life.job_of([OPENED, event("completed", "0000")], RUNNING).is_open
    done = life.job_of([OPENED, event("completed", message="all good")], RUNNING)
    assert (done.state, done.message, done.error) == ("completed", "all good", "")


def test_the_first_ending_counts() -> None:
    events = [OPENED, event("error", message="no disk"), event("completed")]
    job = life.job_of(events, RUNNING)
    assert (job.state, job.error) == ("failed", "no disk")


def test_a_later_prompt_opens_the_next_job() -> None:
    events = [OPENED, event("completed"), event("delivered", "0002", opens=True)]
    job = life.job_of(events, RUNNING)
    assert (job.id, job.state) == ("0002", "open")
    assert life.open_job(events) == "0002"


def test_a_prompt_that_steers_leaves_the_job_open() -> None:
    events = [OPENED, event("delivered", "0001", prompt="0002")]
    assert life.open_job(events) == "0001"


def test_started_is_what_the_agent_reports_not_what_the_coordinator_does() -> None:
    assert life.job_of([OPENED, event("delivered")], RUNNING).started is False
    assert life.job_of([OPENED, event("heartbeat")], RUNNING).started is True


def test_a_stop_that_was_killed_before_it_wrote_cancelled_cancels_all_the_same() -> None:
    assert life.job_of([OPENED], State("stopped", 143)).state == "cancelled"


def made_worker(world: World) -> tuple[str, life.Worker]:
    """A worker whose agent has ended, to look at the verdicts."""
    world.spawn(
        "w1", "@exit 0", "--prompt-mode", "argument", "--prompt-arg=--prompt=", "--settle", "0"
    )
    world.wait_state("w1", "exited")
    common = str(world.repo / ".git")
    return common, life.load(common, "w1")


def test_an_end_with_0_and_no_change_is_a_failure_with_a_reason(world: World) -> None:
    row = made_worker(world) and world.status("w1")
    assert row["job"]["state"] == "failed"
    assert "changed nothing" in row["job"]["error"]
    assert row["job"]["exit_code"] == 0
    # The verdict is recorded: what happens to the tree afterwards does not change it.
    (world.tree("w1") / "late.txt").write_text("late\n")
    assert world.status("w1")["job"]["state"] == "failed"


def test_an_end_with_0_and_a_new_file_is_completed(world: World) -> None:
    world.spawn(
        "w1", "@write new.txt x\n@exit 0", "--prompt-mode", "argument", "--prompt-arg=--prompt="
    )
    assert world.wait_state("w1", "exited")["job"]["state"] == "completed"


def test_an_end_with_0_after_only_a_commit_is_completed(world: World) -> None:
    world.spawn(
        "w1",
        "@write new.txt x\n@commit c\n@exit 0",
        "--prompt-mode",
        "argument",
        "--prompt-arg=--prompt=",
    )
    row = world.wait_state("w1", "exited")
    assert (row["job"]["state"], row["ahead"], row["dirty"]) == ("completed", 1, 0)


def test_an_end_with_another_code_is_a_failure_also_with_changes(world: World) -> None:
    world.run("spawn", "w1", "--prompt", "x", *world.fake("commit"), "--prompt-mode", "none")
    row = world.wait_state("w1", "exited")
    assert row["job"]["state"] == "failed"
    assert "exit code 3" in row["job"]["error"]


def test_a_snapshot_sees_a_further_change_of_a_changed_file(world: World) -> None:
    common, worker = made_worker(world)
    assert common
    clean = life.snapshot(worker)
    assert clean == {"head": worker.base, "files": ""}
    path = world.tree("w1") / "README.md"
    path.write_text("once\n")
    first = life.snapshot(worker)
    path.write_text("twice, and longer\n")
    assert clean != first != life.snapshot(worker)


def test_prompts_are_numbered_without_gaps_or_reuse(world: World) -> None:
    common, _ = made_worker(world)
    assert life.new_prompt(common, "w1", "two") == "0002"
    assert life.new_prompt(common, "w1", "three\r\n") == "0003"
    assert life.read_prompt(common, "w1", "0003") == "three\r\n"
    assert life.read_prompt(common, "w1", "0009") == ""
    assert oct(os.stat(life.prompt_file(common, "w1", "0002")).st_mode)[-3:] == "600"


def test_a_job_of_a_worker_in_an_unreadable_tree_fails_with_the_reason(world: World) -> None:
    world.spawn("w1", "@exit 0", "--prompt-mode", "argument", "--prompt-arg=--prompt=")
    common = str(world.repo / ".git")
    worker = life.load(common, "w1")
    (world.tree("w1") / ".git").write_text("gitdir: /nowhere\n")
    job = life.current(common, worker, State("exited", 0))
    assert job.state == "failed"
    assert "cannot be read" in job.error
    assert git.ref_commit(common, worker.branch_ref) == worker.base
