"""The segment of a byte stream, for a program that does not block.

Owns: ``ByteSegment``, which runs the operations of ``ByteSegmentSteps``.
"""

from __future__ import annotations

from typing import TypeVar

from pravega_wire import commands as wire
from pravega_wire.sessions.steps import run_steps_async
from segstore_client.access.tokens import StoreAccess
from segstore_client.connections.request_pool import RequestPool
from segstore_client.connections.segment_requests import SegmentRequests
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.steps.byte_segment_steps import ByteSegmentSteps, Steps
from segstore_client.steps.table_steps import Make

T = TypeVar("T")


class ByteSegment:
    """The only segment of a stream. ``access`` is the way to it."""

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        stream: str,
        *,
        access: StoreAccess,
        patience: float,
    ) -> None:
        self.steps = ByteSegmentSteps(controller, scope, stream, patience=patience)
        self._access = access
        self._requests = SegmentRequests(
            controller, pool, scope, stream, what=self.steps.name, patience=patience
        )

    async def run(self, steps: Steps[T]) -> T:
        """Return the result of an operation.

        Raises errors as ``SegmentRequests.ask``.
        """
        return await run_steps_async(steps, self._ask)

    async def _ask(self, make: Make) -> wire.Reply:
        return (await self._requests.ask(self._access, self.steps.number, make))[1]
