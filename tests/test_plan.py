"""Plans: what is accepted, with which defaults, and what is refused with which words."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout import plan as plans
from fanout.errors import ExitCode, SkillError
from fanout.records import is_object
from world import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "references" / "plan.schema.json").read_text("utf-8"))
TASK = {"name": "one", "prompt": "Do it."}
AGENT = {"cli": "agent"}


@functools.cache
def validator() -> Any:
    """What checks a plan against the schema; raises when the schema itself is bad."""
    # Costs much to import, and most processes that collect the tests do without.
    import jsonschema

    kind: Any = jsonschema.Draft202012Validator
    kind.check_schema(SCHEMA)
    return kind(SCHEMA)


def write(folder: Path, value: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def plan_of(task: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A small plan with more fields for its only task or for itself."""
    return {"agent": AGENT, "tasks": [{**TASK, **(task or {})}], **fields}


def load(folder: Path, value: Any) -> dict[str, Any]:
    return plans.load_plan(str(write(folder, value))).value


def load_task(folder: Path, **fields: Any) -> dict[str, Any]:
    return load(folder, plan_of(fields, variables={"HOST": "h", "PORT": "1"}))["tasks"][0]


def refusal(folder: Path, value: Any) -> SkillError:
    with pytest.raises(SkillError) as caught:
        load(folder, value)
    assert caught.value.code == "invalid-plan"
    assert caught.value.exit_code == ExitCode.USAGE
    assert repr(str(folder / "plan.json")) in caught.value.message
    return caught.value


# --- What is accepted ------------------------------------------------------------------------


def test_a_small_plan_gets_all_defaults(tmp_path: Path) -> None:
    value = load(tmp_path, plan_of({"verify": ["make"]}, backups=[["dump", "x"]]))
    command = {
        "name": "verify-01", "shell": "make", "argv": None, "when": None, "timeout_seconds": 3600,
        "artifact": None, "check": None,
    }  # fmt: skip
    assert value == {
        "schema": 1, "run_name": "plan", "repo": ".", "base": "HEAD", "worktree_root": "",
        "max_parallel": 2, "one_at_once": False, "variables": {}, "on_failure": "continue",
        "checks": [],
        "changelog_file": None, "setup_minutes": None, "review_minutes": None,
        "preflight": [], "pinned": [],
        "backups": [{**command, "name": "backup-01", "shell": None, "argv": ["dump", "x"]}],
        "tasks": [
            {
                "name": "one", "prompt": "Do it.", "branch": "one", "base": "", "owns": [],
                "depends_on": [], "when": None, "for_each": None, "setup": [], "verify": [command],
                "agent": {
                    "cli": "agent", "work_dir_arg": "", "args": [], "prompt_mode": "stdin",
                    "prompt_arg": "", "log_name": "agent.log", "timeout_seconds": 3600, "env": {},
                    "commit_leftovers": False, "allow_no_change": False,
                    "rerun_interrupted": False, "exit_codes": {}, "zero_without_work": False,
                    "needs": [], "hide": [],
                },
                "changelog": None, "estimate_minutes": None, "order": [],
            }
        ],
        "postflight": [], "rollback": [],
    }  # fmt: skip


def test_every_command_has_a_name_a_form_and_a_limit(tmp_path: Path) -> None:
    backup = {
        "name": "db", "run": ["pg_dump", ""], "timeout_seconds": 0.5, "artifact": "/b/{HOST}",
        "check": {"run": "restore {HOST}", "timeout_seconds": 9}, "when": "true",
    }  # fmt: skip
    plan = plan_of(
        {"setup": ["a", {"run": "b"}], "verify": [{"name": "last", "run": "c"}]},
        variables={"HOST": "h"}, backups=["x", backup], checks=["k"], preflight=["p"],
        postflight=["q"], rollback=["r"],
    )  # fmt: skip
    value = load(tmp_path, plan)
    lists = [value["checks"], value["preflight"], value["backups"], value["postflight"]]
    lists += [value["rollback"], value["tasks"][0]["setup"], value["tasks"][0]["verify"]]
    assert [[command["name"] for command in commands] for commands in lists] == [
        ["check-01"], ["preflight-01"], ["backup-01", "db"], ["postflight-01"], ["rollback-01"],
        ["setup-01", "setup-02"], ["last"],
    ]  # fmt: skip
    made = value["backups"][1]
    assert made["argv"] == ["pg_dump", ""]
    assert made["shell"] is None
    assert made["timeout_seconds"] == 0.5
    assert made["artifact"] == {"text": "/b/{HOST}", "marks": ["raw HOST"]}
    assert made["check"]["name"] == "db-check"
    assert made["check"]["timeout_seconds"] == 9
    assert made["check"]["shell"]["marks"] == ["word HOST"]
    assert made["when"]["command"]["name"] == "when"


