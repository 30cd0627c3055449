"""Builds a segment store process that runs alone on its machine, with journals on local disks.

Owns: which journal, cache and tier 2 the containers of a process share, and how long each of these
lives.

Invariants:
1. When a tier is missing or belongs to another store, the start is refused before any container is
   opened, and no tier is changed. Held by ``test_a_tier_2_that_is_not_mounted_is_refused`` and
   ``test_another_store_s_tier_2_is_refused``. If a caller passes logs, they are not checked.
2. When the process stops, each journal stays open until its containers are closed, so they can
   write their last operations. Held by
   ``test_a_container_of_a_process_that_is_cancelled_still_writes_its_log``.
3. When a journal fails, its containers go offline and the journal is opened again; containers of
   other journals keep serving. Held by
   ``test_a_failing_journal_takes_its_containers_offline_and_no_others``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio

from _fast.log.replay import DIGEST_FORMAT, digest_frame
from segstore.api import SegmentContainer
from segstore.chunks.space_lack import SpaceLack
from segstore.errors import DataLogError, IdentityError, LogBehindError, leaf_errors
from segstore.ownership.claims import owned
from segstore.ownership.data_directory import DataDirectory
from segstore.ownership.journal_identity import check_journal
from segstore.process.config import SegmentStoreConfig
from segstore.process.container_opening import ContainerOpening, scrub_policy
from segstore.process.registry import OpenContainer
from segstore.process.tier_one import KeptJournal, raise_when_failed
from segstore.process.tier_two import name_start, open_storage
from segstore.runtime.boot import boot_id
from segstore.runtime.space import SpaceWatch
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.journal import Journal, JournalSettings, open_journal
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.disk import Disk, LocalDisk

ConfirmOwner = Callable[[int], Awaitable[None]]
"""Raises ``FencedOutError`` when tier 2 does not belong to this process any more for the containers
of a journal."""

logger = structlog.get_logger(__name__)


@asynccontextmanager
async def open_containers(
    config: SegmentStoreConfig,
    *,
    data_logs: DurableDataLogFactory | None = None,
    chunk_storage: ChunkStorage | None = None,
    disk_of: Callable[[Path], Disk] = LocalDisk,
    boot_id_of_machine: Callable[[], str] = boot_id,
) -> AsyncIterator[OpenContainer]:
    """Open the data directory, and yield the function that opens a container in it.

    Measurements pass their own tiers, and tests pass disks that fail. By default the logs are in
    the journals of the data directory, and the configuration names tier 2. Raises
    ``DataDirectoryError`` when the data directory cannot be used or a tier belongs to another
    store, ``StorageConfigurationError`` or ``StorageUnreachableError`` when tier 2 cannot be used,
    and ``DataLogError`` when no journal can be opened.
    """
    directory = DataDirectory.open(config.data_dir, container_count=config.container_count)
    is_open = False
    try:
        async with AsyncExitStack() as stack:
            tier = await stack.enter_async_context(
                open_storage(config, directory, given=chunk_storage)
            )
            numbers: list[int] = []
            confirm: ConfirmOwner | None = None
            if data_logs is None:
                numbers = directory.journals_with(config.hosted_containers)
                directory = stack.enter_context(directory.lock_journals(numbers))
                ours = await stack.enter_async_context(owned(directory, tier, numbers))
                directory, confirm = ours.directory, ours.confirm
            lack = SpaceLack()
            journals = {
                number: _kept_journal(directory, number, config, disk_of, lack)
                for number in numbers
            }
            storages = await tier.open(directory.journals_with(config.hosted_containers))
            nursery = await stack.enter_async_context(trio.open_nursery())
            await _start_journals(journals.values(), nursery, stack)
            _watch_disks(config, directory, numbers, nursery, stack)
            is_open = True
            is_configured = chunk_storage is None
            start_id = name_start(config.tier2, boot_id_of_machine) if is_configured else None
            opening = ContainerOpening(
                config,
                lambda container_id: storages[directory.journal_of(container_id)],
                boot_id=start_id,
                scrub=None if chunk_storage is not None else scrub_policy(config),
                readable=tier.readable_of(directory.store_id),
                lack=lack,
            )
            yield _Opener(opening, directory, data_logs, journals, confirm).open
    except BaseExceptionGroup as group:
        if not is_open and len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


def _watch_disks(
    config: SegmentStoreConfig,
    directory: DataDirectory,
    journals: Collection[int],
    nursery: trio.Nursery,
    stack: AsyncExitStack,
) -> None:
    """Log warnings while the disks of journals, and of a tier 2 in a directory, are filling up."""
    paths = [directory.journal_path(number) for number in journals]
    if config.tier2 is None:
        paths.append(config.storage_dir or directory.storage_path)
    watch = SpaceWatch(paths)
    stack.callback(watch.stop)
    nursery.start_soon(watch.run)


async def _start_journals(
    journals: Collection[KeptJournal], nursery: trio.Nursery, stack: AsyncExitStack
) -> None:
    """Open the journals. If some of them can be opened, the others are tried again later."""
    failures: dict[KeptJournal, DataLogError] = {}
    for kept in journals:
        stack.callback(kept.stop)
        try:
            await nursery.start(kept.run)
        except DataLogError as error:
            failures[kept] = error
        except OSError as error:
            failures[kept] = DataLogError(f"journal {kept.number} cannot be opened: {error}")
    for kept, failure in failures.items():
        if len(failures) == len(journals):
            raise failure
        logger.error("journal cannot be opened", journal=kept.number, error=str(failure))
        nursery.start_soon(kept.run_later)


def _kept_journal(
    directory: DataDirectory,
    number: int,
    config: SegmentStoreConfig,
    disk_of: Callable[[Path], Disk],
    lack: SpaceLack,
) -> KeptJournal:
    path = directory.journal_path(number)
    shares_disk = _is_on_same_disk(path, config, directory)
    settings = JournalSettings(
        file_bytes=config.journal_file_bytes,
        journal_bytes_max=config.journal_bytes_max,
        interval_seconds_min=config.journal_interval_seconds_min,
        free_bytes_min=config.journal_file_bytes // 4,
        shares_disk=shares_disk,
    )

    @asynccontextmanager
    async def open_it() -> AsyncIterator[Journal]:
        try:
            check_journal(directory, number)
        except IdentityError as error:
            # The journal's disk was removed after the start, and may come back.
            raise DataLogError(str(error)) from error
        async with open_journal(
            path,
            settings,
            disk=disk_of(path),
            digest=digest_frame,
            contents=_open_contents_notes(path.with_name(f"{path.name}-contents")),
            on_no_space=lack.begin if shares_disk else lambda: None,
        ) as journal:
            # The journal needs no files for logs that were moved to other journals.
            journal.drop_other_logs(directory.containers_of(number))
            yield journal

    return KeptJournal(
        number,
        open_it,
        restart_seconds_min=config.restart_seconds_min,
        restart_seconds_max=config.restart_seconds_max,
    )


def _is_on_same_disk(path: Path, config: SegmentStoreConfig, directory: DataDirectory) -> bool:
    """Return whether tier 2 is a directory on the disk of a journal."""
    storage = config.storage_dir or directory.storage_path
    return config.tier2 is None and _disk_of(path) == _disk_of(storage)


def _disk_of(path: Path) -> int:
    """Return the number of the file system that ``path`` is on, or will be."""
    while path != path.parent and not path.exists():
        path = path.parent
    return os.stat(path).st_dev


def _open_contents_notes(path: Path) -> NotedContents | None:
    """Return the notes about a journal's files; None if their directory cannot be made."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        logger.warning("there will be no notes about the journal", path=path, error=str(error))
        return None
    disk = LocalDisk(path, direct=False)
    return NotedContents(disk, digest_frame, digest_format=DIGEST_FORMAT)


