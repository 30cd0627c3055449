"""Repeats a change that conflicts with one of another controller: it reads the records again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from pravega_controller.errors import (
    OutcomeUnknownError,
    UncertainConflictError,
    VersionConflictError,
)

CONFLICTS_MAX = 20
"""Maximum number of attempts of a change before its caller gets the conflict."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Target:
    """The id of the object that a request deletes: of the object that it found first under the
    name.

    An attempt may be repeated. Meanwhile another controller may have finished the deletion, and a
    client may have created a new object of this name, which the request must not delete.
    """

    identity: str = ""
    """Empty until an object is found."""
    is_begun: bool = False
    """True once the deletion is recorded. If the object is not found after that, it is deleted."""

    def includes(self, identity: str) -> bool:
        """Return whether the request deletes the object with this id; remember the first id."""
        self.identity = self.identity or identity
        return self.identity == identity


async def until_unchanged(act: Callable[[], Awaitable[T]]) -> T:
    """Call ``act``, which reads, decides and writes, until no other controller interferes.

    Raises ``VersionConflictError`` after ``CONFLICTS_MAX`` attempts. Raises ``OutcomeUnknownError``
    if a write may have been made and overwritten: a second decision could make the change twice, or
    refuse a change that was made.
    """
    for _ in range(CONFLICTS_MAX):
        try:
            return await act()
        except UncertainConflictError as error:
            raise OutcomeUnknownError(f"it is unknown whether this was done: {error}") from error
        except VersionConflictError as error:
            log.info("reading again", reason=str(error))
    return await act()
