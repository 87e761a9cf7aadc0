"""Start workers: worktree, record, agent, prompt. All or nothing for each worker."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import NamedTuple

from fanout import (
    contract,
    copies,
    delivery,
    git,
    harness,
    proctree,
    records,
    takeback,
    tmux,
    worktrees,
)
from fanout import workers as life
from fanout.errors import ExitCode, SkillError, refused, usage
from fanout.harness import Harness
from fanout.output import progress
from fanout.tmux import Launch, Server
from fanout.workers import Worker

LOCK_WAIT = 60.0
SETUP_LIMIT = 600.0
PROMPT_LIMIT = 10_000_000
FIRST_JOB = "0001"
THREADS = 4


class Request(NamedTuple):
    """What one worker is asked to be. `deadline` is of time.monotonic, or None."""

    name: str
    prompt: str
    harness: Harness
    executable: str
    base: str
    branch: str
    worktree: str
    agent_args: list[str]
    prompt_mode: str
    prompt_arg: str
    owns: list[str]
    copies: list[str]
    setups: list[str]
    env: dict[str, str]
    session_prefix: str
    socket: str
    settle: float
    ready_timeout: float
    deadline: float | None
    with_contract: bool


class Spawned(NamedTuple):
    """How one spawn ended. With `error` and a worker, the worker was kept nevertheless."""

    name: str
    worker: Worker | None
    delivered: bool
    error: SkillError | None
    note: str = ""


def spawn_all(repo: git.Repository, requests: list[Request]) -> list[Spawned]:
    """Start workers, each all or nothing; the answers are in the order of the requests."""
    made: dict[str, Worker] = {}
    errors: dict[str, SkillError] = {}
    done: list[Spawned] = []
    with contextlib.ExitStack() as locks:
        for request in requests:
            try:
                locks.enter_context(life.lock(repo.common_dir, request.name))
            except SkillError as error:
                errors[request.name] = error
        try:
            prepare_all(repo, [r for r in requests if r.name not in errors], made, errors)
            launch_all(repo, [r for r in requests if r.name in made], made, errors)
            launched = time.monotonic()
            started = [r for r in requests if r.name in made]
            outcomes = deliver_all(repo, started, made, errors)
            started = [r for r in requests if r.name in made]
            watch_all(started, made, outcomes, launched)
            for request in requests:
                worker = made.get(request.name)
                if worker is None:
                    done.append(Spawned(request.name, None, False, errors[request.name]))
                    continue
                require_time(request, "see the agent settle")
                done.append(conclude(repo, request, worker, outcomes[request.name]))
                del made[request.name]
        except BaseException:
            # A signal, the deadline, or a fault: what is not concluded is taken back.
            for worker in made.values():
                takeback.take_back(repo, worker)
            raise
    return done


# --- Checking and making -------------------------------------------------------------------


def check_request(repo: git.Repository, request: Request) -> None:
    """Demand all that can be known before anything is made."""
    records.require_name(request.name)
    if request.branch != request.name:
        git.require_branch_name(repo, request.branch)
    for path in request.copies:
        source = os.path.join(repo.top, worktrees.require_relative(path))
        if not os.path.lexists(source):
            raise usage(
                "copy-missing", f"{path!r} is not in {repo.top!r}", "give a path that is there"
            )
        if not os.path.realpath(source).startswith(repo.top + "/"):
            raise usage(
                "path-outside",
                f"{path!r} leads out of the checkout",
                "copy it by a --setup command",
            )
    require_prompt(request.prompt)
    if request.prompt_mode == "argument":
        harness.require_argument(full_prompt(request), request.prompt_arg)
    if request.prompt_mode == "paste":
        delivery.require_pasteable(full_prompt(request))


def require_prompt(prompt: str) -> None:
    """Demand a prompt that can be kept and passed on."""
    if not prompt.strip():
        raise usage("prompt-empty", "the prompt is empty", "say what the worker should do")
    if "\0" in prompt:
        raise usage("prompt-unfit", "the prompt holds a NUL byte", "remove it")
    if len(prompt) > PROMPT_LIMIT:
        raise usage(
            "prompt-unfit", f"the prompt is longer than {PROMPT_LIMIT} characters", "shorten it"
        )


def full_prompt(request: Request) -> str:
    """The prompt as the agent gets it, with the contract at its end."""
    if not request.with_contract:
        return request.prompt
    return (
        request.prompt.rstrip("\n")
        + "\n"
        + contract.contract(
            name=request.name, worktree=request.worktree, branch=request.branch, owns=request.owns
        )
    )


def prepare_all(
    repo: git.Repository,
    requests: list[Request],
    made: dict[str, Worker],
    errors: dict[str, SkillError],
) -> None:
    """Make worktree and record of each worker, a few at a time."""
    queue = list(reversed(requests))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                request = queue.pop()
            except IndexError:
                return
            progress(f"{request.name}: making the worktree")
            try:
                prepare(repo, request, made)
            except SkillError as error:
                errors[request.name] = error
            except OSError as error:
                errors[request.name] = SkillError("file-failed", f"{request.name}: {error}")

    if len(requests) == 1:
        work()
    else:
        threads = [threading.Thread(target=work) for _ in range(min(THREADS, len(requests)))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    for name in errors:
        worker = made.pop(name, None)
        if worker is not None:
            errors[name] = takeback.taken_back(repo, worker, errors[name])


def prepare(repo: git.Repository, request: Request, made: dict[str, Worker]) -> None:
    """Make one worker's record, branch, worktree and files; `made` knows it from the start."""
    check_request(repo, request)
    worker = reserve(repo, request, made)
    worktrees.fill_worktree(worker.worktree)
    left = run_hook(repo, worker, request)
    copied = copies.copy_files(repo.top, worker.worktree, request.copies)
    left = run_setups(repo, worker, request) or left
    if left:
        status = worktrees.read_status(worker.worktree, ignored=True)
        changed = {*status.staged, *status.modified, *status.untracked, *status.ignored}
        worker = worker._replace(made=sorted(changed))
    require_on_branch(worker)
    made[request.name] = worker._replace(copied=copied)
    require_time(request, "make the worktree")


