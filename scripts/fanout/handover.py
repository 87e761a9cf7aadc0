"""After a merge: where the work stands, what comes next, and how an integration is taken back."""

from __future__ import annotations

from fanout import approvals, git, integrations, publishing, records
from fanout.building import meet
from fanout.candidates import Candidate, Choice
from fanout.changelog import own_place
from fanout.conventions import convention_of
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.integrating import Outcome, Wish, abandon, is_merged, lock, ready, require_tip, settle
from fanout.integrations import Integration, Merged, Signing
from fanout.output import next_action, path_list
from fanout.publishing import Check, Checkout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TITLE = "# Integration report"
# Codes of work that is only not looked at yet; the others block.
UNREVIEWED = frozenset(["unapproved", "approval-void"])
AGAIN = "run the same `merge` or `undo` again, with its checks; it says what it closed"


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


class Clash(NamedTuple):
    """Two candidates that are ready and do not go together, and the files in which they meet."""

    names: tuple[str, str]
    paths: tuple[str, ...]


class Report(NamedTuple):
    """All that there is to say to whoever goes on."""

    original: str
    current: str
    rows: list[Row]
    integrations: list[Integration]
    clashes: list[Clash]
    unfinished: list[dict[str, str]]
    damaged: list[str]
    checkout_trouble: str


def take_stock(
    repo: git.Repository,
    found: list[Candidate],
    target: str,
    wish: Wish,
    unfinished: list[dict[str, str]],
    errors: list[SkillError],
) -> Report:
    """Look at all candidates; changes nothing.

    `unfinished` are tasks that left no candidate, `errors` are of records that cannot be read.
    """
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
    clashes: list[Clash] = []
    for ref, tip in tips.items():
        here = [row for row in rows if (row.candidate.target or target) == ref]
        able = [row for row in here if row.state == "ready"]
        stopped, met = foresee(repo, [row.candidate for row in able], tip, wishes[ref])
        for row in able:
            if row.candidate.name in stopped:
                rows[rows.index(row)] = stopped_row(row, ref, stopped[row.candidate.name])
        clashes += met
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
        clashes=clashes,
        unfinished=unfinished,
        damaged=[error.message for error in (*errors, *damaged)],
        checkout_trouble=trouble,
    )


def foresee(
    repo: git.Repository, able: list[Candidate], tip: str, wish: Wish
) -> tuple[dict[str, tuple[str, ...]], list[Clash]]:
    """By name the files in which work conflicts with its branch, and who conflicts with whom."""
    if not able:
        return {}, []
    seen = meet(repo, able, tip)
    # A merge takes entries out of a conflict in it.
    book = wish.recipe.convention.path if wish.recipe.convention.kind == "book" else ""

    def files(merged: Merged) -> tuple[str, ...]:
        conflict = merged.outcome == "conflict"
        return tuple(path for path in merged.paths if path != book) if conflict else ()

    stopped = {name: paths for name, one in seen.targets.items() if (paths := files(one))}
    met = [
        Clash(pair, paths)
        for pair, one in seen.pairs.items()
        if (paths := files(one)) and stopped.keys().isdisjoint(pair)
    ]
    return stopped, met


def stopped_row(row: Row, target: str, paths: tuple[str, ...]) -> Row:
    """A row that was ready, blocked by what it would conflict with."""
    short = target.removeprefix("refs/heads/")
    why = f"conflicts with {short}: {path_list(paths, 5)}"
    more = {"paths": list(paths), "with": [short]}
    return row._replace(state="blocked", code="conflict", why=why, more=more)


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
    for (one, other), paths in report.clashes:
        why = (
            f"{one} and {other} conflict in {path_list(paths, 5)}: say which is merged first; "
            "the other is then solved on its branch"
        )
        actions.append(next_action("decide", None, why))
    apart = {name for clash in report.clashes for name in clash.names}
    able = [
        row.candidate
        for row in report.rows
        if row.state == "ready" and row.candidate.name not in apart
    ]
    for words, names in merge_groups(able, choice):
        why = f"approved: {names}{choice.check_advice}"
        actions.append(next_action("merge", command("merge", *words), why))
    for task in report.unfinished:
        why = f"{task['name']}: {task['what']}; {choice.run}/REPORT.md says how its run goes on"
        actions.append(next_action("decide", None, why))
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


