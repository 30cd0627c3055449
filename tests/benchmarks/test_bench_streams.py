import json
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.comparison import Metric, Outcome, write_json
from benchmarks.finished_parts import FinishedParts
from benchmarks.machine import busy_seconds, this_machine
from benchmarks.peers import segstore_standalone
from benchmarks.peers.segstore_standalone import UNSTORED, AssembledStore, SegstoreStandalone
from benchmarks.record import add_run, read_record, write_record
from benchmarks.streams import report, rows
from benchmarks.streams.drains import DRAINED
from benchmarks.streams.rows import BY_NAME, CRASH, OURS, PEERS, ROWS, SMALL, START, Plan
from benchmarks.streams.run import LOGS, Measured, run
from foreign_servers.kafka_broker import KafkaBroker
from foreign_servers.original_durable import OriginalDurable
from foreign_servers.original_standalone import OriginalStandalone
from foreign_servers.peer import Peer
from foreign_servers.pulsar_standalone import PulsarStandalone

from benchmarks import bench_streams

pytestmark = pytest.mark.proof

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
RATE = Metric(rows.PUBLISHED, "events/s", "higher")
P95 = Metric(rows.PUBLISH_P95, "ms", "lower")
MB = Metric("published bytes", "MB/s", "higher")
NEXT_DAY = datetime(2030, 1, 3, tzinfo=UTC)


def number(of: Outcome, name: str) -> float:
    (found,) = (value for metric, value in of.numbers.items() if metric.name == name)
    assert found is not None
    return found


def one_load(peer: Peer, directory: Path, row: str = "L2") -> Outcome:
    """Run one second of a small load on this server."""
    plan = replace(SMALL, rows=(row,), peers=(), seconds=1.0)
    measured = run(plan, servers={OURS: peer}, directory=directory, finished=FinishedParts(None))
    (found,) = measured.of(row, OURS)
    assert found.failure is None
    assert list(directory.iterdir()) == []
    assert 0 < number(found, "publish p50") <= number(found, "publish p99")
    assert number(found, "end-to-end p50") > 0
    assert number(found, "server CPU") > 0
    return found


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_ours_takes_a_small_load_a_start_and_a_crash(tmp_path: Path) -> None:
    measured = run(
        SMALL,
        servers={OURS: SegstoreStandalone()},
        directory=tmp_path,
        finished=FinishedParts(None),
    )
    assert not measured.ours_failed, measured.remarks()
    (load,), (start,) = measured.of("L2", OURS), measured.of(START, OURS)
    (crash,) = measured.of(CRASH, OURS)
    assert 0 < number(load, "publish p50") <= number(load, "publish p99")
    assert number(load, rows.WRITTEN) >= 1
    assert 0 < number(start, "start to port") <= number(start, rows.READY)
    assert 0 < number(start, "idle PSS") <= number(start, rows.IDLE_RSS)
    assert number(crash, "unflushed when killed") >= 0.5 * SMALL.unflushed_mb
    assert number(crash, rows.READY_AGAIN) > 0
    write_json(measured.compared(), tmp_path / "rows.json")
    found = json.loads((tmp_path / "rows.json").read_text())
    limits = [row for row in found if row["reach"] is not None]
    assert all(row["ours"] is not None and row["holds"] is not None for row in limits)
    names = {row["name"].split()[0] for row in limits}
    assert names == {"D6", "D7", "D4-D2", "R1", START, CRASH}
    (many,), (drained,), (cold,) = (measured.of(name, OURS) for name in ("D7", "D2", "D4-D2"))
    assert number(many, "end-to-end p99") > 0
    assert number(many, rows.DELIVERY_CPU) > 0
    assert number(drained, DRAINED) > 0
    assert number(cold, DRAINED) > 0


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_ours_takes_a_small_load_over_tls_with_a_user(tmp_path: Path) -> None:
    one_load(SegstoreStandalone(), tmp_path, "L1s")
    assert "tls://" in (LOGS / "1-L1s-ours" / "server.log").read_text()


