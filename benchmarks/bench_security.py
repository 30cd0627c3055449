"""What do users cost a call of the controller, and TLS many connections?

Run from the repository's root: `python -m benchmarks.bench_security [--rounds 5]`.

1. `current segments`: a `getCurrentSegments` with Basic, beside the same call of a store without
   users. Both have TLS, run at the same time and are asked in turns. The first calls of a client
   do not count: they check the password, whose hash takes 100,000 rounds.
2. `connections`: connections with TLS 1.3 to the segment store that are opened at the same time,
   until each has the reply to its Hello, and what the store's resident memory grows by meanwhile.
   The client, of this process, uses the same processors.
3. A time is the median of its round, and of these the median of the rounds.
"""

import argparse
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from foreign_servers.original_security import USER
from foreign_servers.peer import RunningPeer

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    limited,
    plain_table,
    report_progress,
    write_json_if_asked,
)
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from pravega_wire.commands import HELLO
from pravega_wire.connection import Connection, Role
from segstore_client.access.credentials import Credentials
from segstore_client.access.settings import ClientAccess
from segstore_client.access.tls import ClientTls
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import StreamSettings

SCOPE, STREAM = "bench", "security"
CALL = Metric("getCurrentSegments p50", "ms", "lower")
OPENED = Metric("all opened", "s", "lower")
MEMORY = Metric("memory of one", "KB", "lower")
REACHES = {CALL.name: 1.2}
LIMITS = {OPENED.name: 3.0, MEMORY.name: 60.0}
REPLY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work to measure."""

    calls: int
    """Calls of each store in a round; as many are made before the first round."""
    connections: int


USUAL = Size(calls=500, connections=1_000)
SMALL = Size(calls=5, connections=10)


@contextmanager
def running(store: SegstoreStandalone, directory: Path) -> Iterator[RunningPeer]:
    """Run a store in the block."""
    directory.mkdir()
    store.prepare()
    store.reserve()
    try:
        yield store.start(directory)
    finally:
        store.stop()


def authority_of(server: RunningPeer) -> bytes:
    """Return the certificate of the authority that a secure store trusts."""
    assert server.access.trust_store is not None
    return server.access.trust_store.read_bytes()


def settings_without_users(security: Path) -> str:
    """Return the settings of a store that has the certificates in ``security`` and no users."""
    authority = security / "ca.pem"
    tls = f'tls]\ncertificate = "{security / "server.pem"}"\nkey = "{security / "server.key"}"\n'
    return (
        f'[segment_store]\ncontroller_ca = "{authority}"\n[segment_store.{tls}'
        f'[controller]\nstore_tls = true\nstore_ca = "{authority}"\n[controller.{tls}'
    )


def open_client(address: str, authority: bytes, password: str = "") -> ControllerClient:
    """Return a client over TLS of a store, with a user if there is a ``password``."""
    credentials = Credentials.from_password(USER, password) if password else None
    access = ClientAccess(credentials, ClientTls(ca=authority))
    return ControllerClient(address, access=access)


def time_call(client: ControllerClient) -> float:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    client.current_segments(SCOPE, STREAM)
    return (time.perf_counter() - began) * 1000


def measure_calls(
    clients: Sequence[ControllerClient], size: Size, rounds: int
) -> list[list[Outcome]]:
    """Return the outcomes of each client by round. The clients take turns."""
    for client in clients:
        client.ensure_scope(SCOPE)
        client.ensure_stream(SCOPE, STREAM, StreamSettings())
        for _ in range(size.calls):
            time_call(client)
    outcomes: list[list[Outcome]] = [[] for _ in clients]
    for _ in range(rounds):
        times: list[list[float]] = [[] for _ in clients]
        for _ in range(size.calls):
            for own_times, client in zip(times, clients, strict=True):
                own_times.append(time_call(client))
        for own_outcomes, own_times in zip(outcomes, times, strict=True):
            own_outcomes.append(Outcome({CALL: statistics.median(own_times)}))
    return outcomes


def resident_kilobytes(process_id: int) -> float:
    """Return the resident memory of a process, in kilobytes of 1,000 bytes."""
    pages = int(Path("/proc", str(process_id), "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1000


@asynccontextmanager
async def opened_connections(port: int, authority: bytes, count: int) -> AsyncIterator[float]:
    """Hold connections that were opened at the same time; provide the seconds until all were
    served.

    Raises ``RuntimeError`` if the store answers one with something else than its Hello.
    """
    context = ssl.create_default_context(cadata=authority.decode())
    hello = Connection(Role.CLIENT).send(HELLO)
    streams: list[trio.SSLStream[trio.SocketStream]] = []

    async def open_one() -> None:
        stream = await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", port, ssl_context=context, https_compatible=True
        )
        streams.append(stream)
        await stream.send_all(hello)
        wire = Connection(Role.CLIENT)
        replies: Sequence[object] = ()
        while not replies:
            data = await stream.receive_some(REPLY_BYTES)
            if not data:
                raise RuntimeError("the store has closed a connection")
            replies = list(wire.receive_data(bytes(data)))
        if type(replies[0]) is not type(HELLO):
            raise RuntimeError(f"the store has answered with {replies[0]!r}")

    began = time.perf_counter()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(open_one)
        yield time.perf_counter() - began
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)


def measure_connections(store: SegstoreStandalone, server: RunningPeer, count: int) -> Outcome:
    """Return how long opening connections took, and the store's memory for each."""
    process_id = store.process_id("segment-store")
    before = resident_kilobytes(process_id)

    async def open_and_look() -> tuple[float, float]:
        port = store.segment_store_port
        async with opened_connections(port, authority_of(server), count) as seconds:
            return seconds, resident_kilobytes(process_id)

    seconds, after = trio.run(open_and_look)
    return Outcome({OPENED: seconds, MEMORY: (after - before) / count})


def measure(size: Size, rounds: int) -> list[ComparedRow]:
    """Return the rows of all rounds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-security-") as directory:
        secure = SegstoreStandalone(secure=True)
        settings = settings_without_users(Path(directory, "secure", "data", "security"))
        without_users = SegstoreStandalone(settings=settings)
        with (
            running(secure, Path(directory, "secure")) as secure_server,
            running(without_users, Path(directory, "without users")) as server,
        ):
            report_progress("connections", "", time.monotonic() - began)
            # The memory of the first ones is what later ones use again: one round.
            connections = measure_connections(secure, secure_server, size.connections)
            report_progress("current segments", "", time.monotonic() - began)
            authority, address = authority_of(secure_server), server.address
            with (
                open_client(secure_server.address, authority, secure.password) as with_user,
                open_client(address.replace("tcp:", "tls:"), authority) as without,
            ):
                ours, peer = measure_calls((with_user, without), size, rounds)
    return [
        *compare(
            "current segments", ours=ours, peer=peer, reaches=REACHES, peer_name="without users"
        ),
        *limited(f"{size.connections} connections", ours=[connections], limits=LIMITS),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=USUAL.connections)
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    options = parser.parse_args(arguments)
    size = SMALL if options.small else Size(USUAL.calls, options.connections)
    rows = measure(size, options.rounds)
    print(plain_table(rows))
    write_json_if_asked(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
