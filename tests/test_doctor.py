"""Is everything there? It looks, and changes nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fanout.edition import EXECUTABLE
from inside import Call, call, refusal
from world import SAMPLE_AGENT, World

__all__ = ["call"]
AGENT = ["--agent-cli", str(SAMPLE_AGENT)]


def rows(data: dict[str, object]) -> dict[str, tuple[bool, str, str]]:
    """The checks by name."""
    checks = data["checks"]
    assert isinstance(checks, list)
    return {c["name"]: (c["ok"], c["found"], c["hint"]) for c in checks}  # pyright: ignore


def program(folder: Path, name: str, script: str) -> None:
    """Put a program on PATH."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + script + "\n")
    path.chmod(0o755)


def test_all_is_well(world: World, call: Call) -> None:
    before = world.snapshot()
    ran = call("doctor", *AGENT)
    assert ran.code == 0
    found = rows(ran.data)
    assert list(found) == ["git", "tmux", "bash", "python", "harness", "repository", "tmux-socket"]
    assert all(ok for ok, _, _ in found.values())
    for name in ("git", "tmux", "bash", "python"):
        assert any(char.isdigit() for char in found[name][1]), "the version is named"
    assert str(SAMPLE_AGENT) in found["harness"][1]
    assert str(world.repo) in found["repository"][1]
    assert world.snapshot() == before
    assert not (world.repo / ".git" / "agent-workers").exists()
    assert world.sockets() == []


def test_it_does_not_run_the_agent(world: World, call: Call) -> None:
    program(world.root / "bin", "my-agent", f"touch {world.root}/was-run")
    assert call("doctor", "--agent-cli", "my-agent").code == 0
    assert not (world.root / "was-run").exists()


def test_a_missing_agent_is_exit_4_and_named(world: World, call: Call) -> None:
    ran = call("doctor", "--agent-cli", "no-such-agent")
    assert ran.code == 4
    assert ran.json["ok"] is False
    assert ran.error["code"] == "missing"
    assert "harness" in ran.error["message"]
    ok, found, hint = rows(ran.data)["harness"]
    assert not ok
    assert "no-such-agent" in found
    assert hint


def test_without_options_it_looks_for_the_sample_mapping(world: World, call: Call) -> None:
    assert f"'{EXECUTABLE}'" in rows(call("doctor").data)["harness"][1]


@pytest.mark.parametrize("name", ["git", "tmux", "bash"])
def test_a_missing_program_is_named_with_the_least_version(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = world.root / "path"
    folder.mkdir()
    for other in {"git", "tmux", "bash", "python3", "env"} - {name}:
        found = shutil.which(other)
        assert found is not None
        (folder / other).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    ran = call("doctor", *AGENT)
    assert ran.code == 4
    ok, _, hint = rows(ran.data)[name]
    assert not ok
    assert hint.startswith(f"install {name} ")
    assert name in ran.error["message"]


@pytest.mark.parametrize(
    ("name", "printed", "good"),
    [
        ("git", "git version 2.38.9", False),
        ("git", "git version 2.39.0 (Apple Git-1)", True),
        ("git", "git version 3.0", True),
        ("tmux", "tmux 2.9a", False),
        ("tmux", "tmux next-3.5", True),
        ("tmux", "tmux 3.0", True),
        ("bash", "GNU bash, version 3.2.57(1)-release (arm64-apple-darwin23)", True),
        ("bash", "GNU bash, version 3.1.2", False),
        ("bash", "no number", False),
        ("tmux", "", False),
    ],
)
def test_versions_are_compared_as_numbers(
    world: World, call: Call, name: str, printed: str, good: bool
) -> None:
    real = shutil.which(name)
    asked = {"git": "--version", "tmux": "-V", "bash": "--version"}[name]
    script = f'case "$*" in {asked}) echo "{printed}";; *) exec {real} "$@";; esac'
    program(world.root / "bin", name, script)
    ran = call("doctor", *AGENT)
    assert rows(ran.data)[name][0] is good
    assert ran.code == (0 if good else 4)


def test_a_program_that_hangs_or_fails_is_not_well(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(world.root / "bin", "tmux", "exit 3")
    assert rows(call("doctor", *AGENT).data)["tmux"][0] is False


def test_outside_of_a_repository_the_rest_is_still_checked(world: World, call: Call) -> None:
    ran = call("doctor", *AGENT, cwd=world.root)
    assert ran.code == 4
    assert [name for name, (ok, _, _) in rows(ran.data).items() if not ok] == ["repository"]
    empty = world.root / "empty"
    world.git("init", "-q", str(empty))
    assert call("doctor", *AGENT, "--repo", str(empty)).code == 4


def test_a_socket_path_that_is_too_long_is_found(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T26."""
    deep = world.root / ("d" * 120)
    deep.mkdir()
    monkeypatch.setenv("TMUX_TMPDIR", str(deep))
    ran = call("doctor", *AGENT)
    assert ran.code == 4
    assert [name for name, (ok, _, _) in rows(ran.data).items() if not ok] == ["tmux-socket"]


def test_a_wrong_option_is_a_wrong_input_also_here(world: World, call: Call) -> None:
    mapping = world.root / "m.json"
    mapping.write_text("{")
    assert refusal(call, 2, "doctor", "--harness", str(mapping))["code"] == "invalid-mapping"
    assert refusal(call, 2, "doctor", "--harness", "/nowhere")["code"] == "invalid-mapping"
    assert refusal(call, 2, "doctor", *AGENT, "--tmux-socket", "a/b")["code"] == "invalid-socket"


def test_for_a_person_each_check_is_a_line(world: World) -> None:
    ran = world.run("doctor", "--agent-cli", "no-such-agent")
    assert ran.code == 4
    lines = ran.out.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("ok      git ")
    assert any(line.startswith("MISSING harness ") for line in lines)
    assert ran.err.startswith("error: missing or unfit: harness\n")
    assert json.dumps(os.fspath(world.repo))[1:-1] in ran.out
