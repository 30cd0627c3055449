"""What do the read index's operations cost, beside the same on a sorted dictionary?

Run from the repository's root: `python -m benchmarks.bench_read_index [--small] [--rounds 3]`.

1. Both sides keep their bytes in a streaming cache of their own, and do the same operations with
   the same bytes in the same order. What they read has to agree, or the run has failed.
2. The peer is what one would write without C: a `SortedDict` of entries by offset, appends into
   the last one, eviction of the entries used longest ago by sorting all that may go.
3. The clock is that of the thread's processor time: on a busy machine the wall's says little.
4. `longest call` is the longest that the event loop would have stood still while a cache at its
   target was brought down by a twentieth.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sortedcontainers import SortedDict

from _fast.cache.read_index import ENTRY_BYTES_MAX, SegmentEntries
from _fast.cache.streaming_cache import StreamingCache
from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    plain_table,
    write_json_if_asked,
)
from segstore.cache.manager import CacheManager

MIB = 1024 * 1024
NANOSECONDS = "ns"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work of a run."""

    appends: int = 200_000
    entries: int = 100_000
    evicted_entries: int = 16_384
    evicted_entry_bytes: int = 128 * 1024
    rounds: int = 3


SMALL = Plan(appends=2000, entries=2000, evicted_entries=4000, evicted_entry_bytes=4096, rounds=1)


class Entries(Protocol):
    """The calls that both sides offer."""

    def append(self, offset: int, data: bytes) -> None: ...
    def insert(self, offset: int, data: bytes) -> object: ...
    def gather(self, offset: int, length_max: int) -> bytes: ...
    def cached_end(self, offset: int) -> int: ...
    def set_stored_length(self, length: int) -> object: ...


@dataclass(slots=True)
class PeerEntry:
    """An entry of the peer."""

    offset: int
    length: int
    address: int
    used: float

    @property
    def end(self) -> int:
        """Return the offset behind the last byte."""
        return self.offset + self.length


@dataclass(slots=True)
class PeerEntries:
    """A sorted dictionary of entries by offset."""

    cache: StreamingCache
    found: Any = field(default_factory=SortedDict)
    stored: int = 0

    def append(self, offset: int, data: bytes) -> None:
        """Append to the last entry, or make a new one."""
        if self.found:
            last = self.found.peekitem(-1)[1]
            if last.end == offset and last.length + len(data) <= ENTRY_BYTES_MAX:
                last.address = self.cache.append(last.address, data)
                last.length += len(data)
                last.used = time.monotonic()
                return
        self.insert(offset, data)

    def insert(self, offset: int, data: bytes) -> None:
        """Insert the data as a new entry."""
        address = self.cache.insert(data)
        self.found[offset] = PeerEntry(offset, len(data), address, time.monotonic())

    def gather(self, offset: int, length_max: int) -> bytes:
        """Return contiguous bytes from the offset on."""
        position = self.found.bisect_right(offset) - 1
        parts: list[bytes] = []
        now = time.monotonic()
        for key in self.found.islice(max(0, position)):
            entry = self.found[key]
            if length_max <= 0 or not entry.offset <= offset < entry.end:
                break
            part = self.cache.get(
                entry.address, offset - entry.offset, min(entry.end - offset, length_max)
            )
            parts.append(part)
            entry.used = now
            offset += len(part)
            length_max -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cached_end(self, offset: int) -> int:
        """Return the end of the contiguous bytes from the offset on."""
        for key in self.found.islice(max(0, self.found.bisect_right(offset) - 1)):
            entry = self.found[key]
            if not entry.offset <= offset < entry.end:
                break
            offset = entry.end
        return offset

    def set_stored_length(self, length: int) -> None:
        """Allow the eviction of entries up to this length."""
        self.stored = length

    def evict_to(self, used_bytes: int) -> None:
        """Drop those used longest ago."""
        candidates = [entry for entry in self.found.values() if entry.end <= self.stored]
        candidates.sort(key=lambda entry: entry.used)
        for entry in candidates:
            if self.cache.used_bytes <= used_bytes:
                break
            del self.found[entry.offset]
            self.cache.delete(entry.address)


def per_operation(count: int, work: Callable[[], object]) -> float:
    """Return nanoseconds of processor time for one of ``count`` operations."""
    gc.collect()
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / count


