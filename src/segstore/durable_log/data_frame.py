"""Data frames: how operations are packed into entries of the durable data log.

Owns: the pool of frames that a container fills, and the errors for damaged frames. A *record* is
one encoded operation. ``_fast.log.data_frame`` has the layout (``docs/formats/data-frame.md``).

Invariants:
1. A record that does not fit into a frame is continued in the next one, and the records are read in
   the order in which they were added. Held by
   ``test_what_gathers_behind_a_frame_in_flight_fills_frames``.
2. A frame is at most as long as one entry of the durable data log may be. Held by
   ``test_what_gathers_behind_a_frame_in_flight_fills_frames``.
3. When the log ends within a record, the record is dropped: it was never acknowledged. Held by
   ``test_an_append_that_a_crash_cut_off_is_dropped``.
4. When the later part of a record comes without its beginning, the log is damaged. Held by
   ``test_a_part_without_its_beginning_is_damage``.
5. While the log still needs the bytes of a frame, the frame is not used again. Held by
   ``test_frames_in_flight_keep_their_bytes_while_others_fill``.
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
"""Maximum count of unused frames in a pool; the memory of others is freed."""

__all__ = ["DataFrame", "FramePool", "FrameReplay"]


class FramePool:
    """The unused frames of one container."""

    def __init__(self, limit: int = LOG_ENTRY_BYTES_MAX) -> None:
        self._limit = limit
        self.spare: list[DataFrame] = []
        """Empty frames that may be taken from here."""

    def get(self) -> DataFrame:
        """Return an empty frame."""
        return self.spare.pop() if self.spare else DataFrame(self._limit)

    def recycle(self, frame: DataFrame) -> None:
        """Put a frame whose bytes are durable back into the pool, unless views of it exist."""
        if frame.is_free and len(self.spare) < SPARE_FRAMES_MAX:
            frame.clear()
            self.spare.append(frame)


class FrameReplay:
    """Decodes operations from the digests of frames, which are passed in log order."""

    def __init__(self) -> None:
        self._reader = DigestReader()

    def feed(self, entry: DigestedEntry) -> list[AppendBatch | tuple[int, bytes]]:
        """Return the operations whose records end in this entry; see ``DigestReader``.

        Raises ``DataLogCorruptError`` for bytes that are not a frame, and ``EntryNeededError`` when
        the digest is not enough, so that ``feed_whole`` has to be called.
        """
        position = entry.address.position
        with _damage_told(position):
            digest = entry.digest if entry.digest is not None else digest_frame(entry.data)
            return self._reader.feed(digest, position)

    def feed_whole(self, frame: Buffer, position: int) -> list[AppendBatch | tuple[int, bytes]]:
        """Return the operations whose records end in this entry, as ``feed`` does, from the bytes
        of its frame."""
        with _damage_told(position):
            return self._reader.feed(digest_frame(frame, whole=True), position)


@contextmanager
def _damage_told(position: int) -> Iterator[None]:
    try:
        yield
    except (FrameDamagedError, OperationDamagedError) as error:
        raise DataLogCorruptError(f"the data frame at {position} is damaged: {error}") from error
