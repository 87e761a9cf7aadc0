"""What an agent runs to report: one line in its own worktree. It must stay small and fast."""

from __future__ import annotations

import json
import os

from fanout import records
from fanout.errors import missing, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = records.REPORTS
RUNS = records.RUNS
MESSAGE_LIMIT = 10_000


def find_worktree(start: str) -> str:
    """The worker's worktree that holds a directory, or that the environment names.

    Raises SkillError `not-a-worker` (exit 4).
    """
    named = os.environ.get("AGENT_WORKER_WORKTREE", "")
    try:
        folder = os.path.realpath(start)
    except OSError:
        # The directory that this runs in is gone.
        folder = "/"
    while True:
        if os.path.isfile(os.path.join(folder, RUNS, "worker.json")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    if named and os.path.isfile(os.path.join(named, RUNS, "worker.json")):
        return named
    raise missing(
        "not-a-worker",
        f"{start!r} is not inside a worker's worktree",
        "run this from the worktree that the worker was given",
    )


def report(kind: str, message: str, data: str, directory: str) -> dict[str, Any]:
    """Append one event to the worker's own log; returns what was written.

    Raises SkillError: `invalid-event` (exit 2), `not-a-worker` (exit 4).
    """
    if kind not in KINDS:
        raise usage(
            "invalid-event", f"{kind[:80]!r} is not an event", f"use one of {', '.join(KINDS)}"
        )
    if len(message) > MESSAGE_LIMIT or len(data) > MESSAGE_LIMIT:
        raise usage("invalid-event", f"message and data may have {MESSAGE_LIMIT} characters each")
    try:
        extra: Any = json.loads(data) if data else {}
    except ValueError as error:
        raise usage("invalid-event", f"--data is not valid JSON: {error}") from error
    if not isinstance(extra, dict):
        raise usage(
            "invalid-event", "--data is not a JSON object", 'give an object such as {"tests": 12}'
        )
    worktree = find_worktree(directory)
    card = records.read_json(os.path.join(worktree, RUNS, "worker.json"))
    job = str(card.get("job") or "") or None
    facts: dict[str, Any] = {**extra, **({"message": message} if message else {})}  # pyright: ignore[reportUnknownVariableType]
    records.append_event(os.path.join(worktree, RUNS, "events.jsonl"), kind, job=job, data=facts)
    return {"worker": card.get("worker"), "job": job, "event": kind, "data": facts}
