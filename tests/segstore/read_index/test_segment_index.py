"""A segment's index knows which bytes are nowhere but in tier 2."""

from __future__ import annotations

from _fast.cache.read_index import Generations
from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.history import HistoryBlocks
from segstore.model.metadata import SegmentMetadata
from segstore.read_index.segment_index import Fetch, Redirect, SegmentReadIndex


def make_index() -> SegmentReadIndex:
    return SegmentReadIndex(SegmentMetadata(1, "s"), Generations(StreamingCache(8 << 20)))


def test_a_redirect_covers_its_range_and_no_more() -> None:
    index = make_index()
    assert index.redirect_at(0) is None
    first, second = (
        Redirect(offset, 10, SegmentMetadata(offset, "source")) for offset in (100, 120)
    )
    index.redirects = [first, second]
    found = [index.redirect_at(offset) for offset in (99, 100, 109, 110, 119, 120, 129, 130)]
    assert found == [None, first, first, None, None, second, second, None]


def test_what_is_unknown_ends_at_what_is_cached_fetched_or_not_stored() -> None:
    index = make_index()
    index.segment.storage_length = 1000
    assert index.unknown_end(10) == 1000
    index.entries.insert(600, b"cached")
    assert index.unknown_end(10) == 600
    assert index.unknown_end(606) == 1000
    index.fetches = [Fetch(300, 400), Fetch(900, 950)]
    assert [index.unknown_end(offset) for offset in (10, 400, 606)] == [300, 600, 900]
    assert index.fetch_at(299) is None
    assert index.fetch_at(399) is index.fetches[0]
    assert index.fetch_at(400) is None


def test_dropping_an_index_frees_its_cache() -> None:
    index = make_index()
    index.entries.append(0, b"x" * 5000)
    assert index.drop(HistoryBlocks(0)) == []
    assert index.is_dropped
    assert index.entries.generations.cache.stored_bytes == 0
