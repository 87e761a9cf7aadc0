"""The entries of candidates: where they are found, and which of them cannot be taken."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from fanout import changelog
from fanout.candidates import Candidate
from fanout.changelog import Found, find, fold, read_inside
from world import World

BOOK = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Old\n"
TEXT = "### Added\n\n- New thing\n"


class Bench:
    """A branch `w1` in a worktree of its own."""

    def __init__(self, world: World, repo: Any) -> None:
        self.world = world
        self.repo = repo
        (world.repo / "CHANGELOG.md").write_text(BOOK)
        (world.repo / "changelog.d").mkdir()
        (world.repo / "changelog.d" / "README.md").write_text("One file for each change.\n")
        (world.repo / ".git" / "info" / "exclude").write_text(".worker-runs/\n")
        self.base = world.commit("base")
        self.tree = world.root / "w1"
        world.git("worktree", "add", "-q", "-b", "w1", str(self.tree))

    def put(self, path: str, content: str | bytes) -> Path:
        """Write a file in the worktree."""
        place = self.tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        return place

    def candidate(self, **fields: Any) -> Candidate:
        """The branch as a candidate."""
        values: dict[str, Any] = {
            "name": "w1", "kind": "branch", "branch": "w1", "base": self.base,
            "head": self.world.git("rev-parse", "w1"), "worktree": str(self.tree), "owns": [],
            "target": "refs/heads/main", "checks": [], "record": str(self.world.root / "record"),
            "changelog": "",
        }  # fmt: skip
        return Candidate(**{**values, **fields})

    def find(self, *others: str, **fields: Any) -> Found:
        """What is found, and that looking changed nothing."""
        before = self.world.bytes_of(self.tree)
        found = find(self.repo, self.candidate(**fields), list(others))
        assert self.world.bytes_of(self.tree) == before
        return found

    def problem(self, *others: str, **fields: Any) -> tuple[str, str]:
        """The one problem, where nothing can be taken."""
        found = self.find(*others, **fields)
        assert not found.entries
        (problem,) = found.problems
        return problem


OWN = ".worker-runs/changelog/w1.md"


@pytest.fixture
def bench(world: World, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(world, world.adopt(monkeypatch))


def test_nothing_is_found_where_nothing_is(bench: Bench) -> None:
    assert bench.find() == Found([], [], [], "")
    assert bench.find().missing
    bench.put("code.py", "x = 1\n")
    bench.world.commit("work", bench.tree)
    assert bench.find().missing
    assert bench.find(worktree="").missing
    assert bench.find(head="").missing


def test_a_fragment_in_the_worktree_is_bound_to_the_approval(bench: Bench) -> None:
    bench.put(OWN, TEXT)
    found = bench.find()
    (entry,) = found.entries
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    assert entry == ("w1", "worktree", OWN, TEXT, digest)
    assert not found.problems
    assert not found.in_branch
    assert not found.missing
    assert len(found.digest) == 64
    bench.put(OWN, TEXT + "- more\n")
    assert bench.find().digest not in (found.digest, "")
    assert fold(BOOK.encode(), found.entries).book.decode() == BOOK + "- New thing\n"


def test_a_fragment_on_the_branch_needs_no_digest(bench: Bench) -> None:
    bench.put(OWN, TEXT)
    bench.world.git("add", "-f", OWN, cwd=bench.tree)
    bench.world.commit("work", bench.tree)
    found = bench.find()
    assert [entry.source for entry in found.entries] == ["branch"]
    assert found.digest == ""
    assert bench.find(worktree="").entries == found.entries
    # One that was there before says nothing about this work.
    assert bench.find(base=bench.world.git("rev-parse", "w1")).missing


def test_the_file_that_the_task_names_is_its_entry(bench: Bench) -> None:
    bench.put("notes/w1.txt", TEXT)
    found = bench.find(changelog="notes/w1.txt")
    assert [(e.source, e.path) for e in found.entries] == [("task", "notes/w1.txt")]
    assert found.digest
    bench.world.commit("work", bench.tree)
    found = bench.find(changelog="notes/w1.txt")
    assert [(e.source, e.path) for e in found.entries] == [("task", "notes/w1.txt")]
    assert found.digest == ""
    assert bench.find().missing
    assert bench.find(changelog="README.md").missing


@pytest.mark.parametrize(
    "path",
    [
        "changelog.d/w1.md", "changelog.d/20260101_w1.rst", "newsfragments/12.feature",
        "newsfragments/12.bugfix.1.rst", "changes/w1.md", ".changeset/brave-cat.md",
        "packages/a/changes/+w1.misc",
    ],
)  # fmt: skip
def test_a_branch_that_adds_a_fragment_brings_its_entry(bench: Bench, path: str) -> None:
    bench.put(path, TEXT)
    bench.world.commit("work", bench.tree)
    for task in ("", path):
        assert bench.find(changelog=task) == Found([], [path], [], "")
        assert bench.find(changelog=task).in_branch
    bench.put(path, "### Added\n")
    bench.world.commit("worse", bench.tree)
    assert bench.find().problems[0][0] == "changelog-only-heading"


@pytest.mark.parametrize(
    "path",
    [
        "changelog.d/README.rst", "changelog.d/.gitignore", "changes/template.md",
        "changes/code.py", "newsfragments/_template.md", ".changeset/config.json", "w1.md",
    ],
)  # fmt: skip
def test_not_every_file_there_is_a_fragment(bench: Bench, path: str) -> None:
    bench.put(path, TEXT)
    bench.world.commit("work", bench.tree)
    assert bench.find().missing


@pytest.mark.parametrize("path", ["CHANGELOG.md", "docs/HISTORY.rst", "NEWS", "pkg/Changes.txt"])
def test_a_branch_that_adds_to_the_book_brings_its_entry(bench: Bench, path: str) -> None:
    bench.put(path, BOOK + "- New thing\n")
    bench.world.commit("work", bench.tree)
    for task in ("", path):
        assert bench.find(changelog=task) == Found([], [path], [], "")


def test_a_book_that_only_looks_changed_brings_none(bench: Bench) -> None:
    bench.put("CHANGELOG.md", BOOK.replace("- Old", "*  Old.") + "\n### Fixed\n\n## [1.0.0]\n")
    bench.world.commit("work", bench.tree)
    assert bench.find().missing


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "changelog-empty"),
        ("\n \n", "changelog-empty"),
        ("-\n- \n", "changelog-empty"),
        ("### Added\n", "changelog-only-heading"),
        ("# w1\n\n### Added\n\n-\n<!-- what? -->\n", "changelog-only-heading"),
        (b"caf\xe9", "changelog-unreadable"),
        ("- a\x1b[31m", "changelog-unreadable"),
        ("- " + "x" * changelog.ENTRY_LIMIT, "changelog-unreadable"),
        ("# w2\n\n- A\n", "changelog-foreign"),
        ("- w2: A\n", "changelog-foreign"),
        ("- [w2] A\n", "changelog-foreign"),
        ("Task `w2`\n\n- A\n", "changelog-foreign"),
        ("### Added\n- **Worker w2** did A\n", "changelog-foreign"),
        ("Task: docs\n- A\n", "changelog-foreign"),
    ],
)
def test_what_is_no_entry_is_refused_with_the_reason(
    bench: Bench, text: str | bytes, code: str
) -> None:
    bench.put(OWN, text)
    assert bench.problem("w1", "w2", "docs")[0] == code
    bench.world.git("add", "-f", OWN, cwd=bench.tree)
    bench.world.commit("work", bench.tree)
    found = bench.find("w1", "w2", "docs")
    assert (found.problems[0][0], found.digest) == (code, "")


@pytest.mark.parametrize(
    "text",
    ["- docs: A\n", "### docs\n- A\n", "- Works with w2 too\n", "- w1: A\n", "# w1\n- A\n",
     "- Task docs are read\n", "- w2's parser is used\n", "- w22: A\n"],
)  # fmt: skip
def test_a_name_in_passing_is_no_reason(bench: Bench, text: str) -> None:
    bench.put(OWN, text)
    found = bench.find("w1", "w2", "docs")
    assert not found.problems
    assert len(found.entries) == 1


def test_other_workers_are_known_from_their_records(bench: Bench) -> None:
    folder = bench.world.record("w9")
    folder.mkdir(parents=True)
    (folder / "worker.json").write_text("{}")
    bench.put(OWN, "- w9: A\n")
    assert bench.problem()[0] == "changelog-foreign"


def test_an_entry_in_the_place_of_another_is_told(bench: Bench) -> None:
    bench.put(".worker-runs/changelog/w2.md", TEXT)
    code, message = bench.problem()
    assert code == "changelog-foreign"
    assert ".worker-runs/changelog/w2.md" in message
    assert OWN in message
    bench.put(OWN, TEXT)
    assert not bench.find().problems


def test_a_hostile_worktree_is_read_with_care(bench: Bench, tmp_path: Path) -> None:
    secret = tmp_path / "w1.md"
    secret.write_text(TEXT)
    place = bench.put(OWN, "")
    place.unlink()
    place.symlink_to(secret)
    assert bench.problem() == ("changelog-unreadable", f"{OWN}: it is a link")
    place.unlink()
    os.mkfifo(place)
    assert find(bench.repo, bench.candidate()).problems[0] == (
        "changelog-unreadable",
        f"{OWN}: it is not a file",
    )
    place.unlink()
    place.mkdir()
    assert bench.problem() == ("changelog-unreadable", f"{OWN}: it is not a file")
    place.rmdir()
    for folder in (place.parent, place.parent.parent):
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert "a link or a file stands where" in bench.problem()[1]
        folder.unlink()
        folder.write_text("")
        assert "a link or a file stands where" in bench.problem()[1]
        folder.unlink()
    assert bench.find().missing
    bench.put(OWN, TEXT).chmod(0)
    if os.geteuid():
        assert "Permission denied" in bench.problem()[1]
    place.unlink()
    with open(place, "wb") as file:
        file.truncate(1 << 40)
    (problem,) = find(bench.repo, bench.candidate()).problems
    assert "is larger than" in problem[1]


def test_a_committed_link_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    for path in ("changelog.d/w1.md", OWN):
        (bench.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (bench.tree / path).symlink_to(tmp_path / "w1.md")
        bench.world.git("add", "-f", path, cwd=bench.tree)
    bench.world.commit("work", bench.tree)
    found = bench.find()
    assert not found.entries
    assert [code for code, _ in found.problems] == ["changelog-unreadable"] * 2


def test_a_name_with_slashes_has_its_file_below(bench: Bench) -> None:
    bench.put(".worker-runs/changelog/feature/x.md", TEXT)
    found = bench.find(name="feature/x")
    assert [entry.path for entry in found.entries] == [".worker-runs/changelog/feature/x.md"]


def test_what_is_read_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("x")
    assert read_inside(str(tmp_path), "a/b") == b"x"
    assert read_inside(str(tmp_path), "a/c") is None
    assert read_inside(str(tmp_path), "b/c") is None
    assert read_inside(str(tmp_path / "gone"), "b") is None
    (tmp_path / "l").symlink_to("a")
    assert isinstance(read_inside(str(tmp_path), "l/b"), str)
