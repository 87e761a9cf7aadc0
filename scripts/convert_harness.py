#!/usr/bin/env python3
"""Any agent CLI: specialise this package for one, draft a mapping from one, check a mapping."""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: convert_harness.py needs Python 3.11 or newer")

sys.dont_write_bytecode = True
SCRIPTS = os.path.dirname(os.path.realpath(__file__))
# Alone on the path for a moment: an installed package of this name would win over a plain folder.
sys.path[:], others = [SCRIPTS], sys.path[:]
import fanout

sys.path += others
import fanout.startup

if __name__ == "__main__":
    fanout.startup.prepare(SCRIPTS)
    from fanout.cli.convert_harness import main

    sys.exit(main(sys.argv[1:]))
