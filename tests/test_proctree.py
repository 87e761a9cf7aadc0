"""What processes there are, and how a tree of them is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout import proctree
from fanout.process import Completed
from fanout.proctree import (
    Process,
    end_tree,
    marked_pids,
    parse_ps,
    parse_stat,
    processes,
    run_logged,
    send_signal,
    start_time,
    start_times,
    tree,
    working_directories,
)
from world import wait_for

# As macOS prints `ps axeww -o pid=,ppid=,stat=,lstart=,command=`; the environment follows.
MAC_PS = """\
    1     0 Ss   Mon Dec  1 08:00:01 2025     /sbin/launchd
  501   499 Z    Mon Dec  1 08:00:09 2025     (dead one)
  502     1 S    Mon Dec  1 08:01:02 2025     sleep 9 TERM=x AGENT_WORKER_ID=abc HOME=/Users/a b
  503   502 S+   Tue Nov 30 23:59:59 2025     /Applications/My App/agent --x AGENT_WORKER_ID=abcd
  504     1 S    Mon Dec  1 08:01:02 2025     node AGENT_WORKER_ID=abc

garbage that is no line of ps but has as many words
"""
MAC_LSOF = "p502\nfcwd\nn/Users/a/repo.worktrees/w 1\np503\nfcwd\nn/\np999\nfcwd\nn/gone\n"


def stat_line(pid: int, command: bytes, state: bytes = b"S") -> bytes:
    """A line of /proc/PID/stat (proc(5))."""
    fields = [b"7"] * 17 + [b"4242"] + [b"0"] * 30
    return b"%d (%s) %s 17 " % (pid, command, state) + b" ".join(fields)


class Marked:
    """Processes whose environment carries a mark of their own."""

    def __init__(self) -> None:
        self.mark = f"PROCTREE_TEST={os.urandom(8).hex()}"
        self.children: list[subprocess.Popen[bytes]] = []

    @property
    def env(self) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        return {**os.environ, name: value}

    def launch(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            argv, env=self.env if env is None else env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.children.append(child)
        return child

    def close(self) -> None:
        """End all that is left."""
        for child in self.children:
            child.kill()
            child.wait(10)
            assert child.stdout is not None
            child.stdout.close()
        end_tree([], self.mark, grace=0.1)


@pytest.fixture
def marked() -> Iterator[Marked]:
    made = Marked()
    try:
        yield made
    finally:
        made.close()


def carriers(mark: str) -> set[int]:
    """The processes that carry one mark."""
    return marked_pids({mark})[mark]


@pytest.mark.parametrize(
    "command", [b"sh", b"tmux: server", b"a) S 1 (b", b"(sd-pam)", b"x) Z 1 1", b"\xe9\xff", b""]
)
def test_a_command_may_hold_parentheses_spaces_and_any_byte(command: bytes) -> None:
    found = parse_stat(12, stat_line(12, command))
    assert found == Process(12, 17, "4242", command.decode("utf-8", "replace"), 7)


def test_a_zombie_is_dead_and_a_torn_line_is_nothing() -> None:
    assert parse_stat(12, stat_line(12, b"sh", b"Z")) is None
    assert parse_stat(12, b"") is None
    assert parse_stat(12, b"12 (sh) S 1") is None


def test_this_process_is_seen_as_it_is() -> None:
    me = next(p for p in processes() if p.pid == os.getpid())
    assert me.parent == os.getppid()
    assert me.started == start_time(os.getpid())
    assert start_time(2**22 + 1) is None
    assert start_times({os.getpid(), 2**22 + 1}) == {os.getpid(): me.started}


def test_output_of_ps_is_read_line_by_line() -> None:
    rows = parse_ps(MAC_PS)
    assert [process.pid for process, _ in rows] == [1, 502, 503, 504]
    assert rows[1][0] == Process(502, 1, "Mon Dec 1 08:01:02 2025", "sleep")


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as a machine without /proc would."""

    def answer(argv: list[str]) -> Completed:
        out = {"ps": MAC_PS, "lsof": MAC_LSOF}[argv[0]]
        return Completed(argv, 0, out.encode(), b"")

    monkeypatch.setattr(proctree, "HAS_PROC", False)
    monkeypatch.setattr(proctree, "run", answer)


def test_without_proc_the_mark_is_found_as_a_whole_word(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proc(monkeypatch)
    assert marked_pids({"AGENT_WORKER_ID=abc"}) == {"AGENT_WORKER_ID=abc": {502, 504}}
    assert {p.pid for p in tree([], "AGENT_WORKER_ID=abc")} == {502, 503, 504}
    assert start_time(502) == "Mon Dec 1 08:01:02 2025"
    assert start_time(501) is None
    assert start_times({501, 502}) == {502: "Mon Dec 1 08:01:02 2025"}


def test_in_the_middle_of_its_exec_a_process_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, marked: Marked
) -> None:
    child = marked.launch("sleep", "600")
    wait_for(lambda: child.pid in carriers(marked.mark), "the child carries its mark")
    looks: list[str] = []
    read = proctree.read_bytes

    def early(path: str) -> bytes | None:
        name = path.rpartition("/")[2]
        if name == "stat" or not path.startswith(f"/proc/{child.pid}/"):
            return read(path)
        looks.append(name)
        return b"" if len(looks) < 6 else read(path)

    monkeypatch.setattr(proctree, "read_bytes", early)
    assert carriers(marked.mark) == {child.pid}
    assert looks == ["environ", "cmdline"] * 3 + ["environ"]


