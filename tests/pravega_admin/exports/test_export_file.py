"""The file of an export: what was written comes back, and damage is told."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.crc import crc32c
from pravega_admin.exports import export_file
from pravega_admin.exports.export_file import (
    CODECS,
    BlockWriter,
    ExportReader,
    encode_header,
    encode_long,
)
from pravega_admin.exports.manifest import (
    FORMAT,
    Manifest,
    Positions,
    Run,
    SegmentPart,
    encode_settings,
)
from pravega_wire.codec import HEADER_BYTES
from segstore_client.controller.stream_settings import StreamSettings
from segstore_client.errors import DamagedExportError, UsageError

Events = list[tuple[int, int, bytes]]
"""Segment, offset and bytes of each event."""


def manifest_of(lengths: dict[int, int]) -> Manifest:
    count = max(1, len(lengths))
    parts = [
        SegmentPart(segment, number / count, (number + 1) / count, 0, length)
        for number, (segment, length) in enumerate(sorted(lengths.items()))
    ]
    return Manifest(
        format=FORMAT,
        id="00ff" * 8,
        stream="demo/a",
        exported="2026-03-01T12:00:00+00:00",
        places=("head", "tail"),
        is_sealed=False,
        settings=encode_settings(StreamSettings()),
        steps=(tuple(parts) or (SegmentPart(0, 0.0, 1.0, 0, 0),),),
    )


def place(pieces: Iterable[tuple[int, bytes]]) -> tuple[Manifest, Events]:
    """Return events with their offsets, and the manifest of an export that has all of them."""
    lengths: dict[int, int] = {}
    events = []
    for segment, data in pieces:
        offset = lengths.get(segment, 0)
        events.append((segment, offset, data))
        lengths[segment] = offset + len(data) + HEADER_BYTES
    return manifest_of(lengths), events


def write(manifest: Manifest, events: Events, codec: str, *, flush_after: int = 0) -> bytes:
    writer = BlockWriter(manifest, codec)
    parts = [encode_header(manifest, codec)]
    for number, event in enumerate(events, 1):
        parts.append(writer.add(*event))
        if flush_after and number % flush_after == 0:
            parts.append(writer.flush())
    return b"".join([*parts, writer.flush()])


def events_of(runs: Iterable[Run]) -> Events:
    found = []
    for run in runs:
        offset = run.offset
        for event in run.events:
            found.append((run.segment, offset, event))
            offset += len(event) + HEADER_BYTES
    return found


def read(data: bytes) -> Events:
    """Return the events of a file that is whole by what is in it."""
    reader = ExportReader(io.BytesIO(data))
    positions = Positions(reader.manifest.steps)
    found: Events = []
    for block in reader.blocks():
        for run in block.runs:
            positions.take(run)
        found += events_of(block.runs)
    positions.check_complete()
    assert reader.position == len(data)
    return found


pieces = st.lists(
    st.tuples(st.sampled_from([0, 1, 7 + (3 << 32)]), st.binary(max_size=40)), max_size=40
)


@given(pieces, st.sampled_from(CODECS), st.integers(0, 5))
def test_runs_come_back_as_they_were_written(
    pieces: list[tuple[int, bytes]], codec: str, flush_after: int
) -> None:
    manifest, events = place(pieces)
    data = write(manifest, events, codec, flush_after=flush_after)
    assert read(data) == events
    assert ExportReader(io.BytesIO(data)).manifest == manifest


@given(pieces, st.sampled_from(CODECS))
def test_a_library_for_avro_reads_the_file(pieces: list[tuple[int, bytes]], codec: str) -> None:
    manifest, events = place(pieces)
    records = fastavro.reader(io.BytesIO(write(manifest, events, codec, flush_after=3)))
    runs = [Run(each["segment"], each["offset"], each["events"]) for each in records]
    assert events_of(runs) == events


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_encoded_as_a_library_for_avro_does(value: int) -> None:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, {"type": "long"}, value)
    assert encode_long(value) == buffer.getvalue()


def test_long_events_and_many_blocks_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_file, "BLOCK_BYTES", 1000)
    draw = random.Random(5)
    manifest, events = place(
        (number % 3, draw.randbytes(draw.choice([0, 10, 300, 5000]))) for number in range(400)
    )
    for codec in CODECS:
        assert read(write(manifest, events, codec)) == events


def small_file(codec: str) -> bytes:
    manifest, events = place((number % 2, b"event %d" % number) for number in range(9))
    return write(manifest, events, codec, flush_after=4)


@pytest.mark.parametrize("codec", CODECS)
def test_no_changed_byte_changes_an_event(codec: str) -> None:
    data = small_file(codec)
    right = read(data)
    told = 0
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[at] ^= change
            try:
                assert read(bytes(broken)) == right
            except (DamagedExportError, UsageError):
                told += 1
    # The schema is for other libraries: what is changed there changes no event.
    assert told > len(data)


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_that_is_cut_off_is_told(codec: str) -> None:
    data = small_file(codec)
    for length in range(len(data)):
        with pytest.raises((DamagedExportError, UsageError)):
            read(data[:length])
    with pytest.raises(DamagedExportError):
        read(data + b"x")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_bytes_of_anything_are_refused(junk: bytes, at: int) -> None:
    data = small_file("deflate")
    at %= len(data)
    for broken in (junk, export_file.MAGIC + junk, data[:at] + junk):
        try:
            read(broken)
        except (DamagedExportError, UsageError):
            continue
        assert broken == data


def test_what_compressed_bytes_become_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, events = place([(0, bytes(5_000_000))])
    data = write(manifest, events, "deflate")
    assert len(data) < 100_000
    monkeypatch.setattr(export_file, "BLOCK_BYTES_MAX", 1_000_000)
    with pytest.raises(DamagedExportError, match="compressed"):
        read(data)


def test_the_sentence_about_damage_says_where_it_is() -> None:
    manifest, events = place([(0, b"first"), (0, b"second")])
    data = write(manifest, events, "null", flush_after=1)
    begin = len(encode_header(manifest, "null"))
    with pytest.raises(DamagedExportError, match=rf"byte {begin} on.*segment 0 from offset 0 on"):
        read(data.replace(b"first", b"fIrst"))
    with pytest.raises(DamagedExportError, match="cut off"):
        read(data[:-1])


def test_other_files_are_told_from_damaged_ones() -> None:
    with pytest.raises(UsageError, match="no export"):
        read(b"hello")
    other = io.BytesIO()
    fastavro.writer(other, {"type": "long"}, [1, 2])
    with pytest.raises(UsageError, match="file of Avro"):
        read(other.getvalue())


def test_the_page_about_the_form_has_its_schema_and_an_example() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs/formats/export.md").read_text()
    manifest, events = place([(0, b"a"), (0, b"bc")])
    encoded = write(manifest, events, "null")[len(encode_header(manifest, "null")) :]
    assert encoded.hex(" ") in page
    assert f"{crc32c(encoded[-22:-17]):#010x}" in page
    for name in ("segment", "offset", "crc32c", "events", export_file.MANIFEST_KEY):
        assert f"`{name}`" in page
