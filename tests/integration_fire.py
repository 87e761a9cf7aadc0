"""Kill a verb of integrate_workers.py before its steps, then call it again: CASE PART PARTS."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from under_fire import Called, Case, call, run

# Every room is imported before the forks, which would each import it anew.
ROOMS = ["cli.merge_verbs", "cli.review_verbs", "collecting", "handover"]
for room in ROOMS:
    importlib.import_module(f"fanout.{room}")

from fanout.cli import integrate_workers  # noqa: E402

# A check notes which tree it was given; it stands in the way of nothing else.
NOTE = 'git rev-parse "HEAD^{tree}" >>"$WORLD/tested"'


class Scene(Case):
    """A repository with work to merge, and a user who has edits of his own in the checkout."""

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        (world.root / "tmp").mkdir()
        world.env["TMPDIR"] = str(world.root / "tmp")
        repo = world.repo
        (repo / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
        for name in ("state", "mode", "kind", "old"):
            (repo / name).write_text(f"{name} 0\n")
        (repo / "mine-staged").write_text("0\n")
        (repo / "mine-changed").write_text("0\n")
        (repo / ".gitignore").write_text("*.ignored\n")
        world.commit("start")
        # What the user has in the checkout by path; a staged file is edited once more.
        self.mine: dict[str, str] = {}
        self.edit("mine-staged", "staged\n")
        world.git("add", "mine-staged")
        self.edit("mine-staged", "staged and changed\n")
        self.edit("mine-changed", "changed\n")
        self.edit("mine-new", "new\n")
        self.edit("mine.ignored", "ignored\n")
        self.own = self.status()

    def edit(self, path: str, text: str) -> None:
        """The user writes a file in the checkout."""
        place = self.world.repo / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        self.mine[path] = text

    # --- Work ---

    def work(self, name: str) -> str:
        """A worker whose commit changes files in all ways; its changelog entry; its head."""
        world = self.world
        tree = world.quick(name)
        number = f"{name}\n"
        (tree / "state").write_text("state " + number)
        (tree / f"new-{name}").write_text(number)
        (tree / "deep" / name).mkdir(parents=True)
        (tree / "deep" / name / "er").write_text(number)
        mode = tree / "mode"
        mode.chmod(mode.stat().st_mode ^ 0o111)
        self.turn(tree / "kind", number)
        for path in tree.glob("old*"):
            path.rename(tree / f"old-{name}")
        head = world.commit(f"work of {name}", tree)
        entry = tree / ".worker-runs" / "changelog" / f"{name}.md"
        entry.parent.mkdir(parents=True)
        entry.write_text(f"### Added\n\n- The work of {name}.\n")
        return head

    def turn(self, path: Path, number: str) -> None:
        """Make a link of a file, a folder of a link, a file of a folder."""
        if path.is_symlink():
            path.unlink()
            path.mkdir()
            (path / "inside").write_text(number)
        elif path.is_dir():
            shutil.rmtree(path)
            path.write_text(number)
        else:
            path.unlink()
            path.symlink_to(number.strip())

    def approve(self, name: str) -> None:
        """Approve a worker's tip."""
        head = self.world.git("rev-parse", f"refs/heads/{name}")
        self.must("approve", name, "--commit", head, "--by", "me")

    def merge_words(self, name: str, *more: str) -> list[str]:
        """A merge of one worker with a check."""
        return ["merge", name, "--check", NOTE, *more]

    # --- Calls ---

    def integrate(self, *argv: str, kill_at: int = 0) -> Called:
        """Run integrate_workers.py."""
        return call(self.world, *argv, kill_at=kill_at, main=integrate_workers.main)

    def must(self, *argv: str) -> Called:
        """A call that must succeed."""
        called = self.integrate(*argv)
        assert called.code == 0, (argv, called)
        return called

    def twice(self, step: int, *argv: str) -> tuple[Called, Called | None]:
        """A call that is killed before this step, and the same call again."""
        before = self.tip()
        killed = self.integrate(*argv, kill_at=step)
        self.require_mine()
        if killed.code is not None:
            assert killed.code == 0, killed
            return killed, None
        # Children of the one that was killed may be at work now; neither waits for the other.
        assert self.tip() == before or self.is_tested(self.tip()), "between before and after"
        return killed, self.integrate(*argv)

    # --- What must hold ---

    def tip(self) -> str:
        """The commit of the integration branch."""
        return self.world.git("rev-parse", "refs/heads/main")

    def tested(self) -> list[str]:
        """The trees that checks were run on."""
        path = self.world.root / "tested"
        return path.read_text().split() if path.exists() else []

    def is_tested(self, commit: str) -> bool:
        """Whether checks were run on the tree of a commit."""
        return self.world.git("rev-parse", f"{commit}^{{tree}}") in self.tested()

    def status(self) -> list[str]:
        """What differs between the branch and the checkout."""
        words = ["status", "--porcelain", "-z", "-uall", "--ignored"]
        return sorted(self.world.git(*words).split("\0"))

    def require_mine(self) -> None:
        """Every edit of the user's is there, staged or not."""
        world = self.world
        for path, text in self.mine.items():
            assert (world.repo / path).read_text() == text, path
        assert world.git("show", ":mine-staged") == "staged"

    def require_settled(self) -> None:
        """The checkout is the branch and the user's edits; nothing thrown away is left."""
        self.require_mine()
        assert self.status() == self.own, self.status()
        self.require_swept()
        rows = self.must("status").answer["data"]["integrations"]
        assert not [row for row in rows if row["state"] in ("building", "publishing")], rows

    def require_swept(self) -> None:
        """No throw-away tree, file, lock or process is left."""
        world = self.world
        trees = [path for path in world.worktrees() if "integration-" in path]
        assert not trees, trees
        parent = world.root / "repo.worktrees"
        left = list(parent.glob("integration-*")) if parent.exists() else []
        left += (world.root / "tmp").glob("*")
        git = world.repo / ".git"
        left += [
            *git.glob("*.lock"),
            *(git / "refs").rglob("*.lock"),
            *git.glob("worktrees/integ*"),
            *git.glob("agent-workers-*"),
        ]
        home = git / "agent-workers"
        left += [path for path in home.rglob("*.tmp") if "integrations" in path.parts]
        left += [*home.glob("index-*"), *home.glob("integrations/dropped-entry")]
        left += [f for f in home.glob("integrations/*") if not (f / "integration.json").exists()]
        assert not left, left
        mark = b"AGENT_WORKERS_INTEGRATION="
        assert not self.marked(mark), self.marked(mark)

    def marked(self, mark: bytes) -> list[int]:
        """The processes of this world that carry a mark in their environment."""
        place = f"WORLD={self.world.root}".encode()
        found: list[int] = []
        for pid in self.world.processes():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if place in environ and any(entry.startswith(mark) for entry in environ):
                    found.append(pid)
        return found

    def published(self, name: str) -> list[dict[str, Any]]:
        """The integrations that took a worker in and stand."""
        rows = self.must("status").answer["data"]["integrations"]
        return [r for r in rows if name in r["names"] and r["state"] == "published"]

    def finish(self, names: list[str]) -> None:
        """The workers are taken away, as they are merged; those that are not go with the world."""
        for name in names:
            if self.world.record(name).exists() and self.published(name):
                self.done("cleanup", name, "--branch-delete")


