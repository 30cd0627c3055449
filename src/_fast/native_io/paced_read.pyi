from typing_extensions import Buffer

def read_in_pieces(descriptor: int, memory: Buffer, offset: int, piece_bytes: int) -> int:
    """Fill ``memory`` from ``offset`` of the file on; return the number of bytes read.

    Each read has ``piece_bytes``; the last one may be shorter, and the sum is less at the file's
    end. Raises ``OSError``.
    """
