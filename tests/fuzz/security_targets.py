"""The parsers of logins, tokens, certificates and handshakes, and of the files behind them."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import socket
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jwt
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.x509.oid import NameOID
from fuzzing import Target

from pravega_controller.errors import UnauthenticatedError
from pravega_controller.rpc.audit_log import AuditLog
from pravega_controller.rpc.authorization import HEADER, Authorization
from pravega_security.access_rules import parse_access_rules
from pravega_security.accounts import Accounts, BasicAuthenticator
from pravega_security.accounts_file import AccountsFile, AccountsFileError
from pravega_security.certificates import describe_chain, describe_der
from pravega_security.delegation_tokens import TokenMinter, TokenVerifier
from pravega_security.identity_provider.bearer import BearerAuthenticator
from pravega_security.identity_provider.bearer_settings import BearerSettings
from pravega_security.identity_provider.json_web_keys import KeySetError, parse_key_set
from pravega_security.passwords import hash_password
from pravega_security.principals import AuthenticationError, Authenticator
from pravega_security.resources import Level
from pravega_security.tls import CertificateError, ServerCertificate, TlsSettings
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import ReceiveBuffer
from segstore.tls.transport import PlainBuffer, TlsRefusedError, TlsTransport

NOW = 1_700_000_000
USER, PASSWORD = "user", b"a password"
RULES = "prn::/scope:s,READ;prn::/scope:s/*,READ_UPDATE;prn::/scope:t*u,NONE"
BUFFER_BYTES = 256 * 1024


class TokenKeys:
    """One key."""

    current = b"k" * 86
    all_valid = (current,)

    def look(self) -> None:
        """Notice no other key."""


@cache
def directory() -> Path:
    """Return a directory with the files of a server."""
    kept = tempfile.TemporaryDirectory()
    path = Path(kept.name)
    _KEPT.append(kept)
    (path / "passwd").write_bytes(accounts_files()[0])
    (path / "keys.json").write_bytes(key_sets()[0])
    key = provider_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (path / "server.key").write_bytes(key)
    (path / "server.key").chmod(0o600)
    pem = x509.load_der_x509_certificate(certificates()[0])
    (path / "server.pem").write_bytes(pem.public_bytes(serialization.Encoding.PEM))
    return path


_KEPT: list[tempfile.TemporaryDirectory[str]] = []

# ---- The header of calls -------------------------------------------------------------------------


class Context:
    """What a call of gRPC brings with it."""

    def __init__(self, header: str) -> None:
        self._header = header

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return the metadata."""
        return [(HEADER, self._header)]

    def peer(self) -> str:
        """Return an address."""
        return "ipv4:127.0.0.1:1"


@cache
def accounts() -> Accounts:
    return Accounts(directory() / "passwd")


@cache
def bearer_authenticator() -> BearerAuthenticator:
    settings = BearerSettings(keys=str(directory() / "keys.json"), issuer="us", audience="them")
    return BearerAuthenticator(settings, now=lambda: NOW)


def authenticators() -> dict[str, Authenticator]:
    # A stranger who has failed often has to wait, and would reach nothing behind that.
    return {"Basic": BasicAuthenticator(accounts()), "Bearer": bearer_authenticator()}


@cache
def provider_key() -> Any:
    return derive_private_key(7, SECP256R1())


def login_headers() -> list[bytes]:
    """Return a header of each method."""
    claims = {"iss": "us", "aud": "them", "sub": "caller", "exp": NOW + 60, "pravega_acl": RULES}
    bearer = jwt.encode(claims, provider_key(), "ES256", {"kid": "a"})
    master = TokenMinter(TokenKeys(), 600, lambda: NOW).mint_master()
    accounts()  # Reading the file takes more memory than any header may.
    login = base64.b64encode(USER.encode() + b":" + PASSWORD).decode()
    return [f"Basic {login}".encode(), f"Bearer {bearer}".encode(), f"Token {master}".encode()]


def parse_login_header(data: bytes, random: Random) -> object:
    context: Any = Context(data.decode("latin-1"))
    minter = TokenMinter(TokenKeys(), 600, lambda: NOW)
    verifier = TokenVerifier(TokenKeys(), lambda: NOW)
    ways = authenticators()
    authorization = Authorization(
        ways, minter, verifier, audit=AuditLog(None, now_ms=lambda: NOW * 1000)
    )
    caller = authorization.find_known(context)
    if caller is None:
        method, _, token = context.invocation_metadata()[0][1].partition(" ")
        if method not in ways:
            return None
        caller = ways[method].authenticate(token, context.peer())
    assert caller.name.isprintable()
    return caller.authorize("prn::/scope:s") >= Level.READ


# ---- Files ---------------------------------------------------------------------------------------


@cache
def accounts_files() -> list[bytes]:
    derived = hash_password(PASSWORD.decode(), rounds=1000, make_salt=bytes)
    lines = [f"# users\n{USER}:{derived}:{RULES}\n", f"other:{derived}\r\n\nlast:{derived}:;\n"]
    return [each.encode() for each in (*lines, "".join(lines))]


def parse_accounts_file(data: bytes, random: Random) -> object:
    file = AccountsFile.parse(data.decode("utf-8", "replace"), "passwd")
    for account in list(file.accounts.values()):
        file.put(account)
        again = AccountsFile.parse(str(file), "passwd").accounts[account.user]
        assert str(again) == str(account)
    for user in list(file.accounts):
        file.remove(user)
        assert user not in AccountsFile.parse(str(file), "passwd").accounts
    return file.warnings


