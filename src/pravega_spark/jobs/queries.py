"""Runs a streaming query to its end and reports its progress.

Owns: ``Progress``, and the end of a query that fails or is interrupted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from segstore_client.errors import PravegaError

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job since it was started last."""

    rows: int
    batches: int
    seconds: float
    lag_bytes: int | None = None
    """Number of stored bytes that the last batch had not read; None if no stream is read."""

    def share_of(self, total: int, batch_bytes: int, batch_share: float) -> float:
        """Return the part of ``total`` bytes that was read, from 0 to 1.

        ``batch_share`` is the part of the present batch that was read; the batch has at most
        ``batch_bytes``.
        """
        read = min(total, self.batches * batch_bytes)
        if self.batches and self.lag_bytes is not None:
            read = max(0, total - self.lag_bytes)
        return min(1.0, (read + batch_share * min(batch_bytes, total - read)) / total)


Told = Callable[[Progress], None]


def run_query(query: StreamingQuery, told: Told) -> Progress:
    """Wait until a query ends and return its result; ``told`` is called with its progress.

    An interrupt stops the query: its checkpoint lets it continue later.
    """
    began = time.monotonic()
    rows, last_batch, batches = 0, -1, 0
    lag: int | None = None
    try:
        while True:
            ended = not query.isActive
            if ended:
                # This call raises the query's error if the query failed.
                query.awaitTermination()
            for report in query.recentProgress:
                if report.batchId > last_batch:
                    last_batch = report.batchId
                    rows += report.numInputRows
                    batches += 1
                    lag = sum_lags(report.sources)
            progress = Progress(rows, batches, time.monotonic() - began, lag)
            told(progress)
            if ended:
                return progress
            time.sleep(POLL_SECONDS)
    except StreamingQueryException as error:
        raise PravegaError(cause_of(error)) from error
    except KeyboardInterrupt:
        query.stop()
        raise


def sum_lags(sources: Iterable[Any]) -> int | None:
    """Return the number of bytes that were stored but not read by a batch; None without streams.

    ``sources`` are those of a query's progress. They name the offsets of the last batch, and the
    latest ones. A segment that only the latest offsets name counts from its beginning. Segments
    that were created and sealed between the two are not counted.
    """
    lags = []
    for source in sources:
        with suppress(ValueError, TypeError, AttributeError, KeyError):
            end, latest = (
                json.loads(text)["cut"] for text in (source.endOffset, source.latestOffset)
            )
            lags.append(sum(max(0, latest[each] - end.get(each, 0)) for each in latest))
    return sum(lags) if lags else None


def cause_of(error: Exception) -> str:
    """Return the sentence with the reason from the long text of an error of Spark."""
    text = str(error)
    for line in reversed(text.splitlines()):
        # A Python worker's error is the last line of its traceback: "module.Class: sentence".
        name, colon, sentence = line.strip().partition(": ")
        if colon and name.startswith(("pravega_spark.errors.", "segstore_client.errors.")):
            return sentence.strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
