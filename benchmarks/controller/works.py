"""The works of a controller: one function per row does the row's work and returns its numbers.

1. A shared row has a server that stays for all shared rows, and is the same for ours and for the
   peer. All that it asks goes through the official client.
2. A row of its own starts the servers that it needs; these are ours.
"""

import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreign_servers.peer import PeerFailedError, RunningPeer, running
from foreign_servers.process_tree import resident_bytes

from benchmarks.comparison import Metric
from benchmarks.controller.driver import ControllerDriver, controller_driver
from benchmarks.controller.sizes import Size
from benchmarks.load import Load, run_load
from benchmarks.peers.segstore_standalone import SegstoreStandalone

KIB = 1024
SCOPE, DELETED_SCOPE = "many", "deleted"
LISTINGS_BY_TAG = 20
TAKEN_UP_SECONDS = 3.0
"""Until a controller has taken up all calls that are sent to it at once."""
NEVER_SCALED = 2_000_000_000
NEVER_MEASURED = "[segment_store.auto_scale]\nsample_seconds = 1e6\n"
APPEND_SEGMENTS = 16
SURE_OF_ITSELF = "[controller]\nheartbeat_seconds = 30.0\n"
"""A controller that cannot write that it lives soon asks the store before each answer, as another
may have taken over: the store is stopped for longer than that here."""

P50 = Metric("until committed p50", "ms", "lower")
P99 = Metric("until committed p99", "ms", "lower")
RATE = Metric("committed and read once", "transactions/s", "higher")
RATE_CPU = Metric("server CPU of one", "ms", "lower")
COMMITTED = Metric("committed", "transactions/s", "higher")
STOP = Metric("longest stop", "s", "lower")
BEGIN = Metric("begin p50", "ms", "lower")
CREATE = Metric("createStream p50", "ms", "lower")
CREATE_CPU = Metric("CPU of a createStream", "ms", "lower")
LARGE_CREATE = Metric("create", "s", "lower")
LARGE_REPLACE = Metric("replace all", "s", "lower")
LARGE_DELETE = Metric("seal and delete", "s", "lower")
STALL = Metric("writer's longest stall", "ms", "lower")
SCALE = Metric("scale", "ms", "lower")
OPEN_MEMORY = Metric("memory of one in the controller", "KiB", "lower")
OPEN_SEGMENT_MEMORY = Metric("memory of its segment in the store", "KiB", "lower")
READY = Metric("ready after kill -9", "s", "lower")
STILL_OPEN = Metric("open after kill -9", "%", "higher")
PING = Metric("ping p99", "ms", "lower")
ADDRESS = Metric("getURI p99", "ms", "lower")
LIST = Metric("list all", "s", "lower")
BY_TAG = Metric("list by tag p50", "ms", "lower")
DELETE_SCOPE = Metric("recursive deletion", "s", "lower")
IDLE = Metric("idle CPU", "% of a core", "lower")
FIRST = Metric("first answer after a start", "s", "lower")
AGED_SCALE = Metric("a scale beside the first ones", "", "lower")
MEASURED = Metric("events/s with rates measured, beside without", "", "higher")

Numbers = dict[Metric, float | None]


