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
    from segstore_client.byte_streams.byte_reader import ByteReader
    from segstore_client.byte_streams.byte_writer import ByteWriter
    from segstore_client.errors import (
        AlreadyExistsError,
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
        UntrustedServerError,
        UsageError,
    )
    from segstore_client.event_reader import EventReader
    from segstore_client.event_writer import EventWriter
    from segstore_client.groups.group_reader import GroupReader
    from segstore_client.groups.reader_group import ReaderGroup
    from segstore_client.positions import Position
    from segstore_client.states.synchronizer import Synchronizer
    from segstore_client.steps.table_steps import ABSENT, Entry
    from segstore_client.store import Store, connect
    from segstore_client.table import Table
    from segstore_client.transaction import Transaction
    from segstore_client.writing.acknowledgement import Acknowledgement
    from segstore_client.writing.buffered_writer import WriterClosedError

__all__ = [
    "ABSENT",
    "Acknowledgement",
    "AlreadyExistsError",
    "ByteReader",
    "ByteWriter",
    "ConflictError",
    "Entry",
    "EventReader",
    "EventWriter",
    "GroupReader",
    "NoPermissionError",
    "NotFoundError",
    "Position",
    "PravegaError",
    "ReaderGroup",
    "RefusedError",
    "RemovedFromGroupError",
    "Store",
    "StoreDelayedError",
    "StreamSealedError",
    "Synchronizer",
    "Table",
    "TimedOutError",
    "Transaction",
    "TransactionEndedError",
    "TruncatedError",
    "UnavailableError",
    "UntrustedServerError",
    "UsageError",
    "WriterClosedError",
    "connect",
]

_HOMES = {
    "ABSENT": "steps.table_steps",
    "Acknowledgement": "writing.acknowledgement",
    "AlreadyExistsError": "errors",
    "ByteReader": "byte_streams.byte_reader",
    "ByteWriter": "byte_streams.byte_writer",
    "ConflictError": "errors",
    "Entry": "steps.table_steps",
    "EventReader": "event_reader",
    "EventWriter": "event_writer",
    "GroupReader": "groups.group_reader",
    "NoPermissionError": "errors",
    "NotFoundError": "errors",
    "PravegaError": "errors",
    "ReaderGroup": "groups.reader_group",
    "RefusedError": "errors",
    "RemovedFromGroupError": "errors",
    "Position": "positions",
    "Store": "store",
    "StoreDelayedError": "errors",
    "StreamSealedError": "errors",
    "Synchronizer": "states.synchronizer",
    "Table": "table",
    "TimedOutError": "errors",
    "Transaction": "transaction",
    "TransactionEndedError": "errors",
    "TruncatedError": "errors",
    "UnavailableError": "errors",
    "UntrustedServerError": "errors",
    "UsageError": "errors",
    "WriterClosedError": "writing.buffered_writer",
    "connect": "store",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: who blocks needs no event loop, and starts sooner."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
