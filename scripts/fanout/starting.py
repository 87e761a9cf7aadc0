"""From a prepared worker to a running agent that has its prompt; the same for spawn and resume.

Its prompt ends with the contract: where it works, what it owns, how it reports.
"""

from __future__ import annotations

import os
import sys
import time

from fanout import delivery, git, harness, proctree, records, tmux
from fanout import workers as life
from fanout.edition import HELPER
from fanout.errors import ExitCode, SkillError, refused
from fanout.fields import NamedTuple
from fanout.harness import Harness
from fanout.output import progress
from fanout.tmux import Launch, Server
from fanout.workers import Sending, Worker, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.conventions import Convention

TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contract.txt")
ENTRY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), HELPER)

# Modes in which the agent has its prompt from its start on.
GIVEN = ("argument", "file")
# tmux: MAX_IMSGSIZE is 16,384 bytes with its header.
ONE_MESSAGE = 16_000


class Start(NamedTuple):
    """One agent to start. `deadline` is of time.monotonic, or None; the rest is in seconds.

    `redraws` says that it takes up an earlier conversation.
    """

    worker: Worker
    harness: Harness
    prompt: str
    job: str
    settle: float
    ready_timeout: float
    deadline: float | None
    redraws: bool = False


class Started(NamedTuple):
    """How a start went: `error` is set when tmux or the delivery failed outright."""

    worker: Worker
    outcome: delivery.Outcome
    error: SkillError | None
    answers: tuple[str, ...] = ()


class Answers(NamedTuple):
    """The dialogs of a start that were answered, and what answers them."""

    told: list[str]
    answering: delivery.Answering


def write_start(
    common_dir: str,
    worker: Worker,
    mapping: Harness,
    prompt: str,
    number: str,
    session_args: tuple[str, ...],
    extra: dict[str, str],
) -> Worker:
    """Write the launcher of a start; returns the worker with its argument list.

    `extra` is what the caller adds to its environment.
    Raises SkillError: `prompt-unfit` for a prompt that its mode cannot carry, `environment-missing`
    (exit 4).
    """
    harness.require_variables(mapping, {**os.environ, **extra})
    folder = records.worker_dir(common_dir, worker.name)
    prompt_file = life.prompt_file(common_dir, worker.name, number)
    argv = harness.agent_argv(
        mapping,
        worker.executable,
        worker.agent_args,
        mode=worker.prompt_mode,
        prompt_arg=worker.prompt_arg,
        prompt=prompt,
        prompt_file=prompt_file,
        session_args=session_args,
        placeholders={
            "worktree": worker.worktree,
            "git_common_dir": common_dir,
            "prompt_file": prompt_file,
            "session_id": worker.session_id,
            "name": worker.name,
            "record_dir": folder,
        },
    )
    worker = worker._replace(argv=argv)
    env = tmux.environment_with(extra)
    for name in set(mapping.hide) - set(extra):
        env.pop(name, None)
    names = tmux.variable_names(env)
    # tmux sets SHELL to its own default shell; TERM and its company are tmux's to say.
    own = {**worker_variables(worker), **({"SHELL": env["SHELL"]} if "SHELL" in env else {})}
    # A tmux client leaves out what does not fit into one of its messages.
    own |= {name: env[name] for name in names if len(os.fsencode(name + env[name])) > ONE_MESSAGE}
    terminal = ["TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLORTERM", "PWD"]
    keep = [*names, *own, *terminal]
    script = life.launch_script(worker, record=folder, keep=keep, variables=own)
    records.write_file(os.path.join(folder, "launch.sh"), script)
    return worker


def new_session_id() -> str:
    """A random UUID, the form that agent CLIs take for a conversation of the caller's naming."""
    bits = bytearray(os.urandom(16))
    bits[6] = bits[6] & 0x0F | 0x40
    bits[8] = bits[8] & 0x3F | 0x80
    text = bits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def worker_variables(worker: Worker) -> dict[str, str]:
    """What the environment of a worker's processes adds to the caller's."""
    return {
        "AGENT_WORKER_ID": worker.launch,
        "AGENT_WORKER_NAME": worker.name,
        "AGENT_WORKER_WORKTREE": worker.worktree,
        "AGENT_WORKER_EVENT": event_command(),
    }


