"""The outline of a changelog: its headings, list items and other blocks, line by line.

Markdown, reStructuredText and plain text are told apart only where they differ: what counts is to
find where an entry begins and ends, so that all other lines can stay as they are.
"""

from __future__ import annotations

import re

from fanout.fields import NamedTuple

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
