"""Merging: what refuses it, what is built, which ones make it red, all or nothing."""

from __future__ import annotations

import json
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.integrating import Search
from merge_world import (
    ENTRIES,
    INTEGRATE,
    Changes,
    Merges,
    commit_on,
    link,
    merges,
    on_main,
    write,
)
from world import World

__all__ = ["merges"]
Names = tuple[str, ...]


# --- Which ones make it red -----------------------------------------------------------------


def search(names: Names, causes: list[Names], limit: int = 48) -> tuple[Any, list[Names]]:
    """What is found where these sets are red, and the sets that were asked about."""
    asked: list[Names] = []

    def ends(chosen: Names) -> str:
        asked.append(chosen)
        return "red" if any(set(cause) <= set(chosen) for cause in causes) else "green"

    return Search(names, ends, limit).causes(), asked


@pytest.mark.parametrize(
    ("causes", "found", "rest"),
    [
        (["a"], [("a",)], "bcdef"),
        (["f"], [("f",)], "abcde"),
        (["be"], [("b", "e")], "acdf"),
        (["ace"], [("a", "c", "e")], "bdf"),
        (["abcdef"], [tuple("abcdef")], ""),
        (["a", "d"], [("d",), ("a",)], "bcef"),
        (["ab", "ef"], [("e", "f"), ("a", "b")], "cd"),
        (["abc", "e"], [("e",), ("a", "b", "c")], "df"),
        ([""], [], ""),
    ],
)
def test_what_makes_six_red_is_found(causes: list[str], found: list[Names], rest: str) -> None:
    """A pair hidden in six, a triple, two causes, and the branch itself."""
    (sets, green), asked = search(tuple("abcdef"), [tuple(cause) for cause in causes])
    assert [names for names, _ in sets] == found
    assert all(proven for _, proven in sets) or causes == ["abcdef"]
    assert green == tuple(rest)
    assert len(asked) == len(set(asked)) <= 48


@given(
    st.integers(1, 7),
    st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 60),
)
def test_a_smallest_set_is_red_and_what_is_left_is_green(
    size: int, numbers: list[set[int]], limit: int
) -> None:
    names: Names = tuple("abcdefg"[:size])
    causes: list[Names] = [
        tuple(names[n] for n in sorted({n % size for n in cause})) for cause in numbers
    ]

    def is_red(chosen: Names) -> bool:
        return any(set(cause) <= set(chosen) for cause in causes)

    (sets, green), asked = search(names, causes, limit)
    assert len(asked) <= limit
    assert names not in asked
    assert sets
    left = names
    for culprits, proven in sets:
        assert is_red(culprits)
        assert set(culprits) <= set(left)
        if proven:
            smaller = [c for n in range(len(culprits)) for c in combinations(left, n)]
            assert not any(map(is_red, smaller))
        left = tuple(name for name in left if name not in culprits)
    assert green in ((), left)
    assert not is_red(green)


@given(st.integers(1, 5), st.data())
def test_whatever_the_checks_say_the_search_ends(size: int, data: st.DataObject) -> None:
    """Flaky checks, and sets that cannot be built: nothing is claimed that was not seen."""
    names = tuple("abcde"[:size])
    answers: dict[Names, str] = {}

    def ends(chosen: Names) -> str:
        assert chosen not in answers
        answers[chosen] = data.draw(st.sampled_from(["red", "green", "conflict"]))
        return answers[chosen]

    sets, green = Search(names, ends, 48).causes()
    assert all(culprits == names or answers[culprits] == "red" for culprits, _ in sets)
    assert not green or answers[green] == "green"


# --- Refusals -------------------------------------------------------------------------------


def amend(merges: Merges, name: str) -> None:
    merges.git("commit", "-q", "--amend", "-m", "other words", cwd=merges.world.tree(name))


def commit_again(merges: Merges, name: str) -> None:
    write(merges.world.tree(name), {"b": "1\n"})
    merges.world.commit("more", merges.world.tree(name))


def rebase(merges: Merges, name: str) -> None:
    merges.git("rebase", "-q", "main", cwd=merges.world.tree(name))


