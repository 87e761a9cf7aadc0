"""Publishing: the branch moves by compare-and-swap, and the checkout follows without a loss."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanout import integrations, publishing, records
from fanout.errors import SkillError
from fanout.publishing import Check, Checkout
from merge_world import Changes, Entry, Merges, commit_on, link, merges, on_main, program, write
from runner_world import all_have_ended
from world import World


def run(
    world: World, patch: pytest.MonkeyPatch, *commands: str, timeout: float = 30.0
) -> list[Check]:
    """Run checks on the tip of main; demand that nothing of their tree is left."""
    repo = world.adopt(patch)
    before = world.snapshot()
    # What a check started is known by this id, so no two tests may share one.
    name = integrations.new("refs/heads/main", repo.head, "merge").id
    tree = publishing.tree_path(repo, name, 1)
    logs = f"{records.home(repo.common_dir)}/integrations/{name}/checks"
    found = publishing.run_checks(
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
    tree = publishing.tree_path(repo, integrations.new("refs/heads/main", repo.head, "merge").id, 1)
    logs = f"{records.home(repo.common_dir)}/logs"
    (found,) = publishing.run_checks(repo, repo.head, [command], tree=tree, logs=logs, timeout=30.0)
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


# --- Publishing -----------------------------------------------------------------------------


__all__ = ["merges"]
# What a merge is to bring: every kind of change.
START: Changes = {
    "changed": "1\n", "deleted": "1\n", "mode": "1\n", "link": link("a"), "to-folder": "1\n",
    "folder/file": "1\n", "mine": "1\n", "mine2": "1\n", ".gitignore": "*.log\nbuild/\n",
}  # fmt: skip
WORK: Changes = {
    "changed": "2\n", "deleted": None, "mode": program("1\n"), "link": link("b"),
    "to-folder": None, "to-folder/new": "1\n", "folder/file": None, "folder": "now a file\n",
    "new": "1\n", "deep/er/new": "1\n",
}  # fmt: skip


def published(
    world: World, patch: pytest.MonkeyPatch, before: str, after: str, ref: str = "refs/heads/main"
) -> bool:
    """Publish a commit on a branch as a merge does."""
    repo = world.adopt(patch)
    checkout = publishing.checkout_of(repo, ref)
    return bool(publishing.try_to_publish(repo, ref, before, after, checkout, "why: a test"))


def work_on(world: World, start: Changes = START, work: Changes = WORK) -> tuple[str, str]:
    """Main with some files, and a commit on top of it; both ids."""
    before = on_main(world, start)
    return before, commit_on(world, "work", work)


# --- Edits that may stay ---------------------------------------------------------------------


def mine(world: World) -> dict[str, Any]:
    """Make edits of every kind in other files; their bytes."""
    write(world.repo, {"mine": "staged\n", "mine2": "not staged\n", "added": "1\n"})
    world.git("add", "mine", "added")
    write(
        world.repo,
        {"mine": "and edited\n", "loose": "1\n", "deep/loose": "1\n", "x.log": "1\n",
         "build/out": "1\n", "README.md": None},
    )  # fmt: skip
    world.git("update-index", "--skip-worktree", "mine2")
    return world.bytes_of(world.repo)


def test_unrelated_edits_stay_byte_for_byte(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: staged, edited, deleted, hidden from git, untracked and ignored ones."""
    before, after = work_on(world)
    files = {k: v for k, v in mine(world).items() if not k.startswith(".git/")}
    staged = world.git("ls-files", "-s", "mine", "mine2", "added", "README.md")
    assert published(world, monkeypatch, before, after)
    assert world.git("rev-parse", "main") == after
    now = {k: v for k, v in world.bytes_of(world.repo).items() if not k.startswith(".git/")}
    brought = {"changed", "mode", "link", "to-folder/new", "folder", "new", "deep/er/new"}
    gone = {"deleted", "to-folder", "folder/file"}
    assert {k: v for k, v in now.items() if k not in brought} == {
        k: v for k, v in files.items() if k not in brought | gone
    }
    assert brought <= now.keys()
    assert not gone & now.keys()
    assert world.git("ls-files", "-s", "mine", "mine2", "added", "README.md") == staged
    assert sorted(world.git("status", "--porcelain", "-uall").splitlines()) == [
        " D README.md", "?? deep/loose", "?? loose", "A  added", "MM mine",
    ]  # fmt: skip
    # Of branch and HEAD.
    assert world.git("reflog", "-1", "--format=%gs", "main") == "why: a test"
    assert world.git("reflog", "-1", "--format=%gs", "HEAD") == "why: a test"
    assert world.git("rev-parse", "main@{1}") == before


