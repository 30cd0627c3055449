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

from segstore_client.blocking.byte_streams.byte_reader import BlockingByteReader
from segstore_client.blocking.byte_streams.byte_writer import BlockingByteWriter
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.blocking.groups.group_reader import BlockingGroupReader
from segstore_client.blocking.groups.reader_group import BlockingReaderGroup
from segstore_client.blocking.keyed_writer import BlockingAcknowledgement
from segstore_client.blocking.states.synchronizer import BlockingSynchronizer
from segstore_client.blocking.store import BlockingStore, connect
from segstore_client.blocking.table import BlockingTable
from segstore_client.blocking.transaction import BlockingTransaction

__all__ = [
    "BlockingAcknowledgement",
    "BlockingByteReader",
    "BlockingByteWriter",
    "BlockingEventReader",
    "BlockingEventWriter",
    "BlockingGroupReader",
    "BlockingReaderGroup",
    "BlockingStore",
    "BlockingSynchronizer",
    "BlockingTable",
    "BlockingTransaction",
    "connect",
]
