"""The last lines that an agent printed, from its pane or from the log."""

from __future__ import annotations

import os

from fanout import records
from fanout import workers as life
from fanout.errors import refused
from fanout.output import plain_text
from fanout.workers import Worker

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
    pane = life.own_pane(worker, panes)
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