# Each of these files is to change in some way; what a user did to it, by the reason it gives.
IN_THE_WAY = {
    "modified": ["deleted", "edited", "gone", "mode", "to-delete"],
    "staged": ["new-staged", "staged", "unstaged"],
    "hidden-changes": ["hidden"],
    "untracked": ["dir/own", "folder", "new", "new-same"],
    "ignored": ["dir/x.log", "new-ignored"],
    "conflicted": ["conflicted"],
}


def spoil(world: World) -> tuple[str, str]:
    """Make edits of every kind where a commit has changes; what is there, and that commit."""
    old = ["deleted", "edited", "gone", "mode", "to-delete", "staged", "unstaged", "hidden"]
    before = on_main(
        world, {**dict.fromkeys([*old, "conflicted", "dir/f"], "1\n"), ".gitignore": "*.log\n"}
    )
    changed = dict.fromkeys([*old, "conflicted"], "2\n")
    work: Changes = {
        **changed, "gone": None, "to-delete": None, "mode": program("1\n"), "dir/f": None,
        "dir": "now a file\n", "folder/f": "1\n", "new-staged": "1\n", "new": "1\n",
        "new-same": "1\n", "new-ignored": "1\n",
    }  # fmt: skip
    after = commit_on(world, "work", work)
    (world.repo / ".git" / "info" / "exclude").write_text("new-ignored\n")
    write(
        world.repo,
        {"staged": "mine\n", "new-staged": "mine\n", "hidden": "mine\n", "edited": "mine\n",
         "to-delete": "mine\n", "deleted": None, "gone": None, "dir/own": "mine\n",
         "dir/x.log": "mine\n", "folder": "mine\n", "new": "mine\n", "new-same": "1\n",
         "new-ignored": "my secret\n", "mode": program("1\n")},
    )  # fmt: skip
    world.git("add", "-f", "staged", "new-staged")
    world.git("rm", "-q", "--cached", "unstaged")
    (world.repo / "unstaged").unlink()
    world.git("update-index", "--assume-unchanged", "hidden")
    blob = world.git("rev-parse", "HEAD:conflicted")
    world.git("update-index", "--force-remove", "conflicted")
    rows = "".join(f"100644 {blob} {stage}\tconflicted\n" for stage in (1, 2, 3))
    subprocess.run(
        ["git", "update-index", "--index-info"], cwd=world.repo, env=world.env, check=True,
        input=rows.encode(),
    )  # fmt: skip
    return before, after


