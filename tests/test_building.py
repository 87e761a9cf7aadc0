"""Building a result: changelog entries go where the repository keeps them, one by one."""

from __future__ import annotations

import os
from itertools import permutations
from typing import Any

import pytest

from fanout import building
from fanout.candidates import Candidate
from merge_world import Changes, Entry, Merges, commit_on, link, merges, on_main, write
from world import World

__all__ = ["merges"]

BOOK = """# Changelog

## [Unreleased]

### Added

- Old thing.

## [1.0.0] - 2026-01-01

### Added

- First.
"""


def with_line(line: str, book: str = BOOK) -> str:
    """The book with one more entry, at the place that every branch would choose."""
    return book.replace("- Old thing.\n", f"- Old thing.\n- {line}\n")


def ready(merges: Merges, *names: str) -> None:
    """Workers that have edited the same line of the book, approved."""
    for name in names:
        merges.work(name, {f"{name}.txt": name, "CHANGELOG.md": with_line(name)}, entry=False)
    merges.approve(*names)


@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase", "cherry-pick"])
def test_two_that_edited_the_same_lines_of_the_book(merges: Merges, strategy: str) -> None:
    on_main(merges.world, {"CHANGELOG.md": BOOK})
    ready(merges, "w1", "w2")
    foreseen = merges.ok("forecast", "w1", "w2")
    assert [row["outcome"] for row in (*foreseen["targets"], *foreseen["pairs"])] == ["clean"] * 3
    assert (foreseen["asked"]["outcome"], foreseen["order"]) == ("clean", ["w1", "w2"])
    ran = merges.call("merge", "w1", "w2", "--strategy", strategy)
    assert ran.code == 0, ran.err
    wanted = BOOK.replace("- Old thing.\n", "- Old thing.\n- w1\n- w2\n")
    assert (merges.repo / "CHANGELOG.md").read_text() == wanted


def test_the_same_entry_of_two_stands_once_also_under_union(merges: Merges) -> None:
    """I22: git's union would keep both, and say nothing."""
    on_main(merges.world, {"CHANGELOG.md": BOOK, ".gitattributes": "CHANGELOG.md merge=union\n"})
    for name in ("w1", "w2"):
        changes = {f"{name}.txt": name, "CHANGELOG.md": with_line("The same news")}
        merges.work(name, changes, entry=False)
    merges.approve("w1", "w2")
    assert merges.call("merge", "w1", "w2").code == 0
    assert (merges.repo / "CHANGELOG.md").read_text() == with_line("The same news")


def test_a_release_that_was_cut_meanwhile_keeps_its_entries(merges: Merges) -> None:
    on_main(merges.world, {"CHANGELOG.md": BOOK})
    ready(merges, "w1")
    cut = BOOK.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [1.1.0] - 2026-02-02\n")
    on_main(merges.world, {"CHANGELOG.md": cut})
    assert merges.call("merge", "w1").code == 0
    book = (merges.repo / "CHANGELOG.md").read_text()
    unreleased, _, released = book.partition("## [1.1.0]")
    assert "- w1\n" in unreleased
    assert "w1" not in released


def test_what_is_more_than_an_entry_is_a_conflict(merges: Merges) -> None:
    on_main(merges.world, {"CHANGELOG.md": BOOK})
    for name in ("w1", "w2"):
        changes = {f"{name}.txt": name, "CHANGELOG.md": BOOK.replace("First.", f"{name}.")}
        merges.work(name, changes, entry=False)
    merges.approve("w1", "w2")
    ran = merges.call("merge", "w1", "w2", "--no-changelog-needed", "w1=x", "--no-changelog-needed",
                     "w2=x")  # fmt: skip
    assert ran.code == 10, ran.err
    (row,) = ran.data["blocked"]
    assert (row["code"], row["paths"]) == ("conflict", ["CHANGELOG.md"])


