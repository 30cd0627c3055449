"""Attributes equal a dictionary, whatever is flushed, evicted, checkpointed, fails or crashes.

The model is the container in memory. What tier 2 refuses has no effect; what a crash interrupts has
happened or not, and the container tells which by what it says afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from _fast.btree.tree import PageCache
from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import DataLogError, SegmentError, SegmentStoreError, StorageError
from segstore.model.attributes import (
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.model.segment_attributes import AttributeCache
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from support.models.memory_container import MemoryContainer
from support.rare_parameters import mark_rare

NAMES = ["a", "b"]
IDS = [bytes([number]) * 16 for number in range(1, 9)]
FIRST, LAST = bytes(16), b"\xff" * 16

names = st.sampled_from(NAMES)
numbers = st.integers(-2, 3) | st.just(NULL_ATTRIBUTE_VALUE)
updates = st.lists(
    st.builds(
        AttributeUpdate,
        st.sampled_from([*IDS, EVENT_COUNT]),
        st.sampled_from(AttributeUpdateType),
        numbers,
        numbers,
    ),
    max_size=4,
)
steps = st.one_of(
    st.tuples(st.just("update_attributes"), names, updates),
    st.tuples(st.just("update_attributes"), names, updates),
    st.tuples(st.just("append"), names, updates),
    st.tuples(st.just("burst"), names, st.lists(updates, min_size=2, max_size=6)),
    st.tuples(st.just("race"), names, st.lists(updates, min_size=1, max_size=4)),
    st.tuples(st.just("merge_segment"), st.just("a"), st.just("b")),
    st.tuples(st.just("seal_segment"), names),
    st.tuples(st.just("delete_segment"), names),
    st.tuples(st.just("flush")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("flush_data")),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), st.integers(0, 60)),
    st.tuples(st.just("fault"), st.lists(st.sampled_from(Fault), max_size=4)),
)


class World:
    """The parts that survive, and the container that has them now."""

    def __init__(self, seed: int, cached_max: int) -> None:
        self.random = Random(seed)
        self.cached_max = cached_max
        self.logs = MemoryDataLogFactory()
        self.chunks = MemoryChunkStorage()
        self.faults: list[Fault] = []
        self.model = MemoryContainer()
        self.crashed = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Container]:
        self.crashed = False
        faulty = FaultyChunkStorage(
            self.chunks, next_fault=lambda _: self.faults.pop() if self.faults else Fault.NONE
        )
        self.faulty = faulty
        try:
            async with open_container(
                0,
                self.logs,
                next_owner(faulty),
                CacheManager(StreamingCache(8 * 1024 * 1024)),
                attribute_pages=PageCache(self.random.choice([0, 1 << 20])),
                attribute_cache=AttributeCache(
                    segment_count_max=self.cached_max, container_count_max=self.cached_max + 1
                ),
                drain_seconds=1,
            ) as container:
                yield container
        except* DataLogError:
            if not self.crashed:
                raise
        await faulty.settle(self.random)

    async def equal(self, container: Container) -> None:
        """Check that the container and the model give the same answers, by every way of asking."""
        self.faults.clear()
        for name in NAMES:
            try:
                expected = await self.model.get_attributes(name, [*IDS, EVENT_COUNT])
            except SegmentError:
                continue
            [page] = [
                page async for page in self.model.attribute_iterator(name, first=FIRST, last=LAST)
            ]
            assert await container.get_attributes(name, [*IDS, EVENT_COUNT]) == expected
            found = [
                item
                async for items in container.attribute_iterator(name, first=FIRST, last=LAST)
                for item in items
            ]
            assert found == page
            memory = container.parts.metadata.by_name[name].attribute_memory
            assert len(memory.cached) <= max(1, self.cached_max)

    async def both(
        self, container: Container, method: str, *arguments: Any, **keywords: Any
    ) -> None:
        """Call both the container and the model; a call that tier 2 refuses has no effect."""
        outcomes: list[object] = []
        for target in (container, self.model):
            try:
                outcomes.append(await getattr(target, method)(*arguments, **keywords))
            except SegmentError as error:
                outcomes.append((type(error), error.segment))
            except StorageError:
                return
        assert outcomes[0] == outcomes[1]

    async def burst(self, container: Container, name: str, all_updates: list[Any]) -> None:
        """Queue appends at once; one that has to wait delays those behind it."""
        answers: list[tuple[SegmentStoreError | None, int]] = []
        expected: list[tuple[SegmentStoreError | None, int]] = []
        for each in all_updates:
            container.append_nowait(
                name,
                b"x",
                attribute_updates=each,
                on_complete=lambda error, length: answers.append((error, length)),
            )
        await container.wait_in_flight(name)
        assert len(answers) == len(all_updates), "a barrier waits for all before it"
        for each, (error, length) in zip(all_updates, answers, strict=True):
            if isinstance(error, StorageError):
                continue
            self.model.append_nowait(
                name,
                b"x",
                attribute_updates=each,
                on_complete=lambda error, length: expected.append((error, length)),
            )
            await self.model.wait_in_flight(name)
            assert (type(error), length) == (type(expected[-1][0]), expected[-1][1])

    async def race(self, container: Container, name: str, all_updates: list[Any]) -> None:
        """Append while a flush is under way."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush, container)
            for each in all_updates:
                await self.both(container, "append", name, b"x", attribute_updates=each)

    async def crash(self, container: Container, turns: int) -> None:
        """Crash in the middle of a flush."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flush, container)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                self.crashed = True
                self.faulty.abandon()
                self.logs.drop_unacknowledged()
                nursery.cancel_scope.cancel()

    async def go(self, next_step: Callable[[], tuple[Any, ...]], *, count: int) -> None:
        """Open the container again and again until so many steps are done."""
        while count > 0:
            async with self.open() as container:
                await self.equal(container)
                for name in NAMES:
                    if name not in container.parts.metadata.by_name:
                        await self.both(container, "create_segment", name)
                while count > 0:
                    count -= 1
                    if not await self.step(container, *next_step()):
                        break
                self.faults.clear()
        async with self.open() as container:
            await self.equal(container)

    async def step(self, container: Container, kind: str, *arguments: Any) -> bool:
        """Do one step; return whether the container goes on."""
        if kind == "restart":
            return False
        if kind == "crash":
            await self.crash(container, arguments[0])
            return False
        if kind == "fault":
            self.faults[:] = arguments[0]
            return True
        if kind == "flush":
            await flush(container)
        elif kind == "flush_data":
            with suppress(StorageError):
                await container.parts.writer.flush_once(everything=True, all_attributes=False)
        elif kind == "race":
            await self.race(container, *arguments)
        elif kind == "checkpoint":
            container.parts.processor.request_checkpoint()
            await container.wait_in_flight("a")
        elif kind == "burst":
            await self.burst(container, *arguments)
        elif kind == "append":
            name, each = arguments
            await self.both(container, "append", name, b"x", attribute_updates=each)
        else:
            await self.both(container, kind, *arguments)
        if self.random.random() < 0.5:
            await self.equal(container)
        return True


async def flush(container: Container) -> None:
    with suppress(StorageError):
        await container.flush()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(steps, min_size=5, max_size=30), st.integers(0, 99), st.sampled_from([0, 0, 2, 100])
)
def test_attributes_equal_the_model_whatever_happens(
    program: list[tuple[Any, ...]], seed: int, cached_max: int
) -> None:
    rest = iter(program)
    trio.run(partial(World(seed, cached_max).go, lambda: next(rest), count=len(program)))


def random_updates(choose: Random, model: MemoryContainer, name: str) -> list[AttributeUpdate]:
    """Draw updates whose conditions are often true."""
    present = model.segments[name].attributes if name in model.segments else {}
    made = []
    for each in choose.sample([*IDS, EVENT_COUNT], choose.choice([0, 1, 1, 2, 3])):
        verb = choose.choice(list(AttributeUpdateType))
        expected = choose.choice([present.get(each, NULL_ATTRIBUTE_VALUE), choose.randrange(4)])
        value = choose.choice([NULL_ATTRIBUTE_VALUE, choose.randrange(4), choose.randrange(99)])
        made.append(AttributeUpdate(each, verb, value, expected))
    return made


WEIGHTS = {
    "update_attributes": 8,
    "append": 8,
    "burst": 8,
    "race": 6,
    "flush": 8,
    "flush_data": 8,
    "checkpoint": 8,
    "crash": 3,
    "fault": 3,
    "restart": 1,
    "merge_segment": 1,
    "seal_segment": 1,
    "delete_segment": 1,
}


def random_step(choose: Random, model: MemoryContainer) -> tuple[Any, ...]:
    [kind] = choose.choices(list(WEIGHTS), list(WEIGHTS.values()))
    name = choose.choice(NAMES)
    if kind in ("flush", "flush_data", "checkpoint", "restart"):
        return (kind,)
    if kind == "crash":
        return kind, choose.choice([0, 5, 20, 60, 200])
    if kind == "fault":
        return kind, choose.choices(list(Fault), k=choose.randrange(1, 4))
    if kind == "merge_segment":
        return kind, "a", "b"
    if kind in ("seal_segment", "delete_segment"):
        return kind, name
    if kind in ("burst", "race"):
        count = choose.randrange(2, 6)
        return kind, name, [random_updates(choose, model, name) for _ in range(count)]
    return kind, name, random_updates(choose, model, name)


@pytest.mark.parametrize("seed", mark_rare(range(30), 10))
async def test_attributes_equal_the_model_on_a_long_way(seed: int) -> None:
    choose = Random(seed)
    world = World(seed, choose.choice([0, 0, 2, 100]))
    await world.go(lambda: random_step(choose, world.model), count=120)
