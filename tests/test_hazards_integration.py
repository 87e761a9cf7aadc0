"""The hazards of integration (I..), one test for each row, on real git."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from merge_world import ENTRIES, INTEGRATE, Merges, commit_on, merges, on_main, write
from world import wait_for

__all__ = ["merges"]
TEXT = "".join(f"line {number}\n" for number in range(20))


def test_I02_a_merge_that_fails_half_way_loses_no_edit(merges: Merges) -> None:  # noqa: N802
    on_main(merges.world, {"a": "1\n", "shut/x": "1\n"})
    # For root no folder is read-only; a name that is too long fails in the same place.
    merges.branch("w1", {"a": "2\n", "shut/x": "2\n", "n" * 300: "1\n"})
    (merges.repo / "shut").chmod(0o500)
    write(merges.repo, {"README.md": "dirty\n", "loose": "1\n"})
    merges.git("stash", "list")
    before, index = merges.world.snapshot(), merges.git("diff-index", "HEAD")
    assert merges.ends(3, "merge", "--branch", "w1", "--base", "main").error["code"] == (
        "checkout-failed"
    )
    assert merges.world.snapshot() == before
    assert merges.git("diff-index", "HEAD") == index
    assert merges.git("stash", "list") == ""
    (merges.repo / "shut").chmod(0o755)


def test_I04_an_edit_made_meanwhile_survives_a_failure(merges: Merges) -> None:  # noqa: N802
    on_main(merges.world, {"a": "1\n"})
    merges.branch("w1", {"a": "2\n", "b": "1\n"})
    words = ["merge", "--branch", "w1", "--base", "main", "--check"]
    # In a file that the merge changes, and in another one.
    for check, code in (("false", 10), ("true", 3)):
        edit = f"echo mine > {merges.repo}/a; echo mine > {merges.repo}/README.md; {check}"
        on_main_tip = merges.tip()
        merges.ends(code, *words, edit)
        assert (merges.repo / "a").read_text() == "mine\n"
        assert (merges.repo / "README.md").read_text() == "mine\n"
        assert not (merges.repo / "b").exists()
        assert merges.tip() == on_main_tip
        merges.git("checkout", "-q", "a")
    merges.ok(*words, f"echo again > {merges.repo}/README.md")
    assert (merges.repo / "README.md").read_text() == "again\n"


def test_I06_after_a_conflict_the_next_merge_works(merges: Merges) -> None:  # noqa: N802
    on_main(merges.world, {"a": "1\n"})
    merges.branch("w1", {"a": "2\n"})
    merges.branch("w2", {"b": "1\n"})
    on_main(merges.world, {"a": "3\n"})
    data = merges.blocked("conflict", "merge", "--branch", "w1", "--base", "main")
    assert data["blocked"][0]["paths"] == ["a"]
    assert not (merges.repo / ".git" / "MERGE_HEAD").exists()
    merges.same_as_head()
    merges.ok("merge", "--branch", "w2", "--base", "main")
    merges.same_as_head()


def test_I08_a_text_that_shows_markers_is_merged(merges: Merges) -> None:  # noqa: N802
    merges.branch("w1", {"doc.md": "    <<<<<<< example\n    =======\n    >>>>>>> other\n"})
    merges.ok("merge", "--branch", "w1", "--base", "main", "--check", "git diff --check HEAD~1")


def test_I10_unrelated_files_stand_in_nobodys_way(merges: Merges) -> None:  # noqa: N802
    merges.branch("w1", {"a": "1\n"})
    write(merges.repo, {"paper.pdf": b"%PDF\0", "README.md": "edited\n"})
    merges.ok("merge", "--branch", "w1", "--base", "main")
    assert merges.git("status", "--porcelain") == " M README.md\n?? paper.pdf"


def test_I12_the_target_may_be_checked_out_in_another_worktree(merges: Merges) -> None:  # noqa: N802
    second = merges.world.root / "second"
    merges.git("worktree", "add", "-q", "-b", "dev", str(second))
    merges.branch("w1", {"a": "1\n"})
    merges.ok("merge", "--branch", "w1", "--base", "main", "--into", "dev")
    assert (second / "a").read_text() == "1\n"
    assert merges.git("status", "--porcelain", cwd=second) == ""
    assert not (merges.repo / "a").exists()


def test_I14_a_commit_after_the_review_is_not_merged(merges: Merges) -> None:  # noqa: N802
    merges.ready("w1", {"a": "1\n"})
    write(merges.world.tree("w1"), {"b": "sneaked in\n"})
    merges.world.commit("one more", merges.world.tree("w1"))
    merges.refused("approval-void", "merge", "w1")


def test_I16_an_approval_names_the_tip(merges: Merges) -> None:  # noqa: N802
    tip = merges.work("w1", {"a": "1\n"})
    assert merges.call("approve", "w1").code == 2
    write(merges.world.tree("w1"), {"b": "1\n"})
    merges.world.commit("while it was read", merges.world.tree("w1"))
    assert merges.ends(3, "approve", "w1", "--commit", tip).error["code"] == "not-the-tip"
    merges.refused("unapproved", "merge", "w1")


def test_I18_an_error_is_no_conflict_and_no_conflict_an_error(merges: Merges) -> None:  # noqa: N802
    commit_on(merges.world, "alien", {"z": "1\n"}, base="")
    data = merges.ok("forecast", "--branch", "alien", "--base", "main")
    assert data["targets"][0]["outcome"] == data["asked"]["outcome"] == "unknown"
    ran = merges.ends(2, "forecast", "--branch", "bad ref", "--base", "main")
    assert ran.error["code"] == "unknown-branch"


def test_I20_a_rename_against_a_deletion_is_foreseen(merges: Merges) -> None:  # noqa: N802
    on_main(merges.world, {"lib.py": TEXT})
    merges.branch("w1", {"lib.py": None, "core.py": TEXT})
    merges.branch("w2", {"lib.py": None})
    words = ["--branch", "w1", "--branch", "w2", "--base", "main"]
    (pair,) = merges.ok("forecast", *words)["pairs"]
    assert (pair["outcome"], pair["paths"]) == ("conflict", ["core.py", "lib.py"])
    rows = merges.blocked("conflict", "merge", *words)["blocked"]
    assert rows[0]["paths"] == pair["paths"]


def test_I22_one_entry_written_by_two_is_there_once(merges: Merges) -> None:  # noqa: N802
    book = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Old.\n"
    on_main(merges.world, {".gitattributes": "CHANGELOG.md merge=union\n", "CHANGELOG.md": book})
    for name in ("w1", "w2"):
        merges.work(name, {name: "1\n", f"{ENTRIES}/{name}.md": "- The same thing.\n"}, entry=False)
        merges.approve(name)
    data = merges.ok("merge", "w1", "w2")
    assert merges.file("CHANGELOG.md").count("The same thing.") == 1
    assert len(data["changelog"]["added"]) == len(data["changelog"]["duplicates"]) == 1


def test_I24_what_was_never_committed_is_not_merged(merges: Merges) -> None:  # noqa: N802
    merges.world.quick("w1")
    write(merges.world.tree("w1"), {"a": "1\n", "b": "1\n"})
    ran = merges.refused("no-commits", "merge", "w1")
    assert ran.data["blocked"][0]["why"] == "nothing committed, 2 dirty files"
    assert merges.ok("report")["complete"] == []
    assert merges.cleanup("--merged").data["removed"] == []
    assert (merges.world.tree("w1") / "a").exists()


@pytest.mark.parametrize("strategy", ["merge", "squash", "rebase", "cherry-pick"])
def test_I26_clean_up_knows_integrated_work_by_its_record(  # noqa: N802
    merges: Merges, strategy: str
) -> None:
    """Also after the same lines changed again; not before it is merged, nor after an undo."""
    merges.ready("w1", {"a": "1\n", "b": "1\n"})
    on_main(merges.world, {"m": "1\n"})

    def cleaned() -> list[str]:
        ran = merges.cleanup("--merged", "--dry-run")
        return ran.data["removed"]

    assert cleaned() == []
    merges.ok("merge", "w1", "--strategy", strategy)
    assert cleaned() == ["w1"]
    undone = merges.ok("undo")
    assert undone["moved_back"] is True
    assert cleaned() == []
    merges.ok("merge", "w1", "--strategy", strategy)
    on_main(merges.world, {"a": "2\n"})
    ran = merges.cleanup("--merged", "--branch-delete")
    assert ran.data["removed"] == ["w1"]
    assert merges.world.branches() == {"main"}
    assert merges.file("a") == "2"


def test_work_that_was_taken_back_by_reverts_is_not_cleaned_up(merges: Merges) -> None:
    """Its commits are in the history, but nothing of it is there."""
    merges.ready("w1", {"a": "1\n"})
    merges.ok("merge", "w1")
    on_main(merges.world, {"m": "1\n"})
    assert merges.ok("undo")["moved_back"] is False
    assert merges.cleanup("--merged", "--branch-delete").data["removed"] == []
    assert "w1" in merges.world.branches()
    merges.ok("merge", "w1", "--strategy", "cherry-pick")
    assert merges.cleanup("--merged", "--branch-delete").data["removed"] == ["w1"]


def test_I28_a_prompt_for_a_signature_that_nobody_sees_is_bounded(  # noqa: N802
    merges: Merges,
) -> None:
    merges.ready("w1", {"a": "1\n"})
    gpg = merges.world.root / "bin" / "pinentry"
    gpg.write_text("#!/bin/sh\nsleep 97\n")
    gpg.chmod(0o755)
    merges.git("config", "commit.gpgSign", "true")
    merges.git("config", "gpg.program", str(gpg))
    before = merges.world.snapshot()
    ran = merges.ends(1, "merge", "w1", "--sign-timeout", "0.5")
    assert ran.error["code"] == "signing-failed"
    assert merges.world.snapshot() == before
    merges.tidy()
    assert not [line for line in merges.world.processes().values() if "sleep 97" in line]
    # The approval stands: with the key at hand it goes on.
    gpg.write_text("#!/bin/sh\ncat > /dev/null\necho SIGNED\necho '[GNUPG:] SIG_CREATED ' >&2\n")
    merges.ok("merge", "w1")
    for commit in ("main", "main^"):
        assert "SIGNED" in merges.git("cat-file", "commit", commit)


def test_I30_a_tag_with_the_branchs_name_is_not_taken_for_it(merges: Merges) -> None:  # noqa: N802
    merges.git("tag", "w1")
    merges.git("tag", "main")
    base = merges.git("rev-parse", "refs/heads/main")
    tip = merges.ready("w1", {"a": "1\n"}, base=base)
    on_main(merges.world, {"m": "1\n"})
    data = merges.ok("merge", "w1", "--check", "test -e a")
    assert data["merged"][0]["head"] == tip
    assert (merges.repo / "a").exists()
    assert merges.git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert merges.cleanup("w1", "--branch-delete").data["removed"] == ["w1"]
    assert merges.git("rev-parse", "refs/tags/w1", "refs/tags/main").split() == [base, base]


def test_I32_whoever_owns_a_tree_keeps_its_branch(merges: Merges) -> None:  # noqa: N802
    """Called from a worker's tree while the main checkout is on something else."""
    merges.ready("w1", {"a": "1\n"})
    merges.git("checkout", "-q", "-b", "mine")
    data = merges.ok("merge", "w1", cwd=merges.world.tree("w1"))
    assert data["integration"]["branch"] == "main"
    assert merges.git("symbolic-ref", "HEAD") == "refs/heads/mine"
    assert merges.git("symbolic-ref", "HEAD", cwd=merges.world.tree("w1")) == "refs/heads/w1"
    assert not (merges.repo / "a").exists()
    merges.same_as_head()


