"""What happens to a transaction once its end is decided: commits in batches, aborts, the archive.

Owns: the steps that take a transaction from COMMITTING to COMMITTED and from ABORTING to ABORTED.

    OPEN -> COMMITTING -> merged in every segment                     -> COMMITTED -> archived
         -> ABORTING   -> its segments deleted                        -> ABORTED   -> archived

A decision is recorded before anything is done about it, and every step after it may be repeated. A
controller that was killed reads all transactions at its next start and goes on with those whose end
is decided.

Invariants:
1. A controller merges one batch of a stream at a time, under the lock that also orders its other
   workflows on the stream: a batch never meets a scale, a truncation or an update of the same
   controller halfway. The lock is fair.
2. A batch is complete in every segment before the same controller begins the next, also across a
   restart: the epoch of a batch is recorded before it unless it was the last one's too, and within
   an epoch the order of the commits decides. Two controllers do not wait for each other: in each
   segment a transaction is in one piece, but two that were committed through different controllers
   may come in one order in one segment and in the other order in another.
3. Transactions of an epoch that repeats no other than the active one's are merged where they stand.
   For any other, the stream is rolled: it gets an epoch that repeats theirs, and one that repeats
   the active one. What is being rolled is a member of the stream's record.
4. A stream is sealed only when none of its transactions is without an end.
5. Each transaction is held by one controller, which its record names. Another takes it over when
   that one has died, by a conditional write. A controller that learns that it was taken for dead
   answers for what it held then only after a look at the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import structlog
import trio
from msgspec import structs

from pravega_controller.background import RETRIED_ERRORS, Background
from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    NotFoundError,
    SegmentStoreError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.history import Epoch
from pravega_controller.locks import KeyedLocks
from pravega_controller.members import Members
from pravega_controller.open_transactions import (
    StreamTransactions,
    Transaction,
    TransactionRegistry,
)
from pravega_controller.records import Delete, Rolling
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import MetadataStore, Stream
from pravega_controller.stream_workflows import StreamWorkflows
from pravega_controller.streams import Segment
from pravega_controller.table_client import NOT_EXISTS
from pravega_controller.transaction_leases import LeaseTimer
from pravega_controller.transaction_outcomes import CHUNK_OUTCOMES_MAX, OutcomeArchive
from pravega_controller.transaction_records import Outcome, TransactionRecord
from pravega_controller.transaction_store import (
    Stored,
    StoredBegunEpoch,
    StoredTransaction,
    TransactionStore,
)
from pravega_controller.transactions import (
    TransactionState,
    choose_batch,
    execution_ms_left,
    rolled_epochs,
    segment_name,
)
from pravega_controller.watermarks import OldPositionError, OldTimeError, Watermarks

ARCHIVE_SECONDS = 5.0
"""How long an outcome stays with the open transactions."""
ABORTS_AT_A_TIME_MAX = 64
HELD_AT_A_TIME_MAX = 500
ARCHIVED_STREAMS_AT_A_TIME_MAX = 16
EXPIRE_AGAIN_SECONDS = 5.0
"""How long after a failure a transaction whose lease has ended is tried again."""
CONFLICTS_MAX = 3
"""How often a change is tried again that met another controller's."""

log = structlog.get_logger(__name__)


