"""tmux, end to end: the hazards T02 to T38, and paths and locales of every kind."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from world import SAMPLE_AGENT, World, wait_for

NONE = ["--prompt-mode", "none", "--settle", "0"]
ARGUMENT = ["--prompt-mode", "argument", "--settle", "0.2"]


def capture(world: World, name: str, *more: str) -> str:
    """What an agent printed."""
    return world.ok("capture", name, *more)["text"]


def tmux_of(world: World, socket: str, *arguments: str) -> str:
    """Run tmux as the user would, on a socket of that name."""
    done = subprocess.run(
        ["tmux", "-L", socket, *arguments],
        env={**world.env, "TMUX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.rstrip("\n")


def users_server(world: World, socket: str, *options: str) -> None:
    """A tmux server of the user's, with options of its own and one session."""
    config = world.root / "users.conf"
    config.write_text("\n".join(options) + "\n")
    tmux_of(world, socket, "-f", str(config), "new-session", "-d", "-s", "main", "sleep", "600")
    assert tmux_of(world, socket, "list-sessions", "-F", "#{session_name}") == "main"


def test_a_name_that_begins_another_one_is_a_worker_of_its_own(world: World) -> None:
    """T02, T04: and each is stopped and removed alone."""
    first = world.spawn("auth-v2", "@print I am v2", *ARGUMENT)
    second = world.spawn("auth", "@print I am plain", *ARGUMENT)
    assert first["pane"] != second["pane"]
    assert sorted(world.sessions()) == ["agent-worker-auth", "agent-worker-auth-v2"]
    wait_for(lambda: "I am plain" in capture(world, "auth"), "its own screen")
    world.ok("stop", "auth")
    assert world.status("auth")["state"] == "stopped"
    world.wait_state("auth-v2", "running")
    world.ok("cleanup", "auth", "--branch-delete")
    assert world.sessions() == ["agent-worker-auth-v2"]
    world.wait_state("auth-v2", "running")


def test_a_name_that_tmux_would_change_is_refused_before_anything_is_made(world: World) -> None:
    """T06, T08, T12."""
    before = world.snapshot()
    call = ["--prompt", "x", "--agent-cli", str(SAMPLE_AGENT), *NONE]
    for name in ("fix-1.2.3", "a:b", "=a", "%1", "@1", "$1", "a b", "a*", "-", "é", ""):
        assert world.refused(2, "spawn", name, *call)["code"] in ("invalid-name", "usage")
    for prefix in ("a.b", "a:", "=", "a b", "*", "é", "#{x}"):
        error = world.refused(2, "spawn", "w1", *call, "--session-prefix", prefix)
        assert error["code"] == "invalid-prefix"
    for verb in ("send", "capture", "stop", "cleanup"):
        more = ["--prompt", "x"] if verb == "send" else []
        assert world.refused(2, verb, "fix-1.2.3", *more)["code"] == "invalid-name"
    assert world.snapshot() == before


def test_a_users_server_is_worked_with_and_left_as_it_was(world: World) -> None:
    """T10, T20, T22, T24: other first indexes, other options, other sessions."""
    options = [
        "set -g base-index 1",
        "set -g pane-base-index 1",
        "set -g detach-on-destroy off",
        "set -g remain-on-exit off",
        "set -g history-limit 123",
        "set -g default-command 'exit 1'",
        "set -g default-shell /bin/false",
        'set -g update-environment "DISPLAY MINE"',
    ]
    users_server(world, "mine", *options)
    globals_before = tmux_of(world, "mine", "show-options", "-g")
    windows_before = tmux_of(world, "mine", "show-options", "-gw")
    call = ["--tmux-socket", "mine", "--no-contract", "--agent-args", "--inline"]
    worker = world.spawn("w1", "@print first", *call)
    assert re.fullmatch(r"%\d+", worker["pane"])
    assert " -S " in worker["attach"]
    world.wait_state("w1", "running")
    assert "first" in capture(world, "w1")
    world.ok("send", "w1", "--prompt", "@print second")
    wait_for(lambda: "second" in capture(world, "w1").splitlines(), "the second answer")
    session = f"={worker['session']}:"
    show = ["show-options", "-A", "-v", "-t", session]
    assert tmux_of(world, "mine", *show, "detach-on-destroy") == "on"
    world.ok("send", "w1", "--prompt", "@sleep 1\n@exit 5")
    row = world.wait_state("w1", "exited")
    assert row["exit_code"] == 5
    assert "second" in capture(world, "w1").splitlines()
    assert "Pane is dead" not in capture(world, "w1")
    world.ok("cleanup", "w1", "--branch-delete")
    assert tmux_of(world, "mine", "list-sessions", "-F", "#{session_name}") == "main"
    assert tmux_of(world, "mine", "show-options", "-g") == globals_before
    assert tmux_of(world, "mine", "show-options", "-gw") == windows_before


