"""Runs work in the background, such as unfinished workflows, and retries it until it succeeds.

Owns: the tasks that do the work, and the pauses between attempts. An intent is the stored note that
a workflow may be unfinished (``metadata.intents``).

Invariants:
1. When a workflow fails because a segment store is away, it is tried again until it succeeds.
   Held by ``test_work_is_tried_again_until_it_succeeds``.
2. When the same work is handed in twice, one task does it.
   Held by ``test_the_same_work_runs_once_at_a_time``.
3. When the controller ends before a workflow does, the next controller finishes it from the intent.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

import structlog
import trio

from pravega_controller.errors import (
    StepRefusedError,
    StoreAnswerError,
    StoreUnavailableError,
    VersionConflictError,
)
from pravega_controller.metadata.records import IntentRecord

PAUSE_SECONDS_MIN = 0.2
PAUSE_SECONDS_MAX = 20.0
TASKS_MAX = 32

RETRIED_ERRORS = (StoreUnavailableError, StoreAnswerError, VersionConflictError)
"""Errors after which work is tried again. Any other error ends the work and is logged."""

Finish: TypeAlias = Callable[[str, str], Awaitable[None]]
"""A function that finishes the pending workflow of the object with this scope and name."""

log = structlog.get_logger(__name__)


class Background:
    """Finishes workflows in a nursery."""

    def __init__(self, nursery: trio.Nursery, *, random: Random) -> None:
        self._nursery = nursery
        self._random = random
        self._finishers: dict[str, Finish] = {}
        self._running: set[IntentRecord] = set()
        self._places = trio.CapacityLimiter(TASKS_MAX)

    def register(self, kind: str, finish: Finish) -> None:
        """Register the function that finishes the workflows of a kind of object."""
        assert kind not in self._finishers
        self._finishers[kind] = finish

    def finish_later(self, intent: IntentRecord) -> None:
        """Finish a workflow in the background, unless that is already under way."""
        if intent not in self._running:
            self._running.add(intent)
            self._nursery.start_soon(self._run, intent)

    def start(self, work: Callable[[], Awaitable[None]], /, **what: str) -> None:
        """Begin work as a task, repeated until it succeeds; ``what`` names it in the log."""
        self._nursery.start_soon(self._repeat, work, log.bind(**what))

    async def _run(self, intent: IntentRecord) -> None:
        bound = log.bind(kind=intent.kind, scope=intent.scope, name=intent.name)
        finish = self._finishers.get(intent.kind)
        if finish is None:
            bound.error("no code finishes this kind of workflow")
            return

        async def work() -> None:
            async with self._places:
                await finish(intent.scope, intent.name)
            bound.info("workflow finished")

        try:
            await self._repeat(work, bound)
        finally:
            self._running.discard(intent)

    async def _repeat(
        self, work: Callable[[], Awaitable[None]], bound: structlog.typing.FilteringBoundLogger
    ) -> None:
        pause = PAUSE_SECONDS_MIN
        while True:
            try:
                return await work()
            except RETRIED_ERRORS as error:
                bound.warning("workflow not finished yet", reason=str(error))
            except StepRefusedError as error:
                bound.error("workflow failed for good", reason=str(error))
                return None
            except Exception:
                bound.exception("workflow cannot be finished")
                return None
            await trio.sleep(pause * (0.5 + self._random.random() / 2))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
