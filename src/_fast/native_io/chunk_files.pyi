from collections.abc import Sequence
from typing import Final

from typing_extensions import Buffer

STORED: Final[int]
NOT_OPENED: Final[int]
TOO_SHORT: Final[int]
NOT_STORED: Final[int]
NOT_RENAMED: Final[int]

def write_files(
    requests: list[tuple[bytes, bytes | None, int, Sequence[Buffer]]],
) -> list[tuple[int, int, int]]:
    """Write to files and sync them; return ``(outcome, errno, length before)`` for each.

    Each request is ``(path, final path or None, offset, buffers)``; a file with a final path is new
    and is renamed when it is durable. An offset past the file's end is refused.
    """

def sync_directories(paths: list[bytes]) -> list[int]:
    """Make directories durable; return the error number of each, 0 for success."""
