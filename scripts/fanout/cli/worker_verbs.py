"""What each verb of `agent_workers.py` answers, for a person and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from fanout.cli.common import command_line, read_prompt, warn
from fanout.edition import HELPER
from fanout.errors import ExitCode, SkillError, refused, usage, worst
from fanout.output import Answer, next_action, plain_text, reader_gone, shorten, write_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.git import Question, Repository
    from fanout.records import Event
    from fanout.spawning import Request, Spawned
    from fanout.steering import View
    from fanout.workers import Worker
    from fanout.worktrees import Status

PROG = HELPER


def own_command(repo: Repository, *words: str) -> str:
    """A command of this program that can be pasted."""
    return command_line(PROG, repo, *words)


def event(options: argparse.Namespace) -> Answer:
    """`event`: what an agent reports."""
    from fanout.records import report

    data = report(options.kind, options.message, options.data, options.repo)
    return Answer("event", f"reported {data['event']}", data)


def doctor(options: argparse.Namespace) -> Answer:
    """`doctor`: one line for each thing that was looked at."""
    from fanout.doctor import examine

    checks = examine(options.repo, options.harness, options.agent_cli, options.tmux_socket)
    bad = [check for check in checks if not check.ok]
    lines = [f"{'ok     ' if c.ok else 'MISSING'} {c.name:<12} {c.found}" for c in checks]
    error = None
    if bad:
        error = SkillError(
            "missing",
            "missing or unfit: " + ", ".join(check.name for check in bad),
            "; ".join(check.hint for check in bad if check.hint),
            exit_code=ExitCode.MISSING,
        )
    data = {"checks": [check.to_json() for check in checks]}
    code = ExitCode.MISSING if bad else ExitCode.DONE
    return Answer("doctor", "\n".join(lines), data, code, error)


def spawn(question: Question, options: argparse.Namespace) -> Answer:
    """`spawn`: one worker, or one for each prompt of a folder."""
    from fanout import spawning, tmux
    from fanout import workers as life

    repo = question.repository()
    many = options.prompts_dir is not None or options.plan is not None
    if options.plan is not None:
        requests = plan_requests(repo, options)
    else:
        requests = spawn_requests(repo, options)
    tmux.require_tmux()
    if options.dry_run:
        return spawn_plan(repo, requests, many)
    caller = life.start_caller_status(repo)
    results = spawning.spawn_all(repo, requests)
    status = life.finish_caller_status(caller)
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    stored: dict[str, list[str]] = {}
    for result in results:
        worker = None
        if result.worker is not None:
            worker = worker_json(result)
            worker["lacks"] = lacks_of(repo, status, result.worker, stored)
            texts.append(worker_text(result, worker["lacks"]))
        error = result.error.to_json() if result.error else None
        rows.append(
            {"name": result.name, "ok": result.error is None, "error": error, "worker": worker}
        )
    if not many:
        error = results[0].error
        code = error.exit_code if error else ExitCode.DONE
        data = {"worker": rows[0]["worker"], **(error.data if error else {})}
        return Answer("spawn", "\n".join(texts), data, code, error, spawn_actions(repo, results))
    errors = {result.name: result.error for result in results if result.error is not None}
    texts += [f"{name}: {e.message}\n  {e.hint}".rstrip() for name, e in errors.items()]
    error = None
    code = ExitCode.DONE
    if errors:
        # An agent that asks is no failure: it is there, and a person must answer it.
        blocked = all(e.exit_code == ExitCode.BLOCKED for e in errors.values())
        code = ExitCode.BLOCKED if blocked else ExitCode.FAILED
        message = f"{len(errors)} of {len(rows)} workers were not started well: "
        error = SkillError("spawn-failed", message + ", ".join(errors), exit_code=code)
    return Answer(
        "spawn", "\n".join(texts), {"workers": rows}, code, error, spawn_actions(repo, results)
    )


def lacks_of(
    repo: Repository, status: Status, worker: Worker, stored: dict[str, list[str]]
) -> dict[str, Any]:
    """What a new tree lacks; a question that cannot be answered is no fault of the spawn.

    `stored` keeps by base which files Git LFS keeps.
    """
    from fanout.workers import lacking, lfs_files

    try:
        if worker.base not in stored:
            stored[worker.base] = lfs_files(worker.worktree)
        return lacking(status, repo.top, worker.worktree, stored[worker.base])
    except SkillError as error:
        warn(f"what {worker.worktree!r} lacks is not known: {error.message}")
        return {}


def worker_json(result: Spawned) -> dict[str, Any]:
    """`data.worker` of `spawn`."""
    assert result.worker is not None
    return {
        **worker_fields(result.worker),
        "delivered": result.delivered,
        "note": result.note,
    }


def worker_fields(worker: Worker) -> dict[str, Any]:
    """What spawn and resume say of a worker."""
    return {
        "name": worker.name,
        "branch": worker.branch,
        "worktree": worker.worktree,
        "base": worker.base,
        "integration_branch": worker.integration_branch,
        "session": worker.session,
        "pane": worker.pane,
        "attach": worker.attach_command,
    }


def worker_text(result: Spawned, lacks: dict[str, Any]) -> str:
    """A new worker, for a person."""
    worker = result.worker
    assert worker is not None
    how = "delivered" if result.delivered else "NOT delivered"
    lines = [
        f"{worker.name}: spawned" + (f" ({result.note})" if result.note else ""),
        f"  branch    {worker.branch}, from {worker.base[:12]}",
        f"  worktree  {worker.worktree}",
        f"  prompt    {how} ({worker.prompt_mode})",
        f"  watch     {worker.attach_command}",
    ]
    words = {
        "uncommitted": "uncommitted changes of your checkout",
        "ignored": "ignored files of your checkout (--copy PATH brings them)",
        "submodules": "submodules (git submodule update --init)",
        "lfs_pointers": "Git LFS content (git lfs pull)",
    }
    for key, group in lacks.items():
        names = ", ".join(group["paths"][:3]) + (", ..." if group["count"] > 3 else "")
        lines.append(f"  lacks     {group['count']} {words[key]}: {names}")
    return "\n".join(lines)


def spawn_actions(repo: Repository, results: list[Spawned]) -> tuple[dict[str, Any], ...]:
    """What to do next after `spawn`."""
    from fanout.spawning import FIRST_JOB
    from fanout.workers import prompt_file

    rows: list[dict[str, Any]] = []
    for result in results:
        worker = result.worker
        if worker is not None and result.error is not None:
            rows.append(
                next_action("attach", worker.attach_command, f"see what {result.name} shows")
            )
            if result.error.code in ("agent-asks", "agent-not-ready"):
                path = prompt_file(repo.common_dir, worker.name, FIRST_JOB)
                command = own_command(repo, "send", worker.name, "--prompt-file", path)
                rows.append(next_action("send", command, "then bring it the whole prompt"))
    if any(result.worker is not None for result in results):
        rows.append(
            next_action("status", own_command(repo, "status"), "see how the workers get on")
        )
    return tuple(rows)


def spawn_plan(repo: Repository, requests: list[Request], many: bool) -> Answer:
    """What `spawn --dry-run` answers."""
    from fanout import spawning, worktrees

    rows: list[dict[str, Any]] = []
    taken = worktrees.taken_refs(repo.common_dir)
    for request in requests:
        spawning.check_request(repo, request)
        spawning.require_free_name(repo, request.name)
        worktrees.require_free_place(repo, request.worktree)
        worktrees.require_free_branch(repo, request.branch, taken)
        taken.add("refs/heads/" + request.branch)
        rows.append(
            {
                "name": request.name,
                "branch": request.branch,
                "worktree": request.worktree,
                "base": request.base,
                "session": request.session_prefix + request.name,
                "executable": request.executable,
                "prompt_mode": request.prompt_mode,
                "prompt": spawning.full_prompt(request),
            }
        )
    text = "\n".join(
        f"would spawn {row['name']}\n  branch    {row['branch']}, from {row['base'][:12]}\n"
        f"  worktree  {row['worktree']}\n"
        f"  agent     {row['executable']} (prompt by {row['prompt_mode']})"
        for row in rows
    )
    data: dict[str, Any] = {"workers": rows} if many else {"worker": rows[0]}
    return Answer("spawn", text, {"dry_run": True, **data})


def spawn_requests(repo: Repository, options: argparse.Namespace) -> list[Request]:
    """The checked requests of a `spawn` call."""
    from fanout import harness, records, spawning, tmux
    from fanout.git import resolve_commit

    started = time.monotonic()
    mapping = harness.load_harness(options.harness, options.agent_cli)
    mode = options.prompt_mode or mapping.prompt_mode
    prompts = read_prompts(options, mode)
    for name in prompts:
        records.require_name(name)
    try:
        agent_args = split_words(options.agent_args)
    except ValueError as error:
        raise usage(
            "invalid-agent-args", f"--agent-args {options.agent_args!r}: {error}"
        ) from error
    env: dict[str, str] = {}
    for pair in options.env:
        key, equals, value = pair.partition("=")
        if not equals or not tmux.is_variable(key):
            raise usage(
                "invalid-env",
                f"--env {pair[:80]!r} is not K=V",
                "use a name of letters, digits and '_'",
            )
        if key.startswith("AGENT_WORKER_"):
            raise usage("invalid-env", f"{key} is set by spawn itself", "use another name")
        env[key] = value
    if "\0" in options.session_prefix or not records.is_name("a" + options.session_prefix):
        raise usage(
            "invalid-prefix",
            f"{options.session_prefix[:80]!r} is not a session prefix",
            "use letters, digits, '-' and '_'",
        )
    socket = tmux.require_socket_name(options.tmux_socket or tmux.socket_for(repo.common_dir))
    executable = harness.require_executable(mapping.executable)
    base = resolve_commit(repo, options.base) if options.base is not None else repo.head
    folder: str | None = options.worktree
    if folder is not None and (not folder or "\0" in folder):
        raise usage("invalid-place", f"--worktree {folder!r} is not a path", "name a new folder")
    place = os.path.abspath(os.path.join(options.repo, folder)) if folder else None
    return [
        spawning.Request(
            name=name,
            prompt=prompt,
            harness=mapping,
            executable=executable,
            base=base,
            branch=options.branch if options.branch is not None else name,
            worktree=place or os.path.join(repo.main_root + ".worktrees", name),
            agent_args=agent_args,
            prompt_mode=mode,
            prompt_arg=options.prompt_arg if options.prompt_arg is not None else mapping.prompt_arg,
            owns=owned(options.owns),
            copies=options.copy,
            setups=options.setup,
            env=env,
            session_prefix=options.session_prefix,
            socket=socket,
            settle=options.settle,
            ready_timeout=options.ready_timeout,
            deadline=started + options.timeout if options.timeout is not None else None,
            with_contract=not options.no_contract,
        )
        for name, prompt in prompts.items()
    ]


def plan_requests(repo: Repository, options: argparse.Namespace) -> list[Request]:
    """The requests for tasks of a plan: each is what its runner would make, but interactive."""
    from fanout import git, judging, plan
    from fanout.runtimes import loop

    given = ("prompts_dir", "base", "branch", "worktree", "prompt", "prompt_file")
    if options.owns or any(getattr(options, name) is not None for name in given):
        raise usage(
            "usage",
            "--plan says names, prompts, branches, places, base and owned files itself",
            "leave out --prompt, --prompts-dir, --base, --branch, --worktree and --owns",
        )
    value = plan.load_plan(options.plan).value
    for name, text in value["variables"].items():
        value["variables"][name] = os.environ.get(f"PLAN_{name}", text)
    # What a value changes in the order counts as well.
    plan.order_tasks(value)
    units, waiting = judging.chosen_units(value, [n for n in (options.name, *options.more) if n])
    if waiting:
        warn("not started, because they wait for others: " + ", ".join(waiting[:20]))
    place: str = loop.fill(value["repo"], value["variables"])
    folder = os.path.join(str(options.repo), place)
    if git.open_repository(folder).common_dir != repo.common_dir:
        raise usage("other-repository", f"the plan is about {folder!r}", "give --repo DIR")
    root = loop.fill(value["worktree_root"], value["variables"])
    own = plan.agents_of(options.plan)
    requests: list[Request] = []
    for unit in units:
        told = {**unit.values, "REPO_ROOT": repo.main_root}
        row = unit.plan
        for text in (row["prompt"], row["base"] or value["base"], *row["owns"]):
            lost = [mark for mark in plan.marks_of(text) if mark in ("raw RUN_ID", "raw RUN_DIR")]
            if lost:
                raise usage("no-run", f"{unit.name} needs {lost[0][4:]}, which only a run has")
        if row["when"] is not None:
            warn(f"{unit.name} has a condition, which is not looked at here")
        harness, cli = options.harness, options.agent_cli
        if harness is None and cli is None:
            harness = own[unit.number]
            cli = None if harness else loop.fill(row["agent"]["cli"], told)
        base = loop.fill(row["base"] or value["base"], told)
        steps = [step for step in row["setup"] if step["when"] is None]
        changed = {
            "plan": None,
            "name": unit.name,
            "prompt": loop.fill(row["prompt"], told),
            "branch": unit.branch,
            "base": None if base == "HEAD" else base,
            "worktree": os.path.join(repo.main_root, root, unit.name) if root else None,
            "owns": plan.owned_by(row, told),
            "harness": harness,
            "agent_cli": cli,
            "setup": [*options.setup, *(loop.clear(step, told) for step in steps)],
        }
        requests += spawn_requests(repo, argparse.Namespace(**{**vars(options), **changed}))
    return requests


def owned(patterns: list[str]) -> list[str]:
    """Patterns of `--owns` as git takes them. Raises SkillError `invalid-owns` (exit 2)."""
    if not patterns:
        return []
    import re

    from fanout.partition import OWNED, normal

    for number, text in enumerate(patterns):
        if re.match(OWNED, text) is None or (not number and text.startswith("!")):
            raise usage(
                "invalid-owns",
                f"--owns {text[:80]!r} is no pattern of files in the repository",
                "give a relative path or pattern; `!` takes back what one before it gives",
            )
    return [normal(text) for text in patterns]


def split_words(text: str) -> list[str]:
    """Words as a shell takes them. Raises ValueError."""
    if not text.strip():
        return []
    from shlex import split

    return split(text)


def read_prompts(options: argparse.Namespace, mode: str) -> dict[str, str]:
    """The prompts of a `spawn` call by worker name."""
    if options.prompts_dir is None:
        if options.more:
            raise usage("usage", f"unrecognized arguments: {' '.join(options.more)}")
        if options.name is None:
            raise usage("usage", "give a NAME, or --prompts-dir DIR", f"see `{PROG} spawn --help`")
        prompt = read_prompt(options.prompt, options.prompt_file)
        if prompt is None and mode != "none":
            raise usage("usage", "a prompt is needed", "give --prompt TEXT or --prompt-file FILE")
        return {options.name: prompt or ""}
    single = (
        options.name,
        options.branch,
        options.worktree,
        options.prompt,
        options.prompt_file,
    )
    if any(value is not None for value in single):
        raise usage(
            "usage",
            "--prompts-dir takes names, branches, places and prompts from the folder",
            "leave out NAME, --branch, --worktree, --prompt and --prompt-file",
        )
    folder: str = options.prompts_dir
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        raise usage("prompt-unreadable", f"cannot read the folder {folder!r}: {error}") from error
    names = [entry.removesuffix(".md") for entry in entries if entry.endswith(".md")]
    if not names:
        raise usage(
            "prompt-missing",
            f"there is no NAME.md in {folder!r}",
            "name each prompt file after its worker",
        )
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            message = f"the prompt files {other + '.md'!r} and {name + '.md'!r} differ only by case"
            raise usage("invalid-name", message, "rename one of them")
    return {name: read_prompt(None, os.path.join(folder, name + ".md")) or "" for name in names}


def status(question: Question, options: argparse.Namespace) -> Answer:
    """`status`: a row for each worker; with --watch a line for each change."""
    from fanout import steering
    from fanout.workers import load_all

    repo = question.repository()

    def views() -> tuple[list[View], list[SkillError]]:
        workers, errors = load_all(repo.common_dir, options.names)
        return steering.view_all(repo, workers, files=not options.no_files), errors

    if options.watch:
        return watch(views, options.json)
    rows, errors = views()
    data = {
        "workers": [view.to_json() for view in rows] if options.json else [],
        "damaged": [error.to_json() for error in errors],
        "integration_branch": repo.branch,
    }
    error = errors[0] if errors else None
    code = ExitCode.FAILED if errors else ExitCode.DONE
    return Answer("status", status_table(rows), data, code, error, status_actions(repo, rows))


def watch(views: Any, as_json: bool) -> Answer:
    """Print a line for each change until the caller ends it or nobody reads any more."""
    seen: dict[str, str] = {}
    told: set[str] = set()
    reading = True
    while reading:
        rows, errors = views()
        for error in errors:
            if error.message not in told:
                told.add(error.message)
                warn(error.message)
        lines = {
            view.worker.name: json.dumps(view.to_json()) if as_json else status_line(view)
            for view in rows
        }
        changed = [line for name, line in lines.items() if seen.get(name) != line]
        for name in seen.keys() - lines.keys():
            row = {"name": name, "state": None}
            changed.append(json.dumps(row) if as_json else f"{name}: no longer there")
        seen = lines
        if changed:
            reading = write_out("\n".join(changed) + "\n")
        if reading:
            time.sleep(1.0)
            reading = not reader_gone()
    return Answer("status", "", {})


def status_line(view: View) -> str:
    """One worker in one line."""
    word = view.state.word
    if view.state.exit_code is not None:
        word += f" ({view.state.exit_code})"
    dirty = "?" if view.dirty is None else str(view.dirty)
    ahead = "?" if view.ahead is None else str(view.ahead)
    job = f"{view.job.id or '-'} {view.job.state}"
    name, branch, detail = view.worker.name, view.worker.branch, shorten(view.state.detail, 80)
    row = f"{name:<20} {word:<13} {ahead:>5} {dirty:>5}  {job:<16} {branch}  {detail}"
    return row.rstrip()


def status_table(views: list[View]) -> str:
    """All workers for a person."""
    if not views:
        return "no workers"
    head = f"{'worker':<20} {'state':<13} {'ahead':>5} {'dirty':>5}  {'job':<16} branch"
    return "\n".join([head, *map(status_line, views)])


def status_actions(repo: Repository, views: list[View]) -> tuple[dict[str, Any], ...]:
    """What to do next, for workers that need somebody."""
    rows: list[dict[str, Any]] = []
    for view in views[:20]:
        name = view.worker.name
        if view.state.word == "waiting":
            rows.append(
                next_action(
                    "attach", view.worker.attach_command, f"{name} asks: {view.state.detail}"
                )
            )
        elif view.state.word in ("exited", "gone"):
            rows.append(
                next_action(
                    "capture", own_command(repo, "capture", name, "--log"), f"see how {name} ended"
                )
            )
    return tuple(rows)


def capture(question: Question, options: argparse.Namespace) -> Answer:
    """`capture`: the agent's last lines."""
    from fanout import workers
    from fanout.workers import load

    repo = question.repository()
    common = repo.common_dir
    text = workers.capture(common, load(common, options.name), options.lines, from_log=options.log)
    data = {"name": options.name, "text": text, "source": "log" if options.log else "screen"}
    return Answer("capture", text, data)


