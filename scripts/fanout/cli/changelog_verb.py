"""What `changelog` of `integrate_workers.py` answers."""

from __future__ import annotations

import argparse

from fanout.cli.choosing import choice_of
from fanout.errors import SkillError
from fanout.output import Answer, plain_text, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.candidates import Candidate
    from fanout.changelog import Found, Written
    from fanout.cli.common import Parser
    from fanout.conventions import Convention
    from fanout.git import Repository

SHOWN = 20_000


def add_changelog(parser: Parser) -> None:
    """The options of `changelog`."""
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--into", default="", metavar="BRANCH", help="this branch, in place of the recorded one"
    )


def changelog(repo: Repository, options: argparse.Namespace) -> Answer:
    """`changelog`: the entries found, those missing, and what would be written where."""
    from fanout import candidates as work
    from fanout import changelog as room
    from fanout.conventions import convention_of

    found = work.find(repo, choice_of(options, options.names))
    commit, branch = target_commit(repo, found, options.into)
    convention = convention_of(repo.common_dir, commit, named_file(options.run))
    names = [candidate.name for candidate in found]
    rows = [(c, room.find(repo, c, names, convention)) for c in found]
    entries = [entry for _, one in rows for entry in one.entries]
    changed = {c.name: tuple(room.changed_files(repo.common_dir, c)) for c, _ in rows}
    error = None
    made = room.Written({}, [], [])
    try:
        made = room.written(convention, entries, read_book(repo, commit, convention), changed)
    except SkillError as refusal:
        error = refusal
    data = {
        "convention": convention.to_json(),
        "into": branch,
        "candidates": [row_of(candidate, one) for candidate, one in rows],
        "missing": [c.name for c, one in rows if one.missing and not one.problems],
        "would_write": [
            {"path": path, "content": shorten(content.decode("utf-8", "replace"), SHOWN)}
            for path, content in made.files.items()
        ],
        "added": made.added,
        "duplicates": made.duplicates,
    }
    text = plain_text("\n".join(lines_of(convention, rows, made)))
    if error is not None:
        return Answer("changelog", text, data, error.exit_code, error)
    return Answer("changelog", text, data)


def target_commit(repo: Repository, found: list[Candidate], into: str) -> tuple[str, str | None]:
    """The commit that work would go onto, and its branch; the caller's where none is recorded."""
    from fanout import git
    from fanout.candidates import target_of

    try:
        target = target_of(repo, found, into)
    except SkillError as error:
        if error.code != "no-integration-branch":
            raise
        return repo.head, repo.branch
    return git.ref_commit(repo.common_dir, target) or repo.head, target


def named_file(run: str) -> str:
    """The changelog file that the plan of a run names; empty without one."""
    from fanout.candidates import read_run

    return str(read_run(run, "plan.json").get("changelog_file") or "") if run else ""


def read_book(repo: Repository, commit: str, convention: Convention) -> bytes | None:
    """The changelog file of a commit; None where it is not there, or not what entries go into."""
    from fanout import git

    if convention.fragments:
        return None
    name = f"{commit}:{convention.path}"
    return git.read_objects(repo.common_dir, [name])[name]


def row_of(candidate: Candidate, found: Found) -> dict[str, Any]:
    """The row of `data.candidates`."""
    return {
        "name": candidate.name,
        "entries": [
            {"source": entry.source, "path": entry.path, "text": entry.text}
            for entry in found.entries
        ],
        "in_branch": found.paths,
        "problems": [{"code": code, "message": message} for code, message in found.problems],
        "missing": found.missing,
    }


def lines_of(
    convention: Convention, rows: list[tuple[Candidate, Found]], made: Written
) -> list[str]:
    """The answer for a person."""
    told = f" (told by {convention.found_in})" if convention.found_in else " (there is none yet)"
    kind = convention.path if convention.kind == "book" else convention.kind
    where = "" if convention.kind == "book" else f", fragments in {convention.path}/"
    lines = [f"changelog: {kind}{where}{told}"]
    for candidate, found in rows:
        told_by = [f"{entry.path} ({entry.source})" for entry in found.entries]
        told_by += [f"{path} (on the branch)" for path in found.paths]
        lines += [f"{candidate.name}: {place}" for place in told_by]
        lines += [f"{candidate.name}: refused: {message}" for _, message in found.problems]
        if found.missing and not found.problems:
            lines.append(f"{candidate.name}: no entry")
    for path in made.files:
        lines.append(f"would write {path}")
    lines += [f"  + {first_line(text)}" for text in made.added]
    lines += [f"  = {first_line(text)} (there already)" for text in made.duplicates]
    return lines


def first_line(text: str) -> str:
    """How an entry begins."""
    return shorten(text.split("\n")[0], 160)
