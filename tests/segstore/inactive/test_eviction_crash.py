"""Crashes while segments leave memory and come back, case by case."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from segstore.container import Container
from segstore.errors import NoSuchSegmentError, SegmentError
from segstore.model.attributes import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from support.faults.crashing_tiers import CrashingTiers, active_names, checkpoint, evict
from support.rare_parameters import mark_rare

WRITER = bytes([1]) * 16
STREAM, TRANSACTION = "scope/stream/0.#epoch.0", "scope/stream/0.#epoch.0#transaction.1"
Step = Callable[[Container], Awaitable[object]]


async def leave(container: Container) -> None:
    await evict(container)
    assert active_names(container) == set()


async def leave_and_checkpoint(container: Container) -> None:
    await leave(container)
    await checkpoint(container)


async def leave_and_checkpoint_without_tier_2(container: Container) -> None:
    """Write a checkpoint with the places of the records, because their index does not have them."""
    await leave(container)
    await container.checkpoint()
    await container.parts.writer.flush_once(everything=True, all_attributes=False)


async def leave_twice(container: Container) -> None:
    await leave(container)
    await container.append(STREAM, b"more")
    await leave(container)


AWAY: dict[str, Step] = {
    "the log has it": leave,
    "a checkpoint is without it": leave_and_checkpoint,
    "a checkpoint is without it, and the index without its place": (
        leave_and_checkpoint_without_tier_2
    ),
    "for the second time": leave_twice,
}


async def fill(container: Container) -> None:
    for name in (STREAM, TRANSACTION):
        await container.create_segment(name)
        updates = [
            AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, 5),
            AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 2),
        ]
        await container.append(name, name.encode(), attribute_updates=updates)
    await container.truncate_segment(STREAM, offset=3)


async def content(container: Container, name: str) -> tuple[bytes, dict[bytes, int], bool] | None:
    try:
        attributes = await container.get_attributes(name, [WRITER, EVENT_COUNT])
    except SegmentError:
        return None
    info = container.segment_info(name)
    data = b""
    while info.start_offset + len(data) < info.length:
        offset = info.start_offset + len(data)
        data += (await container.read(name, offset=offset, length_max=1000)).data
    return data, attributes, info.sealed


async def contents(container: Container) -> dict[str, object]:
    return {name: await content(container, name) for name in (STREAM, TRANSACTION)}


async def nothing(container: Container) -> None:
    pass


async def append(container: Container) -> None:
    await container.append(STREAM, b"behind")


async def delete(container: Container) -> None:
    await container.delete_segment(STREAM)


async def create_anew(container: Container) -> None:
    await container.delete_segment(STREAM)
    await container.create_segment(STREAM)
    await container.append(STREAM, b"new")


async def merge(container: Container) -> None:
    await container.merge_segment(STREAM, TRANSACTION)


async def seal(container: Container) -> None:
    await container.seal_segment(STREAM)


async def truncate(container: Container) -> None:
    await container.truncate_segment(STREAM, offset=10)


async def attributes(container: Container) -> None:
    update = AttributeUpdate(WRITER, AttributeUpdateType.REPLACE_IF_GREATER, 9)
    await container.update_attributes(STREAM, [update])


async def read(container: Container) -> None:
    await container.read(STREAM, offset=3, length_max=1)


CHANGES: dict[str, Step] = {
    step.__name__: step
    for step in (
        nothing,
        append,
        delete,
        create_anew,
        merge,
        seal,
        truncate,
        attributes,
        read,
    )
}
AFTERWARDS: dict[str, Step] = {
    "at once": nothing,
    "after a flush": lambda container: container.flush(),
    "after a checkpoint": checkpoint,
    "inactive again": evict,
    "inactive again, after a checkpoint": leave_and_checkpoint,
}


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("afterwards", mark_rare(AFTERWARDS, 3))
async def test_a_crash_loses_and_brings_back_nothing(
    tiers: CrashingTiers, away: str, change: str, afterwards: str
) -> None:
    expected: dict[str, object] = {}
    async with tiers.open() as plain:
        await fill(plain)
        if AWAY[away] is leave_twice:
            await plain.append(STREAM, b"more")
        await CHANGES[change](plain)
        expected = await contents(plain)
    tiers = CrashingTiers()
    async with tiers.open(drain_seconds=0) as container:
        await fill(container)
        await AWAY[away](container)
        await CHANGES[change](container)
        await AFTERWARDS[afterwards](container)
        tiers.crash()
    for _ in range(2):
        async with tiers.open(drain_seconds=0, page_bytes_max=0) as container:
            assert await contents(container) == expected
            await leave(container)
            tiers.crash()
    async with tiers.open() as container:
        assert await contents(container) == expected
        ids = [segment.segment_id for segment in container.parts.metadata.by_name.values()]
        assert len(ids) == len(set(ids))


async def test_what_was_not_durable_when_the_process_died_did_not_leave(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open(drain_seconds=0) as container:
        await fill(container)
        await container.flush()
        expected = await contents(container)
        eviction = container.parts.eviction
        assert eviction is not None
        eviction.look(trio.current_time())
        candidates = eviction.look(trio.current_time())
        assert len(candidates) == 2
        tiers.logs.drop_unacknowledged()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(eviction.evict, candidates)
            await trio.lowlevel.checkpoint()
            tiers.crash()
            nursery.cancel_scope.cancel()
    async with tiers.open() as container:
        assert active_names(container) == {STREAM, TRANSACTION}
        assert await contents(container) == expected


async def test_a_deleted_segment_that_was_inactive_once_stays_deleted(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await fill(container)
        await leave(container)
        await container.flush()
        await container.delete_segment(STREAM)
        await container.merge_segment(TRANSACTION, await made(container))
        await checkpoint(container)
    for _ in range(2):
        async with tiers.open() as container:
            with pytest.raises(NoSuchSegmentError):
                await container.append(STREAM, b"x")
            await leave(container)


async def made(container: Container) -> str:
    """Make a segment that was inactive, to be merged."""
    await container.create_segment("source")
    await container.append("source", b"x")
    await leave(container)
    return "source"
