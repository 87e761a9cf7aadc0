"""What runners of both languages do: the gate, the tasks, what they record, and the phases."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner_world import (
    CHANGE,
    COMMIT,
    Runner,
    flag,
    hold,
    runner,
    runner_language,
    statuses,
    task,
)
from world import SAMPLE_AGENT, SCRIPTS, wait_for

__all__ = ["runner", "runner_language"]

STEP = ["name", "command", "status", "exit_code", "seconds", "log"]
TASK = [
    "name", "status", "branch", "worktree", "base", "head", "exit_code", "files_changed",
    "out_of_scope", "uncommitted", "setup", "verify", "log",
]  # fmt: skip
MANIFEST = [
    "schema", "run_id", "run_name", "status", "exit_code", "repo", "base", "integration_branch",
    "started_at", "ended_at", "preflight", "backups", "tasks", "postflight",
]  # fmt: skip
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"


def nothing_was_made(runner: Runner) -> None:
    """No branch, no worktree and no folder for them."""
    assert runner.world.branches() == {"main"}
    assert runner.world.worktrees() == [str(runner.repo)]
    assert not runner.tree("x").parent.exists()


# --- A run that goes well -------------------------------------------------------------------


def test_a_good_run_leaves_a_complete_record(runner: Runner) -> None:
    """Order, artefacts, modes, and a report whose commands work as they stand."""
    base = runner.world.git("rev-parse", "HEAD")
    runner.plan(
        task("alpha", "echo out\necho err >&2\n" + COMMIT, owns=["alpha.txt"],
             setup=["pwd"], verify=["cat alpha.txt", ["test", "-s", "alpha.txt"]]),
        task("beta", COMMIT, depends_on=["alpha"]),
        preflight=["pwd", {"name": "named", "run": ["echo", "it's"]}],
        backups=[{"name": "dump", "run": 'printf data > "$RUN_DIR/dump.sql"',
                  "artifact": "{RUN_DIR}/dump.sql", "check": "cat {RUN_DIR}/dump.sql"}],
        postflight=["test -e .git && echo after"],
        rollback=["echo back"],
    )  # fmt: skip
    ran = runner.ends(0)

    manifest = runner.manifest
    assert list(manifest) == MANIFEST
    assert (manifest["schema"], manifest["run_id"], manifest["run_name"]) == (1, "r1", "demo")
    assert (manifest["status"], manifest["exit_code"]) == ("passed", 0)
    assert (manifest["repo"], manifest["base"]) == (str(runner.repo), base)
    assert manifest["integration_branch"] == "refs/heads/main"
    assert re.fullmatch(TIME, manifest["started_at"])
    assert re.fullmatch(TIME, manifest["ended_at"])
    assert manifest["started_at"] <= manifest["ended_at"]

    alpha, beta = manifest["tasks"]
    assert set(TASK) <= set(alpha)
    assert (alpha["status"], alpha["exit_code"], alpha["reason"]) == ("passed", 0, None)
    assert (alpha["branch"], alpha["worktree"]) == ("alpha", str(runner.tree("alpha")))
    assert alpha["base"] == base
    assert alpha["head"] == runner.world.git("rev-parse", "alpha") != base
    assert (alpha["files_changed"], alpha["uncommitted"]) == (["alpha.txt"], [])
    assert alpha["log"] == "tasks/alpha/agent.log"
    assert beta["base"] == base, "a task starts from the base, not from what it waits for"
    assert runner.result("alpha") == {"schema": 1, **alpha}

    steps = [*manifest["preflight"], *manifest["backups"], *alpha["setup"], *alpha["verify"],
             *manifest["postflight"]]  # fmt: skip
    assert statuses(steps) == ["passed"] * len(steps)
    assert [step["exit_code"] for step in steps] == [0] * len(steps)
    assert all(set(STEP) <= set(step) and step["seconds"] >= 0 for step in steps)
    assert [(step["name"], step["command"]) for step in steps] == [
        ("preflight-01", "pwd"), ("named", "echo 'it'\\''s'"),
        ("dump", 'printf data > "$RUN_DIR/dump.sql"'),
        ("setup-01", "pwd"), ("verify-01", "cat alpha.txt"), ("verify-02", "test -s alpha.txt"),
        ("postflight-01", "test -e .git && echo after"),
    ]  # fmt: skip
    assert [runner.log(step["log"]).decode() for step in steps] == [
        f"{runner.repo}\n", "it's\n", "", f"{runner.tree('alpha')}\n", "x\n", "", "after\n",
    ]  # fmt: skip
    assert runner.log("tasks", "alpha", "agent.log") == b"out\nerr\n"
    assert runner.log("backups", "dump-check.log") == b"data"
    artifact = manifest["backups"][0]["artifact"]
    assert artifact["path"] == str(runner.folder / "dump.sql")
    assert artifact["size"] == 4
    assert artifact["sha256"] == hashlib.sha256(b"data").hexdigest()

    found = {str(path.relative_to(runner.folder)) for path in runner.folder.rglob("[!.]*")}
    assert found == {
        "plan.json", "gate.json", "events.jsonl", "manifest.json", "REPORT.md", "dump.sql",
        "preflight", "preflight/preflight-01.log", "preflight/named.log",
        "backups", "backups/dump.log", "backups/dump-check.log",
        "postflight", "postflight/postflight-01.log", "tasks", "tasks/alpha", "tasks/beta",
        *(f"tasks/alpha/{n}" for n in ("prompt.md", "agent.log", "result.json", "events.jsonl",
                                       "setup-01.log", "verify-01.log", "verify-02.log")),
        *(f"tasks/beta/{n}" for n in ("prompt.md", "agent.log", "result.json", "events.jsonl")),
    }  # fmt: skip
    for path in (runner.folder.parent, runner.folder, *runner.folder.rglob("*")):
        if path.name != "dump.sql":
            expected = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == expected, path

    plan = runner.json("plan.json")
    assert plan["base_commit"] == base
    assert plan["integration_branch"] == "refs/heads/main"
    assert [(row["name"], row["depends_on"]) for row in plan["tasks"]] == [
        ("alpha", []), ("beta", ["alpha"]),
    ]  # fmt: skip
    prompt = runner.log("tasks", "alpha", "prompt.md")
    assert plan["tasks"][0]["prompt_sha256"] == hashlib.sha256(prompt).hexdigest()
    assert plan["plan_sha256"] in runner.path.read_text()
    assert runner.json("gate.json")["status"] == "passed"

    # The user's checkout is as it was, and git does not see the records.
    assert runner.world.git("status", "--porcelain", "--branch") == "## main"
    assert runner.world.git("rev-parse", "HEAD") == base
    exclude = (runner.repo / ".git" / "info" / "exclude").read_text()
    assert exclude.splitlines().count("/.worker-runs/") == 1

    assert re.search(r"^.*alpha.*passed", ran.out, re.M), ran.out
    assert re.search(r"^.*beta.*passed", ran.out, re.M), ran.out
    assert re.search("^next", ran.out, re.M)
    assert re.search(r"^\d\d:\d\d:\d\d alpha ", ran.err, re.M), ran.err
    assert "\x1b" not in ran.out + ran.err
    assert not runner.folder.joinpath("rollback.sh").exists()
    check_events(runner)
    report_commands_work(runner)


def check_events(runner: Runner) -> None:
    events = runner.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(event["schema"] == 1 and re.fullmatch(TIME, event["at"]) for event in events)
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert {event["phase"] for event in events} <= {
        "run", "gate", "preflight", "backup", "setup", "agent", "verify", "postflight", "task",
    }  # fmt: skip
    rows = [(e["task"], e["phase"], e["name"], e["event"]) for e in events]
    assert (None, "backup", "dump", "exited") in rows
    in_order = [
        (None, "run", None, "started"),
        (None, "preflight", "preflight-01", "started"),
        (None, "preflight", "preflight-01", "exited"),
        (None, "backup", "dump", "started"),
        ("alpha", "task", None, "started"),
        ("alpha", "setup", "setup-01", "started"),
        ("alpha", "setup", "setup-01", "exited"),
        ("alpha", "agent", None, "started"),
        ("alpha", "agent", None, "exited"),
        ("alpha", "verify", "verify-01", "started"),
        ("alpha", "verify", "verify-01", "exited"),
        ("alpha", "task", None, "completed"),
        ("beta", "task", None, "started"),
        ("beta", "task", None, "completed"),
        (None, "postflight", "postflight-01", "exited"),
        (None, "run", None, "completed"),
    ]
    places = [rows.index(row) for row in in_order]
    assert places == sorted(places), rows
    own = runner.log("tasks", "alpha", "events.jsonl").decode().splitlines()
    mine = [row for row in rows if row[0] == "alpha"]
    assert [(e["task"], e["phase"], e["name"], e["event"]) for e in map(json.loads, own)] == mine


def report_commands_work(runner: Runner) -> None:
    """Review, merge and clean, pasted into a shell somewhere else."""
    report = runner.log("REPORT.md").decode()
    blocks = re.findall(r"^```bash\n(.*?)^```", report, re.M | re.S)
    # Approving takes a look first.
    program = 'python3 "$SKILL_DIR/scripts/integrate_workers.py"'
    assert any(block.startswith(f"{program} forecast ") for block in blocks)
    pasted = [b for b in blocks if "RESUME=1" not in b and "integrate_workers.py" not in b]
    for words in ("merge --no-ff", "worktree remove", "branch -d", " diff ", " log ", " status"):
        assert any(words in block for block in pasted), (words, report)
    for block in pasted:
        done = subprocess.run(
            ["bash", "-e"], input=block.encode(), cwd="/", env=runner.world.env,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stderr)
    assert runner.world.branches() == {"main"}
    assert runner.world.worktrees() == [str(runner.repo)]
    assert (runner.repo / "alpha.txt").exists()
    assert (runner.repo / "beta.txt").exists()


# --- The gate -------------------------------------------------------------------------------


def test_what_is_missing_is_told_before_anything_is_made(runner: Runner) -> None:
    """Exit codes 2 and 4, and the words of the user; nothing is changed."""
    runner.plan(task("one"), base="no-such-branch")
    assert "no-such-branch" in runner.refused(2)
    runner.plan(task("one"), agent={"cli": "no-such-agent-x"})
    assert "no-such-agent-x" in runner.refused(4)
    runner.plan(task("one"), agent={"cli": "./agents/gone"})
    assert "./agents/gone" in runner.refused(4)
    runner.plan(
        task("one", agent={"cli": "no-such-agent-x"}, when={"path_exists": "gone"}), task("two"),
        task("three", agent={"cli": "no-such-agent-x"}),
    )  # fmt: skip
    runner.ends(0, ONLY="one,two", RUN_ID="needs-none-of-them")
    runner.world.git("worktree", "remove", "--force", str(runner.tree("two")))
    runner.tree("two").parent.rmdir()
    runner.world.git("branch", "-D", "two")
    shutil.rmtree(runner.repo / ".worker-runs")
    runner.plan(task("one", when={"env": "NEVER"}), task("two", depends_on=["one"]))
    for env in (
        {"RUN_ID": "../x"}, {"RUN_ID": "-x"}, {"RUN_ID": "a..b"}, {"RUN_ID": "x" * 101},
        {"MAX_PARALLEL": "0"}, {"MAX_PARALLEL": "1; touch x"},
        {"ONLY": "one,thre"}, {"RERUN": "thre", "RESUME": "1"},
    ):  # fmt: skip
        (value,) = [v for name, v in env.items() if name != "RESUME"]
        assert value.split(",")[-1][:50] in runner.refused(2, **env), env
    for words in (["al"], ["task"], ["task", "thre"], ["gate", "x"], ["--nope"], ["all", "all"]):
        runner.refused(2, *words)
    for words in (["finish"], ["task", "one"]):
        assert "RUN_ID" in runner.refused(2, *words, RUN_ID=None)
    assert "one" in runner.refused(3, ONLY="two"), "what it waits for has not passed in this run"
    assert "r1" in runner.refused(2, "task", "one")
    empty = runner.world.root / "empty"
    empty.mkdir()
    runner.refused(4, cwd=empty)
    runner.world.git("init", "-q", cwd=empty)
    runner.refused(4, cwd=empty)
    assert "exit codes" in runner.ends(0, "--help").out
    assert not (runner.repo / ".worker-runs").exists()
    nothing_was_made(runner)


def test_a_run_that_exists_is_not_run_again_unasked(runner: Runner) -> None:
    runner.plan(task("one"))
    runner.ends(0)
    for words in ([], ["gate"]):
        assert "RESUME=1" in runner.refused(3, *words)


def test_names_that_are_taken_refuse_the_gate(runner: Runner) -> None:
    """W21, W45: branches, branches in the way, paths; whatever was there stays as it was."""
    world = runner.world
    world.git("branch", "taken")
    world.git("branch", "dir/x")
    world.git("branch", "file")
    runner.tree("path").mkdir(parents=True)
    (runner.tree("path") / "mine").write_text("mine\n")
    before = world.git("for-each-ref")
    cases = {
        "b": task("a", branch="taken"), "d": task("a", branch="dir"),
        "f": task("a", branch="file/x"), "p": task("path"),
    }  # fmt: skip
    for name, bad in cases.items():
        runner.run_id = name
        runner.plan(task("fine"), bad, backups=["echo ran"])
        runner.ends(3)
        reason = runner.json("gate.json")["reason"]
        assert bad.get("branch", bad["name"]).split("/")[0] in reason
        assert statuses(runner.manifest["backups"]) == ["not-started"]
        assert world.git("for-each-ref") == before
        assert world.worktrees() == [str(runner.repo)]
    assert sorted(p.name for p in runner.tree("path").parent.iterdir()) == ["path"]
    assert (runner.tree("path") / "mine").read_text() == "mine\n"


def test_hooks_and_git_variables_of_the_caller_have_no_effect(runner: Runner) -> None:
    """W17, W29, W31: as if called from a hook of another repository, with a hook that fails."""
    other = runner.world.make_repo("other")
    hooks = runner.repo / ".git" / "hooks"
    for name in ("post-checkout", "pre-commit", "reference-transaction"):
        (hooks / name).write_text("#!/bin/sh\necho $0 >> $WORLD/hooks-ran\nexit 3\n")
        (hooks / name).chmod(0o755)
    runner.plan(task("one", CHANGE, agent={"commit_leftovers": True}))
    inside = {"GIT_DIR": f"{other}/.git", "GIT_WORK_TREE": str(other), "GIT_PREFIX": "x/",
              "GIT_INDEX_FILE": f"{other}/.git/index", "GIT_COMMON_DIR": f"{other}/.git",
              "GIT_OBJECT_DIRECTORY": f"{other}/.git/objects", "CDPATH": "/tmp:/"}  # fmt: skip
    before = runner.world.bytes_of(other)
    runner.ends(0, **inside)
    assert runner.world.bytes_of(other) == before
    assert not (runner.world.root / "hooks-ran").exists()
    assert runner.tasks()["one"]["files_changed"] == ["one.txt"]
    assert runner.tasks()["one"]["uncommitted"] == []


# --- Tasks ----------------------------------------------------------------------------------


def test_tasks_run_at_most_so_many_at_a_time(runner: Runner) -> None:
    """C24, Q11: a pool of two, and the first of four fails. The two need each other to go on."""
    root = runner.world.root
    count = f"mkdir {root}/slot.$TASK; ls -d {root}/slot.* | wc -l >> {root}/counts\n"
    leave = f"rmdir {root}/slot.$TASK\n"
    both = {
        name: count + flag(root / f"is-{name}") + hold(root / f"is-{other}") + leave + CHANGE
        for name, other in (("one", "two"), ("two", "one"))
    }
    runner.plan(
        task("one", both["one"] + "exit 3\n"), task("two", both["two"]),
        task("three", count + leave + CHANGE), task("four", count + leave + CHANGE),
        max_parallel=2,
    )  # fmt: skip
    ran = runner.ends(1)
    assert runner.statuses() == {
        "one": "failed", "two": "passed", "three": "passed", "four": "passed"
    }  # fmt: skip
    assert max(map(int, (root / "counts").read_text().split())) == 2
    assert re.search(r"^.*\bone\b.*failed", ran.out, re.M)


def test_after_a_failure_no_more_tasks_start_where_the_plan_says_so(runner: Runner) -> None:
    """Those that run are let finish."""
    root = runner.world.root
    runner.plan(
        task("one", hold(root / "two-runs") + "exit 1\n"),
        task("two", flag(root / "two-runs") + hold(root / "over") + CHANGE),
        task("three"),
        task("four", depends_on=["two"]),
        on_failure="stop",
    )  # fmt: skip
    process = runner.start()
    try:
        result = runner.folder / "tasks" / "one" / "result.json"
        wait_for(lambda: result.exists() and runner.result("one")["status"] == "failed", "one")
    finally:
        (root / "over").touch()
        assert process.wait(30) == 1
    assert runner.statuses() == {
        "one": "failed", "two": "passed", "three": "not-started", "four": "not-started"
    }  # fmt: skip


@pytest.mark.parametrize("laid_out_by", ["runner", "git"])
def test_a_task_takes_few_git_processes_and_git_makes_one_worktree_at_a_time(
    runner: Runner, laid_out_by: str
) -> None:
    """Also when tasks are processes of their own."""
    root = runner.world.root
    if laid_out_by == "git":
        runner.world.git("config", "extensions.worktreeConfig", "true")
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout
    runner.script(
        "git",
        f"""echo "$*" >> {root}/git-calls
