from _fast.log.logged_pieces import Piece
from _fast.log.operations import AppendOperation

LOGGED_BYTES_MIN: int
"""Minimum length, in bytes, of the bodies of appends that a digest leaves out."""

DIGEST_FORMAT: int
"""Version of the digests' bytes; digests of other versions are not read."""

Buffer = bytes | bytearray | memoryview

class EntryNeededError(Exception):
    """The digest lacks what the replay needs: feed the digest of the whole entry."""

def digest_frame(frame: Buffer, whole: bool = False) -> bytes:
    """Return a frame's digest; ``whole`` includes the bodies of all its appends.

    Raises ``_fast.log.data_frame.FrameDamagedError`` for anything that is no frame.
    """

ShortPiece = tuple[int, bytes, bytes]

def logged_pieces(offset: int, data: bytes, places: bytes) -> list[Piece]:
    """Return the places in the log of a ``ShortPiece``'s bytes."""

class AppendRun:
    """Consecutive appends to one segment, without any other operation in between.

    ``last`` is the last one, with the attributes of all of them and without bytes. ``pieces`` has
    their bytes: a ``Piece`` for bytes that are in the log alone, else (offset, bytes, places),
    whose places in the log ``logged_pieces`` returns.
    """

    last: AppendOperation
    first_offset: int
    first_sequence_number: int
    pieces: list[ShortPiece | Piece]

class AppendBatch:
    """Appends with consecutive sequence numbers, by segment in the order of their first ones."""

    first_sequence_number: int
    last_sequence_number: int
    @property
    def runs(self) -> list[AppendRun]: ...

class DigestReader:
    """Joins operations from digests that are fed in log order."""

    def __init__(self) -> None: ...
    def feed(self, digest: Buffer, position: int) -> list[AppendBatch | tuple[int, bytes]]:
        """Return the batches of appends and the other records that end in the frame at
        ``position``.

        Each other record has the position of the frame in which it began. Raises
        ``data_frame.FrameDamagedError`` and ``operations.OperationDamagedError`` for damage, and
        ``EntryNeededError`` when the digest of the whole entry is needed instead.
        """