def merge_main(merges: Merges, name: str) -> None:
    merges.git("merge", "-q", "--no-edit", "main", cwd=merges.world.tree(name))


def edit(merges: Merges, name: str) -> None:
    write(merges.world.tree(name), {name: "2\n", "untracked": "1\n"})


def stage(merges: Merges, name: str) -> None:
    write(merges.world.tree(name), {name: "2\n"})
    merges.git("add", name, cwd=merges.world.tree(name))


def reject(merges: Merges, name: str) -> None:
    merges.ok("reject", name, "--reason", "no tests")


def change_entry(merges: Merges, name: str) -> None:
    write(merges.world.tree(name), {f"{ENTRIES}/{name}.md": "- Other words.\n"})


def drop_entry(merges: Merges, name: str) -> None:
    (merges.world.tree(name) / ENTRIES / f"{name}.md").unlink()
    merges.approve(name)


def switch(merges: Merges, name: str) -> None:
    merges.git("checkout", "-q", "--detach", cwd=merges.world.tree(name))


def delete(merges: Merges, name: str) -> None:
    switch(merges, name)
    merges.git("branch", "-q", "-D", name)


def stand_in(merges: Merges, name: str) -> None:
    """Put another branch in the place of the one that was approved."""
    merges.git("branch", "-q", "stranger", name)
    merges.git("symbolic-ref", f"refs/heads/{name}", "refs/heads/stranger")


REFUSALS = {
    amend: ("approval-void", "approved was"),
    commit_again: ("approval-void", "approved was"),
    rebase: ("approval-void", "approved was"),
    merge_main: ("approval-void", "approved was"),
    edit: ("not-committed", "2 files are not committed: edit, untracked"),
    stage: ("not-committed", "stage"),
    reject: ("rejected", "no tests"),
    change_entry: ("approval-void", "changelog"),
    drop_entry: ("no-changelog-entry", ""),
    switch: ("worktree-mismatch", "no branch"),
    delete: ("branch-missing", "delete"),
    stand_in: ("branch-replaced", "stranger"),
}


def test_what_changed_since_the_approval_refuses_the_merge(merges: Merges) -> None:
    """Exit 3 before anything is begun: I14, I16, and every other way in which it is void."""
    names = [change.__name__ for change in REFUSALS]
    for name in names:
        merges.ready(name, {name: "1\n"})
    on_main(merges.world, {"m": "1\n"})
    merges.ready("well", {"z": "1\n"})
    for change in REFUSALS:
        change(merges, change.__name__)
    ran = merges.refused("not-ready", "merge", "well", *names, "--check", "touch /nowhere")
    rows = {row["name"]: row for row in ran.data["blocked"]}
    assert list(rows) == names
    for change, (code, word) in REFUSALS.items():
        assert rows[change.__name__]["code"] == code
        assert word in rows[change.__name__]["why"]
    assert ran.data["merged"] == []
    # One alone gives its own code.
    merges.refused("approval-void", "merge", "well", "amend")
    # The report says the same, and changes nothing either.
    before = merges.everything()
    missing = {row["name"]: row["what"] for row in merges.ok("report")["missing"]}
    assert merges.everything() == before
    assert {name: missing[name] for name in names} == {n: rows[n]["why"] for n in names}


def test_all_that_is_not_ready_is_named_at_once(merges: Merges) -> None:
    merges.work("w1", {"a": "1\n"})
    merges.world.quick("w2")
    write(merges.world.tree("w2"), {"lost": "1\n"})
    merges.ready("w3", {"c": "1\n"})
    merges.work("w4", {"q": "1\n"}, owns=["src/**"])
    ran = merges.refused("not-ready", "merge", "w1", "w2", "w3", "w4")
    rows = {row["name"]: row for row in ran.data["blocked"]}
    assert {name: row["code"] for name, row in rows.items()} == {
        "w1": "unapproved", "w2": "no-commits", "w4": "unapproved",
    }  # fmt: skip
    # I24: not merged because its tip is in main's history.
    assert rows["w2"]["why"] == "nothing committed, 1 dirty files"
    assert rows["w2"]["paths"] == ["lost"]


