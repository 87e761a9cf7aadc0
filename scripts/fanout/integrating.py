"""Merge reviewed work: refuse, build, check the combined result, publish it, or say why not."""

from __future__ import annotations

import contextlib
import os
from itertools import combinations

from fanout import (
    approvals,
    building,
    changelog,
    git,
    integrations,
    proctree,
    publishing,
    records,
    worktrees,
)
from fanout import candidates as offers
from fanout import workers as life
from fanout.building import Built, Part, Recipe
from fanout.candidates import Candidate
from fanout.changelog import tool_of
from fanout.conventions import convention_of
from fanout.errors import ExitCode, SkillError
from fanout.fields import NamedTuple
from fanout.integrations import Integration
from fanout.output import path_list, say
from fanout.publishing import Check, Checkout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

# How often a result is built anew because the branch moved while it was checked.
ATTEMPTS = 3
# How many combinations may be checked to find out what makes the result red.
SEARCH_LIMIT = 48


class Wish(NamedTuple):
    """What is asked of a merge.

    `commands` are the checks in their order, `timeout` the seconds that each may take, and
    `exempt` the reasons by name for having no changelog entry. `book` is the changelog file that a
    plan names, or empty.
    """

    commands: list[str]
    timeout: float
    recipe: Recipe
    exempt: dict[str, str]
    dry_run: bool
    book: str = ""


class Outcome(NamedTuple):
    """How a merge ended. `rest` are the names that could be merged without what blocks it."""

    integration: Integration
    checks: list[Check]
    already: list[str]
    rest: list[str]
    notes: list[str]


class Blocked(Exception):  # noqa: N818 - an answer, no fault
    """What keeps the work from being merged, found after the refusals: a person must decide.

    `rest` are the names that could be merged without it, as far as that is known.
    """

    def __init__(self, rows: list[dict[str, Any]], rest: list[str]) -> None:
        super().__init__(rows[0]["why"])
        self.rows = rows
        self.rest = rest


def lock(common_dir: str) -> AbstractContextManager[None]:
    """Hold the integrations of a repository. Raises SkillError `busy` (exit 11)."""
    return records.lock(common_dir, "integration", wait=0.5, what="an integration")


def merge(repo: git.Repository, found: list[Candidate], target: str, wish: Wish) -> Outcome:
    """Merge candidates, all or none.

    Raises SkillError with `data.blocked` (exit 3) before anything is begun: `not-ready`,
    `local-edits` and others; `busy` (exit 11). What is found out later is in the outcome.
    """
    with lock(repo.common_dir):
        notes = [] if wish.dry_run else settle(repo)
        checkout = publishing.checkout_of(repo, target)
        tip = require_tip(repo, target)
        convention = convention_of(repo.common_dir, tip, wish.book)
        wish = wish._replace(recipe=wish.recipe._replace(convention=convention))
        parts, already = require_ready(repo, found, target, tip, wish)
        integration = integrations.new(target, tip, wish.recipe.strategy)
        integration = integration._replace(checkout=checkout.path if checkout else "")
        if wish.dry_run or not parts:
            with integrations.scratch(repo.common_dir) as env:
                return foresee(repo, integration, parts, already, wish, checkout, env)
        late = [part.candidate.name for part in parts if part.late]
        if late:
            notes.append(f"written after the approval: the changelog entry of {', '.join(late)}")
        attempt = Attempt(repo, integration, parts, wish, checkout)
        try:
            with publishing.marked(integration.id):
                integration = attempt.run()
        except Blocked as blocked:
            integration = attempt.end("failed", blocked=blocked.rows)
            notes += attempt.notes
            return Outcome(integration, attempt.checks, already, blocked.rest, notes)
        except BaseException:
            abandon(repo, integration.id)
            raise
        return Outcome(integration, attempt.checks, already, [], notes + attempt.notes)


def require_tip(repo: git.Repository, target: str) -> str:
    """The commit that the integration branch is at."""
    tip = git.ref_commit(repo.common_dir, target)
    if tip is None:
        raise SkillError("git-failed", f"{target} is no longer there")
    return tip