def test_I34_clean_up_deletes_the_recorded_branch_alone(merges: Merges) -> None:  # noqa: N802
    merges.git("branch", "w1-2")
    merges.ready("w1", {"a": "1\n"})
    merges.ok("merge", "w1")
    merges.git("branch", "w1-3", "main")
    assert merges.cleanup("--merged", "--branch-delete").data["removed"] == ["w1"]
    assert merges.world.branches() == {"main", "w1-2", "w1-3"}


def test_I36_a_rejection_touches_nothing(merges: Merges) -> None:  # noqa: N802
    merges.work("w1", {"a": "1\n"})
    write(merges.repo, {"notes": "mine\n", "README.md": "edited\n"})
    before = merges.world.bytes_of(merges.repo)
    tree = merges.world.bytes_of(merges.world.tree("w1"))
    merges.ok("reject", "w1", "--reason", "no tests")
    merges.refused("rejected", "merge", "w1")
    now = merges.world.bytes_of(merges.repo)
    assert {p for p in now if now[p] != before.get(p)} <= {
        p for p in now if p.startswith(".git/agent-workers/")
    }
    assert before.keys() <= now.keys()
    assert merges.world.bytes_of(merges.world.tree("w1")) == tree


def test_I38_a_tree_in_which_somebody_works_stays(merges: Merges) -> None:  # noqa: N802
    merges.ready("w1", {"a": "1\n"})
    merges.ok("merge", "w1")
    tree = merges.world.tree("w1")
    sibling = subprocess.Popen(["sleep", "91"], cwd=tree, env={"PATH": os.environ["PATH"]})
    try:
        wait_for(lambda: Path(f"/proc/{sibling.pid}/cwd").readlink() == tree, "its directory")
        ran = merges.cleanup("--merged")
        assert ran.data["removed"] == []
        assert tree.exists()
        assert "process" in json.dumps(ran.data["refused"])
    finally:
        sibling.kill()
        sibling.wait()
    assert merges.cleanup("--merged").data["removed"] == ["w1"]


