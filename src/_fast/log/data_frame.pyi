from typing import TypeVar

from typing_extensions import Buffer

A = TypeVar("A")

FRAME_HEADER_BYTES: int

PART_BYTES_MIN: int
"""Minimum length, in bytes, of a part at the end of a frame: a shorter one does not justify a
header."""

class FrameDamagedError(ValueError):
    """Bytes that no encoder of data frames has written."""

class DataFrame:
    """One frame being filled, of at most ``limit`` bytes, allocated once."""

    def __init__(self, limit: int) -> None: ...
    @property
    def limit(self) -> int:
        """Return the maximum length of the frame in bytes."""

    @property
    def length(self) -> int:
        """Return the number of bytes of the frame, its header included."""

    @property
    def record_count(self) -> int:
        """Return how many records end in the frame."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was put into the frame yet."""

    @property
    def is_free(self) -> bool:
        """Return whether the frame's bytes have no view."""

    @property
    def room(self) -> int:
        """Return how many bytes of a record fit; negative when not even a part's header does."""

    def put_whole(self, head: Buffer, body: Buffer) -> None:
        """Add a whole record, ``head`` and then ``body``; ``ValueError`` when it does not fit."""

    def put_part(self, head: Buffer, body: Buffer, start: int) -> int:
        """Add as much of a record, from its byte ``start`` on, as fits.

        Returns the byte at which the next frame continues: ``start`` when too little would fit
        here, the record's length when the rest did fit.
        """

    def seal(self) -> memoryview:
        """Fill in the header and return the frame's bytes; the frame takes no more records."""

    def clear(self) -> None:
        """Empty the frame; raise ``BufferError`` while a view of its bytes exists."""

class FrameReader:
    """Joins records from frames that are fed in log order."""

    def feed(self, frame: Buffer, address: A) -> list[tuple[A, bytes | memoryview]]:
        """Return the records that end in ``frame``, each with the address of the frame it began in.

        A long record within one frame is a view of ``frame``, which must not change meanwhile.
        Raises ``FrameDamagedError``.
        """
