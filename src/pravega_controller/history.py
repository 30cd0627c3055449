"""A stream's epochs as pure data: the segments that each created and sealed.

Owns: computing scales and duplicate epochs, the segments of an epoch, and the successors of a
segment. ``stream_history`` reads epochs from tables.

Invariants:
1. Epoch numbers are consecutive from 0. Epoch 0 seals nothing; every later epoch records the
   segments that it seals and those that it creates, each with its key range.
2. The segments of every epoch tile the key space: [0, 1) is covered exactly once.
3. A segment is in every epoch from the one that created it up to, not including, the one that
   sealed it. A segment once sealed never comes back.
4. The segments that an epoch creates cover exactly those that it seals, so that the successors of a
   segment, and their predecessors, are all found in the one epoch that sealed it.
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
from pravega_controller.streams import (
    SEGMENTS_PER_STREAM_MAX,
    Segment,
    merge_adjacent,
    segments_in_ranges,
    tiles_key_space,
)
from pravega_wire import names


class Epoch(msgspec.Struct, frozen=True):
    """One step of a stream's history: what it created, what it sealed, and when.

    ``reference`` is the epoch whose key ranges this one repeats: another epoch if this one is a
    duplicate that receives transactions, else itself.
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
    """A segment and the ids of all segments whose place it takes."""

    segment: Segment
    predecessors: tuple[int, ...]


def apply_epochs(segments: Iterable[Segment], epochs: Iterable[Epoch]) -> tuple[Segment, ...]:
    """Return, in order of key range, the segments that these epochs leave of ``segments``.

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
    """Return, in order of key range, the segments that became ``segments`` by these epochs."""
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
) -> Epoch:
    """Return epoch ``number``, which replaces ``sealed`` segments of ``latest`` by ``ranges``.

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
    # Numbers start after the highest of the epoch that ends: unique together with the new epoch.
    first_number = 1 + max(segment.number for segment in latest)
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
