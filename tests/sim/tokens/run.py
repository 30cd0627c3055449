"""One seed: a controller that makes short-lived tokens, a store that checks them, and clients.

Owns: ``simulate``, which returns what happened or raises ``FailedSeedError``. The store's
connections with their token checks, its table segments and the controller are real; the container,
the network and the clocks are simulated. ``watch`` and ``ledger`` have the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import trio
from cluster.links import Weather, Wires
from simulation.logs import logs_kept
from simulation.scheduler import Trace, run_seeded, waiting_tasks
from wall_clocks import WallClock

from pravega_controller.clocks import SteadyClock
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment, open_controller
from pravega_controller.rules.streams import fixed_configuration
from pravega_security.delegation_tokens import TokenVerifier
from segstore.process.config import ConnectionSettings
from support.models.memory_store import MemoryStore
from tokens.clients import (
    SCOPE,
    STREAM,
    ControllerPlace,
    EventWriter,
    Reader,
    Scaler,
    Surroundings,
    TransactionWriter,
)
from tokens.connections import Pool
from tokens.intruder import Intruder
from tokens.ledger import Ledger
from tokens.rights import KeyCopy, Minted, RecordedMinter
from tokens.watch import StoreClock, ViolationError, Watch, WatchedContainer, WatchedStream

STEPS_MAX = 2_000_000
TROUBLED_SECONDS = (30.0, 120.0)
END_SECONDS_MAX = 1600.0
"""Maximum time, in seconds, in which all clients come to an end when nothing goes wrong. The pauses
of four transactions take up to 40 s for each of six events, and for the end."""
TOKEN_SECONDS = (2, 3, 5, 8, 20)
COMMIT_SECONDS = (0.03, 0.1, 0.5)
"""Maximum times, in seconds, until what the container took is durable: a run has one of them."""
CALM_COMMIT_SECONDS = 0.03
CUT_SECONDS_MAX = 8.0
KEYS_COPIED_SECONDS = 3.0
"""Maximum time, in seconds, until a new file of keys is on all machines and looked at."""
ROTATION_SHARE = 0.4
"""Part of the runs in which keys are rotated. The clocks are set in the others: a token that counts
for years by a wrong clock outlives its key, and no rotation could wait for it."""
DEFECTS = frozenset({"connection failed", "request failed", "workflow cannot be finished"})
STORE, CONTROLLER, CLIENTS, STRANGER = "store", "controller", "clients", "stranger"
PORT = 12345


class FailedSeedError(Exception):
    """A seed that found something. The message tells all."""


@dataclass
class Report:
    """What one run did."""

    seed: int
    trace_hash: int
    step_count: int
    seconds: float
    counts: Counter[str]
    lines: list[str]


class Simulation:
    """The tasks of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.violation: BaseException | None = None
        self.seconds = 0.0
        self._scope: trio.CancelScope | None = None

    def on_step(self) -> None:
        """Count the step that a task is about to make."""
        if self.trace.step_count > STEPS_MAX:
            self.violated(ViolationError(f"no end after {STEPS_MAX} steps"))

    def violated(self, error: BaseException) -> None:
        """End the run; the first error is the one that counts."""
        if self.violation is None:
            self.violation = error
            self.trace(f"violation: {error}")
        if self._scope is not None:
            self._scope.cancel()

    async def main(self) -> None:
        """Run the whole simulation."""
        with trio.CancelScope() as self._scope:
            try:
                async with trio.open_nursery() as nursery:
                    self._prepare(nursery)
                    try:
                        await self._run(nursery)
                    finally:
                        self._watch.is_over = True
                    nursery.cancel_scope.cancel()
            except Exception as error:
                self.violated(_first(error))
        self.seconds = trio.current_time()

    # ---- What there is ---------------------------------------------------------------------------

    def _prepare(self, nursery: trio.Nursery) -> None:
        random = self.random
        self._token_seconds = random.choice(TOKEN_SECONDS)
        self._commit_seconds = random.choice(COMMIT_SECONDS)
        self._minted: dict[str, Minted] = {}
        self._keys = {place: KeyCopy(b"0" * 86) for place in (STORE, CONTROLLER)}
        self._weather = Weather(random)
        self._weather.is_calm = True
        self._wires = Wires(self._weather, self.counts)
        self._clocks = self._make_clocks()
        for clock in self._clocks.values():
            clock.put_right()
        self._clock = StoreClock(partial(self._now_ms, STORE))
        self._watch = Watch(self._clock, self._minted, self.violated, self.counts)
        self._store = MemoryStore(
            ConnectionSettings(),
            container_count=1,
            tokens=TokenVerifier(self._keys[STORE], self._clock),
        )
        self._container = WatchedContainer(0, self._watch)
        self._store.containers = {0: self._container}
        self._wires.listen(STORE, partial(self._accept, nursery))
        self._place = ControllerPlace(random, self._weather.delay)
        self._ledger = Ledger(self.counts)
        pool = Pool(partial(self._wires.open_stream, CLIENTS, STORE, PORT), nursery, random)
        self._around = Surroundings(
            self._place, pool, self._ledger, random, lambda: self._now_ms(CLIENTS) / 1000
        )

    def _make_clocks(self) -> dict[str, WallClock]:
        clocks = Random(f"wall clocks of {self.seed}")
        return {
            place: WallClock(Random(clocks.getrandbits(64)), partial(self._note_clock, place))
            for place in (STORE, CONTROLLER, CLIENTS)
        }

    def _now_ms(self, place: str) -> int:
        return self._clocks[place].now_ms()

    def _note_clock(self, place: str, what: str) -> None:
        self.trace(f"{place}: {what}")
        self.counts[what.partition(" to ")[0]] += 1
        if place == STORE:
            self._clock.set_at = trio.current_time()

    def _accept(self, nursery: trio.Nursery, stream: trio.abc.HalfCloseableStream) -> None:
        nursery.start_soon(self._store.server.serve, WatchedStream(stream, self._watch))

    async def _commit(self) -> None:
        """Make durable what the container has taken, a while later."""
        while True:
            await trio.sleep(self.random.random() * self._commit_seconds)
            self._container.commit()

    async def _serve_controller(self, task_status: trio.TaskStatus[None]) -> None:
        config = ControllerConfig(
            port=PORT,
            segment_stores=((STORE, PORT),),
            container_count=1,
            reply_seconds_max=5.0,
            request_poll_seconds=0.0,
            retention_period_seconds=0.0,
            watermark_period_seconds=0.0,
        )
        now_ms = partial(self._now_ms, CONTROLLER)
        environment = Environment(
            now_ms=SteadyClock(now_ms, trio.current_time).now_ms,
            random=Random(self.random.getrandbits(64)),
            open_stream=partial(self._wires.open_stream, CONTROLLER),
            tokens=RecordedMinter(
                self._keys[CONTROLLER],
                self._token_seconds,
                lambda: now_ms() // 1000,
                self._minted,
            ),
        )
        try:
            async with open_controller(config, environment) as controller:
                self._place.controller = controller
                task_status.started()
                await trio.sleep_forever()
        finally:
            # It has failed, or all is over: connections end with it.
            self._watch.is_over = True

    # ---- What happens ----------------------------------------------------------------------------

    async def _run(self, nursery: trio.Nursery) -> None:
        place = self._place
        nursery.start_soon(self._store.registry.run)
        await self._store.registry.wait_until_tried()
        nursery.start_soon(self._commit)
        await nursery.start(self._serve_controller)
        lost_rate, place.lost_rate = place.lost_rate, 0.0
        await place.ask(lambda c: c.scopes.create(SCOPE))
        await place.ask(lambda c: c.streams.create(SCOPE, STREAM, fixed_configuration(2)))
        place.lost_rate = lost_rate
        self._weather.is_calm = False
        rotates = self.random.random() < ROTATION_SHARE
        if not rotates:
            self._clocks = self._make_clocks()
        limit = trio.CancelScope()
        async with trio.open_nursery() as strangers:
            strangers.start_soon(self._calm_down_later, limit)
            strangers.start_soon(self._break_things)
            if rotates:
                strangers.start_soon(self._rotate_keys)
            self._start_strangers(strangers)
            with limit:
                await self._work()
                strangers.cancel_scope.cancel()
            if limit.cancelled_caught:
                raise ViolationError(f"clients do not end:\n{self._stuck}")
        await self._check()

    def _start_strangers(self, nursery: trio.Nursery) -> None:
        around = self._around
        open_stream = partial(self._wires.open_stream, STRANGER, STORE, PORT)
        keys = self._keys[CONTROLLER]
        intruder = Intruder(around, open_stream, self._minted, self._clock, keys)
        nursery.start_soon(intruder.run, self._token_seconds)
        nursery.start_soon(Reader(around).run, self._token_seconds)

    async def _work(self) -> None:
        random, around = self.random, self._around
        pause = random.choice([0.2, 1.0, 2.0]) * self._token_seconds
        async with trio.open_nursery() as nursery:
            for number in range(random.randint(1, 3)):
                nursery.start_soon(EventWriter(around, number).run, random.randint(5, 15), pause)
            for _ in range(random.randint(1, 2)):
                nursery.start_soon(TransactionWriter(around).run, random.randint(1, 4), pause)
            nursery.start_soon(Scaler(around).run, random.randrange(4), pause)

    async def _calm_down_later(self, limit: trio.CancelScope) -> None:
        await trio.sleep(self.random.uniform(*TROUBLED_SECONDS))
        self.trace("calm")
        self._weather.is_calm = True
        self._wires.mend()
        self._place.lost_rate = 0.0
        self._commit_seconds = CALM_COMMIT_SECONDS
        for clock in self._clocks.values():
            clock.put_right()
        await trio.sleep(END_SECONDS_MAX)
        self._stuck = waiting_tasks()
        limit.cancel()

    async def _break_things(self) -> None:
        random = self.random
        pause = random.choice([3.0, 10.0, 60.0])
        while not self._weather.is_calm:
            await trio.sleep(random.expovariate(1 / pause))
            place = random.choice([CLIENTS, CONTROLLER])
            if random.random() < 0.5:
                self.trace(f"reset {place}")
                self._wires.reset(place, STORE)
            elif not self._weather.is_calm:
                self.trace(f"cut {place}")
                self._wires.link(place, STORE).cut(random.random() * CUT_SECONDS_MAX)

    async def _rotate_keys(self) -> None:
        """Replace the keys now and then, as an operator does: first the next key is everywhere, and
        the former one stays until no token that it has signed counts any more."""
        current, former = b"0" * 86, b""
        for number in range(1, 10):
            await trio.sleep(self._token_seconds + self.random.random() * 60)
            new = b"%d" % number * 86
            for keys in ((current, former, new), (new, current)):
                for place in self._keys.values():
                    place.replace(*filter(None, keys))
                await trio.sleep(KEYS_COPIED_SECONDS)
            self.counts["rotation of keys"] += 1
            current, former = new, current

    async def _check(self) -> None:
        """Read the whole stream, with a token, and compare it with what clients were told."""
        self.trace("check")
        with trio.fail_after(END_SECONDS_MAX):
            place, reader = self._place, Reader(self._around)
            await place.ask(lambda c: c.streams.seal(SCOPE, STREAM))
            head = await place.ask(lambda c: c.streams.head(SCOPE, STREAM))
            found = await place.ask(lambda c: c.streams.segments_between(SCOPE, STREAM, head, {}))
            identifiers = sorted(segment.segment_id for segment in found)
            self._ledger.check([await reader.read(each) for each in identifiers])
        self.counts["token"] += len(self._minted)


def _first(error: BaseException) -> BaseException:
    """Return the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Logs:
    """Takes log lines into the trace; a defect that the processes survive is a violation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def __call__(self, entry: MutableMapping[str, Any]) -> None:
        line = ", ".join(f"{key}={entry[key]}" for key in sorted(entry) if key != "event")
        self._simulation.trace(f"log: {entry['event']}: {line}")
        if entry["event"] in DEFECTS or entry.get("exc_info"):
            self._simulation.violated(ViolationError(f"a defect was logged: {entry}"))


def simulate(seed: int) -> Report:
    """Run one seed; raises ``FailedSeedError`` with everything that helps to understand it."""
    simulation = Simulation(seed)
    trace = simulation.trace
    with logs_kept(_Logs(simulation)):
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
        simulation.counts,
        list(trace.lines),
    )
