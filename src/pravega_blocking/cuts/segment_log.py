"""The events of one segment of an internal stream, read as a whole, and written under a condition.

Owns: the connection of one log. States of reader groups and watermarks are such logs: short, in one
segment that is never sealed, and compacted by those who write them.

Invariants:
1. When the log is compacted and truncated while it is read, it is read from its new beginning. Held
   by ``test_a_log_that_is_truncated_meanwhile_is_read_anew``.
2. When another client has appended an event since the log was read, ``append`` appends nothing.
   Held by ``test_an_event_is_appended_only_behind_what_was_read``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from pravega_blocking.access.tokens import TokenExpiredError
from pravega_blocking.controller_client import ControllerClient, Purpose
from pravega_blocking.errors import NotFoundError, PravegaError, UnavailableError
from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.errors import ProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.names import scoped_name, segment_name

REPLY_SECONDS = 30.0
READ_BYTES = 1024 * 1024
LOG_BYTES_MAX = 64 * 1024 * 1024
"""Maximum length, in bytes, of a log that is read: clients compact theirs at 512 KiB."""
ATTEMPTS_MAX = 3
"""Number of attempts to read: a compaction, or the end of a token, may end each."""


class _MovedError(Exception):
    """The log begins elsewhere now, or the token was not valid any more."""


class SegmentLog:
    """The log in segment 0 of a stream. Use it in one thread, within a ``with`` block.

    Errors of connections are ``UnavailableError``.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, purpose: Purpose
    ) -> None:
        self.name = scoped_name(scope, stream)
        self._segment = segment_name(scope, stream, 0)
        self._access = controller.store_access(scope, stream, purpose)
        self._writer_id = uuid.uuid4().bytes
        self._end = 0
        with self._explaining():
            self._connection: SegmentConnection = self._access.connect(
                *controller.segment_address(scope, stream, 0), timeout=REPLY_SECONDS
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()

    def read(self, *, whole: bool = False) -> list[bytes]:
        """Return the events from the last compaction on; with ``whole`` all that there are.

        Raises ``NotFoundError`` if there is no such segment.
        """
        with self._explaining():
            for _ in range(ATTEMPTS_MAX):
                try:
                    return self._read(whole)
                except _MovedError:
                    continue
        raise UnavailableError(f"{self.name} changes too fast to be read")

    def append(self, event: bytes) -> bool:
        """Append an event if none was since the log was read; return whether it was appended."""
        with self._explaining():
            number = self._set_up() + 1
            connection = self._connection
            request_id = connection.next_request_id()
            reply = connection.call(
                wire.ConditionalAppend(self._writer_id, number, self._end, event, request_id)
            )
            if isinstance(reply, wire.ConditionalCheckFailed):
                return False
            if not isinstance(reply, wire.DataAppended):
                raise self._refusal(reply)
        return True

    def _set_up(self) -> int:
        """Tell the store of the writer; return the number of its last event."""
        for _ in range(ATTEMPTS_MAX):
            request_id, token = self._connection.next_request_id(), self._access.token()
            reply = self._connection.call(
                wire.SetupAppend(request_id, self._writer_id, self._segment, token)
            )
            if isinstance(reply, wire.AppendSetup):
                return max(0, reply.last_event_number)
            refusal = self._refusal(reply)
            if not isinstance(refusal, _MovedError):
                raise refusal
        raise UnavailableError(f"{self.name} takes no appends")

    def _read(self, whole: bool) -> list[bytes]:
        request_id, token = self._connection.next_request_id(), self._access.token()
        info = self._connection.call(wire.GetStreamSegmentInfo(request_id, self._segment, token))
        if not isinstance(info, wire.StreamSegmentInfo):
            raise self._refusal(info)
        offset, end = info.start_offset, info.write_offset
        if not whole:
            # Without a compaction the attribute is the least int64.
            offset = max(offset, self._read_mark())
        if offset > end:
            raise _MovedError
        if end - offset > LOG_BYTES_MAX:
            raise PravegaError(f"{self.name} has {end - offset} bytes: it is not compacted")
        data = b""
        while offset + len(data) < end:
            data += self._read_piece(offset + len(data), end)
        self._end = end
        return [data[begin:stop] for begin, stop in iterate_event_spans(data)]

    def _read_mark(self) -> int:
        request_id, token = self._connection.next_request_id(), self._access.token()
        reply = self._connection.call(
            wire.GetSegmentAttribute(request_id, self._segment, REVISION_MARK, token)
        )
        if not isinstance(reply, wire.SegmentAttribute):
            raise self._refusal(reply)
        return reply.value

    def _read_piece(self, offset: int, end: int) -> bytes:
        request_id, token = self._connection.next_request_id(), self._access.token()
        length = min(READ_BYTES, end - offset)
        reply = self._connection.call(
            wire.ReadSegment(self._segment, offset, length, token, request_id)
        )
        if not isinstance(reply, wire.SegmentRead):
            raise self._refusal(reply)
        # A store may answer with more than it is asked for.
        return reply.data[: end - offset]

    def _refusal(self, reply: wire.Reply) -> Exception:
        if isinstance(reply, wire.SegmentIsTruncated):
            return _MovedError()
        if isinstance(reply, wire.NoSuchSegment):
            return NotFoundError(f"{self.name} does not exist")
        if isinstance(reply, wire.AuthTokenCheckFailed):
            error = self._access.refusal(reply, f"no permission for {self.name}")
            return _MovedError() if isinstance(error, TokenExpiredError) else error
        return ProtocolError(f"unexpected {type(reply).__name__}")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError as error:
            raise UnavailableError(f"{self.name} cannot be reached: {error}") from error
