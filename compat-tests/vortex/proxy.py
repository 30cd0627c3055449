"""A TCP proxy that can be told to misbehave: the network between clients and a server.

Owns: the listening sockets, the relayed connections and the present state of the network.

The server sends clients to the host by which they dialled the controller, and to its own port. So
the proxy listens on another loopback address, at the ports of the server: clients that dial
``127.0.0.2`` meet the proxy in front of both the controller and the segment store.

Invariants:
1. A byte is relayed once and in order, or its connection is closed.
2. ``healthy`` lets every connection go on that was not cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

import trio
from foreign_servers.deadlines import scale

RELAY_BYTES = 64 * 1024
SLOW_SECONDS = 0.03
START_SECONDS_MAX = scale(60.0)

T = TypeVar("T")


class Network(Enum):
    """The behaviour of the network towards bytes and new connections."""

    HEALTHY = "relays everything"
    CUT = "closes connections and refuses new ones"
    SILENT = "keeps connections and relays nothing"
    SLOW = "relays a piece every 30 ms"


class Proxy:
    """Relays ``listen_host:port`` to ``target_host:port`` for each port. A context manager."""

    def __init__(self, listen_host: str, target_host: str, ports: Sequence[int]) -> None:
        self._listen_host = listen_host
        self._target_host = target_host
        self._ports = ports
        self._state = Network.HEALTHY
        self._connections: set[trio.CancelScope] = set()
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._life = trio.CancelScope()
        self._speaking = trio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX) or self._error is not None:
            raise OSError(f"the proxy does not listen: {self._error}")
        return self

    def __exit__(self, *exception: object) -> None:
        self._call(self._life.cancel)
        self._thread.join()

    @contextmanager
    def behaving(self, state: Network) -> Iterator[None]:
        """Make it behave like this inside the block, and healthily after it."""
        self._call(self._set, state)
        try:
            yield
        finally:
            self._call(self._set, Network.HEALTHY)

    def reset_connections(self) -> int:
        """Close every connection now; return how many there were."""
        return self._call(self._close_all)

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function in the proxy's thread."""
        assert self._token is not None
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._token)

    def _set(self, state: Network) -> None:
        self._state = state
        if state is Network.SILENT:
            self._speaking = trio.Event()
        else:
            self._speaking.set()
        if state is Network.CUT:
            self._close_all()

    def _close_all(self) -> int:
        count = len(self._connections)
        for scope in self._connections:
            scope.cancel()
        return count

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            self._error = error
            self._ready.set()
            raise

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._speaking.set()
        with self._life:
            async with trio.open_nursery() as nursery:
                for port in self._ports:
                    listeners = await trio.open_tcp_listeners(port, host=self._listen_host)
                    nursery.start_soon(self._listen, port, listeners, nursery)
                self._ready.set()

    async def _listen(
        self, port: int, listeners: list[trio.SocketListener], nursery: trio.Nursery
    ) -> None:
        async def relay(client: trio.SocketStream) -> None:
            await self._relay_connection(client, port)

        await trio.serve_listeners(relay, listeners, handler_nursery=nursery)

    async def _relay_connection(self, client: trio.SocketStream, port: int) -> None:
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                async with client:
                    if self._state is Network.CUT:
                        return
                    async with (
                        await trio.open_tcp_stream(self._target_host, port) as server,
                        trio.open_nursery() as nursery,
                    ):
                        nursery.start_soon(self._relay, client, server, nursery)
                        nursery.start_soon(self._relay, server, client, nursery)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                # Either end is gone: the other one sees its connection close.
                pass
            finally:
                self._connections.discard(scope)

    async def _relay(
        self, source: trio.SocketStream, sink: trio.SocketStream, nursery: trio.Nursery
    ) -> None:
        while data := await source.receive_some(RELAY_BYTES):
            await self._speaking.wait()
            if self._state is Network.SLOW:
                await trio.sleep(SLOW_SECONDS)
            await sink.send_all(data)
        nursery.cancel_scope.cancel()
