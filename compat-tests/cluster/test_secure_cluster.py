"""A cluster with TLS and users, as ``make cluster SECURE=1`` makes it, and an official client.

The client writes and reads as a user. A store is killed and comes back, all is stopped and started
again with the files of the first start, and no port answers to plaintext.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from compat_harness.capture import Capture
from compat_harness.cluster import BOOKIES, CONTROLLERS, ROOT, STORES
from compat_harness.secure import SecureCluster
from compat_harness.server import HOST, TARGET_VARIABLE
from foreign_servers.deadlines import scale

from pravega_admin.errors import EXIT_CONFIGURATION

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

CLIENT = ROOT / "compat-tests" / "python" / "numbers_in_order.py"
BACK_SECONDS_MAX = scale(60.0)
ALERT = b"\x15"
"""The type of a record of TLS that tells why there is no connection."""
STORE_NAMES = [f"segment-store-{number}" for number in range(STORES)]
PLAINTEXT = {
    "segment-store": b"\xff\xff\xff\x83\0\0\0\x08\0\0\0\x0f\0\0\0\x05",
    "controller": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    "zookeeper": b"srvr",
}
"""What a client without TLS sends first: Hello, the preface of HTTP/2, and a question."""


def run_client(cluster: SecureCluster, verb: str, first: int, last: int) -> None:
    """Run the client. It gives up where containers move, and others wait: so reads, each in a group
    of its own, are tried again for a while."""
    deadline = time.monotonic() + BACK_SECONDS_MAX
    while True:
        done = subprocess.run(
            [sys.executable, str(CLIENT), verb, cluster.controller_uri, str(first), str(last)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={**os.environ, **cluster.official_environment()},
        )
        if done.returncode == 0:
            return
        if verb != "read" or time.monotonic() > deadline:
            pytest.fail(done.stdout + done.stderr[-3000:] + cluster.tell(), pytrace=False)


def wait_until_back(cluster: SecureCluster, name: str, killed: int) -> None:
    """Wait until a store that was killed runs again, and each store has containers."""
    deadline = time.monotonic() + BACK_SECONDS_MAX
    while cluster.pid_of(name) in (None, killed):
        assert time.monotonic() < deadline, cluster.tell()
        time.sleep(0.2)
    cluster.wait_until_shared()


def ports_of(cluster: SecureCluster) -> Mapping[str, int]:
    controllers = [f"controller-{number}" for number in range(CONTROLLERS)]
    return {name: cluster.port_of(name) for name in (*STORE_NAMES, *controllers, "zookeeper")}


def assert_plaintext_gets_no_answer(cluster: SecureCluster) -> None:
    for name, port in ports_of(cluster).items():
        kind = name.rstrip("-0123456789")
        with socket.create_connection((HOST, port), timeout=30) as plain:
            plain.sendall(PLAINTEXT[kind])
            try:
                received = plain.recv(1000)
            except ConnectionResetError:
                received = b""
        assert not received or received[:1] == ALERT, f"{name} answers {received!r}"


def files_of(cluster: SecureCluster) -> dict[str, bytes]:
    """Return the files that a second start has to leave as they are."""
    names = ("ca.pem", "ca.key", "server.pem", "server.key", "passwd", "token.key")
    return {name: (cluster.ca.parent / name).read_bytes() for name in names}


def start_without_security(cluster: SecureCluster) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.one_machine", f"--data-dir={cluster.data_dir}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_client_writes_and_reads_as_a_user_while_parts_end(tmp_path: Path) -> None:
    pytest.importorskip("pravega_client", reason="no wheel for this Python")
    with SecureCluster(tmp_path) as cluster:
        ports = ports_of(cluster)
        bookies = [cluster.port_of(f"bookie-{number}") for number in range(BOOKIES)]
        with Capture([*ports.values(), *bookies], asking_ports=bookies) as seen:
            run_client(cluster, "write", 0, 500)
            wait_until_back(cluster, "segment-store-1", cluster.kill("segment-store-1"))
            run_client(cluster, "write", 500, 1000)
            run_client(cluster, "read", 0, 1000)
        assert seen.clear == []
        # The store that comes back opens connections to ZooKeeper and bookies.
        kinds = {name.partition("-")[0] for name in ports if ports[name] in seen.encrypted}
        assert kinds == {"controller", "segment", "zookeeper"}
        assert seen.encrypted.keys() & set(bookies)
        with Capture(ports.values()) as seen:
            assert_plaintext_gets_no_answer(cluster)
        assert {port for port, _ in seen.clear} == set(ports.values())

        files = files_of(cluster)
        cluster.stop()
        refused = start_without_security(cluster)
        assert refused.returncode == EXIT_CONFIGURATION
        assert "is a secure one; say --secure" in refused.stderr
        cluster.start()
        assert files_of(cluster) == files
        cluster.wait_until_shared()
        run_client(cluster, "read", 0, 1000)
        cluster.passwords["admin"] = "not-" + cluster.passwords["admin"]
        asked = cluster.run_as("admin", "scope", "list")
        assert asked.returncode == 77, asked.stdout + asked.stderr
