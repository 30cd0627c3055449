import json
from pathlib import Path

import pytest
from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    markdown_table,
    plain_table,
    write_json,
    write_json_if_asked,
)

LATENCY = Metric("publish p50", "ms", "lower")
RATE = Metric("published", "events/s", "higher")


def compared(
    metric: Metric, ours: list[Outcome], peer: list[Outcome], reach: float | None = None
) -> ComparedRow:
    reaches = {} if reach is None else {metric.name: reach}
    (row,) = compare("L1", ours=ours, peer=peer, reaches=reaches)
    return row


def numbers(metric: Metric, *values: float) -> list[Outcome]:
    return [Outcome({metric: value}) for value in values]


def test_a_ratio_is_of_medians() -> None:
    row = compared(LATENCY, numbers(LATENCY, 1, 9, 2), numbers(LATENCY, 4, 3, 100))
    assert (row.ours, row.peer, row.ratio) == (2, 4, 0.5)
    assert row.ours_rounds == (1, 9, 2)


@pytest.mark.parametrize(
    ("metric", "reach", "holds"),
    [
        (LATENCY, 0.5, True),
        (LATENCY, 0.49, False),
        (RATE, 0.5, True),
        (RATE, 0.51, False),
        (RATE, None, None),
    ],
)
def test_a_reach_bounds_the_ratio_in_its_direction(
    metric: Metric, reach: float | None, holds: bool | None
) -> None:
    row = compared(metric, numbers(metric, 5), numbers(metric, 10), reach)
    assert row.holds is holds


def test_a_failed_round_has_no_numbers() -> None:
    ours = [Outcome({RATE: 7.0}, failure="lost an event"), Outcome({RATE: 3.0})]
    row = compared(RATE, ours, numbers(RATE, 6), 1.0)
    assert row.ours == 3
    assert row.holds is False


def test_ours_failing_does_not_hold_and_the_peer_failing_says_nothing() -> None:
    failed = [Outcome({RATE: 5.0}, failure="acks stopped")]
    assert compared(RATE, failed, numbers(RATE, 6), 1.0).holds is False
    row = compared(RATE, numbers(RATE, 6), failed, 1.0)
    assert (row.peer, row.ratio, row.holds) == (None, None, None)


def test_a_server_left_out_is_not_held_to_anything() -> None:
    assert compared(RATE, [], numbers(RATE, 6), 1.0).holds is None
    assert compared(RATE, numbers(RATE, 6), [], 1.0).reach is None


def test_nothing_is_divided_by_zero() -> None:
    assert compared(LATENCY, numbers(LATENCY, 6), numbers(LATENCY, 0)).ratio is None


def test_metrics_that_only_one_server_has_are_kept() -> None:
    rows = compare("T1", ours=numbers(RATE, 1), peer=numbers(LATENCY, 2), reaches={})
    assert [(row.metric, row.ours, row.peer) for row in rows] == [
        (RATE, 1, None),
        (LATENCY, None, 2),
    ]


def test_json_rows_have_six_members(tmp_path: Path) -> None:
    rows = [
        compared(LATENCY, numbers(LATENCY, 1), numbers(LATENCY, 4), 0.5),
        compared(RATE, numbers(RATE, 1), []),
    ]
    write_json(rows, tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == [
        {
            "name": "L1 publish p50 (ms, lower is better)",
            "ours": 1,
            "peer": 4,
            "ratio": 0.25,
            "reach": 0.5,
            "holds": True,
        },
        {
            "name": "L1 published (events/s, higher is better)",
            "ours": 1,
            "peer": None,
            "ratio": None,
            "reach": None,
            "holds": None,
        },
    ]


def test_json_goes_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JSON", raising=False)
    write_json_if_asked([])
    monkeypatch.setenv("JSON", str(tmp_path / "out.json"))
    write_json_if_asked([])
    assert json.loads((tmp_path / "out.json").read_text()) == []


def test_tables_show_ratio_reach_and_spread() -> None:
    row = compared(RATE, numbers(RATE, 110, 90), numbers(RATE, 50), 1.0)
    cells = ["L1", "published (events/s)", "100", "50", "2", ">= 1", "yes", "90..110 / 50"]
    assert f"| {' | '.join(cells)} |" in markdown_table([row])
    assert plain_table([row]).splitlines()[1].split() == " ".join(cells).split()
