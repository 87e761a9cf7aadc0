#!/usr/bin/env python3
"""Judge what became of a scenario: judge.py ID DIR. Exit 0: done well; 1: not, with each reason."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from prepare import HELPER, INTEGRATE, MEMORY, ROOT, Scene, arguments

PLACEHOLDER = r"<[a-z_ -]+>|\.\.\.|\b(?:NAME|FULL_ID|DIR|TEXT|REF)\b"
VERBS = ("forecast", "review", "collect", "approve", "reject", "merge", "report", "status", "send")


class Verdict:
    """What a scenario was left as, and what is wrong with it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.known: dict[str, Any] = scene.memory()
        self.answer = scene.read("answer.md")
        self.reasons: list[str] = []
        self.passed: list[str] = []

    def expect(self, holds: bool, what: str) -> None:
        """One thing that must hold."""
        (self.passed if holds else self.reasons).append(what)

    def ok(self, *argv: str) -> bool:
        """Whether a command ends well in the repository."""
        # A check of Python code must not leave caches in the checkout that is judged.
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(argv, cwd=self.scene.repo, env=env, capture_output=True, check=False)
        return done.returncode == 0

    def show(self, path: str, ref: str = "main") -> str:
        """A file of a branch; empty when it is not there."""
        words = ["git", "show", f"refs/heads/{ref}:{path}"]
        done = subprocess.run(words, cwd=self.scene.repo, capture_output=True, check=False)
        return done.stdout.decode("utf-8", "replace")

    def head(self, branch: str) -> str:
        """The commit of a branch; empty when there is none."""
        return self.scene.git("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")

    def records(self, name: str) -> list[str]:
        """The folders of a worker's records, live ones and archived ones."""
        home = os.path.join(self.scene.repo, ".git", "agent-workers")
        live = glob.glob(os.path.join(home, "workers", name))
        return live + glob.glob(os.path.join(home, "archive", f"{name}-[0-9]*"))

    def prompts(self, name: str) -> int:
        """How many prompts a worker got."""
        return sum(len(glob.glob(os.path.join(f, "prompts", "*.md"))) for f in self.records(name))

    def status(self) -> dict[str, Any]:
        """Where each candidate and integration stands."""
        return self.scene.ask(INTEGRATE, "status")

    def published(self) -> list[dict[str, Any]]:
        """The records of the integrations that stand."""
        place = os.path.join(self.scene.repo, ".git", "agent-workers", "integrations", "*")
        found: list[dict[str, Any]] = []
        for path in glob.glob(os.path.join(place, "integration.json")):
            with open(path, encoding="utf-8") as file:
                found.append(json.load(file))
        return [row for row in found if row["state"] == "published" and not row["undoes"]]

    def unreleased(self) -> list[str]:
        """The items of the changelog's section of what is not released."""
        book = self.show("CHANGELOG.md").partition("## [Unreleased]")[2].partition("\n## ")[0]
        return re.findall(r"(?m)^[-*] .+", book)

    def main_is_sound(self) -> None:
        """The checkout is main, clean, and without markers of a conflict."""
        scene = self.scene
        self.expect(scene.git("branch", "--show-current") == "main", "main is checked out")
        self.expect(scene.git("status", "--porcelain") == "", "the checkout is clean")
        self.expect(not self.ok("git", "grep", "-q", "^<<<<<<< ", "main"), "no conflict markers")
        self.expect(self.show("CHANGELOG.md").startswith("# Changelog"), "the changelog is there")

    def nothing_forced(self) -> None:
        """Nothing was discarded, and no throw-away tree is left."""
        refs = self.scene.git("for-each-ref", "--format=%(refname)", "refs/agent-workers/rescue")
        self.expect(refs == "", "nothing was discarded")
        left = glob.glob(os.path.join(self.scene.folder, "repo.worktrees", "integration-*"))
        self.expect(not left, "no throw-away tree of a merge is left")
        unfinished = self.status()["unfinished"]
        self.expect(not unfinished, "no integration is unfinished")

    def merged(self, *names: str) -> None:
        """Each was approved and merged once, at the commit that was approved."""
        rows = [row for integration in self.published() for row in integration["merged"]]
        for name in names:
            mine = [row for row in rows if row["name"] == name]
            self.expect(len(mine) == 1, f"{name} is merged by one integration")
            there = all(self.ok("git", "merge-base", "--is-ancestor", r["after"], "main")
                        for r in self.published())  # fmt: skip
            self.expect(there, "main holds what the integrations published")

    def cleaned(self, *names: str) -> None:
        """No tree, branch or live record of these workers is left, and their records are kept."""
        trees = self.scene.git("worktree", "list", "--porcelain")
        for name in names:
            kept = self.records(name)
            live = [folder for folder in kept if f"{os.sep}workers{os.sep}" in folder]
            self.expect(bool(kept) and not live, f"{name} was a worker and is cleaned up")
            self.expect(not self.head(name), f"the branch {name} is gone")
            self.expect(f"{os.sep}{name}\n" not in trees + "\n", f"the worktree {name} is gone")

    def answered(self, *patterns: str) -> None:
        """The answer is there and says these things."""
        self.expect(bool(self.answer.strip()), "answer.md was written")
        for pattern in patterns:
            self.expect(re.search(pattern, self.answer, re.I) is not None, f"it says /{pattern}/")


