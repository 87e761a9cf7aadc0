"""Approvals and rejections: what they are bound to, and what refuses them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fanout import records
from inside import Call, integrate, refusal
from world import SCRIPTS, World

__all__ = ["integrate"]
INTEGRATE = SCRIPTS / "integrate_workers.py"


def made(world: World, name: str = "w1", file: str = "a.txt", **fields: Any) -> tuple[Path, str]:
    """A worker with one commit that adds a file; its tree and tip."""
    tree = world.quick(name, **fields)
    path = tree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a\n")
    return tree, world.commit(f"add {file}", tree)


def reviews(world: World, name: str = "w1") -> list[str]:
    """The files of a worker's reviews."""
    folder = world.record(name) / "reviews"
    return sorted(os.listdir(folder)) if folder.is_dir() else []


# --- What is recorded -----------------------------------------------------------------------


@pytest.mark.parametrize("digits", [7, 40])
def test_an_approval_is_bound_to_base_head_and_tree(
    world: World, integrate: Call, digits: int
) -> None:
    _, tip = made(world)
    before = world.snapshot()
    ran = integrate("approve", "w1", "--commit", tip[:digits].upper(), "--note", "--read")
    approval = ran.data["approval"]
    assert ran.code == 0
    assert approval["verdict"] == "approved"
    assert (approval["head"], approval["base"]) == (tip, world.git("rev-parse", "main"))
    assert approval["tree"] == world.git("rev-parse", f"{tip}^{{tree}}")
    assert (approval["by"], approval["note"]) == ("Test", "--read")
    assert reviews(world) == [f"{tip}.json"]
    kept = json.loads((world.record("w1") / "reviews" / f"{tip}.json").read_text())
    assert kept == {"schema": 1, **approval}
    log = (world.record("w1") / "events.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["event"] == "reviewed"
    (action,) = ran.json["next_actions"]
    assert action["action"] == "merge"
    assert world.snapshot() == before
    again = integrate("review", "w1", "--stat").data["approval"]
    assert (again["state"], again["head"]) == ("approved", tip)


def test_the_command_answers_a_person_and_names_who_decides(world: World) -> None:
    _, tip = made(world)
    call = ["approve", "w1", "--commit", tip, "--by", "A. Reviewer", "--note", "red\x1b[31m"]
    ran = world.run(*call, script=INTEGRATE)
    assert ran.code == 0
    assert ran.out.startswith(f"w1: approved at {tip} by A. Reviewer: red\n")
    assert "merge w1" in ran.err


def test_a_rejection_changes_nothing_else(world: World, integrate: Call) -> None:
    """I36: untracked notes in the main tree, and the worker's own files, stay as they are."""
    tree, tip = made(world)
    (tree / "more.txt").write_text("not committed\n")
    (world.repo / "notes.txt").write_text("mine\n")
    before = (world.snapshot(), world.bytes_of(tree), world.git("status", "--short", cwd=tree))
    approval = integrate("reject", "w1", "--reason", "no tests").data["approval"]
    assert (approval["verdict"], approval["note"], approval["head"]) == (
        "rejected",
        "no tests",
        tip,
    )
    after = (world.snapshot(), world.bytes_of(tree), world.git("status", "--short", cwd=tree))
    assert after == before
    found = integrate("review", "w1", "--stat").data["approval"]
    assert (found["state"], found["why"]) == ("rejected", "rejected: no tests")


def test_the_last_word_on_a_commit_counts(world: World, integrate: Call) -> None:
    _, tip = made(world)
    for words, state in (
        (["approve", "w1", "--commit", tip], "approved"),
        (["reject", "w1", "--reason", "oh"], "rejected"),
        (["approve", "w1", "--commit", tip], "approved"),
    ):
        assert integrate(*words).code == 0
        assert integrate("review", "w1", "--stat").data["approval"]["state"] == state


@pytest.mark.parametrize("how", ["commit", "amend", "base"])
def test_another_commit_or_base_voids_it(world: World, integrate: Call, how: str) -> None:
    """I14."""
    tree, tip = made(world)
    integrate("approve", "w1", "--commit", tip)
    if how == "commit":
        world.commit("more", tree)
    elif how == "amend":
        world.git("commit", "-q", "--amend", "-m", "other words", cwd=tree)
    else:
        record = world.record("w1") / "worker.json"
        fields = json.loads(record.read_text())
        other = world.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "other")
        record.write_text(json.dumps({**fields, "base": other}))
    found = integrate("review", "w1", "--stat").data["approval"]
    assert (found["state"], found["head"]) == ("void", tip)
    assert found["why"]


