"""A log of revisions in one segment, which clients append under a condition, without blocking.

Owns: one connection, and the retries. The steps, and what a compaction is, are in
``pravega_wire.sessions.segment_log``.

Invariants:
1. When another client has appended since the log was read, nothing is appended. Held by
   ``test_a_revision_is_appended_only_behind_what_was_read``.
2. When the connection breaks during an append, it is appended once, and its outcome is known. Held
   by ``test_an_append_whose_answer_is_lost_is_appended_once``.
3. When the log is compacted and truncated while it is read, it is read from its new beginning. Held
   by ``test_a_log_that_is_truncated_is_read_anew``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio

from pravega_wire import commands as wire
from pravega_wire.names import scoped_name
from pravega_wire.requests.store_connection import StoreConnection
from pravega_wire.sessions.segment_log import Attempt, LogTooLongError, Make
from pravega_wire.sessions.steps import run_steps_async
from segstore_client.backoff import Patience
from segstore_client.connections.calls import call_blocking, wait_to_repeat
from segstore_client.connections.connection import open_connection
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient, Purpose
from segstore_client.cuts.segment_log import LogPlace, log_refusal
from segstore_client.errors import PravegaError


class RevisionLog:
    """The log of a stream. One task uses it, and closes it with ``aclose``.

    Raises ``NotFoundError`` if there is no such segment, and ``UnavailableError`` when servers are
    unreachable for longer than ``patience`` seconds.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, patience: float
    ) -> None:
        self._name = scoped_name(scope, stream)
        self._place = LogPlace(controller, scope, stream)
        self._access = controller.store_access(scope, stream, Purpose.READ_WRITE)
        self._patience = patience
        self.session = self._place.make_session(
            lambda reply: log_refusal(reply, self._name, self._access)
        )
        self._connection: StoreConnection | None = None
        self._stack = AsyncExitStack()

    async def aclose(self) -> None:
        """Close the connection."""
        self._connection, self.session.is_set_up = None, False
        stack, self._stack = self._stack, AsyncExitStack()
        with anyio.CancelScope(shield=True):
            await stack.aclose()

    async def repeat(self, attempt: Attempt) -> Any:
        """Return the result of an attempt that is repeated, over new connections."""
        patience = Patience(self._patience)
        while True:
            try:
                return await run_steps_async(attempt(), self._ask)
            except LogTooLongError as error:
                raise PravegaError(str(error)) from error
            except RETRIED_ERRORS as error:
                await self.aclose()
                await wait_to_repeat(patience, error, f"{self._name} could not be reached")
            except BaseException:
                # A cancelled request leaves its reply behind.
                await self.aclose()
                raise

    async def _ask(self, make: Make) -> wire.Reply:
        token = await call_blocking(self._access.token) if self._access.has_tokens else ""
        if self._connection is None:
            opened = open_connection(
                *await call_blocking(partial(self._place.locate, self.session)), self._access
            )
            self._connection = await self._stack.enter_async_context(opened)
        return await self._connection.call(make(self._connection.next_request_id(), token))
