"""A loaded plan as data for the Bash runtime: quoted words in plain indexed arrays."""

from __future__ import annotations

import hashlib
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Control characters but newline and tab, and those that change the direction of what is shown.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
NONE = "-"
COLUMNS = """\
# The plan as data. Texts stand in `text`; what `mark` says of a text are its placeholders in
# order: how each is put in, and its name. All else are rows of words; a number is the place of a
# text, a command, a condition or an agent, a list has commas, "-" is nothing:
# command    name, kind, words, when, milliseconds, seconds, artifact, check
# agent      cli, work_dir_arg, args, prompt_mode, prompt_arg, log_name, milliseconds, seconds,
#            env (NAME:text), commit_leftovers, allow_no_change, rerun_interrupted,
#            zero_without_work, exit_codes (CODE:text), needs, hide
# Of a task each field stands in a list of its own: task_name and so on. `digest` has the SHA-256 of
# prompts that have no placeholder."""
FIELDS = (
    *("name", "prompt", "branch", "base", "owns", "depends", "when", "each", "setup", "verify"),
    *("agent", "changelog", "estimate", "order"),
)


def bash_data(loaded: dict[str, Any]) -> str:
    """The loaded plan as assignments for the Bash runtime."""
    tables = Tables()
    scalars = {
        "sha256": word(loaded.get("sha256", "")),
        "run_name": word(loaded["run_name"]),
        "repo": str(tables.text(loaded["repo"])),
        "base": str(tables.text(loaded["base"])),
        "worktree_root": str(tables.text(loaded["worktree_root"])),
        "max_parallel": str(loaded["max_parallel"]),
        "one_at_once": str(int(loaded["one_at_once"])),
        "on_failure": word(loaded["on_failure"]),
        "changelog_file": tables.optional(loaded["changelog_file"]),
        "setup_minutes": number(loaded["setup_minutes"]),
        "pinned": word(" ".join(loaded["pinned"])),
    }
    for kind in ("checks", "preflight", "backups", "postflight", "rollback"):
        scalars[kind] = tables.commands(loaded[kind])
    tasks = [tables.task(row) for row in loaded["tasks"]]
    lines = [COLUMNS, *(f"plan_{name}={value}" for name, value in scalars.items())]
    lines += array("plan_part", map(word, loaded.get("parts", ())))
    lines += array("variable_name", loaded["variables"])
    lines += array("variable_value", map(word, loaded["variables"].values()))
    lines += array("text", (word(value) for value, _ in tables.texts))
    marks = {n: " ".join(marks) for n, (_, marks) in enumerate(tables.texts) if marks}
    lines += sparse("mark", {place: word(value) for place, value in marks.items()})
    lines += sparse("digest", tables.digests)
    for kind, rows in tables.rows.items():
        lines += array(kind, map(word, rows))
    for name, column in zip(FIELDS, zip(*tasks, strict=True) if tasks else (), strict=False):
        # A linter takes commas for a mistake.
        words = (word(value) if "," in value else value for value in column)
        lines.append(f"task_{name}=({' '.join(words)})")
    return "\n".join(lines) + "\n"


def array(name: str, words: Iterable[str]) -> list[str]:
    """The lines of an array, a word on each."""
    return sparse(name, dict(enumerate(words)))


def sparse(name: str, words: dict[int, str]) -> list[str]:
    """The lines of an array of which some places are empty.

    The place is said of each: a word that looks like `[place]=text` is none then.
    """
    return [f"{name}=(", *(f"[{place}]={value}" for place, value in words.items()), ")"]


