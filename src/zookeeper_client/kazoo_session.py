"""A session with a real ZooKeeper, by kazoo.

Owns: ``open_zookeeper``, the calls from kazoo's threads into the event loop, and the session's
timer.

kazoo has threads of its own, which call back. These calls only wake the event loop.

Kazoo reports the loss of a session when it has reached a server again that tells so: a machine that
is cut off never learns it. So a timer runs here from the moment at which the connection is gone:
after a whole session time-out the session counts as lost. The server counts from the last message
that it received, which was earlier: this timer may only decide when to give up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import kazoo.exceptions
import trio
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from zookeeper_client.api import (
    ANY_VERSION,
    BadVersionError,
    ConnectionLostError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OnChange,
    SessionLostError,
    ZooKeeperError,
)

_ERRORS: dict[type[Exception], type[ZooKeeperError]] = {
    kazoo.exceptions.NoNodeError: NoNodeError,
    kazoo.exceptions.NodeExistsError: NodeExistsError,
    kazoo.exceptions.BadVersionError: BadVersionError,
    kazoo.exceptions.NotEmptyError: NotEmptyError,
    kazoo.exceptions.ConnectionLoss: ConnectionLostError,
    kazoo.exceptions.OperationTimeoutError: ConnectionLostError,
    kazoo.exceptions.SessionExpiredError: SessionLostError,
    kazoo.exceptions.ConnectionClosedError: SessionLostError,
}


@asynccontextmanager
async def open_zookeeper(
    hosts: str,
    nursery: trio.Nursery,
    *,
    session_seconds: float = 10.0,
    connect_seconds_max: float = 15.0,
) -> AsyncIterator[KazooSession]:
    """Open a session with the servers of a connect string: ``host:port,host:port/chroot``.

    Raises ``ConnectionLostError`` when none of them answers in time. The session ends with the
    block, and its ephemeral nodes with it. The timer runs in the nursery.
    """
    client = KazooClient(hosts=hosts, timeout=session_seconds)
    session = KazooSession(client, session_seconds, nursery)
    client.add_listener(session.on_state_in_thread)
    try:
        try:
            await trio.to_thread.run_sync(client.start, connect_seconds_max, abandon_on_cancel=True)
        except KazooTimeoutError as error:
            message = f"ZooKeeper at {hosts} does not answer in {connect_seconds_max:g} s"
            raise ConnectionLostError(message) from error
        yield session
    finally:
        session.end()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_close, client)


def _close(client: KazooClient) -> None:
    client.stop()
    client.close()


class KazooSession:
    """See ``ZooKeeper``; made by ``open_zookeeper``."""

    def __init__(self, client: KazooClient, session_seconds: float, nursery: trio.Nursery) -> None:
        self.lost = trio.Event()
        self._client = client
        self._session_seconds = session_seconds
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._timer: trio.CancelScope | None = None

    # ---- The session -----------------------------------------------------------------------------

    def on_state_in_thread(self, state: str) -> None:
        """Wake the event loop after a change of the connection; kazoo's thread calls this."""
        self._wake(lambda: self._on_state(state))

    def end(self) -> None:
        """Treat the session as lost."""
        self.lost.set()
        self._stop_timer()

    def _wake(self, act: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(act)

    def _on_state(self, state: str) -> None:
        if self.lost.is_set():
            return
        if state == KazooState.LOST:
            self.end()
        elif state == KazooState.SUSPENDED:
            if self._timer is None:
                self._timer = trio.CancelScope()
                self._nursery.start_soon(self._run_timer, self._timer)
        else:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run_timer(self, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(self._session_seconds)
            self.end()

    # ---- Calls -----------------------------------------------------------------------------------

    async def create(
        self, path: str, data: bytes, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """See ``ZooKeeper``."""
        made: str = await self._call(
            self._client.create_async, path, data, ephemeral=is_ephemeral, sequence=is_sequential
        )
        return made

    async def get(self, path: str, on_change: OnChange | None = None) -> Node:
        """See ``ZooKeeper``."""
        data, stat = await self._call(self._client.get_async, path, watch=self._watch(on_change))
        return Node(data, stat.version)

    async def is_own(self, path: str) -> bool:
        """See ``ZooKeeper``."""
        _, stat = await self._call(self._client.get_async, path)
        if (identity := self._client.client_id) is None:
            raise ConnectionLostError(f"{path}: the connection is lost, and maybe the session")
        return bool(stat.ephemeralOwner == identity[0])

    async def set(self, path: str, data: bytes, version: int) -> int:
        """See ``ZooKeeper``."""
        stat = await self._call(self._client.set_async, path, data, version=version)
        set_version: int = stat.version
        return set_version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See ``ZooKeeper``."""
        await self._call(self._client.delete_async, path, version=version)

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """See ``ZooKeeper``."""
        names = await self._call(
            self._client.get_children_async, path, watch=self._watch(on_change)
        )
        return sorted(names)

    def _watch(self, on_change: OnChange | None) -> Callable[[Any], None] | None:
        """Return the function that kazoo's thread calls for a change, or when it drops the watch.

        Kazoo drops watches when the connection is gone, even if the session continues: changes
        until the next connection would never be reported.
        """
        if on_change is None:
            return None

        def watch(_: Any) -> None:
            self._wake(on_change)

        return watch

    async def _call(self, begin: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Begin a call, and wait for its answer as long as the session may last."""
        if self.lost.is_set():
            await trio.lowlevel.checkpoint()
            raise SessionLostError("the session with ZooKeeper has ended")
        answered = trio.Event()
        answer = begin(*arguments, **options)
        answer.rawlink(lambda _: self._wake(answered.set))
        with trio.move_on_after(self._session_seconds):
            await answered.wait()
        if not answered.is_set():
            raise ConnectionLostError("ZooKeeper does not answer")
        try:
            return answer.get(block=False)
        except kazoo.exceptions.KazooException as error:
            kind = _ERRORS.get(type(error), ZooKeeperError)
            raise kind(f"{arguments[0]}: {type(error).__name__}") from error
