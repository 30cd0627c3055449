"""The attribute indexes of a container's segments, and reads of attributes from memory and index.

Owns: the set of open indexes, and the loading of values from an index into memory.

Invariants:
1. While an index of a segment is in use, it stays open, and no second one is opened, which would
   not see the updates of the first. Held by
   ``test_an_index_in_use_stays_open_and_is_the_only_one``.
2. When an attribute changes while its value is read from the index, the change stays: what memory
   has is as new as the index, or newer. Held by
   ``test_what_is_read_does_not_overwrite_what_was_changed_meanwhile``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from _fast.btree.tree import PageCache
from segstore.attributes.attribute_index import AttributeIndex, attribute_segment_name
from segstore.chunks.api import SegmentStorage
from segstore.errors import InvalidRequestError, NoSuchSegmentError, StorageError
from segstore.model.attributes import NULL_ATTRIBUTE_VALUE, AttributeId, is_core_attribute
from segstore.model.metadata import SegmentMetadata
from segstore.model.segment_attributes import AttributeCache

OPEN_COUNT_MAX: Final = 1024
"""Maximum count of a container's unused indexes that stay open; a small one takes about 2 KiB of
memory."""
SCAN_COUNT_MAX: Final = 1000
"""Maximum number of attributes in one page of an iteration."""

AttributePage = list[tuple[AttributeId, int]]


class _OpenIndex:
    __slots__ = ("index", "user_count")

    def __init__(self, index: AttributeIndex) -> None:
        self.index = index
        self.user_count = 0


class AttributeIndexes:
    """The attribute indexes of one container. ``pages`` may be shared with other containers."""

    def __init__(self, storage: SegmentStorage, pages: PageCache, cache: AttributeCache) -> None:
        self._storage = storage
        self._pages = pages
        self._cache = cache
        self._open: dict[int, _OpenIndex] = {}

    @contextmanager
    def use(self, segment: SegmentMetadata) -> Iterator[AttributeIndex]:
        """Yield the segment's index, which stays open until the block ends."""
        opened = self._open.pop(segment.segment_id, None) or _OpenIndex(
            AttributeIndex(
                attribute_segment_name(segment.storage_name),
                self._storage,
                self._pages,
                key_length=segment.attribute_memory.id_bytes,
                root_pointer=segment.attribute_memory.root_pointer,
            )
        )
        self._open[segment.segment_id] = opened
        opened.user_count += 1
        segment.user_count += 1
        try:
            yield opened.index
        finally:
            segment.user_count -= 1
            opened.user_count -= 1
            self._close_unused()

    def _close_unused(self) -> None:
        excess = len(self._open) - OPEN_COUNT_MAX
        if excess > 0:
            unused = [number for number, opened in self._open.items() if not opened.user_count]
            for number in unused[:excess]:
                del self._open[number]

    def find_now(self, segment: SegmentMetadata, attribute_id: AttributeId) -> int | None:
        """Return an attribute's value from the index, ``NULL_ATTRIBUTE_VALUE`` if it is missing,
        and None if a page has to be read for it."""
        opened = self._open.pop(segment.segment_id, None)
        if opened is None:
            return None
        self._open[segment.segment_id] = opened
        return opened.index.find_now(attribute_id)

    def close(self, segment: SegmentMetadata) -> None:
        """Close the index of a segment that has become inactive."""
        self._open.pop(segment.segment_id, None)

    async def delete(self, segment_id: int, storage_name: str) -> None:
        """Delete a segment's attribute index in tier 2, if there is one."""
        self._open.pop(segment_id, None)
        await self._storage.delete(attribute_segment_name(storage_name))

    async def load(
        self, segment: SegmentMetadata, attribute_ids: Iterable[AttributeId]
    ) -> list[AttributeId]:
        """Load those of the attributes that only the index has into memory; return their ids.

        They stay in memory until the caller adds them to the attribute cache. Raises
        ``NoSuchSegmentError`` when the segment was removed meanwhile, and ``StorageError``.
        """
        memory = segment.attribute_memory
        wanted = [each for each in attribute_ids if memory.lacks(each)]
        if not wanted:
            return []
        with self._reading(segment) as index:
            values = await index.find_many(wanted)
        return memory.load(zip(wanted, values, strict=True))

    async def get(
        self, segment: SegmentMetadata, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        """Return the values of those of the attributes that exist. Raises the errors of
        ``load``."""
        memory = segment.attribute_memory
        loaded: list[AttributeId] = []
        segment.was_used = True
        try:
            # While some attributes were read, others may have been evicted.
            while lacking := [each for each in attribute_ids if memory.lacks(each)]:
                loaded += await self.load(segment, lacking)
            return {
                each: value
                for each in attribute_ids
                if (value := memory.values.get(each, NULL_ATTRIBUTE_VALUE)) != NULL_ATTRIBUTE_VALUE
            }
        finally:
            if not segment.is_gone:
                self._cache.add(memory, loaded)
                self._cache.touch(memory, attribute_ids)

    def get_now(self, segment: SegmentMetadata, attribute_id: AttributeId) -> int | None:
        """Return an attribute's value, ``NULL_ATTRIBUTE_VALUE`` if it is absent, and None if tier 2
        has to be read."""
        segment.was_used = True
        memory = segment.attribute_memory
        if memory.lacks(attribute_id):
            return self.find_now(segment, attribute_id)
        return memory.values.get(attribute_id, NULL_ATTRIBUTE_VALUE)

    async def iterate(
        self, segment: SegmentMetadata, first: AttributeId, last: AttributeId
    ) -> AsyncGenerator[AttributePage, None]:
        """Yield the extended attributes from ``first`` to ``last``, both included, in the order of
        ids, as pages.

        The values of a page are those of the moment when it is yielded. Raises the errors of
        ``load``.
        """
        memory = segment.attribute_memory
        if not len(first) == len(last) == memory.id_bytes:
            raise InvalidRequestError(
                segment.name, f"attributes of {segment.name} have ids of {memory.id_bytes} bytes"
            )
        segment.user_count += 1
        try:
            start: AttributeId | None = first
            while start is not None:
                stored: AttributePage = []
                resume = None
                if memory.is_indexed:
                    with self._reading(segment) as index:
                        stored, resume = await index.scan(start, last, limit=SCAN_COUNT_MAX)
                    newer: Iterable[AttributeId] = memory.dirty
                else:
                    newer = memory.values
                values = dict(stored)
                for each in newer:
                    if (
                        start <= each <= last
                        and (resume is None or each < resume)
                        and not is_core_attribute(each)
                    ):
                        values[each] = memory.values[each]
                yield sorted(item for item in values.items() if item[1] != NULL_ATTRIBUTE_VALUE)
                start = resume
        finally:
            segment.user_count -= 1

    @contextmanager
    def _reading(self, segment: SegmentMetadata) -> Iterator[AttributeIndex]:
        """Yield the index of a segment. Raises ``NoSuchSegmentError`` at the end of the block if
        the segment was removed meanwhile."""
        try:
            with self.use(segment) as index:
                yield index
        except StorageError as error:
            if segment.is_gone:
                raise NoSuchSegmentError(segment.name) from error
            raise
        if segment.is_gone:
            raise NoSuchSegmentError(segment.name)
