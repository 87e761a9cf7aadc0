"""Specialise the package for one agent CLI: copy it, give it its names and defaults, report.

What is replaced are names that nothing else has: a word is a name of the package, or it is left
alone. The rest follows from the mapping alone, so that it does not matter by which way a package
came to an agent: from the original, or from the edition for another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
from shlex import quote

from fanout import frontmatter
from fanout.errors import ExitCode, SkillError, missing, refused, usage
from fanout.fields import NamedTuple
from fanout.git import git
from fanout.harness import FORM, is_untried, read_mapping, unknown_paths, value_at
from fanout.records import is_object, require_name
from fanout.worktrees import CACHE_NAMES, CACHE_SUFFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Any

EDITION = "scripts/fanout/edition.py"
REPORT = "CONVERSION_REPORT.md"
# Without these it is no package; others may have been left out by what installed it.
NEEDED = ("SKILL.md", EDITION)
# History is told in the names of its time, and the licence is not ours to edit.
KEPT = frozenset({"CHANGELOG.md", "LICENSE", "references/implementation-log.md"})
# What lies in a folder besides the package where git does not say.
ASIDE = CACHE_NAMES | {".git", ".hg", ".svn", ".venv", ".tools", ".worker-runs"}
SIZE_LIMIT = 20_000_000
# A word that can stand as it is in a shell, in Markdown and in argparse's help.
PLAIN_WORD = r"[A-Za-z0-9@+=:,./_-]{1,200}"
LABEL = r"[^\W_](?:[\w .+/()-]{0,58}[\w.)+])?"
ARGS_LIMIT = 200
# Old names may stand here: where a thing is on the web, what a room of the code is called, and the
# folder's name in a repository, which all editions share.
STAYS = r"https?://[^\s<>\"'`)\]]+|fanout/[\w/]*\.py|agent-worker-parents"
# What must be replaced at least once, or the package is not what this was written for.
EXPECTED = {
    "SKILL.md": ("skill", "helper", "agent"),
    "README.md": ("skill", "helper", "sample"),
    "Makefile": ("skill",),
    "pyproject.toml": ("skill",),
    "uv.lock": ("skill",),
}
# How a plan's agent is called where it names no mapping, and how a plan can bring a prompt.
CALL = ("args", "prompt_mode", "prompt_arg", "work_dir_arg")
PLAN_PROMPT_MODES = ("stdin", "argument", "file")
# An agent as a plan within a reference has it.
SHOWN_AGENT = r'"agent": \{ "cli": "[^"\n]*", "args": [^{}\n]*\}'
# What ends code or begins a variable for some reader of Markdown, or runs what follows it.
UNSHOWN = frozenset("`$!|")
SECTION = "## The agent of this edition"
MENTIONS = 200
UNKNOWN_SHOWN = 12
NOTE_LIMIT = 300
VALUE_LIMIT = 600
HASHES = "## Hashes (SHA-256)"
SEAL = "Of all above this line: "
WORDS = {
    "agent": "default agent",
    "constant": "constants",
    "helper": "script for workers",
    "prefix": "session prefix",
    "sample": "sample call",
    "skill": "skill's name",
}
# What a person goes through: title, what to look at, and the mapping's paths that speak of it.
CHECKLIST = (
    (
        "Interactive",
        "start one worker in tmux and watch: it takes its prompt once, works, and is seen to end.",
        (
            "interactive.args",
            "interactive.ready",
            "interactive.busy",
            "interactive.idle",
            "interactive.waiting",
            "interactive.submit_keys",
        ),
    ),
    (
        "Non-interactive",
        "run one task without a terminal; its output is whole and it ends by itself.",
        ("noninteractive.args", "noninteractive.output_args"),
    ),
    (
        "Approval bypass",
        "what it asks for by default, and what exactly the flags lift. No sample plan gives them: "
        "add them to the `args` of a plan's agent when the user has asked for that.",
        ("approval",),
    ),
    (
        "Work directory",
        "it works in its worktree alone, by a flag or by the directory it is started in.",
        ("interactive.work_dir_arg", "noninteractive.work_dir_arg"),
    ),
    (
        "Prompt delivery",
        "a prompt of many lines, one of 100,000 characters and one that begins with a dash arrive "
        "whole.",
        (
            "interactive.prompt_mode",
            "interactive.prompt_arg",
            "noninteractive.prompt_mode",
            "noninteractive.prompt_arg",
        ),
    ),
    ("Logging", "where it writes what it did, and whether that holds secrets.", ("logs",)),
    (
        "Cleanup",
        "after `stop` none of its processes is left, and it left no files in the worktree.",
        ("cleanup", "interactive.leave_keys"),
    ),
    (
        "Failure modes",
        "without network, with a wrong model, at a first start: it fails or asks, and is seen to.",
        ("interactive.dialogs", "noninteractive.zero_without_work", "network"),
    ),
    (
        "Authentication",
        "how a missing or expired login shows; no key of yours comes into a log.",
        ("auth", "environment"),
    ),
    (
        "Sandbox",
        "it can write to its worktree and commit there, and cannot write elsewhere.",
        ("sandbox",),
    ),
    ("Model", "the model that is used is the one that was asked for.", ("model",)),
    ("Resume", "after `stop` and `resume` it still knows what was said.", ("session",)),
    (
        "Exit codes",
        "what it exits with when it is done, gives up, has no login, is ended.",
        ("noninteractive.exit_codes",),
    ),
    (
        "Parallel safety",
        "four at once in four worktrees of one repository, with one home directory, all commit.",
        ("parallel",),
    ),
    (
        "Program and skills",
        "the mapping is for the installed version, and the folder lies where it is looked for.",
        ("name", "display_name", "executable", "version", "skills"),
    ),
)
PICTURE = "poster/screenshot.png"
# Its notes say what each path of a mapping means.
TEMPLATE = "examples/harness-template.json"
PART = ".part"


class Names(NamedTuple):
    """What a package is called, and the agent that it takes when none is named."""

    skill: str
    helper: str
    session_prefix: str
    agent: str
    executable: str
    agent_args: str

    @property
    def mapping(self) -> str:
        """The file of the default mapping."""
        return f"harness-{self.agent}.json"


class File(NamedTuple):
    """One file of a package; `mode` as the file system has it."""

    content: bytes
    mode: int


class Change(NamedTuple):
    """What became of one file: `action` is copied, changed, renamed or added."""

    path: str
    source: str
    action: str
    counts: dict[str, int]
    note: str

    def to_json(self) -> dict[str, Any]:
        """The change for the answer."""
        return self._asdict()


class Conversion(NamedTuple):
    """A package made for an agent, and how it differs from the one it was made of."""

    old: Names
    new: Names
    display_name: str
    mapping: dict[str, Any]
    files: dict[str, File]
    changes: list[Change]
    mentions: list[str]
    unknown: list[str]
    taken: list[str]


def convert(root: str, config: str) -> Conversion:
    """The package in `root` for the agent of the mapping `config`; nothing is written.

    Raises SkillError: `invalid-mapping`, `invalid-target`, `invalid-skill`, `unlike-the-package`
    (exit 2), `package-incomplete` (exit 4).
    """
    mapping = read_mapping(config).mapping
    sources = package_files(root)
    old = names_in(sources)
    new, display_name = names_for(mapping, old, sources)
    made, changes = rewritten(sources, old, new)
    path = f"examples/{new.mapping}"
    add(made, changes, sources, path, mapping_text(config), "the default mapping")
    for path, text, known in plans(made, mapping, new):
        add(made, changes, sources, path, text, "the agent's call" if known else "")
    skill_text = made["SKILL.md"].content.decode("utf-8")
    section = about(mapping, new, display_name)
    skill = with_agent(skill_text, new, section, display_name, earlier_label(sources, old))
    add(made, changes, sources, "SKILL.md", skill, "description and section on the agent")
    if "README.md" in made:
        readme = with_section(made["README.md"].content.decode("utf-8"), section)
        add(made, changes, sources, "README.md", readme, "section on the agent")
    made_of = Conversion(
        old=old,
        new=new,
        display_name=display_name,
        mapping=mapping,
        files=made,
        changes=sorted(changes.values()),
        mentions=mentions_of(made, old, new),
        unknown=unknown_paths(mapping),
        taken=taken_names(sources, old, new),
    )
    made[REPORT] = File(with_hashes(report(made_of), made).encode("utf-8"), 0o644)
    return made_of


# --- The package's files --------------------------------------------------------------------


def package_files(root: str) -> dict[str, File]:
    """The package's files by path: what git tracks where it is a checkout, else what lies there.

    Links are followed within the package: what is made holds files alone (S07). Raises SkillError
    `package-incomplete` (exit 4), `unlike-the-package` (exit 2).
    """
    real = os.path.realpath(root)
    found: dict[str, File] = {}
    for path in sorted(tracked(root) or walked(root)):
        if path == REPORT:
            continue
        if not path.isprintable() or "`" in path:
            raise unlike(repr(path), "has a name that cannot be told in a line")
        place = os.path.realpath(os.path.join(root, path))
        if os.path.commonpath([real, place]) != real:
            raise unlike(path, "is a link that leads out of the package")
        try:
            found[path] = read_regular(place)
        except FileNotFoundError:
            # Deleted, and that not yet committed.
            continue
        except ValueError as error:
            raise unlike(path, str(error)) from error
    for path in NEEDED:
        if path not in found:
            raise missing(
                "package-incomplete",
                f"the package in {root!r} lacks {path}",
                "take a whole copy of the skill's folder",
            )
    return found


def tracked(root: str) -> list[str]:
    """What git tracks of the package; nothing where it does not keep the package."""
    try:
        done = git(root, "ls-files", "-z", "--cached")
    except SkillError:
        return []
    listed = [path for path in done.text.split("\0") if path] if done.code == 0 else []
    return listed if set(NEEDED).issubset(listed) else []


def walked(root: str) -> Iterable[str]:
    """The files below a folder, without caches and what else is no part of a package."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if is_part(name)]
        # A link to a folder is told as what it is.
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*links, *filter(is_part, names)):
            yield os.path.relpath(os.path.join(folder, name), root)


