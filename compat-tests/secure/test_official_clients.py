"""Official clients over TLS as users who have just the rights that they need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from compat_harness.java import NEWEST, JavaClient, require
from compat_harness.secure import ADMINISTRATOR, SECURE_API, SecureServer
from foreign_servers.deadlines import scale

TOUR = Path(__file__).resolve().parent.parent / "python" / "api_tour.py"
SUITES = (
    "BatchReadTest",
    "ByteStreamTest",
    "KeyValueTableTest",
    "ReaderGroupTest",
    "RevisionedStreamTest",
    "ScaleTest",
    "StateSynchronizerTest",
    "TransactionTest",
    "WatermarkTest",
)
"""The suites of the Java client that together use all of its kinds of segments and calls."""
USUAL_SUITES = ("BatchReadTest", "StateSynchronizerTest", "TransactionTest")
"""The suites that ``make test`` runs, and earlier clients too: events, groups, transactions."""
SUITES_SECONDS_MAX = scale(600.0)
SAMPLE_SECONDS_MAX = scale(120.0)
SAMPLE_EVENTS = [f"event {number}" for number in range(20)]
UPDATE = "READ_UPDATE"

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]
matrix = partial(pytest.mark.matrix, api=SECURE_API)


def of_versions(*versions: str) -> pytest.MarkDecorator:
    """Return the mark of a test that counts for each of these versions of the Java client.

    ``make test`` runs it with the newest one alone.
    """
    marked = []
    for each in versions:
        marks = [matrix(client="Java", version=each)]
        if each != NEWEST:
            marks.append(pytest.mark.proof)
        marked.append(pytest.param(each, marks=marks))
    return pytest.mark.parametrize("version", marked)


@pytest.fixture(scope="session")
def creator(secure_server: SecureServer) -> str:
    """The name of a user who may create scopes, and use those that the Java suites create."""
    rights = [(f"prn::/scope:{prefix}-*", UPDATE) for prefix in ("compat", "omb", "table")]
    secure_server.add_user("creator", ("prn::/", UPDATE), *rights)
    return "creator"


def run_suites(
    version: str,
    suites: Sequence[str],
    directory: Path,
    server: SecureServer,
    environment: Mapping[str, str],
    **properties: str,
) -> None:
    """Run suites of the Java client; fail the test if one of their tests fails."""
    run = JavaClient.build(version).run_suites(
        suites,
        directory / "jvm",
        side_by_side=4,
        seconds_max=SUITES_SECONDS_MAX,
        properties={
            "controller": server.controller_uri,
            "processes": str(server.data_dir / "run"),
            **properties,
        },
        environment=environment,
    )
    try:
        failed = [
            f"{test.suite} {test.test}: {test.note}\n{test.trace}"
            for suite in suites
            for test in run.wait_for(suite)
            if test.result == "failed" and not test.race
        ]
    finally:
        run.stop()
    assert not failed, "\n".join(failed) + run.output()[-5_000:]


def run_suites_over_tls(
    version: str, suites: Sequence[str], directory: Path, server: SecureServer, user: str
) -> None:
    """Run suites as a user, with the server's authority in their configuration."""
    environment = server.official_environment(user)
    run_suites(version, suites, directory, server, environment, trustStore=str(server.ca))


@of_versions(NEWEST, "0.12.0", "0.9.0")
def test_suites_of_the_java_client_pass_over_tls_with_a_user(
    version: str, secure_server: SecureServer, creator: str, tmp_path: Path
) -> None:
    run_suites_over_tls(version, USUAL_SUITES, tmp_path, secure_server, creator)


@pytest.mark.proof
@matrix(client="Java", version=NEWEST)
def test_all_suites_of_the_newest_java_client_pass_over_tls_with_a_user(
    secure_server: SecureServer, creator: str, tmp_path: Path
) -> None:
    run_suites_over_tls(NEWEST, SUITES, tmp_path, secure_server, creator)


