"""The claim by which one process uses tier 2 for the containers of a journal.

Owns: the claims in tier 2, their record in the journal's identity, and the checks of all identities
at a start; docs/formats/identities.md describes the bytes, docs/adr/0201 explains why. Claims have
ascending numbers. A start records the claim that it will make in the journal, and then makes it in
tier 2. If the claim of a start never comes to tier 2, the next start tries the same number under a
name of its own, which has the same base and a greater count. Refusals follow the rules in the
package's docstring.

Invariants:
1. When tier 2 has a later claim than the journal knows, the journal is an older state, or a copy
   whose original was used since, and it is refused. Held by
   ``test_an_older_state_of_a_journal_is_refused`` and
   ``test_of_two_copies_of_a_stopped_store_the_first_is_taken``.
2. When a store was killed, its next start takes the claim over, because it holds the same lock
   file. Held by ``test_a_killed_store_starts_again_at_once``. A copy of the data directory has
   another lock file, and takes the claim over only if the store had given it back before the copy
   was made. Held by ``test_a_copy_of_a_running_store_is_refused`` and
   ``test_of_two_copies_of_a_stopped_store_the_first_is_taken``.
3. When a later claim is made while a store runs, the store is fenced out before it truncates its
   log. Held by ``test_an_owner_that_lost_tier_2_keeps_its_log_and_ends``.
4. When two starts make a claim at the same time, at most one of them continues. Held by
   ``test_two_copies_that_start_together_never_share_a_tier_2``.
5. No two starts make the same claim. So a backup of a journal that was made after a failed start is
   refused when a later start has served. Held by
   ``test_a_backup_from_before_the_first_claim_is_refused``.
6. When the claim of a failed start comes to tier 2 late, it stops no later start. Held by
   ``test_a_claim_that_comes_late_stops_no_start``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
import trio

from segstore.errors import (
    ChunkNotFoundError,
    DataDirectoryError,
    DataLogError,
    FencedOutError,
    IdentityError,
    IdentityProblem,
    StorageAbsentError,
    StorageConfigurationError,
    StorageError,
    StorageUnreachableError,
)
from segstore.ownership.data_directory import DataDirectory, StoreState, quote_toml
from segstore.ownership.journal_identity import (
    JournalIdentity,
    check_journal,
    new_journal_identity,
    write_journal_identity,
)
from segstore.ownership.new_store import complete_store, in_turn
from segstore.ownership.tier_two_identity import (
    TIER_2,
    Claim,
    TierTwoIdentity,
    TierTwoPlace,
    check_tier_two,
    claim_name,
)
from segstore.runtime.refused_files import is_refusal, reason_of
from segstore.tiers.api import ChunkStorage

RELEASED: Final = b"released\n"
RELEASE_SECONDS_MAX: Final = 5.0
BASE_BYTES: Final = 6
_BASE_DIGITS: Final = 2 * BASE_BYTES
_TRY_MAX: Final = 0xFFFF

logger = structlog.get_logger(__name__)


async def check_claims(
    directory: DataDirectory, tier: TierTwoPlace, journal: int, found: TierTwoIdentity
) -> None:
    """Check that a journal may claim tier 2. Raises ``IdentityError`` when it may not."""
    await Ownership(directory, tier, journal).check(found)


def renew_journal_identity(
    directory: DataDirectory, journal: int, found: TierTwoIdentity
) -> JournalIdentity:
    """Return an identity of the journal that knows the last claim in tier 2, so that the next start
    accepts both.

    The caller holds the journal's lock, knows that no other copy of the data directory is in use,
    and has made sure that the journal has all data that tier 2 relies on. This is the last step of
    recovering a lost journal, or a data directory that was moved after its store had been killed.
    """
    last = max(found.claims.get(journal, []), default=Claim(0, ""))
    return replace(
        new_journal_identity(directory, journal),
        turn=last.turn,
        owner=last.owner,
        lock_inode=directory.lock_inode(journal),
    )


@dataclass(frozen=True, slots=True)
class OwnedTier:
    """Tier 2 while this process has claimed it. ``directory`` is the data directory after the
    claim, which may have changed its version file."""

    directory: DataDirectory
    _ownerships: Mapping[int, Ownership]

    async def confirm(self, journal: int) -> None:
        """Check by one listing that this process still has the last claim for a journal.

        Raises ``FencedOutError`` when another store has taken tier 2 over, ``StorageAbsentError``
        when tier 2 is not the one that was claimed, and ``StorageError`` when it does not answer.
        """
        await self._ownerships[journal].confirm()


@asynccontextmanager
async def owned(
    directory: DataDirectory,
    tier: TierTwoPlace,
    journals: Sequence[int],
    *,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> AsyncIterator[OwnedTier]:
    """Claim tier 2 for the containers of these journals, which the caller has locked, and release
    the claims at the end of the block.

    Completes the store first if it is new. Raises ``IdentityError`` when a tier belongs to another
    store, and ``StorageUnreachableError`` when tier 2 does not answer.
    """
    try:
        directory = await complete_store(directory, tier)
        ownerships = await _claim_all(directory, tier, journals, random_bytes)
    except (StorageConfigurationError, StorageUnreachableError):
        raise
    except StorageError as error:
        cause = error.__cause__
        if is_refusal(cause):
            reason = reason_of(cause, Path(tier.where))
            raise StorageUnreachableError(
                f"tier 2 in {tier.where} cannot be used: {reason}"
            ) from cause
        raise StorageUnreachableError(f"tier 2 in {tier.where} cannot be used: {error}") from error
    if directory.tier_2 != tier.where:
        async with in_turn(directory):
            directory = directory.write(
                store_id=directory.store_id, state=StoreState.COMPLETE, tier_2=tier.where
            )
    try:
        yield OwnedTier(directory, dict(zip(journals, ownerships, strict=True)))
    finally:
        with trio.move_on_after(RELEASE_SECONDS_MAX, shield=True):
            for ownership in ownerships:
                await ownership.release()


async def _claim_all(
    directory: DataDirectory,
    tier: TierTwoPlace,
    journals: Sequence[int],
    random_bytes: Callable[[int], bytes],
) -> list[Ownership]:
    """Check the identities of all tiers, then claim tier 2 for each of the journals."""
    for journal in journals:
        check_journal(directory, journal)
    found = await check_tier_two(directory, tier)
    ownerships = [Ownership(directory, tier, journal) for journal in journals]
    for ownership in ownerships:
        await ownership.check(found)
    for ownership in ownerships:
        await ownership.claim(random_bytes(BASE_BYTES).hex())
    return ownerships


class Ownership:
    """The claim of one journal."""

    def __init__(self, directory: DataDirectory, tier: TierTwoPlace, journal: int) -> None:
        self._directory = directory
        self._tier = tier
        self._journal = journal
        self._path = directory.journal_path(journal)
        self._identity = check_journal(directory, journal)
        self._lock_inode = directory.lock_inode(journal)
        self._last: Claim | None = None
        """The last claim in tier 2 that the journal knows."""
        self._claim = Claim(0, "")
        self._chunks: ChunkStorage | None = None
        self._text = b""

    @property
    def _is_elsewhere(self) -> bool:
        """Return whether the last owner held another lock file, and so may still be running."""
        identity = self._identity
        return identity.lock_inode not in (0, self._lock_inode)

    def _was_tried(self, claim: Claim) -> bool:
        """Return whether an earlier start of this store tried to make a claim, by the journal's
        identity."""
        pending = self._identity.next_owner
        return (
            claim.turn == self._identity.turn + 1
            and claim.owner[:_BASE_DIGITS] == pending[:_BASE_DIGITS]
            and claim.owner <= pending
        )

    async def check(self, found: TierTwoIdentity) -> None:
        """Check that the journal may claim tier 2."""
        identity = self._identity
        claims = found.claims.get(self._journal, [])
        tried = [each for each in claims if self._was_tried(each)]
        known = {Claim(identity.turn, identity.owner), *tried}
        # Another claim with our number is that of a refused start that was killed before it could
        # delete its claim.
        strangers = [each for each in claims if each.turn > identity.turn and each not in known]
        if strangers:
            for each in [] if self._is_elsewhere else tried:
                # An earlier start of this store was killed when it met the other store. Its claim
                # is deleted, so that it does not keep the other store out. A copy of the directory
                # deletes nothing, because the claim may be that of the original.
                await self._delete(self._tier.chunks_under(each.turn), each)
            raise self._claimed(
                f"is older than tier 2 in {self._tier.where}, which was used since by"
                f" {await self._describe(strangers[-1])}: this is a copy or an earlier state of"
                " what belongs to it; start the right one"
            )
        last = max((each for each in claims if each in known), default=None)
        if last is None and identity.turn > 0:
            raise self._older(
                f"it has no claim since number {claims[-1].turn if claims else 0}, and had number"
                f" {identity.turn}"
            )
        if last is not None and identity.is_released:
            # A claim is released in tier 2 first, and then in the journal.
            if not (await self._read(last)).endswith(RELEASED):
                raise self._older("it was copied before the last stop of the store")
        elif last is not None and self._is_elsewhere:
            raise self._claimed(
                f"was copied or moved while tier 2 in {self._tier.where} was in use by"
                f" {await self._describe(last)}, which may use it still: start and stop the"
                " store where it was, then move it"
            )
        self._last = last

    async def claim(self, base: str) -> None:
        """Claim tier 2 under a name that begins with ``base``. If the claim of an earlier start
        never came to tier 2, the name is the next one of that start's base.

        Raises ``IdentityError`` when another start claims tier 2 at the same time.
        """
        identity, last = self._identity, self._last
        # The claim of an earlier start may still be on its way to tier 2. When that claim arrives,
        # the names must show that it is one of this store.
        pending = "" if self._is_elsewhere else identity.next_owner
        if last is None:
            last = Claim(identity.turn, identity.owner)
        elif last.turn > identity.turn:
            pending = ""  # that claim has come
        owner = _next_name(pending) if pending else f"{base}{0:04x}"
        self._claim = claim = Claim(last.turn + 1, owner)
        self._identity = replace(
            identity,
            journal_count=self._directory.journal_count,
            layout=self._directory.layout,
            turn=last.turn,
            owner=last.owner,
            next_owner=claim.owner,
            lock_inode=self._lock_inode,
            is_released=False,
        )
        write_journal_identity(self._path, self._identity)
        self._chunks = chunks = self._tier.chunks_under(claim.turn)
        self._text = _text_of(self._directory)
        await chunks.write(claim_name(self._journal, claim), offset=0, data=[self._text])
        claims = (await TierTwoIdentity.read(chunks)).claims.get(self._journal, [])
        await self._refuse_rivals(chunks, claims)
        self._identity = replace(self._identity, turn=claim.turn, owner=claim.owner, next_owner="")
        write_journal_identity(self._path, self._identity)
        for each in claims:
            if each != claim:
                await self._delete(chunks, each)

    async def confirm(self) -> None:
        """Check that there is no later claim. See ``OwnedTier.confirm``."""
        assert self._chunks is not None, "take it first"
        found = await TierTwoIdentity.read(self._chunks)
        claims = found.claims.get(self._journal, [])
        # Another claim with our number is that of a start that met this one and is refused, as in
        # `check`, or that of an earlier start, which came late.
        if self._claim in claims and claims[-1].turn == self._claim.turn:
            return
        where = f"tier 2 in {self._tier.where}"
        stays = f"What is in the journals of data directory {self._directory.path} stays there"
        # If tier 2 lists only earlier claims, no other store has taken it over.
        if claims and claims[-1].turn >= self._claim.turn:
            owner = await self._describe(claims[-1])
            raise FencedOutError(f"{where} was taken over by {owner}: stop that store. {stays}")
        raise StorageAbsentError(
            f"{where} has no claim of journal {self._journal} any more: it was emptied or replaced,"
            f" or does not list all that it has; put it back as it was. {stays}"
        )

    async def _refuse_rivals(self, chunks: ChunkStorage, claims: list[Claim]) -> None:
        """Raise ``IdentityError`` when another start claims tier 2 at the same time.

        Then both starts are refused, because the first one may not see the claim of the second.
        """
        claim = self._claim
        rivals = [each for each in claims if each.turn >= claim.turn and not self._was_tried(each)]
        if rivals:
            await self._delete(chunks, claim)
            who = await self._describe(rivals[-1])
            raise self._claimed(f"meets another start on tier 2 in {self._tier.where}: {who}")
        if claim not in claims:
            # The claim of another start may be missing in this listing, too.
            await self._delete(chunks, claim)
            name = claim_name(self._journal, claim)
            raise StorageAbsentError(f"it does not list {name}, which was just written")

    async def _delete(self, chunks: ChunkStorage, claim: Claim) -> None:
        try:
            await chunks.delete(claim_name(self._journal, claim))
        except StorageError as error:
            logger.warning("an earlier claim of tier 2 is not deleted", error=str(error))

    async def release(self) -> None:
        """Release the claim. After that, a copy of the data directory may claim tier 2, and then
        the original may not."""
        claim = self._claim
        chunks = self._tier.chunks_under(claim.turn)
        name = claim_name(self._journal, claim)
        try:
            await chunks.write(name, offset=len(self._text), data=[RELEASED])
            self._identity = replace(self._identity, is_released=True)
            write_journal_identity(self._path, self._identity)
        except (StorageError, DataLogError, DataDirectoryError) as error:
            logger.warning("the claim of tier 2 is not given back", error=str(error))

    async def _read(self, claim: Claim) -> bytes:
        chunks = self._tier.chunks_under(max(claim.turn, 1))
        name = claim_name(self._journal, claim)
        try:
            length = (await chunks.info(name)).length
            return bytes(await chunks.read(name, offset=0, length=length))
        except ChunkNotFoundError:
            return b""

    async def _describe(self, claim: Claim) -> str:
        text = await self._read(claim)
        first = text.decode(errors="replace").partition("\n")[0]
        return first or f"owner {claim.owner}"

    def _older(self, why: str) -> IdentityError:
        return IdentityError(
            f"tier 2 in {self._tier.where} is older than {self._path}: {why}; put back what belongs"
            " to this data directory",
            tier=TIER_2,
            problem=IdentityProblem.OLDER,
        )

    def _claimed(self, what: str) -> IdentityError:
        return IdentityError(
            f"journal {self._journal} of data directory {self._directory.path} {what}",
            tier=f"journal {self._journal}",
            problem=IdentityProblem.CLAIMED,
        )


def _next_name(owner: str) -> str:
    """Return the name under which the next start claims, when the claim under the name ``owner``
    has not come to tier 2."""
    count = min(int(owner[_BASE_DIGITS:], 16) + 1, _TRY_MAX)
    return f"{owner[:_BASE_DIGITS]}{count:04x}"


def _text_of(directory: DataDirectory) -> bytes:
    path = quote_toml(str(directory.path.absolute()))
    text = f"the store in {path} on {socket.gethostname()}, process {os.getpid()}\n"
    return text.encode(errors="replace")
