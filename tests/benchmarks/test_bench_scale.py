"""The benchmark of many segments measures all of its rows."""

from benchmarks.bench_scale import ROW_NAMES, SMALL, measure


def test_the_small_size_gives_every_row() -> None:
    rows = measure(ROW_NAMES, SMALL)
    assert [row.row.partition(":")[0] for row in rows] == ["S3", "S3", "S4", "S5", "S5"]
    assert all(row.ours is not None and row.ours >= 0 for row in rows)
    assert all(row.peer for row in rows)
