"""Integrations: three-way merges without a working tree, an index or a hook, and their records."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time

from fanout import git, proctree, records
from fanout.errors import SkillError, missing, usage
from fanout.fields import NamedTuple
from fanout.process import run
from fanout.worktrees import remove_quickly, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
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


# --- Merging: git merge-tree --write-tree ---------------------------------------------------


# Directory renames are guessed from similarity; a guess must not move files unseen.
MERGE_CONFIG = ("-c", "merge.directoryRenames=conflict", "-c", "merge.renames=true")
# What goes again at once is neither pressed nor made to last.
SCRATCH_CONFIG = ("-c", "core.looseCompression=0", "-c", "core.createObject=rename")
# From git-merge-tree(1): the status of one of several merges.
CLEAN, CONFLICT = "1", "0"
SCRATCH = "agent-workers-"
OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SIGN_LIMIT = 30.0
# In the environment of whatever signs, so that it can be ended.
SIGN_MARK = "AGENT_WORKERS_SIGNING"


class Merged(NamedTuple):
    """What one merge comes to: `outcome` is `clean`, `conflict` or `unknown`.

    `tree` is the result, with markers in it where it conflicts. `paths` and `kinds` say what
    conflicts, and how in git's words, such as `content` or `rename/delete`; `why` says what makes
    it unknown.
    """

    outcome: str
    tree: str = ""
    paths: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """What answers say of a merge."""
        found: dict[str, Any] = {"outcome": self.outcome, "paths": list(self.paths)}
        if self.kinds:
            found["kinds"] = list(self.kinds)
        if self.why:
            found["why"] = self.why
        return found


# --- Where objects go -----------------------------------------------------------------------


@contextlib.contextmanager
def scratch(common_dir: str) -> Generator[dict[str, str], None, None]:
    """An environment in which git writes its objects to a folder that goes afterwards.

    What the repository has can be read there, and stays as it is.
    """
    folder, descriptor = make_scratch(common_dir)
    try:
        yield {
            "GIT_OBJECT_DIRECTORY": folder,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": alternate(f"{common_dir}/objects"),
        }
    finally:
        remove_quickly([folder])
        remove_tree(folder)
        os.close(descriptor)


def scratch_places(common_dir: str) -> list[str]:
    """Where scratch folders may stand: beside the repository's objects, which is as fast as they.

    One that may only be read has them elsewhere.
    """
    return [common_dir, os.path.abspath(os.environ.get("TMPDIR") or "/tmp")]


def make_scratch(common_dir: str) -> tuple[str, int]:
    """A new scratch folder, and the descriptor that holds it: the kernel frees it at our end."""
    writable = [p for p in scratch_places(common_dir) if os.access(p, os.W_OK | os.X_OK)]
    place = writable[0] if writable else common_dir
    while True:
        folder = os.path.join(place, f"{SCRATCH}{records.new_id()}")
        os.mkdir(folder, 0o700)
        # One that sweeps may have met it before it was held.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                return folder, descriptor
            os.close(descriptor)


def sweep_scratch(common_dir: str) -> None:
    """Remove this user's scratch folders that nobody holds: their commands were killed."""
    for place in scratch_places(common_dir):
        for name in os.listdir(place):
            if name.startswith(SCRATCH):
                sweep_folder(os.path.join(place, name))


def sweep_folder(folder: str) -> None:
    """Remove a scratch folder if it is this user's and nobody holds it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
        finally:
            os.close(descriptor)


def alternate(path: str) -> str:
    """A path for GIT_ALTERNATE_OBJECT_DIRECTORIES, which may hold a colon (git(1))."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- Merges ---------------------------------------------------------------------------------


