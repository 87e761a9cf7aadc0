"""Whether tests were deleted or made weaker."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.diffing import Blob, Change

FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs", "testing", "e2e"})
SOURCES = frozenset(
    {
        "py", "js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue", "svelte", "go", "rs",
        "rb", "java", "kt", "kts", "scala", "groovy", "cs", "fs", "vb", "swift", "c", "h", "cc",
        "cpp", "cxx", "hpp", "m", "mm", "php", "pl", "t", "ex", "exs", "erl", "hs", "clj", "cljs",
        "lua", "dart", "r", "jl", "sh", "bash", "bats", "zig", "feature",
    }
)  # fmt: skip
NAMED = re.compile(
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
    if name.rpartition(".")[2].lower() not in SOURCES:
        return False
    return NAMED.search(path) is not None or not FOLDERS.isdisjoint(folder.lower().split("/"))


def flags(changes: list[Change], blobs: dict[str, Blob]) -> list[tuple[str, str]]:
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
