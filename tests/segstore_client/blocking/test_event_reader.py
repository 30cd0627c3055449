"""A reader of a stream: against segments in memory, whose connections may break, and real ones."""

from __future__ import annotations

import itertools
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import trio

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.event_framing import frame_events
from pravega_wire.names import segment_name
from pravega_wire.sessions.read_cursor import ReadEvent
from pravega_wire.sessions.routes import SegmentRange, Successor
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.controller.controller_client import HeadSegments
from segstore_client.cuts import bounds
from segstore_client.errors import EarlierStreamError
from segstore_client.positions import Position
from support.served_stream import ServedStream, run, serve_stream

EVENTS_PER_SEGMENT = 10
READ_BYTES = 50
"""Maximum length of a reply, in bytes: it holds some events, and a part of the next."""


class Segments:
    """The segments of the stream ``demo/a``: 0 and 1, which are sealed and merged into 2."""

    def __init__(self, breaks: int = 0) -> None:
        self.bytes = {
            segment_name("demo", "a", number): frame_events(
                b"%d-%d" % (number, event) for event in range(EVENTS_PER_SEGMENT)
            )
            for number in range(3)
        }
        self.requested: list[str] = []
        self.breaks = breaks
        self.connections = 0
        self._stack = ExitStack()

    def __enter__(self) -> Segments:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what a reader that was interrupted has left open."""
        self._stack.close()

    def is_sealed(self, name: str) -> bool:
        return name != segment_name("demo", "a", 2)

    def connect(self, *_: Any, **__: Any) -> FakeConnection:
        self.connections += 1
        connection = FakeConnection(self)
        self._stack.callback(connection.close)
        return connection

    def answer(self, request: wire.ReadSegment) -> wire.SegmentRead:
        self.requested.append(request.segment)
        rest = self.bytes[request.segment][request.offset :]
        data = rest[: min(READ_BYTES, request.suggested_length)]
        is_end = not data and self.is_sealed(request.segment)
        return wire.SegmentRead(
            request.segment, request.offset, not data, is_end, data, request.request_id
        )


class FakeConnection:
    """A connection that answers at once; each second reply is lost with it, ``breaks`` times."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._replies: deque[wire.Reply] = deque()
        self._ids = itertools.count(1)
        self._always_readable, self._peer = socket.socketpair()
        self._peer.send(b"x")

    def fileno(self) -> int:
        return self._always_readable.fileno()

    def close(self) -> None:
        self._always_readable.close()
        self._peer.close()

    def next_request_id(self) -> int:
        return next(self._ids)

    def send(self, command: wire.ReadSegment) -> None:
        self._replies.append(self._segments.answer(command))

    def receive_some(self, *, waits: bool) -> list[wire.Reply]:
        if self._segments.breaks and next(self._ids) % 2:
            self._segments.breaks -= 1
            raise ConnectionLostError("it broke")
        taken = list(self._replies)
        self._replies.clear()
        return taken


