"""Tests that were deleted or made weaker, in the languages that people use."""

from __future__ import annotations

import pytest

from fanout.diffing import Blob, Change
from fanout.weakening import flags, functions, is_test


def found(olds: dict[str, str], news: dict[str, str]) -> dict[str, list[str]]:
    """The flagged paths by code, for files before and after."""
    blobs: dict[str, Blob] = {}
    changes: list[Change] = []
    for path in sorted({*olds, *news}):
        old, new = olds.get(path), news.get(path)
        if old == new:
            continue
        for text in filter(None, (old, new)):
            blobs[f"id of {text}"] = Blob(len(text), text.encode())
        status = "A" if old is None else "D" if new is None else "M"
        before, after = (None if text is None else f"id of {text}" for text in (old, new))
        changes.append(Change(path, status, "100644", "100644", before, after, 1, 1))
    rows: dict[str, list[str]] = {}
    for code, path in flags(changes, blobs):
        rows.setdefault(code, []).append(path)
    return rows


TESTS = [
    "tests/test_a.py", "test_a.py", "pkg/a_test.go", "src/a.test.ts", "src/a.spec.js",
    "src/__tests__/a.jsx", "spec/a_spec.rb", "src/test/java/ATest.java", "a/FooTests.cs",
    "tests/conftest.py", "tests/helper.sh", "Tests/AppTest.swift", "t/../test/x.c", "tests/a.bats",
]  # fmt: skip
OTHERS = [
    "src/a.py", "latest.py", "contest.go", "tests/data.json", "tests/README.md", "attest.ts",
    "src/protest/a.py", "testing.md", "src/inspect.rb",
]  # fmt: skip


def test_which_files_are_tests() -> None:
    assert [path for path in TESTS if not is_test(path)] == []
    assert [path for path in OTHERS if is_test(path)] == []


NAMES = {
    "def test_a(x):\n": {"test_a"},
    "class T:\n    async def test_b(self):\n": {"test_b"},
    "it('does x', () => {})\n": {"does x"},
    '  test.only("y z", fn)\n': {"y z"},
    "func TestA(t *testing.T) {\n": {"TestA"},
    "#[test]\nfn works() {\n": {"works"},
    "#[tokio::test]\n#[should_panic]\nasync fn fails() {\n": {"fails"},
    "@Test\npublic void doesIt() {\n": {"doesIt"},
    "@Test(expected = X.class)\nvoid throwsIt() {\n": {"throwsIt"},
    "TEST_F(Suite, name) {\n": {"Suite, name"},
    '@test "adds" {\n': {"adds"},
    '  it "works" do\n': {"works"},
    "    func testThing() throws {\n": {"testThing"},
    "def helper():\n": set[str](),
}


@pytest.mark.parametrize("text", NAMES)
def test_names_of_tests(text: str) -> None:
    assert functions(text) == NAMES[text]


ONE = "def test_a():\n    assert f() == 1\n    assert g()\n"
WEAKER = {
    "an assertion less": "def test_a():\n    assert f() == 1\n",
    "no test": "X = 1\nassert 1\nassert 2\n",
    "another name": ONE.replace("test_a", "test_b"),
    "skipped": "@pytest.mark.skip\n" + ONE,
    "expected to fail": "@pytest.mark.xfail(reason='x')\n" + ONE,
    "skipped inside": ONE + "    pytest.skip('later')\n",
    "disabled by its name": ONE.replace("def test_a", "def not_a_test"),
}


@pytest.mark.parametrize("how", WEAKER)
def test_weaker_tests_are_flagged(how: str) -> None:
    path = "tests/test_x.py"
    assert found({path: ONE}, {path: WEAKER[how]}) == {"tests-weakened": [path]}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("a.test.ts", "it('a', () => { expect(1) })", "it.skip('a', () => { expect(1) })"),
        ("a.test.ts", "it('a', () => { expect(1) })", "xit('a', () => { expect(1) })"),
        ("a.test.ts", "it('a', f); it('b', f)", "it.only('a', f); it('b', f)"),
        ("a_test.go", "func TestA(t *T) { t.Fatal(1) }", "func TestA(t *T) { t.Skip() }"),
        (
            "src/lib.rs",
            "#[test]\nfn a() { assert!(x) }",
            "#[test]\n#[ignore]\nfn a() { assert!(x) }",
        ),
        ("src/lib.rs", "#[test]\nfn a() { assert!(x) }", "fn a() {}"),
        ("ATest.java", "@Test\nvoid a() {}\n", "@Disabled\n@Test\nvoid a() {}\n"),
    ],
)
def test_weaker_tests_of_other_languages(path: str, old: str, new: str) -> None:
    assert found({path: old}, {path: new}) == {"tests-weakened": [path]}


def test_what_is_not_weaker() -> None:
    path = "tests/test_x.py"
    assert found({path: ONE}, {path: ONE + "    assert h()\n"}) == {}
    assert found({path: ONE}, {path: ONE.replace("f()", "ff()")}) == {}
    assert found({"src/x.py": ONE}, {"src/x.py": "x = 1\n"}) == {}
    assert found({}, {path: "@pytest.mark.skip\n" + ONE}) == {}


def test_deleted_tests_are_flagged_and_moved_ones_are_not() -> None:
    path = "tests/test_x.py"
    assert found({path: ONE}, {}) == {"tests-deleted": [path]}
    assert found({path: ONE}, {"tests/unit/test_y.py": ONE}) == {}
    assert found({path: ONE}, {"tests/unit/test_x.py": ONE + "    assert h()\n"}) == {}
    gutted = {"tests/unit/test_x.py": "def test_a():\n    pass\n"}
    assert found({path: ONE}, gutted) == {"tests-weakened": [path]}
    assert found({"tests/data.json": "{}"}, {}) == {}


def test_a_test_that_moves_to_another_file_is_not_gone() -> None:
    two = ONE + "def test_b():\n    pass\n"
    olds = {"tests/test_x.py": two, "tests/test_y.py": ONE}
    news = {"tests/test_x.py": ONE, "tests/test_y.py": ONE + "def test_b():\n    pass\n"}
    assert found(olds, news) == {}
