"""Writes events to a stream that readers see together, or never.

Owns: one transaction of the controller, its lease, and its end.

A transaction has a segment beside each of the stream's. Its events are stored there at once, and
are merged into the stream when it commits.

Invariants:
1. When the block is left without an error, all events are in the stream, each once; when the
   program's own error leaves it, none ever is. Held by
   ``test_events_of_a_transaction_come_together_or_never``. When the controller is away for too long
   while it commits, the block is left by ``UnavailableError``, and either may be.
2. When a program works for longer than the lease, the lease is renewed meanwhile. Held by
   ``test_a_lease_is_renewed_while_the_program_works``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar

import anyio

from pravega_wire.names import transaction_segment_name
from segstore_client.backoff import Patience
from segstore_client.connections.calls import call_blocking, repeat_calls
from segstore_client.controller.controller_client import BegunTransaction, ControllerClient
from segstore_client.delays import OnDelay
from segstore_client.errors import PravegaError, TransactionEndedError, WriterClosedError
from segstore_client.leases import (
    ABORT_SECONDS_MAX,
    LOOK_SECONDS,
    LOOK_SECONDS_MAX,
    RENEWALS,
    describe_end,
    describe_use_after,
)
from segstore_client.serializers import Serializer, T
from segstore_client.writing.keyed_writer import KeyedWriter
from segstore_client.writing.segment_pump import SegmentPump

R = TypeVar("R")


class Transaction(KeyedWriter[T]):
    """Events of one transaction. Use it in an ``async with`` block: leaving it without an error
    commits, and returns when readers see the events; leaving it by an error aborts.

    ``Store.transaction`` makes it. An event has at most 8 MiB.
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
        buffer_bytes: int,
        on_delay: OnDelay | None,
    ) -> None:
        super().__init__(
            controller,
            scope,
            stream,
            serializer=serializer,
            patience=patience,
            buffer_bytes=buffer_bytes,
            on_delay=on_delay,
        )
        self._lease_ms = int(lease * 1000)
        self._begun: BegunTransaction | None = None
        self._has_ended = False
        """True when it was committed or aborted by this program."""

    def __repr__(self) -> str:
        which = "" if self._begun is None else f" {self.id}"
        return f"<{type(self).__name__}{which} of {self._name}>"

    @property
    def id(self) -> uuid.UUID:
        """Return the transaction's id, as official clients and the command line show it."""
        return uuid.UUID(bytes=self._identifier)

    async def __aenter__(self) -> Self:
        patient = self._controller.with_patience(self._patience)
        self._begun = await call_blocking(
            partial(patient.begin_transaction, self._scope, self._stream, self._lease_ms)
        )
        await self._start(self._begun.ranges)
        assert self._group is not None
        self._group.start_soon(self._renew_lease)
        return self

    async def _replace(self, pump: SegmentPump) -> None:
        """End the transaction: its segment takes no more events."""
        raise self._ended()

    async def commit(self) -> None:
        """Commit; return when readers see the events. Nothing can be written after that.

        Raises errors as ``flush``; after ``UnavailableError`` it may be called again.
        """
        await self.flush()
        await self._commit()
        self._end("was committed")

    async def abort(self) -> None:
        """Abort, unless the transaction has ended: no reader will ever see its events.

        If the controller cannot be told, the lease ends the transaction.
        """
        if not self._has_ended:
            self._end("was aborted")
            await self._abort()

    async def _finish(self) -> None:
        if not self._has_ended:
            await self.commit()

    async def _stop(self) -> None:
        try:
            await self.abort()
        finally:
            await super()._stop()

    def _end(self, how: str) -> None:
        self._has_ended = True
        self._fail(WriterClosedError(describe_use_after(self.id, how)))

    @property
    def _identifier(self) -> bytes:
        if self._begun is None:
            raise WriterClosedError(f"the transaction on {self._name} is not entered")
        return self._begun.identifier

    def _segment_name(self, segment: int) -> str:
        return transaction_segment_name(super()._segment_name(segment), self._identifier)

    def _ended(self) -> TransactionEndedError:
        return describe_end(self.id, self._name)

    async def _renew_lease(self) -> None:
        arguments = (self._scope, self._stream, self._identifier, self._lease_ms)
        renew = partial(self._controller.ping_transaction, *arguments)
        while True:
            await anyio.sleep(self._lease_ms / 1000 / RENEWALS)
            try:
                status = await self._repeat(renew)
            except PravegaError as error:
                self._fail(error)
                return
            if status != "ok":
                # Its own commit has begun, or it has ended: then its segments tell so, too.
                return

    async def _commit(self) -> None:
        arguments = (self._scope, self._stream, self._identifier)
        if not await self._repeat(partial(self._controller.commit_transaction, *arguments)):
            raise self._ended()
        seconds = LOOK_SECONDS
        look = partial(self._controller.transaction_state, *arguments)
        while (state := await self._repeat(look)) in ("open", "committing"):
            await anyio.sleep(seconds)
            seconds = min(2 * seconds, LOOK_SECONDS_MAX)
        if state != "committed":
            raise self._ended()

    async def _abort(self) -> None:
        abort = partial(
            self._controller.abort_transaction, self._scope, self._stream, self._identifier
        )
        with anyio.move_on_after(ABORT_SECONDS_MAX, shield=True), suppress(PravegaError):
            await call_blocking(abort)

    async def _repeat(self, call: Callable[[], R]) -> R:
        what = f"the controller could not be asked of transaction {self.id}"
        return await repeat_calls(call, Patience(self._patience), what)
