"""The containers that this process hosts.

Owns: the lifetime of each container: its recovery, its failure, and its recovery again. It also
finds the container of a segment's name. A store on its own hosts the same containers until it ends;
in a cluster, ``host`` and ``release`` change them.

Invariants:
1. When a container fails, it goes offline and its error is logged; the other containers keep
   serving. Held by ``test_a_failed_container_is_logged_and_recovered_alone``.
2. When a container failed, it is opened again, with growing pauses while that fails, because a
   tier 2 or a journal may come back. Held by
   ``test_recovery_that_fails_is_tried_again_more_and_more_slowly``. If its log is damaged or older
   than tier 2, it stays offline. Held by
   ``test_a_container_that_cannot_be_opened_for_ever_is_tried_once``.
3. When every container needs an operator (``PermanentError``, a damaged journal), ``run`` ends with
   ``NoContainerLeftError``. Held by
   ``test_a_store_of_which_no_container_can_be_opened_ends_with_the_reason``. In a cluster it
   continues, because other containers may be assigned. Held by
   ``test_without_hope_a_member_of_a_cluster_goes_on``.
4. Before a container has recovered, and after it has ended, requests for it are refused with
   ``ContainerOfflineError``. Held by
   ``test_a_container_is_offline_before_it_is_open_and_after_the_end``.
5. When the data directory cannot be used, ``run`` ends with the error, because waiting does not
   help. Held by ``test_an_unusable_data_directory_ends_everything``.
6. When a container is released, requests do not find it any more, and it is hosted again only after
   it has stopped. Held by ``test_containers_are_hosted_and_released``.
7. When a request is for a container that is being opened, it waits for up to
   ``OPENING_SECONDS_MAX``: a client that is refused a few times waits for 10 seconds. Held by
   ``test_who_asks_for_a_container_that_is_being_opened_waits_for_it``.

Tier 2 goes away for 10 seconds. ``restart_seconds_min`` is 0.5; an opening takes no time here.

    0 s                     the container fails, and is tried again after 0.5 s
    0.5, 1.5, 3.5, 7.5 s    its recovery fails; the pauses are 1, 2, 4 and 8 s
    15.5 s                  it is online; after its next failure the pause is 0.5 s again
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
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
    StorageError,
    WrongHostError,
    leaf_errors,
)
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments

OpenContainer = Callable[[int], AbstractAsyncContextManager[SegmentContainer]]
"""Opens the container with a number, which recovers it, and serves it inside the block.

When the container fails, the block is cancelled, and ends with the error.
"""

OPENING_SECONDS_MAX: Final = 5.0

logger = structlog.get_logger(__name__)


class ContainerState(Enum):
    """The states of a container that is hosted."""

    STARTING = "starting"
    """It is being opened, for the first time or again."""
    ONLINE = "online"
    FAILED = "failed"
    """It has failed, and waits for the next attempt to open it."""
    OFFLINE = "offline"
    """This process does not open it again: an operator has to decide what to do with its data."""


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The status of a container at one moment. Times are those of the event loop's clock."""

    container_id: int
    state: ContainerState
    since: float
    failure: str
    """A sentence about the last failure; empty if there was none."""
    failure_count: int
    """Number of failures since the container was online last."""
    restart_seconds: float
    """The last pause, in seconds, before the container was or will be opened again."""
    opening_seconds: float
    """The time, in seconds, that the last successful opening took; 0 before."""


class HostedContainer:
    """One container number of this process, and the container while it is online."""

    def __init__(self, container_id: int) -> None:
        self.container_id = container_id
        self._state = ContainerState.STARTING
        self._since = 0.0
        self._failure = ""
        self._failure_count = 0
        self._restart_seconds = 0.0
        self._opening_seconds = 0.0
        self._is_hopeless = False
        self.scope = trio.CancelScope()
        """Scope of the task that keeps the container online."""
        self.tried = trio.Event()
        """Event that is set when the container has been opened, or has failed, once."""
        self._online: tuple[SegmentContainer, TableSegments] | None = None
        self._came_online = trio.Event()
        self._opened = trio.Event()
        """Event that is set when the attempt to open the container has succeeded or failed."""

    @property
    def is_online(self) -> bool:
        """Return whether the container is online."""
        return self._online is not None

    @property
    def is_hopeless(self) -> bool:
        """Return whether the container can serve again only after an operator has repaired its
        data."""
        return self._is_hopeless

    @property
    def container(self) -> SegmentContainer:
        """Return the container. Raises ``ContainerOfflineError`` while it is not online."""
        return self._require()[0]

    @property
    def tables(self) -> TableSegments:
        """Return the container's table segments. Raises ``ContainerOfflineError`` while it is not
        online."""
        return self._require()[1]

    @property
    def status(self) -> ContainerStatus:
        """Return the present status of the container."""
        return ContainerStatus(
            self.container_id,
            self._state,
            self._since,
            self._failure,
            self._failure_count,
            self._restart_seconds,
            self._opening_seconds,
        )

    def record_opening(self) -> None:
        """Record that the container is being opened."""
        if self._opened.is_set():
            self._opened = trio.Event()
        self._enter(ContainerState.STARTING)

    def record_failure(
        self, error: Exception, restart_seconds: float, *, anew: bool, is_hopeless: bool
    ) -> None:
        """Record a failure. ``anew`` says that it is the first failure since the container was
        online, and ``is_hopeless`` that only an operator can help."""
        self._record_failure(error, anew=anew)
        self._is_hopeless |= is_hopeless
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
        """Record that the container is online, with its table segments."""
        self._is_hopeless = False
        self._online = (container, tables)
        self._opening_seconds = trio.current_time() - self._since
        self._enter(ContainerState.ONLINE)
        self._came_online.set()
        self._opened.set()

    def mark_unavailable(self) -> None:
        """Record that the container is not online any more. May be called again."""
        if self._online is not None:
            self._online = None
            self._came_online = trio.Event()

    async def wait_online(self) -> None:
        """Return when the container is online."""
        await self._came_online.wait()

    async def wait_opened(self) -> None:
        """Return when the container is not being opened any more, or after
        ``OPENING_SECONDS_MAX``."""
        if not self._opened.is_set():
            with trio.move_on_after(OPENING_SECONDS_MAX):
                await self._opened.wait()

    def release(self) -> None:
        """Stop the container, and wake all tasks that wait for it."""
        self._opened.set()
        self.scope.cancel()

    def _require(self) -> tuple[SegmentContainer, TableSegments]:
        if self._online is None:
            raise ContainerOfflineError(f"container {self.container_id} is offline")
        return self._online


