"""The way of one segment's events to a reader, and what follows the segment.

Owns: ``SegmentFeed``, which a reader of a stream and a reader of a group have for each segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pravega_wire.names import scoped_name
from pravega_wire.sessions.read_cursor import EventCursor, ReadEvent
from pravega_wire.sessions.routes import Successor
from segstore_client.access.tokens import StoreAccess
from segstore_client.backoff import Patience
from segstore_client.connections.calls import repeat_calls
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import PravegaError
from segstore_client.reading.segment_fetch import SegmentFetch


class SegmentFeed:
    """Reads the segment of ``cursor``, which is of the given stream."""

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        cursor: EventCursor,
        *,
        access: StoreAccess,
        patience: float,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._cursor = cursor
        self._access = access
        self._patience = patience
        self._name = scoped_name(scope, stream)

    async def read(self, deliver: Callable[[list[ReadEvent[Any]]], Awaitable[None]]) -> None:
        """Deliver the events up to the end of the segment, or of the cursor, in pieces.

        Raises ``PravegaError`` if the segment's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        cursor = self._cursor
        fetch = SegmentFetch(
            cursor,
            partial(self._controller.segment_address, self._scope, self._stream, cursor.segment_id),
            deliver,
            what=self._name,
            access=self._access,
            patience=self._patience,
        )
        await fetch.run()
        if cursor.pending:
            raise PravegaError(f"segment {cursor.name} ends within an event")

    async def find_successors(self) -> tuple[Successor, ...]:
        """Return the segments that follow this one, which was read to its end; none where reading
        ends in it."""
        cursor = self._cursor
        if cursor.end is not None and not cursor.is_gone:
            return ()
        # The controller tells of a segment that is gone whether the stream is another one now.
        ask = self._controller.successors
        if cursor.is_gone:
            ask = self._controller.successors_of_gone
        found = await repeat_calls(
            partial(ask, self._scope, self._stream, cursor.segment_id),
            Patience(self._patience),
            f"{self._name} could not be read",
        )
        return found if cursor.end is None else ()
