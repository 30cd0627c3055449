from collections.abc import Iterable
from typing import final

from typing_extensions import Buffer

from _fast.btree.batch import NULL_VALUE as NULL_VALUE
from _fast.btree.batch import Batch as Batch
from _fast.btree.cache import PageCache as PageCache
from _fast.btree.page import FOOTER_BYTES as FOOTER_BYTES
from _fast.btree.page import FOOTER_MAGIC as FOOTER_MAGIC
from _fast.btree.page import PAGE_BYTES_MAX as PAGE_BYTES_MAX
from _fast.btree.page import CorruptPageError as CorruptPageError
from _fast.btree.page import Footer as Footer
from _fast.btree.update import Update as Update

__all__ = [
    "FOOTER_BYTES",
    "FOOTER_MAGIC",
    "NULL_VALUE",
    "PAGE_BYTES_MAX",
    "Batch",
    "CorruptPageError",
    "Footer",
    "PageCache",
    "Tree",
    "Update",
]

@final
class Tree:
    """One B+Tree on storage that grows at its end and is truncated at its beginning.

    For one thread; it has one update at a time. There is no I/O here: an operation that needs a
    page that is neither in the cache nor in ``held`` returns a tuple ``(offset, length, level)``.
    The caller reads ``length`` bytes at ``offset``, gives them to ``admit``, and repeats the call;
    it may put the result of ``admit`` into ``held`` by its offset, so that a small cache cannot
    lose the page before the operation is done. ``level`` is only for ``admit``, which raises
    ``CorruptPageError`` with the offset of wrong bytes.

    Leaves and index pages have at most ``leaf_bytes_max`` and ``index_bytes_max`` bytes (a leaf of
    0 bytes stands for 1 KiB, or for 32 records if these are longer). With ``compaction``, every
    update moves the lowest leaf, and more leaves while the tree takes more than ``retained_ratio``
    times the room of its pages (0 stands for: never more).

    Most updates write leaves and a delta, which records the changes of the index. An update writes
    the changed index pages when all deltas since the last time would take more than
    ``delta_bytes_max`` (0 stands for: every update writes them), or when more than half of
    ``live_bytes`` was written. Until then these pages are kept in memory, outside of the cache. A
    restored tree first requests the deltas.
    """

    def __init__(
        self,
        cache: PageCache,
        *,
        key_length: int = 16,
        leaf_bytes_max: int = 0,
        index_bytes_max: int = 32768,
        compaction: bool = True,
        retained_ratio: float = 2.5,
        delta_bytes_max: int = 262144,
    ) -> None: ...
    @property
    def key_length(self) -> int: ...
    @property
    def cache(self) -> PageCache: ...
    @property
    def footer(self) -> Footer:
        """Return the footer of the last committed update, or that of the empty tree."""

    @property
    def end(self) -> int:
        """Return the offset of the next update."""

    def restore(self, footer: Footer | None, *, end: int) -> None:
        """Set the tree to the footer's, or to the empty one; the next update begins at ``end``.

        ``end`` may lie after the footer, when bytes were written there that do not count.
        """

    def admit(self, data: Buffer, *, offset: int, length: int, level: int) -> bytes:
        """Check a page that was read, cache it, and return it."""

    def find(
        self, key: bytes, held: dict[int, bytes] | None = None
    ) -> int | tuple[int, int, int] | None:
        """Return a key's value or None, or as a tuple the page that must be read first."""

    def find_many(
        self, keys: Iterable[bytes], held: dict[int, bytes] | None = None
    ) -> tuple[list[int | None], list[tuple[int, int, int]]]:
        """Return the values of keys, in their order, and the pages that must be read first.

        The values are valid if no page is missing.
        """

    def scan(
        self, first: bytes, last: bytes, *, limit: int, held: dict[int, bytes] | None = None
    ) -> tuple[list[tuple[bytes, int]], bytes | None, list[tuple[int, int, int]]]:
        """Return entries of one leaf with keys from ``first`` to ``last``, both included.

        Returns ``(entries, resume, missing)``: at most ``limit`` entries, the key to continue from
        (None at the end), and the pages that must be read before another try.
        """

    def prepare(
        self, batch: Batch, held: dict[int, bytes] | None = None
    ) -> Update | list[tuple[int, int, int]] | None:
        """Return the ``Update`` for a batch, or None if the batch changes nothing.

        Returns a list instead if these pages must be read first. The tree does not change.
        """

    def commit(self, update: Update) -> None:
        """Replace the tree by that of an update whose data were written at their offset.

        Raises ``ValueError`` if the update was not the last one prepared for this tree.
        """