class _Opener:
    """Opens containers on the journals of the process, or on logs that are given."""

    def __init__(
        self,
        opening: ContainerOpening,
        directory: DataDirectory,
        data_logs: DurableDataLogFactory | None,
        journals: Mapping[int, KeptJournal],
        confirm: ConfirmOwner | None,
    ) -> None:
        self._opening = opening
        self._directory = directory
        self._data_logs = data_logs
        self._journals = journals
        self._confirm = confirm

    @asynccontextmanager
    async def open(self, container_id: int) -> AsyncIterator[SegmentContainer]:
        """Open and serve a container inside the block. If its journal fails, the container fails
        with the same error."""
        if self._data_logs is not None:
            async with self._opening.open_on(
                self._data_logs, container_id, log_bytes=None, confirm=None
            ) as container:
                yield container
            return
        kept = self._journals[self._directory.journal_of(container_id)]
        try:
            async with self._open_on_journal(kept, container_id) as container:
                yield container
        except* LogBehindError as group:
            kept.record_older(LogBehindError(str(next(leaf_errors(group)))))
            raise

    @asynccontextmanager
    async def _open_on_journal(
        self, kept: KeptJournal, container_id: int
    ) -> AsyncIterator[SegmentContainer]:
        journal = await kept.wait_open()
        async with (
            self._opening.open_on(
                journal,
                container_id,
                log_bytes=journal.log_bytes,
                reserve_percent=journal.reserve_percent,
                confirm=self._confirm and partial(self._confirm, kept.number),
            ) as container,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(raise_when_failed, journal)
            nursery.start_soon(kept.raise_when_older)
            yield container
            nursery.cancel_scope.cancel()
