"""The command `convert_harness.py`, and the packages that it makes, by their own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conversions import TARGET, contents, mapping, write_mapping
from fanout import edition
from fanout.converting import REPORT
from world import ROOT, SCRIPTS, Ran, World

SKILL = f"{TARGET}-worktree-skill"
SCRIPT = SCRIPTS / "convert_harness.py"
original = pytest.mark.skipif(
    (ROOT / REPORT).exists(), reason="a package that was converted does not test another one whole"
)


def run(world: World, *words: str) -> Ran:
    """Run the command with --json."""
    return world.run(*words, "--json", script=SCRIPT)


@pytest.fixture
def config(world: World) -> str:
    return write_mapping(world.root, mapping())


@pytest.fixture
def made(world: World, config: str) -> Path:
    """A converted package."""
    folder = world.root / SKILL
    ran = run(world, "--config", config, "--output-dir", str(folder))
    assert ran.code == 0, ran
    return folder


def python(*words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command as anybody would."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **env},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


def test_the_help_shows_an_example_of_each_mode(world: World) -> None:
    ran = world.run("--help", script=SCRIPT)
    assert ran.code == 0
    for word in ("--output-dir", "--dry-run", "--probe", "--check", "exit codes:", "--timeout"):
        assert word in ran.out
    lines = [line for line in ran.out.splitlines() if line.startswith("  convert_harness.py --")]
    assert len(lines) == 4


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--config", "x"],
        ["--output-dir", "x"],
        ["--probe", "x", "--config", "x"],
        ["--probe", "x", "--check"],
        ["--check"],
        ["--check", "--config", "x", "--output-dir", "x"],
        ["--check", "--config", "x", "--dry-run"],
        ["--config", "x", "--output-dir", "y", "--output", "z"],
        ["--config", "x", "--output-dir", "y", "--timeout", "3"],
        ["--probe", "x", "--timeout", "0"],
        ["--config", "--output-dir", "y"],
        ["--conf", "x", "--output-dir", "y"],
    ],
)
def test_options_that_make_no_mode(world: World, words: list[str]) -> None:
    ran = run(world, *words)
    assert ran.code == 2
    assert ran.error["code"] == "usage"


def test_a_dry_run_tells_all_and_writes_nothing(world: World, config: str) -> None:
    folder = world.root / SKILL
    before = sorted(world.root.rglob("*"))
    words = ("--config", config, "--output-dir", str(folder), "--dry-run")
    ran = run(world, *words)
    assert ran.code == 0
    assert sorted(world.root.rglob("*")) == before
    assert (ran.data["written"], ran.data["dry_run"], ran.data["same"]) == (False, True, False)
    assert ran.json["next_actions"] == []
    real = run(world, *words[:-1])
    assert real.data["written"] is True
    assert real.data["files"] == ran.data["files"]
    rows = {row["path"]: row for row in ran.data["files"]}
    assert set(rows) | {REPORT} == set(contents(folder))
    renamed = rows[ran.data["helper"]]
    assert (renamed["action"], renamed["source"]) == ("renamed", f"scripts/{edition.HELPER}")
    assert rows["LICENSE"]["action"] == "copied"
    assert rows[ran.data["mapping"]]["action"] == "added"
    told = world.run(*words, script=SCRIPT)
    assert f"  renamed  {ran.data['helper']}\n" in told.out
    assert len(told.out.splitlines()) < 60


def test_the_answer_names_what_was_made_and_what_comes_next(world: World, config: str) -> None:
    folder = world.root / "a b"
    ran = run(world, "--config", config, "--output-dir", str(folder))
    assert ran.data["skill"] == SKILL
    assert ran.data["output_dir"] == str(folder)
    assert "interactive.ready" in ran.data["unknown"]
    assert f"must be called {SKILL}, not a b" in ran.err
    review, tests, check = ran.json["next_actions"]
    assert review["command"] == f"cat -- '{folder}/{REPORT}'"
    assert tests["command"] == f"make -C '{folder}' test"
    assert check["command"].endswith(f" --config '{folder}/examples/harness-{TARGET}.json'")
    again = run(world, "--config", config, "--output-dir", str(folder))
    assert (again.code, again.data["written"], again.data["same"]) == (0, False, True)


def test_refusals_change_nothing(world: World, config: str, made: Path) -> None:
    (made / "notes.txt").write_text("mine")
    before = contents(made)
    words = ("--config", config, "--output-dir", str(made))
    for extra in ((), ("--dry-run",)):
        ran = run(world, *words, *extra)
        assert (ran.code, ran.error["code"]) == (3, "output-not-ours")
    assert contents(made) == before
    ran = run(world, "--config", config, "--output-dir", str(ROOT / "converted"))
    assert (ran.code, ran.error["code"]) == (3, "output-inside")
    assert not (ROOT / "converted").exists()
    (world.root / "bad.json").write_text("{")
    ran = run(world, "--config", str(world.root / "bad.json"), "--output-dir", str(made))
    assert (ran.code, ran.error["code"]) == (2, "invalid-mapping")
    bad = write_mapping(world.root, mapping("a--b"))
    ran = run(world, "--config", bad, "--output-dir", str(world.root / "new"))
    assert (ran.code, ran.error["code"]) == (2, "invalid-target")
    assert not (world.root / "new").exists()


def test_the_commands_answer_by_their_new_names(world: World, made: Path) -> None:
    scripts = sorted((made / "scripts").glob("*.py"))
    assert made / "scripts" / f"{TARGET}_workers.py" in scripts
    assert made / "scripts" / edition.HELPER not in scripts
    done = python(made / "scripts" / f"{TARGET}_workers.py", "--help", cwd=world.root)
    assert done.returncode == 0, done.stderr
    assert f"{TARGET}_workers.py" in done.stdout
    assert f'--agent-cli {TARGET} --agent-args "--yes-to-all"' in done.stdout
    assert edition.HELPER not in done.stdout


def test_a_worker_of_the_new_package_is_the_new_agent(world: World, made: Path) -> None:
    agent = world.root / "bin" / TARGET
    agent.write_text("#!/bin/sh\nexit 0\n")
    agent.chmod(0o755)
    script = made / "scripts" / f"{TARGET}_workers.py"
    words = ("spawn", "w1", "--prompt", "x", "--dry-run", "--json")
    done = python(script, *words, cwd=world.repo, **world.env)
    worker: dict[str, Any] = json.loads(done.stdout)["data"]["worker"]
    assert worker["executable"] == str(agent)
    assert worker["session"] == f"{TARGET}-worker-w1"


def test_the_reference_validator_takes_the_package(made: Path) -> None:
    done = subprocess.run(
        ["agentskills", "validate", str(made)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_converted_package_converts(world: World, made: Path) -> None:
    """By its own command, to what the original makes of the same mapping."""
    config = write_mapping(world.root, mapping("stoat"))
    there, here = world.root / "there", world.root / "here"
    script = made / "scripts" / "convert_harness.py"
    done = python(script, "--config", config, "--output-dir", there, cwd=world.root)
    assert done.returncode == 0, done.stderr
    assert run(world, "--config", config, "--output-dir", str(here)).code == 0
    first, second = contents(there), contents(here)
    del first[f"examples/harness-{TARGET}.json"]
    assert first.pop(REPORT) != second.pop(REPORT)
    assert first == second


@original
@pytest.mark.long
def test_a_converted_package_passes_its_own_tests(world: World, made: Path) -> None:
    """A handful of them: those that look at names, the default agent and the whole folder."""
    files = ("skill_package", "doctor", "output")
    words = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
    done = python(
        *words, *(f"tests/test_{name}.py" for name in files), cwd=made, PYTHONDONTWRITEBYTECODE="1"
    )
    assert done.returncode == 0, done.stdout[-3000:]


# --- Probe and check ------------------------------------------------------------------------

HELP = """Usage: otter [OPTIONS] [PROMPT]

