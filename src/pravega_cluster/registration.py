"""Keeps a host registered in ZooKeeper while its process lives, by an ephemeral node.

Owns: ``keep_registered`` and ``unregister``.

Invariants:
1. When an earlier session, as before a restart, still has the host's node, this session waits until
   that node is gone and then makes its own; it never deletes the other one. Held by
   ``test_the_node_of_an_earlier_session_is_waited_out``.
2. When the node is deleted while the session lives, it is made again. Held by
   ``test_a_node_that_vanishes_is_made_again``.
"""

from __future__ import annotations

from contextlib import suppress

import structlog
import trio

from pravega_cluster.following import LOOK_SECONDS, RETRY_SECONDS, raise_if_lost, wait_for_change
from pravega_cluster.records import Host, encode_host
from zookeeper_client.api import (
    NodeExistsError,
    NoNodeError,
    OnChange,
    SessionLostError,
    ZooKeeper,
    ZooKeeperError,
    ensure_path,
)

log = structlog.get_logger(__name__)


async def keep_registered(
    zookeeper: ZooKeeper,
    parent: str,
    host: Host,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep a host registered below the path ``parent``. ``task_status.started`` is called when it
    is registered. Raises ``SessionLostError``."""
    path = f"{parent}/{host.node_name}"
    is_registered = is_told = False
    while True:
        changed = trio.Event()
        seconds = LOOK_SECONDS
        try:
            is_own = await _hold(zookeeper, path, encode_host(host), changed.set)
        except SessionLostError:
            raise
        except ZooKeeperError as error:
            log.warning("cannot be registered now", node=path, reason=repr(error))
            seconds = RETRY_SECONDS
        else:
            if is_own and not is_registered:
                is_registered = True
                log.info("registered", node=path)
                task_status.started()
            elif not is_own and not is_told:
                is_told = True
                log.info("waiting for the end of an earlier session", node=path)
        await wait_for_change(zookeeper, changed, seconds)


async def unregister(zookeeper: ZooKeeper, parent: str, host: Host) -> None:
    """Delete the host's node if this session made it. Call it after ``keep_registered`` was
    cancelled.

    Raises ``ZooKeeperError``; the node then ends with the session.
    """
    raise_if_lost(zookeeper)
    path = f"{parent}/{host.node_name}"
    with suppress(NoNodeError):
        if await zookeeper.is_own(path):
            await zookeeper.delete(path)


async def _hold(zookeeper: ZooKeeper, path: str, data: bytes, on_change: OnChange) -> bool:
    """Create the node if there is none, and return whether it is this session's."""
    try:
        await zookeeper.create(path, data, is_ephemeral=True)
    except NodeExistsError:
        pass
    except NoNodeError:
        await ensure_path(zookeeper, path.rpartition("/")[0])
        await zookeeper.create(path, data, is_ephemeral=True)
    try:
        await zookeeper.get(path, on_change)
        return await zookeeper.is_own(path)
    except NoNodeError:
        # The node was removed meanwhile: look again at once.
        on_change()
        return False