# --- What refuses ---------------------------------------------------------------------------


def test_a_commit_that_is_not_the_tip_is_never_taken_for_it(world: World, integrate: Call) -> None:
    """I14, I16: both ids are told, and nothing is recorded."""
    tree, first = made(world)
    (tree / "b.txt").write_text("b\n")
    tip = world.commit("later", tree)
    ran = integrate("approve", "w1", "--commit", first)
    assert (ran.code, ran.error["code"]) == (3, "not-the-tip")
    assert (ran.data["commit"], ran.data["tip"]) == (first, tip)
    assert first in ran.error["message"]
    assert tip in ran.error["message"]
    assert reviews(world) == []


@pytest.mark.parametrize("word", ["main", "HEAD", "w1", "", "abc", "0" * 65, "g" * 40, "--json"])
def test_a_word_that_is_no_id_is_no_commit(world: World, integrate: Call, word: str) -> None:
    made(world)
    error = refusal(integrate, 2, "approve", "w1", f"--commit={word}")
    assert error["code"] == "invalid-commit"
    assert refusal(integrate, 2, "approve", "w1")["code"] == "usage"
    assert reviews(world) == []


def test_the_beginning_of_two_ids_is_refused(world: World, integrate: Call) -> None:
    """A blob whose id begins with the same seven digits is as good as a commit here."""
    _, tip = made(world)
    objects = world.repo / ".git" / "objects" / tip[:2]
    name = tip[2:7] + "0" * 33
    assert name not in os.listdir(objects)
    (objects / name).write_bytes((objects / tip[2:]).read_bytes())
    error = refusal(integrate, 2, "approve", "w1", "--commit", tip[:7])
    assert error["code"] == "ambiguous-commit"
    assert integrate("approve", "w1", "--commit", tip).code == 0


def test_a_branch_named_like_the_beginning_of_an_id_is_not_asked(
    world: World, integrate: Call
) -> None:
    _, tip = made(world)
    world.git("update-ref", f"refs/heads/{tip[:8]}", "main")
    world.git("tag", "w1", "main")
    assert integrate("approve", "w1", "--commit", tip[:8]).data["approval"]["head"] == tip


@pytest.mark.parametrize("how", ["modified", "staged", "untracked", "deleted", "assumed"])
def test_files_that_would_be_no_part_of_it_are_named(
    world: World, integrate: Call, how: str
) -> None:
    tree, tip = made(world, file="a file.txt")
    if how == "untracked":
        (tree / "new ünï.txt").write_text("x\n")
    elif how == "deleted":
        (tree / "a file.txt").unlink()
    else:
        if how == "assumed":
            world.git("update-index", "--assume-unchanged", "a file.txt", cwd=tree)
        (tree / "a file.txt").write_text("other\n")
    if how == "staged":
        world.git("add", "-A", cwd=tree)
    ran = integrate("approve", "w1", "--commit", tip)
    assert (ran.code, ran.error["code"]) == (3, "not-committed")
    path = "new ünï.txt" if how == "untracked" else "a file.txt"
    assert ran.data["paths"] == [path]
    assert path in ran.error["message"]
    assert reviews(world) == []


