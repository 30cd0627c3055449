"""Fixtures for tests of whole containers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from segstore.testing.local_tiers import LocalTiers


@pytest.fixture
def still_clock() -> trio.testing.MockClock:
    """A clock that stands still: on any machine, only the test's own actions happen."""
    return trio.testing.MockClock()


@pytest.fixture
def fast_clock() -> trio.testing.MockClock:
    """A clock a hundred times as fast, for containers on real tiers: it does not jump while
    threads work."""
    return trio.testing.MockClock(rate=100)


@pytest.fixture
def tiers(tmp_path: Path) -> LocalTiers:
    """A journal and a file system chunk storage."""
    return LocalTiers(tmp_path)
