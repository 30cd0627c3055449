"""Writes events to a stream that readers see together, or never, for a program that blocks.

Owns: one transaction of the controller, its lease, and its end. The way of the events is that of
``BlockingKeyedWriter``.

There is no thread that renews the lease: the calls do. A program that computes for longer than the
lease between two calls loses the transaction.

Invariants:
1. When the block is left without an error, all events are in the stream, each once; when the
   program's own error leaves it, none ever is. Held by
   ``test_events_of_a_transaction_come_together_or_never``. When the controller is away for too long
   while it commits, the block is left by ``UnavailableError``, and either may be.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from pravega_wire.names import segment_name, transaction_segment_name
from pravega_wire.sessions.append_session import BUFFER_BYTES, AppendSession, Event
from pravega_wire.sessions.time_limits import call_within
from segstore_client.blocking.keyed_writer import BlockingKeyedWriter
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.repeats import repeat_calls
from segstore_client.delays import OnDelay
from segstore_client.errors import PravegaError, TransactionEndedError
from segstore_client.leases import (
    ABORT_SECONDS_MAX,
    LOOK_SECONDS,
    LOOK_SECONDS_MAX,
    RENEWALS,
    describe_end,
    describe_use_after,
)
from segstore_client.serializers import Serializer, T

R = TypeVar("R")


class BlockingTransaction(BlockingKeyedWriter[T]):
    """Events of one transaction. Use it in one thread, within a ``with`` block: leaving it without
    an error commits, and returns when readers see the events; leaving it by an error aborts.

    ``BlockingStore.transaction`` makes it. An event has at most 8 MiB. The calls are those of a
    writer; they raise ``TransactionEndedError`` when the transaction was ended by others.
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
        buffer_bytes: int = BUFFER_BYTES,
        on_delay: OnDelay | None,
    ) -> None:
        super().__init__(
            scope, stream, serializer=serializer, patience=patience, buffer_bytes=buffer_bytes
        )
        self._controller = controller
        self._on_delay = on_delay
        self._lease_ms = int(lease * 1000)
        self._access = controller.store_access(scope, stream, Purpose.WRITE)
        patient = controller.with_patience(patience)
        begun = patient.begin_transaction(scope, stream, self._lease_ms)
        self._identifier = begun.identifier
        self._renew_at = self._next_renewal()
        self._begin(begun.ranges)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._name}>"

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
        try:
            if kind is None and self._closed is None:
                self.commit()
        finally:
            self.abort()

    def commit(self) -> None:
        """Commit; return when readers see the events. Nothing can be written after that.

        Raises errors as ``flush``; after ``UnavailableError`` it may be called again.
        """
        self.flush()
        if not self._repeat(partial(self._controller.commit_transaction, *self._of)):
            raise self._ended()
        seconds = LOOK_SECONDS
        look = partial(self._controller.transaction_state, *self._of)
        while (state := self._repeat(look)) in ("open", "committing"):
            time.sleep(seconds)
            seconds = min(2 * seconds, LOOK_SECONDS_MAX)
        if state != "committed":
            raise self._ended()
        self._shut(describe_use_after(self.id, "was committed"))

    def abort(self) -> None:
        """Abort, unless the transaction has ended: no reader will ever see its events.

        If the controller cannot be told, the lease ends the transaction.
        """
        if self._closed is not None:
            return
        self._shut(describe_use_after(self.id, "was aborted"))
        abort = partial(self._controller.abort_transaction, *self._of)
        with suppress(PravegaError):
            call_within(ABORT_SECONDS_MAX, abort)

    def close(self) -> None:
        """Abort, as ``abort``."""
        self.abort()

    def _prepare(self) -> None:
        """Renew the lease, too, if it is time to."""
        super()._prepare()
        if time.monotonic() >= self._renew_at:
            self._repeat(partial(self._controller.ping_transaction, *self._of, self._lease_ms))
            self._renew_at = self._next_renewal()

    def _new_writer(self, segment: int) -> SegmentWriter:
        scope, stream = self._scope, self._stream
        locate = partial(self._controller.segment_address, scope, stream, segment)
        name = transaction_segment_name(segment_name(scope, stream, segment), self._identifier)
        session = AppendSession[Event](os.urandom(16))
        return SegmentWriter(
            name, locate, access=self._access, on_delay=self._on_delay, session=session
        )

    def _replace(self, ended: SegmentWriter) -> None:
        """Tell that the transaction has ended: its segment takes no more events."""
        raise self._ended()

    def _next_renewal(self) -> float:
        return time.monotonic() + self._lease_ms / 1000 / RENEWALS

    @property
    def _of(self) -> tuple[str, str, bytes]:
        return self._scope, self._stream, self._identifier

    def _ended(self) -> TransactionEndedError:
        return describe_end(self.id, self._name)

    def _repeat(self, call: Callable[[], R]) -> R:
        self._patience.renew()
        what = f"the controller could not be asked of transaction {self.id}"
        return repeat_calls(call, self._patience, what)
