"""Reads bytes of tier 2 by a scan plan, without the segment store.

Owns: finding and reading files and objects, and the check of their bytes.

Invariants:
1. When this machine has a directory of the same path that is not the store's tier 2, nothing is
   read from it: the identity of the store is compared first.
   Held by ``test_another_stores_directory_and_strange_places_are_not_read``.
2. When a block does not match its checksum, none of its bytes are returned.
   Held by ``test_a_damaged_block_is_never_returned``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import unquote, urlsplit

from _fast.log.block_sums import find_damage
from pravega_spark.errors import DamagedError, TierMissingError, TierUnreachableError
from pravega_wire.commands import PlannedChunk, PlannedObject

BLOCK_BYTES = 64 * 1024
"""Length of a block with a checksum, in bytes."""
READ_BYTES = 4 * 1024 * 1024
READ_BYTES_S3 = 16 * 1024 * 1024
"""Length of one read of an object, in bytes. It is long because each request waits for its first
byte."""
LOOKS_MAX = 2
"""Number of reads of a block after which it counts as damaged: one transfer may damage bytes."""
DEFAULT_REGION = "us-east-1"
S3_CONNECT_SECONDS = 3.0
S3_READ_SECONDS = 30.0
S3_ATTEMPTS = 5

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TierAddress:
    """The place of a store's tier 2."""

    location: str
    """``file:///directory`` or ``s3://bucket/prefix/``."""
    store_id: str
    endpoint: str = ""
    region: str = ""


class TierTwo(Protocol):
    """A tier 2 that this process can read."""

    read_bytes: int

    def read(self, path: str, offset: int, length: int) -> Buffer:
        """Return these bytes of a file or object; fewer at its end.

        Raises ``TierMissingError`` when it does not exist, ``TierUnreachableError`` when it cannot
        be reached.
        """
        ...

    def close(self) -> None:
        """Close all open files and connections. Idempotent."""
        ...


def open_tier(address: TierAddress) -> TierTwo:
    """Open a tier 2; raise ``TierUnreachableError`` when this process cannot read it."""
    if address.location.startswith("file://"):
        return _Directory.open(address)
    if address.location.startswith("s3://"):
        return _Bucket.open(address)
    raise TierUnreachableError(f"tier 2 is in {address.location}: only the store can read that")


def read_chunk(tier: TierTwo, chunk: PlannedChunk, start: int, end: int) -> Iterator[Buffer]:
    """Yield the bytes of a chunk from ``start`` to ``end``, offsets in it, some MiB at a time."""
    while start < end:
        # Each read ends at the end of a block, so that no block is read twice.
        window_end = (start + chunk.phase) // tier.read_bytes * tier.read_bytes
        stop = min(end, window_end + tier.read_bytes - chunk.phase)
        yield _read_checked(tier, chunk, start, stop)
        start = stop


def _read_checked(tier: TierTwo, chunk: PlannedChunk, start: int, end: int) -> Buffer:
    first, last = _blocks_around(chunk, start, end)
    for look in range(LOOKS_MAX):
        data = _read_objects(tier, chunk, first, max(end, last))
        damage = -1
        if last > first:
            damage = find_damage(chunk.sums, chunk.phase, first, data, last - first, BLOCK_BYTES)
        if damage < 0:
            return (
                data
                if (first, last) == (start, end)
                else memoryview(data)[start - first :][: end - start]
            )
        if look == LOOKS_MAX - 1:
            raise DamagedError(
                f"chunk {chunk.chunk_name} in tier 2 is damaged: the block at byte {damage} does"
                " not match its checksum; restore the chunk from a copy"
            )
    raise AssertionError("the last look ends the loop")


