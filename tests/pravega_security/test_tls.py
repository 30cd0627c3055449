from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from pravega_security.tls import (
    LOOK_SECONDS,
    VERSIONS,
    WARNING_SECONDS,
    CertificateError,
    ServerCertificate,
    TlsSettings,
    client_context,
    read_versions,
)
from support.tls_peers import Certificates


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, bytes]:
    """Return the version that both sides speak, and the certificate of the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    version, certificate = sides[0].version(), sides[0].getpeercert(binary_form=True)
    assert version is not None
    assert certificate is not None
    return version, certificate


def test_a_new_pair_is_used_from_the_next_look_on(certificates: Certificates) -> None:
    clock = Clock()
    certificate = ServerCertificate(certificates.issue(), clock=clock)
    client = client_context(certificates.ca, check_hostname=True)
    _, first = shake_hands(certificate.server_context(), client)
    first_pem = certificate.pem()
    certificates.issue()
    assert certificate.pem() == first_pem
    clock.seconds += LOOK_SECONDS
    with capture_logs() as logs:
        _, second = shake_hands(certificate.server_context(), client)
    assert second != first
    assert certificate.pem() != first_pem
    assert [each["event"] for each in logs] == ["certificate renewed"]


@pytest.mark.parametrize("file", ["certificate", "key"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERT", "of another pair"])
def test_a_broken_pair_leaves_the_old_one_in_use(
    certificates: Certificates, file: str, content: bytes | str | None
) -> None:
    clock = Clock()
    settings = certificates.issue()
    certificate = ServerCertificate(settings, clock=clock)
    old = certificate.pem()
    path: Path = getattr(settings, file)
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_bytes(getattr(certificates.issue(name="other"), file).read_bytes())
    with capture_logs() as logs:
        for _ in range(3):
            clock.seconds += LOOK_SECONDS
            assert certificate.pem() == old
    assert [each["event"] for each in logs] == ["certificate not renewed, the old one stays"]
    certificates.issue()
    clock.seconds += LOOK_SECONDS
    assert certificate.pem() != old


def encrypt_key(settings: TlsSettings) -> None:
    key = load_pem_private_key(settings.key.read_bytes(), None)
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    settings.key.write_bytes(encrypted)


@pytest.mark.parametrize(
    ("file", "spoil", "reason"),
    [
        ("certificate", lambda each: each.certificate.unlink(), "there is no such file"),
        ("key", lambda each: each.key.unlink(), "there is no such file"),
        ("certificate", lambda each: each.certificate.write_bytes(b"\x30\x82"), "it is not PEM"),
        ("key", lambda each: each.key.write_bytes(b"\x30\x82"), "it is not PEM"),
        (
            "certificate",
            lambda each: each.certificate.write_bytes(each.key.read_bytes()),
            "it has no certificate as PEM",
        ),
        (
            "key",
            lambda each: each.key.write_bytes(each.certificate.read_bytes()),
            "it has no private key as PEM",
        ),
        ("key", encrypt_key, "the key is encrypted"),
        (
            "key",
            lambda each: (each.key.unlink(), os.mkdir(each.key)),
            "Is a directory",
        ),
    ],
)
def test_a_useless_pair_is_refused_with_the_file_and_the_reason(
    certificates: Certificates, file: str, spoil: object, reason: str
) -> None:
    settings = certificates.issue()
    assert callable(spoil)
    spoil(settings)
    with pytest.raises(CertificateError) as caught:
        ServerCertificate(settings)
    assert str(caught.value).startswith(f"{getattr(settings, file)} cannot be used: ")
    assert reason in str(caught.value)


def test_a_key_that_others_can_read_is_warned_of(certificates: Certificates) -> None:
    settings = certificates.issue()
    with capture_logs() as logs:
        ServerCertificate(settings)
        assert [each for each in logs if each["log_level"] == "warning"] == []
        settings.key.chmod(0o644)
        ServerCertificate(settings)
    (warning,) = [each for each in logs if each["log_level"] == "warning"]
    assert warning["event"] == "others can read a private key: chmod 600 ends it"
    assert warning["file"] == str(settings.key)


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    settings, other = certificates.issue(), certificates.issue(name="other")
    mixed = msgspec.structs.replace(settings, key=other.key)
    with pytest.raises(CertificateError, match=f"{other.key} cannot be used: it is not the key"):
        ServerCertificate(mixed)


def test_an_expired_certificate_is_refused_with_its_day(certificates: Certificates) -> None:
    settings = certificates.issue(expires=datetime(2020, 1, 2, tzinfo=UTC))
    with pytest.raises(CertificateError, match=r"localhost.* expired at 2020-01-02"):
        ServerCertificate(settings)


def test_the_end_of_a_certificate_is_warned_of_once_a_day(certificates: Certificates) -> None:
    clock, now = Clock(), datetime.now(UTC)
    settings = certificates.issue(expires=now + timedelta(days=40, hours=1))
    with capture_logs() as logs:
        certificate = ServerCertificate(
            settings, now=lambda: now + timedelta(seconds=clock.seconds), clock=clock
        )
        for _ in range(2 * 24 * 15):
            clock.seconds += WARNING_SECONDS / 48
            certificate.refresh()
    assert logs[0]["event"] == "certificate in use"
    assert logs[0]["names"] == "localhost, 127.0.0.1"
    warnings = [each for each in logs if each["log_level"] == "warning"]
    assert {each["event"] for each in warnings} == {"certificate expires soon"}
    assert len(warnings) == 5
    assert all(25 <= each["days"] <= 30 for each in warnings)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_versions_of_the_settings_are_spoken(certificates: Certificates, version: str) -> None:
    settings = msgspec.structs.replace(certificates.issue(), versions=(version,))
    client = client_context(certificates.ca, check_hostname=True)
    assert shake_hands(ServerCertificate(settings).server_context(), client)[0] == version


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_versions_before_the_first_allowed_one_are_refused(certificates: Certificates) -> None:
    client = client_context(certificates.ca, check_hostname=True)
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake_hands(ServerCertificate(certificates.issue()).server_context(), client)


def test_clients_need_a_certificate_of_their_ca(certificates: Certificates, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(certificates.issue(), client_ca=certificates.ca)
    certificate = ServerCertificate(settings)
    assert certificate.client_ca_pem() == certificates.ca.read_bytes()
    own = certificates.issue("client", name="client")
    client = client_context(
        certificates.ca, check_hostname=True, certificate=own.certificate, key=own.key
    )
    shake_hands(certificate.server_context(), client)
    without = client_context(certificates.ca, check_hostname=True)
    with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REQUIRED|did not return a certificate"):
        shake_hands(certificate.server_context(), without)
    foreign = Certificates(tmp_path, "foreign").issue("client", name="foreign-client")
    wrong = client_context(
        certificates.ca, check_hostname=True, certificate=foreign.certificate, key=foreign.key
    )
    with pytest.raises(ssl.SSLError):
        shake_hands(certificate.server_context(), wrong)


def test_lists_of_versions_are_those_of_the_original() -> None:
    assert read_versions("TLSv1.2,TLSv1.3") == VERSIONS
    assert read_versions("TLSv1.3") == ("TLSv1.3",)
    for text in ("", "TLSv1.1", "TLSv1.2, TLSv1.3"):
        with pytest.raises(ValueError, match="is no version of TLS"):
            read_versions(text)
    with pytest.raises(ValueError, match="at least one version"):
        TlsSettings(certificate=Path("a"), key=Path("b"), versions=())


def test_a_file_without_a_ca_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    with pytest.raises(CertificateError, match=f"{path} cannot be used: there is no such file"):
        client_context(path, check_hostname=True)
    path.write_bytes(b"nothing")
    with pytest.raises(CertificateError, match=f"{path} cannot be used: it is not PEM"):
        client_context(path, check_hostname=True)


def test_nothing_about_a_pair_is_in_a_representation(certificates: Certificates) -> None:
    certificate = ServerCertificate(certificates.issue())
    assert "PRIVATE" not in repr(certificate)
    assert "PRIVATE" not in repr(certificate._pair)
