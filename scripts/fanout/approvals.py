"""Approvals: decisions about one commit, each bound to exactly one base, head and tree."""

from __future__ import annotations

import os
import string

from fanout import candidates as work
from fanout import changelog, git, records
from fanout import workers as life
from fanout.errors import ExitCode, SkillError, usage
from fanout.fields import NamedTuple
from fanout.output import path_list
from fanout.worktrees import at, hidden_changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import contextlib
    from typing import Any

    from fanout.candidates import Candidate, Choice
    from fanout.worktrees import Status


class Approval(NamedTuple):
    """What somebody decided about one commit. `verdict` is `approved` or `rejected`.

    `out_of_scope` are the `{path, reason}` that were allowed outside of what the candidate owns.
    `changelog` is the SHA-256 of the entries outside of the branch that were there, or empty.
    """

    verdict: str
    name: str
    branch: str
    base: str
    head: str
    tree: str
    by: str
    note: str
    out_of_scope: list[dict[str, Any]]
    changelog: str
    at: str

    def to_json(self) -> dict[str, Any]:
        """The fields of a review's file."""
        return self._asdict()


class Standing(NamedTuple):
    """What the reviews say of a candidate as it is now.

    `state` is `approved`, `rejected`, `void` (it was approved in another state) or `missing`;
    `why` says in words what voids it.
    """

    state: str
    approval: Approval | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """The object `approval` of an answer."""
        fields = self.approval.to_json() if self.approval else {}
        return {"state": self.state, "why": self.why, **fields}


def save(common_dir: str, candidate: Candidate, approval: Approval) -> str:
    """Write a review's file; returns its path. A later review of the same commit replaces it."""
    folder = f"{candidate.record}/reviews"
    records.make_dir(folder)
    if candidate.kind != "worker":
        # A folder named by a hash says nothing by itself.
        fields = {**candidate._asdict(), "head": "", "worktree": "", "record": ""}
        records.write_json(f"{candidate.record}/branch.json", fields)
    path = f"{folder}/{candidate.head}.json"
    records.write_json(path, approval.to_json())
    if candidate.kind == "worker":
        log = f"{records.worker_dir(common_dir, candidate.name)}/events.jsonl"
        facts = {"verdict": approval.verdict, "head": approval.head, "by": approval.by}
        records.append_event(log, "reviewed", job=None, data=facts)
    return path


def load(record: str, head: str) -> Approval | None:
    """The review of a commit in a candidate's record, or None.

    Raises SkillError `record-damaged`.
    """
    path = f"{record}/reviews/{head}.json"
    try:
        approval = records.read_record(path, Approval)
    except FileNotFoundError:
        return None
    if approval.head != head or approval.verdict not in ("approved", "rejected"):
        raise records.damaged(path, "it is no review of this commit")
    return approval


def newest(candidate: Candidate) -> Approval | None:
    """The newest review of any commit of a candidate, or None."""
    try:
        names = os.listdir(f"{candidate.record}/reviews")
    except FileNotFoundError:
        return None
    heads = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    found = [approval for head in heads if (approval := load(candidate.record, head)) is not None]
    return max(found, key=lambda approval: approval.at, default=None)


def standing(candidate: Candidate, changelog: str) -> Standing:
    """What the reviews say of a candidate as it is now. `changelog` is as in Approval.

    What is not committed is no part of this: whoever asks looks at the tree too.
    """
    approval = load(candidate.record, candidate.head)
    if approval is None:
        earlier = newest(candidate)
        if earlier is None:
            return Standing("missing", None, "nobody has reviewed it")
        if earlier.verdict == "rejected":
            return Standing("rejected", earlier, f"rejected: {earlier.note}")
        why = f"approved was {earlier.head[:12]}, the branch is at {candidate.head[:12]} now"
        return Standing("void", earlier, why)
    if approval.verdict == "rejected":
        return Standing("rejected", approval, f"rejected: {approval.note}")
    if approval.base != candidate.base:
        why = f"its base was {approval.base[:12]} and is {candidate.base[:12]} now"
        return Standing("void", approval, why)
    # One that was written later is told of when it is merged.
    if approval.changelog and approval.changelog != changelog:
        return Standing("void", approval, "its changelog entry has changed since")
    return Standing("approved", approval)


