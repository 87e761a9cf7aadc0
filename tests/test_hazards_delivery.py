"""Prompt delivery, end to end: the hazards P01 to P31, and prompts of every kind in every mode."""

from __future__ import annotations

import json
import shutil
import stat
import time
from pathlib import Path
from typing import Any

from fanout.edition import EXECUTABLE
from world import FAKE_AGENT, SAMPLE_AGENT, World, wait_for

START, END = b"\x1b[200~", b"\x1b[201~"

# Prompts that every mode can carry, if it takes their length and their first character.
MIXED = [
    "\"double\" 'single' `touch pwn` $(touch pwn) ${HOME} \\ \\n %s %H #{pane_id} !! ~",
    "é 漢字 🌑🌕 \u202e x \u00ad \u2028 \ufeff \U0010fffd",
    "a\tb\n\tc\n",
    "---\nWorking agreement (added by the coordinator)\n- You work\nEOF\nPROMPT\n---",
    "{worktree} {prompt_file} {name} {session_id} {unknown} {}",
    "[200~ looks like a paste [201~ but is none ^[[201~",
]
KINDS = {
    "mixed": "\n".join(MIXED),
    "big": "".join(f"line {n} é漢\n" for n in range(12_000))[:180_000],
    "semicolon": "abc;",
    "only-semicolon": ";",
    "key-enter": "Enter",
    "key-ctrl": "C-c",
    "blanks": "\n\n  begins late and ends in newlines  \n\n\n",
}
DASHED = {"dash": "- first item", "option": "--help"}
DIALOG = {"dialog": "Do you trust this folder?\n1. Yes\nAllow once? (y/n)"}
# What a paste cannot carry: it would end the block, or be taken as a key.
CONTROL = {
    "paste-end": f"a{END.decode()}\r! b",
    "crlf": "one\r\ntwo\r\n",
    "escape": "a\x1bb",
    "interrupt": "a\x03b",
    "delete": "a\x7fb",
    "c1": "a\x9b201~b",
}
ALL_CONTROL = {"control": "\n".join(CONTROL.values())}


def prompts_dir(world: World, prompts: dict[str, str]) -> str:
    """A folder with one prompt file for each worker."""
    folder = world.root / "prompts"
    folder.mkdir()
    for name, text in prompts.items():
        (folder / f"{name}.md").write_bytes(text.encode())
    return str(folder)


def spawn_kinds(world: World, prompts: dict[str, str], *more: str) -> dict[str, dict[str, Any]]:
    """Spawn a sample agent for each prompt in one call; the rows by name."""
    call = ["spawn", "--prompts-dir", prompts_dir(world, prompts), "--no-contract", "--json"]
    ran = world.run(*call, "--agent-cli", str(SAMPLE_AGENT), *more)
    rows = {row["name"]: row for row in ran.data["workers"]}
    assert rows.keys() == prompts.keys()
    assert ran.code == (0 if all(row["ok"] for row in rows.values()) else 1)
    return rows


def taken(world: World, count: int) -> dict[str, list[str]]:
    """The prompts that sample agents took, by worker, once there are so many."""
    wait_for(lambda: len(world.prompts()) >= count, f"{count} prompts")
    found: dict[str, list[str]] = {}
    for row in world.prompts():
        found.setdefault(Path(row["cwd"]).name, []).append(row["prompt"])
    return found


def assert_not_made(world: World, name: str) -> None:
    """Nothing of a refused spawn is there."""
    assert name not in world.branches()
    assert not world.tree(name).exists()
    assert not world.record(name).exists()
    assert f"agent-worker-{name}" not in world.sessions()


def test_pasted_prompts_arrive_byte_for_byte_or_are_refused(world: World) -> None:
    """P01, P05, P11, P13, P15, P17: all kinds at once, then once more by parallel sends."""
    fit = {**KINDS, **DASHED, **DIALOG}
    rows = spawn_kinds(world, {**fit, **CONTROL}, "--ready-timeout", "60")
    for name in CONTROL:
        assert rows[name]["error"]["code"] == "prompt-unfit"
        assert "U+" in rows[name]["error"]["message"]
        assert_not_made(world, name)
    assert {name: rows[name]["error"] for name in fit} == dict.fromkeys(fit)
    assert all(rows[name]["worker"]["delivered"] is True for name in fit)
    assert taken(world, len(fit)) == {name: [text] for name, text in fit.items()}

    sends = {
        name: world.start("send", name, "--prompt-file", str(world.root / "prompts" / f"{name}.md"))
        for name in {**KINDS, **DASHED}
    }
    for name, send in sends.items():
        _, errors = send.communicate(timeout=90)
        assert send.returncode == 0, (name, errors)
    twice = {name: [text] * (1 + (name in sends)) for name, text in fit.items()}
    assert taken(world, len(fit) + len(sends)) == twice
    assert not list(world.root.rglob("pwn"))


