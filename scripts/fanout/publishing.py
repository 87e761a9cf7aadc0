"""Run checks on a commit elsewhere; move a branch to it, the user's checkout following unharmed."""

from __future__ import annotations

import contextlib
import os
import time

from fanout import git, proctree, records, worktrees
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.output import path_list, progress, say
from fanout.process import Talk
from fanout.tmux import environment_with
from fanout.worktrees import Stake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

TREE_LOCK_WAIT = 60.0
ORPHAN_WAIT = 10.0
MARK = "AGENT_WORKERS_INTEGRATION"


class Check(NamedTuple):
    """How one check ended. `exit_code` is None when it did not end in time or did not start.

    `reason` says why it counts as failed where the exit code alone does not; `log` is absolute.
    """

    command: str
    exit_code: int | None
    log: str
    seconds: float
    reason: str

    @property
    def passed(self) -> bool:
        """Whether the check says that all is well."""
        return self.exit_code == 0 and not self.reason

    def to_json(self) -> dict[str, Any]:
        """The row of `data.checks`."""
        return {**self._asdict(), "passed": self.passed}


def tree_path(repo: git.Repository, integration_id: str, number: int) -> str:
    """Where a throw-away tree stands: beside the workers' trees, outside of every checkout."""
    return f"{repo.main_root}.worktrees/integration-{integration_id}-{number}"


def run_checks(
    repo: git.Repository,
    commit: str,
    commands: list[str],
    *,
    tree: str,
    logs: str,
    timeout: float,
) -> list[Check]:
    """Run commands on a commit one after the other, up to the first that fails.

    The tree is made for this and removed afterwards, with all that the commands left in it and
    all processes that they started.
    """
    if not commands:
        return []
    records.make_dir(logs)
    mark = f"{MARK}={os.path.basename(tree)}"
    admin = add_tree(repo, tree, commit)
    found: list[Check] = []
    try:
        worktrees.fill_worktree(tree)
        for command in commands:
            progress(f"checking: {command}")
            log = f"{logs}/{len(os.listdir(logs)) + 1:02d}.log"
            shared = read_shared(repo.common_dir, commit)
            check = run_check(command, commit, tree=tree, log=log, timeout=timeout, mark=mark)
            left = what_is_left(repo.common_dir, commit, shared)
            if left:
                check = check._replace(reason="; ".join(filter(None, (check.reason, left))))
            found.append(check)
            if not found[-1].passed:
                break
    finally:
        remove_tree(repo, tree, admin, mark)
    return found


def run_check(
    command: str, commit: str, *, tree: str, log: str, timeout: float, mark: str
) -> Check:
    """Run one command. A check that could not run, or that changes what it checks, has failed."""
    name, _, value = mark.partition("=")
    env = environment_with({name: value})
    others = {process.identity for process in proctree.processes()}
    started = time.monotonic()
    code: int | None = None
    reason = ""
    try:
        code = proctree.run_logged(
            ["bash", "-c", command], cwd=tree, env=env, log=log, timeout=timeout, mark=mark
        )
        reason = f"did not end in {timeout:g} s" if code is None else ""
    except SkillError as error:
        reason = error.message
    seconds = round(time.monotonic() - started, 3)
    proctree.end_tree([], mark, grace=2.0)
    end_inside(tree, others)
    if code == 0:
        reason = edited(tree, commit)
    return Check(command, code, log, seconds, reason)


def edited(tree: str, commit: str) -> str:
    """How a tree differs from the commit that it was made for; empty when it does not.

    What is published is the commit: a check of anything else says nothing about it.
    """
    try:
        status = worktrees.read_status(tree)
        hidden, _ = worktrees.hidden_changes(tree, worktrees.at(tree))
    except SkillError as error:
        return f"the tree could not be read afterwards: {error.message}"
    if status.head != commit:
        return f"it moved HEAD to {status.head[:12]}"
    paths = sorted({*status.staged, *status.modified, *status.conflicted, *hidden})
    return f"it changed files that are checked in: {path_list(paths, 10)}" if paths else ""