case " $* " in
*" worktree add "*)
  mkdir {root}/adding || echo overlap >> {root}/overlaps
  {real.strip()} "$@"; code=$?; sleep 0.05; rmdir {root}/adding; exit $code;;
esac
exec {real.strip()} "$@"
""",
    )
    calls: list[int] = []
    for number in (2, 6):
        runner.run_id = f"r{number}"
        tasks = [task(f"t{number}{n}", CHANGE) for n in range(number)]
        runner.plan(*tasks, max_parallel=4)
        (root / "git-calls").write_text("")
        runner.ends(0)
        calls.append(len((root / "git-calls").read_text().splitlines()))
    assert calls[1] - calls[0] <= 4 * 3 + 4 * (laid_out_by == "git"), (
        root / "git-calls"
    ).read_text()
    assert (" worktree add " in (root / "git-calls").read_text()) == (laid_out_by == "git")
    runner.run_id = "r3"
    runner.plan(*[task(f"p{n}", CHANGE) for n in range(4)])
    runner.ends(0, "gate")
    for process in [runner.start("task", f"p{n}") for n in range(4)]:
        assert process.wait(30) == 0, runner.narration()
    runner.ends(0, "finish")
    assert not (root / "overlaps").exists()


# --- What an agent is given -----------------------------------------------------------------

# Beginnings and ends of their own, everything else in the middle of one.
MIDDLE = (
    'dos\r\nlines\r\n blanks \t \n"quoted" it\'s `touch PWN` $(touch PWN) ${HOME} $HOME \\ \\n'
    ' %s %% !x * ? ~ # &\nEOF\nPROMPT\nEND\n__END__\n\'\'\'\n"""\n---\nEOF\n"ünï \u202e 日本'
    " \U0001f600 \u2028 \x85\n{not_a_name} {} {{HOST}} ${HOST} {HOST}\n\x1b[31mred\x07\x01\x7f"
)
PROMPTS = [f"\n\n{MIDDLE}\n\n\n", "--help", "-n", "\\", "x" * 100_000 + "\r\n"]


