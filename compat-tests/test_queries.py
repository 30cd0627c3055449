"""Queries whose Python worker was late are started again, and no others."""

from __future__ import annotations

import pytest
from compat_harness.queries import STARTS_MAX, WORKER_WAS_LATE, run_query_to_its_end
from pyspark.errors import StreamingQueryException

pytestmark = pytest.mark.compat


class Query:
    """A query that has failed, or ends within its time, or not."""

    def __init__(self, failure: str | None = None, *, ends: bool = True) -> None:
        self._failure = failure
        self._ends = ends

    def awaitTermination(self, seconds_max: float | None) -> bool | None:
        if self._failure is not None:
            raise StreamingQueryException(self._failure)
        return None if seconds_max is None else self._ends


def test_a_query_whose_worker_was_late_is_started_again() -> None:
    queries = [Query(f"[STREAM_FAILED] {WORKER_WAS_LATE}."), Query()]
    assert run_query_to_its_end(lambda: queries.pop(0), 1) is not None
    assert not queries


def test_a_query_whose_workers_are_always_late_fails() -> None:
    queries = [Query(WORKER_WAS_LATE)] * STARTS_MAX
    with pytest.raises(StreamingQueryException, match=WORKER_WAS_LATE):
        run_query_to_its_end(queries.pop, 1)
    assert not queries


def test_a_query_that_fails_otherwise_is_not_started_again() -> None:
    queries = [Query(), Query("a lost event")]
    with pytest.raises(StreamingQueryException, match="a lost event"):
        run_query_to_its_end(queries.pop, 1)
    assert len(queries) == 1


def test_a_query_that_does_not_end_is_told() -> None:
    with pytest.raises(AssertionError, match="runs after 1 s"):
        run_query_to_its_end(lambda: Query(ends=False), 1)
