"""A Spark session and a store for the tests of the data source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat_harness.original import run_original
from compat_harness.server import Server
from foreign_servers.kafka_broker import KafkaBroker
from foreign_servers.maven import resolve_class_path

from segstore_client.controller.controller_client import ControllerClient

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A store of our own, which tests may kill."""
    with Server(tmp_path_factory.mktemp("spark-store")) as server:
        yield server


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the original's standalone server.

    It ends with the module: having been written to, it keeps most of a core busy.
    """
    with run_original(tmp_path_factory.mktemp("original")) as address:
        yield address


@pytest.fixture(
    scope="module", params=["segstore", pytest.param("original", marks=pytest.mark.proof)]
)
def address(request: pytest.FixtureRequest) -> str:
    """The address of a controller: our own, and the original's."""
    if request.param == "segstore":
        return str(request.getfixturevalue("store").controller_uri)
    return str(request.getfixturevalue("original"))


@pytest.fixture(scope="session")
def client(store: Server) -> Iterator[ControllerClient]:
    with ControllerClient(store.controller_uri) as client:
        yield client


KAFKA_JARS = ROOT / "benchmarks" / "peers" / "spark_kafka" / "pom.xml"
AVRO_JARS = Path(__file__).parent / "avro" / "pom.xml"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka broker."""
    peer = KafkaBroker(fsync=False, options=("-Xmx512m", "-XX:+UseSerialGC"))
    peer.prepare()
    address = peer.reserve()
    try:
        peer.start(tmp_path_factory.mktemp("kafka"))
        yield address
    finally:
        peer.stop()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Real Spark in this process, for all tests; its Python workers are this interpreter too."""
    from pyspark.sql import SparkSession

    from pravega_spark import PravegaDataSource

    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse: Path = tmp_path_factory.mktemp("spark")
    jars = ":".join(map(resolve_class_path, (KAFKA_JARS, AVRO_JARS)))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("compat")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraClassPath", jars)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(PravegaDataSource)
    yield session
    session.stop()
    patch.undo()