# --- What an adversary found ----------------------------------------------------------------


def test_commits_below_the_base_that_nobody_approved_do_not_come_along(merges: Merges) -> None:
    bad = merges.branch("w1", {"bad": "x"})
    merges.ok("reject", "--branch", "w1", "--base", "main", "--reason", "bad")
    commit_on(merges.world, "w2", {"good": "x", "changelog.d/w2.md": "- Good.\n"}, base="w1")
    words = ["--branch", "w2", "--base", "w1"]
    merges.ok("approve", *words, "--commit", merges.git("rev-parse", "w2"))
    for strategy in ("merge", "squash"):
        ran = merges.refused("base-not-in-target", "merge", *words, "--strategy", strategy)
        assert bad[:12] in ran.data["blocked"][0]["why"]
    merges.ok("merge", *words, "--strategy", "cherry-pick")
    assert not (merges.repo / "bad").exists()


def test_what_is_stacked_comes_with_what_it_stands_on(merges: Merges) -> None:
    merges.branch("w1", {"one": "x"})
    merges.branch("w2", {"two": "x"}, base="w1")
    # Both are approved, each from its own base; w2 seen from main holds w1 as well.
    words = ["--branch", "w1", "--branch", "w2", "--base", "main"]
    tip = merges.git("rev-parse", "w2")
    merges.ok("approve", "--branch", "w2", "--base", "main", "--commit", tip)
    merges.ok("merge", *words)
    assert (merges.repo / "two").exists()