def solve_text(kind: str, name: str) -> str:
    """How a conflict is solved, of a `worker`, a `task` of a run or a plain `branch`."""
    who = {
        "worker": "let its agent (`agent_workers.py send`, or `resume` once it has ended)",
        "task": f"let its agent (`RESUME=1 RERUN={name}`), or somebody,",
    }.get(kind, "let whoever made it")
    return (
        f"{who} solve that on its branch: merge the branch, the side that a person chose, an entry "
        "to fit, commit; then review and approve the new commit. Or reject it: its commits stay"
    )


def again_text(kind: str, name: str) -> str:
    """What becomes of rejected work."""
    return {
        "worker": (
            "have it done again (`agent_workers.py send` or `resume`), or give it up: "
            "`agent_workers.py cleanup NAME --discard` saves it first"
        ),
        "task": f"have it done again: `RESUME=1 RERUN={name}`",
    }.get(kind, "have it done again on that branch")


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
        why = f"{name} {row.why}; {solve_text(row.candidate.kind, name)}"
        return next_action("forecast", command("forecast", *words), why)
    if row.code in ("check-failed", "base-red"):
        return next_action("read-log", f"cat {quote(row.more['log'])}", f"{name}: {row.why}")
    if row.code == "rejected":
        why = f"{name}: {row.why}; {again_text(row.candidate.kind, name)}"
        return next_action("decide", None, why)
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
        ]
        + [
            {"name": task["name"], "code": "not-done", "why": task["what"]}
            for task in report.unfinished
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
        ]
        + report.unfinished,
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
    lines.append(f"- state: {state_text(data)}")
    for title, rows in (
        ("Complete", [f"`{row['name']}` ({row['head'][:12]})" for row in data["complete"]]),
        ("Missing", [f"`{row['name']}`: {row['what']}" for row in data["missing"]]),
        ("Blockers", [f"`{row['name']}`: {blocker_text(row)}" for row in data["blocked"]]),
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
        ("Interrupted", [f"{name}: {AGAIN}" for name in data["unfinished"]]),
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


def blocker_text(row: dict[str, Any]) -> str:
    """What blocks one, in words."""
    code, why = row["code"], row["why"]
    return why if why.startswith(f"{code}:") else f"{code}: {why}"


def state_text(data: dict[str, Any]) -> str:
    """Where all of it stands, in words."""
    if data["missing"]:
        return "not all work is merged"
    return "all work is merged" if data["complete"] else "nothing is waiting to be merged"


# --- Undoing, by the commits that were recorded ---------------------------------------------


KEPT = "refs/agent-workers/undone"


class Way(NamedTuple):
    """How an integration is taken back: the commit that the branch goes to, and how it came.

    `back` says that the branch moves back; else `commits` are the reverts that were made.
    """

    commit: str
    back: bool
    commits: list[str]


def undo(repo: git.Repository, integration_id: str, timeout: float, *, dry_run: bool) -> Outcome:
    """Take back an integration, by default the newest that stands.

    The branch moves back when nothing came after and nobody fetched it; otherwise revert commits
    are made, checked as the integration was, and published. Raises SkillError
    `unknown-integration`, `nothing-to-undo`, `already-undone`, `not-in-branch`, `local-edits`,
    `git-locked` (exit 3), `busy` (exit 11), `conflict`, `check-failed` (exit 10).
    """
    with lock(repo.common_dir):
        begun = open_undos(repo.common_dir)
        notes = [] if dry_run else settle(repo)
        if not integration_id and not dry_run:
            require_undone(repo.common_dir, begun)
        target, tip = choose(repo, integration_id)
        checkout = publishing.checkout_of(repo, target.branch)
        if dry_run:
            with integrations.scratch(repo.common_dir) as env:
                way = find_way(repo, target, tip, env)
            return Outcome(plan(target, tip, way, checkout), [], [], [], notes)
        way = find_way(repo, target, tip, {})
        publishing.require_unlocked(repo, target.branch, checkout)
        publishing.require_free(
            checkout, publishing.changed_paths(repo.common_dir, tip, way.commit)
        )
        made = plan(target, tip, way, checkout)
        integrations.save(repo.common_dir, made)
        try:
            with publishing.marked(made.id):
                done, checks = carry_out(repo, made, target, way, timeout)
        except BaseException:
            abandon(repo, made.id)
            raise
        return Outcome(done, checks, [], [], notes)


def open_undos(common_dir: str) -> list[str]:
    """The ids of undos that were killed."""
    everything, _ = integrations.load_all(common_dir)
    return [i.id for i in everything if i.undoes and i.state in integrations.UNFINISHED]


def require_undone(common_dir: str, begun: list[str]) -> None:
    """Demand that none of these undos had come through: called again, it is not to go further.

    Raises SkillError `already-undone` (exit 3).
    """
    for made in [integrations.load(common_dir, each) for each in begun]:
        if made.state == "published":
            raise refused(
                "already-undone",
                f"the undo that was interrupted had taken back {made.undoes}",
                "give an integration's id to take back another",
            )


def choose(repo: git.Repository, integration_id: str) -> tuple[Integration, str]:
    """The integration to take back, and the commit that its branch is at."""
    everything, damaged = integrations.load_all(repo.common_dir)
    if damaged and not integration_id:
        # The newest may be among them, and nobody asked for an older one.
        raise damaged[0]
    gone = integrations.undone(everything)
    if integration_id:
        target = integrations.load(repo.common_dir, integration_id)
    else:
        standing = [
            i for i in everything if i.state == "published" and not i.undoes and i.id not in gone
        ]
        published = [i for i in everything if i.state == "published"]
        if published and published[-1].undoes:
            # Whoever only calls it again does not want the one before taken back as well.
            raise refused(
                "already-undone",
                f"the newest integration, {published[-1].undoes}, was taken back already",
                "give the id of an earlier one to take that back",
            )
        if not standing:
            raise refused("nothing-to-undo", "no integration stands that could be taken back")
        target = standing[-1]
    if target.id in gone:
        raise refused("already-undone", f"the integration {target.id} was taken back already")
    if target.state != "published" or target.undoes:
        raise refused("nothing-to-undo", f"the integration {target.id} is {target.state}")
    tip = require_tip(repo, target.branch)
    if not integrations.published_in(repo.common_dir, [target], target.branch, tip, everything):
        raise refused(
            "not-in-branch",
            f"{target.after[:12]} is not in {target.short_branch!r} any more",
            "the branch was moved by other means; nothing is left to take back",
        )
    return target, tip


def find_way(repo: git.Repository, target: Integration, tip: str, env: dict[str, str]) -> Way:
    """How to take an integration back from where its branch is now."""
    common = repo.common_dir
    if tip == target.after and not is_fetched(common, target.after):
        return Way(target.before, True, [])
    current = tip
    made: list[str] = []
    signing = integrations.signing_of(common)
    for commit in reversed(main_line(common, target)):
        merged = integrations.apply_change(common, current, commit, f"{commit}^1", env)
        if merged.outcome != "clean":
            raise conflicting(target, merged)
        if merged.tree == git.tree_of(common, current, env):
            continue
        current = revert(common, current, commit, merged.tree, target, signing, env)
        made.append(current)
    if not made:
        raise refused("nothing-to-undo", f"nothing of {target.id} is left in the branch")
    return Way(current, False, made)


def is_fetched(common_dir: str, commit: str) -> bool:
    """Whether a remote-tracking branch has a commit: others may have built on it."""
    words = ["for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes"]
    return bool(git.require_git(common_dir, *words).text.strip())


def main_line(common_dir: str, target: Integration) -> list[str]:
    """The commits that an integration added to its branch, the oldest first."""
    words = ["rev-list", "--first-parent", "--reverse", f"{target.before}..{target.after}"]
    return git.require_git(common_dir, *words).text.split()


def revert(
    common_dir: str,
    onto: str,
    commit: str,
    tree: str,
    target: Integration,
    signing: Signing,
    env: dict[str, str],
) -> str:
    """Make the commit that takes one back."""
    words = ["-c", "log.showSignature=false", "log", "-1", "--encoding=UTF-8", "--format=%s"]
    subject = git.require_git(common_dir, *words, commit).stdout.strip()
    text = b'Revert "' + subject + b'"\n\n'
    text += f"This takes back commit {commit}.\nIntegration: {target.id}\n".encode()
    return integrations.write_commit(common_dir, tree, [onto], text, signing, env=env)


def conflicting(target: Integration, merged: Merged) -> SkillError:
    """What came after an integration stands in the way of taking it back."""
    listed = path_list(merged.paths, 10) or merged.why
    row: dict[str, Any] = {
        "name": target.id,
        "code": "conflict",
        "why": f"later changes touch the same places: {listed}",
        "paths": list(merged.paths),
    }
    return SkillError(
        "conflict",
        f"{target.id} cannot be taken back by itself: {row['why']}",
        "revert the later changes first, or resolve it by hand with git revert",
        exit_code=ExitCode.BLOCKED,
        data={"blocked": [row]},
    )


def plan(target: Integration, tip: str, way: Way, checkout: Checkout | None) -> Integration:
    """The record of taking an integration back, before it is done."""
    made = integrations.new(target.branch, tip, "undo", undoes=target.id)
    return made._replace(
        after=way.commit,
        checkout=checkout.path if checkout else "",
        changelog={"reverts": way.commits, "moved_back": way.back},
    )


def carry_out(
    repo: git.Repository,
    made: Integration,
    target: Integration,
    way: Way,
    timeout: float,
) -> tuple[Integration, list[Check]]:
    """Check what was made, and publish it."""
    common = repo.common_dir
    checks: list[Check] = []
    if way.back:
        # The branch no longer names them; nothing that anybody made is to be lost.
        git.require_git(common, "update-ref", f"{KEPT}/{target.id}", target.after)
    else:
        commands = [str(row["command"]) for row in target.checks]
        tree = publishing.tree_path(repo, made.id, 1)
        made = made._replace(tree=tree)
        integrations.save(common, made)
        logs = f"{integrations.folder(common, made.id)}/checks"
        checks = publishing.run_checks(
            repo, way.commit, commands, tree=tree, logs=logs, timeout=timeout
        )
        if not all(check.passed for check in checks):
            failed = checks[-1]
            raise SkillError(
                "check-failed",
                f"`{failed.command}` fails without {target.id}; the branch was not moved",
                f"see {failed.log}",
                exit_code=ExitCode.BLOCKED,
                data={"checks": [check.to_json() for check in checks]},
            )
    rows = [check.to_json() for check in checks]
    made = made._replace(state="publishing", tree="", checks=rows)

    def begin(checkout: str) -> None:
        integrations.save(common, made._replace(checkout=checkout))

    why = f"agent-workers: undo of {target.id}"
    if not publishing.publish(repo, made.branch, made.before, made.after, why, begin):
        raise SkillError(
            "branch-moved",
            f"{made.short_branch!r} moved meanwhile; nothing was taken back",
            "run this again",
            exit_code=ExitCode.BUSY,
        )
    made = made._replace(state="published", ended_at=records.now())
    integrations.save(common, made)
    return made, checks
