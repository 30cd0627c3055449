from typing_extensions import Buffer

HARDWARE: bool
"""Whether ``crc32c`` uses the processor's CRC instruction."""

def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC32C of ``data``, going on from ``value``, the sum of what came before it."""

def crc32c_portable(data: Buffer, value: int = 0) -> int:
    """Like ``crc32c``, without the processor's help: what runs where it cannot help."""
