"""Checks of this machine: versions, limits, clock, and the disk of a data directory.

Owns: the bounds beyond which each is a warning or a fault, and the measurement of a sync. A check
leaves nothing behind.

Invariants:
1. When a data directory does not exist, the disk on which it would be made is checked, and nothing
   is made. Held by ``test_a_missing_data_directory_is_not_made``.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pravega_admin.inspection.findings import Finding, Severity
from segstore.runtime.kernel import read_clock_error

FILES_MIN = 1024
"""Number of open files below which a store serves few connections."""
FILES_FAULT = 128
"""Number of open files below which a segment store does not start."""
MEMORY_MIN = 1 << 30
"""Number of bytes of memory below which caches are small."""
FREE_WARNING, FREE_FAULT = 0.20, 0.05
"""Parts of a disk that should be free. A store delays writers when it is full."""
SYNCS = 32
SYNC_BYTES = 4096
SYNC_SECONDS_MAX = 5.0
"""Maximum time, in seconds, of the measurement."""
SYNC_MS_WARNING, SYNC_MS_FAULT = 15.0, 200.0
"""Medians of a sync, in milliseconds. Each append waits for one."""
SYNC_MS_DOUBT = 0.02
"""A median, in milliseconds, below which no disk has been written."""
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
FOREIGN_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})
LIBRARIES = ("trio", "grpcio", "typer", "boto3", "kazoo")


def check_machine(data_dir: Path) -> Iterator[Finding]:
    """Yield the findings about this machine, and about the disk of a data directory."""
    yield check_versions()
    yield check_files()
    yield check_memory()
    yield check_clock()
    yield from check_disk(data_dir)


def check_versions() -> Finding:
    """Return the versions that an error report needs; a fault if a library is missing."""
    found, missing = [], []
    for name in ("segstore", *LIBRARIES):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    python = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if missing:
        sentence = f"{', '.join(missing)} is not installed ({python})"
        return Finding("versions", Severity.FAULT, sentence, f"{sys.executable} -m pip install ...")
    return Finding("versions", Severity.OK, f"{', '.join(found)}, {python}")


def check_files() -> Finding:
    """Return the finding about open files. Servers raise the soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= FILES_MIN:
        return Finding("open files", Severity.OK, f"up to {'any' if hard < 0 else hard}")
    severity = Severity.FAULT if hard < FILES_FAULT else Severity.WARNING
    return Finding(
        "open files",
        severity,
        f"a process may open {hard} files at a time, each connection is one",
        "raise the hard limit: ulimit -Hn 65536, or LimitNOFILE=65536 of the service",
    )


def check_memory() -> Finding:
    """Return the finding about memory that is available."""
    available = 0
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass
    if not available:
        return Finding("memory", Severity.NOTE, "this system does not tell how much is available")
    size = f"{available / 1e9:.1f} GB available, {os.cpu_count()} processors"
    if available >= MEMORY_MIN:
        return Finding("memory", Severity.OK, size)
    return Finding(
        "memory", Severity.WARNING, size, "give the machine more memory, or the store less cache"
    )


def check_clock() -> Finding:
    """Return whether the kernel's clock is synchronized, as the kernel itself says."""
    if time.time() < os.path.getmtime(__file__) - 86_400:
        return Finding(
            "clock",
            Severity.FAULT,
            f"it is {time.strftime('%Y-%m-%d')}, before this version was installed",
            "set the clock: certificates and tokens would not be valid",
        )
    try:
        error_seconds = read_clock_error()
    except OSError:
        return Finding("clock", Severity.NOTE, "this system does not tell whether it is right")
    if error_seconds == math.inf:
        return Finding(
            "clock",
            Severity.WARNING,
            "nothing synchronizes it: certificates, tokens and retention depend on it",
            "run chrony or systemd-timesyncd",
        )
    return Finding(
        "clock", Severity.OK, f"synchronized, at most {error_seconds * 1e3:.0f} ms wrong"
    )


def check_disk(data_dir: Path) -> Iterator[Finding]:
    """Yield the findings about the disk of a data directory, or of the place where it would be."""
    place = data_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    kind = find_file_system(place)
    name = f"{place} ({kind})" if kind else str(place)
    if kind in MEMORY_FILE_SYSTEMS:
        yield Finding(
            "file system",
            Severity.FAULT,
            f"{name} is memory: all data are gone after a restart of the machine",
            "give --data-dir on a disk",
        )
    elif kind in FOREIGN_FILE_SYSTEMS:
        yield Finding(
            "file system",
            Severity.WARNING,
            f"{name} is on another machine: locks and syncs are only as good as that one's",
            "give --data-dir on a disk of this machine",
        )
    try:
        usage = shutil.disk_usage(place)
        yield _judge_room(name, usage.free, usage.total)
        yield _judge_syncs(name, measure_syncs(place))
    except OSError as error:
        yield Finding(
            "disk",
            Severity.FAULT,
            f"{name} cannot be written: {error.strerror}",
            f"let the user {os.getuid()} write there, or give another --data-dir",
        )


def find_file_system(place: Path) -> str:
    """Return the kind of the file system that a path is on; "" if the system does not say."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if len(point) >= len(best) and place.is_relative_to(point):
            best, kind = point, found
    return kind


def measure_syncs(place: Path) -> list[float]:
    """Return how long, in seconds, writes of some kilobytes took until they were synced."""
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=place) as file:
        # A journal's file has its length already when it is written.
        file.write(bytes(SYNCS * SYNC_BYTES))
        file.flush()
        os.fsync(file.fileno())
        began = time.monotonic()
        for number in range(SYNCS):
            before = time.perf_counter()
            os.pwrite(file.fileno(), os.urandom(SYNC_BYTES), number * SYNC_BYTES)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - before)
            if time.monotonic() - began > SYNC_SECONDS_MAX:
                break
    return taken


def _judge_room(name: str, free: int, total: int) -> Finding:
    share = free / total if total else 0.0
    said = f"{name} has {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    if share >= FREE_WARNING:
        return Finding("room", Severity.OK, said)
    severity = Severity.FAULT if share < FREE_FAULT else Severity.WARNING
    return Finding(
        "room", severity, said, "make room, or shorten the retention: writers wait when it is full"
    )


def _judge_syncs(name: str, taken: list[float]) -> Finding:
    median = statistics.median(taken) * 1000
    said = f"a synced write to {name} takes {median:.2f} ms, at most {max(taken) * 1000:.1f} ms"
    if median < SYNC_MS_DOUBT:
        return Finding(
            "sync",
            Severity.WARNING,
            f"{said}: no disk is so quick",
            "look whether syncs are switched off (eatmydata, a volatile cache, a mount option)",
        )
    if median < SYNC_MS_WARNING:
        return Finding("sync", Severity.OK, said)
    severity = Severity.FAULT if median >= SYNC_MS_FAULT else Severity.WARNING
    mend = (
        "each append waits for one: use a disk of its own, best an SSD with power-loss protection"
    )
    return Finding("sync", severity, said, mend)