def test_a_fragment_tool_gets_a_fragment_and_the_book_is_left_alone(merges: Merges) -> None:
    settings = '[tool.towncrier]\ndirectory = "newsfragments"\n'
    on_main(merges.world, {"towncrier.toml": settings, "CHANGELOG.md": BOOK})
    merges.work("w1", {"w1.txt": "w1"})
    merges.approve("w1")
    ran = merges.call("merge", "w1")
    assert ran.code == 0, ran.err
    (path,) = ran.data["changelog"]["files"]
    assert path.startswith("newsfragments/")
    assert "What w1 made." in (merges.repo / path).read_text()
    assert (merges.repo / "CHANGELOG.md").read_text() == BOOK


def test_a_book_that_is_a_link_is_refused_and_stays_one(merges: Merges) -> None:
    on_main(merges.world, {"CHANGELOG.md": link("docs.md"), "docs.md": BOOK})
    merges.work("w1", {"w1.txt": "w1"})
    merges.approve("w1")
    tip = merges.git("rev-parse", "main")
    ran = merges.call("merge", "w1")
    assert ran.code == 3, ran.err
    assert merges.git("rev-parse", "main") == tip
    assert (merges.repo / "CHANGELOG.md").is_symlink()


def test_a_branch_of_no_worker_brings_its_entry_along(merges: Merges, world: World) -> None:
    on_main(world, {"CHANGELOG.md": BOOK})
    commit_on(world, "topic", {"t.txt": "t", "CHANGELOG.md": with_line("Topic")})
    words = ["--branch", "topic", "--base", "main"]
    assert merges.call("approve", *words, "--commit", merges.git("rev-parse", "topic")).code == 0
    assert merges.call("merge", *words).code == 0
    assert (merges.repo / "CHANGELOG.md").read_text() == with_line("Topic")


def test_a_subject_brings_no_control_characters_into_a_message(merges: Merges) -> None:
    """What an agent wrote there would steer the terminal of whoever reads the log."""
    evil = "fix \x1b]0;owned\x07\x1b[31mit\r\x08!\n\nbody\n"
    for name in ("w1", "w2"):
        tree = merges.world.quick(name)
        (tree / name).write_text("1\n")
        merges.world.commit(evil, tree)
    (merges.world.tree("w2") / "more").write_text("1\n")
    merges.world.commit("second", merges.world.tree("w2"))
    merges.approve("w1", "w2")
    exempt = ["--no-changelog-needed", "w1=x", "--no-changelog-needed", "w2=x"]
    assert merges.call("merge", "w1", "w2", *exempt).code == 0
    assert merges.git("log", "-1", "--format=%B", "main^1").startswith("Merge w1: fix it!\n")
    assert "* fix it!\n* second\n" in merges.git("log", "-1", "--format=%B", "main")


# --- Forecast -------------------------------------------------------------------------------


MODULES = '[submodule "s"]\n\tpath = s\n\turl = ./s\n\tignore = all\n'
TEXT = "".join(f"line {number}\n" for number in range(20))


def candidate(name: str, base: str, head: str, **fields: Any) -> Candidate:
    """A plain branch as a candidate."""
    values: dict[str, Any] = {
        "name": name, "kind": "branch", "branch": name, "base": base, "head": head,
        "worktree": "", "owns": [], "target": "refs/heads/main", "checks": [], "record": "",
        "changelog": "", **fields,
    }  # fmt: skip
    return Candidate(**values)


def foresee(
    world: World, patch: pytest.MonkeyPatch, *branches: str, base: str = "main"
) -> dict[str, Any]:
    """The forecast of plain branches into main, as an answer shows it."""
    repo = world.adopt(patch)
    heads = {name: world.git("rev-parse", f"refs/heads/{name}") for name in branches}
    tip = world.git("rev-parse", "refs/heads/main")
    start = world.git("rev-parse", base)
    found = [candidate(name, start, head) for name, head in heads.items()]
    return building.to_json(building.forecast(repo, found, "refs/heads/main", tip))


