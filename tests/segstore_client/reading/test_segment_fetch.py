"""The requests for one segment's pieces, as a store sees them."""

from __future__ import annotations

import platform
import subprocess
import sys
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from foreign_servers.deadlines import scale

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.codec import encode
from pravega_wire.connection import Append
from pravega_wire.event_framing import frame_event
from segstore_client.access.tokens import PLAIN, StoreAccess
from segstore_client.controller.controller_client import HeadSegments
from segstore_client.event_reader import EventReader
from support.event_loops import RunClient
from support.threaded_store import ThreadedStore

SECONDS = scale(60.0)
EVENT = frame_event(b"event")


class PiecemealStore(ThreadedStore):
    """Answers each read with one event, and says which reads have come."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = [Event() for _ in range(10)]

    def answer(self, command: wire.Command | Append) -> bytes:
        match command:
            case wire.ReadSegment(segment, offset, _, _, request_id):
                self.asked[offset // len(EVENT)].set()
                return encode(wire.SegmentRead(segment, offset, False, False, EVENT, request_id))
        return encode(wire.HELLO if isinstance(command, wire.Hello) else wire.KeepAlive())


class FailingTokens:
    """Has no token for each third request."""

    def __init__(self) -> None:
        self._count = 0

    def get(self) -> str:
        self._count += 1
        if self._count % 3 == 0:
            raise ConnectionLostError("the controller is gone")
        return ""


def controller_of(store: PiecemealStore, access: StoreAccess) -> Any:
    """Return a controller whose only segment is at the store."""
    found = SimpleNamespace(
        head_segments=lambda *_: HeadSegments({0: 0}),
        segment_address=lambda *_: store.address,
        store_access=lambda *_: access,
        with_patience=lambda _: found,
    )
    return found


async def test_the_next_piece_is_requested_before_the_program_has_this_one(
    run_client: RunClient,
) -> None:
    async def read(controller: Any, store: PiecemealStore) -> None:
        async with EventReader(controller, "s", "t") as reader:
            await anext(reader)
            # No task of this loop runs, until the program awaits something.
            assert not store.asked[1].is_set()
            for number in range(1, 5):
                await anext(reader)
                assert store.asked[number + 1].wait(SECONDS)

    with PiecemealStore().running() as store:
        await run_client(read, controller_of(store, PLAIN), store)


async def test_a_piece_is_not_lost_when_the_next_one_cannot_be_requested(
    run_client: RunClient,
) -> None:
    async def read(controller: Any) -> list[int]:
        async with EventReader(controller, "s", "t", patience=SECONDS) as reader:
            return [(await anext(reader)).offset for _ in range(6)]

    access = StoreAccess(tokens=FailingTokens())  # type: ignore[arg-type]
    with PiecemealStore().running() as store:
        offsets = await run_client(read, controller_of(store, access))
    assert offsets == [number * len(EVENT) for number in range(6)]


@pytest.mark.processes
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's memory")
def test_pages_are_not_mapped_anew_for_each_piece() -> None:
    program = """if True:
        import resource
        from segstore_client.reading.segment_fetch import READ_BYTES, keep_freed_memory

        def take_pieces(count):
            for _ in range(count):
                received = bytearray()
                for _ in range(4):
                    received += bytes(READ_BYTES // 4)
                events = [bytes(received[at:at + 10000]) for at in range(0, READ_BYTES, 10000)]

        keep_freed_memory()
        take_pieces(10)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        take_pieces(50)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    faults = int(subprocess.check_output([sys.executable, "-c", program]))
    # Mapped anew, the pages of 50 pieces are 12,800, each of which is a fault.
    assert faults < 1000
