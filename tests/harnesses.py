#!/usr/bin/env python3
"""Prove on real agent CLIs what the mappings say: harnesses.py [NAME ...] [--all] [--keep].

Each CLI is installed (see harness_installs.py), pointed at the stand-in model server and driven in
a clean environment: interactively by agent_workers.py, and by both rendered runners. A line tells
how each check ended; what the checks say of the mapping's fields goes into a JSON file.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scripts")]

import pytest  # noqa: E402

import harness_table  # noqa: E402
from fanout.harness import value_at  # noqa: E402
from harness_installs import PLACE, Installed, install, node_major, pins, runtime_pin  # noqa: E402
from harness_story import Story, live_check  # noqa: E402
from harness_world import INTEGRATE, KEY, RENDERER, HarnessWorld, Screen, prompt, report, told  # noqa: E402
from model_server import ModelServer  # noqa: E402
from world import CACHE, SAMPLE_AGENT, Ran  # noqa: E402

RESULT = PLACE / "result.json"
LANGUAGES = {"python": "py", "bash": "sh"}
# How long an agent may take for a prompt of a few steps, in seconds; machines may be busy.
PATIENCE = 150.0
# A time limit that is to be reached, beside some times the time that a prompt takes to the model:
# there it must be, though others start at the same time.
LIMIT = 15
STARTS = 4
# How many tasks a runner has under way: two that work, two that wait for their time limit.
SIDE_BY_SIDE = 4
PRINTING = threading.Lock()
FAILURES = (Exception, pytest.fail.Exception)


class Check(NamedTuple):
    """How one check ended. `fields` are the mapping's paths that it speaks of."""

    harness: str
    name: str
    ok: bool
    seconds: float
    note: str
    fields: tuple[str, ...]


class Checks:
    """The checks of one CLI, told as they end."""

    def __init__(self, harness: str, version: str) -> None:
        self.harness = harness
        self.version = version
        self.done: list[Check] = []

    def run(self, name: str, question: Callable[[], str | None], *fields: str) -> bool:
        """Make one check; what it returns is a note. Whatever it raises is its failure."""
        begun = time.monotonic()
        try:
            ok, note = True, question() or ""
        except FAILURES as error:
            ok, note = False, str(error) or traceback.format_exc()
        seconds = time.monotonic() - begun
        self.done.append(Check(self.harness, name, ok, seconds, note, fields))
        word = "ok" if ok else "FAILED"
        with PRINTING:
            head = f"{self.harness} {self.version}"
            print(f"{head:<18} {name:<28} {word:<6} {seconds:6.1f} s  {note}", flush=True)
        return ok


