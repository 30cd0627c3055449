"""Rights of users, by the command line, over TLS."""

from __future__ import annotations

import socket
import ssl
import warnings

import pytest
from compat_harness.secure import SecureServer, read_if_there

pytestmark = [pytest.mark.compat, pytest.mark.timeout(300)]

SCOPE = "prn::/scope:rights"
STREAM = f"{SCOPE}/stream:events"


@pytest.fixture(scope="module")
def store(secure_server: SecureServer) -> SecureServer:
    """The store with a stream of three events, and users with different rights to it."""
    run_well(secure_server, "admin", "scope", "create", "rights")
    run_well(secure_server, "admin", "scope", "create", "rights-of-others")
    run_well(secure_server, "admin", "stream", "create", "rights/events")
    run_well(secure_server, "admin", "stream", "create", "rights/events-of-others")
    run_well(secure_server, "admin", "write", "rights/events", given="a\nb\nc\n")
    secure_server.add_user("reader", (SCOPE, "READ"), (STREAM, "READ"))
    secure_server.add_user("writer", (STREAM, "READ_UPDATE"))
    secure_server.add_user("nobody")
    secure_server.add_user("denied", (STREAM, "NONE"), (f"{SCOPE}/*", "READ_UPDATE"))
    return secure_server


def run_well(server: SecureServer, user: str, *arguments: str, given: str = "") -> str:
    done = server.run_as(user, *arguments, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_refused(server: SecureServer, user: str, *arguments: str, given: str = "") -> str:
    """Return the sentence with which a command was refused. It has no traceback and no secret."""
    done = server.run_as(user, *arguments, given=given)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert server.passwords[user] not in done.stderr + done.stdout
    return done.stderr


READ = ("read", "rights/events")


def test_a_reader_reads_and_changes_nothing(store: SecureServer) -> None:
    assert run_well(store, "reader", *READ).split() == ["a", "b", "c"]
    assert_refused(store, "reader", "write", "rights/events", given="d\n")
    for change in ("seal", "delete"):
        assert_refused(store, "reader", "stream", change, "rights/events")
    assert_refused(store, "reader", "stream", "truncate", "rights/events", "--tail")
    assert run_well(store, "admin", *READ).split() == ["a", "b", "c"]


def test_a_writer_writes(store: SecureServer) -> None:
    run_well(store, "admin", "stream", "create", "rights/written")
    store.add_user("second-writer", (f"{SCOPE}/stream:written", "READ_UPDATE"))
    run_well(store, "second-writer", "write", "rights/written", given="x\n")
    assert run_well(store, "admin", "read", "rights/written").split() == ["x"]


@pytest.mark.parametrize("user", ["nobody", "denied"])
def test_who_has_no_right_reads_nothing(store: SecureServer, user: str) -> None:
    said = assert_refused(store, user, *READ)
    assert "rights/events" in said or STREAM in said


def test_a_name_that_begins_with_a_granted_one_is_not_granted(store: SecureServer) -> None:
    assert_refused(store, "reader", "read", "rights/events-of-others")
    assert_refused(store, "reader", "stream", "list", "rights-of-others")


def test_lists_have_what_the_user_may_read(store: SecureServer) -> None:
    listed = run_well(store, "reader", "stream", "list", "rights")
    assert "events" in listed.split()
    assert "events-of-others" not in listed


def test_a_wrong_password_is_refused(store: SecureServer) -> None:
    right = store.passwords["reader"]
    store.passwords["reader"] = "not-" + right
    try:
        assert_refused(store, "reader", *READ)
    finally:
        store.passwords["reader"] = right


def test_a_removed_user_is_refused(store: SecureServer) -> None:
    store.add_user("leaver", (SCOPE, "READ"), (STREAM, "READ"))
    assert run_well(store, "leaver", *READ).split() == ["a", "b", "c"]
    store.run_command("user", "remove", "leaver")
    assert_refused(store, "leaver", *READ)


@pytest.mark.parametrize("port_of", ["controller_port", "segment_store_port"])
def test_old_versions_of_tls_are_refused(store: SecureServer, port_of: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", getattr(store, port_of)), timeout=10) as plain,
        pytest.raises(OSError, match=r"alert|reset|EOF"),
    ):
        context.wrap_socket(plain)


@pytest.mark.parametrize("port_of", ["controller_port", "segment_store_port"])
def test_plaintext_gets_no_answer(store: SecureServer, port_of: str) -> None:
    with socket.create_connection(("127.0.0.1", getattr(store, port_of)), timeout=10) as plain:
        plain.sendall(b"\0" * 64)
        received = plain.recv(1_000)
    # An alert of TLS at most.
    assert not received or received[:1] == b"\x15"


def test_no_password_is_in_a_log_or_a_file(store: SecureServer) -> None:
    secrets = [each.encode() for each in store.passwords.values()]
    for path in [store.log_path, *store.data_dir.rglob("*")]:
        if path.is_file():
            content = read_if_there(path)
            assert not any(secret in content for secret in secrets), path


def test_files_with_secrets_are_for_their_owner_alone(store: SecureServer) -> None:
    directory = store.data_dir / "security"
    for path in directory.iterdir():
        if path.suffix != ".pem":
            assert path.stat().st_mode & 0o077 == 0, path