# --- To decide ------------------------------------------------------------------------------


SHORTEST = 7
LISTED = 20


def hold(repo: git.Repository, candidate: Candidate) -> contextlib.AbstractContextManager[None]:
    """Hold a candidate against other commands. Raises SkillError `busy` (exit 11)."""
    if candidate.kind == "worker":
        return life.lock(repo.common_dir, candidate.name)
    # The name of its record's folder stands for its branch, whatever that is called.
    name = f"branch-{os.path.basename(candidate.record)}"
    return records.lock(repo.common_dir, name, wait=0.5, what=f"the branch {candidate.branch!r}")


def changelog_digest(repo: git.Repository, choice: Choice, candidate: Candidate) -> str:
    """The SHA-256 of the changelog entries that lie outside of its branch; empty without any."""
    return entries_of(repo, choice, candidate).digest


def entries_of(repo: git.Repository, choice: Choice, candidate: Candidate) -> changelog.Found:
    """What a candidate says about its change, read as its target's convention has it."""
    convention = work.convention_for(repo, choice, candidate)
    return changelog.find(repo, candidate, work.beside(choice), convention)


def approve(
    repo: git.Repository,
    choice: Choice,
    candidate: Candidate,
    commit: str,
    *,
    by: str,
    note: str,
    allowed: dict[str, str],
) -> Approval:
    """Record that a candidate's tip, which must be `commit`, may be merged.

    `choice` is what chose the candidate, so that it can be looked at again. `allowed` maps paths
    outside of what it owns to the reasons why they may be changed.

    Raises SkillError: `invalid-commit`, `ambiguous-commit`, `not-out-of-scope` (exit 2);
    `branch-missing`, `not-the-tip`, `no-commits`, `not-committed`, `out-of-scope`,
    `worktree-mismatch` (exit 3); `busy`.
    """
    with hold(repo, candidate):
        # Whatever moved it until now, only what is there under the lock counts.
        (candidate,) = work.find(repo, choice)
        require_tip(repo, candidate, commit)
        dirty = uncommitted(repo, candidate)
        require_commits(repo, candidate, dirty)
        require_clean(candidate, dirty)
        # Without any common history all of it is its own.
        start = work.merge_base(repo, candidate) or candidate.base
        outside = work.outside_commits(repo, candidate, start)
        require_allowed(candidate, outside, allowed)
        rows = [{"path": path, "reason": allowed[path]} for path in outside]
        approval = new_approval(repo, choice, candidate, "approved", by, note)
        approval = approval._replace(out_of_scope=rows)
        save(repo.common_dir, candidate, approval)
    return approval


def reject(
    repo: git.Repository, choice: Choice, candidate: Candidate, *, by: str, reason: str
) -> Approval:
    """Record that a candidate's tip may not be merged; nothing else is changed.

    Raises SkillError `branch-missing` (exit 3), `busy`.
    """
    with hold(repo, candidate):
        (candidate,) = work.find(repo, choice)
        require_branch(candidate)
        approval = new_approval(repo, choice, candidate, "rejected", by, reason)
        save(repo.common_dir, candidate, approval)
    return approval


def new_approval(
    repo: git.Repository,
    choice: Choice,
    candidate: Candidate,
    verdict: str,
    by: str,
    note: str,
) -> Approval:
    """A verdict on a candidate's tip, made now."""
    return Approval(
        verdict=verdict,
        name=candidate.name,
        branch=candidate.branch,
        base=candidate.base,
        head=candidate.head,
        tree=git.tree_of(repo.common_dir, candidate.head),
        by=by or user_name(repo),
        note=note,
        out_of_scope=[],
        changelog=changelog_digest(repo, choice, candidate),
        at=records.now(),
    )


def user_name(repo: git.Repository) -> str:
    """Who git says is at work here. Raises SkillError `usage` where it does not know."""
    name = git.git(repo.top, "config", "user.name").text.strip()
    if not name:
        raise usage("usage", "git knows no user.name here", "say who decides with --by WHO")
    return name


# --- Demands --------------------------------------------------------------------------------


def require_branch(candidate: Candidate) -> None:
    """Demand that a candidate's branch is there."""
    if not candidate.head:
        raise refusal(
            "branch-missing",
            f"the branch {candidate.branch!r} of {candidate.name!r} is not there",
            "`git branch` lists those that are",
        )


