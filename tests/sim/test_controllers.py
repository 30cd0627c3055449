"""Some seeds of two controllers, and planted faults; more by ``make sim-controllers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from controllers.run import FailedSeedError, simulate

from pravega_controller.clocks import ContinuedTime, RecordTimes
from pravega_controller.metadata.intents import Intents
from pravega_controller.metadata.records import Scale
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_records import CommitLineRecord
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.retention import retention
from pravega_controller.rules.transactions import Commit
from pravega_controller.streams.pending_work import PendingWork
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.commit_batches import CommitBatches
from pravega_controller.transactions.commit_lines import CommitLines, KnownLine
from pravega_controller.transactions.held_transactions import HeldTransactions

SEEDS = range(9)
PLANTED_SEEDS = (*range(8), 15, 28, 31)
"""The last ones are those of the first hundred that find the faults which are seldom seen."""


@pytest.mark.parametrize("seed", SEEDS)
def test_two_controllers_keep_their_promises(seed: int) -> None:
    report = simulate(seed)
    assert report.counts["committed"]


def test_a_seed_is_replayed_step_by_step() -> None:
    first, second = simulate(3), simulate(3)
    assert first.lines == second.lines
    assert (first.trace_hash, first.step_count) == (second.trace_hash, second.step_count)


def find_failure() -> str:
    """Find the first seed that fails, of some seeds; return its message."""
    for seed in PLANTED_SEEDS:
        try:
            simulate(seed)
        except FailedSeedError as error:
            return str(error).splitlines()[0]
    return "nothing"


def plant_line_from_the_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the leader begin with the last commit in the line, and merge slowly, so that some
    wait."""
    real, real_merge = KnownLine.commits, CommitBatches.merge

    def commits(self: KnownLine) -> list[Commit]:
        return [Commit(commit.identifier, -commit.order) for commit in real(self)]

    async def merge(self: CommitBatches, *arguments: Any) -> Any:
        await trio.sleep(0.5)
        return await real_merge(self, *arguments)

    monkeypatch.setattr(KnownLine, "commits", commits)
    monkeypatch.setattr(CommitBatches, "merge", merge)


def plant_lines_without_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the line over whatever another controller wrote."""
    real = TransactionStore.write_line

    async def write_line(
        self: TransactionStore,
        scope: str,
        stream: str,
        stream_id: str,
        line: tuple[CommitLineRecord, int],
        records: Any,
    ) -> list[int]:
        return await real(self, scope, stream, stream_id, (line[0], -(2**63)), records)

    monkeypatch.setattr(TransactionStore, "write_line", write_line)


def plant_memory_that_always_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a controller answer from memory although another may be at work."""
    monkeypatch.setattr(HeldTransactions, "is_certain", lambda self, transaction: True)


def plant_leaders_that_nobody_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave to a dead leader what it was to commit."""

    async def is_free(self: CommitLines, line: CommitLineRecord) -> bool:
        return not line.leader

    monkeypatch.setattr(CommitLines, "_is_free", is_free)


def plant_aborts_that_leave_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record an abort as carried out without carrying it out."""

    async def delete(self: Aborts, *arguments: object) -> None:
        return None

    monkeypatch.setattr(Aborts, "delete_segments", delete)


def plant_intents_that_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what a dead controller had begun as it is."""

    async def take_over(self: Intents, is_dead: object) -> list[object]:
        return []

    monkeypatch.setattr(Intents, "take_over", take_over)


def plant_cuts_that_wait_for_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record no cut, and find none old enough, until the clock has passed the time of the last."""

    def is_due(self: retention._Round) -> bool:
        times_ms = self._record.times_ms
        return not times_ms or self._all.time.now_ms() > times_ms[-1]

    def now_ms(self: RecordTimes, record: object, latest_ms: int, *, now_ms: int) -> int:
        return now_ms

    # Nor does a controller go on from the time that the one before has left.
    monkeypatch.setattr(ContinuedTime, "go_on_from", lambda self, left_ms: None)
    monkeypatch.setattr(retention._Round, "_is_due", is_due)
    monkeypatch.setattr(RecordTimes, "now_ms", now_ms)


def plant_withdrawn_epochs_that_leave_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the segments that were made for a scale when its epoch is withdrawn."""
    real = PendingWork.give_up

    async def give_up(self: PendingWork, stream: Stream, work: object) -> None:
        if not isinstance(work, Scale):
            await real(self, stream, work)  # type: ignore[arg-type]
        else:
            await self._store.writes.withdraw_epoch(
                await self._store.streams.read("s", stream.name)
            )

    monkeypatch.setattr(PendingWork, "give_up", give_up)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (plant_line_from_the_back, "comes after it"),
        (plant_lines_without_condition, "seed"),
        (plant_memory_that_always_answers, "seed"),
        (plant_leaders_that_nobody_replaces, "seed"),
        (plant_aborts_that_leave_segments, "is left"),
        (plant_intents_that_are_not_taken_over, "seed"),
        (plant_withdrawn_epochs_that_leave_segments, "but the history has"),
        (plant_cuts_that_wait_for_the_wall_clock, "retention keeps"),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert expected in find_failure()
