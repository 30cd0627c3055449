from typing import final

from typing_extensions import Buffer

from _fast.cache import StreamingCache

ENTRY_BYTES_MAX: int
"""Maximum length, in bytes, of an entry that appends extend."""

GENERATIONS_MAX: int
"""Number of generations that are told apart; what was used last before them counts as the oldest.
"""

@final
class Generations:
    """The cached entries of all segments that share a cache, by when they were used last.

    Time is counted in generations: an entry's is that of its last use. What may be evicted is
    listed by generation; entries that came from tier 2 for reads of history have lists of their
    own: one of those that were read up to their end, and one of the others. Not for several threads
    at once.
    """

    def __init__(self, cache: StreamingCache) -> None: ...
    @property
    def cache(self) -> StreamingCache:
        """Return the cache that has the entries' bytes."""

    @property
    def current(self) -> int:
        """Return the generation of what is used now."""

    @property
    def oldest(self) -> int:
        """Return the generation before which no appended entry that may be evicted was used
        last."""

    @property
    def entry_count(self) -> int:
        """Return how many entries all segments have."""

    @property
    def evictable_bytes(self) -> int:
        """Return the number of bytes of entries that may be evicted."""

    @property
    def history_bytes(self) -> int:
        """Return the number of bytes of entries that came from tier 2 for reads of history."""

    @property
    def memory_bytes(self) -> int:
        """Return the number of bytes of the records of all entries; the trees' nodes come on
        top."""

    @property
    def evicted_bytes(self) -> int:
        """Return the number of bytes of all entries that were ever evicted."""

    @property
    def evicted_count(self) -> int:
        """Return how many entries were ever evicted."""

    def advance(self, count: int = 1) -> None:
        """Begin ``count`` generations; more than ``GENERATIONS_MAX`` are not told apart."""

    def evict(
        self,
        *,
        used_bytes_max: int,
        count_max: int,
        generation_end: int = ...,
        history_bytes_min: int = 0,
    ) -> int:
        """Evict until the cache uses so little; return how many entries that were.

        First goes history that was read, then other history down to ``history_bytes_min``, then
        what was last used before ``generation_end``, the oldest first. Takes as long as it evicts
        entries, at most ``count_max`` of them.
        """

    def expire(self, generation_end: int, *, count_max: int) -> int:
        """Evict what was last used before a generation; return how many entries that were."""

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
        """Return how many nodes were looked at and slots moved so far: what operations cost."""

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

        Raises what the cache raises without room, and ``ValueError`` when bytes from ``offset`` on
        are cached already.
        """

    def insert(self, offset: int, data: Buffer) -> bool:
        """Add bytes that were read from tier 2; return whether none of them was there yet.

        Raises what the cache raises without room.
        """

    def end_last(self) -> None:
        """End the last entry, because its bytes are flushed now: the next append begins an entry,
        unless the last one is short. An entry that grows during the flush could not be evicted
        after it."""

    def set_stored_length(self, stored_length: int) -> bool:
        """Record that tier 2 has all bytes up to an offset; they may be evicted. Return whether
        these are all."""

    def adopt_entries(self, source: SegmentEntries, shift: int) -> None:
        """Make another segment's entries entries of this one, ``shift`` bytes further on.

        Where this one has bytes already, the source's are dropped.
        """

    def gather(self, offset: int, length_max: int, use: bool = True) -> bytes:
        """Copy out the cached bytes from ``offset`` on, as far as they are contiguous.

        With ``use``, the entries are used: their generation is the current one.
        """

    def views(self, offset: int, length_max: int) -> list[memoryview]:
        """Return the bytes as read-only memory views, without a copy and without counting as a use.

        They stay what they are: memory that they show is not used again before they are gone.
        """

    def cached_end(self, offset: int, limit: int = ...) -> int:
        """Return where the contiguous cached bytes from ``offset`` on end; look no further than
        ``limit``."""

    def next_cached_offset(self, offset: int) -> int | None:
        """Return the first offset of an entry at or after ``offset``; None when there is none."""

    def drop_before(self, offset: int) -> None:
        """Free entries that lie wholly before ``offset``."""

    def clear(self) -> None:
        """Free everything."""

    def check(self) -> None:
        """Raise ``AssertionError`` where entries break an invariant. Slow: for tests."""
