"""The interface of a segment container for the request handlers and the table layer.

Owns: the ``SegmentContainer`` protocol, the values that pass through it, and how a task awaits what
completes by a call: ``Waiter`` for operations, ``read_and_wait`` for reads.

Invariants:
1. A completion (``on_complete``) or a returned ``await`` means durable: fsync'ed in tier 1.
2. Operations on one segment take effect in the order of the calls; validation happens in that
   order too, against the effect of all operations before it, durable or in flight. Those on other
   segments of the container do so too, unless one has to wait for attributes from tier 2.
3. Completions of operations on one segment come in call order.
4. A cancelled waiter abandons the answer, never the operation; a cancelled read is forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import trio

from segstore.chunks.scan_plan import ScanPlan
from segstore.errors import SegmentStoreError
from segstore.model.attributes import AttributeId, AttributeUpdate
from segstore.tiers.api import Buffer

OnAppended = Callable[[SegmentStoreError | None, int], None]
"""Called with the error and the segment's length right after the append (-1 on an error)."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment's committed state. Offsets and lengths in bytes, times in Unix milliseconds."""

    name: str
    segment_id: int
    """Number of the segment, which no other segment of the container ever gets, whatever its name.
    """
    segment_type: int
    start_offset: int
    length: int
    storage_length: int
    sealed: bool
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Bytes of a segment. Empty data with ``end_of_segment`` means that there is no more, ever;
    empty data with ``at_tail`` means that the container stopped and the reader shall ask again."""

    offset: int
    data: Buffer
    """Data that were read; for history a view of memory, which stays lent as long as the view
    exists."""
    at_tail: bool
    end_of_segment: bool
    is_last: bool = field(default=False, compare=False)
    """True if the segment had nothing more behind these bytes when they were read."""


def ask_again(offset: int) -> ReadResult:
    """Return the result, without bytes, that makes a reader ask again."""
    return ReadResult(offset, b"", at_tail=True, end_of_segment=False)


class SegmentSample(NamedTuple):
    """Counts of all that was ever written to a segment, and the scaling policy of its stream."""

    name: str
    segment_id: int
    scale_type: int
    target_rate: int
    event_count: int
    length: int
    sealed: bool
    last_modified_ms: int


FindSample = Callable[[str], SegmentSample | None]
"""Returns the last sample of the segment with a name, or None."""
OnRead = Callable[[SegmentStoreError | None, ReadResult | None], None]
HasRoom = Callable[[], bool]
"""Returns whether the reader can accept the data of a read now."""


class ReadHandle(Protocol):
    """A read that waits for the tail or for storage."""

    def cancel(self) -> None:
        """Forget the read; its completion will not be called. Idempotent."""
        ...