def test_edits_in_the_way_are_refused_by_name_and_nothing_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I02, I04: exit 3, tree, index and branch as they were; ignored files count."""
    before, after = spoil(world)
    files, index = world.bytes_of(world.repo), (world.repo / ".git/index").read_bytes()
    with pytest.raises(SkillError) as caught:
        published(world, monkeypatch, before, after)
    assert (caught.value.code, int(caught.value.exit_code)) == ("local-edits", 3)
    rows = {row["code"]: row["paths"] for row in caught.value.data["local_edits"]}
    assert rows == IN_THE_WAY
    assert "conflicted, " in caught.value.message
    assert "and 6 more" in caught.value.message
    assert world.bytes_of(world.repo) == files
    assert (world.repo / ".git/index").read_bytes() == index
    assert world.git("rev-parse", "main") == before


def test_one_edit_alone_refuses_and_so_does_a_locked_index(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = work_on(world)
    for change, code in ((lambda: write(world.repo, {"new": "mine\n"}), "untracked"),
                         ((world.repo / ".git" / "index.lock").touch, "index-locked")):  # fmt: skip
        change()
        with pytest.raises(SkillError) as caught:
            published(world, monkeypatch, before, after)
        assert [row["code"] for row in caught.value.data["local_edits"]] == [code]
        (world.repo / "new").unlink(missing_ok=True)
    (world.repo / ".git" / "index.lock").unlink()
    assert published(world, monkeypatch, before, after)


@pytest.mark.parametrize(("edits", "names"), [(True, ["staged", "new"]), (False, [])])
def test_a_merge_refuses_related_edits_before_any_check_is_run(
    merges: Merges, edits: bool, names: list[str]
) -> None:
    flag = merges.world.root / "flag"
    on_main(merges.world, {"staged": "1\n"})
    merges.ready("w1", {"staged": "2\n", "new": "1\n"})
    write(merges.repo, {"unrelated": "1\n"})
    words = ["merge", "w1", "--check", f"touch {flag}"]
    if not edits:
        merges.ok(*words)
        assert flag.exists()
        return
    write(merges.repo, {"staged": "mine\n", "new": "mine\n"})
    merges.git("add", "staged")
    files = merges.world.bytes_of(merges.repo)
    for more in ([], ["--dry-run"]):
        ran = merges.ends(3, *words, *more)
        assert ran.error["code"] == "local-edits"
        assert [p for row in ran.data["local_edits"] for p in row["paths"]] == names
        assert not flag.exists()
    now = merges.world.bytes_of(merges.repo)
    for path in ("staged", "new", "unrelated", ".git/index", ".git/HEAD", ".git/ORIG_HEAD"):
        assert now.get(path) == files.get(path)
    assert merges.git("log", "-1", "--format=%s", "main") == "made-for-main 1"
    assert merges.integrations() == []
    merges.tidy()


# --- The checkout ---------------------------------------------------------------------------


def test_without_a_checkout_of_it_the_branch_alone_moves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I32: whatever is checked out stays so."""
    before, after = work_on(world)
    world.git("checkout", "-q", "-b", "elsewhere")
    files = world.bytes_of(world.repo)
    assert published(world, monkeypatch, before, after)
    assert world.git("rev-parse", "main", "elsewhere").split() == [after, before]
    assert world.git("symbolic-ref", "HEAD") == "refs/heads/elsewhere"
    now = world.bytes_of(world.repo)
    changed = {p for p in now.keys() | files.keys() if now.get(p) != files.get(p)}
    assert not {p for p in changed if not p.startswith((".git/refs/", ".git/logs/"))}


