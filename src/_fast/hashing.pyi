from typing_extensions import Buffer

def murmur3_128(data: Buffer, seed: int = 0) -> bytes:
    """Return the MurmurHash3 x64 128 of ``data``: 16 bytes, both halves little endian.

    The seed starts both halves; a negative one is sign-extended.
    """

def place_text(text: str, seed: int) -> float:
    """Return the place in [0, 1) of a text, by the MurmurHash3 of its UTF-16 units: the upper 52
    bits of the first half. Units without a partner count as they are."""

def consistent_hash(value: int, bucket_count: int) -> int:
    """Return the bucket, of ``bucket_count``, of a 64-bit hash; a new bucket moves few values."""
