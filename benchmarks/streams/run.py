"""Running a plan: servers take turns, and every run leaves an outcome.

1. One server runs at a time, in an empty directory of its own, which is removed after it. The ends
   of its logs are kept until the next run, in `LOGS`.
2. What goes wrong with a server is an outcome, not an error.
"""

import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from foreign_servers.peer import Peer, PeerFailedError, RunningPeer, running

from benchmarks.comparison import ComparedRow, Outcome, compare, limited
from benchmarks.finished_parts import FinishedParts
from benchmarks.load import LoadFailedError
from benchmarks.measured import has_failed, list_remarks
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from benchmarks.streams.drains import drain_outcome
from benchmarks.streams.rows import BY_NAME, CRASH, OURS, ROW_OF_LIMIT, START, Plan
from benchmarks.streams.runs import crash_outcome, load_outcome, start_outcome
from benchmarks.streams.servers import cached_server, secure_server

LOGS = Path(__file__).parent.parent / "results" / "logs"
LOG_BYTES_MAX = 64 * 1024
TURN_SECONDS = 50.0
"""Duration of the longest turns of one more round: a start of the durable original, and a load."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Every outcome, by row and server, one a round."""

    plan: Plan
    servers: Mapping[str, Peer]
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]]
    elapsed_seconds: float
    left_out: Sequence[str] = ()
    """Turns for which there was no time."""

    def of(self, row: str, server: str) -> Sequence[Outcome]:
        """Return the outcomes of one server on one row, one a round."""
        return self.outcomes.get((row, server), ())

    def compared(self) -> list[ComparedRow]:
        """Compare ours with every peer and every limit, row by row."""
        found = []
        for name in self.plan.rows:
            row, ours = BY_NAME[name], self.of(name, OURS)
            peers = [peer for peer in self.plan.peers_of(row) if peer in self.servers]
            if not peers:
                found += compare(name, ours=ours, peer=(), reaches={})
            for peer in peers:
                found += compare(
                    name,
                    ours=ours,
                    peer=self.of(name, peer),
                    reaches=row.reaches.get(peer, {}),
                    peer_name=peer,
                )
            for other, reaches in row.beside.items():
                if other in self.plan.rows:
                    beside = compare(
                        name,
                        ours=ours,
                        peer=self.of(other, OURS),
                        reaches=reaches,
                        peer_name=other,
                    )
                    found += [each for each in beside if each.metric.name in reaches]
            if ours:
                found += [
                    replace(each, row=_row_of_limit(name, each.metric.name))
                    for each in limited(name, ours=ours, limits=row.limits)
                ]
        return found

    def remarks(self) -> list[str]:
        """Return failures and disturbances, by row and server."""
        left_out = [f"{turn}: left out for want of time" for turn in self.left_out]
        return left_out + list_remarks(self.outcomes)

    @property
    def ours_failed(self) -> bool:
        """Return whether any run of ours failed."""
        return has_failed(self.outcomes, OURS)


def run(
    plan: Plan,
    *,
    servers: Mapping[str, Peer],
    directory: Path,
    finished: FinishedParts,
) -> Measured:
    """Run all turns of the plan. ``servers`` holds ours and each of the plan's peers.

    Rows that are ``finished`` are not run again, where each has servers of its own.
    """
    began = time.monotonic()
    shutil.rmtree(LOGS, ignore_errors=True)
    unprepared: dict[str, str] = {}
    for key, peer in servers.items():
        try:
            peer.prepare()
        except PeerFailedError as error:
            unprepared[key] = str(error)
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    left_out: list[str] = []
    last_start = (plan.minutes_max or math.inf) * 60 - TURN_SECONDS
    turns = [turn for turn in plan.turns() if turn[2] in servers]
    if not plan.fresh:
        finished = FinishedParts(None)
    number = 0
    with ExitStack() as stack:
        runner = _Runner(plan, servers, directory, stack)

        def measure(part: Sequence[tuple[int, str, str]]) -> Iterator[tuple[str, str, Outcome]]:
            for place, (index, name, server) in enumerate(part, start=number + 1):
                print(
                    f"{time.monotonic() - began:5.0f} s  {place}/{len(turns)}  round {index + 1}"
                    f"  {name} {servers[server].name}",
                    file=sys.stderr,
                )
                if server in unprepared:
                    yield name, server, Outcome(numbers={}, failure=unprepared[server])
                else:
                    yield name, server, runner.outcome(index, name, server)

        for (index, row), each in groupby(turns, key=lambda turn: turn[:2]):
            part = list(each)
            if index and time.monotonic() - began > last_start:
                left_out += [f"{row}, {server}, round {index + 1}" for *_, server in part]
            else:
                measured = finished.outcomes(f"{row} {index + 1}", partial(measure, part))
                for name, server, outcome in measured:
                    outcomes.setdefault((name, server), []).append(outcome)
            number += len(part)
    return Measured(plan, servers, outcomes, time.monotonic() - began, left_out)


