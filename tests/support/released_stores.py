"""Stores that released versions wrote: what is in one, and the archives of their data directories.

Owns: ``fill``, which writes the contents, ``check``, which compares a store with them, and
``archive_of``. Each release adds its archive, which ``make release-store`` makes; ``fill`` then
stays as it is, and new contents get a function of their own.

Invariants:
1. What ``fill`` has written to a store, ``check`` finds there. Held by
   ``test_the_store_of_a_release_is_opened_and_goes_on``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from foreign_servers.tied_processes import tied

from pravega_admin.serving.version import VERSION
from segstore.testing.ports import free_ports
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.blocking.table import BlockingTable
from segstore_client.blocking.transaction_writer import TransactionWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.positions import Position

ARCHIVES = Path(__file__).resolve().parent.parent / "pravega_admin" / "serving" / "released"
SCOPE, STREAM, TRUNCATED, SEALED, TABLE = "demo", "orders", "logs", "closed", "prices"
KEYS = 7
KEY_BYTES = 8
SECONDS = 60.0
LEASE_MS = 60_000


def archive_of(release: str) -> Path:
    """Return the data directory that a version wrote, as a tar file."""
    return ARCHIVES / f"{release}.tar.xz"


def released_versions() -> list[str]:
    """Return the versions of which there is an archive, in the order of their names."""
    return sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz"))


def fill(address: str, *, scope: str = SCOPE) -> None:
    """Write to an empty store: a stream that was scaled and has a transaction, one that was
    truncated, one that was sealed, and a key-value table.
    """
    with ControllerClient(address) as controller:
        controller.create_scope(scope)
        settings = StreamSettings(Scaling(segment_count_min=1), tags=("kept",))
        for stream in (STREAM, TRUNCATED, SEALED):
            controller.create_stream(scope, stream, settings)
        write(controller, scope, STREAM, range(100))
        (segment,) = controller.current_segments(scope, STREAM).ranges
        controller.scale_stream(
            scope,
            STREAM,
            sealed=[segment.segment_id],
            ranges=[(0.0, 0.5), (0.5, 1.0)],
            timeout=SECONDS,
        )
        commit(controller, scope, range(100, 150))
        write(controller, scope, STREAM, range(150, 300))
        write(controller, scope, TRUNCATED, range(50))
        (segment,) = controller.current_segments(scope, TRUNCATED).ranges
        # Two digits behind a header of eight bytes: an event each 10, the first ten each 9.
        controller.truncate_stream(scope, TRUNCATED, {segment.segment_id: 10 * 9 + 10 * 10})
        write(controller, scope, SEALED, range(20))
        controller.seal_stream(scope, SEALED)
        controller.create_table(scope, TABLE, partitions=2, primary_key=KEY_BYTES, secondary_key=0)
        table = BlockingTable(controller, scope, TABLE, patience=SECONDS)
        for number in range(60):
            table.put(key_of(number), b"value %d" % number)
        for number in range(0, 60, 3):
            table.remove(key_of(number))
        for number in range(1, 60, 3):
            table.put(key_of(number), b"new value %d" % number)


def check(address: str, *, scope: str = SCOPE, added: int = 0) -> None:
    """Compare a store with what ``fill`` wrote, and with the ``added`` numbers of ``go_on``."""
    with ControllerClient(address) as controller:
        assert read(controller, scope, STREAM) == list(range(300 + added))
        assert read(controller, scope, TRUNCATED) == list(range(20, 50))
        assert read(controller, scope, SEALED) == list(range(20))
        assert list(controller.current_segments(scope, SEALED).ranges) == []
        assert len(controller.current_segments(scope, STREAM).ranges) == 2
        table = BlockingTable(controller, scope, TABLE, patience=SECONDS)
        expected = {key_of(n): b"new value %d" % n for n in range(1, 60, 3)}
        expected |= {key_of(n): b"value %d" % n for n in range(2, 60, 3)}
        assert {entry.key: entry.value for entry in table.entries()} == expected


def go_on(address: str, *, scope: str = SCOPE, added: int, more: int) -> None:
    """Write ``more`` numbers behind the ``added`` ones, by transaction and without."""
    first = 300 + added
    with ControllerClient(address) as controller:
        write(controller, scope, STREAM, range(first, first + more // 2))
        commit(controller, scope, range(first + more // 2, first + more))


def key_of(number: int) -> bytes:
    """Return a key of the table."""
    return b"key-%04d" % number


def write(controller: ControllerClient, scope: str, stream: str, numbers: range) -> None:
    """Write numbers, each with one of a few routing keys."""
    with BlockingEventWriter(controller, scope, stream) as writer:
        for number in numbers:
            writer.submit(b"%d" % number, key=f"key-{number % KEYS}")


def commit(controller: ControllerClient, scope: str, numbers: range) -> None:
    """Write numbers in a transaction."""
    begun = controller.begin_transaction(scope, STREAM, LEASE_MS)
    locate = partial(controller.segment_address, scope, STREAM)
    with closing(TransactionWriter(scope, STREAM, begun, locate)) as writer:
        writer.write([b"%d" % each for each in numbers], [f"key-{n % KEYS}" for n in numbers])
        writer.flush()
    assert controller.commit_transaction(scope, STREAM, begun.identifier)
    while controller.transaction_state(scope, STREAM, begun.identifier) != "committed":
        pass


def read(controller: ControllerClient, scope: str, stream: str) -> list[int]:
    """Return the numbers of a stream in their order; those of one key have to be in order."""
    numbers: list[int] = []
    with BlockingEventReader(controller, scope, stream, end=Position.TAIL) as reader:
        while (event := reader.next_event(timeout=SECONDS)) is not None:
            numbers.append(int(event.data))
    for remainder in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == remainder]
        assert of_key == sorted(of_key)
    return sorted(numbers)


def make_archive(release: str) -> None:
    """Fill a store of this version, stop it, and keep its data directory."""
    controller_port, store_port = free_ports(2)
    with TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "pravega_admin", "standalone", "--data-dir", folder),
            *("--controller-port", str(controller_port), "--http-port", "0"),
            *("--segment-store-port", str(store_port)),
        ]
        with subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while "is ready" not in process.stdout.readline():
                assert process.poll() is None, "the store has ended"
            fill(f"tcp://127.0.0.1:{controller_port}")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        archive = archive_of(release)
        archive.parent.mkdir(exist_ok=True)
        tar = ["tar", "--create", "--sparse", "--xz", "--file", str(archive), "--exclude", "./run"]
        # A start makes these anew, and their bytes cannot be compressed.
        tar += ["--exclude", "*reserve-*"]
        subprocess.run([*tar, "--directory", folder, "."], check=True)


if __name__ == "__main__":
    make_archive(VERSION)
