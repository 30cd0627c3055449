"""The blocking client against a server on a real socket."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pravega_wire import blocking
from pravega_wire.blocking import ConnectionLostError, ReplyTimeoutError, SegmentConnection
from pravega_wire.codec import encode
from pravega_wire.commands import (
    HELLO,
    AppendSetup,
    Command,
    DataAppended,
    GetStreamSegmentInfo,
    Hello,
    KeepAlive,
    NoSuchSegment,
    Reply,
    SealSegment,
    SegmentIsSealed,
    SegmentSealed,
    SetupAppend,
)
from pravega_wire.connection import Append, Connection, Role, append_block
from pravega_wire.errors import RemoteProtocolError

WRITER = bytes(range(16))

Answer = Callable[[Command | Append], list[Reply]]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """Serve one connection with ``answer``, which may raise EOFError to close it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_one, args=(listener, answer))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(10)
    assert not thread.is_alive()


def serve_one(listener: socket.socket, answer: Answer) -> None:
    peer, _ = listener.accept()
    connection = Connection(Role.SERVER)
    with peer, contextlib.suppress(EOFError, ConnectionError):
        while data := peer.recv(65536):
            for command in connection.receive_data(data):
                for reply in answer(command):
                    peer.sendall(connection.send(reply))


def answer_usually(command: Command | Append) -> list[Reply]:
    match command:
        case Hello():
            return [HELLO]
        case KeepAlive():
            return [KeepAlive()]
        case SetupAppend(request_id, writer_id, segment, _):
            return [AppendSetup(request_id, segment, writer_id, 0)]
        case Append():
            number = command.last_event_number
            return [DataAppended(command.writer_id, number, number - 1, command.request_id, 9)]
        case SealSegment(request_id, segment, _):
            return [NoSuchSegment(-5, "another"), SegmentSealed(request_id, segment)]
        case GetStreamSegmentInfo(request_id, segment, _):
            return [NoSuchSegment(request_id, segment)]
        case _:
            raise EOFError


def test_a_call_returns_the_reply_of_its_request() -> None:
    with serving(answer_usually) as port, SegmentConnection("127.0.0.1", port) as connection:
        assert connection.server_hello == HELLO
        request_id = connection.next_request_id()
        reply = connection.call(SetupAppend(request_id, WRITER, "s", ""))
        assert reply == AppendSetup(request_id, "s", WRITER, 0)
        frames = append_block(WRITER, [b"event"], last_event_number=1, request_id=request_id)
        connection.send_bytes(frames)
        assert connection.receive() == DataAppended(WRITER, 1, 0, request_id, 9)


def test_a_refusal_is_returned_like_any_reply() -> None:
    with serving(answer_usually) as port, SegmentConnection("127.0.0.1", port) as connection:
        request = GetStreamSegmentInfo(connection.next_request_id(), "s", "")
        assert connection.call(request) == NoSuchSegment(request.request_id, "s")


def test_other_replies_wait_for_receive_in_their_order() -> None:
    with serving(answer_usually) as port, SegmentConnection("127.0.0.1", port) as connection:
        connection.send(GetStreamSegmentInfo(100, "earlier", ""))
        assert connection.call(SealSegment(1, "s", "")) == SegmentSealed(1, "s")
        assert connection.receive() == NoSuchSegment(100, "earlier")
        assert connection.receive() == NoSuchSegment(-5, "another")


def test_all_replies_of_one_read_come_out_together() -> None:
    with serving(answer_usually) as port, SegmentConnection("127.0.0.1", port) as connection:
        connection.call(SealSegment(1, "s", ""))
        assert connection.receive_some() == [NoSuchSegment(-5, "another")]
        connection.send(KeepAlive())
        readable, _, _ = select.select([connection], [], [], 10)
        assert readable == [connection]
        assert connection.receive_some() == []
        connection.timeout = 0.05
        with pytest.raises(ReplyTimeoutError):
            connection.receive_some()


def test_request_ids_are_not_given_twice() -> None:
    with serving(answer_usually) as port, SegmentConnection("127.0.0.1", port) as connection:
        assert len({connection.next_request_id() for _ in range(100)}) == 100


def test_keep_alives_of_the_server_are_swallowed() -> None:
    with serving(answer_usually) as port, SegmentConnection("127.0.0.1", port) as connection:
        connection.send(KeepAlive())
        assert connection.call(SealSegment(1, "s", "")) == SegmentSealed(1, "s")
        assert connection.receive() == NoSuchSegment(-5, "another")
        with pytest.raises(ReplyTimeoutError):
            connection.receive(timeout=0.1)


