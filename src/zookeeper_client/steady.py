"""A ``ZooKeeper`` that uses one session after the other, for callers whose nodes do not belong to
one session.

Owns: ``SteadyZooKeeper``. The task that opens sessions passes the present one to ``using``.
Ephemeral nodes belong to the session that was present when they were made.

Invariants:
1. When there is no session, a call waits for one, at most ``wait_seconds_max``, and then raises
   ``ConnectionLostError``. Held by ``test_calls_wait_for_a_session_but_not_for_ever``.
2. When the session ends during a call, the call raises ``ConnectionLostError`` and is not repeated.
   Held by ``test_calls_go_to_the_session_of_now``.
3. When the session of a watch ends, the watch is called. Held by
   ``test_a_watch_is_called_once_for_a_change_or_at_the_end_of_its_session``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from zookeeper_client.api import (
    ANY_VERSION,
    ConnectionLostError,
    Node,
    OnChange,
    SessionLostError,
    ZooKeeper,
)

T = TypeVar("T")

WAIT_SECONDS_MAX = 10.0
"""Maximum time, in seconds, that a call waits for a session."""


class SteadyZooKeeper:
    """See ``ZooKeeper``; its ``lost`` is never set."""

    def __init__(self, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self.lost = trio.Event()
        self._wait_seconds_max = wait_seconds_max
        self._session: ZooKeeper | None = None
        self._came = trio.Event()
        self._watches: set[_Watch] = set()

    @contextmanager
    def using(self, session: ZooKeeper) -> Iterator[None]:
        """Send all calls to this session during the block, which the caller leaves when the session
        ends."""
        assert self._session is None, "one session after the other"
        self._session = session
        self._came.set()
        try:
            yield
        finally:
            self._session, self._came = None, trio.Event()
            for watch in list(self._watches):
                watch.tell()

    async def create(
        self, path: str, data: bytes, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """See ``ZooKeeper``."""
        return await self._call(
            lambda session: session.create(
                path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential
            )
        )

    async def get(self, path: str, on_change: OnChange | None = None) -> Node:
        """See ``ZooKeeper``."""
        return await self._watched(lambda session, watch: session.get(path, watch), on_change)

    async def is_own(self, path: str) -> bool:
        """See ``ZooKeeper``."""
        return await self._call(lambda session: session.is_own(path))

    async def set(self, path: str, data: bytes, version: int) -> int:
        """See ``ZooKeeper``."""
        return await self._call(lambda session: session.set(path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See ``ZooKeeper``."""
        await self._call(lambda session: session.delete(path, version))

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """See ``ZooKeeper``."""
        return await self._watched(lambda session, watch: session.children(path, watch), on_change)

    async def _watched(
        self,
        call: Callable[[ZooKeeper, OnChange | None], Awaitable[T]],
        on_change: OnChange | None,
    ) -> T:
        if on_change is None:
            return await self._call(lambda session: call(session, None))
        watch = _Watch(self._watches, on_change)
        self._watches.add(watch)
        try:
            return await self._call(lambda session: call(session, watch.tell))
        except BaseException:
            self._watches.discard(watch)
            raise

    async def _call(self, call: Callable[[ZooKeeper], Awaitable[T]]) -> T:
        with trio.move_on_after(self._wait_seconds_max):
            await self._came.wait()
        if self._session is None:
            raise ConnectionLostError("there is no session with ZooKeeper")
        try:
            return await call(self._session)
        except SessionLostError as error:
            raise ConnectionLostError(f"the session ended: {error}") from error


class _Watch:
    """A watch that calls ``on_change`` once."""

    def __init__(self, watches: set[_Watch], on_change: OnChange) -> None:
        self._watches = watches
        self._on_change = on_change

    def tell(self) -> None:
        """Call ``on_change`` if it was not called before."""
        if self in self._watches:
            self._watches.discard(self)
            self._on_change()
