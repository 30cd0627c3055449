"""Calls that block, made from a program that does not.

Owns: ``call_blocking``, and ``repeat_calls``, which tries again while servers are away.

The controller is called by gRPC's blocking library, in threads of AnyIO. These calls are rare: a
writer makes one for each segment, and one at each scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import RETRIED_ERRORS
from segstore_client.errors import gave_up

T = TypeVar("T")


async def call_blocking(call: Callable[[], T]) -> T:
    """Return the result of a call that blocks. When this is cancelled, the call's end is not
    waited for."""
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)


async def wait_to_repeat(patience: Patience, error: Exception, what: str) -> None:
    """Sleep before another attempt. Raises the error of a client that gives up, with ``what`` it
    could not do, when the time is over."""
    delay = patience.next_delay()
    if delay is None:
        raise gave_up(f"{what} for {patience.seconds:g} s", error) from error
    await anyio.sleep(delay)


async def repeat_calls(call: Callable[[], T], patience: Patience, what: str) -> T:
    """Return the result of a call that blocks, which is repeated while servers are away."""
    while True:
        try:
            return await call_blocking(call)
        except RETRIED_ERRORS as error:
            await wait_to_repeat(patience, error, what)
