"""The operations on a reader group as a whole, without I/O: requests out, results in.

Owns: ``GroupOperations``. Each is a generator, which a client that blocks and an async one run over
a log of the group's state. The state is that of the official clients, so their readers may be in
the group, too.

Invariants:
1. When a checkpoint is taken, its positions are behind all that its readers had processed then, and
   before all that they processed later. Held by
   ``test_a_group_continues_at_the_positions_of_a_checkpoint`` and
   ``test_a_group_of_programs_that_block_continues_at_a_checkpoint``.
2. When a checkpoint is taken while the segments of a merge are read, the cut has those that were
   read to their ends, too. Held by ``test_a_checkpoint_amid_a_merge_is_a_whole_cut``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeAlias

from pravega_wire.names import parse_segment_name, scoped_name, segment_name
from pravega_wire.reader_groups.changes import (
    Change,
    CheckpointBegun,
    CheckpointsCleared,
    ReaderRemoved,
)
from pravega_wire.reader_groups.lags import SegmentLag
from pravega_wire.reader_groups.settings import (
    CHECKPOINT_MS,
    REFRESH_MS,
    RETENTION_AUTOMATIC,
    RETENTION_NONE,
    Cut,
    GroupSettings,
)
from pravega_wire.reader_groups.states import GroupState
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.group_configuration import find_begin, from_message, to_message
from segstore_client.cuts.bounds import At, make_place
from segstore_client.cuts.group_lag import find_lags
from segstore_client.cuts.group_seek import seek_group
from segstore_client.cuts.places import Place, find_cut
from segstore_client.errors import AlreadyExistsError, ConflictError, NotFoundError, TimedOutError
from segstore_client.inputs import to_end
from segstore_client.positions import End
from segstore_client.steps.group_requests import Pause, Steps, call
from segstore_client.steps.group_steps import GroupSteps

CHECKPOINT_LOOK_SECONDS = 0.5
"""Time between two looks whether all readers have reached a checkpoint."""
CHECKPOINT_SECONDS = CHECKPOINT_MS / 1000
REFRESH_SECONDS = REFRESH_MS / 1000

Places: TypeAlias = End | datetime | Mapping[str, At]
"""Places of the streams of a group, as a program says them: the same of each, or by their names."""


def build_settings(
    controller: ControllerClient,
    streams: Sequence[str],
    *,
    starts: Places | None,
    ends: Places | None,
    checkpoint_seconds: float | None,
    refresh_seconds: float,
    retains: bool,
) -> GroupSettings:
    """Return the settings of a new group, from the arguments of a store's ``create_group``. This
    blocks.

    Raises ``UsageError`` if a stream has no such place.
    """
    return GroupSettings(
        starts=_find_cuts(controller, streams, starts, is_end=False),
        ends=_find_cuts(controller, streams, ends, is_end=True),
        checkpoint_ms=-1 if checkpoint_seconds is None else round(checkpoint_seconds * 1000),
        refresh_ms=round(refresh_seconds * 1000),
        retention=RETENTION_AUTOMATIC if retains else RETENTION_NONE,
        identifier=os.urandom(16),
    )


def _find_cuts(
    controller: ControllerClient, streams: Sequence[str], places: Places | None, *, is_end: bool
) -> dict[str, Cut]:
    """Return the stream cut of each stream; an empty one has no bound."""
    by_stream = places if isinstance(places, Mapping) else dict.fromkeys(streams, places)
    cuts: dict[str, Cut] = {}
    for name in streams:
        at = by_stream.get(name)
        if at is None or isinstance(at, Mapping):
            cuts[name] = at or {}
        else:
            scope, _, stream = name.partition("/")
            cuts[name] = find_cut(controller, scope, stream, make_place(at), is_end=is_end)
    return cuts


class GroupOperations:
    """The operations on one group; ``state`` is that of a log which is open while they run."""

    def __init__(self, controller: ControllerClient, scope: str, group: str) -> None:
        self._controller = controller
        self._scope, self._group = scope, group
        self._name = scoped_name(scope, group)

    def create(self, state: GroupSteps, settings: GroupSettings, *, exist_ok: bool) -> Steps[None]:
        """Create the group, and begin its state.

        When another client creates the group at the same time, one of them begins the state.
        """
        # A stream that does not exist is told before a group is there that nobody can read.
        yield from call(partial(find_begin, self._controller, settings))
        message = to_message(self._scope, self._group, settings)
        found, is_mine = yield from call(partial(self._controller.create_group, message))
        if not is_mine and not exist_ok:
            raise AlreadyExistsError(f"reader group {self._name} exists already")
        configured = from_message(found, found.generation)
        begin = yield from call(partial(find_begin, self._controller, configured))
        yield from state.begin(begin)

    def find_readers(self, state: GroupSteps) -> Steps[list[str]]:
        """Return the names of the readers in the group, also of those that have vanished."""
        return (yield from state.read()).readers

    def remove_reader(
        self, state: GroupSteps, reader: str, positions: Mapping[str, int]
    ) -> Steps[None]:
        """Take a reader out of the group that has vanished; the others get its segments.

        Raises ``NotFoundError`` if the group has no such reader.
        """

        def remove(found: GroupState) -> list[Change]:
            return [ReaderRemoved(reader, positions)] if reader in found.assigned else []

        yield from state.read()
        if not (yield from state.change(remove)):
            raise NotFoundError(f"reader group {self._name} has no reader {reader}")

    def find_lags(self, state: GroupSteps) -> Steps[list[SegmentLag]]:
        """Return how far the group is behind each segment's end, in bytes and milliseconds."""
        found = yield from state.read()
        return (yield from call(partial(find_lags, self._controller, found)))

    def take_checkpoint(
        self, state: GroupSteps, name: str, *, timeout: float = math.inf
    ) -> Steps[dict[str, Cut]]:
        """Return a stream cut of each stream, when all readers have reached a new checkpoint.

        Raises ``ConflictError`` if as many checkpoints are under way as the group allows, or one
        of this name, and ``TimedOutError`` after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        future: dict[str, set[int]] = {}

        def begin(found: GroupState) -> list[Change]:
            future.clear()
            future.update({each: set(before) for each, before in found.future.items()})
            self._check_checkpoint(found, name)
            return [CheckpointBegun(name)]

        complete: list[Mapping[str, int]] = []

        def look(found: GroupState) -> None:
            # A later checkpoint may clear it as soon as it is complete.
            if name in found.checkpoints.positions and name not in found.checkpoints.waiting:
                complete.append(found.checkpoints.positions[name])

        yield from state.read()
        yield from state.change(begin)
        state.watch(look)
        look(state.state)
        while not complete:
            if name not in state.state.checkpoints.positions:
                raise ConflictError(f"checkpoint {name} of {self._name} was given up by a reset")
            if time.monotonic() >= deadline:
                late = sorted(state.state.checkpoints.waiting.get(name, ()))
                raise TimedOutError(
                    f"checkpoint {name} of {self._name} was not reached in {timeout:g} s by"
                    f" {', '.join(late)}"
                )
            yield Pause(min(CHECKPOINT_LOOK_SECONDS, timeout))
            yield from state.read()
        yield from state.change(lambda _: [CheckpointsCleared(name)])
        read = yield from self._find_read(future)
        return _cut_streams({**read, **complete[0]})

    def reset(self, start: End | Mapping[str, Cut]) -> None:
        """Let the group continue at an end of its streams, or at a stream cut of each. This blocks.

        Raises ``ConflictError`` for the tail of a stream that is sealed.
        """
        controller, scope, group = self._controller, self._scope, self._group
        if isinstance(start, str):
            place = Place(end=to_end(start))
            cuts = controller.group_settings(scope, group).startingStreamCuts
            streams = [(each.streamInfo.scope, each.streamInfo.stream) for each in cuts]
            start = {scoped_name(*each): find_cut(controller, *each, place) for each in streams}
        seek_group(controller, scope, group, start)

    def _check_checkpoint(self, found: GroupState, name: str) -> None:
        """Raise ``ConflictError`` if the checkpoint cannot begin."""
        if name in found.checkpoints.positions:
            raise ConflictError(f"reader group {self._name} has a checkpoint {name} already")
        under_way = len(found.checkpoints.outstanding)
        if under_way >= found.settings.outstanding_max:
            raise ConflictError(
                f"{under_way} checkpoints of reader group {self._name} are under way, as many as it"
                " allows"
            )

    def _find_read(self, future: Mapping[str, set[int]]) -> Steps[dict[str, int]]:
        """Return the segments that were read to their ends, and whose successors still wait for
        others: no reader has them any more. Their offset is -1."""
        found: dict[str, int] = {}
        for name, waits_for in future.items():
            segment = parse_segment_name(name)
            scope, stream = segment.scope, segment.stream
            ask = partial(self._controller.successors, scope, stream, min(waits_for))
            for each in (yield from call(ask)):
                if each.range.segment_id == segment.segment_id:
                    read = each.predecessors - waits_for
                    found |= {segment_name(scope, stream, one): -1 for one in read}
        return found


def _cut_streams(positions: Mapping[str, int]) -> dict[str, Cut]:
    """Return the cut of each stream of which there are positions."""
    cuts: dict[str, dict[int, int]] = {}
    for name, offset in positions.items():
        segment = parse_segment_name(name)
        stream = scoped_name(segment.scope, segment.stream)
        cuts.setdefault(stream, {})[segment.segment_id] = offset
    return dict(cuts)