def send(question: Question, options: argparse.Namespace) -> Answer:
    """`send`: a follow-up prompt."""
    from fanout.prompting import send as send_prompt

    repo = question.repository()
    prompt = read_prompt(options.prompt, options.prompt_file)
    if prompt is None:
        raise usage("usage", "a prompt is needed", "give --prompt TEXT or --prompt-file FILE")
    try:
        sent = send_prompt(repo, options.name, prompt, anew=options.anew)
    except SkillError as error:
        error.data = {"name": options.name, "delivered": False, **error.data}
        raise
    worker = sent.worker
    data = {
        "name": worker.name,
        "delivered": True,
        "evidence": sent.evidence,
        "job": sent.job,
        "already_typed": sent.again,
    }
    watch_it = next_action(
        "capture", own_command(repo, "capture", worker.name), "see what it does with it"
    )
    text = f"{worker.name}: delivered (seen by: {sent.evidence})"
    if sent.again:
        text += "; an earlier send had typed it already"
    return Answer("send", text, data, next_actions=(watch_it,))


def attach(question: Question, options: argparse.Namespace) -> Answer:
    """`attach`: become the tmux client, or print how."""
    from fanout import workers
    from fanout.process import become

    repo = question.repository()
    worker = workers.load(repo.common_dir, options.name)
    pane = workers.own_pane(worker, worker.server.panes())
    if pane is None:
        raise refused(
            "no-pane",
            f"the tmux session of {worker.name!r} is no longer there",
            "see capture --log",
        )
    # A person may have renamed the session.
    worker = worker._replace(session=pane.session)
    data = {"name": worker.name, "attach": worker.attach_command}
    if options.print or options.json:
        return Answer("attach", worker.attach_command, data)
    if sys.stdin is None or not sys.stdin.isatty():
        raise refused(
            "no-terminal",
            "attach needs a terminal",
            f"give --print, or run: {worker.attach_command}",
        )
    return become(["tmux", *worker.server.address, "attach-session", "-t", "=" + worker.session])