@pytest.mark.proof
@matrix(client="Java", version=NEWEST)
def test_what_the_driver_of_the_openmessaging_benchmark_does_works_with_variables_alone(
    secure_server: SecureServer, creator: str, tmp_path: Path
) -> None:
    """The driver tells its client the controller's address alone, so the JVM must know the rest."""
    authorities = tmp_path / "authorities.p12"
    command = [require("keytool"), "-importcert", "-noprompt", "-alias", "segstore"]
    command += ["-file", str(secure_server.ca)]
    command += ["-keystore", str(authorities), "-storepass", "changeit"]
    subprocess.run(command, check=True, capture_output=True)
    options = [f"-Djavax.net.ssl.trustStore={authorities}"]
    options.append("-Djavax.net.ssl.trustStorePassword=changeit")
    environment = secure_server.official_environment(creator)
    environment["JAVA_TOOL_OPTIONS"] = " ".join(options)
    run_suites(NEWEST, ["OpenMessagingTest"], tmp_path, secure_server, environment)


@pytest.mark.proof
@of_versions(NEWEST, "0.9.0")
def test_a_writer_and_readers_say_their_user_and_authority_by_the_clients_configuration(
    version: str, secure_server: SecureServer
) -> None:
    """As the client's own secure samples do. The readers may read, and nothing else."""
    client = JavaClient.build(version)
    scope = f"prn::/scope:sample-{version}"
    stream, writer, reader = f"{scope}/stream:events", f"writer-{version}", f"reader-{version}"
    secure_server.add_user(writer, ("prn::/", UPDATE), (scope, UPDATE), (stream, UPDATE))
    groups = f"{scope}/reader-group:*"
    secure_server.add_user(reader, (scope, "READ"), (stream, "READ"), (groups, "READ"))

    def run(user: str, action: str, *, validates: bool) -> list[str]:
        said = client.run_program(
            "compat.SecureSample",
            *(action, f"sample-{version}", "events", user, str(validates)),
            controller=secure_server.controller_uri,
            trustStore=str(secure_server.ca),
            environment={"SECURE_SAMPLE_PASSWORD": secure_server.passwords[user]},
            seconds_max=SAMPLE_SECONDS_MAX,
        )
        return said.splitlines()

    run(writer, "write", validates=True)
    for validates in (True, False):
        assert run(reader, "batch", validates=validates) == SAMPLE_EVENTS
        assert run(reader, "read", validates=validates) == SAMPLE_EVENTS


@matrix(client="Python", version="0.3.8")
def test_every_method_of_the_python_client_works_over_tls_with_a_user(
    secure_server: SecureServer,
) -> None:
    pytest.importorskip("pravega_client", reason="no wheel for this Python")
    done = subprocess.run(
        [sys.executable, str(TOUR), secure_server.controller_uri],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **secure_server.official_environment(ADMINISTRATOR)},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]


READ_AS_A_GROUP = """
import asyncio, sys
import pravega_client

async def read():
    streams = pravega_client.StreamManager(sys.argv[1], True, True)
    group = streams.create_reader_group("g", "python", "events")
    reader = group.create_reader("r")
    print([event.data() for event in await reader.get_segment_slice_async()])
    reader.reader_offline()

asyncio.run(read())
"""


@pytest.mark.matrix(client="Python", version="0.3.8", api="reader group of a user who reads")
def test_a_user_who_reads_has_python_reader_groups_with_the_right_of_the_guide(
    secure_server: SecureServer,
) -> None:
    pytest.importorskip("pravega_client", reason="no wheel for this Python")
    for arguments, given in (
        (("scope", "create", "python"), ""),
        (("stream", "create", "python/events", "--segments", "1"), ""),
        (("write", "python/events"), "a\n"),
    ):
        done = secure_server.run_as(ADMINISTRATOR, *arguments, given=given)
        assert done.returncode == 0, done.stderr
    scope, user = "prn::/scope:python", "groups"
    secure_server.add_user(user, (scope, "READ"), (f"{scope}/*", "READ"))
    grant = ("user", "grant", user, f"{scope}/key-value-table:g", "READ_UPDATE", "--first")

    def read() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", READ_AS_A_GROUP, secure_server.controller_uri],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **secure_server.official_environment(user)},
        )

    assert "AuthTokenCheckFailed" in read().stderr
    secure_server.run_command(*grant)
    done = read()
    assert done.stdout.strip() == "[b'a']", done.stderr[-5_000:]
