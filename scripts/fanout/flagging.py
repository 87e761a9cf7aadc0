"""What a reviewer should not overlook in a candidate's work: a code, and the paths concerned."""

from __future__ import annotations

import math
import re
import unicodedata

from fanout.fields import NamedTuple
from fanout.git import REGULAR, Blob, Change, Commit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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
    rows += [(code, path) for code, path in flags_of_tests(changes, blobs)]
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
    found += [("secret", f"{path}:{n + 1}") for n, _ in secrets_in(lines) if n in fresh]
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
            hits = [n for n, _ in secrets_in(lines) if n in fresh]
            rows += [("secret-in-history", f"{place}:{n + 1}") for n in hits]
    return rows


def secret_values(blobs: dict[str, Blob]) -> list[str]:
    """The likely secrets in these contents, the longest first, so that no text shows them."""
    found: set[str] = set()
    for blob in blobs.values():
        if blob.content is not None:
            lines = text_lines(blob.content)
            found |= {value for _, value in secrets_in(lines) if len(value) >= 12}
    return sorted(found, key=len, reverse=True)


# --- Tests that were deleted or made weaker -------------------------------------------------


TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs", "testing", "e2e"})
TEST_SOURCES = frozenset(
    {
        "py", "js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue", "svelte", "go", "rs",
        "rb", "java", "kt", "kts", "scala", "groovy", "cs", "fs", "vb", "swift", "c", "h", "cc",
        "cpp", "cxx", "hpp", "m", "mm", "php", "pl", "t", "ex", "exs", "erl", "hs", "clj", "cljs",
        "lua", "dart", "r", "jl", "sh", "bash", "bats", "zig", "feature",
    }
)  # fmt: skip
TEST_NAMED = re.compile(
    r"(?:^|/)(?:test_[^/]+|conftest|[^/]+[._-](?:test|tests|spec|specs)|[^/]*[A-Za-z0-9](?:Test|Tests"
    r"|Spec)|[^/]*[a-z0-9]IT|Test[A-Z][^/]*)\.[A-Za-z0-9]+$"
)
ASSERTIONS = re.compile(
    r"\bassert\w*|\bexpect\w*\s*[(!]|\.should\b|\bshould\.\w|\brequire\.\w+\(|\bpytest\.raises\b"
    r"|\b[tb]\.(?:Error|Errorf|Fatal|Fatalf|Fail|FailNow)\(|\b(?:EXPECT|ASSERT|CHECK|REQUIRE)_?\w*\("
    r"|\bXCTAssert\w*|\bverify\w*\("
)
FUNCTIONS = re.compile(
    r"^[ \t]*(?:async[ \t]+)?def[ \t]+(test\w*)"
    r"|\b(?:it|test|specify|scenario)(?:\.\w+)?[ \t]*\(?[ \t]*['\"`]([^'\"`\n]{1,200})['\"`]"
    r"|^func[ \t]+((?:Test|Benchmark|Fuzz|Example)\w*)[ \t]*\("
    r"|#\[(?:\w+::)*test[^\]\n]{0,200}\]\s{0,80}(?:#\[[^\]\n]{0,200}\]\s{0,80}){0,5}"
    r"(?:pub[ \t]+)?(?:async[ \t]+)?fn[ \t]+(\w+)"
    r"|@(?:Test|ParameterizedTest)\b(?:\([^)\n]{0,200}\))?\s{1,80}"
    r"(?:[\w<>\[\]@]{1,80}[ \t]{1,8}){0,6}(\w{1,200})[ \t]*\("
    r"|^[ \t]*func[ \t]+(test\w+)[ \t]*\("
    r"|^[ \t]*(?:public[ \t]+)?function[ \t]+(test\w+)[ \t]*\("
    r"|\bTEST(?:_F|_P|_CASE)?\(([^)\n]{1,200})\)"
    r"|^@test[ \t]+['\"]([^'\"\n]{1,200})['\"]",
    re.MULTILINE,
)
SKIPS = re.compile(
    r"\bmark\.(?:skip|skipif|xfail)\b|\b(?:pytest|unittest)\.(?:skip\w*|xfail|expectedFailure)\b"
    r"|@(?:skip|skipIf|skipUnless|expectedFailure|Disabled|Ignore)\b|\bself\.skipTest\("
    r"|\b(?:it|test|describe|context|suite)\.(?:skip|todo|only|failing)\b|\bx(?:it|test|describe)\("
    r"|\bf(?:it|describe)\(|\bt\.Skip\w*\(|\bb\.Skip\w*\(|#\[ignore\b|\bGTEST_SKIP\(|\bDISABLED_\w+"
    r"|\bSkip[ \t]*=[ \t]*\"|\bXCTSkip\w*\(|\bmarkTest(?:Skipped|Incomplete)\b|^[ \t]*skip\b"
    r"|\[(?:Ignore|Explicit)\b",
    re.MULTILINE,
)


