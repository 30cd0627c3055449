"""The benchmark of clusters measures all of its rows."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.cluster import report, works
from benchmarks.cluster.containers import _segment_in
from benchmarks.cluster.rows import BY_NAME, PUBLISHED_BYTES, ROWS
from benchmarks.cluster.run import run
from benchmarks.cluster.servers import PEERS, make_cluster
from benchmarks.cluster.sizes import SMALL, Size
from benchmarks.comparison import Outcome
from benchmarks.finished_parts import FinishedParts
from benchmarks.load import Load, parse_result
from benchmarks.machine import this_machine
from benchmarks.measured import OURS, Measured
from benchmarks.record import add_run
from benchmarks.streams.rows import DURABLE
from foreign_servers.peer import PeerFailedError

from benchmarks import bench_cluster
from pravega_wire.names import container_of

pytestmark = pytest.mark.proof

IN_A_MINUTE = ("L1", "T1", "open")
"""In the other kinds of rows a client is watched until its addresses are old: a minute each."""


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_the_small_size_gives_its_rows(tmp_path: Path) -> None:
    finished = FinishedParts(None)
    measured = run(IN_A_MINUTE, SMALL, keys=[OURS], directory=tmp_path, finished=finished)
    assert not measured.ours_failed, measured.remarks()
    found = {
        (row.row, row.metric.name): row.ours for row in measured.compared() if row.ours is not None
    }
    for row in (BY_NAME[name] for name in IN_A_MINUTE):
        # The small size holds all loads to a rate: how many bytes a server takes is not measured.
        for metric in {*row.reaches, *row.limits} - {PUBLISHED_BYTES}:
            assert (row.name, metric) in found
    assert found["open", works.OPENED.name] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.compat
@pytest.mark.timeout(600)
def test_the_original_opens_a_small_log(tmp_path: Path) -> None:
    # A store of the original that starts on a busy machine may not serve its container for minutes.
    for _ in range(2):
        measured = run(
            ("open",),
            SMALL,
            keys=[DURABLE],
            directory=tmp_path,
            finished=FinishedParts(None),
        )
        (outcome,) = measured.of("open", DURABLE)
        if outcome.failure is None:
            break
    assert outcome.failure is None
    assert outcome.numbers[works.OPENED]


def measured_of(outcomes: dict[tuple[str, str], list[Outcome]]) -> Measured[Size]:
    rows = {name: BY_NAME[name] for name in ("kill", "move")}
    servers = {key: make_cluster(key, rows["kill"].set_up) for key in (OURS, DURABLE)}
    return Measured(rows, SMALL, servers, outcomes, 60.0)


def test_rows_stand_beside_the_original_and_beside_limits() -> None:
    measured = measured_of(
        {
            ("kill", OURS): [Outcome({works.SERVED: 12.0, works.GAP: 31.0})],
            ("kill", DURABLE): [Outcome({works.SERVED: 30.0, works.GAP: 31.0})],
            ("move", OURS): [Outcome({works.GAP: 1.5})],
        }
    )
    found = {
        (row.row, row.metric.name, row.peer_name): row.holds
        for row in measured.compared()
        if row.reach is not None
    }
    assert found == {
        ("kill", works.SERVED.name, "limit"): True,
        ("kill", works.SERVED.name, DURABLE): True,
        ("kill", works.GAP.name, DURABLE): False,
        ("move", works.GAP.name, "limit"): False,
    }
    assert not measured.ours_failed


def test_the_report_says_what_misses_and_what_failed() -> None:
    measured = measured_of(
        {
            ("kill", OURS): [Outcome({works.SERVED: 14.0})],
            ("kill", DURABLE): [Outcome({works.SERVED: 20.0})],
            ("move", OURS): [Outcome({}, failure="containers [3] are not served")],
        }
    )
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    record = add_run({}, measured.outcomes, commit="abc", moment=moment)
    later = replace(measured, rows={"move": BY_NAME["move"]}, outcomes={})
    text = report.markdown(
        record,
        later,
        machine=this_machine(Path()),
        command="python -m benchmarks.bench_cluster",
        moment=moment,
        reasons="## L1: of another table\n\n## cluster kill: a reason\n",
    )
    assert f"- kill, {works.SERVED.name} (s) / durable: 0.7, to reach <= 0.5: [why]" in text
    assert f"| kill | {BY_NAME['kill'].work} | 2026-01-01 | abc |" in text
    assert "move, ours, round 1: FAILED: containers [3] are not served" in text
    assert "the same, afresh: original 0.13.0" in text
    assert measured.ours_failed


def test_both_clusters_of_a_set_up_have_the_same_shape_and_quorums() -> None:
    for row in ROWS:
        for key in PEERS:
            ours, peer = (make_cluster(each, row.set_up) for each in (OURS, key))
            assert ours.shape == peer.shape
            quorums = "/".join(map(str, row.set_up.shape.replicas))
            assert f"quorums {quorums}" in ours.description
            assert f"quorums {quorums}" in peer.description


def test_each_container_has_a_segment_by_which_it_is_known() -> None:
    names = [_segment_in(number, 16) for number in range(16)]
    assert [container_of(name, 16) for name in names] == list(range(16))


def watched(per_second: list[int], longest_ms: float) -> works.LoadResult:
    latency = dict.fromkeys(("p50", "p95", "p99", "p99_9", "max"), longest_ms)
    flow = {
        "events": sum(per_second),
        "events_per_second": 1.0,
        "mb_per_second": 1.0,
        "per_second": per_second,
        "latency_ms": {**latency, "count": sum(per_second)},
        "blocked_seconds": 0.0,
    }
    none = {"count": 0, "first": []}
    document = {
        "publish": flow,
        "end_to_end": flow,
        "window": {"start_epoch": 100.0, "end_epoch": 110.0},
        "client_cpu_seconds": 1.0,
        "totals": {},
        "errors": {"write": none, "read": none, "cleanup": none},
        "warmup": {"seconds": 1.0, "steady": None, "p50_ms": []},
    }
    return parse_result(Load(), json.dumps(document))


def test_a_gap_counts_if_the_client_was_watched_from_before_it_until_after_it() -> None:
    result = watched([5, 5, 0, 0, 5, 5, 5], 2_500.0)
    assert works._longest_gap(result, since=102.0) == 2.5
    for since in (99.0, 111.0):
        with pytest.raises(PeerFailedError, match="not watched"):
            works._longest_gap(result, since=since)
    with pytest.raises(PeerFailedError, match="not back"):
        works._longest_gap(watched([5, 5, 0, 5, 5], 2_500.0), since=102.0)


def test_the_command_line_refuses_an_unknown_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_cluster.main(["--rows", "L1,nothing"])
    assert "unknown rows {'nothing'}" in capsys.readouterr().err
