"""A writer of a real stream that blocks: events of any length, through scalings."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from random import Random

import pytest

from pravega_wire.sessions import append_session
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import UsageError
from segstore_client.positions import Position
from support.served_stream import run, served_stream

KEYS = 5
MEBIBYTE = 1024 * 1024
SCALINGS = ([(0.0, 0.4), (0.4, 1.0)], [(0.0, 0.5), (0.5, 1.0)], [(0.0, 1.0)])
EACH = 400
"""Numbers of events from one of those that are long to the next."""


def read_all(client: ControllerClient) -> list[bytes]:
    with BlockingEventReader(client, "s", "t", end=Position.TAIL) as reader:
        return [event.data for event in reader]


def write_through_scalings(address: str) -> None:
    is_scaled = threading.Event()

    def scale() -> None:
        with ControllerClient(address) as client:
            for ranges in SCALINGS:
                sealed = [each.segment_id for each in client.current_segments("s", "t").ranges]
                client.scale_stream("s", "t", sealed=sealed, ranges=ranges, timeout=60.0)
        is_scaled.set()

    other, number = threading.Thread(target=scale), 0
    with ControllerClient(address) as client:
        with BlockingEventWriter(client, "s", "t") as writer:
            other.start()
            while not is_scaled.is_set() or number % EACH:
                event = b"%d" % number + b" " * (2000 if number % EACH < 3 else 0)
                writer.submit(event, key=str(number % KEYS))
                number += 1
                if number % 50 == 0:
                    writer.send()
        other.join()
        numbers = [int(event) for event in read_all(client)]
    by_key = defaultdict(list)
    for each in numbers:
        by_key[each % KEYS].append(each)
    assert sorted(numbers) == list(range(number))
    assert all(each == sorted(each) for each in by_key.values())


async def test_long_events_follow_their_keys_through_scalings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 1000)
    async with served_stream(tmp_path, 0) as stream:
        await run(write_through_scalings, stream.address)


def write_long(address: str) -> None:
    draw = Random(1)
    events = [draw.randbytes(length) for length in (10, 20 * MEBIBYTE + 1, 0, 8 * MEBIBYTE + 1, 9)]
    with ControllerClient(address) as client:
        with BlockingEventWriter(client, "s", "t") as writer:
            for event in events:
                writer.submit(event)
            assert writer.sent_events >= 4
        assert read_all(client) == events


async def test_a_program_that_blocks_writes_and_reads_long_events(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(write_long, stream.address)


def write_too_long(address: str) -> None:
    with ControllerClient(address) as client:
        with BlockingEventWriter(client, "s", "t") as writer:
            with pytest.raises(UsageError, match="at most 9437184 fit"):
                writer.submit(bytes(9 * MEBIBYTE + 1))
            writer.write(b"1")
        assert read_all(client) == [b"1"]


async def test_an_event_that_is_longer_than_any_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "LONG_EVENT_BYTES_MAX", 9 * MEBIBYTE)
    async with served_stream(tmp_path, 0) as stream:
        await run(write_too_long, stream.address)
