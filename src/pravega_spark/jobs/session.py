"""Opens Spark sessions with the data source.

Owns: the settings that a job needs. Everything else comes from ``spark-submit`` or the caller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from pravega_spark.jobs.ingest_kafka import KAFKA_PACKAGE
from pravega_spark.source import PravegaDataSource

CONNECT_SCHEME = "sc://"

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Settings for a master in this process: nothing listens beyond the machine itself."""


KAFKA_SETTINGS = {"spark.jars.packages": f"{KAFKA_PACKAGE}:{pyspark.__version__}"}
"""The package with Spark's Kafka source, which PySpark lacks: Spark fetches it."""


@contextmanager
def open_session(
    name: str, *, master: str, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a session with the data source registered, and stop it afterwards.

    A session that the caller has already is used as it is, and stays open. A master that begins
    with ``sc://`` is a Spark Connect server, which needs no Java on this machine.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        active.dataSource.register(PravegaDataSource)
        yield active
        return
    # Workers must find this package where we did.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_remote = master.startswith(CONNECT_SCHEME)
    start: Any = SparkSession.builder
    builder = start.remote(master) if is_remote else start.master(master).appName(name)
    given = {**(LOCAL_SETTINGS if master.startswith("local") else {}), **(settings or {})}
    for key, value in given.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    if not is_remote:
        spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(PravegaDataSource)
    try:
        yield spark
    finally:
        spark.stop()
