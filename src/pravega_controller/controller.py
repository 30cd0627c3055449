"""Assembles a controller: everything but its gRPC server.

Owns: the connections between the parts, the preparations before the first request, and resuming
the work that an earlier run left unfinished.

    connections to segment stores  >  background workflows  >  requests
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

import structlog
import trio

from pravega_cluster.following import OpenSession
from pravega_controller.autoscaling import AutoScaling
from pravega_controller.background import Background
from pravega_controller.config import ControllerConfig
from pravega_controller.errors import AlreadyExistsError, ControllerError, StoreUnavailableError
from pravega_controller.intents import Intents
from pravega_controller.key_value_tables import INTENT_KIND as TABLE_INTENT_KIND
from pravega_controller.key_value_tables import KeyValueTableOperations
from pravega_controller.late_segments import LateSegments
from pravega_controller.members import MemberRecord, Members
from pravega_controller.old_epochs import OldEpochs, OldEpochsRegistry
from pravega_controller.placement import MapPlacement, Placement, StaticPlacement
from pravega_controller.reader_groups import ReaderGroupOperations
from pravega_controller.records import IntentRecord
from pravega_controller.request_events import RequestEvents
from pravega_controller.retention import Retention, RetentionRegistry
from pravega_controller.rounds import repeat
from pravega_controller.scopes import ScopeOperations
from pravega_controller.segment_client import SegmentClient, open_segment_client
from pravega_controller.store import MetadataStore
from pravega_controller.store_connection import OpenStream
from pravega_controller.stream_operations import StreamOperations
from pravega_controller.stream_workflows import StreamWorkflows
from pravega_controller.table_client import TableClient
from pravega_controller.tag_index import TagIndex
from pravega_controller.transaction_operations import TransactionOperations
from pravega_controller.transaction_outcomes import OutcomeArchive
from pravega_controller.transaction_store import TransactionStore
from pravega_controller.transaction_workflows import TransactionWorkflows
from pravega_controller.watermarks import Watermarks
from pravega_wire import names

SWEEP_SECONDS = 60.0
"""Interval, in seconds, of searches for late writes of controllers that were taken for dead."""
ROUND_PAUSE_SECONDS = 1.0
"""Pause, in seconds, before the first round of retention and between two rounds."""

log = structlog.get_logger(__name__)


class StartupError(ControllerError):
    """The controller cannot start; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The time, randomness and network that a controller uses."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970."""
    random: Random = field(default_factory=Random)
    open_stream: OpenStream = trio.open_tcp_stream
    open_session: OpenSession | None = None
    """Opens a session with ZooKeeper; None for a real one, as the configuration says."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The parts of a controller that answer requests."""

    store: MetadataStore
    segments: SegmentClient
    scopes: ScopeOperations
    streams: StreamOperations
    groups: ReaderGroupOperations
    tables: KeyValueTableOperations
    transactions: TransactionOperations
    transaction_workflows: TransactionWorkflows
    late_segments: LateSegments
    placement: Placement
    watermarks: Watermarks
    old_epochs: OldEpochs
    members: Members
    now_ms: Callable[[], int]
    finish_later: Callable[[IntentRecord], None]


