"""Writes DataFrames to a stream: a transaction for each task, committed by the driver.

Owns: the writers that Spark calls, and the exactly-once commit of a streaming query's batches.

The end of a batch, on the driver:

    every task has flushed its transaction  >  the batch is recorded  >  its transactions commit

A query that crashed repeats its last batch, with new transactions. If the batch was recorded, the
recorded transactions are committed, and the new ones aborted. Otherwise nothing of the first
attempt was committed, and its transactions end with their leases. Recorded transactions that ended
with their leases are replaced by new ones, which are recorded first.

Invariants:
1. When a query crashes and repeats a batch, the rows of each task are in the stream once: of two
   transactions of one task, one at most is committed.
   Held by ``test_a_batch_that_was_recorded_is_finished_by_its_repetition``.
2. When some recorded transactions are committed and others have ended, only those that have ended
   are replaced. Held by ``test_beside_committed_transactions_only_those_that_ended_are_replaced``.
3. When a task fails, nothing of the DataFrame appears in the stream. The transaction of a killed
   task ends with its lease. Held by ``test_a_frame_whose_task_fails_leaves_nothing``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from pravega_blocking.controller_client import ControllerClient, Purpose
from pravega_blocking.errors import NotFoundError, PravegaError, RefusedError
from pravega_blocking.transaction_writer import TransactionWriter
from pravega_spark.commit_log import BatchState, CommitLog
from pravega_spark.errors import OptionError
from pravega_spark.options import Options, open_controller, stream_settings
from pravega_spark.plain_errors import told_plainly

PING_SHARE = 4
"""A lease is renewed after its length divided by this number."""
RECORDS_KEPT = 100
"""Number of records of batches that are kept. Spark repeats the last batch only; the others help to
find the cause of a problem."""
COMMIT_SECONDS_MAX = 300.0
_COMMITTED = ("committing", "committed")
_ENDED = ("aborting", "aborted")


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's message to the driver: the task's number, its transaction, and its count of rows.

    A task without rows has no transaction: the id is empty.
    """

    task: int
    transaction: bytes
    row_count: int


