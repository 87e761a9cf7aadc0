"""The command line: bad input of every kind, the envelope, help, signals, and how it is called."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fanout.cli import common
from fanout.cli.agent_workers import OTHERS, TEXTS, VERBS
from fanout.cli.common import glue_values
from fanout.errors import SkillError
from fanout.output import Answer
from inside import Call, call, install, refusal
from world import AGENT_WORKERS, SAMPLE_AGENT, World, wait_for

IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""

__all__ = ["call"]
AGENT = ["--agent-cli", str(SAMPLE_AGENT)]
PROMPT = ["--prompt", "hello", *AGENT]
# No delivery to wait for.
QUICK = ["--prompt-mode", "argument", "--settle", "0"]

BAD_NAMES = [
    ".", "..", "../x", "a/b", "fix-1.2.3", "a b", "a:b", "", "x" * 300, "ünï", "日本", "a\nb",
    "a;b", "$(touch x)", "_a", "a\udcff", "%1", "=a", "~", "*",
]  # fmt: skip


# --- Names, references and places -----------------------------------------------------------


def test_a_name_that_could_be_a_path_an_option_or_a_target_is_refused(
    world: World, call: Call
) -> None:
    """T06, T08, Q01: before anything is made, and the message repeats the word."""
    before = world.snapshot()
    for name in BAD_NAMES:
        error = refusal(call, 2, "spawn", *PROMPT, "--", name)
        assert error["code"] == "invalid-name", name
        assert repr(name[:80]) in error["message"]
    assert world.snapshot() == before
    assert not (world.repo / ".git" / "agent-workers").exists()


def test_a_name_that_begins_with_a_dash_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    assert "-x" in refusal(call, 2, "spawn", "-x", *PROMPT)["message"]
    assert refusal(call, 2, "spawn", *PROMPT, "--", "-x")["code"] == "invalid-name"
    assert "--all" in refusal(call, 2, "cleanup", "--all")["message"]
    assert world.snapshot() == before


def test_every_verb_that_takes_a_name_checks_it(world: World, call: Call) -> None:
    """W01: `cleanup .` and `cleanup ..` must not reach any path."""
    before = world.snapshot()
    for verb in ("capture", "attach", "stop", "cleanup"):
        for name in (".", "..", "../x", "", "a/b", "x" * 300):
            assert refusal(call, 2, verb, "--", name)["code"] == "invalid-name", (verb, name)
    assert refusal(call, 2, "send", "--prompt", "x", "--", "..")["code"] == "invalid-name"
    assert world.snapshot() == before


def test_an_unknown_worker_is_an_invalid_input(world: World, call: Call) -> None:
    before = world.snapshot()
    for words in (["status"], ["capture"], ["attach"], ["stop"], ["cleanup"]):
        error = refusal(call, 2, *words, "nobody")
        assert error["code"] == "unknown-worker"
        assert "'nobody'" in error["message"]
    assert refusal(call, 2, "send", "nobody", "--prompt", "x")["code"] == "unknown-worker"
    assert world.snapshot() == before


def test_a_base_that_is_no_commit_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    for ref in ("nope", "-x", "", "HEAD:README.md", "main..HEAD", "x" * 300, "a\nb",
                "refs/heads/", "ünï", "HEAD^{tree}", "main main", "\udcff"):  # fmt: skip
        error = refusal(call, 2, "spawn", "w1", "--base", ref, *PROMPT)
        assert error["code"] == "unknown-ref", ref
        assert repr(ref[:80])[1:-1] in error["message"]
    assert world.snapshot() == before


def test_a_base_that_is_both_a_branch_and_a_tag_is_not_guessed(world: World, call: Call) -> None:
    """I30: git would silently take the tag."""
    old = world.git("rev-parse", "HEAD")
    world.git("tag", "main")
    assert call("spawn", "w1", "--base", "main", *PROMPT, "--dry-run").code == 0
    new = world.commit("second")
    before = world.snapshot()
    error = refusal(call, 2, "spawn", "w1", "--base", "main", *PROMPT)
    assert error["code"] == "ambiguous-ref"
    assert "refs/heads/main" in error["hint"]
    for ref, commit in (("refs/heads/main", new), ("refs/tags/main", old)):
        plan = call("spawn", "w1", "--base", ref, *PROMPT, "--dry-run").data["worker"]
        assert plan["base"] == commit
    assert world.snapshot() == before


def test_a_branch_that_git_would_not_take_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    for branch in ("-x", "--force", "a..b", "a b", "", "a.lock", "/a", "a/", "@{-1}", "a\nb",
                   "x" * 300, "a^", "HEAD", "a\x7fb"):  # fmt: skip
        error = refusal(call, 2, "spawn", "w1", "--branch", branch, *PROMPT)
        assert error["code"] == "invalid-branch", branch
        assert repr(branch[:80]) in error["message"]
    assert world.snapshot() == before


def test_a_worker_cannot_be_called_HEAD(world: World, call: Call) -> None:  # noqa: N802
    before = world.snapshot()
    assert call("spawn", "HEAD", *PROMPT).code != 0
    assert world.snapshot() == before


def test_a_worktree_place_without_a_name_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    refusal(call, 2, "spawn", "w1", "--worktree", "", *PROMPT)
    assert world.snapshot() == before


# --- Where it is called ---------------------------------------------------------------------


def test_a_place_that_is_no_repository_is_refused(world: World, call: Call) -> None:
    plain = world.root / "plain"
    plain.mkdir()
    for verb in (["status"], ["spawn", "w1", *PROMPT], ["cleanup", "w1"]):
        assert refusal(call, 4, *verb, cwd=plain)["code"] == "not-a-repository"
    for place in ("/nowhere", "", "README.md", "a\nb"):
        error = refusal(call, 2, "status", "--repo", place)
        assert error["code"] == "no-such-directory"
        assert repr(place) in error["message"]
    assert list(plain.iterdir()) == []


def test_an_empty_repository_is_refused_and_gets_no_commit(world: World, call: Call) -> None:
    """W35: no automatic first commit, whatever the identity is."""
    empty = world.root / "empty"
    empty.mkdir()
    world.git("init", "-q", cwd=empty)
    error = refusal(call, 4, "spawn", "w1", *PROMPT, cwd=empty)
    assert error["code"] == "empty-repository"
    assert "commit" in error["hint"]
    assert world.git("for-each-ref", cwd=empty) == ""
    assert not (empty / ".git" / "agent-workers").exists()


def test_a_bare_repository_is_refused_but_its_worktrees_work(world: World, call: Call) -> None:
    """W33: workers made from a worktree of a bare repository stand beside that repository."""
    bare = world.root / "bare.git"
    world.git("clone", "-q", "--bare", str(world.repo), str(bare))
    assert refusal(call, 4, "spawn", "w1", *PROMPT, cwd=bare)["code"] == "bare-repository"
    assert world.git("worktree", "list", "--porcelain", cwd=bare).count("worktree ") == 1
    linked = world.root / "linked"
    world.git("worktree", "add", "-q", str(linked), "main", cwd=bare)
    plan = call("spawn", "w1", *PROMPT, "--dry-run", cwd=linked).data["worker"]
    assert plan["worktree"] == str(world.root / "bare.git.worktrees" / "w1")


def test_inside_the_git_directory_it_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    for inside in (".git", ".git/objects"):
        error = refusal(call, 4, "spawn", "w1", *PROMPT, cwd=world.repo / inside)
        assert error["code"] == "bare-repository"
    assert world.snapshot() == before


def test_inside_a_submodule_it_is_refused(world: World, call: Call) -> None:
    """W33: the superproject is named, and nothing is made in either."""
    world.make_repo("lib")
    world.git("submodule", "--quiet", "add", str(world.root / "lib"), "lib")
    world.commit("add lib")
    before = world.snapshot()
    inner = world.repo / "lib"
    error = refusal(call, 2, "spawn", "w1", *PROMPT, cwd=inner)
    assert error["code"] == "inside-submodule"
    assert str(world.repo) in error["message"]
    assert world.git("branch", "--format=%(refname:short)", cwd=inner) == "main"
    assert world.snapshot() == before


def test_in_a_path_with_a_line_break_it_is_refused(world: World, call: Call) -> None:
    """W37: also where the second line looks like an answer of git."""
    odd = world.make_repo("one\ntrue")
    assert refusal(call, 2, "spawn", "w1", *PROMPT, cwd=odd)["code"] == "unusable-path"
    linked = world.root / "x\nrefs"
    world.git("worktree", "add", "-q", "-b", "side", str(linked))
    before = world.snapshot()
    assert refusal(call, 2, "status", cwd=linked)["code"] == "unusable-path"
    assert call("status").code == 0
    assert world.snapshot() == before


def test_other_line_ends_in_a_path_are_no_line_breaks(world: World, call: Call) -> None:
    odd = world.make_repo("a\u2028b\x0cc\x85d")
    assert call("status", cwd=odd).code == 0


def test_ends_of_processes_are_seen_also_where_the_caller_ignores_them(world: World) -> None:
    for directory, code in ((world.repo, 0), (world.home, 4)):
        ran = subprocess.run(
            [sys.executable, "-c", IGNORING, sys.executable, str(AGENT_WORKERS), "status"],
            cwd=directory, env=world.env, capture_output=True, check=False,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr


def test_inside_the_tree_of_a_worker_the_callers_head_is_the_base(world: World) -> None:
    """W57, W33: the new tree is no child of the caller's tree, and its base is the caller's."""
    world.spawn("w1", "hello", *QUICK)
    ahead = world.commit("ahead", world.tree("w1"))
    (world.tree("w1") / "sub").mkdir()
    made = world.spawn("w2", "hello", *QUICK, cwd=world.tree("w1") / "sub")
    assert made["base"] == ahead
    assert made["worktree"] == str(world.tree("w2"))
    assert {row["name"] for row in world.ok("status", cwd=world.tree("w2"))["workers"]} == {
        "w1",
        "w2",
    }


def test_git_variables_of_a_hook_do_not_lead_elsewhere(world: World) -> None:
    """W17: a hook exports GIT_DIR and GIT_INDEX_FILE of its own repository."""
    other = world.make_repo("other")
    env = {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other), "GIT_INDEX_FILE": "/x"}
    plan = world.ok("spawn", "w1", *PROMPT, "--dry-run", env=env)["worker"]
    assert plan["worktree"] == str(world.tree("w1"))


# --- Prompts --------------------------------------------------------------------------------


def test_a_prompt_that_cannot_be_passed_on_is_refused(world: World, call: Call) -> None:
    before = world.snapshot()
    files = {
        "latin1": (b"caf\xe9", "at byte 3"),
        "nul": (b"a\0b", "NUL"),
        "empty": (b"", "empty"),
        "blank": (b" \n\t\n", "empty"),
        "utf16": ("hi".encode("utf-16"), "at byte 0"),
    }
    for name, (content, words) in files.items():
        path = world.root / name
        path.write_bytes(content)
        error = refusal(call, 2, "spawn", "w1", "--prompt-file", str(path), *AGENT)
        assert words in error["message"], name
    for missing in ("/nowhere/p.txt", str(world.root), "", "a\nb"):
        error = refusal(call, 2, "spawn", "w1", "--prompt-file", missing, *AGENT)
        assert error["code"] == "prompt-unreadable"
        assert repr(missing) in error["message"]
    for text in ("", "  \n", "\udcff"):
        assert refusal(call, 2, "spawn", "w1", "--prompt", text, *AGENT)["code"].startswith(
            "prompt-"
        )
    assert refusal(call, 2, "spawn", "w1", *AGENT)["code"] == "usage"
    assert world.snapshot() == before


def test_a_prompt_without_end_is_refused_in_bounded_memory(world: World, call: Call) -> None:
    before = world.snapshot()
    error = refusal(call, 2, "spawn", "w1", "--prompt-file", "/dev/zero", *AGENT)
    assert error["code"] == "prompt-unfit"
    assert "/dev/zero" in error["message"]
    assert world.snapshot() == before


def test_a_prompt_that_is_too_long_for_an_argument_names_the_other_modes(
    world: World, call: Call
) -> None:
    before = world.snapshot()
    path = world.root / "long"
    path.write_text("x" * 200_000)
    words = ["--prompt-file", str(path), "--prompt-mode", "argument", *AGENT]
    error = refusal(call, 2, "spawn", "w1", *words)
    assert error["code"] == "prompt-unfit"
    assert "file" in error["hint"]
    assert world.snapshot() == before


def test_the_prompt_comes_from_stdin(world: World) -> None:
    mode = ["--prompt-mode", "file", "--prompt-arg", "--prompt-file", "--no-contract"]
    world.ok("spawn", "w1", "--prompt-file", "-", *AGENT, *mode, stdin="größe\n".encode())
    kept = world.record("w1") / "prompts" / "0001.md"
    assert kept.read_bytes() == "größe\n".encode()


# --- Options --------------------------------------------------------------------------------


def test_prompt_files_that_differ_only_by_case_are_named(world: World, call: Call) -> None:
    folder = world.root / "prompts"
    folder.mkdir()
    for name in ("api", "Docs", "docs"):
        (folder / f"{name}.md").write_text("hello")
    if len(list(folder.iterdir())) < 3:
        pytest.skip("this file system takes one for the other")
    ran = call("spawn", "--prompts-dir", str(folder), *AGENT)
    assert ran.code == 2
    assert "'Docs.md' and 'docs.md' differ only by case" in ran.out


def test_wrong_combinations_of_options_are_refused(world: World, call: Call) -> None:
    folder = world.root / "prompts"
    folder.mkdir()
    (folder / "w1.md").write_text("hello")
    before = world.snapshot()
    many = ["spawn", "--prompts-dir", str(folder), *AGENT]
    for words in (
        ["spawn", *PROMPT],
        ["spawn", "w1", "--prompt", "a", "--prompt-file", "b"],
        [*many, "w1"],
        [*many, "--branch", "b"],
        [*many, "--worktree", "b"],
        [*many, "--prompt", "b"],
        [*many, "--prompt", ""],
        [*many, "--prompt-file", "b"],
        ["spawn", "--prompts-dir", str(world.root / "none"), *AGENT],
        ["spawn", "--prompts-dir", str(world.repo / ".git"), *AGENT],
        ["spawn", "w1", *PROMPT, "--prompt-mode", "telepathy"],
        ["spawn", "w1", *PROMPT, "--settle", "-1"],
        ["spawn", "w1", *PROMPT, "--settle", "nan"],
        ["spawn", "w1", *PROMPT, "--timeout", "soon"],
        ["spawn", "w1", *PROMPT, "--env", "NOVALUE"],
        ["spawn", "w1", *PROMPT, "--env", "A-B=1"],
        ["spawn", "w1", *PROMPT, "--env", "=1"],
        ["spawn", "w1", *PROMPT, "--agent-args", "'unbalanced"],
        ["spawn", "w1", *PROMPT, "--session-prefix", "a:b"],
        ["spawn", "w1", *PROMPT, "--session-prefix", "x" * 300],
        ["spawn", "w1", *PROMPT, "--tmux-socket", "../x"],
        ["spawn", "w1", *PROMPT, "--tmux-socket", "x" * 300],
        ["spawn", "w1", *PROMPT, "--copy", "missing"],
        ["spawn", "w1", *PROMPT, "--copy", "../x"],
        ["spawn", "w1", *PROMPT, "--copy", "/etc/passwd"],
        ["spawn", "w1", *PROMPT, "--harness", "/nowhere.json"],
        ["spawn", "w1", *PROMPT, "--unknown"],
        ["cleanup"],
        ["cleanup", "w1", "--merged"],
        ["cleanup", "--merged", "--discard"],
        ["capture", "w1", "--lines", "0"],
        ["capture", "w1", "--lines", "-5"],
        ["capture", "w1", "--lines", "1000000000"],
        ["capture"],
        ["stop"],
        ["send", "w1"],
        ["nonsense"],
        ["status", "--lines", "3"],
    ):
        error = refusal(call, 2, *words)
        assert error["message"], words
    assert world.snapshot() == before


def test_an_error_repeats_the_word_that_was_wrong(call: Call) -> None:
    for word, words in (
        ("telepathy", ["spawn", "w1", *PROMPT, "--prompt-mode", "telepathy"]),
        ("soon", ["spawn", "w1", *PROMPT, "--timeout", "soon"]),
        ("NOVALUE", ["spawn", "w1", *PROMPT, "--env", "NOVALUE"]),
        ("'unbalanced", ["spawn", "w1", *PROMPT, "--agent-args", "'unbalanced"]),
        ("a:b", ["spawn", "w1", *PROMPT, "--session-prefix", "a:b"]),
        ("../x", ["spawn", "w1", *PROMPT, "--tmux-socket", "../x"]),
        ("nonsense", ["nonsense"]),
        ("--unknown", ["status", "--unknown"]),
        ("no-such-agent", ["spawn", "w1", "--prompt", "a", "--agent-cli", "no-such-agent"]),
    ):
        ran = call(*words)
        assert ran.code in (2, 4), words
        assert word in ran.error["message"], words


def test_a_missing_agent_is_exit_4_and_names_it(world: World, call: Call) -> None:
    before = world.snapshot()
    for agent in ("no-such-agent", "/nowhere/agent", str(world.repo / "README.md")):
        error = refusal(call, 4, "spawn", "w1", "--prompt", "x", "--agent-cli", agent)
        assert error["code"] == "agent-missing", agent
        assert repr(agent) in error["message"]
    assert world.snapshot() == before


def test_a_value_may_begin_with_a_dash(world: World, call: Call) -> None:
    """P13: `--agent-args "--yolo"` and `--prompt "--help"` are values, not options."""
    texts = ["--prompt", "--help", "--agent-args", "--yolo", "--env", "A=-1", "--owns", "-x/**"]
    plan = call("spawn", "w1", *texts, "--agent-cli", str(SAMPLE_AGENT), "--dry-run")
    assert plan.code == 0
    assert plan.data["worker"]["prompt"].startswith("--help\n")


def test_glued_values_leave_the_rest_alone() -> None:
    def glue(*words: str) -> list[str]:
        return glue_values(list(words), TEXTS, OTHERS)

    assert glue("--prompt", "--json") == ["--prompt=--json"]
    assert glue("--base", "-x") == ["--base=-x"]
    assert glue("--base", "main") == ["--base", "main"]
    assert glue("--base", "--json") == ["--base", "--json"]
    assert glue("--base", "--repo", "x") == ["--base", "--repo", "x"]
    assert glue("--json", "--", "--prompt", "x") == ["--json", "--", "--prompt", "x"]
    assert glue("--prompt") == ["--prompt"]
    assert glue("--base") == ["--base"]


def test_every_option_with_a_value_is_known_to_the_gluing(call: Call) -> None:
    found: set[str] = set()
    for verb in VERBS:
        shown = call(verb, "--help", as_json=False, leaves=True).out
        found |= set(re.findall(r"^ +(--[a-z-]+) [A-Z{]", shown, re.MULTILINE))
    assert found == TEXTS | OTHERS


# --- The envelope and the help --------------------------------------------------------------


def test_the_envelope_is_the_same_for_success_and_failure(call: Call) -> None:
    good, bad = call("status").json, call("status", "nobody").json
    assert set(good) == {"schema", "command", "ok", "data", "next_actions"}
    assert set(bad) == set(good) | {"error"}
    assert good["command"] == bad["command"] == "status"
    assert good["ok"] is True


def test_errors_of_the_parser_are_json_too(call: Call) -> None:
    """Wherever --json stands; but not where it is a value."""
    assert refusal(call, 2, "status", "--wrong")["code"] == "usage"
    ran = call("spawn", "--prompt", "--json", "--wrong", as_json=False)
    assert (ran.code, ran.out) == (2, "")
    assert "--wrong" in ran.err


def test_without_json_stdout_holds_nothing_but_the_answer(call: Call) -> None:
    ran = call("status", "nobody", as_json=False)
    assert ran.out == ""
    assert ran.err.startswith("error: there is no worker 'nobody'\nhint: ")


@pytest.mark.parametrize("verb", ["", *sorted(VERBS)])
def test_help_has_purpose_example_and_exit_codes_and_changes_nothing(
    world: World, verb: str
) -> None:
    before = world.snapshot()
    ran = world.run(*([verb] if verb else []), "--help", cwd=world.root)
    assert ran.code == 0
    assert ran.err == ""
    assert f"agent_workers.py {verb}".strip() in ran.out.splitlines()[0]
    assert re.search(r"^examples?:\n  agent_workers.py " + verb, ran.out, re.MULTILINE)
    assert "exit codes:\n    0  done\n" in ran.out
    assert "124  the command's own deadline passed" in ran.out
    assert world.snapshot() == before
    assert not (world.repo / ".git" / "agent-workers").exists()


def test_dry_run_says_what_would_be_made_and_makes_nothing(world: World, call: Call) -> None:
    before = world.snapshot()
    data = call("spawn", "w1", *PROMPT, "--dry-run").data
    assert data["dry_run"] is True
    assert data["worker"]["worktree"] == str(world.tree("w1"))
    assert data["worker"]["base"] == world.git("rev-parse", "HEAD")
    assert world.snapshot() == before
    assert not (world.repo / ".git" / "agent-workers").exists()


# --- Streams and signals --------------------------------------------------------------------


def shell(world: World, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in the repository with COMMAND as the command."""
    return subprocess.run(
        ["bash", "-c", script], cwd=world.repo, capture_output=True, text=True, timeout=60,
        env={**world.env, "COMMAND": f"{sys.executable} {AGENT_WORKERS}"}, check=False,
    )  # fmt: skip