# --- Refusals -------------------------------------------------------------------------------


def require_ready(
    repo: git.Repository, found: list[Candidate], target: str, tip: str, wish: Wish
) -> tuple[list[Part], list[str]]:
    """The parts to merge, and the names of those that are merged already.

    Raises SkillError `not-ready` (exit 3) with a row in `data.blocked` for each that is not.
    """
    parts: list[Part] = []
    already: list[str] = []
    blocked: list[dict[str, Any]] = []
    for candidate in found:
        if is_merged(repo, candidate, target, tip):
            already.append(candidate.name)
            continue
        part, row = ready(repo, candidate, target, tip, wish, [c.name for c in found])
        if part is not None:
            parts.append(part)
        blocked += [row] if row else []
    if wish.recipe.strategy in ("merge", "squash"):
        blocked += foreign_rows(repo, parts, target, tip)
    if blocked:
        first = blocked[0]
        more = f" (and {len(blocked) - 1} more)" if len(blocked) > 1 else ""
        raise SkillError(
            first["code"] if len({row["code"] for row in blocked}) == 1 else "not-ready",
            f"{first['name']}: {first['why']}{more}",
            "\n".join(
                [*(f"{row['name']}: {row['why']}" for row in blocked[1:6]), "nothing was begun"]
            ),
            exit_code=ExitCode.REFUSED,
            data={"blocked": blocked, "merged": [], "checks": []},
        )
    return parts, already


def foreign_rows(
    repo: git.Repository, parts: list[Part], target: str, tip: str
) -> list[dict[str, Any]]:
    """A row for each part that is built on commits which nobody has approved.

    What lies below its base was not reviewed, and would come along.
    """
    rows: list[dict[str, Any]] = []
    for part in parts:
        if part.candidate.base == tip:
            # Nothing before it can be foreign; git need not be asked.
            continue
        known = [f"^{other.candidate.head}" for other in parts if other is not part]
        words = ["rev-list", "-n", "5", part.candidate.base, f"^{tip}", *known]
        found = git.require_git(repo.common_dir, *words).text.split()
        if found:
            short = target.removeprefix("refs/heads/")
            listed = ", ".join(commit[:12] for commit in found)
            why = f"its base holds commits that are not in {short!r} and not approved: {listed}"
            rows.append({"name": part.candidate.name, "code": "base-not-in-target", "why": why})
    return rows


def is_merged(repo: git.Repository, candidate: Candidate, target: str, tip: str) -> bool:
    """Whether a candidate's commits are in the integration branch: by ancestry or by the records.

    One without any commit of its own is not merged, and what was taken back is neither.
    """
    if not candidate.head or candidate.ref == target:
        return False
    # Asked first: --base main names a commit that has it all, once it is merged there.
    recorded = integrations.verdict(repo.common_dir, target, tip, candidate.branch, candidate.head)
    if recorded is not None:
        return recorded
    inside = git.is_ancestor(repo.common_dir, candidate.head, tip)
    return inside and own_commits(repo, candidate) > 0


def own_commits(repo: git.Repository, candidate: Candidate) -> int:
    """How many commits a candidate has beyond its base."""
    words = ["rev-list", "--count", f"{candidate.base}..{candidate.head}"]
    return int(git.require_git(repo.common_dir, *words).text)


