"""The only module that starts processes."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

from fanout.errors import SkillError, missing

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


def start(
    argv: list[str], *, cwd: str | None = None, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process whose output `finish` collects; for work that runs beside other work.

    Raises SkillError `program-missing` when the program cannot be started.
    """
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=clean_environment() if env is None else env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise cannot_start(argv, cwd, error) from error


def finish(process: subprocess.Popen[bytes], argv: list[str]) -> Completed:
    """Wait for a process made by `start`."""
    stdout, stderr = process.communicate()
    return Completed(argv, process.returncode, stdout, stderr)


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
    `timeout` seconds (the process is killed).
    """
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=clean_environment() if env is None else env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SkillError("process-timed-out", f"`{argv[0]}` did not end in {timeout} s") from error
    except OSError as error:
        raise cannot_start(argv, cwd, error) from error
    return Completed(argv, done.returncode, done.stdout, done.stderr)


def cannot_start(argv: list[str], cwd: str | None, error: OSError) -> SkillError:
    """Why a process could not be started, told apart by what is missing."""
    if isinstance(error, FileNotFoundError) and cwd is not None and not os.path.isdir(cwd):
        return missing("directory-missing", f"the directory {cwd!r} is not there")
    return missing(
        "program-missing",
        f"cannot run {argv[0]!r}: {error.strerror or error}",
        f"install {argv[0]!r} or put it on PATH",
    )


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