class Tables:
    """What is collected of a plan: each text, command, condition and agent once, by its place."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, tuple[str, ...]], int] = {}
        self.digests: dict[int, str] = {}
        self.rows: dict[str, dict[str, int]] = {"command": {}, "condition": {}, "agent": {}}

    def add(self, kind: str, *fields: str) -> int:
        """The place of a row; equal rows share one."""
        row = " ".join(fields)
        return self.rows[kind].setdefault(row, len(self.rows[kind]))

    def text(self, value: Any) -> int:
        """The place of a text."""
        plain = isinstance(value, str)
        key = (value, ()) if plain else (value["text"], tuple(value["marks"]))
        return self.texts.setdefault(key, len(self.texts))

    def optional(self, value: Any) -> str:
        """The place of a text that may be missing."""
        return NONE if value is None else str(self.text(value))

    def some(self, values: list[Any]) -> str:
        """The places of texts."""
        return listed([self.text(value) for value in values])

    def command(self, value: dict[str, Any]) -> int:
        """The place of a command."""
        shell = value["shell"] is not None
        return self.add(
            "command",
            value["name"],
            "shell" if shell else "argv",
            self.some([value["shell"]] if shell else value["argv"]),
            self.condition(value["when"]),
            *limit(value["timeout_seconds"]),
            self.optional(value["artifact"]),
            NONE if value["check"] is None else str(self.command(value["check"])),
        )

    def commands(self, values: list[dict[str, Any]]) -> str:
        """The places of commands."""
        return listed([self.command(value) for value in values])

    def condition(self, value: dict[str, Any] | None) -> str:
        """The place of a condition that may be missing."""
        if value is None:
            return NONE
        for kind in ("all", "any"):
            if kind in value:
                return str(self.add("condition", kind, *map(self.condition, value[kind])))
        if "not" in value:
            return str(self.add("condition", "not", self.condition(value["not"])))
        if "command" in value:
            return str(self.add("condition", "command", str(self.command(value["command"]))))
        if "path_exists" in value:
            return str(self.add("condition", "path", str(self.text(value["path_exists"]))))
        if "backup_passed" in value:
            return str(self.add("condition", "backup", value["backup_passed"]))
        equals = [str(self.text(value["equals"]))] if "equals" in value else []
        return str(self.add("condition", "env", value["env"], *equals))

    def agent(self, value: dict[str, Any]) -> int:
        """The place of an agent."""
        env = [f"{name}:{self.text(text)}" for name, text in value["env"].items()]
        return self.add(
            "agent",
            str(self.text(value["cli"])),
            str(self.text(value["work_dir_arg"])),
            self.some(value["args"]),
            value["prompt_mode"],
            str(self.text(value["prompt_arg"])),
            str(self.text(value["log_name"])),
            *limit(value["timeout_seconds"]),
            ",".join(env) or NONE,
            str(int(value["commit_leftovers"])),
            str(int(value["allow_no_change"])),
            str(int(value["rerun_interrupted"])),
            str(int(value["zero_without_work"])),
            ",".join(f"{c}:{self.text(t)}" for c, t in value["exit_codes"].items()) or NONE,
            ",".join(value["needs"]) or NONE,
            ",".join(value["hide"]) or NONE,
        )

    def prompt(self, value: Any) -> int:
        """The place of a prompt."""
        place = self.text(value)
        if isinstance(value, str) and place not in self.digests:
            self.digests[place] = hashlib.sha256(value.encode("utf-8")).hexdigest()
        return place

    def task(self, value: dict[str, Any]) -> tuple[str, ...]:
        """The fields of a task."""
        each = value["for_each"]
        if each is None:
            source = NONE
        elif "items" in each:
            source = "items:" + self.some(each["items"])
        elif "file" in each:
            source = f"file:{self.text(each['file'])}"
        else:
            source = f"run:{self.command(each['run'])}"
        return (
            str(self.text(value["name"])),
            str(self.prompt(value["prompt"])),
            str(self.text(value["branch"])),
            str(self.text(value["base"])),
            self.some(value["owns"]),
            listed(value["depends_on"]),
            self.condition(value["when"]),
            source,
            self.commands(value["setup"]),
            self.commands(value["verify"]),
            str(self.agent(value["agent"])),
            self.optional(value["changelog"]),
            number(value["estimate_minutes"]),
            ",".join(f"{before}:{kind}" for before, kind in value["order"]) or NONE,
        )


def listed(places: list[int]) -> str:
    """Places as one word."""
    return ",".join(map(str, places)) or NONE


def limit(seconds: float) -> tuple[str, str]:
    """A time limit: milliseconds, and the seconds as they are shown."""
    return str(max(1, round(seconds * 1000))), f"{seconds:g}"


def number(value: float | None) -> str:
    """A number as JSON writes it."""
    return NONE if value is None else repr(value)


def word(text: str) -> str:
    """A text as one word of Bash, each of its lines on a line that begins with a quote.

    Characters that do not show are written as bytes.
    """
    return "$'\\n'\\\n".join(map(line_word, text.split("\n")))


def line_word(text: str) -> str:
    """A text without newlines as one word of Bash."""
    if HIDDEN.search(text) is None:
        return "'" + text.replace("'", "'\\''") + "'"
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + HIDDEN.sub(octal, text) + "'"


def octal(match: re.Match[str]) -> str:
    """A character as octal escapes of its UTF-8 bytes."""
    return "".join(f"\\{byte:03o}" for byte in match[0].encode("utf-8"))
