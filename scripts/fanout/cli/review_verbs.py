"""What `review`, `collect`, `approve` and `reject` of `integrate_workers.py` answer."""

from __future__ import annotations

import argparse

from fanout.cli.choosing import only_one, own_command
from fanout.errors import usage
from fanout.output import Answer, next_action, plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.approvals import Approval
    from fanout.cli.common import Parser
    from fanout.git import Repository

# --- Options --------------------------------------------------------------------------------


def add_name(parser: Parser) -> None:
    """Which candidate; --branch stands in its place."""
    parser.add_argument("name", nargs="?", default="", metavar="NAME")


def add_approve(parser: Parser) -> None:
    """The options of `approve`."""
    add_name(parser)
    parser.add_argument(
        "--commit", required=True, metavar="ID", help="the commit that was reviewed: the tip"
    )
    add_by(parser)
    parser.add_argument("--note", default="", metavar="T", help="what there is to say about it")
    parser.add_argument(
        "--allow-out-of-scope",
        action="append",
        default=[],
        type=path_word,
        dest="allowances",
        metavar="PATH",
        help="a file outside of what the worker owns may be changed (repeatable; needs --reason)",
    )
    parser.add_argument(
        "--reason",
        action="append",
        default=[],
        type=reason_word,
        dest="allowances",
        metavar="T",
        help="why; for every --allow-out-of-scope before it that has none yet",
    )


def add_reject(parser: Parser) -> None:
    """The options of `reject`."""
    add_name(parser)
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why it may not be merged")
    add_by(parser)


def add_by(parser: Parser) -> None:
    """Who decides."""
    parser.add_argument(
        "--by", default="", metavar="WHO", help="who decides (default: git's user.name)"
    )


def path_word(word: str) -> tuple[str, str]:
    """A value of --allow-out-of-scope, told apart from one of --reason in their common list."""
    return "path", word


def reason_word(word: str) -> tuple[str, str]:
    """A value of --reason."""
    return "reason", word


def allowed_paths(words: list[tuple[str, str]]) -> dict[str, str]:
    """Reasons by path, each for the paths before it that have none. Raises SkillError `usage`."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for kind, word in words:
        if kind == "path":
            waiting.append(word)
            continue
        if not waiting or not word.strip():
            raise usage(
                "usage",
                f"--reason {word!r} gives no reason for a path",
                "put it after the --allow-out-of-scope PATH that it is for",
            )
        found.update(dict.fromkeys(waiting, word))
        waiting = []
    if waiting:
        raise usage(
            "usage",
            f"--allow-out-of-scope {waiting[0]!r} has no reason",
            "add --reason T after it",
        )
    return found


# --- Verbs ----------------------------------------------------------------------------------


def approve(repo: Repository, options: argparse.Namespace) -> Answer:
    """`approve`: the verdict that was recorded."""
    from fanout import verdicts

    choice, candidate = only_one(repo, options)
    approval = verdicts.approve(
        repo,
        choice,
        candidate,
        options.commit,
        by=options.by,
        note=options.note,
        allowed=allowed_paths(options.allowances),
    )
    lines = [verdict_line(approval)]
    lines += [f"  outside   {row['path']}: {row['reason']}" for row in approval.out_of_scope]
    text = plain_text("\n".join(lines))
    merge = own_command(repo, "merge", *choice.words([candidate.name]))
    actions = (next_action("merge", merge, f"build and check the work of {candidate.name}"),)
    return Answer("approve", text, {"approval": approval.to_json()}, next_actions=actions)


def reject(repo: Repository, options: argparse.Namespace) -> Answer:
    """`reject`: the verdict that was recorded."""
    from fanout import verdicts

    choice, candidate = only_one(repo, options)
    if not options.reason.strip():
        raise usage("usage", "--reason is empty", "say what is missing")
    approval = verdicts.reject(repo, choice, candidate, by=options.by, reason=options.reason)
    text = plain_text(verdict_line(approval))
    return Answer("reject", text, {"approval": approval.to_json()})


def verdict_line(approval: Approval) -> str:
    """A verdict for a person."""
    note = f": {approval.note}" if approval.note else ""
    return (
        f"{approval.name}: {approval.verdict} at {approval.head} by {approval.by}{note}\n"
        f"  base      {approval.base}\n  tree      {approval.tree}"
    )
