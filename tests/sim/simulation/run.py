"""One seed: clients, the store, and everything that is checked at the end.

Owns: ``simulate``, which returns what happened or raises ``FailedSeedError``.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NoReturn

import trio

from simulation import clients
from simulation.clients import Budget, Client, EventWriter, World
from simulation.completions import completions_noted
from simulation.hostile_clients import DeafReader, HalfFrameClient, LongRequestClient
from simulation.logs import logs_kept
from simulation.model import Model, ViolationError
from simulation.plan import Plan
from simulation.scheduler import Trace, run_seeded, waiting_tasks
from simulation.space_clients import SpaceFreer, free_everything
from simulation.store import Faults, NoFaults, Store
from simulation.tables import TableClient, check_tables
from simulation.wire_clients import WireReader, WireWriter

ANSWER_SECONDS_MAX = 1000.0
"""In simulated time; tier 2 is out of service for less than this."""
END_SECONDS_MAX = 10_000.0
"""Maximum time of a run that is cancelled; a container drains in much less."""
WATCH_SECONDS = 50.0
RUN_SECONDS_MAX = 100_000.0
STEPS_MAX = 250_000
"""Maximum number of steps of a life of the store: one that has to compare much at its start takes
some ten thousand."""
LOG_LINES_MAX = 20
DEFECTS: Final = frozenset({"request failed", "connection failed"})


class FailedSeedError(Exception):
    """The failure of a seed. The message tells all."""


@dataclass(slots=True)
class Report:
    """The events of one run."""

    seed: int
    trace_hash: int
    step_count: int
    life_count: int
    opening_count: int
    """Of containers, in all lives."""
    fault_counts: Counter[str]
    """Count of the faults of each kind that the store has met."""
    seconds: float
    lines: list[str] = field(repr=False)


class Simulation:
    """The tasks of one run."""

    def __init__(self, seed: int, plan: Plan | None, planted: Faults) -> None:
        random = Random(seed)
        self.seed = seed
        self.plan = plan or Plan.of_seed(seed, random)
        self.trace = Trace()
        self.violation: BaseException | None = None
        self._random = random
        self._planted = planted
        self._scope: trio.CancelScope | None = None
        self._store: Store | None = None
        self._failed = trio.Event()
        self.seconds = 0.0

    @property
    def store(self) -> Store:
        """Return the store; it exists while the run runs."""
        assert self._store is not None
        return self._store

    def violated(self, error: BaseException) -> None:
        """End the run; the first error is the one that counts."""
        if self.violation is None:
            self.violation = error
            self.trace(f"violation: {error}")
            self._failed.set()
        if self._scope is not None:
            self._scope.cancel()

    def on_step(self) -> None:
        """Check the limits; called before every step of every task."""
        steps = self.trace.step_count - (0 if self._store is None else self._store.first_step)
        if steps > STEPS_MAX:
            if self.violation is None:
                self.violated(ViolationError(f"no end after {STEPS_MAX} steps of a life"))
            elif steps > 2 * STEPS_MAX:
                self._give_up()
        if self._store is not None:
            self._store.on_step()

    def on_long_step(self, what: str) -> None:
        """Report a violation after a step that took long."""
        self.violated(ViolationError(what))

    async def main(self) -> None:
        """Do the whole run."""
        began = trio.current_time()
        clocks = Random(f"wall clock of {self.seed}")
        self._store = Store(self.plan, self._random, self.trace, self._planted, clocks)
        for _ in range(self.plan.containers):
            self._store.add_host(Model(self.trace, self.violated))
        async with trio.open_nursery() as outer:
            outer.start_soon(self._bury)
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._guarded, self._store.run)
                    await self._work()
                    for host in self._store.hosts:
                        await check_tables(host, host.model)
                    self._store.finished.set()
                    await self._store.stopped.wait()
                    await self._store.check_everything()
                    nursery.cancel_scope.cancel()
            outer.cancel_scope.cancel()
        self.seconds = trio.current_time() - began

    async def _work(self) -> None:
        plan, random = self.plan, self._random
        budget = Budget(plan.operations)
        worlds = [World(host, host.model, plan, random, budget) for host in self.store.hosts]
        async with trio.open_nursery() as freeing:
            if plan.tier_2_bytes:
                for world in worlds:
                    freeing.start_soon(self._guarded, SpaceFreer(world, 0).run)
            async with trio.open_nursery() as nursery:
                for world in worlds:
                    for client in make_clients(world):
                        nursery.start_soon(self._guarded, client.run)
            freeing.cancel_scope.cancel()
        for world in worlds:
            world.stream.check()
            await free_everything(world)
        # What is in the log alone, such as open transactions, may be more than what is free now.
        self.store.add_space()

    async def _bury(self) -> None:
        """See to it that a run that has failed ends."""
        await self._failed.wait()
        await trio.sleep(END_SECONDS_MAX)
        self._give_up()

    def _give_up(self) -> NoReturn:
        """End the process, because not even a cancellation ends the run."""
        sys.stderr.write(f"seed {self.seed}: {self.violation}\nTasks:\n{waiting_tasks()}\n")
        sys.stderr.flush()
        os._exit(3)

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run, and note the first error: more errors follow when the run falls apart."""
        try:
            await run()
        except Exception as error:
            self.violated(error)
            raise

    async def _watch(self) -> None:
        """Watch that nothing waits for ever; if something seems to, report what waits."""
        for _ in range(int(RUN_SECONDS_MAX / WATCH_SECONDS)):
            await trio.sleep(WATCH_SECONDS)
            overdue = self.store.overdue(seconds=ANSWER_SECONDS_MAX)
            if overdue:
                break
        else:
            overdue = ["the run itself"]
        waiting = "\n".join(overdue)
        raise self.store.hosts[0].model.violated(
            f"no answer came:\n{waiting}\nTasks:\n{waiting_tasks()}"
        )


