"""The schema registry, which keeps its schemas in table segments, with its client and serializers.

Schemas of two formats are registered and changed, and events written with them; then everything is
killed, store and registry, and a new registry on the same store knows what a reader needs.
"""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest
from compat_harness.server import Server
from compat_harness.suite_groups import Target
from foreign_servers.deadlines import scale
from foreign_servers.jvm import say_temporary_directory
from foreign_servers.maven import MavenFailedError, compiled_class_path

from segstore.testing.ports import free_ports

HERE = Path(__file__).parent
MAIN_CLASS = "registry.Readings"
SECONDS_MAX = scale(240.0)


@pytest.fixture(scope="session")
def class_path() -> str:
    try:
        return compiled_class_path(HERE, MAIN_CLASS)
    except MavenFailedError as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


def run_registry(
    class_path: str, controller: str, scope: str, what: str, directory: Path
) -> list[str]:
    """Run a registry, which logs into the directory, and do something with it; the results."""
    (port,) = free_ports(1)
    settings = {
        "java.io.tmpdir": str(directory),
        "registry.scope": scope,
        "registry.controller": controller,
        "registry.port": str(port),
        "schemaRegistry.service.rest.listener.port": str(port),
        "schemaRegistry.service.rest.published.host.nameOrIp": "127.0.0.1",
        "schemaRegistry.store.pravega.controller.connect.uri": controller,
        # Its REST server is older than the walls between the modules of Java 17.
        "com.sun.xml.bind.v2.bytecode.ClassTailor.noOptimize": "true",
    }
    command = [
        "java",
        say_temporary_directory(),
        "-Xmx600m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
    ]
    command += ["--add-opens=java.base/java.lang=ALL-UNNAMED"]
    command += [f"-D{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [*command, "-cp", class_path, MAIN_CLASS, what],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("# ")]


@pytest.mark.compat
@pytest.mark.matrix(client="Schema registry", version="0.4.0", api="server, client, serializers")
@pytest.mark.timeout(3 * SECONDS_MAX)
def test_schemas_and_events_outlive_registry_and_store(
    class_path: str, foreign_target: Target | None, tmp_path: Path
) -> None:
    if foreign_target is not None:
        check(class_path, foreign_target.controller_uri, None, tmp_path)
        return
    with Server(tmp_path) as server:
        check(class_path, server.controller_uri, server, tmp_path)


def check(class_path: str, controller: str, server: Server | None, directory: Path) -> None:
    scope = f"registry-{uuid.uuid4().hex[:8]}"
    written = run_registry(class_path, controller, scope, "write", directory)
    assert written == ["versions 2", "wrong is taken false"]
    if server is not None:
        server.kill_all()
        server.start()
    assert run_registry(class_path, controller, scope, "read", directory) == [
        f"sum {2 * sum(range(50))}",
        "with a unit 50",
        "note written",
        "versions 2",
        "wrong is taken false",
        "group avro",
    ]
