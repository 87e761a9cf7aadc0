"""A worker: its record, the state it is in, and what its agent printed last."""

from __future__ import annotations

import contextlib
import os
import re
import time

from fanout import records
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.output import plain_text
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
PARSED: list[Harness] = []


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
        for known in PARSED:
            if known.mapping == self.mapping:
                return known
        from fanout.harness import parse_mapping

        PARSED.append(parse_mapping(self.mapping, "the worker's record", recorded=True))
        return PARSED[-1]

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
        worker = records.read_record(path, Worker)
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
    # What was reported was read already.
    if not logs.reports and is_starting(common_dir, worker):
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
