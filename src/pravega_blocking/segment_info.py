"""Asks segment stores for the lengths of a stream's segments.

Owns: nothing that lasts; each call opens the connections that it needs and closes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from pravega_blocking.controller_client import ControllerClient
from pravega_blocking.errors import PravegaError, UnavailableError
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import GetStreamSegmentInfo, NoSuchSegment, StreamSegmentInfo
from pravega_wire.errors import ProtocolError
from pravega_wire.names import scoped_name, segment_name

REPLY_SECONDS = 30.0


def segment_infos(
    controller: ControllerClient,
    scope: str,
    stream: str,
    segments: Iterable[int],
    *,
    delegation_token: str = "",
) -> dict[int, StreamSegmentInfo]:
    """Return the segment stores' information about segments, without those that no longer exist.

    Raises ``UnavailableError`` when a segment store cannot be reached.
    """
    infos = {}
    connections: dict[tuple[str, int], SegmentConnection] = {}
    try:
        with ExitStack() as stack:
            for segment in segments:
                address = controller.segment_address(scope, stream, segment)
                if address not in connections:
                    connection = SegmentConnection(*address, timeout=REPLY_SECONDS)
                    connections[address] = stack.enter_context(connection)
                connection = connections[address]
                name = segment_name(scope, stream, segment)
                request_id = connection.next_request_id()
                reply = connection.call(GetStreamSegmentInfo(request_id, name, delegation_token))
                if isinstance(reply, StreamSegmentInfo):
                    infos[segment] = reply
                elif not isinstance(reply, NoSuchSegment):
                    raise PravegaError(f"segment {name} answers with {type(reply).__name__}")
    except ProtocolError as error:
        raise UnavailableError(
            f"the segments of {scoped_name(scope, stream)} cannot be reached: {error}"
        ) from error
    return infos


def tail_offsets(controller: ControllerClient, scope: str, stream: str) -> dict[int, int]:
    """Return the present end of a stream: lengths by segment id; empty when it is sealed."""
    current = controller.current_segments(scope, stream)
    infos = segment_infos(
        controller,
        scope,
        stream,
        [item.segment_id for item in current.ranges],
        delegation_token=current.delegation_token,
    )
    return {segment: info.write_offset for segment, info in infos.items()}
