"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A hermetic world; nothing of it is left afterwards."""
    made = World()
    try:
        yield made
    finally:
        made.close()
