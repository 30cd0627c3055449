"""What do HTTP, metrics and the console cost while nobody looks, and how long does a look take?

Run from the repository's root: `python -m benchmarks.bench_console [--small] [--rounds 3]`.

1. Idle: a store with the HTTP port and one without it run in turns, on new directories; the numbers
   are the differences of resident memory and of CPU of all processes. The console is imported when
   somebody opens it, so a store whose console was opened once is a third one.
2. A look: one server has all streams, each with one segment. A page is asked for by a connection
   that stays, more than a second after the last time, so that each answer takes a look of its own.
   A scrape is a GET of `/metrics`.
3. In a browser a page is there when it has been drawn and its load event has ended.
4. Publishing: blocks at a steady rate, straight over the wire; first while nobody looks, then while
   a scrape is made each five seconds, then while so many pages of the overview are open.
"""

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from foreign_servers.peer import RunningPeer

from benchmarks.block_load import BlockSender
from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    limited,
    plain_table,
    report_progress,
    write_json_if_asked,
)
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from pravega_wire.blocking import SegmentConnection
from segstore.testing.ports import free_ports
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import StreamSettings

HOST = "127.0.0.1"
ANSWER_SECONDS_MAX = 120.0
LOOK_AGAIN_SECONDS = 1.1
"""The console keeps a look for a second."""
PAGE_SECONDS = 2.0
"""A page that is open asks again after this time."""
SCRAPE_SECONDS = 5.0
MAKERS = 8
BLOCK_BYTES = 100
WIDTH = 1280
PATHS = {"overview": "/console/", "a scope": "/console/scopes/bench"}

MEMORY = Metric("memory", "MB", "lower")
CPU = Metric("CPU", "% of a core", "lower")
SERVER = Metric("answer, median", "ms", "lower")
BROWSER = Metric("in a browser, median", "ms", "lower")
P99 = Metric("publish p99 / nobody looks", "", "lower")
LIMITS = {MEMORY.name: 8.0, CPU.name: 0.5, BROWSER.name: 300.0}
PAGE_LIMITS = {**LIMITS, SERVER.name: 100.0}
SCRAPE_LIMITS = {SERVER.name: 150.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amounts of everything."""

    streams: int = 10_000
    rounds: int = 3
    """Rounds of idle stores."""
    settle_seconds: float = 10
    idle_seconds: float = 60
    looks: int = 15
    blocks_per_second: float = 1_000
    load_seconds: float = 30
    pages: int = 200
    """Number of open pages of the overview."""


SMALL = Size(
    streams=20,
    rounds=1,
    settle_seconds=1,
    idle_seconds=2,
    looks=2,
    blocks_per_second=200,
    load_seconds=2,
    pages=5,
)


class Client:
    """A connection to the HTTP port that stays open. A context manager."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS_MAX)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def milliseconds(self, path: str) -> float:
        """Return how long it takes to get a document."""
        began = time.perf_counter()
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        body = reply.read()
        assert reply.status == 200, (path, body)
        return (time.perf_counter() - began) * 1000


@contextmanager
def store(http_port: int | None) -> Iterator[tuple[SegstoreStandalone, RunningPeer]]:
    """Run a store in a directory of its own."""
    server = SegstoreStandalone(options=() if http_port is None else (f"--http-port={http_port}",))
    server.prepare()
    server.reserve()
    with tempfile.TemporaryDirectory(prefix="bench-console-") as directory:
        try:
            yield server, server.start(Path(directory))
        finally:
            server.stop()


# ---- Idle ----------------------------------------------------------------------------------------


def idle(size: Size, *, has_port: bool, is_opened: bool = False) -> tuple[float, float]:
    """Return the resident MB of a store, and its CPU in percent of a core, while it is idle."""
    port = free_ports(1)[0] if has_port else None
    with store(port) as (_, running):
        if is_opened:
            assert port is not None
            with Client(port) as client:
                for path in ("/console/", "/console/scopes", "/console/cluster", "/metrics"):
                    client.milliseconds(path)
        time.sleep(size.settle_seconds)
        before = running.processes.usage()
        time.sleep(size.idle_seconds)
        after = running.processes.usage()
    cpu = (after.cpu_seconds - before.cpu_seconds) / (after.epoch - before.epoch) * 100
    return after.resident_bytes / 1e6, cpu


def idle_rows(size: Size) -> list[ComparedRow]:
    """Measure stores with and without the port in turns."""
    unopened: list[Outcome] = []
    opened: list[Outcome] = []
    for number in range(size.rounds):
        began = time.perf_counter()
        base = idle(size, has_port=False)
        for outcomes, is_opened in ((unopened, False), (opened, True)):
            memory, cpu = idle(size, has_port=True, is_opened=is_opened)
            outcomes.append(Outcome({MEMORY: memory - base[0], CPU: cpu - base[1]}))
        report_progress("idle", f"round {number + 1}", time.perf_counter() - began)
    return [
        *limited("idle, the console never opened", ours=unopened, limits=LIMITS),
        *limited("idle, after the console was opened", ours=opened, limits=LIMITS),
    ]


# ---- Looks ---------------------------------------------------------------------------------------


def make_streams(address: str, count: int) -> None:
    """Make so many streams of one segment in the scope ``bench``."""
    with ControllerClient(address) as controller:
        controller.create_scope("bench")

    def make(maker: int) -> None:
        with ControllerClient(address) as controller:
            for number in range(maker, count, MAKERS):
                controller.create_stream("bench", f"stream-{number}", StreamSettings())

    with ThreadPoolExecutor(MAKERS) as pool:
        list(pool.map(make, range(MAKERS)))


def answer_time(port: int, path: str, size: Size) -> Outcome:
    """Return how long the server takes to answer; the first answer does not count."""
    with Client(port) as client:
        client.milliseconds(path)
        times = []
        for _ in range(size.looks):
            time.sleep(LOOK_AGAIN_SECONDS)
            times.append(client.milliseconds(path))
    return Outcome({SERVER: statistics.median(times)})


def browser_times(port: int, size: Size) -> dict[str, Outcome]:
    """Return how long pages take in a browser; none where there is no browser."""
    try:
        from foreign_servers.browser import open_browser, why_not
    except ImportError:
        print("no browser: Selenium is not installed", file=sys.stderr)
        return {}
    if why_not():
        print(f"no browser: {why_not()}", file=sys.stderr)
        return {}
    loaded = (
        "const [page] = performance.getEntriesByType('navigation');"
        "const [paint] = performance.getEntriesByName('first-contentful-paint');"
        "return paint && page.loadEventEnd > 0 ? Math.max(paint.startTime, page.loadEventEnd) : 0"
    )
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-console-") as directory,
        open_browser(Path(directory)) as browser,
    ):
        for name, path in PATHS.items():
            times = []
            for _ in range(size.looks):
                time.sleep(LOOK_AGAIN_SECONDS)
                browser.show(f"http://{HOST}:{port}{path}", WIDTH)
                times.append(float(browser.wait(lambda: browser.run(loaded))))
            # The first page of a browser is slower by what the browser does once.
            found[name] = Outcome({BROWSER: statistics.median(times[1:])})
    return found


