"""Writes the lines of text files to a stream, each once, as the files appear in a directory.

A program of one page: copy it and change what you need. A file is read once, so it must be complete
when it gets its name. The program continues where it stopped, after Ctrl-C and after kill -9 alike;
a further run writes only the lines of new files.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr
from pyspark.sql.streaming.query import StreamingQuery

FILES_PER_TRIGGER = 64
"""Maximum number of files in a batch."""


def ingest(
    spark: SparkSession,
    *,
    controller: str,
    scope: str,
    stream: str,
    source: str,
    checkpoint: str,
    key: str = "",
    segments: int = 1,
    follow: bool = False,
    files_per_trigger: int = FILES_PER_TRIGGER,
) -> StreamingQuery:
    """Start the query. ``key`` is an SQL expression over the line, ``value``.

    ``segments`` is for a stream that does not exist yet. Without ``follow`` the query ends when the
    files that exist now are written.
    """
    lines = (
        spark.readStream.format("text").option("maxFilesPerTrigger", files_per_trigger).load(source)
    )
    events = lines.select(col("value").alias("event"))
    if key:
        events = lines.select(col("value").alias("event"), expr(key).alias("routing_key"))
    writer = (
        events.writeStream.format("pravega")
        .options(controller=controller, scope=scope, stream=stream)
        .option("default_num_segments", str(segments))
        .option("checkpointLocation", checkpoint)
    )
    if not follow:
        writer = writer.trigger(availableNow=True)
    return writer.start()
