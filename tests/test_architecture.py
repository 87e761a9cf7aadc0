"""The rooms of scripts/fanout and the one direction of their imports."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from typing import NamedTuple

from world import SCRIPTS

ROOMS = SCRIPTS / "fanout"
# A room imports rooms of lower rows alone, so there can be no cycle. The rooms of cli/ stand above.
LAYERS = [
    {"edition", "errors", "fields"},
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
    {"livecheck", "workers"},
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


class Facts(NamedTuple):
    """What the tests ask of a source; the tree itself would be a burden for all later tests."""

    purpose: str | None  # its docstring
    imports: frozenset[str]  # the full names of all modules that it imports, anywhere in it
    taken_from: frozenset[str]  # the modules of `from module import ...`
    mentions: frozenset[str]  # dotted names, such as `subprocess.Popen`
    calls: frozenset[str]  # the plain names that it calls, such as `print`
    keywords: frozenset[str]  # the names of arguments in its calls
    endless: tuple[int, ...]  # the lines of loops without a condition and without an end


def facts_of(source: bytes) -> Facts:
    """Read a source once."""
    tree = ast.parse(source)
    imports: set[str] = set()
    taken_from: set[str] = set()
    mentions: set[str] = set()
    calls: set[str] = set()
    keywords: set[str] = set()
    endless: list[int] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imports |= {name.name for name in node.names}
            case ast.ImportFrom():
                assert node.level == 0, "no relative imports"
                assert node.module is not None
                taken_from.add(node.module)
                names = {f"{node.module}.{name.name}" for name in node.names}
                # `from fanout import git` imports a module, `from fanout.git import git` does not.
                rooms = {n for n in names if n.removeprefix("fanout.") in SOURCES}
                imports |= rooms or {node.module}
            case ast.Attribute(value=ast.Name(id=name)):
                mentions.add(f"{name}.{node.attr}")
            case ast.Call(func=ast.Name(id=name)):
                calls.add(name)
            case ast.keyword(arg=str(name)):
                keywords.add(name)
            case ast.While(test=ast.Constant()):
                ends = (ast.Break, ast.Return, ast.Raise)
                if not any(isinstance(inner, ends) for inner in ast.walk(node)):
                    endless.append(node.lineno)
            case _:
                pass
    return Facts(
        purpose=ast.get_docstring(tree),
        imports=frozenset(imports),
        taken_from=frozenset(taken_from),
        mentions=frozenset(mentions),
        calls=frozenset(calls),
        keywords=frozenset(keywords),
        endless=tuple(endless),
    )


@functools.cache
def sources() -> dict[Path, Facts]:
    """The facts of every Python file."""
    return {path: facts_of(path.read_bytes()) for path in sorted(SCRIPTS.rglob("*.py"))}


def rooms() -> dict[str, Facts]:
    """The facts of every room."""
    return {room: sources()[path] for room, path in SOURCES.items()}


def rooms_of(room: str) -> set[str]:
    """The rooms that a room imports."""
    names = rooms()[room].imports
    return {name.removeprefix("fanout.") for name in names if name.startswith("fanout.")}


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
    source = b"import json\nfrom fanout import git\ndef f():\n    from fanout.tmux import Server\n"
    facts = facts_of(source)
    assert facts.imports == {"json", "fanout.git", "fanout.tmux"}
    assert facts.taken_from == {"fanout", "fanout.tmux"}
    assert "process" in rooms_of("git")
    assert "cli.common" in rooms_of("cli.agent_workers")


def test_the_other_facts_are_seen_wherever_they_stand() -> None:
    source = b"""
def f():
    while True:
        print(a.b(shell=1))
    while 1:
        while True:
            return eval(x)
    while f():
        pass
"""
    facts = facts_of(source)
    assert facts.purpose is None
    assert facts.mentions == {"a.b"}
    assert facts.calls == {"print", "eval", "f"}
    assert facts.keywords == {"shell"}
    assert facts.endless == (3,)


def test_only_the_standard_library_is_imported() -> None:
    for path, facts in sources().items():
        for name in facts.imports:
            top = name.split(".")[0]
            assert top == "fanout" or top in sys.stdlib_module_names, f"{path}: {name}"


STARTERS = {
    "subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call",
    "subprocess.check_output", "subprocess.getoutput", "os.system", "os.popen", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.execv", "os.execve", "os.execvp",
    "os.execvpe", "os.execl", "os.execlp", "os.spawnv", "os.spawnvp", "os.spawnl", "pty.spawn",
}  # fmt: skip


def test_only_one_room_starts_processes() -> None:
    for room, facts in rooms().items():
        if room != "process":
            assert not facts.mentions & STARTERS, room
            assert "multiprocessing" not in facts.imports, room
            assert not facts.taken_from & {"subprocess", "os", "pty"}, room
    assert "subprocess.Popen" in rooms()["process"].mentions


def test_only_one_room_prints() -> None:
    for room, facts in rooms().items():
        if room == "output":
            continue
        # cli.common reads the prompt from stdin; nothing else touches the streams.
        assert not {"sys.stdout", "sys.stderr"} & facts.mentions, room
        assert "print" not in facts.calls, room


def test_nothing_is_run_by_a_shell_or_evaluated() -> None:
    for room, facts in rooms().items():
        assert "shell" not in facts.keywords, room
        assert not facts.calls & {"eval", "exec", "__import__"}, room


def test_every_loop_without_a_condition_has_an_end() -> None:
    for room, facts in rooms().items():
        assert not facts.endless, f"{room}: lines {facts.endless}"


def test_every_module_says_what_it_is_for() -> None:
    for path, facts in sources().items():
        assert facts.purpose, path


def test_commands_in_scripts_are_short(tmp_path: Path) -> None:
    """Path set-up, version guard, one call."""
    for path in SCRIPTS.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert 15 <= len(lines) <= 40, path
        assert lines[0] == "#!/usr/bin/env python3"
        assert any("sys.version_info < (3, 11)" in line for line in lines)
