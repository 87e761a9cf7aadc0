#!/usr/bin/env python3
"""The main job in half a minute: three workers on a throw-away repository, with a sample agent.

Needs Python, git and tmux; no account and no network. `make demo` runs it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AGENT_WORKERS = os.path.join(ROOT, "scripts", "agent_workers.py")
INTEGRATE_WORKERS = os.path.join(ROOT, "scripts", "integrate_workers.py")
AGENT = os.path.join(ROOT, "examples", "sample_agent.py")
DEADLINE = 60.0
# It needs the work of two of them.
CHECK = (
    f"{shlex.quote(sys.executable)} -c "
    "'import greeting, farewell; print(greeting.greet(farewell.part(1)))'"
)

PROMPTS = {
    "greeting": """Add a module that greets.
@sleep 1
@write greeting.py def greet(name):\\n    return f"Hello, {name}!"\\n
@commit Add greeting
@write .worker-runs/changelog/greeting.md ### Added\\n\\n- A module that greets.\\n
@report completed greeting.py is there
""",
    "farewell": """Add a module that says good-bye.
@sleep 1
@write farewell.py def part(name):\\n    return f"Good-bye, {name}!"\\n
@commit Add farewell
@write .worker-runs/changelog/farewell.md ### Added\\n\\n- A module that says good-bye.\\n
@report completed farewell.py is there
""",
    "docs": """Describe the modules in USAGE.md.
