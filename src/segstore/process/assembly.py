"""Puts a segment store process together on the local machine's tiers.

Owns: which journal, cache and tier 2 the containers of a process share, and their lifetimes.

Invariants:
1. Nothing is read from or written to a tier before ``process.identity`` has found that it is the
   store's, unless the logs are given.
2. Tier 1 outlives every container; a container that is being closed can still write.
3. A journal that failed takes its containers offline, and is opened again; other containers go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio

from _fast.log.replay import DIGEST_FORMAT, digest_frame
from segstore.api import SegmentContainer
from segstore.errors import DataLogError, IdentityError, LogBehindError, leaf_errors
from segstore.process.config import SegmentStoreConfig
from segstore.process.container_opening import ContainerOpening, scrub_policy
from segstore.process.data_directory import DataDirectory
from segstore.process.identity import check_journal, owned
from segstore.process.registry import OpenContainer
from segstore.process.tier_one import KeptJournal, raise_when_failed
from segstore.process.tier_two import name_start, open_storage
from segstore.runtime.boot import boot_id
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
    """Open the data directory and yield what opens a container in it.

    Measurements give tiers of their own, tests disks that fail; by default these are journals and
    what the configuration says. Raises ``DataDirectoryError`` when the data directory or a tier
    that is not its own cannot be used, ``StorageConfigurationError`` or
    ``StorageUnreachableError`` when tier 2 cannot, and ``DataLogError`` when no journal can be
    opened.
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
            journals = {
                number: _kept_journal(directory, number, config, disk_of) for number in numbers
            }
            storages = await tier.open(directory.journals_with(config.hosted_containers))
            nursery = await stack.enter_async_context(trio.open_nursery())
            await _start_journals(journals.values(), nursery, stack)
            is_open = True
            is_configured = chunk_storage is None
            start_id = name_start(config.tier2, boot_id_of_machine) if is_configured else None
            opening = ContainerOpening(
                config,
                lambda container_id: storages[directory.journal_of(container_id)],
                boot_id=start_id,
                scrub=None if chunk_storage is not None else scrub_policy(config),
                readable=tier.readable_of(directory.store_id),
            )
            yield _Opener(opening, directory, data_logs, journals, confirm).open
    except BaseExceptionGroup as group:
        if not is_open and len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


async def _start_journals(
    journals: Collection[KeptJournal], nursery: trio.Nursery, stack: AsyncExitStack
) -> None:
    """Open them. Those that cannot be opened are tried again as long as there are others."""
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
) -> KeptJournal:
    path = directory.journal_path(number)
    settings = JournalSettings(
        file_bytes=config.journal_file_bytes,
        journal_bytes_max=config.journal_bytes_max,
        interval_seconds_min=config.journal_interval_seconds_min,
    )

    @asynccontextmanager
    async def open_it() -> AsyncIterator[Journal]:
        try:
            check_journal(directory, number)
        except IdentityError as error:
            # Its disk has gone since the start, and may come back.
            raise DataLogError(str(error)) from error
        async with open_journal(
            path,
            settings,
            disk=disk_of(path),
            digest=digest_frame,
            contents=_open_contents_notes(path.with_name(f"{path.name}-contents")),
        ) as journal:
            # Logs that were moved from here to other journals keep no files.
            journal.drop_other_logs(directory.containers_of(number))
            yield journal

    return KeptJournal(
        number,
        open_it,
        restart_seconds_min=config.restart_seconds_min,
        restart_seconds_max=config.restart_seconds_max,
    )


def _open_contents_notes(path: Path) -> NotedContents | None:
    """Return the notes about a journal's files, unless there is no place for them."""
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
        """Open and serve a container inside the block; its journal's failure is the container's."""
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
                confirm=self._confirm and partial(self._confirm, kept.number),
            ) as container,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(raise_when_failed, journal)
            nursery.start_soon(kept.raise_when_older)
            yield container
            nursery.cancel_scope.cancel()
