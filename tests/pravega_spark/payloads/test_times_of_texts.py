"""Texts are the times, dates and zones that Spark takes them for."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.payloads.times_of_texts import (
    machine_zone,
    read_clock,
    read_date,
    read_timestamp,
    read_timestamp_ntz,
    task_zone,
    times_of,
)
from segstore_client.errors import PravegaError

BERLIN = ZoneInfo("Europe/Berlin")
ST_JOHNS = ZoneInfo("America/St_Johns")
INSTANT, LOCAL, DAY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(text: str, zone: ZoneInfo = BERLIN) -> str | None:
    micros = read_timestamp(text, zone)
    return None if micros is None else str(EPOCH + timedelta(microseconds=micros))[:-6]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-03-01T12:00:00", "2026-03-01 11:00:00"),
        ("2026-07-01 12:00:00", "2026-07-01 10:00:00"),
        ("2026-03-01T12:00:00Z", "2026-03-01 12:00:00"),
        ("2026-03-01T12:00:00.5-05:30", "2026-03-01 17:30:00.500000"),
        ("2026-03-01T12:00:00+0100", "2026-03-01 11:00:00"),
        ("2026-03-01T12:00:00+1:5", "2026-03-01 10:55:00"),
        ("2026-03-01 12:00:00 America/New_York", "2026-03-01 17:00:00"),
        ("2026-03-01 12:00:00 PST", "2026-03-01 20:00:00"),
        ("2026-03-01 12:00:00GMT+02:00", "2026-03-01 10:00:00"),
        ("2026-03-01 12:00:00 UTC+3", "2026-03-01 09:00:00"),
        (" 2026-3-1 1:2:3 ", "2026-03-01 00:02:03"),
        ("2026-03-01 12", "2026-03-01 11:00:00"),
        ("2026-03", "2026-02-28 23:00:00"),
        # The clocks go forward at 2, and back at 3.
        ("2026-03-29T02:30:00", "2026-03-29 01:30:00"),
        ("2026-10-25T02:30:00", "2026-10-25 00:30:00"),
        # Before 1893 a town had the time of its meridian.
        ("1850-01-01T00:00:00", "1849-12-31 23:06:32"),
        ("", None),
        ("12", None),
        ("2026-13-01", None),
        ("2026-02-29", None),
        ("2026-03-01T24:00:00", None),
        ("2026-03-01T12:60:00", None),
        ("2026-03-01T12:00:60", None),
        ("2026-03-01T12:00Z", None),
        ("2026-03-01T12:00:00+18:01", None),
        ("2026-03-01T12:00:00+01:60", None),
        ("2026-03-01T12:00:00 Nowhere", None),
        ("2026-03-01T12:00:00 Europe", None),
        ("2026-03-01T12:00:00 ../zone", None),
        ("999999-01-01", None),
    ],
)
def test_a_text_is_the_time_that_spark_takes_it_for(text: str, found: str | None) -> None:
    assert instant(text) == found


@pytest.mark.parametrize("digits", [7, 9, 12])
def test_longer_fractions_are_cut_to_microseconds(digits: int) -> None:
    text = "2026-03-01T12:00:00." + "123456789999"[:digits]
    assert instant(f"{text}Z") == "2026-03-01 12:00:00.123456"
    for kind, zone in (INSTANT, "Z"), (INSTANT, ""), (LOCAL, ""):
        found = times_of(pa.array([text + zone]), kind, BERLIN)
        assert found is not None
        assert found.to_pylist()[0].microsecond == 123456


def test_years_beyond_pythons_are_times() -> None:
    second = 1_000_000
    assert read_timestamp("12345-01-01T00:00:00Z", UTC) == 327403382400 * second
    assert read_timestamp("-0001-01-01T00:00:00Z", UTC) == -62198755200 * second
    # Rules of zones go on for ever.
    summer = read_timestamp("12345-07-01T00:00:00", BERLIN)
    assert summer == read_timestamp("12345-07-01T00:00:00+02:00", UTC)


def test_a_time_with_a_zone_is_no_time_without_one() -> None:
    assert read_timestamp_ntz("2026-03-01T12:00:00Z") is None
    assert times_of(pa.array(["2026-03-01T12:00:00Z"]), LOCAL, UTC) is None


def test_dates() -> None:
    assert read_date("2026-03-01") == (date(2026, 3, 1) - date(1970, 1, 1)).days
    assert read_date("2026-03-01T23:59:59Z") == read_date("2026-3-1")
    assert read_date("2026-03-01Z") is None
    assert read_date("123") == 123
    assert read_date("2026") == read_date("2026-01-01")
    assert read_date("x") is None


def test_times_of_day() -> None:
    assert read_clock("12:00:00.1234567891") == (12 * 3600 * 10**9) + 123456789
    assert read_clock("T1:2") == 3720 * 10**9
    assert read_clock(" T1:2") is None
    assert read_clock("12:00:00Z") is None
    assert read_clock("2026-03-01T12:00:00") is None


def test_a_time_of_day_alone_is_of_today() -> None:
    micros = read_timestamp("T12:00:00", UTC)
    assert micros is not None
    found = EPOCH + timedelta(microseconds=micros)
    assert abs(found - datetime.now(UTC)) < timedelta(days=2)
    assert (found.hour, found.minute) == (12, 0)


FRACTIONS = st.sampled_from(["", ".", ".5", ".123456", ".1234567", ".123456789"])
ZONES = st.sampled_from(["", "Z", "+01:00", "-17:59", "+18:00", "+01:60", " PST"])
TEXTS = st.builds(
    lambda moment, between, fraction, zone: (
        f"{moment:%Y-%m-%d}{between}{moment:%H:%M:%S}{fraction}{zone}"
    ),
    st.datetimes(datetime(1000, 1, 1), datetime(9998, 1, 1))
    | st.datetimes(datetime(2026, 3, 29, 1), datetime(2026, 3, 29, 4))
    | st.datetimes(datetime(2026, 10, 25, 1), datetime(2026, 10, 25, 4)),
    st.sampled_from("T "),
    FRACTIONS,
    ZONES,
)


@given(
    st.lists(st.none() | TEXTS | st.sampled_from(["2026-02-30T00:00:00", "x", ""]), max_size=5),
    st.sampled_from([UTC, BERLIN, ST_JOHNS]),
)
def test_both_ways_read_the_same_times(texts: list[str | None], zone: ZoneInfo) -> None:
    column = pa.array(texts, pa.string())
    found = times_of(column, INSTANT, zone)
    if found is not None:
        wanted = [None if text is None else read_timestamp(text, zone) for text in texts]
        assert found.cast(pa.int64()).to_pylist() == wanted
    found = times_of(column, LOCAL, zone)
    if found is not None:
        wanted = [None if text is None else read_timestamp_ntz(text) for text in texts]
        assert found.cast(pa.int64()).to_pylist() == wanted
    days = pa.array([text and text[:10] for text in texts], pa.string())
    found = times_of(days, DAY, zone)
    if found is not None:
        wanted = [None if text is None else read_date(text) for text in days.to_pylist()]
        assert found.cast(pa.int32()).to_pylist() == wanted


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2026-03-01T12:00:00", LOCAL),
        ("2026-03-01T12:00:00", INSTANT),
        ("2026-03-01T12:00:00.1234567+01:00", INSTANT),
        ("2026-03-01", DAY),
    ],
)
def test_plain_texts_are_read_at_once(text: str, kind: pa.DataType) -> None:
    assert times_of(pa.array([text, None, text]), kind, BERLIN) is not None


def test_the_machines_zone_is_that_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/St_Johns")
    assert machine_zone() == "America/St_Johns"
    monkeypatch.setenv("TZ", "Nowhere")
    assert machine_zone() == "UTC"


def test_a_task_without_a_session_has_the_drivers_zone() -> None:
    assert task_zone("Europe/Berlin") == BERLIN
    with pytest.raises(PravegaError, match="does not know the zone Nowhere"):
        task_zone("Nowhere")
