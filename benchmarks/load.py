"""Running the load driver: what to ask of it, and what it answers.

1. The driver is a JVM of its own around the official clients; its heap is bounded by `heap`.
2. It prints one JSON object; whatever else it has to say goes to standard error, which a
   failure quotes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from foreign_servers.peer import OPEN, ClientAccess
from foreign_servers.tied_processes import start_from_any_thread, tied

from benchmarks.load_driver import driver_class_path

LOAD_MAIN = "segstore.load.LoadDriver"
PROBE_MAIN = "segstore.load.StartupProbe"
DRAIN_MAIN = "segstore.load.DrainDriver"
PRAVEGA, KAFKA, PULSAR = "pravega", "kafka", "pulsar"
OVERHEAD_SECONDS_MAX = 180.0
KEPT_UP_SHARE = 0.98
BACKLOG_TIMES_MAX = 3
"""Maximum of the time in which a backlog is written, in times of what its rate allows."""


class LoadFailedError(Exception):
    """The driver could not do its work; the message holds its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load on one stream. `rate` is events a second of all producers, 0 for unthrottled."""

    rate: float = 10_000
    event_size: int = 100
    segments: int = 1
    producers: int = 1
    consumers: int = 1
    keys: int = 0
    warmup_seconds: float = 5
    warmup_seconds_max: float | None = None
    """If given, the warm-up continues until latencies are steady, up to this."""
    warmup_window_seconds: float = 5
    """They are steady when the medians of three such windows differ by less than 5 %."""
    seconds: float = 10
    drain_seconds: float = 10
    read_timeout_ms: int = 10
    outstanding_max: int | None = None
    latency_from: str = "send"
    connection_pooling: bool = False
    own_groups: bool = False
    """Each consumer reads all events, in a reader group of its own."""
    kept_stream: str | None = None
    """A stream of this name is loaded, and not deleted."""
    scale_above: int | None = None
    """Events a second of a segment above which it is split; None for a fixed number of segments."""
    backlog: int = 0
    """Consumers are held until so many events are acknowledged. What is measured begins then, and
    ends when they are within a second of the producers, after ``seconds`` at the latest."""
    linger_ms: float | None = None
    """The time for which a client waits for a batch to fill; Pravega's chooses it by itself."""
    batch_bytes: int | None = None
    """The length of a client's batch, 0 for none; Pravega's chooses it by itself."""

    def arguments(self) -> list[str]:
        """Return the options of the driver's command line."""
        options = {
            "--rate": self.rate,
            "--event-size": self.event_size,
            "--segments": self.segments,
            "--producers": self.producers,
            "--consumers": self.consumers,
            "--keys": self.keys or "none",
            "--warmup": self.warmup_seconds,
            "--seconds": self.seconds,
            "--drain": self.drain_seconds,
            "--read-timeout-ms": self.read_timeout_ms,
            "--latency-from": self.latency_from,
        }
        if self.outstanding_max is not None:
            options["--max-outstanding"] = self.outstanding_max
        parts = [part for name, value in options.items() for part in (name, str(value))]
        if self.warmup_seconds_max is not None:
            parts += ["--warmup-max", str(self.warmup_seconds_max)]
            parts += ["--warmup-window", str(self.warmup_window_seconds)]
        if self.connection_pooling:
            parts.append("--connection-pooling")
        if self.own_groups:
            parts.append("--own-groups")
        if self.scale_above is not None:
            parts += ["--scale-above", str(self.scale_above)]
        if self.backlog:
            parts += ["--backlog", str(self.backlog)]
        if self.linger_ms is not None:
            parts += ["--linger-ms", str(self.linger_ms)]
        if self.batch_bytes is not None:
            parts += ["--batch-bytes", str(self.batch_bytes)]
        if self.kept_stream is not None:
            parts += ["--stream", self.kept_stream, "--keep-stream"]
        return parts

    @property
    def seconds_max(self) -> float:
        """Return how long the driver may run before it counts as hanging."""
        warmup = max(self.warmup_seconds, self.warmup_seconds_max or 0)
        writing = BACKLOG_TIMES_MAX * self.backlog / self.rate if self.backlog else 0
        return warmup + writing + self.seconds + self.drain_seconds + OVERHEAD_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; None when nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None
    p99_9: float | None
    max: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Events of the measured seconds: acknowledged to producers, or read by consumers."""

    events: int
    events_per_second: float
    mb_per_second: float
    per_second: tuple[int, ...]
    latency_ms: Latency


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The duration of the load before the measurement, and whether latencies were steady by then.

    ``steady`` is None where that was not waited for.
    """

    seconds: float
    steady: bool | None
    p50_ms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The measurements of one run of the driver. Totals cover the whole run with its warm-up."""

    load: Load
    publish: Flow
    end_to_end: Flow
    start_epoch: float
    end_epoch: float
    client_cpu_seconds: float
    blocked_seconds: float
    totals: dict[str, int]
    write_errors: str | None
    read_errors: str | None
    cleanup_errors: str | None
    warm_up: WarmUp
    alone: Latency | None = None
    """The producers' latency while a backlog was written, which nobody read yet."""

    def failure(self) -> str | None:
        """Return why this run says nothing about speed, or None when every event arrived."""
        if self.write_errors:
            return self.write_errors
        if self.read_errors:
            return self.read_errors
        if self.totals["unacknowledged"]:
            return f"{self.totals['unacknowledged']} events were never acknowledged"
        if self.totals["wrong_size"]:
            return f"{self.totals['wrong_size']} events came back with another size"
        if self.totals["unread"] < 0:
            return f"{-self.totals['unread']} more events were read than acknowledged"
        if self.load.rate and self.totals["unread"] and not self.load.backlog:
            return f"{self.totals['unread']} events were not read in time"
        return None

    def remarks(self) -> list[str]:
        """Return remarks that a reader of the numbers needs about this run."""
        remarks = []
        wanted, got = self.load.rate, self.publish.events_per_second
        if wanted and got < KEPT_UP_SHARE * wanted:
            remarks.append(f"did not keep up: {got:,.0f} of {wanted:,.0f} events/s")
        if self.totals["unread"] and (not wanted or self.load.backlog):
            remarks.append(f"{self.totals['unread']:,} events still unread after the drain")
        if self.cleanup_errors:
            remarks.append(f"clean-up: {self.cleanup_errors}")
        if self.warm_up.steady is False:
            last = ", ".join("-" if p50 is None else f"{p50:.3g}" for p50 in self.warm_up.p50_ms)
            remarks.append(f"not steady after {self.warm_up.seconds:.0f} s: p50 {last} ms")
        return remarks


