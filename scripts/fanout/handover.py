"""Where the work stands: what is merged, what is not, what blocks it, and what to do next."""

from __future__ import annotations

from fanout import approvals, git, integrations, publishing
from fanout.candidates import Candidate, Choice
from fanout.changelog import own_place
from fanout.conventions import convention_of
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.integrating import Wish, is_merged, ready
from fanout.integrations import Integration
from fanout.output import next_action

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TITLE = "# Integration report"
# Codes of work that is only not looked at yet; the others block.
UNREVIEWED = frozenset(["unapproved", "approval-void"])


class Row(NamedTuple):
    """One candidate: `state` is `merged`, `ready`, `unreviewed` or `blocked`.

    `code` and `why` say what keeps it; `integration` is the id of what took it in, or what it
    failed in last.
    """

    candidate: Candidate
    state: str
    code: str
    why: str
    integration: str
    more: dict[str, Any]


class Report(NamedTuple):
    """All that there is to say to whoever goes on."""

    original: str
    current: str
    rows: list[Row]
    integrations: list[Integration]
    damaged: list[str]
    checkout_trouble: str


def take_stock(
    repo: git.Repository,
    found: list[Candidate],
    target: str,
    wish: Wish,
    errors: list[SkillError],
) -> Report:
    """Look at all candidates; changes nothing. `errors` are of records that cannot be read."""
    everything, damaged = integrations.load_all(repo.common_dir)
    targets = dict.fromkeys(c.target or target for c in found)
    tips = {ref: git.ref_commit(repo.common_dir, ref) or "" for ref in targets}
    errors = list(errors)
    wishes = {ref: with_convention(repo, wish, tip, errors) for ref, tip in tips.items()}
    names = [candidate.name for candidate in found]
    rows = [
        row_of(repo, c, ref, tips[ref], wishes[ref], everything, names)
        for c in found
        for ref in (c.target or target,)
    ]
    trouble = ""
    try:
        publishing.checkout_of(repo, target)
    except SkillError as error:
        trouble = error.message
    return Report(
        original=target,
        current=repo.branch or "",
        rows=rows,
        integrations=everything,
        damaged=[error.message for error in (*errors, *damaged)],
        checkout_trouble=trouble,
    )


def with_convention(repo: git.Repository, wish: Wish, tip: str, errors: list[SkillError]) -> Wish:
    """A wish that knows how the branch which the work goes onto keeps its changelog.

    Settings that cannot be read, which a merge refuses, are added to the errors.
    """
    if not tip:
        return wish
    try:
        convention = convention_of(repo.common_dir, tip, wish.book)
    except SkillError as error:
        errors.append(error)
        return wish
    return wish._replace(recipe=wish.recipe._replace(convention=convention))


def row_of(
    repo: git.Repository,
    candidate: Candidate,
    target: str,
    tip: str,
    wish: Wish,
    everything: list[Integration],
    names: list[str],
) -> Row:
    """One candidate as it stands."""
    mine = integrations.of_head(everything, candidate.branch, candidate.head)
    published = [i for i in mine if i.state == "published"]
    if is_merged(repo, candidate, target, tip):
        return Row(candidate, "merged", "", "", published[-1].id if published else "", {})
    # A reason that was given once for having no changelog entry still holds.
    reasons = {n: why for i in mine for n, why in i.changelog.get("not_needed", {}).items()}
    part, row = ready(repo, candidate, target, tip, wish._replace(exempt=reasons), names)
    if row is not None:
        return refused_row(candidate, row)
    assert part is not None
    # What failed last may fail again; it is told until something is tried anew.
    failed = [i for i in mine if i.state == "failed" and i.branch == target][-1:]
    for integration in failed:
        # A branch that is red by itself blocks all, until it moves.
        names = [candidate.name, *([integration.short_branch] if integration.before == tip else [])]
        for blocked in integration.blocked:
            if blocked["name"] in names:
                more = {k: v for k, v in blocked.items() if k not in ("name", "code", "why")}
                return Row(
                    candidate, "blocked", blocked["code"], blocked["why"], integration.id, more
                )
    return Row(candidate, "ready", "", "", "", {})


def refused_row(candidate: Candidate, row: dict[str, Any]) -> Row:
    """The row for a candidate that a merge refuses, by what it says of it."""
    more = {key: value for key, value in row.items() if key not in ("name", "code", "why")}
    state = "unreviewed" if row["code"] in UNREVIEWED else "blocked"
    return Row(candidate, state, row["code"], row["why"], "", more)


# --- What to do next ------------------------------------------------------------------------


def next_actions(
    report: Report, choice: Choice, command: Callable[..., str]
) -> tuple[dict[str, Any], ...]:
    """The commands that bring the work forward, in the order in which to run them.

    `command(*words)` is a line to paste.
    """
    actions: list[dict[str, Any]] = []
    for row in report.rows:
        action = action_for(row, words_of(row.candidate, choice), command)
        actions += [action] if action else []
    able = [row.candidate for row in report.rows if row.state == "ready"]
    for words, names in merge_groups(able, choice):
        actions.append(next_action("merge", command("merge", *words), f"approved: {names}"))
    return tuple(actions)