def test_a_closed_stdout_is_no_error(world: World) -> None:
    done = shell(world, "set -o pipefail; { $COMMAND spawn --help; echo $? >&2; } | true")
    assert (done.returncode, done.stderr) == (0, "0\n")
    for streams in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
        assert shell(world, f"$COMMAND status --json {streams}").returncode == 0
    done = shell(world, f"$COMMAND spawn w1 --prompt-file - --agent-cli {SAMPLE_AGENT} <&-")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_answer_that_cannot_be_written_is_a_failure(world: World) -> None:
    done = shell(world, "$COMMAND status --json > /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write the answer")
    assert len(done.stderr.splitlines()) == 1
    assert shell(world, "$COMMAND status nobody > /dev/full 2> /dev/full").returncode == 2


def test_watch_ends_when_nobody_reads_any_more(world: World) -> None:
    world.spawn("w1", "hello", *QUICK)
    watching = world.start("status", "--watch", "--json")
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["name"] == "w1"
    watching.stdout.close()
    world.ok("stop", "w1")
    assert watching.wait(30) == 0
    assert watching.stderr is not None
    watching.stderr.close()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_an_interrupted_spawn_is_taken_back(
    world: World, number: signal.Signals, code: int
) -> None:
    """C08 for spawn: exit code of the signal, and nothing is left of the call."""
    before = world.snapshot()
    flag = world.root / "in-setup"
    call = ["spawn", "w1", *PROMPT, "--json", "--setup", f"touch {flag}; sleep 600 & wait"]
    running = world.start(*call)
    wait_for(flag.exists, "the set-up command runs")
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == code, err
    assert b"Traceback" not in err
    answer = json.loads(out)
    assert (answer["ok"], answer["error"]["code"]) == (False, "interrupted")
    assert world.snapshot() == before
    wait_for(lambda: not [c for c in world.processes().values() if "sleep 600" in c], "no process")


