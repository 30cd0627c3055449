"""Assembles a controller: everything but its gRPC server.

Owns: the connections between the parts, the preparations before the first request, and resuming
the work that an earlier run left unfinished. The parts start in this order, and end in the reverse:

    connections to segment stores  >  background workflows  >  requests
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import structlog
import trio

from pravega_cluster.following import OpenSession
from pravega_controller.background.background import Background
from pravega_controller.background.late_segments import LateSegments
from pravega_controller.background.members import MemberRecord, Members
from pravega_controller.background.rounds import repeat
from pravega_controller.clocks import SteadyClock
from pravega_controller.config import ConfigurationError, ControllerConfig
from pravega_controller.errors import AlreadyExistsError, ControllerError, StoreUnavailableError
from pravega_controller.groups.reader_groups import ReaderGroupOperations
from pravega_controller.metadata.intents import Intents
from pravega_controller.metadata.records import IntentRecord, Rolling
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_outcomes import OutcomeArchive
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.retention.retention import Retention, RetentionRegistry
from pravega_controller.scaling.autoscaling import AutoScaling
from pravega_controller.scaling.request_events import RequestEvents
from pravega_controller.scopes.scopes import ScopeOperations
from pravega_controller.store_client.placement import MapPlacement, Placement, StaticPlacement
from pravega_controller.store_client.segment_client import SegmentClient, open_segment_client
from pravega_controller.store_client.table_client import TableClient
from pravega_controller.streams.cut_checks import CutChecks
from pravega_controller.streams.old_epochs import OldEpochs, OldEpochsRegistry
from pravega_controller.streams.operations import StreamOperations
from pravega_controller.streams.tag_index import TagIndex
from pravega_controller.streams.workflows import StreamWorkflows, TransactionSteps
from pravega_controller.streams.workflows import assemble_workflows as assemble_stream_workflows
from pravega_controller.tables.key_value_tables import INTENT_KIND as TABLE_INTENT_KIND
from pravega_controller.tables.key_value_tables import KeyValueTableOperations
from pravega_controller.transactions.operations import TransactionOperations
from pravega_controller.transactions.workflows import TransactionWorkflows
from pravega_controller.transactions.workflows import (
    assemble_workflows as assemble_transaction_workflows,
)
from pravega_controller.watermarks.watermarks import Watermarks
from pravega_security.delegation_tokens import TokenMinter
from pravega_security.tls import CertificateError, client_context
from pravega_security.tls_streams import OpenStream, open_tls_with
from pravega_wire import names

SWEEP_SECONDS = 60.0
"""Interval, in seconds, of searches for work that controllers recorded after they were taken for
dead."""
ROUND_PAUSE_SECONDS = 1.0
"""Pause, in seconds, before the first round of retention and between two rounds."""

log = structlog.get_logger(__name__)


class StartupError(ControllerError):
    """The controller cannot start; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The time, randomness and network that a controller uses."""

    now_ms: Callable[[], int] = field(default_factory=lambda: SteadyClock().now_ms)
    """Returns the time for records, in milliseconds since 1970; it neither jumps nor goes back."""
    random: Random = field(default_factory=Random)
    open_stream: OpenStream = trio.open_tcp_stream
    open_session: OpenSession | None = None
    """Opens a session with ZooKeeper; None to connect to the servers of the configuration."""
    tokens: TokenMinter | None = None
    """Makes delegation tokens; None while authorization is off."""


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
    tokens: TokenMinter | None = None
    """Makes delegation tokens; None while authorization is off."""


@asynccontextmanager
async def open_controller(
    config: ControllerConfig, environment: Environment
) -> AsyncIterator[Controller]:
    """Open a controller that is ready for requests, for as long as the ``async with`` block lasts.

    While ZooKeeper is away, a controller of a cluster continues with the last map that it has read.

    Leaving the block stops background workflows at any step. The next start resumes them from their
    records.
    Raises ``StartupError`` when no segment store answers in time, and ``ConfigurationError`` when
    the CA of the stores cannot be used.
    """
    placement = _choose_placement(config)
    async with (
        open_segment_client(
            placement,
            open_stream=_choose_opener(config, environment.open_stream),
            random=environment.random,
            reply_seconds_max=config.reply_seconds_max,
            retry_seconds_max=config.retry_seconds_max,
            token=None if environment.tokens is None else environment.tokens.mint_master,
        ) as segments,
        trio.open_nursery() as workflows,
    ):
        background = Background(workflows, random=environment.random)
        controller = _assemble(config, placement, segments, background, environment)
        controller = replace(controller, tokens=environment.tokens)
        serves = trio.Event()
        if isinstance(placement, MapPlacement):
            from pravega_controller.background.cluster_membership import run_membership

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


def _choose_opener(config: ControllerConfig, open_stream: OpenStream) -> OpenStream:
    """Return a function that connects to segment stores, by TLS if they speak it."""
    if not config.store_tls:
        return open_stream
    try:
        return open_tls_with(client_context(config.store_ca, check_hostname=True), open_stream)
    except CertificateError as error:
        raise ConfigurationError(str(error)) from error


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
    table_client = TableClient(segments, random=random)

    def adopt_transactions() -> None:
        transaction_workflows.adoption.start_adopting_all()

    members, intents = _join_later(config, table_client, background, random, adopt_transactions)
    store = MetadataStore(table_client, intents, random=random)
    late = LateSegments(store)
    tags = TagIndex(store, late)
    workflows = assemble_stream_workflows(
        store,
        segments,
        tags,
        members,
        late,
        _steps_of(lambda: transaction_workflows),
        now_ms=now_ms,
        finish_later=finish_later,
        register_truncation=OldEpochsRegistry(table_client).register,
    )
    watermarks = _make_watermarks(store, segments, members, random)
    open_transactions = TransactionStore(table_client, random=random)
    old_epochs = _make_old_epochs(config, store, workflows, open_transactions, members, now_ms)
    archive = OutcomeArchive(table_client)
    transaction_workflows = assemble_transaction_workflows(
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
    transactions = TransactionOperations(
        store, segments, open_transactions, archive, transaction_workflows, now_ms=now_ms
    )
    cuts = CutChecks(segments)
    groups = _make_groups(store, workflows, cuts, segments, random, finish_later)
    tables = KeyValueTableOperations(store, late, now_ms=now_ms, finish_later=finish_later)
    scopes = ScopeOperations(store, workflows, groups, tables, late, finish_later=finish_later)
    _register_finishers(background, workflows, groups, tables, scopes, late)
    retention = RetentionRegistry(table_client, now_ms=now_ms)
    return Controller(
        store,
        segments,
        scopes,
        StreamOperations(store, cuts, workflows, tags, retention.register),
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


def _make_groups(
    store: MetadataStore,
    workflows: StreamWorkflows,
    cuts: CutChecks,
    segments: SegmentClient,
    random: Random,
    finish_later: Callable[[IntentRecord], None],
) -> ReaderGroupOperations:
    return ReaderGroupOperations(
        store, workflows, cuts, segments, random=random, finish_later=finish_later
    )


def _steps_of(workflows: Callable[[], TransactionWorkflows]) -> TransactionSteps:
    """Return the steps that stream workflows take from transaction workflows.

    They are looked up when they run: transaction workflows need stream workflows to be built first.
    """

    async def end_all(stream: Stream) -> Stream:
        return await workflows().stream_ends.end_all(stream)

    async def forget_all(stream: Stream) -> None:
        await workflows().stream_ends.forget_all(stream)

    async def finish_roll(stream: Stream, rolling: Rolling) -> Stream:
        return await workflows().rolls.finish(stream, rolling)

    return TransactionSteps(end_all, forget_all, finish_roll)


def _register_finishers(
    background: Background,
    streams: StreamWorkflows,
    groups: ReaderGroupOperations,
    tables: KeyValueTableOperations,
    scopes: ScopeOperations,
    late: LateSegments,
) -> None:
    """Register the function that finishes the workflows of each kind of intent."""
    background.register("stream", streams.work.finish)
    background.register("group", groups.finish)
    background.register(TABLE_INTENT_KIND, tables.finish)
    background.register("scope", scopes.finish)
    late.register_in(background)


def _make_watermarks(
    store: MetadataStore, segments: SegmentClient, members: Members, random: Random
) -> Watermarks:
    writer_id = uuid.UUID(int=random.getrandbits(128), version=4).bytes
    return Watermarks(store, segments, owns=members.owns, writer_id=writer_id)


def _make_old_epochs(
    config: ControllerConfig,
    store: MetadataStore,
    workflows: StreamWorkflows,
    transactions: TransactionStore,
    members: Members,
    now_ms: Callable[[], int],
) -> OldEpochs:
    """Return the part that drops the records of epochs before the heads of streams."""
    seconds = config.history_seconds_min
    return OldEpochs(
        store, workflows.work, transactions, owns=members.owns, now_ms=now_ms, seconds_min=seconds
    )


def _join_later(
    config: ControllerConfig,
    tables: TableClient,
    background: Background,
    random: Random,
    on_death: Callable[[], None],
) -> tuple[Members, Intents]:
    """Return this controller as a member that has not joined yet, and its intents.

    ``on_death`` is called when another controller is found dead.
    """
    instance_id = f"{random.getrandbits(64):016x}"

    async def take_over(instance_id: str) -> None:
        async def is_dead(owner: str) -> bool:
            return owner == instance_id or await members.is_dead(owner)

        for intent in await intents.take_over(is_dead):
            background.finish_later(intent)
        on_death()

    intents = Intents(tables, instance_id, is_trusted=lambda: members.is_trusted)
    address = f"{socket.gethostname()}:{config.port}" if config.port else instance_id
    place, host = config.place or address, config.published_address or config.host
    record = MemberRecord(host, config.port, place, beat=0)
    members = Members(
        tables,
        instance_id,
        record,
        # An earlier controller that was started without a place's name may have used this port.
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
        owns=controller.members.owns,
        now_ms=controller.now_ms,
        period_seconds=config.retention_period_seconds,
    )
    nursery.start_soon(repeat, "retention", ROUND_PAUSE_SECONDS, retention.run_period)


async def _sweep(controller: Controller) -> None:
    """Take over work that a controller recorded after it was taken for dead."""
    for intent in controller.store.intents.left_over():
        controller.finish_later(intent)
    if controller.members.owns("what the dead left"):
        await controller.transaction_workflows.adoption.adopt_all()
        await _take_over_intents(controller)


async def _take_over_intents(controller: Controller) -> None:
    for intent in await controller.store.intents.take_over(controller.members.is_dead):
        controller.finish_later(intent)


async def _prepare(config: ControllerConfig, controller: Controller) -> None:
    """Wait for the segment stores, create the system scope, and resume unfinished work."""
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
    await controller.transaction_workflows.adoption.adopt_all()
    await _take_over_intents(controller)
