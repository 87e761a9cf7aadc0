"""What workers say about their changes: entries found, checked and put into the changelog."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat

from fanout import git, records
from fanout.book import Book, Entry, Folded, changes_of, fold_changes
from fanout.conventions import BOOK_NAME, FOLDERS, is_book, is_fragment_name, is_no_fragment
from fanout.fields import NamedTuple
from fanout.fragments import fragment_for, malformed
from fanout.outline import same_text
from fanout.output import path_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.candidates import Candidate
    from fanout.conventions import Convention

FOLDER = records.RUNS + "/changelog"
# An entry is a few lines; what is larger is none.
ENTRY_LIMIT = 100_000
# A worker's name where a line says what it is about: `Task w2`, `w2: ...`, `[w2] ...`.
SUBJECT = re.compile(
    r"\W*(?:(task|worker|branch|agent)[\s:#`'\"*]+)?[`'\"*(]*([A-Za-z0-9][\w/-]*)"
    r"(?:(?<=\w)[`'\"*)]*\s*(:|[-\u2013\u2014]\s|$)|\](?=\s)()|(?=\W))",
    re.IGNORECASE,
)
FRAGMENT_FOLDERS = frozenset((*FOLDERS, ".changeset"))
CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
LINK, REGULAR = "120000", ("100644", "100755")


class Found(NamedTuple):
    """What a candidate says about its change.

    `paths` are the files on its branch that hold entries where the repository keeps them, so that
    merging it brings them along. `problems` are `(code, message)` of entries that cannot be taken.
    `digest` is the SHA-256 over the entries outside of the branch, empty when there are none.
    """

    entries: list[Entry]
    paths: list[str]
    problems: list[tuple[str, str]]
    digest: str

    @property
    def in_branch(self) -> bool:
        """Whether the branch itself brings an entry along."""
        return bool(self.paths)

    @property
    def missing(self) -> bool:
        """Whether there is no entry at all."""
        return not self.entries and not self.paths


class Changed(NamedTuple):
    """A file that a branch adds or changes: its mode and the ids of its content before and now."""

    path: str
    mode: str
    before: str
    now: str


def find(
    repo: git.Repository,
    candidate: Candidate,
    others: list[str] | None = None,
    convention: Convention | None = None,
) -> Found:
    """The entries of a candidate, changing nothing. `others` are the names of those beside it.

    An entry that names one of them, or another worker, as what it is about is not taken; nor is a
    fragment that is not of the form that the convention wants. Raises SkillError `git-failed`.
    """
    names = {*(others or []), *records.worker_names(repo.common_dir)}
    names -= {candidate.name, candidate.branch}
    changed = changed_files(repo.common_dir, candidate)
    own = own_place(candidate.name)
    places = list(dict.fromkeys(path for path in (own, candidate.changelog) if path))
    blobs = Blobs(repo.common_dir, candidate.head, places, changed, convention)
    paths = [path for path, file in changed.items() if brings_entry(file, blobs, convention)]
    problems: list[tuple[str, str]] = []
    for path in paths:
        problem = trouble(path, blobs.now(path), names) or ill_formed(path, blobs, convention)
        if problem:
            problems.append(problem)
    entries: list[Entry] = []
    outside = hashlib.sha256()
    loose = False
    for path in places:
        if path in paths or is_changelog(path, convention):
            continue
        source = "task" if path == candidate.changelog else "branch"
        content: bytes | str | None = None
        if path in changed:
            content = blobs.now(path)
        elif candidate.worktree and not blobs.has(path):
            content = read_inside(candidate.worktree, path)
            source = "task" if path == candidate.changelog else "worktree"
            if isinstance(content, bytes):
                loose = True
                outside.update(f"{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
                outside.update(content)
        if content is None:
            continue
        problem = trouble(path, content, names)
        if problem:
            problems.append(problem)
        elif isinstance(content, bytes):
            digest = hashlib.sha256(content).hexdigest()
            entries.append(Entry(candidate.name, source, path, content.decode(), digest))
    if not entries and not paths and not problems:
        problems = misplaced(candidate, changed, own)
    return Found(entries, paths, problems, outside.hexdigest() if loose else "")


def own_place(name: str) -> str:
    """Where the entry of a candidate is looked for first, below its worktree."""
    return f"{FOLDER}/{name}.md"


def misplaced(candidate: Candidate, changed: dict[str, Changed], own: str) -> list[tuple[str, str]]:
    """What is said of entries that stand where those of others belong."""
    names = [name for name in changed if name.startswith(FOLDER + "/")]
    if not names and candidate.worktree:
        names = [f"{FOLDER}/{name}" for name in names_inside(candidate.worktree, FOLDER)]
    return [
        ("changelog-foreign", f"{path_text(name)} is named for other work; its own place is {own}")
        for name in sorted(names)[:5]
        if name.endswith(".md")
    ]


# --- What the branch holds ------------------------------------------------------------------


def changed_files(repo_dir: str, candidate: Candidate) -> dict[str, Changed]:
    """The files that a branch adds or changes, by path."""
    if not candidate.head or candidate.head == candidate.base:
        return {}
    words = ["diff-tree", "-r", "-z", "--no-renames", "--diff-filter=AMT"]
    done = git.require_git(repo_dir, *words, candidate.base, candidate.head)
    fields = done.text.split("\0")
    found: dict[str, Changed] = {}
    for head, path in zip(fields[::2], fields[1::2], strict=False):
        _, mode, before, now, _ = head.split()
        found[path] = Changed(path, mode, before, now)
    return found


class Blobs:
    """The contents that matter of a branch's files, read in one process."""

    def __init__(
        self,
        repo_dir: str,
        head: str,
        places: list[str],
        changed: dict[str, Changed],
        convention: Convention | None,
    ) -> None:
        self.changed = changed
        wanted: list[str] = []
        for path, file in changed.items():
            if path in places or is_changelog(path, convention) or is_fragment(path, convention):
                wanted += [file.now] + ([file.before] if file.before.strip("0") else [])
        asked = [path for path in places if path not in changed]
        self.standing = {path: f"{head}:{path}" for path in asked} if head else {}
        wanted += self.standing.values()
        self.contents = git.read_objects(repo_dir, wanted)

    def has(self, path: str) -> bool:
        """Whether the branch holds a file at one of the places, not changed by it."""
        return path in self.standing and self.contents[self.standing[path]] is not None

    def before(self, path: str) -> bytes:
        """What a file held before the branch changed it."""
        return self.contents.get(self.changed[path].before) or b""

    def now(self, path: str) -> bytes | str:
        """What a file holds on the branch; words where that is no usable text."""
        file = self.changed[path]
        if file.mode not in REGULAR:
            return "it is a link" if file.mode == LINK else "it is not a file"
        return self.contents.get(file.now) or b""


