"""Sessions over TLS with a real ZooKeeper, which asks for a certificate of its clients."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from compat_harness.server import TARGET_VARIABLE
from foreign_servers.cluster import HERE, READY_SECONDS_MAX, ZOOKEEPER
from foreign_servers.durable_files import JavaCertificates, write_zookeeper_settings
from foreign_servers.jvm import LOGBACK, java_command
from foreign_servers.maven import resolve_class_path
from foreign_servers.processes import ServerGroup
from typer.testing import CliRunner

from pravega_admin.verbs import app
from pravega_security.certificates import make_client, make_server
from segstore.testing.ports import free_ports
from zookeeper_client.api import ConnectionLostError
from zookeeper_client.kazoo_session import KazooSession, open_zookeeper
from zookeeper_client.tls_settings import ZooKeeperTlsSettings

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs servers of its own"),
    # kazoo leaves the socket of a failed handshake to the collector.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def collect() -> Iterator[None]:
    """Let no socket of a test be found in the next one."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with certificates of the server and of a client."""
    directory = tmp_path_factory.mktemp("security")
    make_server(directory, now=time.time(), names=["localhost", "127.0.0.1"])
    make_client(directory, "store", now=time.time())
    # ZooKeeper reads the key and the chain from one file.
    (directory / "both.pem").write_bytes(
        (directory / "server.key").read_bytes() + (directory / "server.pem").read_bytes()
    )
    return directory


@pytest.fixture(scope="module")
def secure_port(security: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a ZooKeeper that accepts TLS alone."""
    directory = tmp_path_factory.mktemp("zookeeper")
    [port] = free_ports(1)
    path = directory / "zookeeper.properties"
    write_zookeeper_settings(
        path,
        data=directory / "data",
        port=port,
        certificates=JavaCertificates(security / "both.pem", security / "ca.pem"),
    )
    command = java_command(
        ZOOKEEPER,
        str(path),
        class_path=resolve_class_path(HERE / "artifacts" / "durable" / "pom.xml"),
        options=("-Xmx256m",),
        properties={"logback.configurationFile": LOGBACK},
    )
    group = ServerGroup()
    try:
        server = group.start("zookeeper", command, directory=directory)
        server.wait_for_port(port, seconds_max=READY_SECONDS_MAX)
        yield port
    finally:
        group.stop(grace_seconds=0)


def of(security: Path, user: str | None = "store") -> ZooKeeperTlsSettings:
    if user is None:
        return ZooKeeperTlsSettings(ca=security / "ca.pem")
    return ZooKeeperTlsSettings(
        ca=security / "ca.pem",
        certificate=security / f"user-{user}.pem",
        key=security / f"user-{user}.key",
    )


@asynccontextmanager
async def session(
    hosts: str, tls: ZooKeeperTlsSettings | None, seconds_max: float = 15.0
) -> AsyncIterator[KazooSession]:
    async with (
        trio.open_nursery() as nursery,
        open_zookeeper(hosts, nursery, connect_seconds_max=seconds_max, tls=tls) as opened,
    ):
        yield opened
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_nodes_are_written_and_read(security: Path, secure_port: int, host: str) -> None:
    async def run() -> None:
        async with session(f"{host}:{secure_port}", of(security)) as opened:
            path = await opened.create(f"/{host}", b"data")
            assert (await opened.get(path)).data == b"data"

    trio.run(run)


def test_the_command_line_asks_for_a_cluster_by_tls(
    security: Path, secure_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGSTORE_CLIENT_CERTIFICATE", str(security / "user-store.pem"))
    monkeypatch.setenv("SEGSTORE_CLIENT_KEY", str(security / "user-store.key"))
    place = ("--zookeeper", f"tls://localhost:{secure_port}", "--ca", str(security / "ca.pem"))
    done = CliRunner().invoke(app, ["cluster", "status", *place])
    assert done.exit_code == 3
    assert "there is no cluster pravega-cluster in this ZooKeeper" in done.stderr


@pytest.mark.proof
def test_who_cannot_be_trusted_has_no_session(
    security: Path, secure_port: int, tmp_path: Path
) -> None:
    make_client(tmp_path, "store", now=time.time())
    foreign = of(tmp_path)
    for tls in (
        None,
        # No certificate, one of another CA, and a server of another CA.
        of(security, None),
        ZooKeeperTlsSettings(
            ca=security / "ca.pem", certificate=foreign.certificate, key=foreign.key
        ),
        foreign,
    ):

        async def run(tls: ZooKeeperTlsSettings | None = tls) -> None:
            async with session(f"localhost:{secure_port}", tls, 3.0):
                pass

        with pytest.raises(BaseExceptionGroup) as caught:
            trio.run(run)
        assert caught.group_contains(ConnectionLostError, match="does not answer")


def test_a_host_that_is_not_in_the_certificate_is_refused(security: Path, secure_port: int) -> None:
    # The address of localhost as a number, which the system takes and the certificate has not.
    hosts = f"2130706433:{secure_port}"

    async def run(tls: ZooKeeperTlsSettings) -> None:
        async with session(hosts, tls, 5.0):
            pass

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(run, of(security))
    assert caught.group_contains(ConnectionLostError, match="does not answer over TLS")
    trio.run(run, msgspec.structs.replace(of(security), checks_host=False))
