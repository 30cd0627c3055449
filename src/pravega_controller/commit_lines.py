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
continues. So nobody has to tell a controller about a commit, and no controller has to look for
commits while the leader lives.

Invariants:
1. The line changes only by a conditional update on the version that was read. No two writes of the
   line have equal bytes.
2. While transactions wait, one controller leads, unless the leader gave up after an error. A
   controller that writes the line replaces a dead leader. A controller that ends the stream
   replaces even a living leader.
3. A leader merges the first transactions of one epoch in the line, and the line names the epoch. A
   replaced leader may learn late that it does not lead any more. Both leaders then merge the same
   transactions in the same order, so the second finds them merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import trio
from msgspec import structs

from pravega_controller.errors import StoreUnavailableError, VersionConflictError
from pravega_controller.grouped_writes import Groups, PendingWrite
from pravega_controller.members import Members
from pravega_controller.segment_client import run_all
from pravega_controller.table_client import NOT_EXISTS
from pravega_controller.transaction_records import CommitLineRecord, TransactionRecord
from pravega_controller.transaction_store import Stored, TransactionStore
from pravega_controller.transactions import Commit

CONFLICTS_MAX = 50
"""Maximum number of attempts to store a group of changes that conflicts with another controller."""
WAITING_MAX = 10_000
"""Maximum number of commits that wait for one stream: their ids fit one value of a table."""
GIVING_WAY_WRITES = 3
"""Pause in which other controllers may write after a write, as a multiple of its duration."""
GIVING_WAY_SECONDS_MAX = 0.1

RecordChange: TypeAlias = tuple[bytes, TransactionRecord, int]
"""A transaction's id, its new record, and the version of its present record."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """A change of the line, and the transactions that change with it."""

    apply: Callable[[CommitLineRecord], CommitLineRecord]
    """Makes the change; if it raises ``StoreUnavailableError``, the change fails with this."""
    records: Sequence[RecordChange] = ()
    takes_over: bool = False
    """True to lead from now on, even if the present leader lives."""
    gives_up: bool = False
    """True to stop leading even if transactions wait."""


_Change = PendingWrite[LineChange, list[int]]


@dataclass(slots=True, eq=False)
class KnownLine:
    """A copy of a stream's line in memory; the stored line may have changed since."""

    record: CommitLineRecord = field(default_factory=CommitLineRecord)
    version: int = NOT_EXISTS
    groups: Groups[LineChange, list[int]] | None = None
    gives_way_until: float = -1.0
    """Time, by trio's clock, until which another controller may want to write first."""

    def commits(self) -> list[Commit]:
        """Return the waiting transactions, each with its place in the line."""
        return [Commit(bytes.fromhex(one), at) for at, one in enumerate(self.record.waiting)]


