"""The command as a whole: help, the fixed JSON, exit codes, runs, and a life from end to end."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout import workers as life
from fanout.cli import integrate_workers
from fanout.errors import MEANINGS
from merge_world import ENTRIES, INTEGRATE, Merges, commit_on, merges, on_main, write
from runner_world import Runner, all_have_ended, task
from world import World

__all__ = ["merges"]


# --- Help -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["", *sorted(integrate_workers.VERBS)])
def test_help_has_purpose_example_and_exit_codes_and_its_examples_parse(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(SystemExit) as left:
        integrate_workers.main([*([verb] if verb else []), "--help"])
    assert left.value.code == 0
    shown = capfd.readouterr().out
    for code, meaning in MEANINGS.items():
        assert re.search(rf"\b{code.value}\s+{re.escape(meaning)}", shown), code
    examples = re.findall(r"^  integrate_workers\.py (.+)$", shown, re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert integrate_workers.FRAME.parse(words).verb == words[0]
        assert not verb or words[0] == verb


def test_every_option_with_a_value_is_known_to_the_gluing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """So that a value may begin with a dash, and a forgotten one is noticed."""
    for verb in integrate_workers.VERBS:
        with pytest.raises(SystemExit):
            integrate_workers.main([verb, "--help"])
        shown = capfd.readouterr().out.partition("options:")[2]
        valued = set(re.findall(r"^  (--[a-z-]+) [A-Z{]", shown, re.MULTILINE))
        assert valued <= integrate_workers.TEXTS | integrate_workers.OTHERS, verb


def test_the_rest_of_the_verbs_is_as_documented() -> None:
    words = {"forecast", "approve", "reject", "merge", "report", "undo", "status"}
    assert words <= integrate_workers.VERBS.keys()
    for word in words - {"undo", "reject", "approve"}:
        for more in (["--run", "r"], ["--branch", "b", "--branch", "c", "--base", "m"], ["n"]):
            options = integrate_workers.FRAME.parse([word, *more, "--repo", "/", "--json"])
            assert (options.repo, options.json) == ("/", True)


def test_undo_takes_no_candidates_that_it_would_ignore(merges: Merges) -> None:
    for words in (["--branch", "b"], ["--base", "main"], ["--run", "r"]):
        assert merges.ends(2, "undo", *words).error["code"] == "usage"


# --- A life ---------------------------------------------------------------------------------


def command(world: World, *words: str, code: int = 0) -> dict[str, Any]:
    """Run it as a user does, with --json; the answer."""
    ran = world.run(*words, "--json", script=INTEGRATE)
    assert ran.code == code, (words, ran.out, ran.err)
    return ran.json


def test_from_forecast_to_undo_as_a_user_calls_it(world: World) -> None:
    """Each answer has the fields that the issue fixes, and names the next command."""
    for name in ("docs", "api"):
        tree = world.quick(name)
        entry = {f"{ENTRIES}/{name}.md": f"- {name}.\n"}
        write(tree, {f"{name}.txt": "1\n", **entry})
        world.commit(f"work of {name}", tree)
    before = world.snapshot()
    seen = command(world, "forecast")["data"]
    assert world.snapshot() == before
    assert [set(row) >= {"name", "outcome", "paths"} for row in seen["targets"]] == [True, True]
    assert [(r["a"], r["b"], r["outcome"], r["paths"]) for r in seen["pairs"]] == [
        ("api", "docs", "clean", [])
    ]
    assert seen["order"] == ["api", "docs"]
    for name in ("docs", "api"):
        tip = world.git("rev-parse", f"refs/heads/{name}")
        answer = command(world, "approve", name, "--commit", tip)
        assert answer["next_actions"][0]["action"] == "merge"
    answer = command(world, "merge", "docs", "api", "--check", "test -e docs.txt -a -e api.txt")
    merged = answer["data"]
    made = merged["integration"]
    assert set(made) >= {"id", "branch", "before", "after"}
    assert made["branch"] == "main"
    assert made["after"] == world.git("rev-parse", "main")
    assert [row["name"] for row in merged["merged"]] == ["docs", "api"]
    assert merged["blocked"] == []
    (check,) = merged["checks"]
    assert set(check) >= {"command", "exit_code", "log"}
    assert Path(check["log"]).is_absolute()
    report = command(world, "report")
    assert [row["name"] for row in report["data"]["complete"]] == ["api", "docs"]
    assert (report["data"]["blocked"], report["data"]["missing"]) == ([], [])
    assert report["data"]["next_actions"] == report["next_actions"] == []
    (action,) = answer["next_actions"]
    assert action["action"] == "undo"
    done = subprocess.run(
        ["bash", "-c", action["command"]], cwd="/", env=world.env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"took back" in done.stdout
    now = world.snapshot()
    assert {k: now[k] for k in ("files", "trees", "worktrees")} == {
        k: before[k] for k in ("files", "trees", "worktrees")
    }
    assert world.git("rev-parse", "main") == made["before"]


@pytest.mark.parametrize("verb", ["forecast", "merge", "report", "undo", "status"])
def test_outside_of_a_repository_it_is_exit_4(merges: Merges, verb: str) -> None:
    words = [verb, *(["w1"] if verb == "merge" else [])]
    ran = merges.ends(4, *words, cwd=merges.world.home)
    assert ran.error["code"] == "not-a-repository"
    assert merges.ends(2, *words, "--repo", "/nowhere").error["code"] == "no-such-directory"


def test_in_words_a_merge_says_what_it_did(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    ran = merges.call("merge", "w1", "--check", "true", as_json=False)
    lines = ran.out.splitlines()
    assert lines[0].startswith("main: ")
    assert lines[1].startswith("  merged w1 at ")
    assert lines[2].startswith("  passed true (")
    assert lines[3] == "  changelog What w1 made."
    assert "note: no check was given" not in ran.err
    ran = merges.call("merge", "w1", as_json=False)
    assert (ran.code, ran.out) == (0, "already merged: w1\n")
    assert "note: no check was given" in ran.err
    ran = merges.call("undo", "--dry-run", as_json=False)
    assert ran.out.startswith("would take back ")
    ran = merges.call("merge", "nobody", as_json=False)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-2].startswith("error: ")


def test_nobody_known_to_git_merges_nothing(merges: Merges) -> None:
    merges.ready("w1", {"a": "1\n"})
    config = Path(merges.world.env["GIT_CONFIG_GLOBAL"])
    text = config.read_text()
    config.write_text("[user]\n\tuseConfigOnly = true\n")
    before = merges.world.bytes_of(merges.repo)
    ran = merges.ends(4, "merge", "w1")
    assert ran.error["code"] == "no-identity"
    assert merges.world.bytes_of(merges.repo) == before
    config.write_text(text)


def test_the_users_settings_of_merge_and_editor_change_nothing(merges: Merges) -> None:
    """merge.ff, rerere, an editor, colours, core.hooksPath, diff.external, autocrlf, and more."""
    world = merges.world
    alarm = world.root / "bin" / "alarm"
    alarm.write_text(f"#!/bin/sh\necho $0 >> {world.root}/called\nexit 1\n")
    alarm.chmod(0o755)
    hooks = world.root / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "commit-msg", "pre-merge-commit", "post-merge", "post-checkout"):
        (hooks / name).symlink_to(alarm)
    on_main(world, {"f": "1\n", "crlf": "1\r\n2\r\n"})
    merges.branch("w1", {"f": "2\n"})
    merges.branch("w2", {"crlf": "1\r\n2\r\n3\r\n"})
    for name, value in (
        ("merge.ff", "only"), ("pull.ff", "only"), ("rerere.enabled", "true"),
        ("rerere.autoUpdate", "true"), ("core.editor", str(alarm)), ("merge.tool", "alarm"),
        ("core.hooksPath", str(hooks)), ("diff.external", str(alarm)), ("color.ui", "always"),
        ("commit.template", "/nowhere"), ("commit.verbose", "true"), ("core.pager", str(alarm)),
        ("merge.conflictStyle", "diff3"), ("merge.verifySignatures", "true"),
        ("log.showSignature", "true"), ("status.showUntrackedFiles", "no"),
        ("commit.cleanup", "scissors"), ("merge.renames", "false"), ("core.abbrev", "5"),
        ("i18n.commitEncoding", "latin-1"), ("merge.log", "true"), ("core.commentChar", ";"),
        ("diff.noprefix", "true"), ("diff.renames", "copies"), ("advice.detachedHead", "true"),
    ):  # fmt: skip
        merges.git("config", name, value)
    for name in ("GIT_EDITOR", "EDITOR", "VISUAL", "GIT_EXTERNAL_DIFF", "GIT_SEQUENCE_EDITOR"):
        merges.patch.setenv(name, str(alarm))
    message = world.root / "message"
    message.write_text("W\u00f6rds\n# stay\n; all\n")
    words = ["--branch", "w1", "--branch", "w2", "--base", "main", "--message-file", str(message)]
    data = merges.ok("merge", *words, "--check", "test -e README.md")
    assert not (world.root / "called").exists()
    commit = data["merged"][1]["commits"][0]
    raw = subprocess.run(
        ["git", "cat-file", "commit", commit], cwd=world.repo, env=world.env, check=True,
        capture_output=True,
    ).stdout  # fmt: skip
    assert "W\u00f6rds\n# stay\n; all\n".encode() in raw
    assert b"encoding" not in raw.partition(b"\n\n")[0]
    assert len(merges.git("log", "-1", "--no-show-signature", "--format=%P", commit).split()) == 2
    assert (world.repo / "crlf").read_bytes() == b"1\r\n2\r\n3\r\n"
    merges.same_as_head()
    assert not (world.repo / ".git" / "rr-cache").exists()


def test_line_ends_are_kept_as_the_user_wants_them(merges: Merges) -> None:
    """With autocrlf the checkout follows with CRLF, the commits have LF."""
    on_main(merges.world, {"f": "1\n2\n3\n"})
    merges.git("config", "core.autocrlf", "true")
    (merges.repo / "f").unlink()
    merges.git("checkout", "-q", "f")
    assert (merges.repo / "f").read_bytes() == b"1\r\n2\r\n3\r\n"
    merges.branch("w1", {"f": "1\n2\n3x\n", "g": "1\n"})
    merges.ok("merge", "--branch", "w1", "--base", "main", "--check", "grep -q 3x f")
    assert (merges.repo / "f").read_bytes() == b"1\r\n2\r\n3x\r\n"
    assert (merges.repo / "g").read_bytes() == b"1\r\n"
    assert merges.file("f") == "1\n2\n3x"
    merges.same_as_head()


def test_a_worker_name_is_checked_and_a_branch_may_be_called_anything(merges: Merges) -> None:
    for word in ("../../x", "a b", "w1;id", ""):
        ran = merges.ends(2, "merge", word)
        assert ran.error["code"] in ("invalid-name", "usage")
    name = "team/it's \u00e9-$(id)".replace(" ", "_")
    merges.branch(name, {"a": "1\n"})
    data = merges.ok("merge", "--branch", f"refs/heads/{name}", "--base", "main")
    assert [row["name"] for row in data["merged"]] == [name]


# --- Runs -----------------------------------------------------------------------------------


@pytest.fixture
def finished(world: World) -> Iterator[Runner]:
    """A rendered run whose tasks have ended: `a` and `b` committed, `c` failed before it began."""
    runner = Runner(world, "python")
    prompt = (
        "echo $TASK > $TASK.txt && mkdir -p .worker-runs/changelog && "
        'echo "- Made by $TASK." > .worker-runs/changelog/$TASK.md && '
        'git add -A . && git commit -q -m "work of $TASK"\n'
    )
    runner.plan(
        task("a", prompt, owns=["a.txt"], verify=["test -e a.txt"]),
        task("b", prompt, verify=["test -e b.txt"]),
        checks=["test -e README.md"],
    )
    runner.ends(0)
    yield runner
    all_have_ended(world)


def test_the_tasks_of_a_run_are_forecast_approved_merged_and_undone(
    merges: Merges, finished: Runner
) -> None:
    """Their verify commands and the plan's checks run on the combined tree."""
    run = ["--run", f".worker-runs/{finished.run_id}"]
    seen = merges.ok("forecast", *run)
    assert [row["name"] for row in seen["targets"]] == ["a", "b"]
    assert seen["target"] == "refs/heads/main"
    assert seen["out_of_scope"] == []
    merges.refused("unapproved", "merge", "a", "b", *run)
    for name in ("a", "b"):
        tip = merges.git("rev-parse", f"refs/heads/{finished.tasks()[name]['branch']}")
        merges.ok("approve", name, "--commit", tip, *run)
    data = merges.ok("merge", "a", "b", *run, "--check", "test -e a.txt -a -e b.txt")
    assert [row["command"] for row in data["checks"]] == [
        "test -e a.txt -a -e b.txt", "test -e a.txt", "test -e b.txt", "test -e README.md",
    ]  # fmt: skip
    assert [row["kind"] for row in data["merged"]] == ["task", "task"]
    assert data["changelog"]["added"] == ["Made by a.", "Made by b."]
    assert "Task: a" in merges.git("log", "--format=%B", "main")
    assert (merges.repo / "a.txt").read_text() == "a\n"
    report = merges.ok("report", *run)
    assert [row["name"] for row in report["complete"]] == ["a", "b"]
    # Without the run they are known by their branches' records.
    assert {row["name"] for row in merges.ok("report")["complete"]} == {"a", "b"}
    merges.ok("undo")
    assert not (merges.repo / "a.txt").exists()
    ran = merges.ends(0, "report")
    assert {row["name"] for row in ran.data["missing"]} == {"a", "b"}
    (action,) = ran.json["next_actions"]
    assert "--branch" in action["command"]
    assert merges.ends(2, "merge", "nobody", *run).error["code"] == "unknown-task"


