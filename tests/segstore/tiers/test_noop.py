from __future__ import annotations

import pytest

from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.noop import DataDroppedError, NoOpChunkStorage, holds_user_data

USERS = "scope/stream/0.#epoch.0$00000000000000000000"


async def test_dropped_bytes_cannot_be_read() -> None:
    storage = NoOpChunkStorage(MemoryChunkStorage())
    await storage.write(USERS, offset=0, data=[b"hello"])
    with pytest.raises(DataDroppedError, match=r"dropped the bytes of chunk scope/stream/0"):
        await storage.read(USERS, offset=1, length=2)
    assert await storage.read(USERS, offset=5, length=0) == b""


async def test_what_the_store_reads_again_is_kept() -> None:
    kept = MemoryChunkStorage()
    storage = NoOpChunkStorage(kept)
    name = "_system/_tables/controller/scopes/0$0"
    await storage.write(name, offset=0, data=[b"hello"])
    await storage.write(USERS, offset=0, data=[b"hello"])
    assert await storage.read(name, offset=0, length=5) == b"hello"
    assert [chunk.name for chunk in await kept.list_chunks("")] == [name]
    assert [chunk.name for chunk in await storage.list_chunks("")] == [name, USERS]


@pytest.mark.parametrize(
    ("name", "users"),
    [
        (USERS, True),
        ("stream/7$00000000000000000000", True),
        ("_system/containers/metadata_3$0", False),
        ("scope/_RGreaders/0.#epoch.0$0", False),
        ("scope/_MARKstream/0.#epoch.0$0", False),
        ("scope/stream/0.#epoch.0#transaction.0123456789abcdef0123456789abcdef$0", False),
        ("scope/stream/0.#epoch.0$attributes.index$0", False),
    ],
)
def test_only_what_users_alone_read_is_dropped(name: str, users: bool) -> None:
    assert holds_user_data(name) is users
