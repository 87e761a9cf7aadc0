"""The mapping: what is accepted, what is refused and where, and the argument list made from it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout import harness as harnesses
from fanout.errors import ExitCode, SkillError
from fanout.harness import Harness, Rules, agent_argv, dialog_on_screen, load_harness, parse_mapping
from world import FAKE_AGENT, World


def mapping(**interactive: Any) -> Harness:
    """A mapping with this `interactive` section."""
    value = {"name": "x", "executable": "/bin/x", "interactive": interactive}
    return parse_mapping(value, "test")


# --- Loading --------------------------------------------------------------------------------

BAD: list[tuple[Any, str]] = [
    ([], "the whole"),
    ("text", "the whole"),
    (None, "the whole"),
    ({}, "name"),
    ({"name": "x"}, "executable"),
    ({"executable": "/bin/x"}, "name"),
    ({"name": 3, "executable": "x"}, "name"),
    ({"name": "x", "executable": ""}, "executable"),
    ({"name": "x", "executable": ["x"]}, "executable"),
    ({"name": "x", "executable": "x\0y"}, "executable"),
    ({"name": "x", "executable": "\ud800"}, "executable"),
    ({"name": "x", "executable": "x", "colour": "red"}, "colour"),
    ({"name": "x", "executable": "x", "interactive": []}, "interactive"),
    ({"name": "x", "executable": "x", "interactive": {"promptmode": 1}}, "interactive.promptmode"),
    ({"name": "x", "executable": "x", "session": "s"}, "session"),
    ({"name": "x", "executable": "x", "session": {"new": []}}, "session.new"),
    ({"name": "x", "executable": "x", "session": {"new_args": [1]}}, "session.new_args[0]"),
]
BAD_INTERACTIVE: list[tuple[dict[str, Any], str]] = [
    ({"prompt_mode": "telepathy"}, "interactive.prompt_mode"),
    ({"prompt_mode": True}, "interactive.prompt_mode"),
    ({"prompt_arg": 1}, "interactive.prompt_arg"),
    ({"prompt_arg": []}, "interactive.prompt_arg"),
    ({"args": {"a": 1}}, "interactive.args"),
    ({"args": 1}, "interactive.args"),
    ({"args": ["ok", None]}, "interactive.args[1]"),
    ({"args": ["ok", "a\0b"]}, "interactive.args[1]"),
    ({"args": ["\udfff"]}, "interactive.args[0]"),
    ({"leave_keys": [["C-c"]]}, "interactive.leave_keys[0]"),
    ({"submit_keys": 7}, "interactive.submit_keys"),
    ({"ready": "("}, "interactive.ready"),
    ({"ready": ["ok", "["]}, "interactive.ready[1]"),
    ({"ready": [1]}, "interactive.ready[0]"),
    ({"busy": "title:("}, "interactive.busy"),
    ({"waiting": ["x{99999999999}"]}, "interactive.waiting[0]"),
    ({"idle": "a" * 501}, "interactive.idle"),
    # A pattern that matches an empty screen is true for ever.
    ({"waiting": ["ok", ""]}, "interactive.waiting[1]"),
    ({"busy": ".*"}, "interactive.busy"),
    ({"ready": ["title:"]}, "interactive.ready[0]"),
]


@pytest.mark.parametrize(("value", "place"), BAD)
def test_a_bad_mapping_is_refused_with_its_json_path(value: Any, place: str) -> None:
    with pytest.raises(SkillError) as caught:
        parse_mapping(value, "m.json")
    assert caught.value.code == "invalid-mapping"
    assert caught.value.exit_code == ExitCode.USAGE
    assert f"m.json': {place} must be " in caught.value.message


@pytest.mark.parametrize(("section", "place"), BAD_INTERACTIVE)
def test_a_bad_interactive_section_is_refused_with_its_json_path(
    section: dict[str, Any], place: str
) -> None:
    with pytest.raises(SkillError) as caught:
        mapping(**section)
    assert f"'test': {place} must be " in caught.value.message


BAD_FILES = [
    b"",
    b"{",
    b'{"name": "x", "executable": "x"} trailing',
    b'\xef\xbb\xbf{"name": "x", "executable": "x"}',
    b'{"name": "\xe9", "executable": "x"}',
    b'{"name": "x", "executable": "x", "name": "y"}',
    b'{"name": "x", "executable": "x", "interactive": {"args": [], "args": ["-y"]}}',
    b"[" * 100_000,
    b" " * 1_000_001,
]


@pytest.mark.parametrize("content", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_is_no_json_mapping_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(SkillError) as caught:
        load_harness(str(path), None)
    assert caught.value.code == "invalid-mapping"
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(path) in caught.value.message


@pytest.mark.parametrize("place", ["missing.json", "."])
def test_a_mapping_that_cannot_be_read_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(SkillError) as caught:
        load_harness(str(tmp_path / place), None)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_bad_mapping_makes_nothing(world: World) -> None:
    """The whole command refuses, exit 2, names the path in the file, and leaves all as it was."""
    before = world.snapshot()
    for value, place in (
        ({"name": "x", "executable": "x", "interactive": {"ready": ["("]}}, "interactive.ready[0]"),
        ({"name": "x", "executable": "\ud800"}, "executable"),
    ):
        path = world.root / "m.json"
        path.write_text(json.dumps(value))
        error = world.refused(2, "spawn", "w1", "--prompt", "x", "--harness", str(path))
        assert error["code"] == "invalid-mapping"
        assert place in error["message"]
        assert str(path) in error["message"]
    assert world.snapshot() == before


def test_everything_optional_may_be_left_out_or_null() -> None:
    bare = parse_mapping({"name": "x", "executable": "y"}, "test")
    nulls = {
        "name": "x",
        "executable": "y",
        "interactive": dict.fromkeys(harnesses.SECTIONS["interactive"]),
        "session": dict.fromkeys(harnesses.SECTIONS["session"]),
    }
    assert bare._replace(mapping={}) == parse_mapping(nulls, "test")._replace(mapping={})
    assert bare.prompt_mode == "paste"
    assert bare.submit_keys == ("Enter",)
    assert bare.leave_keys == ()


def test_the_agent_of_an_earlier_version_is_still_there() -> None:
    """An earlier version took anything for what had no meaning then."""
    for section, key in (("interactive", "dialogs"), ("session", "id_source")):
        value = {"name": "x y", "executable": "y", section: {key: "z"}, "later": 1}
        with pytest.raises(SkillError):
            parse_mapping(value, "test")
        assert parse_mapping(value, "test", recorded=True).executable == "y"


def test_the_blank_mapping_has_every_path_and_says_nothing() -> None:
    blank = harnesses.blank()
    assert harnesses.unknown_paths(blank) == [path for path in harnesses.FORM if path != "notes"]
    assert set(blank) == set(harnesses.TOP_LEVEL)
    assert blank["notes"] == {}
    assert [*blank["interactive"]] == [*harnesses.SECTIONS["interactive"]]
    blank["interactive"]["args"] = ["-x"]
    assert harnesses.blank()["interactive"]["args"] is None, "each is a new one"
    with pytest.raises(SkillError, match="name must be"):
        parse_mapping(blank, "test")
    filled = {**harnesses.blank(), "name": "x", "executable": "/bin/x", "parallel": {"safe": False}}
    parse_mapping(filled, "test")
    left = harnesses.unknown_paths(filled)
    assert {"name", "executable", "parallel.safe"}.isdisjoint(left)
    assert "parallel.note" in left
    assert harnesses.unknown_paths({"interactive": None}) == harnesses.unknown_paths({})


def test_a_single_word_stands_for_a_list_of_one() -> None:
    assert mapping(args="--yolo", ready="^>").args == ("--yolo",)
    assert mapping(ready="^>").ready.patterns == ("^>",)


def test_the_bundled_mappings_are_valid() -> None:
    folder = Path(harnesses.DEFAULT_MAPPING).parent
    names = list(folder.glob("harness-*.json"))
    assert Path(harnesses.DEFAULT_MAPPING) in names
    for path in names:
        harnesses.read_mapping(str(path))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "executable", "interactive", "session", "args", "ready"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_mapping_or_a_usage_error(value: Any) -> None:
    with contextlib.suppress(SkillError):
        assert parse_mapping(value, "test").executable


# --- Which mapping --------------------------------------------------------------------------


def test_without_options_the_sample_mapping_is_taken() -> None:
    assert load_harness(None, None).name == "kimi"
    assert load_harness(None, None).executable == "kimi"


def test_an_agent_with_the_base_name_of_an_example_gets_its_mapping() -> None:
    found = load_harness(None, "/opt/tools/kimi")
    assert found.name == "kimi"
    assert found.executable == "/opt/tools/kimi"
    assert found.busy.patterns


@pytest.mark.parametrize("agent", ["kimi2", "/opt/kimi/run", "KIMI", "kim", "/opt/x y/it's"])
def test_any_other_agent_gets_the_generic_rules(agent: str) -> None:
    found = load_harness(None, agent)
    assert found.executable == agent
    assert found.prompt_mode == "paste"
    assert found.ready.patterns == found.busy.patterns == found.waiting.patterns == ()


def test_a_mapping_file_wins_over_the_example(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"name": "mine", "executable": "kimi", "interactive": {"args": ["-q"]}}')
    assert load_harness(str(path), None).args == ("-q",)
    assert load_harness(str(path), "/opt/kimi")[:3] == ("mine", "/opt/kimi", ("-q",))


@pytest.mark.parametrize("agent", ["", "no-such-agent", ".", "plain.txt", "./plain.txt", "./no"])
def test_an_agent_that_cannot_be_run_is_missing(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.txt").write_text("no program")
    (tmp_path / "plain.txt").chmod(0o644)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkillError) as caught:
        harnesses.require_executable(agent)
    assert caught.value.code == "agent-missing"
    assert caught.value.exit_code == ExitCode.MISSING


def test_a_relative_agent_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent").write_text("#!/bin/sh\n")
    (tmp_path / "agent").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert harnesses.require_executable("./agent") == str(tmp_path / "agent")


# --- Arguments ------------------------------------------------------------------------------


def argv(harness: Harness, *extra: str, mode: str, prompt_arg: str, prompt: str) -> list[str]:
    """The argument list with some placeholders."""
    return agent_argv(
        harness,
        "/bin/x",
        list(extra),
        mode=mode,
        prompt_arg=prompt_arg,
        prompt=prompt,
        prompt_file="/p/0001.md",
        session_args=harness.new_args,
        placeholders={"worktree": "/w", "name": "w1", "session_id": "{name}"},
    )


ARGVS = [
    ("argument", "", ["-a", "P", "-z"]),
    ("argument", "--prompt", ["-a", "--prompt", "P", "-z"]),
    ("argument", "--prompt=", ["-a", "--prompt=P", "-z"]),
    ("argument", "--", ["-a", "-z", "--", "P"]),
    ("file", "", ["-a", "/p/0001.md", "-z"]),
    ("file", "--prompt-file", ["-a", "--prompt-file", "/p/0001.md", "-z"]),
    ("file", "--prompt-file=", ["-a", "--prompt-file=/p/0001.md", "-z"]),
    ("file", "--", ["-a", "-z", "--", "/p/0001.md"]),
    ("paste", "--prompt", ["-a", "-z"]),
    ("none", "--prompt", ["-a", "-z"]),
]


@pytest.mark.parametrize(("mode", "prompt_arg", "expected"), ARGVS)
def test_where_the_prompt_stands(mode: str, prompt_arg: str, expected: list[str]) -> None:
    """P29: the prompt comes before the user's options, or after `--`."""
    made = argv(mapping(args=["-a"]), "-z", mode=mode, prompt_arg=prompt_arg, prompt="P")
    assert made == ["/bin/x", *expected]


