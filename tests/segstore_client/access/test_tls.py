"""Each mistake with TLS is told apart from a server that is not there."""

from __future__ import annotations

import datetime
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from segstore_client.access.settings import ClientAccess
from segstore_client.access.tls import ClientTls, find_tls_mistake, make_context, read_ca
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import (
    PravegaError,
    UnavailableError,
    UntrustedServerError,
    UsageError,
)
from support.secure_servers import Controller, running_store

OPEN = Controller(users=())
HANDSHAKE = b"\x16"
"""The first byte of a client that speaks TLS."""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def call(port: int, ca: trustme.CA, scheme: str = "tls", **tls: Any) -> list[str]:
    access = ClientAccess(None, ClientTls(ca.cert_pem.bytes(), **tls))
    address = f"{scheme}://127.0.0.1:{port}"
    with ControllerClient(address, patience=0, access=access) as client:
        return list(client.list_scopes())


def test_a_controller_with_tls_is_called(authority: trustme.CA) -> None:
    with OPEN.running(authority.issue_cert("127.0.0.1")) as port:
        assert call(port, authority) == []


def test_each_mistake_with_tls_has_its_own_sentence(authority: trustme.CA) -> None:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    old = authority.issue_cert("127.0.0.1", not_before=now - 2 * day, not_after=now - day)
    early = authority.issue_cert("127.0.0.1", not_before=now + day, not_after=now + 2 * day)
    for certificate, sentence in (
        (trustme.CA().issue_cert("127.0.0.1"), "not from an authority that this client trusts"),
        (old, "has expired"),
        (early, "is not valid yet"),
        (authority.issue_cert("elsewhere.example"), r"is not for the name 127\.0\.0\.1"),
        (None, "speaks no TLS: say tcp://"),
    ):
        with (
            OPEN.running(certificate) as port,
            pytest.raises(UntrustedServerError, match=sentence),
        ):
            call(port, authority)


def test_a_controller_with_tls_that_is_called_without_is_told(authority: trustme.CA) -> None:
    with (
        OPEN.running(authority.issue_cert("127.0.0.1")) as port,
        pytest.raises(UntrustedServerError, match=f"speaks TLS, so say tls://127.0.0.1:{port}"),
    ):
        call(port, authority, "tcp")


def test_nobody_is_not_a_mistake_of_tls(authority: trustme.CA) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match="no controller answers"):
        call(port, authority)


def test_the_port_of_a_store_is_told_by_tls_too(authority: trustme.CA) -> None:
    with running_store(lambda _: [], authority.issue_cert("127.0.0.1")) as port:
        with pytest.raises(UnavailableError, match="is a segment store's port"):
            call(port, authority)
        with pytest.raises(PravegaError, match="speaks TLS"):
            call(port, authority, "tcp")
    with (
        running_store(lambda _: []) as port,
        pytest.raises(UntrustedServerError, match="speaks no TLS"),
    ):
        call(port, authority)


def test_a_client_shows_its_certificate_to_who_requires_one(
    authority: trustme.CA, tmp_path: Path
) -> None:
    own = authority.issue_cert("client")
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    certificate.write_bytes(b"".join(each.bytes() for each in own.cert_chain_pems))
    own.private_key_pem.write_to_path(str(key))
    roots = authority.cert_pem.bytes()
    with OPEN.running(authority.issue_cert("127.0.0.1"), roots) as port:
        assert call(port, authority, certificate=certificate, key=key) == []
        with pytest.raises(UntrustedServerError, match="requires a certificate of the client"):
            call(port, authority)


def test_a_silent_server_is_no_mistake(authority: trustme.CA) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tls = ClientTls(authority.cert_pem.bytes())
        assert find_tls_mistake("127.0.0.1", port, tls, seconds_max=0.1) == ""


@pytest.mark.parametrize(
    ("settings", "told"),
    [(bytes(3) + b"\4" + bytes(5), "speaks no TLS: say tcp://"), (b"", "")],
    ids=["an answer", "no answer"],
)
def test_a_server_that_hangs_up_on_tls_is_asked_in_the_clear(
    authority: trustme.CA, settings: bytes, told: str
) -> None:
    """One that begins as HTTP/2 does speaks no TLS; one that says nothing is only away."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as accepted:
                    if not accepted.recv(65536).startswith(HANDSHAKE):
                        accepted.sendall(settings)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=[listener])
        server.start()
        try:
            port = listener.getsockname()[1]
            tls = ClientTls(authority.cert_pem.bytes())
            found = find_tls_mistake("127.0.0.1", port, tls, seconds_max=60)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()
    assert told in found
    assert bool(found) == bool(told)


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(UsageError, match="cannot be read"):
        read_ca(path)
    path.write_text("nothing")
    with pytest.raises(UsageError, match="no certificate"):
        read_ca(path)
    path.write_text("-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n")
    with pytest.raises(UsageError, match="cannot be used"):
        make_context(ClientTls(read_ca(path)))


def test_what_is_wrong_with_the_client_s_own_certificate_is_told(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key, other = (tmp_path / name for name in ("own.pem", "own.key", "other.key"))
    own = authority.issue_cert("client")
    own.cert_chain_pems[0].write_to_path(str(certificate))
    own.private_key_pem.write_to_path(str(key))
    authority.issue_cert("other").private_key_pem.write_to_path(str(other))
    make_context(ClientTls(None, certificate, key))
    for files, sentence in (
        ((certificate, None), "name the key, such as by SEGSTORE_CLIENT_KEY"),
        ((certificate, other), f"{other} is not the key of the client's certificate {certificate}"),
        ((certificate, tmp_path / "away"), "away cannot be read: No such file or directory"),
        ((key, key), f"{key} is no certificate, or {key} no key, in PEM form"),
    ):
        with pytest.raises(UsageError) as refused:
            make_context(ClientTls(None, *files))
        assert sentence in str(refused.value)


def hang_up(accepted: socket.socket) -> None:
    """End a connection by a reset, as that of a process that was killed ends."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()


@pytest.mark.parametrize("moment", ["in the handshake", "after the handshake"])
def test_a_server_that_ends_is_no_mistake(authority: trustme.CA, moment: str) -> None:
    """A controller is killed while a client looks; what relays to it hangs up from then on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ended = threading.Event()
    firsts: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        is_first = True
        while not ended.is_set():
            with suppress(OSError):
                accepted = listener.accept()[0]
                if is_first and moment == "after the handshake":
                    accepted = context.wrap_socket(accepted, server_side=True)
                else:
                    firsts.append(accepted.recv(1))
                is_first = False
                hang_up(accepted)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        server = threading.Thread(target=serve, args=[listener])
        server.start()
        try:
            port = listener.getsockname()[1]
            tls = ClientTls(authority.cert_pem.bytes())
            assert find_tls_mistake("127.0.0.1", port, tls, seconds_max=60, was_served=True) == ""
            assert set(firsts) <= {HANDSHAKE}
            assert find_tls_mistake("127.0.0.1", port, tls, seconds_max=60) == ""
            with pytest.raises(UnavailableError, match="no controller answers"):
                call(port, authority)
        finally:
            ended.set()
            server.join()
