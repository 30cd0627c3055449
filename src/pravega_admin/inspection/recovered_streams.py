"""Reads from the controller's records, in tables of the store, which segments streams need.

Owns: reading these records from the content of tables, without a controller. ``segstore recover``
compares the result with the segments that the store has.

Invariants:
1. A stream whose records are missing or damaged is named in the result, and no segments are
   required for it. Held by ``test_a_stream_whose_records_are_not_whole_is_named``.
2. Segments that an unfinished workflow or transaction may create or delete are not required. Held
   by ``test_what_a_workflow_changes_is_not_asked_for``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from pravega_controller.errors import ControllerError
from pravega_controller.metadata.records import (
    GONE,
    Create,
    Delete,
    EpochRecord,
    HeadRecord,
    NameRecord,
    ScopeRecord,
    SnapshotRecord,
    StreamRecord,
    decode,
    encode,
)
from pravega_controller.metadata.scope_records import SCOPES, Scope
from pravega_controller.metadata.streams.names import STREAM_KIND
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.rules.history import Epoch, apply_epochs
from pravega_controller.rules.streams import Segment
from pravega_controller.rules.transactions import TransactionState, numbers_in, segment_name
from pravega_wire import names
from segstore.repair.salvage import (
    BegunCommit,
    OpenTransaction,
    Required,
    RequiredSegment,
    StreamHead,
)

Table = Mapping[bytes, bytes]
Tables = Mapping[str, Table]


@dataclass(slots=True)
class RecordedStreams(Required):
    """The streams in the records, the segments that they need, and the streams with bad records."""

    stream_count: int = 0
    unreadable: list[str] = field(default_factory=list)
    """Sentences about streams whose records are missing or damaged."""


def read_streams(tables: Tables) -> RecordedStreams:
    """Return what the records in the controller's tables say about streams."""
    recorded = RecordedStreams()
    for key, value in tables.get(SCOPES, {}).items():
        try:
            scope = Scope(key.decode(), 0, decode(value, ScopeRecord))
        except (ControllerError, UnicodeDecodeError) as error:
            recorded.unreadable.append(f"the record of scope {key!r} cannot be read: {error}")
            continue
        _read_scope(tables, scope, recorded)
    return recorded


def _read_scope(tables: Tables, scope: Scope, recorded: RecordedStreams) -> None:
    histories = tables.get(scope.histories, {})
    prefix = f"{STREAM_KIND}/".encode()
    for key, value in tables.get(scope.objects, {}).items():
        if not key.startswith(prefix):
            continue
        stream = key[len(prefix) :].decode()
        try:
            stream_id = decode(value, NameRecord).stream_id
            reader = _StreamReader(scope, stream, stream_id, histories)
            if reader.exists():
                recorded.segments += reader.segments()
                recorded.stream_count += 1
                # Clients of internal streams truncate them, and begin where their segments begin.
                if not stream.startswith("_"):
                    recorded.heads.append(reader.head())
        except (ControllerError, KeyError) as error:
            recorded.unreadable.append(
                f"the controller's records of stream {scope.name}/{stream} are not whole ({error}):"
                " delete it, and create it again"
            )
            continue
        _read_transactions(tables, scope.name, stream, recorded)


