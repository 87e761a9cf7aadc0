"""Checks on a combined result: in a tree of their own, with a limit, and nothing left of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanout import checking, integrations, records
from fanout.checking import Check
from merge_world import Merges, link, merges, on_main, program
from runner_world import all_have_ended
from world import World

__all__ = ["merges"]


def run(
    world: World, patch: pytest.MonkeyPatch, *commands: str, timeout: float = 30.0
) -> list[Check]:
    """Run checks on the tip of main; demand that nothing of their tree is left."""
    repo = world.adopt(patch)
    before = world.snapshot()
    # What a check started is known by this id, so no two tests may share one.
    name = integrations.new("refs/heads/main", repo.head, "merge").id
    tree = checking.tree_path(repo, name, 1)
    logs = f"{records.home(repo.common_dir)}/integrations/{name}/checks"
    found = checking.run_checks(
        repo, repo.head, list(commands), tree=tree, logs=logs, timeout=timeout
    )
    assert world.snapshot() == before
    assert not os.path.lexists(tree)
    all_have_ended(world)
    return found


def test_checks_run_in_a_whole_tree_of_the_commit_and_each_has_a_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_main(world, {"x": program("#!/bin/sh\necho $0 ran\n"), "l": link("x"), "d/e": "1\n"})
    (world.repo / "x").write_text("edited\n")
    (world.repo / "loose").write_text("1\n")
    found = run(
        world, monkeypatch, "./x && ./l >&2; ls -A; git status --short --branch; tty; env",
        "! true", "never",
    )  # fmt: skip
    assert [(c.exit_code, c.passed, c.reason) for c in found] == [(0, True, ""), (1, False, "")]
    lines = Path(found[0].log).read_text().splitlines()
    assert lines[:2] == ["./x ran", "./l ran"]
    assert lines[2:7] == [".git", "README.md", "d", "l", "x"]
    assert lines[7:9] == ["## HEAD (no branch)", "not a tty"]
    assert any(line.startswith("AGENT_WORKERS_INTEGRATION=integration-") for line in lines)
    assert [Path(c.log).name for c in found] == ["01.log", "02.log"]
    assert all(Path(c.log).is_absolute() and c.seconds >= 0 for c in found)
    assert found[1].to_json()["passed"] is False
    assert run(world, monkeypatch) == []


def test_a_check_that_does_not_end_is_ended_with_all_that_it_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it put into the background, into another session, and what ignores TERM."""
    script = "setsid sleep 93 & nohup sleep 94 & sh -c 'trap \"\" TERM; sleep 95' & sleep 96"
    (found,) = run(world, monkeypatch, script, timeout=0.5)
    assert (found.exit_code, found.passed, found.reason) == (None, False, "did not end in 0.5 s")


def test_what_a_green_check_left_at_work_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that keeps the log open does not hold anything up."""
    (found,) = run(world, monkeypatch, "sleep 93 & setsid sleep 94 & exit 0")
    assert found.passed
    assert found.seconds < 20


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo more >> README.md", "changed files that are checked in: README.md"),
        ("rm README.md", "README.md"),
        ("chmod +x README.md", "README.md"),
        ("echo more >> README.md; git add README.md", "README.md"),
        ("echo more >> README.md; git update-index --assume-unchanged README.md", "README.md"),
        ("echo more >> README.md; git commit -qam fixed", "it moved HEAD to"),
        ("git checkout -q --orphan other; git commit -qm other", "it moved HEAD to"),
        ("rm -rf .git", "could not be read afterwards"),
        ("cd .. && rm -rf integration-*", "could not be read afterwards"),
    ],
)
def test_a_check_that_changes_what_it_checks_has_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    """What would be published is not what it saw."""
    repo = world.adopt(monkeypatch)
    tree = checking.tree_path(repo, integrations.new("refs/heads/main", repo.head, "merge").id, 1)
    logs = f"{records.home(repo.common_dir)}/logs"
    (found,) = checking.run_checks(repo, repo.head, [command], tree=tree, logs=logs, timeout=30.0)
    assert found.exit_code == 0
    assert not found.passed
    assert words in found.reason
    assert not os.path.lexists(tree)
    assert world.worktrees() == [str(world.repo)]
    assert world.git("rev-parse", "main") == repo.head


def check_work(merges: Merges, command: str) -> tuple[dict[str, Any], str]:
    """The row of one check on the merged work of a worker, and what was said."""
    merges.ready("w1", {"a": "1\n"})
    ran = merges.call("merge", "w1", "--check", command)
    assert ran.code == 10, ran.out
    merges.tidy()
    return ran.data["checks"][0], ran.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo x >>README.md; git stash -q", "it left a stash, which all worktrees share: "),
        ("git tag nightly", "it made refs/tags/nightly"),
        ("git branch kept; exit 3", "it made refs/heads/kept"),
        # As scripts do that put the user's edits aside; here there are none to put aside.
        ("git stash -q; git stash pop -q; git reset -q --hard", "stashes were taken away"),
    ],
)
def test_a_check_that_changes_what_all_worktrees_share_has_failed(
    merges: Merges, command: str, words: str
) -> None:
    (merges.repo / "README.md").write_text("mine\n")
    merges.git("stash")
    mine = merges.git("rev-parse", "refs/stash")
    row, _ = check_work(merges, command)
    assert not row["passed"]
    assert words in row["reason"]
    if "taken away" in words:
        assert mine in row["reason"]
        merges.git("stash", "store", mine)
    assert mine in merges.git("stash", "list", "--format=%H").split()


def test_what_others_stash_and_branch_meanwhile_is_no_fault_of_a_check(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    (merges.repo / "README.md").write_text("mine\n")
    meanwhile = f"git -C {merges.repo} stash -q && git -C {merges.repo} branch theirs"
    (row,) = merges.ok("merge", "w1", "--check", meanwhile)["checks"]
    assert (row["passed"], row["reason"]) == (True, "")


def test_a_process_without_any_mark_is_ended_where_it_works_in_the_tree(merges: Merges) -> None:
    """It emptied its environment, and has a session of its own."""
    merges.ready("w1", {"a": "1\n"})
    away = f"env -i setsid -f {shutil.which('sleep')} 97 >/dev/null 2>&1"
    user = subprocess.Popen(["sleep", "98"], cwd=merges.world.root)
    try:
        assert merges.ok("merge", "w1", "--check", away)["checks"][0]["passed"]
        running = merges.world.processes().values()
        assert not [line for line in running if "sleep 97" in line]
        assert user.poll() is None
    finally:
        user.kill()
        user.wait()


def test_a_tree_for_checks_that_somebody_moved_is_told_of_and_left(merges: Merges) -> None:
    place = merges.world.root / "moved"
    row, said = check_work(merges, f"[ -e {place} ] || git worktree move . {place}")
    assert "could not be read afterwards" in row["reason"]
    assert f"was moved to '{place}'; it is left there" in said
    assert (place / "a").read_text() == "1\n"
    assert str(place) in merges.world.worktrees()


def test_settings_that_the_caller_gives_by_environment_hold_for_checks(merges: Merges) -> None:
    """They say how git works here, such as `safe.directory` in a container, not where."""
    merges.ready("w1", {"a": "1\n"})
    given = {"COUNT": "1", "KEY_0": "alias.told", "VALUE_0": "!echo told"}
    for name, value in given.items():
        merges.patch.setenv(f"GIT_CONFIG_{name}", value)
    (row,) = merges.ok("merge", "w1", "--check", "git told")["checks"]
    assert Path(row["log"]).read_text() == "told\n"


@pytest.mark.parametrize(
    "command", ["mkdir build && echo x > build/out; echo y > new", "mkdir r && chmod 500 r"]
)
def test_new_files_of_a_check_do_not_matter(
    world: World, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Also those in a folder that cannot be written to: all of the tree goes."""
    (found,) = run(world, monkeypatch, command)
    assert found.passed


