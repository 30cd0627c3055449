"""One run: a store or a cluster, its load, faults one after the other, and the verdict.

Owns: the order of things, how long progress may take, and what is reported.

A run passes if after each fault every writer gets acknowledgements again within
``PROGRESS_SECONDS_MAX``, no worker ends by itself, and the checker finds every acknowledged event
once, in order and intact, both with the readers that followed all the time and in a read of
everything at the end.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from compat_harness.checker import BrokenPromiseError, check
from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient
from segstore_client.controller.scaling import plan_merge, plan_split
from segstore_client.controller.stream_settings import Scaling, StreamSettings
from segstore_client.errors import PravegaError, TimedOutError
from vortex.faults import open_store
from vortex.subject import OpenSubject, Subject

SCOPE = "vortex"
STREAMS = {"steady": 4, "scaled": 1}
"""Each stream and the number of segments it begins with, which is also its minimum."""
WRITERS_PER_STREAM = 2
SCALES_SHARE = 0.5
SEGMENTS_MAX = 12
CALM_SECONDS = (0.2, 2.0)
PROGRESS_SECONDS_MAX = scale(90.0)
END_SECONDS_MAX = scale(600.0)
ACKED_BEFORE_FIRST_FAULT = 500
HARNESS = Path(__file__).resolve().parent.parent


class VortexError(Exception):
    """The store did not survive; the message says what was observed."""


@dataclass(slots=True)
class Outcome:
    """The facts about a run that passed."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    scales: int = 0
    slowest_progress: tuple[float, str] = (0.0, "")
    reports: list[str] = field(default_factory=list)
    rss_mib_max: float = 0.0
    descriptors_max: int = 0
    threads_max: int = 0

    def lines(self) -> Iterator[str]:
        """Yield the outcome as lines of text."""
        yield f"seed {self.seed}: {sum(self.faults.values())} faults in {self.seconds:.0f} s"
        for name, count in sorted(self.faults.items()):
            yield f"{count:6} x {name}"
        for name, reason in sorted(self.left_out.items()):
            yield f"   left out: {name} ({reason})"
        yield f"{self.scales} scales of a stream"
        seconds, fault = self.slowest_progress
        yield f"longest wait for acknowledgements after a fault: {seconds:.1f} s ({fault})"
        yield (
            f"a segment store at most: {self.rss_mib_max:.0f} MiB,"
            f" {self.descriptors_max} descriptors, {self.threads_max} threads"
        )
        yield from self.reports


