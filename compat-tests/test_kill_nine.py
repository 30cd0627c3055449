"""kill -9 under load, again and again: what was acknowledged stays, once and in order."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from compat_harness.checker import check
from compat_harness.java import NEWEST, JavaClient
from compat_harness.server import CONTROLLER, SEGMENT_STORE, TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale
from foreign_servers.s3 import CREDENTIALS, client_of, moto_server
from foreign_servers.tied_processes import tied

from pravega_admin.inspection.open_transactions import read_open_transactions, read_table
from pravega_controller.background.late_segments import LATE_SECONDS
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.rules.transactions import segment_name
from pravega_wire import names
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import GetStreamSegmentInfo, NoSuchSegment
from segstore_client.controller.controller_client import ControllerClient

VICTIMS = (
    *[(SEGMENT_STORE,)] * 7,
    *[(CONTROLLER,)] * 4,
    *[(SEGMENT_STORE, CONTROLLER)] * 5,
    *[()] * 4,  # everything, the supervisor included
)
"""In the full form; the short one kills the store, and then everything."""
VICTIMS_IN_SHORT = ((SEGMENT_STORE,), ())
PAUSE_SECONDS = (0.2, 3.0)
VICTIMS_WITH_TABLES = ((SEGMENT_STORE,), (CONTROLLER,), (SEGMENT_STORE, CONTROLLER), ()) * 2
PAUSE_SECONDS_WITH_TABLES = (0.2, 1.5)
VICTIMS_WITH_S3 = (*[(SEGMENT_STORE,)] * 3, (SEGMENT_STORE, CONTROLLER), ())
PAUSE_SECONDS_WITH_S3 = (1.0, 7.0)
VICTIMS_WITH_TRANSACTIONS = (
    (SEGMENT_STORE,),
    *[(CONTROLLER,)] * 2,
    (SEGMENT_STORE, CONTROLLER),
    (),
)
PROGRESS_SECONDS_MAX = scale(120.0)
END_SECONDS_MAX = scale(420.0)
ACKED_BEFORE_FIRST_KILL = 1_000
LEASE_SECONDS_MAX = scale(120.0)


class Workload:
    """``KillNineWorkload`` in a directory, where its ledgers are."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.process = process
        self.directory = directory

    def acked(self) -> int:
        """Return the number of events acknowledged so far."""
        try:
            return int((self.directory / "acked").read_text())
        except FileNotFoundError:
            return 0

    def output(self) -> str:
        return (self.directory / "output.log").read_text(errors="replace")

    def wait_until_acked(self, count: int) -> float:
        """Wait until that many events are acknowledged; the seconds it took."""
        started = time.monotonic()
        while self.acked() < count:
            if self.process.poll() is not None:
                pytest.fail(f"the workload ended:\n{self.output()}", pytrace=False)
            if time.monotonic() - started > PROGRESS_SECONDS_MAX:
                pytest.fail(
                    f"{self.acked()} of {count} events acked after {PROGRESS_SECONDS_MAX:.0f} s:"
                    f"\n{self.output()}",
                    pytrace=False,
                )
            time.sleep(0.05)
        return time.monotonic() - started

    def finish(self) -> None:
        """Finish: it reads to the end and ends.

        The test fails if the process does not end with success.
        """
        (self.directory / "stop").touch()
        try:
            code = self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the workload does not end:\n{self.output()}", pytrace=False)
        if code != 0:
            pytest.fail(f"the workload failed with {code}:\n{self.output()}", pytrace=False)


@contextmanager
def running_workload(
    java_client: JavaClient,
    controller_uri: str,
    directory: Path,
    *,
    program: str = "KillNineWorkload",
) -> Iterator[Workload]:
    directory.mkdir()
    command = java_client.command(f"compat.{program}", str(directory), controller=controller_uri)
    with (directory / "output.log").open("wb") as output:
        process = subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Workload(process, directory)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def kill_and_wait(server: Server, victims: tuple[str, ...], *, stores: int) -> float:
    """Kill the victims, or everything if none is named, which comes back with so many segment
    stores; the seconds until all is back."""
    if victims:
        return server.wait_until_back(server.kill(*victims))
    server.kill_all()
    server.stores = stores
    return server.start()


