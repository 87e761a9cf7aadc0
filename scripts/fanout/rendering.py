"""Turn a loaded plan into a runner: one file that needs nothing of this package any more."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter

from fanout import plan as plans
from fanout import records
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.runtimes import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

RUNTIMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtimes")
SHEBANGS = {"python": "#!/usr/bin/env python3", "bash": "#!/usr/bin/env bash"}
SOURCES = {"python": "loop.py", "bash": "loop.sh"}
MADE_HERE = "# A runner, rendered from a plan by render_worker_loop.py."
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
# prompts that have no placeholder. `plan_rows` has name, place, branch, folder and digest of each
# task, when they are known before a run, `plan_names` and `plan_branches` have two of them."""
FIELDS = (
    *("name", "prompt", "branch", "base", "owns", "depends", "when", "each", "setup", "verify"),
    *("agent", "changelog", "estimate", "order"),
)


class Runner(NamedTuple):
    """A rendered runner: its text, and what it was rendered from.

    `untold` are the tasks that name no file for their changelog entry, `notes` tell of what looks
    like a variable and is none.
    """

    text: str
    sha256: str
    tasks: int
    untold: list[str]
    notes: list[str]


def render(config: str, language: str, output: str) -> Runner:
    """Render the plan file `config`. Raises SkillError `invalid-plan` (exit 2)."""
    loaded = plans.load_plan(config)
    value = {**loaded.value, "sha256": loaded.sha256, "parts": parts_of(loaded.value)}
    with open(os.path.join(RUNTIMES, SOURCES[language]), encoding="utf-8") as file:
        runtime = file.read()
    head = [SHEBANGS[language], *header(value, language, config, output)]
    parts = ["\n".join(head), runtime.rstrip("\n"), data(value, language)]
    tasks: list[dict[str, Any]] = loaded.value["tasks"]
    untold = [name_of(task) for task in tasks if task["changelog"] is None]
    text = "\n\n".join(parts) + "\n"
    return Runner(text, loaded.sha256, len(tasks), untold, loaded.notes)


def header(value: dict[str, Any], language: str, config: str, output: str) -> list[str]:
    """The comment that says what a runner is and will do, every command in clear text."""
    names = [os.path.basename(os.path.abspath(path)) for path in (config, output)]
    lines = [
        f"Run: {value['run_name']}. Plan: {names[0]}, SHA-256 {value['sha256']}.",
        "It is not to be edited: change the plan and regenerate with",
        f"  render_worker_loop.py --config {loop.quoted(names[0])} --language {language} "
        f"--output {loop.quoted(names[1])}",
        "See what it would do, changing nothing: DRY_RUN=1 and this file. Help: --help.",
        "",
        "What it does, in order; {NAME} stands for a variable of the plan. A preflight or backup",
        "that fails stops the run before any worktree exists. The plan's data stands at the end.",
        "",
        *(f"variable {name} = {text!r}" for name, text in value["variables"].items()),
        f"repository {loop.fill(value['repo'], {})}, base {loop.fill(value['base'], {})}, "
        f"at most {value['max_parallel']} tasks at once, on failure: {value['on_failure']}",
        *loop.describe(value, tasks_of(value), loop.View({}, None)),
    ]
    rows = [visible(row) for line in lines for row in line.split("\n")]
    return [MADE_HERE, "#", *(f"# {row}".rstrip() for row in rows)]


def tasks_of(value: dict[str, Any]) -> list[loop.Task]:
    """The plan's tasks as they are written, none expanded."""
    root = loop.fill(value["worktree_root"], {}) or "<repository>.worktrees"
    tasks = [loop.Task(task, number, None, {}) for number, task in enumerate(value["tasks"])]
    for task in tasks:
        task.worktree = os.path.join(root, task.name)
        task.after = [tasks[number] for number in task.plan["depends_on"]]
        task.behind = [tasks[n] for n, _ in task.plan["order"] if n != task.number]
    return tasks


def parts_of(value: dict[str, Any]) -> list[str]:
    """The parts of a plan, each with a digest: a run that goes on tells by them what was changed.

    What only bounds a run, such as `max_parallel`, may change at any time and is no part.
    """
    import json

    once = [[row["base"], row["for_each"]] for row in value["tasks"]]
    rows: list[tuple[str, str, Any]] = [
        ("settings", name, value[name]) for name in ("repo", "base", "worktree_root")
    ]
    rows += [("variables", name, text) for name, text in value["variables"].items()]
    rows.append(("base-or-for_each", "-", once))
    for kind in ("preflight", "backups", "tasks", "postflight", "rollback"):
        for row in value[kind]:
            # In which order tasks run follows from all of them.
            part = {name: field for name, field in row.items() if name != "order"}
            rows.append((kind, name_of(row), part))
    return [
        f"{kind} {name} " + hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
        for kind, name, row in rows
    ]


def name_of(row: dict[str, Any]) -> str:
    """The name of a step or task as it is written, in which a variable may stand."""
    return row["name"] if isinstance(row["name"], str) else row["name"]["text"]


