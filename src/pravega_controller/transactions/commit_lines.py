"""The line of each stream's commits: one order for all controllers, and one controller that merges.

Owns: the stored line (``CommitLineRecord``), the copy of it in memory, and the choice of the
controller that leads it.

    commit recorded by any controller  ->  end of the line  ->  merged by the leader  ->  out of it

One conditional update records a transaction's commit and puts the transaction at the end of its
stream's line; it succeeds only at the line's known version. So all commits of a stream have one
order, even if they come through several controllers. A controller that reads the line knows every
commit that was answered.

A controller that records a commit while no controller leads becomes the leader by the same update,
and carries out the waiting commits. It stops leading by the update that removes the last
transaction: if another controller has added one meanwhile, this update fails, and the leader
continues. So controllers send each other no messages about commits. Transactions 1 and 2, for
example, are committed through controllers A and B:

    update of the line                     version   waiting   leader
    A records the commit of 1              7         1         A
    B records the commit of 2              8         1 2       A
    A removes 1, expecting version 7       8         1 2       A        conflict: A reads the line
    A removes 1, expecting version 8       9         2         A        A merges 2
    A removes 2                            10        -         -

Invariants:
1. When commits come through several controllers, all segments merge them in one order.
   Held by ``test_commits_through_two_controllers_have_one_order_in_all_segments``.
2. When a second controller adds a commit while the leader is about to stop, the leader continues.
   Held by ``test_who_commits_first_leads_until_nothing_waits``.
3. When the leader is dead, the next controller that writes the line leads.
   Held by ``test_a_dead_leaders_place_is_taken_by_who_writes_next``.
4. When a controller seals the stream, it leads from then on, even if the present leader lives.
   Held by ``test_who_seals_a_stream_takes_the_line_from_a_living_leader``.
5. When a leader that was replaced still sends a merge, nothing changes: both leaders merge the same
   transactions in the same order.
   Held by ``test_a_late_merge_of_a_leader_that_was_taken_for_dead_changes_nothing``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import trio
from msgspec import structs

from pravega_controller.background.members import Members
from pravega_controller.errors import StoreUnavailableError, VersionConflictError
from pravega_controller.metadata.grouped_writes import Groups, PendingWrite
from pravega_controller.metadata.transaction_records import CommitLineRecord, TransactionRecord
from pravega_controller.metadata.transaction_store import Stored, TransactionStore
from pravega_controller.rules.transactions import Commit
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.store_client.table_client import NOT_EXISTS

CONFLICTS_MAX = 50
"""Maximum number of attempts to store a group of changes that conflicts with another controller."""
WAITING_MAX = 10_000
"""Maximum number of commits that wait for one stream: their ids fit one value of a table."""
GIVING_WAY_WRITES = 3
"""Length of the pause after a write, in which other controllers can write, as a multiple of the
duration of the write."""
GIVING_WAY_SECONDS_MAX = 0.1

RecordChange: TypeAlias = tuple[bytes, TransactionRecord, int]
"""A transaction's id, its new record, and the version of its present record."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """A change of the line, and the changes of transactions in the same update."""

    apply: Callable[[CommitLineRecord], CommitLineRecord]
    """Returns the changed line, or raises ``StoreUnavailableError``: then the change fails."""
    records: Sequence[RecordChange] = ()
    takes_over: bool = False
    """True to make this controller the leader, even if the present leader lives."""
    gives_up: bool = False
    """True to leave the line without a leader, although transactions wait."""


_Change = PendingWrite[LineChange, list[int]]


@dataclass(slots=True, eq=False)
class KnownLine:
    """A copy of a stream's line in memory; the stored line may have changed since."""

    record: CommitLineRecord = field(default_factory=CommitLineRecord)
    version: int = NOT_EXISTS
    groups: Groups[LineChange, list[int]] | None = None
    gives_way_until: float = -1.0
    """Time, by trio's clock, until which this controller lets other controllers write."""

    def commits(self) -> list[Commit]:
        """Return the waiting transactions, each with its place in the line."""
        return [Commit(bytes.fromhex(one), at) for at, one in enumerate(self.record.waiting)]


