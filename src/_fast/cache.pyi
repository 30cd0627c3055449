from collections.abc import Callable

from typing_extensions import Buffer

BLOCK_LENGTH: int
"""Bytes of one block."""

BUFFER_LENGTH: int
"""Bytes of one buffer: 512 blocks, the first of which holds their metadata."""

ENTRY_BYTES_MAX: int
"""The longest entry in bytes."""

CAPACITY_BYTES_MAX: int
"""The largest cache in bytes."""

class CacheFullError(MemoryError):
    """No room for the bytes, even after the cleanup callback; nothing was changed."""

class StreamingCache:
    """Bytes in chains of blocks, by the address of the last block. Used from one thread at a time.

    ``capacity_bytes`` is a hard bound, in whole buffers, metadata included. ``on_full`` is called
    when there is no room; it frees entries and returns whether it did.
    """

    def __init__(
        self, capacity_bytes: int, on_full: Callable[[], bool] | None = None
    ) -> None: ...
    @property
    def capacity_bytes(self) -> int:
        """The hard bound of the memory that the cache uses, metadata included."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of data in entries."""

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks that hold entries, and of the metadata blocks of touched buffers."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the buffers that were touched so far."""

    @property
    def pinned_count(self) -> int:
        """How many entries have views."""

    def insert(self, data: Buffer) -> int:
        """Copy ``data`` into a new entry and return its address, else ``CacheFullError``."""

    def append(self, address: int, data: Buffer) -> int:
        """Extend the entry in place; returns its address from now on."""

    def replace(self, address: int, data: Buffer) -> int:
        """Put ``data`` in the place of an entry's bytes; returns its address from now on."""

    def delete(self, address: int) -> int:
        """Free an entry and return how many bytes of data it held."""

    def length(self, address: int) -> int:
        """How many bytes the entry holds."""

    def get(self, address: int, position: int = 0, length: int = -1) -> bytes:
        """Copy ``length`` bytes (all that follow, when -1) out, from ``position`` on."""

    def get_into(self, address: int, target: Buffer, position: int = 0) -> int:
        """Copy bytes from ``position`` on into ``target``; returns how many there were."""

    def views(self, address: int) -> list[memoryview]:
        """The entry's bytes as read-only memory views, without a copy.

        They stay what they are: later appends do not show in them, and deleting the entry frees
        its memory only when the last of them is gone.
        """

    def check(self) -> None:
        """Raise ``AssertionError`` where the metadata breaks an invariant."""
