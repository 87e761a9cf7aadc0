"""Kill a verb at one of its steps, then call it again: under_fire.py CASE PART PARTS.

A step is whatever reaches outside of the process: an external command, a file opened for writing,
a rename, an unlink, a folder made or removed. An audit hook counts them, so that no step can be
forgotten, and the process kills itself right before step N. After step N is right before step
N + 1, so every step is met from both sides. Commands in a row that only look count as one step, and
so do all removals in a row but the first two.

Each call runs in a forked child, which spares the start of an interpreter. This program has one
thread, a test runner's process may have more.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "scripts")]

# Every room is imported before the forks, which would each import it anew.
ROOMS = [
    "cleaning",
    "cli.worker_verbs",
    "prompting",
    "spawning",
    "ending",
]
for room in ROOMS:
    importlib.import_module(f"fanout.{room}")

from fanout.cli import agent_workers  # noqa: E402
from world import World, wait_for  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES = ("subprocess.Popen", "os.posix_spawn")
COUNTED = frozenset(
    {
        *PROCESSES,
        "open",
        "os.rename",
        "os.remove",
        "os.rmdir",
        "os.mkdir",
        "shutil.rmtree",
        "shutil.move",
        "shutil.copyfile",
    }
)
# Commands of git and tmux that only look.
LOOKS = {
    *("rev-parse", "for-each-ref", "merge-base", "rev-list", "status", "ls-files", "cat-file"),
    *("diff-tree", "diff-index", "ls-tree", "log", "var"),
    *("list-panes", "list-sessions", "display-message", "capture-pane"),
}
LIMIT = 400
# So many workers are made and taken away together.
AT_ONCE = 8


class Called(NamedTuple):
    """How a forked call ended; `code` is None when it was killed."""

    code: int | None
    answer: dict[str, Any]

    @property
    def error(self) -> str:
        """The error's code, or an empty string."""
        return self.answer.get("error", {}).get("code", "")


def call(
    world: World,
    *argv: str,
    kill_at: int = 0,
    main: Callable[[list[str]], int] = agent_workers.main,
) -> Called:
    """Run agent_workers.py, or another command, in a child that leads a process group of its own.

    It is killed right before step `kill_at` (0: never), with all of its group where that is
    negative.
    """
    out = world.root / "out.json"
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setpgid(0, 0)
            os.environ.clear()
            os.environ.update(world.env)
            os.chdir(world.repo)
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(descriptor, 1)
            os.dup2(null, 0)
            os.dup2(null, 2)
            if kill_at:
                kill_before(kill_at)
            status = main([*argv[:1], "--json", *argv[1:]])
        except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
            Path(world.root / "traceback.txt").write_text(traceback.format_exc())
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Called(None, {})
    text = out.read_text()
    with contextlib.suppress(ValueError):
        return Called(os.WEXITSTATUS(status), json.loads(text))
    trace = world.root / "traceback.txt"
    raise AssertionError(f"{argv}: {text} {trace.read_text() if trace.exists() else ''}")


