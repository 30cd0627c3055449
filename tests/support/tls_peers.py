"""Makes certificates, and speaks TLS with what is under test.

Owns: ``Certificates``, which writes those of a CA into a directory, and ``TlsPeer``, a client whose
every byte a test decides on.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import trio
import trustme

from pravega_security.tls import TlsSettings


class Certificates:
    """A CA, and what it issues as files in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self.authority = trustme.CA()
        self.ca = directory / f"{name}.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(
        self, *hosts: str, name: str = "server", expires: datetime | None = None
    ) -> TlsSettings:
        """Write a certificate and its key, over those of the same name."""
        issued = self.authority.issue_cert(
            *(hosts or ("localhost", "127.0.0.1")), not_after=expires
        )
        certificate, key = (self._directory / f"{name}.{kind}" for kind in ("pem", "key"))
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        for path, data in ((key, issued.private_key_pem.bytes()), (certificate, chain)):
            # As a tool that renews does: nobody reads a half of a file.
            path.with_suffix(".new").write_bytes(data)
            path.with_suffix(".new").chmod(0o600)
            path.with_suffix(".new").rename(path)
        return TlsSettings(certificate=certificate, key=key)


class TlsPeer:
    """The client's side of a connection with TLS, below it ``stream``."""

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self.socket = stream.socket
        self.setsockopt = stream.setsockopt
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    async def handshake(self) -> None:
        """Shake hands. Raises ``ssl.SSLError``, or ``EOFError`` when the other side ends it."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.stream.send_all(self._outgoing.read())
                data = await self.stream.receive_some(65536)
                if not data:
                    raise EOFError("no more of the handshake") from None
                self._incoming.write(data)
            else:
                await self.stream.send_all(self._outgoing.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        """Return the records of some bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        return self._outgoing.read()

    async def send_all(self, data: bytes) -> None:
        """Send all of the data."""
        await self.stream.send_all(self.encrypt(data))

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return what comes; no bytes at the end, whether it is told of or not."""
        while True:
            try:
                return self.tls.read(max_bytes)
            except ssl.SSLWantReadError:
                data = await self.stream.receive_some(65536)
                if not data:
                    return b""
                self._incoming.write(data)
            except ssl.SSLZeroReturnError:
                return b""

    def encrypt_end(self) -> bytes:
        """Return a close-notify."""
        with suppress(ssl.SSLError):
            self.tls.unwrap()
        return self._outgoing.read()

    async def send_eof(self) -> None:
        """Send a close-notify, and nothing more."""
        await self.stream.send_all(self.encrypt_end())
        await self.stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket without a word."""
        await trio.aclose_forcefully(self.stream)
