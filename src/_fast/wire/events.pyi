from typing import overload

from typing_extensions import Buffer

class EventError(ValueError):
    """There is no event at ``position``."""

    position: int

    def __init__(self, position: int) -> None: ...

@overload
def scan_events(
    data: Buffer, offsets: None = None, *, position: int = 0
) -> tuple[memoryview, int]: ...
@overload
def scan_events(data: Buffer, offsets: Buffer, *, position: int = 0) -> tuple[int, int]:
    """Return the places of the complete events in ``data``, from ``position`` on.

    Each event gives two int64: the position of its bytes, after its header, and their number.
    Without ``offsets``, a memory view of these is the first result; otherwise they are written to
    ``offsets``, a writable buffer of int64, as long as it has room, and the first result is the
    number of events. The second result is the position after the last event, where an incomplete
    one begins, or one for which there is no room.

    Raises ``EventError`` with the ``position`` at which there is no event; scan ``data`` up to
    there to get the events before it.
    """

def compact_events(
    data: Buffer, *, position: int = 0, wide: bool = False
) -> tuple[memoryview, memoryview, int]:
    """Return the complete events of ``data`` without headers, as a column of Arrow's binary type.

    Returns the values, one after the other; their offsets, one more than there are events, int32
    or, when ``wide``, int64; and the position after the last event. Returns only as many values as
    fit into 2 GiB - 1 bytes, the limit of int32 offsets.

    Raises ``EventError`` like ``scan_events``.
    """