def keep_line(line: CommitLineRecord) -> CommitLineRecord:
    """Return the line unchanged, for changes of the leader alone."""
    return line


class StreamWithLine(Protocol):
    """A stream, and the copy of its line."""

    scope: str
    stream: str
    stream_id: str
    line: KnownLine


class CommitLines:
    """Changes the lines of streams for one controller."""

    def __init__(self, transactions: TransactionStore, members: Members) -> None:
        self._transactions = transactions
        self._members = members
        self._me = members.instance_id

    def leads(self, of_stream: StreamWithLine) -> bool:
        """Return whether, by its copy of the line, this controller leads and commits wait."""
        line = of_stream.line.record
        return bool(line.waiting) and line.leader == self._me

    # ---- Changes ---------------------------------------------------------------------------------

    async def enter(self, of_stream: StreamWithLine, change: RecordChange) -> int:
        """Record a commit at the end of the line; returns the transaction's new version.

        Raises ``VersionConflictError`` if the transaction has changed, and
        ``StoreUnavailableError`` if the line is full, or if the outcome of the write is unknown.
        """
        identifier = change[0].hex()

        def apply(line: CommitLineRecord) -> CommitLineRecord:
            if identifier in line.waiting:
                return line
            if len(line.waiting) >= WAITING_MAX:
                raise StoreUnavailableError(
                    f"{WAITING_MAX} transactions of {of_stream.scope}/{of_stream.stream} wait to "
                    "be committed: try again later"
                )
            # A commit that enters an empty line is in the next batch, so record its epoch now.
            epoch = line.epoch if line.waiting else Commit(change[0], 0).epoch
            return structs.replace(line, waiting=(*line.waiting, identifier), epoch=epoch)

        return (await self._change(of_stream, LineChange(apply, [change])))[0]

    async def leave(
        self,
        of_stream: StreamWithLine,
        records: Sequence[RecordChange],
        *,
        absent: Sequence[bytes] = (),
    ) -> None:
        """Record that transactions are committed, and remove them from the line.

        Transactions ``absent`` are removed from the line only: they were recorded as committed
        before. Raises ``VersionConflictError`` if another controller has committed a transaction.
        """
        gone = {one.hex() for one in (*(r[0] for r in records), *absent)}

        def apply(line: CommitLineRecord) -> CommitLineRecord:
            return structs.replace(
                line, waiting=tuple(one for one in line.waiting if one not in gone)
            )

        await self._change(of_stream, LineChange(apply, records))

    async def begin_epoch(self, of_stream: StreamWithLine, epoch: int) -> bool:
        """Record the epoch of the next batch; return whether this controller still leads."""

        def apply(line: CommitLineRecord) -> CommitLineRecord:
            return structs.replace(line, epoch=epoch) if line.leader == self._me else line

        await self._change(of_stream, LineChange(apply))
        return self.leads(of_stream)

    async def lead(self, of_stream: StreamWithLine, *, takes_over: bool = False) -> bool:
        """Lead the line if transactions wait and no living controller leads.

        Returns whether this controller leads. With ``takes_over`` it replaces even a living leader;
        a controller that seals or deletes the stream does so.
        """
        await self.refresh(of_stream)
        line = of_stream.line.record
        if line.waiting and line.leader != self._me and (takes_over or await self._is_free(line)):
            await self._change(of_stream, LineChange(keep_line, takes_over=takes_over))
        return self.leads(of_stream)

    async def give_up(self, of_stream: StreamWithLine) -> None:
        """Stop leading, although transactions wait: this controller cannot commit them."""
        await self._change(of_stream, LineChange(keep_line, gives_up=True))

    async def refresh(self, of_stream: StreamWithLine) -> None:
        """Read the line as it is stored now."""
        of_stream.line.record, of_stream.line.version = await self._transactions.read_line(
            of_stream.scope, of_stream.stream, of_stream.stream_id
        )

    # ---- Writes ----------------------------------------------------------------------------------

    async def _change(self, of_stream: StreamWithLine, change: LineChange) -> list[int]:
        """Submit a change, which is written together with other waiting changes.

        Returns the new versions of its transactions.
        """
        line = of_stream.line
        if line.groups is None:

            async def store(group: list[_Change]) -> None:
                await self._store(of_stream, group)

            line.groups = Groups(store)
        return await line.groups.submit(change, size=1 + len(change.records))

    async def _store(self, of_stream: StreamWithLine, group: list[_Change]) -> None:
        await self._pause_for_others(of_stream.line)
        try:
            for _ in range(CONFLICTS_MAX):
                left = [waiting for waiting in group if not waiting.is_answered]
                if not left or await self._try(of_stream, left):
                    return
            raise VersionConflictError("other controllers change the same line of commits")
        except Exception as error:
            for waiting in group:
                if not waiting.is_answered:
                    waiting.fail(error)

    async def _try(self, of_stream: StreamWithLine, group: list[_Change]) -> bool:
        """Apply a group of changes and write the line; return False if it must be tried again."""
        line = of_stream.line
        made: list[_Change] = []
        record = line.record
        for waiting in group:
            try:
                record = waiting.write.apply(record)
            except StoreUnavailableError as error:
                waiting.fail(error)
            else:
                made.append(waiting)
        if not made:
            return True
        changes = [change for waiting in made for change in waiting.write.records]
        leader = await self._choose_leader(record, [waiting.write for waiting in made])
        record = structs.replace(record, leader=leader)
        if record == line.record and not changes:
            # Nothing changes, so do not write: if the line was removed with its stream, a write
            # would create it again.
            for waiting in made:
                waiting.complete([])
            return True
        began = trio.current_time()
        try:
            versions = await self._transactions.write_line(
                of_stream.scope,
                of_stream.stream,
                of_stream.stream_id,
                (record, line.version),
                changes,
            )
        except VersionConflictError:
            await self._learn(of_stream, made)
            return False
        line.record, line.version = record, versions[0]
        now = trio.current_time()
        pause = min(GIVING_WAY_WRITES * (now - began), GIVING_WAY_SECONDS_MAX)
        line.gives_way_until = now + pause
        position = 1
        for waiting in made:
            end = position + len(waiting.write.records)
            waiting.complete(versions[position:end])
            position = end
        return True

    async def _learn(self, of_stream: StreamWithLine, group: list[_Change]) -> None:
        """Read the line after a conflict; fail the changes whose transactions have changed."""
        known = [change for waiting in group for change in waiting.write.records]

        async def read() -> list[Stored | None]:
            if not known:
                return []
            identifiers = [identifier for identifier, _, _ in known]
            return await self._transactions.read_all(of_stream.scope, of_stream.stream, identifiers)

        stored, _ = await run_all(read, partial(self.refresh, of_stream))
        current = {
            identifier: one.version if one is not None else NOT_EXISTS
            for (identifier, _, _), one in zip(known, stored, strict=True)
        }
        for waiting in group:
            for identifier, _, version in waiting.write.records:
                if current[identifier] != version and not waiting.is_answered:
                    digits = identifier.hex()
                    waiting.fail(VersionConflictError(f"transaction {digits} has changed"))

    async def _choose_leader(self, line: CommitLineRecord, changes: Sequence[LineChange]) -> str:
        if not line.waiting or any(change.gives_up for change in changes):
            return ""
        if any(change.takes_over for change in changes) or await self._is_free(line):
            return self._me
        return line.leader

    async def _is_free(self, line: CommitLineRecord) -> bool:
        """Return whether the line has no leader, or a dead leader."""
        return not line.leader or await self._members.is_dead(line.leader)

    async def _pause_for_others(self, line: KnownLine) -> None:
        """Pause after a write of this controller, so that other controllers can write.

        The others have to read the new version first. Without the pause, a controller that writes
        all the time would always write before them.
        """
        if self._members.solitude is None and trio.current_time() < line.gives_way_until:
            await trio.sleep_until(line.gives_way_until)
