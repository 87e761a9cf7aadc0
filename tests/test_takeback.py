"""A spawn that fails leaves nothing behind but what somebody else has made meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanout import cleaning, takeback
from fanout import workers as life
from fanout.cleaning import Choice, Result
from world import World, wait_for

SPAWN = ["--prompt", "x", "--prompt-mode", "none", "--agent-cli", "/bin/true", "--settle", "0"]


def hook(world: World, text: str) -> Path:
    path = world.repo / ".git" / "hooks" / "post-checkout"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def agent(world: World, text: str) -> list[str]:
    """The options that make a shell script the agent."""
    path = world.root / "bin" / "agent"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return ["--prompt", "x", "--prompt-mode", "none", "--agent-cli", str(path), "--settle", "10"]


@pytest.mark.parametrize(
    ("options", "code", "exit_code"),
    [
        (["--setup", "echo made > made.txt; echo why; exit 3"], "setup-failed", 1),
        (["--setup", "git checkout -q --detach; exit 0"], "worktree-moved", 1),
        (["--setup", "sleep 600", "--timeout", "1"], None, 124),
        (["--setup", "mkdir -p a/b; echo x > a/b/c; chmod 500 a/b; false"], "setup-failed", 1),
        (["--copy", "README.md/nothing"], "copy-missing", 2),
        (["--agent-cli", "/nowhere/agent"], None, 4),
        (["--worktree", "../deep/er/w1", "--setup", "false"], "setup-failed", 1),
    ],
)
def test_whatever_fails_nothing_is_left_and_the_next_run_succeeds(
    world: World, options: list[str], code: str | None, exit_code: int
) -> None:
    before = world.snapshot()
    error = world.refused(exit_code, "spawn", "w1", *SPAWN, *options)
    assert code is None or error["code"] == code
    assert world.snapshot() == before
    assert not (world.root / "deep").exists()
    assert not world.tree("w1").parent.exists()
    assert not (world.repo / ".git" / "worktrees").exists() or not os.listdir(
        world.repo / ".git" / "worktrees"
    )
    world.ok("spawn", "w1", *SPAWN)


def test_the_error_of_a_failed_set_up_shows_what_it_printed(world: World) -> None:
    error = world.refused(1, "spawn", "w1", *SPAWN, "--setup", "echo 'no such compiler'; exit 9")
    assert "exit code 9" in error["message"]
    assert "no such compiler" in error["hint"]
    (kept,) = (world.repo / ".git" / "agent-workers" / "archive").glob("w1-*")
    assert "no such compiler" in (kept / "setup.log").read_text()


def test_what_a_set_up_started_ends_with_its_time(world: World) -> None:
    world.refused(124, "spawn", "w1", *SPAWN, "--setup", "setsid sleep 600 & sleep 600",
                  "--timeout", "1")  # fmt: skip
    assert not [line for line in world.processes().values() if line.startswith("sleep 600")]


def test_a_failing_hook_takes_everything_back(world: World) -> None:
    """W29: git itself leaves a whole worktree behind."""
    script = hook(world, "echo 'guard says no'; exit 3")
    before = world.snapshot()
    for _ in range(2):
        error = world.refused(1, "spawn", "w1", *SPAWN)
        assert error["code"] == "hook-failed"
        assert "guard says no" in error["hint"]
        assert world.snapshot() == before
    script.unlink()
    world.ok("spawn", "w1", *SPAWN)


def test_a_hook_that_checks_out_main_does_not_move_the_main_checkout(world: World) -> None:
    """W31."""
    hook(world, "git checkout main")
    before = world.snapshot()
    error = world.refused(1, "spawn", "w1", *SPAWN)
    assert "main" in error["hint"]
    assert world.snapshot() == before
    assert world.git("symbolic-ref", "HEAD") == "refs/heads/main"


def test_what_a_set_up_committed_is_taken_back_and_kept_under_a_ref(world: World) -> None:
    before = world.snapshot()
    setup = "echo x > x; git add x; git commit -qm 'by set-up'"
    error = world.refused(1, "spawn", "w1", *SPAWN, "--setup", setup)
    assert error["code"] == "worktree-moved"
    after = world.snapshot()
    ref = world.git("for-each-ref", "--format=%(refname)", "refs/agent-workers")
    assert world.git("log", "--format=%s", ref).splitlines()[1] == "by set-up"
    assert {**after, "refs": ""} == {**before, "refs": ""}
    world.ok("spawn", "w1", *SPAWN)


def test_an_agent_that_fails_at_once_is_taken_back_with_all_that_spawn_made(world: World) -> None:
    """T30: also a changed tracked file that was copied, and what set-up made."""
    (world.repo / ".git" / "info" / "exclude").write_text(".env\nbuilt/\n")
    (world.repo / ".env").write_text("A=1\n")
    (world.repo / "README.md").write_text("edited\n")
    before = world.snapshot()
    for _ in range(2):
        error = world.refused(
            1, "spawn", "w1", *agent(world, "exit 3"), "--copy", ".env", "--copy", "README.md",
            "--setup", "mkdir built; echo x > built/x; echo y > new.txt",
        )  # fmt: skip
        assert error["code"] == "agent-ended"
        assert world.snapshot() == before


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("echo mine > new.txt", "new.txt"),
        ("echo mine >> made.txt", "made.txt"),
        ("echo mine > built/late", "built/late"),
        ("echo mine >> .env", ".env"),
        ("echo mine > README.md; touch -d 2001-01-01 README.md", "README.md"),
        ("git commit -q --allow-empty -m mine", ""),
        ("git stash -q -u; echo mine > a.ign", "a.ign"),
    ],
)
def test_what_an_agent_changed_before_it_failed_is_kept(world: World, text: str, path: str) -> None:
    (world.repo / ".git" / "info" / "exclude").write_text(".env\nbuilt/\n*.ign\n")
    (world.repo / ".env").write_text("A=1\n")
    options = ["--copy", ".env", "--setup", "echo x > made.txt; mkdir built; echo x > built/x"]
    worker = world.ok("spawn", "w1", *agent(world, f"{text}; exit 3"), *options)["worker"]
    assert "already ended" in worker["note"]
    row = world.status("w1")
    assert (row["state"], row["exit_code"]) == ("exited", 3)
    if path:
        assert (world.tree("w1") / path).read_text().endswith("mine\n")
    else:
        assert row["ahead"] == 1


def test_an_agent_that_ends_well_is_kept(world: World) -> None:
    world.ok("spawn", "w1", *agent(world, "exit 0"))
    assert world.status("w1")["state"] == "exited"


def test_a_killed_spawn_is_taken_back_by_the_next_one(world: World) -> None:
    process = world.start("spawn", "w1", *SPAWN, "--setup", "touch started; sleep 600")
    wait_for(lambda: (world.tree("w1") / "started").exists(), "the set-up")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert world.status("w1")["state"] == "unknown"
    world.kill("sleep 600")
    wait_for(lambda: "sleep 600" not in " ".join(world.processes().values()), "the end of set-up")
    assert "spawn-unfinished" in world.refusals("w1", "--discard")
    world.ok("spawn", "w1", *SPAWN)
    assert not (world.tree("w1") / "started").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_spawn_takes_itself_back(world: World, number: signal.Signals) -> None:
    before = world.snapshot()
    process = world.start("spawn", "w1", *SPAWN, "--setup", "touch started; sleep 600")
    wait_for(lambda: (world.tree("w1") / "started").exists(), "the set-up")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert world.snapshot() == before
    assert not [line for line in world.processes().values() if "sleep 600" in line]


def test_a_spawn_killed_at_its_very_beginning(world: World) -> None:
    """A record without a file in it, and one without a tree."""
    world.record("w1").mkdir(parents=True)
    world.ok("spawn", "w1", *SPAWN)
    tree = world.quick("w2", phase="spawning", admin_dir="", argv=[])
    world.git("worktree", "remove", str(tree))
    world.git("branch", "-D", "w2")
    world.ok("spawn", "w2", *SPAWN)


# --- The second look --------------------------------------------------------------------------


def started(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, life.Worker, Path]:
    """A worker whose spawn was killed after its agent had started."""
    tree = world.quick("w1", phase="spawning")
    (world.record("w1") / "launch.sh").write_text("")
    repo = world.adopt(monkeypatch)
    return repo, life.load(repo.common_dir, "w1"), tree


def test_an_untouched_worker_is_taken_back_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.snapshot()
    repo, worker, tree = started(world, monkeypatch)
    (tree / ".worker-runs" / "changelog").mkdir(parents=True)
    (tree / ".worker-runs" / "changelog" / "w1.md").write_text("- new\n")
    assert takeback.take_back(repo, [worker]) == {}
    assert world.snapshot() == before
    (kept,) = (world.repo / ".git" / "agent-workers" / "archive").glob("w1-*")
    assert (kept / "worktree-runs" / "changelog" / "w1.md").read_text() == "- new\n"


def test_a_file_that_appears_while_the_tree_is_taken_back_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, worker, tree = started(world, monkeypatch)
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        real(source, target)
        if str(target).endswith(".removing"):
            Path(target, "late.txt").write_text("mine\n")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        kept = takeback.take_back(repo, [worker])
    assert "was kept" in kept["w1"]
    assert (tree / "late.txt").read_text() == "mine\n"
    assert world.worktrees() == [str(world.repo), str(tree)]
    assert json.loads((world.record("w1") / "worker.json").read_text())["phase"] == "live"
    assert world.branches() == {"main", "w1"}


def test_the_branch_stays_when_somebody_has_checked_it_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, worker, _ = started(world, monkeypatch)
    other = world.root / "other"
    world.git("worktree", "add", "-q", "--force", str(other), "w1")
    assert takeback.take_back(repo, [worker]) == {}
    assert "w1" in world.branches()
    assert world.git("status", "--porcelain", cwd=other) == ""


def test_a_tree_that_is_gone_already_takes_only_its_entry_along(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.snapshot()
    repo, worker, tree = started(world, monkeypatch)
    shutil.rmtree(tree)
    assert takeback.take_back(repo, [worker]) == {}
    assert world.snapshot() == {**before, "trees": []}


@pytest.mark.parametrize("changed", [False, True])
def test_a_take_back_that_was_killed_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    before = world.snapshot()
    repo, worker, tree = started(world, monkeypatch)
    aside = tree.with_name(".w1.removing")
    if changed:
        (tree / "mine.txt").write_text("mine\n")
    else:
        shutil.rmtree(world.repo / ".git" / "worktrees" / "w1")
    tree.rename(aside)
    assert bool(takeback.take_back(repo, [worker])) is changed
    assert not aside.exists()
    if changed:
        assert (tree / "mine.txt").read_text() == "mine\n"
    else:
        assert world.snapshot() == before


# --- Rescue ---------------------------------------------------------------------------------


DISCARD = Choice(merged_only=False, branch_delete=False, discard=True, dry_run=False)
DELETE = DISCARD._replace(branch_delete=True)
BYTES = b"one\r\ntwo\nthree\r\n\x00\xff$Id$ no newline at the end"


def discard(world: World, patch: pytest.MonkeyPatch, choice: Choice = DISCARD) -> Result:
    (result,) = cleaning.clean(world.adopt(patch), ["w1"], choice)
    return result


def restore(world: World, result: Result) -> Path:
    """Run the printed command as a person would; the folder that it makes."""
    (note,) = (note for note in result.notes if note.startswith("restore with: "))
    command = note.removeprefix("restore with: ")
    assert "\n" not in command
    done = subprocess.run(
        ["bash", "-c", command], env=world.env, cwd=world.root, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return world.tree("w1-rescued")


def index_of(world: World, ref: str, path: str) -> str:
    """A file of the saved index: the last parent of the saved commit."""
    parents = world.git("log", "-1", "--format=%P", ref).split()
    return world.git("cat-file", "blob", f"{parents[-1]}:{path}")


def test_all_that_git_can_hide_is_saved_and_restored_byte_for_byte(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line ends, filters, `$Id$`, modes, links, and names that are no text."""
    world.git("config", "--global", "core.autocrlf", "true")
    world.git("config", "--global", "filter.shout.clean", "tr a-z A-Z")
    world.git("config", "--global", "filter.shout.smudge", "tr A-Z a-z")
    (world.repo / ".gitattributes").write_text(
        "*.eol text eol=crlf\n*.id ident\n*.f filter=shout\n*.u16 working-tree-encoding=UTF-16\n"
    )
    (world.repo / ".gitignore").write_text("*.ign\ndata/\n__pycache__/\n")
    (world.repo / "kept.f").write_text("tracked\n")
    (world.repo / "skipped.txt").write_text("tracked\n")
    world.commit("attributes")
    tree = world.quick("w1")
    names = [
        "a.eol", "a.id", "a.f", "a.txt", "kept.f", "README.md", "sub dir/deep/x.eol", "x.ign",
        "data/local.db", "new\nline", "cr\r", 'quo"te', '"whole"', "whole", "-dash", "tab\t",
        "back\\slash", "ünïcode", os.fsdecode(b"latin-\xe9"), "cr",
    ]  # fmt: skip
    for number, name in enumerate(names):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(BYTES + str(number).encode())
    world.git("update-index", "--skip-worktree", "skipped.txt", cwd=tree)
    (tree / "skipped.txt").write_bytes(BYTES)
    (tree / "a.txt").chmod(0o755)
    (tree / "x.ign").chmod(0o755)
    (tree / "a.u16").write_bytes("text\n".encode("utf-16"))
    (tree / "link").symlink_to("nowhere\nat all")
    (tree / "linked").symlink_to("data")
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "a.pyc").write_bytes(b"cache")
    (tree / "empty").touch()
    before = world.bytes_of(tree)
    result = discard(world, monkeypatch)
    assert result.removed is True
    assert not tree.exists()
    restored = {k: v for k, v in world.bytes_of(restore(world, result)).items() if k[:5] != ".git/"}
    del before[".git"], before["__pycache__/a.pyc"]
    assert restored == before
    assert "__pycache__/" in str(result.notes)