def small_operations(entries: Entries, plan: Plan) -> tuple[dict[str, float], int]:
    """Measure appends of 100 bytes, then reads of them; return also a sum over the bytes read."""
    piece, total = b"0123456789" * 10, plan.appends * 100
    reads: list[int] = []

    def append() -> None:
        for offset in range(0, total, 100):
            entries.append(offset, piece)

    def gather(length: int) -> Callable[[], None]:
        def run() -> None:
            for offset in range(0, total, length):
                reads.append(len(entries.gather(offset, length)))

        return run

    return {
        "append of 100 B": per_operation(plan.appends, append),
        "gather of 100 B": per_operation(plan.appends, gather(100)),
        "gather of 64 KiB": per_operation(total // 65536 + 1, gather(65536)),
    }, sum(reads)


def many_entries(entries: Entries, plan: Plan) -> tuple[dict[str, float], int]:
    """Measure inserts in random order and searches; return also a sum over the entries found."""
    order = [number * 8192 for number in range(plan.entries)]
    random.Random(5).shuffle(order)
    found = 0

    def insert() -> None:
        for offset in order:
            entries.insert(offset, b"x" * 100)

    def find() -> None:
        nonlocal found
        for offset in order:
            found += entries.cached_end(offset) - offset

    return {
        "insert in the middle": per_operation(plan.entries, insert),
        "find": per_operation(plan.entries, find),
    }, found


def fill(entries: Entries, plan: Plan) -> int:
    """Fill a cache to its target with entries that may go; returns where they end."""
    data = b"x" * plan.evicted_entry_bytes
    for number in range(plan.evicted_entries):
        # A gap between them, or small ones would be merged.
        entries.append(number * (len(data) + 1), data)
    end = plan.evicted_entries * (len(data) + 1)
    entries.set_stored_length(end)
    return end


def eviction_capacity(plan: Plan) -> int:
    """Return the capacity of a cache whose target utilisation is the bytes of the evicted
    entries."""
    return int(plan.evicted_entries * plan.evicted_entry_bytes / 0.749)


def ours(plan: Plan) -> tuple[dict[str, float], tuple[int, ...]]:
    """Measure the read index."""
    manager = CacheManager(StreamingCache(plan.appends * 120 + 4 * MIB))
    small, read = small_operations(SegmentEntries(manager.generations), plan)
    manager = CacheManager(StreamingCache(plan.entries * 4200 + 8 * MIB))
    many, found = many_entries(SegmentEntries(manager.generations), plan)
    manager = CacheManager(StreamingCache(eviction_capacity(plan)))
    entries = SegmentEntries(manager.generations)
    end = fill(entries, plan)
    manager.advance(0)
    manager.advance(1)
    entries.append(end, b"x" * int(0.01 * manager.cache.capacity_bytes))
    calls = []
    count = manager.generations.entry_count
    more = True
    while more:
        start = time.thread_time_ns()
        more = manager.evict_some()
        calls.append(time.thread_time_ns() - start)
    evicted = count - manager.generations.entry_count
    evict = {
        "eviction of an entry": sum(calls) / evicted,
        "eviction, longest call": float(max(calls)),
    }
    return small | many | evict, (read, found)


def peer(plan: Plan) -> tuple[dict[str, float], tuple[int, ...]]:
    """Measure the sorted dictionary."""
    small, read = small_operations(PeerEntries(StreamingCache(plan.appends * 120 + 4 * MIB)), plan)
    many, found = many_entries(PeerEntries(StreamingCache(plan.entries * 4200 + 8 * MIB)), plan)
    entries = PeerEntries(StreamingCache(eviction_capacity(plan)))
    end = fill(entries, plan)
    entries.append(end, b"x" * int(0.01 * entries.cache.capacity_bytes))
    before = len(entries.found)
    low = int(0.70 * entries.cache.capacity_bytes)
    spent = per_operation(1, lambda: entries.evict_to(low))
    evict = {
        "eviction of an entry": spent / (before - len(entries.found)),
        "eviction, longest call": spent,
    }
    return small | many | evict, (read, found)


def measure(plan: Plan) -> list[ComparedRow]:
    """Run all rounds of both sides. Raises an error when they did not do the same work."""
    runs: dict[str, list[Outcome]] = {"ours": [], "peer": []}
    for _ in range(plan.rounds):
        digests = set()
        for name, side in (("ours", ours), ("peer", peer)):
            numbers, digest = side(plan)
            digests.add(digest)
            runs[name].append(
                Outcome({Metric(n, NANOSECONDS, "lower"): value for n, value in numbers.items()})
            )
        if len(digests) != 1:
            raise RuntimeError(f"both sides read different bytes: {digests}")
    return compare("read index", ours=runs["ours"], peer=runs["peer"], reaches={})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the size that the tests use")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    plan = SMALL if options.small else Plan(rounds=options.rounds)
    rows = measure(plan)
    print(plain_table(rows))
    write_json_if_asked(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
