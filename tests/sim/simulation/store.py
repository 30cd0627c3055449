"""The store that is simulated: one container, in one life after another on the same tiers.

Owns: ``Store``: how a life begins, how it ends, and what survives it.

Invariants:
1. A life ends by a clean stop, a kill (what the kernel holds survives), a power cut (what was not
   synced may not), or a disk that fails. A kill comes before any step of any task, whatever the
   life is doing: recovering, serving, draining.
2. From the kill on nothing that the dead life still does reaches the disk, tier 2 or a client.
3. Before clients come back the recovered state is compared with the model, byte for byte, and so
   is what lies in tier 2.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import NoReturn, Protocol, TypeVar

import trio

from _fast.btree import PageCache
from _fast.cache import StreamingCache
from segstore.api import SegmentContainer
from segstore.attributes.segment_attributes import AttributeCache
from segstore.cache.manager import CacheManager
from segstore.config import ConnectionSettings, TableSettings
from segstore.container import open_container
from segstore.errors import (
    ContainerOfflineError,
    DataLogCorruptError,
    DataLogError,
    NoSuchSegmentError,
    StorageError,
)
from segstore.inactive.eviction import EvictionPolicy
from segstore.registry import ContainerRegistry
from segstore.server import ConnectionServer
from segstore.storage.chunked import ChunkedSegmentStorage
from segstore.tables.table_segments import TableSegments
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.testing.simulated_disk import PowerCutError, SimulatedDisk
from segstore.testing.simulated_journal import open_simulated_journal
from segstore.testing.simulated_objects import (
    LateRequests,
    ObjectFault,
    ObjectNetwork,
    SimulatedBucket,
)
from segstore.testing.wire_client import WireClient
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tier_two import EpochNotingLogs
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.journal import JournalSettings
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.s3.objects import ObjectStore, RetryLimits
from segstore.tiers.s3.storage import S3Tier
from simulation.checked_container import CheckedContainer
from simulation.model import Model, Observed
from simulation.network import Network, NetworkStream
from simulation.plan import KIB, Plan
from simulation.scheduler import Trace

T = TypeVar("T")

CALM_DRAIN_SECONDS = 600.0
READ_BYTES = 256 * KIB
JOURNAL_FILE_BYTES = 1280 * KIB
"""Little more than the longest data frame takes."""
RETRY_SECONDS = 0.1
GARBAGE_SECONDS = 0.05
LOOK_SECONDS = 0.05
OBJECT_LIMITS = RetryLimits(attempts_max=3, retry_seconds_max=5.0)
MOVE_BYTES_MIN = 1000
SNAPSHOT_BYTES_MIN = 4 * KIB
CHECKERS_EPOCH = 2**31
OWN_SEGMENTS = "_system/containers/"
"""Segments that the container makes for itself begin with this."""
CONNECTIONS_DRAIN_SECONDS = 5.0

CONNECTION_SETTINGS = ConnectionSettings(
    commands_per_turn=3,
    requests_max=4,
    outstanding_bytes_free=10 * KIB,
    outstanding_bytes_max=100 * KIB,
    outstanding_bytes_total_max=200 * KIB,
    send_bytes_pause=50 * KIB,
    send_bytes_max=100 * KIB,
)
"""Bounds that are met."""

TABLE_SETTINGS = TableSettings(
    kept_value_bytes_max=50,
    read_bytes=500,
    append_bytes_max=2000,
    index_bytes_max=4000,
    clean_bytes_max=1500,
    index_count=5,
    index_seconds=0.2,
    unindexed_count_max=12,
    compaction_utilization_percent_min=60,
    compaction_bytes_min=2000,
    compaction_step_bytes=700,
)


class Faults(Protocol):
    """What a test plants into the store, to see whether it is found."""

    def disk(self) -> SimulatedDisk:
        """The journal's disk."""
        ...

    def logs(self, factory: DurableDataLogFactory) -> DurableDataLogFactory:
        """What stands between the container and the journal."""
        ...

    def chunks(self, storage: ChunkStorage) -> ChunkStorage:
        """What stands between the container and tier 2."""
        ...

    def container(self, container: SegmentContainer) -> SegmentContainer:
        """What stands between the clients and the container."""
        ...

    def stream(self, stream: NetworkStream) -> trio.abc.HalfCloseableStream:
        """What stands between the server and a connection."""
        ...


