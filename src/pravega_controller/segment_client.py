"""Sends the controller's requests about segments to segment stores.

Owns: one connection per store, reconnection with bounded backoff, and the replies that mean
success.

The placement is asked before each attempt, because a container may have moved.

Invariants:
1. Every request here may safely be sent twice: a repetition that finds its work already done
   (``SegmentAlreadyExists``, ``SegmentIsSealed``, ``NoSuchSegment`` for a delete) has succeeded.
2. A request is retried until ``retry_seconds_max`` have passed, then raises
   ``StoreUnavailableError``. A store that is down and one that still recovers look the same here.
3. A reply that does not fit its request raises ``StoreAnswerError`` and is never retried.
4. The replies to requests about many segments are awaited together, and those without a reply are
   sent again together, after the same pause as a single one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeVar, overload

import structlog
import trio

from pravega_controller.errors import StoreAnswerError, StoreUnavailableError
from pravega_controller.placement import Address, Placement
from pravega_controller.store_connection import (
    REQUESTS_IN_FLIGHT_MAX,
    ConnectionLostError,
    MakeRequest,
    OpenStream,
    StoreConnection,
)
from pravega_wire import commands as wire

BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 1.0
BACKOFF_SHARE = 0.15
"""Length of a pause, as a part of the time waited so far: a store that starts is found soon."""
ALIVE_SECONDS_MAX = 1.0
"""Maximum time, in seconds, in which a store answers before the placement is asked again."""
LOOK_SECONDS = 0.05
"""Pause, in seconds, between two such looks."""
MISSING_SEGMENT = "_system/alive/0.#epoch.0"
"""Name of a segment that does not exist: any reply about it shows that its store lives."""
CONCURRENT_REQUESTS_MAX = 64
REQUESTS_TOGETHER_MAX = 64
"""Maximum number of requests for which one task waits at once."""
GROUPS_AT_A_TIME_MAX = REQUESTS_IN_FLIGHT_MAX // REQUESTS_TOGETHER_MAX

NO_TOKEN = ""
"""The delegation token while authorization is off."""

log = structlog.get_logger(__name__)

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R", bound=wire.Reply)
T = TypeVar("T")

Action: TypeAlias = Callable[[], Awaitable[T]]

SegmentRequest: TypeAlias = tuple[str, MakeRequest]
"""The segment that a request is about, and the function that builds the request."""


@dataclass(frozen=True, slots=True)
class SegmentBounds:
    """A segment's bounds in bytes."""

    start_offset: int
    length: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that is to be created."""

    name: str
    scale_type: int
    target_rate: int
    rollover_bytes: int


class SegmentClient:
    """A client of every segment store of the cluster, made by ``open_segment_client``."""

    def __init__(
        self,
        placement: Placement,
        nursery: trio.Nursery,
        *,
        open_stream: OpenStream,
        random: Random,
        reply_seconds_max: float,
        retry_seconds_max: float,
    ) -> None:
        self._placement = placement
        self._nursery = nursery
        self._open_stream = open_stream
        self._random = random
        self._reply_seconds_max = reply_seconds_max
        self._retry_seconds_max = retry_seconds_max
        self._connections: dict[Address, StoreConnection] = {}
        self._connecting: dict[Address, trio.Lock] = {}

    async def request(
        self, segment: str, make: MakeRequest, *, retry_seconds_max: float | None = None
    ) -> wire.Reply:
        """Send a request about a segment to its store and return the reply.

        Raises ``StoreUnavailableError`` when no store answered for the whole retry time.
        """
        limit = self._retry_seconds_max if retry_seconds_max is None else retry_seconds_max
        began = trio.current_time()
        while True:
            try:
                connection = await self._connection(self._placement.store_of(segment))
                reply = await connection.call(make)
                if not isinstance(reply, wire.WrongHost):
                    return reply
                problem = _refusal(segment)
            except (ConnectionLostError, StoreUnavailableError) as error:
                problem = str(error)
            await self._pause(began, limit, problem)

    async def _pause(self, began: float, limit: float, problem: str) -> None:
        """Wait before a new attempt of work of that age, or raise ``StoreUnavailableError``."""
        waited = trio.current_time() - began
        longest = min(BACKOFF_SECONDS_MIN + BACKOFF_SHARE * waited, BACKOFF_SECONDS_MAX)
        pause = longest * (0.5 + self._random.random() / 2)
        if waited + pause > limit:
            raise StoreUnavailableError(f"gave up after {limit:g} s: {problem}")
        await trio.sleep(pause)

    async def request_all(self, requests: Sequence[SegmentRequest]) -> list[wire.Reply]:
        """Send a request about each of many segments; return the replies in the same order.

        Works as ``request`` for each, but with one task and one wait for many of them.
        """
        replies: dict[int, wire.Reply] = {}
        began = trio.current_time()
        left: Sequence[int] = range(len(requests))
        while True:
            problem = await self._ask(requests, left, replies)
            left = [each for each in left if each not in replies]
            if not left:
                return [replies[each] for each in range(len(requests))]
            await self._pause(began, self._retry_seconds_max, problem)

    async def _ask(
        self,
        requests: Sequence[SegmentRequest],
        positions: Iterable[int],
        replies: dict[int, wire.Reply],
    ) -> str:
        """Send some of many requests once; add their replies, and return why others have none."""
        problem = ""
        by_store: dict[Address, list[int]] = {}
        for position in positions:
            try:
                store = self._placement.store_of(requests[position][0])
            except StoreUnavailableError as error:
                # No store has the container now.
                problem = str(error)
            else:
                by_store.setdefault(store, []).append(position)

        async def ask(group: tuple[Address, Sequence[int]]) -> None:
            nonlocal problem
            store, positions = group
            try:
                connection = await self._connection(store)
                found = await connection.call_all([requests[each][1] for each in positions])
            except ConnectionLostError as error:
                problem = str(error)
                return
            for position, reply in zip(positions, found, strict=True):
                if isinstance(reply, wire.WrongHost):
                    problem = _refusal(requests[position][0])
                else:
                    replies[position] = reply

        groups = [
            (store, positions[start : start + REQUESTS_TOGETHER_MAX])
            for store, positions in by_store.items()
            for start in range(0, len(positions), REQUESTS_TOGETHER_MAX)
        ]
        if len(groups) == 1:
            await ask(groups[0])
        else:
            await for_each(groups, ask, limit=GROUPS_AT_A_TIME_MAX)
        return problem

    async def create_segments(self, wanted: Iterable[NewSegment]) -> None:
        """Create segments; fine if some exist."""
        requests = [(segment.name, partial(_create_request, segment)) for segment in wanted]
        for reply in await self.request_all(requests):
            expect(reply, wire.SegmentCreated, wire.SegmentAlreadyExists)

    async def seal_segments(self, segments: Sequence[str]) -> None:
        """Seal segments; fine if some are sealed. A missing one takes no appends either."""
        requests = [(segment, _about(segment, wire.SealSegment)) for segment in segments]
        for segment, reply in zip(segments, await self.request_all(requests), strict=True):
            if (
                expect(reply, wire.SegmentSealed, wire.SegmentIsSealed, wire.NoSuchSegment)
                is wire.NoSuchSegment
            ):
                log.warning("segment to seal does not exist", segment=segment)

    async def delete_segments(self, segments: Iterable[str]) -> None:
        """Delete segments; fine if some are gone."""
        requests = [(segment, _about(segment, wire.DeleteSegment)) for segment in segments]
        for reply in await self.request_all(requests):
            expect(reply, wire.SegmentDeleted, wire.NoSuchSegment)

    async def truncate_segment(self, segment: str, *, offset: int) -> None:
        """Truncate a segment at ``offset``; it may be truncated further already."""
        reply = await self.request(
            segment, lambda i: wire.TruncateSegment(i, segment, offset, NO_TOKEN)
        )
        if isinstance(reply, wire.SegmentIsTruncated) and reply.start_offset < offset:
            raise StoreAnswerError(f"{segment} cannot be truncated at {offset}: it ends earlier")
        if (
            expect(reply, wire.SegmentTruncated, wire.SegmentIsTruncated, wire.NoSuchSegment)
            is wire.NoSuchSegment
        ):
            log.warning("segment to truncate does not exist", segment=segment)

    async def merge_segments(self, batches: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
        """Merge segments into each target, in order; return the target's end after each of them.

        A source that does not exist was merged before, or never held anything.
        """
        requests = [
            (
                target,
                partial(
                    wire.MergeSegmentsBatch,
                    target=target,
                    sources=tuple(sources),
                    delegation_token=NO_TOKEN,
                ),
            )
            for target, sources in batches.items()
        ]
        ends: dict[str, list[int]] = {}
        for target, reply in zip(batches, await self.request_all(requests), strict=True):
            sources = expect_one(reply, wire.SegmentsBatchMerged).sources
            ends[target] = [merged.new_target_write_offset for merged in sources]
        return ends

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """Set the rate at which a segment's stream scales."""
        reply = await self.request(
            segment,
            lambda i: wire.UpdateSegmentPolicy(i, segment, target_rate, scale_type, NO_TOKEN),
        )
        if expect(reply, wire.SegmentPolicyUpdated, wire.NoSuchSegment) is wire.NoSuchSegment:
            log.warning("segment to update does not exist", segment=segment)

    async def segment_info(self, segment: str) -> SegmentBounds | None:
        """Return a segment's bounds, or None if it does not exist."""
        [info] = await self.segment_infos([segment])
        return info

    async def segment_infos(self, segments: Sequence[str]) -> list[SegmentBounds | None]:
        """Return the bounds of segments, None for one that does not exist."""
        requests = [(segment, _about(segment, wire.GetStreamSegmentInfo)) for segment in segments]
        return [_info(reply) for reply in await self.request_all(requests)]

    async def read_segment(self, segment: str, *, offset: int, length: int) -> bytes:
        """Return bytes of a segment, or raise ``StoreAnswerError`` where it has none."""
        data = b""
        while len(data) < length:
            position, left = offset + len(data), length - len(data)
            make = partial(wire.ReadSegment, segment, position, left, NO_TOKEN)
            reply = await self.request(segment, make)
            if not isinstance(reply, wire.SegmentRead) or not reply.data:
                raise StoreAnswerError(f"{segment} cannot be read at {offset}: {reply}")
            data += bytes(reply.data)
        return data

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """Return an attribute's value; ``NULL_ATTRIBUTE_VALUE`` for one that is not set."""
        reply = await self.request(
            segment, lambda i: wire.GetSegmentAttribute(i, segment, attribute_id, NO_TOKEN)
        )
        return expect_one(reply, wire.SegmentAttribute).value

    async def replace_attribute(
        self, segment: str, attribute_id: bytes, value: int, *, expected: int
    ) -> bool:
        """Set an attribute if it has the expected value; returns whether it had."""
        reply = await self.request(
            segment,
            lambda i: wire.UpdateSegmentAttribute(
                i, segment, attribute_id, value, expected, NO_TOKEN
            ),
        )
        return expect_one(reply, wire.SegmentAttributeUpdated).success

    async def append_if_at(
        self, segment: str, event: bytes, *, expected_offset: int, writer_id: bytes
    ) -> bool:
        """Append an event if the segment ends at an offset, and return whether it did.

        The append is tried once: when the answer is lost, ``StoreUnavailableError`` leaves open
        whether it happened. No two tasks may append under the same writer id at a time.
        """
        try:
            connection = await self._connection(self._placement.store_of(segment))
            setup = await connection.call(
                lambda i: wire.SetupAppend(i, writer_id, segment, NO_TOKEN)
            )
            if not isinstance(setup, wire.AppendSetup):
                raise StoreAnswerError(f"{segment} takes no appends: {setup}")
            number = max(0, setup.last_event_number) + 1
            reply = await connection.call(
                lambda i: wire.ConditionalAppend(writer_id, number, expected_offset, event, i)
            )
        except ConnectionLostError as error:
            raise StoreUnavailableError(str(error)) from error
        return expect(reply, wire.DataAppended, wire.ConditionalCheckFailed) is wire.DataAppended

    def forget_other_stores(self, addresses: Set[Address]) -> None:
        """Close the connections to stores that are not at these addresses.

        Requests in flight there fail and are repeated, because a store that was cut off would
        answer late, or never.
        """
        for address in self._connections.keys() - addresses:
            self._nursery.start_soon(self._connections.pop(address).close)

    def is_known_to_live(self, segment: str) -> bool:
        """Return whether the segment's store lives, as far as is known at once; for any thread.

        In a cluster that is never known at once: a client of a process that is being killed may
        lose its connection earlier. Raises ``StoreUnavailableError`` when no store has the segment
        now.
        """
        connection = self._connections.get(self._placement.store_of(segment))
        return self._placement.is_fixed and connection is not None and not connection.has_hung_up

    async def wait_until_alive(self, segment: str) -> None:
        """Return when the store that then has the segment lives, or after ``retry_seconds_max``.

        In a cluster the store must answer a request; elsewhere a connection to it is enough.
        """
        with trio.move_on_after(self._retry_seconds_max):
            while True:
                with suppress(ConnectionLostError, StoreUnavailableError):
                    # A silent store may have lost its containers to another meanwhile.
                    with trio.move_on_after(ALIVE_SECONDS_MAX):
                        connection = await self._connection(self._placement.store_of(segment))
                        if not self._placement.is_fixed:
                            await connection.call(
                                _about(MISSING_SEGMENT, wire.GetStreamSegmentInfo)
                            )
                        if not connection.has_hung_up:
                            return
                await trio.sleep(LOOK_SECONDS)

    async def _connection(self, address: Address) -> StoreConnection:
        """Return the live connection to a store; open one now if there is none."""
        connection = self._connections.get(address)
        if connection is not None and not connection.is_lost:
            return connection
        async with self._connecting.setdefault(address, trio.Lock()):
            connection = self._connections.get(address)
            if connection is None or connection.is_lost:
                connection = await self._connect(address)
                self._connections[address] = connection
            return connection

    async def _connect(self, address: Address) -> StoreConnection:
        host, port = address
        try:
            with trio.fail_after(self._reply_seconds_max):
                stream = await self._open_stream(host, port)
        except (OSError, trio.TooSlowError) as error:
            reason = str(error) or "it took too long"
            raise ConnectionLostError(f"cannot connect to {host}:{port}: {reason}") from error
        connection = StoreConnection(stream, address, reply_seconds_max=self._reply_seconds_max)
        self._nursery.start_soon(connection.run)
        return connection


