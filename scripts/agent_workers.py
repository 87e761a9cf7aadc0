#!/usr/bin/env python3
"""Interactive workers: CLI agents, each in its own git worktree and tmux session."""

import gc
import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: agent_workers.py needs Python 3.11 or newer")

sys.dont_write_bytecode = True
# The modules alone would be looked through some forty times.
gc.set_threshold(50_000)
SCRIPTS = os.path.dirname(os.path.realpath(__file__))
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fanout.startup import prepare
else:
    with open(os.path.join(SCRIPTS, "fanout", "startup.py"), encoding="utf-8") as source:
        exec(source.read())  # noqa: S102 - a module of ours; it says why it is not imported

if __name__ == "__main__":
    prepare(SCRIPTS)
    from fanout.cli.agent_workers import main

    # All is written by now; Python would take every module apart before it leaves.
    os._exit(main(sys.argv[1:]))
