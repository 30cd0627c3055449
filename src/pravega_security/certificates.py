"""Certificates of a CA of our own, and what certificates say.

Owns: the files ``ca.pem``, ``ca.key``, ``server.pem``, ``server.key``, and ``user-NAME.pem`` and
``user-NAME.key`` of a directory: ``open_security_directory`` makes the first four, and
``make_server`` and ``make_client`` what they say; ``describe_chain`` reads any certificate.

Keys are ECDSA on P-256, in PKCS#8; certificates have what rustls, Java and OpenSSL ask for: version
3, names in the subject alternative name, and the usages. A file appears as a whole, with its bytes
on the disk. Files are made in the order of ``FILES``, each of which can be made of those before it;
a directory's lock lets one process at a time do it.

A server's certificate is renewed for the same key. So one file is replaced, and no reader can find
a certificate and a key that do not belong together.

Invariants:
1. When the process is killed between any two steps, the next start finishes what it began, and
   files that were complete stay the same. Held by
   ``test_a_start_that_was_killed_anywhere_is_finished_by_the_next``.
2. No file that this module did not issue is ever replaced. Held by
   ``test_a_foreign_certificate_is_never_replaced``.
3. Only the owner may read a key, from the moment at which it exists. Held by
   ``test_keys_are_for_their_owner_alone``.
4. A renewed certificate has the CA and the key of the one before. Held by
   ``test_renewing_keeps_the_ca_and_the_key``.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pravega_security.own_names import find_own_names
from pravega_security.tls import CertificateError

CA: Final = "ca.pem"
CA_KEY: Final = "ca.key"
SERVER: Final = "server.pem"
SERVER_KEY: Final = "server.key"
FILES: Final = (CA_KEY, CA, SERVER_KEY, SERVER)
"""The files of a directory, in the order in which they are made."""
CA_DAYS: Final = 3650
DAYS_MAX: Final = 825
"""Maximum number of days that a certificate of a server is valid: some clients accept no more."""
RENEW_DAYS: Final = 30.0
"""Number of days before its end at which a start renews a certificate of our own CA."""
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The errors of a certificate with a part that is malformed or unknown."""
CLOCK_SKEW: Final = datetime.timedelta(hours=1)
"""Time that a certificate is valid before it is made, for machines whose clocks are behind."""
DAY_SECONDS: Final = 86_400
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9_-]+)*\.?")
_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_PEM: Final = serialization.Encoding.PEM
_PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class CertificateExistsError(CertificateError):
    """A certificate exists already, and the caller did not ask to renew it."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The statements of a certificate."""

    subject: str
    names: tuple[str, ...]
    """Host names and addresses."""
    issuer: str
    not_before: float
    """The first second of its time, since 1970."""
    not_after: float
    """The last second of its time, since 1970."""
    key: str
    """Type of its key, as ``EC secp256r1``."""
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""
    is_ca: bool


@dataclass(frozen=True, slots=True)
class SecurityDirectory:
    """A directory whose files are complete."""

    ca: Path
    certificate: Path
    key: Path
    made: tuple[str, ...]
    """Names of the files that were made or renewed."""


def open_security_directory(
    directory: Path,
    *,
    now: float,
    own_names: Callable[[], Sequence[str]] = find_own_names,
) -> SecurityDirectory:
    """Make what a server needs if it is absent; renew its certificate ``RENEW_DAYS`` before its end
    if the CA's key is there.

    ``now`` is the time in seconds since 1970. ``own_names`` is called for the names of a
    certificate that is made. Raises ``CertificateError`` for files that do not belong together, and
    for ``OSError`` of the directory.
    """
    with _opened(directory, now) as files:
        files.make_ca()
        current = files.read_server()
        if current is None:
            files.make_server(own_names(), DAYS_MAX)
        elif files.ends_soon(current) and files.is_ours(current) and files.has(CA_KEY):
            files.make_server(_names_of(current), DAYS_MAX)
        return SecurityDirectory(
            directory / CA, directory / SERVER, directory / SERVER_KEY, tuple(files.made)
        )


