"""A worker: its record, its state, its jobs, what its agent printed last, and files it was given.

A job is one prompt, followed from its delivery to its end. Its state is what the events say.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from fanout import git, process, records, worktrees
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.output import plain_text
from fanout.records import Event
from fanout.tmux import Pane, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.harness import Harness
    from fanout.proctree import Process

RUNS = records.RUNS
# The form of an agent's reports, and what they may not state.
TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z"
RESERVED = frozenset(["opens", "before", "launch", "exit_code", "by"])
SAFE_LETTERS = records.LETTERS | frozenset("_@%+=:,./-")
PARSED: list[tuple[dict[str, Any], Harness]] = []
# Most of a record is its mapping, and most workers have the same.
MAPPINGS = records.Common("mapping")


class Worker(NamedTuple):
    """The record of one worker, as `worker.json` holds it.

    `phase` is `spawning`, `live`, `removing` (set aside, still to be looked at) or `dropping`
    (looked at, may be deleted). `launch` is the id of the newest start of its agent. `copied` maps
    the files that spawn copied into the tree to their SHA-256; `made` lists what hooks and set-up
    left there.
    """

    name: str
    phase: str
    launch: str
    worktree: str
    admin_dir: str
    branch: str
    base: str
    integration_branch: str | None
    socket: str
    socket_path: str
    session: str
    pane: str
    pane_pid: int
    pane_started: str
    boot_id: str
    mapping: dict[str, Any]
    executable: str
    argv: list[str]
    agent_args: list[str]
    prompt_mode: str
    prompt_arg: str
    session_id: str
    owns: list[str]
    copied: dict[str, str]
    made: list[str]
    ready_timeout: float
    created_at: str

    @property
    def branch_ref(self) -> str:
        """The full name of its branch."""
        return "refs/heads/" + self.branch

    @property
    def mark(self) -> str:
        """What stands in the environment of every process of its agent."""
        return f"AGENT_WORKER_ID={self.launch}"

    @property
    def events_file(self) -> str:
        """Where its agent reports."""
        return f"{self.worktree}/{RUNS}/events.jsonl"

    @property
    def server(self) -> Server:
        """The tmux server that it was started on."""
        return Server(("-S", self.socket_path) if self.socket_path else ("-L", self.socket))

    @property
    def harness(self) -> Harness:
        """How to drive its agent, from the mapping that it was started with."""
        # Most workers share one mapping, and checking it costs more than all else in a status row.
        for mapping, known in PARSED:
            if mapping is self.mapping or mapping == self.mapping:
                return known
        from fanout.harness import parse_mapping

        known = parse_mapping(self.mapping, "the worker's record", recorded=True)
        PARSED.append((self.mapping, known))
        return known

    @property
    def attach_command(self) -> str:
        """The command with which a person can watch and take over."""
        address = " ".join(map(quote, self.server.address))
        return f"tmux {address} attach-session -t {quote('=' + self.session)}"

    def to_json(self) -> dict[str, Any]:
        """The fields of `worker.json`."""
        return self._asdict()


def quote(word: str) -> str:
    """A word for a POSIX shell; what else quotes calls this."""
    if word and SAFE_LETTERS.issuperset(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def quote_for_bash(word: str) -> str:
    """A word for a line to paste into bash: one line, whatever the word holds."""
    if word.isprintable():
        return quote(word)
    letters = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(word)
    )
    return "$'" + "".join(letters) + "'"


def record_file(common_dir: str, name: str) -> str:
    """The path of a worker's record."""
    return f"{records.worker_dir(common_dir, name)}/worker.json"


def save(common_dir: str, worker: Worker) -> None:
    """Write a worker's record."""
    records.write_json(record_file(common_dir, worker.name), worker.to_json())


def load(common_dir: str, name: str) -> Worker:
    """Read a worker's record.

    Raises SkillError: `unknown-worker` (exit 2), `record-damaged`.
    """
    records.require_name(name)
    path = record_file(common_dir, name)
    try:
        worker = records.read_record(path, Worker, MAPPINGS)
    except FileNotFoundError:
        raise unknown_worker(common_dir, name) from None
    if worker.name != name:
        raise records.damaged(path, f"it is the record of {worker.name!r}")
    return worker


