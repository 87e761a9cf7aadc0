"""The table of references/harness-portability.md: what real agent CLIs held of their mappings.

It is made from the mappings in examples/ and from what the last live check of each CLI found, which
`harnesses.py --keep` writes to harness-held.json. Run as a program, this writes it into the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HELD = HERE / "harness-held.json"
PAGE = ROOT / "references" / "harness-portability.md"
BEGIN, END = "<!-- live check: begin -->", "<!-- live check: end -->"
# The rows: what a check is called, and what it tells. A runner's row stands for both languages.
INTERACTIVE = {
    "dialog at the start": "a question of the first start is seen as `waiting`",
    "spawn, paste": "a prompt of several lines arrives whole, its work is committed",
    "events by the agent": "`AGENT_WORKER_EVENT` works in its shell tool",
    "send, busy, idle": "a second prompt arrives whole; signs of work and of rest",
    "approval screen": "a question before a command is seen as `waiting`",
    "stop": "`stop` leaves no process",
    "resume": "`resume`: conversation kept, or not, as the mapping says",
    "live check": "`convert_harness.py --check --live` finds that its paths hold",
}
STORY = (
    "story: probe, convert", "story: two workers", "story: a loop of two", "story: nothing left",
)  # fmt: skip
RUNNERS = {
    "prompt by stdin": "prompt by stdin arrives whole, its work is committed",
    "prompt by argument": "the same by argument",
    "two at once": "two tasks at the same time",
    "JSON output": "`output_args` give JSON",
    "wrong key": "a refused key: `failed`, with the meaning of the exit code",
    "HTTP 500": "a model that fails: `failed`, or ended by the time limit",
    "hang": "a model that never answers: `timed-out`, no process left",
    "nothing done": "exit code 0 without work: `no-change`",
    "sandbox, collect": "a sandbox that cannot commit, then `collect`",
}


def mappings() -> dict[str, dict[str, Any]]:
    """The bundled mappings by name, without the template."""
    found = {
        path.stem.removeprefix("harness-"): json.loads(path.read_bytes())
        for path in sorted((ROOT / "examples").glob("harness-*.json"))
    }
    return {name: mapping for name, mapping in found.items() if name != "template"}


def held() -> dict[str, dict[str, Any]]:
    """What the last live check of each CLI found."""
    return json.loads(HELD.read_bytes()) if HELD.exists() else {}


def keep(result: dict[str, Any]) -> None:
    """Take over what a live check found, and write the table anew."""
    kept = held()
    for name, found in result["harnesses"].items():
        old: dict[str, Any] = kept.get(name, {})
        # A run may have made a part of the checks.
        if old.get("version") != found["version"]:
            old = {"checks": {}, "fields": {}}
        checks = {check["name"]: check["ok"] for check in found["checks"]}
        kept[name] = {
            "version": found["version"],
            "on": result["on"],
            "checks": {**old["checks"], **checks},
            "fields": dict(sorted({**old["fields"], **found["fields"]}.items())),
        }
    HELD.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    write()


def nulls(mapping: dict[str, Any]) -> list[str]:
    """The paths of a mapping that nobody verified."""
    found: list[str] = []
    for top, value in mapping.items():
        if value is None:
            found.append(top)
        elif isinstance(value, dict) and top != "notes":
            members: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            found += [f"{top}.{key}" for key, inner in members.items() if inner is None]
    return found


def word(found: dict[str, Any], names: list[str]) -> str:
    """What these checks found together."""
    ends = [found["checks"][name] for name in names if name in found["checks"]]
    return "-" if not ends else "held" if all(ends) else "not seen"


def table() -> str:
    """The text between the marks."""
    known, found = mappings(), held()
    missing: dict[str, Any] = {"version": "never", "on": "", "checks": {}, "fields": {}}
    rows = {name: found.get(name, missing) for name in known}
    lines = [
        "`held` was seen with the version named above it; `not seen` failed when last tried;",
        "`-` does not apply to that CLI, or was not tried.",
        "",
        "| | " + " | ".join(known[name]["display_name"] for name in rows) + " |",
        "|---" * (len(rows) + 1) + "|",
        "| version | " + " | ".join(row["version"] for row in rows.values()) + " |",
        "| checked on | " + " | ".join(row["on"] for row in rows.values()) + " |",
    ]
    for name, told in INTERACTIVE.items():
        cells = [word(row, [name]) for row in rows.values()]
        lines.append(f"| {told} | " + " | ".join(cells) + " |")
    cells = [word(row, ["work-dir flag"]) for row in rows.values()]
    lines.append("| the flag for the folder | " + " | ".join(cells) + " |")
    cells = [word(row, list(STORY)) for row in rows.values()]
    lines.append(
        "| probe, convert, two workers, a loop, merge, clean up | " + " | ".join(cells) + " |"
    )
    for name, told in RUNNERS.items():
        both = [f"{language}: {name}" for language in ("python", "bash")]
        cells = [word(row, both) for row in rows.values()]
        lines.append(f"| runners: {told} | " + " | ".join(cells) + " |")
    failed = [
        f"{known[name]['display_name']}: {check}"
        for name, row in rows.items()
        for check, ok in row["checks"].items()
        if not ok
    ]
    if failed:
        lines += ["", "Failed when last tried: " + "; ".join(failed) + "."]
    lines += ["", "What nobody verified is `null` in the mapping:", ""]
    for mapping in known.values():
        paths = ", ".join(f"`{path}`" for path in nulls(mapping)) or "nothing"
        lines.append(f"- {mapping['display_name']}: {paths}.")
    return "\n".join(lines)


def write() -> None:
    """Write the table into the page."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")


if __name__ == "__main__":
    write()