def seen(
    question: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = PATIENCE,
    pause: float = 0.1,
) -> Any:
    """The first true answer, asked for every `pause` seconds. Raises AssertionError at the end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = question()
        if answer:
            return answer
        time.sleep(pause)
    told = what if isinstance(what, str) else what()
    raise AssertionError(f"not seen in {seconds:.0f} s: {told}")


# --- Interactively ------------------------------------------------------------------------


class Interactive:
    """One CLI in tmux, driven by agent_workers.py. The worker `one` is the one that is steered."""

    def __init__(self, world: HarnessWorld, checks: Checks) -> None:
        self.world = world
        self.checks = checks
        self.bypass = bypass_of(world)

    def begin(self) -> bool:
        """The first prompt, which also tells how long one takes here. Whether it was done."""
        done = self.checks.run(
            "spawn, paste", self.paste, "interactive.args", "interactive.prompt_mode",
            "interactive.ready", "interactive.submit_keys", "approval.bypass_args",
        )  # fmt: skip
        if not done:
            self.world.command("stop", "one")
        return done

    def go_on(self) -> None:
        """All checks after the first, in an order in which each builds on those before."""
        world, checks = self.world, self.checks
        checks.run("events by the agent", self.events)
        checks.run("send, busy, idle", self.send, "interactive.busy", "interactive.idle")
        checks.run("stop", self.stop, "interactive.leave_keys", "cleanup.survivors")
        # The others come while `one` does not live: some draw their screen all the time.
        if "start" in world.pin:
            checks.run("dialog at the start", self.start, "interactive.waiting",
                       "interactive.dialogs")  # fmt: skip
        if world.word("approval.bypass_args") != [] or "asking" in world.pin:
            checks.run("approval screen", self.approval, "interactive.waiting", "approval.default")
        checks.run("resume", self.resume, "session.id_source", "session.new_args",
                   "session.resume_args")  # fmt: skip
        checks.run("nothing left", self.end, "cleanup.survivors")

    def words(self, words: list[str]) -> list[str]:
        """The option that gives the agent more arguments."""
        return [f"--agent-args={shlex.join(words)}"] if words else []

    def start(self) -> str:
        """A CLI that nobody has used on this machine asks something; that is seen, not answered."""
        world = self.world
        env = world.environment(kind="start")
        text = f"Do nothing at {world.name}."
        ran = world.spawn_real("start", text, env=env, mapping=world.mapping_file)
        try:
            row = self.waiting("start")
            # It may have taken the prompt before it asked; then it keeps it until the answer.
            assert ran.code in (0, 10), told(ran)
            assert not world.asked_with(text), "something was typed into the dialog"
        finally:
            world.command("stop", "start")
        world.all_gone()
        return f"waiting: {row['detail']}"

    def paste(self) -> str:
        """A prompt of several lines arrives whole, and what it asks for is done."""
        world = self.world
        text = prompt(
            f"{world.name}-one",
            f"shell {report('started')}",
            "write paste.txt two words",
            "shell git add paste.txt && git commit -q -m paste",
            f"shell {report('completed --message done')}",
            f"say FIN~ISHED {world.name}-one",
        )
        begun, start = time.monotonic(), time.time()
        ran = world.spawn_real("one", text, *self.words(self.bypass), env=world.env)
        spawned = time.monotonic() - begun
        assert ran.code == 0, (told(ran), self.shown("one"))
        self.wait_for("one", text="FINISHED")
        assert world.arrived(f"{world.name}-one", world.given_prompt("one")), self.heard(
            f"{world.name}-one"
        )
        assert world.git("show", "one:paste.txt") == "two words"
        there = world.asked_with(f"{world.name}-one")[0].at - start
        world.start_seconds = there
        tab = ", each tab as blanks" if "pasted_tab" in world.pin else ""
        return f"spawned in {spawned:.1f} s, at the model after {there:.1f} s{tab}"

    def events(self) -> str:
        """The agent's own reports came through its shell tool."""
        rows = self.world.answer("events", "one")["events"]
        words = [row["event"] for row in rows]
        assert "started" in words, words
        assert "completed" in words, words
        job = self.row("one")["job"]
        assert (job["state"], job["message"]) == ("completed", "done"), job
        return " ".join(words)

    def send(self) -> str:
        """A second prompt arrives whole in the same conversation; the screen's signs are right."""
        world, harness = self.world, self.world.harness
        token = f"{world.name}-send"
        # A busy machine is slow to draw a sign of work.
        thinking = max(4, min(round(world.start_seconds / 2), 20))
        text = prompt(token, f"wait {thinking}", f"say FIN~ISHED {token}")
        path = world.root / "send.prompt"
        path.write_text(text)
        seen(lambda: not self.is_busy("one"), "the end of its sign of work", 60)
        idle = self.look("one")
        if harness.idle.patterns:
            assert harness.idle.match(idle.text, idle.title), f"not idle: {self.shown('one')}"
        world.answer("send", "one", "--prompt-file", str(path))
        seen(lambda: world.asked_with(token), "the second prompt at the model")
        if harness.busy.patterns:
            seen(
                lambda: self.is_busy("one"),
                lambda: "a sign of work: " + self.shown("one"),
                thinking - 0.5,
            )
        self.wait_for("one", text=f"FINISHED {token}")
        assert world.arrived(token, world.given_prompt("one", 2)), self.heard(token)
        (first, *_) = world.asked_with(token)
        assert any(f"{world.name}-one" in said for said in first.said()), "a new conversation"
        seen(lambda: not self.is_busy("one"), "the end of its sign of work", 60)
        return ""

    def approval(self) -> str:
        """Without the bypass it asks a person; that is seen, and nothing is typed."""
        world = self.world
        token = f"{world.name}-two"
        step = "beyond" if world.name == "codex" else "shell"
        text = prompt(token, f"{step} touch asked.txt && git status", f"say FIN~ISHED {token}")
        env = world.environment(kind="asking")
        words = self.words(world.laid_over("asking").get("args", []))
        try:
            return self.asked_for(world.spawn_real("two", text, *words, env=env))
        finally:
            world.command("stop", "two")

    def asked_for(self, ran: Ran) -> str:
        """The worker `two` waits for a person."""
        world = self.world
        assert ran.code in (0, 10), (told(ran), self.shown("two"))
        row = self.waiting("two")
        refused = world.command("send", "two", "--prompt", "more", "--json")
        assert refused.code == 10, told(refused)
        assert not (world.tree("two") / "asked.txt").exists()
        return f"waiting: {row['detail']}"

    def stop(self) -> str:
        """Nothing of the agent lives after it was stopped."""
        world = self.world
        world.answer("stop", "one")
        world.all_gone()
        return f"exit status {self.row('one')['exit_code']}"

    def resume(self) -> str:
        """The agent starts again, with its conversation where the mapping says so."""
        world = self.world
        token = f"{world.name}-again"
        text = prompt(token, f"say FIN~ISHED {token}")
        path = world.root / "again.prompt"
        path.write_text(text)
        world.answer("resume", "one", "--prompt-file", str(path))
        self.wait_for("one", text=f"FINISHED {token}")
        last = world.asked_with(token)[-1]
        kept = any(f"{world.name}-one" in said for said in last.said())
        means = bool(world.word("session.resume_args"))
        assert kept == means, f"conversation kept: {kept}, by the mapping: {means}"
        assert world.arrived(token, text), self.heard(token)
        return "conversation kept" if kept else "a new conversation, as the mapping says"

    def end(self) -> None:
        """Nothing lives at the end."""
        self.world.answer("stop", "one")
        self.world.all_gone()

    # --- looking ---

    def row(self, name: str) -> dict[str, Any]:
        """The status row of a worker."""
        return self.world.answer("status", name)["workers"][0]

    def waiting(self, name: str) -> dict[str, Any]:
        """The status row of a worker that waits for a person, as soon as it does."""

        def row() -> dict[str, Any] | None:
            found = self.row(name) if self.world.record(name).exists() else {}
            return found if found.get("state") == "waiting" else None

        # Each look is a command of its own.
        return seen(row, lambda: self.shown(name), 60 + 6 * self.world.start_seconds, 0.5)

    def look(self, name: str) -> Screen:
        """The screen of a worker."""
        return self.world.screen(name)

    def shown(self, name: str) -> str:
        """What a worker's screen shows, in few words."""
        with contextlib.suppress(Exception):
            screen = self.look(name)
            rows = [row.strip() for row in screen.text.splitlines() if row.strip()]
            return f"title {screen.title!r}, " + " | ".join(rows[-14:])
        return "no screen"

    def is_busy(self, name: str) -> bool:
        """Whether the screen shows that the agent works."""
        screen = self.look(name)
        return self.world.harness.busy.match(screen.text, screen.title) is not None

    def heard(self, token: str) -> str:
        """What the model heard instead."""
        found = [text for asked in self.world.asked_with(token) for text in asked.said()]
        there = [text for text in found if token in text]
        return f"{token} did not arrive whole; it was {there[:1]!r}"

    def wait_for(self, name: str, *, text: str) -> None:
        """Wait until the agent shows its last words."""
        try:
            seen(lambda: text in self.look(name).text, "")
        except AssertionError:
            rows = self.world.answer("events", name)["events"]
            proofs = [row["data"] for row in rows if row["event"] == "delivered"]
            raise AssertionError(f"never said {text!r} ({proofs}): {self.shown(name)}") from None


