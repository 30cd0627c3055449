"""The data source itself: the classes that Spark calls, on the driver and in its tasks.

Owns: ``PravegaDataSource`` and its readers; writers are in ``sink``. The driver plans with
``stream_view``; a task gets a slice of one segment, or several short ones, and reads them over the
wire or from tier 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pravega_spark.errors import OptionError
from pravega_spark.options import (
    EARLIEST,
    LATEST,
    UNBOUNDED,
    Options,
    open_controller,
    open_store_access,
)
from pravega_spark.payloads.avro_payloads import AvroPayloads, is_avro
from pravega_spark.payloads.json_payloads import JsonPayloads, payload_schema
from pravega_spark.plain_errors import told_plainly
from pravega_spark.reading.cuts import Slice, cut_to_offset, offset_to_cut
from pravega_spark.reading.event_batches import SCHEMA_DDL, EventBatches
from pravega_spark.reading.scan_plans import ScanPlan
from pravega_spark.reading.segments import Address, SegmentStores
from pravega_spark.reading.slices import SliceReader

if TYPE_CHECKING:
    # Tasks do not plan, and they start faster without importing gRPC.
    from pravega_spark.reading.stream_view import StreamView
    from segstore_client.controller.controller_client import ControllerClient

STREAM_INFO_DDL = "head_stream_cut string, tail_stream_cut string"
STREAMS_DDL = "scope string, stream string"
TASK_BYTES_MIN = 1024 * 1024
"""Minimum number of bytes for a task of a streaming query. Reading fewer bytes takes less time than
starting a task."""


@dataclass(frozen=True, slots=True)
class SlicePart:
    """A slice, its plan, and the address of its segment's store when the slice was planned."""

    piece: Slice
    address: Address
    plan: ScanPlan | None = None


@dataclass
class SlicePartition(InputPartition):
    """The work of one task: a slice, or several short ones, and the token for their stores."""

    parts: tuple[SlicePart, ...]
    token: str = field(default="", repr=False)


@dataclass
class MetadataPartition(InputPartition):
    """Rows that the driver has read already."""

    rows: list[tuple[str, str]]


class PravegaDataSource(DataSource):
    """Streams as DataFrames: ``spark.read.format("pravega")`` and ``readStream``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pravega"

    @told_plainly
    def schema(self) -> str | StructType:
        """Return the columns: those of events, or of what ``metadata`` asks for."""
        options = Options.parse(self.options)
        if options.schema and not options.metadata:
            return payload_schema(options.schema)
        schemas = {"": SCHEMA_DDL, "streams": STREAMS_DDL, "streaminfo": STREAM_INFO_DDL}
        return schemas[options.metadata]

    @told_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = Options.parse(self.options)
        return MetadataReader(options) if options.metadata else EventReader(options, schema)

    @told_plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch, which adds to the stream."""
        from pravega_spark.sink import EventBatchSink

        if overwrite:
            raise OptionError('a stream cannot be overwritten: say .mode("append")')
        return EventBatchSink(Options.parse(self.options), schema)

    @told_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        from pravega_spark.sink import EventStreamSink

        return EventStreamSink(Options.parse(self.options), schema)

    @told_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return EventStreamReader(Options.parse(self.options), schema)


