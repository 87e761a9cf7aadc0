"""How a repository keeps its changelog: by a tool, in a folder of fragments, or in one file."""

from __future__ import annotations

import json
import os

from fanout import git
from fanout.errors import SkillError, refused
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeGuard

    class Source(Protocol):
        """Where files are read from: a commit, or a folder."""

        def names(self, folder: str) -> dict[str, str] | None:
            """What a folder holds, by name: `file`, `folder`, `link`, `other`; or None."""
            ...

        def read(self, path: str) -> bytes | None:
            """The content of a file; None where there is none."""
            ...


BOOK_NAME = "CHANGELOG.md"
BOOK_STEMS = ("changelog", "history", "news", "changes")
BOOK_ENDS = (".md", ".markdown", ".rst", ".txt", "")
FOLDERS = ("changelog.d", "changes", "newsfragments")
# The kinds of news that stand in a file's name where it has no other ending.
KINDS = frozenset(
    (
        *("added", "breaking", "bugfix", "change", "changed", "deprecated", "deprecation", "doc"),
        *("feature", "fixed", "improvement", "misc", "removal", "removed", "security"),
    )
)
FRAGMENT_ENDS = (".md", ".rst", ".txt", ".yaml", ".yml", "")
READ_LIMIT = 1_000_000
MODES = {b"100644": "file", b"100755": "file", b"40000": "folder", b"120000": "link"}
SAMPLES = 12
TOWNCRIER_TYPES = ("feature", "bugfix", "doc", "removal", "misc")
SCRIV_CATEGORIES = ("Removed", "Added", "Changed", "Deprecated", "Fixed", "Security")
RENO_SECTIONS = (
    *("features", "issues", "upgrade", "deprecations", "critical", "security", "fixes", "other"),
)


class Convention(NamedTuple):
    """How a repository keeps its changelog.

    `kind` is `towncrier`, `changesets`, `scriv`, `reno`, `folder` or `book`. `path` is the folder
    that fragments are put into, or the file itself, which may not be there yet. `found_in` is what
    tells so, empty where nothing does. `settings` are those of its tool that matter here.
    """

    kind: str
    path: str
    found_in: str
    settings: dict[str, Any]

    @property
    def fragments(self) -> bool:
        """Whether each change has a file of its own."""
        return self.kind != "book"

    @property
    def end(self) -> str:
        """What the name of a fragment ends with, or that of the book."""
        if self.kind == "book":
            return os.path.splitext(self.path)[1]
        return str(self.settings["end"])

    def to_json(self) -> dict[str, Any]:
        """What answers say of it."""
        return {"kind": self.kind, "path": self.path, "found_in": self.found_in}


def detect(source: Source, named: str) -> Convention:
    """The convention of what a source holds. `named` is the file that a plan names, or empty.

    Raises SkillError `changelog-config` (exit 3) when a tool's settings cannot be read.
    """
    root = source.names("") or {}
    return (
        towncrier(source, root)
        or changesets(source, root)
        or scriv(source, root)
        or reno(source, root)
        or folder(source, root)
        or book(root, named)
    )


# --- Tools ----------------------------------------------------------------------------------


def speaks_of(tool: str, content: bytes) -> bool:
    """Whether a file may hold settings of a tool: reading it as TOML would take long."""
    name = tool.encode()
    return name in content and any(
        sign in content for sign in (b"[" + name, b"tool." + name, b"[tool]", b"tool .")
    )


