"""A whole segment store in memory: registry, handlers and connections over memory containers.

Owns: the assembly. What is stored outlives a container's failure, as it would in tier 1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from pravega_security.delegation_tokens import TokenVerifier
from segstore.api import SegmentContainer
from segstore.network.server import ConnectionServer
from segstore.process.config import ConnectionSettings
from segstore.process.registry import ContainerRegistry
from segstore.tables.settings import TableSettings
from segstore.testing.wire_client import WireClient
from support.models.memory_container import MemoryContainer

CREATED_MS = 1_700_000_000_000


class MemoryStore:
    """``containers`` has the present container of each number. ``failures`` end them."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        container_count: int,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self.containers = {number: MemoryContainer(number) for number in range(container_count)}
        self.recovering: dict[int, trio.Event] = {}
        self._failures: dict[int, trio.Event] = {}
        self._random_count = 0
        self.registry = ContainerRegistry(
            self._open_container,
            container_count=container_count,
            container_ids=range(container_count),
            tables=TableSettings(),
            restart_seconds_min=0.01,
            restart_seconds_max=0.1,
        )
        self.server = ConnectionServer(
            self.registry,
            settings,
            now_ms=lambda: CREATED_MS,
            random_bytes=self._random_bytes,
            tokens=tokens,
        )
        self.nursery: trio.Nursery

    @property
    def container(self) -> MemoryContainer:
        """Return the only container."""
        [container] = self.containers.values()
        return container

    async def wait_online(self, segment: str) -> None:
        """Return when the segment's container serves (again)."""
        await self.registry.find(segment).wait_online()

    def fail(self, number: int = 0, *, durable_count: int = 0) -> None:
        """Fail a container; the registry recovers it, unless ``recovering`` delays it."""
        self.registry.hosted(number).mark_unavailable()
        self.containers[number].crash(durable_count=durable_count)
        self._failures[number].set()

    def connect(self) -> WireClient:
        """Return a new connection."""
        client, server = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.server.serve, server)
        return WireClient(client)

    def _random_bytes(self, count: int) -> bytes:
        self._random_count += 1
        return self._random_count.to_bytes(count, "big")

    @asynccontextmanager
    async def _open_container(self, number: int) -> AsyncIterator[SegmentContainer]:
        if number in self.recovering:
            await self.recovering[number].wait()
        self._failures[number] = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_when_told, number)
                yield self.containers[number]
                nursery.cancel_scope.cancel()
        finally:
            if not self._failures[number].is_set():
                self.containers[number].crash()
            self.containers[number] = self.containers[number].reopen()

    async def _fail_when_told(self, number: int) -> None:
        await self._failures[number].wait()
        raise OSError("the disk is on fire")


@asynccontextmanager
async def memory_store(
    settings: ConnectionSettings | None = None,
    *,
    container_count: int = 1,
    tokens: TokenVerifier | None = None,
) -> AsyncIterator[MemoryStore]:
    """Yield a running store, which checks tokens if it has a verifier; everything ends with the
    block."""
    store = MemoryStore(
        settings or ConnectionSettings(), container_count=container_count, tokens=tokens
    )
    async with trio.open_nursery() as nursery:
        store.nursery = nursery
        nursery.start_soon(store.registry.run)
        await store.registry.wait_until_tried()
        yield store
        nursery.cancel_scope.cancel()