def test_our_copies_and_ignored_files_are_no_part_of_the_work(
    world: World, integrate: Call
) -> None:
    from fanout.workers import fingerprint

    tree, tip = made(world)
    (tree / "copied.txt").write_text("ours\n")
    record = world.record("w1") / "worker.json"
    copied = {"copied.txt": fingerprint(str(tree / "copied.txt"))}
    record.write_text(json.dumps({**json.loads(record.read_text()), "copied": copied}))
    (tree / ".worker-runs").mkdir()
    (tree / ".worker-runs" / "events.jsonl").write_text("{}\n")
    assert integrate("approve", "w1", "--commit", tip).code == 0


def test_a_branch_without_commits_cannot_be_approved(world: World, integrate: Call) -> None:
    """I24."""
    tree = world.quick("w1")
    for number in range(3):
        (tree / f"{number}.txt").write_text("x\n")
    tip = world.git("rev-parse", "w1")
    error = refusal(integrate, 3, "approve", "w1", "--commit", tip)
    assert error["code"] == "no-commits"
    assert "nothing committed, 3 dirty files" in error["message"]
    assert "0.txt, 1.txt, 2.txt" in error["message"]


def test_each_path_outside_of_what_it_owns_needs_a_reason(world: World, integrate: Call) -> None:
    tree, _ = made(world, file="src/in.py", owns=["src/**", "docs/[a].md"])
    for path in ("out.txt", "b [x].txt", "docs/a.md", "srcs.py"):
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text("x\n")
    world.git("rm", "-q", "README.md", cwd=tree)
    tip = world.commit("more", tree)
    call = ["approve", "w1", "--commit", tip]
    ran = integrate(*call)
    assert (ran.code, ran.error["code"]) == (3, "out-of-scope")
    outside = ["README.md", "b [x].txt", "out.txt", "srcs.py"]
    assert ran.data["paths"] == outside
    one = ["--allow-out-of-scope", "out.txt", "--reason", "the seam"]
    assert integrate(*call, *one).data["paths"] == ["README.md", "b [x].txt", "srcs.py"]
    rest = [word for path in ran.data["paths"] if path != "out.txt"
            for word in ("--allow-out-of-scope", path)]  # fmt: skip
    approval = integrate(*call, *one, *rest, "--reason", "asked for").data["approval"]
    assert {r["path"]: r["reason"] for r in approval["out_of_scope"]} == {
        "README.md": "asked for", "b [x].txt": "asked for", "out.txt": "the seam",
        "srcs.py": "asked for",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--allow-out-of-scope", "out.txt"], "usage"),
        (["--reason", "why"], "usage"),
        (["--allow-out-of-scope", "out.txt", "--reason", " "], "usage"),
        (["--allow-out-of-scope", "*.txt", "--reason", "all"], "not-out-of-scope"),
        (["--allow-out-of-scope", "src/in.py", "--reason", "why"], "not-out-of-scope"),
    ],
)
def test_a_permission_names_one_path_and_one_reason(
    world: World, integrate: Call, words: list[str], code: str
) -> None:
    tree, _ = made(world, file="src/in.py", owns=["src/**"])
    (tree / "out.txt").write_text("x\n")
    tip = world.commit("more", tree)
    assert refusal(integrate, 2, "approve", "w1", "--commit", tip, *words)["code"] == code
    assert reviews(world) == []


def test_a_worker_that_another_command_holds_is_busy(world: World, integrate: Call) -> None:
    _, tip = made(world)
    common = str(world.repo / ".git")
    with records.lock(common, "worker-w1", wait=0, what="it"):
        assert refusal(integrate, 11, "approve", "w1", "--commit", tip)["code"] == "busy"
        assert refusal(integrate, 11, "reject", "w1", "--reason", "x")["code"] == "busy"
    assert reviews(world) == []


def test_a_tree_on_another_branch_says_nothing_about_the_work(
    world: World, integrate: Call
) -> None:
    tree, tip = made(world)
    world.git("checkout", "-q", "-b", "elsewhere", cwd=tree)
    error = refusal(integrate, 3, "approve", "w1", "--commit", tip)
    assert error["code"] == "worktree-mismatch"


