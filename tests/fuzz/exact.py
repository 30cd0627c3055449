"""Buffers that end where their memory ends, so that a sanitizer sees the first byte behind them.

A ``bytes`` object has one more byte than it says, which hides a parser's smallest overrun.
"""

from __future__ import annotations

import ctypes
import weakref

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


def exact(data: bytes) -> memoryview:
    """Return a read-only view of a copy of ``data`` in its own allocation of exactly this
    length."""
    if not data:
        return memoryview(b"")
    address = _libc.malloc(len(data))
    ctypes.memmove(address, data, len(data))
    block = (ctypes.c_ubyte * len(data)).from_address(address)
    weakref.finalize(block, _libc.free, address)
    return memoryview(block).cast("B").toreadonly()
