"""What `wait`, `events` and `resume` of `agent_workers.py` answer."""

from __future__ import annotations

import argparse
import json
import time

from fanout.cli.common import read_prompt
from fanout.cli.worker_verbs import own_command
from fanout.errors import ExitCode, SkillError
from fanout.output import Answer, next_action, plain_text, reader_gone, shorten, write_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.git import Question, Repository
    from fanout.records import Event

FOLLOW_ROUND = 0.2


def wait(question: Question, options: argparse.Namespace) -> Answer:
    """`wait`: a row for each job that was waited for."""
    from fanout.ending import wait_for_jobs as wait_for_jobs

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
    from fanout.cli.worker_verbs import worker_fields
    from fanout.resuming import resume as resume_worker

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