def is_fragment(path: str, convention: Convention | None = None) -> bool:
    """Whether a file is one of those that each hold one entry, by its place and name."""
    folder, _, name = path.rpartition("/")
    if is_no_fragment(name):
        return False
    if convention is not None and convention.fragments and folder == convention.path:
        return True
    known = FRAGMENT_FOLDERS.intersection(folder.split("/")) or folder.endswith(
        "releasenotes/notes"
    )
    return bool(known) and is_fragment_name(name)


def brings_entry(file: Changed, blobs: Blobs, convention: Convention | None) -> bool:
    """Whether a file of a branch holds an entry where the repository keeps them."""
    if is_fragment(file.path, convention):
        return not file.before.strip("0")
    if not is_changelog(file.path, convention):
        return False
    content = blobs.now(file.path)
    if isinstance(content, str):
        return False
    return bool(entries_in(content, file.path) - entries_in(blobs.before(file.path), file.path))


def is_changelog(path: str, convention: Convention | None) -> bool:
    """Whether a file is a changelog by its name, or because a plan says so."""
    named = convention is not None and not convention.fragments and convention.path == path
    return named or is_book(path)


def ill_formed(path: str, blobs: Blobs, convention: Convention | None) -> tuple[str, str] | None:
    """Why the repository's tool would not take a fragment of a branch; None when it would."""
    content = blobs.now(path)
    if convention is None or isinstance(content, str) or not is_fragment(path, convention):
        return None
    reason = malformed(convention, path, content)
    return ("changelog-malformed", f"{path_text(path)}: {reason}") if reason else None


def entries_in(content: bytes, path: str) -> set[str]:
    """What a changelog file says, apart from its headings."""
    blocks = Book(content.decode("utf-8", "replace"), path).blocks
    kinds = ("item", "text", "code")
    texts = {same_text(block.text) for block in blocks if block.kind in kinds}
    return {text for text in texts if any(map(str.isalnum, text))}


# --- What the worktree holds ----------------------------------------------------------------


