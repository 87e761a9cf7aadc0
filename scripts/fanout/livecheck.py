"""Tries a mapping on the real program: a few prompts, in a repository and a home made for it.

What it does is harmless: one answer and one commit by a runner, one conversation in tmux, `stop`,
`resume` and a question before a command. All that it made and started is gone afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import time

from fanout.edition import HELPER
from fanout.errors import SkillError, missing, usage
from fanout.fields import NamedTuple
from fanout.harness import FORM, SKILL_ROOT, Harness, read_mapping, value_at
from fanout.output import plain_text, shorten
from fanout.probing import (
    END_GRACE,
    MARK,
    NOTE_LIMIT,
    PAGE_LIMIT,
    Prober,
    environment,
    installed,
    words_at,
)
from fanout.process import Running, end, find_program, finish, run, start
from fanout.proctree import end_tree, run_logged
from fanout.tmux import Server
from fanout.worktrees import walk_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Where the endpoint and the temporary repository stand in variables and files that are given.
ENDPOINT, REPOSITORY = "{endpoint}", "{repository}"
HOME_LIMIT = 20_000_000
# Seconds: how long one answer of a model may take, and how long a sign on a screen.
ANSWER_WAIT = 180.0
SIGN_WAIT = 10.0
# Nothing more is awaited of a screen that has stood still for so long.
STILL_WAIT = 60.0
# An answer that took so long, the delivery included, was long enough for a sign of work.
LONG_ENOUGH = 8.0
LOOK_PAUSE = 0.1
MASK = "***"
# An excerpt of a screen: so many rows, each so long.
SHOWN_ROWS, ROW_WIDTH = 8, 40
SOCKET = "live"
RUN = "live"
CHECKED_FILE = "live-check.txt"
ASKED_FILE = "live-check-asked.txt"
ANSWER = """This is the check of a program, in an empty repository. Change no file, run no command.
Remember the word {word}.
Answer with one word alone: {first} and {second}, joined by a plus sign."""
RECALL = """Change no file, run no command.
Answer with one word alone: the word to be remembered and {second}, joined by a plus sign."""
COMMAND = """This is the check of a program, in an empty repository.
Run this command with your shell tool, then stop: {command}"""
# What a live check speaks of; the rest of a mapping is told to people alone.
LIVE_PATHS = tuple(
    path
    for path in FORM
    if path.partition(".")[0]
    in ("version", "interactive", "noninteractive", "session", "approval", "sandbox", "model",
        "auth", "environment", "parallel", "cleanup")
    and not path.endswith((".note", ".on", ".leftovers", "approval.default"))
)  # fmt: skip


class Held(NamedTuple):
    """What a live check found of one path of a mapping; `held` is None where it was not tried."""

    path: str
    held: bool | None
    why: str


class Tried(NamedTuple):
    """What a live check found, in the form's order, and the version that the program tells."""

    found: str | None
    verified: str | None
    fields: list[Held]
    late: bool

    @property
    def fits(self) -> bool:
        """Whether everything that was tried held."""
        return not any(field.held is False for field in self.fields)

    def to_json(self) -> dict[str, Any]:
        """The fields of the answer."""
        rows = [field._asdict() for field in self.fields]
        return {"found": self.found, "verified": self.verified, "fields": rows, "fits": self.fits}


class Setting(NamedTuple):
    """What an agent is tried with.

    `env` are variables for it, `passed` the names of the caller's that it gets as well, `home` is a
    folder whose files its home begins with. With `bypass` its approvals may be lifted once.
    """

    endpoint: str
    env: dict[str, str]
    passed: list[str]
    home: str | None
    bypass: bool


class StepError(Exception):
    """A step of a live check did not come to its end; why."""


class LateError(Exception):
    """The deadline passed."""


