"""Sends the controller's requests about segments to segment stores.

Owns: one link per store, reconnection with bounded backoff, and the replies that mean
success.

The placement is asked before each attempt, because a container may have moved.

If a store refuses a name of a segment permanently, no store has such a segment: requests to seal or
delete it, or to describe it, have the same result as for any missing segment.

Invariants:
1. When a request is sent again because its reply was lost, the reply that the work is done already
   (``SegmentAlreadyExists``, ``SegmentIsSealed``, ``NoSuchSegment`` for a deletion) counts as
   success. Held by ``test_doing_it_twice_is_the_same_as_once``.
2. When no store answers for ``retry_seconds_max``, a request raises ``StoreUnavailableError``.
   Held by ``test_a_store_that_stays_away_is_given_up_in_time``.
3. When a silent store says what it waits for, such as room on a disk, the request raises
   ``StoreDelayedError`` at once.
   Held by ``test_a_store_that_waits_for_room_is_asked_why_and_not_waited_for``.
4. When a store is silent, and answers no question, in a store without a cluster, the request raises
   ``StoreSilentError`` long before that.
   Held by ``test_a_store_that_answers_nothing_is_named_soon``.
5. When a reply does not answer its request, the request raises ``StoreAnswerError``, and is not
   sent again. Held by ``test_a_reply_that_does_not_fit_its_request_is_not_waited_out``.
6. When some of many requests have no reply, only these are sent again.
   Held by ``test_of_many_requests_those_without_an_answer_are_sent_again``.
7. When a store does not accept this controller's token, the request is sent again, as long as when
   it does not answer. Held by ``test_a_token_that_is_not_accepted_yet_is_sent_again``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeGuard, TypeVar, overload

import structlog
import trio

from pravega_controller.errors import (
    StepRefusedError,
    StoreAnswerError,
    StoreDelayedError,
    StoreSilentError,
    StoreUnavailableError,
)
from pravega_controller.store_client.placement import Address, Placement
from pravega_controller.store_client.store_link import (
    LOST,
    REQUESTS_IN_FLIGHT_MAX,
    GetToken,
    StoreLink,
    ask_apart,
    name_store,
)
from pravega_security.tls_streams import OpenStream
from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.requests.shared_connection import MakeRequest

BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 1.0
BACKOFF_SHARE = 0.15
"""Length of a pause, as a part of the time since the first attempt. So the time after a store's
start until the next attempt is a small part of the time waited before."""
TELL_SECONDS = 5.0
"""Time, in seconds, after which the log tells why work waits for a segment store."""
TELL_AGAIN_SECONDS = 60.0
"""Minimum time, in seconds, between two such lines."""
ALIVE_SECONDS_MAX = 1.0
"""Maximum time, in seconds, to wait for a store's answer before the placement is asked again."""
METRICS_SECONDS_MAX = 5.0
"""Maximum time, in seconds, for a store's metrics. Prometheus waits for 10 seconds by default."""
LOOK_SECONDS = 0.05
"""Pause, in seconds, between two attempts to find a store that lives."""
MISSING_SEGMENT = "_system/alive/0.#epoch.0"
"""Name of a segment that does not exist. A request about it finds out whether a store answers."""
CONCURRENT_REQUESTS_MAX = 64
REQUESTS_TOGETHER_MAX = 64
"""Maximum number of requests for which one task waits at once."""
GROUPS_AT_A_TIME_MAX = REQUESTS_IN_FLIGHT_MAX // REQUESTS_TOGETHER_MAX

NO_TOKEN = ""
"""The delegation token of requests; a link replaces it while authorization is on."""

