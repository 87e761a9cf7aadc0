"""Questions and verbs over git. Full ref names, `-z` output, exit codes before messages."""

from __future__ import annotations

import os
import re

from fanout.errors import SkillError, missing, usage
from fanout.fields import NamedTuple
from fanout.process import Completed, Running, clean_environment, finish, run, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A user's fsmonitor may answer late, and `gc` in the middle of a fan-out costs seconds.
SAFE_CONFIG = [
    *("-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"),
    # A looser comparison could hide an edit that keeps a file's size.
    *("-c", "core.trustctime=true", "-c", "core.checkStat=default"),
    # A repository that was copied from another kind of disk takes `A` for `a`.
    *("-c", "core.ignoreCase=false"),
]
MARK = "--agent-workers-mark"
QUESTIONS = 8
IDS = frozenset("0123456789abcdef")


class Repository(NamedTuple):
    """The repository seen from the caller's worktree. All paths are real and absolute.

    `head` is the caller's commit, `branch` its branch (None when detached).
    """

    top: str
    git_dir: str
    common_dir: str
    hooks_dir: str
    head: str
    branch: str | None

    @property
    def main_root(self) -> str:
        """The main checkout, or the repository's own folder where it has none of the usual form."""
        folder, name = os.path.split(self.common_dir)
        return folder if name == ".git" else self.common_dir

    @property
    def place(self) -> str:
        """What to give as --repo: the main checkout, or the caller's where there is none."""
        return self.top if self.main_root == self.common_dir else self.main_root


def git_environment() -> dict[str, str]:
    """The environment for git: no terminal prompts, no locks taken only to refresh an index."""
    return {
        **clean_environment(),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        # What counts as merged must be so in the real history, not in one that was grafted.
        "GIT_NO_REPLACE_OBJECTS": "1",
        # Below what is no folder nothing can be; of an empty file git would say that it is old.
        "GIT_GRAFT_FILE": os.path.join(os.devnull, "none"),
    }


