"""Tests of the benchmarks.

Where several processes share the tests, one of them runs all of these: they build the same Java
programs, and measure.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("benchmarks"))
            item.add_marker(pytest.mark.processes)


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """Fail the test that left a socket or file open, rather than the one that runs later."""
    yield
    gc.collect()