@pytest.mark.compat
@pytest.mark.timeout(300)
def test_a_store_that_stores_nothing_takes_a_small_load(tmp_path: Path) -> None:
    found = one_load(AssembledStore(UNSTORED), tmp_path)
    assert number(found, rows.WRITTEN) == 0


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_the_original_in_memory_takes_a_small_load(tmp_path: Path) -> None:
    found = one_load(OriginalStandalone(heap="512m", jvm_options=QUICK_START), tmp_path)
    assert number(found, "peak RSS") > 50


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_the_original_on_disk_takes_a_small_load(tmp_path: Path) -> None:
    peer = OriginalDurable(
        segment_store_options=("-Xmx512m", "-XX:MaxDirectMemorySize=512m"),
        other_options=("-Xmx256m",),
        jvm_options=QUICK_START,
        properties={"pravegaservice.cache.size.max": str(2**28)},
    )
    found = one_load(peer, tmp_path)
    assert number(found, "peak RSS") > 200
    assert number(found, rows.WRITTEN) >= 1


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_kafka_takes_a_small_load(tmp_path: Path) -> None:
    found = one_load(KafkaBroker(fsync=True, options=("-Xmx256m", *QUICK_START)), tmp_path)
    assert number(found, rows.WRITTEN) >= 1


@pytest.mark.compat
@pytest.mark.timeout(1800)
def test_pulsar_takes_a_small_load(tmp_path: Path) -> None:
    options = ("-Xmx512m", "-XX:MaxDirectMemorySize=1g", *QUICK_START)
    found = one_load(PulsarStandalone(options=options), tmp_path)
    assert number(found, rows.WRITTEN) >= 1


def test_pulsar_runs_where_it_is_named() -> None:
    rows_run = ("L1", "D1", "L1s", "D4-D1", START)
    assert all("pulsar" not in Plan().peers_of(BY_NAME[name]) for name in rows_run)
    plan = Plan(rows=rows_run, peers=("kafka-fsync", "pulsar"))
    assert [plan.peers_of(BY_NAME[name]) for name in rows_run] == [
        ("kafka-fsync", "pulsar"),
        ("pulsar",),
        (),
        (),
        (),
    ]


def test_a_server_that_does_not_start_is_a_failed_outcome(tmp_path: Path) -> None:
    peer = SegstoreStandalone(options=("--no-such-option",))
    measured = run(
        replace(SMALL, rows=("L1",)),
        servers={OURS: peer},
        directory=tmp_path,
        finished=FinishedParts(None),
    )
    (found,) = measured.of("L1", OURS)
    assert found.failure is not None
    assert found.failure.startswith("exited with ")
    assert measured.ours_failed
    assert "no-such-option" in (LOGS / "1-L1-ours" / "server.log").read_text()


def test_a_peer_that_cannot_be_prepared_is_a_failed_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = SegstoreStandalone()
    monkeypatch.setattr(segstore_standalone, "COMMAND", tmp_path / "nothing")
    measured = run(
        replace(SMALL, rows=("L1",)),
        servers={OURS: peer},
        directory=tmp_path,
        finished=FinishedParts(None),
    )
    (found,) = measured.of("L1", OURS)
    assert found.failure == f"{tmp_path / 'nothing'} is not installed"


def test_a_plan_sets_the_size_of_its_rows() -> None:
    plan = Plan(seconds=3, warmup_seconds=1, rate_max=50)
    assert plan.load(BY_NAME["L1"]).rate == 50
    assert plan.load(BY_NAME["T1"]).rate == 50
    assert plan.load(BY_NAME["L1"]).seconds == 3
    assert Plan().load(BY_NAME["T1"]).rate == 0


def test_servers_take_turns_and_who_begins_alternates() -> None:
    plan = Plan(rows=("L1", "L5"), peers=("kafka-fsync", "durable"), rounds=2)
    assert list(plan.turns()) == [
        (0, "L1", "ours"),
        (0, "L1", "durable"),
        (0, "L1", "kafka-fsync"),
        (0, "L5", "ours"),
        (0, "L5", "durable"),
        (1, "L1", "kafka-fsync"),
        (1, "L1", "durable"),
        (1, "L1", "ours"),
        (1, "L5", "durable"),
        (1, "L5", "ours"),
    ]


def test_servers_that_are_not_fresh_take_all_their_rows_at_once() -> None:
    plan = Plan(rows=("L1", "L5"), peers=("durable",), rounds=1, fresh=False)
    assert [turn[1:] for turn in plan.turns()] == [
        ("L1", "ours"),
        ("L5", "ours"),
        ("L1", "durable"),
        ("L5", "durable"),
    ]


def test_rows_have_no_more_rounds_than_they_want() -> None:
    turns = list(Plan(rows=("L5", "R1"), peers=(), rounds=2).turns())
    assert turns == [(0, "L5", "ours"), (0, "R1", "ours"), (1, "L5", "ours")]