def start_agents(
    repo: git.Repository, starts: list[Start], env: dict[str, str]
) -> dict[str, Started]:
    """Start agents, bring them their prompts and watch them settle, all together; by name.

    `env` is what the caller adds to its environment for them. What fails is answered, not undone.
    """
    done = launch(repo.common_dir, starts, tmux.environment_with(env))
    launched = time.monotonic()
    alive = [start for start in starts if done[start.worker.name].error is None]
    answers = {
        s.worker.name: answers_of(repo.common_dir, s, done) for s in alive if s.harness.dialogs
    }
    deliver(repo.common_dir, alive, done, answers)
    alive = [start for start in starts if done[start.worker.name].error is None]
    watch(alive, done, launched, answers)
    for name, one in answers.items():
        done[name] = done[name]._replace(answers=tuple(one.told))
    return done


def answers_of(common_dir: str, start: Start, done: dict[str, Started]) -> Answers:
    """What answers the dialogs of one start, and records that it did."""
    worker = done[start.worker.name].worker
    told: list[str] = []

    def tell(dialog: str, keys: tuple[str, ...]) -> None:
        told.append(f"{dialog!r} by {' '.join(keys)}")
        life.record_event(
            common_dir, worker.name, "answered", job=start.job or None, dialog=dialog, keys=keys
        )

    def press(keys: tuple[str, ...]) -> None:
        worker.server.press(worker.pane, *keys)

    return Answers(told, delivery.Answering(start.harness, press, tell))


def launch(common_dir: str, starts: list[Start], env: dict[str, str]) -> dict[str, Started]:
    """Start the sessions, in one tmux call if none of them fails."""
    done: dict[str, Started] = {}
    variables = tmux.variable_names(env)
    queue = list(starts)
    while queue:
        chunk, queue = queue, []
        server = Server(("-L", chunk[0].worker.socket))
        launches = [launch_of(common_dir, start.worker) for start in chunk]
        answer = server.run_anew(*tmux.launch_commands(launches, variables), env=env)
        rows = [line.split("\t") for line in tmux.lines_of(answer.text)]
        started = proctree.start_times({int(row[1]) for row in rows})
        for start, row in zip(chunk, rows, strict=False):
            worker = start.worker._replace(
                pane=row[0],
                pane_pid=int(row[1]),
                pane_started=started.get(int(row[1]), ""),
                socket_path=row[2],
            )
            life.save(common_dir, worker)
            given = worker.prompt_mode in GIVEN
            done[worker.name] = Started(
                worker, delivery.Outcome(given, worker.prompt_mode, None, ""), None
            )
        if answer.code != 0:
            # The sequence ended at the session after the last one that was made.
            failed = chunk[min(len(rows), len(chunk) - 1)].worker
            error = launch_error(failed.session, answer.error_text)
            done[failed.name] = Started(failed, delivery.Outcome(False, "", None, ""), error)
            queue = chunk[len(rows) + 1 :]
    return done


def launch_of(common_dir: str, worker: Worker) -> Launch:
    """What tmux is told of one start."""
    folder = records.worker_dir(common_dir, worker.name)
    argv = ["/bin/sh", os.path.join(folder, "launch.sh")]
    return Launch(worker.session, worker.launch, argv, terminal_log(common_dir, worker.name))


def terminal_log(common_dir: str, name: str) -> str:
    """Where all that an agent prints is kept."""
    return os.path.join(records.worker_dir(common_dir, name), "terminal.log")


def launch_error(session: str, message: str) -> SkillError:
    """Why tmux did not start a session."""
    if "duplicate session" in message:
        return refused(
            "session-taken",
            f"the tmux server already has a session {session!r} that is not this worker's",
            "give another --session-prefix, or another --tmux-socket",
        )
    return SkillError("tmux-failed", f"tmux could not start the session: {message}", "run `doctor`")


