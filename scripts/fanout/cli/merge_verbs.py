"""What `forecast`, `merge`, `report`, `undo` and `status` of `integrate_workers.py` answer."""

from __future__ import annotations

import argparse
import os

from fanout.cli.common import positive
from fanout.cli.review_verbs import choice_of, own_command
from fanout.errors import ExitCode, SkillError, missing, refused, usage
from fanout.output import Answer, next_action, path_list, path_text, plain_text, say, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.candidates import Candidate, Choice
    from fanout.changelog import Found, Written
    from fanout.cli.common import Parser
    from fanout.conventions import Convention
    from fanout.git import Repository
    from fanout.integrating import Outcome, Wish

CHECK_TIMEOUT = 1800.0
SIGN_TIMEOUT = 30.0
SHOWN = 20_000


# --- Options --------------------------------------------------------------------------------


def add_names(parser: Parser, which: str = "workers (default: all that there are)") -> None:
    """Which candidates; --branch stands in their place."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=which)


def add_into(parser: Parser) -> None:
    """Into which branch."""
    parser.add_argument(
        "--into",
        default="",
        metavar="BRANCH",
        help="the integration branch (default: the one that is recorded)",
    )


def add_forecast(parser: Parser) -> None:
    """The options of `forecast`."""
    add_names(parser)
    add_into(parser)


def add_merge(parser: Parser) -> None:
    """The options of `merge`."""
    add_names(parser, "the workers to merge")
    add_into(parser)
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="CMD",
        help="a command for bash that must pass on the combined result (repeatable)",
    )
    add_timeout(parser)
    parser.add_argument(
        "--strategy",
        choices=["merge", "squash", "rebase", "cherry-pick"],
        default="merge",
        help="how the commits come in (default: merge, with a merge commit each)",
    )
    parser.add_argument(
        "--message-file", metavar="F", help="the message of the merge commits (- for stdin)"
    )
    parser.add_argument(
        "--no-changelog-needed",
        action="append",
        default=[],
        metavar="NAME=REASON",
        help="NAME needs no changelog entry (repeatable); REASON is reported",
    )
    parser.add_argument(
        "--sign-timeout",
        type=positive,
        default=SIGN_TIMEOUT,
        metavar="S",
        help="how many seconds signing may take, where commit.gpgSign is set (default: 30)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")


def add_timeout(parser: Parser) -> None:
    """How long a check may take."""
    parser.add_argument(
        "--check-timeout",
        type=positive,
        default=CHECK_TIMEOUT,
        metavar="S",
        help=f"end a check after so many seconds; it has failed (default: {CHECK_TIMEOUT:g})",
    )


def add_report(parser: Parser) -> None:
    """The options of `report`."""
    add_names(parser)
    add_into(parser)
    parser.add_argument("--output", default="", metavar="FILE", help="write the report there too")


def add_undo(parser: Parser) -> None:
    """The options of `undo`."""
    parser.add_argument(
        "integration",
        nargs="?",
        default="",
        metavar="INTEGRATION-ID",
        help="as `status` shows it (default: the newest)",
    )
    add_timeout(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")


def add_status(parser: Parser) -> None:
    """The options of `status`."""
    add_names(parser)
    add_into(parser)


# --- Choosing -------------------------------------------------------------------------------


def some(repo: Repository, options: argparse.Namespace) -> tuple[Choice, list[Candidate]]:
    """The candidates that are named, or all that there are."""
    from fanout.candidates import find

    choice = choice_of(options, options.names)
    return choice, find(repo, choice)


def one_or_more(repo: Repository, options: argparse.Namespace) -> tuple[Choice, list[Candidate]]:
    """The candidates that are named. Raises SkillError `usage` without a name."""
    if not options.names and not options.branch:
        raise usage("usage", "NAME is missing", "name what to merge; `status` lists candidates")
    return some(repo, options)


# --- Forecast -------------------------------------------------------------------------------


def forecast(repo: Repository, options: argparse.Namespace) -> Answer:
    """`forecast`: what merging would come to."""
    from fanout import building, git
    from fanout.candidates import target_of

    choice, found = some(repo, options)
    if not found:
        raise usage("no-candidates", "there is nothing to merge", "give NAME, --run or --branch")
    target = target_of(repo, found, options.into)
    tip = git.ref_commit(repo.common_dir, target) or ""
    seen = building.forecast(repo, found, target, tip)
    data = building.to_json(seen)
    actions: list[dict[str, Any]] = []
    order = seen.merges.order
    if order and seen.merges.asked.outcome != "clean":
        command = own_command(repo, "forecast", *choice.words(order), *into(options))
        actions.append(next_action("forecast", command, "this order is clean"))
    return Answer("forecast", forecast_text(data), data, next_actions=tuple(actions))


def into(options: argparse.Namespace) -> list[str]:
    """The option --into again, where it was given."""
    return ["--into", options.into] if options.into else []


def forecast_text(data: dict[str, Any]) -> str:
    """A forecast for a person."""
    lines = [f"into {data['target'].removeprefix('refs/heads/')} at {data['tip'][:12]}"]
    width = max(len(row["name"]) for row in data["targets"])
    for row in data["targets"]:
        lines.append(f"  {row['name']:<{width}}  {outcome_text(row)}")
    troubled = [row for row in data["pairs"] if row["outcome"] != "clean"]
    lines.append(f"pairs: {len(data['pairs'])}, of which {len(troubled)} are not clean")
    lines += [f"  {row['a']} + {row['b']}: {outcome_text(row)}" for row in troubled]
    lines.append(f"in this order: {outcome_text(data['asked'])}")
    if data["order"]:
        lines.append(f"clean order: {' '.join(data['order'])}")
    elif data["asked"]["outcome"] == "conflict":
        tried = "no order is clean" if data["every_order_tried"] else "no clean order was found"
        lines.append(tried)
    if data["without_commits"]:
        lines.append(f"nothing committed: {', '.join(data['without_commits'])}")
    for row in data["shared_files"]:
        lines.append(f"changed by several: {path_text(row['path'])} ({', '.join(row['names'])})")
    for row in data["out_of_scope"]:
        lines.append(f"outside of what {row['name']} owns: {path_list(row['paths'])}")
    return plain_text("\n".join(lines))


def outcome_text(row: dict[str, Any]) -> str:
    """One outcome in words."""
    facts = row.get("why") or path_list(row["paths"])
    kinds = f" [{', '.join(row['kinds'])}]" if row.get("kinds") else ""
    return row["outcome"] + (f": {facts}" if facts else "") + kinds


# --- Merge ----------------------------------------------------------------------------------


def merge(repo: Repository, options: argparse.Namespace) -> Answer:
    """`merge`: what was merged, or what blocks it."""
    from fanout import integrating
    from fanout.candidates import not_done, target_of

    choice, found = one_or_more(repo, options)
    target = target_of(repo, found, options.into)
    wish = wish_of(repo, options, found)
    if not wish.commands:
        say("note: no check was given; the result is only merged, not tested (--check CMD)")
    # Before anything is moved: a record may be damaged.
    notes = not_done(repo, choice.run, found)
    try:
        outcome = integrating.merge(repo, found, target, wish)
    except SkillError as error:
        row = {"name": target.removeprefix("refs/heads/"), "code": error.code, "why": error.message}
        error.data = {"blocked": [row], **error.data}
        error.next_actions = refusal_actions(repo, options, choice, found, error)
        raise
    outcome = outcome._replace(notes=[*outcome.notes, *notes])
    for note in outcome.notes:
        say(f"note: {note}")
    return merge_answer(repo, options, choice, wish, outcome)


def merge_fields() -> dict[str, Any]:
    """The fields that every answer of `merge` has, also that to a call which is not understood."""
    return {"integration": None, "merged": [], "blocked": [], "checks": []}


def refusal_actions(
    repo: Repository,
    options: argparse.Namespace,
    choice: Choice,
    found: list[Candidate],
    error: SkillError,
) -> list[dict[str, Any]]:
    """What to do about each candidate that is refused, then the same merge again."""
    from fanout import handover

    def command(verb: str, *words: str) -> str:
        return own_command(repo, verb, *words, *(into(options) if verb != "review" else []))

    by_name = {candidate.name: candidate for candidate in found}
    actions = [
        handover.action_for(
            handover.refused_row(by_name[row["name"]], row),
            choice.words([row["name"]]),
            command,
        )
        for row in error.data["blocked"]
        if row["name"] in by_name
    ]
    rows = [action for action in actions if action is not None]
    if any(row["action"] != "merge" for row in rows):
        names = [candidate.name for candidate in found]
        words = [*choice.words(names), *repeated(options, names)]
        why = "then merge again" + message_lost(options)
        rows.append(next_action("merge", own_command(repo, "merge", *words), why))
    return rows


def message_lost(options: argparse.Namespace) -> str:
    """What is said beside a command that cannot have the message which came from stdin."""
    return ", with the message as before (--message-file -)" if options.message_file == "-" else ""


def wish_of(repo: Repository, options: argparse.Namespace, found: list[Candidate]) -> Wish:
    """What the options ask of a merge. Raises SkillError `usage`, `no-identity` (exit 4)."""
    from fanout import candidates, integrations
    from fanout.building import Recipe
    from fanout.cli.common import read_prompt
    from fanout.integrating import Wish

    signing = integrations.signing_of(repo.top)._replace(limit=options.sign_timeout)
    message = read_prompt(None, options.message_file) or ""
    if options.message_file and not message.strip():
        raise usage("usage", f"the message file {options.message_file!r} is empty")
    if not all(command.strip() for command in options.check):
        raise usage("usage", "--check needs a command", "leave it out to merge without any check")
    exempt = exemptions(options.no_changelog_needed, found)
    # A call that is not understood is told first.
    integrations.require_identity(repo.top)
    commands = [*options.check, *(command for c in found for command in c.checks)]
    commands += candidates.run_checks(options.run) if options.run else []
    return Wish(
        commands=list(dict.fromkeys(commands)),
        timeout=options.check_timeout,
        recipe=Recipe(options.strategy, message.encode(), signing),
        exempt=exempt,
        dry_run=options.dry_run,
        book=candidates.named_book(options.run),
    )


def exemptions(words: list[str], found: list[Candidate]) -> dict[str, str]:
    """The reasons by name. Raises SkillError `usage`."""
    names = {candidate.name for candidate in found}
    reasons: dict[str, str] = {}
    for word in words:
        name, _, reason = word.partition("=")
        if name not in names or not reason.strip():
            raise usage(
                "usage",
                f"--no-changelog-needed {word!r} is not NAME=REASON for one of these candidates",
                f"names: {', '.join(sorted(names))}",
            )
        reasons[name] = reason.strip()
    return reasons


def merge_answer(
    repo: Repository,
    options: argparse.Namespace,
    choice: Choice,
    wish: Wish,
    outcome: Outcome,
) -> Answer:
    """The answer for a merge that was tried."""
    integration = outcome.integration
    data: dict[str, Any] = {
        "integration": {
            "id": integration.id,
            "branch": integration.short_branch,
            "before": integration.before,
            "after": integration.after or integration.before,
            "strategy": integration.strategy,
            "state": integration.state,
        },
        "merged": integration.merged if integration.state != "failed" else [],
        "already_merged": outcome.already,
        "blocked": integration.blocked,
        "checks": [check.to_json() for check in outcome.checks],
        "changelog": integration.changelog,
        "notes": outcome.notes,
    }
    if integration.state == "failed":
        return blocked_answer(repo, options, choice, wish, outcome, data)
    if wish.dry_run:
        data["would_check"] = wish.commands
        names = ", ".join(row["name"] for row in integration.merged) or "nothing"
        lines = [f"would merge into {integration.short_branch}: {names}"]
        lines += [f"would check: {command}" for command in wish.commands]
        lines += [f"would add to the changelog: {line}" for line in changelog_added(integration)]
        return Answer("merge", plain_text("\n".join(lines)), data)
    if not integration.merged:
        data["integration"] = None
        return Answer("merge", f"already merged: {', '.join(outcome.already)}", data)
    lines = [
        f"{integration.short_branch}: {integration.before[:12]} -> {integration.after[:12]} "
        f"({integration.id})"
    ]
    lines += [f"  merged {row['name']} at {row['head'][:12]}" for row in integration.merged]
    lines += [f"  passed {check.command} ({check.seconds:g} s)" for check in outcome.checks]
    lines += [f"  changelog {line}" for line in changelog_added(integration)]
    lines += [f"  already merged {name}" for name in outcome.already]
    undo_command = own_command(repo, "undo", integration.id)
    actions = (next_action("undo", undo_command, "take it back, if it turns out to be wrong"),)
    return Answer("merge", plain_text("\n".join(lines)), data, next_actions=actions)


def changelog_added(integration: Any) -> list[str]:
    """The first line of each entry that came into the changelog."""
    return [entry.strip().split("\n")[0] for entry in integration.changelog.get("added", [])]


def blocked_answer(
    repo: Repository,
    options: argparse.Namespace,
    choice: Choice,
    wish: Wish,
    outcome: Outcome,
    data: dict[str, Any],
) -> Answer:
    """The answer for a merge that a person has to decide about."""
    rows = outcome.integration.blocked
    first = rows[0]
    error = SkillError(
        first["code"],
        f"{first['name']}: {first['why']}",
        "nothing was merged; the branch is where it was",
        exit_code=ExitCode.BLOCKED,
    )
    lines = [f"{row['name']}: {row['code']}: {row['why']}" for row in rows]
    actions: list[dict[str, Any]] = []
    if "log" in first:
        from fanout.workers import quote_for_bash

        actions.append(
            next_action("read-log", f"cat {quote_for_bash(first['log'])}", "see how it failed")
        )
    if outcome.rest and first["code"] in ("conflict", "check-failed", "cannot-merge"):
        words = [*choice.words(outcome.rest), *repeated(options, outcome.rest)]
        why = f"merge {', '.join(outcome.rest)}"
        if options.dry_run:
            why += message_lost(options)
        elif options.message_file == "-":
            words += ["--message-file", kept_message(repo, outcome.integration.id, wish)]
        actions.append(next_action("merge", own_command(repo, "merge", *words), why))
    if first["code"] in ("conflict", "cannot-merge"):
        from fanout.handover import solve_text

        kind = "task" if choice.run else "branch" if choice.branches else "worker"
        why = f"{first['name']}: {solve_text(kind, first['name'])}"
        actions.append(next_action("decide", None, why))
    return Answer(
        "merge", plain_text("\n".join(lines)), data, ExitCode.BLOCKED, error, tuple(actions)
    )


def kept_message(repo: Repository, integration_id: str, wish: Wish) -> str:
    """Keep the message that came from stdin beside an integration's record; the file's path."""
    from fanout import integrations
    from fanout.records import write_file

    path = f"{integrations.folder(repo.common_dir, integration_id)}/message"
    write_file(path, wish.recipe.message)
    return path


def repeated(options: argparse.Namespace, names: list[str]) -> list[str]:
    """The options of a merge again, for a call with fewer names."""
    words = [*into(options), *(word for check in options.check for word in ("--check", check))]
    if options.check_timeout != CHECK_TIMEOUT:
        words += ["--check-timeout", f"{options.check_timeout:g}"]
    if options.sign_timeout != SIGN_TIMEOUT:
        words += ["--sign-timeout", f"{options.sign_timeout:g}"]
    if options.strategy != "merge":
        words += ["--strategy", options.strategy]
    if options.message_file and options.message_file != "-":
        words += ["--message-file", os.path.abspath(options.message_file)]
    for word in options.no_changelog_needed:
        if word.partition("=")[0] in names:
            words += ["--no-changelog-needed", word]
    return words


# --- Report and status ----------------------------------------------------------------------


def report(repo: Repository, options: argparse.Namespace) -> Answer:
    """`report`: what stands where, for whoever goes on."""
    data, actions, _ = stock(repo, options)
    from fanout import handover

    text = plain_text(handover.text_of(data, actions))
    if options.output:
        from fanout.records import write_file

        path = os.path.abspath(options.output)
        require_own_report(path)
        if not os.path.isdir(os.path.dirname(path)):
            raise missing("directory-missing", f"{os.path.dirname(path)!r} is not a folder")
        write_file(path, text.encode("utf-8", "backslashreplace"))
        data["output"] = path
    data["next_actions"] = list(actions)
    return Answer("report", text, data, next_actions=actions)


def require_own_report(path: str) -> None:
    """Demand that nothing but an earlier report is written over.

    Raises SkillError `output-exists` (exit 3).
    """
    from fanout.handover import TITLE

    if not os.path.lexists(path):
        return
    if os.path.isfile(path) and not os.path.islink(path):
        with open(path, "rb") as file:
            if file.read(len(TITLE)) == TITLE.encode():
                return
    raise refused(
        "output-exists", f"{path!r} is there already and is no report", "choose another --output"
    )


def stock(
    repo: Repository, options: argparse.Namespace
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...], Choice]:
    """What a report holds, and the commands that come next."""
    from fanout import candidates, handover
    from fanout.building import Recipe
    from fanout.integrating import Wish
    from fanout.integrations import Signing

    choice = choice_of(options, options.names)
    named = bool(options.names or options.run or options.branch)
    damaged: list[SkillError] = []
    if named:
        found = candidates.find(repo, choice)
    else:
        found, damaged = candidates.recorded(repo)
    book = candidates.named_book(options.run)
    wish = Wish([], 1.0, Recipe("merge", b"", Signing(False)), {}, False, book)
    target = original_branch(repo, found, options.into)
    if options.into:
        found = [candidate._replace(target=target) for candidate in found]
    whole_run = bool(options.run and not options.names)
    left = candidates.unfinished_tasks(options.run, found) if whole_run else []
    taken = handover.take_stock(repo, found, target, wish, left, damaged)

    def command(verb: str, *words: str) -> str:
        more = into(options) if verb in ("forecast", "merge") else []
        return own_command(repo, verb, *words, *more)

    return handover.to_json(taken), handover.next_actions(taken, choice, command), choice


def original_branch(repo: Repository, found: list[Candidate], into_branch: str) -> str:
    """The branch that a report is about: as recorded, or the caller's."""
    if into_branch:
        return "refs/heads/" + into_branch.removeprefix("refs/heads/")
    recorded = sorted({c.target for c in found if c.target})
    return recorded[0] if recorded else repo.branch or ""


