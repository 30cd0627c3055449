"""The interface of a segment container for the request handlers and the table layer.

Owns: the ``SegmentContainer`` protocol, its arguments and results, and two helpers with which a
task waits for a completion by a call: ``Waiter`` for operations, ``read_and_wait`` for reads.

Invariants:
1. When ``on_complete`` is called without an error, or an ``await`` returns, the operation is
   durable: tier 1 has synced it. Held by
   ``test_nothing_shows_or_is_answered_before_its_frame_is_durable``.
2. Operations on one segment take effect, and complete, in the order of the calls. Held by
   ``test_appends_take_effect_and_complete_in_call_order``.
3. Conditions of an operation are checked against all earlier operations on its segment, durable or
   not. Held by ``test_conditions_see_the_operations_in_flight``.
4. When a caller that waits for an operation is cancelled, the operation still takes effect. Held by
   ``test_a_cancelled_append_still_takes_effect``.
5. A cancelled read does not complete. Held by ``test_a_cancelled_read_is_never_answered``.

Operations on different segments may complete in another order, because one that needs attributes
from tier 2 is held together with later ones on its segment.
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
"""Called when an append is durable or refused, with the error or None, and the segment's length
right after the append (-1 with an error)."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The committed state of a segment. Offsets and lengths are in bytes, times in milliseconds
    since the Unix epoch."""

    name: str
    segment_id: int
    """Number of the segment. No other segment of the container ever gets it, not even one with the
    same name."""
    segment_type: int
    start_offset: int
    length: int
    storage_length: int
    sealed: bool
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a read. Empty data with ``end_of_segment`` mean that the sealed segment ends
    here. Empty data with ``at_tail`` mean that the reader has to ask again: the container stopped,
    or the reader had no room."""

    offset: int
    data: Buffer
    """The bytes that were read. For history they may be a view of tier 2's memory, which is not
    used again as long as the view exists."""
    at_tail: bool
    end_of_segment: bool
    is_last: bool = field(default=False, compare=False)
    """True if the segment had nothing more after these bytes when they were read."""


def ask_again(offset: int) -> ReadResult:
    """Return the result, without bytes, that makes a reader ask again."""
    return ReadResult(offset, b"", at_tail=True, end_of_segment=False)


