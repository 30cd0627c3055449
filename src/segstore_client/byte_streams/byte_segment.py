"""The segment of a byte stream: which one it is, and where its bytes begin and end.

Owns: the rule that a byte stream has one segment.
"""

from __future__ import annotations

from pravega_wire import commands as wire
from pravega_wire.names import scoped_name
from segstore_client.access.tokens import StoreAccess
from segstore_client.connections.calls import call_blocking
from segstore_client.connections.request_pool import RequestPool
from segstore_client.connections.segment_requests import SegmentRequests
from segstore_client.controller.controller_client import (
    ControllerClient,
    CurrentSegments,
    HeadSegments,
)
from segstore_client.errors import NotFoundError, PravegaError, UsageError
from segstore_client.steps.table_steps import Make


class ByteSegment:
    """The only segment of a stream. ``access`` is the way to it."""

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        stream: str,
        *,
        access: StoreAccess,
        patience: float,
    ) -> None:
        self.name = scoped_name(scope, stream)
        self.number = 0
        """The segment's id, after ``find``."""
        self._controller = controller
        self._access = access
        self._scope = scope
        self._stream = stream
        self._requests = SegmentRequests(
            controller, pool, scope, stream, what=self.name, patience=patience
        )

    async def find(self) -> CurrentSegments:
        """Ask the controller for the segment; return those that accept bytes now, one or none.

        Raises ``UsageError`` if the stream has, or once had, another number of segments.
        """
        current, head = await call_blocking(self._ask_controller)
        found = {*head.offsets, *(each.segment_id for each in current.ranges)}
        if len(found) != 1:
            raise UsageError(
                f"stream {self.name} has {len(found)} segments: a byte stream has one, and is never"
                " scaled"
            )
        (self.number,) = found
        return current

    async def find_bounds(self) -> tuple[int, int]:
        """Return the offset of the first byte that is left, and that behind the last one."""
        reply = await self.ask(wire.GetStreamSegmentInfo)
        if not isinstance(reply, wire.StreamSegmentInfo):
            raise self.refusal(reply)
        return reply.start_offset, reply.write_offset

    async def ask(self, make: Make) -> wire.Reply:
        """Ask the segment store, until there is an answer, and return it.

        Raises errors as ``SegmentRequests.ask``.
        """
        return (await self._requests.ask(self._access, self.number, make))[1]

    def refusal(self, reply: wire.Reply) -> PravegaError:
        """Return the error for a reply that is no answer."""
        if isinstance(reply, wire.NoSuchSegment):
            return self.gone()
        return PravegaError(f"the segment of {self.name} answers with {type(reply).__name__}")

    def gone(self) -> NotFoundError:
        """Return the error for a segment that the stores do not have."""
        return NotFoundError(f"stream {self.name} does not exist any more")

    def _ask_controller(self) -> tuple[CurrentSegments, HeadSegments]:
        current = self._controller.current_segments(self._scope, self._stream)
        return current, self._controller.head_segments(self._scope, self._stream)
