"""Stores chunks as objects in S3, which can neither append nor overwrite a part of an object.

Owns: ``S3Tier``, which the containers of a process share, and ``S3ChunkStorage``, the chunks of one
owner.

Each write puts one object, a *piece* of the chunk, under a key with the range of its bytes, the
epoch of the owner and a sequence number. No object is ever changed: a newer piece lies beside older
ones, and the older ones that it covers completely are deleted later. docs/adr/0170 says why,
docs/formats/chunks-in-s3.md describes the objects.

Invariants:
1. When requests are lost, delayed or repeated, and owners die at any point, the chunk has exactly
   the acknowledged bytes. Held by ``test_nothing_is_lost_and_nothing_doubled``.
2. When a put of an earlier owner takes effect late, no newer byte is covered by it. Held by
   ``test_a_late_put_of_an_earlier_owner_covers_nothing``.
3. When an owner finds pieces of a later owner in a chunk, it neither writes nor deletes in that
   chunk. Held by ``test_an_owner_that_was_followed_writes_no_more``.
4. When an object's bytes are damaged, a read raises ``StorageError`` with its key, and never
   returns them. Held by ``test_a_damaged_object_is_named_and_not_read``.
5. When a deletion is interrupted, no part of the chunk remains visible. Held by
   ``test_a_deletion_that_is_cut_short_leaves_no_part_of_a_chunk``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
import trio

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.runtime.parallel import run_parallel
from segstore.runtime.remembered import Remembered
from segstore.tiers.api import Buffer, Check, ChunkInfo, StoredRange
from segstore.tiers.s3.checks import METADATA_KEY, TEXT_CHARACTERS_MAX, CheckError, Checks
from segstore.tiers.s3.failures import FailureKind, S3RequestError
from segstore.tiers.s3.keys import (
    Piece,
    Tombstone,
    check_length,
    chunk_prefix,
    encode_name,
    object_name,
    parse_key,
)
from segstore.tiers.s3.objects import FoundObject, ObjectStore
from segstore.tiers.s3.pieces import (
    ChunkMap,
    Extent,
    PieceSizes,
    RecentObjects,
    chunk_map,
    to_join,
    to_rewrite,
)

KNOWN_CHUNKS_MAX = 16_384
KNOWN_CHECKS_MAX = 1_024
RECENT_BYTES_MAX = 32 * 1024 * 1024
HIDDEN_PIECES_MAX = 16
"""Maximum number of obsolete objects of a chunk; with more they are deleted."""
LOOKS_MAX = 3
LISTED_ALONE_MAX = 64
"""Maximum number of chunks whose lengths are requested one by one. For more of them, all chunks are
listed."""
PARALLEL_READS_MAX = 8

DEFAULT_SIZES = PieceSizes()

logger = structlog.get_logger(__name__)


class _SharedListing:
    """A listing of all chunks that several owners share, as at a start.

    Each owner gets a listing that began after it asked, so it misses no chunk that existed then.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = trio.Lock()
        self._begun = self._done = 0
        self._waiting_count = 0
        self._parts: dict[str, list[Piece | Tombstone]] = {}

    async def get(self) -> Mapping[str, list[Piece | Tombstone]]:
        """Return all chunks with their parts, from a listing that began after this call."""
        needed = self._begun + 1
        self._waiting_count += 1
        try:
            async with self._lock:
                if self._done < needed:
                    self._begun += 1
                    self._parts = _parts_by_name(await self._objects.list_all(""))
                    self._done = self._begun
                return self._parts
        finally:
            self._waiting_count -= 1
            if self._waiting_count == 0:
                self._parts = {}