def test_a_checkout_in_another_worktree_follows_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: with its own index and its own edits."""
    before, after = work_on(world)
    other = world.root / "other tree"
    world.git("worktree", "add", "-q", "-b", "dev", str(other), "main")
    write(other, {"mine": "edited\n"})
    write(world.repo, {"changed": "edited here\n"})
    assert published(world, monkeypatch, before, after, "refs/heads/dev")
    assert world.git("status", "--porcelain", cwd=other).splitlines() == [" M mine"]
    assert (other / "new").exists()
    assert (other / "mine").read_text() == "edited\n"
    assert world.git("rev-parse", "main") == before
    assert (world.repo / "changed").read_text() == "edited here\n"


def twice(world: World) -> str:
    world.git("worktree", "add", "-q", "--force", str(world.root / "second"), "main")
    return "checked-out-twice"


def gone(world: World) -> str:
    world.git("checkout", "-q", "--detach")
    world.git("worktree", "add", "-q", str(world.root / "second"), "main")
    (world.root / "second").rename(world.root / "moved")
    return "checkout-missing"


def merging(world: World) -> str:
    commit_on(world, "left", {"c": "1\n"})
    world.git("merge", "-q", "--no-commit", "--no-ff", "left")
    return "operation-in-progress"


def rebasing(world: World) -> str:
    commit_on(world, "left", {"README.md": "1\n"})
    commit_on(world, "right", {"README.md": "2\n"})
    world.git("checkout", "-q", "right")
    world.git("branch", "-q", "-f", "main", "right")
    world.git("checkout", "-q", "main")
    world.git("rebase", "-q", "left", check=False)
    return "operation-in-progress"


@pytest.mark.parametrize("make", [twice, gone, merging, rebasing], ids=lambda make: make.__name__)
def test_a_checkout_that_cannot_follow_refuses_the_merge(
    merges: Merges, make: Callable[[World], str]
) -> None:
    """Also one that is rebasing the branch: git would write it over at the end."""
    merges.ready("w1", {"a": "1\n"})
    code = make(merges.world)
    files = merges.world.bytes_of(merges.repo)
    ran = merges.ends(3, "merge", "w1")
    assert ran.error["code"] == code
    now = merges.world.bytes_of(merges.repo)
    assert {p for p in now if now[p] != files.get(p)} <= {
        ".git/agent-workers/locks/integration.lock"
    }
    assert merges.call("report", as_json=False).code == 0


def test_a_bare_repositorys_head_is_no_checkout(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = work_on(world)
    world.git("clone", "-q", "--bare", ".", "../bare.git")
    bare = world.root / "bare.git"
    tree = world.root / "tree"
    world.git("worktree", "add", "-q", "--detach", str(tree), "main", cwd=bare)
    world.adopt(monkeypatch)
    from fanout.git import open_repository

    repo = open_repository(str(tree))
    assert publishing.checkout_of(repo, "refs/heads/main") is None
    assert publishing.try_to_publish(repo, "refs/heads/main", before, after, None, "why")
    assert world.git("rev-parse", "main", cwd=bare) == after


def test_a_branch_that_moved_is_left_and_so_are_the_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = work_on(world)
    other = commit_on(world, "other", {"o": "1\n"})
    world.git("merge", "-q", "--ff-only", "other")
    files = world.bytes_of(world.repo)
    assert published(world, monkeypatch, before, after) is False
    now = world.bytes_of(world.repo)
    assert {p for p in now if now[p] != files.get(p)} <= {".git/index"}
    assert world.git("rev-parse", "main") == other


def test_a_branch_that_another_git_holds_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W59: no lock is deleted."""
    before, after = work_on(world)
    lock = world.repo / ".git" / "refs" / "heads" / "main.lock"
    lock.touch()
    world.git("config", "core.filesRefLockTimeout", "0")
    with pytest.raises(SkillError) as caught:
        published(world, monkeypatch, before, after)
    assert (caught.value.code, int(caught.value.exit_code)) == ("git-locked", 3)
    assert "main.lock" in caught.value.message
    assert lock.exists()
    assert world.git("rev-parse", "main") == before
    assert world.git("status", "--porcelain") == ""


