"""Reader groups: their configuration, their state stream, and their subscriptions to streams.

Owns: the workflows of reader groups. A group's readers coordinate in its stream ``_RG<name>``; the
controller only creates that stream, stores the configuration, and stores which streams keep data
for the group.

A group subscribes to its streams while its retention type is not 0: their retention keeps the data
that it needs.

Invariants:
1. When a group exists, creating it again changes nothing, and returns its id, generation and
   configuration as they were first received.
   Held by ``test_a_reader_group_is_made_once_and_comes_back_as_it_was``.
2. When a client changes the configuration, it must name the present generation, which increases by
   1. Held by ``test_updating_a_group_counts_generations_and_moves_subscriptions``.
3. When a subscriber releases a cut before its last one, the cut is refused.
   Held by ``test_a_subscriber_releases_a_stream_step_by_step``.
4. When a group is deleted while another controller creates it, no stream of the group remains.
   Held by ``test_a_creation_that_others_ended_leaves_nothing``.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from random import Random

import structlog
from msgspec import structs

from pravega_controller.errors import (
    GenerationMismatchError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    OutcomeUnknownError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StepRefusedError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from pravega_controller.groups.configuration_checks import (
    ConfigurationChecks,
    validate_group_configuration,
)
from pravega_controller.groups.group_states import StateReader
from pravega_controller.metadata.conflicts import Target, until_unchanged
from pravega_controller.metadata.group_records import ReaderGroup
from pravega_controller.metadata.locks import KeyedLocks, WorkflowLocks
from pravega_controller.metadata.records import (
    CreateGroup,
    DeleteGroup,
    GroupWorkflow,
    IntentRecord,
    ReaderGroupConfiguration,
    ReaderGroupRecord,
    SubscriberRecord,
    UpdateGroup,
)
from pravega_controller.metadata.scope_records import Scope
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.streams import StreamCut, fixed_configuration
from pravega_controller.store_client.segment_client import SegmentClient, for_each, run_all
from pravega_controller.store_client.table_client import NOT_EXISTS
from pravega_controller.streams.cut_checks import CutChecks
from pravega_controller.streams.workflows import StreamWorkflows
from pravega_wire import names

STATE_STREAM_ROLLOVER_BYTES = 4 * 1024 * 1024
NIL_ID = str(uuid.UUID(int=0))

log = structlog.get_logger(__name__)


class ReaderGroupOperations:
    """Answers requests about reader groups."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamWorkflows,
        cuts: CutChecks,
        segments: SegmentClient,
        *,
        random: Random,
        finish_later: Callable[[IntentRecord], None],
    ) -> None:
        self._store = store
        self._streams = streams
        self._cuts = cuts
        self._checks = ConfigurationChecks(store, cuts)
        self._segments = segments
        self._random = random
        self._locks = WorkflowLocks(finish_later)
        self._subscribing = KeyedLocks()

    async def create(
        self, scope: str, name: str, group_id: str, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        """Return the group of this name; create it if there is none.

        Raises ``InvalidNameError``, ``ScopeNotFoundError``, ``StreamNotFoundError`` when a stream
        to subscribe to does not exist, ``InvalidStreamCutError``, and ``StepRefusedError`` if a
        segment store refuses the group's stream.
        """
        names.validate_user_name(name)
        validate_group_configuration(configuration)
        chosen_id = parse_id(group_id)
        return await until_unchanged(
            partial(self._begin, scope, name, chosen_id, configuration, Target())
        )

    async def _begin(
        self,
        scope: str,
        name: str,
        group_id: str,
        configuration: ReaderGroupConfiguration,
        target: Target,
    ) -> ReaderGroup:
        async with self._locks.hold(_intent(scope, name)):
            intent = _intent(scope, name)
            owners: list[Scope] = []
            found: list[ReaderGroup] = []
            missing: list[tuple[str, str]] = []

            async def find_scope() -> None:
                with suppress(ScopeNotFoundError):
                    owners.append(await self._store.scopes.find_active(scope))

            async def find_group() -> None:
                with suppress(ReaderGroupNotFoundError, ScopeNotFoundError):
                    found.append(await self._store.groups.read(scope, name))

            async def find_missing() -> None:
                missing.extend(await self._checks.find_missing(configuration.subscribed))

            put_intent = partial(self._store.intents.put, intent)
            await run_all(find_scope, find_group, find_missing, put_intent)
            if not owners and not target.is_begun:
                self._store.intents.remove(intent)
                raise ScopeNotFoundError(f"scope {scope} does not exist")
            if found and (finished := await self._do_steps(found[0])) is not None:
                self._store.intents.remove(intent)
                return finished
            if target.is_begun:
                self._store.intents.remove(intent)
                raise OutcomeUnknownError(f"{name} is gone since its creation was begun")
            if missing:
                self._store.intents.remove(intent)
                raise StreamNotFoundError(f"streams to subscribe to do not exist: {missing}")
            try:
                await self._checks.check_cuts(configuration)
            except InvalidStreamCutError:
                self._store.intents.remove(intent)
                raise
            log.info("creating reader group", scope=scope, group=name)
            chosen = group_id
            if group_id == NIL_ID:
                chosen = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
            record = ReaderGroupRecord(chosen, 0, configuration, pending=CreateGroup())
            group = ReaderGroup(owners[0], name, NOT_EXISTS, record)
            group = await self._store.groups.write(group, record)
            target.is_begun = True
            finished = await self._do_steps(group)
            assert finished is not None
            return finished

    async def open_state(self, scope: str, name: str) -> StateReader:
        """Return what reads the state of a group. Raises ``NotFoundError``."""
        stream = await self._store.streams.read(scope, names.reader_group_stream(name))
        return StateReader(self._segments, stream.segment_name(stream.active[0].segment_id))

    async def get(self, scope: str, name: str) -> ReaderGroup:
        """Return a group whose creation is finished. Raises ``ReaderGroupNotFoundError``."""
        group = await self._store.groups.read(scope, name)
        if isinstance(group.record.pending, CreateGroup | DeleteGroup):
            return await until_unchanged(partial(self._get_settled, scope, name))
        return group

    async def _get_settled(self, scope: str, name: str) -> ReaderGroup:
        async with self._locks.hold(_intent(scope, name)):
            return await self._finish_and_read(scope, name)

    async def update(
        self,
        scope: str,
        name: str,
        group_id: str,
        generation: int,
        configuration: ReaderGroupConfiguration,
    ) -> int:
        """Replace a group's configuration, and return the new generation.

        Raises ``ReaderGroupNotFoundError``, ``GenerationMismatchError`` when the id or generation
        is not the group's, ``InvalidRequestError``, and ``StreamNotFoundError`` as for ``create``.
        """
        target = Target()

        async def update() -> int:
            if target.is_begun:
                # Another controller may finish the update, and others may follow.
                await self.finish(scope, name)
                return generation + 1
            return await self._replace(scope, name, group_id, generation, configuration, target)

        return await until_unchanged(update)

    async def _replace(
        self,
        scope: str,
        name: str,
        group_id: str,
        generation: int,
        configuration: ReaderGroupConfiguration,
        target: Target,
    ) -> int:
        async with self._locks.hold(_intent(scope, name)):
            group = await self._finish_and_read(scope, name)
            if (parse_id(group_id), generation) != (group.record.group_id, group.record.generation):
                raise GenerationMismatchError(
                    f"reader group {scope}/{name} has another id or generation"
                )
            validate_group_configuration(configuration)
            if missing := await self._checks.find_missing(configuration.subscribed):
                raise StreamNotFoundError(f"streams to subscribe to do not exist: {missing}")
            await self._checks.check_cuts(configuration)
            group = await self._start(group, UpdateGroup(configuration))
            target.is_begun = True
            finished = await self._do_steps(group)
            assert finished is not None
            return finished.record.generation

    async def delete(self, scope: str, name: str, group_id: str) -> None:
        """Delete a group and its stream; ``ReaderGroupNotFoundError`` also for a wrong id."""
        is_begun = False

        async def delete() -> None:
            nonlocal is_begun
            if is_begun:
                # Another controller may finish the deletion. A group that was created since is
                # kept.
                await self.finish(scope, name)
                return
            async with self._locks.hold(_intent(scope, name)):
                group = await self._finish_and_read(scope, name)
                if parse_id(group_id) != group.record.group_id:
                    self._store.intents.remove(_intent(scope, name))
                    raise ReaderGroupNotFoundError(f"reader group {scope}/{name} has another id")
                group = await self._start(group, DeleteGroup())
                is_begun = True
                await self._do_steps(group)

        await until_unchanged(delete)

    async def delete_in_any_case(self, scope: Scope, name: str) -> None:
        """Delete a group and its stream, if the scope with this id has them."""
        async with self._locks.hold(_intent(scope.name, name)):
            try:
                group = await self._finish_and_read(scope.name, name)
                if group.scope.record.scope_id == scope.record.scope_id:
                    await self._run(group, DeleteGroup())
            except NotFoundError:
                log.debug("nothing to delete", scope=scope.name, group=name)

    async def subscribers(self, scope: str, stream: str) -> list[str]:
        """Return the groups, as ``scope/name``, for which a stream's retention keeps data."""
        return await self._store.subscribers.names(await self._store.streams.read(scope, stream))

    async def release(
        self,
        scope: str,
        stream: str,
        *,
        subscriber: str,
        group_id: str,
        generation: int,
        cut: StreamCut,
    ) -> None:
        """Record the cut up to which a subscriber no longer needs a stream.

        Raises ``StreamNotFoundError``, ``SubscriberNotFoundError``, ``GenerationMismatchError``,
        ``InvalidStreamCutError``.
        """
        await until_unchanged(
            partial(self._release, scope, stream, subscriber, group_id, generation, cut)
        )

    async def _release(
        self,
        scope: str,
        stream: str,
        subscriber: str,
        group_id: str,
        generation: int,
        cut: StreamCut,
    ) -> None:
        found = await self._store.streams.read(scope, stream)
        async with self._subscribing.hold((scope, stream)):
            current = await self._store.subscribers.find(found, subscriber)
            if current is None:
                raise SubscriberNotFoundError(f"{subscriber} does not subscribe to {stream}")
            record, version = current
            group_scope, _, name = subscriber.partition("/")
            try:
                group = (await self._store.groups.read(group_scope, name)).record
            except NotFoundError as error:
                raise SubscriberNotFoundError(f"reader group {subscriber} is gone") from error
            if parse_id(group_id) != group.group_id:
                raise SubscriberNotFoundError(f"reader group {subscriber} has another id")
            if generation != record.generation:
                raise GenerationMismatchError(f"{subscriber} is at generation {record.generation}")
            new = await self._cuts.check_at_or_after(found, cut, record.cut, "the last one")
            released = SubscriberRecord(generation, new)
            await self._store.subscribers.write(found, subscriber, released, version=version)

    async def finish(self, scope: str, name: str) -> None:
        """Finish the pending workflow of a group, if it exists."""
        async with self._locks.hold(_intent(scope, name)):
            try:
                await self._finish_and_read(scope, name)
            except NotFoundError:
                log.debug("nothing to finish", scope=scope, group=name)
            self._store.intents.remove(_intent(scope, name))

    # ---- Workflows -------------------------------------------------------------------------------

    async def _finish_and_read(self, scope: str, name: str) -> ReaderGroup:
        missing = ReaderGroupNotFoundError(f"reader group {scope}/{name} does not exist")
        try:
            finished = await self._do_steps(await self._store.groups.read(scope, name))
        except StepRefusedError as error:
            log.error("workflow failed for good", scope=scope, group=name, reason=str(error))
            raise missing from error
        if finished is None:
            raise missing
        return finished

    async def _run(self, group: ReaderGroup, pending: GroupWorkflow) -> ReaderGroup | None:
        return await self._do_steps(await self._start(group, pending))

    async def _start(self, group: ReaderGroup, pending: GroupWorkflow) -> ReaderGroup:
        """Record a workflow, which then will be finished in any case."""
        await self._store.intents.put(_intent(group.scope.name, group.name))
        return await self._store.groups.write(group, structs.replace(group.record, pending=pending))

    async def _do_steps(self, group: ReaderGroup) -> ReaderGroup | None:
        pending = group.record.pending
        if pending is None:
            return group
        finished: ReaderGroup | None = None
        match pending:
            case CreateGroup():
                try:
                    finished = await self._create(group)
                except StepRefusedError:
                    await self._give_up(group)
                    raise
            case UpdateGroup(configuration=configuration):
                finished = await self._update(group, configuration)
            case DeleteGroup():
                await self._delete(group)
        self._store.intents.remove(_intent(group.scope.name, group.name))
        return finished

    async def _create(self, group: ReaderGroup) -> ReaderGroup:
        configuration = fixed_configuration(1, rollover_bytes=STATE_STREAM_ROLLOVER_BYTES)
        state_stream = names.reader_group_stream(group.name)
        subscribed = group.record.configuration.subscribed
        current = group

        async def create_stream() -> None:
            nonlocal current
            current = await self._streams.creation.create_for_group(
                group, state_stream, configuration
            )

        await run_all(create_stream, partial(self._subscribe, group, subscribed, generation=0))
        return await self._store.groups.write(current, structs.replace(group.record, pending=None))

    async def _give_up(self, group: ReaderGroup) -> None:
        """Delete a group whose stream a segment store refuses to create.

        The group is read again, because its record was written again with that of the stream.
        """
        with suppress(NotFoundError):
            found = await self._store.groups.read(group.scope.name, group.name)
            if found.record == group.record:
                await self._run(found, DeleteGroup())

    async def _update(
        self, group: ReaderGroup, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        generation = group.record.generation + 1
        before = group.record.configuration.subscribed
        await self._unsubscribe(group, before - configuration.subscribed)
        await self._subscribe(group, configuration.subscribed, generation=generation)
        record = ReaderGroupRecord(group.record.group_id, generation, configuration)
        return await self._store.groups.write(group, record)

    async def _delete(self, group: ReaderGroup) -> None:
        state_stream = names.reader_group_stream(group.name)
        found: list[Stream] = []

        async def find_stream() -> None:
            with suppress(NotFoundError):
                found.append(await self._store.streams.read(group.scope.name, state_stream))

        subscribed = group.record.configuration.subscribed
        await run_all(partial(self._unsubscribe, group, subscribed), find_stream)
        # If the group still exists, its stream belongs to it, and not to a later group.
        if found and await self._store.groups.is_unchanged(group):
            stream_id = found[0].stream_id
            await self._streams.deletion.delete_internal(
                group.scope, state_stream, stream_id=stream_id
            )
        await self._store.groups.remove(group)

    async def _subscribe(
        self, group: ReaderGroup, streams: Iterable[tuple[str, str]], *, generation: int
    ) -> None:
        """Make a group a subscriber of streams, unless it was changed or deleted meanwhile."""
        name = names.scoped_name(group.scope.name, group.name)
        is_unchanged = partial(self._store.groups.is_unchanged, group)
        add = self._store.subscribers.add
        await self._change_subscribers(
            streams, partial(add, name=name, generation=generation, is_wanted=is_unchanged)
        )

    async def _unsubscribe(self, group: ReaderGroup, streams: Iterable[tuple[str, str]]) -> None:
        """Remove a group from the subscribers, unless it was changed or replaced meanwhile."""
        name = names.scoped_name(group.scope.name, group.name)
        is_unchanged = partial(self._store.groups.is_unchanged, group)
        remove = self._store.subscribers.remove
        await self._change_subscribers(streams, partial(remove, name=name, is_wanted=is_unchanged))

    async def _change_subscribers(
        self, streams: Iterable[tuple[str, str]], change: Callable[[Stream], Awaitable[None]]
    ) -> None:
        """Change the subscribers of streams; repeat it after another controller's change."""

        async def change_one(one: tuple[str, str]) -> None:
            async with self._subscribing.hold(one):
                try:
                    await change(await self._store.streams.read(*one))
                except NotFoundError:
                    # The stream was deleted, and with it its subscribers.
                    log.info("stream to subscribe to does not exist", scope=one[0], stream=one[1])

        await for_each(streams, lambda one: until_unchanged(partial(change_one, one)))


def parse_id(text: str) -> str:
    """Return a group's id in its canonical form; ``InvalidRequestError`` for any other text."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is not the id of a reader group") from error


def _intent(scope: str, name: str) -> IntentRecord:
    return IntentRecord("group", scope, name)