def make_clients(world: World) -> Iterator[Client]:
    """Make the clients that the plan wants."""
    plan = world.plan
    counts: list[tuple[type[Client], int]] = [
        (EventWriter, plan.writers),
        (clients.Scaler, int(plan.with_scaling)),
        (clients.TransactionClient, plan.transaction_clients),
        (clients.ConditionalWriter, plan.conditional_writers),
        (clients.AttributeClient, plan.attribute_clients),
        (clients.LifecycleClient, plan.lifecycle_clients),
        (clients.TailReader, plan.tail_readers),
        (clients.HistoricalReader, plan.historical_readers),
        (TableClient, plan.table_clients),
        (WireWriter, plan.wire_writers),
        (WireReader, plan.wire_readers),
        (HalfFrameClient, plan.half_frame_clients),
        (DeafReader, plan.deaf_readers),
        (LongRequestClient, plan.long_request_clients),
    ]
    for kind, count in counts:
        for number in range(count):
            yield kind(world, number)


class _Logs:
    """A collector of log lines; a logged defect that the server survives is a violation."""

    def __init__(self, violated: Callable[[BaseException], None]) -> None:
        self._violated = violated
        self.entries: deque[dict[str, Any]] = deque(maxlen=LOG_LINES_MAX)

    def __call__(self, entry: MutableMapping[str, Any]) -> None:
        self.entries.append(dict(entry))
        error = sys.exc_info()[1]
        if entry["event"] in DEFECTS and error is not None:
            violation = ViolationError(f"the server logged a defect: {entry}")
            violation.__cause__ = error
            self._violated(violation)


def simulate(seed: int, *, plan: Plan | None = None, planted: Faults | None = None) -> Report:
    """Run one seed; raises ``FailedSeedError`` with everything that helps to understand it."""
    simulation = Simulation(seed, plan, planted or NoFaults())
    trace = simulation.trace
    logs = _Logs(simulation.violated)
    with logs_kept(logs), completions_noted():
        try:
            run_seeded(seed, simulation.main, trace, simulation.on_step, simulation.on_long_step)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if simulation.violation is None:
                simulation.violation = error
    if simulation.violation is not None:
        tail = "\n".join([*list(trace.lines)[-60:], *map(str, list(logs.entries)[-5:])])
        raise FailedSeedError(
            f"seed {seed}: {simulation.violation!r}\n{simulation.plan}\n{tail}"
        ) from simulation.violation
    store = simulation.store
    return Report(
        seed,
        trace.hash,
        trace.step_count,
        store.life_count,
        sum(host.opening_count for host in store.hosts),
        store.fault_counts,
        simulation.seconds,
        list(trace.lines),
    )
