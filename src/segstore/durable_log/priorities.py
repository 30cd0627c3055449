"""Which operations writers' delays are for.

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
    """The higher one passes where the lower one waits."""

    USER = 0
    """Waits for the delay, and stops at the bounds."""
    SYSTEM = 1
    """Of a segment that the cluster needs to go on: has a reserve beyond the bounds, no delay."""
    RELIEF = 2
    """Takes no memory, and may free some: never waits."""


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
    """The priority of an operation that was not accepted yet."""
    if type(operation) in _RELIEF or is_own_record(operation):
        return Priority.RELIEF
    if operation.name.startswith(SYSTEM_PREFIX):
        return Priority.SYSTEM
    return Priority.USER


def is_own_record(operation: Operation) -> bool:
    """Whether the container tells itself where an attribute index is, which lets attributes go.

    That changes nothing for any other operation on the segment, so it need not keep its place.
    """
    return type(operation) is UpdateAttributesOperation and operation.segment_id >= 0
