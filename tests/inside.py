"""The command run inside the test's own process, for inputs by the dozen; and a copy of it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.cli.agent_workers import main
from fanout.cli.integrate_workers import main as integrate_main
from world import ROOT, Ran, World

Call = Callable[..., Ran]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def call(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """`call(*words, cwd=...)` runs agent_workers.py with --json in the world's environment."""
    yield from caller(main, world, monkeypatch, capfd)


@pytest.fixture
def integrate(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Call]:
    """`integrate(*words, cwd=...)` runs integrate_workers.py in the same way."""
    yield from caller(integrate_main, world, monkeypatch, capfd)


def caller(
    command: Callable[[list[str]], int],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Call]:
    """What runs a command inside of this process, which stands in the world meanwhile."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def run(
        *words: str, cwd: Path | None = None, as_json: bool = True, leaves: bool = False
    ) -> Ran:
        monkeypatch.chdir(cwd or world.repo)
        capfd.readouterr()
        argv = [*words[:1], "--json", *words[1:]] if as_json else list(words)
        if leaves:
            with pytest.raises(SystemExit) as left:
                command(argv)
            code = int(left.value.code or 0)
        else:
            code = command(argv)
        out, err = capfd.readouterr()
        assert "internal-error" not in out + err, out + err
        assert "this program has a fault" not in out + err, err
        return Ran(code, out, err)

    try:
        yield run
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def refusal(call: Call, exit_code: int, *words: str, **options: Any) -> dict[str, Any]:
    """The error of a call that must be refused in this way, with the whole envelope checked."""
    ran = call(*words, **options)
    assert ran.code == exit_code, (words, ran)
    answer = ran.json
    assert answer["schema"] == 1
    assert answer["ok"] is False
    assert isinstance(answer["data"], dict)
    assert isinstance(answer["next_actions"], list)
    error = answer["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == error["code"].lower()
    assert " " not in error["code"]
    assert error["message"]
    return error


def install(target: Path) -> Path:
    """Copy what the skill needs at run time; its command."""
    for folder in ("scripts", "examples"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    return target / "scripts" / "agent_workers.py"
