"""The ZooKeeper in memory does what a real one does; compat-tests ask that the same questions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper
from zookeeper_client.api import ConnectionLostError, NoNodeError
from zookeeper_client.testing.behaviors import BEHAVIORS, Behavior


@pytest.mark.parametrize("behavior", BEHAVIORS, ids=lambda each: each.__name__)
async def test_the_server_in_memory(behavior: Behavior) -> None:
    server = MemoryZooKeeper()

    @asynccontextmanager
    async def open_session() -> AsyncIterator[MemorySession]:
        session = server.open_session()
        yield session
        server.end_session(session)

    await behavior(open_session, "/tests/here")


async def test_answers_get_lost_before_or_after_the_call_takes_effect() -> None:
    server = MemoryZooKeeper()
    session = server.open_session()
    server.lose_answer = lambda path: Loss.CALL if path == "/a" else Loss.ANSWER
    for path in ("/a", "/b"):
        with pytest.raises(ConnectionLostError):
            await session.create(path, b"")
    server.lose_answer = lambda path: Loss.NONE
    with pytest.raises(NoNodeError):
        await session.get("/a")
    assert (await session.get("/b")).version == 0
