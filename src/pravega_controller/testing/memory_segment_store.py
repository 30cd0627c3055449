"""A segment store in memory that speaks the real wire protocol over streams in memory.

Owns: the behavior of a segment store on which the controller relies, and one fault: at a chosen
request the store stops answering for ever, with the request carried out or not.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import trio
import trio.testing

from pravega_wire import commands as wire
from pravega_wire.connection import Connection, Role

TOKEN_BYTES = 8
MEMBERS_TABLE = "/members"


@dataclass
class MemorySegment:
    scale_type: int
    target_rate: int
    rollover_bytes: int
    start: int = 0
    length: int = 0
    is_sealed: bool = False
    data: bytes = b""
    """The bytes of a segment that a test wrote; those of others are generated."""
    merged: list[str] = field(default_factory=list)
    """The sources that were merged into it, in order, empty ones too."""

    def append(self, data: bytes) -> None:
        """Write to the end."""
        self.data = self.data.ljust(self.length, b"\0") + data
        self.length = len(self.data)


@dataclass
class MemoryTable:
    key_length: int = 0
    rollover_bytes: int = 0
    entries: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)


@dataclass
class Fault:
    """Stop before (or after) carrying out the change number ``at``, counted from 0."""

    at: int
    is_applied: bool
    lasts: bool = True
    """True if everything after it is lost, too, as if the controller had been killed."""
    reached: trio.Event = field(default_factory=trio.Event)


Contents: TypeAlias = tuple[dict[str, MemorySegment], dict[str, MemoryTable], list[str]]

_CHANGES = (
    wire.CreateSegment,
    wire.SealSegment,
    wire.DeleteSegment,
    wire.TruncateSegment,
    wire.UpdateSegmentPolicy,
    wire.MergeSegmentsBatch,
    wire.CreateTableSegment,
    wire.DeleteTableSegment,
    wire.UpdateTableEntries,
    wire.RemoveTableKeys,
)


class MemorySegmentStore:
    """Everything that outlives the controller's connections."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self.reset()

    def reset(self) -> None:
        """Delete everything, as if nothing had ever been stored."""
        self.segments: dict[str, MemorySegment] = {}
        self.tables: dict[str, MemoryTable] = {}
        self.created: list[str] = []
        """The name of every segment ever created, in order."""
        self.fault: Fault | None = None
        self.changes = 0
        self.requests = 0
        self.on_seal: Callable[[str], None] = lambda segment: None
        self.refuse_connections = 0
        self.page_entries_max = 1000
        self.reply_seconds = 0.0
        """Time, in seconds, that each request takes, while others are answered."""
        self.wrong_host_replies = 0
        """Number of changes that are still refused as if their container were elsewhere."""
        self.pause: trio.Event | None = None
        """While set to an event, requests for which ``pauses`` is true wait for it."""
        self.pauses: Callable[[wire.Request], bool] = lambda request: True
        self.is_paused = trio.Event()
        self._version = 0

    def contents(self) -> Contents:
        """Return a copy of everything that is stored."""
        return copy.deepcopy((self.segments, self.tables, self.created))

    def restore(self, contents: Contents) -> None:
        """Restore what was stored, and remove any fault."""
        version = self._version
        self.reset()
        self.segments, self.tables, self.created = copy.deepcopy(contents)
        self._version = version

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve the streams that ``open_stream`` returns."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection in memory, in place of the controller's TCP connection."""
        await trio.lowlevel.checkpoint()
        if self.refuse_connections:
            self.refuse_connections -= 1
            raise ConnectionRefusedError("nobody listens")
        assert self._nursery is not None
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, ours)
        return theirs

    async def _serve(self, stream: trio.abc.Stream) -> None:
        connection = Connection(Role.SERVER)
        sending = trio.Lock()

        async def handle(command: wire.Request) -> None:
            reply = self._answer(command)
            if reply is None:
                await trio.sleep_forever()
            assert reply is not None
            async with sending:
                await stream.send_all(connection.send(reply))

        async def handle_later(command: wire.Request, pause: trio.Event | None) -> None:
            await trio.sleep(self.reply_seconds)
            if pause is not None:
                await pause.wait()
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await handle(command)

        assert self._nursery is not None
        try:
            while data := await stream.receive_some(65536):
                for command in connection.receive_data(data):
                    assert isinstance(command, wire.Request)
                    if self.pause is not None and self.pauses(command):
                        self.is_paused.set()
                        self._nursery.start_soon(handle_later, command, self.pause)
                    elif self.reply_seconds and not isinstance(command, wire.Hello):
                        self._nursery.start_soon(handle_later, command, None)
                    else:
                        await handle(command)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _answer(self, request: wire.Request) -> wire.Reply | None:
        if isinstance(request, wire.Hello):
            return wire.HELLO
        if _is_about_members(request):
            return self._apply(request)
        fault = self.fault
        self.requests += 1
        if isinstance(request, _CHANGES):
            if self.wrong_host_replies:
                self.wrong_host_replies -= 1
                return wire.WrongHost(request.request_id, segment_of(request), "")
            number = self.changes
            self.changes += 1
            if fault is not None and (number == fault.at or (fault.lasts and number > fault.at)):
                if number == fault.at and fault.is_applied:
                    self._apply(request)
                fault.reached.set()
                return None
        return self._apply(request)

    def _apply(self, request: wire.Request) -> wire.Reply:
        handler: Callable[..., wire.Reply] = _HANDLERS[type(request)]
        return handler(self, request)

    # ---- Segments --------------------------------------------------------------------------------

    def _create(self, q: wire.CreateSegment) -> wire.Reply:
        if q.segment in self.segments:
            return wire.SegmentAlreadyExists(q.request_id, q.segment)
        self.segments[q.segment] = MemorySegment(q.scale_type, q.target_rate, q.rollover_size_bytes)
        self.created.append(q.segment)
        return wire.SegmentCreated(q.request_id, q.segment)

    def _seal(self, q: wire.SealSegment) -> wire.Reply:
        segment = self.segments.get(q.segment)
        if segment is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        if segment.is_sealed:
            return wire.SegmentIsSealed(q.request_id, q.segment)
        self.on_seal(q.segment)
        segment.is_sealed = True
        return wire.SegmentSealed(q.request_id, q.segment)

    def _delete(self, q: wire.DeleteSegment) -> wire.Reply:
        if self.segments.pop(q.segment, None) is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        return wire.SegmentDeleted(q.request_id, q.segment)

    def _merge(self, q: wire.MergeSegmentsBatch) -> wire.Reply:
        target = self.segments.get(q.target)
        if target is None:
            return wire.NoSuchSegment(q.request_id, q.target)
        merged = []
        for name in q.sources:
            source = self.segments.get(name)
            if source is not None:
                if target.is_sealed:
                    return wire.SegmentIsSealed(q.request_id, q.target)
                target.length += source.length
                target.merged.append(name)
                del self.segments[name]
            merged.append(wire.MergedSource(name, target.length))
        return wire.SegmentsBatchMerged(q.request_id, q.target, tuple(merged))

    def _truncate(self, q: wire.TruncateSegment) -> wire.Reply:
        segment = self.segments.get(q.segment)
        if segment is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        if not segment.start <= q.truncation_offset <= segment.length:
            return wire.SegmentIsTruncated(
                q.request_id, q.segment, segment.start, "", q.truncation_offset
            )
        segment.start = q.truncation_offset
        return wire.SegmentTruncated(q.request_id, q.segment)

    def _policy(self, q: wire.UpdateSegmentPolicy) -> wire.Reply:
        segment = self.segments.get(q.segment)
        if segment is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        segment.scale_type, segment.target_rate = q.scale_type, q.target_rate
        return wire.SegmentPolicyUpdated(q.request_id, q.segment)

    def _info(self, q: wire.GetStreamSegmentInfo) -> wire.Reply:
        segment = self.segments.get(q.segment)
        if segment is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        return wire.StreamSegmentInfo(
            q.request_id,
            q.segment,
            True,
            segment.is_sealed,
            False,
            0,
            segment.length,
            segment.start,
        )

    def _read_segment(self, q: wire.ReadSegment) -> wire.Reply:
        segment = self.segments.get(q.segment)
        if segment is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        if q.offset < segment.start:
            return wire.SegmentIsTruncated(q.request_id, q.segment, segment.start, "", q.offset)
        data = segment.data[q.offset : q.offset + q.suggested_length]
        at_tail = q.offset + len(data) >= segment.length
        return wire.SegmentRead(q.segment, q.offset, at_tail, False, data, q.request_id)

    # ---- Tables ----------------------------------------------------------------------------------

    def _create_table(self, q: wire.CreateTableSegment) -> wire.Reply:
        if q.segment in self.tables:
            return wire.SegmentAlreadyExists(q.request_id, q.segment)
        self.tables[q.segment] = MemoryTable(q.key_length, q.rollover_size_bytes)
        self.created.append(q.segment)
        return wire.SegmentCreated(q.request_id, q.segment)

    def _delete_table(self, q: wire.DeleteTableSegment) -> wire.Reply:
        table = self.tables.get(q.segment)
        if table is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        if q.must_be_empty and table.entries:
            return wire.TableSegmentNotEmpty(q.request_id, q.segment, "")
        del self.tables[q.segment]
        return wire.SegmentDeleted(q.request_id, q.segment)

    def _update_table(self, q: wire.UpdateTableEntries) -> wire.Reply:
        table = self.tables.get(q.segment)
        if table is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        for entry in q.table_entries:
            refusal = self._conflict(table, entry.key, q.request_id, q.segment)
            if refusal is not None:
                return refusal
        versions = []
        for entry in q.table_entries:
            self._version += 10
            table.entries[entry.key.key] = (entry.value, self._version)
            versions.append(self._version)
        return wire.TableEntriesUpdated(q.request_id, tuple(versions))

    def _remove(self, q: wire.RemoveTableKeys) -> wire.Reply:
        table = self.tables.get(q.segment)
        if table is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        for key in q.keys:
            refusal = self._conflict(table, key, q.request_id, q.segment)
            if refusal is not None:
                return refusal
        for key in q.keys:
            table.entries.pop(key.key, None)
        return wire.TableKeysRemoved(q.request_id, q.segment)

    def _conflict(
        self, table: MemoryTable, key: wire.TableKey, request_id: int, segment: str
    ) -> wire.Reply | None:
        if key.version == wire.NO_VERSION:
            return None
        current = table.entries.get(key.key)
        if current is None and key.version != wire.NOT_EXISTS:
            return wire.TableKeyDoesNotExist(request_id, segment, "")
        if current is not None and current[1] != key.version:
            return wire.TableKeyBadVersion(request_id, segment, "")
        return None

    def _read(self, q: wire.ReadTable) -> wire.Reply:
        table = self.tables.get(q.segment)
        if table is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        found = []
        for key in q.keys:
            value, version = table.entries.get(key.key, (b"", wire.NOT_EXISTS))
            found.append(wire.TableEntry(wire.TableKey(key.key, version), value))
        return wire.TableRead(q.request_id, q.segment, tuple(found))

    def _iterate(self, q: wire.ReadTableEntries) -> wire.Reply:
        """Yield entries in the order of hashes; the token is the last hash."""
        table = self.tables.get(q.segment)
        if table is None:
            return wire.NoSuchSegment(q.request_id, q.segment)
        if table.key_length:
            return self._iterate_range(q, table)
        after = q.args.continuation_token
        ordered = sorted((_hash(key), key) for key in table.entries)
        count = min(q.suggested_entry_count, self.page_entries_max)
        rest = [entry for entry in ordered if entry[0] > after][:count]
        token = rest[-1][0] if rest else after
        found = tuple(
            wire.TableEntry(wire.TableKey(key, table.entries[key][1]), table.entries[key][0])
            for _, key in rest
        )
        return wire.TableEntriesRead(q.request_id, q.segment, found, token)

    def _iterate_range(self, q: wire.ReadTableEntries, table: MemoryTable) -> wire.Reply:
        """Return entries between both bounds, which are included; there is no token."""
        keys = sorted(key for key in table.entries if q.args.from_key <= key <= q.args.to_key)
        count = min(q.suggested_entry_count, self.page_entries_max)
        found = tuple(
            wire.TableEntry(wire.TableKey(key, table.entries[key][1]), table.entries[key][0])
            for key in keys[:count]
        )
        return wire.TableEntriesRead(q.request_id, q.segment, found, b"")


