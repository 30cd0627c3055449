"""Faults of real stores: each is told by alerts of a real Prometheus, or by a reason, until the
commands of the runbook mend it.

A fault is a generator: it makes the fault and yields; it is sent the sentences of the alerts that
fire, and mends what it made. ``test_what_is_not_tried_is_named`` compares the page with the faults.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from foreign_servers.pauses import pause_process
from foreign_servers.prometheus import PrometheusServer, prometheus_path, wait_until

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.names import container_of
from segstore.testing.faults.frozen_disk import Freezer, freezable_disk
from segstore.testing.faults.small_disk import fill_disk
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import PravegaError
from support.small_disks import small_disk

from .watched_stores import (
    SECONDS_MAX,
    TIME_SCALE,
    ServersOneByOne,
    WatchedStore,
    read_sections,
    wait_for_alerts,
    wait_until_clear,
    watched,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(prometheus_path() is None, reason="Prometheus is not installed"),
]
MIB = 1024**2
DISK_BYTES = 96 * MIB
CACHE_BYTES = 32 * MIB
NO_ROOM = 75
LINE = b"x" * 990 + b"\n"
CONTAINERS = 4
"""Number of containers; each of ``journals_apart`` has a journal of its own."""
CONNECTIONS = 1900
"""Connections that a store with 2,400 descriptors accepts just so."""
SMALL_FILES = "journal_file_bytes = 8388608"

Steps = Generator[None, dict[str, str], None]


class Scene:
    """Where a fault happens. ``begin`` starts a store, and Prometheus beside it."""

    def __init__(self, fault: Fault, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.disk = directory / "disk"
        self.answers: list[str] = []
        """What clients of the fault were answered."""
        self._fault = fault
        self._stack = stack
        self.store: WatchedStore
        self.server: PrometheusServer

    def mount_disk(self, **options: int) -> Path:
        """Attach a small disk, which is the page's ``/srv/tier2``; return its directory."""
        return self._stack.enter_context(small_disk(self.disk, **options))

    def mount_freezable_disk(self) -> Freezer:
        """Attach a disk whose writes can be made to wait."""
        freezer = self._stack.enter_context(freezable_disk(self.disk, size_bytes=600 * MIB))
        if freezer is None:
            pytest.skip("mounting needs root and loop devices")
        return freezer

    def begin(
        self, store: WatchedStore | None = None, *, settings: str = "", stream: bool = True
    ) -> WatchedStore:
        """Start a store, with these settings of its segment store, and Prometheus."""
        self.store = store = store or WatchedStore(self.directory / "data")
        store.places["/srv/tier2"] = self.disk
        store.log = self.directory / "segstore.log"
        store.settings = self.directory / "settings.toml"
        store.settings.write_text(f"[segment_store]\n{settings}\n")
        self._stack.callback(store.close)
        store.start()
        if stream:
            store.make_stream("demo/log")
        self._watch()
        return store

    def begin_one_by_one(self) -> ServersOneByOne:
        """Start a controller and a segment store that nothing starts again, and Prometheus."""
        store = self._stack.enter_context(ServersOneByOne(self.directory / "data"))
        store.make_stream("demo/log")
        self.store = store
        self._watch()
        return store

    def _watch(self) -> None:
        fault = self._fault
        self.server = self._stack.enter_context(
            watched(
                self.store,
                self.directory,
                scrape_seconds=fault.scrape_seconds,
                time_scale=fault.time_scale,
            )
        )

    def run(self, section: str, beginning: str, lines: bytes = b"") -> str:
        """Run a command of a section of the runbook; return what it prints."""
        return self.store.run_page(section, beginning, lines)

    def write(self, count: int) -> None:
        """Write events, which all have to be acknowledged."""
        done = self.store.run("write", "demo/log", lines=LINE * count)
        assert done.returncode == 0, done.stderr

    def write_meanwhile(self) -> None:
        """Write some events a second from now on."""
        command = [sys.executable, "-m", "pravega_admin", "write", "demo/log", "--patience", "600"]
        writer = self._stack.enter_context(
            subprocess.Popen(command, env=self.store.environment(), stdin=subprocess.PIPE)
        )
        self._stack.callback(writer.kill)
        pipe = writer.stdin
        assert pipe is not None

        def write() -> None:
            # It waits while the store does.
            with suppress(BrokenPipeError):
                pipe.write(LINE)
                pipe.flush()

        self.repeat(write, seconds=0.05)

    def repeat(
        self, act: Callable[[], None], *, seconds: float, first_seconds: float = 0.0
    ) -> None:
        """Do something again and again until the end, in a thread of its own."""
        ended = threading.Event()

        def run() -> None:
            ended.wait(first_seconds)
            while not ended.wait(seconds):
                act()

        thread = threading.Thread(target=run)
        self._stack.callback(thread.join)
        self._stack.callback(ended.set)
        thread.start()

    def value_of(self, expression: str) -> float | None:
        """Return the value of an expression that has one series; None if it has none."""
        found = self.server.query(expression)
        return found[0][1] if found else None

    def told(self) -> str:
        """Return what the two commands at the head of the runbook say, and what clients hear."""
        return "\n".join(
            [
                self.run("SegstoreRequestsWait", "segstore check segment-store"),
                self.run("SegstoreControllerNotReady", "curl"),
                *self.answers,
            ]
        )


