"""What does one append block cost our segment store, and where does it go?

Run from the repository's root: `python -m benchmarks.bench_budget [--report]`.

1. One segment store process with a journal on disk, one connection, blocks at a steady rate. The
   store is freshly started for each case, and warm when it is measured.
2. CPU is the process's own, of both user and kernel. The stages are shares of `perf` samples taken
   in a second run of the same load; the system calls are counted by `strace` in a third, which
   slows the server down: counts of a slow server have fuller batches. Without these tools their
   columns are missing, and the report says so.
3. Copies per byte are the time in copying routines of libc and kernel, divided by what one copy of
   a byte takes on this machine.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from foreign_servers.processes import ServerProcess
from foreign_servers.tied_processes import tied

from benchmarks.block_load import BlockLoadResult, BlockSender, event_block
from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    limited,
    number,
    plain_table,
    write_json_if_asked,
)
from benchmarks.machine import this_machine
from pravega_wire.blocking import SegmentConnection
from segstore.testing.ports import free_ports

BUDGET = Path(__file__).parent.parent / "docs" / "performance" / "budget.md"
PREAMBLE = """# The cost of one append block

A segment store process has a journal on disk, one connection and one segment, and gets blocks at a
steady rate. Every number is per block. The budget is 20 us of CPU from receipt to acknowledgement
when many blocks come together, and 1 us for each KB of a block. A block that comes alone also pays
for the wake-ups of the event loop and of the journal thread. The payload is copied twice: into the
data frame and into the cache.

Stages are shares of samples: system calls by their purpose, then compiled modules by name, then the
interpreter. *Kernel, on its own* means interrupts and page faults; *waiting* means the wake-ups of
the event loop and of the threads. Calls are counted under `strace`. This slows the server down, so
its batches are fuller. Copies are the time in copying routines, in copies of the whole payload.

