"""A model of one scope as the Spark sink uses it: streams, transactions and a table, in memory.

Owns: ``MemoryPravega``, and the classes that stand for its clients. A test may let the program die
at any request, before it has an effect or after it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pravega_wire import commands as wire
from pravega_wire.sessions.routes import SegmentRange, Successor
from segstore_client.controller.controller_client import BegunTransaction, TableSettings
from segstore_client.errors import (
    AlreadyExistsError,
    EarlierStreamError,
    NotFoundError,
    PositionGoneError,
)


class Crash(BaseException):
    """The program was killed."""


@dataclass
class MemoryTransaction:
    """A transaction, with its events."""

    stream: MemoryStream
    events: list[Any] = field(default_factory=list)
    state: str = "open"


@dataclass
class MemoryStream:
    """A stream, from its creation to its deletion."""

    first_number: int
    epoch: int = 0
    segments: list[int] = field(default_factory=list)
    epochs: dict[int, list[int]] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)


class MemoryPravega:
    """The state of the scope."""

    def __init__(self) -> None:
        self.streams: dict[str, MemoryStream] = {}
        self.transactions: dict[bytes, MemoryTransaction] = {}
        self.table: dict[bytes, tuple[bytes, int]] | None = None
        self.numbers: Counter[str] = Counter()
        self.crash_at: int | None = None
        """Number of requests until the program is killed."""
        self.crashes_before = True
        self.interrupt_at: int | None = None
        """Number of requests until ``interrupt`` is called."""
        self.interrupt: Callable[[], None] = lambda: None
        self._versions = itertools.count(1)
        self._idents = itertools.count(1)

    # ---- What happens to it ----------------------------------------------------------------------

    def create(self, name: str, segments: int = 2) -> None:
        """Create a stream; its segments continue the numbers of an earlier stream of its name."""
        stream = MemoryStream(self.numbers[name])
        self.streams[name] = stream
        self._add_segments(name, segments)

    def delete(self, name: str) -> None:
        """Delete a stream with its transactions."""
        stream = self.streams.pop(name)
        for ident, transaction in list(self.transactions.items()):
            if transaction.stream is stream:
                del self.transactions[ident]

    def scale(self, name: str) -> None:
        """Replace all segments of a stream by others."""
        self.streams[name].epoch += 1
        self._add_segments(name, len(self.streams[name].segments))

    def truncate(self, name: str) -> None:
        """Truncate a stream at its end: what is known of its earlier epochs goes."""
        stream = self.streams[name]
        stream.epochs = {stream.epoch: stream.segments}

    def end_leases(self) -> None:
        """Abort every open transaction."""
        for transaction in self.transactions.values():
            if transaction.state == "open":
                transaction.state = "aborted"

    def _add_segments(self, name: str, count: int) -> None:
        stream = self.streams[name]
        first = self.numbers[name]
        self.numbers[name] += count
        stream.segments = [stream.epoch << 32 | first + number for number in range(count)]
        stream.epochs[stream.epoch] = stream.segments

    # ---- Requests --------------------------------------------------------------------------------

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request, before or after whose effect the program may be killed."""
        if self.interrupt_at is not None:
            self.interrupt_at -= 1
            if self.interrupt_at < 0:
                self.interrupt_at = None
                self.interrupt()
        is_last = self.crash_at == 0
        if self.crash_at is not None:
            self.crash_at -= 1
        if is_last and self.crashes_before:
            raise Crash
        yield
        if is_last:
            raise Crash

    def begin(self, name: str) -> BegunTransaction:
        stream = self.streams[name]
        ident = stream.epoch.to_bytes(4, "big") + next(self._idents).to_bytes(12, "big")
        self.transactions[ident] = MemoryTransaction(stream)
        ranges = [SegmentRange(each, 0.0, 1.0) for each in stream.segments]
        return BegunTransaction(ident, tuple(ranges))

    def answer(self, command: Any) -> Any:
        """Answer a request to the table's segment."""
        assert self.table is not None
        if isinstance(command, wire.ReadTable):
            (key,) = command.keys
            value, version = self.table.get(key.key, (b"", wire.NOT_EXISTS))
            entry = wire.TableEntry(wire.TableKey(key.key, version), value)
            return wire.TableRead(command.request_id, command.segment, (entry,))
        assert isinstance(command, wire.UpdateTableEntries)
        (entry,) = command.table_entries
        _, version = self.table.get(entry.key.key, (b"", wire.NOT_EXISTS))
        if version != entry.key.version:
            return wire.TableKeyBadVersion(command.request_id, command.segment, "")
        self.table[entry.key.key] = (bytes(entry.value), next(self._versions))
        _, version = self.table[entry.key.key]
        return wire.TableEntriesUpdated(command.request_id, (version,))


