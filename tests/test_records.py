"""Names, atomic files, event logs and locks."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanout import records
from fanout.errors import ExitCode, SkillError
from fanout.records import (
    Event,
    append_event,
    lock,
    read_events,
    read_json,
    read_record,
    write_json,
)
from fanout.starting import event_command
from inside import Call, call, refusal
from world import ROOT, SCRIPTS, World, wait_for


def damage(path: Path) -> str:
    """What reading a damaged record says; it must be left as it is."""
    before = path.read_bytes()
    with pytest.raises(SkillError) as caught:
        read_json(str(path))
    assert caught.value.code == "record-damaged"
    assert str(path) in caught.value.message
    assert path.read_bytes() == before
    return caught.value.message


# --- Names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A1", "9-x_y", "x" * 64, "api-tests"])
def test_a_good_name(name: str) -> None:
    assert records.require_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "-x",
        "_x",
        "a.b",
        "a b",
        "x" * 65,
        "ä",
        "a\n",
        "a\0",
        "\n",
        "１",
    ],
)
def test_a_bad_name(name: str) -> None:
    """Q01, Q03: one validator."""
    with pytest.raises(SkillError) as caught:
        records.require_name(name)
    assert caught.value.exit_code == ExitCode.USAGE


def test_only_folders_with_a_record_are_workers(tmp_path: Path) -> None:
    assert records.worker_names(str(tmp_path)) == []
    for name in ("w2", "w1", ".hidden", "not a name", "begun"):
        folder = tmp_path / "agent-workers" / "workers" / name
        folder.mkdir(parents=True)
        if name != "begun":
            (folder / "worker.json").write_text("damaged")
    assert records.worker_names(str(tmp_path)) == ["w1", "w2"]


# --- Files ----------------------------------------------------------------------------------


def test_what_is_written_is_read_private_and_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(str(path), {"a": "ü\udcff", "b": [1, None]})
    assert read_json(str(path)) == {"schema": 1, "a": "ü\udcff", "b": [1, None]}
    assert (path.stat().st_mode & 0o777) == 0o600
    assert os.listdir(tmp_path) == ["x.json"]
    records.make_dir(str(tmp_path / "a" / "b"))
    assert ((tmp_path / "a" / "b").stat().st_mode & 0o777) == 0o700


def test_a_shorter_value_leaves_nothing_of_the_longer_one(tmp_path: Path) -> None:
    """C22."""
    path = tmp_path / "x.json"
    write_json(str(path), {"a": "x" * 10_000})
    write_json(str(path), {"a": "y"})
    assert read_json(str(path)) == {"schema": 1, "a": "y"}


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C20: no moment at which the file is empty or torn."""
    path = tmp_path / "x.json"
    write_json(str(path), {"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(str(path), {"a": 2})
    assert read_json(str(path)) == {"schema": 1, "a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_writer_that_is_killed_leaves_one_whole_value(tmp_path: Path) -> None:
    """C20: kill -9 in the middle of writing."""
    path = tmp_path / "x.json"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fanout.records import write_json\n"
        "n = 0\n"
        "while n < 100_000:\n"
        "    n += 1\n    write_json(sys.argv[2], {'n': n, 'fill': str(n) * 20_000})\n"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code, str(SCRIPTS), str(path)])
        before = path.stat().st_ino if path.exists() else 0
        wait_for(
            lambda before=before: path.exists() and path.stat().st_ino != before, "a written file"
        )
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        value = read_json(str(path))
        assert value["fill"] == str(value["n"]) * 20_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "byte 0"),
        (b'{"schema": 1, "name"', "byte 20"),
        (b'{"schema": 1}\n{"old": "memory"}', "byte 14"),
        ('{"schema": 1, "ü": "日本"} x'.encode(), "byte 30"),
        (b'{"schema": 1, "a": "\xe9"}', "byte 20"),
        (b"[1]", "not a JSON object"),
        (b'{"schema": 2}', "schema is not 1"),
        (b"{}", "schema is not 1"),
        (b"[" * 100_000, "not usable JSON"),
        (b'{"schema": ' + b"1" * 10_000 + b"}", "not usable JSON"),
        (b"\0" * 4096, "byte 0"),
    ],
)
def test_a_damaged_record_is_named_with_the_place_and_left_alone(
    tmp_path: Path, content: bytes, words: str
) -> None:
    """C20, C22."""
    path = tmp_path / "worker.json"
    path.write_bytes(content)
    assert words in damage(path)