class SegmentSample(NamedTuple):
    """The numbers of bytes and events that were ever written to a segment, and the scaling policy
    of its stream."""

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
    """A read that is not completed yet."""

    def cancel(self) -> None:
        """Cancel the read: ``on_complete`` is not called. A second call does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ContainerMeasures:
    """The measures of a container at one moment. Delays are in seconds by their reason;
    infinite while nothing is accepted."""

    active_segment_count: int
    unflushed_bytes: int
    log_held_bytes: int
    delays: Mapping[str, float]
    cache: Mapping[str, int]
    """Bytes of the cache, which all containers of the process share, by their kind."""


class SegmentContainer(Protocol):
    """A group of segments that share one durable log."""

    @property
    def container_id(self) -> int: ...

    def delay_reasons(self) -> list[str]:
        """Return the reasons why requests wait now, such as a full disk, as sentences."""
        ...

    async def confirm_answer(self) -> None:
        """Return as soon as an answer that is known now may be sent: when it is certain that no
        other owner has the container.

        Raises ``ContainerOfflineError`` when another owner has it.
        """
        return

    @property
    def may_answer(self) -> bool:
        """Return whether ``confirm_answer`` would return at once."""
        return True

    async def create_segment(
        self, name: str, *, attributes: Mapping[AttributeId, int] | None = None
    ) -> None:
        """Create an empty segment with these attributes. Raises ``SegmentExistsError``."""
        ...

    async def delete_segment(self, name: str) -> None:
        """Delete a segment. Raises ``NoSuchSegmentError``; waiting reads of the segment complete
        with that error, too."""
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
        """Queue an append of ``data``, which may be empty, together with its attribute updates.

        Nothing is raised. ``on_complete`` gets the error: ``NoSuchSegmentError``,
        ``SegmentSealedError``, ``BadAttributeUpdateError``, ``BadOffsetError`` or
        ``ContainerOfflineError``, or ``StorageError`` when a condition needs an attribute that only
        tier 2 has, and tier 2 fails. The caller may not change ``data`` afterwards.
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
        """Make all of these changes of attributes, or none. Raises ``BadAttributeUpdateError`` when
        a condition fails."""
        ...

    async def seal_segment(self, name: str) -> int:
        """Seal a segment; return its final length. Raises ``SegmentSealedError`` if it is sealed
        already."""
        ...

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        """Set the start offset of a segment, sealed or not, to ``offset``.

        Raises ``SegmentTruncatedError`` when ``offset`` is below the start offset or above the
        length.
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
        """Queue a merge; see ``merge_segment``. Several queued merges are written to tier 1
        together.

        Nothing is raised. ``on_complete`` gets the errors, as with ``append_nowait``.
        """
        ...

    async def merge_segment(
        self, target: str, source: str, *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        """Append all bytes of ``source`` to ``target`` in one step, add its event count to that of
        the target, and remove ``source``. Return the target's length right after it.

        Raises errors with the name of the segment that caused them: ``NoSuchSegmentError``, also
        for a source that was merged before, ``SegmentSealedError`` for the target,
        ``SegmentTruncatedError`` for the source, and ``BadAttributeUpdateError``.
        """
        waiter = Waiter()
        self.merge_nowait(
            target, source, attribute_updates=attribute_updates, on_complete=waiter.complete
        )
        return await waiter.wait()

    async def activate(self, name: str) -> None:
        """Load a segment into memory, if it exists, so that the next operations need not wait.

        The segment stays in memory for a while. Raises ``StorageError`` and
        ``ContainerOfflineError``.
        """
        ...

    def segment_info(self, name: str) -> SegmentInfo:
        """Return the committed state of a segment that is in memory. Raises
        ``NoSuchSegmentError``."""
        ...

    async def find_info(self, name: str) -> SegmentInfo:
        """Return the committed state of a segment. An inactive segment stays inactive.

        Raises ``NoSuchSegmentError``, ``StorageError`` and ``ContainerOfflineError``.
        """
        ...

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        """Return the committed values of the given attributes, without those that are absent.

        Raises ``StorageError`` when only tier 2 has one of them, and tier 2 fails.
        """
        ...

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        """Return the committed value of an attribute, ``NULL_ATTRIBUTE_VALUE`` if it is absent, and
        None if memory cannot tell."""
        ...

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> Buffer:
        """Return up to ``length_max`` committed bytes from ``offset`` on, if they are in memory;
        else no bytes."""
        ...

    def attribute_iterator(
        self, name: str, *, first: AttributeId, last: AttributeId
    ) -> AsyncIterator[list[tuple[AttributeId, int]]]:
        """Yield the committed extended attributes from ``first`` to ``last``, both included, in the
        order of ids, as pages. A page may be empty; its values are those of the moment when it is
        yielded.

        Raises ``NoSuchSegmentError``, also between pages when the segment is deleted,
        ``InvalidRequestError`` when ``first`` or ``last`` has another length than the ids of the
        segment, and ``StorageError``.
        """
        ...

    def load_samples(self, find_last: FindSample) -> Iterator[SegmentSample]:
        """Return the counts of the segments in memory that differ from their last sample.

        Without a last sample, only segments that have a scaling policy are included.
        """
        ...

    def measures(self) -> ContainerMeasures:
        """Return what the container measures of itself; takes a microsecond for each segment."""
        ...

    @property
    def next_segment_id(self) -> int:
        """Return the id of the next segment; those that were created before have lower ones."""
        ...

    def lengths(self) -> Iterator[tuple[str, int, int, int]]:
        """Return name, id, length and number of events of each segment that is in memory now. The
        caller may pause between two of them."""
        ...

    def unpersisted_attribute_count(self, name: str) -> int:
        """Return how many attributes of a segment have changes that tier 2 lacks; they are kept in
        memory. A caller that changes very many waits until the number is small. Raises
        ``NoSuchSegmentError``."""
        ...

    async def wait_in_flight(self, name: str) -> None:
        """Return when every operation queued on the segment before the call has completed."""
        ...

    async def plan_scan(
        self, name: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> ScanPlan | None:
        """Return the places in tier 2 of the bytes from ``start`` to ``end``, as far as tier 2 has
        them; see ``SegmentStorage.plan_scan``.

        Raises ``NoSuchSegmentError``, and ``SegmentTruncatedError`` when the segment begins after
        ``start``.
        """
        ...

    async def hold_chunks(
        self, name: str, *, lease_id: bytes, chunks: Sequence[str], lease_seconds: float
    ) -> bool:
        """Extend or end a lease of chunks; see ``SegmentStorage.hold_chunks``. The segment may have
        been deleted since the lease began."""
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
        """Read committed data. If the bytes are in memory, the read completes within the call,
        which then returns None.

        Before the start offset, it completes with ``SegmentTruncatedError``. At the end of a sealed
        segment, it completes with an empty ``end_of_segment`` result, beyond that with
        ``InvalidRequestError``. At or beyond the end of a segment that is not sealed, the read
        waits, without a time limit, until data arrive, the segment is sealed
        (``SegmentSealedError``) or deleted (``NoSuchSegmentError``), or the container stops (an
        empty ``at_tail`` result).

        A read that had to wait calls ``has_room`` before its data are copied. If that returns
        False, the read completes with an empty ``at_tail`` result, and the reader asks again later.
        """
        ...

    async def read(self, name: str, *, offset: int, length_max: int) -> ReadResult:
        """Read as ``read_nowait`` does, and wait for the result."""
        return await read_and_wait(
            lambda complete: self.read_nowait(
                name, offset=offset, length_max=length_max, on_complete=complete
            )
        )


class Waiter:
    """Lets a task wait for the completion of one operation."""

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
        """Wait for the operation; return the number that it completes with. Raises its error."""
        await self._event.wait()
        if self.error is not None:
            raise self.error
        return self.number


async def read_and_wait(start: Callable[[OnRead], ReadHandle | None]) -> ReadResult:
    """Return the result of the read that ``start`` begins by ``read_nowait``. Raises the error of
    the read."""
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
