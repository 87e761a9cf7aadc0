"""The command `agent_workers.py`, from spawn to clean-up, on real git and real tmux."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from world import SAMPLE_AGENT, World, wait_for

IDLE = ("--prompt-mode", "none", "--settle", "0")


def test_the_whole_life_of_a_worker(world: World) -> None:
    worker = world.spawn("w1", "@write new.txt hello\n@commit add new")
    assert worker["delivered"] is True
    assert worker["branch"] == "w1"
    base = world.git("rev-parse", "HEAD")
    assert worker["base"] == base
    row = world.wait_state("w1", "running")
    assert row["worktree"] == str(world.tree("w1"))


def test_one_worker_for_each_prompt_of_a_folder(world: World) -> None:
    folder = world.root / "prompts"
    folder.mkdir()
    for name in ("api", "docs", "web"):
        (folder / f"{name}.md").write_text(f"Task of {name}.\n@write {name}.txt x\n")
    (folder / "notes.txt").write_text("not a prompt\n")
    rows = world.ok("spawn", "--prompts-dir", str(folder), "--agent-cli", str(SAMPLE_AGENT))[
        "workers"
    ]
    assert [(row["name"], row["ok"], row["error"]) for row in rows] == [
        ("api", True, None),
        ("docs", True, None),
        ("web", True, None),
    ]
    assert all(row["worker"]["delivered"] for row in rows)
    told = sorted(entry["prompt"].split("\n")[0] for entry in world.prompts())
    assert told == ["Task of api.", "Task of docs.", "Task of web."]
    assert sorted(world.sessions()) == [f"agent-worker-{n}" for n in ("api", "docs", "web")]


def test_each_prompt_of_a_folder_is_decided_alone(world: World) -> None:
    folder = world.root / "prompts"
    folder.mkdir()
    for name in ("bad", "good", "taken"):
        (folder / f"{name}.md").write_text("Task.\n")
    (folder / "bad.md").write_text("")
    world.git("branch", "taken")
    ran = world.run(
        "spawn", "--prompts-dir", str(folder), "--agent-cli", str(SAMPLE_AGENT), *IDLE, "--json"
    )
    assert ran.code == 1
    rows = {row["name"]: row for row in ran.data["workers"]}
    assert rows["good"]["ok"] is True
    assert rows["taken"]["error"]["code"] == "branch-taken"
    assert rows["taken"]["worker"] is None
    assert world.sessions()
    assert {"good", "taken"} <= world.branches()
    assert not world.tree("taken").exists()


def test_a_folder_of_agents_that_only_ask_is_blocked_and_not_failed(world: World) -> None:
    folder = world.root / "prompts"
    folder.mkdir()
    (folder / "a.md").write_text("Task.\n")
    ran = world.run("spawn", "--prompts-dir", str(folder), *world.fake("trust"), "--json")
    assert ran.code == 10
    (row,) = ran.data["workers"]
    assert (row["ok"], row["error"]["code"], row["worker"]["delivered"]) == (
        False,
        "agent-asks",
        False,
    )
    assert world.status("a")["state"] == "waiting"


def test_the_deadline_of_a_spawn_takes_it_back(world: World) -> None:
    before = world.snapshot()
    call = ["spawn", "w1", "--prompt", "x", *world.fake("slow", "60"), "--timeout", "1"]
    assert world.refused(124, *call)["code"] == "deadline-passed"
    assert world.snapshot() == before
    assert not world.processes()


def test_what_an_agent_did_before_the_deadline_is_kept(world: World) -> None:
    agent = world.root / "bin" / "busy-agent"
    agent.write_text("#!/bin/sh\necho made >made.txt\nexec sleep 600\n")
    agent.chmod(0o755)
    call = ["spawn", "w1", "--prompt", "x", "--agent-cli", "busy-agent"]
    options = ["--prompt-mode", "argument", "--settle", "30", "--timeout", "2"]
    error = world.refused(124, *call, *options)
    assert "was kept" in error["hint"]
    assert (world.tree("w1") / "made.txt").read_text() == "made\n"
    assert world.status("w1")["dirty"] == 1


def test_an_agent_that_fails_at_once_is_a_failed_spawn_unless_it_did_something(
    world: World,
) -> None:
    """T30: three attempts leave nothing; work is never thrown away with a failure."""
    before = world.snapshot()
    for _ in range(3):
        ran = world.spawn_fake("w1", "exit", prompt="3")
        assert (ran.code, ran.error["code"]) == (1, "agent-ended")
    assert world.snapshot() == before
    for mode in ("commit", "dirty"):
        call = ["spawn", mode, "--prompt", "x", *world.fake(mode), "--prompt-mode", "none"]
        assert world.ok(*call)["worker"]["delivered"] is False
        row = world.status(mode)
        assert (row["state"], row["exit_code"]) == ("exited", 3)


def test_spawn_from_a_linked_worktree_starts_at_the_callers_head(world: World) -> None:
    """W57."""
    world.spawn("w1", "x", *IDLE)
    ahead = world.commit("ahead", world.tree("w1"))
    worker = world.spawn("w2", "x", *IDLE, cwd=world.tree("w1"))
    assert worker["base"] == ahead
    assert worker["worktree"] == str(world.tree("w2"))
    assert worker["integration_branch"] == "refs/heads/w1"
    assert world.git("merge-base", "w2", "main") != ahead


def test_dry_run_says_what_would_be_made_and_makes_nothing(world: World) -> None:
    before = world.snapshot()
    plan = world.ok(
        "spawn", "w1", "--prompt", "Task.", "--agent-cli", str(SAMPLE_AGENT), "--dry-run"
    )["worker"]
    assert plan["worktree"] == str(world.tree("w1"))
    assert plan["prompt"].startswith("Task.\n")
    assert "Working agreement" in plan["prompt"]
    assert world.snapshot() == before
    assert not (world.repo / ".git" / "agent-workers" / "workers").exists()
    world.git("branch", "w1")
    call = ["spawn", "w1", "--prompt", "Task.", "--agent-cli", str(SAMPLE_AGENT), "--dry-run"]
    assert world.refused(3, *call)["code"] == "branch-taken"


def test_the_contract_names_what_the_worker_must_know(world: World) -> None:
    world.spawn("w1", "Task.", "--owns", "src/**", "--owns", "docs/a b.md")
    (told,) = world.prompts()
    for words in (str(world.tree("w1")), "branch w1", "src/**, docs/a b.md", "AGENT_WORKER_EVENT"):
        assert words in told["prompt"]
    assert ".worker-runs/changelog/w1.md" in told["prompt"]
    world.spawn("w2", "Only this.\n", "--no-contract")
    assert world.prompts()[-1]["prompt"] == "Only this.\n"


def test_a_given_variable_reaches_the_agent_whatever_its_size(world: World) -> None:
    """T14; a tmux client would drop what does not fit into one of its messages."""
    agent = world.root / "bin" / "env-agent"
    agent.write_text(
        '#!/bin/sh\nprintf %s "$BIG" >"$WORLD/big"\n'
        'printf %s "$SMALL" >"$WORLD/small"\nexec sleep 600\n'
    )
    agent.chmod(0o755)
    big = "x" * 60_000
    call = ["spawn", "w1", "--prompt", "x", "--agent-cli", "env-agent", *IDLE]
    world.ok(*call, "--env", f"BIG={big}", "--env", "SMALL=a b'c\n$d")
    wait_for(lambda: (world.root / "small").exists(), "the agent ran")
    assert (world.root / "big").read_text() == big
    assert (world.root / "small").read_text() == "a b'c\n$d"


# --- tmux calls -----------------------------------------------------------------------------


class Counter:
    """Counts the tmux clients of a command: what each was told, one line a client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = world.root / "clients"
        shim = world.root / "counting" / "tmux"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\necho "$*" >>{self.log}\nexec {shutil.which("tmux")} "$@"\n')
        shim.chmod(0o755)
        self.env = {"PATH": f"{shim.parent}:{world.env['PATH']}"}

    def clients(self, *words: str, code: int = 0) -> list[str]:
        """The tmux clients of a call that ends with this code."""
        self.log.write_text("")
        ran = self.world.run(*words, env=self.env)
        assert ran.code == code, ran
        return self.log.read_text().splitlines()


