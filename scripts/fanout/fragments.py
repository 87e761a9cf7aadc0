"""One fragment for each worker, in the form that the repository's own tool takes."""

from __future__ import annotations

import json
import os
import re
import stat

from fanout import proctree, records
from fanout.book import Change, Entry, changes_of
from fanout.conventions import Tree
from fanout.errors import SkillError, refused
from fanout.outline import KNOWN, MARKER, closes, key_of, opened
from fanout.output import path_text
from fanout.process import clean_environment, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.conventions import Convention

# What a category is called elsewhere, the nearest word first.
WORDS = {
    "added": ("feature", "features", "feat", "new", "enhancement", "improvement", "minor"),
    "changed": ("change", "changes", "improvement", "enhancement", "other", "feature", "features"),
    "deprecated": ("deprecation", "deprecations", "removal", "upgrade"),
    "removed": ("removal", "removals", "breaking", "upgrade"),
    "fixed": ("fix", "fixes", "bugfix", "bugfixes", "bug", "patch"),
    "security": ("vulnerability", "bugfix", "fixes", "fix", "fixed"),
    "documentation": ("doc", "docs"),
}
# What makes a fragment of each convention, and where a checkout may have it.
TOOLS = {
    "towncrier": ("towncrier", "create", "--no-edit"),
    "changesets": ("changeset", "add", "--empty"),
    "scriv": ("scriv", "create", "--no-edit", "--no-add"),
    "reno": ("reno", "new"),
}
INSTALLED = ("node_modules/.bin", ".venv/bin")
TOOL_LIMIT = 30.0
# How much a tool may write into one file, in blocks of 1,024 bytes.
TOOL_BLOCKS = 10_000
BUMPS = {"removed": "major", "added": "minor", "changed": "minor", "deprecated": "minor"}
BUMP_RANKS = ("patch", "minor", "major")
CHANGESET = re.compile(r"\s*---[ \t]*\n(?:(.*?)\n)?---[ \t]*(?:\n|$)(.*)", re.DOTALL)
RELEASED = re.compile(
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^'\"\s][^:]*?)[ \t]*:[ \t]+(['\"]?)(major|minor|patch|none)\2"
)
# What reStructuredText has already, a link of Markdown, and its code.
SIGNS = re.compile(
    r"``.+?``|:\w+:`[^`]+`|`[^`]+`__?|\[(?P<text>[^\]\[]+)\]\((?P<link>[^\s()]+)\)|`(?P<code>[^`]+)`"
)


def fragment_for(
    convention: Convention, entry: Entry, changed: tuple[str, ...] = ()
) -> tuple[str, bytes]:
    """The path and content of the fragment that says what an entry says.

    The same entry has the same path always, another one never. `changed` are the files that the
    worker changed: where a repository holds several packages, they tell which ones it is about.
    Raises SkillError `changelog-form-unknown` (exit 3).
    """
    changes = changes_of(entry.text, entry.name)
    if convention.end == ".rst" and entry.path.endswith(".md"):
        changes = [Change(change.title, to_rst(change.text)) for change in changes]
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", entry.name).strip("-") or "work"
    stem = f"{stem}-{entry.digest[:8]}"
    settings = convention.settings
    end = convention.end
    if convention.kind == "towncrier":
        kind = chosen(changes[0].key, settings["types"])["key"]
        name = f"{settings['orphan']}{stem}.{kind}{end}"
        content = paragraphs(changes)
    elif convention.kind == "changesets":
        name = f"{stem}.md"
        content = changeset(convention, changes, changed)
    elif convention.kind == "scriv":
        name = stem + end
        content = headed(changes, settings["categories"], end, settings["chars"][1])
    elif convention.kind == "reno":
        name = f"{stem[:-9]}-{entry.digest[:16]}.yaml"
        content = note(changes, settings["sections"])
    elif convention.kind == "folder" and end not in (".yaml", ".yml"):
        name, content = like_others(convention, changes, stem)
    else:
        raise refused(
            "changelog-form-unknown",
            f"nobody knows what a fragment in {convention.path}/ looks like",
            "let the worker write it on its branch",
        )
    return f"{convention.path}/{name}", content.encode("utf-8")