class NoFaults:
    """Nothing is planted."""

    def disk(self) -> SimulatedDisk:
        """The journal's disk."""
        return SimulatedDisk()

    def logs(self, factory: DurableDataLogFactory) -> DurableDataLogFactory:
        """The journal itself."""
        return factory

    def chunks(self, storage: ChunkStorage) -> ChunkStorage:
        """Tier 2 itself."""
        return storage

    def container(self, container: SegmentContainer) -> SegmentContainer:
        """The container itself."""
        return container

    def stream(self, stream: NetworkStream) -> trio.abc.HalfCloseableStream:
        """The connection itself."""
        return stream


class Session:
    """One life of the store as clients see it."""

    def __init__(self, container: CheckedContainer, network: Network, planted: Faults) -> None:
        self.container = container
        self._network = network
        self._planted = planted
        random = Random(repr(trio.current_time()))
        self.tables = TableSegments(container, TABLE_SETTINGS, random=random)
        registry = ContainerRegistry(
            _opened_elsewhere,
            container_count=1,
            container_ids=[0],
            tables=TABLE_SETTINGS,
            restart_seconds_min=1,
            restart_seconds_max=1,
        )
        self._hosted = registry.hosted(0)
        self._hosted.put_online(container, self.tables)
        self._server = ConnectionServer(
            registry,
            CONNECTION_SETTINGS,
            now_ms=lambda: int(trio.current_time() * 1000),
            random_bytes=random.randbytes,
        )
        self._connections: trio.Nursery | None = None

    @property
    def is_serving(self) -> bool:
        """Whether this life takes new clients."""
        return self._connections is not None and self.container.accepting

    def dial(self) -> WireClient:
        """A connection over the network; ``ContainerOfflineError`` when nobody listens."""
        if self._connections is None:
            raise ContainerOfflineError("nobody listens")
        client, server = self._network.connect()
        self._connections.start_soon(self._server.serve, self._planted.stream(server))
        return WireClient(client)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve connections inside the block, and drain them at its end."""
        async with trio.open_nursery() as nursery:
            self._connections = nursery
            try:
                yield
            finally:
                self._connections = None
            self._hosted.take_offline()
            self._server.drain()
            nursery.cancel_scope.deadline = trio.current_time() + CONNECTIONS_DRAIN_SECONDS


def _opened_elsewhere(container_id: int) -> NoReturn:
    raise AssertionError(f"container {container_id} is opened by its life")


class Store:
    """See the module. ``finished`` is set when the clients are done."""

    def __init__(
        self, plan: Plan, random: Random, model: Model, trace: Trace, planted: Faults
    ) -> None:
        self._plan = plan
        self._random = random
        self._model = model
        self._trace = trace
        self._planted = planted
        self._disk = planted.disk()
        self._memory = MemoryChunkStorage()
        self._bucket = SimulatedBucket()
        self._late = LateRequests(random)
        self._requests = ObjectNetwork(self._late, random)
        self._chunks = FaultyChunkStorage(self._memory)
        self._scope = trio.CancelScope()
        self._steps_left: int | None = None
        self._dead = False
        self._died_at = 0.0
        self._disk_fails = False
        self._power_is_cut = False
        self._outage: tuple[float, float, str | None] = (0.0, 0.0, None)
        self._container: CheckedContainer | None = None
        self._network = Network(plan, random, lambda: self.calm)
        self._calm = trio.Event()
        self.finished = trio.Event()
        self.stopped = trio.Event()
        self.life_count = 0
        self.kill_count = 0
        self.session: Session | None = None
        self._opened = trio.Event()
        self.settings = JournalSettings(
            file_bytes=JOURNAL_FILE_BYTES,
            journal_bytes_max=plan.journal_files_max * JOURNAL_FILE_BYTES,
            batch_bytes_max=2048 * KIB,
            files_spare_max=2,
        )

    @property
    def calm(self) -> bool:
        """Whether the faults are over."""
        return self._calm.is_set()

    def calm_down(self) -> None:
        """No more faults from now on."""
        self._calm.set()

    # ---- Clients ---------------------------------------------------------------------------------

    async def connect(self) -> Session:
        """Wait until the store serves."""
        while self.session is None or not self.session.is_serving:
            await self._opened.wait()
        return self.session

    def overdue(self, *, seconds: float) -> list[str]:
        """Calls that have waited too long for their answers, or a life that does not end."""
        if self._dead and trio.current_time() - self._died_at > seconds:
            return [f"life {self.life_count} does not end, although it is cancelled"]
        return [] if self._container is None else self._container.overdue(seconds=seconds)

    # ---- Death -----------------------------------------------------------------------------------

    def on_step(self) -> None:
        """Before every step of every task: the moment may have come."""
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._kill("killed")

    def _kill(self, how: str) -> None:
        """End the life here and now; what follows in it reaches nobody."""
        self._steps_left = None
        self._dead = True
        self._died_at = trio.current_time()
        self.kill_count += 1
        self._trace(f"{how}, {self._disk.sync_count} syncs")
        disk, self._disk = self._disk, self._disk.after_kill()
        disk.power_cut_at = 0
        self._abandon_tier_2()
        self._network.server_dies()
        if self._container is not None:
            self._container.disconnect()
        self._scope.cancel()

    # ---- Lives -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live again and again, until everything is done."""
        while not self.finished.is_set():
            self.life_count += 1
            if self.life_count > self._plan.lives:
                self.calm_down()
            await self._live_and_die()
            with trio.CancelScope(shield=True):
                await self._chunks.settle(self._random)
                await self._check_chunks(complete=False)
        self.stopped.set()

    async def check_everything(self) -> None:
        """After a clean stop without faults tier 2 has all, and the next life finds all."""
        for _ in range(2):
            self.life_count += 1
            await self._live_and_die()
            await self._check_chunks(complete=True)

    async def _live_and_die(self) -> None:
        self._prepare_life()
        self._trace(f"life {self.life_count} begins")
        try:
            with self._scope:
                await self._live()
        except* PowerCutError:
            assert self._dead
        except* DataLogCorruptError as group:
            # A dead life's own disk is gone: what it finds there means nothing.
            if not self._dead:
                raise self._model.violated(f"tier 1 is damaged: {group.exceptions}") from group
        except* DataLogError as group:
            if not self._dead and not self._disk_fails:
                raise self._model.violated(f"tier 1 failed: {group.exceptions}") from group
        except* StorageError as group:
            if not self._dead and self.calm:
                raise self._model.violated(f"tier 2 failed: {group.exceptions}") from group
        finally:
            self._steps_left = None
            self._network.server_dies()
            if self._container is not None:
                self._container.disconnect()
                self._container = None
            if not self._dead:
                self._abandon_tier_2()
                self._disk = self._disk.after_kill()
        self._trace(f"life {self.life_count} is over, {'dead' if self._dead else 'stopped'}")
        if self._power_is_cut:
            self._disk = self._disk.after_power_cut(self._random, flip_bits=self._plan.flip_bits)

    def _prepare_life(self) -> None:
        random, plan, disk = self._random, self._plan, self._disk
        self._scope = trio.CancelScope()
        self._dead = self._disk_fails = self._power_is_cut = False
        self._chunks = FaultyChunkStorage(
            self._planted.chunks(self._memory),
            next_fault=self._next_fault,
            next_delay=self._next_delay,
            next_reply_delay=self._next_delay,
        )
        self._requests = ObjectNetwork(
            self._late, random, next_fault=self._next_object_fault, next_delay=self._next_delay
        )
        if self.calm:
            return
        steps = int(random.expovariate(1 / plan.life_steps)) + 1
        if random.random() < plan.disk_fault_rate:
            self._disk_fails = True
            errors = random.choice([disk.write_errors, disk.sync_errors])
            errors[disk.step_count + random.randrange(1, 100)] = random.choice(
                [errno.EIO, errno.ENOSPC]
            )
        ending = random.randrange(10)
        self._power_is_cut = random.random() < 0.6
        if ending < 4:
            self._steps_left = steps
        elif ending < 8:
            disk.power_cut_at = disk.step_count + 1 + steps // 20
            disk.on_power_cut = lambda: self._kill("killed in the middle of a disk's call")

    async def _live(self) -> None:
        plan, random = self._plan, self._random
        cache = StreamingCache(plan.cache_bytes)
        manager = CacheManager(cache)
        drain_seconds = CALM_DRAIN_SECONDS if self.calm else plan.drain_seconds
        async with (
            open_simulated_journal(
                self._disk, self.settings, random=random, latency_seconds=self._disk_latency
            ) as journal,
            open_container(
                0,
                logs := EpochNotingLogs(self._planted.logs(journal)),
                self._segments(self._tier_2(self._requests, logs.epoch_now), logs.epoch_now),
                manager,
                now_ms=lambda: int(trio.current_time() * 1000),
                drain_seconds=drain_seconds,
                held_bytes_max=plan.held_bytes_max,
                throttling=ThrottlePolicy(
                    log_bytes_max=self.settings.journal_bytes_max * 3 // 4,
                    operations_max=plan.operations_max,
                    attributes_dirty_max=plan.attributes_dirty_max,
                ),
                attribute_pages=PageCache(plan.page_cache_bytes),
                attribute_cache=AttributeCache(
                    segment_count_max=plan.attributes_cached,
                    container_count_max=3 * plan.attributes_cached,
                ),
                eviction=EvictionPolicy(
                    active_count_max=plan.active_segments_max,
                    idle_seconds_max=plan.active_seconds_max,
                    look_seconds=LOOK_SECONDS,
                ),
            ) as container,
        ):
            try:
                await self._check_recovered(container)
            except ContainerOfflineError:
                if not self._dead and not self._disk_fails:
                    raise
                # The container's own end comes, and tells why.
                await trio.sleep_forever()
            async with self._serving(self._planted.container(container)):
                await self._wait_for_end()
            if cache.used_bytes > cache.capacity_bytes:
                raise self._model.violated(f"the cache takes {cache.used_bytes} bytes")
        if cache.stored_bytes and not self._dead:
            raise self._model.violated(f"a closed container left {cache.stored_bytes} bytes")

    def _segments(self, chunks: ChunkStorage, epoch: Callable[[], int]) -> ChunkedSegmentStorage:
        return ChunkedSegmentStorage(
            chunks,
            epoch=epoch,
            garbage_delay_seconds=GARBAGE_SECONDS,
            move_bytes_min=MOVE_BYTES_MIN,
            snapshot_bytes_min=SNAPSHOT_BYTES_MIN,
        )

    @asynccontextmanager
    async def _serving(self, container: SegmentContainer) -> AsyncIterator[None]:
        # A life that was killed while it recovered serves nobody.
        await trio.lowlevel.checkpoint_if_cancelled()
        checked = self._container = CheckedContainer(container, self._model, self._trace)
        session = self.session = Session(checked, self._network, self._planted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.tables.run)
            async with session.listening():
                opened, self._opened = self._opened, trio.Event()
                opened.set()
                yield
            if checked.empty_answer is not None:
                raise self._model.violated(checked.empty_answer)
            checked.refuse()
            nursery.cancel_scope.cancel()

    async def _wait_for_end(self) -> None:
        seconds = float("inf")
        if self._steps_left is None and self._disk.power_cut_at is None:
            seconds = self._plan.pause_seconds * self._random.randrange(1, 100) + 0.01
        with trio.move_on_after(seconds):
            await self._calm.wait()
        if self.calm:
            self._steps_left = self._disk.power_cut_at = None
            await self.finished.wait()

    # ---- Tiers -----------------------------------------------------------------------------------

    def _disk_latency(self, length: int) -> float:
        seconds = self._plan.disk_seconds
        return self._random.expovariate(1 / seconds) if seconds else 0.0

    def _next_delay(self, call: str) -> float:
        seconds = self._plan.tier_2_seconds
        if self.calm or not seconds:
            return 0.0
        slow = 20 if self._random.random() < 0.02 else 1
        return self._random.expovariate(1 / seconds) * slow

    def _next_fault(self, call: str) -> Fault:
        if self.calm:
            return Fault.NONE
        begin, end, kind = self._outage
        now = trio.current_time()
        if begin <= now < end and kind in (None, call):
            return Fault.REFUSED
        if now >= end and self._plan.tier_2_outage_rate:
            length = self._random.expovariate(1 / 20)
            gap = length * (1 - self._plan.tier_2_outage_rate) / self._plan.tier_2_outage_rate
            kind = self._random.choice([None, None, "write", "read", "list_chunks", "delete"])
            self._outage = (now + gap, now + gap + length, kind)
        if self._random.random() < self._plan.tier_2_fault_rate:
            return self._random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])
        return Fault.NONE

    def _next_object_fault(self) -> ObjectFault:
        fault = self._next_fault("request")
        if fault is Fault.NONE:
            return ObjectFault.NONE
        if fault is Fault.REFUSED:
            return self._random.choice([ObjectFault.NOT_SENT, ObjectFault.SLOW_DOWN])
        return self._random.choice([ObjectFault.REPLY_LOST, ObjectFault.LATE])

    def _tier_2(self, requests: ObjectNetwork, epoch: Callable[[], int]) -> ChunkStorage:
        """The chunks for an owner, as the plan wants them."""
        if not self._plan.with_objects:
            return self._chunks
        objects = ObjectStore(
            self._bucket,
            bucket="bucket",
            prefix="store/",
            random=self._random.random,
            limits=OBJECT_LIMITS,
            page_objects_max=7,
            run_request=requests.run,
        )
        return S3Tier(objects).owned_by(epoch)

    def _abandon_tier_2(self) -> None:
        self._chunks.abandon()
        self._requests.abandon()

    def _stored(self) -> ChunkStorage:
        """The chunks for who only looks."""
        if not self._plan.with_objects:
            return self._memory
        return self._tier_2(ObjectNetwork(self._late, self._random), lambda: CHECKERS_EPOCH)

    # ---- Checks ----------------------------------------------------------------------------------

    async def _check_recovered(self, container: SegmentContainer) -> None:
        """Read everything there is and compare it with the model."""
        observed = {}
        for name, attribute_ids in list(self._model.attribute_ids.items()):
            with suppress(NoSuchSegmentError):
                observed[name] = await observe(container, name, list(attribute_ids))
        call = self._model.recovered(observed)
        await container.wait_in_flight("")
        if not self._dead:
            self._model.answered(call, 0)

    async def _check_chunks(self, *, complete: bool) -> None:
        """Whatever lies in tier 2 are bytes of the segment that it is named for."""
        stored = self._stored()
        if complete:
            self._late.deliver(everything=True)
        for chunk in await stored.list_chunks(""):
            name, start = parse_chunk_name(chunk.name)
            if start is None or name.startswith(OWN_SEGMENTS):
                continue
            if "#transient." in name and name not in self._model.segments.by_name:
                # A recovery deleted it before anybody could see which of its last appends were
                # durable; its chunks are deleted later.
                continue
            data = b""
            if chunk.length:
                data = await stored.read(chunk.name, offset=0, length=chunk.length)
            # What lies in tier 2 was durable before, though a killed life may not have told so.
            self._model.prove(
                name,
                partial(self._is_known, name, start, data),
                f"tier 2: {chunk.name} has bytes of no such segment",
            )
        if complete:
            await self._check_complete()

    def _is_known(self, name: str, start: int, data: bytes) -> bool:
        end = start + len(data)
        return any(
            memoryview(segment.data)[start:end] == data
            for segment in self._model.incarnations.get(name, [])
        )

    async def _check_complete(self) -> None:
        """What a later owner finds in tier 2, without the log, is all there is, and no more."""
        chunks = await copy_of(self._stored())
        storage = self._segments(chunks, lambda: CHECKERS_EPOCH)
        stored: dict[str, list[str]] = {}
        needed = set()
        for storage_name in await storage.segment_names():
            needed |= {chunk.name for chunk in await storage.chunks_of(storage_name)}
            if "$" not in storage_name and not storage_name.startswith(OWN_SEGMENTS):
                stored.setdefault(storage_name.rpartition(".S-")[0], []).append(storage_name)
        segments = self._model.segments.by_name
        if strangers := sorted(stored.keys() - segments.keys()):
            raise self._model.violated(f"tier 2 keeps segments that are gone: {strangers}")
        for name, segment in segments.items():
            names = stored.get(name, [])
            if len(names) > 1:
                raise self._model.violated(f"tier 2 keeps namesakes of {name}: {names}")
            if segment.start_offset == len(segment.data):
                continue
            data = bytearray()
            while (offset := segment.start_offset + len(data)) < len(segment.data):
                if not names or offset >= await storage.stored_length(names[0]):
                    raise self._model.violated(
                        f"tier 2 has {name} up to {offset}, its length is {len(segment.data)}"
                    )
                data += await storage.read(names[0], offset=offset, length=READ_BYTES)
            if data != segment.data[segment.start_offset :]:
                raise self._model.violated(f"tier 2 has other bytes of {name}")
        # What is to be deleted is known, without a look at what is there.
        known = needed | storage._journal.metadata.condemned.keys()
        left = {chunk.name for chunk in await chunks.list_chunks("")}
        orphans = {name for name in left - known if not name.startswith("_system/chunks")}
        if self._late.delivered_count:
            # A put that arrives after its chunk was deleted leaves an object that nobody looks for.
            orphans = set()
        if orphans or needed - left:
            raise self._model.violated(
                f"tier 2 keeps {sorted(orphans)} for nobody, and has no {sorted(needed - left)}"
            )


