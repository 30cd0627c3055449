"""Stores that lose files and are recovered: some seeds, and planted faults that seeds find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.recoveries import RecoveriesError, simulate_recoveries

from segstore.model.metadata import SegmentMetadata
from segstore.repair.pieces import SegmentPieces
from segstore.repair.salvage import Salvage
from segstore.tiers.api import Buffer
from support.rare_parameters import mark_rare

SEEDS = mark_rare(range(6), 3)
SEEDS_MAX = 60
"""So many are tried until one finds a planted fault."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_provable_is_kept_and_the_rest_is_told(seed: int, tmp_path: Path) -> None:
    counts, _ = simulate_recoveries(seed, tmp_path)
    assert counts["kept whole"] > 0


def test_a_table_whose_compaction_only_the_lost_log_has_is_kept(tmp_path: Path) -> None:
    """The log is exchanged for an older copy after a compaction. Tier 2 once had the truncation
    before it had the copies of the entries."""
    simulate_recoveries(2815363, tmp_path)


def test_a_table_of_which_tier_2_lacks_bytes_before_its_truncation_is_written(
    tmp_path: Path,
) -> None:
    """A recovery counts bytes as stored that neither tier has. The writer then truncates first."""
    simulate_recoveries(2815033, tmp_path)


def test_a_loss_beside_a_chunk_that_no_metadata_record_is_told(tmp_path: Path) -> None:
    """The first chunk of a segment is lost. A chunk of an earlier owner has no record, and lies
    where a later owner wrote."""
    simulate_recoveries(4410580, tmp_path)


def test_bytes_that_an_owner_in_doubt_gave_up_prove_nothing(tmp_path: Path) -> None:
    """A claim is damaged, so the next owner writes entries of the log anew, into another chunk.
    Then that chunk is lost, and the entries lie only behind the recorded end of the first one."""
    simulate_recoveries(6120473, tmp_path)


def test_entries_behind_lost_ones_are_found_while_these_are_read(tmp_path: Path) -> None:
    """The entry before the lost one ends there, so its reader's next bytes are read ahead. Another
    entry, behind the lost one, waited for them."""
    simulate_recoveries(6121275, tmp_path)


def test_a_table_that_is_compacted_during_a_flush_is_kept(tmp_path: Path) -> None:
    """The log is exchanged for an older copy after a compaction that was durable while the table's
    earlier bytes waited to be written. Tier 2 once had the truncation before the copies."""
    simulate_recoveries(6130491, tmp_path)


def test_an_entry_without_its_lengths_proves_nothing(tmp_path: Path) -> None:
    """A chunk is cut: an entry has lost the first bytes of its header. The next chunk has the rest,
    with all of key and value."""
    simulate_recoveries(6130710, tmp_path)


def test_a_seed_is_replayed(tmp_path: Path) -> None:
    first, second = (simulate_recoveries(3, tmp_path / each) for each in "ab")
    assert first == second


def end_where_the_bytes_end(patch: pytest.MonkeyPatch) -> None:
    """Let a segment end below its truncation, so that offsets are given out twice, as before."""
    settle = Salvage._settle

    async def settle_shorter(self: Salvage, segment: SegmentMetadata) -> None:
        end = self._pieces.end(segment.storage_name)
        segment.length = min(segment.length, end)
        segment.start_offset = min(segment.start_offset, end)
        await settle(self, segment)

    patch.setattr(Salvage, "_settle", settle_shorter)


def drop_what_does_not_follow(patch: pytest.MonkeyPatch) -> None:
    """Drop the bytes of the log behind a gap, as before."""
    add = SegmentPieces.add

    async def add_behind(
        self: SegmentPieces,
        name: str,
        offset: int,
        data: Buffer,
        *,
        rollover_bytes: int,
        start: int = 0,
    ) -> None:
        if offset <= self.end(name):
            await add(self, name, offset, data, rollover_bytes=rollover_bytes, start=start)

    patch.setattr(SegmentPieces, "add", add_behind)


def keep_only_what_the_log_has(patch: pytest.MonkeyPatch) -> None:
    of = SegmentPieces.of

    def of_log(self: SegmentPieces, name: str) -> object:
        pieces = of(self, name)
        if "#epoch" in name and "attributes" not in name:
            pieces[:] = [each for each in pieces if each.is_new]
        return pieces

    patch.setattr(SegmentPieces, "of", of_log)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (end_where_the_bytes_end, "ends at"),
        (drop_what_does_not_follow, "was there and is lost"),
        (keep_only_what_the_log_has, "is lost"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            simulate_recoveries(seed, tmp_path / str(seed))
        except RecoveriesError as error:
            if what in str(error):
                return
    pytest.fail("no seed finds it")
