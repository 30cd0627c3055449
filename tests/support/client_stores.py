"""The client's view of a store, for tests that have no controller.

Owns: the task group of its requests, which ends with the block. Errors leave the block as they are,
not in groups.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from segstore_client import Store
from segstore_client.connections.request_pool import RequestPool


@asynccontextmanager
async def open_pool() -> AsyncIterator[RequestPool]:
    """Open the connections to stores."""
    stack = AsyncExitStack()
    group = await stack.enter_async_context(anyio.create_task_group())
    try:
        yield RequestPool(group)
    finally:
        group.cancel_scope.cancel()
        await stack.aclose()


@asynccontextmanager
async def open_client(controller: Any, *, patience: float = 60.0) -> AsyncIterator[Store]:
    """Open a store whose controller is an object of the test."""
    async with open_pool() as pool:
        yield Store(controller, pool, patience=patience)