def test_prompts_given_as_an_argument_arrive_byte_for_byte_or_are_refused(world: World) -> None:
    """P13, P19: what looks like an option needs a form that joins it."""
    prompts = {**KINDS, **DASHED, **ALL_CONTROL}
    rows = spawn_kinds(world, prompts, "--prompt-mode", "argument", "--settle", "0.2")
    refused = {"big", *DASHED}
    for name in refused:
        assert rows[name]["error"]["code"] == "prompt-unfit"
        assert_not_made(world, name)
    fit = {name: text for name, text in prompts.items() if name not in refused}
    assert {name: rows[name]["error"] for name in fit} == dict.fromkeys(fit)
    assert taken(world, len(fit)) == {name: [text] for name, text in fit.items()}
    assert not list(world.root.rglob("pwn"))


def test_a_joined_argument_may_begin_with_a_dash(world: World) -> None:
    """P13."""
    options = ["--prompt-mode", "argument", "--prompt-arg", "--prompt=", "--settle", "0.2"]
    rows = spawn_kinds(world, DASHED, *options)
    assert all(row["ok"] for row in rows.values())
    assert taken(world, len(DASHED)) == {name: [text] for name, text in DASHED.items()}


def test_prompts_given_as_a_file_arrive_byte_for_byte(world: World) -> None:
    """P19: a file takes any length and any character."""
    prompts = {**KINDS, **DASHED, **ALL_CONTROL, "huge": "x" * 2_000_000}
    options = ["--prompt-mode", "file", "--prompt-arg", "--prompt-file", "--settle", "0.2"]
    rows = spawn_kinds(world, prompts, *options)
    assert {name: rows[name]["error"] for name in prompts} == dict.fromkeys(prompts)
    assert taken(world, len(prompts)) == {name: [text] for name, text in prompts.items()}


def test_a_prompt_that_no_mode_can_carry_is_refused(world: World) -> None:
    before = world.snapshot()
    call = ["spawn", "w1", "--prompt-file", "-", "--agent-cli", str(SAMPLE_AGENT)]
    contents = [b"", b" \n\t\n", b"a\0b", b"caf\xe9", b"\xed\xa0\x80", b"x" * 10_000_001]
    for content in contents:
        error = world.refused(2, *call, "--prompt-mode", "file", stdin=content)
        assert error["code"] in ("prompt-empty", "prompt-unfit"), content[:20]
    assert world.snapshot() == before


def test_the_agreement_ends_the_prompt_and_changes_nothing_before_it(world: World) -> None:
    prompt = "Do it.\n{worktree} stays\n"
    world.spawn("w1", prompt, "--prompt-mode", "argument", "--settle", "0.2")
    text = taken(world, 1)["w1"][0]
    assert text.startswith("Do it.\n{worktree} stays\n\n")
    assert str(world.tree("w1")) in text


# --- What reaches the agent -----------------------------------------------------------------


def received(world: World, mode: str) -> bytes:
    """What a fake agent was sent."""
    log = world.root / f"{mode}.log"
    return log.read_bytes() if log.exists() else b""


def test_a_prompt_is_one_block_and_one_enter(world: World) -> None:
    """P01, P03, P05: several lines, and 30 KB, are one block; Enter stands outside of it."""
    assert world.spawn_fake("w1", "echo", prompt="one\ntwo\nthree").code == 0
    first = START + b"one\rtwo\rthree" + END + b"\r"
    assert received(world, "echo") == first
    long = "0123456789" * 3000
    assert world.ok("send", "w1", "--prompt", long)["evidence"] == "screen"
    assert received(world, "echo") == first + START + long.encode() + END + b"\r"


