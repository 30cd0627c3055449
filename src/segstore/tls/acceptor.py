"""Accepts TLS connections: makes a transport from an accepted socket.

Owns: the handshakes under way, and the certificate that they use.

Invariants:
1. When many peers come at once, their handshakes are computed in ``HANDSHAKE_THREADS`` threads, so
   that connections which are already served do not wait for them. Held by
   ``test_others_are_served_while_many_peers_shake_hands``.
2. When the store stops, handshakes under way end. Held by
   ``test_a_shutdown_does_not_wait_for_handshakes``.
3. When many handshakes were under way at once and the last one has ended, the kernel has their
   memory again: OpenSSL needs some 50 KB for each, and keeps 17 for a connection. Held by
   ``test_the_memory_of_many_handshakes_is_returned``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from pravega_security.tls import ServerCertificate
from segstore.runtime.kernel import return_free_memory
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import ReceiveBuffer, Turns
from segstore.tls.transport import PlainBuffer, TlsRefusedError, TlsTransport

HANDSHAKE_THREADS: Final = 1
"""Maximum number of handshakes that are computed at the same time."""
MANY_HANDSHAKES: Final = 100
"""Number of handshakes at once after which their memory, some megabytes, is returned."""
WATCH_SECONDS: Final = 60.0
"""Interval, in seconds, at which the files of the certificate are checked, also when no peer comes.
"""


class TlsAcceptor:
    """Makes TLS handshakes with peers, with the certificate of a server."""

    def __init__(self, certificate: ServerCertificate, receive_bytes: int) -> None:
        self._certificate = certificate
        self._plain = PlainBuffer(receive_bytes)
        self._threads = trio.CapacityLimiter(HANDSHAKE_THREADS)
        self._handshakes: dict[trio.CancelScope, None] = {}
        self._peak = 0

    @property
    def handshake_count(self) -> int:
        """Return the number of handshakes under way."""
        return len(self._handshakes)

    async def accept(
        self,
        stream: trio.SocketStream,
        buffer: ReceiveBuffer,
        turns: Turns,
        log_refused: Callable[[str], None],
    ) -> TlsTransport | None:
        """Return a transport after a successful handshake; after a failed one, close the stream and
        return None. Raises ``OSError`` when the kernel does not watch the socket."""
        context = self._certificate.server_context()
        transport = TlsTransport(stream, context, buffer, self._plain, current_reactor(), turns)
        is_established = False
        with trio.CancelScope() as scope:
            self._handshakes[scope] = None
            self._peak = max(self._peak, self.handshake_count)
            try:
                await transport.handshake(self._threads)
                is_established = True
            except TlsRefusedError as error:
                log_refused(str(error))
            finally:
                del self._handshakes[scope]
                if not is_established:
                    await transport.aclose()
            if not self._handshakes and self._peak >= MANY_HANDSHAKES:
                self._peak = 0
                await trio.to_thread.run_sync(return_free_memory)
        return transport if is_established else None

    async def watch_certificate(self) -> None:
        """Check from time to time whether the files of the certificate have changed, until
        cancelled."""
        while True:
            await trio.sleep(WATCH_SECONDS)
            await trio.to_thread.run_sync(self._certificate.refresh)

    def stop(self) -> None:
        """End the handshakes under way."""
        for scope in self._handshakes:
            scope.cancel()
