Piece = tuple[int, int, int, int, int]
"""(offset in the segment, length, position of the log's entry, start in that, CRC32C)"""

class LoggedPieces:
    """The places of a segment's bytes in a log."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def end(self) -> int:
        """Return the end of the last piece; 0 when there is none."""
    def add(self, offset: int, length: int, position: int, start: int, sum: int) -> None:
        """Add a piece after all others; raises ``ValueError`` for any other place."""
    def contiguous_end(self, offset: int) -> int:
        """Return the end of the bytes from ``offset`` on that are in the log without a gap."""
    def find(self, offset: int, end: int) -> list[Piece]:
        """Return the pieces from ``offset`` to before ``end``, up to the first gap."""
    def drop_before(self, offset: int) -> None:
        """Forget the pieces that end at ``offset`` or before."""