def end_inside(tree: str, others: set[tuple[int, str]]) -> None:
    """End what still works in a tree, but for those processes that were there before the check.

    One that emptied its environment carries no mark.
    """
    root = os.path.realpath(tree)
    inside = [
        process.pid
        for process, place in proctree.working_directories()
        if (place == root or place.startswith(f"{root}/")) and process.identity not in others
    ]
    if inside:
        proctree.end_tree(inside, f"{MARK}={os.path.basename(tree)}", grace=2.0)


# --- What all worktrees share ----------------------------------------------------------------


class Shared(NamedTuple):
    """What a check can change for all worktrees: the stashes, and the refs at its commit."""

    stashes: list[str]
    refs: list[str]


def read_shared(common_dir: str, commit: str) -> Shared:
    """The ids of all stashes, and the refs that stand at a commit."""
    # Without any stash there is no such ref.
    done = git.git(common_dir, "reflog", "show", "--format=%H", "refs/stash")
    stashes = done.text.split() if done.code == 0 else []
    words = ["for-each-ref", f"--points-at={commit}", "--format=%(refname)"]
    return Shared(stashes, git.require_git(common_dir, *words).text.split())


def what_is_left(common_dir: str, commit: str, before: Shared) -> str:
    """What a check has left in, or taken from, the repository that it shares; empty for nothing.

    Others may stash and make branches meanwhile: only what starts from its commit is its own.
    """
    after = read_shared(common_dir, commit)
    words: list[str] = []
    lost = [stash for stash in before.stashes if stash not in after.stashes]
    if lost:
        how = "`git stash store ID` brings one back"
        words.append(f"stashes were taken away meanwhile: {', '.join(lost)} ({how})")
    made = [stash for stash in after.stashes if stash not in before.stashes]
    mine = [stash for stash in made if git.ref_commit(common_dir, f"{stash}^1") == commit]
    if mine:
        words.append(f"it left a stash, which all worktrees share: {', '.join(mine)}")
    # A commit that others know may get a branch of theirs.
    if after.refs and not before.refs:
        words.append(f"it made {', '.join(after.refs)}")
    return "; ".join(words)


# --- What a killed call leaves ---------------------------------------------------------------


@contextlib.contextmanager
def marked(integration_id: str) -> Generator[None, None, None]:
    """Mark whatever this process starts as a part of one integration.

    Git goes on when only the command that waits for it is killed.
    """
    outer = os.environ.get(MARK)
    os.environ[MARK] = integration_id
    try:
        yield
    finally:
        if outer is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = outer


def await_end(integration_id: str) -> None:
    """Wait until the git commands of a killed call have ended. Raises SkillError `busy` (exit 11).

    What a hook or a filter has left running is none of them.
    """
    deadline = time.monotonic() + ORPHAN_WAIT
    while True:
        found = proctree.tree([], f"{MARK}={integration_id}")
        alive = [p for p in found if os.path.basename(p.command.split(" ")[0]) == "git"]
        if not alive:
            return
        if time.monotonic() >= deadline:
            pids = ", ".join(str(process.pid) for process in alive)
            raise SkillError(
                "busy",
                f"git is still at work for the interrupted integration {integration_id}: {pids}",
                "wait for it to end, then run this again",
                exit_code=ExitCode.BUSY,
            )
        time.sleep(0.02)


# --- Throw-away trees ------------------------------------------------------------------------


def add_tree(repo: git.Repository, path: str, commit: str) -> str:
    """Make an empty worktree at a commit without any branch; returns its administrative folder."""
    with records.lock(repo.common_dir, "repository", wait=TREE_LOCK_WAIT, what="the worktrees"):
        return worktrees.add_detached(repo, path, commit, trash_of(repo))


def remove_tree(repo: git.Repository, path: str, admin_dir: str, mark: str = "") -> None:
    """Remove a throw-away tree that this command, or one that was killed, has made."""
    if mark:
        proctree.end_tree([], mark, grace=1.0)
    with records.lock(repo.common_dir, "repository", wait=TREE_LOCK_WAIT, what="the worktrees"):
        parents = worktrees.made_folders(admin_dir)
        worktrees.remove_tree(path)
        moved = worktrees.registered_path(admin_dir) if admin_dir else None
        if moved not in (None, path) and os.path.isdir(str(moved)):
            say(f"note: the tree for checks {path!r} was moved to {moved!r}; it is left there")
        if os.path.isdir(admin_dir) and worktrees.owns_admin_dir(admin_dir, path):
            worktrees.drop_admin_dir(repo.common_dir, admin_dir, trash_of(repo))
        worktrees.remove_empty(parents)


