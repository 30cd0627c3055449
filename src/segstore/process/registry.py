"""The containers that this process hosts.

Owns: the lifetime of each container, from recovery to failure and recovery again, and the way from
a segment's name to the container that holds it. Which containers are hosted is given at the
beginning, or changes by ``host`` and ``release`` as a cluster assigns them.

Invariants:
1. A failed container goes offline alone: its error is logged, the others and the process go on.
   One that cannot be opened for a ``PermanentError`` stays offline, and one whose journal is
   damaged is tried again. When no other kind is left, ``run`` ends with ``NoContainerLeftError``,
   unless others may be assigned later.
2. A container is online only between a recovery that succeeded and its end. Whoever still holds the
   old object gets ``ContainerOfflineError`` from it.
3. An unusable data directory ends ``run`` with the error: nothing would get better by waiting.
4. A released container is not found by any request from then on, and is hosted again only when it
   has stopped.
5. Who asks for a container that is being opened waits for that, up to ``OPENING_SECONDS_MAX``: a
   client that is refused a few times in a second waits for ten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

import structlog
import trio

from pravega_wire.names import container_of
from segstore.api import SegmentContainer
from segstore.errors import (
    ContainerOfflineError,
    DataDirectoryError,
    JournalDamagedError,
    NoContainerLeftError,
    PermanentError,
    SegmentStoreError,
    WrongHostError,
    leaf_errors,
)
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments

OpenContainer = Callable[[int], AbstractAsyncContextManager[SegmentContainer]]
"""Opens (recovers) the container of that number and serves it inside the block.

The block is cancelled, and left with the error, when the container fails.
"""

OPENING_SECONDS_MAX: Final = 5.0

logger = structlog.get_logger(__name__)


class ContainerState(Enum):
    """The state of a container in its life."""

    STARTING = "starting"
    """Being opened for the first time, or again."""
    ONLINE = "online"
    FAILED = "failed"
    """Has failed, and waits for the next attempt."""
    OFFLINE = "offline"
    """Is not opened again by this process: an operator has to decide what becomes of its data."""


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container at one moment; times are of the event loop's clock."""

    container_id: int
    state: ContainerState
    since: float
    failure: str
    """Sentence about the last failure; empty when there was none."""
    failure_count: int
    """Number of failures since the container was online for long."""
    restart_seconds: float
    """Time, in seconds, that the container waits, or waited last, before it is opened again."""


class HostedContainer:
    """One container number of this process, and the container while it is online."""

    def __init__(self, container_id: int) -> None:
        self.container_id = container_id
        self._state = ContainerState.STARTING
        self._since = 0.0
        self._failure = ""
        self._failure_count = 0
        self._restart_seconds = 0.0
        self._is_hopeless = False
        self.scope = trio.CancelScope()
        """Scope of the task that keeps the container online."""
        self.tried = trio.Event()
        """Event that is set when the container has been opened, or has failed, once."""
        self._online: tuple[SegmentContainer, TableSegments] | None = None
        self._came_online = trio.Event()
        self._opened = trio.Event()
        """Event that is set when the attempt to open the container has ended, well or not."""

    @property
    def is_online(self) -> bool:
        """Return whether the container serves."""
        return self._online is not None

    @property
    def is_hopeless(self) -> bool:
        """Return whether it serves again only after an operator has repaired its data."""
        return self._is_hopeless

    @property
    def container(self) -> SegmentContainer:
        """Return the container. Raises ``ContainerOfflineError``."""
        return self._require()[0]

    @property
    def tables(self) -> TableSegments:
        """Return the container's table segments. Raises ``ContainerOfflineError``."""
        return self._require()[1]

    @property
    def status(self) -> ContainerStatus:
        """Return what can be told of the container now."""
        return ContainerStatus(
            self.container_id,
            self._state,
            self._since,
            self._failure,
            self._failure_count,
            self._restart_seconds,
        )

    def record_opening(self) -> None:
        """Record that the container is being opened."""
        if self._opened.is_set():
            self._opened = trio.Event()
        self._enter(ContainerState.STARTING)

    def record_failure(self, error: Exception, restart_seconds: float, *, anew: bool) -> None:
        """Record a failure; ``anew`` says that it is the first one since the container worked."""
        self._record_failure(error, anew=anew)
        self._restart_seconds = restart_seconds
        self._enter(ContainerState.FAILED)
        self._opened.set()

    def record_offline(self, error: Exception) -> None:
        """Record that the container failed and stays offline."""
        self._record_failure(error, anew=False)
        self._is_hopeless = True
        self._restart_seconds = inf
        self._enter(ContainerState.OFFLINE)
        self._opened.set()

    def _record_failure(self, error: Exception, *, anew: bool) -> None:
        self._failure = ", ".join(f"{type(e).__name__}: {e}" for e in leaf_errors(error))
        self._failure_count = 1 if anew else self._failure_count + 1
        self._is_hopeless = any(isinstance(e, JournalDamagedError) for e in leaf_errors(error))

    def _enter(self, state: ContainerState) -> None:
        self._state = state
        self._since = trio.current_time()

    def mark_online(self, container: SegmentContainer, tables: TableSegments) -> None:
        """Mark the container as online, with these parts."""
        self._is_hopeless = False
        self._online = (container, tables)
        self._enter(ContainerState.ONLINE)
        self._came_online.set()
        self._opened.set()

    def mark_unavailable(self) -> None:
        """Refuse from now on. Idempotent."""
        if self._online is not None:
            self._online = None
            self._came_online = trio.Event()

    async def wait_online(self) -> None:
        """Return when the container serves."""
        await self._came_online.wait()

    async def wait_opened(self) -> None:
        """Return when the container is not being opened, or after ``OPENING_SECONDS_MAX``."""
        if not self._opened.is_set():
            with trio.move_on_after(OPENING_SECONDS_MAX):
                await self._opened.wait()

    def release(self) -> None:
        """Stop it, and wake all that wait for it."""
        self._opened.set()
        self.scope.cancel()

    def _require(self) -> tuple[SegmentContainer, TableSegments]:
        if self._online is None:
            raise ContainerOfflineError(f"container {self.container_id} is offline")
        return self._online


