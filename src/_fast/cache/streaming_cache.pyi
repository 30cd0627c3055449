from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

BLOCK_LENGTH: int
"""Bytes of one block."""

BUFFER_LENGTH: int
"""Bytes of one buffer: 512 blocks, the first of which holds their metadata."""

ENTRY_BYTES_MAX: int
"""Maximum length, in bytes, of an entry."""

CAPACITY_BYTES_MAX: int
"""Maximum size, in bytes, of a cache."""

class CacheFullError(MemoryError):
    """There is no room for the bytes, even after the cleanup callback; nothing was changed."""

class EntryMissingError(ValueError):
    """No entry has this address; nothing was changed."""

class CacheCorruptedError(RuntimeError):
    """Something has overwritten the cache's metadata. Afterwards every call raises this."""

@final
class StreamingCache:
    """Bytes in chains of blocks, by the address of the last block.

    ``capacity_bytes`` is a hard bound, in whole buffers, metadata included; it is rounded down. The
    first entry allocates the first memory, and none is freed before the cache goes away.

    ``on_full`` is called when there is no room; it frees entries and returns whether it freed any.
    It may use the cache, but is not called again meanwhile. The operation raises ``CacheFullError``
    in such a call, after a call without success, and after five calls that did not free enough. It
    passes on what ``on_full`` raises.

    An address is valid until its entry is deleted or replaced, or until an append returns another
    one; afterwards another entry may get it. All operations are for one thread at a time; they
    raise ``RuntimeError`` when another one runs. Views may go away in any thread. Every operation
    with an address raises ``EntryMissingError`` when there is no such entry. Buffers in arguments
    must be contiguous.
    """

    def __init__(
        self, capacity_bytes: int, on_full: Callable[[], object] | None = None
    ) -> None: ...
    @property
    def capacity_bytes(self) -> int:
        """Return the hard bound of the memory that the cache uses, metadata included."""

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of data in entries, and in deleted entries that have views."""

    @property
    def used_bytes(self) -> int:
        """Return the bytes of blocks of such entries, and of the metadata of touched buffers."""

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of touched buffers: they stay with the process."""

    @property
    def pinned_count(self) -> int:
        """Return how many entries, deleted or not, have views."""

    @property
    def on_full(self) -> Callable[[], object] | None:
        """Return the function that is called when there is no room, or None."""

    @on_full.setter
    def on_full(self, callback: Callable[[], object] | None) -> None: ...
    def insert(self, data: Buffer) -> int:
        """Copy ``data`` into a new entry and return its address.

        Raises ``CacheFullError``, and ``ValueError`` when it is longer than an entry can be.
        """

    def append(self, address: int, data: Buffer) -> int:
        """Extend the entry in place; return its new address.

        Raises as ``insert`` does; ``EntryMissingError`` also when ``on_full`` deleted the entry.
        """

    def replace(self, address: int, data: Buffer) -> int:
        """Replace an entry's bytes with ``data``; return its new address.

        Needs room for both at once. Raises as ``append`` does.
        """

    def delete(self, address: int) -> int:
        """Free an entry and return how many bytes of data it held."""

    def length(self, address: int) -> int:
        """Return the number of bytes of the entry."""

    def get(self, address: int, position: int = 0, length: int = -1) -> bytes:
        """Return a copy of ``length`` bytes (of all that follow, when -1) from ``position`` on.

        Raises ``IndexError`` when the entry does not have them.
        """

    def get_into(self, address: int, target: Buffer, position: int = 0) -> int:
        """Copy bytes from ``position`` on into ``target``; return their number.

        Copies up to the end of the entry or of ``target``. Raises ``IndexError`` when ``position``
        is after the entry's end.
        """

    def views(self, address: int, position: int = 0, length: int = -1) -> list[memoryview]:
        """Return a range of the entry as read-only memory views, in order, without a copy.

        Returns one view for each run of neighbouring blocks; one empty view for an empty range.
        Views do not change: later appends do not show in them, and a deleted entry's memory is
        freed only when the last of its views is gone. Raises ``IndexError`` as ``get`` does.
        """

    def check(self) -> None:
        """Raise ``CacheCorruptedError`` if the metadata break an invariant. Slow: for tests."""