class LineOwner(Protocol):
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
        self._writes = 0

    def leads(self, owner: LineOwner) -> bool:
        """Return whether this controller knows of commits of the stream that it must carry out."""
        line = owner.line.record
        return bool(line.waiting) and line.leader == self._me

    # ---- Changes ---------------------------------------------------------------------------------

    async def enter(self, owner: LineOwner, change: RecordChange) -> int:
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
                    f"{WAITING_MAX} transactions of {owner.scope}/{owner.stream} wait to be "
                    "committed: try again later"
                )
            # A commit that enters an empty line is the next batch, so its epoch is known.
            epoch = line.epoch if line.waiting else Commit(change[0], 0).epoch
            return structs.replace(line, waiting=(*line.waiting, identifier), epoch=epoch)

        return (await self._change(owner, LineChange(apply, [change])))[0]

    async def leave(
        self,
        owner: LineOwner,
        records: Sequence[RecordChange],
        *,
        absent: Sequence[bytes] = (),
    ) -> None:
        """Record that transactions are committed, and remove them from the line.

        The transactions ``absent`` were committed before. Raises ``VersionConflictError`` if a
        transaction has changed: then another controller has committed it.
        """
        gone = {one.hex() for one in (*(r[0] for r in records), *absent)}

        def apply(line: CommitLineRecord) -> CommitLineRecord:
            return structs.replace(
                line, waiting=tuple(one for one in line.waiting if one not in gone)
            )

        await self._change(owner, LineChange(apply, records))

    async def begin_epoch(self, owner: LineOwner, epoch: int) -> bool:
        """Record the epoch of the next batch; return whether this controller still leads."""

        def apply(line: CommitLineRecord) -> CommitLineRecord:
            return structs.replace(line, epoch=epoch) if line.leader == self._me else line

        await self._change(owner, LineChange(apply))
        return self.leads(owner)

    async def lead(self, owner: LineOwner, *, takes_over: bool = False) -> bool:
        """Lead the line if transactions wait and no living controller leads.

        Returns whether this controller leads. With ``takes_over`` it replaces even a living leader:
        this is for the end of a stream.
        """
        await self.refresh(owner)
        line = owner.line.record
        if line.waiting and line.leader != self._me and (takes_over or await self._is_free(line)):
            await self._change(owner, LineChange(lambda same: same, takes_over=takes_over))
        return self.leads(owner)

    async def give_up(self, owner: LineOwner) -> None:
        """Stop leading while transactions wait, because this controller cannot commit them."""
        await self._change(owner, LineChange(lambda same: same, gives_up=True))

    async def refresh(self, owner: LineOwner) -> None:
        """Read the line as it is stored now."""
        owner.line.record, owner.line.version = await self._transactions.read_line(
            owner.scope, owner.stream, owner.stream_id
        )

    # ---- Writes ----------------------------------------------------------------------------------

    async def _change(self, owner: LineOwner, change: LineChange) -> list[int]:
        """Make a change together with all waiting ones; return its transactions' new versions."""
        line = owner.line
        if line.groups is None:

            async def store(group: list[_Change]) -> None:
                await self._store(owner, group)

            line.groups = Groups(store)
        return await line.groups.submit(change, size=1 + len(change.records))

    async def _store(self, owner: LineOwner, group: list[_Change]) -> None:
        await self._pause_for_others(owner.line)
        try:
            for _ in range(CONFLICTS_MAX):
                left = [waiting for waiting in group if not waiting.is_answered]
                if not left or await self._try(owner, left):
                    return
            raise VersionConflictError("other controllers change the same line of commits")
        except Exception as error:
            for waiting in group:
                if not waiting.is_answered:
                    waiting.fail(error)

    async def _try(self, owner: LineOwner, group: list[_Change]) -> bool:
        """Apply a group of changes and write the line; return False if it must be tried again."""
        line = owner.line
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
            # The line may have been removed with its stream: this write must not create it again.
            for waiting in made:
                waiting.complete([])
            return True
        self._writes += 1
        record = structs.replace(record, write=f"{self._me}-{self._writes:x}")
        began = trio.current_time()
        try:
            versions = await self._transactions.write_line(
                owner.scope,
                owner.stream,
                owner.stream_id,
                (record, line.version),
                changes,
            )
        except VersionConflictError:
            await self._learn(owner, made)
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

    async def _learn(self, owner: LineOwner, group: list[_Change]) -> None:
        """Read the line after a conflict, and fail the changes that can no longer succeed."""
        known = [change for waiting in group for change in waiting.write.records]

        async def read() -> list[Stored | None]:
            if not known:
                return []
            identifiers = [identifier for identifier, _, _ in known]
            return await self._transactions.read_all(owner.scope, owner.stream, identifiers)

        stored, _ = await run_all(read, partial(self.refresh, owner))
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
        """Return whether the line has no leader, or a dead one."""
        return not line.leader or await self._members.is_dead(line.leader)

    async def _pause_for_others(self, line: KnownLine) -> None:
        """Pause so that other controllers can write.

        They read before they write. Without a pause the controller that writes all the time would
        always be first.
        """
        if self._members.solitude is None and trio.current_time() < line.gives_way_until:
            await trio.sleep_until(line.gives_way_until)
