import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.bench_btree import ROWS, SMALL, Plan, measure, report
from benchmarks.comparison import write_json
from benchmarks.machine import this_machine
from benchmarks.peers.btree.runs import RunFailedError, Workload, run

from benchmarks import bench_btree

pytestmark = pytest.mark.proof


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_the_small_size_compares_ours_with_the_original(tmp_path: Path) -> None:
    comparison = measure(SMALL)
    assert not comparison.failed, comparison.remarks
    write_json(comparison.rows, tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 3 * 4 + 2 + 5
    assert all(row["ours"] > 0 for row in rows)
    assert [row["reach"] for row in rows if row["reach"]] == [0.33, 1.0] * 3 + [1.0]
    assert all(row["peer"] > 0 and row["ratio"] > 0 for row in rows if row["reach"])


def test_without_the_original_nothing_is_compared() -> None:
    comparison = measure(SMALL, original=False)
    assert not comparison.failed
    assert all(row.peer is None and row.holds is None for row in comparison.rows)
    found = {(row.row.split(":")[0], row.metric.name): row.ours for row in comparison.rows}
    assert found["g20k", "levels"] == 2
    assert found["g20k", "reads of a cold lookup"] == 1


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RunFailedError, match="there is no footer"):
        run("ours", Workload("grow", 0))


def test_a_report_names_work_machine_and_command(tmp_path: Path) -> None:
    plan = replace(SMALL, rows=SMALL.rows[:1])
    comparison = replace(measure(plan, original=False), remarks=("a remark",))
    text = report(
        comparison,
        plan,
        machine=this_machine(tmp_path),
        command="python -m benchmarks.bench_btree --small",
        moment=datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
    )
    assert text.startswith("# B+Tree of attributes, 02 January 2030\n")
    assert "| s10: 3,000 keys inserted in order, batches of 10 | retained (MB) |" in text
    assert "- a remark\n" in text
    assert "python -m benchmarks.bench_btree --small" in text


def test_the_usual_rows_are_those_of_the_article() -> None:
    assert [(row.workload.kind, row.workload.batch_size) for row in ROWS[:6]] == [
        (kind, size) for kind in ("sorted", "random") for size in (10, 100, 1000)
    ]
    assert {row.workload.keys for row in ROWS} == {1_000_000}
    assert Plan().rounds == 3


def test_wrong_rows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_btree.main(["--rows", "s10,x"])
    assert "unknown rows ['x']" in capsys.readouterr().err
