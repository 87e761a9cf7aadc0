"""Start workers: worktree, record, agent, prompt. All or nothing for each worker."""

from __future__ import annotations

import contextlib
import os
import time

from fanout import (
    delivery,
    git,
    harness,
    proctree,
    records,
    starting,
    steering,
    takeback,
    tmux,
    worktrees,
)
from fanout import workers as life
from fanout.edition import HELPER
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.harness import Harness
from fanout.output import progress, say
from fanout.workers import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

LOCK_WAIT = 60.0
SETUP_LIMIT = 600.0
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
    done: dict[str, Spawned] = {}
    with contextlib.ExitStack() as locks:
        able: list[Request] = []
        for request in requests:
            try:
                locks.enter_context(life.lock(repo.common_dir, request.name))
                able.append(request)
            except SkillError as error:
                done[request.name] = Spawned(request.name, None, False, error)
        try:
            prepare_all(repo, able, made, done)
            starts = [begin(repo, request, made) for request in able if request.name in made]
            started = starting.start_agents(repo, starts, able[0].env if able else {})
            conclude_all(repo, able, started, made, done)
        except BaseException:
            # A signal or a fault: what is not concluded is taken back, each as far as it goes.
            for name, why in takeback.take_back(repo, list(made.values())).items():
                say(f"{name}: {why}")
            raise
    return [done[request.name] for request in requests]


# --- Checking and making -------------------------------------------------------------------


def check_request(repo: git.Repository, request: Request) -> None:
    """Demand all that can be known before anything is made."""
    records.require_name(request.name)
    if request.branch != request.name or request.branch == "HEAD":
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
    harness.require_variables(request.harness, {**os.environ, **request.env})
    if request.prompt or request.prompt_mode != "none":
        life.require_prompt(request.prompt)
    if request.prompt_mode == "argument":
        harness.require_argument(full_prompt(request), request.prompt_arg)
    if request.prompt_mode == "paste":
        delivery.require_pasteable(full_prompt(request))


def full_prompt(request: Request) -> str:
    """The prompt as the agent gets it, with the contract at its end."""
    if not request.with_contract:
        return request.prompt
    return (
        request.prompt.rstrip("\n")
        + "\n"
        + starting.contract(
            name=request.name, worktree=request.worktree, branch=request.branch, owns=request.owns
        )
    )


