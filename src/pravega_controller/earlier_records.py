"""Streams as the first format stored them, and their conversion into today's records.

Owns: the first format's records of streams. It kept a stream's whole state in one value under its
name in the objects table, and what an epoch sealed as bare ids, in the histories table:

    objects-<id>      s/<stream>              -> EarlierStreamRecord
    histories-<id>    epoch/<stream>/<n>      -> EarlierEpochRecord
                      subscribers/<stream>    -> EarlierSubscribersRecord

Invariants:
1. A stream is converted when it is first requested. Its new records count only once its name leads
   to them, which one conditional update decides; after a crash before it, the work is repeated.
2. The new records are filed under an id made of the name and the version of the old record, so that
   a repetition, or another controller, writes the same keys with the same values.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

import msgspec
import trio

from pravega_controller import records
from pravega_controller.errors import CorruptMetadataError, VersionConflictError
from pravega_controller.history import Epoch
from pravega_controller.records import (
    ConfigurationRecord,
    EpochRecord,
    HeadRecord,
    NameRecord,
    StreamRecord,
    SubscriberRecord,
    SubscribersRecord,
    decode,
    encode,
)
from pravega_controller.stream_history import StreamHistory, is_snapshot_due
from pravega_controller.streams import Segment, StreamConfiguration, tiles_key_space
from pravega_controller.table_client import NOT_EXISTS, Change, Entry, TableClient
from pravega_wire import names

CHUNK_EPOCHS = 256
CHUNK_KEYS = 1000
CHUNK_BYTES = 1024 * 1024
"""Minimum bytes of records that are written together."""


class EarlierEpoch(msgspec.Struct, frozen=True):
    """An epoch whose ``sealed`` are ids alone."""

    number: int
    reference: int
    created_ms: int
    created: tuple[Segment, ...]
    sealed: tuple[int, ...] = ()


class Create(msgspec.Struct, frozen=True, tag_field="workflow", tag="create"):
    first: EarlierEpoch


class Scale(msgspec.Struct, frozen=True, tag_field="workflow", tag="scale"):
    epoch: EarlierEpoch


class Truncate(msgspec.Struct, frozen=True, tag_field="workflow", tag="truncate"):
    deleted: tuple[int, ...]


class Update(msgspec.Struct, frozen=True, tag_field="workflow", tag="update"):
    configuration: StreamConfiguration


class Seal(msgspec.Struct, frozen=True, tag_field="workflow", tag="seal"):
    pass


class Delete(msgspec.Struct, frozen=True, tag_field="workflow", tag="delete"):
    pass


EarlierWorkflow: TypeAlias = Create | Scale | Truncate | Update | Seal | Delete

_WORKFLOWS: dict[type, records.StreamWorkflow | None] = {
    type(None): None,
    Create: records.Create(),
    Scale: records.Scale(),
    Truncate: records.Truncate(),
    Update: records.Update(),
    Seal: records.Seal(),
    Delete: records.Delete(),
}
"""Today's records of workflows that the first format knows."""


class EarlierStreamRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    configuration: StreamConfiguration
    created_ms: int
    epoch: int
    epoch_count: int
    head: dict[int, int] = {}
    is_sealed: bool = False
    pending: EarlierWorkflow | None = None


class EarlierEpochRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    epoch: EarlierEpoch


class EarlierSubscriber(msgspec.Struct, frozen=True):
    generation: int
    cut: dict[int, int]


class EarlierSubscribersRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    subscribers: dict[str, EarlierSubscriber]


def is_earlier(value: bytes) -> bool:
    """Return whether the value under a stream's name is its record in the first format."""
    return value.startswith(b'{"format":1,')


def tags_of(value: bytes) -> tuple[str, ...]:
    """Return the tags of a stream in the first format."""
    return decode(value, EarlierStreamRecord).configuration.tags


async def carry_over(
    tables: TableClient, objects: str, histories: str, name: str, entry: Entry
) -> Entry:
    """Write a stream's records in today's form; return the entry of its name that leads to them."""
    record = decode(entry.value, EarlierStreamRecord)
    stream_id = f"earlier.{name}.{entry.version}"
    history = StreamHistory(tables, histories, stream_id, stream=name)
    carrier = _Carrier(tables, histories, name, history)
    epochs = await carrier.copy_epochs(record)
    changes = [
        *_settings(record, stream_id, has_head=epochs.head_revision > 0),
        *await _subscribers(tables, histories, name, stream_id),
        Change(f"{stream_id}/state".encode(), encode(epochs), NOT_EXISTS),
    ]
    try:
        await tables.update(histories, changes)
        value = encode(NameRecord(stream_id))
        await tables.put(objects, entry.key, value, version=entry.version)
    except VersionConflictError:
        # Another controller converts it, or has done so.
        current = await tables.get(objects, entry.key)
        if current is None or is_earlier(current.value):
            raise
        return current
    await carrier.remove_earlier(record.epoch_count)
    current = await tables.get(objects, entry.key)
    if current is None:
        raise VersionConflictError(f"stream {name} was removed while it was converted")
    return current


