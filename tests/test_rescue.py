"""What `--discard` saves: everything, byte for byte, or nothing is removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanout import cleaning, rescue
from fanout.cleaning import Choice, Result
from world import World

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
    real = rescue.write_tree

    def late(root: str, files: list[str], scratch: str) -> str:
        answer = real(root, files, scratch)
        Path(root, "late.txt").write_text("mine\n")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(rescue, "write_tree", late)
        result = discard(world, monkeypatch)
    assert [reason.code for reason in result.reasons] == ["rescue-failed"]
    assert (tree / "late.txt").read_text() == "mine\n"


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
