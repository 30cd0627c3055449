"""Clients that hold tokens as the official ones do: writers, transactions, readers, a scaler.

Owns: ``Tokens`` (one client's token for a stream) and the clients.

A client asks for a token when it has none, when the one it has ends soon by the client's own
clock, and after the store has said that it has expired; it fails for good when the store says that
the token is not valid, which is a violation here.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar

import trio

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    IllegalStateError,
    InvalidRequestError,
    ScalePreconditionError,
    StoreUnavailableError,
    VersionConflictError,
)
from pravega_controller.rules.streams import Segment
from pravega_controller.rules.transactions import TransactionState
from pravega_security.resources import Level, stream_resource
from pravega_wire import commands as wire
from pravega_wire import names
from segstore.network.token_checks import EXPIRED
from tokens.connections import Flow, FlowEndedError, Pool
from tokens.ledger import Ledger
from tokens.watch import ViolationError

REFRESH_SECONDS = 5.0
"""Time before its end, in seconds, from which on a client takes another token."""
LEASE_MS = 60_000
RETRY_SECONDS = (0.01, 1.0)
END_PAUSE_SECONDS = 1.0
EVENTS_MAX = 6
KEYS = 5
SCOPE, STREAM = "s", "a"

T = TypeVar("T")
Ask = Callable[[Callable[[Controller], Awaitable[object]]], Awaitable[object]]


class SegmentEndedError(Exception):
    """The segment takes no appends any more."""


class GoneError(Exception):
    """The answer of the controller got lost: what was asked may have happened."""


class ControllerPlace:
    """The controller, as clients reach it. ``delay`` returns how long a message takes."""

    def __init__(self, random: Random, delay: Callable[[], float]) -> None:
        self.controller: Controller | None = None
        self.lost_rate = random.choice([0.0, 0.02, 0.1])
        self._random = random
        self._delay = delay

    async def ask(self, act: Callable[[Controller], Awaitable[T]]) -> T:
        """Return the answer; the request may be carried out several times for it."""
        while True:
            await trio.sleep(self._delay())
            if self.controller is not None:
                try:
                    answer = await act(self.controller)
                    if self._random.random() >= self.lost_rate:
                        await trio.sleep(self._delay())
                        return answer
                except (StoreUnavailableError, VersionConflictError):
                    pass
            await trio.sleep(self._random.random())

    async def ask_token(self, level: Level) -> str:
        """Return a token for the stream."""

        async def mint(controller: Controller) -> str:
            assert controller.tokens is not None
            await trio.lowlevel.checkpoint()
            return controller.tokens.mint_claims({stream_resource(SCOPE, STREAM): level})

        return await self.ask(mint)


@dataclass(frozen=True)
class Surroundings:
    """What all clients share."""

    place: ControllerPlace
    pool: Pool
    ledger: Ledger
    random: Random
    now: Callable[[], float]
    """The clients' own clock, in seconds since 1970."""

    async def pause(self, seconds: float) -> None:
        """Wait up to so long."""
        await trio.sleep(self.random.random() * seconds)


class Tokens:
    """One client's token."""

    def __init__(self, around: Surroundings, level: Level) -> None:
        self._around = around
        self._level = level
        self._token = ""
        self._expires = 0
        self._is_told = False

    async def get(self) -> str:
        """Return a token, as far as the client knows a valid one."""
        around = self._around
        if self._is_told or around.now() + REFRESH_SECONDS >= self._expires:
            self._token = await around.place.ask_token(self._level)
            self._is_told = False
            body = self._token.split(".")[1]
            decoded = base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
            found = re.search(rb'"exp":\s?(\d+)', decoded)
            assert found is not None
            self._expires = int(found[1])
        return self._token

    def note_refusal(self, reply: wire.AuthTokenCheckFailed) -> None:
        """Take note of a refusal of the token. Raises ``ViolationError`` if it is for good."""
        if reply.error_code != EXPIRED:
            raise ViolationError(f"a client failed for good: {reply}")
        self._is_told = True


