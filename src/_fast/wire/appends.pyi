from collections.abc import Callable
from typing import TypeVar

from typing_extensions import Buffer

from _fast.metrics.recorders import Counter, Histogram

C = TypeVar("C")

class Append:
    """One whole append, in however many commands the client sent it.

    ``expected_offset`` is None for an unconditional append.
    """

    def __init__(
        self,
        segment: str,
        writer_id: bytes,
        data: bytes,
        event_count: int,
        last_event_number: int,
        request_id: int,
        expected_offset: int | None = None,
    ) -> None: ...
    @property
    def segment(self) -> str: ...
    @property
    def writer_id(self) -> bytes: ...
    @property
    def data(self) -> bytes: ...
    @property
    def event_count(self) -> int: ...
    @property
    def last_event_number(self) -> int: ...
    @property
    def request_id(self) -> int: ...
    @property
    def expected_offset(self) -> int | None: ...

class Acknowledgement:
    """The reply ``DataAppended``: tells a writer which of its events are durable."""

    def __init__(
        self,
        writer_id: bytes,
        previous_event_number: int,
        event_number: int,
        request_id: int,
        length: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def writer_id(self) -> bytes: ...
    @property
    def previous_event_number(self) -> int: ...
    @property
    def event_number(self) -> int: ...
    @property
    def request_id(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def is_sent(self) -> bool: ...
    def extend(self, event_number: int, request_id: int, length: int) -> bool:
        """Acknowledge a later append, too; return False if the reply has been sent."""

    def to_bytes(self) -> bytes:
        """Return the reply's bytes; afterwards it counts as sent."""

class AppendMeter:
    """Measures the appends that became durable: their delay, their bytes and their events."""

    def __init__(
        self, nanoseconds: Histogram, bytes_appended: Counter, events_appended: Counter
    ) -> None: ...
    def record(self, append: Append) -> None:
        """Record that an append is durable now."""

class AppendDecoder:
    """The incoming commands of one server connection. Any error leaves it unusable.

    ``accepted`` tells by byte ``code + 128`` which types are allowed; a payload has at most
    ``payload_max`` bytes; a connection has at most ``writers_max`` writers.
    """

    def __init__(self, accepted: bytes, payload_max: int, writers_max: int) -> None: ...
    @property
    def open_bytes(self) -> int:
        """Return the number of bytes received of an append block that has not ended."""

    def set_up(self, writer_id: bytes, segment: str) -> None:
        """Accept appends of the writer, whose id has 16 bytes, from now on. Raises
        ``FrameError``."""

    def forget(self, writer_id: bytes) -> None:
        """Forget the writer; its next append is an error unless it is set up again."""

    def decode(
        self, data: Buffer, decode_other: Callable[[int, int, int], C]
    ) -> tuple[list[C | Append], int]:
        """Return the appends and other commands in ``data``, and the position after the last of
        them.

        ``decode_other(code, start, end)`` returns the command in a payload; it is also called for
        SetupAppend and is expected to call ``set_up`` for it. Raises ``FrameError``.
        """
