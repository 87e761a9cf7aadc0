"""The command `plan_workers.py`: its parser, and what each verb answers."""

from __future__ import annotations

import argparse
import os
import time

from fanout.cli.common import Frame, Parser, command_line, glue_values, run_command, warn
from fanout.errors import ExitCode, SkillError, refused, usage
from fanout.output import Answer, next_action, plain_text, reader_gone, write_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROG = "plan_workers.py"
VERBS = {
    "check": ("say whether a plan is valid and should be parallel", "check plan.json"),
    "draft": (
        "turn a list of tasks into a plan to be filled in",
        "draft --tasks tasks.md --output plan.json",
    ),
    "explain": ("say what a plan means for one task", "explain plan.json parser"),
    "overlap": ("show which files live workers have both changed", "overlap --watch"),
}
OTHERS = frozenset(["--repo", "--base", "--tasks", "--output"])
EXAMPLES = """examples:
  plan_workers.py check examples/code-fan-out.json
  plan_workers.py draft --tasks tasks.md --output plan.json
  plan_workers.py overlap

"""
SHOWN = 20


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    return run_command(PROG, glue_values(argv, frozenset(), OTHERS), FRAME.parse, dispatch, VERBS)


def add_options(verb: str, parser: Parser) -> None:
    """The options of one verb."""
    parser.add_argument(
        "--repo", default=".", metavar="DIR", help="where the plan's `repo` counts from"
    )
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    if verb in ("check", "explain"):
        parser.add_argument("plan", metavar="PLAN", help="the plan, a JSON file")
    if verb == "explain":
        parser.add_argument("task", metavar="TASK", help="a task's name")
    if verb in ("check", "explain", "draft"):
        parser.add_argument(
            "--base", metavar="REF", help="look at the files of this commit (default: the plan's)"
        )
    if verb == "draft":
        parser.add_argument(
            "--tasks",
            required=True,
            metavar="FILE",
            help="Markdown with a heading for each task, or a JSON list",
        )
        parser.add_argument("--output", metavar="PLAN", help="the plan to write (default: print)")
    if verb == "overlap":
        parser.add_argument("names", nargs="*", metavar="NAME", help="default: all workers")
        parser.add_argument(
            "--watch", action="store_true", help="print a line for each change until interrupted"
        )


FRAME = Frame(
    PROG,
    "Check a plan: is it valid, should it be parallel, who owns which files, in which order?",
    EXAMPLES,
    VERBS,
    add_options,
)


def dispatch(options: argparse.Namespace) -> Answer:
    """Run the verb."""
    verbs = {"check": check, "draft": draft, "explain": explain, "overlap": overlap}
    return verbs[options.verb](options)


# --- check ----------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> Answer:
    """`check`: the verdict, with all that it rests on."""
    from fanout import judging

    try:
        data = judging.judge(options.plan, options.repo, options.base)
    except SkillError as error:
        if error.code == "invalid-plan":
            rows = error.data.get("errors", [])
            text = "\n".join(f"{row['path'] or 'the plan'}: {row['message']}" for row in rows)
            return Answer("check", text, error.data, error.exit_code, error)
        raise
    code = ExitCode.DONE if data["verdict"] == "go" else ExitCode.BLOCKED
    return Answer("check", verdict_text(data), {"valid": True, **data}, code)


def verdict_text(data: dict[str, Any]) -> str:
    """The answer of `check` for a person."""
    lines = [f"verdict: {data['verdict']}"]
    lines += listed("because", data["reasons"])
    lines.append(f"valid: yes; {len(data['tasks'])} tasks, {data['files']} files at the base")
    lines.append("waves:")
    for number, wave in enumerate(data["waves"], 1):
        more = f" and {len(wave) - SHOWN} more" if len(wave) > SHOWN else ""
        lines.append(f"  {number}. {', '.join(wave[:SHOWN])}{more}")
    lines.append("who owns what:")
    for task in data["tasks"][:SHOWN]:
        owns = f"{', '.join(task['owns'])} ({task['files']} files)"
        lines.append(f"  {task['name']}: {owns if task['owns'] else 'everything (no `owns`)'}")
        waits = [*task["depends_on"], *(row["task"] for row in task["not_beside"])]
        if waits:
            lines.append(f"    after {', '.join(dict.fromkeys(waits))}")
    if len(data["tasks"]) > SHOWN:
        lines.append(f"  and {len(data['tasks']) - SHOWN} more")
    lines += listed("overlaps", [overlap_text(row) for row in data["overlaps"]])
    lines += listed("seams", [seam_text(row) for row in data["seams"]])
    lines += listed(
        "imports",
        [
            f"{row['files'][0][0]} ({row['task']}) imports {row['files'][0][1]}"
            f" ({row['imports_from']})"
            for row in data["couplings"]
        ],
    )
    lines.append("worth it:")
    lines += [f"  {row}" for row in data["estimate"]["working"]]
    lines += listed("notes", data["notes"])
    return joined(lines)


