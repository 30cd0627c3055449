"""The demonstration of scaling, for seconds: a store, a load, and the picture of it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.demo_scaling import measure, picture_of, running_store

from segstore.testing.ports import free_ports

pytestmark = pytest.mark.proof


def test_a_load_is_followed_and_drawn(tmp_path: Path) -> None:
    with running_store(tmp_path, *free_ports(2)) as address:
        seconds = list(measure(address, ((1.5, 100), (1.5, 20))))
    assert len(seconds) >= 2
    assert all(second.segments == 1 for second in seconds)
    assert all(0 < second.p50_ms <= second.p95_ms for second in seconds)
    assert sum(second.events for second in seconds) > 50
    ElementTree.fromstring(picture_of(seconds))