_REFUSALS_FOR_NOW = (wire.WrongHost, wire.AuthTokenCheckFailed)
"""Refusals that may pass: a container moves, and files with keys come to machines one by one."""

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
        token: GetToken | None = None,
    ) -> None:
        self._token = token
        self._placement = placement
        self._nursery = nursery
        self._open_stream = open_stream
        self._random = random
        self._reply_seconds_max = reply_seconds_max
        self._retry_seconds_max = retry_seconds_max
        self._ask_apart = partial(ask_apart, open_stream=open_stream, token=token)
        self._tell_next = trio.current_time()
        self._links: dict[Address, StoreLink] = {}

    async def request(
        self, segment: str, make: MakeRequest, *, retry_seconds_max: float | None = None
    ) -> wire.Reply:
        """Send a request about a segment to its store and return the reply.

        Raises ``StoreUnavailableError`` when no store answered for the whole retry time, and
        ``StoreSilentError`` sooner, if no other store can answer and no retry time is given.
        """
        limit = self._retry_seconds_max if retry_seconds_max is None else retry_seconds_max
        began = trio.current_time()
        while True:
            try:
                [reply] = await self._link(self._placement.store_of(segment)).call_all([make])
                if not isinstance(reply, _REFUSALS_FOR_NOW):
                    return reply
                problem = _refusal(segment, reply)
            except StoreDelayedError:
                raise
            except StoreSilentError as error:
                if retry_seconds_max is None and self._placement.is_fixed:
                    raise
                problem = str(error)
            except (*LOST, StoreUnavailableError) as error:
                problem = str(error)
            await self._pause(began, limit, problem, segment)

    async def _pause(self, began: float, limit: float, problem: str, segment: str) -> None:
        """Wait before a new attempt of work that began at ``began``.

        After ``limit`` seconds, raises ``StoreDelayedError`` if the segment's store gives a reason,
        and otherwise ``StoreUnavailableError``; both have the ``problem``.
        """
        waited = trio.current_time() - began
        longest = min(BACKOFF_SECONDS_MIN + BACKOFF_SHARE * waited, BACKOFF_SECONDS_MAX)
        pause = longest * (0.5 + self._random.random() / 2)
        if waited + pause > limit:
            problem = f"gave up after {limit:g} s: {problem}"
            reason: str | None = None
            with suppress(StoreUnavailableError):
                reason = await self.read_delays(self._placement.store_of(segment))
            if reason:
                raise StoreDelayedError(f"{problem}: {reason}")
            raise StoreUnavailableError(problem)
        now = trio.current_time()
        if waited >= TELL_SECONDS and now >= self._tell_next:
            self._tell_next = now + TELL_AGAIN_SECONDS
            log.warning("a segment store is waited for", why=problem, seconds=round(waited, 1))
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
            segment = requests[left[0]][0]
            await self._pause(began, self._retry_seconds_max, problem, segment)

    async def _ask(
        self,
        requests: Sequence[SegmentRequest],
        positions: Iterable[int],
        replies: dict[int, wire.Reply],
    ) -> str:
        """Send the requests at ``positions`` once and add their replies to ``replies``.

        Returns why other requests have no reply, or "".
        """
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
                makes = [requests[each][1] for each in positions]
                found = await self._link(store).call_all(makes)
            except StoreSilentError as error:
                if self._placement.is_fixed:
                    raise
                problem = str(error)
                return
            except LOST as error:
                problem = str(error)
                return
            for position, reply in zip(positions, found, strict=True):
                if isinstance(reply, _REFUSALS_FOR_NOW):
                    problem = _refusal(requests[position][0], reply)
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
        """Create segments. Some may exist already. Raises ``StepRefusedError``."""
        requests = [(segment.name, partial(_create_request, segment)) for segment in wanted]
        for reply in await self.request_all(requests):
            expect_created(reply)

    async def seal_segments(self, segments: Sequence[str]) -> None:
        """Seal segments. Some may be sealed already, or missing."""
        requests = [(segment, _about(segment, wire.SealSegment)) for segment in segments]
        for segment, reply in zip(segments, await self.request_all(requests), strict=True):
            if (
                expect(reply, wire.SegmentSealed, wire.SegmentIsSealed, wire.NoSuchSegment)
                is wire.NoSuchSegment
            ):
                log.warning("segment to seal does not exist", segment=segment)

    async def delete_segments(self, segments: Iterable[str]) -> None:
        """Delete segments. Some may be gone already."""
        requests = [(segment, _about(segment, wire.DeleteSegment)) for segment in segments]
        for reply in await self.request_all(requests):
            expect(reply, wire.SegmentDeleted, wire.NoSuchSegment)

    async def truncate_segment(self, segment: str, *, offset: int) -> None:
        """Truncate a segment at ``offset``. It may have been truncated there or further already.

        Raises ``StepRefusedError`` if the segment ends earlier.
        """
        reply = await self.request(
            segment, lambda i: wire.TruncateSegment(i, segment, offset, NO_TOKEN)
        )
        if isinstance(reply, wire.SegmentIsTruncated) and reply.start_offset < offset:
            raise StepRefusedError(f"{segment} cannot be truncated at {offset}: it ends earlier")
        if (
            expect(reply, wire.SegmentTruncated, wire.SegmentIsTruncated, wire.NoSuchSegment)
            is wire.NoSuchSegment
        ):
            log.warning("segment to truncate does not exist", segment=segment)

    async def merge_segments(self, batches: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
        """Merge segments into each target, in order; return the target's end after each of them.

        A source that does not exist was merged before, or was never written.
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
        """Return bytes of a segment; raise ``StoreAnswerError`` if it has none at the offset."""
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

        The append is tried once. After ``StoreUnavailableError`` it is unknown whether it happened.
        Two tasks must not append under the same writer id at the same time.
        """
        try:
            link = self._link(self._placement.store_of(segment))
            [setup] = await link.call_all(
                [lambda i: wire.SetupAppend(i, writer_id, segment, NO_TOKEN)]
            )
            if not isinstance(setup, wire.AppendSetup):
                raise StoreAnswerError(f"{segment} takes no appends: {setup}")
            number = max(0, setup.last_event_number) + 1
            [reply] = await link.call_all(
                [lambda i: wire.ConditionalAppend(writer_id, number, expected_offset, event, i)]
            )
        except LOST as error:
            raise StoreUnavailableError(str(error)) from error
        return expect(reply, wire.DataAppended, wire.ConditionalCheckFailed) is wire.DataAppended

    def forget_other_stores(self, addresses: Set[Address]) -> None:
        """Close the connections to stores that are not at these addresses.

        Requests in flight there fail and are repeated, because a store that was cut off would
        answer late, or never.
        """
        for address in self._links.keys() - addresses:
            self._links.pop(address).end(
                ConnectionLostError(f"{name_store(address)} has no containers any more")
            )

    def is_known_to_live(self, segment: str) -> bool:
        """Return whether the segment's store is known to live, without waiting; for any thread.

        In a cluster the result is False: a client may notice the death of a store before this
        controller does. Raises ``StoreUnavailableError`` when no store has the segment now.
        """
        link = self._links.get(self._placement.store_of(segment))
        return self._placement.is_fixed and link is not None and not link.has_hung_up

    async def wait_until_alive(self, segment: str) -> None:
        """Wait until the segment's store lives, at most for ``retry_seconds_max``.

        In a cluster the store must answer a request; otherwise a connection to it is enough.
        """
        with trio.move_on_after(self._retry_seconds_max):
            while True:
                with suppress(*LOST, StoreUnavailableError):
                    # Another store may have taken over the containers of a silent store.
                    with trio.move_on_after(ALIVE_SECONDS_MAX):
                        link = self._link(self._placement.store_of(segment))
                        await link.wait_until_open()
                        if not self._placement.is_fixed:
                            await link.call_all(
                                [_about(MISSING_SEGMENT, wire.GetStreamSegmentInfo)]
                            )
                        if not link.has_hung_up:
                            return
                await trio.sleep(LOOK_SECONDS)

    async def read_metrics(self, address: Address) -> bytes | None:
        """Return the readings of a store's metrics; None if it does not tell them."""
        reply = await self._ask_apart(
            address,
            lambda number: wire.AskMetrics(number, NO_TOKEN),
            seconds_max=METRICS_SECONDS_MAX,
        )
        return reply.readings if isinstance(reply, wire.MetricsTold) else None

    def _link(self, address: Address) -> StoreLink:
        """Return the connection to a store; open one if there is none."""
        link = self._links.get(address)
        if link is None or link.error is not None:
            link = self._links[address] = StoreLink(
                address,
                open_stream=self._open_stream,
                reply_seconds_max=self._reply_seconds_max,
                ask_delays=partial(self.read_delays, address),
                token=self._token,
            )
            self._nursery.start_soon(link.run)
        return link

    async def read_delays(self, address: Address) -> str | None:
        """Return what requests to a store wait for, in words; "" if the store gives no reason.

        Returns None if it does not answer in time. A store that does not know the command hangs up.
        """
        with trio.move_on_after(ALIVE_SECONDS_MAX):
            reply = await self._ask_apart(
                address, wire.AskDelays, seconds_max=2 * ALIVE_SECONDS_MAX
            )
            return "; ".join(reply.reasons) if isinstance(reply, wire.DelaysTold) else ""
        return None


def _refusal(segment: str, reply: wire.Reply) -> str:
    if isinstance(reply, wire.AuthTokenCheckFailed):
        return (
            f"the segment store of {segment} does not accept this controller's token: do both have"
            " the same token_keys, and clocks that agree?"
        )
    return f"the segment store does not serve {segment}"


def _about(segment: str, kind: Callable[[int, str, str], wire.Request]) -> MakeRequest:
    """Return a function that builds a request of a kind whose only argument is the segment."""
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


def expect_created(reply: wire.Reply) -> None:
    """Raise ``StepRefusedError`` for a reply by which a store refuses permanently to create a
    segment, and ``StoreAnswerError`` for any other but success.
    """
    if _is_refusal(reply):
        raise StepRefusedError(f"the segment store refuses {reply.segment}: {reply.message}")
    expect(reply, wire.SegmentCreated, wire.SegmentAlreadyExists)


def _is_refusal(reply: wire.Reply) -> TypeGuard[wire.ErrorMessage]:
    """Return whether a store refuses a request permanently: repeating it would not help."""
    return isinstance(reply, wire.ErrorMessage) and reply.error_code == wire.ILLEGAL_ARGUMENT


def expect(reply: wire.Reply, *kinds: type[wire.Reply]) -> type[wire.Reply]:
    """Return the one of ``kinds`` that a reply is of; raise ``StoreAnswerError`` for any other.

    A request about an existing segment that is refused permanently counts as ``NoSuchSegment``.
    """
    if wire.NoSuchSegment in kinds and _is_refusal(reply):
        log.warning("a refused segment does not exist", segment=reply.segment, why=reply.message)
        return wire.NoSuchSegment
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
    token: GetToken | None = None,
) -> AsyncIterator[SegmentClient]:
    """Open a client whose connections live as long as the ``async with`` block.

    ``token`` returns the token of its requests; None while authorization is off.
    """
    async with trio.open_nursery() as nursery:
        yield SegmentClient(
            placement,
            nursery,
            open_stream=open_stream,
            random=random,
            reply_seconds_max=reply_seconds_max,
            retry_seconds_max=retry_seconds_max,
            token=token,
        )
        nursery.cancel_scope.cancel()
