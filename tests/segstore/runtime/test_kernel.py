"""The kernel's own: exact timers, and processes that end with their parents."""

from __future__ import annotations

import errno
import math
import os
import platform
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from segstore.runtime import kernel_build
from segstore.runtime._kernel import lib
from segstore.runtime.kernel import (
    create_timer,
    read_clock_error,
    return_free_memory,
    set_timer,
)


@pytest.fixture
def timer() -> Iterator[int]:
    descriptor = create_timer()
    yield descriptor
    os.close(descriptor)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def has_rung(descriptor: int, *, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_a_timer_rings_when_its_time_has_come_and_not_before(timer: int) -> None:
    assert not has_rung(timer, seconds=0)
    began = time.monotonic()
    set_timer(timer, 0.05)
    assert has_rung(timer, seconds=10)
    assert time.monotonic() - began >= 0.05


def test_a_time_in_the_past_rings_at_once(timer: int) -> None:
    set_timer(timer, -3.0)
    assert has_rung(timer, seconds=10)


def test_a_timer_that_is_set_to_never_does_not_ring(timer: int) -> None:
    set_timer(timer, 0.001)
    set_timer(timer, math.inf)
    assert not has_rung(timer, seconds=0.05)


def test_an_error_of_the_kernel_is_raised() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        set_timer(-1, 1.0)
    assert caught.value.errno == errno.EBADF


def test_the_module_is_built_of_what_is_declared() -> None:
    declared = re.findall(r"^\w+ (\w+)\(", kernel_build.DECLARATIONS, re.MULTILINE)
    assert sorted(declared) == sorted(dir(lib))


PARENT = '''
import subprocess, sys
code = """
import time
from segstore.runtime.kernel import kill_with_parent
kill_with_parent()
print("asked", flush=True)
time.sleep(60)
"""
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
sys.stdin.read()
'''


@pytest.mark.processes
def test_a_process_ends_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        said, process_id = parent.stdout.readline().split()
        assert said == "asked"
        child = os.pidfd_open(int(process_id))
        try:
            parent.send_signal(signal.SIGKILL)
            assert select.select([child], [], [], 10)[0], "the child lives"
        finally:
            os.close(child)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a call of glibc")
def test_pages_between_blocks_in_use_are_returned() -> None:
    block_bytes, count = 50_000, 2_000
    blocks: list[bytes | None] = [b"x" * block_bytes for _ in range(count)]
    for index in range(0, count, 2):
        blocks[index] = None
    before = resident_bytes()
    return_free_memory()
    assert before - resident_bytes() > block_bytes * count / 4
    assert blocks[1] == b"x" * block_bytes


def test_the_clock_is_wrong_by_some_time_or_by_no_known_one() -> None:
    assert read_clock_error() >= 0