def test_what_is_no_file_is_damaged_too(tmp_path: Path) -> None:
    """An agent can put a pipe in a file's place: it must not block us."""
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (folder, pipe):
        with pytest.raises(SkillError, match="not a file"):
            read_json(str(path))
    with pytest.raises(FileNotFoundError):
        read_json(str(tmp_path / "none"))


def test_a_field_that_records_have_alike_is_held_once(tmp_path: Path) -> None:
    class Shape(NamedTuple):
        name: str
        mapping: dict[str, Any]
        pid: int

    part = records.Common("mapping")

    def read(name: str, text: str) -> Shape:
        path = tmp_path / name
        path.write_text(text)
        return read_record(str(path), Shape, part)

    def written(name: str, mapping: dict[str, Any]) -> str:
        write_json(str(tmp_path / name), Shape(name, mapping, 1)._asdict())
        return (tmp_path / name).read_text()

    large = {"a": ['"mapping": {}, ', "ü"], "mapping": {"b": None}}
    one, two = read("one", written("one", large)), read("two", written("two", large))
    assert (one, two) == (Shape("one", large, 1), Shape("two", large, 1))
    assert one.mapping is two.mapping
    assert read("three", written("three", {**large, "c": 1})).mapping == {**large, "c": 1}
    # Written in another way, or twice: as any reader of JSON would have it.
    text = written("two", large)
    assert read("two", json.dumps(json.loads(text), indent=1)).mapping == large
    twice = text.replace('"pid": 1', '"pid": 1, "mapping": {"d": 2}')
    assert read("two", twice).mapping == {"d": 2}
    # The place in a damaged one is that in the file.
    with pytest.raises(SkillError, match=f"byte {text.index('1}')}"):
        read("two", text.replace('"pid": 1}', '"pid": }'))


def test_the_types_of_fields_are_checked(tmp_path: Path) -> None:
    class Shape(NamedTuple):
        name: str
        pid: int
        owns: list[str]
        branch: str | None

        facts: list[dict[str, Any]]
        copied: dict[str, str]
        limit: float

    path = str(tmp_path / "f")
    good: dict[str, Any] = {
        "name": "w", "pid": 1, "owns": ["a"], "branch": None,
        "facts": [{"b": 1}], "copied": {"a": "1"}, "limit": 1,
    }  # fmt: skip
    write_json(path, good)
    assert read_record(path, Shape) == Shape(**good)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"pid": "1"}, "'pid' is not of the type int"),
        ({"pid": True}, "'pid'"),
        ({"owns": ["a", 1]}, "'owns'"),
        ({"owns": {}}, "'owns'"),
        ({"branch": 3}, "'branch' is not of the type str . None"),
        ({"facts": [[]]}, "'facts'"),
        ({"copied": {"a": 1}}, "'copied'"),
        ({"copied": None}, "'copied'"),
        ({"limit": False}, "'limit'"),
        ({"more": 3}, "'more' is not known"),
    ]
    for change, words in changes:
        write_json(path, {**good, **change})
        with pytest.raises(SkillError, match=words):
            read_record(path, Shape)
    write_json(path, {name: value for name, value in good.items() if name != "name"})
    with pytest.raises(SkillError, match="'name' is missing"):
        read_record(path, Shape)


# --- Events ---------------------------------------------------------------------------------


