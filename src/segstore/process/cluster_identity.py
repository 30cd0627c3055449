"""The identity of a cluster: what ties its tier 2 to it.

Owns: the identity's node in ZooKeeper, its bytes, and the checks of a store that joins;
docs/formats/identities.md describes them, docs/adr/0332 tells why.

    format_version = 1
    cluster_id = "<32 hexadecimal digits>"
    container_count = 4
    state = "new" | "complete"

Invariants:
1. The node is made once, by the store that comes first; the number of containers never changes.
2. A cluster makes the identity of its tier 2 while its state is ``new``, and only where no chunk
   is. From then on nothing is made where it is missing.
3. A store begins with a tier 2 that has the cluster's identity. What is refused is not changed.

Who may write what of a container is not decided here, but by the epoch of its log.
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
    FencedOutError,
    IdentityError,
    IdentityProblem,
    StorageError,
)
from segstore.process.data_directory import StoreState
from segstore.process.identity import TIER_2, TierTwoIdentity, identity_name
from segstore.process.tier_two_vendors import TierTwo
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
"""Name of the node, below the identity's, of the store that makes tier 2 now. Two that did so at
once could do it in two places."""
RETRY_SECONDS: Final = 1.0
_ID: Final = re.compile("[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The contents of the node."""

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
        """Return the identity in a node's bytes. Raises ``IdentityError`` for other bytes."""
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
    tier: TierTwo,
    *,
    container_count: int,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> ClusterIdentity:
    """Check that tier 2 is that of the cluster whose nodes are below ``root``; make both the first
    time.

    Waits for a ZooKeeper that is away. Raises ``IdentityError`` and ``StorageError``.
    """
    path = f"{root}/{NODE}"
    new = ClusterIdentity(random_bytes(16).hex(), container_count, StoreState.NEW)
    while True:
        try:
            return await _join(zookeeper, path, tier, new)
        except (ConnectionLostError, BadVersionError, NodeExistsError, NoNodeError):
            # The next look shows what happened.
            await trio.sleep(RETRY_SECONDS)


async def _join(
    zookeeper: ZooKeeper, path: str, tier: TierTwo, new: ClusterIdentity
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


async def _check(identity: ClusterIdentity, tier: TierTwo) -> None:
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


async def _make(identity: ClusterIdentity, tier: TierTwo) -> None:
    """Make the identity of tier 2, as other stores of the cluster may do at the same time.

    Two clusters that meet here are both refused: the first one may not have seen the second.
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


async def _is_made(identity: ClusterIdentity, tier: TierTwo) -> bool:
    """Return whether another store of the cluster has made the identity since we looked."""
    return identity.cluster_id in (await TierTwoIdentity.read(tier.chunks_under(1))).store_ids


def _foreign(identity: ClusterIdentity, tier: TierTwo, what: str) -> IdentityError:
    return IdentityError(
        f"cluster {identity.cluster_id} expects its tier 2, or an empty place for it, in"
        f" {tier.where}, which {what}: name the right place",
        tier=TIER_2,
        problem=IdentityProblem.FOREIGN,
    )


async def confirm_tier_two(identity: ClusterIdentity, chunks: ChunkStorage, where: str) -> None:
    """Check, before a log is truncated, that tier 2 is still the cluster's.

    Raises ``FencedOutError`` when it was emptied or replaced, ``StorageError`` when that cannot be
    found out.
    """
    found = await TierTwoIdentity.read(chunks)
    if identity.cluster_id not in found.store_ids:
        raise FencedOutError(
            f"tier 2 in {where} is not that of cluster {identity.cluster_id} any more: it was"
            " emptied or replaced; put it back as it was. What is in the logs stays there"
        )
