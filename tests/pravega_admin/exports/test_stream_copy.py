"""Copies of exported streams on real servers: segments, scales, kills in every step, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from pravega_admin.exports import stream_copy
from pravega_admin.exports.keys import parse_key_source
from pravega_admin.exports.stream_copy import MARK, SCALE_SECONDS
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.stream_settings import (
    Retention,
    RetentionKind,
    Scaling,
    StreamSettings,
)
from segstore_client.cuts.segment_info import segment_infos
from segstore_client.errors import (
    AlreadyExistsError,
    ConflictError,
    PravegaError,
    StreamSealedError,
)
from support.exported_streams import (
    events_by_key,
    events_by_range,
    export_bytes,
    import_bytes,
    manifest_of,
    open_copy,
)
from support.served_stream import ServedStream, run, serve_stream

KEY_OF = parse_key_source("json:/key")
SETTINGS = StreamSettings(
    scaling=Scaling(segment_count_min=2),
    retention=Retention(RetentionKind.TIME, 1_000_000),
    tags=("blue", "green"),
    rollover_size_bytes=1_000_000,
)
EVENTS = 60
EMPTY = ((0.0, 0.6), (0.6, 1.0))
"""The ranges of the epoch that gets no events."""

KILLS = (
    ("create_stream", 1),
    ("scale_stream", 1),
    ("epoch_segments", 1),
    ("scale_stream", 1),
    ("epoch_segments", 2),
    ("scale_stream", 1),
    ("epoch_segments", 3),
    ("update_stream", 1),
)
"""After which call of an attempt, and which of those, the attempt is killed; each attempt comes a
step further than the one before it."""


class KilledError(Exception):
    """The import ends here, as if it was killed."""


def write(stream: ServedStream, first: int, name: str = "t", count: int = EVENTS) -> None:
    with BlockingEventWriter(stream.client, "s", name) as writer:
        for number in range(first, first + count):
            key = f"key-{number % 7}"
            event = {"key": key, "number": number}
            writer.submit(json.dumps(event).encode(), key=key)


async def make_source(stream: ServedStream) -> None:
    """Make ``s/t`` with two segments, and scale it twice under events; one epoch has none."""
    await run(stream.client.ensure_scope, "s")
    await run(stream.client.create_stream, "s", "t", SETTINGS)
    await run(write, stream, 0)
    await stream.scale((0.0, 0.3), (0.3, 0.7), (0.7, 1.0))
    await run(write, stream, EVENTS)
    await stream.scale(*EMPTY)
    await stream.scale((0.0, 0.1), (0.1, 1.0))
    await run(write, stream, 2 * EVENTS)


async def test_a_copy_has_the_segments_scales_and_settings(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await make_source(stream)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        copy = await run(open_copy, client, data, "s", "copy")
        unfinished = await run(client.stream_settings, "s", "copy")
        assert [tag.startswith(MARK) for tag in unfinished.tags] == [True]
        assert await run(import_bytes, data, copy) == 3 * EVENTS
        assert copy.stored_events == 3 * EVENTS

        source = await run(events_by_range, client, "s", "t")
        found = await run(events_by_range, client, "s", "copy")
        # The stream's first segment is not one of the exported ones, and has no events.
        assert found[0] == ((0.0, 1.0), [])
        # Neither is the epoch that has none.
        assert found[1:] == [each for each in source if each[0] not in EMPTY]
        assert await run(client.stream_settings, "s", "copy") == SETTINGS

        # What clients write later comes after what was imported, key by key.
        await run(write, stream, 3 * EVENTS, "copy")
        by_key = await run(events_by_key, client, "s", "copy", KEY_OF)
        assert len(by_key) == 7
        for events in by_key.values():
            numbers = [json.loads(event)["number"] for event in events]
            assert numbers == sorted(numbers)

        # Offsets of the exported stream can be translated.
        infos = await run(
            segment_infos,
            client,
            "s",
            "copy",
            [each["segment"] for each in copy.describe_segments()],
        )
        assert len(infos) == 7
        nursery.cancel_scope.cancel()


async def test_a_segment_that_a_scale_leaves_is_one_segment_of_the_copy(tmp_path: Path) -> None:
    """A controller tells it with another id in each epoch: the import took it for another one."""
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        client = stream.client
        await run(client.ensure_scope, "s")
        await run(client.create_stream, "s", "t", SETTINGS)
        await run(write, stream, 0)

        def split_the_first() -> None:
            client.scale_stream(
                "s", "t", sealed=[0], ranges=[(0.0, 0.25), (0.25, 0.5)], timeout=SCALE_SECONDS
            )

        await run(split_the_first)
        await run(write, stream, EVENTS)
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        copy = await run(open_copy, client, data, "s", "copy")
        assert await run(import_bytes, data, copy) == 2 * EVENTS
        source = await run(events_by_range, client, "s", "t")
        assert len(source) == 4
        found = await run(events_by_range, client, "s", "copy")
        assert found[1:5] == source
        # The settings say two segments, which a controller makes of any others.
        assert found[5:] == [((0.0, 0.5), []), ((0.5, 1.0), [])]
        nursery.cancel_scope.cancel()


async def test_a_part_of_a_stream_is_copied_from_offset_zero_on(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(10)
        client = stream.client
        event_bytes = len(b"event 0") + 8
        cut = {0: 3 * event_bytes}
        end = {0: 7 * event_bytes}
        data = await run(
            lambda: export_bytes(client, manifest_of(client, "s", "t", start=cut, end=end))
        )
        copy = await run(open_copy, client, data, "s", "copy")
        assert await run(import_bytes, data, copy) == 4
        found = await run(events_by_range, client, "s", "copy")
        assert found == [((0.0, 1.0), [b"event %d" % number for number in range(3, 7)])]
        shown = copy.describe_segments()
        assert shown == [{"exported": 0, "from_offset": 3 * event_bytes, "segment": 0}]
        nursery.cancel_scope.cancel()


async def test_a_copy_goes_on_after_each_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call to a server may be the last one before the process is killed."""
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await make_source(stream)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        source = await run(events_by_range, client, "s", "t")
        killer, left = "", 0

        def count(name: str) -> None:
            real = getattr(client, name)

            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                found = real(*arguments, **options)
                left -= name == killer
                if name == killer and not left:
                    raise KilledError
                return found

            monkeypatch.setattr(client, name, call)

        for name in {name for name, _ in KILLS}:
            count(name)
        for killer, left in KILLS:  # noqa: B007
            with pytest.raises(KilledError):
                await run(attempt, client, data, "copy")
        killer = ""
        assert await run(attempt, client, data, "copy") == 3 * EVENTS
        found = await run(events_by_range, client, "s", "copy")
        assert found[1:] == [each for each in source if each[0] not in EMPTY]
        assert await run(client.stream_settings, "s", "copy") == SETTINGS
        nursery.cancel_scope.cancel()


