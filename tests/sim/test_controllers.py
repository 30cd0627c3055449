"""Some seeds of two controllers, and planted faults; more by ``make sim-controllers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from controllers.run import FailedSeedError, simulate

from pravega_controller.commit_lines import CommitLines, KnownLine
from pravega_controller.intents import Intents
from pravega_controller.transaction_records import CommitLineRecord
from pravega_controller.transaction_store import TransactionStore
from pravega_controller.transaction_workflows import TransactionWorkflows
from pravega_controller.transactions import Commit

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
    real, real_merge = KnownLine.commits, TransactionWorkflows._merge

    def commits(self: KnownLine) -> list[Commit]:
        return [Commit(commit.identifier, -commit.order) for commit in real(self)]

    async def merge(self: TransactionWorkflows, *arguments: Any) -> Any:
        await trio.sleep(0.5)
        return await real_merge(self, *arguments)

    monkeypatch.setattr(KnownLine, "commits", commits)
    monkeypatch.setattr(TransactionWorkflows, "_merge", merge)


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
    monkeypatch.setattr(TransactionWorkflows, "is_certain", lambda self, transaction: True)


def plant_leaders_that_nobody_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave to a dead leader what it was to commit."""

    async def is_free(self: CommitLines, line: CommitLineRecord) -> bool:
        return not line.leader

    monkeypatch.setattr(CommitLines, "_is_free", is_free)


def plant_aborts_that_leave_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record an abort as carried out without carrying it out."""

    async def delete(self: TransactionWorkflows, *arguments: object) -> None:
        return None

    monkeypatch.setattr(TransactionWorkflows, "_delete_segments", delete)


def plant_intents_that_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what a dead controller had begun as it is."""

    async def take_over(self: Intents, is_dead: object) -> list[object]:
        return []

    monkeypatch.setattr(Intents, "take_over", take_over)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (plant_line_from_the_back, "comes after it"),
        (plant_lines_without_condition, "seed"),
        (plant_memory_that_always_answers, "seed"),
        (plant_leaders_that_nobody_replaces, "seed"),
        (plant_aborts_that_leave_segments, "is left"),
        (plant_intents_that_are_not_taken_over, "seed"),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert expected in find_failure()
