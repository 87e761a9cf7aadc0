"""Which changed files lie outside of what a candidate owns; git itself matches the patterns."""

from __future__ import annotations

from fanout import git
from fanout.errors import SkillError
from fanout.worktrees import at, parse_status, status_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.candidates import Candidate

# No setting of a user or a repository changes which files are named.
NAMES = [
    *("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-relative"),
    *("--ignore-submodules=none", "-O/dev/null"),
]


def pathspecs(candidate: Candidate) -> list[str]:
    """What git calls everything but that which a candidate owns; empty where it owns all."""
    if not candidate.owns:
        return []
    allowed = [f":(top,exclude,glob){pattern}" for pattern in candidate.owns]
    if candidate.changelog:
        allowed.append(f":(top,exclude,literal){candidate.changelog}")
    return [":(top)", *allowed]


def merge_base(repo: git.Repository, candidate: Candidate) -> str:
    """What `git diff base...head` compares with; empty where there is no common history."""
    done = git.git(repo.common_dir, "merge-base", candidate.base, candidate.head)
    if done.code not in (0, 1):
        raise SkillError("git-failed", f"git merge-base failed: {done.error_text}")
    return done.text.strip()


def outside_commits(repo: git.Repository, candidate: Candidate, start: str) -> list[str]:
    """The paths that differ between `start` and its tip and are not owned, sorted.

    Raises SkillError `git-failed`.
    """
    wanted = pathspecs(candidate)
    if not wanted:
        return []
    done = git.require_git(repo.top, *NAMES, start, candidate.head, "--", *wanted)
    return sorted(path for path in done.text.split("\0") if path)


def outside_tree(candidate: Candidate) -> set[str]:
    """The paths that are changed in its worktree, not committed, and not owned.

    Raises SkillError `git-failed`.
    """
    wanted = pathspecs(candidate)
    if not wanted or not candidate.worktree:
        return set()
    words = [*status_arguments(ignored=False), "--", *wanted]
    status = parse_status(git.require_git(candidate.worktree, *words, env=at(candidate.worktree)))
    return {*status.staged, *status.modified, *status.conflicted, *status.untracked}
