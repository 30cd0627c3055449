from collections.abc import Iterable
from typing import final

from typing_extensions import Buffer

from _fast.btree_batch import NULL_VALUE as NULL_VALUE
from _fast.btree_batch import Batch as Batch
from _fast.btree_cache import PageCache as PageCache
from _fast.btree_page import FOOTER_BYTES as FOOTER_BYTES
from _fast.btree_page import FOOTER_MAGIC as FOOTER_MAGIC
from _fast.btree_page import PAGE_BYTES_MAX as PAGE_BYTES_MAX
from _fast.btree_page import CorruptPageError as CorruptPageError
from _fast.btree_page import Footer as Footer
from _fast.btree_update import Update as Update

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
    """One B+Tree on storage that grows at its end and is cut off at its beginning.

    Not for several threads at once; one update at a time. There is no I/O here: wherever a page is
    needed that is neither in the cache nor in ``held``, the answer says so with a tuple
    ``(offset, length, level)``. The caller reads ``length`` bytes at ``offset``, gives them to
    ``admit``, and asks again; what ``admit`` returns may be put into ``held`` by its offset, so
    that a small cache cannot lose it before the operation is through. ``level`` is only for
    ``admit``. Wrong bytes raise ``CorruptPageError`` from ``admit``, which names their offset.

    Leaves and index pages get up to ``leaf_bytes_max`` and ``index_bytes_max`` long (a leaf of 0
    bytes stands for one of 1 KiB, or of 32 records where that is more). With ``compaction``, every
    update moves the lowest leaf, and more of them while the tree takes more than ``retained_ratio``
    times the room of its pages (0 stands for: never more).

    Most updates write leaves and a delta, which tells how the index changes; an update writes the
    changed pages of the index where all deltas since would take more than ``delta_bytes_max`` (0
    stands for: every update writes them), or where more than half of ``live_bytes`` was written.
    Until then these pages are kept in memory, outside of the cache. A restored tree first asks for
    the deltas.
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
        """Return the footer of the last committed update; of the empty tree when there was none."""

    @property
    def end(self) -> int:
        """Return where the next update begins."""

    def restore(self, footer: Footer | None, *, end: int) -> None:
        """Set the tree to that of the footer, or to the empty one; the next update begins at
        ``end``.

        ``end`` may lie behind the footer, when something was written there that does not count.
        """

    def admit(self, data: Buffer, *, offset: int, length: int, level: int) -> bytes:
        """Check a page that was read, cache it, and return it."""

    def find(
        self, key: bytes, held: dict[int, bytes] | None = None
    ) -> int | tuple[int, int, int] | None:
        """Return a key's value, or None; or the page that is needed first, as a tuple."""

    def find_many(
        self, keys: Iterable[bytes], held: dict[int, bytes] | None = None
    ) -> tuple[list[int | None], list[tuple[int, int, int]]]:
        """Return the values of keys, in their order, and the pages that are needed first.

        Values count when no page is missing.
        """

    def scan(
        self, first: bytes, last: bytes, *, limit: int, held: dict[int, bytes] | None = None
    ) -> tuple[list[tuple[bytes, int]], bytes | None, list[tuple[int, int, int]]]:
        """Return entries of one leaf with keys from ``first`` to ``last``, both included.

        Returns ``(entries, resume, missing)``: at most ``limit`` entries, the key from which to go
        on (None at the end), and the pages that are needed first: when there are any, try again.
        """

    def prepare(
        self, batch: Batch, held: dict[int, bytes] | None = None
    ) -> Update | list[tuple[int, int, int]] | None:
        """Return what a batch leads to: an ``Update``, or None if it changes nothing.

        Or a list of the pages that are needed first. Nothing happens to the tree.
        """

    def commit(self, update: Update) -> None:
        """Set the tree to the one that an update leads to, whose data were written where they
        belong.

        Raises ``ValueError`` if the update was not the last one prepared for this tree.
        """