def stop(question: Question, options: argparse.Namespace) -> Answer:
    """`stop`: all together, each name decided by itself."""
    from fanout import ending
    from fanout.workers import load

    repo = question.repository()
    for name in options.names:
        load_or_damaged(load, repo.common_dir, name)
    outcomes = ending.stop_all(repo, options.names)
    rows: list[dict[str, Any]] = []
    errors: list[SkillError] = []
    for name in dict.fromkeys(options.names):
        outcome = outcomes[name]
        if isinstance(outcome, SkillError):
            errors.append(outcome)
            rows.append({"name": name, "ok": False, "result": None, "error": outcome.to_json()})
        else:
            rows.append({"name": name, "ok": True, "result": outcome, "error": None})
    text = "\n".join(f"{row['name']}: {row['result'] or row['error']['message']}" for row in rows)
    code = worst([error.exit_code for error in errors])
    return Answer("stop", text, {"workers": rows}, code, errors[0] if errors else None)


def cleanup(question: Question, options: argparse.Namespace) -> Answer:
    """`cleanup`: what was removed, and why the rest was not."""
    from fanout import cleaning, records
    from fanout.workers import load

    repo = question.repository()
    if bool(options.names) == options.merged:
        raise usage("usage", "give NAMEs, or --merged", f"see `{PROG} cleanup --help`")
    if options.merged and options.discard:
        raise usage("usage", "--merged takes only what is integrated; --discard needs names")
    for name in options.names:
        load_or_damaged(load, repo.common_dir, name)
    names = options.names or records.worker_names(repo.common_dir)
    choice = cleaning.Choice(
        options.merged, options.branch_delete, options.discard, options.dry_run
    )
    results = cleaning.clean(repo, names, choice)
    gone = [result for result in results if result.removed]
    kept = [result for result in results if not result.removed]
    data = {
        "removed": [result.name for result in gone],
        "refused": [{"name": r.name, "reasons": cleaning.reasons_json(r.reasons)} for r in kept],
        "workers": [result.to_json() for result in results],
        "dry_run": options.dry_run,
    }
    lines = [cleanup_text(result, dry_run=options.dry_run) for result in results]
    text = "\n".join(lines) or "nothing to clean up"
    if options.dry_run:
        text = "dry run: nothing was changed\n" + text
    error = None
    if kept and not options.merged:
        error = SkillError(
            "cleanup-refused",
            (
                "kept, another command works on them: "
                if is_busy(kept)
                else "kept, see the reasons: "
            )
            + ", ".join(result.name for result in kept),
            "see the reasons; integrate the work, stop the agent, or save it with --discard",
            exit_code=ExitCode.BUSY if is_busy(kept) else ExitCode.REFUSED,
        )
    code = error.exit_code if error else ExitCode.DONE
    return Answer("cleanup", text, data, code, error, cleanup_actions(repo, kept))


