"""Data frames: how operations are packed into entries of the durable data log.

Owns: the frames that a container fills, and the errors for damaged ones. The layout of the bytes
(``docs/formats/data-frame.md``) is in ``_fast.log.data_frame``.

Invariants:
1. Records lie in frames in the order in which they were added; a record that does not fit goes on
   in the next frame, so a frame holds whole records and at most one tail and one head of others.
2. A frame is never longer than one entry of the durable data log may be.
3. A record that is cut off by the end of the log was never acknowledged and is dropped; a part
   without its beginning anywhere else is damage.
4. A frame is reused only when the log needs its bytes no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from _fast.log.data_frame import DataFrame, FrameDamagedError
from _fast.log.operations import OperationDamagedError
from _fast.log.replay import AppendBatch, DigestReader, digest_frame
from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX, Buffer, DigestedEntry

SPARE_FRAMES_MAX: Final = 2
"""Maximum count of spare frames. Under full load more are in flight; their memory is freed."""

__all__ = ["DataFrame", "FramePool", "FrameReplay"]


class FramePool:
    """The frames of one container that are not in use."""

    def __init__(self, limit: int = LOG_ENTRY_BYTES_MAX) -> None:
        self._limit = limit
        self._spare: list[DataFrame] = []

    def get(self) -> DataFrame:
        """Return an empty frame."""
        return self._spare.pop() if self._spare else DataFrame(self._limit)

    def recycle(self, frame: DataFrame) -> None:
        """Keep a frame whose bytes are durable for reuse, unless views of it still exist."""
        if frame.is_free and len(self._spare) < SPARE_FRAMES_MAX:
            frame.clear()
            self._spare.append(frame)


class FrameReplay:
    """Puts operations together again from the digests of frames, fed in log order."""

    def __init__(self) -> None:
        self._reader = DigestReader()

    def feed(self, entry: DigestedEntry) -> list[AppendBatch | tuple[int, bytes]]:
        """Return the operations that the entry completes; see ``DigestReader``.

        Raises ``DataLogCorruptError`` for bytes that are not a frame.
        Raises ``EntryNeededError`` when ``feed_whole`` has to be called instead.
        """
        position = entry.address.position
        with _damage_told(position):
            digest = entry.digest if entry.digest is not None else digest_frame(entry.data)
            return self._reader.feed(digest, position)

    def feed_whole(self, frame: Buffer, position: int) -> list[AppendBatch | tuple[int, bytes]]:
        """Read the bytes of a frame whose digest is not enough; return the same as ``feed``."""
        with _damage_told(position):
            return self._reader.feed(digest_frame(frame, whole=True), position)


@contextmanager
def _damage_told(position: int) -> Iterator[None]:
    try:
        yield
    except (FrameDamagedError, OperationDamagedError) as error:
        raise DataLogCorruptError(f"the data frame at {position} is damaged: {error}") from error
