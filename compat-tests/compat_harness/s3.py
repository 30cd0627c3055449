"""An S3 server for the server under test: moto's, in a process of its own on 127.0.0.1.

Owns: starting and ending it. What it holds is in its memory and outlives the server under test.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "compat",
    "AWS_SECRET_ACCESS_KEY": "compat-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("port", server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def running_moto() -> Iterator[str]:
    """Start a server that ends with the block, or with this process; yield its URL."""
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("port "):
                    yield f"http://127.0.0.1:{int(line.split()[1])}"
                    return
            raise RuntimeError(f"moto's server ended with {process.wait()}")
        finally:
            process.kill()


@contextmanager
def client_of(endpoint: str) -> Iterator[Any]:
    """Return a boto3 client."""
    client = boto3.client("s3", endpoint_url=endpoint)
    try:
        yield client
    finally:
        client.close()
