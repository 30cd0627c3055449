"""Asks segment stores for the lengths of a stream's segments.

Owns: the connections of one call. Each call opens the connections that it needs, and closes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from pravega_blocking.access.tokens import StoreAccess, TokenExpiredError
from pravega_blocking.controller_client import ControllerClient, Purpose
from pravega_blocking.errors import PravegaError, UnavailableError
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    AuthTokenCheckFailed,
    GetStreamSegmentInfo,
    NoSuchSegment,
    StreamSegmentInfo,
)
from pravega_wire.errors import ProtocolError
from pravega_wire.names import scoped_name, segment_name

REPLY_SECONDS = 30.0
ASKS_MAX = 2
"""Number of attempts at a request: the token of the first may have expired on its way."""


def segment_infos(
    controller: ControllerClient,
    scope: str,
    stream: str,
    segments: Iterable[int],
) -> dict[int, StreamSegmentInfo]:
    """Return the segment stores' information about segments, without those that no longer exist.

    Raises ``UnavailableError`` when a segment store cannot be reached.
    """
    infos: dict[int, StreamSegmentInfo] = {}
    access = controller.store_access(scope, stream, Purpose.READ)
    connections: dict[tuple[str, int], SegmentConnection] = {}
    try:
        with ExitStack() as stack:
            for segment in segments:
                address = controller.segment_address(scope, stream, segment)
                if address not in connections:
                    connection = access.connect(*address, timeout=REPLY_SECONDS)
                    connections[address] = stack.enter_context(connection)
                name = segment_name(scope, stream, segment)
                info = _ask_info(connections[address], access, name)
                if info is not None:
                    infos[segment] = info
    except ProtocolError as error:
        raise UnavailableError(
            f"the segments of {scoped_name(scope, stream)} cannot be reached: {error}"
        ) from error
    return infos


def _ask_info(
    connection: SegmentConnection, access: StoreAccess, name: str
) -> StreamSegmentInfo | None:
    """Return the information about a segment; None if it does not exist."""
    for _ in range(ASKS_MAX):
        request_id = connection.next_request_id()
        reply = connection.call(GetStreamSegmentInfo(request_id, name, access.token()))
        if isinstance(reply, StreamSegmentInfo):
            return reply
        if isinstance(reply, NoSuchSegment):
            return None
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
