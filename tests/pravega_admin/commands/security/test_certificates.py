"""``segstore certificate``: the files that it makes, what it shows, and exit codes."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pravega_admin.verbs import app
from pravega_security.certificates import DAY_SECONDS, FILES, make_server

NOW = time.time()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["certificate", *map(str, arguments)])


@contextmanager
def listening(directory: Path | None) -> Iterator[str]:
    """Serve handshakes, or without a directory the words of a server without TLS."""
    context = None
    if directory is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "server.pem", directory / "server.key")

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    if context is None:
                        connection.recv(1000)
                        connection.sendall(b"no TLS here")
                    else:
                        context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_directory_has_all_that_a_server_needs(tmp_path: Path) -> None:
    done = run("create", tmp_path, "--name", "one.example.org", "--name", "10.0.0.1", "--days", 7)
    assert done.exit_code == 0, done.output
    assert {each.name for each in tmp_path.iterdir()} == set(FILES)
    shown = run("show", tmp_path / "server.pem", "--ca", tmp_path / "ca.pem", "-o", "json")
    assert shown.exit_code == 0, shown.output
    server, ca = json.loads(shown.stdout)
    assert server["names"] == ["one.example.org", "10.0.0.1"]
    assert 6.9 < server["days_left"] <= 7
    assert server["of_the_ca"]
    assert (server["ca"], ca["ca"]) == (False, True)
    assert server["issuer"] == ca["subject"]
    table = run("show", tmp_path / "server.pem")
    assert "one.example.org, 10.0.0.1" in table.stdout


def test_by_default_it_is_for_this_machine(tmp_path: Path) -> None:
    assert run("create", tmp_path).exit_code == 0
    shown = run("show", tmp_path / "server.pem", "-o", "json")
    assert {"localhost", "127.0.0.1", "::1"} <= set(json.loads(shown.stdout)[0]["names"])


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    run("create", tmp_path)
    done = run("create", tmp_path)
    assert done.exit_code == 4
    assert "--renew makes a new one" in done.stderr
    assert run("create", tmp_path, "--renew").exit_code == 0
    run("create", tmp_path / "other")
    (tmp_path / "server.pem").write_bytes((tmp_path / "other" / "server.pem").read_bytes())
    done = run("create", tmp_path, "--renew")
    assert done.exit_code == 78
    assert "is not replaced" in done.stderr


def test_a_clients_certificate_is_beside_it(tmp_path: Path) -> None:
    done = run("create", tmp_path, "--user", "bob", "-o", "json")
    assert json.loads(done.stdout)["made"] == ["ca.key", "ca.pem", "user-bob.key", "user-bob.pem"]
    done = run("create", tmp_path, "--user", "bob", "--name", "localhost")
    assert done.exit_code == 2
    assert run("create", tmp_path, "--user", "../bob").exit_code == 78


def test_a_server_is_asked_for_its_certificate(tmp_path: Path) -> None:
    run("create", tmp_path)
    with listening(tmp_path) as address:
        shown = run("show", address, "--ca", tmp_path / "ca.pem", "-o", "json")
    assert shown.exit_code == 0, shown.output
    [served] = json.loads(shown.stdout)
    [filed, _] = json.loads(run("show", tmp_path / "server.pem", "-o", "json").stdout)
    assert served["sha256"] == filed["sha256"]
    assert served["accepted"]


def test_what_is_wrong_has_an_exit_code(tmp_path: Path) -> None:
    run("create", tmp_path / "other")
    ended = tmp_path / "ended"
    make_server(ended, now=NOW - 10 * DAY_SECONDS, names=["localhost"], days=3)
    early = tmp_path / "early"
    make_server(early, now=NOW + 10 * DAY_SECONDS, names=["localhost"], days=3)
    other = tmp_path / "other" / "server.pem"
    with listening(ended) as address, listening(tmp_path / "other") as good:
        for arguments, sentence in (
            ([ended / "server.pem"], "has ended"),
            ([early / "server.pem"], "is not valid yet"),
            ([other, ended / "server.pem"], "ended/server.pem has ended"),
            ([address], f"the certificate of {address} has ended"),
            ([other, "--ca", ended / "ca.pem"], "was not issued by the CA"),
            ([good, "--ca", ended / "ca.pem"], "refuse"),
        ):
            done = run("show", *arguments)
            assert done.exit_code == 1, done.output
            assert sentence in done.stderr
            assert "fingerprint" in done.stdout or "sha256" in done.stdout


@pytest.mark.parametrize(
    ("content", "exit_code", "sentence"),
    [(None, 3, "there is no file"), ("text", 78, "has no certificate in PEM")],
)
def test_a_file_that_is_none_is_told(
    tmp_path: Path, content: str | None, exit_code: int, sentence: str
) -> None:
    file = tmp_path / "file.pem"
    if content is not None:
        file.write_text(content)
    done = run("show", file)
    assert done.exit_code == exit_code
    assert sentence in done.stderr


def test_a_server_without_tls_is_told(tmp_path: Path) -> None:
    with listening(None) as address:
        done = run("show", address)
    assert done.exit_code == 5
    assert "it may serve without TLS" in done.stderr
    done = run("show", address)
    assert done.exit_code == 5
    assert "cannot be reached" in done.stderr