def lock(common_dir: str, name: str, wait: float = 0.5) -> contextlib.AbstractContextManager[None]:
    """Hold a worker against other commands. Raises SkillError `busy` (exit 11)."""
    records.require_name(name)
    return records.lock(
        common_dir, f"worker-{name.casefold()}", wait=wait, what=f"the worker {name!r}"
    )


def unknown_worker(common_dir: str, name: str) -> SkillError:
    """There is no worker of this name; the message lists those that there are."""
    names = records.worker_names(common_dir)
    known = ", ".join(names[:20]) or "there are none"
    return usage("unknown-worker", f"there is no worker {name!r}", f"known workers: {known}")


def load_all(common_dir: str, names: list[str]) -> tuple[list[Worker], list[SkillError]]:
    """The named workers, or all of them, and the records that cannot be read."""
    workers: list[Worker] = []
    errors: list[SkillError] = []
    for name in names or records.folder_names(common_dir):
        try:
            workers.append(load(common_dir, name))
        except SkillError as error:
            if error.code in ("unknown-worker", "invalid-name"):
                # Without names, it has only just begun, or was cleaned up since it was listed.
                if names:
                    raise
                continue
            errors.append(error)
    return workers, errors


# --- Events and jobs -----------------------------------------------------------------------


def record_event(
    common_dir: str, name: str, kind: str, *, job: str | None = None, **data: Any
) -> None:
    """Append one event to the coordinator's log of a worker."""
    path = os.path.join(records.worker_dir(common_dir, name), "events.jsonl")
    records.append_event(path, kind, job=job, data=data)


class Logs(NamedTuple):
    """What a worker's three logs hold: the launcher's, the agent's, the coordinator's."""

    exits: list[records.Event]
    reports: list[records.Event]
    ours: list[records.Event]

    @property
    def merged(self) -> list[records.Event]:
        """All events by time."""
        return sorted((*self.ours, *self.exits, *self.reports), key=lambda event: event.at)


def read_logs(common_dir: str, worker: Worker) -> Logs:
    """A worker's logs. The launcher's comes first: what an agent says stands before its exit."""
    folder = records.worker_dir(common_dir, worker.name)
    exits, _ = records.read_events(f"{folder}/exits.jsonl")
    reports = [trusted(e) for e in records.read_events(worker.events_file)[0] if is_report(e)]
    ours, _ = records.read_events(f"{folder}/events.jsonl")
    return Logs(exits, reports, ours)


def is_report(event: records.Event) -> bool:
    """Whether a line in an agent's own log is a report: agents may write anything there."""
    if event.event not in records.REPORTS or re.fullmatch(TIMESTAMP, event.at) is None:
        return False
    job = event.job
    return job is None or (4 <= len(job) <= 9 and job.isascii() and job.isdigit())


def trusted(event: records.Event) -> records.Event:
    """A report without the facts that only the coordinator and the launcher may state."""
    if RESERVED.isdisjoint(event.data):
        return event
    return event._replace(data={k: v for k, v in event.data.items() if k not in RESERVED})


def read_events(common_dir: str, worker: Worker) -> list[records.Event]:
    """All events of a worker by time: the coordinator's, the launcher's, the agent's."""
    return read_logs(common_dir, worker).merged


def exit_record(common_dir: str, worker: Worker) -> int | None:
    """The exit status that the launcher recorded for the newest start, or None."""
    path = os.path.join(records.worker_dir(common_dir, worker.name), "exits.jsonl")
    return exit_code_in(records.read_events(path)[0], worker)


def exit_code_in(exits: list[records.Event], worker: Worker) -> int | None:
    """The exit status of the newest start in the launcher's log, or None."""
    for event in reversed(exits):
        code = event.data.get("exit_code")
        if event.data.get("launch") == worker.launch and type(code) is int:
            return code
    return None