async def copy_of(chunks: ChunkStorage) -> MemoryChunkStorage:
    """Another storage with the same chunks."""
    copy = MemoryChunkStorage()
    for chunk in await chunks.list_chunks(""):
        data = b""
        if chunk.length:
            data = await chunks.read(chunk.name, offset=0, length=chunk.length)
        await copy.write(chunk.name, offset=0, data=[data])
    return copy


def parse_chunk_name(chunk: str) -> tuple[str, int | None]:
    """Segment and the chunk's start offset; None for chunks that hold something else."""
    storage_name, _, maker = chunk.rpartition("$")
    name, _, segment_id = storage_name.rpartition(".S-")
    start, _, _ = maker.partition(".")
    if not segment_id.isdigit() or not start.isdigit():
        return name, None
    return name, int(start)


async def observe(container: SegmentContainer, name: str, attribute_ids: list[bytes]) -> Observed:
    """Read a segment whole. Raises ``NoSuchSegmentError``."""
    await _insist(lambda: container.activate(name))
    info = container.segment_info(name)
    attributes = await _insist(lambda: container.get_attributes(name, attribute_ids))
    data = bytearray()
    while (offset := info.start_offset + len(data)) < info.length:
        length_max = min(READ_BYTES, info.length - offset)
        result = await _insist(
            lambda: container.read(name, offset=offset, length_max=length_max)  # noqa: B023
        )
        if not result.data:
            raise NoSuchSegmentError(name)
        data += result.data
    return Observed(
        info.segment_type, info.start_offset, info.length, info.sealed, attributes, bytes(data)
    )


async def _insist(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except StorageError:
            await trio.sleep(RETRY_SECONDS)
