"""A reader group: its readers, and what is done to the group as a whole.

Owns: ``ReaderGroup``. The state of a group is that of the official clients, so their readers may be
in it, too.

Invariants:
1. When a checkpoint is taken, its positions are behind all that its readers had processed then, and
   before all that they processed later. Held by
   ``test_a_group_continues_at_the_positions_of_a_checkpoint``.
2. When a checkpoint is taken while the segments of a merge are read, the cut has those that were
   read to their ends, too. Held by ``test_a_checkpoint_amid_a_merge_is_a_whole_cut``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

import anyio

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
    Cut,
    GroupSettings,
)
from pravega_wire.reader_groups.states import GroupState
from segstore_client.connections.calls import call_blocking
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.group_configuration import find_begin, from_message, to_message
from segstore_client.cuts.group_lag import find_lags
from segstore_client.cuts.group_seek import seek_group
from segstore_client.cuts.places import Place, find_cut
from segstore_client.errors import AlreadyExistsError, ConflictError
from segstore_client.groups.group_log import GroupLog
from segstore_client.groups.group_reader import GroupReader, OnCheckpoint
from segstore_client.positions import Position

CHECKPOINT_LOOK_SECONDS = 0.5
"""Time between two looks whether all readers have reached a checkpoint."""


CHECKPOINT_SECONDS = CHECKPOINT_MS / 1000
REFRESH_SECONDS = REFRESH_MS / 1000


async def create_group(
    controller: ControllerClient,
    scope: str,
    group: str,
    settings: GroupSettings,
    *,
    exist_ok: bool,
    patience: float,
) -> None:
    """Create a group, and begin its state. See ``Store.create_group``.

    When another client creates the group at the same time, one of them begins the state.
    """
    message = to_message(scope, group, settings)
    found, is_mine = await call_blocking(partial(controller.create_group, message))
    name = scoped_name(scope, group)
    if not is_mine and not exist_ok:
        raise AlreadyExistsError(f"reader group {name} exists already")
    begin = await call_blocking(
        partial(find_begin, controller, from_message(found, found.generation))
    )
    async with aclosing(GroupLog(controller, scope, group, patience=patience)) as log:
        await log.begin(begin)


class ReaderGroup:
    """A reader group. ``Store.group`` makes it; nothing is asked before it is needed."""

    def __init__(
        self, controller: ControllerClient, scope: str, name: str, *, patience: float
    ) -> None:
        self.name = scoped_name(scope, name)
        self._controller = controller
        self._scope, self._group = scope, name
        self._patience = patience

    def reader(self, name: str, *, on_checkpoint: OnCheckpoint | None = None) -> GroupReader:
        """Return a reader of the group, to be used in an ``async with`` block. Its name is its own
        in the group.

        ``on_checkpoint`` is called with the name of each checkpoint, and the next offset of each
        segment that the reader has, by name: the program may store them before others continue.
        """
        return GroupReader(
            self._controller,
            self._scope,
            self._group,
            name,
            patience=self._patience,
            on_checkpoint=on_checkpoint,
        )

    async def readers(self) -> list[str]:
        """Return the names of the readers in the group, also of those that have vanished."""
        async with aclosing(self._open_log()) as log:
            return (await log.read()).readers

    async def remove_reader(self, name: str, positions: Mapping[str, int] | None = None) -> None:
        """Take a reader out of the group that has vanished; the others get its segments.

        They continue at these offsets, by the names of segments, or else at its last checkpoint.
        """

        def remove(state: GroupState) -> list[Change]:
            return [ReaderRemoved(name, positions or {})] if name in state.assigned else []

        async with aclosing(self._open_log()) as log:
            await log.read()
            await log.change(remove)

    async def lags(self) -> list[SegmentLag]:
        """Return how far the group is behind each segment's end, in bytes and milliseconds."""
        async with aclosing(self._open_log()) as log:
            state = await log.read()
        return await call_blocking(partial(find_lags, self._controller, state))

    async def unread_bytes(self) -> int:
        """Return the number of bytes that the group has not read, as its readers told last."""
        return sum(lag.unread for lag in await self.lags())

    async def checkpoint(self, name: str) -> dict[str, Cut]:
        """Take a checkpoint: return a stream cut of each stream, when all readers have reached it.

        Raises ``ConflictError`` if as many checkpoints are under way as the group allows, or one
        of this name.
        """

        future: dict[str, set[int]] = {}

        def begin(state: GroupState) -> list[Change]:
            future.clear()
            future.update({each: set(before) for each, before in state.future.items()})
            if name in state.checkpoints.positions:
                raise ConflictError(f"reader group {self.name} has a checkpoint {name} already")
            if len(state.checkpoints.outstanding) >= state.settings.outstanding_max:
                raise ConflictError(
                    f"{len(state.checkpoints.outstanding)} checkpoints of reader group"
                    f" {self.name} are under way, as many as it allows"
                )
            return [CheckpointBegun(name)]

        complete: list[Mapping[str, int]] = []

        def look(state: GroupState) -> None:
            # A later checkpoint may clear it as soon as it is complete.
            found = state.checkpoints
            if name in found.positions and name not in found.waiting:
                complete.append(found.positions[name])

        async with aclosing(self._open_log()) as log:
            await log.read()
            await log.change(begin)
            log.watch(look)
            look(log.state)
            while not complete:
                if name not in log.state.checkpoints.positions:
                    raise ConflictError(f"checkpoint {name} of {self.name} was given up by a reset")
                await anyio.sleep(CHECKPOINT_LOOK_SECONDS)
                await log.read()
            await log.change(lambda state: [CheckpointsCleared(name)])
        positions = {**await self._find_read(future), **complete[0]}
        cuts: dict[str, dict[int, int]] = {}
        for segment, offset in positions.items():
            found = parse_segment_name(segment)
            stream = scoped_name(found.scope, found.stream)
            cuts.setdefault(stream, {})[found.segment_id] = offset
        return dict(cuts)

    async def _find_read(self, future: Mapping[str, set[int]]) -> dict[str, int]:
        """Return the segments that were read to their ends, and whose successors still wait for
        others: no reader has them any more. Their offset is -1."""
        found: dict[str, int] = {}
        for name, waits_for in future.items():
            segment = parse_segment_name(name)
            scope, stream = segment.scope, segment.stream
            ask = partial(self._controller.successors, scope, stream, min(waits_for))
            for each in await call_blocking(ask):
                if each.range.segment_id == segment.segment_id:
                    read = each.predecessors - waits_for
                    found |= {segment_name(scope, stream, one): -1 for one in read}
        return found

    async def reset(self, start: Position | Mapping[str, Cut]) -> None:
        """Let the group continue at an end of its streams, or at a stream cut of each.

        Its readers get ``RemovedFromGroupError``, and have to be made again. Raises
        ``ConflictError`` for the tail of a stream that is sealed.
        """
        await call_blocking(partial(self._reset, start))

    def _reset(self, start: Position | Mapping[str, Cut]) -> None:
        controller, scope, group = self._controller, self._scope, self._group
        if isinstance(start, Position):
            cuts = controller.group_settings(scope, group).startingStreamCuts
            streams = [(each.streamInfo.scope, each.streamInfo.stream) for each in cuts]
            start = {
                scoped_name(*each): find_cut(controller, *each, Place(end=start))
                for each in streams
            }
        seek_group(controller, scope, group, start)

    def _open_log(self) -> GroupLog:
        return GroupLog(self._controller, self._scope, self._group, patience=self._patience)
