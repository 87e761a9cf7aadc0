#!/usr/bin/env python3
"""Check a plan before it costs anything: should it be parallel, and who owns what."""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: plan_workers.py needs Python 3.11 or newer")

sys.dont_write_bytecode = True
SCRIPTS = os.path.dirname(os.path.realpath(__file__))
# Alone on the path for a moment: an installed package of this name would win over a plain folder.
sys.path[:], others = [SCRIPTS], sys.path[:]
import fanout

sys.path += others
import fanout.startup

if __name__ == "__main__":
    fanout.startup.prepare(SCRIPTS)
    from fanout.cli.plan_workers import main

    sys.exit(main(sys.argv[1:]))
