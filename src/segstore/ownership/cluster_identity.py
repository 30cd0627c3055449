"""The identity of a cluster, by which its stores recognize their tier 2.

Owns: the identity's node in ZooKeeper, its bytes, and the checks of a store that joins;
docs/formats/identities.md describes them, docs/adr/0201 explains why. Refusals follow the rules in
the package's docstring. The epoch of a container's log, and not this module, decides which store
may write for the container.

    format_version = 1
    cluster_id = "<32 hexadecimal digits>"
    container_count = 4
    state = "new" | "complete"

Invariants:
1. When several stores of a new cluster start at the same time, one of them makes the node, and all
   join the same cluster. Held by ``test_stores_that_join_at_once_are_of_one_cluster``.
2. When a store has another number of containers than the cluster, it is refused. Held by
   ``test_the_number_of_containers_never_changes``.
3. When a cluster is new, it makes its identity in a tier 2 without chunks only. When the cluster is
   complete, a tier 2 without its identity is refused, and gets none. Held by
   ``test_another_tier_2_is_refused_and_left_as_it_is``.
4. When two stores of a new cluster see different directories as tier 2, at most one joins. Held by
   ``test_stores_on_two_places_are_not_of_one_cluster``.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from segstore.errors import (
    IdentityError,
    IdentityProblem,
    StorageAbsentError,
    StorageError,
)
from segstore.ownership.data_directory import StoreState
from segstore.ownership.tier_two_identity import (
    TIER_2,
    TierTwoIdentity,
    TierTwoPlace,
    identity_name,
)
from segstore.tiers.api import ChunkStorage
from zookeeper_client.api import (
    BadVersionError,
    ConnectionLostError,
    NodeExistsError,
    NoNodeError,
    ZooKeeper,
    ZooKeeperError,
    ensure_path,
)

CLUSTER: Final = "cluster"
NODE: Final = "segstore/identity"
"""Path of the identity's node, below the root of the cluster."""
MAKER: Final = "maker"
"""Name of the node, below the identity's, of the store that makes the identity of tier 2 now. If
two stores made it at the same time, they could make it in two places."""
RETRY_SECONDS: Final = 1.0
_ID: Final = re.compile("[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The contents of the identity's node."""

    cluster_id: str
    container_count: int
    state: StoreState

    def encode(self) -> bytes:
        """Return the node's bytes."""
        return (
            "format_version = 1\n"
            f'cluster_id = "{self.cluster_id}"\n'
            f"container_count = {self.container_count}\n"
            f'state = "{self.state}"\n'
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> ClusterIdentity:
        """Return the identity that a node's bytes contain. Raises ``IdentityError`` when they
        contain none."""
        try:
            fields = tomllib.loads(data.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):
            fields = {}
        match fields:
            case {
                "format_version": 1,
                "cluster_id": str(cluster_id),
                "container_count": int(container_count),
                "state": "new" | "complete" as state,
            } if _ID.fullmatch(cluster_id) and container_count > 0:
                return cls(cluster_id, container_count, StoreState(state))
            case _:
                raise IdentityError(
                    f"the identity of the cluster in ZooKeeper is damaged or of another version:"
                    f" {data[:200]!r}",
                    tier=CLUSTER,
                    problem=IdentityProblem.CHANGED,
                )


async def join_cluster(
    zookeeper: ZooKeeper,
    root: str,
    tier: TierTwoPlace,
    *,
    container_count: int,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> ClusterIdentity:
    """Check that tier 2 belongs to the cluster whose nodes are below ``root``, and return the
    cluster's identity. For a new cluster, make its identity in ZooKeeper and in tier 2.

    Waits while ZooKeeper cannot be reached. Raises ``IdentityError`` and ``StorageError``.
    """
    path = f"{root}/{NODE}"
    new = ClusterIdentity(random_bytes(16).hex(), container_count, StoreState.NEW)
    while True:
        try:
            return await _join(zookeeper, path, tier, new)
        except (ConnectionLostError, BadVersionError, NodeExistsError, NoNodeError):
            # Reading the nodes again shows whether the call took effect.
            await trio.sleep(RETRY_SECONDS)


async def _join(
    zookeeper: ZooKeeper, path: str, tier: TierTwoPlace, new: ClusterIdentity
) -> ClusterIdentity:
    try:
        data, version = await zookeeper.get(path)
    except NoNodeError:
        await ensure_path(zookeeper, path.rpartition("/")[0])
        with suppress(NodeExistsError):
            await zookeeper.create(path, new.encode())
        data, version = await zookeeper.get(path)
    found = ClusterIdentity.decode(data)
    if found.container_count != new.container_count:
        raise IdentityError(
            f"the cluster was made for {found.container_count} containers and cannot be used with"
            f" {new.container_count}",
            tier=CLUSTER,
            problem=IdentityProblem.CHANGED,
        )
    if found.state is StoreState.COMPLETE:
        await _check(found, tier)
        return found
    maker = f"{path}/{MAKER}"
    try:
        await zookeeper.create(maker, b"", is_ephemeral=True)
    except NodeExistsError:
        if not await zookeeper.is_own(maker):
            raise
    try:
        await _make(found, tier)
        complete = replace(found, state=StoreState.COMPLETE)
        await zookeeper.set(path, complete.encode(), version)
    finally:
        with suppress(ZooKeeperError):
            if await zookeeper.is_own(maker):
                await zookeeper.delete(maker)
    return complete


async def _check(identity: ClusterIdentity, tier: TierTwoPlace) -> None:
    store_ids = (await TierTwoIdentity.read(tier.chunks_under(1))).store_ids
    if identity.cluster_id in store_ids:
        return
    if store_ids:
        raise _foreign(identity, tier, f"belongs to another store ({', '.join(sorted(store_ids))})")
    raise IdentityError(
        f"tier 2 of cluster {identity.cluster_id} is expected in {tier.where}, and is not there:"
        " mount what is missing or name the right place; nothing was written",
        tier=TIER_2,
        problem=IdentityProblem.MISSING,
    )


async def _make(identity: ClusterIdentity, tier: TierTwoPlace) -> None:
    """Make the identity of tier 2. Other stores of the cluster may do the same at the same time.

    If two clusters make their identities at the same time, both are refused, because the first one
    may not see the identity of the second.
    """
    await tier.make()
    chunks = tier.chunks_under(1)
    names = [each.name for each in await chunks.list_chunks("")]
    own = identity_name(identity.cluster_id)
    if own not in names:
        if names and not await _is_made(identity, tier):
            raise _foreign(identity, tier, f"has chunks already, such as {names[0]}")
        text = f"This is tier 2 of the segstore cluster {identity.cluster_id}.\n"
        try:
            await chunks.write(own, offset=0, data=[text.encode()])
        except StorageError:
            # Another store of the cluster may have made it at the same time.
            if not await _is_made(identity, tier):
                raise
    store_ids = (await TierTwoIdentity.read(chunks)).store_ids
    if others := store_ids - {identity.cluster_id}:
        raise _foreign(identity, tier, f"belongs to another store ({', '.join(sorted(others))})")
    if not store_ids:
        raise StorageError(f"tier 2 in {tier.where} does not list {own}, which was just written")


async def _is_made(identity: ClusterIdentity, tier: TierTwoPlace) -> bool:
    """Return whether tier 2 has the cluster's identity now, which another store may have made."""
    return identity.cluster_id in (await TierTwoIdentity.read(tier.chunks_under(1))).store_ids


def _foreign(identity: ClusterIdentity, tier: TierTwoPlace, what: str) -> IdentityError:
    return IdentityError(
        f"cluster {identity.cluster_id} expects its tier 2, or an empty place for it, in"
        f" {tier.where}, which {what}: name the right place",
        tier=TIER_2,
        problem=IdentityProblem.FOREIGN,
    )


async def confirm_tier_two(identity: ClusterIdentity, chunks: ChunkStorage, where: str) -> None:
    """Check, before a log is truncated, that tier 2 still belongs to the cluster.

    Raises ``StorageAbsentError`` when it was emptied or replaced, and ``StorageError`` when it does
    not answer.
    """
    found = await TierTwoIdentity.read(chunks)
    if identity.cluster_id not in found.store_ids:
        raise StorageAbsentError(
            f"tier 2 in {where} is not that of cluster {identity.cluster_id} any more: it was"
            " emptied or replaced; put it back as it was. What is in the logs stays there"
        )
