"""What to do when another controller was faster: decide again, on what is there now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from pravega_controller.errors import VersionConflictError

CONFLICTS_MAX = 20
"""How often a change is decided anew before its caller is told."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


async def until_unchanged(act: Callable[[], Awaitable[T]]) -> T:
    """Do something that reads, decides and writes; again if somebody else wrote in between.

    Raises ``VersionConflictError`` if that happens time and again.
    """
    for _ in range(CONFLICTS_MAX):
        try:
            return await act()
        except VersionConflictError as error:
            log.info("reading again", reason=str(error))
    return await act()
