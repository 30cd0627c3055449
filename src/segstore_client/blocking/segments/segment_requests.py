"""Requests about the segments of one stream or table, asked until they have an answer.

Owns: the retries. Each attempt has a connection of its own.
"""

from __future__ import annotations

from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from pravega_wire.names import segment_name
from segstore_client.access.tokens import StoreAccess
from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.repeats import repeat_calls
from segstore_client.steps.table_steps import Make

REPLY_SECONDS = 30.0


class BlockingSegmentRequests:
    """Asks the segment stores of a stream. ``what`` is its name, for errors."""

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, what: str, patience: float
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._what = what
        self._patience = patience

    def ask(self, access: StoreAccess, segment: int, make: Make) -> tuple[int, wire.Reply]:
        """Ask a segment; return the number of attempts, and the reply.

        An attempt whose answer was lost may have been done. Raises ``NoPermissionError``, and
        ``UnavailableError`` when servers are unreachable for too long.
        """
        name = segment_name(self._scope, self._stream, segment)
        attempts = 0

        def attempt() -> wire.Reply:
            nonlocal attempts
            attempts += 1
            address = self._controller.segment_address(self._scope, self._stream, segment)
            with access.connect(*address, timeout=REPLY_SECONDS) as connection:
                reply = connection.call(make(connection.next_request_id(), name, access.token()))
            if isinstance(reply, wire.AuthTokenCheckFailed):
                raise access.refusal(reply, f"no permission for {self._what}")
            if isinstance(reply, wire.WrongHost):
                raise ProtocolError("the segment is at another store")
            return reply

        reply = repeat_calls(
            attempt, Patience(self._patience), f"{self._what} could not be reached"
        )
        return attempts, reply