def prepare_all(
    repo: git.Repository,
    requests: list[Request],
    made: dict[str, Worker],
    done: dict[str, Spawned],
) -> None:
    """Make record and worktree of each worker, a few at a time; failures are taken back."""
    errors: dict[str, SkillError] = {}
    reserve_all(repo, requests, made, errors)
    requests = [request for request in requests if request.name not in errors]
    queue = list(reversed(requests))
    stopped = False

    def work() -> None:
        while not stopped:
            try:
                request = queue.pop()
            except IndexError:
                return
            progress(f"{request.name}: making the worktree")
            with noted(errors, request.name):
                prepare(repo, request, made)

    if len(requests) < 2:
        work()
    else:
        import threading

        threads = [threading.Thread(target=work) for _ in range(min(THREADS, len(requests)))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            # Also on a signal: nothing may be made behind the back of what is taken back.
            stopped = True
            for thread in threads:
                thread.join()
    take_back(repo, errors, made, done)


def take_back(
    repo: git.Repository,
    errors: dict[str, SkillError],
    made: dict[str, Worker],
    done: dict[str, Spawned],
) -> None:
    """Take back the spawns that failed, together; an error tells where that was not possible."""
    kept = takeback.take_back(repo, [made[name] for name in errors if name in made])
    for name, error in errors.items():
        if name in kept:
            error.hint = f"{kept[name]}\n{error.hint}".strip()
        done[name] = Spawned(name, None, False, error)
        made.pop(name, None)


@contextlib.contextmanager
def noted(errors: dict[str, SkillError], name: str) -> Generator[None, None, None]:
    """Note what goes wrong for one worker; the others go on."""
    try:
        yield
    except SkillError as error:
        errors[name] = error
    except OSError as error:
        errors[name] = SkillError("file-failed", f"{name}: {error}")


def reserve_all(
    repo: git.Repository,
    requests: list[Request],
    made: dict[str, Worker],
    errors: dict[str, SkillError],
) -> None:
    """Take the names, the places and the branches, in that order, under the repository's lock.

    `made` knows each worker from the start.
    """
    common = repo.common_dir
    for request in requests:
        with noted(errors, request.name):
            check_request(repo, request)
    able = [request for request in requests if request.name not in errors]
    if not able:
        return
    try:
        with records.lock(common, "repository", wait=LOCK_WAIT, what="this repository's worktrees"):
            exclude_runs(common)
            for request in able:
                with noted(errors, request.name):
                    takeback.recover(repo, request.name)
            taken = worktrees.taken_refs(common)
            for request in able:
                if request.name not in errors:
                    with noted(errors, request.name):
                        made[request.name] = reserve(repo, request, taken)
                        taken.add("refs/heads/" + request.branch)
            able = [request for request in able if request.name in made]
            for base in dict.fromkeys(request.base for request in able):
                make_branches(repo, [r for r in able if r.base == base], made, errors)
            for request in able:
                if request.name in made:
                    with noted(errors, request.name):
                        made[request.name] = add_worktree(repo, made[request.name])
    except SkillError as error:
        errors.update({r.name: error for r in able if r.name not in errors})


def reserve(repo: git.Repository, request: Request, taken: set[str]) -> Worker:
    """Write the record of a worker whose name, place and branch are free."""
    common = repo.common_dir
    folder = records.worker_dir(common, request.name)
    require_free_name(repo, request.name)
    steering.require_alone(common, request.harness, request.name)
    worktrees.require_free_place(repo, request.worktree)
    worktrees.require_free_branch(repo, request.branch, taken)
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
        pane_started="",
        boot_id=proctree.boot_id(),
        mapping=request.harness.mapping,
        executable=request.executable,
        argv=[],
        agent_args=request.agent_args,
        prompt_mode=request.prompt_mode,
        prompt_arg=request.prompt_arg,
        session_id="",
        owns=request.owns,
        copied={},
        made=[],
        ready_timeout=request.ready_timeout,
        created_at=records.now(),
    )
    try:
        records.make_dir(folder)
        life.save(common, worker)
    except OSError:
        worktrees.remove_tree(folder)
        raise
    return worker


def make_branches(
    repo: git.Repository,
    requests: list[Request],
    made: dict[str, Worker],
    errors: dict[str, SkillError],
) -> None:
    """Make branches of one base, all at once if that is possible."""
    try:
        worktrees.make_branches(repo, [request.branch for request in requests], requests[0].base)
    except SkillError as error:
        if len(requests) > 1:
            for request in requests:
                make_branches(repo, [request], made, errors)
            return
        # A branch of this name is not ours.
        name = requests[0].name
        errors[name] = error
        del made[name]
        worktrees.remove_tree(records.worker_dir(repo.common_dir, name))


def add_worktree(repo: git.Repository, worker: Worker) -> Worker:
    """Make the empty worktree of a worker."""
    record = records.worker_dir(repo.common_dir, worker.name)
    admin = worktrees.add_worktree(repo, worker.worktree, worker.branch, record)
    # Links in the path are resolved once; later every command demands this very path.
    return worker._replace(worktree=os.path.realpath(worker.worktree), admin_dir=admin)


def prepare(repo: git.Repository, request: Request, made: dict[str, Worker]) -> None:
    """Fill the worktree of a worker, with what hooks and set-up commands put into it."""
    worker = made[request.name]
    worktrees.fill_worktree(worker.worktree)
    left = run_hook(repo, worker, request)
    copied = life.copy_files(repo.top, worker.worktree, request.copies)
    left = run_setups(repo, worker, request) or left
    if left:
        status = worktrees.read_status(worker.worktree, ignored=True)
        changed = {*status.staged, *status.modified, *status.untracked, *status.ignored}
        worker = worker._replace(made=sorted(changed))
        require_on_branch(worker)
    made[request.name] = worker._replace(copied=copied)
    require_time(request, "make the worktree")


