"""Changes of streams: each changes all of its records, or none.

Owns: ``StreamWrites``.

Invariants:
1. When two controllers change one stream, the second update fails, because it names the version
   that was read. Held by ``test_a_second_controller_cannot_overwrite_the_first``.
2. When a large epoch is written in several requests, and another controller writes first, none of
   the keys that were written before count.
   Held by ``test_a_large_write_that_another_overtakes_leaves_none_of_its_seals``.
3. When a workflow ends or begins, the pending workflow changes as ``records.NEXT_WORKFLOWS`` says.
   Held by ``test_the_workflows_that_follow_each_other_are_those_of_the_table``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from pravega_controller.errors import (
    NoSuchTableError,
    ScopeNotFoundError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.records import (
    NEXT_WORKFLOWS,
    ConfigurationRecord,
    Create,
    EpochRecord,
    HeadRecord,
    NameRecord,
    SizesRecord,
    StreamRecord,
    encode,
)
from pravega_controller.metadata.scope_records import Scope
from pravega_controller.metadata.streams.epochs import CHANGED_MAX, is_snapshot_due
from pravega_controller.metadata.streams.history import StreamHistory
from pravega_controller.metadata.streams.known import KnownStreams, Stream, first_keys, stream_key
from pravega_controller.metadata.streams.subscribers import Subscribers
from pravega_controller.rules.history import Epoch, apply_epochs
from pravega_controller.rules.streams import Segment, StreamConfiguration
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.store_client.table_client import (
    NO_VERSION,
    NOT_EXISTS,
    REMOVED_KEYS_MAX,
    UPDATED_KEYS_MAX,
    Change,
    TableClient,
)


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream to be created, under a free name."""

    name: str
    stream_id: str
    name_version: int
    configuration: StreamConfiguration
    first: Epoch
    owner: str
    """The id of the controller that creates it."""


@dataclass(frozen=True, slots=True)
class StreamWrite:
    """A change of a stream: its new record, and the records that change with it.

    ``epochs`` are appended to the history; ``sizes`` are those of the segments that each of these
    epochs sealed.
    """

    stream: Stream
    record: StreamRecord
    configuration: ConfigurationRecord | None = None
    head: HeadRecord | None = None
    epochs: Sequence[Epoch] = ()
    sizes: Mapping[int, dict[int, int]] = field(default_factory=dict)


