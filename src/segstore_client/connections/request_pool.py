"""Requests of many tasks to segment stores, over one connection to each store.

Owns: the connections. One is opened for the first request to a store, and closed with the pool, or
when it breaks or a request on it gets no reply in time; then all requests on it raise, and the next
request opens another one.
"""

from __future__ import annotations

from functools import partial

from anyio.abc import TaskGroup

from pravega_wire.commands import Reply
from pravega_wire.requests.shared_connection import MakeRequest, SharedConnection
from pravega_wire.requests.store_connection import REPLY_SECONDS
from segstore_client.access.tokens import StoreAccess
from segstore_client.addresses import Address
from segstore_client.connections.connection import open_connection

KEEP_ALIVE_SECONDS = 20.0


class RequestPool:
    """Asks segment stores. ``group`` runs its tasks, and has to be cancelled to end them."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._connections: dict[Address, SharedConnection] = {}

    async def ask(self, address: Address, access: StoreAccess, make: MakeRequest) -> Reply:
        """Return the reply to the request that ``make`` makes of its id.

        Raises ``ProtocolError`` when the store cannot be reached or does not answer within
        ``REPLY_SECONDS``: the request may have been done. Raises ``UntrustedServerError`` when TLS
        forbids to reach it.
        """
        connection = self._connections.get(address)
        if connection is None or connection.error is not None:
            connection = self._connections[address] = SharedConnection(
                partial(open_connection, *address, access),
                quiet_seconds=REPLY_SECONDS,
                keep_alive_seconds=KEEP_ALIVE_SECONDS,
            )
            self._group.start_soon(connection.run)
        [reply] = await connection.ask_all([make])
        return reply
