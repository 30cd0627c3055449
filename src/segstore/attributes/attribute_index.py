"""One segment's attribute index: a B+Tree in a segment of its own in tier 2.

Owns: when pages of the tree are read and updates are written. The tree itself does no I/O.

Invariants:
1. The attribute segment only grows: an update lies behind everything that is stored, or, after a
   write that failed, exactly where that write was to put the same bytes.
2. What is found is what the last committed update says at the moment of the answer: nothing is
   awaited between the last look and the return.
3. Bytes before the root pointer that the container's log has were durable: where one of them is
   missing or wrong, tier 2 is damaged, and nothing is guessed. What lies behind it does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from _fast.btree.tree import FOOTER_BYTES, Batch, CorruptPageError, Footer, PageCache, Tree, Update
from segstore.chunks.api import SegmentStorage
from segstore.errors import StorageError
from segstore.model.attributes import NULL_ATTRIBUTE_VALUE, AttributeId
from segstore.runtime.parallel import run_parallel

ROLLOVER_BYTES: Final = 32 * 1024 * 1024
"""Length, in bytes, of the chunks of attribute segments (the original's length)."""
DELTA_BYTES_MAX: Final = 16 * 1024
"""Maximum size, in bytes, of the changes of index pages that an open tree keeps in memory, outside
of the page cache. All that was written since the first of them stays in tier 2: less than one
chunk."""
PARALLEL_READS_MAX: Final = 8

_Page = tuple[int, int, int]
_Held = dict[int, bytes]


def attribute_segment_name(storage_name: str) -> str:
    """Return the name under which tier 2 has a segment's attributes."""
    return f"{storage_name}$attributes.index"


class Persisted(NamedTuple):
    """The last operation whose changes the index has, and the place of its footer; None without
    one."""

    sequence_number: int
    root_pointer: int | None


class AttributeIndex:
    """The attribute index of one segment. One task writes; any may read meanwhile.

    ``root_pointer`` is the one that the log has, or the null value when it has none. Every call
    raises ``StorageError`` when tier 2 fails or is damaged, and may be repeated.
    """

    def __init__(
        self,
        name: str,
        storage: SegmentStorage,
        pages: PageCache,
        *,
        key_length: int,
        root_pointer: int,
    ) -> None:
        self.name = name
        self._storage = storage
        self._root_pointer = root_pointer
        self._tree = Tree(pages, key_length=key_length, delta_bytes_max=DELTA_BYTES_MAX)
        self._is_open = False
        self._opening = trio.Lock()
        self._unwritten: tuple[Update, int] | None = None

    async def find_many(self, keys: Sequence[AttributeId]) -> list[int | None]:
        """Return the values of keys, in their order; None for a missing key."""
        await self._open()
        held: _Held = {}
        while True:
            values, missing = self._tree.find_many(keys, held)
            if not missing:
                return values
            await self._read_pages(missing, held)

    def find_now(self, key: AttributeId) -> int | None:
        """Return a key's value, or the null value if it is missing, when no page has to be read for
        it; else None."""
        if not self._is_open:
            return None
        values, missing = self._tree.find_many((key,), {})
        if missing:
            return None
        return NULL_ATTRIBUTE_VALUE if values[0] is None else values[0]

    async def scan(
        self, first: AttributeId, last: AttributeId, *, limit: int
    ) -> tuple[list[tuple[AttributeId, int]], AttributeId | None]:
        """Return at most ``limit`` entries from ``first`` to ``last``, and the key to continue
        from.

        Fewer than ``limit`` entries do not mean the end: the end is reached when the key is None.
        """
        await self._open()
        held: _Held = {}
        while True:
            entries, resume, missing = self._tree.scan(first, last, limit=limit, held=held)
            if not missing:
                return entries, resume
            await self._read_pages(missing, held)

    async def write(self, changes: Mapping[AttributeId, int], sequence_number: int) -> Persisted:
        """Store changes, where the null value removes; durable on return.

        After a write that failed, the same write is repeated, whatever ``changes`` are given: the
        result tells up to which operation the index is.
        """
        await self._open()
        if self._unwritten is None:
            update = await self._prepare(Batch(self._tree.key_length, changes))
            if update is None:
                return Persisted(sequence_number, self._present_root_pointer())
            self._unwritten = update, sequence_number
        update, sequence_number = self._unwritten
        await self._storage.write(
            self.name, offset=update.offset, data=[update.data], rollover_bytes=ROLLOVER_BYTES
        )
        self._tree.commit(update)
        self._unwritten = None
        return Persisted(sequence_number, self._present_root_pointer())

    async def truncate(self) -> None:
        """Free what lies before the tree, whose root pointer the log has now."""
        await self._storage.truncate(self.name, offset=self._tree.footer.min_offset)

    def _present_root_pointer(self) -> int | None:
        footer = self._tree.footer
        return footer.offset if footer.update_number else None

    async def _open(self) -> None:
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                await self._restore()
                self._is_open = True

    async def _restore(self) -> None:
        """Find the tree. After a crash there may be bytes behind it: the next update goes behind
        them."""
        stored_length = await self._storage.stored_length(self.name)
        footer = None
        if self._root_pointer != NULL_ATTRIBUTE_VALUE:
            end = self._root_pointer + FOOTER_BYTES
            if end > stored_length:
                raise StorageError(
                    f"{self.name} is damaged: its tree ends at {end}, but {stored_length} bytes"
                    f" are stored"
                )
            data = await self._read(self._root_pointer, FOOTER_BYTES)
            try:
                footer = Footer.parse(data, offset=self._root_pointer)
                self._tree.restore(footer, end=stored_length)
            except ValueError as error:
                raise StorageError(f"{self.name} is damaged: {error}") from error
        else:
            self._tree.restore(None, end=stored_length)

    async def _prepare(self, batch: Batch) -> Update | None:
        held: _Held = {}
        while isinstance(answer := self._tree.prepare(batch, held), list):
            await self._read_pages(answer, held)
        return answer

    async def _read_pages(self, missing: Sequence[_Page], held: _Held) -> None:
        """Read pages into ``held``, or find that the tree has moved on meanwhile."""
        footer = self._tree.footer
        try:
            if len(missing) == 1:
                await self._read_page(missing[0], held)
            else:
                read = partial(self._read_page, held=held)
                await run_parallel(missing, read, tasks_max=PARALLEL_READS_MAX)
        except StorageError:
            # An update that was committed meanwhile may have truncated what an older tree had.
            if self._tree.footer is footer:
                raise

    async def _read_page(self, page: _Page, held: _Held) -> None:
        offset, length, level = page
        data = await self._read(offset, length)
        try:
            held[offset] = self._tree.admit(data, offset=offset, length=length, level=level)
        except CorruptPageError as error:
            raise StorageError(f"{self.name} is damaged: {error}") from error

    async def _read(self, offset: int, length: int) -> bytes:
        """Read exactly that much, from as many chunks as it lies in."""
        data = bytes(await self._storage.read(self.name, offset=offset, length=length))
        while len(data) < length:
            data += await self._storage.read(
                self.name, offset=offset + len(data), length=length - len(data)
            )
        return data
