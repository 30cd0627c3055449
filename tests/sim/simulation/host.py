"""One container of the store, in one opening after another.

Owns: ``Host``: how its container is opened, checked, served, and opened again when it alone has
failed; ``Session``, one opening as clients see it.

Invariants:
1. Before clients come back the recovered state is compared with the model, byte for byte.
2. A container fails alone when its log is opened by another owner, when its owner ends it, when
   tier 2 refuses its opening, or when a record of it is damaged. It is opened again in the same
   life, and nobody else notices: every other failure of a container ends the life, and the run if
   nothing explains it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, NoReturn, TypeVar

import trio
from wall_clocks import WallClock

from _fast.btree.tree import PageCache
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import open_container
from segstore.errors import (
    ContainerOfflineError,
    DataLogCorruptError,
    DataLogError,
    NoSuchSegmentError,
    StorageError,
)
from segstore.inactive.eviction import EvictionPolicy
from segstore.model.segment_attributes import AttributeCache
from segstore.network.server import ConnectionServer, accept_connections
from segstore.process.config import ConnectionSettings
from segstore.process.registry import ContainerRegistry
from segstore.process.tier_one import raise_when_failed
from segstore.process.tier_two import EpochRecordingLogs
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from segstore.testing.wire_client import WireClient
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal import Journal
from segstore.writer.failing_segments import is_strange
from segstore.writer.flush_policy import FlushPolicy
from simulation.buffers import check_buffers
from simulation.checked_container import CheckedContainer
from simulation.damage import DamagedReads
from simulation.model import Model, Observed
from simulation.network import Network, SimulatedListener
from simulation.plan import KIB, Plan

if TYPE_CHECKING:
    from simulation.store import Faults, Store

T = TypeVar("T")

CALM_DRAIN_SECONDS = 400.0
"""A life that is killed in its drain takes it twice, and nobody may have to wait for 1,000 s."""
READ_BYTES = 256 * KIB
RETRY_SECONDS = 0.1
GARBAGE_SECONDS = 0.05
RESERVE_BYTES = 16 * KIB
WRITE_BYTES_MAX = 128 * KIB
"""Maximum length of a write to a tier 2 that has little space: it takes writes whole or not."""
LOOK_SECONDS = 0.05
MOVE_BYTES_MIN = 1000
SNAPSHOT_BYTES_MIN = 4 * KIB
CONNECTIONS_DRAIN_SECONDS = 5.0

CONNECTION_SETTINGS = ConnectionSettings(
    commands_per_turn=3,
    requests_max=4,
    outstanding_bytes_free=10 * KIB,
    outstanding_bytes_max=100 * KIB,
    outstanding_bytes_total_max=200 * KIB,
    send_bytes_pause=50 * KIB,
    buffer_bytes_total_max=400 * KIB,
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


class Mishap(Enum):
    """The event that ends one container of the store."""

    FENCED = "another owner opens its log"
    ENDED = "its owner ends it"


class EndedError(Exception):
    """The owner of a container ends it."""


class Session:
    """One life of the store as clients see it."""

    def __init__(
        self, container: CheckedContainer, network: Network, planted: Faults, clock: WallClock
    ) -> None:
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
        self._hosted.mark_online(container, self.tables)
        self._server = ConnectionServer(
            registry,
            CONNECTION_SETTINGS,
            now_ms=clock.now_ms,
            random_bytes=random.randbytes,
        )
        self._listener: SimulatedListener | None = None

    @property
    def is_serving(self) -> bool:
        """Return whether this life takes new clients."""
        return self._listener is not None and self.container.accepting

    def dial(self) -> WireClient:
        """Open a connection over the network.

        Raises ``ContainerOfflineError`` when nobody listens.
        """
        if self._listener is None:
            raise ContainerOfflineError("nobody listens")
        client, server = self._network.connect()
        self._listener.put(self._planted.stream(server))
        return WireClient(client)

    def check_buffers(self) -> None:
        """See that what connections have in buffers is within its bounds."""
        if wrong := check_buffers(self._server):
            raise self.container.violated(wrong)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve connections inside the block, and drain them at its end."""
        server, listener, shutdown = self._server, self._network.listener(), trio.Event()
        async with trio.open_nursery() as watching:
            watching.start_soon(server.end_stalled)
            async with trio.open_nursery() as connections:
                connections.start_soon(
                    accept_connections,
                    server,
                    [listener],
                    connections,
                    shutdown,
                    trio.TASK_STATUS_IGNORED,
                )
                self._listener = listener
                try:
                    yield
                finally:
                    self._listener = None
                self._hosted.mark_unavailable()
                shutdown.set()
                server.drain()
                connections.cancel_scope.deadline = trio.current_time() + CONNECTIONS_DRAIN_SECONDS
            watching.cancel_scope.cancel()
        if (left := self._server.buffered_bytes) != 0:
            raise self.container.violated(f"connections that ended left {left} bytes in buffers")


