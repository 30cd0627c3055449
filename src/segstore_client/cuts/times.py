"""Finds the stream cut for a time, by the times that writers sent.

Owns: the syntax of a time, and the choice among a stream's watermarks. The functions are pure.

A watermark is a stream cut with the earliest and the latest of the times that the stream's writers
had sent at that position. Watermarks are some seconds apart, so a cut is that inaccurate. A start
is chosen early enough, and an end late enough, that no event of the range is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pravega_wire.watermarks import Watermark
from segstore_client.errors import UsageError


def parse_time(option: str, text: str) -> int:
    """Return the milliseconds since 1970 of a number of them, or of a time in ISO 8601.

    A time without a zone is UTC. Raises ``UsageError``, which names the option, for other texts.
    """
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} is a time such as 2026-03-01T12:00:00Z or milliseconds since 1970,"
            f" not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def find_start(marks: Sequence[Watermark], time_ms: int) -> dict[int, int] | None:
    """Return the last cut whose latest writer time is ``time_ms`` or earlier; None for the head."""
    early = [mark for mark in marks if mark.upper <= time_ms]
    return cut_of(early[-1]) if early else None


def find_end(marks: Sequence[Watermark], time_ms: int) -> dict[int, int] | None:
    """Return the first cut whose earliest writer time is ``time_ms`` or later; None: the tail."""
    for mark in marks:
        if mark.lower >= time_ms:
            return cut_of(mark)
    return None


def cut_of(mark: Watermark) -> dict[int, int]:
    """Return the stream cut of a watermark."""
    return {segment.segment_id: offset for segment, offset in mark.cut.items()}