def _permanent(error: BaseException) -> PermanentError | None:
    """Return the part of the error that another attempt cannot help, or None."""
    return next((leaf for leaf in leaf_errors(error) if isinstance(leaf, PermanentError)), None)


class ContainerRegistry:
    """Hosts ``container_ids`` out of ``container_count`` containers; without them those that it is
    told to. Times are in seconds."""

    def __init__(
        self,
        open_container: OpenContainer,
        *,
        container_count: int,
        container_ids: Collection[int] | None,
        tables: TableSettings,
        restart_seconds_min: float,
        restart_seconds_max: float,
    ) -> None:
        self._open_container = open_container
        self._container_count = container_count
        self._table_settings = tables
        self._restart_seconds_min = restart_seconds_min
        self._restart_seconds_max = restart_seconds_max
        self._is_fixed = container_ids is not None
        self._hosted = {number: HostedContainer(number) for number in container_ids or ()}
        self._leaving: set[int] = set()
        self.on_stopped: Callable[[], None] = lambda: None
        """Function that is called when a container that was released has stopped."""
        self._nursery: trio.Nursery | None = None
        self._has_ended = False

    @property
    def container_count(self) -> int:
        """Return the number of containers of the whole cluster."""
        return self._container_count

    @property
    def online_count(self) -> int:
        """Return how many containers serve."""
        return sum(hosted.is_online for hosted in self._hosted.values())

    def statuses(self) -> list[ContainerStatus]:
        """Return the status of each container."""
        return [hosted.status for hosted in self._hosted.values()]

    def hosted(self, container_id: int) -> HostedContainer:
        """Return a container of this process by its number. Raises ``ContainerOfflineError`` for
        another.
        """
        if container_id not in self._hosted:
            raise ContainerOfflineError(f"container {container_id} is not hosted here")
        return self._hosted[container_id]

    def numbers(self) -> frozenset[int]:
        """Return the numbers of the containers that are hosted."""
        return frozenset(self._hosted)

    def hosted_numbers(self) -> frozenset[int]:
        """Return the numbers of the containers that are hosted, and of those that are being
        stopped.
        """
        return frozenset(self._hosted) | self._leaving

    def host(self, container_id: int) -> None:
        """Keep a container online from now on, while ``run`` runs; do nothing when it has ended."""
        if self._has_ended:
            return
        assert self._nursery is not None, "it does not run"
        assert container_id not in self.hosted_numbers(), "let it stop first"
        hosted = self._hosted[container_id] = HostedContainer(container_id)
        self._nursery.start_soon(self._keep_hosted, hosted)

    def release(self, container_id: int) -> None:
        """Find a container here no more, and stop it."""
        self._leaving.add(container_id)
        self._hosted.pop(container_id).release()

    def find(self, segment: str) -> HostedContainer:
        """Return the container of a segment, online or not. Raises ``WrongHostError``."""
        hosted = self._hosted.get(container_of(segment, self._container_count))
        if hosted is None:
            raise WrongHostError(segment)
        return hosted

    async def wait_opened(self, segment: str) -> None:
        """Wait a while for a segment's container that is being opened; ``WrongHostError``."""
        await self.find(segment).wait_opened()

    def container_for(self, segment: str) -> SegmentContainer:
        """Return the container of a segment. Raises ``WrongHostError`` or
        ``ContainerOfflineError``.
        """
        return self.find(segment).container

    def tables_for(self, segment: str) -> TableSegments:
        """Return the tables of a segment's container. Raises like ``container_for``."""
        return self.find(segment).tables

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep all containers online until cancelled.

        Raises ``NoContainerLeftError`` when every container stays offline.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for hosted in self._hosted.values():
                    nursery.start_soon(self._keep_hosted, hosted)
                task_status.started()
                if not self._is_fixed:
                    await trio.sleep_forever()
        finally:
            self._has_ended = True

    async def wait_until_tried(self) -> None:
        """Return when every container has been opened, or has failed, once."""
        for hosted in list(self._hosted.values()):
            await hosted.tried.wait()

    async def _keep_hosted(self, hosted: HostedContainer) -> None:
        """Keep a container online until it is released."""
        try:
            with hosted.scope:
                await self._keep_online(hosted)
                if not self._is_fixed:
                    await trio.sleep_forever()
        except* (DataDirectoryError, NoContainerLeftError):
            raise
        except* Exception as group:
            # It came together with the cancellation: another owner has taken the log, for example.
            errors = ", ".join(str(leaf) for leaf in leaf_errors(group))
            logger.info("container failed at its end", container=hosted.container_id, error=errors)
        finally:
            hosted.tried.set()
            if hosted.container_id in self._leaving:
                self._leaving.discard(hosted.container_id)
                self.on_stopped()

    async def _keep_online(self, hosted: HostedContainer) -> None:
        pause = self._restart_seconds_min
        while True:
            was_online = False
            hosted.record_opening()
            try:
                async with self._open_container(hosted.container_id) as container:
                    tables = TableSegments(container, self._table_settings)
                    hosted.mark_online(container, tables)
                    was_online = True
                    hosted.tried.set()
                    try:
                        await tables.run()
                    finally:
                        hosted.mark_unavailable()
            except DataDirectoryError:
                raise
            # Whatever it was, it was this container's: it must not take the others along.
            except Exception as error:
                # One that served is opened once more: that tells what is the matter now.
                if not was_online and (cause := _permanent(error)) is not None:
                    self._keep_offline(hosted, cause)
                    return
                if was_online:
                    pause = self._restart_seconds_min
                hosted.record_failure(error, pause, anew=was_online)
                # Errors from outside have a sentence; only our own defects need a traceback.
                ours = not all(isinstance(leaf, SegmentStoreError) for leaf in leaf_errors(error))
                logger.error(
                    "container failed",
                    container=hosted.container_id,
                    error=hosted.status.failure,
                    restart_seconds=pause,
                    exc_info=ours,
                )
                self._end_without_hope(error)
            hosted.tried.set()
            await trio.sleep(pause)
            pause = min(2 * pause, self._restart_seconds_max)

    def _keep_offline(self, hosted: HostedContainer, error: PermanentError) -> None:
        """Open the container no more."""
        hosted.record_offline(error)
        logger.error(
            "container stays offline", container=hosted.container_id, error=hosted.status.failure
        )
        hosted.tried.set()
        self._end_without_hope(error)

    def _end_without_hope(self, error: Exception) -> None:
        """Raise ``NoContainerLeftError`` when no container can be served as things are."""
        if self._is_fixed and all(hosted.is_hopeless for hosted in self._hosted.values()):
            reason = ", ".join(str(leaf) for leaf in leaf_errors(error))
            raise NoContainerLeftError(f"no container of this store can be opened: {reason}")
