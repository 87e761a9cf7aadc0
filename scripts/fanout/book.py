"""Put entries into a changelog file, in its own style, without changing anything else in it."""

from __future__ import annotations

import re
from itertools import pairwise

from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple
from fanout.outline import (
    KNOWN,
    LABEL,
    OPEN,
    PLAIN,
    Block,
    Outline,
    is_blank,
    is_break,
    is_release,
    is_unreleased,
    key_of,
    opened,
    parse,
    same_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

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
