from typing import final

from typing_extensions import Buffer

PAGE_BYTES_MAX: int
"""Maximum length, in bytes, of a page."""

FOOTER_BYTES: int
"""Bytes of a footer."""

PAGE_HEADER_BYTES: int
"""Bytes of a page before its records."""

FOOTER_MAGIC: bytes
"""The bytes with which a footer begins."""

class CorruptPageError(ValueError):
    """Bytes that should be a page, a delta or a footer are not; ``offset`` is their place."""

    offset: int
    def __init__(self, offset: int, message: str) -> None: ...

@final
class Footer:
    """The end of an update: the place of the tree's root, and totals of the tree."""

    @property
    def offset(self) -> int:
        """Return the offset of the footer itself."""

    @property
    def end(self) -> int:
        """Return the offset after the footer."""

    @property
    def update_offset(self) -> int:
        """Return the offset of the update that the footer ends."""

    @property
    def root_offset(self) -> int: ...
    @property
    def root_length(self) -> int: ...
    @property
    def root_level(self) -> int:
        """Return the level of the root: 0 when it is a leaf, -1 when the tree is empty."""

    @property
    def min_offset(self) -> int:
        """Return the offset before which the tree needs no byte."""

    @property
    def key_length(self) -> int: ...
    @property
    def entry_count(self) -> int: ...
    @property
    def leaf_count(self) -> int: ...
    @property
    def index_count(self) -> int:
        """Return the number of index pages of the tree."""

    @property
    def live_bytes(self) -> int:
        """Return the number of bytes of all pages of the tree."""

    @property
    def update_number(self) -> int:
        """Return the number of updates that led to this tree."""

    @property
    def delta_offset(self) -> int:
        """Return the offset of the last delta, when there is one."""

    @property
    def delta_length(self) -> int: ...
    @property
    def delta_number(self) -> int:
        """Return the number of updates since the one that wrote the index; 0 for that one."""

    @property
    def pages_sum(self) -> int:
        """Return the sum over the sums of the update's pages and its delta."""

    def encode(self) -> bytes:
        """Return the footer's bytes."""

    @staticmethod
    def parse(data: Buffer, *, offset: int) -> Footer:
        """Return the footer in these bytes, which are at ``offset``; raises
        ``CorruptPageError``."""