class _Carrier:
    """Copies the epochs of one stream, chunk by chunk."""

    def __init__(
        self, tables: TableClient, histories: str, name: str, history: StreamHistory
    ) -> None:
        self._tables = tables
        self._table = histories
        self._name = name
        self._history = history
        self._present: dict[int, Segment] = {}
        self._count = 0
        self._base = 0
        self._changed = 0
        self._next_number = 0
        self._bytes_max = 0

    async def copy_epochs(self, record: EarlierStreamRecord) -> StreamRecord:
        """Write the epochs' records, and return the stream's, which counts them."""
        changes: list[Change] = []
        size = 0
        async with aclosing(self._epochs(record)) as epochs:
            async for epoch in epochs:
                made = self._changes_of(epoch)
                changes += made
                size += sum(len(change.value) for change in made)
                if size > CHUNK_BYTES or len(changes) >= CHUNK_KEYS:
                    await self._tables.put_all(self._table, changes)
                    changes, size = [], 0
        if changes:
            await self._tables.put_all(self._table, changes)
        return StreamRecord(
            created_ms=record.created_ms,
            epoch=min(record.epoch, self._count - 1),
            epoch_count=self._count,
            next_number=self._next_number,
            base=self._base,
            changed_since_base=self._changed,
            epoch_bytes_max=self._bytes_max,
            configuration_revision=1,
            head_revision=1 if self._has_head(record) else 0,
            is_sealed=record.is_sealed,
            pending=_WORKFLOWS[type(record.pending)],
        )

    async def remove_earlier(self, count: int) -> None:
        """Remove the records of the first format, to which nothing leads any more."""
        keys = [_epoch_key(self._name, number) for number in range(count)]
        await self._tables.remove_all(self._table, [*keys, _subscribers_key(self._name)])

    async def _epochs(self, record: EarlierStreamRecord) -> AsyncGenerator[EarlierEpoch, None]:
        pending = record.pending
        if isinstance(pending, Create):
            yield pending.first
            return
        for start in range(0, record.epoch_count, CHUNK_EPOCHS):
            numbers = range(start, min(start + CHUNK_EPOCHS, record.epoch_count))
            keys = [_epoch_key(self._name, number) for number in numbers]
            found = await self._tables.get_all(self._table, keys)
            for number, entry in zip(numbers, found, strict=True):
                if entry is not None:
                    yield decode(entry.value, EarlierEpochRecord).epoch
                elif number > 0 and isinstance(pending, Delete):
                    # Removal went from the last epoch down: the rest is still a history.
                    return
                else:
                    raise CorruptMetadataError(f"epoch {number} of {self._name} is missing")
            await trio.lowlevel.checkpoint()
        if isinstance(pending, Scale) and pending.epoch.number == record.epoch_count:
            yield pending.epoch

    def _has_head(self, record: EarlierStreamRecord) -> bool:
        """Return whether the stream has a head that the copied epochs contain.

        A removal that was killed removed the last epochs, and maybe those of the head's segments.
        The rest of the stream is then removed from its beginning on.
        """
        is_whole = all(names.segment_epoch(segment) < self._count for segment in record.head)
        return bool(record.head) and (is_whole or not isinstance(record.pending, Delete))

    def _changes_of(self, earlier: EarlierEpoch) -> list[Change]:
        try:
            sealed = tuple(self._present.pop(segment_id) for segment_id in earlier.sealed)
        except KeyError as error:
            raise CorruptMetadataError(
                f"epoch {earlier.number} of {self._name} seals segment {error}, which is not active"
            ) from error
        self._present.update((segment.segment_id, segment) for segment in earlier.created)
        number = earlier.number
        self._changed += len(earlier.created) + len(sealed) if number else 0
        is_base = number > 0 and is_snapshot_due(
            epochs=number - self._base, changed=self._changed, segments=len(self._present)
        )
        snapshot: list[Segment] | None = None
        if is_base:
            self._base, self._changed = number, 0
            snapshot = sorted(self._present.values(), key=lambda segment: segment.low)
            if not tiles_key_space(snapshot):
                raise CorruptMetadataError(f"epoch {number} of {self._name} has gaps")
        epoch = Epoch(number, earlier.reference, earlier.created_ms, earlier.created, sealed)
        changes, size = self._history.changes_for(EpochRecord(epoch, self._base), snapshot)
        highest = max(segment.number for segment in earlier.created)
        self._next_number = max(self._next_number, highest + 1)
        self._bytes_max = max(self._bytes_max, size)
        self._count += 1
        return changes


def _settings(record: EarlierStreamRecord, stream_id: str, *, has_head: bool) -> list[Change]:
    pending = record.pending
    following = pending.configuration if isinstance(pending, Update) else None
    configuration = ConfigurationRecord(1, record.configuration, following)
    changes = [Change(f"{stream_id}/configuration".encode(), encode(configuration))]
    if has_head:
        # A truncation under way begins again: the head before it was not kept.
        head = HeadRecord(1, record.head)
        changes.append(Change(f"{stream_id}/head".encode(), encode(head)))
    return changes


async def _subscribers(
    tables: TableClient, histories: str, name: str, stream_id: str
) -> list[Change]:
    entry = await tables.get(histories, _subscribers_key(name))
    if entry is None:
        return []
    found = decode(entry.value, EarlierSubscribersRecord).subscribers
    changes = [
        Change(
            f"{stream_id}/subscriber/{subscriber}".encode(),
            encode(SubscriberRecord(known.generation, known.cut)),
        )
        for subscriber, known in found.items()
    ]
    value = encode(SubscribersRecord(tuple(sorted(found))))
    return [*changes, Change(f"{stream_id}/subscribers".encode(), value)]


def _epoch_key(name: str, number: int) -> bytes:
    return f"epoch/{name}/{number}".encode()


def _subscribers_key(name: str) -> bytes:
    return f"subscribers/{name}".encode()