def is_part(name: str) -> bool:
    """Whether a file or folder of this name is a part of a package."""
    return name not in ASIDE and not name.endswith(CACHE_SUFFIXES)


def read_regular(path: str) -> File:
    """A file. Raises FileNotFoundError, ValueError when it is none or too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is no file")
        if found.st_size > SIZE_LIMIT:
            raise ValueError(f"is larger than {SIZE_LIMIT} bytes")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return File(file.read(), stat.S_IMODE(found.st_mode) | 0o600)
    finally:
        os.close(descriptor)


def unlike(path: str, why: str) -> SkillError:
    """The package is not what the converter was written for."""
    return usage(
        "unlike-the-package",
        f"{path} {why}; nothing was written",
        "convert an unchanged copy, or bring this place back to the form of the original",
    )


# --- Names ----------------------------------------------------------------------------------


def names_in(sources: dict[str, File]) -> Names:
    """The names of a package, from its edition file."""
    text = text_of(sources[EDITION]) or ""
    values: list[str] = []
    for field in Names._fields:
        found = re.findall(constant(field), text)
        if len(found) != 1:
            raise unlike(EDITION, f"must set {field.upper()} once")
        values.append(found[0])
    names = Names._make(values)
    for path in (f"scripts/{names.helper}", f"examples/{names.mapping}"):
        if path not in sources:
            raise missing("package-incomplete", f"the package lacks {path}", "take a whole copy")
    return names


def constant(field: str) -> str:
    """The pattern of a line that sets a name in the edition file."""
    return rf'(?m)^{field.upper()} = "([^"\\\n]*)"$'


def names_for(mapping: dict[str, Any], old: Names, sources: dict[str, File]) -> tuple[Names, str]:
    """The names of the package for an agent, and how the agent is called in a sentence.

    Raises SkillError `invalid-target` (exit 2), which names the mapping's field.
    """
    name = mapping.get("name")
    try:
        agent = require_name(name if isinstance(name, str) else "").lower()
        skill = frontmatter.require_skill_name(f"{agent}-worktree-skill")
    except SkillError as error:
        raise target(
            "name", f"{error.message}", "take letters, digits and single hyphens"
        ) from None
    executable = mapping.get("executable")
    if not isinstance(executable, str) or re.fullmatch(PLAIN_WORD, executable) is None:
        raise target("executable", "must be a plain word here", "name the program as on PATH")
    label = mapping.get("display_name")
    label = name if label is None else label
    if not isinstance(label, str) or re.fullmatch(LABEL, label) is None or "--" in label:
        raise target(
            "display_name",
            "must be a short label in one line",
            "at most 60 letters, digits, spaces and . _ - + / ( )",
        )
    helper = f"{agent.replace('-', '_')}_workers.py"
    if helper != old.helper and f"scripts/{helper}" in sources:
        raise target("name", f"{name!r} would put {helper} in the place of another command", "")
    if f"examples/harness-{agent}.json" == TEMPLATE:
        raise target("name", f"{name!r} would put the mapping in the template's place", "")
    words = words_of(value_at(mapping, "approval.bypass_args"))
    args = " ".join(words)
    if not all(re.fullmatch(PLAIN_WORD, word) for word in words) or len(args) > ARGS_LIMIT:
        args = ""
    return Names(skill, helper, f"{agent}-worker-", agent, executable, args), label


def target(field: str, why: str, hint: str) -> SkillError:
    """A mapping for which no package can be made."""
    return usage("invalid-target", f"the mapping's {field}: {why}", hint)


def earlier_label(sources: dict[str, File], old: Names) -> str:
    """How the package's own default agent is called in a sentence."""
    label = mapping_in(sources[f"examples/{old.mapping}"]).get("display_name")
    return label if isinstance(label, str) else old.agent


