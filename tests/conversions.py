"""Packages to convert and mappings to convert them by."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fanout import edition
from fanout.harness import blank
from world import ROOT

# No edition is of this agent, so that these tests mean the same in each of them.
TARGET = "otter"
# What a conversion looks at in particular; the rest of a package is copied like `tests/world.py`.
PARTS = (
    "SKILL.md", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml",
    f"scripts/{edition.HELPER}", "scripts/fanout/edition.py", "references/deterministic-loops.md",
    "examples/harness-template.json", f"examples/harness-{edition.AGENT}.json",
    "examples/code-fan-out.json", "tests/world.py",
)  # fmt: skip


def mapping(name: str = TARGET, **values: Any) -> dict[str, Any]:
    """A mapping of which the needed is known; `section__key=value` sets more."""
    made = blank()
    made |= {"name": name, "display_name": f"{name.title()} CLI", "executable": name}
    made["version"].update(args=["--version"], verified="1.2.3", on="2026-11-29")
    made["interactive"].update(args=[], prompt_mode="argument", prompt_arg="-p")
    made["noninteractive"].update(args=["run", "--quiet"], prompt_mode="stdin")
    made["approval"].update(bypass_args=["--yes-to-all"], default="asks before every command")
    for path, value in values.items():
        section, _, key = path.partition("__")
        if key:
            made[section][key] = value
        else:
            made[section] = value
    return made


def write_mapping(folder: Path, made: dict[str, Any]) -> str:
    """A mapping's file."""
    path = folder / "mapping.json"
    path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return str(path)


def small_package(folder: Path) -> Path:
    """A package of few files, for tests that convert by the dozen."""
    for part in PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / part, folder / part)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
