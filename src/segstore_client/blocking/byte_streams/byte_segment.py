"""The segment of a byte stream, for a program that blocks.

Owns: ``BlockingByteSegment``, which runs the operations of ``ByteSegmentSteps``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pravega_wire import commands as wire
from pravega_wire.sessions.steps import run_steps
from segstore_client.access.tokens import StoreAccess
from segstore_client.backoff import Patience
from segstore_client.blocking.segments.segment_requests import BlockingSegmentRequests
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.repeats import repeat_calls
from segstore_client.steps.byte_segment_steps import ByteSegmentSteps, Steps
from segstore_client.steps.table_steps import Make

T = TypeVar("T")


class BlockingByteSegment:
    """The only segment of a stream. ``access`` is the way to it."""

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        access: StoreAccess,
        patience: float,
    ) -> None:
        self.steps = ByteSegmentSteps(controller, scope, stream, patience=patience)
        self._access = access
        self._patience = patience
        self._requests = BlockingSegmentRequests(
            controller, scope, stream, what=self.steps.name, patience=patience
        )

    def run(self, steps: Steps[T]) -> T:
        """Return the result of an operation.

        Raises errors as ``BlockingSegmentRequests.ask``.
        """
        return run_steps(steps, self._ask)

    def repeat(self, call: Callable[[], T], what: str) -> T:
        """Return the result of a call, which is repeated while servers are away; ``what`` could not
        be done otherwise."""
        return repeat_calls(call, Patience(self._patience), f"{self.steps.name} {what}")

    def _ask(self, make: Make) -> wire.Reply:
        return self._requests.ask(self._access, self.steps.number, make)[1]
