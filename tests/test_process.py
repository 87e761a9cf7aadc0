"""The only module that starts processes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fanout import process
from fanout.errors import ExitCode, Interrupted, SkillError
from fanout.output import open_standard_streams
from fanout.process import clean_environment, finish, run, start, start_logged, wait
from world import wait_for


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_output_error_and_exit_code_are_kept_apart() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.code, done.text, done.error_text) == (7, "out\n", "err")
    assert run(["sh", "-c", "kill -9 $$"]).code == -9


def test_bytes_of_any_kind_survive() -> None:
    """C16: a file name or a diff may hold Latin-1."""
    done = run(["printf", r"caf\351\n"])
    assert done.stdout == b"caf\xe9\n"
    assert os.fsencode(done.text) == b"caf\xe9\n"
    assert run(["sh", "-c", r"printf 'caf\351' >&2"]).error_text == "caf\ufffd"


def test_stdin_is_what_is_given_and_empty_otherwise() -> None:
    text = b"x" * 1_000_000
    assert run(["cat"], stdin=text).stdout == text
    assert run(["cat"]).stdout == b""
    assert run(["true"], stdin=text).code == 0


def test_nothing_is_read_by_a_shell() -> None:
    words = ["$(touch x)", "a;b", "*", "'", "\\", "new\nline", ""]
    assert run(["printf", "%s|", *words]).text == "|".join(words) + "|"


def test_variables_that_point_elsewhere_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """W17, T16: of git's repository and of tmux."""
    names = [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "TMUX",
        "TMUX_PANE",
    ]
    for name in names:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "kept")
    assert "GIT_AUTHOR_NAME" in clean_environment()
    shown = {line.partition("=")[0] for line in run(["env"]).text.splitlines()}
    assert "GIT_AUTHOR_NAME" in shown
    assert not shown & set(names)


def test_a_missing_program_is_exit_4_and_named() -> None:
    for argv in (["no-such-program"], ["/nowhere/program"], ["/etc/passwd"], ["/etc/passwd/x"]):
        with pytest.raises(SkillError, match=argv[0]) as caught:
            run(argv)
        assert (caught.value.code, caught.value.exit_code) == ("program-missing", ExitCode.MISSING)


def test_a_program_in_the_working_directory_is_not_taken_for_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "no-such-program"
    program.write_text("#!/bin/sh\necho no\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkillError) as caught:
        run(["no-such-program"])
    assert caught.value.code == "program-missing"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run(["no-such-program"]).text == "no\n"


def test_a_program_gets_nothing_but_its_three_streams() -> None:
    listing = "ls /proc/self/fd | wc -l" if os.path.isdir("/proc/self/fd") else "echo 4"
    with open(os.devnull) as left_open:
        os.set_inheritable(left_open.fileno(), True)
        open_standard_streams()
        # The fourth is the one with which `ls` reads the folder.
        assert run(["sh", "-c", listing], stdin=b"").text.strip() == "4"
        assert not os.get_inheritable(left_open.fileno())


def test_signals_are_as_a_program_expects_them() -> None:
    assert run(["sh", "-c", "yes | head -1; exit 3"]).text == "y\n"
    assert run(["sh", "-c", "kill -PIPE $$"]).code == -signal.SIGPIPE


def test_too_many_arguments_are_not_a_missing_program() -> None:
    with pytest.raises(SkillError) as caught:
        run(["true", "x" * 200_000])
    assert caught.value.code == "too-long"


def test_the_deadline_ends_the_process_also_when_an_orphan_holds_the_pipe() -> None:
    """C06: the time-out must not wait for whoever else holds stdout."""
    began = time.monotonic()
    with pytest.raises(SkillError) as caught:
        run(["sh", "-c", "setsid sleep 30 & exec sleep 30"], timeout=0.2)
    assert caught.value.code == "process-timed-out"
    assert time.monotonic() - began < 20


def test_an_interrupted_call_ends_its_process_by_term(tmp_path: Path) -> None:
    """W59: git removes its lock files on TERM, not on KILL."""
    lock = tmp_path / "lock"
    code = (
        "import signal, sys, time, os\n"
        f"lock = {str(lock)!r}\n"
        "def end(*_):\n    os.unlink(lock)\n    sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(lock, 'w').close()\ntime.sleep(60)\n"
    )

    def interrupt(*_: object) -> None:
        raise Interrupted(ExitCode.INTERRUPTED)

    before = signal.signal(signal.SIGUSR1, interrupt)

    def press() -> None:
        wait_for(lock.exists, "the lock")
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=press)
    try:
        thread.start()
        with pytest.raises(Interrupted):
            run(python(code))
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert not lock.exists()


def test_a_process_that_ignores_term_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_WAIT", 0.1)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    child = start(python(code + "\ntime.sleep(60)"))
    assert os.read(child.pipes[1], 10) == b"\n"
    process.end(child)
    assert child.code == -signal.SIGKILL
    assert not child.pipes


def test_endless_output_does_not_outlast_the_deadline() -> None:
    with pytest.raises(SkillError) as caught:
        run(["sh", "-c", "exec dd if=/dev/zero bs=1000 2>/dev/null"], timeout=0.2)
    assert caught.value.code == "process-timed-out"


def test_work_beside_other_work() -> None:
    argv = ["sh", "-c", "echo side; exit 3"]
    side = start(argv)
    assert run(["echo", "main"]).text == "main\n"
    done = finish(side, argv)
    assert (done.code, done.text) == (3, "side\n")


def test_a_logged_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    child = start_logged(
        ["sh", "-c", "echo out; echo err >&2; ps -o sid= -p $$"],
        cwd=str(tmp_path), env=dict(os.environ), log=str(log),
    )  # fmt: skip
    assert wait(child, time.monotonic() + 30) == 0
    lines = log.read_text().split()
    assert lines[:3] == ["before", "out", "err"]
    assert int(lines[3]) == child.pid


def test_programs_are_found_as_by_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    here = tmp_path / "second" / "tool"
    here.write_text("#!/bin/sh\n")
    (tmp_path / "first" / "tool").mkdir()
    monkeypatch.chdir(tmp_path / "second")
    for path in (f"{tmp_path}/first:{tmp_path}/second", "", ":/bin", "/nowhere"):
        monkeypatch.setenv("PATH", path)
        for mode in (0o600, 0o700):
            here.chmod(mode)
            for name in ("tool", "./tool", str(here), "no-tool"):
                assert process.find_program(name) == shutil.which(name), (path, mode, name)


def test_a_child_whose_end_was_seen_but_not_noted_is_let_go() -> None:
    """A signal may come just after the system call that takes a child's exit status."""
    child = start(["true"])
    os.waitpid(child.pid, 0)
    process.end(child)
    assert not child.pipes
