from typing_extensions import Buffer

class FrameError(ValueError):
    """A frame header that no peer may send."""

def scan_frames(
    data: Buffer, position: int, accepted: bytes, payload_max: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Return the complete frames from ``position`` on, and the position after the last one.

    Each frame is a tuple of its type code, its payload's start and its payload's end. Byte
    ``code + 128`` of ``accepted`` (256 bytes) is not zero for each allowed type.
    Raises ``FrameError`` for another type, a negative length, or one over ``payload_max``.
    """
