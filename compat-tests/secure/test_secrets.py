"""Passwords, tokens and keys, used rightly and wrongly, are shown nowhere."""

from __future__ import annotations

import base64
import itertools
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from compat_harness.secure import SecureServer, read_if_there
from compat_harness.server import HOST

from pravega_security.delegation_tokens import TokenMinter
from pravega_security.resources import Level, stream_resource
from pravega_security.signing_keys import SigningKeys
from pravega_wire import commands as wire
from pravega_wire import controller_pb2 as pb
from pravega_wire.codec import encode
from pravega_wire.connection import Connection, Role

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

MARK = "unlikely-mark"
"""A part of each wrong secret."""
KEY_FILES = ("token.key", "ca.key", "server.key")
"""The files that have keys. Nothing else has one."""
STREAM = "secrets/events"
SEGMENT = f"{STREAM}/0.#epoch.0"


@pytest.fixture(scope="module")
def store(secure_server: SecureServer) -> SecureServer:
    for arguments in (("scope", "create", "secrets"), ("stream", "create", STREAM)):
        done = secure_server.run_as("admin", *arguments)
        assert done.returncode == 0, done.stderr
    secure_server.add_user("teller", (f"prn::/scope:{STREAM.replace('/', '/stream:')}", "READ"))
    return secure_server


def security(store: SecureServer, name: str) -> Path:
    return store.data_dir / "security" / name


def mint(store: SecureServer, level: Level) -> str:
    keys = SigningKeys(security(store, "token.key"))
    resource = stream_resource(*STREAM.split("/"))
    return TokenMinter(keys, 600, lambda: 2_000_000_000).mint(resource, level)


def secrets_of(store: SecureServer, tokens: list[str]) -> list[bytes]:
    """Return everything that nobody may see, or a part of it that is long enough."""
    keys = SigningKeys(security(store, "token.key"))
    logins = [
        base64.b64encode(f"{user}:{password}".encode()).rstrip(b"=")[-16:]
        for user, password in store.passwords.items()
    ]
    private = [
        line
        for name in ("ca.key", "server.key")
        for line in security(store, name).read_bytes().splitlines()
        if not line.startswith(b"-")
    ]
    signatures = [token.rpartition(".")[2].encode() for token in tokens]
    passwords = [password.encode() for password in store.passwords.values()]
    return [MARK.encode(), *keys.all_valid, *logins, *private, *signatures, *passwords]


# ---- Uses ----------------------------------------------------------------------------------------


def ask_segment_store(store: SecureServer, token: str) -> bytes:
    """Send requests with a token; return all bytes that come before an answer to the last."""
    context = ssl.create_default_context(cafile=str(store.ca))
    wanted, received = Connection(Role.CLIENT), b""
    with (
        socket.create_connection((HOST, store.segment_store_port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as stream,
    ):
        requests = (
            wire.SetupAppend(1, bytes(range(16)), SEGMENT, token),
            wire.SealSegment(2, f"{SEGMENT}0", token),
            wire.GetStreamSegmentInfo(3, SEGMENT, token),
        )
        stream.sendall(b"".join(map(encode, (wire.HELLO, *requests))))
        while True:
            data = stream.recv(65_536)
            received += data
            replies = wanted.receive_data(data)
            if not data or any(getattr(each, "request_id", 0) == 3 for each in replies):
                return received


def ask_controller(store: SecureServer, header: str) -> bytes:
    """Call the controller with a header; return what it says."""
    credentials = grpc.ssl_channel_credentials(store.ca.read_bytes())
    with grpc.secure_channel(f"localhost:{store.controller_port}", credentials) as channel:
        call = channel.unary_unary(
            "/io.pravega.controller.stream.api.grpc.v1.ControllerService/checkScopeExists",
            request_serializer=pb.ScopeInfo.SerializeToString,
            response_deserializer=pb.ExistsResponse.FromString,
        )
        try:
            call(pb.ScopeInfo(scope="secrets"), metadata=(("authorization", header),), timeout=20)
        except grpc.RpcError as error:
            return str(error).encode()
    return b""


def use_command_line(store: SecureServer) -> Iterator[bytes]:
    """Use passwords by commands, and print what can be printed; return the output of each."""
    right = dict(store.passwords)
    for user, password in (*right.items(), ("admin", MARK), ("teller", MARK), ("nobody", MARK)):
        store.passwords[user] = password
        for arguments in (("read", STREAM), ("--debug", "write", STREAM), ("check",)):
            done = store.run_as(user, *arguments, given="event\n")
            yield (done.stdout + done.stderr).encode()
    store.passwords.clear()
    store.passwords.update(right)
    shown = (
        ("user", "list", "--file", str(store.accounts)),
        ("token", "show", str(security(store, "token.key"))),
        ("certificate", "show", str(security(store, "server.pem"))),
        ("cluster", "status"),
    )
    for arguments in shown:
        done = store.run_as("admin", *arguments)
        yield (done.stdout + done.stderr).encode()


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue


@pytest.mark.proof
def test_no_secret_is_shown(store: SecureServer) -> None:
    good = [mint(store, Level.READ_UPDATE), mint(store, Level.READ)]
    bad = [f"{good[0][:-20]}{MARK}", MARK, f"{MARK}.{MARK}.{MARK}", "x" * 9000 + MARK]
    login = base64.b64encode(f"admin:{MARK}".encode()).decode()
    headers = [
        f"Basic {login}",
        f"Basic {MARK}",
        f"Bearer {MARK}",
        f"Token {bad[0]}",
        f"Token {good[0]}",
        f"{MARK} {MARK}",
        MARK,
    ]
    said = [
        *(ask_segment_store(store, token) for token in (*good, *bad)),
        *(ask_controller(store, header) for header in headers),
        *use_command_line(store),
    ]
    assert any(b"UNAUTHENTICATED" in each for each in said)
    servers = [each for each in command_lines() if str(store.data_dir).encode() in each]
    assert servers
    files = [
        path
        for path in (store.log_path, *store.data_dir.rglob("*"))
        if path.is_file() and path.name not in KEY_FILES
    ]
    shown = itertools.chain(
        (("an answer", each) for each in said),
        (("a command line", each) for each in command_lines()),
        ((str(path), read_if_there(path)) for path in files),
    )
    secrets = secrets_of(store, [*good, *bad[:1]])
    assert all(len(secret) >= 10 for secret in secrets)
    for place, content in shown:
        assert not any(secret in content for secret in secrets), place
