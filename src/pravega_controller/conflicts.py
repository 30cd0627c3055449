"""Repeats a change after a conflict with another controller, on the records as they are now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from pravega_controller.errors import VersionConflictError

CONFLICTS_MAX = 20
"""Maximum number of attempts of a change before its caller gets the conflict."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


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
