from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from pravega_security.tls import ServerCertificate, client_context
from pravega_security.tls_streams import TlsRefusedError, open_tls_with
from support.tls_peers import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def echoing(certificate: ServerCertificate | None) -> AsyncIterator[int]:
    """Serve what comes back to where it came from."""

    async def echo(stream: trio.abc.Stream) -> None:
        if certificate is None:
            await stream.send_all(b"\xff\xff\xff\x81\x00\x00\x00\x08")
        else:
            stream = trio.SSLStream(stream, certificate.server_context(), server_side=True)
        try:
            while data := await stream.receive_some(1000):
                await stream.send_all(data)
        except trio.BrokenResourceError:
            return

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_bytes_go_both_ways(certificates: Certificates) -> None:
    open_tls = open_tls_with(client_context(certificates.ca, check_hostname=True))
    async with echoing(ServerCertificate(certificates.issue())) as port:
        for host in ("127.0.0.1", "localhost"):
            async with await open_tls(host, port) as stream:
                await stream.send_all(b"ping")
                assert await stream.receive_some(10) == b"ping"


async def test_a_peer_that_proves_nothing_gets_no_stream(
    certificates: Certificates, tmp_path: Path
) -> None:
    foreign = Certificates(tmp_path, "foreign")
    trusting = open_tls_with(client_context(certificates.ca, check_hostname=True))
    cases = [
        (foreign.issue(name="foreign"), "its certificate was not accepted"),
        (certificates.issue("elsewhere"), "its certificate was not accepted.*127.0.0.1"),
        (None, "it does not speak TLS"),
    ]
    for settings, reason in cases:
        certificate = None if settings is None else ServerCertificate(settings)
        async with echoing(certificate) as port:
            with pytest.raises(TlsRefusedError, match=reason):
                await trusting("127.0.0.1", port)