def parse_rules(data: bytes, random: Random) -> object:
    rules = parse_access_rules(data.decode("utf-8", "replace"))
    assert parse_access_rules(str(rules)).rules == rules.rules
    for rule in rules.rules:
        assert rule.matches(rule.pattern)
    return rules.level_for("prn::/scope:s/stream:t")


def key_sets() -> list[bytes]:
    numbers = provider_key().public_key().public_numbers()
    curve = {"kty": "EC", "crv": "P-256", "x": _encode(numbers.x), "y": _encode(numbers.y)}
    rsa = {"kty": "RSA", "n": _encode(2**2047 + 2**17 + 1, 256), "e": _encode(65537, 3)}
    edwards = {"kty": "OKP", "crv": "Ed25519", "x": _encode(1, 32)}
    keys = [
        {"kid": name, "use": "sig"} | key
        for name, key in zip("abc", (curve, rsa, edwards), strict=True)
    ]
    return [json.dumps({"keys": each}).encode() for each in ([keys[0]], keys)]


def _encode(number: int, length: int = 32) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(length, "big")).rstrip(b"=").decode()


def parse_keys(data: bytes, random: Random) -> object:
    keys = parse_key_set(data)
    for each in keys:
        assert each.algorithms
    return [type(each.key).__name__ for each in keys]


@cache
def certificates() -> list[bytes]:
    key = provider_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "segstore server")])
    begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    names = [x509.DNSName("localhost"), x509.DNSName("store.example")]
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), 77)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return [built.public_bytes(serialization.Encoding.DER)]


def parse_certificate(data: bytes, random: Random) -> object:
    """Describe a certificate, as a file has it or as a server shows it."""
    body = base64.encodebytes(data)
    pem = b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"
    with warnings.catch_warnings():
        # The library warns of what is against the rules and can be read all the same.
        warnings.simplefilter("ignore")
        return describe_der(data) if random.random() < 0.5 else describe_chain(pem, "server.pem")


# ---- TLS -----------------------------------------------------------------------------------------


def client_hellos() -> list[bytes]:
    """Return the first record of a client of TLS 1.2, and of one of TLS 1.3."""
    signatures = _extension(13, _vector(2, bytes.fromhex("04030804")))
    groups = _extension(10, _vector(2, bytes.fromhex("001d0017")))
    points = _extension(11, _vector(1, b"\0"))
    share = _extension(51, _vector(2, bytes.fromhex("001d") + _vector(2, bytes(range(1, 33)))))
    versions = _extension(43, _vector(1, bytes.fromhex("0304")))
    older = _hello(bytes.fromhex("c02bc02f"), signatures + groups + points)
    return [older, _hello(bytes.fromhex("13011302"), signatures + groups + share + versions)]


def _vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def _extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + _vector(2, data)


def _hello(ciphers: bytes, extensions: bytes) -> bytes:
    body = bytes.fromhex("0303") + bytes(range(32)) + _vector(1, b"")
    body += _vector(2, ciphers) + _vector(1, b"\0") + _vector(2, extensions)
    return bytes.fromhex("160301") + _vector(2, b"\x01" + _vector(3, body))


def parse_handshake(data: bytes, random: Random) -> object:
    """Give a server's session these bytes, in pieces, and then the end."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice([0, 0, 3])))
    bounds = [0, *cuts, len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(bounds)]
    return trio.run(_shake_hands, pieces)


@cache
def certificate() -> ServerCertificate:
    settings = TlsSettings(certificate=directory() / "server.pem", key=directory() / "server.key")
    return ServerCertificate(settings)


async def _shake_hands(pieces: Sequence[bytes]) -> object:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    server.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(server))
    refused = TlsRefusedError("it has not ended")
    with client:
        async with trio.open_nursery() as nursery:
            await nursery.start(current_reactor().run)
            transport = TlsTransport(
                stream,
                certificate().server_context(),
                ReceiveBuffer(BUFFER_BYTES),
                PlainBuffer(BUFFER_BYTES),
                current_reactor(),
            )
            nursery.start_soon(_send, client, pieces)
            try:
                with trio.fail_after(60):
                    await transport.handshake(trio.CapacityLimiter(1))
            except TlsRefusedError as error:
                refused = error
            await transport.aclose()
            nursery.cancel_scope.cancel()
    # A valid beginning is no error: the server has waited for more.
    if "the peer ended the connection" not in str(refused):
        raise refused
    return str(refused)


async def _send(client: socket.socket, pieces: Sequence[bytes]) -> None:
    try:
        for piece in pieces:
            client.sendall(piece)
            await trio.lowlevel.checkpoint()
        client.shutdown(socket.SHUT_WR)
    except OSError:
        # The server has refused it, and closed.
        return


def security_targets() -> list[Target]:
    """Return all targets of this module."""
    refused = (UnauthenticatedError, AuthenticationError)
    return [
        Target("login header", login_headers, parse_login_header, refused),
        Target("accounts file", accounts_files, parse_accounts_file, (AccountsFileError,)),
        Target("access rules", lambda: [RULES.encode()], parse_rules),
        Target("key set", key_sets, parse_keys, (KeySetError,)),
        Target("certificate", certificates, parse_certificate, (CertificateError,)),
        Target(
            "handshake",
            client_hellos,
            parse_handshake,
            (TlsRefusedError,),
            memory_allowance=lambda length: (4 << 20) + 400 * length,
        ),
    ]
