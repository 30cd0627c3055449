"""The requests of operations on a reader group to the client that runs them.

Owns: one class for each kind of request, besides the attempts at the group's log. A client that
blocks and an async one fulfil them in their own ways, and share the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pravega_wire.sessions.segment_log import Attempt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Requests the result of a call that blocks, of the controller mostly."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Requests to do nothing for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Requests to tell the program the positions that a checkpoint is about to get."""

    checkpoint: str
    positions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Requests the next piece of a segment, or None if none comes in so many seconds."""

    seconds: float


Request: TypeAlias = Attempt | Call | Pause | Tell | Wait
Steps: TypeAlias = Generator[Request, Any, T]


def call(function: Callable[[], T]) -> Steps[T]:
    """Request the result of a call that blocks, and return it."""
    result: T = yield Call(function)
    return result
