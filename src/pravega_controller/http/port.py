"""The HTTP port: one more listening socket of a controller.

Owns: ``HttpPort``: listening, the certificate of the port, and the server behind it.

The server's libraries are imported when the first connection comes: until then the port costs one
socket.

Invariants:
1. While nobody connects, none of the server's libraries is imported. Held by
   ``test_until_somebody_connects_nothing_is_imported``.
2. When the certificate is replaced, the next connection gets the new one. Held by
   ``test_a_new_certificate_is_shown_to_the_next_connection``.
3. When the server fails, it is started again, and gRPC continues meanwhile. Held by
   ``test_a_server_that_fails_is_started_again``.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from pravega_controller.rpc.service import ListenError

if TYPE_CHECKING:
    from pravega_security.tls import ServerCertificate

BACKLOG: Final = 256
RESTART_SECONDS: Final = 1.0
"""Pause, in seconds, before the server is started again after it failed."""

log = structlog.get_logger(__name__)

MakeApplication = Callable[[], Any]


class HttpPort:
    """A port that serves an application, over TLS with a certificate."""

    def __init__(self, host: str, port: int, certificate: ServerCertificate | None = None) -> None:
        self._host = host
        self._port = port
        self._certificate = certificate
        self._socket: socket.socket | None = None

    def listen(self) -> int:
        """Listen on the port and return its number. Raises ``ListenError``."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            made = socket.socket(family, kind, protocol)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.setblocking(False)
                made.bind(address)
                made.listen(BACKLOG)
            except OSError:
                made.close()
                raise
        except OSError as error:
            number = error.errno if error.errno is not None else errno.EADDRNOTAVAIL
            raise ListenError(
                number, f"cannot listen on {self._host}:{self._port}: {error.strerror}"
            ) from error
        self._socket = made
        self._port = int(made.getsockname()[1])
        return self._port

    def close(self) -> None:
        """Close the port, if it listens and nothing serves it."""
        if self._socket is not None:
            self._socket.close()

    async def serve(self, make_application: MakeApplication) -> None:
        """Serve until cancelled; ``make_application`` is called when somebody connects."""
        assert self._socket is not None, "listen comes first"
        with self._socket as listening:
            await trio.lowlevel.wait_readable(listening)
            run = await trio.to_thread.run_sync(self._load, make_application)
            while True:
                try:
                    # The server closes the socket that it is given.
                    with listening.dup() as duplicate:
                        await run(duplicate)
                except Exception as error:
                    log.error("the HTTP server failed and is started again", exc_info=error)
                await trio.sleep(RESTART_SECONDS)

    def _load(
        self, make_application: MakeApplication
    ) -> Callable[[socket.socket], Awaitable[None]]:
        """Import the server; return the function that serves on a socket."""
        from pravega_controller.http.connections import serve_connections

        context = None if self._certificate is None else _make_context(self._certificate)
        return partial(serve_connections, make_application(), context=context)


def _make_context(certificate: ServerCertificate) -> ssl.SSLContext:
    """Return a context that shows each connection the certificate that is there then."""
    context = certificate.server_context()

    def choose(connection: Any, name: str | None, initial: ssl.SSLContext) -> None:
        connection.context = certificate.server_context()

    context.sni_callback = choose
    return context
