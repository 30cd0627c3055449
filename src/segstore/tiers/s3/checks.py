"""Makes and verifies the checksums of an object's blocks, which are stored in its metadata.

Owns: ``Checks``, its text, and the calculation of the range that must be read to verify some bytes.
An object consists of members: one if it was put, or those of its parts if it was joined. A member
is divided into blocks of ``BLOCK_BYTES``; its last block may be shorter. Each block has a CRC32C.

Invariants:
1. When any byte of an object is changed, verifying its block fails. Held by
   ``test_blocks_around_a_range_can_be_checked``.
2. When the data to verify do not end at the end of a block, verifying fails. Held by
   ``test_what_is_not_whole_blocks_is_refused``.
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
"""Maximum length, in characters, of the checksums as text: S3 allows 2 KB for all metadata of an
object, with their keys."""


class CheckError(ValueError):
    """Raised when bytes differ from their checksum, or a text is not checksums."""


@dataclass(frozen=True, slots=True)
class Checks:
    """The blocks of an object: the offset of each one's end, and its CRC32C."""

    lengths: tuple[int, ...]
    """The lengths of the members, in bytes."""
    ends: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, body: bytes) -> Checks:
        """Return the checksums of an object that is put."""
        view = memoryview(body)
        sums = [
            crc32c(view[start : start + BLOCK_BYTES]) for start in range(0, len(body), BLOCK_BYTES)
        ]
        return cls._of_members([len(body)], sums)

    @classmethod
    def of_parts(cls, parts: Sequence[Checks]) -> Checks:
        """Return the checksums of the object that joins these."""
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
        """Parse the text of checksums, as ``str`` makes it. Raises ``CheckError``."""
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
        """Return the range of the blocks that have the bytes from ``start`` to before ``end``: the
        first one's beginning and the last one's end."""
        first = bisect_right(self.ends, start)
        last = bisect_left(self.ends, end)
        return (self.ends[first - 1] if first else 0), self.ends[last]

    def verify(self, data: bytes, *, offset: int) -> None:
        """Verify whole blocks, which begin at ``offset`` of the object. Raises ``CheckError``."""
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
