"""A data source that does nothing but hand on record batches which it has ready.

What it gives is the most that a data source in Python can: workers send Arrow batches to the JVM.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pravega_spark.reading.event_batches import BATCH_BYTES, SCHEMA_DDL, EventBatches
from pravega_wire.event_framing import frame_events


@dataclass
class Part(InputPartition):
    """The number and the length of the events of one task."""

    events: int
    event_bytes: int


class ReadyBatches(DataSource):
    """``events`` rows of ``event_bytes`` each, in ``partitions`` tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ready_batches"

    def schema(self) -> str:
        """Return the columns of events."""
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        given = {name: int(value) for name, value in self.options.items()}
        return ReadyReader(given["events"], given["event_bytes"], given["partitions"])


class ReadyReader(DataSourceReader):
    """Makes one batch and gives it again and again."""

    def __init__(self, events: int, event_bytes: int, partitions: int) -> None:
        self._parts = [Part(events // partitions, event_bytes) for _ in range(partitions)]

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield as many events as asked for, in batches as long as those of streams."""
        assert isinstance(partition, Part)
        count = BATCH_BYTES // (partition.event_bytes + 8)
        random = Random(count)
        # Events that differ, as those of streams do: what writes them may compress.
        data = frame_events([random.randbytes(partition.event_bytes) for _ in range(count)])
        [batch] = EventBatches("scope", "stream", 0).read([(0, data)], start=0, end=len(data))
        left = partition.events
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows
