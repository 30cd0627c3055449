from collections.abc import Iterable, Mapping
from typing import final

from typing_extensions import Buffer

NULL_VALUE: int
"""The value that removes a key: -2**63."""

@final
class Batch:
    """Changes for ``Tree.prepare``: pairs of key and value, a mapping, or packed changes.

    A value is an integer of 64 bits, or None (or ``NULL_VALUE``) to remove the key. Of several
    changes of a key the last one counts. Packed changes are keys with their values as 8 bytes, big
    endian, one after the other. Raises ``ValueError`` where a key has another length, and
    ``OverflowError`` where a value does not fit.
    """

    def __init__(
        self,
        key_length: int,
        changes: Buffer | Mapping[bytes, int | None] | Iterable[tuple[bytes, int | None]],
    ) -> None: ...
    @property
    def key_length(self) -> int: ...
    @property
    def count(self) -> int:
        """Return how many keys the batch changes."""

    def __len__(self) -> int: ...
    def pack(self) -> bytes:
        """Return the changes as packed bytes, in the order of their keys."""
