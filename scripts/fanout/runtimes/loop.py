"""Runs a plan: gate, tasks in worktrees of their own, finish. Needs git, bash and Python 3.11.

The standard library alone; nothing of the package that rendered it is needed. The plan stands as
data at the end of the file. Everything that it makes known lies in the folder of the run; the one
thing that other processes must agree about, who works on which run and branch, is a claim.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

USAGE = """usage: RUNNER [all|gate|task NAME|finish|status]

  all      the whole run (default): gate, tasks, finish
  gate     preflight, base, backups; no worktree is made
  task     one task of a run whose gate has passed
  finish   postflight, manifest, report; decides from what is recorded
  status   what is recorded of a run

environment:
  DRY_RUN=1       print every command in order, run nothing, change nothing
  RUN_ID=ID       name of the run (letters, digits, '.', '_', '-')
  LOG_ROOT=DIR    keep the run's folder there, not in .worker-runs/ of the repository
  MAX_PARALLEL=N  so many tasks at once
  ONLY=a,b        only these tasks
  RESUME=1        go on with the run RUN_ID
  RERUN=a,b       with RESUME=1: run these again although their agent had started
  PLAN_NAME=TEXT  a value for the plan's variable NAME

exit codes:
    0  done
    1  the work failed
    2  usage or invalid input
    3  refused by the gate or before anything was changed
    4  something needed is missing
   11  busy, another runner holds the run or a branch
  130, 143, 129, 131  interrupted by INT, TERM, HUP, QUIT
"""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ONE_AT_ONCE = "give 1: the mapping of the plan's agent says that two of them disturb each other"
OWN_VARIABLES = ("DRY_RUN", "RUN_ID", "LOG_ROOT", "MAX_PARALLEL", "ONLY", "RESUME", "RERUN")
LOCATIONS = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_QUARANTINE_PATH"),
    *("GIT_INTERNAL_SUPER_PREFIX", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "TMUX", "TMUX_PANE"),
    *("GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"),
)
GIT = (
    *("git", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"),
    *("-c", "core.hooksPath=/dev/null"),
)
MARK = "AGENT_WORKERS_RUN"
# In a worktree's administrative folder: the folder of the run that made it.
MAKER = "agent-workers-run"
# What a repository's configuration says where `git worktree add` does more than `lay_out`.
LAYOUTS = (b"[extensions", b"[include", b"sparsecheckout", b"sharedrepository")
INTERRUPTS = {
    signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131
}  # fmt: skip
GRACE = 3.0
LOCK_WAIT = 120.0
ITEM_LIMIT = 10_000
ARGUMENT_LIMIT = 131_071
HAS_PROC = os.path.exists("/proc/self/stat")

# Runs an agent and notes that it was started and how it ended, also when the runner is gone by
# then. What the shell itself would say does not get into the agent's log.
AGENT_SHELL = """trap 'exit 143' TERM INT HUP
exec 3>&2 2>/dev/null
mask=$1
shift
umask 077
true >"$0/.agent-started" || exit 126
(umask "$mask" && exec "$@" 2>&3 3>&-)
code=$?
echo "$code" >"$0/.agent-exit"
exit "$code"
"""


class RunError(Exception):
    """Why the runner ends early: its exit code, what was wrong, and what to try."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class StepError(Exception):
    """A condition or a step could not be run to an answer: its status, and why."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Task:
    """A task of the run, expanded: one for each item where the plan iterates."""

    def __init__(self, plan: dict[str, Any], number: int, item: str | None, values: dict[str, str]):
        self.plan = plan
        self.number = number
        self.item = item
        self.values = values
        self.name = fill(plan["name"], values)
        self.branch = fill(plan["branch"], values)
        self.after: list[Task] = []
        # Those that own a path which it owns too, and have their turn before it.
        self.behind: list[Task] = []
        self.worktree = ""
        self.base = ""
        self.chosen = True
        self.free = False
        self.result: dict[str, Any] = {}
        self.row = ""

    @property
    def status(self) -> str:
        """Its status word; `not-started` without a record."""
        return self.result.get("status", "not-started")

    @property
    def folder(self) -> str:
        """Where its records lie, from the run's folder."""
        return f"tasks/{self.name}"


class Run:
    """One run of the plan, or one phase of it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        # Each task says what it has not in common with the others.
        plan["tasks"] = [{**plan["usual"], **task} for task in plan["tasks"]]
        self.environ = {
            k: v for k, v in os.environ.items() if k not in (*OWN_VARIABLES, *LOCATIONS)
        }
        self.git = find_program("git", os.getcwd(), os.environ.get("PATH", os.defpath))
        self.dry = os.environ.get("DRY_RUN", "") not in ("", "0")
        self.resume = os.environ.get("RESUME", "") not in ("", "0")
        self.only = words_of("ONLY")
        self.rerun = words_of("RERUN")
        self.id = os.environ.get("RUN_ID", "")
        self.max_parallel = positive("MAX_PARALLEL", plan["max_parallel"])
        if plan["one_at_once"] and self.max_parallel > 1:
            raise RunError(2, f"MAX_PARALLEL is '{self.max_parallel}'", ONE_AT_ONCE)
        self.root = ""
        self.common = ""
        self.folder = ""
        self.base = ""
        # What the plan's base named when this process began.
        self.base_now = ""
        self.integration: str | None = None
        self.values: dict[str, str] = {}
        self.tasks: list[Task] = []
        # Tasks of which the run's events say that their agent was started.
        self.started: set[str] = set()
        self.gate: dict[str, Any] = {}
        self.postflight: list[dict[str, Any]] = []
        self.status = "running"
        self.exit_code: int | None = None
        self.started_at = now()
        self.ended_at: str | None = None
        self.whole = False
        self.stopping = False
        self.cut = False
        self.ran = False
        self.finished_at = ""
        self.stopped_by = 0
        self.stop_pipe = os.pipe()
        self.changed = threading.Condition(threading.RLock())
        self.add_lock = threading.Lock()
        self.plain = False
        self.counts: dict[str, int] = {}
        self.trouble: RunError | None = None
        self.claims: list[str] = []
        self.first = self.seen = Look(-60.0, set())
        mask = os.umask(0o077)
        os.umask(mask)
        self.mask = f"{mask:03o}"
        self.screen = Screen()


# --- Values ---------------------------------------------------------------------------------


def fill(text: Any, values: dict[str, str]) -> Any:
    """A text of the plan with its placeholders replaced, each for the place it stands in.

    One that the plan leaves out stays None; one of several lines is a list of them.
    """
    if text is None or isinstance(text, str):
        return text
    done: list[str] = []
    rest = "".join(text["text"])
    for mark in text["marks"]:
        mode, _, name = mark.partition(" ")
        before, _, rest = rest.partition("{" + name + "}")
        done += [before, insert(mode, name, values)]
    return "".join(done) + rest


def insert(mode: str, name: str, values: dict[str, str]) -> str:
    """A value as it stands in a text: as it is, or escaped for bash.

    What a mapping's word asks for is no variable of the plan, although it may have the same name.
    """
    key = f"agent {name}" if mode == "agent" else name
    if mode == "keep" or key not in values:
        return "{" + name + "}"
    value = values[key]
    if mode == "slug":
        return values.get("item slug", value)
    if mode == "word":
        return "'" + value.replace("'", "'\\''") + "'"
    if mode == "single":
        return value.replace("'", "'\\''")
    if mode == "double":
        return re.sub(r'([\\"$`])', r"\\\1", value)
    return value


def quoted(word: str) -> str:
    """A word for a shell."""
    if re.fullmatch(r"[A-Za-z0-9@%+=:,./_-]+", word):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def visible(text: str) -> str:
    """A text for a terminal: its control characters but tabs and line ends as escapes."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"\\x{byte:02x}" for byte in found[0].encode())

    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", escaped, text)


def slug(item: str, position: int) -> str:
    """An item as part of a name."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", item):
        return item
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", item)[:40].strip("-")
    return f"{words or 'item'}-{position}"


def clear(command: dict[str, Any], values: dict[str, str]) -> str:
    """A command in clear text."""
    if command["shell"] is not None:
        return fill(command["shell"], values)
    return " ".join(quoted(fill(word, values)) for word in command["argv"])


def words_of(variable: str) -> list[str]:
    """The words of a comma-separated environment variable."""
    return [word.strip() for word in os.environ.get(variable, "").split(",") if word.strip()]


def positive(variable: str, default: int) -> int:
    """A number from the environment. Raises RunError (2)."""
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise RunError(2, f"{variable} is {text!r}", "give a number from 1 to 9999")
    return int(text)


def now() -> str:
    """The time, as records state it."""
    seconds = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{stamp}.{int(seconds % 1 * 1e6):06d}Z"


def nearest(word: str, known: list[str]) -> str:
    """A hint that names the most similar known word."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known[:20])


# --- Records --------------------------------------------------------------------------------


def make_dir(path: str) -> None:
    """Make a private folder, and those above it that are missing; others may do so meanwhile."""
    for again in (True, False):
        try:
            os.mkdir(path, 0o700)
            return
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return
        except FileNotFoundError:
            above = os.path.dirname(path)
            if not again or above in ("", path):
                raise
            make_dir(above)


def write(path: str, text: str, mode: int = 0o600) -> None:
    """Replace a file at once: under another name, synced, renamed."""
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        unlink(temporary)
        raise


def file_clock(folder: str) -> int:
    """The time by which files are dated, in nanoseconds; it lags behind by some milliseconds."""
    path = os.path.join(folder, ".clock")
    write(path, "")
    try:
        return os.stat(path).st_mtime_ns
    finally:
        unlink(path)


def encoded(value: Any, between: str = ", ") -> str:
    """A value as JSON; a byte that is no text stands as an escape."""
    text = json.JSONEncoder(ensure_ascii=False, separators=(between, ": ")).encode(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def to_json(value: Any, margin: str = "\n") -> str:
    """A value as the records hold it: one scalar a line."""
    if type(value) not in (dict, list) or not value:
        return encoded(value)
    inner = margin + " "
    parts: list[Any] = list(value.values()) if is_object(value) else value
    if not [part for part in parts if type(part) in (dict, list) and part]:
        rows = encoded(value, "," + inner)[1:-1]
    else:
        keys = [f"{encoded(key)}: " for key in value] if is_object(value) else [""] * len(parts)
        lines = [key + to_json(part, inner) for key, part in zip(keys, parts, strict=True)]
        rows = ("," + inner).join(lines)
    opening, closing = "{}" if is_object(value) else "[]"
    return opening + inner + rows + margin + closing


def write_record(run: Run, name: str, value: dict[str, Any]) -> str:
    """Write a record into the run's folder; its text."""
    text = to_json(value)
    write(os.path.join(run.folder, name), text + "\n")
    return text


def read(path: str) -> dict[str, Any] | None:
    """A record; None when it is not there. Raises RunError (1) when it is damaged."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read().decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            1, f"the record {path} cannot be read: {error}", "look at the file"
        ) from None
    if not is_object(value):
        raise RunError(1, f"the record {path} is damaged: not a JSON object", "look at the file")
    return value


def is_object(value: Any) -> bool:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def event(
    run: Run,
    word: str,
    phase: str,
    *,
    task: Task | None = None,
    name: str | None = None,
    **data: Any,
) -> None:
    """Append one event; a task's go to its own file, and in a whole run to the run's as well."""
    with run.changed:
        line = {
            "schema": 1, "seq": 0, "at": now(), "event": word, "task": task.name if task else None,
            "phase": phase, "name": name, "data": data,
        }  # fmt: skip
        # A task that was never started has no log of its own.
        own = task is not None and task.result.get("started_at") is not None
        places = [f"{task.folder}/events.jsonl"] if task and own else []
        if task and own:
            keep_folder(run, task)
        if task is None or run.whole:
            places.append("events.jsonl")
        for place in places:
            path = os.path.join(run.folder, place)
            if place not in run.counts:
                run.counts[place] = len(read_events(path))
            run.counts[place] += 1
            line["seq"] = run.counts[place]
            append(path, encoded(line))


def append(path: str, line: str) -> None:
    """Append a line to a log; one that a killed writer left torn is closed off first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, (("\n" if torn else "") + line + "\n").encode())
    finally:
        os.close(descriptor)


def mark_log(log: str) -> None:
    """Mark in a command's log that it was begun again."""
    if os.path.exists(log):
        append(log, f"--- {now()} again")


def read_events(path: str, part: bytes = b"") -> list[dict[str, Any]]:
    """The events of a file whose line holds a text; torn lines are left out."""
    found: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for line in file:
                if part not in line:
                    continue
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                if is_object(value):
                    found.append(value)
    except FileNotFoundError:
        pass
    return found


def save_task(run: Run, task: Task) -> None:
    """Write a task's record, and in a whole run the manifest."""
    keep_folder(run, task)
    text = write_record(run, f"{task.folder}/result.json", task.result)
    with run.changed:
        task.row = row_of(text)
        if run.whole:
            save_manifest(run)


def keep_folder(run: Run, task: Task) -> None:
    """Make the folder of a task's records again if it is gone; the run's own is not made again."""
    if os.path.isdir(run.folder):
        make_dir(os.path.join(run.folder, task.folder))


def recorded(run: Run, task: Task) -> dict[str, Any]:
    """A task's record, {} without one. Of an agent that had started it is known without one too."""
    found = read(os.path.join(run.folder, task.folder, "result.json"))
    if found is None and task.name in run.started:
        reason = "its agent had started, and its record is gone"
        found = {**blank_result(task), "status": "failed", "reason": reason, "agent_started": True}
    return found or {}


def agents_started(run: Run) -> set[str]:
    """The tasks whose agent was started, as the run's events tell: a task may lose its folder."""
    return {
        str(one.get("task"))
        for one in read_events(os.path.join(run.folder, "events.jsonl"), b'"phase": "agent"')
        if one.get("event") == "started" and one.get("phase") == "agent"
    }


def save_gate(run: Run) -> None:
    """Write the gate's record, and the manifest."""
    with run.changed:
        write_record(run, "gate.json", run.gate)
        save_manifest(run)


def save_manifest(run: Run) -> None:
    """Write the manifest. What has not changed since the last time is not made into text again."""
    head = {
        "schema": 1, "run_id": run.id, "run_name": run.plan["run_name"], "status": run.status,
        "exit_code": run.exit_code, "repo": run.root, "base": run.base or None,
        "integration_branch": run.integration, "started_at": run.started_at,
        "ended_at": run.ended_at, "preflight": run.gate.get("preflight", []),
        "backups": run.gate.get("backups", []), "tasks": [], "postflight": run.postflight,
    }  # fmt: skip
    fill_blank([task for task in run.tasks if not task.row and not task.result])
    for task in run.tasks:
        task.row = task.row or row_of(to_json(task.result))
    text = to_json(head)
    if run.tasks:
        rows = ",\n  ".join([task.row for task in run.tasks])
        text = text.replace('\n "tasks": []', f'\n "tasks": [\n  {rows}\n ]', 1)
    write(os.path.join(run.folder, "manifest.json"), text + "\n")


def row_of(text: str) -> str:
    """A task's record as it stands in the manifest."""
    return text.replace('\n "schema": 1,', "", 1).replace("\n", "\n  ")