def test_conditions_of_every_kind(tmp_path: Path) -> None:
    parts: list[Any] = [
        "test -e x", ["test", "-e", "x"], {"run": "true", "timeout_seconds": 5}, {"env": "CI"},
        {"env": {"A": "{HOST}"}}, {"env": {"A": "1", "B": ""}}, {"path_exists": "/etc/{HOST}"},
        {"backup_passed": "backup-01"}, {"not": {"any": [{"env": "X"}]}},
    ]  # fmt: skip
    plan = plan_of({"when": {"all": parts}}, variables={"HOST": "h"}, backups=["b"])
    made = load(tmp_path, plan)["tasks"][0]["when"]["all"]
    assert [part["command"]["shell"] for part in made[:3]] == ["test -e x", None, "true"]
    assert made[2]["command"]["timeout_seconds"] == 5
    assert made[3:] == [
        {"env": "CI"},
        {"env": "A", "equals": {"text": "{HOST}", "marks": ["raw HOST"]}},
        {"all": [{"env": "A", "equals": "1"}, {"env": "B", "equals": ""}]},
        {"path_exists": {"text": "/etc/{HOST}", "marks": ["raw HOST"]}},
        {"backup_passed": "backup-01"},
        {"not": {"any": [{"env": "X"}]}},
    ]


def test_a_text_has_a_mark_for_each_placeholder(tmp_path: Path) -> None:
    task = load_task(
        tmp_path, prompt="{HOST} ${HOST} {item} {OTHER} {RUN_ID}", base="v{PORT}",
        owns=["{HOST}/*"],
        verify=["ssh {HOST} 'x {PORT}'", ["ssh", "{HOST}", "${PORT}"]],
        agent={"args": ["--in={RUN_DIR}"], "env": {"H": "{HOST}"}},
    )  # fmt: skip
    assert task["prompt"]["marks"] == ["raw HOST", "keep HOST", "raw RUN_ID"]
    assert task["base"] == {"text": "v{PORT}", "marks": ["raw PORT"]}
    assert task["owns"] == [{"text": "{HOST}/*", "marks": ["raw HOST"]}]
    assert task["verify"][0]["shell"]["marks"] == ["word HOST", "single PORT"]
    assert task["verify"][1]["argv"][1:] == [{"text": "{HOST}", "marks": ["raw HOST"]}, "${PORT}"]
    assert task["agent"]["args"] == [{"text": "--in={RUN_DIR}", "marks": ["raw RUN_DIR"]}]
    assert task["agent"]["env"]["H"]["marks"] == ["raw HOST"]


def test_a_repeated_task_has_names_for_its_items(tmp_path: Path) -> None:
    task = load_task(tmp_path, for_each=["a", "b c"], branch="up/{item}/{HOST}", prompt="{item}")
    assert task["name"] == {"text": "one-{item}", "marks": ["slug item"]}
    assert task["branch"] == {"text": "up/{item}/{HOST}", "marks": ["slug item", "raw HOST"]}
    assert task["prompt"]["marks"] == ["raw item"]
    assert task["for_each"] == {"items": ["a", "b c"]}
    task = load_task(tmp_path, for_each={"file": "{HOST}/{item}"}, branch="all")
    assert task["for_each"] == {"file": {"text": "{HOST}/{item}", "marks": ["raw HOST"]}}
    assert task["branch"] == {"text": "all-{item}", "marks": ["slug item"]}
    task = load_task(tmp_path, for_each={"run": {"run": "list {HOST}", "timeout_seconds": 7}})
    assert task["for_each"]["run"]["timeout_seconds"] == 7
    assert task["for_each"]["run"]["shell"]["marks"] == ["word HOST"]


def test_an_item_is_known_in_its_own_task_alone(tmp_path: Path) -> None:
    tasks = [
        {"name": "a", "prompt": "{item}", "for_each": ["1"]},
        {"name": "b", "prompt": "{item}", "verify": ["echo {item}"]},
    ]
    value = load(tmp_path, {"agent": AGENT, "tasks": tasks, "postflight": ["x {item}"]})
    assert value["tasks"][0]["prompt"]["marks"] == ["raw item"]
    assert value["tasks"][1]["prompt"] == "{item}"
    assert value["tasks"][1]["verify"][0]["shell"] == "echo {item}"
    assert value["postflight"][0]["shell"] == "x {item}"


def test_a_task_changes_what_the_agent_of_the_plan_is(tmp_path: Path) -> None:
    plan = plan_of(
        {"agent": {"args": ["-x"], "env": {"B": "2"}, "timeout_seconds": 5}, "timeout_seconds": 6,
         "allow_no_change": True},
        agent={"cli": "a", "args": ["-y"], "env": {"A": "1", "B": "1"}, "prompt_mode": "file"},
    )  # fmt: skip
    plan["tasks"].append({"name": "two", "prompt": "p"})
    first, second = (task["agent"] for task in load(tmp_path, plan)["tasks"])
    assert first["args"] == ["-x"]
    assert first["env"] == {"A": "1", "B": "2"}
    assert first["timeout_seconds"] == 6
    assert first["allow_no_change"] is True
    assert first["prompt_mode"] == "file"
    assert second["args"] == ["-y"]
    assert second["env"] == {"A": "1", "B": "1"}
    assert second["timeout_seconds"] == 3600