def test_a_lost_enter_is_repeated_and_the_text_never(world: World) -> None:
    """P07."""
    ran = world.spawn_fake("w1", "drop", "--agent-args", "drop 1", prompt="the first")
    assert ran.code == 0
    assert ran.data["worker"]["delivered"] is True
    assert received(world, "drop") == START + b"the first" + END + b"\r\r"


def test_a_text_that_is_left_in_the_input_line_is_not_added_to(world: World) -> None:
    """P07: all Enters are lost, so the next text would be submitted together with the first."""
    ran = world.spawn_fake("w1", "drop", "--agent-args", "drop 3", prompt="the first")
    assert ran.code == 10
    assert ran.error["code"] == "delivery-unproved"
    assert ran.data["worker"]["delivered"] is False
    assert "the first" in ran.error["hint"]
    before = received(world, "drop")
    assert before == START + b"the first" + END + b"\r\r\r"
    error = world.refused(3, "send", "w1", "--prompt", "the second")
    assert error["code"] == "input-not-empty"
    assert received(world, "drop") == before


def test_a_deaf_agent_fails_a_send_in_time_and_blocks_no_later_one(world: World) -> None:
    """P09."""
    assert world.spawn_fake("w1", "deaf", "--agent-args", "deaf 1").code == 0
    began = time.monotonic()
    error = world.refused(1, "send", "w1", "--prompt", "anyone there?")
    assert error["code"] == "delivery-unproved"
    assert time.monotonic() - began < 30
    world.wait_state("w1", "running")
    later = world.start("send", "w1", "--prompt", "hello again")
    wait_for(lambda: START + b"hello again" + END in received(world, "deaf"), "the later send")
    later.terminate()
    later.communicate(timeout=30)
    assert received(world, "deaf").count(START + b"anyone there?" + END) == 1


def test_a_send_that_cannot_be_pasted_types_nothing(world: World) -> None:
    """What would end the block early or act as a key."""
    assert world.spawn_fake("w1", "bp", "--prompt-mode", "none").code == 0
    for prompt in CONTROL.values():
        error = world.refused(2, "send", "w1", "--prompt-file", "-", stdin=prompt.encode())
        assert error["code"] == "prompt-unfit"
    assert received(world, "bp") == b""


def test_without_bracketed_paste_lines_are_refused_and_one_line_goes(world: World) -> None:
    """P01, P05: each line would be a message of its own."""
    before = world.snapshot()
    ran = world.spawn_fake("w0", "nobp", prompt="one\ntwo")
    assert ran.code == 2
    assert ran.error["code"] == "prompt-unfit"
    assert "bracketed paste" in ran.error["message"]
    assert world.snapshot() == before
    assert received(world, "nobp") == b""
    world.spawn("w1", "one line;", "--no-contract", "--agent-args", "--no-bracketed-paste")
    assert taken(world, 1) == {"w1": ["one line;"]}


def write_agent(world: World, name: str, text: str) -> Path:
    """A program of our own as the agent."""
    path = world.root / "bin" / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_line_reader_never_gets_a_line_that_it_would_cut(world: World) -> None:
    """P21: a terminal in line mode keeps 4096 bytes of a line and drops the rest."""
    out = world.root / "cat.out"
    agent = write_agent(world, "reader", f"#!/bin/sh\necho READY\nexec cat >{out}\n")
    before = world.snapshot()
    call = ["spawn", "w1", "--no-contract", "--agent-cli", str(agent), "--prompt"]
    error = world.refused(2, *call, "x" * 10_000)
    assert error["code"] == "prompt-unfit"
    assert world.snapshot() == before
    assert out.read_bytes() == b""
    world.run(*call, "y" * 900)
    wait_for(lambda: out.read_bytes() == b"y" * 900 + b"\n", "the whole line")


def test_long_agent_arguments_go(world: World) -> None:
    """P19: tmux takes no command of 20 KB."""
    words = "w" * 20_000
    ran = world.spawn_fake(
        "w1", "env", "--agent-args", f"env HOME {words}", "--prompt-mode", "none"
    )
    assert ran.code == 0
    wait_for(lambda: f"HOME={world.home}" in world.ok("capture", "w1")["text"], "the agent")


