"""`integrate_workers.py changelog`: what was found, what is missing, what would be written."""

from __future__ import annotations

from typing import Any

from world import SCRIPTS, World

INTEGRATE = SCRIPTS / "integrate_workers.py"
BOOK = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Old\n"


def branch(world: World, name: str, files: dict[str, str]) -> None:
    """A branch off main with files, in a worktree of its own that is left as it is."""
    tree = world.root / "trees" / name
    world.git("worktree", "add", "-q", "-b", name, str(tree), "main")
    for path, content in {f"{name}.txt": "x\n", **files}.items():
        place = tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    world.commit(name, tree)


def ask(world: World, *names: str, text: bool = False) -> Any:
    """The answer; nothing was changed."""
    words = [word for name in names for word in ("--branch", name)]
    before = world.snapshot()
    call = ["changelog", *words, "--base", "main"]
    ran = world.run(*call, *([] if text else ["--json"]), script=INTEGRATE)
    assert world.snapshot() == before
    assert ran.code == 0, ran.out + ran.err
    return ran.out if text else ran.data


def prepared(world: World, files: dict[str, str]) -> None:
    """A repository whose main has these files, and which ignores what workers write beside it."""
    (world.repo / ".git" / "info" / "exclude").write_text(".worker-runs/\n")
    for path, content in files.items():
        (world.repo / path).write_text(content)
    world.commit("files")


def test_what_is_found_what_is_missing_and_what_would_be_written(world: World) -> None:
    prepared(world, {"CHANGELOG.md": BOOK})
    own = ".worker-runs/changelog/{}.md"
    branch(world, "w1", {own.format("w1"): "### Added\n- New\n- Old.\n"})
    branch(world, "w2", {"CHANGELOG.md": BOOK + "- Mine\n"})
    branch(world, "w3", {})
    branch(world, "w4", {own.format("w4"): "### Added\n"})
    data = ask(world, "w1", "w2", "w3", "w4")
    assert data["convention"] == {
        "kind": "book", "path": "CHANGELOG.md", "found_in": "CHANGELOG.md",
    }  # fmt: skip
    rows = {row["name"]: row for row in data["candidates"]}
    (entry,) = rows["w1"]["entries"]
    assert (entry["source"], entry["path"]) == ("worktree", own.format("w1"))
    assert rows["w2"]["in_branch"] == ["CHANGELOG.md"]
    assert data["missing"] == ["w3"]
    assert rows["w4"]["problems"][0]["code"] == "changelog-only-heading"
    assert data["would_write"] == [{"path": "CHANGELOG.md", "content": BOOK + "- New\n"}]
    assert (data["added"], data["duplicates"]) == (["New"], ["Old."])
    assert ask(world, "w1", "w2", "w3", "w4", text=True).split("\n") == [
        "changelog: CHANGELOG.md (told by CHANGELOG.md)",
        "w1: .worker-runs/changelog/w1.md (worktree)",
        "w2: CHANGELOG.md (on the branch)",
        "w3: no entry",
        "w4: refused: .worker-runs/changelog/w4.md has no text below its heading",
        "would write CHANGELOG.md",
        "  + New",
        "  = Old. (there already)",
        "",
    ]


def test_where_a_tool_is_used_a_fragment_would_be_written(world: World) -> None:
    prepared(world, {"towncrier.toml": '[tool.towncrier]\ndirectory = "news"\n'})
    branch(world, "w1", {".worker-runs/changelog/w1.md": "### Fixed\n- Mended `x`\n"})
    branch(world, "w2", {"news/2.feature.rst": "New\n"})
    branch(world, "w3", {"news/three.rst": "New\n"})
    data = ask(world, "w1", "w2", "w3")
    (made,) = data["would_write"]
    assert made["path"].startswith("news/+w1-")
    assert made["path"].endswith(".bugfix.rst")
    assert made["content"] == "Mended ``x``\n"
    rows = {row["name"]: row for row in data["candidates"]}
    assert rows["w2"]["in_branch"] == ["news/2.feature.rst"]
    assert rows["w3"]["problems"][0]["code"] == "changelog-malformed"
    assert "changelog: towncrier, fragments in news/ (told by towncrier.toml)" in ask(
        world, "w1", text=True
    )


def test_where_there_is_no_changelog_one_would_be_made(world: World) -> None:
    prepared(world, {})
    branch(world, "w1", {".worker-runs/changelog/w1.md": "- New\n"})
    (made,) = ask(world, "w1")["would_write"]
    assert made["path"] == "CHANGELOG.md"
    assert made["content"].endswith("## [Unreleased]\n\n### Changed\n\n- New\n")
    assert "(there is none yet)" in ask(world, "w1", text=True)


def test_a_file_that_cannot_be_edited_is_refused_with_what_was_found(world: World) -> None:
    prepared(world, {"CHANGELOG.md": BOOK + "\n```\n"})
    branch(world, "w1", {".worker-runs/changelog/w1.md": "- New\n"})
    ran = world.run("changelog", "--branch", "w1", "--base", "main", "--json", script=INTEGRATE)
    assert ran.code == 3
    assert ran.error["code"] == "changelog-unusable"
    assert ran.data["candidates"][0]["entries"]