def folder_of(world: World, names: list[str]) -> Path:
    """A folder with a prompt for each name."""
    folder = world.root / f"prompts-{len(names)}"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.md").write_text("Do it.\n")
    return folder


def calls_of_each_verb(world: World, counter: Counter, count: int) -> dict[str, int]:
    """How many tmux clients each verb takes for so many workers."""
    names = [f"w{count}-{number}" for number in range(count)]
    spawn = ["spawn", "--prompts-dir", str(folder_of(world, names)), "--agent-cli", "sleeper"]
    mapping = ["--prompt-mode", "argument", "--settle", "0"]
    calls = {
        "spawn": counter.clients(*spawn, *mapping),
        "status": counter.clients("status", *names),
        "wait": counter.clients("wait", *names, "--timeout", "0.5", code=124),
        "stop": counter.clients("stop", *names),
        "stop again": counter.clients("stop", *names),
        "wait again": counter.clients("wait", *names, code=1),
        "cleanup": counter.clients("cleanup", *names, "--branch-delete"),
    }
    return {verb: len(found) for verb, found in calls.items()}


def test_the_number_of_tmux_calls_does_not_grow_with_the_workers(world: World) -> None:
    agent = world.root / "bin" / "sleeper"
    agent.write_text("#!/bin/sh\nexec sleep 600\n")
    agent.chmod(0o755)
    # Without it the server would end with the last session of the first round.
    world.spawn("keep", "x", *IDLE)
    counter = Counter(world)
    few = calls_of_each_verb(world, counter, 2)
    assert few == calls_of_each_verb(world, counter, 8)
    assert min(few.values()) >= 1
    assert max(few.values()) <= 4