# --- By the tool itself ----------------------------------------------------------------------


def tool_of(convention: Convention, checkout: str) -> str | None:
    """Where the program is that makes a convention's fragments: on PATH, or in the checkout."""
    if convention.kind not in TOOLS:
        return None
    name = TOOLS[convention.kind][0]
    places = [name, *(f"{checkout}/{folder}/{name}" for folder in INSTALLED)]
    found = next(filter(None, map(find_program, places)), None)
    # It runs in another folder.
    return os.path.abspath(found) if found else None


def made_by_tool(
    tool: str,
    tree: Tree,
    convention: Convention,
    fragment: tuple[str, bytes],
    *,
    place: str,
    mark: str,
) -> str:
    """Let the repository's own tool make a fragment; the path that it has chosen for it.

    The tool works in `place`, a new folder, which gets its settings and the other fragments as a
    commit has them; what it prints is kept beside that. All that it starts carries the `mark`, a
    NAME=VALUE, and is ended. Raises SkillError `changelog-tool-failed`.
    """
    path, content = fragment
    folder = f"{place}/{convention.path}"
    copy_settings(tree, convention, place)
    known = set(os.listdir(folder))
    words = list(TOOLS[convention.kind][1:])
    if convention.kind == "towncrier":
        words += [f"--content={content.decode().rstrip()}", "--", os.path.basename(path)]
    elif convention.kind == "reno":
        words += ["--", os.path.splitext(os.path.basename(path))[0].rpartition("-")[0]]
    name, _, value = mark.partition("=")
    log = f"{place}.log"
    try:
        code = proctree.run_logged(
            ["bash", "-c", f'ulimit -f {TOOL_BLOCKS}; exec "$@"', "bash", tool, *words],
            cwd=place, env={**clean_environment(), name: value}, log=log, timeout=TOOL_LIMIT,
            mark=mark,
        )  # fmt: skip
    finally:
        proctree.end_tree([], mark, grace=1.0)
    try:
        made = sorted(set(os.listdir(folder)) - known)
        regular = len(made) == 1 and stat.S_ISREG(os.lstat(f"{folder}/{made[0]}").st_mode)
    except OSError as error:
        raise tool_failed(tool, f"took its folder away: {error.strerror}; see {log}") from error
    if code != 0 or not regular:
        how = "did not end" if code is None else f"ended with exit code {code}"
        raise tool_failed(tool, f"{how} and did not make one file; see {log}")
    chosen_path = f"{convention.path}/{made[0]}"
    trouble = malformed(convention, chosen_path, content)
    if trouble or not re.fullmatch(r"[\w+.,@=~ -]+", made[0], re.ASCII):
        why = trouble or "no name for a fragment"
        raise tool_failed(tool, f"named it {path_text(made[0])}: {why}")
    return chosen_path


def tool_failed(tool: str, why: str) -> SkillError:
    """A tool did not make a fragment."""
    return SkillError("changelog-tool-failed", f"`{os.path.basename(tool)}` {why}")


def copy_settings(tree: Tree, convention: Convention, place: str) -> None:
    """Write what a convention's tool reads: its settings, and the fragments that are there."""
    records.make_dir(f"{place}/{convention.path}")
    settings = {path: tree.read(path) for path in tree.LOOKED_AT if path}
    for path, content in {**settings, **tree.files(convention.path)}.items():
        if content is not None:
            records.make_dir(os.path.dirname(f"{place}/{path}"))
            with open(f"{place}/{path}", "wb") as file:
                file.write(content)


# --- Forms -----------------------------------------------------------------------------------