def test_what_is_not_known_to_be_done_is_noted(merges: Merges, finished: Runner) -> None:
    """A failed task may be merged, and a worker be approved early, but not unnoticed."""
    run = ["--run", f".worker-runs/{finished.run_id}"]
    manifest = merges.repo / run[1] / "manifest.json"
    value = json.loads(manifest.read_bytes())
    value["tasks"][1] |= {"status": "failed", "reason": "its verify failed"}
    manifest.write_text(json.dumps(value))
    seen: list[list[str]] = []
    for name in ("a", "b"):
        tip = merges.git("rev-parse", f"refs/heads/{finished.tasks()[name]['branch']}")
        seen.append(merges.ok("approve", name, "--commit", tip, *run)["notes"])
    note = "the run says of its task 'b': failed: its verify failed"
    assert seen == [[], [note]]
    assert note in merges.ok("merge", "a", "b", *run)["notes"]
    merges.work("w", {"w.txt": "w\n"})
    tip = merges.git("rev-parse", "refs/heads/w")
    assert merges.ok("approve", "w", "--commit", tip)["notes"] == []
    life.record_event(str(merges.repo / ".git"), "w", "delivered", job="0001", opens=True)
    (note,) = merges.ok("approve", "w", "--commit", tip)["notes"]
    assert "the job 0001 of 'w' is open" in note


