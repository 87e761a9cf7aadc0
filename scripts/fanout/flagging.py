"""What a reviewer should not overlook in a candidate's work: a code, and the paths concerned."""

from __future__ import annotations

import re
import unicodedata

from fanout import redacting, weakening
from fanout.diffing import REGULAR, Blob, Change, Commit
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGE = 1_000_000
SHOWN = 200
LOCK_FILES = frozenset(
    {
        "cargo.lock", "composer.lock", "flake.lock", "gemfile.lock", "go.sum", "mix.lock",
        "npm-shrinkwrap.json", "package-lock.json", "package.resolved", "pipfile.lock", "pdm.lock",
        "pnpm-lock.yaml", "podfile.lock", "poetry.lock", "pubspec.lock", "uv.lock", "yarn.lock",
        "bun.lock", "bun.lockb", "packages.lock.json", "gradle.lockfile", "deno.lock",
    }
)  # fmt: skip
GENERATED_SUFFIXES = (".min.js", ".min.css", ".map", ".pb.go", "_pb2.py", "_pb2_grpc.py", ".g.dart")
# Near the beginning of a file, in a comment.
GENERATED_HEAD = rb"@generated\b|\bDO NOT (?:EDIT|MODIFY)\b|(?i:\bauto-?generated (?:by|file)\b)"
HEAD_BYTES = 1_000
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
FENCED_SUFFIXES = (".md", ".markdown", ".mdx", ".qmd", ".rmd")
# Characters that make a line look different from what it is.
BIDI = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")


class Flag(NamedTuple):
    """One thing to look at. `paths` are relative to the top, some with a line: `path:3`."""

    code: str
    paths: list[str]

    def to_json(self, limit: int = SHOWN) -> dict[str, Any]:
        """The row of `data.flags`; `left_out` says how many paths are not listed."""
        return {
            "code": self.code,
            "paths": self.paths[:limit],
            "left_out": max(0, len(self.paths) - limit),
        }


def grouped(rows: list[tuple[str, str]]) -> list[Flag]:
    """Flags of `(code, path)` rows; codes in the order of their first row."""
    found: dict[str, list[str]] = {}
    for code, path in rows:
        found.setdefault(code, []).append(path)
    return [Flag(code, list(dict.fromkeys(paths))) for code, paths in found.items()]


def flags_of_changes(
    changes: list[Change], blobs: dict[str, Blob], paths: list[str]
) -> list[tuple[str, str]]:
    """The rows for what a candidate has committed. `paths` are all paths of its tip."""
    rows: list[tuple[str, str]] = []
    for change in changes:
        rows += flags_of_modes(change)
        rows += flags_of_content(change, blobs)
    rows += [(code, path) for code, path in weakening.flags(changes, blobs)]
    added = [change.path for change in changes if change.status == "A"]
    return rows + [("odd-name", path) for path in added if is_odd(path)] + clashes(added, paths)


def flags_of_modes(change: Change) -> list[tuple[str, str]]:
    """The rows for what kind of thing a path is and was."""
    before, after = change.mode_before, change.mode_after
    found: list[str] = []
    if before in REGULAR and after in REGULAR and before != after:
        found.append("mode-changed")
    if after == "100755" and before != after:
        found.append("new-executable")
    if after == "120000" or (before == "120000" and after is not None):
        found.append("symlink")
    if "160000" in (before, after):
        found.append("submodule")
    return [(code, change.path) for code in found]


def flags_of_content(change: Change, blobs: dict[str, Blob]) -> list[tuple[str, str]]:
    """The rows for what a path holds now, and for what it held if it is gone."""
    path = change.path
    blob = content_of(change.blob_after, change.mode_after, blobs)
    old = content_of(change.blob_before, change.mode_before, blobs)
    found: list[tuple[str, str]] = []
    if blob is not None and blob.size > LARGE:
        found.append(("large-file", path))
    if (blob or old) is not None and change.added is None:
        shown = blob or old
        hidden = shown is not None and shown.content is not None and not shown.binary
        found.append(("hidden-by-attributes" if hidden else "binary", path))
    elif any(side is not None and side.binary for side in (blob, old)):
        found.append(("binary", path))
    if blob is None:
        return found
    if is_generated_name(path):
        found.append(("generated", path))
    if blob.content is None:
        return [*found, ("not-looked-into", path)]
    if re.search(GENERATED_HEAD, blob.content[:HEAD_BYTES]) is not None:
        found.append(("generated", path))
    lines, fresh = fresh_lines(old, blob)
    if not blob.binary and has_markers(path, lines, fresh):
        found.append(("conflict-markers", path))
    found += [("secret", f"{path}:{n + 1}") for n, _ in redacting.secrets_in(lines) if n in fresh]
    if not blob.binary:
        hidden_lines = [n for n in sorted(fresh) if is_hiding(lines[n], n)]
        found += [("hidden-characters", f"{path}:{n + 1}") for n in hidden_lines]
    return found


