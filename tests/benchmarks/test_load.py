import copy
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.load import LOAD_MAIN, Backlog, Load, LoadFailedError, parse_result, run_load
from benchmarks.load_driver import driver_class_path
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from foreign_servers.kafka_broker import KafkaBroker
from foreign_servers.peer import running
from foreign_servers.pulsar_standalone import PulsarStandalone

pytestmark = pytest.mark.proof

LATENCY = {"count": 5, "p50": 1.0, "p95": 2.0, "p99": 3.0, "p99_9": 4.0, "max": 5.0}
NO_LATENCY = {"count": 0, "p50": None, "p95": None, "p99": None, "p99_9": None, "max": None}
WRITTEN = {"seconds": 2.0, "latency_ms": LATENCY}
NO_ERROR = {"count": 0, "first": None}
GOOD: dict[str, Any] = {
    "options": {},
    "window": {"start_epoch": 10.0, "end_epoch": 12.0, "seconds": 2.0},
    "publish": {
        "events": 200,
        "events_per_second": 100.0,
        "mb_per_second": 0.01,
        "sent": 200,
        "blocked_seconds": 0.5,
        "per_second": [100, 100],
        "latency_ms": LATENCY,
    },
    "end_to_end": {
        "events": 0,
        "events_per_second": 0.0,
        "mb_per_second": 0.0,
        "per_second": [0, 0],
        "latency_ms": NO_LATENCY,
    },
    "client_cpu_seconds": 1.5,
    "warmup": {"seconds": 60.0, "steady": True, "p50_ms": [1.0, 1.01, None]},
    "totals": {
        "sent": 250,
        "acknowledged": 250,
        "failed": 0,
        "unacknowledged": 0,
        "read": 250,
        "unread": 0,
        "wrong_size": 0,
    },
    "errors": {"write": NO_ERROR, "read": NO_ERROR, "cleanup": NO_ERROR},
}
SHARED = Load(
    rate=500, segments=4, consumers=2, keys=10, warmup_seconds=0.5, seconds=1, drain_seconds=60
)
"""Two readers of one group read all that is written."""
BACKLOG = Backlog(events=300, warm_events=50, event_size=1_000, segments=4, consumers=2)


def changed(section: str, **members: Any) -> str:
    document = copy.deepcopy(GOOD)
    document[section] |= members
    return json.dumps(document)


def drive(backlog: Backlog, address: str, *, writes: bool, heap: str) -> None:
    found = backlog.run(address, writes=writes, heap=heap, speaks_kafka=False, seconds_max=120)
    assert found.events == backlog.events
    assert found.mb_per_second > 0


def write_and_drain(address: str, *, heap: str) -> None:
    for writes in (True, False):
        drive(BACKLOG, address, writes=writes, heap=heap)


def test_a_result_is_read_whole() -> None:
    result = parse_result(Load(rate=100), json.dumps(GOOD))
    assert result.publish.per_second == (100, 100)
    assert result.publish.latency_ms.p99_9 == 4.0
    assert result.end_to_end.latency_ms.p50 is None
    assert (result.start_epoch, result.end_epoch) == (10.0, 12.0)
    assert result.failure() is None
    assert result.remarks() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed("errors", write={"count": 2, "first": "sealed"}), "2 errors, the first: sealed"),
        (changed("errors", read={"count": 1, "first": "truncated"}), "truncated"),
        (changed("totals", unacknowledged=3), "3 events were never acknowledged"),
        (changed("totals", unread=4), "4 events were not read"),
        (changed("totals", unread=-1), "1 more events were read"),
        (changed("totals", wrong_size=1), "another size"),
    ],
)
def test_a_lost_or_changed_event_is_a_failure(text: str, words: str) -> None:
    failure = parse_result(Load(rate=100), text).failure()
    assert failure is not None
    assert words in failure


def test_a_reader_may_lag_when_the_rate_is_unthrottled() -> None:
    result = parse_result(Load(rate=0), changed("totals", unread=4))
    assert result.failure() is None
    assert result.remarks() == ["4 events still unread after the drain"]


def test_readers_may_stay_behind_a_backlog() -> None:
    text = changed("totals", unread=4).removesuffix("}") + f', "backlog": {json.dumps(WRITTEN)}}}'
    result = parse_result(Load(rate=100, backlog=200), text)
    assert result.failure() is None
    assert result.remarks() == ["4 events still unread after the drain"]
    assert result.alone is not None
    assert result.alone.p99 == 3.0


def test_falling_behind_the_rate_is_remarked() -> None:
    result = parse_result(Load(rate=103), json.dumps(GOOD))
    assert result.remarks() == ["did not keep up: 100 of 103 events/s"]


def test_a_load_that_was_measured_before_it_was_steady_is_remarked() -> None:
    result = parse_result(Load(rate=100), changed("warmup", steady=False, seconds=120.2))
    assert result.remarks() == ["not steady after 120 s: p50 1, 1.01, - ms"]