def reserve(repo: git.Repository, request: Request, made: dict[str, Worker]) -> Worker:
    """Take the name, the place and the branch, in that order, under the repository's lock."""
    common = repo.common_dir
    folder = records.worker_dir(common, request.name)
    with records.lock(common, "repository", wait=LOCK_WAIT, what="this repository's worktrees"):
        takeback.recover(repo, request.name)
        require_free_name(repo, request.name)
        worktrees.require_free_place(repo, request.worktree)
        worktrees.require_free_branch(repo, request.branch)
        exclude_runs(common)
        records.make_dir(folder)
        worker = Worker(
            name=request.name,
            phase="spawning",
            launch=records.new_id(),
            worktree=request.worktree,
            admin_dir="",
            branch=request.branch,
            base=request.base,
            integration_branch=repo.branch,
            socket=request.socket,
            socket_path="",
            session=request.session_prefix + request.name,
            pane="",
            pane_pid=0,
            server_pid=0,
            boot_id=proctree.boot_id(),
            mapping=request.harness.mapping,
            executable=request.executable,
            argv=[],
            prompt_mode=request.prompt_mode,
            session_id="",
            owns=request.owns,
            copied={},
            made=[],
            ready_timeout=request.ready_timeout,
            created_at=records.now(),
        )
        life.save(common, worker)
        made[request.name] = worker
        admin = worktrees.add_worktree(repo, request.worktree, request.branch, request.base)
    # Links in the path are resolved once; later every command demands this very path.
    worker = worker._replace(worktree=os.path.realpath(request.worktree), admin_dir=admin)
    made[request.name] = worker
    return worker


def require_free_name(repo: git.Repository, wanted: str) -> None:
    """Demand that no worker has this name. Raises SkillError `worker-exists` (exit 3)."""
    for name in records.worker_names(repo.common_dir):
        if name.casefold() == wanted.casefold():
            raise refused(
                "worker-exists",
                f"there is already a worker {name!r}",
                f"choose another name, or end it: agent_workers.py cleanup {name}",
            )


def exclude_runs(common_dir: str) -> None:
    """Keep `.worker-runs/` out of git, in the repository's own exclude file."""
    path = os.path.join(common_dir, "info", "exclude")
    line = f"/{life.RUNS}/"
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        content = b""
    if line.encode() in content.splitlines():
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        file.write(
            (b"" if content.endswith(b"\n") or not content else b"\n") + line.encode() + b"\n"
        )


