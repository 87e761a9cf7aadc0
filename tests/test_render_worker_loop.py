"""The command that renders a plan into a runner, and the file that it writes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fanout.rendering import as_json, with_usual
from fanout.runtimes.loop import fill
from inside import install
from runner_world import (
    COMMIT,
    RENDERER,
    Runner,
    bin_without,
    render,
    runner,
    runner_language,
    sh,
    task,
)
from world import ROOT, SAMPLE_AGENT, World

__all__ = ["runner", "runner_language"]

# Everything that a plan can hold, so that a rendered file shows it all.
FULL: dict[str, Any] = {
    "repo": ".",
    "base": "main",
    "max_parallel": 3,
    "variables": {"HOST": "it's \"here\" $(touch PWN) `touch PWN` \\", "EMPTY": ""},
    "preflight": ["test -n {HOST}", ["printf", "%s", "{HOST}"]],
    "backups": [
        {"name": "dump", "run": "echo {HOST} > {RUN_DIR}/dump", "timeout_seconds": 60,
         "artifact": "{RUN_DIR}/dump", "check": "test -s \"$RUN_DIR/dump\""},
        {"name": "extra", "run": ["true"], "when": {"env": {"EXTRA": "yes"}}},
    ],
    "postflight": ["echo 'done: {HOST}'"],
    "rollback": ["echo back > \"{RUN_DIR}/back {HOST}\""],
    "tasks": [
        task("one", COMMIT, owns=["*.txt"], verify=["test -f one.txt"], setup=[sh("true")]),
        task("each-{item}", "@print {item}\n", for_each=["a b", "ü"], depends_on=["one"],
             when={"all": [{"path_exists": "README.md"}, {"not": {"env": "NEVER"}},
                           {"any": ["true", {"backup_passed": "dump"}]}]}),
    ],
}  # fmt: skip


def written(runner: Runner, **fields: Any) -> list[str]:
    """The words that render this plan to the runner's path."""
    plan = {"agent": {"cli": "sh"}, "tasks": [task("one")], **fields}
    runner.plan_file.write_text(json.dumps(plan))
    words = ["--config", str(runner.plan_file), "--output", str(runner.path)]
    return [*words, "--language", runner.language, "--json"]


def refusal(code: int, *words: str) -> dict[str, Any]:
    """The error of a call that must end with this exit code."""
    ran = render(*words)
    assert ran.code == code, (ran.code, ran.out, ran.err)
    assert ran.json["ok"] is False
    return ran.error


# --- The command ----------------------------------------------------------------------------


def test_a_task_that_names_no_place_for_its_changelog_entry_is_told(runner: Runner) -> None:
    tasks = [task("one"), task("two-{item}", for_each=["a"]), task("three", changelog="c/3.md")]
    ran = render(*written(runner, tasks=tasks))
    assert ran.code == 0
    assert ran.data["without_changelog"] == ["one", "two-{item}"]
    assert "of: one, two-{item}\n" in ran.err
    ran = render(*written(runner, tasks=tasks[2:]))
    assert (ran.data["without_changelog"], ran.err) == ([], "")