def test_a_warm_up_of_one_length_is_not_judged() -> None:
    assert "--warmup-max" not in Load(warmup_seconds=3).arguments()
    result = parse_result(Load(rate=100), changed("warmup", steady=None))
    assert result.remarks() == []


@pytest.mark.compat
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of --controller, --kafka and --pulsar is needed"),
        (
            ["--controller", "tcp://127.0.0.1:1", "--pulsar", "http://127.0.0.1:2"],
            "one of --controller, --kafka and --pulsar is needed",
        ),
        (["--rate", "many"], "--rate is not a number: many"),
        (["--event-size", "7"], "--event-size is out of range: 7"),
        (
            ["--controller", "tcp://127.0.0.1:1", "--rate", "0", "--latency-from", "intended"],
            "--latency-from intended needs a --rate",
        ),
    ],
)
def test_the_driver_refuses_what_it_cannot_run(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        ["java", "-Xmx64m", "-cp", driver_class_path(), LOAD_MAIN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(words + "\nusage:")


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_a_load_goes_on_until_it_is_steady(tmp_path: Path) -> None:
    with running(SegstoreStandalone(), tmp_path / "ours") as server:
        load = Load(
            rate=500,
            warmup_seconds=0.5,
            warmup_seconds_max=2.5,
            warmup_window_seconds=0.2,
            seconds=0.5,
            consumers=2,
            own_groups=True,
        )
        result = run_load(server.address, load, heap="256m")
    assert result.failure() is None
    assert result.warm_up.steady is not None
    assert 0.5 <= result.warm_up.seconds < 10
    assert len(result.warm_up.p50_ms) == 3
    # Each of them reads all.
    assert result.totals["read"] == 2 * result.totals["acknowledged"]


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_readers_are_held_until_a_backlog_is_there(tmp_path: Path) -> None:
    load = replace(SHARED, backlog=1_500, seconds=60)
    with running(SegstoreStandalone(), tmp_path / "ours") as server:
        result = run_load(server.address, load, heap="256m")
    assert result.failure() is None
    assert result.totals["read"] == result.totals["acknowledged"] > 1_500
    assert result.alone is not None
    assert result.alone.count > 0
    # By its rate, the first event waits for three seconds.
    assert result.end_to_end.latency_ms.max is not None
    assert result.end_to_end.latency_ms.max > 2_000


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_readers_of_kafka_share_the_partitions_of_a_load(tmp_path: Path) -> None:
    peer = KafkaBroker(fsync=False, options=("-Xmx256m",))
    peer.prepare()
    load = replace(SHARED, consumers=3, linger_ms=10, batch_bytes=2**20)
    with running(peer, tmp_path / "kafka") as server:
        result = run_load(server.address, load, heap="256m", speaks_kafka=True)
    assert result.failure() is None
    assert result.totals["read"] == result.totals["acknowledged"] > 0


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_a_backlog_is_written_and_drained_by_several_readers(tmp_path: Path) -> None:
    with running(SegstoreStandalone(), tmp_path / "ours") as server:
        write_and_drain(server.address, heap="256m")
        too_many = replace(BACKLOG, events=400)
        with pytest.raises(LoadFailedError):
            too_many.run(
                server.address, writes=False, heap="256m", speaks_kafka=False, seconds_max=5
            )


@pytest.mark.compat
@pytest.mark.timeout(1800)
def test_events_are_written_to_pulsar_and_read_back(tmp_path: Path) -> None:
    peer = PulsarStandalone(options=("-Xmx512m", "-XX:MaxDirectMemorySize=1g"))
    peer.prepare()
    shared = replace(SHARED, rate=200)
    alone = replace(shared, batch_bytes=0, own_groups=True)
    with running(peer, tmp_path / "pulsar") as server:
        for load, copies in ((shared, 1), (alone, 2)):
            result = run_load(server.address, load, heap="512m")
            assert result.failure() is None
            assert result.cleanup_errors is None
            assert result.totals["read"] == copies * result.totals["acknowledged"] > 0
            assert result.end_to_end.latency_ms.p50 is not None
        write_and_drain(server.address, heap="512m")


@pytest.mark.compat
@pytest.mark.timeout(1800)
def test_pulsar_moves_full_ledgers_to_files(tmp_path: Path) -> None:
    peer = PulsarStandalone(
        offloads=True,
        options=("-Xmx512m", "-XX:MaxDirectMemorySize=1g"),
        properties={"managedLedgerMaxSizePerLedgerMbytes": 1},
    )
    peer.prepare()
    backlog = replace(BACKLOG, events=500, event_size=10_000, segments=1, consumers=1)
    with running(peer, tmp_path / "pulsar") as server:
        drive(backlog, server.address, writes=True, heap="512m")
        while not list((tmp_path / "pulsar" / "tier2").rglob("data")):
            time.sleep(0.1)
        drive(backlog, server.address, writes=False, heap="512m")
