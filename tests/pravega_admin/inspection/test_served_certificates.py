"""Certificates of a real gRPC port."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pravega_admin.inspection.served_certificates import check_certificate, fetch_certificate
from pravega_security.certificates import describe_chain, describe_der, make_server
from segstore_client.errors import UnavailableError, UsageError


def test_a_grpc_port_shows_its_certificate(tmp_path: Path) -> None:
    make_server(tmp_path, now=time.time(), names=["localhost"])
    chain = (tmp_path / "server.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([((tmp_path / "server.key").read_bytes(), chain)])
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            shown = fetch_certificate("127.0.0.1", port, seconds_max=10)
            assert describe_der(shown) == describe_chain(chain, "")[0]
            ca = tmp_path / "ca.pem"
            assert check_certificate("localhost", port, ca, seconds_max=10) == ""
            refusal = check_certificate("127.0.0.1", port, ca, seconds_max=10)
            assert "IP address mismatch" in refusal
            assert check_certificate("localhost", port, None, seconds_max=10)
        finally:
            server.stop(0).wait()
    with pytest.raises(UnavailableError, match="cannot be reached"):
        fetch_certificate("127.0.0.1", port, seconds_max=10)


def test_a_ca_that_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.pem has no certificates in PEM"):
        check_certificate("localhost", 1, tmp_path / "none.pem", seconds_max=1)