def merge_all(
    repo_dir: str, pairs: list[tuple[str, str]], env: dict[str, str] | None = None
) -> list[Merged]:
    """Merge each pair of commits, all in one process unless one of them cannot be merged at all.

    The merge base of a pair is found by git.
    """
    found: list[Merged] = []
    config = SCRATCH_CONFIG if env and "GIT_OBJECT_DIRECTORY" in env else ()
    while len(found) < len(pairs):
        words = "".join(f"{ours} {theirs}\n" for ours, theirs in pairs[len(found) :])
        done = git.git(
            repo_dir, *MERGE_CONFIG, *config, "merge-tree", "--write-tree", "--stdin", "--messages",
            stdin=words.encode(), env={"LC_ALL": "C", **(env or {})},
        )  # fmt: skip
        merges = parse_merges(done.text)
        tried = pairs[len(found) : len(found) + len(merges)]
        found += [real_paths(*pair) for pair in zip(merges, tried, strict=True)]
        if done.code == 0 and len(found) == len(pairs):
            break
        if len(found) < len(pairs):
            # It ends at the first pair that it cannot even try.
            why = done.error_text or f"git merge-tree ended with {done.code}"
            if "usage: git merge-tree" in why or "unknown option" in why:
                raise missing("git-too-old", "git merge-tree --write-tree needs git 2.39 or newer")
            found.append(Merged("unknown", why=why))
    return found


def merge(repo_dir: str, ours: str, theirs: str, env: dict[str, str] | None = None) -> Merged:
    """Merge two commits."""
    return merge_all(repo_dir, [(ours, theirs)], env)[0]


def real_paths(merged: Merged, heads: tuple[str, str]) -> Merged:
    """A merge without the names that git makes up where two things have one path: `a~COMMIT`."""
    marks = [f"~{head}" for head in heads]
    paths = {path.partition(mark)[0] for path in merged.paths for mark in marks if mark in path}
    paths |= {path for path in merged.paths if not any(mark in path for mark in marks)}
    return merged._replace(paths=tuple(sorted(paths)))


def parse_merges(text: str) -> list[Merged]:
    """Read what `git merge-tree --stdin --messages` prints (git-merge-tree(1), OUTPUT).

    Each merge is a status and a tree, then the conflicted entries, an empty field, and messages
    of the form: number of paths, the paths, a type, a text; an empty field ends it. Git 2.39 puts
    advice on submodules into that last field.
    """
    fields = text.split("\0")
    found: list[Merged] = []
    at = 0
    while at + 1 < len(fields) and OID.fullmatch(fields[at + 1]):
        status, tree = fields[at], fields[at + 1]
        at += 2
        paths: dict[str, None] = {}
        while at < len(fields) and fields[at]:
            paths[fields[at].partition("\t")[2]] = None
            at += 1
        at += 1
        kinds: dict[str, None] = {}
        while at < len(fields) and fields[at].isdigit():
            count = int(fields[at])
            names, kind = fields[at + 1 : at + 1 + count], fields[at + 1 + count]
            at += count + 3
            if kind.startswith("CONFLICT"):
                word = kind.removeprefix("CONFLICT").strip(" ()")
                kinds["content" if word == "contents" else word or "conflict"] = None
                # A file that is gone on one side has no entry of its own to show.
                paths.update(dict.fromkeys(names))
        at += 1
        if status not in (CLEAN, CONFLICT):
            found.append(Merged("unknown", why=f"git merge-tree answers {status!r}"))
        elif status == CLEAN:
            found.append(Merged("clean", tree))
        else:
            found.append(Merged("conflict", tree, tuple(sorted(paths)), tuple(kinds)))
    return found


def apply_change(
    common_dir: str, onto: str, before: str, after: str, env: dict[str, str] | None = None
) -> Merged:
    """Bring the change from one commit to another onto a third, as a cherry-pick does.

    `git merge-tree` takes no base of its own before git 2.40. So it is given two commits with the
    trees in question whose only parent is that base; they go with a scratch folder.
    """
    with scratch(common_dir) as aside:
        # What was built before may itself lie in a scratch folder.
        places = [alternate(f"{common_dir}/objects")]
        if env:
            places.append(alternate(env["GIT_OBJECT_DIRECTORY"]))
        reading = {**aside, "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(places)}
        ours = bare_commit(common_dir, onto, before, reading)
        theirs = bare_commit(common_dir, after, before, reading)
        # The result stays where the caller's objects go.
        places.append(alternate(aside["GIT_OBJECT_DIRECTORY"]))
        writing = {**(env or {}), "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(places)}
        return merge(common_dir, ours, theirs, writing)


def bare_commit(repo_dir: str, tree_of: str, parent: str, env: dict[str, str]) -> str:
    """A commit with the tree of another and one parent, which says nothing else."""
    nobody = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "-"), ("EMAIL", "-"), ("DATE", "@1 +0000"))
    }
    words = ["-c", "commit.gpgSign=false", "commit-tree", "-p", parent, f"{tree_of}^{{tree}}"]
    return git.require_git(repo_dir, *words, stdin=b"-\n", env={**nobody, **env}).text.strip()


