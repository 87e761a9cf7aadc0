"""What a conversion makes of a package: names, defaults, texts, and what it leaves alone."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conversions import TARGET, contents, mapping, small_package, write_mapping
from fanout import converting, edition, frontmatter
from fanout.converting import REPORT, Conversion, Names, convert
from fanout.errors import ExitCode, SkillError
from fanout.harness import FORM, UNTRIED, blank
from fanout.plan import load_plan
from world import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("harness-*.json"))
SKILL = f"{TARGET}-worktree-skill"
HELPER = f"{TARGET}_workers.py"
HOSTILE = (
    "](x) [a](javascript:alert(1)) ![b](c) <script>x</script> <!-- -->",
    "`code` !`id` ```\nsh\n```",
    "$1 $ARGUMENTS ${HOME} $(id)", "\n---\nname: other\n---\n# Title\n## Overview\n| a | b |",
    "a: b # c", "'\"\\ \\\" {x} %s {0}", "\x1b[31m\x07\x9b\u202e\u2028\u0085\x7f", "a" * 10_000,
)  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return small_package(tmp_path / "package")


def made_of(package: Path, made: dict[str, Any] | None = None) -> Conversion:
    """The package for an agent."""
    folder = package.parent
    return convert(str(package), write_mapping(folder, made or mapping()))


def text(made: Conversion, path: str) -> str:
    """A file of the converted package."""
    return made.files[path].content.decode("utf-8")


def put(made: Conversion, folder: Path) -> Path:
    """Write a converted package."""
    converting.write(made, str(folder))
    return folder


def refusal(package: Path, made: dict[str, Any] | None = None) -> SkillError:
    """Why a package cannot be made."""
    with pytest.raises(SkillError) as caught:
        made_of(package, made)
    return caught.value


# --- Names and defaults ---------------------------------------------------------------------


def test_the_names_follow_from_the_mappings_name(package: Path) -> None:
    made = made_of(package, mapping("Sea-Otter"))
    assert made.new == Names(
        "sea-otter-worktree-skill", f"sea_otter{'_workers.py'}", "sea-otter-worker-",
        "sea-otter", "Sea-Otter", "--yes-to-all",
    )  # fmt: skip
    assert "scripts/sea_otter" + "_workers.py" in made.files
    assert f"scripts/{edition.HELPER}" not in made.files


def test_the_edition_file_holds_the_new_names(package: Path) -> None:
    found: dict[str, str] = {}
    for node in ast.parse(text(made_of(package), "scripts/fanout/edition.py")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    assert found == {
        "SKILL": SKILL, "HELPER": HELPER, "SESSION_PREFIX": f"{TARGET}-worker-",
        "AGENT": TARGET, "EXECUTABLE": TARGET, "AGENT_ARGS": "--yes-to-all",
    }  # fmt: skip


def test_the_code_reads_its_names_from_where_the_converter_does() -> None:
    names = converting.names_in(converting.package_files(str(ROOT)))
    assert names == Names(*(getattr(edition, field.upper()) for field in Names._fields))


def test_texts_name_the_skill_the_script_and_the_agent(package: Path) -> None:
    made = made_of(package)
    skill, readme = text(made, "SKILL.md"), text(made, "README.md")
    for page in (skill, readme):
        assert HELPER in page
        assert edition.HELPER not in page
        assert f"--agent-cli {TARGET}" in page
        assert f"--agent-cli {edition.EXECUTABLE}" not in page
    assert f'--agent-cli {TARGET} --agent-args "--yes-to-all"' in readme
    assert f"# {SKILL}\n" in readme
    assert frontmatter.value_of(frontmatter.parse_skill(skill), "name") == SKILL
    assert f"SKILL := {SKILL}\n" in text(made, "Makefile")
    assert f'AGENT_WORKERS = SCRIPTS / "{HELPER}"' in text(made, "tests/world.py")
    assert f'"{TARGET}-worker-{{name}}"' in text(made, "tests/world.py").replace('f"', '"')


def test_only_whole_names_outside_of_web_addresses_are_replaced(package: Path) -> None:
    skill, helper = edition.SKILL, edition.HELPER
    stays = (
        f"https://example.invalid/x/{skill}.git", f"a-{skill}", f"{skill}-logs", f"run-{helper}",
        f"scripts/fanout/cli/{helper}", f"{helper}c", f"--agent-cli {edition.EXECUTABLE}2",
        "agent-worker-parents", edition.AGENT, f"x--agent-cli {edition.EXECUTABLE}",
    )  # fmt: skip
    page = "\n".join(stays) + f"\n{skill}/scripts/{helper}. `{helper}`\n"
    (package / "references" / "page.md").write_text(page)
    made = text(made_of(package), "references/page.md")
    assert made == "\n".join(stays) + f"\n{SKILL}/scripts/{HELPER}. `{HELPER}`\n"


def test_the_default_mapping_is_named_where_it_is_called_that(package: Path) -> None:
    old, new = f"harness-{edition.AGENT}.json", f"harness-{TARGET}.json"
    page = f"`{old}` is the default.\n| `{old}` | a default |\n`{old}` is a mapping.\n"
    (package / "references" / "page.md").write_text(page)
    assert text(made_of(package), "references/page.md") == page.replace(old, new, 1)


def test_nobody_is_told_to_clone_what_is_not_there(package: Path) -> None:
    page = text(made_of(package), "README.md")
    assert "git clone" not in page
    assert f"\ncd {SKILL}\n" in page or edition.AGENT != "kimi"


def test_history_the_licence_and_other_mappings_stay(package: Path) -> None:
    made = made_of(package)
    for path in ("CHANGELOG.md", f"examples/harness-{edition.AGENT}.json"):
        assert made.files[path].content == (package / path).read_bytes()
    given = (package.parent / "mapping.json").read_bytes()
    assert made.files[f"examples/harness-{TARGET}.json"].content == given


def test_the_section_on_the_agent_says_what_the_mapping_knows(package: Path) -> None:
    made = made_of(
        package,
        mapping(
            interactive__args=["--tui", "a b"], noninteractive__zero_without_work=True,
            sandbox__note="may not write to .git", parallel__safe=False,
        ),
    )  # fmt: skip
    for path in ("SKILL.md", "README.md"):
        page = text(made, path)
        assert page.count(converting.SECTION) == 1
        section = page.partition(converting.SECTION)[2].partition("\n## ")[0]
        assert "checked with version 1.2.3 on 2026-11-29" in section
        assert f"`{TARGET} --tui 'a b'`; the prompt is an argument after `-p`." in section
        assert f"`{TARGET} run --quiet`; the prompt comes on stdin." in section
        assert "`--yes-to-all` lifts them: give it when the user has asked" in section
        assert "can exit 0 and have done nothing" in section
        assert "may not write to .git." in section
        assert "not safe: one at a time" in section
        assert "`interactive.ready`" in section
    draft = mapping()
    draft["notes"] = {"version.verified": f"`x --version`: x 1.2.3; {UNTRIED}"}
    made = made_of(package, draft)
    assert "drafted, and not tried, from the help of version 1.2.3 on" in text(made, "SKILL.md")
    assert "Drafted, and not tried, from the help of version" in text(made, converting.REPORT)
    assert "hecked with version" not in text(made, "SKILL.md") + text(made, converting.REPORT)
    bare = text(made_of(package, blank() | {"name": TARGET, "executable": TARGET}), "SKILL.md")
    assert "nobody has checked" in bare
    assert "lifts them" not in bare


def test_a_heading_in_a_code_block_is_none() -> None:
    page = "# T\n\n## One\n\n```sh\n## no\n```\n~~~~\n```\n## no\n~~~~\n\n## Two\nx\n"
    assert converting.headings(page) == [2, 12]
    made = converting.with_section(page, f"{converting.SECTION}\n\n- new")
    assert made.index("## no\n~~~~") < made.index("- new") < made.index("## Two")
    assert converting.with_section(made, f"{converting.SECTION}\n\n- new") == made
    assert converting.with_section("# T\n", "## S\n\nx") == "# T\n\n## S\n\nx\n"


def test_sample_plans_call_the_agent_by_its_mapping(package: Path) -> None:
    path = "examples/code-fan-out.json"
    before = json.loads((package / path).read_text())
    made = made_of(package, mapping(noninteractive__args=["run", 'a "b" \\']))
    plan = json.loads(text(made, path))
    assert plan["variables"].pop("AGENT") == TARGET
    assert before["variables"].pop("AGENT") == edition.EXECUTABLE
    assert plan.pop("agent") == {
        "cli": "{AGENT}", "harness": f"harness-{TARGET}.json",
        "timeout_seconds": before.pop("agent")["timeout_seconds"],
    }  # fmt: skip
    assert plan == before, "all else of the plan is as it was"
    put(made, package.parent / "out")
    (task, *_) = load_plan(str(package.parent / "out" / path)).value["tasks"]
    assert task["agent"]["args"] == ["run", 'a "b" \\']
    shown = text(made, "references/deterministic-loops.md")
    words = json.dumps(["run", 'a "b" \\'])
    agent = f'"agent": {{ "cli": "{TARGET}", "args": {words}, "prompt_mode": "stdin" }}'
    assert agent in shown


def test_an_agent_that_disturbs_another_runs_alone(package: Path) -> None:
    made = put(made_of(package, mapping(parallel__safe=False)), package.parent / "out")
    assert load_plan(str(made / "examples/code-fan-out.json")).value["max_parallel"] == 1


@pytest.mark.parametrize(
    "values",
    [
        {"noninteractive__prompt_mode": None},
        {"noninteractive__args": None},
        {"noninteractive__prompt_mode": "none"},
        {"noninteractive__args": ["--session={session_id}"]},
    ],
)
def test_without_a_call_that_a_plan_can_make_plans_stay(
    package: Path, values: dict[str, Any]
) -> None:
    made = made_of(package, mapping(**values))
    for path in ("examples/code-fan-out.json", "references/deterministic-loops.md"):
        found = made.files[path].content.decode().replace(HELPER, edition.HELPER)
        assert found == (package / path).read_text()


# Neither the form nor this edition's own mapping makes another package.
OTHERS = [p for p in EXAMPLES if p.stem not in ("harness-template", f"harness-{edition.AGENT}")]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_every_example_makes_a_package(path: Path) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    made = convert(str(ROOT), str(path))
    name = value["name"].lower()
    assert made.new.skill == f"{name}-worktree-skill"
    frontmatter.require_valid(frontmatter.parse_skill(text(made, "SKILL.md")))
    assert made.files[f"examples/harness-{name}.json"].content == path.read_bytes()
    old = converting.name_patterns(made.old)
    for place, file in made.files.items():
        if place not in converting.KEPT and place != REPORT:
            page = re.sub(converting.STAYS, "", converting.text_of(file) or "")
            assert not re.search(old["skill"], page), place
            assert not re.search(old["helper"], page), place
        if place.endswith(".json"):
            json.loads(file.content)
    assert made.taken == [], "a later conversion would take these for the package's names"


# --- The same way every time ----------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    first, second = made_of(package), made_of(package)
    assert first.files == second.files
    other = tmp_path / "elsewhere" / "package"
    shutil.copytree(package, other)
    assert {p: f.content for p, f in made_of(other).files.items()} == {
        p: f.content for p, f in first.files.items()
    }


def test_it_does_not_matter_by_which_way_a_package_came(package: Path, tmp_path: Path) -> None:
    """From the original, from another edition, from one of which little is known, and back."""
    direct = contents(put(made_of(package), tmp_path / "direct"))
    small = blank() | {"name": "stoat", "executable": "stoat"}
    via = put(made_of(package, mapping("weasel", approval__bypass_args=None)), tmp_path / "via")
    third = put(made_of(via, small), tmp_path / "third")
    again = contents(put(made_of(third), tmp_path / "again"))
    for name in ("weasel", "stoat"):
        del again[f"examples/harness-{name}.json"]
    assert again.pop(REPORT) != direct.pop(REPORT)
    assert again == direct


def test_the_whole_package_too(tmp_path: Path) -> None:
    there = put(convert(str(ROOT), write_mapping(tmp_path, mapping())), tmp_path / "there")
    last = write_mapping(tmp_path, mapping("stoat"))
    again, direct = convert(str(there), last).files, convert(str(ROOT), last).files
    del again[f"examples/harness-{TARGET}.json"]
    assert again.pop(REPORT) != direct.pop(REPORT)
    assert sorted(again) == sorted(direct)
    assert [path for path in direct if again[path] != direct[path]] == []


def test_a_checkout_gives_what_git_tracks(package: Path, tmp_path: Path) -> None:
    plain = made_of(package).files
    git = ["git", "-C", str(package), "-c", "core.autocrlf=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    for name in ("notes.txt", "scripts/__pycache__/x.pyc", ".venv/x", "tests/.pytest_cache/x"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x")
    assert made_of(package).files == plain
    shutil.rmtree(package / ".git")
    assert set(made_of(package).files) - set(plain) == {"notes.txt"}
    (package / "notes.txt").unlink()
    assert made_of(package).files == plain


def test_modes_are_kept(package: Path) -> None:
    (package / "scripts" / edition.HELPER).chmod(0o755)
    (package / "Makefile").chmod(0o400)
    files = made_of(package).files
    assert files[f"scripts/{HELPER}"].mode == 0o755
    assert files["Makefile"].mode == 0o600


# --- What cannot be converted ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["a" * 50, "a--b", "a_b", "a-", "A_"])
def test_a_name_that_makes_no_skill(package: Path, name: str) -> None:
    error = refusal(package, mapping(name, display_name="X", executable="x"))
    assert (error.code, error.exit_code) == ("invalid-target", ExitCode.USAGE)
    assert error.message.startswith("the mapping's name: ")


def test_a_name_that_would_replace_another_command(package: Path) -> None:
    (package / "scripts" / "integrate_workers.py").write_text("x\n")
    assert "integrate_workers.py" in refusal(package, mapping("integrate")).message
    assert "template's place" in refusal(package, mapping("template")).message


@pytest.mark.parametrize(
    ("field", "value"),
    [("executable", word) for word in ("a b", "$(id)", "`id`", "a'b", 'a"b', "a\nb", "a|b", "%d")]
    + [("display_name", label) for label in (*HOSTILE, "", " a", "a--b", "a: b", "-a", "a\tb")],
)  # fmt: skip
def test_a_label_or_program_that_is_no_plain_word(package: Path, field: str, value: str) -> None:
    error = refusal(package, mapping(**{field: value}))
    assert error.exit_code == ExitCode.USAGE
    assert field in error.message


def test_hostile_strings_stay_data(package: Path) -> None:
    """Each string of a mapping in turn, where its form takes it at all."""
    plain = made_of(package)
    texts = (
        "approval.default",
        "approval.note",
        "sandbox.note",
        "parallel.note",
        "network",
        "logs",
    )
    words = ("approval.bypass_args", "interactive.args", "noninteractive.args", "sandbox.args")
    for hostile in HOSTILE:
        value = mapping(notes={"approval.note": hostile})
        for path in (*texts, *words):
            section, _, key = path.partition(".")
            found = [hostile] if path in words else hostile
            if key:
                value[section][key] = found
            else:
                value[section] = found
        made = made_of(package, value)
        skill = frontmatter.parse_skill(text(made, "SKILL.md"))
        frontmatter.require_valid(skill)
        assert frontmatter.value_of(skill, "name") == SKILL
        assert not re.search(r"\$[0-9A-Z{]|!`", skill.body.replace("$SKILL_DIR", ""))
        for path in ("SKILL.md", "README.md", REPORT):
            page = text(made, path)
            assert re.findall("(?m)^#+ .*", page) == re.findall("(?m)^#+ .*", text(plain, path))
            assert page.count("\n```") == text(plain, path).count("\n```")
            assert all(c.isprintable() or c == "\n" for c in page), path
            assert max(map(len, page.split("\n"))) < 5_000
        section = text(made, "README.md").partition(converting.SECTION)[2].partition("\n## ")[0]
        assert not re.search(r"(?<!\\)[\[\]<>]", section)
        assert 'AGENT_ARGS = ""\n' in text(made, "scripts/fanout/edition.py")
        assert '--agent-args ""' in text(made, "README.md")
        for line in text(made, "references/deterministic-loops.md").split("\n"):
            if line.startswith('  "agent": '):
                args = json.loads(f"{{{line.rstrip(',')}}}")["agent"]["args"]
                assert (args == [hostile]) == ("{" not in hostile)


def test_a_description_that_becomes_too_long_is_an_error(package: Path) -> None:
    """S03."""
    path = package / "SKILL.md"
    page = path.read_text()
    room = 1024 - len(converting.default_sentence("Otter CLI"))
    for length, fits in ((room, True), (room + 1, False)):
        line = f"description: {'ä' * length}"
        path.write_text(re.sub(r"(?m)^description: .*$", line, page))
        if fits:
            made_of(package)
        else:
            assert refusal(package).code == "invalid-skill"


def test_windows_line_ends_are_read_and_not_written(package: Path) -> None:
    """S05."""
    plain = made_of(package).files
    for path in package.rglob("*"):
        if path.is_file() and path.name not in ("CHANGELOG.md",):
            mark = b"\xef\xbb\xbf" if path.name == "SKILL.md" else b""
            path.write_bytes(mark + path.read_bytes().replace(b"\n", b"\r\n"))
    made = made_of(package).files
    old = f"examples/harness-{edition.AGENT}.json"
    for path in plain.keys() - {REPORT, old}:
        assert made[path].content == plain[path].content, path


def test_rules_in_the_body_are_left_alone(package: Path) -> None:
    """S13."""
    path = package / "SKILL.md"
    path.write_text(path.read_text() + "\n---\nname: other\n---\n")
    page = text(made_of(package), "SKILL.md")
    assert page.endswith("\n---\nname: other\n---\n")
    assert frontmatter.value_of(frontmatter.parse_skill(page), "name") == SKILL


@pytest.mark.parametrize("line", ["description: Splits: work", "name: other"])
def test_a_frontmatter_that_is_none_of_ours(package: Path, line: str) -> None:
    """S01."""
    path = package / "SKILL.md"
    key = line.partition(":")[0]
    path.write_text(re.sub(rf"(?m)^{key}: .*$", line, path.read_text(), count=1))
    assert refusal(package).code in ("invalid-skill", "unlike-the-package")


@pytest.mark.parametrize("path", sorted(converting.EXPECTED))
def test_a_name_that_is_not_where_it_must_be_replaced(package: Path, path: str) -> None:
    (package / path).write_text("---\nname: x\ndescription: y\n---\n# X\n")
    error = refusal(package)
    assert error.code == "unlike-the-package"
    assert path in error.message


@pytest.mark.parametrize(
    "path", ["SKILL.md", "scripts/fanout/edition.py", f"scripts/{edition.HELPER}"]
)
def test_a_package_that_lacks_a_part(package: Path, path: str) -> None:
    (package / path).unlink()
    error = refusal(package)
    assert (error.code, error.exit_code) == ("package-incomplete", ExitCode.MISSING)
    assert path in error.message


def test_what_others_leave_out_is_not_missed(package: Path) -> None:
    """Some installers drop these."""
    for path in ("README.md", "Makefile", "pyproject.toml", "CHANGELOG.md"):
        (package / path).unlink()
    assert "SKILL.md" in made_of(package).files


def test_links_become_files_or_are_refused(package: Path, tmp_path: Path) -> None:
    """S07."""
    (package / "link.md").symlink_to("Makefile")
    made = put(made_of(package), tmp_path / "out")
    assert not (made / "link.md").is_symlink()
    assert (made / "link.md").read_bytes() == (made / "Makefile").read_bytes()
    (tmp_path / "secret").write_text("secret")
    for target in (tmp_path / "secret", tmp_path, package / "scripts"):
        (package / "link.md").unlink()
        (package / "link.md").symlink_to(target)
        assert "link.md" in refusal(package).message
    (package / "link.md").unlink()
    os.mkfifo(package / "link.md")
    assert "link.md is no file" in refusal(package).message


def test_a_name_that_stood_there_before_is_told(package: Path) -> None:
    (package / "references" / "page.md").write_text(f"a\n\nsee {HELPER}\n")
    made = made_of(package)
    assert made.taken == ["references/page.md:3"]
    assert "references/page.md:3" in text(made, REPORT)


# --- The report -----------------------------------------------------------------------------


def test_every_value_of_a_mapping_stands_in_the_checklist_once() -> None:
    meanings = converting.meanings_in(converting.package_files(str(ROOT)))
    for path in FORM:
        if path != "notes":
            items = [
                title for title, _, paths in converting.CHECKLIST if converting.belongs(path, paths)
            ]
            assert len(items) == 1, (path, items)
            assert meanings[path], path


def test_every_null_is_a_question(package: Path) -> None:
    made = made_of(package, mapping(notes={"approval.default": "saw it ask"}))
    page = text(made, REPORT)
    assert made.unknown
    for path in FORM:
        if path != "notes":
            assert page.count(f"  - `{path}` is not known: ") == (path in made.unknown), path
            assert page.count(f"  - `{path}`: ") == (path not in made.unknown), path
    assert "- [ ] **Parallel safety**" in page
    assert 'Checked with version `"1.2.3"` on `"2026-11-29"`.' in page
    assert '- `"approval.default"`: `"saw it ask"`' in page


def test_the_report_tells_what_was_changed(package: Path) -> None:
    (package / "poster").mkdir()
    (package / "poster" / "screenshot.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (package / "references" / "page.md").write_text(f"one\n{edition.AGENT.upper()} is fine\n")
    made = made_of(package)
    page = text(made, REPORT)
    assert made.files["poster/screenshot.png"].content == b"\x89PNG\r\n\x1a\n\0"
    assert "`poster/screenshot.png`. `make poster`" in page
    assert "- `references/page.md:2`\n" in page
    assert f"| `scripts/{HELPER}` | renamed, was `scripts/{edition.HELPER}`; script" in page
    assert "| `Makefile` | changed; skill's name " in page
    assert not re.search(r"\d\d:\d\d:\d\d", page), "no time stamps"
    assert str(package.parent) not in page, "nothing of this machine"


# --- The output folder ----------------------------------------------------------------------


class Killed(BaseException):
    """Raised in the place of a kill."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder of its own, so that what is left beside the output is seen."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