def test_a_misspelt_variable_is_told_wherever_it_stands(runner: Runner) -> None:
    """A condition about a path that can never exist would skip a backup without a word."""
    bad = "x/{DATBASE}"
    where = "repo base worktree_root preflight[0] backups[0].run[1] backups[0].when.not.path_exists"
    where += " backups[0].artifact backups[0].check checks[0] changelog_file agent.args[0]"
    where += " agent.env.E tasks[0].prompt tasks[0].branch tasks[0].base tasks[0].owns[0]"
    where += " tasks[0].changelog tasks[0].when.env.E tasks[0].agent.prompt_arg postflight[0].run"
    where += " tasks[0].for_each.file tasks[0].setup[0] tasks[0].verify[0] rollback[0]"
    one = task(
        "t-{item}", f"echo {bad}\n", branch=bad, base=bad, owns=[bad], changelog=bad, setup=[bad],
        when={"env": {"E": bad}}, agent={"prompt_arg": bad}, for_each={"file": bad}, verify=[bad],
    )  # fmt: skip
    plan: dict[str, Any] = {
        "variables": {"DATABASE": "d"}, "repo": bad, "base": bad, "worktree_root": bad,
        "preflight": [bad], "checks": [bad], "changelog_file": bad, "rollback": [bad],
        "postflight": [{"run": bad}],
        "backups": [{"run": ["x", bad], "artifact": bad, "check": bad,
                     "when": {"not": {"path_exists": bad}}}],
        "agent": {"cli": "sh", "args": [bad], "env": {"E": bad}}, "tasks": [one],
    }  # fmt: skip
    ran = render(*written(runner, **plan))
    assert ran.code == 0
    notes = ran.data["unknown_variables"]
    assert sorted(notes) == sorted(
        f"`{{DATBASE}}` at {place} is no variable; did you mean {{DATABASE}}?"
        for place in where.split()
    )
    assert f"note: {notes[0]}\n" in ran.err
    assert f"note: and {len(notes) - 10} more" in ran.err

    known = "{DATABASE} ${DATBASE} {data} {} {A-B} {item} {RUN_ID} {Data}"
    fine = task("t", f"{known}\n", changelog="c", for_each=["a"])
    ran = render(*written(runner, variables={"DATABASE": "d"}, tasks=[fine]))
    assert (ran.code, ran.data["unknown_variables"], ran.err) == (0, [], "")
    ran = render(*written(runner, preflight=["echo {QQ}"], tasks=[fine]))
    assert ran.data["unknown_variables"] == [
        "`{DATABASE}` at tasks[0].prompt is no variable and stays as it is",
        "`{QQ}` at preflight[0] is no variable and stays as it is",
    ][::-1]  # fmt: skip


