"""The machine a benchmark ran on, and how much of it others used meanwhile."""

import mmap
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
SYNCED_BYTES = 1 << 20
"""Length of a synced write, as of `dd bs=1M oflag=dsync`."""


def synced_bytes_per_second(directory: Path, *, writes: int = 256) -> float:
    """Measure the rate at which the drive takes synced writes into a new file."""
    data = mmap.mmap(-1, SYNCED_BYTES)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        begun = time.perf_counter()
        for number in range(writes):
            os.pwritev(file.fileno(), [data], number * SYNCED_BYTES, os.RWF_DSYNC)
        return writes * SYNCED_BYTES / (time.perf_counter() - begun)


def busy_seconds() -> float:
    """Return the CPU seconds that all processes of this machine have used or its host has
    stolen."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about the machine that a report states."""

    cpu_model: str
    cpu_count: int
    memory_gib: float
    kernel: str
    file_system: str
    java: str
    python: str
    commit: str


def measured_on(machine: Machine, moment: datetime, command: str) -> str:
    """Return the end of a report: where, when and by which command it was measured."""
    return f"""Machine: {machine.cpu_count} x {machine.cpu_model}, {machine.memory_gib:.0f} GiB,
Linux {machine.kernel}, {machine.java}, Python {machine.python}, commit {machine.commit}.

Measured {moment:%Y-%m-%d %H:%M} UTC by

```
{command}
```
"""


def this_machine(directory: Path) -> Machine:
    """Describe this machine; `directory` is where the servers keep their data."""
    return Machine(
        cpu_model=_cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        kernel=platform.release(),
        file_system=_file_system(directory),
        java=_first_line("java", "-version"),
        python=platform.python_version(),
        commit=describe_commit(),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    return _first_line("stat", "--file-system", "--format=%T", str(directory))


def describe_commit() -> str:
    """Return the commit that is checked out, and whether files differ from it."""
    here = str(Path(__file__).parent)
    commit = _first_line("git", "-C", here, "rev-parse", "--short=12", "HEAD")
    changed = _first_line("git", "-C", here, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with changes" if changed else commit


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return next(iter(done.stdout.splitlines()), "")