class MemoryController:
    """Stands for ``ControllerClient``, with the methods that the sink calls."""

    def __init__(self, pravega: MemoryPravega) -> None:
        self._pravega = pravega

    def __enter__(self) -> MemoryController:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is no connection."""

    def stream_exists(self, scope: str, stream: str) -> bool:
        with self._pravega.request():
            return stream in self._pravega.streams

    def ensure_stream(self, scope: str, stream: str, settings: object) -> None:
        with self._pravega.request():
            if stream not in self._pravega.streams:
                self._pravega.create(stream)

    def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRange, ...]:
        with self._pravega.request():
            segments = self._pravega.streams[stream].epochs.get(epoch)
            if segments is None:
                raise NotFoundError(f"stream {scope}/{stream} does not exist")
            return tuple(SegmentRange(each, 0.0, 1.0) for each in segments)

    def successors(self, scope: str, stream: str, segment_id: int) -> tuple[Successor, ...]:
        with self._pravega.request():
            present = self._pravega.streams[stream]
            if segment_id & 0xFFFF_FFFF < present.first_number:
                raise EarlierStreamError(f"segment {segment_id} is of an earlier stream")
            if segment_id >> 32 not in present.epochs:
                raise PositionGoneError(f"segment {segment_id} is of a dropped epoch")
            return ()

    def begin_transaction(self, scope: str, stream: str, lease_ms: int) -> BegunTransaction:
        with self._pravega.request():
            return self._pravega.begin(stream)

    def ping_transaction(self, scope: str, stream: str, identifier: bytes, lease_ms: int) -> str:
        with self._pravega.request():
            state = self._state(stream, identifier)
            return "ok" if state == "open" else state

    def transaction_state(self, scope: str, stream: str, identifier: bytes) -> str:
        with self._pravega.request():
            return self._state(stream, identifier)

    def commit_transaction(self, scope: str, stream: str, identifier: bytes) -> bool:
        with self._pravega.request():
            if self._state(stream, identifier) == "open":
                transaction = self._pravega.transactions[identifier]
                transaction.state = "committed"
                transaction.stream.events += transaction.events
            return self._state(stream, identifier) == "committed"

    def abort_transaction(self, scope: str, stream: str, identifier: bytes) -> bool:
        with self._pravega.request():
            if self._state(stream, identifier) == "open":
                self._pravega.transactions[identifier].state = "aborted"
            return self._state(stream, identifier) == "aborted"

    def _state(self, stream: str, identifier: bytes) -> str:
        found = self._pravega.transactions.get(identifier)
        if found is None or found.stream is not self._pravega.streams.get(stream):
            return "unknown"
        return found.state

    def table_settings(self, scope: str, table: str) -> TableSettings:
        with self._pravega.request():
            if self._pravega.table is None:
                raise NotFoundError(f"key-value table {scope}/{table} does not exist")
            return TableSettings(1, 32, 0, 0)

    def create_table(self, scope: str, table: str, **settings: int) -> None:
        with self._pravega.request():
            if self._pravega.table is not None:
                raise AlreadyExistsError(f"key-value table {scope}/{table} exists already")
            self._pravega.table = {}

    def table_segments(self, scope: str, table: str) -> list[int]:
        return [0]

    def segment_address(self, scope: str, stream: str, segment_id: int) -> tuple[str, int]:
        return ("memory", 0)

    def store_access(self, scope: str, stream: str, purpose: object) -> MemoryAccess:
        return MemoryAccess(self._pravega)


class MemoryAccess:
    """Stands for ``StoreAccess`` and for its connections."""

    def __init__(self, pravega: MemoryPravega) -> None:
        self._pravega = pravega

    def __enter__(self) -> MemoryAccess:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is no connection."""

    def connect(self, host: str, port: int, *, timeout: float) -> MemoryAccess:
        return self

    def token(self) -> str:
        return ""

    def next_request_id(self) -> int:
        return 1

    def call(self, command: wire.Request) -> Any:
        with self._pravega.request():
            return self._pravega.answer(command)


class MemoryTransactionWriter:
    """Stands for ``TransactionWriter``."""

    def __init__(
        self,
        scope: str,
        stream: str,
        transaction: BegunTransaction,
        locate: object,
        *,
        access: MemoryAccess,
    ) -> None:
        self._transaction = access._pravega.transactions[transaction.identifier]

    def write(self, events: Sequence[Any], keys: object) -> None:
        self._transaction.events += events

    def flush(self) -> None:
        """Do nothing: events are stored at once."""

    def close(self) -> None:
        """Do nothing: there is no connection."""