def make_server(
    directory: Path,
    *,
    now: float,
    names: Sequence[str] = (),
    days: int = DAYS_MAX,
    renew: bool = False,
    own_names: Callable[[], Sequence[str]] = find_own_names,
) -> tuple[str, ...]:
    """Make a server's certificate, and a CA if there is none; return the names of the files made.

    Without ``names`` it has those of the certificate that it renews, or of this machine. Raises
    ``CertificateExistsError`` if there is one and ``renew`` is false, otherwise
    ``CertificateError``.
    """
    for each in names:
        _general_name(each)
    _check_days(days)
    with _opened(directory, now) as files:
        files.make_ca()
        current = files.read_server(may_mismatch=renew)
        if current is not None:
            files.check_replaceable(current, SERVER, renew)
            names = names or _names_of(current)
        files.make_server(names or own_names(), days)
        return tuple(files.made)


def make_client(
    directory: Path, user: str, *, now: float, days: int = DAYS_MAX, renew: bool = False
) -> tuple[str, ...]:
    """Make a certificate that proves that a client is ``user``, and a CA if there is none.

    Returns the names of the files made; raises like ``make_server``.
    """
    if not _USER.fullmatch(user):
        raise CertificateError(
            f"{user!r} is no name of a user: 1 to 64 letters, digits and . _ @ + - have to do"
        )
    _check_days(days)
    with _opened(directory, now) as files:
        files.make_ca()
        name = f"user-{user}.pem"
        current = files.read_certificate(name)
        if current is not None:
            files.check_replaceable(current, name, renew)
        files.make_client(user, days)
        return tuple(files.made)


def describe_chain(pem: bytes, source: str) -> list[CertificateFacts]:
    """Return what the certificates in PEM say; ``source`` is the file for the error.

    Raises ``CertificateError`` if there is none.
    """
    return [_describe(each) for each in _load_chain(pem, source)]


def describe_der(der: bytes) -> CertificateFacts:
    """Return what a certificate says, in the form in which a server shows it.

    Raises ``CertificateError`` if the bytes are no certificate.
    """
    try:
        return _describe(x509.load_der_x509_certificate(der))
    except _UNREADABLE as error:
        raise CertificateError("the server shows a certificate that cannot be read") from error


def is_chain_of(pem: bytes, ca: bytes) -> bool:
    """Return whether a certificate, the first of a chain, was issued by one in ``ca``, both in PEM.
    Times are not checked. Raises ``CertificateError``."""
    leaf, *between = _load_chain(pem, "the chain")
    return _leads_to(leaf, between, _load_chain(ca, "the file of the CA"))


def days_left(pem: bytes, now: float) -> float:
    """Return the number of days until the first certificate of a chain ends; negative after it."""
    return (_seconds(_load_chain(pem, "it")[0].not_valid_after_utc) - now) / DAY_SECONDS


# ---- A directory ---------------------------------------------------------------------------------


