"""S3 servers: processes of their own on 127.0.0.1.

Owns: starting and ending moto's server and, where it is installed, versitygw. What moto's server
holds is in its memory and outlives the server under test.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied
from segstore.testing.ports import free_ports

HOST = "127.0.0.1"
ACCESS_KEY = "segstore-test"
SECRET_KEY = "segstore-test-secret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
VERSITYGW_VARIABLE = "SEGSTORE_VERSITYGW"
"""The environment variable that names versitygw's executable when it is not in the path."""
START_SECONDS_MAX = scale(60.0)

_MOTO = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's server; its URL. It forgets everything at the end, and ends with this process."""
    process = subprocess.Popen(
        tied([sys.executable, "-c", _MOTO]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("port "):
                    yield f"http://{HOST}:{int(line.split()[1])}"
                    return
            raise RuntimeError(f"moto's server ended with {process.wait()}")
        finally:
            process.kill()


def versitygw_path() -> str | None:
    """Return the executable of versitygw, if there is one: named, in the path, or beside
    Python's."""
    beside = Path(sys.executable).with_name("versitygw")
    named = os.environ.get(VERSITYGW_VARIABLE) or shutil.which("versitygw")
    return named or (str(beside) if beside.exists() else None)


@contextmanager
def versitygw_server(executable: str, directory: Path) -> Iterator[str]:
    """Run versitygw with its objects in ``directory``; its URL."""
    [port] = free_ports(1)
    root = directory / "objects"
    root.mkdir(parents=True)
    with subprocess.Popen(
        tied([executable, "--port", f"{HOST}:{port}", "posix", str(root)]),
        env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_until_accepting(port, process)
            yield f"http://{HOST}:{port}"
        finally:
            process.kill()


def make_bucket(endpoint: str, bucket: str) -> None:
    """Create a bucket with the credentials of these servers."""
    with client_of(endpoint) as client:
        client.create_bucket(Bucket=bucket)


@contextmanager
def client_of(endpoint: str) -> Iterator[Any]:
    """Return a boto3 client with the credentials of these servers."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    try:
        yield client
    finally:
        client.close()


def _wait_until_accepting(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server listens on port {port}") from None
            time.sleep(0.05)