def write_card(worker: Worker, job: str) -> None:
    """Leave in the worktree which worker and job it belongs to, for the agent's reports."""
    folder = os.path.join(worker.worktree, RUNS)
    path = os.path.join(folder, "worker.json")
    if os.path.islink(folder) or os.path.isdir(path) or os.path.realpath(folder) != folder:
        raise runs_replaced(folder)
    try:
        records.make_dir(folder)
        records.write_json(path, {"worker": worker.name, "job": job})
    except (FileExistsError, NotADirectoryError) as error:
        raise runs_replaced(folder) from error


def runs_replaced(folder: str) -> SkillError:
    """An agent has put something else where its card belongs."""
    return refused(
        "runs-replaced",
        f"{folder!r} is not the folder that was made there",
        "look at it and move it away; nothing was typed",
    )


# --- State ----------------------------------------------------------------------------------


class State(NamedTuple):
    """One of `starting running waiting stopped exited gone unknown`.

    `detail` says what it waits for, or why.
    """

    word: str
    exit_code: int | None = None
    detail: str = ""


def own_pane(worker: Worker, panes: dict[str, Pane]) -> Pane | None:
    """The worker's pane: the one that carries the mark of its newest start. Ids may be reused."""
    pane = panes.get(worker.pane)
    if pane is not None and pane.mark == worker.launch:
        return pane
    return next((pane for pane in panes.values() if pane.mark == worker.launch), None)


def state_of(
    common_dir: str,
    worker: Worker,
    panes: dict[str, Pane] | None,
    screens: dict[str, str],
    logs: Logs | None = None,
    survives: bool | None = None,
) -> State:
    """The state of a worker. `panes` is None when the server's answer could not be read.

    `logs` were read after the server was asked, if they are given; `survives` says whether
    something of an agent without a pane lives, where that was found out for many together.
    """
    if worker.phase == "spawning":
        return State("unknown", detail="its spawn did not finish; run it again to take it back")
    logs = logs or read_logs(common_dir, worker)
    code = exit_code_in(logs.exits, worker)
    if code is not None:
        return State("stopped" if was_stopped(logs, worker) else "exited", code)
    if panes is None:
        return State("unknown", detail="tmux gives no answer")
    pane = own_pane(worker, panes)
    if pane is None or pane.dead:
        if was_stopped(logs, worker):
            return State("stopped", pane.dead_status if pane else None)
        if pane is not None:
            return State("exited", pane.dead_status, "its launcher was killed")
        if processes_of(worker, panes) if survives is None else survives:
            return State("unknown", detail="its agent lives, but its session cannot be reached")
        return State("gone", detail="its tmux session is no longer there")
    text = screens.get(pane.pane, "")
    from fanout.harness import dialog_on_screen

    dialog = dialog_on_screen(worker.harness, text, pane.title)
    if dialog is not None:
        # The prompts are read only when a look needs them: the screen may just repeat one.
        said = prompts_given(common_dir, worker.name)
        dialog = dialog_on_screen(worker.harness, text, pane.title, said)
    if dialog is not None:
        return State("waiting", detail=dialog)
    # What was reported was read already; the log of the terminal may lag behind its screen.
    if not text.strip() and not logs.reports and is_starting(common_dir, worker):
        return State("starting")
    return State("running")


def prompts_given(common_dir: str, name: str) -> str:
    """All prompts that a worker's agent was given, as one text."""
    folder = os.path.join(records.worker_dir(common_dir, name), "prompts")
    texts: list[str] = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            with open(os.path.join(folder, entry), "rb") as file:
                texts.append(file.read(1_000_000).decode("utf-8", "replace"))
    return "\n".join(texts)


def is_starting(common_dir: str, worker: Worker) -> bool:
    """Whether the agent has neither printed nor reported anything since it was started lately."""
    folder = records.worker_dir(common_dir, worker.name)
    for path in (f"{folder}/terminal.log", worker.events_file):
        try:
            if os.stat(path).st_size > 0:
                return False
        except OSError:
            continue
    try:
        age = time.time() - os.stat(os.path.join(folder, "launch.sh")).st_mtime
    except OSError:
        return False
    return age < worker.ready_timeout


def was_stopped(logs: Logs, worker: Worker) -> bool:
    """Whether `stop` ended the newest start of this worker."""
    for event in reversed(logs.ours):
        if event.event == "stopped":
            return event.data.get("launch") == worker.launch
    return False