def output_refusal(made: Conversion, out: Path, package: Path) -> SkillError:
    """Why an output folder is refused, by both who would write and who only looks."""
    before = contents(out) if out.is_dir() else {}
    with pytest.raises(SkillError) as looked:
        converting.require_output(str(package), str(out))
    with pytest.raises(SkillError) as caught:
        converting.write(made, str(out))
    assert caught.value.code == looked.value.code
    assert caught.value.exit_code == ExitCode.REFUSED
    assert (contents(out) if out.is_dir() else {}) == before
    return caught.value


def test_a_package_is_written_once_and_replaced_as_a_whole(package: Path, out: Path) -> None:
    first, second = made_of(package), made_of(package, mapping("weasel"))
    assert converting.write(first, str(out)) is True
    assert contents(out) == {path: file.content for path, file in first.files.items()}
    assert converting.write(first, str(out)) is False, "just this stands there"
    assert converting.write(second, str(out)) is True
    assert contents(out) == {path: file.content for path, file in second.files.items()}
    assert list(out.parent.iterdir()) == [out]
    assert (out / "scripts").stat().st_mode & 0o777 == 0o755


def test_an_empty_folder_is_taken_and_a_missing_parent_made(package: Path, out: Path) -> None:
    out.mkdir()
    converting.write(made_of(package), str(out))
    converting.write(made_of(package), str(out / ".." / "a" / "b"))
    assert contents(out) == contents(out.parent / "a" / "b")


