"""Reports about a query: its lag, and one sentence about what ended it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from pravega_spark.jobs.queries import Progress, cause_of, sum_lags


@dataclass
class Source:
    """A source of a query's progress, as Spark reports it."""

    endOffset: Any
    latestOffset: Any


def offset(**cut: int) -> str:
    named = {name.removeprefix("s"): position for name, position in cut.items()}
    return json.dumps({"stream": "s/t", "cut": named})


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([], None),
        ([Source("17", "20")], None),
        ([Source(None, None)], None),
        ([Source(offset(s0=10, s1=5), offset(s0=30, s1=5))], 20),
        # Segment 0 was split, and its successors are not begun.
        ([Source(offset(s0=10), offset(s1=7, s2=8))], 15),
        ([Source(offset(s0=10), offset(s0=11)), Source(offset(s0=1), offset(s0=3))], 3),
        ([Source("17", "20"), Source(offset(s0=1), offset(s0=3))], 2),
    ],
)
def test_the_lag_is_what_is_stored_and_not_read(sources: list[Source], lag: int | None) -> None:
    assert sum_lags(sources) == lag


def test_the_sentence_is_found_in_a_page_of_java() -> None:
    page = "\n".join(
        [
            "[STREAM_FAILED] Query terminated with exception: Writing job failed.",
            "Caused by: org.apache.spark.SparkException: Traceback (most recent call last):",
            '  File "source.py", line 1, in read',
            "    raise DataLossError(",
            "segstore_client.errors.NotFoundError: stream s/t does not exist",
            "",
            "\tat org.apache.spark.Dispatcher.run(Dispatcher.scala:1)",
        ]
    )
    assert cause_of(RuntimeError(page)) == "stream s/t does not exist"
    ours = page.replace("segstore_client", "pravega_spark").replace("NotFoundError", "OptionError")
    assert cause_of(RuntimeError(ours)) == "stream s/t does not exist"
    assert cause_of(RuntimeError("no such column\nat x")) == "no such column"


@pytest.mark.parametrize(
    ("progress", "batch_bytes", "batch_share", "share"),
    [
        # The first of several batches, half done; its lag is not known yet.
        (Progress(0, 0, 1.0), 20, 0.5, 0.1),
        (Progress(0, 0, 1.0), 100, 0.5, 0.5),
        (Progress(9, 2, 1.0), 20, 0.0, 0.4),
        (Progress(9, 2, 1.0, lag_bytes=50), 20, 0.5, 0.6),
        (Progress(9, 1, 1.0, lag_bytes=0), 100, 1.0, 1.0),
        # More was written meanwhile than there was at the start.
        (Progress(9, 1, 1.0, lag_bytes=500), 100, 0.0, 0.0),
    ],
)
def test_the_share_that_is_read_counts_the_present_batch(
    progress: Progress, batch_bytes: int, batch_share: float, share: float
) -> None:
    assert progress.share_of(100, batch_bytes, batch_share) == pytest.approx(share)
