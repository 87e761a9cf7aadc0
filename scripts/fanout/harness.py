"""A mapping says how to drive one agent CLI: load it, check it, build an argument list."""

from __future__ import annotations

import json
import os
import re

from fanout.errors import SkillError, missing, usage
from fanout.fields import NamedTuple
from fanout.process import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard

SKILL_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_MAPPING = os.path.join(SKILL_ROOT, "examples", "harness-kimi.json")

PROMPT_MODES = ("argument", "paste", "file", "none")
# One argument may hold 32 pages, the closing NUL included (Linux: MAX_ARG_STRLEN).
ARGUMENT_LIMIT = 131_071
SIZE_LIMIT = 1_000_000
PATTERN_LIMIT = 500
TITLE = "title:"
# What agents put before and after a line that they repeat.
MARKERS = " >|\u2502\u2503\u276f\u203a\u2026.*-+"

SECTIONS: dict[str, tuple[str, ...]] = {
    "interactive": (
        "args",
        "prompt_mode",
        "prompt_arg",
        "ready",
        "busy",
        "idle",
        "waiting",
        "submit_keys",
        "leave_keys",
    ),
    "session": ("new_args", "resume_args"),
}
TOP_LEVEL = frozenset(
    [
        "name",
        "display_name",
        "executable",
        "version",
        "interactive",
        "noninteractive",
        "session",
        "approval",
        "sandbox",
        "model",
        "network",
        "auth",
        "environment",
        "parallel",
        "logs",
        "cleanup",
        "skills",
        "notes",
    ]
)

# What a program asks before it takes a task, in the words that agent CLIs use. A mapping's own
# `waiting` patterns come first; these catch a dialog that its author did not meet. The words begin
# a row, after a frame, a marker or a number: within a sentence they are somebody's prose. A pattern
# is looked for only where one of the words before it stands: most screens show none of them.
ROW_START = r"(?i)^[^\w\n]*(?:\d{1,2}[.)\]] *)?"
COMMON_DIALOGS = (
    (
        "trust dialog",
        ("trust",),
        ROW_START
        + r"(?:do you trust\b"
        + r"|(?:yes, )?(?:i )?trust (?:this|the) (?:folder|files|directory|workspace))",
    ),
    (
        "login dialog",
        ("log", "sign", "api key"),
        ROW_START
        + r"(?:(?:please )?(?:log|sign) ?in (?:to|with) |(?:please )?(?:enter|paste) your api key)",
    ),
    (
        "permission dialog",
        ("allow", "would you like", "do you want"),
        ROW_START
        + r"(?:(?:yes, )?allow (?:this|command|once)\b|allow execution of\b|would you like to run\b"
        + r"|do you want to (?:proceed|create|run|allow)\b)",
    ),
)
# A question may end any row, so only the last rows count: those above them were answered.
YES_NO = r"(?i)[\[(](?:y/n|yes/no)[\])]\W*$"
YES_NO_ROWS = 6
# A dialog is looked for below the input prompt, else in the last rows that hold something: one that
# was answered may stay on the screen above what the program draws below it.
LIVE_ROWS = 20
# A piece of a row ends where a frame or another column begins.
COLUMN_END = r"\s{2,}|[\u2500-\u259f]|\n|$"