Options:
  -p, --print          Print the answer and exit (for pipes)
  -m, --model MODEL    The model to use
  {bypass}             Run every command without asking for approval
  --version            Show the version
  -h, --help           Show this help
"""


@pytest.fixture
def agent(world: World) -> Path:
    """An installed agent CLI that tells its options and version."""
    return install_agent(world, "--yes-to-all", "1.2.3")


def install_agent(world: World, bypass: str, version: str) -> Path:
    path = world.root / "bin" / TARGET
    page = HELP.replace("{bypass}", bypass)
    path.write_text(
        f"#!/bin/sh\ncase $1 in --version) echo {TARGET} {version} ;; --help) cat <<'EOF'\n"
        f"{page}EOF\n;; *) exit 2 ;; esac\n"
    )
    path.chmod(0o755)
    return path


def test_a_probe_drafts_a_mapping_and_writes_it_to_a_new_file(world: World, agent: Path) -> None:
    ran = run(world, "--probe", TARGET)
    assert ran.code == 0, ran
    assert ran.data["mapping"]["model"]["flag"] in ("-m", "--model")
    assert ran.data["output"] is None
    assert "interactive.ready" in ran.data["unknown"]
    told = world.run("--probe", TARGET, script=SCRIPT)
    assert json.loads(told.out) == ran.data["mapping"]
    path = world.root / "draft.json"
    ran = run(world, "--probe", TARGET, "--output", str(path))
    assert json.loads(path.read_text()) == ran.data["mapping"]
    check = ran.json["next_actions"][-1]["command"]
    assert check.endswith(f" --check --config {path}")
    path.write_text("mine")
    ran = run(world, "--probe", TARGET, "--output", str(path))
    assert (ran.code, ran.error["code"]) == (3, "output-exists")
    assert path.read_text() == "mine"
    ran = run(world, "--probe", TARGET, "--output", str(world.root / "no" / "file"))
    assert (ran.code, ran.error["code"]) == (2, "output-unusable")


def test_a_draft_can_be_converted_to(world: World, agent: Path) -> None:
    """The way that the reference tells: probe, then convert, then check."""
    draft = str(world.root / "draft.json")
    assert run(world, "--probe", TARGET, "--output", draft).code == 0
    ran = run(world, "--config", draft, "--output-dir", str(world.root / SKILL))
    assert ran.code == 0, ran
    mapping_file = world.root / SKILL / ran.data["mapping"]
    assert run(world, "--check", "--config", str(mapping_file)).code in (0, 10)


def test_a_check_tells_what_is_gone(world: World, agent: Path) -> None:
    config = write_mapping(
        world.root,
        mapping(
            interactive__prompt_mode="paste", interactive__prompt_arg=None,
            noninteractive__args=["--print"], model__flag="--model",
        ),
    )  # fmt: skip
    ran = run(world, "--check", "--config", config)
    assert ran.code == 0, ran
    assert ran.data["matters"] is False
    install_agent(world, "--approve-everything", "2.0.0")
    ran = run(world, "--check", "--config", config)
    assert ran.code == 10
    assert ran.error["code"] == "mapping-drifted"
    assert {"path": "approval.bypass_args", "flag": "--yes-to-all"} in ran.data["gone"]
    assert ran.json["next_actions"][0]["command"].endswith(f" --probe {TARGET}")


def test_a_program_that_is_not_there(world: World, config: str) -> None:
    for words in (("--probe", "no-such-agent"), ("--check", "--config", config)):
        ran = run(world, *words)
        assert (ran.code, ran.error["code"]) == (4, "agent-missing")