def test_events_come_back_in_order(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    append_event(path, "spawned", job="0001", data={"a": "ü\n"})
    append_event(path, "exited", job=None, data={})
    events, unreadable = read_events(path)
    assert [(e.event, e.job, e.data) for e in events] == [
        ("spawned", "0001", {"a": "ü\n"}), ("exited", None, {}),
    ]  # fmt: skip
    assert unreadable == 0
    assert events[0].at <= events[1].at
    assert len(events[0].at) == len("2025-01-01T00:00:00.000000Z")
    assert read_events(str(tmp_path / "none")) == ([], 0)


def test_a_torn_line_is_skipped_counted_and_closed_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_event(str(path), "spawned", job=None, data={})
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "event": "prog')
    assert [e.event for e in read_events(str(path))[0]] == ["spawned"]
    append_event(str(path), "exited", job=None, data={})
    events, unreadable = read_events(str(path))
    assert [e.event for e in events] == ["spawned", "exited"]
    assert unreadable == 1


@pytest.mark.parametrize(
    "line",
    [
        b"[]", b"3", b"null", b'"x"', b"{}", b'{"event": "x"}', b'{"event": 1, "at": "x"}',
        b'{"event": "x", "at": null}', b"\xff\xfe", b"\0" * 20, b"[" * 50_000, b"9" * 5_000,
    ],
)  # fmt: skip
def test_a_foreign_line_is_no_event(tmp_path: Path, line: bytes) -> None:
    """Agents may write these files."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(line + b'\n\n{"event": "ok", "at": "t", "job": 5, "data": []}\n')
    assert read_events(str(path)) == ([Event("ok", "t", None, {})], 1)


def test_a_pipe_or_folder_in_the_logs_place_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_events(str(tmp_path / "pipe")) == ([], 1)
    assert read_events(str(tmp_path)) == ([], 1)


def test_of_a_huge_log_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18."""
    monkeypatch.setattr(records, "READ_LIMIT", 1000)
    path = str(tmp_path / "events.jsonl")
    for number in range(50):
        append_event(path, f"e{number}", job=None, data={})
    events, unreadable = read_events(path)
    assert events[-1].event == "e49"
    assert 5 < len(events) < 15
    assert unreadable <= 1


def test_many_writers_at_once_tear_no_line(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")

    def write(writer: int) -> None:
        for number in range(25):
            append_event(path, f"w{writer}", job=None, data={"n": number, "fill": "x" * 5000})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events, unreadable = read_events(path)
    assert (len(events), unreadable) == (200, 0)
    for writer in range(8):
        assert [e.data["n"] for e in events if e.event == f"w{writer}"] == list(range(25))


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(records.os, "write", lambda fd, data: write(fd, data[:7]))  # pyright: ignore
    append_event(str(tmp_path / "e"), "spawned", job=None, data={"a": "b"})
    assert json.loads((tmp_path / "e").read_text())["data"] == {"a": "b"}


def test_an_archived_record_is_whole(tmp_path: Path) -> None:
    folder = Path(records.worker_dir(str(tmp_path), "w1"))
    folder.mkdir(parents=True)
    (folder / "worker.json").write_text("x")
    first = Path(records.archive(str(tmp_path), "w1", "cleaned"))
    assert (first / "worker.json").read_text() == "x"
    folder.mkdir()
    assert Path(records.archive(str(tmp_path), "w1", "cleaned")) != first
    assert not folder.exists()


# --- Locks ----------------------------------------------------------------------------------

HOLDER = (
    "import sys, time; sys.path.insert(0, sys.argv[1])\n"
    "from fanout.records import lock\n"
    "with lock(sys.argv[2], 'x', wait=0, what='x'):\n"
    "    print('held', flush=True)\n    time.sleep(600)\n"
)


def test_a_held_lock_is_busy_and_freed_when_its_holder_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(SCRIPTS), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(SkillError) as caught,
        lock(str(tmp_path), "x", wait=0.05, what="the worker 'x'"),
    ):
        pytest.fail("two holders")
    assert (caught.value.code, caught.value.exit_code) == ("busy", ExitCode.BUSY)
    assert "the worker 'x'" in caught.value.message
    with lock(str(tmp_path), "y", wait=0, what="another"):
        pass
    holder.kill()
    holder.wait(10)
    holder.stdout.close()
    with lock(str(tmp_path), "x", wait=5, what="x"):
        pass
    assert (tmp_path / "agent-workers" / "locks" / "x.lock").exists(), "it is never deleted"


def test_a_waiting_lock_is_had_when_it_is_free(tmp_path: Path) -> None:
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with lock(str(tmp_path), "x", wait=0, what="x"):
            inside.set()
            leave.wait(10)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    threading.Timer(0.05, leave.set).start()
    with lock(str(tmp_path), "x", wait=10, what="x"):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_child_does_not_inherit_a_lock(tmp_path: Path) -> None:
    with lock(str(tmp_path), "x", wait=0, what="x"):
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        descriptor = os.open(tmp_path / "agent-workers" / "locks" / "x.lock", os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    finally:
        child.kill()
        child.wait(10)


# --- What an agent runs to report -----------------------------------------------------------


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
    assert [event["event"] for event in events(tree)] == list(records.REPORTS)


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
    assert records.report("progress", "", "", ".")["worker"] == "w1"
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
        records.report("progress", "", "", str(tree))


def test_an_unknown_kind_is_an_invalid_input(tree: Path) -> None:
    with pytest.raises(SkillError) as caught:
        records.report("done", "", "", str(tree))
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
        "from fanout.starting import event_command; print(event_command())"
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
