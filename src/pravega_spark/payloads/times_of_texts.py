"""Reads texts that are times, dates and zones as Spark reads them.

Owns: the texts that are times, their microseconds, and the zone of times that name none.

Plain texts (``2026-03-01T12:00:00.123Z``) become an Arrow array at once; the other forms that Spark
knows are read one by one. A text that neither way reads is no time for Spark either.

Invariants:
1. Both ways give the same times. Held by ``test_both_ways_read_the_same_times``.
"""

from __future__ import annotations

import os
import re
from calendar import monthrange
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from segstore_client.errors import PravegaError

SESSION_ZONE = "spark.sql.session.timeZone"
_DAY_SECONDS = 86_400
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The calendar repeats after this many years, which are this many days."""
_EPOCH = datetime(1970, 1, 1)
_FIRST_SECOND = int((datetime(1, 1, 2) - _EPOCH).total_seconds())
_LAST_SECOND = int((datetime(9999, 12, 30) - _EPOCH).total_seconds())
_CONTROLS = "".join(map(chr, range(33))) + "\x7f"
"""Characters that Spark removes around a time."""

_ZONED = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
_PLAIN_TIME = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
    rf"({_ZONED.removesuffix('$')})?$"
)
_PLAIN_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_LENGTH_MAX = len("2026-03-01T12:00:00.123456")
"""Length up to which no plain time has a fraction of more than six digits."""
_LONG_FRACTION = r"(\.[0-9]{6})[0-9]+"

_DAY = r"(?P<year>[+-]?[0-9]{4,%d})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})%s)?)?"
_HOUR = r"(?P<hour>[0-9]{1,2})"
_MINUTE = (
    r":(?P<minute>[0-9]{1,2})"
    r"(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]*)(?![.0-9]))?(?P<zone>[^.0-9].*)?)?"
)
_TIME = re.compile(_DAY % (6, f"(?:[ T]{_HOUR}(?:{_MINUTE})?)?"), re.DOTALL)
_CLOCK = re.compile(f"(?:T{_HOUR}(?:{_MINUTE})?)", re.DOTALL)
_CLOCK_WITHOUT_T = re.compile(_HOUR + _MINUTE, re.DOTALL)
_DATE = re.compile(_DAY % (7, "(?:[ T].*)?"), re.DOTALL)
_OFFSET = re.compile(
    r"(?P<sign>[+-])(?:(?P<hour>[0-9])|(?P<hours>[0-9]{2})"
    r"(?:(?P<colon>:?)(?P<minutes>[0-9]{2})(?:(?P=colon)(?P<seconds>[0-9]{2}))?)?)"
)
_SHORT_IDS = {
    "EST": "-05:00",
    "HST": "-10:00",
    "MST": "-07:00",
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's short names of zones, which Spark accepts."""


def machine_zone() -> str:
    """Return the name of this machine's zone, which Spark uses if a session sets none."""
    named = os.environ.get("TZ", "").lstrip(":") or str(Path("/etc/localtime").resolve())
    name = named.rpartition("zoneinfo/")[2]
    return name if _find_zone(name) is not None else "UTC"


def task_zone(default: str) -> tzinfo:
    """Return the session's zone, in a task of it; ``default`` names it if the session does not."""
    from pyspark import TaskContext

    task = TaskContext.get()
    name = (task.getLocalProperty(SESSION_ZONE) if task else None) or default
    found = _find_zone(name)
    if found is None:
        raise PravegaError(
            f"Python does not know the zone {name} of {SESSION_ZONE} here: install its package"
            " tzdata, or set another name of the zone"
        )
    return found


def read_timestamp(text: str, zone: tzinfo) -> int | None:
    """Return the microseconds since 1970 of a time, or of a time of today.

    Returns None if the text is neither. A time that names no zone is of ``zone``.
    """
    # Spark falls back on its reader of version 1, which takes "GMT" out.
    found = _read_instant(text, zone)
    return _read_instant(text.replace("GMT", ""), zone) if found is None else found


def read_timestamp_ntz(text: str) -> int | None:
    """Return the microseconds since 1970 of a time without a zone; None if the text is no such
    time."""
    match = _TIME.fullmatch(text.strip(_CONTROLS))
    return None if match is None or match["zone"] else _local_micros(match, _day_of(match))


def read_date(text: str) -> int | None:
    """Return the days since 1970 of a date, or of a time; None if it is neither.

    Spark also takes the number of days itself.
    """
    match = _DATE.fullmatch(text.strip(_CONTROLS))
    if match is not None and (day := _day_of(match)) is not None:
        return day
    if re.fullmatch("[+-]?[0-9]{1,11}", text) and -(2**31) <= int(text) < 2**31:
        return int(text)
    return None


def read_clock(text: str) -> int | None:
    """Return the nanoseconds since midnight of a time of day; None if the text is no such time."""
    match = _match_clock(text)
    micros = None if match is None or match["zone"] else _local_micros(match, 0)
    if match is None or micros is None:
        return None
    # Spark keeps nine digits of these, even if the type of the column has fewer.
    return micros * 1_000 + int((match["fraction"] or "")[6:9].ljust(3, "0"))