def chosen(key: str, types: list[dict[str, Any]]) -> dict[str, Any]:
    """The kind of fragments that fits a category best."""
    wanted = [key, *WORDS.get(key, ()), *WORDS["changed"]]
    shown = [row for row in types if row["shown"]] or types
    for word in wanted:
        for row in shown:
            if word in (key_of(row["key"]), key_of(row["title"])):
                return row
    return shown[0]


def nearest(key: str, names: list[str]) -> str:
    """The one of these names that fits a category; empty when none does."""
    for word in (key, *WORDS.get(key, ())):
        for name in names:
            if key_of(name) == word:
                return name
    return ""


def paragraphs(changes: list[Change]) -> str:
    """Items as paragraphs; those of another category than the first one say so."""
    first = changes[0].key
    texts = [
        change.text if change.key == first else f"{change.title or 'Changed'}: {change.text}"
        for change in changes
    ]
    return "\n\n".join(texts) + "\n"


def listed(changes: list[Change]) -> str:
    """Items as a list."""
    items: list[str] = []
    for change in changes:
        first, *more = change.text.split("\n")
        items.append("\n".join(["- " + first, *("  " + row if row else "" for row in more)]))
    return "\n".join(items) + "\n"


def headed(changes: list[Change], categories: list[str], end: str, underline: str) -> str:
    """Items as lists below the headings of their categories, which may have names of their own."""
    parts: dict[str, list[Change]] = {}
    for change in changes:
        title = nearest(change.key, categories) or change.title or "Changed"
        parts.setdefault(title if categories else "", []).append(change)
    texts: list[str] = []
    for title, members in parts.items():
        head = f"{title}\n{underline * max(3, len(title))}" if end == ".rst" else f"### {title}"
        # scriv drops a line that begins a comment, and all that follows.
        body = listed(members).replace("<!--", "&lt;!--") if end == ".md" else listed(members)
        texts.append(f"{head}\n\n{body}" if title else body)
    return "\n".join(texts)


def changeset(convention: Convention, changes: list[Change], changed: tuple[str, ...]) -> str:
    """The packages that a change is about, how their versions move, and what it says."""
    packages: dict[str, str] = convention.settings["packages"]
    bump = max((BUMPS.get(c.key, "patch") for c in changes), key=BUMP_RANKS.index)
    places: list[str] = []
    for path in changed:
        homes = [place for place in packages if not place or path.startswith(place + "/")]
        places += [max(homes, key=len)] if homes else []
    if not places and len(packages) == 1:
        places = list(packages)
    names = sorted({packages[place] for place in places})
    rows = [f"{json.dumps(name)}: {bump}" for name in names]
    text = "\n\n".join(change.text for change in changes)
    return "\n".join(["---", *rows, "---", "", text, ""])


def note(changes: list[Change], sections: list[str]) -> str:
    """A release note of reno: literal blocks in the sections that fit."""
    parts: dict[str, list[Change]] = {}
    for change in changes:
        name = nearest(change.key, sections) or nearest("changed", sections) or sections[-1]
        parts.setdefault(name, []).append(change)
    lines = ["---"]
    for name, members in parts.items():
        lines.append(f"{name}:")
        for change in members:
            lines.append("  - |")
            # These would end a line in YAML.
            rows = re.sub("[\x85\u2028\u2029]", " ", to_rst(change.text)).split("\n")
            lines += ["    " + row if row else "" for row in rows]
    return "\n".join(lines) + "\n"


def like_others(convention: Convention, changes: list[Change], stem: str) -> tuple[str, str]:
    """A fragment in the form of those that are there."""
    settings = convention.settings
    kind = ""
    if settings["typed"]:
        types = [{"key": name, "title": name, "shown": True} for name in settings["types"]]
        kind = "." + chosen(changes[0].key, types)["key"]
    end = convention.end
    if settings["headed"] and not kind:
        content = headed(changes, list(KNOWN), end, "-")
    elif settings["listed"]:
        content = listed(changes)
    else:
        content = paragraphs(changes)
    return f"{stem}{kind}{end}", content


