from typing import overload

from typing_extensions import Buffer

class EventError(ValueError):
    """Something else than an event stands at ``position``."""

    position: int

    def __init__(self, position: int) -> None: ...

@overload
def scan_events(
    data: Buffer, offsets: None = None, *, position: int = 0
) -> tuple[memoryview, int]: ...
@overload
def scan_events(data: Buffer, offsets: Buffer, *, position: int = 0) -> tuple[int, int]:
    """Return where the complete events' bytes are in ``data``, from ``position`` on.

    That is two int64 of each event: at which position its bytes begin, behind its header, and how
    many they are. They come as a memory view; or they are put into ``offsets``, a writable buffer
    of int64, as far as it has room, and their count of events comes. The second of the two results
    is the position behind the last event: where an incomplete one begins, or one without room.

    Raises ``EventError``, whose ``position`` tells where something else than an event stands; what
    precedes it can be had by scanning ``data`` up to there.
    """

def compact_events(
    data: Buffer, *, position: int = 0, wide: bool = False
) -> tuple[memoryview, memoryview, int]:
    """Return the complete events of ``data`` without their headers, as a column of Arrow's binary
    type.

    Returns the values, one behind the other; their offsets, one more than there are events, int32
    or, when ``wide``, int64; and the position behind the last event. When values do not fit into
    2 GiB - 1 bytes, the limit of int32 offsets, those that do come.

    Raises ``EventError`` like ``scan_events``.
    """
