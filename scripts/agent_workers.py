#!/usr/bin/env python3
"""Interactive workers: CLI agents, each in its own git worktree and tmux session."""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit("error: agent_workers.py needs Python 3.11 or newer")

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from fanout.cli.agent_workers import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