def test_what_lies_outside_of_its_scope_needs_a_word(merges: Merges) -> None:
    tip = merges.work("w1", {"src/a": "1\n", "other": "1\n"}, owns=["src/**"])
    assert merges.call("approve", "w1", "--commit", tip).code == 3
    allow = ["--allow-out-of-scope", "other", "--reason", "it was broken"]
    merges.ok("approve", "w1", "--commit", tip, *allow)
    # What it owns is looked at again when it is merged.
    path = merges.world.record("w1") / "worker.json"
    worker = json.loads(path.read_text())
    path.write_text(json.dumps({**worker, "owns": ["docs/**"]}))
    ran = merges.refused("out-of-scope", "merge", "w1")
    assert ran.data["blocked"][0]["paths"] == ["src/a"]
    path.write_text(json.dumps(worker))
    assert [row["name"] for row in merges.ok("merge", "w1")["merged"]] == ["w1"]


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        ([], "usage", 2),
        (["w1", "nobody"], "unknown-worker", 2),
        (["w1", "--into", "nothing"], "unknown-branch", 2),
        (["w1", "--into", "alias"], "branch-replaced", 3),
        (["w1", "--into", "w1"], "same-branch", 3),
        (["w1", "--strategy", "octopus"], "usage", 2),
        (["w1", "--check-timeout", "0"], "usage", 2),
        (["w1", "--no-changelog-needed", "w1"], "usage", 2),
        (["w1", "--no-changelog-needed", "w2=reason"], "usage", 2),
        (["w1", "--message-file", "nothing"], "prompt-unreadable", 2),
        (["w1", "--message-file", "/dev/null"], "usage", 2),
    ],
)
def test_what_cannot_be_meant_is_refused(
    merges: Merges, words: list[str], code: str, exit_code: int
) -> None:
    merges.ready("w1", {"a": "1\n"})
    merges.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    merges.refused(code, "merge", *words, exit_code=exit_code)


def test_a_branch_with_merges_is_not_rebased_and_unrelated_work_is_not_merged(
    merges: Merges,
) -> None:
    world = merges.world
    merges.branch("side", {"s": "1\n"})
    commit_on(world, "work", {"a": "1\n"})
    on_main(world, {"m": "1\n"})
    tree = world.root / "tree"
    merges.git("worktree", "add", "-q", str(tree), "work")
    merges.git("merge", "-q", "--no-edit", "side", cwd=tree)
    words = ["--branch", "work", "--base", "main"]
    tip = merges.tip("work")
    merges.ok("approve", *words, "--commit", tip)
    merges.refused("merge-commits", "merge", *words, "--strategy", "rebase")
    commit_on(world, "alien", {"z": "1\n", "changelog.d/alien.md": "- Z.\n"}, base="")
    words = ["--branch", "alien", "--base", "main"]
    merges.ok("approve", *words, "--commit", merges.tip("alien"))
    # I18: an error of git's is no conflict.
    for strategy in ("merge", "squash", "rebase", "cherry-pick"):
        data = merges.blocked("cannot-merge", "merge", *words, "--strategy", strategy)
        assert data["blocked"][0]["paths"] == []
        assert "histor" in data["blocked"][0]["why"]


# --- All or nothing -------------------------------------------------------------------------


