"""What tests of integrations share: histories made in one process, and the command in this one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanout.cli import agent_workers, integrate_workers
from world import SCRIPTS, Ran, World

INTEGRATE = SCRIPTS / "integrate_workers.py"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Where a worker leaves its changelog entry.
ENTRIES = Path(".worker-runs", "changelog")


class Entry(NamedTuple):
    """A file of a commit with its mode; content of a submodule (160000) is a commit id."""

    mode: str
    content: str | bytes


# By path the content of a file, or None where it is deleted.
Changes = Mapping[str, "str | bytes | Entry | None"]


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry("120000", target)


def program(content: str) -> Entry:
    """An executable file."""
    return Entry("100755", content)


def as_bytes(content: str | bytes) -> bytes:
    """The bytes of a content."""
    return content.encode() if isinstance(content, str) else content


def quoted(path: str) -> bytes:
    """A path as fast-import takes it, whatever bytes it holds."""
    return b'"' + b"".join(b"\\%03o" % byte for byte in os.fsencode(path)) + b'"'


def commit_on(
    world: World, branch: str, *commits: Changes, base: str = "main", message: str = ""
) -> str:
    """Commit changes onto a base without any checkout and set a branch there; the last commit."""
    lines: list[bytes] = []
    for number, changes in enumerate(commits):
        text = as_bytes(message or f"{branch} {number + 1}\n")
        lines += [f"commit refs/heads/{branch}".encode(), b"mark :%d" % (number + 1)]
        lines.append(
            f"committer Test <test@example.invalid> {1_700_000_000 + number} +0000".encode()
        )
        lines.append(b"data %d\n%s" % (len(text), text))
        # An empty base starts a history of its own.
        if number or base:
            lines.append(b"from :%d" % number if number else f"from {base}^0".encode())
        for path, change in changes.items():
            if change is None:
                lines.append(b"D " + quoted(path))
                continue
            entry = change if isinstance(change, Entry) else Entry("100644", change)
            content = as_bytes(entry.content)
            if entry.mode == "160000":
                lines.append(b"M 160000 %s %s" % (content, quoted(path)))
            else:
                lines.append(b"M %s inline %s" % (entry.mode.encode(), quoted(path)))
                lines.append(b"data %d\n%s" % (len(content), content))
        lines.append(b"")
    subprocess.run(
        ["git", "fast-import", "--quiet", "--force"], cwd=world.repo, env=world.env,
        input=b"\n".join(lines), check=True, capture_output=True,
    )  # fmt: skip
    return world.tip(f"refs/heads/{branch}")


def on_main(world: World, *commits: Changes) -> str:
    """Commit changes on main, the checkout too; its tip."""
    tip = commit_on(world, "made-for-main", *commits)
    world.git("merge", "-q", "--ff-only", "made-for-main")
    world.git("branch", "-q", "-D", "made-for-main")
    return tip


def write(tree: Path, changes: Changes) -> None:
    """Make changes in a tree."""
    for path, change in changes.items():
        place = tree / path
        if change is None:
            place.unlink()
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        entry = change if isinstance(change, Entry) else Entry("100644", change)
        if place.is_symlink() or entry.mode == "120000":
            place.unlink(missing_ok=True)
        if entry.mode == "120000":
            place.symlink_to(as_bytes(entry.content).decode())
            continue
        place.write_bytes(as_bytes(entry.content))
        place.chmod(0o755 if entry.mode == "100755" else 0o644)


class Merges:
    """A world to which work comes back; `integrate_workers.py` runs inside of this process."""

    def __init__(
        self, world: World, patch: pytest.MonkeyPatch, streams: pytest.CaptureFixture[str]
    ) -> None:
        self.world = world
        self.repo = world.repo
        self.git = world.git
        self.patch = patch
        self.streams = streams

    # --- work ---

    def work(self, name: str, changes: Changes, *, entry: bool = True, **fields: Any) -> str:
        """A worker with one commit and, unless told, a changelog entry; its tip."""
        tree = self.world.quick(name, **fields)
        write(tree, changes)
        if entry:
            write(tree, {f"{ENTRIES}/{name}.md": f"### Added\n\n- What {name} made.\n"})
        return self.world.commit(f"work of {name}", tree)

    def approve(self, *names: str) -> None:
        """Approve the tips of these workers."""
        for name in names:
            self.ok("approve", name, "--commit", self.tip(name))

    def ready(self, name: str, changes: Changes, **options: Any) -> str:
        """A worker whose work is approved; its tip."""
        tip = self.work(name, changes, **options)
        self.approve(name)
        return tip

    def branch(self, name: str, *commits: Changes, base: str = "main") -> str:
        """A plain branch whose work is approved; it brings its changelog entry along."""
        *before, last = commits
        last = {**last, f"changelog.d/{name}.md": f"- What {name} made.\n"}
        tip = commit_on(self.world, name, *before, last, base=base)
        self.ok("approve", "--branch", name, "--base", base, "--commit", tip)
        return tip

    # --- the command ---

    def cleanup(self, *words: str) -> Ran:
        """Run `agent_workers.py cleanup` with --json; the answer."""
        return self.call("cleanup", *words, main=agent_workers.main)

    def call(
        self,
        *words: str,
        cwd: Path | None = None,
        as_json: bool = True,
        main: Callable[[list[str]], int] = integrate_workers.main,
    ) -> Ran:
        """Run the command with --json; the answer."""
        self.patch.chdir(cwd or self.repo)
        self.streams.readouterr()
        code = main([words[0], "--json", *words[1:]] if as_json else list(words))
        out, err = self.streams.readouterr()
        assert "internal-error" not in out + err, out + err
        assert "this program has a fault" not in out + err, err
        return Ran(code, out, err)

    def ok(self, *words: str, **options: Any) -> dict[str, Any]:
        """Demand success; the data."""
        return self.ends(0, *words, **options).data

    def ends(self, code: int, *words: str, **options: Any) -> Ran:
        """Demand this exit code and the whole envelope."""
        ran = self.call(*words, **options)
        assert ran.code == code, (words, ran.code, ran.out, ran.err)
        answer = ran.json
        assert answer["schema"] == 1
        assert answer["command"] == words[0]
        assert answer["ok"] is (code == 0)
        assert ("error" in answer) is (code != 0)
        if code != 0:
            assert set(answer["error"]) == {"code", "message", "hint"}
        for action in answer["next_actions"]:
            assert set(action) == {"action", "command", "why"}
        return ran

    def refused(self, code: str, *words: str, exit_code: int = 3, **options: Any) -> Ran:
        """Demand a refusal with this error code that changes nothing at all."""
        before = self.everything()
        ran = self.ends(exit_code, *words, **options)
        assert ran.error["code"] == code, ran.error
        assert self.everything() == before
        return ran

    def blocked(self, code: str, *words: str, **options: Any) -> dict[str, Any]:
        """Demand exit 10 with this code, the branch and the checkout as they were; the data."""
        before = self.world.snapshot()
        ran = self.ends(10, *words, **options)
        assert ran.error["code"] == code, ran.error
        assert self.world.snapshot() == before
        self.tidy()
        return {**ran.data, "next_actions": ran.json["next_actions"]}

    # --- looking ---

    def tip(self, branch: str = "main") -> str:
        """The commit of a branch."""
        return self.world.tip(f"refs/heads/{branch}")

    def file(self, path: str, commit: str = "refs/heads/main") -> str:
        """What a file holds in a commit."""
        return self.git("cat-file", "blob", f"{commit}:{path}")

    def everything(self) -> dict[str, Any]:
        """All that a refused or dry run must leave as it was."""
        objects = self.repo / ".git" / "objects"
        return {
            **self.world.snapshot(),
            "objects": sorted(str(p) for p in objects.rglob("*") if p.is_file()),
            "index": (self.repo / ".git" / "index").read_bytes(),
            "integrations": self.integrations(),
        }

    def integrations(self) -> list[str]:
        """The ids of the recorded integrations, the oldest first."""
        folder = self.repo / ".git" / "agent-workers" / "integrations"
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def tidy(self) -> None:
        """Demand that no throw-away tree, index or process of an integration is left."""
        assert not [tree for tree in self.world.worktrees() if "integration-" in tree]
        parent = self.world.root / "repo.worktrees"
        trees = [p.name for p in parent.iterdir()] if parent.is_dir() else []
        assert not [name for name in trees if name.startswith("integration-")]
        home = self.repo / ".git" / "agent-workers"
        assert not [p for p in home.iterdir() if p.name.startswith("index-")]
        assert not list((self.repo / ".git").glob("*.lock"))

    def same_as_head(self) -> None:
        """Demand that the checkout of the repository has no change at all."""
        assert self.git("status", "--porcelain", "--untracked-files=all") == ""


@pytest.fixture
def merges(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Merges]:
    """A world to which work comes back."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield Merges(world, monkeypatch, capfd)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
