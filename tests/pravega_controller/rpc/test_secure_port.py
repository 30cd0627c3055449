"""The gRPC port with TLS, called by gRPC's own client: certificates, their renewal, refusals."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import trio
from google.protobuf import message_factory
from structlog.testing import capture_logs

from pravega_controller.config import ConfigurationError, ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.rpc.secure_port import PortCertificate
from pravega_controller.rpc.service import SERVICE
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_security import tls
from pravega_security.certificates import describe_der, make_client, make_server
from pravega_security.tls import TlsSettings
from pravega_wire import controller_pb2 as pb

NAMES = ("localhost", "127.0.0.1", "::1")


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the files before each handshake."""
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the certificate of a server."""
    made = tmp_path / "security"
    make_server(made, now=time.time(), names=NAMES)
    return made


def settings(directory: Path, **others: Any) -> TlsSettings:
    return TlsSettings(certificate=directory / "server.pem", key=directory / "server.key", **others)


async def start(
    store: MemorySegmentStore, nursery: trio.Nursery, tls: TlsSettings | None, **others: Any
) -> int:
    """Serve a controller; return its port."""
    config = ControllerConfig(
        port=0,
        drain_seconds=0.1,
        request_poll_seconds=0.0,
        retention_period_seconds=0.0,
        tls=tls,
        **others,
    )
    environment = Environment(random=Random(7), open_stream=store.open_stream)
    _, port = await nursery.start(partial(serve, config, environment=environment))
    return int(port)


def trusting(directory: Path, **others: Any) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials((directory / "ca.pem").read_bytes(), **others)


async def ask(
    channel: grpc.Channel, name: str = "getControllerServerList", request: Any = None
) -> Any:
    method = SERVICE.methods_by_name[name]
    invoke = channel.unary_unary(
        f"/{SERVICE.full_name}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    request = pb.ServerRequest() if request is None else request
    return await trio.to_thread.run_sync(lambda: invoke(request, timeout=10))


async def refused(channel: grpc.Channel) -> grpc.RpcError:
    with channel, pytest.raises(grpc.RpcError) as caught:
        await ask(channel)
    return caught.value


def shown(port: int, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> str:
    """Return the fingerprint of the certificate that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # OpenSSL itself refuses the older versions otherwise.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.version() == version.name.replace("_", ".")
        assert secure.selected_alpn_protocol() == "h2"
        der = secure.getpeercert(binary_form=True)
    assert der is not None
    return describe_der(der).fingerprint


@pytest.mark.parametrize("host", NAMES)
async def test_clients_are_served_and_sent_to_the_host_they_dialled(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path, host: str
) -> None:
    port = await start(memory_store, nursery, settings(directory), host="::")
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.secure_channel(target, trusting(directory)) as channel:
        answer = await ask(channel)
        assert [(each.endpoint, each.port) for each in answer.nodeURI] == [(host, port)]


async def test_both_versions_are_accepted_and_no_older_one(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path
) -> None:
    port = await start(memory_store, nursery, settings(directory))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        await trio.to_thread.run_sync(shown, port, version)
    old = pytest.warns(DeprecationWarning, match="TLSv1_1")
    with pytest.raises(OSError, match=r"EOF|PROTOCOL_VERSION"), old:
        await trio.to_thread.run_sync(shown, port, ssl.TLSVersion.TLSv1_1)


