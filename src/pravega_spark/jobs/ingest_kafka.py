"""Writes the records of a Kafka topic to a stream, each exactly once.

A program of one page: copy it and change what you need. Spark's own Kafka source keeps the topic's
offsets in the checkpoint, and the sink writes each batch once, so the program continues where it
stopped, after Ctrl-C and after kill -9 alike; a further run writes only new records. Records of one
Kafka partition keep their order. Records without a value, tombstones, are skipped.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr
from pyspark.sql.streaming.query import StreamingQuery

KAFKA_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
"""The Maven coordinate of Spark's Kafka source, without the version, which is that of Spark."""


def ingest_kafka(
    spark: SparkSession,
    *,
    controller: str,
    scope: str,
    stream: str,
    servers: str,
    topic: str,
    checkpoint: str,
    key: str = "",
    segments: int = 1,
    follow: bool = False,
    records_per_trigger: int = 500_000,
) -> StreamingQuery:
    """Start the query. ``key`` is an SQL expression over the record; without it, the record's key
    becomes the routing key.

    ``segments`` is for a stream that does not exist yet. Without ``follow`` the query ends when the
    records that exist now are written.
    """
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_trigger)
        .load()
        .where(col("value").isNotNull())
    )
    routing_key = (expr(key) if key else col("key")).cast("string")
    events = records.select(col("value").alias("event"), routing_key.alias("routing_key"))
    writer = (
        events.writeStream.format("pravega")
        .options(controller=controller, scope=scope, stream=stream)
        .option("default_num_segments", str(segments))
        .option("checkpointLocation", checkpoint)
    )
    if not follow:
        writer = writer.trigger(availableNow=True)
    return writer.start()