class EventReader(DataSourceReader):
    """Reads the events between two cuts."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._payloads = _payloads_of(options, schema)

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each segment, or for each part of one."""
        from pravega_spark.reading.stream_view import StreamView

        options = self._options
        with StreamView(options) as view:
            start, end = view.start(EARLIEST), view.end(LATEST)
            slices = view.batch_slices(start, view.tail() if end is None else end)
            # For an empty list, Spark would start a task with a partition that this class cannot
            # read.
            return plan_partitions(view, slices) or [SlicePartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition."""
        assert isinstance(partition, SlicePartition)
        return _parsed(self._payloads, read_partition(self._options, partition))


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream batch by batch. Spark keeps one object on the driver while a query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._payloads = _payloads_of(options, schema)
        self._view: StreamView | None = None
        self._end: dict[int, int] | None = None
        self._end_is_known = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need: connections stay on the driver."""
        return {**self.__dict__, "_view": None, "_end": None, "_end_is_known": False}

    @told_plainly
    def initialOffset(self) -> dict[str, Any]:
        """Return the position at which a new query begins."""
        return self._offset(self._open_view().start(LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options name; Spark hands it back to ``latestOffset``."""
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_rows_per_trigger:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        return ReadAllAvailable()

    @told_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Record the present end of the stream as the end of this run of the query."""
        tail = self._open_view().tail()
        self._find_end()
        if self._end is None:
            self._end = tail

    @told_plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        cut = offset_to_cut(self._options.name, start)
        limited = not isinstance(limit, ReadAllAvailable)
        return self._offset(self._open_view().advance(cut, self._find_end(), limited=limited))

    @told_plainly
    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the stream, for the query's progress."""
        return self._offset(self._open_view().last_tail())

    @told_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each segment with new events, or for several with few."""
        view, name = self._open_view(), self._options.name
        slices = view.planned_slices(offset_to_cut(name, start), offset_to_cut(name, end))
        return plan_partitions(view, slices, bytes_min=TASK_BYTES_MIN)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition."""
        assert isinstance(partition, SlicePartition)
        return _parsed(self._payloads, read_partition(self._options, partition))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint records what was processed."""

    def stop(self) -> None:
        """Close the connections."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _open_view(self) -> StreamView:
        if self._view is None:
            from pravega_spark.reading.stream_view import StreamView

            self._view = StreamView(self._options)
        return self._view

    def _find_end(self) -> dict[int, int] | None:
        """Return the cut at which this query ends; the first call determines it."""
        if not self._end_is_known:
            self._end = self._open_view().end(UNBOUNDED)
            self._end_is_known = True
        return self._end

    def _offset(self, cut: dict[int, int]) -> dict[str, Any]:
        return cut_to_offset(self._options.name, cut)


class MetadataReader(DataSourceReader):
    """Reads the controller's information: a scope's streams, or the two ends of a stream."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @told_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition, with all rows."""
        from pravega_spark.reading.stream_view import StreamView

        options = self._options
        if options.metadata == "streams":
            with open_controller(options, is_first=True) as controller:
                listed = controller.list_streams(options.scope)
                # Internal streams, such as those of reader groups, begin with this character.
                names = sorted(name for name in listed if not name.startswith("_"))
            return [MetadataPartition([(options.scope, name) for name in names])]
        with StreamView(options) as view:
            cuts = [cut_to_offset(options.name, cut) for cut in (view.head(), view.tail())]
        head, tail = (json.dumps(cut) for cut in cuts)
        return [MetadataPartition([(head, tail)])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        """Yield the rows."""
        assert isinstance(partition, MetadataPartition)
        yield from partition.rows


def plan_partitions(
    view: StreamView, slices: Sequence[Slice], *, bytes_min: int = 0
) -> list[SlicePartition]:
    """Return the partitions of slices, with everything that tasks need. The driver calls this.

    Consecutive slices go to one task until it has at least ``bytes_min`` bytes.
    """
    partitions: list[SlicePartition] = []
    token = view.token()
    parts: list[SlicePart] = []
    length = 0
    for piece, plan in zip(slices, view.plan_scans(slices), strict=True):
        parts.append(SlicePart(piece, view.address(piece.segment_id), plan))
        length += piece.end - piece.start
        if length >= bytes_min:
            partitions.append(SlicePartition(tuple(parts), token))
            parts, length = [], 0
    if parts:
        partitions.append(SlicePartition(tuple(parts), token))
    return partitions


def _payloads_of(options: Options, schema: StructType) -> JsonPayloads | AvroPayloads | None:
    if is_avro(options.schema):
        return AvroPayloads(options.schema, options.mode)
    return JsonPayloads(schema, options.mode) if options.schema else None


def _parsed(
    payloads: JsonPayloads | AvroPayloads | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return batches if payloads is None else payloads.parse(batches)


def read_partition(options: Options, partition: SlicePartition) -> Iterator[pa.RecordBatch]:
    """Yield the events of a partition's slices, in a task."""
    controllers: list[ControllerClient] = []

    def controller() -> ControllerClient:
        # Connect only when it is needed: most tasks reach the store at the address from the driver.
        if not controllers:
            controllers.append(open_controller(options))
        return controllers[0]

    def locate(segment_id: int) -> Address:
        return controller().segment_address(options.scope, options.stream, segment_id)

    def ask() -> str:
        from segstore_client.controller.controller_client import Purpose

        return controller().delegation_token(options.scope, options.stream, Purpose.READ)

    known = {part.piece.segment_id: part.address for part in partition.parts}
    try:
        access = open_store_access(options, partition.token, ask)
        with SegmentStores(
            options.scope, options.stream, locate, known=known, access=access
        ) as stores:
            for part in partition.parts:
                piece = part.piece
                pieces = SliceReader(options, stores, piece, part.plan).read()
                batches = EventBatches(options.scope, options.stream, piece.segment_id)
                yield from batches.read(pieces, start=piece.start, end=piece.end)
    finally:
        for each in controllers:
            each.close()
