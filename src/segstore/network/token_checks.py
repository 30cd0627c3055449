"""Checks the delegation tokens of one connection.

Owns: the check of each request before it is dispatched, the refusal, and the end of a connection on
which the token of a writer has expired.

The handler of a kind of request declares the level that the request needs. Frames of appends have
no token: the token of the writer's setup is the one that counts.

Invariants:
1. When the token of a request is missing or forged, or does not allow all segments of the request,
   the request is refused and not begun. Held by ``test_what_a_token_does_not_allow_is_refused``.
2. When the token of a request has expired, also that of a writer's setup, the request is refused
   with the code ``EXPIRED``: the client gets a new token and repeats the request on the same
   connection. Held by ``test_an_expired_token_is_refused_with_its_own_code``. When the token does
   not count yet, the code is the same, because that passes. Held by
   ``test_a_token_that_does_not_count_yet_is_refused_with_that_code``.
3. When the token of a writer expires, the connection closes, as the original's does: its clients
   set up their writers again, with new tokens. Held by
   ``test_a_writers_token_expires_with_its_connection``. When the writer was set up again with a
   newer token, only the newer token counts. Held by
   ``test_a_newer_token_of_a_writer_takes_the_place_of_the_former``. When a later writer has a token
   that expires before those of other writers, the connection closes then. Held by
   ``test_an_older_token_of_a_later_writer_expires_at_its_own_time``.
4. When a writer of our own processes is set up with their token, which allows everything, the
   connection does not close when that token expires. Held by
   ``test_a_token_for_everything_closes_no_connection``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from structlog.typing import FilteringBoundLogger

from pravega_metrics.store_metrics import REFUSALS
from pravega_security.delegation_tokens import (
    TokenEarlyError,
    TokenError,
    TokenExpiredError,
    TokenRefusedError,
    TokenVerifier,
)
from pravega_security.resources import Level
from pravega_wire import commands as wire
from segstore.network.handler_table import SEGMENTS_MAX, Handler

CHECK_FAILED: Final = 0
"""The code of a refusal after which official clients give up."""
EXPIRED: Final = 1
"""The code of a refusal after which official clients get a new token and try again."""
LOOK_SECONDS_MAX: Final = 30.0
"""Maximum time, in seconds, between two checks for expired tokens. It is bounded because the clock
of the machine may be set ahead."""

SetUp = Callable[[wire.SetupAppend], Awaitable[wire.Reply]]


class TokenChecks:
    """See the module. The connection passes the callables."""

    def __init__(
        self,
        verifier: TokenVerifier,
        *,
        log: FilteringBoundLogger,
        send: Callable[[wire.Reply], None],
        close: Callable[[str], None],
        start_task: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._verifier = verifier
        self._log = log
        self._has_logged = False
        self._send = send
        self._close = close
        self._start_task = start_task
        self._expiries: dict[bytes, int] = {}
        self._watches = False
        self._awaited = 0
        self._comes_sooner = trio.Event()

    def allows_read(self, request: wire.ReadSegment) -> bool:
        """Return whether a read is allowed; if not, it is refused."""
        return self._allows(request, (request.segment,), Level.READ)

    def allows(self, request: Any, handler: Handler) -> bool:
        """Return whether a request is allowed; if not, it is refused."""
        level = handler.level
        if level is Level.NONE:
            return True
        # The handler refuses a request with more segments.
        segments = handler.segments(request)[: SEGMENTS_MAX + 1]
        return self._allows(request, segments, level)

    def watch_setups(self, set_up: SetUp) -> SetUp:
        """Return a function that sets a writer up, and closes the connection when the writer's
        token expires."""

        async def set_up_and_watch(request: wire.SetupAppend) -> wire.Reply:
            reply = await set_up(request)
            if isinstance(reply, wire.AppendSetup):
                self._watch(request.writer_id, request.delegation_token)
            return reply

        return set_up_and_watch

    def detach(self) -> None:
        """Drop the references to the connection, which has ended."""
        del self._send, self._close, self._start_task

    def _allows(self, request: Any, segments: tuple[str, ...], level: Level) -> bool:
        """Return whether the token allows the level for each segment; refuse the request if not."""
        try:
            claims = self._verifier.verify(request.delegation_token)
        except (TokenExpiredError, TokenEarlyError) as error:
            REFUSALS.of(type(error).__name__).add(1)
            self._send(wire.AuthTokenCheckFailed(request.request_id, "", EXPIRED))
            return False
        except TokenError as error:
            self._refuse(request, str(error))
            return False
        for segment in segments:
            if claims.level_for_segment(segment) < level:
                self._refuse(request, f"the token does not allow {level.name} of {segment!r}")
                return False
        return True

    def _refuse(self, request: Any, reason: str) -> None:
        REFUSALS.of(TokenRefusedError.__name__).add(1)
        if not self._has_logged:
            self._has_logged = True
            self._log.warning("request refused", request=type(request).__name__, reason=reason)
        self._send(wire.AuthTokenCheckFailed(request.request_id, "", CHECK_FAILED))

    def _watch(self, writer_id: bytes, token: str) -> None:
        self._expiries.pop(writer_id, None)
        try:
            claims = self._verifier.verify(token)
        except TokenError:
            # During the setup, the token has expired or its key was removed.
            expires = self._verifier.now
        else:
            if claims.expires is None or claims.is_master:
                return
            expires = claims.expires
        self._expiries[writer_id] = expires
        if not self._watches:
            self._watches = True
            self._start_task(self._close_at_expiry)
        elif expires < self._awaited:
            self._comes_sooner.set()

    async def _close_at_expiry(self) -> None:
        """Close the connection when the first token of a writer expires."""
        while self._expiries:
            self._awaited = min(self._expiries.values())
            left = self._awaited - self._verifier.now
            if left <= 0:
                self._close("the token of a writer has expired")
                return
            self._comes_sooner = trio.Event()
            with trio.move_on_after(min(left, LOOK_SECONDS_MAX)):
                await self._comes_sooner.wait()
        self._watches = False