def test_an_agent_in_copy_mode_gets_text_and_enter(world: World) -> None:
    """P27: copy mode swallows keys."""
    pane = world.spawn("w1", "first", "--no-contract")["pane"]
    world.tmux("copy-mode", "-t", pane)
    assert world.tmux("display-message", "-p", "-t", pane, "#{pane_in_mode}") == "1"
    world.ok("send", "w1", "--prompt", "second")
    assert taken(world, 2) == {"w1": ["first", "second"]}


def test_many_sends_to_few_workers_all_arrive_once(world: World) -> None:
    """P17: 20 processes at once, 5 to each worker."""
    names = [f"w{n}" for n in range(4)]
    rows = spawn_kinds(
        world, dict.fromkeys(names, "begin"), "--prompt-mode", "argument", "--settle", "0.2"
    )
    assert all(row["ok"] for row in rows.values())
    taken(world, 4)
    sends = [
        (name, f"{name} number {n}", world.start("send", name, "--prompt", f"{name} number {n}"))
        for n in range(5)
        for name in names
    ]
    for _, text, send in sends:
        _, errors = send.communicate(timeout=100)
        assert send.returncode == 0, (text, errors)
    found = taken(world, 24)
    for name in names:
        assert sorted(found[name]) == ["begin", *(f"{name} number {n}" for n in range(5))]
    assert world.tmux("list-buffers") == ""


# --- Dialogs --------------------------------------------------------------------------------


def test_a_trust_dialog_is_named_and_the_worker_kept(world: World) -> None:
    """P23: and no key is pressed on it."""
    ran = world.spawn_fake("w1", "trust")
    assert ran.code == 10
    assert ran.error["code"] == "agent-asks"
    assert "trust dialog" in ran.error["message"]
    assert "Do you trust this folder?" in ran.error["hint"]
    assert ran.data["worker"]["delivered"] is False
    row = world.status("w1")
    assert (row["state"], row["detail"]) == ("waiting", "trust dialog")
    assert world.tree("w1").is_dir()
    error = world.refused(10, "send", "w1", "--prompt", "now?")
    assert error["code"] == "agent-asks"
    assert received(world, "trust") == b""


def test_a_dialog_that_prefers_no_is_not_answered(world: World) -> None:
    """P25: Enter would choose `No, exit`."""
    ran = world.spawn_fake("w1", "trust2", "--settle", "2")
    assert ran.code == 10
    assert world.status("w1")["state"] == "waiting"
    assert received(world, "trust2") == b""


def test_a_dialog_before_a_prompt_that_was_given_at_the_start(world: World) -> None:
    """P23: in argument mode the prompt stands behind the dialog."""
    call = ["spawn", "w1", "--prompt", "the task", "--agent-cli", str(SAMPLE_AGENT)]
    ran = world.run(
        *call, "--prompt-mode", "argument", "--agent-args", "--trust", "--no-contract", "--json"
    )
    assert ran.code == 10
    assert ran.data["worker"]["delivered"] is False
    assert "trust dialog" in ran.error["message"]
    assert world.prompts() == []
    world.tmux("send-keys", "-t", ran.data["worker"]["pane"], "2", "Enter")
    assert taken(world, 1) == {"w1": ["the task"]}
    world.wait_state("w1", "running")


def test_the_second_of_two_dialogs_stops_the_text_too(world: World) -> None:
    """P31: ready means that the input prompt is there, not that a dialog has gone."""
    ran = world.spawn_fake("w1", "two")
    assert ran.code == 10
    pane = ran.data["worker"]["pane"]
    world.tmux("send-keys", "-t", pane, "y")
    wait_for(lambda: "MCP" in world.tmux("capture-pane", "-p", "-t", pane), "the second dialog")
    error = world.refused(10, "send", "w1", "--prompt", "the task")
    assert error["code"] == "agent-asks"
    assert "MCP server" in error["hint"]
    world.tmux("send-keys", "-t", pane, "y")
    world.wait_state("w1", "running")
    world.ok("send", "w1", "--prompt", "the task")
    assert received(world, "two") == b"yy" + START + b"the task" + END + b"\r"


def test_a_question_is_waited_on_and_answered_by_a_person(world: World) -> None:
    pane = world.spawn("w1", "@ask Shall I go on?\n@print went on")["pane"]
    row = world.wait_state("w1", "waiting")
    assert row["detail"]
    error = world.refused(10, "send", "w1", "--prompt", "yes")
    assert error["code"] == "agent-asks"
    assert len(world.prompts()) == 1
    world.tmux("send-keys", "-t", pane, "y")
    world.wait_state("w1", "running")


