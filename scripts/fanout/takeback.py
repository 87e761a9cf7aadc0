"""Save what a removal would lose; take back failed spawns, and only what they made."""

from __future__ import annotations

import os
import re
import stat
import time

from fanout import delivery, git, proctree, records, worktrees
from fanout import workers as life
from fanout.edition import HELPER
from fanout.errors import SkillError
from fanout.output import say
from fanout.tmux import Pane, Server
from fanout.workers import Worker, is_our_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_WAIT = 60.0


def is_untouched(worker: Worker) -> bool:
    """Whether the agent changed nothing: tip at base, and no file beyond what spawn left there."""
    if git.ref_commit(worker.worktree, worker.branch_ref) != worker.base:
        return False
    return not agent_left(common_dir_of(worker), worker, worker.worktree)


def common_dir_of(worker: Worker) -> str:
    """The repository's own folder, from the place of the worker's administrative folder."""
    return os.path.dirname(os.path.dirname(worker.admin_dir))


def agent_left(common_dir: str, worker: Worker, root: str) -> list[worktrees.Stake]:
    """What an agent left in its tree at `root`, apart from what hooks, set-up and copies put there.

    What they put there counts as soon as it was changed after the agent's start.
    """
    try:
        record = records.worker_dir(common_dir, worker.name)
        started = os.stat(os.path.join(record, "launch.sh")).st_mtime_ns
    except FileNotFoundError:
        started = 0
    made = set(worker.made)

    def ours(path: str) -> bool:
        return is_our_copy(worker, root, path) or path.startswith(f"{life.RUNS}/")

    def is_left(path: str) -> bool:
        return path not in made or changed_since(os.path.join(root, path), started)

    found = worktrees.stakes(root, worker.admin_dir, worker.branch_ref, worker.base, ours)
    left = [s._replace(paths=[path for path in s.paths if is_left(path)]) for s in found]
    return [stake for stake in left if stake.paths]


def changed_since(path: str, moment: int) -> bool:
    """Whether a file, or any in a folder, was changed after a moment (ns).

    The inode's time is asked, which no program can set.
    """
    try:
        if not path.endswith("/"):
            return os.lstat(path).st_ctime_ns > moment
        return any(
            os.lstat(path + name).st_ctime_ns > moment for name in worktrees.walk_files(path)
        )
    except FileNotFoundError:
        return False


def take_back(repo: git.Repository, workers: list[Worker]) -> dict[str, str]:
    """Undo spawns: agent, session, worktree, branch, record; each only as spawn left it.

    By name, a sentence for each of which something was kept: because it has changed meanwhile, or
    because it could not be taken back.
    """
    kept: dict[str, str] = {}
    if not workers:
        return kept
    what = "this repository's worktrees"
    try:
        with records.lock(repo.common_dir, "repository", wait=LOCK_WAIT, what=what):
            failed = end_agents(workers)
            kept.update({name: not_taken_back(error) for name, error in failed.items()})
            for worker in workers:
                if worker.name in failed:
                    continue
                try:
                    sentence = undo(repo, worker)
                except (SkillError, OSError) as error:
                    sentence = not_taken_back(error)
                if sentence is not None:
                    kept[worker.name] = sentence
    except (SkillError, OSError) as error:
        return {worker.name: not_taken_back(error) for worker in workers}
    return kept


def not_taken_back(error: SkillError | OSError) -> str:
    """Why a spawn was not taken back, and what helps."""
    return f"it could not be taken back ({error}); run the same spawn again to do that"


