"""The texts name what is there: every command they show is one that its parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import pages
from fanout.errors import SkillError

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [ROOT / "SKILL.md", ROOT / "README.md", *sorted((ROOT / "references").glob("*.md"))]
ENTRIES = pages.entries()
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SCRIPT = re.compile(rf"(?:^|[\s/\"]){'(?:' + '|'.join(ENTRIES) + ')'}\.py(?=$|[\s\"])")
FRAMES = {entry: getattr(pages.module_of(entry), "FRAME", None) for entry in ENTRIES}
VERBS = {entry: set(frame.verbs) for entry, frame in FRAMES.items() if frame is not None}


def code_in(text: str) -> list[str]:
    """The lines of shell blocks, continued ones joined, and the code spans outside of blocks."""
    found: list[str] = []
    for language, block in FENCE.findall(text):
        if language in ("bash", "sh", "console"):
            found += block.replace("\\\n", " ").splitlines()
    return found + SPAN.findall(FENCE.sub("", text))


def words_of(line: str) -> list[str] | None:
    """The words of a command, its notation for optional and repeated words taken away."""
    plain = re.split(r" # | >|; then| 2>", line)[0]
    plain = re.sub(r"\s*\.\.\.", "", plain).replace("[", " ").replace("]", " ")
    try:
        return shlex.split(plain)
    except ValueError:
        return None


def shown(text: str) -> list[tuple[str, list[str]]]:
    """The commands that a text shows: which one, and its words."""
    found: list[tuple[str, list[str]]] = []
    for line in code_in(text):
        match = SCRIPT.search(line)
        words = words_of(line[match.start():].lstrip(" /\"") if match else line)  # fmt: skip
        if words is None or not words:
            continue
        if match:
            entry = Path(words[0].rstrip('"')).stem
            found.append((entry, words[1:]))
        elif len(words) > 1 and (owners := [e for e in VERBS if words[0] in VERBS[e]]):
            found.append(("|".join(owners), words))
    return [row for row in found if row[1]]


def refusal(entry: str, words: list[str]) -> str | None:
    """Why a command would not be taken as it is written; None when it would."""
    parse = pages.reader_of(entry)
    try:
        parse(words)
    except SkillError as first:
        # `S`, `N` and the like stand for numbers.
        try:
            parse(["1" if re.fullmatch(r"[A-Z]", word) else word for word in words])
        except SkillError:
            return first.message
    except SystemExit:
        return None
    return None


def options_of(entry: str) -> set[str]:
    """The options of a command without verbs."""
    return {name for a in pages.own_actions(pages.parser_of(entry)) for name in a.option_strings}


def is_only_named(entry: str, words: list[str]) -> bool:
    """Whether a text speaks of a verb or a mode, without what it needs: `agent_workers.py send`."""
    if VERBS.get(entry):
        return len(words) == 1 and words[0] in VERBS[entry]
    known = options_of(entry)
    return all(word in known for word in words)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_command_that_is_shown_is_one(path: Path) -> None:
    wrong: list[tuple[str, str, list[str | None]]] = []
    for entries, words in shown(path.read_text(encoding="utf-8")):
        owners = entries.split("|")
        refusals = [None if is_only_named(e, words) else refusal(e, words) for e in owners]
        if None not in refusals:
            wrong.append((entries, " ".join(words), refusals))
    assert wrong == []


def test_the_check_of_commands_finds_some_and_refuses_wrong_ones() -> None:
    found = [row for path in TEXTS for row in shown(path.read_text(encoding="utf-8"))]
    assert len(found) > 100
    helper = ENTRIES[0]
    assert refusal(helper, ["status", "--json"]) is None
    assert "--colour" in (refusal(helper, ["status", "--colour"]) or "")
    assert refusal(helper, ["frobnicate"]) is not None


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_that_is_made_from_the_code_says_what_the_code_says(name: str) -> None:
    """Made anew by `python tests/pages.py`."""
    assert (pages.REFERENCES / name).read_text(encoding="utf-8") == pages.PAGES[name]()


def test_every_code_that_a_text_names_is_one() -> None:
    """Words such as `branch-taken` in references/recovery.md are told by some command."""
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "scripts").rglob("*.py"))
    text = (ROOT / "references" / "recovery.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    assert len(named) > 25
    assert {word for word in named if f'"{word}"' not in source} == set()


def test_every_script_and_reference_is_named_where_the_parent_agent_looks() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    there = [*(ROOT / "scripts").glob("*.py"), *(ROOT / "references").iterdir()]
    assert [str(p.relative_to(ROOT)) for p in there if str(p.relative_to(ROOT)) not in text] == []
    named = re.findall(r"\b(?:scripts|references|examples)/[\w./-]+\w", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
