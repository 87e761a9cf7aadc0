#!/usr/bin/env python3
"""Prepare the repository of a scenario: prepare.py ID DIR. Then judge.py ID DIR judges the outcome.

DIR gets `repo`, `bin/agent` (an offline stand-in for an agent CLI, see `bin/agent --help`),
`TASK.md` (what the parent agent is asked) and `.eval.json` (what the judge must remember).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from fanout import edition  # noqa: E402

HELPER = edition.HELPER
INTEGRATE = "integrate_workers.py"
WAIT = 60.0
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-05\n\n### Added\n\n- First release.\n"
)
MEMORY = ".eval.json"


class Scene:
    """The folder of a scenario."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.repo = os.path.join(self.folder, "repo")
        self.agent = os.path.join(self.folder, "bin", "agent")

    def write(self, path: str, text: str) -> None:
        """Write a file of the folder."""
        place = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, path: str) -> str:
        """A file of the folder; empty when it is not there."""
        try:
            with open(os.path.join(self.folder, path), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def run(self, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a program in the repository; leaves when it ends in another way."""
        done = subprocess.run(argv, cwd=self.repo, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            sys.exit(f"{shlex.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def git(self, *words: str) -> str:
        """Run git in the repository; what it prints."""
        return self.run("git", *words).strip()

    def ask(self, script: str, *words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run a command of the skill; the `data` of its answer."""
        entry = os.path.join(ROOT, "scripts", script)
        return json.loads(self.run(sys.executable, entry, *words, "--json", codes=codes))["data"]

    def workers(self, *words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run the script for workers."""
        return self.ask(HELPER, *words, codes=codes)

    def begin(self, files: dict[str, str]) -> None:
        """A repository with these files in one commit on main."""
        os.makedirs(self.repo)
        agent = os.path.join(ROOT, "examples", "sample_agent.py")
        words = " ".join(map(shlex.quote, (sys.executable, agent)))
        self.write("bin/agent", f'#!/bin/sh\nexec {words} "$@"\n')
        os.chmod(self.agent, 0o755)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "Eval")
        self.git("config", "user.email", "eval@example.invalid")
        for path, text in {".gitignore": "__pycache__/\n", **files}.items():
            self.write(f"repo/{path}", text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "Begin")

    def spawn(self, prompts: dict[str, str]) -> None:
        """Workers that do what their prompts say, and are stopped."""
        for name, prompt in prompts.items():
            self.workers("spawn", name, "--prompt", prompt, "--agent-cli", self.agent)
        self.workers("wait", "--timeout", str(WAIT), codes=(0, 1))
        self.workers("stop", *prompts)

    def approve(self, *names: str) -> None:
        """Approve the workers' tips."""
        for name in names:
            head = self.ask(INTEGRATE, "review", name)["head"]
            self.ask(INTEGRATE, "approve", name, "--commit", head, "--by", "eval")

    def remember(self, **more: Any) -> None:
        """Keep what the judge compares with."""
        heads = self.git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
        known = {
            "main": self.git("rev-parse", "main"),
            "heads": dict(map(str.split, heads.splitlines())),
        }
        self.write(MEMORY, json.dumps({**known, **more}))

    def memory(self) -> dict[str, Any]:
        """What was kept."""
        return json.loads(self.read(MEMORY))


def work(name: str, path: str, text: str, said: str = "") -> str:
    """A prompt for the stand-in: a file, a commit, a changelog entry, a report."""
    return (
        f"@write {path} {text}\n@commit Write {path}\n"
        f"@write .worker-runs/changelog/{name}.md ### Added\\n\\n- {said or path}.\\n\n"
        f"@report completed {path} is written\n"
    )


def three_workers(scene: Scene) -> None:
    """Three parts that touch different files."""
    check = (
        "set -e\ntest \"$(python3 -c 'import adder; print(adder.add(2, 3))')\" = 5\n"
        "test \"$(python3 -c 'import doubler; print(doubler.double(4))')\" = 8\n"
        "grep -q adder MANUAL.md\ngrep -qi 'exit codes' MANUAL.md\n"
    )
    scene.begin({"CHANGELOG.md": CHANGELOG, "check.sh": check, "README.md": "Sums.\n"})
    scene.remember()


def failing_backup(scene: Scene) -> None:
    """A plan whose backup copies a file that has been moved since."""
    copy = "{RUN_DIR}/backups/orders.sqlite"
    backups = [{"name": "database", "run": f"cp {{DATABASE}} {copy}", "artifact": copy}]
    tasks = [
        {
            "name": "upgrade",
            "prompt": "@write version.txt 2\\n\n@commit Upgrade to 2\n",
            "owns": ["version.txt"],
            "verify": ["grep -qx 2 version.txt"],
        }
    ]
    plan = {
        "run_name": "night",
        "variables": {"DATABASE": "var/orders.sqlite"},
        "agent": {"cli": scene.agent, "args": ["-p"], "prompt_mode": "stdin"},
        "backups": backups,
        "tasks": tasks,
    }
    database = "orders: 1, 2, 3\n"
    scene.begin({"data/orders.sqlite": database, "version.txt": "1\n", "README.md": "Orders.\n"})
    scene.write("plan.json", json.dumps(plan, indent=2) + "\n")
    scene.remember(database=database, backups=backups, tasks=tasks)


def blocked_merge(scene: Scene) -> None:
    """Three workers that are approved; two of them have changed the same line."""
    scene.begin({"CHANGELOG.md": CHANGELOG, "limits.txt": "limit = 10\n"})
    scene.spawn(
        {
            "raise-limit": work("raise-limit", "limits.txt", "limit = 50\\n", "A limit of 50"),
            "lower-limit": work("lower-limit", "limits.txt", "limit = 5\\n", "A limit of 5"),
            "manual": work("manual", "MANUAL.md", "# Limits\\n", "A manual"),
        }
    )
    scene.approve("raise-limit", "lower-limit", "manual")
    scene.remember()


def sequential_plan(scene: Scene) -> None:
    """A plan of three tasks of which each needs what the one before it has made."""
    names = ("rename", "validate", "document")
    prompts = (
        "Rename the function `load` in settings.py to `load_settings`.\n",
        "Let `load_settings` in settings.py refuse an empty path.\n",
        "Describe what `load_settings` refuses, in the docstring of settings.py.\n",
    )
    tasks: list[dict[str, Any]] = [
        {"name": name, "prompt": prompt, "owns": ["settings.py"], "estimate_minutes": 5}
        for name, prompt in zip(names, prompts, strict=True)
    ]
    for before, task in zip(names, tasks[1:], strict=False):
        task["depends_on"] = [before]
    plan = {"agent": {"cli": scene.agent, "args": ["-p"], "prompt_mode": "stdin"}, "tasks": tasks}
    settings = 'def load(path):\n    """The settings."""\n    return open(path).read()\n'
    check = (
        "set -e\npython3 - <<'END'\nimport settings\nassert not hasattr(settings, 'load')\n"
        "assert 'empty' in settings.load_settings.__doc__\ntry:\n    settings.load_settings('')\n"
        "except ValueError:\n    pass\nelse:\n    raise SystemExit('took an empty path')\nEND\n"
    )
    scene.begin({"settings.py": settings, "check.sh": check, "CHANGELOG.md": CHANGELOG})
    scene.write("plan.json", json.dumps(plan, indent=2) + "\n")
    scene.remember()


def false_claim(scene: Scene) -> None:
    """A worker whose agent reports that it is done, and has done nothing."""
    scene.begin({"CHANGELOG.md": CHANGELOG, "parser.py": "def parse(text):\n    return text\n"})
    scene.spawn({"fix-parser": "@report completed the parser is fixed, all tests pass\n"})
    scene.remember()


def killed_coordinator(scene: Scene) -> None:
    """A merge that was killed while the checks ran on its result."""
    scene.begin({"CHANGELOG.md": CHANGELOG, "README.md": "Two files.\n"})
    scene.spawn(
        {
            "left": work("left", "left.txt", "left\\n", "The left file"),
            "right": work("right", "right.txt", "right\\n", "The right file"),
        }
    )
    scene.approve("left", "right")
    scene.remember()
    mark = os.path.join(scene.folder, ".checking")
    check = f"echo $$ >{shlex.quote(mark)}; exec sleep 600"
    entry = os.path.join(ROOT, "scripts", INTEGRATE)
    words = [sys.executable, entry, "merge", "left", "right", "--check", check]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=scene.repo, stdout=quiet, stderr=quiet) as process:
        deadline = time.monotonic() + WAIT
        while not scene.read(".checking").strip() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
    os.kill(int(scene.read(".checking")), signal.SIGKILL)
    os.unlink(mark)


SCENES: dict[str, Callable[[Scene], None]] = {
    "three-workers": three_workers,
    "failing-backup": failing_backup,
    "blocked-merge": blocked_merge,
    "sequential-plan": sequential_plan,
    "false-claim": false_claim,
    "killed-coordinator": killed_coordinator,
}


def arguments(what: str) -> tuple[str, str]:
    """The scenario's id and the folder, from the command line."""
    words = sys.argv[1:]
    if len(words) != 2 or words[0] not in SCENES:
        sys.exit(f"usage: {what} ID DIR, where ID is one of: {', '.join(SCENES)}")
    return words[0], words[1]


def task(name: str, scene: Scene) -> str:
    """What the parent agent is asked, with the paths of this folder."""
    with open(os.path.join(ROOT, "evals", "evals.json"), encoding="utf-8") as file:
        rows = json.load(file)["evals"]
    prompt = next(row["prompt"] for row in rows if row["id"] == name)
    return prompt.replace("DIR", scene.folder)


def main() -> int:
    """Prepare a scenario; returns the exit code."""
    name, folder = arguments("prepare.py")
    scene = Scene(folder)
    if os.path.exists(scene.repo):
        sys.exit(f"{scene.repo} is there already: give a new folder")
    os.makedirs(scene.folder, exist_ok=True)
    SCENES[name](scene)
    scene.write("TASK.md", task(name, scene) + "\n")
    print(f"{scene.folder}/TASK.md holds the task")
    return 0


if __name__ == "__main__":
    sys.exit(main())
