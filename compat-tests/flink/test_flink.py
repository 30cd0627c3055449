"""Flink with the official connector: exactly-once jobs, the batch source and the table API.

The jobs lie in ``src`` and run in JVMs of their own, each with a cluster in it. ``Job`` reads what
they say, a line beginning with ``#`` for each step, and kills them.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

import pytest
from compat_harness.secure import SECURE_API, SecureServer
from compat_harness.server import Server
from compat_harness.suite_groups import Target
from foreign_servers.deadlines import scale
from foreign_servers.maven import MavenFailedError, compiled_class_path
from foreign_servers.tied_processes import tied

HERE = Path(__file__).parent
MAIN_CLASS = "flinkjobs.ExactlyOnce"
STEP_SECONDS_MAX = scale(240.0)
EVENTS = int(os.environ.get("SEGSTORE_COMPAT_FLINK_EVENTS", "12000"))
"""Events that the exactly-once job copies; each takes one of its two tasks 2.5 ms."""
MICROSECONDS = 2_500
TABLE_ROWS = 2_000
SECURE_EVENTS = 4_000
SECURE_SCOPE = "flink-secure"

# Flink 1.11 is older than the walls between the modules of Java 17.
OPENED_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.ref",
    "java.lang.reflect",
    "java.io",
    "java.math",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.misc",
    "jdk.internal.ref",
    "sun.nio.ch",
)

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]
matrix = partial(pytest.mark.matrix, client="Flink connector", version="0.9.0")


class Job:
    """A JVM with a job; a context manager that kills what still runs at its end."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                tied(command),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it with kill -9, unless it has ended."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def wait_for(self, step: str) -> str:
        """Wait for the step; return the rest of its line.

        The test fails if the step does not come.
        """
        while True:
            line = self._next_line()
            if line is None:
                pytest.fail(f"the job ended before {step!r}:\n{self._log_tail()}", pytrace=False)
            if line.startswith(f"# {step}"):
                return line.removeprefix(f"# {step}").strip()

    def read_to_end(self) -> list[str]:
        """Read all lines that are left, after the JVM has ended with success."""
        lines = []
        while (line := self._next_line()) is not None:
            lines.append(line)
        if self._process.wait(STEP_SECONDS_MAX) != 0:
            pytest.fail(f"the job failed:\n{self._log_tail()}", pytrace=False)
        return lines

    def _next_line(self) -> str | None:
        try:
            return self._lines.get(timeout=STEP_SECONDS_MAX)
        except queue.Empty:
            pytest.fail(f"nothing for {STEP_SECONDS_MAX:g} s:\n{self._log_tail()}", pytrace=False)

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])


Start = Callable[..., Job]


@pytest.fixture(scope="session")
def class_path() -> str:
    try:
        return compiled_class_path(HERE, MAIN_CLASS)
    except MavenFailedError as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


@pytest.fixture
def server(foreign_target: Target | None, tmp_path: Path) -> Iterator[Server | None]:
    """A store that the test may kill, unless another's server is to be tested."""
    if foreign_target is not None:
        yield None
        return
    with Server(tmp_path) as store:
        yield store


@pytest.fixture
def start(
    class_path: str,
    server: Server | None,
    foreign_target: Target | None,
    tmp_path: Path,
    directory_of_jvms: Path,
) -> Start:
    """Start a main class with arguments; all jobs of a test use one scope and directory."""
    target = foreign_target or server
    assert target is not None
    settings = {"controller": target.controller_uri, "scope": f"flink-{uuid.uuid4().hex[:8]}"}
    return starter(class_path, tmp_path, directory_of_jvms, settings)