def trash_of(repo: git.Repository) -> str:
    """The folder in which entries of throw-away trees are made and dropped; made by this."""
    folder = f"{records.home(repo.common_dir)}/integrations"
    records.make_dir(folder)
    return folder


# --- Publishing: no edit of the user's is lost ----------------------------------------------


# How long git may take to answer within a transaction; a hook of the user's may be at work.
ANSWER_LIMIT = 120.0
# How often it is tried again because the checkout was switched meanwhile.
TRIES = 3
# A git command of the user's holds its locks for a moment.
LOCK_WAIT = 1.0


class Checkout(NamedTuple):
    """The worktree that has a branch checked out: its top and its administrative folder."""

    path: str
    admin_dir: str


def checkout_of(repo: git.Repository, ref: str) -> Checkout | None:
    """The checkout that has to follow when a branch moves, or None where nothing has it.

    Raises SkillError `checked-out-twice`, `operation-in-progress`, `checkout-missing` (exit 3).
    """
    holders = worktrees.holders_of(repo.common_dir, repo.main_root, ref)
    if not holders:
        return None
    if len(holders) > 1:
        raise refused(
            "checked-out-twice",
            f"{ref} is checked out in {', '.join(map(repr, holders))}",
            "switch all but one of them to another branch",
        )
    path = os.path.realpath(holders[0])
    if path == repo.common_dir:
        # A bare repository's HEAD names a branch without having any files of it.
        return None
    if not os.path.isdir(path):
        raise refused(
            "checkout-missing",
            f"{ref} is checked out in {path!r}, which is not there",
            "bring that folder back, or remove the worktree with git",
        )
    done = git.require_git(path, "rev-parse", "--path-format=absolute", "--git-dir")
    checkout = Checkout(path, os.path.realpath(done.text.removesuffix("\n")))
    require_idle(checkout)
    return checkout


def require_idle(checkout: Checkout) -> None:
    """Demand that no merge, rebase or the like is under way. Raises `operation-in-progress`."""
    admin = checkout.admin_dir
    busy = [name for name in worktrees.OPERATIONS if os.path.lexists(os.path.join(admin, name))]
    if busy:
        raise refused(
            "operation-in-progress",
            f"{checkout.path!r} is in the middle of something: {', '.join(busy)}",
            "finish or abort it first; `git status` there says how",
        )


def changed_paths(
    repo_dir: str, before: str, after: str, env: dict[str, str] | None = None
) -> list[str]:
    """The paths that differ between two commits."""
    done = git.require_git(
        repo_dir, "diff-tree", "-r", "-z", "--name-only", "--no-renames",
        "--ignore-submodules=none", before, after, env=env,
    )  # fmt: skip
    return [path for path in done.text.split("\0") if path]


def related_edits(checkout: Checkout, paths: list[str]) -> list[Stake]:
    """The user's own changes that stand in the way of paths that are about to change.

    Others stay as they are. Ignored files count: writing over one would lose it.
    """
    status = worktrees.read_status(checkout.path, ignored=True)
    env = worktrees.at(checkout.path)
    hidden, _ = worktrees.hidden_changes(checkout.path, env)
    groups = {
        "conflicted": status.conflicted,
        "staged": status.staged,
        "modified": [*status.modified, *status.submodules],
        "hidden-changes": hidden,
        "untracked": status.untracked,
        "ignored": status.ignored,
    }
    wanted = frozenset(paths)
    folders = {"/".join(p.split("/")[:n]) for p in paths for n in range(1, p.count("/") + 1)}
    found = [
        Stake(code, sorted({path for path in members if meets(path, wanted, folders)}))
        for code, members in groups.items()
    ]
    locks = [f"{checkout.admin_dir}/index.lock"]
    found.append(Stake("index-locked", [worktrees.aged(p) for p in locks if os.path.lexists(p)]))
    return [stake for stake in found if stake.paths]