class S3Tier:
    """The client, the remembered checksums and the recently written objects, which all owners of a
    process share."""

    def __init__(self, objects: ObjectStore, *, sizes: PieceSizes = DEFAULT_SIZES) -> None:
        self._objects = objects
        self._sizes = sizes
        self._recent = RecentObjects(RECENT_BYTES_MAX)
        self._listing = _SharedListing(objects)
        self._checks: Remembered[str, Checks] = Remembered(KNOWN_CHECKS_MAX)
        self.can_join = True

    def owned_by(self, epoch: Callable[[], int]) -> S3ChunkStorage:
        """Return the chunk storage of an owner. ``epoch`` returns the epoch of its ownership; a
        later owner of the same chunks has a higher one."""
        return S3ChunkStorage(self, epoch)

    @property
    def objects(self) -> ObjectStore:
        """Return the client of the bucket."""
        return self._objects

    @property
    def sizes(self) -> PieceSizes:
        """Return the lengths at which pieces are joined."""
        return self._sizes

    def close(self) -> None:
        """Close the connections. Later requests fail."""
        self._objects.close()

    async def list_everything(self) -> Mapping[str, list[Piece | Tombstone]]:
        """Return the parts of all chunks of all owners, by the chunks' names."""
        return await self._listing.get()

    async def put(self, key: str, body: bytes) -> None:
        """Store a piece's object with the checksums of its blocks."""
        checks = Checks.of(body)
        await self._objects.put(check_length(key), body, {METADATA_KEY: str(checks)})
        self._checks.set(key, checks)
        self._recent.add(key, body)

    async def read(self, key: str, piece: Piece, start: int, end: int) -> bytes:
        """Read bytes from ``start`` to before ``end`` of a piece's object, and verify their
        checksums. Bytes that fail are read again, because they may have been damaged on the
        network."""
        if start == end:
            return b""
        if (body := self._recent.get(key)) is not None:
            return body[start:end]
        checks = await self.checks(key, piece)
        first, last = checks.blocks_around(start, end)
        look = 1
        while True:
            data = await self._objects.get(
                key, offset=first, length=last - first, object_length=piece.length
            )
            try:
                checks.verify(data, offset=first)
            except CheckError as error:
                # The bytes may have been damaged on the network.
                if look == LOOKS_MAX:
                    raise StorageError(f"{self._objects}{key} is damaged: {error}") from error
                look += 1
            else:
                return data[start - first : end - first]

    async def checks(self, key: str, piece: Piece) -> Checks:
        """Return the checksums of a piece's object."""
        if (known := self._checks.get(key)) is not None:
            return known
        length, metadata = await self._objects.metadata(key)
        try:
            checks = Checks.parse(metadata.get(METADATA_KEY, ""))
        except CheckError as error:
            raise StorageError(f"{self._objects}{key} is damaged: {error}") from error
        if not length == checks.length == piece.length:
            raise StorageError(
                f"{self._objects}{key} is damaged: it has {length} bytes, its checksums are for"
                f" {checks.length}"
            )
        self._checks.set(key, checks)
        return checks

    async def join(self, key: str, parts: Sequence[tuple[str, Piece]]) -> None:
        """Join several pieces to one object, in the server. Raises ``CheckError`` if the metadata
        have no room for all checksums."""
        checks = Checks.of_parts([await self.checks(part, piece) for part, piece in parts])
        if len(text := str(checks)) > TEXT_CHARACTERS_MAX:
            raise CheckError("the checksums of so many blocks have no room in the metadata")
        await self._objects.join(
            check_length(key),
            [FoundObject(part, piece.length) for part, piece in parts],
            {METADATA_KEY: text},
        )
        self._checks.set(key, checks)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        for key in keys:
            self._recent.discard(key)
            self._checks.drop(key)
        await self._objects.delete_all(keys)