def test_an_entry_that_merge_will_ask_for_is_noted_with_the_approval(merges: Merges) -> None:
    tip = merges.work("w", {"w.txt": "w\n"}, entry=False)
    (note,) = merges.ok("approve", "w", "--commit", tip)["notes"]
    assert note == "w has no changelog entry, which merge will ask for"
    place = merges.world.tree("w") / ".worker-runs" / "changelog" / "w.md"
    place.parent.mkdir(parents=True)
    place.write_text("### Added\n")
    (note,) = merges.ok("approve", "w", "--commit", tip)["notes"]
    assert note.endswith("w.md has no text below its heading; merge will refuse it")
    assert merges.ends(3, "merge", "w").error
    place.write_text("### Added\n\n- It.\n")
    assert merges.ok("approve", "w", "--commit", tip)["notes"] == []
    merges.ok("merge", "w")


def test_a_branch_that_is_gone_makes_the_order_unknown(merges: Merges) -> None:
    for name in ("one", "two"):
        merges.work(name, {f"{name}.txt": "x\n"})
    merges.git("worktree", "remove", "--force", str(merges.world.tree("two")))
    merges.git("branch", "-q", "-D", "two")
    seen = merges.ok("forecast", "one", "two")
    assert seen["asked"]["outcome"] == "unknown"
    assert "two" in seen["asked"]["why"]
    assert seen["order"] is None


