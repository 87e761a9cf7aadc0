"""Entries put into changelog files of many styles; nothing else in them changes by a byte."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.book import NEW_BOOK, OPEN, Book, changes_of, fold_changes, key_of, parse, same_text
from fanout.errors import SkillError

KEEP = """# Changelog

All notable changes.

## [Unreleased]

### Added

- Old thing.

### Fixed

- Old fix.

## [1.1.0] - 2020-02-02

### Added

- Thing one

[Unreleased]: https://example.invalid/compare/v1.1.0...HEAD
[1.1.0]: https://example.invalid/v1.1.0
"""


def folded(book: str | None, text: str, name: str = "CHANGELOG.md") -> str:
    """The file after an entry was put into it; no line of it is changed or moved."""
    done = fold_changes(None if book is None else book.encode(), changes_of(text), name)
    result = done.book.decode()
    if book is not None:
        require_insertions(book, result)
    again = fold_changes(done.book, changes_of(text), name)
    assert again.book == done.book
    assert not again.added
    return result


def require_insertions(before: str, after: str) -> None:
    """Every byte of the one stands in the other, in order, and at most in six pieces."""
    at = pieces = 0
    inside = False
    lines = after.split("\n")
    for line in before.split("\n"):
        start = at
        while lines[at] != line:
            at += 1
            assert at < len(lines), f"lost: {line!r}"
        pieces += at > start
        at += 1
    assert not inside
    assert pieces <= 6


def test_an_entry_goes_under_its_heading_in_the_unreleased_section() -> None:
    text = "### Added\n- New thing\n\n### Security\n- Safer\n\n### Changed\n- Other way\n"
    assert folded(KEEP, text) == KEEP.replace(
        "- Old thing.\n", "- Old thing.\n- New thing\n\n### Changed\n\n- Other way\n"
    ).replace("- Old fix.\n", "- Old fix.\n\n### Security\n\n- Safer\n")


def test_text_without_a_heading_is_a_change() -> None:
    made = folded(KEEP, "Reworked the parser.\n\n* and this\n")
    assert "### Changed\n\n- Reworked the parser.\n- and this\n\n### Fixed" in made
    titled = "# w1\n\nWord.\n"
    assert changes_of(titled, "w1") == changes_of("Word.")
    assert changes_of("# Changelog of w1\n## [Unreleased]\nWord.") == changes_of("Word.")
    assert [c.title for c in changes_of("### fixed:\n- a\n## Speed\n- b\n**Added**\n\n- c")] == [
        "Fixed", "Speed", "Added",
    ]  # fmt: skip


def test_a_new_file_gets_the_usual_head() -> None:
    made = folded(None, "### Added\n- A\n")
    assert made == NEW_BOOK + "\n## [Unreleased]\n\n### Added\n\n- A\n"
    assert folded(NEW_BOOK, "### Added\n- A\n") == made
    assert folded("", "- A") == "## [Unreleased]\n\n### Changed\n\n- A\n"


def test_the_unreleased_section_is_made_above_the_newest_release() -> None:
    released = KEEP.replace(KEEP[KEEP.index("## [Unrel") : KEEP.index("## [1.1.0]")], "")
    assert folded(released, "### Fixed\n- F\n") == released.replace(
        "## [1.1.0]", "## [Unreleased]\n\n### Fixed\n\n- F\n\n## [1.1.0]"
    )


def test_where_releases_go_downwards_so_does_the_next_one() -> None:
    book = "# Log\n\n## 1.0\n\n- a\n\n## 1.1\n\n- b\n\n[x]: y\n"
    assert folded(book, "- c") == book.replace("- b\n", "- b\n\n## Unreleased\n\n- c\n")


STYLES: list[tuple[str, str, str, str]] = [
    # Underlined releases, indented stars and no categories.
    (
        "History.md",
        "1.3.0 / 2014-01-01\n==================\n\n  * a\n    more\n  * b\n\n1.2.0 / 2013-01-01\n"
        "==================\n\n  * c\n",
        "1.3.0",
        "Unreleased\n==========\n\n  * New\n    line\n\n1.3.0",
    ),
    # As zest.releaser has it.
    (
        "CHANGES.rst",
        "Changelog\n=========\n\n1.3 (unreleased)\n----------------\n\n- One\n  more\n\n\n1.2 "
        "(2020-01-01)\n----------------\n\n- a\n",
        "  more\n",
        "  more\n- New\n  line\n",
    ),
    # Plain text without any mark.
    ("NEWS", "v1.2\n  - a\n\nv1.1\n  - b\n", "v1.2", "Unreleased\n  - New\n    line\n\nv1.2"),
    # Compact, a blank line between items of another section only.
    (
        "CHANGELOG.md",
        "# Log\n## [Unreleased]\n### Added\n* a\n### Fixed\n* b\n## [1.0.0]\n### Added\n* c\n",
        "* a\n",
        "* a\n* New\n  line\n",
    ),
    # Loose items.
    (
        "CHANGELOG.md",
        "# Log\n\n## [Unreleased]\n\n### Added\n\n- a\n\n- b\n\n## [1.0.0]\n\n### Added\n\n- c\n",
        "- b\n",
        "- b\n\n- New\n  line\n",
    ),
    # Newest on top: told by the numbers of the issues.
    (
        "CHANGELOG.md",
        "# Log\n\n## [Unreleased]\n\n### Added\n\n- b (#12)\n- a (#10)\n",
        "- b (",
        "- New\n  line\n- b (",
    ),
    # An empty template.
    (
        "CHANGELOG.md",
        "## [Unreleased]\n\n### Added\n\n### Fixed\n\n## [1.0.0]\n\n### Added\n\n- c\n",
        "### Added\n\n### Fixed",
        "### Added\n\n- New\n  line\n\n### Fixed",
    ),
    # Categories that are no headings.
    (
        "CHANGELOG.md",
        "# Log\n\n## 1.0 (2020-01-01)\n\n**Fixed:**\n\n- c\n",
        "## 1.0",
        "## Unreleased\n\n**Added:**\n\n- New\n  line\n\n## 1.0",
    ),
    # Over- and underlined headings, categories of a third kind.
    (
        "HISTORY.rst",
        "=======\nHistory\n=======\n\n2.0 (2020-02-02)\n================\n\nFixed\n-----\n\n* x\n",
        "2.0 (",
        "Unreleased\n==========\n\nAdded\n-----\n\n* New\n  line\n\n2.0 (",
    ),
    # Smaller headings within a category.
    (
        "CHANGELOG.md",
        "## [Unreleased]\n\n### Added\n\n- a\n\n#### Parser\n\n- b\n",
        "- a\n",
        "- a\n- New\n  line\n",
    ),
    # Settings at the top and a release as a link.
    (
        "CHANGELOG.md",
        "---\ntitle: Changelog\n---\n\n## [1.0.1](https://x/y) (2020-01-01)\n\n### Added\n\n* c\n",
        "## [1.0.1]",
        "## [Unreleased]\n\n### Added\n\n* New\n  line\n\n## [1.0.1]",
    ),
    # A release in a code block or comment is none.
    (
        "CHANGELOG.md",
        "# A\n\n```\n## [Unreleased]\n```\n\n<!--\n## [Unreleased]\n-->\n\n"
        "## [1.0.0]\n\n### Added\n\n- x\n",
        "## [1.0.0]",
        "## [Unreleased]\n\n### Added\n\n- New\n  line\n\n## [1.0.0]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "book", "old", "new"), STYLES)
@pytest.mark.parametrize("eol", ["\n", "\r\n"])
def test_the_style_is_that_of_the_file(name: str, book: str, old: str, new: str, eol: str) -> None:
    wanted = book.replace(old, new, 1) if "code block" not in old else book
    if "```" in book:
        head, _, tail = book.rpartition(old)
        wanted = head + new + tail
    made = folded(book.replace("\n", eol), "### Added\n- New\n  line\n", name)
    assert made == wanted.replace("\n", eol)


def test_a_file_without_a_last_line_end_keeps_it_so() -> None:
    book = "## [Unreleased]\n\n### Added\n\n- a"
    assert folded(book, "### Added\n- b") == book + "\n- b"


def test_bytes_that_are_no_text_survive_and_a_binary_file_is_refused() -> None:
    book = b"\xef\xbb\xbf# Log\n\n## [Unreleased]\n\n### Added\n\n- caf\xe9\n"
    done = fold_changes(book, changes_of("### Added\n- b"), "CHANGELOG.md")
    assert done.book == book + b"- b\n"
    done = fold_changes(b"\xef\xbb\xbf## 1.0\n\n- a\n", changes_of("- b"), "CHANGELOG.md")
    assert done.book == b"\xef\xbb\xbf## Unreleased\n\n- b\n\n## 1.0\n\n- a\n"
    with pytest.raises(SkillError, match="is no text"):
        fold_changes(b"a\0b", changes_of("- b"), "CHANGELOG.md")


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("### Added\n* Old   thing\n", 0),
        ("### Added\nOld\nthing.\n", 0),
        ("Old thing", 0),
        ("### Fixed\n- Old thing\n", 1),
        ("### Added\n- old thing\n", 1),
        ("### Added\n- New\n- New.\n", 1),
        ("### Added\n- Thing one\n", 1),
    ],
)
def test_the_same_text_is_not_put_there_twice(text: str, added: int) -> None:
    done = fold_changes(KEEP.encode(), changes_of(text), "CHANGELOG.md")
    assert len(done.added) == added
    assert len(done.duplicates) == len(changes_of(text)) - added
    if not added:
        assert done.book == KEEP.encode()


def test_what_belongs_to_an_item_stays_with_it() -> None:
    text = (
        "### Added\n\n*   Wide\n    - nested\n\n      deep\n    1. one\n\n```sh\n# no heading\n"
        "\tmake\n\n  x\n```\n\n> said\n\n[a]: https://example.invalid\n[b]: https://example.invalid\n"
        "\n- Next\nlazy\n\n---\n\n<!-- not told -->\n"
    )
    made = folded("## [Unreleased]\n\n### Added\n\n- a\n", text)
    assert made == (
        "## [Unreleased]\n\n### Added\n\n- a\n- Wide\n  - nested\n\n    deep\n  1. one\n\n"
        "  ```sh\n  # no heading\n  \tmake\n\n    x\n  ```\n\n  > said\n\n"
        "  [a]: https://example.invalid\n  [b]: https://example.invalid\n- Next\n  lazy\n"
    )


def test_an_entry_cannot_swallow_what_follows() -> None:
    for text in ("- a\n\n```\nopen\n", "- ```\n  open", "- <!-- open", "- a\n# [1.0.0]\n- b\n"):
        made = folded(KEEP, text)
        assert [part.heading.text for part in Book(made, "CHANGELOG.md").sections] == [
            "[Unreleased]", "[1.1.0] - 2020-02-02",
        ]  # fmt: skip


# --- Properties -----------------------------------------------------------------------------

WORDS = st.text("ab1 .*-`[]#:<>!~_|\\\t\u00e9", max_size=12)
ROWS = st.one_of(
    WORDS,
    WORDS.map(lambda word: "- " + word),
    WORDS.map(lambda word: "  * " + word),
    WORDS.map(lambda word: "    " + word),
    st.sampled_from(
        ["", "", "```", "~~~sh", "### Added", "### Fixed", "## Speed", "# w", "---", "===",
         "<!--", "-->", "## [Unreleased]", "## 1.0.0", "[a]: b", "> q", "Added:"]
    ),
)  # fmt: skip
TEXTS = st.lists(ROWS, max_size=9).map("\n".join)
BOOKS = st.one_of(
    st.none(),
    st.just(KEEP),
    st.tuples(st.sampled_from(STYLES), TEXTS).map(lambda pair: pair[0][1] + pair[1]),
    st.tuples(TEXTS, st.sampled_from(["", KEEP])).map("\n".join),
)
NAMES = st.sampled_from(["CHANGELOG.md", "CHANGES.rst", "NEWS"])


@settings(max_examples=150)
@given(BOOKS, TEXTS, NAMES, st.booleans())
@example("", "- a", "NEWS", False)
def test_any_entry_ends_under_its_heading_once_and_no_other_byte_changes(
    book: str | None, text: str, name: str, crlf: bool
) -> None:
    if crlf and book is not None:
        book = book.replace("\n", "\r\n")
    before = None if book is None else book.encode()
    earlier = [] if book is None else Book(book, name).known()
    wanted = changes_of(text)
    if book is not None and any(block.mark == OPEN for block in Book(book, name).blocks):
        with pytest.raises(SkillError, match="does not end"):
            fold_changes(before, wanted, name)
        return
    done = fold_changes(before, wanted, name)
    again = fold_changes(done.book, wanted, name)
    assert (again.book, again.added) == (done.book, [])
    if not done.added:
        assert done.book == (before or b"")
        return
    if book is not None:
        require_bytes(book, done.book.decode())
    made = Book(done.book.decode(), name)
    known = [(key_of(c.title), c.same) for c in made.known()]
    for change in wanted:
        found = [key for key, same in known if same == change.same]
        assert found, (change, done.book)
        if change.text in done.added and change.title and not made.flat:
            assert found.count(change.key) >= 1, (change, done.book)
    # Nothing but the new items has become an item, and no section was cut in two.
    assert len(made.known()) == len(earlier) + len(done.added)


def require_bytes(before: str, after: str) -> None:
    """The one is the other with pieces put into it."""
    at = 0
    for line in parse(before).lines:
        at = after.find(line, at) + len(line)
        assert at >= len(line), f"lost: {line!r}"


@settings(max_examples=100)
@given(TEXTS, TEXTS)
def test_entries_of_two_workers_come_one_by_one_as_together(one: str, two: str) -> None:
    first = fold_changes(KEEP.encode(), changes_of(one), "CHANGELOG.md")
    second = fold_changes(first.book, changes_of(two), "CHANGELOG.md")
    both = fold_changes(KEEP.encode(), changes_of(one) + changes_of(two), "CHANGELOG.md")
    assert len(both.added) == len(first.added) + len(second.added)
    assert sorted(map(same_text, both.book.decode().split("\n"))) == sorted(
        map(same_text, second.book.decode().split("\n"))
    )


@settings(max_examples=100)
@given(TEXTS)
def test_every_line_of_a_text_is_in_at_most_one_block(text: str) -> None:
    for markdown in (True, False):
        outline = parse(text, markdown=markdown)
        assert "".join(outline.lines) == text
        end = 0
        for block in outline.blocks:
            assert end <= block.start < block.end
            assert not any(map(str.strip, outline.lines[end : block.start]))
            end = block.end
        assert not any(map(str.strip, outline.lines[end:]))