def fill_blank(tasks: list[Task]) -> None:
    """Make the rows of tasks that have no record: all at once, since a plan may have many."""
    if not tasks:
        return
    found = [word for t in tasks for word in (t.name, t.branch, t.worktree, t.base or None)]
    words = encoded(found, "\n")[1:-1].split("\n")
    places = dict.fromkeys(("name", "branch", "worktree", "base"), "%s")
    form = row_of(to_json({**blank_result(tasks[0]), **places})).replace('"%s"', "%s")
    for place, task in enumerate(tasks):
        task.row = form % tuple(words[4 * place : 4 * place + 4])


def blank_result(task: Task) -> dict[str, Any]:
    """The record of a task that was not started."""
    return {
        "schema": 1, "name": task.name, "status": "not-started", "reason": None,
        "branch": task.branch, "worktree": task.worktree, "base": task.base or None, "head": None,
        "exit_code": None, "agent_started": False, "files_changed": [], "out_of_scope": [],
        "uncommitted": [], "setup": [], "verify": [], "log": None, "started_at": None,
        "ended_at": None, "seconds": 0,
    }  # fmt: skip


def is_passed(step: dict[str, Any]) -> bool:
    """Whether a command has passed: it is not run again."""
    return step["status"] == "passed"


def steps_of(
    commands: list[dict[str, Any]], values: dict[str, str], known: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The records of commands: those of `known` that have passed stay, all others are new."""
    old = {step["name"]: step for step in known if is_passed(step)}
    new: dict[str, Any] = {
        "status": "not-started", "exit_code": None, "seconds": 0, "log": None, "reason": None
    }  # fmt: skip
    return [
        old.get(command["name"])
        or {"name": command["name"], "command": clear(command, values), **new}
        for command in commands
    ]


# --- Processes ------------------------------------------------------------------------------


class Place:
    """Where a step runs: working directory, values, mark, and how its records are found."""

    def __init__(self, run: Run, phase: str, mark: str, task: Task | None = None, cwd: str = ""):
        self.run = run
        self.phase = phase
        self.mark = f"{run.folder}/{mark}"
        self.task = task
        self.cwd = cwd or run.root
        self.values = task.values if task else run.values

    def environment(self) -> dict[str, str]:
        """What its processes find in their environment."""
        env = {**self.run.environ, MARK: self.mark}
        for name in (*self.run.plan["variables"], "item"):
            if name in self.values:
                env[f"PLAN_{name}"] = self.values[name]
        for name in ("RUN_ID", "RUN_DIR", "REPO_ROOT"):
            env[name] = self.values[name]
        if self.task:
            env |= {"TASK": self.task.name, "WORKTREE": self.task.worktree}
        return env


def argv_of(command: dict[str, Any], values: dict[str, str]) -> list[str]:
    """A command as an argument list."""
    if command["shell"] is not None:
        return ["bash", "-c", fill(command["shell"], values)]
    return [fill(word, values) for word in command["argv"]]


def run_command(place: Place, command: dict[str, Any], log: str) -> tuple[str, int | None]:
    """Run a command of the plan: as run_logged."""
    return run_logged(place, argv_of(command, place.values), command["timeout_seconds"], log)


def run_logged(
    place: Place,
    argv: list[str],
    limit: float,
    log: str,
    *,
    env: dict[str, str] | None = None,
    stdin: str = os.devnull,
) -> tuple[str, int | None]:
    """Run a process to its end: `passed`, `failed`, `timed-out` or `interrupted`, and its code.

    It has a session of its own, and its output is appended to `log`. When it is over, nothing that
    it started is left, unless it hid its environment. Raises StepError when it cannot be started
    or cannot be ended.
    """
    run, mark = place.run, f"{MARK}={place.mark}"
    if run.stopping:
        return "interrupted", None
    before = run.seen if time.monotonic() - run.seen.at < 1.0 else look_around(run)
    opened: list[int] = []
    try:
        opened.append(os.open(stdin, os.O_RDONLY | os.O_CLOEXEC))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        opened.append(os.open(log, flags, 0o600))
        process = subprocess.Popen(
            argv, cwd=place.cwd, env=env or place.environment(), stdin=opened[0], stdout=opened[1],
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StepError("failed", f"cannot run {argv[0]!r}: {why}") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    over = wait(run, process, limit)
    if not over or strays(run, process.pid, mark, before):
        left = end_tree([process.pid], mark)
        process.poll()
        if left:
            raise StepError("failed", f"could not end the processes {', '.join(map(str, left))}")
    if not over:
        return ("interrupted" if run.stopping else "timed-out"), None
    code = process.wait()
    # As a shell gives it: 128 and the signal.
    return ("passed", 0) if code == 0 else ("failed", code if code > 0 else 128 - code)


def strays(run: Run, root: int, mark: str, before: Look) -> bool:
    """Whether anything is left of a process that has ended: of its group, its session, its mark.

    What was there `before` it was started is none of that.
    """
    try:
        os.killpg(root, 0)
    except ProcessLookupError:
        return newer_ones(run, mark, before, root)
    except PermissionError:
        return True
    return True


def newer_ones(run: Run, mark: str, before: Look, root: int = -1, *, prefix: bool = False) -> bool:
    """Whether a process that was not there `before` carries a mark or is of the root's session."""
    # After a long time all are looked at: the numbers of those that ended are given again.
    if not HAS_PROC or time.monotonic() - before.at > 10.0:
        found = processes(mark, prefix=prefix).values()
        return any(marked or session == root for _, session, _, marked in found)
    wanted = mark_in_environ(mark, prefix=prefix)
    return any(
        (session == root or wanted in environ_of(pid)) and stat_fields(pid)
        for pid, session in look_around(run).processes - before.processes
    )


class Look:
    """Which processes there were at a moment, each with its session."""

    def __init__(self, at: float, processes: set[tuple[int, int]]) -> None:
        self.at = at
        self.processes = processes


def look_around(run: Run) -> Look:
    """The processes that there are now."""
    look = Look(time.monotonic(), set())
    for pid in pids():
        try:
            look.processes.add((pid, os.getsid(pid)))
        except OSError:
            continue
    run.seen = look
    return look


def wait(run: Run, process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for a process, at most `limit` seconds or until the run is stopped; whether it ended."""
    deadline = time.monotonic() + limit
    opened = getattr(os, "pidfd_open", None)
    try:
        handle = opened(process.pid) if opened else None
    except OSError:
        handle = None
    try:
        watch = select.poll()
        watch.register(run.stop_pipe[0], select.POLLIN)
        if handle is not None:
            watch.register(handle, select.POLLIN)
        while process.poll() is None and not run.stopping:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Without a handle (no Linux) its end is noticed by looking.
            watch.poll(1000 * min(left, 3600.0 if handle is not None else 0.05))
        return process.poll() is not None
    finally:
        if handle is not None:
            os.close(handle)


def end_tree(roots: list[int], mark: str, *, prefix: bool = False) -> list[int]:
    """End processes: the sessions of the roots, their descendants, all that carry the mark.

    TERM, KILL after a grace, then checked; returns the pids that are still alive.
    """
    known: dict[int, str] = {}
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + patience
        signalled: set[tuple[int, str]] = set()
        quiet = 0
        while quiet < 2 and time.monotonic() < deadline:
            alive = members(roots, mark, known, prefix)
            # One in the middle of an exec shows no environment: look twice.
            quiet = 0 if alive else quiet + 1
            for pid, started in alive.items():
                if (pid, started) not in signalled:
                    signalled.add((pid, started))
                    try:
                        os.kill(pid, number)
                    except (ProcessLookupError, PermissionError):
                        continue
            time.sleep(0.01)
        if quiet == 2:
            return []
    return sorted(members(roots, mark, known, prefix))


def members(roots: list[int], mark: str, known: dict[int, str], prefix: bool) -> dict[int, str]:
    """The living processes of a tree, by pid, with their start; `known` are those seen before."""
    found: dict[int, str] = {}
    everything = processes(mark, prefix=prefix)
    for pid, (_, session, started, marked) in everything.items():
        if marked or session in roots or pid in roots or known.get(pid) == started:
            found[pid] = started
    size = -1
    while size != len(found):
        size = len(found)
        for pid, (parent, _, started, _) in everything.items():
            if parent in found:
                found[pid] = started
    found.pop(os.getpid(), None)
    known.update(found)
    return found


def processes(mark: str, *, prefix: bool = False) -> dict[int, tuple[int, int, str, bool]]:
    """All processes but zombies: parent, session (or group), start, whether the mark is there."""
    found: dict[int, tuple[int, int, str, bool]] = {}
    wanted = mark_in_environ(mark, prefix=prefix)
    for pid in pids():
        fields = stat_fields(pid)
        if fields:
            facts = int(fields[1]), int(fields[3]), fields[19].decode()
            found[pid] = (*facts, wanted in environ_of(pid))
    if HAS_PROC:
        return found
    for line in ps("axeww", "-o", "pid=,ppid=,pgid=,stat=,lstart=,command="):
        words = line.split(None, 9)
        if len(words) == 10 and not words[3].startswith(b"Z"):
            marked = wanted.replace(b"\0", b" ") in b" " + words[9] + b" "
            started = b" ".join(words[4:9]).decode()
            found[int(words[0])] = (int(words[1]), int(words[2]), started, marked)
    return found


def stat_fields(pid: int) -> list[bytes]:
    """What the system tells of a living process; nothing of one that is gone or a zombie.

    proc(5), after the command: 0 state, 1 parent, 3 session, 19 start.
    """
    fields = file_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields if len(fields) > 19 and fields[0] not in (b"Z", b"X") else []


def ps(*words: str) -> list[bytes]:
    """What ps prints, where there is no /proc."""
    done = subprocess.run(
        ["ps", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )  # fmt: skip
    return done.stdout.splitlines()


def pids() -> list[int]:
    """The numbers of all processes, where the system lists them in /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if HAS_PROC else []


def mark_in_environ(mark: str, *, prefix: bool = False) -> bytes:
    """A mark, or what it begins with, as it stands in `environ_of`."""
    return b"\0" + os.fsencode(mark) + (b"" if prefix else b"\0")


def environ_of(pid: int) -> bytes:
    """A process's environment, each variable between two NULs."""
    return b"\0" + file_bytes(f"/proc/{pid}/environ")


def file_bytes(path: str) -> bytes:
    """What a file holds; empty when it cannot be read."""
    content = b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(descriptor, 65536):
                content += piece
        finally:
            os.close(descriptor)
    except OSError:
        return b""
    return content


def git(run: Run, cwd: str, *words: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    """Run git: exit code, output, message. It is not in reach of a Ctrl-C: it ends its work."""
    env = {
        **run.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
        MARK: f"{run.folder}/git-{threading.get_ident()}",
    }
    if cwd != run.root and run.root:
        # In a worktree that has lost its .git, git must not find a repository above it.
        env["GIT_CEILING_DIRECTORIES"] = os.path.dirname(cwd)
    if not run.git:
        raise RunError(4, "git is not on PATH", "install git 2.39 or newer")
    try:
        process = subprocess.Popen(
            [*GIT, *words], executable=run.git, cwd=cwd, env=env,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError:
        if os.path.isdir(cwd):
            raise
        return 128, "", f"the folder {cwd!r} is not there"
    patience = GRACE
    while True:
        try:
            out, err = process.communicate(stdin, timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            stdin = None
            patience -= 0.5 if run.stopping else 0.0
            if patience < 0:
                # It hangs, for example in a filter.
                run.cut = True
                end_tree([process.pid], f"{MARK}={env[MARK]}")
                patience = GRACE
    message = err.decode("utf-8", "replace").strip()
    return process.returncode, out.decode("utf-8", "surrogateescape"), message


def git_in(run: Run, task: Task, trouble: str, *words: str, stdin: bytes | None = None) -> str:
    """What git prints in a task's worktree. Raises StepError."""
    code, text, message = git(run, task.worktree, *words, stdin=stdin)
    if code != 0:
        raise StepError("failed", f"{trouble}: {message}")
    return text


# --- Claims ---------------------------------------------------------------------------------


def process_start(pid: int) -> str:
    """When a process was started, in words that no other process with this pid repeats."""
    if not HAS_PROC:
        return b" ".join(b" ".join(ps("-o", "lstart=", "-p", str(pid))).split()).decode()
    fields = stat_fields(pid)
    boot = file_bytes("/proc/sys/kernel/random/boot_id").decode().strip()
    return f"{boot} {fields[19].decode()}" if fields else ""


def claim(run: Run, things: list[str]) -> None:
    """Claim runs and branches for this process. Raises RunError (11).

    A claim is written, then all others are looked at; it holds when none of them is older or
    held. Claims of processes that are gone do not count. It needs no lock program, so the Bash
    runner does the same.
    """
    folder = os.path.join(run.common, "agent-workers", "locks", "runs")
    make_dir(folder)
    token = f"{os.getpid()}-{os.urandom(8).hex()}"
    claiming, held = f"{token}.claiming", f"{token}.held"
    lines = [f"host {os.uname().nodename}", f"pid {os.getpid()}"]
    lines += [f"started {process_start(os.getpid())}", *(f"claim {thing}" for thing in things)]
    write(os.path.join(folder, claiming), "\n".join(lines) + "\n")
    wanted = set(things)
    deadline = time.monotonic() + 5.0
    try:
        while True:
            rival = next(iter(rivals(folder, wanted)), None)
            if rival is None:
                os.rename(os.path.join(folder, claiming), os.path.join(folder, held))
                run.claims.append(os.path.join(folder, held))
                return
            name, who, thing = rival
            if name.endswith(".held") or name < claiming or time.monotonic() > deadline:
                path = os.path.join(folder, name)
                raise RunError(
                    11, f"another runner ({who}) works on the {thing}",
                    f"wait for it to end; its claim is {path}",
                )  # fmt: skip
            time.sleep(0.01)
    except BaseException:
        unlink(os.path.join(folder, claiming))
        raise


def rivals(folder: str, wanted: set[str]) -> list[tuple[str, str, str]]:
    """Living claims on the same things: file name, whose it is, the thing; held ones first."""
    found: list[tuple[str, str, str]] = []
    host = os.uname().nodename
    # A claim that is renamed while the folder is read may be missed; a second look then shows its
    # new name. One that is renamed before it is read is read under that.
    claiming = sorted(name for name in os.listdir(folder) if name.endswith(".claiming"))
    held = sorted(name for name in os.listdir(folder) if name.endswith(".held"))
    for name in [*held, *claiming]:
        path = os.path.join(folder, name)
        text = file_bytes(path)
        if not text and name.endswith(".claiming"):
            name = name.removesuffix(".claiming") + ".held"
            path = os.path.join(folder, name)
            text = file_bytes(path)
        facts: dict[str, str] = {}
        things: list[str] = []
        for line in text.decode("utf-8", "surrogateescape").splitlines():
            key, _, value = line.partition(" ")
            things += [value] if key == "claim" else []
            facts[key] = value
        shared = next((thing for thing in things if thing in wanted), None)
        pid = facts.get("pid", "")
        if shared is None or not pid.isdigit():
            continue
        if facts.get("host") == host and process_start(int(pid)) != facts.get("started"):
            unlink(path)
        elif facts.get("host") != host or int(pid) != os.getpid():
            where = "" if facts.get("host") == host else f" on {facts.get('host')}"
            who = f"process {pid}{where}"
            found.append((name, who, shared))
    return found


def unlink(path: str) -> None:
    """Remove a file that may be gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def hold_worktrees(run: Run) -> int:
    """Take the repository's lock for `git worktree add`; returns the descriptor that holds it."""
    folder = os.path.join(run.common, "agent-workers", "locks")
    make_dir(folder)
    path = os.path.join(folder, "repository.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT
    while time.monotonic() < deadline and not run.stopping:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            time.sleep(0.005)
    os.close(descriptor)
    if run.stopping:
        raise StepError("interrupted", "interrupted")
    raise StepError("failed", "another command kept the lock on this repository's worktrees")


# --- Conditions and steps -------------------------------------------------------------------


def holds(condition: dict[str, Any], place: Place, log: str) -> bool:
    """Whether a condition holds. Raises StepError."""

    def ask(part: dict[str, Any]) -> bool:
        if "command" not in part:
            passed = [b["name"] for b in place.run.gate.get("backups", []) if is_passed(b)]
            return part["backup_passed"] in passed
        status, code = run_command(place, part["command"], log)
        if status == "interrupted":
            raise StepError(status, "interrupted")
        if status == "timed-out" or code is None or code > 125:
            why = "it timed out" if status == "timed-out" else f"exit code {code}"
            raise StepError("failed", f"its condition could not be decided: {why}")
        return code == 0

    return truth(condition, place.values, place.run.root, ask) is True


def truth(
    condition: dict[str, Any], values: dict[str, str], root: str, ask: Callable[[Any], bool | None]
) -> bool | None:
    """Whether a condition holds; None when `ask` does not know of a command or a backup."""
    if "not" in condition:
        inner = truth(condition["not"], values, root, ask)
        return None if inner is None else not inner
    for word, decisive in (("all", False), ("any", True)):
        if word in condition:
            known = True
            for part in condition[word]:
                found = truth(part, values, root, ask)
                if found is decisive:
                    return decisive
                known = known and found is not None
            return not decisive if known else None
    if "env" in condition:
        value = os.environ.get(condition["env"], "")
        return value == fill(condition["equals"], values) if "equals" in condition else value != ""
    if "path_exists" in condition:
        return os.path.exists(os.path.join(root, fill(condition["path_exists"], values)))
    return ask(condition)


def foreseen(condition: dict[str, Any], values: dict[str, str], root: str) -> bool | None:
    """Whether a condition holds, as far as that is known without running anything."""
    return truth(condition, values, root, lambda _: None)


def run_step(
    place: Place, command: dict[str, Any], step: dict[str, Any], log: str, stamp: int = 0
) -> None:
    """Run one command of the plan and keep in `step` how it went; `log` is its full path."""
    run = place.run
    mark_log(log)
    step["status"] = "running"
    event(run, "started", place.phase, task=place.task, name=step["name"])
    record(place)
    began = time.monotonic()
    try:
        if command["when"] is not None and not holds(command["when"], place, log):
            step["status"], step["reason"] = "skipped", "its condition does not hold"
        else:
            step["log"] = os.path.relpath(log, run.folder)
            status, code = run_command(place, command, log)
            step["status"], step["exit_code"] = status, code
            if status == "failed":
                step["reason"] = f"exit code {code}"
            if status == "timed-out":
                step["reason"] = f"timed out after {command['timeout_seconds']:g} s"
            if status == "passed":
                prove_backup(place, command, step, log, stamp)
    except StepError as error:
        step["status"], step["reason"] = error.status, str(error)
    step["seconds"] = round(time.monotonic() - began, 3)
    words = {"timed-out": "timed_out", "skipped": "cancelled"}
    event(
        run, words.get(step["status"], "exited"), place.phase, task=place.task, name=step["name"],
        status=step["status"], exit_code=step["exit_code"], seconds=step["seconds"],
    )  # fmt: skip
    record(place)


def record(place: Place) -> None:
    """Write the record that a step belongs to."""
    if place.task is not None:
        save_task(place.run, place.task)
    elif place.phase in ("preflight", "backup"):
        save_gate(place.run)
    else:
        with place.run.changed:
            save_manifest(place.run)


def prove_backup(
    place: Place, command: dict[str, Any], step: dict[str, Any], log: str, stamp: int
) -> None:
    """Demand of a backup its artifact and its check. Raises StepError."""
    if command["artifact"] is not None:
        path = os.path.join(place.run.root, fill(command["artifact"], place.values))
        step["artifact"] = None
        try:
            facts = os.stat(path)
        except OSError as error:
            raise StepError("failed", f"its artifact {path} is missing: {error.strerror}") from None
        if not stat.S_ISREG(facts.st_mode) or facts.st_size == 0:
            what = "is empty" if stat.S_ISREG(facts.st_mode) else "is not a file"
            raise StepError("failed", f"its artifact {path} {what}")
        if facts.st_mtime_ns < stamp:
            raise StepError("failed", f"its artifact {path} is older than the start of the run")
        import hashlib

        try:
            with open(path, "rb", buffering=0) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StepError("failed", f"its artifact {path}: {error.strerror}") from None
        step["artifact"] = {"path": path, "size": facts.st_size, "sha256": digest}
    if command["check"] is not None:
        check_log = log.removesuffix(".log") + "-check.log"
        status, code = run_command(place, command["check"], check_log)
        if status != "passed":
            why = "timed out" if status == "timed-out" else f"exit code {code}"
            word = "interrupted" if status == "interrupted" else "failed"
            raise StepError(word, f"its check failed: {why}")


# --- The run --------------------------------------------------------------------------------


def locate(run: Run) -> None:
    """Find the repository, the base and the run's folder. Raises RunError (2, 4)."""
    plan = run.plan
    for name, value in plan["variables"].items():
        run.values[name] = str(os.environ.get(f"PLAN_{name}", value))
    code, text, message = git(
        run, os.path.abspath(fill(plan["repo"], run.values)),
        *("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir"),
    )  # fmt: skip
    if code != 0:
        raise RunError(4, f"{fill(plan['repo'], run.values)!r} is no git repository: {message}",
                      "run this where the plan's `repo` counts from")  # fmt: skip
    place = os.environ.get("LOG_ROOT", "")
    if text.count("\n") != 2 or "\n" in place:
        raise RunError(2, "a path with a newline in it is not supported", "rename the folder")
    run.root, run.common = text.rstrip("\n").split("\n")
    config = file_bytes(os.path.join(run.common, "config")).lower()
    run.plain = bool(config) and not any(word in config for word in LAYOUTS)
    if run.id and (RUN_ID.fullmatch(run.id) is None or ".." in run.id):
        raise RunError(
            2, f"RUN_ID is {run.id!r}", "use up to 100 letters, digits, '.', '_' and '-'"
        )
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = run.id or f"{plan['run_name']}-{'<time>' if run.dry else stamp}"
    run.folder = os.path.join(
        os.path.abspath(place) if place else os.path.join(run.root, ".worker-runs"), name
    )
    if not run.dry:
        run.id = name
    run.values |= {"RUN_ID": name, "RUN_DIR": run.folder, "REPO_ROOT": run.root}
    if "\n" in worktree_root(run):
        raise RunError(2, "a path with a newline in it is not supported", "set worktree_root")


def commit_of(run: Run, name: str, code: int) -> str:
    """The commit that a name stands for. Raises RunError with this code."""
    words = ["rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}"]
    found, text, _ = git(run, run.root, *words)
    if found != 0 and git(run, run.root, "rev-parse", "--quiet", "--verify", "HEAD")[0] != 0:
        raise RunError(4, f"the repository {run.root} has no commit yet", "make a first one")
    if found != 0:
        raise RunError(code, f"the base {name!r} is no commit of this repository")
    return text.strip()


def worktree_root(run: Run) -> str:
    """Where worktrees are made."""
    wanted = fill(run.plan["worktree_root"], run.values)
    return os.path.normpath(os.path.join(run.root, wanted)) if wanted else run.root + ".worktrees"


def expand(run: Run, items: dict[int, list[str]]) -> list[Task]:
    """The tasks, one for each item; a task whose items are not known yet is left out.

    `items` are those that the gate found. Raises RunError (2) for a name that will not do.
    """
    heed_pinned(run)
    found: list[Task] = []
    groups: list[list[Task]] = []
    root = worktree_root(run)
    for number, plan in enumerate(run.plan["tasks"]):
        listed: list[str | None]
        if plan["for_each"] is None:
            listed = [None]
        else:
            known = plan["for_each"].get("items", items.get(number))
            listed = list(known) if known is not None else []
        group: list[Task] = []
        for position, item in enumerate(listed, 1):
            values = run.values
            if item is not None:
                values = {**values, "item": item, "item slug": slug(item, position)}
            task = Task(plan, number, item, values)
            task.worktree = os.path.join(root, task.name)
            group.append(task)
        groups.append(group)
        found += group
    by_item: list[dict[str, Task]] = [
        {task.item: task for task in group if task.item is not None} for group in groups
    ]
    for task in found:
        needed: list[int] = task.plan["depends_on"]
        for number in needed:
            other = by_item[number].get(task.item or "")
            task.after += groups[number] if other is None else [other]
    put_in_order(groups, by_item)
    require_names(found)
    return found


def put_in_order(groups: list[list[Task]], by_item: list[dict[str, Task]]) -> None:
    """Let tasks that own a path both wait for one another, as the plan's `order` says."""
    plain = [are_plain(group) for group in groups]
    for number, group in enumerate(groups):
        order: list[tuple[int, str]] = group[0].plan["order"] if group else []
        for before, kind in order:
            apart = kind == "item" or (kind == "plain" and plain[number] and plain[before])
            if before != number:
                for task in group:
                    same = by_item[before].get(task.item or "")
                    others = groups[before] if not apart else [same] if same else []
                    task.behind += others
            elif not apart:
                for place, task in enumerate(group[1:]):
                    task.behind.append(group[place])


def are_plain(group: list[Task]) -> bool:
    """Whether the items of tasks are words that no pattern reads as more, none of them twice."""
    items = [task.item for task in group if task.item is not None]
    odd = any(item in (".", "..") or re.search(r"[/*?\[\]\\!]", item) for item in items)
    return not odd and len(set(items)) == len(items)


def require_names(tasks: list[Task]) -> None:
    """Demand names and branches that are valid and differ. Raises RunError (2)."""
    seen: set[tuple[str, str]] = set()
    for task in tasks:
        if NAME.fullmatch(task.name) is None:
            raise RunError(2, f"{task.name!r} is no name for a task",
                          "use up to 64 letters, digits, '_' and '-'")  # fmt: skip
        if not valid_branch(task.branch):
            raise RunError(2, f"{task.branch!r} is no name for a branch (task {task.name})")
        for kind, word in (("name", task.name), ("branch", task.branch)):
            if (kind, word.casefold()) in seen:
                raise RunError(2, f"two tasks have the {kind} {word!r}")
            seen.add((kind, word.casefold()))
    folders = {folder: task for task in tasks for folder in folders_of(task.branch.casefold())}
    for task in tasks:
        if task.branch.casefold() in folders:
            other = folders[task.branch.casefold()].branch
            raise RunError(2, f"there cannot be both a branch {task.branch!r} and {other!r}")


def folders_of(branch: str) -> list[str]:
    """What a branch's name begins with, up to each slash: no branch can have such a name."""
    parts = branch.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def valid_branch(name: str) -> bool:
    """Whether git takes this as a branch's name (git-check-ref-format)."""
    bad = re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//", name)
    parts = name.split("/")
    return (
        bad is None and name not in ("", "@", "HEAD") and not name.startswith("-")
        and not name.endswith(".")
        and all(p and not p.startswith(".") and not p.endswith(".lock") for p in parts)
    )  # fmt: skip


def choose(run: Run, *, final: bool) -> None:
    """Mark the tasks that ONLY and RERUN name. Raises RunError (2) for a name that is not known."""
    known: dict[str, list[Task]] = {}
    for task in run.tasks:
        for name in {task.name, *plan_names(task.plan)}:
            known.setdefault(name, []).append(task)
    for variable, names in (("ONLY", run.only), ("RERUN", run.rerun)):
        for name in names:
            if name not in known and (final or not is_dynamic(run)):
                raise RunError(2, f"{variable} names {name!r}, which is no task of this plan",
                              nearest(name, sorted(known)))  # fmt: skip
    chosen = {task.name for name in run.only for task in known.get(name, [])}
    again = {task.name for name in run.rerun for task in known.get(name, [])}
    run.rerun = sorted(again) if final else run.rerun
    for task in run.tasks:
        task.chosen = not run.only or task.name in chosen


def plan_names(plan: dict[str, Any]) -> set[str]:
    """A task's name as the plan states it, with and without the added item."""
    text = plan["name"] if isinstance(plan["name"], str) else plan["name"]["text"]
    return {text, text.removesuffix("-{item}")} if plan["for_each"] is not None else {text}


def is_dynamic(run: Run) -> bool:
    """Whether the gate has to find out what some task iterates over."""
    each = [task["for_each"] for task in run.plan["tasks"] if task["for_each"] is not None]
    return any("items" not in one for one in each)


def agent_values(run: Run, task: Task, prompt_file: str) -> dict[str, str]:
    """A task's values, and those that words of a mapping may ask for."""
    return task.values | {
        "agent worktree": task.worktree,
        "agent git_common_dir": run.common,
        "agent prompt_file": prompt_file,
        "agent name": task.name,
        "agent record_dir": os.path.join(run.folder, task.folder),
    }


def agent_program(run: Run, task: Task) -> str:
    """The program of a task's agent; one that stands in a folder counts from the repository."""
    program = fill(task.plan["agent"]["cli"], task.values)
    return os.path.join(run.root, program) if "/" in program else program


def agent_argv(run: Run, task: Task, prompt: str, prompt_file: str) -> list[str]:
    """The argument list of a task's agent."""
    agent = task.plan["agent"]
    argv = [agent_program(run, task)]
    values = agent_values(run, task, prompt_file)
    argv += [fill(word, values) for word in agent["args"]]
    argv += with_flag(fill(agent["work_dir_arg"], task.values), task.worktree, bare=False)
    if agent["prompt_mode"] in ("argument", "file"):
        value = prompt if agent["prompt_mode"] == "argument" else prompt_file
        argv += with_flag(fill(agent["prompt_arg"], task.values), value, bare=True)
    return argv


def with_flag(flag: str, value: str, *, bare: bool) -> list[str]:
    """A flag with its value; one that ends in `=` is joined with it."""
    if not flag:
        return [value] if bare else []
    return [flag + value] if flag.endswith("=") else [flag, value]


def require_agents(run: Run) -> None:
    """Demand that the agents of tasks that may run are there. Raises RunError (4)."""
    tried: set[tuple[str, str]] = set()
    for task in run.tasks:
        when = task.plan["when"]
        if not task.chosen or (when and foreseen(when, task.values, run.root) is False):
            continue
        program = agent_program(run, task)
        agent, env = task.plan["agent"], task.plan["agent"]["env"]
        for name in agent["needs"]:
            if not (fill(env[name], task.values) if name in env else run.environ.get(name)):
                who = f"the agent {program!r} (task {task.name})"
                raise RunError(4, f"{who} needs {name} in its environment", f"export {name}")
        path = fill(env["PATH"], task.values) if "PATH" in env else run.environ.get("PATH", "")
        if (program, path) in tried:
            continue
        tried.add((program, path))
        if missing_program(program, run.root, path):
            raise RunError(4, f"the agent {program!r} (task {task.name}) is not there",
                          "install it, or put it on PATH")  # fmt: skip


def missing_program(program: str, cwd: str, path: str) -> str | None:
    """Why a program cannot be run, as the system says it; None when it can."""
    if find_program(program, cwd, path):
        return None
    there = "/" in program and os.path.exists(os.path.join(cwd, program))
    return "Permission denied" if there else "No such file or directory"


def find_program(program: str, cwd: str, path: str) -> str:
    """The file that a program's name stands for; empty when there is none that can be run."""
    names = [program] if "/" in program else [f"{p or '.'}/{program}" for p in path.split(":")]
    places = [os.path.join(cwd, name) for name in names]
    return next((p for p in places if os.path.isfile(p) and os.access(p, os.X_OK)), "")


def require_dependencies(run: Run) -> None:
    """Demand of ONLY that what its tasks depend on is well in this run. Raises RunError (3)."""
    for task in run.tasks:
        for other in task.after if run.only and task.chosen else []:
            if not other.chosen and not is_well(other):
                raise RunError(3, f"{task.name} depends on {other.name}, which is {other.status}",
                              f"name {other.name} in ONLY as well")  # fmt: skip


def is_well(task: Task) -> bool:
    """Whether those that depend on a task may run."""
    if task.status == "no-change":
        return task.plan["agent"]["allow_no_change"]
    return task.status == "passed" or (task.status == "skipped" and not left_out(task))


def unmet(task: Task, who: str = "it") -> str:
    """Why a task cannot run because of another; empty when it can."""
    bad = next((other for other in task.after if not is_well(other)), None)
    return f"{who} depends on {bad.name}, which is {bad.status}" if bad is not None else ""


def left_out(task: Task) -> bool:
    """Whether a task was skipped because ONLY does not name it."""
    return task.result.get("reason") == "left out by ONLY"


def load_run(run: Run) -> None:
    """Take up what is recorded of the run: gate, tasks, manifest.

    Raises RunError: 2 when there is no such run, 1 when a record is damaged.
    """
    if not os.path.isdir(run.folder):
        raise RunError(2, f"there is no run {run.id!r} in {os.path.dirname(run.folder)}",
                      "run the phase `gate` first")  # fmt: skip
    run.gate = read(os.path.join(run.folder, "gate.json")) or {}
    manifest = read(os.path.join(run.folder, "manifest.json"))
    if manifest:
        if manifest["repo"] != run.root:
            raise RunError(2, f"the run {run.id!r} is one of the repository {manifest['repo']}",
                          "run this there, or give another LOG_ROOT")  # fmt: skip
        run.started_at, run.integration = manifest["started_at"], manifest["integration_branch"]
        run.base, run.postflight = manifest["base"] or "", manifest["postflight"]
        run.status, run.exit_code = manifest["status"], manifest["exit_code"]
        run.ended_at = manifest["ended_at"]
        run.finished_at = run.ended_at or ""
    kept = read(os.path.join(run.folder, "plan.json"))
    if kept:
        run.base, run.integration = kept["base_commit"], kept["integration_branch"]
        # The values that the gate saw hold for the whole run.
        run.values |= kept["variables"]
        items: dict[int, list[str]] = {}
        for row in kept["tasks"]:
            if row["item"] is not None:
                items.setdefault(row["number"], []).append(row["item"])
        run.tasks = expand(run, {n: items.get(n, []) for n in range(len(run.plan["tasks"]))})
        bases = {row["name"]: row["base"] for row in kept["tasks"]}
        for task in run.tasks:
            task.base = bases.get(task.name, run.base)
    else:
        run.tasks = expand(run, {})
    run.started = agents_started(run)
    for task in run.tasks:
        task.result = recorded(run, task)


def changed_parts(run: Run) -> list[str]:
    """What in the plan differs from what this run was started with, and has had its turn."""
    before: list[str] = run.gate.get("parts", run.plan["parts"])
    known = digests(before)
    wanted = digests(run.plan["parts"])
    differing = [name for name in {**known, **wanted} if known.get(name) != wanted.get(name)]
    gate_passed = run.gate.get("status") == "passed"
    done = {name for name in differing if name.split(" ")[0] in ("settings", "variables")}
    if gate_passed:
        done |= {name for name in differing if name.split(" ")[0] in ("preflight", "backups")}
        done.add("base-or-for_each -")
    for kind, steps in (
        ("preflight", run.gate.get("preflight", [])), ("backups", run.gate.get("backups", [])),
        ("postflight", run.postflight),
    ):  # fmt: skip
        done |= {f"{kind} {step['name']}" for step in steps if step["status"] == "passed"}
    for task in run.tasks:
        if not {task.name, *plan_names(task.plan)}.isdisjoint(run.rerun):
            continue
        if task.result.get("agent_started") or (task.result and is_well(task)):
            done |= {f"tasks {name}" for name in plan_names(task.plan)}
    # The gate has recorded the tasks by their places.
    tasks = [[name for name in names if name.startswith("tasks ")] for names in (known, wanted)]
    moved = ["the list of tasks"] if gate_passed and tasks[0] != tasks[1] else []
    return moved + [name.removesuffix(" -") for name in differing if name in done]


def digests(parts: list[str]) -> dict[str, str]:
    """The digest of each part of a plan, by its kind and name."""
    found: dict[str, str] = {}
    for part in parts:
        name, _, digest = part.rpartition(" ")
        found[name] = digest
    return found


def require_same_plan(run: Run, *, strict: bool) -> None:
    """Demand the plan that the run was started with. Raises RunError (3).

    Unless `strict`, steps and tasks that have not had their turn may differ.
    """
    for name in run.plan["variables"]:
        given = os.environ.get(f"PLAN_{name}")
        if given is not None and given != run.values[name]:
            raise RunError(3, f"PLAN_{name} is not what this run was started with",
                          "leave it away, or start a new run")  # fmt: skip
    if run.gate.get("parts", run.plan["parts"]) == run.plan["parts"]:
        return
    parts = changed_parts(run)
    if parts or strict:
        more = ": " + ", ".join(parts) if parts else ""
        hint = "render the plan as it was, or start a new run"
        if not strict and all(part.startswith("tasks ") for part in parts):
            names = ",".join(part.removeprefix("tasks ") for part in parts)
            hint += f", or run again what has changed: RERUN={quoted(names)}"
        fixed = os.path.exists(os.path.join(run.folder, "plan.json"))
        if not fixed and all(part.startswith("variables ") for part in parts):
            values = " ".join(f"PLAN_{part.removeprefix('variables ')}=..." for part in parts)
            hint = f"render the plan as it was and give {values}, or start a new run"
        if not parts:
            hint = "only later steps differ: take them up with RESUME=1"
        raise RunError(3, f"the plan has changed since this run was started{more}", hint)


def interrupt_dead(run: Run, *, end: bool = True) -> None:
    """Turn what is still said to run into `interrupted`, and end what is left of it.

    Raises RunError (11) when another process works on the run or on one of its tasks.
    """
    claim(run, [f"task {run.id}/{task.name}" for task in run.tasks])
    ends = [os.path.join(run.folder, task.folder, ".agent-exit") for task in run.tasks]
    unended = [path for path in ends if not file_bytes(path)]
    left: list[int] = []
    if end:
        left = end_tree([], f"{MARK}={run.folder}/", prefix=True)
        for path in unended:
            # Being ended is no end of its own.
            unlink(path)
    if left:
        raise RunError(1, f"processes of this run are still alive: {', '.join(map(str, left))}",
                      "end them by hand, then run this again")  # fmt: skip
    for task in run.tasks:
        if task.status == "running":
            interrupt_task(run, task)
    if run.gate.get("status") == "running":
        settle_steps(run.gate["preflight"] + run.gate["backups"])
        run.gate["status"] = "interrupted"
        save_gate(run)
    settle_steps(run.postflight)
    if run.status == "running":
        run.status = "interrupted"
        with run.changed:
            save_manifest(run)


def interrupt_task(run: Run, task: Task) -> None:
    """Record that a task's runner is dead."""
    task.result["status"] = "interrupted"
    task.result["reason"] = "the runner was killed"
    settle_steps(task.result["setup"] + task.result["verify"])
    event(run, "stopped", "task", task=task, reason="the runner was killed")
    save_task(run, task)


def settle_steps(steps: list[dict[str, Any]]) -> None:
    """Turn a step that is said to run into `interrupted`."""
    for step in steps:
        if step["status"] == "running":
            step["status"], step["reason"] = "interrupted", "the runner was killed"


# --- Gate -----------------------------------------------------------------------------------


def enter(run: Run) -> None:
    """Make the folder of a new run, or take up an old one. Raises RunError (3)."""
    if os.path.isdir(run.folder) and os.listdir(run.folder):
        if not run.resume:
            raise RunError(3, f"there is a run {run.id!r} already", "go on with it by RESUME=1, "
                          "or give another RUN_ID")  # fmt: skip
        load_run(run)
        require_same_plan(run, strict=False)
        choose(run, final=False)
        interrupt_dead(run)
        require_dependencies(run)
        if is_dynamic(run):
            claim_branches(run)
        run.status, run.exit_code, run.ended_at = "running", None, None
        event(run, "resumed", "run")
        if run.gate.get("parts", run.plan["parts"]) != run.plan["parts"]:
            run.gate |= {"plan_sha256": run.plan["sha256"], "parts": run.plan["parts"]}
            if run.gate.get("status") == "passed":
                write_plan(run)
                save_gate(run)
        return
    if run.resume and not os.path.isdir(run.folder):
        raise RunError(2, f"there is no run {run.id!r} to go on with", "check RUN_ID and LOG_ROOT")
    exclude(run)
    run.first = look_around(run)
    try:
        make_dir(run.folder)
        write(os.path.join(run.folder, ".started"), "")
    except OSError as error:
        raise RunError(1, f"cannot make {run.folder}: {error.strerror}",
                       "give a LOG_ROOT that can be written to") from None  # fmt: skip
    event(run, "started", "run", base=run.base_now)


def exclude(run: Run) -> None:
    """Keep the folders of runs out of git, without touching a tracked file."""
    path = os.path.join(run.common, "info", "exclude")
    text = file_bytes(path)
    if b"/.worker-runs/" not in text.split(b"\n") and b".worker-runs/" not in text.split(b"\n"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        append(path, "/.worker-runs/")


def run_gate(run: Run) -> None:
    """Preflight, base, items, backups; what has passed is not run again, lost backups are.

    Raises RunError (3) when the gate refuses.
    """
    plan = run.plan
    lost = lost_backups(run)
    passed = run.gate.get("status") == "passed"
    # Base and items are found out once.
    fixed = os.path.exists(os.path.join(run.folder, "plan.json"))
    if passed and not lost:
        say(run, "gate", "passed already")
        return
    stamp = file_clock(run.folder)
    kept = [step for step in run.gate.get("backups", []) if step["name"] not in lost]
    run.gate = {
        "schema": 1, "status": "running", "reason": None, "started_at": now(), "ended_at": None,
        "plan_sha256": plan["sha256"], "parts": plan["parts"],
        "preflight": steps_of(plan["preflight"], run.values, run.gate.get("preflight", [])),
        "backups": steps_of(plan["backups"], run.values, kept),
    }  # fmt: skip
    run.postflight = steps_of(plan["postflight"], run.values, [])
    event(run, "started", "gate")
    # Without a step nothing can go wrong before it has passed.
    if plan["preflight"] or plan["backups"] or is_dynamic(run):
        save_gate(run)
    try:
        run_gate_steps(run, "preflight", "preflight", stamp)
        if not fixed:
            # Only a command of the plan's can have moved it.
            run.base = run.base_now
            if plan["preflight"]:
                run.base = commit_of(run, fill(plan["base"], run.values), 3)
            expand_at_gate(run)
        run_gate_steps(run, "backups", "backup", stamp)
        write_plan(run)
    except RunError as error:
        word = "interrupted" if run.stopped_by else "gate-refused"
        run.gate |= {"status": word, "reason": str(error), "ended_at": now()}
        save_gate(run)
        event(run, "stopped" if run.stopped_by else "error", "gate", reason=str(error))
        raise
    run.gate |= {"status": "passed", "ended_at": now()}
    save_gate(run)
    event(run, "completed", "gate")


def lost_backups(run: Run) -> set[str]:
    """The backups that passed and whose artifact is gone, or is older than the run."""
    lost: set[str] = set()
    for step in run.gate.get("backups", []):
        if step["status"] == "passed" and step.get("artifact"):
            try:
                began = os.stat(os.path.join(run.folder, ".started")).st_mtime_ns
                facts = os.stat(step["artifact"]["path"])
            except OSError:
                lost.add(step["name"])
                continue
            whole = stat.S_ISREG(facts.st_mode) and facts.st_size > 0
            if facts.st_mtime_ns < began or not whole:
                lost.add(step["name"])
    return lost


def run_gate_steps(run: Run, kind: str, phase: str, stamp: int) -> None:
    """Run the gate's commands of one kind in order. Raises RunError (3) at the first that fails."""
    folder = os.path.join(run.folder, kind)
    for command, step in zip(run.plan[kind], run.gate[kind], strict=True):
        if step["status"] == "passed":
            continue
        make_dir(folder)
        say(run, f"{kind} {command['name']}", "started")
        place = Place(run, phase, kind)
        log = os.path.join(folder, command["name"] + ".log")
        run_step(place, command, step, log, stamp)
        say(run, f"{kind} {command['name']}", step["status"], step["reason"])
        if step["status"] not in ("passed", "skipped"):
            code = INTERRUPTS[signal.Signals(run.stopped_by)] if run.stopped_by else 3
            raise RunError(code, f"{phase} {command['name']}: {step['reason'] or step['status']}",
                          f"look at {log}")  # fmt: skip


def expand_at_gate(run: Run) -> None:
    """Find out the items, then demand that names, branches and worktrees are free."""
    items: dict[int, list[str]] = {}
    for number, task in enumerate(run.plan["tasks"]):
        if task["for_each"] is not None and "items" not in task["for_each"]:
            items[number] = read_items(run, task["for_each"], number)
    if is_dynamic(run):
        kept = {task.name: task.result for task in run.tasks}
        try:
            run.tasks = expand(run, items)
        except RunError as error:
            raise RunError(3, str(error), error.hint) from None
        for task in run.tasks:
            task.result = kept.get(task.name, {})
    choose(run, final=True)
    require_dependencies(run)
    bases: dict[str, str] = {"": run.base}
    taken = branches(run)
    folders = {folder for name in taken for folder in folders_of(name)}
    for task in run.tasks:
        name = fill(task.plan["base"], task.values)
        if name not in bases:
            bases[name] = commit_of(run, name, 3)
        task.base = bases[name]
        if task.chosen and task.plan["when"] is None and not task.result:
            require_free(task, taken, folders)
            task.free = True
        task.row = ""
    if is_dynamic(run):
        claim_branches(run)


def branches(run: Run) -> set[str]:
    """The names of all branches; notes the one that is checked out here."""
    words = ["for-each-ref", "--format=%(HEAD)%(refname)", "refs/heads/"]
    code, text, message = git(run, run.root, *words)
    if code != 0:
        raise RunError(3, f"git for-each-ref failed: {message}")
    refs = text.split("\n")[:-1]
    run.integration = next((ref[1:] for ref in refs if ref[0] == "*"), None)
    names = {ref[1:] for ref in refs}
    # One that a checkout is on may have no commit yet.
    for folder in (run.common, *below(os.path.join(run.common, "worktrees"))):
        head = os.fsdecode(file_bytes(os.path.join(folder, "HEAD"))).strip()
        if head.startswith("ref: "):
            names.add(head.removeprefix("ref: "))
    return {name.removeprefix("refs/heads/").casefold() for name in names}


def below(folder: str) -> list[str]:
    """What lies in a folder that may not be there."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []


def require_free(task: Task, taken: set[str], folders: set[str]) -> None:
    """Demand that a task's branch and worktree can be made. Raises RunError (3)."""
    branch = task.branch.casefold()
    for name in (branch, *reversed(folders_of(branch))):
        if name in taken:
            shown = task.branch[: len(name)]
            raise RunError(3, f"the branch {shown!r} is in the way of task {task.name}",
                          "merge and delete it, or give the task another branch")  # fmt: skip
    if branch in folders:
        raise RunError(
            3, f"branches below '{task.branch}/' are in the way of task {task.name}",
            "merge and delete them, or give the task another branch",
        )  # fmt: skip
    if os.path.lexists(task.worktree):
        raise RunError(3, f"the worktree {task.worktree} of task {task.name} exists already",
                      "remove it with `git worktree remove`, or set worktree_root")  # fmt: skip


def read_items(run: Run, source: dict[str, Any], number: int) -> list[str]:
    """What a task iterates over: the lines of a file, or those that a command prints."""
    if "file" in source:
        path = os.path.join(run.root, fill(source["file"], run.values))
        what = f"the file {path}"
        try:
            with open(path, "rb") as file:
                content = file.read(10_000_001)
        except OSError as error:
            raise RunError(3, f"for_each: cannot read {path}: {error.strerror}") from None
    else:
        command = source["run"]
        make_dir(os.path.join(run.folder, "preflight"))
        log = os.path.join(run.folder, "preflight", f"for-each-{number + 1:02d}.log")
        what = f"`{clear(command, run.values)}`"
        unlink(log)
        place = Place(run, "gate", "preflight")
        # Only what it prints on stdout is a list; both streams share one log, so it gets two.
        argv = ["bash", "-c", 'exec "$@" 2>"$0"', log + ".stderr", *argv_of(command, run.values)]
        try:
            status, code = run_logged(place, argv, command["timeout_seconds"], log)
        except StepError as error:
            raise RunError(3, f"for_each {what}: {error}") from None
        if status != "passed":
            raise RunError(
                3, f"for_each {what}: {status}, exit code {code}", f"look at {log}.stderr"
            )
        content = file_bytes(log)
    if b"\0" in content:
        raise RunError(3, f"for_each: {what} gives a NUL")
    if len(content) > 10_000_000:
        raise RunError(3, f"for_each: {what} gives more than 10,000,000 bytes")
    lines = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    items = [os.fsdecode(line) for line in lines if line]
    if len(items) > ITEM_LIMIT:
        raise RunError(3, f"for_each: {what} gives more than {ITEM_LIMIT} items")
    return items


def write_plan(run: Run) -> None:
    """Record the plan as it was resolved."""
    from hashlib import sha256

    rows: list[dict[str, Any]] = []
    for task in run.tasks:
        prompt = fill(task.plan["prompt"], task.values).encode("utf-8", "surrogateescape")
        rows.append({
            "name": task.name, "number": task.number, "item": task.item, "branch": task.branch,
            "worktree": task.worktree, "base": task.base,
            "owns": owned(task),
            "depends_on": [other.name for other in task.after],
            "changelog": fill(task.plan["changelog"], task.values),
            "estimate_minutes": task.plan["estimate_minutes"],
            "prompt_sha256": sha256(prompt).hexdigest(),
        })  # fmt: skip
    plan = run.plan
    value = {
        "schema": 1, "plan_sha256": plan["sha256"], "run_id": run.id, "run_name": plan["run_name"],
        "repo": run.root, "base": fill(plan["base"], run.values), "base_commit": run.base,
        "integration_branch": run.integration, "worktree_root": worktree_root(run),
        "max_parallel": run.max_parallel, "on_failure": plan["on_failure"],
        "checks": [clear(command, run.values) for command in plan["checks"]],
        "changelog_file": fill(plan["changelog_file"], run.values),
        "setup_minutes": plan["setup_minutes"],
        "variables": {name: run.values[name] for name in plan["variables"]}, "tasks": rows,
    }  # fmt: skip
    write_record(run, "plan.json", value)


# --- Tasks ----------------------------------------------------------------------------------


def run_task(run: Run, task: Task) -> None:
    """Run one task to its end and record it; no failure of the task is an exception."""
    folder = os.path.join(run.folder, task.folder)
    known = task.result
    task.result = {**blank_result(task), "status": "running", "started_at": now()}
    task.result["agent_started"] = bool(known.get("agent_started"))
    began = time.monotonic()
    run.ran = True
    try:
        keep_folder(run, task)
        place = Place(run, "task", task.folder, task)
        try:
            if task.plan["when"] is not None and not known.get("agent_started"):
                log = os.path.join(folder, "when.log")
                if not holds(task.plan["when"], place, log):
                    raise StepError("skipped", "its condition does not hold")
            event(run, "started", "task", task=task)
            save_task(run, task)
            work(run, task, folder, known)
        except StepError as error:
            task.result["status"], task.result["reason"] = error.status, str(error)
            if run.cut and error.status == "failed":
                task.result["status"], task.result["reason"] = "interrupted", "interrupted"
        task.result["ended_at"] = now()
        task.result["seconds"] = round(time.monotonic() - began, 3)
        words = {"timed-out": "timed_out", "interrupted": "stopped", "skipped": "cancelled"}
        word = words.get(task.status, "completed" if is_well(task) else "error")
        event(run, word, "task", task=task, status=task.status, reason=task.result["reason"])
        save_task(run, task)
        if task.status != "interrupted":
            forget_agent(folder)
    except (OSError, RunError) as error:
        with run.changed:
            task.result |= {"status": "failed", "reason": f"its records cannot be kept: {error}"}
            task.row = ""
        failed(run, error)


def failed(run: Run, error: Exception) -> None:
    """Note that records cannot be written: the run has to end."""
    with run.changed:
        if run.trouble is None:
            message = str(error) if isinstance(error, RunError) else f"cannot keep records: {error}"
            run.trouble = RunError(1, message, "free space, then go on with RESUME=1")
        stop(run, 0)


def forget_agent(folder: str) -> None:
    """Remove the notes of how a task's agent began and ended."""
    for name in (".agent-started", ".agent-exit"):
        unlink(os.path.join(folder, name))


def agent_end(run: Run, task: Task) -> int | None:
    """What is known of an agent when its runner was not there any more: its exit code.

    -1 when it was never started; None when it was, and nothing says how it ended.
    """
    folder = os.path.join(run.folder, task.folder)
    if not os.path.exists(os.path.join(folder, ".agent-started")):
        return -1
    text = file_bytes(os.path.join(folder, ".agent-exit")).strip()
    return int(text) if text.isdigit() else None


def work(run: Run, task: Task, folder: str, known: dict[str, Any]) -> None:
    """Worktree, setup, agent, changes, verify. Raises StepError with the task's status.

    `known` is the record of an earlier try. An agent that ended meanwhile is not started again.
    """
    result = task.result
    agent = task.plan["agent"]
    prompt = fill(task.plan["prompt"], task.values)
    ended = -1
    if known.get("status") == "interrupted" and task.name not in run.rerun:
        end = agent_end(run, task) if known["agent_started"] else -1
        ended = -1 if end is None else end
    there = bool(known) and os.path.isdir(task.worktree)
    result["setup"] = steps_of(task.plan["setup"], task.values, known["setup"] if there else [])
    result["verify"] = steps_of(task.plan["verify"], task.values, [])
    prompt_file = os.path.join(folder, "prompt.md")
    write(prompt_file, prompt)
    if agent["prompt_mode"] == "argument" and len(os.fsencode(prompt)) > ARGUMENT_LIMIT:
        raise StepError("failed", "the prompt is too long for an argument; use stdin or file")
    make_worktree(run, task, folder, known)
    run_steps(run, task, "setup", folder)
    before, stamp = after_setup(run, task, folder)
    result["log"] = f"{task.folder}/{agent['log_name']}"
    result["agent_started"] = True
    log = os.path.join(folder, agent["log_name"])
    if ended >= 0:
        status, code = "passed" if ended == 0 else "failed", ended
        say(run, task.name, "agent had ended")
    else:
        status, code = run_agent(run, task, folder, prompt, log)
    result["exit_code"] = code
    lost = not os.path.isdir(folder)
    if lost:
        keep_folder(run, task)
        write(os.path.join(folder, ".agent-started"), "")
    word = "timed_out" if status == "timed-out" else "exited"
    event(run, word, "agent", task=task, status=status, exit_code=code)
    try:
        collect(run, task, before, stamp)
    except StepError:
        if status == "passed":
            raise
    if status == "timed-out":
        limit = agent["timeout_seconds"]
        raise StepError(status, f"the agent timed out after {limit:g} s{last_words(log)}")
    if status == "interrupted":
        raise StepError(status, "interrupted")
    if status == "failed":
        meaning = agent["exit_codes"].get(str(code))
        raise StepError(
            status, f"the agent ended with exit code {code}" + (f": {meaning}" if meaning else "")
        )
    if lost:
        raise StepError("failed", f"the folder of its records, {folder}, was removed")
    judge(run, task, folder)


def after_setup(run: Run, task: Task, folder: str) -> tuple[set[str], int]:
    """What set-up left uncommitted, and when it was done, by the clock of files.

    It is kept for a try that has to go on after the agent was started.
    """
    if not task.plan["setup"]:
        return set(), 0
    path = os.path.join(folder, ".setup")
    kept = read(path)
    if kept is not None:
        return set(kept["lines"]), kept["stamp"]
    lines = {line for line, _ in look(run, task)[2]}
    done = stamp = file_clock(folder)
    while stamp == done:
        time.sleep(0.001)
        stamp = file_clock(folder)
    # A byte that is no text comes back from JSON as it went in.
    write(path, json.dumps({"lines": sorted(lines), "stamp": stamp}))
    return lines, stamp


def run_agent(run: Run, task: Task, folder: str, prompt: str, log: str) -> tuple[str, int | None]:
    """Run a task's agent to its end: as run_logged. Raises StepError when it is not there."""
    agent = task.plan["agent"]
    prompt_file = os.path.join(folder, "prompt.md")
    say(run, task.name, "agent started")
    event(run, "started", "agent", task=task)
    forget_agent(folder)
    save_task(run, task)
    place = Place(run, "agent", task.folder, task, task.worktree)
    env = {k: v for k, v in place.environment().items() if k not in agent["hide"]}
    env |= {k: fill(v, task.values) for k, v in agent["env"].items()}
    argv = agent_argv(run, task, prompt, prompt_file)
    missing = missing_program(argv[0], task.worktree, env.get("PATH", ""))
    if missing:
        raise StepError("failed", f"cannot run {argv[0]!r}: {missing}")
    mark_log(log)
    status, code = run_logged(
        place, ["sh", "-c", AGENT_SHELL, folder, run.mask, *argv], agent["timeout_seconds"], log,
        env=env, stdin=prompt_file if agent["prompt_mode"] == "stdin" else os.devnull,
    )  # fmt: skip
    if code is None:
        # Being ended is no end of its own.
        unlink(os.path.join(folder, ".agent-exit"))
    return status, code


def last_words(log: str) -> str:
    """The last line of a log, for a message."""
    line = last_line(log)
    return f"; its last line: {line}" if line else ""


def last_line(log: str) -> str:
    """The last line of a log that says something, without control sequences, shortened."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4096))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.", "", text)
    lines = [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", line).strip() for line in text.split("\n")]
    return next((line[:200] for line in reversed(lines) if line), "")


def make_worktree(run: Run, task: Task, folder: str, known: dict[str, Any]) -> None:
    """Make a task's worktree, or take the one that an earlier try of it made. Raises StepError."""
    # Written when nothing of the names existed: what is found there later is this run's.
    note = os.path.join(folder, ".made")
    ours = os.path.exists(note)
    if ours:
        remove_unlinked(task.worktree)
    if ours and os.path.isdir(task.worktree):
        _, branch, _ = look(run, task)
        if branch != task.branch:
            raise StepError("failed", f"the worktree {task.worktree} is not on {task.branch}")
        words = ["rev-parse", "--path-format=absolute", "--git-dir"]
        admin = git(run, task.worktree, *words)[1].rstrip("\n")
        maker = file_bytes(os.path.join(admin, MAKER)).decode("utf-8", "surrogateescape")
        if maker not in ("", run.folder):
            raise StepError("failed", f"the worktree {task.worktree} is one of the run {maker}")
        if os.path.exists(os.path.join(admin, "index")):
            return
        # The runner was killed before the files were there.
    else:
        add_worktree(run, task, note, known if ours else None)
    git_in(run, task, "checking out the worktree failed", "reset", "--hard", "--quiet")


def add_worktree(run: Run, task: Task, note: str, known: dict[str, Any] | None) -> None:
    """Make the branch and the worktree, without its files. Raises StepError.

    `known` is the record of an earlier try that made the branch; None where none did.
    """
    tip = "" if task.free and known is None else branch_tip(run, task.branch)
    if tip and known is None:
        raise StepError("failed", f"the branch {task.branch!r} exists already")
    if tip and known is not None and tip not in (task.base, known.get("head")):
        raise StepError("failed", f"the branch {task.branch!r} has commits of somebody else")
    if os.path.lexists(task.worktree):
        raise StepError("failed", f"the worktree {task.worktree} exists already")
    make_dir(os.path.dirname(task.worktree))
    write(note, "")
    ref = f"refs/heads/{task.branch}"
    if not tip:
        # The empty word demands that there is no such branch.
        words = ["-m", f"branch: Created from {task.base}", ref, task.base, ""]
        code, _, message = git(run, run.root, "update-ref", *words)
        if code != 0:
            # A branch of this name is not ours.
            unlink(note)
            raise StepError("failed", f"making the branch failed: {message}")
    try:
        if run.plain:
            lay_out(run, task, ref)
        else:
            git_lays_out(run, task)
    except (OSError, StepError) as error:
        remove_unlinked(task.worktree)
        if not tip:
            git(run, run.root, "update-ref", "-d", ref, task.base)
        if isinstance(error, StepError):
            raise
        raise StepError("failed", f"making the worktree failed: {error.strerror}") from None


def lay_out(run: Run, task: Task, ref: str) -> None:
    """Make a worktree without files, as gitrepository-layout(5) has it. Raises OSError, StepError.

    Its entry appears whole, and after the tree: no other process reads half of one, or prunes it.
    `git worktree add` takes three processes for this, and fails beside another one.
    """
    new = os.path.join(run.common, "agent-workers", "entries", f"{run.id}.{task.name}")
    make_dir(new)
    os.mkdir(task.worktree)
    link = os.path.join(os.path.realpath(task.worktree), ".git")
    entries = os.path.join(run.common, "worktrees")
    os.makedirs(entries, exist_ok=True)
    for name, text in (("HEAD", f"ref: {ref}\n"), ("commondir", "../..\n"),
                       ("gitdir", f"{link}\n"), (MAKER, run.folder)):  # fmt: skip
        write_plain(os.path.join(new, name), text)
    os.chmod(new, 0o777 & ~int(run.mask, 8))
    for number in range(10_000):
        admin = os.path.join(entries, task.name + str(number or ""))
        if not os.path.lexists(admin):
            write_plain(link, f"gitdir: {admin}\n")
            try:
                os.rename(new, admin)
                return
            except OSError:
                if not os.path.lexists(admin):
                    raise
        if file_bytes(os.path.join(admin, "gitdir")) == os.fsencode(f"{link}\n"):
            raise StepError("failed", f"git knows the worktree {task.worktree} already")
    raise StepError("failed", f"git has too many worktrees with the name {task.name}")


def write_plain(path: str, text: str) -> None:
    """Write a small file as git does, with the caller's umask."""
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode("utf-8", "surrogateescape"))


def remove_unlinked(tree: str) -> None:
    """Remove what is left of a worktree that never got its entry; anything else stays."""
    link = os.path.join(tree, ".git")
    try:
        if os.listdir(tree) == [".git"] and not os.path.isdir(link):
            admin = file_bytes(link).removeprefix(b"gitdir: ").strip()
            if not admin or not os.path.lexists(os.path.join(tree, os.fsdecode(admin))):
                unlink(link)
        os.rmdir(tree)
    except OSError:
        return


def git_lays_out(run: Run, task: Task) -> None:
    """`lay_out` by git, which is not safe beside another process that does so. Raises StepError."""
    with run.add_lock:
        lock = hold_worktrees(run)
        try:
            words = ["worktree", "add", "--no-checkout", task.worktree, task.branch]
            code, _, message = git(run, run.root, *words)
        finally:
            os.close(lock)
    if code != 0:
        raise StepError("failed", f"git worktree add failed: {message}")
    text = file_bytes(os.path.join(task.worktree, ".git")).removeprefix(b"gitdir: ").strip()
    write(os.path.join(task.worktree, os.fsdecode(text), MAKER), run.folder)


def branch_tip(run: Run, branch: str) -> str:
    """The commit of a branch; empty when there is no such branch."""
    return git(run, run.root, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")[1].strip()


def run_steps(run: Run, task: Task, kind: str, folder: str) -> None:
    """Run a task's setup or verify commands in its worktree. Raises StepError at a failure."""
    for number, command in enumerate(task.plan[kind], 1):
        place = Place(run, kind, task.folder, task, task.worktree)
        step = task.result[kind][number - 1]
        if step["status"] == "passed":
            continue
        if kind == "setup":
            unlink(os.path.join(folder, ".setup"))
        run_step(place, command, step, os.path.join(folder, f"{kind}-{number:02d}.log"))
        if step["status"] not in ("passed", "skipped"):
            word = step["status"] if step["status"] in ("timed-out", "interrupted") else "failed"
            raise StepError(word, f"{kind} {step['name']}: {step['reason'] or step['status']}")


def look(run: Run, task: Task, *only: str) -> tuple[str | None, str, list[tuple[str, str]]]:
    """A worktree's head, branch and uncommitted entries, each as its line and its path."""
    words = ["status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--untracked-files=all"]
    words.append("--ignore-submodules=none")
    text = git_in(run, task, "the worktree cannot be read", *words, "--", *only)
    head, branch = None, ""
    entries: list[tuple[str, str]] = []
    fields = {"1": 8, "u": 10, "?": 1}
    for line in text.split("\0"):
        if line.startswith("# branch.oid "):
            head = line.removeprefix("# branch.oid ")
        elif line.startswith("# branch.head "):
            branch = line.removeprefix("# branch.head ")
        elif line[:1] in fields:
            entries.append((line, line.split(" ", fields[line[0]])[-1]))
    return head, branch, entries


def names_changed(run: Run, task: Task, head: str, *only: str) -> list[str]:
    """The files that differ between a task's base and its head."""
    words = ["diff", "--name-only", "-z", "--no-renames", "--ignore-submodules=none"]
    words += [task.base, head, "--", *only]
    text = git_in(run, task, "git diff failed", *words)
    return [name for name in text.split("\0") if name]


def collect(run: Run, task: Task, before: set[str], stamp: int) -> None:
    """Record what the agent changed, commit what it left if the plan says so."""
    result = task.result
    head, branch, entries = look(run, task)
    left = [path for line, path in entries if line not in before or newer(task, path, stamp)]
    if left and task.plan["agent"]["commit_leftovers"] and branch == task.branch:
        paths = "\0".join(left).encode("utf-8", "surrogateescape")
        message = f"{task.name}: work that the agent left uncommitted"
        listed = ("--pathspec-from-file=-", "--pathspec-file-nul")
        for words in (
            ("--literal-pathspecs", "add", "--all", *listed),
            ("--literal-pathspecs", "commit", "--quiet", "-m", message, *listed),
        ):
            trouble = "what the agent left could not be committed"
            git_in(run, task, trouble, *words, stdin=paths)
        head, branch, entries = look(run, task)
        left = [path for line, path in entries if line not in before or newer(task, path, stamp)]
    result["head"], result["uncommitted"] = head, sorted(left)
    committed = names_changed(run, task, head, ".") if head and head != task.base else []
    result["files_changed"] = sorted({*committed, *left})
    if task.plan["owns"] and result["files_changed"]:
        outside: set[str] = set()
        for words in not_owned(owned(task), fill(task.plan["changelog"], task.values)):
            outside |= {path for _, path in look(run, task, *words)[2]} & set(left)
            if committed and head:
                outside |= set(names_changed(run, task, head, *words))
        result["out_of_scope"] = sorted(outside)
    if branch != task.branch:
        raise StepError("failed", f"the worktree is not on its branch {task.branch} any more")
    if head != task.base:
        words = ["merge-base", "--is-ancestor", task.base, head or "HEAD"]
        if git(run, task.worktree, *words)[0] != 0:
            raise StepError("failed", f"its base {task.base} is no longer part of the branch")


def owned(task: Task) -> list[str]:
    """The patterns of what a task may change. A value never makes it one that takes back."""
    found: list[str] = []
    for text in task.plan["owns"]:
        made = fill(text, task.values)
        written = text if isinstance(text, str) else "".join(text["text"])
        taken = made.startswith("!") and not written.startswith("!")
        found.append("\\" + made if taken else made)
    return found


def not_owned(owns: list[str], changelog: str | None) -> list[list[str]]:
    """What git calls that which some patterns do not own: several groups of words for paths.

    First all that no pattern gives; then, for each row of patterns that take back, what they match
    and none after them gives again.
    """
    always = [] if changelog is None else [f":(top,exclude,literal){changelog}"]
    found = [[":(top)", *called(":(top,exclude,glob)", owns), *always]]
    for number, text in enumerate(owns):
        if not text.startswith("!"):
            continue
        taken = called(":(top,glob)", [text[1:]])
        if number and owns[number - 1].startswith("!"):
            found[-1] = taken + found[-1]
            continue
        found.append([*taken, *called(":(top,exclude,glob)", owns[number:]), *always])
    return found


def called(magic: str, texts: list[str]) -> list[str]:
    """Words by which git finds what some patterns give.

    They are said with the brackets of their first parts as plain letters as well, since git takes
    these for a folder's own name in some of its commands and not in others.
    """
    found: list[str] = []
    for text in texts:
        if text.startswith("!"):
            continue
        found.append(magic + text)
        part = 0
        for at, letter in enumerate(text):
            if letter in "*?\\":
                break
            if letter == "/":
                if "[" in text[part:at]:
                    found.append(magic + text[:at].replace("[", "\\[") + text[at:])
                part = at
    return found


def newer(task: Task, path: str, stamp: int) -> bool:
    """Whether a file was written at a moment (in nanoseconds) or after it."""
    try:
        return os.lstat(os.path.join(task.worktree, path)).st_mtime_ns >= stamp
    except OSError:
        return False


def judge(run: Run, task: Task, folder: str) -> None:
    """Decide what an agent's work is worth: changes, scope, changelog, verify. Raises StepError."""
    result = task.result
    changed = result["files_changed"] or result["head"] != task.base
    if not changed and not task.plan["agent"]["allow_no_change"]:
        known = (
            " (it is known to, where it may not write)"
            if task.plan["agent"]["zero_without_work"]
            else ""
        )
        raise StepError("no-change", f"the agent ended with exit code 0 and changed nothing{known}")
    reasons: list[str] = []
    if result["out_of_scope"]:
        listed = ", ".join(result["out_of_scope"][:5])
        reasons.append(f"changes outside of what it owns: {listed}")
    if task.plan["changelog"] is not None and changed:
        path = fill(task.plan["changelog"], task.values)
        if not has_entry(run, task, path):
            reasons.append(f"no changelog entry at {path}")
    try:
        run_steps(run, task, "verify", folder)
    except StepError as error:
        if error.status == "interrupted" or not reasons:
            raise
    if reasons:
        raise StepError("failed", reasons[0])
    result["status"] = "passed" if changed else "no-change"


def has_entry(run: Run, task: Task, path: str) -> bool:
    """Whether a task's changelog entry is where it is expected."""
    full = os.path.join(task.worktree, path)
    if not os.path.isfile(full) or os.path.getsize(full) == 0:
        return False
    if path in task.result["files_changed"]:
        return True
    code, _, _ = git(run, task.worktree, "cat-file", "-e", f"{task.base}:{path}")
    return code != 0


class Order:
    """Gives out tasks, each after what it waits for, else in the plan's order."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.place = {id(task): number for number, task in enumerate(tasks)}
        self.waiting = [len(task.after) + len(task.behind) for task in tasks]
        self.dependants: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for other in (*task.after, *task.behind):
                self.dependants[self.place[id(other)]].append(number)
        self.ready = [number for number, count in enumerate(self.waiting) if not count]

    def take(self) -> Task:
        """The next one of those that are ready."""
        return self.tasks[heapq.heappop(self.ready)]

    def done(self, task: Task) -> None:
        """What depends on this one does not wait for it any more."""
        for number in self.dependants[self.place[id(task)]]:
            self.waiting[number] -= 1
            if self.waiting[number] == 0:
                heapq.heappush(self.ready, number)


def run_tasks(run: Run) -> None:
    """Run all tasks that may run, so many at once, each after what it depends on."""
    order = Order(run.tasks)
    running: dict[str, tuple[Task, threading.Thread]] = {}
    over: list[Task] = []
    no_more = ""
    if run.plan["on_failure"] == "stop":
        left = [t for t in run.tasks if t.name not in run.rerun and stands(run, t)]
        no_more = "" if all(map(is_well, left)) else "an earlier task failed"
    while order.ready or running:
        while order.ready and len(running) < run.max_parallel:
            task = order.take()
            if not to_be_run(run, task, "the run was stopped" if run.stopping else no_more):
                order.done(task)
                continue
            # A postflight that passed before this is worth nothing any more.
            run.postflight = steps_of(run.plan["postflight"], run.values, [])
            say(run, task.name, "started")
            thread = threading.Thread(target=in_thread, args=(run, task, over), daemon=True)
            running[task.name] = task, thread
            thread.start()
        with run.changed:
            if running and not over:
                run.changed.wait(1.0)
            run.screen.tick(run, [task for task, _ in running.values()])
            done = over[:]
            over.clear()
        for task in done:
            running.pop(task.name)[1].join()
            order.done(task)
            say(run, task.name, task.status, task.result.get("reason"))
            if not is_well(task) and run.plan["on_failure"] == "stop":
                no_more = "an earlier task failed"
    run.screen.clear()


def in_thread(run: Run, task: Task, over: list[Task]) -> None:
    """Run a task beside others, and say when it is over."""
    try:
        run_task(run, task)
    finally:
        with run.changed:
            over.append(task)
            run.changed.notify_all()


def to_be_run(run: Run, task: Task, no_more: str) -> bool:
    """Whether a task is started now; if not, its record says why, or stands as it was."""
    if not task.chosen:
        if not task.result:
            task.result = {**blank_result(task), "status": "skipped", "reason": "left out by ONLY"}
            save_task(run, task)
        return False
    if task.name not in run.rerun and stands(run, task):
        return False
    why = unmet(task) or no_more
    if why and not task.result:
        task.result = {**blank_result(task), "reason": why}
    return not why


def stands(run: Run, task: Task) -> bool:
    """Whether a record stands: the task is well, or its agent is not started again unasked."""
    if is_well(task):
        return True
    if not task.result.get("agent_started"):
        return False
    if task.status != "interrupted":
        return True
    return not task.plan["agent"]["rerun_interrupted"] and agent_end(run, task) is None


# --- Finish ---------------------------------------------------------------------------------


def run_finish(run: Run) -> None:
    """Postflight when all is well, then manifest, rollback script and report."""
    for task in run.tasks:
        if task.status == "not-started":
            explain(run, task)
    well = run.gate.get("status") == "passed" and all(is_well_or_left_out(t) for t in run.tasks)
    # A task that ran since then makes a postflight that passed worthless.
    ends = [str(task.result.get("ended_at") or "") for task in run.tasks]
    later = run.ran or (run.finished_at != "" and max(ends, default="") > run.finished_at)
    known = [] if later else run.postflight
    run.postflight = steps_of(run.plan["postflight"], run.values, known)
    if well and not run.stopping:
        well = run_postflight(run)
    run.status, run.exit_code = verdict(run, well)
    run.ended_at = now()
    merge_events(run)
    reason = run.gate.get("reason")
    words = {"passed": "completed", "interrupted": "stopped"}
    event(run, words.get(run.status, "error"), "run", status=run.status, reason=reason)
    with run.changed:
        save_manifest(run)
    if run.status in ("failed", "interrupted") and run.gate.get("status") == "passed":
        write_rollback(run)
    elif run.status == "passed":
        # That of an earlier try: there is nothing to take back any more.
        unlink(os.path.join(run.folder, "rollback.sh"))
    write(os.path.join(run.folder, "REPORT.md"), report(run))


def explain(run: Run, task: Task) -> None:
    """Say why a task was not started."""
    reason = task.result.get("reason") or unmet(task) or "the run ended before it"
    task.result = {**blank_result(task), "reason": reason}
    task.row = ""
    event(run, "cancelled", "task", task=task, status="not-started", reason=task.result["reason"])


def is_well_or_left_out(task: Task) -> bool:
    """Whether a task is no reason for the run to fail."""
    return is_well(task) or task.status == "skipped"


def run_postflight(run: Run) -> bool:
    """Run the postflight commands in order; whether all passed."""
    folder = os.path.join(run.folder, "postflight")
    for command, step in zip(run.plan["postflight"], run.postflight, strict=True):
        if step["status"] == "passed":
            continue
        make_dir(folder)
        say(run, f"postflight {step['name']}", "started")
        place = Place(run, "postflight", "postflight")
        run_step(place, command, step, os.path.join(folder, step["name"] + ".log"))
        say(run, f"postflight {step['name']}", step["status"], step["reason"])
        if step["status"] not in ("passed", "skipped"):
            return False
    return True


def verdict(run: Run, well: bool) -> tuple[str, int]:
    """The run's status and exit code."""
    if run.stopped_by:
        return "interrupted", INTERRUPTS[signal.Signals(run.stopped_by)]
    if run.trouble is not None:
        return "failed", 1
    if run.gate.get("status") == "gate-refused":
        return "gate-refused", 3
    return ("passed", 0) if well else ("failed", 1)


def merge_events(run: Run) -> None:
    """Bring into the run's log what tasks logged that ran in processes of their own."""
    path = os.path.join(run.folder, "events.jsonl")
    events = read_events(path)
    seen = {key_of(one) for one in events}
    more = [
        one for task in run.tasks
        for one in read_events(os.path.join(run.folder, task.folder, "events.jsonl"))
        if key_of(one) not in seen
    ]  # fmt: skip
    if more:
        merged = sorted(events + more, key=lambda one: str(one.get("at")))
        lines = [encoded({**one, "seq": number}) for number, one in enumerate(merged, 1)]
        write(path, "\n".join(lines) + "\n")
        run.counts["events.jsonl"] = len(lines)


def key_of(one: dict[str, Any]) -> tuple[str, ...]:
    """What tells two events apart."""
    return tuple(str(one.get(key)) for key in ("at", "event", "task", "phase", "name"))


def write_rollback(run: Run) -> None:
    """Write the plan's rollback commands as a script that a person may run."""
    if not run.plan["rollback"]:
        return
    lines = ["#!/usr/bin/env bash", "# Recorded, not run: how the plan takes the run back."]
    lines += ["# shellcheck disable=SC2016,SC1003 # commands are data, quoted as one word"]
    lines += [f"# Run {run.id}: {run.status}."]
    lines += [f"#   {task.name}: {task.status}" for task in run.tasks]
    lines += ["set -eu", "unset CDPATH", f"cd -- {quoted(run.root)}"]
    lines += [
        "# A condition that cannot be decided ends the script.",
        "holds() {",
        "  local code=0",
        '  "$@" || code=$?',
        "  if [ $code -gt 125 ]; then",
        "    printf 'cannot be decided: %s\\n' \"$*\" >&2",
        "    exit 1",
        "  fi",
        "  return $code",
        "}",
    ]
    for name in run.plan["variables"]:
        lines.append(f"export PLAN_{name}={quoted(run.values[name])}")
    for name in ("RUN_ID", "RUN_DIR", "REPO_ROOT"):
        lines.append(f"export {name}={quoted(run.values[name])}")
    for command in run.plan["rollback"]:
        line = " ".join(map(quoted, argv_of(command, run.values)))
        shown = quoted(visible(f"rollback {command['name']}: {clear(command, run.values)}"))
        lines.append("")
        if command["when"] is None:
            lines += [f"printf '%s\\n' {shown}", line]
            continue
        test = condition_in_bash(run, command["when"])
        lines += [f"if {test}; then", f"  printf '%s\\n' {shown}", f"  {line}", "fi"]
    write(os.path.join(run.folder, "rollback.sh"), "\n".join(lines) + "\n", 0o700)


def condition_in_bash(run: Run, condition: dict[str, Any]) -> str:
    """A condition for the rollback script: commands stay commands, all else is decided now."""
    if "command" in condition:
        return "holds " + " ".join(map(quoted, argv_of(condition["command"], run.values)))
    for word, joint in (("all", " && "), ("any", " || ")):
        if word in condition:
            return "{ " + joint.join(condition_in_bash(run, c) for c in condition[word]) + "; }"
    if "not" in condition:
        return "! { " + condition_in_bash(run, condition["not"]) + "; }"
    place = Place(run, "rollback", "rollback")
    return "true" if holds(condition, place, os.devnull) else "false"


def failed_logs(run: Run) -> list[str]:
    """Where the logs are of steps and agents that did not end well, in the order of the run."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for kind in ("preflight", "backups"):
        rows += [(f"{kind} {step['name']}", step) for step in run.gate.get(kind, [])]
    for task in run.tasks:
        result = task.result
        rows += [(f"task {task.name}, setup {s['name']}", s) for s in result.get("setup", [])]
        rows.append((f"task {task.name}, agent", result))
        rows += [(f"task {task.name}, verify {s['name']}", s) for s in result.get("verify", [])]
    rows += [(f"postflight {step['name']}", step) for step in run.postflight]
    found: list[str] = []
    for what, row in rows:
        log = row.get("log")
        if log and row["status"] in ("failed", "timed-out", "interrupted"):
            path = os.path.join(run.folder, log)
            found += [f"- {what}: {path}"] if os.path.exists(path) else []
    return found


def report(run: Run) -> str:
    """The report: what happened, and the exact next commands."""
    lines = [f"# Run {run.id}: {run.status}", ""]
    reason = run.gate.get("reason")
    lines += [f"The gate refused: {reason}", ""] if reason else []
    lines += ["| task | status | branch | files | why |", "|---|---|---|---|---|"]
    for task in run.tasks:
        why = str(task.result.get("reason") or "").replace("|", "\\|").replace("\n", " ")
        count = len(task.result.get("files_changed", []))
        lines.append(f"| {task.name} | {task.status} | {task.branch} | {count} | {why} |")
    logs = failed_logs(run)
    lines += ["", "## Logs of what failed", "", *logs] if logs else []
    for title, commands in next_commands(run):
        lines += ["", f"## {title}", "", "```bash", *commands, "```"]
    return "\n".join(lines) + "\n"


def next_commands(run: Run) -> list[tuple[str, list[str]]]:
    """What a person does next, as commands to paste."""
    made = [t for t in run.tasks if t.result.get("started_at") and os.path.isdir(t.worktree)]
    good = [t for t in made if t.status == "passed"]
    left = [t for t in good if t.result["uncommitted"]]
    git_at = "git -C " + quoted(run.root)
    found: list[tuple[str, list[str]]] = []
    if made:
        review = [f"git -C {quoted(t.worktree)} {verb}" for t in made for verb in (
            "status --short", f"log --oneline {t.base}..HEAD", f"diff {t.base}")]  # fmt: skip
        found.append(("Review", review))
    if left:
        commit = [f"git -C {quoted(t.worktree)} {verb}" for t in left for verb in (
            "add --all", f"commit -m {quoted(t.name)}")]  # fmt: skip
        found.append(("Commit what agents left uncommitted", commit))
    if good:
        where = f"--repo {quoted(run.root)} --run {quoted(run.folder)}"
        names = " ".join(t.name for t in good)
        program = 'python3 "$SKILL_DIR/scripts/integrate_workers.py"'
        merge = [f"{program} forecast {names} {where}"]
        for task in good:
            commit = task.result["head"]
            if task.result["uncommitted"]:
                commit = f'"$(git -C {quoted(task.worktree)} rev-parse HEAD)"'
            merge.append(f"{program} review {task.name} {where}")
            merge.append(f"{program} approve {task.name} --commit {commit} {where}")
        merge.append(f"{program} merge {names} {where}")
        title = "Merge what was reviewed, with the skill's scripts; SKILL_DIR is the skill's folder"
        if any(task.plan["changelog"] is None for task in good):
            title += ". A task without a changelog entry needs --no-changelog-needed NAME=REASON"
        found.append((title, merge))
        merge = [f"{git_at} merge --no-ff {quoted(t.branch)}" for t in good]
        found.append(("Merge without the skill, which checks nothing", merge))
    if run.status not in ("passed", "running"):
        place = os.environ.get("LOG_ROOT", "")
        logs = f"LOG_ROOT={quoted(os.path.abspath(place))} " if place else ""
        runner = quoted(os.path.abspath(sys.argv[0]))
        start = f"cd {quoted(os.getcwd())} && RESUME=1"
        title = "Resume"
        if run.plan["variables"] and run.gate.get("status") != "passed":
            title += "; a value that was wrong is given beside it, as PLAN_NAME=VALUE"
        found.append((title, [f"{start} RUN_ID={run.id} {logs}{runner}"]))
        again = ",".join(t.name for t in run.tasks if stands(run, t) and not is_well(t))
        if again:
            command = f"{start} RERUN={again} RUN_ID={run.id} {logs}{runner}"
            found.append(("Start agents again, after a look at their worktrees", [command]))
    if good:
        clean: list[str] = []
        for task in good:
            clean.append(f"{git_at} worktree remove {quoted(task.worktree)}")
            clean.append(f"{git_at} branch -d {quoted(task.branch)}")
        title = "Clean up what was merged; ignored files in a worktree go with it without a word"
        found.append((title, clean))
    return found


# --- What is printed ------------------------------------------------------------------------


class Screen:
    """Progress on a terminal: one line a running task that updates."""

    def __init__(self) -> None:
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.rows = 0

    def clear(self) -> None:
        """Take the rows away."""
        if self.rows:
            put(f"\x1b[{self.rows}A\x1b[J")
            self.rows = 0

    def tick(self, run: Run, tasks: list[Task]) -> None:
        """Draw the rows anew."""
        if not self.live:
            return
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        rows = [self.row(run, task)[:width] + "\n" for task in tasks]
        self.clear()
        put("".join(rows))
        self.rows = len(rows)

    def row(self, run: Run, task: Task) -> str:
        """One task: what it does, for how long, and the last line of its log."""
        result = task.result
        began = result.get("started_at") or now()
        seconds = int(time.time() - timestamp(began))
        log = os.path.join(run.folder, task.folder, task.plan["agent"]["log_name"])
        return f"{task.name:<24} {task.status:<10} {seconds:>5} s  {last_line(log)}"


def timestamp(at: str) -> float:
    """A recorded time in seconds."""
    from calendar import timegm

    return timegm(time.strptime(at[:19], "%Y-%m-%dT%H:%M:%S"))


def put(text: str) -> None:
    """Write to stderr; nobody may be there."""
    try:
        sys.stderr.write(text.encode("utf-8", "backslashreplace").decode())
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def show(text: str) -> None:
    """Write to stdout; nobody may be there, or no room."""
    try:
        print(text, flush=True)
    except (OSError, ValueError):
        # What could not be written would be tried again when Python ends.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def say(run: Run, what: str, word: str, detail: str | None = None) -> None:
    """One line for one change."""
    with run.changed:
        run.screen.clear()
        more = f": {detail}" if detail else ""
        put(f"{time.strftime('%H:%M:%S')} {what} {word}{more}\n")


def table(run: Run) -> str:
    """The tasks and how they went."""
    rows = [("task", "status", "seconds", "files", "why")]
    for task in run.tasks:
        result = task.result
        rows.append((
            task.name, task.status, f"{result.get('seconds', 0):.1f}",
            str(len(result.get("files_changed", []))), str(result.get("reason") or ""),
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]
    reason = run.gate.get("reason")
    refused = [f"the gate refused: {reason}"] if reason else []
    return "\n".join([f"run {run.id}: {run.status}", *refused, *lines])


def print_summary(run: Run) -> None:
    """The table and where to go on."""
    lines = [table(run), f"report: {os.path.join(run.folder, 'REPORT.md')}"]
    for title, commands in next_commands(run):
        lines += [f"next: {title[0].lower()}{title[1:]}", f"      {commands[0]}"]
    show("\n".join(lines))


def describe(plan: dict[str, Any], tasks: list[Task], view: View) -> list[str]:
    """What a run does, in order, every command in clear text."""
    lines: list[str] = []
    for kind in ("preflight", "backups"):
        lines += [kind] if plan[kind] else []
        for command in plan[kind]:
            if f"{kind} {command['name']}" in view.not_run:
                lines.append(f"  {command['name']}: passed already")
            else:
                lines += view.step("  ", command, "", view.values)
    order = Order(tasks)
    while order.ready:
        task = order.take()
        order.done(task)
        lines += view.task(task)
    for title, kind in (
        ("postflight", "postflight"),
        ("rollback (recorded in rollback.sh if the run fails, never run)", "rollback"),
    ):
        lines += [title] if plan[kind] else []
        for command in plan[kind]:
            lines += view.step("  ", command, "", view.values)
    return lines


class View:
    """How a plan is described: with values and verdicts in a dry run, without in a header."""

    def __init__(self, values: dict[str, str], root: str | None) -> None:
        self.values = values
        self.root = root
        # Of a run that goes on: what is not run, as `task name` or `preflight name`, and why.
        self.not_run: dict[str, str] = {}

    def step(
        self, indent: str, command: dict[str, Any], label: str, values: dict[str, str]
    ) -> list[str]:
        """One command with what belongs to it."""
        text = clear(command, values).replace("\n", "\n        ")
        lines = [f"{indent}{label}{command['name']}: {text}"]
        if command["when"] is not None:
            lines.append(indent + "  " + self.when(command["when"], values))
        if command["artifact"] is not None:
            lines.append(f"{indent}  artifact {fill(command['artifact'], values)}")
        if command["check"] is not None:
            check = clear(command["check"], values).replace("\n", "\n        ")
            lines.append(f"{indent}  check: {check}")
        return lines

    def when(self, condition: dict[str, Any], values: dict[str, str]) -> str:
        """A condition with its verdict."""
        text = f"when {condition_text(condition, values)}"
        if self.root is None:
            return text
        words = {True: "true", False: "false", None: "unknown (not run)"}
        return f"{text} = {words[foreseen(condition, values, self.root)]}"

    def task(self, task: Task) -> list[str]:
        """One task, in the order in which its parts run."""
        plan, values = task.plan, task.values
        agent = plan["agent"]
        head = f"task {task.name}"
        if plan["for_each"] is not None and task.item is None:
            head += " " + each_text(plan["for_each"], values, self.root)
        lines = [head]
        if not task.chosen:
            return [*lines, "  left out by ONLY"]
        if f"task {task.name}" in self.not_run:
            return [*lines, f"  {self.not_run[f'task {task.name}']}"]
        if task.after:
            lines.append("  after " + ", ".join(other.name for other in task.after))
        if task.behind:
            names = ", ".join(other.name for other in task.behind)
            lines.append(f"  not beside {names}: they may change the same file")
        own = dict(plan["order"]).get(task.number) if task.item is None else None
        if own is not None:
            plain = " unless the items are plain words" if own == "plain" else ""
            lines.append(f"  one item after another{plain}: they may change the same file")
        if plan["when"] is not None:
            lines.append("  " + self.when(plan["when"], values))
        base = fill(plan["base"], values)
        lines.append(f"  branch {task.branch}" + (f" from {base}" if base else ""))
        lines.append(f"  worktree {task.worktree}")
        for command in plan["setup"]:
            lines += self.step("  ", command, "setup ", values)
        if self.root is not None:
            lines.append(prompt_text(task))
        lines.append(f"  agent: {agent_text(task)}")
        lines.append(f"  timeout {agent['timeout_seconds']:g} s")
        if plan["owns"]:
            lines.append("  owns " + ", ".join(fill(text, values) for text in plan["owns"]))
        if plan["changelog"] is not None:
            lines.append(f"  changelog {fill(plan['changelog'], values)}")
        for command in plan["verify"]:
            lines += self.step("  ", command, "verify ", values)
        return lines


def agent_text(task: Task) -> str:
    """An agent's command in clear text; the prompt stands as a word."""
    agent, values = task.plan["agent"], task.values
    words = [quoted(fill(agent["cli"], values))]
    words += [quoted(fill(word, values)) for word in agent["args"]]
    flag = fill(agent["work_dir_arg"], values)
    words += map(quoted, with_flag(flag, task.worktree, bare=False))
    if agent["prompt_mode"] == "stdin":
        return " ".join(words) + " < PROMPT"
    if agent["prompt_mode"] == "none":
        return " ".join(words)
    word = "PROMPT" if agent["prompt_mode"] == "argument" else "PROMPT_FILE"
    flag = fill(agent["prompt_arg"], values)
    return " ".join([*words, *map(quoted, with_flag(flag, word, bare=True))])


def prompt_text(task: Task) -> str:
    """A prompt in a dry run: where it is written to, how long it is, its first line."""
    prompt = fill(task.plan["prompt"], task.values).encode("utf-8", "surrogateescape")
    first = prompt.split(b"\n")[0]
    shown = first[:200]
    if len(first) > 200:
        shown = re.sub(rb"[\xc0-\xff]?[\x80-\xbf]*$", b"", shown) + b"..."
    text = re.sub(rb"[\x00-\x1f\x7f]", b" ", shown).decode("utf-8", "surrogateescape")
    path = os.path.join(task.folder, "prompt.md")
    return f"  prompt {path}, {len(prompt)} bytes: {text}".rstrip(" ")


def each_text(source: dict[str, Any], values: dict[str, str], root: str | None) -> str:
    """What a task iterates over, when that is not known yet."""
    if "items" in source:
        return "for each of " + ", ".join(map(quoted, source["items"]))
    if "file" in source:
        path = fill(source["file"], values)
        missing = " (not there)" if root is not None else ""
        return f"for each line of {path}{missing}"
    not_run = " (not run)" if root is not None else ""
    return f"for each line printed by {clear(source['run'], values)}{not_run}"


def condition_text(condition: dict[str, Any], values: dict[str, str]) -> str:
    """A condition in words."""
    if "command" in condition:
        return f"`{clear(condition['command'], values)}`"
    if "env" in condition:
        text = f"env {condition['env']}"
        equals = condition.get("equals")
        return text if equals is None else f"{text} = {quoted(fill(equals, values))}"
    if "path_exists" in condition:
        return f"path {fill(condition['path_exists'], values)}"
    if "backup_passed" in condition:
        return f"backup {condition['backup_passed']} passed"
    if "not" in condition:
        return f"not({condition_text(condition['not'], values)})"
    word = "all" if "all" in condition else "any"
    return f"{word}({'; '.join(condition_text(part, values) for part in condition[word])})"


def dry_run(run: Run) -> None:
    """Print what would be done."""
    plan = run.plan
    items: dict[int, list[str]] = {}
    unknown: list[int] = []
    if run.resume:
        if not os.path.isdir(run.folder):
            raise RunError(2, f"there is no run {run.id!r} to go on with",
                          "check RUN_ID and LOG_ROOT")  # fmt: skip
        load_run(run)
        require_same_plan(run, strict=False)
    fixed = run.resume and os.path.exists(os.path.join(run.folder, "plan.json"))
    for number, task in enumerate([] if fixed else plan["tasks"]):
        source: dict[str, Any] = task["for_each"] or {"items": []}
        path = fill(source.get("file", ""), run.values)
        if path and os.path.exists(os.path.join(run.root, path)):
            items[number] = read_items(run, source, number)
        elif "items" not in source:
            unknown.append(number)
    if not fixed:
        run.tasks = with_unknown(run, items, unknown)
    choose(run, final=not unknown)
    view = View(run.values, run.root)
    if run.resume:
        view.not_run = not_run_again(run)
    lines = [f"run {run.values['RUN_ID']}", f"repo {run.root}"]
    lines += [f"base {fill(plan['base'], run.values)}", f"worktrees {worktree_root(run)}"]
    lines += [f"at most {run.max_parallel} at once", *describe(plan, run.tasks, view)]
    show(visible("\n".join([*lines, "nothing was run and nothing was changed"])))


def not_run_again(run: Run) -> dict[str, str]:
    """What a run that goes on does not run, and why."""
    found: dict[str, str] = {}
    lost = lost_backups(run)
    over = run.gate.get("status") == "passed" and not lost
    for kind in ("preflight", "backups"):
        for step in run.gate.get(kind, []):
            if over or (step["status"] == "passed" and step["name"] not in lost):
                found[f"{kind} {step['name']}"] = "passed already"
    for task in run.tasks:
        if task.status == "running":
            task.result = {**task.result, "status": "interrupted"}
    kept = [t for t in run.tasks if t.chosen and t.name not in run.rerun and stands(run, t)]
    failed = [t for t in kept if not is_well(t)]
    order = Order(run.tasks)
    while order.ready:
        task = order.take()
        order.done(task)
        why = ""
        if task in kept:
            why = f"{task.status} already" if is_well(task) else f"stays {task.status}"
            if task in failed:
                why += f"; RERUN={task.name} runs it again"
        elif failed and run.plan["on_failure"] == "stop":
            why = "is not started: an earlier task failed"
        for other in [] if task in kept else task.after:
            bad = other in failed or found.get(f"task {other.name}", "").startswith("is not")
            if bad and not why:
                why = f"is not started: it depends on {other.name}"
        if why:
            found[f"task {task.name}"] = why
    return found


def with_unknown(run: Run, items: dict[int, list[str]], unknown: list[int]) -> list[Task]:
    """The tasks, with one entry for each whose items are not known."""
    tasks = expand(run, items)
    for number in unknown:
        task = Task(run.plan["tasks"][number], number, None, run.values)
        task.worktree = os.path.join(worktree_root(run), task.name)
        tasks.append(task)
    tasks.sort(key=lambda task: task.number)
    for task in tasks:
        task.after += [
            other for other in tasks if other.number in unknown
            and other.number in task.plan["depends_on"]
        ]  # fmt: skip
        before = {number for number, _ in task.plan["order"]} - {task.number}
        task.behind += [o for o in tasks if o.number in unknown and o.number in before]
        if task.number in unknown:
            task.after = [o for o in tasks if o.number in task.plan["depends_on"]]
            task.behind = [o for o in tasks if o.number in before]
        task.behind.sort(key=lambda other: other.number)
    return tasks


# --- Phases ---------------------------------------------------------------------------------


def stop(run: Run, number: int) -> None:
    """Ask everything that runs to end; `number` is the signal, 0 for trouble of our own."""
    run.stopped_by = run.stopped_by or number
    run.stopping = True
    try:
        os.write(run.stop_pipe[1], b"x")
    except OSError:
        return


def catch_signals(run: Run) -> None:
    """End with everything that was started when a signal asks for it."""

    def handler(number: int, _: object) -> None:
        stop(run, number)

    for number in INTERRUPTS:
        # A HUP that was ignored at the start stays ignored (nohup).
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def claim_branches(run: Run) -> None:
    """Claim the branches of all tasks."""
    wanted = [f"branch {task.branch}" for task in run.tasks if task.chosen]
    if wanted:
        claim(run, wanted)


def begin(run: Run) -> None:
    """Demand what must hold before anything is done, claim the run, make its folder or take it up.

    Raises RunError (2, 3, 4, 11).
    """
    run.base_now = commit_of(run, fill(run.plan["base"], run.values), 2)
    run.tasks = expand(run, {})
    choose(run, final=False)
    if not os.path.isdir(run.folder):
        require_dependencies(run)
    require_agents(run)
    claim(run, [f"run {run.id}"])
    if run.whole and not is_dynamic(run):
        claim_branches(run)
    enter(run)


def phase_all(run: Run) -> int:
    """The whole run."""
    run.whole = True
    begin(run)
    try:
        run_gate(run)
    except RunError as error:
        finish_and_print(run)
        put_error(error)
        return run.exit_code or error.code
    choose(run, final=True)
    if not run.stopping:
        run_tasks(run)
    finish_and_print(run)
    if run.trouble is not None:
        put_error(run.trouble)
    return run.exit_code or 0


def finish_and_print(run: Run) -> None:
    """The end of a run, whatever came before."""
    mark = f"{MARK}={run.folder}/"
    left: list[int] = []
    # One in the middle of an exec shows no environment: look twice.
    for pause in (0.01, 0.0):
        if newer_ones(run, mark, run.first, prefix=True):
            left = end_tree([], mark, prefix=True)
        time.sleep(pause)
    if left:
        event(run, "error", "run", reason="processes could not be ended", pids=left)
    run_finish(run)
    print_summary(run)


def phase_gate(run: Run) -> int:
    """The gate alone."""
    begin(run)
    try:
        run_gate(run)
    except RunError as error:
        run.status = "interrupted" if run.stopped_by else "gate-refused"
        run.exit_code, run.ended_at = error.code, now()
        with run.changed:
            save_manifest(run)
        put_error(error)
        return error.code
    show(f"run {run.id}: the gate passed")
    return 0


def phase_task(run: Run, name: str) -> int:
    """One task, or all that the plan's name stands for, one after the other."""
    run.tasks = expand(run, {})
    if not is_dynamic(run):
        named_tasks(run, name)
    load_run(run)
    require_same_plan(run, strict=True)
    if run.gate.get("status") != "passed":
        raise RunError(3, f"the gate of {run.id} has not passed", "run the phase `gate` first")
    lost = lost_backups(run)
    if lost:
        names = [step["name"] for step in run.gate["backups"] if step["name"] in lost]
        raise RunError(3, f"backups of {run.id} are gone: {', '.join(names)}",
                      "run the phase `gate` with RESUME=1 first")  # fmt: skip
    named = named_tasks(run, name)
    choose(run, final=True)
    for task in named:
        claim(run, [f"task {run.id}/{task.name}", f"branch {task.branch}"])
        take_up(run, task)
        again = task.name in run.rerun
        if is_well(task) and not again:
            show(f"{task.name}: {task.status} already")
            continue
        if stands(run, task) and not again:
            raise RunError(3, f"the agent of {task.name} had started already ({task.status})",
                          f"RERUN={task.name} runs it again")  # fmt: skip
        why = unmet(task, task.name)
        if why:
            raise RunError(3, why)
        for other in task.behind:
            if other.chosen and other.status in ("not-started", "running"):
                raise RunError(3, f"{task.name} comes after {other.name}, which is {other.status}:"
                              " they may change the same file")  # fmt: skip
        demand_none_failed(run, task)
        say(run, task.name, "started")
        run_task(run, task)
        say(run, task.name, task.status, task.result.get("reason"))
        if run.trouble is not None:
            raise run.trouble
        if run.stopped_by:
            return INTERRUPTS[signal.Signals(run.stopped_by)]
    return 0 if all(is_well_or_left_out(task) for task in named) else 1


def demand_none_failed(run: Run, task: Task) -> None:
    """Raise RunError (3) when another task has failed and the plan stops at failures."""
    if run.plan["on_failure"] != "stop":
        return
    for other in run.tasks:
        if other is not task and stands(run, other) and not is_well(other):
            raise RunError(
                3, f"an earlier task failed: {other.name} is {other.status}",
                f"run {other.name} again first; the plan's on_failure is stop",
            )  # fmt: skip


def take_up(run: Run, task: Task) -> None:
    """Read a task's record; what a dead runner left of it is ended and recorded."""
    task.result = recorded(run, task)
    if task.status == "running":
        end = os.path.join(run.folder, task.folder, ".agent-exit")
        known = file_bytes(end)
        left = end_tree([], f"{MARK}={os.path.join(run.folder, task.folder)}")
        if left:
            raise RunError(1, f"processes of {task.name} are still alive: {left}", "end them")
        if not known:
            unlink(end)
        interrupt_task(run, task)


def named_tasks(run: Run, name: str) -> list[Task]:
    """The task of this name, or all that the plan's name stands for. Raises RunError (2)."""
    named = [t for t in run.tasks if name == t.name or name in plan_names(t.plan)]
    if not named:
        known = [task.name for task in run.tasks]
        raise RunError(2, f"there is no task {name!r} in this plan", nearest(name, known))
    return named


def phase_finish(run: Run) -> int:
    """Decide from what is recorded."""
    run.whole = True
    claim(run, [f"run {run.id}"])
    load_run(run)
    require_same_plan(run, strict=True)
    interrupt_dead(run)
    if run.gate.get("status") in (None, "running"):
        run.gate["status"] = "interrupted"
    finish_and_print(run)
    return run.exit_code or 0


def phase_status(run: Run) -> int:
    """Print what is recorded; what a dead runner left running is recorded as interrupted."""
    if not os.environ.get("RUN_ID"):
        run.id = newest_run(os.path.dirname(run.folder))
        run.folder = os.path.join(os.path.dirname(run.folder), run.id)
        run.values |= {"RUN_ID": run.id, "RUN_DIR": run.folder}
    load_run(run)
    if run.status == "running" or any(task.status == "running" for task in run.tasks):
        try:
            run.whole = True
            claim(run, [f"run {run.id}"])
            load_run(run)
            interrupt_dead(run, end=False)
        except RunError as error:
            if error.code != 11:
                raise
    show(table(run))
    return 0


def heed_pinned(run: Run) -> None:
    """Run one task at a time where variables have values that the plan's order does not count on.

    Which tasks own a path both depends on them.
    """
    plan = run.plan
    other = [name for name in plan["pinned"] if run.values[name] != plan["variables"][name]]
    if other and run.max_parallel > 1 and (run.whole or run.dry):
        run.max_parallel = 1
        put(f"note: PLAN_{other[0]} is another than the plan's, and `owns` depends on it: "
            "one task at a time\n")  # fmt: skip


def note_unknown_values(run: Run) -> None:
    """Tell of values in the environment for variables that the plan does not have."""
    names = list(run.plan["variables"])
    for word in sorted(os.environ):
        name = word.removeprefix("PLAN_")
        if re.fullmatch(r"PLAN_[A-Za-z0-9_]+", word) and name not in names:
            known = ", ".join(names) or "none"
            put(f"note: {word} is set, and the plan has no variable {name}; it has: {known}\n")


def newest_run(place: str) -> str:
    """The name of the run that was written to last. Raises RunError (2)."""
    found: list[tuple[float, str]] = []
    try:
        for name in os.listdir(place):
            path = os.path.join(place, name, "manifest.json")
            if os.path.isfile(path):
                found.append((os.stat(path).st_mtime, name))
    except FileNotFoundError:
        pass
    if not found:
        raise RunError(2, f"there is no run in {place}", "give RUN_ID and LOG_ROOT")
    return max(found)[1]


def put_error(error: RunError) -> None:
    """Explain a failure."""
    put(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))


def main(plan: dict[str, Any], words: list[str]) -> int:
    """Run the phase that the words name; returns the exit code."""
    phase = words[0] if words else "all"
    if phase in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    run: Run | None = None
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        if phase not in ("all", "gate", "task", "finish", "status"):
            known = ["all", "gate", "task", "finish", "status"]
            raise RunError(2, f"{phase!r} is no phase", nearest(phase, known))
        if len(words) != (2 if phase == "task" else 1 if words else 0):
            raise RunError(2, "task takes one NAME, the other phases nothing", "see --help")
        run = Run(plan)
        if phase in ("task", "finish") and not run.id:
            raise RunError(2, f"{phase} needs RUN_ID", "say RUN_ID=... in the environment")
        if phase in ("all", "gate") and run.rerun and not run.resume:
            raise RunError(2, "RERUN is for a run that goes on", "say RESUME=1 RUN_ID=... as well")
        unnamed = not run.id
        locate(run)
        if phase in ("all", "gate") and run.resume and unnamed:
            newest = newest_run(os.path.dirname(run.folder))
            raise RunError(2, "RESUME=1 needs RUN_ID", f"the newest run is RUN_ID={newest}")
        if phase != "status":
            note_unknown_values(run)
        if run.dry:
            dry_run(run)
            return 0
        catch_signals(run)
        if phase == "task":
            return phase_task(run, words[1])
        phases = {"all": phase_all, "gate": phase_gate, "finish": phase_finish}
        return phases.get(phase, phase_status)(run)
    except RunError as error:
        put_error(error)
        return error.code
    except OSError as error:
        put_error(RunError(1, f"{error.filename or 'the run'}: {error.strerror or error}"))
        return 1
    finally:
        for path in run.claims if run else []:
            unlink(path)