def ready(
    repo: git.Repository,
    candidate: Candidate,
    target: str,
    tip: str,
    wish: Wish,
    others: list[str] | None = None,
) -> tuple[Part | None, dict[str, Any] | None]:
    """A candidate as a part to merge, or the row that says why it is not ready.

    `others` are the names of all that are asked for.
    """

    def row(code: str, why: str, **more: Any) -> tuple[None, dict[str, Any]]:
        return None, {"name": candidate.name, "code": code, "why": why, **more}

    if not candidate.head:
        return row("branch-missing", f"the branch {candidate.branch!r} is not there")
    if candidate.ref == target:
        return row("same-branch", "it is the integration branch itself")
    other = git.symbolic_target(repo.common_dir, candidate.ref)
    if other is not None:
        return row("branch-replaced", f"its branch stands for {other}")
    try:
        status = offers.leftovers(repo, candidate)
    except SkillError as error:
        return row(error.code, error.message)
    dirty = approvals.dirty_files(candidate, status)
    review = approvals.load(candidate.record, candidate.head)
    if review is not None and review.verdict == "rejected":
        return row("rejected", f"rejected: {review.note}")
    if own_commits(repo, candidate) == 0:
        return row("no-commits", f"nothing committed, {len(dirty)} dirty files", paths=dirty)
    if dirty:
        why = f"{len(dirty)} files are not committed: {path_list(dirty, 5)}"
        return row("not-committed", why, paths=dirty)
    found = changelog.find(repo, candidate, others, wish.recipe.convention)
    standing = approvals.standing(candidate, found.digest)
    if standing.state != "approved" or standing.approval is None:
        code = {"void": "approval-void", "rejected": "rejected"}.get(standing.state, "unapproved")
        return row(code, standing.why)
    if standing.approval.tree != git.tree_of(repo.common_dir, candidate.head):
        return row("approval-void", "the tree of its commit is not the one that was approved")
    outside = outside_of_scope(repo, candidate, standing.approval)
    if outside:
        why = f"changes outside of what it owns: {path_list(outside, 5)}"
        return row("out-of-scope", why, paths=outside)
    if found.problems:
        code, why = found.problems[0]
        return row(code, why)
    if not found.entries and not found.in_branch and not wish.exempt.get(candidate.name):
        return row("no-changelog-entry", "it has no changelog entry")
    applies = wish.recipe.strategy in ("rebase", "cherry-pick")
    if not applies and git.is_ancestor(repo.common_dir, candidate.head, tip):
        why = "its commits are in the branch's history, but were taken back there"
        return row("taken-back", f"{why}; --strategy cherry-pick applies them again")
    if applies and integrations.commits_between(
        repo.common_dir, candidate.base, candidate.head, "--merges"
    ):
        return row("merge-commits", f"it holds merge commits, which {wish.recipe.strategy} loses")
    late = bool(found.digest) and not standing.approval.changelog
    return Part(candidate, standing.approval, found.entries, late), None


def outside_of_scope(
    repo: git.Repository, candidate: Candidate, approval: approvals.Approval
) -> list[str]:
    """The files outside of what a candidate owns that its approval does not allow."""
    if not candidate.owns:
        return []
    allowed = {row["path"] for row in approval.out_of_scope}
    outside = offers.outside_commits(repo, candidate, candidate.base)
    return [path for path in outside if path not in allowed]


def foresee(
    repo: git.Repository,
    integration: Integration,
    parts: list[Part],
    already: list[str],
    wish: Wish,
    checkout: Checkout | None,
    env: dict[str, str],
) -> Outcome:
    """What a merge would do, as far as that can be known without running the checks."""
    built = building.build(repo.common_dir, integration.before, parts, wish.recipe, env)
    if built.stopped is not None:
        rows, rest = conflicts(repo.common_dir, integration.before, parts, built, wish.recipe, env)
        integration = integration._replace(state="failed", blocked=rows)
        return Outcome(integration, [], already, rest, [])
    if parts:
        common = repo.common_dir
        paths = publishing.changed_paths(common, integration.before, built.commit, env)
        publishing.require_free(checkout, paths)
    integration = integration._replace(
        merged=building.rows(parts, built), changelog=changelog_json(built, wish)
    )
    return Outcome(integration, [], already, [], [])


# --- One attempt ----------------------------------------------------------------------------


