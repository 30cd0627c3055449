"""A stream cut as the text that official clients print: Java's ``StreamCut.asText()``.

Owns: that text. It is base64 of gzip of

    0:<scope>/<stream>:<segment numbers>:<epochs>:<offsets>

with three lists of equal length, separated by commas.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from collections.abc import Mapping

from pravega_wire.names import segment_epoch, segment_id, segment_number

VERSION = "0"
TEXT_BYTES_MAX = 16 * 1024 * 1024
"""Maximum length, in bytes, of a text after decompression: enough for hundreds of thousands of
segments. The limit exists because gzip can turn a short text into gigabytes."""


class StreamCutTextError(ValueError):
    """A text is no stream cut."""


def encode_cut_text(name: str, cut: Mapping[int, int]) -> str:
    """Return the text of a cut (segment id -> offset) of the stream ``scope/stream``."""
    lists = (map(segment_number, cut), map(segment_epoch, cut), cut.values())
    parts = [VERSION, name, *(",".join(map(str, each)) for each in lists)]
    return base64.b64encode(gzip.compress(":".join(parts).encode(), mtime=0)).decode()


def decode_cut_text(text: str) -> tuple[str, dict[int, int]]:
    """Return the stream's name and the cut of a text. Raises ``StreamCutTextError``."""
    try:
        packed = base64.b64decode(text.strip(), validate=True)
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        plain = inflater.decompress(packed, TEXT_BYTES_MAX)
        if not inflater.eof:
            raise StreamCutTextError("the text is cut off, or too long")
        version, name, *lists = plain.decode().split(":")
        if version != VERSION or len(lists) != 3:
            raise StreamCutTextError(f"version {version!r} of a stream cut is not known")
        numbers, epochs, offsets = ([int(item) for item in each.split(",")] for each in lists)
        return name, {
            segment_id(number, epoch): offset
            for number, epoch, offset in zip(numbers, epochs, offsets, strict=True)
        }
    except StreamCutTextError:
        raise
    except (binascii.Error, zlib.error, ValueError) as error:
        # What the decoders say of bytes is of no help to who typed a text.
        raise StreamCutTextError("it is not a stream cut as clients print it") from error
