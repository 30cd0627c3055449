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
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import NotFoundError, PravegaError, RefusedError, UnavailableError

T = TypeVar("T")
REPLY_SECONDS = 30.0
ATTEMPTS_MAX = 3
"""Number of attempts: a compaction, or the end of a token, may end each."""


class SegmentLog:
    """The log in segment 0 of a stream. Use it in one thread, within a ``with`` block.

    Errors of connections are ``UnavailableError``.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, purpose: Purpose
    ) -> None:
        self.name = scoped_name(scope, stream)
        self._access = controller.store_access(scope, stream, purpose)
        self._session = LogSession(
            segment_name(scope, stream, 0),
            lambda reply: log_refusal(reply, self.name, self._access),
        )
        try:
            self._connection: SegmentConnection = self._access.connect(
                *controller.segment_address(scope, stream, 0), timeout=REPLY_SECONDS
            )
        except ProtocolError as error:
            raise self._lost(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()

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
        try:
            for _ in range(ATTEMPTS_MAX):
                try:
                    return run_steps(attempt(), self._ask)
                except (LogMovedError, TokenExpiredError):
                    # The store knows the writer by the token that has expired.
                    self._session.is_set_up = False
        except LogTooLongError as error:
            raise PravegaError(str(error)) from error
        except ProtocolError as error:
            raise self._lost(error) from error
        raise UnavailableError(f"{self.name} changes too fast")

    def _ask(self, make: Make) -> wire.Reply:
        return self._connection.call(make(self._connection.next_request_id(), self._access.token()))

    def _lost(self, error: ProtocolError) -> UnavailableError:
        return UnavailableError(f"{self.name} cannot be reached: {error}")


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
