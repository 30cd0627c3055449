"""A client for programs that block, without an event loop and without threads.

with segstore_client.blocking.connect("tcp://localhost:9090") as store:
    store.create_scope("demo")
    store.create_stream("demo/orders", segments=3)
    with store.writer("demo/orders") as writer:
        writer.write(b"two apples", key="customer-7")
    with store.reader("demo/orders") as reader:
        for event in reader:
            print(event.data)
"""

from __future__ import annotations

from pravega_blocking.byte_streams.byte_reader import ByteReader
from pravega_blocking.byte_streams.byte_writer import ByteWriter
from pravega_blocking.event_reader import EventReader
from pravega_blocking.event_writer import EventWriter
from pravega_blocking.groups.group_reader import GroupReader
from pravega_blocking.groups.reader_group import ReaderGroup
from pravega_blocking.states.synchronizer import Synchronizer
from pravega_blocking.tables.table import Table
from segstore_client.blocking.store import BlockingStore, connect
from segstore_client.blocking.transaction import BlockingTransaction

__all__ = [
    "BlockingStore",
    "BlockingTransaction",
    "ByteReader",
    "ByteWriter",
    "EventReader",
    "EventWriter",
    "GroupReader",
    "ReaderGroup",
    "Synchronizer",
    "Table",
    "connect",
]
