"""The import of a file into streams on real servers: by keys, again, long events, damage."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from pravega_admin.exports import export_file
from pravega_admin.exports.export_file import ExportReader
from pravega_admin.exports.importer import KeyedTarget, check_file, writer_id_of
from pravega_admin.exports.keys import parse_key_source
from pravega_wire.sessions import append_session, long_appends
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.errors import DamagedExportError, UsageError
from support.exported_streams import (
    events_by_key,
    events_by_range,
    export_bytes,
    import_bytes,
    manifest_of,
    open_copy,
)
from support.served_stream import ServedStream, run, serve_stream

KEY_OF = parse_key_source("json:/user/id")
EVENTS = 200


def write(stream: ServedStream, first: int, count: int = EVENTS) -> None:
    with BlockingEventWriter(stream.client, "s", "t") as writer:
        for number in range(first, first + count):
            event = {"user": {"id": number % 9}, "number": number}
            writer.submit(json.dumps(event).encode(), key=str(number % 9))


def open_keyed(
    client: ControllerClient,
    data: bytes,
    stream: str,
    *,
    again: str = "",
    segments: int | None = None,
    key_of: Any = KEY_OF,
) -> KeyedTarget:
    manifest = ExportReader(io.BytesIO(data)).manifest
    return KeyedTarget(
        client,
        "s",
        stream,
        manifest,
        key_of,
        writer_id=writer_id_of(manifest, "key-from", "json:/user/id", again),
        segments=segments,
        patience=60.0,
    )


def numbers_by_key(client: ControllerClient, stream: str) -> dict[str, list[int]]:
    found = events_by_key(client, "s", stream, KEY_OF)
    return {key: [json.loads(event)["number"] for event in found[key]] for key in found}


async def test_events_are_spread_by_their_keys_once_for_each_name(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        client = stream.client
        await stream.make(0)
        await run(write, stream, 0)
        await stream.scale((0.0, 0.5), (0.5, 1.0))
        await run(write, stream, EVENTS)
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))

        # One that is made, with other segments.
        wide = await run(lambda: open_keyed(client, data, "wide", segments=3))
        assert await run(import_bytes, data, wide) == wide.stored_events == 2 * EVENTS
        assert len((await run(client.current_segments, "s", "wide")).ranges) == 3
        right = {str(key): list(range(key, 2 * EVENTS, 9)) for key in range(9)}
        assert await run(numbers_by_key, client, "wide") == right

        # Again, after a scale: nothing more, unless it has another name.
        repeated = await run(lambda: open_keyed(client, data, "wide", segments=5))
        await run(import_bytes, data, repeated)
        assert repeated.stored_events == 0
        assert await run(numbers_by_key, client, "wide") == right
        second = await run(lambda: open_keyed(client, data, "wide", again="second"))
        await run(import_bytes, data, second)
        doubled = {key: numbers + numbers for key, numbers in right.items()}
        assert await run(numbers_by_key, client, "wide") == doubled

        # One that has other events, which come first.
        await run(client.create_stream, "s", "old", StreamSettings(scaling=Scaling()))
        await run(import_bytes, data, await run(open_keyed, client, data, "old"))
        assert await run(numbers_by_key, client, "old") == right
        nursery.cancel_scope.cancel()


async def test_an_event_without_a_key_is_told_with_its_number(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(3)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        target = await run(open_keyed, client, data, "u")
        with pytest.raises(UsageError, match=r"not JSON.*\(event 1 of the file\)"):
            await run(import_bytes, data, target)
        nursery.cancel_scope.cancel()


async def test_long_events_and_events_without_bytes_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts as long is shorter here, so that the segments with long events are real ones."""
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        client = stream.client
        await stream.make(2)
        events = [b"", b"x" * 5000, b"y" * 20_000, b"", b"z" * 4_097, b"end"]

        def write_all() -> None:
            with BlockingEventWriter(client, "s", "t") as writer:
                for event in events:
                    writer.submit(event, key="k")

        await run(write_all)
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        monkeypatch.setattr(append_session, "EVENT_BYTES_MAX", 4096)
        monkeypatch.setattr(long_appends, "PIECE_BYTES", 3000)
        for _ in range(2):
            copy = await run(open_copy, client, data, "s", "copy")
            assert await run(import_bytes, data, copy) == 8
        source = await run(events_by_range, client, "s", "t")
        assert await run(events_by_range, client, "s", "copy") == source
        keyed = await run(lambda: open_keyed(client, data, "keyed", key_of=lambda event: "k"))
        await run(import_bytes, data, keyed)
        assert await run(events_by_range, client, "s", "keyed") == source
        nursery.cancel_scope.cancel()


async def test_a_pipe_that_ends_early_is_told_with_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_file, "BLOCK_BYTES", 100)
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(40)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t"), "null"))
        cut = data[: len(data) // 2 + 300]
        with pytest.raises(DamagedExportError):
            check_file(io.BytesIO(cut), lambda count: None)
        copy = await run(open_copy, client, cut, "s", "copy")
        with pytest.raises(DamagedExportError, match="not complete") as told:
            await run(import_bytes, cut, copy)
        told_count = re.search(r"the (\d+) events before are stored", str(told.value))
        assert told_count is not None
        count = int(told_count[1])
        ((_, found),) = await run(events_by_range, client, "s", "copy")
        assert found == [b"event %d" % number for number in range(count)]
        assert 0 < count < 40

        # The whole file then goes on.
        whole = await run(open_copy, client, data, "s", "copy")
        assert await run(import_bytes, data, whole) == 40
        assert whole.stored_events == 40 - count
        source = await run(events_by_range, client, "s", "t")
        assert await run(events_by_range, client, "s", "copy") == source
        nursery.cancel_scope.cancel()


def test_imports_that_are_not_the_same_are_different_writers() -> None:
    from .test_manifest import manifest_of as plain

    manifest = plain()
    wishes = [("copy",), ("key", "a", ""), ("key", "a", "b"), ("key-from", "a", "")]
    found = {writer_id_of(manifest, *each) for each in wishes}
    assert len(found) == 4
    assert {len(each) for each in found} == {16}
    assert not any(each[0] & 0x80 for each in found)
    assert writer_id_of(manifest, "copy") in found