def mapping_in(file: File) -> dict[str, Any]:
    """A mapping that lies in the package; empty for what is none."""
    try:
        value = json.loads(file.content)
    except ValueError:
        return {}
    return value if is_object(value) else {}


def words_of(value: Any) -> list[str]:
    """Arguments as a mapping gives them: none, one, or a list."""
    words: list[Any] = [value] if isinstance(value, str) else value or []
    return [word for word in words if isinstance(word, str)]


# --- Rewriting ------------------------------------------------------------------------------


def rewritten(
    sources: dict[str, File], old: Names, new: Names
) -> tuple[dict[str, File], dict[str, Change]]:
    """The files under their new names with the package's names replaced."""
    made: dict[str, File] = {}
    changes: dict[str, Change] = {}
    for source, file in sources.items():
        path = f"scripts/{new.helper}" if source == f"scripts/{old.helper}" else source
        text, counts = text_of(file), dict[str, int]()
        if text is not None and source == EDITION:
            text, counts = edition_text(text, new), {"constant": len(Names._fields)}
        elif text is not None and source not in KEPT:
            text, counts = replaced(source, text, old, new)
        for name in EXPECTED.get(source, ()):
            if not counts.get(name):
                raise unlike(source, f"does not name the {name} as it should")
        content = file.content if text is None else text.encode("utf-8")
        made[path] = File(content, file.mode)
        action = "renamed" if path != source else "changed" if content != file.content else "copied"
        changes[path] = Change(path, source, action, counts if action != "copied" else {}, "")
    return made, changes


def text_of(file: File) -> str | None:
    """The text of a file, with LF alone and no byte order mark; None for one that is no text."""
    if b"\0" in file.content:
        return None
    try:
        return frontmatter.plain_lines(file.content)
    except UnicodeDecodeError:
        return None


def edition_text(text: str, new: Names) -> str:
    """The edition file with other names."""
    for field, value in new._asdict().items():
        line = f'{field.upper()} = "{value}"'
        text = re.sub(constant(field), lambda _, line=line: line, text)
    return text


