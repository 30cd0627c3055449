"""The process that asks a controller through the official Java client, one work after the other.

1. It stays for as long as its server is measured, so that the client is as warm as the server.
2. A work is a line on its standard input, its result a line of JSON on standard output. What else
   it has to say goes to a log file.
"""

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foreign_servers.process_tree import ProcessTree
from foreign_servers.tied_processes import tied

from benchmarks.load_driver import driver_class_path

MAIN_CLASS = "segstore.controller.ControllerDriver"
HEAP = "1g"
WORK_SECONDS_MAX = 900.0
END_SECONDS_MAX = 10.0


class WorkFailedError(Exception):
    """A work was not done; the message says why."""


class ControllerDriver:
    """One driver process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.processes = ProcessTree(frozenset({process.pid}))
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="controller-driver", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, work: str, **arguments: object) -> dict[str, Any]:
        """Ask the driver to do a work and return its result. Raises WorkFailedError."""
        assert self._process.stdin is not None
        line = " ".join([work, *(f"{name}={value}" for name, value in arguments.items())])
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._lines.get(timeout=WORK_SECONDS_MAX)
        except OSError as error:
            raise WorkFailedError(f"{line}: the driver has ended") from error
        except queue.Empty as error:
            raise WorkFailedError(f"{line}: no answer in {WORK_SECONDS_MAX:g} s") from error
        if not answer:
            raise WorkFailedError(f"{line}: the driver has ended")
        result: dict[str, Any] = json.loads(answer)
        if failure := result.get("failure"):
            raise WorkFailedError(failure)
        return result

    def close(self) -> None:
        """Wait until the process ends, or end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@contextmanager
def controller_driver(address: str, log: Path) -> Iterator[ControllerDriver]:
    """Run a driver for the controller at this address; it ends with the block."""
    command = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", driver_class_path()]
    with log.open("w") as errors:
        process = subprocess.Popen(
            tied([*command, MAIN_CLASS, address]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    driver = ControllerDriver(process)
    try:
        yield driver
    finally:
        driver.close()