def test_a_ref_hook_may_say_no_and_others_are_not_run(merges: Merges) -> None:
    """The checks decide, not the hooks of commits and merges; whoever guards refs still can."""
    hooks = merges.repo / ".git" / "hooks"
    alarm = f"#!/bin/sh\necho $0 >> {merges.world.root}/called\nexit 1\n"
    for name in (
        "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-merge-commit",
        "post-merge", "post-checkout", "post-rewrite", "pre-rebase", "applypatch-msg",
        "pre-applypatch", "post-applypatch", "pre-push",
    ):  # fmt: skip
        merges.world.root.joinpath("bin", name).write_text(alarm)
        merges.world.root.joinpath("bin", name).chmod(0o755)
        (hooks / name).symlink_to(merges.world.root / "bin" / name)
    for number, strategy in enumerate(["merge", "squash", "rebase", "cherry-pick"]):
        merges.branch(f"w{number}", {f"f{number}": "1\n"})
        words = ["--branch", f"w{number}", "--base", "main", "--strategy", strategy]
        merges.ok("merge", *words, "--check", "true")
    assert not (merges.world.root / "called").exists()
    merges.branch("w9", {"f9": "1\n"})
    before = merges.world.snapshot()
    guard = hooks / "reference-transaction"
    guard.write_text("#!/bin/sh\ncase $(cat) in *refs/heads/main*) test $1 != prepared;; esac\n")
    guard.chmod(0o755)
    ran = merges.ends(1, "merge", "--branch", "w9", "--base", "main", "--check", "true")
    assert ran.error["code"] == "git-failed"
    assert merges.world.snapshot() == before
    merges.same_as_head()
    merges.tidy()


def test_a_filter_that_fails_loses_no_file(merges: Merges) -> None:
    """A required filter that is missing, such as that of LFS: the checkout is as it was."""
    on_main(merges.world, {".gitattributes": "*.bin filter=lfs\n", "a": "1\n", "z": "1\n"})
    merges.branch("w1", {"a": "2\n", "m.bin": "pointer\n", "z": "2\n", "n": "1\n"})
    merges.git("config", "filter.lfs.required", "true")
    merges.git("config", "filter.lfs.smudge", "no-such-lfs smudge")
    merges.git("config", "filter.lfs.clean", "no-such-lfs clean")
    write(merges.repo, {"mine": "1\n"})
    before = merges.world.snapshot()
    ran = merges.ends(3, "merge", "--branch", "w1", "--base", "main")
    assert ran.error["code"] == "checkout-failed"
    assert "lfs" in ran.error["message"]
    assert merges.world.snapshot() == before
    assert merges.git("status", "--porcelain") == "?? mine"
    # Without a checkout of it nothing has to be written.
    merges.git("checkout", "-q", "--detach")
    merges.ok("merge", "--branch", "w1", "--base", "main", "--into", "main")


@pytest.mark.parametrize("checks", [[], ["--check", "true"]])
def test_a_file_that_cannot_be_written_loses_no_other(merges: Merges, checks: list[str]) -> None:
    """I02: git fails half-way, and all is as it was: here a name that no file can have."""
    on_main(merges.world, {"a": "1\n", "d/x": "1\n", "z": "1\n"})
    merges.branch("w1", {"a": "2\n", "d/x": None, "d": "1\n", "n" * 300: "1\n", "z": "2\n"})
    write(merges.repo, {"mine": "1\n"})
    before = merges.world.snapshot()
    ran = merges.ends(1 if checks else 3, "merge", "--branch", "w1", "--base", "main", *checks)
    assert "too long" in ran.error["message"]
    assert merges.world.snapshot() == before
    assert merges.git("status", "--porcelain") == "?? mine"
    merges.tidy()


# --- Back again -----------------------------------------------------------------------------