def replaced(path: str, text: str, old: Names, new: Names) -> tuple[str, dict[str, int]]:
    """A text with the package's names replaced in one pass, and how often each was."""
    room = path.partition("/")[0]
    patterns = name_patterns(old)
    values = {"skill": new.skill, "helper": new.helper}
    if room != "scripts":
        values["prefix"] = new.session_prefix
    if room not in ("scripts", "tests"):
        values |= {"sample": "", "agent": f"--agent-cli {new.executable}"}
    chosen = "|".join(f"(?P<{name}>{patterns[name]})" for name in patterns if name in values)
    counts: dict[str, int] = {}

    def value(found: re.Match[str]) -> str:
        name = found.lastgroup
        if name is None or name == "stays":
            return found.group()
        counts[name] = counts.get(name, 0) + 1
        if name == "sample":
            mark = found["mark"]
            return f"--agent-cli {new.executable} --agent-args {mark}{new.agent_args}{mark}"
        return values[name]

    if path.endswith(".md"):
        # Who holds an edition has it already, and there is none to be cloned under its name.
        text = re.sub(rf"(?m)^git clone \S+/{re.escape(old.skill)}(?:\.git)?\n", "", text)
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if re.search(r"\bdefault\b", line) and not line.startswith("|"):
                lines[number] = re.sub(
                    rf"(?<![\w-]){re.escape(old.mapping)}(?!\w)", new.mapping, line
                )
        text = "\n".join(lines)
    words = (old.skill, old.helper, old.session_prefix, old.executable)
    if any(word in text for word in words):
        text = re.sub(f"(?P<stays>{STAYS})|{chosen}", value, text)
    return text, counts


def name_patterns(names: Names) -> dict[str, str]:
    """What stands for each name of a package; the longer ones come first."""
    cli = rf"(?<![\w-])--agent-cli {re.escape(names.executable)}(?![\w-])"
    args = re.escape(names.agent_args)
    return {
        "sample": rf'{cli} --agent-args (?P<mark>"|&quot;){args}(?P=mark)',
        "agent": cli,
        "skill": rf"(?<![\w-]){re.escape(names.skill)}(?![\w-])",
        "helper": rf"(?<![\w.-]){re.escape(names.helper)}(?!\w)",
        "prefix": rf"(?<![\w-]){re.escape(names.session_prefix)}",
    }


def taken_names(sources: dict[str, File], old: Names, new: Names) -> list[str]:
    """Where a new name stood before the conversion: a later one would take it for the package's."""
    before, after = name_patterns(old), name_patterns(new)
    names = [name for name in ("skill", "helper", "prefix") if after[name] != before[name]]
    pattern = "|".join(after[name] for name in names)
    return places(sources, pattern, (new.skill, new.helper, new.session_prefix)) if names else []


def mentions_of(files: dict[str, File], old: Names, new: Names) -> list[str]:
    """Where texts still name the earlier default agent, as `path:line`."""
    if old.agent == new.agent:
        return []
    texts = {
        path: file
        for path, file in files.items()
        if path.partition("/")[0] not in ("scripts", "tests")
        and not path.endswith((".json", ".lock"))
    }
    named = rf"(?i)(?<![\w-])(?<!--agent-cli ){re.escape(old.agent)}(?![\w-])"
    return places(texts, named, ())


def places(files: dict[str, File], pattern: str, words: tuple[str, ...]) -> list[str]:
    """The lines where a pattern matches, as `path:line`; only where one of `words` stands."""
    found: dict[str, None] = {}
    for path, file in sorted(files.items()):
        text = None if path in KEPT else text_of(file)
        if text is None or (words and not any(word in text for word in words)):
            continue
        for match in re.finditer(pattern, text):
            found[f"{path}:{text.count(chr(10), 0, match.start()) + 1}"] = None
    return list(found)


def add(
    made: dict[str, File],
    changes: dict[str, Change],
    sources: dict[str, File],
    path: str,
    text: str,
    note: str,
) -> None:
    """Put another text in a file's place, or a file where there was none."""
    content = text.encode("utf-8")
    before = made.get(path)
    earlier = changes.get(path) or Change(path, path, "added", {}, "")
    made[path] = File(content, before.mode if before else 0o644)
    source = sources.get(earlier.source)
    action = "added" if source is None else "copied" if source.content == content else "changed"
    if earlier.action == "renamed":
        action = "renamed"
    changes[path] = earlier._replace(action=action, note=note if action != "copied" else "")


def mapping_text(config: str) -> str:
    """A mapping's file as it stands, with LF alone."""
    with open(config, "rb") as file:
        return frontmatter.plain_lines(file.read(SIZE_LIMIT))


# --- Plans ----------------------------------------------------------------------------------


def plans(
    made: dict[str, File], mapping: dict[str, Any], new: Names
) -> Iterable[tuple[str, str, bool]]:
    """The sample plans and the one in the reference; whether they call the agent now.

    Where the mapping does not know how the agent is called without a person, they stay.
    """
    words = words_of(value_at(mapping, "noninteractive.args"))
    known = value_at(mapping, "noninteractive.args") is not None and (
        value_at(mapping, "noninteractive.prompt_mode") in PLAN_PROMPT_MODES
    )
    # A run takes up no conversation.
    known = known and not any("{session_id}" in word for word in words)
    for path, file in sorted(made.items()):
        text = text_of(file) or ""
        if re.fullmatch(r"examples/[^/]+\.json", path) and not path.startswith("examples/harness-"):
            alone = value_at(mapping, "parallel.safe") is False
            changed = plan_text(path, text, new, alone=alone)
            if changed is not None:
                yield path, changed if known else text, known
        elif path.startswith("references/") and re.search(SHOWN_AGENT, text):
            # What stands for a value is filled in from a mapping alone.
            plain = known and not any("{" in word for word in words)
            block = f'"agent": {{ {json.dumps(shown_call(mapping, new))[1:-1]} }}'
            yield path, block.join(re.split(SHOWN_AGENT, text)) if plain else text, plain