# --- Is it well formed ----------------------------------------------------------------------


def malformed(convention: Convention, path: str, content: bytes) -> str:
    """Why the repository's tool would not take a fragment; empty when it would."""
    place, _, name = path.rpartition("/")
    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    settings = convention.settings
    if not convention.fragments:
        return ""
    if place != convention.path:
        if "/" in place and not place.startswith("releasenotes"):
            return ""
        return f"fragments of this repository belong into {convention.path}/"
    if convention.kind == "towncrier":
        kinds = [row["key"] for row in settings["types"]]
        if not set(name.split(".")[1:]) & set(kinds):
            return f"its name tells no kind of change: one of {', '.join(kinds)}"
    elif convention.kind in ("scriv", "changesets", "reno") and not name.endswith(convention.end):
        return f"its name does not end with {convention.end}"
    elif convention.kind == "changesets":
        return bad_changeset(text, set(settings["packages"].values()))
    elif convention.kind == "reno":
        return bad_note(text, [*settings["sections"], "prelude"])
    return ""


def bad_changeset(text: str, packages: set[str]) -> str:
    """Why changesets would not take a file; empty when it would."""
    found = CHANGESET.match(text)
    if found is None:
        return "it does not begin with the packages between two lines ---"
    for row in (found[1] or "").split("\n"):
        if not row.strip() or row.strip().startswith("#"):
            continue
        words = RELEASED.fullmatch(row.strip())
        if words is None:
            return f"{row.strip()[:80]!r} is no package with major, minor, patch or none"
        name = unquoted(words[1])
        if packages and name not in packages:
            return f"there is no package {name[:80]!r}"
    return "" if found[2].strip() else "it says nothing below the packages"


def unquoted(word: str) -> str:
    """A key of YAML without its quotes."""
    if word.startswith('"'):
        try:
            return str(json.loads(word))
        except ValueError:
            return word
    return word.strip("'")


def bad_note(text: str, sections: list[str]) -> str:
    """Why reno would not take a file; empty when it would, as far as can be told."""
    found = False
    for number, row in enumerate(text.split("\n"), 1):
        if row[:1] in ("", "#", " ") or row.rstrip() == "---":
            continue
        name, colon, _ = row.partition(":")
        if row[:1] == "-" and found:
            continue
        if not colon or not re.fullmatch(r"\w+", name):
            return f"line {number} is no section"
        if name not in sections:
            return f"{name[:80]!r} is no section; there are {', '.join(sections)}"
        found = True
    return "" if found else "it has no section"


# --- Markdown to reStructuredText -----------------------------------------------------------


def to_rst(text: str) -> str:
    """The usual signs of Markdown in reStructuredText: code, links and nested lists."""
    rows: list[str] = []
    fence = ""
    for row in text.split("\n"):
        before, fence = fence, opened(row, fence)
        depth = len(row) - len(row.lstrip())
        if not before and fence:
            language = row.strip().lstrip("`~").split(" ")[0]
            gap = [""] if rows and rows[-1] else []
            rows += [*gap, " " * depth + f".. code-block:: {language or 'text'}", ""]
        elif before and closes(row, before) and not fence:
            rows.append("")
        elif before:
            rows.append("   " + row if row.strip() else "")
        else:
            begins = MARKER.match(row) is not None
            lists = bool(rows) and MARKER.match(rows[-1]) is not None
            same = lists and len(rows[-1]) - len(rows[-1].lstrip()) == depth
            if begins and rows and rows[-1] and not same:
                rows.append("")
            rows.append(inline_rst(row))
    return "\n".join(rows).rstrip("\n")


def inline_rst(row: str) -> str:
    """One line of text."""

    def sign(found: re.Match[str]) -> str:
        if found["link"]:
            return f"`{found['text']} <{found['link']}>`__"
        return f"``{found['code']}``" if found["code"] else found[0]

    return SIGNS.sub(sign, row)