def undo(repo: git.Repository, worker: Worker) -> str | None:
    """Undo one spawn whose agent has been ended, for a caller that holds the repository's lock.

    Returns None, or a sentence that says what was kept because it has changed meanwhile.
    """
    common = repo.common_dir
    resume(common, worker.worktree)
    admin = worker.admin_dir or find_admin_dir(common, worker.worktree)
    if not admin and os.path.isdir(worker.worktree):
        worktrees.remove_unlinked(worker.worktree)
    tip = git.ref_commit(common, worker.branch_ref)
    worker = worker._replace(admin_dir=admin)
    parents = folders_around(repo, worker)
    # Before the agent was started, all that is in the tree was made by this call.
    started = bool(worker.argv)
    stands = bool(admin) and os.path.isdir(worker.worktree)
    changed = started and (
        tip not in (None, worker.base)
        or (stands and bool(agent_left(common, worker, worker.worktree)))
    )
    if changed or (stands and not discard_tree(common, worker, look_again=started)):
        life.save(common, worker._replace(phase="live"))
        return (
            f"{worker.worktree!r} has changed meanwhile and was kept, with the worker's record; "
            f"see: {HELPER} status {worker.name}"
        )
    drop_entry(common, worker)
    worktrees.remove_empty(parents)
    free = worktrees.holder_of(common, repo.main_root, worker.branch_ref) is None
    if tip is not None and free:
        if tip != worker.base:
            # A hook or a set-up command committed.
            save_commits(common, worker.name, [tip])
        git.delete_branch(common, worker.branch, tip)
    retire_failed(common, worker.name)
    return None


def resume(common_dir: str, worktree: str) -> None:
    """Go on from where a killed call had set the tree aside."""
    aside = worktrees.aside_path(worktree)
    admin = worktrees.admin_dir_of(aside)
    if admin is None or os.path.lexists(worktree):
        return
    if os.path.isdir(admin):
        worktrees.move_back(aside, worktree, os.path.realpath(admin))
    elif os.path.dirname(os.path.realpath(admin)) == os.path.join(common_dir, "worktrees"):
        # The entry goes only after the last look, so the rest may go too.
        worktrees.remove_tree(aside)


def end_agents(workers: list[Worker]) -> dict[str, SkillError]:
    """End the processes and the sessions of workers that are taken back; by name, what went wrong.

    Before its first start a worker has no pane; but a set-up command may live on, whose start was
    cut off by a signal before anybody knew its pid. The mark finds it.
    """
    failed: dict[str, SkillError] = {}
    panes: dict[Server, list[Pane]] = {}
    for server in dict.fromkeys(worker.server for worker in workers if worker.argv):
        try:
            panes[server] = list(server.panes().values())
        except SkillError as error:
            failed.update({w.name: error for w in workers if w.argv and w.server == server})
    able = [worker for worker in workers if worker.name not in failed]
    own = {
        worker.name: [p for p in panes.get(worker.server, []) if p.mark == worker.launch]
        for worker in able
    }
    endings = [
        proctree.Ending([p.pid for p in own[worker.name] if not p.dead], worker.mark)
        for worker in able
    ]
    for worker, left in zip(able, proctree.end_trees(endings, grace=2.0), strict=True):
        if left:
            listed = ", ".join(str(process.pid) for process in left)
            failed[worker.name] = SkillError(
                "could-not-stop",
                f"the agent of {worker.name!r} does not end: {listed}",
                "end them, then run the same command again",
            )
    for server in panes:
        members = [worker for worker in able if worker.server == server]
        try:
            server.end_sessions([p.session for worker in members for p in own[worker.name]])
        except SkillError as error:
            failed.update({w.name: error for w in members if own[w.name]})
    return failed


def discard_tree(common: str, worker: Worker, *, look_again: bool) -> bool:
    """Set a tree aside and remove it with its entry; False when it has changed until then."""
    aside = worktrees.aside_path(worker.worktree)
    os.rename(worker.worktree, aside)
    try:
        changed = look_again and bool(agent_left(common, worker, aside))
    except BaseException:
        worktrees.move_back(aside, worker.worktree, worker.admin_dir)
        raise
    if changed:
        worktrees.move_back(aside, worker.worktree, worker.admin_dir)
        return False
    keep_runs(common, worker, aside)
    drop_entry(common, worker)
    worktrees.remove_tree(aside)
    return True


def drop_entry(common_dir: str, worker: Worker) -> None:
    """Remove the administrative entry of a tree that is no longer in its place."""
    admin = worker.admin_dir
    if not os.path.isdir(admin) or not worktrees.owns_admin_dir(admin, worker.worktree):
        return
    worktrees.drop_admin_dir(common_dir, admin, records.worker_dir(common_dir, worker.name))