def load_or_damaged(load: Any, common_dir: str, name: str) -> None:
    """Demand that a name is known; a damaged record is a reason to keep it, not an unknown name."""
    try:
        load(common_dir, name)
    except SkillError as error:
        if error.code != "record-damaged":
            raise
        warn(error.message)


def is_busy(kept: list[Any]) -> bool:
    """Whether another command works on one of the workers that were kept."""
    return any(reason.code == "busy" for result in kept for reason in result.reasons)


def cleanup_text(result: Any, *, dry_run: bool) -> str:
    """One worker's clean-up for a person."""
    if result.removed:
        done = "would be removed" if dry_run else "removed"
        lines = [f"{result.name}: {done}" + (", branch deleted" if result.branch_deleted else "")]
        if result.rescue:
            lines.append(f"  saved under {result.rescue}")
        lines += [f"  {note}" for note in result.notes]
        return "\n".join(lines)
    lines = [f"{result.name}: kept"]
    for reason in result.reasons:
        # One alone may be a sentence.
        width = 400 if len(reason.paths) == 1 else 120
        shown = ", ".join(shorten(path, width) for path in reason.paths[:5])
        more = f" and {len(reason.paths) - 5} more" if len(reason.paths) > 5 else ""
        lines.append(f"  {reason.code}: {shown}{more}")
    return "\n".join(lines)


