"""One segment container: its parts, its life from recovery to stop, and its interface.

Owns: how the parts are put together, and when they start and stop. The parts carry out operations.

Invariants:
1. While a container recovers, requests to it are refused. Held by
   ``test_a_container_that_recovers_sends_clients_to_look_for_it_and_disturbs_no_others``.
2. When the owner is cancelled, the container's tasks run on for at most ``drain_seconds``, so that
   it can write its bytes to tier 2. Held by ``test_a_cancelled_owner_waits_for_the_drain``.
3. When the log fails, the container ends with the error, and its owner opens and recovers it again.
   Held by ``test_a_failing_journal_takes_its_containers_offline_and_no_others``.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import structlog
import trio

from _fast.btree.tree import PageCache
from segstore.api import (
    ContainerMeasures,
    FindSample,
    HasRoom,
    OnAppended,
    OnRead,
    ReadHandle,
    SegmentContainer,
    SegmentInfo,
    SegmentSample,
    Waiter,
)
from segstore.attributes.attribute_indexes import AttributeIndexes, AttributePage
from segstore.cache.manager import CacheManager
from segstore.chunks.api import SegmentStorage
from segstore.chunks.scan_plan import ScanPlan
from segstore.durable_log.committed_state import CommittedState
from segstore.durable_log.memory_log import MemoryLog
from segstore.durable_log.operation_processor import OperationProcessor
from segstore.durable_log.prefetch import AttributePrefetcher
from segstore.durable_log.recovery import Recovery
from segstore.durable_log.update_transaction import PendingState
from segstore.errors import (
    ContainerOfflineError,
    DataLogError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    StorageError,
    StorageFullError,
)
from segstore.inactive.activation import Activation
from segstore.inactive.compaction import RecordCompaction
from segstore.inactive.eviction import ALL_STAY, Eviction, EvictionPolicy
from segstore.inactive.late_reads import LateReads
from segstore.inactive.records import SegmentRecords
from segstore.model.attributes import (
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import (
    AppendOperation,
    AttributeValues,
    BarrierOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segstore.model.segment_attributes import AttributeCache
from segstore.ownership.token import OwnerToken
from segstore.read_index.logged_bytes import LoggedBytes
from segstore.read_index.read_index import ReadIndex
from segstore.runtime.clock import wall_clock_ms
from segstore.throttling.throttle import (
    CacheReading,
    Throttle,
    ThrottlePolicy,
    ThrottleSnapshot,
)
from segstore.tiers.api import Buffer, DurableDataLog, DurableDataLogFactory
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY, FlushPolicy
from segstore.writer.storage_writer import StorageWriter

DRAIN_SECONDS: Final = 5.0
ATTRIBUTE_PAGES_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum memory, in bytes, for pages of attribute indexes of a container that has a page cache of
its own."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ContainerParts:
    """The parts of one container, which ``_assemble`` creates."""

    metadata: ContainerMetadata
    log: DurableDataLog
    storage: SegmentStorage
    cache_manager: CacheManager
    read_index: ReadIndex
    attribute_indexes: AttributeIndexes
    records: SegmentRecords
    state: CommittedState
    pending: PendingState
    prefetcher: AttributePrefetcher
    processor: OperationProcessor
    throttle: Throttle
    writer: StorageWriter
    activation: Activation
    late_reads: LateReads
    eviction: Eviction


class Container(SegmentContainer):
    """A ``SegmentContainer`` that keeps its operations in a durable data log."""

    def __init__(self, parts: ContainerParts, token: OwnerToken) -> None:
        self.parts = parts
        """The parts of the container, for diagnostics and tests."""
        self.token = token
        """The token of the owner."""
        self._metadata = parts.metadata
        self._storage = parts.storage
        self._read_index = parts.read_index
        self._attribute_indexes = parts.attribute_indexes
        self._processor = parts.processor
        self._activation = parts.activation
        self._late_reads = parts.late_reads

    @property
    def container_id(self) -> int:
        return self._metadata.container_id

    async def recover(self) -> int:
        """Replay the log; return the number of operations in it."""
        parts = self.parts
        recovery = Recovery(
            parts.state,
            parts.storage,
            parts.writer.add_checkpoint,
            parts.cache_manager,
            parts.writer.make_room,
        )
        await recovery.run(parts.log)
        parts.pending.begin()
        if recovery.operation_count == 0:
            parts.processor.request_checkpoint()
        return recovery.operation_count

    async def run(
        self,
        lifetime: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the container's tasks until ``lifetime`` is cancelled or the log fails."""
        parts = self.parts
        try:
            with lifetime:
                async with trio.open_nursery() as nursery:
                    parts.read_index.start(nursery)
                    parts.late_reads.start(nursery)
                    nursery.start_soon(parts.processor.run)
                    nursery.start_soon(parts.prefetcher.run)
                    nursery.start_soon(parts.writer.run)
                    nursery.start_soon(self._run_until_reads_end, parts.eviction.run)
                    nursery.start_soon(parts.storage.run)
                    self._delete_transient_segments()
                    task_status.started()
        finally:
            self.close("the container has stopped")

    async def _run_until_reads_end(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run one of the tasks, which end together; when it ends, let reads start no more of them.

        A nursery whose last task has ended refuses further ones, and the code after it runs a
        moment later.
        """
        try:
            await run()
        finally:
            self._late_reads.close()
            self._read_index.end_tasks()

    def _delete_transient_segments(self) -> None:
        """Delete the transient segments: each belongs to a connection, and a restart has ended
        these."""
        for segment in list(self._metadata.by_name.values()):
            if segment.is_transient:
                self._processor.enqueue(DeleteOperation(segment.name))

    async def flush(self) -> None:
        """Write everything that was committed before the call to tier 2.

        Raises ``StorageError`` when tier 2 does not accept all of it.
        """
        await self.parts.writer.flush()

    async def checkpoint(self) -> None:
        """Write a checkpoint, and wait until it is durable."""
        self._processor.request_checkpoint()
        await self.wait_for(BarrierOperation(""))

    async def drain(self) -> None:
        """Write everything to tier 2 and truncate the log, so that the next start is quick. Errors
        are logged."""
        parts = self.parts
        try:
            await self.wait_for(BarrierOperation(""))
            while parts.prefetcher.held_count:
                await parts.prefetcher.wait_idle()
                await self.wait_for(BarrierOperation(""))
            await parts.writer.flush()
            if parts.log.bytes_since_truncation:
                await self.checkpoint()
                await parts.writer.flush()
            await parts.writer.copy_metadata()
            await parts.storage.settle()
        except (ContainerOfflineError, DataLogError, StorageError) as error:
            # Unflushed bytes stay in the log. The next start, or another owner that took the log
            # over, recovers them.
            logger.warning("drain ended early", container=self.container_id, error=str(error))

    async def leave(self) -> None:
        """Close both tiers. Tier 2 records the last operation, and nothing is written
        afterwards."""
        await self.parts.log.aclose()
        await self._storage.close(last_operation=self._metadata.sequence_number)

    def close(self, reason: str) -> None:
        """Complete all waiting operations and reads, and later ones, because the container stops. A
        second call does nothing."""
        try:
            self._processor.close(reason)
        finally:
            self._late_reads.close()
            self._read_index.close()

    @property
    def may_answer(self) -> bool:
        return self.token.may_answer

    async def confirm_answer(self) -> None:
        try:
            await self.token.confirm(self.checkpoint)
        except ContainerOfflineError:
            # A log that has failed ends the container at its next entry.
            self._processor.request_checkpoint()
            raise

    def throttle_snapshot(self) -> ThrottleSnapshot:
        """Return the values that slow writers down now, and their delays."""
        return self.parts.throttle.snapshot()

    def delay_reasons(self) -> list[str]:
        reasons = [reason] if (reason := self.parts.log.delay_reason) is not None else []
        failure = self.parts.writer.failure
        if isinstance(failure, StorageFullError):
            reasons.append(failure.reason)
        elif failure is not None and self.throttle_snapshot().seconds:
            reasons.append(str(failure))
        return reasons

    def record_attributes(
        self, segment: SegmentMetadata, values: AttributeValues
    ) -> Callable[[], Awaitable[int]]:
        """Queue a change of core attributes of a segment, sealed or not. The returned function
        waits until it is durable.

        The operation overtakes those that wait for room in the cache, because the storage writer,
        which makes room, waits for it.
        """
        replace = AttributeUpdateType.REPLACE
        updates = [AttributeUpdate(each, replace, value) for each, value in values.items()]
        waiter = Waiter()
        operation = UpdateAttributesOperation(segment.name, updates, waiter.complete)
        operation.segment_id = segment.segment_id
        self._processor.enqueue_first(operation)
        return waiter.wait

    async def wait_for(self, operation: Operation) -> int:
        """Queue an operation and wait until it is durable. Return the number that it completes
        with."""
        waiter = Waiter()
        operation.on_complete = waiter.complete
        self._processor.enqueue(operation)
        return await waiter.wait()

    def _segment(self, name: str) -> SegmentMetadata:
        segment = self._metadata.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        segment.was_used = True
        return segment

    async def activate(self, name: str) -> None:
        if not self._activation.is_active(name):
            await self._activation.activate(name)
        if (segment := self._metadata.by_name.get(name)) is not None:
            segment.was_used = True

    async def create_segment(
        self, name: str, *, attributes: Mapping[AttributeId, int] | None = None
    ) -> None:
        await self.wait_for(MapOperation(name, dict(attributes or {})))

    async def delete_segment(self, name: str) -> None:
        await self.wait_for(DeleteOperation(name))

    def append_nowait(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
        on_complete: OnAppended,
    ) -> None:
        self._processor.enqueue(
            AppendOperation(
                name,
                data,
                updates=attribute_updates,
                expected_offset=expected_offset,
                on_complete=on_complete,
            )
        )

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        await self.wait_for(UpdateAttributesOperation(name, updates))

    async def seal_segment(self, name: str) -> int:
        return await self.wait_for(SealOperation(name))

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        await self.wait_for(TruncateOperation(name, offset))

    def merge_nowait(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        on_complete: OnAppended,
    ) -> None:
        self._processor.enqueue(
            MergeOperation(target, source, updates=attribute_updates, on_complete=on_complete)
        )

    def segment_info(self, name: str) -> SegmentInfo:
        return _describe(self._segment(name))

    async def find_info(self, name: str) -> SegmentInfo:
        record = await self._activation.find_record(name)
        if record is None:
            return self.segment_info(name)
        return _describe(SegmentMetadata.from_record(record, 0))

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        await self.activate(name)
        return await self._attribute_indexes.get(self._segment(name), attribute_ids)

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        segment = self._metadata.by_name.get(name)
        if segment is None or segment.leaving:
            return None
        return self._attribute_indexes.get_now(segment, attribute_id)

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> Buffer:
        segment = self._metadata.by_name.get(name)
        if segment is None or segment.leaving:
            return b""
        segment.was_used = True
        entries = self._read_index.index_of(segment).entries
        inside = segment.start_offset <= offset < segment.length
        return entries.gather(offset, length_max) if inside else b""

    async def attribute_iterator(
        self, name: str, *, first: AttributeId, last: AttributeId
    ) -> AsyncIterator[AttributePage]:
        await self.activate(name)
        pages = self._attribute_indexes.iterate(self._segment(name), first, last)
        async with aclosing(pages):
            async for page in pages:
                yield page

    def load_samples(self, find_last: FindSample) -> Iterator[SegmentSample]:
        for segment in self._metadata.by_name.values():
            attributes = segment.attributes
            scale_type = attributes.get(SCALE_POLICY_TYPE, 0)
            last = find_last(segment.name)
            if last is None:
                if scale_type <= 0:
                    continue
            elif (
                last.length == segment.length
                and last.sealed == segment.sealed
                and last.scale_type == scale_type
                and last.target_rate == attributes.get(SCALE_POLICY_RATE, 0)
                and last.event_count == attributes.get(EVENT_COUNT, 0)
                and last.segment_id == segment.segment_id
            ):
                continue
            yield SegmentSample(
                segment.name,
                segment.segment_id,
                scale_type,
                attributes.get(SCALE_POLICY_RATE, 0),
                attributes.get(EVENT_COUNT, 0),
                segment.length,
                segment.sealed,
                segment.last_modified_ms,
            )

    def measures(self) -> ContainerMeasures:
        parts, segments = self.parts, self._metadata.by_name.values()
        manager = parts.cache_manager
        return ContainerMeasures(
            active_segment_count=len(segments),
            unflushed_bytes=sum(each.length - each.storage_length for each in segments),
            log_held_bytes=parts.log.held_bytes,
            delays={gauge.name: gauge.seconds for gauge in self.throttle_snapshot().gauges},
            cache={
                "data": manager.cache.stored_bytes,
                "entries": manager.cache.used_bytes,
                "unevictable": manager.held_bytes,
                "capacity": manager.cache.capacity_bytes,
            },
        )

    @property
    def next_segment_id(self) -> int:
        return self._metadata.next_segment_id

    def lengths(self) -> Iterator[tuple[str, int, int, int]]:
        for each in list(self._metadata.by_name.values()):
            count = max(0, each.attributes.get(EVENT_COUNT, 0))
            yield each.name, each.segment_id, each.length, count

    def unpersisted_attribute_count(self, name: str) -> int:
        return len(self._segment(name).attribute_memory.dirty)

    async def wait_in_flight(self, name: str) -> None:
        await self.wait_for(BarrierOperation(name))

    async def plan_scan(
        self, name: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> ScanPlan | None:
        await self.activate(name)
        segment = self._segment(name)
        if start < segment.start_offset:
            raise SegmentTruncatedError(name, start_offset=segment.start_offset)
        # Bytes after ``storage_length`` in tier 2 may be left over from a failed write.
        end = max(start, min(end, segment.storage_length))
        return await self._storage.plan_scan(
            segment.storage_name,
            start=start,
            end=end,
            lease_id=lease_id,
            lease_seconds=lease_seconds,
        )

    async def hold_chunks(
        self, name: str, *, lease_id: bytes, chunks: Sequence[str], lease_seconds: float
    ) -> bool:
        await self.activate(name)
        segment = self._metadata.by_name.get(name)
        return await self._storage.hold_chunks(
            segment.storage_name if segment is not None else None,
            lease_id=lease_id,
            names=chunks,
            lease_seconds=lease_seconds,
        )

    def read_nowait(
        self,
        name: str,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        segment = self._metadata.by_name.get(name)
        if segment is None or segment.leaving:
            if self._activation.is_absent(name):
                on_complete(NoSuchSegmentError(name), None)
                return None
            return self._late_reads.read(name, offset, length_max, on_complete, has_room)
        segment.was_used = True
        return self._read_index.read_nowait(
            segment,
            offset=offset,
            length_max=length_max,
            on_complete=on_complete,
            has_room=has_room,
        )


def _describe(segment: SegmentMetadata) -> SegmentInfo:
    return SegmentInfo(
        name=segment.name,
        segment_id=segment.segment_id,
        segment_type=segment.segment_type,
        start_offset=segment.start_offset,
        length=segment.length,
        storage_length=segment.storage_length,
        sealed=segment.sealed,
        last_modified_ms=segment.last_modified_ms,
    )


class _Links:
    """Calls between parts of which each needs the other, so that none can get the other as an
    argument when it is created."""

    def __init__(self, find_container: Callable[[], Container]) -> None:
        self._find_container = find_container

    def enqueue_first(self, operation: Operation) -> None:
        self._find_container().parts.processor.enqueue_first(operation)

    def requeue(self, operations: list[Operation]) -> None:
        self._find_container().parts.processor.requeue(operations)

    def request_checkpoint(self) -> None:
        self._find_container().parts.processor.request_checkpoint()

    def request_flush(self) -> None:
        """Flush all bytes, and also attributes if the number of changed ones slows writers down."""
        parts = self._find_container().parts
        parts.writer.request_flush(attributes=parts.throttle.dirty_attributes_delay)

    def record_attributes(
        self, segment: SegmentMetadata, values: AttributeValues
    ) -> Callable[[], Awaitable[int]]:
        return self._find_container().record_attributes(segment, values)

    async def evict(self, candidates: list[int]) -> None:
        await self._find_container().parts.eviction.evict(candidates)

    async def wait_for(self, operation: Operation) -> int:
        return await self._find_container().wait_for(operation)

    async def checkpoint(self) -> None:
        await self._find_container().checkpoint()

    def read_nowait(self, name: str, **how: Any) -> ReadHandle | None:
        return self._find_container().read_nowait(name, **how)


@dataclass(frozen=True, slots=True)
class _Policies:
    """The settings of one container, and the functions of its owner that it calls."""

    now_ms: Callable[[], int]
    flushes: FlushPolicy
    throttling: ThrottlePolicy
    log_bytes: Callable[[], int]
    reserve_percent: Callable[[], int]
    eviction: EvictionPolicy
    confirm_owner: Callable[[], Awaitable[None]] | None

    def __post_init__(self) -> None:
        held, throttling = self.flushes.held_bytes_max, self.throttling
        if held > throttling.log_bytes_max * throttling.begin_share:
            raise ValueError(
                f"a container that flushes when it holds {held} bytes of tier 1 is too"
                f" late: writers stop at {throttling.log_bytes_max}"
            )


def _assemble(
    metadata: ContainerMetadata,
    log: DurableDataLog,
    storage: SegmentStorage,
    manager: CacheManager,
    indexes: AttributeIndexes,
    policies: _Policies,
    token: OwnerToken,
) -> Container:
    """Create a container and its parts. The caller then calls ``recover``."""
    links, now_ms, memory_log = _Links(lambda: container), policies.now_ms, MemoryLog()
    read_index = ReadIndex(manager, storage, trio.current_time, LoggedBytes(log))
    state = CommittedState(metadata, read_index, memory_log, now_ms, on_evicted=indexes.close)
    records = SegmentRecords(metadata, indexes, read_index)
    activation = Activation(metadata, records, links.enqueue_first)
    writer = StorageWriter(
        metadata,
        memory_log,
        read_index,
        storage,
        indexes,
        log,
        links.request_checkpoint,
        links.record_attributes,
        policy=policies.flushes,
        held_share=lambda: manager.held_bytes / manager.throttle_bytes,
        log_is_scarce=lambda: policies.reserve_percent() > 0,
        confirm_owner=policies.confirm_owner,
    )
    throttle = _make_throttle(metadata, manager, writer, policies)
    pending = PendingState(metadata, now_ms, records.offset_now)
    prefetcher = AttributePrefetcher(metadata, pending, indexes, activation, links.requeue)
    on_checkpoint = writer.add_checkpoint
    processor = OperationProcessor(
        log, state, pending, manager, throttle, links.request_flush, prefetcher, on_checkpoint
    )
    eviction = Eviction(
        metadata,
        policies.eviction,
        writer,
        read_index,
        prefetcher,
        RecordCompaction(metadata, records, activation, links.evict, links.wait_for),
        wait=links.wait_for,
        checkpoint=links.checkpoint,
    )
    parts = ContainerParts(
        metadata=metadata,
        log=log,
        storage=storage,
        cache_manager=manager,
        read_index=read_index,
        attribute_indexes=indexes,
        records=records,
        state=state,
        pending=pending,
        prefetcher=prefetcher,
        processor=processor,
        throttle=throttle,
        writer=writer,
        activation=activation,
        late_reads=LateReads(activation, links.read_nowait),
        eviction=eviction,
    )
    container = Container(parts, token)
    return container


def _make_throttle(
    metadata: ContainerMetadata, manager: CacheManager, writer: StorageWriter, policies: _Policies
) -> Throttle:
    return Throttle(
        policies.throttling,
        cache=CacheReading(
            partial(attrgetter("held_bytes"), manager),
            manager.throttle_bytes,
            manager.writer_limit_bytes,
        ),
        log_bytes=policies.log_bytes,
        reserve_percent=policies.reserve_percent,
        operation_count=partial(attrgetter("operation_count"), writer),
        dirty_count=partial(attrgetter("dirty_count"), metadata),
    )


@asynccontextmanager
async def open_container(
    container_id: int,
    log_factory: DurableDataLogFactory,
    storage: SegmentStorage,
    cache_manager: CacheManager,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
    drain_seconds: float = DRAIN_SECONDS,
    flush_policy: FlushPolicy = DEFAULT_FLUSH_POLICY,
    attribute_pages: PageCache | None = None,
    attribute_cache: AttributeCache | None = None,
    throttling: ThrottlePolicy | None = None,
    log_bytes: Callable[[], int] | None = None,
    reserve_percent: Callable[[], int] = lambda: 0,
    eviction: EvictionPolicy = ALL_STAY,
    confirm_owner: Callable[[], Awaitable[None]] | None = None,
    token: OwnerToken | None = None,
) -> AsyncIterator[Container]:
    """Recover a container, serve it inside the block, and drain it at the end.

    After a cancellation the drain takes at most ``drain_seconds``; unflushed bytes stay in the log.
    Containers may share ``attribute_pages``, but not ``attribute_cache``. ``log_bytes`` returns the
    size of the shared tier 1, ``reserve_percent`` the used part of its reserve. The storage has the
    same ``token``. Raises ``DataLogError`` when tier 1 fails, ``PermanentError`` when a tier is not
    as its owner left it.
    """
    token = OwnerToken() if token is None else token
    began = trio.current_time()
    log = await _open_log(log_factory, container_id, token)
    opened = trio.current_time()
    log_bytes_replayed = log.bytes_since_truncation
    cache = attribute_cache or AttributeCache()
    container = _assemble(
        ContainerMetadata(container_id, cache),
        log,
        storage,
        cache_manager,
        AttributeIndexes(storage, attribute_pages or PageCache(ATTRIBUTE_PAGES_BYTES_MAX), cache),
        _Policies(
            now_ms,
            flush_policy,
            throttling or ThrottlePolicy(),
            log_bytes or (lambda: log.held_bytes),
            reserve_percent,
            eviction,
            confirm_owner,
        ),
        token,
    )
    try:
        operation_count = await container.recover()
        replayed = trio.current_time()
        await token.wait_alone()
        async with trio.open_nursery() as nursery:
            lifetime = trio.CancelScope()
            await nursery.start(container.run, lifetime)
            _log_recovery(
                container_id, operation_count, log_bytes_replayed, [began, opened, replayed]
            )
            async with _drained_at_end(container, lifetime, drain_seconds):
                yield container
    finally:
        container.close("the container is stopping")
        with trio.move_on_after(drain_seconds, shield=True):
            await container.leave()
        token.end()


@asynccontextmanager
async def _drained_at_end(
    container: Container, lifetime: trio.CancelScope, drain_seconds: float
) -> AsyncIterator[None]:
    """Keep the tasks of a container until the drain is over, also when the owner is cancelled."""
    # The shield begins after the tasks have started. With a shield before that, a cancelled owner
    # could neither leave nor drain.
    lifetime.shield = True
    try:
        yield
    finally:
        container.token.leave()
        try:
            with trio.move_on_after(drain_seconds, shield=True):
                await container.drain()
        finally:
            # However the drain ended: nothing else can end the tasks that the shield protects.
            lifetime.cancel()


async def _open_log(
    factory: DurableDataLogFactory, container_id: int, token: OwnerToken
) -> DurableDataLog:
    """Open the log, and record with the token under which epoch."""
    token.assign()
    try:
        log = await factory.open_log(container_id)
    except BaseException:
        token.end()
        raise
    token.open(log.epoch, log.owner_proof)
    return log


def _log_recovery(
    container_id: int, operation_count: int, log_bytes: int, times: Sequence[float]
) -> None:
    """Log the number of operations and bytes of a recovery, and the durations of its stages, which
    began at ``times``."""
    seconds = [end - begin for begin, end in pairwise([*times, trio.current_time()])]
    logger.info(
        "container recovered",
        container=container_id,
        operations=operation_count,
        log_bytes=log_bytes,
        open_seconds=round(seconds[0], 3),
        replay_seconds=round(seconds[1], 3),
        start_seconds=round(seconds[2], 3),
    )
