"""Tokens are asked for when they are needed, and not more often."""

from __future__ import annotations

from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire import commands as wire
from pravega_wire.event_framing import frame_events
from segstore_client.access.credentials import Credentials
from segstore_client.access.settings import ClientAccess
from segstore_client.access.tls import ClientTls
from segstore_client.access.tokens import (
    RENEWAL_SECONDS,
    DelegationTokens,
    StoreAccess,
    TokenExpiredError,
    read_token_times,
)
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.segment_info import tail_offsets
from segstore_client.errors import NoPermissionError, UntrustedServerError
from support.secure_servers import Controller, make_token, running_store


class Clock:
    """A clock that a test sets, and what asks for tokens by another one."""

    def __init__(self, server_is_ahead: float = 0.0) -> None:
        self.now = 1_000_000.0
        self.asked = 0
        self._ahead = server_is_ahead

    def ask(self) -> str:
        self.asked += 1
        server = self.now + self._ahead
        return make_token(server, server + 600, self.asked)

    def tokens(self, **how: Any) -> DelegationTokens:
        return DelegationTokens(self.ask, now=lambda: self.now, **how)


def test_a_token_is_asked_for_anew_before_it_expires() -> None:
    clock = Clock()
    tokens = clock.tokens()
    first = tokens.get()
    clock.now += 600 - RENEWAL_SECONDS - 1
    assert tokens.get() == first
    clock.now += 1
    assert tokens.get() != first
    assert clock.asked == 2


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_token_lasts_as_long_on_a_machine_with_another_clock(ahead: float) -> None:
    clock = Clock(ahead)
    tokens = clock.tokens()
    for _ in range(5):
        tokens.get()
        clock.now += 100
    assert clock.asked == 1
    clock.now += 100
    tokens.get()
    assert clock.asked == 2


def test_a_token_of_another_process_is_used_until_it_expires() -> None:
    clock = Clock()
    tokens = clock.tokens(known=make_token(clock.now - 500, clock.now + 100))
    tokens.get()
    assert clock.asked == 0
    clock.now += 100
    tokens.get()
    assert clock.asked == 1


def test_a_token_without_times_is_kept_until_a_store_refuses_it() -> None:
    tokens = DelegationTokens(iter(["one", "two"]).__next__)
    assert [tokens.get(), tokens.get()] == ["one", "one"]
    tokens.forget()
    assert tokens.get() == "two"


@given(st.text())
def test_texts_that_are_no_tokens_have_no_times(text: str) -> None:
    assert read_token_times(f"a.{text.replace('.', '')}.b") == (None, None)


def info_of(request: wire.GetStreamSegmentInfo) -> wire.StreamSegmentInfo:
    return wire.StreamSegmentInfo(request.request_id, request.segment, True, False, False, 0, 10, 0)


class Store:
    """A store with one segment, which accepts all tokens, or calls some expired."""

    def __init__(self, *, expired: tuple[str, ...] = (), refused: bool = False) -> None:
        self.tokens: list[str] = []
        self._expired = expired
        self._refused = refused
        self._data = frame_events([b"a", b"b"])

    def answer(self, command: Any) -> list[wire.Reply]:
        if isinstance(command, wire.KeepAlive):
            return [wire.KeepAlive()]
        if not isinstance(command, wire.Append if hasattr(wire, "Append") else ()) and hasattr(
            command, "delegation_token"
        ):
            self.tokens.append(command.delegation_token)
            if self._refused or command.delegation_token in self._expired:
                return [wire.AuthTokenCheckFailed(command.request_id, "", int(not self._refused))]
        match command:
            case wire.GetStreamSegmentInfo():
                return [info_of(command)]
            case wire.ReadSegment(segment=segment, offset=offset, request_id=request_id):
                data = self._data[offset:]
                return [wire.SegmentRead(segment, offset, False, not data, data, request_id)]
            case wire.SetupAppend(request_id, writer_id, segment, _):
                return [wire.AppendSetup(request_id, segment, writer_id, 0)]
            case _:
                number = command.last_event_number
                return [wire.DataAppended(command.writer_id, number, 0, command.request_id, 9)]


