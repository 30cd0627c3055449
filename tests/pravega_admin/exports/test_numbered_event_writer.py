"""Numbered events by their keys, on real servers: scales, kills, merges."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from pravega_admin.exports.numbered_event_writer import (
    NumberedEventWriter,
    StoredNumbers,
    find_stored_numbers,
)
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from pravega_wire.hashing import routing_key_hash
from pravega_wire.sessions.routes import Routes, SegmentRange, Successor
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.errors import StreamSealedError
from support.exported_streams import events_by_key
from support.served_stream import ServedStream, run, serve_stream

WRITER_ID = bytes(range(16))
LAYOUTS = (
    ((0.0, 0.5), (0.5, 1.0)),
    ((0.0, 0.2), (0.2, 0.8), (0.8, 1.0)),
    ((0.0, 1.0),),
    ((0.0, 0.7), (0.7, 1.0)),
)
EVENTS = 400


def new_writer(stream: ServedStream) -> NumberedEventWriter:
    return NumberedEventWriter(stream.client, "s", "t", writer_id=WRITER_ID, patience=60.0)


def key_of(data: bytes) -> str:
    return data.partition(b" ")[0].decode()


def events(count: int) -> list[tuple[float, bytes, int]]:
    found = []
    for number in range(1, count + 1):
        key = f"key-{number % 11}"
        found.append((routing_key_hash(key), f"{key} {number}".encode(), number))
    return found


async def test_events_are_stored_once_through_scalings_and_kills(tmp_path: Path) -> None:
    """Each attempt ends somewhere, with events that are sent and have no answer."""
    draw = Random(11)
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(0)

        def scale(ranges: tuple[tuple[float, float], ...]) -> None:
            sealed = [each.segment_id for each in stream.client.current_segments("s", "t").ranges]
            stream.client.scale_stream("s", "t", sealed=sealed, ranges=ranges, timeout=60.0)

        def attempt(number: int) -> int:
            writer = new_writer(stream)
            written = 0
            try:
                for event in events(EVENTS if number == len(LAYOUTS) else 80 * (number + 1)):
                    written += writer.write_numbered(*event)
                    if draw.random() < 0.1:
                        writer.send()
                    if event[2] == 80 * number + 40 and number < len(LAYOUTS):
                        scale(LAYOUTS[number])
                if number == len(LAYOUTS):
                    writer.flush()
                else:
                    writer.send()
            finally:
                writer.close()
            return written

        for number in range(len(LAYOUTS) + 1):
            assert await run(attempt, number) > 0
        assert await run(attempt, len(LAYOUTS)) == 0
        found = await run(events_by_key, stream.client, "s", "t", key_of)
        expected: dict[str, list[bytes]] = {}
        for _, data, _ in events(EVENTS):
            expected.setdefault(key_of(data), []).append(data)
        assert found == expected

        stored = StoredNumbers(
            await run(
                lambda: find_stored_numbers(stream.client, "s", "t", WRITER_ID, patience=60.0)
            )
        )
        assert stored.last == EVENTS
        nursery.cancel_scope.cancel()


class FakeWriter:
    """A segment's writer with unstored events; it may be sealed already, or store all of them."""

    def __init__(self, name: str, events: list[Any], *, is_sealed: bool) -> None:
        self.name = name
        self.added: list[Any] = []
        self.acknowledged_events = 0
        self._events = events
        self._is_sealed = is_sealed

    def drive(self, patience: Any, *, drain: bool) -> None:
        assert drain
        if self._is_sealed:
            raise SegmentEndedError
        self.acknowledged_events += len(self._events)
        self._events = []

    @property
    def session(self) -> Any:
        last = self.added[-1] if self.added else None
        return SimpleNamespace(unacknowledged_events=self._events, last_event=last)

    def disconnect(self) -> None:
        pass

    def add(self, event: Any) -> None:
        self.added.append(event)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_merged_segments_give_their_events_in_order(is_sealed: bool) -> None:
    """Segment 1 may still take events when segment 0 is found sealed."""
    lower = FakeWriter("0", [(0.1, b"", 4), (0.2, b"", 7)], is_sealed=True)
    upper = FakeWriter("1", [(0.6, b"", 5), (0.7, b"", 6)], is_sealed=is_sealed)
    apart = FakeWriter("2", [(0.9, b"", 8)], is_sealed=False)
    merged = FakeWriter("9", [], is_sealed=False)
    writer = object.__new__(NumberedEventWriter)
    fields: dict[str, Any] = {
        "_routes": Routes(
            [SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 0.8), SegmentRange(2, 0.8, 1.0)]
        ),
        "_name": "s/t",
        "_segment_writers": {0: lower, 1: upper, 2: apart},
        "_controller": SimpleNamespace(
            successors=lambda *_: (Successor(SegmentRange(9, 0.0, 0.8), frozenset({0, 1})),)
        ),
        "_new_writer": lambda segment: merged,
        "_scope": "s",
        "_stream": "t",
        "_patience": Patience(60.0),
        "_retired_events": 0,
    }
    for name, value in fields.items():
        setattr(writer, name, value)
    writer._replace(lower)  # type: ignore[arg-type]
    numbers = [event[2] for event in merged.added]
    assert numbers == ([4, 5, 6, 7] if is_sealed else [4, 7])
    assert writer._segment_writers == {9: merged, 2: apart}
    assert [writer._routes.find(position) for position in (0.0, 0.6, 0.9)] == [9, 9, 2]
    assert writer._retired_events == (0 if is_sealed else 2)


async def test_a_sealed_stream_is_told(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(0)

        def write() -> None:
            writer = new_writer(stream)
            try:
                writer.write_numbered(*events(1)[0])
                stream.client.seal_stream("s", "t")
                writer.flush()
            finally:
                writer.close()

        with pytest.raises(StreamSealedError, match="1 events were not stored"):
            await run(write)
        nursery.cancel_scope.cancel()


def test_the_last_number_at_a_position_is_the_greatest_of_its_segments() -> None:
    stored = StoredNumbers(
        {
            SegmentRange(0, 0.0, 0.5): 4,
            SegmentRange(1, 0.5, 1.0): 9,
            SegmentRange(2, 0.25, 0.75): 7,
        }
    )
    found = [stored.last_at(position) for position in (0.0, 0.2, 0.25, 0.49, 0.5, 0.74, 0.75, 0.99)]
    assert found == [4, 4, 7, 7, 9, 9, 9, 9]
    assert stored.last == 9
    nothing = StoredNumbers({})
    assert (nothing.last_at(0.5), nothing.last) == (NULL_ATTRIBUTE_VALUE, NULL_ATTRIBUTE_VALUE)
    half = StoredNumbers({SegmentRange(0, 0.5, 1.0): 3})
    assert (half.last_at(0.4), half.last_at(0.5)) == (NULL_ATTRIBUTE_VALUE, 3)
