"""Encodes the request by which a connection to a bookie begins to speak TLS, and decodes its reply.

Owns: the layout of both, which is that of version 3 of the protocol: protobuf in a frame. Within
TLS a connection speaks version 2 (``protocol.py``): the bookie changes to it at the first frame
that it cannot parse.

    frame   = uint32 length of the message | message
    header  = 1: version = 3 | 2: operation = 9 | 3: number of the request = 0
    request = 1: header | 106: nothing
    reply   = 1: header | 2: status, 0 for yes | 106: nothing

Invariants:
1. When a bookie answers with anything but a yes, its answer does not count as one. Held by
   ``test_what_is_no_yes_is_refused``.
"""

from __future__ import annotations

from typing import Final

from bookkeeper_client.errors import BookieProtocolError

_HEADER: Final = b"\x0a\x06\x08\x03\x10\x09\x18\x00"
START_TLS: Final = b"\x00\x00\x00\x0b" + _HEADER + b"\xd2\x06\x00"
"""The request, as a frame."""
REPLY_BYTES_MAX: Final = 1024
"""Maximum length of a reply, in bytes."""
_STATUS_FIELD: Final = 2
_VARINT, _BYTES = 0, 2


def read_status(reply: bytes) -> int:
    """Return the status of a reply without its length. Raises ``BookieProtocolError``."""
    position = 0
    while position < len(reply):
        tag, position = _read_varint(reply, position)
        value, position = _read_varint(reply, position)
        if tag == _STATUS_FIELD << 3 | _VARINT:
            return value
        if tag & 7 == _BYTES:
            position += value
        elif tag & 7 != _VARINT:
            break
    raise BookieProtocolError("a reply to the request for TLS without a status")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number, and the position after it."""
    value = shift = 0
    while position < len(data):
        value |= (data[position] & 0x7F) << shift
        position += 1
        if not data[position - 1] & 0x80:
            return value, position
        shift += 7
    raise BookieProtocolError("a reply to the request for TLS that ends too early")
