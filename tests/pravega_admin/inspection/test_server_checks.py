"""Secured servers are asked whether they serve: real ones with TLS, users and tokens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from typer.testing import CliRunner, Result

from pravega_admin.verbs import app
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.server import serve as serve_controller
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security.accounts_file import change_accounts_file
from pravega_security.signing_keys import create_key_file
from segstore.api import SegmentContainer
from segstore.network.server import serve as serve_segments
from segstore.process.config import SegmentStoreConfig
from support.models.memory_container import MemoryContainer
from support.tls_peers import Certificates

EXIT_UNAVAILABLE = 5
KINDS = ("segment-store", "controller")


@asynccontextmanager
async def open_memory_container(number: int) -> AsyncIterator[SegmentContainer]:
    yield MemoryContainer(number)


@dataclass
class Servers:
    """Two servers that anybody may ask whether they serve, and nothing else."""

    ports: Mapping[str, int]
    ca: Path

    async def check(self, kind: str, address: str, **variables: str) -> Result:
        """Run ``segstore check``."""
        words = ["check", kind, address.format(port=self.ports[kind]), "--timeout=10"]
        return await trio.to_thread.run_sync(
            partial(CliRunner().invoke, app, words, env={"SEGSTORE_CA": "", **variables})
        )


@pytest.fixture
async def servers(tmp_path: Path, nursery: trio.Nursery) -> Servers:
    certificates = Certificates(tmp_path)
    tls = certificates.issue("localhost")
    keys, accounts = tmp_path / "token.key", tmp_path / "passwd"
    create_key_file(keys, now=int(time.time()))
    change_accounts_file(accounts, lambda _: None)
    memory = MemorySegmentStore()
    await nursery.start(memory.run)
    controller = ControllerConfig(
        port=0,
        request_poll_seconds=0.0,
        retention_period_seconds=0.0,
        tls=tls,
        token_keys=keys,
        accounts=accounts,
    )
    environment = Environment(random=Random(7), open_stream=memory.open_stream)
    _, controller_port = await nursery.start(
        partial(serve_controller, controller, environment=environment)
    )
    store = SegmentStoreConfig(port=0, data_dir=tmp_path, tls=tls, token_keys=keys)
    port = await nursery.start(serve_segments, store, open_memory_container)
    return Servers({"segment-store": port, "controller": controller_port}, certificates.ca)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_secured_server_says_that_it_serves(servers: Servers, kind: str) -> None:
    done = await servers.check(kind, "tls://localhost:{port}", SEGSTORE_CA=str(servers.ca))
    assert (done.exit_code, done.stderr) == (0, f"tls://localhost:{servers.ports[kind]} serves\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("address", "trusts", "sentence"),
    [
        ("tcp://localhost:{port}", True, "speaks TLS"),
        ("tls://127.0.0.1:{port}", True, "is not for the name 127.0.0.1"),
        ("tls://localhost:{port}", False, "is not from an authority that this client trusts"),
    ],
)
async def test_what_is_wrong_with_tls_is_told(
    servers: Servers, kind: str, address: str, trusts: bool, sentence: str
) -> None:
    done = await servers.check(kind, address, SEGSTORE_CA=str(servers.ca) if trusts else "")
    assert done.exit_code == EXIT_UNAVAILABLE
    assert sentence in done.stderr


async def test_a_segment_stores_port_is_told_from_a_controllers(servers: Servers) -> None:
    servers.ports = {"controller": servers.ports["segment-store"]}
    done = await servers.check("controller", "tls://localhost:{port}", SEGSTORE_CA=str(servers.ca))
    assert done.exit_code == EXIT_UNAVAILABLE
    assert "is a segment store's port, not a controller's" in done.stderr
