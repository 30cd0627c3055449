import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.bench_cache import ROWS, SMALL, Plan, measure, random, report, sequential
from benchmarks.comparison import write_json
from benchmarks.machine import this_machine
from benchmarks.peers.cache import runs
from benchmarks.peers.cache.runs import RunFailedError
from benchmarks.peers.cache.workload import SplitMix, Workload, draw

from benchmarks import bench_cache

pytestmark = pytest.mark.proof

TINY = {"warmup_count": 10, "warmup_passes": 1, "passes": 2}


def test_the_generator_is_split_mix_64() -> None:
    generator = SplitMix(1234567)
    assert [generator.next() for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_random_work_is_what_it_says() -> None:
    workload = replace(random(1000, 5000, vary=True), live_max=200)
    work = draw(workload, workload.count)
    live = inserted = 0
    for place, length, read in zip(work.deletes, work.lengths, work.reads, strict=True):
        assert -1 <= place < live
        inserted += place == -1
        live += 1 if place == -1 else -1
        assert 0 <= length < 1000
        assert read == -1 if live == 0 else 0 <= read < live
        assert live <= 200
    assert draw(workload, workload.count) == work
    assert draw(replace(workload, seed=43), workload.count) != work
    free_to_grow = draw(random(1000, 5000), 5000)
    assert free_to_grow.deletes.count(-1) == pytest.approx(3000, abs=150)
    assert set(free_to_grow.lengths) == {0, 1000}


def test_a_workload_survives_the_command_line() -> None:
    workload = replace(random(1000, 50, vary=True), **TINY)
    assert Workload.parse(workload.arguments()) == workload


@pytest.mark.parametrize("workload", [sequential(10_240, 50), random(10_240, 100, vary=True)])
def test_python_stores_do_the_same_work(workload: Workload) -> None:
    workload = replace(workload, **TINY)
    ours, dictionary = runs.run("ours", workload), runs.run("dictionary", workload)
    assert ours.digest == dictionary.digest
    assert ours.digest != runs.run("ours", replace(workload, seed=7)).digest
    for part in ours.passes[0]:
        assert ours.fresh(part) > 0
        assert ours.reused(part) > 0
        assert ours.reused(part, "cpu_ns") > 0


def test_a_process_that_fails_says_why() -> None:
    too_small = replace(sequential(10_240, 1000), capacity=2 * 1024**2, **TINY)
    with pytest.raises(RunFailedError, match="CacheFullError"):
        runs.run("ours", too_small)


@pytest.mark.compat
@pytest.mark.timeout(900)
def test_the_small_size_compares_ours_with_the_original(tmp_path: Path) -> None:
    """Both did the same work, or the comparison has failed."""
    comparison = measure(SMALL)
    assert not comparison.failed, comparison.remarks
    write_json(comparison.rows, tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 3 * (3 + 1 + 1)
    assert all(row["ours"] > 0 and row["peer"] > 0 and row["ratio"] > 0 for row in rows)
    assert [row["reach"] for row in rows if row["reach"]] == [0.6, 1.0, 0.8, 0.7]


def test_without_the_original_nothing_is_compared() -> None:
    plan = replace(SMALL, rows=SMALL.rows[:1], others=("dictionary", "rocksdb"))
    comparison = measure(plan, original=False)
    assert not comparison.failed
    assert all(row.peer is None and row.holds is None for row in comparison.rows)
    lines = bench_cache.article_table(comparison, plan)
    assert lines[0] == ("cache", "s10 insert ms", "s10 get ms", "s10 delete ms")
    stores = [line[0] for line in lines[1:]]
    assert stores[0] == "Python dictionary of bytes"
    assert stores[-1] == "our streaming cache"
    left_out = [remark for remark in comparison.remarks if "RocksDB" in remark]
    assert bool(left_out) == ("RocksDB (rocksdict)" not in stores)


def test_a_report_names_work_machine_and_command(tmp_path: Path) -> None:
    plan = replace(SMALL, rows=SMALL.rows[:1], others=())
    comparison = replace(measure(plan, original=False), remarks=("a remark",))
    text = report(
        comparison,
        plan,
        machine=this_machine(tmp_path),
        command="python -m benchmarks.bench_cache --small",
        moment=datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
    )
    assert text.startswith("# Streaming cache, 02 January 2030\n")
    assert "| s10: 200 entries of 10 KiB | insert (ns) |" in text
    assert "| our streaming cache |" in text
    assert "- a remark\n" in text
    assert "python -m benchmarks.bench_cache --small" in text


def test_the_usual_rows_are_those_of_the_article() -> None:
    assert [row.work for row in ROWS] == [
        "100,000 entries of 10 KiB",
        "10,000 entries of 100 KiB",
        "200,000 random operations, 10 KiB",
        "20,000 random operations, 100 KiB",
        "200,000 random operations, below 10 KiB",
    ]
    assert Plan().rounds == 3


def test_wrong_rows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_cache.main(["--rows", "s10,x"])
    assert "unknown rows ['x']" in capsys.readouterr().err
