"""What a gate and a task can come to: right in both languages, and recorded the same."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from runner_world import CHANGE, COMMIT, Runner, statuses, task
from test_runners import nothing_was_made
from test_runners_alike import BOOM, demand_the_same, pair, run_both
from world import Ran

__all__ = ["pair"]

# Each runs a long plan, or several, twice.
pytestmark = pytest.mark.timeout(300)

# --- The gate -------------------------------------------------------------------------------

DUMP = {"name": "dump", "run": "true"}
GATES: dict[str, tuple[dict[str, Any], str, list[str], str]] = {
    "a failing preflight": ({"preflight": ["true", "exit 7", "true"]}, "preflight",
                            ["passed", "failed", "not-started"], "7"),
    "a list that fails": ({"preflight": [["false"], "true"]}, "preflight",
                          ["failed", "not-started"], ""),
    "a program that is not there": ({"preflight": [["no-such-program-x"]]}, "preflight",
                                    ["failed"], ""),
    "a preflight that a signal ends": ({"preflight": ["kill -KILL $$"]}, "preflight",
                                       ["failed"], ""),
    "a preflight that takes too long": (
        {"preflight": [{"run": "sleep 30", "timeout_seconds": 0.3}]}, "preflight",
        ["timed-out"], ""),
    "a condition that cannot be decided": (
        {"preflight": [{"run": "true", "when": "no_such_program_x"}]}, "preflight",
        ["failed"], "could not be decided"),
    "a condition that takes too long": (
        {"preflight": [{"run": "true",
                        "when": {"not": {"run": ["sleep", "30"], "timeout_seconds": 0.3}}}]},
        "preflight", ["failed"], "could not be decided"),
    "a path that a failing command makes": (
        {"backups": ['where=$(false) && cp README.md "$where"', "true"]}, "backups",
        ["failed", "not-started"], ""),
    "a failing backup": ({"backups": ["true", "exit 3", "true"]}, "backups",
                         ["passed", "failed", "not-started"], "3"),
    "a backup that takes too long": (
        {"backups": [{"run": "sleep 30", "timeout_seconds": 0.3}, "true"]}, "backups",
        ["timed-out", "not-started"], ""),
    "no artifact": ({"backups": [{**DUMP, "artifact": "out/a"}]}, "backups", ["failed"],
                    "out/a"),
    "an empty artifact": ({"backups": [{**DUMP, "run": ": > empty", "artifact": "empty"}]},
                          "backups", ["failed"], "empty"),
    "an old artifact": ({"backups": [{**DUMP, "artifact": "README.md"}]}, "backups",
                        ["failed"], "README.md"),
    "a folder as artifact": ({"backups": [{**DUMP, "run": "mkdir -p d/e", "artifact": "d"}]},
                             "backups", ["failed"], ""),
    "a folder that was there": ({"backups": [{**DUMP, "artifact": "."}]}, "backups", ["failed"],
                                ""),
    "a check of what is good": (
        {"backups": [{"name": "b", "run": "echo x > {RUN_DIR}/b", "artifact": "{RUN_DIR}/b",
                      "check": "exit 5"}]}, "backups", ["failed"], "5"),
    "a check that fails": ({"backups": [{**DUMP, "check": ["false"]}]}, "backups", ["failed"],
                           "check"),
    "a check that takes too long": (
        {"backups": [{**DUMP, "check": {"run": "sleep 30", "timeout_seconds": 0.3}}]},
        "backups", ["failed"], "check"),
    "items from a command that fails": (
        {"tasks": [task("t", for_each={"run": "echo a; exit 4"})]}, "preflight", [], "4"),
    "items from a file that is not there": (
        {"tasks": [task("t", for_each={"file": "gone.txt"})]}, "preflight", [], "gone.txt"),
    "items that make no branch": (
        {"tasks": [task("t-{item}", branch="x/{V}/{item}", for_each={"run": "echo a"})],
         "variables": {"V": ".."}}, "preflight", [], ".."),
}  # fmt: skip
# The Python runner says besides why it cannot be read: the records differ by that.
UNLIKE = "items from a file that is not there"
PARTS = {name: n % 6 for n, name in enumerate(GATES) if name != UNLIKE}


@pytest.mark.parametrize("part", range(6))
def test_a_gate_that_fails_stops_before_any_worktree_exists(pair: list[Runner], part: int) -> None:
    """Exit 3, later steps not started, the reason told, nothing made; no rollback is offered."""
    for each in pair:
        (each.repo / "README.md").write_text("old\n")
        os.utime(each.repo / "README.md", (1_000_000_000, 1_000_000_000))
    for what in [name for name, number in PARTS.items() if number == part]:
        runs = run_gates(pair, what)
        demand_the_same(pair, runs)


def test_a_gate_whose_items_cannot_be_read(pair: list[Runner]) -> None:
    run_gates(pair, UNLIKE)


def run_gates(pair: list[Runner], what: str) -> list[Ran]:
    """Run one of GATES in both languages, demand what holds of each; how they ended."""
    for each in pair:
        each.run_id = re.sub("[^a-z]+", "-", what)
        each.plan(
            **{"tasks": [task("one"), task("two", depends_on=["one"])],
               "postflight": ["true"], "rollback": ["true"], **GATES[what][0]}
        )  # fmt: skip
    runs = run_both(pair)
    for each, ran in zip(pair, runs, strict=True):
        demand_refused_gate(each, ran, what)
    return runs


def demand_refused_gate(runner: Runner, ran: Ran, what: str) -> None:
    """What holds of each of GATES."""
    _, phase, words, reason = GATES[what]
    assert ran.code == 3, (what, ran.err)
    manifest, gate = runner.manifest, runner.json("gate.json")
    assert (manifest["status"], manifest["exit_code"]) == ("gate-refused", 3), what
    assert gate["status"] == "gate-refused", what
    assert statuses(manifest[phase]) == words, (what, manifest[phase])
    if phase == "preflight" and words:
        assert all(step["status"] == "not-started" for step in manifest["backups"]), what
    said = f"{gate['reason']} {[s.get('reason') for s in manifest[phase]]}"
    assert reason in said, (what, said)
    assert gate["reason"] in ran.err, what
    assert set(runner.statuses().values()) <= {"not-started"}, what
    assert statuses(manifest["postflight"]) == ["not-started"] * len(manifest["postflight"])
    assert not runner.folder.joinpath("rollback.sh").exists(), what
    nothing_was_made(runner)


def test_conditions_of_backups_and_tasks(pair: list[Runner]) -> None:
    """Every kind of condition; `backup_passed` is false for a backup that was skipped."""
    for each in pair:
        each.plan(
            task("taken", when={"backup_passed": "taken"}),
            task("left", when={"backup_passed": "left"}),
            task("set", when={"env": "SET"}),
            task("empty", when={"env": "EMPTY"}),
            task("equal", when={"env": {"SET": BOOM, "EMPTY": ""}}),
            task("unequal", when={"env": {"SET": BOOM[:-1]}}),
            task("there", when={"path_exists": "README.md"}),
            task("gone", when={"path_exists": "gone/x"}),
            task("string", when="test -f README.md"),
            task("list", when=["test", "-f", "gone"]),
            task("not", when={"not": "exit 2"}),
            task("all", when={"all": [{"env": "SET"}, {"not": {"path_exists": "gone"}}]}),
            task("any", when={"any": [{"env": "EMPTY"}, "exit 1"]}),
            task("any-too", when={"any": [{"env": "UNSET"}, "exit 1", ["true"]]}),
            task("step", verify=[{"run": "exit 1", "when": {"env": "EMPTY"}}, "true"]),
            backups=[{"name": "taken", "run": "true", "when": "exit 0"},
                     {"name": "left", "run": "exit 1", "when": "exit 125"}],
        )  # fmt: skip
    runs = run_both(pair, SET=BOOM, EMPTY="")
    passed = {"taken", "set", "equal", "there", "string", "not", "all", "any-too", "step"}
    for each, ran in zip(pair, runs, strict=True):
        assert ran.code == 0, ran.err
        assert statuses(each.manifest["backups"]) == ["passed", "skipped"]
        rows = each.statuses()
        assert {name for name, word in rows.items() if word == "passed"} == passed
        assert {word for name, word in rows.items() if name not in passed} == {"skipped"}
        assert statuses(each.tasks()["step"]["verify"]) == ["skipped", "passed"]
        assert each.world.branches() == passed | {"main"}, "a skipped task leaves nothing"
        assert not list(each.world.root.rglob("PWN"))
    demand_the_same(pair, runs)


# --- Tasks ----------------------------------------------------------------------------------


def outcomes() -> dict[str, Any]:
    """A plan with every way in which a task can end."""
    quiet = {"allow_no_change": True}
    return {
        "tasks": [
            task("good", COMMIT, verify=["test -f good.txt"]),
            task("fails", CHANGE + "exit 3\n", verify=["true"]),
            task("silent", "echo nothing to do\n", verify=["true"]),
            task("quiet", ":\n", verify=["true"], agent=quiet),
            task("quiet-too", ":\n", verify=["exit 6", "true"], allow_no_change=True),
            task("leaves", CHANGE + "rm README.md\n"),
            task("kept", CHANGE + "rm README.md\n", agent={"commit_leftovers": True}),
            task("strays", "mkdir -p src/d other; echo x > src/d/a; echo x > other/b\n"
                 "git add src && git commit -qm part; echo y > src/.hid\n",
                 owns=["src/**"], verify=["exit 5"]),
            task("renames", "git mv README.md src.md && git commit -qm mv\n", owns=["src.*"]),
            task("untold", COMMIT, changelog="changes/untold.md", verify=["true"]),
            task("told", "mkdir changes; echo told > changes/told.md\n",
                 changelog="changes/told.md", owns=["nothing/**"]),
            task("stale", COMMIT, changelog="README.md"),
            task("empty", COMMIT + "mkdir .worker-runs; : > .worker-runs/e.md\n",
                 changelog=".worker-runs/e.md"),
            task("hidden", COMMIT + "mkdir -p .worker-runs/changelog\n"
                 "echo told > .worker-runs/changelog/hidden.md\n",
                 changelog=".worker-runs/changelog/hidden.md"),
            task("unset", COMMIT, setup=["true", "exit 9", "true"], verify=["true"]),
            task("untested", COMMIT, verify=["true", "exit 4", "true"]),
            task("prepared", ":\n", setup=["echo x > built.txt; echo more >> README.md"]),
            task("prepared-too", "echo more >> built.txt\n", setup=["echo x > built.txt"]),
            task("detached", COMMIT + "git checkout -q --detach\n"),
            task("elsewhere", "git checkout -q -b aside\n" + COMMIT),
            task("rewound", "git reset -q --hard HEAD~1\n" + COMMIT, base="aged"),
            task("rerooted", "git reset -q --soft $(git commit-tree -m root HEAD^{tree})\n"),
            task("moved", "git reset -q --hard main\n", base="aged"),
            task("vanishes", 'rm -rf "$WORKTREE"\n'),
            task("unlinked", CHANGE + "rm .git\n", agent={"commit_leftovers": True}),
            task("killed", CHANGE + "kill -KILL $$\n"),
            task("skipped", COMMIT, when="exit 1"),
            task("undecided", COMMIT, when="exit 127"),
            task("after-skipped", COMMIT, depends_on=["skipped"]),
            task("after-failed", COMMIT, depends_on=["good", "fails"]),
            task("after-after", COMMIT, depends_on=["after-failed"]),
            task("after-silent", COMMIT, depends_on=["silent"]),
            task("after-quiet", COMMIT, depends_on=["quiet", "good"]),
        ],
        "postflight": ["true"],
        "rollback": ["echo 'b'", {"run": ["true"], "when": {"env": "NEVER"}}],
    }  # fmt: skip


OUTCOMES = {
    "good": "passed", "fails": "failed", "silent": "no-change", "quiet": "no-change",
    "quiet-too": "failed", "leaves": "passed", "kept": "passed", "strays": "failed",
    "renames": "failed", "untold": "failed", "told": "passed", "stale": "failed", "empty": "failed",
    "hidden": "passed",
    "unset": "failed", "untested": "failed", "prepared": "no-change", "prepared-too": "passed",
    "detached": "failed", "elsewhere": "failed", "rewound": "failed",
    "rerooted": "failed", "moved": "failed", "vanishes": "failed", "unlinked": "failed",
    "killed": "failed", "skipped": "skipped",
    "undecided": "failed", "after-skipped": "passed", "after-failed": "not-started",
    "after-after": "not-started", "after-silent": "not-started", "after-quiet": "passed",
}  # fmt: skip


def test_every_way_in_which_a_task_can_end(pair: list[Runner]) -> None:
    """C12 (silent): nothing but a change counts. C24: one failure is the failure of the run."""
    for each in pair:
        git = each.world.git
        made = git("commit-tree", "-p", "HEAD", "-m", "aged", "HEAD^{tree}")
        git("branch", "aged", made)
        each.plan(**outcomes())
    runs = run_both(pair)
    for each, ran in zip(pair, runs, strict=True):
        assert ran.code == 1, ran.err
        demand_outcomes(each, ran)
    demand_the_same(pair, runs)


def demand_outcomes(runner: Runner, ran: Ran) -> None:
    """What holds of a run of `outcomes`."""
    assert runner.statuses() == OUTCOMES
    manifest, rows = runner.manifest, runner.tasks()
    assert (manifest["status"], manifest["exit_code"]) == ("failed", 1)
    assert statuses(manifest["postflight"]) == ["not-started"]
    assert runner.folder.joinpath("rollback.sh").exists()
    for name, word in OUTCOMES.items():
        assert re.search(rf"^.*\b{name} .*{word}", ran.out, re.M), (name, ran.out)
        if word in ("failed", "not-started"):
            assert rows[name]["reason"], name

    assert (rows["fails"]["exit_code"], rows["fails"]["uncommitted"]) == (3, ["fails.txt"])
    assert "3" in rows["fails"]["reason"]
    assert statuses(rows["fails"]["verify"]) == ["not-started"]
    assert statuses(rows["silent"]["verify"]) == ["not-started"]
    assert rows["silent"]["files_changed"] == []
    assert statuses(rows["quiet"]["verify"]) == ["passed"]
    assert statuses(rows["quiet-too"]["verify"]) == ["failed", "not-started"]

    base = manifest["base"]
    assert rows["leaves"]["head"] == base
    assert rows["leaves"]["uncommitted"] == ["README.md", "leaves.txt"]
    assert rows["leaves"]["files_changed"] == ["README.md", "leaves.txt"]
    assert rows["kept"]["head"] == runner.world.git("rev-parse", "kept") != base
    assert rows["kept"]["uncommitted"] == []
    assert rows["kept"]["files_changed"] == ["README.md", "kept.txt"]
    subject = runner.world.git("log", "-1", "--format=%s", "kept")
    assert subject == "kept: work that the agent left uncommitted"

    assert rows["strays"]["out_of_scope"] == ["other/b"]
    assert rows["strays"]["files_changed"] == ["other/b", "src/.hid", "src/d/a"]
    assert "owns" in rows["strays"]["reason"] or "other/b" in rows["strays"]["reason"]
    assert statuses(rows["strays"]["verify"]) == ["failed"], "verify runs all the same"
    assert rows["renames"]["out_of_scope"] == ["README.md"], "the old path is a change too"
    assert "changes/untold.md" in rows["untold"]["reason"]
    assert statuses(rows["untold"]["verify"]) == ["passed"]
    assert "README.md" in rows["stale"]["reason"], "it was there before"

    assert statuses(rows["unset"]["setup"]) == ["passed", "failed", "not-started"]
    assert statuses(rows["unset"]["verify"]) == ["not-started"]
    assert (rows["unset"]["agent_started"], rows["unset"]["exit_code"]) == (False, None)
    assert statuses(rows["untested"]["verify"]) == ["passed", "failed", "not-started"]
    assert rows["untested"]["verify"][1]["exit_code"] == 4
    assert rows["prepared-too"]["files_changed"] == ["built.txt"]
    for name in ("detached", "elsewhere"):
        assert "branch" in rows[name]["reason"], name
    for name in ("rewound", "rerooted", "moved"):
        assert "is no longer part of the branch" in rows[name]["reason"], name
        assert statuses(rows[name]["verify"]) == [], name
    assert "could not be decided" in rows["undecided"]["reason"]
    assert "fails" in rows["after-failed"]["reason"]
    assert "after-failed" in rows["after-after"]["reason"]
    assert "silent" in rows["after-silent"]["reason"]
    made = {n for n, word in OUTCOMES.items() if word not in ("skipped", "not-started")}
    assert runner.world.branches() == made - {"undecided"} | {"main", "aside", "aged"}
    names = {event["task"] for event in runner.events()}
    assert names == {*OUTCOMES, None}, "the events of the run name every task"
