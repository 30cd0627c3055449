"""Makes a stream that is like the exported one: segments, scales, events and settings.

Owns: the order of events and scales of the copy, and the mark of one that is not complete.

A file does not have the routing keys of events, and servers never had them. So a segment of the
copy has the range of keys of the segment whose events it gets, and where the stream was scaled, the
copy is scaled. The events of each key then have their order for readers, and so have those that
clients write to the copy later.

While events come, nothing may scale or truncate the copy: it has the exported policies from its end
on, and a tag until then.

Invariants:
1. When a stream was scaled, each segment of the copy has the events of one segment, all keys of it,
   and begins where the segments end that it replaces. Held by
   ``test_a_copy_has_the_segments_scales_and_settings``.
2. When an import is killed between two of its steps, the next one goes on with the same copy. Held
   by ``test_a_copy_goes_on_after_each_of_its_steps``.
3. When a stream of the name exists that this import has not made, it is refused and left as it is.
   Held by ``test_a_stream_that_exists_is_not_made_a_copy``.
4. When the stream has very many segments, connections and memory stay bounded. Held by
   ``test_a_copy_of_many_segments_has_few_connections``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pravega_admin.exports.importer import Target
from pravega_admin.exports.manifest import Manifest, SegmentPart, plan_layouts, ranges_of
from pravega_admin.exports.numbered_event_writer import StoredNumbers, find_stored_numbers
from pravega_admin.exports.numbered_writer import NumberedSession
from pravega_wire.names import scoped_name, segment_epoch, segment_name, segment_number
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.stream_settings import StreamSettings
from segstore_client.cuts.segment_info import segment_infos
from segstore_client.delays import OnDelay
from segstore_client.errors import AlreadyExistsError, ConflictError

SCALE_SECONDS = 120.0
WRITERS_MAX = 32
"""Maximum number of segments with a connection and events that have no answer yet."""
MARK = "segstore-import-"
"""The beginning of the tag that a copy has until it is complete."""


class StreamCopy(Target):
    """A copy of the exported stream. ``writer_id`` is that of the import."""

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        manifest: Manifest,
        *,
        writer_id: bytes,
        patience: float,
        on_delay: OnDelay | None = None,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._settings = manifest.stream_settings()
        self._writer_id = writer_id
        self._patience = Patience(patience)
        self._on_delay = on_delay
        self._layouts = plan_layouts(manifest.steps)
        self._first_epoch = 0 if ranges_of(self._layouts[0]) == ((0.0, 1.0),) else 1
        """The epoch of the copy that has the first layout. A stream is made with one segment."""
        self._layout = -1
        self._segments: dict[int, int] = {}
        """The segment of the copy for each exported one that has been reached."""
        self._writers: dict[int, SegmentWriter] = {}
        self._retired_events = 0
        self._access = controller.store_access(scope, stream, Purpose.WRITE)
        self._last_number = 0
        self._complete = self._open()
        """The numbers that it has if it is complete already."""

    @property
    def stored_events(self) -> int:
        """Return the number of events that this process has stored."""
        return self._retired_events + sum(
            writer.acknowledged_events for writer in self._writers.values()
        )

    def write(self, segment: int, data: bytes, number: int) -> None:
        """Add an event. Those of a segment come after those of the segments that it replaces."""
        self._last_number = number
        if self._complete is not None:
            return
        writer = self._writers.get(segment)
        if writer is None:
            writer = self._begin(segment)
        if writer.add((0.0, data, number)):
            self._drive(writer, drain=False)

    def flush(self) -> None:
        """Wait until every event that was added is stored."""
        busy = [writer for writer in self._writers.values() if not writer.is_idle]
        for writer in busy:
            self._drive(writer, drain=False)
        for writer in busy:
            self._drive(writer, drain=True)

    def finish(self) -> None:
        """Scale to the last segments, compare the copy with the export, and give it its settings.

        Raises ``ConflictError`` if others have changed the copy.
        """
        if self._complete is not None:
            if self._complete.last != self._last_number:
                # It was truncated since, or its tag was removed too early.
                raise self._exists()
            return
        while self._layout + 1 < len(self._layouts):
            self._advance()
        self._retire()
        self._check_lengths()
        self._controller.update_stream(self._scope, self._stream, self._settings)

    def close(self) -> None:
        """Close the connections."""
        for writer in self._writers.values():
            writer.disconnect()

    def describe_segments(self) -> list[dict[str, Any]]:
        """Return for each exported segment the one that has its events, and at which offset those
        from the exported offset ``from_offset`` on begin."""
        parts = {part.id: part for layout in self._layouts for part in layout}
        return [
            {"exported": segment, "from_offset": parts[segment].start, "segment": copy}
            for segment, copy in sorted(self._segments.items())
        ]

    # ---- Steps -----------------------------------------------------------------------------------

    def _open(self) -> StoredNumbers | None:
        """Make the stream, or find the one of an earlier attempt; its numbers if it is complete."""
        mark = MARK + self._writer_id.hex()
        unfinished = StreamSettings(
            tags=(mark,), rollover_size_bytes=self._settings.rollover_size_bytes
        )
        try:
            self._controller.create_stream(self._scope, self._stream, unfinished)
            return None
        except AlreadyExistsError:
            found = self._controller.stream_settings(self._scope, self._stream)
        if mark in found.tags:
            return None
        if not any(tag.startswith(MARK) for tag in found.tags):
            stored = StoredNumbers(
                find_stored_numbers(
                    self._controller,
                    self._scope,
                    self._stream,
                    self._writer_id,
                    patience=self._patience.seconds,
                )
            )
            if stored.last > 0:
                return stored
        raise self._exists()

    def _begin(self, segment: int) -> SegmentWriter:
        """Return the writer for the events of an exported segment, when its turn has come."""
        while segment not in self._segments:
            self._advance()
        if len(self._writers) >= WRITERS_MAX:
            self._retire()
        copy = self._segments[segment]
        writer = self._writers[segment] = SegmentWriter(
            segment_name(self._scope, self._stream, copy),
            partial(self._controller.segment_address, self._scope, self._stream, copy),
            session=NumberedSession(self._writer_id),
            access=self._access,
            on_delay=self._on_delay,
        )
        try:
            writer.connect(self._patience)
        except SegmentEndedError:
            raise self._conflict("was truncated or deleted") from None
        return writer

    def _advance(self) -> None:
        """Store all events, and scale the copy to the next layout, unless that was done."""
        self._retire()
        layout = self._layouts[self._layout + 1]
        epoch = self._first_epoch + self._layout + 1
        while (active := self._active_epoch()) < epoch:
            if active == epoch - 1 and self._scale(layout):
                continue
            if not self._patience.wait():
                raise self._conflict("was scaled")
        self._patience.renew()
        found = {
            (item.low, item.high): item.segment_id
            for item in self._controller.epoch_segments(self._scope, self._stream, epoch)
        }
        for part in layout:
            copy = found.get((part.low, part.high))
            if copy is None:
                raise self._conflict("was scaled")
            # The ids of an epoch carry it. So a segment that was made before has another id there.
            known = self._segments.setdefault(part.id, copy)
            if segment_number(known) != segment_number(copy):
                raise self._conflict("was scaled")
        self._layout += 1

    def _active_epoch(self) -> int:
        """Return the last epoch: each has a segment that was made for it."""
        current = self._controller.current_segments(self._scope, self._stream).ranges
        if not current:
            raise self._conflict("was sealed")
        return max(segment_epoch(item.segment_id) for item in current)

    def _scale(self, layout: tuple[SegmentPart, ...]) -> bool:
        """Replace the segments that are not in a layout; return whether that could be begun."""
        before = {part.id for part in self._layouts[self._layout]} if self._layout >= 0 else set()
        after = {part.id for part in layout}
        if self._layout >= 0:
            sealed = [self._segments[segment] for segment in sorted(before - after)]
        else:
            current = self._controller.current_segments(self._scope, self._stream).ranges
            sealed = [item.segment_id for item in current]
        ranges = [(part.low, part.high) for part in layout if part.id not in before]
        try:
            self._controller.scale_stream(
                self._scope, self._stream, sealed=sealed, ranges=ranges, timeout=SCALE_SECONDS
            )
        except ConflictError:
            # The scale that an attempt before this one began may still be under way.
            return False
        return True

    def _retire(self) -> None:
        """Store all events, and close the connections."""
        self.flush()
        self._retired_events = self.stored_events
        self.close()
        self._writers.clear()

    def _check_lengths(self) -> None:
        """Compare the segments of the copy with the exported parts."""
        parts = {part.id: part for layout in self._layouts for part in layout}
        infos = segment_infos(
            self._controller, self._scope, self._stream, sorted(self._segments.values())
        )
        for segment, copy in self._segments.items():
            if copy not in infos or infos[copy].write_offset != parts[segment].length:
                raise self._conflict("was written to or truncated")

    # ---- Errors ----------------------------------------------------------------------------------

    def _drive(self, writer: SegmentWriter, *, drain: bool) -> None:
        try:
            writer.drive(self._patience, drain=drain)
        except SegmentEndedError:
            raise self._conflict("was sealed, scaled, truncated or deleted") from None

    def _exists(self) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"stream {scoped_name(self._scope, self._stream)} exists already, and an import makes a"
            " stream: choose another name, or say with --key-from where the routing keys of events"
            " are"
        )

    def _conflict(self, what: str) -> ConflictError:
        name = scoped_name(self._scope, self._stream)
        return ConflictError(
            f"stream {name} {what} by others while it was imported: delete it, and import anew"
        )
