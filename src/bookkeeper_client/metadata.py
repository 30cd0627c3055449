"""Encodes, decodes and changes a ledger's metadata in ZooKeeper.

Owns: ``LedgerMetadata``, its bytes (version 3 is written, 2 and 3 are read), and the names of
ledgers' nodes.

    node = "BookieMetadataFormatVersion" tab version newline, then
      3    the length as a varint, and a LedgerMetadataFormat (data_formats.proto)
      2    the same message in protobuf's text format

Invariants:
1. When metadata contradict themselves (quorums beyond the ensemble, segments that do not ascend or
   have the wrong number of bookies), decoding raises ``MetadataError``. Held by
   ``test_metadata_that_contradict_themselves_are_refused``.
2. When metadata have fields that this client does not know, they are still there after a change.
   Held by ``test_fields_that_are_not_known_survive_a_change``.
3. When a ledger is not closed, the last entry and length in its metadata are ignored. Held by
   ``test_the_end_of_an_open_ledger_means_nothing``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError

from bookkeeper_client.data_formats_pb2 import LedgerMetadataFormat
from bookkeeper_client.errors import MetadataError
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.wire.entry_format import DigestType

_MAGIC = b"BookieMetadataFormatVersion\t"
NO_ENTRY_ID = -1
LEDGER_ID_MAX = 2**63 - 1
_SHORT_LEDGER_ID_MAX = 2**31 - 2


class State(IntEnum):
    """States of a ledger, numbered as in its metadata."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of entries, from ``first_entry_id`` on, and their bookies in the order of the
    bookies' indices."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of a ledger."""

    quorums: Quorums
    state: State
    segments: tuple[Segment, ...]
    digest_type: DigestType | None
    """None in ledgers of very old releases."""
    password: bytes | None
    custom: Mapping[str, bytes]
    creation_token: int | None = None
    last_entry_id: int = NO_ENTRY_ID
    """Last entry of a closed ledger; -1 if it is empty."""
    length: int = 0
    """Total length of all payloads of a closed ledger, in bytes."""
    read_from: bytes = field(default=b"", repr=False, compare=False)
    """The message that this was decoded from, with fields that are unknown here."""

    @property
    def last_segment(self) -> Segment:
        """Return the segment of new entries."""
        return self.segments[-1]

    def segment_of(self, entry_id: int) -> Segment:
        """Return the segment that has the entry."""
        found = self.segments[0]
        for segment in self.segments[1:]:
            if segment.first_entry_id > entry_id:
                break
            found = segment
        return found

    def begin_recovery(self) -> LedgerMetadata:
        """Return these metadata with the state of a recovery, in which the writer may not change
        them."""
        return replace(self, state=State.IN_RECOVERY)

    def close(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Return these metadata with the closed state and this end, which never changes again."""
        return replace(self, state=State.CLOSED, last_entry_id=last_entry_id, length=length)

    def change_bookies(self, first_entry_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """Return these metadata with other bookies for the entries from ``first_entry_id`` on."""
        kept = self.segments
        if kept[-1].first_entry_id == first_entry_id:
            kept = kept[:-1]
        return replace(self, segments=(*kept, Segment(first_entry_id, bookies)))


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """Return the bytes of a ledger's node."""
    message = LedgerMetadataFormat()
    message.ParseFromString(metadata.read_from)
    message.quorumSize = metadata.quorums.write
    message.ensembleSize = metadata.quorums.ensemble
    message.ackQuorumSize = metadata.quorums.ack
    is_closed = metadata.state is State.CLOSED
    message.length = metadata.length if is_closed else 0
    message.lastEntryId = metadata.last_entry_id if is_closed else NO_ENTRY_ID
    # The type stub accepts no number here, but the library does.
    message.state = int(metadata.state)  # type: ignore[assignment]
    del message.segment[:]
    for segment in metadata.segments:
        message.segment.add(firstEntryId=segment.first_entry_id, ensembleMember=segment.bookies)
    if metadata.digest_type is not None:
        message.digestType = int(metadata.digest_type)  # type: ignore[assignment]
    if metadata.password is not None:
        message.password = metadata.password
    del message.customMetadata[:]
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    if metadata.creation_token is not None:
        message.cToken = metadata.creation_token
    try:
        body = message.SerializeToString()
    except EncodeError as error:  # only fields that were read from ZooKeeper can cause it
        raise MetadataError(str(error)) from error
    return _MAGIC + b"3\n" + _encode_varint(len(body)) + body


def decode_metadata(data: bytes) -> LedgerMetadata:
    """Return the metadata in the bytes of a ledger's node, or raise ``MetadataError``."""
    head, newline, body = data.partition(b"\n")
    if not head.startswith(_MAGIC) or not newline:
        raise MetadataError("these are not the metadata of a ledger")
    version = head.removeprefix(_MAGIC)
    message = LedgerMetadataFormat()
    try:
        if version == b"3":
            message.ParseFromString(_cut_delimited(body))
        elif version == b"2":
            text_format.Parse(body.decode(), message)
        else:
            raise MetadataError(f"metadata of version {version!r}; 2 and 3 can be read")
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise MetadataError(f"the metadata are damaged: {error}") from error
    return _check(message)


def _check(message: LedgerMetadataFormat) -> LedgerMetadata:
    if not message.IsInitialized():
        raise MetadataError("the metadata lack fields that each ledger has")
    write = message.quorumSize
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else write
    try:
        quorums = Quorums(message.ensembleSize, write, ack)
    except ValueError as error:
        raise MetadataError(str(error)) from error
    segments = tuple(
        Segment(segment.firstEntryId, tuple(segment.ensembleMember)) for segment in message.segment
    )
    if not segments or any(len(each.bookies) != quorums.ensemble for each in segments):
        raise MetadataError("a segment has not as many bookies as the ensemble")
    if any(len(set(each.bookies)) != quorums.ensemble for each in segments):
        raise MetadataError("a segment has a bookie twice")
    starts = [segment.first_entry_id for segment in segments]
    if starts[0] < 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise MetadataError(f"the segments begin at {starts}")
    state = State(message.state)
    is_closed = state is State.CLOSED
    if is_closed and not (message.HasField("lastEntryId") and message.lastEntryId >= NO_ENTRY_ID):
        raise MetadataError("a closed ledger without an end")
    return LedgerMetadata(
        quorums=quorums,
        state=state,
        segments=segments,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        custom={each.key: each.value for each in message.customMetadata},
        creation_token=message.cToken if message.HasField("cToken") else None,
        last_entry_id=message.lastEntryId if is_closed else NO_ENTRY_ID,
        length=message.length if is_closed else 0,
        read_from=message.SerializeToString(),
    )


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _cut_delimited(body: bytes) -> bytes:
    length = 0
    for position, byte in enumerate(body[:5]):
        length |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            message = body[position + 1 :]
            if len(message) != length:
                raise MetadataError(f"metadata of {length} bytes in {len(message)}")
            return message
    raise MetadataError("the metadata have no length")


def ledger_path(ledger_id: int) -> str:
    """Return the path of a ledger's node relative to the root, in BookKeeper's hierarchical
    layout."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ValueError(f"no ledger has the id {ledger_id}")
    if ledger_id <= _SHORT_LEDGER_ID_MAX:
        digits = f"{ledger_id:010}"
        return f"{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019}"
    return f"{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"