async def test_idle_clients_may_ping(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path
) -> None:
    port = await start(memory_store, nursery, settings(directory))
    options = (
        ("grpc.keepalive_time_ms", 200),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    states: list[str] = []
    with grpc.secure_channel(f"localhost:{port}", trusting(directory), options) as channel:
        channel.subscribe(lambda state: states.append(state.name))
        await ask(channel)
        # A server with the defaults hangs up at the third ping.
        await trio.sleep(2)
    assert "READY" in states
    assert "IDLE" not in states[states.index("READY") :]


async def test_a_new_certificate_is_shown_to_new_connections_alone(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path
) -> None:
    port = await start(memory_store, nursery, settings(directory))
    states: list[str] = []
    with grpc.secure_channel(f"localhost:{port}", trusting(directory)) as channel:
        channel.subscribe(lambda state: states.append(state.name))
        await ask(channel)
        before = await trio.to_thread.run_sync(shown, port)
        assert await trio.to_thread.run_sync(shown, port) == before
        make_server(directory, now=time.time(), renew=True)
        assert await trio.to_thread.run_sync(shown, port) != before
        await ask(channel)
        assert states.count("READY") == 1
    with grpc.secure_channel(f"localhost:{port}", trusting(directory)) as channel:
        await ask(channel)


async def test_files_that_do_not_belong_together_change_nothing(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    port = await start(memory_store, nursery, settings(directory))
    before = await trio.to_thread.run_sync(shown, port)
    make_server(tmp_path / "other", now=time.time(), names=NAMES)
    old = (directory / "server.key").read_bytes()
    with capture_logs() as logs:
        for content in ((tmp_path / "other" / "server.key").read_bytes(), b"", b"\xff", None):
            (directory / "server.key").unlink()
            if content is not None:
                (directory / "server.key").write_bytes(content)
            assert await trio.to_thread.run_sync(shown, port) == before
    told = [str(each) for each in logs if each["log_level"] == "error"]
    assert len(told) == 4
    assert all("server.key" in each for each in told)
    assert not any("PRIVATE" in str(each) for each in logs)
    # Once the pair is whole, it is used.
    shutil.copy(tmp_path / "other" / "server.pem", directory / "server.pem")
    shutil.copy(tmp_path / "other" / "server.key", directory / "server.key")
    assert await trio.to_thread.run_sync(shown, port) != before
    assert old != (directory / "server.key").read_bytes()


async def test_a_client_needs_a_certificate_if_its_ca_is_named(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path, tmp_path: Path
) -> None:
    client_ca = tmp_path / "clients.pem"
    shutil.copy(directory / "ca.pem", client_ca)
    make_client(directory, "reader", now=time.time())
    make_client(tmp_path / "foreign", "reader", now=time.time())
    port = await start(memory_store, nursery, settings(directory, client_ca=client_ca))
    target = f"localhost:{port}"

    def shows(of: Path) -> grpc.Channel:
        credentials = trusting(
            directory,
            private_key=(of / "user-reader.key").read_bytes(),
            certificate_chain=(of / "user-reader.pem").read_bytes(),
        )
        return grpc.secure_channel(target, credentials)

    with shows(directory) as channel:
        await ask(channel)
    error = await refused(grpc.secure_channel(target, trusting(directory)))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    await refused(shows(tmp_path / "foreign"))
    # The CA of clients is read again, too.
    os.replace(tmp_path / "foreign" / "ca.pem", client_ca)
    with shows(tmp_path / "foreign") as channel:
        await ask(channel)
    await refused(shows(directory))


async def test_who_does_not_speak_tls_is_refused_and_others_go_on(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path
) -> None:
    port = await start(memory_store, nursery, settings(directory))
    error = await refused(grpc.insecure_channel(f"127.0.0.1:{port}"))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    make_server(directory.parent / "other", now=time.time(), names=NAMES)
    error = await refused(
        grpc.secure_channel(f"localhost:{port}", trusting(directory.parent / "other"))
    )
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    with grpc.secure_channel(f"localhost:{port}", trusting(directory)) as channel:
        await ask(channel)


async def test_a_client_with_tls_is_refused_by_a_port_without(
    memory_store: MemorySegmentStore, nursery: trio.Nursery, directory: Path
) -> None:
    port = await start(memory_store, nursery, None)
    error = await refused(grpc.secure_channel(f"localhost:{port}", trusting(directory)))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("file", ["server.pem", "server.key", "clients.pem"])
@pytest.mark.parametrize("content", [None, "text"])
def test_a_start_names_the_file_that_cannot_be_used(
    directory: Path, file: str, content: str | None
) -> None:
    shutil.copy(directory / "ca.pem", directory / "clients.pem")
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_text(content)
    with pytest.raises(ConfigurationError, match=rf"TLS cannot be offered: .*{file} "):
        PortCertificate(settings(directory, client_ca=directory / "clients.pem"))


def test_one_version_alone_cannot_be_had(directory: Path) -> None:
    with pytest.raises(ConfigurationError, match="gRPC always accepts both"):
        PortCertificate(settings(directory, versions=("TLSv1.3",)))


@pytest.mark.parametrize("days", [29, 40])
def test_the_end_of_a_certificate_is_told_in_time(tmp_path: Path, days: int) -> None:
    make_server(tmp_path, now=time.time(), names=NAMES, days=days)
    with capture_logs() as logs:
        PortCertificate(settings(tmp_path))
    told = [each["file"] for each in logs if each["log_level"] == "warning"]
    assert told == ([str(tmp_path / "server.pem")] if days < 30 else [])