@pytest.mark.parametrize("prompt", ["-", "--", "--help", "-x y", "--model x\nmore"])
def test_a_prompt_that_looks_like_an_option_is_refused_unless_it_is_joined(prompt: str) -> None:
    """P13."""
    for prompt_arg in ("", "--prompt", "-p"):
        with pytest.raises(SkillError) as caught:
            argv(mapping(), mode="argument", prompt_arg=prompt_arg, prompt=prompt)
        assert caught.value.code == "prompt-unfit"
        assert caught.value.exit_code == ExitCode.USAGE
    assert argv(mapping(), mode="argument", prompt_arg="--", prompt=prompt)[-2:] == ["--", prompt]
    joined = argv(mapping(), mode="argument", prompt_arg="--prompt=", prompt=prompt)
    assert joined[-1] == "--prompt=" + prompt
    assert prompt not in argv(mapping(), mode="file", prompt_arg="", prompt=prompt)


def test_the_longest_argument_is_taken_and_the_next_refused() -> None:
    """P19: Linux takes 131,071 bytes in one argument; bytes count, not characters."""
    harnesses.require_argument("x" * 131_071, "")
    harnesses.require_argument("x" * (131_071 - 9), "--prompt=")
    harnesses.require_argument("é" * 65_535, "")
    for prompt, prompt_arg in (
        ("x" * 131_072, ""),
        ("x" * (131_071 - 8), "--prompt="),
        ("é" * 65_536, ""),
    ):
        with pytest.raises(SkillError) as caught:
            harnesses.require_argument(prompt, prompt_arg)
        assert caught.value.code == "prompt-unfit"


