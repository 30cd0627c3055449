from typing_extensions import Buffer

HARDWARE: bool
"""True if ``crc32c`` uses the processor's CRC instruction."""

def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC32C of ``data``, continued from ``value``, the sum of the bytes before it."""

def crc32c_portable(data: Buffer, value: int = 0) -> int:
    """Return the same as ``crc32c``, computed without the processor's instruction."""
