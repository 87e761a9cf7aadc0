"""What `review`, `collect`, `approve` and `reject` of `integrate_workers.py` answer."""

from __future__ import annotations

import argparse
import os

from fanout.cli.common import command_line
from fanout.errors import usage
from fanout.output import Answer, next_action, path_list, path_text, plain_text, say, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.approvals import Approval
    from fanout.candidates import Candidate, Choice
    from fanout.cli.common import Parser
    from fanout.collecting import Collected
    from fanout.git import Repository
    from fanout.reviewing import Review, View

PROG = "integrate_workers.py"
MESSAGE_BYTES = 100_000
# A person reads so many paths of one flag.
PATHS = 10


def choice_of(options: argparse.Namespace, names: list[str]) -> Choice:
    """What the common options and these names choose."""
    from fanout.candidates import Choice

    return Choice(names, options.run, options.branch, options.base)


def only_one(repo: Repository, options: argparse.Namespace) -> tuple[Choice, Candidate]:
    """The one candidate of a verb that takes one. Raises SkillError as `candidates.find`."""
    from fanout.candidates import find

    if not options.name and not options.branch:
        raise usage("usage", "NAME is missing", f"give a name; `{PROG} status` lists them")
    choice = choice_of(options, [options.name] if options.name else [])
    found = find(repo, choice)
    if len(found) != 1:
        named = ", ".join(candidate.name for candidate in found)
        raise usage("usage", f"this takes one candidate, not {named}", "call it for each")
    return choice, found[0]


def own_command(repo: Repository, *words: str) -> str:
    """A command of this program that can be pasted."""
    return command_line(PROG, repo, *words)


# --- Options --------------------------------------------------------------------------------


def add_name(parser: Parser) -> None:
    """Which candidate; --branch stands in its place."""
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a worker")


def add_review(parser: Parser) -> None:
    """The options of `review`."""
    add_name(parser)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--stat", action="store_true", help="leave the text of the diff out")
    extent.add_argument("--full", action="store_true", help="show all of it, however long")
    parser.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="P",
        help="only this file, or what is below this folder (repeatable)",
    )


def add_collect(parser: Parser) -> None:
    """The options of `collect`."""
    add_name(parser)
    parser.add_argument(
        "--message-file", metavar="F", help="text for the commit's message, beside who made it"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="only these files, owned or not (repeatable; default: those that it owns)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be committed, commit nothing"
    )


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


def review(repo: Repository, options: argparse.Namespace) -> Answer:
    """`review`: what there is to see of one candidate."""
    from fanout import reviewing

    choice, candidate = only_one(repo, options)

    def again(words: list[str]) -> str:
        return own_command(repo, "review", *choice.words([candidate.name]), *words)

    extent = "full" if options.full else "stat" if options.stat else "bounded"
    found = reviewing.review(repo, choice, candidate, reviewing.Wish(extent, options.path, again))
    actions = tuple(review_actions(repo, choice, found))
    return Answer("review", review_text(found), found.to_json(), next_actions=actions)


def review_actions(repo: Repository, choice: Choice, found: Review) -> list[dict[str, Any]]:
    """What may come after a review."""
    candidate = found.candidate
    chosen = choice.words([candidate.name])
    rows: list[dict[str, Any]] = []
    left_out = found.views["diff"].left_out
    if left_out is not None:
        why = f"see what is left out: {left_out.what} ({left_out.amount})"
        rows.append(next_action("review", left_out.command, why))
    if found.dirty:
        command = own_command(repo, "collect", *chosen, "--dry-run")
        why = f"see what collecting the {len(found.dirty)} files that are not committed would do"
        rows.append(next_action("collect", command, why))
    if found.standing.state == "approved" and found.approvable:
        command = own_command(repo, "merge", *chosen)
        why = f"it is approved: build and check the result{choice.check_advice}"
        rows.append(next_action("merge", command, why))
    elif found.approvable and found.outside:
        why = (
            f"approve it with --commit {candidate.head}, and for each of the {len(found.outside)} "
            "files outside of what it owns --allow-out-of-scope PATH --reason WHY"
        )
        rows.append(next_action("approve", None, why))
    elif found.approvable:
        command = own_command(repo, "approve", *chosen, "--commit", candidate.head)
        rows.append(next_action("approve", command, "if all of it may be merged"))
    return rows


def review_text(found: Review) -> str:
    """A review for a person."""
    candidate = found.candidate
    standing = found.standing
    lines = [
        f"{candidate.name}: {len(found.commits)} commits, {len(found.files)} files",
        f"  branch    {candidate.branch}",
        f"  base      {candidate.base}",
        f"  head      {candidate.head}",
        f"  review    {standing.state}" + (f" ({standing.why})" if standing.why else ""),
    ]
    if found.task is not None:
        lines.append(f"  task      {task_text(found.task, candidate.head)}")
    if found.trouble:
        lines.append(f"  trouble   {found.trouble}")
    lines += [f"  changelog {where}" for where in changelog_places(found.changelog)]
    lines += [f"  check     {c['status']}: {c['command']} (log {c['log']})" for c in found.checks]
    for flag in found.flags:
        paths = f": {path_list(flag.paths, PATHS)}" if flag.paths else ""
        lines.append(f"  flag      {flag.code}{paths}")
    for view in found.views.values():
        lines += view_lines(view)
    return plain_text("\n".join(lines))


def task_text(task: dict[str, Any], head: str) -> str:
    """How a task ended, for a person."""
    words = str(task["status"]) + (f": {task['reason']}" if task["reason"] else "")
    earlier = task["head"] and task["head"] != head
    return words + (f" (at {task['head'][:12]}, an earlier commit)" if earlier else "")


