"""Moves logs of containers to other journals, while no store runs.

Owns: ``share_out_logs``: before several stores start, each container's log has to be in a journal
of the store that hosts it.

How it works: the journals that have logs now are locked, found to be the store's, and claimed, as
at any start. What a log holds that tier 2 may not have is copied, entry by entry, to a new journal
under another name. When that is durable it gets its name, and then the data directory's version
file says, by one replacement, where the logs are.

Invariants:
1. Until the version file is replaced the logs are where they were, and nothing of them is dropped;
   what an interrupted move has made is ignored, and removed by the next one.
2. From then on the new journals count. The old ones let the logs go when they are opened next.
3. A log goes on in the new journal under a later epoch than any that its owners had. One that is
   older than tier 2 is refused: under later epochs that could not be seen any more.
4. A new journal has the next number: journals' numbers, and what has them in tier 2, are never
   those of another journal.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
import trio

from segstore.chunks.system_journal import SystemJournal
from segstore.errors import (
    DataDirectoryError,
    DataLogError,
    IdentityError,
    IdentityProblem,
    StorageUnreachableError,
)
from segstore.process.config import SegmentStoreConfig
from segstore.process.data_directory import VERSION_FILE, DataDirectory
from segstore.process.identity import (
    JournalIdentity,
    new_journal_identity,
    owned,
    read_journal_identity,
    write_journal_identity,
)
from segstore.process.store_shares import Shares, plan_shares
from segstore.process.tier_two import doubts_of, open_storage
from segstore.process.tier_two_vendors import StorageOfOwner
from segstore.runtime.durable_files import sync_directory
from segstore.runtime.refused_files import reason_of
from segstore.tiers.api import DurableDataLog
from segstore.tiers.journal import Journal, JournalSettings, open_journal
from segstore.tiers.journal.disk import Disk, LocalDisk

COPIED_TOGETHER_BYTES = 8 * 1024 * 1024

logger = structlog.get_logger(__name__)


async def share_out_logs(
    config: SegmentStoreConfig,
    store_count: int,
    *,
    disk_of: Callable[[Path], Disk] = LocalDisk,
) -> Shares:
    """Move logs so that ``store_count`` stores can have the containers, and return which has which.

    Raises what a start of a store raises, and ``LogBehindError`` when a log is older than tier 2.
    """
    directory = DataDirectory.open(config.data_dir, container_count=config.container_count)
    async with AsyncExitStack() as stack:
        used = directory.journals_with(range(directory.container_count))
        directory = stack.enter_context(directory.lock_journals(used))
        shares = plan_shares(directory, store_count)
        if shares.journal_count == directory.journal_count:
            return shares
        tier = await stack.enter_async_context(open_storage(config, directory))
        ours = await stack.enter_async_context(owned(directory, tier, used))
        directory = ours.directory
        # This settles what earlier owners could not undo, before another owner uses the chunks.
        storages = await tier.open(used)
        for journal in used:
            _refuse_doubts(directory, journal, tier.where)
        after = directory.with_journals(shares.journals, shares.journal_count, stores=shares.stores)
        settings = JournalSettings(
            file_bytes=config.journal_file_bytes, journal_bytes_max=config.journal_bytes_max
        )
        sources: dict[int, Journal] = {}
        for journal in used:
            if after.containers_of(journal) != directory.containers_of(journal):
                path = directory.journal_path(journal)
                sources[journal] = await stack.enter_async_context(
                    open_journal(path, settings, disk=disk_of(path))
                )
        mover = _Mover(directory, after, sources, storages, settings, disk_of)
        for journal in range(directory.journal_count, after.journal_count):
            stack.enter_context(directory.lock_journal(journal))
            await mover.make_journal(journal, log_bytes_max=config.log_bytes_max)
        after.write(store_id=after.store_id, state=after.state, tier_2=after.tier_2)
    for journal in set(range(after.journal_count)).difference(after.journals):
        _remove_empty(after, journal)
    return shares


def _remove_empty(directory: DataDirectory, journal: int) -> None:
    """Free the space of a journal that no container has its log in. Blocks."""
    path = directory.journal_path(journal)
    for each in (path.with_name(f"{path.name}-contents"), path):
        shutil.rmtree(each, ignore_errors=True)


def _refuse_doubts(directory: DataDirectory, journal: int, where: str) -> None:
    """Raise ``StorageUnreachableError`` when bytes of chunks are still in doubt: the journal's
    notes about them do not move."""
    if noted := doubts_of(directory, journal).read():
        raise StorageUnreachableError(
            f"tier 2 in {where} has files with bytes that its disk may not have, such as"
            f" {min(noted)}, and they cannot be cut off now: start with as many stores as before"
        )


class _Mover:
    """Copies logs from ``sources``, the open journals by number, from one layout to the next."""

    def __init__(
        self,
        before: DataDirectory,
        after: DataDirectory,
        sources: Mapping[int, Journal],
        storages: Mapping[int, StorageOfOwner],
        settings: JournalSettings,
        disk_of: Callable[[Path], Disk],
    ) -> None:
        self._before = before
        self._after = after
        self._sources = sources
        self._storages = storages
        self._settings = settings
        self._disk_of = disk_of

    async def make_journal(self, journal: int, *, log_bytes_max: int) -> None:
        """Make a journal of the next layout, with the logs that it has there.

        Raises ``DataLogError`` when they are longer than ``log_bytes_max`` together.
        """
        path = self._after.journal_path(journal)
        new = path.with_name(f"{path.name}.moving")
        await trio.to_thread.run_sync(self._clear, journal, new)
        write_journal_identity(new, self._identity_of(journal))
        containers = self._after.containers_of(journal)
        logs = [(each, await self._open_source(each)) for each in containers]
        byte_count = sum(log.bytes_since_truncation for _, log in logs if log is not None)
        if byte_count > log_bytes_max:
            raise DataLogError(
                f"the logs of containers {', '.join(map(str, containers))} are too long for one"
                " journal: start with as many stores as before until tier 2 has more of them"
            )
        logger.info(
            "logs move to a new journal", journal=journal, containers=containers, bytes=byte_count
        )
        async with open_journal(new, self._settings, disk=self._disk_of(new)) as target:
            for container_id, log in logs:
                if log is not None:
                    copy = await target.open_log(container_id, epoch_min=log.epoch + 1)
                    async with aclosing(_batches(log)) as batches:
                        async for batch in batches:
                            await _append(copy, batch)
                    await copy.aclose()
        if target.failure is not None:
            raise target.failure
        await trio.to_thread.run_sync(self._name, new, path)

    async def _open_source(self, container_id: int) -> DurableDataLog | None:
        """Return the log as it is now; None for one that was never opened."""
        journal = self._before.journal_of(container_id)
        source, storage_of = self._sources[journal], self._storages[journal]
        chunks = SystemJournal(storage_of(_no_epoch), container_id=container_id, epoch=_no_epoch)
        await chunks.check_log(partial(source.last_epoch, container_id))
        if not await source.last_epoch(container_id):
            return None
        return await source.open_log(container_id)

    def _identity_of(self, journal: int) -> JournalIdentity:
        return new_journal_identity(self._after, journal)

    def _clear(self, journal: int, new: Path) -> None:
        """Remove what an interrupted move has left, and make the directory ``new``. Blocks."""
        path, before = self._after.journal_path(journal), self._before
        try:
            shutil.rmtree(new, ignore_errors=True)
            if path.exists():
                found, expected = read_journal_identity(path), self._identity_of(journal)
                # One that a store has used has a claim. That move may have been to more journals.
                if (
                    found is None
                    or replace(found, journal_count=expected.journal_count) != expected
                ):
                    raise IdentityError(
                        f"{path} is there already, and {before.path / VERSION_FILE} knows nothing"
                        f" of it: put back the {VERSION_FILE} that belongs to it, or move it away",
                        tier=f"journal {journal}",
                        problem=IdentityProblem.FOREIGN,
                    )
                shutil.rmtree(path)
            new.mkdir()
        except OSError as error:
            raise self._refused(new, error) from error

    def _name(self, new: Path, path: Path) -> None:
        """Rename a journal that is complete to its final name, durably. Blocks."""
        try:
            sync_directory(new)
            new.rename(path)
            sync_directory(path.parent)
        except OSError as error:
            raise self._refused(path, error) from error

    def _refused(self, path: Path, error: OSError) -> DataDirectoryError:
        return DataDirectoryError(
            f"journal directory {path} cannot be made: {reason_of(error, path)}"
        )


def _no_epoch() -> int:
    """Return 0: the epoch of readers of tier 2, which own nothing there."""
    return 0


async def _batches(log: DurableDataLog) -> AsyncGenerator[list[bytes], None]:
    """Yield the entries of a log, some MiB at a time."""
    batch: list[bytes] = []
    async with aclosing(log.read()) as entries:
        async for entry in entries:
            batch.append(entry.data)
            if sum(map(len, batch)) >= COPIED_TOGETHER_BYTES:
                yield batch
                batch = []
    if batch:
        yield batch


async def _append(log: DurableDataLog, entries: Sequence[bytes]) -> None:
    """Append entries to a log, and return when they are durable. Raises ``DataLogError``."""
    durable = trio.Event()
    errors: list[DataLogError] = []

    def on_durable(error: DataLogError | None) -> None:
        if error is not None:
            errors.append(error)

    def on_last(error: DataLogError | None) -> None:
        on_durable(error)
        durable.set()

    *others, last = entries
    for entry in others:
        log.append_nowait((entry,), on_durable)
    log.append_nowait((last,), on_last)
    await durable.wait()
    if errors:
        raise errors[0]
