"""Requests about the segments of one stream or table, asked until they have an answer.

Owns: where each segment is, and the retries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from pravega_wire.names import segment_name
from segstore_client.access.tokens import StoreAccess
from segstore_client.addresses import Address
from segstore_client.backoff import Patience
from segstore_client.connections.calls import call_blocking, wait_to_repeat
from segstore_client.connections.request_pool import RequestPool
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient
from segstore_client.steps.table_steps import Make


class SegmentRequests:
    """Asks the segment stores of a stream. ``what`` is its name, for errors; all tasks may ask."""

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        stream: str,
        *,
        what: str,
        patience: float,
    ) -> None:
        self._controller = controller
        self._pool = pool
        self._scope = scope
        self._stream = stream
        self._what = what
        self._patience = patience
        self._addresses: dict[int, Address] = {}

    async def ask(self, access: StoreAccess, segment: int, make: Make) -> tuple[int, wire.Reply]:
        """Ask a segment; return the number of attempts, and the reply.

        An attempt whose answer was lost may have been done. Raises ``NoPermissionError``, and
        ``UnavailableError`` when servers are unreachable for too long.
        """
        name = segment_name(self._scope, self._stream, segment)
        patience, attempts = Patience(self._patience), 0
        locate = partial(self._controller.segment_address, self._scope, self._stream, segment)
        while True:
            attempts += 1
            try:
                token = await call_blocking(access.token) if access.has_tokens else ""
                if segment not in self._addresses:
                    self._addresses[segment] = await call_blocking(locate)
                reply = await self._pool.ask(
                    self._addresses[segment], access, _bind(make, name, token)
                )
                if isinstance(reply, wire.AuthTokenCheckFailed):
                    raise access.refusal(reply, f"no permission for {self._what}")
                if isinstance(reply, wire.WrongHost):
                    raise ProtocolError("the segment is at another store")
                return attempts, reply
            except RETRIED_ERRORS as error:
                self._addresses.pop(segment, None)
                await wait_to_repeat(patience, error, f"{self._what} could not be reached")


def _bind(make: Make, name: str, token: str) -> Callable[[int], wire.Request]:
    return lambda request_id: make(request_id, name, token)
