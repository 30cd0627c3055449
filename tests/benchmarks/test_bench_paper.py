"""The figures of the paper: their declarations, their page, and a small run of each work."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.comparison import Outcome
from benchmarks.finished_parts import FinishedParts
from benchmarks.paper import backlog, report, scaling
from benchmarks.paper import series as keys
from benchmarks.paper.figures import (
    BY_NUMBER,
    FIGURES,
    HELD,
    MAXIMUM,
    POINTS,
    SMALL_1,
    SMALL_16,
    SPLIT,
    WORKS,
    series_of,
)
from benchmarks.paper.run import (
    Done,
    expected_seconds,
    is_recorded,
    run,
    series_here,
    works_of,
)
from benchmarks.paper.sizes import SMALL, USUAL
from benchmarks.paper.works import BYTES, END_TO_END_P95, EVENTS, P95, Work, spread
from benchmarks.record import RecordedRow, add_run, read_record, write_record
from benchmarks.streams.rows import CEILING, DURABLE, KAFKA, KAFKA_FSYNC, OURS

from benchmarks import bench_paper

pytestmark = pytest.mark.proof

DAY = datetime(2030, 1, 2, tzinfo=UTC)
BESIDE = {
    "small-1": (keys.UNSYNCED_OURS,),
    "small-16": (keys.LARGE_BATCH_KAFKA,),
    "large-1": (keys.LOGGED_OURS,),
    "large-16": (keys.LOGGED_OURS,),
    "keyless-16": (KAFKA,),
    "parallel": (KAFKA,),
    "unthrottled": (CEILING, keys.DRIVE),
    "backlog": (keys.SPARK_OURS,),
    "scaling": (),
}
"""The peers that the small form runs too: those that start in a few seconds."""


def keep_nothing(work: Work, series: Sequence[keys.Series]) -> FinishedParts:
    return FinishedParts(None)


def one_run(work: Work, directory: Path, *, only: Sequence[str]) -> Done:
    (done,) = run([work], SMALL, directory=directory, finished=keep_nothing, only=only)
    return done


@pytest.mark.compat
@pytest.mark.timeout(900)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.key)
def test_the_small_form_of_a_work_has_all_of_its_points(work: Work, tmp_path: Path) -> None:
    only = (OURS, *BESIDE[work.key])
    place = tmp_path / "servers"
    place.mkdir()
    done = one_run(work, place, only=only)
    assert list(place.iterdir()) == []
    failures = {
        (name, key): outcome.failure
        for (name, key), outcomes in done.outcomes.items()
        for outcome in outcomes
        if outcome.failure
    }
    assert failures == {}
    assert {key for _, key in done.outcomes} == set(only)
    record = add_run({}, done.outcomes, commit="abc", moment=DAY)
    write_record(tmp_path / report.RECORD, record)
    assert read_record(tmp_path / report.RECORD, POINTS) == record
    for figure in (each for each in FIGURES if work in each.works):
        pictures = report.pictures_of(figure, record)
        assert pictures
        for text in pictures.values():
            ElementTree.fromstring(text)
    if work.key == SPLIT.key:
        (whole,) = done.outcomes[SPLIT.whole.name, OURS]
        assert whole.numbers[scaling.IN_ORDER] == 1
    elif work.key == HELD.key:
        for key in only:
            (whole,) = done.outcomes[HELD.whole.name, key]
            assert whole.numbers[backlog.HISTORY]
    else:
        measured = {name for name, key in done.outcomes if key == OURS}
        assert measured == {point.name for point in spread(work.points, SMALL)}


def test_targets_are_about_points_and_series_of_their_figure() -> None:
    for figure in FIGURES:
        points = {point.name for point in figure.points}
        for target in figure.targets:
            assert {point.name for point in target.at} <= points
            assert set(target.lowest_of) <= set(figure.series)
            assert {point.name for point in (target.beside or {}).values()} <= points
            ways = (target.lowest_of or None, target.beside, target.limit)
            assert sum(way is not None for way in ways) == 1
            assert target.beside is None or set(target.beside) == set(target.at)


def test_names_of_points_and_works_differ() -> None:
    assert len(POINTS) == sum(len(work.points) for work in WORKS)
    assert set(BESIDE) == {work.key for work in WORKS}


def test_a_figures_series_are_run_with_every_work_that_it_shows() -> None:
    for figure in FIGURES:
        for work in figure.works:
            assert set(figure.series) <= {series.key for series in series_of(work)}


def test_all_first_rounds_fit_into_the_time() -> None:
    seconds = sum(expected_seconds(work, series_of(work), USUAL) for work in WORKS)
    assert seconds <= 60 * USUAL.minutes_max


# ---- The page ------------------------------------------------------------------------------------


def recorded(numbers: dict[str, Outcome], *, words: str) -> dict[str, RecordedRow]:
    point = next(point for point in SMALL_1.points if point.words == words)
    outcomes = {(point.name, key): [outcome] for key, outcome in numbers.items()}
    return add_run({}, outcomes, commit="abc", moment=DAY)


@pytest.fixture
def record() -> dict[str, RecordedRow]:
    return recorded(
        {
            OURS: Outcome({EVENTS: 900.0, P95: 2.0, END_TO_END_P95: 3.0, BYTES: 0.1}),
            DURABLE: Outcome({EVENTS: 500.0, P95: 9.0, END_TO_END_P95: 9.5, BYTES: 0.1}),
            KAFKA: Outcome({EVENTS: 1_000.0, P95: 1.0, END_TO_END_P95: 1.5, BYTES: 0.1}),
            KAFKA_FSYNC: Outcome({}, failure="acks\nstopped"),
        },
        words=MAXIMUM,
    )


def test_a_page_without_a_run_says_so_for_every_figure() -> None:
    text = report.page({})
    for figure in FIGURES:
        assert f"\n## Figure {figure.number}: {figure.question}\n" in text
        assert f'`make bench-paper ARGS="--figure {figure.number}"` measures it' in text
    assert text.count("Not run here yet") == len(FIGURES)


def test_a_target_is_met_or_missed_beside_what_was_measured(record: dict[str, RecordedRow]) -> None:
    text = report.page(record, where="Machine: one.")
    name = f"100 B, 1 segment, {MAXIMUM}"
    assert f"| {name} | published events (events/s) / original (flush) | 900 | 500 | 1.8 |" in text
    assert "| 1.8 | >= 1.5 | met |" in text
    assert "| 0.9 | >= 1 | missed |" in text
    assert f"- {name}, {KAFKA_FSYNC}, round 1: FAILED: acks stopped" in text
    assert "![Figure 5](paper-5a.svg)" in text
    assert "2030-01-02" in text
    assert text.endswith("## Where\n\nMachine: one.\n")


def test_a_series_that_is_not_there_is_left_out_with_a_word(record: dict[str, RecordedRow]) -> None:
    sections = report.page(record).split("\n## ")
    (eighth,) = (text for text in sections if text.startswith("Figure 8:"))
    assert "Left out, as it was not there to be measured: Pulsar (batch)." in eighth
    (table,) = (part for part in eighth.split("\n\n") if part.startswith("| point | metric |"))
    assert "Pulsar" not in table


def test_a_median_stands_with_its_range() -> None:
    point = SMALL_1.points[-1]
    rounds = [Outcome({EVENTS: value, P95: 1.0}) for value in (10.0, 30.0, 20.0)]
    table = report.number_table(BY_NUMBER[5], {(point.name, OURS): rounds})
    assert f"| {point.name} | published events (events/s) | 20 (10..30) |" in table


def test_pictures_are_made_of_what_was_measured(record: dict[str, RecordedRow]) -> None:
    assert list(report.pictures_of(BY_NUMBER[5], record)) == ["paper-5a.svg"]
    (picture,) = report.pictures_of(BY_NUMBER[8], record).values()
    assert ">segstore<" in picture
    assert ">Kafka (no flush)<" in picture
    assert not report.pictures_of(BY_NUMBER[13], record)


# ---- Running -------------------------------------------------------------------------------------


def test_a_recorded_work_is_not_run_again_until_a_series_is_new(
    record: dict[str, RecordedRow],
) -> None:
    assert not is_recorded(SMALL_1, {})
    assert not is_recorded(SMALL_1, record)
    here = {series.key: Outcome({EVENTS: 1.0}) for series in series_here(SMALL_1)}
    assert is_recorded(SMALL_1, recorded(here, words=MAXIMUM))


def test_figures_with_the_same_loads_share_them() -> None:
    assert [work.key for work in works_of(FIGURES)] == [work.key for work in WORKS]
    assert [work.key for work in works_of([BY_NUMBER[5], BY_NUMBER[8]])] == ["small-1", "small-16"]


class Measured(FinishedParts):
    """The rounds of a work, all of which an interrupted run has measured."""

    def outcomes(self, part: str, measure: object) -> list[tuple[str, str, Outcome]]:
        return [("a point", OURS, Outcome({EVENTS: float(part.split()[1])}))]


def test_further_rounds_are_run_only_if_all_first_ones_have_their_time(tmp_path: Path) -> None:
    works = [SMALL_1, SMALL_16]
    each = SMALL_1.expected_seconds(USUAL) / 60
    for minutes, rounds in ((1.5 * each, [1, 3]), (2.5 * each, [3, 3]), (0.5 * each, [1, 1])):
        done = run(
            works,
            replace(USUAL, minutes_max=minutes),
            directory=tmp_path,
            finished=lambda *_: Measured(None),
            only=(OURS,),
        )
        assert [len(found.outcomes["a point", OURS]) for found in done] == rounds


def test_a_work_that_lacks_room_fails_with_a_reason(tmp_path: Path) -> None:
    size = replace(SMALL, backlog_mb=1e12, needs_disk=True)
    (done,) = run([HELD], size, directory=tmp_path, finished=keep_nothing, only=(OURS,))
    (outcome,) = done.outcomes[HELD.whole.name, OURS]
    assert outcome.failure is not None
    assert "GB of the disk" in outcome.failure


def test_an_unknown_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_paper.main(["--figure", "5,4"])
    assert "unknown figures ['4']" in capsys.readouterr().err


def test_the_small_size_does_not_go_into_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_paper.main(["--small"])
    assert "--small needs --page" in capsys.readouterr().err


def test_options_change_the_size() -> None:
    unset = dict.fromkeys(("rounds", "minutes", "seconds", "backlog_gb"))
    options = Namespace(small=True, **unset | {"rounds": 2, "backlog_gb": 5.0})
    assert bench_paper.size_of(options) == replace(SMALL, rounds=2, backlog_mb=5_000)
