"""Which segments' attributes go to their indexes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from segstore.attributes.attribute_index import Persisted
from segstore.errors import StorageError
from segstore.writer.attribute_aggregator import FLUSH_COUNT, TOGETHER_MAX, AttributeAggregator


class Memory:
    """Of a segment with many changed attributes."""

    def __init__(self) -> None:
        self.values = {number.to_bytes(16, "big"): 1 for number in range(FLUSH_COUNT)}
        self.dirty = dict.fromkeys(self.values, 5)

    def unpersisted(self) -> list[tuple[int, bytes]]:
        return [(number, each) for each, number in self.dirty.items()]


class Index:
    def __init__(self, fails: bool) -> None:
        self.fails = fails

    async def write(self, _: Mapping[bytes, int], sequence_number: int) -> Persisted:
        if self.fails:
            raise StorageError("this index fails")
        return Persisted(sequence_number, None)


async def test_indexes_that_fail_keep_no_others_from_their_turn() -> None:
    segments = {
        number: SimpleNamespace(segment_id=number, is_gone=False, attribute_memory=Memory())
        for number in range(TOGETHER_MAX + 3)
    }
    unpersisted = dict(segments)
    persisted: list[int] = []

    def note_persisted(segment: Any, *_: object) -> None:
        persisted.append(segment.segment_id)
        del unpersisted[segment.segment_id]

    @contextmanager
    def use(segment: Any) -> Iterator[Index]:
        yield Index(fails=segment.segment_id < TOGETHER_MAX)

    metadata: Any = SimpleNamespace(
        unpersisted=unpersisted, dirty_count=0, note_persisted=note_persisted
    )
    indexes: Any = SimpleNamespace(use=use)
    record: Any = None
    aggregator = AttributeAggregator(
        metadata, indexes, record, flush_seconds=5.0, flush_seconds_few=30.0
    )
    for now in (1.0, 2.0):
        with pytest.raises(StorageError, match="this index fails"):
            await aggregator.flush(now, everything=False)
    assert persisted == [TOGETHER_MAX, TOGETHER_MAX + 1, TOGETHER_MAX + 2]
