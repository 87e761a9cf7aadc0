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
# Alone on the path for a moment: an installed package of this name would win over a plain folder.
sys.path[:], others = [SCRIPTS], sys.path[:]
import fanout

sys.path += others
import fanout.startup

if __name__ == "__main__":
    fanout.startup.prepare(SCRIPTS)
    from fanout.cli.agent_workers import main

    # All is written by now; Python would take every module apart before it leaves.
    os._exit(main(sys.argv[1:]))