_HANDLERS: dict[type[wire.Request], Callable[..., wire.Reply]] = {
    wire.CreateSegment: MemorySegmentStore._create,
    wire.SealSegment: MemorySegmentStore._seal,
    wire.DeleteSegment: MemorySegmentStore._delete,
    wire.MergeSegmentsBatch: MemorySegmentStore._merge,
    wire.TruncateSegment: MemorySegmentStore._truncate,
    wire.UpdateSegmentPolicy: MemorySegmentStore._policy,
    wire.GetStreamSegmentInfo: MemorySegmentStore._info,
    wire.ReadSegment: MemorySegmentStore._read_segment,
    wire.CreateTableSegment: MemorySegmentStore._create_table,
    wire.DeleteTableSegment: MemorySegmentStore._delete_table,
    wire.UpdateTableEntries: MemorySegmentStore._update_table,
    wire.RemoveTableKeys: MemorySegmentStore._remove,
    wire.ReadTable: MemorySegmentStore._read,
    wire.ReadTableEntries: MemorySegmentStore._iterate,
}


def segment_of(request: wire.Request) -> str:
    """Return the segment that a request is about."""
    if isinstance(request, wire.MergeSegmentsBatch):
        return request.target
    segment: str = getattr(request, "segment")  # noqa: B009 (not every request has one)
    return segment


def _is_about_members(request: wire.Request) -> bool:
    """Return whether a request concerns membership: such requests are not counted, nor fail."""
    return getattr(request, "segment", "").endswith(MEMBERS_TABLE)


def _hash(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=TOKEN_BYTES).digest()
