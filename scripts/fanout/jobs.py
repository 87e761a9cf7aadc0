"""A job is one prompt, followed from its delivery to its end. Its state is what the events say."""

from __future__ import annotations

import contextlib
import os

from fanout import records
from fanout import workers as life
from fanout.errors import SkillError, usage
from fanout.fields import NamedTuple
from fanout.records import Event
from fanout.workers import State, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    newest = events[::-1]
    opening = next((e for e in newest if e.data.get("opens")), None)
    # A prompt is recorded as delivered when that is proved, often after the agent's first report.
    telling = (e for e in newest if e.event != "delivered" or e.data.get("opens"))
    last = next(telling, newest[0]).event if newest else None
    if opening is None:
        return Job(None, "open", last, "", "", state.exit_code, False, {})
    mine = [event for event in events if event.job == opening.job]
    end = next((event for event in mine if event.event in ENDINGS), None)
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
        started=any(event.event in records.REPORTS for event in mine),
        before=opening.data.get("before") or {},
    )


def current(common_dir: str, worker: Worker, state: State, logs: life.Logs | None = None) -> Job:
    """The newest job of a worker; the verdict on one whose agent ended without a word is recorded.

    Completed: the process ended with 0 and something changed since the job began. Failed: it
    ended otherwise, changed nothing, or is gone. `logs` are those that told the state.
    """
    job = job_of((logs or life.read_logs(common_dir, worker)).merged, state)
    if not job.is_open or state.word not in ("exited", "gone"):
        return job
    why = ending_without_word(worker, job, state)
    kind = "error" if why else "completed"
    message = why or "the agent ended with exit code 0 and left changes"
    life.record_event(common_dir, worker.name, kind, job=job.id, by="coordinator", message=message)
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