def test_leave_keys_are_pressed_in_one_call_for_all(world: World) -> None:
    counter = Counter(world)
    mapping = world.root / "mapping.json"
    mapping.write_text(
        '{"name": "ours", "executable": "/bin/cat", "interactive": {"leave_keys": ["C-d"]}}'
    )
    names = [f"w{number}" for number in range(5)]
    spawn = ["spawn", "--prompts-dir", str(folder_of(world, names)), "--harness", str(mapping)]
    world.ok(*spawn, *IDLE)
    look, keys = counter.clients("stop", *names)
    assert "list-panes" in look
    assert keys.count("C-d") == 5
    rows = world.ok("status")["workers"]
    assert [(row["state"], row["exit_code"]) for row in rows] == [("stopped", 0)] * 5


@pytest.mark.parametrize("count", [2, 8])
def test_spawns_that_fail_together_are_taken_back_together(world: World, count: int) -> None:
    agent = world.root / "bin" / "fails"
    agent.write_text("#!/bin/sh\nexit 3\n")
    agent.chmod(0o755)
    names = [f"w{number}" for number in range(count)]
    counter = Counter(world)
    world.spawn("keep", "x", *IDLE)
    before = world.snapshot()
    spawn = ["spawn", "--prompts-dir", str(folder_of(world, names)), "--agent-cli", "fails"]
    found = counter.clients(*spawn, "--prompt-mode", "none", "--settle", "30", code=1)
    assert [line.count("kill-session") for line in found if "kill-session" in line] == [count]
    # Beside the looks of the watch: the launch; who is still there; end_sessions, which looks
    # before and after.
    assert len([line for line in found if "capture-pane" not in line]) == 4
    assert world.snapshot() == before


def test_a_spawn_that_meets_a_server_at_its_end_starts_on_the_next_one(world: World) -> None:
    """tmux ends with its last session, and the client that comes then is turned away."""
    stub = world.root / "bin" / "tmux"
    real = shutil.which("tmux")
    stub.write_text(
        f"#!/bin/sh\n"
        f'case "$*" in *new-session*) [ -e {world.root}/turned ] || {{\n'
        f"  : >{world.root}/turned; echo 'server exited unexpectedly' >&2; exit 1; }};;\n"
        f'esac\nexec {real} "$@"\n'
    )
    stub.chmod(0o755)
    world.spawn("w1", "Task.", *IDLE)
    assert (world.root / "turned").exists()
    assert world.status("w1")["state"] in ("starting", "running", "waiting")
