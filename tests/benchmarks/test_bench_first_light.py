import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.bench_first_light import LOAD_ROWS, ROWS_DEFAULT, SMALL, Comparison, Plan, outcome
from benchmarks.comparison import Metric, Outcome, compare, write_json
from benchmarks.machine import busy_seconds, this_machine
from benchmarks.peers.original_standalone import OriginalStandalone
from benchmarks.peers.segstore_standalone import SegstoreStandalone

from benchmarks import bench_first_light

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
RATE = Metric("published", "events/s", "higher")


def number(of: Outcome, name: str) -> float:
    (found,) = (value for metric, value in of.numbers.items() if metric.name == name)
    assert found is not None
    return found


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_ours_takes_a_small_load_and_a_start(tmp_path: Path) -> None:
    comparison = bench_first_light.run(
        SMALL, ours=SegstoreStandalone(), peer=None, directory=tmp_path
    )
    assert not comparison.ours_failed, comparison.remarks()
    (load,), (start,) = comparison.ours["L2"], comparison.ours["R"]
    assert 0 < number(load, "publish p50") <= number(load, "publish p99")
    assert number(load, "written per payload byte") >= 1
    assert 0 < number(start, "start to port") <= number(start, "start to first ack")
    write_json(comparison.rows, tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert all(row["ours"] is not None and row["peer"] is None for row in rows)


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_the_original_takes_a_small_load(tmp_path: Path) -> None:
    original = OriginalStandalone(heap="512m", jvm_options=QUICK_START)
    original.prepare()
    found = outcome(original, "L2", SMALL, directory=tmp_path / "original")
    assert found.failure is None
    assert 0 < number(found, "publish p50") <= number(found, "publish p99")
    assert number(found, "end-to-end p50") > 0
    assert number(found, "peak RSS") > 50
    assert number(found, "server CPU") > 0
    assert not (tmp_path / "original").exists()


def test_a_server_that_does_not_start_is_a_failed_outcome(tmp_path: Path) -> None:
    peer = SegstoreStandalone(options=("--no-such-option",))
    found = outcome(peer, "L1", Plan(), directory=tmp_path / "ours")
    assert found.failure is not None
    assert found.failure.startswith("exited with ")


def test_a_plan_sets_the_size_of_its_rows() -> None:
    paced, unthrottled = LOAD_ROWS[0], next(row for row in LOAD_ROWS if row.name == "T1")
    plan = Plan(seconds=3, warmup_seconds=1, rate_max=50)
    assert plan.load(paced).rate == 50
    assert plan.load(unthrottled).rate == 50
    assert plan.load(paced).seconds == 3
    assert Plan().load(unthrottled).rate == 0
    assert set(ROWS_DEFAULT) <= set(bench_first_light.ROW_NAMES)


def test_a_report_names_work_machine_servers_and_failures(tmp_path: Path) -> None:
    ours = [Outcome({RATE: 9.0}, remarks=("slow disk",), other_cpu_share=0.5)]
    peer = [Outcome({}, failure="acks stopped")]
    comparison = Comparison(
        tuple(compare("T1", ours=ours, peer=peer, reaches={})), {"T1": ours}, {"T1": peer}
    )
    text = bench_first_light.report(
        comparison,
        Plan(rows=("T1",), rate_max=50),
        machine=this_machine(tmp_path),
        servers=[SegstoreStandalone(), OriginalStandalone()],
        command="python -m benchmarks.bench_first_light --rows T1",
        moment=datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
    )
    assert text.startswith("# First light, 02 January 2030\n")
    assert "| T1 | published (events/s) | 9 | - |" in text
    assert "| T1 | 100 B, 1 segment, unthrottled, at most 50 events/s |" in text
    assert "- T1, ours, round 1: slow disk\n" in text
    assert "- T1, ours, round 1: others used 50% of the CPUs\n" in text
    assert "- T1, peer, round 1: FAILED: acks stopped\n" in text
    assert "original standalone 0.13.0, in memory" in text
    assert "python -m benchmarks.bench_first_light --rows T1" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "L1,X9"], "unknown rows ['X9']"),
        (["--peer-property", "cache"], "not NAME=VALUE: cache"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench_first_light.main(arguments)
    assert words in capsys.readouterr().err


def test_busy_seconds_only_grow() -> None:
    before = busy_seconds()
    sum(range(2_000_000))
    assert busy_seconds() >= before > 0