class Worker:
    """A writer or reader: a process with a ledger."""

    def __init__(
        self,
        verb: str,
        name: str,
        stream: str,
        directory: Path,
        *,
        controller: str,
        variables: Mapping[str, str],
        seed: int,
    ) -> None:
        self.name = name
        self.stream = stream
        self.ledger = directory / f"{name}.log"
        self._count_path = directory / f"{name}.acked"
        self._output_path = directory / f"{name}.output"
        command = [sys.executable, "-m", "vortex.workers", verb, controller, SCOPE, stream]
        with self._output_path.open("wb") as output:
            self.process = subprocess.Popen(
                tied([*command, str(directory), name, str(seed)]),
                cwd=HARNESS,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
            )

    def acked(self) -> int:
        """Return the number of events acknowledged so far."""
        try:
            return int(self._count_path.read_text() or 0)
        except FileNotFoundError:
            return 0

    def fail_if_ended(self) -> None:
        if self.process.poll() is not None:
            raise VortexError(f"{self.name} ended by itself:\n{self._output_path.read_text()}")

    def finish(self, seconds_max: float) -> None:
        """Wait for its end, which must be a good one."""
        try:
            code = self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise VortexError(f"{self.name} does not end within {seconds_max:.0f} s") from None
        if code != 0:
            raise VortexError(f"{self.name} failed:\n{self._output_path.read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Run:
    """A run in a directory. ``say`` gets a line for each thing that happens."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        say: Callable[[str], None] = lambda line: None,
        open_subject: OpenSubject = open_store,
    ) -> None:
        self._directory = directory
        self._open_subject = open_subject
        self._rng = random.Random(seed)
        self._say = say
        self.outcome = Outcome(seed)

    def execute(self, *, seconds: float, faults: Sequence[str] | None = None) -> Outcome:
        """Break things for this many seconds, or each of ``faults`` once, and judge.

        Raises VortexError.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            subject = stack.enter_context(self._open_subject(self._directory, self._rng))
            self.outcome.left_out.update(subject.left_out)
            client = stack.enter_context(subject.open_client())
            self._create_streams(client)
            workers = stack.enter_context(self._started_workers(subject))
            for name in self._choose_faults(subject, began + seconds, faults):
                self._suffer(name, subject, client, workers)
            self._finish(client, workers)
            self._judge(subject)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # ---- Parts -----------------------------------------------------------------------------------

    def _create_streams(self, client: ControllerClient) -> None:
        client.create_scope(SCOPE)
        for stream, count in STREAMS.items():
            settings = StreamSettings(scaling=Scaling(segment_count_min=count))
            client.create_stream(SCOPE, stream, settings)

    @contextmanager
    def _started_workers(self, subject: Subject) -> Iterator[list[Worker]]:
        workers: list[Worker] = []
        try:
            for stream in STREAMS:
                names = [("write", f"{stream}-writer-{n}") for n in range(WRITERS_PER_STREAM)]
                for verb, name in [*names, ("read", f"{stream}-follower")]:
                    workers.append(self._worker(verb, name, stream, subject))
            self._wait_for_progress(workers, "the start", events=ACKED_BEFORE_FIRST_FAULT)
            yield workers
        finally:
            for worker in workers:
                worker.kill()

    def _worker(self, verb: str, name: str, stream: str, subject: Subject) -> Worker:
        seed = self._rng.getrandbits(32)
        address = subject.controllers[seed % len(subject.controllers)]
        return Worker(
            verb,
            name,
            stream,
            self._directory,
            controller=address,
            variables=subject.variables,
            seed=seed,
        )

    def _choose_faults(
        self, subject: Subject, deadline: float, faults: Sequence[str] | None
    ) -> Iterator[str]:
        if faults is not None:
            yield from (name for name in faults if name not in self.outcome.left_out)
            return
        names = [name for name in subject.faults if name not in self.outcome.left_out]
        weights = [subject.faults[name][1] for name in names]
        while time.monotonic() < deadline:
            yield self._rng.choices(names, weights)[0]

    def _suffer(
        self, name: str, subject: Subject, client: ControllerClient, workers: Sequence[Worker]
    ) -> None:
        """Cause one fault, and check that everything goes on."""
        time.sleep(self._rng.uniform(*CALM_SECONDS))
        self._measure(subject)
        if self._rng.random() < SCALES_SHARE:
            self._scale(client)
        began = time.monotonic()
        subject.faults[name][0]()
        harmed = time.monotonic() - began
        self.outcome.faults[name] += 1
        waited = self._wait_for_progress(workers, name)
        self.outcome.slowest_progress = max(self.outcome.slowest_progress, (waited, name))
        self._say(f"{name}: {harmed:.1f} s, acknowledgements {waited:.1f} s later")

    def _scale(self, client: ControllerClient) -> None:
        """Split a segment of the scaled stream, or merge two, without waiting for the end."""
        try:
            ranges = sorted(client.current_segments(SCOPE, "scaled").ranges, key=lambda r: r.low)
            first = self._rng.randrange(len(ranges))
            pair = [each.segment_id for each in ranges[first : first + 2]]
            merges = len(ranges) > SEGMENTS_MAX or self._rng.random() < 0.4
            if merges and len(pair) == 2:
                plan = plan_merge(ranges, pair)
            else:
                plan = plan_split(ranges, pair[0], 2)
            client.scale_stream(
                SCOPE, "scaled", sealed=plan.sealed, ranges=plan.ranges, timeout=0.0
            )
        except TimedOutError:
            # It has begun, and the next fault meets it half-way.
            self.outcome.scales += 1
        except PravegaError as error:
            self._say(f"scaling: {error}")
        else:
            self.outcome.scales += 1

    def _wait_for_progress(
        self, workers: Sequence[Worker], fault: str, *, events: int = 1
    ) -> float:
        """Wait until every writer has more acknowledged; return the seconds it took."""
        began = time.monotonic()
        writers = [worker for worker in workers if "-writer-" in worker.name]
        goals = {worker.name: worker.acked() + events for worker in writers}
        while behind := [each for each in writers if each.acked() < goals[each.name]]:
            for worker in workers:
                worker.fail_if_ended()
            if time.monotonic() - began > PROGRESS_SECONDS_MAX:
                names = ", ".join(each.name for each in behind)
                raise VortexError(
                    f"no acknowledgement for {names} within {PROGRESS_SECONDS_MAX:.0f} s after:"
                    f" {fault}"
                )
            time.sleep(0.02)
        return time.monotonic() - began

    def _measure(self, subject: Subject) -> None:
        """Measure the most memory, threads and descriptors that a segment store takes."""
        outcome = self.outcome
        with suppress(OSError, ValueError):
            for pid in subject.store_pids():
                status = Path(f"/proc/{pid}/status").read_text()
                descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
                outcome.rss_mib_max = max(outcome.rss_mib_max, int(found.get("VmRSS", 0)) / 1024)
                outcome.threads_max = max(outcome.threads_max, int(found.get("Threads", 0)))
                outcome.descriptors_max = max(outcome.descriptors_max, descriptors)

    # ---- The end ---------------------------------------------------------------------------------

    def _finish(self, client: ControllerClient, workers: Sequence[Worker]) -> None:
        """Finish: the writers end, the streams are sealed, and the followers read to the end."""
        (self._directory / "stop").touch()
        for worker in workers:
            if "-writer-" in worker.name:
                worker.finish(END_SECONDS_MAX)
        for stream in STREAMS:
            self._seal(client, stream)
        for worker in workers:
            worker.finish(END_SECONDS_MAX)

    def _seal(self, client: ControllerClient, stream: str) -> None:
        """Seal a stream, as soon as the controller that was harmed last is back."""
        deadline = time.monotonic() + PROGRESS_SECONDS_MAX
        while True:
            try:
                return client.seal_stream(SCOPE, stream)
            except RETRIED_ERRORS:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def _judge(self, subject: Subject) -> None:
        """Read everything once more, and hold all ledgers to the rules."""
        readers = [self._worker("read", f"{stream}-again", stream, subject) for stream in STREAMS]
        try:
            for reader in readers:
                reader.finish(END_SECONDS_MAX)
        finally:
            for reader in readers:
                reader.kill()
        wrong = []
        for stream in STREAMS:
            writes = [
                self._directory / f"{stream}-writer-{n}.log" for n in range(WRITERS_PER_STREAM)
            ]
            for name in (f"{stream}-follower", f"{stream}-again"):
                with (self._directory / f"{name}.log").open() as reads:
                    report = check(_lines(writes), reads)
                self.outcome.reports.append(f"{name}: {report}")
                if not report.clean:
                    wrong.append(self.outcome.reports[-1])
        if subject.report is not None:
            sentence, is_right = subject.report()
            self.outcome.reports.append(sentence)
            wrong += [] if is_right else [sentence]
        if wrong:
            raise BrokenPromiseError("\n".join(wrong))


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        with path.open() as file:
            yield from file
