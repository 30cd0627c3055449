"""A controller process: a controller and its gRPC server, and the order in which they stop.

Owns: starting and stopping.

Invariants:
1. Calls are accepted only when the metadata is readable and every unfinished workflow is known.
2. Shutdown goes from the inside out: calls drain first, then workflows stop where they are (their
   records bring them back), then connections close.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import structlog
import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment, StartupError, open_controller
from pravega_controller.service import ControllerServer, ListenError

__all__ = ["Environment", "ListenError", "StartupError", "serve"]

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=BaseException)


async def serve(
    config: ControllerConfig,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    environment: Environment | None = None,
) -> None:
    """Serve until cancelled; then calls under way may finish for ``config.drain_seconds``.

    ``task_status.started`` gets the listening host and port. Raises ``ListenError`` when the port
    cannot be opened, and ``StartupError`` when no segment store answers in time.
    """
    server = ControllerServer(
        config.host,
        config.port,
        published_address=config.published_address,
    )
    port = server.listen()
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            known = replace(config, port=port)
            await nursery.start(_run, known, server, stop, environment or Environment())
            try:
                task_status.started((config.host, port))
                log.info("controller serves", host=config.host, port=port)
                await trio.sleep_forever()
            finally:
                stop.set()
    except BaseExceptionGroup as group:
        if (error := _first(group, StartupError)) is not None:
            raise error from error.__cause__
        raise


async def _run(
    config: ControllerConfig,
    server: ControllerServer,
    stop: trio.Event,
    environment: Environment,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run the controller. Once it serves, only ``stop`` ends it, so that calls can drain."""
    with trio.CancelScope() as scope:
        async with open_controller(config, environment) as controller:
            # Otherwise a task that waits for the start could not be cancelled any more.
            await trio.lowlevel.checkpoint_if_cancelled()
            async with trio.open_nursery() as calls:
                server.start(controller, calls)
                scope.shield = True
                task_status.started()
                await stop.wait()
                await server.stop(calls, drain_seconds=config.drain_seconds)


def _first(group: BaseExceptionGroup[BaseException], kind: type[E]) -> E | None:
    """Return the first error of a kind in a group, however deep."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            if (found := _first(error, kind)) is not None:
                return found
        elif isinstance(error, kind):
            return error
    return None
