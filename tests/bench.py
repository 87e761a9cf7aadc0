#!/usr/bin/env python3
"""Time the commands beside the least that the same work can cost, in one run (`make bench`).

A program, not a test: it has no limits that fail, it prints what is met. Each row takes its floor
and the product in turn, again and again, and compares medians; wall time and CPU time (of all that
was waited for) are given in milliseconds as `wall/CPU`. "start" is one start of the same Python
that imports argparse, json and subprocess. Python runs with -S: what a site's own start-up files
import would hide what ours does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(ROOT, "scripts")
AGENT_WORKERS = os.path.join(SCRIPTS, "agent_workers.py")
INTEGRATE_WORKERS = os.path.join(SCRIPTS, "integrate_workers.py")
CONFIG = os.path.join(SCRIPTS, "fanout", "tmux.conf")
PYTHON = [sys.executable, "-S"]
START = [*PYTHON, "-c", "import argparse, json, subprocess"]
GIT_CONFIG = """[user]
\tname = Bench
\temail = bench@example.invalid
[init]
\tdefaultBranch = main
"""
SOCKET = "ours"
PREFIX = "agent-worker-"
SLEEPER = "#!/bin/sh\nexec sleep 86400\n"
STUBBORN = "#!/bin/sh\ntrap '' TERM HUP INT\nwhile :; do sleep 1; done\n"
ENDER = "#!/bin/sh\nexit 0\n"
LISTENER = """#!/bin/sh
printf '> '
while read -r line; do printf 'heard %s\n> ' "${#line}"; done
"""
# A tmux that notes each client before it becomes one: what types into a pane, and all else.
COUNTING = """#!/bin/sh
case "$*" in
*paste-buffer*|*send-keys*) echo typed ;;
*) echo called ;;
esac >>"$CALLS"
exec "REAL" "$@"
"""

# One worker by hand: $1 name, $2 its tree, $3 the agent.
PAIR = (
    'git worktree add -q -b "$1" "$2" HEAD 2>/dev/null && tmux -L floor new-session -d -s "$1" "$3"'
)
SPAWN = PAIR + " && git status --porcelain --ignored >/dev/null"
SPAWN_ALL = (
    f'trees=$1; agent=$2; shift 2; for n; do set -- "$n" "$trees/$n" "$agent"; {SPAWN}; done'
)
STATUS = "tmux -L ours list-panes -a >/dev/null && git worktree list >/dev/null"
STATUSES = (
    "ls -d ../ours.worktrees/* | "
    "xargs -P 2 -I {} git --no-optional-locks -C {} status --porcelain >/dev/null"
)
CAPTURE = 'tmux -L ours capture-pane -p -t "=$1:" >/dev/null'
# Every two of the named branches, each by a process of its own.
EVERY_PAIR = (
    'n=0; for a in "$@"; do n=$((n + 1)); m=0; for b in "$@"; do m=$((m + 1)); '
    'if [ "$m" -gt "$n" ]; then git merge-tree --write-tree "$a" "$b" >/dev/null || :; fi; '
    "done; done"
)
# A task by hand: $1 name, $2 the trees, $3 the agent, $4 the base.
TASK = (
    'git worktree add -q -b "$1" "$2/$1" "$4" 2>/dev/null && cd "$2/$1" && "$3" >"$2/$1.log" && '
    'git status --porcelain >/dev/null && git diff --name-only "$4" HEAD >/dev/null && '
    "git rev-parse HEAD >/dev/null"
)
TASKS = f"""trees=$1; agent=$2; base=$(git rev-parse HEAD); shift 2; mkdir -p "$trees"
printf '%s\\n' "$@" | xargs -P 2 -I {{}} sh -c '{TASK}' sh {{}} "$trees" "$agent" "$base"
"""
PARALLEL = TASKS.replace("xargs -P 2 -I {}", "parallel --will-cite -j 2").replace(
    f"sh -c '{TASK}' sh {{}}", "sh {script} {}"
)
WORKING = "#!/bin/sh\necho x >new.txt\n"
STAMPING = '#!/bin/sh\ndate +%s%N >>"$STAMPS"\nexit 1\n'
PEAK_OF_CHILD = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
sys.exit(code)
"""
REMOVE_ALL = (
    'trees=$1; shift; for n; do git worktree remove "$trees/$n" && git branch -q -D "$n"; done'
)

# Runs a command of ours in its own process and says how long some functions took in it, and what
# memory it had at most. argv: scripts, report file, "module:function,...", the command's words.
PROBE = """
import sys, time
scripts, report, points = sys.argv[1:4]
sys.dont_write_bytecode = True
sys.path.insert(0, scripts)
import fanout.startup
fanout.startup.prepare(scripts)
from fanout.cli.agent_workers import main
import importlib, json, resource
spans = {}
def cpu():
    whole = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in whole)
def wrap(module, name):
    inner = getattr(module, name)
    spans[name] = [0.0, 0.0]
    def timed(*args, **options):
        wall, used = time.perf_counter(), cpu()
        try:
            return inner(*args, **options)
        finally:
            spans[name][0] += 1000 * (time.perf_counter() - wall)
            spans[name][1] += 1000 * (cpu() - used)
    setattr(module, name, timed)
for point in points.split(",") if points else []:
    place, _, name = point.partition(":")
    wrap(importlib.import_module(place), name)
code = main(sys.argv[4:])
try:
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(report, "w") as file:
    json.dump({"spans": spans, "peak": peak / 1024}, file)
sys.exit(code)
"""
PEAK_OF_START = """
import argparse, json, subprocess
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024)
"""