def require_tip(repo: git.Repository, candidate: Candidate, commit: str) -> None:
    """Demand that a full or shortened commit id names a candidate's tip, and nothing else."""
    word = commit.lower()
    if not (SHORTEST <= len(word) <= 64 and set(word) <= set(string.hexdigits)):
        raise usage(
            "invalid-commit",
            f"{commit[:80]!r} is no commit id",
            f"give the id that was reviewed, or its first {SHORTEST} or more digits",
        )
    require_branch(candidate)
    if not candidate.head.startswith(word):
        raise refusal(
            "not-the-tip",
            f"{commit} is not the tip of {candidate.branch!r}, which is {candidate.head}",
            "review what is there now, then approve that",
            commit=commit,
            tip=candidate.head,
        )
    if word == candidate.head:
        return
    others = git.require_git(repo.common_dir, "rev-parse", f"--disambiguate={word}").text.split()
    if others != [candidate.head]:
        raise usage(
            "ambiguous-commit",
            f"{commit} begins the ids of {len(others)} objects",
            f"give more digits: {candidate.head}",
        )


def require_commits(repo: git.Repository, candidate: Candidate, dirty: list[str]) -> None:
    """Demand that a candidate's branch has commits of its own."""
    own = ["rev-list", "-n", "1", candidate.head, f"^{candidate.base}"]
    if not git.require_git(repo.common_dir, *own).text.strip():
        raise refusal(
            "no-commits",
            f"{candidate.name!r}: nothing committed, {len(dirty)} dirty files"
            + (f": {listing(dirty)}" if dirty else ""),
            "commit what is there (`collect` does), then review it" if dirty else "",
            paths=dirty,
        )


def uncommitted(repo: git.Repository, candidate: Candidate) -> list[str]:
    """The files of a candidate's tree that would be no part of its tip.

    Those that git was told not to look at count too. Raises SkillError `worktree-mismatch`,
    `not-the-tip` when its branch moved on meanwhile.
    """
    found = work.leftovers(repo, candidate)
    if found.head != candidate.head:
        raise refusal(
            "not-the-tip",
            f"{candidate.branch!r} moved from {candidate.head} to {found.head} just now",
            "review what is there now, then approve that",
            commit=candidate.head,
            tip=found.head,
        )
    return dirty_files(candidate, found)


def dirty_files(candidate: Candidate, status: Status) -> list[str]:
    """The files that a candidate's tree holds in another state than its tip, sorted."""
    hidden: list[str] = []
    if candidate.worktree:
        hidden, _ = hidden_changes(candidate.worktree, at(candidate.worktree))
    groups = (
        *(status.staged, status.modified, status.conflicted, status.untracked),
        *(status.submodules, hidden),
    )
    return sorted({path for group in groups for path in group})


def require_clean(candidate: Candidate, dirty: list[str]) -> None:
    """Demand that nothing in a candidate's tree would be left out."""
    if dirty:
        raise refusal(
            "not-committed",
            f"{len(dirty)} files in {candidate.worktree!r} would be no part of it: "
            + listing(dirty),
            "commit them (`collect` does) or move them away, then review again",
            paths=dirty,
        )


def require_allowed(candidate: Candidate, outside: list[str], allowed: dict[str, str]) -> None:
    """Demand a reason for every path that a candidate does not own, and for no other."""
    wrong = sorted(allowed.keys() - set(outside))
    if wrong:
        raise usage(
            "not-out-of-scope",
            f"not among the paths outside of what {candidate.name!r} owns: {listing(wrong)}",
            f"those are: {listing(outside) or 'none'}",
        )
    left = [path for path in outside if path not in allowed]
    if left:
        raise refusal(
            "out-of-scope",
            f"{candidate.name!r} owns {', '.join(candidate.owns)} and changes beside it: "
            + listing(left),
            "look at each, then add --allow-out-of-scope PATH --reason WHY for it",
            paths=left,
        )


def refusal(code: str, message: str, hint: str, **data: Any) -> SkillError:
    """A refusal (exit 3) whose facts a program can read."""
    return SkillError(code, message, hint, exit_code=ExitCode.REFUSED, data=data)


def listing(paths: list[str]) -> str:
    """Paths for a message; how many more there are where they are many."""
    return path_list(paths, LISTED)
