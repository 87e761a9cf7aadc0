"""Kill a runner right before one of its steps, then go on: runner_fire.py LANGUAGE PART PARTS.

A step is whatever reaches outside of the runner: a command, a record written, renamed or removed, a
folder made. After step N is right before step N + 1, so every step is met from both sides; commands
that only look are no steps. An audit hook counts those of the Python runner. Those of the Bash
runner are programs: links on PATH that count. Only the runner itself is killed, as by `kill -9`.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "scripts")]

from runner_world import Runner, task  # noqa: E402
from test_runners_alike import normal  # noqa: E402
from world import World  # noqa: E402

LIMIT = 1000
LOOKS = "rev-parse status diff for-each-ref symbolic-ref cat-file"
HOOK = """
import os, signal, sys
LOOKS = set("{looks}".split())
STEPS = {{"subprocess.Popen", "os.rename", "os.remove", "os.mkdir", "open"}}
seen = 0
def count(event, arguments):
    global seen
    if event not in STEPS:
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    if event == "open" and str(arguments[0]) == os.devnull:
        return
    if event == "subprocess.Popen" and LOOKS & set(map(str, arguments[1])):
        return
    seen += 1
    if seen == int(os.environ["FIRE_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("FIRE_AT") and os.path.basename(sys.argv[0] or "") in ("", "{name}"):
    sys.addaudithook(count)
"""
# Which program it stands for is in its own name; the real one is found behind it on PATH.
SHIM = """#!/bin/bash
name=${0##*/}
if [ -n "$FIRE_AT" ]; then
    look=''
    [ "$name" != git ] || for word; do case " LOOKS " in *" $word "*) look=1 ;; esac; done
    if [ -z "$look" ]; then
        printf x >>"$FIRE/count"
        IFS= read -r all <"$FIRE/count"
        if ((${#all} == FIRE_AT)); then
            IFS= read -r pid <"$FIRE/pid"
            kill -KILL "$pid"
        fi
    fi
fi
exec "REAL/$name" "$@"
"""
PROGRAMS = ("git", "sh", "bash", "mv", "rm", "mkdir", "mkfifo")
PLAN: dict[str, Any] = {
    "run_name": "demo",
    "agent": {"cli": "sh"},
    "preflight": ["true"],
    "backups": [{"name": "b", "run": "echo x > {RUN_DIR}/b", "artifact": "{RUN_DIR}/b"}],
    "tasks": [
        task("a", "echo a >> $WORLD/ran; echo x > a; git add a; git commit -qm a\n",
             setup=["echo s >> $WORLD/ran"], verify=["test -s a"]),
        task("b", "echo b >> $WORLD/ran; echo x > b\n", depends_on=["a"],
             agent={"commit_leftovers": True}),
        task("c-{item}", "echo $TASK >> $WORLD/ran; echo x > c\n", for_each=["x", "y"]),
        task("d", "echo d >> $WORLD/ran\n", agent={"allow_no_change": True}, verify=["true"]),
    ],
    "postflight": ["true"],
}  # fmt: skip
AGENTS = ["a", "b", "c-x", "c-y", "d"]


class Fire:
    """One world for each kill; the runner is rendered once."""

    def __init__(self, language: str) -> None:
        self.language = language
        world = World()
        try:
            runner = Runner(world, language)
            runner.plan(*PLAN["tasks"], **{k: v for k, v in PLAN.items() if k != "tasks"})
            self.text = runner.path.read_bytes()
        finally:
            world.close()
        self.wanted, self.refs = self.run(0)

    def run(self, step: int) -> tuple[str, str]:
        """Run once, killed before this step (0: never), and go on; the manifest and the refs."""
        world = World()
        try:
            runner = Runner(world, self.language)
            runner.path.write_bytes(self.text)
            runner.path.chmod(0o755)
            fire = world.root / "fire"
            fire.mkdir()
            self.arm(world, runner, fire)
            env = {"MAX_PARALLEL": "1", "FIRE": str(fire)}
            start = 'echo $$ >"$FIRE/pid"; exec "$0" "$@"'
            killed = subprocess.run(
                ["/bin/sh", "-c", start, str(runner.path)], cwd=world.repo, check=False,
                env=runner.environment({**env, "FIRE_AT": str(step) if step else None}),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            self.killed = killed.returncode == -9
            if not self.killed:
                assert killed.returncode == 0, killed.stderr.decode()
            else:
                self.go_on(runner, env)
            ran = sorted((world.root / "ran").read_text().split())
            # A command of set-up that was under way is run again, an agent never.
            assert [name for name in ran if name != "s"] == AGENTS, ran
            assert 1 <= ran.count("s") <= 1 + self.killed, ran
            claims = world.repo / ".git" / "agent-workers" / "locks" / "runs"
            assert not [path for path in claims.iterdir() if path.suffix != ".tmp"]
            manifest = normal(runner, (runner.folder / "manifest.json").read_text())
            refs = world.git("for-each-ref", "--format=%(refname) %(tree)", "refs/heads")
            return manifest, refs
        finally:
            world.close()

    def arm(self, world: World, runner: Runner, fire: Path) -> None:
        """Put the counter where the runner meets it."""
        if self.language == "python":
            text = HOOK.format(looks=LOOKS, name=runner.path.name)
            (fire / "sitecustomize.py").write_text(text)
            runner.env["PYTHONPATH"] = str(fire)
            return
        for name in PROGRAMS:
            real = shutil.which(name, path=world.env["PATH"])
            assert real is not None
            text = SHIM.replace("LOOKS", LOOKS).replace("REAL", os.path.dirname(real))
            path = world.root / "bin" / name
            path.write_text(text)
            path.chmod(0o755)

    def go_on(self, runner: Runner, env: dict[str, str]) -> None:
        """Resume; where there is no run yet, run."""
        ran = runner.run(env={**env, "RESUME": "1"})
        if ran.code == 2:
            assert "there is no run" in ran.err, ran.err
            ran = runner.run(env=env)
        assert ran.code == 0, (ran.code, ran.err)


def fire(language: str, part: int, parts: int) -> int:
    """Kill before every `parts`-th step from `part` on, until a run comes to its end."""
    case = Fire(language)
    for step in range(part, LIMIT, parts):
        try:
            found = case.run(step)
            if not case.killed:
                return step
            for old, new in ((case.wanted, found[0]), (case.refs, found[1])):
                differing = list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=0))
                assert not differing, "\n".join(differing)
        except BaseException:
            print(f"{language}, killed before step {step}", file=sys.stderr)
            raise
    raise AssertionError(f"no end within {LIMIT} steps")


if __name__ == "__main__":
    print(fire(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