def is_test(path: str) -> bool:
    """Whether a source file of this name holds tests or helps them."""
    folder, _, name = path.rpartition("/")
    if name.rpartition(".")[2].lower() not in TEST_SOURCES:
        return False
    return TEST_NAMED.search(path) is not None or not TEST_FOLDERS.isdisjoint(
        folder.lower().split("/")
    )


def flags_of_tests(changes: list[Change], blobs: dict[str, Blob]) -> list[tuple[str, str]]:
    """`tests-deleted` and `tests-weakened` with their paths.

    A test that stands in another changed file now is not gone.
    """
    news = {c.path: text_of(c.blob_after, blobs) for c in changes if c.status != "D"}
    olds = {c.path: text_of(c.blob_before, blobs) for c in changes if c.status != "A"}
    tests = [c for c in changes if is_test(c.path) or holds_tests(olds.get(c.path))]
    now = {name for text in news.values() for name in functions(text)}
    came = {c.path.rpartition("/")[2]: c for c in changes if c.status == "A"}
    held = {c.blob_after: c for c in changes if c.status == "A" and c.blob_after}
    rows: list[tuple[str, str]] = []
    for change in tests:
        if change.status == "A":
            continue
        old, new = olds[change.path], news.get(change.path)
        if change.status == "D":
            other = held.get(change.blob_before or "") or came.get(change.path.rpartition("/")[2])
            if other is None:
                rows.append(("tests-deleted", change.path))
                continue
            new = news[other.path]
        if old is None or new is None:
            continue
        if is_weaker(old, new, now):
            rows.append(("tests-weakened", change.path))
    return rows


def text_of(name: str | None, blobs: dict[str, Blob]) -> str | None:
    """A content as text, or None where it is not known."""
    blob = blobs.get(name) if name is not None else None
    if blob is None or blob.content is None:
        return None
    return blob.content.decode("utf-8", "replace")


def holds_tests(text: str | None) -> bool:
    """Whether a source holds tests of its own, as those of Rust do."""
    return text is not None and "#[test]" in text


def functions(text: str | None) -> set[str]:
    """The names of the tests in a text."""
    if text is None:
        return set()
    return {next(name for name in hit.groups() if name) for hit in FUNCTIONS.finditer(text)}


def is_weaker(old: str, new: str, now: set[str]) -> bool:
    """Whether a test file lost tests or assertions, or tests that are skipped came.

    `now` are the names of the tests in all changed files.
    """
    return (
        bool(functions(old) - now)
        or len(ASSERTIONS.findall(new)) < len(ASSERTIONS.findall(old))
        or len(SKIPS.findall(new)) > len(SKIPS.findall(old))
    )


# --- Likely secrets -------------------------------------------------------------------------


