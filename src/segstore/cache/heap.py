"""A cache of byte arrays on the Python heap.

Owns: one ``bytearray`` per entry, by address.

Invariants: those of ``CacheStorage``; addresses are given once.
"""

from __future__ import annotations

import itertools

from segstore.tiers.api import Buffer


class HeapCache:
    """A ``CacheStorage`` that leaves allocation to the Python heap."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._entries: dict[int, bytearray] = {}
        self._addresses = itertools.count(1)

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def insert(self, data: Buffer) -> int:
        address = next(self._addresses)
        self._entries[address] = bytearray(data)
        self._used_bytes += len(data)
        return address

    def append(self, address: int, data: Buffer) -> int:
        self._entries[address] += data
        self._used_bytes += len(data)
        return address

    def get(self, address: int, position: int, length: int) -> bytes:
        return bytes(memoryview(self._entries[address])[position : position + length])

    def delete(self, address: int) -> None:
        self._used_bytes -= len(self._entries.pop(address))