def kill_before(step: int) -> None:
    """Make this process kill itself right before its N-th step."""
    seen = 0
    last = ""
    removed = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen, last, removed
        if event not in COUNTED or is_reading(event, arguments):
            return
        words = arguments[1] if event in PROCESSES else arguments[:1]
        # Killed between two looks, all is as it was before the first.
        looks = ";" not in words and not LOOKS.isdisjoint(map(str, words))
        name = "look" if looks else str(words)
        if name == last == "look":
            return
        removed = removed + 1 if event in ("os.remove", "os.rmdir") else 0
        if removed > 2:
            return
        last = name
        seen += 1
        if seen == abs(step):
            (os.kill if step > 0 else os.killpg)(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def is_reading(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an open only reads, or opens what holds no record."""
    if event != "open":
        return False
    path, _, flags = arguments
    writing = bool(flags & (os.O_WRONLY | os.O_RDWR))
    return not writing or str(path) == os.devnull or str(path).endswith(".lock")


# --- The cases ------------------------------------------------------------------------------


class Case:
    """One verb under fire: how to come to its start, the call, and what must hold afterwards."""

    def __init__(self) -> None:
        self.world = World()
        agent = self.world.root / "bin" / "idle-agent"
        # Sleeps in short pieces, so that it ends by itself when the world is gone.
        agent.write_text(
            '#!/bin/sh\necho "$$" >>"$WORLD/starts"\nwhile [ -d "$WORLD" ]; do sleep 1; done\n'
        )
        agent.chmod(0o755)

    def prepare(self, names: list[str]) -> None:
        """Bring workers of these names to where the verb begins; nothing when it makes them."""

    def one(self, name: str, step: int) -> bool:
        """Kill the verb before this step, call it again; whether it came that far."""
        raise NotImplementedError

    def finish(self, names: list[str]) -> None:
        """Take the workers away that are left, and see that nothing of them is."""
        rows = self.done("status").answer["data"]["workers"]
        left = [row["name"] for row in rows if row["name"] in names]
        if left:
            self.done("stop", *left)
            self.done("cleanup", *left, "--discard", "--branch-delete")
        for name in names:
            self.require_nothing(name)

    def spawn_all(self, names: list[str]) -> None:
        """Spawn workers in one call."""
        folder = self.world.root / "prompts"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in names:
            (folder / f"{name}.md").write_text("x")
        words = ["--agent-cli", "idle-agent", "--prompt-mode", "argument", "--settle", "0"]
        self.done("spawn", "--prompts-dir", str(folder), *words)

    def done(self, *argv: str) -> Called:
        """A call that must succeed."""
        called = call(self.world, *argv)
        assert called.code == 0, (argv, called)
        return called

    def spawn_words(self, name: str) -> list[str]:
        """The options of a plain spawn."""
        words = ["spawn", name, "--prompt", "x", "--agent-cli", "idle-agent"]
        return [*words, "--prompt-mode", "argument", "--settle", "0"]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The status rows of this name."""
        return self.done("status", name).answer["data"]["workers"]

    def require_nothing(self, name: str) -> None:
        """Nothing of a worker is left: no record, tree, branch, session or process."""
        world = self.world
        assert not world.record(name).exists()
        assert name not in world.branches()
        assert str(world.tree(name)) not in world.worktrees(), world.worktrees()
        parent = world.tree(name).parent
        left = list(parent.glob(f"*{name}*")) if parent.exists() else []
        assert not left, left
        assert f"agent-worker-{name}" not in world.sessions()
        assert not self.agents(name), self.agents(name)
        kept = (world.repo / ".git" / "agent-workers").glob("dropped-*")
        assert not list(kept)

    def agents(self, name: str) -> list[int]:
        """The living agents of a worker."""
        mark = f"AGENT_WORKER_NAME={name}".encode()
        found: list[int] = []
        for pid, command in self.world.processes().items():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if mark in environ and "idle-agent" in command:
                    found.append(pid)
        return found

    def require_one_agent(self, name: str) -> None:
        """Exactly one agent of this name lives, in exactly one session."""
        wait_for(lambda: len(self.agents(name)) == 1, f"one agent of {name}", 10)
        assert self.world.sessions().count(f"agent-worker-{name}") == 1
        (row,) = self.rows(name)
        assert row["state"] in ("running", "starting"), row


class Spawn(Case):
    """spawn: afterwards there is exactly one worker, or the same call makes it."""

    def one(self, name: str, step: int) -> bool:
        killed = call(self.world, *self.spawn_words(name), kill_at=step)
        if killed.code is None:
            again = call(self.world, *self.spawn_words(name))
            assert again.code == 0 or again.error == "worker-exists", again
        else:
            assert killed.code == 0, killed
        self.require_one_agent(name)
        assert name in self.world.branches()
        assert str(self.world.tree(name)) in self.world.worktrees()
        return killed.code is None


class Stop(Case):
    """stop of two: afterwards nothing lives, the trees are there and the jobs are cancelled."""

    def prepare(self, names: list[str]) -> None:
        self.spawn_all([*names, *(f"{name}-too" for name in names)])

    def one(self, name: str, step: int) -> bool:
        names = [name, f"{name}-too"]
        for each in names:
            (self.world.tree(each) / "work.txt").write_text("work\n")
        killed = call(self.world, "stop", *names, kill_at=step)
        self.done("stop", *names)
        for each in names:
            assert not self.agents(each)
            (row,) = self.rows(each)
            assert row["state"] in ("stopped", "exited"), row
            assert row["job"]["state"] in ("cancelled", "failed"), row
            assert (self.world.tree(each) / "work.txt").read_text() == "work\n"
        return killed.code is None

    def finish(self, names: list[str]) -> None:
        super().finish([*names, *(f"{name}-too" for name in names)])


class Resume(Case):
    """resume: afterwards exactly one agent lives in the old tree."""

    def prepare(self, names: list[str]) -> None:
        self.spawn_all(names)
        self.done("stop", *names)

    def one(self, name: str, step: int) -> bool:
        (self.world.tree(name) / "work.txt").write_text("work\n")
        words = ["resume", name, "--prompt", "go on", "--settle", "0"]
        killed = call(self.world, *words, kill_at=step)
        if killed.code is None:
            again = call(self.world, *words)
            assert again.code == 0 or again.error == "still-running", again
        self.require_one_agent(name)
        assert (self.world.tree(name) / "work.txt").read_text() == "work\n"
        return killed.code is None


class Cleanup(Case):
    """cleanup: afterwards all is gone, or all is as it was and the same call removes it."""

    def prepare(self, names: list[str]) -> None:
        self.spawn_all(names)
        self.done("stop", *names)

    def one(self, name: str, step: int) -> bool:
        words = ["cleanup", name, "--branch-delete"]
        killed = call(self.world, *words, kill_at=step)
        if killed.code is None:
            again = call(self.world, *words)
            assert again.code == 0 or again.error == "unknown-worker", again
        self.require_nothing(name)
        return killed.code is None


class Discard(Case):
    """cleanup --discard: each file and commit is in the tree or under a rescue ref, always."""

    def prepare(self, names: list[str]) -> None:
        self.spawn_all(names)
        self.done("stop", *names)

    def one(self, name: str, step: int) -> bool:
        world = self.world
        tree = world.tree(name)
        (tree / "kept.txt").write_text("committed\n")
        commit = world.commit("work", tree)
        (tree / "loose.txt").write_text("untracked\n")
        words = ["cleanup", name, "--discard", "--branch-delete"]
        killed = call(world, *words, kill_at=step)
        if killed.code is None:
            again = call(world, *words)
            assert again.code == 0 or again.error == "unknown-worker", again
        refs = world.git("for-each-ref", "--format=%(refname)", f"refs/agent-workers/rescue/{name}")
        saved = [ref for ref in refs.split() if world.git("ls-tree", ref, "loose.txt")]
        assert saved, f"nothing was rescued: {refs}"
        assert world.git("show", f"{saved[-1]}:loose.txt") == "untracked"
        assert world.git("merge-base", commit, saved[-1]) == commit
        self.require_nothing(name)
        return killed.code is None


class Send(Case):
    """send: the agent gets the text exactly once."""

    def one(self, name: str, step: int) -> bool:
        world = self.world
        log = world.root / "echo.log"
        if not log.exists():
            words = ["--prompt-mode", "none", "--settle", "0"]
            self.done("spawn", "echo", "--prompt", "x", *world.fake("echo"), *words)
            wait_for(lambda: "READY" in self.screen(), "the agent is ready")
        text = f"text-{name}-end"
        killed = call(world, "send", "echo", "--prompt", text, kill_at=step)
        if killed.code is None:
            again = call(world, "send", "echo", "--prompt", text)
            assert again.code == 0, again
        wait_for(lambda: log.read_bytes().count(text.encode()) == 1, f"{text} arrived once", 5)
        tail = log.read_bytes().split(text.encode())[1]
        assert tail.startswith(b"\x1b[201~"), tail
        assert b"\r" in tail, tail
        taken = wait_for(lambda: self.screen().split("took")[1:], "taken", 5)
        assert taken[-1].split()[0] == str(len(text))
        assert not (world.record("echo") / "sending.json").exists()
        return killed.code is None

    def screen(self) -> str:
        """What the agent has printed."""
        return self.done("capture", "echo").answer["data"]["text"]

    def finish(self, names: list[str]) -> None:
        """Its only worker goes with the world."""


CASES: dict[str, type[Case]] = {
    "spawn": Spawn,
    "stop": Stop,
    "resume": Resume,
    "cleanup": Cleanup,
    "discard": Discard,
    "send": Send,
}


def run(kind: type[Case], part: int, parts: int) -> int:
    """Kill at every `parts`-th step from `part` on, until a call comes to its end; the number."""
    case = kind()
    steps = 0
    ended = False
    try:
        while not ended:
            step = part + steps * parts
            assert step < LIMIT, f"{kind.__name__} did not end within {LIMIT} steps"
            names = [f"w{step + n * parts}x" for n in range(AT_ONCE)]
            case.prepare(names)
            for each in names:
                ended = not case.one(each, part + steps * parts)
                if ended:
                    break
                steps += 1
            case.finish(names)
    except BaseException:
        print(f"{kind.__name__}, killed before step {part + steps * parts}", file=sys.stderr)
        raise
    finally:
        case.world.close()
    return steps


if __name__ == "__main__":
    print(run(CASES[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])))
