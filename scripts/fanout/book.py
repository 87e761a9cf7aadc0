"""Put entries into a changelog file, in its own style, without changing anything else in it."""

from __future__ import annotations

import re
from itertools import pairwise

from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

# The mark of code and of a comment that do not end.
OPEN = "open"
# The levels of lines that stand for a heading without being marked as one: a release, a category.
PLAIN = 7
LABEL = 8
KNOWN = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")

ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
MARKER = re.compile(r"([ \t]*)([-*+\u2022])([ \t]+|$)")
FENCE = re.compile(r"[ \t]*(?:[-*+\u2022][ \t]+)*(`{3,}(?=[^`]*$)|~{3,})")
BREAK = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")
UNDERLINE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*$")
REFERENCE = re.compile(r" {0,3}\[[^\]]+\]:[ \t]*\S")
# A category as a line of bold text, or of one word with a colon.
BOLD = re.compile(r"(\*\*|__)([^*_]+)\1:?$")
WORD = re.compile(r"(\*?)(\w+):?\1:?$")
# A version or a date, and after it nothing but what belongs to it.
RELEASE = re.compile(
    r"[\W_]*(?:v?\d+(?=[\W_]*$)|(?:(?:version|release|ver|rel)\.?[ :]*|[a-z][\w./-]*[@ ])?"
    r"(?:v?\d+(?:\.\w+)+(?:[-+.][\w.]+)*|\d{4}-\d\d-\d\d))"
    r"[\])}*_`]*[ \t]*(?:$|[-\u2013\u2014(/,:\[]|\d|unreleased)",
    re.IGNORECASE,
)
UNRELEASED = re.compile(
    r"\b(?:unreleased|not (?:yet )?released|in development|in progress|snapshot|tba|tbd"
    r"|\d\.?dev\d*|xxxx-xx-xx)\b",
    re.IGNORECASE,
)
COMING = frozenset(
    (
        *("next", "next release", "next version", "upcoming", "upcoming release", "future", "head"),
        *("main", "master", "trunk", "dev", "develop", "development", "development version"),
        *("work in progress", "wip", "pending"),
    )
)


class Block(NamedTuple):
    """A run of lines, `start` to before `end`, with no blank line at either side.

    `kind` is `heading`, `item`, `text`, `code`, `comment`, `links` or `matter`. A heading has a
    `level` and a `mark`: `#`, the character of its underline, or empty. The `text` of a heading is
    what it says; that of an item is without its bullet (which is `mark`) and its indentation.
    Code or a comment that is not closed has the mark `open`.
    """

    kind: str
    start: int
    end: int
    text: str
    level: int = 0
    mark: str = ""


class Outline(NamedTuple):
    """A text as lines, each with its end, and the blocks they make."""

    lines: list[str]
    blocks: list[Block]


