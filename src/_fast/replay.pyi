from _fast.logged_pieces import Piece
from _fast.operations import AppendOperation

LOGGED_BYTES_MIN: int
"""Minimum length, in bytes, of the bodies of appends that a digest leaves out."""

DIGEST_FORMAT: int
"""Version of the digests' bytes: digests of another version are not read."""

Buffer = bytes | bytearray | memoryview

class EntryNeededError(Exception):
    """The digest leaves out what the replay needs: feed that of the whole entry."""

def digest_frame(frame: Buffer, whole: bool = False) -> bytes:
    """Return what a replay needs of a frame; with ``whole`` the bodies of its appends too.

    Raises ``_fast.data_frame.FrameDamagedError`` for anything that is no frame.
    """

ShortPiece = tuple[int, bytes, bytes]

def logged_pieces(offset: int, data: bytes, places: bytes) -> list[Piece]:
    """Return where in the log the bytes of a ``ShortPiece`` are."""

class AppendRun:
    """Appends to one segment that follow each other, without any other operation between.

    ``last`` is the last one, with the attributes of all of them and without bytes. ``pieces`` has
    their bytes: a ``Piece`` where those are in the log alone, else (offset, bytes, places), for
    which ``logged_pieces`` tells where in the log they are.
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
    """Puts operations together again from digests fed in log order."""

    def __init__(self) -> None: ...
    def feed(self, digest: Buffer, position: int) -> list[AppendBatch | tuple[int, bytes]]:
        """Return what ends in the frame at ``position``: batches of appends, and other records.

        Those come with the position of the frame in which they began. Raises
        ``_fast.data_frame.FrameDamagedError`` and ``_fast.operations.OperationDamagedError`` for
        damage, and ``EntryNeededError`` when the digest of the whole entry is needed instead.
        """
