"""Exports of real streams to files: kills, truncations, parts of others, and bounded reading."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pravega_admin.exports import export_file, exporter
from pravega_admin.exports.export_file import ExportReader
from pravega_admin.exports.exporter import PartFile, open_part, read_events, write_export
from pravega_admin.exports.importer import check_file
from pravega_admin.exports.manifest import Manifest, Positions
from segstore_client.errors import (
    AlreadyExistsError,
    ConflictError,
    PravegaError,
    UsageError,
)
from support.exported_streams import export_bytes, manifest_of
from support.served_stream import ServedStream, run, serve_stream

PLACES = ("head", "tail")
EVENTS = 300


class KilledError(Exception):
    """The export ends here, as if it was killed."""


def events_in(data: bytes) -> list[bytes]:
    found = []
    for block in ExportReader(io.BytesIO(data)).blocks():
        for run_ in block.runs:
            found += run_.events
    return found


def export(stream: ServedStream, path: Path, *, places: tuple[str, str] = PLACES) -> int:
    """Export to a file, or go on; return the number of events that were there before."""
    with open_part(
        path, "deflate", places, "s/t", lambda: manifest_of(stream.client, "s", "t")
    ) as part:
        finish(stream, part)
        return part.taken_events


def finish(stream: ServedStream, part: PartFile, sink: Any = None) -> None:
    write_export(
        stream.client,
        part.manifest,
        part.rest,
        sink or part.file,
        codec=part.codec,
        patience=60.0,
        on_bytes=lambda count: None,
    )


class DyingSink:
    """A file of which only the first bytes reach the disk before the process is killed."""

    def __init__(self, file: Any, left: int) -> None:
        self._file = file
        self._left = left

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._left])
        self._left -= len(data)
        if self._left <= 0:
            raise KilledError


async def test_an_export_goes_on_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_file, "BLOCK_BYTES", 300)
    draw = Random(7)
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(EVENTS)
        await stream.scale((0.0, 0.5), (0.5, 1.0))
        await stream.write(EVENTS)
        path = tmp_path / "t.avro"
        begun: list[Manifest] = []

        def begin() -> Manifest:
            begun.append(manifest_of(stream.client, "s", "t"))
            return begun[-1]

        def die(left: int) -> int:
            with (
                suppress(KilledError),
                open_part(path, "deflate", PLACES, "s/t", begin) as part,
            ):
                finish(stream, part, DyingSink(part.file, left))
            return 0

        for _ in range(4):
            await run(die, draw.randrange(1, 1500))
            assert not path.exists()
            # What is written after the first attempt began is not exported.
            await stream.write(1)
        assert len(begun) == 1
        assert await run(export, stream, path) > 0
        with path.open("rb") as file:
            manifest, counts = check_file(file, lambda count: None)
        assert manifest == begun[0]
        assert counts.events == 2 * EVENTS
        whole = await run(export_bytes, stream.client, manifest)
        assert sorted(events_in(path.read_bytes())) == sorted(events_in(whole))
        assert not path.with_name("t.avro.part").exists()
        nursery.cancel_scope.cancel()


async def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(3)
        path, part_path = tmp_path / "t.avro", tmp_path / "t.avro.part"
        path.write_bytes(b"mine")
        with pytest.raises(AlreadyExistsError):
            await run(export, stream, path)
        assert path.read_bytes() == b"mine"
        path.unlink()

        part_path.write_bytes(b"mine")
        with pytest.raises(UsageError, match="in the way"):
            await run(export, stream, path)
        assert part_path.read_bytes() == b"mine"
        part_path.unlink()

        # A part of another export stays, too. One that has no whole header is begun anew.
        data = await run(lambda: export_bytes(stream.client, manifest_of(stream.client, "s", "t")))
        part_path.write_bytes(data)
        with pytest.raises(UsageError, match="another export, of s/t from head to tail"):
            await run(lambda: export(stream, path, places=("tail", "tail")))
        assert part_path.read_bytes() == data
        part_path.write_bytes(data[:50])
        await run(export, stream, path)
        assert len(events_in(path.read_bytes())) == 3
        path.unlink()

        # Nor may two processes write one file.
        def beside() -> None:
            with (
                open_part(
                    path, "null", PLACES, "s/t", lambda: manifest_of(stream.client, "s", "t")
                ),
                pytest.raises(ConflictError, match="another process"),
            ):
                export(stream, path)

        await run(beside)
        nursery.cancel_scope.cancel()


def test_a_part_that_gets_its_name_before_it_is_locked_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, part_path = tmp_path / "t.avro", tmp_path / "t.avro.part"
    real = exporter.fcntl.flock

    def lock_late(file: Any, how: int) -> None:
        # The other process ends between the opening and the lock of this one.
        part_path.write_bytes(b"whole")
        part_path.rename(path)
        real(file, how)

    def begin() -> Manifest:
        raise AssertionError("nothing may be exported")

    monkeypatch.setattr(exporter.fcntl, "flock", lock_late)
    with (
        pytest.raises(ConflictError, match="just ended"),
        open_part(path, "deflate", PLACES, "s/t", begin),
    ):
        pass
    assert path.read_bytes() == b"whole"


async def test_a_truncation_meanwhile_ends_the_export(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(50)
        client = stream.client
        manifest = await run(manifest_of, client, "s", "t")
        event_bytes = len(b"event 0") + 8
        await run(client.truncate_stream, "s", "t", {0: 2 * event_bytes})
        with pytest.raises(ConflictError, match="truncated while it was exported"):
            await run(export_bytes, client, manifest)
        # Not one event is written whose place is not the next one.
        rest = Positions(manifest.steps).rest()
        with pytest.raises(ConflictError):
            await run(lambda: next(read_events(client, "s", "t", rest, patience=60.0)))

        manifest = await run(manifest_of, client, "s", "t")
        await stream.scale((0.0, 1.0))
        await stream.truncate_at_last_segments()
        with pytest.raises(PravegaError) as told:
            await run(export_bytes, client, manifest)
        assert "truncated" in str(told.value) or "no record" in str(told.value)
        nursery.cancel_scope.cancel()


async def test_segments_are_read_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "SEGMENTS_AT_ONCE", 3)
    opened: list[int] = []

    class CountingReader(exporter.BlockingEventReader):
        def __init__(self, *arguments: Any, bounds: Any, **options: Any) -> None:
            opened.append(len(bounds.offsets))
            super().__init__(*arguments, bounds=bounds, **options)

    monkeypatch.setattr(exporter, "BlockingEventReader", CountingReader)
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(5)
        await stream.scale(*((number / 8, (number + 1) / 8) for number in range(8)))
        await stream.write(40)
        data = await run(lambda: export_bytes(stream.client, manifest_of(stream.client, "s", "t")))
        assert len(events_in(data)) == 45
        assert max(opened) == 3
        nursery.cancel_scope.cancel()


async def test_a_sealed_and_an_empty_stream_are_exported(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(0)
        client = stream.client
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        manifest, counts = check_file(io.BytesIO(data), lambda count: None)
        assert (counts.events, manifest.is_sealed) == (0, False)
        await stream.write(4)
        await run(client.seal_stream, "s", "t")
        data = await run(lambda: export_bytes(client, manifest_of(client, "s", "t")))
        manifest, counts = check_file(io.BytesIO(data), lambda count: None)
        assert (counts.events, manifest.is_sealed) == (4, True)
        nursery.cancel_scope.cancel()
