"""What a mapping says of its agent, as spawn and resume do it: each field by its effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from world import FAKE_AGENT, World, wait_for

NO_CONTRACT = ("--no-contract",)
TRUST = {"match": "^Do you trust this folder", "keys": ["y"], "note": "its own worktree"}
SERVER = {"match": "^Allow this MCP server", "keys": "y"}


def mapping(world: World, *args: str, program: Path = FAKE_AGENT, **sections: Any) -> list[str]:
    """The options that name a mapping of a program; `interactive` has `args` and these fields."""
    interactive = {"args": list(args), "ready": "^>$", **sections.pop("interactive", {})}
    path = world.root / "mapping.json"
    value: dict[str, Any] = {"name": "ours", "executable": str(program), **sections}
    path.write_text(json.dumps({**value, "interactive": interactive}))
    return ["--harness", str(path)]


def script(world: World, text: str) -> Path:
    """A sh script as an agent."""
    path = world.root / "bin" / "scripted"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def received(world: World, mode: str) -> bytes:
    """All bytes that a fake agent got."""
    path = world.root / f"{mode}.log"
    return path.read_bytes() if path.exists() else b""


def answers(world: World, name: str = "w1") -> list[tuple[str, list[str]]]:
    """The dialogs that were answered, as the worker's events tell."""
    lines = (world.record(name) / "events.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["event"] == "answered"]
    return [(row["data"]["dialog"], row["data"]["keys"]) for row in rows]


# --- Dialogs --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["paste", "argument", "file", "none"])
def test_the_dialogs_of_a_start_are_answered_by_their_keys(world: World, mode: str) -> None:
    """P23, P31: two dialogs, one after the other; each gets its keys once."""
    fields = {"dialogs": [SERVER, TRUST], "prompt_mode": mode}
    harness = mapping(world, "two", interactive=fields)
    done = world.ok("spawn", "w1", "--prompt", "the task", *NO_CONTRACT, *harness)["worker"]
    assert done["note"] == (
        "answered 'Do you trust this folder' by y; answered 'Allow this MCP server' by y"
    )
    assert done["delivered"] is (mode != "none")
    assert answers(world) == [
        ("Do you trust this folder", ["y"]),
        ("Allow this MCP server", ["y"]),
    ]
    typed = b"\x1b[200~the task\x1b[201~\r" if mode == "paste" else b""
    assert received(world, "two") == b"yy" + typed
    world.wait_state("w1", "running")


def test_a_resumed_agent_is_answered_too(world: World) -> None:
    fields = {"dialogs": [TRUST, SERVER], "prompt_mode": "argument"}
    harness = mapping(world, "two", interactive=fields)
    world.ok("spawn", "w1", "--prompt", "the task", *NO_CONTRACT, *harness)
    world.ok("stop", "w1")
    world.ok("resume", "w1")
    assert len(answers(world)) == 4
    assert received(world, "two") == b"yyyy"


def test_a_dialog_that_bears_its_keys_is_left_to_a_person(world: World) -> None:
    """Its keys are pressed once, and never again."""
    harness = mapping(world, "trust", interactive={"dialogs": [TRUST]})
    ran = world.run("spawn", "w1", "--prompt", "x", *NO_CONTRACT, *harness, "--json")
    assert ran.code == 10
    assert ran.error["code"] == "agent-asks"
    said = "Do you trust this folder: its keys were pressed, and it is still there"
    assert said in ran.error["message"]
    assert ran.data["worker"]["note"] == "answered 'Do you trust this folder' by y"
    assert received(world, "trust") == b"y"
    assert world.status("w1")["state"] == "waiting"


@pytest.mark.parametrize("mode", ["paste", "argument"])
def test_a_dialog_for_a_person_is_named_and_not_touched(world: World, mode: str) -> None:
    dialog = {"match": "Do you trust", "ask": "trust in a folder that nobody has looked at"}
    harness = mapping(world, "trust2", interactive={"dialogs": [dialog], "prompt_mode": mode})
    error = world.refused(10, "spawn", "w1", "--prompt", "x", *NO_CONTRACT, *harness)
    assert error["code"] == "agent-asks"
    assert "(trust in a folder that nobody has looked at)" in error["message"]
    assert received(world, "trust2") == b""
    row = world.status("w1")
    assert (row["state"], row["detail"]) == ("waiting", dialog["ask"])
    assert answers(world) == []


def test_no_other_dialog_gets_the_keys(world: World) -> None:
    """P25: nothing is answered by its position."""
    harness = mapping(world, "question", interactive={"dialogs": [TRUST, SERVER]})
    assert world.refused(10, "spawn", "w1", "--prompt", "x", *NO_CONTRACT, *harness)
    assert received(world, "question") == b""
    assert answers(world) == []


def test_an_echo_of_the_prompt_is_no_dialog(world: World) -> None:
    text = 'printf "%s\\n" "$1" "> "\nstty raw -echo\ncat >"$WORLD/keys.log"\n'
    fields = {"dialogs": [TRUST], "prompt_mode": "argument", "ready": "^nothing"}
    harness = mapping(world, program=script(world, text), interactive=fields)
    prompt = "Do you trust this folder? Say so."
    call = ["spawn", "w1", "--prompt", prompt, *NO_CONTRACT, *harness, "--ready-timeout", "2"]
    done = world.ok(*call)["worker"]
    assert (done["delivered"], done["note"]) == (True, "")
    assert (world.root / "keys.log").read_bytes() == b""


def test_a_dialog_that_was_answered_before_is_not_answered_again(world: World) -> None:
    """What stands above the input prompt is over."""
    text = 'printf "%s\\n" "Do you trust this folder?" "yes"\nprintf "> "\ncat >"$WORLD/keys.log"\n'
    fields = {"dialogs": [TRUST], "prompt_mode": "argument"}
    harness = mapping(world, program=script(world, text), interactive=fields)
    done = world.ok("spawn", "w1", "--prompt", "x", *NO_CONTRACT, *harness)["worker"]
    assert (done["delivered"], done["note"]) == (True, "")
    assert (world.root / "keys.log").read_bytes() == b""


# --- The call -------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-C", "--dir="])
def test_the_worktree_is_given_before_the_users_words(world: World, flag: str) -> None:
    program = script(world, 'printf "%s\\n" "$@" >"$WORLD/argv"\nsleep 600\n')
    harness = mapping(
        world, "-a", program=program,
        interactive={"work_dir_arg": flag, "prompt_mode": "argument"},
        session={"new_args": ["--id", "{session_id}", "{name}"]},
    )  # fmt: skip
    world.ok("spawn", "w1", "--prompt", "P", "--agent-args=-z", *NO_CONTRACT, *harness)
    tree = str(world.tree("w1"))
    wait_for((world.root / "argv").exists, "the agent's start")
    words = wait_for(lambda: (world.root / "argv").read_text().splitlines(), "its words")
    given = [flag + tree] if flag.endswith("=") else [flag, tree]
    record = json.loads((world.record("w1") / "worker.json").read_text())
    assert words == ["-a", *given, "--id", record["session_id"], "w1", "P", "-z"]


# --- The environment ------------------------------------------------------------------------


def test_a_variable_that_the_agent_needs_is_demanded_first(world: World) -> None:
    harness = mapping(world, "env", "KEY", environment={"needs": ["KEY", "HOME"]})
    before = world.snapshot()
    call = ["spawn", "w1", "--prompt", "x", *NO_CONTRACT, *harness]
    for env in ({}, {"KEY": ""}):
        error = world.refused(4, *call, env=env)
        assert error["code"] == "environment-missing"
        assert "'ours' needs KEY in its environment" in error["message"]
        assert world.refused(4, *call, "--dry-run", env=env)["code"] == "environment-missing"
        ran = world.run("doctor", *harness, "--json", env=env)
        assert ran.code == 4
        row = next(row for row in ran.data["checks"] if row["name"] == "environment")
        assert "needs KEY" in row["found"]
    assert world.snapshot() == before
    assert world.run("doctor", *harness, "--json", env={"KEY": "k"}).code == 0
    world.ok(*call, "--env", "KEY=k")
    world.ok("stop", "w1")
    assert world.refused(4, "resume", "w1")["code"] == "environment-missing"
    world.ok("resume", "w1", env={"KEY": "k"})


def test_what_is_hidden_does_not_reach_the_agent(world: World) -> None:
    hide: dict[str, Any] = {"environment": {"hide": ["LEAK"]}}
    call = ["spawn", "--prompt", "x", *NO_CONTRACT, *mapping(world, "env", "LEAK", **hide)]
    world.ok(*call, "w1", env={"LEAK": "1"})
    world.ok(*call, "w2", "--env", "LEAK=2", env={"LEAK": "1"})
    assert "LEAK is unset" in world.run("capture", "w1").out
    assert "LEAK=2" in world.run("capture", "w2").out
    world.ok("stop", "w1")
    world.ok("resume", "w1", env={"LEAK": "1"})
    assert "LEAK is unset" in world.run("capture", "w1").out


# --- One at a time --------------------------------------------------------------------------


def test_agents_that_disturb_each_other_live_one_at_a_time(world: World) -> None:
    harness = mapping(world, "echo", parallel={"safe": False})
    call = ["spawn", "--prompt", "x", *NO_CONTRACT, *harness]
    world.ok(*call, "w1")
    before = world.snapshot()
    error = world.refused(3, *call, "w2")
    assert error["code"] == "not-parallel"
    assert "'w1' is running" in error["message"]
    assert world.snapshot() == before
    world.spawn("other")
    world.ok("stop", "w1")
    world.ok(*call, "w2")
    assert world.refused(3, "resume", "w1")["code"] == "not-parallel"
    world.ok("stop", "w2")
    world.ok("resume", "w1")


def test_of_a_folder_of_prompts_only_one_is_started(world: World) -> None:
    folder = world.root / "prompts"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.md").write_text("x")
    harness = mapping(world, "echo", parallel={"safe": False})
    ran = world.run("spawn", "--prompts-dir", str(folder), *NO_CONTRACT, *harness, "--json")
    assert ran.code == 1
    codes = sorted(row["error"]["code"] if row["error"] else "" for row in ran.data["workers"])
    assert codes == ["", "not-parallel", "not-parallel"]
    assert len(world.sessions()) == 1


# --- The conversation -----------------------------------------------------------------------

TALK = 'printf "%s\\n" "$@" >"$WORLD/argv"\nprintf "SAID\\n> "\nexec sleep 600\n'


def words_of_resume(world: World, said: str, **session: Any) -> tuple[str, list[str]]:
    """Resume a worker whose agent has said something: which conversation, and its words."""
    program = script(world, TALK.replace("SAID", said))
    harness = mapping(
        world, program=program, session=session, interactive={"prompt_mode": "argument"}
    )
    world.ok("spawn", "w1", "--prompt", "x", *NO_CONTRACT, *harness)
    wait_for(lambda: "\n>" in world.run("capture", "w1").out, "the agent's words")
    world.ok("stop", "w1")
    (world.root / "argv").unlink()
    done = world.ok("resume", "w1", "--prompt", "y")["worker"]
    wait_for((world.root / "argv").exists, "the agent's start")
    words = wait_for(lambda: (world.root / "argv").read_text().splitlines(), "its words")
    return done["conversation"], words


def test_an_id_that_the_agent_prints_is_found_again(world: World) -> None:
    said = r"session id: old-1\\033[0m\\r\\nsession id: \\033[1mabc.1-2\\033[0m\\r"
    assert words_of_resume(
        world, said, id_source="log:session id: (\\S+)", resume_args=["-r", "{session_id}"]
    ) == ("same", ["-r", "abc.1-2", "y"])


@pytest.mark.parametrize("said", ["nothing", "session id: --yolo", "session id: a/../b", "id: a"])
def test_what_is_no_id_is_not_taken_for_one(world: World, said: str) -> None:
    """What an agent printed is data: it becomes no option and no path."""
    conversation, words = words_of_resume(
        world, said, id_source="log:session id: (\\S+)", resume_args=["-r", "{session_id}"]
    )
    assert conversation == "new"
    assert words[0].startswith("This is a new session")


def test_an_assigned_id_is_ours(world: World) -> None:
    conversation, words = words_of_resume(
        world, "x", id_source="assigned", new_args=["--id", "{session_id}"],
        resume_args=["-r", "{session_id}"],
    )  # fmt: skip
    record = json.loads((world.record("w1") / "worker.json").read_text())
    assert (conversation, words) == ("same", ["-r", record["session_id"], "y"])
    assert len(record["session_id"]) == 36


def test_without_words_for_it_a_conversation_is_new(world: World) -> None:
    conversation, _ = words_of_resume(world, "x", id_source=None, new_args=["--fresh"])
    assert conversation == "new"
    record = json.loads((world.record("w1") / "worker.json").read_text())
    assert record["session_id"] == "", "no id reached the agent, so none is kept"
