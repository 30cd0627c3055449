"""Documents of streams, and the messages that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.errors import InvalidRequestError
from pravega_controller.http.documents import (
    DAY_MS,
    MEBIBYTE,
    MINUTE_MS,
    scale_documents,
    stream_document,
    stream_message,
)
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.streams import Segment
from pravega_wire import controller_pb2 as pb
from pravega_wire import names


def retention(kind: Any, least: int) -> pb.RetentionPolicy:
    return pb.RetentionPolicy(retentionType=kind, retentionParam=least)


FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}
counts = st.integers(0, 2**31 - 1)
scalings = st.one_of(
    counts.map(
        lambda least: pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=least
        )
    ),
    st.builds(
        lambda kind, rate, factor, least: pb.ScalingPolicy(
            scaleType=kind, targetRate=rate, scaleFactor=factor, minNumSegments=least
        ),
        st.sampled_from([1, 2]),
        counts,
        counts,
        counts,
    ),
)
retentions = st.one_of(
    st.none(),
    st.integers(0, 10**9).map(
        lambda n: pb.RetentionPolicy(retentionType=1, retentionParam=n * MINUTE_MS)
    ),
    counts.map(lambda n: pb.RetentionPolicy(retentionType=2, retentionParam=n * MEBIBYTE)),
)


@given(scalings, retentions, st.lists(st.text(max_size=5), max_size=3), counts)
def test_a_stream_and_its_document_are_one(
    scaling: pb.ScalingPolicy, kept: pb.RetentionPolicy | None, tags: list[str], size: int
) -> None:
    message = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope="s", stream="t"),
        scalingPolicy=scaling,
        tags=pb.Tags(tag=tags),
        rolloverSizeBytes=size,
    )
    if kept is not None:
        message.retentionPolicy.CopyFrom(kept)
    document = stream_document(message)
    sent = {**document, "streamTags": document["tags"]}
    assert stream_message("s", "t", sent) == message


def test_days_are_the_value_and_other_times_their_parts() -> None:
    times = {
        2 * DAY_MS: (2, {"days": 2, "hours": 0, "minutes": 0}),
        DAY_MS + 7_380_000: (0, {"days": 1, "hours": 2, "minutes": 3}),
    }
    for least, (value, parts) in times.items():
        message = pb.StreamConfig(
            scalingPolicy=pb.ScalingPolicy(minNumSegments=1), retentionPolicy=retention(1, least)
        )
        found = stream_document(message)["retentionPolicy"]
        assert found == {"type": "LIMITED_DAYS", "value": value, "timeBasedRetention": parts}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "scalingPolicy"),
        ({"scalingPolicy": 1}, "scalingPolicy"),
        ({"scalingPolicy": {"type": "X"}}, "type"),
        ({"scalingPolicy": {"type": ["X"]}}, "type"),
        ({"scalingPolicy": {**FIXED, "minSegments": "1"}}, "minSegments"),
        ({"scalingPolicy": {**FIXED, "minSegments": True}}, "minSegments"),
        ({"scalingPolicy": {**FIXED, "minSegments": 2**31}}, "minSegments"),
        ({"scalingPolicy": {**FIXED, "minSegments": -1}}, "minSegments"),
        ({"scalingPolicy": FIXED, "streamTags": "a"}, "streamTags"),
        ({"scalingPolicy": FIXED, "streamTags": [1]}, "streamTags"),
        ({"scalingPolicy": FIXED, "retentionPolicy": {"type": "NONE"}}, "type"),
        ({"scalingPolicy": FIXED, "retentionPolicy": []}, "retentionPolicy"),
        ({"scalingPolicy": FIXED, "rolloverSizeBytes": 1.5}, "rolloverSizeBytes"),
    ],
)
def test_what_is_wrong_in_a_document_is_named(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} has to be"):
        stream_message("s", "t", document)


def segment(number: int, epoch: int, low: float, high: float) -> Segment:
    return Segment(names.segment_id(number, epoch), low, high)


FIRST = segment(0, 0, 0.0, 1.0)
HALVES = (segment(1, 1, 0.0, 0.5), segment(2, 1, 0.5, 1.0))
WHOLE = segment(3, 2, 0.0, 1.0)
EPOCHS = (
    Epoch(0, 0, 100, (FIRST,)),
    Epoch(1, 1, 200, HALVES, (FIRST,)),
    Epoch(2, 2, 300, (WHOLE,), HALVES),
)
SEGMENTS = ((FIRST,), HALVES, (WHOLE,))


@pytest.mark.parametrize(
    ("since", "until", "times"),
    [
        (0, 1000, [100, 200, 300]),
        (150, 250, [100, 200]),
        (200, 200, [100, 200]),
        (250, 260, [200]),
        (0, 99, []),
        (1000, 2000, [300]),
    ],
)
def test_scales_are_those_of_a_time_and_the_one_before(
    since: int, until: int, times: list[int]
) -> None:
    found = scale_documents(EPOCHS, SEGMENTS, since, until)
    assert [each["timestamp"] for each in found] == times


def test_a_scale_counts_its_splits_and_merges() -> None:
    found = scale_documents(EPOCHS, SEGMENTS, 0, 1000)
    assert [(each["splits"], each["merges"]) for each in found] == [(0, 0), (1, 0), (0, 1)]
    assert found[1]["segments"][1] == {
        "number": 2,
        "epoch": 1,
        "start": 200,
        "keyStart": 0.5,
        "keyEnd": 1.0,
    }
