"""Three-way merges without a working tree: every kind of conflict, and what is no conflict."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fanout import git, integrations, records
from fanout.errors import SkillError
from fanout.integrations import Merged, Signing
from merge_world import Changes, Entry, commit_on, link, program, write
from world import World

TEXT = "".join(f"line {number}\n" for number in range(20))
OTHER = TEXT.upper()


def git_dir(world: World) -> str:
    return str(world.repo / ".git")


def module(digit: str) -> Entry:
    """A submodule at a commit that nobody has."""
    return Entry("160000", digit * 40)


CONFLICTS: dict[str, tuple[Changes, Changes, Changes, set[str], set[str]]] = {
    # name: what was there, one side, the other, the paths and the kinds of the conflict
    "content": ({"a": "1\n"}, {"a": "2\n"}, {"a": "3\n"}, {"a"}, {"content"}),
    "added by both": ({}, {"a": "2\n"}, {"a": "3\n"}, {"a"}, {"content"}),
    "rename/rename": (
        {"a": TEXT}, {"a": None, "b": TEXT}, {"a": None, "c": TEXT}, {"a", "b", "c"},
        {"rename/rename"},
    ),
    "two renamed to one": (
        {"a": TEXT, "b": OTHER}, {"a": None, "c": TEXT}, {"b": None, "c": OTHER}, {"c"},
        {"content"},
    ),
    "rename/delete": (
        {"lib.py": TEXT}, {"lib.py": None, "b": TEXT}, {"lib.py": None}, {"lib.py", "b"},
        {"rename/delete"},
    ),
    "modify/delete": ({"a": TEXT}, {"a": "2\n"}, {"a": None}, {"a"}, {"modify/delete"}),
    "directory/file": ({}, {"a": "file\n"}, {"a/b": "x\n"}, {"a"}, {"file/directory"}),
    "file changed, folder in its place": (
        {"a": "1\n"}, {"a": "2\n"}, {"a": None, "a/b": "x\n"}, {"a"},
        {"file/directory", "modify/delete"},
    ),
    "mode": ({}, {"a": "x\n"}, {"a": program("x\n")}, {"a"}, {"content"}),
    "symlink": ({"a": link("x")}, {"a": link("y")}, {"a": link("z")}, {"a"}, {"content"}),
    "symlink or file": ({"a": "f\n"}, {"a": link("y")}, {"a": "g\n"}, {"a"}, {"distinct modes"}),
    "submodule": (
        {"s": module("1")}, {"s": module("2")}, {"s": module("3")}, {"s"},
        {"submodule not initialized", "content"},
    ),
    "submodule or file": ({}, {"s": module("2")}, {"s": "file\n"}, {"s"}, {"distinct modes"}),
    "binary": ({"a": b"\0\1"}, {"a": b"\0\2"}, {"a": b"\0\3"}, {"a"}, {"binary"}),
    "CRLF": (
        {"a": "1\n2\n"}, {"a": "1\r\n2\r\n"}, {"a": "1\n2x\n"}, {"a"}, {"content"},
    ),
    "folder renamed, file added in it": (
        {"d/1": TEXT, "d/2": OTHER}, {"d/1": None, "d/2": None, "e/1": TEXT, "e/2": OTHER},
        {"d/3": "new\n"}, {"d/3", "e/3"}, {"directory rename suggested"},
    ),
    "odd names": (
        {'a "b"\tc\nd': "1\n"}, {'a "b"\tc\nd': "2\n"}, {'a "b"\tc\nd': "3\n"}, {'a "b"\tc\nd'},
        {"content"},
    ),
}  # fmt: skip
CLEAN: dict[str, tuple[Changes, Changes, Changes]] = {
    "other files": ({}, {"a": "1\n"}, {"b": "2\n"}),
    "both the same": ({"a": "1\n"}, {"a": "2\n"}, {"a": "2\n"}),
    "other lines, CRLF kept": (
        {"a": "1\r\n2\r\n3\r\n4\r\n5\r\n"}, {"a": "1x\r\n2\r\n3\r\n4\r\n5\r\n"},
        {"a": "1\r\n2\r\n3\r\n4\r\n5x\r\n"},
    ),
    "mode here, content there": ({"a": "1\n"}, {"a": program("1\n")}, {"a": "2\n"}),
    "renamed here, changed there": ({"a": TEXT}, {"a": None, "b": TEXT}, {"a": TEXT + "x\n"}),
    "markers as text": ({}, {"doc": "<<<<<<< example\n=======\n>>>>>>> b\n"}, {"b": "2\n"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFLICTS)
def test_every_kind_of_conflict_is_seen_with_its_paths(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """I20: three-argument merge-tree would call some of these clean."""
    world.adopt(monkeypatch)
    base, one, other, paths, kinds = CONFLICTS[kind]
    commit_on(world, "base", base)
    ours = commit_on(world, "ours", one, base="base")
    theirs = commit_on(world, "theirs", other, base="base")
    both = integrations.merge_all(git_dir(world), [(ours, theirs), (theirs, ours), (ours, ours)])
    assert [merged.outcome for merged in both] == ["conflict", "conflict", "clean"]
    for merged in both[:2]:
        assert set(merged.paths) == paths
        assert set(merged.kinds) >= kinds
        assert merged.to_json()["paths"] == sorted(paths)
    # git itself agrees.
    world.git("checkout", "-q", "--detach", ours)
    assert "CONFLICT" in world.git("merge", "--no-edit", theirs, check=False)


@pytest.mark.parametrize("kind", CLEAN)
def test_what_does_not_conflict_is_clean_and_its_tree_is_gits(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    world.adopt(monkeypatch)
    base, one, other = CLEAN[kind]
    commit_on(world, "base", base)
    ours = commit_on(world, "ours", one, base="base")
    theirs = commit_on(world, "theirs", other, base="base")
    (merged,) = integrations.merge_all(git_dir(world), [(ours, theirs)])
    assert merged.outcome == "clean"
    assert (merged.paths, merged.kinds, merged.why) == ((), (), "")
    world.git("checkout", "-q", "--detach", ours)
    world.git("merge", "-q", "--no-edit", theirs)
    assert merged.tree == world.git("rev-parse", "HEAD^{tree}")


def test_errors_are_neither_clean_nor_conflicts_and_stop_no_other_merge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I18: a bad ref and unrelated histories are unknown."""
    world.adopt(monkeypatch)
    one = commit_on(world, "one", {"a": "1\n"})
    other = commit_on(world, "other", {"a": "2\n"})
    alien = commit_on(world, "alien", {"z": "1\n"}, base="")
    blob = world.git("rev-parse", "main:README.md")
    gone = "f" * 40
    pairs = [(one, gone), (one, other), (one, alien), (one, blob), (one, one), ("nope", one)]
    found = integrations.merge_all(git_dir(world), pairs)
    expected = ["unknown", "conflict", "unknown", "unknown", "clean", "unknown"]
    assert [merged.outcome for merged in found] == expected
    assert "unrelated histories" in found[2].why
    assert all(merged.why for merged in found if merged.outcome == "unknown")
    assert integrations.merge_all(git_dir(world), []) == []


