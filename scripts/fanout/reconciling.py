"""Take the entries that a branch put into the changelog file, and put them into another version."""

from __future__ import annotations

from fanout.book import Book, Change, fold_changes, tidy
from fanout.errors import SkillError
from fanout.outline import Block, is_unreleased


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
