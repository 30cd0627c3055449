"""Load by segstore's own client, of two versions at once, and its judgement.

Owns: ``OwnLoad``: writers and followers of one stream, each in a process of its own by
``vortex.workers``, and their ledgers.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from compat_harness.checker import check
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings

SCOPE, STREAM = "own", "events"
SEGMENTS = 3
PROGRESS_SECONDS_MAX = scale(120.0)
END_SECONDS_MAX = scale(300.0)


@dataclass(frozen=True, slots=True)
class Program:
    """An interpreter, and the folder of the sources whose ``vortex.workers`` it runs."""

    python: Path
    tree: Path


class OwnLoad:
    """A context manager: while it lasts, each of the ``programs`` writes and reads the stream."""

    def __init__(
        self,
        controller: str,
        directory: Path,
        programs: Mapping[str, Program],
        environment: Mapping[str, str],
    ) -> None:
        self._controller, self._directory = controller, directory
        self._programs, self._environment = programs, environment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> OwnLoad:
        self._directory.mkdir()
        with ControllerClient(self._controller) as client:
            client.create_scope(SCOPE)
            settings = StreamSettings(Scaling(segment_count_min=SEGMENTS))
            client.create_stream(SCOPE, STREAM, settings)
        try:
            for name, program in self._programs.items():
                for verb in ("read", "write"):
                    self._start(verb, name, program)
            self.wait_for_progress()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def wait_for_progress(self) -> None:
        """Wait until each writer has more acknowledgements than now."""
        before = {name: self._acked(name) for name in self._programs}
        deadline = time.monotonic() + PROGRESS_SECONDS_MAX
        while any(self._acked(name) <= count for name, count in before.items()):
            for worker, process in self._processes.items():
                assert process.poll() is None, f"{worker} ended\n{self._output(worker)}"
            assert time.monotonic() < deadline, f"acknowledged so far: {before}"
            time.sleep(0.05)

    def finish(self) -> None:
        """Let the writers end and the followers read the sealed stream to its end; judge both."""
        (self._directory / "stop").touch()
        self._wait_for("write")
        with ControllerClient(self._controller) as client:
            client.seal_stream(SCOPE, STREAM)
        self._wait_for("read")
        for reader in self._programs:
            with (
                (self._directory / f"read-{reader}.log").open() as read,
                (self._directory / "writes.log").open("w+") as written,
            ):
                for writer in self._programs:
                    written.write((self._directory / f"write-{writer}.log").read_text())
                written.seek(0)
                report = check(written, read)
            print(f"segstore's own reader of {reader}: {report}")
            report.check_promise(f"read by {reader}")
            assert report.acked_count > 0
            assert report.rewind_count == 0

    def _start(self, verb: str, name: str, program: Program) -> None:
        worker = f"{verb}-{name}"
        words = [self._controller, SCOPE, STREAM, str(self._directory), worker, "1"]
        with (self._directory / f"{worker}.output").open("wb") as output:
            self._processes[worker] = subprocess.Popen(
                tied([str(program.python), "-m", "vortex.workers", verb, *words]),
                cwd=program.tree / "compat-tests",
                env={**self._environment, "PYTHONPATH": str(program.tree)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _acked(self, name: str) -> int:
        try:
            text = (self._directory / f"write-{name}.acked").read_text()
        except FileNotFoundError:
            return 0
        # The writer may be writing it now.
        return int(text) if text else 0

    def _wait_for(self, verb: str) -> None:
        for name in self._programs:
            worker = f"{verb}-{name}"
            code = self._processes[worker].wait(END_SECONDS_MAX)
            assert code == 0, f"{worker} ended with {code}\n{self._output(worker)}"

    def _output(self, worker: str) -> str:
        return (self._directory / f"{worker}.output").read_text(errors="replace")[-3000:]

    def _end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
