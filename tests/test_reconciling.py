"""Entries that a worker put into the changelog file itself, taken out of conflicts of real git."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.book import Book, changes_of, fold_changes, reconcile
from world import World

BASE = """# Changelog

Intro.

## [Unreleased]

### Added

- Old thing

## [1.0.0] - 2020-01-01

### Fixed

- First fix

[Unreleased]: https://example.invalid/compare/v1.0.0...HEAD
"""
HEAD = "## [Unreleased]\n\n"
CUT = "## [Unreleased]\n\n## [1.1.0] - 2021-01-01\n\n"


def put(text: str) -> Callable[[str], str]:
    """An edit that puts an item below the old one."""
    return lambda book: book.replace("- Old thing\n", f"- Old thing\n{text}")


class History:
    """A repository in which two branches have edited the changelog file."""

    def __init__(self, world: World, base: str, name: str = "CHANGELOG.md") -> None:
        self.world = world
        self.name = name
        self.file = world.repo / name
        self.file.write_bytes(base.encode())
        world.commit("base")

    def edit(self, branch: str, change: Callable[[str], str]) -> bytes:
        """Edit the file on a branch of its own; what it holds there."""
        self.world.git("switch", "-q", "-c", branch, "main")
        self.file.write_bytes(change(self.file.read_bytes().decode()).encode())
        self.world.commit(branch)
        return self.file.read_bytes()

    def merged(self, one: str, two: str) -> str | None:
        """What git makes of the file; None for a conflict."""
        words = ["merge-tree", "--write-tree", one, two]
        tree = self.world.git(*words, check=False).split("\n")[0]
        text = self.world.git("cat-file", "blob", f"{tree}:{self.name}") + "\n"
        return None if "<<<<<<<" in text else text

    def blob(self, name: str) -> bytes:
        """The file on a branch."""
        return (self.world.git("cat-file", "blob", f"{name}:{self.name}") + "\n").encode()

    def reconciled(self, one: str, two: str) -> str | None:
        """What becomes of the file."""
        base, ours, theirs = (self.blob(name) for name in ("main", one, two))
        made = reconcile(base, ours, theirs, self.name)
        return None if made is None else made.decode()


def test_two_workers_that_edited_the_same_lines(world: World) -> None:
    history = History(world, BASE)
    history.edit("w1", put("- One\n\n### Fixed\n\n- Fix one\n"))
    history.edit("w2", put("- Two\n  more\n\n### Changed\n\n- Change two\n"))
    assert history.merged("w1", "w2") is None
    assert history.reconciled("w1", "w2") == BASE.replace(
        "- Old thing\n",
        "- Old thing\n- One\n- Two\n  more\n\n### Changed\n\n- Change two\n\n### Fixed\n\n"
        "- Fix one\n",
    )


def test_the_same_entry_under_a_union_attribute_stands_there_once(world: World) -> None:
    (world.repo / ".gitattributes").write_text("CHANGELOG.md merge=union\n")
    history = History(world, BASE)
    history.edit("w1", put("- Shared thing.\n- One\n"))
    history.edit("w2", put("*  Shared  thing\n- Two\n"))
    plain = history.merged("w1", "w2")
    assert plain is not None
    assert plain.count("Shared") == 2
    made = history.reconciled("w1", "w2")
    assert made == BASE.replace("- Old thing\n", "- Old thing\n- Shared thing.\n- One\n- Two\n")


def test_a_release_was_cut_meanwhile(world: World) -> None:
    history = History(world, BASE)
    history.edit("release", lambda book: book.replace(HEAD, CUT))
    history.edit("w1", put("- One\n"))
    plain = history.merged("release", "w1")
    # Git would put it into the release, without any conflict.
    assert plain is not None
    assert "- Old thing\n- One\n\n## [1.0.0]" in plain
    made = history.reconciled("release", "w1")
    assert made == history.blob("release").decode().replace(
        HEAD, HEAD + "### Added\n\n- One\n\n", 1
    )


def test_a_release_was_cut_that_left_no_unreleased_section(world: World) -> None:
    history = History(world, BASE)
    history.edit("release", lambda book: book.replace("[Unreleased]\n", "[1.1.0] - 2021-01-01\n"))
    history.edit("w1", put("- One\n"))
    made = history.reconciled("release", "w1")
    assert made == history.blob("release").decode().replace(
        "## [1.1.0]", HEAD + "### Added\n\n- One\n\n## [1.1.0]"
    )


def test_what_was_released_meanwhile_is_not_news_again(world: World) -> None:
    history = History(world, BASE)
    history.edit("release", lambda book: put("- One\n")(book).replace(HEAD, CUT))
    history.edit("w1", put("- One\n- Two\n"))
    made = history.reconciled("release", "w1")
    assert made == history.blob("release").decode().replace(
        HEAD, HEAD + "### Added\n\n- Two\n\n", 1
    )


def test_a_worker_made_the_section_itself(world: World) -> None:
    base = BASE.replace(BASE[BASE.index(HEAD) : BASE.index("## [1.0.0]")], "")
    history = History(world, base)
    for name in ("w1", "w2"):
        entry = f"{HEAD}### Added\n\n- {name}\n\n## [1.0.0]"
        history.edit(name, lambda book, new=entry: book.replace("## [1.0.0]", new))
    assert history.merged("w1", "w2") is None
    assert history.reconciled("w1", "w2") == base.replace(
        "## [1.0.0]", HEAD + "### Added\n\n- w1\n- w2\n\n## [1.0.0]"
    )


def test_an_item_brings_its_code_along_and_takes_the_style_of_the_file() -> None:
    base = "Log\r\n===\r\n\r\n1.1 (unreleased)\r\n----------------\r\n\r\n* Old thing\r\n"
    ours = base + "* One\r\n"
    theirs = base + "\r\n- New\r\n\r\n```\r\nx\r\n```\r\n"
    made = reconcile(base.encode(), ours.encode(), theirs.encode(), "CHANGES.md")
    assert made == (ours + "* New\r\n\r\n  ```\r\n  x\r\n  ```\r\n").encode()


MORE_THAN_ENTRIES: list[Callable[[str], str]] = [
    lambda book: book.replace("Old thing", "Old things"),
    lambda book: book.replace("- Old thing\n", "- Old thing\n  - nested\n"),
    lambda book: book.replace("- Old thing\n", ""),
    lambda book: book.replace("First fix\n", "First fix\n- Late fix\n"),
    lambda book: book.replace("Intro.", "Intro!"),
    lambda book: book.replace("Intro.\n", "Intro.\n\nMore.\n"),
    lambda book: book.replace("Intro.\n\n", "Intro.\n\n\n"),
    lambda book: book.replace("- Old thing\n", "- Old thing\n\nA paragraph.\n"),
    lambda book: book.replace(HEAD, CUT),
    lambda book: book.replace("HEAD", "main"),
    lambda book: book + "[1.0.0]: https://example.invalid\n",
    lambda book: book + "\n",
    lambda book: book.replace("\n", "\r\n"),
    lambda book: book + "```\n",
    lambda book: book + "\0",
    lambda _: "",
]


@pytest.mark.parametrize("change", MORE_THAN_ENTRIES)
def test_what_is_more_than_entries_is_left_to_a_merge(change: Callable[[str], str]) -> None:
    theirs = change(put("- One\n")(BASE))
    assert reconcile(BASE.encode(), BASE.encode(), theirs.encode(), "CHANGELOG.md") is None


def test_without_entries_nothing_changes() -> None:
    ours = put("- One\n")(BASE).encode()
    for theirs in (BASE.encode(), ours):
        assert reconcile(BASE.encode(), ours, theirs, "CHANGELOG.md") == ours
    assert reconcile(b"", ours, b"", "CHANGELOG.md") == ours
    assert reconcile(BASE.encode(), b"```\n", ours, "CHANGELOG.md") is None


ITEMS = st.lists(
    st.tuples(
        st.sampled_from(["### Added\n", "### Fixed\n", "### Speed\n", ""]),
        st.sampled_from(["- a\n", "- b\n  c\n", "- d\n\n  e\n", "- Old thing.\n", "- f\n- g\n"]),
    ).map("".join),
    max_size=4,
).map("".join)


@settings(max_examples=60)
@given(ITEMS, ITEMS, st.booleans())
def test_no_entry_of_either_side_is_lost_and_none_is_there_twice(
    one: str, two: str, cut: bool
) -> None:
    name = "CHANGELOG.md"
    base = BASE.encode()
    ours = fold_changes(base, changes_of(one), name).book
    theirs = fold_changes(base, changes_of(two), name).book
    if cut:
        ours = ours.replace(HEAD.encode(), CUT.encode(), 1)
    made = reconcile(base, ours, theirs, name)
    assert made is not None
    assert made == reconcile(base, made, theirs, name)
    mine, all_of = Book(ours.decode(), name), Book(made.decode(), name)
    said = [(block.text) for block in all_of.blocks if block.kind == "item"]
    for block in [*mine.blocks, *Book(theirs.decode(), name).blocks]:
        if block.kind == "item":
            assert block.text in said
    # With the added lines taken out it is ours, byte by byte.
    rest = iter(made.decode().split("\n"))
    assert all(line in rest for line in ours.decode().split("\n"))