def test_prompts_arrive_byte_for_byte_in_every_mode(runner: Runner) -> None:
    """Q05, Q09: with the sample agent; nothing is added, nothing is lost, nothing is run."""
    modes = {
        "stdin": {"prompt_mode": "stdin"},
        "argument": {"prompt_mode": "argument", "prompt_arg": "--prompt="},
        "file": {"prompt_mode": "file", "prompt_arg": "--prompt-file"},
    }
    runner.plan(
        *[
            task(f"{mode}-{number}", prompt, agent=fields)
            for mode, fields in modes.items()
            for number, prompt in enumerate(PROMPTS)
            if mode == "argument" or number in (0, 4)
        ],
        agent={"cli": str(SAMPLE_AGENT), "args": ["-p"], "allow_no_change": True},
        variables={"HOST": "h"},
        max_parallel=4,
    )
    runner.ends(0)
    got = {Path(row["cwd"]).name: row for row in runner.world.prompts()}
    assert len(got) == len(runner.manifest["tasks"]) == 9
    for name, row in got.items():
        mode, _, number = name.partition("-")
        given = PROMPTS[int(number)].replace("{{HOST}}", "{h}").replace(" {HOST}", " h")
        assert (row["via"], row["prompt"]) == (mode, given)
        assert runner.log("tasks", name, "prompt.md") == given.encode()
    assert not list(runner.world.root.rglob("PWN"))


def test_a_prompt_file_of_any_bytes_of_text_is_embedded(runner: Runner) -> None:
    content = "é\r\n$(x)\n\n".encode()
    (runner.plan_file.parent / "sub").mkdir()
    (runner.plan_file.parent / "sub" / "p.md").write_bytes(content)
    runner.plan({"name": "one", "prompt_file": "sub/p.md"}, agent={"cli": "true"})
    (runner.plan_file.parent / "sub" / "p.md").unlink()
    runner.ends(1)
    assert runner.log("tasks", "one", "prompt.md") == content


def environment(path: Path) -> dict[str, str]:
    """What `env -0` printed."""
    words = path.read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if word)  # type: ignore[misc]


def test_the_environment_of_commands_and_agents(runner: Runner) -> None:
    """The caller's, without what would mislead; values of the plan; a mark; stdin is closed."""
    show = "cat; env -0 >"
    runner.plan(
        task("one", "env -0 > $WORLD/agent\n" + CHANGE, verify=[f"{show} $WORLD/verify"],
             agent={"env": {"EXTRA": "e {V} 'x'", "MINE": ""}}),
        preflight=[f"{show} $WORLD/preflight"],
        variables={"V": "a b"},
    )  # fmt: skip
    logs = runner.world.root / "logs"
    noise = {"TMUX": "/x,1,0", "TMUX_PANE": "%1", "GIT_DIR": "/gone", "GIT_INDEX_FILE": "/gone",
             "LOG_ROOT": str(logs), "MAX_PARALLEL": "1", "ONLY": "one", "MINE": "caller's",
             "LC_ALL": "C.UTF-8", "PLAN_V": "o'v", "ODD": "line\nline"}  # fmt: skip
    runner.ends(0, stdin=b"not for any child\n", **noise)
    folder = logs / "r1"
    gone = {"TMUX", "TMUX_PANE", "GIT_DIR", "GIT_INDEX_FILE", "LOG_ROOT", "MAX_PARALLEL", "ONLY",
            "RESUME", "RERUN", "DRY_RUN"}  # fmt: skip
    for name in ("preflight", "agent", "verify"):
        env = environment(runner.world.root / name)
        assert not gone & set(env), name
        expected = {"PLAN_V": "o'v", "RUN_ID": "r1", "RUN_DIR": str(folder), "ODD": "line\nline",
                    "REPO_ROOT": str(runner.repo), "LC_ALL": "C.UTF-8"}  # fmt: skip
        mark = f"{folder}/preflight"
        if name != "preflight":
            expected |= {"TASK": "one", "WORKTREE": str(runner.tree("one"))}
            mark = f"{folder}/tasks/one"
        assert {key: env.get(key) for key in expected} == expected, name
        assert env["AGENT_WORKERS_RUN"] == mark
    agent = environment(runner.world.root / "agent")
    assert (agent["EXTRA"], agent["MINE"]) == ("e o'v 'x'", "")
    assert (folder / "preflight" / "preflight-01.log").read_bytes() == b""
    assert not (runner.repo / ".worker-runs").exists()


