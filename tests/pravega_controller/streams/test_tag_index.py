"""Streams by tag: through the index, whatever became of the streams, also of old scopes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.errors import InvalidRequestError, ScopeNotFoundError
from pravega_controller.metadata.records import decode, encode
from pravega_controller.rules.streams import (
    ScaleType,
    ScalingPolicy,
    StreamConfiguration,
    fixed_configuration,
)
from pravega_controller.streams import tag_index
from pravega_controller.streams.tag_index import TagRecord, decode_position, encode_position
from pravega_controller.testing.memory_segment_store import MemorySegmentStore

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


def tagged(*tags: str) -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy(ScaleType.FIXED, 1), tags=tags)


async def with_tag(controller: Controller, tag: str, scope: str = "s") -> list[str]:
    found: list[str] = []
    token = ""
    while (page := await controller.streams.list_with_tag(scope, tag, token)).names:
        found += page.names
        token = page.token
    return sorted(found)


def index_entries(memory: MemorySegmentStore, scope_id: str) -> set[tuple[str, str]]:
    """Return the entries of a scope's index."""
    table = memory.tables[f"_system/_tables/controller/tags-{scope_id}"]
    records = [decode(value, TagRecord) for value, _ in table.entries.values()]
    return {(record.text, record.stream) for record in records if record.stream}


async def test_the_index_follows_what_becomes_of_streams(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        streams = controller.streams
        await streams.create("s", "a", tagged("red", "blue"))
        await streams.create("s", "b", tagged("red"))
        await streams.create("s", "c", tagged())
        assert await with_tag(controller, "red") == ["a", "b"]
        assert await with_tag(controller, "blue") == ["a"]
        assert await with_tag(controller, "re") == []
        await streams.update("s", "a", tagged("blue", "green"))
        await streams.update("s", "c", tagged("green"))
        assert await with_tag(controller, "red") == ["b"]
        assert await with_tag(controller, "green") == ["a", "c"]
        await streams.seal("s", "b")
        assert await with_tag(controller, "red") == ["b"]
        await streams.delete("s", "b")
        assert await with_tag(controller, "red") == []
        scope = await controller.store.scopes.find_active("s")
        assert index_entries(memory_store, scope.record.scope_id) == {
            ("blue", "a"),
            ("green", "a"),
            ("green", "c"),
        }
        await controller.scopes.delete_with_contents("s")
        assert scope.tag_index not in memory_store.tables
        with pytest.raises(ScopeNotFoundError):
            await with_tag(controller, "green")


async def test_pages_go_on_where_the_last_one_ended(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tag_index, "PAGE_ENTRIES", 3)
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        for number in range(10):
            await controller.streams.create("s", f"a{number}", tagged("x", f"only-{number}"))
        assert await with_tag(controller, "x") == [f"a{number}" for number in range(10)]
        page = await controller.streams.list_with_tag("s", "x", "")
        assert len(page.names) == 3
        # A token of another tag's listing begins at the beginning.
        other = await controller.streams.list_with_tag("s", "only-1", page.token)
        assert other.names == ["a1"]


async def test_streams_of_an_earlier_version_are_found(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "old", tagged("x"))
        await controller.streams.create("s", "plain", tagged())
        table = (await controller.store.scopes.find_active("s")).tag_index
    del memory_store.tables[table]
    async with open_on_memory() as controller:
        assert await with_tag(controller, "x") == ["old"]
        await controller.streams.create("s", "new", tagged("x"))
        assert await with_tag(controller, "x") == ["new", "old"]


async def test_an_index_that_was_not_finished_is_not_believed(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "old", tagged("x"))
        table = (await controller.store.scopes.find_active("s")).tag_index
    memory_store.tables[table].entries.clear()
    async with open_on_memory() as controller:
        assert await with_tag(controller, "x") == ["old"]


async def test_an_entry_that_was_left_over_lists_nothing(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", tagged("x"))
        table = memory_store.tables[(await controller.store.scopes.find_active("s")).tag_index]
        for name in ("a", "gone"):
            key = tag_index._key("y", name)
            table.entries[key] = (encode(TagRecord("y", name)), 1)
        assert await with_tag(controller, "y") == []


async def test_listing_by_tag_looks_at_the_tagged_streams_alone(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        for number in range(100):
            tags = ("rare",) if number % 50 == 0 else ("common",)
            await controller.streams.create("s", f"a{number}", tagged(*tags))
        before = memory_store.requests
        assert await with_tag(controller, "rare") == ["a0", "a50"]
        assert memory_store.requests - before < 10


async def test_tags_are_found_in_a_real_segment_store(segment_store: tuple[str, int]) -> None:
    config = ControllerConfig(segment_stores=(segment_store,))
    async with open_controller(config, Environment(random=Random(7))) as controller:
        await controller.scopes.create("s")
        async with trio.open_nursery() as nursery:
            for number in range(30):
                tags = (f"t{number % 3}", "all")
                nursery.start_soon(controller.streams.create, "s", f"a{number}", tagged(*tags))
        await controller.streams.create("s", "plain", fixed_configuration(1))
        assert len(await with_tag(controller, "all")) == 30
        assert await with_tag(controller, "t1") == sorted(f"a{n}" for n in range(1, 30, 3))
        assert await with_tag(controller, "nobody") == []


@given(st.binary(min_size=32, max_size=32))
def test_positions_come_back_from_their_tokens(key: bytes) -> None:
    assert decode_position(encode_position(key)) == key


@pytest.mark.parametrize("token", ["rubbish", "tag-!", "tag-AAAA", "at-AAAA", "tag-" + "A" * 500])
def test_foreign_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError):
        decode_position(token)