def processes_of(worker: Worker, panes: dict[str, Pane]) -> list[Process]:
    """All living processes of a worker's agent, those in sessions of their own included."""
    from fanout import proctree

    return proctree.tree(live_roots(worker, panes), worker.mark)


def live_roots(worker: Worker, panes: dict[str, Pane]) -> list[int]:
    """The launcher of a worker's agent, as long as it lives, also where its pane is not seen.

    Until it has started the agent, no process carries the mark.
    """
    pane = own_pane(worker, panes)
    if pane is not None:
        return [] if pane.dead else [pane.pid]
    return [worker.pane_pid] if has_launcher(worker) else []


def has_launcher(worker: Worker) -> bool:
    """Whether the very process lives that the record names as the launcher."""
    from fanout import proctree

    # Times of start count from the boot on.
    return (
        worker.pane_pid > 0
        and worker.boot_id == proctree.boot_id()
        and proctree.start_time(worker.pane_pid) == worker.pane_started
    )


def launch_script(
    worker: Worker, *, record: str, keep: list[str], variables: dict[str, str]
) -> bytes:
    """The launcher of one start: what differs, as quoted words, then the fixed text."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtimes", "launch.sh")
    with open(source, encoding="utf-8") as file:
        fixed = file.read()
    lines = [f"# Starts the agent of worker {worker.name}."]
    lines += [f"export {name}={quote(value)}" for name, value in variables.items()]
    lines += [
        f"_aw_record={quote(record)}",
        f"_aw_worktree={quote(worker.worktree)}",
        f"_aw_launch={quote(worker.launch)}",
        f"_aw_keep={quote(' '.join(keep))}",
        "set -- " + " ".join(map(quote, worker.argv)),
    ]
    return os.fsencode("\n".join(lines) + "\n" + fixed)


# --- What its agent printed -----------------------------------------------------------------


# Any history is shorter than that.
ALL_ROWS = 1_000_000


def capture(common_dir: str, worker: Worker, lines: int, *, from_log: bool) -> str:
    """The last lines that an agent printed, safe to show."""
    if from_log:
        path = os.path.join(records.worker_dir(common_dir, worker.name), "terminal.log")
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - lines * 4000))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            text = ""
        return last_lines(text.replace("\r", ""), lines)
    # The pane that the record names is the right one nearly always: one call is enough then.
    panes, texts = worker.server.look([worker.pane] if worker.pane else [], rows=lines)
    pane = own_pane(worker, panes)
    if pane is None:
        raise refused(
            "no-pane",
            f"the tmux session of {worker.name!r} is no longer there",
            "its output is kept: give --log",
        )
    text = texts.get(pane.pane)
    # Wrapped lines are joined, so the wanted number may need more rows; ask again for all.
    short = text is not None and len(last_lines(text, lines + 1).split("\n")) <= lines
    if text is None or (short and pane.history > lines):
        text = worker.server.capture(pane.pane, ALL_ROWS)
    return last_lines(text, lines)


def last_lines(text: str, lines: int) -> str:
    """The last lines of a text; blank ones at the end do not count."""
    rows = [row.rstrip() for row in plain_text(text).split("\n")]
    while rows and not rows[-1]:
        rows.pop()
    return "\n".join(rows[-lines:])


# --- Files from the caller's tree -----------------------------------------------------------


def copy_files(top: str, worktree: str, paths: list[str]) -> dict[str, str]:
    """Copy these paths and what `.worktreeinclude` names; returns path -> fingerprint of a copy."""
    wanted = [worktrees.require_relative(path) for path in paths]
    wanted += included_files(top)
    copied: dict[str, str] = {}
    for path in dict.fromkeys(wanted):
        source = os.path.join(top, path)
        if os.path.isdir(source) and not os.path.islink(source):
            inner = [os.path.join(path, name) for name in worktrees.walk_files(source)]
        else:
            inner = [path]
        for name in inner:
            require_inside(worktree, name)
            copied[name] = copy_one(os.path.join(top, name), os.path.join(worktree, name))
    return copied


def require_inside(worktree: str, path: str) -> None:
    """Demand that a path of a new tree lies in it: a link in the commit may lead out of it."""
    folder = os.path.realpath(os.path.dirname(os.path.join(worktree, path)))
    if folder != worktree and not folder.startswith(worktree + "/"):
        raise usage(
            "path-outside",
            f"{path!r} would be copied to {folder!r}, outside of the new worktree",
            "a folder on its way is a link there; copy it by a --setup command",
        )


def copy_one(source: str, target: str) -> str:
    """Copy one file or link with its mode and times; returns its fingerprint."""
    import shutil
    import stat

    mode = os.lstat(source).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise usage(
            "copy-unfit", f"{source!r} is neither a file, a folder nor a link", "leave it out"
        )
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.lexists(target):
        os.unlink(target)
    shutil.copy2(source, target, follow_symlinks=False)
    return fingerprint(target)


def fingerprint(path: str) -> str:
    """What tells whether a copy is still as it was made."""
    if os.path.islink(path):
        return "link:" + os.readlink(path)
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_our_copy(worker: Worker, root: str, path: str) -> bool:
    """Whether a path below `root` holds nothing but unchanged copies that spawn made."""
    full = os.path.join(root, path)
    if path.endswith("/"):
        inner = [path + name for name in worktrees.walk_files(full)]
        return bool(inner) and all(is_our_copy(worker, root, name) for name in inner)
    # Only what may be a copy is read: the rest may be large, or a pipe that never ends.
    if path not in worker.copied or worktrees.kind_of(full) not in ("file", "link"):
        return False
    try:
        return worker.copied[path] == fingerprint(full)
    except OSError:
        return False


def included_files(top: str) -> list[str]:
    """The ignored files of the caller's tree that its `.worktreeinclude` asks for."""
    if not os.path.isfile(os.path.join(top, ".worktreeinclude")):
        return []
    matching = git.require_git(
        top, "ls-files", "-z", "--others", "--ignored", "--exclude-from=.worktreeinclude"
    )
    if not matching.stdout:
        return []
    # Exit code 1 says that none of them is ignored.
    done = git.git(top, "check-ignore", "-z", "--stdin", stdin=matching.stdout)
    found = [path for path in done.text.split("\0") if path]
    return [path for path in found if path.split("/")[0] != RUNS]


