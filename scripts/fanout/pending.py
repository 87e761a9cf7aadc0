"""A prompt on its way: what is known before it is proved, kept so that a kill loses nothing."""

from __future__ import annotations

import contextlib
import os

from fanout import records
from fanout.fields import NamedTuple
from fanout.workers import Worker


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


def path_of(common_dir: str, name: str) -> str:
    """The file that says what is being sent."""
    return os.path.join(records.worker_dir(common_dir, name), "sending.json")


def read(common_dir: str, worker: Worker) -> Sending | None:
    """The prompt on its way to the agent's newest start, or None.

    Raises SkillError `record-damaged`.
    """
    try:
        sending = records.read_record(path_of(common_dir, worker.name), Sending)
    except FileNotFoundError:
        return None
    return sending if sending.launch == worker.launch else None


def write(common_dir: str, worker: Worker, sending: Sending) -> None:
    """Keep what is being sent."""
    records.write_json(path_of(common_dir, worker.name), sending._asdict())


def clear(common_dir: str, name: str) -> None:
    """Nothing is on its way any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path_of(common_dir, name))
