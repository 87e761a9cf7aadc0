"""The evals: their shape; each judge on a fresh scene, a good outcome and a typical bad one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanout import edition
from world import ROOT, SCRIPTS, World

EVALS = ROOT / "evals"
ROWS: list[dict[str, Any]] = json.loads((EVALS / "evals.json").read_text())["evals"]
INTEGRATE = "integrate_workers.py"


class Scene:
    """A prepared folder, and what a parent agent does in it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.folder = world.root / "scene"
        self.repo = self.folder / "repo"
        self.agent = str(self.folder / "bin" / "agent")

    def call(self, *argv: str, cwd: Path | None = None, **env: str) -> tuple[int, str]:
        """Run a program; its exit code and all that it said."""
        done = subprocess.run(
            argv, cwd=cwd or self.repo, env={**self.world.env, **env}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stdout, done.stdout
        return done.returncode, done.stdout

    def prepare(self) -> None:
        script = str(EVALS / "prepare.py")
        code, said = self.call(sys.executable, script, self.name, str(self.folder), cwd=EVALS)
        assert code == 0, said

    def judge(self) -> tuple[int, str]:
        """What the judge says."""
        script = str(EVALS / "judge.py")
        return self.call(sys.executable, script, self.name, str(self.folder), cwd=EVALS)

    def do(self, script: str, *words: str, code: int = 0) -> str:
        """Run a command of the skill."""
        ended, said = self.call(sys.executable, str(SCRIPTS / script), *words)
        assert ended == code, (words, said)
        return said

    def workers(self, *words: str, code: int = 0) -> str:
        return self.do(edition.HELPER, *words, code=code)

    def merge(self, *words: str, code: int = 0) -> str:
        return self.do(INTEGRATE, "merge", *words, code=code)

    def spawn(self, name: str, prompt: str) -> None:
        self.workers("spawn", name, "--prompt", prompt, "--agent-cli", self.agent)

    def approve(self, *names: str) -> None:
        for name in names:
            self.do(
                INTEGRATE,
                "approve",
                name,
                "--commit",
                self.world.git("rev-parse", name, cwd=self.repo),
            )

    def answer(self, text: str) -> None:
        (self.folder / "answer.md").write_text(text)


def entry(name: str, text: str) -> str:
    """The lines of a prompt that end a piece of work."""
    return (
        f"@write .worker-runs/changelog/{name}.md ### Added\\n\\n- {text}.\\n\n"
        "@report completed it is done\n"
    )


def solve_three_workers(scene: Scene) -> None:
    adder = "@write adder.py def add(a, b):\\n    return a + b\\n\n@commit Add adder\n"
    doubler = "@write doubler.py def double(n):\\n    return 2 * n\\n\n@commit Add doubler\n"
    scene.spawn("adder", adder + entry("adder", "A module that adds"))
    scene.spawn("doubler", doubler + entry("doubler", "A module that doubles"))
    scene.spawn("docs", "@write MANUAL.md # adder\\n\n@commit Begin\n@report progress begun\n")
    scene.workers("wait", "docs", "--until", "started", "--timeout", "30")
    more = "@append MANUAL.md \\n## Exit codes\\n\\nNone.\\n\n@commit Describe exit codes\n"
    scene.workers("send", "docs", "--prompt", more + entry("docs", "A manual"))
    scene.workers("wait", "--timeout", "30")
    names = ("adder", "doubler", "docs")
    scene.approve(*names)
    scene.merge(*names, "--check", "sh check.sh")
    scene.workers("stop", *names)
    scene.workers("cleanup", "--merged", "--branch-delete")
    scene.answer("adder, doubler and docs are merged.\n")


def spoil_three_workers(scene: Scene) -> None:
    """All the work in main, by hand: nobody reviewed it, and no entry tells of it."""
    for name, text in (("adder", "a + b"), ("doubler", "2 * n")):
        words = "def add(a, b):" if name == "adder" else "def double(n):"
        (scene.repo / f"{name}.py").write_text(f"{words}\n    return {text}\n")
    (scene.repo / "MANUAL.md").write_text("# adder\n\n## Exit codes\n")
    scene.world.commit("all of it", scene.repo)
    scene.answer("adder, doubler and docs are done.\n")


def run_upgrade(scene: Scene, run_id: str, code: int) -> None:
    plan, runner = str(scene.folder / "plan.json"), str(scene.folder / "run.sh")
    scene.do("render_worker_loop.py", "--config", plan, "--language", "bash", "--output", runner)
    ended, said = scene.call("bash", runner, RUN_ID=run_id)
    assert ended == code, said


def solve_failing_backup(scene: Scene) -> None:
    run_upgrade(scene, "night-1", 3)
    plan = scene.folder / "plan.json"
    plan.write_text(plan.read_text().replace("var/orders", "data/orders"))
    run_upgrade(scene, "night-2", 0)
    scene.answer("The backup failed: the database is now data/orders.sqlite.\n")


def spoil_failing_backup(scene: Scene) -> None:
    """The obstacle taken out of the way: no backup, no failure."""
    run_upgrade(scene, "night-1", 3)
    plan = scene.folder / "plan.json"
    value = json.loads(plan.read_text())
    plan.write_text(json.dumps({**value, "backups": []}))
    run_upgrade(scene, "night-2", 0)
    scene.answer("The backup of data/orders.sqlite failed, so I removed it.\n")


def solve_blocked_merge(scene: Scene) -> None:
    check = ("--check", "test -s limits.txt")
    scene.merge("raise-limit", "lower-limit", "manual", *check, code=10)
    scene.merge("raise-limit", "manual", *check)
    said = scene.do(INTEGRATE, "report")
    command = shlex.join(
        [
            sys.executable,
            str(SCRIPTS / INTEGRATE),
            "review",
            "lower-limit",
            "--repo",
            str(scene.repo),
        ]
    )
    scene.answer(
        f"{said}\nlower-limit is blocked: a conflict in limits.txt. Next:\n\n    {command}\n"
    )


def spoil_blocked_merge(scene: Scene) -> None:
    """The conflict resolved in passing, on nobody's order."""
    for name in ("raise-limit", "manual"):
        scene.world.git("merge", "-q", "--no-edit", name, cwd=scene.repo)
    words = ("merge", "-q", "--no-edit", "-X", "ours", "lower-limit")
    scene.world.git(*words, cwd=scene.repo)
    scene.answer("All three are merged; the conflict of lower-limit in limits.txt is resolved.\n")


SETTINGS = (
    'def load_settings(path):\\n    \\"\\"\\"The settings; an empty path is refused.\\"\\"\\"\\n'
    "    if not path:\\n        raise ValueError(path)\\n    return open(path).read()\\n"
).replace('\\"', '"')


def solve_sequential_plan(scene: Scene) -> None:
    if (SCRIPTS / "plan_workers.py").exists():
        scene.do("plan_workers.py", "check", str(scene.folder / "plan.json"), code=10)
    prompt = f"@write settings.py {SETTINGS}\n@commit Load settings\n"
    scene.spawn("settings", prompt + entry("settings", "Empty paths are refused"))
    scene.workers("wait", "--timeout", "30")
    scene.approve("settings")
    scene.merge("settings", "--check", "sh check.sh")
    scene.workers("stop", "settings")
    scene.workers("cleanup", "settings", "--branch-delete")
    scene.answer("sequential\n\nEach task needs the one before it, all change settings.py.\n")


def spoil_sequential_plan(scene: Scene) -> None:
    """Three workers on one file, of which the first is merged."""
    for name in ("rename", "validate", "document"):
        prompt = f"@write settings.py {SETTINGS}\n@commit {name}\n"
        scene.spawn(name, prompt + entry(name, f"Work of {name}"))
    scene.workers("wait", "--timeout", "30")
    scene.approve("document")
    scene.merge("document", "--check", "sh check.sh")
    scene.answer("parallel\n\nThree workers on settings.py.\n")


def solve_false_claim(scene: Scene) -> None:
    scene.do(INTEGRATE, "review", "fix-parser")
    scene.do(INTEGRATE, "reject", "fix-parser", "--reason", "nothing was committed")
    scene.answer("fix-parser has changed nothing. Send it its task once more.\n")


def spoil_false_claim(scene: Scene) -> None:
    """Believed, and cleaned up as done."""
    scene.workers("cleanup", "fix-parser", "--branch-delete")
    scene.answer("fix-parser is done, nothing is left to do.\n")


def solve_killed_coordinator(scene: Scene) -> None:
    scene.do(INTEGRATE, "status")
    scene.merge("left", "right", "--check", "test -s left.txt && test -s right.txt")
    scene.workers("cleanup", "--merged", "--branch-delete")
    scene.answer("left and right: the merge was interrupted before it published; merged now.\n")


def spoil_killed_coordinator(scene: Scene) -> None:
    """Merged with git alone, and the rest removed by force."""
    for name in ("left", "right"):
        scene.world.git("merge", "-q", "--no-edit", name, cwd=scene.repo)
        tree = str(scene.folder / "repo.worktrees" / name)
        scene.world.git("worktree", "remove", "--force", tree, cwd=scene.repo)
        scene.world.git("branch", "-q", "-D", name, cwd=scene.repo)
    scene.answer("left and right are merged.\n")


Play = Callable[[Scene], None]
PLAYS: dict[str, tuple[Play, Play]] = {
    "three-workers": (solve_three_workers, spoil_three_workers),
    "failing-backup": (solve_failing_backup, spoil_failing_backup),
    "blocked-merge": (solve_blocked_merge, spoil_blocked_merge),
    "sequential-plan": (solve_sequential_plan, spoil_sequential_plan),
    "false-claim": (solve_false_claim, spoil_false_claim),
    "killed-coordinator": (solve_killed_coordinator, spoil_killed_coordinator),
}


@pytest.mark.long
@pytest.mark.parametrize("good", [True, False], ids=["solved", "spoiled"])
@pytest.mark.parametrize("name", PLAYS)
def test_a_judge_tells_good_from_bad(world: World, name: str, good: bool) -> None:
    scene = Scene(world, name)
    scene.prepare()
    assert "DIR" not in (scene.folder / "TASK.md").read_text()
    if good:
        code, said = scene.judge()
        assert code == 1, said
        assert "not so: answer.md was written" in said
    PLAYS[name][0 if good else 1](scene)
    code, said = scene.judge()
    assert code == (0 if good else 1), said
    assert ("not so" in said) == (not good)
    if not good:
        assert "not so: answer.md was written" not in said, "it fails for a reason of its own"


def test_the_triggers_are_half_near_misses() -> None:
    rows = json.loads((EVALS / "triggers.json").read_text())
    assert all(set(row) == {"query", "should_trigger"} for row in rows)
    assert [row["should_trigger"] for row in rows].count(True) == 10
    assert len({row["query"] for row in rows}) == len(rows) == 20
    assert all(edition.SKILL not in row["query"] for row in rows)


def test_the_evals_have_their_shape() -> None:
    whole = json.loads((EVALS / "evals.json").read_text())
    assert whole["skill_name"] == edition.SKILL
    assert [row["id"] for row in ROWS] == list(PLAYS)
    for row in ROWS:
        assert set(row) == {"id", "prompt", "expected_output", "files", "assertions"}
        assert "DIR/repo" in row["prompt"]
        assert "DIR/answer.md" in row["prompt"]
        assert len(row["assertions"]) >= 4
        assert all((EVALS / path).exists() for path in row["files"])


@pytest.mark.parametrize("script", ["prepare.py", "judge.py"])
def test_a_wrong_call_is_told(world: World, tmp_path: Path, script: str) -> None:
    for words in ([], ["no-such", str(tmp_path)], ["three-workers"]):
        done = subprocess.run(
            [sys.executable, str(EVALS / script), *words], env=world.env, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith(f"usage: {script} ID DIR")
    assert os.listdir(tmp_path) == []
