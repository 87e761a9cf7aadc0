"""What a mapping says of its agent, as the rendered runners do it: each field by its effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner_world import COMMIT, LANGUAGES, Runner, task
from world import World


@pytest.fixture(params=LANGUAGES)
def runner(request: pytest.FixtureRequest, world: World) -> Runner:
    return Runner(world, request.param)


def mapped(runner: Runner, script: str, **called: Any) -> None:
    """Write a mapping beside the plan, of an agent that is this sh script."""
    path = runner.script("agent", script)
    sections = {key: called.pop(key) for key in ("environment", "parallel") if key in called}
    value: dict[str, Any] = {
        "name": "h",
        "executable": str(path),
        "noninteractive": {"args": [], "prompt_mode": "stdin", **called},
        **sections,
    }
    (runner.plan_file.parent / "h.json").write_text(json.dumps(value))


WORK = 'echo x > "$TASK.txt"; git add -A; git commit -q -m x\n'
WORDS = 'printf "[%s]\\n" "$@"; printf "in:"; cat\n' + WORK
HARNESS = {"harness": "h.json"}


def log_of(runner: Runner, name: str = "one") -> str:
    """What a task's agent printed."""
    return runner.log("tasks", name, "agent.log").decode()


def test_the_words_of_a_mapping_are_filled_for_each_task(runner: Runner) -> None:
    words = ["{worktree}", "{git_common_dir}", "{prompt_file}", "{name}/{name}", "{record_dir}",
             "${name} {HOST} {item} {}"]  # fmt: skip
    mapped(runner, WORDS, args=words, work_dir_arg="--dir=", output_args=["-o", "json"])
    # A variable of the plan may have the name of a placeholder, and its value is its own.
    variables = {"name": "variable's", "worktree": "w", "HOST": "h"}
    runner.plan(
        task("one", "P {name} {worktree}"),
        task("two", "Q", agent={"structured_output": True}),
        agent=HARNESS, variables=variables,
    )  # fmt: skip
    runner.ends(0)
    for name, prompt in (("one", "P variable's w"), ("two", "Q")):
        folder = runner.folder / "tasks" / name
        tree = runner.tree(name)
        common = runner.repo / ".git"
        rows = [
            f"[{tree}]", f"[{common}]", f"[{folder}/prompt.md]", f"[{name}/{name}]", f"[{folder}]",
            f"[${name} {{HOST}} {{item}} {{}}]",
        ]  # fmt: skip
        rows += ["[-o]", "[json]"] if name == "two" else []
        assert log_of(runner, name).splitlines()[: len(rows)] == rows
        assert log_of(runner, name).splitlines()[len(rows) :] == [f"[--dir={tree}]", f"in:{prompt}"]


@pytest.mark.parametrize(
    ("mode", "flag", "rows"),
    [
        ("argument", "-p", ["[-a]", "[-p]", "[Do it.]", "in:"]),
        ("argument", None, ["[-a]", "[Do it.]", "in:"]),
        ("file", "--file=", ["[-a]", "[--file=FOLDER/prompt.md]", "in:"]),
        ("stdin", "-p", ["[-a]", "in:Do it."]),
        ("none", "-p", ["[-a]", "in:"]),
    ],
)
def test_how_the_prompt_comes(runner: Runner, mode: str, flag: str | None, rows: list[str]) -> None:
    mapped(runner, WORDS, args=["-a"], prompt_mode=mode, prompt_arg=flag)
    runner.plan(task("one", "Do it."), agent=HARNESS)
    shown = runner.ends(0, DRY_RUN="1").out
    runner.ends(0)
    found = [
        row.replace(f"{runner.folder}/tasks/one", "FOLDER") for row in log_of(runner).splitlines()
    ]
    assert found == rows
    assert ("< PROMPT" in shown) == (mode == "stdin")
    assert (" PROMPT\n" in shown) == (mode in ("argument", "stdin"))


def test_an_exit_code_is_told_with_its_meaning(runner: Runner) -> None:
    codes = {"41": "nobody is logged in; it's $HOME `x`", "4": "another", "0": "fine"}
    mapped(runner, 'exit "$(cat)"\n', exit_codes=codes)
    runner.plan(task("one", "41"), task("two", "5"), agent=HARNESS)
    runner.ends(1)
    assert runner.result("one")["reason"] == (
        "the agent ended with exit code 41: nobody is logged in; it's $HOME `x`"
    )
    assert runner.result("two")["reason"] == "the agent ended with exit code 5"


@pytest.mark.parametrize("known", [True, False, None])
def test_a_zero_without_work_is_no_success(runner: Runner, known: bool | None) -> None:
    mapped(runner, "exit 0\n", zero_without_work=known)
    runner.plan(task("one"), agent=HARNESS)
    runner.ends(1)
    said = "the agent ended with exit code 0 and changed nothing"
    more = " (it is known to, where it may not write)" if known else ""
    assert runner.result("one")["status"] == "no-change"
    assert runner.result("one")["reason"] == said + more


def test_what_is_hidden_does_not_reach_the_agent(runner: Runner) -> None:
    script = 'echo "$LEAK-$leak-$OWN-$KEPT-$leaked" >&2\n' + WORK
    mapped(runner, script, environment={"hide": ["LEAK", "leak", "OWN", "UNSET", "word"]})
    runner.plan(
        task("one", verify=['test "$LEAK" = a && test "$leak" = b']),
        agent={**HARNESS, "env": {"OWN": "given"}},
    )
    runner.ends(0, LEAK="a", OWN="c", KEPT="d", env={"leak": "b", "leaked": "e"})
    assert log_of(runner) == "--given-d-e\n"


def test_a_variable_that_an_agent_needs_is_demanded_before_anything_runs(runner: Runner) -> None:
    mapped(runner, WORK, environment={"needs": ["KEY", "key", "number"]})
    runner.plan(task("one"), agent=HARNESS, preflight=["true"])
    given = {"key": "1", "number": "2"}
    for env in ({}, {"KEY": ""}):
        said = runner.ends(4, env={**given, **env}).err
        assert "(task one) needs KEY in its environment" in said
        assert not (runner.folder / "tasks" / "one" / "result.json").exists()
    # The name of a variable of the runner's own is none of the caller's.
    assert "needs number in its environment" in runner.ends(4, env={"KEY": "k", "key": "1"}).err
    runner.ends(0, env={"KEY": "k", **given})
    mapped(runner, WORK, environment={"needs": ["KEY"]})
    runner.run_id = "r2"
    runner.plan(task("three"), agent={**HARNESS, "env": {"KEY": "k"}})
    runner.ends(0)
    runner.run_id = "r3"
    runner.plan(task("four"), agent={**HARNESS, "env": {"KEY": ""}})
    assert "needs KEY" in runner.ends(4, KEY="k").err


def test_agents_that_disturb_each_other_run_one_at_a_time(runner: Runner) -> None:
    script = (
        f"mkdir {runner.world.root}/busy || exit 9\nsleep 0.3\nrmdir {runner.world.root}/busy\n"
    )
    mapped(runner, script + WORK, parallel={"safe": False})
    runner.plan(*(task(name, COMMIT) for name in ("one", "two", "three")), agent=HARNESS)
    said = runner.ends(2, MAX_PARALLEL="2").err
    assert "MAX_PARALLEL is '2'" in said
    assert "disturb each other" in said
    runner.ends(0)
    assert runner.json("plan.json")["max_parallel"] == 1