class Merge(Scene):
    """merge: afterwards the branch is before, and the same call merges; or it is after."""

    more: tuple[str, ...] = ()

    def one(self, name: str, step: int) -> bool:
        head = self.work(name)
        self.approve(name)
        before = self.tip()
        killed, again = self.twice(step, *self.merge_words(name, *self.more))
        if again is not None:
            assert again.code == 0, again
        assert self.tip() != before
        assert self.is_tested(self.tip())
        assert self.world.git("show", f"main:new-{name}") == name
        assert self.world.git("show", "main:CHANGELOG.md").count(f"work of {name}.") == 1
        assert self.world.git("rev-parse", f"refs/heads/{name}") == head
        assert len(self.published(name)) == 1
        self.require_settled()
        return killed.code is None


class MergeGroup(Merge):
    """merge, killed together with every git command that it has started."""

    def twice(self, step: int, *argv: str) -> tuple[Called, Called | None]:
        killed, again = super().twice(-step, *argv)
        if again is not None and again.error == "git-locked":
            # The refusal names the locks that git left; the user deletes them.
            for place in re.findall(r"(/\S+\.lock) \(", again.answer["error"]["message"]):
                os.unlink(place)
            again = self.integrate(*argv)
        return killed, again


class Squash(Merge):
    """merge --strategy squash."""

    more = ("--strategy", "squash")


class Rebase(Merge):
    """merge --strategy rebase."""

    more = ("--strategy", "rebase")


