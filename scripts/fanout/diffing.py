"""What a range of commits changes, read by git calls that no setting of a user can bend."""

from __future__ import annotations

import re

from fanout import git
from fanout.errors import SkillError
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    done = git.require_git(top, *CONFIG, *words, start, head, "--")
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
    done = git.require_git(
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
    done = git.require_git(top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
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
    done = git.require_git(top, "cat-file", "--batch-check", stdin=names)
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
    output = git.require_git(top, "cat-file", "--batch", stdin=names).stdout
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
    return git.require_git(top, *CONFIG, *words).stdout


def patches(
    top: str, start: str, head: str, paths: list[str], *, as_text: bool = False
) -> list[tuple[str, bytes]]:
    """What `git diff` prints of two commits, file by file, each with its path.

    A moved file stands under its new path. `as_text` shows what an attribute calls binary.
    """
    words = ["diff", "--raw", "-p", "--no-abbrev", *(["--text"] if as_text else [])]
    rest = [*RENAMES, *PLAIN, start, head, "--", *literal(paths)]
    output = git.require_git(top, *CONFIG, *words, *rest).stdout
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
    done = git.require_git(tree, *words, stdin=names)
    parts = done.text.split("\0")
    rows = zip(parts[::3], parts[2::3], strict=False)
    return [path for path, value in rows if value in ("set", "true")]