def plan_text(path: str, text: str, new: Names, *, alone: bool) -> str | None:
    """A sample plan that calls another agent, by its mapping; None for what is no plan.

    With `alone` it runs one task at a time. All else stays as it is written.
    """
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise unlike(path, f"is not valid JSON: {error}") from error
    if not is_object(plan) or "tasks" not in plan:
        return None
    text, count = re.subn(r'"AGENT": "[^"\\\n]*"', f'"AGENT": {json.dumps(new.executable)}', text)
    start = re.search(r'(?m)^  "agent": (?=\{)', text)
    if start is None or count != 1:
        raise unlike(path, "must hold one variable AGENT, and an `agent` indented by two spaces")
    agent: dict[str, Any]
    agent, end = json.JSONDecoder().raw_decode(text, start.end())
    others = {key: value for key, value in agent.items() if key not in ("cli", "harness", *CALL)}
    fields = {"cli": "{AGENT}", "harness": new.mapping, **others}
    rows = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
    text = text[: start.end()] + "{\n" + ",\n".join(rows) + "\n  }" + text[end:]
    return re.sub(r'(?m)^(  "max_parallel": )\d+', r"\g<1>1", text) if alone else text


def shown_call(mapping: dict[str, Any], new: Names) -> dict[str, Any]:
    """How a plan calls the agent when it names no mapping."""
    call: dict[str, Any] = {"cli": new.executable}
    for key in CALL:
        value = value_at(mapping, f"noninteractive.{key}")
        if value or key == "args":
            call[key] = words_of(value) if key == "args" else value
    return call


# --- What is said of the agent --------------------------------------------------------------


def with_agent(text: str, new: Names, section: str, label: str, earlier: str) -> str:
    """A SKILL.md for an agent: its description, and a section of what the mapping knows.

    Raises SkillError `invalid-skill`, `unlike-the-package` (exit 2).
    """
    skill = frontmatter.parse_skill(text)
    description = frontmatter.value_of(skill, "description").removesuffix(default_sentence(earlier))
    skill = frontmatter.with_value(skill, "description", description + default_sentence(label))
    frontmatter.require_valid(skill)
    if frontmatter.value_of(skill, "name") != new.skill:
        raise unlike("SKILL.md", "does not have the package's name")
    text = skill._replace(body=with_section(skill.body, section)).text
    if re.search(r"\$[0-9]|\$ARGUMENTS|!`", text):
        raise unlike("SKILL.md", "holds what some agents replace or run: $1, $ARGUMENTS or !`")
    return text


def default_sentence(label: str) -> str:
    """What the description says of the default agent."""
    return f" Workers are {label} by default."


def with_section(text: str, section: str) -> str:
    """A Markdown text with the section on the agent before its second heading of that level."""
    places = headings(text)
    lines = text.split("\n")
    if lines and SECTION in lines:
        start = lines.index(SECTION)
        end = next((place for place in places if place > start), len(lines))
        del lines[start:end]
        return with_section("\n".join(lines), section)
    block = [*section.split("\n"), ""]
    if len(places) > 1:
        lines[places[1] : places[1]] = block
    else:
        lines += ["", *block[:-1]] if lines[-1] else block
    return "\n".join(lines)


def headings(text: str) -> list[int]:
    """The numbers of the lines that are headings of the second level, outside of code blocks."""
    found: list[int] = []
    fence = ""
    for number, line in enumerate(text.split("\n")):
        mark = re.match(r" *(`{3,}|~{3,})", line)
        if fence:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif mark:
            fence = mark[1]
        elif line.startswith("## "):
            found.append(number)
    return found


def about(mapping: dict[str, Any], new: Names, label: str) -> str:
    """The section on the agent: what a parent agent has to know before it starts one."""

    def known(path: str) -> Any:
        return value_at(mapping, path)

    checked = "which nobody has checked with an installed version"
    if known("version.verified"):
        how = "drafted, and not tried, from the help of" if is_untried(mapping) else "checked with"
        checked = f"{how} version {prose(known('version.verified'), 60)}"
        if known("version.on"):
            checked += f" on {prose(known('version.on'), 20)}"
    bypass, sandbox, safe = (
        known(path) for path in ("approval.bypass_args", "sandbox.args", "parallel.safe")
    )
    lifted = f"{code(bypass)} lifts them: give it when the user has asked for that, not otherwise."
    idle = "it can exit 0 and have done nothing."
    together = {True: "safe.", False: "not safe: one at a time."}
    facts = {
        "In tmux": [called(mapping, "interactive", new)],
        "Without a person": [called(mapping, "noninteractive", new)],
        "Approvals": [
            sentence(known("approval.default")),
            lifted if bypass else "",
            sentence(known("approval.note")),
        ],
        "Sandbox": [f"{code(sandbox)}." if sandbox else "", sentence(known("sandbox.note"))],
        "Exit codes": [idle if known("noninteractive.zero_without_work") is True else ""],
        "Several at once": [
            together.get(safe, "not known: begin with one."),
            sentence(known("parallel.note")),
        ],
    }
    rows = [
        f"Without `--agent-cli` and `--harness` a worker is `{new.executable}` ({label}), driven "
        f"as `examples/{new.mapping}` says, {checked}.",
        "",
    ]
    for name, parts in facts.items():
        if any(parts):
            rows.append(f"- {name}: {' '.join(filter(None, parts))}")
    unknown = [f"`{path}`" for path in unknown_paths(mapping)]
    if unknown:
        more = len(unknown) - UNKNOWN_SHOWN
        listed = ", ".join(unknown[:UNKNOWN_SHOWN]) + (f" and {more} more" if more > 0 else "")
        rows.append(f"- Not known: {listed}. What needs one of them says so.")
    return "\n".join((SECTION, "", *rows))