def cleanup_actions(repo: Repository, kept: list[Any]) -> tuple[dict[str, Any], ...]:
    """What to do about workers that were kept."""
    rows: list[dict[str, Any]] = []
    for result in kept[:20]:
        codes = {reason.code for reason in result.reasons}
        if "running" in codes:
            rows.append(
                next_action(
                    "stop",
                    own_command(repo, "stop", result.name),
                    f"end the agent of {result.name}",
                )
            )
        else:
            rows.append(
                next_action(
                    "status", own_command(repo, "status", result.name), f"look at {result.name}"
                )
            )
    return tuple(rows)


# --- Jobs: wait, events, resume -------------------------------------------------------------


FOLLOW_ROUND = 0.2


def wait(question: Question, options: argparse.Namespace) -> Answer:
    """`wait`: a row for each job that was waited for."""
    from fanout.ending import wait_for_jobs

    repo = question.repository()
    started = time.monotonic()
    deadline = started + options.timeout if options.timeout is not None else None
    rows, code = wait_for_jobs(
        repo,
        list(dict.fromkeys(options.names)),
        first=options.any,
        until=options.until,
        deadline=deadline,
    )
    data = {"workers": [row.to_json() for row in rows]}
    lines: list[str] = []
    for row in rows:
        said = shorten(plain_text(row.job.error or row.job.message), 200)
        lines.append(f"{row.name}: {row.job.state}" + (f" ({said})" if said else ""))
    error = None
    actions: list[dict[str, Any]] = []
    if code == ExitCode.TIMED_OUT:
        late = ", ".join(row.name for row in rows if row.job.is_open)
        message = f"not ended in {options.timeout:g} s: {late}"
        error = SkillError("deadline-passed", message, "wait again")
    elif code == ExitCode.FAILED:
        bad = [row for row in rows if row.job.state in ("failed", "cancelled")]
        error = SkillError("job-failed", "did not complete: " + ", ".join(row.name for row in bad))
        for row in bad[:20]:
            command = own_command(repo, "capture", row.name, "--log")
            actions.append(next_action("capture", command, f"see how {row.name} ended"))
    return Answer("wait", "\n".join(lines) or "no open job", data, code, error, tuple(actions))