def meets(path: str, wanted: frozenset[str], folders: set[str]) -> bool:
    """Whether a local path is one that changes, lies below one, or stands where one has to go."""
    bare = path.rstrip("/")
    parts = bare.split("/")
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    if above & wanted:
        return True
    # A folder that is ignored as a whole may hold one of them; a file may stand in its place.
    return bare in folders


def require_free(checkout: Checkout | None, paths: list[str]) -> None:
    """Demand that no local edit is in the way. Raises SkillError `local-edits` (exit 3)."""
    stakes = related_edits(checkout, paths) if checkout is not None else []
    if checkout is not None and stakes:
        listed = [path for stake in stakes for path in stake.paths]
        raise SkillError(
            "local-edits",
            f"{checkout.path!r} has changes in the way: {path_list(listed, 10)}",
            "commit them or move them away; changes in other files may stay",
            exit_code=ExitCode.REFUSED,
            data={
                "local_edits": [{"code": s.code, "paths": s.paths} for s in stakes],
                "checkout": checkout.path,
            },
        )


def require_unlocked(repo: git.Repository, ref: str, checkout: Checkout | None) -> None:
    """Demand that no git command holds the branch, or its checkout's index or HEAD.

    Those that were killed leave their locks; all are named at once. Raises SkillError `git-locked`
    (exit 3).
    """
    places = [f"{repo.common_dir}/{ref}.lock"]
    if checkout is not None:
        places += [f"{checkout.admin_dir}/{name}.lock" for name in ("HEAD", "index")]
    deadline = time.monotonic() + LOCK_WAIT
    while locks := [place for place in places if os.path.lexists(place)]:
        if time.monotonic() >= deadline:
            raise refused(
                "git-locked",
                f"a git command holds, or left, {', '.join(map(worktrees.aged, locks))}",
                "wait for it; if none is at work, delete what is named, then run this again",
            )
        time.sleep(0.02)


def publish(
    repo: git.Repository, ref: str, before: str, after: str, why: str, begin: Callable[[str], None]
) -> bool:
    """Move a branch from one commit to another; False when it is no longer at the first.

    `begin` is told which checkout is to follow (empty: none) before anything is touched. It is
    looked for now: while the checks ran somebody may have switched it. Raises SkillError
    `local-edits`, `git-locked` (exit 3), `checkout-failed`, `git-failed`, `busy` (exit 11).
    """
    for _ in range(TRIES):
        checkout = checkout_of(repo, ref)
        begin(checkout.path if checkout is not None else "")
        moved = try_to_publish(repo, ref, before, after, checkout, why)
        if moved is not None:
            return moved
    raise SkillError(
        "busy",
        f"the checkout of {ref} is switched again and again",
        "run this again when nobody switches branches there",
        exit_code=ExitCode.BUSY,
    )


def try_to_publish(
    repo: git.Repository, ref: str, before: str, after: str, checkout: Checkout | None, why: str
) -> bool | None:
    """`publish` with one checkout; None when another one has the branch by now.

    The branch is locked by git first; then the checkout follows; then the branch moves. So nobody
    can commit in between, and whatever fails leaves both as they were.
    """
    place = checkout.path if checkout is not None else repo.common_dir
    paths = changed_paths(repo.common_dir, before, after)
    if checkout is not None:
        require_free(checkout, paths)
        require_filters(repo, checkout, after, paths)
        # Files that were only touched would count as changed.
        git.git(place, "update-index", "-q", "--refresh", env=worktrees.at(place))
    # In the checkout, so that its HEAD has an entry in its reflog too.
    transaction = Transaction(place, why)
    try:
        if not transaction.prepare(ref, before, after):
            if git.ref_commit(repo.common_dir, ref) != before:
                return False
            require_unlocked(repo, ref, checkout)
            raise SkillError("git-failed", f"{ref} cannot be locked: {transaction.trouble}")
        if checkout_of(repo, ref) != checkout:
            return None
        # Git itself would write over an ignored file that has come since.
        require_free(checkout, paths)
        try:
            if checkout is not None:
                follow(checkout, before, after)
            transaction.commit()
        except BaseException:
            # A signal may have met git in the middle of it.
            if checkout is not None and git.ref_commit(repo.common_dir, ref) == before:
                kept = put_back(repo, checkout, before, after)
                if kept:
                    say(f"note: these files were left as they are: {path_list(kept, 10)}")
            raise
    finally:
        transaction.close()
    return True


