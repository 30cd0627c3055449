"""Fixtures: metrics that exist for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pravega_metrics.metrics import METRICS


@pytest.fixture
def declared() -> Iterator[None]:
    """Forget the metrics that the test declares."""
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)