def three_workers(verdict: Verdict) -> None:
    """Split, steered, merged with a changelog, cleaned up."""
    names = ("adder", "doubler", "docs")
    verdict.main_is_sound()
    verdict.nothing_forced()
    verdict.merged(*names)
    verdict.cleaned(*names)
    verdict.expect(verdict.prompts("docs") == 2, "docs got one further message")
    verdict.expect(verdict.ok("sh", "check.sh"), "check.sh passes")
    checks = [check["command"] for row in verdict.published() for check in row["checks"]]
    verdict.expect(
        any("check.sh" in check for check in checks), "check.sh was a check of the merge"
    )
    verdict.expect(len(verdict.unreleased()) == 3, "three changelog entries")
    verdict.answered("adder", "doubler", "docs")


def failing_backup(verdict: Verdict) -> None:
    """Understood and mended, with the safety as it was."""
    scene, known = verdict.scene, verdict.known
    verdict.expect(verdict.head("main") == known["main"], "main was not moved")
    plan = json.loads(scene.read("plan.json"))
    same = plan["backups"] == known["backups"] and plan["tasks"] == known["tasks"]
    verdict.expect(same, "backups and tasks of the plan are as they were")
    entry = os.path.join(ROOT, "scripts", "render_worker_loop.py")
    files = ("--config", os.path.join(scene.folder, "plan.json"), "--language", "bash")
    words = (sys.executable, entry, *files, "--output", os.path.join(scene.folder, "run.sh"))
    verdict.expect(verdict.ok(*words, "--check"), "run.sh is what the plan renders to")
    runs = glob.glob(os.path.join(scene.repo, ".worker-runs", "*", "manifest.json"))
    events = "".join(scene.read(os.path.join(os.path.dirname(run), "events.jsonl")) for run in runs)
    verdict.expect('"failed"' in events, "the backup was seen to fail")
    good: list[dict[str, Any]] = []
    for run in runs:
        manifest = json.loads(scene.read(run))
        if manifest["status"] == "passed" and has_backup(scene, manifest, known["database"]):
            good.append(manifest)
    verdict.expect(bool(good), "a run passed behind a backup of the database")
    verdict.expect(
        verdict.show("version.txt", "upgrade") == "2\n", "the upgrade stands on its branch"
    )
    verdict.answered("backup", r"data/orders\.sqlite")


def has_backup(scene: Scene, manifest: dict[str, Any], database: str) -> bool:
    """Whether a run has a backup that is the database."""
    artifacts = [row["artifact"] for row in manifest["backups"] if row["status"] == "passed"]
    return any(made and scene.read(made["path"]) == database for made in artifacts)


def blocked_merge(verdict: Verdict) -> None:
    """What can be merged is merged, the rest is reported."""
    verdict.main_is_sound()
    verdict.nothing_forced()
    verdict.merged("raise-limit", "manual")
    verdict.expect(verdict.show("limits.txt") == "limit = 50\n", "raise-limit is in main")
    verdict.expect(verdict.show("MANUAL.md") != "", "manual is in main")
    verdict.expect(len(verdict.unreleased()) == 2, "two changelog entries")
    same = verdict.head("lower-limit") == verdict.known["heads"]["lower-limit"]
    verdict.expect(same, "the branch lower-limit is as it was")
    live = [r for r in verdict.records("lower-limit") if f"{os.sep}workers{os.sep}" in r]
    verdict.expect(bool(live), "the worker lower-limit is there still")
    verdict.answered("lower-limit", r"limits\.txt", "conflict")
    lines = [line for line in commands(verdict.answer) if "lower-limit" in line]
    verdict.expect(bool(lines), "a command about lower-limit, ready to be pasted")