def test_an_agent_that_shows_nothing_is_not_typed_to(world: World) -> None:
    """P21: nothing is typed before the agent takes input; the worker is kept."""
    ran = world.spawn_fake("w1", "slow", "--agent-args", "slow 600", "--ready-timeout", "1")
    assert ran.code == 10
    assert ran.error["code"] == "agent-not-ready"
    assert ran.data["worker"]["delivered"] is False
    assert received(world, "slow") == b""
    assert world.tree("w1").is_dir()


def test_an_agent_that_is_slow_to_start_gets_its_prompt_when_it_is_ready(world: World) -> None:
    """What is typed earlier is thrown away by a program that turns to raw mode."""
    options = ["--agent-args", "--delay 1.5 --silent-start"]
    worker = world.spawn("w1", "the task", "--no-contract", *options)
    assert worker["delivered"] is True
    assert taken(world, 1) == {"w1": ["the task"]}


# --- The mapping ----------------------------------------------------------------------------


def write_mapping(world: World, agent: Path, **interactive: Any) -> str:
    """A mapping file."""
    path = world.root / "mapping.json"
    value = {"name": "ours", "executable": str(agent), "interactive": interactive}
    path.write_text(json.dumps(value))
    return str(path)


def test_title_rules_drive_an_agent_from_ready_to_waiting_to_its_end(world: World) -> None:
    """ready, busy, waiting and leave_keys of a mapping, each by what the agent really shows."""
    path = write_mapping(
        world,
        SAMPLE_AGENT,
        args=["--delay", "0.5"],
        prompt_mode="paste",
        ready="title:^sample: ready$",
        busy=["title:working", "esc to interrupt"],
        waiting="title:action required",
        leave_keys=["C-c", "C-c", "C-c"],
    )
    call = ["spawn", "w1", "--prompt", "@sleep 0.3\n@ask Which way?", "--harness", path]
    assert world.ok(*call, "--settle", "0")["worker"]["delivered"] is True
    row = world.wait_state("w1", "waiting")
    assert row["detail"]
    world.tmux("send-keys", "-t", row["pane"], "n")
    world.wait_state("w1", "running")
    assert world.ok("send", "w1", "--prompt", "@sleep 0.5")["evidence"] in ("busy", "screen")
    world.ok("stop", "w1")
    row = world.status("w1")
    # TERM would have given 143: the agent left by its own keys.
    assert (row["state"], row["exit_code"]) == ("stopped", 0)


def test_a_prompt_may_hold_the_words_of_a_mapping(world: World) -> None:
    """An echo of the prompt proves nothing and asks nothing."""
    path = write_mapping(
        world, FAKE_AGENT, args=["echo"], busy="Working", waiting="Approve once", ready="^>"
    )
    prompt = "Working on: 1. Approve once"
    call = ["spawn", "w1", "--prompt", prompt, "--no-contract", "--harness", path]
    assert world.ok(*call)["worker"]["delivered"] is True
    assert received(world, "echo") == START + prompt.encode() + END + b"\r"


def test_an_agent_is_found_by_the_base_name_of_an_example(world: World) -> None:
    """`--agent-cli /somewhere/kimi` takes the mapping of Kimi CLI."""
    shutil.copy(FAKE_AGENT, world.root / "bin" / "kimi")
    call = ["spawn", "w1", "--prompt", "x", "--agent-args", "question", "--no-contract"]
    plan = world.ok(*call, "--agent-cli", str(world.root / "bin" / "kimi"), "--dry-run")
    assert plan["worker"]["executable"] == str(world.root / "bin" / "kimi")
    shutil.copy(FAKE_AGENT, world.root / "bin" / EXECUTABLE)
    assert world.ok(*call, "--dry-run")["worker"]["executable"].endswith(f"/bin/{EXECUTABLE}")
    question = write_agent(
        world, "kimi",
        '#!/bin/sh\n[ "$1" = --version ] && exec echo 1.51.0\n'
        "printf '%s\\n' '→ [1] Approve once' '  [2] Reject'\nsleep 600\n",
    )  # fmt: skip
    ran = world.run(*call, "--agent-cli", str(question), "--json")
    assert ran.code == 10
    assert "[1] Approve once" in ran.error["message"]
