"""Install the skill in each way that users do, and let its self-test run there.

    python tests/installs.py [WORD ...]     the ways whose names hold one of the words

Needs Node.js and npm for `npx skills add`, and npm's registry; everything is made in temporary
folders and removed again. A way that cannot be tried is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness_installs import InstallError, install, node_major, runtime_pin

ROOT = Path(__file__).resolve().parent.parent
NAME = "parallel-agent-worktree-skill"
SKILLS = {"package": "skills", "version": "1.7.4"}
# It needs so new a Node.js.
SKILLS_NODE = 22
SKILL_CHECK = {"package": "skill-check", "version": "1.2.0"}
LIMIT = 300.0


def main(words: list[str]) -> int:
    """Try each way, two at a time; 1 when any failed."""
    chosen = [name for name in WAYS if not words or any(word in name for word in words)]
    with ThreadPoolExecutor(2) as pool:
        troubles = list(pool.map(attempt, chosen))
    return 1 if any(troubles) or not chosen else 0


def attempt(name: str) -> str:
    """Try one way, and say how it went; why it does not hold, nothing when it does."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aw-installs-") as folder:
        trouble = trial(WAYS[name], Path(folder))
    seconds = f"{time.monotonic() - begun:.1f} s"
    print(
        f"FAILED  {name}  {seconds}\n{trouble}" if trouble else f"ok  {name}  {seconds}", flush=True
    )
    return trouble


def trial(way: Callable[[Path], Path | None], folder: Path) -> str:
    """Why one way does not hold; nothing when it does."""
    home = folder / "home"
    home.mkdir()
    try:
        installed = way(folder)
        if installed is not None:
            self_test(installed, folder)
            left = sorted(str(path.relative_to(home)) for path in home.rglob("*"))
            left = [path for path in left if not path.startswith((".npm", ".cache"))]
            return f"left in HOME: {left}" if left else ""
    except (subprocess.SubprocessError, OSError, ValueError, InstallError) as error:
        said = b"".join(getattr(error, name, None) or b"" for name in ("stdout", "stderr"))
        return f"{error}\n{said.decode(errors='replace')[-3000:]}"
    finally:
        # A read-only copy could not be removed.
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
    return ""


def call(words: list[str], cwd: Path, home: Path, *, path: str = "") -> bytes:
    """Run a program in a clean environment; what it printed. Raises CalledProcessError."""
    env = {
        "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"],
        "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(cwd), "CI": "1",
        "npm_config_update_notifier": "false", "DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    kept = {k: v for k, v in os.environ.items() if k.lower().startswith(("npm_config_", "ssl_"))}
    done = subprocess.run(
        words, cwd=cwd, env={**kept, **env}, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=LIMIT, check=True,
    )  # fmt: skip
    return done.stdout


def self_test(skill: Path, folder: Path) -> None:
    """Let an installed copy test itself, from another folder. Raises CalledProcessError."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    out = call([sys.executable, str(skill / "scripts" / "self_test.py"), "--json"],
               elsewhere, folder / "home")  # fmt: skip
    answer = json.loads(out)
    if not answer["ok"] or list(elsewhere.iterdir()):
        raise OSError(f"{answer}; left behind: {list(elsewhere.iterdir())}")


def copy_to(target: Path) -> Path:
    """Copy what a clone would hold."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", str(ROOT / "tools" / "dev.sh"), "copy", str(target)], check=True)
    return target


# --- The ways -------------------------------------------------------------------------------


def by_copying(folder: Path) -> Path:
    """A copy that only its owner may read, at a path with spaces."""
    skill = copy_to(folder / "my own project" / ".agents" / "skills" / NAME)
    for path in skill.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    return skill


def by_symlink(folder: Path) -> Path:
    """A link to a copy that nobody may write to."""
    skill = copy_to(folder / "somewhere" / NAME)
    for path in sorted(skill.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    skill.chmod(0o555)
    link = folder / "project" / ".claude" / "skills" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(skill)
    return link


def by_npx(folder: Path) -> Path:
    """`npx skills add` from a local folder."""
    source = copy_to(folder / "source" / NAME)
    project = folder / "project"
    project.mkdir()
    tool = install("skills", SKILLS, "skills").program
    node = ""
    if node_major() < SKILLS_NODE:
        node = str(install("node", runtime_pin("node"), "node").program.parent)
    call([str(tool), "add", str(source), "--agent", "codex", "--yes", "--copy"],
         project, folder / "home", path=node)  # fmt: skip
    return project / ".agents" / "skills" / NAME


def by_clone(folder: Path) -> Path:
    """A clone where git turns line ends as it does on Windows."""
    source = copy_to(folder / "source" / NAME)
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "All"]):
        call([*git, *words], source, folder / "home")
    clone = folder / "skills" / NAME
    clone.parent.mkdir()
    call(["git", "clone", "-q", "-c", "core.autocrlf=true", str(source), str(clone)],
         folder, folder / "home")  # fmt: skip
    return clone


def skill_check(folder: Path) -> None:
    """The validator of npm, which is no place to install to."""
    tool = install("skill-check", SKILL_CHECK, "skill-check").program
    skill = copy_to(folder / NAME)
    call([str(tool), "check", str(skill), "--no-security-scan", "--strict", "--fail-on-warning"],
         folder, folder / "home")  # fmt: skip


WAYS: dict[str, Callable[[Path], Path | None]] = {
    "skill-check": skill_check,
    "copy, mode 0600, path with spaces": by_copying,
    "symlink, read-only": by_symlink,
    "npx skills add": by_npx,
    "clone, CRLF wanted": by_clone,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