def test_the_words_that_an_agent_is_started_with(runner: Runner) -> None:
    """Working directory flag and prompt flag, apart or joined; the program by its path."""
    show = 'pwd; for word in "$@"; do printf \'<%s>\\n\' "$word"; done; cat; echo x > f\n'
    runner.script("show", show)
    local = runner.repo / "tools dir" / "show"
    local.parent.mkdir()
    local.write_text(f"#!/bin/sh\n{show}")
    local.chmod(0o755)
    base = {"cli": "show", "args": ["a b", "", "it's", "{TASKS}", "*"]}
    runner.plan(
        task("plain", "P\n"),
        task("apart", "P", agent={"work_dir_arg": "-C", "prompt_mode": "argument",
                                  "prompt_arg": "-p"}),
        task("joined", "P", agent={"work_dir_arg": "--dir=", "prompt_mode": "argument",
                                   "prompt_arg": "--p="}),
        task("bare", "-x", agent={"prompt_mode": "argument"}),
        task("file", "P", agent={"prompt_mode": "file", "prompt_arg": "--f="}),
        task("local", "P", agent={"cli": "./tools dir/show", "args": [], "log_name": "own.txt"}),
        agent=base,
    )  # fmt: skip
    runner.ends(0, stdin=b"not for the agent\n")
    fixed = "<a b>\n<>\n<it's>\n<{TASKS}>\n<*>\n"
    prompt = runner.folder / "tasks" / "file" / "prompt.md"
    expected = {
        "plain": f"{fixed}P\n",
        "apart": f"{fixed}<-C>\n<{runner.tree('apart')}>\n<-p>\n<P>\n",
        "joined": f"{fixed}<--dir={runner.tree('joined')}>\n<--p=P>\n",
        "bare": f"{fixed}<-x>\n",
        "file": f"{fixed}<--f={prompt}>\n",
        "local": "P",
    }
    for name, words in expected.items():
        log = runner.log("tasks", name, "own.txt" if name == "local" else "agent.log").decode()
        assert log == f"{runner.tree(name)}\n{words}", name


NASTY = [
    "it's", '"', "$(touch PWN)", "`touch PWN`", "a b", "*", "\\", "a\\", "!x", "$HOME", "-n", "",
    "a\nb", "é", "& ; | > x", "{V0}", "&", "\\&", "/", "~", "%s",
]  # fmt: skip


def test_values_stay_data_in_every_kind_of_quoting(runner: Runner) -> None:
    """Q05, Q07, Q19: bare, in both quotes, in lists and prompts; overridden by the caller too."""
    names = {f"V{n}": value for n, value in enumerate(NASTY)}
    # As they stand in the plan, and as the caller gives them.
    for source in ("plan", "caller"):
        runner.run_id = source
        show = " ".join(f"{{{n}}} '{{{n}}}' \"{{{n}}}\" \"$PLAN_{n}\" x{{{n}}}'y'" for n in names)
        runner.plan(
            task(source, CHANGE + "".join(f"# {{{name}}}\n" for name in ("V2", "V4"))),
            variables=names if source == "plan" else dict.fromkeys(names, "old"),
            preflight=[
                f"printf '%s\\0' {show}",
                ["printf", "%s\\0", *(f"{{{name}}}" for name in names)],
                ["python3", "-c", "print(\"hi\", 'there')"],
                "python3 -c 'print(\"hi\")'",
            ],
        )
        env = {f"PLAN_{n}": v for n, v in names.items()} if source == "caller" else {}
        runner.ends(0, **env)
        logs = [runner.log(step["log"]).decode() for step in runner.manifest["preflight"]]
        words = [w for v in NASTY for w in (v, v, v, v, f"x{v}y")]
        assert logs[0].split("\0") == [*words, ""], source
        assert logs[1].split("\0") == [*NASTY, ""], source
        assert logs[2:] == ["hi there\n", "hi\n"]
        prompt = runner.log("tasks", source, "prompt.md").decode()
        assert prompt == CHANGE + "# $(touch PWN)\n# a b\n"
    assert not list(runner.world.root.rglob("PWN"))


def test_file_names_and_output_that_are_not_utf_8(runner: Runner) -> None:
    """Q19: any name that git takes, committed, left, out of scope, and committed by the runner."""
    odd = ["it's", '"', "a\nb", "a\tb", "\udce9", "-x", "*", ":(top)x", " s ", "\\", "é", "[a]"]
    make = "".join(
        "name=$(printf '" + "".join(f"\\{b:03o}" for b in os.fsencode(name)) + "')\n"
        'printf x > "$1/$name"\n'
        for name in odd
    )
    runner.script("make-odd", make)
    runner.plan(
        task("left", "printf 'out \\351\\n\\000'; mkdir d; make-odd d\n", owns=["src/**"]),
        task("done", "mkdir d; make-odd d; git add -A; git commit -qm x\n", owns=["d/*"],
             verify=["printf '\\377'; test -e d/[*]"]),
        task("kept", "mkdir d; make-odd d\n", agent={"commit_leftovers": True}),
    )  # fmt: skip
    runner.ends(1)
    assert runner.statuses() == {"left": "failed", "done": "passed", "kept": "passed"}
    expected = sorted(f"d/{name}" for name in odd)
    rows = runner.tasks()
    for name, fields in {
        "left": ["files_changed", "uncommitted", "out_of_scope"],
        "done": ["files_changed"],
        "kept": ["files_changed"],
    }.items():
        for field in fields:
            assert sorted(rows[name][field]) == expected, (name, field)
    assert rows["kept"]["uncommitted"] == rows["done"]["uncommitted"] == []
    assert runner.log("tasks", "left", "agent.log") == b"out \xe9\n\x00"
    assert runner.log("tasks", "done", "verify-01.log") == b"\xff"
    runner.world.git("diff", "--exit-code", "done", "kept")


# --- for_each -------------------------------------------------------------------------------


def test_tasks_for_each_item(runner: Runner) -> None:
    """Lists, lines of a file and of a command; names, branches and order follow the items."""
    (runner.repo / "hosts.txt").write_bytes(b"web-1\r\n\nweb 2\n" + "é'\"".encode())
    runner.world.commit("hosts")
    runner.plan(
        task("up-{item}", "printf '%s' \"$PLAN_item\" > f\n", for_each={"file": "hosts.txt"},
             branch="up/{item}", verify=['test "$(cat f)" = {item}'], depends_on=["list"]),
        task("check", CHANGE, for_each={"run": "printf 'web-1\\nzz'"}, depends_on=["up-{item}"]),
        task("list", "echo {item} > f\n", for_each=["a", "b"]),
        preflight=["cp hosts.txt copy.txt; rm copy.txt"],
    )  # fmt: skip
    runner.ends(0)
    rows = runner.tasks()
    assert list(rows) == [
        "up-web-1", "up-web-2-2", "up-item-3", "check-web-1", "check-zz", "list-a", "list-b"
    ]  # fmt: skip
    assert set(runner.statuses().values()) == {"passed"}
    assert rows["up-web-2-2"]["branch"] == "up/web-2-2"
    assert rows["up-web-2-2"]["verify"][0]["command"] == "test \"$(cat f)\" = 'web 2'"
    assert (runner.tree("up-item-3") / "f").read_text() == "é'\""
    assert (runner.tree("list-b") / "f").read_text() == "b\n"
    plan = {row["name"]: row for row in runner.json("plan.json")["tasks"]}
    assert plan["up-item-3"]["item"] == "é'\""
    assert plan["check-web-1"]["depends_on"] == ["up-web-1"], "the same item"
    assert plan["check-zz"]["depends_on"] == ["up-web-1", "up-web-2-2", "up-item-3"]
    assert plan["up-web-1"]["depends_on"] == ["list-a", "list-b"]


