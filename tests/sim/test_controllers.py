"""Some seeds of two controllers, and planted faults; more by ``make sim-controllers``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import trio
from controllers import refused
from controllers.run import FailedSeedError, simulate
from msgspec import structs

from pravega_controller.clocks import ContinuedTime, RecordTimes
from pravega_controller.errors import (
    NotFoundError,
    StreamNotFoundError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.groups.configuration_checks import ConfigurationChecks
from pravega_controller.metadata import scope_records
from pravega_controller.metadata.group_records import ReaderGroup
from pravega_controller.metadata.intents import Intents
from pravega_controller.metadata.records import (
    ReaderGroupConfiguration,
    ReaderGroupRecord,
    Scale,
)
from pravega_controller.metadata.scope_records import Scope, ScopeRecords
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.transaction_records import CommitLineRecord
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.retention import retention
from pravega_controller.rules.transactions import Commit
from pravega_controller.scopes.scopes import ScopeOperations, _ScopeCreation
from pravega_controller.store_client.table_client import NOT_EXISTS, Deleted, TableClient
from pravega_controller.streams import creation
from pravega_controller.streams.deletion import Deletion
from pravega_controller.streams.pending_work import PendingWork
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.commit_batches import CommitBatches
from pravega_controller.transactions.commit_lines import CommitLines, KnownLine
from pravega_controller.transactions.held_transactions import HeldTransactions
from support.rare_parameters import mark_rare

SEEDS = mark_rare(range(9), 1)
PLANTED_SEEDS = (*range(8), 15, 28, 30, 31)
"""The last ones are those of the first hundred that find the faults which are seldom seen."""


@pytest.mark.parametrize("seed", SEEDS)
def test_two_controllers_keep_their_promises(seed: int) -> None:
    report = simulate(seed)
    assert report.counts["committed"]


@pytest.mark.proof
def test_a_seed_is_replayed_step_by_step() -> None:
    first, second = simulate(3), simulate(3)
    assert first.counts["committed"]
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


def plant_equal_writes_that_count_as_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write values without saying who writes them."""
    monkeypatch.setattr(TableClient, "marked", lambda self, changes: list(changes))


def plant_deletions_that_claim_what_others_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell everybody whose request finds no table that it was this request that deleted it.

    Make them delete slowly, so that two meet.
    """
    real = TableClient.delete

    async def delete(self: TableClient, table: str, *, must_be_empty: bool) -> Deleted:
        await trio.sleep(0.5 if must_be_empty else 0.0)
        await real(self, table, must_be_empty=must_be_empty)
        return Deleted.NOW

    monkeypatch.setattr(TableClient, "delete", delete)


def plant_scopes_that_everybody_creates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell who helps to create a scope that it has created the scope."""
    real = ScopeOperations._create

    async def create(self: ScopeOperations, name: str, request: _ScopeCreation) -> None:
        scope = await self._store.scopes.find(name)
        if scope is not None and scope.record.phase == "creating" and not request.scope_id:
            request.scope_id = scope.record.scope_id
        await real(self, name, request)

    monkeypatch.setattr(ScopeOperations, "_create", create)


def plant_deletions_that_show_before_they_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark a scope before it is known to be empty, and let others take the mark for its end."""
    real = ScopeRecords.delete_objects

    async def is_empty(self: ScopeRecords, scope: Scope) -> bool:
        return True

    async def delete_objects(self: ScopeRecords, scope: Scope) -> Deleted:
        try:
            return await real(self, scope)
        except TableNotEmptyError:
            record = structs.replace(scope.record, phase="active")
            await self.write(scope.name, record, version=scope.version)
            raise

    monkeypatch.setattr(ScopeRecords, "is_empty", is_empty)
    monkeypatch.setattr(ScopeRecords, "delete_objects", delete_objects)
    for module in (scope_records, creation):
        monkeypatch.setattr(module, "OPEN_PHASES", ("active",))
    refuse_only("deleteScope", monkeypatch)


def refuse_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make only one of the calls that are refused: some seeds do not come to each of them."""
    monkeypatch.setattr(refused, "REFUSED", {name: refused.REFUSED[name]})


def plant_deletions_that_others_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell who waits for the deletion of a stream by another that it has deleted the stream."""
    real = Deletion.delete

    async def delete(self: Deletion, scope: str, name: str) -> None:
        is_there = True
        try:
            await self._store.streams.read(scope, name)
        except NotFoundError:
            is_there = False
        with suppress(*((StreamNotFoundError,) if is_there else ())):
            await real(self, scope, name)

    monkeypatch.setattr(Deletion, "delete", delete)


def plant_groups_that_are_made_before_their_streams_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Record a reader group, and delete it when a stream that it reads turns out to be missing."""
    real = ConfigurationChecks.find_missing

    async def missing(
        self: ConfigurationChecks, streams: Iterable[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        found = await real(self, streams)
        if found:
            owner = await self._store.scopes.find_active("full")
            configuration = ReaderGroupConfiguration(1, 1, 1, 0, (), ())
            record = ReaderGroupRecord(str(UUID(int=1)), 0, configuration)
            group = ReaderGroup(owner, "h", NOT_EXISTS, record)
            with suppress(VersionConflictError):
                await self._store.groups.remove(await self._store.groups.write(group, record))
        return found

    monkeypatch.setattr(ConfigurationChecks, "find_missing", missing)
    refuse_only("createReaderGroup", monkeypatch)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (plant_equal_writes_that_count_as_own, "no order explains"),
        (plant_deletions_that_claim_what_others_deleted, "no order explains"),
        (plant_scopes_that_everybody_creates, "no order explains"),
        (plant_deletions_that_others_claim, "no order explains"),
        (plant_deletions_that_show_before_they_are_decided, "refused deleteScope"),
        (
            plant_groups_that_are_made_before_their_streams_are_looked_for,
            "groups: ['g', 'h'], and without a refused",
        ),
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
