"""Tests of the reading of a scope's names, by and by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from pravega_controller.console import scope_names
from pravega_controller.console.scope_names import NamesWatch, choose
from pravega_controller.controller import Controller
from pravega_controller.errors import ScopeNotFoundError
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.store_client import table_client

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


async def test_a_look_reads_for_a_short_time_and_the_next_reads_on(
    open_on_memory: OpenController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_client, "PAGE_ENTRIES", 1)
    monkeypatch.setattr(scope_names, "READ_SECONDS", 1e-9)
    monkeypatch.setattr(scope_names, "KEPT_SHARE", 1e9)
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        streams = ["a", "b", "c"]
        for each in streams:
            await controller.streams.create("s", each, fixed_configuration(1))
        watch, seen = NamesWatch(controller, "s"), []
        while not seen or not seen[-1].is_whole:
            seen.append(await watch.take())
        # Each stream has a second one, for its watermarks.
        assert len(seen) >= 2 * len(streams)
        counts = [len(each.streams) for each in seen]
        assert counts == sorted(counts)
        assert seen[-1].streams == streams
        # What took long to read is kept, and while it is read again the earlier names are shown.
        await controller.streams.create("s", "d", fixed_configuration(1))
        assert await watch.take() is seen[-1]
        watch._kept_until = 0.0
        assert await watch.take() is seen[-1]
        with trio.fail_after(60):
            while (now := await watch.take()) is seen[-1]:
                pass
        assert now.streams == [*streams, "d"]


async def test_a_scope_that_was_made_anew_has_its_own_names(
    open_on_memory: OpenController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope_names, "KEPT_SHARE", 1e9)
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(1))
        watch = NamesWatch(controller, "s")
        assert (await watch.take()).streams == ["a"]
        await controller.streams.seal("s", "a")
        await controller.streams.delete("s", "a")
        await controller.scopes.delete("s")
        with pytest.raises(ScopeNotFoundError):
            await watch.take()
        await controller.scopes.create("s")
        assert (await watch.take()).streams == []


def test_a_page_has_what_may_be_read() -> None:
    part = choose(["Ab", "b", "ba", "c"], "B", 1, lambda name: name != "b")
    assert (part.names, part.count, part.first, part.page_count) == (["Ab", "ba"], 2, 1, 1)
    empty = choose([], "", 7, lambda name: True)
    assert (empty.names, empty.number, empty.page_count) == ([], 1, 1)
