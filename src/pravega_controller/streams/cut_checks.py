"""Checks stream cuts that clients send.

Owns: reading the segments and lengths that the rules of ``stream_cuts`` need. Truncations,
subscribers, reader groups and queries about a cut use this module, so that they all accept the same
cuts. (The search for the segments between two cuts does not: there clients may send offsets beyond
the end of a segment.) A cut before the stream's head is accepted. A caller that must refuse such
cuts compares the cut with the head.
"""

from __future__ import annotations

from pravega_controller.errors import EpochDroppedError, InvalidStreamCutError
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.streams import StreamCut
from pravega_controller.store_client.segment_client import SegmentClient


class CutChecks:
    """Checks cuts of streams, whose segments it asks for their lengths."""

    def __init__(self, segments: SegmentClient) -> None:
        self._segments = segments

    async def check(
        self, stream: Stream, cut: StreamCut, *, end: StreamCut | None = None
    ) -> dict[int, int]:
        """Return a cut with lengths of segments in place of ``END_OF_SEGMENT``.

        If ``end`` is given, it has the positions of keys that the cut does not cover. Raises
        ``InvalidStreamCutError`` for an invalid cut (``EarlierStreamError`` if it is of an earlier
        stream of the name), and ``EpochDroppedError`` if records of the cut's segments were
        dropped.
        """
        history = stream.history
        asked = {**(end or {}), **cut}
        segments = await history.segments(asked)
        # If the epoch of a missing segment is recorded, the segment never existed.
        await history.refuse_missing(asked, segments)
        cut = stream_cuts.fill_gaps(segments, cut, end) if cut and end else cut
        named = {segment_id: segments[segment_id] for segment_id in cut if segment_id in segments}
        lengths, sealed = await self._lengths(stream, cut)
        resolved = stream_cuts.resolve_offsets(named, cut, lengths, sealed)
        stream_cuts.pieces(named, resolved)
        await history.refuse_partly_read(resolved)
        return resolved

    async def check_at_or_after(
        self, stream: Stream, cut: StreamCut, earlier: StreamCut, what: str
    ) -> dict[int, int]:
        """Return a cut like ``check``, and refuse one that is before ``earlier`` for any key.

        An empty ``earlier`` is no bound. Raises ``InvalidStreamCutError``, whose text calls the
        earlier cut ``what``.
        """
        try:
            resolved = await self.check(stream, cut)
        except EpochDroppedError as error:
            raise InvalidStreamCutError(f"the stream cut is too old: {error}") from error
        if earlier and not await stream.history.goes_on(resolved, earlier):
            raise InvalidStreamCutError(f"the stream cut lies before {what}")
        return resolved

    async def _lengths(self, stream: Stream, cut: StreamCut) -> tuple[dict[int, int], set[int]]:
        """Return the lengths of a cut's segments, and those of them that are sealed."""
        # The offset 0 is valid in each segment, so its length is not needed.
        asked = [segment_id for segment_id, offset in cut.items() if offset != 0]
        infos = await self._segments.segment_infos([stream.segment_name(each) for each in asked])
        found = {each: info for each, info in zip(asked, infos, strict=True) if info is not None}
        lengths = {each: info.length for each, info in found.items()}
        sealed = {each for each, info in found.items() if info.is_sealed}
        if gone := [each for each in asked if each not in found]:
            # Segments before the head are deleted, but their lengths were recorded with their
            # seals.
            recorded = await stream.history.lengths_of(gone)
            lengths.update(recorded)
            sealed.update(recorded)
        return lengths, sealed
