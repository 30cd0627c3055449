"""A transaction's id in the controller's messages, and the value of a missing time.

Owns: the two forms of an id. Only the controller knows the meaning of an id's bits.
"""

from __future__ import annotations

NO_TIME = -(2**63)
"""The value that a writer sends in place of a time when it commits without one."""

_UINT64 = 2**64 - 1


def id_of_halves(high: int, low: int) -> bytes:
    """Return the 16 bytes of the id that messages carry as two signed 64-bit numbers."""
    return (high & _UINT64).to_bytes(8, "big") + (low & _UINT64).to_bytes(8, "big")


def halves_of_id(identifier: bytes) -> tuple[int, int]:
    """Return the two signed 64-bit numbers by which messages carry an id."""
    high = int.from_bytes(identifier[:8], "big", signed=True)
    return high, int.from_bytes(identifier[8:], "big", signed=True)