class EventSink:
    """The base class of the writers of batches and of streaming queries."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        check_schema(schema)
        # Spark creates a sink for each batch. So a sink may belong to a query that has run before.
        with open_controller(options, is_first=not has_batches(options.checkpoint)) as controller:
            _ensure_stream(options, controller)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows into a transaction of its own."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        with open_controller(self._options) as controller:
            return _write_task(self._options, controller, task, iterator)

    def _commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        *,
        batch: int,
        recorded: bool,
    ) -> None:
        """Commit the transactions of a batch; exactly once if it is ``recorded``."""
        options = self._options
        found = {message.task: message.transaction for message in _task_messages(messages)}
        with open_controller(options) as controller:
            committer = Committer(options, controller)
            if not recorded:
                committer.commit(list(found.values()))
                return
            query = f"{options.query_id}\0{options.name}"
            log = CommitLog(controller, options.scope, options.commit_table, query)
            committer.commit_recorded(log, batch, found)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with open_controller(self._options) as controller:
            for message in _task_messages(messages):
                controller.abort_transaction(
                    self._options.scope, self._options.stream, message.transaction
                )


def _ensure_stream(options: Options, controller: ControllerClient) -> None:
    """Create the stream, and its scope, if the options allow it and they do not exist.

    Who may write a stream need not be allowed to create one, nor who creates streams a scope.
    """
    scope, stream = options.scope, options.stream
    if not options.allow_create_stream or controller.stream_exists(scope, stream):
        return
    settings = stream_settings(options.stream_numbers)
    try:
        controller.ensure_stream(scope, stream, settings)
    except NotFoundError:
        if not options.allow_create_scope:
            raise
        controller.ensure_scope(scope)
        controller.ensure_stream(scope, stream, settings)


def has_batches(checkpoint: str) -> bool:
    """Return whether a query has finished a batch; True if its checkpoint is not a local file."""
    scheme, delimiter, _ = checkpoint.partition(":")
    if delimiter and scheme != "file":
        return True
    commits = Path(checkpoint.removeprefix("file:")) / "commits"
    return bool(checkpoint) and commits.is_dir() and any(commits.iterdir())


class EventBatchSink(EventSink, DataSourceArrowWriter):
    """Writes one DataFrame: all of its rows appear when every task has ended, or none.

    With the option ``query_id``, a repetition of the same write adds nothing.
    """

    @told_plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the transactions of all tasks."""
        self._commit(messages, batch=0, recorded=bool(self._options.query_id))

    @told_plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of finished tasks; failed tasks have aborted their own."""
        self._abort(messages)


class EventStreamSink(EventSink, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each exactly once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.exactly_once and not options.query_id:
            raise OptionError(
                "exactly_once needs a name for the query that outlives it: set checkpointLocation"
                " on the query itself, or the option query_id"
            )
        super().__init__(options, schema)

    @told_plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, or finish what an earlier attempt at it began."""
        self._commit(messages, batch=batchId, recorded=self._options.exactly_once)

    @told_plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the transactions of finished tasks."""
        self._abort(messages)


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

    def commit_recorded(self, log: CommitLog, batch: int, found: dict[int, bytes]) -> None:
        """Commit a batch exactly once, although earlier attempts may have recorded or committed it.

        ``found`` has the transactions of this attempt by task. The module's head has the steps.
        """
        record = log.read(batch) or log.write(batch, BatchState(found))
        if record is None:
            raise self._two_queries(batch)
        chosen = record.state.transactions
        if not record.state.is_done:
            if chosen != found:
                chosen = self._choose(chosen, found)
            if chosen != record.state.transactions:
                record = log.write(batch, BatchState(chosen), version=record.version)
                if record is None:
                    raise self._two_queries(batch)
            self.commit(list(chosen.values()))
            log.write(batch, BatchState(chosen, is_done=True), version=record.version)
            log.remove(batch - RECORDS_KEPT)
        for ident in set(found.values()) - set(chosen.values()):
            self._controller.abort_transaction(self._options.scope, self._options.stream, ident)

    def _two_queries(self, batch: int) -> PravegaError:
        return RefusedError(
            f"batch {batch} of {self._options.name} is written by two queries with one query_id"
        )

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


def check_schema(schema: StructType) -> None:
    """Raise ``OptionError`` unless ``event`` is text or binary, and ``routing_key`` text."""
    fields = {field.name: field.dataType for field in schema.fields}
    if not isinstance(fields.get("event"), BinaryType | StringType):
        raise OptionError(
            "rows need a column event of type binary or string, such as to_json(struct(*)) as event"
        )
    if not isinstance(fields.get("routing_key", StringType()), StringType):
        raise OptionError("the column routing_key must be a string")
    if strange := sorted(fields.keys() - {"event", "routing_key"}):
        raise OptionError(
            f"the sink takes the columns event and routing_key, and there is {', '.join(strange)}:"
            " select the columns to write"
        )


def _write_task(
    options: Options, controller: ControllerClient, task: int, batches: Iterator[pa.RecordBatch]
) -> TaskMessage:
    lease_ms = options.transaction_timeout_ms
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return TaskMessage(task, b"", 0)
    begun = controller.begin_transaction(options.scope, options.stream, lease_ms)
    locate = partial(controller.segment_address, options.scope, options.stream)
    access = controller.store_access(options.scope, options.stream, Purpose.WRITE)
    writer = TransactionWriter(options.scope, options.stream, begun, locate, access=access)
    message = TaskMessage(task, begun.identifier, 0)
    try:
        renewed = time.monotonic()
        for batch in itertools.chain([first], batches):
            keys = None
            if "routing_key" in batch.schema.names:
                keys = batch.column("routing_key").to_pylist()
            writer.write(batch.column("event").to_pylist(), keys)
            message = replace(message, row_count=message.row_count + batch.num_rows)
            if time.monotonic() - renewed > lease_ms / 1000 / PING_SHARE:
                renewed = time.monotonic()
                _renew(options, controller, begun.identifier)
        writer.flush()
        _renew(options, controller, begun.identifier)
    except BaseException:
        controller.abort_transaction(options.scope, options.stream, begun.identifier)
        raise
    finally:
        writer.close()
    return message


def _renew(options: Options, controller: ControllerClient, transaction: bytes) -> None:
    """Renew the lease of a task that ends, so that it lasts while other tasks still work."""
    answer = controller.ping_transaction(
        options.scope, options.stream, transaction, options.transaction_timeout_ms
    )
    if answer != "ok":
        raise RefusedError(
            f"transaction {transaction.hex()} of {options.name} cannot continue: {answer}"
        )


def _task_messages(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    """Return the messages of tasks that wrote rows."""
    told = [message for message in messages if isinstance(message, TaskMessage)]
    return [message for message in told if message.transaction]
