"""Requests for scaling and watermarks, beside the bytes that the official library makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.scale_events import (
    AutoScaleEvent,
    ScaleDirection,
    decode_auto_scale,
    encode_auto_scale,
)
from pravega_wire.versioned import VersionedReader, write_compact_int
from pravega_wire.watermarks import (
    SegmentWithRange,
    Watermark,
    decode_watermark,
    encode_watermark,
)

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "compat-tests" / "golden" / "records.json").read_text("ascii")
)
int64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("case", GOLDEN["auto_scale_events"])
def test_requests_for_scaling_have_the_official_bytes(case: dict[str, Any]) -> None:
    fields = {name: value for name, value in case.items() if name != "bytes"}
    event = AutoScaleEvent(**{**fields, "direction": ScaleDirection(case["direction"])})
    assert encode_auto_scale(event).hex() == case["bytes"]
    assert decode_auto_scale(bytes.fromhex(case["bytes"])) == event


@pytest.mark.parametrize("case", GOLDEN["watermarks"], ids=lambda case: len(case["cut"]))
def test_watermarks_have_the_official_bytes(case: dict[str, Any]) -> None:
    cut = {SegmentWithRange(s, low, high): offset for s, low, high, offset in case["cut"]}
    watermark = Watermark(case["lower"], case["upper"], cut)
    assert encode_watermark(watermark).hex() == case["bytes"]
    assert decode_watermark(bytes.fromhex(case["bytes"])) == watermark


@given(
    st.builds(
        AutoScaleEvent,
        st.text("ab.-", min_size=1),
        st.text("_xy", min_size=1),
        int64,
        st.sampled_from(ScaleDirection),
        int64,
        st.integers(0, 2**30 - 2),
        st.booleans(),
        int64,
    )
)
def test_what_is_asked_arrives(event: AutoScaleEvent) -> None:
    assert decode_auto_scale(encode_auto_scale(event)) == event


@given(st.integers(0, 2**30 - 2))
def test_compact_numbers_read_back(value: int) -> None:
    assert VersionedReader(write_compact_int(value)).read_compact_int() == value


@pytest.mark.parametrize("value", [-1, 2**30 - 1])
def test_other_numbers_have_no_compact_form(value: int) -> None:
    with pytest.raises(ValueError, match="no compact form"):
        write_compact_int(value)


@given(st.data())
def test_damaged_bytes_are_refused_or_mean_something(data: st.DataObject) -> None:
    """Whatever the bytes are, no other error is raised."""
    case = data.draw(st.sampled_from(GOLDEN["auto_scale_events"] + GOLDEN["watermarks"]))
    written = bytearray.fromhex(case["bytes"])
    written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(written[: data.draw(st.integers(0, len(written)))])
    for decode in (decode_auto_scale, decode_watermark):
        try:
            decode(damaged)
        except RemoteProtocolError:
            continue


def test_other_events_between_controllers_are_passed_over() -> None:
    assert decode_auto_scale(bytes([0, 5, 0, 1, 0, 0, 0, 0, 1, 7])) is None


def test_a_later_revision_is_skipped() -> None:
    event = AutoScaleEvent("s", "t", 1, ScaleDirection.UP, 5)
    written = bytearray(encode_auto_scale(event))
    written[3] = 2
    assert decode_auto_scale(bytes(written) + bytes([1, 0, 0, 0, 2, 9, 9])) == event