@pytest.mark.parametrize("done", range(6))
def test_a_checkout_that_had_begun_to_follow_is_put_back(
    world: World, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Killed in between: what holds exactly the new bytes goes, what somebody edited stays."""
    before, after = work_on(world)
    repo = world.adopt(monkeypatch)
    write(world.repo, {"mine": "mine\n", "loose": "1\n"})
    whole = world.bytes_of(world.repo)
    target = world.root / "target"
    world.git("worktree", "add", "-q", "--detach", str(target), after)
    # git removes first, then writes; here some of it was done.
    for path in ("deleted", "to-folder", "folder/file")[: done * 2]:
        (world.repo / path).unlink()
    for path in ("changed", "link", "mode", "new", "deep/er/new", "to-folder/new")[: done * 2 - 2]:
        place = world.repo / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        (target / path).rename(place)
    checkout = publishing.checkout_of(repo, "refs/heads/main")
    assert isinstance(checkout, Checkout)
    edited = done == 5
    if edited:
        write(world.repo, {"changed": "edited after the kill\n"})
    kept = publishing.put_back(repo, checkout, before, after)
    assert kept == (["changed"] if edited else [])
    now = world.bytes_of(world.repo)
    wrong = {
        p for p in now.keys() | whole.keys()
        if now.get(p) != whole.get(p) and not p.startswith(".git/")
    }  # fmt: skip
    assert wrong == ({"changed"} if edited else set())
    assert (world.repo / "changed").read_text() == ("edited after the kill\n" if edited else "1\n")
    assert publishing.put_back(repo, checkout, before, after) == kept


def test_what_somebody_put_in_the_way_after_the_kill_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders, files and links in the place of what git had removed; nothing beyond a link goes."""
    before, after = work_on(world)
    repo = world.adopt(monkeypatch)
    for path in ("deleted", "folder/file", "to-folder"):
        (world.repo / path).unlink()
    outside = world.root / "outside"
    write(outside, {"new": "1\n", "er/new": "1\n", "file": "1\n"})
    write(world.repo, {"deleted/own": "mine\n", "deep": link("../outside")})
    (world.repo / "folder").rmdir()
    write(world.repo, {"folder": "mine\n", "to-folder/own": "mine\n", "to-folder/new": "1\n"})
    kept_outside = world.bytes_of(outside)
    checkout = publishing.checkout_of(repo, "refs/heads/main")
    assert checkout is not None
    kept = publishing.put_back(repo, checkout, before, after)
    assert set(kept) == {"deleted", "folder", "folder/file", "to-folder"}
    assert world.bytes_of(outside) == kept_outside
    for path in ("deleted/own", "folder", "to-folder/own"):
        assert (world.repo / path).read_text() == "mine\n"
    assert not (world.repo / "to-folder" / "new").exists()
    assert (world.repo / "deep").is_symlink()


def test_an_index_that_had_followed_already_is_taken_back_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = work_on(world)
    repo = world.adopt(monkeypatch)
    write(world.repo, {"mine": "mine\n"})
    whole = world.snapshot()
    checkout = publishing.checkout_of(repo, "refs/heads/main")
    assert checkout is not None
    publishing.follow(checkout, before, after)
    assert "new" in world.git("ls-files").split()
    assert publishing.put_back(repo, checkout, before, after) == []
    assert world.snapshot() == whole
    assert world.git("status", "--porcelain") == " M mine"


# --- Submodules -----------------------------------------------------------------------------


def test_a_submodule_moves_in_the_index_and_its_own_checkout_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `git merge` does it, whatever `submodule.recurse` says; edits in it are in the way."""
    other = world.make_repo("module")
    world.git("submodule", "--quiet", "add", str(other), "s")
    before = world.commit("with a module")
    first = world.git("rev-parse", "HEAD:s")
    second = world.commit("second", other)
    world.git("fetch", "-q", cwd=world.repo / "s")
    after = commit_on(world, "work", {"s": Entry("160000", second), "a": "1\n"})
    world.git("config", "submodule.recurse", "true")
    world.git("config", "submodule.s.ignore", "all")
    write(world.repo / "s", {"README.md": "edited\n"})
    with pytest.raises(SkillError) as caught:
        published(world, monkeypatch, before, after)
    assert caught.value.data["local_edits"][0]["paths"] == ["s"]
    write(world.repo / "s", {"README.md": "hello\n"})
    assert published(world, monkeypatch, before, after)
    assert world.git("rev-parse", "HEAD:s") == second
    assert world.git("rev-parse", "HEAD", cwd=world.repo / "s") == first
    assert (world.repo / "a").exists()
    assert Path(world.repo, "s", "README.md").read_text() == "hello\n"