def merge_groups(able: list[Candidate], choice: Choice) -> list[tuple[list[str], str]]:
    """The words for one `merge` of each kind of candidates, and their names."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in able:
        # The name or branch comes first, what is the same for several after it.
        shared = tuple(words_of(candidate, choice)[2 if is_branch(candidate, choice) else 1 :])
        groups.setdefault(shared, []).append(candidate)
    found: list[tuple[list[str], str]] = []
    for shared, members in groups.items():
        own = [word for c in members for word in words_of(c, choice)[: -len(shared) or None]]
        found.append(([*own, *shared], ", ".join(c.name for c in members)))
    return found


def is_branch(candidate: Candidate, choice: Choice) -> bool:
    """Whether a candidate is named by --branch; so is a task whose run was not given."""
    return candidate.kind != "worker" and not (candidate.kind == "task" and choice.run)


def words_of(candidate: Candidate, choice: Choice) -> list[str]:
    """The words that mean one candidate, whatever the others are chosen by."""
    if is_branch(candidate, choice):
        return ["--branch", candidate.branch, "--base", choice.base or candidate.base]
    return choice.words([candidate.name])


def is_accepted(candidate: Candidate) -> bool:
    """Whether somebody has approved a candidate's tip, whatever else keeps it."""
    review = approvals.load(candidate.record, candidate.head) if candidate.head else None
    return review is not None and review.verdict == "approved"


def action_for(row: Row, words: list[str], command: Callable[..., str]) -> dict[str, Any] | None:
    """What to do about one candidate, or None where nothing is to be done by itself."""
    name = row.candidate.name
    if row.state in ("merged", "ready"):
        return None
    if row.code in UNREVIEWED:
        return next_action("review", command("review", *words), f"look at {name}: {row.why}")
    if row.code == "not-committed":
        return next_action("collect", command("collect", *words), f"{name}: {row.why}")
    if row.code == "taken-back":
        again = command("merge", *words, "--strategy", "cherry-pick")
        return next_action("merge", again, f"{name}: {row.why}")
    if row.code in ("conflict", "cannot-merge"):
        return next_action("forecast", command("forecast", *words), f"{name} {row.why}")
    if row.code in ("check-failed", "base-red"):
        return next_action("read-log", f"cat {quote(row.more['log'])}", f"{name}: {row.why}")
    if row.code == "no-changelog-entry":
        return next_action("decide", None, f"{name}: {row.why}: {entry_wanted(row.candidate)}")
    return next_action("decide", None, f"{name}: {row.why}")


def entry_wanted(candidate: Candidate) -> str:
    """How a missing changelog entry is given, or is said not to be needed."""
    option = f"merge with --no-changelog-needed {quote(candidate.name + '=REASON')}"
    if not candidate.worktree:
        return f"commit one on its branch and approve that, or {option}"
    path = f"{candidate.worktree}/{candidate.changelog or own_place(candidate.name)}"
    return f"write it to {quote(path)}, or {option}"


def quote(word: str) -> str:
    """A word for a line to paste."""
    from fanout.workers import quote_for_bash

    return quote_for_bash(word)


# --- Answers --------------------------------------------------------------------------------


def to_json(report: Report) -> dict[str, Any]:
    """The `data` of a report."""
    checks = [
        {"integration": i.id, **check} for i in report.integrations[-5:] for check in i.checks
    ]
    return {
        "original_branch": report.original.removeprefix("refs/heads/"),
        "current_branch": report.current.removeprefix("refs/heads/") or None,
        "branches": [
            {**row.candidate.to_json(), "state": row.state}
            for row in report.rows
            if row.state in ("ready", "merged") or is_accepted(row.candidate)
        ],
        "blocked": [
            {"name": row.candidate.name, "code": row.code, "why": row.why, **row.more}
            for row in report.rows
            if row.state == "blocked"
        ],
        "complete": [
            {
                "name": row.candidate.name,
                "branch": row.candidate.branch,
                "head": row.candidate.head,
                "integration": row.integration or None,
            }
            for row in report.rows
            if row.state == "merged"
        ],
        "missing": [
            {"name": row.candidate.name, "what": row.why or "approved, not merged yet"}
            for row in report.rows
            if row.state != "merged"
        ],
        "checks": checks,
        "not_needed": {
            name: reason
            for i in report.integrations
            if i.state == "published"
            for name, reason in i.changelog.get("not_needed", {}).items()
        },
        "unfinished": [i.id for i in report.integrations if i.state in integrations.UNFINISHED],
        "damaged": report.damaged,
    }


def text_of(data: dict[str, Any], actions: tuple[dict[str, Any], ...]) -> str:
    """A report for a person, as Markdown."""
    lines = [TITLE, ""]
    lines.append(f"- original branch: `{data['original_branch']}`")
    lines.append(f"- current branch: `{data['current_branch'] or 'none (detached)'}`")
    done = not data["missing"] and bool(data["complete"])
    lines.append(f"- state: {'all work is merged' if done else 'not all work is merged'}")
    for title, rows in (
        ("Complete", [f"`{row['name']}` ({row['head'][:12]})" for row in data["complete"]]),
        ("Missing", [f"`{row['name']}`: {row['what']}" for row in data["missing"]]),
        ("Blockers", [f"`{row['name']}`: {row['code']}: {row['why']}" for row in data["blocked"]]),
        (
            "Branches with accepted work",
            [f"`{row['branch']}` at {row['head'][:12]} ({row['state']})"
             for row in data["branches"]],
        ),
        (
            "Checks already run",
            [f"`{row['command']}`: {'passed' if row['passed'] else 'FAILED'} ({row['log']})"
             for row in data["checks"]],
        ),
        (
            "Without a changelog entry",
            [f"`{name}`: {reason}" for name, reason in data["not_needed"].items()],
        ),
        ("Interrupted", [f"{name}: run `merge` or `undo` again" for name in data["unfinished"]]),
        ("Damaged records", data["damaged"]),
    ):  # fmt: skip
        if rows:
            lines += ["", f"## {title}", "", *(f"- {row}" for row in rows)]
    commands = [(row["why"], row["command"]) for row in actions]
    if commands:
        lines += ["", "## Next", ""]
        for why, command in commands:
            lines += [f"- {why}", *([f"  `{command}`"] if command else [])]
    return "\n".join(lines) + "\n"
