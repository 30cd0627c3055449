"""Driver, executors, Python workers and servers are killed while a query copies a stream that
scales: every event arrives once, each key in order, and no transaction stays open.

``SEGSTORE_SPARK_ROUNDS`` is how often something is killed, ``SEGSTORE_COMPAT_SEED`` what and when.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compat_harness.queries import run_query_to_its_end
from compat_harness.server import CONTROLLER, SEGMENT_STORE, Server
from foreign_servers.tied_processes import tied

from pravega_admin.inspection.open_transactions import read_open_transactions
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient
from segstore_client.controller.scaling import plan_merge, plan_split
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.errors import PravegaError

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from copy_query import LEASE_MS, start_copy
from foreign_servers.deadlines import scale

ROUNDS = int(os.environ.get("SEGSTORE_SPARK_ROUNDS", "3"))

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    # Clusters of its own, for minutes: beside the other tests, though that costs a second session.
    pytest.mark.xdist_group("spark kills"),
    pytest.mark.timeout(900 + 240 * ROUNDS),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SCOPE = "spark-kills"
KEYS = 20
MASTER = "local-cluster[2,1,512]"
START_SECONDS_MAX = scale(400.0)
BATCH_SECONDS_MAX = scale(120.0)
ROUND_EVENTS = 2_000
"""Maximum number of events that a round writes: a slow machine could not copy more in time."""
PROGRAM = Path(__file__).with_name("copy_query.py")
DRIVER, EXECUTOR, WORKER = "driver", "executor", "worker"
SERVERS = (SEGMENT_STORE, CONTROLLER)


class Driver:
    """The program that runs the query, with its Java machines and workers: a session of its own."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, str(PROGRAM), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ensure_running(self) -> None:
        """Start it unless it runs: a query that gave up ends its program."""
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        self.starts += 1
        self._process = subprocess.Popen(
            tied(self._command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes of its session, by process id."""
        found = {}
        if self._process is not None:
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self._process.pid:
                        line = (entry / "cmdline").read_bytes()
                        found[int(entry.name)] = line.replace(b"\0", b" ").decode()
        return found

    def kill_one(self, kind: str, rng: random.Random) -> bool:
        """Kill an executor or a Python worker with kill -9.

        Return False if there is none just now.
        """
        mark = {EXECUTOR: "CoarseGrainedExecutorBackend", WORKER: "pyspark.daemon"}[kind]
        victims = sorted(pid for pid, line in self.processes().items() if mark in line)
        if not victims:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(victims), signal.SIGKILL)
        return True

    def kill(self) -> None:
        """Kill everything that belongs to it with kill -9."""
        while members := self.processes():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._process is not None:
                self._process.wait()
            time.sleep(0.05)
        self._process = None


class Source:
    """A stream that a thread writes numbered events to, each with one of some keys."""

    def __init__(self, client: ControllerClient, name: str) -> None:
        self.count = 0
        self.allowed = ROUND_EVENTS
        self._client = client
        self._name = name
        self._stop = threading.Event()
        self._error: BaseException | None = None
        client.ensure_scope(SCOPE)
        settings = StreamSettings(scaling=Scaling(segment_count_min=2))
        client.create_stream(SCOPE, name, settings)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._write)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            with BlockingEventWriter(self._client, SCOPE, self._name) as writer:
                while not self._stop.wait(0.05):
                    for _ in range(min(20, self.allowed - self.count)):
                        key = f"key-{self.count % KEYS}"
                        writer.submit(f"{key} {self.count}".encode(), key=key)
                        self.count += 1
                    writer.flush()
        except BaseException as error:
            self._error = error


def scale(client: ControllerClient, name: str, rng: random.Random) -> None:
    """Split a segment of a stream, or merge two, unless servers are away."""
    with contextlib.suppress(*RETRIED_ERRORS, PravegaError):
        ranges = client.current_segments(SCOPE, name).ranges
        if len(ranges) < 3:
            plan = plan_split(ranges, rng.choice(ranges).segment_id, 2)
        else:
            plan = plan_merge(ranges, [each.segment_id for each in ranges[:2]])
        client.scale_stream(SCOPE, name, sealed=plan.sealed, ranges=plan.ranges, timeout=30)


def committed_batches(checkpoint: Path) -> int:
    """Count the batches that Spark has noted as done."""
    commits = checkpoint / "commits"
    return len(list(commits.glob("[0-9]*"))) if commits.is_dir() else 0


def wait_for_batches(driver: Driver, checkpoint: Path, count: int) -> None:
    """Wait until so many batches more are done, and start the query again when it gave up."""
    wanted = committed_batches(checkpoint) + count
    deadline = time.monotonic() + START_SECONDS_MAX + BATCH_SECONDS_MAX
    while committed_batches(checkpoint) < wanted:
        driver.ensure_running()
        assert time.monotonic() < deadline, "the query makes no progress"
        time.sleep(0.05)


def choose_victims(rng: random.Random) -> list[list[str]]:
    """Return what each round kills: in three rounds everything there is, at random beyond that."""
    rounds: list[list[str]] = []
    while len(rounds) < ROUNDS:
        three = [[WORKER, SEGMENT_STORE], [EXECUTOR, CONTROLLER], [DRIVER]]
        rng.shuffle(three)
        if rounds:
            for victims in three:
                if rng.random() < 0.5:
                    victims.append(rng.choice(SERVERS))
        rounds += three
    return rounds[:ROUNDS]


def test_whatever_is_killed_every_event_is_copied_once(
    spark: Any, store: Server, client: ControllerClient, tmp_path: Path, directory_of_jvms: Path
) -> None:
    rng = random.Random(int(os.environ.get("SEGSTORE_COMPAT_SEED", "1")))
    source_name, target_name = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("from", "to"))
    source = Source(client, source_name)
    checkpoint = tmp_path / "checkpoint"
    places = [store.controller_uri, SCOPE, source_name, target_name, str(checkpoint)]
    driver = Driver(MASTER, *places)
    try:
        with source.writing():
            for victims in choose_victims(rng):
                source.allowed = source.count + ROUND_EVENTS
                wait_for_batches(driver, checkpoint, 2)
                time.sleep(rng.uniform(0.0, 1.5))
                servers = {name for name in victims if name in SERVERS}
                killed = store.kill(*servers)
                for kind in set(victims) - servers:
                    if kind == DRIVER:
                        driver.kill()
                    else:
                        driver.kill_one(kind, rng)
                store.wait_until_back(killed)
                scale(client, rng.choice([source_name, target_name]), rng)
            source.allowed = source.count + ROUND_EVENTS
            wait_for_batches(driver, checkpoint, 1)
    finally:
        driver.kill()
    # What killed JVMs leave is here, so it is not in the directory that all programs share.
    for kind in ("blockmgr-*", "spark-*", "liblz4-*"):
        assert any(directory_of_jvms.glob(kind)), kind

    def copy_the_rest() -> None:
        start = partial(
            start_copy,
            spark,
            controller=store.controller_uri,
            scope=SCOPE,
            source=source_name,
            target=target_name,
            checkpoint=str(checkpoint),
            follow=False,
        )
        run_query_to_its_end(start, 300)

    def read_target() -> list[Any]:
        options = {"controller": store.controller_uri, "scope": SCOPE, "stream": target_name}
        return list(spark.read.format("pravega").options(**options).load().collect())

    copy_the_rest()
    rows = read_target()
    numbers = [int(bytes(row.event).split()[1]) for row in rows]
    assert sorted(numbers) == list(range(source.count))
    last: dict[bytes, int] = {}
    for row in sorted(rows, key=lambda row: (row.segment_id >> 32, row.offset)):
        key, number = bytes(row.event).split()
        assert int(number) > last.get(key, -1)
        last[key] = int(number)
    copy_the_rest()
    assert len(read_target()) == len(rows)
    deadline = time.monotonic() + 3 * LEASE_MS / 1000
    while left := read_open_transactions(client, SCOPE, target_name):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    print(f"{source.count} events, {committed_batches(checkpoint)} batches, {driver.starts} starts")
