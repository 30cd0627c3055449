"""The checksums of an object's blocks, which lie in its metadata.

Owns: ``Checks``, its text, and which bytes must be read to check some of them.

Invariants:
1. An object is a row of members, each a row of blocks of ``BLOCK_BYTES`` but for its last: an
   object that was put has one member, one that was joined has those of its parts.
2. Every byte of an object is in one block, and a block's bytes are only believed when its CRC32C
   matches.
"""

from __future__ import annotations

import base64
import binascii
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from _fast.crc import crc32c

BLOCK_BYTES = 512 * 1024
METADATA_KEY = "segstore-crc32c"
TEXT_CHARACTERS_MAX = 1900
"""Maximum number of characters of the checks: S3 has 2 KB for all metadata of an object, keys
included."""


class CheckError(ValueError):
    """Bytes, or the text of checks, differ from what was written."""


@dataclass(frozen=True, slots=True)
class Checks:
    """The ends of an object's blocks, and their CRC32C."""

    lengths: tuple[int, ...]
    """The lengths of the members."""
    ends: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, body: bytes) -> Checks:
        """Return the checks of an object that is put."""
        view = memoryview(body)
        sums = [
            crc32c(view[start : start + BLOCK_BYTES]) for start in range(0, len(body), BLOCK_BYTES)
        ]
        return cls._of_members([len(body)], sums)

    @classmethod
    def of_parts(cls, parts: Sequence[Checks]) -> Checks:
        """Return the checks of objects that are joined."""
        return cls._of_members(
            [length for part in parts for length in part.lengths],
            [each for part in parts for each in part.sums],
        )

    @classmethod
    def _of_members(cls, lengths: Sequence[int], sums: Sequence[int]) -> Checks:
        ends: list[int] = []
        start = 0
        for length in lengths:
            ends.extend(range(start + BLOCK_BYTES, start + length, BLOCK_BYTES))
            start += length
            if length:
                ends.append(start)
        if len(ends) != len(sums):
            raise CheckError(f"{len(sums)} checksums for {len(ends)} blocks")
        return cls(tuple(lengths), tuple(ends), tuple(sums))

    @classmethod
    def parse(cls, text: str) -> Checks:
        """Read ``str(checks)``; ``CheckError`` when it is not that."""
        members, separator, encoded = text.partition(":")
        try:
            packed = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
            sums = struct.unpack(f">{len(packed) // 4}I", packed)
            lengths = [int(member, 16) for member in members.split(",")]
        except (binascii.Error, struct.error, ValueError) as error:
            raise CheckError(f"{text!r} are no checksums: {error}") from error
        if not separator or min(lengths) < 0:
            raise CheckError(f"{text!r} are no checksums")
        return cls._of_members(lengths, sums)

    def __str__(self) -> str:
        packed = struct.pack(f">{len(self.sums)}I", *self.sums)
        encoded = base64.b64encode(packed).decode("ascii").rstrip("=")
        return ",".join(f"{length:x}" for length in self.lengths) + ":" + encoded

    @property
    def length(self) -> int:
        """Return the object's length in bytes."""
        return self.ends[-1] if self.ends else 0

    def blocks_around(self, start: int, end: int) -> tuple[int, int]:
        """Return where the first block with a byte of the range begins, and the last one ends."""
        first = bisect_right(self.ends, start)
        last = bisect_left(self.ends, end)
        return (self.ends[first - 1] if first else 0), self.ends[last]

    def verify(self, data: bytes, *, offset: int) -> None:
        """Check whole blocks, which begin at ``offset``; ``CheckError`` when one is damaged."""
        view = memoryview(data)
        start = offset
        for index in range(bisect_right(self.ends, offset), len(self.ends)):
            end = self.ends[index]
            if end > offset + len(data):
                break
            if crc32c(view[start - offset : end - offset]) != self.sums[index]:
                raise CheckError(f"its bytes {start} to {end} do not match their checksum")
            start = end
        if start != offset + len(data):
            raise CheckError(f"{len(data)} bytes at {offset} are not whole blocks")
