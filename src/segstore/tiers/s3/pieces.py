"""Computes a chunk's content from its pieces, and decides when pieces are joined. Pure: no I/O.

Owns: ``ChunkMap``, the rule for overlapping pieces, and the rules that limit the number of pieces.
Pieces are ordered by epoch, then by sequence number. A chunk exists if it has byte 0, or an empty
piece at 0, and ends at its first gap: pieces past a gap were put late, after the chunk was deleted.

Invariants:
1. When pieces overlap, each byte comes from the greatest piece that has it. Held by
   ``test_the_greatest_piece_has_each_byte``.
2. When hidden pieces are deleted, the chunk's content stays the same. Held by
   ``test_hidden_pieces_can_go``.
3. When there is a tombstone, all lesser pieces are ignored. Held by
   ``test_a_tombstone_ends_what_is_less``.
4. When appends of any length follow each other, the number of pieces stays small, and the bytes are
   written at most 16 times: short pieces at the end are written again with what follows. Held by
   ``test_appends_leave_few_pieces``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from segstore.tiers.s3.keys import Piece, Tombstone

KIB = 1024
MIB = 1024 * KIB
COPIED_PART_BYTES_MIN = 5 * MIB
"""Minimum length, in bytes, of the objects that S3 can join."""


@dataclass(frozen=True, slots=True)
class PieceSizes:
    """Lengths at which the pieces of a chunk are joined. The defaults are those of
    docs/adr/0170."""

    small_bytes: int = 8 * MIB
    """Length, in bytes: shorter pieces at a chunk's end are written again, together with an
    append."""
    joined_bytes: int = 64 * MIB
    """Length, in bytes: when adjacent longer pieces have as much together, the server joins
    them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a chunk from ``start`` to before ``end``, all of which come from ``piece``."""

    start: int
    end: int
    piece: Piece

    @property
    def length(self) -> int:
        """Return the length in bytes."""
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        """Return whether the extent has all bytes of its piece."""
        return self.start == self.piece.start and self.end == self.piece.end


@dataclass(frozen=True, slots=True)
class ChunkMap:
    """A chunk's content: extents from offset 0 on without a gap."""

    extents: tuple[Extent, ...] = ()
    hidden: tuple[Piece, ...] = ()
    """Pieces that newer ones cover completely. They may be deleted."""
    unreachable: tuple[Piece, ...] = ()
    """Pieces with bytes past the chunk's end. They are deleted before the chunk grows, or they
    would become part of it."""
    epoch_max: int = 0
    """The highest epoch of all objects of this chunk."""

    @property
    def exists(self) -> bool:
        """Return whether the chunk exists."""
        return bool(self.extents)

    @property
    def length(self) -> int:
        """Return the chunk's length in bytes."""
        return self.extents[-1].end if self.extents else 0

    def with_piece(self, piece: Piece) -> ChunkMap:
        """Return the chunk with one more piece, which is greater than all others. The result has no
        unreachable pieces."""
        before = {extent.piece for extent in self.extents}
        extents = _painted(self.extents, piece)
        gone = (before | {piece}) - {extent.piece for extent in extents}
        return ChunkMap(
            tuple(extents),
            (*self.hidden, *sorted(gone)),
            epoch_max=max(self.epoch_max, piece.epoch),
        )

    def without_hidden(self, deleted: Iterable[Piece]) -> ChunkMap:
        """Return the chunk after hidden pieces were deleted."""
        gone = set(deleted)
        return replace(self, hidden=tuple(piece for piece in self.hidden if piece not in gone))

    def within(self, start: int, end: int) -> list[Extent]:
        """Return the extents with the bytes from ``start`` to before ``end``, cut to that range."""
        return [
            Extent(max(extent.start, start), min(extent.end, end), extent.piece)
            for extent in self.extents
            if extent.start < end and start < extent.end
        ]


def chunk_map(parts: Iterable[Piece | Tombstone]) -> ChunkMap:
    """Return the map of a chunk from the parts in a listing."""
    pieces: list[Piece] = []
    tombstone = Tombstone(-1, -1)
    epoch_max = 0
    for part in parts:
        epoch_max = max(epoch_max, part.epoch)
        if isinstance(part, Tombstone):
            tombstone = max(tombstone, part)
        else:
            pieces.append(part)
    deleted = (tombstone.epoch, tombstone.sequence)
    extents: list[Extent] = []
    for piece in sorted(pieces):
        if (piece.epoch, piece.sequence) > deleted:
            extents = _painted(extents, piece)
    reachable = tuple(_reachable(extents))
    end = reachable[-1].end if reachable else 0
    unseen = sorted(set(pieces) - {extent.piece for extent in reachable})
    return ChunkMap(
        reachable,
        hidden=tuple(piece for piece in unseen if piece.end <= end),
        unreachable=tuple(piece for piece in unseen if piece.end > end),
        epoch_max=epoch_max,
    )


def to_rewrite(extents: Sequence[Extent], length: int, sizes: PieceSizes) -> list[Extent]:
    """Return the extents at a chunk's end that are written again together with an append of
    ``length`` bytes."""
    index = len(extents)
    while index > 0:
        extent = extents[index - 1]
        if extent.length >= sizes.small_bytes or extent.length > 2 * length:
            break
        length += extent.length
        index -= 1
    return list(extents[index:])


def to_join(extents: Sequence[Extent], sizes: PieceSizes) -> list[Extent]:
    """Return adjacent extents that the server should join now; empty if there are none."""
    run: list[Extent] = []
    length = 0
    for extent in extents:
        if COPIED_PART_BYTES_MIN <= extent.length < sizes.joined_bytes and extent.is_whole:
            run.append(extent)
            length += extent.length
            if length >= sizes.joined_bytes and len(run) > 1:
                return run
        else:
            run, length = [], 0
    return []


def _painted(extents: Sequence[Extent], piece: Piece) -> list[Extent]:
    """Return the extents with ``piece`` in place of the bytes that it covers."""
    if piece.length == 0:
        return list(extents) or [Extent(piece.start, piece.end, piece)]
    painted: list[Extent] = []
    behind: list[Extent] = []
    for extent in extents:
        if extent.start < min(extent.end, piece.start):
            painted.append(replace(extent, end=min(extent.end, piece.start)))
        if max(extent.start, piece.end) < extent.end:
            behind.append(replace(extent, start=max(extent.start, piece.end)))
    return [*painted, Extent(piece.start, piece.end, piece), *behind]


def _reachable(extents: Sequence[Extent]) -> Iterable[Extent]:
    end = 0
    for extent in extents:
        if extent.start != end:
            return
        yield extent
        end = extent.end


@dataclass(slots=True)
class RecentObjects:
    """A cache of recently written objects, at most ``bytes_max`` bytes. Objects at a chunk's end
    are soon read again. The least recently written ones are dropped first."""

    bytes_max: int
    _bodies: dict[str, bytes] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, key: str, body: bytes) -> None:
        """Keep an object's bytes, unless they take more than a quarter of the cache."""
        self.discard(key)
        if len(body) > self.bytes_max // 4:
            return
        self._bodies[key] = body
        self._bytes += len(body)
        while self._bytes > self.bytes_max:
            self.discard(next(iter(self._bodies)))

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes; None if they are not in the cache."""
        return self._bodies.get(key)

    def discard(self, key: str) -> None:
        """Forget an object."""
        body = self._bodies.pop(key, None)
        if body is not None:
            self._bytes -= len(body)
