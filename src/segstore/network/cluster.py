"""Runs a segment store that is a member of a cluster.

Owns: ``serve_in_cluster``, which opens what such a store needs. Sessions with ZooKeeper and
connections to bookies are closed after the containers that use them.
"""

from __future__ import annotations

import trio

from segstore.network.server import serve
from segstore.process.cluster_assembly import Surroundings, open_cluster_containers
from segstore.process.config import SegmentStoreConfig
from segstore.process.membership import Membership, make_membership
from segstore.runtime.lasting_nursery import open_lasting_nursery
from segstore.runtime.reactor import current_reactor


async def serve_in_cluster(
    config: SegmentStoreConfig,
    *,
    membership: Membership | None = None,
    surroundings: Surroundings | None = None,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a segment store of a cluster; see ``serve``.

    Raises ``IdentityError`` when tier 2 belongs to another cluster, and ``StorageError`` when tier
    2 cannot be used. Waits while ZooKeeper or bookies cannot be reached.
    """
    assert config.cluster is not None
    member = membership or make_membership(config.cluster, (config.host, config.port))
    async with open_lasting_nursery() as nursery:
        nursery.start_soon(member.run)
        await nursery.start(current_reactor().run)
        async with open_cluster_containers(
            config, member, nursery, surroundings or Surroundings()
        ) as open_container:
            await serve(
                config,
                open_container,
                membership=member,
                shutdown=shutdown,
                task_status=task_status,
            )