def read_inside(root: str, path: str) -> bytes | str | None:
    """A small file below a folder that an agent can write to; None when nothing is there.

    Words say why it cannot be taken: no link is followed, a pipe does not block.
    """
    folder = open_inside(root, os.path.dirname(path))
    if not isinstance(folder, int):
        return folder
    try:
        name = os.path.basename(path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return "it is a link" if error.errno == errno.ELOOP else why(error)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "it is not a file"
        content = b""
        while len(content) <= ENTRY_LIMIT and (part := os.read(descriptor, ENTRY_LIMIT + 1)):
            content += part
        return content
    except OSError as error:
        return why(error)
    finally:
        os.close(descriptor)


def open_inside(root: str, path: str) -> int | str | None:
    """A descriptor of a folder below another one, by a way without links.

    None when it is not there, words when something else is in its place.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = -1
    try:
        descriptor = os.open(root, flags)
        for part in filter(None, path.split("/")):
            outer = descriptor
            descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=outer)
            os.close(outer)
        found, descriptor = descriptor, -1
        return found
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return "a link or a file stands where a folder belongs"
        return why(error)
    finally:
        if descriptor != -1:
            os.close(descriptor)


def names_inside(root: str, path: str) -> list[str]:
    """The names in a folder below another one; none where there is no such folder."""
    folder = open_inside(root, path)
    if not isinstance(folder, int):
        return []
    try:
        return os.listdir(folder)
    finally:
        os.close(folder)


def why(error: OSError) -> str:
    """An error in words."""
    return error.strerror or str(error)


# --- Is it an entry -------------------------------------------------------------------------


def trouble(path: str, content: bytes | str, names: set[str]) -> tuple[str, str] | None:
    """Why a file cannot be taken as an entry, as `(code, message)`; None when it can."""
    book = is_book(path)
    path = path_text(path)
    if isinstance(content, str):
        return "changelog-unreadable", f"{path}: {content}"
    if book:
        return None
    if len(content) > ENTRY_LIMIT:
        return "changelog-unreadable", f"{path} is larger than {ENTRY_LIMIT} bytes"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return "changelog-unreadable", f"{path} is not valid UTF-8 (at byte {error.start})"
    if CONTROLS.search(text):
        return "changelog-unreadable", f"{path} holds control characters"
    if not any(map(str.isalnum, text)):
        return "changelog-empty", f"{path} is empty"
    if not changes_of(text):
        return "changelog-only-heading", f"{path} has no text below its heading"
    other = subject_of(text, names)
    if other:
        return "changelog-foreign", f"{path} names the work of {other}"
    return None


def subject_of(text: str, names: set[str]) -> str:
    """The other worker whose work a heading or item says it is about; empty when none is."""
    for line in text.split("\n") if names else ():
        found = SUBJECT.match(line)
        if found is None or found[2] not in names:
            continue
        # A name may be an ordinary word, such as `docs`.
        plain = found[2].isalpha()
        told = found[3] is not None or found[4] is not None
        if (told and (found[1] or not plain)) or (found[1] and not plain):
            return found[2]
    return ""


# --- Folding --------------------------------------------------------------------------------


def fold(book: bytes | None, entries: list[Entry], name: str = BOOK_NAME) -> Folded:
    """Put entries into a changelog file's section of what is not released.

    The file is made where there is none (None). Nothing else in it changes by a byte; an entry
    that is there already is not added again. Raises SkillError `changelog-unusable` (exit 3).
    """
    changes = [change for entry in entries for change in changes_of(entry.text, entry.name)]
    return fold_changes(book, changes, name)


class Written(NamedTuple):
    """Files to write for entries, by path; the texts added, and those that were there already."""

    files: dict[str, bytes]
    added: list[str]
    duplicates: list[str]


def written(
    convention: Convention,
    entries: list[Entry],
    book: bytes | None,
    changed: dict[str, tuple[str, ...]],
    made: dict[Entry, tuple[str, bytes]] | None = None,
) -> Written:
    """What is to be written for entries: a fragment for each, or the changelog file.

    `book` is the content of that file, None where it is not there; `changed` are the files that
    each candidate changed, by its name; `made` are fragments that a tool has made. Raises
    SkillError `changelog-unusable`, `changelog-form-unknown` (exit 3).
    """
    if not convention.fragments:
        folded = fold(book, entries, convention.path)
        files = {} if folded.book == (book or b"") else {convention.path: folded.book}
        return Written(files, folded.added, folded.duplicates)
    files = {}
    added: list[str] = []
    for entry in entries:
        known = (made or {}).get(entry)
        path, content = known or fragment_for(convention, entry, changed.get(entry.name, ()))
        files[path] = content
        added += [change.text for change in changes_of(entry.text, entry.name)]
    return Written(files, added, [])
