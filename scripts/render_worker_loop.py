#!/usr/bin/env python3
"""Deterministic loops: render a JSON plan to one self-contained Python or Bash runner."""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: render_worker_loop.py needs Python 3.11 or newer")

sys.dont_write_bytecode = True
SCRIPTS = os.path.dirname(os.path.realpath(__file__))
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.startup import prepare
else:
    with open(os.path.join(SCRIPTS, "fanout", "startup.py"), encoding="utf-8") as source:
        exec(source.read())  # noqa: S102 - a module of ours; it says why it is not imported

if __name__ == "__main__":
    prepare(SCRIPTS)
    from fanout.cli.render_worker_loop import main

    sys.exit(main(sys.argv[1:]))
