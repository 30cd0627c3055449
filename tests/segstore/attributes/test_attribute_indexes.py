"""The attribute indexes of a container: which are open."""

from __future__ import annotations

from typing import Any

import pytest

from _fast.btree.tree import PageCache
from segstore.attributes import attribute_indexes
from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.model.metadata import SegmentMetadata
from segstore.model.segment_attributes import AttributeCache


def test_an_index_in_use_stays_open_and_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribute_indexes, "OPEN_COUNT_MAX", 1)
    storage: Any = None
    indexes = AttributeIndexes(storage, PageCache(0), AttributeCache())
    first, *others = [SegmentMetadata(number, f"s{number}") for number in range(4)]
    with indexes.use(first) as index:
        for other in others:
            with indexes.use(other):
                pass
        with indexes.use(first) as again:
            assert again is index
    with indexes.use(others[0]):
        pass
    with indexes.use(first) as later:
        assert later is not index, "it was closed when it was not in use any more"
