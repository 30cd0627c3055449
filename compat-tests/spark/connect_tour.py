"""A client of Spark Connect that reads and writes streams by way of a server of its own.

    python connect_tour.py sc://HOST:PORT CONTROLLER SCOPE FROM TO CHECKPOINT

It has no Java machine. It prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if (parent := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path.insert(0, parent)

from compat_harness.queries import run_query_to_its_end
from pyspark.sql import SparkSession

from pravega_spark import PravegaDataSource


def copy_stream(spark: Any, source: dict[str, str], target: dict[str, str], checkpoint: str) -> int:
    """Copy what is in a stream and not yet copied; return how many events."""
    writer = (
        spark.readStream.format("pravega")
        .options(**source, start_stream_cut="earliest", max_bytes_per_trigger="20000")
        .load()
        .selectExpr("upper(cast(event as string)) as event")
        .writeStream.format("pravega")
        .options(**target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    query = run_query_to_its_end(writer.start, 120)
    assert query.exception() is None
    return sum(report.numInputRows for report in query.recentProgress)


def main(
    remote: str, controller: str, scope: str, source_name: str, target_name: str, checkpoint: str
) -> None:
    """Read a batch, copy by a query, write a batch, and provoke an error."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.dataSource.register(PravegaDataSource)
    source, target, missing = (
        {"controller": controller, "scope": scope, "stream": name}
        for name in (source_name, target_name, "missing")
    )
    events = spark.read.format("pravega").options(**source).load()
    found: dict[str, Any] = {"columns": events.columns, "read": events.count()}
    found["copied"] = [copy_stream(spark, source, target, checkpoint) for _ in range(2)]
    frame = spark.createDataFrame([("k", "one"), ("k", "two")], ["routing_key", "event"])
    frame.write.format("pravega").options(**target).mode("append").save()
    written = spark.read.format("pravega").options(**target).load()
    texts = written.selectExpr("cast(event as string) as text").toArrow().column("text")
    found["written"] = sorted(texts.to_pylist())
    try:
        spark.read.format("pravega").options(**missing).load().count()
    except Exception as error:
        found["error"] = str(error)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
