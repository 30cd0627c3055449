"""A controller process: its parts put together, in the order in which they live and die.

Owns: start-up, resuming what an earlier run left unfinished, and stopping.

    connections to segment stores  >  background workflows  >  gRPC calls

Invariants:
1. Calls are taken only when the metadata is readable and every unfinished workflow is known.
2. Stopping goes inside out: calls drain first, then workflows end where they are (their records
   bring them back), then connections close.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import structlog
import trio

from pravega_controller.background import Background
from pravega_controller.config import ControllerConfig
from pravega_controller.errors import AlreadyExistsError, ControllerError, StoreUnavailableError
from pravega_controller.handlers import Controller
from pravega_controller.placement import StaticPlacement
from pravega_controller.reader_groups import ReaderGroupOperations
from pravega_controller.scopes import ScopeOperations
from pravega_controller.segment_client import SegmentClient, open_segment_client
from pravega_controller.service import ControllerServer
from pravega_controller.store import MetadataStore
from pravega_controller.store_connection import OpenStream
from pravega_controller.stream_operations import StreamOperations
from pravega_controller.stream_workflows import StreamWorkflows
from pravega_controller.table_client import TableClient
from pravega_wire import names

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=BaseException)


class StartupError(ControllerError):
    """The controller cannot start; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a controller takes from outside: time, chance and the network."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970."""
    random: Random = field(default_factory=Random)
    open_stream: OpenStream = trio.open_tcp_stream


async def serve(
    config: ControllerConfig,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    environment: Environment | None = None,
) -> None:
    """Serve until cancelled; calls under way may finish for ``config.drain_seconds`` then.

    ``task_status.started`` gets the host and port that are listened on. Raises ``ListenError`` when
    the port cannot be had, and ``StartupError`` when no segment store answers in time.
    """
    server = ControllerServer(config.host, config.port, threads=config.threads)
    port = server.listen()
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_run, config, server, port, stop, environment or Environment())
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
    port: int,
    stop: trio.Event,
    environment: Environment,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """The controller's life. Once it serves, only ``stop`` ends it, so that calls can drain."""
    placement = StaticPlacement(config.segment_stores, config.container_count)
    with trio.CancelScope() as scope:
        async with (
            open_segment_client(
                placement,
                open_stream=environment.open_stream,
                random=environment.random,
                reply_seconds_max=config.reply_seconds_max,
                retry_seconds_max=config.retry_seconds_max,
            ) as segments,
            trio.open_nursery() as workflows,
        ):
            background = Background(workflows, random=environment.random)
            controller = _assemble(config, port, placement, segments, background, environment)
            await _prepare(config, controller, background)
            server.start(controller)
            scope.shield = True
            task_status.started()
            await stop.wait()
            await server.stop(drain_seconds=config.drain_seconds)
            workflows.cancel_scope.cancel()


def _assemble(
    config: ControllerConfig,
    port: int,
    placement: StaticPlacement,
    segments: SegmentClient,
    background: Background,
    environment: Environment,
) -> Controller:
    random, now_ms, finish_later = environment.random, environment.now_ms, background.finish_later
    store = MetadataStore(TableClient(segments), random=random)
    workflows = StreamWorkflows(store, segments, now_ms=now_ms, finish_later=finish_later)
    groups = ReaderGroupOperations(store, workflows, random=random, finish_later=finish_later)
    scopes = ScopeOperations(store, workflows, groups, finish_later=finish_later)
    background.register("stream", workflows.finish)
    background.register("group", groups.finish)
    background.register("scope", scopes.finish)
    return Controller(
        store=store,
        scopes=scopes,
        streams=StreamOperations(store, segments, workflows),
        groups=groups,
        placement=placement,
        published_address=config.published_address,
        listening=(config.host, port),
        now_ms=now_ms,
        finish_later=finish_later,
    )


async def _prepare(
    config: ControllerConfig, controller: Controller, background: Background
) -> None:
    """Wait for the segment stores, make what every controller needs, and take up old work."""
    try:
        await controller.store.open(wait_seconds_max=config.startup_seconds_max)
    except StoreUnavailableError as error:
        raise StartupError(f"no metadata can be read from the segment stores: {error}") from error
    try:
        await controller.scopes.create(names.INTERNAL_SCOPE)
    except AlreadyExistsError:
        log.debug("the system scope exists")
    async for intent in controller.store.intents():
        background.finish_later(intent)


def _first(group: BaseExceptionGroup[BaseException], kind: type[E]) -> E | None:
    """The first error of a kind in a group, however deep."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            if (found := _first(error, kind)) is not None:
                return found
        elif isinstance(error, kind):
            return error
    return None
