"""One seed: two controllers, their clients, what goes wrong, and what must hold at the end.

Owns: ``simulate``, which returns what happened or raises ``FailedSeedError``.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import trio
from simulation.logs import logs_kept
from simulation.scheduler import Trace, run_seeded
from wall_clocks import WallClock

from controllers.clients import Client, Lifecycle, Scaler, Side, TransactionWriter, Truncator
from controllers.ledger import DELETED_STREAMS, Ledger, ViolationError, WatchedStore
from controllers.network import Link, Rates, Refusals
from controllers.refused import Refused
from controllers.retained import RETENTION_PERIOD_SECONDS, RetainedStream
from controllers.rivals import Rivals
from pravega_controller.clocks import SteadyClock
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Controller, Environment, open_controller
from pravega_controller.errors import ControllerError
from pravega_controller.rules.stream_cuts import END_OFFSET, cut_at
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState
from pravega_wire import names

RUN_SECONDS_MAX = 3_000.0
STEPS_MAX = 600_000
CALM_SECONDS = 220.0
"""Longer than any lease, and than it takes until work whose caller has left is finished (two rounds
of 60 s), and the late requests of work that is given up then are found (another 60 s)."""
CUT_SECONDS = (0.5, 15.0)
RIVALRIES = (10, 30)
"""Numbers of times that clients ask for the same at once: from, to."""
REFUSALS = (1, 4)
"""Numbers of refused calls that are stopped at some step: from, to."""
RETENTION_SHARE = 0.4
"""Part of the runs in which retention truncates a stream."""
LOG_LINES_MAX = 60
DEFECTS: Final = frozenset(
    {"workflow cannot be finished", "no code finishes this kind of workflow"}
)


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
        self.random = Random(seed)
        self.seed = seed
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.ledger = Ledger(self.trace)
        self.violation: BaseException | None = None
        self.seconds = 0.0
        self._scope: trio.CancelScope | None = None
        self._sides: list[Side] = []
        clocks = Random(f"wall clocks of {seed}")
        self._retains = clocks.random() < RETENTION_SHARE
        self._rivals: Rivals | None = None
        self._clocks = {
            port: WallClock(Random(clocks.getrandbits(64)), self.note) for port in (1, 2)
        }

    def note(self, what: str) -> None:
        """Tell what went wrong, or was done."""
        self.counts[what.split(maxsplit=1)[0]] += 1
        self.trace(what)

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
        began = trio.current_time()
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await self._guarded(self._run)
                nursery.cancel_scope.cancel()
        self.seconds = trio.current_time() - began

    async def _watch(self) -> None:
        await trio.sleep(RUN_SECONDS_MAX)
        self.violated(ViolationError("the run does not end"))

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:
            self.violated(_first(error))

    async def _run(self) -> None:
        random = self.random
        store = WatchedStore(self.ledger.note_record)
        async with trio.open_nursery() as nursery:
            rates = Rates(random)
            self._sides = [
                Side(port, Link(store, nursery, random, rates, self.note)) for port in (1, 2)
            ]
            for side in self._sides:
                nursery.start_soon(self._live, side)
            Refusals(store, random, self.note)
            client = Client(self._sides, store, self.ledger, random)
            await client.ask(lambda c: c.scopes.create("s"))
            await client.ask(lambda c: c.streams.create("s", "a", fixed_configuration(2)))
            retained = RetainedStream(store)
            if self._retains:
                await client.ask(retained.create)
                nursery.start_soon(retained.write)
            async with trio.open_nursery() as faults:
                faults.start_soon(self._break_things)
                await self._work(store)
                faults.cancel_scope.cancel()
            rates.calm_down()
            for clock in self._clocks.values():
                clock.calm_down()
            for side in self._sides:
                side.link.mend()
            await trio.sleep(CALM_SECONDS)
            await self._check(client, store)
            if self._retains:
                self.note("retained stream")
                retained.check()
            nursery.cancel_scope.cancel()

    async def _work(self, store: WatchedStore) -> None:
        random = self.random

        def make(kind: type[Client]) -> Client:
            return kind(self._sides, store, self.ledger, random)

        self.ledger.is_busy = is_busy = random.random() < 0.4
        async with trio.open_nursery() as nursery:
            for _ in range(random.randint(3, 6) if is_busy else random.randint(2, 4)):
                count = random.randint(6, 15) if is_busy else random.randint(2, 5)
                nursery.start_soon(make(TransactionWriter).run, count)
            nursery.start_soon(make(Scaler).run, random.randrange(4))
            nursery.start_soon(make(Truncator).run, random.randrange(3))
            nursery.start_soon(make(Lifecycle).run, random.randrange(3))
            self._rivals = rivals = Rivals(self._sides, store, self.ledger, random)
            nursery.start_soon(rivals.run, random.randint(*RIVALRIES))
            refused = Refused(self._sides, store, self.ledger, random)
            refused.kill = self._kill
            nursery.start_soon(refused.run, random.randint(*REFUSALS))

    async def _live(self, side: Side) -> None:
        """Run a controller, and another at its place when it was killed."""
        while True:
            config = ControllerConfig(
                port=side.port,
                reply_seconds_max=5.0,
                request_poll_seconds=0.0,
                retention_period_seconds=RETENTION_PERIOD_SECONDS if self._retains else 0.0,
                watermark_period_seconds=0.0,
            )
            environment = Environment(
                now_ms=SteadyClock(self._clocks[side.port].now_ms, trio.current_time).now_ms,
                random=Random(self.random.getrandbits(64)),
                open_stream=side.link.open_stream,
            )
            with trio.CancelScope() as side.life:
                try:
                    async with open_controller(config, environment) as controller:
                        side.controller = controller
                        await trio.sleep_forever()
                except* ControllerError as group:
                    self.note(f"start of {side.port} failed: {_first(group)}")
            side.end_calls()
            await trio.sleep(self.random.random() * 5)

    async def _break_things(self) -> None:
        """Kill and cut off controllers, one or both."""
        random = self.random
        while True:
            await trio.sleep(random.random() * 20)
            side = random.choice(self._sides)
            match random.choice(["kill", "kill both", "cut", "cut and kill"]):
                case "kill":
                    self._kill(side)
                case "kill both":
                    for one in self._sides:
                        self._kill(one)
                case "cut":
                    await self._cut(side, lambda: None)
                case _:
                    await self._cut(side, partial(self._kill, side))

    def _kill(self, side: Side) -> None:
        self.note(f"kill {side.port}")
        side.link.haunt()
        side.end_calls()
        side.life.cancel()

    async def _cut(self, side: Side, then: Callable[[], None]) -> None:
        """Cut a controller off for a while; ``then`` it may be killed."""
        self.note(f"cut {side.port}")
        side.link.cut()
        await trio.sleep(self.random.uniform(*CUT_SECONDS))
        then()
        self.note(f"mend {side.port}")
        side.link.mend()

    async def _check(self, client: Client, store: WatchedStore) -> None:
        """Check the rules of the end, when no work is left."""
        ledger = self.ledger
        for identifier, told in ledger.transactions.items():
            stream = told.stream
            if stream in DELETED_STREAMS:
                continue
            for side in self._sides:
                state = await side.call(partial(_ask_state, stream, identifier))
                ledger.tell_state(identifier, state)
        assert self._rivals is not None
        self.counts["undecided"] = self._rivals.check()
        self.counts["rivals"] = sum(len(o.operations) for o in self._rivals.objects)
        ledger.check_metadata(store)
        ledger.check_streams(store)
        ledger.check_order(store)
        await self._check_segments(client, store)
        self.counts["committed"] = sum(bool(t.is_committed) for t in ledger.transactions.values())
        self.counts["aborted"] = len(ledger.transactions) - self.counts["committed"]

    async def _check_segments(self, client: Client, store: WatchedStore) -> None:
        """Check that the segments are those of the history, and only active ones are not sealed."""
        found = await client.ask(lambda c: c.store.streams.read("s", "a"))
        if found.record.pending is not None:
            raise ViolationError(f"work on the stream has not ended: {found.record}")
        there: dict[int, bool] = {}
        for name, segment in store.segments.items():
            parsed = names.parse_segment_name(name)
            if parsed.stream in DELETED_STREAMS:
                raise ViolationError(f"{name} is left of a stream that was deleted")
            if parsed.stream == "a":
                there[names.segment_id(parsed.segment_number, parsed.epoch)] = segment.is_sealed
        active = {segment.segment_id for segment in found.active}
        end = cut_at(found.active, offset=END_OFFSET)
        between = await found.history.segments_between(found.head, end)
        known = {segment.segment_id for segment in between}
        if there.keys() != known:
            raise ViolationError(f"segments {sorted(there)}, but the history has {sorted(known)}")
        for identifier, is_sealed in there.items():
            if is_sealed == (identifier in active):
                raise ViolationError(f"segment {identifier} is sealed: {is_sealed}")


async def _ask_state(
    stream: str, identifier: bytes, controller: Controller
) -> TransactionState | None:
    return await controller.transactions.state("s", stream, identifier)


def _first(error: BaseException) -> BaseException:
    """Return the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Logs:
    """Keeps the last log lines; a defect that the controller goes on after is a violation."""

    def __init__(self, violated: Callable[[BaseException], None]) -> None:
        self._violated = violated
        self.entries: deque[dict[str, Any]] = deque(maxlen=LOG_LINES_MAX)

    def __call__(self, entry: MutableMapping[str, Any]) -> None:
        self.entries.append(dict(entry))
        if entry["event"] in DEFECTS:
            violation = ViolationError(f"the controller logged a defect: {entry}")
            violation.__cause__ = sys.exc_info()[1]
            self._violated(violation)


def simulate(seed: int) -> Report:
    """Run one seed; raises ``FailedSeedError`` with everything that helps to understand it."""
    simulation = Simulation(seed)
    trace = simulation.trace
    logs = _Logs(simulation.violated)
    with logs_kept(logs):
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
        tail = "\n".join([*list(trace.lines)[-3000:], *map(str, list(logs.entries)[-20:])])
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