def git(
    cwd: str, *arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> Completed:
    """Run git in a directory; the exit code is an answer. `env` adds to the environment."""
    argv = git_command(cwd, *arguments)
    done = run(argv, env={**git_environment(), **(env or {})}, stdin=stdin)
    if done.code == 128 and not os.path.isdir(cwd):
        raise missing("directory-missing", f"the directory {cwd!r} is not there")
    return done


def git_command(cwd: str, *arguments: str) -> list[str]:
    """The words of a git process that works in a directory."""
    return ["git", "-C", cwd, *SAFE_CONFIG, *arguments]


def require_git(
    cwd: str, *arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> Completed:
    """Run git and demand success. Raises SkillError `git-failed` with git's own words."""
    done = git(cwd, *arguments, stdin=stdin, env=env)
    if done.code != 0:
        words = zip(("", *arguments), arguments, strict=False)
        command = next((w for before, w in words if w[:1] != "-" and before != "-c"), "git")
        raise SkillError("git-failed", f"git {command} failed: {done.error_text or done.code}")
    return done


class Question(NamedTuple):
    """The questions that tell a repository, on their way to git."""

    directory: str
    argv: list[str]
    process: Running

    def repository(self) -> Repository:
        """Git's answer (see `repository_of`)."""
        return repository_of(self)


def ask_repository(directory: str) -> Question:
    """Start to ask for the repository that holds a directory, for work beside it.

    Raises SkillError `no-such-directory` (exit 2).
    """
    if "\0" in directory or not os.path.isdir(directory):
        raise usage("no-such-directory", f"{directory!r} is not a directory", "give --repo DIR")
    # One process for all questions; those that cannot be answered come last. It repeats words that
    # it does not know, so MARK parts the answers, each of which may hold a line break.
    argv = git_command(
        directory,
        "rev-parse",
        "--path-format=absolute",
        "--is-bare-repository",
        *(MARK, "--is-inside-work-tree"),
        *(MARK, "--git-dir"),
        *(MARK, "--git-common-dir"),
        *(MARK, "--git-path", "hooks"),
        *(MARK, "--show-toplevel"),
        *(MARK, "HEAD^{commit}"),
        *(MARK, "--symbolic-full-name", "HEAD"),
    )
    return Question(directory, argv, start(argv, env=git_environment()))


def open_repository(directory: str) -> Repository:
    """The repository that holds a directory (see `repository_of`)."""
    return repository_of(ask_repository(directory))


def repository_of(question: Question) -> Repository:
    """The repository that holds a directory, with the caller's commit and branch.

    Raises SkillError: `not-a-repository`, `bare-repository`, `empty-repository` (exit 4);
    `inside-submodule`, `unusable-path` (exit 2).
    """
    directory = question.directory
    done = finish(question.process, question.argv)
    # An answer ends in a line break.
    lines = [part.removesuffix("\n") for part in done.text.split(MARK + "\n")]
    if len(lines) < 2 or not lines[0]:
        raise missing(
            "not-a-repository",
            f"{directory!r} is not in a usable git repository: {done.error_text}",
            "run this inside a repository, or give --repo DIR",
        )
    if lines[0] == "true" or lines[1] != "true":
        raise missing(
            "bare-repository",
            f"{directory!r} is a bare repository, or lies inside a git directory: no checkout here",
            "run this from a checkout, or give --repo DIR",
        )
    if any("\n" in line for line in lines) or (done.code == 0 and len(lines) != QUESTIONS):
        raise usage(
            "unusable-path",
            f"the path of the repository at {directory!r} holds a line break",
            "move the repository to a path without one",
        )
    above = superproject(lines[5]) if len(lines) > 5 else ""
    if above:
        raise usage(
            "inside-submodule",
            f"{directory!r} is inside a submodule of {above!r}",
            f"work on the superproject with --repo {above}, or clone the submodule by itself",
        )
    if done.code != 0:
        raise missing(
            "empty-repository",
            f"the repository at {directory!r} has no usable commit to start from: HEAD is unborn",
            "make a first commit; workers branch off a commit",
        )
    return Repository(
        top=os.path.realpath(lines[5]),
        git_dir=os.path.realpath(lines[2]),
        common_dir=os.path.realpath(lines[3]),
        hooks_dir=lines[4],
        head=lines[6],
        branch=lines[7] if lines[7].startswith("refs/heads/") else None,
    )


def superproject(top: str) -> str:
    """The checkout that has this one as a submodule; empty outside of submodules."""
    folder = os.path.dirname(os.path.realpath(top))
    while not os.path.lexists(os.path.join(folder, ".git")):
        if folder == os.path.dirname(folder):
            # Git would start a process more to find that out.
            return ""
        folder = os.path.dirname(folder)
    done = require_git(top, "rev-parse", "--show-superproject-working-tree")
    return done.text.removesuffix("\n")


def resolve_commit(repo: Repository, ref: str) -> str:
    """The full id of the commit that a user's word names.

    Raises SkillError `unknown-ref`, or `ambiguous-ref` for a word that names two (exit 2).
    """
    if not ref or "\0" in ref or len(ref) > 1000:
        raise usage("unknown-ref", f"{ref[:80]!r} is not a commit", "name a branch, tag or commit")
    words = ["rev-parse", "--verify", "--end-of-options", ref + "^{commit}"]
    done = git(repo.top, *words, env={"LC_ALL": "C"})
    commit = done.text.strip()
    if done.code != 0 or not commit:
        raise usage(
            "unknown-ref",
            f"{ref!r} names no commit in this repository",
            "name a branch, tag or commit; `git branch -a` lists branches",
        )
    if "is ambiguous" in done.error_text:
        # Git would take the tag, and warn.
        branch = ref_commit(repo.top, "refs/heads/" + ref)
        if branch != commit:
            raise usage(
                "ambiguous-ref",
                f"{ref!r} names more than one commit, such as a branch and a tag",
                f"write refs/heads/{ref} or refs/tags/{ref}",
            )
    return commit


def require_branch_name(repo: Repository, branch: str) -> str:
    """A name that git accepts for a branch. Raises SkillError `invalid-branch` (exit 2)."""
    # Git itself makes no branch HEAD, but accepts the name as a ref.
    bad = not branch or branch.startswith("-") or "\0" in branch or len(branch) > 200
    bad = bad or branch == "HEAD"
    if bad or git(repo.top, "check-ref-format", "refs/heads/" + branch).code != 0:
        raise usage(
            "invalid-branch",
            f"{branch[:80]!r} is not a valid branch name",
            "see `git help check-ref-format` for the rules",
        )
    return branch


def branch_heads(repo_dir: str) -> dict[str, str]:
    """The commit id of every local branch, by full ref name."""
    done = require_git(repo_dir, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads")
    rows = (line.split(" ", 1) for line in done.text.split("\n") if line)
    return {ref: commit for commit, ref in rows}


def heads_of(common_dir: str, refs: list[str]) -> dict[str, str]:
    """The commit ids of these local branches, as far as they are there, by full ref name."""
    heads: dict[str, str] = {}
    for ref in refs:
        commit = loose_commit(common_dir, ref)
        if commit is None:
            return branch_heads(common_dir)
        heads[ref] = commit
    return heads


def loose_commit(common_dir: str, ref: str) -> str | None:
    """The commit in a ref's own file; None where git must be asked.

    Such a file holds good whatever else there is, and a process takes longer.
    """
    found = (small_file(f"{common_dir}/{ref}") or "").removesuffix("\n")
    return found if len(found) in (40, 64) and IDS.issuperset(found) else None


def small_file(path: str) -> str | None:
    """What a small file of git's holds, or None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(descriptor, 10_000))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def symbolic_target(repo_dir: str, ref: str) -> str | None:
    """The ref that a symbolic ref stands for, or None for one that holds a commit itself."""
    if loose_commit(repo_dir, ref) is not None:
        return None
    done = git(repo_dir, "symbolic-ref", "-q", ref)
    return done.text.strip() if done.code == 0 else None


def ref_commit(repo_dir: str, ref: str) -> str | None:
    """The commit id of a full ref, or None when there is no such ref."""
    done = git(repo_dir, "rev-parse", "--verify", "--quiet", ref + "^{commit}")
    return done.text.strip() if done.code == 0 else None


def tree_of(repo_dir: str, commit: str, env: dict[str, str] | None = None) -> str:
    """The tree id of a commit. Raises SkillError `git-failed`."""
    words = ["rev-parse", "--verify", f"{commit}^{{tree}}"]
    return require_git(repo_dir, *words, env=env).text.strip()


def is_ancestor(repo_dir: str, ancestor: str, descendant: str) -> bool:
    """Whether a commit is contained in another. An error is not a no: it is raised."""
    done = git(repo_dir, "merge-base", "--is-ancestor", ancestor, descendant)
    if done.code not in (0, 1):
        raise SkillError("git-failed", f"git merge-base failed: {done.error_text}")
    return done.code == 0


def delete_branch(repo_dir: str, branch: str, expected: str) -> None:
    """Delete a local branch if it still is where it was found. Raises SkillError `git-failed`."""
    require_git(repo_dir, "update-ref", "--no-deref", "-d", "refs/heads/" + branch, expected)


def current_ref(worktree: str) -> tuple[str | None, str]:
    """The branch ref checked out in a worktree (None when detached) and its commit.

    Raises SkillError `git-failed` when HEAD cannot be read.
    """
    done = require_git(worktree, "rev-parse", "HEAD^{commit}", "--symbolic-full-name", "HEAD")
    commit, ref = done.text.split()
    return (ref if ref.startswith("refs/heads/") else None), commit


def read_objects(
    repo_dir: str, names: list[str], env: dict[str, str] | None = None
) -> dict[str, bytes | None]:
    """The contents of objects by their names, such as `<commit>:<path>`, read in one process.

    None stands for a missing one; a name with a line break is never there. `env` adds to git's
    environment. Raises SkillError `git-failed`.
    """
    found: dict[str, bytes | None] = dict.fromkeys(names)
    asked = [name for name in found if "\n" not in name]
    if not asked:
        return found
    words = "".join(f"{name}\n" for name in asked).encode("utf-8", "surrogateescape")
    done = require_git(repo_dir, "cat-file", "--batch", stdin=words, env=env)
    at = 0
    for name in asked:
        end = done.stdout.index(b"\n", at)
        size = done.stdout[at:end].rpartition(b" ")[2]
        at = end + 1
        if size.isdigit():
            found[name] = done.stdout[at : at + int(size)]
            at += int(size) + 1
    return found


# --- What a range of commits changes, by calls that no setting of a user can bend -----------


CONFIG = [
    *("-c", "core.quotePath=false", "-c", "core.attributesFile=/dev/null"),
    *("-c", "color.ui=false", "-c", "color.status=false", "-c", "color.diff=false"),
    *("-c", "diff.suppressBlankEmpty=false", "-c", "core.abbrev=12", "-c", "log.showRoot=true"),
    *("-c", "diff.context=3", "-c", "diff.interHunkContext=0"),
    *("-c", "log.showSignature=false", "-c", "log.mailmap=false"),
]
PLAIN = [
    *("--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "-O/dev/null"),
    *("--ignore-submodules=none", "--submodule=short", "--diff-algorithm=myers"),
    *("--indent-heuristic", "--src-prefix=a/", "--dst-prefix=b/"),
]
# A name is never cut short, however long.
STAT = ["--stat-width=5000", "--stat-name-width=4900", "--stat-graph-width=40"]
RENAMES = ["--find-renames=50%", "-l1000"]
COMMIT_FIELDS = ["%H", "%an", "%aI", "%s"]
ESCAPED = {
    b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r",
}  # fmt: skip
BINARY_HEAD = 8000
REGULAR = ("100644", "100755")


class Change(NamedTuple):
    """One path that differs. A moved file is two: one that went, one that came.

    `status` is A, M, D or T (its type). Modes are git's, None on the side where there is nothing,
    and so are the ids of its content. `added` and `removed` count lines, None where git sees none.
    """

    path: str
    status: str
    mode_before: str | None
    mode_after: str | None
    blob_before: str | None
    blob_after: str | None
    added: int | None
    removed: int | None


class Commit(NamedTuple):
    """One commit of a range; `changes` are those against its parent, none for a merge."""

    id: str
    subject: str
    author: str
    at: str
    changes: list[Change]

    def to_json(self) -> dict[str, Any]:
        """The row of `data.commits`."""
        return {"id": self.id, "subject": self.subject, "author": self.author, "at": self.at}


class Blob(NamedTuple):
    """The size of a content in bytes, and the content itself where it was asked for."""

    size: int
    content: bytes | None

    @property
    def binary(self) -> bool:
        """Whether it is no text, judged as git does where no attribute says otherwise."""
        return self.content is not None and b"\0" in self.content[:BINARY_HEAD]


# --- Lists ----------------------------------------------------------------------------------


def changes(top: str, start: str, head: str) -> list[Change]:
    """Every path that differs between two commits, in git's order. Raises `git-failed`."""
    words = ["diff", "--raw", "--numstat", "-z", "--no-abbrev", "--no-renames", *PLAIN]
    done = require_git(top, *CONFIG, *words, start, head, "--")
    parts = done.text.split("\0")
    rows: list[Change] = []
    position = 0
    while parts[position].startswith(":"):
        rows.append(raw_row(parts[position], parts[position + 1]))
        position += 2
    counts: dict[str, tuple[int | None, int | None]] = {}
    for line in filter(None, parts[position:]):
        added, removed, path = line.split("\t", 2)
        counts[path] = (number(added), number(removed))
    blank = (None, None)
    return [
        row._replace(added=counts.get(row.path, blank)[0], removed=counts.get(row.path, blank)[1])
        for row in rows
    ]


def number(word: str) -> int | None:
    """A count of lines; `-` stands for none."""
    return None if word == "-" else int(word)


def raw_row(info: str, path: str) -> Change:
    """One entry of `--raw -z --no-abbrev` (git-diff(1), "raw output format")."""
    before, after, old, new, status = info.removeprefix(":").split(" ")
    return Change(
        path, status[0], mode_of(before), mode_of(after), blob_of(old), blob_of(new), None, None
    )


def mode_of(word: str) -> str | None:
    """A mode; git writes zeros where there is nothing."""
    return None if word == "000000" else word


def blob_of(word: str) -> str | None:
    """An id; git writes zeros where there is nothing."""
    return None if set(word) == {"0"} else word


def commits(top: str, base: str, head: str) -> list[Commit]:
    """The commits that `head` has and `base` has not, the newest first. Raises `git-failed`."""
    form = "--format=" + "%x00".join(COMMIT_FIELDS)
    words = ["log", "-z", "--raw", "--no-abbrev", "--no-renames", "--diff-merges=off", form]
    done = require_git(
        top, *CONFIG, *words, "--no-notes", "--encoding=UTF-8", *PLAIN, f"{base}..{head}", "--"
    )
    parts = done.text.split("\0")
    found: list[Commit] = []
    position = 0
    while position + len(COMMIT_FIELDS) <= len(parts):
        commit, author, at, subject = parts[position : position + len(COMMIT_FIELDS)]
        position += len(COMMIT_FIELDS)
        rows: list[Change] = []
        while position + 1 < len(parts) and parts[position].lstrip("\n").startswith(":"):
            rows.append(raw_row(parts[position].lstrip("\n"), parts[position + 1]))
            position += 2
        found.append(Commit(commit, subject, author, at, rows))
    return found


def paths_of(top: str, commit: str) -> list[str]:
    """Every path of a commit."""
    done = require_git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
    return [path for path in done.text.split("\0") if path]


# --- Contents -------------------------------------------------------------------------------


def blobs(top: str, ids: list[str], *, each: int, together: int) -> dict[str, Blob]:
    """The sizes of contents by id; and in this order the contents, unless they are too large.

    That is longer than `each`, or more than `together`, both in bytes.
    """
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return {}
    names = "".join(f"{name}\n" for name in wanted).encode()
    done = require_git(top, "cat-file", "--batch-check", stdin=names)
    found: dict[str, Blob] = {}
    small: list[str] = []
    for name, line in zip(wanted, done.text.splitlines(), strict=True):
        words = line.split(" ")
        if len(words) != 3 or words[1] != "blob":
            continue
        found[name] = Blob(int(words[2]), None)
        if found[name].size <= min(each, together):
            together -= found[name].size
            small.append(name)
    content = contents(top, small) if small else {}
    return {name: Blob(blob.size, content.get(name)) for name, blob in found.items()}


def contents(top: str, ids: list[str]) -> dict[str, bytes]:
    """Contents by id, in one process."""
    names = "".join(f"{name}\n" for name in ids).encode()
    output = require_git(top, "cat-file", "--batch", stdin=names).stdout
    found: dict[str, bytes] = {}
    place = 0
    for name in ids:
        end = output.index(b"\n", place)
        size = int(output[place:end].split(b" ")[2])
        found[name] = output[end + 1 : end + 1 + size]
        place = end + size + 2
    return found


# --- Texts ----------------------------------------------------------------------------------


def stat(top: str, start: str, head: str, paths: list[str]) -> bytes:
    """What `git diff --stat` prints of two commits, below these paths or all of them."""
    words = ["diff", "--stat", *STAT, *RENAMES, *PLAIN, start, head, "--", *literal(paths)]
    return require_git(top, *CONFIG, *words).stdout


def patches(
    top: str, start: str, head: str, paths: list[str], *, as_text: bool = False
) -> list[tuple[str, bytes]]:
    """What `git diff` prints of two commits, file by file, each with its path.

    A moved file stands under its new path. `as_text` shows what an attribute calls binary.
    """
    words = ["diff", "--raw", "-p", "--no-abbrev", *(["--text"] if as_text else [])]
    rest = [*RENAMES, *PLAIN, start, head, "--", *literal(paths)]
    output = require_git(top, *CONFIG, *words, *rest).stdout
    rows, _, patch = output.partition(b"\n\n")
    places = [found.start() for found in re.finditer(rb"^diff --git ", patch, re.MULTILINE)]
    pieces = [
        patch[first:last] for first, last in zip(places, [*places[1:], len(patch)], strict=True)
    ]
    found: list[tuple[str, bytes]] = []
    for row in rows.splitlines():
        info, *names = row.split(b"\t")
        # A file that becomes a link, say, is shown as one that goes and one that comes.
        count = 2 if info.split(b" ")[4][:1] == b"T" else 1
        path = unquoted(names[-1]).decode("utf-8", "surrogateescape")
        found.append((path, b"".join(pieces[:count])))
        del pieces[:count]
    if pieces or any(not piece for _, piece in found):
        raise SkillError("git-failed", "what git diff printed cannot be told apart by its files")
    return found


def literal(paths: list[str]) -> list[str]:
    """Paths from the top, taken as they are; a folder stands for all below it."""
    return [f":(top,literal){path}" for path in paths]


def unquoted(name: bytes) -> bytes:
    """A path as git prints it, without the quotes that it gets when it holds odd bytes."""
    if not (len(name) > 1 and name.startswith(b'"') and name.endswith(b'"')):
        return name

    def plain(found: re.Match[bytes]) -> bytes:
        word = found[1]
        return bytes([int(word, 8)]) if word.isdigit() else ESCAPED.get(word, word)

    return re.sub(rb"\\([0-7]{3}|.)", plain, name[1:-1])


def generated_by_attribute(tree: str, paths: list[str]) -> list[str]:
    """Those of these paths that an attribute in a checkout calls generated."""
    if not paths:
        return []
    names = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
    words = ["check-attr", "-z", "--stdin", "linguist-generated"]
    done = require_git(tree, *words, stdin=names)
    parts = done.text.split("\0")
    rows = zip(parts[::3], parts[2::3], strict=False)
    return [path for path, value in rows if value in ("set", "true")]
