"""Tells which operations are delayed when writers are slowed down.

Owns: the three priorities.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from pravega_wire.names import SYSTEM_PREFIX
from segstore.model.operations import (
    ActivateOperation,
    BarrierOperation,
    CheckpointOperation,
    DeleteOperation,
    EvictOperation,
    Operation,
    RefusedOperation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)


class Priority(IntEnum):
    """A higher priority passes where a lower one waits."""

    USER = 0
    """An operation that waits for the delay, and stops at the bounds."""
    SYSTEM = 1
    """An operation on a system segment: it has room beyond the bounds, and no delay."""
    RELIEF = 2
    """An operation that uses no memory and may free some: it never waits."""


_RELIEF: Final = frozenset(
    {
        ActivateOperation,
        BarrierOperation,
        CheckpointOperation,
        DeleteOperation,
        EvictOperation,
        RefusedOperation,
        SealOperation,
        TruncateOperation,
    }
)


def priority_of(operation: Operation) -> Priority:
    """Return the priority of an operation that is not accepted yet."""
    if type(operation) in _RELIEF or is_own_record(operation):
        return Priority.RELIEF
    if operation.name.startswith(SYSTEM_PREFIX):
        return Priority.SYSTEM
    return Priority.USER


def is_own_record(operation: Operation) -> bool:
    """Return whether the operation is the container's own record of where an attribute index is.

    It affects no other operation on the segment, so it need not keep its order among them.
    """
    return type(operation) is UpdateAttributesOperation and operation.segment_id >= 0
