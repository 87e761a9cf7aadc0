"""Turn a loaded plan into a runner: one file that needs nothing of this package any more."""

from __future__ import annotations

import os
import re

from fanout import plan as plans
from fanout import records
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.runtimes import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNTIMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtimes")
SHEBANGS = {"python": "#!/usr/bin/env python3", "bash": "#!/usr/bin/env bash"}
SOURCES = {"python": "loop.py", "bash": "loop.sh"}
MADE_HERE = "# A runner, rendered from a plan by render_worker_loop.py."


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
    import hashlib
    import json

    settings = {name: value[name] for name in ("repo", "base", "worktree_root", "variables")}
    once = [[row["base"], row["for_each"]] for row in value["tasks"]]
    rows: list[tuple[str, str, Any]] = [("settings", "-", settings)]
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
            f"PLAN: dict[str, Any] = json.loads(r'''\n{as_json(value)}\n''')\n\n"
            'if __name__ == "__main__":\n    sys.exit(main(PLAN, sys.argv[1:]))'
        )
    from fanout.bash_data import bash_data

    # What shellcheck takes for mistakes in words is the plan's own text.
    ignored = "# shellcheck disable=SC2016,SC1003 # words that are data\n"
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
