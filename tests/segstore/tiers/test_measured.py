"""The recordings of the calls of a tier 2; ``test_chunk_storage_behaviors`` has its behavior."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from pravega_metrics.store_metrics import TIER2_BYTES, TIER2_SECONDS
from segstore.errors import ChunkNotFoundError
from segstore.tiers.api import ChunkInfo
from segstore.tiers.measured import MeasuredChunkStorage
from segstore.tiers.memory import MemoryChunkStorage


def counts() -> dict[tuple[str, ...], int]:
    return {labels: each.count for labels, each in TIER2_SECONDS.read().readings.items()}


def bytes_moved(call: str) -> int:
    return TIER2_BYTES.of(call).value


@pytest.fixture
def storage() -> MeasuredChunkStorage:
    return MeasuredChunkStorage(MemoryChunkStorage())


async def test_each_call_is_recorded_once(storage: MeasuredChunkStorage) -> None:
    before, written, read = counts(), bytes_moved("write"), bytes_moved("read")
    await storage.write("a", offset=0, data=[b"012", b"34"])
    await storage.read("a", offset=1, length=3)
    await storage.info("a")
    await storage.lengths(["a", "b"])
    await storage.list_chunks("")
    await storage.delete("a")
    new = {labels: count - before.get(labels, 0) for labels, count in counts().items()}
    calls = ("write", "read", "info", "lengths", "list", "delete")
    assert {labels: count for labels, count in new.items() if count} == {
        (call, "ok"): 1 for call in calls
    }
    assert (bytes_moved("write") - written, bytes_moved("read") - read) == (5, 3)


async def test_a_call_that_fails_is_recorded_by_its_error(storage: MeasuredChunkStorage) -> None:
    labels = ("info", "ChunkNotFoundError")
    before, moved = counts().get(labels, 0), bytes_moved("read")
    with pytest.raises(ChunkNotFoundError):
        await storage.info("missing")
    with pytest.raises(ChunkNotFoundError):
        await storage.read("missing", offset=0, length=3)
    assert counts()[labels] == before + 1
    assert bytes_moved("read") == moved


class Broken(MemoryChunkStorage):
    """A storage that waits for ever, or has a defect."""

    async def info(self, name: str) -> ChunkInfo:
        if name == "defect":
            raise ZeroDivisionError
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "result"), [("defect", "ZeroDivisionError"), ("slow", "Cancelled")]
)
async def test_what_is_no_refusal_is_recorded_too(name: str, result: str) -> None:
    before = counts().get(("info", result), 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        with suppress(ZeroDivisionError):
            await MeasuredChunkStorage(Broken()).info(name)
    assert counts()["info", result] == before + 1
