"""Attributes go to their indexes in the order of their need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from segstore.attributes.attribute_index import Persisted
from segstore.errors import StorageError
from segstore.writer.attribute_aggregator import AttributeAggregator
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY


class Memory:
    """The memory of a segment with many changed attributes."""

    def __init__(self) -> None:
        self.values = {
            number.to_bytes(16, "big"): 1 for number in range(POLICY.attribute_flush_count)
        }
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
    count_max = POLICY.attribute_indexes_max
    segments = {
        number: SimpleNamespace(segment_id=number, is_gone=False, attribute_memory=Memory())
        for number in range(count_max + 3)
    }
    unpersisted = dict(segments)
    persisted: list[int] = []

    def mark_persisted(segment: Any, *_: object) -> None:
        persisted.append(segment.segment_id)
        del unpersisted[segment.segment_id]

    @contextmanager
    def use(segment: Any) -> Iterator[Index]:
        yield Index(fails=segment.segment_id < count_max)

    metadata: Any = SimpleNamespace(
        unpersisted=unpersisted, dirty_count=0, mark_persisted=mark_persisted
    )
    indexes: Any = SimpleNamespace(use=use)
    record: Any = None
    aggregator = AttributeAggregator(metadata, indexes, record, POLICY)
    for now in (1.0, 2.0):
        with pytest.raises(StorageError, match="this index fails"):
            await aggregator.flush(now, everything=False)
    assert persisted == [count_max, count_max + 1, count_max + 2]
