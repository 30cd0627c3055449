"""Tasks that follow nodes of ZooKeeper, in one session after the other.

Owns: ``follow`` (uses the content of a node, again after each change), ``live_in_sessions`` (opens
a session whenever the last one is lost), and waiting for a change without missing the end of the
session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias, TypeVar

import structlog
import trio

from pravega_cluster.records import ClusterRecordError
from zookeeper_client.api import (
    ConnectionLostError,
    OnChange,
    SessionLostError,
    ZooKeeper,
    ZooKeeperError,
)

LOOK_SECONDS = 10.0
"""Interval, in seconds, of reads of the nodes without a notification."""
RETRY_SECONDS = 1.0
"""Pause, in seconds, after a call without an answer, and after a failure to open a session."""

T = TypeVar("T")
OpenSession: TypeAlias = Callable[[trio.Nursery], AbstractAsyncContextManager[ZooKeeper]]
"""Opens a session, whose timer runs in the nursery; ``open_zookeeper`` with its arguments."""

log = structlog.get_logger(__name__)


async def wait_for_change(zookeeper: ZooKeeper, changed: trio.Event, seconds_max: float) -> None:
    """Wait for an event, for the session and the time at most. Raises ``SessionLostError``."""

    async def wait_for_end() -> None:
        await zookeeper.lost.wait()
        nursery.cancel_scope.cancel()

    with trio.move_on_after(seconds_max):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_end)
            await changed.wait()
            nursery.cancel_scope.cancel()
    raise_if_lost(zookeeper)


def raise_if_lost(zookeeper: ZooKeeper) -> None:
    """Raise ``SessionLostError`` if the session has ended."""
    if zookeeper.lost.is_set():
        raise SessionLostError("the session with ZooKeeper has ended")


async def follow(
    zookeeper: ZooKeeper,
    read: Callable[[OnChange], Awaitable[T]],
    use: Callable[[T], None],
) -> None:
    """Call ``use`` with the result of ``read``: now, after each change, and every ``LOOK_SECONDS``.

    ``read`` gets an ``on_change`` to pass on. A node that it cannot decode is logged and skipped:
    the last readable content stays in use. Ends by ``SessionLostError``.
    """
    while True:
        changed = trio.Event()
        seconds = LOOK_SECONDS
        try:
            use(await read(changed.set))
        except SessionLostError:
            raise
        except (ZooKeeperError, ClusterRecordError) as error:
            log.warning("ZooKeeper cannot be read now", reason=str(error))
            seconds = RETRY_SECONDS
        await wait_for_change(zookeeper, changed, seconds)


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def live_in_sessions(
    open_session: OpenSession, live: Callable[[ZooKeeper], Awaitable[None]]
) -> None:
    """Run ``live`` in a session, and again in a new one whenever that is lost, for ever.

    ``live`` may run tasks of its own; when one raises an error of ZooKeeper's, so does ``live``.
    """
    while True:
        began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery, open_session(nursery) as zookeeper:
                await live(zookeeper)
                nursery.cancel_scope.cancel()
        except* (SessionLostError, ConnectionLostError) as group:
            log.warning("no session with ZooKeeper", reason=str(_first_leaf(group)))
        # A session that was lost after a good while is followed by another one at once.
        await trio.sleep(max(0.0, RETRY_SECONDS - (trio.current_time() - began)))
