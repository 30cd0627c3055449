from typing import TypeVar

from typing_extensions import Buffer

A = TypeVar("A")

FRAME_HEADER_BYTES: int

PART_BYTES_MIN: int
"""Minimum length, in bytes, of a part at the end of a frame: a shorter one does not justify a
header."""

class FrameDamagedError(ValueError):
    """Bytes that no writer of data frames has written."""

class DataFrame:
    """One frame being filled, of at most ``limit`` bytes, allocated once."""

    def __init__(self, limit: int) -> None: ...
    @property
    def limit(self) -> int:
        """Return the most bytes that the frame can have."""

    @property
    def length(self) -> int:
        """Return how many bytes the frame has, its header included."""

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
        """Return how many bytes of a record still fit; negative when not even a part's header
        does."""

    def put_whole(self, head: Buffer, body: Buffer) -> None:
        """Add a whole record, ``head`` and then ``body``; ``ValueError`` when it does not fit."""

    def put_part(self, head: Buffer, body: Buffer, start: int) -> int:
        """Add as much of a record, from byte ``start`` of it on, as fits.

        Returns the byte to go on from in the next frame: ``start`` when it is not worth it here,
        the record's length when the frame took all that was left.
        """

    def seal(self) -> memoryview:
        """Fill in the header and return the frame's bytes; nothing can be put into it any more."""

    def clear(self) -> None:
        """Make the frame empty again; ``BufferError`` while a view of its bytes exists."""

class FrameReader:
    """Puts records together again from frames fed in log order."""

    def feed(self, frame: Buffer, address: A) -> list[tuple[A, bytes | memoryview]]:
        """Return the records that end in ``frame``, each with the address of the frame it began in.

        A long record that lies in one frame is a view of ``frame``, which may not change then.
        Raises ``FrameDamagedError``.
        """