def test_a_conflict_merges_nothing_and_the_rest_can_be_merged_as_printed(merges: Merges) -> None:
    """I06: nothing half-way; the command for the rest works when pasted."""
    on_main(merges.world, {"f": "1\n", "g": "1\n"})
    merges.ready("w1", {"f": "2\n"})
    merges.ready("w2", {"f": "3\n"})
    merges.ready("w3", {"c": "it's\n"})
    merges.ready("w4", {"g": "2\n"})
    on_main(merges.world, {"g": "3\n"})
    write(merges.repo, {"mine.txt": "mine\n"})
    check = 'test -e README.md && echo "it\'s $HOME"'
    before = merges.tip()
    dry = merges.refused(
        "conflict", "merge", "w1", "w2", "w3", "w4", "--check", check, "--dry-run", exit_code=10
    )
    data = merges.blocked("conflict", "merge", "w1", "w2", "w3", "w4", "--check", check)
    rows = {row["name"]: row for row in data["blocked"]}
    assert set(rows) == {"w2", "w4"} == {row["name"] for row in dry.data["blocked"]}
    assert (rows["w2"]["with"], rows["w2"]["paths"]) == (["w1"], ["f"])
    assert rows["w2"]["why"] == "conflicts with w1: f"
    assert rows["w2"]["kinds"] == ["content"]
    assert rows["w4"]["why"] == "conflicts with the integration branch: g"
    assert data["merged"] == []
    assert data["integration"]["before"] == data["integration"]["after"] == before
    (action,) = [a for a in data["next_actions"] if a["action"] == "merge"]
    paste(merges.world, action["command"])
    assert merges.file("f") == "2"
    assert merges.file("c") == "it's"
    assert merges.git("log", "--format=%s", "--merges", "-2").splitlines() == [
        "Merge w3: work of w3", "Merge w1: work of w1",
    ]  # fmt: skip
    assert (merges.repo / "mine.txt").read_text() == "mine\n"


def paste(world: World, command: str) -> dict[str, Any]:
    """Run a printed command in a shell, from another directory; its data."""
    assert "\n" not in command
    done = subprocess.run(
        ["bash", "-c", command + " --json"], cwd=world.home, env=world.env, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)["data"]


def test_a_pair_that_is_red_together_is_named_and_the_rest_is_merged_as_printed(
    merges: Merges,
) -> None:
    for number in range(1, 5):
        merges.branch(f"w{number}", {f"f{number}": "1\n"})
    words = [w for n in range(1, 5) for w in ("--branch", f"w{n}")]
    # Each is green by itself, and so is each other two.
    check = "! { test -e f2 && test -e f4; }"
    options = ["--check", "true", "--check", check, "--check", "false", "--check-timeout", "50"]
    call = ["merge", *words, "--base", "main", *options]
    data = merges.blocked("check-failed", *call)
    rows = {row["name"]: row for row in data["blocked"]}
    assert set(rows) == {"w2", "w4"}
    assert rows["w2"]["with"] == ["w4"]
    assert rows["w2"]["smallest"] is True
    assert rows["w2"]["command"] == check
    assert rows["w2"]["exit_code"] == 1
    assert "fails together with w4 (exit code 1)" in rows["w2"]["why"]
    # What comes after the first red one is not run.
    assert [(row["command"], row["exit_code"]) for row in data["checks"]] == [
        ("true", 0), (check, 1),
    ]  # fmt: skip
    assert all(Path(row["log"]).is_file() for row in data["checks"])
    assert merges.world.processes() == {}
    (action,) = [a for a in data["next_actions"] if a["action"] == "merge"]
    assert "--branch w1 --branch w3 --base" in action["command"]
    assert "--check-timeout 50" in action["command"]
    data = paste(merges.world, action["command"].replace("--check false", "--check true"))
    assert [row["name"] for row in data["merged"]] == ["w1", "w3"]


def test_each_of_two_causes_is_named(merges: Merges) -> None:
    """The command for the rest would else be red again."""
    for number in range(1, 4):
        merges.branch(f"w{number}", {f"f{number}": "1\n"})
    words = [w for n in range(1, 4) for w in ("--branch", f"w{n}")]
    call = ["merge", *words, "--base", "main", "--check", "! test -e f1 && ! test -e f3"]
    data = merges.blocked("check-failed", *call)
    assert {row["name"]: row["with"] for row in data["blocked"]} == {"w1": [], "w3": []}
    (action,) = [a for a in data["next_actions"] if a["action"] == "merge"]
    assert "--branch w2 --base" in action["command"]
    paste(merges.world, action["command"])


