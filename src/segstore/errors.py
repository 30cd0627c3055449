"""The error tree of the segment store.

Owns: every error that crosses a module border inside ``segstore``.

Invariants:
1. The tree is shallow: an error is a ``SegmentError`` (a request about one segment cannot be
   served), a ``ContainerError`` (a container cannot serve now), a ``DataLogError`` (tier 1), a
   ``StorageError`` (tier 2), or one of those with which the process must not start. Those of them
   that are also ``PermanentError`` mean that another attempt cannot help.
2. Errors carry facts, not replies: one table in the request handlers turns each into its reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class SegmentStoreError(Exception):
    """Anything the segment store can refuse or fail at."""


class SegmentError(SegmentStoreError):
    """A request about one segment cannot be served; names that segment."""

    def __init__(self, segment: str, message: str = "") -> None:
        super().__init__(message or f"{type(self).__name__}: {segment}")
        self.segment = segment


class NoSuchSegmentError(SegmentError):
    """The segment does not exist, or was deleted or merged away."""


class SegmentExistsError(SegmentError):
    """A segment of that name exists already."""


class SegmentSealedError(SegmentError):
    """The segment takes no more data."""


class SegmentTruncatedError(SegmentError):
    """The offset lies before the segment's start, or outside what a truncation may name."""

    def __init__(self, segment: str, *, start_offset: int) -> None:
        super().__init__(segment, f"{segment} is truncated at offset {start_offset}")
        self.start_offset = start_offset


class BadOffsetError(SegmentError):
    """A conditional operation expected another length of the segment."""

    def __init__(self, segment: str, *, expected: int, actual: int) -> None:
        super().__init__(segment, f"{segment}: expected length {expected}, it is {actual}")
        self.expected = expected
        self.actual = actual


class BadAttributeUpdateError(SegmentError):
    """An attribute update's condition does not hold."""

    def __init__(self, segment: str, attribute_id: bytes, *, previous_value_missing: bool) -> None:
        super().__init__(segment, f"{segment}: attribute {attribute_id.hex()} did not match")
        self.attribute_id = attribute_id
        self.previous_value_missing = previous_value_missing


class WrongHostError(SegmentError):
    """The segment's container is not assigned to this process."""


class InvalidRequestError(SegmentError):
    """The request's arguments make no sense for the segment (the peer's illegal argument)."""


class UnsupportedRequestError(SegmentError):
    """The segment's kind does not support the request."""


class TableNotEmptyError(SegmentError):
    """A table segment that had to be empty holds entries."""


class TableKeyMissingError(SegmentError):
    """A conditional table update named a version of a key that does not exist."""


class TableKeyVersionError(SegmentError):
    """A conditional table update named another version than the key has."""


class ContainerError(SegmentStoreError):
    """A container cannot serve now."""


class ContainerOfflineError(ContainerError):
    """The container is stopped, recovering or failed; the client shall reconnect and try again."""


class PermanentError(SegmentStoreError):
    """A container cannot be opened, and another attempt cannot help: an operator has to decide."""


class NoContainerLeftError(PermanentError):
    """Every container of the process met a ``PermanentError``: there is nothing left to serve."""


class DataLogError(SegmentStoreError):
    """Tier 1 failed: what was in flight may or may not be durable, so the container stops."""


class JournalDamagedError(DataLogError):
    """A container's journal is damaged, and is tried again for as long as others can be served."""


class LogBehindError(PermanentError, DataLogError):
    """Tier 2 has what the log never had: the log is an older copy, or was lost."""


class DataLogCorruptError(PermanentError, DataLogError):
    """Tier 1 holds bytes that no crash explains; names the file and the offset."""


class StorageError(SegmentStoreError):
    """Tier 2 failed; the storage writer tries again."""


class StorageConfigurationError(StorageError):
    """Tier 2 cannot be used as configured, and trying again cannot help; nothing was changed."""


class StorageUnreachableError(StorageError):
    """Tier 2 could not be reached when the process started."""


class StorageDamagedError(PermanentError, StorageError):
    """Tier 2 lacks bytes that it had, or its metadata are damaged; names the chunk."""


class FencedOutError(PermanentError, StorageError):
    """A later owner of the container has claimed its chunks; this one changes nothing more."""


class EpochUsedError(PermanentError, StorageError):
    """Tier 2 has chunks of this epoch already: the log has lost that it was opened under it."""


class ChunkNotFoundError(StorageError):
    """Tier 2 has no chunk of that name."""


class InvalidChunkOffsetError(StorageError):
    """A chunk was written or read at an offset that it does not have."""


class DamageKind(StrEnum):
    """Damage of a chunk."""

    CHECKSUM = "checksum"
    SHORT = "short"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    FOREIGN = "foreign"


class ChunkDamagedError(StorageError):
    """A chunk has not the bytes that were written to it: in the block at ``offset``."""

    def __init__(self, message: str, *, kind: DamageKind, offset: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset


class TooFewDescriptorsError(SegmentStoreError):
    """The process may not open as many files as a segment store needs."""


class DataDirectoryError(SegmentStoreError):
    """The data directory cannot be used (other version, in use, read-only); it was not changed."""


class DataDirectoryInUseError(DataDirectoryError):
    """Another process plays the role in the data directory that this one wants to play."""


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in nested exception groups, or the error itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error


class IdentityProblem(StrEnum):
    """Problem with a tier that a store was started on."""

    MISSING = "missing"
    """Nothing is there, or what is there has no identity."""
    FOREIGN = "foreign"
    """The tier belongs to another store."""
    OLDER = "older"
    """The tier is an earlier state of the right one: what other tiers rely on is not in it."""
    CLAIMED = "claimed"
    """Another copy of the data directory has used tier 2, or may still use it."""
    CHANGED = "changed"
    """The version file was changed by hand."""


class IdentityError(DataDirectoryError):
    """A tier is not the one that belongs to the data directory. Nothing was changed.

    ``tier`` is ``"tier 2"`` or ``"journal <n>"``.
    """

    def __init__(self, message: str, *, tier: str, problem: IdentityProblem) -> None:
        super().__init__(message)
        self.tier = tier
        self.problem = problem