def run_hook(repo: git.Repository, worker: Worker, request: Request) -> bool:
    """Run the repository's post-checkout hook; True when it ran. Its failure is the spawn's."""
    log = os.path.join(records.worker_dir(repo.common_dir, worker.name), "setup.log")
    argv = worktrees.checkout_hook(repo, worker.base)
    if argv is None:
        return False
    run_step(worker, request, argv, log, "the post-checkout hook", "hook-failed")
    return True


def run_setups(repo: git.Repository, worker: Worker, request: Request) -> bool:
    """Run the `--setup` commands one after the other; True when there were any."""
    log = os.path.join(records.worker_dir(repo.common_dir, worker.name), "setup.log")
    for command in request.setups:
        progress(f"{worker.name}: {command}")
        run_step(
            worker,
            request,
            ["bash", "-c", command],
            log,
            f"the set-up command {command!r}",
            "setup-failed",
        )
    return bool(request.setups)


def run_step(
    worker: Worker, request: Request, argv: list[str], log: str, what: str, code: str
) -> None:
    """Run one command in the new worktree, bounded and logged."""
    limit = SETUP_LIMIT
    if request.deadline is not None:
        limit = min(limit, max(0.1, request.deadline - time.monotonic()))
    env = tmux.environment_with({**request.env, **worker_variables(worker)})
    status = proctree.run_logged(
        argv, cwd=worker.worktree, env=env, log=log, timeout=limit, mark=worker.mark
    )
    if status is None:
        if request.deadline is not None and time.monotonic() >= request.deadline:
            raise delivery.deadline_passed(f"{what} of {worker.name!r} (ended)")
        raise SkillError(code, f"{what} did not end in {limit:.0f} s", log_tail(log))
    if status != 0:
        raise SkillError(code, f"{what} failed with exit code {status}", log_tail(log))


def log_tail(log: str) -> str:
    """The end of a log, for an error's hint."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 2000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return (
        "its output ends with:\n" + delivery.screen_excerpt(text)
        if text.strip()
        else "it printed nothing"
    )


def require_on_branch(worker: Worker) -> None:
    """Demand that hooks and set-up left the new tree where it was put."""
    current, commit = git.current_ref(worker.worktree)
    if current != worker.branch_ref or commit != worker.base:
        where = current or "a detached commit"
        raise SkillError(
            "worktree-moved",
            f"a hook or a set-up command took the new worktree to {where} at {commit[:12]}",
            f"it must stay on {worker.branch!r} at {worker.base[:12]}; look at the hooks",
        )


def require_time(request: Request, what: str) -> None:
    """Demand that the call's own deadline has not passed."""
    if request.deadline is not None and time.monotonic() >= request.deadline:
        raise delivery.deadline_passed(what)


def worker_variables(worker: Worker) -> dict[str, str]:
    """What the environment of a worker's processes adds to the caller's."""
    return {
        "AGENT_WORKER_ID": worker.launch,
        "AGENT_WORKER_NAME": worker.name,
        "AGENT_WORKER_WORKTREE": worker.worktree,
        "AGENT_WORKER_EVENT": contract.event_command(),
    }


# --- Starting and watching -----------------------------------------------------------------


def launch_all(
    repo: git.Repository,
    requests: list[Request],
    made: dict[str, Worker],
    errors: dict[str, SkillError],
) -> None:
    """Start the agents, all with one tmux call (or as few as the length of a message allows)."""
    launches: list[tuple[Request, Launch]] = []
    env = tmux.environment_with(requests[0].env if requests else {})
    variables = tmux.variable_names(env)
    for request in requests:
        worker = write_start(repo, request, made[request.name], variables, env)
        made[request.name] = worker
        folder = records.worker_dir(repo.common_dir, worker.name)
        argv = ["/bin/sh", os.path.join(folder, "launch.sh")]
        launches.append(
            (
                request,
                Launch(worker.session, worker.launch, argv, os.path.join(folder, "terminal.log")),
            )
        )
    while launches:
        size = tmux.MESSAGE_LIMIT // (len(" ".join(variables)) + 1200) or 1
        chunk, launches = launches[:size], launches[size:]
        server = Server(("-L", chunk[0][0].socket))
        commands = [c for _, launch in chunk for c in tmux.launch_commands(launch, variables)]
        done = server.run(*commands, env=env)
        rows = [line.split("\t") for line in tmux.lines_of(done.text)]
        for (request, _), row in zip(chunk, rows, strict=False):
            worker = made[request.name]._replace(
                pane=row[0], pane_pid=int(row[1]), server_pid=int(row[2]), socket_path=row[3]
            )
            made[request.name] = worker
            life.save(repo.common_dir, worker)
        if done.code == 0:
            continue
        # The sequence ended at the session after the last one that was made.
        failed, rest = (
            chunk[len(rows)] if len(rows) < len(chunk) else chunk[-1],
            chunk[len(rows) + 1 :],
        )
        name = failed[0].name
        errors[name] = takeback.taken_back(
            repo, made.pop(name), launch_error(failed[1], done.error_text)
        )
        launches = rest + launches