def _refusal(segment: str) -> str:
    return f"the segment store does not serve {segment}"


def _about(segment: str, kind: Callable[[int, str, str], wire.Request]) -> MakeRequest:
    """Return what builds a request that needs nothing but its segment."""
    return lambda request_id: kind(request_id, segment, NO_TOKEN)


def _info(reply: wire.Reply) -> SegmentBounds | None:
    expect(reply, wire.StreamSegmentInfo, wire.NoSuchSegment)
    if not isinstance(reply, wire.StreamSegmentInfo) or not reply.exists:
        return None
    return SegmentBounds(reply.start_offset, reply.write_offset, reply.is_sealed)


def _create_request(segment: NewSegment, request_id: int) -> wire.CreateSegment:
    return wire.CreateSegment(
        request_id,
        segment.name,
        segment.target_rate,
        segment.scale_type,
        NO_TOKEN,
        segment.rollover_bytes,
    )


def expect(reply: wire.Reply, *kinds: type[wire.Reply]) -> type[wire.Reply]:
    """Return a reply that is of one of ``kinds``; raise ``StoreAnswerError`` for any other."""
    for kind in kinds:
        if isinstance(reply, kind):
            return kind
    raise StoreAnswerError(f"unexpected reply from a segment store: {reply}")


def expect_one(reply: wire.Reply, kind: type[R]) -> R:
    """Return a reply of this kind; raise ``StoreAnswerError`` for any other."""
    expect(reply, kind)
    assert isinstance(reply, kind)
    return reply


