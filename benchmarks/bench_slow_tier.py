"""Does a store keep to its memory while tier 2 takes a tenth of what writers send?

Run from the repository's root: `python -m benchmarks.bench_slow_tier [--minutes 10]`.

1. A real server in a process of its own, the journal and tier 2 on this machine's disk; writers on
   the wire protocol at full speed, each with a bounded number of unacknowledged bytes.
2. Full speed is measured first, with tier 2 unlimited; then tier 2 gets a tenth of that for so many
   minutes; then it is unlimited again, and the time until writers are at 0.8 of full speed, seen
   over two seconds, is the recovery.
3. RSS is the server's, each second, in all phases and while everything is read again at the end.
4. Every byte that was sent was acknowledged, and is read again and compared.
"""

import argparse
import json
import queue
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from foreign_servers.tied_processes import tied

from benchmarks.comparison import ComparedRow, Metric, Outcome, limited, write_json_if_asked
from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.connection import append_block

MIB = 1024 * 1024
HEADER = struct.Struct(">QQ")
REPLY_SECONDS = 300.0
RECOVERED_SHARE = 0.8
LARGE_CACHE_BYTES = 512 * MIB
BASE_BYTES = 102 * MIB
"""Memory that a server may use besides a small cache: a fifth of the default cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amounts of everything; seconds of the three phases."""

    cache_mib: int = 512
    connections: int = 4
    segments: int = 4
    """For each connection."""
    append_bytes: int = 64 * 1024
    outstanding_bytes: int = 16 * MIB
    """For each connection."""
    full_seconds: float = 15
    slow_seconds: float = 150
    back_seconds_max: float = 120
    slow_share: float = 0.1

    @property
    def resident_bytes_max(self) -> int:
        """Return the bound: the cache and a fifth more.

        With a small cache that fifth is too little.
        """
        cache_bytes = self.cache_mib * MIB
        small = cache_bytes < LARGE_CACHE_BYTES
        return cache_bytes + (BASE_BYTES if small else cache_bytes // 5)


SMALL = Size(
    cache_mib=32,
    connections=2,
    segments=2,
    append_bytes=32 * 1024,
    outstanding_bytes=2 * MIB,
    full_seconds=1.5,
    slow_seconds=4,
    back_seconds_max=60,
)


class Content:
    """The bytes of any append, the same whenever they are asked for."""

    def __init__(self, append_bytes: int) -> None:
        self._length = append_bytes - HEADER.size
        self._pool = Random(1).randbytes(MIB + self._length)

    def append(self, segment: int, number: int) -> bytes:
        """Append ``number``, from 1 on, of a segment."""
        start = (segment * 7919 + number * 104_729) % MIB
        return HEADER.pack(segment, number) + self._pool[start : start + self._length]


@dataclass(slots=True)
class Written:
    """The state of one segment that is written."""

    segment: int
    name: str
    writer_id: bytes
    sent: int = 0
    acked: int = 0


class WriterThread(threading.Thread):
    """One connection that appends to its segments, in turn, until it is told to stop."""

    def __init__(self, port: int, number: int, size: Size, content: Content) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._size = size
        self._content = content
        numbers = range(number * size.segments, (number + 1) * size.segments)
        self.segments = [
            Written(each, f"bench/slow/{each}.#epoch.0", each.to_bytes(16, "big"))
            for each in numbers
        ]
        self._by_writer = {each.writer_id: each for each in self.segments}
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    @property
    def acked_bytes(self) -> int:
        """Return the number of durable bytes."""
        return sum(each.acked for each in self.segments) * self._size.append_bytes

    def run(self) -> None:
        """Write; then wait for the last acknowledgement."""
        try:
            with SegmentConnection("127.0.0.1", self._port, timeout=REPLY_SECONDS) as connection:
                self._write(connection)
        except BaseException as error:
            self.failure = error

    def _write(self, connection: SegmentConnection) -> None:
        for each in self.segments:
            created = wire.CreateSegment(connection.next_request_id(), each.name, 0, 0, "")
            assert isinstance(connection.call(created), wire.SegmentCreated)
            setup = wire.SetupAppend(connection.next_request_id(), each.writer_id, each.name, "")
            assert isinstance(connection.call(setup), wire.AppendSetup)
        outstanding_max = self._size.outstanding_bytes // self._size.append_bytes
        turn = 0
        while not self.stopping.is_set() or self._outstanding():
            while self._outstanding() < outstanding_max and not self.stopping.is_set():
                self._send(connection, self.segments[turn % len(self.segments)])
                turn += 1
            for reply in connection.receive_some():
                assert isinstance(reply, wire.DataAppended), reply
                self._by_writer[reply.writer_id].acked = reply.event_number

    def _outstanding(self) -> int:
        return sum(each.sent - each.acked for each in self.segments)

    def _send(self, connection: SegmentConnection, segment: Written) -> None:
        segment.sent += 1
        data = self._content.append(segment.segment, segment.sent)
        connection.send_bytes(
            append_block(
                segment.writer_id,
                [data],
                last_event_number=segment.sent,
                request_id=connection.next_request_id(),
                framed=False,
            )
        )


class Server:
    """The store's process, its memory and its messages."""

    def __init__(self, directory: Path, size: Size) -> None:
        command = [sys.executable, "-m", "benchmarks.slow_tier_store"]
        self._log = (directory / "server.log").open("w")
        self.process = subprocess.Popen(
            tied([*command, str(directory / "data"), str(size.cache_mib)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._lines: queue.Queue[dict[str, object]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.port = int(str(self._lines.get(timeout=60)["port"]))
        except queue.Empty:
            self.stop()
            raise
        self.resident_max = 0
        self.strongest: dict[str, object] = {}

    def set_rate(self, bytes_per_second: float) -> None:
        """Set the speed of tier 2 from now on; 0 for unlimited."""
        assert self.process.stdin is not None
        print(bytes_per_second, file=self.process.stdin, flush=True)

    def resident_bytes(self) -> int:
        """Return the resident memory; keep its maximum."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                resident = int(line.split()[1]) * 1024
                self.resident_max = max(self.resident_max, resident)
                return resident
        raise RuntimeError("the server has no memory: it is gone")

    def delay(self) -> str:
        """Return the delay of writers and its cause, as the server reported them last."""
        while not self._lines.empty():
            self.strongest = self._lines.get()
        return f"{self.strongest.get('delay_seconds', 0):.3g} s by {self.strongest.get('by', '-')}"

    def stop(self) -> None:
        """Stop the server in an orderly way."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self._reader.join()
            self.process.stdout.close()
            self._log.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))


@dataclass(slots=True)
class Findings:
    """The measurements of a run."""

    full_rate: float = 0.0
    slow_rate: float = 0.0
    tier_2_rate: float = 0.0
    recovery_seconds: float | None = None
    recovered_rate: float = 0.0
    resident_max: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    slow_rates: list[float] = field(default_factory=list)


class Run:
    """One run: its phases, samples and results."""

    def __init__(self, server: Server, size: Size, *, quiet: bool) -> None:
        self._server = server
        self._size = size
        self._quiet = quiet
        self._content = Content(size.append_bytes)
        self._writers = [
            WriterThread(server.port, number, size, self._content)
            for number in range(size.connections)
        ]
        self.findings = Findings()

    def whole(self) -> Findings:
        """Run all phases; raises ``AssertionError`` when something is lost."""
        size, findings = self._size, self.findings
        for writer in self._writers:
            writer.start()
        rates = list(self._sample("full", size.full_seconds))
        findings.full_rate = sum(rates[len(rates) // 3 :]) / len(rates[len(rates) // 3 :])
        findings.tier_2_rate = findings.full_rate * size.slow_share
        self._server.set_rate(findings.tier_2_rate)
        findings.slow_rates = list(self._sample("slow", size.slow_seconds))
        settled = findings.slow_rates[len(findings.slow_rates) // 2 :]
        findings.slow_rate = sum(settled) / len(settled)
        self._server.set_rate(0)
        self._recover()
        for writer in self._writers:
            writer.stopping.set()
        for writer in self._writers:
            while writer.is_alive():
                self._check()
                writer.join(1)
        self._check()
        self._read_all()
        findings.resident_max = self._server.resident_max
        return findings

    def _acked_bytes(self) -> int:
        return sum(writer.acked_bytes for writer in self._writers)

    def _check(self) -> None:
        for writer in self._writers:
            if writer.failure is not None:
                raise writer.failure
        self._server.resident_bytes()

    def _sample(self, phase: str, seconds: float) -> Iterator[float]:
        """Yield rates in bytes a second, each over a second, or over half a second in short
        runs."""
        step = 1.0 if seconds > 5 else 0.5
        end = time.monotonic() + seconds
        before, at = self._acked_bytes(), time.monotonic()
        while at < end:
            time.sleep(step)
            self._check()
            acked, now = self._acked_bytes(), time.monotonic()
            rate = (acked - before) / (now - at)
            before, at = acked, now
            if not self._quiet:
                resident = self._server.resident_bytes() / MIB
                text = f"{phase:9} {rate / MIB:7.1f} MiB/s, RSS {resident:5.0f} MiB"
                print(f"{text}, delay {self._server.delay()}", flush=True)
            yield rate

    def _recover(self) -> None:
        findings = self.findings
        began = time.monotonic()
        rates: list[float] = []
        for rate in self._sample("back", self._size.back_seconds_max):
            rates.append(rate)
            last = rates[-2:]
            if len(last) == 2 and sum(last) / 2 >= RECOVERED_SHARE * findings.full_rate:
                findings.recovery_seconds = time.monotonic() - began
                findings.recovered_rate = sum(last) / 2
                return

    def _read_all(self) -> None:
        findings = self.findings
        with SegmentConnection("127.0.0.1", self._server.port, timeout=REPLY_SECONDS) as connection:
            for writer in self._writers:
                for each in writer.segments:
                    assert each.sent == each.acked, f"{each.name}: {each.sent - each.acked} lost"
                    findings.written_bytes += each.sent * self._size.append_bytes
                    findings.read_bytes += self._read_segment(connection, each)

    def _read_segment(self, connection: SegmentConnection, each: Written) -> int:
        length = each.sent * self._size.append_bytes
        pending = bytearray()
        offset = number = 0
        next_check = time.monotonic()
        while offset < length:
            request = wire.ReadSegment(each.name, offset, MIB, "", connection.next_request_id())
            reply = connection.call(request)
            assert isinstance(reply, wire.SegmentRead), reply
            pending += reply.data
            offset += len(reply.data)
            while len(pending) >= self._size.append_bytes:
                number += 1
                expected = self._content.append(each.segment, number)
                assert pending.startswith(expected), f"{each.name}: append {number} differs"
                del pending[: len(expected)]
            if time.monotonic() >= next_check:
                self._server.resident_bytes()
                next_check = time.monotonic() + 1
        assert offset == length, f"{each.name}: {offset} bytes instead of {length}"
        assert number == each.sent
        return offset


@contextmanager
def _directory(parent: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="segstore-slow-tier-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run(size: Size, *, directory: Path | None = None, quiet: bool = False) -> Findings:
    """Run it once; files are in a directory of their own, which goes in the end."""
    with _directory(directory) as path:
        server = Server(path, size)
        try:
            return Run(server, size, quiet=quiet).whole()
        finally:
            server.stop()


def rows(size: Size, findings: Findings) -> list[ComparedRow]:
    """Return the required limits, as rows."""
    resident = Metric("peak RSS", "MiB", "lower")
    recovery = Metric("recovery", "s", "lower")
    lost = Metric("lost", "bytes", "lower")
    outcome = Outcome(
        {
            resident: findings.resident_max / MIB,
            recovery: findings.recovery_seconds,
            lost: float(findings.written_bytes - findings.read_bytes) + 1,
        }
    )
    limits = {
        resident.name: size.resident_bytes_max / MIB,
        recovery.name: size.back_seconds_max,
        lost.name: 1.0,
    }
    return limited("slow tier 2", ours=[outcome], limits=limits)


def main() -> int:
    """Run, print, and fail when a bound was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of a slow tier 2")
    parser.add_argument("--cache-mib", type=int, default=512)
    parser.add_argument("--append-bytes", type=int, default=64 * 1024)
    parser.add_argument("--directory", type=Path, help="where the store's files lie")
    options = parser.parse_args()
    size = Size(
        slow_seconds=60 * options.minutes,
        cache_mib=options.cache_mib,
        append_bytes=options.append_bytes,
    )
    findings = run(size, directory=options.directory)
    recovery = findings.recovery_seconds
    print(f"full speed   {findings.full_rate / MIB:8.1f} MiB/s")
    print(f"slow tier 2  {findings.tier_2_rate / MIB:8.1f} MiB/s")
    print(f"slowed down  {findings.slow_rate / MIB:8.1f} MiB/s, second half of the slow phase")
    print(f"recovery     {'none' if recovery is None else f'{recovery:8.1f} s'}")
    print(f"recovered    {findings.recovered_rate / MIB:8.1f} MiB/s")
    print(
        f"peak RSS     {findings.resident_max / MIB:8.1f} MiB"
        f" of {size.resident_bytes_max / MIB:.0f}"
    )
    print(
        f"read again   {findings.read_bytes / MIB:8.1f} MiB of {findings.written_bytes / MIB:.1f}"
    )
    compared = rows(size, findings)
    write_json_if_asked(compared)
    return 0 if all(row.holds for row in compared) else 1


if __name__ == "__main__":
    sys.exit(main())