def times_of(texts: pa.Array, kind: pa.DataType, zone: tzinfo) -> pa.Array | None:
    """Return the times or dates of plain texts; None if there is another text among them."""
    is_date = pa.types.is_date(kind)
    plain = pc.match_substring_regex(texts, _PLAIN_DATE if is_date else _PLAIN_TIME)
    if not pc.all(plain, min_count=0).as_py():
        return None
    try:
        if is_date:
            return texts.cast(kind)
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > _LENGTH_MAX:
            texts = pc.replace_substring_regex(texts, _LONG_FRACTION, r"\1")
        zoned = pc.match_substring_regex(texts, _ZONED)
        if not pc.any(zoned, min_count=0).as_py():
            local = texts.cast(pa.timestamp("us"))
            return local if kind.tz is None else _to_instants(local, zone).cast(kind)
        if kind.tz is None:
            return None
        if pc.all(zoned, min_count=0).as_py():
            return texts.cast(kind)
        nothing = pa.scalar(None, pa.string())
        local = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us"))
        instants = pc.if_else(zoned, texts, nothing).cast(kind)
        return pc.coalesce(instants, _to_instants(local, zone).cast(kind))
    except pa.ArrowInvalid:
        return None


def _to_instants(local: pa.Array, zone: tzinfo) -> pa.Array:
    if zone is UTC:
        return local
    # Events that come together have few different seconds.
    seconds = pc.floor_temporal(local, unit="second")
    different = seconds.unique()
    offsets = pa.array(
        [
            None if each is None else _offset(zone, each // 1_000_000)
            for each in different.cast(pa.int64()).to_pylist()
        ],
        pa.duration("s"),
    )
    shifts = offsets.take(pc.index_in(seconds, value_set=different))
    return pc.subtract(local, shifts.cast(pa.duration("us")))


def _read_instant(text: str, zone: tzinfo) -> int | None:
    match = _TIME.fullmatch(text.strip(_CONTROLS))
    day = None if match is None else _day_of(match)
    if match is None and (match := _match_clock(text)) is None:
        return None
    if match["zone"]:
        found = _find_zone(match["zone"].strip("".join(map(chr, range(33)))))
        if found is None:
            return None
        zone = found
    if "year" not in match.re.groupindex:
        day = (datetime.now(zone).replace(tzinfo=None) - _EPOCH).days
    local = _local_micros(match, day)
    if local is None:
        return None
    micros = local - _offset(zone, local // 1_000_000) * 1_000_000
    return micros if -(2**63) <= micros < 2**63 else None


def _match_clock(text: str) -> re.Match[str] | None:
    trimmed = text.strip(_CONTROLS)
    if trimmed.startswith("T"):
        # As in Spark: the T has to be the very first character.
        return _CLOCK.fullmatch(trimmed) if text.startswith("T") else None
    return _CLOCK_WITHOUT_T.fullmatch(trimmed)


def _day_of(match: re.Match[str]) -> int | None:
    """Return the days since 1970 of a match's date, which may be of any year."""
    year, month, day = int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)
    cycles, year = divmod(year - 1, _CYCLE_YEARS)
    if not 1 <= month <= 12 or not 1 <= day <= monthrange(year + 1, month)[1]:
        return None
    return (datetime(year + 1, month, day) - _EPOCH).days + cycles * _CYCLE_DAYS


def _local_micros(match: re.Match[str], day: int | None) -> int | None:
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if day is None or hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int((match["fraction"] or "")[:6].ljust(6, "0"))
    micros = (day * _DAY_SECONDS + hour * 3600 + minute * 60 + second) * 1_000_000 + fraction
    return micros if -(2**63) <= micros < 2**63 else None


def _offset(zone: tzinfo, second: int) -> int:
    """Return the offset of a zone, in seconds, at a local second since 1970.

    A second that a change of the clock leaves out has the offset from before that change, and one
    that comes twice has the first of its offsets, as in Java.
    """
    if second > _LAST_SECOND:
        cycle = _CYCLE_DAYS * _DAY_SECONDS
        second -= -(-(second - _LAST_SECOND) // cycle) * cycle
    moment = _EPOCH + timedelta(seconds=max(second, _FIRST_SECOND))
    offset = zone.utcoffset(moment)
    assert offset is not None
    return int(offset.total_seconds())


def _find_zone(name: str) -> tzinfo | None:
    """Return the zone of a name that Java knows."""
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-][0-9]{2}):([0-9])$", r"\1:0\2", name, count=1)
    name = _SHORT_IDS.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT", "Etc/UTC"):
        return UTC
    for prefix in ("UTC", "GMT", "UT", ""):
        if name.startswith((f"{prefix}+", f"{prefix}-")):
            return _read_offset(name.removeprefix(prefix))
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return None


def _read_offset(text: str) -> tzinfo | None:
    match = _OFFSET.fullmatch(text)
    if match is None:
        return None
    parts: Sequence[int] = [
        int(match["hour"] or match["hours"]),
        int(match["minutes"] or 0),
        int(match["seconds"] or 0),
    ]
    offset = timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2])
    if parts[1] > 59 or parts[2] > 59 or offset > timedelta(hours=18):
        return None
    return timezone(offset if match["sign"] == "+" else -offset)