def _blocks_around(chunk: PlannedChunk, start: int, end: int) -> tuple[int, int]:
    """Return the range of all blocks that have a checksum and a byte of [start, end)."""
    if start >= min(end, chunk.checked_length):
        return start, start
    first = (start + chunk.phase) // BLOCK_BYTES * BLOCK_BYTES - chunk.phase
    last = -(-(end + chunk.phase) // BLOCK_BYTES) * BLOCK_BYTES - chunk.phase
    return max(0, first), min(last, chunk.checked_length)


def _read_objects(tier: TierTwo, chunk: PlannedChunk, start: int, end: int) -> Buffer:
    """Return the bytes of a chunk, which lie in one object or in several."""
    parts: list[Buffer] = []
    position = start
    for part in _objects_within(chunk.objects, start, end):
        if part.chunk_offset != position:
            break
        data = tier.read(part.path, part.object_offset, part.length)
        if len(data) < part.length:
            raise DamagedError(
                f"chunk {chunk.chunk_name} in tier 2 is damaged: {part.path} ends before byte"
                f" {part.object_offset + part.length}; restore the chunk from a copy"
            )
        parts.append(data)
        position += part.length
    if position != end:
        raise TierMissingError(
            f"no object has bytes {position} to {end} of chunk {chunk.chunk_name}, or several have"
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _objects_within(
    objects: Sequence[PlannedObject], start: int, end: int
) -> Iterator[PlannedObject]:
    for each in objects:
        first, last = max(start, each.chunk_offset), min(end, each.chunk_offset + each.length)
        if first < last:
            skipped = first - each.chunk_offset
            yield PlannedObject(first, last - first, each.path, each.object_offset + skipped)


class _Directory:
    """Tier 2 in a directory that this machine shares with the store."""

    def __init__(self, root: Path) -> None:
        self.read_bytes = READ_BYTES
        self._root = root
        self._open: tuple[str, int] | None = None

    @classmethod
    def open(cls, address: TierAddress) -> Self:
        root = Path(unquote(urlsplit(address.location).path))
        mark = root / "_system" / f"store$identity-{address.store_id}.chunk"
        try:
            mark.stat()
        except OSError as error:
            raise TierUnreachableError(
                f"tier 2 of the store is in {root}, which cannot be read here: {error.strerror}"
            ) from error
        return cls(root)

    def read(self, path: str, offset: int, length: int) -> Buffer:
        descriptor = self._descriptor(path)
        data = bytearray(length)
        view, count = memoryview(data), 0
        try:
            while count < length:
                got = os.preadv(descriptor, [view[count:]], offset + count)
                if got == 0:
                    break
                count += got
        except OSError as error:
            raise TierUnreachableError(
                f"{self._root / path} cannot be read: {error.strerror}"
            ) from error
        return data if count == length else view[:count]

    def _descriptor(self, path: str) -> int:
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self.close()
        try:
            descriptor = os.open(self._root / path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise TierMissingError(f"{self._root / path} is not there") from error
        except OSError as error:
            raise TierUnreachableError(
                f"{self._root / path} cannot be read: {error.strerror}"
            ) from error
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._open = path, descriptor
        return descriptor

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


class _Bucket:
    """Tier 2 in S3, with the credentials that boto3 finds on this machine."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.read_bytes = READ_BYTES_S3
        self._client = client
        self._bucket = bucket

    @classmethod
    def open(cls, address: TierAddress) -> Self:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise TierUnreachableError(f"boto3 is not installed here: {error}") from error
        place = urlsplit(address.location)
        endpoint = address.endpoint or None
        has_endpoint = endpoint or any(
            os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        )
        try:
            session = boto3.session.Session()
            client = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=address.region or session.region_name or DEFAULT_REGION,
                config=Config(
                    connect_timeout=S3_CONNECT_SECONDS,
                    read_timeout=S3_READ_SECONDS,
                    retries={"total_max_attempts": S3_ATTEMPTS, "mode": "standard"},
                    s3={"addressing_style": "path" if has_endpoint else "auto"},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
            found = client.list_objects_v2(
                Bucket=place.netloc,
                Prefix=f"{place.path.lstrip('/')}_system/store$identity-{address.store_id}.chunk/",
                MaxKeys=1,
            )
        except (BotoCoreError, ClientError, ValueError) as error:
            raise TierUnreachableError(
                f"tier 2 of the store is in {address.location}, which cannot be read here: {error}"
            ) from error
        if not found.get("Contents"):
            client.close()
            raise TierUnreachableError(f"{address.location} here is another store's tier 2")
        return cls(client, place.netloc)

    def read(self, path: str, offset: int, length: int) -> Buffer:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            found = self._client.get_object(
                Bucket=self._bucket, Key=path, Range=f"bytes={offset}-{offset + length - 1}"
            )
            data: bytes = found["Body"].read()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404"):
                raise TierMissingError(f"s3://{self._bucket}/{path} is not there") from error
            raise TierUnreachableError(
                f"s3://{self._bucket}/{path} cannot be read: {error}"
            ) from error
        except BotoCoreError as error:
            raise TierUnreachableError(
                f"s3://{self._bucket}/{path} cannot be read: {error}"
            ) from error
        return data

    def close(self) -> None:
        self._client.close()
