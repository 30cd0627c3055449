"""The HTTP port: what it costs, its certificate, and its server's failures."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.responses import JSONResponse

from pravega_controller.http import port
from pravega_controller.http.port import HttpPort
from pravega_controller.rpc.service import ListenError
from pravega_security import tls
from pravega_security.certificates import make_server
from pravega_security.tls import ServerCertificate, TlsSettings
from support.http_controllers import HttpClient

NAMES = ("localhost", "127.0.0.1")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer each request with its scheme."""
    if scope["type"] != "http":
        # By this a server learns that the application has nothing to start.
        raise NotImplementedError
    await JSONResponse(scope["scheme"])(scope, receive, send)


async def test_requests_are_answered(nursery: trio.Nursery) -> None:
    http = HttpPort("127.0.0.1", 0)
    client = HttpClient(http.listen())
    nursery.start_soon(http.serve, lambda: answer)
    assert (await client.ask("GET", "/")).document == "http"
    nursery.cancel_scope.cancel()


@pytest.mark.processes
def test_until_somebody_connects_nothing_is_imported() -> None:
    program = """
import sys, trio
from pravega_controller.http.port import HttpPort
import pravega_controller.server
async def main():
    async with trio.open_nursery() as nursery:
        http = HttpPort("127.0.0.1", 0)
        http.listen()
        nursery.start_soon(http.serve, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
import trio.testing
trio.run(main)
print([name for name in ("hypercorn", "starlette", "h11", "h2") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_a_new_certificate_is_shown_to_the_next_connection(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    first, second = tmp_path / "first", tmp_path / "second"
    make_server(first, now=time.time(), names=NAMES)
    make_server(second, now=time.time(), names=NAMES)
    settings = TlsSettings(certificate=first / "server.pem", key=first / "server.key")
    http = HttpPort("127.0.0.1", 0, ServerCertificate(settings))
    client = HttpClient(http.listen(), trusted=first / "ca.pem")
    nursery.start_soon(http.serve, lambda: answer)
    assert (await client.ask("GET", "/")).document == "https"
    for name in ("server.key", "server.pem"):
        (second / name).rename(first / name)
    client.trusted = second / "ca.pem"
    assert (await client.ask("GET", "/")).document == "https"
    nursery.cancel_scope.cancel()


async def test_a_server_that_fails_is_started_again(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pravega_controller.http import connections

    monkeypatch.setattr(port, "RESTART_SECONDS", 0.01)
    serve, failures = connections.serve_connections, [RuntimeError("planted"), OSError("planted")]

    async def fail_twice(*arguments: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        await serve(*arguments, **options)

    monkeypatch.setattr(connections, "serve_connections", fail_twice)
    http = HttpPort("127.0.0.1", 0)
    client = HttpClient(http.listen())
    nursery.start_soon(http.serve, lambda: answer)
    assert (await client.ask("GET", "/")).document == "http"
    assert not failures
    nursery.cancel_scope.cancel()


def test_a_port_in_use_is_told() -> None:
    first = HttpPort("127.0.0.1", 0)
    number = first.listen()
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{number}: Address already"):
        HttpPort("127.0.0.1", number).listen()
    first.close()


def test_a_host_that_is_not_known_is_told() -> None:
    with pytest.raises(ListenError, match="cannot listen on no-such-host"):
        HttpPort("no-such-host.invalid", 0).listen()
