"""What to do when another controller was faster: decide again, on what is there now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from pravega_controller.errors import VersionConflictError

CONFLICTS_MAX = 20
"""Maximum number of times a change is decided again before its caller is told of the conflict."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


async def until_unchanged(act: Callable[[], Awaitable[T]]) -> T:
    """Call ``act``, which reads, decides and writes; call it again if another controller wrote in
    between.

    Raises ``VersionConflictError`` if that happens time and again.
    """
    for _ in range(CONFLICTS_MAX):
        try:
            return await act()
        except VersionConflictError as error:
            log.info("reading again", reason=str(error))
    return await act()