def folders_around(repo: git.Repository, worker: Worker) -> list[str]:
    """The folders that may go with a tree once they are empty: those that were made for it.

    The folder that all trees stand in by default is ours, whichever of them it was made for.
    """
    made = worktrees.made_folders(worker.admin_dir)
    parent = os.path.dirname(worker.worktree)
    return made or ([parent] if parent == repo.main_root + ".worktrees" else [])


def keep_runs(common_dir: str, worker: Worker, root: str) -> None:
    """Move the worker's own records out of the tree into its record, which is archived."""
    source = os.path.join(root, life.RUNS)
    if os.path.isdir(source) and not os.path.islink(source):
        place = free_path(records.worker_dir(common_dir, worker.name), "worktree-runs")
        try:
            os.rename(source, place)
        except OSError:
            # On another file system. The import takes longer than twenty renames.
            import shutil

            shutil.move(source, place)


def free_path(folder: str, name: str) -> str:
    """A path in a folder where nothing stands: the name, or the name with a number."""
    for number in range(1, 1000):
        path = os.path.join(folder, name if number == 1 else f"{name}-{number}")
        if not os.path.lexists(path):
            return path
    raise SkillError("file-failed", f"{folder!r} is full of {name!r}")


def find_admin_dir(common_dir: str, worktree: str) -> str:
    """The administrative folder that names this tree, or an empty string."""
    wanted = os.path.realpath(worktree)
    found = worktrees.registered(common_dir)
    return next((admin for admin, path in found.items() if os.path.realpath(path) == wanted), "")


def retire_failed(common_dir: str, name: str) -> None:
    """Drop the record of a failed spawn; one that holds a log is kept in the archive."""
    folder = records.worker_dir(common_dir, name)
    logs = ("setup.log", "terminal.log")
    reports = os.path.join(folder, "worktree-runs")
    # The card is spawn's own; anything else there was written by the agent.
    if any(delivery.size_of(os.path.join(folder, log)) for log in logs) or (
        os.path.isdir(reports) and set(os.listdir(reports)) - {"worker.json"}
    ):
        records.archive(common_dir, name, "failed")
    else:
        worktrees.remove_tree(folder)


def recover(repo: git.Repository, name: str) -> None:
    """Take back what a spawn of this name left when it was killed."""
    if not os.path.lexists(life.record_file(repo.common_dir, name)):
        folder = records.worker_dir(repo.common_dir, name)
        if os.path.isdir(folder):
            worktrees.remove_tree(folder)
        return
    worker = life.load(repo.common_dir, name)
    if worker.phase == "spawning":
        say(f"taking back the spawn of {name!r} that did not finish")
        failed = end_agents([worker])
        if failed:
            raise failed[worker.name]
        undo(repo, worker)


# --- Rescue: byte for byte, under a ref of our own ------------------------------------------


OBJECT_ID = rb"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b"
IDENTITY = {
    "GIT_AUTHOR_NAME": "agent-workers",
    "GIT_AUTHOR_EMAIL": "agent-workers@localhost",
    "GIT_COMMITTER_NAME": "agent-workers",
    "GIT_COMMITTER_EMAIL": "agent-workers@localhost",
}
PREFIX = "refs/agent-workers"


