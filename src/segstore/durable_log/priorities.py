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
    """The priority of an operation while the container slows writers down."""

    USER = 0
    """A write of a user: it is delayed, and waits when memory is full."""
    SYSTEM = 1
    """A write to a system segment: it is not delayed, and may use some memory beyond the bounds."""
    RELIEF = 2
    """An operation that uses no memory and may free some: it neither is delayed nor waits."""


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
    """Return the priority of an operation that is still in the queue."""
    if type(operation) in _RELIEF or is_own_record(operation):
        return Priority.RELIEF
    if operation.name.startswith(SYSTEM_PREFIX):
        return Priority.SYSTEM
    return Priority.USER


def is_own_record(operation: Operation) -> bool:
    """Return whether the operation is the container's own record of an attribute index's root
    pointer.

    It affects no other operation on the segment, so it may overtake them.
    """
    return type(operation) is UpdateAttributesOperation and operation.segment_id >= 0