def test_placeholders_are_filled_once_and_only_in_the_mapping() -> None:
    harness = parse_mapping(
        {
            "name": "x",
            "executable": "x",
            "interactive": {"args": ["-w", "{worktree}/{name}", '{"a": "{unknown}"}', "{}"]},
            "session": {"new_args": ["--session={session_id}"]},
        },
        "test",
    )
    made = argv(harness, "{worktree}", mode="argument", prompt_arg="", prompt="{name}")
    assert made == [
        *("/bin/x", "-w", "/w/w1", '{"a": "{unknown}"}', "{}", "--session={name}"),
        *("{name}", "{worktree}"),
    ]


@pytest.mark.parametrize(
    ("interactive", "more"),
    [
        ({"args": ["variadic"]}, ["--agent-args", "--allowedTools Bash Edit"]),
        ({"args": ["variadic", "--allowedTools", "Bash"], "prompt_arg": "--"}, []),
        ({"args": ["variadic"], "prompt_arg": "--"}, ["--agent-args", "--allowedTools Bash"]),
    ],
)
def test_an_option_that_takes_many_values_does_not_swallow_the_prompt(
    interactive: dict[str, Any], more: list[str], world: World
) -> None:
    """P29."""
    path = world.root / "m.json"
    value = {"name": "v", "executable": str(FAKE_AGENT), "interactive": interactive}
    path.write_text(json.dumps(value))
    call = ["spawn", "w1", "--prompt", "the task", "--no-contract", "--prompt-mode", "argument"]
    world.ok(*call, "--settle", "0.5", "--harness", str(path), *more)
    text = world.ok("capture", "w1")["text"]
    assert "PROMPT=the task" in text.splitlines()


