"""The pieces of a chunk, and when they are joined. Pure: no I/O here.

Owns: ``ChunkMap``, the rule by which pieces overlap, and the rules that bound their number.

Invariants:
1. Each byte of a chunk is that of the greatest piece that has it: by epoch, then by sequence. So
   nothing that arrives late, of an earlier owner or of an earlier try, covers what is newer.
2. A chunk exists when its byte 0 does, or an empty piece at 0; it ends at its first hole. What lies
   behind a hole belongs to nobody: a late write, whose chunk was deleted.
3. Pieces shorter than ``small_bytes`` lie at the end only, each less than half as long as the one
   before it: there are few of them, and each byte is rewritten a few times at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from segstore.tiers.s3.keys import Piece, Tombstone

KIB = 1024
MIB = 1024 * KIB
COPIED_PART_BYTES_MIN = 5 * MIB
"""Minimum length, in bytes, of objects that S3 joins."""


@dataclass(frozen=True, slots=True)
class PieceSizes:
    """Lengths at which the pieces of a chunk are joined. The defaults are those of
    docs/adr/0170."""

    small_bytes: int = 8 * MIB
    """Length, in bytes, below which pieces at a chunk's end are written again together with what
    follows them."""
    joined_bytes: int = 64 * MIB
    """Length, in bytes, that adjacent longer pieces must have together before the server joins
    them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a chunk from ``start`` to before ``end``, which are in ``piece``."""

    start: int
    end: int
    piece: Piece

    @property
    def length(self) -> int:
        """Return how many bytes it has."""
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        """Return whether all bytes of the piece can be seen."""
        return self.start == self.piece.start and self.end == self.piece.end


@dataclass(frozen=True, slots=True)
class ChunkMap:
    """A chunk's visible bytes, from its beginning on without a hole."""

    extents: tuple[Extent, ...] = ()
    hidden: tuple[Piece, ...] = ()
    """Pieces that newer ones cover completely: they may be deleted."""
    unreachable: tuple[Piece, ...] = ()
    """Pieces that reach behind the gap at which the chunk ends: they are deleted before it is
    filled."""
    epoch_max: int = 0
    """The greatest epoch among all objects that were found of this chunk."""

    @property
    def exists(self) -> bool:
        """Return whether there is such a chunk."""
        return bool(self.extents)

    @property
    def length(self) -> int:
        """Return the chunk's length in bytes."""
        return self.extents[-1].end if self.extents else 0

    def with_piece(self, piece: Piece) -> ChunkMap:
        """Return the chunk with a piece that is greater than all others; nothing becomes
        unreachable."""
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
        """Return the extents that have the bytes of a range, cut to it."""
        return [
            Extent(max(extent.start, start), min(extent.end, end), extent.piece)
            for extent in self.extents
            if extent.start < end and start < extent.end
        ]


def chunk_map(parts: Iterable[Piece | Tombstone]) -> ChunkMap:
    """Make the map of a chunk from a listing of its objects."""
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
    """Return the extents at a chunk's end that are written again when ``length`` bytes are
    appended."""
    index = len(extents)
    while index > 0:
        extent = extents[index - 1]
        if extent.length >= sizes.small_bytes or extent.length > 2 * length:
            break
        length += extent.length
        index -= 1
    return list(extents[index:])


def to_join(extents: Sequence[Extent], sizes: PieceSizes) -> list[Extent]:
    """Return adjacent extents that have become long enough together for the server to join them."""
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
    """Return the extents after ``piece`` was laid over them."""
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
    """The bytes of objects that were just written, by key, since those at a chunk's end are soon
    needed again. The least recently written go first."""

    bytes_max: int
    _bodies: dict[str, bytes] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, key: str, body: bytes) -> None:
        """Keep an object's bytes, if the room is large enough for them."""
        self.discard(key)
        if len(body) > self.bytes_max // 4:
            return
        self._bodies[key] = body
        self._bytes += len(body)
        while self._bytes > self.bytes_max:
            self.discard(next(iter(self._bodies)))

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes, or None if they are not kept any more."""
        return self._bodies.get(key)

    def discard(self, key: str) -> None:
        """Forget an object."""
        body = self._bodies.pop(key, None)
        if body is not None:
            self._bytes -= len(body)
