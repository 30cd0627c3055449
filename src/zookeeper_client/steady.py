"""A ``ZooKeeper`` that outlives sessions, for users whose nodes do not belong to one session.

Owns: ``SteadyZooKeeper``. The task that opens sessions gives it the present one.

Invariants:
1. A call goes to one session, at most once. Without a session it waits for one, for a bounded time.
2. For a call, the end of a session is doubt like a lost connection: the call may have taken effect.
   A caller that changes something conditionally reads it again and compares.
3. A watch is called at the latest when its session ends: then the callback reads again.
4. Ephemeral nodes belong to the session of the call that made them.
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
    """See ``ZooKeeper``; ``lost`` is never set."""

    def __init__(self, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self.lost = trio.Event()
        self._wait_seconds_max = wait_seconds_max
        self._session: ZooKeeper | None = None
        self._came = trio.Event()
        self._watches: set[_Watch] = set()

    @contextmanager
    def using(self, session: ZooKeeper) -> Iterator[None]:
        """Send calls to a session inside the block, which lasts as long as the session."""
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
        """Call ``on_change``, unless it was called before."""
        if self in self._watches:
            self._watches.discard(self)
            self._on_change()
