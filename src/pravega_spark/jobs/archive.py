"""Archives a stream to Parquet: each event once, resumable, by the day on which it was archived.

A program of one page: copy it and change what you need. It continues where it stopped, after Ctrl-C
and after kill -9 alike; a further run adds only what is new. The output is a table of the columns
``event``, ``segment_id``, ``offset`` (or those of ``columns``) and the partition ``archived_on``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, current_date, from_json
from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT = "_checkpoint"
"""Name of the checkpoint's directory below the output; Spark's readers of Parquet skip names
that begin with an underscore."""


def archive(
    spark: SparkSession,
    *,
    controller: str,
    scope: str,
    stream: str,
    output: str,
    checkpoint: str = "",
    columns: str = "",
    partition_by: Sequence[str] = (),
    follow: bool = False,
    max_bytes_per_trigger: int = 0,
) -> StreamingQuery:
    """Start the query. Without ``follow`` it ends when the events that exist now are archived.

    ``columns`` is a DDL such as ``"user string, price double"`` for events that are JSON;
    ``partition_by`` names columns of it.
    """
    events = (
        spark.readStream.format("pravega")
        .options(controller=controller, scope=scope, stream=stream)
        .option("start_stream_cut", "earliest")
        .option("max_bytes_per_trigger", str(max_bytes_per_trigger))
        .load()
    )
    # Spark keeps a batch's date in the checkpoint, so a repeated batch has the same one.
    rows = parse(events, columns).withColumn("archived_on", current_date())
    writer = (
        rows.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint or f"{output.rstrip('/')}/{CHECKPOINT}")
        .partitionBy("archived_on", *partition_by)
    )
    if not follow:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def parse(events: DataFrame, columns: str) -> DataFrame:
    """Return the events, each with its segment and offset, and ``columns`` read from their JSON."""
    place = [col("segment_id"), col("offset")]
    if not columns:
        return events.select(col("event"), *place)
    parsed = from_json(col("event").cast("string"), columns)
    return events.select(col("event"), parsed.alias("parsed"), *place).select(
        "event", "parsed.*", *place
    )
