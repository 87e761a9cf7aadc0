"""What workers say about their changes: entries found, checked and put into the changelog."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat

from fanout import git, proctree, records
from fanout.book import (
    KNOWN,
    MARKER,
    Book,
    Change,
    Entry,
    Folded,
    changes_of,
    closes,
    fold_changes,
    key_of,
    opened,
    same_text,
)
from fanout.conventions import BOOK_NAME, FOLDERS, Tree, is_book, is_fragment_name, is_no_fragment
from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple
from fanout.output import path_text
from fanout.process import clean_environment, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


# --- One fragment for each worker, in the form that the repository's own tool takes ---------


# What a category is called elsewhere, the nearest word first.
WORDS = {
    "added": ("feature", "features", "feat", "new", "enhancement", "improvement", "minor"),
    "changed": ("change", "changes", "improvement", "enhancement", "other", "feature", "features"),
    "deprecated": ("deprecation", "deprecations", "removal", "upgrade"),
    "removed": ("removal", "removals", "breaking", "upgrade"),
    "fixed": ("fix", "fixes", "bugfix", "bugfixes", "bug", "patch"),
    "security": ("vulnerability", "bugfix", "fixes", "fix", "fixed"),
    "documentation": ("doc", "docs"),
}
# What makes a fragment of each convention, and where a checkout may have it.
TOOLS = {
    "towncrier": ("towncrier", "create", "--no-edit"),
    "changesets": ("changeset", "add", "--empty"),
    "scriv": ("scriv", "create", "--no-edit", "--no-add"),
    "reno": ("reno", "new"),
}
INSTALLED = ("node_modules/.bin", ".venv/bin")
TOOL_LIMIT = 30.0
# How much a tool may write into one file, in blocks of 1,024 bytes.
TOOL_BLOCKS = 10_000
BUMPS = {"removed": "major", "added": "minor", "changed": "minor", "deprecated": "minor"}
BUMP_RANKS = ("patch", "minor", "major")
CHANGESET = re.compile(r"\s*---[ \t]*\n(?:(.*?)\n)?---[ \t]*(?:\n|$)(.*)", re.DOTALL)
RELEASED = re.compile(
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^'\"\s][^:]*?)[ \t]*:[ \t]+(['\"]?)(major|minor|patch|none)\2"
)
# What reStructuredText has already, a link of Markdown, and its code.
SIGNS = re.compile(
    r"``.+?``|:\w+:`[^`]+`|`[^`]+`__?|\[(?P<text>[^\]\[]+)\]\((?P<link>[^\s()]+)\)|`(?P<code>[^`]+)`"
)


def fragment_for(
    convention: Convention, entry: Entry, changed: tuple[str, ...] = ()
) -> tuple[str, bytes]:
    """The path and content of the fragment that says what an entry says.

    The same entry has the same path always, another one never. `changed` are the files that the
    worker changed: where a repository holds several packages, they tell which ones it is about.
    Raises SkillError `changelog-form-unknown` (exit 3).
    """
    changes = changes_of(entry.text, entry.name)
    if convention.end == ".rst" and entry.path.endswith(".md"):
        changes = [Change(change.title, to_rst(change.text)) for change in changes]
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", entry.name).strip("-") or "work"
    stem = f"{stem}-{entry.digest[:8]}"
    settings = convention.settings
    end = convention.end
    if convention.kind == "towncrier":
        kind = chosen(changes[0].key, settings["types"])["key"]
        name = f"{settings['orphan']}{stem}.{kind}{end}"
        content = paragraphs(changes)
    elif convention.kind == "changesets":
        name = f"{stem}.md"
        content = changeset(convention, changes, changed)
    elif convention.kind == "scriv":
        name = stem + end
        content = headed(changes, settings["categories"], end, settings["chars"][1])
    elif convention.kind == "reno":
        name = f"{stem[:-9]}-{entry.digest[:16]}.yaml"
        content = note(changes, settings["sections"])
    elif convention.kind == "folder" and end not in (".yaml", ".yml"):
        name, content = like_others(convention, changes, stem)
    else:
        raise refused(
            "changelog-form-unknown",
            f"nobody knows what a fragment in {convention.path}/ looks like",
            "let the worker write it on its branch",
        )
    return f"{convention.path}/{name}", content.encode("utf-8")


# --- By the tool itself ----------------------------------------------------------------------


def tool_of(convention: Convention, checkout: str) -> str | None:
    """Where the program is that makes a convention's fragments: on PATH, or in the checkout."""
    if convention.kind not in TOOLS:
        return None
    name = TOOLS[convention.kind][0]
    places = [name, *(f"{checkout}/{folder}/{name}" for folder in INSTALLED)]
    found = next(filter(None, map(find_program, places)), None)
    # It runs in another folder.
    return os.path.abspath(found) if found else None


