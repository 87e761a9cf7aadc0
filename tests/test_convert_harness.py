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
from fanout.harness import FORM
from stand_ins import script
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
    assert len(lines) == 5


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
        ["--probe", "x", "--output", ""],
        ["--live"],
        ["--live", "--config", "x", "--endpoint", "http://127.0.0.1:1"],
        ["--check", "--live", "--config", "x"],
        ["--check", "--config", "x", "--endpoint", "http://127.0.0.1:1"],
        ["--check", "--config", "x", "--env", "A=b"],
        ["--check", "--live", "--config", "x", "--endpoint", "127.0.0.1:1"],
        ["--check", "--live", "--config", "x", "--endpoint", ""],
        ["--check", "--live", "--config", "x", "--endpoint", "http://x", "--env", "A"],
        ["--check", "--live", "--config", "x", "--endpoint", "http://x", "--pass", "A=b"],
        ["--check", "--live", "--config", "x", "--endpoint", "http://x", "--home", "/no/such"],
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


def test_an_unfilled_template_is_refused_with_what_to_fill_in(world: World) -> None:
    template = str(ROOT / "examples" / "harness-template.json")
    ran = run(world, "--config", template, "--output-dir", str(world.root / SKILL))
    assert (ran.code, ran.error["code"]) == (2, "invalid-mapping")
    assert ran.error["hint"] == "fill in name and executable: that much every mapping says"


def test_a_mode_that_was_changed_is_put_right(world: World, config: str, made: Path) -> None:
    file = made / "scripts" / "convert_harness.py"
    mode = file.stat().st_mode
    file.chmod(0o600)
    words = ("--config", config, "--output-dir", str(made))
    told = run(world, *words, "--dry-run")
    assert (told.code, told.data["same"]) == (0, False)
    assert run(world, *words).data["written"] is True
    assert file.stat().st_mode == mode
    assert run(world, *words).data["written"] is False


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


# --- A live check ---------------------------------------------------------------------------

ENDPOINT = "http://127.0.0.1:9"
LEADS = ("--endpoint", ENDPOINT, "--env", "LIVE_ENDPOINT={endpoint}")


@pytest.fixture
def live(world: World) -> str:
    """A mapping of the sample agent as it understands a live check."""
    program = script(
        world.root, TARGET, f'exec "{sys.executable}" "{ROOT / "tests" / "live_agent.py"}" "$@"'
    )
    made = mapping(
        executable=program,
        interactive__prompt_mode="paste",
        interactive__prompt_arg=None,
        interactive__ready=["title:^sample: ready"],
        interactive__busy=["working \\(esc to interrupt"],
        interactive__idle=["title:^sample: ready"],
        interactive__waiting=["title:action required"],
        noninteractive__args=["--print"],
        noninteractive__exit_codes={"0": "done"},
        noninteractive__zero_without_work=True,
        session__id_source="assigned",
        session__new_args=["--session", "{session_id}"],
        session__resume_args=["--resume", "{session_id}"],
        approval__bypass_args=["--yolo"],
        parallel__safe=True,
        cleanup__survivors=[],
    )
    return write_mapping(world.root, made)


def live_check(world: World, config: str, *words: str, **env: str) -> Ran:
    """Try a mapping on the sample agent; afterwards nothing is left of it."""
    place = world.root / "tmp"
    place.mkdir(exist_ok=True)
    ran = world.run(
        "--check", "--live", "--config", config, *LEADS, *words, "--json",
        script=SCRIPT, env={"TMPDIR": str(place), **env}, seconds=170,
    )  # fmt: skip
    assert list(place.iterdir()) == []
    return ran


def held(ran: Ran) -> dict[str, bool | None]:
    """What held, by path."""
    return {row["path"]: row["held"] for row in ran.data["fields"]}


def test_a_live_check_says_what_held(world: World, live: str) -> None:
    ran = live_check(world, live)
    assert ran.code == 0, ran
    found = held(ran)
    assert list(found) == [path for path in FORM if path in found]
    told = {row["path"]: row["why"] for row in ran.data["fields"]}
    kept = [path for path, ok in found.items() if ok]
    assert kept == [
        "version.args", "version.verified", "interactive.args", "interactive.prompt_mode",
        "interactive.ready", "interactive.busy", "interactive.idle", "interactive.waiting",
        "noninteractive.args", "noninteractive.prompt_mode", "noninteractive.exit_codes",
        "noninteractive.zero_without_work", "session.id_source", "session.new_args",
        "session.resume_args", "parallel.safe", "cleanup.survivors",
    ], told  # fmt: skip
    assert not any(ok is False for ok in found.values())
    assert told["sandbox.args"] == "the mapping does not say"
    assert told["approval.bypass_args"] == "tried with --bypass alone"
    assert (ran.data["found"], ran.data["fits"]) == ("1.2.3", True)


def test_a_live_check_names_what_did_not_hold_and_tells_no_secret(world: World, live: str) -> None:
    home = world.root / "begin"
    (home / "sub").mkdir(parents=True)
    (home / "sub" / "settings").write_text("url={endpoint} in={repository}")
    ran = live_check(
        world, live, "--bypass", "--home", str(home), "--pass", "LIVE_FAULT", LIVE_FAULT="forgetful"
    )
    assert (ran.code, ran.error["code"]) == (10, "mapping-not-held"), ran
    found = held(ran)
    assert [path for path, ok in found.items() if ok is False] == [
        "session.id_source", "session.new_args", "session.resume_args",
    ]  # fmt: skip
    assert found["approval.bypass_args"] is True
    assert "forgetful" not in ran.out + ran.err


def test_a_live_check_ends_at_its_deadline(world: World, live: str) -> None:
    ran = live_check(world, live, "--timeout", "4", "--env", "LIVE_FAULT=silent")
    assert (ran.code, ran.error["code"]) == (124, "deadline-passed"), ran


def test_a_live_check_without_what_it_needs(world: World, live: str) -> None:
    ran = live_check(world, live, "--pass", "NO_SUCH_KEY")
    assert (ran.code, ran.error["code"]) == (4, "environment-missing")
    assert "NO_SUCH_KEY" in ran.error["message"]
    ran = run(world, "--check", "--live", "--config", live, "--endpoint", ENDPOINT)
    assert (ran.code, ran.error["code"]) == (2, "endpoint-unused")
    gone = write_mapping(world.root, mapping(executable="no-such-cli"))
    ran = run(world, "--check", "--live", "--config", gone, *LEADS)
    assert (ran.code, ran.error["code"]) == (4, "agent-missing")
