"""The keys of the objects that chunks are made of.

Owns: the mapping between chunk names, pieces and keys; docs/formats/chunks-in-s3.md describes it.

Invariants:
1. The mapping is one to one, and the encoding of a prefix of a name is a prefix of the name's.
2. A key has no empty component, none that begins with a dot but ``.chunk`` itself, and of other
   characters than letters and digits only ``_ - . / $ !``: gateways that keep objects in files can
   have it, and no XML or URL needs to escape more than a ``$``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from segstore.errors import StorageError

KEY_BYTES_MAX = 1024
CHUNK_SUFFIX = ".chunk"

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-$")
_PIECE = re.compile(r"p([0-9]{10})\.([0-9]{10})\.([0-9a-f]{9})\.([0-9a-f]{9})")
_TOMBSTONE = re.compile(r"x([0-9]{10})\.([0-9]{10})")


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """An object that holds some of a chunk's bytes. The greater one wins where two overlap."""

    epoch: int
    """The epoch under which its writer owned the container."""
    sequence: int
    """Number of the piece, which counts what one owner writes."""
    start: int
    length: int

    @property
    def end(self) -> int:
        """Return the offset in the chunk behind its last byte."""
        return self.start + self.length


@dataclass(frozen=True, slots=True, order=True)
class Tombstone:
    """Says that every lesser piece of the chunk is deleted."""

    epoch: int
    sequence: int


def encode_name(name: str) -> str:
    """Return a chunk's name, or a prefix of it, as keys spell it."""
    encoded: list[str] = []
    before = ord("/")
    for byte in name.encode("utf-8", "surrogatepass"):
        if byte in _PLAIN:
            plain = True
        elif byte in b"./":  # no empty component, and none that begins with a dot
            plain = before != ord("/")
        else:
            plain = False
        encoded.append(chr(byte) if plain else f"!{byte:02X}")
        # An escaped slash is a character like others, to a gateway as well.
        before = byte if plain else 0
    return "".join(encoded)


def decode_name(encoded: str) -> str:
    """Return the name that was encoded."""
    first, *escaped = encoded.split("!")
    pieces = [first.encode("ascii")]
    for part in escaped:
        pieces.append(bytes.fromhex(part[:2]) + part[2:].encode("ascii"))
    return b"".join(pieces).decode("utf-8", "surrogatepass")


def chunk_prefix(name: str) -> str:
    """Return the prefix of the keys of a chunk's objects. Raises ``StorageError`` if it is too
    long."""
    return f"{encode_name(name)}{CHUNK_SUFFIX}/"


def object_name(part: Piece | Tombstone) -> str:
    """Return the last component of an object's key."""
    if isinstance(part, Tombstone):
        return f"x{part.epoch:010d}.{part.sequence:010d}"
    return f"p{part.epoch:010d}.{part.sequence:010d}.{part.start:09x}.{part.length:09x}"


def parse_key(key: str) -> tuple[str, Piece | Tombstone] | None:
    """Return the chunk's name and its part, or None when the key is not one of ours."""
    directory, _, last = key.rpartition("/")
    if not directory.endswith(CHUNK_SUFFIX):
        return None
    part: Piece | Tombstone
    if (match := _PIECE.fullmatch(last)) is not None:
        epoch, sequence, start, length = match.groups()
        part = Piece(int(epoch), int(sequence), int(start, 16), int(length, 16))
    elif (match := _TOMBSTONE.fullmatch(last)) is not None:
        part = Tombstone(int(match[1]), int(match[2]))
    else:
        return None
    try:
        return decode_name(directory.removesuffix(CHUNK_SUFFIX)), part
    except ValueError:
        return None


def check_length(key: str) -> str:
    """Return the key. Raises ``StorageError`` when S3 cannot have it."""
    if len(key) > KEY_BYTES_MAX:
        raise StorageError(f"S3 has no keys of {len(key)} bytes: {key[:80]}...")
    return key