def test_a_run_that_is_none_or_of_another_repository_is_refused(merges: Merges) -> None:
    folder = merges.world.root / "run"
    folder.mkdir()
    words = ["forecast", "--run", str(folder)]
    assert merges.ends(2, *words).error["code"] == "unknown-run"
    (folder / "plan.json").write_text(json.dumps({"schema": 1, "tasks": []}))
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "tasks": [], "repo": "/x"}))
    assert merges.ends(2, *words).error["code"] == "other-repository"
    (folder / "manifest.json").write_text("{")
    assert merges.ends(1, *words).error["code"] == "record-damaged"
    fields = {"schema": 1, "repo": str(merges.repo), "tasks": [{"name": "a"}]}
    (folder / "manifest.json").write_text(json.dumps(fields))
    assert merges.ends(1, *words).error["code"] == "record-damaged"


# --- What comes next ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["w1", "--no-such-option"], "usage", 2),
        (["w1", "--strategy", "none"], "usage", 2),
        ([], "usage", 2),
        (["nobody"], "unknown-worker", 2),
        (["w1", "--into", "nowhere"], "unknown-branch", 2),
        (["w1", "--message-file", "nothing"], "prompt-unreadable", 2),
        (["w1", "--repo", "/nowhere"], "no-such-directory", 2),
        (["w1"], "no-identity", 4),
    ],
)
def test_every_error_of_merge_has_the_fields_of_its_answers(
    merges: Merges, words: list[str], code: str, exit_code: int
) -> None:
    merges.ready("w1", {"a": "1\n"})
    config = Path(merges.world.env["GIT_CONFIG_GLOBAL"])
    config.write_text("[user]\n\tuseConfigOnly = true\n")
    ran = merges.ends(exit_code, "merge", *words)
    assert ran.error["code"] == code
    assert ran.data == {"integration": None, "merged": [], "blocked": [], "checks": []}


