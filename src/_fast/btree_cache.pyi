from typing import final

@final
class PageCache:
    """Pages of any number of trees in at most ``bytes_max`` bytes.

    Leaves that were not used for long go first; index pages go when no leaf is left.
    Not for several threads at once.
    """

    def __init__(self, bytes_max: int) -> None: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def used_bytes(self) -> int:
        """Return the number of bytes of the pages, and what it costs to keep them."""

    @property
    def memory_bytes(self) -> int:
        """Return how much memory was asked for, of which the pages use the most."""

    @property
    def page_count(self) -> int: ...
    @property
    def hit_count(self) -> int:
        """Return how often a page that was looked for was there."""

    @property
    def miss_count(self) -> int:
        """Return how often a page that was looked for was not there."""
