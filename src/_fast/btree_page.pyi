from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

PAGE_BYTES_MAX: int
"""The longest page in bytes."""

FOOTER_BYTES: int
"""Bytes of a footer."""

PAGE_HEADER_BYTES: int
"""Bytes of a page before its records."""

FOOTER_MAGIC: bytes
"""How a footer begins."""

class CorruptPageError(ValueError):
    """Bytes that should be a page, a delta or a footer are not; ``offset`` tells where they lie."""

    offset: int
    def __init__(self, offset: int, message: str) -> None: ...

@final
class Footer:
    """The end of an update: where the tree is and what it holds. Updates and ``parse`` make it."""

    @property
    def offset(self) -> int:
        """Where the footer itself lies."""

    @property
    def end(self) -> int:
        """The offset behind the footer."""

    @property
    def update_offset(self) -> int:
        """Where the update begins that the footer ends."""

    @property
    def root_offset(self) -> int: ...
    @property
    def root_length(self) -> int: ...
    @property
    def root_level(self) -> int:
        """0 when the root is a leaf, -1 when the tree is empty."""

    @property
    def min_offset(self) -> int:
        """Nothing before this offset is needed to read the tree."""

    @property
    def key_length(self) -> int: ...
    @property
    def entry_count(self) -> int: ...
    @property
    def leaf_count(self) -> int: ...
    @property
    def index_count(self) -> int:
        """How many index pages the tree has."""

    @property
    def live_bytes(self) -> int:
        """Bytes of all pages of the tree."""

    @property
    def update_number(self) -> int:
        """How many updates led to this tree."""

    @property
    def delta_offset(self) -> int:
        """Where the last delta lies, when there is one."""

    @property
    def delta_length(self) -> int: ...
    @property
    def delta_number(self) -> int:
        """How many updates since the one that wrote the index; 0 when this one did."""

    @property
    def pages_sum(self) -> int:
        """The sum over the update's pages and its delta that ``sum_pages`` computes."""

    def encode(self) -> bytes:
        """The footer's bytes."""

    @staticmethod
    def parse(data: Buffer, *, offset: int) -> Footer:
        """The footer whose bytes these are, which lie at ``offset``; or ``CorruptPageError``."""

_LeafRecord = tuple[bytes, int]
_IndexRecord = tuple[bytes, int, int, int]

def unpack_page(
    data: Buffer, *, offset: int, key_length: int = 16
) -> tuple[int, list[_LeafRecord] | list[_IndexRecord]]:
    """The level of a page and its records: ``(level, records)``; or ``CorruptPageError``.

    A leaf's record is ``(key, value)``; that of an index page, whose level is not 0, is
    ``(key, offset, length, min_offset)``.
    """

def pack_page(
    level: int,
    records: Sequence[_LeafRecord] | Sequence[_IndexRecord],
    *,
    offset: int,
    key_length: int = 16,
) -> bytes:
    """A page with these records, which ascend by key; the opposite of ``unpack_page``."""

def sum_pages(data: Buffer, *, offset: int, key_length: int, value: int = 0) -> tuple[int, int]:
    """Check the whole pages and deltas at the beginning of ``data``, which lies at ``offset``.

    Returns how many bytes they have, and the sum of an update's pages, going on from ``value``.
    Raises ``CorruptPageError``.
    """
