"""The benchmark of the controller measures all of its rows."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.comparison import Metric, Outcome
from benchmarks.controller import report, works
from benchmarks.controller.driver import WorkFailedError, controller_driver
from benchmarks.controller.rows import BY_NAME, ROWS
from benchmarks.controller.run import run
from benchmarks.controller.sizes import SMALL, Size
from benchmarks.finished_parts import FinishedParts
from benchmarks.machine import this_machine
from benchmarks.measured import OURS, Measured
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from benchmarks.streams.rows import RAM
from benchmarks.streams.servers import servers
from foreign_servers.peer import running

pytestmark = pytest.mark.proof


@pytest.mark.compat
@pytest.mark.timeout(600)  # a server for each row with stores of its own
def test_the_small_size_gives_every_row(tmp_path: Path) -> None:
    measured = run(
        tuple(BY_NAME),
        SMALL,
        servers=servers([OURS]),
        directory=tmp_path,
        finished=FinishedParts(None),
    )
    assert not measured.ours_failed, measured.remarks()
    found = {
        (row.row, row.metric.name): row.ours for row in measured.compared() if row.ours is not None
    }
    for row in ROWS:
        for metric in (*row.reaches, *row.limits):
            assert (row.name, metric) in found
    # What was made is still there after a kill, whatever else the machine did.
    assert found["open", works.STILL_OPEN.name] == 100.0
    assert found["rate-1", works.RATE.name] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.compat
@pytest.mark.timeout(120)
def test_a_work_that_cannot_be_done_says_why_and_the_next_is(tmp_path: Path) -> None:
    with (
        running(SegstoreStandalone(), tmp_path / "store") as server,
        controller_driver(server.address, tmp_path / "log") as driver,
    ):
        with pytest.raises(WorkFailedError, match="unknown work"):
            driver.ask("dance")
        with pytest.raises(WorkFailedError, match="needs segments"):
            driver.ask("create", count=1)
        assert driver.ask("create", count=1, segments=1)["latency_ms"]["count"] == 1


def measured_of(outcomes: dict[tuple[str, str], list[Outcome]]) -> Measured[Size]:
    rows = {name: BY_NAME[name] for name in ("commit-1", "split")}
    return Measured(rows, SMALL, servers([OURS, RAM]), outcomes, 60.0)


def test_rows_stand_beside_the_peer_and_beside_limits() -> None:
    measured = measured_of(
        {
            ("commit-1", OURS): [Outcome({works.P50: 1.0, works.P99: 4.0})],
            ("commit-1", RAM): [Outcome({works.P50: 10.0, works.P99: 20.0})],
            ("split", OURS): [Outcome({works.STOP: 0.4})],
            ("split", RAM): [Outcome({}, failure="not split")],
        }
    )
    found = {
        (row.row, row.metric.name, row.peer_name): row.holds
        for row in measured.compared()
        if row.reach is not None
    }
    assert found == {
        ("commit-1", works.P50.name, RAM): True,
        ("commit-1", works.P99.name, RAM): False,
        ("split", works.STOP.name, "limit"): True,
    }
    assert not measured.ours_failed


def test_the_report_says_what_misses_and_what_failed() -> None:
    other = Metric(works.P99.name, "ms", "lower")
    measured = measured_of(
        {
            ("commit-1", OURS): [Outcome({works.P50: 9.0, other: 9.0})],
            ("commit-1", RAM): [Outcome({works.P50: 10.0, other: 100.0})],
            ("split", OURS): [Outcome({}, failure="the driver has ended")],
        }
    )
    text = report.markdown(
        measured,
        machine=this_machine(Path()),
        command="python -m benchmarks.bench_controller",
        moment=datetime(2026, 1, 1, tzinfo=UTC),
        reasons="## commit-1: a reason\n",
    )
    assert f"- commit-1, {works.P50.name} (ms) / ram: 0.9, to reach <= 0.15: [why]" in text
    assert "split, ours, round 1: FAILED: the driver has ended" in text
    assert measured.ours_failed