def made_by_tool(
    tool: str,
    tree: Tree,
    convention: Convention,
    fragment: tuple[str, bytes],
    *,
    place: str,
    mark: str,
) -> str:
    """Let the repository's own tool make a fragment; the path that it has chosen for it.

    The tool works in `place`, a new folder, which gets its settings and the other fragments as a
    commit has them; what it prints is kept beside that. All that it starts carries the `mark`, a
    NAME=VALUE, and is ended. Raises SkillError `changelog-tool-failed`.
    """
    path, content = fragment
    folder = f"{place}/{convention.path}"
    copy_settings(tree, convention, place)
    known = set(os.listdir(folder))
    words = list(TOOLS[convention.kind][1:])
    if convention.kind == "towncrier":
        words += [f"--content={content.decode().rstrip()}", "--", os.path.basename(path)]
    elif convention.kind == "reno":
        words += ["--", os.path.splitext(os.path.basename(path))[0].rpartition("-")[0]]
    name, _, value = mark.partition("=")
    log = f"{place}.log"
    try:
        code = proctree.run_logged(
            ["bash", "-c", f'ulimit -f {TOOL_BLOCKS}; exec "$@"', "bash", tool, *words],
            cwd=place, env={**clean_environment(), name: value}, log=log, timeout=TOOL_LIMIT,
            mark=mark,
        )  # fmt: skip
    finally:
        proctree.end_tree([], mark, grace=1.0)
    try:
        made = sorted(set(os.listdir(folder)) - known)
        regular = len(made) == 1 and stat.S_ISREG(os.lstat(f"{folder}/{made[0]}").st_mode)
    except OSError as error:
        raise tool_failed(tool, f"took its folder away: {error.strerror}; see {log}") from error
    if code != 0 or not regular:
        how = "did not end" if code is None else f"ended with exit code {code}"
        raise tool_failed(tool, f"{how} and did not make one file; see {log}")
    chosen_path = f"{convention.path}/{made[0]}"
    trouble = malformed(convention, chosen_path, content)
    if trouble or not re.fullmatch(r"[\w+.,@=~ -]+", made[0], re.ASCII):
        why = trouble or "no name for a fragment"
        raise tool_failed(tool, f"named it {path_text(made[0])}: {why}")
    return chosen_path


def tool_failed(tool: str, why: str) -> SkillError:
    """A tool did not make a fragment."""
    return SkillError("changelog-tool-failed", f"`{os.path.basename(tool)}` {why}")


def copy_settings(tree: Tree, convention: Convention, place: str) -> None:
    """Write what a convention's tool reads: its settings, and the fragments that are there."""
    records.make_dir(f"{place}/{convention.path}")
    settings = {path: tree.read(path) for path in tree.LOOKED_AT if path}
    for path, content in {**settings, **tree.files(convention.path)}.items():
        if content is not None:
            records.make_dir(os.path.dirname(f"{place}/{path}"))
            with open(f"{place}/{path}", "wb") as file:
                file.write(content)


# --- Forms -----------------------------------------------------------------------------------


