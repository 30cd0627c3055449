"""The cached byte ranges of one segment, sorted by offset.

Owns: the entries of one segment and their cache addresses.

Invariants:
1. Entries do not overlap and are sorted by offset.
2. Every byte from the storage length up to the length lies in an entry or behind a redirect to a
   merged segment.
3. An entry belongs to this index alone; dropping it frees its cache memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Final

from _fast.cache import StreamingCache
from segstore.api import OnRead
from segstore.metadata import SegmentMetadata
from segstore.tiers.api import Buffer

ENTRY_BYTES_MAX: Final = 128 * 1024
"""Small appends are gathered into entries of about this many bytes."""

_offset_of = attrgetter("offset")


class CacheEntry:
    """``length`` bytes from ``offset`` on, held in the cache at ``address``."""

    __slots__ = ("address", "last_used", "length", "offset")

    def __init__(self, offset: int, length: int, address: int, last_used: float) -> None:
        self.offset = offset
        self.length = length
        self.address = address
        self.last_used = last_used

    @property
    def end(self) -> int:
        return self.offset + self.length


class Redirect:
    """A range whose bytes still belong to the segment that was merged here."""

    __slots__ = ("length", "offset", "source")

    def __init__(self, offset: int, length: int, source: SegmentMetadata) -> None:
        self.offset = offset
        self.length = length
        self.source = source


class TailRead:
    """A read parked at the tail. ``on_complete`` is None once it is answered or cancelled."""

    __slots__ = ("_parked", "length_max", "offset", "on_complete")

    def __init__(
        self, parked: list[TailRead], offset: int, length_max: int, on_complete: OnRead
    ) -> None:
        self._parked = parked
        self.offset = offset
        self.length_max = length_max
        self.on_complete: OnRead | None = on_complete

    def cancel(self) -> None:
        """Forget the read."""
        if self.on_complete is not None:
            self.on_complete = None
            if self in self._parked:
                self._parked.remove(self)


class SegmentReadIndex:
    """One segment's entries, redirects and parked reads."""

    def __init__(
        self, segment: SegmentMetadata, cache: StreamingCache, now: Callable[[], float]
    ) -> None:
        self.segment = segment
        self.tail_reads: list[TailRead] = []
        self.redirects: list[Redirect] = []
        self._cache = cache
        self._now = now
        self._entries: list[CacheEntry] = []

    def append(self, offset: int, data: Buffer) -> None:
        """Take in new bytes at the end."""
        length = len(data)
        if length == 0:
            return
        if self._entries:
            last = self._entries[-1]
            if last.end == offset and last.length + length <= ENTRY_BYTES_MAX:
                last.address = self._cache.append(last.address, data)
                last.length += length
                last.last_used = self._now()
                return
        address = self._cache.insert(data)
        self._entries.append(CacheEntry(offset, length, address, self._now()))

    def insert_from_storage(self, offset: int, data: bytes) -> None:
        """Keep bytes that were read from storage, unless any of them are cached already."""
        position = bisect_right(self._entries, offset, key=_offset_of)
        if position and self._entries[position - 1].end > offset:
            return
        if position < len(self._entries) and self._entries[position].offset < offset + len(data):
            return
        address = self._cache.insert(data)
        self._entries.insert(position, CacheEntry(offset, len(data), address, self._now()))

    def gather(self, offset: int, length_max: int) -> bytes:
        """Copy out the cached bytes from ``offset`` on, as far as they are contiguous."""
        position = bisect_right(self._entries, offset, key=_offset_of) - 1
        if position < 0:
            return b""
        parts: list[bytes] = []
        now = self._now()
        while length_max > 0 and position < len(self._entries):
            entry = self._entries[position]
            start = offset - entry.offset
            if not 0 <= start < entry.length:
                break
            length = min(entry.length - start, length_max)
            parts.append(self._cache.get(entry.address, start, length))
            entry.last_used = now
            offset += length
            length_max -= length
            position += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cached_end(self, offset: int) -> int:
        """Where the contiguous cached bytes from ``offset`` on end."""
        position = max(0, bisect_right(self._entries, offset, key=_offset_of) - 1)
        for entry in self._entries[position:]:
            if not entry.offset <= offset < entry.end:
                break
            offset = entry.end
        return offset

    def next_cached_offset(self, offset: int) -> int | None:
        """The first cached offset at or after ``offset``."""
        position = bisect_right(self._entries, offset - 1, key=_offset_of)
        return self._entries[position].offset if position < len(self._entries) else None

    def redirect_at(self, offset: int) -> Redirect | None:
        """The merged range that covers ``offset``, if its bytes have not moved yet."""
        for redirect in self.redirects:
            if redirect.offset <= offset < redirect.offset + redirect.length:
                return redirect
        return None

    def drop_before(self, offset: int) -> None:
        """Free entries that lie wholly before ``offset``."""
        kept = bisect_right(self._entries, offset, key=_offset_of)
        if kept and self._entries[kept - 1].end > offset:
            kept -= 1
        for entry in self._entries[:kept]:
            self._cache.delete(entry.address)
        del self._entries[:kept]

    def clear(self) -> None:
        """Free everything."""
        for entry in self._entries:
            self._cache.delete(entry.address)
        self._entries.clear()

    def evictable_entries(self) -> Iterator[tuple[CacheEntry, Callable[[], None]]]:
        """Entries wholly in tier 2."""
        storage_length = self.segment.storage_length
        for entry in self._entries:
            if entry.end > storage_length:
                break
            yield entry, partial(self._drop, entry)

    def _drop(self, entry: CacheEntry) -> None:
        self._entries.remove(entry)
        self._cache.delete(entry.address)