@dataclass(frozen=True, slots=True)
class Session:
    """A running server, and the driver that asks it."""

    server: RunningPeer
    driver: ControllerDriver
    size: Size

    def warm(self) -> None:
        """Make the server do most of what the rows will ask of it."""
        if self.size.warm_seconds:
            self._rate(4, seconds=self.size.warm_seconds, warmup=0)
            self.driver.ask("create", count=self.size.creates, segments=1)

    def commit(self, segments: int) -> Numbers:
        """Commit one transaction after the other."""
        latency = self.driver.ask(
            "commit",
            segments=segments,
            warmup=self.size.row_warmup_seconds,
            seconds=self.size.commit_seconds,
        )["latency_ms"]
        return {P50: latency["p50"], P99: latency["p99"]}

    def rate(self, segments: int) -> Numbers:
        """Run many writers and a reader."""
        before = self.server.processes.usage().cpu_seconds
        result = self._rate(
            segments, seconds=self.size.rate_seconds, warmup=self.size.row_warmup_seconds
        )
        used = self.server.processes.usage().cpu_seconds - before
        return {RATE: result["per_second"], RATE_CPU: used / max(1, result["committed"]) * 1e3}

    def _rate(self, segments: int, *, seconds: float, warmup: float) -> dict[str, Any]:
        return self._transactions("rate", segments=segments, seconds=seconds, warmup=warmup)

    def split(self) -> Numbers:
        """Run many writers while their stream is split again and again."""
        result = self._transactions(
            "split",
            segments=1,
            seconds=self.size.split_seconds,
            warmup=self.size.row_warmup_seconds,
            period=self.size.split_period_seconds,
        )
        if not result["splits"]:
            raise PeerFailedError("the stream was not split")
        return {STOP: result["longest_stop_seconds"], COMMITTED: result["per_second"]}

    def _transactions(self, work: str, **arguments: object) -> dict[str, Any]:
        result = self.driver.ask(work, writers=self.size.writers, **arguments)
        if result["unread"] or result["read_again"]:
            raise PeerFailedError(
                f"{result['unread']} of {result['committed']} committed transactions were not"
                f" read, {result['read_again']} more than once"
            )
        return result

    def begin(self) -> Numbers:
        """Begin transactions on many segments."""
        size = self.size
        result = self.driver.ask("begin", segments=size.begin_segments, count=size.begins)
        return {BEGIN: result["latency_ms"]["p50"]}

    def create(self) -> Numbers:
        """Create one stream after the other."""
        before = self.server.processes.usage().cpu_seconds
        result = self.driver.ask("create", count=self.size.creates, segments=1)
        used = self.server.processes.usage().cpu_seconds - before
        return {CREATE: result["latency_ms"]["p50"], CREATE_CPU: used / self.size.creates * 1e3}

    def large(self) -> Numbers:
        """Create a stream of many segments."""
        result = self.driver.ask("large", segments=self.size.large_segments)
        return {
            LARGE_CREATE: result["create_seconds"],
            LARGE_REPLACE: result["replace_seconds"],
            LARGE_DELETE: result["delete_seconds"],
        }

    def scale(self) -> Numbers:
        """Run a writer whose stream goes from one segment to four."""
        result = self.driver.ask("scale", count=self.size.scales, rate=self.size.scale_rate)
        return {STALL: result["stall_ms"]["p50"], SCALE: result["scale_ms"]["p50"]}


@contextmanager
def session(peer_directory: Path, server: RunningPeer, size: Size) -> Iterator[Session]:
    """Run a driver for a running server."""
    with controller_driver(server.address, peer_directory / "driver.log") as driver:
        yield Session(server, driver, size)


def open_transactions(directory: Path, size: Size) -> Numbers:
    """Open transactions: what they cost, and a kill with them."""
    store = SegstoreStandalone()
    store.prepare()
    with (
        running(store, directory / "store") as server,
        session(directory, server, size) as asked,
    ):
        asked.driver.ask("open", segments=1, count=size.warm_open)
        time.sleep(size.settle_seconds)
        controller, segment_store = (store.process_id(kind) for kind in PROCESSES)
        before = resident_bytes(controller), resident_bytes(segment_store)
        opened = asked.driver.ask("open", segments=1, count=size.open)["open"]
        time.sleep(size.settle_seconds)
        after = resident_bytes(controller), resident_bytes(segment_store)
        store.kill()
        killed = time.monotonic()
        store.start(directory / "store")
        ready = time.monotonic() - killed
        still_open = asked.driver.ask("states")["states"].get("OPEN", 0)
    grown = [(now - then) / size.open / KIB for now, then in zip(after, before, strict=True)]
    return {
        OPEN_MEMORY: grown[0],
        OPEN_SEGMENT_MEMORY: grown[1],
        READY: ready,
        STILL_OPEN: still_open / opened * 100,
    }


PROCESSES = ("controller", "segment-store")


