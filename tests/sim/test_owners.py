"""Stores on each other's tiers: some seeds, and planted faults that seeds find."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from simulation.owners import OwnersError, simulate_owners

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.durable_log.recovery import Recovery
from segstore.errors import IdentityError, StorageAbsentError, leaf_errors
from segstore.model.metadata import SegmentMetadata
from segstore.ownership import claims, journal_identity, new_store
from segstore.ownership.claims import Ownership
from segstore.ownership.data_directory import DataDirectory
from segstore.ownership.epoch_claims import EpochClaim
from segstore.ownership.journal_identity import JournalIdentity
from segstore.ownership.tier_two_identity import Claim, TierTwoIdentity
from segstore.process.registry import HostedContainer
from segstore.tiers.vendor import TierTwo
from support.rare_parameters import mark_rare

SEEDS = mark_rare(range(20), 4)
SEEDS_MAX = 100
"""So many are tried until one finds a planted fault."""


@pytest.mark.parametrize("seed", SEEDS)
def test_one_store_at_a_time_and_nothing_lost(seed: int, tmp_path: Path) -> None:
    counts, _ = simulate_owners(seed, tmp_path)
    assert counts["let in"] > 0


@pytest.mark.parametrize("seed", [5, 7])
def test_a_tier_2_that_is_a_copy_of_the_life_that_was_killed_is_refused(
    seed: int, tmp_path: Path
) -> None:
    counts, _ = simulate_owners(seed, tmp_path)
    assert counts["tier 2 is older, of the same life"] > 0


@pytest.mark.parametrize("seed", mark_rare(range(6), 3))
def test_stores_serve_again_when_tier_2_has_hidden_and_nothing_is_lost(
    seed: int, tmp_path: Path
) -> None:
    counts, _ = simulate_owners(seed, tmp_path, hides=True)
    assert counts["tier 2 shows nothing"] + counts["tier 2 shows an earlier state"] > 0


def test_a_backup_from_between_a_failed_start_and_the_first_life_is_refused(
    tmp_path: Path,
) -> None:
    simulate_owners(4410210, tmp_path)


def test_a_seed_is_replayed(tmp_path: Path) -> None:
    first, second = (simulate_owners(3, tmp_path / each) for each in "ab")
    assert first == second


def take_copies_for_originals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ownership, "_is_elsewhere", False)


def look_for_nobody(patch: pytest.MonkeyPatch) -> None:
    async def find_none(*_: object) -> None:
        return

    patch.setattr(Ownership, "_refuse_rivals", find_none)


def make_what_is_missing(patch: pytest.MonkeyPatch) -> None:
    check = claims.check_tier_two

    async def make(directory: DataDirectory, tier: TierTwo) -> TierTwoIdentity:
        await new_store._make_identity(directory, tier)
        found = await check(directory, tier)
        number = journal_identity.read_journal_identity(directory.journal_path(0))
        if number is not None and not found.claims:
            found.claims[0] = [Claim(number.turn, number.owner)]
        return found

    async def read(*_: object) -> bytes:
        return claims.RELEASED

    patch.setattr(claims, "check_tier_two", make)
    patch.setattr(Ownership, "_read", read)
    trust_older_tiers(patch)


def trust_older_tiers(patch: pytest.MonkeyPatch) -> None:
    """Trust older tiers: those of the same life of a killed store differ only in their content."""

    async def trust(self: ChunkedSegmentStorage, needed: Mapping[str, int]) -> None:
        return

    patch.setattr(ChunkedSegmentStorage, "_refuse_older", trust)


def trust_older_journals(patch: pytest.MonkeyPatch) -> None:
    """Trust older journals, unless an owner is alive: that is what other planted faults are for."""
    check = Ownership.check

    async def trust(self: Ownership, found: TierTwoIdentity) -> None:
        last = max(found.claims.get(0, []), default=None)
        if last is not None and (await self._read(last)).endswith(claims.RELEASED):
            self._last = last
        else:
            await check(self, found)

    verify = Recovery._verify

    async def trust_log(self: Recovery, segment: SegmentMetadata) -> None:
        await self._ask_storage(segment)
        segment.storage_length = min(segment.storage_length, segment.length)
        await verify(self, segment)

    async def trust_logs(self: ChunkedSegmentStorage, ends: Mapping[str, int]) -> None:
        return

    patch.setattr(Ownership, "check", trust)
    patch.setattr(Recovery, "_verify", trust_log)
    patch.setattr(ChunkedSegmentStorage, "_refuse_newer", trust_logs)


def take_any_tier_for_ours(patch: pytest.MonkeyPatch) -> None:
    async def read(directory: DataDirectory, tier: TierTwo) -> TierTwoIdentity:
        return await TierTwoIdentity.read(tier.chunks_under(1))

    patch.setattr(claims, "check_tier_two", read)
    trust_older_journals(patch)
    trust_older_tiers(patch)


def make_missing_journals(patch: pytest.MonkeyPatch) -> None:
    check = claims.check_journal

    def make(directory: DataDirectory, journal: int) -> JournalIdentity:
        try:
            return check(directory, journal)
        except IdentityError:
            path = directory.journal_path(journal)
            path.mkdir(exist_ok=True)
            made = JournalIdentity(
                directory.store_id, journal, directory.journal_count, directory.container_count
            )
            claims.write_journal_identity(path, made)
            return check(directory, journal)

    async def trust(self: ChunkedSegmentStorage, last_epoch: object) -> None:
        return

    patch.setattr(claims, "check_journal", make)
    patch.setattr(ChunkedSegmentStorage, "check_log", trust)
    trust_older_journals(patch)


def forget_to_note_the_next_owner(patch: pytest.MonkeyPatch) -> None:
    write = claims.write_journal_identity

    def write_later(path: Path, written: JournalIdentity) -> None:
        if not written.next_owner:
            write(path, written)

    patch.setattr(claims, "write_journal_identity", write_later)


def trust_listings_without_the_own_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochClaim, "_refuse_hidden", lambda self, found: None)


@pytest.mark.proof
def test_an_owner_that_trusts_a_listing_without_its_claim_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trust_listings_without_the_own_claim(monkeypatch)
    assert finds("no data directory can be started any more", 2, tmp_path, hides=True)


def keep_offline_what_tier_two_refuses(patch: pytest.MonkeyPatch) -> None:
    """Open a container no more after such a refusal."""
    record_failure = HostedContainer.record_failure

    def give_up(self: HostedContainer, error: Exception, *arguments: Any, **named: Any) -> None:
        record_failure(self, error, *arguments, **named)
        if any(isinstance(leaf, StorageAbsentError) for leaf in leaf_errors(error)):
            # Its task ends here, as it does for a log that is damaged.
            self.scope.cancel()

    patch.setattr(HostedContainer, "record_failure", give_up)


@pytest.mark.proof
def test_a_container_that_stays_offline_for_what_tier_two_showed_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep_offline_what_tier_two_refuses(monkeypatch)
    assert finds("does not serve again", 0, tmp_path, hides=True)


def finds(what: str, first: int, folder: Path, *, hides: bool = False) -> bool:
    """Return whether one of some seeds fails with a message that ``what`` matches."""
    for seed in range(first, first + SEEDS_MAX):
        try:
            simulate_owners(seed, folder / str(seed), hides=hides)
        except OwnersError as error:
            if re.search(what, str(error)):
                return True
    return False


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "what", "first"),
    [
        (
            take_copies_for_originals,
            "was let in|has lost what was acknowledged|no data directory can be started",
            0,
        ),
        (look_for_nobody, "was let in beside", 0),
        (make_what_is_missing, "older or empty tier 2", 0),
        (trust_older_tiers, "older or empty tier 2", 20),
        (trust_older_journals, "older or foreign journal", 0),
        (take_any_tier_for_ours, "another store's tier 2", 230),
        (make_missing_journals, "without its journal", 0),
        (make_missing_journals, "older or foreign journal", 0),
        (forget_to_note_the_next_owner, "no data directory can be started any more", 0),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    what: str,
    first: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    plant(monkeypatch)
    assert finds(what, first, tmp_path)
