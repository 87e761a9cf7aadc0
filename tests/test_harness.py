"""The mapping: what is accepted, what is refused and where, and the argument list made from it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout import edition
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


# --- The bundled mappings, and the schema ---------------------------------------------------

EXAMPLES = Path(harnesses.DEFAULT_MAPPING).parent
BUNDLED = sorted(path for path in EXAMPLES.glob("harness-*.json") if "template" not in path.name)
SCHEMA: dict[str, Any] = json.loads(
    (EXAMPLES.parent / "references" / "harness.schema.json").read_text("utf-8")
)


@functools.cache
def validator() -> Any:
    """What checks a mapping against the schema; raises when the schema itself is bad."""
    import jsonschema

    kind: Any = jsonschema.Draft202012Validator
    kind.check_schema(SCHEMA)
    return kind(SCHEMA)


def paths_of(value: dict[str, Any]) -> list[str]:
    """The dotted paths of a mapping, in its order."""
    return [
        path
        for key, inner in value.items()
        for path in ([f"{key}.{k}" for k in inner] if key in harnesses.SECTIONS else [key])
    ]


def test_the_bundled_mappings_are_there() -> None:
    names = ["claude", "codex", "gemini", "kimi", "kimi-code", "opencode", "pi", "qwen"]
    # A converted package has more: those of its agent and of earlier ones.
    assert {*names, edition.AGENT} <= {path.stem.removeprefix("harness-") for path in BUNDLED}


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_a_bundled_mapping_has_every_path_and_says_where_it_was_seen(path: Path) -> None:
    if (EXAMPLES.parent / "CONVERSION_REPORT.md").exists():
        pytest.skip("a converted package has mappings of others")
    value = json.loads(path.read_text("utf-8"))
    found = harnesses.read_mapping(str(path))
    assert paths_of(value) == list(harnesses.FORM)
    assert [error.json_path for error in validator().iter_errors(value)] == []
    assert found.mapping == value
    # It is found by its file's name, which begins with that of its program.
    assert path.stem.startswith(f"harness-{found.executable}")
    assert value["version"]["verified"]
    assert value["version"]["on"]
    assert {"version.verified", "noninteractive.args", "parallel.safe"} <= set(value["notes"])
    # What lets an agent do everything unasked is never among the words of a call.
    for word in value["approval"]["bypass_args"]:
        assert word not in (*value["interactive"]["args"], *value["noninteractive"]["args"])
        assert word.startswith("-") or word == "yolo"


def test_the_template_says_of_every_path_what_belongs_there() -> None:
    value = json.loads((EXAMPLES / "harness-template.json").read_text("utf-8"))
    assert {**value, "notes": {}} == harnesses.blank()
    assert list(value["notes"]) == [path for path in harnesses.FORM if path != "notes"]
    parse_mapping({**value, "name": "x", "executable": "x"}, "test")


def test_the_schema_knows_the_same_form() -> None:
    properties = SCHEMA["properties"]
    paths = paths_of({key: row.get("properties", {}) for key, row in properties.items()})
    assert paths == list(harnesses.FORM)
    assert list(SCHEMA["$defs"]["notes"]["properties"]) == paths[:-1]
    assert tuple(SCHEMA["$defs"]["dialog"]["properties"]) == harnesses.DIALOG
    assert SCHEMA["required"] == list(harnesses.REQUIRED)
    modes = {
        section: properties[section]["properties"]["prompt_mode"]["enum"]
        for section in ("interactive", "noninteractive")
    }
    assert modes["interactive"] == [*harnesses.PROMPT_MODES, None]
    assert modes["noninteractive"] == [*harnesses.RUN_PROMPT_MODES, None]
    for path in paths:
        section, _, key = path.partition(".")
        row = properties[section]["properties"][key] if key else properties[section]
        assert row["description"], path


GOOD: dict[str, Any] = {
    "name": "good_Name-1", "display_name": "\u0416 \n x", "executable": "/bin/x y",
    "version.args": "-V",
    "version.verified": "1", "version.on": "2026-12-31", "interactive.prompt_mode": "none",
    "interactive.ready": ["^a{2,3}$", "title:(?:b|c)d*", "[*+]+(?:x)+"],
    "interactive.dialogs": [
        {"match": "a", "keys": ["Enter"]},
        {"match": ["a", "b"], "ask": "x", "keys": None, "note": "n"},
    ],
    "interactive.submit_keys": ["C-m"], "interactive.leave_keys": [],
    "noninteractive.prompt_mode": "stdin", "noninteractive.exit_codes": {"0": "a", "255": "b"},
    "noninteractive.zero_without_work": False, "session.id_source": "log:id (a+)",
    "environment.needs": ["A_1"], "environment.hide": "_b", "parallel.safe": True,
    "cleanup.survivors": "x", "notes": {"interactive.ready": "", "name": "x"},
}  # fmt: skip

# Whatever stands at a path, it is refused with the path, or it is a mapping.
HOSTILE: list[Any] = [
    True, False, 0, -1, 1.5, 10**30, "", " ", "\n", "x" * 600, "\0", "a\0b", "\ud800",
    "\udfff\ud800", "\x1b[2J",
    "..", "../x", "/etc/passwd", "-x", "$(touch x)", "`touch x`", "{name}", "{", "}", "%s",
    "(", "[", "*",
    "(?P<a>x)(?P<a>y)", "x{99999999999}", ".*", "^", "a|", "(?:)", "(a+)+$", "(a|a)*b",
    "(?:a*b?){2,}c",
    "((a)+|b)+", "(?s:.*)*x", "title:", "title:(", "title:(a+)+", "log:", "log:x",
    "log:(x)(y)", "log:(",
    "log:(a+)+", "log:()", "log:((a))", "log:id (x)", "assigned", "paste", "stdin",
    "2026-13-01", "2026-02-30", "2026-1-1",
    [], [[]], [None], [1], [""], ["x", "\0"], ["("], ["AGENT_WORKER_ID"], ["PATH"], ["a b"],
    ["A"], {},
    {"": ""}, {"0": "x"}, {"00": "x"}, {"256": "x"}, {"-1": "x"}, {"1": ""}, {"1": 1},
    {"1": "a\nb"}, {"\u0661": "x"},
    {"interactive": "x"}, {"notes": "x"}, {"name": 1}, {"name": "\0"},
    {"interactive.ready": "x"}, {"\ud800": "x"},
    [{}], [{"match": "x"}], [{"match": "x", "keys": "Enter", "ask": "y"}],
    [{"match": "x", "keys": []}],
    [{"match": "", "keys": "y"}], [{"match": [], "ask": "y"}], [{"match": "(", "ask": "y"}],
    [{"match": "x", "ask": " "}], [{"match": "x", "ask": "y", "note": 1}],
    [{"match": "x", "keys": "\x1b"}],
    [{"match": "x", "keys": "Enter", "colour": 1}], [{"keys": "Enter"}], ["x"],
]  # fmt: skip
# What the loader refuses and a schema cannot know.
BEYOND_FORM = (
    "a regular expression", "a pattern that repeats no repeat", "needs some text to match",
    "a pattern with one group", "words that hold {session_id}", "a key by tmux's name",
    "one printable line", "a pattern of at most",
)  # fmt: skip


def put(value: dict[str, Any], path: str, found: Any) -> dict[str, Any]:
    """A copy of a mapping with something at a path."""
    top, _, key = path.partition(".")
    return {**value, top: {**(value.get(top) or {}), key: found} if key else found}


def judged(value: Any) -> str:
    """What the loader says of a value, empty when it takes it; the schema must say the same."""
    said = ""
    try:
        parse_mapping(value, "test")
    except SkillError as error:
        said = error.message
    assert len(said) < 1500
    assert not said or said.isprintable(), "nothing of it reaches a terminal as it is"
    wrong = [error.json_path for error in validator().iter_errors(value)]
    if not said:
        assert wrong == [], f"the schema alone refuses {value!r}"
    elif not wrong:
        assert any(words in said for words in BEYOND_FORM), f"the loader alone refuses: {said}"
    return said


def test_a_good_value_stands_at_every_path() -> None:
    value: dict[str, Any] = {}
    for path in harnesses.FORM:
        value = put(value, path, GOOD.get(path, "x"))
    assert judged(value) == ""
    found = parse_mapping(value, "test")
    assert found.dialogs[0] == harnesses.Dialog(Rules(("a",)), ("Enter",), "")
    assert found.dialogs[1] == harnesses.Dialog(Rules(("a", "b")), (), "x")
    assert (found.needs, found.hide, found.parallel) == (("A_1",), ("_b",), True)


@pytest.mark.parametrize("path", harnesses.FORM)
def test_whatever_stands_at_a_path_is_refused_with_it_or_taken(path: str) -> None:
    good: dict[str, Any] = {"name": "x", "executable": "x"}
    taken = 0
    for found in HOSTILE:
        said = judged(put(good, path, found))
        assert not said or f"'test': {path}" in said or "session.new_args" in said, said
        taken += not said
    assert 0 < taken < len(HOSTILE)
    # A section itself, and a key that nobody knows, beside it.
    section = path.partition(".")[0]
    if section != path:
        others: list[Any] = [1, "x", [], True]
        for found in others:
            assert f"'test': {section} must be an object" in judged({**good, section: found})
        for key in ("x", "", "\ud800", "a.b", "x" * 100_000, "\x1b[2J"):
            assert f"'test': {section}." in judged({**good, section: {key: "x"}})


ENDLESS = [
    "(a+)+$", "(a*)*b", "(?:a|a)+", "(?:(a+)b?)*c", "((?:a|b))+", "(x\\)+y*)+", "([)]*)+",
    "(?P<n>a+){3,}", "(?:x?x?)*y", "(a?){30}a{30}", "(?:(?:ab)?a?)+c",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_takes_for_ever_is_refused(pattern: str) -> None:
    for rule in (pattern, f"title:{pattern}"):
        with pytest.raises(SkillError, match="repeats no repeat"):
            mapping(ready=rule)


@pytest.mark.parametrize("pattern", ["(?x)(?:#)\n x+)*y", "(?:(?#[)x+)*y(?#])", "a(?ix:b)"])
def test_a_pattern_hides_no_repeat_in_a_comment(pattern: str) -> None:
    with pytest.raises(SkillError, match="without comments"):
        mapping(ready=pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(?:ab)??c", "(?:a+)?b", r"\(a+\)+", "[(a+)+]x", "(a)+", r"(?:\[x\])*y", "(ab){2}", "a+b+"],
)
def test_a_pattern_that_comes_to_its_end_is_taken(pattern: str) -> None:
    assert mapping(ready=pattern).ready.patterns == (pattern,)


def test_a_large_or_deep_mapping_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    deep = "[" * 400 + "]" * 400
    for more in (
        f'"notes": {{"name": {deep}}}',
        f'"interactive": {{"args": {deep}}}',
        f'"notes": {{"name": "{"x" * 1_000_000}"}}',
        '"notes": {"name": "a", "name": "b"}',
        '"interactive": {"dialogs": [{"match": "a", "match": "b"}]}',
    ):
        content = f'{{"name": "x", "executable": "x", {more}}}'
        path.write_text(content)
        with pytest.raises(SkillError) as caught:
            harnesses.read_mapping(str(path))
        assert caught.value.code == "invalid-mapping"
        assert len(caught.value.message) < 1500


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


def test_without_options_the_default_mapping_is_taken() -> None:
    assert load_harness(None, None).name == edition.AGENT
    assert load_harness(None, None).executable == edition.EXECUTABLE


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


@pytest.mark.parametrize("name", ["template", "code", "*", "kimi-code", "../examples/harness-kimi"])
def test_a_name_that_is_no_program_of_an_example_gets_the_generic_rules(name: str) -> None:
    assert load_harness(None, name).busy.patterns == ()


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("echo kimi, version 1.51.0", "kimi"),
        ("echo 2.1.0", "kimi-code"),
        ("echo v2.99", "kimi-code"),
        ("echo 3.0.0", "kimi"),
        ("echo nothing", "kimi"),
        ("echo 2.1.0; exit 1", "kimi"),
        ("echo 2.1.0 >&2", "kimi"),
        ("exit 0", "kimi"),
    ],
)
def test_two_programs_of_one_name_are_told_apart_by_version(
    printed: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "kimi"
    path.write_text(f'#!/bin/sh\n[ "$*" = --version ] || exit 9\n{printed}\n')
    path.chmod(0o755)
    found = load_harness(None, str(path))
    assert (found.name, found.executable) == (name, str(path))


def test_no_program_is_asked_where_one_mapping_is_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read: list[str] = []
    real = harnesses.read_value

    def note(path: str) -> Any:
        read.append(os.path.basename(path))
        return real(path)

    def ask(argv: list[str], **_: Any) -> None:
        asked.append(argv[0])

    monkeypatch.setattr(harnesses, "run", ask)
    monkeypatch.setattr(harnesses, "read_value", note)
    for agent in ("codex", "pi", "/opt/qwen", "unknown"):
        load_harness(None, agent)
    assert (asked, read) == ([], ["harness-codex.json", "harness-pi.json", "harness-qwen.json"])


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


def test_of_two_dialogs_on_one_screen_a_person_has_the_one_that_is_theirs() -> None:
    """An Enter for the first would answer the second."""
    update, trust = {"match": "New version", "keys": "Enter"}, {"match": "Trust", "ask": "trust"}
    screen = "New version is out\nTrust this folder?\n> Yes"
    for dialogs in ([update, trust], [trust, update]):
        found = harnesses.known_dialog(mapping(dialogs=dialogs), screen, "", "")
        assert found == (dialogs.index(trust), "trust")
    assert harnesses.known_dialog(mapping(dialogs=[trust, update]), "New version", "", "") == (
        1,
        "New version",
    )


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


def test_an_input_line_repeats_no_prompt() -> None:
    """Marks alone are in every prompt."""
    assert Rules(("^> *$",)).match("READY\n> ", "", "the task") == ">"