def try_live(mapping_file: str, setting: Setting, *, deadline: float) -> Tried:
    """Do the harmless part of what workers do, with a real program in a repository made for it.

    `deadline` is an instant of `time.monotonic`. Raises SkillError: `agent-missing`,
    `program-missing`, `environment-missing` (exit 4), `endpoint-unused`, `home-unusable` (exit 2).
    """
    harness = read_mapping(mapping_file)
    with Prober(harness.executable, deadline) as prober, Trial(harness, prober, setting) as trial:
        trial.version()
        late = False
        try:
            trial.by_runner()
            trial.interactively()
        except LateError:
            late = True
        return trial.result(late=late)


class Trial:
    """One live check. All that it made and started is gone when it is left."""

    def __init__(self, harness: Harness, prober: Prober, setting: Setting) -> None:
        self.harness = harness
        self.prober = prober
        self.setting = setting
        self.deadline = prober.deadline
        self.folder = os.path.join(prober.folder, "live")
        self.repo = os.path.join(self.folder, "repo")
        self.mapping_file = os.path.join(self.folder, "mapping.json")
        self.mark = f"{MARK}={os.path.basename(prober.folder)}"
        self.found: str | None = None
        self.held: dict[str, tuple[bool | None, str]] = {}
        self.secrets: list[str] = []
        self.env: dict[str, str] = {}
        # What stands in prompts and answers is made anew, so that no screen holds it by chance.
        self.words = [f"{word}{os.urandom(3).hex()}" for word in ("amber", "birch", "cedar")]

    def __enter__(self) -> Trial:
        for program in ("git", "tmux", "bash"):
            if find_program(program) is None:
                raise missing("program-missing", f"{program!r} is not on PATH", "install it")
        self.env = self.environment()
        used = {**self.harness.mapping, "executable": self.prober.program}
        for name in ("tmp", "t"):
            os.makedirs(os.path.join(self.folder, name), mode=0o700)
        with open(self.mapping_file, "w", encoding="utf-8") as file:
            json.dump(used, file)
        self.git("init", "-q", "-b", "main", self.repo)
        for name, value in (("name", "Live check"), ("email", "live-check@example.invalid")):
            self.git("-C", self.repo, "config", f"user.{name}", value)
        self.git("-C", self.repo, "commit", "-q", "--allow-empty", "-m", "Begin")
        return self

    def __exit__(self, *_: object) -> None:
        left = end_tree([], self.mark, grace=END_GRACE)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise SkillError("probe-left-over", f"processes do not end: {pids}", "end them by hand")

    # --- The place ---

    def environment(self) -> dict[str, str]:
        """What the agent and our own commands find: nothing of the caller's that was not named."""
        setting = self.setting
        lacking = [n for n in (*setting.passed, *self.harness.needs)
                   if not os.environ.get(n) and n not in setting.env]  # fmt: skip
        if lacking:
            raise missing(
                "environment-missing",
                f"the live check needs {', '.join(dict.fromkeys(lacking))} in its environment",
                f"export {lacking[0]}, or give it with --env",
            )
        wanted = [name for name in (*setting.passed, *self.harness.needs) if name in os.environ]
        own = {name: os.environ[name] for name in wanted if name not in setting.env}
        self.secrets = [value for value in own.values() if len(value) > 3]
        home = os.path.join(self.folder, "home")
        os.makedirs(home, mode=0o700)
        reached = self.fill_home(home)
        reached |= any(ENDPOINT in value for value in setting.env.values())
        if not reached:
            raise usage(
                "endpoint-unused",
                "nothing leads the program to the endpoint",
                f"write {ENDPOINT} into a value of --env, or into a file of --home",
            )
        base = environment(self.folder, self.mark.partition("=")[2])
        for name in ("TERM", "NO_COLOR", "COLUMNS", "LINES"):
            del base[name]
        given = {name: self.filled(value) for name, value in setting.env.items()}
        return {**base, "TMUX_TMPDIR": os.path.join(self.folder, "t"), **own, **given}

    def fill_home(self, home: str) -> bool:
        """Copy what the home is to begin with; whether a file of it leads to the endpoint."""
        source = self.setting.home
        if source is None:
            return False
        reached, size = False, 0
        try:
            for path in walk_files(source):
                with open(os.path.join(source, path), "rb") as file:
                    content = file.read(HOME_LIMIT + 1)
                size += len(content)
                if size > HOME_LIMIT:
                    raise usage(
                        "home-unusable",
                        f"{source!r} holds more than {HOME_LIMIT} bytes",
                        "give a folder with the settings alone",
                    )
                reached = reached or ENDPOINT.encode() in content
                with contextlib.suppress(UnicodeDecodeError):
                    content = self.filled(content.decode("utf-8")).encode()
                target = os.path.join(home, path)
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                with open(target, "wb") as file:
                    file.write(content)
        except OSError as error:
            raise usage("home-unusable", f"cannot read {source!r}: {error.strerror}") from error
        return reached

    def filled(self, text: str) -> str:
        """A text that was given, with the endpoint and the repository in their places."""
        return text.replace(ENDPOINT, self.setting.endpoint).replace(REPOSITORY, self.repo)

    # --- Commands ---

    def git(self, *words: str) -> str:
        """What git prints; it must succeed."""
        done = run(["git", *words], env=self.env, timeout=self.left(60.0))
        if done.code != 0:
            raise SkillError("git-failed", f"git {words[0]} failed: {done.error_text}")
        return done.text

    def left(self, limit: float) -> float:
        """So many seconds, or less where the deadline is nearer. Raises LateError."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise LateError
        return min(limit, left)

    def argv(self, script: str, *words: str) -> list[str]:
        """The call of one of this package's commands."""
        return [sys.executable, os.path.join(SKILL_ROOT, "scripts", script), *words, "--json"]

    def worker(self, verb: str, *words: str, seconds: float = 2 * ANSWER_WAIT) -> dict[str, Any]:
        """The data of a verb for workers. Raises StepError when it does not succeed."""
        argv = self.argv(HELPER, verb, "--repo", self.repo, "--tmux-socket", SOCKET, *words)
        return self.answer(argv, verb, start(argv, env=self.env), seconds)

    def answer(
        self, argv: list[str], verb: str, process: Running, seconds: float
    ) -> dict[str, Any]:
        """The data of a command that was started."""
        try:
            done = finish(process, argv, timeout=self.left(seconds))
        except LateError:
            end(process)
            raise
        except SkillError as error:
            raise StepError(error.message) from error
        try:
            payload = json.loads(done.text)
        except ValueError:
            raise StepError(f"{verb} said: {done.error_text}") from None
        error = payload.get("error")
        if error is not None:
            raise StepError(f"{verb}: {error['message']}\n{error.get('hint') or ''}")
        return payload["data"]

    # --- What held ---

    def note(self, held: bool | None, why: str, *paths: str) -> None:
        """Keep what was found of paths that the mapping knows."""
        for path in paths:
            if value_at(self.harness.mapping, path) is not None:
                self.held[path] = (held, why)

    def result(self, *, late: bool) -> Tried:
        """All that was found."""
        rows: list[Held] = []
        for path in LIVE_PATHS:
            unknown = value_at(self.harness.mapping, path) is None
            why = "the mapping does not say" if unknown else "a live check does not try it"
            held, why = self.held.get(path, (None, why))
            rows.append(Held(path, held, self.shown(why)))
        verified = value_at(self.harness.mapping, "version.verified")
        return Tried(self.found, verified, rows, late)

    def shown(self, text: str) -> str:
        """A text for a person: without what is secret, without this check's own folder."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        text = plain_text(text.replace(self.prober.folder, "...")).strip()
        return shorten(re.sub(r"\s+", " ", text), NOTE_LIMIT)

    def used(self, section: str) -> list[str]:
        """The paths of a section that every start uses."""
        names = ["args", "prompt_mode", "work_dir_arg"]
        if value_at(self.harness.mapping, f"{section}prompt_mode") in ("argument", "file"):
            names.append("prompt_arg")
        return [section + name for name in names]

    def version(self) -> None:
        """Which version is installed."""
        self.found = found = installed(self.prober, self.harness.mapping)
        told = f"it says {found}" if found else "it says no version"
        self.note(found is not None, told, "version.args")
        same = found == value_at(self.harness.mapping, "version.verified")
        self.note(True if same else None, told, "version.verified")

    # --- By a runner ---

    def by_runner(self) -> None:
        """Two tasks of a plan at once: one that only answers, one that is asked to commit."""
        called: dict[str, Any] = self.harness.mapping.get("noninteractive") or {}
        said = "noninteractive."
        if called.get("args") is None or called.get("prompt_mode") is None:
            return
        first, second, _ = self.words
        command = f"echo {first} > {CHECKED_FILE} && git add {CHECKED_FILE} && git commit -m check"
        answering: dict[str, Any] = {"structured_output": True} if called.get("output_args") else {}
        plan = {
            "run_name": RUN,
            "max_parallel": 2,
            "agent": {"harness": self.mapping_file, "timeout_seconds": int(ANSWER_WAIT)},
            "tasks": [
                {"name": "answer", "prompt": self.question(0), "agent": answering},
                {"name": "work", "prompt": COMMAND.format(command=command)},
            ],
        }
        try:
            results, log = self.run_plan(plan)
        except StepError as error:
            self.note(False, str(error), f"{said}args", f"{said}prompt_mode")
            return
        answer, work = results["answer"], results["work"]
        told = f"{answer['status']}, exit code {answer['exit_code']}"
        heard = f"{first}+{second}" in log
        why = told if heard else f"{told}, and no answer to the prompt; it printed: {log[-300:]}"
        self.note(heard, why, *self.used(said))
        if not heard:
            return
        code = str(answer["exit_code"])
        codes: dict[str, str] = called.get("exit_codes") or {}
        self.note(code in codes, f"{code} was seen; no other was tried", f"{said}exit_codes")
        if called.get("output_args"):
            self.note(holds_json(log), "what it printed holds JSON", f"{said}output_args")
        why = "it ended with 0 and had done nothing"
        idle = work["status"] == "no-change" and work["exit_code"] == 0
        done = work["status"] == "passed"
        expected = bool(called.get("zero_without_work"))
        if idle:
            self.note(expected, why, f"{said}zero_without_work")
        else:
            self.note(None, f"its task ended as {work['status']}", f"{said}zero_without_work")
        if self.harness.parallel and (done or idle):
            self.note(True, "two at once did not disturb each other", "parallel.safe")

    def run_plan(self, plan: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], str]:
        """How the tasks of a plan ended, and what the first one's agent printed."""
        config, runner = (os.path.join(self.folder, name) for name in ("plan.json", "run.py"))
        with open(config, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        words = ("--config", config, "--language", "python", "--output", runner)
        argv = self.argv("render_worker_loop.py", *words)
        self.answer(argv, "render", start(argv, env=self.env), 60.0)
        run_logged(
            [sys.executable, runner],
            cwd=self.repo,
            env={**self.env, "RUN_ID": RUN},
            log=os.path.join(self.folder, "runner.log"),
            timeout=self.left(2 * ANSWER_WAIT),
            mark=self.mark,
        )
        self.left(1.0)
        place = os.path.join(self.repo, ".worker-runs", RUN, "tasks")
        results: dict[str, dict[str, Any]] = {}
        for task in plan["tasks"]:
            try:
                with open(os.path.join(place, task["name"], "result.json"), "rb") as file:
                    results[task["name"]] = json.load(file)
            except (OSError, ValueError):
                raise StepError(f"the task {task['name']!r} did not come to its end") from None
        with open(os.path.join(place, plan["tasks"][0]["name"], "agent.log"), "rb") as file:
            return results, file.read(PAGE_LIMIT).decode("utf-8", "replace")

    # --- In a terminal ---

    def question(self, number: int) -> str:
        """A prompt with an answer that does not stand in it; each number has another one."""
        first, second = self.asked(number)
        return ANSWER.format(word=self.words[2], first=first, second=second)

    def asked(self, number: int) -> tuple[str, str]:
        """The two words of a question."""
        first, second = self.words[:2]
        return (first, second) if number == 0 else (f"{second}x{number}", f"{first}x{number}")

    def interactively(self) -> None:
        """Start, answer, follow up, stop and resume one worker; then one that is to ask."""
        said = "interactive."
        if self.harness.mapping.get("interactive") is None:
            return
        started = [*self.used(said), f"{said}ready", f"{said}submit_keys"]
        try:
            made = self.spawn("one", self.question(1))
            self.await_answer(made["worker"]["pane"], 1)
        except StepError as error:
            self.note(False, str(error), *started)
            self.stop("one")
            return
        self.note(True, "a prompt of several lines was taken and answered", *started)
        pane = made["worker"]["pane"]
        try:
            self.follow_up(pane)
        except StepError as error:
            self.note(False, str(error), f"{said}prompt_mode")
        stopped = self.stop("one")
        why = stopped or "nothing of it was left after `stop`"
        self.note(not stopped, why, f"{said}leave_keys", "cleanup.survivors")
        if not stopped:
            self.resume()
        self.approval()

    def spawn(self, name: str, prompt: str, *more: str) -> dict[str, Any]:
        """Start a worker with a prompt."""
        path = os.path.join(self.folder, f"{name}.prompt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(prompt)
        return self.worker(
            "spawn", name, "--prompt-file", path, "--harness", self.mapping_file, "--no-contract",
            "--ready-timeout", f"{ANSWER_WAIT:.0f}", *more,
        )  # fmt: skip

    def stop(self, name: str) -> str:
        """End a worker's agent; why that failed, or an empty text."""
        try:
            self.worker("stop", name, seconds=60.0)
        except StepError as error:
            return str(error)
        return ""

    def look(self, pane: str) -> tuple[str, str]:
        """The text and the title of a pane. Raises StepError when its program has ended."""
        address = os.path.join(self.folder, "t", f"tmux-{os.getuid()}", SOCKET)
        panes, texts = Server(("-S", address)).look([pane])
        if pane not in panes or panes[pane].dead:
            raise StepError("the agent has ended: " + last_rows(texts.get(pane, "")))
        return texts.get(pane, ""), panes[pane].title

    def await_answer(self, pane: str, number: int, recall: str = "") -> bool:
        """Wait until a screen shows an answer; whether there was a sign of work on the way."""
        first, second = self.asked(number)
        first = recall or first
        limit = time.monotonic() + ANSWER_WAIT
        busy, shown, since = False, "", time.monotonic()
        while True:
            text, title = self.look(pane)
            busy = busy or self.harness.busy.match(text, title) is not None
            answers: list[str] = re.findall(rf"(\w+)\+{second}\b", text)
            if first in answers:
                return busy
            if answers:
                raise StepError(f"it answered {answers[-1]!r} in place of {first!r}")
            moment = time.monotonic()
            if text != shown:
                shown, since = text, moment
            if moment > limit or moment - since > STILL_WAIT:
                raise StepError("it did not answer; the screen shows: " + last_rows(text))
            time.sleep(self.left(LOOK_PAUSE))

    def follow_up(self, pane: str) -> None:
        """A second prompt in the same conversation, and the signs of work and of rest."""
        path = os.path.join(self.folder, "send.prompt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.question(2))
        idle = self.harness.idle
        if idle.patterns:
            at_rest = self.seen(pane, lambda text, title: idle.match(text, title) is not None)
            self.note(at_rest, "looked for before the second prompt", "interactive.idle")
        argv = self.argv(
            HELPER, "send", "--repo", self.repo, "--tmux-socket", SOCKET, "one",
            "--prompt-file", path,
        )  # fmt: skip
        begun = time.monotonic()
        process = start(argv, env=self.env)
        try:
            busy = self.await_answer(pane, 2)
        except StepError:
            # What the command says of it tells more.
            self.answer(argv, "send", process, SIGN_WAIT)
            raise
        except BaseException:
            end(process)
            raise
        took = time.monotonic() - begun
        self.answer(argv, "send", process, ANSWER_WAIT)
        if self.harness.busy.patterns and not busy:
            held = False if took > LONG_ENOUGH else None
            self.note(held, f"not seen in {took:.1f} s of work", "interactive.busy")
            return
        over = self.seen(pane, lambda x, y: self.harness.busy.match(x, y) is None)
        why = "seen at work, and gone after it" if over else "still there after the answer"
        self.note(over, why, "interactive.busy")

    def seen(self, pane: str, question: Callable[[str, str], bool]) -> bool:
        """Whether a screen comes to show something soon."""
        limit = time.monotonic() + SIGN_WAIT
        while time.monotonic() < limit:
            if question(*self.look(pane)):
                return True
            time.sleep(self.left(LOOK_PAUSE))
        return False

    def resume(self) -> None:
        """Whether the agent, started again, remembers."""
        paths = ("session.id_source", "session.new_args", "session.resume_args")
        if not value_at(self.harness.mapping, "session.resume_args"):
            return
        path = os.path.join(self.folder, "resume.prompt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(RECALL.format(second=self.asked(3)[1]))
        try:
            made = self.worker("resume", "one", "--prompt-file", path)
            self.await_answer(made["worker"]["pane"], 3, recall=self.words[2])
        except StepError as error:
            self.note(False, f"after resume {error}", *paths)
        else:
            self.note(True, "resumed, it remembered", *paths)
        self.stop("one")

    def approval(self) -> None:
        """See whether an agent that is to run a command asks, and with the bypass does not."""
        words: list[str] = words_at(self.harness.mapping, "approval.bypass_args")
        if self.setting.bypass and words:
            self.lifted(words)
            return
        self.note(None, "tried with --bypass alone", "approval.bypass_args")
        with contextlib.suppress(StepError):
            # That it asks may be all that the command has to say.
            self.spawn("two", COMMAND.format(command=f"touch {ASKED_FILE}"))
        try:
            state = self.asking()
        except StepError as error:
            state = str(error)
        asked = state == "waiting"
        why = "its question before a command was seen" if asked else f"no question: {state}"
        self.note(True if asked else None, why, "interactive.waiting")
        self.stop("two")

    def asking(self) -> str:
        """The state of the worker that is to run a command, once it asks, has ended or did it."""
        limit = time.monotonic() + ANSWER_WAIT
        while time.monotonic() < limit:
            (row,) = self.worker("status", "two", seconds=60.0)["workers"]
            if row["state"] not in ("starting", "running"):
                return row["state"]
            if os.path.exists(os.path.join(row["worktree"], ASKED_FILE)):
                return "the command was run unasked"
            time.sleep(self.left(LOOK_PAUSE))
        return "nothing happened"

    def lifted(self, words: list[str]) -> None:
        """With its approvals lifted it runs a command unasked."""
        command = f"touch {CHECKED_FILE} && git add {CHECKED_FILE} && git commit -m lifted"
        made, why = False, "it did not run the command"
        try:
            self.spawn("two", COMMAND.format(command=command), f"--agent-args={shlex.join(words)}")
            limit = time.monotonic() + ANSWER_WAIT
            while not made and time.monotonic() < limit:
                made = (
                    self.git("-C", self.repo, "log", "-1", "--format=%s", "two", "--") == "lifted\n"
                )
                time.sleep(self.left(LOOK_PAUSE))
        except StepError as error:
            why = str(error)
        self.note(made, "it ran a command unasked" if made else why, "approval.bypass_args")
        self.stop("two")


def last_rows(text: str) -> str:
    """The last rows of a screen that hold something, in one line."""
    rows = [row.strip() for row in text.split("\n") if row.strip()]
    return " | ".join(row[:ROW_WIDTH] for row in rows[-SHOWN_ROWS:])


def holds_json(text: str) -> bool:
    """Whether a JSON object or array begins at some line."""
    decoder = json.JSONDecoder()
    for place in re.finditer(r"(?m)^[\[{]", text):
        with contextlib.suppress(ValueError):
            decoder.raw_decode(text, place.start())
            return True
    return False
