"""Writers on the wire do not notice that their event numbers are evicted and loaded again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from segstore.api import SegmentContainer
from segstore.model.attributes import EVENT_COUNT, NULL_ATTRIBUTE_VALUE
from segstore.network.server import ConnectionServer
from segstore.process.config import ConnectionSettings
from segstore.process.registry import ContainerRegistry
from segstore.tables.settings import TableSettings
from segstore.testing.wire_client import WireClient
from support.faults.faulty_chunks import Fault

SEGMENT = "scope/stream/0.#epoch.0"
WRITERS = [bytes([number]) * 16 for number in range(1, 6)]


class Served:
    """A server of one container, and a connection to it."""

    def __init__(self, tiers: Any, nursery: trio.Nursery) -> None:
        self._tiers = tiers
        self._nursery = nursery
        registry = ContainerRegistry(
            self._open,
            container_count=1,
            container_ids=range(1),
            tables=TableSettings(),
            restart_seconds_min=0.01,
            restart_seconds_max=0.1,
        )
        self.registry = registry
        self._server = ConnectionServer(
            registry, ConnectionSettings(), now_ms=lambda: 0, random_bytes=bytes
        )

    @asynccontextmanager
    async def _open(self, number: int) -> AsyncIterator[SegmentContainer]:
        async with self._tiers.open(page_bytes_max=0) as container:
            yield container

    def connect(self) -> WireClient:
        client, server = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._server.serve, server)
        return WireClient(client)


@pytest.fixture
async def served(tiers: Any) -> AsyncIterator[Served]:
    async with trio.open_nursery() as nursery:
        served = Served(tiers, nursery)
        nursery.start_soon(served.registry.run)
        await served.registry.wait_until_tried()
        await tiers.container.create_segment(SEGMENT)
        yield served
        nursery.cancel_scope.cancel()


async def evict(tiers: Any) -> None:
    await tiers.container.flush()
    tiers.forget_clean(SEGMENT)
    assert not any(writer in tiers.memory(SEGMENT).values for writer in WRITERS)


async def test_a_writer_goes_on_after_its_event_number_was_evicted(
    tiers: Any, served: Served
) -> None:
    client = served.connect()
    for writer in WRITERS:
        assert await client.set_up(writer, SEGMENT) == NULL_ATTRIBUTE_VALUE
    for number in range(6):
        for writer in WRITERS:
            await client.append(writer, b"x", number=number)
        for writer in WRITERS:
            acked = await client.expect(wire.DataAppended)
            assert (acked.writer_id, acked.event_number) == (writer, number)
        await evict(tiers)
    values = await tiers.container.get_attributes(SEGMENT, [*WRITERS, EVENT_COUNT])
    assert values == {**dict.fromkeys(WRITERS, 5), EVENT_COUNT: 30}


async def test_setting_a_writer_up_again_loads_its_event_number(tiers: Any, served: Served) -> None:
    client = served.connect()
    await client.set_up(WRITERS[0], SEGMENT)
    await client.append(WRITERS[0], b"x", number=41)
    await client.expect(wire.DataAppended)
    await evict(tiers)
    again = served.connect()
    assert await again.set_up(WRITERS[0], SEGMENT) == 41
    tiers.calls.clear()
    await again.append(WRITERS[0], b"x", number=42)
    await again.expect(wire.DataAppended)
    assert "read" not in tiers.calls, "SetupAppend has loaded it"
    # The writer that was left behind is found out although the number was evicted again.
    await evict(tiers)
    await client.append(WRITERS[0], b"x", number=42)
    assert isinstance(await client.receive(), wire.InvalidEventNumber)
    await client.expect_close()


async def test_a_burst_behind_an_evicted_number_is_acknowledged_in_order(
    tiers: Any, served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    client = served.connect()
    for writer in WRITERS[:2]:
        await client.set_up(writer, SEGMENT)
        await client.append(writer, b"x", number=0)
        await client.expect(wire.DataAppended)
    await evict(tiers)
    tiers.read_seconds = 1.0
    for number in range(1, 20):
        for writer in WRITERS[:2]:
            await client.append(writer, bytes([number]), number=number)
    last = dict.fromkeys(WRITERS[:2], 0)
    while set(last.values()) != {19}:
        acked = await client.expect(wire.DataAppended)
        assert acked.previous_event_number == last[acked.writer_id]
        last[acked.writer_id] = acked.event_number
    read = await tiers.container.read(SEGMENT, offset=2, length_max=100)
    assert read.data == bytes(number for number in range(1, 20) for _ in range(2))


async def test_a_writer_whose_number_cannot_be_read_has_to_connect_again(
    tiers: Any, served: Served
) -> None:
    client = served.connect()
    await client.set_up(WRITERS[0], SEGMENT)
    await client.append(WRITERS[0], b"x", number=0)
    await client.expect(wire.DataAppended)
    await evict(tiers)
    tiers.next_fault = lambda call: Fault.REFUSED if call == "read" else Fault.NONE
    await client.append(WRITERS[0], b"y", number=1)
    await client.expect_close()
    tiers.next_fault = lambda _: Fault.NONE
    again = served.connect()
    assert await again.set_up(WRITERS[0], SEGMENT) == 0
    await again.append(WRITERS[0], b"y", number=1)
    assert (await again.expect(wire.DataAppended)).event_number == 1
    assert tiers.container.segment_info(SEGMENT).length == 2
