"""Clients of two controllers: they ask whom they like, and ask again when no answer comes.

Owns: ``Side`` (one controller, as its clients see it), and the clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import trio

from controllers.ledger import Ledger, Told, ViolationError
from controllers.network import Link
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ScalePreconditionError,
    StepRefusedError,
    StoreAnswerError,
    StoreUnavailableError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState, segment_name
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_controller.transactions.operations import PingAnswer

LEASE_MS = 20_000
CALL_SECONDS_MAX = 40.0
TRIES_MAX = 60
END_SECONDS_MAX = 300.0
PAUSE_SECONDS = 4.0
BUSY_PAUSE_SECONDS = 0.01
"""A busy client asks often at first: answers given while others commit are what it is for."""
PAUSE_GROWTH = 1.02
"""Each pause is so much longer than the one before, as what takes long may take minutes."""

LONG_SECONDS = 150.0
"""Longer than it takes until a dead controller's late requests are looked for: a stream that lives
so long must keep its segments then."""

T = TypeVar("T")


class GoneError(Exception):
    """The controller was killed, or gave no answer: what was asked may have happened."""


class Side:
    """One of two controllers, which is there or not."""

    def __init__(self, port: int, link: Link) -> None:
        self.port = port
        self.link = link
        self.controller: Controller | None = None
        self.life = trio.CancelScope()
        """Cancelled when the controller is killed."""
        self._calls: set[trio.CancelScope] = set()

    def end_calls(self) -> None:
        """End the calls that are under way without an answer."""
        self.controller = None
        for scope in self._calls:
            scope.cancel()

    async def call(self, act: Callable[[Controller], Awaitable[T]]) -> T:
        """Ask the controller something. ``GoneError``."""
        if self.controller is None:
            raise GoneError("nobody listens")
        answer: list[T] = []
        with trio.move_on_after(CALL_SECONDS_MAX) as scope:
            self._calls.add(scope)
            try:
                answer.append(await act(self.controller))
            finally:
                self._calls.discard(scope)
        if not answer:
            raise GoneError("no answer")
        return answer[0]


class Client:
    """Asks any controller, as long as it takes."""

    def __init__(
        self, sides: list[Side], store: MemorySegmentStore, ledger: Ledger, random: Random
    ) -> None:
        self.sides = sides
        self.store = store
        self.ledger = ledger
        self.random = random

    async def ask(self, act: Callable[[Controller], Awaitable[T]]) -> T:
        """Return any controller's answer; the request may be carried out several times for it."""
        for _ in range(TRIES_MAX):
            try:
                return await self.random.choice(self.sides).call(act)
            except (
                GoneError,
                StoreUnavailableError,
                VersionConflictError,
                StoreAnswerError,
            ):
                await trio.sleep(self.random.random() * 2)
        raise AssertionError("no controller has answered")

    async def pause(self, seconds: float) -> None:
        await trio.sleep(self.random.random() * seconds)


class TransactionWriter(Client):
    """Begins transactions one after the other, and ends most of them."""

    stream = "a"
    is_busy = False
    """Whether to commit at once, so that many wait in line together."""

    async def run(self, count: int) -> None:
        """Do it so often."""
        self.is_busy = self.ledger.is_busy
        for _ in range(count):
            await self.pause(BUSY_PAUSE_SECONDS if self.is_busy else 3)
            await self._transact()

    async def _transact(self) -> None:
        ledger, stream = self.ledger, self.stream
        asked = trio.current_time()
        try:
            begun = await self.ask(lambda c: c.transactions.begin("s", stream, lease_ms=LEASE_MS))
        except StepRefusedError:
            return
        identifier = begun.identifier
        told = Told(stream, begun.segments, trio.current_time() + LEASE_MS / 1000 - 1e-3)
        # What passed while the answer was under way does not count for the client.
        told.promised_until -= trio.current_time() - asked
        ledger.transactions[identifier] = told
        for _ in range(self.random.randrange(1 if self.is_busy else 4)):
            await self.pause(6)
            await self._renew(identifier)
        for segment in begun.segments:
            part = segment_name("s", stream, segment.number, identifier)
            if part in self.store.segments:
                self.store.segments[part].length += 1
        fate = self.random.random()
        if fate < 0.7:
            await self._commit(identifier)
        elif fate < 0.85:
            told.is_abort_asked = True
            ended = await self.ask(lambda c: c.transactions.abort("s", stream, identifier))
            if ended:
                ledger.tell_end(identifier, is_committed=False)
        # Else it is left behind: its lease ends it.
        await self._until_ended(identifier)

    async def _renew(self, identifier: bytes) -> None:
        asked = trio.current_time()
        answer = await self.ask(
            lambda c: c.transactions.ping("s", self.stream, identifier, lease_ms=LEASE_MS)
        )
        if answer is PingAnswer.OK:
            told = self.ledger.transactions[identifier]
            told.promised_until = max(told.promised_until, asked + LEASE_MS / 1000)
        elif answer is PingAnswer.ABORTED:
            self.ledger.tell_end(identifier, is_committed=False)

    async def _commit(self, identifier: bytes) -> None:
        told = self.ledger.transactions[identifier]
        told.commit_asked = self.ledger.count()
        is_decided = await self.ask(
            lambda c: c.transactions.commit(
                "s", self.stream, identifier, writer_id="w", writer_ms=None
            )
        )
        self.ledger.tell_end(identifier, is_committed=is_decided)
        if is_decided:
            told.commit_answered = self.ledger.count()

    async def _until_ended(self, identifier: bytes) -> None:
        seconds = BUSY_PAUSE_SECONDS if self.is_busy else PAUSE_SECONDS
        told = self.ledger.transactions[identifier]
        with trio.fail_after(END_SECONDS_MAX) as limit:
            while True:
                # A lease that is begun anew each time a controller is killed ends after the last.
                limit.deadline = max(limit.deadline, told.held_since + END_SECONDS_MAX)
                state = await self.ask(lambda c: c.transactions.state("s", self.stream, identifier))
                self.ledger.tell_state(identifier, state)
                if state in (TransactionState.COMMITTED, TransactionState.ABORTED):
                    return
                await self.pause(seconds)
                seconds = min(PAUSE_GROWTH * seconds, PAUSE_SECONDS)