def deliver(
    common_dir: str, starts: list[Start], done: dict[str, Started], answers: dict[str, Answers]
) -> None:
    """Paste the prompts where the mode is `paste`, all panes in one loop; the others got theirs."""
    pasting = [start for start in starts if start.worker.prompt_mode == "paste"]
    if not pasting:
        return
    progress("waiting for the agents to take their prompts")
    by_pane = {done[start.worker.name].worker.pane: start for start in pasting}
    deliveries = {
        pane: delivery.deliver(
            target_of(
                common_dir,
                done[start.worker.name].worker,
                start.harness,
                Sending(start.worker.launch, start.job, start.job, False, "", None, []),
                answering=answers[start.worker.name].answering if start.harness.dialogs else None,
                redraws=start.redraws,
            ),
            start.prompt,
            ready_timeout=start.ready_timeout,
        )
        for pane, start in by_pane.items()
    }
    server = done[pasting[0].worker.name].worker.server
    for pane, outcome in delivery.drive(server, deliveries, pasting[0].deadline).items():
        before = done[by_pane[pane].worker.name]
        failed = isinstance(outcome, SkillError)
        if failed or not outcome.typed or outcome.delivered or outcome.ended:
            life.clear_sending(common_dir, before.worker.name)
        done[before.worker.name] = (
            before._replace(error=outcome) if failed else before._replace(outcome=outcome)
        )


def target_of(
    common_dir: str,
    worker: Worker,
    mapping: Harness,
    sending: Sending,
    answering: delivery.Answering | None = None,
    *,
    redraws: bool = False,
) -> delivery.Target:
    """Where a worker's prompts go, and what is kept of one on its way."""

    def note(before: str, drawn: str | None, echo: list[int]) -> None:
        known = sending._replace(before=before, drawn=drawn, echo=echo)
        life.write_sending(common_dir, worker, known)

    return delivery.Target(
        server=worker.server,
        pane=worker.pane,
        harness=mapping,
        log=terminal_log(common_dir, worker.name),
        events=worker.events_file,
        note=note,
        said=life.prompts_given(common_dir, worker.name),
        answering=answering,
        redraws=redraws,
    )


def watch(
    starts: list[Start], done: dict[str, Started], launched: float, answers: dict[str, Answers]
) -> None:
    """Watch all new agents together until the settling time is over: who ended, and who asks.

    Where a mapping knows dialogs of the start, until the agent shows that it is past them.
    """
    settle = max((start.settle for start in starts), default=0.0)
    while settle > 0:
        server = done[starts[0].worker.name].worker.server
        panes, screens = server.look([done[start.worker.name].worker.pane for start in starts])
        moment = time.monotonic()
        coming = False
        for start in starts:
            name = start.worker.name
            before = done[name]
            outcome, expects = settled(start, before, panes, screens, answers.get(name))
            done[name] = before._replace(outcome=outcome)
            coming = coming or (expects and moment < launched + start.ready_timeout)
        over = all(done[start.worker.name].outcome.ended for start in starts)
        late = any(start.deadline is not None and moment >= start.deadline for start in starts)
        if (moment >= launched + settle and not coming) or over or late:
            return
        time.sleep(delivery.ROUND)


def settled(
    start: Start,
    before: Started,
    panes: dict[str, tmux.Pane],
    screens: dict[str, str],
    answers: Answers | None,
) -> tuple[delivery.Outcome, bool]:
    """What one more look at a new agent makes of its outcome; whether a dialog may still come."""
    outcome = before.outcome
    pane = life.own_pane(before.worker, panes)
    text = screens.get(before.worker.pane, "")
    if pane is None or pane.dead:
        return outcome._replace(ended=True, screen=text or outcome.screen), False
    if before.worker.prompt_mode == "paste":
        # Its delivery was looked after; a prompt that was taken may well lead to a question.
        return outcome, False
    known = None
    if answers is not None:
        moment = time.monotonic()
        known = answers.answering.look(text, pane.title, start.prompt, moment)
    dialog = known or harness.dialog_on_screen(start.harness, text, pane.title, start.prompt)
    expects = known == "" or (answers is not None and not dialog and not is_up(start, text, pane))
    return outcome._replace(dialog=dialog, screen=text), expects


def is_up(start: Start, text: str, pane: tmux.Pane) -> bool:
    """Whether a screen shows that an agent is past its start, where its mapping can tell."""
    rules = [r for r in (start.harness.ready, start.harness.idle, start.harness.busy) if r.patterns]
    found = any(rule.match(text, pane.title, start.prompt) is not None for rule in rules)
    return found or not rules