def start_caller_status(repo: git.Repository) -> tuple[process.Running, list[str]]:
    """Start to look at the caller's checkout, beside the work on the new trees."""
    argv = git.git_command(repo.top, *worktrees.status_arguments(ignored=True))
    return process.start(argv, env=git.git_environment()), argv


def finish_caller_status(started: tuple[process.Running, list[str]]) -> worktrees.Status:
    """What the caller's checkout holds beyond its commit."""
    return worktrees.parse_status(process.finish(*started))


def lacking(status: worktrees.Status, top: str, worktree: str, stored: list[str]) -> dict[str, Any]:
    """What a new tree lacks compared with the caller's: counts and first paths by kind.

    `stored` are the files that Git LFS keeps (see `lfs_files`).
    """
    ignored = [path for path in status.ignored if not worktrees.is_cache(top, path)]
    here = [path for path in ignored if not os.path.lexists(os.path.join(worktree, path))]
    groups = {
        "uncommitted": sorted(
            {*status.staged, *status.modified, *status.conflicted, *status.untracked}
        ),
        "ignored": [path for path in here if not path.startswith(RUNS)],
        "submodules": missing_submodules(worktree),
        "lfs_pointers": lfs_pointers(worktree, stored),
    }
    return {
        key: {"count": len(paths), "paths": paths[:20]} for key, paths in groups.items() if paths
    }


def missing_submodules(worktree: str) -> list[str]:
    """The submodules of a new tree: git leaves them empty."""
    if not os.path.isfile(os.path.join(worktree, ".gitmodules")):
        return []
    done = git.require_git(worktree, "ls-files", "-s", "-z")
    rows = [entry.partition("\t") for entry in done.text.split("\0") if entry.startswith("160000 ")]
    return [
        path for _, _, path in rows if not os.path.lexists(os.path.join(worktree, path, ".git"))
    ]


