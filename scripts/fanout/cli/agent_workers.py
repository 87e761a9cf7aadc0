"""The command `agent_workers.py`: its parser, and what each verb answers."""

from __future__ import annotations

import argparse
import os

from fanout.cli.common import Frame, Parser, glue_values, run_command, seconds
from fanout.edition import AGENT_ARGS, EXECUTABLE, HELPER, SESSION_PREFIX
from fanout.output import Answer

PROG = HELPER
# Each verb's purpose and an example.
VERBS = {
    "spawn": (
        "start a worker, or one for each prompt in a folder or task of a plan",
        'spawn docs --prompt "Describe the API in docs/api.md"',
    ),
    "status": ("show what the workers are doing", "status --json"),
    "capture": ("show the last lines that an agent printed", "capture docs --lines 50"),
    "send": ("give a running agent a follow-up prompt", 'send docs --prompt "Also cover errors"'),
    "attach": ("watch an agent in its terminal", "attach docs --print"),
    "stop": ("end agents; worktrees, branches and records stay", "stop docs api-tests"),
    "wait": (
        "wait until jobs have ended, by what the agents report",
        "wait docs api-tests --timeout 1800",
    ),
    "events": ("show what happened to a worker", "events docs --limit 20"),
    "resume": (
        "start the agent of a worker again",
        'resume docs --prompt "Go on with the second module"',
    ),
    "cleanup": ("remove workers whose work is safe elsewhere", "cleanup docs --branch-delete"),
    "doctor": (
        "check that everything is there; changes nothing",
        f"doctor --agent-cli {EXECUTABLE}",
    ),
    "event": ("report from inside a worker's worktree", "event completed --message 'tests pass'"),
}
# The values of these options are free text: `--agent-args "--yolo"`, `--prompt "--help"`.
TEXTS = frozenset(
    [
        "--prompt",
        "--prompt-file",
        "--agent-args",
        "--prompt-arg",
        "--setup",
        "--env",
        "--owns",
        "--copy",
        "--message",
        "--data",
    ]
)
OTHERS = frozenset(
    [
        "--repo",
        "--tmux-socket",
        "--prompts-dir",
        "--plan",
        "--base",
        "--branch",
        "--worktree",
        "--harness",
        "--agent-cli",
        "--prompt-mode",
        "--session-prefix",
        "--settle",
        "--ready-timeout",
        "--timeout",
        "--lines",
        "--until",
        "--limit",
    ]
)
LINES = 100
LINE_LIMIT = 20_000

EXAMPLES = f"""examples:
  {PROG} spawn api-tests --base main --prompt-file /tmp/api-tests.prompt \\
      --agent-cli {EXECUTABLE} --agent-args "{AGENT_ARGS}"
  {PROG} status
  {PROG} capture api-tests --lines 120
  {PROG} send api-tests --prompt-file /tmp/api-tests-followup.prompt
  {PROG} stop api-tests
  {PROG} cleanup api-tests --branch-delete

"""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    return run_command(PROG, glue_values(argv, TEXTS, OTHERS), FRAME.parse, dispatch, VERBS)


# --- Parser ---------------------------------------------------------------------------------


def add_options(verb: str, parser: Parser) -> None:
    """The options of one verb."""
    add_common(parser)
    {
        "spawn": add_spawn,
        "status": add_status,
        "capture": add_capture,
        "send": add_send,
        "attach": add_attach,
        "stop": add_stop,
        "wait": add_wait,
        "events": add_events,
        "resume": add_resume,
        "cleanup": add_cleanup,
        "doctor": add_harness_options,
        "event": add_event,
    }[verb](parser)


FRAME = Frame(
    PROG,
    "Run CLI agents in parallel, each in its own git worktree and tmux session.",
    EXAMPLES,
    VERBS,
    add_options,
)


def add_common(parser: Parser) -> None:
    """The options of all verbs."""
    parser.add_argument("--repo", default=".", metavar="DIR", help="the repository (default: here)")
    parser.add_argument(
        "--tmux-socket",
        default=os.environ.get("AGENT_WORKERS_TMUX_SOCKET", ""),
        metavar="NAME",
        help="the tmux server for new workers (default: one per repository)",
    )
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def add_harness_options(parser: Parser) -> None:
    """Which agent CLI."""
    parser.add_argument("--harness", metavar="MAPPING", help="a harness mapping (JSON file)")
    parser.add_argument(
        "--agent-cli",
        metavar="EXE",
        help=f"the agent program (default: --agent-cli {EXECUTABLE})",
    )