`python -m benchmarks.bench_budget --report` measures this and writes the page. Run it on a machine
that does nothing else.
"""
CPU = Metric("CPU per block", "us", "lower")
READY_SECONDS_MAX = 60.0
SAMPLES_PER_SECOND = 997
SETTLE_SECONDS = 0.2
"""Time for the rest of what a tool does to attach itself, which it tells nowhere."""
COPY_BYTES = 64 * 2**20

DISK, RECEIVE, SEND, LOOP, MEMORY = (
    "writing to disk",
    "receiving",
    "sending",
    "waiting",
    "memory from the kernel",
)
STAGE_OF_CALL = {
    **dict.fromkeys(("fdatasync", "fsync", "pwrite64", "pwritev", "pwritev2"), DISK),
    **dict.fromkeys(("readv", "recvfrom", "recvmsg"), RECEIVE),
    **dict.fromkeys(("writev", "sendto", "sendmsg"), SEND),
    **dict.fromkeys(("epoll_wait", "epoll_ctl", "futex", "read", "write"), LOOP),
    **dict.fromkeys(("madvise", "mmap", "munmap", "brk"), MEMORY),
}
"""The event loop's and the threads' wake-ups are reads and writes of event counters."""
CALL_PREFIX = re.compile(r"^(?:__x64_sys_|__do_sys_|__se_sys_|__sys_|ksys_|do_)")
COPY_FRAME = re.compile(r"mem(?:move|cpy)|^rep_movs|copy_(?:to|from)_(?:iter|user)|^copy_groups")
FAST_MODULE = re.compile(r"/_fast/((?:\w+/)?\w+)\.")


@dataclass(frozen=True, slots=True)
class Case:
    """Blocks of one size at one rate, and the CPU that a block may take."""

    name: str
    block_bytes: int
    blocks_per_second: float
    cpu_us_max: float


CASES = (
    Case("150 B, 2,000 blocks/s", 150, 2_000, 60.0),
    Case("150 B, 10,000 blocks/s", 150, 10_000, 20.0),
    Case("64 KB, 1,000 blocks/s", 64 * 1024, 1_000, 84.0),
)
"""20 us for a block from receipt to ack where blocks come thick, 1 us for each of its KB; where
they come singly, each pays for the wake-ups alone."""
SMALL_CASES = (Case("150 B, 200 blocks/s", 150, 200, 10_000.0),)


@dataclass(frozen=True, slots=True)
class Spent:
    """The use of a block: microseconds by stage, system calls by name, copies of its bytes."""

    case: Case
    load: BlockLoadResult
    cpu_us: float
    stages_us: Mapping[str, float]
    calls: Mapping[str, float]
    copies: float | None


def measure(case: Case, *, seconds: float, directory: Path) -> Spent:
    """Run one case on a fresh store: plain, then sampled, then traced."""
    with _server(directory) as (server, port), SegmentConnection("127.0.0.1", port) as connection:
        sender = BlockSender(connection, data=event_block(case.block_bytes))
        rate = case.blocks_per_second
        sender.run(blocks_per_second=rate, seconds=seconds / 2)
        before = server.processes.usage().cpu_seconds
        load = sender.run(blocks_per_second=rate, seconds=seconds)
        cpu_us = (server.processes.usage().cpu_seconds - before) / load.blocks * 1e6
        (process_id,) = server.processes.process_ids()
        with _sampled(process_id, directory) as samples:
            sender.run(blocks_per_second=rate, seconds=seconds)
        shares, copying = stage_shares(samples)
        with _traced(process_id, directory) as calls:
            traced = sender.run(blocks_per_second=rate, seconds=seconds)
    copies = None
    if shares:
        copies = copying * cpu_us / (case.block_bytes * _copy_us_per_byte())
    return Spent(
        case,
        load,
        cpu_us,
        {stage: share * cpu_us for stage, share in shares.items()},
        {name: count / traced.blocks for name, count in calls.items()},
        copies,
    )


@contextmanager
def _server(directory: Path) -> Iterator[tuple[ServerProcess, int]]:
    directory.mkdir(parents=True)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "pravega_admin", "server", "--port", str(port)]
    server = ServerProcess([*command, "--data-dir", str(directory / "data")], directory=directory)
    try:
        server.wait_for_port(port, seconds_max=READY_SECONDS_MAX)
        yield server, port
    finally:
        server.stop()


@contextmanager
def _sampled(process_id: int, directory: Path) -> Iterator[list[str]]:
    """Yield the stacks of the process while the block runs, as lines of `perf script`.

    None without perf.
    """
    lines: list[str] = []
    if shutil.which("perf") is None:
        yield lines
        return
    data = directory / "perf.data"
    command = ["perf", "record", "-g", "-F", str(SAMPLES_PER_SECOND), "-o", str(data)]
    with _tool([*command, "-p", str(process_id)], _is_sampling):
        yield lines
    done = subprocess.run(
        ["perf", "script", "-i", str(data), "-F", "comm,ip,sym,dso"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines += done.stdout.splitlines()


def _is_sampling(tool: int) -> bool:
    """Return whether a `perf` has its buffers for samples."""
    return "[perf_event]" in Path(f"/proc/{tool}/maps").read_text()


@contextmanager
def _traced(process_id: int, directory: Path) -> Iterator[Counter[str]]:
    """Yield how often the process made each system call while the block ran.

    Empty without strace.
    """
    counts: Counter[str] = Counter()
    if shutil.which("strace") is None:
        yield counts
        return
    summary = directory / "strace.txt"
    status = Path(f"/proc/{process_id}/status")

    def is_tracing(tool: int) -> bool:
        return f"TracerPid:\t{tool}\n" in status.read_text()

    with _tool(["strace", "-f", "-c", "-o", str(summary), "-p", str(process_id)], is_tracing):
        yield counts
    counts.update(call_counts(summary.read_text()))


@contextmanager
def _tool(command: Sequence[str], is_attached: Callable[[int], bool]) -> Iterator[None]:
    """Attach a tool to the server while the block runs, and end the tool with an interrupt.

    ``is_attached`` looks whether the process of the tool, by its id, has begun.
    """
    with subprocess.Popen(
        tied(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as tool:
        while tool.poll() is None and not is_attached(tool.pid):
            time.sleep(0.01)
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            tool.send_signal(signal.SIGINT)
            tool.wait(30)


def call_counts(summary: str) -> dict[str, int]:
    """Parse the counts of a summary of `strace -c`."""
    counts = {}
    for line in summary.splitlines():
        fields = line.split()
        # % time, seconds, usecs/call, calls, perhaps errors, name.
        if len(fields) >= 5 and fields[3].isdecimal() and fields[-1] != "total":
            counts[fields[-1]] = int(fields[3])
    return counts


def stage_shares(lines: Sequence[str]) -> tuple[dict[str, float], float]:
    """Return the share of samples by stage, and the share of those that were copying."""
    stages: Counter[str] = Counter()
    copying = 0
    stack: list[tuple[str, str]] = []
    for line in [*lines, ""]:
        words = line.split()
        if not words:
            if stack:
                stages[stage_of(stack)] += 1
                copying += bool(COPY_FRAME.search(stack[0][0]))
            stack = []
        elif line[0].isspace() and len(words) >= 3:
            stack.append((words[1].partition("+")[0], words[-1].strip("()")))
    total = stages.total()
    if not total:
        return {}, 0.0
    return {stage: count / total for stage, count in stages.most_common()}, copying / total


def stage_of(stack: Sequence[tuple[str, str]]) -> str:
    """Return the stage of a sample from its (symbol, binary) frames, the innermost first."""
    symbol, binary = stack[0]
    if (call := _system_call(stack)) is not None:
        return STAGE_OF_CALL.get(call, "other system calls")
    if "kernel" in binary:
        return "kernel, on its own"
    if (module := FAST_MODULE.search(binary)) is not None:
        return f"_fast.{module[1].replace('/', '.')}"
    if COPY_FRAME.search(symbol):
        return "copying in memory"
    if "python" in binary:
        return "Python"
    return "libraries"


def _system_call(stack: Sequence[tuple[str, str]]) -> str | None:
    """Return the system call that a sample was in, if any: the kernel's entry called its
    function."""
    for (name, _), (caller, _) in pairwise(stack):
        if caller == "do_syscall_64":
            return CALL_PREFIX.sub("", name)
    return None


def _copy_us_per_byte() -> float:
    source, target = bytes(COPY_BYTES), bytearray(COPY_BYTES)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - started)
    return min(times) / COPY_BYTES * 1e6


def compared(spent: Sequence[Spent]) -> list[ComparedRow]:
    """Compare the CPU time per block with its budget."""
    rows = []
    for each in spent:
        ours = [Outcome({CPU: each.cpu_us})]
        rows += limited(each.case.name, ours=ours, limits={CPU.name: each.case.cpu_us_max})
    return rows


def tables(spent: Sequence[Spent]) -> str:
    """Return the budget as Markdown, with a column for each case."""
    head = ["", *(each.case.name for each in spent)]
    lines = [head, ["---"] * len(head)]
    lines += [
        ["CPU, us", *(number(each.cpu_us) for each in spent)],
        ["budget, us", *(number(each.case.cpu_us_max) for each in spent)],
        ["ack p50 / p95, ms", *(_latency(each.load) for each in spent)],
    ]
    stages = dict.fromkeys(stage for each in spent for stage in each.stages_us)
    lines += [[f"{s}, us", *(number(e.stages_us.get(s)) for e in spent)] for s in stages]
    lines.append(["copies of a byte", *(number(each.copies) for each in spent)])
    calls = dict.fromkeys(name for each in spent for name in each.calls)
    kept = [name for name in calls if any(each.calls.get(name, 0) >= 0.01 for each in spent)]
    lines += [[f"{c} calls", *(number(e.calls.get(c, 0.0)) for e in spent)] for c in kept]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latency(load: BlockLoadResult) -> str:
    return f"{number(load.percentile_ms(50))} / {number(load.percentile_ms(95))}"


def report(spent: Sequence[Spent], *, directory: Path, command: str) -> str:
    """Return the Markdown page."""
    machine = this_machine(directory)
    absent = [tool for tool in ("perf", "strace") if shutil.which(tool) is None]
    without = f"\nWithout {' and '.join(absent)}: not installed.\n" if absent else ""
    return f"""{PREAMBLE}{without}
## Measured {datetime.now(UTC):%Y-%m-%d %H:%M} UTC

{tables(spent)}

Machine: {machine.cpu_count} x {machine.cpu_model}, {machine.memory_gib:.0f} GiB,
Linux {machine.kernel}, Python {machine.python}, commit {machine.commit}.

```
{command}
```
"""


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_budget")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of a case's four runs")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--report", action="store_true", help=f"write {BUDGET.name}")
    options = parser.parse_args(arguments)
    cases, seconds = (SMALL_CASES, 0.5) if options.small else (CASES, options.seconds)
    directory = Path(tempfile.mkdtemp(prefix="bench-budget-"))
    try:
        spent = []
        for index, case in enumerate(cases):
            print(case.name, file=sys.stderr)
            spent.append(measure(case, seconds=seconds, directory=directory / str(index)))
            os.sync()
        command = " ".join(["python -m benchmarks.bench_budget", *arguments])
        text = report(spent, directory=directory, command=command)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(plain_table(compared(spent)))
    print(tables(spent))
    write_json_if_asked(compared(spent))
    if options.report:
        BUDGET.write_text(text)
        print(f"report: {BUDGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