def test_the_end_of_the_default_server_does_not_reach_the_workers(world: World) -> None:
    """T20, T22."""
    users_server(world, "default")
    world.spawn("w1", "@print hello", *ARGUMENT)
    assert tmux_of(world, "default", "list-sessions", "-F", "#{session_name}") == "main"
    tmux_of(world, "default", "kill-server")
    world.wait_state("w1", "running")
    wait_for(lambda: "hello" in capture(world, "w1"), "its screen")


def test_a_session_of_somebody_else_is_not_taken(world: World) -> None:
    """T02, T22: the name is in use; the spawn is taken back, the session stays."""
    users_server(world, "mine")
    tmux_of(world, "mine", "new-session", "-d", "-s", "agent-worker-w1", "sleep 600")
    before = world.snapshot()
    call = ["spawn", "w1", "--prompt", "x", "--agent-cli", str(SAMPLE_AGENT), *NONE]
    error = world.refused(3, *call, "--tmux-socket", "mine")
    assert error["code"] == "session-taken"
    assert world.snapshot() == before


def test_an_agent_gets_the_callers_environment_not_that_of_the_server(world: World) -> None:
    """T14, T16, T18: the server was started from another one; SHELL is no shell for scripts."""
    stub = world.root / "bin" / "fish"
    stub.write_text(f"#!/bin/sh\ntouch {world.root}/stub-ran\nexit 1\n")
    stub.chmod(0o755)
    caller = {"CLAUDECODE": "1", "SHELL": str(stub), "ONLY_FIRST": "x", "TMUX": "/x,1,0"}
    agent = world.root / "bin" / "shows-env"
    agent.write_text('#!/bin/sh\nenv -0 >"$WORLD/env-$AGENT_WORKER_NAME"\necho READY\nsleep 600\n')
    agent.chmod(0o755)

    def environment(name: str, env: dict[str, str], *more: str) -> dict[str, str]:
        call = ["spawn", name, "--prompt", "x", "--agent-cli", str(agent), *NONE]
        world.ok(*call, *more, env=env)
        wait_for(lambda: "READY" in capture(world, name), "the agent")
        text = (world.root / f"env-{name}").read_text()
        return dict(entry.split("=", 1) for entry in text.split("\0") if entry)

    first = environment("w1", {**caller, "TMUX_PANE": "%3"})
    assert first["CLAUDECODE"] == "1"
    assert first["SHELL"] == str(stub)
    value = "a 'b' \"c\" $(d) ;\nnext line"
    second = environment("w2", {"MY_KEY": value}, "--env", "OWN=1=2", "--env", "HOME=/elsewhere")
    assert second["MY_KEY"] == value
    assert second["OWN"] == "1=2"
    assert second["HOME"] == "/elsewhere"
    assert second["AGENT_WORKER_NAME"] == "w2"
    for name in ("CLAUDECODE", "ONLY_FIRST", "TMUX", "TMUX_PANE"):
        assert name not in second, name
    assert "TMUX" not in first
    assert "TMUX_PANE" not in first
    assert not (world.root / "stub-ran").exists()


