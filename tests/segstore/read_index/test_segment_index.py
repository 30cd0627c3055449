"""A segment's cached ranges stay sorted, disjoint and true to the bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from _fast.cache import StreamingCache
from segstore.metadata import SegmentMetadata
from segstore.read_index.segment_index import ENTRY_BYTES_MAX, SegmentReadIndex

CONTENT = bytes(number % 251 for number in range(4000))


def make_index() -> tuple[SegmentReadIndex, StreamingCache]:
    cache = StreamingCache(8 << 20)
    return SegmentReadIndex(SegmentMetadata(1, "s"), cache, lambda: 0.0), cache


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "store", "drop", "evict"]),
        st.integers(0, 1500),
        st.integers(1, 700),
    ),
    max_size=30,
)


@given(ACTIONS, st.integers(0, 4000), st.integers(1, 4000))
def test_what_is_gathered_are_the_bytes_of_the_segment(
    actions: list[tuple[str, int, int]], offset: int, length: int
) -> None:
    index, cache = make_index()
    segment = index.segment
    cached: set[int] = set()
    for action, position, size in actions:
        if action == "append":
            data = CONTENT[segment.length : segment.length + size]
            index.append(segment.length, data)
            cached.update(range(segment.length, segment.length + len(data)))
            segment.length += len(data)
        elif action == "store":
            data = CONTENT[position : min(position + size, segment.length)]
            if data and not cached & set(range(position, position + len(data))):
                index.insert_from_storage(position, data)
                cached.update(range(position, position + len(data)))
        elif action == "drop":
            index.drop_before(position)
        else:
            segment.storage_length = max(segment.storage_length, min(position, segment.length))
            for entry, drop in list(index.evictable_entries()):
                assert entry.end <= segment.storage_length
                drop()
        cached = {byte for entry in index._entries for byte in range(entry.offset, entry.end)}
    assert cache.stored_bytes == len(cached) == sum(entry.length for entry in index._entries)
    gathered = index.gather(offset, length)
    end = offset
    while end < offset + length and end in cached:
        end += 1
    assert gathered == CONTENT[offset:end]
    assert index.cached_end(offset) >= end
    following = [byte for byte in cached if byte >= offset]
    starts = [entry.offset for entry in index._entries if entry.offset >= offset]
    assert index.next_cached_offset(offset) == (min(starts) if starts else None)
    assert starts or not following or min(following) == offset
    index.clear()
    assert cache.stored_bytes == 0


def test_small_appends_share_an_entry_up_to_its_limit() -> None:
    index, _ = make_index()
    piece = b"x" * 1000
    for number in range(ENTRY_BYTES_MAX // 1000 + 1):
        index.append(number * 1000, piece)
    assert [entry.length for entry in index._entries] == [ENTRY_BYTES_MAX // 1000 * 1000, 1000]


def test_bytes_from_storage_never_cover_bytes_that_are_cached() -> None:
    index, cache = make_index()
    index.append(100, b"n" * 50)
    for offset, length in [(90, 20), (100, 50), (120, 10), (149, 10)]:
        index.insert_from_storage(offset, b"o" * length)
    assert cache.stored_bytes == 50
    index.insert_from_storage(50, b"o" * 50)
    index.insert_from_storage(150, b"o" * 10)
    assert index.gather(50, 1000) == b"o" * 50 + b"n" * 50 + b"o" * 10