class Attempt:
    """The part of a merge that changes something, with its record."""

    def __init__(
        self,
        repo: git.Repository,
        integration: Integration,
        parts: list[Part],
        wish: Wish,
        checkout: Checkout | None,
    ) -> None:
        self.repo = repo
        self.integration = integration
        self.parts = parts
        self.wish = wish
        self.checkout = checkout
        self.checks: list[Check] = []
        self.notes: list[str] = []
        self.trees = 0

    def run(self) -> Integration:
        """Build, check and publish. Raises Blocked, and SkillError `local-edits` (exit 3)."""
        common = self.repo.common_dir
        self.make_fragments()
        for number in range(1, ATTEMPTS + 1):
            tip = self.integration.before
            built = self.build(tip, self.parts)
            if built.stopped is not None:
                # A report finds by these what was tried.
                merged = building.rows(self.parts, built)
                self.integration = self.integration._replace(
                    merged=merged, changelog=changelog_json(built, self.wish)
                )
                raise Blocked(*conflicts(common, tip, self.parts, built, self.wish.recipe))
            publishing.require_unlocked(self.repo, self.integration.branch, self.checkout)
            publishing.require_free(
                self.checkout, publishing.changed_paths(common, tip, built.commit)
            )
            self.save(
                after=built.commit,
                merged=building.rows(self.parts, built),
                changelog=changelog_json(built, self.wish),
            )
            self.checks = self.check(built.commit, self.wish.commands)
            if not all(check.passed for check in self.checks):
                raise self.red(tip)
            self.require_verdicts()
            if self.publish(tip, built.commit):
                return self.integration
            self.save(state="building", before=require_tip(self.repo, self.integration.branch))
            if number < ATTEMPTS:
                self.notes.append("the branch moved meanwhile: built and checked again")
        name = self.integration.short_branch
        row = {"name": name, "code": "branch-moves", "why": f"{name} moved {ATTEMPTS} times"}
        raise Blocked([row], [])

    def publish(self, tip: str, commit: str) -> bool:
        """Move the branch; False when it moved meanwhile. Every worker's log tells of it."""
        integration = self.integration
        why = f"agent-workers: integration {integration.id}"
        checks = [check.to_json() for check in self.checks]

        def begin(checkout: str) -> None:
            self.save(state="publishing", checkout=checkout, checks=checks)

        if not publishing.publish(self.repo, integration.branch, tip, commit, why, begin):
            return False
        tell_workers(self.repo, self.end("published"))
        return True

    def require_verdicts(self) -> None:
        """Demand that nobody has decided otherwise while the checks ran. Raises Blocked."""
        rows: list[dict[str, Any]] = [
            {"name": part.candidate.name, "code": "rejected", "why": "its verdict has changed"}
            for part in self.parts
            if approvals.load(part.candidate.record, part.candidate.head) != part.approval
        ]
        if rows:
            raise Blocked(rows, [])

    def make_fragments(self) -> None:
        """Let the repository's own changelog tool make the fragments, where it is installed."""
        recipe = self.wish.recipe
        tool = tool_of(recipe.convention, self.repo.top)
        if tool is None or not any(part.entries for part in self.parts):
            return
        # A call that is killed meanwhile has its record.
        self.save()
        recipe, notes = building.with_tool(
            self.repo, self.integration.before, self.parts, recipe, tool,
            place=fragments_place(self.repo.common_dir, self.integration.id),
            mark=tool_mark(self.integration.id),
        )  # fmt: skip
        self.wish = self.wish._replace(recipe=recipe)
        self.notes += notes

    def build(self, tip: str, parts: list[Part]) -> Built:
        """The commits of some parts onto a commit."""
        return building.build(self.repo.common_dir, tip, parts, self.wish.recipe)

    def check(self, commit: str, commands: list[str]) -> list[Check]:
        """Run checks on a commit in a tree of its own."""
        self.trees += 1
        tree = publishing.tree_path(self.repo, self.integration.id, self.trees)
        self.save(tree=tree)
        logs = f"{integrations.folder(self.repo.common_dir, self.integration.id)}/checks"
        found = publishing.run_checks(
            self.repo, commit, commands, tree=tree, logs=logs, timeout=self.wish.timeout
        )
        self.save(tree="")
        return found

    def red(self, tip: str) -> Blocked:
        """Why the combined result is red: the smallest set of parts that makes it so.

        Where the rest is red as well, there is more than one such set, and each is named.
        """
        failed = self.checks[-1]
        commands = self.wish.commands[: len(self.checks)]
        by_name = {part.candidate.name: part for part in self.parts}

        def ends(names: tuple[str, ...]) -> str:
            built = self.build(tip, [by_name[name] for name in names])
            if built.stopped is not None:
                return "conflict"
            say(f"looking for the cause: {', '.join(names) or self.integration.short_branch}")
            checks = self.check(built.commit, commands)
            return "green" if all(check.passed for check in checks) else "red"

        search = Search(tuple(by_name), ends, SEARCH_LIMIT)
        causes, rest = search.causes()
        facts = {
            "command": failed.command, "exit_code": failed.exit_code, "log": failed.log,
        }  # fmt: skip
        if not causes:
            name = self.integration.short_branch
            why = f"`{failed.command}` fails without any of the workers"
            return Blocked([{"name": name, "code": "base-red", "why": why, **facts}], [])
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "code": "check-failed",
                "why": because(failed, name, culprits),
                "with": [other for other in culprits if other != name],
                "smallest": proven,
                **facts,
            }
            for culprits, proven in causes
            for name in culprits
        ]
        return Blocked(rows, list(rest))

    # --- The record ---

    def save(self, **fields: Any) -> None:
        """Write what has changed into the record."""
        self.integration = self.integration._replace(**fields)
        integrations.save(self.repo.common_dir, self.integration)

    def end(self, state: str, **fields: Any) -> Integration:
        """Close the record."""
        fields.setdefault("checks", [check.to_json() for check in self.checks])
        self.save(state=state, tree="", ended_at=records.now(), **fields)
        return self.integration


