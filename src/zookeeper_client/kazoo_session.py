"""A session with a real ZooKeeper, on the client library kazoo.

Owns: ``open_zookeeper``, the calls from kazoo's threads into the event loop, and the session's
timer. kazoo calls back in threads of its own; these calls only wake the event loop.

kazoo reports the loss of a session when a server reports it. A machine that is cut off from all
servers never learns it. So a timer runs from the moment at which the connection is lost; after a
whole session time-out the session counts as lost. The server's time-out began earlier, with the
last message that it received. So the timer may only decide when to give up: the server may have
ended the session before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
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
from zookeeper_client.tls_settings import ZooKeeperTlsSettings

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
    tls: ZooKeeperTlsSettings | None = None,
) -> AsyncIterator[KazooSession]:
    """Open a session with the servers of a connect string like ``host:port,host:port/chroot``.

    With ``tls``, all connections are TLS. Raises ``ConnectionLostError`` if no server answers in
    time, or if a file of ``tls`` cannot be read. The session and its ephemeral nodes end with the
    block. The timer runs in the nursery.
    """
    options = {} if tls is None else _tls_options(tls)
    client = KazooClient(hosts=hosts, timeout=session_seconds, **options)
    session = KazooSession(client, session_seconds, nursery)
    client.add_listener(session.on_state_in_thread)
    try:
        try:
            await trio.to_thread.run_sync(client.start, connect_seconds_max, abandon_on_cancel=True)
        except KazooTimeoutError as error:
            over = "" if tls is None else " over TLS"
            message = f"ZooKeeper at {hosts} does not answer{over} in {connect_seconds_max:g} s"
            raise ConnectionLostError(message) from error
        yield session
    finally:
        session.end()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_close, client)


def _tls_options(tls: ZooKeeperTlsSettings) -> dict[str, Any]:
    """Return kazoo's options for TLS. Raises ``ConnectionLostError``, which names the file, if one
    cannot be read: kazoo would only be silent. It may be there at the next attempt."""
    # Imported here, because a client without TLS needs none of it.
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except (OSError, ValueError) as error:
        raise ConnectionLostError(f"{tls.ca} cannot be read as certificates: {error}") from error
    try:
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password="")
    except (OSError, ValueError) as error:
        raise ConnectionLostError(
            f"{tls.certificate} and {tls.key} cannot be read as a certificate and its key: {error}"
        ) from error

    def text(path: Path | None) -> str | None:
        return None if path is None else str(path)

    return {
        "use_ssl": True,
        "verify_certs": True,
        "check_hostname": tls.checks_host,
        "ca": text(tls.ca),
        "certfile": text(tls.certificate),
        "keyfile": text(tls.key),
    }


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
        """Tell the event loop of a change of the connection. kazoo's thread calls this."""
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
        """Return the function that kazoo's thread calls for a change, and when it forgets the
        watch.

        kazoo forgets watches when the connection is lost, even if the session continues, and would
        not report changes before the next connection.
        """
        if on_change is None:
            return None

        def watch(_: Any) -> None:
            self._wake(on_change)

        return watch

    async def _call(self, begin: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Begin a call, and wait for its answer, at most as long as a session time-out."""
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
