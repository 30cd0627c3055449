Piece = tuple[int, int, int, int, int]
"""(offset in the segment, length, position of the log's entry, start in that, CRC32C)"""

class LoggedPieces:
    """Which bytes of a segment lie where in a log."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def end(self) -> int:
        """The end of the last piece; 0 when there is none."""
    def add(self, offset: int, length: int, position: int, start: int, sum: int) -> None:
        """Take in a piece behind all others, else ``ValueError``."""
    def contiguous_end(self, offset: int) -> int:
        """Where the bytes from ``offset`` on end that lie in the log without a hole."""
    def find(self, offset: int, end: int) -> list[Piece]:
        """The pieces from ``offset`` to before ``end``, up to the first hole."""
    def drop_before(self, offset: int) -> None:
        """Forget the pieces that end at ``offset`` or before."""
