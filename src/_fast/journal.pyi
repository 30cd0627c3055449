from collections.abc import Callable

from typing_extensions import Buffer

INVALID: int
"""The next batch does not pass."""

MARK: int
"""The next batch has no records: it marks the journal's end."""

INCOMPLETE: int
"""``BatchScan.bytes_wanted`` bytes from ``end_offset`` on are needed to go on."""

END: int
"""The last batch that passed has the file's END record."""

class EntryIndex:
    """Where the entries of one container lie in one file, in order of their positions."""

    def __init__(self, first_position: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def first_position(self) -> int: ...
    @property
    def end_position(self) -> int:
        """The position behind the last entry."""

    @property
    def byte_count(self) -> int:
        """Bytes of all entries."""

    @property
    def groups(self) -> list[list[int]]:
        """[first position, bytes] of consecutive entries, at least 64 KiB in each but the last."""

    @property
    def places_bytes(self) -> bytes:
        """The places of the entries, four bytes each in the machine's order, for ``restored``."""

    @staticmethod
    def restored(first_position: int, places: bytes, groups: list[tuple[int, int]]) -> EntryIndex:
        """An index as it was; ``ValueError`` for what is none."""

    def offset_of(self, position: int) -> int:
        """The file offset of an entry's record; ``IndexError`` when it has none."""

class BatchScan:
    """Goes through a file's batches, window by window."""

    def __init__(
        self,
        *,
        generation: int,
        salt: int,
        offset: int,
        digest: Callable[[memoryview], bytes | None] | None = None,
    ) -> None:
        """``digest`` gets each entry that passes; what it is given is gone when it returns."""

    @property
    def end_offset(self) -> int:
        """The file offset behind the last batch that passed."""

    @property
    def next_number(self) -> int:
        """The number of the batch that would follow it; 0 as long as none passed."""

    @property
    def controls(self) -> list[tuple[int, int, int, int]]:
        """The records besides entries: (kind, container id, epoch, position)."""

    @property
    def indexes(self) -> dict[int, EntryIndex]:
        """The entries by container id."""

    @property
    def digests(self) -> dict[int, list[bytes | None]]:
        """What ``digest`` returned for each of the entries, by container id."""

    @property
    def bytes_wanted(self) -> int:
        """How many bytes from ``end_offset`` on are needed after ``INCOMPLETE``."""

    @property
    def misplaced(self) -> tuple[int, int, int, int] | None:
        """(offset, container id, position, expected position) of the first entry out of turn."""

    def run(self, data: Buffer) -> int:
        """Go through ``data``, the file's bytes from ``end_offset`` on; why it stopped."""

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

    ``data`` is the file's bytes from ``offset``, which is not behind the first entry wanted.
    Returns the entries and how many bytes from the next entry's offset on are wanted to go on:
    0 when position ``end`` is reached, -1 when the next entry is damaged.
    """
