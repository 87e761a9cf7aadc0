"""Approvals and rejections by command: what they are bound to, and what refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from world import SCRIPTS, World

INTEGRATE = SCRIPTS / "integrate_workers.py"


def made(world: World, name: str = "w1", **fields: Any) -> tuple[Path, str]:
    """A worker with one commit; its tree and tip."""
    tree = world.quick(name, **fields)
    (tree / "a.txt").write_text("a\n")
    return tree, world.commit("add a", tree)


def test_an_approval_is_bound_to_base_head_and_tree(world: World) -> None:
    _, tip = made(world)
    call = ["approve", "w1", "--commit", tip[:7], "--note", "--read"]
    approval = world.ok(*call, script=INTEGRATE)["approval"]
    assert approval["verdict"] == "approved"
    assert approval["head"] == tip
    assert approval["base"] == world.git("rev-parse", "main")
    assert approval["tree"] == world.git("rev-parse", f"{tip}^{{tree}}")
    assert (approval["by"], approval["note"]) == ("Test", "--read")
    assert (world.record("w1") / "reviews" / f"{tip}.json").exists()