class FakeController:
    """Knows the stream of ``Segments``."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def with_patience(self, seconds: float) -> FakeController:
        return self

    def store_access(self, *_: Any) -> Any:
        return SimpleNamespace(connect=self._segments.connect, token=str)

    def head_segments(self, scope: str, stream: str) -> HeadSegments:
        return HeadSegments({0: 0, 1: 0})

    def successors(self, scope: str, stream: str, segment: int) -> tuple[Successor, ...]:
        return (Successor(SegmentRange(2, 0.0, 1.0), frozenset({0, 1})),)

    def segment_address(self, scope: str, stream: str, segment: int) -> tuple[str, int]:
        return "127.0.0.1", 1


def open_reader(segments: Segments, **how: Any) -> BlockingEventReader:
    controller: Any = FakeController(segments)
    return BlockingEventReader(controller, "demo", "a", patience=60.0, **how)


def numbers_of(segment: int, count: int = EVENTS_PER_SEGMENT) -> list[bytes]:
    return [b"%d-%d" % (segment, event) for event in range(count)]


def test_a_segment_is_read_after_all_of_its_predecessors() -> None:
    segments = Segments()
    with open_reader(segments) as reader:
        events = [reader.next_event(timeout=60) for _ in range(3 * EVENTS_PER_SEGMENT)]
    read = [(event.segment_id, event.data) for event in events if event is not None]
    assert [data for segment, data in read if segment == 0] == numbers_of(0)
    assert [data for segment, data in read[-EVENTS_PER_SEGMENT:]] == numbers_of(2)
    first_of_successor = segments.requested.index(segment_name("demo", "a", 2))
    assert set(segments.requested[first_of_successor:]) == {segment_name("demo", "a", 2)}


@pytest.mark.parametrize("seed", range(8))
def test_a_reader_that_was_interrupted_loses_and_doubles_nothing(seed: int) -> None:
    """Python runs what interrupts a program at the begin of a function, and behind a call."""
    draw, interrupts = Random(seed), 0

    def interrupt(frame: FrameType, kind: str, _about: object) -> None:
        nonlocal interrupts
        is_ours = frame.f_globals["__name__"].startswith("segstore_client.blocking.")
        if is_ours and kind in ("call", "c_return") and draw.random() < 0.05:
            interrupts += 1
            raise KeyboardInterrupt

    read: list[ReadEvent] = []
    with Segments() as segments, open_reader(segments) as reader:
        while len(read) < 3 * EVENTS_PER_SEGMENT:
            events: list[ReadEvent] = []
            try:
                sys.setprofile(interrupt)
                if draw.random() < 0.2:
                    events = reader.next_batch(timeout=60)
                elif (event := reader.next_event(timeout=60)) is not None:
                    events = [event]
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            read += events
    for segment in range(3):
        assert [each.data for each in read if each.segment_id == segment] == numbers_of(segment)
    assert interrupts > 0


def test_a_reader_that_is_asked_without_a_wait_gets_on() -> None:
    """It never asked a store."""
    with open_reader(Segments()) as reader:
        found = [reader.next_event(timeout=0.0) for _ in range(100)]
    read = [each.data for each in found if each is not None]
    assert sorted(read) == sorted(numbers_of(0) + numbers_of(1) + numbers_of(2))


def test_events_come_in_lists_too() -> None:
    with open_reader(Segments()) as reader:
        first = reader.next_event(timeout=60)
        assert first is not None
        found = [first.data]
        for batch in reader.batches():
            found += [event.data for event in batch]
            if len(found) == 3 * EVENTS_PER_SEGMENT:
                break
        assert reader.next_batch(timeout=0.01) == []
    assert sorted(found) == sorted(numbers_of(0) + numbers_of(1) + numbers_of(2))


def test_no_event_is_lost_or_doubled_when_connections_break() -> None:
    segments = Segments(breaks=3)
    with open_reader(segments) as reader:
        events = [reader.next_event(timeout=60) for _ in range(3 * EVENTS_PER_SEGMENT)]
    read = [event.data for event in events if event is not None]
    assert sorted(read) == sorted(numbers_of(0) + numbers_of(1) + numbers_of(2))
    assert segments.connections == 4


def test_reading_ends_at_the_tail_at_which_the_reader_was_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = Segments()
    early = frame_events(numbers_of(0, 4))
    monkeypatch.setattr(bounds, "tail_offsets", lambda *_: {0: len(early), 1: 0})
    with open_reader(segments, end=Position.TAIL) as reader:
        events = []
        while (event := reader.next_event(timeout=60)) is not None:
            events.append(event.data)
        assert reader.is_finished
    assert events == numbers_of(0, 4)
    assert segment_name("demo", "a", 2) not in segments.requested


@pytest.fixture
async def served(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[ServedStream]:
    found = await serve_stream(nursery, tmp_path)
    yield found
    found.client.close()


def read_events(reader: BlockingEventReader, count: int) -> list[bytes]:
    events = [reader.next_event(timeout=60) for _ in range(count)]
    return [event.data for event in events if event is not None]


@pytest.mark.parametrize("ends_at_tail", [False, True])
async def test_a_reader_of_a_stream_that_was_made_again_is_told_so(
    served: ServedStream, ends_at_tail: bool
) -> None:
    """The reader ended, as at the end of a sealed stream."""
    await served.make(5)
    if ends_at_tail:
        # The reader has read nothing yet of what it was to read.
        reader = await run(lambda: BlockingEventReader(served.client, "s", "t", end=Position.TAIL))
    else:
        reader = await run(BlockingEventReader, served.client, "s", "t")
        assert len(await run(read_events, reader, 5)) == 5
    with reader:
        await served.make_again(7)
        with pytest.raises(EarlierStreamError, match="segment 0 is of an earlier stream s/t"):
            await run(read_events, reader, 1)
    with await run(BlockingEventReader, served.client, "s", "t") as reader:
        assert len(await run(read_events, reader, 7)) == 7


async def test_a_reader_goes_on_after_segments_that_were_truncated(served: ServedStream) -> None:
    await served.make(5)
    with await run(BlockingEventReader, served.client, "s", "t") as reader:
        assert len(await run(read_events, reader, 5)) == 5
        await served.scale((0.0, 0.5), (0.5, 1.0))
        await served.truncate_at_last_segments()
        await served.write(20)
        assert len(await run(read_events, reader, 20)) == 20
