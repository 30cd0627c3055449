"""A key-value table of a real store, and one whose store loses answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import segstore_client
from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.sessions.routes import SegmentRange
from segstore_client import ABSENT, ConflictError, Entry, NotFoundError, UsageError
from segstore_client.access.tokens import PLAIN
from segstore_client.controller.controller_client import TableSettings
from segstore_client.steps import table_steps
from segstore_client.table import Table
from support.event_loops import RunClient
from support.served_stream import served_stream

KEYS = [bytes([high, low, last]) for high in (0, 7, 255) for low in (0, 255) for last in (0, 255)]


async def use(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await store.create_scope("demo")
        with pytest.raises(NotFoundError, match="key-value table demo/prices does not exist"):
            await store.table("demo/prices")
        await store.create_table(
            "demo/prices", primary_key_bytes=2, secondary_key_bytes=1, partitions=3
        )
        assert await store.list_tables("demo") == ["demo/prices"]
        prices = await store.table("demo/prices")
        assert (prices.key_bytes, prices.settings.partitions) == (3, 3)
        assert [each async for each in prices.entries()] == []

        # Many tasks at the same time use one connection.
        async with anyio.create_task_group() as group:
            for key in KEYS:
                group.start_soon(prices.put, key, b"v" + key)
        found = await prices.get_all([*KEYS, b"???", *KEYS])
        values = [None if each is None else each.value for each in found]
        assert values == [*(b"v" + key for key in KEYS), None, *(b"v" + key for key in KEYS)]
        assert sorted([each.key async for each in prices.entries()]) == sorted(KEYS)
        part = prices.entries(first=b"\x00\x00\xff", last=b"\x07\xff\x00")
        assert sorted([each.key async for each in part]) == sorted(KEYS)[1:7]

        version = await prices.put(b"new", b"1", version=ABSENT)
        assert await prices.get(b"new") == Entry(b"new", b"1", version)
        with pytest.raises(ConflictError, match="the key in demo/prices has another version"):
            await prices.put(b"new", b"2", version=ABSENT)
        with pytest.raises(ConflictError, match="has another version"):
            await prices.remove(b"new", version=version + 1)
        await prices.remove(b"new", version=version)
        await prices.remove(b"new")
        assert await prices.get(b"new") is None
        with pytest.raises(ConflictError, match="does not exist"):
            await prices.put(b"new", b"2", version=version)
        with pytest.raises(UsageError, match="a key of demo/prices has 3 bytes, not 4"):
            await prices.get(b"four")
        await store.delete_table("demo/prices")
        assert await store.list_tables("demo") == []


async def test_entries_are_put_read_and_removed(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(use, stream.address)


async def test_entries_of_one_primary_key_change_together(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def change(address: str) -> None:
        async with segstore_client.connect(address) as store:
            await store.create_scope("demo")
            await store.create_table("demo/t", primary_key_bytes=1, secondary_key_bytes=1)
            entries = await store.table("demo/t")
            versions = await entries.put_all({b"a1": b"one", b"a2": b"two"})
            found = await entries.get_all([b"a1", b"a2"])
            assert found == [
                Entry(b"a1", b"one", versions[0]),
                Entry(b"a2", b"two", versions[1]),
            ]
            for wrong in ({b"a1": b"", b"b1": b""}, {}):
                with pytest.raises(UsageError, match="have one primary key"):
                    await entries.put_all(wrong)

    async with served_stream(tmp_path) as stream:
        await run_client(change, stream.address)


async def cancel_an_iteration(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await store.create_scope("demo")
        await store.create_table("demo/t", primary_key_bytes=2, secondary_key_bytes=1)
        entries = await store.table("demo/t")
        for key in KEYS:
            await entries.put(key, b"")
        iteration, found = entries.entries(), list[bytes]()
        for cancelled in [True, False] * len(KEYS):
            with anyio.CancelScope() as scope:
                if cancelled:
                    scope.cancel()
                found.append((await anext(iteration)).key)
        found += [entry.key async for entry in iteration]
        assert sorted(found) == sorted(KEYS)


async def test_an_iteration_goes_on_after_a_wait_that_was_cancelled(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_steps, "PAGE_ENTRIES", 1)
    async with served_stream(tmp_path) as stream:
        await run_client(cancel_an_iteration, stream.address)


async def test_an_update_whose_answer_is_lost_is_not_called_refused(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_steps, "PAGE_ENTRIES", 1)

    class LossyPool:
        """Does each request; the answer to the first one does not arrive."""

        def __init__(self) -> None:
            self.version = 0

        async def ask(self, address: object, access: object, make: Any) -> wire.Reply:
            request = make(1)
            assert isinstance(request, wire.UpdateTableEntries)
            (entry,) = request.table_entries
            if entry.key.version == ABSENT and self.version:
                return wire.TableKeyBadVersion(1, request.segment, "")
            self.version += 1
            if self.version == 1:
                raise ConnectionLostError("it broke")
            return wire.TableEntriesUpdated(1, (self.version,))

    controller: Any = SimpleNamespace(
        segment_address=lambda *_: ("127.0.0.1", 1), store_access=lambda *_: PLAIN
    )

    def new_table() -> Table:
        pool: Any = LossyPool()
        ranges = [SegmentRange(0, 0.0, 1.0)]
        settings = TableSettings(1, 1, 0, 0)
        return Table(controller, pool, "s", "t", settings, ranges, patience=60.0)

    async def put() -> None:
        assert await new_table().put(b"k", b"1") == 2
        with pytest.raises(ConflictError, match="has another version; an answer was lost, so"):
            await new_table().put(b"k", b"1", version=ABSENT)

    await run_client(put)