@pytest.mark.parametrize("words", [["switch", "-q", "other"], ["switch", "-q", "--detach"]])
def test_a_checkout_that_is_switched_while_checks_run_is_left_alone(
    merges: Merges, words: list[str]
) -> None:
    merges.git("branch", "other")
    merges.ready("w1", {"new.txt": "x"})
    switch = f"git -C {merges.repo} {' '.join(words)}"
    merges.ok("merge", "w1", "--check", switch)
    assert merges.git("status", "--porcelain") == ""
    assert not (merges.repo / "new.txt").exists()
    merges.git("switch", "-q", "main")
    assert (merges.repo / "new.txt").exists()


def test_a_checkout_that_comes_to_the_branch_while_checks_run_follows(merges: Merges) -> None:
    merges.ready("w1", {"new.txt": "x"})
    merges.git("switch", "-q", "-c", "other")
    merges.ok("merge", "w1", "--check", f"git -C {merges.repo} switch -q main")
    assert merges.git("status", "--porcelain") == ""
    assert (merges.repo / "new.txt").exists()


def test_a_checkout_on_a_name_for_the_branch_follows(merges: Merges) -> None:
    merges.git("symbolic-ref", "refs/heads/master", "refs/heads/main")
    merges.ready("w1", {"new.txt": "x"})
    (merges.repo / ".git" / "HEAD").write_text("ref: refs/heads/master\n")
    merges.ok("merge", "w1")
    assert merges.git("status", "--porcelain") == ""
    assert (merges.repo / "new.txt").exists()


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_an_edit_that_git_is_told_not_to_see_is_seen(merges: Merges, flag: str) -> None:
    merges.ready("w1", {"f": "x"})
    tree = merges.world.tree("w1")
    merges.git("update-index", flag, "f", cwd=tree)
    (tree / "f").write_text("hidden")
    assert merges.ok("forecast", "w1")["targets"][0]["outcome"] == "unknown"
    merges.refused("not-committed", "merge", "w1")


