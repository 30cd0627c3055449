"""A reader group, for a program that does not block.

Owns: ``ReaderGroup``. What is done to a group is that of ``GroupOperations``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from pravega_wire.names import scoped_name
from pravega_wire.reader_groups.lags import SegmentLag
from pravega_wire.reader_groups.settings import Cut, GroupSettings
from segstore_client.connections.calls import call_blocking
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.groups.group_log import GroupLog
from segstore_client.groups.group_reader import GroupReader, OnCheckpoint
from segstore_client.positions import End
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.steps.group_operations import GroupOperations
from segstore_client.steps.group_requests import Steps
from segstore_client.steps.group_steps import GroupSteps

R = TypeVar("R")


class ReaderGroup:
    """A reader group. ``Store.group`` makes it; nothing is asked before it is needed."""

    def __init__(
        self, controller: ControllerClient, scope: str, name: str, *, patience: float
    ) -> None:
        self.name = scoped_name(scope, name)
        self._controller = controller
        self._scope, self._group = scope, name
        self._patience = patience
        self._operations = GroupOperations(controller.with_patience(patience), scope, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    async def create(self, settings: GroupSettings, *, exist_ok: bool) -> None:
        """Create the group. See ``Store.create_group``."""
        create = self._operations.create
        await self._run(lambda state: create(state, settings, exist_ok=exist_ok))

    def reader(
        self,
        name: str,
        *,
        serializer: Serializer[T] = BYTES,
        on_checkpoint: OnCheckpoint | None = None,
    ) -> GroupReader[T]:
        """Return a reader of the group, to be used in an ``async with`` block. Its name is its own
        in the group. ``serializer`` makes the ``value`` of an event of its ``data``.

        ``on_checkpoint`` is called with the name of each checkpoint, and the next offset of each
        segment that the reader has, by name: the program may store them before others continue.
        """
        return GroupReader(
            self._controller,
            self._scope,
            self._group,
            name,
            serializer=serializer,
            patience=self._patience,
            on_checkpoint=on_checkpoint,
        )

    async def readers(self) -> list[str]:
        """Return the names of the readers in the group, also of those that have vanished."""
        return await self._run(self._operations.find_readers)

    async def remove_reader(self, name: str, positions: Mapping[str, int] | None = None) -> None:
        """Take a reader out of the group that has vanished; the others get its segments.

        They continue at these offsets, by the names of segments, or else at its last checkpoint.
        Raises ``NotFoundError`` if the group has no reader of the name.
        """
        remove = self._operations.remove_reader
        await self._run(lambda state: remove(state, name, positions or {}))

    async def lags(self) -> list[SegmentLag]:
        """Return how far the group is behind each segment's end, in bytes and milliseconds."""
        return await self._run(self._operations.find_lags)

    async def unread_bytes(self) -> int:
        """Return the number of bytes that the group has not read, as its readers told last."""
        return sum(lag.unread for lag in await self.lags())

    async def checkpoint(self, name: str) -> dict[str, Cut]:
        """Take a checkpoint: return a stream cut of each stream, when all readers have reached it.

        Raises ``ConflictError`` if as many checkpoints are under way as the group allows, or one
        of this name.
        """
        return await self._run(lambda state: self._operations.take_checkpoint(state, name))

    async def reset(self, start: End | Mapping[str, Cut]) -> None:
        """Let the group continue at an end of its streams, or at a stream cut of each.

        Its readers get ``RemovedFromGroupError``, and have to be made again. Raises
        ``ConflictError`` for the tail of a stream that is sealed.
        """
        await call_blocking(partial(self._operations.reset, start))

    async def _run(self, operate: Callable[[GroupSteps], Steps[R]]) -> R:
        """Return the result of an operation on the group's state."""
        log = GroupLog(self._controller, self._scope, self._group, patience=self._patience)
        async with aclosing(log):
            return await log.run(operate(log.state))
