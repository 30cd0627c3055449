"""Fixtures: a client of the console of a controller on a real segment store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.server import serve
from segstore.testing.ports import free_ports
from support.http_controllers import HttpClient


async def serve_console(
    segment_store: tuple[str, int], nursery: trio.Nursery, **settings: Any
) -> HttpClient:
    """Serve a controller; return a client of its HTTP port."""
    [port] = free_ports(1)
    config = ControllerConfig(
        port=0,
        http_port=port,
        segment_stores=(segment_store,),
        container_count=4,
        drain_seconds=0.1,
        request_poll_seconds=0.0,
        retention_period_seconds=0.0,
        **settings,
    )
    await nursery.start(partial(serve, config, environment=Environment(random=Random(7))))
    return HttpClient(port)


@pytest.fixture
async def console(
    segment_store: tuple[str, int], nursery: trio.Nursery
) -> AsyncIterator[HttpClient]:
    """A client of a controller's HTTP port; the controller's segment store is a real one."""
    yield await serve_console(segment_store, nursery)
    nursery.cancel_scope.cancel()


@pytest.fixture
async def secure_console(
    segment_store: tuple[str, int], nursery: trio.Nursery, users: dict[str, Any]
) -> AsyncIterator[HttpClient]:
    """The same with users."""
    yield await serve_console(segment_store, nursery, **users)
    nursery.cancel_scope.cancel()
