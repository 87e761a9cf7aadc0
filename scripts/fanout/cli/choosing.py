"""Which candidates a call of `integrate_workers.py` means, and its commands for pasting."""

from __future__ import annotations

import argparse

from fanout.cli.common import command_line
from fanout.errors import usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.candidates import Candidate, Choice
    from fanout.git import Repository

PROG = "integrate_workers.py"


def choice_of(options: argparse.Namespace, names: list[str]) -> Choice:
    """What the common options and these names choose."""
    from fanout.candidates import Choice

    return Choice(names, options.run, options.branch, options.base)


def only_one(repo: Repository, options: argparse.Namespace) -> tuple[Choice, Candidate]:
    """The one candidate of a verb that takes one. Raises SkillError as `candidates.find`."""
    from fanout.candidates import find

    if not options.name and not options.branch:
        raise usage("usage", "NAME is missing", f"give a name; `{PROG} status` lists them")
    choice = choice_of(options, [options.name] if options.name else [])
    found = find(repo, choice)
    if len(found) != 1:
        named = ", ".join(candidate.name for candidate in found)
        raise usage("usage", f"this takes one candidate, not {named}", "call it for each")
    return choice, found[0]


def own_command(repo: Repository, *words: str) -> str:
    """A command of this program that can be pasted."""
    return command_line(PROG, repo, *words)
