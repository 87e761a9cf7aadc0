"""What a reviewer needs to see of a candidate, in bounded pieces; nothing is cut in silence."""

from __future__ import annotations

import os

from fanout import approvals, changelog, flagging, git, integrations
from fanout import candidates as work
from fanout import workers as life
from fanout.errors import SkillError, usage
from fanout.fields import NamedTuple
from fanout.output import path_list
from fanout.workers import is_our_copy
from fanout.worktrees import OPERATIONS, Status, admin_dir_of, at, is_pure_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fanout.approvals import Standing
    from fanout.candidates import Candidate, Choice
    from fanout.flagging import Flag
    from fanout.git import Blob, Change, Commit

DIFF_LIMIT = 60_000
TEXT_LIMIT = 20_000
LISTED = 500
# Of one content, and of all together, in bytes.
LOOKED_INTO = 5_000_000
LOOKED_INTO_TOGETHER = 64_000_000
# Contents of more than this are not compared only to throw most of the text away.
COMPARED = 8_000_000
# How many paths a command that shows what was left out may name.
NAMED = 5


class LeftOut(NamedTuple):
    """What a view does not show, how much that is, and the command that shows it."""

    what: str
    amount: int
    paths: list[str]
    command: str

    def to_json(self) -> dict[str, Any]:
        """The object `left_out` of a view."""
        fields = {"what": self.what, "count": self.amount}
        return {**fields, "paths": self.paths, "command": self.command}


class View(NamedTuple):
    """The text of a git command, and what of it is not there."""

    command: str
    text: str
    left_out: LeftOut | None

    def to_json(self) -> dict[str, Any]:
        """The row of `data.views`."""
        left_out = self.left_out.to_json() if self.left_out is not None else None
        return {"command": self.command, "text": self.text, "left_out": left_out}


class Review(NamedTuple):
    """What there is to see of one candidate. `dirty` are the files that are not committed.

    `trouble` says why its tree could not be looked at, in words; empty when it could. `task` is how
    its run says that it ended; None where no run is asked.
    """

    candidate: Candidate
    tree: str
    commits: list[Commit]
    files: list[dict[str, Any]]
    flags: list[Flag]
    views: dict[str, View]
    checks: list[dict[str, Any]]
    changelog: dict[str, Any]
    standing: Standing
    dirty: list[str]
    outside: list[str]
    trouble: str
    task: dict[str, Any] | None
    whole: bool

    @property
    def approvable(self) -> bool:
        """Whether its tip can be approved as it is, files outside of its scope apart."""
        return bool(self.commits) and not self.dirty and not self.trouble

    def to_json(self) -> dict[str, Any]:
        """The fields of `data`; long lists end at a limit, and say how much they leave out."""
        limit = None if self.whole else LISTED
        left_out = {
            name: max(0, len(rows) - LISTED)
            for name, rows in (("commits", self.commits), ("files", self.files))
            if limit is not None
        }
        return {
            "worker": self.candidate.to_json(),
            "base": self.candidate.base,
            "head": self.candidate.head,
            "tree": self.tree,
            "commits": [commit.to_json() for commit in self.commits[:limit]],
            "files": self.files[:limit],
            "left_out": {name: count for name, count in left_out.items() if count},
            "flags": [flag.to_json(flagging.SHOWN if limit else 10**9) for flag in self.flags],
            "views": {name: view.to_json() for name, view in self.views.items()},
            "task": self.task,
            "checks": self.checks,
            "changelog": self.changelog,
            "approval": self.standing.to_json(),
            "uncommitted": self.dirty[:limit],
            "trouble": self.trouble or None,
        }


class Wish(NamedTuple):
    """How much is wanted: `bounded`, `stat` or `full`; of these paths alone, if there are any.

    `again` makes the command that reviews the same candidate with these further options.
    """

    extent: str
    paths: list[str]
    again: Callable[[list[str]], str]


