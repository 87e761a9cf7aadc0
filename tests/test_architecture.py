"""The rooms of scripts/fanout and the one direction of their imports."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

import pytest

from world import SCRIPTS

ROOMS = SCRIPTS / "fanout"
# A room imports rooms of lower rows alone, so there can be no cycle. The rooms of cli/ stand above.
LAYERS = [
    {"edition", "errors", "fields", "keeping"},
    {
        "coupling",
        "frontmatter",
        "output",
        "partition",
        "process",
        "startup",
        "templates",
    },
    {"book", "git", "proctree", "reading_help", "records"},
    {"harness"},
    {"plan", "tmux", "worktrees"},
    {
        "conventions",
        "converting",
        "doctor",
        "integrations",
        "judging",
        "probing",
        "publishing",
        "rendering",
    },
    {"workers"},
    {"delivery", "flagging", "overlapping"},
    {"candidates", "starting", "steering", "takeback"},
    {"changelog", "cleaning", "ending", "prompting", "spawning"},
    {"approvals"},
    {"building", "collecting", "reviewing"},
    {"integrating"},
    {"handover"},
    {"self_checks"},
]
LEVEL = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

SOURCES = {
    ".".join(path.relative_to(ROOMS).with_suffix("").parts): path
    for path in sorted(ROOMS.rglob("*.py"))
    if "runtimes" not in path.parts
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The parsed source of every room."""
    return {room: ast.parse(path.read_bytes(), str(path)) for room, path in SOURCES.items()}


def imports_of(tree: ast.Module) -> set[str]:
    """The full names of all modules that a source imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "no relative imports"
            assert node.module is not None
            names = {f"{node.module}.{name.name}" for name in node.names}
            # `from fanout import git` imports a module, `from fanout.git import git` does not.
            found |= {n for n in names if n.removeprefix("fanout.") in SOURCES} or {node.module}
    return found


def rooms_of(room: str) -> set[str]:
    """The rooms that a room imports."""
    names = imports_of(trees()[room])
    return {name.removeprefix("fanout.") for name in names if name.startswith("fanout.")}


def calls_of(tree: ast.Module) -> set[str]:
    """The dotted names of what a source mentions, such as `subprocess.Popen`."""
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


def test_every_room_has_its_row() -> None:
    assert {room for room in SOURCES if not room.startswith("cli.")} == set(LEVEL)


def test_a_room_imports_lower_rooms_alone() -> None:
    for room, level in LEVEL.items():
        # A runtime is what runners carry: it imports no room, and a room may look at it.
        others = {o for o in rooms_of(room) if o.partition(".")[0] != "runtimes"}
        wrong = {other for other in others if LEVEL.get(other, 99) >= level}
        assert not wrong, f"{room} must not import {wrong}"


def test_the_rooms_of_the_command_line_import_each_other_without_a_cycle() -> None:
    left = {room: {o for o in rooms_of(room) if o.startswith("cli.")} for room in SOURCES}
    assert not any(others for room, others in left.items() if not room.startswith("cli."))
    while left:
        free = {room for room, others in left.items() if not others & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {room: others for room, others in left.items() if room not in free}


def test_the_imports_are_seen_wherever_they_stand() -> None:
    """So that the tests above cannot pass by seeing nothing."""
    source = "import json\nfrom fanout import git\ndef f():\n    from fanout.tmux import Server\n"
    assert imports_of(ast.parse(source)) == {"json", "fanout.git", "fanout.tmux"}
    assert "process" in rooms_of("git")
    assert "cli.common" in rooms_of("cli.agent_workers")


def test_only_the_standard_library_is_imported() -> None:
    for path in SCRIPTS.rglob("*.py"):
        for name in imports_of(ast.parse(path.read_bytes())):
            top = name.split(".")[0]
            assert top == "fanout" or top in sys.stdlib_module_names, f"{path}: {name}"


STARTERS = {
    "subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call",
    "subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.execv", "os.execve", "os.execvp",
    "os.execvpe", "os.execl", "os.execlp", "os.spawnv", "os.spawnvp", "os.spawnl", "pty.spawn",
}  # fmt: skip


def test_only_one_room_starts_processes() -> None:
    for room, tree in trees().items():
        if room != "process":
            assert not calls_of(tree) & STARTERS, room
            assert "multiprocessing" not in imports_of(tree), room
            assert not [
                node for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "os", "pty")
            ], room  # fmt: skip
    assert "subprocess.Popen" in calls_of(trees()["process"])


def test_only_one_room_prints() -> None:
    for room, tree in trees().items():
        if room == "output":
            continue
        assert not {"sys.stderr"} & calls_of(tree), room
        printed = [
            node for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]  # fmt: skip
        assert not printed, room
        # cli.common reads the prompt from stdin; nothing else touches the streams.
        assert "sys.stdout" not in calls_of(tree), room


def test_nothing_is_run_by_a_shell_or_evaluated() -> None:
    for room, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                pytest.fail(f"{room}: shell=")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), room


def test_every_loop_without_a_condition_has_an_end() -> None:
    for room, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.While) and isinstance(node.test, ast.Constant):
                ends = [
                    n for n in ast.walk(node) if isinstance(n, (ast.Break, ast.Return, ast.Raise))
                ]
                assert ends, f"{room}:{node.lineno}"


def test_every_module_says_what_it_is_for() -> None:
    for path in SCRIPTS.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_bytes())), path


def test_commands_in_scripts_are_short(tmp_path: Path) -> None:
    """Path set-up, version guard, one call."""
    for path in SCRIPTS.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert 15 <= len(lines) <= 40, path
        assert lines[0] == "#!/usr/bin/env python3"
        assert any("sys.version_info < (3, 11)" in line for line in lines)
