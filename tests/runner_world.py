"""A world for rendered runners: write a plan, render it, run it, read what it recorded."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from world import SCRIPTS, Ran, World

RENDERER = SCRIPTS / "render_worker_loop.py"
LANGUAGES = {"python": "py", "bash": "sh"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The prompt is a script: `sh` reads it from stdin, as an agent reads its prompt.
AGENT = {"cli": "sh"}
COMMIT = "echo x > $TASK.txt && git add -A && git commit -q -m $TASK\n"
CHANGE = "echo x > $TASK.txt\n"

Step = dict[str, Any]


def task(name: str, prompt: str = COMMIT, **fields: Any) -> dict[str, Any]:
    """A task of a plan; the prompt is what `sh` runs in the worktree."""
    return {"name": name, "prompt": prompt, **fields}


def sh(script: str) -> list[str]:
    """A command as a list, run by sh."""
    return ["sh", "-c", script]


def render(*words: str) -> Ran:
    """Run the renderer inside of this process; its answer."""
    from fanout.cli.render_worker_loop import main

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(words))
        out.flush()
        err.flush()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    texts = [s.buffer.getvalue().decode() for s in (out, err)]  # type: ignore[attr-defined]
    assert "this program has a fault" not in texts[1], texts[1]
    return Ran(code, *texts)


class Runner:
    """A plan of one world, rendered in one language, and the run `r1` of it."""

    def __init__(self, world: World, language: str) -> None:
        self.world = world
        self.language = language
        self.repo = world.repo
        self.path = world.root / "out" / f"run-workers.{LANGUAGES[language]}"
        self.path.parent.mkdir(exist_ok=True)
        self.plan_file = world.root / "out" / "plan.json"
        self.run_id = "r1"
        self.env: dict[str, str] = {}

    # --- making ---

    def plan(self, *tasks: dict[str, Any], **fields: Any) -> Path:
        """Write and render a plan; the runner."""
        plan = {"run_name": "demo", "agent": AGENT, "tasks": list(tasks), **fields}
        self.plan_file.write_text(json.dumps(plan))
        return self.render()

    def render(self) -> Path:
        """Render the plan file; the runner."""
        ran = render(
            *("--config", str(self.plan_file), "--language", self.language),
            *("--output", str(self.path), "--json"),
        )
        assert ran.code == 0, (ran.out, ran.err)
        return self.path

    def script(self, name: str, text: str) -> Path:
        """A sh script on PATH, such as an agent."""
        path = self.world.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
        return path

    # --- running ---

    def environment(self, env: Mapping[str, str | None]) -> dict[str, str]:
        """The environment of a runner; None takes a variable away."""
        given = {**self.world.env, "RUN_ID": self.run_id, **self.env, **env}
        return {name: value for name, value in given.items() if value is not None}

    def run(
        self,
        *words: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        seconds: float = 60.0,
        limit: str = "",
        env: Mapping[str, str | None] | None = None,
        **more: str | None,
    ) -> Ran:
        """Run it to its end; `env` and keywords in capitals are its environment."""
        folder, whole = cwd or self.repo, self.environment({**(env or {}), **more})
        if self.path.suffix == ".py" and not limit:
            ran = self.world.run_warm(
                str(self.path), list(words), cwd=folder, env=whole, stdin=stdin, seconds=seconds
            )
        else:
            argv = [str(self.path), *words]
            if limit:
                argv = ["bash", "-c", f'{limit}; exec "$0" "$@"', *argv]
            done = subprocess.run(
                argv, cwd=folder, env=whole, input=stdin,
                capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
            texts = (out.decode("utf-8", "surrogateescape") for out in (done.stdout, done.stderr))
            ran = Ran(done.returncode, *texts)
        self.check_manners(ran)
        return ran

    def check_manners(self, ran: Ran) -> None:
        """No fault of the runner's own shows in what it printed."""
        for line in ran.err.splitlines():
            assert "Traceback" not in line, ran.err
            # `file: line 12: x: unbound variable` and its like
            assert not line.startswith(f"{self.path}: line "), ran.err

    def ends(self, code: int, *words: str, **options: Any) -> Ran:
        """Run it to its end, demand this exit code."""
        ran = self.run(*words, **options)
        assert ran.code == code, (ran.code, ran.out, ran.err)
        return ran

    def refused(self, code: int, *words: str, **options: Any) -> str:
        """Demand that it refuses with this code and leaves everything as it was; the error."""
        before = self.seen()
        ran = self.ends(code, *words, **options)
        self.same(before, locks=True)
        (error,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        return error + "".join(f"\n{x}" for x in ran.err.splitlines() if x.startswith("hint: "))

    def start(self, *words: str, **env: str | None) -> subprocess.Popen[bytes]:
        """Start it and do not wait for it; its output goes to files in `out`."""
        argv = [str(self.path), *words]
        with (
            (self.path.parent / "stdout").open("ab") as out,
            (self.path.parent / "stderr").open("ab") as err,
        ):
            return subprocess.Popen(
                argv, cwd=self.repo, env=self.environment(env),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    def narration(self) -> str:
        """What started runners wrote to stderr."""
        path = self.path.parent / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- reading ---

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.repo / ".worker-runs" / self.run_id

    def tree(self, name: str) -> Path:
        """The worktree of a task, by the default rule."""
        return self.world.tree(name)

    def json(self, *parts: str) -> dict[str, Any]:
        """A JSON file of the run's folder."""
        return json.loads(self.folder.joinpath(*parts).read_bytes())

    @property
    def manifest(self) -> dict[str, Any]:
        """The run's manifest."""
        return self.json("manifest.json")

    def tasks(self) -> dict[str, dict[str, Any]]:
        """The tasks of the manifest by name."""
        return {row["name"]: row for row in self.manifest["tasks"]}

    def statuses(self) -> dict[str, str]:
        """The status of every task by name."""
        return {name: row["status"] for name, row in self.tasks().items()}

    def result(self, name: str) -> dict[str, Any]:
        """What one task recorded itself."""
        return self.json("tasks", name, "result.json")

    def log(self, *parts: str) -> bytes:
        """A log of the run's folder."""
        return self.folder.joinpath(*parts).read_bytes()

    def events(self) -> list[dict[str, Any]]:
        """The events of the whole run."""
        lines = self.log("events.jsonl").decode().splitlines()
        return [json.loads(line) for line in lines]

    def seen(self) -> dict[str, Any]:
        """Everything that a refused or dry run must leave as it was, byte for byte."""
        out = self.path.parent
        every = {
            str(path): (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
            for path in self.world.root.rglob("*")
            if not path.is_relative_to(out) and (mode := path.lstat().st_mode)
        }
        return {"files": every, "made": sorted(p.name for p in out.iterdir())}

    def same(self, before: dict[str, Any], *, locks: bool = False) -> None:
        """Demand that all is as it was seen before; folders for locks may have been made."""
        after = self.seen()
        for path in [p for p in after["files"] if locks and self.lock_folder(p)]:
            after["files"].pop(path)
            before["files"].pop(path, None)
        assert sorted(after["files"]) == sorted(before["files"])
        assert after == before

    def lock_folder(self, path: str) -> bool:
        """Whether a path is the folder of claims or one above it, or the lock for worktrees."""
        locks = f"{self.repo}/.git/agent-workers/locks"
        return path in (os.path.dirname(locks), locks, f"{locks}/runs", f"{locks}/worktrees.lock")

    def leftovers(self) -> dict[int, str]:
        """The living processes of runs of this world, the runners themselves left out."""
        found: dict[int, str] = {}
        for pid, line in self.world.processes().items():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(b"AGENT_WORKERS_RUN=") for word in environ):
                found[pid] = line
        return found

    def wait_for_file(self, path: Path) -> Path:
        """The path once it is there."""
        deadline = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} is not there; {self.narration()}"
            time.sleep(0.02)
        return path


def statuses(steps: list[Step]) -> list[str]:
    """The status words of steps, in order."""
    return [step["status"] for step in steps]


def flag(path: Path) -> str:
    """A line for sh that leaves an empty file, to be waited for."""
    return f": > {shlex.quote(str(path))}\n"


def hold(path: Path) -> str:
    """A line for sh that waits until a file is there; gives up after half a minute."""
    name = shlex.quote(str(path))
    return f"n=0; while [ ! -e {name} ] && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.05; done\n"


def bin_without(world: World, *names: str) -> str:
    """A PATH on which some programs are missing: links to all others."""
    folder = world.root / "few"
    folder.mkdir()
    for part in world.env["PATH"].split(":"):
        if os.path.isdir(part):
            for name in os.listdir(part):
                if name not in names and not os.path.lexists(folder / name):
                    os.symlink(os.path.join(part, name), folder / name)
    return str(folder)


def all_have_ended(world: World) -> None:
    """Demand that no process of the world is left; what was just killed may take a moment."""
    deadline = time.monotonic() + 3
    while (left := world.processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, left


@pytest.fixture(params=list(LANGUAGES))
def runner_language(request: pytest.FixtureRequest) -> str:
    """Each language of a runner."""
    return request.param


@pytest.fixture
def runner(world: World, runner_language: str) -> Iterator[Runner]:
    """A runner of each language; no process is left at the end, not even of a watchdog."""
    made = Runner(world, runner_language)
    yield made
    all_have_ended(world)
