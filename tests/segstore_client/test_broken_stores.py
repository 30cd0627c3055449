"""The client and stores that answer with anything: it ends with an error, and never hangs."""

from __future__ import annotations

import contextlib
from random import Random
from types import SimpleNamespace

import anyio
import pytest

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.connection import Append
from pravega_wire.event_framing import frame_event
from pravega_wire.requests import store_connection
from pravega_wire.sessions.routes import SegmentRange
from segstore_client import PravegaError
from segstore_client.access.tokens import PLAIN
from segstore_client.connections import request_pool
from segstore_client.controller.controller_client import HeadSegments
from segstore_client.event_reader import EventReader
from segstore_client.event_writer import EventWriter
from segstore_client.reading import segment_fetch
from segstore_client.writing import segment_pump
from support.client_stores import open_client
from support.event_loops import ON_THE_USUAL_LOOP, RunClient
from support.rare_parameters import mark_rare
from support.threaded_store import ThreadedStore

pytestmark = ON_THE_USUAL_LOOP

NAME = "s/t/0.#epoch.0"
PATIENCE_SECONDS = 0.3
SECONDS_MAX = 60.0


class BabblingStore(ThreadedStore):
    """Answers each command as it should, or with any other reply, or with bytes that are none."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)

    def answer(self, command: wire.Command | Append) -> bytes:
        draw = self._random.random()
        if draw < 0.02:
            raise EOFError
        if draw < 0.04:
            return self._random.randbytes(self._random.randrange(1, 60))
        if draw < 0.2:
            return encode(self._random.choice(self._others(getattr(command, "request_id", 0))))
        match command:
            case wire.Hello():
                return encode(wire.HELLO)
            case wire.SetupAppend(request_id, writer_id, segment, _):
                return encode(wire.AppendSetup(request_id, segment, writer_id, -(2**63)))
            case wire.GetStreamSegmentInfo(request_id, segment, _):
                return encode(
                    wire.StreamSegmentInfo(request_id, segment, True, False, False, 0, 9, 0)
                )
            case wire.ReadSegment(segment, offset, _, _, request_id):
                data = frame_event(b"event")
                return encode(wire.SegmentRead(segment, offset, True, False, data, request_id))
            case Append():
                number = command.last_event_number
                return encode(
                    wire.DataAppended(command.writer_id, number, 0, command.request_id, 9)
                )
            case _:
                return encode(wire.KeepAlive())

    def _others(self, request_id: int) -> list[wire.Reply]:
        number = self._random.choice([-(2**63), -1, 0, 2**63 - 1])
        return [
            wire.KeepAlive(),
            wire.Hello(99, 98),
            wire.HELLO,
            wire.DataAppended(bytes(16), number, number, request_id, number),
            wire.AppendSetup(request_id, NAME, bytes(16), number),
            wire.SegmentRead(NAME, number, False, False, b"\xff" * 9, request_id),
            wire.SegmentIsTruncated(request_id, NAME, number, "", number),
            wire.WrongHost(request_id, NAME, "elsewhere", ""),
            wire.InvalidEventNumber(bytes(16), request_id),
            wire.SegmentCreated(request_id, NAME),
            wire.ErrorMessage(request_id, NAME, "no", 99),
            wire.AuthTokenCheckFailed(request_id, "", 0),
        ]


def controller_of(store: BabblingStore) -> SimpleNamespace:
    """Return a controller whose only segment is at the store."""
    found = SimpleNamespace(
        current_segments=lambda *_: SimpleNamespace(ranges=(SegmentRange(0, 0.0, 1.0),)),
        head_segments=lambda *_: HeadSegments({0: 0}),
        segment_address=lambda *_: store.address,
        store_access=lambda *_: PLAIN,
        successors=lambda *_: (),
        with_patience=lambda _: found,
    )
    return found


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_pump, "LOOK_SECONDS", 0.1)
    for module in (segment_pump, store_connection, request_pool):
        monkeypatch.setattr(module, "REPLY_SECONDS", 0.3)
    monkeypatch.setattr(segment_fetch, "KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(segment_fetch, "SILENCE_SECONDS_MAX", 0.3)


@pytest.mark.parametrize("seed", mark_rare([3, 0, 1, 2], 1))
async def test_a_writer_ends_well_or_with_an_error(seed: int, run_client: RunClient) -> None:
    async def write(controller: object) -> None:
        with anyio.fail_after(SECONDS_MAX):
            with contextlib.suppress(PravegaError):
                async with EventWriter(
                    controller,  # type: ignore[arg-type]
                    "s",
                    "t",
                    patience=PATIENCE_SECONDS,
                ) as writer:
                    for number in range(60):
                        await writer.write(b"%d" % number)

    with BabblingStore(seed).running() as store:
        await run_client(write, controller_of(store))


@pytest.mark.parametrize("seed", mark_rare([3, 0, 1, 2], 1))
async def test_a_reader_ends_well_or_with_an_error(seed: int, run_client: RunClient) -> None:
    async def read(controller: object) -> None:
        count = 0
        with anyio.fail_after(SECONDS_MAX):
            with contextlib.suppress(PravegaError):
                async with EventReader(
                    controller,  # type: ignore[arg-type]
                    "s",
                    "t",
                    patience=PATIENCE_SECONDS,
                ) as reader:
                    async for event in reader:
                        assert event.data in (b"event", b"")
                        count += 1
                        if count == 60:
                            break

    with BabblingStore(seed).running() as store:
        await run_client(read, controller_of(store))


@pytest.mark.parametrize("seed", mark_rare([3, 0, 1, 2], 1))
async def test_byte_streams_end_well_or_with_an_error(seed: int, run_client: RunClient) -> None:
    async def use(store: BabblingStore) -> None:
        controller = controller_of(store)
        with anyio.fail_after(SECONDS_MAX):
            async with open_client(controller, patience=PATIENCE_SECONDS) as client:
                with contextlib.suppress(PravegaError):
                    async with client.byte_writer("s/t") as file:
                        for number in range(60):
                            await file.write(b"%d" % number)
                            await file.flush()
                with contextlib.suppress(PravegaError):
                    async with client.byte_reader("s/t") as reader:
                        for _ in range(60):
                            assert len(await reader.read(9)) <= 9

    with BabblingStore(seed).running() as store:
        await run_client(use, store)