def split_lines(text: str) -> list[str]:
    """The lines with their ends; only a line feed ends one."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def bare(line: str) -> str:
    """A line without its end."""
    return line.rstrip("\r\n")


def is_blank(line: str) -> bool:
    """Whether nothing is to be seen in a line."""
    return not line.strip()


def columns(line: str) -> int:
    """How far a line is indented; a tab goes to the next multiple of four."""
    column = 0
    for letter in line:
        if letter == " ":
            column += 1
        elif letter == "\t":
            column += 4 - column % 4
        else:
            break
    return column


def dedent(line: str, wanted: int) -> str:
    """A line with at most so many columns of its indentation removed; the rest stays as it is."""
    column = 0
    for position, letter in enumerate(line):
        if column >= wanted or letter not in " \t":
            return " " * (column - wanted) + line[position:]
        column += 1 if letter == " " else 4 - column % 4
    return ""


def is_break(line: str) -> bool:
    """Whether a line is a rule across the page, and no item whatever it begins with."""
    return BREAK.match(line) is not None


def opens_item(line: str) -> re.Match[str] | None:
    """The bullet that a line begins with, if it does."""
    return None if is_break(line) else MARKER.match(line)


def parse(text: str, *, markdown: bool = True) -> Outline:
    """The outline of a text. Without `markdown` any punctuation may underline a heading."""
    lines = split_lines(text)
    rows = [bare(line) for line in lines]
    if rows and rows[0].startswith("\ufeff"):
        rows[0] = rows[0][1:]
    reader = Reader(rows, markdown)
    return Outline(lines, reader.read())


class Reader:
    """Walks through lines once, and gathers blocks."""

    def __init__(self, rows: list[str], markdown: bool) -> None:
        self.rows = rows
        self.markdown = markdown
        # In reStructuredText the order in which underlines come decides on their levels.
        self.ranks: list[str] = []

    def read(self) -> list[Block]:
        """All blocks."""
        blocks: list[Block] = []
        at = self.front_matter(blocks)
        while at < len(self.rows):
            if is_blank(self.rows[at]):
                at += 1
                continue
            block = self.block(at)
            blocks.append(block)
            at = block.end
        return blocks

    def front_matter(self, blocks: list[Block]) -> int:
        """Where the text begins, behind the settings that some tools put before it."""
        if self.rows[:1] == ["---"] and "---" in self.rows[1:]:
            end = self.rows.index("---", 1) + 1
            blocks.append(Block("matter", 0, end, ""))
            return end
        return 0

    def block(self, at: int) -> Block:
        """The block that begins at a line."""
        row = self.rows[at]
        heading = self.heading(at)
        if heading is not None:
            return heading
        if row.lstrip().startswith("<!--"):
            end = at
            while end < len(self.rows) and "-->" not in self.rows[end]:
                end += 1
            if end == len(self.rows):
                return Block("comment", at, self.filled(end), "", mark=OPEN)
            return Block("comment", at, end + 1, "")
        fence = FENCE.match(row)
        if fence and not opens_item(row):
            end = at + 1
            while end < len(self.rows) and not closes(self.rows[end], fence[1]):
                end += 1
            if end == len(self.rows):
                return self.made("code", at, self.filled(end))._replace(mark=OPEN)
            return self.made("code", at, end + 1)
        if opens_item(row):
            return self.item(at)
        if REFERENCE.match(row) or (not self.markdown and row.startswith(".. ")):
            return self.made("links", at, at + 1)
        if is_break(row):
            return self.made("text", at, at + 1)
        return self.paragraph(at)

    def filled(self, end: int) -> int:
        """The end of a block that goes on to the end of the text, without blank lines."""
        while is_blank(self.rows[end - 1]):
            end -= 1
        return end

    def made(self, kind: str, at: int, end: int) -> Block:
        """A block with its lines as text."""
        return Block(kind, at, end, "\n".join(self.rows[at:end]))

    def heading(self, at: int) -> Block | None:
        """The heading that begins at a line, if one does."""
        row = self.rows[at]
        found = ATX.match(row)
        if found and (self.markdown or len(found[1]) < 4):
            return Block("heading", at, at + 1, (found[2] or "").strip(), len(found[1]), "#")
        after = self.rows[at + 1 : at + 3]
        if not self.markdown and len(after) == 2 and UNDERLINE.match(row):
            # A line above and the same line below.
            if after[1].rstrip() == row.rstrip() and any(map(str.isalnum, after[0])):
                return Block(
                    "heading", at, at + 3, after[0].strip(), self.rank(row[0] * 2), row[0] * 2
                )
            return None
        if not after or not self.underlines(row, after[0]):
            return None
        mark = after[0][0]
        return Block("heading", at, at + 2, row.strip(), self.rank(mark), mark)

    def underlines(self, row: str, below: str) -> bool:
        """Whether a line makes the one above it a heading."""
        line = UNDERLINE.match(below)
        if line is None or columns(row) > 3 or opens_item(row) or not any(map(str.isalnum, row)):
            return False
        if REFERENCE.match(row) or row.lstrip().startswith(("<!--", ">", "|", "```", "~~~")):
            return False
        # Elsewhere a shorter line is a slip of the pen, and often no underline at all.
        return line[1] in "=-" if self.markdown else len(below.rstrip()) >= len(row.strip()) - 2

    def rank(self, mark: str) -> int:
        """The level of a heading with such an underline."""
        if self.markdown:
            return 1 if mark == "=" else 2
        if mark not in self.ranks:
            self.ranks.append(mark)
        return self.ranks.index(mark) + 1

    def starts(self, at: int) -> bool:
        """Whether a line begins a block although the one before it is not blank."""
        row = self.rows[at]
        if opens_item(row) or is_break(row) or FENCE.match(row):
            return True
        if row.lstrip().startswith("<!--") or ATX.match(row) or label_of(row):
            return True
        return at + 1 < len(self.rows) and self.underlines(row, self.rows[at + 1])

    def item(self, at: int) -> Block:
        """The list item that begins at a line: all that is indented below it, and lazy lines."""
        row = self.rows[at]
        found = opens_item(row)
        assert found is not None
        before = columns(found[1]) + 1
        space = columns_between(found)
        # Far from its bullet a text is code; its bullet ends after one space.
        inner = before + (space if 0 < space < 5 else 1)
        first = row[found.end() :]
        fence = opened(first, "")
        end = at + 1
        blank = False
        kept = [first]
        for here in range(at + 1, len(self.rows)):
            row = self.rows[here]
            if is_blank(row):
                blank = True
                continue
            inside = columns(row) >= inner
            if not inside and (blank or fence or self.starts(here)):
                break
            kept += [""] * (here - end) + [dedent(row, inner)]
            fence = opened(row, fence)
            end, blank = here + 1, False
        return Block("item", at, end, "\n".join(kept).strip("\n"), mark=found[0])

    def paragraph(self, at: int) -> Block:
        """Lines of text up to a blank one; a release or a category may stand there as a line."""
        end = at + 1
        row = self.rows[at]
        while end < len(self.rows) and not is_blank(self.rows[end]) and not self.starts(end):
            end += 1
        release = RELEASE.match(row) or key_of(row) == "unreleased"
        if release and not self.markdown and not columns(row):
            return Block("heading", at, at + 1, row.strip(), PLAIN)
        if end == at + 1 and label_of(row):
            return Block("heading", at, end, label_of(row), LABEL, row.strip())
        return self.made("text", at, end)


def label_of(row: str) -> str:
    """The category that a line names which is no heading, such as `**Added**`; else empty."""
    row = row.strip()
    bold = BOLD.match(row)
    if bold is not None:
        title = bold[2].strip().removesuffix(":")
        return title if key_of(title) and not bold[2].startswith(" ") else ""
    word = WORD.match(row)
    known = word is not None and word[2].capitalize() in KNOWN and word[2] != row
    return word[2] if word is not None and known else ""


def columns_between(found: re.Match[str]) -> int:
    """How many columns part a bullet from its text."""
    start = columns(found[1]) + 1
    column = start
    for letter in found[3]:
        column += 1 if letter == " " else 4 - column % 4
    return column - start


def closes(row: str, fence: str) -> bool:
    """Whether a line ends the code that a fence began."""
    word = row.strip()
    return len(word) >= len(fence) and set(word) == {fence[0]}


def opened(row: str, fence: str) -> str:
    """The fence that is open after a line; empty when none is."""
    if fence:
        return "" if closes(row, fence) else fence
    found = FENCE.match(row)
    return found[1] if found else ""


def is_unreleased(block: Block) -> bool:
    """Whether a heading stands above what no release has yet."""
    if block.kind != "heading" or block.level == LABEL:
        return False
    words = re.sub(r"[\W_]+", " ", block.text).strip().casefold()
    return words in COMING or (
        UNRELEASED.search(block.text) is not None
        and (words.startswith("unreleased") or RELEASE.match(block.text) is not None)
    )


def is_release(block: Block) -> bool:
    """Whether a heading names a version or a date, or what comes next."""
    if block.kind != "heading" or block.level == LABEL:
        return False
    return RELEASE.match(block.text) is not None or is_unreleased(block)


def key_of(title: str) -> str:
    """What makes two titles of a category the same: its words, without signs and capitals."""
    return re.sub(r"[\W_]+", " ", re.sub(r":[a-z_]+:", "", title)).strip().casefold()


def same_text(text: str) -> str:
    """What makes two entries the same: the text without bullets, white space and a last period."""
    rows = text.split("\n")
    words = " ".join(row[found.end() :] if (found := MARKER.match(row)) else row for row in rows)
    return " ".join(words.split()).rstrip(".").rstrip()


# --- Entries put in ------------------------------------------------------------------------

NEW_BOOK = """# Changelog