def test_a_harness_gives_defaults_below_the_plans_own_fields(tmp_path: Path) -> None:
    called = {
        "args": ["--print"], "prompt_mode": "argument", "prompt_arg": "-p", "work_dir_arg": None,
    }  # fmt: skip
    mapping = {"name": "h", "executable": "kimi", "noninteractive": called}
    (tmp_path / "h.json").write_text(json.dumps(mapping))
    plan = plan_of({"agent": {"prompt_arg": ""}}, agent={"harness": "h.json", "args": ["--yes"]})
    agent = load(tmp_path, plan)["tasks"][0]["agent"]
    assert agent["cli"] == "kimi"
    assert (agent["args"], agent["prompt_mode"]) == (["--yes"], "argument")
    assert (agent["prompt_arg"], agent["work_dir_arg"]) == ("", "")
    # A task's own harness takes no argument of the plan's, but everything else.
    own = {"cli": "a", "args": ["-a"], "work_dir_arg": "-C", "timeout_seconds": 5}
    agent = load(tmp_path, plan_of({"agent": {"harness": "h.json"}}, agent=own))["tasks"][0][
        "agent"
    ]
    assert (agent["cli"], agent["args"], agent["work_dir_arg"]) == ("kimi", ["--print"], "")
    assert agent["timeout_seconds"] == 5
    called["args"] = "--one"  # type: ignore[assignment]
    (tmp_path / "h.json").write_text(json.dumps(mapping))
    agent = load(tmp_path, plan_of(agent={"harness": "h.json"}))["tasks"][0]["agent"]
    assert agent["args"] == ["--one"]