def content_of(name: str | None, mode: str | None, blobs: dict[str, Blob]) -> Blob | None:
    """What a file or link holds; None for a submodule, or where there is nothing."""
    return None if name is None or mode == "160000" else blobs.get(name)


def text_lines(content: bytes) -> list[str]:
    """The lines of a content; bytes that are not UTF-8 survive as surrogates."""
    return content.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")


def fresh_lines(old: Blob | None, new: Blob) -> tuple[list[str], set[int]]:
    """The lines of a content, and which of them stood nowhere in the old one, from 0."""
    lines = text_lines(new.content or b"")
    before = old.content if old is not None else None
    known = set(text_lines(before)) if before is not None else set[str]()
    return lines, {number for number, line in enumerate(lines) if line not in known}


def is_generated_name(path: str) -> bool:
    """Whether a file of this name is made by a program, whatever it holds."""
    name = path.rpartition("/")[2].lower()
    return name in LOCK_FILES or name.endswith(GENERATED_SUFFIXES)


def has_markers(path: str, lines: list[str], fresh: set[int]) -> bool:
    """Whether a text holds the marks of a conflict that was not resolved.

    All three in their order, each a line of its own. In Markdown, a fenced block shows things.
    """
    fenced = path.lower().endswith(FENCED_SUFFIXES)
    fence = ""
    expected = "<"
    for number, line in enumerate(lines):
        mark = FENCE.match(line) if fenced else None
        if mark is not None and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            continue
        if fence:
            continue
        if is_mark(line, "<") and number in fresh:
            expected = "="
        elif expected == "=" and line == "=" * 7:
            expected = ">"
        elif expected == ">" and is_mark(line, ">"):
            return True
    return False


def is_mark(line: str, letter: str) -> bool:
    """Whether a line is the first or last mark of a conflict."""
    return line.startswith(letter * 7) and (len(line) == 7 or line[7] == " ")


def is_hiding(line: str, number: int) -> bool:
    """Whether a line holds characters that nobody sees; a mark at the start of a file is none."""
    return not line.isascii() and BIDI.search(line[1:] if number == 0 else line) is not None


def is_odd(path: str) -> bool:
    """Whether a name is no text, or looks different from what it is, or is none elsewhere."""
    if any("\udc80" <= c <= "\udcff" or unicodedata.category(c) in ("Cc", "Cf") for c in path):
        return True
    parts = path.split("/")
    return any(
        part[-1] in " ." or part[0] in " -" or set(part) & set('\\:*?"<>|') for part in parts
    )


def clashes(added: list[str], paths: list[str]) -> list[tuple[str, str]]:
    """Rows for new paths that some file systems cannot tell from another one."""
    if not added:
        return []
    seen: dict[str, set[str]] = {}
    for path in paths:
        # Two folders may clash as well.
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            seen.setdefault(unicodedata.normalize("NFC", name).casefold(), set()).add(name)
    found: list[tuple[str, str]] = []
    for path in added:
        parts = path.split("/")
        names = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        if any(len(seen[unicodedata.normalize("NFC", n).casefold()]) > 1 for n in names):
            found.append(("case-clash", path))
    return found


def flags_of_history(
    commits: list[Commit], changes: list[Change], blobs: dict[str, Blob]
) -> list[tuple[str, str]]:
    """The rows for contents that came and went again, but stay in the history for ever."""
    final = {change.blob_after for change in changes} | {change.blob_before for change in changes}
    rows: list[tuple[str, str]] = []
    seen: set[str] = set()
    for commit in reversed(commits):
        for change in commit.changes:
            name = change.blob_after
            if name is None or name in final or name in seen:
                continue
            seen.add(name)
            blob = content_of(name, change.mode_after, blobs)
            if blob is None:
                continue
            place = f"{commit.id[:12]}:{change.path}"
            if blob.size > LARGE:
                rows.append(("large-in-history", place))
            if blob.content is None:
                rows.append(("not-looked-into", place))
                continue
            old = content_of(change.blob_before, change.mode_before, blobs)
            lines, fresh = fresh_lines(old, blob)
            hits = [n for n, _ in redacting.secrets_in(lines) if n in fresh]
            rows += [("secret-in-history", f"{place}:{n + 1}") for n in hits]
    return rows


def secret_values(blobs: dict[str, Blob]) -> list[str]:
    """The likely secrets in these contents, the longest first, so that no text shows them."""
    found: set[str] = set()
    for blob in blobs.values():
        if blob.content is not None:
            lines = text_lines(blob.content)
            found |= {value for _, value in redacting.secrets_in(lines) if len(value) >= 12}
    return sorted(found, key=len, reverse=True)
