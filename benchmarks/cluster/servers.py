"""The clusters that are measured: ours and the original in the same set-up."""

from dataclasses import dataclass

from foreign_servers.cluster import ClusterPeer, ClusterShape
from foreign_servers.original_durable import OriginalDurable

from benchmarks.measured import OURS
from benchmarks.peers.segstore_cluster import SegstoreCluster
from benchmarks.streams.rows import DURABLE

CACHE_BYTES = 2 * 2**30
"""More than what is not flushed: nobody may wait for tier 2."""
NEVER_FLUSHED = {
    "writer.flush.threshold.bytes": str(2**31 - 1),
    "writer.flush.threshold.milliseconds": str(24 * 3_600_000),
}
PEERS = (DURABLE,)


@dataclass(frozen=True, slots=True)
class SetUp:
    """The processes of a cluster; with ``is_tier_2_held``, what is written stays in tier 1."""

    name: str
    shape: ClusterShape
    is_tier_2_held: bool = False


THREE_BOOKIES = ClusterShape(bookies=3, replicas=(3, 3, 2))
THREE_STORES = ClusterShape(bookies=3, stores=3, containers=16, replicas=(3, 3, 2))
TWO_STORES = ClusterShape(bookies=3, stores=2, controllers=0, containers=1, replicas=(3, 3, 2))

ONE_BOOKIE_SET_UP = SetUp("one bookie", ClusterShape())
THREE_BOOKIES_SET_UP = SetUp("three bookies", THREE_BOOKIES)
RESTART_SET_UP = SetUp("three stores, unflushed", THREE_STORES, is_tier_2_held=True)
KILL_SET_UP = SetUp("the same, afresh", THREE_STORES, is_tier_2_held=True)
MOVE_SET_UP = SetUp("three stores", THREE_STORES)
OPEN_SET_UP = SetUp("two stores, unflushed", TWO_STORES, is_tier_2_held=True)


def make_cluster(key: str, set_up: SetUp) -> ClusterPeer:
    """Make a cluster of ours or of the original by its key.

    Both caches have the same bound where tier 2 takes nothing.
    """
    if key == OURS:
        settings = f"[segment_store]\ncache_bytes_max = {CACHE_BYTES}\n"
        return SegstoreCluster(
            set_up.shape,
            settings=settings if set_up.is_tier_2_held else "",
            is_tier_2_held=set_up.is_tier_2_held,
        )
    assert key == DURABLE, key
    if set_up.shape.stores == 1:
        return OriginalDurable(set_up.shape)
    properties = {"pravegaservice.cache.size.max": str(CACHE_BYTES)}
    return OriginalDurable(
        set_up.shape,
        segment_store_options=("-Xmx2g", "-XX:MaxDirectMemorySize=3g"),
        properties={**properties, **(NEVER_FLUSHED if set_up.is_tier_2_held else {})},
    )