class SegmentWriter:
    """A writer of one segment, with an id of its own, over as many connections as it takes."""

    def __init__(self, around: Surroundings, tokens: Tokens, segment: str) -> None:
        self._around = around
        self._tokens = tokens
        self._segment = segment
        self._id = around.random.randbytes(16)
        self._next = 0
        self._flow: Flow | None = None

    async def write(self, events: Sequence[bytes]) -> int:
        """Write events in order; return how many are stored: all, unless the segment ends."""
        left = deque(enumerate(events, self._next))
        self._next += len(events)
        retry_seconds = RETRY_SECONDS[0]
        while left:
            try:
                flow = await self._set_up(left)
                for number, event in list(left):
                    await flow.append(self._id, event, number)
                while left:
                    self._note_answer(await flow.receive(), left)
            except SegmentEndedError:
                self.close()
                break
            except FlowEndedError:
                self.close()
                await self._around.pause(retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS[1])
        return len(events) - len(left)

    def close(self) -> None:
        """Leave the connection."""
        if self._flow is not None:
            self._flow.close()
            self._flow = None

    async def _set_up(self, left: deque[tuple[int, bytes]]) -> Flow:
        """Return a flow on which the writer is set up; drop what is stored already."""
        if self._flow is not None and not self._flow.is_over and self._around.random.random() < 0.8:
            return self._flow
        self.close()
        token = await self._tokens.get()
        flow = self._flow = await self._around.pool.open_flow()
        reply = await flow.call(wire.SetupAppend(flow.next_id(), self._id, self._segment, token))
        match reply:
            case wire.AppendSetup():
                _drop(left, reply.last_event_number)
                return flow
            case wire.AuthTokenCheckFailed():
                self._tokens.note_refusal(reply)
                raise FlowEndedError
            case wire.NoSuchSegment() | wire.SegmentIsSealed():
                raise SegmentEndedError
        raise ViolationError(f"an answer to a setup: {reply}")

    def _note_answer(self, reply: wire.Reply, left: deque[tuple[int, bytes]]) -> None:
        match reply:
            case wire.DataAppended():
                _drop(left, reply.event_number)
            case wire.NoSuchSegment() | wire.SegmentIsSealed():
                raise SegmentEndedError
            case wire.InvalidEventNumber():
                raise FlowEndedError
            case _:
                raise ViolationError(f"an answer to an append: {reply}")


def _drop(left: deque[tuple[int, bytes]], stored: int) -> None:
    while left and left[0][0] <= stored:
        left.popleft()


class Event(NamedTuple):
    """An event of an event writer."""

    writer: int
    key: int
    number: int

    def encode(self) -> bytes:
        """Return its bytes."""
        return b"event %d %d %d" % self

    @property
    def place(self) -> float:
        """Return its place among all keys."""
        return zlib.crc32(b"%d %d" % self[:2]) / 2**32


class EventWriter:
    """Writes events to the segments of their keys, across scales."""

    def __init__(self, around: Surroundings, number: int) -> None:
        self._around = around
        self._number = number
        self._tokens = Tokens(around, Level.READ_UPDATE)
        self._writers: dict[int, SegmentWriter] = {}
        self._counts = [0] * KEYS

    async def run(self, batches: int, pause_seconds: float) -> None:
        """Write so often a few events."""
        random = self._around.random
        for _ in range(batches):
            left = [self._make_event() for _ in range(random.randint(1, EVENTS_MAX))]
            while left:
                left = await self._write(left)
            await self._around.pause(pause_seconds)

    def _make_event(self) -> Event:
        key = self._around.random.randrange(KEYS)
        self._counts[key] += 1
        return Event(self._number, key, self._counts[key] - 1)

    async def _write(self, events: list[Event]) -> list[Event]:
        """Write events; return those that others segments have to take."""
        active = await self._around.place.ask(lambda c: c.streams.active_segments(SCOPE, STREAM))
        left: set[Event] = set()

        async def write(segment: Segment, part: list[Event]) -> None:
            writer = self._writers.get(segment.segment_id)
            if writer is None:
                name = names.segment_name(SCOPE, STREAM, segment.segment_id)
                writer = SegmentWriter(self._around, self._tokens, name)
                self._writers[segment.segment_id] = writer
            stored = await writer.write([event.encode() for event in part])
            self._around.ledger.acknowledged.update(event.encode() for event in part[:stored])
            left.update(part[stored:])

        async with trio.open_nursery() as nursery:
            for segment in active:
                part = [each for each in events if segment.low <= each.place < segment.high]
                if part:
                    nursery.start_soon(write, segment, part)
        if left:
            await self._around.pause(0.5)
        return [event for event in events if event in left]