def test_what_only_the_index_holds_is_saved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = world.quick("w1")
    (tree / "README.md").write_text("staged\n")
    (tree / "gone.txt").write_text("only staged\n")
    world.git("add", "-A", cwd=tree)
    (tree / "README.md").write_text("edited\n")
    (tree / "gone.txt").unlink()
    result = discard(world, monkeypatch)
    assert result.rescue is not None
    assert index_of(world, result.rescue, "README.md") == "staged"
    assert index_of(world, result.rescue, "gone.txt") == "only staged"
    assert (restore(world, result) / "README.md").read_text() == "edited\n"


def test_every_stage_of_a_conflict_is_saved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = world.quick("w1")
    blobs: list[str] = []
    for number in (1, 2, 3):
        (tree / "x").write_text(f"stage {number}\n")
        blobs.append(world.git("hash-object", "-w", "x", cwd=tree))
    lines = "".join(f"100644 {blob} {n}\tx\n" for n, blob in enumerate(blobs, 1))
    subprocess.run(
        ["git", "update-index", "--index-info"], input=lines.encode(), cwd=tree, env=world.env,
        check=True,
    )  # fmt: skip
    result = discard(world, monkeypatch)
    assert result.rescue is not None
    for number in (1, 2, 3):
        assert index_of(world, result.rescue, f"{number}/x") == f"stage {number}"
    assert index_of(world, result.rescue, "0/README.md") == "hello"