def launch_error(launch: Launch, message: str) -> SkillError:
    """Why tmux did not start a session."""
    if "duplicate session" in message:
        return refused(
            "session-taken",
            f"the tmux server already has a session {launch.session!r} that is not this worker's",
            "give another --session-prefix, or another --tmux-socket",
        )
    return SkillError("tmux-failed", f"tmux could not start the session: {message}", "run `doctor`")


def write_start(
    repo: git.Repository,
    request: Request,
    worker: Worker,
    variables: list[str],
    env: dict[str, str],
) -> Worker:
    """Write the prompt, the card in the worktree and the launcher of a worker's first start."""
    common = repo.common_dir
    folder = records.worker_dir(common, worker.name)
    prompt = full_prompt(request)
    job = life.new_job(common, worker.name)
    prompt_file = life.prompt_path(common, worker.name, job)
    records.write_file(prompt_file, prompt.encode())
    session_id = new_session_id() if request.harness.new_args else ""
    argv = harness.agent_argv(
        request.harness,
        request.executable,
        request.agent_args,
        mode=request.prompt_mode,
        prompt_arg=request.prompt_arg,
        prompt=prompt,
        prompt_file=prompt_file,
        session_args=request.harness.new_args,
        placeholders={
            "worktree": worker.worktree,
            "git_common_dir": common,
            "prompt_file": prompt_file,
            "session_id": session_id,
            "name": worker.name,
            "record_dir": folder,
        },
    )
    worker = worker._replace(argv=argv, session_id=session_id)
    life.write_card(worker, job)
    # tmux sets SHELL to its own default shell; TERM and its company are tmux's to say.
    own = {**worker_variables(worker), **({"SHELL": env["SHELL"]} if "SHELL" in env else {})}
    keep = [*variables, *own, "TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLORTERM", "PWD"]
    script = life.launch_script(worker, record=folder, keep=keep, variables=own)
    records.write_file(os.path.join(folder, "launch.sh"), script)
    life.save(common, worker)
    life.record_event(common, worker.name, "spawned", job=job, launch=worker.launch)
    return worker


def new_session_id() -> str:
    """A random UUID, the form that agent CLIs take for a conversation of the caller's naming."""
    bits = bytearray(os.urandom(16))
    bits[6] = bits[6] & 0x0F | 0x40
    bits[8] = bits[8] & 0x3F | 0x80
    text = bits.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def deliver_all(
    repo: git.Repository,
    requests: list[Request],
    made: dict[str, Worker],
    errors: dict[str, SkillError],
) -> dict[str, delivery.Outcome]:
    """Paste the prompts where the mode is `paste`, all panes in one loop; the others got theirs."""
    given = ("argument", "file")
    outcomes = {
        r.name: delivery.Outcome(r.prompt_mode in given, r.prompt_mode, None, "") for r in requests
    }
    pasting = [request for request in requests if request.prompt_mode == "paste"]
    if not pasting:
        return outcomes
    progress("waiting for the agents to take their prompts")
    by_pane = {made[request.name].pane: request for request in pasting}
    server = made[pasting[0].name].server
    jobs = {
        pane: delivery.deliver(
            target_of(repo, made[request.name], request.harness),
            full_prompt(request),
            ready_timeout=request.ready_timeout,
        )
        for pane, request in by_pane.items()
    }
    for pane, outcome in delivery.drive(server, jobs, pasting[0].deadline).items():
        name = by_pane[pane].name
        if isinstance(outcome, SkillError):
            errors[name] = takeback.taken_back(repo, made.pop(name), outcome)
        else:
            outcomes[name] = outcome
    return outcomes


