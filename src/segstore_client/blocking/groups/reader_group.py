"""A reader group, for a program that blocks.

Owns: ``BlockingReaderGroup``. What is done to a group is that of ``GroupOperations``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import TypeVar

from pravega_wire.names import scoped_name
from pravega_wire.reader_groups.lags import SegmentLag
from pravega_wire.reader_groups.settings import Cut, GroupSettings
from pravega_wire.sessions.time_limits import call_within
from segstore_client.blocking.groups.group_log import BlockingGroupLog
from segstore_client.blocking.groups.group_reader import BlockingGroupReader, OnCheckpoint
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import OutOfTimeError, TimedOutError
from segstore_client.positions import End
from segstore_client.serializers import BYTES, Serializer, T
from segstore_client.steps.group_operations import GroupOperations
from segstore_client.steps.group_requests import Steps
from segstore_client.steps.group_steps import GroupSteps

R = TypeVar("R")


class BlockingReaderGroup:
    """A reader group; nothing is asked before it is needed. Use it in one thread."""

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

    def create(self, settings: GroupSettings, *, exist_ok: bool) -> None:
        """Create the group. Raises ``AlreadyExistsError`` unless ``exist_ok``."""
        create = self._operations.create
        self._run(lambda state: create(state, settings, exist_ok=exist_ok))

    def reader(
        self,
        name: str,
        *,
        serializer: Serializer[T] = BYTES,
        on_checkpoint: OnCheckpoint | None = None,
    ) -> BlockingGroupReader[T]:
        """Return a reader of the group, to be used in a ``with`` block. Its name is its own in the
        group. ``serializer`` makes the ``value`` of an event of its ``data``.

        ``on_checkpoint`` is called with the name of each checkpoint, and the next offset of each
        segment that the reader has, by name: the program may store them before others continue.
        """
        return BlockingGroupReader(
            self._controller,
            self._scope,
            self._group,
            name,
            serializer=serializer,
            patience=self._patience,
            on_checkpoint=on_checkpoint,
        )

    def readers(self) -> list[str]:
        """Return the names of the readers in the group, also of those that have vanished."""
        return self._run(self._operations.find_readers)

    def remove_reader(self, name: str, positions: Mapping[str, int] | None = None) -> None:
        """Take a reader out of the group that has vanished; the others get its segments.

        They continue at these offsets, by the names of segments, or else at its last checkpoint.
        Raises ``NotFoundError`` if the group has no reader of the name.
        """
        remove = self._operations.remove_reader
        self._run(lambda state: remove(state, name, positions or {}))

    def lags(self) -> list[SegmentLag]:
        """Return how far the group is behind each segment's end, in bytes and milliseconds."""
        return self._run(self._operations.find_lags)

    def unread_bytes(self) -> int:
        """Return the number of bytes that the group has not read, as its readers told last."""
        return sum(lag.unread for lag in self.lags())

    def checkpoint(self, name: str, *, timeout: float = math.inf) -> dict[str, Cut]:
        """Take a checkpoint: return a stream cut of each stream, when all readers have reached it.

        A reader reaches it when it is asked for events, so it cannot be one of this thread. Raises
        ``ConflictError`` if as many checkpoints are under way as the group allows, or one of this
        name, and ``TimedOutError`` after ``timeout`` seconds: then it may be reached later.
        """
        take = partial(self._operations.take_checkpoint, name=name, timeout=timeout)
        try:
            return call_within(timeout, lambda: self._run(take))
        except OutOfTimeError as error:
            raise TimedOutError(
                f"checkpoint {name} of {self.name} was not reached in {timeout:g} s: {error}"
            ) from error

    def reset(self, start: End | Mapping[str, Cut]) -> None:
        """Let the group continue at an end of its streams, or at a stream cut of each.

        Its readers get ``RemovedFromGroupError``, and have to be made again. Raises
        ``ConflictError`` for the tail of a stream that is sealed.
        """
        self._operations.reset(start)

    def _run(self, operate: Callable[[GroupSteps], Steps[R]]) -> R:
        """Return the result of an operation on the group's state."""
        log = BlockingGroupLog(self._controller, self._scope, self._group, patience=self._patience)
        with closing(log):
            return log.run(operate(log.state))
