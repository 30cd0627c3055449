"""A process that is paused takes no step any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_servers.pauses import pause_process

COUNTING = """
import threading, time, sys
def count():
    while True:
        with open(sys.argv[1], "a") as file:
            file.write(".")
for _ in range(4):
    threading.Thread(target=count).start()
print("counts", flush=True)
"""


@pytest.mark.processes
def test_no_thread_of_a_paused_process_goes_on(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    with subprocess.Popen(
        [sys.executable, "-c", COUNTING, str(counts)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for _ in range(20):
                pause_process(process.pid)
                length = counts.stat().st_size if counts.exists() else 0
                for _ in range(50):
                    os.sched_yield()
                assert (counts.stat().st_size if counts.exists() else 0) == length
                os.kill(process.pid, signal.SIGCONT)
        finally:
            process.kill()
