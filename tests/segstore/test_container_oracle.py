"""The durable container against the one in memory: whatever is asked, the same happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from _fast.cache.streaming_cache import StreamingCache
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.errors import SegmentStoreError
from segstore.model.attributes import (
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner
from support.models.memory_container import MemoryContainer

NAMES = ["a", "b", "c"]
ATTRIBUTES = [bytes([number]) * 16 for number in (1, 2)] + [EVENT_COUNT]

names = st.sampled_from(NAMES)
numbers = st.integers(-2, 3) | st.just(NULL_ATTRIBUTE_VALUE)
updates = st.lists(
    st.builds(
        AttributeUpdate,
        st.sampled_from(ATTRIBUTES),
        st.sampled_from(AttributeUpdateType),
        numbers,
        numbers,
    ),
    max_size=3,
)
payloads = st.binary(max_size=20) | st.sampled_from([bytes(range(256)) * 20])
offsets = st.integers(0, 60)


@dataclass(frozen=True)
class Step:
    """One call, by the name of the method; ``restart`` recovers the durable container."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def call(self, container: SegmentContainer) -> Awaitable[object]:
        made: Callable[..., Awaitable[object]] = getattr(container, self.method)
        return made(*self.arguments, **dict(self.keywords))


def step(method: str, *arguments: Any, **keywords: Any) -> st.SearchStrategy[Step]:
    return st.builds(
        lambda given, named: Step(method, given, tuple(named.items())),
        st.tuples(*arguments),
        st.fixed_dictionaries(keywords),
    )


created = st.dictionaries(st.sampled_from(ATTRIBUTES), st.integers(-5, 5), max_size=2)
steps = st.one_of(
    step("create_segment", names, attributes=created),
    step("append", names, payloads, attribute_updates=updates),
    step("append", names, payloads, attribute_updates=updates),
    step("append", names, payloads, expected_offset=offsets),
    step("seal_segment", names),
    step("truncate_segment", names, offset=offsets),
    step("merge_segment", names, names, attribute_updates=updates),
    step("delete_segment", names),
    step("update_attributes", names, updates),
    st.just(Step("restart")),
)
# Each inner list is asked for at once, in order, without waiting for answers in between.
programs = st.lists(st.lists(steps, min_size=1, max_size=5), max_size=12)


class Durable:
    """An opener of the container, again and again, on the same tiers."""

    def __init__(self) -> None:
        self.log_factory = MemoryDataLogFactory()
        self.chunks = MemoryChunkStorage()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SegmentContainer]:
        storage = next_owner(self.chunks)
        cache_manager = CacheManager(StreamingCache(8 * 1024 * 1024))
        async with open_container(0, self.log_factory, storage, cache_manager) as container:
            yield container


async def perform(container: SegmentContainer, together: list[Step]) -> list[object]:
    """Perform steps that are started in order; return their outcomes."""
    outcomes: list[object] = [None] * len(together)

    async def run(number: int, made: Step, started: trio.Event) -> None:
        # A coroutine runs to its first wait at once, which is where the operation is queued.
        awaitable = made.call(container)
        started.set()
        try:
            outcomes[number] = await awaitable
        except SegmentStoreError as error:
            outcomes[number] = describe(error)

    async with trio.open_nursery() as nursery:
        for number, made in enumerate(together):
            started = trio.Event()
            nursery.start_soon(run, number, made, started)
            await started.wait()
            await trio.lowlevel.checkpoint()
    return outcomes


def describe(error: SegmentStoreError) -> tuple[object, ...]:
    names = ("segment", "start_offset", "expected", "actual", "attribute_id")
    return (type(error).__name__, *(getattr(error, name, None) for name in names))


async def state_of(container: SegmentContainer) -> dict[str, object]:
    """Return everything that can be seen of the segments."""
    state: dict[str, object] = {}
    for name in NAMES:
        try:
            info = container.segment_info(name)
        except SegmentStoreError as error:
            state[name] = type(error).__name__
            continue
        data = b""
        while info.start_offset + len(data) < info.length:
            offset = info.start_offset + len(data)
            data += (await container.read(name, offset=offset, length_max=1000)).data
        values = await container.get_attributes(name, ATTRIBUTES)
        state[name] = (info.start_offset, info.length, info.sealed, data, values)
    return state


async def compare(program: list[list[Step]]) -> None:
    model = MemoryContainer()
    durable = Durable()
    rest = list(program)
    while rest:
        async with durable.open() as container:
            assert await state_of(container) == await state_of(model)
            while rest:
                together = rest.pop(0)
                asked = [made for made in together if made.method != "restart"]
                assert await perform(container, asked) == await perform(model, asked)
                assert await state_of(container) == await state_of(model)
                if len(asked) < len(together):
                    break


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_the_durable_container_does_what_the_model_does(program: list[list[Step]]) -> None:
    trio.run(partial(compare, program))
