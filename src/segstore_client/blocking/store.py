"""The first thing that a program that blocks gets: a store, with its scopes and streams.

Owns: one controller client, and who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from pravega_wire.sessions.append_session import BUFFER_BYTES
from segstore_client.access.settings import AccessSettings
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.blocking.byte_streams.byte_reader import BlockingByteReader
from segstore_client.blocking.byte_streams.byte_writer import BlockingByteWriter
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.blocking.groups.reader_group import BlockingReaderGroup
from segstore_client.blocking.states.revision_log import BlockingRevisionLog
from segstore_client.blocking.states.synchronizer import BlockingSynchronizer
from segstore_client.blocking.table import BlockingTable
from segstore_client.blocking.transaction import BlockingTransaction
from segstore_client.control import Control, open_controller, split_name
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.bounds import At
from segstore_client.delays import OnDelay
from segstore_client.frames import join_frames
from segstore_client.leases import LEASE_SECONDS
from segstore_client.positions import End, Position
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.steps.group_operations import (
    CHECKPOINT_SECONDS,
    REFRESH_SECONDS,
    Places,
    build_settings,
)

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S")


class BlockingStore(Control):
    """A store that was connected to. Names of streams are ``SCOPE/STREAM``.

    All threads may use it; each has writers, readers and other objects of its own.
    """

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        super().__init__(controller, patience=patience)
        self._patience = patience

    def writer(
        self,
        stream: str,
        *,
        serializer: Serializer[T] = BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> BlockingEventWriter[T]:
        """Return a writer of events, to be used in a ``with`` block.

        ``serializer`` makes bytes of what is written. An event over 8 MiB is written in pieces,
        which readers see together. ``buffer_bytes`` bounds what is handed over and not stored yet.
        ``on_delay`` is called with the reason why a store does not answer now.
        """
        return BlockingEventWriter(
            self._controller,
            *split_name(stream),
            serializer=serializer,
            patience=self._patience,
            buffer_bytes=buffer_bytes,
            on_delay=on_delay,
        )

    def transaction(
        self,
        stream: str,
        *,
        serializer: Serializer[T] = BYTES,
        lease: float = LEASE_SECONDS,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> BlockingTransaction[T]:
        """Begin a transaction, to be used in a ``with`` block, which commits it.

        The calls on it renew its lease. If none comes for ``lease`` seconds, the controller aborts
        it.
        """
        return BlockingTransaction(
            self._controller,
            *split_name(stream),
            serializer=serializer,
            lease=lease,
            patience=self._patience,
            buffer_bytes=buffer_bytes,
            on_delay=on_delay,
        )

    def reader(
        self,
        stream: str,
        *,
        start: At = Position.HEAD,
        end: At | None = None,
        serializer: Serializer[T] = BYTES,
    ) -> BlockingEventReader[T]:
        """Return a reader of events, to be used in a ``with`` block.

        It begins and ends at an end of the stream, at a time, or at a stream cut.
        ``Position.TAIL`` as the end is the tail that the stream has now. Without an end it goes on
        until the stream is sealed. ``serializer`` makes the ``value`` of an event of its ``data``.

        Raises ``UsageError`` if the stream has no such place, or the end lies before the start.
        """
        return BlockingEventReader(
            self._controller,
            *split_name(stream),
            start=start,
            end=end,
            serializer=serializer,
            patience=self._patience,
        )

    def read_frame(
        self, stream: str, *, start: At = Position.HEAD, end: At = Position.TAIL
    ) -> pa.Table:
        """Return the events between two places as a table of Apache Arrow, in memory.

        Its columns are those of ``frame_schema``. Events of one key are in their order. Raises
        ``UsageError`` without ``pyarrow``, and errors as ``reader``.
        """
        with self.reader(stream, start=start, end=end) as reader:
            return join_frames(list(reader.arrow_batches()))

    def byte_writer(self, stream: str, *, on_delay: OnDelay | None = None) -> BlockingByteWriter:
        """Return a writer of bytes without events, a raw file, to be used in a ``with`` block.

        The stream has one segment. ``on_delay`` is that of ``writer``.
        """
        return BlockingByteWriter(
            self._controller, *split_name(stream), patience=self._patience, on_delay=on_delay
        )

    def byte_reader(self, stream: str, *, offset: int | End = Position.HEAD) -> BlockingByteReader:
        """Return a reader of a byte stream, a raw file, to be used in a ``with`` block.

        It begins at an offset, or at an end of the stream.
        """
        return BlockingByteReader(
            self._controller, *split_name(stream), offset=offset, patience=self._patience
        )

    def table(self, table: str) -> BlockingTable:
        """Return the entries of a key-value table. Raises ``NotFoundError``."""
        return BlockingTable(self._controller, *split_name(table), patience=self._patience)

    def create_group(
        self,
        group: str,
        streams: Sequence[str],
        *,
        starts: Places | None = None,
        ends: Places | None = None,
        checkpoint_seconds: float | None = CHECKPOINT_SECONDS,
        refresh_seconds: float = REFRESH_SECONDS,
        retains: bool = False,
        exist_ok: bool = False,
    ) -> None:
        """Create a reader group; the arguments and errors are those of ``Store.create_group``."""
        for name in streams:
            split_name(name)
        settings = build_settings(
            self._patient,
            streams,
            starts=starts,
            ends=ends,
            checkpoint_seconds=checkpoint_seconds,
            refresh_seconds=refresh_seconds,
            retains=retains,
        )
        self.group(group).create(settings, exist_ok=exist_ok)

    def group(self, group: str) -> BlockingReaderGroup:
        """Return a reader group; ``create_group`` has to be called once for it, by any client."""
        return BlockingReaderGroup(self._controller, *split_name(group), patience=self._patience)

    def synchronizer(
        self,
        stream: str,
        *,
        load: Callable[[bytes], S],
        apply: Callable[[S, bytes], S],
    ) -> BlockingSynchronizer[S]:
        """Return a state that programs share by a stream of one segment, to be used in a ``with``
        block.

        ``load`` makes a state of the bytes of a whole one, ``apply`` returns the state after the
        bytes of an update.
        """
        log = BlockingRevisionLog(self._controller, *split_name(stream), patience=self._patience)
        return BlockingSynchronizer(log, name=stream, load=load, apply=apply)


@contextmanager
def connect(
    controller: str = DEFAULT_CONTROLLER,
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    ca: str = "",
    patience: float | None = None,
) -> Iterator[BlockingStore]:
    """Connect to a store; the arguments are those of ``segstore_client.connect``."""
    named = AccessSettings(user=user, password=password, token=token, ca=ca)
    with closing(open_controller(controller, named, patience=patience)) as client:
        yield BlockingStore(client, patience=PATIENCE_SECONDS if patience is None else patience)
