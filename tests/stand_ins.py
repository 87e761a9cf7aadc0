"""Stand-in CLIs: programs that print a help text and write down how they were called."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

HELPS = Path(__file__).resolve().parent / "helps"
# Anything that is neither help nor version leaves this behind.
STARTED = "was-started"


def script(folder: Path, name: str, body: str) -> str:
    """A program whose body is given, for `sh`; its path."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + body + "\n")
    path.chmod(0o755)
    return str(path)


def stand_in(folder: Path, name: str, helps: str, version: str) -> str:
    """A program that answers with the texts `helps*.txt` and notes each call; its path."""
    rows: list[str] = []
    for file in sorted(HELPS.glob(f"{helps}*.txt")):
        rest = file.stem.removeprefix(helps)
        if rest and not rest.startswith("-"):
            continue
        words = [*rest.strip("-").split("-"), "--help"] if rest else ["--help"]
        rows.append(f"{shlex.quote(' '.join(words))}) cat {shlex.quote(str(file))};;")
    body = "\n".join(
        [
            f'printf "%s\\n" "$*" >> {shlex.quote(str(folder / "calls"))}',
            'case "$*" in',
            *rows,
            f"--version) echo {shlex.quote(version)};;",
            '*" --help" | -h) echo "no such help"; exit 2;;',
            f"*) touch {shlex.quote(str(folder / STARTED))}; echo started; exit 1;;",
            "esac",
        ]
    )
    return script(folder, name, body)


def python_program(folder: Path, name: str, source: str) -> str:
    """A Python program; its path."""
    path = folder / f"{name}.py"
    path.write_text(source)
    line = f'exec {shlex.quote(sys.executable)} {shlex.quote(os.fspath(path))} "$@"'
    return script(folder, name, line)


def calls(folder: Path) -> list[str]:
    """How the stand-in was called, sorted: several are asked side by side."""
    return sorted((folder / "calls").read_text().splitlines())