def review(repo: git.Repository, choice: Choice, candidate: Candidate, wish: Wish) -> Review:
    """Look at a candidate; changes nothing.

    Raises SkillError `branch-missing` (exit 3), `unknown-path` (exit 2), `git-failed`,
    `record-damaged`.
    """
    approvals.require_branch(candidate)
    fork = work.merge_base(repo, candidate)
    origin = fork or candidate.base
    commits = git.commits(repo.top, candidate.base, candidate.head)
    changes = git.changes(repo.top, origin, candidate.head)
    wanted = below(changes, wish.paths)
    blobs = read_blobs(repo, commits, changes)
    outside = work.outside_commits(repo, candidate, origin)
    rows, dirty, trouble = flags_of_tree(repo, candidate)
    rows += flags_of_commits(repo, candidate, commits, changes, blobs, outside)
    if not fork:
        rows.append(("unrelated-history", candidate.branch))
    flags = flagging.grouped(rows)
    if not commits:
        flags.append(flagging.Flag("no-commits", []))
    values = flagging.secret_values(blobs)
    convention = work.convention_for(repo, choice, candidate)
    entries = changelog.find(repo, candidate, work.beside(choice), convention)

    def clean(text: str) -> str:
        return flagging.redact(text, values)

    views = {
        "status": status_view(candidate, wish),
        "log": log_view(repo, candidate, commits, wish),
        **diff_views(repo, candidate, fork, wanted, blobs, wish),
    }
    return Review(
        candidate=candidate,
        tree=git.tree_of(repo.common_dir, candidate.head),
        commits=[
            c._replace(subject=clean(legible(c.subject)), author=clean(legible(c.author)))
            for c in commits
        ],
        files=[file_row(change, blobs, set(outside)) for change in wanted],
        flags=flags,
        views={name: view._replace(text=clean(view.text)) for name, view in views.items()},
        checks=recorded_checks(repo, choice, candidate),
        changelog=changelog_row(entries, clean),
        standing=approvals.standing(candidate, entries.digest),
        dirty=dirty,
        outside=outside,
        trouble=trouble,
        task=task_end(choice, candidate),
        whole=wish.extent == "full",
    )


def below(changes: list[Change], paths: list[str]) -> list[Change]:
    """The changes at these paths or below them; all of them without any.

    Raises SkillError `unknown-path` (exit 2) for a path with no change.
    """
    if not paths:
        return changes
    found: dict[str, Change] = {}
    for path in paths:
        folder = path.rstrip("/") + "/"
        hits = [c for c in changes if c.path == path or c.path.startswith(folder)]
        if not hits:
            named = path_list((change.path for change in changes), 20) or "none"
            raise usage("unknown-path", f"nothing is changed at {path!r}", f"changed: {named}")
        found.update({change.path: change for change in hits})
    return [change for change in changes if change.path in found]


def read_blobs(
    repo: git.Repository, commits: list[Commit], changes: list[Change]
) -> dict[str, Blob]:
    """The contents of both sides of all changes, then those that only the history holds."""
    rows = [*changes, *(change for commit in commits for change in commit.changes)]
    ids: list[str] = []
    for change in rows:
        sides = ((change.blob_after, change.mode_after), (change.blob_before, change.mode_before))
        ids += [name for name, mode in sides if name is not None and mode != "160000"]
    return git.blobs(repo.top, ids, each=LOOKED_INTO, together=LOOKED_INTO_TOGETHER)


def file_row(change: Change, blobs: dict[str, Blob], outside: set[str]) -> dict[str, Any]:
    """The row of `data.files`."""
    sides = [blobs[name] for name in (change.blob_before, change.blob_after) if name in blobs]
    return {
        "path": change.path,
        "status": change.status,
        "added": change.added,
        "removed": change.removed,
        "binary": any(side.binary for side in sides)
        or (change.added is None and all(side.content is None for side in sides)),
        "mode_before": change.mode_before,
        "mode_after": change.mode_after,
        "in_scope": change.path not in outside,
    }


