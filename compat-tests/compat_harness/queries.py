"""Streaming queries of Spark, run to their end.

Spark waits ten seconds, which no setting changes, for the Python worker of a query's source to
connect. On a busy machine a worker may be later, and the query fails. Its checkpoint lets it go on,
as an operator would do: these functions start such a query again, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException

WORKER_WAS_LATE = "Python worker failed to connect back"
STARTS_MAX = 4


def run_query_to_its_end(start: Callable[[], Any], seconds_max: float | None = None) -> Any:
    """Start a query that ends by itself, wait for its end, and return it."""
    for starts_left in reversed(range(STARTS_MAX)):
        query = start()
        try:
            ended = query.awaitTermination(seconds_max)
        except StreamingQueryException as error:
            if not starts_left or WORKER_WAS_LATE not in str(error):
                raise
        else:
            assert ended or seconds_max is None, f"the query runs after {seconds_max} s"
            return query
    raise AssertionError("unreachable")
