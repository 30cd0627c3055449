"""A damaged chunk fails the reads of its bytes, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

from pravega_wire import commands as wire
from segstore.chunks.checksums import BLOCK_BYTES
from segstore.testing.wire_client import WireClient
from segstore.tiers.chunk_paths import path_of
from support.local_store import LocalStore, local_store

DAMAGED, WHOLE = "scope/damaged/0.#epoch.0", "scope/whole/0.#epoch.0"
DATA = random.Random(4).randbytes(5 * BLOCK_BYTES)
WRITER = bytes(range(16))


async def write(store: LocalStore, name: str) -> None:
    client = store.connect()
    created = await client.call(wire.CreateSegment(client.next_request_id(), name, 0, 0, ""))
    assert isinstance(created, wire.SegmentCreated)
    await client.set_up(WRITER, name)
    await client.append(WRITER, DATA, number=1)
    await client.expect(wire.DataAppended)


async def read(client: WireClient, name: str, offset: int) -> wire.Command:
    request = wire.ReadSegment(name, offset, 1000, "", client.next_request_id())
    return await client.call(request)


async def test_a_damaged_block_is_an_error_of_its_own_read_alone(tmp_path: Path) -> None:
    async with local_store(tmp_path, container_count=1) as store:
        for name in (DAMAGED, WHOLE):
            await write(store, name)
    path = tmp_path / "chunks" / path_of(f"{DAMAGED}.S-1$00000000000000000000.E1.1")
    content = bytearray(path.read_bytes())
    content[2 * BLOCK_BYTES + 77] ^= 2
    path.write_bytes(content)
    async with local_store(tmp_path, container_count=1) as store:
        client = store.connect()
        for _ in range(3):
            refused = await read(client, DAMAGED, 2 * BLOCK_BYTES + 5)
            assert isinstance(refused, wire.ErrorMessage)
            assert refused.error_code == -1
            assert refused.segment == DAMAGED
            assert f"the block at byte {2 * BLOCK_BYTES} does not match" in refused.message
        looks = len(store.chunks.calls_for("read", DAMAGED))
        assert looks <= 2 * 3, "two looks for each request, and nothing is tried in between"
        for name, offset in ((WHOLE, 2 * BLOCK_BYTES + 5), (WHOLE, 0)):
            reply = await read(client, name, offset)
            assert isinstance(reply, wire.SegmentRead)
            assert reply.data == DATA[offset : offset + len(reply.data)]
        # The store itself goes on with both.
        for name in (DAMAGED, WHOLE):
            await client.set_up(bytes(16), name)
