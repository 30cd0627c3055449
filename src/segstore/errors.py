"""The errors of the segment store.

Owns: each error that one module of ``segstore`` raises for another.

An error is a ``SegmentError`` (a request about one segment cannot be served), a ``ContainerError``
(a container cannot serve now), a ``DataLogError`` (tier 1), a ``StorageError`` (tier 2), or an
error with which the process does not start. An error that is also a ``PermanentError`` means that
another attempt fails, too, unless an operator or tier 2 changes something. Errors have facts as
attributes; one table in the request handlers makes the reply of the wire protocol from each.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class SegmentStoreError(Exception):
    """The base of all errors of the segment store."""


class SegmentError(SegmentStoreError):
    """A request about one segment cannot be served. ``segment`` is its name."""

    def __init__(self, segment: str, message: str = "") -> None:
        super().__init__(message or f"{type(self).__name__}: {segment}")
        self.segment = segment


class NoSuchSegmentError(SegmentError):
    """The segment does not exist, or was deleted or merged into another one."""


class SegmentExistsError(SegmentError):
    """A segment with the name exists already."""


class SegmentSealedError(SegmentError):
    """The segment is sealed and takes no more data."""


class SegmentTruncatedError(SegmentError):
    """The offset lies before the segment's start offset, or the segment cannot be truncated at
    it."""

    def __init__(self, segment: str, *, start_offset: int) -> None:
        super().__init__(segment, f"{segment} is truncated at offset {start_offset}")
        self.start_offset = start_offset


class BadOffsetError(SegmentError):
    """The segment has another length than a conditional operation expects."""

    def __init__(self, segment: str, *, expected: int, actual: int) -> None:
        super().__init__(segment, f"{segment}: expected length {expected}, it is {actual}")
        self.expected = expected
        self.actual = actual


class BadAttributeUpdateError(SegmentError):
    """The condition of an attribute update fails."""

    def __init__(self, segment: str, attribute_id: bytes, *, previous_value_missing: bool) -> None:
        super().__init__(segment, f"{segment}: attribute {attribute_id.hex()} did not match")
        self.attribute_id = attribute_id
        self.previous_value_missing = previous_value_missing


class WrongHostError(SegmentError):
    """The segment's container is not assigned to this process."""


class InvalidRequestError(SegmentError):
    """The arguments of the request are invalid for the segment."""


class UnsupportedRequestError(SegmentError):
    """The segment's kind does not support the request."""


class TableNotEmptyError(SegmentError):
    """A table that a request requires to be empty has entries."""


class TableKeyMissingError(SegmentError):
    """A conditional update of a table expects a version of a key that the table does not have."""


class TableKeyVersionError(SegmentError):
    """A conditional update of a table expects another version than the key has."""


class ContainerError(SegmentStoreError):
    """A container cannot serve now."""


class ContainerOfflineError(ContainerError):
    """The container has stopped or failed, or is recovering. The client has to reconnect and try
    again."""


class PermanentError(SegmentStoreError):
    """A container cannot be opened, and another attempt will fail, too, until an operator changes
    something."""


class NoContainerLeftError(PermanentError):
    """Each container of the process failed with a ``PermanentError``, so the process has nothing to
    serve."""


class DataLogError(SegmentStoreError):
    """Tier 1 failed. It is unknown whether operations in flight are durable, so the container stops
    and has to recover."""


class JournalDamagedError(DataLogError):
    """The journal of a container is damaged. It is opened again from time to time while other
    journals of the process are good."""


class LogBehindError(PermanentError, DataLogError):
    """Tier 2 has operations that the log never had: the log is an older copy, or was lost."""


class DataLogCorruptError(PermanentError, DataLogError):
    """Tier 1 has damaged bytes, which a crash alone does not leave. The message has the file and
    the offset."""


class StorageError(SegmentStoreError):
    """Tier 2 failed. The storage writer tries again."""


class StorageFullError(StorageError):
    """Tier 2 has no space left, or a quota is used up. There may be space again at any time.

    ``reason`` is a sentence that is the same for all errors because of one full disk or quota.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class StorageConfigurationError(StorageError):
    """Tier 2 cannot be used as it is configured. Nothing was changed."""


class StorageUnreachableError(StorageError):
    """Tier 2 could not be reached when the process started."""


class StorageAbsentError(StorageError):
    """Tier 2 lacks objects that it had: it was emptied, replaced or unmounted, or shows an earlier
    state. They may come back, so callers try again."""


class StorageDamagedError(PermanentError, StorageError):
    """Tier 2 lacks bytes that it had, or its metadata are damaged. The message has the chunk."""


class FencedOutError(PermanentError, StorageError):
    """A later owner of the container has claimed its chunks, so this one may not change them any
    more."""


class EpochUsedError(PermanentError, StorageError):
    """Tier 2 has chunks of this epoch already, so the log has lost its record of that epoch."""


class ChunkNotFoundError(StorageError):
    """Tier 2 has no chunk of that name."""


class InvalidChunkOffsetError(StorageError):
    """A chunk was to be written or read at an offset outside of it."""


class DamageKind(StrEnum):
    """The kind of damage of a chunk."""

    CHECKSUM = "checksum"
    SHORT = "short"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    FOREIGN = "foreign"
    LOST = "lost"


class ChunkDamagedError(StorageError):
    """A chunk does not have the bytes that were written to it, in the block at ``offset``."""

    def __init__(self, message: str, *, kind: DamageKind, offset: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset


class BytesLostError(ChunkDamagedError):
    """The bytes of a segment up to ``lost_end`` are lost; ``segstore recover`` recorded that."""

    def __init__(self, segment: str, start: int, lost_end: int) -> None:
        super().__init__(
            f"the bytes from {start} to {lost_end} of {segment.partition('.S-')[0]} were lost:"
            f" truncate it at {lost_end}, or begin to read there",
            kind=DamageKind.LOST,
            offset=0,
        )
        self.lost_start, self.lost_end = start, lost_end

    def moved_to(self, target: str, offset: int) -> BytesLostError:
        """Return the error for the segment into which the lost bytes were merged at ``offset``."""
        return BytesLostError(target, self.lost_start + offset, self.lost_end + offset)


class TooFewDescriptorsError(SegmentStoreError):
    """The limit of open files of the process is lower than a segment store needs."""


class DataDirectoryError(SegmentStoreError):
    """The data directory cannot be used: it is of another version, in use, or read-only. It was not
    changed."""


class DataDirectoryInUseError(DataDirectoryError):
    """Another process holds the lock in the data directory that this one needs."""


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in nested exception groups, or the error itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error


class IdentityProblem(StrEnum):
    """The reason why a tier does not belong to the data directory with which a store was
    started."""

    MISSING = "missing"
    """The tier is missing, or has no identity."""
    FOREIGN = "foreign"
    """The tier belongs to another store."""
    OLDER = "older"
    """The tier is an earlier state of the right one, and lacks records that other tiers refer
    to."""
    CLAIMED = "claimed"
    """Another copy of the data directory has used tier 2, or may still use it."""
    CHANGED = "changed"
    """The version file was changed by hand."""


class IdentityError(DataDirectoryError):
    """A tier does not belong to the data directory. Nothing was changed.

    ``tier`` is ``"tier 2"`` or ``"journal <n>"``.
    """

    def __init__(self, message: str, *, tier: str, problem: IdentityProblem) -> None:
        super().__init__(message)
        self.tier = tier
        self.problem = problem