def test_an_ignored_file_that_comes_at_the_last_moment_is_kept(merges: Merges) -> None:
    on_main(merges.world, {".gitignore": "*.ign\n"})
    merges.ready("w1", {"new.txt": "x"})
    tree = merges.world.tree("w1")
    (tree / "new.ign").write_text("of w1")
    merges.git("add", "-f", "new.ign", cwd=tree)
    merges.git("commit", "-qm", "more", cwd=tree)
    merges.approve("w1")
    hook = merges.repo / ".git" / "hooks" / "reference-transaction"
    hook.write_text(
        f'#!/bin/sh\nif [ "$1" = prepared ] && grep -q refs/heads/main; then\n'
        f"echo precious >{merges.repo}/new.ign; fi\n"
    )
    hook.chmod(0o755)
    ran = merges.ends(3, "merge", "w1")
    assert ran.error["code"] == "local-edits"
    assert (merges.repo / "new.ign").read_text() == "precious\n"
    assert not (merges.repo / "new.txt").exists()


def test_a_second_undo_takes_nothing_more_back(merges: Merges) -> None:
    for name in ("w1", "w2"):
        merges.ready(name, {f"{name}.txt": name})
        merges.ok("merge", name)
    merges.ok("undo")
    merges.refused("already-undone", "undo")
    assert (merges.repo / "w1.txt").exists()


def test_a_verdict_that_changes_while_checks_run_counts(merges: Merges) -> None:
    merges.ready("w1", {"new.txt": "x"})
    call = f"{sys.executable} {INTEGRATE} reject w1 --reason bad --repo {merges.repo}"
    ran = merges.ends(10, "merge", "w1", "--check", call)
    assert ran.data["blocked"][0]["code"] == "rejected"
    assert not (merges.repo / "new.txt").exists()


def test_what_was_taken_back_is_known_by_its_recorded_base(merges: Merges) -> None:
    merges.branch("w1", {"new.txt": "x"})
    words = ["--branch", "w1", "--base", "main"]
    merges.ok("merge", *words)
    on_main(merges.world, {"later.txt": "x"})
    merges.ok("undo")
    merges.ok("merge", *words, "--strategy", "cherry-pick")
    assert (merges.repo / "new.txt").exists()


def test_a_report_is_written_over_no_file_but_a_report(merges: Merges) -> None:
    mine = merges.world.root / "mine.txt"
    mine.write_text("precious")
    merges.refused("output-exists", "report", "--output", str(mine))
    assert mine.read_text() == "precious"
    report = merges.world.root / "report.md"
    for _ in range(2):
        merges.ok("report", "--output", str(report))
