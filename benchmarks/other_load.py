"""Other processes that want the processors while a server is measured: `spinning`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from foreign_servers.tied_processes import tied

SPIN = "while True: pass"


@contextmanager
def spinning(count: int) -> Iterator[list[int]]:
    """Run so many processes that never rest, as long as the block; yields their ids."""
    command = [sys.executable, "-c", SPIN]
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(tied(command), stdin=subprocess.DEVNULL))
            stack.callback(os.kill, process.pid, signal.SIGKILL)
            processes.append(process.pid)
        yield processes
