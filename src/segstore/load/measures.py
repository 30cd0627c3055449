"""The readings of a segment store, for those who ask for them.

Owns: ``StoreMeasures``, and the growth of streams between two questions.

What happened is in the recorders of the process. What is, such as the bytes that tier 2 lacks, is
looked up here when somebody asks, so a store that nobody asks has no work with it.

Invariants:
1. When segments of a stream grow, appear or are deleted after the first look, its counters grow by
   the bytes and events that were added, and no counter falls while one of its segments is in
   memory. A segment that was inactive counts from its length at the next look. Held by
   ``TestTheCountersOfStreams``.
2. When bytes are first in a transaction or a transient segment, they are counted once, when they
   are merged. Held by ``test_bytes_of_a_transaction_count_when_they_are_merged``.
3. When there are more streams than ``STREAMS_MAX``, those that grew most since the last look are
   reported by name, and the growth of the others together, so that each byte counts once. Held by
   ``test_only_the_busiest_streams_are_told_by_name``.
4. When a container has very many segments, other tasks run meanwhile, and a look that is cancelled
   loses nothing. Held by ``test_other_tasks_run_during_a_look`` and
   ``test_a_cancelled_look_loses_nothing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Final

import trio

from pravega_metrics import store_metrics as metrics
from pravega_metrics.metrics import OTHER, Family
from pravega_metrics.process_metrics import read_process
from pravega_wire.names import KEY_VALUE_TABLE_SUFFIX, InvalidNameError, parse_segment_name
from segstore.api import ContainerMeasures
from segstore.process.registry import ContainerRegistry, ContainerState

STREAMS_MAX: Final = 100
"""Maximum number of streams that a store reports by name: each is four lines of a scrape."""
SEGMENTS_PER_TURN: Final = 1_000
"""Maximum number of segments that are looked at before other tasks run."""

Stream = tuple[str, str]
_REST: Final[Stream] = (OTHER, OTHER)


class StoreMeasures:
    """The measures of one store. ``connections`` returns the readings of its port."""

    def __init__(
        self, registry: ContainerRegistry, connections: Callable[[], list[Family]]
    ) -> None:
        self._registry = registry
        self._connections = connections
        self._streams = StreamGrowth()
        self._look = trio.Lock()

    async def read(self) -> list[Family]:
        """Return all readings of the store."""
        told = await self._look_at_streams()
        found = [
            *(each.read() for each in metrics.RECORDED),
            *read_process(),
            *self._connections(),
            *self._read_containers(),
            metrics.STREAM_BYTES.family({stream: count for stream, count, _ in told}),
            metrics.STREAM_EVENTS.family({stream: count for stream, _, count in told}),
            metrics.DELAYS.family({(): len(self._registry.delay_reasons())}),
        ]
        return [family for family in found if family.readings]

    async def _look_at_streams(self) -> list[tuple[Stream, int, int]]:
        async with self._look:
            streams = self._streams
            streams.begin()
            for number, container in list(self._registry.online()):
                first_new_id = streams.enter(number, container.next_segment_id)
                lengths = container.lengths()
                while part := list(islice(lengths, SEGMENTS_PER_TURN)):
                    streams.add(part, first_new_id)
                    await trio.lowlevel.checkpoint()
            streams.end()
            return list(streams.told())

    def _read_containers(self) -> list[Family]:
        statuses = self._registry.statuses()
        measured: dict[str, ContainerMeasures] = {
            str(number): container.measures() for number, container in self._registry.online()
        }
        cache: dict[tuple[str, ...], int] = {}
        for each in measured.values():
            cache = {(kind,): count for kind, count in each.cache.items()}
        return [
            metrics.CONTAINER_STATES.family(
                {
                    (str(each.container_id), state.value): int(each.state is state)
                    for each in statuses
                    for state in ContainerState
                }
            ),
            metrics.CONTAINER_FAILURES.family(
                {(str(each.container_id),): each.failure_count for each in statuses}
            ),
            metrics.RECOVERY_SECONDS.family(
                {(str(each.container_id),): each.opening_seconds for each in statuses}
            ),
            metrics.ACTIVE_SEGMENTS.family(
                {(number,): each.active_segment_count for number, each in measured.items()}
            ),
            metrics.UNFLUSHED_BYTES.family(
                {(number,): each.unflushed_bytes for number, each in measured.items()}
            ),
            metrics.LOG_HELD_BYTES.family(
                {(number,): each.log_held_bytes for number, each in measured.items()}
            ),
            metrics.THROTTLE_SECONDS.family(
                {
                    (number, reason): seconds
                    for number, each in measured.items()
                    for reason, seconds in each.delays.items()
                }
            ),
            metrics.CACHE_BYTES.family(cache),
        ]


class _Growth:
    """The growth of a stream while it was reported by name, and since the last look."""

    __slots__ = ("bytes", "events", "recent_bytes", "recent_events", "segment_count", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.bytes = self.events = self.recent_bytes = self.recent_events = 0
        self.segment_count = 0

    def grow(self, length: int, event_count: int) -> None:
        """Add bytes and events of this look."""
        self.recent_bytes += length
        self.recent_events += event_count


class StreamGrowth:
    """Counters of the streams whose segments are in memory, from one look to the next.

    A look is ``begin``, then ``enter`` and ``add`` for each container, then ``end``. One that is
    not ended loses nothing: the next one continues from what was added.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Seen] = {}
        self._found: dict[str, _Seen] = {}
        self._streams: dict[Stream, _Growth] = {}
        self._next_ids: dict[int, int] = {}
        self._found_ids: dict[int, int] = {}
        self._rest = _Growth(_REST)
        self._shown: list[_Growth] = []

    def begin(self) -> None:
        """Begin a look."""
        self._found, self._found_ids = {}, {}

    def enter(self, container_id: int, next_segment_id: int) -> int:
        """Begin a container; return the id from which on its segments are new since the last
        look."""
        self._found_ids[container_id] = next_segment_id
        return self._next_ids.get(container_id, next_segment_id)

    def add(self, lengths: Iterable[tuple[str, int, int, int]], first_new_id: int) -> None:
        """Add what segments have grown since the last look: name, id, length and number of events
        of each. A segment that is unknown and not new counts from its present length."""
        known, found = self._known, self._found
        for name, segment_id, length, event_count in lengths:
            seen = known.get(name)
            if seen is None or seen[0] != segment_id:
                growth = self._find_stream(name) if seen is None else seen[3]
                if growth is not None and segment_id >= first_new_id:
                    growth.grow(length, event_count)
                seen = known[name] = (segment_id, length, event_count, growth)
            elif seen[1] != length or seen[2] != event_count:
                growth = seen[3]
                if growth is not None:
                    growth.grow(max(0, length - seen[1]), max(0, event_count - seen[2]))
                seen = known[name] = (segment_id, length, event_count, growth)
            found[name] = seen

    def _find_stream(self, segment: str) -> _Growth | None:
        stream = _stream_of(segment)
        if stream is None:
            return None
        growth = self._streams.get(stream)
        if growth is None:
            growth = self._streams[stream] = _Growth(stream)
        growth.segment_count += 1
        return growth

    def end(self) -> None:
        """End a look: forget what is no longer in memory, and choose the streams that are reported
        by name."""
        known, found = self._known, self._found
        if len(known) > len(found):
            for name in known.keys() - found.keys():
                self._forget(known[name][3])
        self._known, self._next_ids = found, self._found_ids
        busiest = nlargest(STREAMS_MAX, self._streams.values(), key=attrgetter("recent_bytes"))
        self._shown = sorted(busiest, key=attrgetter("stream"))
        for growth in busiest:
            growth.bytes += growth.recent_bytes
            growth.events += growth.recent_events
            growth.recent_bytes = growth.recent_events = 0
        for growth in self._streams.values():
            self._move_to_rest(growth)

    def _forget(self, growth: _Growth | None) -> None:
        if growth is not None:
            growth.segment_count -= 1
            if not growth.segment_count:
                self._move_to_rest(growth)
                del self._streams[growth.stream]

    def _move_to_rest(self, growth: _Growth) -> None:
        self._rest.bytes += growth.recent_bytes
        self._rest.events += growth.recent_events
        growth.recent_bytes = growth.recent_events = 0

    def told(self) -> Iterator[tuple[Stream, int, int]]:
        """Yield name, bytes and events of the busiest streams, and those of the rest."""
        for growth in [*self._shown, self._rest]:
            yield growth.stream, growth.bytes, growth.events


_Seen = tuple[int, int, int, _Growth | None]
"""Id, length and number of events of a segment at the last look, and its stream."""


def _stream_of(segment: str) -> Stream | None:
    """Return scope and stream of a segment; None for one of no stream, and for one whose bytes will
    be merged into another."""
    try:
        parsed = parse_segment_name(segment)
    except InvalidNameError:
        return None
    is_merged = parsed.transaction_id is not None or parsed.writer_id is not None
    if is_merged or parsed.stream.endswith(KEY_VALUE_TABLE_SUFFIX):
        return None
    return parsed.scope, parsed.stream
