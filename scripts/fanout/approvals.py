"""Approvals: recorded reviews, each bound to exactly one base, head and tree."""

from __future__ import annotations

import os

from fanout import records
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.candidates import Candidate


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
