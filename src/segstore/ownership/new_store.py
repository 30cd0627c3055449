"""Makes the identities of a new store.

Owns: the order in which they are made, and the lock of the process that makes them. Refusals follow
the rules in the package's docstring.

Invariants:
1. When a store starts for the first time, it makes the identities of its journals and of tier 2,
   and then records in the data directory that it is complete. Only then does it take data. If that
   is interrupted, the next start finishes it. Held by
   ``test_whatever_step_a_start_is_killed_at_the_next_one_finishes_it``.
2. When an identity of a complete store is missing, no new one is made. Held by
   ``test_a_tier_2_that_is_not_mounted_is_refused`` and
   ``test_a_journal_that_is_gone_is_refused``.
3. When a new store finds another identity in tier 2, before or after it writes its own, it is
   refused and does not become complete. Held by ``test_another_store_s_tier_2_is_refused`` and
   ``test_two_new_stores_never_share_a_tier_2``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from segstore.errors import (
    DataDirectoryError,
    DataDirectoryInUseError,
    IdentityError,
    IdentityProblem,
    StorageError,
)
from segstore.ownership.data_directory import VERSION_FILE, DataDirectory, StoreState
from segstore.ownership.journal_identity import (
    check_journal,
    new_journal_identity,
    read_journal_identity,
    write_journal_identity,
)
from segstore.ownership.tier_two_identity import (
    TIER_2,
    TierTwoIdentity,
    TierTwoPlace,
    identity_name,
    refuse_other_store,
)
from segstore.runtime.durable_files import make_directory
from segstore.runtime.refused_files import reason_of
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal.files import parse_name

LOCK: Final = "identity"
"""Name of the lock of the process that makes identities."""
TURN_SECONDS: Final = 30.0
"""Maximum time, in seconds, that a process waits while another process of the same store makes
identities."""
TURN_PAUSE_SECONDS: Final = 0.02


async def complete_store(directory: DataDirectory, tier: TierTwoPlace) -> DataDirectory:
    """Make the identities that a new store lacks; do nothing for a complete store.

    If an earlier start was interrupted, this makes what is still missing. Raises ``IdentityError``
    when a tier belongs to another store, or another error that ends the start.
    """
    if directory.state is StoreState.COMPLETE:
        return directory
    async with in_turn(directory):
        directory = DataDirectory.read(directory.path)
        if directory.state is StoreState.COMPLETE:
            return directory
        await _prepare_new(directory, tier)
        # Tier 2 comes first because it may be refused. As long as there are no journals, the user
        # may still start with another number of containers.
        await _make_identity(directory, tier)
        _make_journals(directory)
        return directory.write(
            store_id=directory.store_id, state=StoreState.COMPLETE, tier_2=tier.where
        )


@asynccontextmanager
async def in_turn(directory: DataDirectory) -> AsyncIterator[None]:
    """Hold the lock of the process that makes identities. Waits while another process of the same
    store has it."""
    deadline = trio.current_time() + TURN_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(directory.lock(LOCK, wait_seconds=0))
                break
            except DataDirectoryInUseError:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(TURN_PAUSE_SECONDS)
        yield


async def _read_while_making(
    directory: DataDirectory, tier: TierTwoPlace, chunks: ChunkStorage
) -> TierTwoIdentity:
    """Return the identity of tier 2 for a store that is not complete. Raises ``IdentityError`` when
    tier 2 has the identity of another store."""
    found = await TierTwoIdentity.read(chunks)
    if directory.store_id in found.store_ids and len(found.store_ids) > 1:
        # An earlier start of this store was killed when it met the other store. Its identity is
        # deleted, so that it does not keep the other store out.
        await chunks.delete(identity_name(directory.store_id))
    refuse_other_store(directory, tier.where, found.store_ids)
    return found


async def _prepare_new(directory: DataDirectory, tier: TierTwoPlace) -> None:
    """Check that the tiers of a new store are empty, or have only what it has made itself."""
    for journal in range(directory.journal_count):
        path = directory.journal_path(journal)
        if _journal_files(path) and read_journal_identity(path) is None:
            raise IdentityError(
                f"data directory {directory.path} is new, and {path} has journal files already:"
                f" put back the {VERSION_FILE} that belongs to them, or start with another"
                " --data-dir",
                tier=f"journal {journal}",
                problem=IdentityProblem.FOREIGN,
            )
    # If the directory does not exist, this makes it: a directory that did not exist cannot belong
    # to another store.
    await tier.make()
    chunks = tier.chunks_under(1)
    found = await _read_while_making(directory, tier, chunks)
    if found.store_ids:
        return
    if some := await chunks.list_chunks(""):
        raise IdentityError(
            f"data directory {directory.path} is new, and {tier.where} has chunks already, such as"
            f" {some[0].name}: start with the data directory that they belong to, or name an empty"
            " place for tier 2",
            tier=TIER_2,
            problem=IdentityProblem.FOREIGN,
        )


def _journal_files(path: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [name for name in os.listdir(path) if parse_name(name) is not None]
    return []


def _make_journals(directory: DataDirectory) -> None:
    for journal in range(directory.journal_count):
        path = directory.journal_path(journal)
        try:
            make_directory(path)
        except OSError as error:
            raise DataDirectoryError(
                f"journal directory {path} cannot be made: {reason_of(error, path)}"
            ) from error
        if read_journal_identity(path) is None:
            write_journal_identity(path, new_journal_identity(directory, journal))
        check_journal(directory, journal)


async def _make_identity(directory: DataDirectory, tier: TierTwoPlace) -> None:
    """Write the store's identity to tier 2. Raises ``IdentityError`` when another store does so at
    the same time."""
    chunks = tier.chunks_under(1)
    name = identity_name(directory.store_id)
    text = (
        f"This is tier 2 of the segstore store {directory.store_id}, whose data directory was"
        f" {directory.path.absolute()} on {socket.gethostname()}.\n"
    )
    await chunks.write(name, offset=0, data=[text.encode(errors="replace")])
    # If two stores meet here, both are refused, because the first may not see the second one's
    # identity.
    found = await _read_while_making(directory, tier, chunks)
    if not found.store_ids:
        raise StorageError(f"tier 2 in {tier.where} does not list {name}, which was just written")
