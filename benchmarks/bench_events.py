"""How fast are events found in segment bytes, and laid out as columns, on one core?

Run from the repository's root: `python -m benchmarks.bench_events [--rounds 5]`.

1. `scan`: where each event lies, into memory made for it. `scan into`: the same, into a buffer that
   exists. `compact`: the events' bytes without headers in one place, and their offsets.
2. `plain` is the same by Python, event by event: the peer of each row.
3. The bytes come in reads of 4 MiB, as a reader gets them. Headers count as bytes.
4. A number is the best of several passes of a round, and of these the median of the rounds. The
   time is the wall's.
"""

import argparse
import array
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from _fast.wire.events import compact_events, scan_events
from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    plain_table,
    write_json_if_asked,
)
from pravega_wire.event_framing import frame_events, iterate_event_spans

READ_BYTES = 4 * 1024 * 1024
RATE = Metric("rate", "million events/s", "higher")
THROUGHPUT = Metric("throughput", "GB/s", "higher")


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work to measure."""

    event_bytes: tuple[int, ...]
    read_bytes: int
    passes: int


USUAL = Size(event_bytes=(10, 100, 1000, 10_000), read_bytes=READ_BYTES, passes=20)
SMALL = Size(event_bytes=(100, 1000), read_bytes=64 * 1024, passes=2)


def plain_spans(data: bytes) -> int:
    """Find the position of each event, in Python."""
    return len(list(iterate_event_spans(data)))


def plain_values(data: bytes) -> int:
    """Copy the events' bytes into one place, in Python, and return them with their offsets."""
    offsets = array.array("i", [0])
    values = bytearray()
    for start, end in iterate_event_spans(data):
        values += data[start:end]
        offsets.append(len(values))
    return len(offsets) - 1


def ways(count: int) -> dict[str, tuple[Callable[[bytes], int], Callable[[bytes], int]]]:
    """Return ours and the plain way of each row; each returns how many events it found."""
    target = array.array("q", bytes(16 * count))
    return {
        "scan": (lambda data: len(scan_events(data)[0]) // 2, plain_spans),
        "scan into": (lambda data: scan_events(data, target)[0], plain_spans),
        "compact": (lambda data: len(compact_events(data)[1]) - 1, plain_values),
    }


def measure(way: Callable[[bytes], int], data: bytes, *, count: int, passes: int) -> Outcome:
    """Return the best of some passes over the same bytes."""
    best = float("inf")
    for _ in range(passes):
        begin = perf_counter()
        found = way(data)
        best = min(best, perf_counter() - begin)
        if found != count:
            return Outcome({}, failure=f"{found} events of {count}")
    return Outcome({RATE: count / best / 1e6, THROUGHPUT: len(data) / best / 1e9})


def run(size: Size, *, rounds: int) -> list[ComparedRow]:
    """Run all rows; ours and the plain way take turns."""
    rows = []
    for event_bytes in size.event_bytes:
        count = size.read_bytes // (event_bytes + 8)
        data = frame_events([bytes(event_bytes)] * count)
        for name, (ours, plain) in ways(count).items():
            outcomes = [
                (
                    measure(ours, data, count=count, passes=size.passes),
                    measure(plain, data, count=count, passes=2),
                )
                for _ in range(rounds)
            ]
            rows += compare(
                f"{name}, {event_bytes} B",
                ours=[outcome for outcome, _ in outcomes],
                peer=[outcome for _, outcome in outcomes],
                reaches={},
            )
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_events")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    options = parser.parse_args(arguments)
    rows = run(SMALL, rounds=1) if options.small else run(USUAL, rounds=options.rounds)
    print(plain_table(rows))
    write_json_if_asked(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
