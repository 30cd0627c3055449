"""Data frames: how operations are packed into entries of the durable data log.

Owns: which frames a container fills, and what a damaged one means. The bytes are
``_fast.data_frame``'s (``docs/formats/data-frame.md``).

Invariants:
1. Records lie in frames in the order in which they were added; a record that does not fit goes on
   in the next frame, so a frame holds whole records and at most one tail and one head of others.
2. A frame is never longer than the durable data log takes in one entry.
3. A record that is cut off by the end of the log was never acknowledged and is dropped; a part
   without its beginning anywhere else is damage.
4. A frame is filled again only when the log has let go of its bytes.
"""

from __future__ import annotations

from typing import Final

from _fast.data_frame import DataFrame, FrameDamagedError, FrameReader
from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX, Buffer, LogAddress

SPARE_FRAMES_MAX: Final = 2
"""Frames kept for later; under full load more may be in flight, and their memory goes again."""

__all__ = ["DataFrame", "DataFrameReader", "FramePool"]


class FramePool:
    """The frames of one container that are not in use."""

    def __init__(self, limit: int = LOG_ENTRY_BYTES_MAX) -> None:
        self._limit = limit
        self._spare: list[DataFrame] = []

    def take(self) -> DataFrame:
        """An empty frame."""
        return self._spare.pop() if self._spare else DataFrame(self._limit)

    def give_back(self, frame: DataFrame) -> None:
        """Keep a frame whose bytes are durable; one that somebody still looks at goes its way."""
        if frame.is_free and len(self._spare) < SPARE_FRAMES_MAX:
            frame.clear()
            self._spare.append(frame)


class DataFrameReader:
    """Puts records together again from frames fed in log order."""

    def __init__(self) -> None:
        self._reader = FrameReader()

    def feed(
        self, frame: Buffer, address: LogAddress
    ) -> list[tuple[LogAddress, bytes | memoryview]]:
        """The records that end in ``frame``, each with the address of the frame it began in.

        Raises ``DataLogCorruptError`` for anything that is no frame.
        """
        try:
            return self._reader.feed(frame, address)
        except FrameDamagedError as error:
            raise DataLogCorruptError(
                f"the data frame at {address.position} is damaged: {error}"
            ) from error
