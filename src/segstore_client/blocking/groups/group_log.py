"""The log of a reader group's state, for a program that blocks.

Owns: ``BlockingGroupLog``, which runs the operations on a group, and fulfils their requests.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

from pravega_wire.names import reader_group_stream, scoped_name
from pravega_wire.sessions.steps import run_steps
from segstore_client.blocking.states.revision_log import BlockingRevisionLog
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.steps.group_requests import Call, Pause, Request, Steps
from segstore_client.steps.group_steps import GroupSteps

T = TypeVar("T")


class BlockingGroupLog:
    """The log of one group. Use it in one thread, and close it."""

    def __init__(
        self, controller: ControllerClient, scope: str, group: str, *, patience: float
    ) -> None:
        stream = reader_group_stream(group)
        self._log = BlockingRevisionLog(controller, scope, stream, patience=patience)
        self.state = GroupSteps(self._log.session, scoped_name(scope, group))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._log.close()

    def run(self, steps: Steps[T]) -> T:
        """Return the result of an operation."""
        return run_steps(steps, self.fulfil)

    def fulfil(self, request: Request) -> Any:
        """Return the reply to a request that any client of groups can fulfil."""
        if isinstance(request, Call):
            return request.function()
        if isinstance(request, Pause):
            return time.sleep(request.seconds)
        assert callable(request), request
        return self._log.repeat(request)