def test_items_are_read_once_and_then_recorded(runner: Runner) -> None:
    """The gate decides; later phases take what it recorded, whatever the command prints then."""
    runner.plan(task("t", CHANGE, for_each={"run": "cat items; rm items"}))
    (runner.repo / "items").write_text("a\nb\n")
    runner.ends(0, "gate")
    assert not (runner.repo / "items").exists()
    runner.ends(0, "task", "t-a")
    runner.ends(0, "task", "t-b")
    runner.ends(0, "finish")
    assert runner.statuses() == {"t-a": "passed", "t-b": "passed"}


def test_no_items_are_no_tasks(runner: Runner) -> None:
    runner.plan(
        task("t", for_each={"run": "printf '\\n\\n'"}), task("after", CHANGE, depends_on=["t"]),
        preflight=["cat"],
    )  # fmt: skip
    runner.ends(0)
    assert runner.statuses() == {"after": "passed"}


def test_a_command_that_reads_stdin_eats_no_list(runner: Runner) -> None:
    """C02: each step, item and dependency is there, the last line without a newline too."""
    runner.plan(
        task("t", "cat > /dev/null\n", setup=["cat", "cat"], verify=["cat", "cat", "cat"],
             for_each={"run": "cat; printf 'a\\nb\\nc'"}, agent={"allow_no_change": True}),
        preflight=["cat", ["cat"], "cat"],
        backups=["cat", "cat"],
        postflight=["cat", "cat", "echo last"],
    )  # fmt: skip
    runner.ends(0, stdin=b"from the caller\n")
    manifest = runner.manifest
    assert [len(manifest[k]) for k in ("preflight", "backups", "postflight")] == [3, 2, 3]
    for row in manifest["tasks"]:
        assert statuses([*row["setup"], *row["verify"]]) == ["passed"] * 5
    assert len(manifest["tasks"]) == 3
    assert runner.log("postflight", "postflight-03.log") == b"last\n"


# --- Phases, ONLY, RESUME -------------------------------------------------------------------


def test_phases_as_processes_of_their_own(runner: Runner) -> None:
    """A task checks the gate itself and writes only below its folder; finish can come again."""
    gate = runner.world.root / "gate-opens"
    runner.plan(
        task("one"), task("two"), task("three", depends_on=["one"]), task("four", "exit 1\n"),
        preflight=[f"test -e {gate}"], postflight=["echo after"], rollback=["echo back"],
    )  # fmt: skip
    runner.ends(3, "gate")
    assert "gate" in runner.refused(3, "task", "one")
    runner.ends(3, "finish")
    assert runner.manifest["status"] == "gate-refused"
    gate.touch()
    runner.ends(0, "gate", RESUME="1")
    nothing_was_made(runner)
    assert "one" in runner.refused(3, "task", "three"), "it waits for one"

    def others() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() for path in runner.folder.rglob("*")
            if path.is_file() and not re.search("tasks/(one|two)/", str(path))
        }  # fmt: skip

    before = others()
    started = [runner.start("task", name) for name in ("one", "two")]
    assert [process.wait(30) for process in started] == [0, 0], runner.narration()
    assert others() == before
    assert runner.result("one")["status"] == "passed"

    runner.ends(1, "finish")
    words = runner.statuses()
    assert (words["one"], words["two"]) == ("passed", "passed")
    assert {words["three"], words["four"]} == {"not-started"}
    assert statuses(runner.manifest["postflight"]) == ["not-started"]
    assert runner.folder.joinpath("rollback.sh").exists()


def test_finish_can_be_called_again_when_more_is_done(runner: Runner) -> None:
    runner.plan(task("one"), task("two"), postflight=["echo x >> $WORLD/after"])
    runner.ends(0, "gate")
    runner.ends(0, "task", "one")
    runner.ends(1, "finish")
    assert runner.manifest["status"] == "failed"
    runner.ends(0, "task", "two")
    for _ in range(2):
        runner.ends(0, "finish")
        assert runner.manifest["status"] == "passed"
        assert runner.statuses() == {"one": "passed", "two": "passed"}
    assert (runner.world.root / "after").read_text() == "x\n", "what passed is not run again"
    check = {event["seq"]: event for event in runner.events()}
    assert sorted(check) == list(range(1, len(check) + 1))


def test_a_postflight_that_fails_is_a_failed_run(runner: Runner) -> None:
    runner.plan(task("one"), postflight=["true", "exit 2", "true"], rollback=["true"])
    runner.ends(1)
    assert statuses(runner.manifest["postflight"]) == ["passed", "failed", "not-started"]
    assert (runner.manifest["status"], runner.manifest["exit_code"]) == ("failed", 1)
    assert runner.statuses() == {"one": "passed"}
    assert runner.folder.joinpath("rollback.sh").exists()


def test_only_some_tasks(runner: Runner) -> None:
    """The others are skipped; what the chosen ones wait for must have passed in this run."""
    runner.plan(
        task("one"), task("two", depends_on=["one"]), task("each", for_each=["a", "b"]),
        task("three", depends_on=["two"]), postflight=["true"],
    )  # fmt: skip
    assert "one" in runner.refused(3, ONLY="two")
    runner.ends(0, ONLY="one,each-a")
    assert runner.statuses() == {
        "one": "passed", "two": "skipped", "each-a": "passed", "each-b": "skipped",
        "three": "skipped",
    }  # fmt: skip
    assert "two" in runner.refused(3, ONLY="three", RESUME="1")
    runner.ends(0, ONLY="two,each", RESUME="1")
    assert set(runner.statuses().values()) == {"passed", "skipped"}
    assert runner.statuses()["three"] == "skipped"
    runner.ends(0, RESUME="1")
    assert set(runner.statuses().values()) == {"passed"}
    log = runner.world.root / "repo.worktrees" / "one"
    assert runner.world.git("rev-list", "--count", "main..one", cwd=log) == "1", "run once"


def test_a_run_that_is_resumed_does_not_repeat_what_was_done(runner: Runner) -> None:
    """The gate that passed stays, an agent that had started is not started again unasked."""
    root = runner.world.root
    runner.plan(
        task("good", f"echo good >> {root}/ran\n" + COMMIT),
        task("bad", f"echo bad >> {root}/ran; echo $RUN_ID >> bad.txt; git add -A\n"
             f"git commit -qm bad; test -e {root}/fixed\n"),
        task("unset", f"echo unset >> {root}/ran\n" + CHANGE, setup=[f"test -e {root}/fixed"]),
        task("after", f"echo after >> {root}/ran\n" + CHANGE, depends_on=["unset"]),
        preflight=[f"echo pre >> {root}/ran"],
        postflight=[f"echo post >> {root}/ran"],
        max_parallel=1,
    )  # fmt: skip
    runner.ends(1)
    words = {"good": "passed", "bad": "failed", "unset": "failed", "after": "not-started"}
    assert runner.statuses() == words
    (root / "fixed").touch()
    runner.ends(1, RESUME="1")
    assert runner.statuses() == {**words, "unset": "passed", "after": "passed"}
    runner.ends(0, RESUME="1", RERUN="bad")
    assert set(runner.statuses().values()) == {"passed"}
    ran = (root / "ran").read_text().split()
    assert ran == ["pre", "good", "bad", "unset", "after", "bad", "post"]
    assert (runner.tree("bad") / "bad.txt").read_text() == "r1\nr1\n", "in its old worktree"
    assert runner.tasks()["bad"]["base"] == runner.manifest["base"]
    assert runner.world.git("rev-list", "--count", "main..bad") == "2"
    assert "resumed" in {event["event"] for event in runner.events()}