def lfs_files(worktree: str) -> list[str]:
    """The files that Git LFS keeps, the same in all trees of one commit."""
    done = git.require_git(worktree, "ls-files", "-z", "--", ":(attr:filter=lfs)")
    return list(filter(None, done.text.split("\0")))


def lfs_pointers(worktree: str, stored: list[str]) -> list[str]:
    """The files of a new tree that hold a Git LFS pointer instead of their content."""
    found: list[str] = []
    for path in stored:
        with contextlib.suppress(OSError), open(os.path.join(worktree, path), "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs.github.com/spec"):
                found.append(path)
    return found


# --- Jobs -----------------------------------------------------------------------------------


# What ends a job, and how.
ENDINGS = {"completed": "completed", "error": "failed", "cancelled": "cancelled"}
PROMPT_LIMIT = 10_000_000


class Job(NamedTuple):
    """The newest job of a worker.

    `state` is `open`, `completed`, `failed` or `cancelled`; `error` says why it failed, `message`
    what the agent said at its end. `before` is what the tree was when the job began.
    """

    id: str | None
    state: str
    last_event: str | None
    error: str
    message: str
    exit_code: int | None
    started: bool
    before: dict[str, Any]

    @property
    def is_open(self) -> bool:
        """Whether its end is still to come."""
        return self.id is not None and self.state == "open"

    def to_json(self) -> dict[str, Any]:
        """The `job` of a status or wait row."""
        row = self._asdict()
        del row["before"]
        return row


def job_of(events: list[Event], state: State) -> Job:
    """The newest job, as far as events and the process's end tell."""
    opening = last = None
    for event in reversed(events):
        opens = event.data.get("opens")
        # A prompt is recorded as delivered when that is proved, often after the first report.
        if last is None and (opens or event.event != "delivered"):
            last = event.event
        if opens:
            opening = event
            break
    if opening is None:
        last = last or (events[-1].event if events else None)
        return Job(None, "open", last, "", "", state.exit_code, False, {})
    end = None
    started = False
    for event in events:
        if event.job == opening.job:
            started = started or event.event in records.REPORTS
            if end is None and event.event in ENDINGS:
                end = event
    word = ENDINGS[end.event] if end is not None else "open"
    said = str(end.data.get("message", "")) if end is not None else ""
    if word == "open" and state.word == "stopped":
        # The `cancelled` that a killed `stop` did not come to write.
        word = "cancelled"
    return Job(
        id=opening.job,
        state=word,
        last_event=last,
        error=said if word == "failed" else "",
        message=said if word == "completed" else "",
        exit_code=state.exit_code,
        started=started,
        before=opening.data.get("before") or {},
    )


def current(common_dir: str, worker: Worker, state: State, logs: Logs | None = None) -> Job:
    """The newest job of a worker; the verdict on one whose agent ended without a word is recorded.

    Completed: the process ended with 0 and something changed since the job began. Failed: it
    ended otherwise, changed nothing, or is gone. `logs` are those that told the state.
    """
    job = job_of((logs or read_logs(common_dir, worker)).merged, state)
    if not job.is_open or state.word not in ("exited", "gone"):
        return job
    why = ending_without_word(worker, job, state)
    kind = "error" if why else "completed"
    message = why or "the agent ended with exit code 0 and left changes"
    record_event(common_dir, worker.name, kind, job=job.id, by="coordinator", message=message)
    word = ENDINGS[kind]
    return job._replace(
        state=word, last_event=kind, error=why, message=message if word == "completed" else ""
    )


def ending_without_word(worker: Worker, job: Job, state: State) -> str:
    """Why a job failed whose agent ended without a report; empty when it completed."""
    if state.word == "gone":
        return f"the agent is gone: {state.detail}"
    if state.exit_code is None:
        return f"the agent ended, and nothing says how: {state.detail}"
    if state.exit_code != 0:
        return f"the agent ended with exit code {state.exit_code}"
    try:
        changed = snapshot(worker) != job.before
    except SkillError as error:
        return f"the agent ended with exit code 0, but its tree cannot be read: {error.message}"
    return "" if changed else "the agent ended with exit code 0 and changed nothing"


