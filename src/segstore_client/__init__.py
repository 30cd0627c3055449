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

from pravega_blocking.errors import (
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
from pravega_blocking.positions import Start
from pravega_blocking.tables.table_steps import ABSENT, Entry
from segstore_client.acknowledgement import Acknowledgement
from segstore_client.buffered_writer import WriterClosedError
from segstore_client.byte_streams.byte_reader import ByteReader
from segstore_client.byte_streams.byte_writer import ByteWriter
from segstore_client.event_reader import EventReader
from segstore_client.event_writer import EventWriter
from segstore_client.groups.group_reader import GroupReader
from segstore_client.groups.reader_group import ReaderGroup
from segstore_client.states.synchronizer import Synchronizer
from segstore_client.store import Store, connect
from segstore_client.table import Table
from segstore_client.transaction import Transaction

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
    "PravegaError",
    "ReaderGroup",
    "RefusedError",
    "RemovedFromGroupError",
    "Start",
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