def called(mapping: dict[str, Any], section: str, new: Names) -> str:
    """How the agent is started, and how it gets its prompt; empty when that is not known."""
    args = value_at(mapping, f"{section}.args")
    mode = value_at(mapping, f"{section}.prompt_mode")
    if args is None and mode is None:
        return ""
    ways = {
        "argument": "the prompt is an argument",
        "paste": "the prompt is pasted",
        "stdin": "the prompt comes on stdin",
        "file": "the prompt comes in a file",
        "none": "it takes no prompt",
    }
    argument = value_at(mapping, f"{section}.prompt_arg")
    way = ways.get(str(mode), "how it takes a prompt is not known")
    flag = f" after {code(argument)}" if argument and mode in ("argument", "file") else ""
    return f"{code([new.executable, *words_of(args)])}; {way}{flag}."


def code(value: Any) -> str:
    """Arguments as one would type them, where all of them would be read as text there."""
    typed = " ".join(map(quote, words_of(value)))
    if typed.isprintable() and len(typed) <= ARGS_LIMIT and not UNSHOWN.intersection(typed):
        return f"`{typed}`"
    return "what the mapping holds"


def sentence(text: Any) -> str:
    """A note as a sentence; empty for none."""
    said = prose(text, NOTE_LIMIT) if text else ""
    return said + ("" if not said or said[-1] in ".!?" else ".")


def prose(text: Any, limit: int) -> str:
    """Somebody's text within a line of Markdown: it opens no code, link, tag or variable."""
    plain = "".join(letter if letter.isprintable() else " " for letter in str(text))
    line = " ".join(plain.split())
    if len(line) > limit:
        line = line[: limit - 3].rstrip() + "..."
    line = line.replace("\\", "\\\\").replace("`", "'").replace("$", "&#36;")
    return re.sub(r"([\[\]<>|])", r"\\\1", line)


# --- The report -----------------------------------------------------------------------------


def report(made: Conversion) -> str:
    """The report of a conversion, up to its hashes."""
    old, new, mapping = made.old, made.new, made.mapping
    rows = [
        "# Conversion report",
        "",
        f"`{new.skill}`: the edition of this skill for {made.display_name}. "
        "`scripts/convert_harness.py` has made it of the mapping that is now "
        f"`examples/{new.mapping}`. It was written, not tried: work through the checklist with the "
        "installed program before anybody uses it or publishes it.",
        "",
        "## Names",
        "",
        "| what | was | is |",
        "|---|---|---|",
    ]
    rows += [
        f"| {what} | {shown(was)} | {shown(now)} |"
        for what, was, now in (
            ("skill", old.skill, new.skill),
            ("script for workers", f"scripts/{old.helper}", f"scripts/{new.helper}"),
            ("prefix of tmux sessions", old.session_prefix, new.session_prefix),
            ("default mapping", f"examples/{old.mapping}", f"examples/{new.mapping}"),
            ("default program", old.executable, new.executable),
            ("arguments in examples", old.agent_args, new.agent_args),
        )
    ]
    rows += ["", "## What was changed where", "", "| file | what |", "|---|---|"]
    rows += [
        f"| {cell(change.path)} | {what_changed(change)} |"
        for change in made.changes
        if change.action != "copied"
    ]
    copied = sum(change.action == "copied" for change in made.changes)
    kept = ", ".join(f"`{path}`" for path in sorted(KEPT) if path in made.files)
    rows += ["", f"{copied} files are copied as they are. History stays as it was told: {kept}."]
    pictures = [path for path, file in sorted(made.files.items()) if text_of(file) is None]
    if pictures:
        listed = ", ".join(f"`{path}`" for path in pictures)
        rows += ["", f"These are no texts and may show the earlier names: {listed}."]
        if PICTURE in pictures:
            rows[-1] += " `make poster` takes the poster's picture again."
    if made.mentions:
        rows += ["", f"Lines that still name {shown(old.agent)}; many are meant to:", ""]
        rows += listing(made.mentions)
    if made.taken:
        rows += [
            "",
            "Lines that held one of the new names before; a later conversion takes them",
            "",
        ]
        rows[-2] += " for the package's own:"
        rows += listing(made.taken)
    rows += ["", "## What was verified, and how", ""]
    rows += verification(mapping)
    rows += ["", "## Checklist", ""]
    rows += checklist(mapping, made.unknown, meanings_in(made.files))
    rows += [
        "",
        "## Next",
        "",
        "1. `make test` in this folder, then the checklist, with one worker first.",
        f"2. `python3 scripts/convert_harness.py --check --config examples/{new.mapping}` now and "
        "whenever the program was updated.",
        "3. What was found out belongs into the mapping; then convert again from the original.",
    ]
    return "\n".join(rows) + "\n"


def what_changed(change: Change) -> str:
    """A change in words."""
    parts = [
        f"{change.action}, was {cell(change.source)}"
        if change.action == "renamed"
        else change.action
    ]
    parts += [f"{WORDS[name]} {count}x" for name, count in sorted(change.counts.items())]
    return "; ".join([*parts, change.note] if change.note else parts)


def cell(path: str) -> str:
    """A path in a table."""
    return "`" + path.replace("|", "\\|") + "`"


def listing(places: list[str]) -> list[str]:
    """Places as a list, up to a limit."""
    rows = [f"- `{place}`" for place in places[:MENTIONS]]
    more = len(places) - MENTIONS
    return [*rows, f"- and {more} more"] if more > 0 else rows


