"""The speed of the machine, and pytest's time limits scaled by it.

``measure_factor`` compares a fixed piece of work on one core, and synced writes, with what they
take on a quiet machine with two cores of a cloud. The factor is between 1 and ``FACTOR_MAX``: a
faster machine has the same deadlines, and a hang must end some day.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable

import pytest
from foreign_servers.deadlines import FACTOR, scale

WORK_BYTES = 32 << 20
WORK_SECONDS = 0.06
SYNCS = 20
SYNC_SECONDS = 0.02
FACTOR_MAX = 8.0
TRIES = 3
"""The median of so many measurements counts: a moment's disturbance is not the machine's speed."""


def measure_factor() -> float:
    """Return by what the deadlines of tests are multiplied on this machine."""
    work = measure(hash_bytes) / WORK_SECONDS
    syncs = measure(sync_writes) / SYNC_SECONDS
    return min(max(1.0, work, syncs), FACTOR_MAX)


def measure(run: Callable[[], None]) -> float:
    """Return the median of the seconds that a piece of work takes."""
    taken = []
    for _ in range(TRIES):
        began = time.monotonic()
        run()
        taken.append(time.monotonic() - began)
    return sorted(taken)[TRIES // 2]


def hash_bytes() -> None:
    """Use one core for a while."""
    hashlib.sha256(bytes(WORK_BYTES))


def sync_writes() -> None:
    """Write and sync a small file again and again."""
    with tempfile.TemporaryFile() as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scale the time limit of each test, from its marker or the configuration."""
    if FACTOR == 1:
        return
    usual = float(config.getini("timeout") or 0)
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker is not None and marker.args else usual
        if seconds:
            item.add_marker(pytest.mark.timeout(scale(seconds)), append=False)