def status(repo: Repository, options: argparse.Namespace) -> Answer:
    """`status`: a line for each candidate, and the newest integrations."""
    from fanout import integrations

    data, actions, _ = stock(repo, options)
    everything, _ = integrations.load_all(repo.common_dir)
    gone = integrations.undone(everything)
    rows = [
        {
            "id": i.id,
            "branch": i.short_branch,
            "state": "undone" if i.id in gone else i.state,
            "before": i.before,
            "after": i.after,
            "names": [row["name"] for row in i.merged],
            "undoes": i.undoes or None,
        }
        for i in everything
    ]
    data["integrations"] = rows
    lines = [f"{row['name']}: merged" for row in data["complete"]]
    lines += [f"{row['name']}: {row['what']}" for row in data["missing"]]
    for i in everything[-10:]:
        names = ", ".join(row["name"] for row in i.merged) or f"takes back {i.undoes}"
        state = "undone" if i.id in gone else i.state
        if state in integrations.UNFINISHED:
            state += " (interrupted; `report` says what to do)"
        lines.append(f"{i.id}: {state}: {names}")
    lines += data["damaged"]
    return Answer("status", plain_text("\n".join(lines)) or "nothing yet", data,
                  next_actions=actions)  # fmt: skip


# --- Undo -----------------------------------------------------------------------------------