class StreamWrites:
    """Writes streams."""

    def __init__(self, tables: TableClient, known: KnownStreams, subscribers: Subscribers) -> None:
        self._tables = tables
        self._known = known
        self._subscribers = subscribers

    async def insert(self, scope: Scope, new: Sequence[NewStream]) -> list[Stream]:
        """Record new streams in progress, all or none. Raises ``VersionConflictError``."""
        return (await self.insert_with(scope, new))[0]

    async def insert_mark(
        self, stream: Stream, new: Sequence[NewStream]
    ) -> tuple[list[Stream], Stream]:
        """Record a stream's mark stream like ``insert``; return the stream with it.

        The same update writes the stream's state again, unchanged. So it fails if the stream was
        changed or deleted.
        """
        same = Change(stream.key("state"), encode(stream.record), stream.version)
        marks, version = await self.insert_with(stream.scope, new, same_state=same)
        return marks, self._known.keep(replace(stream, version=version))

    async def insert_with(
        self,
        scope: Scope,
        new: Sequence[NewStream],
        *,
        same_object: Change | None = None,
        same_state: Change | None = None,
    ) -> tuple[list[Stream], int]:
        """Record new streams if their owner is unchanged; return the owner's new version, too."""
        changes: list[Change] = []
        streams: list[Stream] = []
        for one in new:
            stream = self._new_stream(scope, one)
            first, _ = stream.history.changes_for(EpochRecord(one.first, base=0), None)
            changes += [
                Change(stream.key("state"), encode(stream.record), NOT_EXISTS),
                Change(stream.key("configuration"), encode(stream.configurations)),
                *first,
            ]
            streams.append(stream)
        named = [
            Change(stream_key(one.name), encode(NameRecord(one.stream_id)), one.name_version)
            for one in new
        ]
        keys = [change.key for change in named]
        if same_object is not None:
            named.append(same_object)
        if same_state is not None:
            changes.append(same_state)
        versions: list[int] = []
        name_versions: list[int] = []

        async def write_records() -> None:
            versions.extend(await self._tables.update(scope.histories, changes))

        async def write_names() -> None:
            name_versions.extend(await self._tables.update(scope.objects, named))

        try:
            if same_state is None:
                await run_all(write_records, write_names)
            else:
                # Write the records last: a name that is written late could arrive after the stream
                # was deleted. If another controller has taken the name, the records are refused.
                await write_names()
                await write_records()
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist") from error
        except VersionConflictError:
            if versions:
                begun = [key for one in new for key in first_keys(one.stream_id)]
                await self._tables.remove_all(scope.histories, begun)
            if name_versions:
                # Remove the names: no stream will use them, and while they exist, the scope counts
                # as not empty.
                with suppress(VersionConflictError):
                    left = list(zip(keys, name_versions, strict=False))
                    await self._tables.remove_if(scope.objects, left)
            raise
        by_key = dict(zip((change.key for change in changes), versions, strict=True))
        by_name = dict(zip((change.key for change in named), name_versions, strict=True))
        made = [
            self._known.keep(
                replace(stream, version=by_key[stream.key("state")], name_version=by_name[key])
            )
            for stream, key in zip(streams, keys, strict=True)
        ]
        same = same_object or same_state
        return made, NO_VERSION if same is None else {**by_key, **by_name}[same.key]

    async def write(
        self,
        stream: Stream,
        record: StreamRecord,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
        epochs: Sequence[Epoch] = (),
        sizes: Mapping[int, dict[int, int]] | None = None,
    ) -> Stream:
        """Replace a stream's record and change other keys with it, all or nothing.

        Raises ``VersionConflictError`` if the stream has changed.
        """
        write = StreamWrite(stream, record, configuration, head, epochs, sizes or {})
        return (await self.write_all([write]))[0]

    async def write_all(self, writes: Sequence[StreamWrite]) -> list[Stream]:
        """Change several streams of one scope, all or none. Raises ``VersionConflictError``."""
        changes: list[Change] = []
        streams: list[Stream] = []
        appended: list[tuple[StreamHistory, EpochRecord]] = []
        for write in writes:
            made, stream = self._changes_of(write, appended)
            changes += made
            streams.append(stream)
        table = writes[0].stream.table
        try:
            if len(changes) > UPDATED_KEYS_MAX:
                changes = await self._write_seals(writes, changes)
            versions = await self._tables.update(table, changes)
        except NoSuchTableError as error:
            raise StreamNotFoundError("the scope of the stream does not exist any more") from error
        # Keep the epochs in memory only after the write: another controller may have written an
        # epoch of the same number.
        for history, record in appended:
            history.keep(record)
        by_key = dict(zip((change.key for change in changes), versions, strict=True))
        return [
            self._known.keep(replace(stream, version=by_key[stream.key("state")]))
            for stream in streams
        ]

    async def _write_seals(
        self, writes: Sequence[StreamWrite], changes: Sequence[Change]
    ) -> list[Change]:
        """Write the keys ``sealed/<id>`` of large epochs; return the changes that remain.

        The record of an epoch is written later, and decides whether the epoch seals a segment. Each
        update here also writes the states of the streams again, on the versions that were read. So
        a controller with a stale state cannot overwrite keys, and if another controller overwrites
        keys of this one, this one cannot write its epoch any more. The states get their new owner,
        so that two controllers never write equal values.
        """
        seals = [change for change in changes if b"/sealed/" in change.key]
        states: dict[bytes, Change] = {}
        for write in writes:
            key = write.stream.key("state")
            unchanged = structs.replace(write.stream.record, owner=write.record.owner)
            states[key] = Change(key, encode(unchanged), write.stream.version)
        step = UPDATED_KEYS_MAX - len(states)
        for start in range(0, len(seals), step):
            made = [*states.values(), *seals[start : start + step]]
            versions = await self._tables.update(writes[0].stream.table, made)
            for key, version in zip(list(states), versions, strict=False):
                states[key] = replace(states[key], version=version)
        return [
            replace(change, version=states[change.key].version) if change.key in states else change
            for change in changes
            if b"/sealed/" not in change.key
        ]

    async def withdraw_epoch(self, stream: Stream) -> Stream:
        """Remove the last epoch, whose scale was refused; return the stream without it.

        The numbers of its segments are never used again. Raises ``VersionConflictError``.
        """
        record, history = stream.record, stream.history
        assert record.epoch == record.epoch_count - 2
        withdrawn = await history.record_of(stream.last_epoch)
        epoch = withdrawn.epoch
        base = record.base
        changed = record.changed_since_base - len(epoch.created) - len(epoch.sealed)
        if base == epoch.number:
            base, changed = await history.base_of(epoch.number - 1), CHANGED_MAX
        record = structs.replace(
            record,
            epoch_count=record.epoch_count - 1,
            withdrawn=record.withdrawn + 1,
            base=base,
            changed_since_base=changed,
            pending=None,
        )
        state = Change(stream.key("state"), encode(record), stream.version)
        changes = [state, *history.changes_without(withdrawn)]
        versions = await self._tables.update(stream.table, changes)
        left = [(change.key, version) for change, version in zip(changes, versions, strict=True)]
        # Another controller may have written the next epoch since.
        with suppress(VersionConflictError):
            await self._tables.remove_if(stream.table, left[1:])
        return self._known.keep(
            replace(stream, record=record, version=versions[0], latest=stream.active)
        )

    async def remove(self, streams: Sequence[Stream]) -> None:
        """Remove the records of streams of one scope, then their names.

        After a crash in between, a name without a stream may remain. Raises
        ``VersionConflictError`` if another stream has a name meanwhile; its records are kept.
        """
        keys_max = (REMOVED_KEYS_MAX - 100) // len(streams)
        removed: list[bytes] = []
        last: list[bytes] = []

        async def remove_epochs(stream: Stream) -> None:
            removed.extend(await stream.history.remove(keys_max=keys_max))

        async def find_subscribers(stream: Stream) -> None:
            found = await self._subscribers.names(stream)
            removed.extend(stream.key("subscriber", name) for name in found)

        await run_all(
            *(partial(remove_epochs, stream) for stream in streams),
            *(partial(find_subscribers, stream) for stream in streams),
        )
        for stream in streams:
            last += [stream.key(kind) for kind in ("subscribers", "configuration", "head", "state")]
        if len(removed) + len(last) > REMOVED_KEYS_MAX:
            await self._tables.remove_all(streams[0].table, removed)
            removed = []
        await self._tables.remove_all(streams[0].table, [*removed, *last])
        for stream in streams:
            self._known.forget(stream)
        named = [(stream_key(stream.name), stream.name_version) for stream in streams]
        await self._tables.remove_if(streams[0].scope.objects, named)

    def _new_stream(self, scope: Scope, new: NewStream) -> Stream:
        size = len(encode(EpochRecord(new.first, base=0)))
        record = StreamRecord(
            created_ms=new.first.created_ms,
            epoch=0,
            epoch_count=1,
            next_number=1 + max(segment.number for segment in new.first.created),
            changed_since_base=0,
            epoch_bytes_max=size,
            pending=Create(),
            owner=new.owner,
        )
        history = self._known.history_of(scope, new.name, new.stream_id)
        history.update(record)
        history.keep(EpochRecord(new.first, base=0))
        return Stream(
            scope,
            new.name,
            new.stream_id,
            new.name_version,
            NOT_EXISTS,
            record,
            ConfigurationRecord(0, new.configuration),
            None,
            new.first.created,
            new.first.created,
            history,
        )

    def _changes_of(
        self, write: StreamWrite, appended: list[tuple[StreamHistory, EpochRecord]]
    ) -> tuple[list[Change], Stream]:
        """Return the changes of keys of a write, and the stream after the write."""
        stream, record = write.stream, write.record
        assert type(record.pending) in NEXT_WORKFLOWS[type(stream.record.pending)]
        changes: list[Change] = []
        if write.configuration is not None:
            revision = record.configuration_revision + 1
            configuration = structs.replace(write.configuration, revision=revision)
            record = structs.replace(record, configuration_revision=revision)
            stream = replace(stream, configurations=configuration)
            changes.append(Change(stream.key("configuration"), encode(configuration)))
        if write.head is not None:
            revision = record.head_revision + 1
            head = structs.replace(write.head, revision=revision)
            record = structs.replace(record, head_revision=revision)
            stream = replace(stream, head_record=head)
            changes.append(Change(stream.key("head"), encode(head)))
        for epoch in write.epochs:
            record, written, latest = _append_epoch(record, stream.latest, epoch)
            is_base = written.base == epoch.number
            made, size = stream.history.changes_for(written, latest if is_base else None)
            record = structs.replace(record, epoch_bytes_max=max(record.epoch_bytes_max, size))
            stream = replace(stream, latest=latest)
            changes += made
            appended.append((stream.history, written))
        for number, sizes in write.sizes.items():
            value = encode(SizesRecord(sizes))
            changes.append(Change(stream.history.sizes_key(number), value))
        if record.epoch == record.epoch_count - 1:
            stream = replace(stream, active=stream.latest)
        elif record.epoch != write.stream.record.epoch:
            raise AssertionError("an epoch becomes active as the last one")
        state = Change(stream.key("state"), encode(record), stream.version)
        return [state, *changes], replace(stream, record=record)


def _append_epoch(
    record: StreamRecord, latest: tuple[Segment, ...], epoch: Epoch
) -> tuple[StreamRecord, EpochRecord, tuple[Segment, ...]]:
    """Return a stream's record with one more epoch, the epoch's record, and its segments."""
    assert epoch.number == record.epoch_count, "epochs are consecutive"
    latest = apply_epochs(latest, [epoch])
    changed = record.changed_since_base + len(epoch.created) + len(epoch.sealed)
    is_base = is_snapshot_due(
        epochs=epoch.number - record.base, changed=changed, segments=len(latest)
    )
    next_number = 1 + max(segment.number for segment in epoch.created)
    record = structs.replace(
        record,
        epoch_count=epoch.number + 1,
        next_number=max(record.next_number, next_number),
        base=epoch.number if is_base else record.base,
        changed_since_base=0 if is_base else changed,
    )
    return record, EpochRecord(epoch, record.base), latest