@pytest.mark.parametrize("choice", [DISCARD, DELETE], ids=["keep branch", "delete branch"])
def test_commits_are_saved_also_when_detached(
    world: World, monkeypatch: pytest.MonkeyPatch, choice: Choice
) -> None:
    tree = world.quick("w1")
    tip = world.commit("mine", tree)
    world.git("checkout", "-q", "--detach", "HEAD~1", cwd=tree)
    loose = world.commit("loose", tree)
    result = discard(world, monkeypatch, choice)
    assert result.removed is True
    assert result.branch_deleted is choice.branch_delete
    assert world.branches() == {"main"} | ({"w1"} - ({"w1"} if choice.branch_delete else set()))
    world.git("reflog", "expire", "--expire=now", "--all")
    world.git("gc", "-q", "--prune=now")
    for commit in (tip, loose):
        world.git("merge-base", "--is-ancestor", commit, str(result.rescue))


def test_what_an_operation_in_progress_set_aside_is_saved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebase that stopped keeps the user's edits in a commit that only one of its files names."""
    tree = world.quick("w1")
    (tree / "README.md").write_text("ours\n")
    (tree / "b.txt").write_text("b\n")
    world.commit("ours", tree)
    (world.repo / "README.md").write_text("theirs\n")
    world.commit("theirs")
    (tree / "b.txt").write_text("edited\n")
    world.git("rebase", "-q", "--autostash", "main", cwd=tree, check=False)
    admin = world.repo / ".git" / "worktrees" / "w1"
    stash = (admin / "rebase-merge" / "autostash").read_text().strip()
    result = discard(world, monkeypatch, DELETE)
    assert result.removed is True
    world.git("gc", "-q", "--prune=now")
    assert world.git("show", f"{stash}:b.txt") == "edited"


