"""A streaming query that copies a stream, and the program that runs it so that it can be killed.

    python copy_query.py MASTER CONTROLLER SCOPE FROM TO CHECKPOINT

The program copies what is there and what comes, each event exactly once, until it is killed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

LEASE_MS = 20_000
"""Short: what a killed driver leaves behind ends with its lease, and tests wait for that."""


def start_copy(
    spark: Any,
    *,
    controller: str,
    scope: str,
    source: str,
    target: str,
    checkpoint: str,
    follow: bool,
) -> Any:
    """Start the query; without ``follow`` it ends with what is there now."""
    events = (
        spark.readStream.format("pravega")
        .options(controller=controller, scope=scope, stream=source)
        .options(start_stream_cut="earliest", max_rows_per_trigger="500")
        .load()
    )
    writer = (
        events.selectExpr("event", "substring_index(cast(event as string), ' ', 1) as routing_key")
        .writeStream.format("pravega")
        .options(controller=controller, scope=scope, stream=target, default_num_segments="2")
        .option("transaction_timeout_ms", str(LEASE_MS))
        .option("checkpointLocation", checkpoint)
    )
    if not follow:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def main(
    master: str, controller: str, scope: str, source: str, target: str, checkpoint: str
) -> None:
    """Run the query until it fails or this process is killed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from pravega_spark import PravegaDataSource

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(PravegaDataSource)
    query = start_copy(
        spark,
        controller=controller,
        scope=scope,
        source=source,
        target=target,
        checkpoint=checkpoint,
        follow=True,
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