class Cost(NamedTuple):
    """Milliseconds of wall time and of CPU time."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.0f}/{self.cpu:.0f}" if self.wall >= 99.5 else (
            f"{self.wall:.1f}/{self.cpu:.1f}"
        )  # fmt: skip


class Target(NamedTuple):
    """What the product may take: so many times the floor, so many Python starts, so many ms."""

    times: float
    starts: float
    extra: float

    def allowed(self, floor: float, start: float) -> float:
        """The limit in ms."""
        return self.times * floor + self.starts * start + self.extra

    def __str__(self) -> str:
        parts = ["floor" if self.times == 1 else f"{self.times:g} x floor"] if self.times else []
        parts += ["start"] * (self.starts > 0) + [f"{self.extra:g} ms"] * (self.extra > 0)
        return " + ".join(parts)


class Pair(NamedTuple):
    """Two equal repositories, one for the floor and one for the product."""

    folder: str
    files: int

    @property
    def floor(self) -> str:
        """The repository in which the shell works."""
        return os.path.join(self.folder, "floor")

    @property
    def ours(self) -> str:
        """The repository in which the product works."""
        return os.path.join(self.folder, "ours")


def median(costs: list[Cost]) -> Cost:
    """The medians of both times."""
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
    )


def used() -> float:
    """The CPU time of all children that were waited for, in ms."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (usage.ru_utime + usage.ru_stime)


def fail(text: str) -> None:
    """Leave: figures of work that was not done are worthless."""
    sys.exit(f"bench: {text}")


