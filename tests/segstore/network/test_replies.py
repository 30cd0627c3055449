"""The reply to each kind of error, and the frame around data that are sent without a copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from segstore.errors import (
    BadOffsetError,
    BytesLostError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    StorageError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedRequestError,
    WrongHostError,
)
from segstore.network.replies import Asked, around_data, refusal
from support.models.memory_store import memory_store

SEGMENT = "scope/stream/0.#epoch.0"


@pytest.mark.parametrize(
    "error",
    [
        NoSuchSegmentError("another name"),
        SegmentExistsError("another name"),
        SegmentSealedError("another name"),
        SegmentTruncatedError("another name", start_offset=5),
        BadOffsetError("another name", expected=3, actual=5),
        WrongHostError("another name"),
        ContainerOfflineError("stopped"),
        InvalidRequestError("another name"),
        BytesLostError("another name", 0, 5),
        TableNotEmptyError("another name"),
        TableKeyMissingError("another name"),
        TableKeyVersionError("another name"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_repeats_the_request_id_and_the_segment(error: SegmentStoreError) -> None:
    reply = refusal(error, Asked(7, SEGMENT, "readSegment", 3))
    assert reply is not None
    fields = {name: getattr(reply, name) for name in reply.__struct_fields__}
    assert (fields["request_id"], fields["segment"]) == (7, SEGMENT)
    assert fields.get("offset", 3) == 3


def test_an_unsupported_request_is_refused_by_its_operation() -> None:
    reply = refusal(UnsupportedRequestError(SEGMENT), Asked(7, SEGMENT, "locateOffset"))
    assert reply == wire.OperationUnsupported(7, "locateOffset")


async def test_an_error_without_a_reply_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(name: str) -> None:
        raise StorageError("tier 2 does not answer")

    async with memory_store() as store:
        other, client = store.connect(), store.connect()
        await other.call(wire.HELLO)
        monkeypatch.setattr(store.container, "find_info", fail)
        with capture_logs() as logs:
            await client.send(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
            await client.expect_close()
        [line] = logs
        assert "tier 2 does not answer" in line["reason"]
        assert await other.call(wire.KeepAlive()) == wire.KeepAlive()


@given(st.text(max_size=50), st.binary(max_size=2000), st.booleans(), st.integers(0, 2**60))
def test_what_is_around_the_data_makes_the_same_frame(
    segment: str, data: bytes, at_tail: bool, number: int
) -> None:
    def reply(content: bytes) -> wire.SegmentRead:
        return wire.SegmentRead(segment, number, at_tail, not at_tail, content, number + 1)

    head, tail = around_data(reply(b""), len(data))
    assert head + data + tail == encode(reply(data))
