"""Commits the transactions of a batch, exactly once, even if a query repeats the batch.

Owns: ``Committer``, and the rules by which a batch that comes again is told from a new one.

The end of a batch, on the driver:

    every task has flushed its transaction  >  the batch is recorded  >  its transactions commit

A query that crashed repeats its last batch, with new transactions. If the batch was recorded, the
recorded transactions are committed, and the new ones aborted. Otherwise nothing of the first
attempt was committed, and its transactions end with their leases. Recorded transactions that ended
with their leases are replaced by new ones, which are recorded first.

A batch is known only if it is provably the one that was recorded: of the same query by Spark's id,
which a new checkpoint changes and a moved one keeps, with the same number, by the same plan, and in
the same stream. Where this process cannot read the plan, an equal number of rows stands for it. The
number of a segment is never used again, so no epoch of a stream that was deleted and made again has
a segment of the earlier one.

| the record | the batch that comes |
| --- | --- |
| of the batch | is known |
| of its number, by another plan | is new: the checkpoint was replaced by an older copy |
| of its number, without plans, of other rows | is refused: a person decides |
| of an earlier batch, or of another stream | is new |
| of a later batch | is new, unless the checkpoint has that one: then the program is refused, |
| | since another one has overtaken it |

Invariants:
1. When a query crashes and repeats a batch, the rows of each task are in the stream once: of two
   transactions of one task, one at most is committed.
   Held by ``test_a_batch_that_was_recorded_is_finished_by_its_repetition``.
2. When some recorded transactions are committed and others have ended, only those that have ended
   are replaced. Held by ``test_beside_committed_transactions_only_those_that_ended_are_replaced``.
3. When checkpoints are removed, moved, copied back or used by two programs, and streams are made
   again, no batch is dropped that is not in the stream, and no batch is in it twice.
   Held by ``test_the_sink_agrees_with_the_model``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pravega_spark.commit_log import BatchRecord, BatchState, CommitLog, query_key
from pravega_spark.options import Options
from pravega_wire.commands import NOT_EXISTS
from pravega_wire.names import segment_epoch
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import (
    EarlierStreamError,
    NotFoundError,
    PositionGoneError,
    PravegaError,
    RefusedError,
)

COMMIT_SECONDS_MAX = 300.0
RUNS_KEPT = 8
"""Maximum number of runs that a record names, so that a program of one of them is known when
another has continued its query."""
_COMMITTED = ("committing", "committed")
_ENDED = ("aborting", "aborted")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a batch: what names the batch, and what the tasks wrote."""

    query: str
    """Spark's id of the query; "" for a write that ``query_id`` alone names."""
    batch: int
    transactions: dict[int, bytes]
    row_count: int
    segments: frozenset[int] = frozenset()
    plan: str = ""
    run: str = ""
    is_overtaken: Callable[[], bool] = bool
    """Returns whether the checkpoint shows that another program ended this batch."""

    def state(self) -> BatchState:
        """Return what is recorded of the batch if it is new."""
        return BatchState(
            self.transactions,
            batch=self.batch,
            plan=self.plan,
            row_count=self.row_count,
            segments=self.segments,
        )