def require_filters(repo: git.Repository, checkout: Checkout, after: str, paths: list[str]) -> None:
    """Demand that the files of a commit can be written, where a filter has to work for that.

    Git would notice one that fails (that of LFS may be missing) when it had written half of them.
    So they are written to a folder aside first. Raises SkillError `checkout-failed` (exit 3).
    """
    words = ["config", "--type=bool", "--get-regexp", r"^filter\..*\.required$"]
    if " true" not in git.git(checkout.path, *words).text:
        return
    written = b"".join(os.fsencode(p) + b"\0" for p in places(repo.common_dir, after, paths))
    aside = f"{records.home(repo.common_dir)}/aside-{records.new_id()}"
    records.make_dir(aside)
    env = {"GIT_INDEX_FILE": f"{aside}/index", "GIT_WORK_TREE": f"{aside}/files"}
    os.mkdir(env["GIT_WORK_TREE"])
    try:
        git.require_git(checkout.path, "read-tree", after, env=env)
        words = ["checkout-index", "-q", "-z", "--stdin"]
        # Below the other tree: it takes paths from where it is called.
        done = git.git(
            env["GIT_WORK_TREE"], *words, stdin=written, env={**env, "GIT_DIR": checkout.admin_dir}
        )
    finally:
        worktrees.remove_tree(aside)
    if done.code != 0:
        raise SkillError(
            "checkout-failed",
            f"files that are to come into {checkout.path!r} cannot be written: {done.error_text}",
            "see that the programs of `git config --get-regexp ^filter` work; nothing was changed",
            exit_code=ExitCode.REFUSED,
        )


def follow(checkout: Checkout, before: str, after: str) -> None:
    """Bring files and index of a checkout from one commit to another; local changes stay.

    `git read-tree -m -u` refuses as a whole, before it writes, where one is in the way.
    """
    done = git.git(
        checkout.path, "-c", "submodule.recurse=false", "read-tree", "-m", "-u", before, after,
        env=worktrees.at(checkout.path),
    )  # fmt: skip
    if done.code != 0:
        raise SkillError(
            "checkout-failed",
            f"{checkout.path!r} cannot follow: {done.error_text}",
            "clear what is named; the branch was not moved",
            exit_code=ExitCode.REFUSED,
        )


class Transaction:
    """One `git update-ref --stdin` that holds a branch's lock between prepare and commit.

    Without a commit git lets go of the lock, also when this process is killed.
    """

    def __init__(self, cwd: str, why: str) -> None:
        words = ["update-ref", "--create-reflog", "-m", why, "--stdin"]
        self.talk = Talk(git.git_command(cwd, *words), env=git.git_environment())

    @property
    def trouble(self) -> str:
        """What git said when it would not go on."""
        return self.talk.trouble

    def prepare(self, ref: str, before: str, after: str) -> bool:
        """Lock the branch if it is where it is believed to be."""
        words = f"start\noption no-deref\nupdate {ref} {after} {before}\nprepare\n"
        return self.talk.ask(words, "prepare: ok\n", ANSWER_LIMIT)

    def commit(self) -> None:
        """Move the branch. Raises SkillError `git-failed`."""
        if not self.talk.ask("commit\n", "commit: ok\n", ANSWER_LIMIT):
            raise SkillError("git-failed", f"git update-ref failed: {self.trouble}")

    def close(self) -> None:
        """Let go of the lock, if it is still held."""
        self.talk.close()


# --- After a crash --------------------------------------------------------------------------


class Place(NamedTuple):
    """What stands at one path of a commit, an index or a checkout: its mode and its blob."""

    mode: str
    blob: str

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return self.mode == "120000"


