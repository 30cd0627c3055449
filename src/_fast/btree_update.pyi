from typing import final

from _fast.btree_page import Footer

@final
class Update:
    """The pages that a batch of changes leads to, and the tree as it will be.

    The caller writes ``data`` at ``offset``, which is the end of what was
    written before. When all of it is durable, ``Tree.commit`` makes it the tree; the footer that
    has to be found again after a restart is ``footer``. When that is durable too, and no reader
    needs an older tree, everything before ``truncate_offset`` may go.
    """

    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes:
        """Return the bytes to write: pages, perhaps a delta, and the footer."""

    @property
    def length(self) -> int:
        """Return how many bytes the update writes."""

    @property
    def footer(self) -> Footer:
        """Return the footer at the end of ``data``."""

    @property
    def truncate_offset(self) -> int:
        """Return the offset before which nothing is needed once the update is committed.

        It never decreases from update to update.
        """

    @property
    def moved_bytes(self) -> int:
        """Return the number of bytes of pages that are written again only because they lay
        lowest."""