class _StreamReader:
    """Reads the records of one stream."""

    def __init__(self, scope: Scope, stream: str, stream_id: str, histories: Table) -> None:
        self._scope = scope.name
        self._table = scope.histories
        self._stream = stream
        self._prefix = stream_id.encode()
        self._histories = histories
        value = histories.get(self._key("state"))
        is_there = value is not None and value != GONE
        self._record = decode(value, StreamRecord) if value is not None and is_there else None

    def _key(self, *parts: object) -> bytes:
        return b"/".join([self._prefix, *(str(part).encode() for part in parts)])

    def exists(self) -> bool:
        """Return whether the stream exists and is not being created or deleted."""
        return self._record is not None and not isinstance(self._record.pending, Create | Delete)

    def segments(self) -> Iterator[RequiredSegment]:
        """Yield the segments from the stream's head to the active epoch.

        Raises ``KeyError`` and ``ControllerError`` when a record is missing or damaged.
        """
        record = self._record
        assert record is not None
        head = self._head_record().cut
        first, epochs = self._epochs(record)
        active = {each.segment_id for each in apply_epochs(first, epochs)}
        is_changing = record.pending is not None or record.rolling is not None
        every = {each.segment_id: each for each in first}
        every |= {each.segment_id: each for epoch in epochs for each in epoch.created}
        bounds = [every[identifier] for identifier in head if identifier in every]
        for identifier, segment in every.items():
            if identifier not in head and not _is_behind(segment, bounds):
                continue
            is_sealed = record.is_sealed or identifier not in active
            yield RequiredSegment(
                names.segment_name(self._scope, self._stream, identifier),
                max(0, head.get(identifier, 0)),
                None if is_changing else is_sealed,
            )

    def head(self) -> StreamHead:
        """Return where the stream begins. Raises like ``segments``."""
        record, head = self._record, self._head_record()
        assert record is not None
        cut = head.cut or dict.fromkeys((each.segment_id for each in self._epochs(record)[0]), 0)
        called = {
            names.segment_name(self._scope, self._stream, identifier): identifier
            for identifier in cut
        }

        def move(begins: Mapping[str, int]) -> list[tuple[bytes, bytes]]:
            moved = {called[name]: offset for name, offset in begins.items()}
            revision = record.head_revision + 1
            return [
                (
                    self._key("head"),
                    encode(structs.replace(head, revision=revision, cut=cut | moved)),
                ),
                (self._key("state"), encode(structs.replace(record, head_revision=revision))),
            ]

        offsets = {name: max(0, cut[identifier]) for name, identifier in called.items()}
        return StreamHead(f"{self._scope}/{self._stream}", offsets, self._table, move)

    def _head_record(self) -> HeadRecord:
        """Return the record of the head; one without a cut if the stream was never truncated."""
        assert self._record is not None
        if not self._record.head_revision:
            return HeadRecord(0, {})
        return decode(self._histories[self._key("head")], HeadRecord)

    def _epochs(self, record: StreamRecord) -> tuple[tuple[Segment, ...], list[Epoch]]:
        """Return the segments of the first epoch on record, and the epochs up to the active one."""
        numbers = range(record.first_epoch, record.epoch + 1)
        epochs = [
            decode(self._histories[self._key("epoch", number)], EpochRecord).epoch
            for number in numbers
        ]
        if record.first_epoch == 0:
            return epochs[0].created, epochs[1:]
        snapshot = self._histories[self._key("snapshot", record.first_epoch)]
        return decode(snapshot, SnapshotRecord).segments, epochs[1:]


def _is_behind(segment: Segment, bounds: list[Segment]) -> bool:
    """Return whether a segment comes after those in which the stream begins."""
    return all(bound.epoch < segment.epoch for bound in bounds if bound.overlaps(segment))


def _read_transactions(tables: Tables, scope: str, stream: str, recorded: RecordedStreams) -> None:
    """Add the transactions of a stream that are open, or whose commit was accepted."""
    prefix = f"t/{scope}/{stream}/".encode()
    for name, table in tables.items():
        if "/transactions-" not in name:
            continue
        for key in (each for each in table if each.startswith(prefix)):
            try:
                record = decode(table[key], TransactionRecord)
                identifier = bytes.fromhex(key[len(prefix) :].decode())
            except (ControllerError, ValueError):
                continue  # a start of the controller reports it
            if record.state not in (TransactionState.OPEN, TransactionState.COMMITTING):
                continue
            segments = tuple(
                segment_name(scope, stream, number, identifier)
                for number in numbers_in(record.segment_ranges)
            )
            called = f"transaction {identifier.hex()} of {scope}/{stream}"
            if record.state is TransactionState.COMMITTING:
                recorded.commits.append(BegunCommit(called, segments))
                continue
            aborting = encode(structs.replace(record, state=TransactionState.ABORTING))
            recorded.transactions.append(OpenTransaction(called, segments, name, key, aborting))
