"""Connections to bookies that speak TLS; ``test_client.py`` of the client has those that do not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from bookkeeper_client.client import open_bookkeeper
from bookkeeper_client.connections.liveness import ask_bookie
from bookkeeper_client.errors import BookKeeperError
from bookkeeper_client.quorums import Quorums
from pravega_security.tls import ServerCertificate, client_context
from segstore.process.config import BookieTlsSettings
from segstore.runtime.reactor import current_reactor
from segstore.tiers.bookkeeper.transports import make_opener
from support.models.memory_bookies import LEDGERS_ROOT, MemoryBookies, open_memory_bookies
from support.tls_peers import Certificates

SECONDS_MAX = 60.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
async def bookies(
    certificates: Certificates, nursery: trio.Nursery
) -> AsyncIterator[MemoryBookies]:
    """Three bookies that speak TLS, with clients that show a certificate; the reactor runs."""
    settings = msgspec.structs.replace(certificates.issue(), client_ca=certificates.ca)
    context = ServerCertificate(settings).server_context()
    await nursery.start(current_reactor().run)
    with trio.fail_after(SECONDS_MAX):
        async with open_memory_bookies("a", "b", "c") as bookies:
            for bookie in bookies.bookies.values():
                bookie.tls = context
            yield bookies


def make_context(certificates: Certificates) -> ssl.SSLContext:
    own = certificates.issue("client", name="client")
    return client_context(
        certificates.ca, check_hostname=True, certificate=own.certificate, key=own.key
    )


async def test_entries_are_written_recovered_and_read_over_tls(
    certificates: Certificates, bookies: MemoryBookies, nursery: trio.Nursery
) -> None:
    client = await open_bookkeeper(
        bookies.zookeeper.open_session(),
        LEDGERS_ROOT,
        nursery,
        open_transport=make_opener(trio.open_tcp_stream, partial(make_context, certificates)),
    )
    # More than sockets take at once, and than a record has.
    data = [bytes([number]) * (1 << number) for number in range(21)]
    ledger = await client.create_ledger(Quorums(3, 3, 2), password=b"")
    done: list[Exception | None] = []
    for each in data:
        ledger.add_nowait((each,), done.append)
    with trio.fail_after(SECONDS_MAX):
        while len(done) < len(data):  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert done == [None] * len(data)
        found = await client.recover_ledger(ledger.ledger_id, password=b"")
        assert [await found.read(entry_id) for entry_id in range(len(data))] == data


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        ("no TLS", "refuses TLS, with status 404"),
        ("another CA", "no TLS with the bookie at .*: self.signed certificate"),
        ("another host", "no TLS with the bookie at .*: IP address mismatch"),
        ("no CA's file", "cannot be used: there is no such file"),
    ],
)
async def test_a_bookie_that_cannot_be_trusted_gets_no_request(
    certificates: Certificates, bookies: MemoryBookies, tmp_path: Path, harm: str, sentence: str
) -> None:
    bookie = bookies.bookies["a"]
    context = partial(make_context, certificates)
    if harm == "no TLS":
        bookie.tls = None
    elif harm == "another CA":
        context = partial(make_context, Certificates(tmp_path, "other"))
    elif harm == "another host":
        elsewhere = certificates.issue("elsewhere.example", name="elsewhere")
        bookie.tls = ServerCertificate(elsewhere).server_context()
    else:
        certificates.ca.unlink()
    opener = make_opener(trio.open_tcp_stream, context)
    with pytest.raises(BookKeeperError, match=sentence):
        await ask_bookie("127.0.0.1", bookie.port, open_transport=opener)
    assert bookie.request_count == 0


async def test_a_client_without_a_certificate_is_refused(
    certificates: Certificates, bookies: MemoryBookies
) -> None:
    bookie = bookies.bookies["a"]
    opener = make_opener(
        trio.open_tcp_stream, partial(client_context, certificates.ca, check_hostname=True)
    )
    with pytest.raises(BookKeeperError, match="hangs up"):
        await ask_bookie("127.0.0.1", bookie.port, open_transport=opener)
    assert bookie.request_count == 0


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.pem"
    with pytest.raises(ValueError, match="a certificate and its key are set together"):
        BookieTlsSettings(certificate=path)
    with pytest.raises(ValueError, match="a certificate and its key are set together"):
        BookieTlsSettings(key=path)