def towncrier(source: Source, root: dict[str, str]) -> Convention | None:
    """The settings of towncrier, which it takes from the first of two files."""
    project = ""
    for name in ("towncrier.toml", "pyproject.toml"):
        content = source.read(name) if root.get(name) == "file" else None
        if content is None or not speaks_of("towncrier", content):
            continue
        found = toml(name, content)
        table = part(found, "tool", "towncrier")
        if table is None:
            continue
        pyproject = source.read("pyproject.toml") if name != "pyproject.toml" else content
        if pyproject and not table.get("package") and not table.get("directory"):
            project = text((part(toml("pyproject.toml", pyproject), "project") or {}).get("name"))
        place = text(table.get("directory"))
        package = text(table.get("package")) or project
        behind = "" if place else "newsfragments"
        place = place or os.path.join(text(table.get("package_dir")), package)
        sections = [text(row.get("path")) for row in rows(table.get("section"))]
        section = "" if "" in sections or not sections else sections[0]
        types = towncrier_types(table)
        end = os.path.splitext(text(table.get("filename")) or "NEWS.rst")[1].casefold()
        orphan = table.get("orphan_prefix", "+")
        settings = {
            "types": types,
            "orphan": orphan if isinstance(orphan, str) else "+",
            "end": end if end in (".rst", ".md") else ".rst",
            "book": text(table.get("filename")) or "NEWS.rst",
        }
        where = inside(os.path.join(place, section, behind), name)
        return Convention("towncrier", where, name, settings)
    return None


