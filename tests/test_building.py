"""Building a result: changelog entries go where the repository keeps them, one by one."""

from __future__ import annotations

import pytest

from merge_world import Merges, commit_on, link, merges, on_main
from world import World

__all__ = ["merges"]

BOOK = """# Changelog

## [Unreleased]

### Added

- Old thing.

## [1.0.0] - 2026-01-01

### Added

- First.
"""


def with_line(line: str, book: str = BOOK) -> str:
    """The book with one more entry, at the place that every branch would choose."""
    return book.replace("- Old thing.\n", f"- Old thing.\n- {line}\n")


def ready(merges: Merges, *names: str) -> None:
    """Workers that have edited the same line of the book, approved."""
    for name in names:
        merges.work(name, {f"{name}.txt": name, "CHANGELOG.md": with_line(name)}, entry=False)
    merges.approve(*names)


@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase", "cherry-pick"])
def test_two_that_edited_the_same_lines_of_the_book(merges: Merges, strategy: str) -> None:
    on_main(merges.world, {"CHANGELOG.md": BOOK})
    ready(merges, "w1", "w2")
    foreseen = merges.ok("forecast", "w1", "w2")
    assert [row["outcome"] for row in (*foreseen["targets"], *foreseen["pairs"])] == ["clean"] * 3
    assert (foreseen["asked"]["outcome"], foreseen["order"]) == ("clean", ["w1", "w2"])
    ran = merges.call("merge", "w1", "w2", "--strategy", strategy)
    assert ran.code == 0, ran.err
    wanted = BOOK.replace("- Old thing.\n", "- Old thing.\n- w1\n- w2\n")
    assert (merges.repo / "CHANGELOG.md").read_text() == wanted


def test_the_same_entry_of_two_stands_once_also_under_union(merges: Merges) -> None:
    """I22: git's union would keep both, and say nothing."""
    on_main(merges.world, {"CHANGELOG.md": BOOK, ".gitattributes": "CHANGELOG.md merge=union\n"})
    for name in ("w1", "w2"):
        changes = {f"{name}.txt": name, "CHANGELOG.md": with_line("The same news")}
        merges.work(name, changes, entry=False)
    merges.approve("w1", "w2")
    assert merges.call("merge", "w1", "w2").code == 0
    assert (merges.repo / "CHANGELOG.md").read_text() == with_line("The same news")


def test_a_release_that_was_cut_meanwhile_keeps_its_entries(merges: Merges) -> None:
    on_main(merges.world, {"CHANGELOG.md": BOOK})
    ready(merges, "w1")
    cut = BOOK.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [1.1.0] - 2026-02-02\n")
    on_main(merges.world, {"CHANGELOG.md": cut})
    assert merges.call("merge", "w1").code == 0
    book = (merges.repo / "CHANGELOG.md").read_text()
    unreleased, _, released = book.partition("## [1.1.0]")
    assert "- w1\n" in unreleased
    assert "w1" not in released


def test_what_is_more_than_an_entry_is_a_conflict(merges: Merges) -> None:
    on_main(merges.world, {"CHANGELOG.md": BOOK})
    for name in ("w1", "w2"):
        changes = {f"{name}.txt": name, "CHANGELOG.md": BOOK.replace("First.", f"{name}.")}
        merges.work(name, changes, entry=False)
    merges.approve("w1", "w2")
    ran = merges.call("merge", "w1", "w2", "--no-changelog-needed", "w1=x", "--no-changelog-needed",
                     "w2=x")  # fmt: skip
    assert ran.code == 10, ran.err
    (row,) = ran.data["blocked"]
    assert (row["code"], row["paths"]) == ("conflict", ["CHANGELOG.md"])


def test_a_fragment_tool_gets_a_fragment_and_the_book_is_left_alone(merges: Merges) -> None:
    settings = '[tool.towncrier]\ndirectory = "newsfragments"\n'
    on_main(merges.world, {"towncrier.toml": settings, "CHANGELOG.md": BOOK})
    merges.work("w1", {"w1.txt": "w1"})
    merges.approve("w1")
    ran = merges.call("merge", "w1")
    assert ran.code == 0, ran.err
    (path,) = ran.data["changelog"]["files"]
    assert path.startswith("newsfragments/")
    assert "What w1 made." in (merges.repo / path).read_text()
    assert (merges.repo / "CHANGELOG.md").read_text() == BOOK


def test_a_book_that_is_a_link_is_refused_and_stays_one(merges: Merges) -> None:
    on_main(merges.world, {"CHANGELOG.md": link("docs.md"), "docs.md": BOOK})
    merges.work("w1", {"w1.txt": "w1"})
    merges.approve("w1")
    tip = merges.git("rev-parse", "main")
    ran = merges.call("merge", "w1")
    assert ran.code == 3, ran.err
    assert merges.git("rev-parse", "main") == tip
    assert (merges.repo / "CHANGELOG.md").is_symlink()


def test_a_branch_of_no_worker_brings_its_entry_along(merges: Merges, world: World) -> None:
    on_main(world, {"CHANGELOG.md": BOOK})
    commit_on(world, "topic", {"t.txt": "t", "CHANGELOG.md": with_line("Topic")})
    words = ["--branch", "topic", "--base", "main"]
    assert merges.call("approve", *words, "--commit", merges.git("rev-parse", "topic")).code == 0
    assert merges.call("merge", *words).code == 0
    assert (merges.repo / "CHANGELOG.md").read_text() == with_line("Topic")


def test_a_subject_brings_no_control_characters_into_a_message(merges: Merges) -> None:
    """What an agent wrote there would steer the terminal of whoever reads the log."""
    evil = "fix \x1b]0;owned\x07\x1b[31mit\r\x08!\n\nbody\n"
    for name in ("w1", "w2"):
        tree = merges.world.quick(name)
        (tree / name).write_text("1\n")
        merges.world.commit(evil, tree)
    (merges.world.tree("w2") / "more").write_text("1\n")
    merges.world.commit("second", merges.world.tree("w2"))
    merges.approve("w1", "w2")
    exempt = ["--no-changelog-needed", "w1=x", "--no-changelog-needed", "w2=x"]
    assert merges.call("merge", "w1", "w2", *exempt).code == 0
    assert merges.git("log", "-1", "--format=%B", "main^1").startswith("Merge w1: fix it!\n")
    assert "* fix it!\n* second\n" in merges.git("log", "-1", "--format=%B", "main")
