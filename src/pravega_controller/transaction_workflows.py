"""Carries out the decided ends of transactions: commits in batches, aborts, the archive.

Owns: the steps that take a transaction from COMMITTING to COMMITTED and from ABORTING to ABORTED.

    OPEN -> COMMITTING -> merged in every segment                     -> COMMITTED -> archived
         -> ABORTING   -> its segments deleted                        -> ABORTED   -> archived

A decision is recorded before any work for it begins, and each step after it may be repeated. A
controller reads all transactions at its start, and continues with those whose end was decided
before a kill.

Invariants:
1. A controller merges one batch of a stream at a time. It holds the lock that also orders its other
   workflows on the stream. So a batch never runs in the middle of a scale, a truncation or an
   update by the same controller. The lock is fair.
2. A batch is complete in every segment before the next one begins, even if its commits came through
   several controllers. One controller leads the line of a stream's commits (``commit_lines``). The
   epoch of a batch is recorded before the batch, unless the last batch had the same epoch. Within
   an epoch the order of the line decides.
3. If the reference of the active epoch is the epoch of the transactions, they are merged into the
   active segments. Otherwise the stream is rolled: it gets an epoch that repeats the epoch of the
   transactions, and then one that repeats the active epoch. The stream's record names the
   transactions that are being rolled.
4. A stream is sealed only when all of its transactions have ended.
5. One controller watches the lease of each transaction, and the transaction's record names it. It
   is the controller that was asked last to begin or to renew the transaction. When another
   controller is asked, or finds it dead, that one takes its place by a conditional write. A
   controller answers a question from memory only while it is alone. Otherwise it reads the record
   before it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial

import structlog
import trio
from msgspec import structs

from pravega_controller.background import RETRIED_ERRORS, Background
from pravega_controller.commit_lines import CommitLines, KnownLine, RecordChange
from pravega_controller.conflicts import until_unchanged
from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    EpochDroppedError,
    InvalidRequestError,
    NotFoundError,
    ScopeNotFoundError,
    StoreAnswerError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.history import Epoch
from pravega_controller.late_segments import LateSegments
from pravega_controller.locks import KeyedLocks
from pravega_controller.members import Members
from pravega_controller.open_transactions import (
    StreamTransactions,
    Transaction,
    TransactionRegistry,
)
from pravega_controller.records import Delete, IntentRecord, Rolling
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import MetadataStore, Stream
from pravega_controller.stream_workflows import StreamWorkflows, stream_intent
from pravega_controller.streams import Segment
from pravega_controller.table_client import NOT_EXISTS
from pravega_controller.transaction_leases import LeaseTimer
from pravega_controller.transaction_outcomes import CHUNK_OUTCOMES_MAX, OutcomeArchive
from pravega_controller.transaction_records import Outcome, TransactionRecord
from pravega_controller.transaction_store import (
    Stored,
    StoredBegunEpoch,
    StoredLine,
    StoredTransaction,
    TransactionStore,
)
from pravega_controller.transactions import (
    TransactionState,
    choose_batch,
    execution_ms_left,
    numbers_in,
    rolled_epochs,
    segment_name,
)
from pravega_controller.watermarks import OldPositionError, OldTimeError, Watermarks

ARCHIVE_SECONDS = 5.0
"""Time, in seconds, for which an outcome stays with the open transactions."""
ABORTS_AT_A_TIME_MAX = 64
HELD_AT_A_TIME_MAX = 500
ARCHIVED_STREAMS_AT_A_TIME_MAX = 16
EXPIRE_AGAIN_SECONDS = 5.0
"""Pause, in seconds, between attempts to end a transaction whose lease has ended."""
CONFLICTS_MAX = 5
"""Maximum number of attempts to make a change that meets another controller's."""
LATE_KIND = "transaction-segments"
"""Kind of the intents to delete the segments of aborted transactions again."""
BEGIN_SECONDS_MAX = 300.0
"""Maximum age of a transaction whose beginning may still be under way: recording it and asking for
its segments are repeated for 30 s each, and the clocks of two machines tell the age."""
_ABORTED_WITH_THEIR_STREAM = (TransactionState.OPEN, TransactionState.ABORTING)
"""States in which transactions are aborted when their stream is sealed or deleted."""

log = structlog.get_logger(__name__)