def waiting_calls(directory: Path, size: Size) -> Numbers:
    """Measure calls that wait for a segment store that is stopped, and others beside them."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "sure-of-itself.toml"
    settings.write_text(SURE_OF_ITSELF)
    store = SegstoreStandalone(options=("--config", str(settings)))
    store.prepare()
    with (
        running(store, directory / "store") as server,
        session(directory, server, size) as asked,
    ):
        asked.driver.ask("open", segments=1, count=1)
        segment_store = store.process_id("segment-store")
        os.kill(segment_store, signal.SIGSTOP)
        try:
            result = asked.driver.ask(
                "wait",
                count=size.waiting_calls,
                settle=TAKEN_UP_SECONDS,
                seconds=size.waiting_seconds,
            )
        finally:
            os.kill(segment_store, signal.SIGCONT)
    if result["waiting"] < size.waiting_calls:
        raise PeerFailedError(f"only {result['waiting']} calls were still waiting at the end")
    return {PING: result["ping_ms"]["p99"], ADDRESS: result["address_ms"]["p99"]}


def many_streams(directory: Path, size: Size) -> Numbers:
    """Measure what listing, deleting and keeping streams with policies costs."""
    store = SegstoreStandalone()
    store.prepare()
    with (
        running(store, directory / "store") as server,
        session(directory, server, size) as asked,
    ):
        ask = asked.driver.ask
        ask("fill", scope=SCOPE, count=size.streams, tagged=size.tagged)
        listed = ask("list", scope=SCOPE)
        by_tag = ask("list-by-tag", scope=SCOPE, times=LISTINGS_BY_TAG)
        if listed["streams"] < size.streams or by_tag["streams"] != size.tagged:
            raise PeerFailedError(f"listed {listed['streams']} streams, {by_tag['streams']} by tag")
        time.sleep(size.settle_seconds)
        before = server.processes.usage()
        time.sleep(size.idle_seconds)
        after = server.processes.usage()
        ask("fill", scope=DELETED_SCOPE, count=size.deleted_streams, tagged=0)
        deleted = ask("delete-scope", scope=DELETED_SCOPE)
    used = (after.cpu_seconds - before.cpu_seconds) / (after.epoch - before.epoch)
    return {
        LIST: listed["seconds"],
        BY_TAG: by_tag["latency_ms"]["p50"],
        DELETE_SCOPE: deleted["seconds"],
        IDLE: used * 100,
    }


def many_epochs(directory: Path, size: Size) -> Numbers:
    """Measure a stream that was scaled very often."""
    store = SegstoreStandalone()
    store.prepare()
    with (
        running(store, directory / "store") as server,
        session(directory, server, size) as asked,
    ):
        ask = asked.driver.ask
        ask("epochs", count=size.epochs_compared)  # until the client is warm
        first = ask("epochs", count=size.epochs_compared)
        ask("epochs", count=max(0, size.epochs - 3 * size.epochs_compared))
        last = ask("epochs", count=size.epochs_compared)
        store.stop()
        store.start(directory / "store")
        answered = ask("first")
    return {
        FIRST: answered["seconds"],
        AGED_SCALE: last["latency_ms"]["p50"] / first["latency_ms"]["p50"],
    }


def appends(directory: Path, size: Size) -> Numbers:
    """Measure appends to segments whose rates are measured, and to segments whose rates are not."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "never-measured.toml"
    settings.write_text(NEVER_MEASURED)
    options: dict[bool, tuple[str, ...]] = {True: (), False: ("--config", str(settings))}
    load = Load(
        rate=0,
        segments=APPEND_SEGMENTS,
        consumers=0,
        warmup_seconds=size.append_warmup_seconds,
        seconds=size.append_seconds,
        scale_above=NEVER_SCALED,
    )
    found: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(size.append_turns):
        for measured in (True, False) if turn % 2 == 0 else (False, True):
            store = SegstoreStandalone(options=options[measured])
            store.prepare()
            with running(store, directory / f"store-{turn}-{measured}") as server:
                result = run_load(server.address, load)
            if failure := result.failure():
                raise PeerFailedError(failure)
            if not result.publish.events_per_second:
                raise PeerFailedError("no event was published in the measured seconds")
            found[measured].append(result.publish.events_per_second)
    return {MEASURED: statistics.median(found[True]) / statistics.median(found[False])}
