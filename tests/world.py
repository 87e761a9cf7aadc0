"""A hermetic world for one test: its own HOME, git configuration, tmux sockets and repository."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from warm import Warm

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
AGENT_WORKERS = SCRIPTS / "agent_workers.py"
FAKE_AGENT = Path(__file__).resolve().parent / "fake_agent.py"
DEADLINE = 30.0
WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def place() -> str:
    """A folder for worlds with a short name: in memory where programs may run there."""
    memory = "/dev/shm"
    if os.access(memory, os.W_OK) and not os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return memory
    return "/tmp"


PLACE = place()
# By path below a new repository what it holds: a file's mode and content, None for a folder.
TEMPLATE: dict[str, tuple[int, bytes] | None] = {}
WARM: list[Warm] = []
# One for all worlds of a process: what a user's second command finds there.
CACHE = tempfile.mkdtemp(prefix="aw-cache-", dir=PLACE)
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
# The sample agent by its name, as a program that is compiled once and not at each start.
SAMPLE_AGENT = Path(tempfile.mkdtemp(prefix="aw-agent-", dir=PLACE), "sample_agent.py")
atexit.register(shutil.rmtree, SAMPLE_AGENT.parent, ignore_errors=True)
py_compile.compile(
    str(ROOT / "examples" / "sample_agent.py"), str(SAMPLE_AGENT.with_name("compiled.pyc"))
)
SAMPLE_AGENT.write_text(
    "#!/usr/bin/env python3\nimport sys\n\nfrom compiled import main\n\nsys.exit(main())\n"
)
SAMPLE_AGENT.chmod(0o755)


def kill(pid: int) -> None:
    """Kill a process; that it has just ended by itself, or by another's end, is as good."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for(question: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The first true answer; fails at the deadline with what was asked and seen last."""
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        answer = question()
        if answer:
            return answer
        now = time.monotonic()
        if now > deadline:
            pytest.fail(f"not seen in {seconds} s: {what}; last answer: {answer!r}")
        # A command that is asked all the time keeps from its work what it asks about.
        time.sleep(min(0.2, max(0.02, 2 * (now - asked))))


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The JSON answer."""
        return json.loads(self.out)

    @property
    def data(self) -> dict[str, Any]:
        """`data` of the JSON answer."""
        return self.json["data"]

    @property
    def error(self) -> dict[str, Any]:
        """`error` of the JSON answer."""
        return self.json["error"]


def warm() -> Warm:
    """The process that runs the commands of this test process."""
    if not WARM:
        WARM.append(Warm())
        atexit.register(WARM[0].close)
    return WARM[0]


class World:
    """Everything that a test touches lies below `root`, whose path is short enough for sockets."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="aw-", dir=PLACE)).resolve()
        self.home = self.root / "home"
        self.home.mkdir()
        (self.root / "t").mkdir(mode=0o700)
        (self.root / "bin").mkdir()
        (self.root / "gitconfig").write_text(
            "[user]\n\tname = Test\n\temail = test@example.invalid\n"
            '[init]\n\tdefaultBranch = main\n[protocol "file"]\n\tallow = always\n'
            "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
        )
        self.log = self.root / "prompts.jsonl"
        # What ran before can carry no mark of this world; a world ends long before a pid returns.
        self.others = frozenset(os.listdir("/proc"))
        self.env = {
            "PATH": f"{self.root / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_CACHE_HOME": CACHE,
            "LANG": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": str(self.root / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "TMUX_TMPDIR": str(self.root / "t"),
            "SAMPLE_AGENT_LOG": str(self.log),
            "SAMPLE_AGENT_HOME": str(self.root / "sample"),
            "WORLD": str(self.root),
        }
        self.repo = self.make_repo("repo")

    # --- git ---

    def make_repo(self, name: str) -> Path:
        """A repository with one commit on main: a copy of one that this process made once."""
        repo = self.root / name
        repo.mkdir(parents=True)
        if TEMPLATE:
            for path, entry in TEMPLATE.items():
                if entry is None:
                    os.mkdir(f"{repo}/{path}")
                    continue
                mode, content = entry
                with open(os.open(f"{repo}/{path}", WRITE_NEW, mode), "wb") as file:
                    file.write(content)
            return repo
        self.git("init", "-q", "--template=", cwd=repo)
        for folder in ("info", "hooks"):
            (repo / ".git" / folder).mkdir()
        (repo / "README.md").write_text("hello\n")
        self.commit("first", repo)
        for place in sorted(repo.rglob("*")):
            entry = (place.stat().st_mode, place.read_bytes()) if place.is_file() else None
            TEMPLATE[str(place.relative_to(repo))] = entry
        return repo

    def git(self, *arguments: str, cwd: Path | None = None, check: bool = True) -> str:
        """Run git; its stdout without the last newline."""
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.repo, env=self.env, capture_output=True,
            text=True, errors="surrogateescape", check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode != 0:
            pytest.fail(f"git {arguments} failed: {done.stderr}")
        return done.stdout.rstrip("\n")

    def commit(self, message: str, tree: Path | None = None) -> str:
        """Commit everything in a tree; the new commit's id."""
        tree = tree or self.repo
        self.git("add", "-A", cwd=tree)
        self.git("commit", "-q", "--allow-empty", "-m", message, cwd=tree)
        return self.head(tree)

    def head(self, tree: Path | None = None) -> str:
        """The commit of a checkout."""
        return self.tip("HEAD", tree)

    def tip(self, ref: str, tree: Path | None = None) -> str:
        """The commit of a full ref name. Its file is read where there is one: git takes longer."""
        tree = tree or self.repo
        folder = tree / ".git"
        if folder.is_file():
            folder = tree / folder.read_text().removeprefix("gitdir: ").rstrip("\n")
        if ref == "HEAD":
            word = (folder / ref).read_text().rstrip("\n")
            if not word.startswith("ref: "):
                return word
            ref = word.removeprefix("ref: ")
        common = folder / "commondir"
        if common.exists():
            folder /= common.read_text().rstrip("\n")
        loose = folder / ref
        word = loose.read_text().rstrip("\n") if loose.exists() else "ref: "
        # It is packed, or names another one.
        return self.git("rev-parse", ref, cwd=tree) if word.startswith("ref: ") else word

    def branches(self) -> set[str]:
        """The names of all local branches."""
        return set(self.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    def worktrees(self) -> list[str]:
        """The paths of all worktrees, the main one first."""
        entries = self.git("worktree", "list", "--porcelain", "-z").split("\0")
        return [e.removeprefix("worktree ") for e in entries if e.startswith("worktree ")]

    def tree(self, name: str) -> Path:
        """The worktree of a worker, by the default rule."""
        return self.root / "repo.worktrees" / name

    def record(self, name: str) -> Path:
        """The record of a worker."""
        return self.repo / ".git" / "agent-workers" / "workers" / name

    def snapshot(self) -> dict[str, Any]:
        """What a refused command must leave as it was: refs, worktrees, sessions, files, config."""
        files = {
            str(p.relative_to(self.repo)): p.read_bytes() if p.is_file() else None
            for p in sorted(self.repo.rglob("*"))
            if ".git" not in p.relative_to(self.repo).parts
        }
        git = self.repo / ".git"
        refs = (git / "HEAD", git / "packed-refs", *git.glob("refs/**/*"))
        places = ("HEAD", "gitdir", "locked")
        trees = [p for name in places for p in git.glob(f"worktrees/*/{name}")]
        parent = self.root / "repo.worktrees"
        return {
            "refs": {str(p): p.read_bytes() for p in refs if p.is_file()},
            "worktrees": {str(p): p.read_bytes() for p in trees},
            "config": (self.repo / ".git" / "config").read_bytes(),
            "files": files,
            "trees": sorted(p.name for p in parent.iterdir()) if parent.is_dir() else [],
            "sessions": sorted(self.sessions()),
            "workers": sorted(p.name for p in self.record("x").parent.glob("*")),
        }

    # --- the command ---

    def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        seconds: float = 90.0,
        script: Path = AGENT_WORKERS,
    ) -> Ran:
        """Run agent_workers.py (or another script) in the repository."""
        whole = {**self.env, **(env or {})}
        if script.parent == SCRIPTS:
            ran = self.run_warm(
                script.stem, list(arguments), cwd=cwd, env=whole, stdin=stdin, seconds=seconds
            )
        else:
            done = subprocess.run(
                [sys.executable, str(script), *arguments], cwd=cwd or self.repo, env=whole,
                input=stdin, capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
            texts = (out.decode("utf-8", "surrogateescape") for out in (done.stdout, done.stderr))
            ran = Ran(done.returncode, *texts)
        assert "Traceback" not in ran.err, ran.err
        return ran

    def run_warm(
        self,
        name: str,
        arguments: list[str],
        *,
        cwd: Path | None,
        env: dict[str, str],
        stdin: bytes,
        seconds: float,
    ) -> Ran:
        """Run what `Warm.start` takes to its end; its output goes to files, which never fill."""
        with contextlib.ExitStack() as stack:
            given, out, err = (
                stack.enter_context(tempfile.TemporaryFile(dir=PLACE)) for _ in range(3)
            )
            given.write(stdin)
            given.seek(0)
            files = [file.fileno() for file in (given, out, err)]
            folder = str(cwd or self.repo)
            code = warm().start(name, arguments, cwd=folder, env=env, files=files).wait(seconds)
            for file in (out, err):
                file.seek(0)
            texts = [file.read().decode("utf-8", "surrogateescape") for file in (out, err)]
        return Ran(code, *texts)

    def ok(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Run with --json, demand success; the data."""
        ran = self.run(*arguments, "--json", **options)
        assert ran.code == 0, (ran.out, ran.err)
        assert ran.json["ok"] is True
        return ran.data

    def refused(self, code: int, *arguments: str, **options: Any) -> dict[str, Any]:
        """Run with --json, demand this exit code; the error."""
        ran = self.run(*arguments, "--json", **options)
        assert ran.code == code, (ran.code, ran.out, ran.err)
        assert ran.json["ok"] is False
        return ran.error

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start agent_workers.py and do not wait for it."""
        return subprocess.Popen(
            [sys.executable, str(AGENT_WORKERS), *arguments], cwd=self.repo,
            env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def spawn(
        self, name: str, prompt: str = "Do nothing.", *more: str, **options: Any
    ) -> dict[str, Any]:
        """Spawn a worker with the sample agent; `data.worker`."""
        call = ["spawn", name, "--prompt", prompt, "--agent-cli", str(SAMPLE_AGENT), *more]
        return self.ok(*call, **options)["worker"]

    def idle(self, name: str, *more: str, **options: Any) -> Path:
        """Spawn a worker whose agent has ended well at once; its worktree."""
        call = ["spawn", name, "--prompt", "x", "--agent-cli", "/bin/true", "--settle", "0"]
        worker = self.ok(*call, "--prompt-mode", "none", *more, **options)["worker"]
        wait_for(lambda: self.pane_dead(worker["pane"]), f"the end of the agent of {name}")
        return Path(worker["worktree"])

    def quick(self, name: str, **fields: Any) -> Path:
        """Make a worker's record, branch and tree without any process; its worktree."""
        from fanout.workers import Worker

        tree = self.tree(name)
        self.git("worktree", "add", "-q", "--no-track", "-b", name, str(tree), "HEAD")
        blank: dict[str, Any] = {"str": "", "int": 0, "float": 0.0}
        values: dict[str, Any] = {}
        for field, kind in Worker.__annotations__.items():
            word = str(getattr(kind, "__forward_arg__", kind)).partition("[")[0]
            values[field] = [] if word == "list" else {} if word == "dict" else blank.get(word)
        values |= {
            "schema": 1, "name": name, "phase": "live", "launch": f"launch-{name}", "pane": "%99",
            "worktree": str(tree), "admin_dir": str(self.repo / ".git" / "worktrees" / name),
            "branch": name, "base": self.head(), "socket": "none",
            "integration_branch": "refs/heads/main", "session": f"agent-worker-{name}",
            "argv": ["true"],
        }  # fmt: skip
        self.record(name).mkdir(parents=True)
        (self.record(name) / "worker.json").write_text(json.dumps({**values, **fields}))
        with (self.repo / ".git" / "info" / "exclude").open("a") as file:
            file.write("/.worker-runs/\n")
        return tree

    def pane_dead(self, pane: str) -> bool:
        """Whether the process of a pane has ended."""
        return self.tmux("display-message", "-p", "-t", pane, "#{pane_dead}") == "1"

    def adopt(self, patch: pytest.MonkeyPatch) -> Any:
        """Make this process a part of the world, to call the product directly; its repository."""
        from fanout.git import open_repository

        for name in [name for name in os.environ if name.startswith(("GIT_", "TMUX"))]:
            patch.delenv(name)
        for name, value in self.env.items():
            patch.setenv(name, value)
        return open_repository(str(self.repo))

    def refusals(self, name: str, *more: str) -> dict[str, list[str]]:
        """Demand that `cleanup` refuses a worker and changes nothing; the paths by reason."""
        before, tree = self.snapshot(), self.bytes_of(self.tree(name))
        ran = self.run("cleanup", name, *more, "--json")
        assert ran.code == 3, (ran.code, ran.out, ran.err)
        assert ran.json["ok"] is False
        assert ran.data["removed"] == []
        assert self.snapshot() == before
        assert self.bytes_of(self.tree(name)) == tree
        (row,) = ran.data["refused"]
        assert row["name"] == name
        return {reason["code"]: reason["paths"] for reason in row["reasons"]}

    def bytes_of(self, tree: Path) -> dict[str, Any]:
        """Every file and link of a tree with its mode and content."""
        found: dict[str, Any] = {}
        for folder, folders, files in os.walk(tree):
            for name in (*files, *(f for f in folders if os.path.islink(os.path.join(folder, f)))):
                path = os.path.join(folder, name)
                mode = os.lstat(path).st_mode
                content = os.readlink(path) if os.path.islink(path) else Path(path).read_bytes()
                found[os.path.relpath(path, tree)] = (mode, content)
        return found

    def spawn_fake(
        self, name: str, mode: str, *more: str, prompt: str = "hello", **options: Any
    ) -> Ran:
        """Spawn a worker with a fake agent (see fake_agent.py), as JSON, whatever its exit code."""
        return self.run(
            "spawn",
            name,
            "--prompt",
            prompt,
            "--no-contract",
            *self.fake(mode),
            *more,
            "--json",
            **options,
        )

    def fake(self, mode: str, *words: str) -> list[str]:
        """The options that make a fake agent the agent. It logs bytes to `root/<mode>.log`."""
        return ["--agent-cli", str(FAKE_AGENT), "--agent-args", " ".join([mode, *words])]

    def status(self, name: str) -> dict[str, Any]:
        """The status row of one worker."""
        return self.ok("status", name)["workers"][0]

    def wait_state(self, name: str, state: str) -> dict[str, Any]:
        """The status row once the worker is in a state."""
        return wait_for(
            lambda: row if (row := self.status(name))["state"] == state else None, f"{name} {state}"
        )

    def prompts(self) -> list[dict[str, Any]]:
        """What sample agents were given, in order."""
        return (
            [json.loads(line) for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    # --- tmux and processes ---

    def sockets(self) -> list[Path]:
        """The tmux sockets of this world."""
        return [path for path in (self.root / "t").rglob("*") if path.is_socket()]

    def tmux(self, *arguments: str, socket: Path | None = None) -> str:
        """Run tmux on the world's only server (or the named socket)."""
        socket = socket or self.sockets()[0]
        done = subprocess.run(
            ["tmux", "-S", str(socket), *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.rstrip("\n")

    def sessions(self) -> list[str]:
        """The names of all tmux sessions of this world."""
        return [
            name
            for socket in self.sockets()
            for name in self.tmux(
                "list-sessions", "-F", "#{session_name}", socket=socket
            ).splitlines()
        ]

    def processes(self) -> dict[int, str]:
        """The living processes that carry this world's mark, this one and zombies left out."""
        mark = f"WORLD={self.root}".encode()
        found: dict[int, str] = {}
        # Asked often: no more than is needed for each process of the machine.
        for name in os.listdir("/proc"):
            if name in self.others or not name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                    environ = file.read()
                if mark in environ and mark in environ.split(b"\0"):
                    command = Path("/proc", name, "cmdline").read_text()
                    found[int(name)] = command.replace("\0", " ")
        return found

    def kill(self, word: str = "") -> None:
        """Kill this world's processes with the word in their command."""
        for pid, command in self.processes().items():
            if word in command:
                kill(pid)

    def close(self) -> None:
        """End all that is left and remove everything."""
        for socket in self.sockets():
            self.tmux("kill-server", socket=socket)
        self.kill()
        try:
            shutil.rmtree(self.root)
        except OSError:
            # A test took away the right to write, or a process was still at work.
            chmod = ["chmod", "-R", "u+rwx", str(self.root)]
            subprocess.run(chmod, check=False, capture_output=True)
            shutil.rmtree(self.root, ignore_errors=True)
