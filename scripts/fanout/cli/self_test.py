"""The command `self_test.py`: its parser, and what it answers."""

from __future__ import annotations

import argparse
import os
import time

from fanout.cli.common import EPILOG, SCRIPTS, Parser, run_command
from fanout.errors import ExitCode, SkillError, missing
from fanout.output import Answer, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.self_checks import Check

PROG = "self_test.py"
EXAMPLES = """examples:
  self_test.py
  self_test.py --quick
  self_test.py --json 2>/dev/null

"""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    return run_command(PROG, argv, parse, answer)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options. Raises SkillError `usage`."""
    parser = Parser(
        prog=PROG,
        description="Check this copy of the skill where it lies, then do its main jobs for real: "
        "in a\ntemporary repository on a tmux server of its own, with a sample agent and three "
        "faults.\nNo agent CLI, account or network is needed, and nothing is left behind.",
        epilog=EXAMPLES + EPILOG,
    )
    parser.add_argument(
        "--quick", action="store_true", help="look at files, help, examples and a conversion only"
    )
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    return parser.parse_args(argv)


def answer(options: argparse.Namespace) -> Answer:
    """Run the checks; a line for each on stderr as it ends."""
    from fanout import self_checks

    package = os.path.dirname(SCRIPTS)
    begun = time.monotonic()
    lines = self_checks.run_all(
        package, live=not options.quick, tell=lambda check: say(line_of(check))
    )
    seconds = round(time.monotonic() - begun, 1)
    failed = [check for check in lines if not check.ok]
    data = {
        "package": package,
        "quick": bool(options.quick),
        "seconds": seconds,
        "checks": [check.to_json() for check in lines],
    }
    count = f"{len(lines) - len(failed)} of {len(lines)} checks passed in {seconds} s"
    if not failed:
        what = "its files, help, examples and conversion are in order"
        whole = what if options.quick else "this copy of the skill works on this machine"
        return Answer(PROG, f"{count}: {whole}", data)
    first = failed[0]
    if first.name == self_checks.PROGRAMS:
        error = missing("program-missing", first.found, first.hint)
    else:
        names = ", ".join(check.name for check in failed)
        message = f"failed: {names}; the first one: {first.found}"
        error = SkillError("self-test-failed", message, first.hint)
    return Answer(PROG, count, data, ExitCode(error.exit_code), error)


def line_of(check: Check) -> str:
    """One check as a line, its hint below where it failed."""
    line = f"{'ok   ' if check.ok else 'FAIL '} {check.name}: {check.found} ({check.seconds:.1f} s)"
    return line if check.ok or not check.hint else f"{line}\n      {check.hint}"
