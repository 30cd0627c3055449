"""One seed: a cluster among failures, writers that go on, and what must hold when it is calm.

Owns: ``simulate``, which returns what happened or raises ``FailedSeedError``.

Beside what ``checks`` sees at every moment:
1. Writers find each record once and in order, and all that was acknowledged, wherever they go, and
   at the end in stores that have just been started and have nothing in memory.
2. When the failures end, every container is served in bounded time by the store that the map names,
   and by no other; every store that lives is in the map; writers go on.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import trio
from simulation.logs import logs_kept
from simulation.scheduler import Trace, run_seeded

from cluster.bookies import SimulatedBookie
from cluster.checks import (
    Checks,
    ViolationError,
    WatchedChunks,
    WatchedLogs,
    WatchedSegments,
    WatchedToken,
)
from cluster.links import Weather, Wires
from cluster.members import (
    CLUSTER,
    LEDGERS_ROOT,
    SESSION_SECONDS,
    STORE_PORT,
    ZOOKEEPER,
    ControllerPlace,
    StorePlace,
    World,
)
from cluster.processes import stoppable_processes
from cluster.zookeeper import SimulatedZooKeeper
from pravega_cluster.nodes import find_paths
from pravega_wire.names import container_of
from segstore.errors import StorageError
from segstore.process import cluster_assembly, container_opening
from segstore.testing.roving_writer import RovingWriter
from segstore.tiers.bookkeeper.data_log import WIDEN_SECONDS
from zookeeper_client.api import ensure_path

KIB = 1024
RUN_SECONDS_MAX = 400.0
STEPS_MAX = 3_000_000
TROUBLED_SECONDS = (15.0, 35.0)
SETTLE_SECONDS_MAX = SESSION_SECONDS + 40.0
"""Everything is served again by then."""
GO_ON_SECONDS_MAX = 25.0
GO_ON_RECORDS = 30
WIDE_SECONDS_MAX = WIDEN_SECONDS + 10.0
CHECK_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.25
START_AGAIN_SECONDS = 0.5
"""A process that could not begin is started again after that."""
DEFECTS = frozenset({"connection failed"})


class FailedSeedError(Exception):
    """The failure of a seed. The message tells all."""


@dataclass
class Report:
    """The events of one run."""

    seed: int
    trace_hash: int
    step_count: int
    seconds: float
    settle_seconds: float
    """The longest time until everything was served again."""
    counts: Counter[str]
    lines: list[str]


class Simulation:
    """The tasks of one run."""

    def __init__(self, seed: int, replicas: tuple[int, int, int] | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self._replicas = replicas
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.violation: BaseException | None = None
        self.seconds = self.settle_seconds = 0.0
        self._scope: trio.CancelScope | None = None
        self._places: list[StorePlace | ControllerPlace] = []

    def note(self, what: str) -> None:
        """Tell what happened."""
        self.trace(what)

    def on_step(self) -> None:
        """Check the number of steps; called before every step of every task."""
        if self.trace.step_count > STEPS_MAX:
            self.violated(ViolationError(f"no end after {STEPS_MAX} steps"))

    def violated(self, error: BaseException) -> None:
        """End the run; the first error is the one that counts."""
        if self.violation is None:
            self.violation = error
            self.trace(f"violation: {error!r}")
        if self._scope is not None:
            self._scope.cancel()

    async def main(self) -> None:
        """Do the whole run."""
        with trio.CancelScope() as self._scope, stoppable_processes():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                try:
                    await self._run(nursery)
                except Exception as error:
                    self.violated(_first(error))
                finally:
                    nursery.cancel_scope.cancel()
                    self._resume_all()
        self.seconds = trio.current_time()

    def _resume_all(self) -> None:
        """Resume the processes that are stopped, because they cannot end otherwise."""
        for place in self._places:
            if place.process is not None and place.process.is_stopped:
                place.process.resume()

    async def _watch(self) -> None:
        await trio.sleep(RUN_SECONDS_MAX)
        self.violated(ViolationError("the run does not end"))

    # ---- What there is ---------------------------------------------------------------------------

    async def _run(self, nursery: trio.Nursery) -> None:
        random = self.random
        self._nursery = nursery
        weather = Weather(random)
        wires = Wires(weather, self.counts)
        zookeeper = self._zookeeper = SimulatedZooKeeper(nursery, random)
        self._stores: list[StorePlace] = []
        self._controllers: list[ControllerPlace] = []
        drawn = random.choice([(3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2)])
        replicas = self._replicas or drawn
        world = self._world = World(
            random=random,
            weather=weather,
            wires=wires,
            zookeeper=zookeeper,
            tier_two=WatchedChunks(),
            container_count=random.randint(2, 5),
            replicas=replicas,
            ledger_bytes_max=random.choice([2, 10, 1000]) * KIB,
            held_bytes_max=random.choice([8, 64, 1024]) * KIB,
            counts=self.counts,
            note=self.note,
            clocks=Random(f"wall clocks of {self.seed}"),
        )
        await self._lay_out(zookeeper)
        self._bookies = [
            SimulatedBookie(
                f"bookie-{number}",
                zookeeper.tree,
                LEDGERS_ROOT,
                wires,
                nursery,
                random,
                self.counts,
            )
            for number in range(replicas[0] + random.randrange(2))
        ]
        checks = self._checks = Checks(
            find_paths(CLUSTER),
            LEDGERS_ROOT,
            zookeeper,
            self._bookies,
            world.container_count,
            self.violated,
            self.counts,
            self.note,
        )
        zookeeper.on_write = checks.note_write
        world.tier_two.note_deleted = checks.note_deleted
        nursery.start_soon(zookeeper.run)
        for bookie in self._bookies:
            await bookie.start()
            nursery.start_soon(bookie.collect)
        self._stores = [StorePlace(f"store-{number}", world) for number in range(4)]
        self._controllers = [ControllerPlace(f"controller-{number}", world) for number in range(2)]
        self._places = [*self._stores, *self._controllers]
        for place in [*self._stores[: random.randint(1, 3)], *self._controllers]:
            self._start(place)
        garbage_seconds = random.choice([0.05, 1.0, 5.0])
        watched = partial(WatchedSegments, checks, garbage_seconds)
        with (
            patch.object(cluster_assembly, "BookKeeperLogFactory", partial(WatchedLogs, checks)),
            patch.object(container_opening, "ChunkedSegmentStorage", watched),
            patch.object(container_opening, "OwnerToken", partial(WatchedToken, checks)),
        ):
            await self._live()

    async def _lay_out(self, zookeeper: SimulatedZooKeeper) -> None:
        session = zookeeper.tree.open_session()
        await ensure_path(session, f"{LEDGERS_ROOT}/available/readonly")
        layout = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        await session.create(f"{LEDGERS_ROOT}/LAYOUT", layout)

    def _start(self, place: StorePlace | ControllerPlace) -> None:
        if place.starts_again:
            return
        self.note(f"start {place.name}")
        self._nursery.start_soon(self._live_at, place)

    async def _live_at(self, place: StorePlace | ControllerPlace) -> None:
        """Run a process, and another one when it could not begin since tier 2 failed."""
        while True:
            try:
                await place.live()
                break
            except Exception as error:
                if place.process.is_dead:
                    break
                first = _first(error)
                if not (place.has_not_begun and isinstance(first, StorageError)):
                    self.violated(first)
                    break
            self.counts["start refused by tier 2"] += 1
            place.starts_again = True
            await trio.sleep(START_AGAIN_SECONDS)
            place.starts_again = False
        self.note(f"end of {place.name}")

    # ---- What happens ----------------------------------------------------------------------------

    async def _live(self) -> None:
        random = self.random
        writers = [self._writer(f"stream{number}") for number in range(random.randint(1, 3))]
        weather = self._world.weather
        weather.is_calm = True
        with trio.fail_after(SETTLE_SECONDS_MAX):
            for writer in writers:
                await writer.create()
        weather.is_calm = False
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(writer.run)
            nursery.start_soon(self._make_and_delete)
            with trio.move_on_after(random.uniform(*TROUBLED_SECONDS)):
                await self._break_things()
            await self._calm_down()
            await self._wait_settled()
            await self._wait_going_on(writers)
            await self._wait_wide(writers)
            nursery.cancel_scope.cancel()
        self.note("all stores begin anew")
        for place in self._stores:
            if place.is_up:
                place.process.kill()
                await place.process.ended.wait()
        for place in self._stores[: random.randint(1, 4)]:
            self._start(place)
        await self._wait_settled()
        for writer in writers:
            with trio.fail_after(CHECK_SECONDS_MAX):
                self.counts["record"] += await writer.check()
                self.counts["record acknowledged"] += writer.acknowledged

    def _writer(self, stream: str) -> RovingWriter:
        return RovingWriter(
            f"scope/{stream}/0.#epoch.0",
            [(place.name, STORE_PORT) for place in self._stores],
            writer_id=stream.encode().rjust(16),
            open_stream=partial(self._world.wires.open_stream, "clients"),
            batch=self.random.choice([1, 4]),
            batch_seconds=self.random.choice([0.05, 0.3]),
        )

    async def _make_and_delete(self) -> None:
        """Write short streams and delete them, so that chunks become garbage."""
        random = self.random
        for number in itertools.count():
            writer = self._writer(f"short{number}")
            await writer.create()
            with trio.move_on_after(random.random() * 3):
                await writer.run()
            await trio.sleep(random.random() * 3)
            await writer.delete()

    async def _break_things(self) -> None:
        random = self.random
        actions: list[Callable[[], str]] = [
            self._kill_store,
            self._start_store,
            self._start_store,
            self._stop_place,
            self._stop_place,
            self._leave,
            self._kill_controller,
            self._start_controller,
            self._start_controller,
            self._cut_from_zookeeper,
            self._cut_from_zookeeper,
            self._cut_from_bookie,
            self._cut_from_all,
            self._reset_zookeeper,
            self._reset_bookie,
            self._end_session,
            self._restart_zookeeper,
            self._crash_bookie,
            self._start_bookie,
            self._start_bookie,
            self._stop_bookie,
        ]
        pause = random.choice([0.5, 1.5, 3.0])
        while True:
            await trio.sleep(random.expovariate(1 / pause))
            what = random.choice(actions)()
            if what:
                self.counts[f"fault: {what.partition(':')[0]}"] += 1
                self.note(what)

    def _up(self, places: list[Any]) -> list[Any]:
        return [place for place in places if place.is_up]

    def _seconds(self) -> float:
        return self.random.choice([0.3, 1.0, SESSION_SECONDS, 3 * SESSION_SECONDS]) * (
            0.5 + self.random.random()
        )

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            act()

        self._nursery.start_soon(wait)

    def _kill_store(self) -> str:
        if not (up := self._up(self._stores)):
            return ""
        place = self.random.choice(up)
        place.process.kill()
        return f"store killed: {place.name}"

    def _start_store(self) -> str:
        down = [place for place in self._stores if not place.is_up]
        if not down:
            return ""
        place = self.random.choice(down)
        self._start(place)
        return f"store started: {place.name}"

    def _stop_place(self) -> str:
        if not (up := self._up(self._places)):
            return ""
        place, seconds = self.random.choice(up), self._seconds()
        place.process.stop()
        self._later(seconds, place.process.resume)
        return f"process stopped: {place.name} for {seconds:.1f} s"

    def _leave(self) -> str:
        up = [place for place in self._up(self._stores) if not place.is_leaving]
        if len(up) < 2 or self.random.random() < 0.5:
            return ""
        place = self.random.choice(up)
        place.shutdown.set()
        return f"store leaves: {place.name}"

    def _kill_controller(self) -> str:
        if not (up := self._up(self._controllers)):
            return ""
        place = self.random.choice(up)
        place.process.kill()
        return f"controller killed: {place.name}"

    def _start_controller(self) -> str:
        down = [place for place in self._controllers if not place.is_up]
        if not down:
            return ""
        self._start(down[0])
        return f"controller started: {down[0].name}"

    def _cut(self, name: str, other: str) -> None:
        self._world.wires.link(name, other).cut(self._seconds())

    def _cut_from_zookeeper(self) -> str:
        place = self.random.choice(self._places)
        self._cut(place.name, ZOOKEEPER)
        return f"cut from ZooKeeper: {place.name}"

    def _cut_from_bookie(self) -> str:
        place, bookie = self.random.choice(self._stores), self.random.choice(self._bookies)
        self._cut(place.name, bookie.host)
        return f"cut from a bookie: {place.name}, {bookie.host}"

    def _cut_from_all(self) -> str:
        place, seconds = self.random.choice(self._stores), self._seconds()
        keeps_clients = self.random.random() < 0.5
        for other in [ZOOKEEPER, *(each.host for each in self._bookies)]:
            self._world.wires.link(place.name, other).cut(seconds)
        if not keeps_clients:
            self._world.wires.link(place.name, "clients").cut(seconds)
        return f"cut off: {place.name} for {seconds:.1f} s"

    def _reset_zookeeper(self) -> str:
        sessions = [each for each in self._zookeeper.sessions.values() if each.connection]
        if not sessions:
            return ""
        session = self.random.choice(sessions)
        session.connection.break_off()
        return f"ZooKeeper's connection broken: {session.owner}"

    def _reset_bookie(self) -> str:
        place, bookie = self.random.choice(self._stores), self.random.choice(self._bookies)
        self._world.wires.reset(place.name, bookie.host)
        return f"bookie's connection broken: {place.name}, {bookie.host}"

    def _end_session(self) -> str:
        if not self._zookeeper.sessions or not self._zookeeper.is_up:
            return ""
        session = self.random.choice(list(self._zookeeper.sessions.values()))
        self._zookeeper.end(session)
        return f"session ended: {session.owner}"

    def _restart_zookeeper(self) -> str:
        if not self._zookeeper.is_up or self.random.random() < 0.5:
            return ""
        seconds = self._seconds()
        self._zookeeper.go_down()
        self._later(seconds, self._zookeeper.come_up)
        return f"ZooKeeper down: for {seconds:.1f} s"

    def _crash_bookie(self) -> str:
        up = [bookie for bookie in self._bookies if bookie.is_up]
        if not up:
            return ""
        bookie = self.random.choice(up)
        bookie.crash(SESSION_SECONDS * self.random.random())
        return f"bookie crashed: {bookie.host}"

    def _start_bookie(self) -> str:
        down = [bookie for bookie in self._bookies if not bookie.is_up]
        if not down:
            return ""
        bookie = self.random.choice(down)
        self._nursery.start_soon(bookie.start)
        return f"bookie started: {bookie.host}"

    def _stop_bookie(self) -> str:
        up = [bookie for bookie in self._bookies if bookie.is_up]
        if not up:
            return ""
        bookie, seconds = self.random.choice(up), self._seconds()
        bookie.stop()
        self._later(seconds, bookie.resume)
        return f"bookie stopped: {bookie.host} for {seconds:.1f} s"

    # ---- When it is calm -------------------------------------------------------------------------

    async def _calm_down(self) -> None:
        """End all failures: what is stopped goes on, and of everything there is enough."""
        self.note("calm")
        self._world.weather.is_calm = True
        self._world.wires.mend()
        if not self._zookeeper.is_up:
            self._zookeeper.come_up()
        for bookie in self._bookies:
            bookie.resume()
            if not bookie.is_up:
                self._nursery.start_soon(bookie.start)
        self._resume_all()
        await trio.sleep(LOOK_SECONDS)
        for place in self._controllers:
            if not place.is_alive:
                self._start(place)
        if not any(place.is_alive and not place.is_leaving for place in self._stores):
            down = [place for place in self._stores if not place.is_up]
            while not down:
                await trio.sleep(LOOK_SECONDS)
                down = [place for place in self._stores if not place.is_up]
            self._start(down[0])

    async def _wait_settled(self) -> None:
        began = trio.current_time()
        reason = "nobody has looked"
        with trio.move_on_after(SETTLE_SECONDS_MAX):
            while reason:
                await trio.sleep(LOOK_SECONDS)
                reason = self._unsettled()
        seconds = trio.current_time() - began
        if reason:
            raise ViolationError(f"{seconds:.0f} s after the last failure {reason}")
        self.note(f"all is served after {seconds:.1f} s")
        self.settle_seconds = max(self.settle_seconds, seconds)

    def _unsettled(self) -> str:
        """Return what is not yet in its final state; empty if everything is."""
        alive = {place.host for place in self._stores if place.is_alive and not place.is_leaving}
        if left := [place.name for place in self._stores if place.is_up and place.is_leaving]:
            return f"{left} have not left"
        hosts = self._zookeeper.tree.find(find_paths(CLUSTER).hosts).children
        if {host.node_name for host in alive} != set(hosts):
            return f"{sorted(hosts)} are registered, {sorted(alive)} live"
        if alive != set(self._checks.map):
            return f"{sorted(self._checks.map)} are in the map, {sorted(alive)} live"
        for place in self._stores:
            if place.registry is None:
                continue
            registry, wanted = place.registry, self._checks.map.get(place.host, frozenset())
            if registry.hosted_numbers() != wanted:
                return f"{place.name} hosts {registry.hosted_numbers()}, not {wanted}"
            # One that was released, and is wanted back, stops before it starts again.
            serving = {n for n in registry.numbers() if registry.hosted(n).is_online}
            if waiting := wanted - serving:
                return f"{place.name} does not serve {waiting}: {registry.statuses()}"
        return ""

    async def _wait_going_on(self, writers: list[RovingWriter]) -> None:
        for writer in writers:
            with trio.move_on_after(GO_ON_SECONDS_MAX) as scope:
                await writer.wait_acknowledged(GO_ON_RECORDS)
            if scope.cancelled_caught:
                raise ViolationError(f"the writer of {writer.segment} does not go on")

    async def _wait_wide(self, writers: list[RovingWriter]) -> None:
        """Wait until logs that are written are on as many bookies as they shall have."""
        world = self._world
        written = {container_of(each.segment, world.container_count) for each in writers}
        narrow: set[int] = set()
        for _ in range(int(WIDE_SECONDS_MAX)):
            narrow = written.intersection(self._checks.narrow_logs(world.replicas[0]))
            if not narrow:
                return
            self.counts["seconds with a narrow ledger when all was calm"] += 1
            await trio.sleep(1)
        raise ViolationError(f"logs {narrow} stay on too few bookies")


def _first(error: BaseException) -> BaseException:
    """Return the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _OlderLogs(logging.Handler):
    """A filter for messages of the older logging, of which none is a defect."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._trace(f"log: {record.getMessage()}")


@contextmanager
def _older_logs_kept(trace: Trace) -> Iterator[None]:
    handler, root = _OlderLogs(trace), logging.getLogger()
    handlers, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = handlers


class _Logs:
    """A collector of log messages; a defect that the processes survive is a violation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def __call__(self, entry: MutableMapping[str, Any]) -> None:
        # Sorted, as the order of what comes from a set is another one in each process.
        line = ", ".join(f"{key}={entry[key]}" for key in sorted(entry) if key != "event")
        self._simulation.trace(f"log: {entry['event']}: {line}")
        if entry["event"] in DEFECTS or entry.get("exc_info"):
            self._simulation.violated(ViolationError(f"a defect was logged: {entry}"))


def simulate(seed: int, *, replicas: tuple[int, int, int] | None = None) -> Report:
    """Run one seed, perhaps with other ``replicas`` than it draws.

    Raises ``FailedSeedError`` with everything that helps to understand it.
    """
    simulation = Simulation(seed, replicas)
    trace = simulation.trace
    with logs_kept(_Logs(simulation)), _older_logs_kept(trace):
        try:
            run_seeded(
                seed,
                simulation.main,
                trace,
                simulation.on_step,
                lambda what: simulation.violated(ViolationError(what)),
            )
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            simulation.violation = simulation.violation or _first(error)
    if simulation.violation is not None:
        tail = "\n".join(trace.lines)
        message = f"seed {seed}: {simulation.violation!r}\n{tail}"
        raise FailedSeedError(message) from simulation.violation
    return Report(
        seed,
        trace.hash,
        trace.step_count,
        simulation.seconds,
        simulation.settle_seconds,
        simulation.counts,
        list(trace.lines),
    )