def outcomes(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The outcomes by name, or by both names."""
    return {"+".join(r[k] for k in ("name", "a", "b") if k in r): r["outcome"] for r in rows}


# --- Outcomes -------------------------------------------------------------------------------


def test_the_three_outcomes_of_each_and_of_each_two(merges: Merges) -> None:
    world = merges.world
    on_main(world, {"a": "1\n", "lib.py": TEXT})
    merges.work("renames", {"lib.py": None, "new.py": TEXT})
    merges.work("deletes", {"lib.py": None})
    merges.work("other", {"b": "1\n"})
    merges.work("busy", {"c": "1\n"})
    write(world.tree("busy"), {"d": "not committed\n", "c": "2\n"})
    world.quick("empty")
    on_main(world, {"b": "of main\n"})
    data = merges.ok("forecast", "renames", "deletes", "other", "busy", "empty")
    assert data["target"] == "refs/heads/main"
    assert data["tip"] == merges.tip()
    assert outcomes(data["targets"]) == {
        "renames": "clean", "deletes": "clean", "other": "conflict", "busy": "unknown",
        "empty": "clean",
    }  # fmt: skip
    rows = {row["name"]: row for row in data["targets"]}
    assert rows["other"]["paths"] == ["b"]
    assert rows["other"]["kinds"] == ["content"]
    assert "busy" in rows["busy"]["why"]
    assert data["uncommitted"] == [{"name": "busy", "paths": ["c", "d"]}]
    pairs = {(row["a"], row["b"]): row for row in data["pairs"]}
    assert len(pairs) == 10
    # I20: seen by --write-tree alone.
    assert pairs["renames", "deletes"]["outcome"] == "conflict"
    assert pairs["renames", "deletes"]["paths"] == ["lib.py", "new.py"]
    assert pairs["renames", "deletes"]["kinds"] == ["rename/delete"]
    assert pairs["renames", "busy"]["outcome"] == "unknown"
    assert pairs["renames", "other"]["outcome"] == "clean"
    assert data["order"] is None
    assert data["asked"]["outcome"] == "conflict"


def test_uncommitted_work_hides_no_conflict_that_is_there_already(merges: Merges) -> None:
    merges.work("w1", {"a": "1\n"})
    merges.work("w2", {"a": "2\n"})
    write(merges.world.tree("w2"), {"a": "3\n"})
    data = merges.ok("forecast")
    assert outcomes(data["targets"]) == {"w1": "clean", "w2": "unknown"}
    assert outcomes(data["pairs"]) == {"w1+w2": "conflict"}


def test_unrelated_and_missing_branches_are_unknown(merges: Merges) -> None:
    """I18: also where the files would not meet."""
    world = merges.world
    commit_on(world, "alien", {"README.md": "hello\n", "z": "1\n"}, base="")
    commit_on(world, "kin", {"a": "1\n"})
    merges.work("gone", {"b": "1\n"})
    world.git("worktree", "remove", "--force", str(world.tree("gone")))
    world.git("branch", "-q", "-D", "gone")
    data = merges.ok("forecast", "--branch", "alien", "--branch", "kin", "--base", "main")
    assert outcomes(data["targets"]) == {"alien": "unknown", "kin": "clean"}
    assert outcomes(data["pairs"]) == {"alien+kin": "unknown"}
    assert "unrelated" in data["targets"][0]["why"]
    (row,) = merges.ok("forecast", "gone")["targets"]
    assert (row["outcome"], row["paths"]) == ("unknown", [])
    assert "not there" in row["why"]


def test_what_is_no_worktree_of_its_own_is_unknown(merges: Merges) -> None:
    """A tree that was switched to another branch says nothing about the work."""
    merges.work("w1", {"a": "1\n"})
    merges.git("checkout", "-q", "-b", "elsewhere", cwd=merges.world.tree("w1"))
    data = merges.ok("forecast", "w1")
    assert outcomes(data["targets"]) == {"w1": "unknown"}
    assert "elsewhere" in data["uncommitted"][0]["paths"][0]


SHORTCUTS: dict[str, tuple[Changes, tuple[Changes, ...], tuple[Changes, ...], str, str]] = {
    # name: what both start from, what each does, who starts from whom, what git says
    "other files": ({"a": "1\n"}, ({"b": "1\n"},), ({"c": "1\n"},), "base", "clean"),
    "one file": ({"a": "1\n"}, ({"a": "2\n"},), ({"a": "3\n"},), "base", "conflict"),
    "a file where a folder is": ({}, ({"x": "1\n"},), ({"x/y/z": "1\n"},), "base", "conflict"),
    "a folder was renamed": (
        {"d/1": TEXT, "d/2": TEXT + "2"},
        ({"d/1": None, "d/2": None, "e/1": TEXT, "e/2": TEXT + "2"},), ({"d/3": "new\n"},),
        "base", "conflict",
    ),
    "one submodule": (
        {"s": Entry("160000", "1" * 40)}, ({"s": Entry("160000", "2" * 40)},),
        ({"s": Entry("160000", "3" * 40)},), "base", "conflict",
    ),
    # Counted from the base, it changes nothing in `f`.
    "built on the other, then taken back": (
        {"f": "0\n"}, ({"f": "1\n"}, {"f": "2\n"}), ({"f": "0\n"}, {"g": "1\n"}), "one~1",
        "conflict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_merge_that_is_left_out_would_have_been_clean(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Most pairs are decided by their files alone; that may never differ from a merge."""
    base, one, other, start, outcome = SHORTCUTS[name]
    on_main(world, base)
    # A setting that hides submodules hides no conflict.
    world.git("config", "submodule.s.ignore", "all")
    world.git("config", "diff.ignoreSubmodules", "all")
    commit_on(world, "one", *one)
    commit_on(world, "two", *other, base="main" if start == "base" else start)
    data = foresee(world, monkeypatch, "one", "two")
    assert outcomes(data["pairs"]) == {"one+two": outcome}
    assert outcomes(data["targets"]) == {"one": "clean", "two": "clean"}


def test_a_target_that_was_rewritten_is_merged_for_real(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the recorded base is not what the two have in common."""
    on_main(world, {"f": "1\n"})
    start = world.git("rev-parse", "main")
    commit_on(world, "w1", {"g": "1\n"})
    world.git("reset", "-q", "--hard", "HEAD~1")
    on_main(world, {"f": "other\n"})
    data = foresee(world, monkeypatch, "w1", base=start)
    assert outcomes(data["targets"]) == {"w1": "conflict"}
    assert data["targets"][0]["paths"] == ["f"]


# --- Orders ---------------------------------------------------------------------------------


def merged_by_git(world: World, order: tuple[str, ...]) -> bool:
    """Whether branches merge into main one after the other, as git does it."""
    tree = world.root / "merging"
    world.git("worktree", "add", "-q", "--detach", str(tree), "main")
    try:
        for branch in order:
            if "CONFLICT" in world.git("merge", "-q", "--no-edit", branch, cwd=tree, check=False):
                return False
        return True
    finally:
        world.git("worktree", "remove", "--force", str(tree))


def lines(mark: str, *changed: tuple[int, int]) -> str:
    """Twenty lines, of which those in the ranges are changed."""
    rows = [f"{mark} this is line {number} of twenty\n" for number in range(20)]
    for first, last in changed:
        rows[first:last] = [f"{mark} entirely other words {n}\n" for n in range(first, last)]
    return "".join(rows)


def only_one_order(world: World) -> str:
    """Branches x, y, z that merge in the order y, z, x alone; what they start from.

    A file that one renames is no longer known as such once main's and its own edits are in it, so
    whoever edits it under its old name has to come before.
    """
    on_main(world, {"a": lines("a"), "c": lines("c")})
    start = world.git("rev-parse", "main")
    commit_on(world, "x", {"a": None, "b": lines("a", (10, 17))})
    commit_on(world, "z", {"a": lines("a", (19, 20)), "c": None, "d": lines("c", (10, 17))})
    commit_on(world, "y", {"c": lines("c", (19, 20))})
    on_main(world, {"a": lines("a", (0, 7)), "c": lines("c", (0, 7))})
    return start


def test_an_order_is_found_that_alone_is_clean(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only one of six; git itself says so."""
    start = only_one_order(world)
    clean = [order for order in permutations("xyz") if merged_by_git(world, order)]
    assert clean == [("y", "z", "x")]
    data = foresee(world, monkeypatch, "x", "y", "z", base=start)
    assert set(outcomes(data["targets"]).values()) == {"clean"}
    assert set(outcomes(data["pairs"]).values()) == {"clean"}
    assert data["asked"]["outcome"] == "conflict"
    assert data["order"] == ["y", "z", "x"]
    assert data["every_order_tried"] is True


def test_more_than_six_are_ordered_step_by_step(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = only_one_order(world)
    others = [f"w{number}" for number in range(4)]
    for name in others:
        commit_on(world, name, {name: "1\n"}, base=start)
    data = foresee(world, monkeypatch, "x", *others, "y", "z", base=start)
    assert data["asked"]["outcome"] == "conflict"
    assert data["every_order_tried"] is False
    # Taking the next that merges, it took `x` too early, and says that it found none.
    assert data["order"] is None or merged_by_git(world, tuple(data["order"]))
    data = foresee(world, monkeypatch, *others, "y", "z", "x", base=start)
    assert data["order"] == [*others, "y", "z", "x"]


def test_the_order_asked_for_says_where_it_stops(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        commit_on(world, f"w{number}", {"a" if number else "b": f"{number}\n"})
    data = foresee(world, monkeypatch, "w0", "w1", "w2")
    assert data["asked"]["outcome"] == "conflict"
    assert data["asked"]["merged_before"] == ["w0", "w1"]
    assert data["asked"]["paths"] == ["a"]
    assert data["order"] is None
    assert data["every_order_tried"] is True


# --- What is not touched --------------------------------------------------------------------


def touched(world: World) -> dict[str, Any]:
    """All that a forecast must leave alone: trees, indexes, refs, objects, with their times.

    An object that git would have written, had it not been there, gets a new time, no more. So
    does the folder in which what it writes stands for a moment.
    """
    git_dir = world.repo / ".git"
    folders = [world.repo, world.root / "repo.worktrees"]
    return {
        str(p): (
            0 if "objects" in p.parts or p == git_dir else p.lstat().st_mtime_ns,
            p.is_file() and p.read_bytes(),
        )
        for folder in folders
        for p in folder.rglob("*")
    }


def test_twenty_branches_leave_nothing_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No loose object, no index, no file: also where most pairs have to be merged."""
    for number in range(20):
        commit_on(world, f"w{number:02}", {f"f{number // 2}": f"{number}\n"})
    monkeypatch.setenv("TMPDIR", str(world.home))
    before = touched(world)
    names = [f"w{number:02}" for number in range(20)]
    data = foresee(world, monkeypatch, *names)
    assert len(data["pairs"]) == 190
    troubled = {(r["a"], r["b"]) for r in data["pairs"] if r["outcome"] == "conflict"}
    assert troubled == {(f"w{n:02}", f"w{n + 1:02}") for n in range(0, 20, 2)}
    assert {row["path"] for row in data["shared_files"]} == {f"f{n}" for n in range(10)}
    assert touched(world) == before
    assert list(world.home.iterdir()) == []


def test_a_forecast_touches_no_tree_no_index_and_no_object(merges: Merges) -> None:
    """It works while workers run: with an index locked, staged work and a merge going on."""
    world = merges.world
    on_main(world, {"a": "1\n"})
    merges.work("w1", {"a": "2\n"})
    merges.work("w2", {"a": "3\n", "b": "1\n"})
    trees = [world.tree("w1"), world.tree("w2")]
    (world.repo / ".git" / "worktrees" / "w1" / "index.lock").touch()
    (world.repo / ".git" / "index.lock").touch()
    # Touched, so that git would write the index anew to remember that.
    os.utime(trees[0] / "a", (1, 1))
    write(trees[1], {"staged": "1\n", "loose": "1\n"})
    world.git("add", "staged", cwd=trees[1])
    write(world.repo, {"mine": "1\n", "a": "mine\n"})
    before = touched(world)
    data = merges.ok("forecast")
    assert outcomes(data["targets"]) == {"w1": "clean", "w2": "unknown"}
    assert outcomes(data["pairs"]) == {"w1+w2": "conflict"}
    assert touched(world) == before
    # In words too, and from a worker's own tree.
    ran = merges.call("forecast", cwd=trees[0], as_json=False)
    assert "w1 + w2: conflict: a [content]" in ran.out
    assert touched(world) == before


def test_no_program_of_the_users_is_run(merges: Merges) -> None:
    """Neither a merge driver of somebody's nor a diff program decides what is foreseen."""
    world = merges.world
    alarm = world.root / "bin" / "alarm"
    alarm.write_text(f"#!/bin/sh\necho called >> {world.root}/alarm\nexit 1\n")
    alarm.chmod(0o755)
    for name in ("diff.external", "core.fsmonitor", "pager.diff", "merge.tool", "core.editor"):
        world.git("config", name, str(alarm))
    world.git("config", "color.ui", "always")
    world.git("config", "merge.renames", "false")
    world.git("config", "rerere.enabled", "true")
    commit_on(world, "base", {"lib.py": TEXT})
    commit_on(world, "w1", {"lib.py": None, "new.py": TEXT}, base="base")
    commit_on(world, "w2", {"lib.py": TEXT + "x\n"}, base="base")
    hooks = world.repo / ".git" / "hooks"
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-merge-commit"):
        (hooks / name).symlink_to(alarm)
    (world.root / "alarm").unlink(missing_ok=True)
    data = merges.ok("forecast", "--branch", "w1", "--branch", "w2", "--base", "base")
    # Without renames it would be a conflict.
    assert outcomes(data["pairs"]) == {"w1+w2": "clean"}
    assert not (world.root / "alarm").exists()


# --- Files ----------------------------------------------------------------------------------


def test_files_that_several_change_and_those_outside_are_named(merges: Merges) -> None:
    world = merges.world
    on_main(world, {"shared": TEXT})
    merges.work("w1", {"shared": "x\n" + TEXT, "src/a": "1\n"}, owns=["src/**", "shared"])
    merges.work("w2", {"shared": TEXT + "x\n", "src/b": "1\n", "q": "1\n"}, owns=["src/**"])
    merges.work("w3", {"other": "1\n"})
    data = merges.ok("forecast")
    assert outcomes(data["pairs"])["w1+w2"] == "clean"
    assert data["shared_files"] == [{"path": "shared", "names": ["w1", "w2"]}]
    assert data["out_of_scope"] == [{"name": "w2", "paths": ["q", "shared"]}]
    assert data["order"] == ["w1", "w2", "w3"]
    text = merges.call("forecast", as_json=False).out
    assert "changed by several: shared (w1, w2)" in text
    assert "outside of what w2 owns: q, shared" in text


def test_the_order_that_is_clean_is_the_next_command(merges: Merges) -> None:
    start = only_one_order(merges.world)
    words = ["forecast", "--branch", "x", "--branch", "y", "--branch", "z", "--base", start]
    ran = merges.ends(0, *words)
    (action,) = ran.json["next_actions"]
    assert "--branch y --branch z --branch x" in action["command"]
    assert "no order is clean" not in merges.call(*words, as_json=False).out
    assert "clean order: y z x" in merges.call(*words, as_json=False).out


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        ([], "no-candidates", 2),
        (["nobody"], "unknown-worker", 2),
        (["--branch", "nobody", "--base", "main"], "unknown-branch", 2),
        (["--branch", "main"], "usage", 2),
        (["--branch", "main", "--base", "nothing"], "unknown-ref", 2),
        (["x", "--branch", "main", "--base", "main"], "usage", 2),
        (["--run", ".worker-runs/none"], "unknown-run", 2),
        (["--branch", "main", "--base", "main", "--into", "nothing"], "unknown-branch", 2),
    ],
)
def test_what_cannot_be_foreseen_is_said(
    merges: Merges, words: list[str], code: str, exit_code: int
) -> None:
    assert merges.ends(exit_code, "forecast", *words).error["code"] == code
