"""Asks segment stores for the lengths of a stream's segments.

Owns: the connections of one call. Each call opens the connections that it needs, and closes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    NULL_ATTRIBUTE_VALUE,
    AuthTokenCheckFailed,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    NoSuchSegment,
    Reply,
    Request,
    SegmentAttribute,
    StreamSegmentInfo,
    WrongHost,
)
from pravega_wire.errors import ProtocolError
from pravega_wire.names import scoped_name, segment_name
from segstore_client.access.tokens import StoreAccess, TokenExpiredError
from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.repeats import repeat_calls
from segstore_client.errors import PravegaError

T = TypeVar("T")
R = TypeVar("R", bound=Reply)

REPLY_SECONDS = 30.0
ASKS_MAX = 2
"""Number of attempts at a request: the token of the first may have expired on its way."""

EVENT_COUNT = (1 << 63).to_bytes(8, "big") + (1).to_bytes(8, "big")
"""Id of the attribute of a segment in which stores count the events that were appended."""


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """The bounds of a segment, and the number of events that were ever appended to it."""

    start: int
    end: int
    appended_events: int | None


def segment_infos(
    controller: ControllerClient,
    scope: str,
    stream: str,
    segments: Iterable[int],
) -> dict[int, StreamSegmentInfo]:
    """Return the segment stores' information about segments, without those that no longer exist.

    Raises ``UnavailableError`` when a segment store cannot be reached for as long as the patience
    of the controller's client.
    """
    return _ask_each(controller, scope, stream, segments, _ask_info)


def segment_sizes(
    controller: ControllerClient, scope: str, stream: str, segments: Iterable[int]
) -> dict[int, SegmentSize]:
    """Return the sizes of segments, without those that no longer exist.

    Raises errors as ``segment_infos`` does.
    """
    return _ask_each(controller, scope, stream, segments, _ask_size)


_Ask = Callable[[SegmentConnection, StoreAccess, str], T | None]


def _ask_each(
    controller: ControllerClient, scope: str, stream: str, segments: Iterable[int], ask: _Ask[T]
) -> dict[int, T]:
    return repeat_calls(
        partial(_try_each, controller, scope, stream, list(segments), ask),
        Patience(controller.patience),
        f"the segments of {scoped_name(scope, stream)} could not be reached",
    )


def _try_each(
    controller: ControllerClient, scope: str, stream: str, segments: Iterable[int], ask: _Ask[T]
) -> dict[int, T]:
    found: dict[int, T] = {}
    access = controller.store_access(scope, stream, Purpose.READ)
    connections: dict[tuple[str, int], SegmentConnection] = {}
    with ExitStack() as stack:
        for segment in segments:
            address = controller.segment_address(scope, stream, segment)
            if address not in connections:
                connection = access.connect(*address, timeout=REPLY_SECONDS)
                connections[address] = stack.enter_context(connection)
            answer = ask(connections[address], access, segment_name(scope, stream, segment))
            if answer is not None:
                found[segment] = answer
    return found


def _ask_info(
    connection: SegmentConnection, access: StoreAccess, name: str
) -> StreamSegmentInfo | None:
    """Return the information about a segment; None if it does not exist."""

    def request(request_id: int, token: str) -> Request:
        return GetStreamSegmentInfo(request_id, name, token)

    return _ask(connection, access, name, request, StreamSegmentInfo)


def _ask_size(connection: SegmentConnection, access: StoreAccess, name: str) -> SegmentSize | None:
    def request(request_id: int, token: str) -> Request:
        return GetSegmentAttribute(request_id, name, EVENT_COUNT, token)

    info = _ask_info(connection, access, name)
    reply = _ask(connection, access, name, request, SegmentAttribute)
    if info is None or reply is None:
        return None
    events: int | None = reply.value
    if events == NULL_ATTRIBUTE_VALUE:
        events = None if info.write_offset else 0
    return SegmentSize(info.start_offset, info.write_offset, events)


def _ask(
    connection: SegmentConnection,
    access: StoreAccess,
    name: str,
    request: Callable[[int, str], Request],
    kind: type[R],
) -> R | None:
    """Return the reply to a request, of a kind; None if the segment does not exist."""
    for _ in range(ASKS_MAX):
        reply = connection.call(request(connection.next_request_id(), access.token()))
        if isinstance(reply, kind):
            return reply
        if isinstance(reply, NoSuchSegment):
            return None
        if isinstance(reply, WrongHost):
            raise ProtocolError(f"segment {name} is at another store")
        if not isinstance(reply, AuthTokenCheckFailed):
            raise PravegaError(f"segment {name} answers with {type(reply).__name__}")
        refusal = access.refusal(reply, f"no permission to read segment {name}")
        if not isinstance(refusal, TokenExpiredError):
            break
    raise refusal


def tail_offsets(controller: ControllerClient, scope: str, stream: str) -> dict[int, int]:
    """Return the lengths of a stream's active segments by id; none when the stream is sealed."""
    current = controller.current_segments(scope, stream)
    infos = segment_infos(
        controller,
        scope,
        stream,
        [item.segment_id for item in current.ranges],
    )
    return {segment: info.write_offset for segment, info in infos.items()}
