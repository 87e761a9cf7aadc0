"""The contents of git's objects, any number of them in one process."""

from __future__ import annotations

from fanout import git

MODES = {b"100644": "file", b"100755": "file", b"40000": "folder", b"120000": "link"}


def read_objects(repo_dir: str, names: list[str]) -> dict[str, bytes | None]:
    """The contents of objects by their names, such as `<commit>:<path>`; None for a missing one.

    A name with a line break is never there. Raises SkillError `git-failed`.
    """
    found: dict[str, bytes | None] = dict.fromkeys(names)
    asked = [name for name in found if "\n" not in name]
    if not asked:
        return found
    words = "".join(f"{name}\n" for name in asked).encode("utf-8", "surrogateescape")
    done = git.require_git(repo_dir, "cat-file", "--batch", stdin=words)
    at = 0
    for name in asked:
        end = done.stdout.index(b"\n", at)
        size = done.stdout[at:end].rpartition(b" ")[2]
        at = end + 1
        if size.isdigit():
            found[name] = done.stdout[at : at + int(size)]
            at += int(size) + 1
    return found


def tree_entries(content: bytes, id_bytes: int) -> dict[str, str]:
    """What a tree object holds, by name: `file`, `folder`, `link` or `other`."""
    found: dict[str, str] = {}
    at = 0
    while at < len(content):
        space, end = content.index(b" ", at), content.index(b"\0", at)
        name = content[space + 1 : end].decode("utf-8", "surrogateescape")
        found[name] = MODES.get(content[at:space], "other")
        at = end + 1 + id_bytes
    return found