def test_a_missing_entry_is_asked_for_by_its_place(merges: Merges) -> None:
    """And what is refused for another reason by the command that helps."""
    merges.ready("w1", {"a": "1\n"}, entry=False)
    merges.work("w2", {"b": "1\n"})
    tip = commit_on(merges.world, "plain", {"c": "1\n"})
    merges.ok("approve", "--branch", "plain", "--base", "main", "--commit", tip)
    ran = merges.refused("not-ready", "merge", "w1", "w2", "--check", "test -e a")
    entry, review, again = ran.json["next_actions"]
    place = f"{merges.world.tree('w1')}/.worker-runs/changelog/w1.md"
    assert (entry["action"], entry["command"]) == ("decide", None)
    assert f"write it to {place}, or merge with --no-changelog-needed w1=REASON" in entry["why"]
    assert (review["action"], again["action"]) == ("review", "merge")
    assert "review w2" in review["command"]
    assert "merge w1 w2 --check 'test -e a'" in again["command"]
    assert merges.ends(0, "status", "w1").json["next_actions"] == [entry]
    # What it says is what helps.
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).write_text("- Now there.\n")
    merges.ok("merge", "w1")
    ran = merges.refused("no-changelog-entry", "merge", "--branch", "plain", "--base", "main")
    assert "--no-changelog-needed plain=REASON" in ran.json["next_actions"][0]["why"]