def snapshot(worker: Worker) -> dict[str, Any]:
    """What a tree is now: its commit, and a checksum over its changed files.

    Raises SkillError `git-failed`.
    """
    from binascii import crc32

    from fanout import worktrees

    status = worktrees.read_status(worker.worktree)
    lines: list[str] = []
    for path in sorted({*status.staged, *status.modified, *status.conflicted, *status.untracked}):
        try:
            facts = os.lstat(os.path.join(worker.worktree, path))
            lines.append(f"{path}\0{facts.st_mtime_ns}\0{facts.st_size}")
        except OSError:
            lines.append(f"{path}\0gone")
    text = os.fsencode("\n".join(lines))
    return {"head": status.head, "files": f"{crc32(text):08x}" if lines else ""}


def fresh_snapshot(worker: Worker) -> dict[str, Any]:
    """What a tree is that spawn has just made; one without additions needs no look."""
    if worker.made or worker.copied:
        return snapshot(worker)
    return {"head": worker.base, "files": ""}


def open_job(events: list[Event]) -> str | None:
    """The id of the open job, or None; for a worker whose agent lives."""
    job = job_of(events, State("running"))
    return job.id if job.is_open else None


def require_prompt(prompt: str) -> None:
    """Demand a prompt that can be kept and passed on."""
    if not prompt.strip():
        raise usage("prompt-empty", "the prompt is empty", "say what the worker should do")
    if "\0" in prompt:
        raise usage("prompt-unfit", "the prompt holds a NUL byte", "remove it")
    if len(prompt) > PROMPT_LIMIT:
        raise usage(
            "prompt-unfit", f"the prompt is longer than {PROMPT_LIMIT} characters", "shorten it"
        )


def new_prompt(common_dir: str, name: str, prompt: str) -> str:
    """Keep a prompt in the record; returns its number, which is the id of a job that it opens."""
    folder = os.path.join(records.worker_dir(common_dir, name), "prompts")
    records.make_dir(folder)
    taken = [entry[:4] for entry in os.listdir(folder) if entry.endswith(".md")]
    number = f"{max(map(int, taken), default=0) + 1:04d}"
    records.write_file(prompt_file(common_dir, name, number), prompt.encode())
    return number


def prompt_file(common_dir: str, name: str, number: str) -> str:
    """Where a prompt is kept."""
    return os.path.join(records.worker_dir(common_dir, name), "prompts", f"{number}.md")


def read_prompt(common_dir: str, name: str, number: str) -> str:
    """A kept prompt; empty when it is not there."""
    try:
        with open(prompt_file(common_dir, name, number), encoding="utf-8", newline="") as file:
            return file.read()
    except OSError:
        return ""


# --- A prompt on its way: kept before it is proved, so that a kill loses nothing ------------


class Sending(NamedTuple):
    """A prompt that has not been proved to be taken, as `sending.json` keeps it.

    `before` is the screen before anything was typed; `drawn` the screen with the text on it, and
    `echo` the rows that show it: they are there once Enter may have been pressed.
    """

    launch: str
    job: str
    prompt: str
    opens: bool
    before: str
    drawn: str | None
    echo: list[int]


def sending_path(common_dir: str, name: str) -> str:
    """The file that says what is being sent."""
    return os.path.join(records.worker_dir(common_dir, name), "sending.json")


def read_sending(common_dir: str, worker: Worker) -> Sending | None:
    """The prompt on its way to the agent's newest start, or None.

    Raises SkillError `record-damaged`.
    """
    try:
        sending = records.read_record(sending_path(common_dir, worker.name), Sending)
    except FileNotFoundError:
        return None
    return sending if sending.launch == worker.launch else None


def write_sending(common_dir: str, worker: Worker, sending: Sending) -> None:
    """Keep what is being sent."""
    records.write_json(sending_path(common_dir, worker.name), sending._asdict())


def clear_sending(common_dir: str, name: str) -> None:
    """Nothing is on its way any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(sending_path(common_dir, name))