def undelivered(worker: Worker, outcome: delivery.Outcome) -> SkillError:
    """Why a prompt did not reach an agent that lives (exit 10)."""
    seen = "the screen shows:\n" + delivery.screen_excerpt(outcome.screen)
    look = f"look at it with: {worker.attach_command}\n"
    if outcome.dialog is not None:
        code = "agent-asks"
        message = (
            f"the agent of {worker.name!r} asks ({outcome.dialog}); the prompt was not submitted"
        )
        advice = "answer there, then send the prompt\n"
    elif not outcome.typed:
        code = "agent-not-ready"
        message = f"the agent of {worker.name!r} was not ready for input in time; nothing was typed"
        advice = "when it is ready, send the prompt; a longer --ready-timeout may help\n"
    else:
        code = "delivery-unproved"
        message = (
            f"the prompt was typed to {worker.name!r}, but nothing shows that the agent took it"
        )
        advice = "if the text stands in the input line, press Enter there\n"
    return SkillError(code, message, look + advice + seen, exit_code=ExitCode.BLOCKED)


def event_command() -> str:
    """The shell-quoted command prefix with which an agent reports.

    -I and -S keep the user's site packages out: a report must take milliseconds.
    """
    return " ".join(map(quote, [sys.executable, "-I", "-S", ENTRY, "event"]))


def contract(*, name: str, worktree: str, branch: str, owns: list[str]) -> str:
    """The contract's text for one worker."""
    with open(TEMPLATE, encoding="utf-8") as file:
        text = file.read()
    files = (
        f"You own only these files: {', '.join(owns)}. A change elsewhere is not accepted."
        if owns
        else "You own the files that your task names; leave all others as they are."
    )
    words = {
        "worktree": worktree,
        "branch": branch,
        "owns": files,
        "changelog": changelog_place(name, worktree),
        "event": event_command(),
    }
    # One pass: a value may hold what looks like a placeholder.
    parts = text.split("{")
    return parts[0] + "".join(
        words[key] + rest if closing and key in words else "{" + part
        for part in parts[1:]
        for key, closing, rest in [part.partition("}")]
    )


def changelog_place(name: str, worktree: str) -> str:
    """Where and in which form this repository keeps changelog entries, in words for the agent."""
    from fanout.conventions import convention_in

    try:
        convention = convention_in(worktree)
    except SkillError:
        # Settings that cannot be read are the coordinator's matter, not the worker's.
        return own_fragment(name, "CHANGELOG.md")
    if convention.kind == "book":
        return own_fragment(name, convention.path)
    return fragment_in_words(convention, name)


def own_fragment(name: str, book: str) -> str:
    """Where the entry goes that the coordinator puts into a file which all share."""
    return (
        f"the file .worker-runs/changelog/{name}.md in this worktree (git ignores it), one or more "
        f"lines of Markdown below a heading such as `### Added`; leave {book} itself alone."
    )


def fragment_in_words(convention: Convention, name: str) -> str:
    """The file that a worker writes for the repository's own tool, and what stands in it."""
    settings = convention.settings
    place, end = convention.path, convention.end
    markup = "reStructuredText" if end == ".rst" else "Markdown"
    book = settings.get("book")
    if convention.kind == "towncrier":
        kinds = ", ".join(row["key"] for row in settings["types"])
        return (
            f"one new file {place}/{settings['orphan']}{name}.<type>{end} for towncrier, <type> "
            f"being one of {kinds}; {markup} without bullet and heading. Leave {book} itself alone."
        )
    if convention.kind == "changesets":
        return (
            f"one new file {place}/{name}.md for changesets: between two lines `---` each package "
            'that you changed, such as `"name": patch` (or minor, major); below them what has '
            "changed. Leave the changelogs themselves alone."
        )
    if convention.kind == "scriv":
        head = f"Added, underlined with {settings['chars'][1]}" if end == ".rst" else "`### Added`"
        return (
            f"one new file {place}/{name}{end} for scriv, in {markup}: bullets below a heading "
            f"such as {head}. Leave {book} itself alone."
        )
    if convention.kind == "reno":
        sections = ", ".join(settings["sections"])
        return (
            f"one new file {place}/{name}-{os.urandom(8).hex()}.yaml for reno: below a section "
            f"({sections}) a list of texts in reStructuredText, each `  - |` and indented lines."
        )
    return f"one new fragment in {place}/, in the form of those that are there."
