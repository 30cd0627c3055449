"""Running rows: servers take turns, and every run of a row leaves an outcome.

1. One server runs at a time, in an empty directory of its own, which is removed after it.
2. Within a round each server is started once for all shared rows, warmed up, and asked row by row.
   Who goes first alternates with the rounds. Rows with stores of their own run once, at the end.
3. What goes wrong in a row is its outcome, not an error; the rows after it are still run.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from foreign_servers.peer import Peer, PeerFailedError, running

from benchmarks.comparison import Outcome
from benchmarks.controller.driver import WorkFailedError
from benchmarks.controller.rows import BY_NAME
from benchmarks.controller.sizes import Size
from benchmarks.controller.works import Numbers, Session, session
from benchmarks.finished_parts import FinishedParts
from benchmarks.load import LoadFailedError
from benchmarks.machine import busy_seconds
from benchmarks.measured import OURS, Measured

FAILURES = (WorkFailedError, PeerFailedError, LoadFailedError, OSError)


def run(
    names: Sequence[str],
    size: Size,
    *,
    servers: Mapping[str, Peer],
    directory: Path,
    finished: FinishedParts,
) -> Measured[Size]:
    """Run these rows, but for those of a round that are ``finished``.

    ``servers`` holds ours and the peers of the shared rows, by their keys.
    """
    began = time.monotonic()
    runner = _Runner(size, directory, began)
    shared = [name for name in names if BY_NAME[name].shared is not None]
    outcomes: dict[tuple[str, str], list[Outcome]] = {}

    def measure_round(index: int) -> Iterator[tuple[str, str, Outcome]]:
        for key in servers if index % 2 == 0 else reversed(list(servers)):
            for name, outcome in runner.run_shared(index, key, servers[key], shared):
                yield name, key, outcome

    def measure_own(name: str) -> list[tuple[str, str, Outcome]]:
        own = BY_NAME[name].own
        return [] if own is None else [(name, OURS, runner.run_own(name, own))]

    parts: dict[str, Callable[[], Iterable[tuple[str, str, Outcome]]]] = {
        f"round {index + 1}": partial(measure_round, index)
        for index in range(size.rounds if shared else 0)
    }
    if OURS in servers:
        parts |= {name: partial(measure_own, name) for name in names}
    for part, measure in parts.items():
        for name, key, outcome in finished.outcomes(part, measure):
            outcomes.setdefault((name, key), []).append(outcome)
    rows = {name: BY_NAME[name] for name in names}
    return Measured(rows, size, servers, outcomes, time.monotonic() - began)


class _Runner:
    """Runs rows and tells of their outcomes."""

    def __init__(self, size: Size, directory: Path, began: float) -> None:
        self._size = size
        self._directory = directory
        self._began = began

    def run_shared(
        self, index: int, key: str, peer: Peer, names: Sequence[str]
    ) -> Iterator[tuple[str, Outcome]]:
        """Run all shared rows on one server, freshly started; yield their outcomes."""
        place = self._directory / f"{key}-{index}"
        place.mkdir(parents=True)
        left = list(names)
        try:
            peer.prepare()
            with (
                running(peer, place / "server") as server,
                session(place, server, self._size) as asked,
            ):
                self._tell(f"round {index + 1}: {peer.name} is warmed up")
                asked.warm()
                while left:
                    self._tell(f"round {index + 1}: {left[0]} {peer.name}")
                    outcome = self._told(_shared_outcome(left[0], asked))
                    yield left.pop(0), outcome
        except FAILURES as error:
            failed = self._told(Outcome({}, failure=str(error)))
            yield from ((name, failed) for name in left)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def run_own(self, name: str, own: Callable[[Path, Size], Numbers]) -> Outcome:
        """Run a row that starts its servers itself; return its outcome."""
        self._tell(name)
        place = self._directory / name
        place.mkdir(parents=True)
        try:
            return self._told(Outcome(own(place, self._size)))
        except FAILURES as error:
            return self._told(Outcome({}, failure=str(error)))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _told(self, outcome: Outcome) -> Outcome:
        """Print an outcome and return it."""
        shown = {each.name: value for each, value in outcome.numbers.items()}
        self._tell(f"  {outcome.failure or shown}")
        return outcome

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:5.0f} s  {what}", file=sys.stderr, flush=True)


def _shared_outcome(name: str, asked: Session) -> Outcome:
    """Run one row on a running server."""
    measure = BY_NAME[name].shared
    assert measure is not None
    began, busy, own = time.monotonic(), busy_seconds(), _own_cpu(asked)
    try:
        numbers = measure(asked)
    except FAILURES as error:
        return Outcome({}, failure=str(error))
    others = busy_seconds() - busy - (_own_cpu(asked) - own)
    elapsed = time.monotonic() - began
    share = max(0.0, others) / (elapsed * (os.cpu_count() or 1))
    return replace(Outcome(numbers), other_cpu_share=share)


def _own_cpu(asked: Session) -> float:
    """Return the CPU seconds of the server and of the driver."""
    parts = (asked.server.processes, asked.driver.processes)
    return sum(part.usage().cpu_seconds for part in parts)
