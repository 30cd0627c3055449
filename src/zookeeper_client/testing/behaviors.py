"""Tests that each ``ZooKeeper`` passes, the server in memory and a real one; each function is one
test.

Each test gets a function that opens a session, and the path of a node that no other test uses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from zookeeper_client.api import (
    ANY_VERSION,
    BadVersionError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZooKeeper,
    ZooKeeperError,
    ensure_path,
)

Open = Callable[[], AbstractAsyncContextManager[ZooKeeper]]
Behavior = Callable[[Open, str], Awaitable[None]]
WAIT_SECONDS_MAX = 20.0


async def expect(kind: type[ZooKeeperError], call: Awaitable[object]) -> None:
    """Check that the call raises an error of this class."""
    try:
        await call
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def nodes_are_made_read_and_deleted(open_session: Open, path: str) -> None:
    async with open_session() as one:
        await ensure_path(one, path)
        await ensure_path(one, path)
        assert await one.create(f"{path}/a", b"x") == f"{path}/a"
        assert await one.get(f"{path}/a") == Node(b"x", 0)
        await expect(NodeExistsError, one.create(f"{path}/a", b"y"))
        await expect(NoNodeError, one.create(f"{path}/b/c", b""))
        await one.create(f"{path}/b", b"")
        assert await one.children(path) == ["a", "b"]
        await expect(NotEmptyError, one.delete(path))
        await one.delete(f"{path}/a")
        for call in (
            one.get(f"{path}/a"),
            one.delete(f"{path}/a"),
            one.children(f"{path}/a"),
            one.is_own(f"{path}/a"),
        ):
            await expect(NoNodeError, call)
        await expect(NoNodeError, one.set(f"{path}/a", b"", ANY_VERSION))


async def versions_are_conditions(open_session: Open, path: str) -> None:
    async with open_session() as one, open_session() as two:
        await ensure_path(one, path)
        assert await one.set(path, b"1", 0) == 1
        await expect(BadVersionError, two.set(path, b"2", 0))
        await expect(BadVersionError, two.delete(path, 0))
        assert await two.set(path, b"3", ANY_VERSION) == 2
        assert await one.get(path) == Node(b"3", 2)
        await two.delete(path, 2)


async def sequential_nodes_are_numbered(open_session: Open, path: str) -> None:
    async with open_session() as one:
        await ensure_path(one, path)
        made = [await one.create(f"{path}/n-", b"", is_sequential=True) for _ in range(3)]
        assert made == [f"{path}/n-{number:010}" for number in range(3)]


async def ephemeral_nodes_end_with_their_session(open_session: Open, path: str) -> None:
    changed = trio.Event()
    async with open_session() as one:
        await ensure_path(one, path)
        async with open_session() as two:
            await two.create(f"{path}/e", b"", is_ephemeral=True)
            assert await one.children(path, changed.set) == ["e"]
            assert await two.is_own(f"{path}/e")
            assert not await one.is_own(f"{path}/e")
            assert not await two.is_own(path)
        with trio.fail_after(WAIT_SECONDS_MAX):
            await changed.wait()
        assert await one.children(path) == []
        assert two.lost.is_set()
        await expect(ZooKeeperError, two.get(path))


async def changes_are_told_once(open_session: Open, path: str) -> None:
    told: list[str] = []
    data, names = trio.Event(), trio.Event()
    async with open_session() as one, open_session() as two:
        await ensure_path(one, path)

        def tell_data() -> None:
            told.append("data")
            data.set()

        def tell_names() -> None:
            told.append("names")
            names.set()

        await one.get(path, tell_data)
        await one.children(path, tell_names)
        await two.set(path, b"new", ANY_VERSION)
        with trio.fail_after(WAIT_SECONDS_MAX):
            await data.wait()
        assert told == ["data"]
        await two.create(f"{path}/a", b"")
        await two.set(path, b"newer", ANY_VERSION)
        await two.create(f"{path}/b", b"")
        with trio.fail_after(WAIT_SECONDS_MAX):
            await names.wait()
        assert (await one.get(path)).data == b"newer"
        assert told == ["data", "names"]


BEHAVIORS: list[Behavior] = [
    nodes_are_made_read_and_deleted,
    versions_are_conditions,
    sequential_nodes_are_numbered,
    ephemeral_nodes_end_with_their_session,
    changes_are_told_once,
]
