"""Reads a server's cost from /proc: CPU seconds, resident memory, bytes written to storage.

1. A server's processes are those of its sessions: each that the benchmark starts leads a session,
   and the others descend from one of these.
2. CPU and written bytes include children that have ended and were waited for, so they never fall
   while a parent lives.
3. Written bytes are those that the kernel counts as sent to storage for these processes, less what
   was truncated before it went there. A page written twice before it goes there counts once.
"""

import os
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums over all processes of a server at one moment."""

    epoch: float
    cpu_seconds: float
    resident_bytes: int
    written_bytes: int
    process_count: int


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes of one or more sessions."""

    session_ids: frozenset[int]

    def process_ids(self) -> list[int]:
        """Return the processes alive now, without zombies."""
        return [process_id for process_id, _ in self._stats()]

    def usage(self) -> Usage:
        """Return what the processes have used so far."""
        cpu_ticks = resident = written = count = 0
        epoch = time.time()
        for process_id, fields in self._stats():
            # utime, stime, cutime, cstime: fields 14 to 17 of stat(5); rss is 24.
            cpu_ticks += sum(int(field) for field in fields[11:15])
            resident += int(fields[21]) * PAGE_SIZE
            written += _written_bytes(process_id)
            count += 1
        return Usage(epoch, cpu_ticks / CLOCK_TICKS_PER_SECOND, resident, written, count)

    def proportional_bytes(self) -> int:
        """Return resident memory with shared pages divided among the processes that share them.

        Takes a while.
        """
        return sum(_proportional_bytes(process_id) for process_id in self.process_ids())

    def _stats(self) -> list[tuple[int, list[str]]]:
        """Return for each process its id and its stat fields from the third (state) on."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdecimal():
                continue
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # It ended between the listing and the look.
            # The command name may hold blanks and brackets: fields start after the last bracket.
            fields = stat[stat.rindex(")") + 2 :].split()
            state, session_id = fields[0], int(fields[3])
            if session_id in self.session_ids and state not in "ZX":
                found.append((int(entry), fields))
        return found


def resident_bytes(process_id: int) -> int:
    """Return the resident memory of one process, shared pages included."""
    return int(Path("/proc", str(process_id), "statm").read_text().split()[1]) * PAGE_SIZE


def _written_bytes(process_id: int) -> int:
    try:
        text = Path("/proc", str(process_id), "io").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    counters = dict(line.split(": ") for line in text.splitlines())
    return int(counters["write_bytes"]) - int(counters["cancelled_write_bytes"])


def _proportional_bytes(process_id: int) -> int:
    try:
        text = Path("/proc", str(process_id), "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    kilobytes = next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:"))
    return int(kilobytes) * 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """The use of a server between two moments, and the most memory it had at any sample."""

    cpu_seconds: float
    resident_bytes_peak: int
    written_bytes: int


class Meter:
    """Samples a process tree in a thread of its own while its block runs."""

    def __init__(self, processes: ProcessTree, *, interval_seconds: float = 0.2) -> None:
        self._processes = processes
        self._interval_seconds = interval_seconds
        self._samples: list[Usage] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def __enter__(self) -> "Meter":
        self._samples.append(self._processes.usage())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._samples.append(self._processes.usage())

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self._samples.append(self._processes.usage())

    def cost(self, *, start_epoch: float, end_epoch: float) -> Cost:
        """Return what was used from one moment to the other.

        Moments between samples are interpolated.
        """
        inside = [s.resident_bytes for s in self._samples if start_epoch <= s.epoch <= end_epoch]
        before, after = self._at(start_epoch), self._at(end_epoch)
        return Cost(
            cpu_seconds=after.cpu_seconds - before.cpu_seconds,
            resident_bytes_peak=max([before.resident_bytes, after.resident_bytes, *inside]),
            written_bytes=after.written_bytes - before.written_bytes,
        )

    def resident_growth_bytes(self, *, start_epoch: float, end_epoch: float) -> int:
        """Return by how much resident memory grew from one moment to the other."""
        return self._at(end_epoch).resident_bytes - self._at(start_epoch).resident_bytes

    def total(self) -> Cost:
        """Return what was used while the block ran."""
        return self.cost(start_epoch=self._samples[0].epoch, end_epoch=self._samples[-1].epoch)

    def _at(self, epoch: float) -> Usage:
        samples = self._samples
        index = bisect_left(samples, epoch, key=lambda sample: sample.epoch)
        if index == 0:
            return samples[0]
        if index == len(samples):
            return samples[-1]
        left, right = samples[index - 1], samples[index]
        share = (epoch - left.epoch) / (right.epoch - left.epoch)
        return Usage(
            epoch=epoch,
            cpu_seconds=left.cpu_seconds + share * (right.cpu_seconds - left.cpu_seconds),
            resident_bytes=round(
                left.resident_bytes + share * (right.resident_bytes - left.resident_bytes)
            ),
            written_bytes=round(
                left.written_bytes + share * (right.written_bytes - left.written_bytes)
            ),
            process_count=right.process_count,
        )
