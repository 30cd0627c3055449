"""The simulation is not installed: its package lies beside these tests."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SECONDS_MAX = 600
"""Time limit of a test. One that looks for a planted fault runs up to some hundred seeds. They take
20 s on two quiet cores, and several times that where other programs use them."""

if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder their time limit; a seed that fails is no chance."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX), append=False)
            item.add_marker(pytest.mark.no_second_try)