def run_load(
    address: str,
    load: Load,
    *,
    heap: str = "1g",
    speaks_kafka: bool = False,
    access: ClientAccess = OPEN,
) -> LoadResult:
    """Load a new stream on this server and wait for the result. Raises LoadFailedError."""
    protocol = _protocol(address, speaks_kafka=speaks_kafka)
    where = "--controller" if protocol == PRAVEGA else f"--{protocol}"
    options = () if access.trust_store is None else (f"-Dload.trustStore={access.trust_store}",)
    arguments = (where, address, *load.arguments())
    command = _java(heap, LOAD_MAIN, *arguments, options=options, protocol=protocol)
    with _started(command, access.environment) as driver:
        try:
            out, errors = driver.communicate(timeout=load.seconds_max)
        except subprocess.TimeoutExpired as error:
            raise LoadFailedError(f"no result after {load.seconds_max:g} s") from error
    if driver.returncode != 0:
        raise LoadFailedError(_last_line(errors))
    return parse_result(load, out)


def parse_result(load: Load, text: str) -> LoadResult:
    """Read the driver's JSON object."""
    document = json.loads(text)
    return LoadResult(
        load=load,
        publish=_flow(document["publish"]),
        end_to_end=_flow(document["end_to_end"]),
        start_epoch=document["window"]["start_epoch"],
        end_epoch=document["window"]["end_epoch"],
        client_cpu_seconds=document["client_cpu_seconds"],
        blocked_seconds=document["publish"]["blocked_seconds"],
        totals=document["totals"],
        write_errors=_errors(document["errors"]["write"]),
        read_errors=_errors(document["errors"]["read"]),
        cleanup_errors=_errors(document["errors"]["cleanup"]),
        warm_up=WarmUp(
            seconds=document["warmup"]["seconds"],
            steady=document["warmup"]["steady"],
            p50_ms=tuple(document["warmup"]["p50_ms"]),
        ),
        alone=Latency(**document["backlog"]["latency_ms"]) if load.backlog else None,
    )