class Committer:
    """Commits transactions of one stream, and waits until they are committed."""

    def __init__(self, options: Options, controller: ControllerClient) -> None:
        self._options = options
        self._controller = controller

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Commit all transactions.

        The leases of all are renewed first, so that none ends before the last one is committed. If
        one has ended before that, nothing is committed, and ``RefusedError`` names it.
        """
        lost = [ident for ident in transactions if not self._renew(ident)]
        if not lost:
            lost = [ident for ident in transactions if not self._commit_one(ident)]
        if lost:
            names = ", ".join(ident.hex() for ident in lost)
            raise RefusedError(
                f"{len(lost)} of {len(transactions)} transactions of {self._options.name} ended"
                f" before they could be committed ({names}): set transaction_timeout_ms higher, or"
                " give the slow stage more tasks"
            )
        self._wait(transactions)

    def commit_recorded(self, log: CommitLog, attempt: Attempt) -> None:
        """Commit a batch exactly once, even if earlier attempts have recorded or committed it.

        The module's head has the steps.
        """
        kind = "query" if attempt.query else "write"
        key = query_key(kind, attempt.query, self._options.query_id, self._options.name)
        record = log.read(key)
        known = None if record is None else self._find_known(record.state, attempt)
        state = attempt.state()
        if known is not None:
            chosen = known.transactions
            if not known.is_done and chosen != attempt.transactions:
                chosen = self._choose(chosen, attempt.transactions)
            state = replace(
                state,
                transactions=chosen,
                is_done=known.is_done,
                row_count=known.row_count,
                segments=known.segments | attempt.segments,
            )
        state = self._record_and_commit(log, key, record, state, attempt)
        if known is not None and known.is_done:
            self._tell(
                f"batch {attempt.batch} of query {attempt.query or self._options.query_id} is in"
                f" {self._options.name} already, so its {attempt.row_count} rows are not written"
                " again"
            )
        for ident in set(attempt.transactions.values()) - set(state.transactions.values()):
            self._controller.abort_transaction(self._options.scope, self._options.stream, ident)

    def _record_and_commit(
        self,
        log: CommitLog,
        key: bytes,
        record: BatchRecord | None,
        state: BatchState,
        attempt: Attempt,
    ) -> BatchState:
        """Replace the record of an earlier attempt or batch, and commit what it names."""
        runs = record.state.runs if record is not None else ()
        if attempt.run:
            runs = (*(run for run in runs if run != attempt.run), attempt.run)[-RUNS_KEPT:]
        state = replace(state, runs=runs)
        if record is None or record.state != state:
            version = NOT_EXISTS if record is None else record.version
            record = log.write(key, state, version=version)
            if record is None:
                raise self._two_programs(attempt)
        if not state.is_done:
            self.commit(list(state.transactions.values()))
            log.write(key, replace(state, is_done=True), version=record.version)
        return state

    # ---- What is known of a batch ----------------------------------------------------------------

    def _find_known(self, state: BatchState, attempt: Attempt) -> BatchState | None:
        """Return the state if it is provably of the batch that comes; None for a new batch."""
        if attempt.run in state.runs[:-1]:
            raise self._two_programs(attempt)
        if state.batch != attempt.batch:
            if state.batch > attempt.batch:
                if attempt.is_overtaken():
                    raise self._two_programs(attempt)
                self._tell_older(state, attempt)
            return None
        if not self._is_of_this_stream(state, attempt):
            return None
        if state.plan and attempt.plan:
            if state.plan == attempt.plan:
                return state
            if attempt.query:
                self._tell_older(state, attempt)
                return None
        elif state.row_count == attempt.row_count:
            return state
        raise self._cannot_tell(state, attempt)

    def _is_of_this_stream(self, state: BatchState, attempt: Attempt) -> bool:
        """Return whether a batch was written to the stream as it exists now."""
        if not state.segments or state.segments & attempt.segments:
            return True
        options, newest = self._options, max(state.segments)
        try:
            found = self._controller.epoch_segments(
                options.scope, options.stream, segment_epoch(newest)
            )
        except NotFoundError:
            return self._was_of_this_stream(newest)
        return any(item.segment_id == newest for item in found)

    def _was_of_this_stream(self, segment_id: int) -> bool:
        """Return whether a segment whose epoch the controller does not know was of this stream: a
        truncation drops what is recorded of the epochs before it."""
        options = self._options
        try:
            return bool(self._controller.successors(options.scope, options.stream, segment_id))
        except EarlierStreamError:
            return False
        except PositionGoneError:
            return True
        except NotFoundError:
            return False  # An original controller does not say which.

    def _cannot_tell(self, state: BatchState, attempt: Attempt) -> PravegaError:
        if not attempt.query:
            return RefusedError(
                f"{self._options.query_id!r} was written to {self._options.name} before, from other"
                f" data ({state.row_count} rows, and {attempt.row_count} now): set another query_id"
                " to write this, too"
            )
        return RefusedError(
            f"batch {attempt.batch} of query {attempt.query} was written to {self._options.name}"
            f" with {state.row_count} rows, and has {attempt.row_count} now, so it may be another"
            " one, by an older copy of the checkpoint: set query_id to a new name to write it"
        )

    def _two_programs(self, attempt: Attempt) -> PravegaError:
        return RefusedError(
            f"batch {attempt.batch} of {self._options.name} is written by two programs with one"
            " checkpoint or query_id"
        )

    def _tell_older(self, state: BatchState, attempt: Attempt) -> None:
        self._tell(
            f"batch {attempt.batch} of query {attempt.query} comes with a new plan after batch"
            f" {state.batch} was written to {self._options.name}: the checkpoint is an older copy,"
            " and events that were written since it was made are written again"
        )

    def _tell(self, sentence: str) -> None:
        print(f"pravega: {sentence}", file=sys.stderr, flush=True)

    # ---- Transactions ----------------------------------------------------------------------------

    def _choose(self, recorded: dict[int, bytes], found: dict[int, bytes]) -> dict[int, bytes]:
        """Return the transactions to commit: the recorded ones, unless a lease has ended.

        If a lease ended before its commit, and none of the recorded ones is committed, the new ones
        replace all of them. If some are committed, only those that ended are replaced, each by the
        new one of the same task. The two have the same rows if the batch was divided as before.
        """
        options = self._options
        states = {task: self._state(ident) for task, ident in recorded.items()}
        ended = {task for task, state in states.items() if state in _ENDED}
        if not ended:
            return recorded
        if not any(state in _COMMITTED for state in states.values()) and all(
            self._controller.abort_transaction(options.scope, options.stream, recorded[task])
            for task in recorded.keys() - ended
        ):
            return found
        if recorded.keys() != found.keys():
            raise RefusedError(
                f"a part of this batch was committed to {options.name} by an earlier attempt,"
                f" which wrote by tasks {sorted(recorded)}, and this one by {sorted(found)}: the"
                " query's plan has changed, so that the other part cannot be told from it"
            )
        return {task: found[task] if task in ended else recorded[task] for task in recorded}

    def _renew(self, ident: bytes) -> bool:
        """Renew a transaction's lease and return True, or return False if it was aborted."""
        options = self._options
        answer = self._controller.ping_transaction(
            options.scope, options.stream, ident, options.transaction_timeout_ms
        )
        return answer not in ("aborted", "unknown") or self._state(ident) not in _ENDED

    def _commit_one(self, ident: bytes) -> bool:
        """Record that a transaction commits, and return True; return False if it was aborted."""
        options = self._options
        if self._controller.commit_transaction(options.scope, options.stream, ident):
            return True
        return self._state(ident) in _COMMITTED

    def _state(self, ident: bytes) -> str:
        """Return a transaction's state.

        Raises ``RefusedError`` if the controller does not know it any more.
        """
        options = self._options
        state = self._controller.transaction_state(options.scope, options.stream, ident)
        if state == "unknown":
            raise RefusedError(
                f"the end of transaction {ident.hex()} of {options.name} is not known any more:"
                " check whether its events are in the stream before you start the query again with"
                " another query_id or checkpoint"
            )
        return state

    def _wait(self, transactions: Sequence[bytes]) -> None:
        """Wait until readers can see all transactions, if the options request it."""
        options = self._options
        if not options.read_after_write_consistency:
            return
        pause = options.transaction_status_poll_interval_ms / 1000
        deadline = time.monotonic() + COMMIT_SECONDS_MAX
        for ident in transactions:
            while (
                state := self._controller.transaction_state(options.scope, options.stream, ident)
            ) == "committing":
                if time.monotonic() > deadline:
                    raise PravegaError(
                        f"transaction {ident.hex()} of {options.name} is still being committed"
                        f" after {COMMIT_SECONDS_MAX:g} s"
                    )
                time.sleep(pause)
            if state != "committed":
                raise RefusedError(f"transaction {ident.hex()} of {options.name} is {state}")
