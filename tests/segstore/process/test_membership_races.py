"""Maps that change while containers are opened, and after they ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from segstore.api import SegmentContainer
from segstore.process.registry import ContainerRegistry
from segstore.tables.settings import TableSettings
from support.models.memory_server import MemoryZooKeeper
from zookeeper_client.api import ensure_path

from .test_membership import PATHS, Member, give


async def test_who_waits_until_all_were_tried_does_not_wait_for_one_that_was_released(
    autojump_clock: MockClock,
) -> None:
    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        await trio.sleep_forever()
        yield

    registry = ContainerRegistry(
        open_container,
        container_count=4,
        container_ids=None,
        tables=TableSettings(),
        restart_seconds_min=1,
        restart_seconds_max=4,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(registry.run)
        registry.host(0)
        nursery.start_soon(release_soon, registry)
        with trio.fail_after(5):
            await registry.wait_until_tried()
        nursery.cancel_scope.cancel()


async def release_soon(registry: ContainerRegistry) -> None:
    await trio.sleep(1)
    registry.release(0)


async def test_a_change_of_the_map_after_the_containers_ended_is_no_crash(
    autojump_clock: MockClock,
) -> None:
    member = Member(MemoryZooKeeper())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.membership.run)
        async with trio.open_nursery() as containers:
            await containers.start(member.registry.run)
            await member.membership.begin(member.registry)
            member.membership.mark_serving()
            session = member.server.open_session()
            await ensure_path(session, PATHS.cluster)
            await give(session, {0}, {1})
            await trio.sleep(1)
            containers.cancel_scope.cancel()
        await give(session, {0, 1}, set())
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
