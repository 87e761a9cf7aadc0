"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from world import World

# How long an example takes says more about the machine than about the code.
settings.register_profile("repository", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repository")
# What a caller ignores (nohup, a job in the background) would be ignored by all that is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture
def world() -> Iterator[World]:
    """A hermetic world; nothing of it is left afterwards."""
    made = World()
    try:
        yield made
    finally:
        made.close()


def pytest_collection(session: pytest.Session) -> None:
    """Each worker compiles its share of the test modules before it collects all of them.

    Else all workers would compile all of them at the same moment, which takes five times as long
    as the rest of their start.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and session.config.args == ["tests"]:
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        modules = sorted(Path(__file__).parent.glob("test_*.py"), key=lambda p: -p.stat().st_size)
        for path in modules[int(worker.removeprefix("gw")) :: count]:
            # The collection tells better of a module that cannot be imported.
            with contextlib.suppress(Exception):
                importlib.import_module(path.stem)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: to look for garbage in it takes time for nothing."""
    gc.freeze()
    # Few cycles are made by tests, and none of them is large.
    gc.set_threshold(20_000)