def test_a_command_that_cannot_run_has_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [c.exit_code for c in run(world, monkeypatch, "no-such-program-here")] == [127]
    assert [c.exit_code for c in run(world, monkeypatch, "kill -9 $$")] == [-9]


def test_a_tree_that_cannot_be_filled_checks_nothing_and_merges_nothing(merges: Merges) -> None:
    """A filter that is required and missing, such as that of LFS: no check ran, so it failed."""
    on_main(merges.world, {".gitattributes": "*.bin filter=lfs\n"})
    merges.git("config", "filter.lfs.smudge", "no-such-lfs smudge")
    merges.git("config", "filter.lfs.clean", "cat")
    merges.ready("w1", {"a": "1\n"})
    merges.branch("w2", {"b.bin": "pointer\n"})
    merges.git("config", "filter.lfs.required", "true")
    before = merges.world.snapshot()
    flag = merges.world.root / "flag"
    words = ["merge", "--branch", "w2", "--base", "main", "--check", f"touch {flag}"]
    ran = merges.ends(1, *words)
    assert "lfs" in ran.error["message"]
    assert merges.world.snapshot() == before
    assert not flag.exists()
    merges.tidy()


def test_the_checks_of_a_merge_see_no_variable_of_a_hook(merges: Merges) -> None:
    """As when the command is called from a hook: git would look elsewhere."""
    merges.ready("w1", {"a": "1\n"})
    merges.patch.setenv("GIT_DIR", "/nowhere")
    merges.patch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    check = "env | grep -c '^GIT_DIR\\|^GIT_INDEX' ; git log -1 --format=%s; test -e a"
    (row,) = merges.ok("merge", "w1", "--check", check)["checks"]
    assert Path(row["log"]).read_text().splitlines() == ["0", "Changelog: entries of w1"]


def test_checks_come_from_the_call_and_run_once_each(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    data = merges.ok("merge", "w1", "--check", "true", "--check", "test -e a", "--check", "true")
    assert [row["command"] for row in data["checks"]] == ["true", "test -e a"]
    path = merges.repo / ".git/agent-workers/integrations" / data["integration"]["id"]
    assert json.loads((path / "integration.json").read_text())["checks"] == data["checks"]
    assert sorted(p.name for p in (path / "checks").iterdir()) == ["01.log", "02.log"]
    rows = merges.ok("report")["checks"]
    assert [(r["command"], r["exit_code"]) for r in rows] == [("true", 0), ("test -e a", 0)]


def test_a_folder_in_the_place_of_the_tree_is_left_alone(merges: Merges) -> None:
    """Nothing that somebody else made is taken for a throw-away tree."""
    merges.ready("w1", {"a": "1\n"})
    parent = merges.world.root / "repo.worktrees"
    mine = parent / "integration-mine"
    mine.mkdir()
    (mine / "notes").write_text("1\n")
    merges.ok("merge", "w1", "--check", "true")
    assert (mine / "notes").read_text() == "1\n"
