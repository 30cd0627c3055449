"""Writing requests for scaling as any client would, to a segment store over TCP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import trio
import trio.testing

from pravega_security.delegation_tokens import TokenMinter
from pravega_security.signing_keys import SigningKeys, create_key_file
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
from segstore.runtime.clock import wall_clock_ms

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


async def serve_store(
    path: Path, *, token_keys: Path | None = None, task_status: trio.TaskStatus[int]
) -> None:
    config = SegmentStoreConfig(
        port=0, data_dir=path, container_count=2, drain_seconds=0.1, token_keys=token_keys
    )
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


def create(port: int, *segments: str, token: str = "") -> None:
    with SegmentConnection("127.0.0.1", port) as connection:
        for segment in segments:
            request = wire.CreateSegment(connection.next_request_id(), segment, 0, 0, token)
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


def own_token() -> str:
    """Return a token as a store's own."""
    return "own"


def test_the_controller_is_asked_in_the_name_of_the_store() -> None:
    """A controller's ``authorization`` has the token, and no header is sent without one."""
    seen: list[str] = []

    class Service(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            seen.extend(each.value for each in details.invocation_metadata if "auth" in each.key)
            return None

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for token in (own_token, lambda: ""):
            with pytest.raises(RequestStreamError, match="UNIMPLEMENTED"):
                look_up_with(lambda: [("127.0.0.1", port)], token=token)()
    finally:
        server.stop(0).wait()
    assert seen == ["Token own"]


async def test_events_are_written_with_the_token_of_the_store(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    file = tmp_path / "keys"
    create_key_file(file, now=0)
    minter = TokenMinter(SigningKeys(file), None, lambda: wall_clock_ms() // 1000)
    path = tmp_path / "data"
    port = await nursery.start(partial(serve_store, path, token_keys=file))
    with pytest.raises(AssertionError):
        await trio.to_thread.run_sync(create, port, LOWER)
    make = partial(create, port, LOWER, token=minter.mint_master())
    await trio.to_thread.run_sync(make)
    where = [RequestSegment(LOWER, math.inf, ("127.0.0.1", port))]
    wanted = Wanted(["a"])
    writer = RequestStreamWriter(
        wanted,  # type: ignore[arg-type]
        lambda: where,
        token=minter.mint_master,
        random=Random(3),
    )
    nursery.start_soon(writer.run)
    with trio.fail_after(30):
        await wanted.all_told.wait()


def test_each_controller_is_asked_until_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    told = [RequestSegment(LOWER, math.inf, ("127.0.0.1", 12345))]

    def ask(host: str, port: int, ca: Path | None, token: str) -> list[RequestSegment]:
        assert (ca, token) == (None, "own")
        asked.append(port)
        if port < 3:
            raise RequestStreamError(f"{host}:{port} does not tell")
        return told

    monkeypatch.setattr("segstore.load.request_stream._ask_controller", ask)
    ports = (1, 2, 3, 4)
    assert look_up_with(lambda: [("localhost", port) for port in ports], token=own_token)() == told
    assert asked == [1, 2, 3]
    with pytest.raises(RequestStreamError, match="localhost:2 does not tell"):
        look_up_with(lambda: [("localhost", 1), ("localhost", 2)], token=own_token)()
    with pytest.raises(RequestStreamError, match="no controller is known"):
        look_up_with(list)()
