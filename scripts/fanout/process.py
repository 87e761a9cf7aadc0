"""The only module that starts processes."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess

from fanout.errors import SkillError, missing
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
END_WAIT = 5.0


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


def start(
    argv: list[str],
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    reads: bool = False,
    says_why: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a process whose output `finish` collects; for work that runs beside other work.

    With `reads` its stdin is a pipe, else empty; without `says_why` its stderr is dropped, which
    makes it cheaper to collect.

    Raises SkillError `program-missing` when the program cannot be started.
    """
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=clean_environment() if env is None else env,
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if says_why else subprocess.DEVNULL,
        )
    except OSError as error:
        raise cannot_start(argv, cwd, error) from error


def finish(process: subprocess.Popen[bytes], argv: list[str]) -> Completed:
    """Wait for a process made by `start`."""
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        end(process)
        raise
    return Completed(argv, process.returncode, stdout, stderr or b"")


def run(
    argv: list[str],
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a process to its end. The exit code is an answer, not an error.

    Raises SkillError: `program-missing` when it cannot be started, `process-timed-out` after
    `timeout` seconds. Then, and when this command is interrupted, the process is ended.
    """
    process = start(argv, cwd=cwd, env=env, reads=stdin is not None)
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired as error:
        end(process)
        raise SkillError("process-timed-out", f"`{argv[0]}` did not end in {timeout} s") from error
    except BaseException:
        end(process)
        raise
    return Completed(argv, process.returncode, stdout, stderr)


def side_by_side(calls: list[Callable[[], Any]], width: int = 2) -> list[Any]:
    """What calls that wait for processes return, so many of them at a time.

    Raises what one of them raised, once all have ended.
    """
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

    def __init__(self, argv: list[str], *, cwd: str, env: dict[str, str]) -> None:
        self.process = start(argv, cwd=cwd, env=env, reads=True)
        self.trouble = ""

    def ask(self, words: str, wanted: str, limit: float) -> bool:
        """Send words; whether what is wanted came back within so many seconds."""
        import select
        import time

        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(words.encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.failed()
        deadline = time.monotonic() + limit
        answer = b""
        while wanted.encode() not in answer:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                self.trouble = f"no answer in {limit:g} s"
                return False
            part = os.read(self.process.stdout.fileno(), 4096)
            if not part:
                return self.failed()
            answer += part
        return True

    def failed(self) -> bool:
        """Keep what the process said at its end."""
        with contextlib.suppress(OSError):
            _, errors = self.process.communicate()
            self.trouble = errors.decode("utf-8", "replace").strip()
        return False

    def close(self) -> None:
        """Tell the process that nothing more comes, and end it if that is not enough."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_WAIT)
        end(self.process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, by TERM where that is enough: git then removes its lock files."""
    process.terminate()
    try:
        process.wait(END_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # What it started may hold the other ends of its pipes: they are not read to their end.
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


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


def start_logged(
    argv: list[str], *, cwd: str, env: dict[str, str], log: str
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own with its output appended to `log`."""
    with open(log, "ab", buffering=0) as output:
        try:
            return subprocess.Popen(
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
