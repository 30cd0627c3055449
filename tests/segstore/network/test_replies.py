"""A reply whose data stay where they are has the bytes of any other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from segstore.network.replies import around_data


@given(st.text(max_size=50), st.binary(max_size=2000), st.booleans(), st.integers(0, 2**60))
def test_what_is_around_the_data_makes_the_same_frame(
    segment: str, data: bytes, at_tail: bool, number: int
) -> None:
    def reply(content: bytes) -> wire.SegmentRead:
        return wire.SegmentRead(segment, number, at_tail, not at_tail, content, number + 1)

    head, tail = around_data(reply(b""), len(data))
    assert head + data + tail == encode(reply(data))