def _flow(document: dict[str, Any]) -> Flow:
    return Flow(
        events=document["events"],
        events_per_second=document["events_per_second"],
        mb_per_second=document["mb_per_second"],
        per_second=tuple(document["per_second"]),
        latency_ms=Latency(**document["latency_ms"]),
    )


def _errors(document: dict[str, Any]) -> str | None:
    if not document["count"]:
        return None
    return f"{document['count']} errors, the first: {document['first']}"


@dataclass(frozen=True, slots=True)
class Startup:
    """The times when a starting server's controller port accepted, and when its first append was
    acknowledged."""

    port_epoch: float
    first_ack_epoch: float


class StartupProbe:
    """A client that is ready before the server starts and appends one event as soon as it can."""

    def __init__(self, driver: subprocess.Popen[str], seconds_max: float) -> None:
        self._driver = driver
        self._seconds_max = seconds_max

    def result(self) -> Startup:
        """Wait for the first ack. Raises LoadFailedError."""
        try:
            out, errors = self._driver.communicate(timeout=self._seconds_max + 10)
        except subprocess.TimeoutExpired as error:
            raise LoadFailedError("the start-up probe hangs") from error
        if self._driver.returncode != 0:
            raise LoadFailedError(_last_line(errors))
        return Startup(**json.loads(out))


@contextmanager
def startup_probe(controller_uri: str, *, seconds_max: float = 60) -> Iterator[StartupProbe]:
    """Start a probe that already waits for the server at this address."""
    command = _java("256m", PROBE_MAIN, controller_uri, str(seconds_max))
    with _started(command) as driver:
        assert driver.stderr is not None
        if driver.stderr.readline().strip() != "waiting":
            raise LoadFailedError(_last_line(driver.stderr.read()))
        yield StartupProbe(driver, seconds_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Events that are written before anybody reads, and a shorter stream of the same to warm up."""

    events: int
    warm_events: int
    event_size: int
    segments: int
    consumers: int = 1

    def run(
        self, address: str, *, writes: bool, heap: str, speaks_kafka: bool, seconds_max: float
    ) -> Drained:
        """Write both streams, or drain both; returns what the longer one took.

        Raises ``LoadFailedError``.
        """
        size = (str(self.event_size), str(self.consumers))
        protocol = _protocol(address, speaks_kafka=speaks_kafka)
        command = _java(
            heap,
            DRAIN_MAIN,
            *("write" if writes else "read", protocol, address),
            *("backlog", str(self.segments), str(self.events), *size),
            *("warm-up", str(self.warm_events)),
            protocol=protocol,
        )
        with _started(command) as driver:
            try:
                out, errors = driver.communicate(timeout=seconds_max)
            except subprocess.TimeoutExpired as error:
                raise LoadFailedError(f"no result after {seconds_max:g} s") from error
        if driver.returncode != 0:
            raise LoadFailedError(_last_line(errors))
        document = json.loads(out)
        return Drained(**{name: document[name] for name in Drained.__slots__})


@dataclass(frozen=True, slots=True)
class Drained:
    """The time that a backlog took to be written or drained."""

    events: int
    seconds: float
    events_per_second: float
    mb_per_second: float
    start_epoch: float
    end_epoch: float
    client_cpu_seconds: float


def _protocol(address: str, *, speaks_kafka: bool) -> str:
    """Return the driver's word for a protocol; only Pulsar's address is that of a web service."""
    if speaks_kafka:
        return KAFKA
    return PULSAR if address.startswith("http:") else PRAVEGA


def _java(
    heap: str, main: str, *arguments: str, options: Sequence[str] = (), protocol: str = PRAVEGA
) -> list[str]:
    class_path = driver_class_path(with_pulsar=protocol == PULSAR)
    return ["java", f"-Xms{heap}", f"-Xmx{heap}", *options, "-cp", class_path, main, *arguments]


@contextmanager
def _started(
    command: list[str], environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            tied(command),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    with start_from_any_thread(start) as driver:
        try:
            yield driver
        finally:
            if driver.poll() is None:
                os.kill(driver.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "the driver failed without a word"