def undo(repo: Repository, options: argparse.Namespace) -> Answer:
    """`undo`: where the branch is now."""
    from fanout import integrations
    from fanout.handover import undo as take_back

    integrations.require_identity(repo.top)
    outcome = take_back(repo, options.integration, options.check_timeout, dry_run=options.dry_run)
    for note in outcome.notes:
        say(f"note: {note}")
    made = outcome.integration
    moved = made.changelog["moved_back"]
    data = {
        "integration": {
            "id": made.id,
            "branch": made.short_branch,
            "before": made.before,
            "after": made.after,
            "undoes": made.undoes,
        },
        "moved_back": moved,
        "reverts": made.changelog["reverts"],
        "checks": [check.to_json() for check in outcome.checks],
        "notes": outcome.notes,
    }
    verb = "would take" if options.dry_run else "took"
    how = "the branch moves back" if moved else f"{len(data['reverts'])} revert commits"
    text = (
        f"{verb} back {made.undoes}: {made.short_branch} {made.before[:12]} -> {made.after[:12]} "
        f"({how})"
    )
    return Answer("undo", text, data)


# --- Changelog ------------------------------------------------------------------------------


def add_changelog(parser: Parser) -> None:
    """The options of `changelog`."""
    add_names(parser)
    add_into(parser)