def _permanent(error: BaseException) -> PermanentError | None:
    """Return the part of the error that another attempt would meet again, or None."""
    return next((leaf for leaf in leaf_errors(error) if isinstance(leaf, PermanentError)), None)


class ContainerRegistry:
    """Hosts containers. With ``container_ids`` it hosts these until it ends; without it, ``host``
    and ``release`` say which. ``container_count`` is that of the whole cluster. Times are in
    seconds."""

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
        """Return the number of containers that are online."""
        return sum(hosted.is_online for hosted in self._hosted.values())

    def statuses(self) -> list[ContainerStatus]:
        """Return the status of each container."""
        return [hosted.status for hosted in self._hosted.values()]

    def online(self) -> Iterator[tuple[int, SegmentContainer]]:
        """Yield number and container of those that are online."""
        for number, hosted in self._hosted.items():
            if hosted.is_online:
                yield number, hosted.container

    def delay_reasons(self) -> list[str]:
        """Return a sentence for each reason for which requests wait or are refused now."""
        reasons: dict[str, None] = {}
        offline: dict[str, list[int]] = {}
        for hosted in self._hosted.values():
            if hosted.is_online:
                reasons.update(dict.fromkeys(hosted.container.delay_reasons()))
            elif failure := hosted.status.failure:
                offline.setdefault(failure, []).append(hosted.container_id)
        for failure, numbers in offline.items():
            names = ", ".join(map(str, numbers))
            offline_are = "containers are" if len(numbers) > 1 else "container is"
            reasons[f"{offline_are} offline ({names}): {failure}"] = None
        return list(reasons)

    def hosted(self, container_id: int) -> HostedContainer:
        """Return the container with a number. Raises ``ContainerOfflineError`` if this process does
        not host it.
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
        """Keep a container online from now on, while ``run`` runs. When ``run`` has ended, do
        nothing."""
        if self._has_ended:
            return
        assert self._nursery is not None, "it does not run"
        assert container_id not in self.hosted_numbers(), "let it stop first"
        hosted = self._hosted[container_id] = HostedContainer(container_id)
        self._nursery.start_soon(self._keep_hosted, hosted)

    def release(self, container_id: int) -> None:
        """Stop a container. Requests do not find it from now on."""
        self._leaving.add(container_id)
        self._hosted.pop(container_id).release()

    def find(self, segment: str) -> HostedContainer:
        """Return the container of a segment, online or not. Raises ``WrongHostError``."""
        hosted = self._hosted.get(container_of(segment, self._container_count))
        if hosted is None:
            raise WrongHostError(segment)
        return hosted

    async def wait_opened(self, segment: str) -> None:
        """Wait for a segment's container while it is being opened, up to ``OPENING_SECONDS_MAX``.
        Raises ``WrongHostError``."""
        await self.find(segment).wait_opened()

    def container_for(self, segment: str) -> SegmentContainer:
        """Return the container of a segment. Raises ``WrongHostError`` or
        ``ContainerOfflineError``.
        """
        return self.find(segment).container

    def tables_for(self, segment: str) -> TableSegments:
        """Return the table segments of a segment's container. Raises the errors of
        ``container_for``."""
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
            # The container failed while it was being stopped, for example because another owner
            # has opened its log.
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
            # Any error ends this container alone: the others must keep serving.
            except Exception as error:
                # A container that was online is opened again, because the error of that attempt
                # says what the problem is now.
                cause = None if was_online else _permanent(error)
                if cause is not None and not isinstance(cause, StorageError):
                    self._keep_offline(hosted, cause)
                    return
                if was_online:
                    pause = self._restart_seconds_min
                hosted.record_failure(error, pause, anew=was_online, is_hopeless=cause is not None)
                # An expected error explains itself in a sentence. Any other is a defect, and needs
                # a traceback.
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
        """Record that the container is not opened again, and log why."""
        hosted.record_offline(error)
        logger.error(
            "container stays offline", container=hosted.container_id, error=hosted.status.failure
        )
        hosted.tried.set()
        self._end_without_hope(error)

    def _end_without_hope(self, error: Exception) -> None:
        """Raise ``NoContainerLeftError`` when every container needs an operator."""
        if self._is_fixed and all(hosted.is_hopeless for hosted in self._hosted.values()):
            reason = ", ".join(str(leaf) for leaf in leaf_errors(error))
            raise NoContainerLeftError(f"no container of this store can be opened: {reason}")
