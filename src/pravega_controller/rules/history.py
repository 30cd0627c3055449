"""A stream's epochs as pure data: the segments that each created and sealed.

Owns: computing scales and duplicate epochs, the segments of an epoch, and the successors of a
segment. ``streams.epochs`` reads them from tables.

An epoch is a period in which a stream has the same segments. Epochs are numbered from 0. Each epoch
records the segments that it seals and those that it creates, with their key ranges.

Invariants:
1. When a stream is scaled, the segments of the new epoch cover the key space [0, 1) exactly once.
   Held by ``test_every_epoch_tiles_the_key_space``.
2. When an epoch seals a segment, the segment is in no later epoch. It is in each epoch from the one
   that created it on. Held by ``test_a_segment_lives_from_its_epoch_to_the_one_that_seals_it``.
3. When an epoch seals a segment, the same epoch has all successors of the segment, and all
   predecessors of these.
   Held by ``test_the_epoch_that_sealed_a_segment_knows_all_about_its_successors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    ScalePreconditionError,
)
from pravega_controller.rules.streams import (
    SEGMENTS_PER_STREAM_MAX,
    Segment,
    merge_adjacent,
    segments_in_ranges,
    tiles_key_space,
)
from pravega_wire import names


class Epoch(msgspec.Struct, frozen=True):
    """An epoch: the segments that it created and sealed, and the time of its creation.

    ``reference`` is its own number, or, for an epoch that a roll has made (``transactions.rolls``),
    the number of the epoch whose segments it repeats.
    """

    number: int
    reference: int
    created_ms: int
    created: tuple[Segment, ...]
    sealed: tuple[Segment, ...] = ()

    @property
    def sealed_ids(self) -> tuple[int, ...]:
        return tuple(segment.segment_id for segment in self.sealed)


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment, and the ids of all segments that it replaces."""

    segment: Segment
    predecessors: tuple[int, ...]


def apply_epochs(segments: Iterable[Segment], epochs: Iterable[Epoch]) -> tuple[Segment, ...]:
    """Return the segments, in order of key range, after these epochs have changed ``segments``.

    Raises ``CorruptMetadataError`` when they do not fit together.
    """
    present = {segment.segment_id: segment for segment in segments}
    for epoch in epochs:
        for segment in epoch.sealed:
            if present.pop(segment.segment_id, None) is None:
                raise CorruptMetadataError(
                    f"epoch {epoch.number} seals segment {segment.segment_id}, which is not active"
                )
        present.update((segment.segment_id, segment) for segment in epoch.created)
    return _tiling(present.values())


def undo_epochs(segments: Iterable[Segment], epochs: Sequence[Epoch]) -> tuple[Segment, ...]:
    """Return the segments, in order of key range, that the epochs have changed to ``segments``."""
    present = {segment.segment_id: segment for segment in segments}
    for epoch in reversed(epochs):
        for segment in epoch.created:
            if present.pop(segment.segment_id, None) is None:
                raise CorruptMetadataError(
                    f"segment {segment.segment_id} of epoch {epoch.number} is not active after it"
                )
        present.update((segment.segment_id, segment) for segment in epoch.sealed)
    return _tiling(present.values())


def successors_in(epoch: Epoch, segment: Segment) -> tuple[Successor, ...]:
    """Return the successors of a segment that this epoch sealed."""
    return tuple(
        Successor(
            created,
            tuple(sorted(old.segment_id for old in epoch.sealed if old.overlaps(created))),
        )
        for created in sorted(epoch.created, key=_by_range)
        if created.overlaps(segment)
    )


def first_epoch(
    ranges: Sequence[tuple[float, float]], *, first_number: int, created_ms: int
) -> Epoch:
    """Return the epoch a stream starts with."""
    created = segments_in_ranges(ranges, epoch=0, first_number=first_number)
    return Epoch(number=0, reference=0, created_ms=created_ms, created=created)


def scaled_epoch(
    latest: Sequence[Segment],
    sealed: Sequence[int],
    ranges: Sequence[tuple[float, float]],
    *,
    number: int,
    created_ms: int,
    first_number: int = 0,
) -> Epoch:
    """Return epoch ``number``, which replaces ``sealed`` segments of ``latest`` by ``ranges``.

    No new segment gets a number below ``first_number``.
    Raises ``ScalePreconditionError`` if one of them is not active, and ``InvalidRequestError`` if
    the new ranges do not cover exactly what the sealed segments covered.
    """
    active = {segment.segment_id: segment for segment in latest}
    if len(set(sealed)) != len(sealed):
        raise InvalidRequestError("a segment is listed twice")
    for segment_id in sealed:
        if segment_id not in active:
            raise ScalePreconditionError(f"segment {segment_id} is not active")
    if not sealed or not ranges:
        raise InvalidRequestError("a scale needs segments to seal and ranges to create")
    if len(active) - len(sealed) + len(ranges) > SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(f"a stream has at most {SEGMENTS_PER_STREAM_MAX} segments")
    if any(not 0.0 <= low < high <= 1.0 for low, high in ranges):
        raise InvalidRequestError("a key range must satisfy 0 <= start < end <= 1")
    old = merge_adjacent(active[segment_id].key_range for segment_id in sealed)
    if merge_adjacent(ranges) != old:
        raise InvalidRequestError("the new key ranges must cover exactly what the sealed ones did")
    # A number must be unique in its epoch only, so numbers continue after those of the last epoch.
    first_number = max(first_number, 1 + max(segment.number for segment in latest))
    return Epoch(
        number=number,
        reference=number,
        created_ms=created_ms,
        created=segments_in_ranges(ranges, epoch=number, first_number=first_number),
        sealed=tuple(active[segment_id] for segment_id in sealed),
    )


def duplicate_epoch(
    latest: Sequence[Segment],
    copied: Iterable[Segment],
    *,
    number: int,
    reference: int,
    created_ms: int,
) -> Epoch:
    """Return epoch ``number``, which seals all of ``latest`` and repeats the segments ``copied``.

    The copies have the numbers and key ranges of those they repeat, and ids of their own epoch.
    """
    created = tuple(
        Segment(names.segment_id(segment.number, number), segment.low, segment.high)
        for segment in copied
    )
    return Epoch(number, reference, created_ms, created, tuple(latest))


def _tiling(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    ordered = tuple(sorted(segments, key=_by_range))
    if not tiles_key_space(ordered):
        raise CorruptMetadataError("the segments of an epoch do not cover the key space once")
    return ordered


def _by_range(segment: Segment) -> float:
    return segment.low