def test_a_gate_that_was_refused_goes_on_where_it_stopped(runner: Runner) -> None:
    root = runner.world.root
    runner.plan(
        task("one"), preflight=[f"echo p >> {root}/ran", f"test -e {root}/fixed"],
        backups=[f"echo b >> {root}/ran"],
    )  # fmt: skip
    runner.ends(3)
    runner.ends(3, RESUME="1")
    (root / "fixed").touch()
    runner.ends(0, RESUME="1")
    assert (root / "ran").read_text().split() == ["p", "b"]
    assert statuses(runner.manifest["preflight"]) == ["passed", "passed"]


def test_a_lost_backup_is_made_again_and_no_other(runner: Runner) -> None:
    root = runner.world.root
    backups = [
        {"name": name, "run": f"echo {name} >> {root}/ran; echo x > {root}/{name}",
         "artifact": f"{root}/{name}"}
        for name in ("kept", "gone", "old", "empty")
    ]  # fmt: skip
    runner.plan(task("one", f"echo one >> {root}/ran\nexit 1\n"), task("two"), backups=backups)
    runner.ends(1)
    (root / "gone").unlink()
    os.utime(root / "old", (1_000_000_000, 1_000_000_000))
    (root / "empty").write_text("")
    first = runner.manifest["backups"]
    runner.ends(1, RESUME="1")
    assert (root / "ran").read_text().split() == [
        *("kept", "gone", "old", "empty", "one"), *("gone", "old", "empty")
    ]  # fmt: skip
    assert runner.manifest["backups"][0] == first[0]
    assert statuses(runner.manifest["backups"]) == ["passed"] * 4

    # One that cannot be made again stops the run before any more is done.
    (root / "gone").unlink()
    (root / "gone").mkdir()
    assert "gone" in runner.ends(3, RESUME="1", RERUN="one").err
    assert (root / "ran").read_text().split()[-1] == "gone"
    assert runner.statuses()["one"] == "failed"


def test_what_a_resumed_run_takes_for_its_own(runner: Runner) -> None:
    """A branch or a worktree that a person made meanwhile is not this run's."""
    runner.plan(task("one", branch="mine", when="true"), task("two", ":\n", when="true"))
    runner.world.git("branch", "mine")
    (runner.tree("two")).mkdir(parents=True)
    (runner.tree("two") / "notes.txt").write_text("mine")
    for env in ({}, {"RESUME": "1"}, {"RESUME": "1"}):
        runner.ends(1, env=env)
        assert runner.statuses() == {"one": "failed", "two": "failed"}
        assert "exists already" in runner.tasks()["one"]["reason"]
    assert (runner.tree("two") / "notes.txt").read_text() == "mine"
    assert runner.world.git("rev-parse", "mine") == runner.manifest["base"]


def test_a_worktree_that_git_knows_already_is_not_made_again(runner: Runner) -> None:
    """One that was moved away, for example: its folder is not there, its entry is."""
    world, tree = runner.world, runner.tree("one")
    world.git("worktree", "add", "-q", "-b", "other", str(tree))
    tree.rename(tree.with_name("elsewhere"))
    runner.plan(task("one"))
    runner.ends(1)
    assert runner.tasks()["one"]["reason"] == f"git knows the worktree {tree} already"
    assert not tree.exists()
    assert world.branches() == {"main", "other"}
    world.git("worktree", "repair", str(tree.with_name("elsewhere")))
    runner.ends(0, RESUME="1")
    assert (runner.repo / ".git" / "worktrees" / "one1").exists()


def test_a_branch_without_a_commit_that_a_checkout_is_on_is_in_the_way(runner: Runner) -> None:
    world = runner.world
    world.git("worktree", "add", "-q", "--detach", str(world.root / "other"))
    world.git("checkout", "-q", "--orphan", "one", cwd=world.root / "other")
    runner.plan(task("one"))
    assert "the branch 'one' is in the way of task one" in runner.ends(3).err
    assert world.branches() == {"main"}


def test_a_repository_with_long_ids(runner: Runner) -> None:
    world = runner.world
    shutil.rmtree(runner.repo / ".git")
    world.git("init", "-q", "--object-format=sha256")
    world.git("add", "-A")
    world.git("commit", "-q", "-m", "first")
    runner.plan(task("one"))
    runner.ends(0)
    assert len(runner.tasks()["one"]["head"]) == 64


def test_worktrees_at_a_path_with_a_newline_are_refused(runner: Runner) -> None:
    runner.plan(task("one"), worktree_root="../a\nb")
    for env in ({"DRY_RUN": "1"}, {}):
        assert "a path with a newline" in runner.ends(2, env=env).err
    assert runner.world.branches() == {"main"}


def test_a_worktree_is_laid_out_as_git_does_it(runner: Runner) -> None:
    world = runner.world
    runner.plan(task("one", CHANGE))
    runner.ends(0)
    world.git("worktree", "add", "-q", "-b", "two", str(runner.tree("two")))
    world.git("reset", "-q", "--hard", cwd=runner.tree("two"))
    found: list[dict[str, tuple[str, bytes]]] = []
    for name in ("one", "two"):
        admin = runner.repo / ".git" / "worktrees" / name
        assert (admin.stat().st_mode, runner.tree(name).stat().st_mode) == (0o40755, 0o40755)
        files = [f for f in admin.rglob("*") if f.is_file() and f.name != "index"]
        found.append({
            str(file.relative_to(admin)): (
                stat.filemode(file.stat().st_mode),
                b"" if "logs" in file.parts else file.read_bytes().replace(b"two", b"one"),
            )
            for file in files if file.name != "agent-workers-run"
        })  # fmt: skip
    assert found[0] == found[1]
    first = world.git("reflog", "--format=%gs", "one").split("\n")[-1]
    assert first == f"branch: Created from {runner.manifest['base']}"
    world.git("worktree", "prune")
    world.git("worktree", "remove", "--force", str(runner.tree("one")))
    assert not (runner.repo / ".git" / "worktrees" / "one").exists()


def test_the_base_stays_when_a_backup_is_made_again(runner: Runner) -> None:
    root = runner.world.root
    runner.plan(
        task("one"), task("two", ":\n", setup=[f"test -e {root}/fixed"]),
        backups=[{"name": "b", "run": f"test ! -e {root}/broken && echo x > {root}/b",
                  "artifact": f"{root}/b"}],
    )  # fmt: skip
    runner.ends(1)
    base = runner.manifest["base"]
    (root / "b").unlink()
    (root / "broken").touch()
    runner.ends(3, RESUME="1")
    runner.world.git("merge", "-q", "one")
    (root / "broken").unlink()
    (root / "fixed").touch()
    runner.ends(1, RESUME="1")
    assert runner.manifest["base"] == runner.tasks()["two"]["base"] == base
    assert runner.statuses() == {"one": "passed", "two": "no-change"}


