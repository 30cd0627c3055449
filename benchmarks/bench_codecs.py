"""How fast do bytes go through the codecs of the write path, on one core?

Run from the repository's root: `python -m benchmarks.bench_codecs [--rounds 5]`.

1. `wire`: append blocks, each an AppendBlock with its AppendBlockEnd, decoded and put together out
   of a receive buffer; every block comes out as an append with its data copied once.
2. `frame write`: records of a head of 60 bytes and a body are put into data frames, which are
   sealed with their checksum. `frame read`: frames are checked and taken apart; nobody looks at
   the records. Only the bodies count as bytes.
3. `operation`: appends with a writer's attribute and an event count, encoded straight into data
   frames, and decoded from what a frame's reader gives.
4. A number is the best of several passes of a round, and of these the median of the rounds. The
   time is the thread's CPU time. There is no peer: in its place stands the number to keep to.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import thread_time

from _fast.log.data_frame import DataFrame, FrameReader
from _fast.wire.appends import Append, AppendDecoder
from benchmarks.comparison import ComparedRow, Metric, plain_table, write_json_if_asked
from pravega_wire import commands as wire
from pravega_wire.codec import encode
from segstore.model.attributes import EVENT_COUNT
from segstore.model.operations import AppendOperation, decode_operation
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX

KIB = 1024
WRITER = bytes(range(16))
HEAD = bytes(60)
GIGABYTES = Metric("throughput", "GB/s", "higher")
BLOCKS = Metric("rate", "million/s", "higher")


@dataclass(frozen=True, slots=True)
class Size:
    """The work of a pass, in bytes and in items of the smallest size, and the number of passes."""

    pass_bytes: int
    pass_count_max: int
    passes: int


USUAL = Size(pass_bytes=256 * KIB * KIB, pass_count_max=200_000, passes=3)
SMALL = Size(pass_bytes=2 * KIB * KIB, pass_count_max=500, passes=1)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: ``work`` does it for bodies of ``length`` and returns how many."""

    name: str
    work: Callable[[int, int], Callable[[], int]]
    length: int
    metric: Metric
    limit: float | None = None