All notable changes to this project are documented in this file.

The format is based on [Keep a Changelog](https://keepachangelog.com/en/1.1.0/).
"""
DEFAULT = "Changed"
RANKS = {title.casefold(): number for number, title in enumerate(KNOWN)}
TITLES = {title.casefold(): title for title in KNOWN}
# Headings of an entry that say nothing about its category.
EMPTY_TITLES = frozenset(("", "change log", "changes", "entry", "news", "release notes"))
# What belongs below the item before it.
ATTACHED = ("code", "links")
NUMBER = re.compile(r"#(\d+)\b")
VERSION = re.compile(r"\d+(?:\.\d+)*")


class Entry(NamedTuple):
    """A changelog entry that is to be put where the repository keeps them.

    `source` is `branch`, `worktree` or `task`: where it was found. `path` is relative to the tree,
    `digest` the SHA-256 of its bytes.
    """

    name: str
    source: str
    path: str
    text: str
    digest: str


class Change(NamedTuple):
    """One item of an entry. `title` is empty where the entry names no category."""

    title: str
    text: str

    @property
    def key(self) -> str:
        """What tells its category."""
        return key_of(self.title or DEFAULT)

    @property
    def same(self) -> str:
        """What makes another one the same."""
        return same_text(self.text)


class Folded(NamedTuple):
    """A changelog file with entries put into it: the texts added, and those that were there."""

    book: bytes
    added: list[str]
    duplicates: list[str]


class Part(NamedTuple):
    """Blocks of one category, or of a section: its heading, and what stands below it."""

    heading: Block
    blocks: list[Block]

    @property
    def end(self) -> int:
        """The line after its last one; links and comments at its end left out."""
        return self.last.end

    @property
    def last(self) -> Block:
        """The last block; links and comments at its end left out."""
        own = [block for block in self.blocks if block.kind not in ("links", "comment")]
        return own[-1] if own else self.heading


# --- Entries --------------------------------------------------------------------------------


def changes_of(text: str, name: str = "") -> list[Change]:
    """The items of an entry, each with the category it stands under.

    A paragraph is an item too; code, quotations and tables belong to the item before them. A
    heading that only says whose entry it is (`name`) is no category.
    """
    found: list[Change] = []
    title = ""
    fresh = True
    for block in parse(unindented(text)).blocks:
        if block.kind == "heading" and (block.level != LABEL or key_of(block.text) in TITLES):
            title = "" if is_release(block) or block.text == name else title_of(block.text)
            fresh = True
            continue
        if block.kind in ("comment", "matter") or is_break(block.text):
            continue
        content = tidy(block.mark if block.level == LABEL else block.text)
        if not any(map(str.isalnum, content)):
            continue
        if not fresh and (block.kind in ATTACHED or content.startswith((">", "|"))):
            last = found.pop()
            gap = "\n" if block.kind == "links" and found_links(last.text) else "\n\n"
            found.append(Change(last.title, last.text + gap + content))
        else:
            found.append(Change(title, content))
        fresh = False
    return found


def found_links(text: str) -> bool:
    """Whether a text ends with a link reference."""
    return re.match(r"\[[^\]]+\]:", text.rpartition("\n")[2]) is not None


def title_of(text: str) -> str:
    """The category that a heading names; empty when it names none."""
    key = key_of(text)
    if key in EMPTY_TITLES or "changelog" in key.split():
        return ""
    return TITLES.get(key, text.strip().rstrip(":").rstrip())


def unindented(text: str) -> str:
    """A text without the indentation that all of its lines share."""
    rows = text.replace("\r\n", "\n").removeprefix("\ufeff").split("\n")
    shared = min((len(r) - len(r.lstrip(" ")) for r in rows if not is_blank(r)), default=0)
    return "\n".join(row[shared:] for row in rows)


def tidy(text: str) -> str:
    """The text of an item without blank lines at its ends and white space at theirs."""
    rows = text.split("\n")
    while rows and (is_blank(rows[0]) or not rows[0].strip("-*_+\u2022 \t")):
        rows.pop(0)
    marks = zip(rows, in_code(rows), strict=True)
    kept = [row if fenced else row.rstrip() for row, fenced in marks]
    return "\n".join(kept).strip()


def in_code(rows: list[str]) -> list[bool]:
    """For each line whether it stands in a fenced code block."""
    fence = ""
    answer: list[bool] = []
    for row in rows:
        answer.append(bool(fence))
        fence = opened(row, fence)
    return answer


# --- A file and its style -------------------------------------------------------------------


class Book:
    """A changelog file: its lines, where its sections are, and how it is written."""

    def __init__(self, text: str, name: str) -> None:
        self.markdown = is_markdown(name)
        outline: Outline = parse(text, markdown=self.markdown)
        self.lines = outline.lines
        self.blocks = outline.blocks
        self.text = text
        marked = [b for b in self.blocks if b.level != PLAIN and is_release(b)]
        self.heads = marked or [b for b in self.blocks if is_release(b)]
        starts = {block.start for block in self.heads}
        # A release goes up to the next one, or to a heading of its level or above.
        self.sections: list[Part] = []
        inside: list[Block] | None = None
        for block in self.blocks:
            if block.start in starts:
                inside = []
                self.sections.append(Part(block, inside))
            elif inside is not None:
                if block.kind == "heading" and block.level <= self.sections[-1].heading.level:
                    inside = None
                else:
                    inside.append(block)
        self.parts = [part for section in self.sections for part in self.categories(section)]

    @property
    def coming(self) -> Part | None:
        """The section of what is not released."""
        return next((part for part in self.sections if is_unreleased(part.heading)), None)

    @property
    def released(self) -> list[Part]:
        """The sections of releases."""
        return [part for part in self.sections if not is_unreleased(part.heading)]

    @property
    def eol(self) -> str:
        """How most of its lines end."""
        return "\r\n" if self.text.count("\r\n") * 2 > self.text.count("\n") else "\n"

    def categories(self, section: Part) -> list[Part]:
        """The categories of a section; what stands above the first one is not among them."""
        headings = [block for block in section.blocks if is_category(block)]
        level = min((block.level for block in headings), default=0)
        found: list[Part] = []
        for block in section.blocks:
            if block.level == level and is_category(block):
                found.append(Part(block, []))
            elif found:
                found[-1].blocks.append(block)
        return found

    @property
    def flat(self) -> bool:
        """Whether it lists changes without categories, and not only because it has none yet."""
        if self.parts or "keepachangelog" in self.text.casefold():
            return False
        if any(part.heading.text.startswith("[") for part in self.sections[:1]):
            return False
        return any(block.kind == "item" for part in self.sections for block in part.blocks)

    # --- How it is written ---

    def blanks(self, at: int) -> int:
        """How many blank lines stand above a line."""
        count = 0
        while count < at and is_blank(self.lines[at - count - 1]):
            count += 1
        return count

    def bullet(self) -> str:
        """What its items begin with."""
        near = self.coming.blocks if self.coming else []
        marks = [block.mark for block in near if block.kind == "item" and block.text]
        if not marks:
            marks = [block.mark for block in self.blocks if block.kind == "item" and block.text]
        return most(marks, "- ")

    def item_gap(self) -> int:
        """How many blank lines part two items."""
        near = self.coming.blocks if self.coming else []
        for blocks in (near, self.blocks):
            pairs = pairwise(blocks)
            gaps = [self.blanks(b.start) for a, b in pairs if a.kind == b.kind == "item"]
            if gaps:
                return most(gaps, 0)
        return 0

    def gap_below(self, headings: list[Block], default: int) -> int:
        """How many blank lines stand below such headings."""
        starts = {self.start_after(block.end): block for block in headings}
        gaps = [self.blanks(b.start) for b in self.blocks if b.start in starts and b.kind == "item"]
        return most(gaps, default)

    def start_after(self, at: int) -> int:
        """The first line from there on that is not blank."""
        while at < len(self.lines) and is_blank(self.lines[at]):
            at += 1
        return at

    def above(self, headings: list[Block]) -> int:
        """How many blank lines are to stand above such headings."""
        gap = most([self.blanks(block.start) for block in headings if block.start], 1)
        # Without a sign of its own a heading would run into the text above it.
        return gap if all(block.mark == "#" for block in headings) else max(gap, 1)

    def newest_first(self) -> bool:
        """Whether new items go above old ones: told by the numbers of issues in them."""
        rising = falling = 0
        for section in self.sections:
            for part in [section, *self.categories(section)]:
                items = [block for block in part.blocks if block.kind == "item"]
                numbers = [NUMBER.findall(block.text)[-1:] for block in items]
                for one, two in pairwise(numbers):
                    if one and two:
                        rising += int(one[0]) < int(two[0])
                        falling += int(one[0]) > int(two[0])
        return falling > rising

    def oldest_first(self) -> bool:
        """Whether new releases go below old ones."""
        versions = [version_of(part.heading.text) for part in self.released]
        return len(versions) > 1 and versions[0] < versions[-1]

    # --- Insertions ---

    def inserted(self, at: int, rows: list[str], above: int, below: int) -> str:
        """The text with lines put before one of its lines, parted by blank lines as far as needed.

        What stands there is not changed by a byte.
        """
        rows = [""] * max(0, above - self.blanks(at) if at else 0) + rows
        after = self.start_after(at)
        if after < len(self.lines):
            rows = rows + [""] * max(0, below - (after - at))
        piece = self.eol.join(rows)
        if at and not self.lines[at - 1].endswith("\n"):
            piece = self.eol + piece
        else:
            piece += self.eol
        head = "".join(self.lines[:at])
        mark = "\ufeff" if not at and self.text.startswith("\ufeff") else ""
        return mark + head + piece + self.text[len(mark) + len(head) :]

    def with_section(self) -> str:
        """The text with a section for what is not released."""
        like = self.newest()
        if like is None:
            title = next((block for block in self.blocks if block.kind == "heading"), None)
            rows = ["## [Unreleased]"]
            if not self.markdown and (title is None or title.mark != "#"):
                rows = ["Unreleased", "-" * 10 if title and title.mark[:1] == "=" else "=" * 10]
            end = Part(self.blocks[0], self.blocks).end if self.blocks else 0
            return self.inserted(end, rows, 1, 1)
        rows = heading_like(like.heading, "Unreleased")
        heads = [part.heading for part in self.released]
        gap = self.above(heads)
        if self.oldest_first():
            return self.inserted(like.end, rows, gap, 1)
        if not like.heading.start:
            return self.inserted(0, rows, 0, max(gap, 1))
        earlier = [block.end for block in self.blocks if block.end <= like.heading.start]
        return self.inserted(earlier[-1] if earlier else 0, rows, gap, max(gap, 1))

    def newest(self) -> Part | None:
        """The section of the newest release."""
        if not self.released:
            return None
        return self.released[-1 if self.oldest_first() else 0]

    def with_changes(self, key: str, changes: list[Change]) -> str:
        """The text with changes of one category put into the section that is not released."""
        section = self.coming
        assert section is not None
        rows = self.rows_of(changes)
        categories = self.categories(section)
        if self.flat:
            return self.with_items(section, rows, self.heads)
        headings = [part.heading for part in self.parts]
        for part in categories:
            if key_of(part.heading.text) == key:
                return self.with_items(part, rows, headings)
        above = self.above(headings)
        lines = self.heading_of(key, changes[0].title or DEFAULT, section)
        lines += [""] * self.gap_below(headings, 1)
        for part in categories:
            if self.precedes(key, key_of(part.heading.text)):
                blocks = [section.heading, *section.blocks]
                before = [b for b in blocks if b.end <= part.heading.start][-1]
                first = before is section.heading
                gap = self.blanks(part.heading.start) if first else above
                return self.inserted(before.end, lines + rows, gap, above)
        first = section.end == section.heading.end
        gap = self.gap_below_release() if first else above
        return self.inserted(section.end, lines + rows, gap, self.above(self.heads))

    def gap_below_release(self) -> int:
        """How many blank lines part the heading of a release from its first category."""
        parts = [(section, self.categories(section)) for section in self.sections]
        gaps = [
            self.blanks(found[0].heading.start)
            for section, found in parts
            if found and self.start_after(section.heading.end) == found[0].heading.start
        ]
        return most(gaps, 1)

    def with_items(self, part: Part, rows: list[str], headings: list[Block]) -> str:
        """The text with items put to those of a category."""
        gap = self.item_gap()
        own: list[Block] = []
        for block in part.blocks:
            if block.kind == "heading":
                # What stands below a smaller heading is of another kind.
                break
            own.append(block)
        items = [block for block in own if block.kind == "item"]
        if items and self.newest_first():
            return self.inserted(items[0].start, rows, 0, gap)
        last = Part(part.heading, own).last
        if last is part.heading:
            return self.inserted(last.end, rows, self.gap_below(headings, 1), self.above(headings))
        after = next((b for b in self.blocks if b.start >= last.end), None)
        below = self.blanks(after.start) if after is not None else 0
        return self.inserted(last.end, rows, gap if last.kind == "item" else 1, below)

    def rows_of(self, changes: list[Change]) -> list[str]:
        """The lines of items, in its style."""
        bullet = self.bullet()
        if not bullet.endswith((" ", "\t")):
            bullet += " "
        inner = " " * len(bullet.expandtabs(4))
        rows: list[str] = []
        for change in changes:
            if rows:
                rows += [""] * self.item_gap()
            first, *more = change.text.split("\n")
            rows += [bullet + first, *(inner + row if row.strip() else "" for row in more)]
        return rows

    def heading_of(self, key: str, title: str, section: Part) -> list[str]:
        """The lines of a category's heading, written as others in the file are."""
        # Within a section all are of one form, or one of them would not count.
        lower = [part for part in self.parts if part.heading.level > section.heading.level]
        parts = self.categories(section) or lower
        for part in lower:
            if key_of(part.heading.text) == key and part.heading.level == parts[0].heading.level:
                rows = self.lines[part.heading.start : part.heading.end]
                return [row.rstrip("\r\n") for row in rows]
        if parts:
            colon = ":" if all(part.heading.text.endswith(":") for part in parts) else ""
            return heading_like(parts[0].heading, title + colon)
        head = section.heading
        if head.mark == "#" or (self.markdown and head.mark):
            return ["#" * (head.level + 1) + " " + title]
        if not head.mark:
            return [f"{title}:"]
        marks = {block.mark for block in self.blocks if block.kind == "heading"}
        mark = next(mark for mark in '-~^"' if mark not in marks or mark == '"')
        return [title, mark * max(3, len(title))]

    def precedes(self, one: str, two: str) -> bool:
        """Whether a category goes above another: as elsewhere in the file, or as is usual."""
        for section in self.released:
            keys = [key_of(part.heading.text) for part in self.categories(section)]
            if one in keys and two in keys:
                return keys.index(one) < keys.index(two)
        return RANKS.get(one, len(RANKS)) < RANKS.get(two, len(RANKS))

    def known(self) -> list[Change]:
        """The items of the section that is not released; `title` is empty outside of categories."""
        section = self.coming
        if section is None:
            return []
        found: list[Change] = []
        starts = {part.heading.start: part.heading.text for part in self.categories(section)}
        title = ""
        for block in section.blocks:
            title = starts.get(block.start, title)
            if block.kind == "item":
                found.append(Change(title, block.text))
        return found


def is_markdown(name: str) -> bool:
    """Whether a file is Markdown, by its name."""
    return name.casefold().endswith((".md", ".markdown", ".mdx"))


def is_category(block: Block) -> bool:
    """Whether a heading names a kind of change."""
    return block.kind == "heading" and block.level != PLAIN and bool(key_of(block.text))


def version_of(text: str) -> list[int]:
    """The numbers of a version or date."""
    found = VERSION.search(text)
    return [int(word) for word in found[0].split(".")] if found else []


def most(values: list[T], default: T) -> T:
    """The value that is there most often, the first of those that are."""
    return max(values, key=values.count) if values else default


def heading_like(sample: Block, title: str) -> list[str]:
    """The lines of a heading in the form of another one."""
    if sample.level == LABEL:
        # Only the usual words are told from other text without bold letters.
        title = " ".join(re.sub(r"[*_]", " ", title).split())
        plain = not sample.mark.startswith(("**", "__")) and title.rstrip(":") not in KNOWN
        return [f"**{title}**" if plain else sample.mark.replace(sample.text, title, 1)]
    if sample.text.startswith("[") and title == "Unreleased":
        title = "[Unreleased]"
    if sample.mark == "#":
        return ["#" * sample.level + " " + title]
    if not sample.mark:
        return [title]
    line = sample.mark[0] * max(3, len(title))
    return [line, title, line] if len(sample.mark) == 2 else [title, line]


# --- Folding --------------------------------------------------------------------------------


def fold_changes(book: bytes | None, changes: list[Change], name: str) -> Folded:
    """Put changes into a changelog file; `name` tells how it is written.

    Raises SkillError `changelog-unusable` (exit 3) for a file that is no text or has no clear end.
    """
    if book is not None and b"\0" in book:
        raise refused("changelog-unusable", f"{name} is no text", "add the entries by hand")
    text = NEW_BOOK if book is None else book.decode("utf-8", "surrogateescape")
    made = Book(text, name)
    if any(block.mark == OPEN for block in made.blocks):
        why = f"in {name} a code block or a comment begins that does not end"
        raise refused("changelog-unusable", why, "mend it, or add the entries by hand")
    flat = made.flat
    known = [(change.title and change.key, change.same) for change in made.known()]
    new: dict[str, list[Change]] = {}
    again: list[Change] = []
    for change in changes:
        keys = [key for key, same in known if same == change.same]
        # In another category the same words may be another change; without one they are not.
        if keys and (flat or not change.title or "" in keys or change.key in keys):
            again.append(change)
        else:
            known.append((change.key, change.same))
            new.setdefault("" if flat else change.key, []).append(change)
    if new and made.coming is None:
        made = Book(made.with_section(), name)
    for key, members in new.items():
        made = Book(made.with_changes(key, members), name)
    added = [change.text for members in new.values() for change in members]
    if not added:
        return Folded(book or b"", [], [change.text for change in again])
    content = made.text.encode("utf-8", "surrogateescape")
    return Folded(content, added, [change.text for change in again])


# --- Reconciling ----------------------------------------------------------------------------


def reconcile(base: bytes, ours: bytes, theirs: bytes, name: str) -> bytes | None:
    """Our version of a changelog file with the entries that theirs adds to the base.

    They go into our section of what is not released, each into its category, unless they are there
    already. None when theirs changes anything other than entries that are not released: then a
    merge line by line has to show it. `name` tells how the file is written.
    """
    if b"\0" in base + ours + theirs:
        return None
    before, after = book_of(base, name), book_of(theirs, name)
    added = additions(before, after)
    if added is None:
        return None
    changes = changes_in(after, added)
    if changes is None:
        return None
    # What both sides have since, wherever it stands now: in a release, say.
    gained = texts(book_of(ours, name)) - texts(before)
    new = [change for change in changes if change.same not in gained]
    try:
        return fold_changes(ours, new, name).book
    except SkillError:
        return None


def book_of(content: bytes, name: str) -> Book:
    """A version of the file."""
    return Book(content.decode("utf-8", "surrogateescape"), name)


def texts(book: Book) -> set[str]:
    """What the items of a file say."""
    return {Change("", block.text).same for block in book.blocks if block.kind == "item"}


def additions(before: Book, after: Book) -> list[Block] | None:
    """The blocks that one version has beside those of the other; None when any of those differs."""
    added: list[Block] = []
    at = 0
    same = True
    for block in after.blocks:
        if at < len(before.blocks) and raw(before, before.blocks[at]) == raw(after, block):
            old = before.blocks[at]
            if same and before.blanks(old.start) != after.blanks(block.start):
                return None
            at += 1
            same = True
        else:
            added.append(block)
            same = False
    tails = [book.text[len(book.text.rstrip()) :] for book in (before, after)]
    if at < len(before.blocks) or (same and tails[0] != tails[1]):
        return None
    return added


def raw(book: Book, block: Block) -> list[str]:
    """The lines of a block; whether the last one of the file ends does not matter."""
    return [line.removesuffix("\n") for line in book.lines[block.start : block.end]]


def changes_in(book: Book, added: list[Block]) -> list[Change] | None:
    """Added blocks as entries; None when one is anything else, or not among what comes next."""
    section = book.coming
    if section is None:
        return None if added else []
    starts = {block.start for block in added}
    titles = {part.heading.start: part.heading.text for part in book.categories(section)}
    left = len(added)
    found: list[Change] = []
    title = ""
    last = False
    for block in [section.heading, *section.blocks]:
        title = titles.get(block.start, title)
        if block.start not in starts:
            last = False
            continue
        left -= 1
        if block.kind == "heading" and (block.start in titles or is_unreleased(block)):
            last = False
        elif block.kind == "item":
            found.append(Change(title, tidy(block.text)))
            last = True
        elif block.kind == "code" and last:
            found[-1] = Change(title, found[-1].text + "\n\n" + tidy(block.text))
        else:
            return None
    return None if left else [change for change in found if change.text]
