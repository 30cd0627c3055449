"""Exports of a stream as bytes, and what a stream has, for tests of exports and imports.

Owns: the comparison of streams by the events of each segment and by the order of segments.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

from pravega_admin.exports.export_file import ExportReader, encode_header
from pravega_admin.exports.exporter import make_manifest, write_export
from pravega_admin.exports.importer import Target, import_events, writer_id_of
from pravega_admin.exports.keys import KeyOf
from pravega_admin.exports.manifest import Manifest, Positions
from pravega_admin.exports.stream_copy import StreamCopy
from pravega_admin.exports.stream_plan import find_segments
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import tail_offsets
from segstore_client.positions import Position

PATIENCE_SECONDS = 60.0


def manifest_of(
    client: ControllerClient,
    scope: str,
    stream: str,
    *,
    start: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
) -> Manifest:
    """Return the manifest of an export from the head to the tail, unless cuts are given."""
    return make_manifest(
        client,
        scope,
        stream,
        client.head_segments(scope, stream).offsets if start is None else start,
        tail_offsets(client, scope, stream) if end is None else end,
        places=("head", "tail"),
        exported="2026-03-01T12:00:00+00:00",
    )


def export_bytes(client: ControllerClient, manifest: Manifest, codec: str = "deflate") -> bytes:
    """Return the file of a whole export."""
    sink = io.BytesIO(encode_header(manifest, codec))
    sink.seek(0, io.SEEK_END)
    write_export(
        client,
        manifest,
        Positions(manifest.steps).rest(),
        sink,
        codec=codec,
        patience=PATIENCE_SECONDS,
        on_bytes=lambda count: None,
    )
    return sink.getvalue()


def open_copy(client: ControllerClient, data: bytes, scope: str, stream: str) -> StreamCopy:
    """Return the copy that an import of a file makes."""
    manifest = ExportReader(io.BytesIO(data)).manifest
    writer_id = writer_id_of(manifest, "copy")
    return StreamCopy(
        client, scope, stream, manifest, writer_id=writer_id, patience=PATIENCE_SECONDS
    )


def import_bytes(data: bytes, target: Target) -> int:
    """Import a file into a stream; return the number of its events."""
    with target:
        return import_events(ExportReader(io.BytesIO(data)), target, lambda count: None).events


def events_by_range(
    client: ControllerClient, scope: str, stream: str
) -> list[tuple[tuple[float, float], list[bytes]]]:
    """Return the range and the events of each segment from the head to the tail, by epoch."""
    segments = find_segments(client, scope, stream)
    found: dict[int, list[bytes]] = {segment: [] for segment in segments}
    with BlockingEventReader(client, scope, stream, end=Position.TAIL) as reader:
        while (event := reader.next_event()) is not None:
            found[event.segment_id].append(event.data)
    return [
        ((segments[each].low, segments[each].high), found[each])
        for each in sorted(segments, key=lambda each: (each >> 32, segments[each].low))
    ]


def events_by_key(
    client: ControllerClient, scope: str, stream: str, key_of: KeyOf
) -> dict[str, list[bytes]]:
    """Return the events of each key in the order in which a reader gets them."""
    found: dict[str, list[bytes]] = {}
    with BlockingEventReader(client, scope, stream, end=Position.TAIL) as reader:
        while (event := reader.next_event()) is not None:
            found.setdefault(key_of(event.data), []).append(event.data)
    return found
