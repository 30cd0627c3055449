"""Errors as replies.

Owns: the one table that turns an error of the segment store into what the peer is told, and the
frame of a reply whose data stay where they are.

Invariants:
1. A reply carries the request's id and the segment name that the peer knows the request by; the
   ``offset`` of a read's refusal is the offset that was asked for.
2. An error without a reply in the table closes the connection: the client connects again and asks
   again, which is right for everything that passes.
3. Stack traces never leave the process.
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

UNSPECIFIED: Final = -1
ILLEGAL_ARGUMENT: Final = 0
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
    """Return the bytes before and after ``length`` bytes of data in the frame of a reply, which is
    given without data."""
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


def _bad_offset(asked: Asked, error: BadOffsetError) -> wire.Reply:
    # The protocol has no reply of its own: the start offset carries the length that would do.
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
    # The original replies so too: the client looks again where the segment is, and others on the
    # connection are not disturbed. The container may be back by then, or elsewhere.
    ContainerOfflineError: lambda asked, _: wire.WrongHost(asked.request_id, asked.segment, ""),
    UnsupportedRequestError: lambda asked, _: wire.OperationUnsupported(
        asked.request_id, asked.operation
    ),
    InvalidRequestError: lambda asked, error: wire.ErrorMessage(
        asked.request_id, asked.segment, str(error), ILLEGAL_ARGUMENT
    ),
    # The connection stays open, so that others that share it are not disturbed. Clients try again a
    # few times, waiting longer each time, and tell their reader.
    ChunkDamagedError: lambda asked, error: wire.ErrorMessage(
        asked.request_id, asked.segment, str(error), UNSPECIFIED
    ),
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