def test_an_interruption_while_it_waits_for_the_agent_ends_the_agent(world: World) -> None:
    before = world.snapshot()
    agent = ["--agent-cli", str(SAMPLE_AGENT), "--agent-args", "--delay 600 --silent-start"]
    running = world.start("spawn", "w1", "--prompt", "x", *agent, "--ready-timeout", "600")
    wait_for(world.sessions, "the session")
    running.terminate()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 143, err
    assert world.snapshot() == before
    wait_for(
        lambda: not [c for c in world.processes().values() if "--delay" in c], "no agent is left"
    )


def test_a_second_signal_does_not_cut_off_the_undoing(world: World) -> None:
    before = world.snapshot()
    flag = world.root / "in-setup"
    running = world.start("spawn", "w1", *PROMPT, "--setup", f"touch {flag}; sleep 600")
    wait_for(flag.exists, "the set-up command runs")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        with contextlib.suppress(ProcessLookupError):
            running.send_signal(number)
        time.sleep(0.01)
    running.communicate(timeout=60)
    assert running.returncode in (129, 130, 143)
    assert world.snapshot() == before


def test_a_hangup_that_was_ignored_at_the_start_stays_ignored(world: World) -> None:
    flag, go = world.root / "in-setup", world.root / "go"
    words = [
        "spawn", "w1", *PROMPT, *QUICK,
        "--setup", f"touch {flag}; until [ -e {go} ]; do sleep 0.02; done",
    ]  # fmt: skip
    running = subprocess.Popen(
        ["nohup", sys.executable, str(AGENT_WORKERS), *words], cwd=world.repo, env=world.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(flag.exists, "the set-up command runs")
    running.send_signal(signal.SIGHUP)
    go.touch()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert world.status("w1")["state"] in ("starting", "running")


# --- How it is called -----------------------------------------------------------------------

SKILL = Path(".agents/skills/parallel-agent-worktree-skill")


@pytest.mark.parametrize("runner", ["python3", "uv run python"])
def test_the_five_commands_work_as_written(world: World, runner: str) -> None:
    if runner.startswith("uv") and shutil.which("uv") is None:
        runner = "python3"
    install(world.repo / SKILL)
    world.commit("add the skill")
    kimi = world.root / "bin" / "kimi"
    kimi.write_text(
        f'#!/bin/sh\n[ "$*" = --yolo ] || exit 64\nexec {sys.executable} {SAMPLE_AGENT}\n'
    )
    kimi.chmod(0o755)
    first, second = world.root / "api-tests.prompt", world.root / "api-tests-followup.prompt"
    first.write_text("@print first part\n")
    second.write_text("@print second part\n")
    lines = f"""
set -e
AW="{runner} {SKILL}/scripts/agent_workers.py"
$AW spawn api-tests --base main --prompt-file {first} --agent-cli kimi --agent-args "--yolo"
$AW status
$AW capture api-tests --lines 120
$AW send api-tests --prompt-file {second}
"""
    env = {"UV_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CACHE": "1"}
    done = subprocess.run(
        ["bash", "-c", lines], cwd=world.repo, env={**world.env, **env}, capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^api-tests +running ", done.stdout, re.MULTILINE)
    wait_for(lambda: len(world.prompts()) == 2, "both prompts")
    assert [prompt["prompt"].splitlines()[0] for prompt in world.prompts()] == [
        "@print first part",
        "@print second part",
    ]
    script = world.repo / SKILL / "scripts" / "agent_workers.py"
    ran = world.run("cleanup", "api-tests", "--branch-delete", script=script)
    assert ran.code == 3, "a running worker is refused"
    assert world.run("stop", "api-tests", script=script).code == 0
    assert world.run("cleanup", "api-tests", "--branch-delete", script=script).code == 0
    assert world.branches() == {"main"}
    assert world.git("status", "--porcelain") == "", "nothing is left in the skill's folder"


def start_anyhow(world: World, script: Path, *python: str, **env: str) -> None:
    """Run `status` and demand a proper answer."""
    done = subprocess.run(
        [sys.executable, *python, str(script), "status", "--json"], cwd=world.repo,
        env={**world.env, **env}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["workers"] == []


def test_the_entry_file_works_however_it_is_called(world: World) -> None:
    """S11, skill-package rules: link, spaces, read-only, mode 0600, isolated, safe path."""
    script = install(world.root / "a b" / "parallel-agent-worktree-skill")
    skill = script.parent.parent
    link = world.root / "link"
    link.symlink_to(skill)
    for path in skill.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    start_anyhow(world, script)
    start_anyhow(world, link / "scripts" / "agent_workers.py")
    start_anyhow(world, script, PYTHONSAFEPATH="1")
    start_anyhow(world, script, "-I")
    start_anyhow(world, script, "-I", "-S")
    start_anyhow(world, script, LC_ALL="C", LANG="C")
    for path in [skill, *skill.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    start_anyhow(world, script)
    assert not [path for path in skill.rglob("*") if path.name == "__pycache__"]
    assert not [path for path in skill.rglob("*") if path.suffix == ".pyc"]


def test_a_package_of_the_same_name_does_not_take_its_place(world: World) -> None:
    foreign = world.root / "foreign"
    (foreign / "fanout").mkdir(parents=True)
    (foreign / "fanout" / "__init__.py").write_text("raise SystemExit('foreign')\n")
    start_anyhow(world, AGENT_WORKERS, PYTHONPATH=str(foreign))
    for name in ("json.py", "subprocess.py", "fanout.py"):
        (world.repo / name).write_text("raise SystemExit('from the working directory')\n")
    start_anyhow(world, AGENT_WORKERS)


def test_compiled_modules_are_kept_in_the_users_cache(world: World) -> None:
    """Made of exactly the source that is there now, whatever its time and size."""
    del world.env["XDG_CACHE_HOME"]
    script = install(world.root / "skill")
    start_anyhow(world, script)
    folder = world.home / ".cache" / "agent-workers" / "bytecode"
    assert (folder.stat().st_mode & 0o777) == 0o700
    kept = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert any(name.startswith("fanout.steering-") for name in kept)
    start_anyhow(world, script)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == kept
    errors = script.parent / "fanout" / "errors.py"
    before = errors.stat()
    errors.write_text(errors.read_text().replace("usage or invalid", "USAGE or invalid"))
    os.utime(errors, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert errors.stat().st_size == before.st_size
    assert "USAGE or invalid" in world.run("--help", script=script).out


def test_a_cache_that_cannot_be_trusted_or_written_is_left_alone(world: World) -> None:
    del world.env["XDG_CACHE_HOME"]
    cache = world.home / ".cache"
    cache.mkdir()
    cache.chmod(0o777)
    start_anyhow(world, AGENT_WORKERS)
    assert list(cache.iterdir()) == []
    cache.rmdir()
    cache.write_text("a file")
    start_anyhow(world, AGENT_WORKERS)
    elsewhere = world.root / "xdg"
    start_anyhow(world, AGENT_WORKERS, XDG_CACHE_HOME=str(elsewhere))
    folder = elsewhere / "agent-workers" / "bytecode"
    kept = list(folder.iterdir())
    for path in kept:
        path.write_bytes(b"\0" * 100)
    start_anyhow(world, AGENT_WORKERS, XDG_CACHE_HOME=str(elsewhere))
    assert all(path.stat().st_size > 100 for path in kept)
    for unusable in ("", "relative", "/dev/null", "/proc/nowhere"):
        start_anyhow(world, AGENT_WORKERS, XDG_CACHE_HOME=unusable, HOME="/nowhere")
    start_anyhow(world, AGENT_WORKERS, PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=f"{cache}2")
    assert not Path(f"{cache}2").exists()


def test_what_fails_on_the_way_out_does_not_hide_the_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def dispatch(_: object) -> Answer:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException as error:
            raise SkillError(
                "tree-busy", "cannot undo", "look there", data={"path": "x"}
            ) from error
        raise AssertionError("the signal came late")

    before = {number: signal.getsignal(number) for number in common.SIGNALS}
    try:
        code = common.run_command("tool", ["--json"], lambda _: argparse.Namespace(), dispatch)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    answer = json.loads(capsys.readouterr().out)
    assert code == 130
    assert answer["error"]["code"] == "interrupted"
    assert answer["error"]["message"] == "interrupted by INT; then: cannot undo"
    assert answer["error"]["hint"] == "look there"
    assert answer["data"] == {"path": "x"}
