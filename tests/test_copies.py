"""Files that a new tree gets from the caller's, and what it is said to lack."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fanout import workers as life
from fanout.errors import SkillError
from world import World

SPAWN = ["--prompt", "x", "--prompt-mode", "none", "--agent-cli", "/bin/true", "--settle", "0"]


def exclude(world: World, *lines: str) -> None:
    (world.repo / ".git" / "info" / "exclude").write_text("".join(f"{line}\n" for line in lines))


def lacks(world: World, name: str, *more: str, **options: Any) -> dict[str, list[str]]:
    """Spawn a worker; the paths of `lacks` by kind."""
    data = world.ok("spawn", name, *SPAWN, *more, **options)
    return {kind: facts["paths"] for kind, facts in data["worker"]["lacks"].items()}


def test_copies_keep_bytes_modes_and_links(world: World) -> None:
    exclude(world, ".env", "conf/", "tool")
    (world.repo / ".env").write_bytes(b"A=1\r\n\x00")
    (world.repo / "conf" / "deep").mkdir(parents=True)
    (world.repo / "conf" / "deep" / os.fsdecode(b"\xe9")).write_text("x\n")
    (world.repo / "conf" / "link").symlink_to("deep")
    (world.repo / "tool").write_text("#!/bin/sh\n")
    (world.repo / "tool").chmod(0o755)
    tree = world.idle("w1", "--copy", ".env", "--copy", "conf/", "--copy", "./tool")
    assert (tree / ".env").read_bytes() == b"A=1\r\n\x00"
    assert (tree / "conf" / "deep" / os.fsdecode(b"\xe9")).read_text() == "x\n"
    assert os.readlink(tree / "conf" / "link") == "deep"
    assert os.access(tree / "tool", os.X_OK)
    assert world.git("status", "--porcelain", cwd=tree) == ""


@pytest.mark.parametrize("path", ["../x", "/etc/hosts", ".git/config", ".git", ".", "", "a\0b"])
def test_only_paths_inside_the_checkout_are_copied(world: World, path: str) -> None:
    if "\0" in path:
        with pytest.raises(SkillError, match="not a path inside"):
            life.copy_files(str(world.repo), str(world.root), [path])
        return
    before = world.snapshot()
    assert world.refused(2, "spawn", "w1", *SPAWN, "--copy", path)["code"] == "path-outside"
    assert world.snapshot() == before


def test_a_link_that_leads_out_of_the_checkout_is_refused(world: World) -> None:
    (world.root / "secret").mkdir()
    (world.root / "secret" / "key").write_text("k\n")
    (world.repo / "out").symlink_to(world.root / "secret")
    assert world.refused(2, "spawn", "w1", *SPAWN, "--copy", "out/key")["code"] == "path-outside"


def test_a_copy_is_never_written_through_a_link_of_the_commit(world: World) -> None:
    """The commit has a link where the caller has a folder: its target is the caller's own file."""
    (world.repo / "real").mkdir()
    (world.repo / "real" / "x").write_text("the only one\n")
    (world.repo / "data").symlink_to(world.repo / "real")
    world.commit("link")
    before = world.snapshot()
    assert world.refused(2, "spawn", "w1", *SPAWN, "--copy", "data/x")["code"] == "path-outside"
    assert world.snapshot() == before
    (world.repo / "data").unlink()
    (world.repo / "data").mkdir()
    (world.repo / "data" / "x").write_text("mine\n")
    assert world.refused(2, "spawn", "w1", *SPAWN, "--copy", "data")["code"] == "path-outside"
    assert (world.repo / "real" / "x").read_text() == "the only one\n"


def test_a_pipe_is_not_copied(world: World) -> None:
    exclude(world, "run/")
    (world.repo / "run").mkdir()
    os.mkfifo(world.repo / "run" / "pipe")
    error = world.refused(2, "spawn", "w1", *SPAWN, "--copy", "run", seconds=20)
    assert error["code"] == "copy-unfit"
    assert not world.tree("w1").exists()


def test_worktreeinclude_brings_ignored_files_only(world: World) -> None:
    """It names `.env` in any folder; a tracked and a merely untracked match stay out of it."""
    (world.repo / ".gitignore").write_text(".env\n*.pem\n/.worker-runs/\n")
    (world.repo / ".worktreeinclude").write_text("# secrets\n.env\nnotes.txt\n.worker-runs/\n")
    (world.repo / "sub").mkdir()
    world.commit("include")
    for path in (".env", "sub/.env", "key.pem", "notes.txt"):
        (world.repo / path).write_text("mine\n")
    (world.repo / ".worker-runs").mkdir()
    (world.repo / ".worker-runs" / "log").write_text("mine\n")
    tree = world.idle("w1")
    found = {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file()}
    assert {".env", "sub/.env"} <= found
    assert not {"key.pem", "notes.txt", ".worker-runs/log"} & found
    assert world.ok("cleanup", "w1")["removed"] == ["w1"]


def test_lacks_names_what_the_caller_has_and_the_new_tree_has_not(world: World) -> None:
    (world.repo / ".gitignore").write_text(".env\nnode_modules/\nother.ign\n")
    (world.repo / "media").mkdir()
    (world.repo / "media" / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (world.repo / "media" / "a.bin").write_text(pointer)
    (world.repo / "media" / "b.bin").write_text("content\n")
    lib = world.make_repo("lib")
    world.git("submodule", "--quiet", "add", str(lib), "lib")
    world.commit("all")
    (world.repo / "README.md").write_text("edited\n")
    (world.repo / "new.txt").write_text("new\n")
    (world.repo / ".env").write_text("A=1\n")
    (world.repo / "other.ign").write_text("x\n")
    (world.repo / "node_modules").mkdir()
    (world.repo / "node_modules" / "x").write_text("x\n")
    assert lacks(world, "w1", "--copy", ".env") == {
        "uncommitted": ["README.md", "new.txt"],
        "ignored": ["other.ign"],
        "submodules": ["lib"],
        "lfs_pointers": ["media/a.bin"],
    }


def test_lacks_is_empty_where_nothing_is_missing(world: World) -> None:
    assert lacks(world, "w1") == {}


def test_lacks_compares_with_the_callers_own_tree(world: World) -> None:
    tree = world.idle("w1")
    (tree / "mine.txt").write_text("x\n")
    (world.repo / "not-mine.txt").write_text("x\n")
    assert lacks(world, "w2", cwd=tree) == {"uncommitted": ["mine.txt"]}


def test_only_what_may_be_a_copy_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file, or a pipe, that spawn never copied is not opened."""
    from fanout import workers as life

    tree = world.quick("w1", copied={"a": "0"})
    os.mkfifo(tree / "a")
    (tree / "b").write_text("x")
    worker = life.load(world.adopt(monkeypatch).common_dir, "w1")
    seen: list[str] = []

    def fingerprint(path: str) -> str:
        seen.append(path)
        return "0"

    monkeypatch.setattr(life, "fingerprint", fingerprint)
    assert life.is_our_copy(worker, str(tree), "a") is False
    assert life.is_our_copy(worker, str(tree), "b") is False
    assert life.is_our_copy(worker, str(tree), "missing") is False
    assert seen == []
    Path(tree / "a").unlink()
    (tree / "a").write_text("x")
    assert life.is_our_copy(worker, str(tree), "a") is True
