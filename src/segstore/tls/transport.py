"""A TCP socket with TLS, which is served in the same steps of the reactor as one without.

Owns: ``TlsTransport``, and the memory that the sockets of a server decrypt into.

It is a ``SocketTransport`` whose ``_read`` decrypts and whose ``send_now`` encrypts; its waits, its
turns and the calls of the reactor are the same. OpenSSL does not use the socket itself. It takes
ciphertext from one memory BIO and puts it into another one::

    socket ─readv▶ shared buffer ─▶ incoming BIO ─decrypt▶ plain buffer ─▶ on_received
    socket ◀writev─ records ◀─ outgoing BIO ◀─encrypt─ replies

Each ``_read`` decrypts all complete records, so when the socket has nothing more to read, there is
nothing more to decrypt. OpenSSL keeps the beginning of an incomplete record. A BIO gets at most one
record at once, because its memory does not shrink.

``send_now`` returns the number of bytes of plaintext in the records that the socket took
completely. Ciphertext that the socket did not take is kept (``_unsent``), with the number of bytes
of plaintext in it (``_owed``). As after any short write, the caller passes this plaintext again, as
the first bytes of the next ``send_now``, which does not encrypt it again. So bytes count as sent
only when the socket has taken them.

A socket is the server's side, or the client's if it is told the host that the server has to prove
to be. A task does the handshake. Its asymmetric computations take up to some milliseconds, so they
run in a thread, one after another, while the event loop serves other connections.

Invariants:
1. When a socket takes only a part of the ciphertext, ``send_now`` returns less than the length of
   its data until the socket has taken the rest; at most ``GROUP_RECORDS`` records are kept. Held by
   ``test_ciphertext_is_bounded_while_the_peer_does_not_read``.
2. When a peer ends, with or without a close-notify, the bytes that it sent before are received, and
   then no bytes. Held by ``test_the_end_of_the_peer_is_no_bytes_with_and_without_a_word``.
3. When ciphertext was changed on its way, receiving raises ``trio.BrokenResourceError``, after all
   records before the change were received. Held by ``test_changed_ciphertext_ends_the_connection``.
4. When a peer does not finish its handshake within ``HANDSHAKE_SECONDS_MAX`` and
   ``HANDSHAKE_BYTES_MAX``, the handshake fails. Held by ``test_a_slow_handshake_is_cut_off`` and
   ``test_an_endless_handshake_is_cut_off``.
5. When a client's server is not the host that was asked for, the handshake fails. Held by
   ``test_a_client_refuses_a_server_of_another_host``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from segstore.errors import SegmentStoreError
from segstore.runtime.reactor import Reactor
from segstore.runtime.transport import (
    BULK_BYTES_MIN,
    NARROW_BYTES,
    ReceiveBuffer,
    SocketTransport,
    Turns,
)

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""Maximum time, in seconds, of a handshake."""
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Maximum number of bytes that a peer may send in a handshake."""
GROUP_RECORDS: Final = 4
"""Maximum number of records that are encrypted before they are written."""
RECORD_BYTES: Final = 16 * 1024
"""Maximum number of bytes of plaintext in a record."""
CIPHER_BYTES: Final = RECORD_BYTES + 256 + 5
"""Maximum number of bytes of ciphertext of a record, and of what a BIO is given at once."""
UNSENT_BYTES_MAX: Final = 2 * GROUP_RECORDS * CIPHER_BYTES
"""Maximum number of bytes of unsent ciphertext. A peer that causes more sends many requests of TLS
itself, and does not read the answers."""
_FIRST_RECORDS: Final = (0x15, 0x16)
"""The types of a peer's first record: an alert, or its part of the handshake."""


class TlsRefusedError(SegmentStoreError):
    """The TLS handshake with a peer failed. The message has the reason in one sentence."""


class PlainBuffer:
    """The memory that all TLS sockets of an event loop decrypt into. It has room for the content of
    a receive buffer, and for a record whose beginning was received before."""

    __slots__ = ("view",)

    def __init__(self, receive_bytes: int) -> None:
        self.view = memoryview(bytearray(receive_bytes + 2 * RECORD_BYTES))