def events(question: Question, options: argparse.Namespace) -> Answer:
    """`events`: the newest events of one worker; with --follow a line for each as it comes."""
    from fanout import workers

    repo = question.repository()
    worker = workers.load(repo.common_dir, options.name)
    found = workers.read_events(repo.common_dir, worker)
    rows = [event_json(worker.name, number, event) for number, event in enumerate(found, 1)]
    shown = rows[-options.limit :]
    if options.follow:
        return follow(repo, options.name, shown, len(rows), as_json=options.json)
    data = {"name": worker.name, "events": shown, "left_out": len(rows) - len(shown)}
    return Answer("events", "\n".join(map(event_line, shown)) or "no events", data)


def follow(
    repo: Repository, name: str, shown: list[dict[str, Any]], count: int, *, as_json: bool
) -> Answer:
    """Print events as they come, each once.

    Ends when it is interrupted, when the worker's record is gone, or when nobody reads any more.
    """
    from fanout import workers

    worker = workers.load(repo.common_dir, name)
    seen = {event_key(event) for event in workers.read_events(repo.common_dir, worker)[:count]}
    for row in shown:
        write_out((json.dumps(row) if as_json else event_line(row)) + "\n")
    while not reader_gone():
        time.sleep(FOLLOW_ROUND)
        try:
            worker = workers.load(repo.common_dir, name)
        except SkillError:
            break
        for event in workers.read_events(repo.common_dir, worker):
            key = event_key(event)
            if key not in seen:
                seen.add(key)
                count += 1
                row = event_json(name, count, event)
                write_out((json.dumps(row) if as_json else event_line(row)) + "\n")
    return Answer("events", "", {"name": name, "events": []})