# --- Rules ----------------------------------------------------------------------------------


def test_a_pattern_searches_the_screen_and_a_title_pattern_the_title() -> None:
    rules = Rules((r"^ready>", r"title:^idle$"))
    assert rules.match("x\nready> \n", "busy") == "ready>"
    assert rules.match("not ready>", "busy") is None
    assert rules.match("idle", "busy") is None
    assert rules.match("", "idle") == "idle"
    assert rules.match("title:idle", "x") is None


def test_a_pattern_is_searched_anew_after_an_echo() -> None:
    rules = Rules((r"Approve once",))
    assert rules.match("> Approve once", "", "Approve once") is None
    assert rules.match("> Approve once\n1. Approve once for x", "", "Approve once") is not None


DIALOGS = [
    ("Do you trust this folder?", "trust dialog"),
    ("Do you trust the files in this folder?\n> 1. No, exit\n  2. Yes", "trust dialog"),
    ("│ Do you trust the contents of this directory? │", "trust dialog"),
    ("  Trust this folder?", "trust dialog"),
    ("  1. Trust this folder\n  2. Exit", "trust dialog"),
    ("› 1. Sign in with ChatGPT\n  2. Provide an API key", "login dialog"),
    ("Please log in to continue", "login dialog"),
    ("Enter your API key:", "login dialog"),
    ("△ Permission required\n  Allow once  Allow always  Reject", "permission dialog"),
    ("Would you like to run the following command?", "permission dialog"),
    ("❯ Do you want to create a.txt?", "permission dialog"),
    ("● 1. Allow once", "permission dialog"),
    ("Overwrite? [y/N]", "yes/no question"),
    ("Which file do you mean? (y/n)", "yes/no question"),
    ("Go on? (yes/no): ", "yes/no question"),
]


