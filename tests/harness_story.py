"""The whole story with one real agent CLI, and a live check, as parts of harnesses.py.

The story: probe the CLI, convert this package to it, and with the converted package start two
workers, run two tasks of a plan, review, approve, merge and clean up.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from fanout.harness import FORM, value_at
from harness_world import KEY, HarnessWorld, file_text, prompt, report, told
from world import SCRIPTS, Ran

CONVERTER = SCRIPTS / "convert_harness.py"
PATIENCE = 240.0
# The words for the model's side of the stand-in, and those that the command knows.
GIVEN = {"@ENDPOINT@": "{endpoint}", "@REPO@": "{repository}", "@KEY@": KEY}
WORKERS, TASKS = ("one", "two"), ("three", "four")


def live_check(world: HarnessWorld) -> str:
    """What `--check --live` finds with the same settings as the drive; nothing may fail to hold."""
    home = world.root / "live-home"
    home.mkdir()
    env: dict[str, str] = dict(world.env)
    words: list[str] = []
    for name, value in world.pin["env"].items():
        if "@KEY@" in value:
            # A model that takes a moment shows the signs of work.
            env[name] = f"{KEY}!wait-2"
            words += ["--pass", name]
        else:
            words += ["--env", f"{name}={replaced(value)}"]
    for path, content in world.pin["files"].items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(replaced(file_text(content)).replace(KEY, f"{KEY}!wait-2"))
    if list(home.iterdir()):
        words += ["--home", str(home)]
    ran = world.command(
        "--check", "--live", "--config", str(world.used_file), "--endpoint", world.model.endpoint,
        "--bypass", "--timeout", "600", "--json", *words, script=CONVERTER, env=env, seconds=660,
    )  # fmt: skip
    data: dict[str, Any] = ran.json["data"] or {}
    fields: list[dict[str, Any]] = data.get("fields", [])
    wrong = [f"{row['path']}: {row['why']}" for row in fields if row["held"] is False]
    assert ran.code == 0, f"exit {ran.code}: {wrong or told(ran)}"
    assert f"{KEY}!" not in ran.out + ran.err, "it told the key"
    world.all_gone()
    kept = sum(row["held"] is True for row in fields)
    assert kept >= 8, fields
    return f"{kept} paths held"


def replaced(text: str) -> str:
    """A text of the pins as a user would write it."""
    for word, value in GIVEN.items():
        text = text.replace(word, value)
    return text


class Story:
    """The story with one CLI, told step by step; each step stands on those before."""

    def __init__(self, world: HarnessWorld) -> None:
        self.world = world
        self.package = world.root / f"{world.name}-worktree-skill"
        self.mapping = self.package / "examples" / f"harness-{world.name}.json"

    def script(self, name: str) -> Path:
        """A command of the converted package."""
        return self.package / "scripts" / name

    def ran(self, script: Path, *words: str, codes: tuple[int, ...] = (0,)) -> Ran:
        """A command that must end with one of these codes."""
        ran = self.world.command(*words, "--json", script=script, seconds=PATIENCE)
        assert ran.code in codes, f"{script.name} {words[:2]} ended with {ran.code}: {told(ran)}"
        return ran

    def convert(self) -> str:
        """Probe the CLI, fill in what its help does not tell, convert the package."""
        world = self.world
        draft = world.root / "draft.json"
        self.ran(CONVERTER, "--probe", world.harness.executable, "--output", str(draft))
        mapping: dict[str, Any] = json.loads(draft.read_bytes())
        found = [path for path in FORM if path != "notes" and value_at(mapping, path) is not None]
        verified = world.harness.mapping
        for path in FORM:
            top, _, key = path.partition(".")
            if key:
                mapping[top][key] = value_at(verified, path)
        mapping |= {key: verified[key] for key in ("name", "display_name", "network", "logs")}
        draft.write_text(json.dumps(mapping))
        self.ran(CONVERTER, "--config", str(draft), "--output-dir", str(self.package))
        helper = self.script(f"{world.name}_workers.py")
        assert helper.exists(), list(self.package.glob("scripts/*"))
        return f"the help told {len(found)} values"

    def workers(self) -> str:
        """Two workers of the converted package, which takes this CLI unasked."""
        world = self.world
        helper = self.script(f"{world.name}_workers.py")
        words = shlex.join(world.word("approval.bypass_args"))
        for name in WORKERS:
            file = world.root / f"{name}.story"
            file.write_text(
                prompt(f"{world.name}-story-{name}", f"shell {report('started')}",
                       f"write {name}.txt made",
                       f"shell git add {name}.txt && git commit -q -m {name}",
                       f"shell {report('completed --message done')}", "say DO~NE")
            )  # fmt: skip
            self.ran(
                helper, "spawn", name, "--prompt-file", str(file), f"--agent-args={words}",
                "--ready-timeout", "120",
            )  # fmt: skip
        self.ran(helper, "wait", *WORKERS, "--timeout", str(PATIENCE - 30))
        self.integrate(WORKERS)
        self.ran(helper, "stop", *WORKERS)
        self.ran(helper, "cleanup", *WORKERS, "--branch-delete")
        return "two branches merged"

    def loop(self) -> str:
        """Two tasks of a plan, by a runner that the converted package rendered."""
        world = self.world
        called = world.harness.mapping["noninteractive"]
        bypass = world.pin.get("run_words", world.word("approval.bypass_args"))
        plan = {
            "run_name": "story",
            "max_parallel": 2,
            "agent": {
                "harness": str(self.mapping),
                "args": [*called["args"], *bypass],
                "timeout_seconds": int(PATIENCE),
            },
            "tasks": [
                {
                    "name": name,
                    "prompt": prompt(f"{world.name}-story-{name}", f"write {name}.txt made",
                                     f"shell git add {name}.txt && git commit -q -m {name}"),
                }
                for name in TASKS
            ],
        }  # fmt: skip
        config, runner = world.root / "story.json", world.root / "story.py"
        config.write_text(json.dumps(plan))
        self.ran(self.script("render_worker_loop.py"), "--config", str(config), "--language",
                 "python", "--output", str(runner))  # fmt: skip
        run_id = "story"
        env = {**world.env, "RUN_ID": run_id}
        ran = world.start_and_wait([sys.executable, str(runner)], env, world.repo, PATIENCE + 60)
        assert ran.code == 0, (ran.code, ran.err[-600:])
        folder = f".worker-runs/{run_id}"
        self.integrate(TASKS, "--run", folder)
        self.clean(world.repo / folder / "REPORT.md")
        return "two branches merged"

    def integrate(self, names: tuple[str, ...], *run: str) -> None:
        """Review, approve at the commit that was shown, merge."""
        world = self.world
        script = self.script("integrate_workers.py")
        for name in names:
            shown = self.ran(script, "review", name, *run, "--stat")
            self.ran(script, "approve", name, *run, "--commit", shown.data["head"], "--by", "test")
        checks = " && ".join(f"test -f {name}.txt" for name in names)
        none = [f"--no-changelog-needed={name}=a check has no news" for name in names]
        self.ran(script, "merge", *names, *run, *none, "--check", checks)
        for name in names:
            assert world.git("show", f"main:{name}.txt") == "made"

    def clean(self, page: Path) -> None:
        """Clean up after the run by the commands that its report tells."""
        rows = [row.strip() for row in page.read_text().splitlines()]
        found = [row for row in rows if re.match(r"git .*(?:worktree remove|branch -d)\b", row)]
        assert len(found) >= len(TASKS), page.read_text()[-1500:]
        for row in found:
            ran = self.world.start_and_wait(
                ["bash", "-c", row], self.world.env, self.world.repo, 60
            )
            assert ran.code == 0, (row, ran.err)

    def end(self) -> None:
        """Nothing is left but what was merged."""
        world = self.world
        world.all_gone()
        branches = world.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        assert branches == ["main"], branches
        assert world.git("worktree", "list").count("\n") == 0, world.git("worktree", "list")
        assert not world.git("status", "--porcelain"), world.git("status", "--porcelain")
        assert not os.path.exists(f"{world.repo}.worktrees") or not os.listdir(
            f"{world.repo}.worktrees"
        )
