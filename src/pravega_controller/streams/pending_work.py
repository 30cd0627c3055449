"""The pending work of a stream: it is recorded, done by one controller at a time, and finished by
another one if that dies.

Owns: ``PendingWork``: the lock of a stream, the intent and the record by which its work is finished
even after a crash, and the choice of the controller that does it.

    request -> intent -> StreamRecord.pending -> steps -> pending = None -> (later) no intent

A controller that was killed finds the intent at its next start, and the pending workflow in the
stream's record. It then repeats the steps. The update that makes a workflow pending also writes its
subject (an epoch, a head, a configuration), so that neither is ever seen without the other.

A roll, which merges transactions of an earlier epoch, is finished before the pending workflow: a
seal may need it. If a refused workflow is found by a later request, or by a controller at its
start, it is ended without an error.

Invariants:
1. When several requests change one stream, their workflows run one after the other: a task that
   takes the stream's lock finishes pending work first. Held by
   ``test_changes_of_one_stream_take_turns``.
2. When a segment store refuses a scale permanently, the stream is as before, and the caller gets an
   error. Held by ``test_who_asks_for_a_refused_scale_is_told_that_it_failed``.
3. When a segment store refuses a truncation permanently, the workflow ends, and the stream can be
   used. Held by ``test_a_truncation_beyond_what_is_stored_ends_and_is_told``.
4. When a stream with transactions of an earlier epoch is sealed, they are rolled first.
   Held by ``test_a_stream_with_transactions_of_an_earlier_epoch_is_sealed_and_deleted``.
5. When a controller does not finish its work on a stream, and hands it back, another one finishes
   it. Held by ``test_work_that_its_owner_gives_up_is_taken_up_by_another``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeAlias, TypeVar

import structlog
import trio
from msgspec import structs

from pravega_controller.background.members import Members
from pravega_controller.errors import (
    ControllerError,
    IllegalStateError,
    InvalidRequestError,
    NoSuchTableError,
    NotFoundError,
    OwnedElsewhereError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StepRefusedError,
    StoreAnswerError,
    StoreUnavailableError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    StreamWithdrawnError,
    UncertainConflictError,
    VersionConflictError,
)
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.locks import KeyedLocks
from pravega_controller.metadata.records import (
    ConfigurationRecord,
    Create,
    Delete,
    HeadRecord,
    IntentRecord,
    Rolling,
    Scale,
    StreamWorkflow,
    Truncate,
)
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.history import Epoch
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.streams.stream_segments import StreamSegments
from pravega_wire import names

OWNER_POLL_SECONDS = 0.2
"""Interval, in seconds, at which this controller checks whether another has finished its work."""
OWNER_SECONDS_MAX = 30.0
"""Maximum time, in seconds, to wait for another controller's work. After it, the caller is told to
try again later."""
REFUSALS = (
    NotFoundError,
    InvalidRequestError,
    IllegalStateError,
    ScalePreconditionError,
    StepRefusedError,
    StreamNotSealedError,
    StreamSealedError,
)
"""Errors after which no work is pending: it was not begun, or it has ended."""

T = TypeVar("T")
Step: TypeAlias = Callable[..., Awaitable[Stream | None]]
"""A function that carries out pending work, called with the stream and the work. It returns the
stream after the work, or None if the stream is deleted."""

log = structlog.get_logger(__name__)


class PendingWork:
    """Starts and finishes the work on streams. ``find_step`` returns the step of a workflow."""

    def __init__(
        self,
        store: MetadataStore,
        segments: StreamSegments,
        members: Members,
        *,
        find_step: Callable[[StreamWorkflow | Rolling], Step],
        finish_later: Callable[[IntentRecord], None],
    ) -> None:
        self._store = store
        self._segments = segments
        self._members = members
        self._me = members.instance_id
        self._find_step = find_step
        self._finish_later = finish_later
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def exclusive(self, scope: str, name: str) -> AsyncIterator[None]:
        """Hold a stream's lock for the block.

        If the loss of a segment store, or doubt about a write, ends the block, the work is finished
        later. If another error ends it, the work is handed back, so that other controllers do not
        wait for this one.
        """
        async with self._locks.hold((scope, name)):
            try:
                yield
            except (StoreUnavailableError, StoreAnswerError, UncertainConflictError) as error:
                if isinstance(error, OwnedElsewhereError):
                    raise
                self._finish_later(stream_intent(scope, name))
                raise
            except VersionConflictError:
                raise
            except Exception:
                await self._hand_back(scope, name)
                raise

    async def _hand_back(self, scope: str, name: str) -> None:
        """Record that any controller may finish this one's pending work on a stream."""
        stream = self._store.streams.known(scope, name)
        if stream is None or is_without_work(stream) or stream.record.owner != self._me:
            return
        try:
            await self._store.writes.write(stream, structs.replace(stream.record, owner=""))
        except ControllerError as error:
            log.warning("work not handed back", scope=scope, stream=name, reason=str(error))

    async def change(self, scope: str, name: str, action: Callable[[], Awaitable[T]]) -> T:
        """Call ``action`` under the stream's lock; repeat it after a conflict."""

        return await until_unchanged(partial(self.change_once, scope, name, action))

    async def change_once(self, scope: str, name: str, action: Callable[[], Awaitable[T]]) -> T:
        async with self.exclusive(scope, name):
            try:
                return await action()
            except REFUSALS:
                self._store.intents.remove(stream_intent(scope, name))
                raise

    async def finish_and_read(
        self, scope: str, name: str, *, is_wanted: Callable[[Stream], bool] | None = None
    ) -> Stream:
        """Return a stream without pending work; the caller holds it exclusively.

        Raises ``StreamNotFoundError``, also for a stream that ``is_wanted`` refuses.
        """
        missing = StreamNotFoundError(f"stream {scope}/{name} does not exist")
        stream = await self._store.streams.read(scope, name)
        if is_wanted is not None and not is_wanted(stream):
            raise missing
        stream = await self._acquire(stream)
        if is_wanted is not None and not is_wanted(stream):
            # The stream was deleted while this task waited for the owner of its work.
            raise missing
        if is_without_work(stream):
            return stream
        finished = await self._do_steps_for_others(stream)
        if finished is None:
            if isinstance(stream.record.pending, Create):
                raise StreamWithdrawnError(f"stream {scope}/{name} could not be created")
            raise missing
        return finished

    async def _acquire(self, stream: Stream) -> Stream:
        """Return a stream whose pending work, if it has any, belongs to this controller.

        If another living controller owns the work, wait until it has finished. If the owner is
        dead, or has handed the work back, take it over by a conditional write, after which no write
        of the earlier owner succeeds. Raises ``OwnedElsewhereError`` if a living owner takes too
        long.
        """
        deadline = trio.current_time() + OWNER_SECONDS_MAX
        scope, name = stream.scope.name, stream.name
        while not is_without_work(stream) and stream.record.owner != self._me:
            record = stream.record
            if not record.owner or await self._members.is_dead(record.owner):
                log.info("taking over", stream=name, owner=record.owner)
                await self._segments.promise_search(stream)
                taken = structs.replace(record, owner=self._me)
                return await self._store.writes.write(stream, taken)
            if trio.current_time() >= deadline:
                raise OwnedElsewhereError(
                    f"another controller has been changing {scope}/{name} for more than "
                    f"{OWNER_SECONDS_MAX:.0f} s: try again later"
                )
            await trio.sleep(OWNER_POLL_SECONDS)
            stream = await self._store.streams.read(scope, name)
        return stream

    async def begin(
        self, scope: str, name: str, *, is_wanted: Callable[[Stream], bool] | None = None
    ) -> Stream:
        """Return a stream without pending work, which the caller will change.

        The intent is written while the stream is read. After a refusal it is kept for a short time.
        """
        intent = stream_intent(scope, name)
        try:
            stream, _ = await run_all(
                partial(self.finish_and_read, scope, name, is_wanted=is_wanted),
                partial(self._store.intents.put, intent),
            )
        except NotFoundError:
            self._store.intents.remove(intent)
            raise
        return stream

    async def known_or_finish_and_read(self, scope: str, name: str) -> Stream:
        """Return a stream without pending work, from memory if it is there.

        Another controller may have changed it since. So this is for steps that fail after such a
        change, and that can be repeated.
        """
        known = self._store.streams.known(scope, name)
        if known is not None and is_without_work(known):
            return known
        return await self.finish_and_read(scope, name)

    async def start(
        self,
        stream: Stream,
        pending: StreamWorkflow,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
        epochs: Sequence[Epoch] = (),
    ) -> Stream:
        """Record a workflow, and the records that it is about. Afterwards it must be finished."""
        assert stream.record.pending is None
        await self._store.intents.put(stream_intent(stream.scope.name, stream.name))
        record = structs.replace(stream.record, pending=pending, owner=self._me)
        return await self._store.writes.write(
            stream, record, configuration=configuration, head=head, epochs=epochs
        )

    async def run(
        self,
        stream: Stream,
        pending: StreamWorkflow,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
    ) -> Stream | None:
        """Record a workflow and finish it; return None when the stream is gone.

        Raises ``StepRefusedError`` if a segment store has refused a step; the workflow has ended.
        """
        return await self.do_steps(
            await self.start(stream, pending, configuration=configuration, head=head)
        )

    async def run_once(
        self,
        stream: Stream,
        pending: StreamWorkflow,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
    ) -> None:
        """Record and finish a workflow like ``run``, for a request that must not be decided again.

        Raises ``UncertainConflictError`` if another controller has taken the workflow over: it may
        have finished it, and others may have changed the stream since.
        """
        started = await self.start(stream, pending, configuration=configuration, head=head)
        try:
            await self.do_steps(started)
        except VersionConflictError as error:
            raise UncertainConflictError(str(error)) from error

    async def start_roll(self, stream: Stream, rolling: Rolling, epochs: Sequence[Epoch]) -> Stream:
        """Record a roll and its two epochs. Afterwards the roll must be finished."""
        assert stream.record.rolling is None
        await self._store.intents.put(stream_intent(stream.scope.name, stream.name))
        record = structs.replace(stream.record, rolling=rolling, owner=self._me)
        return await self._store.writes.write(stream, record, epochs=epochs)

    async def end_roll(
        self, stream: Stream, epoch: int, sizes: Mapping[int, dict[int, int]]
    ) -> Stream:
        """End a roll: its second epoch becomes active. Without pending work the intent is idle."""
        record = structs.replace(stream.record, epoch=epoch, rolling=None)
        stream = await self._store.writes.write(stream, record, sizes=sizes)
        if record.pending is None:
            self._store.intents.remove(stream_intent(stream.scope.name, stream.name))
        return stream

    async def finish(self, scope: str, name: str) -> None:
        """Finish the pending workflow of a stream, if it exists."""
        async with self.exclusive(scope, name):
            intent = await self._store.intents.find(stream_intent(scope, name))
            try:
                await self._finish_intent(intent)
            except (ScopeNotFoundError, NoSuchTableError):
                log.debug("the scope does not exist", scope=scope, stream=name)
            self._store.intents.remove(intent)

    async def _finish_intent(self, intent: IntentRecord) -> None:
        scope, name = intent.scope, intent.name
        is_there = await self.exists_once_finished(scope, name)
        if intent.stream_ids:
            # The creation of a stream may have left records that no name leads to.
            await self._store.names.discard_unnamed(scope, with_mark(name), intent.stream_ids)
        if not is_there:
            for dead in with_mark(name):
                await self._store.names.remove_dead(scope, dead)

    async def exists_once_finished(self, scope: str, name: str) -> bool:
        """Return whether a stream exists, once its pending work is finished."""
        try:
            await self.finish_and_read(scope, name)
        except StreamNotFoundError:
            return False
        return True

    async def _do_steps_for_others(self, stream: Stream) -> Stream | None:
        """Finish pending work of others on a stream; end it if a segment store refuses a step.

        Returns None when the stream is gone.
        """
        while True:
            try:
                return await self.do_steps(stream)
            except StepRefusedError as error:
                log.error(
                    "workflow failed for good",
                    scope=stream.scope.name,
                    stream=stream.name,
                    reason=str(error),
                )
                try:
                    found = await self._store.streams.read(stream.scope.name, stream.name)
                except NotFoundError:
                    return None
                if found.stream_id != stream.stream_id:
                    return None
                stream = found

    async def do_steps(self, stream: Stream) -> Stream | None:
        """Finish the pending work of a stream; return the stream, or None when it is gone.

        Raises ``StepRefusedError`` if a segment store has refused a step; the workflow has ended.
        """
        current: Stream | None = stream
        while current is not None:
            work = current.record.rolling or current.record.pending
            if work is None:
                break
            log.info(
                "workflow step",
                scope=stream.scope.name,
                stream=stream.name,
                workflow=type(work).__name__,
            )
            current = await self.step(current, work)
        self._store.intents.remove(stream_intent(stream.scope.name, stream.name))
        return current

    async def step(
        self,
        stream: Stream,
        work: StreamWorkflow | Rolling,
        step: Callable[..., Awaitable[Stream | None]] | None = None,
    ) -> Stream | None:
        """Carry out pending work by ``step``; by default, by the step for its kind of work."""
        try:
            return await (step or self._find_step(work))(stream, work)
        except StepRefusedError:
            await self.give_up(stream, work)
            raise
        except VersionConflictError:
            await self._segments.delete_strays(stream)
            raise

    async def give_up(self, stream: Stream, work: StreamWorkflow | Rolling) -> None:
        """End a workflow of which a step was refused, and remove what it has created.

        The stream is read again, because its record was written again with that of its mark stream.
        """
        with suppress(NotFoundError):
            found = await self._store.streams.read(stream.scope.name, stream.name)
            if found.stream_id != stream.stream_id or found.record.pending != work:
                return
            match work:
                case Create():
                    record = structs.replace(found.record, pending=Delete())
                    await self.do_steps(await self._store.writes.write(found, record))
                case Scale():
                    epoch = await found.history.epoch(found.last_epoch)
                    # Delete the segments only after the record has changed: then no controller
                    # creates them
                    # again.
                    await self._segments.promise_search(found)
                    await self._store.writes.withdraw_epoch(found)
                    await self._segments.delete(found, epoch.created)
                case Truncate():
                    record = structs.replace(found.record, pending=None)
                    await self._store.writes.write(found, record)
                case _:
                    raise AssertionError("no store refuses the steps of other workflows")


def is_without_work(stream: Stream) -> bool:
    """Return whether a stream has no pending work."""
    return stream.record.pending is None and stream.record.rolling is None


def with_mark(name: str) -> list[str]:
    """Return a stream's name, and that of its mark stream if it has one."""
    return [name] if name.startswith(names.MARK_PREFIX) else [name, names.mark_stream(name)]


def stream_intent(scope: str, name: str) -> IntentRecord:
    """Return the intent that covers every workflow of a stream."""
    return IntentRecord("stream", scope, name)
