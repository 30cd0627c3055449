"""Encodes requests to bookies and decodes their replies, in version 2 of the protocol.

Owns: the layout of all messages. All numbers are big endian.

    frame   = uint32 length of the packet | packet
    packet  = int32 version << 24 | operation << 16 | flags, then
      add      masterKey[20] | entry          (entry_format.py; it begins with the ids)
      read     int64 ledger | int64 entry | masterKey[20] if fencing
      reply    int32 code | int64 ledger | int64 entry | the entry, when a read was successful

A reply has no request number: it belongs to the oldest request for its operation, ledger and entry.
A connection uses one version of the protocol: a bookie expects version 3 until a frame cannot be
parsed as such.

Invariants:
1. When a peer sends a frame longer than ``FRAME_BYTES_MAX``, or other bytes that the protocol does
   not allow, decoding raises ``BookieProtocolError``; the decoder must not be used again. Held by
   ``test_other_bytes_are_refused``.
2. When replies arrive in pieces of any length, all of them are decoded. Held by
   ``test_replies_are_found_however_their_bytes_arrive``.
3. When a reply has an unknown code, it does not count as a success. Held by
   ``test_a_code_that_is_not_known_is_no_success``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from bookkeeper_client.errors import BookieProtocolError

Buffer = bytes | bytearray | memoryview

VERSION = 2
FRAME_BYTES_MAX = 5 * 1024 * 1024
"""Maximum length of a frame, in bytes. It is the default of a bookie's ``nettyMaxFrameSizeBytes``;
a bookie closes connections that send longer frames."""

LAST_ENTRY = -1
"""Entry id in a read that requests the last entry that the bookie has of the ledger."""

MASTER_KEY_BYTES = 20
_LENGTH = struct.Struct(">I")
_ADD_HEAD = struct.Struct(">Ii20s")
_READ = struct.Struct(">Iiqq")
_FENCING_READ = struct.Struct(">Iiqq20s")
_REPLY_HEAD = struct.Struct(">iiqq")


class Operation(IntEnum):
    """Operations that a message requests."""

    ADD = 1
    READ = 2


class Flag(IntFlag):
    """Flags of a request."""

    FENCING = 1
    """On a read: refuse later adds, except those of a recovery."""
    RECOVERY = 2
    """On an add: accept it although the ledger is fenced."""
    HIGH_PRIORITY = 4


class Code(IntEnum):
    """Outcome of a request, as the bookie reports it."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106


@dataclass(frozen=True, slots=True)
class Reply:
    """A bookie's answer. ``code`` is None for a number that no known release sends."""

    operation: Operation
    code: Code | None
    ledger_id: int
    entry_id: int
    """The entry id of the request, which may be ``LAST_ENTRY``."""
    entry: bytes = b""


def encode_add(
    master_key: bytes, entry: Sequence[Buffer], *, is_recovery: bool = False
) -> list[Buffer]:
    """Return a request to add an entry, as buffers that are not copied. Raises ``ValueError`` if it
    is too long."""
    length = 4 + MASTER_KEY_BYTES + sum(map(len, entry))
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} can be sent")
    flags = Flag.RECOVERY | Flag.HIGH_PRIORITY if is_recovery else 0
    return [_ADD_HEAD.pack(length, _packet_head(Operation.ADD, flags), master_key), *entry]


def encode_read(ledger_id: int, entry_id: int) -> bytes:
    """Return a request to read an entry; ``LAST_ENTRY`` asks for the last one stored."""
    return _READ.pack(_READ.size - 4, _packet_head(Operation.READ, 0), ledger_id, entry_id)


def encode_fencing_read(ledger_id: int, entry_id: int, master_key: bytes) -> bytes:
    """Return a request to fence a ledger and then read an entry."""
    head = _packet_head(Operation.READ, Flag.FENCING | Flag.HIGH_PRIORITY)
    return _FENCING_READ.pack(_FENCING_READ.size - 4, head, ledger_id, entry_id, master_key)


def _packet_head(operation: Operation, flags: int) -> int:
    return VERSION << 24 | operation << 16 | flags


class ReplyDecoder:
    """Splits the stream of bytes from a bookie into replies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> list[Reply]:
        """Decode the next bytes of the stream, and return the replies that are complete now."""
        buffer = self._buffer
        buffer += data
        replies = []
        position = 0
        while len(buffer) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, position)
            if not _REPLY_HEAD.size <= length <= FRAME_BYTES_MAX:
                raise BookieProtocolError(f"a reply of {length} bytes")
            end = position + _LENGTH.size + length
            if end > len(buffer):
                break
            replies.append(_decode_reply(buffer, position + _LENGTH.size, end))
            position = end
        del buffer[:position]
        return replies


def _decode_reply(buffer: bytearray, position: int, end: int) -> Reply:
    head, number, ledger_id, entry_id = _REPLY_HEAD.unpack_from(buffer, position)
    if head >> 24 & 0xFF != VERSION:
        raise BookieProtocolError(f"a reply of version {head >> 24 & 0xFF}")
    try:
        operation = Operation(head >> 16 & 0xFF)
    except ValueError:
        raise BookieProtocolError(f"a reply to operation {head >> 16 & 0xFF}") from None
    try:
        code = Code(number)
    except ValueError:
        code = None
    entry = bytes(memoryview(buffer)[position + _REPLY_HEAD.size : end])
    return Reply(operation, code, ledger_id, entry_id, entry)
