"""One segment's attribute index: a B+Tree in a segment of its own in tier 2.

Owns: the reads of pages and the writes of updates. The tree itself does no I/O. An update appends
new pages and a footer, which points to the root of the tree; the *root pointer* in the container's
log is the offset of the last footer that the log knows.

Invariants:
1. An update never writes over stored bytes that another owner may need: it is written after all
   bytes of the attribute segment. Held by
   ``test_an_index_that_the_log_does_not_know_is_empty_and_not_written_over``.
2. When a write fails, the next call of ``write`` first puts the same bytes at the same offset,
   because the failed write may have stored some of them. Held by
   ``test_a_write_that_failed_is_tried_again_with_the_same_bytes``.
3. When an update commits and truncates the segment during a read, the read returns the values after
   that update. Held by ``test_a_read_that_is_overtaken_by_a_truncation_starts_again``.
4. When bytes of the tree are missing, reads raise ``StorageError``. Held by
   ``test_a_missing_end_of_the_tree_is_damage``. So they do when bytes are wrong. Held by
   ``test_a_wrong_byte_is_damage_and_named``.
5. Bytes after the end of the tree to which the root pointer in the log leads, which a crash may
   have left, are ignored. Held by ``test_what_lies_behind_the_root_pointer_does_not_count``.

An index gets three values with operation 7, then one of them changes with operation 8:

    write 7       a page of 96 bytes at 0, the footer of 112 bytes at 96; root pointer = 96
    write 8       a page of 96 bytes at 208, the footer at 304; root pointer = 304
    a crash leaves 10 bytes of the next write after the end of the tree, which is at 416
    write 9       a page at 426, the footer at 522; root pointer = 522
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
"""Maximum size, in bytes, of changes of index pages that an open tree keeps in memory, outside of
the page cache. Updates since the oldest of these changes are not truncated: less than one chunk."""
PARALLEL_READS_MAX: Final = 8

_Page = tuple[int, int, int]
_Held = dict[int, bytes]


def attribute_segment_name(storage_name: str) -> str:
    """Return the name in tier 2 of the segment with another segment's attributes."""
    return f"{storage_name}$attributes.index"


class Persisted(NamedTuple):
    """The number of the last operation whose changes the index has, and the offset of the index's
    footer, or None if the index is empty."""

    sequence_number: int
    root_pointer: int | None


class AttributeIndex:
    """The attribute index of one segment. One task writes; any task may read at the same time.

    ``root_pointer`` is the one in the log, or ``NULL_ATTRIBUTE_VALUE`` if the log has none. Each
    call raises ``StorageError`` when tier 2 fails or is damaged, and may be repeated.
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
        """Return the values of keys, in the order of the keys; None for a missing key."""
        await self._open()
        held: _Held = {}
        while True:
            values, missing = self._tree.find_many(keys, held)
            if not missing:
                return values
            await self._read_pages(missing, held)

    def find_now(self, key: AttributeId) -> int | None:
        """Return a key's value, or ``NULL_ATTRIBUTE_VALUE`` if it is missing, if memory has the
        pages for it; else None."""
        if not self._is_open:
            return None
        values, missing = self._tree.find_many((key,), {})
        if missing:
            return None
        return NULL_ATTRIBUTE_VALUE if values[0] is None else values[0]

    async def scan(
        self, first: AttributeId, last: AttributeId, *, limit: int
    ) -> tuple[list[tuple[AttributeId, int]], AttributeId | None]:
        """Return at most ``limit`` entries from ``first`` to ``last``, and the key from which the
        next call continues; the key is None at the end, whatever the number of entries.
        """
        await self._open()
        held: _Held = {}
        while True:
            entries, resume, missing = self._tree.scan(first, last, limit=limit, held=held)
            if not missing:
                return entries, resume
            await self._read_pages(missing, held)

    async def write(self, changes: Mapping[AttributeId, int], sequence_number: int) -> Persisted:
        """Store changes durably; ``NULL_ATTRIBUTE_VALUE`` removes an attribute.

        After a failed write, that write is repeated instead, and ``changes`` are ignored: the
        result says up to which operation the index has the changes.
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
        """Truncate the attribute segment at the beginning of the present tree. The log must have
        its root pointer."""
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
        """Read the footer to which the root pointer leads. The next update goes after all stored
        bytes, also those that a crash left behind the footer."""
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
        """Read pages into ``held``. An error is ignored if an update was committed meanwhile: then
        the caller needs other pages."""
        footer = self._tree.footer
        try:
            if len(missing) == 1:
                await self._read_page(missing[0], held)
            else:
                read = partial(self._read_page, held=held)
                await run_parallel(missing, read, tasks_max=PARALLEL_READS_MAX)
        except StorageError:
            # After an update, the pages of the older tree may have been truncated.
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
        """Return exactly ``length`` bytes from ``offset``, which may lie in several chunks."""
        data = bytes(await self._storage.read(self.name, offset=offset, length=length))
        while len(data) < length:
            data += await self._storage.read(
                self.name, offset=offset + len(data), length=length - len(data)
            )
        return data
