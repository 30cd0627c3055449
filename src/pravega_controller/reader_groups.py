"""Reader groups: their configuration, their state stream, and their subscriptions to streams.

Owns: the workflows of reader groups. A group's readers coordinate in its stream ``_RG<name>``; the
controller only makes that stream, keeps the configuration, and knows the streams whose retention
waits for the group.

Invariants:
1. Creation is create-if-absent: a group that exists keeps its id, generation and configuration, and
   returns them exactly as they were received.
2. The generation counts the changes of the configuration; a change must name the generation that it
   replaces.
3. A group subscribes to its streams exactly while its retention type is not 0; a subscriber's cut
   never moves backwards.
4. A group's stream is made by the update that writes the group's record again as it was: it is
   never made for a group that is gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from random import Random

import structlog
from msgspec import structs

from pravega_controller import stream_cuts
from pravega_controller.conflicts import until_unchanged
from pravega_controller.errors import (
    EpochDroppedError,
    GenerationMismatchError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from pravega_controller.locks import KeyedLocks, WorkflowLocks
from pravega_controller.records import (
    CreateGroup,
    DeleteGroup,
    GroupWorkflow,
    IntentRecord,
    ReaderGroupConfiguration,
    ReaderGroupRecord,
    SubscriberRecord,
    UpdateGroup,
    encode,
)
from pravega_controller.segment_client import for_each, run_all
from pravega_controller.store import MetadataStore, ReaderGroup, Scope, Stream
from pravega_controller.stream_history import StreamHistory
from pravega_controller.stream_workflows import StreamWorkflows
from pravega_controller.streams import StreamCut, fixed_configuration
from pravega_controller.table_client import NOT_EXISTS
from pravega_wire import names

STATE_STREAM_ROLLOVER_BYTES = 4 * 1024 * 1024
RETENTION_TYPES = range(3)
CONFIGURATION_BYTES_MAX = 500_000
"""Maximum length of an encoded configuration, in bytes: a table's value must have room for two,
because a record has two while one replaces the other."""
NIL_ID = str(uuid.UUID(int=0))

log = structlog.get_logger(__name__)


class ReaderGroupOperations:
    """Answers requests about reader groups."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamWorkflows,
        *,
        random: Random,
        finish_later: Callable[[IntentRecord], None],
    ) -> None:
        self._store = store
        self._streams = streams
        self._random = random
        self._locks = WorkflowLocks(finish_later)
        self._subscribing = KeyedLocks()

    async def create(
        self, scope: str, name: str, group_id: str, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        """Return the group of this name; make it now if there is none.

        Raises ``InvalidNameError``, ``ScopeNotFoundError``, and ``StreamNotFoundError`` when a
        stream to subscribe to does not exist.
        """
        names.validate_user_name(name)
        _validate(configuration)
        chosen_id = parse_id(group_id)
        return await until_unchanged(partial(self._begin, scope, name, chosen_id, configuration))

    async def _begin(
        self, scope: str, name: str, group_id: str, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        async with self._locks.hold(_intent(scope, name)):
            intent = _intent(scope, name)
            owners: list[Scope] = []
            found: list[ReaderGroup] = []
            missing: list[tuple[str, str]] = []

            async def find_scope() -> None:
                with suppress(ScopeNotFoundError):
                    owners.append(await self._store.active_scope(scope))

            async def find_group() -> None:
                with suppress(ReaderGroupNotFoundError, ScopeNotFoundError):
                    found.append(await self._store.group(scope, name))

            async def find_missing() -> None:
                missing.extend(await self._missing(configuration.subscribed))

            put_intent = partial(self._store.intents.put, intent)
            await run_all(find_scope, find_group, find_missing, put_intent)
            if not owners:
                self._store.intents.remove(intent)
                raise ScopeNotFoundError(f"scope {scope} does not exist")
            if found and (settled := await self._settle(found[0])) is not None:
                self._store.intents.remove(intent)
                return settled
            if missing:
                self._store.intents.remove(intent)
                raise StreamNotFoundError(f"streams to subscribe to do not exist: {missing}")
            log.info("creating reader group", scope=scope, group=name)
            chosen = group_id
            if group_id == NIL_ID:
                chosen = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
            record = ReaderGroupRecord(chosen, 0, configuration, pending=CreateGroup())
            group = ReaderGroup(owners[0], name, NOT_EXISTS, record)
            settled = await self._settle(await self._store.write_group(group, record))
            assert settled is not None
            return settled

    async def _missing(self, streams: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the streams that do not exist."""
        missing: list[tuple[str, str]] = []

        async def check(stream: tuple[str, str]) -> None:
            try:
                await self._store.stream(*stream)
            except NotFoundError:
                missing.append(stream)

        await for_each(streams, check)
        return sorted(missing)

    async def get(self, scope: str, name: str) -> ReaderGroup:
        """Return a group that readers can use. Raises ``ReaderGroupNotFoundError``."""
        group = await self._store.group(scope, name)
        if isinstance(group.record.pending, CreateGroup | DeleteGroup):
            return await until_unchanged(partial(self._get_settled, scope, name))
        return group

    async def _get_settled(self, scope: str, name: str) -> ReaderGroup:
        async with self._locks.hold(_intent(scope, name)):
            return await self._settled(scope, name)

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
        return await until_unchanged(
            partial(self._replace, scope, name, group_id, generation, configuration)
        )

    async def _replace(
        self,
        scope: str,
        name: str,
        group_id: str,
        generation: int,
        configuration: ReaderGroupConfiguration,
    ) -> int:
        async with self._locks.hold(_intent(scope, name)):
            group = await self._settled(scope, name)
            if (parse_id(group_id), generation) != (group.record.group_id, group.record.generation):
                raise GenerationMismatchError(
                    f"reader group {scope}/{name} has another id or generation"
                )
            _validate(configuration)
            if missing := await self._missing(configuration.subscribed):
                raise StreamNotFoundError(f"streams to subscribe to do not exist: {missing}")
            settled = await self._run(group, UpdateGroup(configuration))
            assert settled is not None
            return settled.record.generation

    async def delete(self, scope: str, name: str, group_id: str) -> None:
        """Delete a group and its stream; ``ReaderGroupNotFoundError`` also for a wrong id."""
        is_begun = False

        async def delete() -> None:
            nonlocal is_begun
            if is_begun:
                # Another controller finishes it too. A group that was made since stays.
                await self.finish(scope, name)
                return
            async with self._locks.hold(_intent(scope, name)):
                group = await self._settled(scope, name)
                if parse_id(group_id) != group.record.group_id:
                    self._store.intents.remove(_intent(scope, name))
                    raise ReaderGroupNotFoundError(f"reader group {scope}/{name} has another id")
                group = await self._start(group, DeleteGroup())
                is_begun = True
                await self._settle(group)

        await until_unchanged(delete)

    async def delete_in_any_case(self, scope: Scope, name: str) -> None:
        """Delete a group of this very scope, and its stream; a missing group is fine."""
        async with self._locks.hold(_intent(scope.name, name)):
            try:
                group = await self._settled(scope.name, name)
                if group.scope.record.scope_id == scope.record.scope_id:
                    await self._run(group, DeleteGroup())
            except NotFoundError:
                log.debug("nothing to delete", scope=scope.name, group=name)

    async def subscribers(self, scope: str, stream: str) -> list[str]:
        """Return the groups, as ``scope/name``, that a stream's retention waits for."""
        return await self._store.subscriber_names(await self._store.stream(scope, stream))

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
        found = await self._store.stream(scope, stream)
        async with self._subscribing.hold((scope, stream)):
            current = await self._store.subscriber(found, subscriber)
            if current is None:
                raise SubscriberNotFoundError(f"{subscriber} does not subscribe to {stream}")
            record, version = current
            group_scope, _, name = subscriber.partition("/")
            try:
                group = (await self._store.group(group_scope, name)).record
            except NotFoundError as error:
                raise SubscriberNotFoundError(f"reader group {subscriber} is gone") from error
            if parse_id(group_id) != group.group_id:
                raise SubscriberNotFoundError(f"reader group {subscriber} has another id")
            if generation != record.generation:
                raise GenerationMismatchError(f"{subscriber} is at generation {record.generation}")
            if not await _goes_on(found.history, record.cut, cut):
                raise InvalidStreamCutError("the stream cut is not valid or lies before the last")
            released = SubscriberRecord(generation, dict(cut))
            await self._store.write_subscriber(found, subscriber, released, version=version)

    async def finish(self, scope: str, name: str) -> None:
        """Finish the pending workflow of a group, if it exists."""
        async with self._locks.hold(_intent(scope, name)):
            try:
                await self._settled(scope, name)
            except NotFoundError:
                log.debug("nothing to finish", scope=scope, group=name)
            self._store.intents.remove(_intent(scope, name))

    # ---- Workflows -------------------------------------------------------------------------------

    async def _settled(self, scope: str, name: str) -> ReaderGroup:
        settled = await self._settle(await self._store.group(scope, name))
        if settled is None:
            raise ReaderGroupNotFoundError(f"reader group {scope}/{name} does not exist")
        return settled

    async def _run(self, group: ReaderGroup, pending: GroupWorkflow) -> ReaderGroup | None:
        return await self._settle(await self._start(group, pending))

    async def _start(self, group: ReaderGroup, pending: GroupWorkflow) -> ReaderGroup:
        """Record a workflow, and with it the duty to finish it."""
        await self._store.intents.put(_intent(group.scope.name, group.name))
        return await self._store.write_group(group, structs.replace(group.record, pending=pending))

    async def _settle(self, group: ReaderGroup) -> ReaderGroup | None:
        pending = group.record.pending
        if pending is None:
            return group
        settled: ReaderGroup | None = None
        match pending:
            case CreateGroup():
                settled = await self._create(group)
            case UpdateGroup(configuration=configuration):
                settled = await self._update(group, configuration)
            case DeleteGroup():
                await self._delete(group)
        self._store.intents.remove(_intent(group.scope.name, group.name))
        return settled

    async def _create(self, group: ReaderGroup) -> ReaderGroup:
        configuration = fixed_configuration(1, rollover_bytes=STATE_STREAM_ROLLOVER_BYTES)
        state_stream = names.reader_group_stream(group.name)
        subscribed = group.record.configuration.subscribed
        current = group

        async def create_stream() -> None:
            nonlocal current
            current = await self._streams.create_for_group(group, state_stream, configuration)

        await run_all(create_stream, partial(self._subscribe, group, subscribed, generation=0))
        return await self._store.write_group(current, structs.replace(group.record, pending=None))

    async def _update(
        self, group: ReaderGroup, configuration: ReaderGroupConfiguration
    ) -> ReaderGroup:
        generation = group.record.generation + 1
        before = group.record.configuration.subscribed
        await self._unsubscribe(group, before - configuration.subscribed)
        await self._subscribe(group, configuration.subscribed, generation=generation)
        record = ReaderGroupRecord(group.record.group_id, generation, configuration)
        return await self._store.write_group(group, record)

    async def _delete(self, group: ReaderGroup) -> None:
        state_stream = names.reader_group_stream(group.name)
        found: list[Stream] = []

        async def find_stream() -> None:
            with suppress(NotFoundError):
                found.append(await self._store.stream(group.scope.name, state_stream))

        subscribed = group.record.configuration.subscribed
        await run_all(partial(self._unsubscribe, group, subscribed), find_stream)
        # If the group is there still, the stream is not that of one that was made after it.
        if found and await self._store.is_unchanged(group):
            stream_id = found[0].stream_id
            await self._streams.delete_internal(group.scope, state_stream, stream_id=stream_id)
        await self._store.remove_group(group)

    async def _subscribe(
        self, group: ReaderGroup, streams: Iterable[tuple[str, str]], *, generation: int
    ) -> None:
        """Make a group a subscriber, unless it has changed: it may be gone."""
        name = names.scoped_name(group.scope.name, group.name)
        is_unchanged = partial(self._store.is_unchanged, group)
        add = self._store.add_subscriber
        await self._change_subscribers(
            streams, partial(add, name=name, generation=generation, is_wanted=is_unchanged)
        )

    async def _unsubscribe(self, group: ReaderGroup, streams: Iterable[tuple[str, str]]) -> None:
        """Remove a group from the subscribers, unless it has changed: it may be another one."""
        name = names.scoped_name(group.scope.name, group.name)
        is_unchanged = partial(self._store.is_unchanged, group)
        remove = self._store.remove_subscriber
        await self._change_subscribers(streams, partial(remove, name=name, is_wanted=is_unchanged))

    async def _change_subscribers(
        self, streams: Iterable[tuple[str, str]], change: Callable[[Stream], Awaitable[None]]
    ) -> None:
        """Change the subscribers of streams; repeat it after another controller's change."""

        async def change_one(one: tuple[str, str]) -> None:
            async with self._subscribing.hold(one):
                try:
                    await change(await self._store.stream(*one))
                except NotFoundError:
                    # Deleted since the group named it: there is no retention left to wait.
                    log.info("stream to subscribe to does not exist", scope=one[0], stream=one[1])

        await for_each(streams, lambda one: until_unchanged(partial(change_one, one)))


def parse_id(text: str) -> str:
    """Return a group's id in its canonical form; ``InvalidRequestError`` for any other text."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is not the id of a reader group") from error


def _validate(configuration: ReaderGroupConfiguration) -> None:
    if configuration.retention_type not in RETENTION_TYPES:
        raise InvalidRequestError(f"there is no retention type {configuration.retention_type}")
    if configuration.rollover_bytes < 0:
        raise InvalidRequestError(
            f"the rollover size cannot be {configuration.rollover_bytes} bytes"
        )
    size = len(encode(configuration))
    if size > CONFIGURATION_BYTES_MAX:
        raise InvalidRequestError(
            f"the reader group's configuration takes {size} bytes, and at most "
            f"{CONFIGURATION_BYTES_MAX} can be stored: name fewer streams or segments"
        )


async def _goes_on(history: StreamHistory, earlier: StreamCut, later: StreamCut) -> bool:
    """Return whether a cut is valid, and nowhere before the cut that was released last."""
    try:
        if not await history.is_valid(later):
            return False
    except EpochDroppedError:
        return False
    try:
        return not earlier or await history.is_at_or_after(later, earlier)
    except EpochDroppedError:
        # Forgotten parts of the earlier cut lie before everything that is known.
        known = await history.segments(earlier)
        rest = {known[each]: earlier[each] for each in known}
        return stream_cuts.is_at_or_after_all(await history.pieces(later), rest)


def _intent(scope: str, name: str) -> IntentRecord:
    return IntentRecord("group", scope, name)