def fragments_place(common_dir: str, integration_id: str) -> str:
    """Where the changelog tool of an integration works."""
    return f"{integrations.folder(common_dir, integration_id)}/fragments"


def tool_mark(integration_id: str) -> str:
    """What the changelog tool of an integration is known by, with all that it starts."""
    return f"{publishing.MARK}=fragments-{integration_id}"


def tell_workers(repo: git.Repository, integration: Integration) -> None:
    """Note in the log of every worker that it was integrated."""
    for row in integration.merged:
        if row["kind"] == "worker":
            facts = {"integration": integration.id, "after": integration.after}
            with contextlib.suppress(OSError):
                life.record_event(repo.common_dir, row["name"], "integrated", **facts)


def because(failed: Check, name: str, culprits: tuple[str, ...]) -> str:
    """Why a check is red, in words."""
    how = failed.reason or f"exit code {failed.exit_code}"
    others = [other for other in culprits if other != name]
    together = f" together with {', '.join(others)}" if others else ""
    return f"`{failed.command}` fails{together} ({how})"


def changelog_json(built: Built, wish: Wish) -> dict[str, Any]:
    """What became of the changelog."""
    return {
        "files": list(built.book_files),
        "convention": wish.recipe.convention.kind,
        "commit": built.book_commit or None,
        "added": list(built.added),
        "duplicates": list(built.duplicates),
        "not_needed": wish.exempt,
    }


