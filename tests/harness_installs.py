"""Install real agent CLIs, each in a folder of its own below .tools/harnesses, versions pinned."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from world import ROOT

PLACE = ROOT / ".tools" / "harnesses"
PINS = Path(__file__).resolve().parent / "harnesses.json"
# How long one installation may take, in seconds.
LIMIT = 400.0
# kimi-cli needs so new a Python.
PYTHON = ">=3.12"


class InstallError(Exception):
    """A CLI could not be installed."""


class Installed(NamedTuple):
    """A CLI in its folder; `seconds` is 0 for one that was there already."""

    folder: Path
    program: Path
    seconds: float
    megabytes: float


def pins() -> dict[str, dict[str, Any]]:
    """What to install and how to point it at the model server, by name."""
    return json.loads(PINS.read_bytes())["harnesses"]


def runtime_pin(name: str) -> dict[str, Any]:
    """A program that CLIs need beside themselves."""
    return json.loads(PINS.read_bytes())["runtimes"][name]


def node_major() -> int:
    """The major version of the node on PATH; 0 without one."""
    node = shutil.which("node")
    if node is None:
        return 0
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    number = done.stdout.strip().removeprefix("v").partition(".")[0]
    return int(number) if number.isdecimal() else 0


def install(name: str, pin: dict[str, Any], program: str) -> Installed:
    """Install one CLI unless that version is there; its folder. Raises InstallError.

    A mark in the folder tells that the installation came to its end.
    """
    folder = PLACE / f"{name}-{pin['version']}"
    by_pip = pin.get("installer") == "pip"
    found = folder / ("bin" if by_pip else "node_modules/.bin") / program
    mark = folder / "installed"
    begun = time.monotonic()
    if mark.exists() and found.exists():
        return Installed(folder, found, 0.0, size_of(folder))
    PLACE.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    try:
        if by_pip:
            install_by_pip(folder, pin)
        else:
            install_by_npm(folder, pin)
        if not found.exists():
            raise InstallError(f"{pin['package']} {pin['version']} has no program {program!r}")
        mark.touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Installed(folder, found, time.monotonic() - begun, size_of(folder))


def install_by_npm(folder: Path, pin: dict[str, Any]) -> None:
    """Install a package of npm. Raises InstallError."""
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm is not on PATH (Debian: apt-get install nodejs npm)")
    folder.mkdir()
    # Without one of its own, npm takes the next folder above that has one.
    (folder / "package.json").write_text('{"private": true}\n')
    spec = f"{pin['package']}@{pin['version']}"
    demand(
        [npm, "install", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error",
         "--save-exact", "--prefix", str(folder), spec],
        spec,
    )  # fmt: skip


def install_by_pip(folder: Path, pin: dict[str, Any]) -> None:
    """Install a package of PyPI in an environment of its own. Raises InstallError."""
    uv = ["sh", str(ROOT / "tools" / "dev.sh"), "uv"]
    spec = f"{pin['package']}=={pin['version']}"
    python = newer_python()
    demand([*uv, "venv", "--quiet", "--no-project", "--python", python, str(folder)], spec)
    target = str(folder / "bin" / "python")
    demand([*uv, "pip", "install", "--quiet", "--python", target, spec], spec)


def newer_python() -> str:
    """A Python that is new enough: uv's choice, else one that a version manager keeps."""
    kept = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"), reverse=True)
    for candidate in (sys.executable, "python3", "python3.14", "python3.13", "python3.12", *kept):
        program = shutil.which(candidate)
        if program is not None and new_enough(program):
            return program
    return PYTHON


def new_enough(program: str) -> bool:
    """Whether a Python runs and is 3.12 or newer."""
    words = [program, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def demand(words: list[str], spec: str) -> None:
    """Run an installer with the caller's environment. Raises InstallError."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=LIMIT, check=False, cwd=PLACE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InstallError(f"{spec} was not installed within {LIMIT:.0f} s") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise InstallError(f"{spec} could not be installed (exit {done.returncode}):\n{said}")


def size_of(folder: Path) -> float:
    """How many megabytes a folder takes."""
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total / 1e6