def task_end(choice: Choice, candidate: Candidate) -> dict[str, Any] | None:
    """How the run of a task says that it ended: its `status`, `reason` and `head` then.

    Its checks may have passed all the same: they say nothing of scope and changelog.
    """
    if candidate.kind != "task" or not choice.run:
        return None
    tasks = work.read_run(choice.run, "manifest.json")["tasks"]
    task = next(task for task in tasks if task["name"] == candidate.name)
    return {"status": task["status"], "reason": task.get("reason"), "head": task.get("head")}


def recorded_checks(
    repo: git.Repository, choice: Choice, candidate: Candidate
) -> list[dict[str, Any]]:
    """The checks recorded so far: a task's own, and those of merges that it was a part of.

    Their logs are absolute paths; `on` says what was checked.
    """
    found: list[dict[str, Any]] = []
    if candidate.kind == "task" and choice.run:
        folder = os.path.abspath(choice.run)
        tasks = work.read_run(choice.run, "manifest.json")["tasks"]
        steps = next(task["verify"] for task in tasks if task["name"] == candidate.name)
        found += [
            {
                "on": "worktree",
                "command": step["command"],
                "status": step["status"],
                "exit_code": step["exit_code"],
                "log": os.path.join(folder, step["log"]) if step["log"] else None,
            }
            for step in steps
        ]
    everything, _ = integrations.load_all(repo.common_dir)
    for integration in integrations.of_head(everything, candidate.branch, candidate.head):
        found += [
            {
                "on": integration.id,
                "command": check["command"],
                "status": "passed" if check["passed"] else "failed",
                "exit_code": check["exit_code"],
                "log": check["log"],
            }
            for check in integration.checks
        ]
    return found


def changelog_row(found: changelog.Found, clean: Callable[[str], str]) -> dict[str, Any]:
    """The object `changelog`: what a candidate says about its change, and where."""
    entries = [
        {"source": entry.source, "path": entry.path, "text": clean(entry.text)}
        for entry in found.entries
    ]
    problems = [{"code": code, "message": clean(why)} for code, why in found.problems]
    return {
        "entries": entries,
        "paths": found.paths,
        "problems": problems,
        "missing": found.missing,
    }


# --- Flags ----------------------------------------------------------------------------------


def flags_of_commits(
    repo: git.Repository,
    candidate: Candidate,
    commits: list[Commit],
    changes: list[Change],
    blobs: dict[str, Blob],
    outside: list[str],
) -> list[tuple[str, str]]:
    """The rows for all that a candidate has committed."""
    added = any(change.status == "A" for change in changes)
    paths = git.paths_of(repo.top, candidate.head) if added else []
    rows = [("out-of-scope", path) for path in outside]
    rows += flagging.flags_of_changes(changes, blobs, paths)
    rows += flagging.flags_of_history(commits, changes, blobs)
    present = [change.path for change in changes if change.mode_after is not None]
    tree = candidate.worktree if os.path.isdir(candidate.worktree) else repo.top
    rows += [("generated", path) for path in git.generated_by_attribute(tree, present)]
    return rows


def flags_of_tree(
    repo: git.Repository, candidate: Candidate
) -> tuple[list[tuple[str, str]], list[str], str]:
    """The rows for what is not committed, those files, and why they are not known."""
    if not candidate.worktree:
        return [], [], ""
    try:
        status = work.leftovers(repo, candidate, ignored=True)
        dirty = approvals.dirty_files(candidate, status)
    except SkillError as error:
        return [("worktree-trouble", candidate.worktree)], [], error.message
    if status.head != candidate.head:
        moved = f"its branch moved to {status.head} while it was looked at"
        return [("branch-moved", status.head)], dirty, moved
    new = set(status.untracked)
    rows = [("uncommitted", path) for path in dirty if path not in new]
    rows += [("untracked", path) for path in status.untracked]
    rows += [("ignored", path) for path in unusual_ignored(repo, candidate, status)]
    if dirty:
        there = work.outside_tree(repo, candidate) & set(dirty)
        rows += [("out-of-scope", path) for path in sorted(there)]
    admin = admin_dir_of(candidate.worktree) or repo.common_dir
    busy = [name for name in OPERATIONS if os.path.lexists(os.path.join(admin, name))]
    return rows + [("operation-in-progress", name) for name in busy], dirty, ""