def test_a_socket_path_that_is_too_long_is_refused(world: World) -> None:
    """T26."""
    deep = world.root / ("d" * 120)
    deep.mkdir()
    before = world.snapshot()
    call = ["spawn", "w1", "--prompt", "x", "--agent-cli", str(SAMPLE_AGENT), *NONE]
    assert world.refused(2, *call, env={"TMUX_TMPDIR": str(deep)})["code"] == "invalid-socket"
    assert world.refused(2, *call, "--tmux-socket", "x" * 100)["code"] == "invalid-socket"
    assert world.refused(2, *call, "--tmux-socket", "../x")["code"] == "invalid-socket"
    assert world.snapshot() == before


def test_exit_codes_come_from_the_launcher_for_every_worker(world: World) -> None:
    """T28: tmux itself forgets the status of some; none shows as running, and none takes input."""
    folder = world.root / "prompts"
    folder.mkdir()
    codes = {f"w{code}": code for code in (0, 1, 3, 97, 130, 255)}
    for name, code in codes.items():
        (folder / f"{name}.md").write_text(f"@sleep 0.7\n@exit {code}")
    call = ["spawn", "--prompts-dir", str(folder), "--agent-cli", str(SAMPLE_AGENT), *NONE]
    world.ok(*call, "--prompt-mode", "argument", "--no-contract")

    def rows() -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in world.ok("status")["workers"]}

    wait_for(lambda: all(row["state"] == "exited" for row in rows().values()), "all exited")
    assert {name: row["exit_code"] for name, row in rows().items()} == codes
    before = world.snapshot()
    assert world.refused(3, "send", "w3", "--prompt", "more")["code"] == "not-running"
    assert world.snapshot() == before
    assert "exited" in world.run("status", "w3").out


def test_an_agent_that_ends_at_once_leaves_nothing_three_times(world: World) -> None:
    """T30."""
    before = world.snapshot()
    for _ in range(3):
        ran = world.spawn_fake("w1", "exit", "--agent-args", "exit 1")
        assert ran.code == 1
        assert ran.error["code"] == "agent-ended"
        assert "exit code 1" in ran.error["message"]
        assert world.snapshot() == before
    assert world.processes() == {}


def test_capture_gives_the_last_lines_of_the_history(world: World) -> None:
    """T32: more than one screen; blank rows at the end do not count."""
    world.spawn_fake("w1", "lines", "--agent-args", "lines 1000", *NONE)
    wait_for(lambda: "line 1000" in capture(world, "w1", "--lines", "1"), "the last line")
    assert capture(world, "w1", "--lines", "200").splitlines() == [
        f"line {n}" for n in range(801, 1001)
    ]
    assert capture(world, "w1", "--lines", "5000").splitlines()[0] == "line 1"
    wait_for(lambda: capture(world, "w1", "--lines", "3", "--log").endswith("line 1000"), "the log")


def test_the_id_of_a_pane_that_is_another_workers_now_shows_nothing_of_it(world: World) -> None:
    """A new server counts its panes from the beginning."""
    pane = world.spawn_fake("w1", "lines", "--agent-args", "lines 5", *NONE).data["worker"]["pane"]
    wait_for(lambda: "line 5" in capture(world, "w1"), "its lines")
    socket = world.ok("status", "w1")["workers"][0]["attach"].split()[2]
    world.quick("w2", pane=pane, socket_path=socket)
    assert world.refused(3, "capture", "w2")["code"] == "no-pane"


def test_a_line_longer_than_the_window_is_one_line(world: World) -> None:
    """T34, T36: a marker may cross the last column."""
    agent = world.root / "bin" / "long"
    agent.write_text("#!/bin/sh\nprintf '%0195dMARKER_DONE\\nlast\\n' 0\nsleep 600\n")
    agent.chmod(0o755)
    call = ["spawn", "w1", "--prompt", "x", "--agent-cli", str(agent), *NONE]
    pane = world.ok(*call)["worker"]["pane"]
    wait_for(lambda: "last" in capture(world, "w1"), "the lines")
    assert capture(world, "w1").splitlines() == ["0" * 195 + "MARKER_DONE", "last"]
    size = world.tmux("display-message", "-p", "-t", pane, "#{window_width} #{window_height}")
    assert size == "200 50"