def test_a_branch_that_is_gone_cannot_be_decided_on(world: World, integrate: Call) -> None:
    tree, tip = made(world)
    world.git("worktree", "remove", "--force", str(tree))
    world.git("branch", "-q", "-D", "w1")
    for call in (
        ["approve", "w1", "--commit", tip],
        ["reject", "w1", "--reason", "x"],
        ["review", "w1"],
    ):
        assert refusal(integrate, 3, *call)["code"] == "branch-missing"


def test_git_must_know_who_decides(world: World, integrate: Call) -> None:
    _, tip = made(world)
    world.git("config", "user.name", "")
    assert refusal(integrate, 2, "approve", "w1", "--commit", tip)["code"] == "usage"
    assert integrate("approve", "w1", "--commit", tip, "--by", "me").code == 0


# --- Names, branches, damage ----------------------------------------------------------------


@pytest.mark.parametrize("branch", ["w1", "feature/ünï'x", "a.b"])
def test_plain_branches_are_candidates_by_their_name(
    world: World, integrate: Call, branch: str
) -> None:
    world.git("branch", branch)
    world.git("tag", branch)
    tip = world.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "by any harness")
    world.git("update-ref", f"refs/heads/{branch}", tip)
    chosen = ["--branch", branch, "--base", "main"]
    assert integrate("review", *chosen, "--stat").data["worker"]["name"] == branch
    approval = integrate("approve", *chosen, "--commit", tip).data["approval"]
    assert (approval["name"], approval["branch"]) == (branch, branch)
    (folder,) = (world.repo / ".git" / "agent-workers" / "branches").iterdir()
    assert (folder / "reviews" / f"{tip}.json").exists()
    found = integrate("review", *chosen, "--stat")
    assert found.data["approval"]["state"] == "approved"
    assert integrate("reject", *chosen, "--reason", "no").data["approval"]["head"] == tip


@pytest.mark.parametrize(
    "verb",
    [["review"], ["collect"], ["approve", "--commit", "a" * 40], ["reject", "--reason", "x"]],
)
def test_what_is_not_known_is_an_invalid_input(
    world: World, integrate: Call, verb: list[str]
) -> None:
    world.quick("w1")
    world.git("branch", "b1")
    for words, code in (
        (["nobody"], "unknown-worker"),
        (["../x"], "invalid-name"),
        ([], "usage"),
        (["--branch", "none", "--base", "main"], "unknown-branch"),
        (["--branch", "b1"], "usage"),
        (["--branch", "b1", "--base", "none"], "unknown-ref"),
        (["w1", "--branch", "b1", "--base", "main"], "usage"),
        (["--branch", "b1", "--branch", "w1", "--base", "main"], "usage"),
        (["w1", "--run", str(world.root / "none")], "unknown-run"),
    ):
        assert refusal(integrate, 2, *verb[:1], *words, *verb[1:])["code"] == code, words


def test_damaged_records_are_reported_by_name(world: World, integrate: Call) -> None:
    _, tip = made(world)
    integrate("approve", "w1", "--commit", tip)
    review = world.record("w1") / "reviews" / f"{tip}.json"
    review.write_text('{"schema": 1}')
    assert str(review) in refusal(integrate, 1, "review", "w1")["message"]
    (world.record("w1") / "worker.json").write_text("{")
    error = refusal(integrate, 1, "approve", "w1", "--commit", tip)
    assert error["code"] == "record-damaged"
    assert "w1/worker.json" in error["message"]
    assert review.read_text() == '{"schema": 1}'


@pytest.mark.parametrize("verb", ["", "review", "collect", "approve", "reject"])
def test_help_has_purpose_example_and_exit_codes(integrate: Call, verb: str) -> None:
    ran = integrate(*([verb] if verb else []), "--help", as_json=False, leaves=True)
    assert (ran.code, ran.err) == (0, "")
    assert f"integrate_workers.py {verb}".strip() in ran.out.splitlines()[0]
    assert "\n  integrate_workers.py " + verb in ran.out
    assert "exit codes:\n    0  done\n" in ran.out