def verification(mapping: dict[str, Any]) -> list[str]:
    """What the mapping says of the version it was checked with, and its evidence."""
    version, day = value_at(mapping, "version.verified"), value_at(mapping, "version.on")
    checked = "Drafted, and not tried, from the help of" if is_untried(mapping) else "Checked with"
    rows = [
        f"{checked} version {shown(version)}" + (f" on {shown(day)}." if day else ".")
        if version
        else "No version is named: take nothing below for verified."
    ]
    notes = mapping.get("notes")
    if is_object(notes) and notes:
        rows.append("")
        rows += [f"- {shown(path)}: {shown(note)}" for path, note in notes.items()]
    return rows


def checklist(mapping: dict[str, Any], unknown: list[str], meanings: dict[str, str]) -> list[str]:
    """What a person goes through; each `null` of the mapping is a question."""
    rows: list[str] = []
    for title, what, prefixes in CHECKLIST:
        paths = [path for path in FORM if path != "notes" and belongs(path, prefixes)]
        rows.append(f"- [ ] **{title}**: {what}")
        rows += [
            f"  - `{path}` is not known: what is it? {prose(meanings.get(path, ''), NOTE_LIMIT)}"
            if path in unknown
            else f"  - `{path}`: {shown(value_at(mapping, path))}"
            for path in paths
        ]
    return rows


def meanings_in(files: dict[str, File]) -> dict[str, str]:
    """What each path of a mapping means, as the package's template says it."""
    notes = mapping_in(files[TEMPLATE]).get("notes") if TEMPLATE in files else None
    return {path: str(note) for path, note in notes.items()} if is_object(notes) else {}


