"""Writes an archive back to a stream, once, with the events of each key in their order.

A program of one page: copy it and change what you need. The whole archive appears at once, when all
of it is written. Another run with the same ``query_id`` adds nothing.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, shiftright


def replay(
    spark: SparkSession,
    *,
    controller: str,
    scope: str,
    stream: str,
    source: str,
    query_id: str,
    key: str = "",
    segments: int = 1,
    tasks: int = 0,
) -> int:
    """Write the archive at ``source``; return how many events it has.

    ``key`` is an SQL expression over the archive's columns. All events of a key go through one
    task, in the order in which they were in the stream. Without it only events of one segment keep
    their order.
    """
    archive = spark.read.parquet(source)
    order = [shiftright(col("segment_id"), 32), col("offset")]
    by = expr(key) if key else col("segment_id")
    count = tasks or max(1, spark.sparkContext.defaultParallelism)
    ordered = archive.repartition(count, by).sortWithinPartitions(*order)
    events = ordered.select(col("event"))
    if key:
        events = ordered.select(col("event"), expr(key).cast("string").alias("routing_key"))
    (
        events.write.format("pravega")
        .options(controller=controller, scope=scope, stream=stream)
        .option("default_num_segments", str(segments))
        .option("query_id", query_id)
        .mode("append")
        .save()
    )
    return archive.count()