def open_client(port: int, ca: trustme.CA | None = None, *, known: bool = True) -> ControllerClient:
    credentials = Credentials.from_password("alice", "wonder land") if known else None
    tls = ClientTls() if ca is None else ClientTls(ca.cert_pem.bytes())
    scheme = "tcp" if ca is None else "tls"
    access = ClientAccess(credentials, tls)
    return ControllerClient(f"{scheme}://127.0.0.1:{port}", patience=0, access=access)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("secured", [False, True])
def test_streams_are_written_and_read_with_tokens(authority: trustme.CA, secured: bool) -> None:
    store = Store()
    certificate = authority.issue_cert("127.0.0.1") if secured else None
    with running_store(store.answer, certificate) as store_port:
        controller = Controller(store_port)
        with (
            controller.running(certificate) as port,
            open_client(port, authority if secured else None) as client,
        ):
            with BlockingEventWriter(client, "s", "a", patience=5) as writer:
                writer.submit(b"event")
                writer.flush()
            with BlockingEventReader(client, "s", "a", patience=5) as reader:
                events = [reader.next_event(timeout=10) for _ in range(2)]
            assert tail_offsets(client, "s", "a") == {0: 10}
    assert [event.data for event in events if event is not None] == [b"a", b"b"]
    assert controller.accesses == ["WRITE", "READ", "READ"]
    assert set(store.tokens) == {"token-1", "token-2", "token-3"}


def test_without_credentials_no_token_is_asked_for() -> None:
    store = Store()
    with running_store(store.answer) as store_port:
        controller = Controller(store_port, users=())
        with controller.running() as port, open_client(port, known=False) as client:
            with BlockingEventWriter(client, "s", "a", patience=5) as writer:
                writer.submit(b"event")
            assert tail_offsets(client, "s", "a") == {0: 10}
    assert controller.accesses == []
    assert set(store.tokens) == {""}
    assert {header for _, header in controller.calls} == {""}


def test_a_token_that_a_store_calls_expired_is_asked_for_anew() -> None:
    store = Store(expired=("token-1", "token-3", "token-5"))
    with running_store(store.answer) as store_port:
        controller = Controller(store_port)
        with controller.running() as port, open_client(port) as client:
            with BlockingEventWriter(client, "s", "a", patience=20) as writer:
                writer.submit(b"event")
                writer.flush()
            with BlockingEventReader(client, "s", "a", patience=20) as reader:
                assert reader.next_event(timeout=20) is not None
            assert tail_offsets(client, "s", "a") == {0: 10}
    assert len(controller.accesses) == 6


def test_a_refused_token_is_told_and_not_tried_again() -> None:
    store = Store(refused=True)
    with running_store(store.answer) as store_port:
        controller = Controller(store_port)
        with controller.running() as port, open_client(port) as client:
            with BlockingEventWriter(client, "s", "a", patience=20) as writer:
                writer.submit(b"event")
                with pytest.raises(NoPermissionError, match=r"write to segment s/a/0.* the token"):
                    writer.flush()
                writer.close()
                writer._segment_writers.clear()
            with (
                BlockingEventReader(client, "s", "a", patience=20) as reader,
                pytest.raises(NoPermissionError, match="no permission to read s/a"),
            ):
                reader.next_event(timeout=20)
            with pytest.raises(NoPermissionError, match="no permission to read segment s/a/0"):
                tail_offsets(client, "s", "a")
    assert len(store.tokens) == 3


def test_who_has_no_token_is_told_what_to_do() -> None:
    refusal = StoreAccess().refusal(wire.AuthTokenCheckFailed(1, "", 0), "no permission")
    assert isinstance(refusal, NoPermissionError)
    assert "SEGSTORE_USER" in str(refusal)
    tokens = DelegationTokens(lambda: "x")
    expired = StoreAccess(tokens=tokens).refusal(wire.AuthTokenCheckFailed(1, "", 1), "no")
    assert isinstance(expired, TokenExpiredError)


def test_a_store_with_a_certificate_of_others_is_not_waited_for(authority: trustme.CA) -> None:
    with running_store(Store().answer, trustme.CA().issue_cert("127.0.0.1")) as port:
        access = StoreAccess(tls=ClientTls(authority.cert_pem.bytes()))
        with pytest.raises(UntrustedServerError, match="not from an authority"):
            access.connect("127.0.0.1", port, timeout=10)