def require_free_name(repo: git.Repository, wanted: str) -> None:
    """Demand that no worker has this name. Raises SkillError `worker-exists` (exit 3)."""
    common, folded = repo.common_dir, wanted.casefold()
    for name in records.folder_names(common):
        if name.casefold() == folded and os.path.lexists(life.record_file(common, name)):
            raise refused(
                "worker-exists",
                f"there is already a worker {name!r}",
                f"choose another name, or end it: {HELPER} cleanup {name}",
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
    env = tmux.environment_with({**request.env, **starting.worker_variables(worker)})
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


def begin(repo: git.Repository, request: Request, made: dict[str, Worker]) -> starting.Start:
    """Write the prompt, the first job and the launcher of a new worker."""
    common = repo.common_dir
    # Without a prompt there is no job; the agent's first one comes by `send`.
    opens = bool(request.prompt)
    prompt = full_prompt(request) if opens else ""
    worker = made[request.name]
    job = life.new_prompt(common, worker.name, prompt) if opens else ""
    session_id = starting.new_session_id() if harness.takes_our_id(request.harness) else ""
    worker = starting.write_start(
        common,
        worker._replace(session_id=session_id),
        request.harness,
        prompt,
        job,
        request.harness.new_args,
        request.env,
    )
    made[request.name] = worker
    life.write_card(worker, job)
    life.save(common, worker)
    before = life.fresh_snapshot(worker)
    life.record_event(
        common, worker.name, "spawned",
        job=job or None, launch=worker.launch, opens=opens, before=before,
    )  # fmt: skip
    return starting.Start(
        worker,
        request.harness,
        prompt,
        job,
        request.settle,
        request.ready_timeout,
        request.deadline,
    )


def conclude_all(
    repo: git.Repository,
    requests: list[Request],
    started: dict[str, starting.Started],
    made: dict[str, Worker],
    done: dict[str, Spawned],
) -> None:
    """Say how each spawn ended; those that failed are taken back together."""
    errors: dict[str, SkillError] = {}
    for request in requests:
        if request.name in made:
            made[request.name] = started[request.name].worker
            try:
                done[request.name] = conclude(repo, request, started[request.name])
                del made[request.name]
            except SkillError as error:
                errors[request.name] = error
    take_back(repo, errors, made, done)


def conclude(repo: git.Repository, request: Request, started: starting.Started) -> Spawned:
    """Say how one spawn ended, and record it; raises the error of one that failed."""
    common, worker, outcome = repo.common_dir, started.worker, started.outcome
    if started.error is not None:
        raise started.error
    code = life.exit_record(common, worker) if outcome.ended else 0
    if code != 0 and takeback.is_untouched(worker):
        raise SkillError(
            "agent-ended",
            f"the agent of {request.name!r} ended with exit code {code} before it did anything",
            "its screen ended with:\n" + delivery.screen_excerpt(outcome.screen),
        )
    if request.deadline is not None and time.monotonic() >= request.deadline:
        raise delivery.deadline_passed("start the worker")
    delivered = outcome.delivered and outcome.dialog is None
    worker = worker._replace(phase="live")
    life.save(common, worker)
    if request.prompt_mode != "none":
        facts = {"delivered": delivered, "mode": request.prompt_mode, "evidence": outcome.evidence}
        life.record_event(
            common, worker.name, "delivered", job=FIRST_JOB, prompt=FIRST_JOB, **facts
        )
    notes = [f"answered {answer}" for answer in started.answers]
    if outcome.ended:
        notes.append("the agent has already ended; see status")
    note = "; ".join(notes)
    if outcome.ended or delivered or (request.prompt_mode == "none" and outcome.dialog is None):
        return Spawned(request.name, worker, delivered, None, note)
    return Spawned(request.name, worker, False, starting.undelivered(worker, outcome), note)
