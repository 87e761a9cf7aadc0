"""Runners and processes: time limits, interruptions, what is left behind, claims, full disks."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fanout.runtimes import loop
from runner_world import (
    CHANGE,
    COMMIT,
    LANGUAGES,
    Runner,
    all_have_ended,
    flag,
    hold,
    runner,
    runner_language,
    sh,
    statuses,
    task,
)
from world import SAMPLE_AGENT, World, wait_for

__all__ = ["runner", "runner_language"]

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
# A program in a session of its own, whose parent is gone; it holds the log open.
ORPHAN = "(setsid sleep 901 &)\n"
STUBBORN = "trap '' TERM HUP INT\necho on\nwhile :; do sleep 0.2; done\n"


def test_a_folder_above_that_appears_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks make the same folders at once."""
    above, made = tmp_path / "above", tmp_path / "above" / "folder"
    real = os.mkdir

    def late(path: str, mode: int = 0o777) -> None:
        try:
            real(path, mode)
        except FileNotFoundError:
            above.mkdir()
            raise

    monkeypatch.setattr(os, "mkdir", late)
    loop.make_dir(str(made))
    assert made.is_dir()


def claims(runner: Runner) -> list[Path]:
    """The claims that lie about."""
    return sorted((runner.repo / ".git" / "agent-workers" / "locks" / "runs").glob("*"))