@dataclass(frozen=True)
class Fault:
    """A fault, and the alerts and reasons by which it is told."""

    steps: Callable[[Scene], Steps]
    alerts: tuple[str, ...]
    reasons: tuple[str, ...]
    time_scale: float
    scrape_seconds: int


FAULTS: Final[list[Fault]] = []


def tells(
    *alerts: str,
    reasons: tuple[str, ...] = (),
    time_scale: float = TIME_SCALE,
    scrape_seconds: int = 2,
) -> Callable[[Callable[[Scene], Steps]], Callable[[Scene], Steps]]:
    """Add a fault to those that are tried."""

    def add(steps: Callable[[Scene], Steps]) -> Callable[[Scene], Steps]:
        FAULTS.append(Fault(steps, alerts, reasons, time_scale, scrape_seconds))
        return steps

    return add


# ---- What does not answer ------------------------------------------------------------------------


@tells("SegstoreControllerUnreachable")
def a_controller_is_gone(scene: Scene) -> Steps:
    store = scene.begin_one_by_one()
    store.kill_controller()
    firing = yield
    section = "SegstoreControllerUnreachable"
    assert f"127.0.0.1:{store.http_port}" in firing[section]
    assert scene.run(section, "segstore check segment-store").endswith(" serves\n")
    assert "Connection refused" in scene.run(section, "segstore check controller")
    store.run_beside(store.command_of(section, "segstore controller"))
    wait_until(
        lambda: scene.run(section, "curl") == "200\n", SECONDS_MAX, lambda: "it is not alive"
    )


@tells("SegstoreStoreDown", "SegstoreControllerNotReady", scrape_seconds=10)
def a_store_is_gone(scene: Scene) -> Steps:
    store = scene.begin_one_by_one()
    store.kill_segment_store()
    firing = yield
    assert f"127.0.0.1:{store.segment_store_port}" in firing["SegstoreStoreDown"]
    store.run_beside(store.command_of("SegstoreStoreDown", "segstore server"))
    wait_until_clear(scene.server, "SegstoreStoreDown")
    scene.write(1)


@tells("SegstoreRpcsFail", reasons=("gave up after",))
def a_store_is_gone_while_clients_call(scene: Scene) -> Steps:
    store = scene.begin_one_by_one()
    store.kill_segment_store()

    def call() -> None:
        with ControllerClient(store.controller, patience=0) as controller:
            try:
                controller.stream_settings("demo", "log")
            except PravegaError as error:
                scene.answers[:] = [str(error)]
            else:
                scene.answers.clear()

    for number in range(8):
        # A call is answered after 30 s: so there is an answer every four seconds.
        scene.repeat(call, seconds=0.5, first_seconds=number * 4.0)
    firing = yield
    assert "UNAVAILABLE" in firing["SegstoreRpcsFail"]
    assert store.run_page("gave up after", "segstore check").startswith("segstore: ")
    store.run_beside(store.command_of("SegstoreStoreDown", "segstore server"))


