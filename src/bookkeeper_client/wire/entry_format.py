"""Encodes and decodes entries as bookies store them: ids, last confirmed entry, digest, payload.

Owns: that format, the digests, and the two keys that are derived from a password. Big endian:

    entry = int64 ledger | int64 entry | int64 last add confirmed | int64 length | digest | payload

``last add confirmed`` is the id of the last entry that was confirmed when this one was sent, -1 if
there was none. ``length`` is the total length of the ledger's payloads up to this one. The digest
covers the 32 bytes before it and the payload. All bookies store the same bytes of an entry.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from _fast.crc import crc32c
from bookkeeper_client.errors import DigestMismatchError
from bookkeeper_client.wire.protocol import LAST_ENTRY, Buffer

_HEAD = struct.Struct(">qqqq")
_INT32 = struct.Struct(">I")
_INT64 = struct.Struct(">Q")


class DigestType(IntEnum):
    """The kinds of digests, numbered as in a ledger's metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4
    """No digest: damage is not detected."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry with a correct digest."""

    entry_id: int
    last_confirmed: int
    length: int
    """Bytes of all payloads of the ledger up to and including this one."""
    payload: bytes


def make_master_key(password: bytes) -> bytes:
    """Return the key with which a client proves to bookies that it knows the ledger's password."""
    return hashlib.sha1(b"ledger" + password).digest()


class EntryFormat:
    """Encodes and decodes the entries of one ledger."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes) -> None:
        self.ledger_id = ledger_id
        self._digest = _DIGESTS[digest_type](password)
        self._body_offset = _HEAD.size + len(self._digest(b"", ()))

    def encode(
        self, entry_id: int, *, last_confirmed: int, length: int, payload: Sequence[Buffer]
    ) -> list[Buffer]:
        """Return the encoded entry as buffers; the payload is not copied."""
        head = _HEAD.pack(self.ledger_id, entry_id, last_confirmed, length)
        return [head + self._digest(head, payload), *payload]

    def decode(self, data: Buffer, entry_id: int) -> Entry:
        """Return the decoded entry. Raises ``DigestMismatchError`` if it is damaged or has another
        id.

        With ``LAST_ENTRY`` any entry of the ledger is accepted.
        """
        offset = self._body_offset
        if len(data) < offset:
            raise DigestMismatchError(f"an entry of {len(data)} bytes")
        ledger_id, found_id, last_confirmed, length = _HEAD.unpack_from(data)
        body = memoryview(data)
        if body[_HEAD.size : offset] != self._digest(body[: _HEAD.size], (body[offset:],)):
            raise DigestMismatchError(f"entry {entry_id}: the digest does not fit")
        if ledger_id != self.ledger_id or entry_id not in (LAST_ENTRY, found_id):
            raise DigestMismatchError(
                f"entry {found_id} of ledger {ledger_id} instead of {entry_id} of {self.ledger_id}"
            )
        return Entry(found_id, last_confirmed, length, bytes(body[offset:]))


_Digest = Callable[[Buffer, Sequence[Buffer]], bytes]


def _make_crc32c(password: bytes) -> _Digest:
    def digest(head: Buffer, payload: Sequence[Buffer]) -> bytes:
        value = crc32c(head)
        for part in payload:
            value = crc32c(part, value)
        return _INT32.pack(value)

    return digest


def _make_crc32(password: bytes) -> _Digest:
    def digest(head: Buffer, payload: Sequence[Buffer]) -> bytes:
        value = zlib.crc32(head)
        for part in payload:
            value = zlib.crc32(part, value)
        return _INT64.pack(value)

    return digest


def _make_hmac(password: bytes) -> _Digest:
    key = hashlib.sha1(b"mac" + password).digest()
    fresh = hmac.new(key, digestmod="sha1")

    def digest(head: Buffer, payload: Sequence[Buffer]) -> bytes:
        code = fresh.copy()
        code.update(head)
        for part in payload:
            code.update(part)
        return code.digest()

    return digest


def _make_dummy(password: bytes) -> _Digest:
    return lambda head, payload: b""


_DIGESTS: dict[DigestType, Callable[[bytes], _Digest]] = {
    DigestType.CRC32: _make_crc32,
    DigestType.HMAC: _make_hmac,
    DigestType.CRC32C: _make_crc32c,
    DigestType.DUMMY: _make_dummy,
}
