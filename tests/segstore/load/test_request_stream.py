"""Writing requests for scaling as any client would, to a segment store over TCP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import routing_key_hash
from pravega_wire.scale_events import AutoScaleEvent, ScaleDirection, decode_auto_scale
from segstore.load.monitor import DueEvent
from segstore.load.rates import Advice
from segstore.load.request_stream import (
    RequestSegment,
    RequestStreamError,
    RequestStreamWriter,
    look_up_with,
)
from segstore.network.server import serve
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig

LOWER, UPPER = "_system/_requeststream/0.#epoch.0", "_system/_requeststream/1.#epoch.0"


def due(stream: str) -> DueEvent:
    event = AutoScaleEvent("s", stream, 0, ScaleDirection.UP, 7, 2)
    return DueEvent(0, f"s/{stream}/0.#epoch.0", Advice(2), event)


class Wanted:
    """A substitute for the monitor: it has the due events until they were told."""

    def __init__(self, streams: Sequence[str]) -> None:
        self.left = [due(stream) for stream in streams]
        self.all_told = trio.Event()

    async def wait_due(self) -> list[DueEvent]:
        if not self.left:
            self.all_told.set()
            await trio.sleep_forever()
        return list(self.left)

    def record_delivery(self, told: Sequence[DueEvent]) -> None:
        self.left = [each for each in self.left if each not in told]


async def serve_store(path: Path, *, task_status: trio.TaskStatus[int]) -> None:
    config = SegmentStoreConfig(port=0, data_dir=path, container_count=2, drain_seconds=0.1)
    async with open_containers(config) as opener:
        await serve(config, opener, task_status=task_status)


def events_in(port: int, segment: str) -> list[AutoScaleEvent]:
    with SegmentConnection("127.0.0.1", port) as connection:
        reply = connection.call(
            wire.GetStreamSegmentInfo(connection.next_request_id(), segment, "")
        )
        assert isinstance(reply, wire.StreamSegmentInfo)
        data = b""
        while len(data) < reply.write_offset:
            request_id = connection.next_request_id()
            read = connection.call(wire.ReadSegment(segment, len(data), 1 << 20, "", request_id))
            assert isinstance(read, wire.SegmentRead)
            data += read.data
    events = [decode_auto_scale(data[start:end]) for start, end in iterate_event_spans(data)]
    assert None not in events
    return [event for event in events if event is not None]


def create(port: int, *segments: str) -> None:
    with SegmentConnection("127.0.0.1", port) as connection:
        for segment in segments:
            request = wire.CreateSegment(connection.next_request_id(), segment, 0, 0, "")
            assert isinstance(connection.call(request), wire.SegmentCreated)


async def test_events_lie_where_their_routing_key_belongs(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    port = await nursery.start(serve_store, tmp_path)
    await trio.to_thread.run_sync(partial(create, port, LOWER, UPPER))
    address = ("127.0.0.1", port)
    where = [RequestSegment(LOWER, 0.5, address), RequestSegment(UPPER, math.inf, address)]
    names = [f"stream{number}" for number in range(2_500)]
    for share in (names[:2_300], names[2_300:]):
        wanted = Wanted(share)
        writer = RequestStreamWriter(wanted, lambda: where, random=Random(3))  # type: ignore[arg-type]
        nursery.start_soon(writer.run)
        with trio.fail_after(30):
            await wanted.all_told.wait()
    found = {}
    for segment, low, high in ((LOWER, 0.0, 0.5), (UPPER, 0.5, 1.0)):
        for event in await trio.to_thread.run_sync(events_in, port, segment):
            assert low <= routing_key_hash(f"s/{event.stream}") < high
            assert event.stream not in found
            found[event.stream] = event
    assert sorted(found) == sorted(names)
    assert found["stream7"] == due("stream7").event


async def test_what_fails_is_tried_again(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no controller, nobody at the address, no such segment: then all is well."""
    monkeypatch.setattr("segstore.load.request_stream.PAUSE_SECONDS_MIN", 0.01)
    port = await nursery.start(serve_store, tmp_path)
    attempts = 0

    def look_up() -> list[RequestSegment]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise RequestStreamError("there is no controller")
        if attempts == 2:
            return [RequestSegment(LOWER, math.inf, ("127.0.0.1", 1))]
        if attempts == 4:
            create(port, LOWER)
        return [RequestSegment(LOWER, math.inf, ("127.0.0.1", port))]

    wanted = Wanted(["a"])
    writer = RequestStreamWriter(wanted, look_up, random=Random(3))  # type: ignore[arg-type]
    nursery.start_soon(writer.run)
    with trio.fail_after(30):
        await wanted.all_told.wait()
    assert attempts == 4
    [event] = await trio.to_thread.run_sync(events_in, port, LOWER)
    assert event.stream == "a"


def test_a_controller_that_is_not_there_is_said_in_a_sentence() -> None:
    with pytest.raises(RequestStreamError, match=r"127\.0\.0\.1:1 does not tell where"):
        look_up_with(lambda: [("127.0.0.1", 1)])()


def test_each_controller_is_asked_until_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    told = [RequestSegment(LOWER, math.inf, ("127.0.0.1", 12345))]

    def ask(host: str, port: int) -> list[RequestSegment]:
        asked.append(port)
        if port < 3:
            raise RequestStreamError(f"{host}:{port} does not tell")
        return told

    monkeypatch.setattr("segstore.load.request_stream._ask_controller", ask)
    assert look_up_with(lambda: [("localhost", port) for port in (1, 2, 3, 4)])() == told
    assert asked == [1, 2, 3]
    with pytest.raises(RequestStreamError, match="localhost:2 does not tell"):
        look_up_with(lambda: [("localhost", 1), ("localhost", 2)])()
    with pytest.raises(RequestStreamError, match="no controller is known"):
        look_up_with(list)()