@tells(
    "SegstoreStoreDown",
    "SegstoreControllerNotReady",
    reasons=("segment stores do not answer within 2 s",),
    scrape_seconds=10,
)
def a_store_hangs(scene: Scene) -> Steps:
    store = scene.begin()
    pause_process(store.pid_of("segment-store-0"))
    firing = yield
    address = f"127.0.0.1:{store.segment_store_port}"
    assert address in firing["SegstoreStoreDown"]
    reason = "segment stores do not answer within 2 s"
    assert f'store="{address}"}} 0' in scene.run(reason, "curl")
    for section in (reason, "SegstoreStoreDown"):
        said = scene.run(section, "segstore check")
        assert said == f"segstore: no reply of {address} within 5.0 s\n"
    # The second column.
    assert scene.run("SegstoreStoreDown", "ps").splitlines()[1].split()[1].startswith("T")
    scene.run("SegstoreStoreDown", "kill")


@tells("SegstoreRestartsOften", time_scale=0.02, scrape_seconds=1)
def a_store_ends_again_and_again(scene: Scene) -> Steps:
    store = scene.begin()
    started = 'max(segstore_process_start_time_seconds{component="segmentstore"})'
    for _ in range(3):
        # Prometheus has to see each start.
        last = wait_until(lambda: scene.value_of(started), SECONDS_MAX, scene.server.firing)
        store.kill("segment-store-0")
        wait_until(
            lambda last=last: (scene.value_of(started) or last) > last,
            SECONDS_MAX,
            scene.server.firing,
        )
    firing = yield
    assert "was started 3 times" in firing["SegstoreRestartsOften"]
    assert scene.run("SegstoreRestartsOften", "grep").count("segment store serves") == 4
    # Nothing ends any more: the alert is over when the last hour has no starts.


# ---- Containers ----------------------------------------------------------------------------------


class ManyJournals(WatchedStore):
    """A store with a journal for each container: it was started with as many servers once."""

    count = CONTAINERS

    @property
    def command(self) -> list[str]:
        return [*super().command, "--stores", str(self.count)]


def begin_with_journals_apart(scene: Scene) -> WatchedStore:
    store = ManyJournals(scene.directory / "data")
    store.log = scene.directory / "segstore.log"
    try:
        store.start()
        store.stop()
    finally:
        store.close()
    store.count = 1
    scene.begin(store)
    segment = next(
        name
        for number in range(1000)
        if container_of(name := f"demo/log/{number}.#epoch.0", CONTAINERS) == 0
    )

    def ask() -> None:
        try:
            with SegmentConnection("127.0.0.1", store.segment_store_port) as connection:
                connection.call(wire.GetStreamSegmentInfo(1, segment, ""))
        except OSError as error:
            scene.answers[:] = [str(error)]

    scene.repeat(ask, seconds=0.2)
    return store


@contextmanager
def ended_segment_store(store: WatchedStore) -> Iterator[None]:
    """Kill the segment store, and let the supervisor start it again after the block only."""
    assert store.process is not None
    supervisor = store.process.pid
    pause_process(supervisor)
    try:
        store.kill("segment-store-0")
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


@tells(
    "SegstoreContainerOffline",
    "SegstoreRefusalsMany",
    "SegstoreRequestsWait",
    reasons=("container is offline",),
)
def an_older_copy_of_a_journal(scene: Scene) -> Steps:
    store = begin_with_journals_apart(scene)
    store.stop()
    journal = store.data_dir / "journal-0"
    shutil.copytree(journal, scene.directory / "older")
    store.start()
    with ended_segment_store(store):
        # All files of the journal but the one by which the whole store would be refused.
        for file in journal.glob("*.journal"):
            file.unlink()
        for file in (scene.directory / "older").glob("*.journal"):
            shutil.copy(file, journal)
    firing = yield
    assert "Container 0 " in firing["SegstoreContainerOffline"]
    assert "ContainerOfflineError" in firing["SegstoreRefusalsMany"]
    assert 'reason="ContainerOfflineError"' in scene.run("SegstoreRefusalsMany", "curl")
    section = "SegstoreContainerOffline"
    assert "an older copy" in scene.run(section, "grep")
    store.stop()
    beginning = "segstore recover --data-dir ./data"
    assert "the journal is older" in scene.run(section, f"{beginning} --dry-run")
    assert "recovered; " in scene.run(section, beginning, lines=b"y\n")
    store.start()