@asynccontextmanager
async def open_controller(
    config: ControllerConfig, environment: Environment
) -> AsyncIterator[Controller]:
    """Open a controller that is ready for requests, for as long as the ``async with`` block lasts.

    While ZooKeeper is away, a controller of a cluster continues with the last map that it has read.

    Leaving the block stops background workflows at any step. The next start resumes them from their
    records.
    Raises ``StartupError`` when no segment store answers in time.
    """
    placement = _choose_placement(config)
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
        controller = _assemble(config, placement, segments, background, environment)
        serves = trio.Event()
        if isinstance(placement, MapPlacement):
            from pravega_controller.cluster_membership import run_membership

            # A controller has to assign the containers to stores before it can read metadata.
            workflows.start_soon(
                partial(
                    run_membership,
                    config,
                    placement,
                    segments,
                    serves=serves,
                    open_session=environment.open_session,
                    random=environment.random,
                )
            )
        await _prepare(config, controller)
        serves.set()
        workflows.start_soon(controller.members.run)
        workflows.start_soon(controller.store.intents.remove_idle)
        workflows.start_soon(controller.transaction_workflows.run)
        workflows.start_soon(controller.late_segments.run)
        sweep = partial(_sweep, controller)
        workflows.start_soon(repeat, "what the dead left", SWEEP_SECONDS, sweep)
        if config.request_poll_seconds > 0:
            _start_scaling(config, controller, workflows)
        if config.retention_period_seconds > 0:
            _start_retention(config, controller, workflows)
        if config.watermark_period_seconds > 0:
            seconds, run_round = config.watermark_period_seconds, controller.watermarks.run_round
            workflows.start_soon(repeat, "watermarks", seconds, run_round)
        if config.history_period_seconds > 0:
            seconds, run_round = config.history_period_seconds, controller.old_epochs.run_round
            workflows.start_soon(repeat, "old epochs", seconds, run_round)
        yield controller
        workflows.cancel_scope.cancel()


def _choose_placement(config: ControllerConfig) -> StaticPlacement | MapPlacement:
    if config.zookeeper is not None:
        return MapPlacement(config.container_count)
    return StaticPlacement(config.segment_stores, config.container_count, config.container_stores)


def _assemble(
    config: ControllerConfig,
    placement: Placement,
    segments: SegmentClient,
    background: Background,
    environment: Environment,
) -> Controller:
    random, now_ms, finish_later = environment.random, environment.now_ms, background.finish_later
    table_client = TableClient(segments)
    deaths: list[Callable[[], None]] = []
    members, intents = _join_later(config, table_client, background, random, deaths)
    store = MetadataStore(table_client, intents, random=random)
    late = LateSegments(store)
    tags = TagIndex(store, late)
    workflows = StreamWorkflows(
        store,
        segments,
        tags,
        members,
        late,
        now_ms=now_ms,
        finish_later=finish_later,
        register_truncation=OldEpochsRegistry(table_client).register,
    )
    writer_id = uuid.UUID(int=random.getrandbits(128), version=4).bytes
    watermarks = Watermarks(store, segments, owns=members.owns, writer_id=writer_id)
    open_transactions = TransactionStore(table_client, random=random)
    old_epochs = _make_old_epochs(config, store, workflows, open_transactions, members, now_ms)
    archive = OutcomeArchive(table_client)
    transaction_workflows = TransactionWorkflows(
        store,
        segments,
        workflows,
        open_transactions,
        archive,
        background,
        watermarks,
        members,
        late,
        now_ms=now_ms,
    )
    deaths.append(transaction_workflows.take_over_soon)
    transactions = TransactionOperations(
        store, segments, open_transactions, archive, transaction_workflows, now_ms=now_ms
    )
    groups = ReaderGroupOperations(store, workflows, random=random, finish_later=finish_later)
    tables = KeyValueTableOperations(store, late, now_ms=now_ms, finish_later=finish_later)
    scopes = ScopeOperations(store, workflows, groups, tables, late, finish_later=finish_later)
    _register_finishers(background, workflows, groups, tables, scopes, late)
    registry = RetentionRegistry(table_client, now_ms=now_ms)
    streams = StreamOperations(store, segments, workflows, tags, registry.register)
    return Controller(
        store,
        segments,
        scopes,
        streams,
        groups,
        tables,
        transactions,
        transaction_workflows,
        late,
        placement,
        watermarks,
        old_epochs,
        members,
        now_ms,
        finish_later,
    )


def _register_finishers(
    background: Background,
    streams: StreamWorkflows,
    groups: ReaderGroupOperations,
    tables: KeyValueTableOperations,
    scopes: ScopeOperations,
    late: LateSegments,
) -> None:
    """Register what finishes each kind of intent."""
    background.register("stream", streams.finish)
    background.register("group", groups.finish)
    background.register(TABLE_INTENT_KIND, tables.finish)
    background.register("scope", scopes.finish)
    late.register_in(background)


