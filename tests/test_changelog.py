"""The entries of candidates: where they are found, and which of them cannot be taken."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from changesets_tool import NODE, changesets, run_changesets
from fanout import changelog
from fanout.book import Entry
from fanout.candidates import Candidate
from fanout.changelog import Found, find, fold, read_inside
from fanout.conventions import Convention, convention_of
from fanout.errors import SkillError
from merge_world import INTEGRATE, Merges, merges, on_main, write
from world import World, wait_for

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


# --- Fragments ------------------------------------------------------------------------------


__all__ = ["merges"]

NEWS = """### Fixed

- A `crash` on [start](https://example.invalid/1),
  with two lines

  ```sh
  # not a heading
  run --it
  ```
- Another crash

### Added

- New thing:
  - nested
"""


def entry(text: str = NEWS, name: str = "w1", path: str = "") -> Entry:
    """An entry of a worker."""
    path = path or f".worker-runs/changelog/{name}.md"
    return Entry(name, "worktree", path, text, hashlib.sha256(text.encode()).hexdigest())


class Project:
    """A repository with a changelog tool."""

    def __init__(self, world: World, files: dict[str, str]) -> None:
        self.world = world
        for path, content in files.items():
            self.put(path, content.encode())
        self.head = world.commit("project")

    def put(self, path: str, content: bytes) -> None:
        """Write a file."""
        place = self.world.repo / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def convention(self) -> Convention:
        """How it keeps its changelog."""
        return convention_of(str(self.world.repo), self.head)

    def add(self, *entries: Entry, changed: tuple[str, ...] = ()) -> list[str]:
        """Write the fragments of entries, which are well formed, and commit them; their paths."""
        convention = self.convention()
        paths: list[str] = []
        for one in entries:
            path, content = changelog.fragment_for(convention, one, changed)
            assert (path, content) == changelog.fragment_for(convention, one, changed)
            assert not (self.world.repo / path).exists()
            assert changelog.malformed(convention, path, content) == ""
            self.put(path, content)
            paths.append(path)
        self.world.commit("fragments")
        return paths

    def run(self, program: str, *words: str) -> str:
        """What a tool prints; it must succeed."""
        tool = os.path.join(os.path.dirname(sys.executable), program)
        done = subprocess.run(
            [tool, *words], cwd=self.world.repo, env=self.world.env, capture_output=True,
            text=True, check=False, timeout=100, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def read(self, path: str) -> str:
        """A file of the repository."""
        return (self.world.repo / path).read_text()


# --- towncrier ------------------------------------------------------------------------------

TOWNCRIER = '[project]\nname = "demo"\n[tool.towncrier]\ndirectory = "news"\nfilename = "NEWS.md"\n'


def test_towncrier_builds_a_release_of_our_fragments(world: World) -> None:
    project = Project(world, {"pyproject.toml": TOWNCRIER, "NEWS.md": "# News\n"})
    others = [entry("- Docs", "feature/x.y"), entry("### Removed\n- Old way\n", "w3")]
    paths = project.add(entry(), *others, entry("### Added\n- More\n"))
    assert re.fullmatch(r"news/\+w1-[0-9a-f]{8}\.bugfix\.md", paths[0])
    assert re.fullmatch(r"news/\+feature-x-y-[0-9a-f]{8}\.feature\.md", paths[1])
    assert paths[2].endswith(".removal.md")
    project.run("towncrier", "check", "--compare-with", "HEAD~1")
    project.run("towncrier", "build", "--yes", "--version", "1.0", "--date", "2026-01-01")
    made = project.read("NEWS.md")
    assert not any((world.repo / path).exists() for path in paths)
    fixed = made[made.index("## Bugfixes") :]
    assert "- A `crash` on [start](https://example.invalid/1),\n  with two lines" in fixed
    assert "  # not a heading\n  run --it\n" in fixed
    assert "Another crash" in fixed
    assert "Added: New thing:" in fixed
    assert "- More" in made[made.index("## Features") : made.index("## Bugfixes")]
    assert "- Old way" in made


def test_towncrier_in_restructured_text_and_with_types_of_its_own(world: World) -> None:
    config = (
        '[tool.towncrier]\npackage = "demo"\npackage_dir = "src"\n'
        '[[tool.towncrier.section]]\npath = ""\nname = ""\n'
        '[[tool.towncrier.type]]\ndirectory = "note"\nname = "Notes"\nshowcontent = false\n'
        '[[tool.towncrier.type]]\nname = "Fixes"\n'
    )
    project = Project(world, {"towncrier.toml": config, "src/demo/__init__.py": ""})
    (path,) = project.add(entry())
    assert re.fullmatch(r"src/demo/newsfragments/\+w1-\w{8}\.fixes\.rst", path)
    project.run("towncrier", "build", "--yes", "--version", "1", "--name", "d", "--date", "x")
    made = project.read("NEWS.rst")
    assert "- A ``crash`` on `start <https://example.invalid/1>`__,\n" in made
    assert ".. code-block:: sh\n\n     # not a heading\n     run --it\n" in made


# --- scriv ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["md", "rst"])
def test_scriv_collects_our_fragments(world: World, form: str) -> None:
    config = f"[scriv]\nformat = {form}\ncategories = New, Fixed\n    Security\nversion = 1.0\n"
    project = Project(world, {"setup.cfg": config, "changelog.d/README.md": "Here.\n"})
    paths = project.add(entry(), entry("- <!-- odd\n- Other", "w2"))
    assert all(path.startswith("changelog.d/w") and path.endswith("." + form) for path in paths)
    project.run("scriv", "collect")
    made = project.read(f"CHANGELOG.{form}")
    assert not any((world.repo / path).exists() for path in paths)
    assert made.index("New thing:") < made.index("crash") < made.index("Other")
    assert "New\n" in made
    assert "Another crash" in made
    assert "odd" in made
    assert "run --it" in made
    assert "not a heading" in made


def test_scriv_may_have_no_categories_and_settings_beside_its_fragments(world: World) -> None:
    config = '[tool.scriv]\ncategories = []\nfragment_directory = "notes"\n'
    files = {"pyproject.toml": config, "notes/scriv.ini": "[scriv]\nformat = md\n"}
    project = Project(world, files)
    (path,) = project.add(entry())
    assert re.fullmatch(r"notes/w1-\w{8}\.md", path)
    project.run("scriv", "collect", "--title", "1.0")
    assert "- Another crash\n- New thing:" in project.read("CHANGELOG.md")


# --- reno -----------------------------------------------------------------------------------


def test_reno_reports_our_notes(world: World) -> None:
    project = Project(world, {"releasenotes/notes/.placeholder": ""})
    text = NEWS + "\n### Changed\n- a: b # c\u2028d\n  \ttab 'q' \"r\"\n### Security\n- S\n"
    paths = project.add(entry(text), entry("### Removed\n- Gone", "w2"))
    assert re.fullmatch(r"releasenotes/notes/w1-[0-9a-f]{16}\.yaml", paths[0])
    world.git("tag", "1.0.0")
    made = project.run("reno", "report", ".")
    assert not re.search("not a recognized|does not parse|WARNING", made)
    at = [made.index(word) for word in ("New Features", "Upgrade Notes", "Security", "Bug Fixes")]
    assert at == sorted(at)
    assert "A ``crash`` on" in made
    assert "- Gone" in made
    assert "a: b # c d" in made
    listed = project.run("reno", "list", ".")
    assert "1.0.0" in listed
    assert all(path in listed for path in paths)
    project.run("reno", "lint", ".")


def test_reno_may_have_sections_of_its_own(world: World) -> None:
    config = (
        "---\nnotesdir: texts # here\nsections:\n  # the prelude is no section\n"
        "  - [new_things, New]\n  - - repairs\n    - Fixes\n\n  - ['misc', \"O\"]\nencoding: utf8\n"
    )
    project = Project(world, {"releasenotes/config.yaml": config})
    assert project.convention().settings["sections"] == ["new_things", "repairs", "misc"]
    (path,) = project.add(entry("### Fixed\n- A"))
    assert path.startswith("releasenotes/texts/w1-")
    assert project.read(path) == "---\nmisc:\n  - |\n    A\n"
    assert "not a recognized" not in project.run("reno", "report", ".")


# --- changesets -----------------------------------------------------------------------------

CONFIG = {"changelog": "@changesets/cli/changelog", "ignore": ["@demo/not-*"]}


def package(name: str, **fields: Any) -> str:
    """A package.json."""
    return json.dumps({"name": name, "version": "1.0.0", **fields})


def test_changesets_makes_versions_of_our_fragments(world: World) -> None:
    files = {
        ".changeset/config.json": json.dumps(CONFIG),
        ".changeset/README.md": "Here.\n",
        "package.json": json.dumps({"private": True, "workspaces": ["packages/*"]}),
        "packages/a/package.json": package("@demo/a"),
        "packages/b/package.json": package("b"),
        "packages/c/package.json": package("@demo/not-c"),
        "other/d/package.json": package("d"),
        "package-lock.json": json.dumps({"lockfileVersion": 3}),
    }
    project = Project(world, files)
    assert project.convention().settings["packages"] == {"packages/a": "@demo/a", "packages/b": "b"}
    paths = project.add(entry(), changed=("packages/a/x/y.js", "README.md", "packages/ab.js"))
    paths += project.add(entry("### Fixed\n- F", "w2"), changed=("packages/b/p.js", "other/d/q.js"))
    assert project.read(paths[0]).startswith('---\n"@demo/a": minor\n---\n\nA `crash`')
    assert project.read(paths[1]) == '---\n"b": patch\n---\n\nF\n'
    run_changesets(world, "version")
    assert not any((world.repo / path).exists() for path in paths)
    assert json.loads(project.read("packages/a/package.json"))["version"] == "1.1.0"
    assert json.loads(project.read("packages/b/package.json"))["version"] == "1.0.1"
    made = project.read("packages/a/CHANGELOG.md")
    assert "### Minor Changes" in made
    assert "  # not a heading\n  run --it\n" in made
    assert "Another crash" in made
    assert "F" in project.read("packages/b/CHANGELOG.md")


def test_changesets_in_a_repository_of_one_package(world: World) -> None:
    files = {".changeset/config.json": "{}", "package.json": package('odd"name')}
    project = Project(world, {**files, "package-lock.json": "{}"})
    (path,) = project.add(entry("### Removed\n- R"))
    assert project.read(path) == '---\n"odd\\"name": major\n---\n\nR\n'
    run_changesets(world, "version")
    assert json.loads(project.read("package.json"))["version"] == "2.0.0"


def test_a_workspace_may_be_told_by_another_file(world: World) -> None:
    files = {
        ".changeset/config.json": "{}",
        "package.json": package("root"),
        "pnpm-workspace.yaml": "packages:\n  # all\n  - 'apps/**'\n  - .\n  - '!apps/x/*'\nx: 1\n",
        "apps/a/package.json": package("a"),
        "apps/x/b/package.json": package("b"),
        "apps/a/node_modules/c/package.json": package("c"),
        "apps/e/package.json": json.dumps({"name": "no-version"}),
    }
    assert Project(world, files).convention().settings["packages"] == {"apps/a": "a", "": "root"}


# --- Folders --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "path", "content"),
    [
        ({"changelog.d/README.md": "x"}, r"changelog.d/w1-\w{8}\.md",
         "### Added\n\n- A\n  b\n- C\n"),
        ({"changes/1.feature.rst": "X.\n", "changes/2.bugfix.rst": "Y.\n"},
         r"changes/w1-\w{8}\.feature\.rst", "A\nb\n\nC\n"),
        ({"newsfragments/7.misc": "- X.\n"}, r"newsfragments/w1-\w{8}\.misc", "- A\n  b\n- C\n"),
        ({"changes/1.txt": "- X.\n"}, r"changes/w1-\w{8}\.txt", "- A\n  b\n- C\n"),
        ({"changes/1.md": "# Fixed\n- X.\n"}, r"changes/w1-\w{8}\.md",
         "### Added\n\n- A\n  b\n- C\n"),
    ],
)  # fmt: skip
def test_in_a_folder_of_fragments_ours_look_like_the_others(
    world: World, files: dict[str, str], path: str, content: str
) -> None:
    project = Project(world, files)
    (made,) = project.add(entry("### Added\n- A\n  b\n- C\n"))
    assert re.fullmatch(path, made)
    assert project.read(made) == content


def test_a_form_that_nobody_knows_is_refused(world: World) -> None:
    project = Project(world, {"changes/1.yaml": "a: b\n"})
    with pytest.raises(SkillError, match="nobody knows what a fragment in changes/ looks like"):
        project.add(entry())
    with pytest.raises(SkillError, match="nobody knows"):
        changelog.fragment_for(Convention("book", "CHANGELOG.md", "", {}), entry())


# --- Fragments of workers -------------------------------------------------------------------

CHANGESETS = {".changeset/config.json": "{}"}
RENO = {"reno.yaml": "notesdir: notes\n"}


@pytest.mark.parametrize(
    ("files", "path", "content", "why"),
    [
        ({"pyproject.toml": TOWNCRIER}, "news/1.feature.md", "A", ""),
        ({"pyproject.toml": TOWNCRIER}, "news/1.2.bugfix.3.md", "A", ""),
        ({"pyproject.toml": TOWNCRIER}, "news/w1.md", "A", "its name tells no kind of change"),
        ({"pyproject.toml": TOWNCRIER}, "changelog.d/w1.md", "A", "belong into news/"),
        ({"tox.ini": "[scriv]\n"}, "changelog.d/a.rst", "A", ""),
        ({"tox.ini": "[scriv]\n"}, "changelog.d/a.md", "A", "does not end with .rst"),
        (RENO, "releasenotes/notes/a.yaml", "---\nfixes:\n- A\n  b\nprelude: >\n    c\n", ""),
        (RENO, "releasenotes/notes/a.yaml", "fixes\n", "line 1 is no section"),
        (RENO, "releasenotes/notes/a.yaml", "fixed:\n - A\n", "'fixed' is no section"),
        (RENO, "releasenotes/notes/a.yaml", "# A\n", "it has no section"),
        (RENO, "releasenotes/notes/a.md", "A", "does not end with .yaml"),
        (CHANGESETS, ".changeset/a.md", "---\n'a/b': patch\nc: none\n---\nA", ""),
        (CHANGESETS, ".changeset/a.md", "---\n---\n\nA\n", ""),
        (CHANGESETS, ".changeset/a.md", "A", "does not begin with"),
        (CHANGESETS, ".changeset/a.md", "---\na: big\n---\nA", "is no package with"),
        (CHANGESETS, ".changeset/a.md", "---\na: major\n---\n", "says nothing"),
        ({**CHANGESETS, "package.json": package("b")}, ".changeset/a.md",
         "---\na: major\n---\nA", "there is no package 'a'"),
        ({"changes/a.md": "A"}, "changes/b.md", "A", ""),
        ({"CHANGELOG.md": "A"}, "changes/b.md", "A", ""),
    ],
)  # fmt: skip
def test_a_fragment_that_the_tool_would_not_take_is_told(
    world: World, files: dict[str, str], path: str, content: str, why: str
) -> None:
    found = changelog.malformed(Project(world, files).convention(), path, content.encode())
    assert why in found
    assert bool(why) == bool(found)


def test_markdown_becomes_restructured_text() -> None:
    text = (
        "A `b` and ``c`` and [d e](http://f) :role:`g` `h`_\n- one\n- two\n  - deep `x`\n\n"
        "```\n`raw`\n\n  [x](y)\n```\nafter [a `b`](c)"
    )
    assert changelog.to_rst(text) == (
        "A ``b`` and ``c`` and `d e <http://f>`__ :role:`g` `h`_\n\n- one\n- two\n\n"
        "  - deep ``x``\n\n.. code-block:: text\n\n   `raw`\n\n     [x](y)\n\nafter `a `b` <c>`__"
    )


# --- By the tool itself ----------------------------------------------------------------------

SETTINGS = {
    "towncrier": {"pyproject.toml": TOWNCRIER, "NEWS.md": "# News\n"},
    "scriv": {"setup.cfg": "[scriv]\nformat = md\n", "changelog.d/README.txt": "here\n"},
    "reno": {"releasenotes/config.yaml": "---\n", "releasenotes/notes/.keep": ""},
    "changeset": {
        ".changeset/config.json": '{"baseBranch": "main"}',
        "package.json": '{"name": "demo", "version": "1.0.0"}',
        "package-lock.json": '{"name": "demo", "lockfileVersion": 3}',
    },
}
NAMES = {
    "towncrier": r"news/\+w[12]-[0-9a-f]{8}\.feature\.md",
    "scriv": r"changelog\.d/.+\.md",
    "reno": r"releasenotes/notes/w[12]-[0-9a-f]{16}\.yaml",
    "changeset": r"\.changeset/[a-z-]+\.md",
}


def put_tool(world: World, text: str, name: str = "towncrier") -> None:
    """Put a program of this name on PATH, whatever it is."""
    path = world.root / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def installed(merges: Merges, tool: str) -> Path:
    """Put a tool on PATH; the file in which each of its calls leaves a line."""
    real = f"{os.path.dirname(sys.executable)}/{tool}"
    calls = merges.world.root / "calls"
    program = f'exec {real} "$@"'
    if tool == "changeset":
        program = f'exec {NODE} {changesets()} "$@"'
    put_tool(merges.world, f'#!/bin/sh\necho "$1" >>{calls}\n{program}\n', tool)
    return calls


@pytest.mark.parametrize("tool", SETTINGS)
def test_a_tool_that_is_installed_makes_the_fragments(merges: Merges, tool: str) -> None:
    calls = installed(merges, tool)
    on_main(merges.world, SETTINGS[tool])
    kind = convention_of(str(merges.repo), merges.git("rev-parse", "HEAD")).kind
    for name in ("w1", "w2"):
        merges.ready(name, {f"{name}.txt": "1\n"})
    before = set(merges.git("ls-files").split("\n"))
    assert merges.ok("changelog")["tool"] == str(merges.world.root / "bin" / tool)
    data = merges.ok("merge", "w1", "w2")
    assert calls.read_text().split() == [changelog.TOOLS[kind][1]] * 2
    made = set(merges.git("ls-files").split("\n")) - before - {"w1.txt", "w2.txt"}
    assert len(made) == 2
    assert all(re.fullmatch(NAMES[tool], path) for path in made)
    assert data["notes"] == []
    texts = sorted((merges.repo / path).read_text() for path in made)
    assert "What w1 made." in texts[0]
    assert "What w2 made." in texts[1]
    # Nothing of the tool's own example text is in them.
    assert not any("Uncomment" in text or "Replace this text" in text for text in texts)
    assert merges.git("status", "--porcelain") == ""
    assert not list((merges.repo / ".git" / "agent-workers").glob("integrations/*/fragments"))


@pytest.mark.parametrize(
    "script",
    [
        "exit 3",
        "exit 0",
        "echo one >news/1.misc.md; echo two >news/2.misc.md",
        'ln -s /etc/passwd "news/$name"',
        'mkfifo "news/$name"',
        'mkdir "news/$name"',
        "rm -rf news",
        'rm -rf "$PWD"',
        "echo x >$'news/sp ace\nnl.feature.md'",
        "echo x >$'news/a\x1b[31mb.feature.md'",
        "echo x >news/feature",
        "yes",
    ],
)
def test_where_the_tool_fails_the_fragment_is_written_without_it_and_that_is_told(
    merges: Merges, script: str
) -> None:
    put_tool(merges.world, f'#!/bin/bash\nname="${{@: -1}}"\n{script}\n')
    on_main(merges.world, SETTINGS["towncrier"])
    merges.ready("w1", {"w1.txt": "1\n"})
    (note,) = merges.ok("merge", "w1")["notes"]
    assert "w1" in note
    assert "towncrier" in note
    (path,) = [path for path in merges.git("ls-files").split("\n") if path.startswith("news/")]
    assert "What w1 made." in (merges.repo / path).read_text()


def test_what_a_fragment_says_already_is_not_said_again_under_another_name(
    merges: Merges,
) -> None:
    installed(merges, "scriv")
    on_main(merges.world, SETTINGS["scriv"])
    merges.ready("w1", {"w1.txt": "1\n"})
    merges.ok("merge", "w1")
    (path,) = [p for p in merges.git("ls-files").split("\n") if p.startswith("changelog.d/2")]
    merges.git("mv", path, "changelog.d/other.md")
    merges.git("commit", "-qm", "renamed")
    (merges.world.tree("w1") / "more.txt").write_text("more\n")
    merges.world.commit("more", merges.world.tree("w1"))
    merges.approve("w1")
    merges.ok("merge", "w1")
    assert merges.git("ls-files", "changelog.d").split("\n") == [
        "changelog.d/README.txt", "changelog.d/other.md",
    ]  # fmt: skip


@pytest.mark.parametrize("script", [": >news/$name", "head -c 1000 /dev/urandom >news/$name"])
def test_what_the_worker_wrote_stands_in_it_whatever_the_tool_wrote(
    merges: Merges, script: str
) -> None:
    put_tool(merges.world, f'#!/bin/bash\nname="${{@: -1}}"\n{script}\nsetsid sleep 631 &\n')
    on_main(merges.world, SETTINGS["towncrier"])
    merges.ready("w1", {"w1.txt": "1\n"})
    assert merges.ok("merge", "w1")["notes"] == []
    (path,) = merges.git("ls-files", "news").split("\n")
    assert (merges.repo / path).read_text() == "What w1 made.\n"
    assert not any("sleep 631" in command for command in merges.world.processes().values())


def test_a_name_that_a_branch_brings_is_not_taken(merges: Merges) -> None:
    put_tool(merges.world, "#!/bin/sh\necho x >news/a.feature.md\n")
    on_main(merges.world, SETTINGS["towncrier"])
    merges.ready("w1", {"news/a.feature.md": "Own.\n"}, entry=False)
    merges.ready("w2", {"w2.txt": "1\n"})
    merges.ok("merge", "w1", "w2")
    texts = [(merges.repo / path).read_text() for path in merges.git("ls-files", "news").split()]
    assert sorted(texts) == ["Own.\n", "What w2 made.\n"]


def test_a_tool_that_a_killed_merge_left_at_work_is_ended_by_the_next(world: World) -> None:
    on_main(world, SETTINGS["towncrier"])
    put_tool(world, f"#!/bin/sh\n: >{world.root}/begun\nexec sleep 632\n")
    write(world.quick("w1"), {"w1.txt": "1\n", ".worker-runs/changelog/w1.md": "- New\n"})
    tip = world.commit("work", world.tree("w1"))
    world.ok("approve", "w1", "--commit", tip, script=INTEGRATE)
    merge = subprocess.Popen(
        [sys.executable, str(INTEGRATE), "merge", "w1"], cwd=world.repo, env=world.env,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for((world.root / "begun").exists, "the tool")
    merge.kill()
    merge.wait()
    put_tool(world, "#!/bin/sh\nexit 1\n")
    notes = world.ok("merge", "w1", script=INTEGRATE)["notes"]
    assert any("was interrupted: nothing was merged" in note for note in notes)
    assert not any("sleep 632" in command for command in world.processes().values())