def changelog(repo: Repository, options: argparse.Namespace) -> Answer:
    """`changelog`: the entries found, those missing, and what would be written where."""
    from fanout import candidates as work
    from fanout import changelog as room
    from fanout.changelog import tool_of
    from fanout.conventions import convention_of

    found = work.find(repo, choice_of(options, options.names))
    commit, branch = target_commit(repo, found, options.into)
    convention = convention_of(repo.common_dir, commit, work.named_book(options.run))
    names = [candidate.name for candidate in found]
    rows = [(c, room.find(repo, c, names, convention)) for c in found]
    entries = [entry for _, one in rows for entry in one.entries]
    changed = {c.name: tuple(room.changed_files(repo.common_dir, c)) for c, _ in rows}
    error = None
    made = room.Written({}, [], [])
    try:
        made = room.written(convention, entries, read_book(repo, commit, convention), changed)
    except SkillError as refusal:
        error = refusal
    data = {
        "convention": convention.to_json(),
        "tool": tool_of(convention, repo.top),
        "into": branch,
        "candidates": [row_of(candidate, one) for candidate, one in rows],
        "missing": [c.name for c, one in rows if one.missing and not one.problems],
        "would_write": [
            {"path": path, "content": shorten(content.decode("utf-8", "replace"), SHOWN)}
            for path, content in made.files.items()
        ],
        "added": made.added,
        "duplicates": made.duplicates,
    }
    text = plain_text("\n".join(lines_of(convention, rows, made)))
    if error is not None:
        return Answer("changelog", text, data, error.exit_code, error)
    return Answer("changelog", text, data)