def attempt(client: Any, data: bytes, name: str) -> int:
    return import_bytes(data, open_copy(client, data, "s", name))


async def test_a_copy_of_many_segments_has_few_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_copy, "WRITERS_MAX", 3)
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        client = stream.client
        await run(client.ensure_scope, "s")
        settings = StreamSettings(scaling=Scaling(segment_count_min=10))
        await run(client.create_stream, "s", "t", settings)
        await run(write, stream, 0)
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        copy = await run(open_copy, client, data, "s", "copy")
        most, real = 0, copy.write

        def count(segment: int, data: bytes, number: int) -> None:
            nonlocal most
            real(segment, data, number)
            open_ones = (each._connection is not None for each in copy._writers.values())
            most = max(most, sum(open_ones))

        monkeypatch.setattr(copy, "write", count)
        assert await run(import_bytes, data, copy) == EVENTS
        assert most == 3
        assert copy.stored_events == EVENTS
        source = await run(events_by_range, client, "s", "t")
        assert (await run(events_by_range, client, "s", "copy"))[1:] == source
        nursery.cancel_scope.cancel()


async def test_a_finished_import_is_repeated_without_an_effect(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await make_source(stream)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        await run(attempt, client, data, "copy")
        changed = StreamSettings(scaling=Scaling(segment_count_min=2), tags=("mine",))
        await run(client.update_stream, "s", "copy", changed)
        before = await run(events_by_range, client, "s", "copy")
        again = await run(open_copy, client, data, "s", "copy")
        assert await run(import_bytes, data, again) == 3 * EVENTS
        assert again.stored_events == 0
        assert await run(events_by_range, client, "s", "copy") == before
        assert await run(client.stream_settings, "s", "copy") == changed
        nursery.cancel_scope.cancel()


async def test_a_stream_that_exists_is_not_made_a_copy(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(5)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        await run(client.create_stream, "s", "other", StreamSettings(tags=("mine",)))
        await run(write, stream, 0, "other")
        before = await run(events_by_range, client, "s", "other")
        with pytest.raises(AlreadyExistsError, match="--key-from"):
            await run(attempt, client, data, "other")
        # Nor a copy of another export that is not complete.
        second = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        await run(open_copy, client, second, "s", "half")
        with pytest.raises(AlreadyExistsError):
            await run(attempt, client, data, "half")
        assert await run(events_by_range, client, "s", "other") == before
        assert (await run(client.stream_settings, "s", "other")).tags == ("mine",)
        nursery.cancel_scope.cancel()


async def test_what_others_do_to_an_unfinished_copy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.exported_streams.PATIENCE_SECONDS", 0.5)
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await make_source(stream)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))

        def disturb(name: str, do: Any) -> type[PravegaError]:
            copy = open_copy(client, data, "s", name)
            do(name)
            with pytest.raises(PravegaError) as told:
                import_bytes(data, copy)
            assert f"s/{name} was" in str(told.value)
            return told.type

        def scale(name: str) -> None:
            (only,) = client.current_segments("s", name).ranges
            client.scale_stream(
                "s",
                name,
                sealed=[only.segment_id],
                ranges=[(0.0, 0.9), (0.9, 1.0)],
                timeout=60.0,
            )

        def write_one(name: str) -> None:
            # Events at the end, where the segments of the last step are.
            real = copy_type._check_lengths

            def late(copy: Any) -> None:
                write(stream, 0, name, count=1)
                real(copy)

            monkeypatch.setattr(copy_type, "_check_lengths", late)

        copy_type = stream_copy.StreamCopy
        assert await run(disturb, "scaled", scale) is ConflictError
        seal = lambda name: client.seal_stream("s", name)  # noqa: E731
        assert issubclass(await run(disturb, "sealed", seal), ConflictError | StreamSealedError)
        assert await run(disturb, "written", write_one) is ConflictError
        nursery.cancel_scope.cancel()
