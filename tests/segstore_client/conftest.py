"""Runs the client as its users do: on trio and on asyncio, beside servers in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio

from support.event_loops import BACKENDS, RunClient


@pytest.fixture(params=BACKENDS)
def run_client(request: pytest.FixtureRequest) -> RunClient:
    """Return a function that runs an async function of the client in a thread, on its own event
    loop, and returns the result."""

    async def run(main: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        client = partial(anyio.run, main, *arguments, backend=request.param)
        return await trio.to_thread.run_sync(client)

    return run