def unusual_ignored(repo: git.Repository, candidate: Candidate, status: Status) -> list[str]:
    """The ignored files of a candidate's tree that are neither caches nor records or copies."""
    worker = life.load(repo.common_dir, candidate.name) if candidate.kind == "worker" else None
    return [
        path
        for path in status.ignored
        if path.split("/")[0] != life.RUNS
        and not is_pure_cache(candidate.worktree, path)
        and not (worker is not None and is_our_copy(worker, candidate.worktree, path))
    ]


# --- Views ----------------------------------------------------------------------------------

SHORT_STATUS = [
    *("-c", "status.relativePaths=false", "-c", "status.showStash=false"),
    *("status", "--short", "--untracked-files=all", "--ignore-submodules=none", "--no-renames"),
    *("--no-branch", "--no-ahead-behind"),
]


def status_view(candidate: Candidate, wish: Wish) -> View:
    """What `git status --short` says; empty where no checkout has the branch."""
    if not candidate.worktree:
        return View("", "", None)
    words = [*git.CONFIG, *SHORT_STATUS]
    done = git.git(candidate.worktree, *words, env=at(candidate.worktree))
    command = quoted_git(candidate.worktree, "status", "--short", "--untracked-files=all")
    text = shown(done.stdout if done.code == 0 else done.stderr)
    return View(command, *cut(text, "lines", TEXT_LIMIT, wish, command))


def log_view(repo: git.Repository, candidate: Candidate, commits: list[Commit], wish: Wish) -> View:
    """What `git log --oneline base..head` says."""
    span = f"{candidate.base}..{candidate.head}"
    command = quoted_git(repo.top, "log", "--oneline", span)
    text = "".join(f"{commit.id[:12]} {commit.subject}\n" for commit in commits)
    return View(command, *cut(legible(text), "commits", TEXT_LIMIT, wish, command))


def diff_views(
    repo: git.Repository,
    candidate: Candidate,
    fork: str,
    wanted: list[Change],
    blobs: dict[str, Blob],
    wish: Wish,
) -> dict[str, View]:
    """What `git diff --stat base...head` and `git diff base...head` say of the wanted changes."""
    origin = fork or candidate.base
    span = [f"{candidate.base}...{candidate.head}"] if fork else [origin, candidate.head]
    limits = ["--", *(f":(top,literal){path}" for path in wish.paths)] if wish.paths else []
    stat_command = quoted_git(repo.top, "diff", "--stat", *span, *limits)
    diff_command = quoted_git(repo.top, "diff", *span, *limits)
    stat = shown(git.stat(repo.top, origin, candidate.head, wish.paths))
    if wish.extent == "stat":
        names = [change.path for change in wanted]
        again = [word for path in wish.paths for word in ("--path", path)]
        left_out = LeftOut("the diff of files", len(names), names[:LISTED], wish.again(again))
        diff = View(diff_command, "", left_out if names else None)
    else:
        diff = View(diff_command, *diff_text(repo, candidate, origin, wanted, blobs, wish))
    stat_view = View(stat_command, *cut(stat, "lines", TEXT_LIMIT, wish, stat_command))
    return {"stat": stat_view, "diff": diff}


