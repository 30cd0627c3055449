"""A controller's process starts and stops in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from pravega_controller import server
from pravega_controller.config import ControllerConfig


async def test_a_start_that_is_cancelled_when_the_controller_is_just_open_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with trio.CancelScope() as scope:

        @asynccontextmanager
        async def opening(*_: object) -> AsyncIterator[None]:
            scope.cancel()
            yield

        monkeypatch.setattr(server, "open_controller", opening)
        config = ControllerConfig(
            host="127.0.0.1", port=0, segment_stores=(("127.0.0.1", 1),), container_count=1
        )
        await server.serve(config)
    assert scope.cancelled_caught
