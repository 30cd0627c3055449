"""A model of Spark as a streaming query's sink sees it: its checkpoint, its batches, its crashes.

Owns: ``Program``, which takes the steps of Spark's micro-batches with the real sink. It keeps
Spark's rules: the plan of a batch is written before its tasks run, a batch that was planned and not
ended is repeated by its plan, and a file of the checkpoint is never written twice.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from pravega_spark import sink as sink_module
from pravega_spark.options import Options
from pravega_spark.sink import QUERY_ID, RUN_ID, EventBatchSink, EventStreamSink, TaskMessage
from segstore_client.errors import RefusedError
from support.models.memory_pravega import (
    Crash,
    MemoryController,
    MemoryPravega,
    MemoryTransactionWriter,
)

SCHEMA = StructType([StructField("event", StringType())])
TASKS = 2


class DiedError(Exception):
    """Spark ended the program: another one uses its checkpoint."""


@contextlib.contextmanager
def sink_of(pravega: MemoryPravega) -> Iterator[None]:
    """Let the sink's module use the model of the store."""
    with (
        mock.patch.object(sink_module, "open_controller", return_value=MemoryController(pravega)),
        mock.patch.object(sink_module, "TransactionWriter", MemoryTransactionWriter),
    ):
        yield


def write_tasks(
    writer: EventStreamSink | EventBatchSink, events: Sequence[str], properties: Mapping[str, str]
) -> list[Any]:
    """Run the writing tasks, each with its part of the events; return their messages."""
    messages = []
    for task in range(TASKS):
        context = SimpleNamespace(
            partitionId=lambda task=task: task, getLocalProperty=properties.get
        )
        part = pa.record_batch([pa.array(events[task::TASKS], pa.string())], names=["event"])
        with mock.patch.object(TaskContext, "get", lambda context=context: context):
            messages.append(writer.write(iter([part])))
    return messages


@dataclass
class Plan:
    """A plan of a batch, as the checkpoint has it, and what the model knows of it."""

    ident: str
    query: str
    batch: int
    start: int
    end: int
    written: list[tuple[str, ...]] = field(default_factory=list)
    """The rows of each attempt."""
    done: list[object] = field(default_factory=list)
    """The streams to which the sink said that it had written it."""
    restored: int = 0
    """Number of times that a copy was restored by which the batch has not ended."""


class Program:
    """One run of a streaming query."""

    def __init__(
        self,
        pravega: MemoryPravega,
        plans: dict[str, Plan],
        path: Path,
        options: Mapping[str, str],
        directory: Path,
    ) -> None:
        self._pravega = pravega
        self._plans = plans
        self.path = path
        self._directory = directory
        self._options = Options.parse(options)
        self.run = uuid.uuid4().hex
        self.plan: Plan | None = None
        self._messages: list[Any] | None = None
        self._stream: object = None
        """The stream to which the tasks wrote, as it existed then."""
        self._is_ended = False
        metadata = path / "metadata"
        if not metadata.exists():
            for name in ("offsets", "commits"):
                (path / name).mkdir(parents=True, exist_ok=True)
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.query: str = json.loads(metadata.read_text())["id"]
        last = max((int(each.name) for each in (path / "offsets").iterdir()), default=-1)
        self._batch = last + 1
        if last >= 0 and not (path / "commits" / str(last)).exists():
            self._batch = last
            self.plan = self._read_plan(last)

    def _read_plan(self, batch: int) -> Plan:
        return self._plans[(self.path / "offsets" / str(batch)).read_text()]

    @property
    def transactions(self) -> list[bytes]:
        """Return the transactions of the present batch's tasks."""
        told = [each for each in self._messages or () if isinstance(each, TaskMessage)]
        return [each.transaction for each in told if each.transaction]

    def step(self, source: Sequence[str]) -> bool:
        """Take the next step of a batch; return False if there is nothing to read.

        Raises ``DiedError`` when Spark ends the program, ``RefusedError`` when the sink does.
        """
        if self.plan is None:
            return self._plan(source)
        with contextlib.chdir(self._directory):
            if self._messages is None:
                self._write(source)
            elif self._is_ended:
                self._end()
            else:
                self._commit()
        return True

    def _plan(self, source: Sequence[str]) -> bool:
        start = 0 if self._batch == 0 else self._read_plan(self._batch - 1).end
        if start >= len(source):
            return False
        plan = Plan(uuid.uuid4().hex, self.query, self._batch, start, len(source))
        self._plans[plan.ident] = plan
        self._write_once("offsets", plan.ident)
        self.plan = plan
        return True

    def _write(self, source: Sequence[str]) -> None:
        assert self.plan is not None
        rows = tuple(
            f"{event} {self.plan.ident}" for event in source[self.plan.start : self.plan.end]
        )
        self._stream = self._pravega.streams[self._options.stream]
        writer = EventStreamSink(self._options, SCHEMA)
        properties = {QUERY_ID: self.query, RUN_ID: self.run}
        self._messages = write_tasks(writer, rows, properties)
        self.plan.written.append(rows)

    def _commit(self) -> None:
        assert self.plan is not None
        assert self._messages is not None
        try:
            EventStreamSink(self._options, SCHEMA).commit(self._messages, self._batch)
        except RefusedError:
            EventStreamSink(self._options, SCHEMA).abort(self._messages, self._batch)
            raise
        self.plan.done.append(self._stream)
        self._is_ended = True

    def _end(self) -> None:
        self._write_once("commits", "")
        self._batch += 1
        self.plan, self._messages, self._is_ended = None, None, False

    def _write_once(self, folder: str, text: str) -> None:
        try:
            with (self.path / folder / str(self._batch)).open("x") as file:
                file.write(text)
        except FileExistsError:
            raise DiedError from None


__all__ = ["SCHEMA", "Crash", "DiedError", "Plan", "Program", "sink_of", "write_tasks"]