@tells("SegstoreContainerNotOnline", "SegstoreRequestsWait", reasons=("container is offline",))
def a_damaged_journal(scene: Scene) -> Steps:
    store = begin_with_journals_apart(scene)
    journal = store.data_dir / "journal-0"
    with ended_segment_store(store):
        shutil.copytree(journal, scene.directory / "sound")
        written = {file: len(file.read_bytes().rstrip(b"\0")) for file in journal.glob("*.journal")}
        longest = max(written, key=lambda file: written[file])
        os.truncate(longest, written[longest] - 100)
    firing = yield
    assert "Container 0 " in firing["SegstoreContainerNotOnline"]
    for section in ("SegstoreContainerNotOnline", "container is offline"):
        assert "JournalDamagedError" in scene.run(section, "grep")
    # The right file: the store uses it without a restart.
    shutil.copy(scene.directory / "sound" / longest.name, longest)


# ---- Tier 2 --------------------------------------------------------------------------------------


@tells(
    "SegstoreTier2Failing",
    "SegstoreTier2Behind",
    "SegstoreWritersThrottled",
    reasons=("tier 2 in D cannot write",),
)
def tier_2_is_read_only(scene: Scene) -> Steps:
    disk = scene.mount_disk(size_bytes=DISK_BYTES)
    store = scene.begin(
        settings=f'storage_dir = "{disk}"\ncache_bytes_max = {CACHE_BYTES}', stream=False
    )
    # Nothing is open for writing there yet: the mount would be refused.
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    store.make_stream("demo/log")
    count = CACHE_BYTES * 7 // 10 // len(LINE)
    scene.write(count)
    firing = yield
    assert re.search("(write|create) with ", firing["SegstoreTier2Failing"])
    assert "cache bytes" in firing["SegstoreWritersThrottled"]
    assert "cache bytes" in scene.run("SegstoreWritersThrottled", "curl")
    assert "segstore_unflushed_bytes{" in scene.run("SegstoreTier2Behind", "curl")
    assert "Read-only file system" in scene.run("SegstoreTier2Failing", "grep")
    assert re.search(r"\bro\b", scene.run("tier 2 in D cannot write", "findmnt"))
    scene.run("SegstoreTier2Failing", "mount")
    read = store.run("read", "demo/log")
    assert read.stdout.splitlines() == [LINE[:-1]] * count