def wire_blocks(length: int, count: int) -> Callable[[], int]:
    """Decode buffers of append blocks, as large as a socket gives them at once."""
    per_buffer = max(1, min(count, 256 * KIB // length))
    block = encode(wire.AppendBlock(WRITER, bytes(length)))
    ends = [encode(wire.AppendBlockEnd(WRITER, length, b"", 1, n, n)) for n in range(per_buffer)]
    buffer = b"".join(block + end for end in ends)
    accepted = bytes(256).replace(b"\0", b"\1")

    def refuse(code: int, start: int, end: int) -> Append:
        raise AssertionError(f"a command {code} came out")

    def work() -> int:
        decoded = 0
        while decoded < count:
            # The event numbers begin anew with each buffer, and so does the writer.
            decoder = AppendDecoder(accepted, 0xFF_FFFF, 1)
            decoder.set_up(WRITER, "scope/stream/0.#epoch.0")
            appends, position = decoder.decode(buffer, refuse)
            assert position == len(buffer)
            decoded += len(appends)
        return decoded

    return work


def fill(frame: DataFrame, body: bytes, count: int) -> int:
    """Put up to so many records into an empty frame; returns how many fitted."""
    put = 0
    record_bytes = len(HEAD) + len(body)
    while put < count and frame.room >= record_bytes:
        frame.put_whole(HEAD, body)
        put += 1
    return put


def frame_writes(length: int, count: int) -> Callable[[], int]:
    """Fill and seal frames, one after the other in the same memory."""
    frame, body = DataFrame(LOG_ENTRY_BYTES_MAX), bytes(length)

    def work() -> int:
        written = 0
        while written < count:
            written += fill(frame, body, count - written)
            frame.seal().release()
            frame.clear()
        return written

    return work


def frame_reads(length: int, count: int) -> Callable[[], int]:
    """Take frames apart; there are several, so that they are not in the nearest cache."""
    frames = []
    for _ in range(8):
        frame = DataFrame(LOG_ENTRY_BYTES_MAX)
        fill(frame, bytes(length), count)
        frames.append(bytes(frame.seal()))

    def work() -> int:
        read = 0
        reader = FrameReader()
        while read < count:
            for frame in frames:
                read += len(reader.feed(frame, 0))
        return read

    return work


def an_append(length: int) -> AppendOperation:
    """Make an append as the processor has accepted it."""
    operation = AppendOperation("scope/stream/0.#epoch.0", bytes(length))
    operation.segment_id, operation.offset, operation.sequence_number = 7, 1 << 40, 1 << 33
    operation.attribute_values = {WRITER: 1 << 20, EVENT_COUNT: 1 << 30}
    return operation


def operation_writes(length: int, count: int) -> Callable[[], int]:
    """Encode appends into frames."""
    frame, operation = DataFrame(LOG_ENTRY_BYTES_MAX), an_append(length)

    def work() -> int:
        written = 0
        while written < count:
            while operation.put_into(frame):
                written += 1
            frame.seal().release()
            frame.clear()
        return written

    return work


def operation_reads(length: int, count: int) -> Callable[[], int]:
    """Decode appends out of frames."""
    frame, operation = DataFrame(LOG_ENTRY_BYTES_MAX), an_append(length)
    while operation.put_into(frame):
        pass
    data = bytes(frame.seal())

    def work() -> int:
        read = 0
        reader = FrameReader()
        while read < count:
            for _, record in reader.feed(data, 0):
                decode_operation(record)
                read += 1
        return read

    return work


ROWS = (
    Row("wire, 100 B", wire_blocks, 100, BLOCKS, 1.0),
    Row("wire, 1 KiB", wire_blocks, KIB, GIGABYTES),
    Row("wire, 32 KiB", wire_blocks, 32 * KIB, GIGABYTES),
    Row("wire, 512 KiB", wire_blocks, 512 * KIB, GIGABYTES, 5.0),
    *(
        Row(f"frame {what}, {name}", work, length, GIGABYTES, limit)
        for what, work in (("write", frame_writes), ("read", frame_reads))
        for name, length, limit in (
            ("100 B", 100, None),
            ("1 KiB", KIB, None),
            ("4 KiB", 4 * KIB, 3.0),
            ("32 KiB", 32 * KIB, 3.0),
        )
    ),
    Row("operation write, 100 B", operation_writes, 100, BLOCKS),
    Row("operation read, 100 B", operation_reads, 100, BLOCKS),
)


def measure(row: Row, size: Size) -> float:
    """Return the best pass, in the row's unit."""
    work = row.work(row.length, max(1, min(size.pass_count_max, size.pass_bytes // row.length)))
    best = 0.0
    for _ in range(size.passes):
        started = thread_time()
        done = work()
        rate = done / max(thread_time() - started, 1e-9)
        best = max(best, rate * row.length / 1e9 if row.metric is GIGABYTES else rate / 1e6)
    return best


def limited_row(
    name: str, metric: Metric, rounds: Sequence[float], limit: float | None
) -> ComparedRow:
    """Return a row for a number without a peer, beside its limit if it has one."""
    return ComparedRow(
        row=name,
        metric=metric,
        ours=statistics.median(rounds),
        peer=limit,
        ours_rounds=tuple(rounds),
        peer_rounds=(),
        reach=1.0 if limit is not None else None,
    )


def run(size: Size, *, rounds: int) -> list[ComparedRow]:
    """Run all rows; in a round, one after the other."""
    found: dict[str, list[float]] = {row.name: [] for row in ROWS}
    for _ in range(rounds):
        for row in ROWS:
            found[row.name].append(measure(row, size))
    return [limited_row(row.name, row.metric, found[row.name], row.limit) for row in ROWS]


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_codecs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    options = parser.parse_args(arguments)
    rows = run(SMALL, rounds=1) if options.small else run(USUAL, rounds=options.rounds)
    print(plain_table(rows))
    write_json_if_asked(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
