"""The processes of a cluster: segment stores and controllers, put together as the real ones are.

Owns: ``StorePlace`` and ``ControllerPlace``: a host on which one process runs after the other.

What is real: everything of a store from its connections down to the protocol of bookies, and its
membership; all that a controller does in ZooKeeper. Instead of sockets there are ``Wires``, instead
of kazoo's client ``SimulatedKazoo``, and tier 2 is in memory, behind delays and errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import trio
from simulation.network import SimulatedListener
from wall_clocks import WallClock

from bookkeeper_client.client import BookKeeperSettings
from bookkeeper_client.connections.connections import ConnectionLimits
from cluster.links import Weather, Wires
from cluster.processes import Process
from cluster.zookeeper import SimulatedZooKeeper, open_simulated_session
from pravega_cluster.records import Host
from pravega_controller.background.cluster_membership import run_membership
from pravega_controller.config import ControllerConfig
from pravega_controller.store_client.placement import MapPlacement
from segstore.network.server import ConnectionServer, accept_connections
from segstore.process.cluster_assembly import Surroundings, open_cluster_containers
from segstore.process.config import (
    MIB,
    ClusterSettings,
    ConnectionSettings,
    ScrubSettings,
    SegmentStoreConfig,
)
from segstore.process.membership import Membership
from segstore.process.registry import ContainerRegistry, OpenContainer
from segstore.runtime.lasting_nursery import open_lasting_nursery
from segstore.tiers.memory import MemoryChunkStorage
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from zookeeper_client.api import ZooKeeper

CLUSTER = "simulated"
ZOOKEEPER = "zookeeper"
LEDGERS_ROOT = "/ledgers"
STORE_PORT = 12345
SESSION_SECONDS = 4.0
HAND_OVER_SECONDS_MAX = 8.0
DRAIN_SECONDS = 2.0
START_SECONDS_MAX = 5.0
BOOKKEEPER = BookKeeperSettings(
    connections=ConnectionLimits(connect_seconds_max=1.0, answer_seconds_max=2.0),
    slow_seconds=0.5,
    look_seconds=0.5,
    confirm_seconds_max=10.0,
    doubt_seconds=1.0,
)


@dataclass
class World:
    """The common parts of all processes of a run."""

    random: Random
    weather: Weather
    wires: Wires
    zookeeper: SimulatedZooKeeper
    tier_two: MemoryChunkStorage
    container_count: int
    replicas: tuple[int, int, int]
    ledger_bytes_max: int
    held_bytes_max: int
    counts: Counter[str]
    note: Callable[[str], None]
    clocks: Random
    """Draws what happens to wall clocks, and nothing else."""


class Place:
    """A host, and the process that runs there."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.clock = WallClock(Random(world.clocks.getrandbits(64)), self._note_clock)
        self.process: Process | None = None
        self.starts_again = False
        """True if another process is started soon, because the last one could not begin."""

    def _note_clock(self, what: str) -> None:
        self.world.counts["wall clock set"] += 1
        self.world.note(f"{self.name}: {what}")

    @property
    def is_up(self) -> bool:
        """Return whether there is a process; it may be stopped."""
        return self.process is not None and not self.process.ended.is_set()

    @property
    def is_alive(self) -> bool:
        """Return whether there is a process that was not killed."""
        return self.process is not None and self.is_up and not self.process.is_dead

    @property
    def has_not_begun(self) -> bool:
        """Return whether it is still reading the current state."""
        return False

    async def run(self, main: Callable[[Process], Awaitable[None]]) -> None:
        """Run a process here, to its end."""
        process = self.process = Process(self.name)
        process.on_kill.append(partial(self.world.wires.break_off, self.name))
        await process.run(partial(main, process))

    def open_session(
        self, process: Process, nursery: trio.Nursery
    ) -> AbstractAsyncContextManager[ZooKeeper]:
        """Open a session with ZooKeeper."""
        return open_simulated_session(
            self.world.zookeeper,
            self.world.wires.link(self.name, ZOOKEEPER),
            process,
            nursery,
            session_seconds=SESSION_SECONDS,
        )


