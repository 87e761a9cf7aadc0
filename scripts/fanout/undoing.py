"""Take an integration back, by the commits that were recorded."""

from __future__ import annotations

from fanout import git, integrations, merging, publishing, records
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.integrating import Outcome, abandon, lock, require_tip, settle
from fanout.integrations import Integration
from fanout.merging import Merged, Signing
from fanout.output import path_list
from fanout.publishing import Check, Checkout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
            with merging.scratch(repo.common_dir) as env:
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
    signing = merging.signing_of(common)
    for commit in reversed(main_line(common, target)):
        merged = merging.apply_change(common, current, commit, f"{commit}^1", env)
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
    return merging.write_commit(common_dir, tree, [onto], text, signing, env=env)


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
