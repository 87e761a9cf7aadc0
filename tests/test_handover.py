"""Reports: what is merged, what is not and why, and the exact commands that come next."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from merge_world import Merges, commit_on, merges, on_main, write

__all__ = ["merges"]


def commands(answer: dict[str, Any]) -> dict[str, str]:
    """The next commands by their action."""
    return {row["action"]: row["command"] for row in answer["next_actions"]}


def test_a_report_says_of_each_where_it_stands(merges: Merges) -> None:
    """Original and current branch, accepted work, blockers, complete and missing, checks."""
    world = merges.world
    on_main(world, {"f": "1\n"})
    done = merges.ready("done", {"d": "1\n"})
    merged = merges.ok("merge", "done", "--check", "true")["integration"]
    ready = merges.ready("ready", {"f": "2\n"})
    conflict = merges.ready("clash", {"f": "3\n"})
    merges.work("fresh", {"x": "1\n"})
    late = merges.work("late", {"y": "1\n"})
    merges.approve("late")
    write(world.tree("late"), {"y": "2\n"})
    merges.work("bad", {"z": "1\n"})
    merges.ok("reject", "bad", "--reason", "no tests")
    assert merges.call("merge", "ready", "clash").code == 10
    merges.git("checkout", "-q", "-b", "elsewhere")
    before = merges.everything()
    ran = merges.ends(0, "report")
    assert merges.everything() == before
    data = ran.data
    assert (data["original_branch"], data["current_branch"]) == ("main", "elsewhere")
    assert data["complete"] == [
        {"name": "done", "branch": "done", "head": done, "integration": merged["id"]}
    ]
    assert {row["name"] for row in data["missing"]} == {"ready", "clash", "fresh", "late", "bad"}
    blocked = {row["name"]: row for row in data["blocked"]}
    assert {name: row["code"] for name, row in blocked.items()} == {
        "clash": "conflict", "late": "not-committed", "bad": "rejected",
    }  # fmt: skip
    assert blocked["clash"]["paths"] == ["f"]
    assert blocked["clash"]["with"] == ["ready"]
    assert blocked["late"]["paths"] == ["y"]
    branches = {row["branch"]: (row["head"], row["state"]) for row in data["branches"]}
    assert branches == {
        "done": (done, "merged"), "ready": (ready, "ready"), "clash": (conflict, "blocked"),
        "late": (late, "blocked"),
    }  # fmt: skip
    (check,) = data["checks"]
    assert (check["command"], check["exit_code"], check["passed"]) == ("true", 0, True)
    assert check["integration"] == merged["id"]
    assert Path(check["log"]).is_file()
    actions = ran.json["next_actions"]
    assert data["next_actions"] == actions
    assert [(a["action"], a["command"] is None) for a in actions] == [
        ("decide", True), ("forecast", False), ("review", False), ("collect", False),
        ("merge", False),
    ]  # fmt: skip
    assert " merge ready " in commands(ran.json)["merge"]
    text = merges.call("report", as_json=False).out
    for line in (
        "- original branch: `main`", "- current branch: `elsewhere`",
        "- state: not all work is merged", "## Complete", "## Missing", "## Blockers",
        "- `clash`: conflict: conflicts with ready: f", "## Checks already run", "## Next",
    ):  # fmt: skip
        assert line in text.splitlines(), text
    assert commands(ran.json)["merge"] in text
    # What the report says can be pasted.
    done_again = subprocess.run(
        ["bash", "-c", commands(ran.json)["merge"] + " --json"], cwd="/", env=world.env,
        capture_output=True, check=False,
    )  # fmt: skip
    assert json.loads(done_again.stdout)["data"]["merged"][0]["name"] == "ready"


def test_all_merged_is_good_news_and_a_file_can_hold_it(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    merges.ok("merge", "w1")
    target = merges.world.root / "R E P O R T.md"
    data = merges.ok("report", "--output", str(target))
    assert (data["missing"], data["blocked"], data["next_actions"]) == ([], [], [])
    assert data["output"] == str(target)
    assert "- state: all work is merged" in target.read_text().splitlines()
    assert merges.call("report", as_json=False).out == target.read_text()
    assert merges.ends(4, "report", "--output", "/no/folder/x").error["code"] == "directory-missing"


def test_nothing_at_all_is_no_error(merges: Merges) -> None:
    data = merges.ok("report")
    assert (data["complete"], data["missing"], data["blocked"]) == ([], [], [])
    assert data["original_branch"] == "main"
    assert merges.call("status", as_json=False).out == "nothing yet\n"


def test_red_work_is_reported_with_its_log_until_it_is_tried_anew(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    merges.ready("w2", {"b": "1\n"})
    call = ["merge", "w1", "w2", "--check", "! test -e a"]
    merges.blocked("check-failed", *call)
    ran = merges.ends(0, "report")
    (row,) = ran.data["blocked"]
    assert (row["name"], row["code"], row["command"]) == ("w1", "check-failed", "! test -e a")
    assert row["exit_code"] == 1
    found = commands(ran.json)
    assert found["read-log"] == f"cat {row['log']}"
    assert " merge w2 " in found["merge"]
    assert {r["branch"] for r in ran.data["branches"]} == {"w1", "w2"}
    assert ran.data["checks"][0]["passed"] is False
    assert "FAILED" in merges.call("report", as_json=False).out
    # A new commit is other work: it has to be looked at.
    write(merges.world.tree("w1"), {"a": None, "c": "1\n"})
    merges.world.commit("better", merges.world.tree("w1"))
    assert [r["name"] for r in merges.ok("report")["blocked"]] == []
    merges.approve("w1")
    merges.ok(*call)
    assert merges.ok("report")["missing"] == []


def test_a_branch_that_is_red_by_itself_blocks_all_until_it_moves(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    merges.blocked("base-red", "merge", "w1", "--check", "test -e fixed")
    ran = merges.ends(0, "report")
    (row,) = ran.data["blocked"]
    assert (row["name"], row["code"]) == ("w1", "base-red")
    assert list(commands(ran.json)) == ["read-log"]
    on_main(merges.world, {"fixed": "1\n"})
    assert list(commands(merges.ends(0, "report").json)) == ["merge"]


def test_each_is_looked_at_beside_its_own_branch(merges: Merges) -> None:
    """Workers of two integration branches: merged in one is not merged in the other."""
    merges.git("branch", "dev")
    head = merges.ready("w1", {"a": "1\n"})
    merges.ready("w2", {"b": "1\n"}, integration_branch="refs/heads/dev")
    merges.ok("merge", "w1")
    data = merges.ok("report")
    assert [row["name"] for row in data["complete"]] == ["w1"]
    assert [row["name"] for row in data["missing"]] == ["w2"]
    merges.git("update-ref", "refs/heads/dev", head)
    ran = merges.ends(0, "report", "--into", "dev", "w2")
    assert ran.data["original_branch"] == "dev"
    assert commands(ran.json)["merge"].find("--into dev") > 0
    # Two branches are not one: it has to be said which.
    assert merges.ends(2, "merge", "w1", "w2").error["code"] == "no-integration-branch"


def test_plain_branches_that_were_reviewed_are_in_the_report(merges: Merges) -> None:
    merges.branch("topic/one", {"a": "1\n"})
    commit_on(merges.world, "other", {"b": "1\n"})
    ran = merges.ends(0, "report")
    assert [row["name"] for row in ran.data["missing"]] == ["topic/one"]
    assert "--branch topic/one --base" in commands(ran.json)["merge"]
    words = ["--branch", "topic/one", "--branch", "other", "--base", "main"]
    ran = merges.ends(0, "report", *words)
    assert [row["name"] for row in ran.data["missing"]] == ["topic/one", "other"]
    subprocess.run(
        ["bash", "-c", commands(ran.json)["merge"]], env=merges.world.env, check=True,
        capture_output=True,
    )  # fmt: skip
    assert [row["name"] for row in merges.ok("report")["complete"]] == ["topic/one"]
    merges.git("branch", "-q", "-D", "topic/one")
    (row,) = merges.ok("report")["missing"]
    assert "not there" in row["what"]


def test_status_has_a_line_for_each_and_the_integrations(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    merges.work("w2", {"b": "1\n"})
    made = merges.ok("merge", "w1")["integration"]
    ran = merges.ends(0, "status")
    (row,) = ran.data["integrations"]
    assert (row["id"], row["branch"], row["state"]) == (made["id"], "main", "published")
    assert (row["before"], row["after"], row["names"]) == (made["before"], made["after"], ["w1"])
    lines = merges.call("status", as_json=False).out.splitlines()
    assert lines == ["w1: merged", "w2: nobody has reviewed it", f"{made['id']}: published: w1"]
    merges.ok("undo")
    lines = merges.call("status", as_json=False).out.splitlines()
    assert lines[0] == "w1: approved, not merged yet"
    assert lines[2] == f"{made['id']}: undone: w1"
    assert lines[3].endswith(f": published: takes back {made['id']}")


def test_control_sequences_of_others_do_not_reach_the_terminal(merges: Merges) -> None:
    """A name, a reason and a path may hold anything."""
    merges.work("w1", {"a\x1b[31m": "1\n"})
    merges.ok("reject", "w1", "--reason", "no\x1b]0;title\x07 tests")
    write(merges.world.tree("w1"), {"b\x1b[31m": "1\n"})
    for verb in ("report", "status", "forecast"):
        assert "\x1b" not in merges.call(verb, as_json=False).out


@pytest.mark.parametrize("verb", ["report", "status"])
def test_a_damaged_record_of_one_worker_does_not_hide_the_others(merges: Merges, verb: str) -> None:
    merges.work("w1", {"a": "1\n"})
    merges.work("w2", {"b": "1\n"})
    (merges.world.record("w2") / "worker.json").write_text("{")
    data = merges.ok(verb)
    assert [row["name"] for row in data["missing"]] == ["w1"]
    assert "w2" in data["damaged"][0]
    # Named, it is an error.
    assert merges.ends(1, verb, "w2").error["code"] == "record-damaged"