def look_rows(port: int, size: Size) -> list[ComparedRow]:
    """Measure pages and scrapes."""
    rows, began = [], time.perf_counter()
    in_browser = browser_times(port, size)
    for name, path in PATHS.items():
        outcomes = [answer_time(port, path, size), *(in_browser.get(name, Outcome({})),)]
        row = f"{name}, {size.streams:,} streams"
        rows += limited(row, ours=outcomes, limits=PAGE_LIMITS)
    scrape = answer_time(port, "/metrics", size)
    rows += limited(f"scrape, {size.streams:,} segments", ours=[scrape], limits=SCRAPE_LIMITS)
    report_progress("looks", f"{size.looks} of each", time.perf_counter() - began)
    return rows


# ---- Publishing while somebody looks -------------------------------------------------------------


@contextmanager
def looking(port: int, paths: Sequence[str], period: float, count: int) -> Iterator[None]:
    """Ask for documents each period, as so many viewers, while a block runs."""
    ended = threading.Event()

    def look(number: int) -> None:
        ended.wait(period * number / count)
        with Client(port) as client:
            while not ended.is_set():
                for path in paths:
                    client.milliseconds(path)
                ended.wait(period)

    with ThreadPoolExecutor(count) as pool:
        viewers = [pool.submit(look, number) for number in range(count)]
        try:
            yield
        finally:
            ended.set()
        for each in viewers:
            each.result()


def publish_rows(port: int, segment_store_port: int, size: Size) -> list[ComparedRow]:
    """Measure publishing while nobody looks, while metrics are scraped, and with open pages."""
    with SegmentConnection(HOST, segment_store_port) as connection:
        sender = BlockSender(connection, data=bytes(BLOCK_BYTES))

        def p99() -> float:
            load = sender.run(blocks_per_second=size.blocks_per_second, seconds=size.load_seconds)
            return load.percentile_ms(99)

        p99()
        quiet = p99()
        with looking(port, ["/metrics"], SCRAPE_SECONDS, 1):
            scraped = p99()
        live = ["/console/overview/live", "/console/overview/points"]
        with looking(port, live, PAGE_SECONDS, size.pages):
            watched = p99()
    return [
        *_ratio("scraped each five seconds", scraped / quiet, 1.1),
        *_ratio(f"{size.pages} open pages", watched / quiet, 1.2),
    ]


def _ratio(row: str, ratio: float, limit: float) -> list[ComparedRow]:
    return limited(row, ours=[Outcome({P99: ratio})], limits={P99.name: limit})


# ---- The whole -----------------------------------------------------------------------------------


def run(size: Size, parts: Sequence[str]) -> list[ComparedRow]:
    """Measure the named parts."""
    rows = idle_rows(size) if "idle" in parts else []
    if {"looks", "publish"}.isdisjoint(parts):
        return rows
    [port] = free_ports(1)
    with store(port) as (server, running):
        began = time.perf_counter()
        make_streams(running.address, size.streams)
        report_progress("streams", f"made {size.streams:,}", time.perf_counter() - began)
        if "looks" in parts:
            rows += look_rows(port, size)
        if "publish" in parts:
            rows += publish_rows(port, server.segment_store_port, size)
    return rows


PARTS = ("idle", "looks", "publish")


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a number is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="the size of the test suite")
    parser.add_argument("--rounds", type=int, help="rounds of idle stores")
    parser.add_argument("--streams", type=int, help="number of streams")
    parser.add_argument("--parts", default=",".join(PARTS), help="of idle, looks, publish")
    options = parser.parse_args(arguments)
    size = SMALL if options.small else Size()
    for name in ("rounds", "streams"):
        if getattr(options, name) is not None:
            size = replace(size, **{name: getattr(options, name)})
    rows = run(size, options.parts.split(","))
    print(plain_table(rows))
    write_json_if_asked(rows)
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