def test_only_later_steps_of_a_plan_may_change(runner: Runner) -> None:
    """Exit 3 names what differs and has had its turn; what has not is taken as it is now."""
    root = runner.world.root
    plan: dict[str, Any] = {
        "tasks": [task("one", f"echo 1 >> {root}/ran\n{COMMIT}"),
                  task("two", setup=[f"test -e {root}/fixed"])],
        "preflight": [f"echo p >> {root}/ran"], "postflight": ["true"], "rollback": ["true"],
    }  # fmt: skip
    runner.plan(**plan)
    runner.ends(1)
    changed = {
        **plan,
        "postflight": [f"echo after >> {root}/ran"],
        "rollback": [],
        "max_parallel": 1,
    }
    changed["tasks"] = [plan["tasks"][0], task("two", "echo new > new.txt\n", owns=["new.txt"])]
    runner.plan(**changed)
    assert "since this run was started" in runner.refused(3, "task", "two")
    assert "RESUME=1" in runner.refused(3, "finish")
    runner.ends(0, RESUME="1")
    assert (root / "ran").read_text().split() == ["p", "1", "after"]
    assert runner.tasks()["two"]["files_changed"] == ["new.txt"]
    assert runner.json("plan.json")["tasks"][1]["owns"] == ["new.txt"]
    runner.ends(0, "finish")

    for words, fields in (
        ("preflight preflight-01", {"preflight": ["true"]}),
        ("postflight postflight-01", {"postflight": ["true"]}),
        ("variables A", {"variables": {"A": "b"}}),
        ("settings worktree_root", {"worktree_root": "../elsewhere"}),
        ("tasks one", {"tasks": [task("one", "other"), changed["tasks"][1]]}),
        ("the list of tasks", {"tasks": [*changed["tasks"], task("three")]}),
    ):
        runner.plan(**{**changed, **fields})
        error = runner.refused(3, RESUME="1")
        assert f"since this run was started: {words}" in error, error
        assert error.endswith(": RERUN=one") is (words == "tasks one"), error
        assert "PLAN_A" not in error
        runner.ends(0, "status")


def test_a_dry_run_refuses_the_names_that_a_run_refuses(runner: Runner) -> None:
    runner.plan(task("t{V}", CHANGE, branch="{V}0"), variables={"V": "v"})
    for value in ("a b", "../x", "a..b"):
        for dry in ("1", ""):
            assert "is no name for a" in runner.refused(2, PLAN_V=value, DRY_RUN=dry)


def test_a_changed_value_of_a_gate_that_failed_is_given_in_the_environment(runner: Runner) -> None:
    plan: dict[str, Any] = {"preflight": ['test "$PLAN_A" = good'], "tasks": [task("t", CHANGE)]}
    runner.plan(**plan, variables={"A": "bad", "B": "x"})
    runner.ends(3)
    runner.plan(**plan, variables={"A": "good", "B": "y"})
    report = (runner.repo / ".worker-runs" / "r1" / "REPORT.md").read_text()
    assert "Resume; a value that was wrong is given beside it, as PLAN_NAME=VALUE" in report
    told = runner.ends(0, "status").out
    assert "\nthe gate refused: preflight preflight-01: exit code 1\n" in told
    error = runner.refused(3, RESUME="1")
    assert "since this run was started: variables A, variables B" in error
    assert "give PLAN_A=... PLAN_B=..., or start a new run" in error
    runner.plan(**plan, variables={"A": "bad", "B": "x"})
    runner.ends(0, RESUME="1", PLAN_A="good")


def test_status_shows_the_newest_run_and_changes_nothing(runner: Runner) -> None:
    runner.plan(task("one"), task("two", "exit 1\n"))
    runner.ends(1, RUN_ID="b-older")
    runner.world.git("branch", "-m", "one", "x")
    runner.world.git("branch", "-m", "two", "y")
    for name in ("one", "two"):
        runner.world.git("worktree", "move", str(runner.tree(name)), str(runner.tree(f"{name}-x")))
    runner.ends(1, RUN_ID="a-newer")
    before = runner.seen()
    ran = runner.ends(0, "status", RUN_ID=None)
    assert "a-newer" in ran.out
    assert re.search(r"\bone\b.*passed", ran.out)
    assert re.search(r"\btwo\b.*failed", ran.out)
    assert "b-older" in runner.ends(0, "status", RUN_ID="b-older").out
    assert "gone" in runner.refused(2, "status", RUN_ID="gone")
    runner.same(before)


def test_places_count_from_where_the_plan_says(runner: Runner) -> None:
    """`repo` and LOG_ROOT from the working directory, all else from the repository's root."""
    (runner.repo / "sub").mkdir()
    (runner.repo / "sub" / "list").write_text("a\n")
    runner.world.commit("sub")
    runner.plan(
        task("t", CHANGE, for_each={"file": "sub/list"}, when={"path_exists": "sub"}),
        repo="repo", worktree_root="../trees dir/{V}", preflight=["pwd; test -d sub"],
        variables={"V": "x y"},
    )  # fmt: skip
    runner.ends(0, cwd=runner.world.root, LOG_ROOT="my logs/all")
    folder = runner.world.root / "my logs" / "all" / "r1"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["repo"] == str(runner.repo)
    assert (folder / "preflight" / "preflight-01.log").read_text() == f"{runner.repo}\n"
    tree = runner.world.root / "trees dir" / "x y" / "t-a"
    assert manifest["tasks"][0]["worktree"] == str(tree)
    assert (tree / "t-a.txt").exists()
    assert not (runner.repo / ".worker-runs").exists()


# --- rollback.sh ----------------------------------------------------------------------------


