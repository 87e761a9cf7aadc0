"""The examples and the snippets of the reference: rendered, dry-run, and the examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runner_world import LANGUAGES, Runner, render, runner, runner_language, statuses
from world import ROOT, World

__all__ = ["runner", "runner_language"]

REFERENCE = ROOT / "references" / "deterministic-loops.md"
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.json") if not path.name.startswith("harness-")
)
SNIPPETS = re.findall(r"^```json\n(.*?)^```", REFERENCE.read_text(), re.M | re.S)
# What a snippet leaves to the plan that it is put into.
REST: dict[str, Any] = {"agent": {"cli": "true"}, "tasks": [{"name": "one", "prompt": "x"}]}
SERVICES = ("forgejo", "vaultwarden", "proxy")


def dry_runs(world: World, plan: Path, **env: str) -> list[str]:
    """What the runners of both languages print in a dry run."""
    texts: list[str] = []
    for language in LANGUAGES:
        each = Runner(world, language)
        words = ("--config", str(plan), "--language", language, "--output", str(each.path))
        ran = render(*words)
        assert ran.code == 0, ran.err
        before = each.seen()
        texts.append(each.ends(0, env={"DRY_RUN": "1", **env}).out)
        each.same(before)
    return texts


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_of_the_reference_is_a_plan(world: World, number: int) -> None:
    plan = {**REST, **json.loads(SNIPPETS[number])}
    path = world.root / "plan.json"
    path.write_text(json.dumps(plan))
    python, bash = dry_runs(world, path)
    assert python == bash
    commands = [row for kind in ("preflight", "backups", "rollback") for row in plan.get(kind, [])]
    for row in commands:
        if isinstance(row, dict):
            assert f"  {row['name']}: " in python


def test_there_are_snippets() -> None:
    """One for each kind of backup that the reference names, and more."""
    text = "\n".join(SNIPPETS)
    programs = ["pg_dump", "mariadb-dump", "sqlite3", "zfs", "btrfs", "lvcreate", "restic"]
    programs += ["borg", "docker", "virsh", "qm"]
    assert [name for name in programs if name not in text] == []
    assert len(SNIPPETS) >= 10


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_dry_run_the_same_in_both_languages(world: World, path: Path) -> None:
    (world.repo / "inventory.txt").write_text("web-1\nweb-2\n")
    world.commit("inventory")
    python, bash = dry_runs(world, path)
    assert python == bash
    assert "nothing was run and nothing was changed" in python
    for task in json.loads(path.read_text())["tasks"]:
        assert f"task {task['name']}" in python


def rendered(runner: Runner, name: str) -> None:
    """Render an example for a runner."""
    words = ("--config", str(ROOT / "examples" / f"{name}.json"), "--language", runner.language)
    ran = render(*words, "--output", str(runner.path))
    assert ran.code == 0, ran.err


def upgrade_world(runner: Runner) -> None:
    """A repository of three services, and stand-ins for what the upgrade calls."""
    root = runner.world.root
    for name in SERVICES:
        folder = runner.repo / "services" / name
        folder.mkdir(parents=True)
        (folder / "compose.yml").write_text(f"image: {name}:1\n")
    runner.world.commit("services")
    volumes = root / "volumes"
    volumes.mkdir()
    (volumes / "data").write_text("precious")
    runner.script("compose", f'echo "$@" >> {root}/compose.log\n')
    runner.script(
        "dump",
        "for word; do case $word in --file=*)\n"
        f"[ ! -e {root}/broken ] || exit 3\n"
        'echo "all rows" > "${word#--file=}" ;; esac; done\n',
    )
    runner.script("restore", f'echo "$@" >> {root}/restore.log\n')
    runner.script(
        "upgrader",
        "cd services/$TASK && sed -i.old s/:1/:2/ compose.yml && rm compose.yml.old\n"
        "echo Restart it. > UPGRADE.md && git add -A . && git commit -q -m $TASK\n",
    )
    runner.env |= {
        "PLAN_AGENT": "upgrader", "PLAN_COMPOSE": "compose --ansi never", "PLAN_PG_DUMP": "dump",
        "PLAN_PG_RESTORE": "restore", "PLAN_VOLUMES": str(volumes), "PLAN_FREE_MB": "1",
        "PLAN_ZFS": "no-such-zfs", "BACKUP_DATABASE": "1",
    }  # fmt: skip
    rendered(runner, "self-hosted-upgrade")


def test_the_upgrade_refuses_is_repaired_and_goes_on(runner: Runner) -> None:
    """A backup that fails stops it before anything is changed; mended, the same run does all."""
    upgrade_world(runner)
    root = runner.world.root
    (root / "broken").touch()
    ran = runner.ends(3)
    assert "backup database" in ran.err
    assert runner.manifest["status"] == "gate-refused"
    assert statuses(runner.manifest["backups"]) == ["failed", "not-started", "not-started"]
    assert runner.world.branches() == {"main"}
    assert not runner.tree("x").parent.exists()
    assert not (runner.folder / "rollback.sh").exists()

    (root / "broken").unlink()
    runner.ends(0, RESUME="1")
    manifest = runner.manifest
    assert statuses(manifest["backups"]) == ["passed", "passed", "skipped"]
    dump = runner.folder / "backups" / "database.dump"
    assert manifest["backups"][0]["artifact"]["path"] == str(dump)
    assert dump.read_text() == "all rows\n"
    assert runner.statuses() == dict.fromkeys(SERVICES, "passed")
    assert statuses(manifest["postflight"]) == ["passed"]
    for name in SERVICES:
        assert runner.world.git("show", f"{name}:services/{name}/compose.yml") == f"image: {name}:2"
    assert "--ansi never -f services/proxy/compose.yml config --quiet" in (
        (root / "compose.log").read_text()
    )
    assert runner.world.branches() == {"main", *SERVICES}
    assert runner.world.git("status", "--porcelain") == ""


def test_an_upgrade_that_goes_wrong_leaves_the_way_back(runner: Runner) -> None:
    upgrade_world(runner)
    root = runner.world.root
    runner.script("upgrader", "echo image: x:latest > services/$TASK/compose.yml\n")
    runner.ends(1)
    rows = runner.tasks()
    assert runner.statuses() == {
        "forgejo": "failed", "vaultwarden": "failed", "proxy": "not-started"
    }  # fmt: skip
    assert rows["forgejo"]["verify"][1]["name"] == "pinned"
    (root / "volumes" / "data").write_text("spoiled")
    back = runner.folder / "rollback.sh"
    runner.path = back
    runner.ends(0, cwd=root)
    assert (root / "volumes" / "data").read_text() == "precious"
    dump = f"{runner.folder}/backups/database.dump"
    last = (root / "restore.log").read_text().splitlines()[-1]
    assert last == f"--clean --if-exists --dbname=forgejo {dump}"


def test_a_fleet_is_edited_canary_first(runner: Runner) -> None:
    hosts = [f"web-{number}" for number in range(1, 5)]
    (runner.repo / "hosts").mkdir()
    for host in hosts:
        (runner.repo / "hosts" / f"{host}.conf").write_text("Port 22\n")
    (runner.repo / "inventory.txt").write_text("\n".join(hosts) + "\n")
    runner.world.commit("hosts")
    runner.script(
        "editor",
        "host=${PLAN_item:-$PLAN_CANARY}\n"
        'echo "$PLAN_SETTING" >> "hosts/$host.conf" && git commit -qam "$host"\n',
    )
    rendered(runner, "fleet-edit")
    runner.env["PLAN_AGENT"] = "editor"
    runner.ends(0)
    assert set(runner.statuses()) == {"canary", "host-web-2", "host-web-3", "host-web-4"}
    for name, row in runner.tasks().items():
        assert row["branch"] == f"fleet/{name}"
        assert len(row["files_changed"]) == 1
    began = {e["task"]: e["seq"] for e in runner.events() if e["phase"] == "agent"}
    assert min(began, key=lambda name: began[name]) == "canary"

    runner.run_id = "r2"
    runner.script("editor", "exit 1\n")
    for branch in runner.world.branches() - {"main"}:
        runner.world.git("worktree", "remove", "--force", str(runner.tree(branch.split("/")[1])))
        runner.world.git("branch", "-D", branch)
    runner.ends(1)
    words = runner.statuses()
    assert words.pop("canary") == "failed"
    assert set(words.values()) == {"not-started"}


def test_code_is_written_in_parts(runner: Runner) -> None:
    runner.script(
        "coder",
        'case $TASK in manual) folder=docs ;; *) folder=src/$TASK ;; esac\nmkdir -p "$folder"\n'
        'echo x > "$folder/new" && git add -A\n'
        "[ $TASK = manual ] || { mkdir -p changes; echo New. > changes/$TASK.md; git add -A; }\n"
        'git commit -q -m "$TASK"\n',
    )
    rendered(runner, "code-fan-out")
    runner.ends(0, PLAN_AGENT="coder", PLAN_CHECK="test -e README.md")
    assert runner.statuses() == dict.fromkeys(("parser", "export", "manual"), "passed")
    assert runner.json("plan.json")["changelog_file"] == "CHANGELOG.md"
    assert runner.json("plan.json")["checks"] == ["$PLAN_CHECK"]
