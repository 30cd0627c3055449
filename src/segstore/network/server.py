"""The segment store process: listeners, connections, containers, and how it all ends.

Owns: the nesting of lifetimes. Containers outlive connections, which outlive acceptors.

Invariants:
1. The port opens when every container has been tried once, or after ``start_seconds_max``.
2. A shutdown stops accepting, then drains connections for at most ``drain_seconds``, then stops the
   containers. A member of a cluster hands its containers over before that.
3. Whatever happens on a connection ends at most that connection.
4. Connections have their share of the file descriptors and no more: beyond it new ones are closed
   at once. A lack of descriptors makes the acceptors pause; it never ends them.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio

from segstore.errors import (
    DataDirectoryError,
    NoContainerLeftError,
    SegmentStoreError,
    leaf_errors,
)
from segstore.load.monitor import LoadMonitor
from segstore.load.request_stream import look_up_with, report_load
from segstore.network.buffer_bytes import BufferBytes
from segstore.network.bulk_turns import BulkTurns
from segstore.network.connection import ServerConnection
from segstore.network.handler_table import Store
from segstore.network.outstanding_bytes import OutstandingTotal
from segstore.network.read_pacing import HeldReads
from segstore.process.config import ConnectionSettings, SegmentStoreConfig
from segstore.process.registry import ContainerRegistry, OpenContainer
from segstore.runtime.alarm import TimerAlarm
from segstore.runtime.clock import wall_clock_ms
from segstore.runtime.descriptors import descriptor_limit, share_out
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import ReceiveBuffer, SocketTransport, StreamTransport, Transport

if TYPE_CHECKING:  # clusters' clients take long to import
    from segstore.process.membership import Membership

StreamType = TypeVar("StreamType", bound=trio.abc.HalfCloseableStream)

ACCEPT_PAUSE_SECONDS: Final = 0.1
REFUSAL_LINE_SECONDS: Final = 10.0
"""Interval, in seconds, in which at most one line about refused connections is logged."""
STALLED_LOOKS: Final = 4
"""Number of looks for stalled connections in the time after which they are ended."""
HOLDERS_LOOK_SECONDS: Final = 0.25
"""Pause, in seconds, between looks at the connections whose memory others wait for."""
STALLED_LOOK_COUNT: Final = 1_000
"""Maximum number of connections that are examined in one step of the event loop."""
_LACKS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))

logger = structlog.get_logger(__name__)


class AddressInUseError(SegmentStoreError):
    """Somebody else listens there already."""


class ConnectionServer:
    """Serves the connections of a process; every one of them by ``serve``."""

    def __init__(
        self,
        registry: ContainerRegistry,
        settings: ConnectionSettings,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store = Store(registry, now_ms, random_bytes)
        self._settings = settings
        self._outstanding_total = OutstandingTotal(settings, registry.container_count)
        self._receive_buffer = ReceiveBuffer(settings.receive_bytes)
        self._buffers = BufferBytes(settings, self._receive_buffer.narrow)
        self._bulk_turns = BulkTurns(settings.bulk_bytes_beside_readers)
        self.held_reads = HeldReads(settings.reply_age_seconds_min)
        # The connections, in the order in which they were accepted.
        self._connections: dict[ServerConnection, None] = {}
        self._draining = False
        self._refusals = _Refusals()
        self._reactor = current_reactor()

    @property
    def connections_max(self) -> int:
        """Return how many connections may be open."""
        return self._settings.connections_max

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes all connections have in buffers."""
        return self._buffers.count

    @property
    def connection_count(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one connection until it ends. Never raises an ``Exception``."""
        if self._draining or len(self._connections) >= self._settings.connections_max:
            reason = "the store stops" if self._draining else "connections_max is reached"
            self.log_refused(reason)
            await trio.aclose_forcefully(stream)
            return
        try:
            transport = self._transport(stream)
        # Only its own peer shall notice that the kernel does not watch another socket.
        except OSError as error:
            self.log_refused(str(error))
            await trio.aclose_forcefully(stream)
            return
        connection = ServerConnection(
            transport,
            store=self._store,
            settings=self._settings,
            outstanding_total=self._outstanding_total,
            buffers=self._buffers,
            held_reads=self.held_reads,
            bulk_turns=self._bulk_turns,
        )
        self._connections[connection] = None
        try:
            await connection.serve()
        # A defect must end this connection alone, not the process with all others.
        except Exception:
            logger.exception("connection failed", peer=transport.peer)
        finally:
            del self._connections[connection]

    async def end_stalled(self) -> None:
        """End connections that keep memory and make no progress, until cancelled."""
        commands = self._buffers.commands
        pause = self._settings.stalled_seconds_max / STALLED_LOOKS
        next_look = trio.current_time() + pause
        while True:
            with trio.move_on_at(next_look):
                await commands.wait_until_waited_for()
                await trio.sleep(HOLDERS_LOOK_SECONDS)
            for holder in list(commands.holders if commands.are_waited_for else ()):
                holder.end_if_stalled(trio.current_time())
            if trio.current_time() < next_look:
                continue
            next_look = trio.current_time() + pause
            for count, connection in enumerate(list(self._connections)):
                connection.end_if_stalled(trio.current_time())
                if count % STALLED_LOOK_COUNT == STALLED_LOOK_COUNT - 1:
                    await trio.lowlevel.checkpoint()

    def log_refused(self, reason: str) -> None:
        """Log, but seldom, that a connection was refused or could not be accepted."""
        self._refusals.log(reason, len(self._connections))

    def drain(self) -> None:
        """End every connection once it has answered what it has dispatched."""
        self._draining = True
        for connection in self._connections:
            connection.drain()

    def _transport(self, stream: trio.abc.HalfCloseableStream) -> Transport:
        if isinstance(stream, trio.SocketStream):
            return SocketTransport(stream, self._receive_buffer, self._reactor, self._bulk_turns)
        return StreamTransport(stream)


class _Refusals:
    """Logs refused connections: the first at once, the others counted in a later line."""

    def __init__(self) -> None:
        self._unlogged = 0
        self._next_line = -math.inf

    def log(self, reason: str, open_count: int) -> None:
        self._unlogged += 1
        now = trio.current_time()
        if now >= self._next_line:
            logger.warning(
                "connection refused", reason=reason, count=self._unlogged, open=open_count
            )
            self._unlogged = 0
            self._next_line = now + REFUSAL_LINE_SECONDS


async def open_listeners(config: SegmentStoreConfig) -> list[trio.SocketListener]:
    """Bind the port, else ``AddressInUseError`` or ``OSError``."""
    try:
        return await trio.open_tcp_listeners(
            config.port, host=config.host or None, backlog=config.connections.backlog
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"{config.host}:{config.port} is in use: is another segment store running?"
            ) from error
        raise


async def serve_connections(
    server: ConnectionServer,
    listeners: Sequence[trio.abc.Listener[StreamType]],
    *,
    drain_seconds: float,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept and serve until ``shutdown``, then drain."""
    with closing(TimerAlarm()) as alarm:
        async with trio.open_nursery() as watching:
            await watching.start(current_reactor().run)
            watching.start_soon(server.end_stalled)
            watching.start_soon(server.held_reads.run, alarm)
            async with trio.open_nursery() as connections:
                await _accept(server, listeners, connections, shutdown, task_status)
                server.drain()
                connections.cancel_scope.deadline = trio.current_time() + drain_seconds
            watching.cancel_scope.cancel()


async def _accept(
    server: ConnectionServer,
    listeners: Sequence[trio.abc.Listener[StreamType]],
    connections: trio.Nursery,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[None],
) -> None:
    async with trio.open_nursery() as acceptors:
        for listener in listeners:
            acceptors.start_soon(_accept_from, server, listener, connections)
        task_status.started()
        await shutdown.wait()
        acceptors.cancel_scope.cancel()


async def _accept_from(
    server: ConnectionServer,
    listener: trio.abc.Listener[StreamType],
    connections: trio.Nursery,
) -> None:
    """Accept until cancelled."""
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _LACKS:
                    raise
                # The connection stays in the backlog: trying again at once would only spin.
                server.log_refused(str(error))
                await trio.sleep(ACCEPT_PAUSE_SECONDS)
            else:
                connections.start_soon(server.serve, stream)


async def serve(
    config: SegmentStoreConfig,
    open_container: OpenContainer,
    *,
    membership: Membership | None = None,
    shutdown: trio.Event | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    random_bytes: Callable[[int], bytes] = os.urandom,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a segment store until ``shutdown`` is set (gracefully) or it is cancelled (at once).

    With a ``membership`` in a cluster it hosts what it is given there, else what ``config`` says.
    Reports the port when it serves. Raises ``AddressInUseError`` when it cannot listen,
    ``TooFewDescriptorsError`` when it may open too few files, ``DataDirectoryError`` when the
    containers cannot be opened at all and ``NoContainerLeftError`` when every one of them stays
    offline.
    """
    shares = share_out(descriptor_limit())
    listeners = await open_listeners(config)
    port = listeners[0].socket.getsockname()[1]
    registry = _make_registry(config, open_container, membership)
    server = ConnectionServer(
        registry,
        config.bounded_connections(shares.connections),
        now_ms=now_ms,
        random_bytes=random_bytes,
    )
    shutdown = trio.Event() if shutdown is None else shutdown
    try:
        async with trio.open_nursery() as containers:
            await containers.start(registry.run)
            with trio.move_on_after(config.start_seconds_max):
                if membership is not None:
                    await membership.begin(registry)
                await registry.wait_until_tried()
            logger.info(
                "segment store serves",
                host=config.host,
                port=port,
                online=registry.online_count,
                connections_max=server.connections_max,
            )
            task_status.started(port)
            if (find := _controllers(config, membership)) is not None:
                monitor = LoadMonitor(registry, config.auto_scale, now_ms=now_ms)
                containers.start_soon(report_load, monitor, look_up_with(find))
            if membership is not None:
                membership.mark_serving()
                told, shutdown = shutdown, trio.Event()
                containers.start_soon(_leave, membership, told, shutdown)
            await serve_connections(
                server, listeners, drain_seconds=config.drain_seconds, shutdown=shutdown
            )
            containers.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        for leaf in leaf_errors(group):
            if isinstance(leaf, DataDirectoryError | NoContainerLeftError):
                raise leaf from group
        raise
    finally:
        for listener in listeners:
            with trio.CancelScope(shield=True):
                await listener.aclose()


def _make_registry(
    config: SegmentStoreConfig, open_container: OpenContainer, membership: Membership | None
) -> ContainerRegistry:
    restart_seconds_max = config.restart_seconds_max
    if membership is not None:
        restart_seconds_max = min(restart_seconds_max, membership.restart_seconds_max)
    return ContainerRegistry(
        open_container,
        container_count=config.container_count,
        container_ids=config.hosted_containers if membership is None else None,
        tables=config.tables,
        restart_seconds_min=config.restart_seconds_min,
        restart_seconds_max=restart_seconds_max,
    )


def _controllers(
    config: SegmentStoreConfig, membership: Membership | None
) -> Callable[[], Sequence[tuple[str, int]]] | None:
    """Return a source of controllers' addresses: the configured one, or those that are registered
    in the cluster. None if load is reported to no controller."""
    if (controller := config.controller) is not None:
        return lambda: [controller]
    return None if membership is None else membership.controllers


async def _leave(membership: Membership, told: trio.Event, left: trio.Event) -> None:
    """Leave the cluster when the signal to do so comes."""
    await told.wait()
    await membership.hand_over()
    left.set()
