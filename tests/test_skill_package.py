"""What any installer, packager or agent harness needs of the folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from inside import install
from world import ROOT, SCRIPTS, World


def package_files() -> list[Path]:
    """The files of the package: what git tracks or would track, or all where git is no help."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listed.returncode == 0:
        names = [Path(name) for name in listed.stdout.decode().split("\0") if name]
        return sorted(name for name in names if (ROOT / name).exists())
    skipped = {"__pycache__", ".venv", ".tools", ".git", ".hypothesis", ".pytest_cache"}
    skipped |= {".ruff_cache", ".worker-runs"}
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if not path.is_dir())
    return sorted(path for path in found if not skipped & set(path.parts))


FILES = package_files()


def test_there_is_exactly_one_skill_file() -> None:
    assert [path for path in FILES if path.name.lower() == "skill.md"] == [Path("SKILL.md")]


def test_no_name_begins_with_an_underscore() -> None:
    """Some installers drop those."""
    wrong = [p for p in FILES if any(part.startswith("_") for part in p.parts)]
    assert [p for p in wrong if p.parts[0] != "tests"] == []


def test_there_is_no_code_in_an_init_file() -> None:
    assert [p for p in FILES if p.name == "__init__.py" and (ROOT / p).read_text().strip()] == []


def test_there_are_no_symlinks() -> None:
    """S07."""
    assert [path for path in FILES if (ROOT / path).is_symlink()] == []


# What only development needs; a skill that is installed works without it.
DEVELOPMENT = {
    "tests", "tools", "evals", "poster", ".ci", ".gitattributes", ".gitignore", "CHANGELOG.md",
    "CONVERSION_REPORT.md", "Makefile", "pyproject.toml", "uv.lock",
}  # fmt: skip


def test_the_skill_has_fewer_than_a_hundred_files() -> None:
    """Scanners of skills suspect larger ones."""
    assert 20 < len([path for path in FILES if path.parts[0] not in DEVELOPMENT]) < 100


def test_no_module_hides_one_of_the_standard_library() -> None:
    names = {path.stem for path in FILES if path.suffix == ".py" and path.parts[0] == "scripts"}
    names |= {part for path in FILES if path.parts[0] == "scripts" for part in path.parts[1:-1]}
    assert not names & sys.stdlib_module_names


def test_there_is_no_metadata_of_a_marketplace() -> None:
    assert not [path for path in FILES if path.name in ("metadata.json", "skill.json")]


def test_names_can_be_unpacked_everywhere() -> None:
    folded = [str(path).casefold() for path in FILES]
    assert len(set(folded)) == len(folded), "no two names differ by case alone"
    assert [p for p in FILES if re.search(r"[^A-Za-z0-9._/-]", str(p))] == []


def test_text_files_have_unix_line_ends_and_no_mark() -> None:
    """S05. A picture is no text."""
    for path in (path for path in FILES if path.suffix != ".png"):
        content = (ROOT / path).read_bytes()
        assert b"\r\n" not in content or path.parts[0] == "tests", path
        assert not content.startswith(b"\xef\xbb\xbf"), path


def test_the_skill_file_is_short_and_has_no_placeholders_of_other_formats() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    assert not re.search(r"\$[0-9]|\$ARGUMENTS|!`", text)
    assert text.startswith("---\nname: parallel-agent-worktree-skill\n")


def test_the_skill_file_names_every_command_and_no_other() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    named = set(re.findall(r"scripts/([a-z_]+\.py)", text))
    assert named == {path.name for path in SCRIPTS.glob("*.py")}


def test_references_stand_alone_and_are_named() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    for path in FILES:
        if path.parts[0] == "references":
            assert str(path) in text, path
            links = re.findall(r"\]\((?!https?://|#)([^)]*)\)", (ROOT / path).read_text("utf-8"))
            assert links == [], f"{path} links to {links}"


def test_nothing_tells_where_it_was_made() -> None:
    for path in FILES:
        content = (ROOT / path).read_bytes()
        for word in (b"/ho" + b"me/", b"/Us" + b"ers/"):
            if word in content:
                assert path.parts[0] == "tests", path


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_every_command_has_help_from_anywhere(world: World, script: str) -> None:
    ran = world.run("--help", script=SCRIPTS / script, cwd=Path("/"))
    assert ran.code == 0
    assert script in ran.out
    assert "exit codes:" in ran.out


def test_running_leaves_nothing_in_the_skill(world: World) -> None:
    """On a copy, since tests compile the original; without the variable that would hide it."""
    assert "PYTHONDONTWRITEBYTECODE" not in world.env
    script = install(world.root / "skill")
    before = sorted(world.root.joinpath("skill").rglob("*"))
    assert world.run("status", script=script).code == 0
    assert world.run("doctor", script=script).code in (0, 4)
    assert sorted(world.root.joinpath("skill").rglob("*")) == before
