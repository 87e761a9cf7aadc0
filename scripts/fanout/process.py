"""The only module that starts processes."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time

from fanout.errors import SkillError, missing
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

# Where a repository is looked for must follow from the working directory alone: a hook or an
# alias that runs this program exports locations of its own repository.
LOCATION_VARIABLES = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_GRAFT_FILE",
    }
)
TMUX_VARIABLES = frozenset({"TMUX", "TMUX_PANE"})
# Python ignores these; a program expects them to be as usual.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
END_WAIT = 5.0
READ_SIZE = 65_536
# Where programs were found, by name and PATH.
FOUND: dict[tuple[str, str | None], str] = {}


class Completed(NamedTuple):
    """How a process ended: its exit code (negative: the signal) and what it printed."""

    argv: list[str]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """stdout as text; bytes that are not UTF-8 survive as surrogates (file names)."""
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def error_text(self) -> str:
        """stderr as printable text, without trailing newlines."""
        return self.stderr.decode("utf-8", "replace").strip()


def clean_environment() -> dict[str, str]:
    """The caller's environment without what would point git or tmux at another place."""
    hidden = LOCATION_VARIABLES | TMUX_VARIABLES
    return {name: value for name, value in os.environ.items() if name not in hidden}


def find_program(name: str) -> str | None:
    """Where a program is, as `shutil.which` finds it; importing that costs more than all else."""
    places = os.environ.get("PATH", os.defpath)
    folders = [""] if os.path.dirname(name) else places.split(os.pathsep) if places else []
    paths = (os.path.join(folder, name) for folder in folders)
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)


def program_path(name: str) -> str:
    """Where a program is. Raises FileNotFoundError: a bare name would mean this very folder."""
    key = (name, os.environ.get("PATH"))
    path = FOUND.get(key)
    if path is None or not os.access(path, os.X_OK):
        path = find_program(name)
        if path is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        FOUND[key] = path
    return path


class Running:
    """A process that was started. `pipes` holds our end of each, by the number it has there."""

    def __init__(self, pid: int, pipes: dict[int, int]) -> None:
        self.pid = pid
        self.pipes = pipes
        self.code: int | None = None

    def close(self, number: int) -> None:
        """Close our end of a pipe."""
        os.close(self.pipes.pop(number))


def start(
    argv: list[str],
    *,
    env: dict[str, str] | None = None,
    reads: bool = False,
    says_why: bool = True,
) -> Running:
    """Start a process whose output `finish` collects; for work that runs beside other work.

    It works in this process's own folder: `git -C` and the like go elsewhere. With `reads` its
    stdin is a pipe, else empty; without `says_why` its stderr is dropped.

    Raises SkillError `program-missing` when the program cannot be started.
    """
    # Not subprocess: importing it takes as long as many a verb's work, and so do fifty starts.
    piped = [number for number, wanted in enumerate((reads, True, says_why)) if wanted]
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0)
        for number in range(3)
        if number not in piped
    ]
    ours: dict[int, int] = {}
    theirs: list[int] = []
    try:
        for number in piped:
            ends = os.pipe()
            ours[number], other = reversed(ends) if number == 0 else ends
            theirs.append(other)
            actions.append((os.POSIX_SPAWN_DUP2, other, number))
        pid = os.posix_spawn(
            program_path(argv[0]),
            argv,
            clean_environment() if env is None else env,
            file_actions=actions,
            setsigdef=RESTORED,
        )
    except OSError as error:
        for descriptor in ours.values():
            os.close(descriptor)
        raise cannot_start(argv, None, error) from error
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return Running(pid, ours)


def finish(
    process: Running, argv: list[str], stdin: bytes = b"", timeout: float | None = None
) -> Completed:
    """Wait for a process made by `start`; ends it when it takes too long or this is interrupted.

    Raises SkillError `process-timed-out` after `timeout` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        output = exchange(process, stdin, deadline)
        code = wait(process, deadline)
    except TimeoutError as error:
        end(process)
        raise SkillError("process-timed-out", f"`{argv[0]}` did not end in {timeout} s") from error
    except BaseException:
        end(process)
        raise
    return Completed(argv, code, output[1], output[2])


def has_ended(process: Running) -> bool:
    """Whether a process has closed its stdout, so that `finish` does not wait for long."""
    poll = select.poll()
    poll.register(process.pipes[1], 0)
    return bool(poll.poll(0))


def exchange(process: Running, stdin: bytes, deadline: float | None) -> dict[int, bytes]:
    """Write what a process reads and read what it prints until all pipes are closed.

    Raises TimeoutError.
    """
    parts: dict[int, list[bytes]] = {1: [], 2: []}
    numbers = {descriptor: number for number, descriptor in process.pipes.items()}
    poll = select.poll()
    for descriptor, number in numbers.items():
        poll.register(descriptor, select.POLLIN if number else select.POLLOUT)
    unsent = memoryview(stdin)
    while process.pipes:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        for descriptor, _ in poll.poll(None if left is None else 1000 * left):
            number = numbers[descriptor]
            if number == 0:
                # One that ends without reading it all is no error.
                with contextlib.suppress(BrokenPipeError):
                    unsent = unsent[os.write(descriptor, unsent[: select.PIPE_BUF]) :]
                    if unsent:
                        continue
            elif part := os.read(descriptor, READ_SIZE):
                parts[number].append(part)
                continue
            poll.unregister(descriptor)
            process.close(number)
    return {number: b"".join(found) for number, found in parts.items()}


def wait(process: Running, deadline: float | None) -> int:
    """The exit code of a process, negative for a signal. Raises TimeoutError."""
    pause = 0.0001
    while process.code is None:
        pid, status = os.waitpid(process.pid, 0 if deadline is None else os.WNOHANG)
        if pid:
            process.code = os.waitstatus_to_exitcode(status)
        elif deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError
        else:
            time.sleep(pause)
            pause = min(0.05, pause * 2)
    return process.code


def run(
    argv: list[str],
    *,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a process to its end. The exit code is an answer, not an error.

    Raises SkillError: `program-missing` when it cannot be started, `process-timed-out` after
    `timeout` seconds. Then, and when this command is interrupted, the process is ended.
    """
    return finish(start(argv, env=env, reads=stdin is not None), argv, stdin or b"", timeout)