class Scaler(Client):
    """Splits and merges the segments of the stream that transactions are written to."""

    async def run(self, count: int) -> None:
        """Do it so often."""
        for _ in range(count):
            await self.pause(8)
            active = await self.ask(lambda c: c.streams.active_segments("s", "a"))
            chosen = self.random.choice(active)
            middle = (chosen.low + chosen.high) / 2
            sealed, ranges = [chosen.segment_id], [(chosen.low, middle), (middle, chosen.high)]
            if len(active) > 2:
                sealed = [segment.segment_id for segment in active]
                ranges = [(0.0, 0.5), (0.5, 1.0)]
            await self._scale(sealed, ranges)

    async def _scale(self, sealed: list[int], ranges: list[tuple[float, float]]) -> None:
        try:
            await self.ask(lambda c: c.streams.scale("s", "a", sealed, ranges, now_ms=5))
        except (ScalePreconditionError, IllegalStateError, InvalidRequestError):
            # A request that is repeated meets the stream as the first one left it.
            return


class Truncator(Client):
    """Drops what is before the active segments of the stream that transactions are written to."""

    async def run(self, count: int) -> None:
        """Do it so often."""
        for _ in range(count):
            await self.pause(20)
            active = await self.ask(lambda c: c.streams.active_segments("s", "a"))
            cut = {segment.segment_id: 0 for segment in active}
            await self._refuse(self._break(cut))
            await self._truncate(cut)

    def _break(self, cut: dict[int, int]) -> dict[int, int]:
        """Return something that is no cut of the stream, whatever happens meanwhile."""
        one = self.random.choice(sorted(cut))
        match self.random.randrange(4):
            case 0:
                return cut | {one: -7}
            case 1:
                return cut | {one: 2**62}
            case 2:
                return cut | {(1 << 50) + 1: 0}
            case _:
                return {each: offset for each, offset in cut.items() if each != one}

    async def _refuse(self, broken: dict[int, int]) -> None:
        """Check that a truncation at no cut is refused, and leaves a head that readers can use."""
        try:
            await self.ask(lambda c: c.streams.truncate("s", "a", broken))
        except InvalidRequestError:
            head = await self.ask(lambda c: c.streams.head("s", "a"))
            assert min(head.values()) >= 0, head
            return
        raise AssertionError(f"truncated at {broken}")

    async def _truncate(self, cut: dict[int, int]) -> None:
        try:
            await self.ask(lambda c: c.streams.truncate("s", "a", cut))
        except InvalidRequestError:
            # Another cut, of a later request, came first.
            return


class Lifecycle(Client):
    """Makes a stream, begins transactions on it, seals and deletes it, again and again."""

    async def run(self, count: int) -> None:
        """Do it so often."""
        for _ in range(count):
            await self.pause(5)
            try:
                await self.ask(lambda c: c.streams.create("s", "b", fixed_configuration(1)))
            except StepRefusedError:
                if await self.ask(lambda c: c.streams.exists("s", "b")):
                    raise ViolationError("a stream that could not be made is there") from None
                continue
            segments = await self.ask(lambda c: c.streams.active_segments("s", "b"))
            self.ledger.tell_new("b", segments)
            begun = [await self._begin() for _ in range(self.random.randrange(3))]
            await self.pause(LONG_SECONDS if self.random.random() < 0.3 else 2)
            self.ledger.check_that_stream_is_whole(self.store, "b", segments)
            for told in begun:
                if told is not None:
                    told.is_abort_asked = True
            try:
                await self.ask(lambda c: c.streams.seal("s", "b"))
                await self.pause(2)
                await self.ask(lambda c: c.streams.delete("s", "b"))
            except NotFoundError:
                # A request that is repeated meets the stream as the first one left it.
                continue

    async def _begin(self) -> Told | None:
        asked = trio.current_time()
        try:
            begun = await self.ask(lambda c: c.transactions.begin("s", "b", lease_ms=LEASE_MS))
        except StepRefusedError:
            return None
        told = Told("b", begun.segments, asked + LEASE_MS / 1000 - 1e-3)
        self.ledger.transactions[begun.identifier] = told
        if self.random.random() < 0.5:
            try:
                is_decided = await self.ask(
                    lambda c: c.transactions.commit(
                        "s", "b", begun.identifier, writer_id="w", writer_ms=None
                    )
                )
            except StreamNotFoundError as error:
                raise AssertionError("the stream is there") from error
            self.ledger.tell_end(begun.identifier, is_committed=is_decided)
        return told
