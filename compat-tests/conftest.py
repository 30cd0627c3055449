"""Fixtures of the compatibility tests: the server under test, official clients, and the results.

A test that counts for the matrix of Java suites is recorded by what the JVM says; any other by its
marker: ``@pytest.mark.matrix(client="Python", version="0.3.8", api="events")``.

Where several processes share the tests (``-n``), those that use the same server, JVM or Spark
session stay together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for directory in (HERE.parent, HERE):  # ``foreign_servers`` and ``benchmarks``; ``compat_harness``
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
# ``gate``, and ``support`` of those suites of ``tests`` that run here on real servers.
sys.path.append(str(HERE.parent / "tests"))

pytest_plugins = (
    "gate.deadlines",
    "gate.folders",
    "gate.logs",
    "gate.outcomes",
    "gate.timeouts",
)

# PySpark forks to start its JVM. In the child, gRPC's fork handlers would use the parent's poller
# and kill it ("JAVA_GATEWAY_EXITED"). This is read when gRPC is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from compat_harness.java import CLIENT_VERSIONS, NEWEST, JavaClient, JavaError  # noqa: E402
from compat_harness.original import run_original  # noqa: E402
from compat_harness.released_versions import (  # noqa: E402
    NEWEST_RELEASE,
    Environments,
    build_release,
)
from compat_harness.results import Outcome, Result, ServerName, append_results  # noqa: E402
from compat_harness.secure import WHY_NOT_ORIGINAL, SecureServer  # noqa: E402
from compat_harness.server import TARGET_VARIABLE, Server  # noqa: E402
from compat_harness.suite_groups import SuiteRuns, Target, group_of, name_run  # noqa: E402

LONGEST_FIRST = (
    "spark",
    f"java {NEWEST}",
    "spark kills",
    "flink",
    "secure",
    f"java {NEWEST} kills",
    "registry",
)
"""Groups of tests that take longest; what is short fills the gaps at the end."""

WORKLOAD_VERSIONS = tuple(version for version in CLIENT_VERSIONS if version != "0.9.0")
LARGE_EVENTS = {"pravegaservice.cache.size.max": "700000000"}
"""Of the original: large events fill its cache of 128 MB, which ends a container."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compatibility")
    group.addoption(
        "--server",
        choices=[name.value for name in ServerName],
        default=ServerName.OURS.value,
        help="the server that official clients talk to; it is started",
    )
    group.addoption("--results", type=Path, help="append a line of JSON for each test to this file")
    group.addoption(
        "--full", action="store_true", help="all client versions, and long forms of the tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "matrix(client, version, api): counts for the matrix; without: records itself"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the long workloads with the newest client, or in the full form with all that can."""
    if "java_client" in metafunc.fixturenames:
        newest, *others = WORKLOAD_VERSIONS
        versions = [newest, *(pytest.param(each, marks=pytest.mark.proof) for each in others)]
        full = metafunc.config.getoption("--full")
        metafunc.parametrize("java_client", versions if full else versions[:1], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of each test for pytest-xdist, and begin with the groups that take longest."""
    groups = {item: find_group(item) for item in items}
    for item, group in groups.items():
        if group != item.nodeid and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    order = {group: place for place, group in enumerate(LONGEST_FIRST)}
    found = list(dict.fromkeys(groups.values()))
    found.sort(key=lambda group: order.get(group, len(order)))
    items.sort(key=lambda item: found.index(groups[item]))


def find_group(item: pytest.Item) -> str:
    """Return the name of the tests that share servers and processes with this one, if any do.

    A module's own mark ``xdist_group`` sets it apart from the others of its directory.
    """
    mark = item.get_closest_marker("xdist_group")
    if mark is not None:
        return str(mark.args[0])
    assert isinstance(item, pytest.Function)
    if "suite_runs" in item.fixturenames:
        parameters = item.callspec.params
        return name_run(parameters["version"], group_of(parameters["suite"]))
    if item.path.parent != HERE:
        return item.path.parent.name
    return item.nodeid


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Record the tests with the marker ``matrix``."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    marker = item.get_closest_marker("matrix")
    path = item.config.getoption("--results")
    if marker is None or not marker.kwargs or path is None:
        return
    if report.when != "call" and report.passed:
        return
    note = "" if report.passed or call.excinfo is None else call.excinfo.exconly()
    append_results(
        path,
        [
            Result(
                server=ServerName(item.config.getoption("--server")),
                client=marker.kwargs["client"],
                version=marker.kwargs["version"],
                api=marker.kwargs["api"],
                suite=item.path.stem,
                test=item.name,
                result=Outcome(report.outcome),
                seconds=round(report.duration, 1),
                note=note.partition("\n")[0][:200],
            )
        ],
    )


@pytest.fixture(scope="session", autouse=True)
def directory_of_jvms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory in which JVMs of Spark and Flink leave temporary files when they are killed.

    Pytest removes it later, as it removes the directories of former runs.
    """
    directory = tmp_path_factory.mktemp("jvms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(directory))
        patch.setenv("SPARK_SUBMIT_OPTS", f"-Djava.io.tmpdir={directory}")
        yield directory


@dataclass(frozen=True, slots=True)
class RunningElsewhere:
    """A server that this session did not configure."""

    controller_uri: str


@pytest.fixture(scope="session")
def foreign_target(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target | None]:
    """The server under test if it is not ours: the original, or one that runs already."""
    running = os.environ.get(TARGET_VARIABLE)
    if running:
        yield RunningElsewhere(running)
    elif pytestconfig.getoption("--server") == ServerName.ORIGINAL:
        directory = tmp_path_factory.mktemp("original")
        with run_original(directory, heap="3g", properties=LARGE_EVENTS) as address:
            yield RunningElsewhere(address)
    else:
        yield None


@pytest.fixture(scope="session")
def controller_uri(
    foreign_target: Target | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The controller of the server under test: one of our own for the whole session, or another's.

    The environment variable SEGSTORE_COMPAT_TARGET names a server that runs already.
    """
    if foreign_target is not None:
        yield foreign_target.controller_uri
        return
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server.controller_uri


@pytest.fixture(scope="session")
def secure_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureServer]:
    """A store of ours with TLS and users, which all tests of a process share."""
    if pytestconfig.getoption("--server") == ServerName.ORIGINAL:
        pytest.skip(WHY_NOT_ORIGINAL)
    with SecureServer(tmp_path_factory.mktemp("secure")) as server:
        yield server


@pytest.fixture(scope="session")
def suite_runs(
    pytestconfig: pytest.Config,
    foreign_target: Target | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SuiteRuns]:
    """The JVMs that run the Java suites of this session."""
    short = "50000" if not pytestconfig.getoption("--full") else "1000000"
    properties = {"events": os.environ.get("SEGSTORE_COMPAT_EVENTS", short)}
    runs = SuiteRuns(
        tmp_path_factory.mktemp("suites"),
        foreign_target,
        properties,
        count_calls=pytestconfig.getoption("--results") is not None,
    )
    try:
        yield runs
    finally:
        runs.close()


@pytest.fixture(scope="session")
def java_client(request: pytest.FixtureRequest) -> JavaClient:
    """The Java suites, compiled with one version of the official client."""
    return build(request.param)


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """The newest release and this checkout, each in an environment."""
    return Environments(tmp_path_factory.mktemp("environments"), build_release(NEWEST_RELEASE))


def build(version: str) -> JavaClient:
    """Build the suites with that client; fail the test with one line where that cannot be done."""
    try:
        return JavaClient.build(version)
    except JavaError as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)