def starter(
    class_path: str,
    directory: Path,
    directory_of_jvms: Path,
    settings: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> Start:
    """Return a function that starts a main class with these settings."""
    given = {
        "directory": str(directory / "flink"),
        "microseconds": str(MICROSECONDS),
        **settings,
    }

    def start_job(main_class: str, *arguments: str, events: int = EVENTS) -> Job:
        command = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED_PACKAGES]
        command += [f"-Djava.io.tmpdir={directory_of_jvms}"]
        command += [f"-Dflinkjobs.{name}={value}" for name, value in given.items()]
        command += [f"-Dflinkjobs.events={events}", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return Job(
            [*command, "-cp", class_path, f"flinkjobs.{main_class}", *arguments],
            directory / "flink.log",
            environment or {},
        )

    return start_job


def find_checkpoint(directory: Path) -> str:
    """Find the newest checkpoint that is complete, of all jobs."""
    metadata = directory.glob("checkpoints/*/chk-*/_metadata")
    return str(max(metadata, key=lambda path: path.stat().st_mtime_ns).parent)


@matrix(api="exactly-once jobs, batch source")
def test_a_job_copies_a_stream_exactly_once(
    start: Start, server: Server | None, tmp_path: Path
) -> None:
    """A task fails; the job stops with a savepoint, goes on, is killed, goes on from a checkpoint;
    then everything of the server is killed and starts again."""
    with start("ExactlyOnce", "fill") as job:
        job.read_to_end()
    with start("ExactlyOnce", "first") as job:
        job.wait_for("to be killed")
    with start("ExactlyOnce", "last", find_checkpoint(tmp_path / "flink")) as job:
        job.wait_for("resumed")
        if server is not None:
            server.kill_all()
            server.start()
        job.wait_for("done")
        job.read_to_end()
    assert read_batch(start, "sink", EVENTS) == copied(EVENTS)


def copied(events: int) -> Counter[str]:
    """Return the lines of the batch source about the sink when all events are there once."""
    return Counter(f"event: event {number} seen" for number in range(events))


@pytest.mark.proof
@matrix(api=SECURE_API)
def test_a_user_with_rights_to_its_streams_alone_copies_exactly_once(
    class_path: str, secure_server: SecureServer, tmp_path: Path, directory_of_jvms: Path
) -> None:
    """Another user makes the streams. The job's may read one, write the other, and read by
    groups."""
    scope = f"prn::/scope:{SECURE_SCOPE}"
    secure_server.add_user("flink-owner", ("prn::/", "READ_UPDATE"), (f"{scope}*", "READ_UPDATE"))
    secure_server.add_user(
        "flink-job",
        (scope, "READ"),
        (f"{scope}/reader-group:*", "READ"),
        (f"{scope}/stream:source", "READ"),
        (f"{scope}/stream:sink", "READ_UPDATE"),
    )

    def start_as(user: str) -> Start:
        settings = {
            "controller": secure_server.controller_uri,
            "scope": SECURE_SCOPE,
            "trustStore": str(secure_server.ca),
            "user": user,
        }
        environment = {"FLINKJOBS_PASSWORD": secure_server.passwords[user]}
        return starter(class_path, tmp_path, directory_of_jvms, settings, environment)

    with start_as("flink-owner")("ExactlyOnce", "fill", events=SECURE_EVENTS) as job:
        job.read_to_end()
    start = start_as("flink-job")
    with start("ExactlyOnce", "last", events=SECURE_EVENTS) as job:
        job.wait_for("done")
        job.read_to_end()
    assert read_batch(start, "sink", SECURE_EVENTS) == copied(SECURE_EVENTS)


def read_batch(start: Start, stream: str, count: int) -> Counter[str]:
    """Read a stream's events with the batch source.

    Read again while the last commit is on its way.
    """
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while True:
        with start("BatchRead", stream) as job:
            events = [line for line in job.read_to_end() if line.startswith("event: ")]
        if len(events) >= count or time.monotonic() > deadline:
            return Counter(events)


@pytest.mark.proof
@matrix(api="tables")
def test_tables_are_written_and_asked(start: Start) -> None:
    """Half of the rows go on, exactly once, by a query without an end; batch queries count."""
    with start("Tables", events=TABLE_ROWS) as job:
        rows = job.wait_for("rows").split()
        dearest = job.wait_for("dearest")
        groups = job.wait_for("groups")
        job.read_to_end()
    passed = [number for number in range(TABLE_ROWS) if number % 10 < 5]
    assert rows == [str(len(passed)), str(len(passed)), str(sum(passed))]
    assert (dearest, groups) == ("4.0", "7")
