"""Stores on each other's tiers: some seeds, and planted faults that seeds find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.owners import OwnersError, simulate_owners

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.errors import IdentityError
from segstore.process import identity
from segstore.process.data_directory import DataDirectory
from segstore.process.identity import Claim, JournalIdentity, TierTwoIdentity, _Ownership
from segstore.process.tier_two_vendors import TierTwo

SEEDS = range(20)
SEEDS_MAX = 100
"""So many are tried until one finds a planted fault."""


@pytest.mark.parametrize("seed", SEEDS)
def test_one_store_at_a_time_and_nothing_lost(seed: int, tmp_path: Path) -> None:
    counts, _ = simulate_owners(seed, tmp_path)
    assert counts["let in"] > 0


@pytest.mark.parametrize("seed", [242, 20182])
def test_a_tier_2_that_is_a_copy_of_the_life_that_was_killed_is_refused(
    seed: int, tmp_path: Path
) -> None:
    counts, _ = simulate_owners(seed, tmp_path)
    assert counts["tier 2 is older, of the same life"] > 0


def test_a_copy_leaves_the_claim_that_its_original_had_tried_before(tmp_path: Path) -> None:
    counts, _ = simulate_owners(40167, tmp_path)
    assert counts["let in"] > 0


def test_a_journal_that_is_older_than_a_flush_is_refused_when_tier_2_was_away_at_the_start(
    tmp_path: Path,
) -> None:
    counts, _ = simulate_owners(40558, tmp_path)
    assert counts["let in"] > 0


def test_a_seed_is_replayed(tmp_path: Path) -> None:
    first, second = (simulate_owners(3, tmp_path / each) for each in "ab")
    assert first == second


def take_copies_for_originals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Ownership, "_is_elsewhere", False)


def look_for_nobody(patch: pytest.MonkeyPatch) -> None:
    async def find_none(*_: object) -> None:
        return

    patch.setattr(_Ownership, "_refuse_rivals", find_none)


def make_what_is_missing(patch: pytest.MonkeyPatch) -> None:
    check = identity.check_tier_two

    async def make(directory: DataDirectory, tier: TierTwo) -> TierTwoIdentity:
        await identity._make_identity(directory, tier)
        found = await check(directory, tier)
        number = identity.read_journal_identity(directory.journal_path(0))
        if number is not None and not found.claims:
            found.claims[0] = [Claim(number.turn, number.owner)]
        return found

    async def read(*_: object) -> bytes:
        return identity.RELEASED

    patch.setattr(identity, "check_tier_two", make)
    patch.setattr(_Ownership, "_read", read)
    trust_older_tiers(patch)


def trust_older_tiers(patch: pytest.MonkeyPatch) -> None:
    """Trust older tiers: those of the same life of a killed store differ only in their content."""

    async def trust(self: ChunkedSegmentStorage) -> None:
        self._needed = {}

    patch.setattr(ChunkedSegmentStorage, "_refuse_older", trust)


def trust_older_journals(patch: pytest.MonkeyPatch) -> None:
    async def trust(self: _Ownership, found: TierTwoIdentity) -> None:
        self._last = max(found.claims.get(0, []), default=None)

    async def trust_logs(self: ChunkedSegmentStorage) -> None:
        self._ends = {}

    patch.setattr(_Ownership, "check", trust)
    patch.setattr(ChunkedSegmentStorage, "_refuse_newer", trust_logs)


def take_any_tier_for_ours(patch: pytest.MonkeyPatch) -> None:
    async def read(directory: DataDirectory, tier: TierTwo) -> TierTwoIdentity:
        return await TierTwoIdentity.read(tier.chunks_under(1))

    patch.setattr(identity, "check_tier_two", read)
    trust_older_journals(patch)
    trust_older_tiers(patch)


def make_missing_journals(patch: pytest.MonkeyPatch) -> None:
    check = identity.check_journal

    def make(directory: DataDirectory, journal: int) -> JournalIdentity:
        try:
            return check(directory, journal)
        except IdentityError:
            path = directory.journal_path(journal)
            path.mkdir(exist_ok=True)
            made = JournalIdentity(
                directory.store_id, journal, directory.journal_count, directory.container_count
            )
            identity.write_journal_identity(path, made)
            return check(directory, journal)

    async def trust(self: ChunkedSegmentStorage, last_epoch: object) -> None:
        return

    patch.setattr(identity, "check_journal", make)
    patch.setattr(ChunkedSegmentStorage, "check_log", trust)
    trust_older_journals(patch)


def forget_to_note_the_next_owner(patch: pytest.MonkeyPatch) -> None:
    write = identity.write_journal_identity

    def write_later(path: Path, written: JournalIdentity) -> None:
        if not written.next_owner:
            write(path, written)

    patch.setattr(identity, "write_journal_identity", write_later)


@pytest.mark.parametrize(
    ("plant", "what", "first"),
    [
        (take_copies_for_originals, "was let in", 0),
        (look_for_nobody, "was let in beside", 0),
        (make_what_is_missing, "older or empty tier 2", 0),
        (trust_older_tiers, "older or empty tier 2", 242),
        (trust_older_journals, "older or foreign journal", 80),
        (take_any_tier_for_ours, "another store's tier 2", 30),
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
    for seed in range(first, first + SEEDS_MAX):
        try:
            simulate_owners(seed, tmp_path / str(seed))
        except OwnersError as error:
            if what in str(error):
                return
    pytest.fail("no seed finds it")
