"""The command `agent_workers.py`, from spawn to clean-up, on real git and real tmux."""

from __future__ import annotations

from world import World


def test_the_whole_life_of_a_worker(world: World) -> None:
    worker = world.spawn("w1", "@write new.txt hello\n@commit add new")
    assert worker["delivered"] is True
    assert worker["branch"] == "w1"
    base = world.git("rev-parse", "HEAD")
    assert worker["base"] == base
    row = world.wait_state("w1", "running")
    assert row["worktree"] == str(world.tree("w1"))