def joined(lines: list[str]) -> str:
    """Lines as one text; a line break in a path stays within its line."""
    return plain_text("\n".join(line.replace("\n", "\\n") for line in lines))


def listed(title: str, rows: list[str]) -> list[str]:
    """Lines below a title; none where there are no rows."""
    if not rows:
        return []
    more = [f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return [f"{title}:", *(f"  {row}" for row in rows[:SHOWN]), *more]


def overlap_text(row: dict[str, Any]) -> str:
    """One overlap in a line."""
    paths = ", ".join(row["paths"][:3]) + (", ..." if len(row["paths"]) > 3 else "")
    what = paths if row["count"] else f"{paths} (not there yet)"
    what = what if row["paths"] else "it takes too long to tell which"
    return f"{row['a']} and {row['b']}: {what}; kept apart by {row['ordered_by']}"


def seam_text(row: dict[str, Any]) -> str:
    """One seam in a line."""
    tasks = ", ".join(f"{task['name']} ({task['why']})" for task in row["tasks"])
    return f"{row['path']}, {row['kind']}: {tasks}; ways out: " + "; ".join(
        way["way"] for way in row["ways"]
    )


# --- explain --------------------------------------------------------------------------------


def explain(options: argparse.Namespace) -> Answer:
    """`explain`: what a plan means for one task."""
    from fanout import judging

    data = judging.judge(options.plan, options.repo, options.base)
    names = [task["name"] for task in data["tasks"]]
    name = options.task
    if name not in names:
        raise judging.unknown_task(name, names)
    (task,) = [task for task in data["tasks"] if task["name"] == name]
    units = {name, *judging.instances_of(options.plan, name)}
    waves = [number for number, wave in enumerate(data["waves"], 1) if units & {*wave}]
    beside = [
        other for number in waves for other in data["waves"][number - 1] if other not in units
    ]
    found: dict[str, Any] = {
        **task,
        "waves": waves,
        "beside": beside,
        "overlaps": [row for row in data["overlaps"] if name in (row["a"], row["b"])],
        "seams": [r for r in data["seams"] if name in [each["name"] for each in r["tasks"]]],
        "couplings": [r for r in data["couplings"] if name in (r["task"], r["imports_from"])],
    }
    lines = [f"{name}: wave {', '.join(map(str, waves))} of {len(data['waves'])}"]
    lines += listed("owns", task["owns"] or ["everything: it has no `owns`"])
    lines += listed(f"files at the base ({task['files']})", task["paths"])
    lines += listed("waits for", [f"{other} (depends_on)" for other in task["depends_on"]] + [
        f"{row['task']} (both own {row['example']})" for row in task["not_beside"]
    ])  # fmt: skip
    lines += listed("may run beside", beside)
    lines += listed("overlaps", [overlap_text(row) for row in found["overlaps"]])
    lines += listed("seams", [seam_text(row) for row in found["seams"]])
    lines += listed("imports", [
        f"{row['task']} imports from {row['imports_from']}: {row['files'][0][0]},"
        f" {row['files'][0][1]}"
        for row in found["couplings"]
    ])  # fmt: skip
    return Answer("explain", joined(lines), found)


# --- draft ----------------------------------------------------------------------------------


def draft(options: argparse.Namespace) -> Answer:
    """`draft`: a plan from a list of tasks, with the places that a person must fill in."""
    import json

    from fanout import judging, records
    from fanout import plan as plans

    what = f"the tasks {options.tasks!r}"
    content = plans.read_file(options.tasks, plans.PROMPT_LIMIT, what)
    try:
        wishes = judging.read_wishes(content.decode("utf-8"), what)
    except UnicodeDecodeError as error:
        raise usage("invalid-tasks", f"{what} is not UTF-8: {error}") from error
    path = os.path.abspath(options.output) if options.output else ""
    if path and os.path.lexists(path):
        raise refused("output-exists", f"{path!r} is there already", "give another --output")
    if path and not os.path.isdir(os.path.dirname(path)):
        raise usage("no-folder", f"there is no folder {os.path.dirname(path)!r}", "make it first")
    _, tree = judging.snapshot({"repo": ".", "base": "HEAD", "variables": {}}, options.repo,
                               options.base)  # fmt: skip
    stem = os.path.splitext(os.path.basename(path or options.tasks))[0]
    made = judging.draft(wishes, tree.blobs, judging.run_name(stem))
    text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    # It is a plan that loads, or the list of tasks is told what is wrong with it.
    loaded = plans.Reader(path or "the draft", text.encode("utf-8", "surrogatepass")).load()
    seen = judging.Judgement(loaded, made, options.repo, options.base).answer()
    todo = [{"path": where, "text": said} for where, said in judging.to_fill(made, "")]
    data = {"plan": made, "output": path or None, "to_fill": todo, "seams": seen["seams"],
            "overlaps": seen["overlaps"]}  # fmt: skip
    actions: tuple[dict[str, Any], ...] = ()
    if path:
        records.write_file(path, text.encode("utf-8"), 0o644)
        repo = judging.git.open_repository(options.repo)
        command = command_line(PROG, repo, "check", path)
        actions = (next_action("check", command, "fill it in, then check it"),)
    lines = [f"{path}: {len(made['tasks'])} tasks" if path else text.rstrip("\n")]
    if path:
        lines += listed("to fill in", [f"{row['path']}: {row['text']}" for row in todo])
        lines += listed("seams", [seam_text(row) for row in seen["seams"]])
        lines += listed("overlaps", [overlap_text(row) for row in seen["overlaps"]])
    return Answer("draft", "\n".join(lines), data, next_actions=actions)


# --- overlap --------------------------------------------------------------------------------


def overlap(options: argparse.Namespace) -> Answer:
    """`overlap`: what live workers have changed so far."""
    from fanout import git, overlapping

    repo = git.open_repository(options.repo)
    if options.watch:
        return watch(repo, options)
    data, errors = overlapping.look(repo, options.names)
    lines = overlapping.lines(data)
    count = len(data["workers"])
    text = joined(lines) or f"{count} workers: no file was changed by two, nothing conflicts"
    unread = [f"{row['name']}: {row['unknown']}" for row in data["workers"] if row["unknown"]]
    if unread:
        errors.append(
            SkillError(
                "unreadable-worktree", unread[0], "`agent_workers.py status` says more of it",
                exit_code=ExitCode.FAILED,
            )
        )  # fmt: skip
    error = errors[0] if errors else None
    code = ExitCode.FAILED if errors else ExitCode.DONE
    if data["shared"] or data["conflicts"] or data["not_owned"]:
        code = ExitCode.BLOCKED
    return Answer("overlap", text, data, code, error)


def watch(repo: Any, options: argparse.Namespace) -> Answer:
    """Print a line for each change until the caller ends it or nobody reads any more."""
    import json

    from fanout import overlapping

    seen: list[str] = []
    told: set[str] = set()
    reading = True
    while reading:
        data, errors = overlapping.look(repo, options.names)
        for error in errors:
            if error.message not in told:
                told.add(error.message)
                warn(error.message)
        lines = overlapping.lines(data)
        changes = [("+", line) for line in lines if line not in seen]
        changes += [("-", line) for line in seen if line not in lines]
        seen = lines
        for sign, line in changes:
            row = json.dumps({"change": sign, "text": line}) if options.json else f"{sign} {line}"
            reading = reading and write_out(joined([row]) + "\n")
        if reading:
            time.sleep(2.0)
            reading = not reader_gone()
    return Answer("overlap", "", {})
