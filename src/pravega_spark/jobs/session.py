"""Opens Spark sessions with the data source.

Owns: the settings that a job needs. Everything else comes from ``spark-submit`` or the caller.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pravega_spark.jobs.ingest_kafka import KAFKA_PACKAGE
from pravega_spark.source import PravegaDataSource

CONNECT_SCHEME = "sc://"

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Executors report their counts of rows with each heartbeat.
    "spark.executor.heartbeatInterval": "1s",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Settings for a master in this process. Its ports can be reached from the same machine only."""


KAFKA_SETTINGS = {"spark.jars.packages": f"{KAFKA_PACKAGE}:{pyspark.__version__}"}
"""The package with Spark's Kafka source, which PySpark lacks: Spark fetches it."""


def needs_java(master: str) -> bool:
    """Return whether a session with this master starts Java in this process, which has none yet."""
    is_started = "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None
    return not master.startswith(CONNECT_SCHEME) and not is_started


@contextmanager
def open_session(
    name: str,
    *,
    master: str,
    settings: Mapping[str, str] | None = None,
    messages: IO[bytes] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session with the data source registered, and stop it afterwards.

    A session that the caller has already is used as it is, and stays open. A master that begins
    with ``sc://`` is a Spark Connect server, which needs no Java on this machine. The output of
    Spark's processes goes to the file ``messages``; without it, to the streams of this process.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        active.dataSource.register(PravegaDataSource)
        yield active
        return
    is_remote = master.startswith(CONNECT_SCHEME)
    start: Any = SparkSession.builder
    builder = start.remote(master) if is_remote else start.master(master).appName(name)
    given = {**(LOCAL_SETTINGS if master.startswith("local") else {}), **(settings or {})}
    for key, value in given.items():
        builder = builder.config(key, value)
    on_interrupt = signal.getsignal(signal.SIGINT)
    if not is_remote and messages is not None:
        conf = SparkConf().setMaster(master).setAppName(name).setAll(list(given.items()))
        streams = {"stdout": messages, "stderr": messages}
        launch: Any = launch_gateway
        with _hold_interrupts():
            gateway = launch(conf, popen_kwargs=streams)
        SparkContext(conf=conf, gateway=gateway)
    spark: SparkSession = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        # PySpark's handler calls Java amid whatever call of Java the interrupt comes in.
        signal.signal(signal.SIGINT, on_interrupt)
    if not is_remote:
        spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(PravegaDataSource)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Hold an interrupt back until the end of the block.

    Java that is being started stays for ever when its starter ends before it says its port.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