def test_a_process_without_environment_is_asked_once_more(marked: Marked) -> None:
    child = marked.launch("sleep", "600", env={})
    wait_for(lambda: b"sleep" in (proctree.read_bytes(f"/proc/{child.pid}/cmdline") or b""), "it")
    started = time.monotonic()
    assert proctree.environment(child.pid) == b""
    assert time.monotonic() - started < 0.2


def test_without_proc_working_directories_come_from_lsof(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proc(monkeypatch)
    found = {process.pid: folder for process, folder in working_directories()}
    assert found == {502: "/Users/a/repo.worktrees/w 1", 503: "/"}


def test_the_ps_of_this_machine_can_be_read(
    monkeypatch: pytest.MonkeyPatch, marked: Marked
) -> None:
    child = marked.launch("sleep", "600")
    monkeypatch.setattr(proctree, "HAS_PROC", False)
    assert wait_for(lambda: carriers(marked.mark), "the mark") == {child.pid}
    assert start_time(child.pid) is not None
    assert end_tree([], marked.mark, grace=5.0) == []
    assert child.wait(10) == -15


def test_children_and_orphans_belong_to_the_tree(marked: Marked) -> None:
    """C10: a process in a session of its own whose parent is gone carries the mark still."""
    child = marked.launch("sh", "-c", "setsid sh -c 'sleep 601 & sleep 602' & exec sleep 603")
    seen = wait_for(
        lambda: found if len(found := tree([], marked.mark)) == 4 else None, "four marked processes"
    )
    assert len({p.parent for p in seen}) > 1
    assert end_tree([child.pid], marked.mark, grace=5.0) == []
    assert tree([], marked.mark) == []
    child.wait(10)


def test_children_without_the_mark_are_found_by_descent(marked: Marked) -> None:
    child = marked.launch("sh", "-c", "env -i sleep 604 & exec sleep 605")
    wait_for(lambda: len(tree([child.pid], marked.mark)) == 2, "parent and child")
    assert end_tree([child.pid], marked.mark, grace=5.0) == []
    child.wait(10)


def test_what_a_marked_orphan_started_belongs_to_it(marked: Marked) -> None:
    """C10: also when that has cleared its environment."""
    script = "setsid sh -c 'env -i sleep 606; true' & exec true"
    marked.launch("sh", "-c", script).wait(10)

    def seen() -> list[Process]:
        found = tree([], marked.mark)
        return found if {"sh", "sleep"} <= {p.command for p in found} else []

    inner = next(p for p in wait_for(seen, "orphan and child") if p.command == "sleep")
    assert inner.pid not in carriers(marked.mark)
    assert end_tree([], marked.mark, grace=5.0) == []
    assert start_time(inner.pid) != inner.started


def test_a_stubborn_process_is_killed_and_checked(marked: Marked) -> None:
    """C26."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    child = marked.launch(sys.executable, "-c", code + "\ntime.sleep(600)")
    assert child.stdout is not None
    child.stdout.readline()
    assert end_tree([child.pid], marked.mark, grace=0.2) == []
    assert child.wait(10) == -9


def no_signal(*_: object) -> None:
    """Stands for a process that no signal reaches."""


def test_a_process_in_the_middle_of_an_exec_is_not_missed(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment it shows no environment, and its parent may have ended before."""
    marked.launch("sh", "-c", "setsid sleep 607 & exec true").wait(10)
    (orphan,) = wait_for(lambda: tree([], marked.mark), "the orphan")
    looks = iter(range(1000))

    def blinking(marks: set[str]) -> dict[str, set[int]]:
        return {m: set() for m in marks} if next(looks) % 2 else marked_pids(marks)

    with monkeypatch.context() as patched:
        patched.setattr(proctree, "marked_pids", blinking)
        patched.setattr(proctree, "send_signal", no_signal)
        assert [p.pid for p in end_tree([], marked.mark, grace=0.1)] == [orphan.pid]

    root = marked.launch("sleep", "608")
    empty_looks = 0

    def late(marks: set[str]) -> dict[str, set[int]]:
        nonlocal empty_looks
        empty_looks += start_time(root.pid) is None
        return marked_pids(marks) if empty_looks > 1 else {m: set() for m in marks}

    monkeypatch.setattr(proctree, "marked_pids", late)
    assert end_tree([root.pid], marked.mark, grace=5.0) == []
    assert start_time(orphan.pid) != orphan.started


def test_trees_are_ended_together_each_with_its_own_answer(
    marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stubborn one is killed, what stays is told of its tree alone, what is spared lives."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    polite = marked.launch("sleep", "600", env={**os.environ})
    stubborn = marked.launch(sys.executable, "-c", code + "\ntime.sleep(600)", env={**os.environ})
    spared = marked.launch("sleep", "600", env={**os.environ})
    immortal = marked.launch("sleep", "600", env={**os.environ})
    children = [polite, stubborn, spared, immortal]
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    real = send_signal

    def send(process: Process, number: signal.Signals) -> None:
        if process.pid != immortal.pid:
            real(process, number)

    monkeypatch.setattr(proctree, "send_signal", send)
    endings = [
        proctree.Ending([child.pid], "NONE=1", frozenset([spared.pid])) for child in children
    ]
    left = proctree.end_trees([*endings, proctree.Ending([], "NONE=1")], grace=0.3)
    assert [[p.pid for p in alive] for alive in left] == [[], [], [], [immortal.pid], []]
    assert (polite.wait(10), stubborn.wait(10)) == (-15, -9)
    assert spared.poll() is None
    assert proctree.end_trees([], grace=1.0) == []


def test_a_suspended_process_is_ended_too(marked: Marked) -> None:
    child = marked.launch("sleep", "600")
    os.kill(child.pid, 19)
    assert end_tree([child.pid], marked.mark, grace=0.2) == []
    assert child.wait(10) in (-9, -15)


def test_what_cannot_be_ended_is_reported(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """C26: never "stopped" when it lives."""
    child = marked.launch("sleep", "600")
    wait_for(lambda: tree([], marked.mark), "the process")
    with monkeypatch.context() as patched:
        patched.setattr(proctree, "send_signal", no_signal)
        clock = iter(range(10_000))
        patched.setattr(proctree.time, "monotonic", lambda: float(next(clock)))
        assert [p.pid for p in end_tree([child.pid], marked.mark, grace=1.0)] == [child.pid]


def test_one_that_is_spared_gets_no_signal(marked: Marked) -> None:
    child = marked.launch("sh", "-c", "sleep 600; exit 9")
    inner = wait_for(
        lambda: [p for p in tree([], marked.mark) if p.command == "sleep"], "the inner one"
    )
    assert end_tree([child.pid], marked.mark, grace=5.0, spare=frozenset({child.pid})) == []
    assert child.wait(10) == 9
    assert start_time(inner[0].pid) is None


def test_a_pid_that_was_reused_is_left_alone(marked: Marked) -> None:
    child = marked.launch("sleep", "600")
    send_signal(Process(child.pid, 1, "another time", "sleep"), proctree.signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    send_signal(Process(2**22 + 1, 1, "1", "none"), proctree.signal.SIGKILL)


def test_this_process_is_never_part_of_a_tree(marked: Marked) -> None:
    child = marked.launch("sleep", "600")
    assert os.getpid() not in {p.pid for p in tree([os.getpid()], marked.mark)}
    assert child.pid in {p.pid for p in tree([os.getpid()], marked.mark)}


def test_working_directories_name_the_folder_of_a_process(marked: Marked, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    marked.launch("env", "-C", str(folder), "sleep", "600")
    wait_for(lambda: [p for p in tree([], marked.mark) if p.command == "sleep"], "sleep")
    assert str(folder) in {path for _, path in working_directories()}


def test_a_logged_command_is_bounded_together_with_what_it_started(
    marked: Marked, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def logged(script: str, timeout: float) -> int | None:
        return run_logged(
            ["bash", "-c", script], cwd=str(tmp_path), env=marked.env, log=str(log),
            timeout=timeout, mark=marked.mark,
        )  # fmt: skip

    assert logged("echo hi; exit 4", 30.0) == 4
    began = time.monotonic()
    assert logged("echo begun; setsid sleep 600 & sleep 600", 0.5) is None
    assert time.monotonic() - began < 30
    assert log.read_text() == "hi\nbegun\n"
    assert tree([], marked.mark) == []


def test_what_is_in_the_session_of_a_root_belongs_to_it_without_mark_or_parent(
    marked: Marked,
) -> None:
    """A process in the middle of its exec shows no environment; here it never has one."""
    root = marked.launch("setsid", "sh", "-c", "env -i sleep 611 & sleep 611 & exec sleep 611")
    wait_for(lambda: len(tree([root.pid], "NONE=1")) == 3, "all three")
    leader = root.pid
    (orphan,) = [p for p in tree([leader], "NONE=1") if p.pid not in carriers(marked.mark)]
    assert orphan.session == leader
    assert end_tree([leader], marked.mark, grace=2.0) == []
    assert start_time(orphan.pid) != orphan.started
    root.wait(5)
