"""Builds a segment store process that is a member of a cluster.

Owns: the logs on bookies and the tier 2 that the containers share, and how long each of these
lives.

Invariants:
1. When tier 2 belongs to another cluster, or is missing, the store does not join, and changes
   nothing in tier 2. Held by ``test_another_tier_2_is_refused_and_left_as_it_is``.
2. When a container waited for its turn to be opened, the store reads the map again before it opens
   the log: opening a log takes it away from its owner. Held by
   ``test_the_map_is_looked_at_right_before_an_opening``.
3. The owner of a container is the process that opened its log last. When an earlier owner
   continues, nothing that it does has an effect: the log refuses its entries and truncations, later
   owners do not read its chunks, and it deletes no chunk that the next owner may still need. Held
   by ``test_nothing_is_lost_by_owners_that_were_overtaken`` and
   ``test_a_store_that_was_cut_off_from_zookeeper_writes_until_it_is_fenced``.
4. When an owner opens a container, it does not trust writes that an earlier owner left unfinished,
   because that owner may have run on another machine (docs/adr/0333). Held by
   ``test_owners_that_share_a_tier_2_never_trust_each_others_unfinished_writes``.
"""

from __future__ import annotations

import ssl
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
from bookkeeper_client.state_machines.racks import Racks
from pravega_security.tls import client_context
from segstore.api import SegmentContainer
from segstore.errors import DataLogError, FencedOutError, leaf_errors
from segstore.ownership.cluster_identity import confirm_tier_two, join_cluster
from segstore.process.config import BookieTlsSettings, ClusterSettings, SegmentStoreConfig
from segstore.process.container_opening import ContainerOpening, scrub_policy
from segstore.process.registry import OpenContainer
from segstore.process.tier_two import name_start, open_shared_storage
from segstore.runtime.clock import wall_clock_ms
from segstore.runtime.space import SpaceWatch
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
    """The methods of a cluster's membership that this module needs."""

    @property
    def zookeeper(self) -> ZooKeeper:
        """Return a client of ZooKeeper that outlives sessions."""
        ...

    @property
    def root(self) -> str:
        """Return the root of the cluster in ZooKeeper."""
        ...

    async def wait_assigned(self, container_id: int) -> None:
        """Read the map until it assigns the container to this host."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts that the containers use and that are not in the configuration: clocks, random
    numbers, connections."""

    now_ms: Callable[[], int] = wall_clock_ms
    """Returns milliseconds since 1970."""
    random: Random = field(default_factory=SystemRandom)
    open_stream: OpenStream = trio.open_tcp_stream
    bookkeeper: BookKeeperSettings = field(default_factory=BookKeeperSettings)
    tier_two: ChunkStorage | None = None
    """Tier 2 of the store; None to use the one in the configuration."""


@asynccontextmanager
async def open_cluster_containers(
    config: SegmentStoreConfig,
    assignments: Assignments,
    nursery: trio.Nursery,
    surroundings: Surroundings,
) -> AsyncIterator[OpenContainer]:
    """Join the cluster, and yield the function that opens its containers. ``nursery`` runs the
    tasks that the containers need until they are closed.

    Waits while ZooKeeper cannot be reached, or no bookie has registered. Raises ``IdentityError``
    when tier 2 belongs to another cluster, and ``StorageConfigurationError`` or
    ``StorageUnreachableError`` when tier 2 cannot be used.
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
        client = await _open_client(zookeeper, ledgers_root, nursery, settings, surroundings)
        logs = BookKeeperLogFactory(zookeeper, f"{root}/{LOGS}", client, _log_settings(settings))
        if (
            surroundings.tier_two is None
            and config.tier2 is None
            and config.storage_dir is not None
        ):
            nursery.start_soon(SpaceWatch([config.storage_dir]).run)
        # All logs are on bookies. In the identity of tier 2 all logs on bookies count as one
        # journal.
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
    settings: ClusterSettings,
    surroundings: Surroundings,
) -> BookKeeper:
    tls = settings.bookie_tls
    make_context = None if tls is None else partial(_make_bookie_context, tls)
    while True:
        try:
            return await open_bookkeeper(
                zookeeper,
                ledgers_root,
                nursery,
                settings=surroundings.bookkeeper,
                racks=Racks(settings.racks),
                random=surroundings.random,
                open_transport=make_opener(surroundings.open_stream, make_context),
            )
        except (BookKeeperError, ZooKeeperError) as error:
            logger.warning("bookies are looked for later", error=str(error))
            await trio.sleep(RETRY_SECONDS)


def _make_bookie_context(tls: BookieTlsSettings) -> ssl.SSLContext:
    return client_context(
        tls.ca, check_hostname=tls.checks_host, certificate=tls.certificate, key=tls.key
    )


def _log_settings(settings: ClusterSettings) -> BookKeeperLogSettings:
    return BookKeeperLogSettings(
        quorums=Quorums(*settings.replicas),
        password=settings.password.encode(),
        ledger_bytes_max=settings.ledger_bytes_max,
    )


class _ClusterOpener:
    """Opens the containers that the map assigns to this host."""

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
                # The map may have changed while this container waited for its turn. If the map
                # names another host now, the turn goes to another container.
                with trio.move_on_after(LOOK_SECONDS_MAX) as look:
                    await self._assignments.wait_assigned(container_id)
                if not look.cancelled_caught:
                    return await stack.enter_async_context(self._open(container_id))

    @asynccontextmanager
    async def _open(self, container_id: int) -> AsyncIterator[SegmentContainer]:
        try:
            # Tier 2 was checked at the start of the store, which may be long ago.
            await self._confirm()
            async with self._opening.open_on(
                self._logs, container_id, log_bytes=None, confirm=self._confirm
            ) as container:
                yield container
        except* FencedOutError as group:
            # In a cluster no operator has to decide: the map says which store continues.
            raise DataLogError(", ".join(map(str, leaf_errors(group)))) from group
