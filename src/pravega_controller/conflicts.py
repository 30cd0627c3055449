"""Repeats a change after a conflict with another controller, on the records as they are now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from pravega_controller.errors import VersionConflictError

CONFLICTS_MAX = 20
"""Maximum number of attempts of a change before its caller gets the conflict."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Target:
    """The thing that a request is to delete, by its id: the one that the request found first.

    A deletion that is repeated finds a thing by its name. Another controller may have finished the
    deletion, and a client may have made another thing of this name, which the request is not about.
    """

    identity: str = ""
    """Empty until a thing is found."""
    is_begun: bool = False
    """True once the deletion is on record: the thing is gone if it is not found after that."""

    def includes(self, identity: str) -> bool:
        """Return whether the request is about the thing with this id; the first one found is it."""
        self.identity = self.identity or identity
        return self.identity == identity


async def until_unchanged(act: Callable[[], Awaitable[T]]) -> T:
    """Call ``act``, which reads, decides and writes, until no other controller interferes.

    Raises ``VersionConflictError`` if that happens time and again.
    """
    for _ in range(CONFLICTS_MAX):
        try:
            return await act()
        except VersionConflictError as error:
            log.info("reading again", reason=str(error))
    return await act()