def kill_under_load(
    java_client: JavaClient,
    tmp_path: Path,
    victims: Sequence[tuple[str, ...]],
    *,
    pause_seconds: tuple[float, float],
    options: Sequence[str] = (),
    program: str = "KillNineWorkload",
    at_the_end: Callable[[Server], None] = lambda server: None,
    controllers: int = 1,
    store_counts: Sequence[int] = (1,),
) -> int:
    """Kill a server of its own under load; returns how many kills met progress.

    Whenever all is killed, it comes back with the next of ``store_counts`` segment stores.
    """
    seed = int(os.environ.get("SEGSTORE_COMPAT_SEED", random.randrange(2**32)))
    print(f"SEGSTORE_COMPAT_SEED={seed}")
    rng = random.Random(seed)
    victims = list(victims)
    rng.shuffle(victims)
    directory = tmp_path / "workload"
    with (
        Server(tmp_path, options, controllers=controllers, stores_max=max(store_counts)) as server,
        running_workload(
            java_client, server.controller_uris, directory, program=program
        ) as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        kills_with_progress = 0
        slowest = 0.0
        counts = itertools.cycle(store_counts)
        for number, victim in enumerate(victims, 1):
            acked_before = workload.acked()
            # Every other time the load is flowing again; else recovery itself may be killed.
            if rng.random() < 0.5:
                workload.wait_until_acked(acked_before + 1)
            time.sleep(rng.uniform(*pause_seconds))
            acked = workload.acked()
            kills_with_progress += acked > acked_before
            seconds = kill_and_wait(
                server, victim, stores=server.stores if victim else next(counts)
            )
            slowest = max(slowest, seconds)
            print(
                f"{number:2}: killed {' and '.join(victim) or 'everything'} at {acked} acked,"
                f" back after {seconds:.2f} s with {server.stores} segment stores"
            )
        resumed = workload.wait_until_acked(workload.acked() + 1)
        print(f"slowest return {slowest:.1f} s; acks came {resumed:.1f} s after the last return")
        workload.finish()
        print(workload.output())
        at_the_end(server)
    return kills_with_progress


@pytest.mark.compat
@pytest.mark.timeout(1200)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only a server of its own")
def test_what_was_acknowledged_survives_kill_nine(
    java_client: JavaClient, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    victims = VICTIMS if pytestconfig.getoption("--full") else VICTIMS_IN_SHORT
    kills_with_progress = kill_under_load(
        java_client, tmp_path, victims, pause_seconds=PAUSE_SECONDS
    )
    judge(tmp_path / "workload")
    assert kills_with_progress >= max(1, len(victims) // 4), (
        "the server was killed, but not at work"
    )


@pytest.mark.compat
@pytest.mark.timeout(600)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only a server of its own")
def test_history_in_s3_survives_kill_nine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is like the one above, with tier 2 in S3, and pauses in which the storage writer
    catches up."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto_server() as endpoint, client_of(endpoint) as s3:
        s3.create_bucket(Bucket="history")
        kill_under_load(
            JavaClient.build(NEWEST),
            tmp_path,
            VICTIMS_WITH_S3,
            pause_seconds=PAUSE_SECONDS_WITH_S3,
            options=["--tier2=s3://history/store", f"--s3-endpoint={endpoint}"],
        )
        judge(tmp_path / "workload")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket="history")
        keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
    # Objects are named with the epoch of their writer, and each kill of it begins another.
    epochs = {key.rpartition("/p")[2].partition(".")[0] for key in keys if ".chunk/p" in key}
    assert len(epochs) > 1
    assert not (tmp_path / "data" / "storage").exists()


@pytest.mark.proof
@pytest.mark.compat
@pytest.mark.timeout(600)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only a server of its own")
def test_key_value_tables_survive_kill_nine(tmp_path: Path) -> None:
    """The workload itself checks whether the answers it got are true."""
    kills_with_progress = kill_under_load(
        JavaClient.build(NEWEST),
        tmp_path,
        VICTIMS_WITH_TABLES,
        pause_seconds=PAUSE_SECONDS_WITH_TABLES,
        program="KeyValueTableWorkload",
    )
    assert kills_with_progress >= len(VICTIMS_WITH_TABLES) // 2


@pytest.mark.proof
@pytest.mark.compat
@pytest.mark.timeout(600)
@pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="kills only a server of its own")
def test_transactions_survive_kill_nine(tmp_path: Path) -> None:
    """Committed transactions are read whole and once, aborted ones never, and none is left."""
    directory = tmp_path / "workload"

    def look_for_what_is_left(server: Server) -> None:
        scope, _, stream = (directory / "stream").read_text().partition("/")
        begun = (directory / "transactions.log").read_text().split()
        assert len(begun) > 10
        check_nothing_left(server, scope, stream, begun)

    kills_with_progress = kill_under_load(
        JavaClient.build(NEWEST),
        tmp_path,
        VICTIMS_WITH_TRANSACTIONS,
        pause_seconds=PAUSE_SECONDS,
        program="TransactionKillNineWorkload",
        at_the_end=look_for_what_is_left,
    )
    judge(directory)
    assert kills_with_progress >= len(VICTIMS_WITH_TRANSACTIONS) // 2


def check_nothing_left(server: Server, scope: str, stream: str, begun: Sequence[str]) -> None:
    """Check that every transaction has ended and has no segments, once the abandoned leases have
    ended."""
    deadline = time.monotonic() + LEASE_SECONDS_MAX
    with ControllerClient(server.controller_uri) as client:
        while left := [
            one
            for one in read_open_transactions(client, scope, stream)
            if one.record.state.value not in ("committed", "aborted")
        ]:
            assert time.monotonic() < deadline, left
            time.sleep(1)
        numbers = {
            names.segment_number(one.segment_id)
            for one in client.current_segments(scope, stream).ranges
        }
        states = {
            client.transaction_state(scope, stream, UUID(identifier).bytes) for identifier in begun
        }
    assert states <= {"committed", "aborted"}
    with SegmentConnection("127.0.0.1", server.segment_store_port) as connection:
        for identifier in begun:
            for number in range(max(numbers) + 1):
                name = segment_name(scope, stream, number, UUID(identifier).bytes)
                request = GetStreamSegmentInfo(connection.next_request_id(), name, "")
                assert isinstance(connection.call(request), NoSuchSegment), name
        # The segments of aborted transactions are deleted once more when no request comes late.
        deadline = time.monotonic() + 2 * LATE_SECONDS
        while left := [
            entry.key.key
            for entry in read_table(connection, INTENTS)
            if stream.encode() in entry.key.key
        ]:
            assert time.monotonic() < deadline, left
            time.sleep(1)


def judge(directory: Path) -> None:
    """Hold both reads, the one that ran all the time and the one at the end, to the rules."""
    for reads in ("follow.log", "full.log"):
        with (directory / "writes.log").open() as written, (directory / reads).open() as read:
            report = check(written, read)
        print(f"{reads}: {report}")
        report.check_promise(str(reads))
        assert report.acked_count >= ACKED_BEFORE_FIRST_KILL
    assert report.rewind_count == 0