def test_nothing_is_saved_where_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.quick("w1")
    result = discard(world, monkeypatch, DELETE)
    assert result.removed is True
    assert result.rescue is None
    assert world.git("for-each-ref", "refs/agent-workers") == ""


def test_a_repository_inside_is_not_saved_and_so_not_removed(world: World) -> None:
    tree = world.quick("w1")
    inner = world.make_repo("repo.worktrees/w1/inner")
    (tree / "new.txt").write_text("mine\n")
    for words in (["--dry-run"], []):
        ran = world.run("cleanup", "w1", "--discard", *words)
        assert ran.code == 3
        assert "git submodule deinit`)" in ran.out + ran.err
        assert ".removing" not in ran.out + ran.err
    (message,) = world.refusals("w1", "--discard", "--branch-delete")["rescue-failed"]
    assert "inner" in message
    assert world.git("log", "--format=%s", cwd=inner) == "first"


def test_another_worktree_inside_is_not_saved_and_so_not_removed(world: World) -> None:
    tree = world.quick("w1")
    world.git("worktree", "add", "-q", "-b", "inner", str(tree / "inner"))
    assert "rescue-failed" in world.refusals("w1", "--discard")


@pytest.mark.parametrize("verb", ["hash-object", "update-index", "commit-tree", "update-ref"])
def test_when_saving_fails_the_tree_goes_back_and_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    tree = world.quick("w1")
    (tree / "new.txt").write_text("mine\n")
    git = world.root / "bin" / "git"
    real = subprocess.run(
        ["which", "git"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
        check=True,
    ).stdout.strip()  # fmt: skip
    git.write_text(
        f'#!/bin/sh\nfor w; do [ "$w" = {verb} ] && {{ echo no space >&2; exit 128; }}; done\n'
        f'exec {real} "$@"\n'
    )
    git.chmod(0o755)
    reasons = world.refusals("w1", "--discard", "--branch-delete")
    assert "no space" in str(reasons)
    git.unlink()
    assert world.refusals("w1") == {"untracked": ["new.txt"]}
    assert discard(world, monkeypatch).removed is True


def test_a_file_that_changes_while_it_is_saved_stops_the_removal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = world.quick("w1")
    (tree / "new.txt").write_text("mine\n")
    real = takeback.lines_of
    for late in ("late.txt", "new.txt"):

        def lines_of(root: str, files: list[str], *, store: bool, late: str = late) -> list[bytes]:
            answer = real(root, files, store=store)
            Path(root, late).write_text("late\n")
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(takeback, "lines_of", lines_of)
            result = discard(world, monkeypatch)
        assert [reason.code for reason in result.reasons] == ["rescue-failed"]
        assert (tree / late).read_text() == "late\n"


def test_a_hard_link_to_an_object_that_git_dates_anew_is_saved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local clones have them: to keep a file whose object is there touches the object."""
    tree = world.quick("w1")
    blob = world.git("rev-parse", "HEAD:README.md")
    there = world.repo / ".git" / "objects" / blob[:2] / blob[2:]
    os.utime(there, (1_000_000_000, 1_000_000_000))
    os.link(there, tree / "linked")
    held = there.read_bytes()
    result = discard(world, monkeypatch)
    assert result.removed is True
    assert there.stat().st_mtime > 1_000_000_000
    shown = subprocess.run(
        ["git", "show", f"{result.rescue}:linked"], cwd=world.repo, env=world.env,
        capture_output=True, check=True,
    )  # fmt: skip
    assert shown.stdout == held


def test_a_reference_hook_that_refuses_stops_the_removal(world: World) -> None:
    tree = world.quick("w1")
    (tree / "new.txt").write_text("mine\n")
    hook = world.repo / ".git" / "hooks" / "reference-transaction"
    hook.write_text('#!/bin/sh\n[ "$1" != prepared ] || { echo guarded >&2; exit 1; }\n')
    hook.chmod(0o755)
    reasons = world.refusals("w1", "--discard")
    assert set(reasons) == {"git-failed"}


def test_two_rescues_of_one_name_do_not_meet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refs: set[Any] = set()
    for number in range(2):
        tree = world.quick("w1")
        (tree / "new.txt").write_text(f"{number}\n")
        result = discard(world, monkeypatch, DELETE)
        refs.add(result.rescue)
    assert len(refs) == 2
    texts = {world.git("cat-file", "blob", f"{ref}:new.txt") for ref in refs}
    assert texts == {"0", "1"}