def records_are_valid(folder: Path) -> None:
    """Every record can be read, at most the last line of a log of events is torn."""
    for path in folder.rglob("*.json"):
        assert json.loads(path.read_bytes())["schema"] == 1, path
    for path in folder.rglob("events.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            json.loads(line)


def process_gone(pid: int) -> bool:
    """Whether a process is no more, or only waits to be reaped."""
    try:
        return b") Z " in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True


# --- Time limits ----------------------------------------------------------------------------


def test_a_time_limit_ends_the_whole_tree_of_an_agent(runner: Runner) -> None:
    """C04, C06, C10, C14, C26: wrappers, orphans, own sessions, deaf ones; the log stays."""
    wrapper = "sh -c 'echo inner; sleep 902; true'\necho done\n"
    ask = {"cli": str(SAMPLE_AGENT), "args": ["-p"]}
    daemon = "setsid sh -c '(sleep 903 &) ; exec sleep 904' &\nsleep 905\n"
    deaf = f"(setsid sh -c {json.dumps(STUBBORN)} &)\nsleep 906\n"
    runner.plan(
        task("plain", "echo begun\nsleep 907\n", verify=["true"]),
        task("wrapper", wrapper),
        task("orphan", ORPHAN + "nohup sleep 908 &\nsleep 909\n"),
        task("daemon", daemon),
        task("stubborn", STUBBORN),
        task("deaf", deaf),
        task("question", "@print thinking\n@ask Shall I?\n", agent=ask),
        task("waits", COMMIT, depends_on=["plain"]),
        task("other", COMMIT),
        agent={"cli": "sh", "timeout_seconds": 3},
        max_parallel=8,
    )
    started = time.monotonic()
    ran = runner.ends(1)
    assert time.monotonic() - started < 20, "the grace is one for all that runs"
    words = runner.statuses()
    assert (words.pop("waits"), words.pop("other")) == ("not-started", "passed")
    assert set(words.values()) == {"timed-out"}
    rows = runner.tasks()
    assert statuses(rows["plain"]["verify"]) == ["not-started"]
    assert rows["plain"]["seconds"] >= 3
    assert "3 s" in rows["plain"]["reason"], "the limit is named"
    assert runner.log("tasks", "plain", "agent.log") == b"begun\n"
    assert runner.log("tasks", "wrapper", "agent.log") == b"inner\n"
    assert runner.log("tasks", "question", "agent.log") == b"thinking\nShall I? (y/n)\n"
    assert "Shall I?" in ran.out + ran.err, "the last line is shown"
    assert {e["task"] for e in runner.events() if e["event"] == "timed_out"} == set(words)
    assert not runner.leftovers()
    assert claims(runner) == []


def test_a_time_that_is_over_does_not_end_what_records_it(runner: Runner) -> None:
    """The signal of a time limit may come when the job is writing its record already."""
    real = shutil.which("mv")
    runner.script("mv", 'case $* in *"/.result "*) kill -USR1 $$ ;; esac\nexec "$REAL" "$@"\n')
    runner.plan(task("one", "sleep 913\n"), agent={"cli": "sh", "timeout_seconds": 0.5})
    runner.ends(1, REAL=real)
    assert runner.statuses() == {"one": "timed-out"}
    assert runner.manifest["status"] == "failed"


@pytest.mark.skipif(shutil.which("taskset") is None, reason="no taskset to have one processor")
def test_an_exit_code_that_is_lost_beside_a_signal_is_none(world: World) -> None:
    """Bash loses it when a program ends in the moment in which a signal ends the wait for it."""
    runner = Runner(world, "bash")
    ends = {"run": "kill -USR1 $PPID; exit 3", "timeout_seconds": 0.001}
    runner.plan(*(task(f"t{number}", setup=[ends]) for number in range(24)), max_parallel=4)
    runner.ends(1, limit="taskset -cp 0 $$ >/dev/null")
    reasons = {row["reason"].partition(": ")[2] for row in runner.tasks().values()}
    assert reasons <= {"timed out after 0.001 s", "exit code 3"}


def test_time_limits_of_commands(runner: Runner) -> None:
    long = {"timeout_seconds": 0.5, "run": "echo begun; (setsid sleep 910 &) ; sleep 911"}
    runner.plan(
        task("one", setup=[long, "true"]),
        task("two", verify=["true", long, "true"]),
        task("three", when={"run": "sleep 912", "timeout_seconds": 0.5}),
        max_parallel=3,
    )
    runner.ends(1)
    rows = runner.tasks()
    assert statuses(rows["one"]["setup"]) == ["timed-out", "not-started"]
    assert statuses(rows["two"]["verify"]) == ["passed", "timed-out", "not-started"]
    assert {rows[name]["status"] for name in rows} <= {"failed", "timed-out"}
    assert "could not be decided" in rows["three"]["reason"]
    assert runner.log("tasks", "two", "verify-02.log") == b"begun\n"
    assert not runner.leftovers()


def test_what_commands_leave_running_is_ended(runner: Runner) -> None:
    """A server started by a step or an agent neither holds the run up nor outlives it."""
    leave = f"sleep 913 & {ORPHAN.strip()}; echo ok"
    runner.plan(
        task("one", f"sleep 914 &\n{ORPHAN}{COMMIT}", setup=[leave], verify=[leave]),
        preflight=[leave], backups=[{"run": leave, "check": leave}], postflight=[leave],
    )  # fmt: skip
    started = time.monotonic()
    runner.ends(0)
    assert time.monotonic() - started < 20
    assert not runner.leftovers()
    assert runner.log("preflight", "preflight-01.log") == b"ok\n"


# --- Interruptions --------------------------------------------------------------------------


def held_plan(runner: Runner) -> None:
    """Two tasks that run until they are let go, and two that wait; what runs is hard to end."""
    root = runner.world.root
    let_go = hold(root / "go")
    commit = COMMIT.replace("-q", "-q --allow-empty")
    runner.plan(
        task("one", f"{ORPHAN}echo $$ > {root}/pid\n{commit}{flag(root / 'one')}{let_go}"),
        task("two", commit, verify=[f"echo checking;{flag(root / 'two')}{let_go}"]),
        task("three"), task("four", depends_on=["one"]),
        rollback=["true"], postflight=["true"], max_parallel=2,
    )  # fmt: skip


def both_run(runner: Runner) -> None:
    for name in ("one", "two"):
        runner.wait_for_file(runner.world.root / name)


@pytest.mark.parametrize("number", CODES, ids=lambda n: n.name)
def test_a_signal_ends_the_run_and_leaves_no_worker_behind(
    runner: Runner, number: signal.Signals
) -> None:
    """C08: everything is recorded, and the run can be resumed."""
    held_plan(runner)
    process = runner.start()
    both_run(runner)
    # While it runs, the manifest says so within a moment.
    wait_for(lambda: runner.statuses()["one"] == "running", "the manifest of a task that runs")
    manifest = runner.manifest
    assert (manifest["status"], manifest["exit_code"]) == ("running", None)
    process.send_signal(number)
    assert process.wait(20) == CODES[number], runner.narration()
    assert not runner.world.processes()
    manifest = runner.manifest
    assert (manifest["status"], manifest["exit_code"]) == ("interrupted", CODES[number])
    words = {"one": "interrupted", "two": "interrupted", "three": "not-started",
             "four": "not-started"}  # fmt: skip
    assert runner.statuses() == words
    assert statuses(runner.tasks()["two"]["verify"]) == ["interrupted"]
    assert runner.log("tasks", "two", "verify-01.log") == b"checking\n"
    assert statuses(manifest["postflight"]) == ["not-started"]
    assert runner.folder.joinpath("rollback.sh").exists()
    assert claims(runner) == []
    records_are_valid(runner.folder)
    assert "stopped" in {event["event"] for event in runner.events()}
    report = runner.log("REPORT.md").decode()
    (resume,) = [
        block for block in re.findall(r"^```bash\n(.*?)^```", report, re.M | re.S)
        if "RESUME=1" in block and "RERUN" not in block
    ]  # fmt: skip
    if number != signal.SIGTERM:
        return
    # The agent of two had ended: it goes on from there. That of one is not run again unasked.
    (runner.world.root / "go").touch()
    done = subprocess.run(
        ["bash", "-c", resume], cwd="/", env=runner.world.env, check=False,
        capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert runner.statuses() == {**words, "two": "passed", "three": "passed"}
    runner.ends(0, RESUME="1", RERUN="one")
    assert set(runner.statuses().values()) == {"passed"}


def test_a_deaf_agent_is_killed_when_the_run_is_interrupted(runner: Runner) -> None:
    """Also by a second signal on the heels of the first, to the whole group as a terminal does."""
    root = runner.world.root
    runner.plan(task("one", flag(root / "one") + STUBBORN), task("two", when={"env": "NEVER"}))
    process = runner.start()
    runner.wait_for_file(root / "one")
    wait_for(lambda: b"on" in runner.log("tasks", "one", "agent.log"), "the trap")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (130, 143)
    assert not runner.world.processes()
    assert runner.statuses()["one"] == "interrupted"


def test_an_interruption_of_the_gate(runner: Runner) -> None:
    root = runner.world.root
    runner.plan(
        task("one"), preflight=["true", ORPHAN + flag(root / "on") + hold(root / "go")],
        backups=["true"], rollback=["true"],
    )  # fmt: skip
    process = runner.start()
    runner.wait_for_file(root / "on")
    process.terminate()
    assert process.wait(20) == 143
    assert not runner.world.processes()
    assert (runner.manifest["status"], runner.manifest["exit_code"]) == ("interrupted", 143)
    assert statuses(runner.manifest["preflight"]) == ["passed", "interrupted"]
    assert statuses(runner.manifest["backups"]) == ["not-started"]
    assert runner.json("gate.json")["status"] == "interrupted"
    assert runner.world.branches() == {"main"}
    assert not runner.folder.joinpath("rollback.sh").exists()
    (root / "go").touch()
    runner.ends(0, RESUME="1")
    assert statuses(runner.manifest["preflight"]) == ["passed", "passed"]


def test_an_interruption_of_a_single_task(runner: Runner) -> None:
    held_plan(runner)
    runner.ends(0, "gate")
    process = runner.start("task", "one")
    runner.wait_for_file(runner.world.root / "one")
    assert runner.ends(11, "finish").err
    assert runner.manifest["status"] == "running"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert not runner.world.processes()
    assert runner.result("one")["status"] == "interrupted"
    runner.ends(1, "finish")
    assert runner.statuses()["one"] == "interrupted"


def test_a_hang_up_that_is_ignored_stays_ignored(runner: Runner) -> None:
    """As under nohup."""
    held_plan(runner)
    argv = ["sh", "-c", "trap '' HUP; exec \"$0\"", str(runner.path)]
    process = subprocess.Popen(
        argv, cwd=runner.repo, env=runner.environment({}), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    both_run(runner)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    (runner.world.root / "go").touch()
    assert process.wait(20) == 0
    assert set(runner.statuses().values()) == {"passed"}


def test_a_runner_that_was_killed_is_found_interrupted(runner: Runner) -> None:
    """C20: `status` says so; a resumed run ends what is left of it before it goes on."""
    held_plan(runner)
    process = runner.start()
    both_run(runner)
    old = int((runner.world.root / "pid").read_text())
    process.kill()
    process.wait()
    records_are_valid(runner.folder)
    assert runner.manifest["status"] == "running"
    ran = runner.ends(0, "status")
    assert "interrupted" in ran.out
    assert runner.manifest["status"] == "interrupted"
    assert runner.statuses()["one"] == "interrupted"
    assert not process_gone(old), "to look is not to touch"
    process = runner.start(RESUME="1")
    wait_for(lambda: process_gone(old), "the end of what is left")
    (runner.world.root / "go").touch()
    assert process.wait(60) == 1
    assert (runner.manifest["status"], runner.manifest["exit_code"]) == ("failed", 1)
    assert runner.statuses()["one"] == "interrupted", "it is not run again unasked"
    runner.ends(0, RESUME="1", RERUN="one,two")
    assert set(runner.statuses().values()) == {"passed"}
    assert runner.manifest["status"] == "passed"
    all_have_ended(runner.world)
    assert set(runner.statuses().values()) == {"passed"}, "nothing of the old run writes any more"
    assert claims(runner) == []


def test_an_agent_that_ended_meanwhile_is_not_started_again(runner: Runner) -> None:
    """Its runner was killed: one agent ends well, one ill, one is ended by the resumed run."""
    root = runner.world.root
    wait = hold(root / "go")
    runner.plan(
        *(task(name, f"echo {name} >> {root}/ran\n{flag(root / name)}{wait}{end}",
               setup=["echo x > made.txt; echo s >> $RUN_DIR/setups"], verify=["true"])
          for name, end in (("well", COMMIT), ("ill", f"{CHANGE}exit 3\n"))),
        task("long", f"echo long >> {root}/ran\n{flag(root / 'long')}{hold(root / 'never')}"),
        task("again", f"echo again >> {root}/ran\n{flag(root / 'again')}"
             f"[ -e {root}/later ] || sleep 60\n{COMMIT}", agent={"rerun_interrupted": True}),
        max_parallel=4,
    )  # fmt: skip
    process = runner.start()
    for name in ("well", "ill", "long", "again"):
        runner.wait_for_file(root / name)
    process.kill()
    process.wait()
    (root / "go").touch()
    for name in ("well", "ill"):
        runner.wait_for_file(runner.folder / "tasks" / name / ".agent-exit")
    (root / "later").touch()
    runner.ends(1, RESUME="1")
    assert runner.statuses() == {
        "well": "passed", "ill": "failed", "long": "interrupted", "again": "passed"
    }  # fmt: skip
    rows = runner.tasks()
    assert rows["ill"]["exit_code"] == 3
    assert rows["well"]["files_changed"] == ["made.txt", "well.txt"]
    assert sorted((root / "ran").read_text().split()) == ["again", "again", "ill", "long", "well"]
    assert (runner.folder / "setups").read_text() == "s\ns\n"
    report = runner.log("REPORT.md").decode()
    assert "RERUN=ill,long" in report
    assert not list(runner.folder.glob("tasks/well/.agent-*"))
    runner.ends(1, RESUME="1", RERUN="ill")
    assert (root / "ran").read_text().split().count("ill") == 2
    assert (root / "ran").read_text().split().count("long") == 1


def test_a_run_is_of_one_repository_and_a_worktree_of_one_run(runner: Runner) -> None:
    """A clone's `status` ends no living run; what another run made is not taken for one's own."""
    root = runner.world.root
    runner.plan(task("one", flag(root / "runs") + hold(root / "go") + COMMIT),
                task("two", setup=[f"test -e {root}/fixed"]), max_parallel=1)  # fmt: skip
    clone = root / "clone"
    runner.world.git("clone", "-q", str(runner.repo), str(clone))
    logs = str(runner.folder.parent)
    process = runner.start(LOG_ROOT=logs)
    runner.wait_for_file(root / "runs")
    for words in (["status"], ["finish"]):
        assert "one of the repository" in runner.ends(2, *words, cwd=clone, LOG_ROOT=logs).err
    assert "one of the repository" in runner.ends(2, cwd=clone, LOG_ROOT=logs, RESUME="1").err
    (root / "go").touch()
    assert process.wait(30) == 1
    assert runner.statuses() == {"one": "passed", "two": "failed"}

    # The person takes both away, and another run makes them again.
    for name in ("one", "two"):
        runner.world.git("worktree", "remove", "--force", str(runner.tree(name)))
        runner.world.git("branch", "-D", name)
    (root / "fixed").touch()
    runner.ends(0, RUN_ID="r2")
    runner.ends(1, RESUME="1")
    assert "r2" in runner.tasks()["two"]["reason"]


def test_phases_of_single_tasks_leave_each_other_alone(runner: Runner) -> None:
    """One that ends, or is stopped, takes no note and no agent of another."""
    root = runner.world.root
    runner.plan(
        task("slow", f"echo s >> {root}/ran\n{flag(root / 'slow')}{hold(root / 'go')}",
             setup=["echo s > made.txt"]),
        task("quick"), task("stopped", flag(root / "stopped") + hold(root / "never")),
    )  # fmt: skip
    runner.ends(0, "gate")
    slow = runner.start("task", "slow")
    runner.wait_for_file(root / "slow")
    runner.ends(0, "task", "quick")
    stopped = runner.start("task", "stopped")
    runner.wait_for_file(root / "stopped")
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(20) == 143
    slow.kill()
    slow.wait()
    # Its agent is alive: it is ended, and not started beside itself.
    assert "had started" in runner.ends(3, "task", "slow").err
    (root / "go").touch()
    runner.ends(1, "finish")
    assert runner.statuses() == {
        "slow": "interrupted", "quick": "passed", "stopped": "interrupted"
    }  # fmt: skip
    runner.ends(1, "task", "slow", RERUN="slow")
    assert runner.result("slow")["status"] == "no-change", "what set-up made is no change"
    assert (root / "ran").read_text() == "s\ns\n"


def test_what_an_interrupted_agent_has_done_is_recorded(runner: Runner) -> None:
    root = runner.world.root
    lines = f"{COMMIT}echo y > left.txt\n{flag(root / 'done')}{hold(root / 'never')}"
    runner.plan(task("one", lines, owns=["one.txt"], setup=["echo s > made.txt"]))
    process = runner.start()
    runner.wait_for_file(root / "done")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    row = runner.tasks()["one"]
    assert row["status"] == "interrupted"
    assert row["head"] == runner.world.git("rev-parse", "one")
    assert row["uncommitted"] == ["left.txt"]
    # The commit took what set-up had made with it.
    assert row["files_changed"] == ["left.txt", "made.txt", "one.txt"]
    assert row["out_of_scope"] == ["left.txt", "made.txt"]
    assert runner.result("one")["head"] == row["head"]


def test_marks_stand_by_themselves(runner: Runner) -> None:
    """A process whose environment only mentions a run is not of that run."""
    mention = f"x AGENT_WORKERS_RUN={runner.folder}/ y"
    bystander = subprocess.Popen(["sleep", "60"], env={**runner.world.env, "FOO": mention})
    try:
        runner.plan(task("one"))
        runner.ends(0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    place = str(runner.repo / "l\n")
    assert "newline" in runner.ends(2, LOG_ROOT=place).err


def test_git_that_hangs_does_not_hold_up_a_stop(runner: Runner) -> None:
    (runner.repo / ".gitattributes").write_text("slow filter=slow\n")
    (runner.repo / "slow").write_text("x")
    runner.world.commit("slow")
    slow = f": > {runner.world.root}/hangs; sleep 50; cat"
    runner.world.git("config", "filter.slow.smudge", slow)
    runner.plan(task("one"))
    process = runner.start()
    runner.wait_for_file(runner.world.root / "hangs")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert runner.statuses() == {"one": "interrupted"}
    all_have_ended(runner.world)


def test_what_the_caller_exports_does_no_harm(runner: Runner) -> None:
    runner.plan(task("one", verify=["true"]))
    argv = ["bash", "-c", 'mv() { :; }; sleep() { :; }; export -f mv sleep; exec "$0"',
            str(runner.path)]  # fmt: skip
    env = runner.environment({"SHELLOPTS": "errexit:nounset"})
    done = subprocess.run(argv, cwd=runner.repo, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done
    assert runner.statuses() == {"one": "passed"}


def test_records_stay_valid_when_the_runner_is_killed_at_any_moment(runner: Runner) -> None:
    """C20: and the run can be resumed to an end."""
    for number, seconds in enumerate((0.1, 0.3, 0.45)):
        runner.run_id = f"r{number}"
        runner.plan(
            *[task(f"t{number}{n}", CHANGE, verify=["true"]) for n in range(4)],
            preflight=["true"], backups=["true"], max_parallel=2,
        )  # fmt: skip
        process = runner.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
        records_are_valid(runner.folder)
        if runner.folder.joinpath("gate.json").exists():
            runner.ends(0, "status")
            records_are_valid(runner.folder)
        if not runner.folder.exists():
            # A program that it had started may be just about to make the folder.
            all_have_ended(runner.world)
        ran = runner.run(RESUME="1" if runner.folder.exists() else None)
        assert ran.code in (0, 1), ran
        records_are_valid(runner.folder)
        assert runner.manifest["status"] in ("passed", "failed")
        words = set(runner.statuses().values())
        assert words <= {"passed", "interrupted", "failed"}, runner.tasks()
        all_have_ended(runner.world)


def test_the_manifest_is_true_at_every_moment(runner: Runner) -> None:
    """Read all the time while a run goes on; it never says less than it said before."""
    root = runner.world.root
    runner.plan(
        *[task(f"t{n}", hold(root / f"go{n + 3}") + CHANGE, verify=["true"]) for n in range(4)],
        preflight=["true", "true"], backups=["true"], max_parallel=2, postflight=["true"],
    )  # fmt: skip

    def done(manifest: dict[str, Any]) -> int:
        steps = [*manifest["preflight"], *manifest["backups"], *manifest["tasks"]]
        return sum(row["status"] == "passed" for row in steps)

    process = runner.start()
    seen: list[dict[str, Any]] = []
    path = runner.folder / "manifest.json"
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            seen.append(json.loads(path.read_bytes()))
            # A task goes on when it was seen that the one before it is done.
            (root / f"go{done(seen[-1])}").touch()
        time.sleep(0.002)
    assert process.returncode == 0
    assert {m["status"] for m in seen} <= {"running", "passed"}
    assert any(m["status"] == "running" for m in seen)
    counts = [done(manifest) for manifest in seen]
    assert counts == sorted(counts)
    assert {3, 4, 5, 6} <= set(counts)
    assert any(row["status"] == "running" for m in seen for row in m["tasks"])


# --- Claims ---------------------------------------------------------------------------------


def test_one_runner_per_run_and_branch(world: World, runner_language: str) -> None:
    """Exit 11 for the second, in whatever language; other runs go on beside it."""
    runner = Runner(world, runner_language)
    held_plan(runner)
    process = runner.start()
    both_run(runner)
    wait_for(lambda: runner.tasks()["one"]["agent_started"], "the record of it")
    wait_for(lambda: statuses(runner.tasks()["two"]["verify"]) == ["running"], "the record of it")
    before = runner.manifest
    # One of either language beside the Python one; beside the Bash one its like.
    for language in LANGUAGES if runner_language == "python" else ["bash"]:
        other = Runner(world, language)
        held_plan(other)
        pid = str(process.pid)
        for words, env in (
            ([], {}), ([], {"RESUME": "1"}), (["gate"], {"RESUME": "1"}), (["task", "one"], {}),
            (["finish"], {}), ([], {"RUN_ID": "other"}),
        ):  # fmt: skip
            ran = other.ends(11, *words, env=env)
            assert pid in ran.err, (words, env, ran.err)
        assert not (runner.folder.parent / "other").exists()
        assert "running" in other.ends(0, "status").out
        other.plan(task(f"free-{language}"))
        other.ends(0, RUN_ID=f"free-{language}")
    assert runner.manifest["tasks"] == before["tasks"]
    (world.root / "go").touch()
    assert process.wait(30) == 0
    assert claims(runner) == []


def test_of_many_that_start_at_once_exactly_one_runs(runner: Runner) -> None:
    root = runner.world.root
    runner.plan(task("one", f"echo x >> {root}/ran\n{hold(root / 'go')}{COMMIT}"))
    started = [runner.start(RUN_ID=f"r{n % 2}") for n in range(6)]
    wait_for(lambda: sum(p.poll() is not None for p in started) == 5, "the end of five")
    (root / "go").touch()
    codes = sorted(process.wait(30) for process in started)
    assert codes == [0, 11, 11, 11, 11, 11], runner.narration()
    assert (root / "ran").read_text() == "x\n"


@pytest.mark.parametrize("moment", ["between the looks", "before it is read"])
def test_a_claim_that_becomes_held_meanwhile_is_not_missed(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runners must never hold one branch."""
    claiming, held = tmp_path / "1-a.claiming", tmp_path / "1-a.held"
    claiming.write_text("host elsewhere.invalid\npid 1\nstarted x\nclaim branch one\n")
    looks: list[list[str]] = []
    real_list, real_read = os.listdir, loop.file_bytes

    def listed(folder: str) -> list[str]:
        names = real_list(folder)
        if moment == "between the looks" and not looks:
            # What a rename in the middle of the look does: neither name is seen.
            claiming.rename(held)
            names = []
        looks.append(names)
        return names

    def read(path: str) -> bytes:
        if moment == "before it is read" and claiming.exists():
            claiming.rename(held)
        return real_read(path)

    monkeypatch.setattr(os, "listdir", listed)
    monkeypatch.setattr(loop, "file_bytes", read)
    found = loop.rivals(str(tmp_path), {"branch one"})
    assert found == [("1-a.held", "process 1 on elsewhere.invalid", "branch one")]


def test_claims_of_the_dead_do_not_count_and_those_of_others_do(runner: Runner) -> None:
    """A process id that was given anew is no claim; another machine cannot be looked at."""
    runner.plan(task("one"))
    folder = runner.repo / ".git" / "agent-workers" / "locks" / "runs"
    folder.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mine = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]

    def claim(name: str, host: str, started: str, line: str) -> Path:
        path = folder / f"{os.getpid()}-{name}.held"
        path.write_text(f"host {host}\npid {os.getpid()}\nstarted {started}\nclaim {line}\n")
        return path

    host = socket.gethostname()
    elsewhere = claim("a", "elsewhere.invalid", f"{boot} {mine}", "branch one")
    assert "elsewhere.invalid" in runner.refused(11)
    elsewhere.unlink()
    living = claim("b", host, f"{boot} {mine}", "run r1")
    assert str(os.getpid()) in runner.refused(11)
    living.unlink()
    claim("c", host, f"{boot} {int(mine) + 1}", "branch one")
    claim("d", host, f"{boot[::-1]} {mine}", "run r1")
    claim("e", host, f"{boot} {mine}", "branch other")
    runner.ends(0)
    assert [path.name.partition("-")[2] for path in claims(runner)] == ["e.held"]


# --- Output and disks -----------------------------------------------------------------------


def test_output_is_not_held_in_memory(runner: Runner) -> None:
    """C18: 300 MB in one line, by a runner that may use much less."""
    runner.plan(task("one", "head -c 300000000 /dev/zero\n" + CHANGE), task("two", CHANGE))
    # What it starts shares the limit.
    ran = runner.ends(0, limit=f"ulimit -v {100_000 if runner.language == 'bash' else 250_000}")
    assert (runner.folder / "tasks" / "one" / "agent.log").stat().st_size == 300_000_000
    assert len(ran.out) + len(ran.err) < 20_000
    (runner.folder / "tasks" / "one" / "agent.log").unlink()


def test_a_log_that_cannot_grow_fails_its_task_alone(runner: Runner) -> None:
    """C18: with a limit on file sizes."""
    runner.plan(task("one", "yes | head -c 3000000 || exit 1\n" + CHANGE), task("two", CHANGE))
    runner.ends(1, limit="ulimit -f 512")
    assert runner.statuses() == {"one": "failed", "two": "passed"}
    records_are_valid(runner.folder)


def test_a_full_disk_is_a_clear_failure(runner: Runner) -> None:
    """C18: the records were on it; those that there are can be read."""
    logs, kept = runner.world.root / "logs", runner.world.root / "kept"
    logs.mkdir()
    unshare = ["unshare", "-rm", "sh", "-c"]
    if (
        subprocess.run(
            [*unshare, f"mount -t tmpfs none {logs}"], check=False, capture_output=True
        ).returncode
        != 0
    ):
        pytest.skip("no file system of its own can be mounted here")
    runner.plan(
        task("one", "yes | head -c 3000000\n" + CHANGE), task("two", CHANGE), max_parallel=1
    )
    script = (
        f"mount -t tmpfs -o size=256k none {logs} && cd {runner.repo} && {{ '{runner.path}';"
        f" code=$?; cp -r {logs} {kept}; exit $code; }}"
    )
    done = subprocess.run(
        [*unshare, script], env=runner.environment({"LOG_ROOT": str(logs)}), check=False,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=60, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    records_are_valid(kept)
    assert (kept / "r1" / "manifest.json").exists()


def test_a_reader_that_went_away_does_not_end_the_run(runner: Runner) -> None:
    for number, limit in enumerate(("exec >&-", "exec >&- 2>&- <&-", "exec > /dev/full 2>&1")):
        runner.run_id = f"r{number}"
        runner.plan(task(f"t{number}", COMMIT, verify=["echo x"]))
        runner.run(limit=limit)
        assert runner.manifest["status"] == "passed", limit
        assert runner.log("tasks", f"t{number}", "verify-01.log") == b"x\n"
    runner.run_id = "piped"
    runner.plan(task("piped", hold(runner.world.root / "go") + COMMIT))
    process = subprocess.Popen(
        [str(runner.path)], cwd=runner.repo, env=runner.environment({}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    (runner.world.root / "go").touch()
    process.wait(30)
    assert runner.manifest["status"] == "passed"


def test_a_terminal_shows_one_line_per_task_that_updates(runner: Runner) -> None:
    """State, seconds and the last line of the log, cut to the width, without its controls."""
    root = runner.world.root
    noise = "printf '\\033[2J\\033]0;title\\007working \\303\\251 %0200d' 7"
    runner.plan(task("one", f"{noise}\n{hold(root / 'go')}{COMMIT}"), task("two"))
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(runner.path)], cwd=runner.repo, stdin=slave, stdout=slave, stderr=slave,
        env=runner.environment({"TERM": "xterm", "COLUMNS": "80"}), start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    seen = b""

    def read_more(words: bytes) -> bool:
        nonlocal seen
        if select.select([master], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(master, 65536)
        return words in seen

    try:
        wait_for(lambda: read_more(b"working"), "the last line of the log")
        (root / "go").touch()
        wait_for(lambda: (read_more(b"no such words"), process.poll() is not None)[1], "the end")
        read_more(b"next:")
    finally:
        os.close(master)
        process.kill()
    assert process.wait() == 0
    assert b"\x1b[2J" not in seen
    assert b"\x1b]0;" not in seen
    assert b"one" in seen
    assert b"running" in seen
    assert max(len(line) for line in re.split(rb"[\r\n]|\x1b\[[0-9;]*[A-Za-z]", seen)) < 400


def test_children_are_started_as_any_program_is(runner: Runner) -> None:
    """No descriptor, ignored signal or mode mask of the runner's own reaches them."""
    show = "umask; grep -E 'Sig(Ign|Blk)' /proc/self/status; ls -x /proc/self/fd\n"
    runner.plan(
        task("one", show + CHANGE, setup=[show], verify=[show, sh(show)]),
        preflight=[show], backups=[{"run": show, "check": show}], postflight=[sh(show)],
    )  # fmt: skip
    expected = subprocess.run(
        ["bash", "-c", f"umask 027; {show}"], env=runner.world.env, stdin=subprocess.DEVNULL,
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert expected.split()[-4:] == b"0 1 2 3".split(), "the last one is where ls looks"
    runner.ends(0, limit="umask 027")
    manifest = runner.manifest
    (row,) = manifest["tasks"]
    steps = [*manifest["preflight"], *manifest["backups"], *row["setup"], *row["verify"],
             *manifest["postflight"]]  # fmt: skip
    for log in [*(step["log"] for step in steps), row["log"], "backups/backup-01-check.log"]:
        assert runner.log(log) == expected, log
    assert (runner.tree("one") / "README.md").stat().st_mode & 0o777 == 0o640
    assert (runner.tree("one") / "one.txt").stat().st_mode & 0o777 == 0o640


def test_a_damaged_record_is_named_and_not_overwritten(runner: Runner) -> None:
    """C20, C22."""
    runner.plan(task("one"), task("two"))
    runner.ends(0)
    for name, content in (("gate.json", b""), ("plan.json", b"{"), ("gate.json", b"[1]")):
        path = runner.folder / name
        good = path.read_bytes()
        path.write_bytes(content)
        for words, env in (([], {"RESUME": "1"}), (["finish"], {}), (["task", "two"], {})):
            ran = runner.run(*words, env=env)
            assert ran.code in (1, 2, 3, 4), (name, words, ran)
            assert name in ran.err, (name, words, ran)
            assert path.read_bytes() == content
        path.write_bytes(good)
    assert set(runner.statuses().values()) == {"passed"}


def test_what_an_old_bash_does_otherwise_works_too(world: World) -> None:
    """A newer one is told that it is of version 3: no time for `read`, no clock of its own."""
    runner = Runner(world, "bash")
    root = world.root
    runner.plan(
        *[task(f"t{n}", COMMIT, verify=["true"]) for n in range(6)],
        task("long", hold(root / "go") + COMMIT, timeout_seconds=60),
        task("limited", "sleep 60", timeout_seconds=1.5),
        preflight=["true"], postflight=["true"], max_parallel=8,
    )  # fmt: skip

    def as_old() -> None:
        text = runner.path.read_text()
        assert text.count("bash_version=${BASH_VERSINFO[0]}") == 1
        runner.path.write_text(text.replace("${BASH_VERSINFO[0]}", "3", 1))

    as_old()
    process = runner.start()
    runner.wait_for_file(runner.folder / "manifest.json")
    wait_for(lambda: runner.tasks().get("t5", {}).get("status") == "passed", "the record of six")
    wait_for(lambda: runner.tasks()["limited"]["status"] == "timed-out", "the time limit")
    (root / "go").touch()
    assert process.wait(30) == 1
    assert runner.statuses() == {
        **{f"t{n}": "passed" for n in range(6)}, "long": "passed", "limited": "timed-out"
    }  # fmt: skip
    assert len([e for e in runner.events() if e["phase"] == "task"]) == 16
    all_have_ended(world)

    runner.run_id = "r2"
    runner.plan(task("held", flag(root / "runs") + "sleep 60"))
    as_old()
    process = runner.start()
    runner.wait_for_file(root / "runs")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert runner.statuses() == {"held": "interrupted"}
    all_have_ended(world)
