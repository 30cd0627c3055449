"""The first thing that a program that blocks gets: a store, with its scopes and streams.

Owns: one controller client, and who calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from segstore_client.access.settings import AccessSettings
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.backoff import PATIENCE_SECONDS
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.blocking.table import BlockingTable
from segstore_client.blocking.transaction import BlockingTransaction
from segstore_client.control import Control, open_controller, split_name
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.bounds import At
from segstore_client.delays import OnDelay
from segstore_client.leases import LEASE_SECONDS
from segstore_client.positions import Position


class BlockingStore(Control):
    """A store that was connected to. Names of streams are ``SCOPE/STREAM``.

    All threads may use it; each has writers, readers, tables and transactions of its own.
    """

    def __init__(self, controller: ControllerClient, *, patience: float) -> None:
        super().__init__(controller)
        self._patience = patience

    def writer(self, stream: str, *, on_delay: OnDelay | None = None) -> BlockingEventWriter:
        """Return a writer of events, to be used in a ``with`` block.

        ``on_delay`` is called with the reason why a store does not answer now.
        """
        return BlockingEventWriter(
            self._controller, *split_name(stream), patience=self._patience, on_delay=on_delay
        )

    def transaction(
        self, stream: str, *, lease: float = LEASE_SECONDS, on_delay: OnDelay | None = None
    ) -> BlockingTransaction:
        """Begin a transaction, to be used in a ``with`` block, which commits it.

        The calls on it renew its lease. If none comes for ``lease`` seconds, the controller aborts
        it.
        """
        return BlockingTransaction(
            self._controller,
            *split_name(stream),
            lease=lease,
            patience=self._patience,
            on_delay=on_delay,
        )

    def reader(
        self,
        stream: str,
        *,
        start: At = Position.HEAD,
        end: At | None = None,
    ) -> BlockingEventReader:
        """Return a reader of events, to be used in a ``with`` block.

        It begins and ends at an end of the stream, at a time, or at a stream cut.
        ``Position.TAIL`` as the end is the tail that the stream has now. Without an end it goes on
        until the stream is sealed.

        Raises ``UsageError`` if the stream has no such place, or the end lies before the start.
        """
        return BlockingEventReader(
            self._controller,
            *split_name(stream),
            start=start,
            end=end,
            patience=self._patience,
        )

    def table(self, table: str) -> BlockingTable:
        """Return the entries of a key-value table. Raises ``NotFoundError``."""
        return BlockingTable(self._controller, *split_name(table), patience=self._patience)


@contextmanager
def connect(
    controller: str = DEFAULT_CONTROLLER,
    *,
    user: str = "",
    password: str = "",
    token: str = "",
    ca: str = "",
    patience: float = PATIENCE_SECONDS,
) -> Iterator[BlockingStore]:
    """Connect to a store; the arguments are those of ``segstore_client.connect``."""
    named = AccessSettings(user=user, password=password, token=token, ca=ca)
    with closing(open_controller(controller, named)) as client:
        yield BlockingStore(client, patience=patience)
