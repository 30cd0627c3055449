"""A streaming query that copies a stream, as a program of its own, so that it can be killed.

    python copy_query.py CONTROLLER SCOPE FROM TO CHECKPOINT

Copies what is there now, exactly once, and prints ``done``.
"""

from __future__ import annotations

import os
import sys


def main(controller: str, scope: str, source: str, target: str, checkpoint: str) -> None:
    """Run the query to its end."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from pravega_spark import PravegaDataSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(PravegaDataSource)
    events = (
        spark.readStream.format("pravega")
        .options(controller=controller, scope=scope, stream=source)
        .options(start_stream_cut="earliest", max_rows_per_trigger="500")
        .load()
    )
    query = (
        events.selectExpr("event", "substring_index(cast(event as string), ' ', 1) as routing_key")
        .writeStream.format("pravega")
        .options(controller=controller, scope=scope, stream=target, default_num_segments="2")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