def target_commit(repo: Repository, found: list[Candidate], into: str) -> tuple[str, str | None]:
    """The commit that work would go onto, and its branch; the caller's where none is recorded."""
    from fanout import git
    from fanout.candidates import target_of

    try:
        target = target_of(repo, found, into)
    except SkillError as error:
        if error.code != "no-integration-branch":
            raise
        return repo.head, repo.branch
    return git.ref_commit(repo.common_dir, target) or repo.head, target


def read_book(repo: Repository, commit: str, convention: Convention) -> bytes | None:
    """The changelog file of a commit; None where it is not there, or not what entries go into."""
    from fanout import git

    if convention.fragments:
        return None
    name = f"{commit}:{convention.path}"
    return git.read_objects(repo.common_dir, [name])[name]


def row_of(candidate: Candidate, found: Found) -> dict[str, Any]:
    """The row of `data.candidates`."""
    return {
        "name": candidate.name,
        "entries": [
            {"source": entry.source, "path": entry.path, "text": entry.text}
            for entry in found.entries
        ],
        "in_branch": found.paths,
        "problems": [{"code": code, "message": message} for code, message in found.problems],
        "missing": found.missing,
    }


def lines_of(
    convention: Convention, rows: list[tuple[Candidate, Found]], made: Written
) -> list[str]:
    """The answer for a person."""
    told = f" (told by {convention.found_in})" if convention.found_in else " (there is none yet)"
    kind = convention.path if convention.kind == "book" else convention.kind
    where = "" if convention.kind == "book" else f", fragments in {convention.path}/"
    lines = [f"changelog: {kind}{where}{told}"]
    for candidate, found in rows:
        told_by = [f"{path_text(entry.path)} ({entry.source})" for entry in found.entries]
        told_by += [f"{path_text(path)} (on the branch)" for path in found.paths]
        lines += [f"{candidate.name}: {place}" for place in told_by]
        lines += [f"{candidate.name}: refused: {message}" for _, message in found.problems]
        if found.missing and not found.problems:
            lines.append(f"{candidate.name}: no entry")
    for path in made.files:
        lines.append(f"would write {path_text(path)}")
    lines += [f"  + {first_line(text)}" for text in made.added]
    lines += [f"  = {first_line(text)} (there already)" for text in made.duplicates]
    return lines


def first_line(text: str) -> str:
    """How an entry begins."""
    return shorten(text.split("\n")[0], 160)