def changelog_places(changelog: dict[str, Any]) -> list[str]:
    """Where a candidate's changelog entries are, for a person."""
    places = [f"{path_text(entry['path'])} ({entry['source']})" for entry in changelog["entries"]]
    places += map(path_text, changelog["paths"])
    places += [f"{row['code']}: {row['message']}" for row in changelog["problems"]]
    return places or ["no entry"]


def view_lines(view: View) -> list[str]:
    """One view for a person, and what it leaves out."""
    if not view.command:
        return []
    text = view.text.rstrip("\n")
    lines = ["", f"$ {view.command}", *([text] if text else [])]
    if view.left_out is not None:
        names = path_list(view.left_out.paths[:PATHS])
        what = f"{view.left_out.what} ({view.left_out.amount})" + (f": {names}" if names else "")
        lines += [f"[left out: {what}", f" shown by: {view.left_out.command}]"]
    return lines


def collect(repo: Repository, options: argparse.Namespace) -> Answer:
    """`collect`: what was committed, and what stays as it is."""
    from fanout import collecting

    choice, candidate = only_one(repo, options)
    if not all(options.only):
        raise usage("usage", "--only needs a glob", "for example --only 'docs/**'")
    body = read_message(options.message_file) if options.message_file else ""

    def announce(paths: list[str]) -> None:
        if not options.json:
            say("\n".join([f"committing {len(paths)} files:", *map(path_text, paths)]))

    wish = collecting.Wish(options.only, body, options.dry_run, announce)
    done = collecting.collect(repo, choice, candidate, wish)
    data = {**done.to_json(), "dry_run": options.dry_run}
    command = own_command(repo, "review", *choice.words([candidate.name]))
    actions = () if options.dry_run else (next_action("review", command, "look at it"),)
    if options.dry_run:
        words = ["collect", *choice.words([candidate.name]), *repeated("--only", options.only)]
        if options.message_file:
            words += ["--message-file", os.path.abspath(options.message_file)]
        actions = (next_action("collect", own_command(repo, *words), "commit these files"),)
    return Answer("collect", collect_text(done, candidate), data, next_actions=actions)


def repeated(option: str, values: list[str]) -> list[str]:
    """An option for each of some values."""
    return [f"{option}={value}" for value in values]


def collect_text(done: Collected, candidate: Candidate) -> str:
    """What was collected, for a person."""
    head = f"committed as {done.commit}" if done.commit else "would be committed"
    lines = [f"{candidate.name}: {len(done.paths)} files {head}"]
    lines += [f"  {path_text(path)}" for path in done.paths]
    lines += [f"  left      {path_text(path)} ({why})" for path, why in done.left.items()]
    return plain_text("\n".join(lines))


def read_message(file: str) -> str:
    """The text of a message file. Raises SkillError `message-unreadable` (exit 2)."""
    try:
        with open(file, "rb") as source:
            content = source.read(MESSAGE_BYTES + 1)
        if len(content) > MESSAGE_BYTES or b"\0" in content:
            raise usage(
                "message-unreadable",
                f"{file!r} is no message: longer than {MESSAGE_BYTES} bytes, or not text",
            )
        return content.decode("utf-8").replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        why = shorten(str(error), 200)
        raise usage("message-unreadable", f"cannot read {file!r}: {why}", "write UTF-8") from error


def approve(repo: Repository, options: argparse.Namespace) -> Answer:
    """`approve`: the verdict that was recorded."""
    from fanout import approvals
    from fanout.candidates import not_done

    choice, candidate = only_one(repo, options)
    notes = not_done(repo, choice.run, [candidate])
    approval = approvals.approve(
        repo,
        choice,
        candidate,
        options.commit,
        by=options.by,
        note=options.note,
        allowed=allowed_paths(options.allowances),
    )
    found = approvals.entries_of(repo, choice, candidate)
    notes += [f"{why}; merge will refuse it" for _, why in found.problems]
    if found.missing and not found.problems:
        notes.append(f"{candidate.name} has no changelog entry, which merge will ask for")
    for note in notes:
        say(f"note: {note}")
    lines = [verdict_line(approval)]
    lines += [
        f"  outside   {path_text(row['path'])}: {row['reason']}" for row in approval.out_of_scope
    ]
    text = plain_text("\n".join(lines))
    merge = own_command(repo, "merge", *choice.words([candidate.name]))
    why = f"build and check the work of {candidate.name}{choice.check_advice}"
    actions = (next_action("merge", merge, why),)
    data = {"approval": approval.to_json(), "notes": notes}
    return Answer("approve", text, data, next_actions=actions)


def reject(repo: Repository, options: argparse.Namespace) -> Answer:
    """`reject`: the verdict that was recorded."""
    from fanout import approvals

    choice, candidate = only_one(repo, options)
    if not options.reason.strip():
        raise usage("usage", "--reason is empty", "say what is missing")
    approval = approvals.reject(repo, choice, candidate, by=options.by, reason=options.reason)
    text = plain_text(verdict_line(approval))
    return Answer("reject", text, {"approval": approval.to_json()})


def verdict_line(approval: Approval) -> str:
    """A verdict for a person."""
    note = f": {approval.note}" if approval.note else ""
    return (
        f"{approval.name}: {approval.verdict} at {approval.head} by {approval.by}{note}\n"
        f"  base      {approval.base}\n  tree      {approval.tree}"
    )
