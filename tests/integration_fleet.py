"""Random histories of work, approvals, merges, undos and kills against a model: SEED [STEPS].

Every change by anybody is a token, a word that stands nowhere else. The model knows who has made
which token, and which commits were approved.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections import Counter
from typing import Any

from integration_fire import NOTE, Scene
from under_fire import Called

WORKERS = 6
STEPS = 20
STRATEGIES = ("merge", "merge", "squash", "rebase", "cherry-pick")
TOKEN = re.compile(r"token-\d+")
# Answers that come before anything that was left is cleared.
UNSETTLED = ("git-locked", "busy")


class Known:
    """What the model knows of one worker."""

    def __init__(self) -> None:
        self.head = ""
        self.approved = ""
        self.dirty: dict[str, str] = {}

    @property
    def ready(self) -> bool:
        """Whether it may be merged, as far as its worker goes."""
        return bool(self.head) and self.approved == self.head and not self.dirty


class History(Scene):
    """The workers, the user, and the model of both."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.told: list[str] = []
        self.counted: Counter[str] = Counter()
        self.number = 0
        # Where the branch is, and every commit that anybody has made.
        self.main = self.tip()
        self.commits = {self.main}
        self.users = {self.main}
        # Integrations that stand: the commits before and after.
        self.standing: dict[str, tuple[str, str]] = {}
        self.in_the_way = ""
        self.known: dict[str, Known] = {}
        for number in range(WORKERS):
            name = f"w{number}"
            self.world.quick(name)
            self.known[name] = Known()
            self.commit(name)

    def token(self) -> str:
        """A word that stands nowhere else."""
        self.number += 1
        return f"token-{self.number}\n"

    def tokens(self, commit: str) -> set[str]:
        """The tokens in the files of a commit."""
        words = ["grep", "-h", "-I", "token-", commit, "--", "work", "shared", "user"]
        return set(TOKEN.findall(self.world.git(*words, check=False)))

    def brought(self, before: str, head: str) -> set[str]:
        """The tokens that the commits of `head` add which `before` has not."""
        words = ["log", "-p", "--format=", "--no-ext-diff", f"{before}..{head}", "--"]
        text = self.world.git(*words, "work", "shared")
        lines = [line for line in text.split("\n") if line.startswith("+")]
        return set(TOKEN.findall("\n".join(lines))) & self.tokens(head)

    # --- Acts of workers ---

    def write(self, name: str) -> None:
        """A worker changes a file, mostly one of its own."""
        roll = self.random.random()
        path = "shared" if roll < 0.15 else f"work/{name}" if roll < 0.8 else f"work/{name}-new"
        place = self.world.tree(name) / path
        place.parent.mkdir(exist_ok=True)
        text = place.read_text() if place.exists() else ""
        place.write_text(text + self.token())
        self.known[name].dirty[path] = place.read_text()

    def commit(self, name: str) -> None:
        """A worker commits what it has, or amends."""
        known = self.known[name]
        if not known.dirty:
            self.write(name)
        tree = self.world.tree(name)
        self.world.git("add", "-A", cwd=tree)
        amend = bool(known.head) and known.approved != known.head and self.random.random() < 0.2
        words = ["--amend", "--no-edit"] if amend else ["-m", f"work of {name}"]
        self.world.git("commit", "-q", *words, cwd=tree)
        if amend:
            self.commits.discard(known.head)
        known.head = self.world.git("rev-parse", "HEAD", cwd=tree)
        self.commits.add(known.head)
        known.dirty = {}

    def work_and_approve(self, name: str) -> None:
        """What mostly happens."""
        self.commit(name)
        self.approve_it(name)

    def approve_it(self, name: str) -> None:
        """The user approves a tip; what is not committed keeps that from being done."""
        known = self.known[name]
        head = known.head or self.main
        called = self.integrate("approve", name, "--commit", head, "--by", "me")
        if not known.head or known.dirty:
            assert called.code == 3, called
            return
        if called.code == 0:
            known.approved = known.head
        else:
            # All of it is in the branch already.
            assert called.error == "no-commits", called

    def reject_it(self, name: str) -> None:
        """The user rejects a tip."""
        self.must("reject", name, "--reason", "no", "--by", "me")
        self.known[name].approved = ""

    # --- Acts of the user ---

    def user_edits(self, _: str) -> None:
        """A new file, or another content of an old one."""
        path = self.random.choice(["mine-changed", "mine-new", "mine-1", "mine-2", "mine-staged"])
        self.edit(path, self.token())
        if path not in ("mine-changed", "mine-staged", "mine-new"):
            self.own = sorted({*self.own, f"?? {path}"})

    def user_commits(self, _: str) -> None:
        """A commit on the branch, of one new file alone."""
        path = f"user/{self.number}"
        place = self.world.repo / path
        place.parent.mkdir(exist_ok=True)
        place.write_text(self.token())
        self.world.git("add", path)
        self.world.git("commit", "-q", "-m", "by the user", "--", path)
        self.took(self.tip())

    def user_is_in_the_way(self, name: str) -> None:
        """An edit in a file that a worker changes, or the end of it."""
        world = self.world
        if self.in_the_way:
            path, self.in_the_way = self.in_the_way, ""
            del self.mine[path]
            if world.git("ls-files", path):
                world.git("checkout", "-q", "--", path)
            else:
                (world.repo / path).unlink()
            self.own = [line for line in self.own if line[3:] != path]
            return
        self.in_the_way = path = f"work/{name}"
        tracked = bool(world.git("ls-files", path))
        self.edit(path, self.token())
        self.own = sorted([*self.own, f" M {path}" if tracked else f"?? {path}"])

    def took(self, commit: str) -> None:
        """The user has made a commit on the branch."""
        self.commits.add(commit)
        self.users.add(commit)
        self.main = commit

    # --- Merge and undo ---

    def check(self) -> str:
        """A check that passes or fails, or one while which the user does something."""
        repo = self.world.repo
        roll = self.random.random()
        if roll < 0.15:
            return f"{NOTE}; exit 1"
        if roll < 0.3:
            # Once, or the branch would move each time.
            path = f"user/{self.number}"
            word = self.token().strip()
            commit = f"git add {path}; git commit -qm meanwhile -- {path}"
            return (
                f"{NOTE}; cd {repo}; [ -e {path} ] || "
                f"{{ mkdir -p user; echo {word} >{path}; {commit}; }}"
            )
        return NOTE

    def merge(self, _: str) -> None:
        """Merge some, killed now and then."""
        names = self.random.sample(sorted(self.known), self.random.choice([1, 1, 2, 3]))
        ready = sorted(name for name, known in self.known.items() if known.ready)
        if ready and self.random.random() < 0.85:
            names = self.random.sample(ready, min(len(ready), len(names)))
        strategy = self.random.choice(STRATEGIES)
        words = ["merge", *names, "--strategy", strategy, "--check", self.check()]
        for name in names:
            words += ["--no-changelog-needed", f"{name}=a test"]
        before = self.main
        called = self.call_or_kill(*words)
        self.find_users_commits(before)
        if called.code is None:
            if self.tip() != self.main:
                self.merged(names, called)
            return
        data = called.answer["data"]
        self.counted[f"merge {called.error or called.code}"] += 1
        assert called.code in (0, 3, 10), (words, called)
        if called.code == 0 and data["integration"]:
            self.merged([row["name"] for row in data["merged"]], called)
        assert self.tip() == self.main, (words, called)
        if called.error not in UNSETTLED:
            self.require_settled()

    def find_users_commits(self, before: str) -> None:
        """What the user has committed while a check was at work."""
        words = ["log", "--first-parent", "--reverse", "--format=%H %s", f"{before}..main"]
        for line in self.world.git(*words).split("\n"):
            commit, _, subject = line.partition(" ")
            if subject == "meanwhile":
                self.took(commit)

    def merged(self, names: list[str], called: Called) -> None:
        """The branch has moved: by the approved work of these alone, to a tree that was tested."""
        tip, before = self.tip(), self.main
        for name in names:
            known = self.known[name]
            assert known.ready or self.world.git("merge-base", known.head, before) == known.head, (
                name, known.__dict__, called,
            )  # fmt: skip
        had, has = self.tokens(before), self.tokens(tip)
        most = had.union(*(self.tokens(self.known[name].head) for name in names))
        least = had.union(*(self.brought(before, self.known[name].head) for name in names))
        assert least <= has <= most, (least - has, has - most)
        assert self.is_tested(tip), "what was published was never tested"
        self.world.git("merge-base", "--is-ancestor", before, tip)
        self.commits.add(tip)
        row = self.must("status").answer["data"]["integrations"][-1]
        assert row["after"] == tip, (row, tip)
        self.standing[row["id"]] = (before, tip)
        self.main = tip

    def undo(self, _: str) -> None:
        """Take the newest back, or any."""
        ids = list(self.standing)
        chosen = [self.random.choice(ids)] if ids and self.random.random() < 0.5 else []
        taken = (chosen or ids[-1:] or [""])[0]
        called = self.call_or_kill("undo", *chosen)
        if called.code is None:
            if self.tip() != self.main:
                self.undone(taken)
            return
        self.counted[f"undo {called.error or called.code}"] += 1
        assert called.code in (0, 3, 10), called
        if called.code == 0:
            assert called.answer["data"]["integration"]["undoes"] == taken
            self.undone(taken)
        assert self.tip() == self.main
        if called.error not in UNSETTLED:
            self.require_settled()

    def undone(self, taken: str) -> None:
        """The branch has moved: what one integration had brought is gone, and nothing else."""
        before, after = self.standing.pop(taken)
        tip = self.tip()
        gone = self.tokens(after) - self.tokens(before)
        assert self.tokens(tip) == self.tokens(self.main) - gone, (taken, gone)
        self.commits |= {after, tip}
        self.main = tip

    def call_or_kill(self, *words: str) -> Called:
        """Call once; now and then it is killed before one of its steps, alone or with its group.

        The locks that git has left then are deleted, as the refusal says.
        """
        step = self.random.randint(1, 60) if self.random.random() < 0.4 else 0
        called = self.integrate(*words, kill_at=-step if self.random.random() < 0.5 else step)
        self.told[-1] += f" ({' '.join(words)}; killed at {step}: {called.code} {called.error})"
        if called.error == "git-locked":
            for place in re.findall(r"(/\S+\.lock) \(", called.answer["error"]["message"]):
                os.unlink(place)
            return self.call_or_kill(*words)
        if called.code is None:
            self.counted["killed"] += 1
        return called

    # --- Always ---

    def step(self) -> None:
        """One random act, and what must hold after it."""
        acts: list[Any] = [self.write, self.commit, self.approve_it, self.reject_it]
        acts += [self.work_and_approve] * 5 + [self.merge] * 6
        acts += [self.user_edits, self.user_commits, self.user_is_in_the_way]
        acts += [self.undo] * (3 if self.standing else 0)
        name = self.random.choice(sorted(self.known))
        act = self.random.choice(acts)
        self.told.append(f"{act.__name__} {name}")
        act(name)
        self.require_all_kept()

    def require_all_kept(self) -> None:
        """No edit, no untracked file and no commit of anybody is lost."""
        world = self.world
        self.require_mine()
        for name, known in self.known.items():
            for path, text in known.dirty.items():
                assert (world.tree(name) / path).read_text() == text, (name, path)
            if known.head:
                assert world.git("rev-parse", f"refs/heads/{name}") == known.head
        reachable = set(world.git("rev-list", "--all").split("\n"))
        assert self.commits <= reachable, self.commits - reachable
        on_main = set(world.git("rev-list", "refs/heads/main").split("\n"))
        assert self.users <= on_main, self.users - on_main


def main(seed: int, steps: int) -> None:
    """Play one seed; prints how often each came about."""
    history = History(seed)
    try:
        for _ in range(steps):
            history.step()
        history.told.append("the end")
        for words in (["undo"], ["merge", *history.known]):
            # Whatever was left, a call without a kill clears it.
            called = history.integrate(*words)
            assert called.code in (0, 3, 10), called
        history.require_swept()
        print(dict(history.counted))
    except BaseException:
        print(f"seed {seed}: " + "; ".join(history.told), file=sys.stderr)
        raise
    finally:
        history.world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
