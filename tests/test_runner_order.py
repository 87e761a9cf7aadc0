"""Tasks that own a path both never run side by side, in either runner."""

from __future__ import annotations

import itertools
import random
from typing import Any

from fanout.partition import Meetings
from runner_world import Runner, runner, runner_language, task
from test_runners_alike import worlds

__all__ = ["runner", "runner_language"]
WORK = "echo x > $TASK.txt\n"
# Long enough for what may begin meanwhile to do so on a machine with much to do.
SLOW = "sleep 0.7; "


def spans(runner: Runner) -> dict[str, tuple[str, str]]:
    """When each task began and ended."""
    return {
        name: (record["started_at"], record["ended_at"])
        for name, row in runner.tasks().items()
        if row["status"] != "not-started" and (record := runner.result(name))["started_at"]
    }


def beside(runner: Runner) -> set[tuple[str, str]]:
    """The pairs of tasks of which one began before the other had ended."""
    found = spans(runner)
    return {
        (a, b) for a, b in itertools.combinations(sorted(found), 2)
        if found[a][0] < found[b][1] and found[b][0] < found[a][1]
    }  # fmt: skip


def owner(name: str, *owns: str, **fields: Any) -> dict[str, Any]:
    """A task that owns patterns, works for a moment and changes a file that it owns."""
    return task(name, SLOW + WORK, **({"owns": list(owns)} if owns else {}), **fields)


def test_an_overlap_keeps_two_tasks_apart_and_nothing_else(runner: Runner) -> None:
    runner.plan(
        owner("a", "*.txt"), owner("b", "b.txt"), owner("c", "b*"), owner("free"),
        max_parallel=4,
    )  # fmt: skip
    said = runner.ends(0, DRY_RUN="1")
    assert "  not beside a: they may change the same file" in said.out
    runner.run()
    assert not {("a", "b"), ("a", "c"), ("b", "c")} & beside(runner)
    assert ("a", "free") in beside(runner)
    # What an earlier one came to does not matter: each began from the base.
    assert runner.statuses() == {"a": "passed", "b": "passed", "c": "failed", "free": "passed"}


def test_items_that_are_found_later_run_side_by_side_while_they_are_plain(runner: Runner) -> None:
    def each(*lines: str) -> dict[str, Any]:
        return {"run": ["printf", "%s\\n", *lines]}

    runner.plan(
        owner("t-{item}", "t/{item}.txt", for_each=each("x", "y")),
        owner("u-{item}", "u/{item}.txt", for_each=each("x", "*")),
        max_parallel=4,
    )
    runner.run()
    assert len(spans(runner)) == 4
    assert ("t-x", "t-y") in beside(runner)
    assert not [(a, b) for a, b in beside(runner) if a.startswith("u") and b.startswith("u")]


def test_a_dry_run_says_what_is_not_known_yet(runner: Runner) -> None:
    each = {"run": ["false"]}
    runner.plan(
        owner("t-{item}", "t-{item}*.txt", "d/{item}/f", for_each=each),
        owner("u-{item}", "u/{item}.txt", for_each=each),
    )  # fmt: skip
    said = runner.ends(0, DRY_RUN="1").out
    assert "  one item after another: they may" in said
    assert "after another unless the items are plain words" in said


def test_a_value_on_which_the_order_depends_brings_one_task_at_a_time(runner: Runner) -> None:
    runner.plan(
        owner("a", "{A}.txt"), owner("b", "b.txt"), variables={"A": "a"}, max_parallel=4
    )  # fmt: skip
    assert "note:" not in runner.ends(0, DRY_RUN="1").err
    said = runner.run(PLAN_A="b")
    assert "PLAN_A is another than the plan's" in said.err
    assert runner.json("plan.json")["max_parallel"] == 1
    assert not beside(runner)


def test_what_is_taken_back_is_out_of_scope(runner: Runner) -> None:
    prompt = "mkdir -p d/e; for f in a d/b d/e/c d/e/keep d/x other; do echo > $f; done\n"
    owns = ["d", "a", "!d/e", "!d/x", "d/e/keep"]
    commit = "git add -A && git commit -q -m x\n"
    runner.plan(task("one", prompt, owns=owns), task("two", prompt + commit, owns=owns))
    runner.run()
    for name in ("one", "two"):
        assert runner.result(name)["out_of_scope"] == ["d/e/c", "d/x", "other"]


def test_a_value_is_no_pattern_that_takes_back(runner: Runner) -> None:
    prompt = "echo > '!x'; echo > y\n"
    runner.plan(task("t-{item}", prompt, owns=["*", "{item}"], for_each=["!x"]))
    runner.ends(0)
    (row,) = runner.json("plan.json")["tasks"]
    assert row["owns"] == ["*", r"\!x"]


def test_one_task_alone_waits_for_its_turn_as_well(runner: Runner) -> None:
    runner.plan(owner("a", "*.txt"), owner("b", "b.txt"))
    runner.ends(0, "gate")
    assert "b comes after a, which is not-started" in runner.refused(3, "task", "b")
    runner.ends(0, "task", "a")
    runner.ends(0, "task", "b")


PATTERNS = ["*.txt", "a*", "b.txt", "[ab].txt", "c*.txt", "?.txt", "d.txt"]


def test_no_overlap_runs_side_by_side_whatever_the_plan() -> None:
    """A plan drawn anew each time, in both runners; a failure shows what it was drawn from."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("drawn from", seed)
    draw = random.Random(seed)
    names = ["a", "b", "c", "d", "e"]
    tasks: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        owns = draw.sample(PATTERNS, draw.randrange(3))
        depends = (
            {"depends_on": [draw.choice(names[:number])]} if draw.random() < number / 8 else {}
        )
        made = owner(name, *owns, **depends, agent={"allow_no_change": True})
        tasks.append(made | {"prompt": "sleep 0.1; " + WORK})
    draw.shuffle(tasks)
    lists = [row.get("owns", []) for row in tasks]
    meetings = Meetings(lists).all() or []
    apart = {tuple(sorted((tasks[m.a]["name"], tasks[m.b]["name"]))) for m in meetings}
    with worlds() as runners:
        for runner in runners:
            runner.plan(*tasks, max_parallel=8)
            ran = runner.run()
            assert ran.code in (0, 1), ran.err
            assert not beside(runner) & apart
