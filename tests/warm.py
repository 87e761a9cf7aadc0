"""Commands from a process that has imported them already: a call takes a tenth of the time.

`Warm` starts a Python that imports every room and then forks for each call. What it forks is a
process like any other, with its own environment, folder and streams; only Python's start is not
repeated, and the compilation of what all rendered Python runners carry. How the commands and the
runners start is tested without this.
"""

from __future__ import annotations
import __future__

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
RUNTIME = SCRIPTS / "fanout" / "runtimes" / "loop.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


class Warm:
    """The process that forks, as its callers see it; threads may call at once."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Without the environment of the moment: what carries a world's mark ends with it.
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, env={"LANG": "C.UTF-8"},
            )  # fmt: skip

    def start(
        self, name: str, arguments: list[str], *, cwd: str, env: dict[str, str], files: list[int]
    ) -> Call:
        """Start a command on three open files, its stdin, stdout and stderr.

        `name` is that of a script without its ending, or the path of a rendered Python runner.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        order = os.memfd_create("order")
        with theirs:
            text = json.dumps([name, arguments, cwd, env])
            with open(order, "wb", closefd=False) as file:
                file.write(text.encode("utf-8", "surrogateescape"))
            numbers = array.array("i", [order, theirs.fileno(), *files])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
            self.ours.sendmsg([b"call"], rights)
        os.close(order)
        return Call(ours)

    def close(self) -> None:
        """Let it end."""
        self.ours.close()
        self.process.wait()


class Call:
    """A command that runs."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.pid = int(self.read())

    def read(self) -> str:
        """The next word that the forking process says."""
        word = b""
        while not word.endswith(b"\n"):
            part = self.line.recv(1)
            if not part:
                raise ChildProcessError("the process that runs commands has gone")
            word += part
        return word.decode()

    def wait(self, seconds: float) -> int:
        """Its exit code, negative for a signal; it is killed after so many seconds."""
        self.line.settimeout(seconds)
        try:
            return int(self.read())
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            raise
        finally:
            self.line.close()


def serve(line: socket.socket) -> None:
    """Fork for each call until the other side closes, and tell the pid and the end of each."""
    sys.path[:0] = [str(SCRIPTS)]
    for path in sorted((SCRIPTS / "fanout").rglob("*.py")):
        if "runtimes" not in path.parts:
            importlib.import_module(".".join(path.relative_to(SCRIPTS).with_suffix("").parts))
    RUNNER.append(compile(RUNTIME.read_text(), str(RUNTIME), "exec"))
    gc.freeze()
    # By the descriptor that tells the end of a command: its pid, and where its end is told.
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(line, select.POLLIN)
    open_line = True
    while open_line or running:
        for number, _ in poll.poll():
            if number in running:
                poll.unregister(number)
                os.close(number)
                pid, answer = running.pop(number)
                _, status = os.waitpid(pid, 0)
                tell(answer, os.waitstatus_to_exitcode(status))
                os.close(answer)
                continue
            message, rights, _, _ = socket.recv_fds(line, 16, 5)
            if not message:
                poll.unregister(line)
                open_line = False
                continue
            order, answer, *files = rights
            pid = os.fork()
            if pid == 0:
                become(order, files)
            for descriptor in (order, *files):
                os.close(descriptor)
            tell(answer, pid)
            ended = os.pidfd_open(pid)
            running[ended] = pid, answer
            poll.register(ended, select.POLLIN)


def tell(answer: int, word: int) -> None:
    """Tell a caller a word; one that waits no longer has gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(answer, b"%d\n" % word)


def become(order: int, files: list[int]) -> NoReturn:
    """Be the command: its signals, folder, environment and streams, then its work."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.lseek(order, 0, os.SEEK_SET)
    with open(order, "rb") as file:
        wanted = json.loads(file.read().decode("utf-8", "surrogateescape"))
    command, arguments, cwd, env = wanted
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 100)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        number = ("stdin", "stdout", "stderr").index(name)
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    code = 1
    try:
        if os.path.isabs(command):
            sys.argv = [command, *arguments]
            run_runner(Path(command))
        else:
            from fanout.edition import HELPER

            sys.argv = [str(SCRIPTS / f"{command}.py"), *arguments]
            # The script for workers has another name in each edition of the package.
            room = "agent_workers" if f"{command}.py" == HELPER else command
            code = importlib.import_module(f"fanout.cli.{room}").main(arguments)
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:  # noqa: BLE001 - as Python itself would end
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# The code of what all rendered Python runners carry, in the process that forks.
RUNNER: list[CodeType] = []


def run_runner(path: Path) -> None:
    """Be a rendered runner: a comment, the runtime as it stands, the plan and the call."""
    text = path.read_text()
    header, runtime, plan = text.partition(RUNTIME.read_text().rstrip("\n") + "\n")
    assert runtime, f"{path} does not carry the runtime as it stands"
    assert all(line.startswith("#") for line in header.splitlines() if line), header
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(RUNNER[0], names)  # noqa: S102
    flags = __future__.annotations.compiler_flag
    exec(compile(plan, str(path), "exec", flags), names)  # noqa: S102


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