class TransactionWorkflows:
    """Carries out what was decided about transactions."""

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
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._watermarks = watermarks
        self._members = members
        self.instance_id = members.instance_id
        self._store = store
        self._segments = segments
        self._streams = streams
        self._transactions = transactions
        self._archive = archive
        self._background = background
        self._now_ms = now_ms
        self.registry = TransactionRegistry()
        self.locks = KeyedLocks()
        """Held, by a transaction's id, from looking at the transaction to having changed it."""
        self._archiving = KeyedLocks()
        self.timer: LeaseTimer[Transaction] = LeaseTimer(self._expire)
        streams.take_transactions(self)

    # ---- The controller's start ------------------------------------------------------------------

    async def load(self) -> None:
        """Read all transactions, and go on with those whose end is decided.

        Open ones get their whole lease again: nobody could renew it while the controller was away.
        Those that another living controller holds stay with it.
        """
        # What this controller itself holds is in memory, or about to be.
        dead: dict[str, bool] = {"": True, self.instance_id: False}
        taken: list[Transaction] = []
        owners: dict[tuple[str, str], StreamTransactions] = {}
        begun: list[StoredBegunEpoch] = []
        async for found in self._transactions.load():
            if isinstance(found, StoredBegunEpoch):
                begun.append(found)
                continue
            holder = found.stored.record.holder
            if holder not in dead:
                dead[holder] = await self._members.is_dead(holder)
            if not dead[holder]:
                continue
            name = (found.scope, found.stream)
            if name not in owners:
                owners[name] = await self._find_owner(*name)
            owner = owners[name]
            if found.identifier not in owner.transactions and found.identifier not in owner.ended:
                transaction = self._take_up(owner, found)
                if transaction is not None:
                    taken.append(transaction)
        for one in begun:
            self.registry.of(one.scope, one.stream).begun_epoch = one.epoch
        for owner in self.registry.all():
            owner.ended = dict(sorted(owner.ended.items(), key=lambda item: item[1].ended_ms))
            self.go_on_soon(owner)
        self._hold_soon(taken)

    def take_over_soon(self) -> None:
        """Take over what a controller held that has died."""
        self._background.start(self.load, work="take over transactions")

    async def take_over_one(
        self, scope: str, stream: str, identifier: bytes, stored: Stored
    ) -> Transaction | TransactionState:
        """A transaction that is not known here: held from now on if its holder is dead."""
        holder, state = stored.record.holder, stored.record.state
        if state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            return state
        if holder not in ("", self.instance_id) and not await self._members.is_dead(holder):
            return state
        owner = await self._find_owner(scope, stream)
        transaction = owner.transactions.get(identifier)
        if transaction is None:
            transaction = self.adopt(owner, identifier, stored)
            self._hold_soon([transaction])
            self.go_on_soon(owner)
        return transaction

    def doubt_all(self) -> None:
        """Read what this controller holds again: it was taken for dead, and others may hold it now.

        As the one that took it for dead may be slow, each transaction is doubted until it ends.
        """
        held = [t for owner in self.registry.all() for t in owner.transactions.values()]
        for transaction in held:
            transaction.is_doubted = True

        async def check(transaction: Transaction) -> None:
            try:
                await self.check(transaction)
            except CorruptMetadataError as error:
                digits = transaction.identifier.hex()
                log.error("a transaction is damaged", transaction=digits, reason=str(error))

        self._background.start(
            lambda: for_each(held, check, limit=HELD_AT_A_TIME_MAX), work="read transactions again"
        )

    async def check(self, transaction: Transaction) -> None:
        """Make memory what is stored of a transaction; drop it if another controller holds it."""
        async with self.locks.hold(transaction.identifier):
            if transaction.owner.transactions.get(transaction.identifier) is transaction:
                await self._reload(transaction)

    def _owner_of(self, stream: Stream) -> StreamTransactions:
        return self.registry.of_stream(stream.scope.name, stream.name, stream.stream_id)

    async def _find_owner(self, scope: str, name: str) -> StreamTransactions:
        """Where transactions found in the store belong: to the stream that has the name now.

        What is known by the name may be of a stream that another controller has deleted.
        """
        owner = self.registry.of(scope, name)
        if owner.stream_id:
            with suppress(NotFoundError, CorruptMetadataError):
                stream = await self._store.stream(scope, name)
                owner = self.registry.of_stream(scope, name, stream.stream_id)
        return owner

    def _hold_soon(self, transactions: Sequence[Transaction]) -> None:
        """Write down that this controller holds transactions which a dead one held.

        From then on nothing succeeds that the other may still write about them.
        """
        taken = [t for t in transactions if t.record.holder != self.instance_id]
        if taken:
            self._background.start(
                lambda: for_each(taken, self._hold, limit=HELD_AT_A_TIME_MAX), work="hold"
            )

    async def _hold(self, transaction: Transaction) -> None:
        async with self.locks.hold(transaction.identifier):
            record = transaction.record
            is_here = transaction.identifier in transaction.owner.transactions
            if is_here and record.holder != self.instance_id:
                try:
                    await self.change(transaction, structs.replace(record, holder=self.instance_id))
                except VersionConflictError:
                    log.info("not held any more", transaction=transaction.identifier.hex())

    def go_on_soon(self, owner: StreamTransactions) -> None:
        """Carry out what is decided about a stream's transactions."""
        self.commit_soon(owner)
        if aborting := owner.in_state(TransactionState.ABORTING):
            self.abort_soon(owner, aborting)

    def _take_up(self, owner: StreamTransactions, found: StoredTransaction) -> Transaction | None:
        """Take a transaction into memory; returns it if it has no end."""
        record = found.stored.record
        if record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            owner.note_end(found.identifier, _outcome(found.identifier, record))
            return None
        return self.adopt(owner, found.identifier, found.stored)

    def adopt(self, owner: StreamTransactions, identifier: bytes, stored: Stored) -> Transaction:
        """Take a transaction into memory as it is stored, with a whole lease."""
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
        )
        self.watch(transaction)
        return transaction

    def watch(self, transaction: Transaction) -> None:
        """Keep a transaction in memory, and end it with its lease."""
        transaction.owner.note(transaction)
        if transaction.is_running:
            self.timer.add(transaction)

    async def run(self) -> None:
        """Watch leases and archive outcomes, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.timer.run)
            nursery.start_soon(self._archive_rounds)

    # ---- Decisions -------------------------------------------------------------------------------

    async def decide(self, transaction: Transaction, record: TransactionRecord) -> None:
        """Record a transaction's decided end, for whoever holds its lock.

        ``VersionConflictError`` if another controller has changed it; memory then is as stored.
        """
        try:
            await self.change(transaction, record)
        finally:
            if not transaction.is_running:
                self.timer.note_end()

    async def change(self, transaction: Transaction, record: TransactionRecord) -> None:
        """Replace a transaction's record, for whoever holds its lock. As ``decide``."""
        owner = transaction.owner
        change = (transaction.identifier, record, transaction.version)
        try:
            (version,) = await self._transactions.write(owner.scope, owner.stream, [change])
        except VersionConflictError:
            await self._reload(transaction)
            raise
        transaction.record, transaction.version = record, version
        owner.note(transaction)

    async def _reload(self, transaction: Transaction) -> None:
        """Make memory what is stored, after another controller has changed it."""
        owner = transaction.owner
        stored = await self._transactions.read(owner.scope, owner.stream, transaction.identifier)
        if stored is None or stored.record.holder not in ("", self.instance_id):
            # Gone, or taken over by a controller that took this one for dead.
            owner.drop(transaction.identifier)
        elif stored.record.state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            self._note_ends(owner, [(transaction.identifier, stored.record)])
        elif stored.version != transaction.version:
            transaction.record, transaction.version = stored.record, stored.version
            owner.note(transaction)
            self.go_on_soon(owner)

    # ---- Commits ---------------------------------------------------------------------------------

    def commit_soon(self, owner: StreamTransactions) -> None:
        """Commit what is to be committed; does nothing if that is under way."""
        if owner.committing and not owner.is_committing:
            owner.is_committing = True
            self._background.start(
                lambda: self._commit_all(owner),
                work="commit",
                scope=owner.scope,
                stream=owner.stream,
            )

    async def _commit_all(self, owner: StreamTransactions) -> None:
        try:
            while owner.committing:
                await self._commit_next(owner)
        except RETRIED_ERRORS:
            raise
        except Exception:
            owner.is_committing = False
            raise
        # Without an await since the last look: a commit that comes now begins another task.
        owner.is_committing = False

    async def _commit_next(self, owner: StreamTransactions) -> None:
        async with self._streams.exclusive(owner.scope, owner.stream):
            try:
                stream = await self._streams.settled_as_known(owner.scope, owner.stream)
                if owner.committing:
                    await self._commit_batch(owner, stream)
            except StreamNotFoundError:
                await self._discard(owner)
            except (SegmentStoreError, VersionConflictError):
                # Another controller may have changed the stream since it was last read.
                await self._streams.settled(owner.scope, owner.stream)
                raise

    async def _discard(self, owner: StreamTransactions) -> None:
        """Drop the transactions of a stream that is gone: there is nothing to merge them into."""
        log.warning("transactions of no stream", scope=owner.scope, stream=owner.stream)
        identifiers = list(owner.transactions)
        await self._transactions.remove(owner.scope, owner.stream, identifiers)
        for identifier in identifiers:
            owner.drop(identifier)

    async def _commit_batch(self, owner: StreamTransactions, stream: Stream) -> Stream:
        """Commit the transactions that are next, for whoever holds the stream exclusively."""
        batch = choose_batch(owner.commits(), begun_epoch=owner.begun_epoch)
        epoch = batch[0].epoch
        if owner.begun_epoch != epoch:
            await self._transactions.write_begun_epoch(owner.scope, owner.stream, epoch)
            owner.begun_epoch = epoch
        transactions = [owner.committing[commit.identifier] for commit in batch]
        active = await stream.history.epoch(stream.record.epoch)
        if active.reference != epoch:
            return await self._roll(stream, active, epoch, transactions)
        offsets = await self._merge(stream, stream.active, transactions)
        await self._end(owner, transactions, offsets)
        return stream

    async def _merge(
        self, stream: Stream, segments: Iterable[Segment], transactions: Sequence[Transaction]
    ) -> dict[int, list[int]]:
        """Merge transactions into segments; returns where each ended after each transaction."""
        offsets: dict[int, list[int]] = {}
        if not transactions:
            return offsets

        async def merge(segment: Segment) -> None:
            offsets[segment.segment_id] = await self._segments.merge_segments(
                stream.segment_name(segment.segment_id),
                [
                    segment_name(stream.scope.name, stream.name, segment.number, t.identifier)
                    for t in transactions
                ],
            )

        await for_each(segments, merge)
        return offsets

    async def _end(
        self,
        owner: StreamTransactions,
        transactions: Sequence[Transaction],
        offsets: dict[int, list[int]],
    ) -> None:
        """Record that transactions are committed, and before that what their writers say of time:
        done again after a crash, it means the same."""
        await self._note_times(owner, transactions, offsets)
        await self._write_ends(owner, transactions, TransactionState.COMMITTED)
        log.debug(
            "transactions committed",
            scope=owner.scope,
            stream=owner.stream,
            transactions=len(transactions),
            segments=len(offsets),
        )

    async def _note_times(
        self,
        owner: StreamTransactions,
        transactions: Sequence[Transaction],
        offsets: dict[int, list[int]],
    ) -> None:
        """Note each writer's latest time, and where the stream ends after that transaction."""
        latest: dict[str, tuple[int, int]] = {}
        for index, transaction in enumerate(transactions):
            record = transaction.record
            if record.writer_id and record.writer_ms is not None:
                known = latest.get(record.writer_id, (record.writer_ms, index))
                latest[record.writer_id] = max(known, (record.writer_ms, index))
        for writer, (time, index) in latest.items():
            position = {segment_id: ends[index] for segment_id, ends in offsets.items()}
            try:
                await self._watermarks.note(owner.scope, owner.stream, writer, time, position)
            except (OldTimeError, OldPositionError, InvalidRequestError, NotFoundError) as error:
                log.info("a writer's time is not noted", writer=writer, reason=str(error))
            except (CorruptMetadataError, SegmentStoreError) as error:
                # A watermark must never hold back a commit.
                log.error("a writer's time cannot be noted", writer=writer, reason=str(error))

    async def _write_ends(
        self,
        owner: StreamTransactions,
        transactions: Sequence[Transaction],
        state: TransactionState,
    ) -> None:
        now = self._now_ms()
        for _ in range(CONFLICTS_MAX):
            left = [t for t in transactions if t.identifier in owner.transactions]
            if not left:
                return
            ends = [
                (t.identifier, structs.replace(t.record, state=state, ended_ms=now), t.version)
                for t in left
            ]
            try:
                await self._transactions.write(owner.scope, owner.stream, ends)
            except VersionConflictError:
                for transaction in left:
                    await self._reload(transaction)
                continue
            self._note_ends(owner, [(identifier, record) for identifier, record, _ in ends])
            return
        raise VersionConflictError("another controller changes the same transactions")

    def _note_ends(
        self, owner: StreamTransactions, ends: Iterable[tuple[bytes, TransactionRecord]]
    ) -> None:
        for identifier, record in ends:
            owner.note_end(identifier, _outcome(identifier, record))

    # ---- Rolling ---------------------------------------------------------------------------------

    async def _roll(
        self, stream: Stream, active: Epoch, epoch: int, transactions: Sequence[Transaction]
    ) -> Stream:
        """Take in transactions of an earlier epoch, for whoever holds the stream exclusively."""
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
        return await self.finish_roll(stream, rolling)

    async def finish_roll(self, stream: Stream, rolling: Rolling) -> Stream:
        """Merge transactions into the first of two new epochs, and go on with the second.

        Both were recorded before, so that whoever finds an active segment sealed is told where to
        go on. What the first epoch has is sealed before the active segments are.
        """
        owner = self._owner_of(stream)
        wanted = [bytes.fromhex(digits) for digits in rolling.transactions]
        await self._load_missing(owner, wanted)
        transactions = [owner.transactions[i] for i in wanted if i in owner.transactions]
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
        return await streams.end_roll(stream, resumed.number, sizes)

    async def _load_missing(self, owner: StreamTransactions, wanted: Sequence[bytes]) -> None:
        """Take up what another controller began to roll, before it is looked for.

        What is taken over from a dead controller may not be loaded yet.
        """
        for identifier in wanted:
            if not owner.knows(identifier):
                stored = await self._transactions.read(owner.scope, owner.stream, identifier)
                if stored is not None and not owner.knows(identifier):
                    found = StoredTransaction(owner.scope, owner.stream, identifier, stored)
                    self._take_up(owner, found)

    # ---- Aborts ----------------------------------------------------------------------------------

    def abort_soon(self, owner: StreamTransactions, transactions: Sequence[Transaction]) -> None:
        """Carry out aborts that are recorded."""
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
                stream = await self._store.stream(owner.scope, owner.stream)
                segments = await stream.history.segments_in(transaction.epoch)
            except NotFoundError:
                # There is no such stream any more, or it was created anew and has no such epoch.
                await self._transactions.remove(owner.scope, owner.stream, [transaction.identifier])
                owner.drop(transaction.identifier)
                return
            await self._delete_segments(stream, segments, transaction)
            await self._write_ends(owner, [transaction], TransactionState.ABORTED)

    async def _delete_segments(
        self, stream: Stream, segments: Iterable[Segment], transaction: Transaction
    ) -> None:
        async def delete(segment: Segment) -> None:
            await self._segments.delete_segment(
                segment_name(stream.scope.name, stream.name, segment.number, transaction.identifier)
            )

        await for_each(segments, delete)

    def _expire(self, transactions: Sequence[Transaction]) -> None:
        """Abort transactions whose leases have ended, each by itself."""

        async def abort(transaction: Transaction) -> None:
            try:
                await self._abort_expired(transaction)
            except Exception as error:
                # Whatever is wrong with one transaction or its stream, the others are aborted.
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
        """Repeat what failed: by the timer what is undecided, in the background what is decided."""
        if transaction.is_running:
            again = trio.current_time() + EXPIRE_AGAIN_SECONDS
            transaction.lease_end = max(transaction.lease_end, again)
            self.timer.add(transaction)
        else:
            self.abort_soon(transaction.owner, [transaction])

    async def _abort_expired(self, transaction: Transaction) -> None:
        async with self.locks.hold(transaction.identifier):
            if transaction.is_running and transaction.lease_end > trio.current_time():
                # A ping came first.
                self.timer.add(transaction)
                return
            await self._decide_abort(transaction)
        await self._finish_abort(transaction)

    async def _decide_abort(self, transaction: Transaction) -> None:
        """Record an open transaction's abort, for whoever holds its lock."""
        is_here = transaction.owner.transactions.get(transaction.identifier) is transaction
        if is_here and transaction.is_running:
            record = structs.replace(transaction.record, state=TransactionState.ABORTING)
            await self.decide(transaction, record)

    # ---- Begins that went wrong ------------------------------------------------------------------

    def undo_begin(self, owner: StreamTransactions, stream: Stream, identifier: bytes) -> None:
        """Abort a transaction that nobody was told of, whether or not it was recorded.

        ``stream`` is what it was begun on, which may have been deleted since.
        """
        self._background.start(
            lambda: self._undo_begin(owner, stream, identifier),
            work="undo a begin",
            scope=owner.scope,
            stream=owner.stream,
        )

    async def _undo_begin(
        self, owner: StreamTransactions, stream: Stream, identifier: bytes
    ) -> None:
        async with self.locks.hold(identifier):
            stored = await self._transactions.read(owner.scope, owner.stream, identifier)
            if stored is None:
                # The write may still be on its way: it finds the key taken then.
                stored = await self._forestall(owner, identifier)
            if stored.record.state not in (TransactionState.OPEN, TransactionState.ABORTING):
                return
            transaction = owner.transactions.get(identifier)
            if transaction is None:
                transaction = self.adopt(owner, identifier, stored)
            await self._decide_abort(transaction)
            if transaction.state is TransactionState.ABORTING:
                await self._delete_segments(stream, stream.active, transaction)
                await self._write_ends(owner, [transaction], TransactionState.ABORTED)

    async def _forestall(self, owner: StreamTransactions, identifier: bytes) -> Stored:
        now = self._now_ms()
        record = TransactionRecord(TransactionState.ABORTED, now, 0, 0, ended_ms=now)
        (version,) = await self._transactions.write(
            owner.scope, owner.stream, [(identifier, record, NOT_EXISTS)]
        )
        owner.note_end(identifier, _outcome(identifier, record))
        return Stored(record, version)

    # ---- The end of a stream ---------------------------------------------------------------------

    async def end_all(self, stream: Stream) -> Stream:
        """Abort every open transaction and commit those that are to be, before a stream is sealed.

        For whoever holds the stream exclusively; returns it as it is then.
        """
        owner = self._owner_of(stream)
        await owner.close()

        async def abort(transaction: Transaction) -> None:
            # Another controller that decides otherwise at this moment is found by the next look.
            with suppress(VersionConflictError):
                async with self.locks.hold(transaction.identifier):
                    await self._decide_abort(transaction)
                await self._finish_abort(transaction)

        while True:
            async for found in self._transactions.load_stream(owner.scope, owner.stream):
                if not owner.knows(found.identifier):
                    self._take_up(owner, found)
            if not owner.transactions:
                return stream
            pending = list(owner.transactions.values())
            await for_each(pending, abort, limit=ABORTS_AT_A_TIME_MAX)
            while owner.committing:
                stream = await self._commit_batch(owner, stream)

    async def forget_all(self, stream: Stream) -> None:
        """Remove what is stored of a stream's transactions, all of which have ended."""
        scope, name = stream.scope.name, stream.name
        async with self._archiving.hold((scope, name)):
            owner = self._owner_of(stream)
            identifiers = [*owner.ended, *owner.transactions]
            if identifiers:
                await self._transactions.remove(scope, name, identifiers)
            await self._transactions.remove_begun_epoch(scope, name)
            await self._archive.remove(scope, name)
            self.registry.forget(owner)

    # ---- The archive -----------------------------------------------------------------------------

    async def _archive_rounds(self) -> None:
        async def archive(owner: StreamTransactions) -> None:
            try:
                await self.archive_ended(owner)
            except Exception as error:
                # Whatever is wrong with one stream's archive, the others are to be kept in order.
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
        """Move a stream's outcomes to the archive, and drop from it what is old enough.

        Outcomes of a stream that another controller has deleted are dropped.
        """
        scope, stream = owner.scope, owner.stream
        async with self._archiving.hold((scope, stream)):
            while owner.ended:
                moved = list(owner.ended.items())[:CHUNK_OUTCOMES_MAX]
                exists = await self._exists(owner)
                if exists:
                    await self._archive.add(scope, stream, [outcome for _, outcome in moved])
                await self._transactions.remove(scope, stream, [i for i, _ in moved])
                for identifier, _ in moved:
                    del owner.ended[identifier]
                if exists:
                    await self._archive.drop_old(scope, stream, now_ms=self._now_ms())

    async def _exists(self, owner: StreamTransactions) -> bool:
        """Whether there is the stream still, and not only another one of its name."""
        try:
            stream = await self._store.stream(owner.scope, owner.stream)
        except NotFoundError:
            return False
        is_deleted = isinstance(stream.record.pending, Delete)
        return owner.stream_id in ("", stream.stream_id) and not is_deleted


def _outcome(identifier: bytes, record: TransactionRecord) -> Outcome:
    is_committed = record.state is TransactionState.COMMITTED
    return Outcome(identifier.hex(), is_committed, record.ended_ms)
