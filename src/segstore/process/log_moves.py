"""Moves logs of containers to other journals, while no store runs.

Owns: ``share_out_logs``: before several stores start, each container's log has to be in a journal
of the store that hosts it.

How it works: the journals that have the logs are locked, checked and claimed, as at any start. Then
all entries of a log that tier 2 may lack are copied to a new journal, whose directory has a
temporary name. When the copy is durable, the directory gets its final name. Then the version file
of the data directory is replaced once: it says where the logs are.

Invariants:
1. When a move is interrupted before the version file is replaced, the logs are still in the old
   journals, and whole. The next move removes the new journals that were not finished. Held by
   ``test_a_move_that_is_killed_at_any_step_loses_nothing``.
2. When the version file is replaced, the new journals have the logs. Each old journal drops its
   copies when it is opened next. Held by ``test_a_journal_lets_go_of_what_has_moved``.
3. When a log is moved, it continues under a later epoch than any that it had before. Held by
   ``test_containers_move_between_counts_of_stores``. A log that is older than tier 2 is refused,
   because a later epoch would hide that. Held by
   ``test_a_log_that_is_older_than_tier_2_does_not_move``.
4. A new journal gets the next number, so no two journals ever have the same number, nor the same
   claims in tier 2. Held by ``test_every_container_has_one_store_and_shares_are_even``.
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

from segstore.errors import (
    DataDirectoryError,
    DataLogError,
    IdentityError,
    IdentityProblem,
    StorageUnreachableError,
)
from segstore.ownership.claims import owned
from segstore.ownership.data_directory import VERSION_FILE, DataDirectory
from segstore.ownership.epoch_claims import EpochClaim
from segstore.ownership.journal_identity import (
    JournalIdentity,
    new_journal_identity,
    read_journal_identity,
    write_journal_identity,
)
from segstore.process.config import SegmentStoreConfig
from segstore.process.store_shares import Shares, plan_shares
from segstore.process.tier_two import doubts_of, open_storage
from segstore.runtime.durable_files import sync_directory
from segstore.runtime.refused_files import reason_of
from segstore.tiers.api import DurableDataLog
from segstore.tiers.journal import Journal, JournalSettings, open_journal
from segstore.tiers.journal.disk import Disk, LocalDisk
from segstore.tiers.vendor import StorageOfOwner

COPIED_TOGETHER_BYTES = 8 * 1024 * 1024

logger = structlog.get_logger(__name__)


async def share_out_logs(
    config: SegmentStoreConfig,
    store_count: int,
    *,
    disk_of: Callable[[Path], Disk] = LocalDisk,
) -> Shares:
    """Move logs so that ``store_count`` stores can host the containers; return the containers of
    each store.

    Raises the errors of a store's start, and ``LogBehindError`` when a log is older than tier 2.
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
        # Opening tier 2 cuts off what failed writes of earlier owners left in chunks, before
        # another owner uses these chunks.
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
    """Remove the files of a journal that has no container's log. Blocks."""
    path = directory.journal_path(journal)
    for each in (path.with_name(f"{path.name}-contents"), path):
        shutil.rmtree(each, ignore_errors=True)


def _refuse_doubts(directory: DataDirectory, journal: int, where: str) -> None:
    """Raise ``StorageUnreachableError`` when bytes of chunks are still in doubt: the notes about
    them belong to the old journal, and are not moved with the log."""
    if noted := doubts_of(directory, journal).read():
        raise StorageUnreachableError(
            f"tier 2 in {where} has files with bytes that its disk may not have, such as"
            f" {min(noted)}, and they cannot be cut off now: start with as many stores as before"
        )


class _Mover:
    """Copies logs from the open journals, which ``sources`` has by number, to the journals of the
    next layout."""

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
        """Make a journal of the next layout, with the logs that belong into it.

        Raises ``DataLogError`` when the logs together are longer than ``log_bytes_max``.
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
        """Open a container's log in its old journal; return None if it was never opened."""
        journal = self._before.journal_of(container_id)
        source, storage_of = self._sources[journal], self._storages[journal]
        claim = EpochClaim(storage_of(_no_epoch), container_id=container_id, epoch=_no_epoch)
        await claim.check_log(partial(source.last_epoch, container_id))
        if not await source.last_epoch(container_id):
            return None
        return await source.open_log(container_id)

    def _identity_of(self, journal: int) -> JournalIdentity:
        return new_journal_identity(self._after, journal)

    def _clear(self, journal: int, new: Path) -> None:
        """Remove the journal that an interrupted move left, and make the directory ``new``.
        Blocks."""
        path, before = self._after.journal_path(journal), self._before
        try:
            shutil.rmtree(new, ignore_errors=True)
            if path.exists():
                found, expected = read_journal_identity(path), self._identity_of(journal)
                # A journal that an interrupted move left was never claimed. The interrupted move
                # may have been to another number of journals.
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
    """Return 0, the epoch of readers of tier 2, which do not own the chunks."""
    return 0


async def _batches(log: DurableDataLog) -> AsyncGenerator[list[bytes], None]:
    """Yield the entries of a log in lists of some MiB each."""
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
    """Append entries to a log; return when they are durable. Raises ``DataLogError``."""
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
