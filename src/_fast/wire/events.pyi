from collections.abc import Callable, Iterable
from typing import Any, Generic, final, overload

from typing_extensions import Buffer, TypeVar

T_co = TypeVar("T_co", default=bytes, covariant=True)

class EventError(ValueError):
    """There is no event at ``position``."""

    position: int

    def __init__(self, position: int) -> None: ...

def frame_events(events: Iterable[Buffer]) -> bytes:
    """Return many events, each with its header, one after the other."""

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

class ReadEvent(Generic[T_co]):
    """An event, and the offset of its header in its segment, which has this id and this name.

    Its attributes cannot be set. Events are equal when their bytes and places are. A copy by pickle
    has its bytes for a value.
    """

    def __init__(self, data: bytes, segment_id: int, offset: int, segment: str) -> None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def value(self) -> T_co:
        """Return what the reader's serializer makes of the bytes; without one, the bytes."""

    @property
    def segment_id(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def segment(self) -> str: ...
    @property
    def end_offset(self) -> int:
        """Return the offset behind the event, where the next one begins."""

    @property
    def stream(self) -> str:
        """Return the stream of the event, ``SCOPE/STREAM``."""

    def __hash__(self) -> int: ...

@final
class DecodedEvent(ReadEvent[T_co]):
    """An event whose value is made by ``decode``, when it is asked for, and once."""

    def __init__(
        self,
        data: bytes,
        segment_id: int,
        offset: int,
        segment: str,
        decode: Callable[[ReadEvent[Any]], T_co],
    ) -> None: ...

def split_events(
    data: bytes,
    *,
    segment_id: int,
    offset: int,
    segment: str,
    position: int = 0,
    decode: Callable[[ReadEvent[Any]], T_co] | None = None,
) -> tuple[list[ReadEvent[T_co]], int]:
    """Return the complete events of ``data``, which is at ``offset`` in its segment, from
    ``position`` on, and the position after the last one.

    Raises ``EventError`` like ``scan_events``.
    """

def gather_columns(
    events: list[ReadEvent[Any]],
) -> tuple[memoryview, memoryview, memoryview, list[tuple[str, int]]]:
    """Return the bytes of events, one after the other; their int32 offsets, as a column of Arrow's
    binary type has them; the offset of each event in its segment; and the segments, each with the
    number of events that follow each other.

    Raises ``OverflowError`` if the bytes are more than int32 offsets can tell.
    """
