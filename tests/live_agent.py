#!/usr/bin/env python3
"""The sample agent, which understands what a live check asks for in plain words.

What is asked for stands in `PLAIN` of model_server.py. It demands LIVE_ENDPOINT, asks before it
runs a command unless it was called with --yolo, and is told by LIVE_FAULT to have one of these:

forgetful  it remembers no word
silent     it answers nothing
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

from model_server import PLAIN, REMEMBER, REMEMBERED  # noqa: E402

sample_agent: Any = importlib.import_module("sample_agent")
MEMORY = Path.home() / "remembered"
FAULT = os.environ.get("LIVE_FAULT", "")
plain_steps = sample_agent.job_steps


def job_steps(text: str) -> Iterator[Any]:
    """What a prompt asks for, as directives of the sample agent."""
    told = REMEMBER.search(text)
    if told is not None and FAULT != "forgetful":
        MEMORY.write_text(told[1])
    asked = PLAIN.search(text)
    if asked is None or FAULT == "silent":
        return plain_steps(text)
    if asked["command"] is not None:
        return command_steps(asked["command"])
    first = asked["first"]
    if first == REMEMBERED:
        first = MEMORY.read_text() if MEMORY.exists() else "nothing"
    return plain_steps(f"@sleep 0.3\n@print {first}+{asked['second']}")


def command_steps(command: str) -> Iterator[Any]:
    """Run a command, after a question where nobody has lifted that."""
    if not LIFTED and "--print" in sys.argv:
        yield sample_agent.Say("Nobody is there who could allow it.")
        return
    if not LIFTED:
        yield sample_agent.Ask("Run it?")
    yield sample_agent.Run(("bash", "-c", command))
    yield sample_agent.Say("ran it")


LIFTED = "--yolo" in sys.argv
sys.argv = [word for word in sys.argv if word != "--yolo"]

if __name__ == "__main__":
    if "--version" in sys.argv:
        print("sample 1.2.3")
        sys.exit()
    if not os.environ.get("LIVE_ENDPOINT", "").startswith("http"):
        sys.exit("LIVE_ENDPOINT is not set")
    sample_agent.job_steps = job_steps
    sys.exit(sample_agent.main())
