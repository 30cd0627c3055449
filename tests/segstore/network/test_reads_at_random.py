"""Reads of many sizes at random moments are answered, each once."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from pravega_wire import commands as wire
from segstore.process.config import ConnectionSettings
from segstore.runtime.alarm import SleepingAlarm
from segstore.testing.wire_client import WireClient
from support.models.memory_store import memory_store

SEGMENTS = [f"scope/stream/{n}.#epoch.0" for n in range(3)]


@pytest.mark.parametrize("seed", range(15))
async def test_every_read_is_answered(seed: int, autojump_clock: MockClock) -> None:
    random = Random(seed)
    settings = ConnectionSettings(
        reply_age_seconds_min=0.002,
        buffer_bytes_total_max=random.choice((60_000, 400_000, 80 << 20)),
    )
    async with memory_store(settings) as store:
        store.nursery.start_soon(store.server.admission.held_reads.run, SleepingAlarm())
        for name in SEGMENTS:
            await store.container.create_segment(name)
        length = dict.fromkeys(SEGMENTS, 0)
        asked: list[set[int]] = [set() for _ in range(3)]
        got: list[set[int]] = [set() for _ in range(3)]
        clients: list[WireClient] = []
        numbers = iter(range(1, 1 << 20))

        async def receive(index: int, client: WireClient) -> None:
            while True:
                await trio.sleep(random.choice((0, 0, 0.0005, 0.003, 0.05)))
                reply = await client.receive()
                if isinstance(
                    reply, wire.SegmentRead | wire.SegmentIsTruncated | wire.SegmentIsSealed
                ):
                    assert reply.request_id not in got[index], "answered twice"
                    got[index].add(reply.request_id)

        async with trio.open_nursery() as nursery:
            for index in range(3):
                ours, theirs = trio.testing.lockstep_stream_pair()
                store.nursery.start_soon(store.server.serve, theirs)
                clients.append(WireClient(ours))
                nursery.start_soon(receive, index, clients[-1])
            for _ in range(150):
                name = random.choice(SEGMENTS)
                match random.randrange(4):
                    case 0:
                        data = bytes(random.choice((10, 1000, 70_000, 300_000)))
                        await store.container.append(name, data)
                        length[name] += len(data)
                    case 1:
                        await trio.sleep(random.choice((0, 0.0003, 0.001, 0.004)))
                    case _:
                        index, number = random.randrange(3), next(numbers)
                        offset = random.choice((length[name], random.randint(0, length[name])))
                        size = random.choice((100, 10_000, 1 << 20))
                        asked[index].add(number)
                        await clients[index].send(wire.ReadSegment(name, offset, size, "", number))
            for name in SEGMENTS:
                await store.container.append(name, b"end")
            await trio.sleep(120)
            assert got == asked
            nursery.cancel_scope.cancel()
