"""Several segment stores on one machine, in real processes that are killed and counted anew."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pravega_admin.errors import EXIT_CONFIGURATION
from pravega_wire import names
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import GetStreamSegmentInfo, StreamSegmentInfo, WrongHost
from segstore.ownership.data_directory import VERSION_FILE, DataDirectory
from segstore.process.store_shares import plan_shares
from segstore.testing.ports import free_neighbours
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient

from .conftest import Standalone
from .serving.test_standalone import (
    KEYS,
    assert_exactly_once_and_in_order,
    create_stream,
    events_of,
    write_numbers,
)

pytestmark = [pytest.mark.proof, pytest.mark.processes]

STORE_1 = "segment-store-1"
SEGMENTS = 8
"""Enough that every container has some of a stream's."""


class Stores(Standalone):
    """A store with a count of segment stores, which a start may change."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.stores: int | str = 1
        self.segment_store_port = free_neighbours(4)

    @property
    def command(self) -> list[str]:
        return [*super().command, "--stores", str(self.stores)]

    def begin(self, stores: int | str) -> None:
        self.stores = stores
        self.start()

    @property
    def directory(self) -> DataDirectory:
        return DataDirectory.read(self.data_dir)

    def refused(self, stores: int) -> str:
        """Start the store; return the one sentence with which the start ends."""
        self.stores = stores
        done = subprocess.run(self.command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == EXIT_CONFIGURATION, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path / "data")
    yield made
    made.close()


def write_on(store: Stores, first: int, last: int, *, stream: str = "events") -> None:
    """Write the numbers from ``first`` up to ``last``; each is acknowledged at the end."""
    with (
        ControllerClient(store.controller) as controller,
        BlockingEventWriter(controller, "demo", stream) as writer,
    ):
        for number in range(first, last):
            writer.submit(b"%d" % number, key=f"key-{number % KEYS}")


def test_nothing_is_lost_or_doubled_when_killed_stores_go_on_in_other_numbers(
    stores: Stores,
) -> None:
    written = 0
    for number, count in enumerate([1, 2, 1, 3, 2]):
        stores.begin(count)
        if not number:
            create_stream(stores, "events", SEGMENTS)
        assert_exactly_once_and_in_order(events_of(stores, "events"), written)
        write_on(stores, written, written + 1000)
        written += 1000
        stores.stop(signal.SIGKILL)
    stores.begin(1)
    assert_exactly_once_and_in_order(events_of(stores, "events"), written)
    assert stores.stop() == 0


def test_clients_are_sent_to_the_store_of_each_segment_and_others_refuse_it(
    stores: Stores,
) -> None:
    stores.begin(2)
    create_stream(stores, "events", SEGMENTS)
    write_on(stores, 0, 500)
    stores.stop()
    stores.begin(3)
    lines = "\n".join(stores.output)
    shares = plan_shares(stores.directory, 3)
    ports = [stores.segment_store_port + each for each in range(3)]
    for port in ports:
        assert f"127.0.0.1:{port}" in lines
    found = set()
    with ControllerClient(stores.controller) as controller:
        for each in controller.current_segments("demo", "events").ranges:
            segment = names.segment_name("demo", "events", each.segment_id)
            owner = shares.stores[names.container_of(segment, 4)]
            address = controller.segment_address("demo", "events", each.segment_id)
            assert address == ("127.0.0.1", ports[owner])
            found.add(owner)
            for store, port in enumerate(ports):
                with SegmentConnection("127.0.0.1", port) as connection:
                    reply = connection.call(GetStreamSegmentInfo(1, segment, ""))
                assert isinstance(reply, StreamSegmentInfo if store == owner else WrongHost)
    assert found == {0, 1, 2}
    assert_exactly_once_and_in_order(events_of(stores, "events"), 500)


def test_one_store_that_is_killed_leaves_the_others_alone_and_comes_back(stores: Stores) -> None:
    stores.begin("auto")
    assert stores.stop() == 0
    stores.begin(2)
    create_stream(stores, "events", SEGMENTS)
    write_numbers(stores, "events", 2000, every=500, meanwhile=lambda: stores.kill(STORE_1))
    other = stores.pid_of("segment-store-0")
    assert_exactly_once_and_in_order(events_of(stores, "events"), 2000)
    assert stores.pid_of("segment-store-0") == other
    assert stores.stop() == 0


def test_stores_without_their_journals_are_refused(stores: Stores, tmp_path: Path) -> None:
    stores.begin(1)
    create_stream(stores, "events", SEGMENTS)
    write_on(stores, 0, 100)
    stores.stop()
    before = (stores.data_dir / VERSION_FILE).read_text()
    stores.begin(2)
    write_on(stores, 100, 200)
    stores.stop()
    journal = stores.directory.journal_path(1)
    journal.rename(tmp_path / "away")
    for count in (1, 2, 3):
        assert f"is expected in {journal}, and it does not exist" in stores.refused(count)
    (tmp_path / "away").rename(journal)
    after = (stores.data_dir / VERSION_FILE).read_text()
    (stores.data_dir / VERSION_FILE).write_text(before)
    for count in (1, 2):
        assert "segstore.toml is older than" in stores.refused(count)
    (stores.data_dir / VERSION_FILE).write_text(after)
    assert "4 containers are too few for 5 segment stores" in stores.refused(5)
    stores.begin(2)
    assert_exactly_once_and_in_order(events_of(stores, "events"), 200)


def test_recovery_and_scrub_know_all_journals(stores: Stores) -> None:
    stores.begin(1)
    create_stream(stores, "events", SEGMENTS)
    write_on(stores, 0, 100)
    stores.stop()
    stores.begin(2)
    write_on(stores, 100, 200)
    assert run(stores, "scrub", "--data-dir", str(stores.data_dir)).returncode == 0
    stores.stop()
    nothing = run(stores, "recover", "--yes", "--data-dir", str(stores.data_dir))
    assert "nothing has to be recovered" in nothing.stderr
    shutil.rmtree(stores.directory.journal_path(1))
    recovered = run(stores, "recover", "--yes", "--data-dir", str(stores.data_dir))
    assert recovered.returncode == 0, recovered.stderr
    stores.begin(2)
    # All had reached tier 2 at the gentle end.
    assert_exactly_once_and_in_order(events_of(stores, "events"), 200)
    assert stores.stop() == 0


def run(store: Stores, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pravega_admin", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_stop_ends_many_processes_that_do_nothing_within_the_time_that_is_told(
    stores: Stores,
) -> None:
    """Earlier each had 10 s after the one before: five that stood still took 50 s."""
    stores.begin(4)
    parts = ["controller", *(f"segment-store-{number}" for number in range(4))]
    pids = [stores.pid_of(part) for part in parts]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert stores.stop() == 0
    # The guide says 25 s; the rest is for a machine that others use.
    assert 20 <= time.monotonic() - began < 40
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_second_request_ends_processes_that_do_nothing_at_once(stores: Stores) -> None:
    stores.begin(2)
    for part in ("controller", "segment-store-0", "segment-store-1"):
        os.kill(stores.pid_of(part), signal.SIGSTOP)
    began = time.monotonic()
    assert stores.process is not None
    stores.process.send_signal(signal.SIGINT)
    # By then it has asked the controller, which stands still, and waits for its end.
    time.sleep(1)
    assert stores.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < 9
