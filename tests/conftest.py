"""Fixtures for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

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


def pytest_collection_finish() -> None:
    """What was collected stays until the end: to look for garbage in it takes time for nothing."""
    gc.freeze()