def mapped(folder: Path, agent: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A small plan whose agent is driven by a mapping with these sections."""
    called = {"args": ["-p"], "prompt_mode": "stdin", **sections.pop("noninteractive", {})}
    mapping = {"name": "h", "executable": "kimi", "noninteractive": called, **sections}
    (folder / "h.json").write_text(json.dumps(mapping))
    return plan_of(agent={"harness": "h.json", **(agent or {})})


@pytest.mark.parametrize("key", ["args", "prompt_mode"])
def test_what_a_mapping_does_not_say_is_not_made_up(tmp_path: Path, key: str) -> None:
    plan = mapped(tmp_path, noninteractive={key: None})
    said = refusal(tmp_path, plan).message
    assert f"agent.harness names the mapping 'h', which does not say noninteractive.{key}" in said
    said = refusal(tmp_path, {**plan, "agent": AGENT, "tasks": [
        {**TASK, "agent": {"harness": "h.json"}}]}).message  # fmt: skip
    assert "tasks[0].agent.harness names the mapping 'h', which does not say noninteract" in said
    # What the plan says itself is known.
    own = {"args": ["-x"], "prompt_mode": "file"}[key]
    plan["agent"][key] = own
    assert load(tmp_path, plan)["tasks"][0]["agent"][key] == own
    del plan["agent"][key]
    plan["tasks"][0] = {**TASK, "agent": {key: own}}
    assert load(tmp_path, plan)["tasks"][0]["agent"][key] == own


def test_output_arguments_are_added_where_they_are_wanted(tmp_path: Path) -> None:
    output = {"noninteractive": {"output_args": ["-o", "json"]}}
    assert load(tmp_path, mapped(tmp_path, **output))["tasks"][0]["agent"]["args"] == ["-p"]
    plan = mapped(tmp_path, {"structured_output": True, "args": ["-q"]}, **output)
    assert load(tmp_path, plan)["tasks"][0]["agent"]["args"] == ["-q", "-o", "json"]
    said = refusal(tmp_path, mapped(tmp_path, {"structured_output": True})).message
    assert "does not say noninteractive.output_args" in said
    said = refusal(tmp_path, plan_of({"agent": {"structured_output": True}})).message
    assert "tasks[0].agent.structured_output needs a `harness`" in said


def test_a_mapping_knows_its_own_placeholders_and_no_variables(tmp_path: Path) -> None:
    words = ["{name}:{HOST}:{item}:${worktree}", "{record_dir}{name}", "{}", "{x}"]
    plan = mapped(tmp_path, noninteractive={"args": words, "work_dir_arg": "{HOST}"})
    plan["variables"] = {"HOST": "h", "name": "n"}
    agent = load(tmp_path, plan)["tasks"][0]["agent"]
    assert agent["args"] == [
        {"text": words[0], "marks": ["agent name", "agent worktree"]},
        {"text": words[1], "marks": ["agent record_dir", "agent name"]}, "{}", "{x}",
    ]  # fmt: skip
    assert agent["work_dir_arg"] == "{HOST}"
    plan = mapped(tmp_path, noninteractive={"args": ["--id={session_id}"]})
    assert "noninteractive.args[0] holds {session_id}" in refusal(tmp_path, plan).message


def test_what_a_mapping_says_of_its_agent_reaches_the_runner(tmp_path: Path) -> None:
    codes = {"41": "no login"}
    plan = mapped(
        tmp_path, noninteractive={"exit_codes": codes, "zero_without_work": True},
        environment={"needs": ["KEY"], "hide": "LEAK"},
    )  # fmt: skip
    agent = load(tmp_path, plan)["tasks"][0]["agent"]
    assert (agent["exit_codes"], agent["zero_without_work"]) == (codes, True)
    assert (agent["needs"], agent["hide"]) == (["KEY"], ["LEAK"])
    # A task with another harness has none of it.
    (tmp_path / "o.json").write_text(
        '{"name": "o", "executable": "o", "noninteractive": {"args": [], "prompt_mode": "none"}}'
    )
    plan["tasks"][0] = {**TASK, "agent": {"harness": "o.json"}}
    agent = load(tmp_path, plan)["tasks"][0]["agent"]
    assert (agent["cli"], agent["prompt_mode"]) == ("o", "none")
    assert (agent["exit_codes"], agent["zero_without_work"]) == ({}, False)
    assert (agent["needs"], agent["hide"]) == ([], [])


def test_agents_that_disturb_each_other_run_one_at_a_time(tmp_path: Path) -> None:
    plan = mapped(tmp_path, parallel={"safe": False})
    value = load(tmp_path, plan)
    assert (value["max_parallel"], value["one_at_once"]) == (1, True)
    assert load(tmp_path, {**plan, "max_parallel": 1})["one_at_once"] is True
    said = refusal(tmp_path, {**plan, "max_parallel": 2}).message
    assert "max_parallel must be 1: the mapping 'h'" in said
    # It is no agent of this plan when every task has another.
    plan["tasks"][0] = {**TASK, "agent": {"harness": "o.json"}}
    (tmp_path / "o.json").write_text(
        '{"name": "o", "executable": "o", "noninteractive": {"args": [], "prompt_mode": "none"}}'
    )
    assert load(tmp_path, {**plan, "max_parallel": 2})["one_at_once"] is False
    for safe in (True, None):
        value = load(tmp_path, mapped(tmp_path, parallel={"safe": safe}))
        assert (value["max_parallel"], value["one_at_once"]) == (2, False)


def test_a_prompt_file_is_embedded_byte_for_byte(tmp_path: Path) -> None:
    """Q09."""
    content = '\ufeff---\r\n"quoted" {HOST} ${HOST}\r\nEOF\n\n\n'
    (tmp_path / "p.md").write_bytes(content.encode())
    plan = {"agent": AGENT, "tasks": [{"name": "one", "prompt_file": "p.md"}]}
    assert load(tmp_path, plan)["tasks"][0]["prompt"] == content
    marked = load(tmp_path, {**plan, "variables": {"HOST": "h"}})["tasks"][0]["prompt"]
    assert marked == {"text": content, "marks": ["raw HOST", "keep HOST"]}


def test_the_hash_is_over_the_plan_and_all_that_it_embeds(tmp_path: Path) -> None:
    def digest() -> str:
        return plans.load_plan(str(path)).sha256

    path = write(tmp_path, plan_of())
    assert digest() == hashlib.sha256(path.read_bytes()).hexdigest()
    mapped(tmp_path)
    mapping = (tmp_path / "h.json").read_text()
    (tmp_path / "p.md").write_text("Do it.")
    task = {"name": "one", "prompt_file": "p.md"}
    path = write(tmp_path, {"agent": {"harness": "h.json"}, "tasks": [task]})
    seen = {digest()}
    (tmp_path / "p.md").write_text("Do it!")
    seen.add(digest())
    (tmp_path / "h.json").write_text(mapping + " ")
    seen.add(digest())
    path.write_text(path.read_text() + "\n")
    seen.add(digest())
    assert len(seen) == 4


def test_dependencies_become_positions(tmp_path: Path) -> None:
    tasks = [
        {"name": "c", "prompt": "p", "depends_on": ["B", "a-{item}"]},
        {"name": "B", "prompt": "p"},
        {"name": "a-{item}", "prompt": "p", "for_each": ["1"], "depends_on": ["B"]},
    ]
    value = load(tmp_path, {"agent": AGENT, "tasks": tasks})
    assert [task["depends_on"] for task in value["tasks"]] == [[1, 2], [], [1]]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("upgrade.v2.json", "upgrade-v2"), ("é.json", "plan"), ("a b.plan", "a-b"),
        ("x" * 80 + ".json", "x" * 64), ("plan", "plan"), ("--p_.json", "p"),
    ],
)  # fmt: skip
def test_a_run_is_named_after_its_plan(tmp_path: Path, file: str, expected: str) -> None:
    path = tmp_path / file
    path.write_text(json.dumps(plan_of()))
    assert plans.load_plan(str(path)).value["run_name"] == expected


def test_a_mark_at_the_start_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    text = json.dumps(plan_of(), indent=1).replace("\n", "\r\n")
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert plans.load_plan(str(path)).value == load(tmp_path, plan_of())


def test_whole_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    made = load(tmp_path, plan_of(max_parallel=3.0))["max_parallel"]
    assert (made, type(made)) == (3, int)


# --- What is refused -------------------------------------------------------------------------


BAD_TASKS: list[tuple[dict[str, Any], str, str]] = [
    ({"promt": "x"}, "tasks[0].promt is an unknown field: 'promt'", "did you mean 'prompt'?"),
    ({"agent": {"Cli": "x"}}, "tasks[0].agent.Cli is an unknown", "did you mean 'cli'?"),
    ({"verify": [{"run": "x", "chek": "y"}]}, "tasks[0].verify[0].chek", "did you mean"),
    ({"when": {"backup_pased": "x"}}, "tasks[0].when.backup_pased", "'backup_passed'"),
    ({"depends_on": ["onne"]}, "tasks[0].depends_on[0] names no task: 'onne'", "'one'"),
    ({"when": {"backup_passed": "dab"}}, "tasks[0].when.backup_passed names no", "'db'"),
    ({"agent": {"prompt_mode": "stdim"}}, "tasks[0].agent.prompt_mode", "'stdin'"),
    ({"timeout_seconds": True}, "tasks[0].timeout_seconds must be a number", ""),
    ({"timeout_seconds": 0}, "tasks[0].timeout_seconds must be a number above 0", ""),
    ({"timeout_seconds": 604801}, "tasks[0].timeout_seconds", ""),
    ({"estimate_minutes": -1}, "tasks[0].estimate_minutes must be a number from 0", ""),
    ({"prompt_file": "p"}, "tasks[0] needs exactly one of `prompt` and `prompt_file`", ""),
    ({"prompt": " \n"}, "tasks[0].prompt is an empty prompt", ""),
    ({"prompt": "a\0"}, "tasks[0].prompt must not hold a NUL", ""),
    ({"prompt": "\ud800"}, "tasks[0].prompt must not hold a NUL or half of", ""),
    ({"name": "../../etc/x"}, "tasks[0].name must be a name", ""),
    ({"name": "a/b"}, "tasks[0].name must be a name", ""),
    ({"name": ""}, "tasks[0].name must not be empty", ""),
    ({"name": "x" * 300}, "tasks[0].name must be a name", ""),
    ({"name": "one\n"}, "tasks[0].name must be a name", ""),
    ({"name": "{RUN_ID}-{item}"}, "tasks[0].name holds no known placeholder: 'item'", ""),
    ({"branch": "a..b"}, "tasks[0].branch must be a branch name", ""),
    ({"branch": "-b"}, "tasks[0].branch must be a branch name", ""),
    ({"branch": "x" * 201}, "tasks[0].branch is longer than 200", ""),
    ({"base": "--all"}, "tasks[0].base must be a commit", ""),
    ({"changelog": "/tmp/x"}, "tasks[0].changelog must be a relative path inside", ""),
    ({"changelog": "a/../../x"}, "tasks[0].changelog must be a relative path inside", ""),
    ({"owns": ["src/**", ".."]}, "tasks[0].owns[1] must be a relative path inside", ""),
    ({"owns": "src"}, "tasks[0].owns must be a list", ""),
    ({"owns": ["!src"]}, "tasks[0].owns[0] takes back what no pattern before it gives", ""),
    ({"verify": [""]}, "tasks[0].verify[0] must not be empty", ""),
    ({"verify": [[]]}, "tasks[0].verify[0] must be a string, a list", ""),
    ({"verify": [[""]]}, "tasks[0].verify[0][0] must not be empty", ""),
    ({"verify": [{"timeout_seconds": 1}]}, "tasks[0].verify[0] needs a field `run`", ""),
    ({"verify": ["a", {"name": "VERIFY-01", "run": "b"}]}, "tasks[0].verify[1] has the", ""),
    ({"verify": ["echo $'{RUN_DIR}'"]}, "tasks[0].verify[0]", "use $RUN_DIR there"),
    ({"for_each": ["a"], "verify": ["# {item}"]}, "tasks[0].verify[0]", "use $PLAN_item there"),
    ({"when": {"env": "A", "not": "x"}}, "tasks[0].when must be a command or an object", ""),
    ({"when": {"all": []}}, "tasks[0].when.all must not be empty", ""),
    ({"when": {"env": {"A=": "x"}}}, "tasks[0].when.env['A=']", ""),
    ({"when": {"env": {}}}, "tasks[0].when.env must not be empty", ""),
    ({"for_each": []}, "tasks[0].for_each must hold 1 to 10000 items", ""),
    ({"for_each": ["a", "a\n"]}, "tasks[0].for_each[1] must be one line", ""),
    ({"for_each": ["a", "A"]}, "tasks[0].for_each[1] makes the name 'one-A', as tasks[0]", ""),
    ({"for_each": ["x" * 40], "name": "y" * 25}, "tasks[0].for_each[0] makes the name", ""),
    ({"for_each": ["{RUN_ID}"]}, "tasks[0].for_each[0] cannot hold {RUN_ID}", ""),
    ({"for_each": {}}, "tasks[0].for_each must be a list or an object", ""),
    ({"agent": {"log_name": "Prompt.md"}}, "tasks[0].agent.log_name", ""),
    ({"agent": {"log_name": "verify-07.log"}}, "tasks[0].agent.log_name", ""),
    ({"agent": {"log_name": "a/b"}}, "tasks[0].agent.log_name", ""),
    ({"agent": {"env": {"AGENT_WORKERS_RUN": "x"}}}, "tasks[0].agent.env.AGENT_W", ""),
    ({"agent": {"harness": "none.json"}}, "tasks[0].agent.harness", ""),
    (
        {"agent": {"prompt_mode": "argument"}, "prompt": "é" * 65_536},
        "tasks[0] has a prompt longer than one argument", "stdin",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "where", "said"), BAD_TASKS)
def test_a_bad_task_is_refused_with_its_place(
    tmp_path: Path, fields: dict[str, Any], where: str, said: str
) -> None:
    """Q01, Q03."""
    error = refusal(tmp_path, plan_of(fields, backups=[{"name": "db", "run": "b"}]))
    assert f": {where}" in error.message
    assert said in error.hint


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ([], "the whole must be an object, not a list"),
        ({}, "the whole needs a field `agent`"),
        ({"agent": AGENT}, "the whole needs a field `tasks`"),
        ({"agent": AGENT, "tasks": []}, "tasks must not be empty"),
        (plan_of(agent={}), "agent needs a field `cli` or `harness`"),
        (plan_of(backup=[]), "backup is an unknown field: 'backup'"),
        (plan_of(repo=None), "repo must be a string, not null"),
        (plan_of(max_parallel=65), "max_parallel must be a number above 0, at most 64"),
        (plan_of(max_parallel=1.5), "max_parallel must be a whole number"),
        (plan_of(max_parallel=10**400), "max_parallel must be a number"),
        (plan_of(on_failure="halt"), "on_failure must be one of the known words, not 'halt'"),
        (plan_of(variables={"item": "x"}), "variables.item has a name that the runner uses"),
        (plan_of(variables={"RUN_ID": "x"}), "variables.RUN_ID has a name that the runner uses"),
        (plan_of(variables={"a-b": "x"}), "variables.a-b must be a name"),
        (plan_of(variables={"A": 1}), "variables.A must be a string, not 1"),
        (plan_of(repo="{REPO_ROOT}"), "repo cannot hold {REPO_ROOT}"),
        (plan_of(changelog_file="../CHANGELOG.md"), "changelog_file must be a relative path"),
        (plan_of(preflight=[{"run": "a", "artifact": "x"}]), "preflight[0].artifact is an unknown"),
        (plan_of(preflight=[{"run": "a", "when": {"backup_passed": "b"}}]), "asks about a backup"),
        (
            plan_of(backups=[{"run": "a", "when": {"backup_passed": "backup-02"}}, "b"]),
            "backups[0].when.backup_passed names no backup before it: 'backup-02'",
        ),
        (
            plan_of(
                backups=[{"name": "a", "run": "x", "check": "y"}, {"name": "A-check", "run": "z"}]
            ),
            "backups[1] has the name 'A-check', as backups[0] has",
        ),
        (
            {"agent": AGENT, "tasks": [TASK, {**TASK, "name": "ONE"}]},
            "tasks[1].name is 'ONE', as tasks[0].name is",
        ),
        (
            {"agent": AGENT, "tasks": [TASK, {**TASK, "name": "two", "branch": "One"}]},
            "tasks[1].branch makes the branch 'One', as tasks[0].branch does",
        ),
        (
            {"agent": AGENT, "tasks": [TASK, {**TASK, "name": "two", "branch": "one/x"}]},
            "tasks[1].branch makes the branch 'one/x'; git cannot have it beside 'one'",
        ),
        (
            {"agent": AGENT, "tasks": [{**TASK, "for_each": ["1"]}, {**TASK, "name": "one-1"}]},
            "tasks[1].name makes the name 'one-1', as tasks[0].for_each[0] does",
        ),
        ('{"agent": {}, "agent": {}}', "agent stands twice in one object"),
        ('{"agent": {"cli": "a"}, "tasks": [{"name": "a", "name": "b"}]}', "name stands twice"),
        ('{"max_parallel": NaN}', "is not valid JSON: NaN is not a JSON number"),
        ('{"max_parallel": 1e999, "agent": {"cli": "a"}, "tasks": [{"name": "a", "prompt": "p"}]}',
         "max_parallel must be a number"),
        ('{"max_parallel": ' + "9" * 5000 + "}", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[" * 100_000, "is nested too deep"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_refused_with_its_place(tmp_path: Path, plan: Any, said: str) -> None:
    assert said in refusal(tmp_path, plan).message


def test_a_cycle_is_told_in_its_order(tmp_path: Path) -> None:
    after = {"a": ["d"], "b": ["a"], "c": ["b", "d"], "d": ["c"]}
    tasks = [{"name": name, "prompt": "p", "depends_on": names} for name, names in after.items()]
    said = refusal(tmp_path, {"agent": AGENT, "tasks": tasks}).message
    assert "makes a cycle: d -> c -> d" in said or "makes a cycle: a -> d -> c -> b -> a" in said
    alone = plan_of({"depends_on": ["one"]})
    assert "tasks[0].depends_on makes a cycle: one -> one" in refusal(tmp_path, alone).message


def test_conditions_may_be_nested_but_not_without_end(tmp_path: Path) -> None:
    def nested(depth: int) -> Any:
        return {"not": nested(depth - 1)} if depth > 1 else {"env": "X"}

    load_task(tmp_path, when=nested(plans.DEEPEST_CONDITION))
    deep = plan_of({"when": nested(plans.DEEPEST_CONDITION + 1)})
    assert "is nested deeper than 20 conditions" in refusal(tmp_path, deep).message


@pytest.mark.parametrize("what", ["absent", "folder", "pipe", "large", "latin-1"])
def test_a_file_that_cannot_be_a_plan_or_a_prompt_is_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    for name, limit in (("plan.json", plans.PLAN_LIMIT), ("p.md", plans.PROMPT_LIMIT)):
        path = folder / name
        if what == "folder":
            path.mkdir()
        elif what == "pipe":
            subprocess.run(["mkfifo", str(path)], check=True)
        elif what == "large":
            with path.open("wb") as file:
                file.truncate(limit + 1)
        elif what == "latin-1":
            path.write_bytes(b'"\xe9"')
    said = {
        "absent": "No such file", "folder": "Is a directory", "pipe": "is not a file",
        "large": "is larger than", "latin-1": "is not UTF-8",
    }[what]  # fmt: skip
    with pytest.raises(SkillError, match=said) as caught:
        plans.load_plan(str(folder / "plan.json"))
    assert (caught.value.code, caught.value.exit_code) == ("invalid-plan", ExitCode.USAGE)
    task = {"name": "one", "prompt_file": "plans/p.md"}
    message = refusal(tmp_path, {"agent": AGENT, "tasks": [task]}).message
    assert said in message
    assert ": tasks[0].prompt_file" in message


def test_a_bad_mapping_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    for mapping, said in (
        ("{}", "agent.harness: the mapping"),
        ('{"name": "h", "executable": "a", "noninteractive": []}', "noninteractive must be an obj"),
        (
            '{"name": "h", "executable": "a", "noninteractive": [1]}',
            "noninteractive must be an obj",
        ),
        (
            '{"name": "h", "executable": "a", "noninteractive": {"prompt_mode": "paste"}}',
            "h.json': noninteractive.prompt_mode must be one of argument, stdin, file, none",
        ),
        (
            '{"name": "h", "executable": "a", "noninteractive": {"args": [1]}}',
            "h.json': noninteractive.args[0] must be a string",
        ),
    ):
        path.write_text(mapping)
        assert said in refusal(tmp_path, plan_of(agent={"harness": "h.json"})).message


def test_odd_words_in_a_message_are_harmless(tmp_path: Path) -> None:
    said = refusal(tmp_path, {"\x1b[2J" + "x" * 5000: 1}).message
    assert "\x1b" not in said
    assert len(said) < 600
    assert "\ud800" not in refusal(tmp_path, plan_of(variables={"\ud800": "x"})).message


def test_the_nearest_word() -> None:
    assert plans.nearest("pormpt", plans.TASK) == "prompt"
    assert plans.nearest("zzz", ["a", "b"]) in ("a", "b")
    assert plans.nearest("x", []) == ""


GIT_NAMES = st.text(
    st.sampled_from(list("a.B/@{}-~^:?*[\\ \t\n\x7fé_lock")), min_size=1, max_size=7
)


@settings(max_examples=60)
@given(
    st.one_of(GIT_NAMES, GIT_NAMES.map(lambda name: name + ".lock"), st.sampled_from(["HEAD", "@"]))
)
def test_a_branch_name_is_judged_as_git_judges_it(name: str) -> None:
    asked = subprocess.run(
        ["git", "check-ref-format", "refs/heads/" + name], check=False, capture_output=True
    )
    # Git itself makes no branch of these names.
    accepted = asked.returncode == 0 and not name.startswith("-") and name not in ("HEAD", "@")
    assert (re.match(plans.BRANCH, name) is not None) == accepted


# --- The schema ------------------------------------------------------------------------------


def test_the_schema_knows_the_same_fields() -> None:
    assert validator().schema == SCHEMA, "a bad one is not taken"
    defined = SCHEMA["$defs"]
    assert set(SCHEMA["properties"]) == set(plans.TOP)
    assert set(defined["task"]["properties"]) == set(plans.TASK)
    assert set(defined["agent"]["properties"]) == set(plans.AGENT)
    assert set(defined["backup"]["anyOf"][1]["properties"]) == set(plans.BACKUP)


# What the loader refuses and a schema cannot know.
BEYOND_FORM = (
    "names no", "has the name", ", as tasks[", "makes a cycle", "makes the", "could become code",
    "cannot hold", "holds no known", "asks about a backup", "is nested",
    "cannot read the", "git cannot have",
)  # fmt: skip


class Author:
    """Writes random plans, and spoils them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, **fields: Any) -> dict[str, Any]:
        """An object with about half of the fields, each made by its function."""
        return {name: make() for name, make in fields.items() if self.random.random() < 0.5}

    def text(self) -> str:
        words = [
            "x",
            "a b",
            "{HOST}",
            "${HOST}",
            "{item}",
            "",
            "é",
            "\n",
            "'",
            "$(",
            "/",
            "..",
            "-",
        ]
        return "".join(self.random.choice(words) for _ in range(self.random.randint(0, 3)))

    def filled(self) -> str:
        return "f" + self.text()

    def name(self) -> str:
        return f"n{self.random.randint(0, 10**6)}"

    def entries(self, make: Any, least: int = 0) -> list[Any]:
        return [make() for _ in range(self.random.randint(least, 2))]

    def number(self) -> Any:
        return self.random.choice([1, 2, 0.5, 60, 3600, 2.0])

    def run(self) -> Any:
        return self.random.choice(["true", "echo {HOST}", [self.filled(), self.text()]])

    def plain(self) -> Any:
        if self.random.random() < 0.5:
            return self.run()
        return {"run": self.run(), **self.some(timeout_seconds=self.number)}

    def command(self) -> Any:
        if self.random.random() < 0.5:
            return self.run()
        more = self.some(name=self.name, when=self.condition, timeout_seconds=self.number)
        return {"run": self.run(), **more}

    def backup(self) -> Any:
        if self.random.random() < 0.5:
            return self.command()
        return {"run": self.run(), **self.some(artifact=self.filled, check=self.plain)}

    def condition(self, depth: int = 2) -> Any:
        deeper = [
            lambda: {"not": self.condition(depth - 1)},
            lambda: {"all": self.entries(lambda: self.condition(depth - 1), 1)},
            lambda: {"any": self.entries(lambda: self.condition(depth - 1), 1)},
        ]
        return self.random.choice([
            self.plain, lambda: {"env": "A"}, lambda: {"env": {"A": self.text(), "B": "x"}},
            lambda: {"path_exists": self.filled()}, *(deeper if depth else ()),
        ])()  # fmt: skip

    def agent(self) -> dict[str, Any]:
        def truth() -> bool:
            return self.random.random() < 0.5

        return self.some(
            cli=self.filled, work_dir_arg=self.text, args=lambda: self.entries(self.text),
            prompt_mode=lambda: self.random.choice(plans.PROMPT_MODES), prompt_arg=self.text,
            log_name=lambda: "a.log", timeout_seconds=self.number, env=lambda: {"A": self.text()},
            commit_leftovers=truth, allow_no_change=truth,
        )  # fmt: skip

    def for_each(self) -> Any:
        return self.random.choice([["a", "b c"], {"file": "f"}, {"run": self.plain()}])

    def commands(self) -> list[Any]:
        return self.entries(self.command)

    def task(self) -> dict[str, Any]:
        more = self.some(
            branch=lambda: "b/" + self.name(), base=self.filled, owns=lambda: ["src/**", "!x"],
            depends_on=list, when=self.condition, for_each=self.for_each, setup=self.commands,
            verify=self.commands, agent=self.agent, timeout_seconds=self.number,
            changelog=lambda: "c/x.md", allow_no_change=lambda: True, estimate_minutes=self.number,
        )  # fmt: skip
        return {"name": self.name(), "prompt": "p" + self.text(), **more}

    def plan(self) -> dict[str, Any]:
        more = self.some(
            run_name=self.name, repo=self.filled, base=self.filled, worktree_root=self.filled,
            max_parallel=lambda: 3, on_failure=lambda: "stop", checks=self.commands,
            changelog_file=lambda: "CHANGELOG.md", setup_minutes=self.number,
            review_minutes=self.number,
            preflight=self.commands, backups=lambda: self.entries(self.backup),
            postflight=self.commands, rollback=self.commands,
        )  # fmt: skip
        return {
            "variables": {"HOST": "h"}, "agent": {**self.agent(), "cli": "a"},
            "tasks": self.entries(self.task, 1), **more,
        }  # fmt: skip

    def spoil(self, plan: dict[str, Any]) -> None:
        """Change one thing of a plan, most often into something wrong."""
        places: list[tuple[Any, Any]] = []
        waiting: list[Any] = [plan]
        while waiting:
            value = waiting.pop()
            keys: list[Any] = list(value) if is_object(value) else list(range(len(value)))
            for key in keys:
                places.append((value, key))
                waiting += [value[key]] if isinstance(value[key], (dict, list)) else []
        parent, key = self.random.choice(places)
        act = self.random.randrange(5)
        if act == 0 and isinstance(parent, dict):
            parent[self.random.choice(["x", "name", "run", "cli", "env", "when", "prompt", ""])] = (
                "x"
            )
        elif act == 1:
            del parent[key]
        else:
            wrong: list[Any] = [
                None, True, False, 0, 1, -1, 0.5, 2.0, 65, 10**9, "", " ", "a\0", "\ud800", "x\n",
                "../x", "/x", "a/..", "!x", "!/x", "-x", ".",
                "@", "HEAD", "a.lock", "n" * 201, "item", "x y",
                "{HOST}", "setup-1.log", "result.json", "argument", [], ["a"], ["a", "a"], [1],
                [""],
                {}, {"run": "x"}, {"env": "A"}, {"A": "x"}, {"A-": "x"}, {"AGENT_WORKERS_RUN": "x"},
                {"env": {}}, {"run": "x", "env": "A"}, {"file": "x"}, {"not": "x"}, {"all": []},
            ]  # fmt: skip
            parent[key] = self.random.choice(wrong)


