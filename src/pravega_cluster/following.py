"""Runs tasks that follow nodes of ZooKeeper, in one session after the other.

Owns: ``follow``, which calls a function with the content of a node after each change,
``live_in_sessions``, which opens a new session when the last one is lost, and ``wait_for_change``,
which also ends when the session does.
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
"""Maximum time, in seconds, between two reads of a node, even without a notification."""
RETRY_SECONDS = 1.0
"""Pause, in seconds, after a call without an answer, and after a failed attempt to open a
session."""

T = TypeVar("T")
OpenSession: TypeAlias = Callable[[trio.Nursery], AbstractAsyncContextManager[ZooKeeper]]
"""Opens a session, whose timer runs in the nursery, like ``open_zookeeper`` with its arguments."""

log = structlog.get_logger(__name__)


async def wait_for_change(zookeeper: ZooKeeper, changed: trio.Event, seconds_max: float) -> None:
    """Wait for an event, at most ``seconds_max``. Raises ``SessionLostError`` when the session
    ends."""

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

    ``read`` gets an ``on_change``, which it passes to ZooKeeper. If it cannot decode a node, this
    is logged, and the last content stays in use. Raises ``SessionLostError``.
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
    """Run ``live`` in a session, and again in a new session whenever one is lost. Never returns.

    ``live`` may run tasks of its own. If one of these raises ``SessionLostError`` or
    ``ConnectionLostError``, ``live`` must raise it, too.
    """
    while True:
        began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery, open_session(nursery) as zookeeper:
                await live(zookeeper)
                nursery.cancel_scope.cancel()
        except* (SessionLostError, ConnectionLostError) as group:
            log.warning("no session with ZooKeeper", reason=str(_first_leaf(group)))
        # After a session that lasted ``RETRY_SECONDS``, open the next one at once.
        await trio.sleep(max(0.0, RETRY_SECONDS - (trio.current_time() - began)))