def test_a_slow_start_is_starting_not_dead(world: World) -> None:
    """T38."""
    world.spawn_fake("w1", "slow", "--agent-args", "slow 2", *NONE)
    assert world.status("w1")["state"] == "starting"
    world.wait_state("w1", "running")


def test_all_works_without_a_utf8_locale(world: World) -> None:
    """Cron, containers and ssh have none; tmux then spoils tabs and letters."""
    env = {"LANG": "", "LC_ALL": "C"}
    world.spawn("w1", "@print é漢", "--no-contract", env=env)
    assert world.ok("status", "w1", env=env)["workers"][0]["state"] == "running"
    assert "é漢" in world.ok("capture", "w1", env=env)["text"].splitlines()
    assert world.prompts()[0]["prompt"] == "@print é漢"


def test_hundreds_of_variables_do_not_stop_a_spawn(world: World) -> None:
    """T14: a message to tmux holds 16 KB, and the names alone are longer."""
    env = {f"A_VARIABLE_WITH_QUITE_A_LONG_NAME_{n:04d}": str(n) for n in range(600)}
    name = max(env)
    world.spawn_fake("w1", "env", "--agent-args", f"env {name}", *NONE, env=env)
    wait_for(lambda: f"{name}={env[name]}" in capture(world, "w1"), "the variable")


def test_a_repository_at_an_odd_path_works_from_spawn_to_cleanup(world: World) -> None:
    """Spaces, quotes, and what tmux, strftime and the shell would expand."""
    repo = world.make_repo('it\'s a "100%" %H #{pane_id} #S $(touch pwn) [x]* é;')
    worker = world.ok(
        *("spawn", "w1", "--prompt", "@write a.txt A\n@commit add a\n@print done now"),
        *("--agent-cli", str(SAMPLE_AGENT)),
        cwd=repo,
    )["worker"]
    assert worker["delivered"] is True
    tree = Path(worker["worktree"])
    assert tree == Path(f"{repo}.worktrees") / "w1"

    def text(*more: str) -> str:
        return world.ok("capture", "w1", *more, cwd=repo)["text"]

    wait_for(lambda: "done now" in text().splitlines(), "its screen")
    wait_for(lambda: "done now" in text("--log"), "its log")
    assert (tree / "a.txt").read_text() == "A"
    world.ok("send", "w1", "--prompt", "@report completed wrote it", cwd=repo)
    wait_for(
        lambda: world.ok("status", "w1", cwd=repo)["workers"][0]["job"]["state"] == "completed",
        "the report",
    )
    world.ok("stop", "w1", cwd=repo)
    world.git("merge", "-q", "w1", cwd=repo)
    removed = world.ok("cleanup", "w1", "--branch-delete", cwd=repo)
    assert [row if isinstance(row, str) else row["name"] for row in removed["removed"]] == ["w1"]
    assert not tree.exists()
    assert world.sessions() == []
    assert not list(world.root.rglob("pwn"))


def test_logs_and_records_are_private(world: World) -> None:
    """Prompts and output may hold secrets; even with an open umask."""
    previous = os.umask(0)
    try:
        world.spawn("w1", "@exit 0", *ARGUMENT)
    finally:
        os.umask(previous)
    world.wait_state("w1", "exited")
    modes = {
        str(path.relative_to(world.record("w1"))): path.stat().st_mode & 0o077
        for path in [world.record("w1"), *world.record("w1").rglob("*")]
    }
    assert {"exits.jsonl", "terminal.log", "worker.json", "prompts/0001.md"} <= modes.keys()
    assert set(modes.values()) == {0}, modes