@pytest.mark.parametrize("path", ["notes.txt", "scripts/notes.txt", "empty/", "link", ".git/HEAD"])
def test_a_folder_with_something_foreign_is_refused(package: Path, out: Path, path: str) -> None:
    made = made_of(package)
    converting.write(made, str(out))
    if path.endswith("/"):
        (out / path).mkdir()
    elif path == "link":
        (out / path).symlink_to(package)
    else:
        (out / path).parent.mkdir(exist_ok=True)
        (out / path).write_text("mine")
    error = output_refusal(made, out, package)
    assert error.code == "output-not-ours"
    assert path.rstrip("/") in error.message


def test_a_folder_that_no_conversion_wrote_is_refused(package: Path, out: Path) -> None:
    out.mkdir()
    (out / "work.txt").write_text("mine")
    assert output_refusal(made_of(package), out, package).code == "output-not-ours"
    shutil.rmtree(out)
    out.write_text("a file")
    assert output_refusal(made_of(package), out, package).code == "output-not-ours"
    out.unlink()
    (out.parent / "real").mkdir()
    out.symlink_to(out.parent / "real")
    assert output_refusal(made_of(package), out, package).code == "output-not-ours"


def test_a_huge_folder_of_somebody_else_is_not_read(
    package: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (out / name).mkdir(parents=True)
        (out / name / "file").write_text("mine")
    looked: list[str] = []
    walk = os.walk

    def noted(top: str) -> Any:
        for row in walk(top):
            looked.append(row[0])
            yield row

    monkeypatch.setattr(os, "walk", noted)
    monkeypatch.setattr(converting, "hash_of", looked.append)
    with pytest.raises(SkillError) as caught:
        converting.require_output(str(package), str(out))
    assert caught.value.code == "output-not-ours"
    assert looked == [str(out), str(out / "a")]


@pytest.mark.parametrize("path", ["SKILL.md", REPORT, "scripts/fanout/edition.py"])
def test_an_edited_conversion_is_refused(package: Path, out: Path, path: str) -> None:
    made = made_of(package)
    converting.write(made, str(out))
    page = (out / path).read_text()
    for edit in (page + "x", page.replace("- [ ] **Interactive", "- [x] **Interactive"), None):
        (out / path).unlink()
        if edit is not None:
            (out / path).write_text(edit)
        if edit != page:
            error = output_refusal(made, out, package)
            assert error.code in ("output-edited", "output-not-ours")
            assert os.path.dirname(path) in error.message
    (out / path).write_text(page)
    (out / path).chmod(0o640)
    # A mode is no edit: it is put right, and nothing is refused.
    assert converting.write(made, str(out)) is True
    assert (out / path).stat().st_mode & 0o777 == made.files[path].mode
    assert converting.write(made, str(out)) is False


def test_a_report_must_be_a_file(package: Path, out: Path) -> None:
    made = made_of(package)
    converting.write(made, str(out))
    (out / REPORT).rename(out.parent / "report")
    (out / REPORT).symlink_to(out.parent / "report")
    assert output_refusal(made, out, package).code == "output-edited"


def test_a_report_with_other_hashes_is_not_believed(package: Path, out: Path) -> None:
    made = made_of(package)
    converting.write(made, str(out))
    (out / "SKILL.md").write_text("mine")
    page = (out / REPORT).read_text()
    for path, file in made.files.items():
        if path == "SKILL.md":
            old, new = converting.sha256(file.content), converting.sha256(b"mine")
            (out / REPORT).write_text(page.replace(old, new))
    assert output_refusal(made, out, package).code == "output-edited"


def test_output_and_package_must_lie_apart(package: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(package)
    for folder in (package, package / "out", tmp_path, tmp_path / "alias" / "x", Path("/")):
        with pytest.raises(SkillError) as caught:
            converting.require_output(str(package), str(folder))
        assert caught.value.code == "output-inside"
    beside = f"{package}-2"
    assert converting.require_output(str(package), beside) == beside
    for word in ("", "a\0b"):
        with pytest.raises(SkillError) as caught:
            converting.require_output(str(package), word)
        assert caught.value.exit_code == ExitCode.USAGE


def test_what_comes_into_the_old_folder_at_the_last_moment_is_kept(
    package: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converting.write(made_of(package), str(out))
    rename = os.rename

    def late(source: str, target: str) -> None:
        if source == str(out):
            (out / "late.txt").write_text("mine")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(SkillError) as caught:
        converting.write(made_of(package, mapping("weasel")), str(out))
    assert caught.value.code == "output-not-ours"
    assert (out / "late.txt").read_text() == "mine"
    assert list(out.parent.iterdir()) == [out]


def test_two_conversions_to_one_folder(package: Path, out: Path) -> None:
    made = made_of(package)
    with (
        converting.locked(converting.beside(str(out), "converting"), str(out)),
        pytest.raises(SkillError) as caught,
    ):
        converting.write(made, str(out))
    assert (caught.value.code, caught.value.exit_code) == ("busy", ExitCode.BUSY)
    assert converting.write(made, str(out)) is True


def test_a_fault_leaves_what_was_there(
    package: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made_of(package), made_of(package, mapping("weasel"))
    converting.write(first, str(out))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="No space"):
        converting.write(second, str(out))
    assert contents(out) == {path: file.content for path, file in first.files.items()}
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("before", ["nothing", "an earlier one"])
def test_a_kill_at_any_step_is_put_right_by_the_next_call(
    package: Path, out: Path, before: str
) -> None:
    for part in ("tests", "references", "README.md", "Makefile", "pyproject.toml", "CHANGELOG.md"):
        place = package / part
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    old, new = made_of(package, mapping("weasel")), made_of(package)
    whole = [{p: file.content for p, file in made.files.items()} for made in (old, new)]
    step, killed = 0, True
    while killed:
        assert step < 400
        if before != "nothing":
            converting.write(old, str(out))
        killed = kill_at(step, new, str(out))
        step += 1
        found = contents(out) if out.exists() else None
        if found is None:
            aside = Path(converting.beside(str(out), "replaced"))
            assert before == "nothing" or contents(aside) == whole[0]
        else:
            assert found in whole
        if not killed:
            break
        converting.write(new, str(out))
        assert contents(out) == whole[1]
        assert list(out.parent.iterdir()) == [out]
        if before == "nothing":
            shutil.rmtree(out)
    assert step > 30


def kill_at(step: int, made: Conversion, out: str) -> bool:
    """Write until so many calls that change something were made; whether it came to that."""
    with pytest.MonkeyPatch.context() as patched:
        left = iter(range(step))

        def counted(real: Any, *args: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return real(*args, **options)

        for name in ("mkdir", "rename", "unlink", "rmdir", "open", "fchmod"):
            patched.setattr(os, name, functools.partial(counted, getattr(os, name)))
        try:
            converting.write(made, out)
        except Killed:
            return True
    return False


def test_a_refusal_leaves_nothing_beside_the_folder(package: Path, out: Path) -> None:
    made = made_of(package)
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(SkillError, match="was not written by a conversion"):
        converting.write(made, str(out))
    assert list(out.parent.iterdir()) == [out]


def test_a_place_that_cannot_be_written_is_invalid_input(
    package: Path, out: Path, tmp_path: Path
) -> None:
    made, file = made_of(package), tmp_path / "file"
    file.write_text("mine")
    for place in (file / "below", out.parent / ("n" * 250)):
        with pytest.raises(SkillError) as caught:
            converting.write(made, str(place))
        assert (caught.value.code, caught.value.exit_code) == ("output-unusable", ExitCode.USAGE)
    assert file.read_text() == "mine"


def test_what_only_has_the_name_of_a_replaced_folder_stays_there(package: Path, out: Path) -> None:
    place = Path(converting.beside(str(out), "replaced"))
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    with pytest.raises(SkillError) as caught:
        converting.write(made_of(package), str(out))
    assert caught.value.code == "output-not-ours"
    assert list(out.parent.iterdir()) == [place]


def test_what_is_found_in_the_place_of_a_killed_call_is_kept(package: Path, out: Path) -> None:
    made = made_of(package)
    for what in ("converting", "replaced"):
        place = Path(converting.beside(str(out), what))
        place.mkdir()
        (place / "mine.txt").write_text("mine")
        with pytest.raises(SkillError) as caught:
            converting.write(made, str(out))
        assert caught.value.exit_code == ExitCode.REFUSED
        found = list(out.parent.rglob("mine.txt"))
        assert [path.read_text() for path in found] == ["mine"]
        shutil.rmtree(out.parent)
        out.parent.mkdir()
