"""Measures how busy the segments of all containers are.

Owns: the rates of each segment with a scaling policy, and the events that are due, that is, which
controllers should get and have not received yet.

Every few seconds, it asks each container for the lengths and event counts of segments, which the
container has anyway, so that appends cost nothing more. Due events are computed again with each
sample, so none is sent that is not true any more.

Invariants:
1. A segment that is not used any more is measured until a controller got an event that it is
   silent; that event is sent once. Held by ``test_a_quiet_segment_is_told_silent_once``.
2. A sealed segment, and one whose policy asks for no scaling, is measured no more. Held by
   ``test_segments_without_a_policy_any_more_are_forgotten``.
3. When a silent segment is used again, it is measured again. Held by
   ``test_a_silent_segment_that_stays_in_memory_is_split_as_soon_as_it_is_busy_again``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
import trio

from pravega_wire.names import InvalidNameError, parse_segment_name
from pravega_wire.scale_events import AutoScaleEvent, ScaleDirection
from segstore.api import SegmentContainer, SegmentSample
from segstore.errors import ContainerOfflineError
from segstore.load.rates import FIXED, Advice, RateTimes, SegmentRates, weights_of
from segstore.model.attributes import SCALE_POLICY_TYPE
from segstore.process.config import AutoScaleSettings
from segstore.process.registry import ContainerRegistry

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DueEvent:
    """An event that controllers should get, with its segment and container."""

    container_id: int
    segment: str
    advice: Advice
    event: AutoScaleEvent


class LoadMonitor:
    """The load monitor of one process. One task calls ``run``."""

    def __init__(
        self,
        registry: ContainerRegistry,
        settings: AutoScaleSettings,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._sample_seconds = settings.sample_seconds
        self._times = RateTimes(
            windows=settings.window_seconds,
            cooldown=settings.cooldown_seconds,
            mute=settings.mute_seconds,
            expiry=settings.expiry_seconds,
        )
        self._now_ms = now_ms
        self._known: dict[int, dict[str, SegmentRates]] = {}
        self._due: dict[int, dict[str, DueEvent]] = {}
        self._sampled_at = 0.0
        self._became_due = trio.Event()

    @property
    def known_count(self) -> int:
        """Return how many segments are measured."""
        return sum(map(len, self._known.values()))

    async def run(self) -> None:
        """Sample one container after the other until cancelled."""
        last: dict[int, float] = {}
        while True:
            numbers = [status.container_id for status in self._registry.statuses()]
            for gone in self._known.keys() - numbers:
                del self._known[gone]
                self._due.pop(gone, None)
            if not numbers:
                await trio.sleep(self._sample_seconds)
            for number in numbers:
                await trio.sleep(self._sample_seconds / len(numbers))
                now = trio.current_time()
                self.sample_container(
                    number, now, now - last.get(number, now - self._sample_seconds)
                )
                last[number] = now

    async def wait_due(self) -> list[DueEvent]:
        """Wait until there are events for controllers, and return them."""
        while not any(self._due.values()):
            await self._became_due.wait()
        return [due for container in self._due.values() for due in container.values()]

    def record_delivery(self, told: Iterable[DueEvent]) -> None:
        """Remove the events that controllers have received."""
        for due in told:
            self._due.get(due.container_id, {}).pop(due.segment, None)
            rates = self._known.get(due.container_id, {}).get(due.segment)
            if rates is not None:
                rates.record_delivery(due.advice, self._sampled_at)
        self._update_event()

    def sample_container(self, container_id: int, now: float, seconds: float) -> None:
        """Sample all segments of a container, ``seconds`` after the last sample."""
        self._sampled_at = now
        try:
            container = self._registry.hosted(container_id).container
        except ContainerOfflineError:
            # A container's counts will be the same when it is online again, and the time until then
            # does not count. If it is not hosted any more, ``run`` forgets it.
            return
        known = self._known.setdefault(container_id, {})
        self._measure(container, known, now, weights_of(seconds, self._times.windows))
        due: dict[str, DueEvent] = {}
        for name, rates in known.items():
            advice = rates.advise(now)
            if advice is not None and (event := self._event_of(name, advice)) is not None:
                due[name] = DueEvent(container_id, name, advice, event)
        self._due[container_id] = due
        self._update_event()

    def _update_event(self) -> None:
        if any(self._due.values()):
            self._became_due.set()
        elif self._became_due.is_set():
            self._became_due = trio.Event()

    def _measure(
        self,
        container: SegmentContainer,
        known: dict[str, SegmentRates],
        now: float,
        weights: tuple[float, ...],
    ) -> None:
        def find_last(name: str) -> SegmentSample | None:
            rates = known.get(name)
            return None if rates is None else rates.last

        unchanged = set(known)
        long_ago_ms = self._now_ms() - 1000 * self._times.expiry
        for sample in container.load_samples(find_last):
            unchanged.discard(sample.name)
            if sample.sealed or sample.scale_type <= FIXED:
                known.pop(sample.name, None)
                continue
            rates = known.get(sample.name)
            if rates is not None and rates.segment_id == sample.segment_id:
                rates.observe(sample, now, weights)
            elif sample.last_modified_ms >= long_ago_ms:
                known[sample.name] = SegmentRates(sample, now, self._times)
        for name in unchanged:
            rates = known[name]
            rates.pass_time(weights)
            if rates.is_told_silent and container.attribute_now(name, SCALE_POLICY_TYPE) is None:
                # The segment has left memory.
                del known[name]

    def _event_of(self, segment: str, advice: Advice) -> AutoScaleEvent | None:
        try:
            name = parse_segment_name(segment)
        except InvalidNameError:
            # The segment is not part of a stream, so it cannot be scaled.
            return None
        return AutoScaleEvent(
            name.scope,
            name.stream,
            name.segment_id,
            ScaleDirection.UP if advice.is_up else ScaleDirection.DOWN,
            self._now_ms(),
            advice.splits,
            advice.silent,
        )