def bypass_of(world: HarnessWorld) -> list[str]:
    """The arguments with which the CLI asks nobody."""
    return list(world.word("approval.bypass_args") or [])


# --- By the rendered runners --------------------------------------------------------------


class Loop:
    """One CLI in a plan, by a runner of one language; the tasks run side by side."""

    def __init__(self, world: HarnessWorld, checks: Checks, language: str) -> None:
        self.world = world
        self.checks = checks
        self.language = language
        self.run_id = f"r-{language}"
        self.called: dict[str, Any] = world.harness.mapping["noninteractive"]
        self.results: dict[str, dict[str, Any]] = {}
        self.prompts: dict[str, str] = {}

    def run(self) -> None:
        """One run with all tasks, then what it says of each."""
        language = self.language
        if not self.checks.run(f"{language} runner", self.make):
            return
        said = "noninteractive."
        for number, mode in enumerate(self.modes()):
            fields = (f"{said}args", f"{said}prompt_mode") if number == 0 else ()
            self.checks.run(f"{language}: prompt by {mode}", lambda m=mode: self.passed(m), *fields)
        self.checks.run(f"{language}: two at once", self.parallel, "parallel.safe")
        if self.called.get("output_args"):
            self.checks.run(f"{language}: JSON output", self.structured, f"{said}output_args")
        self.checks.run(f"{language}: wrong key", self.wrong_key, f"{said}exit_codes")
        self.checks.run(f"{language}: HTTP 500", self.failing)
        self.checks.run(f"{language}: hang", self.hanging)
        self.checks.run(f"{language}: nothing done", self.nothing, f"{said}zero_without_work")
        if "sandbox" in self.world.pin:
            self.checks.run(f"{language}: sandbox, collect", self.sandboxed, "sandbox.args")

    def modes(self) -> list[str]:
        """How the CLI takes a prompt, the mapping's own way first."""
        own = self.called["prompt_mode"]
        return [own, *(mode for mode in self.world.pin["modes"] if mode != own)]

    def args(self, *more: str) -> list[str]:
        """The arguments of a run."""
        return [*self.called["args"], *more]

    def bypass(self) -> list[str]:
        """What a run needs besides so that it may work."""
        return self.world.pin.get("run_words", bypass_of(self.world))

    def token(self, name: str) -> str:
        """A word that stands in a task's prompt alone."""
        return f"{self.world.name}-{LANGUAGES[self.language]}-{name}"

    def task(self, name: str, *steps: str, words: list[str], **agent: Any) -> dict[str, Any]:
        """One task of the plan."""
        self.prompts[name] = prompt(self.token(name), *steps)
        given = {"args": self.args(*words), **agent}
        return {
            "name": f"{LANGUAGES[self.language]}-{name}",
            "prompt": self.prompts[name],
            "agent": given,
        }

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks of the plan. The first two wait at the model, so that they meet there."""
        bypass = self.bypass()
        made: list[dict[str, Any]] = []
        for number, mode in enumerate(self.modes()):
            made.append(self.working(f"by-{mode}", mode, number))
        if len(made) < 2:
            made.append(self.working("again", self.modes()[0], 1))
        # Without the bypass it may not write; where there is none to give, the model does nothing.
        idle = ["write nothing.txt x"] if bypass and self.called["zero_without_work"] else []
        limit = LIMIT + round(STARTS * self.world.start_seconds)
        made += [
            self.task("hang", "hang", words=bypass, timeout_seconds=limit),
            self.task("fail", "status 500", words=bypass, timeout_seconds=limit),
            self.task(
                "key",
                words=bypass,
                env=self.home(key="stand-in-key!401"),
                timeout_seconds=120 + limit,
            ),
            self.task("idle", *idle, words=[], env=self.home(self.world.pin.get("idle", ""))),
        ]
        if "sandbox" in self.world.pin:
            words = list(self.world.word("sandbox.args"))
            commit = "git add -A && git commit -q -m no"
            made.append(self.task("sandbox", "write kept.txt x", f"shell {commit}", words=words))
        return made

    def home(self, kind: str = "", key: str = KEY) -> dict[str, str]:
        """What leads an agent to a home of its own."""
        other = self.world.environment(key, kind)
        return {name: v for name, v in other.items() if self.world.env.get(name) != v}

    def working(self, name: str, mode: str, number: int) -> dict[str, Any]:
        """A task that is to be done."""
        # The machine may be slow to start the other one.
        meet = max(2, min(round(self.world.start_seconds / 2), 10))
        steps = (
            f"wait {meet}",
            f"write {name}.txt x",
            f"shell git add -A && git commit -q -m {name}",
        )
        agent: dict[str, Any] = {"timeout_seconds": int(PATIENCE)}
        words = self.bypass()
        if mode != self.called["prompt_mode"]:
            agent |= {"prompt_mode": mode, "prompt_arg": self.world.pin["modes"][mode] or ""}
        task = self.task(name, *steps, words=words, **agent)
        if mode == "argument" and self.called["prompt_mode"] == "stdin":
            # A word that asks for the pipe would be the prompt.
            task["agent"]["args"] = [word for word in task["agent"]["args"] if word != "-"]
        if number == 1 and self.called.get("output_args"):
            task["agent"]["structured_output"] = True
        return task

    def make(self) -> str:
        """Write the plan, render it, run it."""
        world = self.world
        plan = {
            "run_name": world.name,
            "agent": {"harness": str(world.mapping_file), "timeout_seconds": int(PATIENCE)},
            "max_parallel": SIDE_BY_SIDE,
            "tasks": self.tasks(),
        }
        place = world.root / "out"
        place.mkdir(exist_ok=True)
        file = place / f"{self.language}.json"
        file.write_text(json.dumps(plan))
        runner = place / f"run.{LANGUAGES[self.language]}"
        rendered = world.command(
            "--config", str(file), "--language", self.language, "--output", str(runner),
            script=RENDERER,
        )  # fmt: skip
        assert rendered.code == 0, rendered.err
        program = {"python": sys.executable, "bash": "bash"}[self.language]
        if "alone" in world.pin:
            # By its mapping it must be started alone in a home that it does not know.
            first = [str(world.root / "bin" / world.harness.executable), *world.pin["alone"]]
            ready = world.start_and_wait(first, world.env, world.repo, PATIENCE)
            assert ready.code == 0, told(ready)
        env = {**world.env, "RUN_ID": self.run_id}
        ran = world.start_and_wait([program, str(runner)], env, world.repo, 1200)
        folder = world.repo / ".worker-runs" / self.run_id / "tasks"
        for path in folder.glob("*/result.json"):
            self.results[path.parent.name.partition("-")[2]] = json.loads(path.read_bytes())
        world.all_gone()
        missing = [name for name in self.prompts if name not in self.results]
        assert not missing, (missing, ran.code, ran.err[-800:])
        assert ran.code == 1, (ran.code, ran.err[-800:])
        return f"{len(self.results)} tasks"

    def log(self, name: str) -> str:
        """What an agent printed."""
        task = f"{LANGUAGES[self.language]}-{name}"
        path = self.world.repo / ".worker-runs" / self.run_id / "tasks" / task / "agent.log"
        return path.read_text(errors="replace")

    def why(self, name: str) -> str:
        """How a task ended, for a message."""
        result = self.results[name]
        return f"{name}: {result['status']}: {result['reason']}; log: {self.log(name)[-500:]!r}"

    def passed(self, mode: str) -> str:
        """The prompt arrived whole, and the work is committed."""
        name = f"by-{mode}"
        assert self.results[name]["status"] == "passed", self.why(name)
        said = [s for asked in self.world.asked_with(self.token(name)) for s in asked.said()]
        whole = [text for text in said if self.prompts[name].strip() in text]
        assert whole, f"not byte for byte: {said[-1:]!r}"
        shown = self.world.git("show", f"{LANGUAGES[self.language]}-{name}:{name}.txt")
        assert shown == "x", shown
        return ""

    def parallel(self) -> str:
        """Two conversations were under way at the same time."""
        first, second = list(self.prompts)[:2]
        times = [[a.at for a in self.world.asked_with(self.token(n))] for n in (first, second)]
        assert all(times), [len(row) for row in times]
        assert max(row[0] for row in times) < min(row[-1] for row in times), times
        assert self.results[second]["status"] == "passed", self.why(second)
        return ""

    def structured(self) -> str:
        """What the agent printed holds JSON."""
        name = list(self.prompts)[1]
        text = self.log(name)
        rows = [row for row in text.splitlines() if row.strip()]
        decoder = json.JSONDecoder()
        starts = [i for i, c in enumerate(text) if c in "{[" and (i == 0 or text[i - 1] == "\n")]
        for place in starts:
            with contextlib.suppress(ValueError):
                decoder.raw_decode(text, place)
                return f"{len(rows)} lines"
        raise AssertionError(f"no JSON: {text[-400:]!r}")

    def wrong_key(self) -> str:
        """A refused key is a failed task, with what the mapping says of the exit code."""
        result = self.results["key"]
        assert result["status"] == "failed", self.why("key")
        code = str(result["exit_code"])
        codes: dict[str, str] = self.called.get("exit_codes") or {}
        meaning = codes.get(code)
        assert meaning, f"exit code {code} has no meaning; {self.why('key')}"
        assert meaning in result["reason"], result["reason"]
        assert self.world.asked_with(self.token("key")), "nothing was asked with that key"
        return f"exit code {code}"

    def failing(self) -> str:
        """A model that always fails ends in a failed task, at the latest by our time limit."""
        result = self.results["fail"]
        assert result["status"] in ("failed", "timed-out"), self.why("fail")
        asked = len(self.world.asked_with(self.token("fail")))
        assert asked, "nothing was asked"
        return f"{result['status']} after {asked} requests: {result['reason'][:60]}"

    def hanging(self) -> str:
        """A model that never answers is ended by our time limit."""
        assert self.results["hang"]["status"] == "timed-out", self.why("hang")
        assert self.world.asked_with(self.token("hang")), "nothing was asked"
        return ""

    def nothing(self) -> str:
        """Exit code 0 without work is no success."""
        result = self.results["idle"]
        assert result["status"] == "no-change", self.why("idle")
        assert self.world.asked_with(self.token("idle")), "nothing was asked"
        known = "it is known to" in result["reason"]
        assert known == bool(self.called.get("zero_without_work")), result["reason"]
        return result["reason"]

    def sandboxed(self) -> str:
        """Where the agent could write and not commit, `collect` commits what it left."""
        world = self.world
        task = f"{LANGUAGES[self.language]}-sandbox"
        result = self.results["sandbox"]
        assert result["uncommitted"], self.why("sandbox")
        world.answer("collect", task, "--run", f".worker-runs/{self.run_id}", script=INTEGRATE)
        assert world.git("show", f"{task}:kept.txt") == "x"
        return f"{result['status']}, then collected"


# --- Directly -----------------------------------------------------------------------------


def version(world: HarnessWorld) -> str:
    """The installed program says the version that the mapping was verified with."""
    words = [world.harness.executable, *world.word("version.args")]
    ran = world.start_and_wait([str(world.root / "bin" / words[0]), *words[1:]], world.env,
                               world.repo, 60)  # fmt: skip
    said = (ran.out + ran.err).strip()
    assert world.pin["version"] in said, said
    assert world.word("version.verified") == world.pin["version"], world.word("version.verified")
    return said.splitlines()[0]


def work_dir(world: HarnessWorld, checks: Checks) -> str:
    """With its flag the CLI works in another folder than where it was started."""
    called = world.harness.mapping["noninteractive"]
    tree = world.root / "repo.worktrees" / "elsewhere"
    world.git("worktree", "add", "-q", "-b", "elsewhere", str(tree))
    flag = called["work_dir_arg"]
    place = [flag + str(tree)] if flag.endswith("=") else [flag, str(tree)]
    loop = Loop(world, checks, "python")
    text = prompt(f"{world.name}-elsewhere", "shell pwd > where.txt")
    words = [*loop.args(*loop.bypass()), *place]
    assert called["prompt_mode"] == "stdin", called["prompt_mode"]
    program = str(world.root / "bin" / world.harness.executable)
    ran = world.start_and_wait([program, *words], world.env, world.repo, PATIENCE, text.encode())
    assert (tree / "where.txt").exists(), (ran.code, ran.out[-300:], ran.err[-300:])
    assert (tree / "where.txt").read_text().strip() == str(tree)
    return flag


def tell_story(world: HarnessWorld, checks: Checks) -> None:
    """The story of harness_story.py; what comes after a step that failed is not tried."""
    story = Story(world)
    steps = (
        ("story: probe, convert", story.convert),
        ("story: two workers", story.workers),
        ("story: a loop of two", story.loop),
        ("story: nothing left", story.end),
    )
    for name, step in steps:
        if not checks.run(name, step):
            return


# --- One CLI ------------------------------------------------------------------------------

INSTALLING, MAKING = threading.Lock(), threading.Lock()
WORLDS: list[HarnessWorld] = []


class Examination:
    """All checks of one CLI. Its runners have worlds of their own, and run beside the rest."""

    def __init__(self, name: str, model: ModelServer, runners: ThreadPoolExecutor) -> None:
        self.name = name
        self.pin = pins()[name]
        self.model = model
        self.runners = runners
        self.under_way: list[Future[list[Check]]] = []
        self.made: list[Installed] = []
        self.about: dict[str, Any] = {"version": self.pin["version"]}

    def checks(self) -> Checks:
        """An empty list of checks."""
        return Checks(self.name, self.pin["version"])

    def installed(self) -> str:
        """Install the CLI, and the runtime that it needs."""
        mapping = json.loads((HERE.parent / "examples" / f"harness-{self.name}.json").read_text())
        if node_major() < self.pin["node"]:
            with INSTALLING:
                self.made.append(install("node", runtime_pin("node"), "node"))
        made = install(self.name, self.pin, mapping["executable"])
        self.made.insert(0, made)
        self.about["install_seconds"] = round(made.seconds, 1)
        self.about["megabytes"] = round(made.megabytes)
        return f"{made.megabytes:.0f} MB" + ("" if made.seconds else ", was there")

    def run(self, only: str, *, everything: bool) -> list[Check]:
        """Every check; `everything` adds what the pins leave to a few."""
        checks = self.checks()
        if not checks.run("install", self.installed):
            return checks.done
        done = self.part(lambda world, found: self.steered(world, found, only))
        if only == "live" or (only == "" and (everything or "live" in self.pin)):
            done += self.part(
                lambda world, found: found.run("live check", lambda: live_check(world))
            )
        stories = (True, "all") if everything else (True,)
        if only == "story" or (only == "" and self.pin.get("story") in stories):
            # There everything that is left would be its own.
            done += self.part(tell_story)
        return [*checks.done, *done, *(one for part in self.under_way for one in part.result())]

    def part(
        self, question: Callable[[HarnessWorld, Checks], Any], start_seconds: float = 0.0
    ) -> list[Check]:
        """Some checks in a world of their own; a fault of our own is a failed check.

        `start_seconds` is how long a prompt takes to the model, where that is known.
        """
        checks = self.checks()
        try:
            with MAKING:
                folders = [one.program.parent for one in self.made]
                world = HarnessWorld(self.name, self.pin, folders, self.model)
                WORLDS.append(world)
            world.start_seconds = start_seconds or world.start_seconds
            try:
                question(world, checks)
            finally:
                if os.environ.get("KEEP_WORLD"):
                    print(f"kept: {world.root}")
                else:
                    world.close()
        except FAILURES:
            text = traceback.format_exc()
            checks.run("examination", lambda: pytest.fail(text, pytrace=False))
        return checks.done

    def steered(self, world: HarnessWorld, checks: Checks, only: str) -> None:
        """Everything but the runners; they start when it is known how long a prompt takes."""
        checks.run("version", lambda: version(world), "version.args", "version.verified")
        interactive = Interactive(world, checks)
        begun = only in ("", "interactive") and interactive.begin()
        if only in ("", "runners"):
            for language in LANGUAGES:
                self.under_way.append(
                    self.runners.submit(self.looped, language, world.start_seconds)
                )
        if begun:
            interactive.go_on()
        if only in ("", "runners") and world.word("noninteractive.work_dir_arg"):
            checks.run("work-dir flag", lambda: work_dir(world, checks),
                       "noninteractive.work_dir_arg")  # fmt: skip

    def looped(self, language: str, start_seconds: float) -> list[Check]:
        """A runner of one language."""
        return self.part(lambda world, checks: Loop(world, checks, language).run(), start_seconds)


def examine(
    name: str, model: ModelServer, runners: ThreadPoolExecutor, only: str, *, everything: bool
) -> tuple[list[Check], dict[str, Any]]:
    """Install one CLI and make all checks: how they ended, and what the installation took."""
    examination = Examination(name, model, runners)
    return examination.run(only, everything=everything), examination.about


def interrupted(number: int, frame: object) -> None:
    """Leave nothing behind when the program is ended before its time."""
    for world in WORLDS:
        world.close()
    for folder in (CACHE, SAMPLE_AGENT.parent):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + number)


def fields_of(name: str, done: list[Check]) -> dict[str, str]:
    """What the checks say of each path that the mapping knows: `held`, or `failed`."""
    mapping = harness_table.mappings()[name]
    found: dict[str, str] = {}
    for check in done:
        for path in check.fields:
            if value_at(mapping, path) is None:
                continue
            if not check.ok or found.get(path) != "failed":
                found[path] = "held" if check.ok else "failed"
    return dict(sorted(found.items()))


def failed_in(path: Path) -> list[str]:
    """The CLIs of which a check failed, by the findings of an earlier run; none without one."""
    if not path.exists():
        return []
    found: dict[str, dict[str, Any]] = json.loads(path.read_bytes())["harnesses"]
    return [name for name, row in found.items() if not all(c["ok"] for c in row["checks"])]


def main() -> int:
    """Examine the CLIs that were named."""
    parser = argparse.ArgumentParser(description="Prove the mappings on real agent CLIs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: those marked as first")
    parser.add_argument("--all", action="store_true", help="every CLI of harnesses.json")
    parser.add_argument("--failed", action="store_true", help="those with a failure last time")
    parser.add_argument("--jobs", type=int, default=3, help="CLIs at the same time (3)")
    parser.add_argument("--runners", type=int, default=2, help="runners at the same time (2)")
    parser.add_argument("--only", choices=("interactive", "runners", "live", "story"), default="")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the findings are kept")
    parser.add_argument("--keep", action="store_true", help="write the findings to the repository")
    parser.add_argument("--table", action="store_true", help="only write the table anew")
    given = parser.parse_args()
    if given.table:
        harness_table.write()
        return 0
    known = pins()
    names = given.names or [n for n, pin in known.items() if given.all or pin.get("first")]
    if given.failed:
        names = failed_in(given.result) or names
    wrong = [name for name in names if name not in known]
    if wrong:
        parser.error(f"unknown: {', '.join(wrong)}; known: {', '.join(known)}")
    begun = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    with (
        ModelServer() as model,
        ThreadPoolExecutor(given.runners) as runners,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        futures = {
            name: pool.submit(examine, name, model, runners, given.only, everything=given.all)
            for name in names
        }
        found = {name: future.result() for name, future in futures.items()}
    everything = [check for done, _ in found.values() for check in done]
    result = {
        "schema": 1,
        "on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "harnesses": {
            name: {
                **about,
                "fields": fields_of(name, done),
                "checks": [
                    {
                        "name": c.name,
                        "ok": c.ok,
                        "seconds": round(c.seconds, 1),
                        "note": c.note[:1500],
                    }
                    for c in done
                ],
            }
            for name, (done, about) in found.items()
        },
    }
    given.result.parent.mkdir(parents=True, exist_ok=True)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    if given.keep:
        harness_table.keep(result)
    failed = sum(not check.ok for check in everything)
    print(f"{len(everything) - failed} passed, {failed} failed", flush=True)
    print(f"in {time.monotonic() - begun:.0f} s; {given.result}", file=sys.stderr)
    return 1 if failed or not everything else 0


if __name__ == "__main__":
    sys.exit(main())
