"""Reports: what is merged, what is not and why, and the exact commands that come next."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from merge_world import Merges, commit_on, link, merges, on_main, write

__all__ = ["merges"]


BOOK = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Old\n"


def commands(answer: dict[str, Any]) -> dict[str, str]:
    """The next commands by their action."""
    return {row["action"]: row["command"] for row in answer["next_actions"]}


def test_a_report_foresees_what_will_conflict(merges: Merges) -> None:
    """Two that meet are no one merge; what meets its branch is blocked; entries never are."""
    on_main(merges.world, {"f": "1\n", "CHANGELOG.md": BOOK})
    for name, text in (("left", "2\n"), ("right", "3\n")):
        merges.ready(name, {"f": text, "CHANGELOG.md": BOOK + f"- {name}\n"})
    merges.ready("apart", {"x": "1\n", "CHANGELOG.md": BOOK + "- apart\n"})
    ran = merges.ends(0, "report")
    assert ran.data["blocked"] == []
    decide, merge = ran.json["next_actions"]
    assert "left and right conflict in f" in decide["why"]
    assert " merge apart " in f"{merge['command']} "
    merges.ok("merge", "left", "apart")
    ran = merges.ends(0, "report")
    (row,) = ran.data["blocked"]
    assert (row["name"], row["code"], row["paths"], row["with"]) == (
        "right", "conflict", ["f"], ["main"],
    )  # fmt: skip
    (action,) = ran.json["next_actions"]
    assert "`agent_workers.py send`" in action["why"]
    ran = merges.call("merge", "right")
    assert ran.code == 10
    assert "`agent_workers.py send`" in ran.json["next_actions"][-1]["why"]


def test_a_rejection_is_told_before_all_else(merges: Merges) -> None:
    merges.world.idle("empty")
    merges.ok("reject", "empty", "--reason", "it did nothing")
    assert merges.ok("forecast", "empty")["without_commits"] == ["empty"]
    (row,) = merges.ok("report")["blocked"]
    assert (row["code"], row["why"]) == ("rejected", "rejected: it did nothing")


def test_nothing_waits_when_all_is_cleaned_up(merges: Merges) -> None:
    merges.ready("w", {"a": "1\n"})
    merges.ok("merge", "w")
    assert "- state: all work is merged\n" in merges.call("report", as_json=False).out
    merges.world.ok("cleanup", "w")
    text = merges.call("report", as_json=False).out
    assert "- state: nothing is waiting to be merged\n" in text


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


# --- Undoing --------------------------------------------------------------------------------


def integrate(merges: Merges, name: str, *more: str, **files: str) -> dict[str, Any]:
    """Merge a plain branch with these files; the integration."""
    merges.branch(name, dict(files))
    words = ["--branch", name, "--base", merges.git("rev-parse", "main")]
    return merges.ok("merge", *words, *more)["integration"]


def approvals(merges: Merges) -> dict[str, bytes]:
    """Every recorded review."""
    home = merges.repo / ".git" / "agent-workers"
    return {str(path): path.read_bytes() for path in home.rglob("reviews/*.json")}


def test_the_branch_moves_back_when_nothing_came_after(merges: Merges) -> None:
    """Branches, approvals and edits are as before the merge, and it can be merged again."""
    on_main(merges.world, {"a": "1\n", "gone": "1\n"})
    head = merges.ready("w1", {"a": "2\n", "gone": None, "new": "1\n", "l": link("a")})
    write(merges.repo, {"mine": "1\n", "README.md": "edited\n"})
    before, reviews = merges.world.snapshot(), approvals(merges)
    made = merges.ok("merge", "w1", "--check", "true")["integration"]
    assert merges.world.snapshot() != before
    dry = merges.ok("undo", "--dry-run")
    assert (dry["moved_back"], dry["integration"]["undoes"]) == (True, made["id"])
    assert merges.tip() == made["after"]
    data = merges.ok("undo")
    assert data["integration"]["undoes"] == made["id"]
    assert data["integration"]["before"] == made["after"]
    assert data["integration"]["after"] == made["before"]
    assert (data["moved_back"], data["reverts"]) == (True, [])
    # What the branch no longer names stays findable.
    kept = f"refs/agent-workers/undone/{made['id']}"
    assert merges.git("rev-parse", kept) == made["after"]
    merges.git("update-ref", "-d", kept)
    assert merges.world.snapshot() == before
    assert approvals(merges) == reviews
    assert merges.tip("w1") == head
    rows = {row["id"]: row for row in merges.ok("status")["integrations"]}
    assert rows[made["id"]]["state"] == "undone"
    assert rows[data["integration"]["id"]]["undoes"] == made["id"]
    assert [r["name"] for r in merges.ok("report")["missing"]] == ["w1"]
    # By hand it may be merged as well.
    merges.git("merge", "-q", "--no-edit", "w1")
    assert merges.ok("report")["missing"] == []
    merges.git("reset", "-q", "--keep", "HEAD^")
    again = merges.ok("merge", "w1")
    assert [row["name"] for row in again["merged"]] == ["w1"]
    assert merges.ok("report")["missing"] == []
    # The first was taken back; the newest that stands is the second.
    assert merges.ok("undo")["integration"]["undoes"] == again["integration"]["id"]


@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase", "cherry-pick"])
def test_what_came_after_stays_and_the_integration_is_reverted(
    merges: Merges, strategy: str
) -> None:
    made = integrate(
        merges, "w1", "--strategy", strategy, "--check", "test ! -e b -o -e a", a="1\n"
    )
    later = on_main(merges.world, {"c": "1\n"})
    write(merges.repo, {"mine": "1\n", "c": "edited\n"})
    reviews = approvals(merges)
    dry = merges.ok("undo", made["id"], "--dry-run")
    assert (dry["moved_back"], len(dry["reverts"])) == (False, 1)
    assert merges.tip() == later
    data = merges.ok("undo", made["id"])
    assert data["moved_back"] is False
    (revert,) = data["reverts"]
    assert merges.git("rev-parse", "main^") == later
    assert merges.tip() == revert
    # The checks of the integration ran on it.
    assert [row["exit_code"] for row in data["checks"]] == [0]
    body = merges.git("log", "-1", "--format=%B")
    assert body.startswith('Revert "')
    assert f"Integration: {made['id']}" in body
    assert not (merges.repo / "a").exists()
    assert (merges.repo / "c").read_text() == "edited\n"
    assert merges.git("status", "--porcelain") == " M c\n?? mine"
    assert approvals(merges) == reviews
    merges.tidy()
    assert merges.ends(3, "undo", made["id"]).error["code"] == "already-undone"
    # Merged again: by new commits, where git believes that it has the old ones.
    words = ["--branch", "w1", "--base", made["before"]]
    if strategy == "merge":
        ran = merges.ends(3, "merge", *words)
        assert ran.error["code"] == "taken-back"
        assert "--strategy cherry-pick" in ran.data["blocked"][0]["why"]
        strategy = "cherry-pick"
    merges.ok("merge", *words, "--strategy", strategy)
    assert merges.file("a") == "1"
    report = merges.ok("report", *words)
    assert [row["name"] for row in report["complete"]] == ["w1"]


def test_several_workers_are_reverted_in_one_go_the_last_first(merges: Merges) -> None:
    merges.branch("w1", {"f": "1\n"})
    merges.branch("w2", {"f": "1\n", "g": "1\n"}, {"f": "2\n"}, base="w1")
    base = merges.git("rev-parse", "main")
    words = ["--branch", "w1", "--branch", "w2", "--base", base]
    merges.ok("approve", "--branch", "w2", "--base", base, "--commit", merges.tip("w2"))
    made = merges.ok("merge", *words)["integration"]
    tree = merges.git("rev-parse", f"{made['before']}^{{tree}}")
    on_main(merges.world, {"later": "1\n"})
    data = merges.ok("undo")
    assert len(data["reverts"]) == 2
    merges.git("rm", "-q", "later")
    assert merges.git("write-tree") == tree


def test_what_was_fetched_by_others_is_not_taken_from_the_history(merges: Merges) -> None:
    """The branch does not move back behind what a remote has."""
    made = integrate(merges, "w1", a="1\n")
    merges.git("update-ref", "refs/remotes/origin/main", made["after"])
    data = merges.ok("undo")
    assert data["moved_back"] is False
    assert merges.git("rev-parse", "main^") == made["after"]


def test_later_changes_in_the_same_place_block_it(merges: Merges) -> None:
    made = integrate(merges, "w1", a="1\n")
    on_main(merges.world, {"a": "2\n"})
    for more in (["--dry-run"], []):
        before = merges.world.snapshot()
        ran = merges.ends(10, "undo", made["id"], *more)
        assert merges.world.snapshot() == before
        assert ran.error["code"] == "conflict"
        assert ran.data["blocked"][0]["paths"] == ["a"]
    # What was taken back by hand needs nothing.
    on_main(merges.world, {"a": None, "changelog.d/w1.md": None})
    assert merges.ends(3, "undo", made["id"]).error["code"] == "nothing-to-undo"


def test_a_result_that_would_be_red_is_not_published(merges: Merges) -> None:
    made = integrate(merges, "w1", "--check", "test ! -e later -o -e a", a="1\n")
    on_main(merges.world, {"later": "1\n"})
    before = merges.world.snapshot()
    ran = merges.ends(10, "undo")
    assert ran.error["code"] == "check-failed"
    (row,) = ran.data["checks"]
    assert (row["command"], row["exit_code"]) == ("test ! -e later -o -e a", 1)
    assert Path(row["log"]).is_file()
    assert merges.world.snapshot() == before
    merges.tidy()
    rows = {row["id"]: row["state"] for row in merges.ok("status")["integrations"]}
    assert rows[made["id"]] == "published"


@pytest.mark.parametrize("after", [False, True])
def test_edits_in_the_way_are_refused_by_name(merges: Merges, after: bool) -> None:
    on_main(merges.world, {"a": "1\n"})
    integrate(merges, "w1", a="2\n")
    if after:
        on_main(merges.world, {"later": "1\n"})
    write(merges.repo, {"a": "mine\n", "README.md": "mine too\n"})
    before = merges.world.snapshot()
    ran = merges.ends(3, "undo")
    assert ran.error["code"] == "local-edits"
    assert ran.data["local_edits"] == [{"code": "modified", "paths": ["a"]}]
    assert merges.world.snapshot() == before


def test_what_cannot_be_undone_is_said(merges: Merges) -> None:
    merges.refused("nothing-to-undo", "undo")
    for word in ("nonsense", "../../x", "20200101T000000Z-abcdef"):
        merges.refused("unknown-integration", "undo", word, exit_code=2)
    merges.branch("w1", {"a": "1\n"})
    failed = merges.ends(10, "merge", "--branch", "w1", "--base", "main", "--check", "false")
    merges.refused("nothing-to-undo", "undo", failed.data["integration"]["id"])
    made = integrate(merges, "w2", b="1\n")
    # Somebody moved the branch by other means.
    merges.git("reset", "-q", "--hard", made["before"])
    merges.refused("not-in-branch", "undo", made["id"])
    merges.git("branch", "-q", "-m", "main", "other")
    ran = merges.ends(1, "undo", made["id"])
    assert "refs/heads/main is no longer there" in ran.error["message"]


def test_a_branch_that_moves_during_the_checks_is_left(merges: Merges) -> None:
    check = (
        "test -e a || git update-ref refs/heads/main "
        "$(git commit-tree -p main -m moved main^{tree})"
    )
    integrate(merges, "w1", "--check", check, a="1\n")
    on_main(merges.world, {"later": "1\n"})
    ran = merges.ends(11, "undo")
    assert ran.error["code"] == "branch-moved"
    assert merges.git("log", "-1", "--format=%s", "main") == "moved"
    assert merges.file("a") == "1"
    merges.same_as_head()
    merges.tidy()


def test_an_integration_into_a_branch_that_nothing_has_checked_out(merges: Merges) -> None:
    merges.git("branch", "dev")
    merges.branch("w1", {"a": "1\n"})
    words = ["merge", "--branch", "w1", "--base", "main", "--into", "dev"]
    made = merges.ok(*words)["integration"]
    assert made["branch"] == "dev"
    assert merges.tip("main") == made["before"]
    files = merges.world.snapshot()["files"]
    merges.ok("undo", made["id"])
    assert merges.tip("dev") == made["before"]
    assert merges.world.snapshot()["files"] == files


def test_where_a_record_is_damaged_only_a_named_one_is_taken_back(merges: Merges) -> None:
    """The newest may be the damaged one; an older one is nothing that was asked for."""
    merges.ready("w1", {"one": "1\n"})
    first = merges.ok("merge", "w1")["integration"]["id"]
    merges.ready("w2", {"two": "2\n"})
    newest = merges.ok("merge", "w2")["integration"]["id"]
    record = merges.repo / ".git/agent-workers/integrations" / newest / "integration.json"
    record.write_text("nonsense\n")
    ran = merges.refused("record-damaged", "undo", exit_code=1)
    assert newest in ran.error["message"]
    assert any(newest in line for line in merges.ok("status")["damaged"])
    assert newest in merges.call("status", as_json=False).out
    # By its name it is looked at: what came later in the same file is in its way.
    assert merges.call("undo", first).error["code"] == "conflict"