class TransactionWriter:
    """Writes transactions, of which it commits most."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._tokens = Tokens(around, Level.READ_UPDATE)

    async def run(self, count: int, pause_seconds: float) -> None:
        """Do it so often."""
        for _ in range(count):
            await self._run_one(pause_seconds)
            await self._around.pause(pause_seconds)

    async def _run_one(self, pause_seconds: float) -> None:
        around, random = self._around, self._around.random
        begun = await around.place.ask(
            lambda c: c.transactions.begin(SCOPE, STREAM, lease_ms=LEASE_MS)
        )
        identifier, is_whole = begun.identifier, True
        events = [b"transaction %s %d" % (identifier.hex().encode(), n) for n in range(EVENTS_MAX)]
        around.ledger.transactions[identifier] = events
        writers: dict[int, SegmentWriter] = {}
        for event in events:
            parent = random.choice(begun.segments)
            name = names.transaction_segment_name(
                names.segment_name(SCOPE, STREAM, parent.segment_id), identifier
            )
            writer = writers.setdefault(
                parent.segment_id, SegmentWriter(around, self._tokens, name)
            )
            is_whole = is_whole and await writer.write([event]) == 1
            if random.random() < 0.5:
                await around.pause(pause_seconds)
                await self._renew(identifier)
        for writer in writers.values():
            writer.close()
        await self._end(identifier, commits=is_whole and random.random() < 0.8)

    async def _renew(self, identifier: bytes) -> None:
        await self._around.place.ask(
            lambda c: c.transactions.ping(SCOPE, STREAM, identifier, lease_ms=LEASE_MS)
        )

    async def _end(self, identifier: bytes, *, commits: bool) -> None:
        place = self._around.place
        if commits:
            is_decided = await place.ask(
                lambda c: c.transactions.commit(
                    SCOPE, STREAM, identifier, writer_id="w", writer_ms=None
                )
            )
            if is_decided:
                self._around.ledger.committed[identifier] = True
        else:
            await place.ask(lambda c: c.transactions.abort(SCOPE, STREAM, identifier))
        while True:
            state = await place.ask(lambda c: c.transactions.state(SCOPE, STREAM, identifier))
            if state in (TransactionState.COMMITTED, TransactionState.ABORTED):
                break
            await trio.sleep(END_PAUSE_SECONDS)
        is_committed = state is TransactionState.COMMITTED
        if self._around.ledger.committed.setdefault(identifier, is_committed) != is_committed:
            raise ViolationError(f"{identifier.hex()} is {state} and was told to be committed")


class Scaler:
    """Splits and merges the segments of the stream."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def run(self, count: int, pause_seconds: float) -> None:
        """Do it so often."""
        around, place = self._around, self._around.place
        for _ in range(count):
            await around.pause(4 * pause_seconds)
            active = await place.ask(lambda c: c.streams.active_segments(SCOPE, STREAM))
            chosen = around.random.choice(active)
            middle = (chosen.low + chosen.high) / 2
            sealed, ranges = [chosen.segment_id], [(chosen.low, middle), (middle, chosen.high)]
            if len(active) > 2:
                sealed = [segment.segment_id for segment in active]
                ranges = [(0.0, 0.5), (0.5, 1.0)]
            await self._scale(sealed, ranges)

    async def _scale(self, sealed: list[int], ranges: list[tuple[float, float]]) -> None:
        try:
            await self._around.place.ask(
                lambda c: c.streams.scale(SCOPE, STREAM, sealed, ranges, now_ms=5)
            )
        except (ScalePreconditionError, IllegalStateError, InvalidRequestError):
            # A request that is repeated meets the stream as the first one left it.
            return
        self._around.ledger.counts["scale"] += 1


class Reader:
    """Reads segments of the stream from their beginnings."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._tokens = Tokens(around, Level.READ)
        self._seen: dict[int, bytes] = {}

    async def run(self, pause_seconds: float) -> None:
        """Read one segment after another, until cancelled."""
        around = self._around
        while True:
            await around.pause(pause_seconds)
            active = await around.place.ask(lambda c: c.streams.active_segments(SCOPE, STREAM))
            identifier = around.random.choice(active).segment_id
            with trio.move_on_after(3 * pause_seconds):
                await self.read(identifier)

    async def read(self, identifier: int) -> bytes:
        """Return the bytes of a segment up to its end, for which it waits."""
        while True:
            before = self._seen.get(identifier, b"")
            answer = await self._ask(
                lambda flow, token: wire.ReadSegment(
                    names.segment_name(SCOPE, STREAM, identifier),
                    len(before),  # noqa: B023 - called at once
                    1 << 16,
                    token,
                    flow.next_id(),
                )
            )
            if isinstance(answer, wire.SegmentIsSealed) and answer.offset == len(before):
                return before
            if not isinstance(answer, wire.SegmentRead) or answer.offset != len(before):
                raise ViolationError(f"an answer to a read at {len(before)}: {answer}")
            self._seen[identifier] = before + answer.data
            if answer.end_of_segment:
                return self._seen[identifier]

    async def _ask(self, make: Callable[[Flow, str], wire.Request]) -> wire.Reply:
        """Ask the store until it answers."""
        while True:
            flow = None
            try:
                token = await self._tokens.get()
                flow = await self._around.pool.open_flow()
                reply = await flow.call(make(flow, token))
            except FlowEndedError:
                await self._around.pause(RETRY_SECONDS[1])
                continue
            finally:
                if flow is not None:
                    flow.close()
            if not isinstance(reply, wire.AuthTokenCheckFailed):
                return reply
            self._tokens.note_refusal(reply)
