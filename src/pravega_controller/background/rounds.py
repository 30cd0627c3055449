"""Repeats work in rounds for as long as a controller lives.

Owns: the start of each round. A failure of one round does not end the later ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from pravega_controller.errors import ControllerError

PAUSE_SECONDS_MAX = 60.0

log = structlog.get_logger(__name__)


async def repeat(what: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Call ``work`` again and again, ``seconds`` after the last call ended, until cancelled.

    The pause grows with every failure in a row.
    """
    pause = seconds
    while True:
        await trio.sleep(pause)
        try:
            await work()
        except ControllerError as error:
            log.warning("round ended early", what=what, reason=str(error))
        except Exception:
            log.exception("round failed", what=what)
        else:
            pause = seconds
            continue
        pause = max(seconds, min(2 * pause, PAUSE_SECONDS_MAX))
