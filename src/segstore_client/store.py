"""The first thing that a program gets: a store, with its scopes and streams.

Owns: one controller client, and who calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from pravega_wire.sessions.append_session import BUFFER_BYTES
from segstore_client.access.settings import AccessSettings
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.byte_streams.byte_reader import ByteReader
from segstore_client.byte_streams.byte_writer import ByteWriter
from segstore_client.connections.calls import call_blocking
from segstore_client.connections.request_pool import RequestPool
from segstore_client.control import (
    SCALE_SECONDS_MAX,
    Control,
    open_controller,
    split_name,
)
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Retention, Scaling, StreamSettings
from segstore_client.cuts.bounds import At
from segstore_client.delays import OnDelay
from segstore_client.event_reader import EventReader
from segstore_client.event_writer import EventWriter
from segstore_client.frames import join_frames
from segstore_client.groups.reader_group import ReaderGroup
from segstore_client.leases import LEASE_SECONDS
from segstore_client.positions import End, Position
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.states.revision_log import RevisionLog
from segstore_client.states.synchronizer import Synchronizer
from segstore_client.steps.group_operations import (
    CHECKPOINT_SECONDS,
    REFRESH_SECONDS,
    Places,
    build_settings,
)
from segstore_client.table import Table, open_table
from segstore_client.transaction import Transaction

if TYPE_CHECKING:
    import pyarrow as pa


S = TypeVar("S")


class Store:
    """A store that was connected to. Names of streams are ``SCOPE/STREAM``."""

    def __init__(self, controller: ControllerClient, pool: RequestPool, *, patience: float) -> None:
        self._controller = controller
        self._control = Control(controller, patience=patience)
        self._pool = pool
        self._patience = patience

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._controller.address}>"

    # ---- Scopes ----------------------------------------------------------------------------------

    async def create_scope(self, scope: str, *, exist_ok: bool = False) -> None:
        """Create a scope. Raises ``AlreadyExistsError`` unless ``exist_ok``."""
        await call_blocking(partial(self._control.create_scope, scope, exist_ok=exist_ok))

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> None:
        """Delete an empty scope; with ``recursive`` also one with contents."""
        await call_blocking(partial(self._control.delete_scope, scope, recursive=recursive))

    async def list_scopes(self) -> list[str]:
        """Return the names of all scopes that the caller may see."""
        return await call_blocking(self._control.list_scopes)

    # ---- Streams ---------------------------------------------------------------------------------

    async def create_stream(
        self,
        stream: str,
        *,
        segments: int = 1,
        scaling: Scaling | None = None,
        retention: Retention | None = None,
        tags: Sequence[str] = (),
        exist_ok: bool = False,
    ) -> None:
        """Create a stream of so many segments, or one that scales.

        Raises ``AlreadyExistsError`` unless ``exist_ok``; the existing one keeps its settings.
        """
        create = partial(
            self._control.create_stream,
            stream,
            segments=segments,
            scaling=scaling,
            retention=retention,
            tags=tags,
            exist_ok=exist_ok,
        )
        await call_blocking(create)

    async def stream_settings(self, stream: str) -> StreamSettings:
        """Return a stream's settings."""
        return await call_blocking(partial(self._control.stream_settings, stream))

    async def update_stream(self, stream: str, settings: StreamSettings) -> None:
        """Replace a stream's settings."""
        await call_blocking(partial(self._control.update_stream, stream, settings))

    async def scale_stream(
        self, stream: str, segments: int, *, timeout: float = SCALE_SECONDS_MAX
    ) -> None:
        """Replace all segments of a stream by new ones of equal width, and wait until that is done.

        Raises ``ConflictError`` for a sealed stream or fewer segments than the stream's policy
        wants, and ``TimedOutError`` after ``timeout`` seconds; it may be done later then.
        """
        await call_blocking(partial(self._control.scale_stream, stream, segments, timeout=timeout))

    async def stream_cut(self, stream: str, at: End | datetime) -> dict[int, int]:
        """Return the stream cut at an end of a stream, or before the events of a time: offsets by
        segment id.

        Raises ``ConflictError`` for the tail of a sealed stream, and ``UsageError`` for a time if
        the writers of the stream record none.
        """
        return await call_blocking(partial(self._control.stream_cut, stream, at))

    async def seal_stream(self, stream: str) -> None:
        """Seal a stream, which then accepts no more events; sealing it twice is no error."""
        await call_blocking(partial(self._control.seal_stream, stream))

    async def delete_stream(self, stream: str) -> None:
        """Delete a sealed stream."""
        await call_blocking(partial(self._control.delete_stream, stream))

    async def truncate_stream(self, stream: str, cut: Mapping[int, int]) -> None:
        """Delete a stream's events before a stream cut: offsets by segment id."""
        await call_blocking(partial(self._control.truncate_stream, stream, cut))

    async def list_streams(self, scope: str, *, tag: str | None = None) -> list[str]:
        """Return the names of a scope's streams, ``SCOPE/STREAM``, those of the system left out."""
        return await call_blocking(partial(self._control.list_streams, scope, tag=tag))

    # ---- Key-value tables ------------------------------------------------------------------------

    async def create_table(
        self,
        table: str,
        *,
        primary_key_bytes: int,
        secondary_key_bytes: int = 0,
        partitions: int = 1,
        exist_ok: bool = False,
    ) -> None:
        """Create a key-value table; all of its keys have the given lengths, in bytes.

        Raises ``AlreadyExistsError`` unless ``exist_ok``; the existing one keeps its settings.
        """
        create = partial(
            self._control.create_table,
            table,
            primary_key_bytes=primary_key_bytes,
            secondary_key_bytes=secondary_key_bytes,
            partitions=partitions,
            exist_ok=exist_ok,
        )
        await call_blocking(create)

    async def delete_table(self, table: str) -> None:
        """Delete a key-value table with everything in it."""
        await call_blocking(partial(self._control.delete_table, table))

    async def list_tables(self, scope: str) -> list[str]:
        """Return the names of a scope's key-value tables, ``SCOPE/TABLE``."""
        return await call_blocking(partial(self._control.list_tables, scope))

    async def table(self, table: str) -> Table:
        """Return the entries of a key-value table. Raises ``NotFoundError``."""
        return await open_table(
            self._controller, self._pool, *split_name(table), patience=self._patience
        )

    # ---- Shared states ---------------------------------------------------------------------------

    def synchronizer(
        self,
        stream: str,
        *,
        load: Callable[[bytes], S],
        apply: Callable[[S, bytes], S],
    ) -> Synchronizer[S]:
        """Return a state that programs share by a stream of one segment, to be used in an
        ``async with`` block.

        ``load`` makes a state of the bytes of a whole one, ``apply`` returns the state after the
        bytes of an update.
        """
        log = RevisionLog(self._controller, *split_name(stream), patience=self._patience)
        return Synchronizer(log, name=stream, load=load, apply=apply)

    # ---- Reader groups ---------------------------------------------------------------------------

    async def create_group(
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
        """Create a reader group of these streams, by the name ``SCOPE/GROUP``.

        It reads from the heads of the streams to no end, or from and to other places: the same end
        or time of each stream, or by their names ends, times and stream cuts.
        Every ``checkpoint_seconds`` its readers take a checkpoint, at which others continue if one
        vanishes; None for no such checkpoints. Every ``refresh_seconds`` a reader looks what the
        others did. With ``retains`` the retention of the streams deletes nothing behind the last
        checkpoint. Raises ``AlreadyExistsError`` unless ``exist_ok``; the existing group keeps its
        settings.
        """
        for name in streams:
            split_name(name)
        build = partial(
            build_settings,
            self._controller.with_patience(self._patience),
            streams,
            starts=starts,
            ends=ends,
            checkpoint_seconds=checkpoint_seconds,
            refresh_seconds=refresh_seconds,
            retains=retains,
        )
        settings = await call_blocking(build)
        await self.group(group).create(settings, exist_ok=exist_ok)

    def group(self, group: str) -> ReaderGroup:
        """Return a reader group; ``create_group`` has to be called once for it, by any client."""
        return ReaderGroup(self._controller, *split_name(group), patience=self._patience)

    async def list_groups(self, scope: str) -> list[str]:
        """Return the names of a scope's reader groups, ``SCOPE/GROUP``."""
        return await call_blocking(partial(self._control.list_groups, scope))

    async def delete_group(self, group: str) -> None:
        """Delete a reader group. Its readers fail, and retention keeps nothing for it any more."""
        await call_blocking(partial(self._control.delete_group, group))

    # ---- Events ----------------------------------------------------------------------------------

    def writer(
        self,
        stream: str,
        *,
        serializer: Serializer[T] = BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> EventWriter[T]:
        """Return a writer of events, to be used in an ``async with`` block.

        ``serializer`` makes bytes of what is written. ``buffer_bytes`` bounds what is handed over
        and not stored yet. ``on_delay`` is called, in another thread, with the reason why a store
        does not answer now.
        """
        return EventWriter(
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
    ) -> Transaction[T]:
        """Return a transaction, to be used in an ``async with`` block, which commits it.

        If the program dies, the controller aborts it after ``lease`` seconds.
        """
        return Transaction(
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
    ) -> EventReader[T]:
        """Return a reader of events, to be used in an ``async with`` block.

        It begins and ends at an end of the stream, at a time, or at a stream cut.
        ``Position.TAIL`` as the end is the tail that the stream has now. Without an end it goes on
        until the stream is sealed. ``serializer`` makes the ``value`` of an event of its ``data``.

        The block raises ``UsageError`` if the stream has no such place, or the end lies before the
        start.
        """
        return EventReader(
            self._controller,
            *split_name(stream),
            start=start,
            end=end,
            serializer=serializer,
            patience=self._patience,
        )

    async def read_frame(
        self, stream: str, *, start: At = Position.HEAD, end: At = Position.TAIL
    ) -> pa.Table:
        """Return the events between two places as a table of Apache Arrow, in memory.

        Its columns are those of ``frame_schema``. Events of one key are in their order. Raises
        ``UsageError`` without ``pyarrow``, and errors as ``reader``.
        """
        async with self.reader(stream, start=start, end=end) as reader:
            return join_frames([batch async for batch in reader.arrow_batches()])

    # ---- Bytes -----------------------------------------------------------------------------------

    def byte_writer(
        self,
        stream: str,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None = None,
    ) -> ByteWriter:
        """Return a writer of bytes without events, to be used in an ``async with`` block.

        The stream has one segment. The arguments are those of ``writer``.
        """
        return ByteWriter(
            self._controller,
            self._pool,
            *split_name(stream),
            patience=self._patience,
            buffer_bytes=buffer_bytes,
            on_delay=on_delay,
        )

    def byte_reader(self, stream: str, *, offset: int | End = Position.HEAD) -> ByteReader:
        """Return a reader of a byte stream, to be used in an ``async with`` block.

        It begins at an offset, or at an end of the stream.
        """
        return ByteReader(
            self._controller,
            self._pool,
            *split_name(stream),
            offset=offset,
            patience=self._patience,
        )


@asynccontextmanager
async def connect(
    controller: str = DEFAULT_CONTROLLER,
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    ca: str = "",
    patience: float | None = None,
) -> AsyncIterator[Store]:
    """Connect to a store by the address of its controller, such as ``tcp://localhost:9090``, or
    ``tls://HOST:PORT,HOST:PORT``.

    What is not named here, such as the user, is taken from the environment, as the command line
    does. ``ca`` is a file of certificates to trust. ``patience`` is the number of seconds for which
    servers may be unreachable, or delay requests, before a call, a writer or a reader gives up: 60,
    and 5 for the first call of all, so that a wrong address is told soon, unless it is given.
    """
    named = AccessSettings(user=user, password=password, token=token, ca=ca)
    client = await call_blocking(partial(open_controller, controller, named, patience=patience))
    # Closed by hand: as a context manager, the group would wrap the program's errors in its own.
    stack = AsyncExitStack()
    stack.push_async_callback(_close, client)
    group = await stack.enter_async_context(anyio.create_task_group())
    try:
        seconds = PATIENCE_SECONDS if patience is None else patience
        yield Store(client, RequestPool(group), patience=seconds)
    finally:
        group.cancel_scope.cancel()
        await stack.aclose()


async def _close(client: ControllerClient) -> None:
    with anyio.CancelScope(shield=True):
        await call_blocking(client.close)