def _make_old_epochs(
    config: ControllerConfig,
    store: MetadataStore,
    workflows: StreamWorkflows,
    transactions: TransactionStore,
    members: Members,
    now_ms: Callable[[], int],
) -> OldEpochs:
    """Return what drops the records of epochs that the head of their stream has left."""
    seconds = config.history_seconds_min
    return OldEpochs(
        store, workflows, transactions, owns=members.owns, now_ms=now_ms, seconds_min=seconds
    )


def _join_later(
    config: ControllerConfig,
    tables: TableClient,
    background: Background,
    random: Random,
    deaths: Sequence[Callable[[], None]],
) -> tuple[Members, Intents]:
    """Return this controller as a member that has not joined yet, and its intents.

    The functions in ``deaths`` are called when another controller is found dead.
    """
    instance_id = f"{random.getrandbits(64):016x}"

    async def take_over(instance_id: str) -> None:
        async def is_dead(owner: str) -> bool:
            return owner == instance_id or await members.is_dead(owner)

        for intent in await intents.take_over(is_dead):
            background.finish_later(intent)
        for note_death in deaths:
            note_death()

    intents = Intents(tables, instance_id, is_trusted=lambda: members.is_trusted)
    address = f"{socket.gethostname()}:{config.port}" if config.port else instance_id
    place, host = config.place or address, config.published_address or config.host
    record = MemberRecord(host, config.port, place, beat=0)
    members = Members(
        tables,
        instance_id,
        record,
        # One without a name of its place may have run at this port.
        other_places=(address,),
        beat_seconds=config.heartbeat_seconds,
        take_over=take_over,
        write_again=intents.write_again,
    )
    return members, intents


def _start_scaling(config: ControllerConfig, controller: Controller, nursery: trio.Nursery) -> None:
    """Start the tasks that scale streams by their load."""
    store, streams, segments = controller.store, controller.streams, controller.segments
    scaling = AutoScaling(
        store,
        streams,
        segments,
        now_ms=controller.now_ms,
        finish_later=controller.finish_later,
        event_seconds_max=config.scale_event_seconds_max,
        idle_seconds=config.idle_segment_seconds,
    )
    events = RequestEvents(store, streams, segments, scaling)

    async def poll() -> None:
        if controller.members.owns("requests for scaling"):
            await events.poll()

    nursery.start_soon(repeat, "requests for scaling", config.request_poll_seconds, poll)
    nursery.start_soon(
        repeat, "marks of idle segments", config.idle_sweep_seconds, scaling.forget_old_marks
    )


def _start_retention(
    config: ControllerConfig, controller: Controller, nursery: trio.Nursery
) -> None:
    """Start the task that truncates streams by their retention policies."""
    retention = Retention(
        controller.store,
        controller.streams,
        controller.segments,
        RetentionRegistry(controller.store.tables, now_ms=controller.now_ms),
        owns=controller.members.owns,
        now_ms=controller.now_ms,
        period_seconds=config.retention_period_seconds,
    )
    nursery.start_soon(repeat, "retention", ROUND_PAUSE_SECONDS, retention.run_period)


async def _sweep(controller: Controller) -> None:
    """Take over work that a dead controller began after others had taken over its earlier work."""
    for intent in controller.store.intents.left_over():
        controller.finish_later(intent)
    if controller.members.owns("what the dead left"):
        await controller.transaction_workflows.load()
        await _take_over_intents(controller)


async def _take_over_intents(controller: Controller) -> None:
    for intent in await controller.store.intents.take_over(controller.members.is_dead):
        controller.finish_later(intent)


async def _prepare(config: ControllerConfig, controller: Controller) -> None:
    """Wait for the segment stores, make the system scope, and resume unfinished work."""
    try:
        await controller.store.open(wait_seconds_max=config.startup_seconds_max)
    except StoreUnavailableError as error:
        raise StartupError(f"no metadata can be read from the segment stores: {error}") from error
    await controller.members.join()
    try:
        await controller.scopes.create(names.INTERNAL_SCOPE)
    except AlreadyExistsError:
        log.debug("the system scope exists")
    # This comes before any workflow, because sealing a stream ends the transactions in memory.
    await controller.transaction_workflows.load()
    await _take_over_intents(controller)
