"""Which convention a repository has: by its files, in a commit and in a checkout alike."""

from __future__ import annotations

import pytest

from fanout.conventions import convention_in, convention_of
from fanout.errors import SkillError
from fanout.starting import changelog_place
from world import World

TOWNCRIER = {"pyproject.toml": '[tool.towncrier]\ndirectory = "news"\n'}
CHANGESETS = {".changeset/config.json": "{}"}
SCRIV = {"setup.cfg": "[tool.scriv]\nformat = md\n"}
RENO = {"releasenotes/notes/a.yaml": "x"}
FOLDER = {"changelog.d/README.md": "x"}
BOOK = {"CHANGELOG.md": "x", "NEWS": "y"}


def put(world: World, files: dict[str, str]) -> str:
    """Commit files; the commit."""
    for path, content in files.items():
        place = world.repo / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return world.commit("files")


def found(world: World, files: dict[str, str], named: str = "") -> tuple[str, str]:
    """The kind and path that are found, in the commit and in the checkout."""
    commit = put(world, files)
    one = convention_of(str(world.repo / ".git"), commit, named)
    two = convention_in(str(world.repo), named)
    assert one.to_json() == two.to_json()
    if one.kind != "changesets":
        assert one == two
    return one.kind, one.path


def test_tools_come_first_and_in_order(world: World) -> None:
    assert found(world, {}) == ("book", "CHANGELOG.md")
    assert found(world, {}, "docs/NEWS.md") == ("book", "docs/NEWS.md")
    assert found(world, BOOK) == ("book", "CHANGELOG.md")
    assert found(world, BOOK, "pkg/CHANGELOG.md") == ("book", "pkg/CHANGELOG.md")
    assert found(world, FOLDER, "CHANGELOG.md") == ("folder", "changelog.d")
    assert found(world, RENO) == ("reno", "releasenotes/notes")
    assert found(world, SCRIV) == ("scriv", "changelog.d")
    assert found(world, CHANGESETS) == ("changesets", ".changeset")
    assert found(world, TOWNCRIER) == ("towncrier", "news")


@pytest.mark.parametrize(
    ("files", "kind", "path"),
    [
        ({"towncrier.toml": "[tool.towncrier]\n"}, "towncrier", "newsfragments"),
        ({"towncrier.toml": "[tool.towncrier]\n", "pyproject.toml": '[project]\nname = "p"\n'},
         "towncrier", "p/newsfragments"),
        ({"towncrier.toml": '[tool.towncrier]\ndirectory = "./a//b/"\n[[tool.towncrier.section]]\n'
          'path = "core"\n'}, "towncrier", "a/b/core"),
        ({"pyproject.toml": "# towncrier [is not used\n"}, "book", "CHANGELOG.md"),
        ({"pyproject.toml": '[tool.towncrier.fragment.note]\nname = "N"\n'},
         "towncrier", "newsfragments"),
        ({".changeset/a.md": "x"}, "book", "CHANGELOG.md"),
        ({"tox.ini": "[scriv]\nfragment_directory = notes\n"}, "scriv", "notes"),
        ({"changelog.d/scriv.ini": "[scriv]\n"}, "scriv", "changelog.d"),
        ({"setup.cfg": "[metadata]\nkeywords = scriv\n"}, "book", "CHANGELOG.md"),
        ({"releasenotes/README": "x"}, "book", "CHANGELOG.md"),
        ({"reno.yaml": "x: y\n"}, "reno", "releasenotes/notes"),
        ({"changes/a.py": "x", "changes/b.md": "x"}, "book", "CHANGELOG.md"),
        ({"changes/12.bugfix": "x", "changes/.gitignore": ""}, "folder", "changes"),
        ({"newsfragments/.gitkeep": ""}, "folder", "newsfragments"),
        ({"changelog.d/x/y.md": "", "changes/a.md": "x"}, "folder", "changelog.d"),
        ({"changes": "- x\n", "NEWS.rst": "x"}, "book", "NEWS.rst"),
        ({"HISTORY.rst": "x", "CHANGES.txt": "x"}, "book", "HISTORY.rst"),
        ({"Changelog": "x", "ChangeLog.rst": "x"}, "book", "ChangeLog.rst"),
        ({"changelog.py": "x", "docs/CHANGELOG.md": "x"}, "book", "CHANGELOG.md"),
    ],
)  # fmt: skip
def test_what_tells_a_convention(world: World, files: dict[str, str], kind: str, path: str) -> None:
    assert found(world, files) == (kind, path)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"pyproject.toml": "[tool.towncrier\n"}, "pyproject.toml cannot be read"),
        ({"setup.cfg": "[scriv]\n[scriv]\n"}, "setup.cfg cannot be read"),
        ({".changeset/config.json": "{"}, "config.json cannot be read"),
        ({"pyproject.toml": '[tool.towncrier]\ndirectory = "../x"\n'}, "is not inside"),
        ({"pyproject.toml": '[tool.towncrier]\ndirectory = "/x"\n'}, "is not inside"),
        ({"tox.ini": "[scriv]\nfragment_directory = .\n"}, "is not inside"),
        ({"reno.yaml": "notesdir: ../../x\n"}, "is not inside"),
    ],
)
def test_settings_that_cannot_be_read_are_told(
    world: World, files: dict[str, str], why: str
) -> None:
    commit = put(world, files)
    with pytest.raises(SkillError, match=why) as caught:
        convention_of(str(world.repo), commit)
    assert (caught.value.code, caught.value.exit_code) == ("changelog-config", 3)
    # A worker can be started all the same.
    assert ".worker-runs/changelog/w1.md" in changelog_place("w1", str(world.repo))


