#!/usr/bin/env python3
"""Does this copy of the skill work on this machine? Looks at its files, then does its main jobs."""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: self_test.py needs Python 3.11 or newer")

sys.dont_write_bytecode = True
SCRIPTS = os.path.dirname(os.path.realpath(__file__))
# Alone on the path for a moment: an installed package of this name would win over a plain folder.
sys.path[:], others = [SCRIPTS], sys.path[:]
import fanout

sys.path += others
import fanout.startup

if __name__ == "__main__":
    fanout.startup.prepare(SCRIPTS, keep=False)
    try:
        from fanout.cli.self_test import main
    except (ImportError, SyntaxError, OSError) as error:
        sys.exit(f"error: this copy of the skill is damaged, install it anew: {error}")

    sys.exit(main(sys.argv[1:]))
