"""Reads a stream's watermarks, by which a time is a stream cut.

Owns: the way to a stream's mark stream, and the sentence about a stream that has none.
"""

from __future__ import annotations

from contextlib import suppress

from pravega_wire.names import mark_stream, scoped_name
from pravega_wire.watermarks import Watermark, decode_watermark
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.cuts.segment_log import SegmentLog
from segstore_client.cuts.times import find_end, find_start
from segstore_client.errors import NotFoundError, UsageError


def read_watermarks(controller: ControllerClient, scope: str, stream: str) -> list[Watermark]:
    """Return the watermarks that a stream has now, oldest first."""
    with (
        suppress(NotFoundError),
        SegmentLog(controller, scope, mark_stream(stream), purpose=Purpose.READ) as log,
    ):
        return list(map(decode_watermark, log.read(whole=True)))
    return []


def cut_of_time(
    controller: ControllerClient, scope: str, stream: str, time_ms: int, *, is_end: bool = False
) -> dict[int, int] | None:
    """Return a cut before all events of a time or later; None for the head.

    With ``is_end``, return one after all events of that time or earlier; None for the tail. Raises
    ``UsageError`` if the stream has no watermarks.
    """
    marks = read_watermarks(controller, scope, stream)
    if not marks:
        raise UsageError(
            f"{scoped_name(scope, stream)} has no watermarks, so nothing tells where a time is: its"
            " writers record no times"
        )
    return find_end(marks, time_ms) if is_end else find_start(marks, time_ms)
