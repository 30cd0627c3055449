"""Writes an archive back to a stream, once, with the events of each key in their order.

A program of one page: copy it and change what you need. The whole archive appears at once, when all
of it is written. Another run adds nothing, wherever the archive was moved; for an archive that has
grown since it is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, shiftright

from pravega_spark.jobs.archive import CHECKPOINT


def replay(
    spark: SparkSession,
    *,
    controller: str,
    scope: str,
    stream: str,
    source: str,
    again: str = "",
    key: str = "",
    segments: int = 1,
    tasks: int = 0,
) -> int:
    """Write the archive at ``source``; return how many events it has.

    To write it once more, give ``again``, a name for the repetition.
    ``key`` is an SQL expression over the archive's columns. All events of a key go through one
    task, in the order in which they were in the stream. Without it only events of one segment keep
    their order.
    """
    archive = spark.read.parquet(source)
    events_count = archive.count()
    content = name_files(archive.inputFiles(), events_count)
    identity = find_query(spark, source) or content
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
        .option("query_id", f"replay {identity} {again}")
        .option("query_content", content)
        .mode("append")
        .save()
    )
    return events_count


def find_query(spark: SparkSession, source: str) -> str:
    """Return the id of the query that wrote the archive; "" if that is not known.

    It stays the same when the archive grows, and when it is moved.
    """
    try:
        lines = spark.read.text(f"{source.rstrip('/')}/{CHECKPOINT}/metadata").collect()
        return str(json.loads(lines[0].value)["id"])
    except (AnalysisException, ValueError, LookupError, TypeError):
        return ""


def name_files(paths: Sequence[str], event_count: int) -> str:
    """Return a hash of the names of an archive's files, and of their partitions, not of its path.

    Spark gives each file that it writes a name of its own.
    """
    names = ["/".join(each.split("/")[-2:]) for each in paths]
    names = [each if "=" in each.split("/")[0] else each.split("/")[-1] for each in names]
    return hashlib.sha256("\0".join([*sorted(names), str(event_count)]).encode()).hexdigest()