class Rules(NamedTuple):
    """Patterns for one look of the screen.

    Each is a regular expression, searched in the visible text; with the prefix `title:`, in the
    pane's title.
    """

    patterns: tuple[str, ...]

    def match(self, text: str, title: str, said: str = "") -> str | None:
        """What matched, or None. Text that repeats `said` (see `is_echo`) does not count."""
        for pattern in self.patterns:
            if pattern.startswith(TITLE):
                found = compiled(pattern).search(title)
            else:
                # No pattern matches an empty text, and to compile one costs more than to search.
                found = search(pattern, text, said) if text else None
            if found is not None:
                return found.group().strip() or pattern
        return None

    def lowest(self, text: str) -> int:
        """Where the lowest match on a screen begins; -1 without one."""
        patterns = [pattern for pattern in self.patterns if not pattern.startswith(TITLE)]
        found = [m.start() for p in patterns for m in compiled(p).finditer(text)]
        return max(found, default=-1)


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern as it is searched; a title is one line.

    Raises SkillError `invalid-mapping` (exit 2): one from a record was checked long ago.
    """
    try:
        return re.compile(pattern.removeprefix(TITLE), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise usage("invalid-mapping", f"{pattern!r} is no regular expression: {error}") from error


def search(pattern: str, text: str, said: str) -> re.Match[str] | None:
    """The first place on a screen that matches and does not only repeat what the agent was told."""
    found = compiled(pattern).finditer(text)
    return next((place for place in found if not is_echo(place, said)), None)


def is_echo(place: re.Match[str], said: str) -> bool:
    """Whether a piece of the screen repeats a prompt: an input line or a transcript shows it.

    It does when the prompt holds the matched words with the rest of their row.
    """
    if not said:
        return False
    rest = place.string[place.end() :]
    end = re.search(COLUMN_END, rest)
    row = place.group() + (rest[: end.start()] if end else rest)
    words = re.sub(r"\s+", " ", row).strip(MARKERS)
    return words in re.sub(r"\s+", " ", said)


class Harness(NamedTuple):
    """How to drive one agent CLI interactively. `mapping` is what it was loaded from."""

    name: str
    executable: str
    args: tuple[str, ...]
    prompt_mode: str
    prompt_arg: str
    ready: Rules
    busy: Rules
    idle: Rules
    waiting: Rules
    submit_keys: tuple[str, ...]
    leave_keys: tuple[str, ...]
    new_args: tuple[str, ...]
    resume_args: tuple[str, ...]
    mapping: dict[str, Any]


def load_harness(mapping_file: str | None, agent_cli: str | None) -> Harness:
    """The harness that the options name.

    A mapping file wins; else an example whose executable has the base name of `agent_cli`; else
    a generic one. Without both it is the sample mapping, Kimi CLI.
    """
    if mapping_file is not None:
        harness = read_mapping(mapping_file)
    elif agent_cli is None:
        harness = read_mapping(DEFAULT_MAPPING)
    else:
        harness = example_for(agent_cli) or parse_mapping(
            {"name": os.path.basename(agent_cli), "executable": agent_cli}, "--agent-cli"
        )
    return harness if agent_cli is None else harness._replace(executable=agent_cli)


def example_for(agent_cli: str) -> Harness | None:
    """The bundled mapping for a program, by its base name."""
    folder = os.path.dirname(DEFAULT_MAPPING)
    wanted = os.path.basename(agent_cli)
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if entry.startswith("harness-") and entry.endswith(".json"):
            harness = read_mapping(os.path.join(folder, entry))
            if os.path.basename(harness.executable) == wanted:
                return harness
    return None


def read_mapping(path: str) -> Harness:
    """Read a mapping file. Raises SkillError `invalid-mapping` (exit 2) with the JSON path."""
    try:
        with open(path, "rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise usage("invalid-mapping", f"cannot read the mapping {path!r}: {error}") from error
    if len(content) > SIZE_LIMIT:
        raise usage("invalid-mapping", f"the mapping {path!r} is larger than {SIZE_LIMIT} bytes")
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise usage(
            "invalid-mapping", f"the mapping {path!r} is not valid JSON: {error}"
        ) from error
    return parse_mapping(value, path)


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is text that can be an argument or a file's content."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def parse_mapping(value: Any, source: str, *, recorded: bool = False) -> Harness:
    """Check a mapping's value. Raises SkillError `invalid-mapping` (exit 2).

    The keys and patterns of one that was recorded were looked at before: compiling takes long, and
    an agent that was started by an earlier version must not be out of reach.
    """

    def wrong(where: str, expected: str) -> SkillError:
        return usage("invalid-mapping", f"the mapping {source!r}: {where} must be {expected}")

    def text(section: dict[str, Any], where: str, key: str, default: str | None = None) -> str:
        found = section.get(key)
        if found is None and default is not None:
            return default
        if not is_text(found):
            raise wrong(where + key, "a string")
        return found

    def texts(section: dict[str, Any], where: str, key: str) -> tuple[str, ...]:
        found: Any = section.get(key)
        if found is None:
            return ()
        words: list[Any] = [found] if isinstance(found, str) else found
        if not isinstance(words, list):
            raise wrong(where + key, "a string or a list of strings")
        for number, word in enumerate(words):
            if not is_text(word):
                place = f"{where}{key}" if words is not found else f"{where}{key}[{number}]"
                raise wrong(place, "a string without NUL that is valid Unicode")
        return tuple(words)

    def rules(key: str) -> Rules:
        patterns = texts(interactive, "interactive.", key)
        single = isinstance(interactive.get(key), str)
        for number, pattern in enumerate(patterns):
            where = f"interactive.{key}" if single else f"interactive.{key}[{number}]"
            if len(pattern) > PATTERN_LIMIT:
                raise wrong(where, f"a pattern of at most {PATTERN_LIMIT} characters")
            if recorded:
                continue
            try:
                found = compiled(pattern).search("")
            except SkillError as error:
                raise wrong(where, f"a regular expression; {error.message}") from error
            if found is not None:
                raise wrong(where, f"a pattern that needs some text to match, unlike {pattern!r}")
        return Rules(patterns)

    def section(name: str) -> dict[str, Any]:
        found: Any = value.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise wrong(name, "an object")
        known = SECTIONS[name]
        for key in found:  # pyright: ignore[reportUnknownVariableType]
            if key not in known and not recorded:
                raise wrong(f"{name}.{key}", f"one of {', '.join(known)}")
        return found  # pyright: ignore[reportUnknownVariableType]

    if not isinstance(value, dict):
        raise wrong("the whole", "an object")
    for key in value:  # pyright: ignore[reportUnknownVariableType]
        if key not in TOP_LEVEL and not recorded:
            raise wrong(str(key), f"one of {', '.join(sorted(TOP_LEVEL))}")  # pyright: ignore[reportUnknownArgumentType]
    interactive = section("interactive")
    session = section("session")
    mode = text(interactive, "interactive.", "prompt_mode", "paste")
    if mode not in PROMPT_MODES:
        raise wrong("interactive.prompt_mode", f"one of {', '.join(PROMPT_MODES)}")
    executable = text(value, "", "executable")  # pyright: ignore[reportUnknownArgumentType]
    if not executable:
        raise wrong("executable", "a non-empty string")
    return Harness(
        name=text(value, "", "name"),  # pyright: ignore[reportUnknownArgumentType]
        executable=executable,
        args=texts(interactive, "interactive.", "args"),
        prompt_mode=mode,
        prompt_arg=text(interactive, "interactive.", "prompt_arg", ""),
        ready=rules("ready"),
        busy=rules("busy"),
        idle=rules("idle"),
        waiting=rules("waiting"),
        submit_keys=texts(interactive, "interactive.", "submit_keys") or ("Enter",),
        leave_keys=texts(interactive, "interactive.", "leave_keys"),
        new_args=texts(session, "session.", "new_args"),
        resume_args=texts(session, "session.", "resume_args"),
        mapping=value,  # pyright: ignore[reportUnknownArgumentType]
    )


def dialog_on_screen(harness: Harness, text: str, title: str, said: str = "") -> str | None:
    """The name of the question that the screen asks, or None.

    `said` are the prompts that the agent was given: where the screen only repeats them, it asks
    nothing.
    """
    if not text.strip():
        return harness.waiting.match("", title)
    below = harness.ready.lowest(text)
    if below >= 0:
        text = text[below:]
    else:
        text = "\n".join([row for row in text.split("\n") if row.strip()][-LIVE_ROWS:])
    found = harness.waiting.match(text, title, said)
    if found is not None:
        return common_dialog(text, said) or found
    if below >= 0 or harness.ready.match("", title) is not None:
        return None
    return common_dialog(text, said)


def common_dialog(text: str, said: str = "") -> str | None:
    """The name of a dialog that many agent CLIs show, or None."""
    folded = text.casefold()
    for name, words, pattern in COMMON_DIALOGS:
        if any(word in folded for word in words) and search(pattern, text, said) is not None:
            return name
    if "y/n" not in folded and "yes/no" not in folded:
        return None
    last = [row.rstrip() for row in text.split("\n") if row.strip()][-YES_NO_ROWS:]
    flat = re.sub(r"\s+", " ", said)
    for row in last:
        words = re.sub(r"\s+", " ", row).strip(MARKERS)
        if re.search(YES_NO, row) is not None and words not in flat:
            return "yes/no question"
    return None


def require_executable(executable: str) -> str:
    """The absolute path of an agent's program. Raises SkillError `agent-missing` (exit 4)."""
    found = find_program(executable) if executable and "\0" not in executable else None
    if found is None:
        raise missing(
            "agent-missing",
            f"the agent program {executable[:200]!r} is not on PATH or cannot be run",
            "install it, or name another with --agent-cli EXE or --harness MAPPING",
        )
    return os.path.abspath(found)


