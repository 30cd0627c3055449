"""Records the RPCs that a test calls, by a proxy in front of a controller.

Owns: the listening ports, one for each suite, and the notes. Any controller may be behind it.

1. Messages pass as the bytes they are; a status passes with its details.
2. A call is noted when its answer is known. Calls of a port come from one suite, whose tests run
   one after the other: the time says which test a call belongs to.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from foreign_servers.deadlines import scale

START_SECONDS_MAX = scale(60.0)
CALL_SECONDS_MAX = scale(300.0)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was answered: when, which, and whether with success."""

    at: float
    rpc: str
    succeeded: bool


@dataclass(slots=True)
class CallCounter:
    """A proxy for the controller at ``upstream``, host:port; its loop has a thread of its own."""

    upstream: str
    _calls: dict[str, list[Call]] = field(default_factory=dict)
    _servers: list[Any] = field(default_factory=list)
    _channel: Any = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None

    def __enter__(self) -> CallCounter:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._loop.close()

    def listen(self, name: str) -> str:
        """Open a port; returns its URI. Calls that come in there are noted under this name."""
        self._calls[name] = []
        port: int = self._wait(self._listen(self._calls[name]))
        return f"tcp://127.0.0.1:{port}"

    def calls_of(self, name: str, starts: Sequence[float]) -> list[tuple[str, ...]]:
        """Return the RPCs that were answered with success during each test, given by its start
        in order."""
        found: list[set[str]] = [set() for _ in starts]
        for call in self._calls[name]:
            number = bisect_right(starts, call.at) - 1
            if call.succeeded and number >= 0:
                found[number].add(call.rpc)
        return [tuple(sorted(each)) for each in found]

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS_MAX)

    async def _listen(self, calls: list[Call]) -> int:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.upstream)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Forwarding(self._channel, calls),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._servers.append(server)
        return int(port)

    async def _close(self) -> None:
        for server in self._servers:
            await server.stop(None)
        if self._channel is not None:
            await self._channel.close()


class _Forwarding(grpc.GenericRpcHandler):
    """Forwards every unary call, whatever its name."""

    def __init__(self, channel: Any, calls: list[Call]) -> None:
        self._channel = channel
        self._calls = calls

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method
        rpc = method.rpartition("/")[2]
        forward = self._channel.unary_unary(method)
        return grpc.unary_unary_rpc_method_handler(self._forwarder(rpc, forward))

    def _forwarder(self, rpc: str, forward: Any) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def call(request: bytes, context: Any) -> bytes:
            try:
                reply: bytes = await forward(
                    request, timeout=CALL_SECONDS_MAX, metadata=_without_transport(context)
                )
            except grpc.aio.AioRpcError as error:
                self._calls.append(Call(time.time(), rpc, succeeded=False))
                await context.abort(error.code(), error.details() or "")
                raise AssertionError("abort raises") from error
            self._calls.append(Call(time.time(), rpc, succeeded=True))
            return reply

        return call


def _without_transport(context: Any) -> list[tuple[str, str | bytes]]:
    """Return the caller's metadata without what belongs to its own connection."""
    return [
        (key, value)
        for key, value in context.invocation_metadata()
        if key not in ("user-agent", "te", "content-type") and not key.startswith("grpc-")
    ]