class S3ChunkStorage:
    """The chunks of one owner. For each chunk, callers make one changing call at a time."""

    def __init__(self, tier: S3Tier, epoch: Callable[[], int]) -> None:
        self._tier = tier
        self._epoch = epoch
        self._sequence = 0
        self._maps: Remembered[str, ChunkMap] = Remembered(KNOWN_CHUNKS_MAX)
        self._empty: Remembered[str, bool] = Remembered(KNOWN_CHUNKS_MAX)
        self._change_count = 0

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write ``data`` at ``offset``; see ``ChunkStorage.write``."""
        chunk = await self._map(name)
        if not chunk.exists and offset != 0:
            raise ChunkNotFoundError(f"there is no chunk {name} in {self._tier.objects}")
        if not 0 <= offset <= chunk.length:
            raise InvalidChunkOffsetError(f"chunk {name} has {chunk.length} bytes, not {offset}")
        self._refuse_when_fenced(name, chunk.epoch_max)
        length = sum(memoryview(part).nbytes for part in data)
        if chunk.exists and length == 0:
            if meanwhile is not None:
                meanwhile()
            return
        rewritten: list[Extent] = []
        if offset == chunk.length:
            rewritten = to_rewrite(chunk.extents, length, self._tier.sizes)
        body = b"".join([*await self._read_extents(name, rewritten), *data])
        piece = self._next_piece(rewritten[0].start if rewritten else offset, len(body))
        self._begin_change(name)
        try:
            if chunk.unreachable:
                logger.warning("late pieces of a deleted chunk are deleted", chunk=name)
                await self._tier.delete([_key(name, late) for late in chunk.unreachable])
            await self._tier.put(_key(name, piece), body)
        except BaseException:
            self._end_change(name, None)
            raise
        self._end_change(name, chunk.with_piece(piece))
        if meanwhile is not None:
            meanwhile()
        await self._tidy(name)

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> bytes:
        """Read exactly ``length`` bytes."""
        for look in range(1, LOOKS_MAX + 1):
            chunk = await self._existing(name)
            if offset < 0 or length < 0 or offset + length > chunk.length:
                raise InvalidChunkOffsetError(
                    f"chunk {name} has {chunk.length} bytes: it has no range {offset}+{length}"
                )
            try:
                extents = chunk.within(offset, offset + length)
                data = b"".join(await self._read_extents(name, extents))
            except S3RequestError as error:
                # Joined pieces are deleted; a new listing has the object that replaced them.
                if error.failure.kind is not FailureKind.MISSING:
                    raise
                if self._maps.get(name) is chunk:
                    self._maps.drop(name)
                if look == LOOKS_MAX:
                    raise StorageError(
                        f"chunk {name} is damaged: S3 lists a piece that it does not have"
                    ) from error
            else:
                if check is not None:
                    check(data)
                return data
        raise AssertionError("the last look ends the loop")

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length."""
        return ChunkInfo(name, (await self._existing(name)).length)

    async def locate(self, name: str) -> list[StoredRange]:
        """Return the objects with a chunk's bytes. Later writes may replace these objects."""
        chunk = await self._existing(name)
        prefix = self._tier.objects.prefix
        return [
            StoredRange(
                extent.start,
                extent.length,
                prefix + _key(name, extent.piece),
                extent.start - extent.piece.start,
            )
            for extent in chunk.extents
        ]

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return chunks' lengths. Many of them come from one listing of all chunks, which owners
        share."""
        if len(names) > LISTED_ALONE_MAX:
            change_count = self._change_count
            listed = await self._tier.list_everything()
            maps = [chunk_map(listed.get(name, ())) for name in names]
            if self._change_count == change_count:
                for name, chunk in zip(names, maps, strict=True):
                    self._maps.set(name, chunk)
        else:
            maps = [await self._map(name) for name in names]
        return [chunk.length if chunk.exists else None for chunk in maps]

    async def delete(self, name: str) -> None:
        """Delete a chunk with all its pieces, including those that an interrupted call left."""
        self._begin_change(name)
        try:
            await self._delete(name)
        finally:
            self._end_change(name, None)

    async def _delete(self, name: str) -> None:
        found = await self._tier.objects.list_all(chunk_prefix(name))
        parts = [part for _, part in _parts(found)]
        self._refuse_when_fenced(name, max((part.epoch for part in parts), default=0))
        pieces = [part for part in parts if isinstance(part, Piece)]
        tombstones = [part for part in parts if isinstance(part, Tombstone)]
        if len(pieces) > 1:
            # Without the tombstone, a crash between two deletions would leave a shorter chunk.
            piece = self._next_piece(0, 0)
            tombstones.append(Tombstone(piece.epoch, piece.sequence))
            await self._tier.objects.put(check_length(_key(name, tombstones[-1])), b"", {})
        await self._tier.delete([_key(name, piece) for piece in pieces])
        await self._tier.delete([_key(name, tombstone) for tombstone in tombstones])

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List chunks by prefix, sorted by name."""
        change_count = self._change_count
        found = await self._tier.objects.list_all(encode_name(prefix))
        by_name = _parts_by_name(found)
        maps = {
            name: chunk_map(parts) for name, parts in by_name.items() if name.startswith(prefix)
        }
        if self._change_count == change_count:
            for name, chunk in maps.items():
                self._maps.set(name, chunk)
            if not maps:
                self._empty.set(prefix, True)
        return [
            ChunkInfo(name, chunk.length) for name, chunk in sorted(maps.items()) if chunk.exists
        ]

    async def _existing(self, name: str) -> ChunkMap:
        chunk = await self._map(name)
        if not chunk.exists:
            raise ChunkNotFoundError(f"there is no chunk {name} in {self._tier.objects}")
        return chunk

    async def _map(self, name: str) -> ChunkMap:
        known = self._maps.get(name)
        if known is not None:
            return known
        if self._empty.get(_family(name)):
            return ChunkMap()
        change_count = self._change_count
        found = await self._tier.objects.list_all(chunk_prefix(name))
        chunk = chunk_map(part for _, part in _parts(found))
        if self._change_count == change_count:
            self._maps.set(name, chunk)
        return chunk

    async def _read_extents(self, name: str, extents: Sequence[Extent]) -> list[bytes]:
        """Return the bytes of extents; several are read at the same time."""
        if len(extents) == 1:
            return [await self._read_extent(name, extents[0])]
        bodies = [b""] * len(extents)

        async def read(index: int) -> None:
            bodies[index] = await self._read_extent(name, extents[index])

        await run_parallel(range(len(extents)), read, tasks_max=PARALLEL_READS_MAX)
        return bodies

    async def _read_extent(self, name: str, extent: Extent) -> bytes:
        piece = extent.piece
        return await self._tier.read(
            _key(name, piece), piece, extent.start - piece.start, extent.end - piece.start
        )

    async def _tidy(self, name: str) -> None:
        """Join pieces and delete hidden ones if there are enough of them. A failure does not fail
        the write."""
        try:
            await self._join(name)
            chunk = self._maps.get(name)
            if chunk is not None and len(chunk.hidden) >= HIDDEN_PIECES_MAX:
                await self._delete_hidden(name, chunk)
        except (StorageError, CheckError) as error:
            logger.warning("pieces of a chunk stay as they are", chunk=name, error=str(error))
            failure = error.failure if isinstance(error, S3RequestError) else None
            if failure is not None and failure.kind is FailureKind.UNSUPPORTED:
                self._tier.can_join = False

    async def _join(self, name: str) -> None:
        chunk = self._maps.get(name)
        if chunk is None or not self._tier.can_join:
            return
        extents = to_join(chunk.extents, self._tier.sizes)
        if not extents:
            return
        piece = self._next_piece(extents[0].start, sum(extent.length for extent in extents))
        await self._tier.join(
            _key(name, piece), [(_key(name, extent.piece), extent.piece) for extent in extents]
        )
        joined = chunk.with_piece(piece)
        self._maps.set(name, joined)
        await self._delete_hidden(name, joined)

    async def _delete_hidden(self, name: str, chunk: ChunkMap) -> None:
        self._refuse_when_fenced(name, chunk.epoch_max)
        await self._tier.delete([_key(name, piece) for piece in chunk.hidden])
        self._maps.set(name, chunk.without_hidden(chunk.hidden))

    def _next_piece(self, start: int, length: int) -> Piece:
        self._sequence += 1
        return Piece(self._epoch(), self._sequence, start, length)

    def _begin_change(self, name: str) -> None:
        self._change_count += 1
        self._maps.drop(name)
        self._empty.drop(_family(name))

    def _end_change(self, name: str, chunk: ChunkMap | None) -> None:
        self._change_count += 1
        if chunk is None:
            self._maps.drop(name)
        else:
            self._maps.set(name, chunk)

    def _refuse_when_fenced(self, name: str, epoch_max: int) -> None:
        if epoch_max > self._epoch():
            raise StorageError(
                f"chunk {name} belongs to epoch {epoch_max} of its container: this is epoch"
                f" {self._epoch()} and writes no more"
            )


def _key(name: str, part: Piece | Tombstone) -> str:
    return chunk_prefix(name) + object_name(part)


def _family(name: str) -> str:
    """Return the common prefix of the names of a segment's chunks."""
    return name[: name.rfind("$") + 1]


def _parts_by_name(found: Iterable[FoundObject]) -> dict[str, list[Piece | Tombstone]]:
    """Parse the objects of a listing; return them by chunk name."""
    by_name: dict[str, list[Piece | Tombstone]] = {}
    for name, part in _parts(found):
        by_name.setdefault(name, []).append(part)
    return by_name


def _parts(found: Iterable[FoundObject]) -> Iterable[tuple[str, Piece | Tombstone]]:
    """Yield the chunk name and part of each object of a listing. Raises ``StorageError`` if an
    object has another length than its key says."""
    for each in found:
        parsed = parse_key(each.key)
        if parsed is None:
            continue
        name, part = parsed
        length = part.length if isinstance(part, Piece) else 0
        if each.length != length:
            raise StorageError(
                f"object {each.key} of chunk {name} is damaged: it has {each.length} bytes, not"
                f" {length}"
            )
        yield name, part
