"""The modules that tasks load, and the division of slices into partitions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, cast

import pytest

from pravega_spark.reading.cuts import Slice
from pravega_spark.source import plan_partitions


@pytest.mark.processes
def test_tasks_that_read_load_no_grpc() -> None:
    code = "import sys, pravega_spark.source; sys.exit('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 0


class View:
    """A driver's view without servers."""

    def address(self, segment_id: int) -> tuple[str, int]:
        return "host", segment_id

    def token(self) -> str:
        return ""

    def plan_scans(self, slices: Sequence[Slice]) -> list[None]:
        return [None] * len(slices)


def lengths(slices: list[Slice], bytes_min: int) -> list[list[int]]:
    view: Any = View()
    partitions = plan_partitions(cast(Any, view), slices, bytes_min=bytes_min)
    pieces = [part.piece for each in partitions for part in each.parts]
    assert pieces == slices
    assert all(
        part.address == ("host", part.piece.segment_id) for p in partitions for part in p.parts
    )
    return [[part.piece.end - part.piece.start for part in each.parts] for each in partitions]


def test_short_slices_share_a_task() -> None:
    slices = [Slice(n, 5, 5 + length) for n, length in enumerate([40, 70, 200, 10, 20, 30])]
    assert lengths(slices, 100) == [[40, 70], [200], [10, 20, 30]]
    assert lengths(slices, 0) == [[40], [70], [200], [10], [20], [30]]
    assert lengths([], 100) == []