@settings(max_examples=5)
@given(st.integers(0, 2**64))
def test_the_schema_and_the_loader_agree(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    author = Author(seed)
    folder = tmp_path_factory.mktemp("plans")
    fine = 0
    for number in range(60):
        plan = author.plan()
        for _ in range(number % 3):
            author.spoil(plan)
        said = ""
        try:
            load(folder, plan)
        except SkillError as error:
            said = error.message
        wrong = [error.json_path for error in validator().iter_errors(plan)]
        if not said:
            assert not wrong, f"the schema alone refuses {plan}"
            fine += 1
        elif not wrong:
            assert any(words in said for words in BEYOND_FORM), f"{said}: {plan}"
    assert fine > 15


# --- Speed -----------------------------------------------------------------------------------


def test_many_tasks_take_not_much_more_time_each(tmp_path: Path) -> None:
    """A quadratic step would take a hundred times the time for ten times the tasks."""

    def seconds(count: int) -> float:
        tasks = [
            {
                "name": f"task-{number}", "prompt": "Do {HOST}.\n" * 30,
                "branch": f"many/parts/of/{number}", "owns": [f"src/{number}/**"],
                "depends_on": [f"task-{n}" for n in range(max(0, number - 3), number)],
                "verify": ["test -e {HOST}", ["true", "{HOST}"]], "when": {"env": "X"},
            }
            for number in range(count)
        ]  # fmt: skip
        path = write(tmp_path, {"agent": AGENT, "variables": {"HOST": "h"}, "tasks": tasks})
        start = time.process_time()
        plans.load_plan(str(path))
        return time.process_time() - start

    # The best of some: a busy machine makes some of them slower.
    few, many = (min(seconds(count) for _ in range(3)) for count in (100, 1_000))
    assert many < 40 * few
