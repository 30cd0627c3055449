"""Converts errors to replies.

Owns: the one table that has the reply for each kind of error, and the frame of a reply whose data
are sent without a copy.

Invariants:
1. When a request fails, its refusal has the id of the request and the segment that it names. Held
   by ``test_a_refusal_repeats_the_request_id_and_the_segment``. The refusal of a read also has the
   offset of the request. Held by ``test_read_refusals_carry_the_offset_that_was_asked_for``.
2. When an error has no reply in the table, the connection closes: the client connects again and
   repeats the request, which helps if the cause has passed by then. Held by
   ``test_an_error_without_a_reply_closes_the_connection``.
3. When a defect raises an exception, the peer gets neither its text nor its stack trace: the
   connection closes without a reply. Held by
   ``test_a_defect_in_a_handler_costs_only_its_connection``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from segstore.errors import (
    BadOffsetError,
    BytesLostError,
    ChunkDamagedError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedRequestError,
    WrongHostError,
)

_INT32: Final = struct.Struct(">i")
_REQUEST_ID_BYTES: Final = 8

NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that its refusal repeats."""

    request_id: int
    segment: str
    operation: str
    offset: int = NO_OFFSET


def refusal(error: SegmentStoreError, asked: Asked) -> wire.Reply | None:
    """Return the reply to a request that failed; None means to close the connection."""
    make = _REPLIES.get(type(error))
    return None if make is None else make(asked, error)


def around_data(reply: wire.SegmentRead, length: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the data in the frame of a reply. ``reply`` has no data;
    ``length`` is the number of bytes that the data have."""
    frame = bytearray(encode(reply))
    end = len(frame) - _REQUEST_ID_BYTES
    _INT32.pack_into(frame, _INT32.size, len(frame) - 2 * _INT32.size + length)
    _INT32.pack_into(frame, end - _INT32.size, length)
    return bytes(frame[:end]), bytes(frame[end:])


def operation_name(request: wire.Request) -> str:
    """Return the request's name as replies spell it."""
    name = type(request).__name__
    return name[0].lower() + name[1:]


def _truncated(asked: Asked, error: SegmentTruncatedError) -> wire.Reply:
    return wire.SegmentIsTruncated(
        asked.request_id, asked.segment, error.start_offset, "", asked.offset
    )


def _damaged(asked: Asked, error: ChunkDamagedError) -> wire.Reply:
    return wire.ErrorMessage(asked.request_id, asked.segment, str(error), wire.UNSPECIFIED)


def _bad_offset(asked: Asked, error: BadOffsetError) -> wire.Reply:
    # The protocol has no own reply for this error: the start offset has the length that the request
    # should have expected.
    return wire.SegmentIsTruncated(asked.request_id, asked.segment, error.actual, "", asked.offset)


_REPLIES: Final[dict[type[SegmentStoreError], Callable[[Asked, Any], wire.Reply]]] = {
    NoSuchSegmentError: lambda asked, _: wire.NoSuchSegment(
        asked.request_id, asked.segment, "", asked.offset
    ),
    SegmentExistsError: lambda asked, _: wire.SegmentAlreadyExists(asked.request_id, asked.segment),
    SegmentSealedError: lambda asked, _: wire.SegmentIsSealed(
        asked.request_id, asked.segment, "", asked.offset
    ),
    SegmentTruncatedError: _truncated,
    BadOffsetError: _bad_offset,
    WrongHostError: lambda asked, _: wire.WrongHost(asked.request_id, asked.segment, ""),
    # As the original does. The client asks again where the segment is, because the container may be
    # back or elsewhere by then, and other clients of the connection continue.
    ContainerOfflineError: lambda asked, _: wire.WrongHost(asked.request_id, asked.segment, ""),
    UnsupportedRequestError: lambda asked, _: wire.OperationUnsupported(
        asked.request_id, asked.operation
    ),
    InvalidRequestError: lambda asked, error: wire.ErrorMessage(
        asked.request_id, asked.segment, str(error), wire.ILLEGAL_ARGUMENT
    ),
    # The connection stays open for the other clients that share it. Clients try again a few times
    # with growing pauses, and then report the error to their reader.
    ChunkDamagedError: _damaged,
    BytesLostError: _damaged,
    TableNotEmptyError: lambda asked, _: wire.TableSegmentNotEmpty(
        asked.request_id, asked.segment, ""
    ),
    TableKeyMissingError: lambda asked, _: wire.TableKeyDoesNotExist(
        asked.request_id, asked.segment, ""
    ),
    TableKeyVersionError: lambda asked, _: wire.TableKeyBadVersion(
        asked.request_id, asked.segment, ""
    ),
}