class TlsTransport(SocketTransport):
    """A TCP socket with TLS. Call ``handshake`` before any other method.

    With ``server_hostname`` it is the client of a server which has to be that host.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        context: ssl.SSLContext,
        buffer: ReceiveBuffer,
        plain: PlainBuffer,
        reactor: Reactor,
        bulk_turns: Turns | None = None,
        *,
        server_hostname: str | None = None,
    ) -> None:
        super().__init__(stream, buffer, reactor, bulk_turns)
        self._is_client = server_hostname is not None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=not self._is_client,
            server_hostname=server_hostname,
        )
        self._plain = plain.view
        self._early = b""
        self._peer_has_ended = False
        self._is_ended_here = False
        self._is_established = False
        self._unsent = b""
        self._owed = 0

    # ---- The handshake ---------------------------------------------------------------------------

    async def handshake(self, threads: trio.CapacityLimiter) -> None:
        """Agree on keys with the peer, and check its certificate: a server's, or a client's if
        clients need one.

        ``threads`` bounds how many handshakes of a process compute at the same time. Raises
        ``TlsRefusedError``.
        """
        try:
            await self._shake_hands(threads)
        except trio.TooSlowError as error:
            raise TlsRefusedError(
                f"the peer let us wait in the TLS handshake for {HANDSHAKE_SECONDS_MAX} s"
            ) from error
        except ssl.SSLError as error:
            with suppress(OSError):
                self._flush()  # send the reason to the peer
            raise TlsRefusedError(f"the TLS handshake failed: {_words_of(error)}") from error
        except (trio.BrokenResourceError, OSError) as error:
            raise TlsRefusedError(f"the TLS handshake broke off: {error}") from error

    async def _shake_hands(self, threads: trio.CapacityLimiter) -> None:
        received = 0
        # The time of our own computations does not count: among thousands of peers, each one waits
        # long for the thread.
        patience = HANDSHAKE_SECONDS_MAX
        if self._is_client:
            await self._take_step(threads, patience)
        while not self._is_established:
            began = trio.current_time()
            with trio.fail_after(patience):
                await self._wait_until_ready()
            patience -= trio.current_time() - began
            count = self._receive(self._buffer.view[:NARROW_BYTES])
            if self._error is not None:
                raise trio.BrokenResourceError(str(self._error)) from self._error
            if count == 0:
                raise trio.BrokenResourceError("the peer ended the connection")
            if count < 0:
                continue
            if not received and self._buffer.view[0] not in _FIRST_RECORDS:
                raise TlsRefusedError("the peer does not speak TLS")
            received += count
            self._incoming.write(self._buffer.view[:count])
            await self._take_step(threads, patience)
            if received > HANDSHAKE_BYTES_MAX and not self._is_established:
                raise TlsRefusedError(
                    f"the TLS handshake is longer than {HANDSHAKE_BYTES_MAX} bytes"
                )
        # A client may send its first commands together with the end of the handshake.
        self._early = bytes(self._plain[: self._decrypt(0)])
        self._is_ready = self._is_ready or self._has_rest

    async def _take_step(self, threads: trio.CapacityLimiter, patience: float) -> None:
        """Take the next step in a thread, and send what comes of it within ``patience``."""
        self._is_established = await trio.to_thread.run_sync(self._compute, limiter=threads)
        with trio.fail_after(patience):
            while not self._flush():
                await trio.lowlevel.wait_writable(self._descriptor)

    def _compute(self) -> bool:
        """Take the next step of the handshake; return whether it was the last one."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    # ---- Receiving -------------------------------------------------------------------------------

    @property
    def _has_rest(self) -> bool:
        """Return whether the next ``_read`` has something to return, whatever the socket has."""
        return bool(self._early) or self._peer_has_ended or self._error is not None

    def _receive(self, view: memoryview) -> int:
        """Receive ciphertext. Return the number of bytes; -1 when there are none, or an error."""
        try:
            count = os.readv(self._descriptor, (view,))
        except BlockingIOError:
            self._is_ready = self._has_ended
            return -1
        except OSError as error:
            self._error = error
            self._is_ready = True
            return -1
        self._bulk_bytes = count if count >= BULK_BYTES_MIN else 0
        self._is_ready = self._has_ended or count == len(view)
        return count

    def _read(self) -> bytes | None:
        """Read and decrypt what the socket has. Return None when it has no complete record, or an
        error."""
        if self._has_rest:
            return self._take_rest()
        buffer = self._buffer.view
        count = self._receive(buffer)
        if count <= 0:
            # An end without a close-notify is accepted: each command has its length, so none can be
            # cut off without notice.
            return None if count else b""
        incoming = self._incoming
        if count <= CIPHER_BYTES:
            incoming.write(buffer[:count])
            size = self._decrypt(0)
        else:
            size = 0
            for start in range(0, count, CIPHER_BYTES):
                incoming.write(buffer[start : min(start + CIPHER_BYTES, count)])
                size = self._decrypt(size)
        if self._outgoing.pending:
            self._answer()
        if self._has_rest:
            self._is_ready = True
            if not size:
                return self._take_rest()
        return bytes(self._plain[:size]) if size else None

    def _answer(self) -> None:
        """Send the answers of TLS to what was received, such as an alert or new keys."""
        try:
            self._flush()
        except OSError as error:
            if self._error is None:
                self._error = error

    def _take_rest(self) -> bytes | None:
        """Return the bytes that were decrypted before, or no bytes at the end, or None for an
        error, which ``receive`` raises."""
        if self._early:
            early, self._early = self._early, b""
            return early
        return None if self._error is not None else b""

    def _decrypt(self, size: int) -> int:
        """Decrypt all complete records into the plain buffer, after its first ``size`` bytes.
        Return the new number of bytes in the buffer."""
        read, incoming, plain = self._tls.read, self._incoming, self._plain
        try:
            while incoming.pending and not self._peer_has_ended:
                count = read(RECORD_BYTES, plain[size:] if size else plain)
                if not count:
                    self._peer_has_ended = True
                size += count  # type: ignore[operator]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._peer_has_ended = True
        except ssl.SSLError as error:
            self._error = error
        return size

    # ---- Sending ---------------------------------------------------------------------------------

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as a socket does. The data of the next call must begin with the bytes that this call
        did not take, and must be at least as long."""
        try:
            if not self._unsent and 0 < len(data) <= RECORD_BYTES:
                self._tls.write(data)
                return self._write_records([self._outgoing.read()], [len(data)])
            return self._send_much(data)
        except OSError as error:
            reason = _words_of(error) if isinstance(error, ssl.SSLError) else str(error)
            raise trio.BrokenResourceError(reason) from error

    def _send_much(self, data: bytes | memoryview) -> int:
        taken, length, view = 0, len(data), memoryview(data)
        if self._unsent:
            if not self._flush():
                return 0
            taken, self._owed = self._owed, 0
        while taken < length:
            records, sizes = self._encrypt(view[taken : taken + GROUP_RECORDS * RECORD_BYTES])
            sent = self._write_records(records, sizes)
            taken += sent
            if self._unsent:
                break
        return taken

    def _encrypt(self, data: memoryview) -> tuple[list[bytes], list[int]]:
        """Return the records of some bytes, and how many bytes of plaintext each one has."""
        records, sizes = [], []
        position, length = 0, len(data)
        while position < length:
            count = self._tls.write(data[position : position + RECORD_BYTES])
            records.append(self._outgoing.read())
            sizes.append(count)
            position += count
        return records, sizes

    def _write_records(self, records: Sequence[bytes], sizes: Sequence[int]) -> int:
        """Write records, and keep those that the socket did not take completely. Return the number
        of bytes of plaintext in the others. Raises ``OSError``."""
        try:
            written = os.writev(self._descriptor, records)
        except BlockingIOError:
            written = 0
        sent = 0
        for index, (record, size) in enumerate(zip(records, sizes, strict=True)):
            if written < len(record):
                self._unsent = b"".join([record[written:], *records[index + 1 :]])
                self._owed = sum(sizes[index:])
                break
            written -= len(record)
            sent += size
        return sent

    def _flush(self) -> bool:
        """Send the kept ciphertext and the messages of TLS itself; return whether nothing is left.
        Raises ``OSError``.

        What is left is sent before the next reply, or dropped with the connection.
        """
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
            if len(self._unsent) > UNSENT_BYTES_MAX:
                raise ConnectionAbortedError("the peer reads no answers of TLS")
        if not self._unsent:
            return True
        try:
            written = os.write(self._descriptor, self._unsent)
        except BlockingIOError:
            return False
        self._unsent = self._unsent[written:]
        return not self._unsent

    async def send_eof(self) -> None:
        self._say_end()
        try:
            while not self._flush():
                await trio.lowlevel.wait_writable(self._descriptor)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        await super().send_eof()

    async def aclose(self) -> None:
        if self._descriptor >= 0 and self._is_established and self._error is None:
            self._say_end()
        await super().aclose()

    def _say_end(self) -> None:
        """Send a close-notify, if the socket takes it, unless it was sent before."""
        if self._is_ended_here:
            return
        self._is_ended_here = True
        # ``unwrap`` also expects the peer's close-notify, which may not have come yet.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()


def _words_of(error: ssl.SSLError) -> str:
    """Return the reason of an error of OpenSSL in words, without names of its source files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()
