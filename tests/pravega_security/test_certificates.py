"""Certificates of our own CA: who accepts them, and what a killed start leaves behind."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st

from pravega_security import certificates
from pravega_security.certificates import (
    CA_DAYS,
    DAY_SECONDS,
    DAYS_MAX,
    FILES,
    CertificateError,
    CertificateExistsError,
    days_left,
    describe_chain,
    describe_der,
    is_chain_of,
    make_client,
    make_server,
    open_security_directory,
)

NOW = float(int(time.time()))
NAMES = ("localhost", "127.0.0.1", "::1", "store.example.org")


def own_names() -> tuple[str, ...]:
    return NAMES


def opened(directory: Path, now: float = NOW) -> tuple[str, ...]:
    return open_security_directory(directory, now=now, own_names=own_names).made


def contents(directory: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in directory.iterdir()}


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Return the client's side of a connection, or raise why it refuses the server."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert one.version() is not None
    return one


def serving(directory: Path) -> ssl.SSLContext:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.pem", directory / "server.key")
    return server


@pytest.mark.parametrize("host", NAMES)
def test_a_client_that_trusts_the_ca_accepts_the_server_by_each_name(
    tmp_path: Path, host: str
) -> None:
    assert opened(tmp_path) == FILES
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    shake_hands(serving(tmp_path), client, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(serving(tmp_path), client, "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(serving(tmp_path), ssl.create_default_context(), host)


def test_the_rules_of_webs_certificates_are_kept(tmp_path: Path) -> None:
    # They are stricter than OpenSSL, as those of rustls are.
    opened(tmp_path)
    leaf, ca = x509.load_pem_x509_certificates((tmp_path / "server.pem").read_bytes())
    policy = PolicyBuilder().store(Store([ca]))
    policy.build_server_verifier(x509.DNSName("store.example.org")).verify(leaf, [])
    make_client(tmp_path, "bob", now=NOW)
    [client, _] = x509.load_pem_x509_certificates((tmp_path / "user-bob.pem").read_bytes())
    usages = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_what_a_certificate_says(tmp_path: Path) -> None:
    opened(tmp_path)
    server, ca = describe_chain((tmp_path / "server.pem").read_bytes(), "server.pem")
    assert server.names == NAMES
    assert (server.subject, server.issuer) == ("CN=segstore server", ca.subject)
    assert (server.key, server.is_ca, ca.is_ca) == ("EC secp256r1", False, True)
    assert len(server.fingerprint) == 64
    assert server.not_after - server.not_before == DAYS_MAX * DAY_SECONDS
    assert ca.not_after - ca.not_before == CA_DAYS * DAY_SECONDS
    assert server.not_before < NOW < server.not_after
    left = days_left((tmp_path / "server.pem").read_bytes(), NOW)
    assert left == pytest.approx(DAYS_MAX, abs=0.1)
    assert is_chain_of((tmp_path / "server.pem").read_bytes(), (tmp_path / "ca.pem").read_bytes())


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        opened(tmp_path / "new")
        make_client(tmp_path / "new", "bob", now=NOW)
    finally:
        os.umask(old)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new").iterdir()}
    assert modes == {
        **dict.fromkeys(("ca.key", "server.key", "user-bob.key"), 0o600),
        **dict.fromkeys(("ca.pem", "server.pem", "user-bob.pem"), 0o644),
    }
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    opened(tmp_path)
    before = contents(tmp_path)
    assert opened(tmp_path) == ()
    assert contents(tmp_path) == before


class KilledError(BaseException):
    """The process is killed."""


class Killing:
    """Kills the process at its n-th step that changes the directory, before or in it."""

    def __init__(self, patch: pytest.MonkeyPatch, step: int) -> None:
        self.left = step
        for name in ("open", "fsync", "rename", "unlink", "fchmod"):
            patch.setattr(certificates.os, name, self._killing(getattr(os, name)))

    def _killing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise KilledError
            return call(*arguments, **options)

        return run


def test_a_start_that_was_killed_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    killed = 0
    while True:
        directory = tmp_path / str(killed)
        with pytest.MonkeyPatch.context() as patch:
            killing = Killing(patch, killed + 1)
            try:
                opened(directory)
            except KilledError:
                killed += 1
        if killing.left > 0:
            break
        complete = {name: data for name, data in contents(directory).items() if name in FILES}
        opened(directory)
        assert contents(directory).keys() == set(FILES)
        assert contents(directory).items() >= complete.items()
        client = ssl.create_default_context(cafile=directory / "ca.pem")
        shake_hands(serving(directory), client, "localhost")
    assert killed > 4 * 5


def test_a_renewal_that_was_killed_anywhere_leaves_a_pair_that_works(tmp_path: Path) -> None:
    opened(tmp_path)
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    for step in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            killing = Killing(patch, step)
            with suppress(KilledError):
                make_server(tmp_path, now=NOW, renew=True)
        shake_hands(serving(tmp_path), client, "store.example.org")
        if killing.left > 0:
            return
    pytest.fail("it has no end")


def test_starts_at_the_same_time_make_one_directory(tmp_path: Path) -> None:
    threads = [threading.Thread(target=opened, args=[tmp_path]) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert opened(tmp_path) == ()


def test_renewing_keeps_the_ca_and_the_key(tmp_path: Path) -> None:
    opened(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CertificateExistsError, match="--renew"):
        make_server(tmp_path, now=NOW, names=["other.example.org"])
    assert contents(tmp_path) == before
    assert make_server(tmp_path, now=NOW, renew=True) == ("server.pem",)
    after = contents(tmp_path)
    assert {name for name in FILES if before[name] != after[name]} == {"server.pem"}
    assert describe_chain(after["server.pem"], "")[0].names == NAMES
    make_server(tmp_path, now=NOW, names=["Other.example.org."], days=7, renew=True)
    [server, _] = describe_chain((tmp_path / "server.pem").read_bytes(), "")
    assert server.names == ("other.example.org",)
    assert server.not_after - server.not_before == 7 * DAY_SECONDS


def test_a_start_renews_what_ends_soon(tmp_path: Path) -> None:
    opened(tmp_path)
    assert opened(tmp_path, NOW + (DAYS_MAX - 31) * DAY_SECONDS) == ()
    late = NOW + (DAYS_MAX - 29) * DAY_SECONDS
    before = contents(tmp_path)
    (tmp_path / "ca.key").rename(tmp_path / "elsewhere")
    assert opened(tmp_path, late) == ()
    assert contents(tmp_path).keys() == {*before, "elsewhere"} - {"ca.key"}
    (tmp_path / "elsewhere").rename(tmp_path / "ca.key")
    assert opened(tmp_path, late) == ("server.pem",)
    assert days_left((tmp_path / "server.pem").read_bytes(), late) > DAYS_MAX - 1


def test_a_certificate_never_outlives_its_ca(tmp_path: Path) -> None:
    opened(tmp_path)
    make_server(tmp_path, now=NOW + (CA_DAYS - 10) * DAY_SECONDS, renew=True)
    server, ca = describe_chain((tmp_path / "server.pem").read_bytes(), "")
    assert server.not_after <= ca.not_after
    with pytest.raises(CertificateError, match=r"the CA in .*ca\.pem has ended"):
        make_server(tmp_path, now=NOW + (CA_DAYS + 1) * DAY_SECONDS, renew=True)


def foreign_pair(directory: Path) -> trustme.CA:
    """Put a certificate of another CA, and its key, into a directory."""
    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(directory / "server.key"))
    (directory / "server.pem").write_bytes(
        b"".join(each.bytes() for each in issued.cert_chain_pems)
    )
    return ca


def test_a_foreign_certificate_is_never_replaced(tmp_path: Path) -> None:
    opened(tmp_path)
    foreign_pair(tmp_path)
    before = contents(tmp_path)
    for renew in (False, True):
        with pytest.raises(CertificateError, match=r"server\.pem (is not of|was not issued by)"):
            make_server(tmp_path, now=NOW, renew=renew)
    with pytest.raises(CertificateError, match=r"was not issued by the CA in ca\.pem"):
        opened(tmp_path)
    assert contents(tmp_path) == before


def test_certificates_of_a_real_ca_are_used_as_they_are(tmp_path: Path) -> None:
    foreign_pair(tmp_path).cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    before = contents(tmp_path)
    assert opened(tmp_path) == ()
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (("ca.pem", "ca.key"), r"ca\.pem is missing"),
        (("server.key",), r"server\.pem has no key, server\.key is missing: .*--renew"),
        (("ca.key", "server.pem"), r"ca\.key is missing, without which server\.pem cannot"),
    ],
)
def test_what_cannot_be_made_again_is_told(
    tmp_path: Path, missing: tuple[str, ...], sentence: str
) -> None:
    opened(tmp_path)
    for each in missing:
        (tmp_path / each).unlink()
    before = contents(tmp_path)
    with pytest.raises(CertificateError, match=sentence):
        opened(tmp_path)
    assert contents(tmp_path) == before


def test_a_lost_key_is_replaced_when_asked(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "server.key").unlink()
    assert make_server(tmp_path, now=NOW, renew=True) == ("server.key", "server.pem")
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    shake_hands(serving(tmp_path), client, "localhost")


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_none_is_named(tmp_path: Path, file: str) -> None:
    opened(tmp_path)
    (tmp_path / file).write_text("text")
    if file == "ca.key":
        (tmp_path / "server.pem").unlink()
    with pytest.raises(CertificateError, match=file):
        opened(tmp_path)


def test_the_key_of_another_ca_signs_nothing(tmp_path: Path) -> None:
    opened(tmp_path / "one")
    opened(tmp_path / "two")
    shutil.copy(tmp_path / "two" / "ca.key", tmp_path / "one" / "ca.key")
    with pytest.raises(CertificateError, match=r"ca\.key is not the key of ca\.pem"):
        make_server(tmp_path / "one", now=NOW, renew=True)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CertificateError, match="file cannot be used"):
        opened(tmp_path / "file")
    with pytest.raises(CertificateError, match="file"):
        opened(tmp_path / "file" / "below")


@pytest.mark.parametrize("name", ["", "a b", "1.2.3", "-x", "ä.example", "a" * 254, "*", "a/b"])
def test_a_name_that_is_none_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError, match="neither a host name"):
        make_server(tmp_path / "new", now=NOW, names=["localhost", name])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("user", ["", "a/b", "..", "a b", "x" * 65])
def test_a_user_whose_name_cannot_be_a_file_is_refused(tmp_path: Path, user: str) -> None:
    with pytest.raises(CertificateError, match="no name of a user"):
        make_client(tmp_path / "new", user, now=NOW)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("days", [0, DAYS_MAX + 1])
def test_days_that_clients_refuse_are_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(CertificateError, match=f"1 to {DAYS_MAX} days"):
        make_server(tmp_path, now=NOW, days=days)


def test_a_clients_certificate_proves_a_user(tmp_path: Path) -> None:
    assert make_client(tmp_path, "bob", now=NOW) == (
        "ca.key",
        "ca.pem",
        "user-bob.key",
        "user-bob.pem",
    )
    with pytest.raises(CertificateExistsError):
        make_client(tmp_path, "bob", now=NOW)
    assert make_client(tmp_path, "bob", now=NOW, renew=True) == ("user-bob.pem",)
    [facts, _] = describe_chain((tmp_path / "user-bob.pem").read_bytes(), "")
    assert (facts.subject, facts.names) == ("CN=bob", ())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_told(data: bytes) -> None:
    with pytest.raises(CertificateError, match="source has no certificate"):
        describe_chain(data, "source")


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x3b"),  # the version
        (b"\x17\x0d", b"\x18\x0d"),  # the kind of its times
        (b"\x55\x04\x03\x0c", b"\x55\x04\x03\x03"),  # the kind of its subject: bits
        (b"\x82\x09localhost", b"\x82\x09local\xffost"),  # a name that it is for
    ],
)
def test_a_certificate_with_a_broken_part_is_refused_in_a_sentence(
    tmp_path: Path, part: bytes, changed: bytes
) -> None:
    opened(tmp_path)
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    der = server.public_bytes(Encoding.DER)
    assert describe_der(der).names == NAMES
    broken = der.replace(part, changed)
    assert broken != der
    pem = ssl.DER_cert_to_PEM_cert(broken).encode()
    unreadable = r"has (no certificate in PEM|a certificate that cannot be read)$"
    with pytest.raises(CertificateError, match=f"^server.pem {unreadable}"):
        describe_chain(pem, "server.pem")
    with pytest.raises(CertificateError, match="shows a certificate that cannot be read"):
        describe_der(broken)
