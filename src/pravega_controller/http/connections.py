"""The connections of the HTTP port, each served by Hypercorn.

Owns: their number, the ends of those that are too slow, and of those that fail.

Hypercorn could accept connections itself, but then one that fails ends all others, and one whose
client reads nothing outlives the server.

Invariants:
1. When a connection fails, whatever the client sends, others go on. Held by
   ``test_a_connection_that_fails_ends_no_other``.
2. When a client sends a request slowly, reads the answer slowly, or sends no more, its connection
   ends after ``IDLE_SECONDS_MAX``, or when the server ends. Held by
   ``test_slow_clients_are_cut_off``,
   ``test_a_client_that_reads_nothing_does_not_hold_up_the_end`` and
   ``test_an_upgrade_that_goes_no_further_is_cut_off``.
3. When very many connections are open, further ones are closed at once, and gRPC has descriptors
   left. Held by ``test_connections_beyond_the_maximum_are_closed``.
"""

from __future__ import annotations

import resource
import socket
import ssl
from typing import Any, Final

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

HANDSHAKE_SECONDS_MAX: Final = 10.0
IDLE_SECONDS_MAX: Final = 60.0
"""Time, in seconds, after which a connection is closed that has no request, sends one too slowly,
or does not read the answer."""
CONNECTIONS_MAX: Final = 4096
DESCRIPTORS_SHARE: Final = 4
"""Connections may have one of so many descriptors, the others are for gRPC and segment stores."""

log = structlog.get_logger(__name__)


async def serve_connections(
    application: Any, listening: socket.socket, *, context: ssl.SSLContext | None
) -> None:
    """Serve the connections of a socket until cancelled, over TLS with a context."""
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    connections = _Connections(application)
    async with trio.open_nursery() as nursery:
        try:
            await trio.serve_listeners(
                connections.serve,
                [listener if context is None else _over_tls(listener, context)],
                handler_nursery=nursery,
            )
        finally:
            connections.close()


def connections_max() -> int:
    """Return the maximum number of connections at a time."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, limit // DESCRIPTORS_SHARE)


def _over_tls(
    listener: trio.SocketListener, context: ssl.SSLContext
) -> trio.SSLListener[trio.SocketStream]:
    return trio.SSLListener(listener, context, https_compatible=True)


class _Connection(TCPServer):
    """A connection that ends when its client has gone, and not only when it was idle for long."""

    async def run(self) -> None:
        """Serve the connection to its end."""
        with trio.CancelScope() as self._whole:
            await super().run()

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()
        # A client that sends no more may wait for an answer. After an upgrade to HTTP/2 that goes
        # no further, Hypercorn would wait for ever.
        self._whole.deadline = trio.current_time() + IDLE_SECONDS_MAX


class _Connections:
    """The connections of a port."""

    def __init__(self, application: Any) -> None:
        self._count_max = connections_max()
        self._application = ASGIWrapper(application)
        self._config = Config()
        self._config.accesslog = self._config.errorlog = None
        self._config.include_server_header = False
        self._config.keep_alive_timeout = IDLE_SECONDS_MAX
        self._config.read_timeout = IDLE_SECONDS_MAX  # type: ignore[assignment]  # trio's seconds
        self._config.ssl_handshake_timeout = HANDSHAKE_SECONDS_MAX
        self._context = WorkerContext(None)
        self._open: set[trio.SocketStream] = set()

    async def serve(self, stream: Any) -> None:
        """Serve a connection, which may be one over TLS, to its end, whatever happens on it."""
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if len(self._open) >= self._count_max:
            transport.socket.close()
            return
        self._open.add(transport)
        # The system ends a connection whose client takes nothing of what was sent for so long.
        milliseconds = int(IDLE_SECONDS_MAX * 1000)
        transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        try:
            state = ConnectionState(LifespanState())
            await _Connection(self._application, self._config, self._context, state, stream)
        except Exception as error:
            # What Hypercorn does not expect of a client is no failure of the server.
            log.warning("an HTTP connection failed", reason=repr(_first(error)))
        finally:
            self._open.discard(transport)
            transport.socket.close()

    def close(self) -> None:
        """Close all connections. A send that waits for a client ends by nothing else."""
        for transport in self._open:
            transport.socket.close()


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
