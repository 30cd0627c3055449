"""A writer of a real stream that blocks: its buffer, acknowledgements, interrupts, and its end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from segstore_client import blocking
from segstore_client.blocking import BlockingStore, segment_writer
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import (
    BufferFullError,
    ClosedError,
    StreamSealedError,
    TimedOutError,
    WriterClosedError,
)
from segstore_client.positions import Position
from support.served_stream import ServedStream, run, served_stream

KEYS = 5
OURS = (
    "segstore_client.blocking.keyed_writer",
    "segstore_client.blocking.event_writer",
    "pravega_wire.sessions.append_session",
    "pravega_wire.sessions.routes",
)


async def use(tmp_path: Path, program: Callable[[BlockingStore], None]) -> None:
    def connect(stream: ServedStream) -> None:
        with blocking.connect(stream.address) as store:
            program(store)

    async with served_stream(tmp_path, 0) as stream:
        await run(connect, stream)


def read_all(store: BlockingStore) -> list[bytes]:
    with store.reader("s/t", end=Position.TAIL) as reader:
        return [event.data for event in reader]


async def test_a_writer_that_blocks_takes_no_more_than_its_buffer(tmp_path: Path) -> None:
    events = [b"%04d" % number + bytes(1000) for number in range(30)]

    def write(store: BlockingStore) -> None:
        with store.writer("s/t", buffer_bytes=10_000) as writer:
            waiting = [writer.write_nowait(event) for event in events[:10]]
            with pytest.raises(BufferFullError, match="10120 bytes wait to be stored"):
                writer.write_nowait(events[10])
            assert not any(each.is_done for each in waiting)
            writer.submit(events[10])
            assert all(each.is_done for each in waiting[:10])
            for event in events[11:]:
                writer.submit(event)
            assert writer.sent_events >= 20
        assert all(each.is_done for each in waiting)
        assert read_all(store) == events

    await use(tmp_path, write)


async def test_an_acknowledgement_waits_for_its_event_through_a_scaling(tmp_path: Path) -> None:
    def write(store: BlockingStore) -> None:
        with store.writer("s/t") as writer:
            writer.write(b"first", key="k")
            early = writer.write_nowait(b"second", key="k")
            store.scale_stream("s/t", 3)
            last = writer.write_nowait(b"third", key="k")
            last.wait(timeout=60.0)
            assert last.is_done
            assert early.is_done
            early.wait()
        assert read_all(store) == [b"first", b"second", b"third"]

    await use(tmp_path, write)


async def test_an_acknowledgement_is_waited_for_no_longer_than_the_program_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(store: BlockingStore) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setattr(
                ControllerClient, "segment_address", lambda *_: silent.getsockname()
            )
            writer = store.writer("s/t")
            waiting = writer.write_nowait(b"any")
            with pytest.raises(TimedOutError):
                waiting.wait(timeout=0.1)
            assert not waiting.is_done
            writer.close()
            with pytest.raises(WriterClosedError):
                waiting.wait()

    monkeypatch.setattr(segment_writer, "REPLY_SECONDS", 1e6)
    await use(tmp_path, write)


@pytest.mark.parametrize("seed", range(3))
async def test_events_are_stored_once_however_a_replacement_is_interrupted(
    tmp_path: Path, seed: int
) -> None:
    """Python runs what interrupts a program at the begin of a function, and behind a call."""
    draw, interrupts = Random(seed), 0

    def interrupt(frame: FrameType, kind: str, _about: object) -> None:
        nonlocal interrupts
        is_ours = frame.f_globals["__name__"] in OURS
        if is_ours and kind in ("call", "c_return") and draw.random() < 0.02:
            interrupts += 1
            raise KeyboardInterrupt

    def flush(writer: blocking.BlockingEventWriter) -> bool:
        sys.setprofile(interrupt)
        try:
            writer.flush()
        except KeyboardInterrupt:
            return False
        finally:
            sys.setprofile(None)
        return True

    def write(store: BlockingStore) -> None:
        with store.writer("s/t") as writer:
            for segments in (3, 2, 4):
                writer.write(b"%d" % writer.acknowledged_events, key="0")
                first = writer.acknowledged_events
                store.scale_stream("s/t", segments)
                waiting = [
                    writer.write_nowait(b"%d" % number, key=str(number % KEYS))
                    for number in range(first, first + 99)
                ]
                while not flush(writer):
                    pass
                assert all(each.is_done for each in waiting)
        numbers = [int(event) for event in read_all(store)]
        assert sorted(numbers) == list(range(300))
        for key in range(KEYS):
            found = [number for number in numbers if number % KEYS == key and number % 100]
            assert found == sorted(found)

    await use(tmp_path, write)
    assert interrupts > 0


async def test_a_writer_that_is_closed_says_so(tmp_path: Path) -> None:
    def write(store: BlockingStore) -> None:
        with store.writer("s/t") as writer:
            writer.write(b"stored")
        with store.transaction("s/t") as transaction:
            transaction.write(b"stored, too")
        for closed, reason in ((writer, "is closed"), (transaction, "was committed")):
            for call in (closed.write, closed.submit, closed.write_nowait):
                with pytest.raises(WriterClosedError, match=reason):
                    call(b"lost")
            for end in (closed.flush, closed.send):
                with pytest.raises(WriterClosedError, match=reason):
                    end()
        assert issubclass(WriterClosedError, ClosedError)
        assert read_all(store) == [b"stored", b"stored, too"]

    await use(tmp_path, write)


async def test_a_sealed_stream_is_told_by_each_call(tmp_path: Path) -> None:
    """A flush after the first one returned as if the events were stored."""

    def write(store: BlockingStore) -> None:
        writer = store.writer("s/t")
        writer.write(b"stored")
        waiting = writer.write_nowait(b"lost")
        store.seal_stream("s/t")
        for call in (writer.flush, writer.flush, waiting.wait):
            with pytest.raises(StreamSealedError, match="1 events were not stored"):
                call()
        writer.close()

    await use(tmp_path, write)