def towncrier_types(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The kinds of fragments: what stands in a file's name, its title, and whether it is shown."""
    fragments = part(table, "fragment") or {}
    if fragments:
        options = [(key, row if is_table(row) else {}) for key, row in fragments.items()]
        return [kind_of(key, text(o.get("name")) or key, o) for key, o in options]
    if table.get("type"):
        return [
            kind_of(text(o.get("directory")) or name.lower(), name, o)
            for o in rows(table["type"])
            if (name := text(o.get("name")))
        ]
    return [kind_of(name, name, {"showcontent": name != "misc"}) for name in TOWNCRIER_TYPES]


def kind_of(key: str, title: str, options: dict[str, Any]) -> dict[str, Any]:
    """One kind of fragments."""
    return {"key": key, "title": title, "shown": options.get("showcontent", True) is not False}


def changesets(source: Source, root: dict[str, str]) -> Convention | None:
    """The settings of changesets."""
    if root.get(".changeset") != "folder":
        return None
    name = ".changeset/config.json"
    content = source.read(name)
    if content is None:
        return None
    config = parse_json(name, content)
    ignored = config.get("ignore")
    settings: dict[str, Any] = {"end": ".md", "ignore": texts(ignored), "packages": {}}
    return Convention("changesets", ".changeset", name, settings)


def scriv(source: Source, root: dict[str, str]) -> Convention | None:
    """The settings of scriv; those of a later file count more."""
    found: dict[str, Any] = {}
    where = ""
    for name in ("setup.cfg", "tox.ini", "pyproject.toml"):
        content = source.read(name) if root.get(name) == "file" else None
        if content is None or not speaks_of("scriv", content):
            continue
        if name.endswith(".toml"):
            table = part(toml(name, content), "tool", "scriv")
        else:
            table = ini(name, content)
        if table is not None:
            where = where or name
            found.update(table)
    place = text(found.get("fragment_directory")) or "changelog.d"
    name = f"{place}/scriv.ini"
    content = source.read(name) if root.get(place.split("/")[0]) == "folder" else None
    if content is not None:
        found.update(ini(name, content) or {})
        where = where or name
    if not where:
        return None
    book_name = text(found.get("changelog") or found.get("output_file"))
    form = text(found.get("format"))
    if form not in ("md", "rst"):
        form = "md" if book_name.endswith(".md") else "rst"
    categories = found.get("categories", SCRIV_CATEGORIES)
    if isinstance(categories, str):
        categories = [word.strip() for word in categories.replace("\n", ",").split(",")]
    settings = {
        "end": f".{form}",
        "categories": [word for word in texts(categories) if word],
        "chars": text(found.get("rst_header_chars")) or "=-",
        "book": book_name or f"CHANGELOG.{form}",
    }
    return Convention("scriv", inside(place, where), where, settings)


def reno(source: Source, root: dict[str, str]) -> Convention | None:
    """The settings of reno."""
    if root.get("releasenotes") != "folder" and root.get("reno.yaml") != "file":
        return None
    where = next((n for n in ("releasenotes/config.yaml", "reno.yaml") if source.read(n)), "")
    content = (source.read(where) or b"").decode("utf-8", "replace") if where else ""
    notes = yaml_value(content, "notesdir") or "notes"
    place = f"releasenotes/{notes}"
    if not where and source.names(place) is None:
        return None
    settings = {"end": ".yaml", "sections": yaml_sections(content) or list(RENO_SECTIONS)}
    return Convention("reno", inside(place, where or place), where or place, settings)


# --- Folders and files ----------------------------------------------------------------------


def folder(source: Source, root: dict[str, str]) -> Convention | None:
    """A folder of fragments that no known tool is set up for, and the form of those in it."""
    for place in FOLDERS:
        names = source.names(place) if root.get(place) == "folder" else None
        if names is None:
            continue
        files = [name for name, kind in sorted(names.items()) if kind == "file"]
        # A package of code may have such a name.
        if all(is_fragment_name(name) or is_no_fragment(name) for name in files):
            own = [name for name in files if not is_no_fragment(name)]
            return Convention("folder", place, place, form_of(source, place, own))
    return None


def form_of(source: Source, place: str, names: list[str]) -> dict[str, Any]:
    """What the fragments in a folder look like."""
    ends = [ending(name) for name in names]
    end = max(ends, key=ends.count) if ends else ".md"
    typed = [kind for name in names if (kind := kind_in(name))]
    samples = [
        (source.read(f"{place}/{name}") or b"").decode("utf-8", "replace")
        for name in names[:SAMPLES]
    ]
    heads = [s for s in samples if any(row.startswith("#") for row in s.split("\n"))]
    lists = [s for s in samples if s.lstrip().startswith(("-", "*", "#"))]
    return {
        "end": end,
        "typed": len(typed) * 2 > len(names),
        "types": sorted(set(typed)),
        "headed": len(heads) * 2 >= len(samples),
        "listed": len(lists) * 2 >= len(samples),
    }


def ending(name: str) -> str:
    """The ending of a fragment's name, when it tells how it is written."""
    end = os.path.splitext(name)[1]
    return end if end.casefold() in FRAGMENT_ENDS else ""


def kind_in(name: str) -> str:
    """The kind of news that a fragment's name tells, such as `feature` in `12.feature.md`."""
    words = name.casefold().split(".")[1:]
    return next((word for word in reversed(words) if word in KINDS), "")


def is_fragment_name(name: str) -> bool:
    """Whether a file may be a fragment, by its name."""
    end = os.path.splitext(name.casefold())[1]
    return end in FRAGMENT_ENDS or bool(kind_in(name)) or end.strip(".").isdigit()


def is_no_fragment(name: str) -> bool:
    """Whether a file in such a folder only belongs to it."""
    stem = os.path.splitext(name.casefold())[0]
    return name[0] in "._" or stem == "readme" or "template" in stem


def book(root: dict[str, str], named: str) -> Convention:
    """The file that all entries are in; what a plan names counts more than what is there."""
    if named:
        return Convention("book", named, "changelog_file", {})
    ranks: list[tuple[int, int, str]] = []
    for name, kind in root.items():
        stem, end = os.path.splitext(name.casefold())
        if stem in BOOK_STEMS and end in BOOK_ENDS and kind in ("file", "link"):
            ranks.append((BOOK_STEMS.index(stem), BOOK_ENDS.index(end), name))
    if ranks:
        name = min(ranks)[2]
        if root[name] == "link":
            raise refused(
                "changelog-config",
                f"{name} is a link, which is not followed",
                "name the file itself: `changelog_file` of a plan",
            )
        return Convention("book", name, name, {})
    return Convention("book", BOOK_NAME, "", {})


def is_book(path: str) -> bool:
    """Whether a file is a changelog by its name."""
    stem, end = os.path.splitext(os.path.basename(path).casefold())
    return stem in BOOK_STEMS and end in BOOK_ENDS


# --- Settings files -------------------------------------------------------------------------


def unreadable(name: str, why: object) -> SkillError:
    """Settings that cannot be read: then nobody knows the convention."""
    return refused("changelog-config", f"{name} cannot be read: {why}", f"mend {name}")


def toml(name: str, content: bytes) -> dict[str, Any]:
    """A TOML file."""
    import tomllib

    try:
        return tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise unreadable(name, error) from error


def ini(name: str, content: bytes) -> dict[str, Any] | None:
    """The settings of scriv in an INI file; None without any."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(content.decode("utf-8"))
    except (UnicodeDecodeError, configparser.Error) as error:
        raise unreadable(name, error) from error
    section = next((s for s in ("scriv", "tool.scriv") if parser.has_section(s)), None)
    return None if section is None else dict(parser[section])


def parse_json(name: str, content: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise unreadable(name, error) from error
    return value if is_table(value) else {}


def yaml_value(content: str, key: str) -> str:
    """A plain value at the top of a YAML file."""
    for row in content.split("\n"):
        if row.startswith(f"{key}:"):
            return row.partition(":")[2].partition(" #")[0].strip().strip("'\"")
    return ""


def yaml_sections(content: str) -> list[str]:
    """The names in reno's list of sections: each the first of a pair."""
    found: list[str] = []
    within = False
    for row in content.split("\n"):
        if row.startswith("sections:"):
            within = True
        elif within and row[:1] not in (" ", "-", "", "#"):
            break
        elif within:
            words = row.strip()
            opened = words.startswith(("- -", "- [", "-  -"))
            first = words.lstrip("-[ ").split(",")[0].split("]")[0].strip().strip("'\"")
            if opened and first:
                found.append(first)
    return found


def inside(path: str, where: str) -> str:
    """A path of settings that stays in the repository, tidied up."""
    tidy = os.path.normpath(path)
    if tidy.startswith(("/", "../")) or tidy in ("..", "."):
        raise unreadable(where, f"the folder {path!r} is not inside of the repository")
    return tidy


def part(value: dict[str, Any], *keys: str) -> dict[str, Any] | None:
    """A table within a table; None where there is none."""
    for key in keys:
        inner = value.get(key)
        if not is_table(inner):
            return None
        value = inner
    return value


def is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a table."""
    return isinstance(value, dict)


def text(value: Any) -> str:
    """A text; empty for anything else."""
    return value if isinstance(value, str) else ""


def texts(value: Any) -> list[str]:
    """The texts of a list."""
    return [word for word in items(value) if isinstance(word, str)]


def rows(value: Any) -> list[dict[str, Any]]:
    """The tables of a list."""
    return [row for row in items(value) if is_table(row)]


def items(value: Any) -> list[Any]:
    """The members of a list; none for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


# --- Where files are read from --------------------------------------------------------------


class Tree:
    """A commit. What most conventions are told by is read in one process."""

    LOOKED_AT = (
        *("towncrier.toml", "pyproject.toml", "setup.cfg", "tox.ini", "changelog.d/scriv.ini"),
        *(".changeset/config.json", "releasenotes/config.yaml", "reno.yaml", "package.json"),
        *("", "pnpm-workspace.yaml", "releasenotes/notes", *FOLDERS),
    )

    def __init__(self, repo_dir: str, commit: str, env: dict[str, str] | None) -> None:
        self.repo_dir = repo_dir
        self.env = env
        self.commit = commit
        self.known: dict[str, bytes | None] = {}
        self.fetch(list(self.LOOKED_AT))

    def fetch(self, paths: list[str]) -> None:
        """Read files and folders together."""
        names = {path: f"{self.commit}:{path}" for path in paths if path not in self.known}
        found = git.read_objects(self.repo_dir, list(names.values()), self.env)
        self.known.update({path: found[name] for path, name in names.items()})

    def names(self, folder: str) -> dict[str, str] | None:
        """What a folder holds."""
        self.fetch([folder])
        content = self.known[folder]
        if content is None or (folder and self.kind(folder) != "folder"):
            return None
        return tree_entries(content, len(self.commit) // 2)

    def read(self, path: str) -> bytes | None:
        """The content of a file; a link is not followed."""
        self.fetch([path])
        content = self.known[path]
        return content if content is not None and self.kind(path) == "file" else None

    def files(self, folder: str) -> dict[str, bytes]:
        """The files that stand in a folder, by path, all read together."""
        names = self.names(folder) or {}
        paths = [f"{folder}/{name}" for name, kind in names.items() if kind == "file"]
        self.fetch(paths)
        return {path: content for path in paths if (content := self.known[path]) is not None}

    def kind(self, path: str) -> str:
        """What stands at a path that is there."""
        outer, _, name = path.rpartition("/")
        self.fetch([outer])
        return tree_entries(self.known[outer] or b"", len(self.commit) // 2).get(name, "other")

    def below(self) -> list[str]:
        """The paths of all files."""
        words = ["ls-tree", "-r", "-z", "--name-only", self.commit]
        return git.require_git(self.repo_dir, *words, env=self.env).text.split("\0")[:-1]


class Folder:
    """A checkout."""

    def __init__(self, root: str) -> None:
        self.root = root

    def names(self, folder: str) -> dict[str, str] | None:
        """What a folder holds."""
        try:
            with os.scandir(f"{self.root}/{folder}" if folder else self.root) as entries:
                return {entry.name: kind_of_entry(entry) for entry in entries}
        except OSError:
            return None

    def read(self, path: str) -> bytes | None:
        """The beginning of a file."""
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(f"{self.root}/{path}", flags)
        except OSError:
            return None
        try:
            return os.read(descriptor, READ_LIMIT)
        except OSError:
            return None
        finally:
            os.close(descriptor)


def kind_of_entry(entry: os.DirEntry[str]) -> str:
    """What stands in a folder, links followed."""
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "other"
    except OSError:
        return "other"


def convention_in(root: str, named: str = "") -> Convention:
    """The convention of a checkout. Raises SkillError `changelog-config` (exit 3)."""
    return detect(Folder(root), named)


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


def convention_of(
    repo_dir: str, commit: str, named: str = "", env: dict[str, str] | None = None
) -> Convention:
    """The convention of a commit, by its full id. `named` is the file that a plan names.

    `env` adds to git's environment. Raises SkillError `changelog-config` (exit 3), `git-failed`.
    """
    tree = Tree(repo_dir, commit, env)
    found = detect(tree, named)
    if found.kind == "changesets":
        settings = {**found.settings, "packages": packages(tree, found.settings["ignore"])}
        return found._replace(settings=settings)
    return found


def packages(tree: Tree, ignored: list[str]) -> dict[str, str]:
    """The packages that changesets may name, by their folders (empty for the root)."""
    root = parse_json("package.json", tree.read("package.json") or b"{}")
    spaces = root.get("workspaces")
    patterns = texts(spaces.get("packages") if is_table(spaces) else spaces)
    patterns += yaml_list((tree.read("pnpm-workspace.yaml") or b"").decode("utf-8", "replace"))
    places = [""]
    if patterns:
        paths = [path for path in tree.below() if path.endswith("/package.json")]
        folders = [path.removesuffix("/package.json") for path in paths]
        places = [place for place in folders if is_member(place, patterns)]
        places += [""] if "." in patterns else []
        tree.fetch([f"{place}/package.json" for place in places if place])
    found: dict[str, str] = {}
    for place in places:
        name = f"{place}/package.json".lstrip("/")
        package = parse_json(name, tree.read(name) or b"{}")
        title = text(package.get("name"))
        if title and package.get("version") and not any(matches(title, i) for i in ignored):
            found[place] = title
    return found


def yaml_list(content: str) -> list[str]:
    """The list `packages` of a workspace's YAML file."""
    found: list[str] = []
    within = False
    for row in content.split("\n"):
        words = row.strip()
        if row.startswith("packages:"):
            within = True
        elif within and words.startswith("- "):
            found.append(words[2:].partition(" #")[0].strip().strip("'\""))
        elif within and words and not words.startswith("#"):
            break
    return found


def is_member(place: str, patterns: list[str]) -> bool:
    """Whether a folder belongs to a workspace; a later pattern that begins with `!` takes out."""
    if "node_modules" in place.split("/"):
        return False
    answer = False
    for pattern in patterns:
        if matches(place, pattern.removeprefix("!").removeprefix("./").rstrip("/")):
            answer = not pattern.startswith("!")
    return answer


def matches(word: str, pattern: str) -> bool:
    """Whether a pattern with `*` (within a folder) and `**` (across folders) fits."""
    import re

    parts = re.split(r"(\*\*/?|\*|\?)", pattern)
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.fullmatch("".join(signs.get(p, re.escape(p)) for p in parts), word) is not None
