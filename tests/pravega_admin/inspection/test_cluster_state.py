"""A cluster is looked at: real segment stores and a controller, ZooKeeper and bookies in memory."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trustme

from bookkeeper_client.client import BookKeeperSettings
from bookkeeper_client.connections.connections import ConnectionLimits
from pravega_admin.inspection.cluster_state import ClusterState, Member, look_at_cluster
from pravega_admin.inspection.server_checks import ask_controller, ask_segment_store
from pravega_cluster.nodes import find_paths
from pravega_cluster.records import Host, encode_host, encode_map
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security.access_rules import parse_access_rules
from pravega_security.accounts_file import Account, AccountsFile, change_accounts_file
from pravega_security.passwords import hash_password
from pravega_security.signing_keys import create_key_file
from pravega_security.tls import TlsSettings
from pravega_wire.commands import HELLO
from segstore.network.cluster import serve_in_cluster
from segstore.process.cluster_assembly import Surroundings
from segstore.process.config import MIB, ClusterSettings, SegmentStoreConfig
from segstore.process.membership import Membership
from segstore_client.access.credentials import Credentials
from segstore_client.access.tls import ClientTls
from segstore_client.errors import (
    NotFoundError,
    TimedOutError,
    UnavailableError,
    UntrustedServerError,
)
from support.models.memory_bookies import (
    LEDGERS_ROOT,
    MemoryBookies,
    open_memory_bookies,
)
from support.models.memory_server import MemorySession
from support.secure_servers import Controller, running_store
from zookeeper_client.api import ZooKeeper, ensure_path

CONTAINERS = 2
NAME = "test"
PATHS = find_paths(NAME)
ANSWER_SECONDS = 0.5
SECONDS_MAX = 60.0
PASSWORD = "wonder land"
QUICK = BookKeeperSettings(
    connections=ConnectionLimits(answer_seconds_max=2.0), slow_seconds=0.05, look_seconds=0.05
)


@pytest.fixture
async def bookies() -> AsyncIterator[MemoryBookies]:
    async with open_memory_bookies("a", "b", "c") as opened:
        yield opened


@pytest.fixture
def session(bookies: MemoryBookies) -> MemorySession:
    return bookies.zookeeper.open_session()


async def start_store(
    bookies: MemoryBookies, path: Path, nursery: trio.Nursery, **security: Any
) -> tuple[Host, trio.Event]:
    """Start a segment store; the event ends it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        host = Host("127.0.0.1", held.getsockname()[1])

    @asynccontextmanager
    async def open_session(nursery: trio.Nursery) -> AsyncIterator[ZooKeeper]:
        opened = bookies.zookeeper.open_session()
        yield opened
        bookies.zookeeper.end_session(opened)

    settings = ClusterSettings(zookeeper="in memory", name=NAME, ledgers_root=LEDGERS_ROOT)
    config = SegmentStoreConfig(
        port=host.port,
        data_dir=path / "unused",
        storage_dir=path / "tier-2",
        container_count=CONTAINERS,
        cache_bytes_max=32 * MIB,
        drain_seconds=0.1,
        cluster=settings,
        **security,
    )
    shutdown = trio.Event()
    member = Membership(NAME, host, open_session, hand_over_seconds_max=0.0)
    await nursery.start(
        partial(
            serve_in_cluster,
            config,
            membership=member,
            surroundings=Surroundings(bookkeeper=QUICK),
            shutdown=shutdown,
        )
    )
    return host, shutdown


async def start_controller(session: MemorySession, nursery: trio.Nursery, **security: Any) -> Host:
    """Start a controller that serves, and register it."""
    store = MemorySegmentStore()
    await nursery.start(store.run)
    environment = Environment(random=Random(7), open_stream=store.open_stream)
    config = ControllerConfig(
        port=0, request_poll_seconds=0.0, retention_period_seconds=0.0, **security
    )
    ip, port = await nursery.start(partial(serve, config, environment=environment))
    host = Host(ip, port, "0" * 32)
    await ensure_path(session, PATHS.controllers)
    await session.create(f"{PATHS.controllers}/{host.node_name}", encode_host(host))
    return host


