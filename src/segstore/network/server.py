"""Runs the segment store process: listeners, connections and containers.

Owns: the nesting of lifetimes. Containers outlive connections, and connections outlive acceptors.

Invariants:
1. The port opens when every container has been tried once. When one takes longer than
   ``start_seconds_max``, the port opens without it. Held by
   ``test_the_port_opens_although_a_container_takes_long_to_recover``.
2. When the store is shut down, it accepts no more connections. Held by
   ``test_a_shutdown_closes_connections_and_the_port``. It then answers the dispatched requests.
   Held by ``test_draining_answers_what_was_taken_up_and_then_closes``. After ``drain_seconds``, it
   ends the connections. Held by ``test_a_shutdown_does_not_wait_for_ever``. A member of a cluster
   first hands its containers over. Held by
   ``test_a_store_that_ends_gently_hands_its_containers_over``.
3. When something fails on a connection, only that connection ends. Held by
   ``test_a_defect_in_taking_up_an_append_costs_only_its_connection`` and
   ``test_a_socket_that_cannot_be_watched_costs_only_its_connection``.
4. When as many connections are open as their share of the file descriptors allows, a new one is
   closed at once. Held by ``test_connections_are_bounded``. When the process has no descriptors
   left, acceptors pause and try again. Held by
   ``test_accepting_survives_a_lack_of_file_descriptors``.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio

from pravega_metrics import store_metrics
from pravega_metrics.metrics import Family
from pravega_metrics.process_metrics import measure_loop_lag, watch_certificate
from pravega_security.delegation_tokens import TokenMinter, TokenVerifier
from pravega_security.signing_keys import SigningKeys
from pravega_security.tls import ServerCertificate, client_context
from pravega_security.tls_streams import OpenStream, open_tls_with
from segstore.errors import (
    DataDirectoryError,
    NoContainerLeftError,
    SegmentStoreError,
    leaf_errors,
)
from segstore.load.measures import StoreMeasures
from segstore.load.monitor import LoadMonitor
from segstore.load.request_stream import look_up_with, no_token, report_load
from segstore.network.admission.policy import Admission
from segstore.network.connection import ServerConnection
from segstore.network.handler_table import Store
from segstore.process.config import ConnectionSettings, SegmentStoreConfig
from segstore.process.registry import ContainerRegistry, OpenContainer
from segstore.runtime.alarm import TimerAlarm
from segstore.runtime.clock import wall_clock_ms
from segstore.runtime.descriptors import descriptor_limit, share_out
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import ReceiveBuffer, SocketTransport, StreamTransport, Transport
from segstore.tls.acceptor import TlsAcceptor

if TYPE_CHECKING:  # clusters' clients take long to import
    from segstore.process.membership import Membership

StreamType = TypeVar("StreamType", bound=trio.abc.HalfCloseableStream)

ACCEPT_PAUSE_SECONDS: Final = 0.1
REFUSAL_LINE_SECONDS: Final = 10.0
"""Interval, in seconds, for which at most one line about refused connections is logged."""
STALLED_LOOKS: Final = 4
"""Number of checks for stalled connections in ``stalled_seconds_max``."""
HOLDERS_LOOK_SECONDS: Final = 0.25
"""Pause, in seconds, between checks of the connections that have memory for which others wait."""
STALLED_LOOK_COUNT: Final = 1_000
"""Maximum number of connections that are examined in one step of the event loop."""
_LACKS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))

logger = structlog.get_logger(__name__)


class AddressInUseError(SegmentStoreError):
    """Another process listens on the address."""


class ConnectionServer:
    """Serves the connections of a process. One call of ``serve`` serves one of them."""

    def __init__(
        self,
        registry: ContainerRegistry,
        settings: ConnectionSettings,
        *,
        tls: TlsAcceptor | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        random_bytes: Callable[[int], bytes] = os.urandom,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self._tls = tls
        measures = StoreMeasures(registry, self._read_connections)
        self._store = Store(registry, now_ms, random_bytes, measures.read, tokens=tokens)
        self._settings = settings
        self._receive_buffer = ReceiveBuffer(settings.receive_bytes)
        self.admission = Admission(settings, registry.container_count, self._receive_buffer.narrow)
        # The connections, in the order in which they were accepted.
        self.connections: dict[ServerConnection, None] = {}
        self._draining = False
        self._refusals = _Refusals()
        self._reactor = current_reactor()

    def _read_connections(self) -> list[Family]:
        return [
            store_metrics.CONNECTIONS.family({(): self.connection_count}),
            store_metrics.CONNECTIONS_MAX.family({(): self.connections_max}),
            store_metrics.BUFFERED_BYTES.family({(): self.buffered_bytes}),
        ]

    @property
    def connections_max(self) -> int:
        """Return how many connections may be open."""
        return self._settings.connections_max

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes all connections have in buffers."""
        return self.admission.buffers.count

    @property
    def connection_count(self) -> int:
        """Return how many connections are open."""
        return len(self.connections)

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve one connection until it ends. Never raises an ``Exception``."""
        count = len(self.connections) + (0 if self._tls is None else self._tls.handshake_count)
        if self._draining or count >= self._settings.connections_max:
            reason = "the store stops" if self._draining else "connections_max is reached"
            self.log_refused(reason)
            await trio.aclose_forcefully(stream)
            return
        try:
            transport = await self._let_in(stream)
        # If the kernel does not watch another socket, only this connection fails.
        except OSError as error:
            self.log_refused(str(error))
            await trio.aclose_forcefully(stream)
            return
        if transport is None:
            return
        connection = ServerConnection(transport, store=self._store, admission=self.admission)
        self.connections[connection] = None
        try:
            await connection.serve()
        # A defect must end only this connection, not the process with all others.
        except Exception:
            logger.exception("connection failed", peer=transport.peer)
        finally:
            del self.connections[connection]

    async def end_stalled(self) -> None:
        """End connections that keep memory and make no progress, until cancelled."""
        commands = self.admission.buffers.commands
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
            for count, connection in enumerate(list(self.connections)):
                connection.end_if_stalled(trio.current_time())
                if count % STALLED_LOOK_COUNT == STALLED_LOOK_COUNT - 1:
                    await trio.lowlevel.checkpoint()

    def log_refused(self, reason: str) -> None:
        """Log that a connection was refused or could not be accepted, at most once in
        ``REFUSAL_LINE_SECONDS``."""
        self._refusals.log(reason, len(self.connections))

    def drain(self) -> None:
        """End each connection after it has answered what it has dispatched."""
        self._draining = True
        if self._tls is not None:
            self._tls.stop()
        for connection in self.connections:
            connection.drain()

    async def _let_in(self, stream: trio.abc.HalfCloseableStream) -> Transport | None:
        """Return the transport of a stream; None if the TLS handshake with the peer failed."""
        if self._tls is None:
            return self._transport(stream)
        assert isinstance(stream, trio.SocketStream), "TLS is for sockets"
        turns = self.admission.bulk_turns
        transport = await self._tls.accept(stream, self._receive_buffer, turns, self.log_refused)
        if transport is not None and self._draining:
            await transport.aclose()
            return None
        return transport

    def _transport(self, stream: trio.abc.HalfCloseableStream) -> Transport:
        if isinstance(stream, trio.SocketStream):
            turns = self.admission.bulk_turns
            return SocketTransport(stream, self._receive_buffer, self._reactor, turns)
        return StreamTransport(stream)


class _Refusals:
    """Logs refused connections: the first one at once, later ones as a number in the next line."""

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
    """Bind the port. Raises ``AddressInUseError`` or another ``OSError``."""
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
    """Accept and serve connections until ``shutdown`` is set, then drain them for at most
    ``drain_seconds``."""
    with closing(TimerAlarm()) as alarm:
        async with trio.open_nursery() as watching:
            await watching.start(current_reactor().run)
            watching.start_soon(server.end_stalled)
            watching.start_soon(server.admission.held_reads.run, alarm)
            async with trio.open_nursery() as connections:
                await accept_connections(server, listeners, connections, shutdown, task_status)
                server.drain()
                connections.cancel_scope.deadline = trio.current_time() + drain_seconds
            watching.cancel_scope.cancel()


async def accept_connections(
    server: ConnectionServer,
    listeners: Sequence[trio.abc.Listener[StreamType]],
    connections: trio.Nursery,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve the connections that come to the listeners, each in a task of ``connections``, until
    ``shutdown``."""
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
    """Accept connections until cancelled."""
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _LACKS:
                    raise
                # The connection stays in the backlog, so another attempt at once would only fail
                # again.
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

    It hosts the containers that its ``membership`` assigns to it, else those of ``config``. Reports
    its port when it serves. Raises ``CertificateError`` and ``SigningKeysError`` for files that it
    cannot use, ``AddressInUseError`` when it cannot listen, ``TooFewDescriptorsError`` for too few
    files, ``DataDirectoryError`` when no container can be opened at all, and
    ``NoContainerLeftError`` when every container stays offline.
    """
    keys = None if config.token_keys is None else SigningKeys(config.token_keys)
    shares = share_out(descriptor_limit())
    tls = _make_acceptor(config)
    listeners = await open_listeners(config)
    port = listeners[0].socket.getsockname()[1]
    registry = _make_registry(config, open_container, membership)
    server = ConnectionServer(
        registry,
        config.bounded_connections(shares.connections),
        tls=tls,
        now_ms=now_ms,
        random_bytes=random_bytes,
        tokens=None if keys is None else TokenVerifier(keys, lambda: now_ms() // 1000),
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
                containers.start_soon(_reporter(config, monitor, find, _own_token(keys, now_ms)))
            containers.start_soon(_watch_process, tls)
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


def _own_token(keys: SigningKeys | None, now_ms: Callable[[], int]) -> Callable[[], str]:
    """Return a function that returns the token of this process; "" while authorization is off."""
    if keys is None:
        return no_token
    return TokenMinter(keys, None, lambda: now_ms() // 1000).mint_master


def _make_acceptor(config: SegmentStoreConfig) -> TlsAcceptor | None:
    """Return the acceptor of TLS connections; None without TLS. Raises ``CertificateError``."""
    if config.tls is None:
        return None
    certificate = ServerCertificate(config.tls)
    watch_certificate(certificate.end_time)
    return TlsAcceptor(certificate, config.connections.receive_bytes)


def _reporter(
    config: SegmentStoreConfig,
    monitor: LoadMonitor,
    find_controllers: Callable[[], Sequence[tuple[str, int]]],
    token: Callable[[], str],
) -> Callable[[], Awaitable[None]]:
    """Return a function that reports the load to controllers through the stores that they name. All
    stores of a cluster speak TLS, or none does. Raises ``CertificateError``."""
    look_up = look_up_with(find_controllers, config.controller_ca, token=token)
    open_stream: OpenStream = trio.open_tcp_stream
    if config.tls is not None:
        open_stream = open_tls_with(client_context(config.controller_ca, check_hostname=True))
    return partial(report_load, monitor, look_up, open_stream, token=token)


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


async def _watch_process(tls: TlsAcceptor | None) -> None:
    """Measure how late the event loop is, and renew the certificate, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure_loop_lag)
        if tls is not None:
            nursery.start_soon(tls.watch_certificate)


async def _leave(membership: Membership, told: trio.Event, left: trio.Event) -> None:
    """Leave the cluster when ``told`` is set, and then set ``left``."""
    await told.wait()
    await membership.hand_over()
    left.set()
