"""Write references/exit-codes.md from the table in errors.py: `python tests/exit_codes.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "references" / "exit-codes.md"

TEXT = """# Exit codes

All commands use one table; `--help` prints it too. It is made from `scripts/fanout/errors.py`.

| code | meaning |
|---|---|
{rows}

When several apply, the first of these is given: {order}.

With `--json`, every code but 0 comes with `"ok": false` and an `error` of `code` (a stable
kebab-case word), `message` and `hint`; `data` stands beside it as far as it is known.
"""


def page() -> str:
    """The page that the code calls for."""
    from fanout.errors import MEANINGS, PRECEDENCE

    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    return TEXT.format(rows=rows, order=", ".join(str(code.value) for code in PRECEDENCE))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "scripts"))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(), encoding="utf-8")