@pytest.mark.parametrize(("text", "name"), DIALOGS)
def test_common_dialogs_are_known_by_name(text: str, name: str) -> None:
    """P23: a dialog is named even where the mapping does not know it."""
    screen = "Agent 1.0\n\n" + text + "\n" + "\n" * 40
    assert dialog_on_screen(mapping(), screen, "") == name


PROSE = [
    "you: Make the log in to the shop work",
    "> Add a sign in with Google button",
    "We must allow this to be empty, and allow once more.",
    "The function asks whether you trust the files. Do not trust the folder names.",
    "It prints (y/n) and waits.",
    "  42  def do_you_trust(folder): ...",
    "Continue? (y/n) y\n" + "\n".join(f"line {n}" for n in range(6)),
    "Continue? (y/n)\n" + "\n".join(f"line {n}" for n in range(6)),
]


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_no_dialog(text: str) -> None:
    assert dialog_on_screen(mapping(), text, "") is None


@pytest.mark.parametrize(("text", "name"), DIALOGS)
def test_a_prompt_that_the_screen_repeats_is_no_dialog(text: str, name: str) -> None:
    """Our own prompt may hold a dialog's words; the agent shows it in its input line."""
    shown = "\n".join(f"> {row}" for row in text.split("\n"))
    said = f"Please:\n{text}\nand more"
    assert dialog_on_screen(mapping(), shown, "", said) is None
    assert dialog_on_screen(mapping(waiting="(?i)trust|allow|sign in|log in"), shown, "", said) in (
        None,
    )
    assert dialog_on_screen(mapping(), shown, "", "another prompt") == name


def test_a_real_dialog_counts_although_the_prompt_speaks_of_it() -> None:
    said = "Teach the tool to answer: do you trust this folder"
    screen = "Do you trust this folder and its hooks?\n> 1. No"
    assert dialog_on_screen(mapping(), screen, "", said) == "trust dialog"


def test_the_mapping_decides_what_waits_and_what_is_ready() -> None:
    ours = mapping(waiting=["Pick a server", "title:Action Required"], ready="^> ")
    assert dialog_on_screen(ours, "Pick a server:\n1. a", "") == "Pick a server"
    assert dialog_on_screen(ours, "", "[ ! ] Action Required") == "Action Required"
    # Its input prompt is there: what stands above it is history.
    assert dialog_on_screen(ours, "Do you trust this folder?\n> ", "") is None
    # Also for its own rules: a program may draw on below a dialog that was answered.
    assert dialog_on_screen(ours, "Pick a server\n> ", "") is None
    assert dialog_on_screen(ours, "> \nPick a server", "") == "Pick a server"
    assert dialog_on_screen(ours, "Pick a server\n> ", "Action Required") == "Action Required"


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=200))
def test_looking_for_a_dialog_never_fails(text: str, title: str, said: str) -> None:
    found = dialog_on_screen(mapping(waiting=["x?y"]), text, title, said)
    assert found is None or isinstance(found, str)


def test_no_rule_is_slow_on_a_full_screen() -> None:
    """A hostile screen must not stop the command: no pattern may backtrack without bounds."""
    import time

    for filler in ("─ ", " ", "_", "(y/n)", "do you trust ", "1. "):
        screen = "\n".join([(filler * 200)[:200]] * 50)
        began = time.process_time()
        dialog_on_screen(mapping(), screen, "", screen[:5000])
        assert time.process_time() - began < 1.0, filler


def test_words_within_the_patterns_are_compiled_once_and_valid() -> None:
    for _, _, pattern in harnesses.COMMON_DIALOGS:
        re.compile(pattern)
    assert os.path.isfile(harnesses.DEFAULT_MAPPING)
