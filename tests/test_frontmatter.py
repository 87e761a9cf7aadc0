"""The frontmatter of SKILL.md as other programs read it: S01, S03, S05, S13."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fanout import frontmatter
from fanout.errors import ExitCode, SkillError
from world import ROOT

HEAD = "---\nname: a-skill\ndescription: Does things. Use when things are to be done.\n---\n"


def read(text: str) -> frontmatter.Skill:
    """A skill that is valid."""
    skill = frontmatter.parse_skill(text)
    frontmatter.require_valid(skill)
    return skill


def refusal(text: str) -> str:
    """Why a skill is refused."""
    with pytest.raises(SkillError) as caught:
        read(text)
    assert caught.value.code == "invalid-skill"
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message


def test_the_packages_own_is_valid_and_comes_out_as_it_went_in() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert read(text).text == text


def test_only_the_first_block_is_frontmatter() -> None:
    """S13."""
    skill = read(HEAD + "# Title\n\n---\nname: other\n---\n")
    assert frontmatter.value_of(skill, "name") == "a-skill"
    assert skill.body == "# Title\n\n---\nname: other\n---\n"


def test_windows_line_ends_and_a_mark_are_read_and_not_written() -> None:
    """S05."""
    content = b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode() + b"body\r\n"
    assert read(frontmatter.plain_lines(content)).text == HEAD + "body\n"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("description: it's plain", "it's plain"),
        ('description: "a: b \\" c"', 'a: b " c'),
        ("description: 'it''s: x'", "it's: x"),
        ("description: a#b c:d -e", "a#b c:d -e"),
    ],
)
def test_values_are_read_as_yaml_reads_them(line: str, value: str) -> None:
    skill = read(f"---\nname: a\n{line}\n---\n")
    assert frontmatter.value_of(skill, "description") == value


@pytest.mark.parametrize(
    "line",
    [
        "description: Splits work: for agents",
        "description: ends in a colon:",
        "description: a #comment",
        "description: [a, b]",
        "description: {a: b}",
        "description: > folded",
        "description: |",
        "description: - a",
        "description: *alias",
        "description: @at",
        "description: 'not closed",
        'description: "not closed',
        'description: "ok" and more',
        "description: a --- b",
        "description:",
        "description: a\ndescription: b",
        "other: x",
        "description: a\nno field",
    ],
)
def test_what_others_read_in_another_way_is_refused(line: str) -> None:
    """S01."""
    refusal(f"---\nname: a\n{line}\n---\n")


def test_a_description_has_at_most_1024_characters() -> None:
    """S03: characters, not bytes."""
    read(f"---\nname: a\ndescription: {'ä' * 1024}\n---\n")
    assert "1025" in refusal(f"---\nname: a\ndescription: {'ä' * 1025}\n---\n")


@pytest.mark.parametrize("name", ["a" * 65, "a--b", "-a", "a-", "A", "a_b", "a b", "ä", "a.b"])
def test_a_name_that_no_skill_may_have(name: str) -> None:
    assert "no name for a skill" in refusal(f'---\nname: "{name}"\ndescription: x\n---\n')


@pytest.mark.parametrize("text", ["", "# Title\n", "---\nname: a\n", " ---\nname: a\n---\n"])
def test_a_text_without_frontmatter(text: str) -> None:
    refusal(text)


def test_a_value_is_changed_and_all_else_stays() -> None:
    text = HEAD.replace("---\n", "---\n# made by hand\nmetadata:\n  k: v\n", 1) + "body\n"
    skill = frontmatter.with_value(read(text), "name", "b-skill")
    assert skill.text == text.replace("name: a-skill", "name: b-skill")
    quoted = frontmatter.with_value(skill, "description", 'has: a "colon"')
    assert 'description: "has: a \\"colon\\""\n' in quoted.text
    assert frontmatter.value_of(read(quoted.text), "description") == 'has: a "colon"'


def test_the_reference_validator_takes_what_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a-skill").mkdir()
    skill = frontmatter.with_value(read(HEAD), "description", 'has: a "colon" and #hash')
    (tmp_path / "a-skill" / "SKILL.md").write_text(skill.text)
    done = subprocess.run(
        ["agentskills", "validate", str(tmp_path / "a-skill")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
