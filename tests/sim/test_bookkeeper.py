"""Some seeds of a ledger among failures, and planted faults; more by ``make sim-bookkeeper``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from bookkeeper.cluster import FakeMetadataStore
from bookkeeper.run import FailedSeedError, simulate

from bookkeeper_client.quorums import Quorums
from bookkeeper_client.state_machines import recovery
from bookkeeper_client.state_machines.effects import Confirmed, SendRead, StoreMetadata
from bookkeeper_client.state_machines.recovery import LedgerRecovery
from bookkeeper_client.state_machines.writing import LedgerWriter

SEEDS = 60
PLANTED_SEEDS = [105, *range(300)]
"""The first is one that finds what few find."""


def test_ledgers_keep_their_promises() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += simulate(seed).counts
    # What the seeds are for does happen in them.
    assert counts["entries"] > 50 * SEEDS
    assert counts["segments"] > 1.5 * SEEDS
    assert counts["FencedError"] > 10


def test_a_seed_is_replayed_step_by_step() -> None:
    assert simulate(3) == simulate(3)


# Found by these seeds before they were repaired.


def test_recovery_reads_from_the_bookies_that_the_writer_wrote_to() -> None:
    for seed in (105, 211, 357, 427, 487, 665):
        simulate(seed)


def test_recovery_does_not_trust_what_a_failed_recovery_wrote() -> None:
    for seed in (33, 102):
        simulate(seed)


def find_failure() -> str:
    """Find the first seed that fails; return its message."""
    for seed in PLANTED_SEEDS:
        try:
            simulate(seed)
        except FailedSeedError as error:
            return str(error)
    return "nothing"


def plant_unreachable_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients take a bookie that does not answer for one that lacks the entry."""
    real = LedgerRecovery._process_read

    def process(self: LedgerRecovery, index: int, entry: Any, *, is_absent: bool) -> None:
        real(self, index, entry, is_absent=entry is None)

    monkeypatch.setattr(LedgerRecovery, "_process_read", process)


def plant_one_absence_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first bookie that lacks an entry end the ledger."""
    monkeypatch.setattr(Quorums, "proves_absence", lambda self, count: count > 0)


def plant_confirmed_below_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the writer wait for one bookie less."""
    real = LedgerWriter.__init__

    def begin(self: LedgerWriter, *arguments: Any) -> None:
        real(self, *arguments)
        quorums = self._quorums
        self._quorums = Quorums(quorums.ensemble, quorums.write, max(1, quorums.ack - 1))

    monkeypatch.setattr(LedgerWriter, "__init__", begin)


def plant_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a recovery look without fencing, so that the writer goes on."""
    monkeypatch.setattr(
        recovery, "SendRead", lambda bookie, entry_id, is_fencing: SendRead(bookie, entry_id)
    )


def plant_no_writing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a recovery keep entries where it found them, perhaps on one bookie."""

    def add(self: LedgerRecovery, entry: Any) -> None:
        self._last, self._length = entry.entry_id, entry.length
        self._read(entry.entry_id + 1)

    monkeypatch.setattr(LedgerRecovery, "_add", add)


def plant_confirmed_during_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the writer confirm entries at bookies that the metadata are about to lose."""

    def confirm(self: LedgerWriter) -> None:
        while (pending := self._pending.get(self.last_confirmed + 1)) is not None:
            if pending.answered.bit_count() < self._quorums.ack:
                break
            self.last_confirmed += 1
            self._confirmed_length = pending.length
            del self._pending[self.last_confirmed]
            self.effects.append(Confirmed(self.last_confirmed))

    monkeypatch.setattr(LedgerWriter, "_confirm", confirm)


def plant_ends_without_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each recovery write its own end over whatever there is."""
    monkeypatch.setattr(
        recovery,
        "StoreMetadata",
        lambda metadata, version: StoreMetadata(metadata, FakeMetadataStore.ANY_VERSION),
    )


def plant_reads_from_new_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients ask a bookie that got a place from the recovery for later entries."""
    monkeypatch.setattr(
        LedgerRecovery,
        "_found",
        property(lambda self: self._metadata, lambda self, metadata: None),
        raising=False,
    )


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (plant_unreachable_as_absent, "is confirmed"),
        (plant_one_absence_is_enough, "is confirmed"),
        (plant_confirmed_below_quorum, "bookies only"),
        (plant_no_fence, "above the ledger's end"),
        (plant_no_writing_again, "bookies only"),
        (plant_confirmed_during_a_change, "bookies only"),
        (plant_ends_without_condition, "seed"),
        (plant_reads_from_new_bookies, "seed"),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert expected in find_failure()
