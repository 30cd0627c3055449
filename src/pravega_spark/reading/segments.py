"""Asks segment stores for segments' states and bytes.

Owns: one connection to each segment store. A broken connection is opened again.

``read_slice`` requests the next read before it yields a piece, so that the store reads while Spark
processes the piece.

Invariants:
1. When a store restarts, or the segment moves to another store, ``read_slice`` yields exactly the
   bytes of the slice, in order, or raises.
   Held by ``test_a_query_without_a_limit_follows_writers_and_survives_kills``.
2. When bytes of the slice were truncated, ``read_slice`` raises. It skips them only if the user has
   allowed that. Held by ``test_a_gap_is_told_unless_it_is_allowed``.
3. When a caller stops waiting for a reply, the connection is closed, so that no later request gets
   this reply. Held by ``test_states_are_asked_again_where_a_connection_breaks``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

from pravega_spark.errors import DataLossError
from pravega_spark.reading.cuts import SegmentState, Slice
from pravega_spark.reading.tier_two import Buffer
from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.errors import ProtocolError
from pravega_wire.names import segment_name
from segstore_client.access.tokens import PLAIN, StoreAccess
from segstore_client.errors import PravegaError, RefusedError, UnavailableError

READ_BYTES = 2 * 1024 * 1024
REPLY_SECONDS = 30.0
PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.2
QUESTIONS_MAX = 64
"""Maximum number of requests for states that are sent before the first reply is awaited."""

Address = tuple[str, int]
Piece: TypeAlias = "tuple[int, Buffer]"
"""Bytes of a segment, and the offset of the first one."""


class SegmentStores:
    """Connections to the segment stores of one stream. Use it in one thread and a ``with`` block.

    ``locate`` returns the store of a segment: it is called once for each segment, and again when
    the store is gone or does not serve the segment any more. ``access`` has a token to read.
    """

    def __init__(
        self,
        scope: str,
        stream: str,
        locate: Callable[[int], Address],
        *,
        known: Mapping[int, Address] | None = None,
        access: StoreAccess = PLAIN,
    ) -> None:
        self._scope = scope
        self._stream = stream
        self._locate = locate
        self._access = access
        self._addresses: dict[int, Address] = dict(known or {})
        self._connections: dict[Address, SegmentConnection] = {}

    def __enter__(self) -> SegmentStores:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        while self._connections:
            self._connections.popitem()[1].close()

    def address(self, segment_id: int) -> Address:
        """Return the last known address of a segment's store."""
        found = self._addresses.get(segment_id)
        if found is None:
            found = self._addresses[segment_id] = self._locate(segment_id)
        return found

    def token(self) -> str:
        """Return the token for a request; "" without authorization."""
        return self._access.token()

    def states(self, segments: Iterable[int]) -> dict[int, SegmentState]:
        """Return the states of segments, without those that no longer exist."""
        states: dict[int, SegmentState] = {}
        waiting = deque(segments)
        deadline = time.monotonic() + PATIENCE_SECONDS
        asked: deque[tuple[int, SegmentConnection, int]] = deque()
        while waiting or asked:
            segment = asked[0][0] if asked else waiting[0]
            try:
                while waiting and len(asked) < QUESTIONS_MAX:
                    segment = waiting[0]
                    asked.append((segment, *self._ask_state(segment)))
                    waiting.popleft()
                segment, connection, request_id = asked[0]
                state = self._state(segment, connection.receive_reply(request_id))
            except (ProtocolError, OSError) as error:
                # A reply that arrives later must not be taken for the reply to another request.
                for each, _, _ in asked:
                    self._drop_connection(self._addresses.get(each))
                    waiting.append(each)
                asked.clear()
                self._retry(segment, error, deadline)
                continue
            asked.popleft()
            deadline = time.monotonic() + PATIENCE_SECONDS
            if state is not None:
                states[segment] = state
        return states

    def call(self, segment_id: int, make: Callable[[int, str], wire.Request]) -> wire.Reply:
        """Send the request that ``make`` returns for a request id and the segment's name, once.

        Returns the reply. Raises ``ProtocolError`` or ``OSError``, and ``NoPermissionError``.
        """
        try:
            connection = self._connection(segment_id)
            reply = connection.call(make(connection.next_request_id(), self._name(segment_id)))
        except (ProtocolError, OSError):
            # The store may have restarted at the same address. Asking the controller could wait.
            self._drop_connection(self._addresses.get(segment_id))
            raise
        if isinstance(reply, wire.WrongHost):
            self._forget(segment_id)
        if isinstance(reply, wire.AuthTokenCheckFailed):
            raise self._refusal(segment_id, reply)
        return reply

    def read_slice(
        self, piece: Slice, *, fail_on_data_loss: bool = True, reads_ahead: bool = True
    ) -> Iterator[Piece]:
        """Yield the bytes of a slice in pieces, each with its offset.

        If a truncation deleted bytes of the slice, raises ``DataLossError``; without
        ``fail_on_data_loss`` yields the remaining bytes. If the last bytes were deleted, the last
        piece is empty and has the slice's end as its offset. Set ``reads_ahead`` to false if the
        caller sends other requests between two pieces.
        """
        offset = piece.start
        deadline = time.monotonic() + PATIENCE_SECONDS
        asked = False
        while offset < piece.end:
            try:
                if not asked:
                    self._ask(piece, offset)
                asked = False
                reply = self._receive_read(piece.segment_id, offset)
                if isinstance(reply, wire.SegmentRead) and reply.data:
                    data, data_offset = reply.data, offset
                    offset += len(data)
                    if reads_ahead and offset < piece.end:
                        self._ask(piece, offset)
                        asked = True
                    deadline = time.monotonic() + PATIENCE_SECONDS
                    try:
                        yield data_offset, data
                    except GeneratorExit:
                        if asked:
                            self._drop_connection(self._addresses.get(piece.segment_id))
                        raise
                    continue
            except (ProtocolError, OSError) as error:
                asked = False
                self._retry(piece.segment_id, error, deadline)
                continue
            offset = self._skip_lost(piece, offset, reply, fail_on_data_loss)
            if offset == piece.end:
                yield offset, b""

    # ---- Requests and failures -------------------------------------------------------------------

    def _name(self, segment_id: int) -> str:
        return segment_name(self._scope, self._stream, segment_id)

    def _connection(self, segment_id: int) -> SegmentConnection:
        address = self.address(segment_id)
        connection = self._connections.get(address)
        if connection is None:
            connection = self._access.connect(*address, timeout=REPLY_SECONDS)
            self._connections[address] = connection
        return connection

    def _ask_state(self, segment_id: int) -> tuple[SegmentConnection, int]:
        connection = self._connection(segment_id)
        request = wire.GetStreamSegmentInfo(
            connection.next_request_id(), self._name(segment_id), self._access.token()
        )
        connection.send(request)
        return connection, request.request_id

    def _state(self, segment_id: int, reply: wire.Reply) -> SegmentState | None:
        if isinstance(reply, wire.StreamSegmentInfo):
            return SegmentState(reply.start_offset, reply.write_offset, reply.is_sealed)
        if isinstance(reply, wire.NoSuchSegment):
            return None
        raise self._refusal(segment_id, reply)

    def _ask(self, piece: Slice, offset: int) -> None:
        connection = self._connection(piece.segment_id)
        length = min(READ_BYTES, piece.end - offset)
        name = self._name(piece.segment_id)
        token, request_id = self._access.token(), connection.next_request_id()
        connection.send(wire.ReadSegment(name, offset, length, token, request_id))

    def _receive_read(self, segment_id: int, offset: int) -> wire.Reply:
        reply = self._connection(segment_id).receive(timeout=REPLY_SECONDS)
        if isinstance(reply, wire.SegmentRead):
            if reply.offset != offset:
                raise ProtocolError(f"asked for offset {offset}, got {reply.offset}")
            return reply
        if isinstance(reply, wire.NoSuchSegment | wire.SegmentIsTruncated | wire.SegmentIsSealed):
            return reply
        raise self._refusal(segment_id, reply)

    def _refusal(self, segment_id: int, reply: wire.Reply) -> Exception:
        """Return the error for an unexpected reply: of a kind that is retried, or that is not."""
        name = self._name(segment_id)
        if isinstance(reply, wire.AuthTokenCheckFailed):
            return self._access.refusal(reply, f"no permission to read segment {name}")
        if isinstance(reply, wire.ErrorMessage):
            return RefusedError(f"the segment store refused to read {name}: {reply.message}")
        return ProtocolError(f"unexpected {type(reply).__name__} for {name}")

    def _skip_lost(
        self, piece: Slice, offset: int, reply: wire.Reply, fail_on_data_loss: bool
    ) -> int:
        """Return the offset after bytes that a truncation deleted, or raise ``DataLossError``."""
        if isinstance(reply, wire.SegmentIsTruncated):
            end = max(offset, min(reply.start_offset, piece.end))
            cause = "truncated"
        else:
            end = piece.end
            cause = "truncated or deleted"
        if fail_on_data_loss:
            raise DataLossError(
                f"bytes {offset} to {end} of segment {self._name(piece.segment_id)} are gone: the"
                f" stream was {cause} before they were read. Set fail_on_data_loss to false to"
                " continue without them"
            )
        return end

    def _retry(self, segment_id: int, error: Exception, deadline: float) -> None:
        """Forget a segment's store and pause before the next attempt; raise after the deadline."""
        if isinstance(error, PravegaError):
            raise error
        self._forget(segment_id)
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"segment {self._name(segment_id)} could not be read for {PATIENCE_SECONDS:g} s:"
                f" {error}"
            ) from error
        time.sleep(RETRY_SECONDS)

    def _forget(self, segment_id: int) -> None:
        """Close the connection to a segment's store, and forget the store's address."""
        self._drop_connection(self._addresses.pop(segment_id, None))

    def _drop_connection(self, address: Address | None) -> None:
        if address is not None and (connection := self._connections.pop(address, None)):
            with suppress(OSError):
                connection.close()