def target_of(repo: git.Repository, worker: Worker, mapping: Harness) -> delivery.Target:
    """Where a worker's prompts go."""
    folder = records.worker_dir(repo.common_dir, worker.name)
    return delivery.Target(
        server=worker.server,
        pane=worker.pane,
        harness=mapping,
        log=os.path.join(folder, "terminal.log"),
        events=worker.events_file,
    )


def watch_all(
    requests: list[Request],
    made: dict[str, Worker],
    outcomes: dict[str, delivery.Outcome],
    launched: float,
) -> None:
    """Watch all new agents together until the settling time is over: who ended, and who asks."""
    settle = max((request.settle for request in requests), default=0.0)
    while settle > 0:
        server = made[requests[0].name].server
        panes, screens = server.look([made[request.name].pane for request in requests])
        for request in requests:
            pane = panes.get(made[request.name].pane)
            text = screens.get(made[request.name].pane, "")
            before = outcomes[request.name]
            if pane is None or pane.dead:
                outcomes[request.name] = before._replace(ended=True, screen=text)
            elif before.delivered or request.prompt_mode == "none":
                # A pasted prompt that was taken may well lead to a question: that is no dialog
                # in its way. One that was given at the start may still stand behind it.
                asks = request.prompt_mode != "paste"
                dialog = (
                    harness.dialog_on_screen(request.harness, text, pane.title) if asks else None
                )
                outcomes[request.name] = before._replace(dialog=dialog, screen=text)
        past = time.monotonic()
        ended = all(outcomes[request.name].ended for request in requests)
        late = any(r.deadline is not None and past >= r.deadline for r in requests)
        if past >= launched + settle or ended or late:
            return
        time.sleep(delivery.ROUND)


def conclude(
    repo: git.Repository, request: Request, worker: Worker, outcome: delivery.Outcome
) -> Spawned:
    """Say how one spawn ended, and record it; an agent that failed at once is taken back."""
    common = repo.common_dir
    code = life.exit_record(common, worker) if outcome.ended else 0
    if code != 0 and takeback.is_untouched(worker):
        failed = SkillError(
            "agent-ended",
            f"the agent of {request.name!r} ended with exit code {code} before it did anything",
            "its screen ended with:\n" + delivery.screen_excerpt(outcome.screen),
        )
        return Spawned(request.name, None, False, takeback.taken_back(repo, worker, failed))
    delivered = outcome.delivered and outcome.dialog is None
    worker = worker._replace(phase="live")
    life.save(common, worker)
    if request.prompt_mode != "none":
        facts = {"delivered": delivered, "mode": request.prompt_mode, "evidence": outcome.evidence}
        life.record_event(common, worker.name, "delivered", job=FIRST_JOB, **facts)
    if outcome.ended:
        return Spawned(
            request.name, worker, delivered, None, "the agent has already ended; see status"
        )
    if delivered or (request.prompt_mode == "none" and outcome.dialog is None):
        return Spawned(request.name, worker, delivered, None)
    return Spawned(request.name, worker, False, undelivered(worker, outcome))


def undelivered(worker: Worker, outcome: delivery.Outcome) -> SkillError:
    """Why a prompt did not reach an agent that lives."""
    seen = "the screen shows:\n" + delivery.screen_excerpt(outcome.screen)
    watch = f"look at it with: {worker.attach_command}\n"
    if outcome.dialog is not None:
        return SkillError(
            "agent-asks",
            f"the agent of {worker.name!r} asks ({outcome.dialog}); the prompt was not submitted",
            watch + "answer there, then send the prompt\n" + seen,
            exit_code=ExitCode.BLOCKED,
        )
    if not outcome.typed:
        return SkillError(
            "agent-not-ready",
            f"the agent of {worker.name!r} was not ready for input in time; nothing was typed",
            watch + "when it is ready, send the prompt; a longer --ready-timeout may help\n" + seen,
            exit_code=ExitCode.BLOCKED,
        )
    return SkillError(
        "delivery-unproved",
        f"the prompt was typed to {worker.name!r}, but nothing shows that the agent took it",
        watch + "if the text stands in the input line, press Enter there\n" + seen,
        exit_code=ExitCode.BLOCKED,
    )