class Undo(Scene):
    """undo: the branch is after, and the same call takes it back; or it is before."""

    def one(self, name: str, step: int) -> bool:
        head = self.work(name)
        self.approve(name)
        before = self.tip()
        made = self.must(*self.merge_words(name)).answer["data"]["integration"]
        self.meanwhile(name)
        killed, again = self.twice(step, "undo", made["id"])
        if again is not None:
            assert again.code == 0 or again.error == "already-undone", again
        self.require_undone(name, before, made["after"])
        assert self.world.git("rev-parse", f"refs/heads/{name}") == head
        assert not self.published(name)
        reachable = self.world.git("rev-list", "--all").split()
        assert made["after"] in reachable
        self.require_settled()
        # The approval is as before: it can be merged again.
        self.merge_again(name)
        return killed.code is None

    def meanwhile(self, name: str) -> None:
        """What happens between merge and undo."""

    def require_undone(self, name: str, before: str, after: str) -> None:
        """The branch is what it was."""
        assert self.tip() == before, (name, after)

    def merge_again(self, name: str) -> None:
        """Merge what was taken back."""
        self.must(*self.merge_words(name))
        self.require_settled()


class UndoByRevert(Undo):
    """undo when there are newer commits."""

    def meanwhile(self, name: str) -> None:
        world = self.world
        (world.repo / f"later-{name}").write_text("later\n")
        world.git("add", f"later-{name}")
        world.git("commit", "-q", "-m", "later", "--", f"later-{name}")

    def require_undone(self, name: str, before: str, after: str) -> None:
        world = self.world
        assert world.git("merge-base", after, "main") == after
        assert self.is_tested(self.tip())
        changed = world.git("diff", "--name-only", before, "main").split()
        assert changed == [f"later-{name}"], changed

    def merge_again(self, name: str) -> None:
        called = self.integrate(*self.merge_words(name))
        assert (called.code, called.error) == (3, "taken-back"), called
        self.must(*self.merge_words(name, "--strategy", "cherry-pick"))
        self.require_settled()


class Approve(Scene):
    """approve: afterwards there is no approval, and the same call makes it; or there is one."""

    def one(self, name: str, step: int) -> bool:
        head = self.work(name)
        killed = self.integrate("approve", name, "--commit", head, "--by", "me", kill_at=step)
        if killed.code is None:
            # It counts, or it does not; nothing is half approved.
            tried = self.integrate(*self.merge_words(name))
            assert tried.code == 0 or tried.error == "unapproved", tried
            self.approve(name)
        self.must(*self.merge_words(name))
        self.require_settled()
        return killed.code is None


class ApproveBranch(Scene):
    """approve --branch: the review's folder is made by it."""

    def one(self, name: str, step: int) -> bool:
        world = self.world
        tree = world.root / "plain" / name
        base = self.tip()
        world.git("worktree", "add", "-q", "-b", name, str(tree))
        (tree / f"new-{name}").write_text(name)
        head = world.commit("work", tree)
        which = ["--branch", name, "--base", base]
        words = ["approve", *which, "--commit", head, "--by", "me"]
        merge = ["merge", *which, "--into", "main", "--no-changelog-needed", f"{name}=small"]
        killed = self.integrate(*words, kill_at=step)
        if killed.code is None:
            tried = self.integrate(*merge)
            assert tried.code == 0 or tried.error == "unapproved", tried
            self.must("report")
            self.must(*words)
        self.must(*merge)
        self.require_settled()
        return killed.code is None

    def finish(self, names: list[str]) -> None:
        """They go with the world."""


class Collect(Scene):
    """collect: every file is in the tree always, and on the branch after the same call again."""

    def one(self, name: str, step: int) -> bool:
        world = self.world
        head = self.work(name)
        tree = world.tree(name)
        (tree / f"left-{name}").write_text("left\n")
        (tree / "state").write_text("edited\n")
        (tree / "x.ignored").write_text("ignored\n")
        before = world.bytes_of(tree)
        killed = self.integrate("collect", name, kill_at=step)
        if killed.code is None:
            assert world.bytes_of(tree) == before
            again = self.integrate("collect", name)
            assert again.code == 0 or again.error == "nothing-to-collect", again
        assert world.bytes_of(tree) == before
        commits = world.git("rev-list", f"{head}..{name}").split()
        assert len(commits) == 1, commits
        changed = world.git("diff", "--name-only", head, name).split()
        assert changed == [f"left-{name}", "state"], changed
        assert not world.git("status", "--porcelain", cwd=tree)
        assert not list((world.repo / ".git" / "worktrees" / name).glob("*.lock"))
        # Clean-up would refuse to remove what git ignores.
        (tree / "x.ignored").unlink()
        self.approve(name)
        self.must(*self.merge_words(name))
        self.require_settled()
        return killed.code is None


CASES: dict[str, type[Scene]] = {
    "merge": Merge,
    "merge-group": MergeGroup,
    "squash": Squash,
    "rebase": Rebase,
    "undo": Undo,
    "undo-by-revert": UndoByRevert,
    "approve": Approve,
    "approve-branch": ApproveBranch,
    "collect": Collect,
}

if __name__ == "__main__":
    print(run(CASES[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])))