# --- Commits --------------------------------------------------------------------------------


class Author(NamedTuple):
    """Who wrote a commit, as git's variables have it; `date` is seconds and time zone."""

    name: str
    email: str
    date: str


class Signing(NamedTuple):
    """Whether commits are to be signed, as `commit.gpgSign` says, and how long one may take."""

    wanted: bool
    limit: float = SIGN_LIMIT


def signing_of(repo_dir: str) -> Signing:
    """What the configuration says about signing."""
    done = git.git(repo_dir, "config", "--type=bool", "commit.gpgSign")
    return Signing(done.text.strip() == "true")


def require_identity(repo_dir: str) -> str:
    """The user's name, as git writes it into commits. Raises SkillError `no-identity` (exit 4)."""
    done = git.git(repo_dir, "var", "GIT_COMMITTER_IDENT")
    if done.code != 0:
        raise missing(
            "no-identity",
            "git does not know who makes the commit",
            'git config user.name "Your Name"; git config user.email you@example.com',
        )
    return done.text.strip()


def write_commit(
    repo_dir: str,
    tree: str,
    parents: list[str],
    message: bytes,
    signing: Signing,
    author: Author | None = None,
    *,
    env: dict[str, str] | None = None,
) -> str:
    """Make a commit; returns its id. No hook and no editor is run.

    Raises SkillError `signing-failed` when it cannot be signed in time, `git-failed`.
    """
    mark = records.new_id()
    variables = {**git.git_environment(), **(env or {}), SIGN_MARK: mark}
    if author is not None:
        variables |= {
            "GIT_AUTHOR_NAME": author.name,
            "GIT_AUTHOR_EMAIL": author.email,
            "GIT_AUTHOR_DATE": author.date,
        }
    argv = git.git_command(repo_dir, "-c", "i18n.commitEncoding=UTF-8", "commit-tree")
    argv += ["-S"] if signing.wanted else []
    argv += [word for parent in parents for word in ("-p", parent)]
    try:
        done = run(
            [*argv, tree], env=variables, stdin=message,
            timeout=signing.limit if signing.wanted else None,
        )  # fmt: skip
    except SkillError as error:
        if error.code == "process-timed-out":
            # Git leaves the program that signs, and the prompt that nobody sees, behind.
            proctree.end_tree([], f"{SIGN_MARK}={mark}", grace=1.0)
            raise unsigned(f"it did not end in {signing.limit:g} s") from error
        raise
    if done.code != 0:
        if signing.wanted:
            raise unsigned(done.error_text)
        raise SkillError("git-failed", f"git commit-tree failed: {done.error_text}")
    return done.text.strip()


def unsigned(why: str) -> SkillError:
    """A commit could not be signed."""
    return SkillError(
        "signing-failed",
        f"the commit could not be signed: {why}",
        "unlock the key first (a prompt would not be seen), or git -c commit.gpgSign=false",
    )


class Commit(NamedTuple):
    """One commit: its id, parents, author, and message as UTF-8."""

    id: str
    parents: list[str]
    author: Author
    message: bytes


def commits_between(repo_dir: str, base: str, head: str, *words: str) -> list[Commit]:
    """The commits that `head` has and `base` has not, the oldest first."""
    done = git.require_git(
        repo_dir, "-c", "log.showSignature=false", "log", "--reverse", "--topo-order", "-z",
        "--encoding=UTF-8", "--date=raw", "--format=%H%x01%P%x01%an%x01%ae%x01%ad%x01%B",
        *words, f"{base}..{head}",
    )  # fmt: skip
    found: list[Commit] = []
    for entry in done.text.split("\0"):
        if entry:
            commit, parents, name, email, date, message = entry.split("\x01", 5)
            author = Author(name, email, date)
            text = message.encode("utf-8", "surrogateescape")
            found.append(Commit(commit, parents.split(), author, text))
    return found