class StorePlace(Place):
    """A host for a segment store."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.host = Host(name, STORE_PORT)
        self.registry: ContainerRegistry | None = None
        self.chunks: FaultyChunkStorage | None = None
        self.shutdown = trio.Event()

    @property
    def has_not_begun(self) -> bool:
        """See ``Place``."""
        return self.registry is None

    @property
    def is_leaving(self) -> bool:
        """Return whether the store was told to end."""
        return self.shutdown.is_set()

    async def live(self) -> None:
        """Start a store, and run it to its end."""
        self.shutdown, self.registry = trio.Event(), None
        await self.run(self._main)
        self.registry = None
        # What a dead process had under way may still arrive, much later.
        if self.chunks is not None:
            await trio.sleep(self.world.random.choice([0.0, 0.1, 1.0]))
            await self.chunks.settle(self.world.random)

    async def _main(self, process: Process) -> None:
        world = self.world
        config = SegmentStoreConfig(
            host=self.name,
            port=STORE_PORT,
            data_dir=Path("unused"),
            container_count=world.container_count,
            start_seconds_max=START_SECONDS_MAX,
            cache_bytes_max=8 * MIB,
            drain_seconds=DRAIN_SECONDS,
            # Of a journal there is only the share of it that a container may hold unflushed.
            journal_bytes_max=4 * world.held_bytes_max,
            journal_file_bytes=world.held_bytes_max // 2,
            connections=ConnectionSettings(reply_age_seconds_min=0.0),
            scrub=ScrubSettings(bytes_per_second=0),
            cluster=ClusterSettings(
                zookeeper=ZOOKEEPER,
                name=CLUSTER,
                session_seconds=SESSION_SECONDS,
                ledgers_root=LEDGERS_ROOT,
                replicas=world.replicas,
                ledger_bytes_max=world.ledger_bytes_max,
            ),
        )
        surroundings = Surroundings(
            now_ms=self.clock.now_ms,
            random=Random(world.random.getrandbits(64)),
            open_stream=partial(world.wires.open_stream, self.name),
            bookkeeper=BOOKKEEPER,
            tier_two=self._tier_two(process),
        )
        membership = Membership(
            CLUSTER,
            self.host,
            partial(self.open_session, process),
            hand_over_seconds_max=HAND_OVER_SECONDS_MAX,
        )
        async with open_lasting_nursery() as nursery:
            nursery.start_soon(membership.run)
            async with open_cluster_containers(
                config, membership, nursery, surroundings
            ) as open_container:
                await self._serve(process, config, open_container, membership)

    async def _serve(
        self,
        process: Process,
        config: SegmentStoreConfig,
        open_container: OpenContainer,
        membership: Membership,
    ) -> None:
        """Serve like ``segstore.network.server.serve``, without sockets."""
        world = self.world
        registry = self.registry = ContainerRegistry(
            open_container,
            container_count=config.container_count,
            container_ids=None,
            tables=config.tables,
            restart_seconds_min=config.restart_seconds_min,
            restart_seconds_max=membership.restart_seconds_max,
        )
        server = ConnectionServer(
            registry,
            config.bounded_connections(1000),
            now_ms=self.clock.now_ms,
            random_bytes=world.random.randbytes,
        )
        listener = SimulatedListener(lambda: 0)
        left = trio.Event()

        async def leave() -> None:
            await self.shutdown.wait()
            await membership.hand_over()
            left.set()

        async with trio.open_nursery() as containers:
            await containers.start(registry.run)
            with trio.move_on_after(config.start_seconds_max):
                await membership.begin(registry)
                await registry.wait_until_tried()
            world.wires.listen(self.name, listener.put)
            membership.mark_serving()
            containers.start_soon(leave)
            async with trio.open_nursery() as watching:
                watching.start_soon(server.end_stalled)
                async with trio.open_nursery() as connections:
                    await accept_connections(
                        server, [listener], connections, left, trio.TASK_STATUS_IGNORED
                    )
                    server.drain()
                    connections.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
                watching.cancel_scope.cancel()
            containers.cancel_scope.cancel()
        world.wires.break_off(self.name)

    def _tier_two(self, process: Process) -> FaultyChunkStorage:
        random, weather = self.world.random, self.world.weather

        def next_fault(_: str) -> Fault:
            if weather.is_calm or random.random() > 0.02:
                return Fault.NONE
            return random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])

        chunks = FaultyChunkStorage(
            self.world.tier_two,
            next_fault=next_fault,
            next_delay=lambda _: weather.delay(),
            next_reply_delay=lambda _: weather.delay(),
        )
        process.on_kill.append(chunks.abandon)
        self.chunks = chunks
        return chunks


class ControllerPlace(Place):
    """A host for a controller."""

    async def live(self) -> None:
        """Start a controller, and run it to its end."""
        await self.run(self._main)

    async def _main(self, process: Process) -> None:
        world = self.world
        config = ControllerConfig(
            host=self.name,
            container_count=world.container_count,
            zookeeper=ZOOKEEPER,
            cluster=CLUSTER,
            session_seconds=SESSION_SECONDS,
            rebalance_seconds_min=1.0,
        )
        serves = trio.Event()
        serves.set()
        await run_membership(
            config,
            MapPlacement(world.container_count),
            _NoSegmentClient(),
            serves=serves,
            open_session=partial(self.open_session, process),
            random=Random(world.random.getrandbits(64)),
        )


class _NoSegmentClient:
    """A segment client that is never used: the simulation has no requests to controllers."""

    def forget_other_stores(self, addresses: set[tuple[str, int]]) -> None:
        """Do nothing: no other store is known."""
