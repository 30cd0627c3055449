"""Encodes chunk names and pieces as keys of objects, and decodes them.

Owns: the mapping between chunk names, pieces and keys; docs/formats/chunks-in-s3.md describes it.

Invariants:
1. When a name is encoded, whatever characters it has, decoding returns it. Held by
   ``test_every_name_comes_back``.
2. When a prefix of a name is encoded, the result is a prefix of the encoded name. Held by
   ``test_the_encoding_of_a_prefix_is_a_prefix``.
3. When a name has unusual characters, its key has only letters, digits and ``_ - . / $ !``, no
   empty component, and none that begins with a dot but ``.chunk``: gateways that store objects as
   files accept such keys, and XML and URLs need to escape only the ``$``. Held by
   ``test_keys_are_plain_and_come_back``.
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
    """An object with some of a chunk's bytes. Where pieces overlap, the greater one is valid."""

    epoch: int
    """The epoch in which its writer owned the container."""
    sequence: int
    """Number of the piece among all pieces of its writer."""
    start: int
    length: int

    @property
    def end(self) -> int:
        """Return the offset in the chunk after the piece's last byte."""
        return self.start + self.length


@dataclass(frozen=True, slots=True, order=True)
class Tombstone:
    """A mark that all lesser pieces of the chunk are deleted."""

    epoch: int
    sequence: int


def encode_name(name: str) -> str:
    """Return the encoding of a chunk's name, or of a prefix of one."""
    encoded: list[str] = []
    before = ord("/")
    for byte in name.encode("utf-8", "surrogatepass"):
        if byte in _PLAIN:
            plain = True
        elif (
            byte in b"./"
        ):  # escaped at the beginning of a component: it must not be empty or begin with a dot
            plain = before != ord("/")
        else:
            plain = False
        encoded.append(chr(byte) if plain else f"!{byte:02X}")
        # An escaped slash does not begin a component.
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
    """Return the chunk's name and the part that the key encodes; None for a foreign key."""
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