class SegmentContainer(Protocol):
    """A group of segments that share one durable log."""

    @property
    def container_id(self) -> int: ...

    async def create_segment(
        self, name: str, *, attributes: Mapping[AttributeId, int] | None = None
    ) -> None:
        """Create an empty segment with these attributes, else ``SegmentExistsError``."""
        ...

    async def delete_segment(self, name: str) -> None:
        """Delete a segment, else ``NoSuchSegmentError``; parked reads on it get that error too."""
        ...

    def append_nowait(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
        on_complete: OnAppended,
    ) -> None:
        """Queue an append of ``data`` (may be empty), atomic with its attribute updates.

        Never raises: errors arrive by ``on_complete``: ``NoSuchSegmentError``,
        ``SegmentSealedError``, ``BadAttributeUpdateError``, ``BadOffsetError``,
        ``ContainerOfflineError``; ``StorageError`` when a condition needs an attribute that is only
        in tier 2, and that fails. ``data`` is copied or kept: the caller may not change it.
        """
        ...

    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
    ) -> int:
        """Append, wait until it is durable, and return the segment's length right after it."""
        waiter = Waiter()
        self.append_nowait(
            name,
            data,
            attribute_updates=attribute_updates,
            expected_offset=expected_offset,
            on_complete=waiter.complete,
        )
        return await waiter.wait()

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Change attributes atomically, else ``BadAttributeUpdateError``."""
        ...

    async def seal_segment(self, name: str) -> int:
        """Seal and return the final length, else ``SegmentSealedError`` if it is sealed already."""
        ...

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        """Move the start offset up to ``offset``; allowed on sealed segments.

        ``SegmentTruncatedError`` when offset is not within [start offset, length].
        """
        ...

    def merge_nowait(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        on_complete: OnAppended,
    ) -> None:
        """Queue a merge; see ``merge_segment``. Several go to tier 1 together, in this order.

        Never raises: errors arrive by ``on_complete``, as those of ``append_nowait``.
        """
        ...

    async def merge_segment(
        self, target: str, source: str, *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        """Seal ``source``, append all its bytes to ``target`` atomically, and make it vanish.

        Returns the target's length right after it. Adds the source's event count to the target's.
        Errors name the segment at fault: ``NoSuchSegmentError`` (also for a source that was merged
        before), ``SegmentSealedError`` (target), ``SegmentTruncatedError`` (source),
        ``BadAttributeUpdateError``.
        """
        waiter = Waiter()
        self.merge_nowait(
            target, source, attribute_updates=attribute_updates, on_complete=waiter.complete
        )
        return await waiter.wait()

    async def activate(self, name: str) -> None:
        """Bring a segment into memory, if it exists, so that it can be used without waiting.

        It stays there for a while. Raises ``StorageError`` and ``ContainerOfflineError``.
        """
        ...

    def segment_info(self, name: str) -> SegmentInfo:
        """Return the committed state of a segment that is in memory. Raises
        ``NoSuchSegmentError``."""
        ...

    async def find_info(self, name: str) -> SegmentInfo:
        """Return the committed state of a segment; one that is not in memory stays so.

        Raises ``NoSuchSegmentError``, ``StorageError`` and ``ContainerOfflineError``.
        """
        ...

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        """Return the committed values of the given attributes, without those that are absent.

        Raises ``StorageError`` when one of them is only in tier 2, and that fails.
        """
        ...

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        """Return the committed value of an attribute, or None if it is not in memory.

        ``NULL_ATTRIBUTE_VALUE`` is the value of an absent one.
        """
        ...

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> Buffer:
        """Return the committed bytes from ``offset`` on that are in memory; none if there are
        none."""
        ...

    def attribute_iterator(
        self, name: str, *, first: AttributeId, last: AttributeId
    ) -> AsyncIterator[list[tuple[AttributeId, int]]]:
        """Yield the committed extended attributes from ``first`` to ``last``, both included, by id.

        They come in pages, which may be empty; each is right at the moment when it is given. Raises
        ``NoSuchSegmentError``, now or later, when the segment goes away; ``InvalidRequestError``
        when the two have not the length of the segment's ids; and ``StorageError``.
        """
        ...

    def load_samples(self, find_last: FindSample) -> Iterator[SegmentSample]:
        """Return the counts of the segments in memory that differ from their last sample.

        Without a last sample, only segments that have a scaling policy are included.
        """
        ...

    def unpersisted_attribute_count(self, name: str) -> int:
        """Return how many attributes of a segment are in memory because tier 2 does not have their
        last change. Raises ``NoSuchSegmentError``. A caller that changes very many waits until it
        is less."""
        ...

    async def wait_in_flight(self, name: str) -> None:
        """Return when every operation queued on the segment before the call has completed."""
        ...

    async def plan_scan(
        self, name: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> ScanPlan | None:
        """Return where in tier 2 the bytes of a range are, as far as they are there.

        See ``SegmentStorage.plan_scan``. ``NoSuchSegmentError``; ``SegmentTruncatedError`` when the
        segment begins behind ``start``.
        """
        ...

    async def hold_chunks(
        self, name: str, *, lease_id: bytes, chunks: Sequence[str], lease_seconds: float
    ) -> bool:
        """Extend a lease, or end it; see ``SegmentStorage.hold_chunks``.

        The segment may have been deleted meanwhile.
        """
        ...

    def read_nowait(
        self,
        name: str,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        """Read committed data. Completes at once (then returns None) when it can.

        At or beyond the tail of an unsealed segment the read is parked without limit: it completes
        when data arrives, with ``SegmentSealedError`` when the segment is sealed without more data,
        with ``NoSuchSegmentError`` when it is deleted, or with an empty ``at_tail`` result when the
        container stops. At the end of a sealed segment: an empty ``end_of_segment`` result; beyond
        it ``InvalidRequestError``. Before the start offset: ``SegmentTruncatedError``.

        A read that had to wait asks ``has_room`` before its data are copied; when there is no room
        it completes with an empty ``at_tail`` result, and the reader asks again when it has room.
        """
        ...

    async def read(self, name: str, *, offset: int, length_max: int) -> ReadResult:
        """Read like ``read_nowait``, and wait for the result."""
        return await read_and_wait(
            lambda complete: self.read_nowait(
                name, offset=offset, length_max=length_max, on_complete=complete
            )
        )


class Waiter:
    """Turns an operation's completion into an await."""

    __slots__ = ("_event", "error", "number")

    def __init__(self) -> None:
        self._event = trio.Event()
        self.error: SegmentStoreError | None = None
        self.number = -1

    def complete(self, error: SegmentStoreError | None, number: int) -> None:
        """Record that the operation is durable, or refused with ``error``, and wake the task that
        waits."""
        self.error, self.number = error, number
        self._event.set()

    async def wait(self) -> int:
        """Wait for the operation and return its number. Raises its error."""
        await self._event.wait()
        if self.error is not None:
            raise self.error
        return self.number


async def read_and_wait(start: Callable[[OnRead], ReadHandle | None]) -> ReadResult:
    """Return the result of the read that ``start`` (a ``read_nowait``) begins. Raises its error."""
    done = trio.Event()
    outcome: list[SegmentStoreError | ReadResult] = []

    def complete(error: SegmentStoreError | None, result: ReadResult | None) -> None:
        answer = error or result
        assert answer is not None
        outcome.append(answer)
        done.set()

    handle = start(complete)
    try:
        await done.wait()
    finally:
        if handle is not None:
            handle.cancel()
    [answer] = outcome
    if isinstance(answer, SegmentStoreError):
        raise answer
    return answer