def _opened_elsewhere(container_id: int) -> NoReturn:
    raise AssertionError(f"container {container_id} is opened by its life")


@dataclass(slots=True)
class Life:
    """The common state of the containers of one life."""

    journal: Journal
    manager: CacheManager
    pages: PageCache
    ending: trio.Event = field(default_factory=trio.Event)
    """Set when the containers are to be closed."""


class Host:
    """A host of one container; see the module. ``number`` is the container's."""

    def __init__(self, number: int, store: Store, plan: Plan, random: Random, model: Model) -> None:
        self.number = number
        self.scope = "scope" if number == 0 else f"scope{number}"
        """All its segments have names in this one."""
        self.model = model
        self.session: Session | None = None
        self.tried = trio.Event()
        self.damaged = False
        """True if a record of its log is damaged in this life."""
        self.opening_count = 0
        self._store = store
        self._plan = plan
        self._random = random
        self._container: CheckedContainer | None = None
        self._opened = trio.Event()
        self._mishap: Mishap | None = None
        self._has_mishap = trio.Event()

    # ---- Clients ---------------------------------------------------------------------------------

    async def connect(self) -> Session:
        """Wait until the container serves."""
        while self.session is None or not self.session.is_serving:
            await self._opened.wait()
        return self.session

    def note(self, what: str) -> None:
        """Count a fault that a client brings."""
        self._store.fault_counts[what] += 1

    def check_buffers(self) -> None:
        """See to the bounds of what connections have in buffers."""
        if self._container is not None and self.session is not None:
            self.session.check_buffers()

    @property
    def used_share(self) -> float:
        """Return how much of the store's space is used."""
        return self._store.used_share

    def calm_down(self) -> None:
        """Stop all faults from now on."""
        self._store.calm_down()

    def overdue(self, *, seconds: float) -> list[str]:
        """Return calls that have waited too long for their answers."""
        return [] if self._container is None else self._container.overdue(seconds=seconds)

    # ---- Openings --------------------------------------------------------------------------------

    def begin_life(self) -> None:
        """Begin another life of the store."""
        self.tried = trio.Event()
        self.damaged = False

    def disconnect(self) -> None:
        """Disconnect the clients from the container."""
        if self._container is not None:
            self._container.disconnect()

    def meet(self, mishap: Mishap) -> bool:
        """Let this happen to the container, unless something has happened since it was opened."""
        if self._mishap is not None:
            return False
        self._mishap = mishap
        self._has_mishap.set()
        return True

    async def keep_online(self, life: Life) -> None:
        """Open the container again and again until the life ends."""
        while not life.ending.is_set():
            self._mishap, self._has_mishap = None, trio.Event()
            self.opening_count += 1
            # What tier 2 refused before the calm came may be told later.
            was_calm = self._store.calm
            try:
                await self._serve(life)
            except* EndedError:
                pass
            except* DataLogError as group:
                self._tolerate(group, life, alone=self._mishap is Mishap.FENCED)
            except* StorageError as group:
                self._check_refusal(group)
                self._tolerate(group, life, alone=self._plan.containers > 1 and not was_calm)
            finally:
                waiting = [] if self._container is None else self._container.waiting_reads()
                self.disconnect()
                self._container = None
            if waiting:
                raise self.model.violated(f"their container has ended without an answer: {waiting}")
            self.tried.set()
            if not life.ending.is_set():
                self._store.trace(f"container {self.number} has failed: {self._mishap}")
                with trio.move_on_after(self._random.choice([0.001, 0.1, 1])):
                    await life.ending.wait()

    def _check_refusal(self, group: BaseExceptionGroup) -> None:
        """Check a refusal by tier 2: it may refuse an opening, but ends no serving container
        with intact chunks."""
        if self._container is None:
            self._store.fault_counts["opening refused by tier 2"] += 1
        elif not self._store.dead and group.split(is_strange)[1] is not None:
            raise self.model.violated(f"tier 2 ends a container that serves: {group.exceptions}")

    def _tolerate(self, group: BaseExceptionGroup, life: Life, *, alone: bool) -> None:
        """Raise an error again that is not the container's alone."""
        damaged, others = group.split(DataLogCorruptError)
        is_lost = self._store.dead or life.journal.failure is not None
        if is_lost or (damaged is not None and not self.damaged):
            raise group
        if others is not None and not alone and not self.damaged:
            raise others

    async def _serve(self, life: Life) -> None:
        store, plan = self._store, self._plan
        logs = EpochRecordingLogs(store.planted.logs(life.journal))
        chunks: ChunkStorage = store.tier_2(logs.epoch_now)
        if plan.damages_chunks:
            chunks = self._damaged(chunks)
        segments = self.segments(chunks, logs.epoch_now)
        if isinstance(chunks, DamagedReads):
            chunks.metadata_of = lambda: segments.journal.metadata
        logs.check_log = segments.check_log
        async with (
            open_container(
                self.number,
                logs,
                segments,
                life.manager,
                now_ms=store.clock.now_ms,
                drain_seconds=CALM_DRAIN_SECONDS if store.calm else plan.drain_seconds,
                flush_policy=FlushPolicy(
                    checkpoint_seconds=0.1,
                    held_bytes_max=min(plan.held_bytes_max, store.settings.journal_bytes_max // 4),
                    **({"write_bytes_max": WRITE_BYTES_MAX} if plan.tier_2_bytes else {}),
                ),
                throttling=ThrottlePolicy(
                    log_bytes_max=store.settings.journal_bytes_max * 3 // 4,
                    operations_max=plan.operations_max,
                    attributes_dirty_max=plan.attributes_dirty_max,
                ),
                log_bytes=life.journal.log_bytes,
                reserve_percent=life.journal.reserve_percent,
                attribute_pages=life.pages,
                attribute_cache=AttributeCache(
                    segment_count_max=plan.attributes_cached,
                    container_count_max=3 * plan.attributes_cached,
                ),
                eviction=EvictionPolicy(
                    active_count_max=plan.active_segments_max,
                    idle_seconds_max=plan.active_seconds_max,
                    look_seconds=LOOK_SECONDS,
                    relaxed_look_seconds=LOOK_SECONDS,
                ),
            ) as container,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(raise_when_failed, life.journal)
            nursery.start_soon(self._await_mishap, life)
            await self._serve_opened(container, life)
            nursery.cancel_scope.cancel()

    async def _serve_opened(self, container: SegmentContainer, life: Life) -> None:
        try:
            await self._check_recovered(container)
        except ContainerOfflineError:
            if not (self._store.dead or self._store.disk_fails or self._mishap or self.damaged):
                raise
            # The container's own end comes, and tells why.
            await trio.sleep_forever()
        async with self._serving(self._store.planted.container(container)):
            self.tried.set()
            await life.ending.wait()

    async def _await_mishap(self, life: Life) -> None:
        await self._has_mishap.wait()
        if self._mishap is Mishap.ENDED:
            raise EndedError
        await life.journal.open_log(self.number)

    def _damaged(self, chunks: ChunkStorage) -> DamagedReads:
        def note(what: str) -> None:
            self._store.fault_counts[what] += 1
            self._store.trace(what)

        return DamagedReads(
            chunks,
            self._store.memory,
            Random(self._random.getrandbits(64)),
            note=note,
            is_calm=lambda: self._store.calm,
        )

    def segments(self, chunks: object, epoch: Callable[[], int]) -> ChunkedSegmentStorage:
        """Return the container's segments in tier 2."""
        return ChunkedSegmentStorage(
            chunks,
            epoch=epoch,
            container_id=self.number,
            garbage_delay_seconds=GARBAGE_SECONDS,
            move_bytes_min=MOVE_BYTES_MIN,
            snapshot_bytes_min=SNAPSHOT_BYTES_MIN,
            reserve_bytes=RESERVE_BYTES if self._plan.tier_2_bytes else 0,
        )

    def owns(self, storage_name: str) -> bool:
        """Return whether a segment, by its name in tier 2, is the container's."""
        return storage_name.startswith(f"{self.scope}/")

    @asynccontextmanager
    async def _serving(self, container: SegmentContainer) -> AsyncIterator[None]:
        # A life that was killed while it recovered serves nobody.
        await trio.lowlevel.checkpoint_if_cancelled()
        store = self._store
        checked = self._container = CheckedContainer(container, self.model, store.trace)
        session = self.session = Session(checked, store.network, store.planted, store.clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.tables.run)
            async with session.listening():
                opened, self._opened = self._opened, trio.Event()
                opened.set()
                yield
            if checked.empty_answer is not None:
                raise self.model.violated(checked.empty_answer)
            checked.refuse()
            nursery.cancel_scope.cancel()

    async def _check_recovered(self, container: SegmentContainer) -> None:
        """Read everything there is and compare it with the model."""
        observed = {}
        for name, attribute_ids in list(self.model.attribute_ids.items()):
            with suppress(NoSuchSegmentError):
                observed[name] = await observe(container, name, list(attribute_ids))
        call = self.model.recovered(observed)
        await container.wait_in_flight("")
        if not self._store.dead:
            self.model.answered(call, 0)


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
            await container.wait_in_flight(name)  # raises if that is because it fails just now
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