@tells("SegstoreTier2Failing", "SegstoreRequestsWait", reasons=("the disk of D is full",))
def tier_2_is_full(scene: Scene) -> Steps:
    disk = scene.mount_disk(size_bytes=DISK_BYTES // 2)
    scene.begin(settings=f'storage_dir = "{disk}"')
    # The journal, which is on another disk, takes what tier 2 cannot.
    scene.write(60_000)
    firing = yield
    assert "write with StorageFullError" in firing["SegstoreTier2Failing"]
    scene.run("SegstoreTier2Failing", "segstore stream truncate")


@tells("SegstoreTier2Slow", scrape_seconds=1)
def tier_2_is_slow(scene: Scene) -> Steps:
    freezer = scene.mount_freezable_disk()
    scene.begin(settings=f'storage_dir = "{scene.disk}"')
    scene.write_meanwhile()
    freezer.freeze_often(seconds=7.0, pause_seconds=0.5)
    firing = yield
    assert "calls of tier 2 (write)" in firing["SegstoreTier2Slow"]
    # What else used that disk uses it no more.
    freezer.stop()


# ---- Disks ---------------------------------------------------------------------------------------


@tells("SegstoreDisk80Percent", "SegstoreDisk90Percent", "SegstoreDisk95Percent")
def another_program_fills_the_disk(scene: Scene) -> Steps:
    disk = scene.mount_disk(size_bytes=DISK_BYTES)
    store = scene.begin(WatchedStore(disk / "data"), settings=SMALL_FILES)
    fill_disk(disk / "balloon")
    firing = yield
    assert f"of the disk of {store.data_dir}/" in firing["SegstoreDisk95Percent"]
    for section in ("SegstoreDisk80Percent", "SegstoreDisk90Percent", "SegstoreDisk95Percent"):
        assert "100%" in scene.run(section, "df")
    # What is not the store's.
    (disk / "balloon").unlink()


@tells("SegstoreWritersStopped", "SegstoreRequestsWait", reasons=("the disk of D is full",))
def the_store_fills_its_disk(scene: Scene) -> Steps:
    disk = scene.mount_disk(size_bytes=DISK_BYTES)
    store = scene.begin(WatchedStore(disk / "data"), settings=SMALL_FILES)
    done = store.run("write", "demo/log", "--key", "k", "--patience", "3", lines=LINE * 120_000)
    assert done.returncode == NO_ROOM, done.stderr
    yield
    # What is free is kept for tier 2, which is on the same disk.
    assert re.search(r"\b[789]\d%", scene.run("the disk of D is full", "df"))
    beginning = "segstore stream truncate"
    command = store.command_of("SegstoreRequestsWait", beginning)
    assert command == store.command_of("SegstoreDisk95Percent", beginning)
    scene.run("SegstoreRequestsWait", beginning)


@tells("SegstoreDiskFullSoon", scrape_seconds=1)
def a_stream_grows_fast(scene: Scene) -> Steps:
    disk = scene.mount_disk(size_bytes=3 * DISK_BYTES)
    store = scene.begin(WatchedStore(disk / "data"), settings=SMALL_FILES)
    for _ in range(20):
        scene.write(8_000)
    firing = yield
    assert str(store.data_dir) in firing["SegstoreDiskFullSoon"]
    assert str(disk) in scene.run("SegstoreDiskFullSoon", "df")
    scene.run("SegstoreDisk95Percent", "segstore stream truncate")


@tells("SegstoreRequestsWait", reasons=("it has no inode left for another file",))
def a_disk_has_no_inodes_left(scene: Scene) -> Steps:
    disk = scene.mount_disk(size_bytes=DISK_BYTES, inodes_max=120)
    store = scene.begin(settings=f'storage_dir = "{disk}"', stream=False)
    # Each chunk is a file.
    store.make_stream("demo/log", "--rollover-size", "10kB")
    scene.write(5_000)
    yield
    section = "it has no inode left for another file"
    assert "100%" in scene.run(section, "df")
    assert str(disk) in scene.run(section, "du")
    scene.run(section, "segstore stream truncate")


@tells("SegstoreRequestsWait", reasons=("the disk of D does not answer",))
def the_disk_of_the_journal_hangs(scene: Scene) -> Steps:
    freezer = scene.mount_freezable_disk()
    scene.begin(
        WatchedStore(scene.disk / "data"),
        settings=f'{SMALL_FILES}\nstorage_dir = "{scene.directory / "chunks"}"',
    )
    freezer.freeze()
    scene.write_meanwhile()
    yield
    section = "the disk of D does not answer"
    assert str(scene.disk) in scene.run(section, "findmnt")
    scene.run(section, "fsfreeze")


@tells("SegstoreJournalSlow", "SegstoreAppendsSlow", scrape_seconds=1)
def the_disk_of_the_journal_is_slow(scene: Scene) -> Steps:
    freezer = scene.mount_freezable_disk()
    store = scene.begin(
        WatchedStore(scene.disk / "data"),
        settings=f'{SMALL_FILES}\nstorage_dir = "{scene.directory / "chunks"}"',
    )
    store.places["/srv/fast"] = scene.directory / "fast"
    (scene.directory / "fast").mkdir()
    scene.write_meanwhile()
    freezer.freeze_often(seconds=2.0, pause_seconds=0.2)
    yield
    # It is not the throttle.
    delays = scene.run("SegstoreAppendsSlow", "curl").splitlines()
    assert {line.split()[-1] for line in delays if "throttle_seconds" in line} == {"0.0"}
    store.stop()
    scene.run("SegstoreJournalSlow", "mv")
    assert (store.data_dir / "journal-0").resolve() == scene.directory / "fast" / "journal-0"
    store.start()


# ---- Processes -----------------------------------------------------------------------------------


@tells("SegstoreLoopLate", scrape_seconds=1)
def a_store_does_not_get_a_processor(scene: Scene) -> Steps:
    store = scene.begin()
    pid = store.pid_of("segment-store-0")
    given_back = threading.Event()

    def take() -> None:
        if not given_back.is_set():
            os.kill(pid, signal.SIGSTOP)
            given_back.wait(1.0)
            os.kill(pid, signal.SIGCONT)

    scene.repeat(take, seconds=0.3)
    firing = yield
    assert "The segmentstore 127.0.0.1" in firing["SegstoreLoopLate"]
    given_back.set()


@tells("SegstoreConnectionsNearMax", "SegstoreOpenFilesNearMax")
def clients_hold_many_connections(scene: Scene) -> Steps:
    store = WatchedStore(scene.directory / "data")
    store.descriptor_limits = "2400:2400"
    scene.begin(store)
    with ExitStack() as clients:

        def connect() -> None:
            for _ in range(CONNECTIONS):
                clients.enter_context(SegmentConnection("127.0.0.1", store.segment_store_port))

        connect()
        yield
        assert re.search(r"19\d\d 127\.0\.0\.1", scene.run("SegstoreConnectionsNearMax", "ss"))
        assert re.search(r"19\d\d socket", scene.run("SegstoreOpenFilesNearMax", "ls"))
        # A higher limit: the clients connect again.
        store.stop()
        clients.close()
        store.descriptor_limits = "8192:8192"
        store.start()
        connect()
        # They clear while the clients are there.
        wait_until(
            lambda: (scene.value_of("segstore_connections") or 0) >= CONNECTIONS,
            SECONDS_MAX,
            lambda: scene.value_of("segstore_connections"),
        )
        names = ("SegstoreConnectionsNearMax", "SegstoreOpenFilesNearMax")
        wait_until_clear(scene.server, *names)


# ---- All of them ---------------------------------------------------------------------------------


def is_told(reason: str, told: str) -> bool:
    """Return whether the heading of a reason is in what is told; ``D`` stands for a directory."""
    return re.search(re.escape(reason).replace(r"\ D\ ", r"\ /\S+\ "), told) is not None


@pytest.mark.proof
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.steps.__name__)
def test_a_fault_is_told_until_the_page_mends_it(fault: Fault, tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = Scene(fault, tmp_path, stack)
        steps = fault.steps(scene)
        next(steps)
        stack.callback(steps.close)
        firing = wait_for_alerts(scene.server, *fault.alerts)
        for reason in fault.reasons:
            wait_until(lambda reason=reason: is_told(reason, scene.told()), SECONDS_MAX, scene.told)
        with pytest.raises(StopIteration):
            steps.send(firing)
        wait_until_clear(scene.server, *fault.alerts)
        for reason in fault.reasons:
            wait_until(
                lambda reason=reason: not is_told(reason, scene.told()), SECONDS_MAX, scene.told
            )


UNTRIED = {
    # ``test_prometheus`` makes and renews certificates.
    "SegstoreCertificateEnds",
    "SegstoreCertificateEndsSoon",
    # Kernels without file systems with quotas are common.
    "the quota on the disk of D is used up",
}
"""The sections of the runbook that no fault of this module is for."""


def test_what_is_not_tried_is_named() -> None:
    tried = {name for fault in FAULTS for name in (*fault.alerts, *fault.reasons)}
    assert set(read_sections()) - tried == UNTRIED