def chosen(key: str, types: list[dict[str, Any]]) -> dict[str, Any]:
    """The kind of fragments that fits a category best."""
    wanted = [key, *WORDS.get(key, ()), *WORDS["changed"]]
    shown = [row for row in types if row["shown"]] or types
    for word in wanted:
        for row in shown:
            if word in (key_of(row["key"]), key_of(row["title"])):
                return row
    return shown[0]


def nearest(key: str, names: list[str]) -> str:
    """The one of these names that fits a category; empty when none does."""
    for word in (key, *WORDS.get(key, ())):
        for name in names:
            if key_of(name) == word:
                return name
    return ""


def paragraphs(changes: list[Change]) -> str:
    """Items as paragraphs; those of another category than the first one say so."""
    first = changes[0].key
    texts = [
        change.text if change.key == first else f"{change.title or 'Changed'}: {change.text}"
        for change in changes
    ]
    return "\n\n".join(texts) + "\n"


def listed(changes: list[Change]) -> str:
    """Items as a list."""
    items: list[str] = []
    for change in changes:
        first, *more = change.text.split("\n")
        items.append("\n".join(["- " + first, *("  " + row if row else "" for row in more)]))
    return "\n".join(items) + "\n"


def headed(changes: list[Change], categories: list[str], end: str, underline: str) -> str:
    """Items as lists below the headings of their categories, which may have names of their own."""
    parts: dict[str, list[Change]] = {}
    for change in changes:
        title = nearest(change.key, categories) or change.title or "Changed"
        parts.setdefault(title if categories else "", []).append(change)
    texts: list[str] = []
    for title, members in parts.items():
        head = f"{title}\n{underline * max(3, len(title))}" if end == ".rst" else f"### {title}"
        # scriv drops a line that begins a comment, and all that follows.
        body = listed(members).replace("<!--", "&lt;!--") if end == ".md" else listed(members)
        texts.append(f"{head}\n\n{body}" if title else body)
    return "\n".join(texts)


def changeset(convention: Convention, changes: list[Change], changed: tuple[str, ...]) -> str:
    """The packages that a change is about, how their versions move, and what it says."""
    packages: dict[str, str] = convention.settings["packages"]
    bump = max((BUMPS.get(c.key, "patch") for c in changes), key=BUMP_RANKS.index)
    places: list[str] = []
    for path in changed:
        homes = [place for place in packages if not place or path.startswith(place + "/")]
        places += [max(homes, key=len)] if homes else []
    if not places and len(packages) == 1:
        places = list(packages)
    names = sorted({packages[place] for place in places})
    rows = [f"{json.dumps(name)}: {bump}" for name in names]
    text = "\n\n".join(change.text for change in changes)
    return "\n".join(["---", *rows, "---", "", text, ""])


def note(changes: list[Change], sections: list[str]) -> str:
    """A release note of reno: literal blocks in the sections that fit."""
    parts: dict[str, list[Change]] = {}
    for change in changes:
        name = nearest(change.key, sections) or nearest("changed", sections) or sections[-1]
        parts.setdefault(name, []).append(change)
    lines = ["---"]
    for name, members in parts.items():
        lines.append(f"{name}:")
        for change in members:
            lines.append("  - |")
            # These would end a line in YAML.
            rows = re.sub("[\x85\u2028\u2029]", " ", to_rst(change.text)).split("\n")
            lines += ["    " + row if row else "" for row in rows]
    return "\n".join(lines) + "\n"


def like_others(convention: Convention, changes: list[Change], stem: str) -> tuple[str, str]:
    """A fragment in the form of those that are there."""
    settings = convention.settings
    kind = ""
    if settings["typed"]:
        types = [{"key": name, "title": name, "shown": True} for name in settings["types"]]
        kind = "." + chosen(changes[0].key, types)["key"]
    end = convention.end
    if settings["headed"] and not kind:
        content = headed(changes, list(KNOWN), end, "-")
    elif settings["listed"]:
        content = listed(changes)
    else:
        content = paragraphs(changes)
    return f"{stem}{kind}{end}", content