def test_a_further_round_is_left_out_when_time_is_up(tmp_path: Path) -> None:
    peer = SegstoreStandalone(options=("--no-such-option",))
    plan = replace(SMALL, rows=("L1",), rounds=2, minutes_max=0.5)
    measured = run(plan, servers={OURS: peer}, directory=tmp_path, finished=FinishedParts(None))
    assert len(measured.of("L1", OURS)) == 1
    assert "L1, ours, round 2: left out for want of time" in measured.remarks()


def test_every_target_is_of_a_metric_that_its_row_measures() -> None:
    paced = {rows.PUBLISH_P50, rows.PUBLISH_P95, rows.PUBLISH_P99, rows.SERVER_CPU}
    paced |= {rows.READ_DELAY, rows.DELIVERY_P99, rows.DELIVERY_CPU}
    unthrottled = {rows.PUBLISHED, rows.READ_SHARE, rows.WRITTEN, rows.PEAK_RSS}
    assert set(BY_NAME["R1"].limits) == {rows.PEAK_RSS, rows.GROWTH}
    for row in ROWS:
        named = {metric for peer in row.reaches.values() for metric in peer} | set(row.limits)
        named |= {metric for other in row.beside.values() for metric in other}
        assert set(row.peers) <= set(PEERS)
        assert set(row.beside) <= set(BY_NAME)
        if row.drain is not None:
            assert named == {DRAINED}
        if row.load is not None and row.name != "R1":
            assert named <= (paced if row.load.rate else unthrottled), row.name


@pytest.fixture
def measured() -> Measured:
    ours = [Outcome({RATE: 900.0, P95: 9.0, MB: 9.0}, remarks=("slow disk",), other_cpu_share=0.5)]
    return Measured(
        Plan(rows=("T1", "T2"), rounds=1, peers=("durable", "kafka"), rate_max=50),
        {OURS: SegstoreStandalone(), "durable": OriginalDurable()},
        {
            ("T1", OURS): ours,
            ("T1", "durable"): [Outcome({}, failure="acks\nstopped")],
            ("T2", OURS): ours,
            ("T2", "durable"): [Outcome({RATE: 300.0, P95: 18.0, MB: 3.0})],
        },
        90.0,
    )


def test_a_report_names_work_machine_servers_and_failures(
    measured: Measured, tmp_path: Path
) -> None:
    day = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    text = report.markdown(
        add_run({}, measured.outcomes, commit="abc", moment=day),
        measured,
        machine=this_machine(tmp_path),
        command="python -m benchmarks.bench_streams --rows T1",
        moment=day,
        plots=["latency.svg"],
        reasons="# Misses\n\n## L1, T1: a full loop\n\nWhy.\n",
    )
    assert text.startswith("# Streams, 02 January 2030\n")
    assert "| T2 | published events (events/s) / durable | 900 | 300 | 3 | >= 1.6 | yes |" in text
    assert "| T1 | published events (events/s) | 900 | - |" in text
    assert "| T1 | 100 B, 1 segment, unthrottled, at most 50 events/s | 2030-01-02 | abc |" in text
    assert "- T1, ours, round 1: slow disk\n" in text
    assert "- T1, ours, round 1: others used 50% of the CPUs\n" in text
    assert "- T1, durable, round 1: FAILED: acks stopped\n" in text
    assert "**original (durable)**: original 0.13.0" in text
    assert "![latency](latency.svg)" in text
    assert "python -m benchmarks.bench_streams --rows T1" in text


def test_a_run_replaces_its_rows_in_the_record_and_leaves_the_others(
    measured: Measured, tmp_path: Path
) -> None:
    path = tmp_path / "streams.json"
    assert read_record(path, BY_NAME) == {}
    first = add_run({}, measured.outcomes, commit="abc", moment=datetime(2030, 1, 2, tzinfo=UTC))
    write_record(path, first)
    assert read_record(path, BY_NAME) == first
    later = replace(
        measured,
        plan=replace(measured.plan, rows=("T2",)),
        outcomes={("T2", OURS): [Outcome({RATE: 1.0})]},
        servers={OURS: SegstoreStandalone()},
    )
    both = add_run(read_record(path, BY_NAME), later.outcomes, commit="def", moment=NEXT_DAY)
    assert (both["T1"], both["T2"].commit) == (first["T1"], "def")
    combined = report.combine(both, later)
    assert combined.plan.rows == ("T1", "T2")
    assert list(combined.servers) == [OURS, "durable"]

    def ratios(rows: Measured) -> list[float]:
        return [row.ratio for row in rows.compared() if row.row == "T2" and row.ratio is not None]

    assert 3 in ratios(report.combine(first, measured))
    assert not ratios(combined), "a peer of an earlier run stands beside this one"


