import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pravega_admin.inspection.self_tester import LATENCY, THROUGHPUT, run_self_test
from segstore.process.config import MIB

SMALL = {"append_count": 950, "producer_count": 5, "batch_count": 20}
COLUMNS = [
    "workload",
    "bytes",
    "mb_per_second",
    "appends_per_second",
    "average_ms",
    "p50_ms",
    "p90_ms",
    "p95_ms",
    "p99_ms",
    "p99.9_ms",
    "cpu_us_per_append",
    "seconds",
]


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "journal"])
def test_every_append_is_counted_and_timed(tmp_path: Path, *, durable: bool) -> None:
    workload = replace(LATENCY, container_count=2, **SMALL)
    done: list[int] = []
    result = run_self_test(
        workload,
        data_dir=tmp_path / "data",
        durable=durable,
        cache_bytes_max=32 * MIB,
        on_progress=done.append,
    )
    assert sum(done) == len(result.latencies_ms) == 950
    percentiles = [result.percentile_ms(percent) for percent in (0, 50, 99, 100)]
    assert 0 < percentiles[0] <= percentiles[1] <= percentiles[2] <= percentiles[3]
    assert percentiles[0] <= result.average_ms <= percentiles[3]
    assert result.appends_per_second == pytest.approx(950 / result.seconds)
    assert result.mb_per_second == pytest.approx(950 * 100 / 1e6 / result.seconds)
    journal = [path for path in (tmp_path / "data").rglob("*") if path.stat().st_size > MIB]
    assert bool(journal) is durable


def test_more_is_appended_than_the_cache_holds(tmp_path: Path) -> None:
    workload = replace(THROUGHPUT, append_count=4_000, producer_count=4, batch_count=50)
    result = run_self_test(
        workload, data_dir=tmp_path / "data", durable=False, cache_bytes_max=16 * MIB
    )
    assert len(result.latencies_ms) * workload.append_bytes > 2 * 16 * MIB


@pytest.mark.processes
def test_the_command_prints_a_line_a_workload() -> None:
    options = ["--appends", "300", "--producers", "3", "--batch", "10", "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "pravega_admin", "bench", "self", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    latency, throughput = json.loads(done.stdout)
    assert list(latency) == list(throughput) == COLUMNS
    assert (latency["workload"], latency["bytes"]) == ("latency", 100)
    assert (throughput["workload"], throughput["bytes"]) == ("throughput", 10_000)
    assert all(row["mb_per_second"] > 0 for row in (latency, throughput))


@pytest.mark.processes
def test_a_data_directory_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "latency").mkdir()
    (tmp_path / "latency" / "notes.txt").write_text("mine")
    options = ["--workload", "latency", "--appends", "1", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pravega_admin", "bench", "self", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence.startswith("segstore: the self-test failed: ")
    assert (tmp_path / "latency" / "notes.txt").read_text() == "mine"
