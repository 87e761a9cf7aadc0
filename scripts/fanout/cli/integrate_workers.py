"""The command `integrate_workers.py`: its parser, and what answers each verb."""

from __future__ import annotations

import argparse
import contextlib

from fanout.cli.common import Frame, Parser, glue_values, run_command
from fanout.errors import SkillError
from fanout.output import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fanout.git import Repository

PROG = "integrate_workers.py"
# Each verb's purpose and an example.
VERBS = {
    "forecast": ("foresee what merging would come to; changes nothing", "forecast docs api"),
    "review": ("show what a worker has done, in bounded pieces", "review docs"),
    "collect": (
        "commit what an agent left in its worktree, on its branch",
        "collect docs --message-file /tmp/docs.message",
    ),
    "approve": (
        "record that a commit was looked at and may be merged",
        "approve docs --commit 3f1c0d2a9b --note 'read all of it'",
    ),
    "reject": (
        "record that a commit was looked at and may not be merged",
        "reject docs --reason 'the tests are missing'",
    ),
    "merge": (
        "merge what is approved, all or none, once the combined result passes its checks",
        "merge docs api --check 'make test'",
    ),
    "changelog": ("show the changelog entries found, missing and to be written", "changelog docs"),
    "report": ("say what is merged, what is not, and what comes next", "report --output REPORT.md"),
    "undo": ("take an integration back: the newest, or the one that is named", "undo"),
    "status": ("show where each candidate stands", "status --json"),
}
# The values of these options are free text: `--note "--help"`.
TEXTS = frozenset(
    ["--by", "--note", "--reason", "--message-file", "--only", "--check", "--no-changelog-needed"]
)
OTHERS = frozenset(
    [
        "--repo",
        "--run",
        "--branch",
        "--base",
        "--path",
        "--commit",
        "--allow-out-of-scope",
        "--into",
        "--check-timeout",
        "--strategy",
        "--sign-timeout",
        "--output",
    ]
)

EXAMPLES = """examples:
  integrate_workers.py forecast
  integrate_workers.py review docs
  integrate_workers.py approve docs --commit 3f1c0d2a9b
  integrate_workers.py merge docs api --check "make test"
  integrate_workers.py merge --branch topic --base main --check "make test"
  integrate_workers.py report

"""


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    return run_command(PROG, glue_values(argv, TEXTS, OTHERS), parse, dispatch, VERBS)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options of a call."""
    with merge_fields() if argv[:1] == ["merge"] else contextlib.nullcontext():
        return FRAME.parse(argv)


def add_options(verb: str, parser: Parser) -> None:
    """The options of one verb."""
    add_common(parser, verb)
    verb_of(verb)[0](parser)


FRAME = Frame(
    PROG,
    "Bring the work of parallel agents back: looked at, tested and merged.\n"
    "The usual way is forecast, review, approve, merge. `VERB --help` shows its options.",
    EXAMPLES,
    VERBS,
    add_options,
)


def add_common(parser: Parser, name: str) -> None:
    """The options of all verbs, and those that choose candidates where it takes any."""
    parser.add_argument("--repo", default=".", metavar="DIR", help="the repository (default: here)")
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    if name == "undo":
        return
    parser.add_argument(
        "--run", default="", metavar="DIR", help="NAME is a task of this run (.worker-runs/ID)"
    )
    parser.add_argument(
        "--branch",
        action="append",
        default=[],
        metavar="B",
        help="a plain branch, in place of NAME (repeatable; needs --base)",
    )
    parser.add_argument(
        "--base", default="", metavar="REF", help="where the branches given by --branch started"
    )


def verb_of(
    name: str,
) -> tuple[Callable[[Parser], None], Callable[[Repository, argparse.Namespace], Answer]]:
    """What adds a verb's options, and what answers it. Their module is imported only now."""
    if name in ("review", "collect", "approve", "reject"):
        return review_verb(name)
    from fanout.cli import merge_verbs

    return {
        "changelog": (merge_verbs.add_changelog, merge_verbs.changelog),
        "forecast": (merge_verbs.add_forecast, merge_verbs.forecast),
        "merge": (merge_verbs.add_merge, merge_verbs.merge),
        "report": (merge_verbs.add_report, merge_verbs.report),
        "undo": (merge_verbs.add_undo, merge_verbs.undo),
        "status": (merge_verbs.add_status, merge_verbs.status),
    }[name]


def review_verb(
    name: str,
) -> tuple[Callable[[Parser], None], Callable[[Repository, argparse.Namespace], Answer]]:
    """`verb_of` for the verbs that look at one candidate."""
    from fanout.cli import review_verbs

    return {
        "review": (review_verbs.add_review, review_verbs.review),
        "collect": (review_verbs.add_collect, review_verbs.collect),
        "approve": (review_verbs.add_approve, review_verbs.approve),
        "reject": (review_verbs.add_reject, review_verbs.reject),
    }[name]


@contextlib.contextmanager
def merge_fields() -> Generator[None, None, None]:
    """Give the errors of `merge` the fields that its answers have."""
    try:
        yield
    except SkillError as error:
        from fanout.cli.merge_verbs import merge_fields as fields

        error.data = {**fields(), **error.data}
        raise


def dispatch(options: argparse.Namespace) -> Answer:
    """Run the verb."""
    from fanout.git import open_repository

    with merge_fields() if options.verb == "merge" else contextlib.nullcontext():
        return verb_of(options.verb)[1](open_repository(options.repo), options)