def test_a_link_is_not_taken_for_a_changelog(world: World) -> None:
    (world.repo / "CHANGELOG.md").symlink_to("docs.md")
    (world.repo / "pyproject.toml").symlink_to("/etc/hostname")
    commit = put(world, {"docs.md": "x"})
    with pytest.raises(SkillError, match="is a link"):
        convention_of(str(world.repo), commit)
    assert convention_of(str(world.repo), commit, "docs.md").path == "docs.md"


def test_the_fields_of_wrong_types_do_no_harm(world: World) -> None:
    files = {
        "pyproject.toml": "[tool.towncrier]\ntype = 3\nsection = [1]\nfilename = []\nfragment = 1\n"
        "orphan_prefix = 1\n[tool.scriv]\ncategories = 5\nformat = 1\n",
        ".changeset/config.json": "[]",
        "package.json": '{"workspaces": [1, "x"], "name": 3}',
    }
    assert found(world, files) == ("towncrier", "newsfragments")
    assert found(world, {"pyproject.toml": ""}) == ("changesets", ".changeset")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (TOWNCRIER, ["news/+w1.<type>.rst for towncrier", "feature, bugfix", "Leave NEWS.rst"]),
        (CHANGESETS, [".changeset/w1.md for changesets"]),
        (SCRIV, ["changelog.d/w1.md for scriv", "### Added", "Leave CHANGELOG.md"]),
        ({"setup.cfg": "[scriv]\n"}, ["changelog.d/w1.rst for scriv", "underlined with -"]),
        (RENO, ["releasenotes/notes/w1-", ".yaml for reno", "features, issues"]),
        (FOLDER, ["one new fragment in changelog.d/"]),
        ({"HISTORY.rst": "x"}, [".worker-runs/changelog/w1.md", "leave HISTORY.rst itself alone"]),
        ({}, [".worker-runs/changelog/w1.md", "leave CHANGELOG.md itself alone"]),
    ],
)
def test_the_contract_says_where_and_how(
    world: World, files: dict[str, str], words: list[str]
) -> None:
    put(world, files)
    place = changelog_place("w1", str(world.repo))
    for word in words:
        assert word in place
    assert "\n" not in place