def test_a_branch_that_is_red_by_itself_blames_nobody(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    data = merges.blocked("base-red", "merge", "w1", "--check", "false")
    (row,) = data["blocked"]
    assert (row["name"], row["exit_code"]) == ("main", 1)
    assert [action["action"] for action in data["next_actions"]] == ["read-log"]
    assert Path(row["log"]).is_file()


# --- What is built --------------------------------------------------------------------------


def test_the_published_commit_is_the_one_that_was_checked(merges: Merges) -> None:
    """And the message says what it stands on; hooks and editors have no part in it."""
    world = merges.world
    base = merges.tip()
    head = merges.ready("w1", {"a": "1\n"})
    seen = world.root / "seen"
    data = merges.ok("merge", "w1", "--check", f"git rev-parse HEAD > {seen}; git status --short")
    after = data["integration"]["after"]
    assert seen.read_text().strip() == after == merges.tip() == merges.git("rev-parse", "HEAD")
    assert data["integration"]["before"] == base
    assert data["integration"]["branch"] == "main"
    (row,) = data["merged"]
    (commit,) = row["commits"]
    assert merges.git("rev-parse", f"{commit}^1", f"{commit}^2").split() == [base, head]
    message = merges.git("log", "-1", "--format=%B", commit).splitlines()
    assert message[0] == "Merge w1: work of w1"
    assert message[2:6] == ["Worker: w1", "Branch: w1", f"Base: {base}", f"Head: {head}"]
    assert message[6].startswith("Approved-by: Test at 20")
    assert merges.git("log", "-1", "--format=%s", after) == "Changelog: entries of w1"
    assert "- What w1 made." in merges.file("CHANGELOG.md")
    merges.same_as_head()
    assert data["changelog"]["added"] == ["What w1 made."]
    log = Path(data["checks"][0]["log"])
    assert log.is_absolute()
    assert log.read_text() == ""
    merges.tidy()


@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase", "cherry-pick"])
def test_each_strategy_makes_the_same_files_by_its_own_commits(
    merges: Merges, strategy: str
) -> None:
    world = merges.world
    merges.branch("w1", {"a": "1\n"}, {"a": "2\n", "l": link("a")})
    on_main(world, {"m": "1\n"})
    base = merges.tip()
    message = world.root / "message"
    message.write_text("Words of mine\n\n# not a comment: \u00e9\n")
    call = ["merge", "--branch", "w1", "--base", "main", "--strategy", strategy]
    data = merges.ok(*call, "--message-file", str(message))
    assert data["integration"]["strategy"] == strategy
    assert (merges.file("a"), merges.file("m")) == ("2", "1")
    assert (world.repo / "l").is_symlink()
    commits = data["merged"][0]["commits"]
    own = merges.git("rev-list", "--first-parent", "--reverse", f"{base}..main").split()
    assert commits == own
    body = merges.git("log", "--format=%B", f"{base}..main")
    if strategy in ("merge", "squash"):
        assert len(commits) == 1
        assert body.startswith("Words of mine\n\n# not a comment: \u00e9\n")
        assert f"Head: {merges.tip('w1')}" in body
    else:
        assert len(commits) == 2
        lines = merges.git("log", "--reverse", "--format=%s %an %at", f"{base}..main").splitlines()
        assert lines == ["w1 1 Test 1700000000", "w1 2 Test 1700000001"]
        assert ("cherry picked from commit" in body) is (strategy == "cherry-pick")
    parents = merges.git("log", "-1", "--format=%P", "main").split()
    assert len(parents) == (2 if strategy == "merge" else 1)
    # It is known as merged, whatever the strategy.
    data = merges.ok(*call)
    assert data["already_merged"] == ["w1"]
    assert data["integration"] is None


def test_who_needs_no_changelog_entry_says_why_and_the_report_too(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"}, entry=False)
    merges.refused("no-changelog-entry", "merge", "w1")
    reason = "w1=internal only, a=b"
    data = merges.ok("merge", "w1", "--no-changelog-needed", reason)
    assert data["changelog"]["not_needed"] == {"w1": "internal only, a=b"}
    assert merges.ok("report")["not_needed"] == {"w1": "internal only, a=b"}
    assert "`w1`: internal only, a=b" in merges.call("report", as_json=False).out


def test_an_entry_written_after_the_approval_is_taken_and_told_of(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"}, entry=False)
    write(merges.world.tree("w1"), {f"{ENTRIES}/w1.md": "- Late.\n"})
    data = merges.ok("merge", "w1")
    assert data["notes"] == ["written after the approval: the changelog entry of w1"]


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    before = merges.everything()
    flag = merges.world.root / "flag"
    data = merges.ok("merge", "w1", "--check", f"touch {flag}", "--dry-run")
    assert [row["name"] for row in data["merged"]] == ["w1"]
    assert data["would_check"] == [f"touch {flag}"]
    assert data["changelog"]["added"] == ["What w1 made."]
    assert merges.everything() == before
    assert not flag.exists()
    text = merges.call("merge", "w1", "--dry-run", as_json=False).out
    assert text.splitlines() == [
        "would merge into main: w1", "would add to the changelog: What w1 made.",
    ]  # fmt: skip
    assert merges.everything() == before


# --- The branch moves meanwhile -------------------------------------------------------------


def mover(world: World, name: str, times: int) -> str:
    """A check that commits on main, so many times at most."""
    script = world.root / "bin" / "mover"
    script.write_text(
        "#!/bin/sh\nn=$(cat $WORLD/n 2>/dev/null || echo 0)\necho $((n + 1)) > $WORLD/n\n"
        f"[ $n -lt {times} ] || exit 0\n"
        "tree=$(git rev-parse main^{tree})\n"
        "new=$(git commit-tree -p main -m moved $tree)\n"
        "git update-ref refs/heads/main $new\n"
    )
    script.chmod(0o755)
    return str(script)


def test_a_branch_that_moved_is_built_upon_and_checked_again(merges: Merges) -> None:
    head = merges.ready("w1", {"a": "1\n"})
    check = mover(merges.world, "w1", 1)
    data = merges.ok("merge", "w1", "--check", check)
    assert data["notes"] == ["the branch moved meanwhile: built and checked again"]
    assert (merges.world.root / "n").read_text() == "2\n"
    moved = merges.git("rev-list", "--grep=^moved$", "main").split()
    assert [data["integration"]["before"]] == moved
    assert head in merges.git("rev-list", "main").split()
    merges.same_as_head()


def test_a_branch_that_never_rests_is_reported(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    ran = merges.ends(10, "merge", "w1", "--check", mover(merges.world, "w1", 99))
    assert ran.error["code"] == "branch-moves"
    assert (merges.world.root / "n").read_text() == "3\n"
    # All that is new are the commits of the check.
    subjects = merges.git("log", "--format=%s", "main").split("\n")
    assert subjects == ["moved", "moved", "moved", "first"]
    merges.same_as_head()
    merges.tidy()


# --- Two at once, and what was left ---------------------------------------------------------


def test_a_second_merge_is_told_that_one_is_at_work(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    merges.ready("w2", {"b": "1\n"})
    inner = merges.world.root / "inner.json"
    # The check of the first is the second.
    command = f"python3 {INTEGRATE} merge w2 --repo {merges.repo} --json"
    check = f"{command} > {inner}; test $? = 11"
    merges.ok("merge", "w1", "--check", check)
    answer = json.loads(inner.read_text())
    assert answer["error"]["code"] == "busy"
    merges.ok("merge", "w2")


@pytest.mark.parametrize("state", ["building", "publishing"])
def test_what_a_killed_merge_left_is_cleared_and_told(merges: Merges, state: str) -> None:
    world = merges.world
    merges.ready("w1", {"a": "1\n"})
    first = merges.ok("merge", "w1", "--check", "true")["integration"]
    path = merges.repo / ".git/agent-workers/integrations" / first["id"] / "integration.json"
    record = json.loads(path.read_text())
    tree = world.root / "repo.worktrees" / f"integration-{first['id']}-1"
    merges.git("worktree", "add", "-q", "--detach", str(tree), "HEAD")
    write(tree, {"left": "1\n"})
    left = {**record, "state": state, "tree": str(tree), "ended_at": ""}
    path.write_text(json.dumps(left))
    assert first["id"] in merges.ok("report")["unfinished"]
    assert tree.exists()
    merges.ready("w2", {"b": "1\n"})
    data = merges.ok("merge", "w2")
    assert len(data["notes"]) == 1
    assert f"the integration {first['id']} was interrupted" in data["notes"][0]
    found = json.loads(path.read_text())
    # What had been published is so, whatever the record said last.
    assert found["state"] == ("published" if state == "publishing" else "abandoned")
    merges.tidy()


def test_a_damaged_record_is_named_and_stops_nobody(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    folder = merges.repo / ".git/agent-workers/integrations/20200101T000000Z-abc"
    folder.mkdir(parents=True)
    (folder / "integration.json").write_text("{")
    data = merges.ok("merge", "w1")
    assert str(folder) in data["notes"][0]
    assert (folder / "integration.json").read_text() == "{"
    assert str(folder) in merges.ok("report")["damaged"][0]


def test_a_worker_told_of_its_integration(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    identity = merges.ok("merge", "w1")["integration"]["id"]
    events = [
        json.loads(line)
        for line in (merges.world.record("w1") / "events.jsonl").read_text().splitlines()
    ]
    assert events[-1]["event"] == "integrated"
    assert events[-1]["data"]["integration"] == identity


# --- Fragments ------------------------------------------------------------------------------

TOWNCRIER = '[tool.towncrier]\ndirectory = "docs/news"\nfilename = "NEWS.md"\n'


def test_a_new_fragment_of_its_own_is_in_the_scope_of_every_worker(merges: Merges) -> None:
    """Its contract asks for it, wherever the repository keeps them."""
    on_main(merges.world, {"towncrier.toml": TOWNCRIER, "docs/news/+old.feature.md": "Old.\n"})
    fragment = {"docs/news/+w1.feature.md": "What w1 made.\n"}
    tip = merges.work("w1", {"src/a": "1\n", **fragment}, entry=False, owns=["src/**"])
    found = merges.ok("review", "w1")
    assert not [flag for flag in found["flags"] if flag["code"] == "out-of-scope"]
    assert (found["changelog"]["missing"], found["changelog"]["paths"]) == (False, [*fragment])
    assert merges.ok("forecast", "w1")["out_of_scope"] == []
    merges.ok("approve", "w1", "--commit", tip)
    assert merges.ok("status", "w1")["missing"][0]["what"] == "approved, not merged yet"
    merges.ok("merge", "w1")
    assert merges.file("docs/news/+w1.feature.md") == "What w1 made."


@pytest.mark.parametrize(
    "changes",
    [
        {"docs/news/+old.feature.md": "Mine.\n"},
        {"docs/news/+old.feature.md": None},
        {"docs/news/+w2.feature.md": "What w2 made.\n"},
        {"docs/news/deep/+w1.feature.md": "Mine.\n"},
        {"docs/news/README.md": "Mine.\n"},
        {"docs/+w1.feature.md": "Mine.\n"},
    ],
)
def test_what_is_no_new_fragment_of_its_own_is_out_of_scope(
    merges: Merges, changes: Changes
) -> None:
    on_main(merges.world, {"towncrier.toml": TOWNCRIER, "docs/news/+old.feature.md": "Old.\n"})
    merges.work("w2", {"b": "1\n"})
    tip = merges.work("w1", {"src/a": "1\n", **changes}, owns=["src/**"])
    ran = merges.refused("out-of-scope", "approve", "w1", "--commit", tip)
    assert ran.data["paths"] == [*changes]


def test_a_fragment_is_collected_as_what_a_worker_owns(merges: Merges) -> None:
    on_main(merges.world, {".changeset/config.json": "{}\n", "package.json": '{"name": "p"}\n'})
    merges.work("w1", {"src/a": "1\n"}, owns=["src/**"])
    entry = '---\n"p": patch\n---\n\nWhat w1 made.\n'
    write(merges.world.tree("w1"), {".changeset/w1.md": entry, "loose": "1\n"})
    data = merges.ok("collect", "w1")
    assert data["paths"] == [".changeset/w1.md"]
    assert data["left_because"] == {"loose": "out-of-scope"}
    # Edited once more it still is new to the branch that the work goes to.
    write(merges.world.tree("w1"), {".changeset/w1.md": entry + "More.\n"})
    assert merges.ok("collect", "w1")["paths"] == [".changeset/w1.md"]