def conflicts(
    common_dir: str,
    tip: str,
    parts: list[Part],
    built: Built,
    recipe: Recipe,
    env: dict[str, str] | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of all parts that do not merge, and the names of those that do without them."""
    rows: list[dict[str, Any]] = []
    left = parts
    while built.stopped is not None:
        rows += conflict_rows(common_dir, tip, left, built, env)
        stuck = built.stopped.candidate.name
        left = [part for part in left if part.candidate.name != stuck]
        built = building.build(common_dir, tip, left, recipe, env)
    return rows, [part.candidate.name for part in left]


def conflict_rows(
    common_dir: str, tip: str, parts: list[Part], built: Built, env: dict[str, str] | None
) -> list[dict[str, Any]]:
    """The row for the part that stopped a build: what conflicts, and with whom."""
    stopped, conflict = built.stopped, built.conflict
    assert stopped is not None
    assert conflict is not None
    head = stopped.candidate.head
    earlier = [p.candidate for p in parts if p.candidate.name in built.commits]
    pairs = [(tip, head), *((candidate.head, head) for candidate in earlier)]
    names = ["", *(candidate.name for candidate in earlier)]
    merges = integrations.merge_all(common_dir, pairs, env)
    blamed = [n for n, merged in zip(names, merges, strict=True) if merged.outcome == "conflict"]
    with_whom = [name for name in blamed if name] if "" not in blamed else []
    code = "conflict" if conflict.outcome == "conflict" else "cannot-merge"
    listed = path_list(conflict.paths, 5) or conflict.why
    whom = ", ".join(with_whom) if with_whom else "the integration branch"
    return [
        {
            "name": stopped.candidate.name,
            "code": code,
            "why": f"conflicts with {whom}: {listed}" if code == "conflict" else listed,
            "with": with_whom,
            "paths": list(conflict.paths),
            "kinds": list(conflict.kinds),
        }
    ]


# --- Which ones make it red -----------------------------------------------------------------


class Search:
    """Looks for the sets of names that make a result red; all names together do.

    `ends(names)` says how such a set ends: `green`, `red`, or `conflict` where it cannot be built.
    It is asked once about each, and at most `limit` times.
    """

    def __init__(
        self, names: tuple[str, ...], ends: Callable[[tuple[str, ...]], str], limit: int
    ) -> None:
        self.names = names
        self.ends = ends
        self.limit = limit
        self.known = {names: "red"}

    def able(self, chosen: tuple[str, ...]) -> bool:
        """Whether how a set ends is known or may still be asked."""
        return chosen in self.known or len(self.known) <= self.limit

    def end(self, chosen: tuple[str, ...]) -> str:
        """How a set of names ends."""
        if chosen not in self.known:
            self.known[chosen] = self.ends(chosen)
        return self.known[chosen]

    def causes(self) -> tuple[list[tuple[tuple[str, ...], bool]], tuple[str, ...]]:
        """Each set that is red by itself, and whether no smaller one of its names' pool is.

        Also the names that are green without all of them; none where that is not known. Without
        any name red: no set at all.
        """
        if self.end(()) != "green":
            return [], ()
        found: list[tuple[tuple[str, ...], bool]] = []
        left = self.names
        while left and self.able(left) and self.end(left) == "red":
            culprits, proven = self.smallest(left)
            found.append((culprits, proven))
            left = tuple(name for name in left if name not in culprits)
        green = bool(left) and self.able(left) and self.end(left) == "green"
        return found, left if green else ()

    def smallest(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        """The smallest set of these names that is red, and whether no smaller one is.

        First one after the other is left out for which the rest stays red; then every smaller set
        is tried, as long as there may be asked.
        """
        current = names
        for name in names:
            rest = tuple(other for other in current if other != name)
            if rest and self.able(rest) and self.end(rest) == "red":
                current = rest
        for size in range(1, len(current)):
            for chosen in combinations(names, size):
                if not self.able(chosen):
                    return current, False
                if self.end(chosen) == "red":
                    return chosen, True
        return current, True


# --- After a crash --------------------------------------------------------------------------


def settle(repo: git.Repository) -> list[str]:
    """Close the integrations of calls that were killed, and clear what they left; says what.

    Call it under the lock: then no other call is at work. Raises SkillError when a checkout that
    had begun to follow cannot be brought back.
    """
    sweep(repo.common_dir)
    found, damaged = integrations.load_all(repo.common_dir)
    unfinished = [i for i in found if i.state in integrations.UNFINISHED]
    notes = [error.message for error in damaged]
    return notes + [settle_one(repo, integration) for integration in unfinished]


def sweep(common_dir: str) -> None:
    """Remove the files and folders that killed calls have left, whatever they were at."""
    integrations.sweep_scratch(common_dir)
    home = records.home(common_dir)
    for name in os.listdir(home):
        if name.startswith(building.INDEX):
            worktrees.remove_file(f"{home}/{name}")
    place = f"{home}/integrations"
    for name in os.listdir(place) if os.path.isdir(place) else []:
        if not os.path.lexists(f"{place}/{name}/integration.json"):
            # It was killed before its first record, or it is an entry of git's that was dropped.
            worktrees.remove_tree(f"{place}/{name}")
            continue
        for entry in os.listdir(f"{place}/{name}"):
            if entry.startswith("integration.json."):
                worktrees.remove_file(f"{place}/{name}/{entry}")


def settle_one(repo: git.Repository, integration: Integration) -> str:
    """Close one integration that did not end; says what was found."""
    publishing.await_end(integration.id)
    clear_trees(repo, integration.id)
    proctree.end_tree([], tool_mark(integration.id), grace=1.0)
    worktrees.remove_tree(fragments_place(repo.common_dir, integration.id))
    state = "abandoned"
    words = "nothing was merged"
    if integration.state == "publishing":
        tip = git.ref_commit(repo.common_dir, integration.branch)
        if has_moved(repo.common_dir, integration, tip):
            state, words = "published", "its result is in the branch"
        elif integration.checkout:
            kept = put_back(repo, integration)
            if kept:
                words += f"; these were left as they are: {path_list(kept, 10)}"
    done = integration._replace(state=state, tree="", ended_at=records.now())
    integrations.save(repo.common_dir, done)
    if state == "published":
        tell_workers(repo, done)
    return f"the integration {integration.id} was interrupted: {words}"


def has_moved(common_dir: str, integration: Integration, tip: str | None) -> bool:
    """Whether the branch was moved before the call was killed; others may have moved it on."""
    before, after = integration.before, integration.after
    if tip in (before, after) or tip is None:
        return tip == after
    if git.ref_commit(common_dir, after) is None or not git.is_ancestor(common_dir, after, tip):
        return False
    # What takes an integration back may be older than what it starts from.
    return git.is_ancestor(common_dir, before, after) or not git.is_ancestor(
        common_dir, before, tip
    )


def put_back(repo: git.Repository, integration: Integration) -> list[str]:
    """Bring the checkout back that had begun to follow; the paths that are the user's by now."""
    checkout = publishing.checkout_at(repo, integration.checkout)
    publishing.require_unlocked(repo, integration.branch, checkout)
    if checkout is None or git.ref_commit(repo.common_dir, integration.after) is None:
        return []
    return publishing.put_back(repo, checkout, integration.before, integration.after)


def abandon(repo: git.Repository, integration_id: str) -> None:
    """Close the record of an integration that ended early, as far as that can be done now.

    What cannot be, the next call does.
    """
    with contextlib.suppress(OSError, SkillError):
        integration = integrations.load(repo.common_dir, integration_id)
        if integration.state in integrations.UNFINISHED:
            settle_one(repo, integration)


def clear_trees(repo: git.Repository, integration_id: str) -> None:
    """Remove the throw-away trees of one integration, and end what runs there."""
    prefix = publishing.tree_path(repo, integration_id, 0).removesuffix("0")
    # An entry keeps the name of its tree, also where somebody has moved that.
    registered = {
        f"{os.path.dirname(prefix)}/{os.path.basename(admin)}": admin
        for admin in worktrees.registered(repo.common_dir)
    }
    paths = {path for path in registered if path.startswith(prefix)}
    parent = os.path.dirname(prefix)
    if os.path.isdir(parent):
        paths |= {e.path for e in os.scandir(parent) if e.path.startswith(prefix)}
    for path in sorted(paths):
        mark = f"{publishing.MARK}={os.path.basename(path)}"
        publishing.remove_tree(repo, path, registered.get(path, ""), mark)