def belongs(path: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a path of a mapping is one of these, or below one."""
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def shown(value: Any) -> str:
    """A value as JSON in a code span that nothing in it can end."""
    text = json.dumps(value).replace("\x7f", "\\u007f").replace("|", "\\u007c")
    if len(text) > VALUE_LIMIT:
        text = text[: VALUE_LIMIT - 3] + "..."
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def with_hashes(text: str, files: dict[str, File]) -> str:
    """The report with the hash of each file, and at its end one of the report itself."""
    rows = [f"{sha256(file.content)}  {path}" for path, file in sorted(files.items())]
    text += "\n".join(["", HASHES, "", "```", *rows, "```", "", SEAL])
    return text + sha256(text.encode("utf-8")) + "\n"


def sha256(content: bytes) -> str:
    """The SHA-256 of a content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


# --- The output folder ----------------------------------------------------------------------


def require_output(root: str, output: str) -> str:
    """The absolute path of the folder to write, and that it may be written; changes nothing.

    Raises SkillError: `output-unusable` (exit 2); `output-inside` when one of the two folders lies
    in the other, `output-not-ours` when it holds what no conversion wrote, `output-edited` when
    what one wrote was edited since (exit 3).
    """
    if not output or "\0" in output:
        raise usage("output-unusable", f"{output!r} is no path", "give --output-dir DIR")
    folder = os.path.abspath(output)
    package, real = os.path.realpath(root), os.path.realpath(folder)
    if os.path.commonpath([package, real]) in (package, real):
        raise refused(
            "output-inside",
            f"{folder!r} and the package in {package!r} lie one in the other",
            "give a folder outside of the package",
        )
    if os.path.islink(folder):
        raise not_ours(folder, folder, "is a symbolic link")
    if os.path.lexists(folder):
        require_ours(folder)
    return folder


def write(conversion: Conversion, folder: str) -> bool:
    """Put the package into its folder, at once; False when just this stood there already.

    The package is written beside the folder and moved into its place; an earlier conversion is
    moved aside, looked at once more there, and dropped. A call that was killed is finished by the
    next one. Nothing is synced: after a power cut a half-written package counts as edited. Raises
    SkillError as `require_output`, and `busy` (exit 11).
    """
    made, before = beside(folder, "converting"), beside(folder, "replaced")
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
    except OSError as error:
        raise unusable(folder, error) from error
    with locked(made, folder):
        try:
            if os.path.lexists(before):
                if os.path.lexists(folder):
                    drop(before)
                else:
                    bring_back(before, folder)
            if holds(folder, conversion):
                drop(made)
                return False
            empty(made)
            fill(made, conversion.files)
            if os.path.lexists(folder):
                os.rename(folder, before)
                require_still_ours(before, folder)
            os.rename(made, folder)
        except BaseException:
            # A folder that cannot be taken back now is known by its report the next time.
            with contextlib.suppress(OSError, SkillError):
                if os.path.lexists(before) and not os.path.lexists(folder):
                    bring_back(before, folder)
            with contextlib.suppress(OSError, SkillError):
                drop(made)
            raise
        if os.path.lexists(before):
            try:
                drop(before)
            except (OSError, SkillError) as error:
                raise SkillError(
                    "left-over",
                    f"{folder!r} is written, but what it replaces is still in {before!r}: {error}",
                    "look what is in there, and delete it by hand",
                ) from error
    return True


def bring_back(before: str, folder: str) -> None:
    """Move an earlier conversion back that a call had moved aside, edited or not.

    Raises SkillError `output-not-ours` for what only has its name.
    """
    if os.path.islink(before) or not os.path.isdir(before):
        raise not_ours(folder, before, "is no folder")
    if os.listdir(before) and not os.path.lexists(os.path.join(before, REPORT)):
        raise not_ours(folder, before, "was not written by a conversion")
    os.rename(before, folder)


def holds(folder: str, conversion: Conversion) -> bool:
    """Whether just this package stands in a folder already. Raises SkillError as `write` does."""
    if not os.path.lexists(folder):
        return False
    files = conversion.files
    wanted = {path: sha256(file.content) for path, file in files.items()}
    # A mode that was changed is no edit: nothing is lost when it is put right.
    return require_ours(folder) == wanted and all(
        stat.S_IMODE(os.lstat(os.path.join(folder, path)).st_mode) == file.mode
        for path, file in files.items()
    )


def beside(folder: str, what: str) -> str:
    """A folder of ours in the same place, on the same disk."""
    return os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.{what}")


@contextlib.contextmanager
def locked(made: str, folder: str) -> Generator[None, None, None]:
    """Hold the folder that is being filled, made if need be; the kernel frees it with us."""
    for _ in range(10):
        try:
            os.mkdir(made)
        except FileExistsError:
            pass
        except OSError as error:
            raise unusable(folder, error) from error
        try:
            descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise not_ours(folder, made, "is no folder") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(held, os.stat(made, follow_symlinks=False)):
                    yield
                    return
        except BlockingIOError:
            break
        finally:
            os.close(descriptor)
    raise SkillError(
        "busy",
        f"another conversion is writing {folder!r}",
        "wait for it to end, then run this again",
        exit_code=ExitCode.BUSY,
    )


def fill(made: str, files: dict[str, File]) -> None:
    """Write the package; its report comes first, so that every later state is known for ours."""
    part = os.path.join(made, PART)
    for path in (REPORT, *(path for path in sorted(files) if path != REPORT)):
        place = os.path.join(made, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(files[path].content)
            # Whatever the caller's umask is.
            os.fchmod(descriptor, files[path].mode)
        os.rename(part, place)


def require_ours(folder: str, *, whole: bool = True) -> dict[str, str]:
    """The hash of each file of a folder that a conversion wrote and nobody has edited.

    An empty folder is as good. With `whole=False` it is one of ours that was being filled or
    emptied: files may be missing, and there may be folders that hold nothing. A folder of somebody
    else may be huge: names are looked at before contents.
    """
    if not os.path.isdir(folder) or os.path.islink(folder):
        raise not_ours(folder, folder, "is no folder")
    reported = os.path.lexists(os.path.join(folder, REPORT))
    listed = {**hashes_in(folder), REPORT: ""} if reported else {}
    found: dict[str, str] = {}
    for path in everything(folder, hollow=whole):
        if path == PART and not whole:
            continue
        if path not in listed:
            raise not_ours(folder, path, "was not written by a conversion")
        found[path] = ""
    for path in found:
        found[path] = hash_of(os.path.join(folder, path))
        # The report vouches for itself, if it is a file.
        if not found[path] or (path != REPORT and found[path] != listed[path]):
            raise edited(folder, path, "was edited since")
    for path in sorted(listed):
        if whole and path not in found:
            raise edited(folder, path, "is missing")
    return found


def everything(folder: str, *, hollow: bool) -> Iterable[str]:
    """All that lies below a folder, of its folders only links and, with `hollow`, empty ones."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted((*names, *links)):
            yield os.path.relpath(os.path.join(place, name), folder)
        if hollow and not folders and not names and place != folder:
            yield os.path.relpath(place, folder)


def hash_of(path: str) -> str:
    """A file's hash; empty for what is no file, which no conversion writes."""
    if os.path.islink(path) or not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes_in(folder: str) -> dict[str, str]:
    """The hash of each file as a folder's report tells it. Raises SkillError `output-edited`."""
    try:
        content = read_regular(os.path.join(folder, REPORT)).content
        text = content.decode("utf-8")
    except (OSError, ValueError):
        raise edited(folder, REPORT, "is no report") from None
    body, _, seal = text.rpartition(SEAL)
    if seal != sha256((body + SEAL).encode("utf-8")) + "\n":
        raise edited(folder, REPORT, "was edited since")
    rows = re.findall(r"(?m)^([0-9a-f]{64})  (.+)$", body.rpartition(HASHES)[2])
    return {path: digest for digest, path in rows}


def require_still_ours(before: str, folder: str) -> None:
    """Look once more at what was moved aside; it goes back when something has come into it."""
    try:
        require_ours(before)
    except SkillError:
        os.rename(before, folder)
        raise


def empty(folder: str) -> None:
    """Delete what a killed conversion left in its folder, the report last."""
    found = require_ours(folder, whole=False)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, PART))
    for path in (*(path for path in sorted(found) if path != REPORT), REPORT):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, path))
    places = [place for place, _, _ in os.walk(folder, topdown=False) if place != folder]
    for place in places:
        os.rmdir(place)


def drop(folder: str) -> None:
    """Delete a folder of ours. What has come into it meanwhile stops that."""
    empty(folder)
    os.rmdir(folder)


def unusable(folder: str, error: OSError) -> SkillError:
    """A folder that cannot be made where it was asked for."""
    return usage(
        "output-unusable",
        f"cannot write {folder!r}: {error.strerror}",
        "give another --output-dir, in a folder that you may write to",
    )


def not_ours(folder: str, path: str, why: str) -> SkillError:
    """A folder that holds what no conversion wrote."""
    return refused(
        "output-not-ours",
        f"will not write to {folder!r}: {path!r} {why}",
        "give another --output-dir, or move that away",
    )


def edited(folder: str, path: str, why: str) -> SkillError:
    """An earlier conversion in which somebody has worked."""
    return refused(
        "output-edited",
        f"will not replace the conversion in {folder!r}: {path!r} {why}",
        "give another --output-dir, or move that folder away",
    )