def visible(text: str) -> str:
    """One line of text in which no character hides or ends the line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def data(value: dict[str, Any], language: str) -> str:
    """The plan as data, and the call."""
    if language == "python":
        return (
            f"PLAN: dict[str, Any] = json.loads(r'''\n{as_json(with_usual(value))}\n''')\n\n"
            'if __name__ == "__main__":\n    sys.exit(main(PLAN, sys.argv[1:]))'
        )
    # What shellcheck takes for mistakes in words is the plan's own text.
    ignored = "# shellcheck disable=SC2016,SC1003,SC2206 # words that are data\n"
    return ignored + "{\n" + bash_data(value).rstrip("\n") + '\n}\n\nmain "$@"'


def in_lines(value: Any) -> Any:
    """The plan with each text of several lines as a list of them, so that a person can read it."""
    if loop.is_object(value):
        if isinstance(value.get("marks"), list):
            return {"text": pieces(value["text"]), "marks": value["marks"]}
        return {k: v if k == "variables" else in_lines(v) for k, v in value.items()}
    if isinstance(value, str):
        lines = pieces(value)
        return value if lines == value else {"text": lines, "marks": []}
    return list(map(in_lines, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]


def with_usual(value: dict[str, Any]) -> dict[str, Any]:
    """The plan with what most tasks have alike said once, as `usual`; each task says the rest."""
    tasks: list[dict[str, Any]] = value["tasks"]
    said = [{field: loop.encoded(part) for field, part in task.items()} for task in tasks]
    usual: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for field in tasks[0] if tasks else ():
        column = [task[field] for task in said]
        text, count = Counter(column).most_common(1)[0]
        if count > 1:
            texts[field] = text
            usual[field] = tasks[column.index(text)][field]
    rest = [
        {field: part for field, part in task.items() if texts.get(field) != own[field]}
        for task, own in zip(tasks, said, strict=True)
    ]
    return {**{k: v for k, v in value.items() if k != "tasks"}, "usual": usual, "tasks": rest}


def pieces(text: str) -> str | list[str]:
    """A text, or its lines when there are several."""
    return re.findall(r"[^\n]*\n|[^\n]+", text) if "\n" in text[:-1] else text


def as_json(value: dict[str, Any]) -> str:
    """The plan as JSON for a raw string of Python; no character hides or ends a line."""
    text = loop.to_json(in_lines(value)).replace("'''", "''\\u0027")
    lines = [
        line if line.isprintable() else "".join(c if c.isprintable() else escape(c) for c in line)
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def escape(character: str) -> str:
    """A character as JSON writes it in ASCII."""
    import json

    return json.dumps(character)[1:-1]


def write_runner(path: str, text: str) -> None:
    """Write a runner, whole or not at all, and make it executable.

    Raises SkillError `not-a-runner` (exit 3) when something else is in its place.
    """
    found = read_existing(path)
    if found is not None and MADE_HERE not in found[:200]:
        raise refused(
            "not-a-runner",
            f"will not overwrite {path!r}: it is no runner that was rendered here",
            "give another --output, or move the file away",
        )
    try:
        records.write_file(os.path.realpath(path), text.encode("utf-8"), 0o755)
    except OSError as error:
        raise usage("output-unusable", f"cannot write {path!r}: {error.strerror}") from error


def read_existing(path: str) -> str | None:
    """What stands at a path; None when nothing does."""
    try:
        if os.path.lexists(path) and not os.path.isfile(path):
            raise refused("not-a-runner", f"{path!r} is not a file", "give another --output")
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def require_same(path: str, text: str) -> str:
    """Whether the runner at a path is what would be rendered: `same` or `absent`.

    Raises SkillError `runner-differs` (exit 1).
    """
    found = read_existing(path)
    if found is None:
        return "absent"
    if found != text:
        raise SkillError(
            "runner-differs",
            f"{path!r} is not what the plan renders to",
            "render it again, after looking at what was changed in it by hand",
        )
    return "same"


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
    rows = tables.rows_of(loaded["tasks"])
    scalars["rows"] = word(" ".join(rows))
    scalars["names"] = word(" ".join(row.split(":")[0] for row in rows))
    scalars["branches"] = word(" ".join(row.split(":")[2] for row in rows))
    lines = [COLUMNS, *(f"plan_{name}={value}" for name, value in scalars.items())]
    # Names and digests: nothing that hides or ends a line.
    lines.append("plan_parts='" + "\n".join(loaded.get("parts", ())) + "'")
    lines += array("variable_name", loaded["variables"])
    lines += array("variable_value", map(word, loaded["variables"].values()))
    lines += array("text", (word(value) for value, _ in tables.texts))
    marks = {n: " ".join(marks) for n, (_, marks) in enumerate(tables.texts) if marks}
    lines += sparse("mark", {place: word(value) for place, value in marks.items()})
    lines += sparse("digest", tables.digests)
    for kind, rows in tables.rows.items():
        lines += array(kind, map(word, rows))
    for name, column in zip(FIELDS, zip(*tasks, strict=True) if tasks else (), strict=False):
        # One text that is split takes a fraction of the time of as many words.
        lines += [f"column='{' '.join(column)}'", f"task_{name}=($column)"]
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

    def rows_of(self, values: list[dict[str, Any]]) -> list[str]:
        """Name, place, branch, folder and digest of each task; none when a run has to find them."""
        made: list[str] = []
        for place, value in enumerate(values):
            name, branch, prompt = value["name"], value["branch"], self.text(value["prompt"])
            if value["for_each"] is not None or not is_plain(name) or not is_plain(branch):
                return []
            made.append(f"{name}:{place}:{branch}:{name}:{self.digests.get(prompt, NONE)}")
        return made

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


def is_plain(text: Any) -> bool:
    """Whether a text has no placeholder, and stands for itself wherever it is put."""
    return isinstance(text, str) and re.fullmatch("[A-Za-z0-9._/-]+", text) is not None


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