def new_ref(kind: str, name: str) -> str:
    """A ref that does not exist yet, below `refs/agent-workers/<kind>/<name>/`."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{PREFIX}/{kind}/{name}/{stamp}-{records.new_id()[:6]}"


def save_tree(common_dir: str, root: str, name: str, commits: list[str]) -> tuple[str, list[str]]:
    """Save all files of a tree, its index and some commits; returns the ref and what is left out.

    Files are stored as they are, without filters or line-end conversion, tracked or not, ignored
    or not; only caches stay out and are returned. Raises SkillError `rescue-failed` when anything
    cannot be saved: then nothing may be removed.
    """
    require_savable(root)
    files, left_out = files_to_save(root)
    before = look_of(root, files)
    scratch = os.path.join(records.home(common_dir), f"rescue-{records.new_id()}.index")
    try:
        lines = lines_of(root, files, store=True)
        tree = tree_of(root, lines, scratch)
        index = save_index(root, scratch)
    finally:
        worktrees.remove_file(scratch)
    parents = list(dict.fromkeys([*commits, index]))
    message = f"Files of the worker {name} before its removal"
    ref = make_ref(common_dir, "rescue", name, commit_tree(common_dir, tree, parents, message))
    changed = files_to_save(root)[0] != files
    if not changed and look_of(root, files) != before:
        # A hard link to one of git's objects, as a clone has them, is dated anew by saving it.
        changed = lines_of(root, files, store=False) != lines
    if changed:
        raise SkillError(
            "rescue-failed", f"files in {root!r} changed while they were saved under {ref}"
        )
    return ref, left_out


def require_savable(root: str) -> None:
    """Demand a tree that holds files alone. Raises SkillError `rescue-failed`."""
    nested = worktrees.nested_repositories(root)
    if nested:
        raise SkillError(
            "rescue-failed",
            f"{', '.join(nested[:5])}: a repository of its own, not files to save; push what it "
            "holds and move it away (a submodule: `git submodule deinit`)",
        )


def save_commits(common_dir: str, name: str, commits: list[str]) -> str:
    """Keep commits whose branch is deleted; returns the ref."""
    tree = git.require_git(common_dir, "rev-parse", f"{commits[0]}^{{tree}}").text.strip()
    message = f"Commits of the worker {name} before its removal"
    return make_ref(common_dir, "rescue", name, commit_tree(common_dir, tree, commits, message))


def make_ref(common_dir: str, kind: str, name: str, commit: str) -> str:
    """Put a commit under a new ref of ours, and read it back; returns the ref."""
    ref = new_ref(kind, name)
    git.require_git(common_dir, "update-ref", "--create-reflog", ref, commit, "")
    if git.ref_commit(common_dir, ref) != commit:
        raise SkillError(
            "rescue-failed", f"{ref} does not hold what was saved; nothing was removed"
        )
    return ref


def look_of(root: str, files: list[str]) -> list[tuple[int, ...]]:
    """What changes with any change of these files."""
    looks = (os.lstat(os.path.join(root, path)) for path in files)
    return [(s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in looks]


def files_to_save(root: str) -> tuple[list[str], list[str]]:
    """Every file and link of a tree; and the caches that are left out.

    A folder counts as a cache only where git ignores it. `.worker-runs/` is kept elsewhere.
    """
    status = worktrees.read_status(root, ignored=True)
    caches = {path for path in status.ignored if worktrees.is_cache(root, path)}
    folders = tuple(path for path in caches if path.endswith("/"))
    files = [
        path
        for path in worktrees.walk_files(root)
        if path != ".git"
        and path not in caches
        and not path.startswith((*folders, ".worker-runs/"))
    ]
    return sorted(files), sorted(caches)


def lines_of(root: str, files: list[str], *, store: bool) -> list[bytes]:
    """The files as lines for `tree_of`, without filters; with `store` git keeps what they hold."""
    command = ["hash-object", *(["-w"] if store else [])]
    plain: list[str] = []
    lines: list[bytes] = []
    for path in files:
        full = os.path.join(root, path)
        mode = os.lstat(full).st_mode
        if stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(full))
            blob = git.require_git(
                root, *command, "--stdin", stdin=target, env=worktrees.at(root)
            ).text.strip()
            lines.append(f"120000 {blob} 0\t".encode() + os.fsencode(path))
        elif stat.S_ISREG(mode):
            plain.append(path)
        # Sockets, pipes and devices hold no bytes.
    done = git.require_git(
        root,
        *command,
        "--no-filters",
        "--stdin-paths",
        stdin=b"".join(worktrees.quoted(path) + b"\n" for path in plain),
        env=worktrees.at(root),
    )
    blobs = done.text.split()
    if len(blobs) != len(plain):
        raise SkillError("rescue-failed", "git did not store every file; nothing was removed")
    for path, blob in zip(plain, blobs, strict=True):
        lines.append(entry(os.lstat(os.path.join(root, path)).st_mode, blob, path))
    return lines


def tree_of(root: str, lines: list[bytes], scratch: str) -> str:
    """Write lines for `update-index --index-info` as a tree object; returns its id."""
    env = {**worktrees.at(root), "GIT_INDEX_FILE": scratch}
    git.require_git(root, "read-tree", "--empty", env=env)
    git.require_git(root, "update-index", "-z", "--index-info", stdin=b"\0".join(lines), env=env)
    return git.require_git(root, "write-tree", env=env).text.strip()


def entry(mode: int, blob: str, path: str) -> bytes:
    """One line for `update-index --index-info`."""
    kind = "100755" if mode & stat.S_IXUSR else "100644"
    return f"{kind} {blob} 0\t".encode() + os.fsencode(path)


def save_index(root: str, scratch: str) -> str:
    """Commit the index as it stands, also what is staged only; returns the commit.

    An index with conflicts is no tree: then each stage of it is a folder, `0` to `3`.
    """
    if not git.require_git(root, "ls-files", "-u", "-z", env=worktrees.at(root)).stdout:
        tree = git.require_git(root, "write-tree", env=worktrees.at(root)).text.strip()
        return commit_tree(root, tree, [], "Index of the worker before its removal")
    lines: list[bytes] = []
    for row in git.require_git(root, "ls-files", "-s", "-z", env=worktrees.at(root)).stdout.split(
        b"\0"
    ):
        if row:
            info, _, path = row.partition(b"\t")
            mode, blob, stage = info.split(b" ")
            lines.append(mode + b" " + blob + b" 0\t" + stage + b"/" + path)
    tree = tree_of(root, lines, scratch)
    return commit_tree(root, tree, [], "Index of the worker, a folder for each stage")


def commit_tree(directory: str, tree: str, parents: list[str], message: str) -> str:
    """Make a commit object of our own making; returns its id."""
    options = [word for parent in parents for word in ("-p", parent)]
    done = git.require_git(directory, "commit-tree", tree, *options, "-m", message, env=IDENTITY)
    return done.text.strip()


def keep_commits(common_dir: str, name: str, ids: list[str]) -> str | None:
    """Put commits that no ref reaches any more under a ref of ours; None when all are reached.

    They stand only in files that go with a worktree: amended, reset away, made while detached, or
    set aside by an operation in progress. Ids of anything but commits are passed over.
    """
    if not ids:
        return None
    lines = "\n".join(dict.fromkeys(ids)) + "\n"
    known = git.require_git(common_dir, "cat-file", "--batch-check", stdin=lines.encode())
    rows = [line.split(" ") for line in known.text.split("\n")]
    commits = [row[0] for row in rows if row[1:2] == ["commit"]]
    if not commits:
        return None
    # Not `--all`: that counts the HEAD of the very worktree that goes. It follows `--stdin`,
    # because options inside of stdin need git 2.42.
    done = git.require_git(
        common_dir, "rev-list", "--stdin", "--not", "--glob=refs/*",
        stdin="\n".join(commits).encode(),
    )  # fmt: skip
    loose = set(done.text.split())
    tips = [commit for commit in dict.fromkeys(commits) if commit in loose]
    if not tips:
        return None
    tree = git.require_git(common_dir, "rev-parse", f"{tips[0]}^{{tree}}").text.strip()
    message = f"Commits that only the worker {name} had reached"
    return make_ref(common_dir, "archive", name, commit_tree(common_dir, tree, tips, message))


def naming_files(admin_dir: str) -> Iterator[str]:
    """The files of a worktree's own that name commits: HEAD, reflogs, refs, operations."""
    if not os.path.isdir(admin_dir):
        return
    for path in worktrees.walk_files(admin_dir):
        if path.split("/")[0] != "modules" and not path.startswith("index"):
            yield os.path.join(admin_dir, path)


def ids_in(path: str) -> list[str]:
    """Everything in a file that looks like the id of an object."""
    try:
        with open(path, "rb") as file:
            found = re.findall(OBJECT_ID, file.read())
    except OSError:
        return []
    return sorted({word.decode() for word in found if word.strip(b"0")})