def checkout_at(repo: git.Repository, path: str) -> Checkout | None:
    """The checkout that a killed command has recorded, whatever branch it is on by now.

    None where it is no checkout of this repository any more. Raises SkillError
    `operation-in-progress` (exit 3).
    """
    admins = {place: admin for admin, place in worktrees.registered(repo.common_dir).items()}
    admins.setdefault(repo.main_root, repo.common_dir)
    admin = admins.get(path)
    if admin is None or not os.path.isdir(path):
        return None
    checkout = Checkout(path, admin)
    require_idle(checkout)
    return checkout


def put_back(repo: git.Repository, checkout: Checkout, before: str, after: str) -> list[str]:
    """Bring a checkout back that had begun to follow when its command was killed.

    An entry of the index is touched only where it is that of `after`; a file only where it holds
    what `after` has there, or a beginning of it, or is missing. What the user has committed since
    is his. Returns the paths that hold something else, which stay as they are. Raises SkillError
    `git-failed`.
    """
    env = worktrees.at(checkout.path)
    paths = changed_paths(repo.common_dir, before, after)
    old, new = places(repo.common_dir, before, paths), places(repo.common_dir, after, paths)
    head = git.require_git(checkout.path, "rev-parse", "--verify", "HEAD^{commit}").text.strip()
    here = old if head == before else places(repo.common_dir, head, paths)
    paths = [path for path in paths if here.get(path) == old.get(path)]
    index = index_places(checkout, paths)
    moved = [path for path in paths if index.get(path) == new.get(path)]
    if moved and not has_followed(checkout, after, before):
        # Something of the user's is in the way of the whole: the index alone, entry by entry.
        reset_index(checkout, moved, old)
    index = index_places(checkout, paths)
    kept = put_files_back(checkout, paths, old, new, index)
    git.git(checkout.path, "update-index", "-q", "--refresh", env=env)
    return kept


def has_followed(checkout: Checkout, before: str, after: str) -> bool:
    """Whether the checkout could follow as a whole."""
    try:
        follow(checkout, before, after)
    except SkillError:
        return False
    return True


def places(repo_dir: str, commit: str, paths: list[str]) -> dict[str, Place]:
    """What a commit has at these paths."""
    wanted = set(paths)
    done = git.require_git(repo_dir, "ls-tree", "-r", "-z", "--full-tree", commit)
    found: dict[str, Place] = {}
    for entry in done.text.split("\0"):
        info, _, path = entry.partition("\t")
        if path in wanted:
            mode, _, blob = info.split(" ")
            found[path] = Place(mode, blob)
    return found


def index_places(checkout: Checkout, paths: list[str]) -> dict[str, Place]:
    """What the index has at these paths; what a sparse checkout leaves out is none of them."""
    wanted = set(paths)
    env = worktrees.at(checkout.path)
    done = git.require_git(checkout.path, "ls-files", "-t", "-s", "-z", "--full-name", env=env)
    found: dict[str, Place] = {}
    for entry in done.text.split("\0"):
        info, _, path = entry.partition("\t")
        if path in wanted:
            tag, mode, blob, stage = info.split(" ")
            found[path] = Place(mode if (tag, stage) == ("H", "0") else "", blob)
    return found


def reset_index(checkout: Checkout, paths: list[str], old: dict[str, Place]) -> None:
    """Put entries of the index back; those that go come first, they may stand in the way."""
    none = Place("0", worktrees.NULL_ID)
    rows = sorted((path in old, old.get(path, none), path) for path in paths)
    words = b"".join(os.fsencode(f"{p.mode} {p.blob}\t{path}\0") for _, p, path in rows)
    git.require_git(
        checkout.path, "update-index", "-z", "--index-info", stdin=words,
        env=worktrees.at(checkout.path),
    )  # fmt: skip


