"""A client for programs on trio or asyncio, by AnyIO.

async with segstore_client.connect("tcp://localhost:9090") as store:
    await store.create_scope("demo")
    await store.create_stream("demo/orders", segments=3)
    async with store.writer("demo/orders") as writer:
        await writer.write(b"two apples", key="customer-7")
    async with store.reader("demo/orders") as reader:
        async for event in reader:
            print(event.data)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pravega_wire.reader_groups.lags import SegmentLag
    from pravega_wire.sessions.read_cursor import ReadEvent
    from segstore_client.byte_streams.byte_reader import ByteReader
    from segstore_client.byte_streams.byte_writer import ByteWriter
    from segstore_client.controller.stream_settings import Retention, Scaling, StreamSettings
    from segstore_client.errors import (
        AlreadyExistsError,
        BufferFullError,
        ClosedError,
        ConflictError,
        NoPermissionError,
        NotFoundError,
        PravegaError,
        RefusedError,
        RemovedFromGroupError,
        StoreDelayedError,
        StreamSealedError,
        TimedOutError,
        TransactionEndedError,
        TruncatedError,
        UnavailableError,
        UnreadableEventError,
        UntrustedServerError,
        UsageError,
        WriterClosedError,
    )
    from segstore_client.event_reader import EventReader
    from segstore_client.event_writer import EventWriter
    from segstore_client.groups.group_reader import GroupReader
    from segstore_client.groups.reader_group import ReaderGroup
    from segstore_client.positions import Position
    from segstore_client.serializers import Serializer
    from segstore_client.states.synchronizer import Synchronizer
    from segstore_client.steps.table_steps import ABSENT, Entry
    from segstore_client.store import Store, connect
    from segstore_client.table import Table
    from segstore_client.transaction import Transaction
    from segstore_client.writing.acknowledgement import Acknowledgement

__all__ = [
    "ABSENT",
    "Acknowledgement",
    "AlreadyExistsError",
    "BufferFullError",
    "ByteReader",
    "ByteWriter",
    "ClosedError",
    "ConflictError",
    "Entry",
    "EventReader",
    "EventWriter",
    "GroupReader",
    "NoPermissionError",
    "NotFoundError",
    "Position",
    "PravegaError",
    "ReadEvent",
    "ReaderGroup",
    "RefusedError",
    "RemovedFromGroupError",
    "Retention",
    "Scaling",
    "SegmentLag",
    "Serializer",
    "Store",
    "StoreDelayedError",
    "StreamSealedError",
    "StreamSettings",
    "Synchronizer",
    "Table",
    "TimedOutError",
    "Transaction",
    "TransactionEndedError",
    "TruncatedError",
    "UnavailableError",
    "UnreadableEventError",
    "UntrustedServerError",
    "UsageError",
    "WriterClosedError",
    "connect",
]

_HOMES = {
    "ABSENT": "segstore_client.steps.table_steps",
    "Acknowledgement": "segstore_client.writing.acknowledgement",
    "AlreadyExistsError": "segstore_client.errors",
    "BufferFullError": "segstore_client.errors",
    "ByteReader": "segstore_client.byte_streams.byte_reader",
    "ByteWriter": "segstore_client.byte_streams.byte_writer",
    "ClosedError": "segstore_client.errors",
    "ConflictError": "segstore_client.errors",
    "Entry": "segstore_client.steps.table_steps",
    "EventReader": "segstore_client.event_reader",
    "EventWriter": "segstore_client.event_writer",
    "GroupReader": "segstore_client.groups.group_reader",
    "NoPermissionError": "segstore_client.errors",
    "NotFoundError": "segstore_client.errors",
    "Position": "segstore_client.positions",
    "PravegaError": "segstore_client.errors",
    "ReadEvent": "pravega_wire.sessions.read_cursor",
    "ReaderGroup": "segstore_client.groups.reader_group",
    "RefusedError": "segstore_client.errors",
    "RemovedFromGroupError": "segstore_client.errors",
    "Retention": "segstore_client.controller.stream_settings",
    "Scaling": "segstore_client.controller.stream_settings",
    "SegmentLag": "pravega_wire.reader_groups.lags",
    "Serializer": "segstore_client.serializers",
    "Store": "segstore_client.store",
    "StoreDelayedError": "segstore_client.errors",
    "StreamSealedError": "segstore_client.errors",
    "StreamSettings": "segstore_client.controller.stream_settings",
    "Synchronizer": "segstore_client.states.synchronizer",
    "Table": "segstore_client.table",
    "TimedOutError": "segstore_client.errors",
    "Transaction": "segstore_client.transaction",
    "TransactionEndedError": "segstore_client.errors",
    "TruncatedError": "segstore_client.errors",
    "UnavailableError": "segstore_client.errors",
    "UnreadableEventError": "segstore_client.errors",
    "UntrustedServerError": "segstore_client.errors",
    "UsageError": "segstore_client.errors",
    "WriterClosedError": "segstore_client.errors",
    "connect": "segstore_client.store",
}
"""The module of each name."""


if not TYPE_CHECKING:
    # A checker of types would take every name for one of ours.

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: a program that blocks needs no event loop."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