def diff_text(
    repo: git.Repository,
    candidate: Candidate,
    origin: str,
    wanted: list[Change],
    blobs: dict[str, Blob],
    wish: Wish,
) -> tuple[str, LeftOut | None]:
    """The diff, whole files as far as they fit, and the files that it leaves out."""
    full = wish.extent == "full"
    compared = wanted if full else comparable(wanted, blobs)
    if not compared:
        return "", None
    # A moved file is only seen as one where all files are compared.
    some = [c.path for c in compared] if len(compared) < len(wanted) else wish.paths
    patches = git.patches(repo.top, origin, candidate.head, some)
    concealed = [c.path for c in compared if is_concealed(c, blobs)]
    if concealed:
        texts = dict(git.patches(repo.top, origin, candidate.head, concealed, as_text=True))
        patches = [(path, texts.get(path, patch)) for path, patch in patches]
    shown_paths = {path for path, _ in patches}
    compared_paths = {change.path for change in compared}
    left = [c.path for c in wanted if c.path not in compared_paths]
    # Where a file was moved from is told with its new place.
    moved = compared_paths - shown_paths
    kept: list[bytes] = []
    room = DIFF_LIMIT
    for path, patch in patches:
        if full or len(patch) <= room:
            kept.append(patch)
            room -= len(patch)
        else:
            left.append(path)
    left = [path for path in left if path not in moved]
    if not left:
        return shown(b"".join(kept)), None
    if kept or len(patches) > 1:
        return shown(b"".join(kept)), files_left_out(left, wish)
    ((path, patch),) = patches
    begin = patch[: patch.rfind(b"\n", 0, DIFF_LIMIT) + 1] or patch[:DIFF_LIMIT]
    lines = patch.count(b"\n") - begin.count(b"\n")
    again = wish.again(["--path", path, "--full"])
    return shown(begin), LeftOut("lines of the diff of one file", lines, [path, *left[:-1]], again)


def comparable(wanted: list[Change], blobs: dict[str, Blob]) -> list[Change]:
    """The first of the changes whose contents are not too much together; one at least."""
    found: list[Change] = []
    room = COMPARED
    for change in wanted:
        names = (change.blob_before, change.blob_after)
        size = sum(blobs[name].size for name in names if name in blobs)
        if size <= room:
            found.append(change)
            room -= size
    return found or wanted[:1]


def is_concealed(change: Change, blobs: dict[str, Blob]) -> bool:
    """Whether an attribute makes git call a text binary, and show nothing of it."""
    sides = [blobs[name] for name in (change.blob_before, change.blob_after) if name in blobs]
    known = bool(sides) and all(side.content is not None and not side.binary for side in sides)
    return known and change.added is None


def files_left_out(paths: list[str], wish: Wish) -> LeftOut:
    """What says that the diff of whole files is not there."""
    words = [word for path in paths for word in ("--path", path)]
    if len(paths) > NAMED:
        words = [word for path in wish.paths for word in ("--path", path)]
    return LeftOut(
        "the diff of files", len(paths), sorted(paths)[:LISTED], wish.again([*words, "--full"])
    )


def cut(text: str, what: str, limit: int, wish: Wish, command: str) -> tuple[str, LeftOut | None]:
    """A text up to a limit, at the end of a line, and what that leaves out."""
    if wish.extent == "full" or len(text) <= limit:
        return text, None
    kept = text[: text.rfind("\n", 0, limit) + 1] or text[:limit]
    return kept, LeftOut(what, text.count("\n") - kept.count("\n"), [], command)


def quoted_git(folder: str, *words: str) -> str:
    """A git command that can be pasted."""
    return " ".join(map(life.quote_for_bash, ["git", "-C", folder, *words]))


def shown(content: bytes) -> str:
    """Bytes as text to read: each line as UTF-8, or else as Latin-1, which takes all bytes."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return "\n".join(map(legible_line, content.split(b"\n")))


def legible_line(line: bytes) -> str:
    """One line of `shown`."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def legible(text: str) -> str:
    """A text whose bytes that are no UTF-8 are shown as Latin-1."""
    return shown(text.encode("utf-8", "surrogateescape"))