def test_an_old_git_is_exit_4(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three outcomes, not a guess: without --write-tree there is none."""
    old = world.root / "bin" / "git"
    usage = "usage: git merge-tree <base-tree> <branch1> <branch2>"
    old.write_text(
        f"#!/bin/sh\ncase \"$*\" in *merge-tree*) echo '{usage}' >&2; exit 129;; esac\n"
        f'exec {shutil.which("git")} "$@"\n'
    )
    old.chmod(0o755)
    world.adopt(monkeypatch)
    with pytest.raises(SkillError) as caught:
        integrations.merge(git_dir(world), "a", "b")
    assert (caught.value.code, int(caught.value.exit_code)) == ("git-too-old", 4)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("1\0" + "a" * 40 + "\0\0\0", [Merged("clean", "a" * 40)]),
        ("1\0" + "a" * 64 + "\0\0\0", [Merged("clean", "a" * 64)]),
        ("7\0" + "a" * 40 + "\0\0\0", [Merged("unknown", why="git merge-tree answers '7'")]),
        # Cut off: what is there is read, nothing is made up.
        ("0\0" + "a" * 40 + "\x00100644 b 1\tp", [Merged("conflict", "a" * 40, ("p",))]),
        ("error: something else\0", []),
    ],
)
def test_what_merge_tree_prints_is_read_with_care(text: str, found: list[Merged]) -> None:
    assert integrations.parse_merges(text) == found


@pytest.mark.parametrize("name", ["plain", 'with "quotes"', "with:colon", "back\\slash"])
def test_a_scratch_folder_takes_all_objects_and_goes(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Wherever the repository lies: the list of object folders is parted by colons."""
    world.repo = world.repo.rename(world.root / name)
    world.adopt(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(world.home))
    ours = commit_on(world, "ours", {"a": "1\n"})
    theirs = commit_on(world, "theirs", {"b": "1\n"})
    objects = world.repo / ".git" / "objects"
    before = sorted(objects.rglob("*"))
    with integrations.scratch(git_dir(world)) as env:
        merged = integrations.merge(git_dir(world), ours, theirs, env)
        assert merged.outcome == "clean"
        assert world.git("cat-file", "-t", merged.tree, check=False) == ""
        # Another file system may be many times slower.
        assert list(world.home.iterdir()) == []
        assert os.path.dirname(env["GIT_OBJECT_DIRECTORY"]) == git_dir(world)
    assert sorted(objects.rglob("*")) == before
    assert not list((world.repo / ".git").glob(f"{integrations.SCRATCH}*"))


def test_a_scratch_folder_of_a_repository_to_read_stands_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.adopt(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(world.home))

    def may_write(path: str, _: int) -> bool:
        # Root may write anywhere.
        return path != git_dir(world)

    monkeypatch.setattr(os, "access", may_write)
    with integrations.scratch(git_dir(world)) as env:
        assert os.path.dirname(env["GIT_OBJECT_DIRECTORY"]) == str(world.home)
    assert list(world.home.iterdir()) == []


def test_only_what_nobody_holds_is_swept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.adopt(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(world.home))
    left = [
        Path(git_dir(world)) / f"{integrations.SCRATCH}1",
        world.home / f"{integrations.SCRATCH}2",
    ]
    for folder in left:
        write(folder, {"aa/b": "1\n"})
    records.make_dir(records.home(git_dir(world)))
    with integrations.scratch(git_dir(world)) as env:
        integrations.sweep_scratch(git_dir(world))
        assert os.path.isdir(env["GIT_OBJECT_DIRECTORY"])
    assert not any(folder.exists() for folder in left)
    assert os.path.isdir(records.home(git_dir(world)))


def test_objects_of_the_repository_are_written_as_its_settings_say(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is only to be looked at is not pressed; what stays is."""
    world.adopt(monkeypatch)
    words: list[tuple[str, ...]] = []
    real = git.git

    def noted(cwd: str, *arguments: str, **more: Any) -> Any:
        words.append(arguments)
        return real(cwd, *arguments, **more)

    monkeypatch.setattr(git, "git", noted)
    base = commit_on(world, "base", {"a": TEXT})
    changed = commit_on(world, "work", {"a": TEXT + "x\n"}, base=base)
    integrations.apply_change(git_dir(world), base, base, changed)
    assert not any(integrations.SCRATCH_CONFIG[1] in one for one in words)
    with integrations.scratch(git_dir(world)) as env:
        integrations.merge(git_dir(world), base, changed, env)
    assert integrations.SCRATCH_CONFIG[1] in words[-1]


def test_a_change_is_applied_as_by_a_cherry_pick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.adopt(monkeypatch)
    base = commit_on(world, "base", {"a": TEXT})
    changed = commit_on(world, "work", {"a": TEXT + "x\n"}, {"a": "y\n" + TEXT + "x\n"}, base=base)
    onto = commit_on(world, "onto", {"a": TEXT.replace("line 9", "nine")}, base=base)
    merged = integrations.apply_change(git_dir(world), onto, f"{changed}^", changed)
    assert merged.outcome == "clean"
    assert world.git("cat-file", "blob", f"{merged.tree}:a").startswith("y\nline 0")
    assert "x" not in world.git("cat-file", "blob", f"{merged.tree}:a").splitlines()
    clash = commit_on(world, "clash", {"a": "z\n"}, base=base)
    assert integrations.apply_change(git_dir(world), clash, f"{changed}^", changed).paths == ("a",)
    # And backwards, as by a revert.
    merged = integrations.apply_change(git_dir(world), changed, changed, f"{changed}^")
    assert merged.tree == world.git("rev-parse", f"{changed}^^{{tree}}")


# --- Commits --------------------------------------------------------------------------------


def gpg(world: World, script: str) -> None:
    """Sign every commit, by this program."""
    path = world.root / "bin" / "my-gpg"
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    world.git("config", "commit.gpgSign", "true")
    world.git("config", "gpg.program", str(path))


def signed(world: World, limit: float = 20.0) -> str:
    signing = integrations.signing_of(str(world.repo))._replace(limit=limit)
    tree = world.git("rev-parse", "HEAD^{tree}")
    return integrations.write_commit(git_dir(world), tree, ["HEAD"], b"m\n", signing)


def test_a_commit_is_signed_where_the_user_signs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.adopt(monkeypatch)
    assert integrations.signing_of(str(world.repo)) == Signing(False)
    script = "cat >/dev/null\necho SIGNATURE\necho '[GNUPG:] SIG_CREATED ' >&2\n"
    gpg(world, script)
    assert "SIGNATURE" in world.git("cat-file", "commit", signed(world))
    # A commit that serves only to merge is never signed.
    gpg(world, "exit 1\n")
    base = world.git("rev-parse", "HEAD")
    work = commit_on(world, "work", {"a": "1\n"})
    assert integrations.apply_change(git_dir(world), base, base, work).outcome == "clean"


@pytest.mark.parametrize(
    ("script", "word"), [("exit 2\n", "gpg failed to sign"), ("sleep 77\n", "0.5 s")]
)
def test_signing_that_fails_or_waits_for_a_prompt_ends_with_a_reason(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str, word: str
) -> None:
    """I28: a pinentry that nobody sees; nothing of it is left at work."""
    world.adopt(monkeypatch)
    gpg(world, script)
    with pytest.raises(SkillError) as caught:
        signed(world, 0.5)
    assert (caught.value.code, int(caught.value.exit_code)) == ("signing-failed", 1)
    assert word in caught.value.message
    assert not [line for line in world.processes().values() if "sleep 77" in line]


def test_nobody_known_to_git_is_exit_4(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = world.adopt(monkeypatch)
    assert integrations.require_identity(repo.top).startswith("Test <test@example.invalid>")
    Path(world.env["GIT_CONFIG_GLOBAL"]).write_text("[user]\n\tuseConfigOnly = true\n")
    with pytest.raises(SkillError) as caught:
        integrations.require_identity(repo.top)
    assert (caught.value.code, int(caught.value.exit_code)) == ("no-identity", 4)


def test_the_commits_of_a_branch_are_read_whatever_they_say(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user setting that changes what `git log` prints is set."""
    repo = world.adopt(monkeypatch)
    for name, value in (
        ("log.showSignature", "true"), ("log.date", "iso"), ("format.pretty", "oneline"),
        ("color.ui", "always"), ("log.decorate", "full"), ("log.abbrevCommit", "true"),
        ("log.mailmap", "true"), ("diff.external", "false"),
    ):  # fmt: skip
        world.git("config", name, value)
    (world.repo / ".mailmap").write_text("Someone Else <x@y> <test@example.invalid>\n")
    text = "subject \u00e9\n\nbody\n\n  indented, trailing\n"
    head = commit_on(world, "work", {"a": "1\n"}, {"b": "1\n"}, message=text)
    found = integrations.commits_between(repo.common_dir, "main", head)
    assert [commit.id for commit in found] == [world.git("rev-parse", "work^"), head]
    assert found[0].parents == [world.git("rev-parse", "main")]
    assert found[1].author == integrations.Author(
        "Test", "test@example.invalid", "1700000001 +0000"
    )
    assert found[1].message.strip() == text.strip().encode()
    assert integrations.commits_between(repo.common_dir, "main", head, "--merges") == []
