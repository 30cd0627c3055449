"""The parts of a session that need no server: its timer, and a server that is absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent, ZnodeStat
from trio.testing import MockClock

from zookeeper_client.api import ConnectionLostError, SessionLostError
from zookeeper_client.kazoo_session import KazooSession, open_zookeeper
from zookeeper_client.tls_settings import ZooKeeperTlsSettings

CLIENT = KazooClient()
CLIENT_STAT = ZnodeStat(*[0] * len(ZnodeStat._fields))
SECONDS = 10.0


async def test_a_connection_that_is_gone_for_a_session_is_a_lost_session(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        session = KazooSession(CLIENT, SECONDS, nursery)
        began = trio.current_time()
        session.on_state_in_thread(KazooState.SUSPENDED)
        session.on_state_in_thread(KazooState.SUSPENDED)
        await session.lost.wait()
        assert trio.current_time() - began == pytest.approx(SECONDS)
        with pytest.raises(SessionLostError):
            await session.get("/")


async def test_a_connection_that_comes_back_keeps_the_session(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        session = KazooSession(CLIENT, SECONDS, nursery)
        for _ in range(3):
            session.on_state_in_thread(KazooState.SUSPENDED)
            await trio.sleep(SECONDS * 0.9)
            session.on_state_in_thread(KazooState.CONNECTED)
            await trio.sleep(SECONDS * 0.9)
        assert not session.lost.is_set()


async def test_kazoo_knows_earlier_when_it_reaches_a_server(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        session = KazooSession(CLIENT, SECONDS, nursery)
        began = trio.current_time()
        session.on_state_in_thread(KazooState.LOST)
        await session.lost.wait()
        assert trio.current_time() == began


class ForgetfulClient:
    """A client of kazoo that has a watch, and forgets it as kazoo does when a connection ends."""

    def get_async(self, path: str, watch: Callable[[WatchedEvent], None]) -> AsyncResult:
        self.watch = watch
        answer = SequentialThreadingHandler().async_result()
        answer.set((b"", CLIENT_STAT))
        return answer


async def test_a_watch_that_is_forgotten_with_the_connection_is_told(
    nursery: trio.Nursery,
) -> None:
    client = ForgetfulClient()
    session = KazooSession(cast("KazooClient", client), SECONDS, nursery)
    told = trio.Event()
    await session.get("/a", told.set)
    client.watch(WatchedEvent(EventType.NONE, KeeperState.CONNECTING, None))
    with trio.fail_after(60):
        await told.wait()
    assert not session.lost.is_set()


async def test_a_server_that_is_not_there_is_told(unused_port: int, nursery: trio.Nursery) -> None:
    with pytest.raises(ConnectionLostError, match="does not answer"):
        async with open_zookeeper(f"127.0.0.1:{unused_port}", nursery, connect_seconds_max=0.2):
            raise AssertionError("there is none")


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.parametrize("file", ["ca.pem", "own.pem"])
@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_file_of_certificates_that_cannot_be_read_is_named(
    tmp_path: Path, nursery: trio.Nursery, file: str, content: str | None
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    path = tmp_path / file
    if file == "ca.pem":
        tls = ZooKeeperTlsSettings(ca=path)
    else:
        tls = ZooKeeperTlsSettings(certificate=path, key=path)
    with pytest.raises(ConnectionLostError, match=rf"{file}.* cannot be read"):
        async with open_zookeeper("127.0.0.1:1", nursery, tls=tls):
            pass


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set together"):
        ZooKeeperTlsSettings(certificate=tmp_path / "own.pem")