async def look(session: MemorySession, **access: Any) -> ClusterState:
    return await look_at_cluster(
        session, NAME, ledgers_root=LEDGERS_ROOT, seconds_max=ANSWER_SECONDS, **access
    )


async def look_until(
    session: MemorySession, is_wanted: Callable[[ClusterState], bool], **access: Any
) -> ClusterState:
    while True:
        state = await look(session, **access)
        if is_wanted(state):
            return state
        await trio.sleep(0.05)


async def test_a_cluster_that_is_not_there_is_not_made_by_looking(session: MemorySession) -> None:
    with pytest.raises(NotFoundError, match="no cluster test"):
        await look(session)
    with pytest.raises(NotFoundError):
        await look(session)


async def test_a_cluster_becomes_whole_and_loses_its_store(
    bookies: MemoryBookies, session: MemorySession, tmp_path: Path, nursery: trio.Nursery
) -> None:
    with trio.fail_after(SECONDS_MAX):
        host, shutdown = await start_store(bookies, tmp_path, nursery)
        address = f"127.0.0.1:{host.port}"
        controller = await start_controller(session, nursery)
        state = await look(session)
        assert state.container_count == CONTAINERS
        assert state.unserved == (0, 1)
        assert state.missing(bookies=4) == [
            "3 of 4 bookies: serves",
            "containers that no store serves: 0, 1",
            f"segment stores without containers: {address}",
        ]
        await session.create(PATHS.container_map, encode_map({host: frozenset({0, 1})}))
        state = await look_until(session, lambda state: not state.missing())
        assert state.members == (
            Member("segment store", address, "serves", (0, 1), frozenset({0, 1})),
            Member("controller", f"127.0.0.1:{controller.port}", "serves"),
            *(Member("bookie", name, "serves") for name in "abc"),
        )
        assert state.missing(stores=2) == ["1 of 2 segment stores: serves"]
        shutdown.set()
        state = await look_until(session, lambda state: state.members[0].state == "gone")
        assert state.missing() == [
            "0 of 1 segment stores: serves",
            "containers that no store serves: 0, 1",
        ]


async def test_a_host_that_is_registered_and_dead_does_not_answer(session: MemorySession) -> None:
    for path, endpoint in ((PATHS.hosts, ""), (PATHS.controllers, "0" * 32)):
        await ensure_path(session, path)
        host = Host("127.0.0.1", 9, endpoint)
        await session.create(f"{path}/{host.node_name}", encode_host(host))
    state = await look(session)
    assert [each.state for each in state.members[:2]] == ["does not answer"] * 2
    assert "no segment store has ever served" in state.missing()


async def test_bookies_that_stopped_are_told(
    bookies: MemoryBookies, session: MemorySession
) -> None:
    """Earlier a bookie counted as there while ZooKeeper had its node, and then as never there."""
    await ensure_path(session, PATHS.root)
    for name in (*"abc", "unregistered"):
        await ensure_path(session, f"{LEDGERS_ROOT}/cookies/{name}")
    with trio.fail_after(SECONDS_MAX):
        bookies.bookies["a"].pause()
        bookies.bookies["b"].stop()
        state = await look(session)
        assert state.members == (
            Member("bookie", "a", "does not answer"),
            Member("bookie", "b", "does not answer"),
            Member("bookie", "c", "serves"),
            Member("bookie", "unregistered", "gone"),
        )
        assert state.absent_bookies == ["a", "b", "unregistered"]
        assert "1 of 3 bookies: serves" in state.missing(bookies=3)
        bookies.bookies["a"].resume()
        await look_until(session, lambda state: state.absent_bookies == ["b", "unregistered"])


async def test_a_bookie_that_is_read_only_takes_no_writes(
    bookies: MemoryBookies, session: MemorySession
) -> None:
    await ensure_path(session, PATHS.root)
    data, _ = await session.get(f"{LEDGERS_ROOT}/available/a")
    await session.create(f"{LEDGERS_ROOT}/available/readonly/a", data)
    await session.delete(f"{LEDGERS_ROOT}/available/a")
    state = await look(session)
    assert state.members[0] == Member("bookie", "a", "read-only")
    assert state.absent_bookies == []
    assert "2 of 3 bookies: serves" in state.missing(bookies=3)


