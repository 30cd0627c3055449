"""A stream that retention truncates, while the clocks of the controllers' machines are set.

Owns: ``RetainedStream``, which writes, and compares the head with the times of the writes.
"""

from __future__ import annotations

import trio

from controllers.ledger import ViolationError
from pravega_controller.controller import Controller
from pravega_controller.rules.streams import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfiguration,
)
from pravega_controller.testing.memory_segment_store import MemorySegmentStore

RETENTION_PERIOD_SECONDS = 8.0
KEPT_SECONDS = 30.0
WRITE_SECONDS = 2.0
BYTES = 10
LATE_SECONDS = KEPT_SECONDS + 6 * RETENTION_PERIOD_SECONDS
"""Age at which bytes must be gone: a cut is recorded within two periods, is old enough after the
time that is kept, and a round comes within two more; the rest is for clocks that drift back."""


class RetainedStream:
    """A stream of one segment that is kept for some time."""

    def __init__(self, store: MemorySegmentStore) -> None:
        self._store = store
        self._written: list[float] = []
        """The times at which blocks of ``BYTES`` were written, from the stream's begin on."""

    async def create(self, controller: Controller) -> None:
        """Make the stream."""
        policy = RetentionPolicy(RetentionType.TIME, int(1000 * KEPT_SECONDS), 0)
        configuration = StreamConfiguration(ScalingPolicy(ScaleType.FIXED, 1), policy)
        await controller.streams.create("s", "r", configuration)

    async def write(self) -> None:
        """Write again and again, until cancelled."""
        while True:
            self._store.segments["s/r/0.#epoch.0"].append(b"x" * BYTES)
            self._written.append(trio.current_time())
            await trio.sleep(WRITE_SECONDS)

    def check(self) -> None:
        """Check that what is older than the policy wants is gone, whatever clocks showed before."""
        now, head = trio.current_time(), self._store.segments["s/r/0.#epoch.0"].start
        late = sum(at < now - LATE_SECONDS for at in self._written) * BYTES
        young = sum(at < now - KEPT_SECONDS / 2 for at in self._written) * BYTES
        if head < late:
            raise ViolationError(f"retention keeps {late - head} bytes for more than it may")
        if head > young:
            raise ViolationError(f"retention has dropped {head - young} bytes that are young")