@pytest.mark.parametrize("dry", [True, False])
def test_a_message_from_stdin_is_kept_for_the_merge_of_the_rest(world: World, dry: bool) -> None:
    merges_it = ["a", "a"] if dry else ["a", "b"]
    for name, path in zip(("w1", "w2"), merges_it, strict=True):
        tree = world.quick(name)
        (tree / path).write_text(name)
        head = world.commit(f"work of {name}", tree)
        world.run("approve", name, "--commit", head, script=INTEGRATE)
    exempt = ["--no-changelog-needed", "w1=x", "--no-changelog-needed", "w2=x"]
    words = ["merge", "--json", "w1", "w2", *exempt, "--message-file", "-"]
    words += ["--dry-run"] if dry else ["--check", "! test -e b"]
    ran = world.run(*words, stdin=b"Mine: all of it\n", script=INTEGRATE)
    assert ran.code == 10, ran
    (action,) = [row for row in ran.json["next_actions"] if row["action"] == "merge"]
    if dry:
        assert action["why"] == "merge w1, with the message as before (--message-file -)"
        return
    subprocess.run(["bash", "-c", action["command"]], env=world.env, check=True)
    assert world.git("log", "-1", "--format=%s", "main") == "Mine: all of it"
    assert not (world.repo / "b").exists()


def test_plain_branches_are_shown_in_the_order_of_their_names(merges: Merges) -> None:
    names = [f"topic/{letter}" for letter in "dacbe"]
    for name in names:
        merges.branch(name, {name: "1\n"})
    assert [row["name"] for row in merges.ok("status")["missing"]] == sorted(names)


@pytest.fixture
def failed(world: World) -> Iterator[Runner]:
    """A run with a task whose check passed, and which changed what it does not own."""
    runner = Runner(world, "python")
    prompt = 'echo 1 > a.txt && echo 2 >> README.md && git add -A . && git commit -q -m "work"\n'
    runner.plan(task("a", prompt, owns=["a.txt"], verify=["test -e a.txt"]))
    runner.ends(1)
    yield runner
    all_have_ended(world)


def test_a_report_of_a_run_names_the_tasks_that_left_nothing(merges: Merges) -> None:
    runner = Runner(merges.world, "python")
    prompt = 'echo 1 > a.txt && git add -A . && git commit -q -m "work"\n'
    runner.plan(
        task("a", prompt),
        task("b", prompt, when="exit 127"),
        task("c", prompt, depends_on=["b"]),
        task("d", prompt, when="exit 1"),
    )
    runner.ends(1)
    run = ["--run", f".worker-runs/{runner.run_id}"]
    commit = merges.git("rev-parse", runner.tasks()["a"]["branch"])
    merges.ok("approve", "a", "--commit", commit, *run)
    merges.ok("merge", "a", "--no-changelog-needed", "a=none", *run)
    data = merges.ok("report", *run)
    assert [row["name"] for row in data["complete"]] == ["a"]
    assert [row["name"] for row in data["missing"]] == ["b", "c"]
    assert [(row["name"], row["code"]) for row in data["blocked"]] == [
        ("b", "not-done"), ("c", "not-done"),
    ]  # fmt: skip
    text = merges.call("report", *run, as_json=False).out
    assert "- state: not all work is merged" in text
    all_have_ended(merges.world)


def test_a_review_tells_of_a_failed_task_whose_checks_passed(
    merges: Merges, failed: Runner
) -> None:
    run = ["--run", f".worker-runs/{failed.run_id}"]
    data = merges.ok("review", "a", *run)
    why = "changes outside of what it owns: README.md"
    assert (data["task"]["status"], data["task"]["reason"]) == ("failed", why)
    assert data["checks"][0]["status"] == "passed"
    lines = merges.call("review", "a", *run, as_json=False).out.splitlines()
    assert f"  task      failed: {why}" in lines
    branch = failed.tasks()["a"]["branch"]
    commit_on(merges.world, branch, {"a.txt": "3\n"}, base=branch)
    lines = merges.call("review", "a", *run, as_json=False).out.splitlines()
    earlier = data["head"][:12]
    assert f"  task      failed: {why} (at {earlier}, an earlier commit)" in lines
    data = merges.ok("review", "--branch", branch, "--base", "main")
    assert data["task"] is None