def test_it_answers_with_what_it_wrote_and_what_comes_next(runner: Runner) -> None:
    """As a process, and the commands of its answer work as they stand."""
    words = written(runner)
    ran = runner.world.run(*words, script=RENDERER)
    assert ran.code == 0, ran
    assert ran.json["ok"] is True
    assert ran.data["output"] == str(runner.path)
    assert ran.data["language"] == runner.language
    source = runner.path.read_text()
    sha = ran.data["plan_sha256"]
    assert re.fullmatch("[0-9a-f]{64}", sha)
    assert sha in source
    assert stat.S_IMODE(runner.path.stat().st_mode) == 0o755
    first = {"python": "#!/usr/bin/env python3", "bash": "#!/usr/bin/env bash"}[runner.language]
    assert source.splitlines()[0] == first
    actions = {row["action"]: row for row in ran.json["next_actions"]}
    assert list(actions) == ["dry-run", "run"]
    before = runner.seen()
    for action, code in (("dry-run", 0), ("run", 0)):
        done = subprocess.run(
            ["bash", "-c", actions[action]["command"]], cwd=runner.repo, check=False,
            env=runner.world.env, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        if action == "dry-run":
            runner.same(before)
    assert runner.world.branches() == {"main", "one"}


def test_the_same_plan_gives_the_same_bytes_and_check_tells_them_apart(runner: Runner) -> None:
    words = written(runner, **FULL)
    assert render(*words, "--check").code == 0, "nothing is there that could differ"
    assert not runner.path.exists()
    assert render(*words).code == 0
    first = runner.path.read_bytes()
    assert render(*words, "--check").code == 0
    assert render(*words).code == 0
    assert runner.path.read_bytes() == first
    runner.path.write_bytes(first + b"\n")
    assert refusal(1, *words, "--check")["code"] == "runner-differs"
    assert runner.path.read_bytes() == first + b"\n"
    other = written(runner, **{**FULL, "max_parallel": 4})
    assert refusal(1, *other, "--check")["code"] == "runner-differs"


def test_the_hash_covers_embedded_files(runner: Runner) -> None:
    prompt = runner.plan_file.parent / "p.md"
    prompt.write_bytes(b"first\r\n")
    words = written(runner, tasks=[{"name": "one", "prompt_file": "p.md"}])
    first = render(*words).data["plan_sha256"]
    prompt.write_bytes(b"second\n")
    assert refusal(1, *words, "--check")["code"] == "runner-differs"
    assert render(*words).data["plan_sha256"] != first


def test_a_file_that_is_no_runner_is_not_overwritten(runner: Runner) -> None:
    words = written(runner)
    for content in (b"", b"#!/usr/bin/env python3\nprint('mine')\n", b"#!/usr/bin/env bash\n"):
        runner.path.write_bytes(content)
        assert refusal(3, *words)["code"] == "not-a-runner"
        assert runner.path.read_bytes() == content
    runner.path.unlink()
    runner.path.mkdir()
    assert render(*words).code in (2, 3)
    assert list(runner.path.iterdir()) == []


def test_nothing_is_left_of_a_write_that_failed(runner: Runner) -> None:
    words = written(runner)
    gone = str(runner.path.parent / "gone" / "x.py")
    ran = render(*[gone if word == str(runner.path) else word for word in words])
    assert ran.code in (1, 2, 4), ran
    assert "/gone" in ran.error["message"]
    assert sorted(os.listdir(runner.path.parent)) == ["plan.json"]


def test_usage(runner: Runner) -> None:
    words = written(runner)
    assert "perl" in refusal(2, *words[:-2], "perl", "--json")["message"]
    assert refusal(2, *words, "--config", str(runner.path))["message"]
    assert refusal(2, "--json")["code"] == "usage"
    assert not runner.path.exists()
    shown = runner.world.run("--help", script=RENDERER)
    assert shown.code == 0
    assert "--language" in shown.out
    assert "exit codes:" in shown.out
    assert "example" in shown.out


BAD_PLANS: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown field": ({"preflihgt": []}, "preflihgt", "preflight"),
    "a misspelt word": ({"on_failure": "stopp"}, "on_failure", "stop"),
    "a wrong type": ({"max_parallel": True}, "max_parallel", ""),
    "an unknown dependency": (
        {"tasks": [task("alpha"), task("beta", depends_on=["alhpa"])]},
        "tasks[1].depends_on[0]", "alpha",
    ),
    "an unknown backup": (
        {"backups": [{"name": "dump", "run": "true"}],
         "tasks": [task("one", when={"backup_passed": "dmp"})]},
        "tasks[0].when", "dump",
    ),
    "a cycle": (
        {"tasks": [task("alpha", depends_on=["beta"]), task("beta", depends_on=["alpha"])]},
        "alpha", "beta",
    ),
    "a name twice": ({"tasks": [task("one"), task("ONE")]}, "tasks[1].name", "ONE"),
    "no tasks": ({"tasks": []}, "tasks", ""),
    "a place that bash cannot be trusted with": (
        {"variables": {"V": "x"}, "preflight": ["cat <<E\n{V}\nE"]}, "preflight[0]", "PLAN_V",
    ),
    "a command in a condition": (
        {"tasks": [task("one", verify=[{"run": "true", "when": {"pathexists": "x"}}])]},
        "tasks[0].verify[0].when", "path_exists",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_PLANS)
def test_a_bad_plan_is_refused_with_its_place_and_the_nearest_word(
    runner: Runner, what: str
) -> None:
    fields, place, near = BAD_PLANS[what]
    error = refusal(2, *written(runner, **fields))
    assert error["code"] == "invalid-plan"
    said = f"{error['message']} {error['hint']}"
    assert place in said, said
    assert near in said, said
    assert sorted(os.listdir(runner.path.parent)) == ["plan.json"], "nothing was written"


def test_names_that_could_be_paths_are_refused(runner: Runner) -> None:
    """Q01, Q03: tasks, commands, runs and branches are checked before any file is written."""
    for bad in ("../../etc/x", "a/b", "", "x" * 300, ".", "..", "-x", "a b", "a\nb", "é"):
        for fields in (
            {"tasks": [task(bad)]},
            {"run_name": bad},
            {"preflight": [{"name": bad, "run": "true"}]},
            {"agent": {"cli": "sh", "log_name": "../x" if bad == "a b" else "a/b"}},
        ):
            assert refusal(2, *written(runner, **fields))["code"] == "invalid-plan", fields
    for branch in ("a..b", "-x", "a b", "x.lock", "/x", "x/", "@", "a@{b", "a~1", "refs//x", "."):
        fields = {"tasks": [task("one", branch=branch)]}
        assert refusal(2, *written(runner, **fields))["code"] == "invalid-plan", branch
    assert sorted(os.listdir(runner.path.parent)) == ["plan.json"]


# --- The file -------------------------------------------------------------------------------


def header_of(source: str) -> list[str]:
    """The comment lines at the top."""
    lines = source.splitlines()
    end = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    return lines[:end]


def test_the_header_shows_every_command_in_clear_text_and_in_order(runner: Runner) -> None:
    runner.plan(**{**FULL, "run_name": "demo"})
    header = header_of(runner.path.read_text())
    text = "\n".join(header)
    assert "regenerate with" in text.lower()
    assert "render_worker_loop.py" in text
    in_order = [
        "test -n {HOST}", "printf %s", "echo {HOST} > {RUN_DIR}/dump",
        'test -s "$RUN_DIR/dump"', "one", "test -f one.txt", "each-{item}",
        "echo 'done: {HOST}'", 'echo back > "{RUN_DIR}/back {HOST}"',
    ]  # fmt: skip
    position = 0
    for words in in_order:
        found = text.find(words, position)
        assert found >= 0, (words, text)
        position = found


def test_what_most_tasks_have_alike_is_said_once() -> None:
    tasks: list[dict[str, Any]] = [
        {"name": "a", "owns": [], "agent": {"cli": "x"}, "limit": 1},
        {"name": "b", "owns": ["f"], "agent": {"cli": "x"}, "limit": True},
        {"name": "c", "owns": ["f"], "agent": {"cli": "y"}, "limit": 1.0},
    ]
    made = with_usual({"repo": ".", "tasks": tasks, "rollback": []})
    assert made["usual"] == {"owns": ["f"], "agent": {"cli": "x"}}
    assert [sorted(task) for task in made["tasks"]] == [
        ["limit", "name", "owns"], ["limit", "name"], ["agent", "limit", "name"]
    ]  # fmt: skip
    assert [{**made["usual"], **task} for task in made["tasks"]] == tasks
    alone = with_usual({"tasks": tasks[:1]})
    assert (alone["usual"], alone["tasks"]) == ({}, tasks[:1])


def test_texts_of_several_lines_and_quotes_come_back_as_they_were() -> None:
    """As lists of lines, in a raw string that no quote ends."""
    nasty = "l1\nl2 ''' '''' \\ \" \u202e ü \U000e0001\r\n\nend"
    plan: dict[str, Any] = {
        "prompt": nasty, "env": {"marks": nasty, "text": "t"}, "variables": {"V": nasty},
        "shell": {"text": "a {V}\nb", "marks": ["word V"]}, "argv": ["one\n", "'''"],
    }  # fmt: skip
    text = as_json(plan)
    assert "'''" not in text
    data = json.loads(text)
    assert data["variables"] == plan["variables"]
    assert [fill(word, {}) for word in data["argv"]] == plan["argv"]
    for found in (data["prompt"], data["env"]["marks"]):
        assert fill(found, {}) == nasty
        assert len(found["text"]) == 4
    assert fill(data["shell"], {"V": "it's"}) == "a 'it'\\''s'\nb"


@pytest.mark.parametrize("sign", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_no_text_of_a_plan_becomes_code(runner: Runner, sign: str) -> None:
    """Q05: a command of several lines stays in its comment, whatever ends a line somewhere."""
    pwned = runner.world.root / "PWN"
    nasty = f"true # x{sign}touch {pwned}{sign}"
    prompt = f"{sign}touch {pwned}{sign}EOF{sign}'''{sign}\"\"\"{sign}"
    runner.plan(
        task("one", prompt, setup=[["true", nasty]], owns=["a"]),
        preflight=[["true", nasty]],
        variables={"V": nasty},
        agent={"cli": "true", "args": [nasty, "$(touch x)"]},
    )
    source = runner.path.read_bytes().decode()
    for line in source.splitlines():
        assert not line.startswith(f"touch {pwned}"), "a line of its own"
    runner.ends(0, "--help")
    runner.ends(0, DRY_RUN="1")
    assert not pwned.exists()


def test_invisible_characters_are_written_as_escapes(runner: Runner) -> None:
    """What a reviewer reads is what runs: no bidirectional override hides a command."""
    runner.plan(task("one", "a\u202eb\u2066c\x1b[8md\x07"), preflight=[["echo", "x\u202ey\x1b[2J"]])
    source = runner.path.read_bytes().decode()
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x07]", source)


def test_the_file_passes_the_linters_of_its_language(runner: Runner) -> None:
    """Python: ruff and ty as this repository has them; Bash reads it.

    `make types` and `make shell` have pyright and shellcheck, which take longer, look at a runner.
    """
    runner.plan(**{**FULL, "run_name": "demo"})
    tools = Path(sys.executable).parent
    if runner.language == "python":
        named = runner.path.rename(runner.path.with_name("run_agent_workers.py"))
        ruff = [
            str(tools / "ruff"),
            "check",
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
        ]
        calls = [
            [
                *ruff,
                "--ignore=E501",
                "--config",
                "lint.per-file-ignores={'*' = ['T20']}",
                str(named),
            ],
            [str(tools / "ty"), "check", "--error-on-warning", "--python-version=3.11", str(named)],
        ]
    else:
        calls = [["bash", "-n", str(runner.path)]]
        for words in re.findall("shellcheck disable=(.*)", runner.path.read_text()):
            assert re.fullmatch(r"SC\d+(,SC\d+)*(\s.*)?", words), words
    started = [
        subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for call in calls
    ]
    said = [process.communicate(timeout=100)[0].decode() for process in started]
    assert [process.returncode for process in started] == [0] * len(calls), "\n".join(said)


# What bash 3.2 lacks, and programs that some systems lack.
FORBIDDEN = {
    "wait -n": r"\bwait\s+-[a-z]*n",
    "mapfile": r"\b(mapfile|readarray)\b",
    "associative arrays, namerefs": r"\b(declare|local|typeset)\s+-[a-zA-Z]*[Ang]",
    "case changes": r"\$\{[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?(\^|,)",
    "quoting of values": r"\$\{[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?@[A-Za-z]",
    "fall through in case": r";;?&",
    "both streams appended": r"&>>",
    "pipe of both streams": r"\|&",
    "negative index": r"\[-\d+\]",
    "test -v": r"\[\[?\s+-v\b",
    "coprocesses": r"\bcoproc\b",
    "timeout": r"^\s*timeout\b|[|;&(]\s*timeout\s",
    "setsid": r"^\s*(exec\s+)?setsid\b|[|;&(]\s*setsid\s",
    "readlink -f": r"\breadlink\s+-f",
    "realpath": r"^\s*realpath\b|\$\(\s*realpath\b",
    "sed -i": r"\bsed\s+-i",
    "eval": r"\beval\b",
}
GUARDED = {
    "printf of times": (r"printf\s+(-v\s+\w+\s+)?['\"]?%\(", "bash_version >= 5"),
    "flock": (r"\bflock\b", "command -v flock"),
    "EPOCH": (r"\bEPOCH(REALTIME|SECONDS)\b", "EPOCHREALTIME-"),
}


def test_the_bash_file_keeps_to_what_an_old_bash_knows(world: World) -> None:
    """Q13, Q11, Q15: words of bash 4 and programs that a Mac lacks are absent or guarded."""
    bash = Runner(world, "bash")
    bash.plan(task("one"))
    lines = [
        line for line in bash.path.read_text().splitlines() if not line.lstrip().startswith("#")
    ]
    for what, pattern in FORBIDDEN.items():
        found = [line for line in lines if re.search(pattern, line)]
        assert not found, (what, found)
    source = "\n".join(lines)
    for what, (pattern, guard) in GUARDED.items():
        if re.search(pattern, source):
            assert guard in source, what
    hidden = [
        line
        for line in lines
        if re.search(r"\b(local|declare|export)\s+\w+=[\"']?\$\((?!\()", line)
    ]
    assert not hidden, "Q15: the exit status of a substitution is hidden"
    assert "unset CDPATH" in source


def test_a_plan_of_a_thousand_tasks(runner: Runner) -> None:
    tasks: list[dict[str, Any]] = [
        task(f"t{n}", f"Do the work of part {n}.\n", depends_on=[f"t{n - 1}"] if n % 3 else [],
             owns=[f"src/{n}/**"], verify=[f"test -d src/{n}"])
        for n in range(1000)
    ]  # fmt: skip
    words = written(runner, tasks=tasks)
    ran = render(*words)
    assert ran.code == 0
    assert 1000 in ran.data.values() or 1000 in ran.data.get("counts", {}).values(), ran.data
    out = runner.ends(0, DRY_RUN="1").out
    assert len(re.findall(r"^ *task t\d+$", out, re.M)) == 1000


# --- What it needs at run time --------------------------------------------------------------


def test_a_runner_needs_nothing_of_the_package(world: World, runner_language: str) -> None:
    """Rendered by a copy of the skill that is gone when the runner runs."""
    skill = world.root / "skill"
    install(skill)
    runner = Runner(world, runner_language)
    words = written(runner)
    ran = world.run(*words, script=skill / "scripts" / "render_worker_loop.py")
    assert ran.code == 0, ran
    skill.rename(world.root / "moved")
    moved = world.root / "else where" / "run it"
    moved.parent.mkdir()
    runner.path.rename(moved)
    runner.path = moved
    runner.ends(0, PYTHONPATH=None, PYTHONSAFEPATH="1")
    assert runner.statuses() == {"one": "passed"}
    assert not list(moved.parent.glob("__pycache__"))


def test_programs_that_some_systems_lack_are_not_needed(runner: Runner) -> None:
    """No timeout, setsid or flock on PATH: the same run, and the time limit still holds."""
    runner.plan(
        task("one", verify=["true"]),
        task("two"),
        task("slow", "echo begun\nsleep 60\n", timeout_seconds=1),
        backups=[{"run": "echo x > \"$RUN_DIR/a\"", "artifact": "{RUN_DIR}/a"}],
    )  # fmt: skip
    few = bin_without(
        runner.world, "timeout", "setsid", "flock", "gtimeout", "readlink", "realpath", "tac",
        "sha256sum" if runner.language == "bash" else "shasum",
    )  # fmt: skip
    runner.ends(1, PATH=few)
    assert runner.statuses() == {"one": "passed", "two": "passed", "slow": "timed-out"}
    assert runner.log("tasks", "slow", "agent.log") == b"begun\n"
    artifact = runner.manifest["backups"][0]["artifact"]
    assert artifact["sha256"] == hashlib.sha256(b"x\n").hexdigest()
    assert artifact["size"] == 2


# --- Both at once ---------------------------------------------------------------------------


def test_the_example_runs_as_the_manual_says(runner: Runner) -> None:
    example = ROOT / "examples" / "self-hosted-upgrade.json"
    words = ["--config", str(example), "--output", str(runner.path), "--language", runner.language]
    assert render(*words).code == 0
    # Not here: a copy of this package need not lie in a repository.
    out = runner.ends(0, DRY_RUN="1", RUN_ID=None).out
    assert "nothing was run and nothing was changed" in out
    assert not (runner.repo / ".worker-runs").exists()
    assert str(SAMPLE_AGENT.name) in out or shlex.quote("agent") in out
