"""Copies an archive of many small files into one of few large ones.

A program of one page: copy it and change what you need. The copy has the same rows and partitions,
each file sorted by the events' places in the stream. The output must not exist: swap the
directories when it is done.
"""

from __future__ import annotations

import math

from pyspark.sql import SparkSession
from pyspark.sql.functions import col

FILE_BYTES = 256 * 1024 * 1024


def compact(
    spark: SparkSession, *, source: str, output: str, file_bytes: int = FILE_BYTES
) -> tuple[int, int]:
    """Copy the archive, and return the numbers of files before and after."""
    archive = spark.read.parquet(source)
    files = archive.inputFiles()
    reader = spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    total = 0
    for name in files:
        path = reader.Path(name)
        total += path.getFileSystem(configuration).getFileStatus(path).getLen()
    count = max(1, math.ceil(total / file_bytes))
    partitions = [name for name in ("archived_on",) if name in archive.columns]
    (
        archive.repartition(count, *[col(name) for name in partitions])
        .sortWithinPartitions(*partitions, "segment_id", "offset")
        .write.partitionBy(*partitions)
        .mode("errorifexists")
        .parquet(output)
    )
    return len(files), len(spark.read.parquet(output).inputFiles())