def test_a_row_that_misses_is_listed_with_its_reason(measured: Measured) -> None:
    slow = Outcome({RATE: 270.0})
    outcomes = {**measured.outcomes, ("T1", "durable"): [slow], ("T1", OURS): [slow]}
    compared = replace(measured, outcomes=outcomes).compared()
    words = "published events (events/s) / durable: 1, to reach >= 1.6"
    explained = report.missing(compared, "## L1, T1: a full loop\n")
    assert f"- T1, {words}: [why](misses.md#l1-t1-a-full-loop)" in explained
    assert f"- T1, {words}: not explained yet" in report.missing(compared, "## L1: a full loop\n")
    assert not any(line.startswith("- T2,") for line in explained)


def test_a_ratio_that_landed_stands_beside_todays(measured: Measured, tmp_path: Path) -> None:
    path, day = tmp_path / "landed.json", datetime(2030, 1, 2, tzinfo=UTC)
    assert report.read_landed(path, "whole") is None
    report.write_landed(path, measured, commit="abc", moment=day)
    landed = report.read_landed(path, "whole")
    assert landed is not None
    assert landed.ratios["T2 published events / durable (events/s, higher is better)"] == 3
    lines = report.quick_lines(measured, landed)
    assert lines[1].startswith("T1 published events")
    assert lines[1].split()[-2:] == ["-", "FAILED"]
    assert lines[2].split()[-2:] == ["3", "3"]
    assert lines[-1] == "landed: 2030-01-02, commit abc, a whole run"
    assert report.read_landed(path, "quick") == landed
    quick = replace(measured, plan=replace(measured.plan, fresh=False))
    report.write_landed(path, quick, commit="def", moment=day)
    assert (report.read_landed(path, "whole"), report.read_landed(path, "quick")) == (
        landed,
        replace(landed, kind="quick", commit="def"),
    )


def test_plots_are_made_of_what_was_measured(measured: Measured) -> None:
    plots = report.plots_of(measured)
    assert set(plots) == {
        "latency-1-segments.svg",
        "latency-16-segments.svg",
        "throughput-100-bytes.svg",
    }
    assert ">segstore<" in plots["throughput-100-bytes.svg"]
    assert ">original (durable)<" in plots["throughput-100-bytes.svg"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "L1,X9"], "unknown rows ['X9']"),
        (["--peers", "redis"], "unknown peers ['redis']"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench_streams.main(arguments)
    assert words in capsys.readouterr().err


def test_options_change_the_chosen_plan() -> None:
    names = ("rows", "peers", "rounds", "warmup", "warmup_max", "seconds", "client_heap")
    unset = dict.fromkeys(names)
    given = Namespace(small=False, quick=True, **unset | {"seconds": 7.0, "rows": ("T1",)})
    plan = bench_streams.plan_of(given)
    assert (plan.seconds, plan.rows, plan.fresh) == (7.0, ("T1",), False)
    given = Namespace(small=False, quick=False, **unset | {"warmup": 3.0})
    plan = bench_streams.plan_of(given)
    assert (plan.warmup_seconds, plan.warmup_seconds_max) == (3.0, None)
    given = Namespace(small=False, quick=False, **unset | {"warmup_max": 60.0})
    plan = bench_streams.plan_of(given)
    assert (plan.warmup_seconds, plan.warmup_seconds_max) == (45, 60.0)


def test_a_row_may_have_to_reach_something_beside_another() -> None:
    metric = Metric(rows.DELIVERY_P99, "ms", "lower")
    measured = Measured(
        Plan(rows=("D7-1", "D7"), rounds=1, peers=()),
        {OURS: SegstoreStandalone()},
        {("D7-1", OURS): [Outcome({metric: 4.0})], ("D7", OURS): [Outcome({metric: 7.0})]},
        90.0,
    )
    [row] = [row for row in measured.compared() if row.reach is not None]
    assert (row.row, row.peer_name, row.ratio, row.holds) == ("D7", "D7-1", 1.75, True)


def test_a_backlog_has_a_cache_that_holds_it() -> None:
    for row in ROWS:
        if row.drain is not None:
            backlog = row.drain.backlog
            stored = (backlog.events + backlog.warm_events) * (backlog.event_size + 8)
            assert row.drain.cache_bytes > 1.3 * stored
            assert backlog.warm_events >= 1


def test_busy_seconds_only_grow() -> None:
    before = busy_seconds()
    sum(range(2_000_000))
    assert busy_seconds() >= before > 0
