from typing import final

from _fast.btree.page import Footer

@final
class Update:
    """The new pages for a batch of changes, and the tree that they lead to.

    The caller writes ``data`` at ``offset``, the end of the bytes written before. When all of it is
    durable, ``Tree.commit`` makes this tree the present one; a restart must find ``footer`` again.
    When the footer's place is durable, too, and no reader needs an older tree, all bytes before
    ``truncate_offset`` may be deleted.
    """

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes:
        """Return the bytes to write: pages, perhaps a delta, and the footer."""

    @property
    def length(self) -> int:
        """Return the number of bytes that the update writes."""

    @property
    def footer(self) -> Footer:
        """Return the footer at the end of ``data``."""

    @property
    def truncate_offset(self) -> int:
        """Return the offset before which the committed tree needs no byte.

        It never decreases from update to update.
        """

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of pages that are rewritten only because they were the lowest."""
