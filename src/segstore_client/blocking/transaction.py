"""Writes events to a stream that readers see together, or never, for a program that blocks.

Owns: one transaction of the controller, its lease, and its end.

There is no thread that renews the lease: the calls do. A program that computes for longer than the
lease between two calls loses the transaction.

Invariants:
1. When the block is left without an error, all events are in the stream, each once; when the
   program's own error leaves it, none ever is. Held by
   ``test_events_of_a_transaction_come_together_or_never``. When the controller is away for too long
   while it commits, the block is left by ``UnavailableError``, and either may be.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from pravega_wire.names import scoped_name
from segstore_client.backoff import Patience
from segstore_client.blocking.calls import repeat_calls
from segstore_client.blocking.transaction_writer import TransactionWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.delays import OnDelay
from segstore_client.errors import PravegaError, TransactionEndedError
from segstore_client.leases import (
    LOOK_SECONDS,
    LOOK_SECONDS_MAX,
    RENEWALS,
    describe_end,
)
from segstore_client.serializers import Serializer, T

R = TypeVar("R")


class BlockingTransaction(Generic[T]):
    """Events of one transaction. Use it in one thread, within a ``with`` block: leaving it without
    an error commits, and returns when readers see the events; leaving it by an error aborts.

    ``BlockingStore.transaction`` makes it. An event has at most 8 MiB.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        serializer: Serializer[T],
        lease: float,
        patience: float,
        on_delay: OnDelay | None,
    ) -> None:
        self._controller = controller
        self._scope, self._stream = scope, stream
        self._name = scoped_name(scope, stream)
        self._encode = serializer.encoder
        self._lease_ms = int(lease * 1000)
        self._patience = Patience(patience)
        begun = controller.begin_transaction(scope, stream, self._lease_ms)
        self._identifier = begun.identifier
        self._renew_at = self._next_renewal()
        self._writer = TransactionWriter(
            scope,
            stream,
            begun,
            partial(controller.segment_address, scope, stream),
            access=controller.store_access(scope, stream, Purpose.WRITE),
            patience=patience,
            on_delay=on_delay,
        )

    @property
    def id(self) -> uuid.UUID:
        """Return the transaction's id, as official clients and the command line show it."""
        return uuid.UUID(bytes=self._identifier)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_committed = False
        try:
            if kind is None:
                self.flush()
                self._commit()
                is_committed = True
        finally:
            self._writer.close()
            if not is_committed:
                self._abort()

    def write(self, data: T, *, key: str | None = None) -> None:
        """Write an event, and those before it; return when they are stored. Readers see them after
        the commit. Raises errors as ``submit``."""
        self.submit(data, key=key)
        self.flush()

    def submit(self, data: T, *, key: str | None = None) -> None:
        """Queue an event as soon as there is room for it.

        Raises ``UsageError`` for an event that is too long, ``TransactionEndedError`` when the
        transaction was ended by others, ``UnavailableError`` when servers are unreachable for too
        long.
        """
        event = self._encode(data)
        with self._living():
            self._writer.write([event], [key])

    def flush(self) -> None:
        """Wait until every event written so far is stored. Raises errors as ``submit``."""
        with self._living():
            self._writer.flush()

    @contextmanager
    def _living(self) -> Iterator[None]:
        """Renew the lease if it is time to, before the block; explain how the transaction ended."""
        if time.monotonic() >= self._renew_at:
            self._repeat(partial(self._controller.ping_transaction, *self._of, self._lease_ms))
            self._renew_at = self._next_renewal()
        try:
            yield
        except TransactionEndedError:
            raise self._ended() from None

    def _next_renewal(self) -> float:
        return time.monotonic() + self._lease_ms / 1000 / RENEWALS

    @property
    def _of(self) -> tuple[str, str, bytes]:
        return self._scope, self._stream, self._identifier

    def _ended(self) -> TransactionEndedError:
        return describe_end(self.id, self._name)

    def _commit(self) -> None:
        if not self._repeat(partial(self._controller.commit_transaction, *self._of)):
            raise self._ended()
        seconds = LOOK_SECONDS
        look = partial(self._controller.transaction_state, *self._of)
        while (state := self._repeat(look)) in ("open", "committing"):
            time.sleep(seconds)
            seconds = min(2 * seconds, LOOK_SECONDS_MAX)
        if state != "committed":
            raise self._ended()

    def _abort(self) -> None:
        """Tell the controller; otherwise the lease ends the transaction."""
        with suppress(PravegaError):
            self._controller.abort_transaction(*self._of)

    def _repeat(self, call: Callable[[], R]) -> R:
        self._patience.renew()
        what = f"the controller could not be asked of transaction {self.id}"
        return repeat_calls(call, self._patience, what)