@write USAGE.md # Usage\\n\\nCall `greet(name)`.\\n
@commit Describe greet
@report progress one of two modules is described
""",
}
FOLLOW_UP = """Describe `part` too.
@append USAGE.md \\nCall `part(name)` to leave.\\n
@commit Describe part
@write .worker-runs/changelog/docs.md ### Added\\n\\n- USAGE.md describes the modules.\\n
@report completed USAGE.md is whole
"""


class Demo:
    """A throw-away repository, and the commands on it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.repo = os.path.join(root, "repo")
        hidden = ("GIT_", "TMUX", "AGENT_WORKER")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        home = os.path.join(root, "home")
        self.env = {
            **kept,
            "HOME": home,
            "TMUX_TMPDIR": os.path.join(root, "t"),
            "GIT_CONFIG_GLOBAL": os.path.join(home, ".gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        os.makedirs(home)
        os.makedirs(self.env["TMUX_TMPDIR"], mode=0o700)

    def run(self, *argv: str, quiet: bool = False) -> str:
        """Run a command, show it and what it prints; leave on a failure."""
        if not quiet:
            scripts = {path: os.path.basename(path) for path in (AGENT_WORKERS, INTEGRATE_WORKERS)}
            shown = [scripts.get(word, word) for word in argv]
            print("$ " + " ".join(word for word in shown if word != sys.executable), flush=True)
        done = subprocess.run(
            argv, cwd=self.repo, env=self.env, capture_output=True, text=True, check=False
        )
        if not quiet and done.stdout:
            print(indented(done.stdout), flush=True)
        if done.returncode != 0:
            sys.exit(f"{argv[-1]} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def workers(self, *words: str, quiet: bool = False) -> str:
        """Run agent_workers.py."""
        return self.run(sys.executable, AGENT_WORKERS, *words, quiet=quiet)

    def integrate(self, *words: str, quiet: bool = False) -> str:
        """Run integrate_workers.py."""
        return self.run(sys.executable, INTEGRATE_WORKERS, *words, quiet=quiet)

    def reports(self, name: str) -> list[str]:
        """The kinds of the events of one worker."""
        answer = json.loads(self.workers("events", name, "--json", quiet=True))
        return [row["event"] for row in answer["data"]["events"]]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The newest job of each worker."""
        answer = json.loads(self.workers("status", "--no-files", "--json", quiet=True))
        return {row["name"]: row["job"] for row in answer["data"]["workers"]}


def indented(text: str) -> str:
    """The text, each line set in; blank lines of a screen left out."""
    return "\n".join("    " + line[:110] for line in text.split("\n") if line.strip()) + "\n"


def wait_until(question: Callable[[], bool], what: str) -> None:
    """Ask until it is true; leave at the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not question():
        if time.monotonic() > deadline:
            sys.exit(f"not within {DEADLINE:.0f} s: {what}")
        time.sleep(0.1)


def step(text: str) -> None:
    """Say what comes next."""
    print(f"\n== {text}", flush=True)


def make_repository(demo: Demo) -> None:
    """A repository with one commit on main, and a changelog."""
    os.makedirs(demo.repo)
    for words in (
        ["init", "-q", "-b", "main"],
        ["config", "user.name", "Demo"],
        ["config", "user.email", "demo@example.invalid"],
    ):
        demo.run("git", *words, quiet=True)
    with open(os.path.join(demo.repo, "CHANGELOG.md"), "w", encoding="utf-8") as file:
        file.write("# Changelog\n\n## [Unreleased]\n\n### Added\n\n")
    demo.run("git", "add", "-A", quiet=True)
    demo.run("git", "commit", "-qm", "Begin", quiet=True)


def approve(demo: Demo, names: list[str]) -> None:
    """Approve each branch at the commit that was shown."""
    for name in names:
        answer = json.loads(demo.integrate("review", name, "--stat", "--json", quiet=True))
        demo.integrate("approve", name, "--commit", answer["data"]["head"], "--by", "demo")


def play(demo: Demo) -> None:
    """The story, from three prompts to one merged branch."""
    names = list(PROMPTS)
    make_repository(demo)
    prompts = os.path.join(demo.root, "prompts")
    os.makedirs(prompts)
    for name, prompt in PROMPTS.items():
        with open(os.path.join(prompts, f"{name}.md"), "w", encoding="utf-8") as file:
            file.write(prompt)

    step("Three workers, each in its own worktree and tmux session")
    demo.workers("spawn", "--prompts-dir", prompts, "--agent-cli", AGENT)

    step("What they are doing")
    demo.workers("status")
    demo.workers("capture", "greeting", "--lines", "8")

    step("One of them gets a follow-up")
    wait_until(lambda: "progress" in demo.reports("docs"), "docs reports progress")
    follow_up = os.path.join(demo.root, "docs-followup.md")
    with open(follow_up, "w", encoding="utf-8") as file:
        file.write(FOLLOW_UP)
    demo.workers("send", "docs", "--prompt-file", follow_up)
    wait_until(
        lambda: all(job["state"] == "completed" for job in demo.jobs().values()),
        "all three report that they are done",
    )
    demo.workers("status")

    step("What merging would come to, before anything is touched")
    demo.integrate("forecast", *names)

    step("What each one did")
    for name in names:
        demo.integrate("review", name, "--stat")

    step("Somebody who has looked approves exactly these commits")
    approve(demo, names)

    step("Merge: all or nothing, once the combined result has passed the check")
    demo.integrate("merge", *names, "--check", CHECK)
    demo.run("git", "log", "--oneline", "--graph", "-n", "12")
    demo.run("git", "show", "--stat", "--format=%s", "HEAD")
    demo.integrate("report")

    step("Taken back, and merged again")
    demo.integrate("undo")
    demo.run("git", "log", "--oneline", "-n", "3")
    demo.integrate("merge", *names, "--check", CHECK)

    step("Clean up: only what is stopped and merged may go")
    demo.workers("stop", *names)
    demo.workers("cleanup", *names, "--branch-delete")
    demo.run("git", "worktree", "list")


def main() -> int:
    """Play the demo; on a failure end what it started and keep the folder."""
    # A short path: a socket's may have about 100 characters.
    root = tempfile.mkdtemp(prefix="worker-demo-", dir="/tmp")
    demo = Demo(root)
    print(f"The repository of this demo: {demo.repo}")
    try:
        play(demo)
    finally:
        if os.path.isdir(demo.repo):
            end_everything(demo)
    print(f"\nDone. Nothing is left running. The result is in {demo.repo}")
    print(f"Remove it with: rm -rf {root}")
    return 0


def end_everything(demo: Demo) -> None:
    """Stop what a failed or interrupted demo left running."""
    done = subprocess.run(
        [sys.executable, AGENT_WORKERS, "status", "--no-files", "--json"],
        cwd=demo.repo,
        env=demo.env,
        capture_output=True,
        text=True,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"data": {"workers": []}}
    names = [row["name"] for row in answer["data"]["workers"]]
    if names:
        subprocess.run(
            [sys.executable, AGENT_WORKERS, "stop", *names],
            cwd=demo.repo,
            env=demo.env,
            capture_output=True,
            check=False,
        )
    for folder, _, sockets in os.walk(demo.env["TMUX_TMPDIR"]):
        for socket in sockets:
            words = ["tmux", "-S", os.path.join(folder, socket), "kill-server"]
            subprocess.run(words, env=demo.env, capture_output=True, check=False)
    shutil.rmtree(demo.env["TMUX_TMPDIR"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
