"""Puts a segment store process together that is a member of a cluster.

Owns: the logs on bookies and the tier 2 that its containers share, and their lifetimes.

Invariants:
1. Nothing is read from or written to tier 2 before ``process.cluster_identity`` has found that it
   is the cluster's.
2. A container is opened only after a look at the map that names this host: opening a log takes it
   from its owner, whom one that was mistaken must not disturb.
3. Who owns a container is the last that opened its log. It claims the chunks under the log's epoch,
   which no other owner ever has. What an earlier owner still does has no effect: its entries
   and its log's truncation are refused, its chunks are not looked at, and it deletes nothing on
   the strength of what the next owner has not read.
4. No machine keeps anything: each owner is in doubt about what one before it, on another machine
   or in another process, had not finished (docs/adr/0333).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random, SystemRandom
from typing import Protocol

import structlog
import trio

from bookkeeper_client.client import BookKeeper, BookKeeperSettings, open_bookkeeper
from bookkeeper_client.errors import BookKeeperError
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.racks import Racks
from segstore.api import SegmentContainer
from segstore.errors import DataLogError, FencedOutError, leaf_errors
from segstore.process.cluster_identity import confirm_tier_two, join_cluster
from segstore.process.config import ClusterSettings, SegmentStoreConfig
from segstore.process.container_opening import ContainerOpening, scrub_policy
from segstore.process.registry import OpenContainer
from segstore.process.tier_two import name_start, open_shared_storage
from segstore.runtime.clock import wall_clock_ms
from segstore.runtime.transport import OpenStream
from segstore.tiers.api import ChunkStorage
from segstore.tiers.bookkeeper import BookKeeperLogFactory, BookKeeperLogSettings
from segstore.tiers.bookkeeper.transports import make_opener
from zookeeper_client.api import ZooKeeper, ZooKeeperError

RETRY_SECONDS = 1.0
LOOK_SECONDS_MAX = 1.0
LOGS = "segmentstore/containers"
"""Path of the nodes of all logs, below the root of the cluster."""

logger = structlog.get_logger(__name__)


class Assignments(Protocol):
    """The methods that are needed of the membership in a cluster."""

    @property
    def zookeeper(self) -> ZooKeeper:
        """Return a client of ZooKeeper that outlives sessions."""
        ...

    @property
    def root(self) -> str:
        """Return the root of the cluster in ZooKeeper."""
        ...

    async def wait_assigned(self, container_id: int) -> None:
        """Wait until a look at the map finds that the container is this host's."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The things from outside that the containers use, besides those that the configuration
    names."""

    now_ms: Callable[[], int] = wall_clock_ms
    """Returns milliseconds since 1970."""
    random: Random = field(default_factory=SystemRandom)
    open_stream: OpenStream = trio.open_tcp_stream
    bookkeeper: BookKeeperSettings = field(default_factory=BookKeeperSettings)
    tier_two: ChunkStorage | None = None
    """Tier 2 of the store; None for the one that the configuration names."""


@asynccontextmanager
async def open_cluster_containers(
    config: SegmentStoreConfig,
    assignments: Assignments,
    nursery: trio.Nursery,
    surroundings: Surroundings,
) -> AsyncIterator[OpenContainer]:
    """Join the cluster and yield what opens its containers. The nursery has what they use until
    they are closed.

    Waits for a ZooKeeper that is away, or knows of no bookies yet. Raises ``IdentityError`` when
    tier 2 is not the cluster's, and ``StorageConfigurationError`` or ``StorageUnreachableError``
    when it cannot be used.
    """
    assert config.cluster is not None
    settings = config.cluster
    zookeeper, root = assignments.zookeeper, assignments.root
    async with open_shared_storage(config, given=surroundings.tier_two) as tier:
        identity = await join_cluster(
            zookeeper,
            root,
            tier,
            container_count=config.container_count,
            random_bytes=surroundings.random.randbytes,
        )
        ledgers_root = settings.ledgers_root or f"{root}/bookkeeper/ledgers"
        client = await _open_client(
            zookeeper, ledgers_root, nursery, Racks(settings.racks), surroundings
        )
        logs = BookKeeperLogFactory(zookeeper, f"{root}/{LOGS}", client, _log_settings(settings))
        # All logs are on bookies: to tier 2 that is one journal.
        [storage_of] = (await tier.open([0])).values()
        opening = ContainerOpening(
            config,
            lambda _: storage_of,
            boot_id=name_start(config.tier2, None, surroundings.random.randbytes),
            scrub=scrub_policy(config),
            readable=tier.readable_of(identity.cluster_id),
            now_ms=surroundings.now_ms,
        )
        confirm = partial(confirm_tier_two, identity, storage_of(lambda: 1), tier.where)
        starts = trio.CapacityLimiter(settings.parallel_starts_max)
        yield _ClusterOpener(opening, logs, assignments, confirm, starts).open


async def _open_client(
    zookeeper: ZooKeeper,
    ledgers_root: str,
    nursery: trio.Nursery,
    racks: Racks,
    surroundings: Surroundings,
) -> BookKeeper:
    while True:
        try:
            return await open_bookkeeper(
                zookeeper,
                ledgers_root,
                nursery,
                settings=surroundings.bookkeeper,
                racks=racks,
                random=surroundings.random,
                open_transport=make_opener(surroundings.open_stream),
            )
        except (BookKeeperError, ZooKeeperError) as error:
            logger.warning("bookies are looked for later", error=str(error))
            await trio.sleep(RETRY_SECONDS)


def _log_settings(settings: ClusterSettings) -> BookKeeperLogSettings:
    return BookKeeperLogSettings(
        quorums=Quorums(*settings.replicas),
        password=settings.password.encode(),
        ledger_bytes_max=settings.ledger_bytes_max,
    )


class _ClusterOpener:
    """Opens the containers that the host is given."""

    def __init__(
        self,
        opening: ContainerOpening,
        logs: BookKeeperLogFactory,
        assignments: Assignments,
        confirm: Callable[[], Awaitable[None]],
        starts: trio.CapacityLimiter,
    ) -> None:
        self._opening = opening
        self._logs = logs
        self._assignments = assignments
        self._confirm = confirm
        self._starts = starts

    @asynccontextmanager
    async def open(self, container_id: int) -> AsyncIterator[SegmentContainer]:
        """Open and serve a container inside the block."""
        async with AsyncExitStack() as stack:
            yield await self._open_in_turn(stack, container_id)

    async def _open_in_turn(self, stack: AsyncExitStack, container_id: int) -> SegmentContainer:
        while True:
            await self._assignments.wait_assigned(container_id)
            async with self._starts:
                # The wait for this place may have been long; who waits now leaves it to others.
                with trio.move_on_after(LOOK_SECONDS_MAX) as look:
                    await self._assignments.wait_assigned(container_id)
                if not look.cancelled_caught:
                    return await stack.enter_async_context(self._open(container_id))

    @asynccontextmanager
    async def _open(self, container_id: int) -> AsyncIterator[SegmentContainer]:
        try:
            # Before anything is written there: a store may run for long before it opens this one.
            await self._confirm()
            async with self._opening.open_on(
                self._logs, container_id, log_bytes=None, confirm=self._confirm
            ) as container:
                yield container
        except* FencedOutError as group:
            # No operator has to decide here: the map says which store continues.
            raise DataLogError(", ".join(map(str, leaf_errors(group)))) from group