class TransactionWorkflows:
    """Carries out the decisions about transactions."""

    def __init__(
        self,
        store: MetadataStore,
        segments: SegmentClient,
        streams: StreamWorkflows,
        transactions: TransactionStore,
        archive: OutcomeArchive,
        background: Background,
        watermarks: Watermarks,
        members: Members,
        late: LateSegments,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._watermarks = watermarks
        self.members = members
        self._late = late
        late.register(LATE_KIND, self._delete_late)
        self.instance_id = members.instance_id
        self._store = store
        self._segments = segments
        self._streams = streams
        self._transactions = transactions
        self._archive = archive
        self._background = background
        self._lines = CommitLines(transactions, members)
        self._now_ms = now_ms
        self.registry = TransactionRegistry()
        self.locks = KeyedLocks()
        """Locks by transaction id. A task holds one from a transaction's read to its change."""
        self._archiving = KeyedLocks()
        self.timer: LeaseTimer[Transaction] = LeaseTimer(self._expire)
        streams.set_transactions(self)

    # ---- What others left ------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all transactions, and take over transactions and lines of dead controllers.

        Open transactions get their whole lease again, because nobody could renew them while their
        holder was away. Transactions of other living controllers stay with them.
        """
        # This controller's own transactions are in memory, or will be soon.
        dead: dict[str, bool] = {"": True, self.instance_id: False}
        taken: list[Transaction] = []
        owners: dict[tuple[str, str, str], StreamTransactions] = {}
        committing: dict[tuple[str, str], list[StoredTransaction]] = {}
        async with aclosing(self._transactions.load()) as stored:
            async for found in stored:
                if isinstance(found, StoredLine):
                    self._record_line(found)
                    continue
                if isinstance(found, StoredBegunEpoch):
                    self._record_epoch(found)
                    continue
                record = found.stored.record
                if record.state is TransactionState.COMMITTING:
                    committing.setdefault((found.scope, found.stream), []).append(found)
                    continue
                if record.holder not in dead:
                    dead[record.holder] = await self.members.is_dead(record.holder)
                if not dead[record.holder]:
                    continue
                key = (found.scope, found.stream, record.stream_id)
                if key not in owners:
                    owners[key] = await self._find_owner(*key)
                transaction = self._adopt_found(owners[key], found)
                if transaction is not None:
                    taken.append(transaction)
        for owner in self.registry.all():
            owner.ended = dict(sorted(owner.ended.items(), key=lambda item: item[1].ended_ms))
            self.finish_decided_soon(owner)
            if owner.line.record.waiting and not self._lines.leads(owner):
                self.look_soon(owner)
        self._hold_soon(taken)
        self._line_up_soon(committing)

    def _record_line(self, found: StoredLine) -> None:
        owner = self.registry.of_stream(found.scope, found.stream, found.stream_id)
        if owner.line.version < found.version:
            owner.line.record, owner.line.version = found.record, found.version

    def _record_epoch(self, found: StoredBegunEpoch) -> None:
        """Record the epoch that an earlier version stored, until the stream has a line."""
        owner = self.registry.of(found.scope, found.stream)
        if owner.line.version == NOT_EXISTS:
            owner.line.record = structs.replace(owner.line.record, epoch=found.epoch)

    def take_over_soon(self) -> None:
        """Take over the transactions of a controller that died, in the background."""
        self._background.start(self.load, work="take over transactions")

    async def take_over_one(
        self, scope: str, stream: str, identifier: bytes, stored: Stored
    ) -> Transaction | Stored | TransactionState:
        """Return a transaction that is not in memory; hold it from now on if its holder is dead.

        Returns the stored record if the transaction is open and a living controller holds it.
        Returns only the state if the transaction has ended, is committing, or is being aborted by a
        living controller.
        """
        record = stored.record
        is_abandoned = record.holder == "" or await self.members.is_dead(record.holder)
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            return record.state
        if record.state is TransactionState.COMMITTING:
            if is_abandoned:
                self.look_soon(await self.owner_now(scope, stream))
            return record.state
        if not is_abandoned:
            return stored if record.state is TransactionState.OPEN else record.state
        owner = await self._find_owner(scope, stream, record.stream_id)
        transaction = owner.transactions.get(identifier)
        if transaction is None:
            transaction = self.adopt(owner, identifier, stored)
            self._hold_soon([transaction])
            self.finish_decided_soon(owner)
        return transaction

    def is_certain(self, transaction: Transaction) -> bool:
        """Return whether memory and store agree about a transaction."""
        solitude = self.members.solitude
        return solitude is not None and transaction.certain_in == solitude

    async def check(self, transaction: Transaction) -> None:
        """Read a transaction's record into memory; drop it if another controller holds it."""
        async with self.locks.hold(transaction.identifier):
            if transaction.owner.transactions.get(transaction.identifier) is transaction:
                await self._reload(transaction)

    def _owner_of(self, stream: Stream) -> StreamTransactions:
        return self.registry.of_stream(stream.scope.name, stream.name, stream.stream_id)

    async def _find_owner(self, scope: str, name: str, stream_id: str) -> StreamTransactions:
        """Return the entry in memory to which transactions found in the store belong.

        Records of earlier versions have no stream's id: they belong to the stream that has the name
        now. The entry with this name may be that of a stream which another controller has deleted.
        """
        if stream_id:
            return self.registry.of_record(scope, name, stream_id)
        owner = self.registry.of(scope, name)
        if owner.stream_id:
            with suppress(NotFoundError, CorruptMetadataError):
                owner = await self.owner_now(scope, name)
        return owner

    async def owner_now(self, scope: str, name: str) -> StreamTransactions:
        """Return the entry of the stream that has this name now. Raises ``NotFoundError``."""
        return self._owner_of(await self._store.stream(scope, name))

    def _hold_soon(self, transactions: Sequence[Transaction]) -> None:
        """Record that this controller holds transactions that a dead controller held.

        From then on every write of the other controller to these records fails.
        """
        taken = [t for t in transactions if t.record.holder != self.instance_id]
        if taken:
            self._background.start(
                lambda: for_each(taken, self._hold, limit=HELD_AT_A_TIME_MAX), work="hold"
            )

    async def _hold(self, transaction: Transaction) -> None:
        async with self.locks.hold(transaction.identifier):
            record = transaction.record
            is_here = transaction.owner.transactions.get(transaction.identifier) is transaction
            if is_here and record.holder != self.instance_id:
                try:
                    await self.change(transaction, structs.replace(record, holder=self.instance_id))
                except VersionConflictError:
                    log.info("not held any more", transaction=transaction.identifier.hex())

    def finish_decided_soon(self, owner: StreamTransactions) -> None:
        """Carry out, in the background, the decided ends of a stream's transactions."""
        self.commit_soon(owner)
        if aborting := owner.in_state(TransactionState.ABORTING):
            self.abort_soon(owner, aborting)

    def look_soon(self, owner: StreamTransactions) -> None:
        """Carry out, in the background, the commits of a stream that have no living leader."""
        if owner.is_looking:
            return
        owner.is_looking = True

        async def look() -> None:
            try:
                if not owner.stream_id:
                    found = await self._store.stream(owner.scope, owner.stream)
                    owner.stream_id = found.stream_id
                await self._lines.lead(owner)
                owner.is_looking = False
                self.commit_soon(owner)
            except RETRIED_ERRORS:
                raise
            except Exception:
                owner.is_looking = False
                raise

        self._background.start(
            look, work="look for commits", scope=owner.scope, stream=owner.stream
        )

    def _line_up_soon(self, committing: dict[tuple[str, str], list[StoredTransaction]]) -> None:
        """Add commits that an earlier version recorded without a line to their streams' lines."""

        async def line_up(scope: str, stream: str, found: list[StoredTransaction]) -> None:
            owner = await self.owner_now(scope, stream)
            await self._lines.refresh(owner)
            await self._line_up(owner, found)
            self.commit_soon(owner)

        for (scope, stream), found in committing.items():
            waiting = self.registry.of(scope, stream).line.record.waiting
            left = [one for one in found if one.identifier.hex() not in waiting]
            if left:
                self._background.start(
                    partial(line_up, scope, stream, left), work="line up", scope=scope, name=stream
                )

    async def _line_up(self, owner: StreamTransactions, found: list[StoredTransaction]) -> None:
        """Add commits of one stream to its line, which was read after ``found``."""
        for one in sorted(found, key=lambda one: one.stored.record.order):
            if not one.stored.record.may_belong_to(owner.stream_id):
                continue
            if one.identifier.hex() not in owner.line.record.waiting:
                change = (one.identifier, one.stored.record, one.stored.version)
                # Transactions committed meanwhile have another version.
                with suppress(VersionConflictError):
                    await self._lines.enter(owner, change)

    def _adopt_found(
        self, owner: StreamTransactions, found: StoredTransaction
    ) -> Transaction | None:
        """Load a transaction that no other controller holds into memory.

        Returns it if it is new or has changed, and has not ended.
        """
        record = found.stored.record
        if found.identifier in owner.ended:
            return None
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            owner.record_end(found.identifier, _outcome(found.identifier, record))
            return None
        known = owner.transactions.get(found.identifier)
        if known is not None and known.version == found.stored.version:
            return None
        return self.adopt(owner, found.identifier, found.stored)

    def adopt(self, owner: StreamTransactions, identifier: bytes, stored: Stored) -> Transaction:
        """Load a transaction into memory as it is stored, with a whole lease.

        Other controllers may change its record until the record names this controller. So the copy
        in memory is not certain before.
        """
        record, now = stored.record, trio.current_time()
        left = execution_ms_left(
            record.begin_lease_ms, record.lease_ms, age_ms=self._now_ms() - record.created_ms
        )
        transaction = Transaction(
            owner,
            identifier,
            record,
            stored.version,
            lease_end=now + record.lease_ms / 1000,
            execution_end=now + left / 1000,
            certain_in=None,
        )
        self.watch(transaction)
        return transaction

    def watch(self, transaction: Transaction) -> None:
        """Keep a transaction in memory, and abort it when its lease ends."""
        transaction.owner.add(transaction)
        if transaction.is_running:
            self.timer.add(transaction)

    async def run(self) -> None:
        """Watch leases and archive outcomes; runs forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.timer.run)
            nursery.start_soon(self._archive_rounds)

    # ---- Decisions -------------------------------------------------------------------------------

    async def take_over(
        self, scope: str, name: str, identifier: bytes, stored: Stored
    ) -> Transaction:
        """Take over a transaction that another controller holds, with a whole lease from now on.

        The caller holds its lock. ``stored`` has the new record and the version of the old one.
        Raises ``VersionConflictError`` if the stored record was changed meanwhile.
        """
        owner = await self.owner_now(scope, name)
        solitude = self.members.solitude
        record = structs.replace(stored.record, holder=self.instance_id)
        change = (identifier, record, stored.version)
        (version,) = await self._transactions.write(scope, name, [change])
        transaction = self.adopt(owner, identifier, Stored(record, version))
        transaction.certain_in = solitude
        return transaction

    async def commit(self, scope: str, name: str, identifier: bytes, stored: Stored) -> None:
        """Record the commit of an open transaction and carry it out; the caller holds its lock.

        ``stored`` has the new record and the version of the old one. Raises
        ``VersionConflictError``.
        """
        owner = await self._known_owner(scope, name, identifier)
        solitude = self.members.solitude
        record = structs.replace(stored.record, holder=self.instance_id)
        try:
            version = await self._lines.enter(owner, (identifier, record, stored.version))
        except VersionConflictError:
            if (known := owner.transactions.get(identifier)) is not None:
                await self._reload(known)
            # This commit itself may have changed the transaction, if only its reply was lost.
            self.commit_soon(owner)
            raise
        except ControllerError:
            # The commit may be recorded in spite of the error. Then no other controller carries it
            # out.
            self.look_soon(owner)
            raise
        was_here = identifier in owner.transactions
        if self._lines.leads(owner):
            transaction = self.adopt(owner, identifier, Stored(record, version))
            transaction.certain_in = solitude
            self.commit_soon(owner)
        else:
            owner.drop(identifier)
        if was_here:
            # This comes last, because only now its lease has ended.
            self.timer.count_early_end()

    async def abort(self, scope: str, name: str, identifier: bytes, stored: Stored) -> None:
        """Record the abort of an open transaction, and carry it out; as ``commit``."""
        owner = await self._known_owner(scope, name, identifier)
        transaction = owner.transactions.get(identifier)
        record = structs.replace(stored.record, holder=self.instance_id)
        if transaction is None:
            solitude = self.members.solitude
            change = (identifier, record, stored.version)
            (version,) = await self._transactions.write(scope, name, [change])
            transaction = self.adopt(owner, identifier, Stored(record, version))
            transaction.certain_in = solitude
        else:
            await self.decide(transaction, record)
        # A client knows the transaction, so its begin was answered.
        transaction.is_begun = True
        self.abort_soon(owner, [transaction])

    async def _known_owner(self, scope: str, name: str, identifier: bytes) -> StreamTransactions:
        """Return the entry that has the transaction, else that of the stream with the name now."""
        owner = self.registry.find(scope, name)
        if owner is not None and owner.stream_id and identifier in owner.transactions:
            return owner
        return await self.owner_now(scope, name)

    async def decide(self, transaction: Transaction, record: TransactionRecord) -> None:
        """Record a transaction's decided end; the caller holds its lock.

        Raises ``VersionConflictError`` if another controller has changed the record. The new record
        is then read into memory.
        """
        try:
            await self.change(transaction, record)
        finally:
            if not transaction.is_running:
                self.timer.count_early_end()

    async def change(self, transaction: Transaction, record: TransactionRecord) -> None:
        """Replace a transaction's record; the caller holds its lock. Raises like ``decide``."""
        owner = transaction.owner
        solitude = self.members.solitude
        change = (transaction.identifier, record, transaction.version)
        try:
            (version,) = await self._transactions.write(owner.scope, owner.stream, [change])
        except VersionConflictError:
            await self._reload(transaction)
            raise
        transaction.record, transaction.version = record, version
        transaction.certain_in = solitude

    async def _reload(self, transaction: Transaction) -> None:
        """Read the transaction's record into memory again; the caller holds its lock."""
        owner, identifier = transaction.owner, transaction.identifier
        solitude = self.members.solitude
        stored = await self._transactions.read(owner.scope, owner.stream, identifier)
        if stored is None:
            self._drop(transaction)
            return
        record = stored.record
        if record.state is TransactionState.COMMITTING and not self._lines.leads(owner):
            self._drop(transaction)
            self.look_soon(owner)
            return
        if record.holder not in ("", self.instance_id):
            if not await self.members.is_dead(record.holder):
                # Another controller was asked to renew it, or took this one for dead.
                self._drop(transaction)
                return
            self._hold_soon([transaction])
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            self._record_ends(owner, [(identifier, record)])
            return
        transaction.certain_in = solitude
        if stored.version != transaction.version:
            transaction.record, transaction.version = record, stored.version
            # The controller that changed it may have renewed the lease just before it died.
            lease_end = trio.current_time() + record.lease_ms / 1000
            transaction.lease_end = max(transaction.lease_end, lease_end)
            self.finish_decided_soon(owner)

    def _drop(self, transaction: Transaction) -> None:
        """Remove a transaction from memory; if its lease still runs, another controller watches
        it.
        """
        if transaction.is_running:
            self.timer.count_early_end()
        transaction.owner.drop(transaction.identifier)

    # ---- Commits ---------------------------------------------------------------------------------

    def commit_soon(self, owner: StreamTransactions) -> None:
        """Start to commit the waiting transactions if this controller leads.

        Does nothing if this is already under way.
        """
        if self._lines.leads(owner) and not owner.is_committing:
            owner.is_committing = True
            self._background.start(
                lambda: self._commit_all(owner),
                work="commit",
                scope=owner.scope,
                stream=owner.stream,
            )

    async def _commit_all(self, owner: StreamTransactions) -> None:
        try:
            while self._lines.leads(owner):
                await until_unchanged(lambda: self._commit_next(owner))
        except RETRIED_ERRORS:
            raise
        except Exception:
            owner.is_committing = False
            await self._give_up(owner)
            raise
        # No await has happened since the last check: a commit that comes now starts another task.
        owner.is_committing = False

    async def _give_up(self, owner: StreamTransactions) -> None:
        """Stop leading the commits of a stream; another controller or a later attempt may lead."""
        try:
            await self._lines.give_up(owner)
        except ControllerError as error:
            log.warning(
                "commits not given up",
                scope=owner.scope,
                stream=owner.stream,
                reason=str(error),
            )

    async def _commit_next(self, owner: StreamTransactions) -> None:
        async with self._streams.exclusive(owner.scope, owner.stream):
            try:
                await self._commit_into_known(owner)
            except (StreamNotFoundError, ScopeNotFoundError):
                await self._discard(owner)

    async def _commit_into_known(self, owner: StreamTransactions) -> None:
        """Commit the next batch with the stream's record in memory; raise if the stream is gone."""
        known: Stream | None = None
        try:
            known = await self._streams.settled_as_known(owner.scope, owner.stream)
            if known.stream_id != owner.stream_id:
                # A slow answer may have described an earlier stream of this name.
                known = await self._streams.settled(owner.scope, owner.stream)
            if known.stream_id != owner.stream_id:
                raise StreamNotFoundError(f"stream {owner.scope}/{owner.stream} is gone")
            if self._lines.leads(owner):
                await self._commit_batch(owner, known)
        except (StoreAnswerError, EpochDroppedError) as error:
            # Another controller may have changed the stream since it was last read.
            found = await self._settle_for_another(owner)
            if known is not None and found.version != known.version:
                raise VersionConflictError(f"the stream was changed: {error}") from error
            raise
        except VersionConflictError:
            await self._settle_for_another(owner)
            raise

    async def _settle_for_another(self, owner: StreamTransactions) -> Stream:
        """Finish the stream's pending work, unless another controller has; return the stream."""
        stream = await self._streams.settled(owner.scope, owner.stream)
        self._store.intents.remove(stream_intent(owner.scope, owner.stream))
        return stream

    async def _discard(self, owner: StreamTransactions) -> None:
        """Remove the transactions of a deleted stream: no segments are left to merge them into."""
        log.warning("transactions of no stream", scope=owner.scope, stream=owner.stream)
        begun = [
            StoredTransaction(owner.scope, owner.stream, t.identifier, Stored(t.record, t.version))
            for t in owner.transactions.values()
            if t.record.state in _ABORTED_WITH_THEIR_STREAM
        ]
        await self._abort_all(owner, begun)
        committing = [t.identifier for t in owner.in_state(TransactionState.COMMITTING)]
        waiting = [commit.identifier for commit in owner.line.commits()]
        identifiers = list(dict.fromkeys([*committing, *waiting]))
        await self._transactions.remove(owner.scope, owner.stream, identifiers)
        await self._transactions.remove_line(owner.scope, owner.stream, owner.stream_id)
        owner.line = KnownLine()
        for identifier in identifiers:
            owner.drop(identifier)

    async def _commit_batch(self, owner: StreamTransactions, stream: Stream) -> Stream:
        """Commit the next batch of transactions; the caller holds the stream exclusively."""
        line = owner.line
        batch = choose_batch(line.commits(), begun_epoch=line.record.epoch)
        epoch = batch[0].epoch
        if line.record.epoch != epoch and not await self._lines.begin_epoch(owner, epoch):
            return stream
        identifiers = [commit.identifier for commit in batch]
        transactions = await self._load_committing(owner, identifiers)
        if len(transactions) < len(identifiers):
            # Another controller has committed the missing ones meanwhile: they leave the line.
            there = {transaction.identifier for transaction in transactions}
            absent = [one for one in identifiers if one not in there]
            await self._lines.leave(owner, [], absent=absent)
            return stream
        active = await stream.history.epoch(stream.record.epoch)
        if active.reference != epoch:
            return await self._roll(stream, active, epoch, transactions)
        offsets = await self._merge(stream, stream.active, transactions)
        await self._end(owner, transactions, offsets)
        return stream

    async def _load_committing(
        self, owner: StreamTransactions, identifiers: Sequence[bytes], *, is_known: bool = True
    ) -> list[Transaction]:
        """Return the transactions that are committing; read those that memory does not show so."""
        found: dict[bytes, Transaction] = {}
        if is_known:
            for identifier in identifiers:
                transaction = owner.transactions.get(identifier)
                if transaction and transaction.state is TransactionState.COMMITTING:
                    found[identifier] = transaction
        missing = [identifier for identifier in identifiers if identifier not in found]
        if missing:
            records = await self._transactions.read_all(owner.scope, owner.stream, missing)
            for identifier, stored in zip(missing, records, strict=True):
                if stored is not None and stored.record.state is TransactionState.COMMITTING:
                    found[identifier] = self.adopt(owner, identifier, stored)
                elif stored is not None and self._has_committed(stored.record):
                    # This controller's own write succeeded, but its answer was lost. No other
                    # controller archives the outcome.
                    self._record_ends(owner, [(identifier, stored.record)])
                else:
                    owner.drop(identifier)
        return [found[identifier] for identifier in identifiers if identifier in found]

    def _has_committed(self, record: TransactionRecord) -> bool:
        """Return whether this controller recorded the commit."""
        return record.state is TransactionState.COMMITTED and record.holder == self.instance_id

    async def _merge(
        self, stream: Stream, segments: Iterable[Segment], transactions: Sequence[Transaction]
    ) -> dict[int, list[int]]:
        """Merge transactions into segments; return each segment's length after each transaction."""
        if not transactions:
            return {}
        scope, name = stream.scope.name, stream.name
        batches: dict[str, list[str]] = {}
        identifiers: list[int] = []
        for segment in segments:
            identifiers.append(segment.segment_id)
            batches[stream.segment_name(segment.segment_id)] = [
                segment_name(scope, name, segment.number, t.identifier) for t in transactions
            ]
        merged = await self._segments.merge_segments(batches)
        return dict(zip(identifiers, merged.values(), strict=True))

    async def _end(
        self,
        owner: StreamTransactions,
        transactions: Sequence[Transaction],
        offsets: dict[int, list[int]],
    ) -> None:
        """Record the times of the writers, then that the transactions are committed.

        After a crash both may be repeated; the result is the same.
        """
        await self._record_times(owner, transactions, offsets)
        await self._write_committed(owner, transactions)
        log.debug(
            "transactions committed",
            scope=owner.scope,
            stream=owner.stream,
            transactions=len(transactions),
            segments=len(offsets),
        )

    async def _record_times(
        self,
        owner: StreamTransactions,
        transactions: Sequence[Transaction],
        offsets: dict[int, list[int]],
    ) -> None:
        """Record each writer's latest time, and the end of the stream after that transaction."""
        latest: dict[str, tuple[int, int]] = {}
        for index, transaction in enumerate(transactions):
            record = transaction.record
            if record.writer_id and record.writer_ms is not None:
                known = latest.get(record.writer_id, (record.writer_ms, index))
                latest[record.writer_id] = max(known, (record.writer_ms, index))
        for writer, (time, index) in latest.items():
            position = {segment_id: ends[index] for segment_id, ends in offsets.items()}
            try:
                await self._watermarks.record_mark(
                    owner.scope, owner.stream, writer, time, position
                )
            except (OldTimeError, OldPositionError, InvalidRequestError, NotFoundError) as error:
                log.info("a writer's time is not recorded", writer=writer, reason=str(error))
            except (CorruptMetadataError, StoreAnswerError) as error:
                # An error about a watermark must never delay a commit.
                log.error("a writer's time cannot be recorded", writer=writer, reason=str(error))

    async def _write_committed(
        self, owner: StreamTransactions, transactions: Sequence[Transaction]
    ) -> None:
        left = list(transactions)
        for _ in range(CONFLICTS_MAX):
            ends = [self._end_of(t, TransactionState.COMMITTED) for t in left]
            try:
                await self._lines.leave(owner, ends)
            except VersionConflictError:
                # Another controller, which took this one for dead, has committed some of them.
                identifiers = [transaction.identifier for transaction in left]
                left = await self._load_committing(owner, identifiers, is_known=False)
                if not left:
                    await self._lines.leave(owner, [], absent=identifiers)
                    return
                continue
            self._record_ends(owner, [(identifier, record) for identifier, record, _ in ends])
            return
        raise VersionConflictError("another controller changes the same transactions")

    async def _write_aborted(self, transaction: Transaction) -> None:
        """Write that a transaction is aborted; the caller holds its lock."""
        owner, identifier = transaction.owner, transaction.identifier
        for _ in range(CONFLICTS_MAX):
            if owner.transactions.get(identifier) is not transaction:
                return
            end = self._end_of(transaction, TransactionState.ABORTED)
            try:
                await self._transactions.write(owner.scope, owner.stream, [end])
            except VersionConflictError:
                await self._reload(transaction)
                continue
            self._record_ends(owner, [(identifier, end[1])])
            return
        raise VersionConflictError("another controller changes the same transaction")

    def _end_of(self, transaction: Transaction, state: TransactionState) -> RecordChange:
        """Return the change that records the end of a transaction."""
        record = structs.replace(
            transaction.record,
            state=state,
            ended_ms=self._now_ms(),
            holder=self.instance_id,
            segment_ranges=(),
        )
        return transaction.identifier, record, transaction.version

    def _record_ends(
        self, owner: StreamTransactions, ends: Iterable[tuple[bytes, TransactionRecord]]
    ) -> None:
        for identifier, record in ends:
            owner.record_end(identifier, _outcome(identifier, record))

    # ---- Rolling ---------------------------------------------------------------------------------

    async def _roll(
        self, stream: Stream, active: Epoch, epoch: int, transactions: Sequence[Transaction]
    ) -> Stream:
        """Merge transactions of an earlier epoch; the caller holds the stream exclusively."""
        history = stream.history
        epochs = rolled_epochs(
            await history.segments_in(epoch),
            await history.epoch(epoch),
            stream.active,
            active,
            now_ms=self._now_ms(),
        )
        rolling = Rolling(tuple(transaction.identifier.hex() for transaction in transactions))
        stream = await self._streams.start_roll(stream, rolling, epochs)
        try:
            return await self.finish_roll(stream, rolling)
        except VersionConflictError:
            await self._streams.delete_strays(stream)
            raise

    async def finish_roll(self, stream: Stream, rolling: Rolling) -> Stream:
        """Merge transactions into the first of two new epochs, and make the second one active.

        Both epochs were recorded before: a client that finds an active segment sealed learns its
        successors. The segments of the first new epoch are sealed before the active ones.
        """
        owner = self._owner_of(stream)
        wanted = [bytes.fromhex(digits) for digits in rolling.transactions]
        transactions = await self._load_committing(owner, wanted)
        number = stream.record.epoch + 1
        merged = await stream.history.epoch(number)
        resumed = await stream.history.epoch(number + 1)
        streams = self._streams
        await streams.create_segments([(stream, s) for s in merged.created], is_fixed=True)
        offsets = await self._merge(stream, merged.created, transactions)
        sizes = {resumed.number: await streams.seal_segments(stream, resumed.sealed_ids)}
        await streams.create_segments([(stream, s) for s in resumed.created])
        sizes[merged.number] = await streams.seal_segments(stream, merged.sealed_ids)
        await self._end(owner, transactions, offsets)
        # Other commits may wait behind these, and their leader may have died.
        self.commit_soon(owner)
        return await streams.end_roll(stream, resumed.number, sizes)

    # ---- Aborts ----------------------------------------------------------------------------------

    def abort_soon(self, owner: StreamTransactions, transactions: Sequence[Transaction]) -> None:
        """Carry out, in the background, aborts that are recorded."""
        self._background.start(
            lambda: for_each(transactions, self._finish_abort, limit=ABORTS_AT_A_TIME_MAX),
            work="abort",
            scope=owner.scope,
            stream=owner.stream,
        )

    async def _finish_abort(self, transaction: Transaction) -> None:
        owner = transaction.owner
        async with self.locks.hold(transaction.identifier):
            if (
                transaction.identifier not in owner.transactions
                or transaction.state is not TransactionState.ABORTING
            ):
                return
            try:
                numbers = await self._segment_numbers(transaction)
            except NotFoundError:
                # The stream is gone, or it was created again and does not have this epoch.
                await self._transactions.remove(owner.scope, owner.stream, [transaction.identifier])
                owner.drop(transaction.identifier)
                return
            age_ms = self._now_ms() - transaction.record.created_ms
            if not transaction.is_begun and age_ms < BEGIN_SECONDS_MAX * 1000:
                # Requests to create the segments may still come.
                await self._promise_to_delete(owner, transaction.identifier, numbers)
            await self._delete_segments(owner, transaction.identifier, numbers)
            await self._write_aborted(transaction)

    async def _segment_numbers(self, transaction: Transaction) -> list[int]:
        """Return the numbers of a transaction's segments.

        Raises ``NotFoundError`` if an earlier version recorded the transaction without the numbers,
        and its stream is gone.
        """
        if transaction.record.segment_ranges:
            return numbers_in(transaction.record.segment_ranges)
        owner = transaction.owner
        stream = await self._store.stream(owner.scope, owner.stream)
        return [s.number for s in await stream.history.segments_in(transaction.epoch)]

    async def _delete_segments(
        self, owner: StreamTransactions, identifier: bytes, numbers: Iterable[int]
    ) -> None:
        await self._segments.delete_segments(
            segment_name(owner.scope, owner.stream, number, identifier) for number in numbers
        )

    async def _promise_to_delete(
        self, owner: StreamTransactions, identifier: bytes, numbers: Iterable[int]
    ) -> None:
        """Promise to delete a transaction's segments again, as they may be created late."""
        name = f"{owner.stream}/{identifier.hex()}"
        intent = IntentRecord(LATE_KIND, owner.scope, name, segment_numbers=tuple(numbers))
        await self._late.promise(intent)

    async def _delete_late(self, intent: IntentRecord) -> None:
        """Delete the segments of an aborted transaction, which may have been created late."""
        stream, _, digits = intent.name.partition("/")
        await self._segments.delete_segments(
            segment_name(intent.scope, stream, number, bytes.fromhex(digits))
            for number in intent.segment_numbers
        )

    def _expire(self, transactions: Sequence[Transaction]) -> None:
        """Abort transactions whose leases have ended, each by itself."""

        async def abort(transaction: Transaction) -> None:
            try:
                await self._abort_expired(transaction)
            except Exception as error:
                # An error of one transaction or its stream must not stop the aborts of the others.
                log.warning(
                    "transaction not aborted yet after its lease",
                    scope=transaction.owner.scope,
                    stream=transaction.owner.stream,
                    transaction=transaction.identifier.hex(),
                    reason=str(error),
                )
                self._abort_again(transaction)

        self._background.start(
            lambda: for_each(transactions, abort, limit=ABORTS_AT_A_TIME_MAX),
            work="expire",
        )

    def _abort_again(self, transaction: Transaction) -> None:
        """Repeat a failed abort: by the timer if no end is decided, else in the background."""
        if transaction.is_running:
            again = trio.current_time() + EXPIRE_AGAIN_SECONDS
            transaction.lease_end = max(transaction.lease_end, again)
            self.timer.add(transaction)
        else:
            self.abort_soon(transaction.owner, [transaction])

    async def _abort_expired(self, transaction: Transaction) -> None:
        async with self.locks.hold(transaction.identifier):
            if transaction.is_running and transaction.lease_end > trio.current_time():
                # A ping has renewed the lease.
                self.timer.add(transaction)
                return
            await self._decide_abort(transaction)
        await self._finish_abort(transaction)

    async def _decide_abort(self, transaction: Transaction) -> None:
        """Record an open transaction's abort; the caller holds its lock."""
        if transaction.is_running:
            record = structs.replace(
                transaction.record, state=TransactionState.ABORTING, holder=self.instance_id
            )
            await self.decide(transaction, record)

    # ---- Begins that went wrong ------------------------------------------------------------------

    def undo_begin(self, owner: StreamTransactions, stream: Stream, identifier: bytes) -> None:
        """Abort a transaction whose begin failed, whether or not it was recorded.

        ``stream`` is the stream on which it was begun; the stream may have been deleted since.
        """

        async def undo() -> None:
            try:
                await self._undo_begin(owner, [s.number for s in stream.active], identifier)
            finally:
                # The stream may have been deleted, and removed from memory, since the begin failed.
                self.registry.keep_until_idle(owner)

        self._background.start(undo, work="undo a begin", scope=owner.scope, stream=owner.stream)

    async def _undo_begin(
        self, owner: StreamTransactions, numbers: Sequence[int], identifier: bytes
    ) -> None:
        async with self.locks.hold(identifier):
            stored = await self._transactions.read(owner.scope, owner.stream, identifier)
            if stored is None:
                # The write of the record may arrive later. It must find the key taken.
                stored = await self._forestall(owner, identifier)
            if stored.record.state in (TransactionState.COMMITTING, TransactionState.COMMITTED):
                return
            if stored.record.state is TransactionState.ABORTED:
                # The segments may have been created after they were deleted for the abort.
                await self._delete_segments(owner, identifier, numbers)
                return
            transaction = owner.transactions.get(identifier)
            if transaction is None:
                transaction = self.adopt(owner, identifier, stored)
            await self._decide_abort(transaction)
            if transaction.state is TransactionState.ABORTING:
                await self._promise_to_delete(owner, identifier, numbers)
                await self._delete_segments(owner, identifier, numbers)
                await self._write_aborted(transaction)

    async def _forestall(self, owner: StreamTransactions, identifier: bytes) -> Stored:
        now = self._now_ms()
        record = TransactionRecord(
            TransactionState.ABORTED,
            now,
            0,
            0,
            ended_ms=now,
            holder=self.instance_id,
            stream_id=owner.stream_id,
        )
        (version,) = await self._transactions.write(
            owner.scope, owner.stream, [(identifier, record, NOT_EXISTS)]
        )
        owner.record_end(identifier, _outcome(identifier, record))
        return Stored(record, version)

    # ---- The end of a stream ---------------------------------------------------------------------

    async def end_all(self, stream: Stream) -> Stream:
        """End all transactions before a stream is sealed: abort open ones, finish recorded commits.

        The caller holds the stream exclusively. Returns the stream after the last change.
        """
        owner = self._owner_of(stream)
        await owner.close()
        while True:
            committing: list[StoredTransaction] = []
            aborted: list[StoredTransaction] = []
            async for found in self._load_stream(owner):
                if found.stored.record.state is TransactionState.COMMITTING:
                    committing.append(found)
                elif found.stored.record.state in _ABORTED_WITH_THEIR_STREAM:
                    aborted.append(found)
            if not committing and not aborted:
                return stream
            # Another controller may commit one at the same time: the next round finds it.
            await self._abort_all(owner, aborted)
            if committing:
                # Another leader would wait for this workflow, and this workflow for that leader.
                await self._lines.lead(owner, takes_over=True)
                await self._line_up(owner, committing)
            while self._lines.leads(owner):
                stream = await self._commit_batch(owner, stream)

    async def _abort_all(
        self, owner: StreamTransactions, found: Sequence[StoredTransaction]
    ) -> None:
        """Abort transactions, except those that another controller changes at this moment."""

        async def abort(one: StoredTransaction) -> None:
            with suppress(VersionConflictError):
                async with self.locks.hold(one.identifier):
                    transaction = owner.transactions.get(one.identifier)
                    # The copy in memory may be later than the record that was found.
                    if transaction is None or transaction.version < one.stored.version:
                        transaction = self.adopt(owner, one.identifier, one.stored)
                    await self._decide_abort(transaction)
                await self._finish_abort(transaction)

        await for_each(found, abort, limit=ABORTS_AT_A_TIME_MAX)

    def _load_stream(self, owner: StreamTransactions) -> AsyncIterator[StoredTransaction]:
        return self._transactions.load_stream(owner.scope, owner.stream, owner.stream_id)

    async def outcomes_stored(self, stream: Stream) -> list[Outcome]:
        """Return the outcomes of a stream that no controller has archived yet, oldest first."""
        found = [
            _outcome(one.identifier, one.stored.record)
            async for one in self._load_stream(self._owner_of(stream))
            if one.stored.record.state in (TransactionState.COMMITTED, TransactionState.ABORTED)
        ]
        return sorted(found, key=lambda outcome: outcome.ended_ms)

    async def forget_all(self, stream: Stream) -> None:
        """Remove all records of a deleted stream's transactions.

        All transactions that clients know ended when the stream was sealed. A controller that did
        not know of the seal may have begun others since, and died. They are aborted first.
        """
        scope, name = stream.scope.name, stream.name
        owner = self._owner_of(stream)
        await owner.close()
        async with self._archiving.hold((scope, name)):
            identifiers = list(owner.ended)
            if owner.transactions or self.members.solitude is None:
                # Another controller may have outcomes that it has not archived.
                identifiers += await self._abort_late_begins(owner)
            if identifiers:
                await self._transactions.remove(scope, name, identifiers)
                for identifier in identifiers:
                    owner.ended.pop(identifier, None)
            await self._transactions.remove_line(scope, name, stream.stream_id)
            await self._archive.remove(
                scope, name, may_have_name=partial(self._may_have_name, stream)
            )
            self.registry.forget(owner)

    async def _may_have_name(self, stream: Stream) -> bool:
        """Return whether no other stream has taken the name of a stream.

        This controller may have been stopped while another one deleted the stream, even if it is
        alone by now.
        """
        try:
            found = await self._store.stream(stream.scope.name, stream.name)
        except (NotFoundError, CorruptMetadataError):
            return True
        return found.stream_id == stream.stream_id

    async def _abort_late_begins(self, owner: StreamTransactions) -> list[bytes]:
        """Abort the open transactions; return the ids of all stored ones when each has ended."""
        while True:
            identifiers: list[bytes] = []
            begun: list[StoredTransaction] = []
            async for found in self._load_stream(owner):
                identifiers.append(found.identifier)
                if found.stored.record.state in _ABORTED_WITH_THEIR_STREAM:
                    begun.append(found)
            if not begun:
                return identifiers
            await self._abort_all(owner, begun)

    # ---- The archive -----------------------------------------------------------------------------

    async def _archive_rounds(self) -> None:
        async def archive(owner: StreamTransactions) -> None:
            try:
                await self.archive_ended(owner)
            except Exception as error:
                # An error of one stream's archive must not stop the work on the others.
                log.warning(
                    "outcomes not archived yet",
                    scope=owner.scope,
                    stream=owner.stream,
                    reason=str(error),
                )

        while True:
            await trio.sleep(ARCHIVE_SECONDS)
            owners = [owner for owner in self.registry.all() if owner.ended]
            await for_each(owners, archive, limit=ARCHIVED_STREAMS_AT_A_TIME_MAX)
            self.registry.forget_idle()

    async def archive_ended(self, owner: StreamTransactions) -> None:
        """Move a stream's outcomes to the archive, and remove old outcomes from it.

        Outcomes of a stream that another controller has deleted are dropped.
        """
        scope, stream = owner.scope, owner.stream
        async with self._archiving.hold((scope, stream)):
            while owner.ended:
                moved = list(owner.ended.items())[:CHUNK_OUTCOMES_MAX]
                # The order matters: if another controller deletes the stream after this check, the
                # archive has another version, and the addition fails.
                version = await self._archive.open(scope, stream)
                exists = await self._exists(owner)
                if exists:
                    outcomes = [outcome for _, outcome in moved]
                    await self._archive.add(scope, stream, outcomes, version=version)
                else:
                    await self._archive.close(scope, stream, version)
                await self._transactions.remove(scope, stream, [i for i, _ in moved])
                for identifier, _ in moved:
                    del owner.ended[identifier]
                if exists:
                    await self._archive.drop_old(scope, stream, now_ms=self._now_ms())

    async def _exists(self, owner: StreamTransactions) -> bool:
        """Return whether this stream, and not only another one of its name, still exists."""
        try:
            stream = await self._store.stream(owner.scope, owner.stream)
        except NotFoundError:
            return False
        is_deleted = isinstance(stream.record.pending, Delete)
        return owner.stream_id in ("", stream.stream_id) and not is_deleted


def _outcome(identifier: bytes, record: TransactionRecord) -> Outcome:
    is_committed = record.state is TransactionState.COMMITTED
    return Outcome(identifier.hex(), is_committed, record.ended_ms)
