from typing_extensions import Buffer

def read_in_pieces(descriptor: int, memory: Buffer, offset: int, piece_bytes: int) -> int:
    """Fill ``memory`` from ``offset`` of the file on; return how many bytes it has up to there.

    Each read is of ``piece_bytes``, the last one may be shorter, and so may all be at the file's
    end. Raises ``OSError``.
    """
