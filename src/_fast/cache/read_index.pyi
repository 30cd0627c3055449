from typing import final

from typing_extensions import Buffer

from _fast.cache.streaming_cache import StreamingCache

ENTRY_BYTES_MAX: int
"""Maximum length, in bytes, of an entry that appends extend."""

GENERATIONS_MAX: int
"""Number of generations with a list of their own; earlier ones share the oldest one's list."""

@final
class Generations:
    """The cached entries of all segments that share a cache, by the time of their last use.

    Time is counted in generations: an entry's is that of its last use. Evictable entries are listed
    by generation; entries that came from tier 2 for reads of history have two lists of their own:
    one for entries that were read up to their end, one for the others. For one thread at a time.
    """

    def __init__(self, cache: StreamingCache) -> None: ...
    @property
    def cache(self) -> StreamingCache:
        """Return the cache that has the entries' bytes."""

    @property
    def current(self) -> int:
        """Return the present generation."""

    @property
    def oldest(self) -> int:
        """Return the generation before which no evictable appended entry was used last."""

    @property
    def entry_count(self) -> int:
        """Return how many entries all segments have."""

    @property
    def evictable_bytes(self) -> int:
        """Return the number of bytes of entries that may be evicted."""

    @property
    def history_bytes(self) -> int:
        """Return the bytes of entries that came from tier 2 for reads of history."""

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of the records of all entries, without the trees' nodes."""

    @property
    def evicted_bytes(self) -> int:
        """Return the bytes of all entries that were ever evicted."""

    @property
    def evicted_count(self) -> int:
        """Return how many entries were ever evicted."""

    def advance(self, count: int = 1) -> None:
        """Begin ``count`` generations; those before the latest ``GENERATIONS_MAX`` share a list."""

    def evict(
        self,
        *,
        used_bytes_max: int,
        count_max: int,
        generation_end: int = ...,
        history_bytes_min: int = 0,
    ) -> int:
        """Evict until the cache uses so little; return the number of evicted entries.

        Evicts first history that was read, then other history down to ``history_bytes_min``, then
        entries that were last used before ``generation_end``, the oldest first. Takes time in
        proportion to the evicted entries, of which there are at most ``count_max``.
        """

    def expire(self, generation_end: int, *, count_max: int) -> int:
        """Evict entries that were last used before a generation; return their number."""

@final
class SegmentEntries:
    """The cached entries of one segment, sorted by offset. They are freed when it goes away."""

    def __init__(self, generations: Generations) -> None: ...
    def __len__(self) -> int: ...
    @property
    def generations(self) -> Generations:
        """Return the entries of all segments."""

    @property
    def read_history(self) -> bool:
        """Return whether the last ``gather`` met bytes that came from tier 2."""

    @property
    def steps(self) -> int:
        """Return the number of nodes visited and slots moved so far: the cost of the operations."""

    @property
    def memory_bytes(self) -> int:
        """Return the number of bytes of the tree's nodes and of the entries' records."""

    @property
    def end(self) -> int:
        """Return the end of the last entry; 0 when there is none."""

    def entries(self) -> list[tuple[int, int, int]]:
        """Return offset, length and generation of every entry, in order."""

    def append(self, offset: int, data: Buffer) -> None:
        """Add new bytes at the end of the segment, to its last entry if that is small.

        Raises the cache's errors when there is no room, and ``ValueError`` when bytes from
        ``offset`` on are cached already.
        """

    def insert(self, offset: int, data: Buffer) -> bool:
        """Add bytes that were read from tier 2; return whether none of these bytes was cached yet.

        Raises the cache's errors when there is no room.
        """

    def end_last(self) -> None:
        """End the last entry because its bytes will be flushed: the next append begins an entry,
        unless the last one is short. An entry that grew during the flush could not be evicted after
        it."""

    def set_stored_length(self, stored_length: int) -> bool:
        """Record that tier 2 has all bytes up to an offset; they may be evicted.

        Returns whether these are all bytes.
        """

    def adopt_entries(self, source: SegmentEntries, shift: int) -> None:
        """Move another segment's entries into this one, ``shift`` bytes further on.

        Entries whose bytes this segment has already are dropped.
        """

    def gather(self, offset: int, length_max: int, use: bool = True) -> bytes:
        """Return a copy of the contiguous cached bytes from ``offset`` on.

        With ``use``, the current generation becomes that of their entries.
        """

    def views(self, offset: int, length_max: int) -> list[memoryview]:
        """Return the bytes as read-only memory views; this neither copies nor counts as a use.

        Their memory is not used again before they are gone.
        """

    def cached_end(self, offset: int, limit: int = ...) -> int:
        """Return the end of the contiguous cached bytes from ``offset`` on, up to ``limit``."""

    def next_cached_offset(self, offset: int) -> int | None:
        """Return the first offset of an entry at or after ``offset``; None when there is none."""

    def drop_before(self, offset: int) -> None:
        """Free entries that lie wholly before ``offset``."""

    def clear(self) -> None:
        """Free everything."""

    def check(self) -> None:
        """Raise ``AssertionError`` if the entries break an invariant. Slow: for tests."""
