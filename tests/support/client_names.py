"""The segments that a controller makes of the names that it accepts."""

from __future__ import annotations

from collections.abc import Iterator

from pravega_wire import names

LAST_ID = names.segment_id(2**31 - 1, 2**31 - 1)
EXTREME_NAMES = ("...", "..a", "a..", "-", "_.", "_..", "x" * 255, "." * 255, "_" + ".-" * 127)
"""Names that ``validate_name`` accepts, the oddest and the longest ones."""
EXTREME_USER_NAMES = ("...", "..a", "-", "x" * 250, "." * 250, ".-" * 125)
"""Names that ``validate_user_name`` accepts, the oddest and the longest ones."""


def segments_of_stream(scope: str, stream: str) -> Iterator[str]:
    """Yield segments that a stream may have, its mark stream's, and those of transactions."""
    for each in (stream, names.mark_stream(stream)):
        for identifier in (0, LAST_ID):
            segment = names.segment_name(scope, each, identifier)
            yield segment
            yield names.transaction_segment_name(segment, b"\xff" * 16)
            yield names.transient_segment_name(segment, b"\xff" * 16, b"\xff" * 16)


def segments_of_group(scope: str, group: str) -> Iterator[str]:
    """Yield segments that a reader group may have."""
    yield from segments_of_stream(scope, names.reader_group_stream(group))


def segments_of_table(scope: str, table: str) -> Iterator[str]:
    """Yield segments that a key-value table may have."""
    for identifier in (0, LAST_ID):
        yield names.segment_name(scope, names.key_value_table_stream(table), identifier)
