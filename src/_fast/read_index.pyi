from typing import final

from typing_extensions import Buffer

from _fast.cache import StreamingCache

ENTRY_BYTES_MAX: int
"""Appends are put into one entry up to so many bytes."""

GENERATIONS_MAX: int
"""So many generations are told apart; what was last used before them counts as the oldest."""

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
        """Where the entries' bytes are."""

    @property
    def current(self) -> int:
        """The generation of what is used now."""

    @property
    def oldest(self) -> int:
        """No appended entry that may be evicted was used last before this generation."""

    @property
    def entry_count(self) -> int:
        """How many entries all segments have."""

    @property
    def evictable_bytes(self) -> int:
        """Bytes of entries that may be evicted."""

    @property
    def history_bytes(self) -> int:
        """Bytes of entries that came from tier 2 for reads of history."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the records of all entries; the trees' nodes come on top."""

    @property
    def evicted_bytes(self) -> int:
        """Bytes of all entries that were ever evicted."""

    @property
    def evicted_count(self) -> int:
        """How many entries were ever evicted."""

    def advance(self, count: int = 1) -> None:
        """Let ``count`` generations begin; more than ``GENERATIONS_MAX`` are not told apart."""

    def evict(
        self,
        *,
        used_bytes_max: int,
        count_max: int,
        generation_end: int = ...,
        history_bytes_min: int = 0,
    ) -> int:
        """Evict until the cache uses so little; returns how many entries that were.

        First goes history that was read, then other history down to ``history_bytes_min``, then
        what was last used before ``generation_end``, the oldest first. Takes as long as it evicts
        entries, at most ``count_max`` of them.
        """

    def expire(self, generation_end: int, *, count_max: int) -> int:
        """Evict what was last used before a generation; returns how many entries that were."""

@final
class SegmentEntries:
    """The cached entries of one segment, sorted by offset. They are freed when it goes away."""

    def __init__(self, generations: Generations) -> None: ...
    def __len__(self) -> int: ...
    @property
    def generations(self) -> Generations:
        """The entries of all segments."""

    @property
    def read_history(self) -> bool:
        """Whether the last ``gather`` met bytes that came from tier 2."""

    @property
    def steps(self) -> int:
        """How many nodes were looked at and slots moved so far: what operations cost."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of the tree's nodes and of the entries' records."""

    @property
    def end(self) -> int:
        """The end of the last entry; 0 when there is none."""

    def entries(self) -> list[tuple[int, int, int]]:
        """Offset, length and generation of every entry, in order."""

    def append(self, offset: int, data: Buffer) -> None:
        """Take in new bytes at the end of the segment, into its last entry if that is small.

        Raises what the cache raises without room, and ``ValueError`` when bytes from ``offset`` on
        are cached already.
        """

    def insert(self, offset: int, data: Buffer) -> bool:
        """Keep bytes that were read from tier 2; returns whether there was nothing of them yet.

        Raises what the cache raises without room.
        """

    def end_last(self) -> None:
        """What there is goes to tier 2 now: the next append begins an entry, unless the last one is
        short. An entry that is extended meanwhile could not be evicted when that is done.
        """

    def note_stored(self, stored_length: int) -> bool:
        """Tier 2 has all bytes up to there, which may be evicted now; whether that is all."""

    def take_over(self, source: SegmentEntries, shift: int) -> None:
        """Make another segment's entries entries of this one, ``shift`` bytes further on.

        Where this one has bytes already, the source's are dropped.
        """

    def gather(self, offset: int, length_max: int, use: bool = True) -> bytes:
        """Copy out the cached bytes from ``offset`` on, as far as they are contiguous.

        With ``use``, the entries are used: their generation is the current one.
        """

    def views(self, offset: int, length_max: int) -> list[memoryview]:
        """The same as read-only memory views, without a copy and without counting as a use.

        They stay what they are: memory that they show is not used again before they are gone.
        """

    def cached_end(self, offset: int, limit: int = ...) -> int:
        """Where the contiguous cached bytes from ``offset`` on end, looking as far as ``limit``."""

    def next_cached_offset(self, offset: int) -> int | None:
        """The first offset of an entry at or after ``offset``; None when there is none."""

    def drop_before(self, offset: int) -> None:
        """Free entries that lie wholly before ``offset``."""

    def clear(self) -> None:
        """Free everything."""

    def check(self) -> None:
        """Raise ``AssertionError`` where entries break an invariant. Slow: for tests."""