async def for_each(
    items: Iterable[T],
    action: Callable[[T], Awaitable[None]],
    *,
    limit: int = CONCURRENT_REQUESTS_MAX,
) -> None:
    """Run an action for every item, at most ``limit`` at a time; the first failure ends the rest.

    Raises the failure itself, not in a group.
    """
    places = trio.Semaphore(limit)
    failures: list[Exception] = []

    async def run(item: T) -> None:
        try:
            await action(item)
        except Exception as error:
            failures.append(error)
            nursery.cancel_scope.cancel()
        finally:
            places.release()

    async with trio.open_nursery() as nursery:
        for item in items:
            try:
                places.acquire_nowait()
            except trio.WouldBlock:
                await places.acquire()
            nursery.start_soon(run, item)
    if failures:
        raise failures[0]


@overload
async def run_all(one: Action[A], two: Action[B], /) -> tuple[A, B]: ...
@overload
async def run_all(one: Action[A], two: Action[B], three: Action[C], /) -> tuple[A, B, C]: ...
@overload
async def run_all(*actions: Action[T]) -> tuple[T, ...]: ...


async def run_all(*actions: Action[Any]) -> tuple[Any, ...]:
    """Run actions side by side, each to its end, and return their results.

    Raises the first failure itself.
    """
    results: list[Any] = [None] * len(actions)
    failures: list[Exception] = []

    async def run(index: int, action: Action[Any]) -> None:
        try:
            results[index] = await action()
        except Exception as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for index, action in enumerate(actions):
            nursery.start_soon(run, index, action)
    if failures:
        raise failures[0]
    return tuple(results)


@asynccontextmanager
async def open_segment_client(
    placement: Placement,
    *,
    open_stream: OpenStream = trio.open_tcp_stream,
    random: Random,
    reply_seconds_max: float,
    retry_seconds_max: float,
) -> AsyncIterator[SegmentClient]:
    """Open a client whose connections live as long as the ``async with`` block."""
    async with trio.open_nursery() as nursery:
        yield SegmentClient(
            placement,
            nursery,
            open_stream=open_stream,
            random=random,
            reply_seconds_max=reply_seconds_max,
            retry_seconds_max=retry_seconds_max,
        )
        nursery.cancel_scope.cancel()