def place_for_files() -> tuple[str, str]:
    """Where to work, and on which file system: in memory where there is such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    kind = "unknown"
    with contextlib.suppress(OSError), open("/proc/mounts", encoding="utf-8") as file:
        mounts = [line.split()[1:3] for line in file]
        inside = [m for m in mounts if os.path.realpath(place).startswith(m[0].rstrip("/"))]
        kind = max(inside, key=lambda mount: len(mount[0]))[1] if inside else kind
    return place, kind


class Bench:
    """One run. Everything lies below `root` and is gone afterwards."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.quick: bool = options.quick
        self.race_rounds: int = options.rounds or (1 if self.quick else 3)
        self.rows: list[dict[str, Any]] = []
        self.facts: list[str] = []
        place, self.file_system = place_for_files()
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="awb-", dir=place))
        self.count = 0
        self.calls = os.path.join(self.root, "calls")
        hidden = ("GIT_", "TMUX", "AGENT_WORKER", "XDG_", "PYTHON")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.env |= {
            "HOME": self.make("home"),
            "TMUX_TMPDIR": self.make("t"),
            "GIT_CONFIG_GLOBAL": os.path.join(self.root, "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "LANG": "C.UTF-8",
            "CALLS": self.calls,
        }
        self.write("gitconfig", GIT_CONFIG)
        agents = {"sleeper": SLEEPER, "ender": ENDER, "listener": LISTENER, "stubborn": STUBBORN}
        agents |= {"working": WORKING, "stamping": STAMPING}
        for name, text in agents.items():
            os.chmod(self.write(name, text), 0o755)
        real = shutil.which("tmux") or "tmux"
        self.make("counting")
        shim = COUNTING.replace("REAL", real)
        os.chmod(self.write("counting/tmux", shim), 0o755)

    # --- Places ---

    def make(self, name: str) -> str:
        """A new private folder below the root."""
        path = os.path.join(self.root, name)
        os.mkdir(path, 0o700)
        return path

    def write(self, name: str, text: str) -> str:
        """A file below the root."""
        path = os.path.join(self.root, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def program(self, name: str) -> str:
        """One of the agents."""
        return os.path.join(self.root, name)

    def template(self, files: int) -> str:
        """A repository with so many files and one commit; made once."""
        place = os.path.join(self.root, f"template-{files}")
        if not os.path.isdir(place):
            self.make(os.path.basename(place))
            for number in range(files):
                folder = os.path.join(place, f"d{number // 50}")
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, f"f{number}.txt"), "w", encoding="utf-8") as file:
                    file.write(f"file {number}\n" * 20)
            for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
                self.do(["git", *words], place)
        return place

    @contextlib.contextmanager
    def pair(self, files: int) -> Any:
        """Two fresh repositories, and a tmux server for each that runs already."""
        self.count += 1
        pair = Pair(self.make(f"p{self.count}"), files)
        template = self.template(files)
        for repo in (pair.floor, pair.ours):
            shutil.copytree(template, repo, symlinks=True)
            self.do(["git", "update-index", "-q", "--refresh"], repo)
        keep = ["new-session", "-d", "-s", "keep", "sleep 86400"]
        for socket in ("floor", SOCKET):
            self.do(["tmux", "-L", socket, "-f", CONFIG, *keep], pair.floor)
        # The first call in a repository takes notes that the later ones find.
        self.ours(pair, "status")
        try:
            yield pair
        finally:
            self.end_servers()
            shutil.rmtree(pair.folder)

    def end_servers(self) -> None:
        """End both tmux servers, agents included, and wait until they are gone."""
        for socket in ("floor", SOCKET):
            panes = self.run(["tmux", "-L", socket, "list-panes", "-a", "-F", "#{pane_pid}"])
            self.run(["tmux", "-L", socket, "kill-server"])
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                if self.run(["tmux", "-L", socket, "list-sessions"]).returncode != 0:
                    break
                time.sleep(0.02)
            for pid in map(int, panes.stdout.split()):
                self.end_own(pid)

    def end_own(self, pid: int) -> None:
        """End a pane's process that outlived its server, if the pid is still ours."""
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if f"TMUX_TMPDIR={self.env['TMUX_TMPDIR']}".encode() in file.read().split(b"\0"):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End and remove everything."""
        self.end_servers()
        shutil.rmtree(self.root, ignore_errors=True)

    # --- Running ---

    def run(self, argv: list[str], cwd: str = "/") -> subprocess.CompletedProcess[str]:
        """Run a process, whatever its exit code."""
        return subprocess.run(
            argv, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def do(self, argv: list[str], cwd: str) -> str:
        """Run a process that must succeed."""
        done = self.run(argv, cwd)
        if done.returncode != 0:
            fail(f"{argv} failed ({done.returncode}): {done.stdout}{done.stderr}")
        return done.stdout

    def timed(self, argv: list[str], cwd: str = "/") -> Cost:
        """What a process costs that must succeed."""
        wall, cpu = time.perf_counter(), used()
        self.do(argv, cwd)
        return Cost(1000 * (time.perf_counter() - wall), used() - cpu)

    def shell(self, cwd: str, script: str, *words: str) -> Cost:
        """What a shell script costs."""
        return self.timed(["sh", "-c", script, "sh", *words], cwd)

    def command(self, *words: str) -> list[str]:
        """A call of the product."""
        return [*PYTHON, AGENT_WORKERS, words[0], "--tmux-socket", SOCKET, *words[1:]]

    def ours(self, pair: Pair, *words: str) -> Cost:
        """What a call of the product costs."""
        return self.timed(self.command(*words), pair.ours)

    def start(self) -> Cost:
        """What one Python start costs."""
        return self.timed(START)

    def probe(self, pair: Pair, points: str, *words: str) -> tuple[Cost, dict[str, Cost], float]:
        """A call of the product: its cost, that of the named functions, its peak memory in MB."""
        report = os.path.join(self.root, "report")
        argv = [*PYTHON, "-c", PROBE, SCRIPTS, report, points, *words]
        cost = self.timed(argv, pair.ours)
        with open(report, encoding="utf-8") as file:
            found = json.load(file)
        return cost, {k: Cost(*v) for k, v in found["spans"].items()}, found["peak"]

    def tmux_calls(self, pair: Pair, *words: str, code: int = 0) -> tuple[int, int]:
        """How many tmux processes a call of the product starts: all, and those that type."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.calls)
        path = self.env["PATH"]
        self.env["PATH"] = os.path.join(self.root, "counting") + os.pathsep + path
        try:
            done = self.run(self.command(*words), pair.ours)
        finally:
            self.env["PATH"] = path
        if done.returncode != code:
            fail(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        with contextlib.suppress(FileNotFoundError), open(self.calls, encoding="utf-8") as file:
            lines = file.read().split()
            return len(lines), lines.count("typed")
        return 0, 0

    def warm(self) -> None:
        """Let the product keep its compiled modules, for every verb."""
        with self.pair(50) as pair:
            self.ours(pair, *self.spawn_words("warm", "listener", "paste"))
            self.ours(pair, "status")
            self.ours(pair, "capture", "warm")
            self.ours(pair, "send", "warm", "--prompt", "hello")
            self.ours(pair, "stop", "warm")
            self.ours(pair, "cleanup", "warm", "--branch-delete")

    # --- Words ---

    def spawn_words(self, name: str, agent: str = "sleeper", mode: str = "argument") -> list[str]:
        """A `spawn` of one worker."""
        return ["spawn", name, "--prompt", "Do it.", *self.spawn_options(agent, mode)]

    def spawn_options(self, agent: str = "sleeper", mode: str = "argument") -> list[str]:
        """The options of a `spawn` that does not wait."""
        words = ["--agent-cli", self.program(agent), "--prompt-mode", mode, "--settle", "0"]
        # The contract has many lines, and the listener takes one.
        return [*words, "--no-contract"] if mode == "paste" else words

    def prompts(self, names: list[str]) -> str:
        """A folder with a prompt for each name."""
        self.count += 1
        folder = self.make(f"prompts-{self.count}")
        for name in names:
            self.write(f"{os.path.basename(folder)}/{name}.md", "Do it.\n")
        return folder

    def spawn_many(self, pair: Pair, names: list[str], agent: str = "sleeper") -> Cost:
        """What a `spawn` of many workers in one call costs."""
        folder = self.prompts(names)
        return self.ours(pair, "spawn", "--prompts-dir", folder, *self.spawn_options(agent))

    # --- Rows ---

    def add(
        self, name: str, files: int, target: Target | None, floors: list[Cost], ours: list[Cost],
        starts: list[Cost] | None = None, note: str = "", cpu_target: Target | None = None,
    ) -> None:  # fmt: skip
        """Note one row of the table, and print it."""
        floor, mine = median(floors) if floors else Cost(0, 0), median(ours)
        start = median(starts) if starts else Cost(0, 0)
        row: dict[str, Any] = {
            "operation": name, "files": files, "floor": floor._asdict(),
            "start": start._asdict() if starts else None, "ours": mine._asdict(),
            "ratio": None,
            "target": str(target) if target else None, "allowed": None, "met": None,
            "note": note, "rounds": len(ours),
        }  # fmt: skip
        ratio, allowed, met = "-", None, "-"
        if floors:
            found = Cost(mine.wall / floor.wall, mine.cpu / max(floor.cpu, 0.01))
            row["ratio"] = found._asdict()
            ratio = f"{found.wall:.2f}/{found.cpu:.2f}"
        if target is not None:
            other = cpu_target or target
            allowed = Cost(
                target.allowed(floor.wall, start.wall), other.allowed(floor.cpu, start.cpu)
            )
            row["allowed"] = allowed._asdict()
            good = Cost(mine.wall <= allowed.wall, mine.cpu <= allowed.cpu)
            row["met"] = good._asdict()
            met = "/".join("yes" if part else "NO" for part in good)
        self.rows.append(row)
        figures = (floor if floors else "-", start if starts else "-", mine, ratio, allowed or "-")
        print(
            f"{name:<34} {files:>5} " + " ".join(f"{part!s:>11}" for part in figures),
            f"{met:>7}  {row['target'] or ''}" + (f"; {note}" if note else ""),
            flush=True,
        )

    def fact(self, text: str) -> None:
        """Note something that is no time, and print it."""
        self.facts.append(text)
        print(text, flush=True)

    def spawn_one(self, files: int, rounds: int) -> None:
        """Spawn one worker that needs no waiting."""
        floors: list[Cost] = []
        starts: list[Cost] = []
        ours: list[Cost] = []
        with self.pair(files) as pair:
            for number in range(rounds):
                name = f"w{number}"
                tree = os.path.join(pair.floor + ".worktrees", name)
                floors.append(self.shell(pair.floor, SPAWN, name, tree, self.program("sleeper")))
                starts.append(self.start())
                ours.append(self.ours(pair, *self.spawn_words(name)))
        self.add("spawn one", files, Target(1, 1, 15), floors, ours, starts)

    def spawn_twenty(self, files: int, rounds: int) -> None:
        """Spawn 20 in one call."""
        names = [f"w{number}" for number in range(20)]
        floors: list[Cost] = []
        ours: list[Cost] = []
        for _ in range(rounds):
            with self.pair(files) as pair:
                words = [pair.floor + ".worktrees", self.program("sleeper"), *names]
                floors.append(self.shell(pair.floor, SPAWN_ALL, *words))
                ours.append(self.spawn_many(pair, names))
        self.add("spawn 20 in one call", files, Target(0.75, 0, 0), floors, ours)

    def at_once(self, commands: list[list[str]], cwd: str) -> tuple[Cost, int]:
        """What processes cost that run at once, and how many of them failed."""
        wall, cpu = time.perf_counter(), used()
        running = [
            subprocess.Popen(
                argv, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for argv in commands
        ]  # fmt: skip
        failed = sum(process.wait() != 0 for process in running)
        return Cost(1000 * (time.perf_counter() - wall), used() - cpu), failed

    def spawn_race(self, files: int, rounds: int) -> None:
        """20 processes that spawn at once; who fails, and which branches have no tree."""
        names = [f"w{number}" for number in range(20)]
        floors: list[Cost] = []
        starts: list[Cost] = []
        ours: list[Cost] = []
        lost = [0, 0]
        orphans = 0
        for _ in range(rounds):
            with self.pair(files) as pair:
                trees, agent = pair.floor + ".worktrees", self.program("sleeper")
                shells = [["sh", "-c", PAIR, "sh", n, f"{trees}/{n}", agent] for n in names]
                cost, failed = self.at_once(shells, pair.floor)
                floors.append(cost)
                lost[0] += failed
                cost, _ = self.at_once([START] * len(names), pair.ours)
                starts.append(cost)
                calls = [self.command(*self.spawn_words(name)) for name in names]
                cost, failed = self.at_once(calls, pair.ours)
                ours.append(cost)
                lost[1] += failed
                refs = self.do(["git", "for-each-ref", "--format=%(refname:short)"], pair.ours)
                listed = self.do(["git", "worktree", "list", "--porcelain"], pair.ours)
                held = {
                    line.rpartition("/")[2] for line in listed.split("\n") if line[:6] == "branch"
                }
                orphans += len(set(refs.split()) - held)
        note = (
            f"{rounds} rounds: {20 * rounds - lost[1]} of {20 * rounds}, {orphans} orphan branches"
        )
        note += f" (floor: {20 * rounds - lost[0]} of {20 * rounds})"
        self.add("20 spawn processes at once", files, Target(2, 0, 0), floors, ours, note=note)
        nothing = "the same Python, which imports and ends"
        self.add("20 starts at once, no work", files, None, floors, starts, note=nothing)

    def look(self, files: int, rounds: int) -> None:
        """Status of 50 workers without and with their files, and capture of one."""
        names = [f"w{number:02d}" for number in range(50)]
        without: tuple[list[Cost], list[Cost]] = ([], [])
        with_files: tuple[list[Cost], list[Cost]] = ([], [])
        captures: tuple[list[Cost], list[Cost]] = ([], [])
        starts: list[Cost] = []
        with self.pair(files) as pair:
            self.spawn_many(pair, names)
            # The first status a second after the check-out refreshes the index.
            time.sleep(1.2)
            self.ours(pair, "status")
            for _ in range(rounds):
                starts.append(self.start())
                without[0].append(self.shell(pair.ours, STATUS))
                without[1].append(self.ours(pair, "status", "--no-files"))
                with_files[0].append(self.shell(pair.ours, STATUSES))
                with_files[1].append(self.ours(pair, "status"))
                captures[0].append(self.shell(pair.ours, CAPTURE, PREFIX + names[7]))
                captures[1].append(self.ours(pair, "capture", names[7]))
            _, _, peak = self.probe(pair, "", "status")
        self.add("status of 50, --no-files", files, Target(1, 1, 10), *without, starts)
        self.add("status of 50, with files", files, Target(1.1, 1, 0), *with_files, starts)
        self.add("capture one", files, Target(1, 1, 10), *captures, starts)
        self.memory("status of 50", files, peak)

    def forecast(self, files: int, rounds: int) -> None:
        """Forecast of 20 branches that change other files, and of 20 that change the same one."""
        for what, shared in (("other files", False), ("one file", True)):
            floors: list[Cost] = []
            ours: list[Cost] = []
            starts: list[Cost] = []
            with self.pair(files) as pair:
                names = [f"b{number:02d}" for number in range(20)]
                for repo in (pair.floor, pair.ours):
                    self.branches(repo, names, shared=shared)
                argv = [*PYTHON, INTEGRATE_WORKERS, "forecast", "--base", "HEAD"]
                argv += [word for name in names for word in ("--branch", name)]
                self.timed(argv, pair.ours)
                before = self.run(["git", "count-objects"], pair.ours).stdout
                for _ in range(rounds):
                    starts.append(self.start())
                    floors.append(self.shell(pair.floor, EVERY_PAIR, *names))
                    ours.append(self.timed(argv, pair.ours))
                left = before != self.run(["git", "count-objects"], pair.ours).stdout
            note = "LEAVES LOOSE OBJECTS" if left else ""
            self.add(
                f"forecast of 20, {what}", files, Target(0.25, 0, 0), floors, ours, starts, note
            )

    def check_plan(self, tasks: int, files: int, rounds: int) -> None:
        """Check a plan of many tasks over many files, each of which some task owns."""
        floors: list[Cost] = []
        ours: list[Cost] = []
        starts: list[Cost] = []
        self.count += 1
        repo = self.make(f"check-{self.count}")
        self.do(["git", "init", "-q"], repo)
        lines = ["commit HEAD", "committer B <b@example.invalid> 1 +0000", "data 1", "x"]
        for number in range(files):
            folder = f"src/part_{number % tasks}/d{number % 7}"
            text = f"import os\nimport part_{number % tasks}.d0.f{number % tasks}\n"
            lines += [f"M 100644 inline {folder}/f{number}.py", f"data {len(text)}", text]
        words = ["git", "fast-import", "--quiet"]
        done = subprocess.run(
            words, cwd=repo, env=self.env, input="\n".join(lines) + "\n", text=True, check=False
        )  # fmt: skip
        if done.returncode:
            fail("the repository for check was not made")
        rows = [
            {
                "name": f"t{number}", "prompt": "Do it.", "estimate_minutes": 30,
                "owns": [f"src/part_{number}/**", f"tests/part_{number}/test_*.py"],
            }
            for number in range(tasks)
        ]  # fmt: skip
        plan = self.write(f"check-{self.count}.json", json.dumps(
            {"agent": {"cli": "agent"}, "max_parallel": 8, "tasks": rows}
        ))  # fmt: skip
        argv = [*PYTHON, os.path.join(SCRIPTS, "plan_workers.py"), "check", plan]
        for _ in range(rounds + 1):
            starts.append(self.start())
            floors.append(self.timed(["git", "ls-tree", "-r", "HEAD"], repo))
            ours.append(self.timed(argv, repo))
        name = f"check of {tasks} tasks"
        self.add(name, files, Target(0, 0, 2000), floors[1:], ours[1:], starts[1:])

    def branches(self, repo: str, names: list[str], *, shared: bool) -> None:
        """Branches with one commit each that merge cleanly, in files of their own or in one."""
        lines = [f"line {number}\n" for number in range(20 * len(names))]
        script: list[str] = []
        for number, name in enumerate(names):
            mine = list(lines)
            mine[20 * number + 10] = f"changed by {name}\n"
            path, text = ("shared.txt", "".join(mine)) if shared else (f"{name}.txt", "new\n")
            script.append(
                f"commit refs/heads/{name}\ncommitter B <b@example.invalid> 1 +0000\n"
                f"data 2\nb\nfrom refs/heads/start\nM 100644 inline {path}\n"
                f"data {len(text)}\n{text}\n"
            )
        with open(os.path.join(repo, "shared.txt"), "w", encoding="utf-8") as file:
            file.writelines(lines)
        for words in (["add", "-A"], ["commit", "-qm", "shared"], ["branch", "start"]):
            self.do(["git", *words], repo)
        stream = os.path.join(self.root, "stream")
        with open(stream, "w", encoding="utf-8") as file:
            file.writelines(script)
        self.do(["sh", "-c", 'git fast-import --quiet <"$1"', "sh", stream], repo)

    def memory(self, what: str, files: int, peak: float) -> None:
        """Note a peak of memory beside that of a bare Python start."""
        bare = float(self.run([*PYTHON, "-c", PEAK_OF_START]).stdout or "nan")
        met = "yes" if peak <= 15 else "NO"
        self.fact(
            f"memory, {what}, {files} files: peak {peak:.1f} MB; one start alone {bare:.1f} MB; "
            f"target 15 MB: {met}"
        )

    def send(self, files: int, rounds: int) -> None:
        """Send to one agent: what is settling, and what is ours on top of it."""
        totals: list[Cost] = []
        on_top: list[Cost] = []
        settling: list[Cost] = []
        starts: list[Cost] = []
        with self.pair(files) as pair:
            self.ours(pair, *self.spawn_words("w", "listener", "paste"))
            for number in range(rounds):
                starts.append(self.start())
                prompt = f"Follow-up number {number}"
                cost, spans, _ = self.probe(
                    pair, "fanout.delivery:drive", "send", "w", "--prompt", prompt
                )
                drive = spans["drive"]
                totals.append(cost)
                settling.append(drive)
                on_top.append(Cost(cost.wall - drive.wall, cost.cpu - drive.cpu))
        note = f"in all {median(totals)}, typing and settling {median(settling)}"
        self.add("send one, on top of settling", files, Target(0, 1, 20), [], on_top, starts, note)

    def clean(self, files: int, rounds: int) -> None:
        """Clean up 20 merged workers whose agents have ended."""
        names = [f"w{number}" for number in range(20)]
        floors: list[Cost] = []
        after: list[Cost] = []
        totals: list[Cost] = []
        peak = 0.0
        for _ in range(rounds):
            with self.pair(files) as pair:
                trees = pair.floor + ".worktrees"
                for name in names:
                    self.do(
                        ["git", "worktree", "add", "-q", "-b", name, f"{trees}/{name}"], pair.floor
                    )
                self.spawn_many(pair, names, "ender")
                for repo in (pair.floor, pair.ours):
                    self.finish_work(repo, names)
                self.await_ended(pair)
                floors.append(self.shell(pair.floor, REMOVE_ALL, trees, *names))
                points = "fanout.cleaning:remove_all,fanout.cleaning:prove"
                words = ["cleanup", *names, "--branch-delete"]
                cost, spans, peak = self.probe(pair, points, *words)
                checks, whole = spans["prove"], spans["remove_all"]
                totals.append(cost)
                after.append(Cost(whole.wall - checks.wall, whole.cpu - checks.cpu))
                left = self.do(["git", "branch", "--list", "w*"], pair.ours)
                if left:
                    fail(f"branches were left: {left}")
        note = f"the whole command {median(totals)}"
        self.add(
            "clean up 20, after the checks", files, Target(0.35, 0, 0), floors, after, note=note
        )
        self.memory("clean-up of 20", files, peak)

    def finish_work(self, repo: str, names: list[str]) -> None:
        """Commit something in every tree and merge it."""
        for name in names:
            tree = os.path.join(repo + ".worktrees", name)
            with open(os.path.join(tree, f"{name}.new"), "w", encoding="utf-8") as file:
                file.write(name)
            self.do(["git", "add", "-A"], tree)
            self.do(["git", "commit", "-q", "-m", name], tree)
        self.do(["git", "merge", "-q", "-m", "all", *names], repo)

    def await_ended(self, pair: Pair) -> None:
        """Wait until every agent has ended."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            states = json.loads(self.do(self.command("status", "--no-files", "--json"), pair.ours))
            if all(row["state"] == "exited" for row in states["data"]["workers"]):
                return
            time.sleep(0.1)
        fail("the agents did not end")

    # --- Growth ---

    def growth(self, counts: list[int], rounds: int) -> None:
        """Status without files at more and more workers: the cost of one more."""
        with self.pair(50) as pair:
            points: list[tuple[int, Cost, Cost]] = []
            calls: dict[int, int] = {}
            done = 0
            for count in counts:
                self.fabricate(pair, [f"g{number:03d}" for number in range(done, count)])
                done = count
                floors: list[Cost] = []
                ours: list[Cost] = []
                starts: list[Cost] = []
                for _ in range(rounds):
                    starts.append(self.start())
                    floors.append(self.shell(pair.ours, STATUS))
                    ours.append(self.ours(pair, "status", "--no-files"))
                target = Target(1, 1, 10 + 0.1 * (count - 50))
                self.add(f"status of {count}, --no-files", 50, target, floors, ours, starts)
                points.append((count, median(floors), median(ours)))
                calls[count], _ = self.tmux_calls(pair, "status", "--no-files")
            _, _, peak = self.probe(pair, "", "status", "--no-files")
        (low, floor_low, low_cost), (high, floor_high, high_cost) = points[0], points[-1]
        more = high - low
        wall = (high_cost.wall - low_cost.wall) / more
        cpu = (high_cost.cpu - low_cost.cpu) / more
        floor = (floor_high.wall - floor_low.wall) / more
        self.fact(
            f"one more worker of {low} to {high}, status --no-files: {wall:.3f} ms wall, "
            f"{cpu:.3f} ms CPU (floor {floor:.3f} wall); target 0.1 on top of the floor: "
            + ("yes" if wall - floor <= 0.1 else "NO")
        )
        numbers = ", ".join(f"{count}: {number}" for count, number in calls.items())
        same = "yes" if len(set(calls.values())) == 1 else "NO"
        self.fact(f"tmux calls of status --no-files by workers: {numbers}; the same number: {same}")
        self.memory(f"status --no-files of {high}", 50, peak)

    def fabricate(self, pair: Pair, names: list[str]) -> None:
        """Workers with records, branches, worktree entries and idle panes, but made cheaply."""
        from fanout import records
        from fanout import workers as life

        common = os.path.join(os.path.realpath(pair.ours), ".git")
        head = self.do(["git", "rev-parse", "HEAD"], pair.ours).strip()
        made: list[life.Worker] = []
        for chunk in (names[start : start + 20] for start in range(0, len(names), 20)):
            words = ["tmux", "-u", "-L", SOCKET]
            for name in chunk:
                words += [
                    *("new-session", "-d", "-x", "200", "-y", "50", "-s", PREFIX + name, "-P"),
                    *("-F", "#{pane_id}\t#{pane_pid}\t#{socket_path}", "sleep 86400", ";"),
                    *(
                        "set-option",
                        "-p",
                        "-t",
                        f"={PREFIX}{name}:",
                        "@agent_worker",
                        f"l-{name}",
                        ";",
                    ),
                ]
            panes = self.do(words, pair.ours).splitlines()
            for name, pane in zip(chunk, panes, strict=True):
                number, pid, socket = pane.split("\t")
                made.append(self.record(pair, name, number, int(pid), socket, head))
        for worker in made:
            os.makedirs(worker.worktree)
            os.makedirs(worker.admin_dir)
            for path, text in (
                (f"{worker.worktree}/.git", f"gitdir: {worker.admin_dir}\n"),
                (f"{worker.admin_dir}/HEAD", f"ref: {worker.branch_ref}\n"),
                (f"{worker.admin_dir}/gitdir", f"{worker.worktree}/.git\n"),
                (f"{worker.admin_dir}/commondir", "../..\n"),
            ):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            records.make_dir(records.worker_dir(common, worker.name))
            life.save(common, worker)
            job = life.new_prompt(common, worker.name, "Do it.\n")
            before = {"head": head, "files": ""}
            for kind, more in (
                ("spawned", {"launch": worker.launch, "opens": True, "before": before}),
                ("delivered", {"delivered": True, "mode": "argument", "evidence": "argument"}),
            ):
                life.record_event(common, worker.name, kind, job=job, **more)
            life.write_card(worker, job)
            with open(worker.events_file, "w", encoding="utf-8"):
                pass
            records.append_event(worker.events_file, "started", job=job, data={})
        refs = "".join(f"create {worker.branch_ref} {head}\n" for worker in made)
        subprocess.run(
            ["git", "update-ref", "--stdin"], cwd=pair.ours, env=self.env, input=refs.encode(),
            check=True,
        )  # fmt: skip

    def record(self, pair: Pair, name: str, pane: str, pid: int, socket: str, head: str) -> Any:
        """The record of a worker that runs."""
        from fanout import proctree, records
        from fanout import workers as life
        from fanout.harness import load_harness

        repo = os.path.realpath(pair.ours)
        # What the record holds besides does not matter to `status`.
        blank: dict[str, Any] = {"str": "", "int": 0, "float": 30.0}
        values: dict[str, Any] = {}
        for field, kind in life.Worker.__annotations__.items():
            word = str(getattr(kind, "__forward_arg__", kind)).partition("[")[0]
            values[field] = [] if word == "list" else {} if word == "dict" else blank.get(word)
        values |= {
            "name": name, "phase": "live", "launch": f"l-{name}",
            "worktree": f"{repo}.worktrees/{name}", "admin_dir": f"{repo}/.git/worktrees/{name}",
            "branch": name, "base": head, "integration_branch": "refs/heads/main",
            "socket": SOCKET, "socket_path": socket, "session": PREFIX + name, "pane": pane,
            "pane_pid": pid, "pane_started": proctree.start_time(pid) or "",
            "boot_id": proctree.boot_id(), "mapping": load_harness(None, "kimi").mapping,
            "executable": "/bin/sleep", "argv": ["/bin/sleep", "86400"],
            "prompt_mode": "argument", "created_at": records.now(),
        }  # fmt: skip
        return life.Worker(**values)

    # --- tmux calls ---

    def calls_by_workers(self, counts: tuple[int, int]) -> None:
        """How many tmux calls each command makes for few workers and for many."""
        found: dict[str, list[int]] = {}
        typing: list[tuple[int, int]] = []
        for count in counts:
            names = [f"w{number}" for number in range(count)]
            with self.pair(50) as pair:
                folder = self.prompts(names)
                commands: list[tuple[str, list[str], int]] = [
                    ("spawn", ["--prompts-dir", folder, *self.spawn_options()], 0),
                    ("status --no-files", [], 0),
                    ("status", [], 0),
                    ("capture", ["w0"], 0),
                    ("wait --timeout 1", names, 124),
                    ("stop", names, 0),
                    ("resume", ["w0", "--settle", "0"], 0),
                    ("stop", ["w0"], 0),
                    ("cleanup", [*names, "--branch-delete"], 0),
                ]
                for verb, words, code in commands:
                    called, _ = self.tmux_calls(pair, *verb.split(), *words, code=code)
                    if words != ["w0"] or verb != "stop":
                        found.setdefault(verb, []).append(called)
                spawn = ["spawn", "--prompts-dir", folder, *self.spawn_options("listener", "paste")]
                typing.append(self.tmux_calls(pair, *spawn))
        for command, numbers in found.items():
            same = "yes" if len(set(numbers)) == 1 else "NO"
            self.fact(
                f"tmux calls of {command} with {counts[0]} and {counts[1]} workers: "
                f"{numbers[0]} and {numbers[1]}; the same number: {same}"
            )
        told = " and ".join(f"{called} ({typed} of them type)" for called, typed in typing)
        self.fact(
            f"tmux calls of spawn by paste with {counts[0]} and {counts[1]} workers: {told}; "
            "typing takes calls for each worker, the rest are looks at all of them in a row"
        )

    def stop_many(self, rounds: int) -> None:
        """Stop 20 workers in one call, beside stopping one: those that go at once, and others."""
        names = [f"w{number}" for number in range(20)]
        for agent, what in (("sleeper", "stop 20"), ("stubborn", "stop 20 that ignore TERM")):
            one: list[Cost] = []
            ours: list[Cost] = []
            for _ in range(rounds):
                with self.pair(50) as pair:
                    self.spawn_many(pair, ["one"], agent)
                    self.spawn_many(pair, names, agent)
                    one.append(self.ours(pair, "stop", "one"))
                    ours.append(self.ours(pair, "stop", *names))
            self.add(f"{what} (floor: stop one)", 50, Target(1.5, 0, 0), one, ours)

    # --- Runners ---

    def render(self, language: str, names: list[str], agent: str, **fields: Any) -> list[str]:
        """A call of a runner of a plan with these tasks."""
        self.count += 1
        tasks = [{"name": name, "prompt": "Do it.\n"} for name in names]
        plan = {
            "run_name": "bench",
            "agent": {"cli": self.program(agent)},
            "tasks": tasks,
            **fields,
        }
        path = os.path.join(self.root, f"runner-{self.count}")
        config = self.write(f"plan-{self.count}.json", json.dumps(plan))
        script = os.path.join(SCRIPTS, "render_worker_loop.py")
        words = ["--config", config, "--language", language, "--output", path]
        self.do([sys.executable, script, *words], self.root)
        return [*PYTHON, path] if language == "python" else [path]

    def parallel(self, pair: Pair, names: list[str]) -> Cost | None:
        """The same tasks under GNU parallel; None where there is none."""
        if shutil.which("parallel") is None:
            return None
        script = self.write(f"task-{os.path.basename(pair.folder)}", TASK)
        words = [pair.floor + ".worktrees", self.program("working"), *names]
        return self.shell(pair.floor, PARALLEL.replace("{script}", script), *words)

    def runner(self, count: int, rounds: int) -> None:
        """A run of many tasks, two at a time, beside xargs and GNU parallel."""
        names = [f"t{number}" for number in range(count)]
        ours: dict[str, list[Cost]] = {"python": [], "bash": []}
        floors: list[Cost] = []
        peers: list[Cost] = []
        for _ in range(rounds):
            with self.pair(50) as pair:
                words = [pair.floor + ".worktrees", self.program("working"), *names]
                floors.append(self.shell(pair.floor, TASKS, *words))
            with self.pair(50) as pair:
                peer = self.parallel(pair, names)
                peers += [peer] if peer else []
            for language, costs in ours.items():
                with self.pair(50) as pair:
                    costs.append(self.timed(self.render(language, names, "working"), pair.ours))
        limits = {
            "python": (Target(1.2, 0, 0), Target(1.15, 0, 0)), "bash": (Target(1.6, 0, 0),) * 2
        }  # fmt: skip
        for language, costs in ours.items():
            target, cpu = limits[language]
            name = f"{language} runner, {count} tasks"
            self.add(name, 50, target, floors, costs, cpu_target=cpu)
        if peers:
            self.add(f"GNU parallel, {count} tasks", 50, None, floors, peers)
        else:
            self.fact("GNU parallel is not on this machine: not compared")

    def runner_facts(self, large: int) -> None:
        """No task is lost, the memory stays flat, the first task starts at once."""
        for language in ("python", "bash"):
            for at_once in (8, 32):
                with self.pair(50) as pair:
                    names = [f"t{number}" for number in range(2 * at_once)]
                    runner = self.render(language, names, "working", max_parallel=at_once)
                    self.do(runner, pair.ours)
                    made = self.do(["git", "branch", "--list", "t*"], pair.ours).split()
                    found = "none lost" if len(set(made) & set(names)) == len(names) else "LOST"
                    self.fact(f"{language} runner, {at_once} at once, {len(names)} tasks: {found}")
            begun = time.perf_counter()
            self.render(language, [f"t{number}" for number in range(large)], "working")
            taken = 1000 * (time.perf_counter() - begun)
            self.fact(f"rendering {large} tasks, {language}: {taken:.0f} ms; target 1000 ms")
            peaks: list[str] = []
            firsts: dict[int, list[float]] = {1: [], large: []}
            for count in (1, 40, large):
                # All tasks of a small plan; of a large one only the first two, all are recorded.
                fields = {"on_failure": "stop"} if count == large else {}
                agent = "stamping" if count == large else "working"
                with self.pair(50) as pair:
                    names = [f"t{number}" for number in range(count)]
                    self.env["STAMPS"] = os.path.join(self.root, "stamps")
                    runner = self.render(language, names, agent, **fields)
                    out = self.run([*PYTHON, "-c", PEAK_OF_CHILD, *runner], pair.ours).stdout
                    peaks.append(f"{float(out):.1f}")
            for count in (1, large) * 3:
                with self.pair(50) as pair:
                    self.env["STAMPS"] = stamps = os.path.join(self.root, f"stamps-{self.count}")
                    names = [f"t{number}" for number in range(count)]
                    runner = self.render(language, names, "stamping", on_failure="stop")
                    began = time.time_ns()
                    self.run(runner, pair.ours)
                    with open(stamps, encoding="utf-8") as file:
                        firsts[count].append((int(file.readline()) - began) / 1e6)
            first = [statistics.median(times) for times in firsts.values()]
            self.fact(
                f"{language} runner, peak memory with 1, 40 and {large} tasks: "
                f"{', '.join(peaks)} MB"
            )
            self.fact(
                f"{language} runner, first agent of a plan of 1 and of {large} tasks after "
                f"{first[0]:.0f} and {first[1]:.0f} ms"
            )


def terminated(*_: object) -> None:
    """Leave, cleaning up on the way."""
    sys.exit(143)


def main() -> int:
    """Run all rows; 0 whatever they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of less than a minute")
    parser.add_argument(
        "--rounds", type=int, help="rounds of the 20 processes at once (default: 3)"
    )
    parser.add_argument("--only", metavar="WORD", default="", help="only the parts with this word")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    sys.path.insert(0, SCRIPTS)
    bench = Bench(options)
    quick = bench.quick
    sizes = [50] if quick else [50, 2000]
    parts: list[tuple[str, Callable[[], None]]] = []
    for files in sizes:
        large = files > 50
        parts += [
            ("spawn one", lambda f=files: bench.spawn_one(f, 3 if quick else 15)),
            (
                "spawn 20",
                lambda f=files, n=large: bench.spawn_twenty(f, 1 if quick else 3 if n else 5),
            ),
            ("at once", lambda f=files: bench.spawn_race(f, bench.race_rounds)),
            ("look status capture", lambda f=files: bench.look(f, 3 if quick else 11)),
            ("send", lambda f=files, n=large: None if n else bench.send(f, 1 if quick else 5)),
            ("clean", lambda f=files: bench.clean(f, 1 if quick else 3)),
            ("forecast", lambda f=files: bench.forecast(f, 1 if quick else 5)),
        ]
    parts += [
        ("growth", lambda: bench.growth([50, 150] if quick else [50, 200, 500], 3 if quick else 9)),
        ("stop", lambda: bench.stop_many(1 if quick else 5)),
        ("calls", lambda: bench.calls_by_workers((2, 12) if quick else (2, 40))),
        (
            "check",
            lambda: bench.check_plan(*((50, 5000, 1) if quick else (200, 50_000, 5))),
        ),
        ("runner", lambda: bench.runner(10 if quick else 50, 1 if quick else 5)),
        ("runner facts", lambda: bench.runner_facts(100 if quick else 1000)),
    ]
    began = time.monotonic()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    machine += f", load {os.getloadavg()[0]:.1f}"
    versions = ", ".join(
        [f"Python {platform.python_version()}"]
        + [bench.run([p, f]).stdout.strip() for p, f in (("git", "--version"), ("tmux", "-V"))]
    )
    bench.fact(f"{machine}; {versions}; files on {bench.file_system}; ms as wall/CPU")
    print(
        f"{'operation':<34} {'files':>5} {'floor':>11} {'start':>11} {'ours':>11} {'ratio':>11} "
        f"{'allowed':>11} {'met':>7}  target"
    )
    try:
        bench.warm()
        for name, part in parts:
            if options.only in name:
                part()
        bench.fact(f"{time.monotonic() - began:.0f} s in all")
    finally:
        bench.close()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "rows": bench.rows, "facts": bench.facts}, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(main())
