from typing import TypeVar

from typing_extensions import Buffer

A = TypeVar("A")

FRAME_HEADER_BYTES: int

PART_BYTES_MIN: int
"""A part shorter than this at the end of a frame is not worth a header of its own."""

class FrameDamagedError(ValueError):
    """Bytes that no writer of data frames has written."""

class DataFrame:
    """One frame being filled, of at most ``limit`` bytes, allocated once."""

    def __init__(self, limit: int) -> None: ...
    @property
    def limit(self) -> int:
        """The most bytes that the frame can have."""

    @property
    def length(self) -> int:
        """How many bytes the frame has, its header included."""

    @property
    def record_count(self) -> int:
        """How many records end in the frame."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was put into the frame yet."""

    @property
    def is_free(self) -> bool:
        """Whether nobody has a view of the frame's bytes."""

    @property
    def room(self) -> int:
        """How many bytes of a record still fit; negative when not even a part's header does."""

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
        """Make the frame empty again; ``BufferError`` while anybody has a view of its bytes."""

class FrameReader:
    """Puts records together again from frames fed in log order."""

    def feed(self, frame: Buffer, address: A) -> list[tuple[A, bytes | memoryview]]:
        """The records that end in ``frame``, each with the address of the frame it began in.

        A long record that lies in one frame is a view of ``frame``, which may not change then.
        Raises ``FrameDamagedError``.
        """