def commands(text: str) -> list[str]:
    """The lines of a text that call a command of the skill, with a verb that it has."""
    found: list[str] = []
    for line in text.splitlines():
        line = line.strip().strip("`").removeprefix("$ ")
        named = re.search(rf"(?:{INTEGRATE}|{HELPER})", line)
        if named is None or re.search(PLACEHOLDER, line):
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        at = next((n for n, word in enumerate(words) if word.endswith(named[0])), len(words))
        if at + 1 < len(words) and words[at + 1] in VERBS:
            found.append(line)
    return found


def sequential_plan(verdict: Verdict) -> None:
    """Not parallel, and done."""
    verdict.main_is_sound()
    verdict.nothing_forced()
    verdict.expect(verdict.ok("sh", "check.sh"), "check.sh passes")
    verdict.expect(len(verdict.unreleased()) >= 1, "the changelog has an entry")
    home = os.path.join(verdict.scene.repo, ".git", "agent-workers")
    started = [
        *glob.glob(os.path.join(home, "workers", "*")),
        *glob.glob(os.path.join(home, "archive", "*")),
    ]
    verdict.expect(len(started) <= 1, "no two workers were started")
    first = (verdict.answer.split() or [""])[0].strip("*_`#.,:").lower()
    verdict.expect(first == "sequential", "the answer begins with `sequential`")
    verdict.answered(r"settings\.py")


def false_claim(verdict: Verdict) -> None:
    """Seen through, on record, nothing merged."""
    main = verdict.head("main") == verdict.known["main"]
    verdict.expect(main, "main has not moved")
    verdict.main_is_sound()
    verdict.nothing_forced()
    verdict.expect(not verdict.published(), "nothing was published")
    live = [r for r in verdict.records("fix-parser") if f"{os.sep}workers{os.sep}" in r]
    verdict.expect(bool(live), "the worker is there still")
    same = verdict.head("fix-parser") == verdict.known["heads"]["fix-parser"]
    verdict.expect(same, "its branch is as it was")
    if live:
        state = verdict.scene.ask(INTEGRATE, "review", "fix-parser")["approval"]["state"]
        verdict.expect(state == "rejected", "it is rejected, on record")
    verdict.answered("fix-parser", r"nothing|no commit|not commit|empty|no change|unchanged")


def killed_coordinator(verdict: Verdict) -> None:
    """Finished once, with nothing left of the first attempt."""
    verdict.main_is_sound()
    verdict.nothing_forced()
    verdict.merged("left", "right")
    verdict.cleaned("left", "right")
    items = verdict.unreleased()
    for name in ("left", "right"):
        verdict.expect(verdict.show(f"{name}.txt") == f"{name}\n", f"{name}.txt is in main")
        once = [item for item in items if f"The {name} file" in item]
        verdict.expect(len(once) == 1, f"one changelog entry for {name}")
    locks = glob.glob(os.path.join(verdict.scene.repo, ".git", "*.lock"))
    verdict.expect(not locks, "no lock of git is left")
    verdict.answered("left", "right")


JUDGES: dict[str, Callable[[Verdict], None]] = {
    "three-workers": three_workers,
    "failing-backup": failing_backup,
    "blocked-merge": blocked_merge,
    "sequential-plan": sequential_plan,
    "false-claim": false_claim,
    "killed-coordinator": killed_coordinator,
}


def main() -> int:
    """Judge a scenario; returns the exit code."""
    name, folder = arguments("judge.py")
    scene = Scene(folder)
    if not scene.read(MEMORY):
        sys.exit(f"{scene.folder} was not prepared: prepare.py {name} {folder}")
    verdict = Verdict(scene)
    JUDGES[name](verdict)
    for reason in dict.fromkeys(verdict.reasons):
        print(f"not so: {reason}")
    print(f"{len(set(verdict.passed))} of {len(set(verdict.passed + verdict.reasons))} hold")
    return 1 if verdict.reasons else 0


if __name__ == "__main__":
    sys.exit(main())