MARK = "[redacted]"
# Forms that say by themselves what they are. The last part of each is what is secret.
TOKENS = "|".join(
    [
        r"\b(?:AKIA|ASIA|AGPA|AROA)[0-9A-Z]{16}\b",
        r"\bgh[pousr]_[A-Za-z0-9]{30,255}",
        r"\bgithub_pat_[A-Za-z0-9_]{40,255}",
        r"\bglpat-[A-Za-z0-9_-]{20,}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"\bhttps://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
        r"\bAIza[0-9A-Za-z_-]{35}",
        r"\bya29\.[0-9A-Za-z_-]{20,}",
        r"\bsk-(?:ant|proj|svcacct|or)-[A-Za-z0-9_-]{20,}",
        r"\bsk-[A-Za-z0-9]{32,}",
        r"\b[rs]k_live_[0-9A-Za-z]{16,}",
        r"\bwhsec_[0-9A-Za-z+/=]{24,}",
        r"\bnpm_[A-Za-z0-9]{36}\b",
        r"\bpypi-[A-Za-z0-9_-]{50,}",
        r"\bhf_[A-Za-z0-9]{30,}",
        r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}",
        r"\bdop_v1_[0-9a-f]{64}\b",
        r"\bAGE-SECRET-KEY-1[0-9A-Z]{50,}",
        r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    ]
)
# Whoever searches all of these forms in every line takes seconds.
SIGNS = (
    "AKIA", "ASIA", "AGPA", "AROA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "xox", "hooks.slack.com", "AIza", "ya29.", "sk-", "_live_", "whsec_", "npm_", "pypi-", "hf_",
    "SG.", "dop_v1_", "AGE-SECRET-KEY", "eyJ",
)  # fmt: skip
# The password of an address.
ADDRESS = r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,100}:(?P<value>[^\s/:@'\"<>]{3,200})@"
# A name that promises a secret, and what it is set to.
KEYS = r"password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|token|private[_-]?key"
KEY_SIGNS = ("passw", "passphrase", "secret", "key", "token")
ASSIGNED = (
    rf"(?i)(?:{KEYS})[A-Za-z0-9_-]{{0,30}}[\"']?\s{{0,4}}(?::=|=>|=|:)"
    r"\s{0,4}(?:\"(?P<double>[^\"\s]{6,200})\"|'(?P<single>[^'\s]{6,200})'"
    r"|(?P<bare>[A-Za-z0-9+/=_.~-]{16,200})(?=[\s,;]|$))"
)
AWS = (
    r"(?i)aws_?secret_?(?:access_?)?key[\"']?\s{0,4}[=:]\s{0,4}[\"']?(?P<value>[A-Za-z0-9/+=]{40})"
)
KEY_BEGINS = r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
KEY_ENDS = r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
KEY_BODY = r"[A-Za-z0-9/][A-Za-z0-9+/=]{3,}"
# What stands in examples and templates.
HOLLOW = (
    r"(?i)example|changeme|change-me|placeholder|your[_-]?|dummy|redacted|xxx|\*\*\*|\.\.\.|<|>|\$|%"
    r"|\{|\}|\(|\)|^(?:password|secret|token|pass|user|none|null|true|false|undefined)$"
)
VARIED = 2.6
SECRET_LINE_LIMIT = 20_000


def secrets_in(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The likely secrets of a text: the number of each one's line, from 0, and its value.

    The value is empty for the first line of a private key, which says nothing by itself.
    """
    inside = False
    worth = worthwhile(lines)
    for number, line in enumerate(lines):
        if "-----" in line:
            if re.search(KEY_BEGINS, line) is not None:
                yield number, ""
            places, inside = key_spans(line)
        elif inside:
            places = [hit.span() for hit in re.finditer(KEY_BODY, line)]
        else:
            places = spans(line) if worth(line) else []
        for first, last in places:
            yield number, line[first:last]


def worthwhile(lines: list[str]) -> Callable[[str], bool]:
    """A quick look that tells which of these lines may hold a secret: most hold none."""
    text = "\n".join(lines)
    signs = [sign for sign in (*SIGNS, "://") if sign in text]
    keys = [sign for sign in KEY_SIGNS if sign in text.lower()]

    def may_hold(line: str) -> bool:
        if any(sign in line for sign in signs):
            return True
        low = line.lower()
        return any(key in low for key in keys)

    return may_hold


def key_spans(line: str) -> tuple[list[tuple[int, int]], bool]:
    """What a line holds of a private key that begins in it, and whether the key goes on."""
    begins = list(re.finditer(KEY_BEGINS, line))
    places = spans(line)
    goes_on = False
    for begin in begins:
        end = re.compile(KEY_ENDS).search(line, begin.end())
        goes_on = end is None
        last = len(line) if end is None else end.start()
        places += [h.span() for h in re.compile(KEY_BODY).finditer(line, begin.end(), last)]
    return places, goes_on


def spans(line: str) -> list[tuple[int, int]]:
    """Where likely secrets stand in a line, private keys left out."""
    found: list[tuple[int, int]] = []
    # Whoever writes such a line must not hold up whoever looks at it.
    for offset in range(0, max(1, len(line)), SECRET_LINE_LIMIT):
        part = line[offset : offset + SECRET_LINE_LIMIT + 300]
        found += [(offset + a, offset + b) for a, b in part_spans(part)]
    return found


def part_spans(line: str) -> list[tuple[int, int]]:
    """`spans` of a line that is not too long."""
    found = [hit.span() for hit in re.finditer(TOKENS, line)]
    found += [h.span("value") for h in re.finditer(ADDRESS, line) if not hollow(h["value"])]
    found += [hit.span("value") for hit in re.finditer(AWS, line)]
    for hit in re.finditer(ASSIGNED, line):
        group = next(name for name in ("double", "single", "bare") if hit[name] is not None)
        if looks_random(hit[group]):
            found.append(hit.span(group))
    return found


def hollow(value: str) -> bool:
    """Whether a value only shows where a secret belongs."""
    return re.search(HOLLOW, value) is not None


def looks_random(value: str) -> bool:
    """Whether a value is varied enough for a password or key, and no word, name or path."""
    if hollow(value) or not any(c.isdigit() for c in value) or not any(c.isalpha() for c in value):
        return False
    shares = [value.count(letter) / len(value) for letter in set(value)]
    return -sum(share * math.log2(share) for share in shares) >= VARIED


def redact(text: str, values: Iterable[str] = ()) -> str:
    """The text with every likely secret replaced, and these known values wherever they stand."""
    lines = text.split("\n")
    inside = False
    worth = worthwhile(lines)
    for number, line in enumerate(lines):
        if "-----" in line:
            places, inside = key_spans(line)
            lines[number] = without(line, places)
        elif inside:
            lines[number] = re.sub(KEY_BODY, MARK, line)
        elif worth(line):
            lines[number] = without(line, spans(line))
    whole = "\n".join(lines)
    for value in values:
        whole = whole.replace(value, MARK)
    return whole


def without(line: str, places: list[tuple[int, int]]) -> str:
    """A line with a mark in place of each of these parts, which may overlap."""
    kept: list[str] = []
    end = 0
    for first, last in sorted(places):
        if first >= end:
            kept += [line[end:first], MARK]
        end = max(end, last)
    return "".join(kept) + line[end:]
