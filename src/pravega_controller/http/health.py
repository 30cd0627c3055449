"""The health of a controller as a tree, with reasons in words.

Owns: ``Health``, which looks at most once in ``LOOK_SECONDS``, and the documents of the tree, which
are the original's.

A controller is ready when it can read its metadata, which is in the segment stores: whatever makes
that fail is the reason. It is alive as long as its event loop answers.

Invariants:
1. When no segment store answers, the controller is not ready, and its health has the reason; once
   one answers, it is ready. Held by ``test_without_a_segment_store_it_is_not_ready``.
2. When one of the tables of the metadata cannot be read, the controller is not ready, also if the
   others can be read. Held by ``test_each_table_of_the_metadata_has_to_be_readable``.
3. When many requests for the health come at once, segment stores are asked once. Held by
   ``test_many_questions_are_one_look``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller
from pravega_controller.errors import ControllerError

LOOK_SECONDS: Final = 1.0
"""Time, in seconds, for which the result of a look at the segment stores is returned again."""
ANSWER_SECONDS_MAX: Final = 2.0
"""Maximum time, in seconds, for the metadata to be read: Kubernetes gives a probe one second more
by the manifests of this project."""
RETRY_SECONDS_MAX: Final = 1.0
"""Maximum time, in seconds, for which a store that refuses, or is away, is tried again. One that
has just been started has answered by then, and there is time left to tell the reason."""


@dataclass(frozen=True, slots=True)
class HealthOf:
    """The health of a part, with those of its parts by name."""

    name: str
    reason: str | None = None
    """A sentence that says what is wrong; None if nothing is."""
    details: Mapping[str, str] = field(default_factory=dict)
    children: tuple[HealthOf, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Return whether the part and all of its parts do their work."""
        return self.reason is None and all(child.is_ready for child in self.children)

    def reasons(self) -> Iterator[str]:
        """Yield what is wrong, in the part and in its parts."""
        if self.reason is not None:
            yield f"{self.name}: {self.reason}" if self.name else self.reason
        for child in self.children:
            yield from child.reasons()

    def find(self, identifier: str) -> HealthOf | None:
        """Return a part by the names on the way to it, with slashes between them."""
        if not identifier:
            return self
        name, _, rest = identifier.partition("/")
        for child in self.children:
            if child.name == name:
                return child.find(rest)
        return None

    def document(self) -> dict[str, Any]:
        """Return the original's document of it; ours also has the reason."""
        told = {} if self.reason is None else {"reason": self.reason}
        return {
            "name": self.name,
            "status": "UP" if self.is_ready else "DOWN",
            "readiness": self.is_ready,
            "liveness": True,
            "details": {**self.details, **told},
            "children": {child.name: child.document() for child in self.children},
        }


class Health:
    """Looks at the health of a controller."""

    def __init__(self, controller: Controller, config: ControllerConfig) -> None:
        self._controller = controller
        self._config = config
        self._lock = trio.Lock()
        self._looked: tuple[float, HealthOf] | None = None

    @property
    def address(self) -> str:
        """Return the host and port of the controller, as others reach it."""
        config = self._config
        return f"{config.published_address or config.host}:{config.port}"

    async def look(self) -> HealthOf:
        """Return the health of the whole, at most ``LOOK_SECONDS`` old."""
        async with self._lock:
            if self._looked is None or trio.current_time() - self._looked[0] >= LOOK_SECONDS:
                found = await self._look()
                self._looked = trio.current_time(), found
            return self._looked[1]

    async def _look(self) -> HealthOf:
        config = self._config
        rounds = {
            "eventProcessor": config.request_poll_seconds,
            "retentionService": config.retention_period_seconds,
            "watermarkingService": config.watermark_period_seconds,
        }
        return HealthOf(
            "",
            children=(
                HealthOf("GRPCServer"),
                HealthOf("segmentContainerMonitor", await self._why_metadata_is_unreadable()),
                *(
                    HealthOf(name, details={"periodSeconds": f"{seconds:g}"})
                    for name, seconds in rounds.items()
                    if seconds > 0
                ),
            ),
        )

    async def _why_metadata_is_unreadable(self) -> str | None:
        """Return None if the metadata can be read."""
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                await self._controller.store.check(retry_seconds_max=RETRY_SECONDS_MAX)
        except trio.TooSlowError:
            return f"segment stores do not answer within {ANSWER_SECONDS_MAX:g} s"
        except ControllerError as error:
            return str(error)
        return None
