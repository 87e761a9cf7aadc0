"""The block that ends a worker's prompt: where it works, what it owns, how it reports."""

from __future__ import annotations

import os
import sys

from fanout.edition import HELPER
from fanout.errors import SkillError
from fanout.workers import quote

TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contract.txt")
ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), HELPER)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.conventions import Convention


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
    """Where and in which form this repository keeps changelog entries, in words for the agent."""
    from fanout.conventions import convention_in

    try:
        convention = convention_in(worktree)
    except SkillError:
        # Settings that cannot be read are the coordinator's matter, not the worker's.
        return own_fragment(name, "CHANGELOG.md")
    if convention.kind == "book":
        return own_fragment(name, convention.path)
    return fragment_in_words(convention, name)


def own_fragment(name: str, book: str) -> str:
    """Where the entry goes that the coordinator puts into a file which all share."""
    return (
        f"the file .worker-runs/changelog/{name}.md in this worktree (git ignores it), one or more "
        f"lines of Markdown below a heading such as `### Added`; leave {book} itself alone."
    )


def fragment_in_words(convention: Convention, name: str) -> str:
    """The file that a worker writes for the repository's own tool, and what stands in it."""
    settings = convention.settings
    place, end = convention.path, convention.end
    markup = "reStructuredText" if end == ".rst" else "Markdown"
    book = settings.get("book")
    if convention.kind == "towncrier":
        kinds = ", ".join(row["key"] for row in settings["types"])
        return (
            f"one new file {place}/{settings['orphan']}{name}.<type>{end} for towncrier, <type> "
            f"being one of {kinds}; {markup} without bullet and heading. Leave {book} itself alone."
        )
    if convention.kind == "changesets":
        return (
            f"one new file {place}/{name}.md for changesets: between two lines `---` each package "
            'that you changed, such as `"name": patch` (or minor, major); below them what has '
            "changed. Leave the changelogs themselves alone."
        )
    if convention.kind == "scriv":
        head = f"Added, underlined with {settings['chars'][1]}" if end == ".rst" else "`### Added`"
        return (
            f"one new file {place}/{name}{end} for scriv, in {markup}: bullets below a heading "
            f"such as {head}. Leave {book} itself alone."
        )
    if convention.kind == "reno":
        sections = ", ".join(settings["sections"])
        return (
            f"one new file {place}/{name}-{os.urandom(8).hex()}.yaml for reno: below a section "
            f"({sections}) a list of texts in reStructuredText, each `  - |` and indented lines."
        )
    return f"one new fragment in {place}/, in the form of those that are there."
