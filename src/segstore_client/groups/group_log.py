"""The log of a reader group's state, for a client that does not block.

Owns: ``GroupLog``, which runs the operations on a group, and fulfils their requests.
"""

from __future__ import annotations

from typing import Any, TypeVar

import anyio

from pravega_wire.names import reader_group_stream, scoped_name
from pravega_wire.sessions.steps import run_steps_async
from segstore_client.connections.calls import call_blocking
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.states.revision_log import RevisionLog
from segstore_client.steps.group_requests import Call, Pause, Request, Steps
from segstore_client.steps.group_steps import GroupSteps

T = TypeVar("T")


class GroupLog:
    """The log of one group. One task uses it, and closes it with ``aclose``."""

    def __init__(
        self, controller: ControllerClient, scope: str, group: str, *, patience: float
    ) -> None:
        stream = reader_group_stream(group)
        self._log = RevisionLog(controller, scope, stream, patience=patience)
        self.state = GroupSteps(self._log.session, scoped_name(scope, group))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._log.aclose()

    async def run(self, steps: Steps[T]) -> T:
        """Return the result of an operation."""
        return await run_steps_async(steps, self.fulfil)

    async def fulfil(self, request: Request) -> Any:
        """Return the reply to a request that any client of groups can fulfil."""
        if isinstance(request, Call):
            return await call_blocking(request.function)
        if isinstance(request, Pause):
            return await anyio.sleep(request.seconds)
        assert callable(request), request
        return await self._log.repeat(request)