def test_rollback_commands_are_written_down_and_never_run(runner: Runner) -> None:
    """Q17: the script finds its files from anywhere, tells what happened, stops at a failure."""
    root = runner.world.root
    runner.plan(
        task("one"), task("two", "exit 1\n"),
        variables={"HOST": "it's $(touch PWN)"},
        backups=[{"name": "dump", "run": 'echo data > "$RUN_DIR/dump"'},
                 {"name": "left", "run": "true", "when": "exit 1"}],
        rollback=[
            f'cp "$RUN_DIR/dump" {root}/restored; pwd > {root}/where',
            ["sh", "-c", f'printf "%s" "$1$PLAN_HOST" > {root}/host', "x", "{HOST}"],
            {"name": "never", "run": f"touch {root}/never", "when": {"backup_passed": "left"}},
            {"run": f"touch {root}/then", "when": "test -d .git"},
            {"run": f"touch {root}/not-then", "when": {"not": ["test", "-d", ".git"]}},
            "echo stops here; exit 5",
            f"touch {root}/too-far",
        ],
    )  # fmt: skip
    runner.ends(1)
    made = {p.name for p in root.iterdir()}
    assert not {"restored", "host", "never", "then", "too-far"} & made
    path = runner.folder / "rollback.sh"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    text = path.read_text()
    assert re.search(r"^# .*one.*passed", text, re.M), text
    assert re.search(r"^# .*two.*failed", text, re.M), text
    linter = Path(sys.executable).parent / "shellcheck"
    subprocess.run([str(linter), "--severity=warning", str(path)], check=True)
    done = subprocess.run(
        ["bash", f"{runner.run_id}/rollback.sh"], cwd=runner.folder.parent, check=False,
        env={**runner.world.env, "CDPATH": f"{root}:/"}, capture_output=True,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert done.returncode == 5, done
    assert (root / "restored").read_text() == "data\n"
    assert (root / "where").read_text() == f"{runner.repo}\n"
    assert (root / "host").read_text() == "it's $(touch PWN)" * 2
    assert (root / "then").exists()
    for name in ("never", "not-then", "too-far", "PWN"):
        assert not (root / name).exists(), name
    assert "cp " in done.stdout + done.stderr, "each command is shown"


# --- What is left, and what went wrong ------------------------------------------------------


def test_one_task_heeds_failures_and_lost_backups(runner: Runner) -> None:
    artifact = {"name": "kept", "run": "echo x > ../dump", "artifact": "../dump"}
    runner.plan(
        task("one", f"test -e {runner.world.root}/fixed || exit 3\n" + COMMIT), task("two", COMMIT),
        on_failure="stop", backups=[artifact],
    )  # fmt: skip
    runner.ends(0, "gate")
    runner.ends(1, "task", "one")
    assert "one is failed" in runner.ends(3, "task", "two").err
    assert not runner.tree("two").exists()
    (runner.world.root / "fixed").touch()
    runner.ends(0, "task", "one", RERUN="one")
    dump = runner.world.root / "dump"
    dump.rename(dump.with_name("away"))
    assert "kept" in runner.ends(3, "task", "two").err
    dump.with_name("away").rename(dump)
    runner.ends(0, "task", "two")


def test_an_agent_that_removes_its_records_fails_alone_and_is_not_started_again(
    runner: Runner,
) -> None:
    """Neither while it runs, nor by a plain RESUME=1, also when its branch is gone as well."""
    gone = 'rm -rf "$RUN_DIR/tasks/$TASK"\n'
    starts = runner.world.root / "starts"
    away = 'git -C "$REPO_ROOT" worktree remove --force "$WORKTREE"\n'
    away += f'git -C "$REPO_ROOT" branch -q -D "$TASK"\necho x >> {starts}\n{gone}'
    runner.plan(task("away", away), task("hides", COMMIT + gone), task("good"), max_parallel=1)
    runner.ends(1)
    assert runner.statuses() == {"away": "failed", "hides": "failed", "good": "passed"}
    assert "was removed" in runner.result("hides")["reason"]
    assert [e["event"] for e in runner.events() if e["task"] == "hides"][-1] == "error"
    for name in ("away", "good"):
        shutil.rmtree(runner.folder / "tasks" / name)
    runner.ends(1, RESUME="1")
    runner.ends(3, "task", "away")
    assert runner.statuses() == {"away": "failed", "hides": "failed", "good": "failed"}
    assert "its record is gone" in runner.tasks()["away"]["reason"]
    assert starts.read_text() == "x\n"
    runner.ends(1, RESUME="1", RERUN="away")
    assert starts.read_text() == "x\nx\n"


def test_an_interrupted_agent_without_its_records_is_not_started_again(runner: Runner) -> None:
    starts, ready = runner.world.root / "starts", runner.world.root / "ready"
    runner.plan(
        task("one", f'echo x >> {starts}\nrm -rf "$RUN_DIR/tasks/one"\n{flag(ready)}sleep 30\n')
    )
    process = runner.start()
    runner.wait_for_file(ready)
    process.terminate()
    assert process.wait(30) == 143
    assert runner.statuses() == {"one": "interrupted"}
    runner.ends(1, RESUME="1")
    assert starts.read_text() == "x\n"


def test_a_place_for_runs_that_cannot_be_made(runner: Runner) -> None:
    runner.plan(task("one"))
    ran = runner.ends(1, LOG_ROOT="/proc/x")
    assert ran.err.startswith("error: cannot make /proc/x/r1: No such file")
    assert ran.err.count("\n") == 2
    assert "\nhint: give a LOG_ROOT" in ran.err


def test_the_report_names_the_logs_of_what_failed(runner: Runner) -> None:
    runner.plan(
        task("one", COMMIT, verify=[{"name": "check", "run": "exit 3"}]),
        task("two", "exit 4\n"), task("three", setup=[{"name": "make", "run": "exit 5"}]),
        preflight=["true"],
    )  # fmt: skip
    runner.ends(1)
    report = runner.log("REPORT.md").decode()
    logs = dict(re.findall(r"^- (.*): (/.*)$", report, re.M))
    assert list(logs) == [
        "task one, agent", "task one, verify check", "task two, agent", "task three, setup make",
    ]  # fmt: skip
    assert all(Path(path).is_file() for path in logs.values())
    runner.run_id = "r2"
    runner.plan(task("four"), preflight=[{"name": "disk", "run": "echo full; exit 1"}])
    runner.ends(3)
    disk = f"- preflight disk: {runner.folder}/preflight/disk.log\n"
    assert disk in runner.log("REPORT.md").decode()


def test_the_reports_commands_can_be_pasted(runner: Runner) -> None:
    """Those of the skill need SKILL_DIR alone; to clean up is told for what can be merged."""
    runner.plan(task("one"), task("bad", CHANGE + "exit 3\n"))
    ran = runner.ends(1)
    assert "next: merge what was reviewed, with the skill's scripts; SKILL_DIR is" in ran.out
    report = runner.log("REPORT.md").decode()
    blocks = dict(re.findall(r"^## (.*)\n\n```bash\n((?:.*\n)*?)```$", report, re.M))
    merge = next(text for title, text in blocks.items() if "SKILL_DIR is the skill's" in title)
    assert report.count("SKILL_DIR is") == 1
    env = {**runner.world.env, "SKILL_DIR": str(SCRIPTS.parent)}
    done = subprocess.run(
        ["bash", "-e", "-c", f"{merge.rstrip()} --no-changelog-needed one=test"],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (runner.repo / "one.txt").exists()
    ((title, clean),) = [row for row in blocks.items() if row[0].startswith("Clean up")]
    assert "ignored files" in title
    assert "one" in clean
    assert "bad" not in clean


def test_control_characters_in_what_is_printed(runner: Runner) -> None:
    value = "a\x1b[31m\x07\x7f\x9b\rb\tc"
    runner.plan(
        task("one", "exit 1\n", setup=[["echo", "{V}"]]), rollback=[["echo", "{V}"]],
        variables={"V": value},
    )  # fmt: skip
    out = runner.ends(0, DRY_RUN="1").out
    shown = r"a\x1b[31m\x07\x7f\xc2\x9b\x0db"
    assert f"setup setup-01: echo '{shown}\tc'\n" in out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)
    runner.ends(1)
    script = runner.log("rollback.sh").decode()
    line = next(line for line in script.split("\n") if line.startswith("printf '%s"))
    assert shown in line
    done = subprocess.run(["bash", runner.folder / "rollback.sh"], capture_output=True, check=True)
    assert done.stdout.decode() == f"rollback rollback-01: echo '{shown}\tc'\n{value}\n"


def test_settings_that_go_with_none_are_told(runner: Runner) -> None:
    """RESUME without RUN_ID, RERUN without RESUME, a value for a variable that is not there."""
    runner.plan(task("one"), variables={"HOST": "a", "PORT": "1"})
    alone = {"RESUME": "1", "RUN_ID": None}
    assert "there is no run in" in runner.refused(2, env=alone)
    runner.ends(0, "gate", PLAN_HOST="b", PLAN_item="x")
    for env in (alone, {**alone, "DRY_RUN": "1"}):
        error = runner.refused(2, env=env)
        assert error == "error: RESUME=1 needs RUN_ID\nhint: the newest run is RUN_ID=r1"
    for word in ("all", "gate"):
        error = runner.refused(2, word, RUN_ID="r2", RERUN="one")
        assert error.startswith("error: RERUN is for a run that goes on\nhint: say RESUME=1")
    note = "note: PLAN_HSOT is set, and the plan has no variable HSOT; it has: HOST, PORT\n"
    assert runner.ends(0, DRY_RUN="1", PLAN_HSOT="b", PLAN_PORT="2").err == note
    assert runner.ends(0, "task", "one", PLAN_HSOT="b").err.startswith(note)
    assert runner.ends(0, "status", PLAN_HSOT="b").err == ""


def test_a_dry_run_shows_prompts_and_what_is_left(runner: Runner) -> None:
    runner.plan(task("one", "# do it\nmore\n"), task("two", "exit 3\n"), preflight=["true"])
    dry = runner.ends(0, DRY_RUN="1").out
    assert "  prompt tasks/one/prompt.md, 13 bytes: # do it\n" in dry
    assert "there is no run" in runner.ends(2, DRY_RUN="1", RESUME="1").err
    runner.ends(1)
    before = runner.seen()
    rest = runner.ends(0, DRY_RUN="1", RESUME="1").out
    assert "passed already" in rest
    assert "task two\n  stays failed; RERUN=two runs it again\n" in rest
    again = runner.ends(0, DRY_RUN="1", RESUME="1", RERUN="two").out
    assert "task two\n  branch" in again
    runner.same(before)
