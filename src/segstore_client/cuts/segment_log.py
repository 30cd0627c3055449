"""The events of one segment of an internal stream, read as a whole, and written under a condition.

Owns: the connection of one log. The steps are in ``pravega_wire.sessions.segment_log``.

Invariants:
1. When the log is compacted and truncated while it is read, it is read from its new beginning. Held
   by ``test_a_log_that_is_truncated_meanwhile_is_read_anew``.
2. When another client has appended an event since the log was read, ``append`` appends nothing.
   Held by ``test_an_event_is_appended_only_behind_what_was_read``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Self, TypeVar

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.errors import ProtocolError
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.segment_log import (
    LogMovedError,
    LogSession,
    LogTooLongError,
    Make,
    Steps,
)
from pravega_wire.sessions.steps import run_steps
from segstore_client.access.tokens import StoreAccess, TokenExpiredError
from segstore_client.addresses import Address
from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.repeats import repeat_calls
from segstore_client.errors import NotFoundError, PravegaError, RefusedError, UnavailableError

T = TypeVar("T")
REPLY_SECONDS = 30.0
ATTEMPTS_MAX = 3
"""Number of attempts: a compaction, or the end of a token, may end each."""


class LogPlace:
    """The segment that has the log of a stream: the one of the lowest keys.

    It is not always segment 0: the segments of a stream that was made again have other ids.
    """

    def __init__(self, controller: ControllerClient, scope: str, stream: str) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._segment: int | None = None

    def make_session(self, refusal: Callable[[wire.Reply], Exception]) -> LogSession:
        """Return the session of the log, to which ``locate`` tells the segment."""
        return LogSession(segment_name(self._scope, self._stream, 0), refusal)

    def locate(self, session: LogSession) -> Address:
        """Return the address of the segment's store. Raises ``NotFoundError`` without a stream."""
        if self._segment is None:
            current = self._controller.current_segments(self._scope, self._stream)
            found = [each.segment_id for each in current.ranges]
            if not found:
                # The stream is sealed.
                found = sorted(self._controller.head_segments(self._scope, self._stream).offsets)
            self._segment = found[0]
            session.segment = segment_name(self._scope, self._stream, self._segment)
        return self._controller.segment_address(self._scope, self._stream, self._segment)


class SegmentLog:
    """The log of a stream. Use it in one thread, within a ``with`` block.

    It connects again while servers are away, for as long as the controller's client repeats calls.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, purpose: Purpose
    ) -> None:
        self.name = scoped_name(scope, stream)
        self._access = controller.store_access(scope, stream, purpose)
        self._patience = controller.patience
        self._place = LogPlace(controller, scope, stream)
        self._session = self._place.make_session(
            lambda reply: log_refusal(reply, self.name, self._access)
        )
        self._connection: SegmentConnection | None = None
        self._repeat_calls(self._connect)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._disconnect()

    def read(self, *, whole: bool = False) -> list[bytes]:
        """Return the events from the last compaction on; with ``whole`` all that there are.

        Raises ``NotFoundError`` if there is no such segment.
        """
        self._session.offset = None
        return self._repeat(partial(self._session.read, whole=whole))[1]

    def append(self, event: bytes) -> bool:
        """Append an event if none was since the log was read; return whether it was appended."""
        return self._repeat(self._session.append(event))

    def _repeat(self, attempt: Callable[[], Steps[T]]) -> T:
        return self._repeat_calls(partial(self._try, attempt))

    def _repeat_calls(self, call: Callable[[], T]) -> T:
        return repeat_calls(call, Patience(self._patience), f"{self.name} could not be reached")

    def _try(self, attempt: Callable[[], Steps[T]]) -> T:
        for _ in range(ATTEMPTS_MAX):
            try:
                return run_steps(attempt(), self._ask)
            except (LogMovedError, TokenExpiredError):
                # The store knows the writer by the token that has expired.
                self._session.is_set_up = False
            except LogTooLongError as error:
                raise PravegaError(str(error)) from error
            except BaseException:
                # A request that failed leaves its reply behind.
                self._disconnect()
                raise
        raise UnavailableError(f"{self.name} changes too fast")

    def _ask(self, make: Make) -> wire.Reply:
        token, connection = self._access.token(), self._connect()
        return connection.call(make(connection.next_request_id(), token))

    def _connect(self) -> SegmentConnection:
        if self._connection is None:
            self._connection = self._access.connect(
                *self._place.locate(self._session), timeout=REPLY_SECONDS
            )
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._session.is_set_up = False
        if connection is not None:
            connection.close()


def log_refusal(reply: wire.Reply, name: str, access: StoreAccess) -> Exception:
    """Return the error for a reply about a log that is no answer."""
    if isinstance(reply, wire.SegmentIsTruncated):
        return LogMovedError(f"{name} was truncated meanwhile")
    if isinstance(reply, wire.NoSuchSegment):
        return NotFoundError(f"{name} does not exist")
    if isinstance(reply, wire.AuthTokenCheckFailed):
        return access.refusal(reply, f"no permission for {name}")
    if isinstance(reply, wire.ErrorMessage):
        return RefusedError(f"the segment store refused a request: {reply.message}")
    return ProtocolError(f"unexpected {type(reply).__name__}")
