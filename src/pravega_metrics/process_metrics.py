"""The metrics that every process of ours has: its event loop, processor, memory, files, and the end
of its certificate.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Final

import trio

from pravega_metrics.metrics import CounterMetric, Family, Gauge, HistogramMetric, Unit

LAG_SECONDS: Final = 1.0
"""Time, in seconds, between two measurements of how late the event loop is."""

LOOP_LAG: Final = HistogramMetric(
    "segstore_loop_lag_seconds",
    "Time by which the event loop was late to run a task that had slept.",
    unit=Unit.SECONDS,
)
CPU_SECONDS: Final = CounterMetric(
    "segstore_process_cpu_seconds", "Processor time that the process used.", unit=Unit.SECONDS
)
RESIDENT_BYTES: Final = Gauge(
    "segstore_process_resident_bytes", "Memory that the process uses.", unit=Unit.BYTES
)
OPEN_FILES: Final = Gauge(
    "segstore_process_open_files", "Files and sockets that the process has open."
)
OPEN_FILES_MAX: Final = Gauge(
    "segstore_process_open_files_max", "Files and sockets that the process may have open."
)
START_SECONDS: Final = Gauge(
    "segstore_process_start_time_seconds",
    "When the process started, in seconds since 1970.",
    unit=Unit.SECONDS,
)
CERTIFICATE_END: Final = Gauge(
    "segstore_certificate_end_time_seconds",
    "When the certificate of the process's port ends, in seconds since 1970.",
    unit=Unit.SECONDS,
)
_STARTED: Final = time.time()
_certificate_ends: list[Callable[[], float]] = []
"""The function that returns the end of the certificate; none without TLS."""


def watch_certificate(end: Callable[[], float]) -> None:
    """Tell from now on what ``end`` returns as the end of the process's certificate."""
    _certificate_ends[:] = [end]


async def measure_loop_lag() -> None:
    """Measure until cancelled how late the event loop is."""
    lag = LOOP_LAG.of()
    while True:
        due = trio.current_time() + LAG_SECONDS
        await trio.sleep_until(due)
        lag.record(int((trio.current_time() - due) * 1e9))


def read_process() -> list[Family]:
    """Return the readings of this process."""
    used = os.times()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return [
        LOOP_LAG.read(),
        CPU_SECONDS.family({(): used.user + used.system}),
        RESIDENT_BYTES.family({(): pages * resource.getpagesize()}),
        OPEN_FILES.family({(): len(os.listdir("/proc/self/fd"))}),
        OPEN_FILES_MAX.family({(): resource.getrlimit(resource.RLIMIT_NOFILE)[0]}),
        START_SECONDS.family({(): _STARTED}),
        CERTIFICATE_END.family({(): _certificate_ends[0]()} if _certificate_ends else {}),
    ]