def add_prompt_options(parser: Parser) -> None:
    """The prompt, from the command line or a file."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt itself")
    prompt.add_argument("--prompt-file", metavar="FILE", help="the prompt's file, or - for stdin")


def add_spawn(parser: Parser) -> None:
    """The options of `spawn`."""
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("more", nargs="*", metavar="TASK", help="with --plan: only these tasks")
    parser.add_argument("--plan", metavar="PLAN", help="one worker for each task of a plan")
    add_prompt_options(parser)
    parser.add_argument("--prompts-dir", metavar="DIR", help="one worker for each DIR/<name>.md")
    parser.add_argument(
        "--base", metavar="REF", help="start from this commit (default: the caller's HEAD)"
    )
    parser.add_argument("--branch", metavar="B", help="the new branch (default: NAME)")
    parser.add_argument(
        "--worktree", metavar="DIR", help="the new worktree (default: <repo>.worktrees/NAME)"
    )
    add_harness_options(parser)
    parser.add_argument(
        "--agent-args",
        default="",
        metavar="ARGS",
        help="more arguments for the agent, quoted as for a shell",
    )
    parser.add_argument(
        "--prompt-mode",
        choices=["argument", "paste", "file", "none"],
        help="how the agent gets its prompt (default: as the mapping says)",
    )
    parser.add_argument(
        "--prompt-arg",
        metavar="FLAG",
        help="stands before the prompt or its file; `--` puts it last, `--flag=` joins it",
    )
    parser.add_argument(
        "--owns",
        action="append",
        default=[],
        metavar="GLOB",
        help="files that the worker may change (repeatable)",
    )
    parser.add_argument(
        "--copy",
        action="append",
        default=[],
        metavar="PATH",
        help="copy this from the caller's checkout, such as .env (repeatable)",
    )
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="CMD",
        help="run this in the new worktree first (repeatable)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="set a variable for the agent (repeatable)",
    )
    parser.add_argument(
        "--session-prefix",
        default=SESSION_PREFIX,
        metavar="P",
        help="the tmux session is P + NAME",
    )
    parser.add_argument(
        "--settle",
        type=seconds,
        default=1.0,
        metavar="S",
        help="watch the new agent so long (default: 1)",
    )
    parser.add_argument(
        "--ready-timeout",
        type=seconds,
        default=30.0,
        metavar="S",
        help="wait so long for its input prompt (default: 30)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="the whole call may take so long; then it is taken back",
    )
    parser.add_argument(
        "--no-contract", action="store_true", help="leave the working agreement out of the prompt"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be made, make nothing"
    )


def add_status(parser: Parser) -> None:
    """The options of `status`."""
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--no-files", action="store_true", help="do not look at changed files (faster)"
    )
    parser.add_argument("--watch", action="store_true", help="show each change until interrupted")


def add_capture(parser: Parser) -> None:
    """The options of `capture`."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--lines",
        type=line_count,
        default=LINES,
        metavar="N",
        help=f"how many lines (default: {LINES})",
    )
    parser.add_argument(
        "--log", action="store_true", help="from the log file, also when the session is gone"
    )


def add_send(parser: Parser) -> None:
    """The options of `send`."""
    parser.add_argument("name", metavar="NAME")
    add_prompt_options(parser)
    parser.add_argument(
        "--anew", action="store_true", help="forget an earlier send whose fate is unknown"
    )


def add_attach(parser: Parser) -> None:
    """The options of `attach`."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--print", action="store_true", help="print the tmux command, do not run it"
    )


def add_stop(parser: Parser) -> None:
    """The options of `stop`."""
    parser.add_argument("names", nargs="+", metavar="NAME")


def add_wait(parser: Parser) -> None:
    """The options of `wait`."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="default: all with an open job; one that ended before is not looked at",
    )
    parser.add_argument("--any", action="store_true", help="the first job to end decides")
    parser.add_argument(
        "--until",
        choices=["started", "ended"],
        default="ended",
        help="wait for the agent's first report, or for the end (default)",
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="leave with 124 after so long")


def add_events(parser: Parser) -> None:
    """The options of `events`."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--follow", action="store_true", help="show events as they come")
    parser.add_argument(
        "--limit",
        type=line_count,
        default=LINES,
        metavar="N",
        help=f"the newest N (default: {LINES})",
    )


def add_resume(parser: Parser) -> None:
    """The options of `resume`."""
    parser.add_argument("name", metavar="NAME")
    add_prompt_options(parser)
    parser.add_argument(
        "--settle",
        type=seconds,
        default=1.0,
        metavar="S",
        help="watch the agent so long (default: 1)",
    )


def add_cleanup(parser: Parser) -> None:
    """The options of `cleanup`."""
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--merged",
        action="store_true",
        help="all workers whose commits are in the integration branch",
    )
    parser.add_argument(
        "--branch-delete",
        action="store_true",
        help="delete the branch too, where that loses nothing",
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="remove unmerged work too, after saving it under a ref",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be removed, remove nothing"
    )


def add_event(parser: Parser) -> None:
    """The options of `event`."""
    parser.add_argument(
        "kind", metavar="KIND", help="started, progress, heartbeat, completed or error"
    )
    parser.add_argument("--message", default="", metavar="TEXT")
    parser.add_argument("--data", default="", metavar="JSON", help="an object with further facts")


def line_count(word: str) -> int:
    """A number of lines."""
    value = int(word)
    if not 1 <= value <= LINE_LIMIT:
        raise argparse.ArgumentTypeError(f"expected 1 to {LINE_LIMIT}")
    return value


# --- Verbs ----------------------------------------------------------------------------------


def dispatch(options: argparse.Namespace) -> Answer:
    """Run the verb. Modules are imported when a verb needs them: starting fast matters."""
    from fanout.cli import worker_verbs

    if options.verb == "event":
        return worker_verbs.event(options)
    if options.verb == "doctor":
        return worker_verbs.doctor(options)
    from fanout.git import ask_repository

    # Git answers beside the imports of the verb.
    question = ask_repository(options.repo)
    verbs = {
        "spawn": worker_verbs.spawn,
        "status": worker_verbs.status,
        "capture": worker_verbs.capture,
        "send": worker_verbs.send,
        "attach": worker_verbs.attach,
        "stop": worker_verbs.stop,
        "wait": worker_verbs.wait,
        "events": worker_verbs.events,
        "resume": worker_verbs.resume,
        "cleanup": worker_verbs.cleanup,
    }
    return verbs[options.verb](question, options)
