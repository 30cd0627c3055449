"""A log of revisions in one segment, which clients append under a condition.

Owns: one connection, and the retries. The steps, and what a compaction is, are in
``pravega_wire.sessions.segment_log``.

Invariants:
1. When the connection breaks during an append, it is appended once, and its outcome is known. Held
   by ``test_a_revision_whose_answer_is_lost_is_appended_once``.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.names import scoped_name
from pravega_wire.sessions.segment_log import Attempt, LogTooLongError, Make
from pravega_wire.sessions.steps import run_steps
from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.controller.repeats import repeat_calls
from segstore_client.cuts.segment_log import LogPlace, log_refusal
from segstore_client.errors import PravegaError

REPLY_SECONDS = 30.0


class BlockingRevisionLog:
    """The log of a stream. Use it in one thread, and close it; it connects when it is
    needed.

    Raises ``NotFoundError`` if there is no such segment, and ``UnavailableError`` when servers are
    unreachable for longer than ``patience`` seconds.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, patience: float
    ) -> None:
        self._name = scoped_name(scope, stream)
        self._place = LogPlace(controller, scope, stream)
        self._access = controller.store_access(scope, stream, Purpose.READ_WRITE)
        self._patience = Patience(patience)
        self._left_at = time.monotonic()
        """The time at which an attempt has ended last."""
        self.session = self._place.make_session(
            lambda reply: log_refusal(reply, self._name, self._access)
        )
        self._connection: SegmentConnection | None = None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        connection, self._connection = self._connection, None
        self.session.is_set_up = False
        if connection is not None:
            connection.close()

    def repeat(self, attempt: Attempt) -> Any:
        """Return the result of an attempt that is repeated, over new connections."""
        run = partial(self._try, attempt)
        # What a limit cut off goes on with the next call, and so does its time.
        self._patience.skip_pause(time.monotonic() - self._left_at)
        try:
            return repeat_calls(run, self._patience, f"{self._name} could not be reached")
        finally:
            self._left_at = time.monotonic()

    def _try(self, attempt: Attempt) -> Any:
        try:
            return run_steps(attempt(), self._ask)
        except LogTooLongError as error:
            raise PravegaError(str(error)) from error
        except BaseException:
            # A request that was interrupted leaves its reply behind.
            self.close()
            raise

    def _ask(self, make: Make) -> wire.Reply:
        token = self._access.token()
        if self._connection is None:
            self._connection = self._access.connect(
                *self._place.locate(self.session), timeout=REPLY_SECONDS
            )
        return self._connection.call(make(self._connection.next_request_id(), token))
