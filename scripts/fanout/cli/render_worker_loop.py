"""The command `render_worker_loop.py`: its parser, and what it answers."""

from __future__ import annotations

import argparse
import os

from fanout.cli.common import EPILOG, Parser, glue_values, run_command, warn
from fanout.output import Answer, next_action

PROG = "render_worker_loop.py"
EXAMPLES = """examples:
  render_worker_loop.py --config examples/self-hosted-upgrade.json --language python \\
      --output /tmp/run-agent-workers.py
  DRY_RUN=1 /tmp/run-agent-workers.py

"""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    return run_command(PROG, argv, parse, answer)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options. Raises SkillError `usage`."""
    parser = Parser(
        prog=PROG,
        description="Render a JSON plan to one self-contained runner, in Python or Bash.",
        epilog=EXAMPLES + EPILOG,
    )
    parser.add_argument("--config", required=True, metavar="PLAN", help="the plan, a JSON file")
    parser.add_argument("--language", required=True, choices=("python", "bash"))
    parser.add_argument("--output", required=True, metavar="FILE", help="the runner to write")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing: fail when the plan is invalid or FILE is not what it renders to",
    )
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    return parser.parse_args(glue_values(argv, frozenset(), frozenset(["--config", "--output"])))


def answer(options: argparse.Namespace) -> Answer:
    """Render, then write or compare."""
    from fanout import rendering
    from fanout.runtimes.loop import quoted

    runner = rendering.render(options.config, options.language, options.output)
    path = os.path.abspath(options.output)
    found = {
        "output": path,
        "language": options.language,
        "plan": os.path.abspath(options.config),
        "plan_sha256": runner.sha256,
        "tasks": runner.tasks,
        "without_changelog": runner.untold,
        "unknown_variables": runner.notes,
        "written": not options.check,
    }
    if runner.untold:
        names = ", ".join(runner.untold[:10]) + (", ..." if len(runner.untold) > 10 else "")
        warn(f"no `changelog` path, so only the merge will ask for an entry of: {names}")
    for note in runner.notes[:10]:
        warn(note)
    if len(runner.notes) > 10:
        warn(f"and {len(runner.notes) - 10} more such placeholders")
    count = "1 task" if runner.tasks == 1 else f"{runner.tasks} tasks"
    if options.check:
        state = rendering.require_same(path, runner.text)
        return Answer(PROG, f"the plan is valid: {count}; {path} is {state}", found)
    rendering.write_runner(path, runner.text)
    shown = quoted(path)
    return Answer(
        PROG,
        f"{path}: {options.language} runner of {count}",
        found,
        next_actions=(
            next_action("dry-run", f"DRY_RUN=1 {shown}", "see every command, change nothing"),
            next_action("run", shown, "run it from where the plan's `repo` counts"),
        ),
    )