def put_files_back(
    checkout: Checkout,
    paths: list[str],
    old: dict[str, Place],
    new: dict[str, Place],
    index: dict[str, Place],
) -> list[str]:
    """Bring the files back whose index entries are back; returns those that are the user's."""
    top = checkout.path
    found = file_places(top, paths)

    def holds(path: str, wanted: dict[str, Place], other: dict[str, Place]) -> bool:
        here, there = found.get(path), wanted.get(path)
        if here is None or there is None or here.is_link != there.is_link:
            return False
        # Where a file system knows no executable files, only the content tells.
        decides = path in other and other[path].blob == there.blob
        return here.blob == there.blob and (here.mode == there.mode or not decides)

    def is_ours(path: str) -> bool:
        return holds(path, new, old) or (path in new and is_begun(top, path, new[path]))

    kept: list[str] = []
    # What came goes first: it may stand where something else was.
    for path in [path for path in paths if path not in old and path not in index]:
        if new[path].mode == "160000":
            worktrees.remove_empty([os.path.join(top, path)])
        elif is_ours(path):
            remove(top, path)
        elif path in found:
            kept.append(path)
    restored: list[str] = []
    for path in [path for path in paths if path in old and index.get(path) == old[path]]:
        if holds(path, old, new):
            continue
        if path in found and is_ours(path):
            worktrees.remove_file(os.path.join(top, path))
        if stands(top, path) == "nothing" and is_way_free(top, path):
            restored.append(path)
        elif old[path].mode != "160000":
            kept.append(path)
    if restored:
        words = b"".join(os.fsencode(path) + b"\0" for path in restored)
        # Without -f nothing is overwritten.
        git.require_git(
            top, "checkout-index", "-u", "-z", "--stdin", stdin=words, env=worktrees.at(top)
        )
    return kept


def file_places(top: str, paths: list[str]) -> dict[str, Place]:
    """The files and links that stand at these paths of a checkout, as git would store them."""
    kinds = {path: stands(top, path) for path in paths}
    found: dict[str, Place] = {}
    files = [path for path, kind in kinds.items() if kind == "file"]
    if files:
        names = b"".join(worktrees.quoted(path) + b"\n" for path in files)
        words = ["hash-object", "--stdin-paths"]
        blobs = git.require_git(top, *words, stdin=names, env=worktrees.at(top)).text.split()
        for path, blob in zip(files, blobs, strict=True):
            executable = os.lstat(os.path.join(top, path)).st_mode & 0o100
            found[path] = Place("100755" if executable else "100644", blob)
    for path in [path for path, kind in kinds.items() if kind == "link"]:
        target = os.fsencode(os.readlink(os.path.join(top, path)))
        blob = git.require_git(top, "hash-object", "--stdin", stdin=target).text.strip()
        found[path] = Place("120000", blob)
    return found


def stands(top: str, path: str) -> str:
    """What stands at a path of a checkout, as `worktrees.kind_of`; behind a link is nothing."""
    folder = os.path.dirname(path)
    while folder:
        if os.path.islink(os.path.join(top, folder)):
            return "nothing"
        folder = os.path.dirname(folder)
    return worktrees.kind_of(os.path.join(top, path))


def is_way_free(top: str, path: str) -> bool:
    """Whether every folder above a path is one, or is not there."""
    folder = os.path.dirname(path)
    while folder:
        if worktrees.kind_of(os.path.join(top, folder)) in ("file", "link"):
            return False
        folder = os.path.dirname(folder)
    return True


def is_begun(top: str, path: str, place: Place) -> bool:
    """Whether a file holds the beginning of what git was to write there.

    Git writes a file under its own name: when it is killed, that is what it leaves. It holds no
    byte that the commit does not hold.
    """
    if place.is_link or stands(top, path) != "file":
        return False
    with open(os.path.join(top, path), "rb") as file:
        content = file.read()
    words = ["cat-file", "--filters", f"--path={path}", place.blob]
    return not content or git.require_git(top, *words).stdout.startswith(content)


def remove(top: str, path: str) -> None:
    """Remove a file and the folders that are empty then."""
    worktrees.remove_file(os.path.join(top, path))
    above = path.split("/")[:-1]
    folders = ["/".join(above[:depth]) for depth in range(len(above), 0, -1)]
    worktrees.remove_empty([os.path.join(top, folder) for folder in folders])