def test_a_silent_server_is_a_timeout_that_names_it() -> None:
    def answer(command: Command | Append) -> list[Reply]:
        return [HELLO] if isinstance(command, Hello) else []

    with (
        serving(answer) as port,
        SegmentConnection("127.0.0.1", port, timeout=0.1) as connection,
    ):
        started = time.monotonic()
        with pytest.raises(ReplyTimeoutError, match=rf"127\.0\.0\.1:{port} within 0\.1 s"):
            connection.call(SealSegment(1, "s", ""))
        with pytest.raises(ReplyTimeoutError, match=r"within 0\.2 s"):
            connection.receive(timeout=0.2)
        assert 0.3 <= time.monotonic() - started < 30


def test_replies_before_a_timeout_are_not_lost() -> None:
    def answer(command: Command | Append) -> list[Reply]:
        return [HELLO] if isinstance(command, Hello) else [NoSuchSegment(-5, "another")]

    with (
        serving(answer) as port,
        SegmentConnection("127.0.0.1", port, timeout=0.1) as connection,
    ):
        with pytest.raises(TimeoutError):
            connection.call(SealSegment(1, "s", ""))
        assert connection.receive() == NoSuchSegment(-5, "another")


def test_a_closed_connection_is_an_error_that_names_the_server() -> None:
    def answer(command: Command | Append) -> list[Reply]:
        if isinstance(command, Hello):
            return [HELLO]
        raise EOFError

    with serving(answer) as port, SegmentConnection("127.0.0.1", port) as connection:
        with pytest.raises(ConnectionLostError, match=f":{port} closed the connection"):
            connection.call(SealSegment(1, "s", ""))
        with pytest.raises(ConnectionLostError):
            connection.receive()


def test_a_server_that_cannot_be_reached_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLostError, match=f"cannot connect to 127.0.0.1:{port}"):
        SegmentConnection("127.0.0.1", port, timeout=5)


@pytest.mark.parametrize(("high", "low"), [(4, 1), (18, 17)])
def test_a_server_of_other_versions_is_refused(high: int, low: int) -> None:
    with (
        serving(lambda _: [Hello(high, low)]) as port,
        pytest.raises(ConnectionLostError, match="other versions"),
    ):
        SegmentConnection("127.0.0.1", port)


def test_a_server_that_does_not_say_hello_is_refused() -> None:
    with (
        serving(lambda _: [SegmentIsSealed(1, "s")]) as port,
        pytest.raises(ConnectionLostError, match="answered Hello with SegmentIsSealed"),
    ):
        SegmentConnection("127.0.0.1", port)


def test_a_server_that_speaks_something_else_breaks_the_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                peer.recv(100)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(RemoteProtocolError):
            SegmentConnection("127.0.0.1", listener.getsockname()[1])
        thread.join(10)


def test_a_command_without_a_request_id_cannot_be_called() -> None:
    with (
        serving(answer_usually) as port,
        SegmentConnection("127.0.0.1", port) as connection,
        pytest.raises(ValueError, match="carries no request id"),
    ):
        connection.call(KeepAlive())


def test_a_large_reply_comes_in_many_pieces() -> None:
    stack = "x" * 65_000

    def answer(command: Command | Append) -> list[Reply]:
        if isinstance(command, SealSegment):
            return [NoSuchSegment(-1, "s", stack)] * 20 + [SegmentSealed(command.request_id, "s")]
        return [HELLO]

    with serving(answer) as port, SegmentConnection("127.0.0.1", port) as connection:
        assert connection.call(SealSegment(1, "s", "")) == SegmentSealed(1, "s")
        for _ in range(20):
            assert connection.receive() == NoSuchSegment(-1, "s", stack)
        assert len(encode(NoSuchSegment(-1, "s", stack))) > 65_000


def test_who_waits_is_called_meanwhile_and_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "WAIT_SECONDS", 0.02)
    calls: list[None] = []
    answers = threading.Event()

    def note() -> None:
        calls.append(None)
        if len(calls) == 3:
            answers.set()

    def answer(command: Command | Append) -> list[Reply]:
        if isinstance(command, SealSegment):
            answers.wait(10)
        return answer_usually(command)

    with (
        serving(answer) as port,
        SegmentConnection("127.0.0.1", port, timeout=10.0, on_wait=note) as connection,
    ):
        assert connection.call(SealSegment(1, "s", "")) == SegmentSealed(1, "s")
        assert len(calls) >= 3


def test_a_server_that_takes_no_data_is_waited_for_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking, "WAIT_SECONDS", 0.02)
    waits: list[None] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        received: list[int] = []

        def take() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(encode(HELLO))
                while len(waits) < 3:
                    time.sleep(0.01)
                while data := peer.recv(1 << 20):
                    received.append(len(data))

        thread = threading.Thread(target=take)
        thread.start()
        port = listener.getsockname()[1]
        connection = SegmentConnection(
            "127.0.0.1", port, timeout=30.0, on_wait=lambda: waits.append(None)
        )
        with connection:
            connection.send_bytes(bytes(64 << 20))
        thread.join(30)
    assert sum(received) == (64 << 20) + len(encode(HELLO))
    assert len(waits) >= 3
