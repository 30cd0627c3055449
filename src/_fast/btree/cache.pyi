from typing import final

@final
class PageCache:
    """Pages of any number of trees in at most ``bytes_max`` bytes.

    Leaves that were not used for long are evicted first; index pages when no leaf is left.
    Not for several threads at once.
    """

    def __init__(self, bytes_max: int) -> None: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def used_bytes(self) -> int:
        """Return the bytes of the pages and of their management."""

    @property
    def memory_bytes(self) -> int:
        """Return how much memory was allocated; the pages use most."""

    @property
    def page_count(self) -> int: ...
    @property
    def hit_count(self) -> int:
        """Return the number of lookups that found their page."""

    @property
    def miss_count(self) -> int:
        """Return the number of lookups that did not find their page."""
