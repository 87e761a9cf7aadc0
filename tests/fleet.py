"""Fifty workers, random verbs, crashes and restarts against a simple model: SEED [STEPS]."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from under_fire import Case, call
from world import kill, wait_for

WORKERS = 50
STEPS = 80
ENDED = ("exited", "gone")


class Known:
    """What the model knows of one worker."""

    def __init__(self) -> None:
        self.state = "running"
        self.job = "open"
        self.dirty = 0
        self.commits = 0
        self.merged = True

    def end(self, state: str, job: str) -> None:
        """Its agent has ended."""
        self.state = state
        if self.job == "open":
            self.job = job


class Fleet(Case):
    """The workers and their model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.known: dict[str, Known] = {}
        # Every content that an agent or a person has made, by blob id, and the file it is in.
        self.made: dict[str, Path] = {}
        self.told: list[str] = []

    def spawn_fleet(self) -> None:
        """Fifty in one call."""
        names = [f"w{number:02d}" for number in range(WORKERS)]
        self.spawn_all(names)
        self.known = {name: Known() for name in names}

    def write(self, name: str) -> None:
        """A new file in a worker's tree."""
        path = self.world.tree(name) / f"file-{len(self.made)}.txt"
        path.write_text(f"{name} {len(self.made)}\n")
        self.made[self.world.git("hash-object", str(path))] = path

    def step(self) -> None:
        """One random act, and what the model makes of it."""
        acts = [self.report, self.die, self.stop, self.resume, self.dirty, self.commit, self.merge]
        acts += [self.cleanup, self.cleanup, self.discard, self.spawn_again]
        if self.random.random() < 0.04:
            self.told.append("kill the tmux server")
            self.kill_server()
        else:
            name = self.random.choice(sorted(self.known))
            act = self.random.choice(acts)
            self.told.append(f"{act.__name__} {name}")
            act(name)

    def spawn_again(self, name: str) -> None:
        called = call(self.world, *self.spawn_words(name))
        assert (called.code, called.error) == (3, "worker-exists"), called

    def report(self, name: str) -> None:
        tree = self.world.tree(name)
        self.world.run("event", "completed", cwd=tree)
        if self.known[name].job == "open":
            self.known[name].job = "completed"

    def die(self, name: str) -> None:
        known = self.known[name]
        if known.state != "running":
            return
        for pid in wait_for(lambda: self.agents(name), f"the agent of {name}"):
            kill(pid)
        known.end("ended", "failed")
        # Whoever looks first records the verdict; a report after it changes nothing.
        self.done("status", name)

    def kill_server(self) -> None:
        self.world.kill("tmux")
        running = [name for name, known in self.known.items() if known.state == "running"]
        for name in running:
            wait_for(lambda name=name: not self.agents(name), f"the agent of {name} ends")
            self.known[name].end("ended", "failed")

    def stop(self, name: str) -> None:
        self.done("stop", name)
        if self.known[name].state == "running":
            self.known[name].end("stopped", "cancelled")

    def resume(self, name: str) -> None:
        called = call(self.world, "resume", name, "--prompt", "go on", "--settle", "0")
        if self.known[name].state == "running":
            assert (called.code, called.error) == (3, "still-running"), called
            return
        assert called.code == 0, called
        self.known[name].state, self.known[name].job = "running", "open"

    def dirty(self, name: str) -> None:
        self.write(name)
        self.known[name].dirty += 1

    def commit(self, name: str) -> None:
        self.write(name)
        self.world.commit("work", self.world.tree(name))
        known = self.known[name]
        known.dirty, known.commits, known.merged = 0, known.commits + 1, False

    def merge(self, name: str) -> None:
        self.world.git("merge", "-q", "--no-edit", name)
        self.known[name].merged = True

    def cleanup(self, name: str) -> None:
        known = self.known[name]
        called = call(self.world, "cleanup", name, "--branch-delete")
        if known.state == "running" or known.dirty or not known.merged:
            assert (called.code, called.error) == (3, "cleanup-refused"), called
            return
        assert called.code == 0, called
        self.forget(name)

    def discard(self, name: str) -> None:
        called = call(self.world, "cleanup", name, "--discard", "--branch-delete")
        if self.known[name].state == "running":
            assert (called.code, called.error) == (3, "cleanup-refused"), called
            return
        assert called.code == 0, called
        self.forget(name)

    def forget(self, name: str) -> None:
        self.require_nothing_but_others(name)
        del self.known[name]
        if len(self.known) < WORKERS // 2:
            self.done(*self.spawn_words(name))
            self.known[name] = Known()

    def require_nothing_but_others(self, name: str) -> None:
        """Nothing of this worker is left."""
        assert name not in self.world.branches()
        assert not self.world.tree(name).exists()
        assert not self.agents(name)

    def compare(self) -> None:
        """What `status` says of all must be what the model knows."""
        rows = {row["name"]: row for row in self.done("status").answer["data"]["workers"]}
        assert set(rows) == set(self.known)
        for name, known in self.known.items():
            self.compare_one(rows[name], known)

    def compare_one(self, row: dict[str, Any], known: Known) -> None:
        """One row against the model."""
        states = {"ended": ENDED, "running": ("running", "starting")}.get(
            known.state, (known.state,)
        )
        assert row["state"] in states, (row, known.__dict__)
        assert row["job"]["state"] == known.job, (row, known.__dict__)
        assert (row["dirty"] > 0) == (known.dirty > 0), (row, known.__dict__)
        assert (row["ahead"] > 0) == (known.commits > 0), (row, known.__dict__)

    def require_all_kept(self) -> None:
        """Every content that was ever made is in its tree, or reachable from a ref."""
        reachable = {
            line[:40] for line in self.world.git("rev-list", "--objects", "--all").split("\n")
        }
        for blob, path in self.made.items():
            assert path.exists() or blob in reachable, path


def main(seed: int, steps: int) -> None:
    """Play one seed."""
    fleet = Fleet(seed)
    try:
        fleet.spawn_fleet()
        for number in range(steps):
            fleet.step()
            if number % 5 == 4 or "kill" in fleet.told[-1]:
                fleet.compare()
        fleet.compare()
        fleet.require_all_kept()
        print(len(fleet.made))
    except BaseException:
        print(f"seed {seed}: " + "; ".join(fleet.told), file=sys.stderr)
        raise
    finally:
        fleet.world.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
