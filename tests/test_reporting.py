"""The verb `event`: what an agent runs from inside its worktree."""

from __future__ import annotations

import json
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fanout import reporting
from fanout.contract import event_command
from fanout.errors import ExitCode, SkillError
from inside import Call, call, refusal
from world import ROOT, World

__all__ = ["call"]


@pytest.fixture
def tree(world: World) -> Path:
    """A worker's worktree, as far as reports need one."""
    folder = world.root / "tree"
    (folder / ".worker-runs").mkdir(parents=True)
    (folder / "deep" / "er").mkdir(parents=True)
    card = {"schema": 1, "worker": "w1", "job": "0003"}
    (folder / ".worker-runs" / "worker.json").write_text(json.dumps(card))
    return folder


def events(tree: Path) -> list[dict[str, Any]]:
    """What was reported."""
    path = tree / ".worker-runs" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_report_names_the_worker_and_its_job(tree: Path, call: Call) -> None:
    ran = call("event", "completed", "--message", "tests pass", "--data", '{"n": 12}', cwd=tree)
    assert ran.code == 0
    assert ran.data == {
        "worker": "w1", "job": "0003", "event": "completed",
        "data": {"n": 12, "message": "tests pass"},
    }  # fmt: skip
    (event,) = events(tree)
    assert (event["event"], event["job"], event["data"]) == (
        "completed", "0003", {"n": 12, "message": "tests pass"},
    )  # fmt: skip
    assert event["schema"] == 1
    assert event["at"].endswith("Z")


def test_every_kind_that_an_agent_may_report(tree: Path, call: Call) -> None:
    for kind in ("started", "progress", "heartbeat", "completed", "error"):
        assert call("event", kind, cwd=tree).code == 0
    assert [event["event"] for event in events(tree)] == list(reporting.KINDS)


def test_other_kinds_are_refused(tree: Path, call: Call) -> None:
    """An agent cannot say `exited` or `cleaned`: those are not its to say."""
    for kind in (
        "exited",
        "spawned",
        "stopped",
        "cleaned",
        "delivered",
        "",
        "Completed",
        "x" * 300,
    ):
        error = refusal(call, 2, "event", kind, cwd=tree)
        assert error["code"] == "invalid-event"
        assert repr(kind[:80]) in error["message"]
    assert events(tree) == []


def test_bad_data_is_refused(tree: Path, call: Call) -> None:
    for data in ("{", "[1]", "3", "null", '"x"', "[" * 9_000, "x" * 20_000, "1" * 9_000):
        refusal(call, 2, "event", "progress", "--data", data, cwd=tree)
    refusal(call, 2, "event", "progress", "--message", "x" * 10_001, cwd=tree)
    refusal(call, 2, "event", cwd=tree)
    assert events(tree) == []


def test_a_message_is_any_text_in_one_line(tree: Path, call: Call) -> None:
    for message in ("--help", "-x", "two\nlines", "日本 'q' \"d\" $(x)", "\x1b[31m", "\udcff"):
        assert call("event", "progress", "--message", message, cwd=tree).code == 0
        assert events(tree)[-1]["data"]["message"] == message


def test_it_works_from_a_folder_below(tree: Path, call: Call) -> None:
    assert call("event", "started", cwd=tree / "deep" / "er").code == 0
    assert call("event", "progress", "--repo", str(tree / "deep"), cwd=Path("/")).code == 0
    assert len(events(tree)) == 2


def test_elsewhere_the_environment_names_the_worktree(
    world: World, tree: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKER_WORKTREE", str(tree))
    assert call("event", "started", cwd=world.root).code == 0
    gone = world.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert reporting.report("progress", "", "", ".")["worker"] == "w1"
    assert len(events(tree)) == 2


def test_elsewhere_without_it_the_report_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    error = refusal(call, 4, "event", "started")
    assert error["code"] == "not-a-worker"
    assert world.snapshot() == before


def test_a_damaged_card_is_named_and_left_alone(tree: Path, call: Call) -> None:
    card = tree / ".worker-runs" / "worker.json"
    card.write_text('{"schema": 1, "wor')
    error = refusal(call, 1, "event", "started", cwd=tree)
    assert error["code"] == "record-damaged"
    assert str(card) in error["message"]
    assert card.read_text() == '{"schema": 1, "wor'
    assert events(tree) == []


def test_a_torn_last_line_costs_nothing_but_itself(tree: Path, call: Call) -> None:
    path = tree / ".worker-runs" / "events.jsonl"
    path.write_text('{"event": "prog')
    assert call("event", "progress", cwd=tree).code == 0
    assert json.loads(path.read_text().splitlines()[1])["event"] == "progress"


def test_a_full_disk_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / ".worker-runs" / "events.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        reporting.report("progress", "", "", str(tree))


def test_an_unknown_kind_is_an_invalid_input(tree: Path) -> None:
    with pytest.raises(SkillError) as caught:
        reporting.report("done", "", "", str(tree))
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_command_given_to_agents_works_as_shell_words(world: World, tree: Path) -> None:
    """With the skill read-only, in a path with spaces and quotes, from a POSIX shell."""
    skill = world.root / "it's a skill"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "scripts", skill / "scripts", ignore=ignore)
    for path in [skill, *skill.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fanout.contract import event_command; print(event_command())"
    )
    shown = subprocess.run(
        [sys.executable, "-B", "-c", code, str(skill / "scripts")], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    prefix = shown.stdout.strip()
    assert str(skill) in shlex.split(prefix)[3]
    done = subprocess.run(
        ["sh", "-c", f"{prefix} completed --message 'what I did'"], cwd=tree / "deep",
        env=world.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "reported completed\n")
    assert events(tree)[0]["data"] == {"message": "what I did"}
    assert not list(skill.rglob("__pycache__"))


def test_a_report_costs_little_more_than_a_start_of_python(world: World, tree: Path) -> None:
    """CPU times measured in turn: the ratio was 4 when this was written."""
    report = [*shlex.split(event_command()), "heartbeat"]
    bare = [sys.executable, "-I", "-S", "-c", "pass"]

    def cost(argv: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, cwd=tree, env=world.env, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    cost(report)
    pairs = [(cost(report), cost(bare)) for _ in range(9)]
    ratio = statistics.median(r for r, _ in pairs) / statistics.median(b for _, b in pairs)
    assert ratio < 10, pairs
    assert len(events(tree)) == 10