# --- Is it well formed ----------------------------------------------------------------------


def malformed(convention: Convention, path: str, content: bytes) -> str:
    """Why the repository's tool would not take a fragment; empty when it would."""
    place, _, name = path.rpartition("/")
    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    settings = convention.settings
    if not convention.fragments:
        return ""
    if place != convention.path:
        if "/" in place and not place.startswith("releasenotes"):
            return ""
        return f"fragments of this repository belong into {convention.path}/"
    if convention.kind == "towncrier":
        kinds = [row["key"] for row in settings["types"]]
        if not set(name.split(".")[1:]) & set(kinds):
            return f"its name tells no kind of change: one of {', '.join(kinds)}"
    elif convention.kind in ("scriv", "changesets", "reno") and not name.endswith(convention.end):
        return f"its name does not end with {convention.end}"
    elif convention.kind == "changesets":
        return bad_changeset(text, set(settings["packages"].values()))
    elif convention.kind == "reno":
        return bad_note(text, [*settings["sections"], "prelude"])
    return ""


def bad_changeset(text: str, packages: set[str]) -> str:
    """Why changesets would not take a file; empty when it would."""
    found = CHANGESET.match(text)
    if found is None:
        return "it does not begin with the packages between two lines ---"
    for row in (found[1] or "").split("\n"):
        if not row.strip() or row.strip().startswith("#"):
            continue
        words = RELEASED.fullmatch(row.strip())
        if words is None:
            return f"{row.strip()[:80]!r} is no package with major, minor, patch or none"
        name = unquoted(words[1])
        if packages and name not in packages:
            return f"there is no package {name[:80]!r}"
    return "" if found[2].strip() else "it says nothing below the packages"


def unquoted(word: str) -> str:
    """A key of YAML without its quotes."""
    if word.startswith('"'):
        try:
            return str(json.loads(word))
        except ValueError:
            return word
    return word.strip("'")


def bad_note(text: str, sections: list[str]) -> str:
    """Why reno would not take a file; empty when it would, as far as can be told."""
    found = False
    for number, row in enumerate(text.split("\n"), 1):
        if row[:1] in ("", "#", " ") or row.rstrip() == "---":
            continue
        name, colon, _ = row.partition(":")
        if row[:1] == "-" and found:
            continue
        if not colon or not re.fullmatch(r"\w+", name):
            return f"line {number} is no section"
        if name not in sections:
            return f"{name[:80]!r} is no section; there are {', '.join(sections)}"
        found = True
    return "" if found else "it has no section"


# --- Markdown to reStructuredText -----------------------------------------------------------


def to_rst(text: str) -> str:
    """The usual signs of Markdown in reStructuredText: code, links and nested lists."""
    rows: list[str] = []
    fence = ""
    for row in text.split("\n"):
        before, fence = fence, opened(row, fence)
        depth = len(row) - len(row.lstrip())
        if not before and fence:
            language = row.strip().lstrip("`~").split(" ")[0]
            gap = [""] if rows and rows[-1] else []
            rows += [*gap, " " * depth + f".. code-block:: {language or 'text'}", ""]
        elif before and closes(row, before) and not fence:
            rows.append("")
        elif before:
            rows.append("   " + row if row.strip() else "")
        else:
            begins = MARKER.match(row) is not None
            lists = bool(rows) and MARKER.match(rows[-1]) is not None
            same = lists and len(rows[-1]) - len(rows[-1].lstrip()) == depth
            if begins and rows and rows[-1] and not same:
                rows.append("")
            rows.append(inline_rst(row))
    return "\n".join(rows).rstrip("\n")


def inline_rst(row: str) -> str:
    """One line of text."""

    def sign(found: re.Match[str]) -> str:
        if found["link"]:
            return f"`{found['text']} <{found['link']}>`__"
        return f"``{found['code']}``" if found["code"] else found[0]

    return SIGNS.sub(sign, row)
