"""The limits that a program gives to its calls, while servers are silent or away."""

from __future__ import annotations

import itertools
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from segstore_client import blocking
from segstore_client.blocking import BlockingStore
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.segments import segment_reads
from segstore_client.blocking.states import revision_log
from segstore_client.controller import controller_calls
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.bounds import Bounds
from segstore_client.errors import TimedOutError, UnavailableError
from support.served_stream import run, serve_stream

FOR_EVER = 1e6


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each limit of the client's own longer than a test may take."""
    monkeypatch.setattr(segment_reads, "REPLY_SECONDS", FOR_EVER)
    monkeypatch.setattr(segment_reads, "KEEP_ALIVE_SECONDS", FOR_EVER)
    monkeypatch.setattr(revision_log, "REPLY_SECONDS", FOR_EVER)
    monkeypatch.setattr(controller_calls, "CALL_SECONDS", FOR_EVER)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Yield the port of a server that never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def find_nothing(reader: Any) -> None:
    assert reader.next_event(timeout=0.1) is None
    assert reader.next_batch(timeout=0.0) == []


def test_a_reader_is_back_in_time_when_a_segment_store_is_silent(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ControllerClient("tcp://127.0.0.1:9") as client:
        monkeypatch.setattr(client, "segment_address", lambda *_: ("127.0.0.1", silent_port))
        with BlockingEventReader(client, "s", "t", bounds=Bounds({0: 0}, {})) as reader:
            find_nothing(reader)


def test_a_reader_is_back_in_time_when_the_controller_is_silent(silent_port: int) -> None:
    with (
        ControllerClient(f"tcp://127.0.0.1:{silent_port}") as client,
        BlockingEventReader(client, "s", "t", bounds=Bounds({0: 0}, {})) as reader,
    ):
        find_nothing(reader)


def test_a_reader_that_is_asked_for_short_times_gives_up_in_the_end(silent_port: int) -> None:
    bounds = Bounds({0: 0}, {})
    with (
        ControllerClient(f"tcp://127.0.0.1:{silent_port}") as client,
        BlockingEventReader(client, "s", "t", bounds=bounds, patience=2.0) as reader,
        pytest.raises(UnavailableError, match="s/t could not be read for 2 s"),
    ):
        any(reader.next_event(timeout=0.0) for _ in itertools.count())


@contextmanager
def alarmed(server: socket.socket) -> Iterator[None]:
    """Raise ``TimeoutError`` in this thread as soon as something connects to a server."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("the program's own")

    def wait() -> None:
        with server.accept()[0]:
            signal.pthread_kill(main, signal.SIGUSR1)
            done.wait()

    main, done = threading.get_ident(), threading.Event()
    before = signal.signal(signal.SIGUSR1, interrupt)
    other = threading.Thread(target=wait)
    other.start()
    try:
        yield
    finally:
        done.set()
        other.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_time_of_the_programs_own_ends_a_wait(
    monkeypatch: pytest.MonkeyPatch, is_controller: bool
) -> None:
    """It was taken for a limit of the client's, which tried again."""
    bounds = Bounds({0: 0}, {})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        if not is_controller:
            monkeypatch.setattr(ControllerClient, "segment_address", lambda *_: (host, port))
        with (
            ControllerClient(f"tcp://{host}:{port if is_controller else 9}") as client,
            BlockingEventReader(client, "s", "t", bounds=bounds) as reader,
            alarmed(silent),
            pytest.raises(TimeoutError, match="the program's own"),
        ):
            reader.next_event(timeout=FOR_EVER)


def read_while_away(store: BlockingStore, stop: Any) -> None:
    store.create_group("s/g", ["s/t"])
    group = store.group("s/g")
    with group.reader("one") as reader, store.reader("s/t") as alone:
        assert reader.next_event(timeout=60.0) is not None
        assert alone.next_event(timeout=60.0) is not None
        stop()
        find_nothing(reader)
        find_nothing(alone)
        with pytest.raises(TimedOutError):
            group.checkpoint("c", timeout=0.1)
        with pytest.raises(TimedOutError):
            store.scale_stream("s/t", 2, timeout=0.1)


@pytest.mark.proof
async def test_readers_are_back_in_time_while_all_servers_are_away(tmp_path: Path) -> None:
    """A reader of a group waited for as long as its patience lasts."""

    def read(address: str, stop: Any) -> None:
        with blocking.connect(address, patience=FOR_EVER) as store:
            read_while_away(store, stop)

    async with trio.open_nursery() as nursery:
        stream = await serve_stream(nursery, tmp_path)
        await stream.make(1)
        stop = nursery.cancel_scope.cancel
        with trio.CancelScope(shield=True):
            await run(read, stream.address, lambda: trio.from_thread.run_sync(stop))
