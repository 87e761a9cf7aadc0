"""The frontmatter of a SKILL.md: the small part of YAML that skills are written in.

What a reader of skills could take amiss is refused: many drop such a skill without a word.
"""

from __future__ import annotations

import json
import re

from fanout.errors import SkillError, usage
from fanout.fields import NamedTuple

RULE = "---"
NAME = r"[a-z0-9]+(?:-[a-z0-9]+)*"
NAME_LIMIT = 64
DESCRIPTION_LIMIT = 1024
FIELD = r"([A-Za-z][A-Za-z0-9_-]*):(?: +(.*?))? *"
# A plain value must not begin with one of these, nor hold what ends it for YAML.
INDICATORS = frozenset("-?:,[]{}#&*!|>'\"%@`")
ENDS_PLAIN = r": |:$| #"


class Skill(NamedTuple):
    """A SKILL.md: the lines between the first two rules, and all that follows them."""

    head: tuple[str, ...]
    body: str

    @property
    def text(self) -> str:
        """The file's text."""
        return "\n".join((RULE, *self.head, RULE, self.body))


def plain_lines(content: bytes) -> str:
    """A text file's text with LF alone and no byte order mark. Raises UnicodeDecodeError."""
    return content.decode("utf-8-sig").replace("\r\n", "\n")


def parse_skill(text: str) -> Skill:
    """The parts of a SKILL.md. Only the first block between rules is frontmatter (S13).

    Raises SkillError `invalid-skill` (exit 2).
    """
    lines = text.split("\n")
    if lines[0].rstrip() != RULE:
        raise invalid("the first line must be ---")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == RULE), 0)
    if not end:
        raise invalid("the frontmatter has no end: a second line --- is missing")
    return Skill(tuple(lines[1:end]), "\n".join(lines[end + 1 :]))


def value_of(skill: Skill, key: str) -> str:
    """The value of a field in one line. Raises SkillError `invalid-skill` (exit 2)."""
    found = [line for line in skill.head if field_of(line)[0] == key]
    if len(found) != 1:
        raise invalid(f"the frontmatter must hold {key!r} once, not {len(found)} times")
    return scalar(key, field_of(found[0])[1])


def with_value(skill: Skill, key: str, value: str) -> Skill:
    """The skill with another value for a field that it has; all other lines stay."""
    value_of(skill, key)
    written = value if is_plain(value) else json.dumps(value, ensure_ascii=False)
    line = f"{key}: {written}"
    return skill._replace(
        head=tuple(line if field_of(old)[0] == key else old for old in skill.head)
    )


def require_valid(skill: Skill) -> None:
    """Demand what every reader of skills accepts. Raises SkillError `invalid-skill` (exit 2)."""
    seen: set[str] = set()
    for line in skill.head:
        if RULE in line:
            raise invalid(f"--- within the frontmatter would end it for some: {line[:80]!r}")
        key, value = field_of(line)
        if not key:
            # Nested lines, comments and empty ones are left to those who put them there.
            if line.strip() and line[0] not in " #":
                raise invalid(f"no line of the form `key: value`: {line[:80]!r}")
            continue
        if key in seen:
            raise invalid(f"the field {key!r} stands there twice")
        seen.add(key)
        if value:
            scalar(key, value)
    require_skill_name(value_of(skill, "name"))
    length = len(value_of(skill, "description"))
    if not 1 <= length <= DESCRIPTION_LIMIT:
        raise invalid(f"description has {length} characters; 1 to {DESCRIPTION_LIMIT} are allowed")


def require_skill_name(name: str) -> str:
    """A skill's name, checked. Raises SkillError `invalid-skill` (exit 2)."""
    if len(name) > NAME_LIMIT or re.fullmatch(NAME, name) is None:
        raise invalid(
            f"{name[:100]!r} is no name for a skill: 1 to {NAME_LIMIT} of a-z, 0-9 and single "
            "hyphens between them"
        )
    return name


def field_of(line: str) -> tuple[str, str]:
    """Key and value of a line; empty for one that is no field."""
    found = re.fullmatch(FIELD, line)
    return (found[1], found[2] or "") if found else ("", "")


def scalar(key: str, written: str) -> str:
    """The text that a value in one line stands for."""
    try:
        if written[:1] == '"':
            text = json.loads(written)
            if not isinstance(text, str):
                raise ValueError(written)
            return text
    except ValueError:
        raise invalid(f"the quotes of {key!r} are not closed as JSON and YAML do it") from None
    if written[:1] == "'":
        if re.fullmatch(r"'(?:[^']|'')*'", written) is None:
            raise invalid(f"the quotes of {key!r} are not closed")
        return written[1:-1].replace("''", "'")
    if not is_plain(written):
        raise invalid(
            f"{key!r} must be in quotes, in one line: without them YAML reads {written[:80]!r} "
            "as something else"
        )
    return written


def is_plain(value: str) -> bool:
    """Whether YAML takes a value without quotes for just this text."""
    return (
        bool(value)
        and value == value.strip()
        and value.isprintable()
        and value[0] not in INDICATORS
        and re.search(ENDS_PLAIN, value) is None
    )


def invalid(why: str) -> SkillError:
    """A SKILL.md that readers of skills would drop or misread."""
    return usage("invalid-skill", f"SKILL.md: {why}", "correct it, then run this again")
