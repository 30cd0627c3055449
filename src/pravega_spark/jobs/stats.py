"""Counts the events, bytes and keys of each segment of a stream.

A program of one page: copy it and change what you need.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import approx_count_distinct, col, expr, length, shiftright
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import max as max_of
from pyspark.sql.functions import min as min_of
from pyspark.sql.functions import sum as sum_of


def stats(
    spark: SparkSession, *, controller: str, scope: str, stream: str, key: str = ""
) -> DataFrame:
    """Return a row for each segment with events.

    ``key`` is an SQL expression over ``event``; with it the distinct keys are counted, to within
    5 %.
    """
    events = (
        spark.read.format("pravega")
        .options(controller=controller, scope=scope, stream=stream)
        .load()
    )
    counts = [
        count_of("*").alias("events"),
        sum_of(length("event")).alias("bytes"),
        max_of(length("event")).alias("longest_event"),
        min_of("offset").alias("first_offset"),
        max_of("offset").alias("last_offset"),
    ]
    if key:
        counts.append(approx_count_distinct(expr(key)).alias("keys"))
    return (
        events.groupBy("segment_id")
        .agg(*counts)
        .withColumn("epoch", shiftright(col("segment_id"), 32))
        .orderBy("segment_id")
    )