def side_by_side(calls: Sequence[Callable[[], Any]], width: int = 2) -> list[Any]:
    """What calls that wait for processes return, so many of them at a time.

    Raises what one of them raised, once all have ended.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    import threading

    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []
    line = iter(enumerate(calls))

    def work() -> None:
        for number, call in line:
            try:
                results[number] = call()
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in calls[:width]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Talk:
    """A process that is asked and answers. `trouble` is what it said when it ended."""

    def __init__(self, argv: list[str], *, env: dict[str, str]) -> None:
        self.process = start(argv, env=env, reads=True)
        self.trouble = ""

    def ask(self, words: str, wanted: str, limit: float) -> bool:
        """Send words; whether what is wanted came back within so many seconds."""
        if 0 not in self.process.pipes:
            return False
        try:
            # Less than a pipe holds at once.
            os.write(self.process.pipes[0], words.encode())
        except BrokenPipeError:
            return self.failed()
        deadline = time.monotonic() + limit
        poll = select.poll()
        poll.register(self.process.pipes[1], select.POLLIN)
        answer = b""
        while wanted.encode() not in answer:
            if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                self.trouble = f"no answer in {limit:g} s"
                return False
            part = os.read(self.process.pipes[1], READ_SIZE)
            if not part:
                return self.failed()
            answer += part
        return True

    def failed(self) -> bool:
        """Keep what the process said at its end."""
        with contextlib.suppress(TimeoutError):
            output = exchange(self.process, b"", time.monotonic() + END_WAIT)
            self.trouble = output[2].decode("utf-8", "replace").strip()
        return False

    def close(self) -> None:
        """Tell the process that nothing more comes, and end it if that is not enough."""
        if 0 in self.process.pipes:
            self.process.close(0)
        with contextlib.suppress(TimeoutError):
            wait(self.process, time.monotonic() + END_WAIT)
        end(self.process)


def end(process: Running) -> None:
    """End a process, by TERM where that is enough: git then removes its lock files."""
    # A signal may have come between the end of a wait and its note: then there is no such child.
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        if process.code is None:
            os.kill(process.pid, signal.SIGTERM)
            try:
                wait(process, time.monotonic() + END_WAIT)
            except TimeoutError:
                os.kill(process.pid, signal.SIGKILL)
                wait(process, None)
    # What it started may hold the other ends of its pipes: they are not read to their end.
    for number in list(process.pipes):
        process.close(number)


def become(argv: list[str]) -> NoReturn:
    """Replace this process by a program. Raises SkillError `program-missing`."""
    try:
        os.execvpe(argv[0], argv, clean_environment())
    except OSError as error:
        raise cannot_start(argv, None, error) from error


def cannot_start(argv: list[str], cwd: str | None, error: OSError) -> SkillError:
    """Why a process could not be started, told apart by what is in the way."""
    if cwd is not None and not os.path.isdir(cwd):
        return missing("directory-missing", f"the directory {cwd!r} is not there")
    if cwd is not None and not os.access(cwd, os.X_OK):
        return SkillError("file-failed", f"the directory {cwd!r} cannot be entered")
    why = error.strerror or str(error)
    if error.errno == errno.E2BIG:
        return SkillError(
            "too-long",
            f"cannot run {argv[0]!r}: {why}",
            "its arguments and the environment are larger than the system allows together",
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC):
        return missing(
            "program-missing",
            f"cannot run {argv[0]!r}: {why}",
            f"install {argv[0]!r} or put it on PATH",
        )
    return SkillError("cannot-start", f"cannot run {argv[0]!r}: {why}")


def start_logged(argv: list[str], *, cwd: str, env: dict[str, str], log: str) -> Running:
    """Start a command in a session of its own with its output appended to `log`."""
    import subprocess

    with open(log, "ab", buffering=0) as output:
        try:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(argv, cwd, error) from error
    # Nobody waits by this object: a signal in the middle of its `wait` leaves its lock taken.
    process.returncode = 0
    return Running(process.pid, {})
