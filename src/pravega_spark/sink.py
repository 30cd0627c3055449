"""Writes DataFrames to a stream: a transaction for each task, committed by the driver.

Owns: the writers that Spark calls, and what tasks report to the driver. ``committer`` has the end
of a batch, and the rules by which a batch that is repeated is written once.

Invariants:
1. When a task fails, nothing of the DataFrame appears in the stream. The transaction of a killed
   task ends with its lease. Held by ``test_a_frame_whose_task_fails_leaves_nothing``.
2. When a checkpoint is removed, a program that begins anew writes everything again.
   Held by ``test_a_query_whose_checkpoint_was_removed_writes_everything_again``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from pravega_spark.checkpoints import Checkpoint
from pravega_spark.commit_log import CommitLog
from pravega_spark.committer import Attempt, Committer
from pravega_spark.errors import OptionError
from pravega_spark.options import Options, open_controller, stream_settings
from pravega_spark.plain_errors import told_plainly
from segstore_client.blocking.transaction_writer import TransactionWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import NotFoundError, RefusedError

PING_SHARE = 4
"""A lease is renewed after its length divided by this number."""
QUERY_ID = "sql.streaming.queryId"
"""Name of the local property by which a task sees Spark's id of its streaming query."""
RUN_ID = "spark.jobGroup.id"
"""Name of the local property that is, in a streaming query, the id of the query's run."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """A task's message to the driver: the task's number, its transaction, and its count of rows.

    A task without rows has no transaction: the id is empty.
    """

    task: int
    transaction: bytes
    row_count: int
    segments: tuple[int, ...] = ()
    """The segments of the stream to which the transaction writes."""
    query: str = ""
    """Spark's id of the query; the driver's side of a Python data source does not get it."""
    run: str = ""


class EventSink:
    """The base class of the writers of batches and of streaming queries."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        check_schema(schema)
        # Spark creates a sink for each batch. So a sink may belong to a query that has run before.
        is_first = not Checkpoint(options.checkpoint).has_batches()
        with open_controller(options, is_first=is_first) as controller:
            _ensure_stream(options, controller)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows into a transaction of its own."""
        context = TaskContext.get()
        message = TaskMessage(0, b"", 0)
        if context is not None:
            query, run = (context.getLocalProperty(name) or "" for name in (QUERY_ID, RUN_ID))
            message = TaskMessage(context.partitionId(), b"", 0, query=query, run=run)
        with open_controller(self._options) as controller:
            return _write_task(self._options, controller, message, iterator)

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], attempt: Attempt | None
    ) -> None:
        """Commit the transactions of a batch; exactly once if ``attempt`` says which it is."""
        options = self._options
        found = {message.task: message for message in _task_messages(messages)}
        transactions = {
            task: message.transaction for task, message in found.items() if message.transaction
        }
        with open_controller(options) as controller:
            committer = Committer(options, controller)
            if attempt is None:
                committer.commit(list(transactions.values()))
                return
            attempt = replace(
                attempt,
                transactions=transactions,
                row_count=sum(message.row_count for message in found.values()),
                segments=frozenset().union(*(message.segments for message in found.values())),
            )
            log = CommitLog(controller, options.scope, options.commit_table)
            committer.commit_recorded(log, attempt)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with open_controller(self._options) as controller:
            for message in _task_messages(messages):
                if message.transaction:
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


class EventBatchSink(EventSink, DataSourceArrowWriter):
    """Writes one DataFrame: all of its rows appear when every task has ended, or none.

    With the option ``query_id``, a repetition of the same write adds nothing.
    """

    @told_plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the transactions of all tasks."""
        options = self._options
        attempt = Attempt("", 0, {}, 0, plan=options.query_content) if options.query_id else None
        self._commit(messages, attempt)

    @told_plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of finished tasks; failed tasks have aborted their own."""
        self._abort(messages)


class EventStreamSink(EventSink, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each exactly once."""

    @told_plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, or finish what an earlier attempt at it began."""
        self._commit(messages, self._attempt_at(messages, batchId))

    def _attempt_at(
        self, messages: Sequence[WriterCommitMessage | None], batch: int
    ) -> Attempt | None:
        """Return what names the batch, or None if it may be written twice."""
        options = self._options
        if not options.exactly_once:
            return None
        told = _task_messages(messages)
        queries = {message.query for message in told} - {""}
        if len(queries) != 1:
            raise OptionError(
                "exactly_once needs Spark's id of the query, and its tasks are told"
                f" {sorted(queries) or 'none'}: set exactly_once to false"
            )
        (query,) = queries
        checkpoint = Checkpoint(options.checkpoint)
        return Attempt(
            query,
            batch,
            {},
            0,
            plan=checkpoint.plan(query, batch),
            run=told[0].run,
            is_overtaken=partial(checkpoint.is_beyond, query, batch),
        )

    @told_plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the transactions of finished tasks."""
        self._abort(messages)


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
    options: Options,
    controller: ControllerClient,
    message: TaskMessage,
    batches: Iterator[pa.RecordBatch],
) -> TaskMessage:
    """Write the rows of a task, and return its ``message``, completed."""
    lease_ms = options.transaction_timeout_ms
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return message
    begun = controller.begin_transaction(options.scope, options.stream, lease_ms)
    locate = partial(controller.segment_address, options.scope, options.stream)
    access = controller.store_access(options.scope, options.stream, Purpose.WRITE)
    writer = TransactionWriter(options.scope, options.stream, begun, locate, access=access)
    segments = tuple(item.segment_id for item in begun.ranges)
    message = replace(message, transaction=begun.identifier, segments=segments)
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
    """Return the messages of tasks that ended."""
    return [message for message in messages if isinstance(message, TaskMessage)]
