"""A stream's history: its epochs, and for every segment when it began and when it was sealed.

Owns: epochs as pure data; scale computation and validation; who follows and precedes a segment.

Invariants:
1. Epoch numbers are consecutive from 0. Epoch 0 seals nothing; every later epoch says which
   segments it seals and which it creates.
2. The segments of every epoch tile the key space: [0, 1) is covered exactly once.
3. A segment is in every epoch from the one that created it up to, not including, the one that
   sealed it. A segment once sealed never comes back.
4. An epoch is recorded before its old segments are sealed, so that whoever sees a sealed segment
   can already resolve its successors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from pravega_controller.errors import InvalidRequestError, NotFoundError, ScalePreconditionError
from pravega_controller.streams import (
    SEGMENTS_PER_STREAM_MAX,
    Segment,
    merge_adjacent,
    segments_in_ranges,
    tiles_key_space,
)


class Epoch(msgspec.Struct, frozen=True):
    """One step of a stream's history: what it created, what it sealed, and when.

    ``reference`` is the epoch whose key ranges this one repeats; its own number unless it is a
    duplicate made to take in transactions.
    """

    number: int
    reference: int
    created_ms: int
    created: tuple[Segment, ...]
    sealed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that takes over, with the ids of all segments it takes over from."""

    segment: Segment
    predecessors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """Every epoch of a stream so far. Immutable; ``extended`` gives the next one."""

    epochs: tuple[Epoch, ...]
    segments: Mapping[int, Segment]
    """Every segment the stream ever had, by id."""
    sealed_in: Mapping[int, int]
    """Segment id -> the epoch that sealed it."""
    latest: tuple[Segment, ...]
    """The segments of the last epoch, by key range."""

    @property
    def last_epoch(self) -> int:
        return len(self.epochs) - 1

    def extended(self, epoch: Epoch) -> StreamHistory:
        """The history with one more epoch."""
        assert epoch.number == len(self.epochs), "epochs are consecutive"
        sealed = frozenset(epoch.sealed)
        kept = [segment for segment in self.latest if segment.segment_id not in sealed]
        assert len(kept) == len(self.latest) - len(sealed), "only active segments are sealed"
        latest = tuple(sorted([*kept, *epoch.created], key=_by_range))
        assert tiles_key_space(latest), "an epoch tiles the key space"
        created = {segment.segment_id: segment for segment in epoch.created}
        assert not created.keys() & self.segments.keys(), "segment ids are never reused"
        return StreamHistory(
            (*self.epochs, epoch),
            MappingProxyType({**self.segments, **created}),
            MappingProxyType({**self.sealed_in, **dict.fromkeys(sealed, epoch.number)}),
            latest,
        )

    def segments_in(self, number: int) -> tuple[Segment, ...]:
        """The segments of an epoch, by key range. Raises ``NotFoundError`` for an unknown one."""
        if number < 0:
            raise InvalidRequestError(f"there is no epoch {number}")
        if number > self.last_epoch:
            raise NotFoundError(f"epoch {number} does not exist, the last is {self.last_epoch}")
        if number == self.last_epoch:
            return self.latest
        present = {segment.segment_id: segment for segment in self.latest}
        for epoch in reversed(self.epochs[number + 1 :]):
            for segment in epoch.created:
                del present[segment.segment_id]
            present.update((identifier, self.segments[identifier]) for identifier in epoch.sealed)
        return tuple(sorted(present.values(), key=_by_range))

    def successors(self, segment_id: int) -> tuple[Successor, ...]:
        """Who takes over from a segment; nobody while it is not sealed, or when it is unknown."""
        sealed_epoch = self.sealed_in.get(segment_id)
        if sealed_epoch is None:
            return ()
        segment = self.segments[segment_id]
        before = self.segments_in(sealed_epoch - 1)
        return tuple(
            Successor(
                successor,
                tuple(sorted(old.segment_id for old in before if old.overlaps(successor))),
            )
            for successor in self.segments_in(sealed_epoch)
            if successor.overlaps(segment)
        )

    def number_after_last(self) -> int:
        """The first segment number that no segment of this stream ever had."""
        return 1 + max(segment.number for segment in self.segments.values())


def begin_history(epoch: Epoch) -> StreamHistory:
    """The history of a stream that only has its first epoch."""
    assert epoch.number == 0
    assert not epoch.sealed
    nothing = StreamHistory((), MappingProxyType({}), MappingProxyType({}), ())
    return nothing.extended(epoch)


def history_of(epochs: Iterable[Epoch]) -> StreamHistory:
    """The history that these epochs, in order, add up to."""
    history: StreamHistory | None = None
    for epoch in epochs:
        history = begin_history(epoch) if history is None else history.extended(epoch)
    assert history is not None, "a stream has at least one epoch"
    return history


def first_epoch(
    ranges: Sequence[tuple[float, float]], *, first_number: int, created_ms: int
) -> Epoch:
    """The epoch a stream starts with."""
    created = segments_in_ranges(ranges, epoch=0, first_number=first_number)
    return Epoch(number=0, reference=0, created_ms=created_ms, created=created)


def scaled_epoch(
    history: StreamHistory,
    sealed: Sequence[int],
    ranges: Sequence[tuple[float, float]],
    *,
    created_ms: int,
) -> Epoch:
    """The epoch that replaces the ``sealed`` active segments by new ones with these ranges.

    Raises ``ScalePreconditionError`` if one of them is not active, and ``InvalidRequestError`` if
    the new ranges do not cover exactly what the sealed segments covered.
    """
    active = {segment.segment_id: segment for segment in history.latest}
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
    number = history.last_epoch + 1
    # Numbers start after the highest of the epoch that ends: unique together with the new epoch.
    first_number = 1 + max(segment.number for segment in history.latest)
    return Epoch(
        number=number,
        reference=number,
        created_ms=created_ms,
        created=segments_in_ranges(ranges, epoch=number, first_number=first_number),
        sealed=tuple(sealed),
    )


def _by_range(segment: Segment) -> float:
    return segment.low
