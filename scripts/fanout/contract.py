"""The block that ends a worker's prompt: where it works, what it owns, how it reports."""

from __future__ import annotations

import os
import sys

from fanout.workers import quote

TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contract.txt")
ENTRY = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "agent_workers.py"
)
FRAGMENT_FOLDERS = ("changelog.d", "newsfragments", "changes", ".changeset")


def event_command() -> str:
    """The shell-quoted command prefix with which an agent reports.

    -I and -S keep the user's site packages out: a report must take milliseconds.
    """
    return " ".join(map(quote, [sys.executable, "-I", "-S", ENTRY, "event"]))


def contract(*, name: str, worktree: str, branch: str, owns: list[str]) -> str:
    """The contract's text for one worker."""
    with open(TEMPLATE, encoding="utf-8") as file:
        text = file.read()
    files = (
        f"You own only these files: {', '.join(owns)}. A change elsewhere is not accepted."
        if owns
        else "You own the files that your task names; leave all others as they are."
    )
    words = {
        "worktree": worktree,
        "branch": branch,
        "owns": files,
        "changelog": changelog_place(name, worktree),
        "event": event_command(),
    }
    # One pass: a value may hold what looks like a placeholder.
    parts = text.split("{")
    return parts[0] + "".join(
        words[key] + rest if closing and key in words else "{" + part
        for part in parts[1:]
        for key, closing, rest in [part.partition("}")]
    )


def changelog_place(name: str, worktree: str) -> str:
    """Where this repository keeps changelog entries, in words for the agent."""
    for folder in FRAGMENT_FOLDERS:
        if os.path.isdir(os.path.join(worktree, folder)):
            return f"one new fragment in {folder}/, in the form of those that are there."
    return (
        f"the file .worker-runs/changelog/{name}.md in this worktree (git ignores it), one or more "
        "lines of Markdown below a heading such as `### Added`; leave CHANGELOG.md itself alone."
    )