def _row_of_limit(measured_in: str, metric: str) -> str:
    """Return the row of the table for a limit, and where it was measured."""
    row = ROW_OF_LIMIT.get(metric)
    return measured_in if row is None or row == measured_in else f"{row} ({measured_in})"


class _Runner:
    """Runs turns, with the servers that stay up between them where the plan wants no fresh ones."""

    def __init__(
        self, plan: Plan, servers: Mapping[str, Peer], directory: Path, stack: ExitStack
    ) -> None:
        self._plan = plan
        self._servers = servers
        self._directory = directory
        self._stack = stack
        self._kept: tuple[int, str, RunningPeer] | None = None
        self._cached: dict[tuple[str, int], Peer] = {}

    def outcome(self, index: int, name: str, server: str) -> Outcome:
        """Do one turn."""
        directory = self._directory / f"{index + 1}-{name}-{server}"
        peer = self._servers[server]
        try:
            if name in (START, CRASH):
                self._drop_kept()
                with removed(directory):
                    return self._start_or_crash(name, peer, directory)
            row = BY_NAME[name]
            if row.drain is not None:
                self._drop_kept()
                drain = self._plan.drain(row)
                peer = self._cached_server(server, drain.cache_bytes)
                heap = row.client_heap or self._plan.client_heap
                with removed(directory):
                    return drain_outcome(peer, drain, directory, client_heap=heap)
            load, heap = self._plan.load(row), row.client_heap or self._plan.client_heap
            if row.secure:
                self._drop_kept()
                peer = secure_server(server)
                peer.prepare()
            elif row.settings and server == OURS:
                self._drop_kept()
                peer = SegstoreStandalone(settings=row.settings)
            elif not self._plan.fresh:
                return load_outcome(peer, self._keep(index, server), load, client_heap=heap)
            with removed(directory), running(peer, directory) as started:
                return load_outcome(peer, started, load, client_heap=heap)
        except (PeerFailedError, LoadFailedError) as error:
            self._drop_kept()
            return Outcome(numbers={}, failure=str(error))
        # Nothing that one turn meets may cost the numbers of all others.
        except Exception as error:
            traceback.print_exc()
            self._drop_kept()
            return Outcome(numbers={}, failure=repr(error))

    def _cached_server(self, server: str, cache_bytes: int) -> Peer:
        """Return a server whose cache holds a whole backlog. Preparing it is no part of a turn."""
        if (server, cache_bytes) not in self._cached:
            peer = cached_server(server, cache_bytes)
            peer.prepare()
            self._cached[server, cache_bytes] = peer
        return self._cached[server, cache_bytes]

    def _start_or_crash(self, name: str, peer: Peer, directory: Path) -> Outcome:
        if name == START:
            return start_outcome(peer, directory=directory)
        return crash_outcome(
            directory=directory,
            unflushed_mb=self._plan.unflushed_mb,
            client_heap=self._plan.client_heap,
        )

    def _keep(self, index: int, server: str) -> RunningPeer:
        """Return the server of this round; start it when it does not run yet."""
        if self._kept is not None and self._kept[:2] == (index, server):
            return self._kept[2]
        self._drop_kept()
        directory = self._directory / f"{index + 1}-{server}"
        self._stack.enter_context(removed(directory))
        started = self._stack.enter_context(running(self._servers[server], directory))
        self._kept = (index, server, started)
        return started

    def _drop_kept(self) -> None:
        self._kept = None
        self._stack.close()


@contextmanager
def removed(directory: Path) -> Iterator[None]:
    """Remove a server's directory after the block, and keep the ends of its logs."""
    try:
        yield
    finally:
        _keep_logs(directory)
        shutil.rmtree(directory, ignore_errors=True)
        # What the last server left in the page cache is not written at the cost of the next.
        os.sync()


def _keep_logs(directory: Path) -> None:
    for log in directory.glob("*.log"):
        if text := log.read_bytes()[-LOG_BYTES_MAX:]:
            kept = LOGS / directory.name / log.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(text)