def event_key(event: Event) -> str:
    """What tells one event from another."""
    return json.dumps([event.at, event.event, event.job, event.data], sort_keys=True)


def event_json(name: str, number: int, event: Event) -> dict[str, Any]:
    """The row of `data.events`."""
    return {
        "seq": number,
        "at": event.at,
        "event": event.event,
        "worker": name,
        "job": event.job,
        "data": event.data,
    }


def event_line(row: dict[str, Any]) -> str:
    """One event for a person."""
    facts = {key: value for key, value in row["data"].items() if key != "before"}
    message = str(facts.pop("message", ""))
    rest = " ".join(f"{key}={value}" for key, value in facts.items())
    head = f"{row['seq']:>4}  {row['at'][:19]}Z  {row['event']:<10} {row['job'] or '-':<5}"
    text = f"{head} {message} {rest}"
    return shorten(plain_text(text).replace("\n", " ").rstrip(), 300)


def resume(question: Question, options: argparse.Namespace) -> Answer:
    """`resume`: the worker, and whether its conversation is the same."""
    from fanout.prompting import resume as resume_worker

    repo = question.repository()
    prompt = read_prompt(options.prompt, options.prompt_file)
    done = resume_worker(repo, options.name, prompt, options.settle)
    row = {
        **worker_fields(done.worker),
        "delivered": done.delivered,
        "conversation": done.conversation,
        "job": done.job,
    }
    words = "the same conversation" if done.conversation == "same" else "a new conversation"
    how = "delivered" if done.delivered else "NOT delivered"
    text = (
        f"{done.worker.name}: resumed in {words}\n  prompt    {how}\n"
        f"  watch     {done.worker.attach_command}"
    )
    code = done.error.exit_code if done.error else ExitCode.DONE
    actions: tuple[dict[str, Any], ...] = ()
    if done.error is not None:
        actions = (
            next_action("attach", done.worker.attach_command, f"see what {done.worker.name} shows"),
        )
    return Answer("resume", text, {"worker": row}, code, done.error, actions)