@contextmanager
def _opened(directory: Path, now: float) -> Iterator[_Files]:
    """Lock a directory, which is made if it is absent. Raises ``CertificateError``."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CertificateError(f"{directory} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _Files(directory, descriptor, now)
    except OSError as error:
        where = error.filename or directory
        raise CertificateError(f"{where} cannot be used: {error.strerror}") from error
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Files:
    """The files of a locked directory."""

    directory: Path
    descriptor: int
    now: float
    made: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        return os.path.lexists(self.directory / name)

    def make_ca(self) -> None:
        """Make the CA if it is absent. A certificate without its key is one whose key is kept
        elsewhere."""
        if self.has(CA):
            self.ca()
            return
        if self.has(SERVER) and not self.has(CA_KEY):
            raise CertificateError(
                f"{self.directory / CA} is missing, with which clients check {SERVER}: put the"
                " certificate of its CA there"
            )
        key = self._key(CA_KEY)
        public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        name = _name(f"segstore CA {public.digest.hex()[:8]}")
        usage = _usage(signs_certificates=True)
        certificate = (
            self._builder(key.public_key(), name, name, CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        self._write(CA, certificate.public_bytes(_PEM))

    def ca(self) -> x509.Certificate:
        """Return the CA's certificate."""
        found = self.read_certificate(CA)
        assert found is not None, "make_ca comes first"
        return found

    def read_server(self, *, may_mismatch: bool = False) -> x509.Certificate | None:
        """Return the server's certificate, None if it has none. Raises ``CertificateError`` if it
        is not for the key, or not of the CA."""
        path = self.directory / SERVER
        found = self.read_certificate(SERVER)
        if found is None or may_mismatch:
            return found
        renew = f"'segstore certificate create {self.directory} --renew' makes it anew"
        if not self.has(SERVER_KEY):
            raise CertificateError(f"{path} has no key, {SERVER_KEY} is missing: {renew}")
        if self._key(SERVER_KEY).public_key() != found.public_key():
            raise CertificateError(f"{path} is not for the key in {SERVER_KEY}: {renew}")
        if not is_chain_of(path.read_bytes(), (self.directory / CA).read_bytes()):
            raise CertificateError(
                f"{path} was not issued by the CA in {CA}, with which clients check it"
            )
        return found

    def read_certificate(self, name: str) -> x509.Certificate | None:
        """Return the first certificate of a file, None if there is no file."""
        path = self.directory / name
        try:
            return _load_chain(path.read_bytes(), str(path))[0]
        except FileNotFoundError:
            return None

    def is_ours(self, certificate: x509.Certificate) -> bool:
        """Return whether the CA of this directory issued a certificate itself."""
        return _is_issued_by(certificate, self.ca())

    def ends_soon(self, certificate: x509.Certificate) -> bool:
        """Return whether a certificate ends within ``RENEW_DAYS``."""
        left = _seconds(certificate.not_valid_after_utc) - self.now
        return left < RENEW_DAYS * DAY_SECONDS

    def check_replaceable(self, current: x509.Certificate, name: str, renew: bool) -> None:
        """Raise ``CertificateError`` if a certificate must stay."""
        path = self.directory / name
        if not self.is_ours(current) or path.is_symlink():
            raise CertificateError(
                f"{path} is not of the CA in {self.directory}, and is not replaced: choose another"
                " directory, or move it away"
            )
        if not renew:
            raise CertificateExistsError(f"{path} is there already: --renew makes a new one")

    def make_server(self, names: Sequence[str], days: int) -> None:
        """Write a server's certificate for its key, which is made if it is absent."""
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        general = [_general_name(each) for each in dict.fromkeys(names)]
        alternatives = x509.SubjectAlternativeName(general)
        self._issue(SERVER_KEY, SERVER, "segstore server", usages, days, alternatives)

    def make_client(self, user: str, days: int) -> None:
        """Write a client's certificate for its key, which is made if it is absent."""
        usages = (ExtendedKeyUsageOID.CLIENT_AUTH,)
        self._issue(f"user-{user}.key", f"user-{user}.pem", user, usages, days, None)

    def _issue(
        self,
        key_name: str,
        name: str,
        subject: str,
        usages: Sequence[x509.ObjectIdentifier],
        days: int,
        alternatives: x509.SubjectAlternativeName | None,
    ) -> None:
        ca = self.ca()
        if not self.has(CA_KEY):
            raise CertificateError(
                f"{self.directory / CA_KEY} is missing, without which {name} cannot be signed"
            )
        signer = self._key(CA_KEY)
        if signer.public_key() != ca.public_key():
            raise CertificateError(f"{self.directory / CA_KEY} is not the key of {CA}")
        if _seconds(ca.not_valid_after_utc) <= self.now:
            raise CertificateError(f"the CA in {self.directory / CA} has ended: make another one")
        key = self._key(key_name)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = (
            self._builder(key.public_key(), _name(subject), ca.subject, days, ca)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(list(usages)), critical=False)
            .add_extension(authority, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(signer, hashes.SHA256())
        self._write(name, certificate.public_bytes(_PEM) + ca.public_bytes(_PEM))

    def _builder(
        self,
        key: _PublicKey,
        subject: x509.Name,
        issuer: x509.Name,
        days: int,
        ca: x509.Certificate | None = None,
    ) -> x509.CertificateBuilder:
        begin = _EPOCH + datetime.timedelta(seconds=int(self.now))
        end = begin + datetime.timedelta(days=days)
        if ca is not None:
            end = min(end, ca.not_valid_after_utc)
        # The skew counts as part of the time, which must not be longer than clients accept.
        return (
            x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
            .not_valid_before(begin - CLOCK_SKEW)
            .not_valid_after(end - CLOCK_SKEW)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _key(self, name: str) -> _PrivateKey:
        """Return a private key, which is made if it is absent."""
        path = self.directory / name
        try:
            found = serialization.load_pem_private_key(path.read_bytes(), None)
        except FileNotFoundError:
            return self._make_key(name)
        except (ValueError, TypeError) as error:
            raise CertificateError(f"{path} has no private key without a passphrase") from error
        if not isinstance(found, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise CertificateError(f"{path} has neither an EC key nor an RSA key")
        return found

    def _make_key(self, name: str) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(_PEM, form, serialization.NoEncryption())
        self._write(name, pem, mode=0o600)
        return key

    def _write(self, name: str, content: bytes, *, mode: int = 0o644) -> None:
        """Make or replace a file, so that it is there as a whole or not at all, on the disk."""
        # Only this process has the lock, so files that are left there were made by a process that
        # was killed.
        part = f"{name}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if self.has(part):
            os.unlink(part, dir_fd=self.descriptor)
        opened = os.open(part, flags, mode, dir_fd=self.descriptor)
        with open(opened, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        os.fsync(self.descriptor)
        self.made.append(name)


# ---- Parts of certificates -----------------------------------------------------------------------


def _check_days(days: int) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise CertificateError(f"a certificate is valid for 1 to {DAYS_MAX} days, not for {days}")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    """Return a host name or an address. Raises ``CertificateError`` if it is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        if not _HOST.fullmatch(text) or len(text) > 253 or re.fullmatch(r"[0-9.]+", text):
            raise CertificateError(
                f"{text!r} is neither a host name in ASCII nor an IP address"
            ) from None
        return x509.DNSName(text.rstrip(".").lower())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(
        str(each.value) for each in found if isinstance(each, x509.DNSName | x509.IPAddress)
    )


def _load_chain(pem: bytes, source: str) -> list[x509.Certificate]:
    """Return the certificates in PEM, all of whose parts can be read."""
    try:
        chain = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"{source} has no certificate in PEM") from error
    except _UNREADABLE as error:
        raise CertificateError(f"{source} has a certificate that cannot be read") from error
    try:
        for each in chain:
            # Most parts are decoded only when they are looked at.
            _describe(each)
    except _UNREADABLE as error:
        raise CertificateError(f"{source} has a certificate that cannot be read") from error
    return chain


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def _leads_to(
    leaf: x509.Certificate,
    between: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
) -> bool:
    """Return whether one of the authorities is the certificate, or issued it by those between."""
    current = leaf
    for _ in range(len(between) + 1):
        if current in authorities or any(_is_issued_by(current, each) for each in authorities):
            return True
        for each in between:
            if each != current and _is_issued_by(current, each):
                current = each
                break
        else:
            return False
    return False


def _describe(certificate: x509.Certificate) -> CertificateFacts:
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        is_ca = basic.value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        names=_names_of(certificate),
        issuer=certificate.issuer.rfc4514_string(),
        not_before=_seconds(certificate.not_valid_before_utc),
        not_after=_seconds(certificate.not_valid_after_utc),
        key=_describe_key(certificate),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        is_ca=is_ca,
    )


def _describe_key(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.lstrip("_").removesuffix("PublicKey")


def _seconds(time: datetime.datetime) -> float:
    return (time - _EPOCH).total_seconds()
