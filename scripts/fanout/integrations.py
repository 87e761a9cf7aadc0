"""Integrations: the record of each merge into an integration branch, and of what it took in."""

from __future__ import annotations

import os
import time

from fanout import git, records
from fanout.errors import SkillError, usage
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# As long as one of these is recorded, the call that made the record has not ended well.
UNFINISHED = ("building", "publishing")


class Integration(NamedTuple):
    """One call of `merge` or `undo`.

    `state` is `building`, `publishing`, `published`, `failed`, `abandoned` or `undone`. `before`
    and `after` are the commits of the branch, `after` empty until something is built. `tree` is
    the throw-away worktree, `checkout` the user's one that follows, each empty where there is
    none. `merged` are the rows of what was taken in: `name`, `branch`, `base`, `head`, `kind`,
    `commits` and `approval`. `undoes` is the id of the integration that this one takes back.
    """

    id: str
    state: str
    branch: str
    before: str
    after: str
    strategy: str
    tree: str
    checkout: str
    merged: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    blocked: list[dict[str, Any]]
    changelog: dict[str, Any]
    undoes: str
    started_at: str
    ended_at: str

    def to_json(self) -> dict[str, Any]:
        """The fields of its file."""
        return self._asdict()

    @property
    def short_branch(self) -> str:
        """The branch without `refs/heads/`."""
        return self.branch.removeprefix("refs/heads/")


def new(branch: str, before: str, strategy: str, undoes: str = "") -> Integration:
    """An integration that begins now."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Integration(
        id=f"{stamp}-{records.new_id()[:6]}",
        state="building",
        branch=branch,
        before=before,
        after="",
        strategy=strategy,
        tree="",
        checkout="",
        merged=[],
        checks=[],
        blocked=[],
        changelog={},
        undoes=undoes,
        started_at=records.now(),
        ended_at="",
    )


def folder(common_dir: str, integration_id: str) -> str:
    """Where an integration is recorded, its check logs too."""
    return f"{records.home(common_dir)}/integrations/{integration_id}"


def save(common_dir: str, integration: Integration) -> None:
    """Write an integration's record."""
    place = folder(common_dir, integration.id)
    records.make_dir(place)
    records.write_json(f"{place}/integration.json", integration.to_json())


def load(common_dir: str, integration_id: str) -> Integration:
    """Read a record. Raises SkillError `unknown-integration` (exit 2), `record-damaged`."""
    path = f"{folder(common_dir, integration_id)}/integration.json"
    try:
        if not records.is_name(integration_id):
            raise FileNotFoundError(path)
        return records.read_record(path, Integration)
    except FileNotFoundError:
        known = ", ".join(ids(common_dir)[-10:]) or "there are none"
        raise usage(
            "unknown-integration",
            f"there is no integration {integration_id[:80]!r}",
            f"the newest: {known}",
        ) from None


def ids(common_dir: str) -> list[str]:
    """The ids of all integrations, the oldest first."""
    place = f"{records.home(common_dir)}/integrations"
    try:
        names = sorted(filter(records.is_name, os.listdir(place)))
    except FileNotFoundError:
        return []
    return [name for name in names if os.path.lexists(f"{place}/{name}/integration.json")]


def load_all(common_dir: str) -> tuple[list[Integration], list[SkillError]]:
    """All integrations, the oldest first, and the records that cannot be read."""
    found: list[Integration] = []
    errors: list[SkillError] = []
    for name in ids(common_dir):
        try:
            found.append(load(common_dir, name))
        except SkillError as error:
            errors.append(error)
    return sorted(found, key=lambda integration: integration.started_at), errors


def undone(all_of_them: list[Integration]) -> set[str]:
    """The ids of the integrations that were taken back."""
    taken_back = {i.undoes for i in all_of_them if i.state == "published"}
    return taken_back | {i.id for i in all_of_them if i.state == "undone"}


def published_in(
    repo_dir: str,
    chosen: list[Integration],
    target: str,
    tip: str,
    all_of_them: list[Integration],
) -> list[Integration]:
    """Those of the chosen whose result is in the integration branch and was not taken back."""
    gone = undone(all_of_them)
    return [
        integration
        for integration in chosen
        if integration.state == "published"
        and not integration.undoes
        and integration.id not in gone
        and integration.branch == target
        and is_within(repo_dir, integration, tip)
    ]


def is_within(repo_dir: str, integration: Integration, tip: str) -> bool:
    """Whether an integration's commits are in the history of a commit."""
    if git.ref_commit(repo_dir, integration.after) is None:
        return False
    return git.is_ancestor(repo_dir, integration.after, tip)


def of_head(all_of_them: list[Integration], branch: str, head: str) -> list[Integration]:
    """The integrations that took in a branch at this very commit, whatever became of them."""
    return [
        integration
        for integration in all_of_them
        if not integration.undoes
        and any(r["branch"] == branch and r["head"] == head for r in integration.merged)
    ]


def verdict(common_dir: str, target: str, tip: str, branch: str, head: str) -> bool | None:
    """Whether a branch's very commit was integrated, as the records say; None where they do not.

    That is how squashed, rebased and picked work is known: its own commits are nowhere. And work
    that was taken back by reverts is not integrated, though its commits are in the history.
    """
    found, _ = load_all(common_dir)
    chosen = of_head(found, branch, head)
    if published_in(common_dir, chosen, target, tip, found):
        return True
    gone = undone(found)
    reverted = [i for i in chosen if i.id in gone and i.branch == target]
    return False if any(is_within(common_dir, i, tip) for i in reverted) else None
