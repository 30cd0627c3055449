from collections.abc import Callable

from typing_extensions import Buffer

INVALID: int
"""The next batch is not valid."""

MARK: int
"""The next batch has no records: it marks the journal's end."""

INCOMPLETE: int
"""``BatchScan.bytes_wanted`` bytes from ``end_offset`` on are needed to continue."""

END: int
"""The last valid batch has the file's END record."""

class EntryIndex:
    """The places of one container's entries in one file, in order of their positions."""

    def __init__(self, first_position: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def first_position(self) -> int: ...
    @property
    def end_position(self) -> int:
        """Return the position after the last entry."""

    @property
    def byte_count(self) -> int:
        """Return the number of bytes of all entries."""

    @property
    def groups(self) -> list[list[int]]:
        """Return [first position, bytes] of groups of consecutive entries, at least 64 KiB in each
        but the last."""

    @property
    def places_bytes(self) -> bytes:
        """Return the places of the entries, four bytes each in the machine's order, for
        ``restored``."""

    @staticmethod
    def restored(first_position: int, places: bytes, groups: list[tuple[int, int]]) -> EntryIndex:
        """Return an index from its packed bytes. Raises ``ValueError`` for other bytes."""

    def offset_of(self, position: int) -> int:
        """Return the file offset of an entry's record; raises ``IndexError`` when it has none."""

class BatchScan:
    """Scans a file's batches, window by window."""

    def __init__(
        self,
        *,
        generation: int,
        salt: int,
        offset: int,
        digest: Callable[[memoryview], bytes | None] | None = None,
    ) -> None:
        """Make a scanner; it calls ``digest`` with a view of each valid entry, which then
        expires."""

    @property
    def end_offset(self) -> int:
        """Return the file offset after the last valid batch."""

    @property
    def next_number(self) -> int:
        """Return the number that the batch after it must have; 0 before the first valid one."""

    @property
    def controls(self) -> list[tuple[int, int, int, int]]:
        """Return the records besides entries: (kind, container id, epoch, position)."""

    @property
    def indexes(self) -> dict[int, EntryIndex]:
        """Return the entries by container id."""

    @property
    def digests(self) -> dict[int, list[bytes | None]]:
        """Return the results of ``digest`` for each entry, by container id."""

    @property
    def bytes_wanted(self) -> int:
        """Return how many bytes from ``end_offset`` on are needed after ``INCOMPLETE``."""

    @property
    def misplaced(self) -> tuple[int, int, int, int] | None:
        """Return the first entry out of order: (offset, container id, its position, expected)."""

    def run(self, data: Buffer) -> int:
        """Scan ``data``, the file's bytes from ``end_offset`` on; return why it stopped."""

def read_entries(
    data: Buffer,
    offset: int,
    index: EntryIndex,
    *,
    start: int,
    end: int,
    container_id: int,
    salt: int,
) -> tuple[list[bytes], int]:
    """Read the entries from position ``start`` on that lie whole in ``data``.

    ``data`` is the file's bytes from ``offset``, which is not after the first requested entry.
    Returns the entries, and how many bytes from the next entry's offset on are needed to continue:
    0 when position ``end`` is reached, -1 when the next entry is damaged.
    """