def agent_argv(
    harness: Harness,
    executable: str,
    extra: list[str],
    *,
    mode: str,
    prompt_arg: str,
    prompt: str,
    prompt_file: str,
    session_args: tuple[str, ...],
    placeholders: dict[str, str],
) -> list[str]:
    """The agent's argument list.

    The prompt stands before the user's own arguments, where an option that takes any number of
    values cannot swallow it; after `--` it stands last. Raises SkillError `prompt-unfit` (exit 2)
    for a prompt that cannot be one argument.
    """
    fixed = [fill(word, placeholders) for word in (*harness.args, *session_args)]
    if mode == "argument":
        value = require_argument(prompt, prompt_arg)
    elif mode == "file":
        value = prompt_file
    else:
        return [executable, *fixed, *extra]
    if prompt_arg == "--":
        return [executable, *fixed, *extra, "--", value]
    if prompt_arg.endswith("="):
        return [executable, *fixed, prompt_arg + value, *extra]
    return [executable, *fixed, *([prompt_arg] if prompt_arg else []), value, *extra]


def require_argument(prompt: str, prompt_arg: str) -> str:
    """A prompt that reaches the program whole as one argument."""
    if len(os.fsencode(prompt)) + len(os.fsencode(prompt_arg)) > ARGUMENT_LIMIT:
        raise usage(
            "prompt-unfit",
            f"the prompt is longer than one argument may be ({ARGUMENT_LIMIT} bytes)",
            "use --prompt-mode file or paste",
        )
    if prompt.startswith("-") and prompt_arg != "--" and not prompt_arg.endswith("="):
        raise usage(
            "prompt-unfit",
            "the prompt begins with '-' and would be read as an option",
            "use --prompt-arg -- or --FLAG= if the agent knows them, or another --prompt-mode",
        )
    return prompt


def fill(word: str, placeholders: dict[str, str]) -> str:
    """A mapping's word with its placeholders replaced, each once, in one pass."""
    names = "|".join(placeholders)
    return re.sub(r"\{(" + names + r")\}", lambda found: placeholders[found.group(1)], word)