def test_a_server_that_hangs_is_told_from_one_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimedOutError):
            ask_segment_store("127.0.0.1", port, seconds_max=0.1)
        with pytest.raises(TimedOutError):
            ask_controller("127.0.0.1", port, seconds_max=0.1)
    with pytest.raises(UnavailableError):
        ask_segment_store("127.0.0.1", port, seconds_max=1)
    with pytest.raises(UnavailableError):
        ask_controller("127.0.0.1", port, seconds_max=5)


def secure(directory: Path, authority: trustme.CA) -> dict[str, Any]:
    """Make a certificate, keys of tokens and users; return the settings that servers share."""
    paths = {name: directory / name for name in ("server.pem", "server.key", "token.key")}
    certificate = authority.issue_cert("127.0.0.1")
    paths["server.pem"].write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    paths["server.key"].write_bytes(certificate.private_key_pem.bytes())
    create_key_file(paths["token.key"], now=int(time.time()))

    def add(file: AccountsFile) -> None:
        for name, rules in (("ann", "prn::*,READ"), ("bob", "prn::/scope:demo,READ")):
            file.put(Account(name, hash_password(PASSWORD, rounds=1), parse_access_rules(rules)))

    change_accounts_file(directory / "passwd", add)
    tls = TlsSettings(certificate=paths["server.pem"], key=paths["server.key"])
    return {"tls": tls, "token_keys": paths["token.key"]}


async def test_a_secured_cluster_is_looked_at_by_a_user(
    bookies: MemoryBookies, session: MemorySession, tmp_path: Path, nursery: trio.Nursery
) -> None:
    authority = trustme.CA()
    shared = secure(tmp_path, authority)
    with trio.fail_after(SECONDS_MAX):
        host, _ = await start_store(bookies, tmp_path, nursery, **shared)
        await start_controller(session, nursery, accounts=tmp_path / "passwd", **shared)
        await session.create(PATHS.container_map, encode_map({host: frozenset({0, 1})}))
        tls = ClientTls(authority.cert_pem.bytes())
        ann = {"tls": tls, "credentials": Credentials.from_password("ann", PASSWORD)}
        state = await look_until(session, lambda state: not state.missing(), **ann)
        assert [each.state for each in state.members[:2]] == ["serves"] * 2
        for access, sentence in (
            ({}, "speaks TLS: give --ca FILE"),
            ({"tls": ClientTls(trustme.CA().cert_pem.bytes())}, "not from an authority"),
            ({"tls": tls}, "asks who calls"),
            (
                {"tls": tls, "credentials": Credentials.from_password("bob", PASSWORD)},
                "user bob has no permission",
            ),
        ):
            state = await look(session, **access)
            assert state.members[0].state == "unknown"
            assert sentence in state.members[0].mistake
            assert state.members[0].mistake in state.missing()


def test_a_check_tells_tls_from_none() -> None:
    authority = trustme.CA()
    certificate, tls = authority.issue_cert("127.0.0.1"), ClientTls(authority.cert_pem.bytes())
    for with_tls in (True, False):
        asked = certificate if with_tls else None
        fits, differs = (tls, None) if with_tls else (None, tls)
        sentence = "speaks TLS: give --ca FILE" if with_tls else "speaks no TLS"
        with (
            running_store(lambda command: [HELLO], asked) as store,
            Controller().running(asked) as controller,
        ):
            ask_segment_store("127.0.0.1", store, seconds_max=5.0, tls=fits)
            ask_controller("127.0.0.1", controller, seconds_max=5.0, tls=fits)
            with pytest.raises(UntrustedServerError, match=sentence):
                ask_segment_store("127.0.0.1", store, seconds_max=5.0, tls=differs)
            with pytest.raises(UntrustedServerError, match=sentence):
                ask_controller("127.0.0.1", controller, seconds_max=5.0, tls=differs)
            with pytest.raises(UnavailableError, match="controller's port, not a segment store's"):
                ask_segment_store("127.0.0.1", controller, seconds_max=5.0, tls=fits)
            with pytest.raises(UnavailableError, match="segment store's port, not a controller's"):
                ask_controller("127.0.0.1", store, seconds_max=5.0, tls=fits)
